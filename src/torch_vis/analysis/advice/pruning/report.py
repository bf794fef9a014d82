"""What could be cut out of a model: units that belong together, how little they weigh, and the smaller model, run."""

from __future__ import annotations

import statistics
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import torch

from torch_vis.analysis.advice.pruning.dependency import Group
from torch_vis.analysis.advice.pruning.surgery import Change, Settings, correct_settings
from torch_vis.analysis.advice.pruning.trial import HIDDEN, MIXED, OTHER, RESHAPED, UNSTEADY, Bench, Trial
from torch_vis.analysis.compare.numeric.side_by_side import Gap
from torch_vis.analysis.gradients.nan_origin import warning
from torch_vis.analysis.machine.hardware import Hardware
from torch_vis.analysis.machine.lower_bound import LowerBound, least, summed
from torch_vis.analysis.report import Report
from torch_vis.api import trace
from torch_vis.capture.state import modes_kept
from torch_vis.errors import UsageError
from torch_vis.graph.text import and_more, count, duration
from torch_vis.progress import progress
from torch_vis.views.charts.chart import COLORS, QUIET, Axis, Chart, Series
from torch_vis.views.text.table import Field, Listing

# groups that a chart names one by one
ROWS = 40


def group_chart(groups: Sequence[Cut]) -> Chart | None:
    """A row for each group, of many for those that matter most: how far the output moves, or what goes."""
    cut = [group for group in groups if not group.problem]
    if not cut:
        return None
    tried = [group for group in cut if group.output is not None]
    # cut without trying each alone
    if not tried:
        shown = _largest(cut, lambda group: group.parameters)
        told = f": the {ROWS} of {len(cut):,} that save most" if len(cut) > ROWS else ""
        sizes = Series("parameters", [group.name for group in shown], [g.parameters for g in shown])
        axes = Axis("units of"), Axis("parameters that go", "count")
        return Chart("bars", f"What cutting each group saves{told}", *axes, [sizes])
    shown = _largest(tried, _moved)
    told = f": the {ROWS} of {len(tried):,} that move it most" if len(tried) > ROWS else ""
    names = [f"{group.name}, {count(group.parameters)}" for group in shown]
    series = Series("group", names, [_moved(group) for group in shown])
    axes = Axis("units, parameters"), Axis("how far the output moves, of its norm")
    return Chart("dots", f"What cutting each group alone does to the output{told}", *axes, [series])


def heads_chart(heads: Sequence[Head]) -> Chart | None:
    """A row for each head, of many for the lightest, in the order of the model."""
    if not heads:
        return None
    lightest = sorted(head.share for head in heads)[:ROWS]
    shown = [head for head in heads if head.share <= lightest[-1]][:ROWS]
    told = f": the {ROWS} lightest of {len(heads):,}" if len(heads) > ROWS else ""
    if all(head.problem for head in heads):
        told += f"{',' if told else ':'} none can be cut"
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
    return Chart("dots", f"Weight of each head{told}", rows, weight, parts)


def _moved(group: Cut) -> float:
    return group.output.relative if group.output is not None else 0.0


def _largest(groups: Sequence[Cut], by: Callable[[Cut], float]) -> list[Cut]:
    """Of more groups than can be named, those of the most, in the order that they have."""
    kept = sorted(range(len(groups)), key=lambda place: -by(groups[place]))[:ROWS]
    return [groups[place] for place in sorted(kept)]


RUNS = 5


def taken(
    model: torch.nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any], hardware: Hardware | None
) -> tuple[dict[str, int], str]:
    """Parameters, FLOPs of a forward run, its median time, and where hardware is named the time predicted there.

    Of that, what kernels take is told apart, and as the second result what the run waits for, the host or the
    device. What leaves out operations of unknown work is a ``LowerBound``.
    """
    spent = []
    with modes_kept(model), torch.no_grad():
        model.eval()
        found = trace(model, *args, kwargs=kwargs, keep=False)
        for _ in range(RUNS):
            begun = time.perf_counter_ns()
            model(*args, **kwargs)
            if torch.cuda.is_available() and torch.cuda.is_initialized():
                torch.cuda.synchronize()
            spent.append(time.perf_counter_ns() - begun)
    column = found.metrics["flops"]
    # None where no operation has a formula
    known = {"flops": summed(column.total(), column.uncovered)}
    waits_for = ""
    if hardware is not None:
        there = found.latency(hardware=hardware)
        missing = there.unknown_operations
        waits_for = (there.found.waits_for or "") if there.found.overlaps else ""
        known["predicted_ns"] = summed(round(there.total_ns), missing)
        known["kernels_ns"] = summed(round(float(there.found.device_ns.sum())), missing)
    figures = {
        "parameters": sum(parameter.numel() for parameter in model.parameters()),
        "time_ns": round(statistics.median(spent)),
        **{name: figure for name, figure in known.items() if figure is not None},
    }
    return figures, waits_for


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
    UNSTEADY: UNCHECKED,
    HIDDEN: UNCHECKED,
    MIXED: UNCHECKED,
}
FAILS = ("does not run", "do not run")
WAITING = (
    "the run predicted waits for the host, which launches as many kernels as before, so that less work in them saves "
    "next to no time; a larger batch, torch.compile or CUDA graphs would make the device's time count"
)


