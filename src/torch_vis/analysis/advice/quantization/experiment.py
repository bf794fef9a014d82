"""What rounding does to a recorded run: to each parameter, to activations, to the output, to bytes and to time.

A ``QuantizationExperiment`` tries parameters one by one and all together, and finds a format for each so that the
output stays good enough with all of them.
"""

from __future__ import annotations

import heapq
import math
from collections.abc import Collection, Iterable, Mapping, Sequence
from functools import cached_property
from typing import NamedTuple

import numpy as np
import torch

from torch_vis._trace import Trace
from torch_vis.analysis.advice.quantization.channels import channels_of
from torch_vis.analysis.advice.quantization.rounding import (
    FORMATS,
    ForwardRun,
    NumberFormat,
    Perturbation,
    WeightFormat,
    WeightUse,
    sqnr,
    weight_uses,
)
from torch_vis.analysis.gradients.nan_origin import left_out
from torch_vis.analysis.machine.datasheet_efficiency import DatasheetModel
from torch_vis.analysis.machine.features import Workload, workload
from torch_vis.analysis.machine.hardware import Hardware
from torch_vis.errors import UsageError
from torch_vis.graph.graph import Graph
from torch_vis.graph.types import Floats, Ints
from torch_vis.ops.families import KINDS, REAL_DTYPES, kind_of
from torch_vis.progress import progress
from torch_vis.replay.replay import quiet
from torch_vis.replay.stepper import Stepper

MULTIPLY = frozenset({"matmul", "convolution", "recurrent", "attention"})
# dB that the output keeps with other numbers in a weight, from which on it does not depend on it
STILL = 80.0
ZERO = "all zeros, which every format holds: nothing follows for other numbers"
BLANK = "the output is all zeros"
UNSEEN = (
    "with other numbers in it the output hardly moves, as where a layer or a branch after it begins at zero"
)
BLIND = (
    "no effect of rounding can be seen; t.gradients() finds where NaN was born, and effect=False looks at weights and "
    "activations alone"
)
COMPUTED_IN = {"int8": "int8", "fp8": "float8"}
# a weight, by its value in the graph, and the name of a format
WeightAndFormat = tuple[int, str]


class QuantizedParameter(NamedTuple):
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
        decibels = self.weight_db if self.output_db is None else self.output_db
        return -math.inf if decibels is None or self.hidden else decibels


class QuantizedModel(NamedTuple):
    """The whole model in one format, or each parameter in the one advised for it, with what it is multiplied with."""

    format: str
    output_db: float | None
    agreement: float | None
    """The share of rows of the first output whose largest element stays in its place; None where it has no rows."""
    bytes_before: int
    bytes_after: int
    time_saved_ns: int | None


class FormatAdvice(NamedTuple):
    """Formats that hold together, None for a parameter to keep: ``whole`` is what comes of all of them at once.

    ``alone_db`` is what the output would be with every parameter in the narrowest format that it takes alone.
    """

    formats: dict[str, str | None]
    whole: QuantizedModel
    alone_db: float | None


