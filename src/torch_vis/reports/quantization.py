"""What narrower numbers would do to a model: error, effect on the output, bytes and time saved, layer by layer."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import torch

from torch_vis.analysis.hardware import Hardware, find_hardware
from torch_vis.analysis.kinds import kind_of
from torch_vis.capture.progress import progress
from torch_vis.errors import UsageError, no_match
from torch_vis.graph.graph import Graph
from torch_vis.reports.narrower import notes_on, time_saved
from torch_vis.reports.report import Report
from torch_vis.run.observe import Watched
from torch_vis.run.replay import quiet
from torch_vis.run.rounding import FORMATS, Product, Trial, products, sqnr
from torch_vis.tracing import Trace, trace
from torch_vis.views.charts import Axis, Chart, Series
from torch_vis.views.charts_names import common_path
from torch_vis.views.tables import Field, Listing
from torch_vis.views.units import duration, size

FLOOR_DB = 30.0
ROWS = 40  # parameters that a chart names one by one
MULTIPLY = frozenset({"matmul", "convolution", "recurrent", "attention"})


class Rounding(NamedTuple):
    """One parameter in one format. Errors are signal to noise in decibels, 6 for each bit that is right.

    ``output_db`` is that of the model's output with this parameter alone rounded, and what it is multiplied with.
    """

    weight: str
    format: str
    weight_db: float
    activation_db: float | None
    output_db: float | None
    bytes_before: int
    bytes_after: int
    time_saved_ns: int | None


class Whole(NamedTuple):
    """The whole model in one format: every parameter that is multiplied by, and what it is multiplied with."""

    format: str
    output_db: float | None
    agreement: float | None
    """The share of rows of the first output whose largest element stays in its place; None where it has no rows."""
    bytes_before: int
    bytes_after: int
    time_saved_ns: int | None


class Quantization(Report):
    """Formats tried on a model with the user's own data."""

    title = "Quantization"

    def __init__(self, rows: list[Rounding], whole: list[Whole], floor_db: float, notes: list[str]) -> None:
        self.rows, self.whole, self.floor_db = rows, whole, floor_db
        self._notes = notes

    @property
    def advice(self) -> dict[str, str | None]:
        """For each parameter the narrowest format whose effect on the output stays above the floor; None: keep it."""
        found: dict[str, str | None] = {}
        for row in sorted(self.rows, key=lambda row: row.bytes_after):
            if found.setdefault(row.weight, None) is None and _reached(row) >= self.floor_db:
                found[row.weight] = row.format
        return {row.weight: found[row.weight] for row in self.rows}

    @property
    def sensitive(self) -> list[Rounding]:
        """What costs most, worst first."""
        return sorted(self.rows, key=_reached)

    def facts(self) -> dict[str, str]:
        found = {}
        for row in self.whole:
            told = [f"{size(row.bytes_before)} → {size(row.bytes_after)} of weights"]
            if row.output_db is not None:
                told.append(f"output {row.output_db:.1f} dB")
            if row.agreement is not None:
                told.append(f"{row.agreement:.1%} of the largest elements stay")
            if row.time_saved_ns is not None:
                told.append(f"{duration(row.time_saved_ns)} saved (predicted)")
            found[row.format] = ", ".join(told)
        kept = [name for name, form in self.advice.items() if form is None]
        if kept:
            found["keep as they are"] = ", ".join(kept[:4]) + (
                f" and {len(kept) - 4:,} more" if len(kept) > 4 else ""
            )
        return found

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
        )
        advice = (Field("weight", "weight"), Field("format", "narrowest"))
        chosen = [(name, form or "keep") for name, form in self.advice.items()]
        return [
            Listing("What costs most, worst first", fields, self.sensitive),
            Listing(f"Narrowest format above {self.floor_db:g} dB", advice, chosen),
        ]

    def notes(self) -> list[str]:
        return self._notes

    def charts(self) -> dict[str, Chart]:
        """A row for each parameter, of many for those that suffer most; and all of them along the run."""
        names = list(dict.fromkeys(row.weight for row in self.rows))
        if not any(math.isfinite(_reached(row)) for row in self.rows):
            return {}
        worst = list(dict.fromkeys(row.weight for row in self.sensitive))[:ROWS]
        shown = worst if len(names) > ROWS else names
        told = f": the {ROWS} of {len(names):,} that suffer most" if len(names) > ROWS else ""
        what = "of the output" if any(row.output_db is not None for row in self.rows) else "of the parameter"
        heights = Axis(f"signal to noise {what} (dB; more is better)")
        inside = common_path(names).rstrip(".")
        along = Axis(
            f"parameter of {inside}" if inside else "parameter, in the order of the run", names=names
        )
        title = f"What rounding one parameter does{told}"
        rows = self._series({name: name for name in shown})
        found = {"error": Chart("dots", title, Axis("parameter"), heights, rows, self._floor(len(shown)))}
        if len(names) > ROWS:
            title = "What rounding one parameter does, along the run"
            points = self._series({name: place for place, name in enumerate(names)})
            found["run"] = Chart("points", title, along, heights, points, self._floor(len(names)))
        return found

    def _series(self, places: Mapping[str, Any]) -> list[Series]:
        """By format, what rounding each of some parameters does, at the place it has."""
        reached = {(row.format, row.weight): _reached(row) for row in self.rows}
        found = []
        for form in dict.fromkeys(row.format for row in self.rows):
            heights = {name: reached.get((form, name), math.nan) for name in places}
            known = [name for name in places if math.isfinite(heights[name])]
            xs, ys = [places[name] for name in known], [heights[name] for name in known]
            found.append(Series(form, xs, ys, known if known != xs else ()))
        return found

    def _floor(self, count: int) -> list[Series]:
        return [Series(f"floor, {self.floor_db:g} dB", [-0.6, count - 0.4], [self.floor_db] * 2)]


