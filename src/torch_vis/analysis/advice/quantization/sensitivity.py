"""Parameters rounded one by one and all together, and what that does to them, to activations and to the output."""

from __future__ import annotations

import heapq
import math
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from typing import NamedTuple

import numpy as np
import torch

from torch_vis._trace import Trace
from torch_vis.analysis.advice.quantization.channels import channels_of
from torch_vis.analysis.advice.quantization.rounding import (
    FORMATS,
    Format,
    Narrow,
    Product,
    Stirred,
    Trial,
    products,
    sqnr,
)
from torch_vis.analysis.machine.datasheet_efficiency import DatasheetModel
from torch_vis.analysis.machine.features import Workload, workload
from torch_vis.analysis.machine.hardware import Hardware
from torch_vis.errors import UsageError
from torch_vis.graph.graph import Graph
from torch_vis.graph.types import Floats, Ints
from torch_vis.ops.families import KINDS, REAL_DTYPES, kind_of
from torch_vis.replay.replay import quiet
from torch_vis.replay.stepper import Stepper

MULTIPLY = frozenset({"matmul", "convolution", "recurrent", "attention"})
# dB that the output keeps with other numbers in a weight: it does not depend on it
STILL = 80.0
ZERO = "all zeros, which every format holds: nothing follows for other numbers"
BLANK = "the output is all zeros"
UNSEEN = (
    "with other numbers in it the output hardly moves, as where a layer or a branch after it begins at zero"
)


class Rounding(NamedTuple):
    """One parameter in one format. Errors are signal to noise in decibels, 6 for each bit that is right.

    ``output_db`` is that of the model's output with this parameter alone rounded, and what it is multiplied with.
    What is NaN or infinite without any rounding is left out; an error is None where nothing else is there. ``hidden``
    is why the output tells nothing of this parameter, so that no advice comes of it: ``output_db`` is None then.
    """

    weight: str
    format: str
    weight_db: float | None
    activation_db: float | None
    output_db: float | None
    bytes_before: int
    bytes_after: int
    time_saved_ns: int | None
    hidden: str = ""

    @property
    def reached_db(self) -> float:
        """What is left of the output or, where that was not tried, of the parameter; nothing where it is not known."""
        found = self.weight_db if self.output_db is None else self.output_db
        return -math.inf if found is None or self.hidden else found


class Whole(NamedTuple):
    """The whole model in one format, or each parameter in the one advised for it, with what it is multiplied with."""

    format: str
    output_db: float | None
    agreement: float | None
    """The share of rows of the first output whose largest element stays in its place; None where it has no rows."""
    bytes_before: int
    bytes_after: int
    time_saved_ns: int | None


def multiplied_in(graph: Graph, nodes: Collection[int]) -> list[Product]:
    """Where these operations multiply by a parameter, or look rows of it up."""
    found = [one for one in products(graph, nodes) if _multiplies(graph, one.node)]
    if not found:
        raise UsageError(
            "no operation of this run multiplies by a parameter, so there is nothing to quantize"
        )
    if not any(value.type.numel for one in found for value in graph.nodes[one.node].outputs):
        raise UsageError(
            "the batch is empty: nothing that this run multiplies by a parameter has any elements"
        )
    return found


def narrowed(
    graph: Graph, multiplied: Sequence[Product], formats: Sequence[str]
) -> dict[tuple[int, str], Narrow]:
    """By weight and format, how the weight would be held."""
    nodes: dict[int, list[int]] = {}
    for one in multiplied:
        nodes.setdefault(one.weight, []).append(one.node)
    channels = {weight: channels_of(graph, weight, readers) for weight, readers in nodes.items()}
    return {(weight, form): Narrow(FORMATS[form], channels[weight]) for weight in nodes for form in formats}


def uses(multiplied: Iterable[Product], formats: Mapping[str, str]) -> dict[tuple[int, int], Format]:
    """What is rounded where products read it, by operation and value; ``formats`` are those of the weights."""
    return {(one.node, value): FORMATS[formats[one.name]] for one in multiplied for value in one.activations}


