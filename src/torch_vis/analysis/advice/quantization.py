"""What lower precision would do to a model: error, effect on the output, bytes and time saved, layer by layer."""

from __future__ import annotations

import heapq
import math
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from functools import cached_property
from numbers import Real
from typing import Any, NamedTuple

import numpy as np
import torch

from torch_vis._trace import Trace
from torch_vis.analysis.advice.rounding import (
    FORMATS,
    ForwardRun,
    NumberFormat,
    Perturbation,
    WeightFormat,
    WeightUse,
    channels_of,
    sqnr,
    weight_uses,
)
from torch_vis.analysis.gradients.nan_origin import left_out, warning
from torch_vis.analysis.machine.datasheet_efficiency import DatasheetModel
from torch_vis.analysis.machine.features import Workload, workload
from torch_vis.analysis.machine.hardware import Hardware, find_hardware
from torch_vis.analysis.report import Charts, Report
from torch_vis.api import trace
from torch_vis.capture.modes import without_gradients
from torch_vis.capture.state import StateSnapshot
from torch_vis.errors import UsageError, no_match, takes_kwargs
from torch_vis.graph.graph import Graph
from torch_vis.graph.text import and_more, duration, size
from torch_vis.graph.types import Floats, Ints
from torch_vis.ops.families import KINDS, REAL_DTYPES, kind_of
from torch_vis.progress import progress
from torch_vis.replay.replay import replay_context
from torch_vis.replay.stepper import Stepper
from torch_vis.views.charts.chart import Axis, Chart, Series
from torch_vis.views.charts.labels import common_path
from torch_vis.views.text.table_layout import Field, Listing

FLOOR_DB = 30.0
# parameters that a chart names one by one
ROWS = 40