def _reached(row: Rounding) -> float:
    """What is left of the output or, where that was not tried, of the parameter itself."""
    return row.weight_db if row.output_db is None else row.output_db


def analyze_quantization(
    model: Callable[..., Any],
    *args: Any,
    kwargs: Mapping[str, Any] | None = None,
    formats: Sequence[str] = ("int8", "fp8", "int4"),
    effect: bool = True,
    floor_db: float = FLOOR_DB,
    hardware: str | Hardware | None = None,
) -> Quantization:
    """Find out what each parameter could be rounded to, from a real batch of yours.

    The model is run once on ``args`` and ``kwargs``; then the recorded run is repeated with one parameter at a time
    rounded to ``"int8"``, ``"fp8"`` or ``"int4"`` (weights only), and with all of them. ``effect=False`` leaves these
    repeats out and gives the errors of weights and activations alone. ``hardware`` names the device for which the time
    saved is predicted, as ``latency`` predicts it; what the device has no units for counts as in the next wider type
    that it has, and a note says so. The model is not changed.

    For int8 and fp8 the parameter and the activations that it is multiplied with are rounded, weights by row and
    activations with one scale for a tensor (int8 asymmetric, fp8 symmetric): ``output_db`` is of both. Those inside a
    fused kernel (``out_proj`` of attention, ``weight_hh`` of an LSTM) cannot be seen and stay exact: ``activation_db``
    is None. "Largest elements stay" is ``agreement``: the share of rows of the first output, along its last
    dimension, whose largest element stays in its place (the class that is predicted). A parameter that several layers
    share is one row, and its bytes are counted once.

    >>> import torch, torch_vis as tv
    >>> torch.manual_seed(0)  # doctest: +ELLIPSIS
    <...>
    >>> model = torch.nn.Sequential(torch.nn.Linear(64, 64), torch.nn.ReLU(), torch.nn.Linear(64, 10))
    >>> found = tv.analyze_quantization(model, torch.randn(8, 64))
    >>> found.advice
    {'0.weight': 'int8', '2.weight': 'int8'}
    """
    for form in formats:
        if form not in FORMATS:
            raise no_match("format", str(form), FORMATS)
    machine = None if hardware is None else find_hardware(hardware)
    if isinstance(model, Trace):
        raise UsageError("analyze_quantization() takes the model and a batch, as trace() does, not a trace")
    with torch.random.fork_rng(), torch.no_grad():
        found = trace(model, *args, kwargs=kwargs)
    if found._held is not None:
        found._held.put_back()  # running statistics: this was no step of the user's
    trial = Trial(found.graph, found._held)
    multiplied = [one for one in products(found.graph, trial.nodes) if _multiplies(found.graph, one.node)]
    if not multiplied:
        raise UsageError(
            "no operation of this run multiplies by a parameter, so there is nothing to quantize"
        )
    first: dict[int, Product] = {}
    for one in multiplied:
        first.setdefault(one.weight, one)
    noise = _activation_noise(found, multiplied, formats)
    saved = {} if machine is None else time_saved(found, multiplied, formats, machine)
    exact = trial.outputs() if effect else []
    rows = []
    for weight, form in progress([(w, f) for w in first for f in formats], "rounding"):
        uses = {
            (one.node, value): FORMATS[form]
            for one in multiplied
            if one.weight == weight
            for value in one.activations
        }
        reached = _decibel(exact, trial.outputs({weight: FORMATS[form]}, uses)) if exact else None
        rows.append(
            _row(trial, first[weight], form, noise.get((weight, form)), reached, saved.get((weight, form)))
        )
    whole = [_whole(trial, multiplied, form, rows, exact) for form in formats]
    return Quantization(rows, whole, floor_db, _notes(rows, whole, machine))