class QuantizationExperiment:
    """A recorded forward run, and what comes of rounding its parameters to some formats.

    With ``effect``, the run is repeated to see what rounding does to its output; ``hardware`` is the device for which
    the time saved is predicted.
    """

    def __init__(
        self, traced: Trace, formats: Sequence[str], *, effect: bool, hardware: Hardware | None
    ) -> None:
        self.traced, self.formats = traced, formats
        self.effect, self.hardware = effect, hardware
        self.run = ForwardRun(traced.graph, traced.kept)
        self.uses = _multiplied_weights(traced.graph, self.run.nodes)
        self.names = {use.weight: use.name for use in self.uses}
        """The name of each weight, by its value in the graph."""
        self.encodings = self._encodings()
        """By weight and format, how the weight would be held."""
        self.activation_db = self._activation_db()
        """By weight and format, the worst signal to noise of what the weight is multiplied with."""
        self.exact = self.run.outputs() if effect else []
        """The floating outputs without any rounding; none where they are not looked at."""
        nonfinite = sum(int((~torch.isfinite(tensor)).sum()) for tensor in self.exact)
        self.left_out = left_out(
            traced.graph, traced.kept, nonfinite, sum(tensor.numel() for tensor in self.exact), BLIND
        )
        """How many elements of inputs, parameters and output are NaN or infinite without any rounding."""

    def _encodings(self) -> dict[WeightAndFormat, WeightFormat]:
        nodes: dict[int, list[int]] = {}
        for use in self.uses:
            nodes.setdefault(use.weight, []).append(use.node)
        channels = {
            weight: channels_of(self.traced.graph, weight, readers) for weight, readers in nodes.items()
        }
        return {
            (weight, form): WeightFormat(FORMATS[form], channels[weight])
            for weight in nodes
            for form in self.formats
        }

    def _activation_db(self) -> dict[WeightAndFormat, float | None]:
        # one of a node's weights has the activations
        by_node = {use.node: use for use in self.uses if use.activations}
        worst_db: dict[WeightAndFormat, float | None] = {}
        stepper = Stepper(self.traced.graph, self.traced.kept)
        with quiet(stepper.plan.generators):
            for node in stepper.steps():
                use = by_node.get(node)
                if use is None:
                    continue
                exact = stepper.replay.tensor(use.activations[0]).float()
                for form in self.formats:
                    rounding = FORMATS[form].activation
                    if rounding is not None and exact.numel():
                        both = sqnr(exact, rounding(exact)), worst_db.get((use.weight, form))
                        known = [decibels for decibels in both if decibels is not None]
                        worst_db[use.weight, form] = min(known, default=None)
        return worst_db

    @cached_property
    def output_db(self) -> dict[WeightAndFormat, float | None]:
        """By weight and format, the signal to noise of the output with this weight alone rounded."""
        reached = {}
        for weight, form in progress(list(self.encodings) if self.exact else [], "rounding"):
            uses = [use for use in self.uses if use.weight == weight]
            outputs = self.run.outputs(
                {weight: self.encodings[weight, form]}, _rounded_activations(uses, {self.names[weight]: form})
            )
            reached[weight, form] = decibels(self.exact, outputs)
        return reached

    @cached_property
    def hidden(self) -> dict[int, str]:
        """The weights of which the output tells nothing, and why.

        A weight that no rounding of it showed gets other numbers altogether: where the output does not move by more
        than its own rounding then either, a layer or a branch after it is at zero, as many begin. One that the output
        does depend on and that a format holds exactly is none.
        """
        blank = bool(self.exact) and not any(bool(tensor.any()) for tensor in self.exact)
        rounding_db = [-20 * math.log10(torch.finfo(tensor.dtype).eps) for tensor in self.exact]
        still = min([STILL, *rounding_db])
        lowest: dict[int, float] = {}
        for (weight, _), reached in (self.output_db or dict.fromkeys(self.encodings)).items():
            lowest[weight] = min(lowest.get(weight, math.inf), -math.inf if reached is None else reached)
        hidden = {}
        for weight, least in lowest.items():
            if not bool(self.run.exact(weight).any()):
                hidden[weight] = ZERO
            elif blank:
                hidden[weight] = BLANK
            elif self.exact and least >= still:
                moved = decibels(self.exact, self.run.outputs({weight: Perturbation()}))
                if moved is None or moved >= still:
                    hidden[weight] = UNSEEN
        return hidden

    @cached_property
    def rows(self) -> list[QuantizedParameter]:
        """Every parameter in every format."""
        saved = {} if self.hardware is None else self._time_saved(self.hardware)
        rows = []
        for (weight, form), encoding in self.encodings.items():
            exact, why = self.run.exact(weight), self.hidden.get(weight, "")
            row = QuantizedParameter(
                weight=self.names[weight],
                format=form,
                weight_db=sqnr(exact, encoding.rounded(exact)),
                activation_db=self.activation_db.get((weight, form)),
                output_db=None if why else self.output_db.get((weight, form)),
                bytes_before=exact.numel() * exact.element_size(),
                bytes_after=encoding.size_bytes(exact.shape),
                time_saved_ns=saved.get((weight, form)),
                hidden=why,
            )
            rows.append(row)
        return rows

    def quantized(self, formats: Mapping[str, str], name: str = "advised") -> QuantizedModel:
        """Parameters in these formats, all at once; those that are not named stay as they are."""
        sizes = {row.weight: row.bytes_before for row in self.rows}
        chosen = [row for row in self.rows if formats.get(row.weight) == row.format]
        times = [row.time_saved_ns for row in chosen if row.time_saved_ns is not None]
        output_db, agreement = None, None
        if self.exact and not all(row.hidden for row in chosen):
            uses = [use for use in self.uses if use.name in formats]
            weights = {use.weight: self.encodings[use.weight, formats[use.name]] for use in uses}
            outputs = self.run.outputs(weights, _rounded_activations(uses, formats))
            output_db, agreement = decibels(self.exact, outputs), _agreement(self.exact[0], outputs[0])
        saved_bytes = sum(row.bytes_before - row.bytes_after for row in chosen)
        return QuantizedModel(
            name,
            output_db,
            agreement,
            sum(sizes.values()),
            sum(sizes.values()) - saved_bytes,
            sum(times) if times and len(times) == len(chosen) else None,
        )

    @cached_property
    def whole(self) -> list[QuantizedModel]:
        """The whole model in each format."""
        return [self.quantized(dict.fromkeys(self.names.values(), form), form) for form in self.formats]

    def advice(self, floor_db: float) -> FormatAdvice | None:
        """Formats that leave enough of the output together, where any was found.

        None as well where there is no output to look at: nothing tells what they do together.

        Errors add up. Where they come to too much, the parameters that bring most get the next better format, or stay
        as they are; how many have to is found by halving, so that few runs are needed.
        """
        alone = narrowest(self.rows, floor_db)
        if not any(alone.values()):
            return None
        first = self.quantized(_named(alone))
        if first.output_db is None:
            return None
        if first.output_db >= floor_db:
            return FormatAdvice(alone, first, first.output_db)
        steps = _widening_steps(self.rows, alone)
        # with so many steps too much is rounded; with so many enough is left
        low, high = 0, len(steps)
        best = FormatAdvice(dict.fromkeys(alone), self.quantized({}), first.output_db)
        while high - low > 1:
            middle = (low + high) // 2
            formats = {**alone, **dict(steps[:middle])}
            whole = self.quantized(_named(formats))
            if whole.output_db is None or whole.output_db >= floor_db:
                high, best = middle, FormatAdvice(formats, whole, first.output_db)
            else:
                low = middle
        return best

    # ------------------------------------------------------------ time

    def _time_saved(self, hardware: Hardware) -> dict[WeightAndFormat, int]:
        """By weight and format, the nanoseconds of the device that it would save, as ``latency`` predicts kernels.

        Of an operation with several weights (an LSTM), each has a part of what is saved once all are rounded, by its
        size. A weight is left out where the work of an operation that multiplies by it is not known.
        """
        graph = self.traced.graph
        work = workload(graph, self.traced.metrics)
        by_node: dict[int, list[WeightUse]] = {}
        for use in self.uses:
            by_node.setdefault(use.node, []).append(use)
        rows = work.group[np.array([*by_node], dtype=np.int64)]
        saved: dict[WeightAndFormat, float] = {}
        for form in self.formats:
            spared = [
                self._spared_bytes(uses, form, KINDS[work.kind[row]])
                for row, uses in zip(rows, by_node.values())
            ]
            before = _device_ns(_rows_of(work, rows), hardware)
            after = _device_ns(_in_format(_rows_of(work, rows), form, np.array(spared)), hardware)
            for uses, nanoseconds in zip(by_node.values(), np.maximum(before - after, 0.0).tolist()):
                sizes = [graph.values[use.weight].type.numel for use in uses]
                for use, size in zip(uses, sizes):
                    part = nanoseconds * size / max(1, sum(sizes))
                    saved[use.weight, form] = saved.get((use.weight, form), 0.0) + part
        return {key: round(nanoseconds) for key, nanoseconds in saved.items() if np.isfinite(nanoseconds)}

    def _spared_bytes(self, uses: Sequence[WeightUse], form: str, kind: str) -> float:
        """The bytes that an operation would not have to read."""
        graph, element_bytes = self.traced.graph, FORMATS[form].bits / 8
        spared = 0.0
        for use in uses:
            weight = graph.values[use.weight].type
            size = self.encodings[use.weight, form].size_bytes(weight.shape)
            less = weight.numel * (weight.itemsize or 4) - size
            spared += less * (_share_read(graph, use) if kind == "indexing" else 1.0)
            if FORMATS[form].activation is not None:
                for value in use.activations:
                    activation = graph.values[value].type
                    spared += activation.numel * ((activation.itemsize or 4) - element_bytes)
        return spared


