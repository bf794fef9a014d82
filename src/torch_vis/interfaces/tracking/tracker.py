"""Execution tracking: run a model once, or track a stretch of your own code, and read nodes, edges and figures.

The same recording as ``trace`` and ``record`` make, in another shape; ``tracker.trace`` is the ``Trace`` behind it,
with all of its views and files.
"""

from __future__ import annotations

import json
import os
import threading
from typing import TYPE_CHECKING, Any, Literal

from torch_vis.capture.undo import Context, Passage, is_open, passage_of
from torch_vis.errors import MissingExtra, NoMatch, NotTraceable, UsageError
from torch_vis.formats import by_ending, drawer, writer
from torch_vis.graph.io.atomic import replacing
from torch_vis.interfaces.tracking.types import GraphEdge, GraphNode, OperationType

if TYPE_CHECKING:
    from torch_vis._trace import Trace
    from torch_vis.interfaces.tracking.graph import TrackedGraph, TrackingRecord
    from torch_vis.interfaces.tracking.run import TrackingSession

__all__ = [
    "ComputationalGraphTracker",
    "GraphEdge",
    "GraphNode",
    "OperationType",
    "analyze_computational_graph_execution",
    "export_computational_graph",
    "track_computational_graph_execution",
    "visualize_computational_graph",
]


CHUNK = 4096  # records written at a time


class ComputationalGraphTracker(Context["ComputationalGraphTracker"]):
    """Tracks what happens between ``start_tracking`` and ``stop_tracking``, or in a ``with`` block.

    It is the program's own code that runs: gradients, weights and the random stream end up as they would without
    tracking. ``track_memory`` and ``track_timing`` off leave those figures out (None) and spare their cost;
    ``track_tensor_ops`` off follows only the calls of modules, which costs next to nothing per operation: there are
    then layers and passes but no operations, an edge between layers means that one took the very tensor that the
    other returned, and the memory of a layer is that of its results. If the code raises in between, ``stop_tracking``
    keeps what ran until then; a tracker that is dropped while it tracks lets go by itself. A second start begins a
    new record.

    >>> import torch
    >>> from torch_vis import ComputationalGraphTracker
    >>> model = torch.nn.Linear(3, 2)
    >>> tracker = ComputationalGraphTracker(model)
    >>> tracker.start_tracking()
    >>> model(torch.ones(1, 3)).sum().backward()
    >>> tracker.stop_tracking()
    >>> [node.name for node in tracker.nodes if node.operation_type is OperationType.TENSOR_OP]
    ['addmm', 'sum']
    """

    def __init__(
        self, model: Any, track_memory: bool = True, track_timing: bool = True, track_tensor_ops: bool = True
    ) -> None:
        _require_torch()
        if not callable(model):
            raise NotTraceable(f"what is tracked is a module, not {type(model).__name__}")
        self.model = model
        self.track_memory = track_memory
        self.track_timing = track_timing
        self.track_tensor_ops = track_tensor_ops
        self._session: TrackingSession | None = None
        self._only_run: TrackingRecord | None = None
        self._tracked: TrackedGraph | None = None
        self._nodes: list[GraphNode] | None = None
        self._edges: list[GraphEdge] | None = None

    @property
    def is_tracking(self) -> bool:
        """Whether it is recording now."""
        return is_open(self)

    def start_tracking(self) -> None:
        """Begin a new record on this thread; an older one is forgotten."""
        if self.is_tracking:
            raise UsageError("tracking is on already; call stop_tracking() first")
        passage = passage_of(self)
        try:
            passage.enter()
        except BaseException:
            passage.close()
            raise

    def stop_tracking(self) -> None:
        """End the record; summary, data and trace can be asked for now."""
        if self._session is None or not self.is_tracking:
            raise UsageError("tracking is not on; call start_tracking() first")
        if threading.get_ident() != self._session.thread:
            raise UsageError("stop_tracking() belongs on the thread that called start_tracking()")
        passage_of(self).close()

    def _new_passage(self) -> Passage[ComputationalGraphTracker]:
        from torch_vis.interfaces.tracking.run import TrackingSession

        self._session = TrackingSession(
            self.model,
            memory=self.track_memory,
            timing=self.track_timing,
            operations=self.track_tensor_ops,
            tracker=self,
        )
        self._keep(None)
        # held by nobody else: a tracker that is dropped takes it along, and what it does to torch ends
        return self._session._new_passage()

    @property
    def trace(self) -> Trace:
        """The trace behind the figures: ``print`` it, ``save`` it, draw it with ``figure``. It holds no tensors."""
        return self._graph().record.trace

    @property
    def nodes(self) -> list[GraphNode]:
        """Every node: passes, tensors that the run began with, calls of layers, operations in the order they ran."""
        if self._nodes is None:
            from torch_vis.interfaces.tracking.graph import nodes_of

            self._nodes = nodes_of(self._graph())
        return self._nodes

    @property
    def edges(self) -> list[GraphEdge]:
        """Every edge."""
        if self._edges is None:
            from torch_vis.interfaces.tracking.graph import edges_of

            self._edges = edges_of(self._graph())
        return self._edges

    def get_graph_summary(self) -> dict[str, Any]:
        """Totals: nodes and edges by type, time in seconds, memory in bytes, parameters, devices, what was not seen.

        ``total_flops``, ``total_macs`` and ``total_moved_bytes`` are those of the operations for which they are known;
        ``unknown_flops`` and so on count the others.

        >>> import torch
        >>> from torch_vis import track_computational_graph_execution
        >>> tracker = track_computational_graph_execution(torch.nn.Linear(3, 2), torch.ones(1, 3))
        >>> tracker.get_graph_summary()["operation_types"]["layer_op"]
        1
        """
        from torch_vis.interfaces.tracking.graph import summary_of

        return summary_of(self._graph())

    def get_graph_data(self) -> dict[str, Any]:
        """``nodes``, ``edges``, ``summary`` and ``metadata`` as plain data that JSON can hold.

        >>> import torch
        >>> from torch_vis import track_computational_graph_execution
        >>> tracker = track_computational_graph_execution(torch.nn.ReLU(), torch.ones(2))
        >>> sorted(tracker.get_graph_data())
        ['edges', 'metadata', 'nodes', 'summary']
        """
        from torch_vis.interfaces.tracking.graph import plain_rows

        return {
            "nodes": plain_rows(self.nodes),
            "edges": plain_rows(self.edges),
            "summary": self.get_graph_summary(),
            "metadata": self._metadata(),
        }

    def _metadata(self) -> dict[str, Any]:
        switches = {
            "track_memory": self.track_memory,
            "track_timing": self.track_timing,
            "track_tensor_ops": self.track_tensor_ops,
        }
        return {**self.trace.meta, **switches, "units": {"time": "s", "memory": "bytes"}}

    def _graph(self) -> TrackedGraph:
        if self.is_tracking:
            raise UsageError("tracking is still on; call stop_tracking() before asking for results")
        if self._record is None:
            raise UsageError(
                "nothing was tracked yet; call start_tracking() and stop_tracking() around the code"
            )
        if self._tracked is None:
            from torch_vis.interfaces.tracking.graph import TrackedGraph

            self._tracked = TrackedGraph(self._record)
        return self._tracked

    def _keep(self, record: TrackingRecord | None) -> None:
        self._only_run, self._tracked, self._nodes, self._edges = record, None, None, None

    @property
    def _record(self) -> TrackingRecord | None:
        """What was tracked: one run, or the last stretch."""
        return self._session.record if self._session is not None else self._only_run

    def __repr__(self) -> str:
        name = type(self.model).__name__
        if self.is_tracking:
            return f"<tracker of {name}, tracking>"
        return f"<tracker of {name}: {self._graph().count if self._record else 'no'} nodes>"


