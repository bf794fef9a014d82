"""What could be cut out of a model: units that belong together, how little they weigh, and the smaller model, run."""

from __future__ import annotations

import statistics
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import torch

from torch_vis.analysis.advice.pruning.dependency import DependencyGroup
from torch_vis.analysis.advice.pruning.surgery import AttributeChange, ConfigCorrection, correct_settings
from torch_vis.analysis.advice.pruning.trial import (
    HIDDEN,
    INCOMPARABLE,
    MIXED,
    OTHER,
    RESHAPED,
    UNTRIED_ALONE,
    GroupCut,
    PruningTrials,
    Trial,
)
from torch_vis.analysis.compare.numeric.tensor_distance import Distance
from torch_vis.analysis.gradients.nan_origin import warning
from torch_vis.analysis.machine.hardware import Hardware
from torch_vis.analysis.report import Charts, LowerBound, Report, least, summed
from torch_vis.api import trace
from torch_vis.capture.modes import without_gradients
from torch_vis.capture.state import RngStates, modes_kept
from torch_vis.errors import UsageError, takes_kwargs
from torch_vis.graph.text import and_more, count, duration
from torch_vis.graph.types import Ints
from torch_vis.progress import progress
from torch_vis.views.charts.chart import COLORS, QUIET, Axis, Chart, Series
from torch_vis.views.text.table_layout import Field, Listing

# of a group that goes beyond what was asked for, from which on it is said
MORE = 0.1
# groups that a note names
NAMED = 3
TOGETHER = "units are normalised together there, so that a unit at zero is not the same as one that is gone"
NORMALISES = ("layer_norm", "rms_norm", "softmax")
UNTRIED = "they were not tried one by one (each=False)"
FIGURES: dict[str, tuple[str, Callable[[int], str]]] = {
    "parameters": ("parameters", count),
    "flops": ("FLOPs", count),
    "time_ns": ("time, measured", duration),
    "predicted_ns": ("time, predicted", duration),
    "kernels_ns": ("of it kernels", duration),
}
UNCHECKED = ("has nothing to be checked by", "have nothing to be checked by")
# what comes of cutting one group, and of cutting several
WAYS = {
    OTHER: ("gives something else", "give something else"),
    RESHAPED: ("gives another shape", "give another shape"),
    INCOMPARABLE: UNCHECKED,
    HIDDEN: UNCHECKED,
    MIXED: UNCHECKED,
}
FAILS = ("does not run", "do not run")
WAITING = (
    "the run predicted waits for the host, which launches as many kernels as before, so that less work in them saves "
    "next to no time; a larger batch, torch.compile or CUDA graphs would make the device's time count"
)
# groups that a chart names one by one
ROWS = 40
# runs of which a time is the median
RUNS = 5


class PrunedGroup(NamedTuple):
    """One group of units: where they live, how many there are, how many would be removed, and the result of the trial.

    ``name`` is the parameter whose rows make the units, or the attention and its heads that would go. ``share`` is how
    much of the group's weight, as squared norm, the units have that would go. ``output`` is how far the output moves
    with this group alone cut, and ``problem`` is why it cannot be. ``error`` is how far the smaller model's output is
    from the whole one's with the columns zero that read the units: rounding; of units that are multiplied or summed up
    together, with all of their weights zero. None where these are not the same, as before a normalisation over all of
    them: ``unchecked`` says why. ``by`` says what was compared instead where the
    output does not show these units. ``changes`` are numbers that modules keep and that had to go along.
    """

    name: str
    places: tuple[tuple[str, int], ...]
    units: int
    cut: int
    share: float
    parameters: int
    output: Distance | None
    problem: str
    heads: bool = False
    error: float | None = None
    changes: tuple[AttributeChange, ...] = ()
    unchecked: str = ""
    by: str = ""


class PrunedHead(NamedTuple):
    """One attention head, or one of keys and values with its heads of queries, and its share of all their weight.

    ``problem`` is why no head of its group can be cut.
    """

    name: str
    share: float
    parameters: int
    cut: bool
    problem: str = ""


class ModelCost(NamedTuple):
    """What a run of a model costs, by the names of ``FIGURES``, and what it is predicted to wait for."""

    figures: dict[str, int]
    waits_for: str = ""
    """``"host"`` or ``"device"``; empty where no hardware was named, or the two take turns."""


@dataclass(frozen=True)
class PruningExperiment:
    """What was asked for and what was measured: groups, the model before and after, how far its output moved."""

    ratio: float
    groups: list[PrunedGroup]
    locked: list[DependencyGroup]
    heads: list[PrunedHead]
    model: torch.nn.Module
    before: ModelCost
    after: ModelCost
    output: Distance | None
    outputs: int
    """How many tensors the output has."""
    output_is_zero: bool
    settings: list[ConfigCorrection]
    left_out: dict[str, int]