class Cut(NamedTuple):
    """One group of units: where they live, how many there are, how many would go, and what came of trying.

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
    output: Gap | None
    problem: str
    heads: bool = False
    error: float | None = None
    changes: tuple[Change, ...] = ()
    unchecked: str = ""
    by: str = ""


class Head(NamedTuple):
    """One attention head, or one of keys and values with its heads of queries, and its share of all their weight.

    ``problem`` is why no head of its group can be cut.
    """

    name: str
    share: float
    parameters: int
    cut: bool
    problem: str = ""


class Pruning(Report):
    """Groups that may be cut, those that may not, and the model with all cuts made."""

    title = "Pruning"

    def __init__(
        self,
        groups: list[Cut],
        locked: list[Group],
        model: torch.nn.Module,
        before: Mapping[str, int],
        after: Mapping[str, int],
        output: Gap | None,
        heads: Sequence[Head] = (),
        ratio: float | None = None,
        is_zero: bool = False,
        waits_for: tuple[str, str] = ("", ""),
        settings: Sequence[Settings] = (),
        left_out: Mapping[str, int] | None = None,
        outputs: int = 1,
    ) -> None:
        self.left_out = dict(left_out or {})
        """How many elements are NaN or infinite before any cut, and in no figure: of what came in and of the output."""
        self.outputs = outputs
        self.ratio, self.is_zero, self.waits_for, self.settings = ratio, is_zero, waits_for, list(settings)
        self.groups, self.locked, self.model, self.heads = groups, locked, model, list(heads)
        self.before, self.after, self.output = dict(before), dict(after), output

    def facts(self) -> dict[str, str]:
        cut = [group for group in self.groups if not group.problem]
        found = {"warning": warning(self.left_out)} if self.left_out else {}
        found["groups"] = f"{len(cut):,} can be cut{self._failed()}{self._kept()}"
        # the model is as it was
        if not cut:
            return found
        found["units"] = f"{sum(group.cut for group in cut):,} of {sum(group.units for group in cut):,} cut"
        if self.heads:
            none = ": none can be" if all(head.problem for head in self.heads) else ""
            found["heads"] = f"{sum(head.cut for head in self.heads):,} of {len(self.heads):,} cut{none}"
        checked = [group.error for group in cut if group.error is not None]
        if checked:
            found["checked"] = (
                f"{len(checked):,} of {len(cut):,} give what the whole model gives with theirs at zero, "
                f"to {max(checked):.1g}"
            )
        found.update(self._before_and_after())
        if not self.outputs:
            found["output"] = "has no tensor, so that nothing tells how far it moves"
        elif self.is_zero:
            found["output"] = "is zero, so that how far it moves has no measure"
        elif self.output is not None:
            found["output"] = f"moves by {self.output.relative:.3g} of its norm, without training again"
        return found

    def _before_and_after(self) -> Iterator[tuple[str, str]]:
        for name, (title, show) in FIGURES.items():
            if name not in self.before or name not in self.after:
                continue
            one, two = self.before[name], self.after[name]
            told = f"{least(show)(one)} → {least(show)(two)}"
            # of which no ratio follows
            bounds = isinstance(one, LowerBound) or isinstance(two, LowerBound)
            told = told if bounds else f"{told} ({two / one - 1:+.0%})" if one else show(two)
            if name == "predicted_ns" and any(self.waits_for):
                told += f", waiting for the {' → '.join(dict.fromkeys(self.waits_for))}"
            yield title, told

    def _failed(self) -> str:
        """How many turned out not to be possible, in which ways."""
        problems = [group.problem for group in self.groups if group.problem]
        counts = Counter(map(_way, problems))
        told = ", ".join(f"{number:,} {way[number > 1]}" for way, number in counts.items())
        return f", {len(problems):,} cannot: {told}" if problems else ""

    def _kept(self) -> str:
        many, why = len(self.locked), len({group.locked for group in self.locked})
        reasons = "one reason" if why == 1 else f"{why:,} reasons"
        return f", {many:,} must stay whole, for {reasons}: see 'Not to be cut'" if many else ""

    def listings(self) -> list[Listing]:
        heads = (
            Field("name", "head"),
            Field("share", "weight", "{:.1%}".format),
            Field("parameters", "parameters", count),
            Field("cut", "cut", lambda cut: "cut" if cut else ""),
            Field("problem", "why not"),
        )
        light = sorted(self.heads, key=lambda head: head.share)
        why: dict[str, list[Group]] = {}
        for group in self.locked:
            why.setdefault(group.locked, []).append(group)
        locked = (
            Field("why", "why not"),
            Field("groups", "groups", "{:,}".format),
            Field("first", "for example"),
        )
        reasons = [(reason, len(found), found[0].places[0][0]) for reason, found in why.items()]
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
        found = [
            "units are cut by weight alone, the lightest first; the model in .model runs and wants training again"
        ]
        if any(isinstance(change.after, type) for group in self.groups for change in group.changes):
            found.append(
                "torch's MultiheadAttention cannot have fewer heads than fill its width; in .model, those cut are "
                "torch_vis.analysis.advice.pruning.attention_heads.FewerHeads, with the same parameters"
            )
        cut = [group for group in self.groups if not group.problem]
        if self.outputs > 1:
            found.append(f"how far the output moves: all of its {self.outputs:,} tensors in one norm")
        found += map(str, self.settings)
        if self.waits_for[1] == "host":
            found.append(WAITING)
        for by in dict.fromkeys(group.by for group in cut if group.by):
            names = [group.name for group in cut if group.by == by]
            found.append(
                f"the output does not show these units, so they were checked by {by}: {and_more(names, NAMED)}"
            )
        for why in dict.fromkeys(group.unchecked for group in cut if group.unchecked):
            names = [group.name for group in cut if group.unchecked == why]
            found.append(f"not checked against units at zero: {and_more(names, NAMED)}: {why}")
        more = [g for g in cut if self.ratio is not None and g.cut / g.units > self.ratio + MORE]
        if more:
            told = [f"{g.cut:,} of {g.units:,} {'heads' if g.heads else 'units'} of {g.name}" for g in more]
            found.append(
                f"whole units only: more goes than a ratio of {self.ratio:g} asks for, {and_more(told, NAMED)}"
            )
        return found

    def charts(self) -> dict[str, Chart]:
        found = {"groups": group_chart(self.groups), "heads": heads_chart(self.heads)}
        return {name: chart for name, chart in found.items() if chart is not None}


def _way(problem: str) -> tuple[str, str]:
    """What came of cutting a group that cannot be cut, in a word."""
    return next((way for why, way in WAYS.items() if why in problem), FAILS)


def analyze_pruning(
    model: torch.nn.Module,
    *args: Any,
    kwargs: Mapping[str, Any] | None = None,
    ratio: float = 0.3,
    each: bool = True,
    hardware: str | None = None,
) -> Pruning:
    """Find the units (channels, features, heads) that belong together, cut the lightest, and run what is left.

    ``args`` and ``kwargs`` are a real batch, from which the coupling is found and on which the smaller model is tried.
    ``ratio`` is the share of each group that goes, by weight. With ``each``, every group is first cut alone: one
    whose model does not run any more, or does not give what the whole model gives with the same units at zero, is left
    whole, with the reason. Heads are always tried: where a module keeps their number (``num_heads``), it is changed in
    the smaller model if that makes it right. Where the output shows nothing of some units (a last layer that begins at
    zero), they are checked in a copy with random numbers in its weights. ``hardware`` names a device for which the time
    is predicted as well. The model itself is not changed; the smaller one is in ``model`` of what comes back.

    >>> import torch, torch_vis as tv
    >>> model = torch.nn.Sequential(torch.nn.Linear(8, 16), torch.nn.ReLU(), torch.nn.Linear(16, 4))
    >>> found = tv.analyze_pruning(model, torch.ones(2, 8), ratio=0.5)
    >>> found.model, found.after["parameters"]
    (Sequential(
      (0): Linear(in_features=8, out_features=8, bias=True)
      (1): ReLU()
      (2): Linear(in_features=8, out_features=4, bias=True)
    ), 108)
    """
    if not isinstance(model, torch.nn.Module):
        raise UsageError(f"analyze_pruning() takes a module, not {type(model).__name__}")
    if isinstance(ratio, bool) or not isinstance(ratio, (int, float)) or not 0 < ratio < 1:
        raise UsageError(f"ratio is the share of each group that goes, between 0 and 1, not {ratio!r}")
    with torch.random.fork_rng():
        bench = Bench(model, args, dict(kwargs or {}), hardware)
        groups = bench.coupling.groups
        if not groups:
            raise UsageError("nothing in this model can be cut: it has no parameters")
        free = [group for group in groups if not group.locked and len(group.units) > 1]
        trials = []
        for group in progress(free, "cutting"):
            units = bench.lightest(group, ratio)
            tried = bench.cut_group(group, units) if each or group.heads else Trial(None, None, None, (), "")
            trials.append((group, units, tried))
        chosen = [place for place, (_, _, tried) in enumerate(trials) if not tried.problem]
        parts = [(trials[place][0], trials[place][1], trials[place][2].changes) for place in chosen]
        whole, refused = bench.cut_together(parts) if each else (bench.cut_all(parts), {})
        if whole.model is None:
            more = "" if each else ", or each=True, which leaves whole what cannot be cut"
            raise UsageError(f"with all groups cut: {whole.problem}; try a lower ratio{more}")
        for place, problem in refused.items():
            group, units, tried = trials[chosen[place]]
            trials[chosen[place]] = group, units, tried._replace(problem=problem)
        cuts = [_cut(bench, *trial) for trial in trials]
        heads = [head for trial in trials if trial[0].heads for head in _heads(bench, *trial)]
        kept = [part for place, part in enumerate(parts) if place not in refused]
        settings = correct_settings(whole.model, bench.resized(kept), bench.like(whole.model))
        after, then = taken(whole.model, bench.args, bench.kwargs, bench.hardware)
        before, now = taken(bench.model, bench.args, bench.kwargs, bench.hardware)
    locked = [group for group in groups if group.locked]
    return Pruning(
        *(cuts, locked, whole.model, before, after, whole.output, heads, ratio),
        is_zero=bench.is_zero,
        waits_for=(now, then),
        settings=settings,
        left_out=bench.left_out,
        outputs=len(bench.own.output),
    )


def _cut(bench: Bench, group: Group, units: Any, tried: Trial) -> Cut:
    weights = bench.weights(group)
    share = float(weights[np.isin(group.units, units)].sum() / weights.sum()) if weights.sum() else 0.0
    return Cut(
        group.named(units) if group.heads else _rows(bench, group),
        group.places,
        len(group.units),
        len(units),
        share,
        bench.parameters_of(group, units),
        tried.output,
        tried.problem,
        bool(group.heads),
        tried.error,
        tried.changes,
        _unchecked(bench, group, tried),
        tried.by,
    )


def _unchecked(bench: Bench, group: Group, tried: Trial) -> str:
    if tried.error is not None or tried.problem:
        return ""
    if tried.model is None:
        return UNTRIED
    if tried.hidden:
        return HIDDEN
    if bench.unsteady:
        return bench.unsteady
    if any(name in op for op in group.mixed for name in NORMALISES):
        return TOGETHER
    by = " and ".join(group.mixed)
    return f"units are taken together by {by}, and one whose weights are all zero still counts there"


def _heads(bench: Bench, group: Group, units: Any, tried: Trial) -> list[Head]:
    gone = () if tried.problem else units
    weights = bench.weights(group)
    total = weights.sum() or 1.0
    return [
        Head(
            group.named([unit]),
            float(weight / total),
            bench.parameters_of(group, np.array([unit])),
            unit in gone,
            tried.problem,
        )
        for unit, weight in zip(group.units.tolist(), weights)
    ]


def _rows(bench: Bench, group: Group) -> str:
    """The first parameter that makes the units: by rows rather than columns, a matrix rather than a bias or a norm."""
    made = [place for place in group.places if not bench.coupling.reads(place)] or list(group.places[:1])
    is_matrix = [bench.tensors[name].dim() > 1 for name, _ in made]
    return max(zip(is_matrix, (number == 0 for _, number in made), made), key=lambda row: row[:2])[2][0]