def _multiplies(graph: Graph, node: int) -> bool:
    return kind_of(graph.nodes[node].call.op) in MULTIPLY or "embedding" in graph.nodes[node].name


def _row(
    trial: Trial, one: Product, form: str, noise: float | None, reached: float | None, saved: int | None
) -> Rounding:
    exact = trial.exact(one.weight)
    rounded = FORMATS[form].weight(exact.float())
    before, after = _bytes(exact, form)
    return Rounding(one.name, form, sqnr(exact, rounded), noise, reached, before, after, saved)


def _bytes(weight: torch.Tensor, form: str) -> tuple[int, int]:
    narrow = math.ceil(weight.numel() * FORMATS[form].bits / 8) + FORMATS[form].scales(weight.shape)
    return weight.numel() * weight.element_size(), narrow


def _whole(
    trial: Trial, multiplied: list[Product], form: str, rows: list[Rounding], exact: list[torch.Tensor]
) -> Whole:
    mine = [row for row in rows if row.format == form]
    times = [row.time_saved_ns for row in mine if row.time_saved_ns is not None]
    reached, agreement = None, None
    if exact:
        weights = {one.weight: FORMATS[form] for one in multiplied}
        uses = {(one.node, value): FORMATS[form] for one in multiplied for value in one.activations}
        made = trial.outputs(weights, uses)
        reached, agreement = _decibel(exact, made), _agreement(exact[0], made[0])
    return Whole(
        form,
        reached,
        agreement,
        sum(row.bytes_before for row in mine),
        sum(row.bytes_after for row in mine),
        sum(times) if len(times) == len(mine) else None,
    )


def _decibel(exact: Sequence[torch.Tensor], made: Sequence[torch.Tensor]) -> float | None:
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
    return float((exact.argmax(-1) == made.argmax(-1)).float().mean())


def _activation_noise(
    found: Trace, multiplied: Sequence[Product], formats: Sequence[str]
) -> dict[tuple[int, str], float]:
    """By weight and format, the worst signal to noise of what the weight is multiplied with."""
    by_node = {one.node: one for one in multiplied if one.activations}  # one of a node's weights has them
    noise: dict[tuple[int, str], float] = {}
    run = Watched(found.graph, found._held)
    with quiet(run.plan.generators):
        for node in run.steps():
            one = by_node.get(node)
            if one is None:
                continue
            exact = run.replay.tensor(one.activations[0]).float()
            for form in formats:
                rounding = FORMATS[form].activation
                if rounding is not None and exact.numel():
                    worst = noise.get((one.weight, form), math.inf)
                    noise[one.weight, form] = min(worst, sqnr(exact, rounding(exact)))
    return noise


def _notes(rows: Sequence[Rounding], whole: Sequence[Whole], machine: Hardware | None) -> list[str]:
    found = [f"{one.format}: {FORMATS[one.format].what}" for one in whole]
    both = [one.format for one in whole if FORMATS[one.format].activation is not None]
    effect = any(one.output_db is not None for one in whole)
    if both and effect:
        found.append(
            f"output dB of {' and '.join(both)}: the weight and what it is multiplied with are rounded"
        )
    hidden = list(dict.fromkeys(r.weight for r in rows if r.format in both and r.activation_db is None))
    if hidden:
        told = ", ".join(hidden[:3]) + (f" and {len(hidden) - 3:,} more" if len(hidden) > 3 else "")
        found.append(
            f"no activation dB for {told}: an embedding multiplies nothing, and what else they are multiplied with "
            "never leaves a fused kernel; it stays exact"
        )
    if any(one.agreement is not None for one in whole):
        found.append("largest elements stay: rows of the first output whose largest element is where it was")
    found.append("a weight that several layers share is one row, and counted once")
    if not effect:
        found.append("effects on the output were not tried (effect=False)")
    if machine is None:
        found.append("time saved is not predicted: name the hardware, for example hardware='A100 80GB'")
    else:
        found += notes_on(machine, [one.format for one in whole])
    return found