class PruningReport(Report):
    """Groups that may be cut, those that may not, and the model with all cuts made."""

    title = "Pruning"

    def __init__(self, experiment: PruningExperiment) -> None:
        self.experiment = experiment
        """All that was asked for and measured."""
        self.groups, self.locked, self.heads = experiment.groups, experiment.locked, experiment.heads
        """Groups of units that are cut together, those that may not be cut, and attention heads."""
        self.model = experiment.model
        """The smaller model."""
        self.before, self.after = experiment.before.figures, experiment.after.figures
        """The figures of the model as it is, and of the smaller one."""
        self.output = experiment.output
        """How far the smaller model's output is from the whole one's; None where nothing can be compared."""
        self.left_out = experiment.left_out
        """How many elements are NaN or infinite before any cut, and in no figure: of inputs and of the output."""
        self.settings = experiment.settings
        """Settings of the model that hold a size, and were corrected with the cuts."""

    def facts(self) -> dict[str, str]:
        cut = [group for group in self.groups if not group.problem]
        facts = {"warning": warning(self.left_out)} if self.left_out else {}
        facts["groups"] = f"{len(cut):,} can be cut{self._failed()}{self._kept()}"
        # the model is as it was
        if not cut:
            return facts
        facts["units"] = f"{sum(group.cut for group in cut):,} of {sum(group.units for group in cut):,} cut"
        if self.heads:
            none = ": none can be" if all(head.problem for head in self.heads) else ""
            facts["heads"] = f"{sum(head.cut for head in self.heads):,} of {len(self.heads):,} cut{none}"
        checked = [group.error for group in cut if group.error is not None]
        if checked:
            facts["checked"] = (
                f"{len(checked):,} of {len(cut):,} give what the whole model gives with theirs at zero, "
                f"to {max(checked):.1g}"
            )
        facts.update(self._before_and_after())
        if not self.experiment.outputs:
            facts["output"] = "has no tensor, so that nothing tells how far it moves"
        elif self.experiment.output_is_zero:
            facts["output"] = "is zero, so that how far it moves has no measure"
        elif self.output is not None:
            facts["output"] = f"moves by {self.output.relative:.3g} of its norm, without training again"
        return facts

    def _before_and_after(self) -> Iterator[tuple[str, str]]:
        for name, (title, show) in FIGURES.items():
            if name not in self.before or name not in self.after:
                continue
            before, after = self.before[name], self.after[name]
            text = f"{least(show)(before)} → {least(show)(after)}"
            # of which no ratio follows
            bounds = isinstance(before, LowerBound) or isinstance(after, LowerBound)
            text = text if bounds else f"{text} ({after / before - 1:+.0%})" if before else show(after)
            if name == "predicted_ns" and any(self._waits_for):
                text += f", waiting for the {' → '.join(dict.fromkeys(self._waits_for))}"
            yield title, text

    @property
    def _waits_for(self) -> tuple[str, str]:
        return self.experiment.before.waits_for, self.experiment.after.waits_for

    def _failed(self) -> str:
        """How many turned out not to be possible, in which ways."""
        problems = [group.problem for group in self.groups if group.problem]
        counts = Counter(map(_problem_words, problems))
        listed = ", ".join(f"{number:,} {words[number > 1]}" for words, number in counts.items())
        return f", {len(problems):,} cannot: {listed}" if problems else ""

    def _kept(self) -> str:
        number, reasons = len(self.locked), len({group.locked for group in self.locked})
        text = "one reason" if reasons == 1 else f"{reasons:,} reasons"
        return f", {number:,} must stay whole, for {text}: see 'Not to be cut'" if number else ""

    def listings(self) -> list[Listing]:
        heads = (
            Field("name", "head"),
            Field("share", "weight", "{:.1%}".format),
            Field("parameters", "parameters", count),
            Field("cut", "cut", lambda cut: "cut" if cut else ""),
            Field("problem", "why not"),
        )
        light = sorted(self.heads, key=lambda head: head.share)
        why: dict[str, list[DependencyGroup]] = {}
        for group in self.locked:
            why.setdefault(group.locked, []).append(group)
        locked = (
            Field("why", "why not"),
            Field("groups", "groups", "{:,}".format),
            Field("first", "for example"),
        )
        reasons = [(reason, len(groups), groups[0].places[0][0]) for reason, groups in why.items()]
        return [
            self._group_listing(),
            Listing("Attention heads", heads, light, most=30),
            Listing("Not to be cut", locked, sorted(reasons, key=lambda row: -row[1])),
        ]

    def _group_listing(self) -> Listing:
        fields = (
            Field("name", "units of"),
            Field("places", "tensors", str),
            Field("units", "units", "{:,}".format),
            Field("cut", "cut", "{:,}".format),
            Field("share", "weight cut", "{:.1%}".format),
            Field("parameters", "parameters", count),
            Field("output", "output moves", "{:.3g}".format),
            Field("changes", "numbers changed"),
            Field("problem", "problem"),
        )
        changed, failed = any(cut.changes for cut in self.groups), any(cut.problem for cut in self.groups)
        rows = [
            (
                cut.name,
                len({name for name, _ in cut.places}),
                *cut[2:6],
                None if cut.output is None else cut.output.relative,
                ", ".join(dict.fromkeys(change.name for change in cut.changes)) if changed else None,
                cut.problem if failed else None,
            )
            for cut in self.groups
        ]
        return Listing("Groups that belong together", fields, rows, most=30)

    def notes(self) -> list[str]:
        if all(group.problem for group in self.groups):
            return ["nothing in this model can be cut, so that the one in .model is as it was"]
        notes = [
            "units are cut by weight alone, the lightest first; the model in .model runs and wants training again"
        ]
        if any(isinstance(change.after, type) for group in self.groups for change in group.changes):
            notes.append(
                "torch's MultiheadAttention cannot have fewer heads than fill its width; in .model, those cut are "
                "torch_vis.analysis.advice.pruning.surgery.FewerHeads, with the same parameters"
            )
        cut = [group for group in self.groups if not group.problem]
        if self.experiment.outputs > 1:
            notes.append(
                f"how far the output moves: all of its {self.experiment.outputs:,} tensors in one norm"
            )
        notes += map(str, self.settings)
        if self.experiment.after.waits_for == "host":
            notes.append(WAITING)
        for by in dict.fromkeys(group.by for group in cut if group.by):
            names = [group.name for group in cut if group.by == by]
            notes.append(
                f"the output does not show these units, so they were checked by {by}: {and_more(names, NAMED)}"
            )
        for why in dict.fromkeys(group.unchecked for group in cut if group.unchecked):
            names = [group.name for group in cut if group.unchecked == why]
            notes.append(f"not checked against units at zero: {and_more(names, NAMED)}: {why}")
        more = [
            g
            for g in cut
            if self.experiment.ratio is not None and g.cut / g.units > self.experiment.ratio + MORE
        ]
        if more:
            shares = [f"{g.cut:,} of {g.units:,} {'heads' if g.heads else 'units'} of {g.name}" for g in more]
            notes.append(
                f"whole units only: more goes than a ratio of {self.experiment.ratio:g} asks for, "
                f"{and_more(shares, NAMED)}"
            )
        return notes

    def charts(self) -> Charts:
        builders: dict[str, Callable[[], Chart]] = {}
        cut = [group for group in self.groups if not group.problem]
        if cut:
            builders["groups"] = lambda: group_chart(cut)
        if self.heads:
            builders["heads"] = lambda: heads_chart(self.heads)
        return Charts(**builders)


