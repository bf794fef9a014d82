"""One model through every capture, side by side: the graph of each, its cost, and whether outputs agree."""

from __future__ import annotations

import importlib.util
import os
import re
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from textwrap import wrap
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from torch.utils import _pytree as pytree

from torch_vis.analysis.compare.numeric.tensor_distance import integers_as_floats, norms_of
from torch_vis.api import trace
from torch_vis.capture.compilers.frontends import as_module
from torch_vis.capture.compilers.interpreter import op_name
from torch_vis.capture.compilers.symbolic_sizes import marks_kept
from torch_vis.capture.state import StateSnapshot
from torch_vis.capture.undo import HeldSignals
from torch_vis.errors import (
    CaptureFailed,
    MissingExtra,
    NotTraceable,
    UsageError,
    inert,
    missing_extra,
    no_match,
    optional,
    takes_kwargs,
)
from torch_vis.interfaces.model_export import open_sizes
from torch_vis.views.text.table_layout import Field, Listing, table

if TYPE_CHECKING:
    import pandas

CAPTURES = ("eager", "fx", "export", "dynamo", "aot", "onnx", "stablehlo")
WIDTH = 110
FIELDS = (
    Field("capture", "capture"),
    Field("succeeded", "works"),
    Field("seconds", "time", "{:.2f} s".format),
    Field("nodes", "nodes", "{:,}".format),
    Field("kinds", "kinds", "{:,}".format),
    Field("breaks", "breaks", str),
    Field("dynamic", "open sizes"),
    Field("difference", "difference", "{:.1e}".format),
)
RAISED = re.compile(r"[\w.]*(Error|Exception|Interrupt)\b.*")
RANDOM = "the model draws random numbers, and this capture draws others: its output cannot be the same"


class CaptureRow(NamedTuple):
    """How one capture fared; what is not known or does not apply is None."""

    capture: str
    succeeded: bool
    reason: str | None = None
    """Why it failed, or what to know."""
    seconds: float | None = None
    """The time to capture; where compiling happens while it runs, with the run."""
    nodes: int | None = None
    operations: dict[str, int] | None = None
    breaks: int | None = None
    dynamic: tuple[str, ...] | None = None
    """Sizes that were left open: ``2 ≤ s0``."""
    difference: float | None = None
    """The greatest difference from the eager run, over all outputs."""


class Captures(Sequence[CaptureRow]):
    """The rows of a comparison; ``print`` shows them as a table, ``captures["onnx"]`` is one by name."""

    def __init__(self, rows: Sequence[CaptureRow]) -> None:
        self._rows = list(rows)

    def __getitem__(self, key: Any) -> Any:
        if isinstance(key, str):
            by_name = {row.capture: row for row in self._rows}
            if key not in by_name:
                raise no_match("capture", key, by_name)
            return by_name[key]
        return self._rows[key]

    def __len__(self) -> int:
        return len(self._rows)

    def __iter__(self) -> Iterator[CaptureRow]:
        return iter(self._rows)

    def to_pandas(self) -> pandas.DataFrame:
        """One row per capture."""
        with optional("pandas"):
            import pandas as pd
        return pd.DataFrame([row._asdict() for row in self._rows]).set_index("capture")

    def __str__(self) -> str:
        lines = table(Listing("", FIELDS, [_cells(row) for row in self._rows]))
        for row in self._rows:
            if row.reason:
                text = f"{row.capture}: {row.reason}"
                lines += ["", *wrap(text, WIDTH, subsequent_indent="  ", break_on_hyphens=False)]
        return "\n".join(lines)

    def __repr__(self) -> str:
        good = sum(row.succeeded for row in self._rows)
        return f"<Captures: {good} of {len(self)} succeeded>"


def _cells(row: CaptureRow) -> tuple[Any, ...]:
    sizes = None if row.dynamic is None else ", ".join(row.dynamic) or "none"
    kinds = None if row.operations is None else len(row.operations)
    works = "yes" if row.succeeded else "no"
    return row.capture, works, row.seconds, row.nodes, kinds, row.breaks, sizes, row.difference