def _multiplies(graph: Graph, node: int) -> bool:
    return kind_of(graph.nodes[node].call.op) in MULTIPLY or "embedding" in graph.nodes[node].name


def hidden_weights(
    trial: Trial, reached: Mapping[tuple[int, str], float | None], exact: Sequence[torch.Tensor]
) -> dict[int, str]:
    """The weights of which the output tells nothing, and why.

    ``reached`` is the output's signal to noise by weight and format. A weight that no rounding of it showed gets other
    numbers altogether: where the output does not move by more than its own rounding then either, a layer or a branch
    after it is at zero, as many begin. One that the output does depend on and that a format holds exactly is none.
    """
    blank = bool(exact) and not any(bool(tensor.any()) for tensor in exact)
    wide = [-20 * math.log10(torch.finfo(tensor.dtype).eps) for tensor in exact]
    still = min([STILL, *wide])
    best: dict[int, float] = {}
    for (weight, _), found in reached.items():
        best[weight] = min(best.get(weight, math.inf), -math.inf if found is None else found)
    found_out = {}
    for weight, least in best.items():
        if not bool(trial.exact(weight).any()):
            found_out[weight] = ZERO
        elif blank:
            found_out[weight] = BLANK
        elif exact and least >= still:
            moved = decibel(exact, trial.outputs({weight: Stirred()}))
            if moved is None or moved >= still:
                found_out[weight] = UNSEEN
    return found_out


def rounding_of(
    trial: Trial,
    one: Product,
    narrow: Narrow,
    noise: float | None,
    reached: float | None,
    saved: int | None,
    hidden: str,
) -> Rounding:
    """One parameter in one format."""
    exact = trial.exact(one.weight)
    before, after = exact.numel() * exact.element_size(), narrow.size_bytes(exact.shape)
    own = sqnr(exact, narrow.rounded(exact))
    seen = None if hidden else reached
    return Rounding(one.name, narrow.form.name, own, noise, seen, before, after, saved, hidden)


def whole_in(
    trial: Trial,
    multiplied: Sequence[Product],
    formats: Mapping[str, str],
    narrow: Mapping[tuple[int, str], Narrow],
    rows: Sequence[Rounding],
    exact: Sequence[torch.Tensor],
    name: str,
) -> Whole:
    """Parameters in these formats, all at once; those that are not named stay as they are."""
    sizes = {row.weight: row.bytes_before for row in rows}
    mine = [row for row in rows if formats.get(row.weight) == row.format]
    times = [row.time_saved_ns for row in mine if row.time_saved_ns is not None]
    reached, agreement = None, None
    if exact and not all(row.hidden for row in mine):
        chosen = [one for one in multiplied if one.name in formats]
        weights = {one.weight: narrow[one.weight, formats[one.name]] for one in chosen}
        made = trial.outputs(weights, uses(chosen, formats))
        reached, agreement = decibel(exact, made), _agreement(exact[0], made[0])
    spared = sum(row.bytes_before - row.bytes_after for row in mine)
    return Whole(
        name,
        reached,
        agreement,
        sum(sizes.values()),
        sum(sizes.values()) - spared,
        sum(times) if times and len(times) == len(mine) else None,
    )


def decibel(exact: Sequence[torch.Tensor], made: Sequence[torch.Tensor]) -> float | None:
    """The signal to noise of all outputs together."""
    if not exact:
        return None
    return sqnr(
        torch.cat([tensor.reshape(-1).float() for tensor in exact]),
        torch.cat([tensor.reshape(-1).float() for tensor in made]),
    )


def _agreement(exact: torch.Tensor, made: torch.Tensor) -> float | None:
    if exact.dim() < 2 or exact.shape[-1] < 2:
        return None
    known = ~exact.isnan().any(-1)
    if not bool(known.any()):
        return None
    return float((exact.argmax(-1) == made.argmax(-1))[known].float().mean())