def _problem_words(problem: str) -> tuple[str, str]:
    """Why a group could not be cut, in a word."""
    return next((way for why, way in WAYS.items() if why in problem), FAILS)


# ---------------------------------------------------------------- charts


def group_chart(cut: Sequence[PrunedGroup]) -> Chart:
    """A row for each group, of many for those that matter most: how far the output moves, or what goes."""
    tried = [group for group in cut if group.output is not None]
    # cut without trying each alone
    if not tried:
        shown = _largest(cut, lambda group: group.parameters)
        which = f": the {ROWS} of {len(cut):,} that save most" if len(cut) > ROWS else ""
        sizes = Series("parameters", [group.name for group in shown], [g.parameters for g in shown])
        axes = Axis("units of"), Axis("parameters that go", "count")
        return Chart("bars", f"What cutting each group saves{which}", *axes, [sizes])
    shown = _largest(tried, _moved)
    which = f": the {ROWS} of {len(tried):,} that move it most" if len(tried) > ROWS else ""
    names = [f"{group.name}, {count(group.parameters)}" for group in shown]
    series = Series("group", names, [_moved(group) for group in shown])
    axes = Axis("units, parameters"), Axis("how far the output moves, of its norm")
    return Chart("dots", f"What cutting each group alone does to the output{which}", *axes, [series])


