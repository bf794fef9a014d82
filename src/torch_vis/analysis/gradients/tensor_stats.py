"""What was in the tensors of a run, as columns: norms, numbers that are none, units that never fire.

The run itself keeps no tensors. It is repeated from what the trace holds, bit for bit, and looked at on the way.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

import numpy as np
import torch

from torch_vis.analysis.gradients.dead_units import Activations, Stuck
from torch_vis.capture.kept_tensors import KeptTensors
from torch_vis.graph.graph import Graph
from torch_vis.graph.metrics import Column
from torch_vis.graph.schema import Flag, Role
from torch_vis.ops.names import plain_name
from torch_vis.replay.replay import quiet
from torch_vis.replay.stepper import Stepper, observe

CONTENTS = ("norm", "nans", "infs", "units", "dead_units")
UNFILLED = frozenset({"empty", "empty_like", "empty_strided", "new_empty", "new_empty_strided", "resize"})


def contents(graph: Graph, held: KeptTensors | None) -> dict[str, Column]:
    """The columns ``norm``, ``nans``, ``infs``, ``units`` and ``dead_units`` along the operations.

    ``norm`` is the Euclidean norm of all floating-point elements that an operation made. It is not known for what has
    none, for memory that is not yet filled, and for views, except those that are results of the run. ``units`` and
    ``dead_units`` are known for operations that cut to zero (ReLU) or become flat (GELU, where it has a gradient): how
    many channels they give, and how many of these are zero for everything that came in and let no gradient through.
    Channels lie where the operations before put them (`unit_axes`).
    """
    return contents_and_norms(graph, held, ())[0]


def contents_and_norms(
    graph: Graph, held: KeptTensors | None, values: Iterable[int]
) -> tuple[dict[str, Column], dict[int, float], dict[int, Stuck]]:
    """Those columns, the norm of each of some values as it was when it was made, and by operation the units stuck.

    All come of one run.
    """
    count = len(graph)
    norm = np.zeros(count)
    numbers = {name: np.zeros(count, dtype=np.int64) for name in CONTENTS[1:]}
    known = np.zeros(count, dtype=bool)
    numbers_made = makes_numbers(graph, graph.result_value)
    wanted = np.array(sorted(values), dtype=np.int64)
    norms = {value: _norm(tensor) for value, tensor in outside_tensors(graph, held, wanted)}
    indices = made_where(graph, wanted)
    stuck: dict[int, Stuck] = {}
    run = Stepper(graph, held)
    activations = Activations(run)

    def see(node: int, made: list[torch.Tensor]) -> None:
        for value, index in indices.get(node, ()):
            norms[value] = _norm(made[index])
        if not numbers_made[node]:
            return
        floating = [part for tensor in made for part in _floating(tensor)]
        if not floating:
            return
        known[node] = True
        norm[node], numbers["nans"][node], numbers["infs"][node] = _size(floating)
        if activations.mask[node] and floating[0].dim() >= 2 and floating[0].is_floating_point():
            units = activations.stuck(node, floating[0])
            if units is not None:
                stuck[node] = units
                numbers["units"][node], numbers["dead_units"][node] = units.units, len(units.dead)

    shown = numbers_made.copy()
    shown[list(indices)] = True
    with quiet(run.plan.generators):
        for node in run.steps(activations.before):
            if shown[node]:
                see(node, run.outputs(node))
    counted = np.zeros(count, dtype=bool)
    counted[list(stuck)] = True
    result = {"norm": Column("norm", norm, known=known)}
    for name, column in numbers.items():
        result[name] = Column(name, column, known=counted if name.endswith("units") else known)
    return result, {value: norm for value, norm in norms.items() if norm is not None}, stuck


def norms_of_values(graph: Graph, held: KeptTensors | None, values: Iterable[int]) -> dict[int, float | None]:
    """The norm of each of some values as it was when it was made; None where it has no floating-point elements."""
    wanted = np.array(sorted(values), dtype=np.int64)
    norms = {value: _norm(tensor) for value, tensor in outside_tensors(graph, held, wanted)}
    indices = made_where(graph, wanted)

    def see(node: int, made: list[torch.Tensor]) -> None:
        for value, index in indices[node]:
            norms[value] = _norm(made[index])

    shown = np.zeros(len(graph), dtype=bool)
    shown[list(indices)] = True
    observe(graph, held, see, shown)
    return norms


def parameter_norms(graph: Graph, held: KeptTensors | None) -> dict[str, float]:
    """The norm of each parameter before the run, by name."""
    values = np.flatnonzero((graph.value_role == Role.PARAMETER) & (graph.value_producer < 0))
    norms = {value: _norm(tensor) for value, tensor in outside_tensors(graph, held, values)}
    return {graph.values[value].name or "": norm for value, norm in norms.items() if norm is not None}


def frozen_parameters(held: KeptTensors | None) -> set[str]:
    """The parameters that ask for no gradient, by name; those inside a wrapper do not say."""
    versions = held.versions if held is not None else ()
    return {
        n for n, tensor, _ in versions if isinstance(tensor, torch.nn.Parameter) and not tensor.requires_grad
    }


def outside_faults(graph: Graph, held: KeptTensors | None) -> dict[str, tuple[int, int]]:
    """Of the tensors that the run was given, those with elements that are NaN or infinite, with how many of each."""
    result = {}
    for value, tensor in outside_tensors(graph, held, np.flatnonzero(graph.value_producer < 0)):
        parts = _floating(tensor)
        _, nans, infs = _size(parts) if parts else (0.0, 0, 0)
        if nans or infs:
            result[graph.values[value].name or str(value)] = (nans, infs)
    return result


def outside_tensors(
    graph: Graph, held: KeptTensors | None, values: Any
) -> Iterator[tuple[int, torch.Tensor]]:
    """Those of some values that the run was given, as it found them."""
    run = Stepper(graph, held)
    for value in values[graph.value_producer[values] < 0].tolist():
        yield value, run.replay.tensor(value)


def made_where(graph: Graph, values: Any) -> dict[int, list[tuple[int, int]]]:
    """For each operation that makes some of these values: which, and in which place of what it makes."""
    result: dict[int, list[tuple[int, int]]] = {}
    for value in values[graph.value_producer[values] >= 0].tolist():
        node = int(graph.value_producer[value])
        index = graph.out_value[slice(*graph.output_span(node))].tolist().index(value)
        result.setdefault(node, []).append((value, index))
    return result


def makes_numbers(graph: Graph, seen: Any = ()) -> Any:
    """A mask of the operations that make numbers: not views, but for those that make one of ``seen``, nor memory not
    yet filled.

    What a collective gives is on its way until it is waited for, and must not be read before.
    """
    views = (graph.node_flags & Flag.VIEW) != 0
    makers = graph.value_producer[np.asarray(seen, dtype=np.int64)]
    views[makers[makers >= 0]] = False
    calls = [n for n, call in enumerate(graph.calls) if "c10d" in call.op.partition("::")[0]]
    return ~(views | _named(graph, UNFILLED) | np.isin(graph.node_call, calls))


def _named(graph: Graph, names: frozenset[str]) -> Any:
    hit = [n for n, call in enumerate(graph.calls) if plain_name(call.op) in names]
    return np.isin(graph.node_call, hit)


def _floating(tensor: torch.Tensor) -> list[torch.Tensor]:
    if tensor.is_nested:
        return [part for inner in tensor.unbind() for part in _floating(inner)]
    if tensor.layout is torch.sparse_coo:
        tensor = tensor._values()
    if tensor.layout is not torch.strided or tensor.is_quantized or tensor.is_meta or not tensor.numel():
        return []
    return [tensor] if tensor.is_floating_point() or tensor.is_complex() else []


def _norm(tensor: torch.Tensor) -> float | None:
    parts = _floating(tensor)
    return _size(parts)[0] if parts else None


def _size(made: list[torch.Tensor]) -> tuple[float, int, int]:
    """The Euclidean norm of all elements, and how many of them are no number or infinite."""
    total = 0.0
    for tensor in made:
        wide = torch.float64 if tensor.dtype in (torch.float64, torch.complex128) else torch.float32
        real = torch.view_as_real(tensor.resolve_conj()) if tensor.is_complex() else tensor
        total += float(torch.linalg.vector_norm(real.to(wide))) ** 2
    if np.isfinite(total):
        return total**0.5, 0, 0
    nans = sum(int(torch.isnan(tensor).sum()) for tensor in made)
    return total**0.5, nans, sum(int(torch.isinf(tensor).sum()) for tensor in made)