@takes_kwargs
def compare_captures(
    model: Callable[..., Any],
    *args: Any,
    kwargs: Mapping[str, Any] | None = None,
    captures: Sequence[str] = CAPTURES,
    dynamic: bool | None = None,
) -> Captures:
    """Take a model through every capture, and say of each if it worked, what it gave and how far its output is off.

    Every capture runs once on these inputs, from one state; afterwards buffers and random numbers are as they were.
    ``export`` and ``onnx`` leave the sizes of batches and sequences open where they can; ``dynamic`` is that of Dynamo.
    ``onnx`` is run in onnxruntime, ``stablehlo`` by jax in a process of its own; a missing extra is named in its row.

    >>> import torch, torch_vis as tv
    >>> model, x = torch.nn.Linear(3, 2).eval(), torch.ones(2, 3)
    >>> captures = tv.compare_captures(model, x, captures=["eager", "fx", "export"])
    >>> [(row.capture, row.nodes, row.difference) for row in captures]
    [('eager', 2, 0.0), ('fx', 1, 0.0), ('export', 1, 0.0)]
    """
    if not callable(model):
        raise NotTraceable(f"compare_captures() takes a module or a callable, not {type(model).__name__}")
    for name in captures:
        if name not in CAPTURES:
            raise no_match("capture", str(name), CAPTURES)
    if not captures:
        raise UsageError(f"name at least one capture: {', '.join(CAPTURES)}")
    given = dict(kwargs or {})
    state = StateSnapshot.of_model(model, contents="buffers")
    with state:
        before = torch.get_rng_state()
        # a copy, since it may be a buffer that is put back
        expected = pytree.tree_map_only(torch.Tensor, torch.clone, model(*args, **given))
        draws = not torch.equal(before, torch.get_rng_state())
    rows = []
    for name in captures:
        with state, marks_kept(args, given):
            row = _row(name, model, args, given, dynamic, expected)
            if draws and row.difference and row.reason is None:
                row = row._replace(reason=RANDOM)
            rows.append(row)
    return Captures(rows)


def _row(
    name: str,
    model: Callable[..., Any],
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
    dynamic: bool | None,
    expected: Any,
) -> CaptureRow:
    take = {"onnx": _onnx, "stablehlo": _stablehlo}.get(name, _traced)
    started = time.perf_counter()
    try:
        return take(name, model, args, kwargs, dynamic, expected)
    except Exception as error:  # whatever a front-end says of the model is the finding
        text = str(error).strip() or type(error).__name__
        if not isinstance(error, (UsageError, MissingExtra)):
            text = f"{type(error).__name__}: {text}"
        seconds = None if isinstance(error, MissingExtra) else time.perf_counter() - started
        return CaptureRow(name, False, _line(text), seconds)


def _line(text: str) -> str:
    return inert(" ".join(text.split("\n", 1)[0].split()))


def _traced(
    name: str, model: Any, args: tuple[Any, ...], kwargs: dict[str, Any], dynamic: bool | None, expected: Any
) -> CaptureRow:
    reason, while_running = None, 0.0
    if name == "export":
        try:
            shapes = open_sizes(model, args, kwargs) if isinstance(model, torch.nn.Module) else None
            run = trace(model, *args, kwargs=kwargs, hold=False, via=name, dynamic_shapes=shapes)
        except CaptureFailed as error:
            run = trace(model, *args, kwargs=kwargs, hold=False, via=name)
            reason = _line(f"sizes are fixed: {error}")
    else:
        started = time.perf_counter()
        asked = dynamic if name in ("dynamo", "aot") else None
        run = trace(model, *args, kwargs=kwargs, hold=False, via=name, dynamic=asked)
        while_running = time.perf_counter() - started
    program = run.program
    difference = _difference(expected, run.output)
    if program is None:
        counts = Counter(node.name for node in run.graph.nodes)
        return CaptureRow(
            name,
            True,
            seconds=while_running,
            nodes=len(run.graph),
            operations=dict(counts),
            difference=difference,
        )
    nodes = [n for part in program.modules for n in part.graph.nodes if n.op.startswith("call_")]
    counts = Counter(_kind(node) for node in nodes)
    breaks = len(program.breaks) if name in ("dynamo", "aot") else 0
    seconds = while_running if name in ("dynamo", "aot") else program.compile_ns / 1e9
    sizes = None if name == "fx" else tuple(program.ranges.values()) or _symbols(run)
    return CaptureRow(name, True, reason, seconds, len(nodes), dict(counts), breaks, sizes, difference)


def _kind(node: torch.fx.Node) -> str:
    """What a node does: an operator's or method's name, or a module's class."""
    if node.op == "call_module" and node.graph.owning_module is not None:
        return type(node.graph.owning_module.get_submodule(str(node.target))).__name__
    return op_name(node) if node.op == "call_function" else str(node.target)


def _symbols(run: Any) -> tuple[str, ...]:
    names = {str(name) for row in run.graph.types for name in getattr(row, "symbols", None) or ()}
    return tuple(sorted(name for name in names if name and not name.isdigit()))


def _difference(expected: Any, output: Any) -> float | None:
    """The largest of any two elements; infinite where tensors are missing, of another shape, or NaN in one alone."""
    a, b = _tensors(expected), _tensors(output)
    if [tensor.shape for tensor in a] != [tensor.shape for tensor in b]:
        return float("inf")
    pairs = [(_as_floats(left), _as_floats(right)) for left, right in zip(a, b) if left.numel()]
    return max((norms_of(left, right).largest for left, right in pairs), default=None)


