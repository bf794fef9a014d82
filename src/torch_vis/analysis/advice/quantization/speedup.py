"""The time that narrower numbers would save on a device, by the model that ``latency`` predicts kernels with."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

import numpy as np

from torch_vis._trace import Trace
from torch_vis.analysis.advice.quantization.rounding import FORMATS, Narrow, Product
from torch_vis.analysis.machine.datasheet_efficiency import Profiled
from torch_vis.analysis.machine.features import Workload, workload
from torch_vis.analysis.machine.hardware import Hardware
from torch_vis.graph.graph import Graph
from torch_vis.graph.types import Floats, Ints
from torch_vis.ops.families import KINDS, REAL_DTYPES

COMPUTED_IN = {"int8": "int8", "fp8": "float8"}


def time_saved(
    found: Trace,
    multiplied: Sequence[Product],
    narrow: Mapping[tuple[int, str], Narrow],
    machine: Hardware,
) -> dict[tuple[int, str], int]:
    """By weight and format, the nanoseconds of the device that narrower numbers (``narrow``) would save.

    Of an operation with several weights (an LSTM), each has a part of what is saved once all are narrow, by its size.
    A weight is left out where the work of an operation that multiplies by it is not known.
    """
    work = workload(found.graph, found.metrics)
    by_node: dict[int, list[Product]] = {}
    for one in multiplied:
        by_node.setdefault(one.node, []).append(one)
    rows = work.group[np.array([*by_node], dtype=np.int64)]
    saved: dict[tuple[int, str], float] = {}
    for form in dict.fromkeys(form for _, form in narrow):
        spared = [
            _spared(found.graph, parts, form, narrow, KINDS[work.kind[row]])
            for row, parts in zip(rows, by_node.values())
        ]
        less = _device_ns(work, rows, machine) - _device_ns(work, rows, machine, form, np.array(spared))
        for parts, nanoseconds in zip(by_node.values(), np.maximum(less, 0.0).tolist()):
            sizes = [found.graph.values[one.weight].type.numel for one in parts]
            for one, size in zip(parts, sizes):
                part = nanoseconds * size / max(1, sum(sizes))
                saved[one.weight, form] = saved.get((one.weight, form), 0.0) + part
    return {key: round(nanoseconds) for key, nanoseconds in saved.items() if np.isfinite(nanoseconds)}


def _device_ns(
    work: Workload,
    rows: Ints,
    machine: Hardware,
    form: str | None = None,
    spared: Floats | None = None,
) -> Floats:
    """What the kernels of some classes of operation take, as they are or in a format; NaN where work is not known."""
    dtype, moved = work.dtype[rows], work.moved[rows]
    if form is not None and spared is not None:
        moved = np.maximum(moved - spared, 0.0)
        if FORMATS[form].activation is not None:
            dtype = np.full_like(dtype, REAL_DTYPES.index(COMPUTED_IN[form]))
    chosen = Workload(
        np.arange(len(rows)),
        [work.op[row] for row in rows],
        work.kind[rows],
        dtype,
        work.flops[rows],
        moved,
        work.tensors[rows],
        work.sizes[rows],
        work.bias[rows],
    )
    known = np.isfinite(work.flops[rows]) & np.isfinite(moved)
    return np.where(known, Profiled(machine)(chosen).time_ns, np.nan)


def _spared(
    graph: Graph, parts: Sequence[Product], form: str, narrow: Mapping[tuple[int, str], Narrow], kind: str
) -> float:
    """The bytes that an operation would not have to read."""
    bits = FORMATS[form].bits / 8
    spared = 0.0
    for one in parts:
        weight = graph.values[one.weight].type
        less = weight.numel * (weight.itemsize or 4) - narrow[one.weight, form].size_bytes(weight.shape)
        spared += less * (_share_read(graph, one) if kind == "indexing" else 1.0)
        if FORMATS[form].activation is not None:
            for value in one.activations:
                given = graph.values[value].type
                spared += given.numel * ((given.itemsize or 4) - bits)
    return spared


def _share_read(graph: Graph, one: Product) -> float:
    """An embedding reads the rows that it is asked for and no more."""
    given = [value.type.numel for value in graph.nodes[one.node].inputs if value.index != one.weight]
    rows = graph.values[one.weight].type.shape[0]
    return min(1.0, max(given, default=rows) / max(1, rows))


def notes_on(machine: Hardware, formats: Iterable[str]) -> list[str]:
    """What the times rest on, and which formats the machine has no units for."""
    found = [
        f"time saved: what the kernels take less by the model of latency(hardware={machine.name!r}); a run that waits "
        "for the host gains none of it"
    ]
    for form in formats:
        wanted = COMPUTED_IN.get(form)
        if wanted is not None and machine.computes_in(wanted) != wanted:
            found.append(f"{machine.name} has no {form}: computed as {machine.computes_in(wanted)}")
    return found