def track_computational_graph_execution(
    model: Any,
    input_tensor: Any,
    track_memory: bool = True,
    track_timing: bool = True,
    track_tensor_ops: bool = True,
) -> ComputationalGraphTracker:
    """Run a model forward and backward once, tracked, and leave no mark on it.

    Weights, gradients, buffers, attributes and random streams are put back bit for bit, also when the model raises:
    inside a training loop, the training goes on as if nothing had been. ``input_tensor`` may be a tuple or list of
    positional arguments, or a dictionary of keyword arguments; where ``forward`` cannot be called so, but can with one
    argument, the tuple, list or dictionary itself is that argument. Backward starts from the sum of the floating
    outputs; where none of them requires a gradient, only forward is run, and the summary says ``backward: False``. For
    the switches, see ``ComputationalGraphTracker``.

    >>> import torch
    >>> from torch_vis import track_computational_graph_execution
    >>> model = torch.nn.Sequential(torch.nn.Linear(10, 20), torch.nn.ReLU(), torch.nn.Linear(20, 1))
    >>> tracker = track_computational_graph_execution(model, torch.randn(1, 10))
    >>> [node.name for node in tracker.nodes if node.operation_type is OperationType.LAYER_OP]
    ['Sequential', '0 (Linear)', '1 (ReLU)', '2 (Linear)']
    >>> model[0].weight.grad is None
    True
    """
    tracker = ComputationalGraphTracker(model, track_memory, track_timing, track_tensor_ops)
    from torch_vis.interfaces.tracking.run import run_once

    record = run_once(
        model, input_tensor, memory=track_memory, timing=track_timing, operations=track_tensor_ops
    )
    tracker._keep(record)
    return tracker