class QuantizationReport(Report):
    """Formats tried on a model with the user's own data."""

    title = "Quantization"

    def __init__(self, experiment: QuantizationExperiment, floor_db: float) -> None:
        self.floor_db = floor_db
        """The quality in decibels that advice may not go below."""
        self.rows, self.whole = experiment.rows, experiment.whole
        """What was tried: a row for each parameter and format, and one for each format of the whole model."""
        self.left_out = experiment.left_out
        """How many elements are NaN or infinite without any rounding, and in no figure: of inputs and parameters by
        name, and of the output."""
        self.advised = experiment.advice(floor_db)
        """What was run with all of the advice at once; None where there is none, or no output to look at."""
        # the experiment itself is not kept: it holds every tensor of the run
        self._notes = [
            *self._notes_on_hidden(),
            *self._notes_on_formats(experiment),
            *self._notes_on_time(experiment.hardware),
        ]
        if not experiment.exact:
            why = "no output has floating-point elements" if experiment.effect else "effect=False"
            self._notes.append(
                f"effects on the output were not tried ({why}): formats go by the error of each parameter itself, and "
                "were not run together"
            )

    @property
    def advice(self) -> dict[str, str | None]:
        """For each parameter the narrowest format with which, all together, the output stays above the floor.

        None: keep it, because no format is good enough, or because the output tells nothing of it (``hidden``).
        Where effects on the output were not tried, it is the same as ``alone``, and nothing was run together.
        """
        return self.alone if self.advised is None else self.advised.formats

    @property
    def alone(self) -> dict[str, str | None]:
        """The same for each parameter with all others as they are: together, these may come to too much.

        Where effects on the output were not tried, by the error of the parameter itself.
        """
        return narrowest(self.rows, self.floor_db)

    @property
    def hidden(self) -> dict[str, str]:
        """The parameters that the output does not show, and why: what rounding them does is not known.

        Those of zeros alone are among them: rounding does nothing to them as they are, which tells nothing of others.
        """
        return {row.weight: row.hidden for row in self.rows if row.hidden}

    @property
    def sensitive(self) -> list[QuantizedParameter]:
        """What costs most, worst first; what is not known comes last."""
        return sorted(self.rows, key=lambda row: (bool(row.hidden), row.reached_db))

    def facts(self) -> dict[str, str]:
        facts = {}
        if self.left_out:
            facts["warning"] = warning(self.left_out)
        facts.update({row.format: _consequences(row) for row in self.whole})
        if self.advised is not None and any(self.advice.values()):
            facts["advised"] = _consequences(self.advised.whole) + self._wider(self.advised)
        kept = [name for name, form in self.advice.items() if form is None and name not in self.hidden]
        if kept:
            facts["keep as they are"] = and_more(kept, 4)
        unknown = [name for name, why in self.hidden.items() if why != ZERO]
        if unknown:
            facts["not known"] = f"what rounding does to {and_more(unknown, 4)}: see the notes"
        zeros = [name for name, why in self.hidden.items() if why == ZERO]
        if zeros:
            facts["all zeros"] = f"{and_more(zeros, 4)}: rounding does nothing to them as they are"
        return facts

    def _wider(self, advised: FormatAdvice) -> str:
        """What was taken back so that the output stays above the floor."""
        alone = self.alone
        count = sum(form != alone[name] for name, form in advised.formats.items())
        if not count or advised.alone_db is None:
            return ""
        verb = "takes" if count == 1 else "take"
        return (
            f"; {count:,} of {len(alone):,} {verb} a better format than alone: with the narrowest for each, the output "
            f"would fall to {advised.alone_db:.1f} dB"
        )

    def listings(self) -> list[Listing]:
        decibel = "{:.1f}".format
        fields = (
            Field("weight", "weight"),
            Field("format", "format"),
            Field("weight_db", "weight dB", decibel),
            Field("activation_db", "activation dB", decibel),
            Field("output_db", "output dB", decibel),
            Field("bytes_before", "before", size),
            Field("bytes_after", "after", size),
            Field("time_saved_ns", "time saved", duration),
            Field("hidden", "not shown"),
        )
        chosen = {name: (form, self.alone[name]) for name, form in self.advice.items()}
        words = {name: "all zeros" if why == ZERO else "not known" for name, why in self.hidden.items()}
        columns: tuple[Field, ...] = (
            Field("weight", "weight"),
            Field("format", "together"),
            Field("alone", "alone"),
        )
        # nothing was run together
        if self.advised is None:
            columns = (Field("weight", "weight"), Field("format", "alone"))
        rows = [
            (name, *(words.get(name) or form or "keep" for form in forms))[: len(columns)]
            for name, forms in chosen.items()
        ]
        return [
            Listing("What costs most, worst first", fields, self.sensitive),
            Listing(f"Narrowest format above {self.floor_db:g} dB", columns, rows),
        ]

    def notes(self) -> list[str]:
        return self._notes

    def _notes_on_hidden(self) -> list[str]:
        """The parameters that the output does not show, by the reason."""
        names: dict[str, list[str]] = {}
        for name, why in self.hidden.items():
            names.setdefault(why, []).append(name)
        notes = [f"no advice for {and_more(hidden, 3)}: {why}" for why, hidden in names.items()]
        return [*notes, "figures of the output say nothing of these"] if notes else []

    def _notes_on_formats(self, experiment: QuantizationExperiment) -> list[str]:
        """What each format is, and which figures are missing."""
        notes = [f"{model.format}: {FORMATS[model.format].what}" for model in self.whole]
        both = [model.format for model in self.whole if FORMATS[model.format].activation is not None]
        if both and any(model.output_db is not None for model in self.whole):
            notes.append(
                f"output dB of {' and '.join(both)}: the weight and what it is multiplied with are rounded"
            )
        unseen = [
            experiment.names[weight]
            for weight, form in experiment.encodings
            if FORMATS[form].activation and (weight, form) not in experiment.activation_db
        ]
        if unseen:
            notes.append(
                f"no activation dB for {and_more([*dict.fromkeys(unseen)], 3)}: an embedding multiplies nothing, and "
                "what else they are multiplied with never leaves a fused kernel; it stays exact"
            )
        if any(model.agreement is not None for model in self.whole):
            notes.append(
                "largest elements stay: rows of the first output whose largest element is where it was"
            )
        return [*notes, "a weight that several layers share is one row, and counted once"]

    def _notes_on_time(self, machine: Hardware | None) -> list[str]:
        """What the times rest on, and which formats the machine has no units for."""
        if machine is None:
            return ["time saved is not predicted: name the hardware, for example hardware='A100 80GB'"]
        notes = [
            f"time saved: what the kernels take less by the model of latency(hardware={machine.name!r}); a run that "
            "waits for the host gains none of it"
        ]
        for model in self.whole:
            wanted = COMPUTED_IN.get(model.format)
            if wanted is not None and machine.computes_in(wanted) != wanted:
                notes.append(
                    f"{machine.name} has no {model.format}: computed as {machine.computes_in(wanted)}"
                )
        return notes

    def charts(self) -> Charts:
        """A row for each parameter, of many for those that suffer most; and all of them along the run."""
        if not any(math.isfinite(row.reached_db) for row in self.rows):
            return Charts()
        if len(self._weights) <= ROWS:
            return Charts(error=self._error_chart)
        return Charts(error=self._error_chart, run=self._run_chart)

    @property
    def _weights(self) -> list[str]:
        return list(dict.fromkeys(row.weight for row in self.rows))

    @property
    def _heights(self) -> Axis:
        what = "of the output" if any(row.output_db is not None for row in self.rows) else "of the parameter"
        return Axis(f"signal to noise {what} (dB; more is better)")

    def _error_chart(self) -> Chart:
        names = self._weights
        worst = list(dict.fromkeys(row.weight for row in self.sensitive))[:ROWS]
        shown = worst if len(names) > ROWS else names
        which = f": the {ROWS} of {len(names):,} that suffer most" if len(names) > ROWS else ""
        title = f"What rounding one parameter does{which}"
        rows = self._series({name: name for name in shown})
        return Chart("dots", title, Axis("parameter"), self._heights, rows, self._floor(len(shown)))

    def _run_chart(self) -> Chart:
        names = self._weights
        inside = common_path(names).rstrip(".")
        along = Axis(
            f"parameter of {inside}" if inside else "parameter, in the order of the run", names=names
        )
        title = "What rounding one parameter does, along the run"
        points = self._series({name: index for index, name in enumerate(names)})
        return Chart("points", title, along, self._heights, points, self._floor(len(names)))

    def _series(self, positions: Mapping[str, Any]) -> list[Series]:
        """By format, what rounding each of some parameters does, at the place it has."""
        reached = {(row.format, row.weight): row.reached_db for row in self.rows}
        series = []
        for form in dict.fromkeys(row.format for row in self.rows):
            heights = {name: reached.get((form, name), math.nan) for name in positions}
            known = [name for name in positions if math.isfinite(heights[name])]
            xs, ys = [positions[name] for name in known], [heights[name] for name in known]
            series.append(Series(form, xs, ys, known if known != xs else ()))
        return series

    def _floor(self, count: int) -> list[Series]:
        return [Series(f"floor, {self.floor_db:g} dB", [-0.6, count - 0.4], [self.floor_db] * 2)]


