"""Model tracing for explanation: one exported graph, run again on new inputs, with relevance traced back through it."""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import fx
from torch.utils import _pytree as pytree

from torch_vis.analysis.relevance.graph_run import run_graph
from torch_vis.api import Trace
from torch_vis.capture.compilers.frontends import export_inputs, export_outputs
from torch_vis.capture.compilers.interpreter import PASSIVE, ProgramRun
from torch_vis.capture.compilers.program import Program
from torch_vis.capture.session import Capture
from torch_vis.errors import TensorsMissing, UsageError
from torch_vis.graph import Column, Graph
from torch_vis.graph.record import Limit
from torch_vis.interfaces.backtrace.export import (
    Contract,
    bind,
    check_model,
    export,
    named_leaves,
    same_device,
)
from torch_vis.interfaces.backtrace.graph import NodeIO, facts, needed, selected, to_networkx

if TYPE_CHECKING:
    import networkx

    from torch_vis._trace import Trace
    from torch_vis.analysis.relevance.result import Relevance


# ---------------------------------------------------------------- memory


APART = 1 << 40  # bytes between the heap and the region of large mappings, at the least


def highest(values: Iterable[Any], held: torch.Tensor | None) -> torch.Tensor | None:
    """The tensor at the highest address of the heap, of those in a run and the one that is held.

    A run that keeps every node frees all of it at once, and the C library then returns its heap to the system: the next
    run pays for every page again, half the time of a ResNet-50. The library can return only what lies above the last
    block in use, so one tensor of the run, the highest, is kept. The heap stays mapped, and free for anybody, until the
    ``DLBacktrace`` is gone.
    """
    by_address = {held.data_ptr(): held} if held is not None else {}
    for value in values:
        if type(value) is torch.Tensor and value.device.type == "cpu":
            by_address[value.data_ptr()] = value
    if not by_address:
        return None
    addresses = sorted(by_address)
    gaps = [(after - before, before) for before, after in itertools.pairwise(addresses)]
    gap, below = max(gaps, default=(0, addresses[-1]))
    return by_address[below if gap > APART else addresses[-1]]


# ---------------------------------------------------------------- trace_columns


def trace_of(
    program: Any, model: torch.nn.Module, flat: list[Any], relevance: Mapping[str, float], limits: list[str]
) -> Trace:
    """The program run on its flat inputs, with what each node was given as the metric ``relevance``.

    A node of the program may run several operations: its relevance stands at the last of them, which makes its result.
    """
    capture = Capture(model, keep=False)
    specs = program.graph_signature.input_specs
    capture.inputs = [
        (spec.arg.name, value)
        for spec, value in zip(specs, flat)
        if spec.kind.name == "USER_INPUT" and isinstance(value, torch.Tensor)
    ]
    capture.has_output = True
    with torch.no_grad(), capture:
        outputs = ProgramRun(capture).interpret(program.graph_module, *flat)
        capture.output = export_outputs(program, model, outputs)
    run = capture.finish().run
    run.meta["program"] = Program("export", [program.graph_module], program).to_plain()
    names = [node.name for node in program.graph_module.graph.nodes if node.op not in PASSIVE]
    run.metrics = run.metrics.with_column(_column(run.graph, names, relevance))
    run.limits += tuple(Limit(text, kind="program") for text in limits)
    return Trace.of(run, output=capture.output)


def _column(graph: Graph, names: list[str], relevance: Mapping[str, float]) -> Column:
    """Nodes of the program are calls of functions in the graph, in the same order; what runs inside is part of them."""
    inside = np.zeros(len(graph.scope_call), dtype=bool)
    calls: list[int] = []
    for scope in graph.scopes:
        around = int(graph.scope_parent[scope.index])
        inside[scope.index] = around >= 0 and (inside[around] or around in calls[-1:])
        if scope.kind == "function" and not inside[scope.index]:
            calls.append(scope.index)
    last = np.full(len(graph.scope_call), -1, dtype=np.int64)
    last[graph.node_scope] = np.arange(len(graph))  # the later one counts
    values, known = np.zeros(len(graph)), np.zeros(len(graph), dtype=bool)
    at = 0
    for name in names:
        if at == len(calls) or graph.scopes[calls[at]].path != re.sub(r"_\d+$", "", name):
            continue  # it only takes a result apart, and was not called
        node = int(last[calls[at]])
        at += 1
        if name in relevance and node >= 0:
            values[node] = relevance[name]
            known[node] = True
    return Column("relevance", values, known=known)