def analyze_computational_graph_execution(
    model: Any, input_tensor: Any, detailed: bool = True
) -> dict[str, Any]:
    """Track one run and say where time and memory go: ``summary``, ``performance`` and ``layer_analysis``.

    ``performance`` has operations per second, the peak of memory, totals by type and by operator, and the slowest
    operations. ``layer_analysis`` lists, by layer name, the calls of the layer and its operations. ``detailed=False``
    leaves both out.

    >>> import torch
    >>> from torch_vis import analyze_computational_graph_execution
    >>> analysis = analyze_computational_graph_execution(torch.nn.Linear(3, 2), torch.ones(1, 3))
    >>> analysis["layer_analysis"]["Linear"][0]["output_shapes"]
    [[1, 2]]
    """
    tracker = track_computational_graph_execution(model, input_tensor)
    analysis: dict[str, Any] = {"summary": tracker.get_graph_summary()}
    if detailed:
        from torch_vis.interfaces.tracking.graph import layers_of, performance_of

        tracked, nodes = tracker._graph(), tracker.nodes
        analysis["performance"] = performance_of(tracked, nodes)
        analysis["layer_analysis"] = layers_of(tracked, nodes)
    return analysis


def visualize_computational_graph(
    model: Any,
    input_tensor: Any,
    renderer: str = "plotly",
    *,
    depth: int | Literal["auto"] | None = "auto",
    color: str = "type",
    phase: str | None = None,
) -> Any:
    """Track one run and draw it: a figure of Plotly, Matplotlib (then also pyplot's current one) or Graphviz.

    ``depth``, ``color`` and ``phase`` are those of ``Trace.figure``, which draws.

    >>> import torch
    >>> from torch_vis import visualize_computational_graph
    >>> figure = visualize_computational_graph(torch.nn.ReLU(), torch.ones(2), renderer="matplotlib")
    >>> type(figure).__name__
    'Figure'
    """
    # an unknown name raises before anything runs
    drawer(renderer)
    tracker = track_computational_graph_execution(model, input_tensor)
    return tracker.trace.figure(renderer, depth=depth, color=color, phase=phase)


def export_computational_graph(
    model: Any, input_tensor: Any, filepath: str | os.PathLike[str], format: str = "json"
) -> str:
    """Track one run and write it to a file, whole or not at all; the path is given back.

    ``json`` holds what ``get_graph_data`` gives. Every other format that ``Trace.save`` knows works by its name:
    ``onnx``, ``dot``, ``graphml``, ``perfetto``, ``csv``… A path with the ending of another format than ``json`` needs
    that format's name, and is refused without it.

    >>> import tempfile, torch
    >>> from torch_vis import export_computational_graph
    >>> path = export_computational_graph(torch.nn.ReLU(), torch.ones(2), tempfile.mkdtemp() + "/graph.json")
    >>> sorted(json.load(open(path)))
    ['edges', 'metadata', 'nodes', 'summary']
    """
    # an unknown format raises before anything runs
    writer(filepath, format)
    if format == "json":
        _refuse_other_ending(filepath)
    tracker = track_computational_graph_execution(model, input_tensor)
    if format == "json":
        _write(filepath, tracker)
    else:
        tracker.trace.save(filepath, format=format)
    return os.fspath(filepath)


def _refuse_other_ending(filepath: str | os.PathLike[str]) -> None:
    """Say that a file for JSON is called like one of another format: whoever opens it would find no such thing."""
    try:
        other = by_ending(filepath)
    except NoMatch:
        return
    if other != "json":
        name = os.path.basename(os.fspath(filepath))
        raise UsageError(f"{name} ends as {other} files do, and the format is json; pass format={other!r}")


def _write(filepath: str | os.PathLike[str], tracker: ComputationalGraphTracker) -> None:
    """The data of ``get_graph_data``, a piece at a time."""
    from torch_vis.interfaces.tracking.graph import plain_rows

    encode = json.JSONEncoder(allow_nan=False, check_circular=False, separators=(",", ":")).encode
    nodes, edges = tracker.nodes, tracker.edges
    rest = {"summary": tracker.get_graph_summary(), "metadata": tracker._metadata()}
    with replacing(filepath) as file:
        opening = b"{"
        for name, rows in (("nodes", nodes), ("edges", edges)):
            file.write(opening + f'"{name}":['.encode())
            for start in range(0, len(rows), CHUNK):
                text = encode(plain_rows(rows[start : start + CHUNK]))[1:-1]
                file.write((b",\n" if start else b"\n") + text.encode())
            opening = b"],\n"
        file.write(opening + encode(rest)[1:].encode() + b"\n")


def _require_torch() -> None:
    try:
        import torch  # noqa: F401
    except ImportError as error:
        raise MissingExtra("torch is not installed; run: pip install torch") from error