def activation_noise(
    found: Trace, multiplied: Sequence[Product], formats: Sequence[str]
) -> dict[tuple[int, str], float | None]:
    """By weight and format, the worst signal to noise of what the weight is multiplied with; None of nothing finite."""
    # one of a node's weights has them
    by_node = {one.node: one for one in multiplied if one.activations}
    noise: dict[tuple[int, str], float | None] = {}
    run = Stepper(found.graph, found.kept)
    with quiet(run.plan.generators):
        for node in run.steps():
            one = by_node.get(node)
            if one is None:
                continue
            exact = run.replay.tensor(one.activations[0]).float()
            for form in formats:
                rounding = FORMATS[form].activation
                if rounding is not None and exact.numel():
                    reached, worst = sqnr(exact, rounding(exact)), noise.get((one.weight, form))
                    known = [known for known in (reached, worst) if known is not None]
                    noise[one.weight, form] = min(known, default=None)
    return noise


class Advised(NamedTuple):
    """Formats that hold together, None for a parameter to keep: ``whole`` is what comes of all of them at once.

    ``alone_db`` is what the output would be with every parameter in the narrowest format that it takes alone.
    """

    formats: dict[str, str | None]
    whole: Whole
    alone_db: float | None


def narrowest(rows: Sequence[Rounding], floor_db: float) -> dict[str, str | None]:
    """For each parameter the narrowest format that leaves enough of the output with this one alone rounded."""
    found: dict[str, str | None] = {row.weight: None for row in rows}
    for row in sorted(rows, key=lambda row: row.bytes_after):
        if found[row.weight] is None and row.reached_db >= floor_db and not row.hidden:
            found[row.weight] = row.format
    return found


def advised(
    rows: Sequence[Rounding], floor_db: float, tried: Callable[[Mapping[str, str]], Whole]
) -> Advised | None:
    """Formats that leave enough of the output together, where any was found; ``tried`` runs with some of them.

    None as well where there is no output to look at: nothing tells what they do together.

    Errors add up. Where they come to too much, the parameters that bring most get the next better format, or stay as
    they are; how many have to is found by halving, so that few runs are needed.
    """
    alone = narrowest(rows, floor_db)
    if not any(alone.values()):
        return None
    first = tried(_chosen(alone))
    if first.output_db is None:
        return None
    if first.output_db >= floor_db:
        return Advised(alone, first, first.output_db)
    steps = _widened(rows, alone)
    # too much is rounded; enough is left
    low, high = 0, len(steps)
    found = Advised(dict.fromkeys(alone), tried({}), first.output_db)
    while high - low > 1:
        middle = (low + high) // 2
        formats = {**alone, **dict(steps[:middle])}
        whole = tried(_chosen(formats))
        if whole.output_db is None or whole.output_db >= floor_db:
            high, found = middle, Advised(formats, whole, first.output_db)
        else:
            low = middle
    return found


def _chosen(formats: Mapping[str, str | None]) -> dict[str, str]:
    return {weight: form for weight, form in formats.items() if form is not None}


def _widened(rows: Sequence[Rounding], alone: Mapping[str, str | None]) -> list[tuple[str, str | None]]:
    """Parameters that get another format, one after another until all stay as they are: the worst one next."""
    better = {row.weight: [row] for row in rows if row.format == alone[row.weight]}
    for row in sorted(rows, key=lambda row: (row.bytes_after, -row.reached_db)):
        mine = better.get(row.weight, ())
        if mine and row.reached_db > mine[-1].reached_db:
            better[row.weight].append(row)
    queue = [(mine[0].reached_db, weight, 0) for weight, mine in better.items()]
    heapq.heapify(queue)
    found: list[tuple[str, str | None]] = []
    while queue:
        _, weight, place = heapq.heappop(queue)
        mine = better[weight][place + 1 :]
        found.append((weight, mine[0].format if mine else None))
        if mine:
            heapq.heappush(queue, (mine[0].reached_db, weight, place + 1))
    return found


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
    return np.where(known, DatasheetModel(machine)(chosen).time_ns, np.nan)


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