def heads_chart(heads: Sequence[PrunedHead]) -> Chart:
    """A row for each head, of many for the lightest, in the order of the model."""
    lightest = sorted(head.share for head in heads)[:ROWS]
    shown = [head for head in heads if head.share <= lightest[-1]][:ROWS]
    which = f": the {ROWS} lightest of {len(heads):,}" if len(heads) > ROWS else ""
    if all(head.problem for head in heads):
        which += f"{',' if which else ':'} none can be cut"
    parts = [
        Series(name, [head.name for head in some], [head.share for head in some], color=color)
        for name, color, some in (
            ("cut", COLORS[3], [head for head in shown if head.cut]),
            ("stays", COLORS[0], [head for head in shown if not head.cut and not head.problem]),
            ("cannot be cut", QUIET, [head for head in shown if head.problem]),
        )
        if some
    ]
    # dots: lengths from zero on would all look the same
    rows = Axis("head", names=[head.name for head in shown])
    weight = Axis("share of the weight of its attention's heads")
    return Chart("dots", f"Weight of each head{which}", rows, weight, parts)


def _moved(group: PrunedGroup) -> float:
    return group.output.relative if group.output is not None else 0.0


def _largest(groups: Sequence[PrunedGroup], by: Callable[[PrunedGroup], float]) -> list[PrunedGroup]:
    """Of more groups than can be named, those of the most, in the order that they have."""
    kept = sorted(range(len(groups)), key=lambda index: -by(groups[index]))[:ROWS]
    return [groups[index] for index in sorted(kept)]


# ---------------------------------------------------------------- the experiment


@takes_kwargs
def pruning(
    model: torch.nn.Module,
    *args: Any,
    kwargs: Mapping[str, Any] | None = None,
    ratio: float = 0.3,
    each: bool = True,
    hardware: str | Hardware | None = None,
) -> PruningReport:
    """Find the units (channels, features, heads) that belong together, cut the lightest, and run what is left.

    ``args`` and ``kwargs`` are a real batch: a run of it shows what belongs together, and the smaller model is tried on
    it. ``ratio`` is the share of each group that goes, by weight. With ``each``, every group is first cut alone: one
    whose model does not run any more, or does not give what the whole model gives with the same units at zero, is left
    whole, with the reason. Heads are always tried: where a module keeps their number (``num_heads``), it is changed in
    the smaller model if that makes it right. Where the output shows nothing of some units (a last layer that begins at
    zero), they are checked in a copy with random numbers in its weights. ``hardware`` names a device for which the time
    is predicted as well. The model itself is not changed; the smaller one is in ``model`` of what comes back.

    >>> import torch, torch_vis as tv
    >>> model = torch.nn.Sequential(torch.nn.Linear(8, 16), torch.nn.ReLU(), torch.nn.Linear(16, 4))
    >>> report = tv.advise.pruning(model, torch.ones(2, 8), ratio=0.5)
    >>> report.model, report.after["parameters"]
    (Sequential(
      (0): Linear(in_features=8, out_features=8, bias=True)
      (1): ReLU()
      (2): Linear(in_features=8, out_features=4, bias=True)
    ), 108)
    """
    if not isinstance(model, torch.nn.Module):
        raise UsageError(f"pruning() takes a module, not {type(model).__name__}")
    if isinstance(ratio, bool) or not isinstance(ratio, (int, float)) or not 0 < ratio < 1:
        raise UsageError(f"ratio is the share of each group that goes, between 0 and 1, not {ratio!r}")
    with RngStates():
        trials = PruningTrials(model, args, dict(kwargs or {}), hardware)
        return PruningReport(_experiment(trials, ratio, each))


def _experiment(trials: PruningTrials, ratio: float, each: bool) -> PruningExperiment:
    """Cut every group, alone if ``each``, and then all that can be together."""
    groups = trials.dependencies.groups
    if not groups:
        raise UsageError("nothing in this model can be cut: it has no parameters")
    tried = []
    for group in progress([g for g in groups if not g.locked and len(g.units) > 1], "cutting"):
        units = trials.lightest(group, ratio)
        trial = trials.cut_group(group, units) if each or group.heads else UNTRIED_ALONE
        tried.append((group, units, trial))
    possible = [index for index, (*_, trial) in enumerate(tried) if not trial.problem]
    cuts = [GroupCut(group, units, trial.changes) for group, units, trial in (tried[i] for i in possible)]
    whole, refused = trials.cut_together(cuts) if each else (trials.cut_all(cuts), {})
    if whole.model is None:
        more = "" if each else ", or each=True, which leaves whole what cannot be cut"
        raise UsageError(f"with all groups cut: {whole.problem}; try a lower ratio{more}")
    for position, problem in refused.items():
        group, units, trial = tried[possible[position]]
        tried[possible[position]] = group, units, trial._replace(problem=problem)
    kept = [cut for position, cut in enumerate(cuts) if position not in refused]
    return PruningExperiment(
        ratio=ratio,
        groups=[_pruned_group(trials, *attempt) for attempt in tried],
        locked=[group for group in groups if group.locked],
        heads=[head for attempt in tried if attempt[0].heads for head in _heads(trials, *attempt)],
        model=whole.model,
        settings=correct_settings(whole.model, trials.resized(kept), trials.like(whole.model)),
        after=model_cost(whole.model, trials.args, trials.kwargs, trials.hardware),
        before=model_cost(trials.model, trials.args, trials.kwargs, trials.hardware),
        output=whole.output,
        outputs=len(trials.own.output),
        output_is_zero=trials.is_zero,
        left_out=trials.left_out,
    )