def _multiplied_weights(graph: Graph, nodes: Collection[int]) -> list[WeightUse]:
    """Where these operations multiply by a parameter, or look rows of it up."""
    uses = [use for use in weight_uses(graph, nodes) if _multiplies(graph, use.node)]
    if not uses:
        raise UsageError(
            "no operation of this run multiplies by a parameter, so there is nothing to quantize"
        )
    if not any(value.type.numel for use in uses for value in graph.nodes[use.node].outputs):
        raise UsageError(
            "the batch is empty: nothing that this run multiplies by a parameter has any elements"
        )
    return uses


def _multiplies(graph: Graph, node: int) -> bool:
    return kind_of(graph.nodes[node].call.op) in MULTIPLY or "embedding" in graph.nodes[node].name


def _rounded_activations(
    uses: Iterable[WeightUse], formats: Mapping[str, str]
) -> dict[tuple[int, int], NumberFormat]:
    """What is rounded where products read it, by operation and value; ``formats`` are those of the weights."""
    return {(use.node, value): FORMATS[formats[use.name]] for use in uses for value in use.activations}


def decibels(exact: Sequence[torch.Tensor], rounded: Sequence[torch.Tensor]) -> float | None:
    """The signal to noise of all outputs together."""
    if not exact:
        return None
    return sqnr(
        torch.cat([tensor.reshape(-1).float() for tensor in exact]),
        torch.cat([tensor.reshape(-1).float() for tensor in rounded]),
    )


