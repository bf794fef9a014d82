"""Colours and facts: what a box's colour says, the legend that explains it, and every figure that a hover shows."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np

from torch_vis.errors import UsageError, no_match
from torch_vis.graph import Metrics
from torch_vis.graph.call import short_name
from torch_vis.graph.metrics import METRIC_INFO
from torch_vis.graph.text import count, duration, many, size
from torch_vis.ops.families import FIGURE_FAMILIES, OTHER_FIGURE, figure_family
from torch_vis.views.figure.diagram import Diagram
from torch_vis.views.figure.tree import FigureItem

MODULE = "module"
FILLS = {
    "attention": "#f3a59a",
    "convolution": "#b9b0e6",
    "recurrent": "#d7a9d6",
    "matrix product": "#9fcbe8",
    "embedding": "#e0c3ee",
    "normalisation": "#f7dd85",
    "pooling": "#8fd5c8",
    "loss": "#ef8f8a",
    "activation": "#b5dc9f",
    "random": "#f4c3da",
    "optimizer": "#c9d6a3",
    "reduction": "#f6c794",
    "memory": "#e9e6e1",
    "compiled": "#c9c9c9",
    OTHER_FIGURE: "#d6e0ea",
    MODULE: "#fbfbfc",
}
HEAT = ("#fff5eb", "#fdd9b5", "#fdae6b", "#f16913", "#b63b02", "#6e2403")
UNKNOWN = "#ffffff"
WIRE, FRAME, STROKE, INK, FAINT = "#8a94a3", "#b9c1cc", "#7d8896", "#1c2430", "#5f6b7a"
EDGE = "#ffffff"  # inputs and outputs
HIGHLIGHT = "#d1480f"

MEASURES = {
    "time": ("time_ns", duration),
    "memory": ("alloc_bytes", size),
    "flops": ("flops", count),
    "bytes": ("moved_bytes", size),
}
FACTS = {
    "time": ("time_ns", duration),
    "allocated": ("alloc_bytes", size),
    "FLOPs": ("flops", count),
    "bytes accessed": ("moved_bytes", size),
}


class Measure(NamedTuple):
    """A metric that boxes are coloured by, and how its figures are written."""

    metric: str
    show: Callable[[float], str]


class Paint(NamedTuple):
    """What the colours say of an item: its fill, the figure behind that, and all that a hover shows."""

    fill: str
    amount: float | None
    facts: list[tuple[str, str]]


@dataclass
class Colors:
    """How boxes are coloured: by family of operation, or by how much of a measure they take."""

    drawn: Diagram
    metrics: Metrics
    by: str
    measure: Measure | None = None
    least: float = 0.0
    most: float = 0.0
    used: dict[str, None] = field(default_factory=dict)
    unknown: int = 0

    def paint(self, column: int, item: FigureItem) -> Paint:
        """The colour of a closed item and its facts; the legend explains the colours given so far."""
        fill, amount = FILLS[MODULE], None
        if item.fill:
            fill = item.fill
        elif item.kind in ("input", "output"):
            fill = EDGE
        elif self.measure is not None:
            amount = self.total(self.measure.metric, column, item)
            self.unknown += amount is None
            fill = UNKNOWN if amount is None else self.heat(amount)
        elif self.by != "none":
            family = self.family(column, item)
            self.used[family] = None
            fill = FILLS[family]
        return Paint(fill, amount, self.facts(column, item))

    @property
    def note(self) -> str:
        """What a colour scale measures, by the name that it has on every surface."""
        assert self.measure is not None
        info = METRIC_INFO.get(self.measure.metric)
        return f"{info.label if info else self.by} of the operations in a box"

    def legend(self) -> list[tuple[str, str]]:
        """Names and fills of the families in the picture, in the order of the table."""
        return [(name, fill) for name, fill in FILLS.items() if name in self.used]

    def ticks(self) -> list[tuple[float, str]]:
        """Shares of the scale and what they stand for."""
        assert self.measure is not None
        show, span = self.measure.show, self.most - self.least
        return [(share, show(self.least + span * share)) for share in (0.0, 0.25, 0.5, 0.75, 1.0)]

    def heat(self, amount: float) -> str:
        """The colour of an amount on the scale from nothing, or the least, to the most that a box takes."""
        span = self.most - self.least
        return mixed(HEAT, (amount - self.least) / span if span else 0.0)

    def family(self, column: int, item: FigureItem) -> str:
        """The family of an operation, or of the weightiest one in a module that calls no others."""
        graph = self.drawn.graph
        nodes = self.drawn.item_nodes[column][item.number]
        if item.kind == "operation":
            return (
                figure_family(short_name(graph.calls[graph.node_call[nodes[0]]].op))
                if len(nodes)
                else OTHER_FIGURE
            )
        if item.kind == "module" and len(nodes) and _is_whole(graph, item, nodes):
            # an RMSNorm is one, whatever operations it is made of
            named = figure_family(item.type.lower())
            if named not in (OTHER_FIGURE, "memory", "reduction"):
                return named
            names = {short_name(graph.calls[call].op) for call in np.unique(graph.node_call[nodes])}
            families = {figure_family(name) for name in names}
            return next((name for name in FIGURE_FAMILIES if name in families), OTHER_FIGURE)
        return MODULE

    def total(self, metric: str, column: int, item: FigureItem) -> float | None:
        """The sum of a metric over an item's operations; None if nothing is known of it."""
        nodes = self.drawn.item_nodes[column][item.number]
        if metric not in self.metrics or not len(nodes):
            return None
        values, known = self.metrics[metric].values[nodes], self.metrics[metric].known
        if known is not None:
            values = values[known[nodes]]
        if not len(values):
            return None
        info = METRIC_INFO.get(metric)
        return float(values.sum() if info is None or info.is_summed else values.max())

    def facts(self, column: int, item: FigureItem) -> list[tuple[str, str]]:
        """Everything there is to say about an item."""
        graph = self.drawn.graph
        if item.kind in ("input", "output"):
            return [("type", item.type)]
        nodes = self.drawn.item_nodes[column][item.number]
        if not len(nodes):
            return []
        facts: list[tuple[str, str]] = []
        first = graph.nodes[int(nodes[0])]
        if item.kind == "operation":
            facts.append(("operation", first.op))
            facts.append(("call", first.format()))
        elif item.kind == "module":
            facts.append(("module", graph.scope_paths[~int(item.elements[0])] or item.type))
            facts.append(("class", item.type))
        if len(item.elements) > 1 and item.kind != "bundle":
            facts.append(("stands for", f"{len(item.elements)} alike; figures are sums over all of them"))
        if item.kind != "operation" or len(nodes) > 1:
            facts.append(("operations", f"{len(nodes):,}: {_most_common(graph, nodes)}"))
        makes = self._makes(column, item, nodes)
        if makes:
            facts.append(("output", makes))
        for name, (metric, show) in FACTS.items():
            amount = self.total(metric, column, item)
            if amount is not None:
                facts.append((name, show(round(amount)) + self._missing(metric, nodes)))
        if first.site is not None and item.kind == "operation":
            facts.append(("source", first.site.short))
        if first.link is not None:
            facts.append(("gradient of", f"{first.link.name} in {first.link.path or 'the run'}"))
        if first.flags and item.kind == "operation":
            facts.append(("marks", ", ".join(flag for flag in first.flags if flag != "grad_mode")))
        return [(name, text) for name, text in facts if text]

    def _makes(self, column: int, item: FigureItem, nodes: Any) -> str:
        """The types of outputs: all that an operation returns, and of a module those that others read."""
        graph = self.drawn.graph
        if item.kind == "operation":
            rows = range(*graph.output_span(int(nodes[0])))
            values = [int(graph.out_value[row]) for row in rows if graph.out_slot[row] >= 0]
            values = values or [int(graph.first_output[nodes[0]])]
        else:
            values = [self._handed[column].get(item.number, int(graph.first_output[nodes[-1]]))]
        return ", ".join(str(graph.types[graph.value_type[value]]) for value in values[:3] if value >= 0)

    @cached_property
    def _handed(self) -> list[dict[int, int]]:
        """By column and item: of the values that others take from the boxes in it, the last."""
        result = []
        for column in self.drawn.columns:
            position = {number: index for index, number in enumerate(column.handed)}
            # a frame has a smaller number than what is in it
            for item in reversed(column.items):
                if item.number in position and item.parent >= 0:
                    position[item.parent] = max(position[item.number], position.get(item.parent, -1))
            values = list(column.handed.values())
            result.append({number: values[index] for number, index in position.items()})
        return result

    def _missing(self, metric: str, nodes: Any) -> str:
        known = self.metrics[metric].known
        missing = 0 if known is None else int((~known[nodes]).sum())
        return f" ({many(missing, 'operation')} not known)" if missing else ""


