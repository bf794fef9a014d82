"""What cutting does, drawn: a row for each group, and one for each attention head."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from torch_vis.graph.text import count
from torch_vis.views.charts.chart import COLORS, QUIET, Axis, Chart, Series

if TYPE_CHECKING:
    from torch_vis.analysis.advice.pruning.report import Cut, Head

ROWS = 40  # groups that a chart names one by one


def group_chart(groups: Sequence[Cut]) -> Chart | None:
    """A row for each group, of many for those that matter most: how far the output moves, or what goes."""
    cut = [group for group in groups if not group.problem]
    if not cut:
        return None
    tried = [group for group in cut if group.output is not None]
    if not tried:  # cut without trying each alone
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