def _agreement(exact: torch.Tensor, rounded: torch.Tensor) -> float | None:
    if exact.dim() < 2 or exact.shape[-1] < 2:
        return None
    known = ~exact.isnan().any(-1)
    if not bool(known.any()):
        return None
    return float((exact.argmax(-1) == rounded.argmax(-1))[known].float().mean())


# ---------------------------------------------------------------- a format for each parameter


def narrowest(rows: Sequence[QuantizedParameter], floor_db: float) -> dict[str, str | None]:
    """For each parameter the narrowest format that leaves enough of the output with this one alone rounded."""
    formats: dict[str, str | None] = {row.weight: None for row in rows}
    for row in sorted(rows, key=lambda row: row.bytes_after):
        if formats[row.weight] is None and row.reached_db >= floor_db and not row.hidden:
            formats[row.weight] = row.format
    return formats


def _named(formats: Mapping[str, str | None]) -> dict[str, str]:
    return {weight: form for weight, form in formats.items() if form is not None}


def _widening_steps(
    rows: Sequence[QuantizedParameter], alone: Mapping[str, str | None]
) -> list[tuple[str, str | None]]:
    """Parameters that get another format, one after another until all stay as they are: the worst one next."""
    better = {row.weight: [row] for row in rows if row.format == alone[row.weight]}
    for row in sorted(rows, key=lambda row: (row.bytes_after, -row.reached_db)):
        known = better.get(row.weight, ())
        if known and row.reached_db > known[-1].reached_db:
            better[row.weight].append(row)
    queue = [(known[0].reached_db, weight, 0) for weight, known in better.items()]
    heapq.heapify(queue)
    steps: list[tuple[str, str | None]] = []
    while queue:
        _, weight, index = heapq.heappop(queue)
        wider = better[weight][index + 1 :]
        steps.append((weight, wider[0].format if wider else None))
        if wider:
            heapq.heappush(queue, (wider[0].reached_db, weight, index + 1))
    return steps


# ---------------------------------------------------------------- time


def _rows_of(work: Workload, rows: Ints) -> Workload:
    return Workload(
        np.arange(len(rows)),
        [work.op[row] for row in rows],
        work.kind[rows],
        work.dtype[rows],
        work.flops[rows],
        work.moved[rows],
        work.tensors[rows],
        work.sizes[rows],
        work.bias[rows],
    )


def _in_format(work: Workload, form: str, spared: Floats) -> Workload:
    """Classes of operation as they would be in a format, with so many bytes less to read."""
    dtype = work.dtype
    if FORMATS[form].activation is not None:
        dtype = np.full_like(dtype, REAL_DTYPES.index(COMPUTED_IN[form]))
    return work._replace(dtype=dtype, moved=np.maximum(work.moved - spared, 0.0))


def _device_ns(work: Workload, hardware: Hardware) -> Floats:
    """What the kernels of classes of operation take; NaN where their work is not known."""
    known = np.isfinite(work.flops) & np.isfinite(work.moved)
    return np.where(known, DatasheetModel(hardware)(work).time_ns, np.nan)


def _share_read(graph: Graph, use: WeightUse) -> float:
    """An embedding reads the rows that it is asked for and no more."""
    asked = [value.type.numel for value in graph.nodes[use.node].inputs if value.index != use.weight]
    rows = graph.values[use.weight].type.shape[0]
    return min(1.0, max(asked, default=rows) / max(1, rows))