def colors(drawn: Diagram, metrics: Metrics, by: str) -> Colors:
    """The colours of a picture; ``by`` is "type", "none", a measure, or a column of the metrics by its name."""
    palette = Colors(drawn, metrics, by, _measure(metrics, by))
    if palette.measure is not None:
        totals = [
            palette.total(palette.measure.metric, number, item) or 0.0
            for number, column in enumerate(drawn.columns)
            for item in column.items
            if item.children is None and not item.hidden
        ]
        palette.most = max(totals, default=0.0)
        palette.least = min(0.0, *totals) if totals else 0.0
    return palette


def _measure(metrics: Metrics, by: str) -> Measure | None:
    if by in ("type", "none"):
        return None
    own = {name: column for name, column in metrics.items() if column.along == "node"}
    if by in MEASURES and by not in own:
        metric, show = MEASURES[by]
        if metric not in metrics:
            raise UsageError(f"this trace has no {metric}, so boxes cannot be coloured by {by}")
        return Measure(metric, lambda amount: show(round(amount)))
    if by not in own:
        raise no_match("colour", by, ["type", "none", *MEASURES, *own])
    info = METRIC_INFO.get(by)
    unit = info.unit if info else {"ns": "ns", "bytes": "B"}.get(by.rpartition("_")[2], "")
    shows = {"ns": duration, "B": size, "FLOP": count, "count": count}
    if unit in shows:
        return Measure(by, lambda amount: shows[unit](round(amount)))
    return Measure(by, lambda amount: f"{amount:,.3g}")


