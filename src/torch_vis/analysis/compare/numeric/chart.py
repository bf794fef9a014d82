"""The differences of two runs as points along the first: what is news, what reads another tensor, what is handed on."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from torch_vis.analysis.compare.numeric.headline import named
from torch_vis.views.charts.chart import COLORS, Axis, Chart, Series

if TYPE_CHECKING:
    from torch_vis.analysis.compare.numeric.report import Differences

MARKS = 12  # points that are named
HANDED_ON, REWIRED, NEWS = "handed on", "another tensor is read", "news"
INFINITE = "infinite: NaN in one run, or zero in A"
KINDS = {HANDED_ON: COLORS[0], REWIRED: COLORS[1], NEWS: COLORS[3], INFINITE: COLORS[6]}


def chart(found: Differences, shown: list[int]) -> Chart:
    """Some operations of ``a`` that differ, by kind; those that are infinitely far stand at the edge."""
    heights = found.gaps.relative[shown].tolist()
    edge = 10 * max((height for height in heights if math.isfinite(height)), default=0.1)
    kinds: dict[str, list[int]] = {name: [] for name in KINDS}
    for node, height in zip(shown, heights, strict=True):
        kinds[_kind(found, node, height)].append(node)
    series = [_series(found, name, nodes, edge) for name, nodes in kinds.items() if nodes]
    axes = Axis("operation of A, in the order of its run", "count"), Axis("relative difference", log=True)
    return Chart("points", "Numerical differences along the run", *axes, series)


def _kind(found: Differences, node: int, height: float) -> str:
    if not math.isfinite(height):
        return INFINITE
    came_in = found.came_in(found.a.graph.nodes[node])
    return NEWS if came_in.news else REWIRED if came_in.rewired else HANDED_ON


def _series(found: Differences, name: str, nodes: list[int], edge: float) -> Series:
    first = -1 if found.first is None else found.first.a.index
    marked = {row.a.index for row in [*found.born[:MARKS], *found.rewired[:MARKS]]} | {first}
    rows = [found.a.graph.nodes[node] for node in nodes]
    marks = [
        ("first: " if row.index == first else "") + named(row, 40) if row.index in marked else ""
        for row in rows
    ]
    heights = [min(float(found.gaps.relative[node]), edge) for node in nodes]
    return Series(name, nodes, heights, [named(row) for row in rows], marks=marks, color=KINDS[name])