def _consequences(row: QuantizedModel) -> str:
    """What becomes of a model with all of its parameters rounded."""
    parts = [f"{size(row.bytes_before)} → {size(row.bytes_after)} of weights"]
    if row.output_db is not None:
        parts.append(f"output {row.output_db:.1f} dB")
    if row.agreement is not None:
        parts.append(f"{row.agreement:.1%} of the largest elements stay")
    if row.time_saved_ns is not None:
        parts.append(f"{duration(row.time_saved_ns)} saved (predicted)")
    return ", ".join(parts)


@takes_kwargs
def quantization(
    model: Callable[..., Any],
    *args: Any,
    kwargs: Mapping[str, Any] | None = None,
    formats: str | Sequence[str] = ("int8", "fp8", "int4"),
    effect: bool = True,
    floor_db: float = FLOOR_DB,
    hardware: str | Hardware | None = None,
) -> QuantizationReport:
    """Find out what each parameter could be rounded to, from a real batch of yours.

    The model is run once on ``args`` and ``kwargs``; then the recorded run is repeated with one parameter at a time
    rounded to ``"int8"``, ``"fp8"`` or ``"int4"`` (weights only), with all of them, and with all as advised: where
    these together fall below ``floor_db``, the worst are taken back. What the output does not show, as behind a layer
    that begins at zero, gets no advice. ``effect=False`` leaves these repeats out and gives the errors of weights and
    activations alone. ``hardware`` names the device for which the time
    saved is predicted, as ``latency`` predicts it; what the device has no units for counts as in the next wider type
    that it has, and a note says so. The model is not changed.

    For int8 and fp8 the parameter and the activations that it is multiplied with are rounded, weights with a scale for
    each output channel (int4: for each 128 elements of one, kept as float16) and activations with one for a tensor
    (int8 asymmetric, fp8 symmetric): ``output_db`` is of both. Those inside a
    fused kernel (``out_proj`` of attention, ``weight_hh`` of an LSTM) cannot be seen and stay exact: ``activation_db``
    is None. "Largest elements stay" is ``agreement``: the share of rows of the first output, along its last
    dimension, whose largest element stays in its place (the class that is predicted). A parameter that several layers
    share is one row, and its bytes are counted once.

    >>> import torch, torch_vis as tv
    >>> torch.manual_seed(0)  # doctest: +ELLIPSIS
    <...>
    >>> model = torch.nn.Sequential(torch.nn.Linear(64, 64), torch.nn.ReLU(), torch.nn.Linear(64, 10))
    >>> report = tv.advise.quantization(model, torch.randn(8, 64))
    >>> report.advice
    {'0.weight': 'int8', '2.weight': 'int8'}
    """
    chosen = _formats(formats)
    if not isinstance(floor_db, Real) or isinstance(floor_db, bool) or math.isnan(floor_db):
        raise UsageError(
            f"floor_db={floor_db!r}: the least signal to noise that is good enough is a number of decibels"
        )
    machine = None if hardware is None else find_hardware(hardware)
    if isinstance(model, Trace):
        raise UsageError("quantization() takes the model and a batch, as trace() does, not a trace")
    traced = _forward(model, args, kwargs)
    experiment = QuantizationExperiment(traced, chosen, effect=effect, hardware=machine)
    return QuantizationReport(experiment, float(floor_db))


def _forward(model: Callable[..., Any], args: tuple[Any, ...], kwargs: Mapping[str, Any] | None) -> Trace:
    """A recorded run without gradients, after which the model is as it was."""
    with StateSnapshot.of_model(model, contents="buffers") as state, without_gradients():
        try:
            traced = trace(model, *args, kwargs=kwargs)
        except RuntimeError as error:
            if "does not require grad" not in str(error):
                raise
            raise UsageError(
                "quantization() runs the model without gradients, and this calls backward() itself: "
                "give the model and a batch, not a training step"
            ) from error
        if traced.kept is not None:
            # this was no step of the user's
            state.watch(traced.kept)
    return traced


def _formats(formats: str | Sequence[str]) -> list[str]:
    """The formats that were asked for, each once."""
    chosen = [formats] if isinstance(formats, str) else list(dict.fromkeys(formats))
    if not chosen:
        raise UsageError(f"formats is empty: name one or more of {', '.join(map(repr, FORMATS))}")
    for form in chosen:
        if form not in FORMATS:
            raise no_match("format", str(form), FORMATS)
    return chosen


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
        with replay_context(stepper.plan.generators):
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
                for use, numel in zip(uses, sizes):
                    part = nanoseconds * numel / max(1, sum(sizes))
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
