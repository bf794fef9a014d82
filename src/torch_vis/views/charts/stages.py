"""Where forward, backward and optimizer begin along a run, as marks on a chart."""

from __future__ import annotations

import numpy as np

from torch_vis.graph import Graph
from torch_vis.graph.schema import Phase
from torch_vis.views.charts.chart import Chart, scale

MOST = 12  # a run that goes to and fro more often has no marks
LETTER = 0.011  # of the width of a chart that is 700 pixels wide


def stages_of(graph: Graph) -> list[tuple[float, str]]:
    """Where each phase of a run begins, along its operations; nothing for a run of a single one.

    >>> import torch, torch_vis as tv
    >>> stages_of(tv.trace(torch.nn.Linear(2, 1), torch.ones(1, 2), backward=True).graph)
    [(0.0, 'forward'), (3.0, 'backward')]
    """
    phases = graph.node_phase
    starts = np.flatnonzero(np.diff(phases, prepend=-1) != 0).tolist() if len(phases) else []
    if not 1 < len(starts) <= MOST:
        return []
    return [(float(start), Phase(int(phases[start])).name.lower()) for start in starts]


def stages_shown(chart: Chart) -> list[tuple[float, str]]:
    """The stages of a chart; one that is too short for its name has none."""
    if not chart.stages:
        return []
    across = scale(chart, "x")
    ends = [place for place, _ in chart.stages[1:]] + [across.high]
    return [
        (place, name if (end - place) / (across.high - across.low) > LETTER * (len(name) + 1) else "")
        for (place, name), end in zip(chart.stages, ends)
    ]