def _is_whole(graph: Any, item: FigureItem, nodes: Any) -> bool:
    """Whether a module calls no other: all its operations are its own."""
    return bool(np.isin(graph.node_scope[nodes], ~item.elements).all())


def _most_common(graph: Any, nodes: Any) -> str:
    calls, counts = np.unique(graph.node_call[nodes], return_counts=True)
    names: Counter[str] = Counter()
    for call, number in zip(calls.tolist(), counts.tolist()):
        names[short_name(graph.calls[call].op)] += number
    shown = [f"{name} {number:,}" if number > 1 else name for name, number in names.most_common(6)]
    return ", ".join(shown) + (" …" if len(names) > 6 else "")


def mixed(stops: tuple[str, ...], share: float) -> str:
    """The colour at a share of a scale.

    >>> mixed(("#000000", "#ffffff"), 0.5)
    '#808080'
    """
    position = min(max(share, 0.0), 1.0) * (len(stops) - 1)
    lower = min(int(position), len(stops) - 2)
    left, right = (_channels(stops[lower + step]) for step in (0, 1))
    return "#" + "".join(f"{round(a + (b - a) * (position - lower)):02x}" for a, b in zip(left, right))


def ink(fill: str) -> str:
    """The colour of letters that can be read on a fill."""
    return "#ffffff" if _brightness(fill) < 130 else INK


def small_ink(fill: str) -> str:
    """The colour of small letters: fainter, where the fill leaves room for it."""
    return FAINT if _brightness(fill) > 190 else ink(fill)


def _brightness(fill: str) -> float:
    red, green, blue = _channels(fill)
    return 0.299 * red + 0.587 * green + 0.114 * blue


def _channels(color: str) -> tuple[int, int, int]:
    return int(color[1:3], 16), int(color[3:5], 16), int(color[5:7], 16)