def model_cost(
    model: torch.nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any], hardware: Hardware | None
) -> ModelCost:
    """Parameters, FLOPs of a forward run, its median time, and where hardware is named the time predicted there.

    Of the predicted time, that of kernels is a figure of its own. A figure that leaves out operations of unknown work
    is a ``LowerBound``.
    """
    times = []
    with modes_kept(model), without_gradients():
        model.eval()
        traced = trace(model, *args, kwargs=kwargs, hold=False)
        for _ in range(RUNS):
            start = time.perf_counter_ns()
            model(*args, **kwargs)
            if torch.cuda.is_available() and torch.cuda.is_initialized():
                torch.cuda.synchronize()
            times.append(time.perf_counter_ns() - start)
    column = traced.metrics["flops"]
    # None where no operation has a formula
    known = {"flops": summed(column.total(), column.uncovered)}
    waits_for = ""
    if hardware is not None:
        latency = traced.latency(hardware=hardware)
        prediction, unknown = latency.prediction, latency.unknown_operations
        waits_for = (prediction.waits_for or "") if prediction.overlaps else ""
        known["predicted_ns"] = summed(round(latency.total_ns), unknown)
        known["kernels_ns"] = summed(round(float(prediction.device_ns.sum())), unknown)
    figures = {
        "parameters": sum(parameter.numel() for parameter in model.parameters()),
        "time_ns": round(statistics.median(times)),
        **{name: figure for name, figure in known.items() if figure is not None},
    }
    return ModelCost(figures, waits_for)


def _pruned_group(trials: PruningTrials, group: DependencyGroup, units: Ints, trial: Trial) -> PrunedGroup:
    weights = trials.weights(group)
    share = float(weights[np.isin(group.units, units)].sum() / weights.sum()) if weights.sum() else 0.0
    return PrunedGroup(
        name=group.named(units.tolist()) if group.heads else _rows(trials, group),
        places=group.places,
        units=len(group.units),
        cut=len(units),
        share=share,
        parameters=trials.parameters_of(group, units),
        output=trial.output,
        problem=trial.problem,
        heads=bool(group.heads),
        error=trial.error,
        changes=trial.changes,
        unchecked=_unchecked(trials, group, trial),
        by=trial.by,
    )


def _unchecked(trials: PruningTrials, group: DependencyGroup, trial: Trial) -> str:
    if trial.error is not None or trial.problem:
        return ""
    if trial.model is None:
        return UNTRIED
    if trial.hidden:
        return HIDDEN
    if trials.why_incomparable:
        return trials.why_incomparable
    if any(name in op for op in group.mixed for name in NORMALISES):
        return TOGETHER
    by = " and ".join(group.mixed)
    return f"units are taken together by {by}, and one whose weights are all zero still counts there"


def _heads(trials: PruningTrials, group: DependencyGroup, units: Ints, trial: Trial) -> list[PrunedHead]:
    gone = () if trial.problem else units
    weights = trials.weights(group)
    total = weights.sum() or 1.0
    return [
        PrunedHead(
            group.named([unit]),
            float(weight / total),
            trials.parameters_of(group, np.array([unit])),
            unit in gone,
            trial.problem,
        )
        for unit, weight in zip(group.units.tolist(), weights)
    ]


def _rows(trials: PruningTrials, group: DependencyGroup) -> str:
    """The first parameter that makes the units: by rows rather than columns, a matrix rather than a bias or a norm."""
    owners = [index for index in group.places if not trials.dependencies.reads(index)] or list(
        group.places[:1]
    )
    is_matrix = [trials.tensors[name].dim() > 1 for name, _ in owners]
    return max(zip(is_matrix, (number == 0 for _, number in owners), owners), key=lambda row: row[:2])[2][0]