def _tensors(output: Any) -> list[torch.Tensor]:
    return [leaf for leaf in pytree.tree_leaves(output) if isinstance(leaf, torch.Tensor)]


def _as_floats(tensor: torch.Tensor) -> torch.Tensor:
    tensor = tensor.detach()
    return integers_as_floats(tensor if tensor.layout == torch.strided else tensor.to_dense())


# ---------------------------------------------------------------- ONNX


def _need(packages: Sequence[str], extra: str) -> None:
    for package in packages:
        if importlib.util.find_spec(package) is None:
            raise missing_extra(package, extra)


def _onnx(
    name: str, model: Any, args: tuple[Any, ...], kwargs: dict[str, Any], dynamic: bool | None, expected: Any
) -> CaptureRow:
    _need(("onnx", "onnxscript", "onnxruntime"), "onnx-export")
    module = as_module(model)
    started = time.perf_counter()
    reason = None
    shapes = open_sizes(module, args, kwargs)
    with HeldSignals():
        try:
            exported = torch.export.export(module, args, kwargs, dynamic_shapes=shapes, strict=False)
            program = torch.onnx.export(exported, dynamo=True, verbose=False)
        except Exception as error:
            reason = _line(f"sizes are fixed: {error}")
            exported = torch.export.export(module, args, kwargs, strict=False)
            program = torch.onnx.export(exported, dynamo=True, verbose=False)
    sizes = tuple(str(symbol) for symbol in exported.range_constraints)
    seconds = time.perf_counter() - started
    # dynamo=True gives one or raises
    assert program is not None
    counts = Counter(node.op_type for node in program.model.graph)
    outputs = program(*args, **kwargs)
    return CaptureRow(
        name,
        True,
        reason,
        seconds,
        sum(counts.values()),
        dict(counts),
        0,
        sizes,
        _difference(expected, outputs),
    )


# ---------------------------------------------------------------- StableHLO


class _Flat(torch.nn.Module):
    """A model that takes and gives plain tensors, so that another process need not know the classes around them."""

    def __init__(self, model: torch.nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        super().__init__()
        self.model = model
        self.leaves, self.spec = pytree.tree_flatten((args, kwargs))
        # train() would reach into the model
        self.training = model.training

    def tensors(self) -> list[torch.Tensor]:
        """The inputs that are tensors."""
        return [leaf for leaf in self.leaves if isinstance(leaf, torch.Tensor)]

    def forward(self, *tensors: torch.Tensor) -> list[torch.Tensor]:
        """Call the model in its own terms."""
        given = iter(tensors)
        leaves = [next(given) if isinstance(leaf, torch.Tensor) else leaf for leaf in self.leaves]
        args, kwargs = pytree.tree_unflatten(leaves, self.spec)
        return _tensors(self.model(*args, **kwargs))


def _raised(output: str) -> str:
    """The exception that ended a process, out of all that it wrote; jax adds remarks of its own below it."""
    lines = output.strip().splitlines() or ["the process ended without a word"]
    return next((line for line in reversed(lines) if RAISED.fullmatch(line)), lines[-1])


def _stablehlo(
    name: str, model: Any, args: tuple[Any, ...], kwargs: dict[str, Any], dynamic: bool | None, expected: Any
) -> CaptureRow:
    _need(("jax", "torchax"), "stablehlo")
    flat = _Flat(as_module(model), args, kwargs)
    started = time.perf_counter()
    with HeldSignals():
        exported = torch.export.export(flat, tuple(flat.tensors()), strict=False)
    exporting = time.perf_counter() - started
    tensors = [tensor.detach().cpu() for tensor in flat.tensors()]
    with tempfile.TemporaryDirectory() as folder:
        paths = [os.path.join(folder, part) for part in ("program.pt2", "inputs.pt", "result.pt")]
        torch.export.save(exported, paths[0])
        torch.save(tensors, paths[1])
        command = [sys.executable, "-m", "torch_vis.interfaces.stablehlo", *paths]
        where = {**os.environ, "JAX_PLATFORMS": "cpu", "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
        done = subprocess.run(command, capture_output=True, text=True, env=where, check=False)
        if done.returncode:
            raise CaptureFailed(_raised(done.stderr))
        result = torch.load(paths[2])
    counts = result["operations"]
    return CaptureRow(
        name,
        True,
        None,
        exporting + result["seconds"],
        sum(counts.values()),
        counts,
        0,
        (),
        _difference(expected, result["outputs"]),
    )
