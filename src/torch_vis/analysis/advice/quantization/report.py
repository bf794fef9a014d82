"""What narrower numbers would do to a model: error, effect on the output, bytes and time saved, layer by layer."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from numbers import Real
from typing import Any

import torch

from torch_vis._trace import Trace
from torch_vis.analysis.advice.quantization.experiment import (
    COMPUTED_IN,
    ZERO,
    FormatAdvice,
    QuantizationExperiment,
    QuantizedModel,
    QuantizedParameter,
    narrowest,
)
from torch_vis.analysis.advice.quantization.rounding import FORMATS
from torch_vis.analysis.gradients.nan_origin import warning
from torch_vis.analysis.machine.hardware import Hardware, find_hardware
from torch_vis.analysis.report import Report
from torch_vis.api import trace
from torch_vis.capture.state import StateSnapshot
from torch_vis.errors import UsageError, no_match
from torch_vis.graph.text import and_more, duration, size
from torch_vis.views.charts.chart import Axis, Chart, Series
from torch_vis.views.charts.labels import common_path
from torch_vis.views.text.table import Field, Listing

FLOOR_DB = 30.0
# parameters that a chart names one by one
ROWS = 40


class QuantizationReport(Report):
    """Formats tried on a model with the user's own data."""

    title = "Quantization"

    def __init__(self, experiment: QuantizationExperiment, floor_db: float) -> None:
        self.floor_db = floor_db
        self.rows, self.whole = experiment.rows, experiment.whole
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

    def charts(self) -> dict[str, Chart]:
        """A row for each parameter, of many for those that suffer most; and all of them along the run."""
        names = list(dict.fromkeys(row.weight for row in self.rows))
        if not any(math.isfinite(row.reached_db) for row in self.rows):
            return {}
        worst = list(dict.fromkeys(row.weight for row in self.sensitive))[:ROWS]
        shown = worst if len(names) > ROWS else names
        which = f": the {ROWS} of {len(names):,} that suffer most" if len(names) > ROWS else ""
        what = "of the output" if any(row.output_db is not None for row in self.rows) else "of the parameter"
        heights = Axis(f"signal to noise {what} (dB; more is better)")
        inside = common_path(names).rstrip(".")
        along = Axis(
            f"parameter of {inside}" if inside else "parameter, in the order of the run", names=names
        )
        title = f"What rounding one parameter does{which}"
        rows = self._series({name: name for name in shown})
        charts = {"error": Chart("dots", title, Axis("parameter"), heights, rows, self._floor(len(shown)))}
        if len(names) > ROWS:
            title = "What rounding one parameter does, along the run"
            points = self._series({name: index for index, name in enumerate(names)})
            charts["run"] = Chart("points", title, along, heights, points, self._floor(len(names)))
        return charts

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
    with StateSnapshot.of_model(model, contents="buffers") as state, torch.no_grad():
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