class DLBacktrace:
    """A model in eval mode as an exported graph that is traced once and then run on as many inputs as wanted.

    ``input_for_graph`` is a tuple of inputs (or a dictionary, for a model that takes them by name) of the right types;
    sizes that the model leaves open may differ later. ``dynamic_shapes`` is that of ``torch.export`` and says which
    ones those are. Without it, the sizes of batches and sequences are left open where the program allows it (not the
    sides of images, which torch would reason about for minutes), and ``limits`` says if none could be. The weights are
    the model's own: after a change to them, the graph runs with the new ones.

    >>> import torch
    >>> from torch_vis import DLBacktrace
    >>> model = torch.nn.Sequential(torch.nn.Linear(3, 4), torch.nn.ReLU(), torch.nn.Linear(4, 2)).eval()
    >>> dlb = DLBacktrace(model=model, input_for_graph=(torch.ones(1, 3),))
    >>> dlb.topological_order
    ['input', 'linear', 'relu', 'linear_1', 'output']
    >>> dlb.graph.nodes["linear"]["hyperparameters"]["weight"].shape
    torch.Size([4, 3])
    >>> node_io = dlb.predict(torch.ones(5, 3))
    >>> node_io["relu"]["output"].shape
    torch.Size([5, 4])
    >>> dlb.evaluation(node_io, target=1).error < 1e-3
    True
    """

    def __init__(
        self,
        model: torch.nn.Module,
        input_for_graph: Any,
        device: str | torch.device | None = None,
        dynamic_shapes: Any = None,
    ) -> None:
        check_model(model, device)
        args, kwargs = _as_inputs(input_for_graph)
        bind(model, args, kwargs, "the inputs of input_for_graph")
        _check_devices(model, args, kwargs, device)
        self.model = model

        def contract(program: Any) -> Contract:
            return Contract(program, model, args, kwargs, dynamic_shapes is not None)

        def fits(program: Any) -> bool:
            try:
                return bool(contract(program).arrange(args, kwargs))
            except UsageError:
                return False

        self.program, self.limits = export(model, args, kwargs, dynamic_shapes, fits)
        self._contract = contract(self.program)
        graph = self.program.graph_module.graph
        self._inputs = [node for node in graph.nodes if node.op == "placeholder"]
        self._state = self._model_state(args, kwargs)
        self.nodes = facts(self.program, self._state)
        self._graph: Any = None
        self._anchor: torch.Tensor | None = None
        self._evaluated: tuple[list[Any], Relevance] | None = None

    def _model_state(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> dict[fx.Node, Any]:
        """The model's own tensors by their placeholder."""
        flat = export_inputs(self.program, self.model, args, kwargs)
        specs = self.program.graph_signature.input_specs
        return {
            node: value
            for node, value, spec in zip(self._inputs, flat, specs, strict=True)
            if spec.kind.name != "USER_INPUT"
        }

    @property
    def _output(self) -> fx.Node:
        """The output node of the exported graph."""
        return next(reversed(self.program.graph_module.graph.nodes))

    @property
    def graph(self) -> networkx.DiGraph[str]:
        """The nodes and the data flow between them as a networkx graph.

        A node has ``type`` (placeholder, call_function, output), ``op``, ``target``, ``module``, ``module_type``,
        ``inputs``, ``hyperparameters``, ``shape`` and ``dtype``.

        >>> import torch
        >>> from torch_vis import DLBacktrace
        >>> dlb = DLBacktrace(torch.nn.ReLU().eval(), (torch.ones(2, 3),))
        >>> list(dlb.graph.edges)
        [('input', 'relu'), ('relu', 'output')]
        """
        if self._graph is None:
            self._graph = to_networkx(self.nodes)
        return self._graph

    @property
    def topological_order(self) -> list[str]:
        """The names of the nodes, each after those whose outputs it takes."""
        return list(self.nodes)

    @property
    def module_map(self) -> dict[str, str]:
        """For every node, the path of the module whose call made it; ``""`` is the model itself."""
        return {name: row.module for name, row in self.nodes.items()}

    def predict(self, *inputs: Any, kwargs: Mapping[str, Any] | None = None, keep: Any = "all") -> NodeIO:
        """Run the graph on new inputs: for every node its inputs and its output.

        The operators are torch's own, called as the exported graph says, without gradients. ``keep`` bounds what is
        held: ``"outputs"`` for what the model returns alone, or names of nodes and modules (``"layer1.*"``).

        >>> import torch
        >>> from torch_vis import DLBacktrace
        >>> dlb = DLBacktrace(torch.nn.ReLU().eval(), (torch.ones(2, 3),))
        >>> dlb.predict(-torch.ones(4, 3), keep="outputs").output.sum()
        tensor(0.)
        """
        if len(inputs) == 1 and not kwargs and isinstance(inputs[0], Mapping) and self._contract.keywords:
            kwargs, inputs = inputs[0], ()
        inputs = self._contract.spread(inputs)
        users = iter(self._contract.arrange(inputs, kwargs or {}))
        state, module = self._state, self.program.graph_module
        flat = [state[node] if node in state else next(users) for node in self._inputs]
        names = selected(keep, self.nodes)
        with torch.no_grad():
            values = run_graph(module, flat, None if names is None else needed(module.graph, names))
            output = export_outputs(self.program, self.model, values[self._output])
        computed = (value for node, value in values.items() if node.op == "call_function")
        self._anchor = highest(computed, self._anchor)
        return NodeIO(self.nodes, values, output, names)

    def evaluation(
        self,
        node_io: NodeIO,
        *,
        mode: str = "default",
        target: Any = None,
        against: Any = None,
        output: int = 0,
        relevance: torch.Tensor | None = None,
        multiplier: float = 1.0,
        tensors: bool | str | list[str] = False,
    ) -> Relevance:
        """Trace relevance from a chosen output back to the inputs: what each node has part in it.

        The start is ``relevance``, a tensor like the model's ``output``-th output, or else ``multiplier`` at the index
        ``target`` of its last dimension (for every sample; by default where the output is greatest). In mode
        ``"contrastive"`` what speaks for the start and what speaks against it are followed apart; ``against`` names an
        index from which counter-evidence starts as well. ``tensors=True`` (or names) keeps the relevance of nodes
        element by element; that of the inputs is always kept.

        >>> import torch
        >>> from torch_vis import DLBacktrace
        >>> dlb = DLBacktrace(torch.nn.Linear(3, 2).eval(), (torch.ones(1, 3),))
        >>> relevance = dlb.evaluation(dlb.predict(torch.ones(1, 3)), target=0)
        >>> round(relevance["input"], 6), relevance.tensors["input"].shape
        (1.0, torch.Size([1, 3]))
        """
        from torch_vis.analysis.relevance import relevance_of
        from torch_vis.analysis.relevance.flow import Start

        if not isinstance(node_io, NodeIO):
            raise UsageError("evaluation takes what predict() returned: node_io = dlb.predict(x)")
        if not node_io.is_whole:
            raise TensorsMissing("relevance needs every node; run predict(..., keep='all')")
        users = [node for node in self._inputs if node not in self._state]
        start = Start(self._returned(), output, target, against, relevance, multiplier)
        rows = {name: (row.op, row.module) for name, row in self.nodes.items()}
        values = node_io.raw()
        result = relevance_of(values, users, start, mode=mode, tensors=tensors, rows=rows)
        self._evaluated = [values[node] for node in self._inputs], result
        return result

    @property
    def trace(self) -> Trace:
        """The run that was last evaluated as a trace with the metric ``relevance``: ``save("x.html")`` colours by it.

        >>> import torch
        >>> from torch_vis import DLBacktrace
        >>> dlb = DLBacktrace(torch.nn.Linear(3, 2).eval(), (torch.ones(1, 3),))
        >>> relevance = dlb.evaluation(dlb.predict(torch.ones(1, 3)), target=0)
        >>> dlb.trace.metrics["relevance"][-1] == relevance["linear"]
        True
        """
        if self._evaluated is None:
            raise UsageError("there is no relevance to show yet; call dlb.evaluation(dlb.predict(x)) first")
        return trace_of(self.program, self.model, *self._evaluated, list(self.limits))

    def _returned(self) -> list[Any]:
        """The nodes whose values the model returns, in order."""
        specs = self.program.graph_signature.output_specs
        flat = list(pytree.tree_leaves(self._output.args[0]))
        return [node for node, spec in zip(flat, specs) if spec.kind.name == "USER_OUTPUT"]

    def __repr__(self) -> str:
        return f"<DLBacktrace of {type(self.model).__name__}: {len(self.nodes)} nodes>"


def _as_inputs(given: Any) -> tuple[tuple[Any, ...], dict[str, Any]]:
    if isinstance(given, torch.Tensor):
        return (given,), {}
    if isinstance(given, Mapping):
        return (), dict(given)
    if isinstance(given, (tuple, list)) and given:
        return tuple(given), {}
    raise UsageError(
        f"input_for_graph is a tuple with the model's inputs, such as (torch.randn(1, 3, 224, 224),), not {given!r}"
    )


def _check_devices(
    model: torch.nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any], device: Any
) -> None:
    """Refuse inputs that lie elsewhere than the model."""
    own = next((t.device for t in [*model.parameters(), *model.buffers()]), None)
    wanted = torch.device(device) if device is not None else own
    for name, leaf in named_leaves(model, args, kwargs):
        if isinstance(leaf, torch.Tensor) and wanted is not None and not same_device(leaf.device, wanted):
            raise UsageError(
                f"input {name!r} is on {leaf.device} and the model on {wanted}; give {name}.to('{wanted}')"
            )
