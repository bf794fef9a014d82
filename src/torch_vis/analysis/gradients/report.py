"""How gradients flow: norms layer by layer, where they vanish or explode, dead units, where NaN first appears."""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Mapping, Sequence
from functools import cached_property
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from torch_vis.analysis.gradients.accumulation import accumulation_note, filled_before
from torch_vis.analysis.gradients.nan_origin import Origins, first_with, origins
from torch_vis.analysis.gradients.tensor_stats import (
    InactiveUnits,
    contents_and_norms,
    frozen_parameters,
    outside_faults,
    parameter_norms,
)
from torch_vis.analysis.report import Charts, Report
from torch_vis.errors import UsageError
from torch_vis.graph.call import short_name
from torch_vis.graph.graph import Graph, Node
from torch_vis.graph.lifetimes import gradients
from torch_vis.graph.metrics import Column
from torch_vis.graph.schema import Phase, Role
from torch_vis.graph.text import and_more
from torch_vis.replay.held_run import HeldRun
from torch_vis.views.charts.chart import QUIET, Axis, Chart, Series
from torch_vis.views.charts.labels import ALL, NUMBER, OTHERS, common_path, families
from torch_vis.views.text.table_layout import Field, Listing

if TYPE_CHECKING:
    pass


NEAR = 10.0  # times from such a bound: it is drawn
ALARM = {"vanishing": "#7a1fa2", "exploding": "#b3001b"}  # no colours of lines
KINDS = 12  # lines of a chart
SHOWN = 20  # dead units that a table names
DETACHED = "the loss does not depend on it"
STUCK_NOTE = (
    "dead units are zero, and saturated ones the same other number, for everything in this one batch, and let no "
    "gradient through; another batch may wake them"
)
GUIDES = 4  # bounds that a chart has room for


class Numbers(tuple[int, ...]):
    """Numbers of which a table shows the first; data has all."""

    def __str__(self) -> str:
        return and_more(self, SHOWN)


class Rectifier(NamedTuple):
    """An activation that can become flat: how many channels it gives, and how many and which are dead or saturated.

    Stuck units give the same for everything that came in, and let no gradient through: dead ones zero, saturated ones
    another number, as the upper bound of ReLU6.
    """

    path: str
    node: int
    units: int
    dead: int
    operator: str
    line: str | None
    dead_units: Numbers
    saturated: int = 0
    saturated_units: Numbers = Numbers()


class GradientsReport(Report):
    """Gradients layer by layer, in the order in which the layers ran forward.

    >>> import torch, torch_vis as tv
    >>> model = torch.nn.Sequential(torch.nn.Linear(3, 4), torch.nn.ReLU(), torch.nn.Linear(4, 1))
    >>> flow = tv.trace(model, torch.ones(2, 3), backward=True).gradients()
    >>> [layer.path for layer in flow.layers], flow.nan_origin
    (['0', '2'], None)
    """

    title = "Gradient flow"

    def __init__(self, run: HeldRun) -> None:
        graph, kept = run.graph, run.kept
        # Paths of modules that the run did not use, with the number of their parameters.
        unused: Mapping[str, int] | None = run.meta.get("unused_parameters")
        if not (graph.node_phase == Phase.BACKWARD).any():
            raise UsageError(
                "this trace has no backward pass: trace with backward=True or loss=…; where NaN and infinity appear in "
                "forward, t.health() says as it is"
            )
        self.graph = graph
        """The graph of the run."""
        self._complete = gradients(graph)
        self.accumulated = filled_before(graph, kept)
        """Parameters whose ``.grad`` was not empty before the run, by name."""
        own = {name: row.own for name, row in self.accumulated.items() if row.own is not None}
        self._gradients = {**self._complete, **own}
        self.columns: dict[str, Column]
        """What was found of every operation, for ``t.with_metrics(report)``."""
        values = {*self._complete.values(), *own.values()}
        self.columns, self._norms, self._stuck = contents_and_norms(graph, kept, values)
        self.columns["grad_norm"] = self._column()
        self._weights = parameter_norms(graph, kept)
        self._unused = dict(unused or {})
        self._frozen = frozen_parameters(kept)
        self._outside = outside_faults(graph, kept)

    def _column(self) -> Column:
        """The norm of each gradient alone: one operation makes several, and often more than gradients."""
        values, known = np.zeros(len(self.graph.value_type)), np.zeros(len(self.graph.value_type), dtype=bool)
        for value, norm in self._norms.items():
            values[value], known[value] = norm, True
        return Column("grad_norm", values, along="value", known=known)

    @cached_property
    def layers(self) -> list[Layer]:
        """A row for each module that has parameters, also where they have no gradient.

        A module with several matrices, as an LSTM of several layers, has a row for each of its parameters.
        """
        graph = self.graph
        by_layer = parameters_by_layer({name: self._shapes[name] for name in self._weights})
        reads, rows = first_reads(graph), []
        for path in sorted(
            by_layer, key=lambda path: min(reads.get(name, len(graph)) for name in by_layer[path])
        ):
            given = [name for name in by_layer[path] if name in self._gradients]
            parts = [(self._gradients[name], self._weights[name]) for name in given]
            norms = [self._norms.get(value) for value, _ in parts]
            elements = sum(graph.values[value].type.numel for value, _ in parts)
            whole = sum(math.prod(self._shapes[name]) for name in by_layer[path])
            weights = [weight for _, weight in parts] or [self._weights[name] for name in by_layer[path]]
            reason = "" if given else "frozen" if self._frozen.issuperset(by_layer[path]) else DETACHED
            rows.append(_layer(path, whole, (norms, elements), weights, reason))
        ran = {module.path for module in graph.modules}
        modules = {name.rpartition(".")[0] for name in self._weights}
        for path, elements in self._unused.items():
            if path not in modules:
                reason = "its parameters were not used" if path in ran else "never ran"
                rows.append(Layer(path, elements, None, None, None, None, "", reason))
        return judged(rows, places_of(graph, by_layer))

    @cached_property
    def _shapes(self) -> dict[str, tuple[int, ...]]:
        """The shape of each parameter that the run was given."""
        graph = self.graph
        outside = (graph.value_role == Role.PARAMETER) & (graph.value_producer < 0)
        values = (graph.values[value] for value in np.flatnonzero(outside).tolist())
        return {value.name or "": value.type.shape for value in values}

    @cached_property
    def freed(self) -> list[str]:
        """The parameters whose gradient the run itself freed or zeroed, as ``zero_grad()`` does."""
        kept = {r.value.index for r in self.graph.outcomes if r.kind == "gradient"}
        return [name for name, value in self._complete.items() if value not in kept]

    @cached_property
    def rectifiers(self) -> list[Rectifier]:
        """Operations that cut to zero or become flat, those with most dead or saturated units first."""
        return stuck_rows(self.graph, self._stuck)

    @cached_property
    def nan_origin(self) -> Node | None:
        """The first operation that made NaN out of inputs without NaN; None where there is no NaN."""
        return first_with(self.graph, self.columns["nans"], self.nan_inputs)

    @cached_property
    def nan_inputs(self) -> list[str]:
        """The inputs and parameters that had NaN before the run."""
        return [name for name, (nans, _) in self._outside.items() if nans]

    @cached_property
    def _infinities(self) -> Origins:
        """What the infinities came of that NaN was made of or, if none was, that gradients have."""
        nodes = [] if self.nan_origin is None else [self.nan_origin.index]
        if self.nan_origin is None:
            wrong = [value for value, norm in self._norms.items() if math.isinf(norm)]
            nodes = [producer for value in wrong if (producer := int(self.graph.value_producer[value])) >= 0]
        outside = [name for name, (_, infs) in self._outside.items() if infs]
        return origins(self.graph, self.columns["infs"], outside, nodes)

    @property
    def infinite(self) -> Node | None:
        """The first operation that made infinity out of finite inputs, of which NaN, or infinite gradients, came."""
        first, nan = self._infinities.node, self.nan_origin
        return None if first is None or (nan is not None and first.index == nan.index) else first

    @property
    def infinite_inputs(self) -> list[str]:
        """The inputs and parameters with infinities before the run, of which NaN, or infinite gradients, came."""
        return self._infinities.inputs

    @property
    def gradient_norm(self) -> float | None:
        """The norm over the gradients of all parameters; None without gradients."""
        norms = [row.gradient_norm for row in self.layers if row.gradient_norm is not None]
        return float(np.sqrt(np.square(norms).sum())) if norms else None

    @property
    def dead_units(self) -> int:
        """How many units never fire."""
        return sum(row.dead for row in self.rectifiers)

    @property
    def saturated_units(self) -> int:
        """How many units never change and let no gradient through."""
        return sum(row.saturated for row in self.rectifiers)

    def facts(self) -> dict[str, str]:
        rows, norm = self.layers, self.gradient_norm
        total = "not known" if norm is None else f"{norm:.4g} over all parameters"
        wrong: dict[str, list[str]] = {}
        for row in rows:
            if row.verdict:
                text = f"{row.path or '(root)'} ({row.reason})" if row.reason else row.path or "(root)"
                wrong.setdefault(row.verdict, []).append(text)
        result = {"layers": f"{len(rows):,}", "gradient norm": total}
        if rows and not wrong:
            result["verdict"] = "no layer vanishes, explodes, or has no gradient"
        for verdict, paths in wrong.items():
            result[verdict] = and_more(paths)
        units = sum(row.units for row in self.rectifiers)
        if self.rectifiers:
            result["dead units"] = f"{self.dead_units:,} of {units:,}"
        if self.saturated_units:
            result["saturated units"] = (
                f"{self.saturated_units:,} of {units:,}: never change, and let no gradient through"
            )
        if self.nan_inputs:
            result["NaN before the run"] = f"in {', '.join(self.nan_inputs[:5])}"
        if self.nan_origin is not None:
            result["first NaN"] = place(self.nan_origin)
        ways = [f"was in {', '.join(self.infinite_inputs[:5])}"] if self.infinite_inputs else []
        ways += [f"first appeared {place(self.infinite)}"] if self.infinite is not None else []
        if ways and self.nan_origin is not None:
            result["cause of NaN"] = f"infinity, which {' and '.join(ways)}"
        elif ways:
            result["infinity"] = " and ".join(ways)
        return result

    def listings(self) -> list[Listing]:
        figure = "{:.3g}".format
        layers = (
            Field("path", "layer"),
            Field("elements", "parameters", "{:,}".format),
            Field("gradient_norm", "gradient norm", figure),
            Field("weight_norm", "weight norm", figure),
            Field("ratio", "gradient/weight", figure),
            Field("rms", "gradient rms", figure),
            Field("usual_rms", "usual rms", figure),
            Field("verdict", "verdict"),
            Field("reason", "why"),
        )
        rows = [
            tuple(getattr(row._replace(path=row.path or "(root)"), field.name) for field in layers)
            for row in self.layers
        ]
        return [
            Listing("Gradients by layer", layers, rows, most=60, heading="Gradients by layer, first to last"),
            stuck_listing(self.rectifiers),
        ]

    def notes(self) -> list[str]:
        result = [
            f"vanishing, exploding: {FAR:,.0f} times below or above the usual rms, or {BEYOND:,.0f} times the weights. "
            "The usual rms is the median of the last quarter of the layers with the same path but for numbers; without "
            "such layers, that of all matrices, vectors or look-ups; for layers judged with the one they feed, of all"
        ]
        if all(row.reason for row in self.layers):
            result.append("no parameter was given a gradient while this run was recorded")
        if self.accumulated:
            result.append(accumulation_note(self.accumulated))
        if self.freed:
            result.append(
                f"{len(self.freed):,} gradients were freed or zeroed before the end of the run: shown as they were "
                "last, when they were complete"
            )
        if self.rectifiers:
            result.append(STUCK_NOTE)
        return result

    def charts(self) -> Charts:
        """Gradients along the layers; of a deep stack of blocks, a line for each kind of layer in them."""
        shown = [index for index, row in enumerate(self.layers) if row.rms and np.isfinite(row.rms)]
        return Charts(layers=lambda: self._layers_chart(shown)) if shown else Charts()

    def _layers_chart(self, shown: list[int]) -> Chart:
        names = self._labels()
        kinds = families(names, most=KINDS)
        groups: dict[str, list[int]] = {}
        for index in shown:
            groups.setdefault("gradient" if kinds is None else kinds[names[index]], []).append(index)
        series = []
        for kind, indices in sorted(groups.items(), key=lambda item: item[0] == OTHERS):
            heights = [self.layers[index].rms or 0.0 for index in indices]
            text = [names[index] for index in indices]
            loose = kind == OTHERS or (kinds is None and len(names) > ALL)
            color = QUIET if kind == OTHERS else ""
            series.append(Series(kind, indices, heights, text, color=color, loose=loose))
        # over the lines, so that they are seen
        for verdict in ("vanishing", "exploding"):
            beyond = [index for index in shown if self.layers[index].verdict == verdict]
            if beyond:
                heights = [self.layers[index].rms or 0.0 for index in beyond]
                text = [names[index] for index in beyond]
                series.append(Series(verdict, beyond, heights, text, color=ALARM[verdict], loose=True))
        inside = common_path(names).rstrip(".")
        along = Axis(f"layer of {inside}, first to last" if inside else "layer, first to last", names=names)
        title = "Gradient flow: how large the elements of each layer's gradient are"
        height = Axis("root mean square of the gradient", log=True)
        return Chart("lines", title, along, height, series, self._bounds(shown))

    def _bounds(self, shown: list[int]) -> list[Series]:
        """Lines from which layers vanish or explode, along those that they hold for.

        One that no layer comes near would only flatten the rest.
        """
        groups: dict[tuple[str, float], list[int]] = {}
        for index in shown:
            row = self.layers[index]
            if row.usual_rms is not None:
                groups.setdefault((row.like, row.usual_rms), []).append(index)
        result: list[tuple[float, Series]] = []
        for (like, usual), members in groups.items():
            heights = [self.layers[index].rms or 0.0 for index in members]
            ends = (
                [-0.6, len(self.layers) - 0.4] if len(groups) == 1 else [members[0] - 0.4, members[-1] + 0.4]
            )
            of = "" if len(groups) == 1 else f" ({like})"
            low, high = usual / FAR, usual * FAR
            for word, bound, near in (
                ("vanishing below", low, low / min(heights)),
                ("exploding above", high, max(heights) / high),
            ):
                if near > 1 / NEAR:
                    color = ALARM[word.partition(" ")[0]]
                    result.append((near, Series(word + of, ends, [bound] * 2, color=color)))
        return [line for _, line in sorted(result, key=lambda pair: -pair[0])[:GUIDES]]

    def _labels(self) -> list[str]:
        """The label of each layer; one that has only a number is shown with its class."""
        types = {module.path: module.type for module in self.graph.modules if module.kind == "module"}
        return [
            f"{row.path} {types.get(row.path, '')}".strip() if row.path.isdigit() else row.path or "(root)"
            for row in self.layers
        ]


def stuck_rows(graph: Graph, stuck: Mapping[int, InactiveUnits]) -> list[Rectifier]:
    """The activations of which it is known how many units are dead or saturated, those with most first."""
    rows = []
    for number, result in stuck.items():
        node = graph.nodes[number]
        site, dead, saturated = node.user_line, Numbers(result.dead), Numbers(result.saturated)
        where = (node.path, number, result.units, len(dead), node.name, None if site is None else site.short)
        rows.append(Rectifier(*where, dead, len(saturated), saturated))
    return sorted(rows, key=lambda row: -(row.dead + row.saturated) / max(1, row.units))


def stuck_listing(rows: Sequence[Rectifier]) -> Listing:
    """The activations that have dead or saturated units, as a table."""
    fields = (
        Field("path", "module"),
        Field("node", "number", str),
        Field("units", "units", "{:,}".format),
        Field("dead", "dead", "{:,}".format),
        Field("operator", "operator"),
        Field("line", "source line"),
        Field("dead_units", "which are dead"),
        Field("saturated", "saturated", "{:,}".format, rare=True),
        Field("saturated_units", "which are saturated"),
    )
    stuck = [
        # no numbers are no text
        (row.path or "(root)", *(item if item != () else "" for item in row[1:]))
        for row in rows
        if row.dead or row.saturated
    ]
    return Listing("Units that are stuck for the whole batch", fields, stuck)


def place(node: Node) -> str:
    """Where an operation is, in words."""
    where = f" in {node.path}" if node.path else ""
    of = node.link if node.phase == "backward" else None
    phase = node.phase if of is None else f"backward of {of.name}"
    site = node.user_line
    return f"at {node.name} ({phase}){where}" + (f", {site.short}" if site else "")


def _layer(
    path: str,
    elements: int,
    gradients: tuple[list[float | None], int],
    weights: list[float],
    reason: str,
) -> Layer:
    """``gradients`` are their norms and the number of their elements."""
    norms, given = gradients
    gradient = _together(norms) if norms else None
    weight = _together([*weights])
    ratio = gradient / weight if gradient is not None and weight else None
    rms = gradient / given**0.5 if gradient is not None and given else None
    return Layer(path, elements, gradient, weight, ratio, rms, "", reason)


def _together(norms: list[float | None]) -> float | None:
    known = [norm for norm in norms if norm is not None]
    return float(np.sqrt(np.square(known).sum())) if len(known) == len(norms) else None


FAR = 1e3  # times under or over what a layer's like next to the loss have
BEYOND = 1e6  # times a layer's own weights
NEXT = 0.25  # the share of the layers that counts as next to the loss
ALL_LAYERS = "all layers"
DIGITS = re.compile(r"\d+")


class Layer(NamedTuple):
    """The parameters of one module: the norms of their gradients and of themselves, and what is wrong, if anything.

    A module with several matrices (an LSTM) has a layer for each of its parameters. ``rms`` is the root of the mean
    square of the gradient's elements, which does not grow with the size of a layer. ``elements`` counts all parameters
    that the run used, also those without a gradient; ``reason`` is why a layer has none. Of a layer that never ran,
    nothing else is known. ``like`` are the layers that it is measured by, and ``usual_rms`` what they have next to the
    loss.
    """

    path: str
    elements: int
    gradient_norm: float | None
    weight_norm: float | None
    ratio: float | None
    rms: float | None
    verdict: str
    reason: str = ""
    like: str = ""
    usual_rms: float | None = None


class Place(NamedTuple):
    """What a layer is and where it stands: ``kind`` of parameters, and the storages that its module reads."""

    kind: str
    reads: frozenset[int]


def parameters_by_layer(shapes: Mapping[str, Sequence[int]]) -> dict[str, list[str]]:
    """The parameters of each layer, by path: those of a module or, if it has several matrices, each alone.

    >>> parameters_by_layer({"fc.weight": (4, 3), "fc.bias": (4,), "rnn.w0": (4, 4), "rnn.w1": (4, 4)})
    {'fc': ['fc.weight', 'fc.bias'], 'rnn.w0': ['rnn.w0'], 'rnn.w1': ['rnn.w1']}
    """
    modules: dict[str, list[str]] = {}
    for name in shapes:
        modules.setdefault(name.rpartition(".")[0], []).append(name)
    result: dict[str, list[str]] = {}
    for path, names in modules.items():
        if sum(_is_matrix(shapes[name]) for name in names) > 1:
            result.update({name: [name] for name in names})
        else:
            result[path] = names
    return result


def first_reads(graph: Graph) -> dict[str, int]:
    """The first operation that reads each parameter, also where another module than its own does."""
    given = graph.value_producer[graph.in_value] < 0
    result: dict[str, int] = {}
    for row in np.flatnonzero(given & (graph.value_role[graph.in_value] == Role.PARAMETER)).tolist():
        result.setdefault(graph.values[int(graph.in_value[row])].name or "", int(graph.in_node[row]))
    return result


def places_of(graph: Graph, layers: Mapping[str, Sequence[str]]) -> dict[str, Place]:
    """What each layer is, and what its module reads."""
    outside = np.flatnonzero((graph.value_role == Role.PARAMETER) & (graph.value_producer < 0)).tolist()
    values = {graph.values[value].name or "": value for value in outside}
    looked_up = {number for number, call in enumerate(graph.calls) if "embedding" in short_name(call.op)}
    read: dict[str, set[int]] = {}
    rows: set[int] = set()
    forward = graph.node_phase[graph.in_node] == Phase.FORWARD
    for node, value in zip(graph.in_node[forward].tolist(), graph.in_value[forward].tolist()):
        if graph.value_role[value] == Role.PARAMETER and graph.value_producer[value] < 0:
            if int(graph.node_call[node]) in looked_up:
                rows.add(value)
        else:
            path = graph.scope_paths[graph.node_scope[node]]
            read.setdefault(path, set()).add(int(graph.value_storage[value]))
    result = {}
    for path, names in layers.items():
        module = names[0].rpartition(".")[0]
        own = [values[name] for name in names if name in values]
        matrix = any(_is_matrix(graph.types[graph.value_type[value]].shape) for value in own)
        kind = "look-ups" if rows.intersection(own) else "matrices" if matrix else "vectors"
        result[path] = Place(kind, frozenset(read.get(module, ())))
    return result


def judged(rows: Sequence[Layer], where: Mapping[str, Place]) -> list[Layer]:
    """The layers, in the order in which they ran, with the norm they are measured by and the verdict.

    One that has no namesakes is not at fault as long as the gradient comes through to where it stands: to others of
    its kind that ran before it or read what it reads. And those that are alike, but far from all others, go by what
    they feed: an embedding vanishes with the layers above it, an encoder with its decoder.
    """
    kinds = [where[row.path].kind if row.path in where else "" for row in rows]
    names = _namesakes(rows, kinds)
    by_name, by_kind = _next_to_loss(rows, names), _next_to_loss(rows, kinds)
    off = [_deviation(row, by_kind.get(kind)) for row, kind in zip(rows, kinds)]
    sound = [
        (row, kind) for row, kind, deviation in zip(rows, kinds, off) if _is_sound(row) and not deviation
    ]
    read = {(kind, storage) for row, kind in sound for storage in where[row.path].reads}
    first = {kind: row for row, kind in reversed(sound)}
    result: list[Layer] = []
    # the kinds that have had a sound layer
    reached: set[str] = set()
    for row, name, kind, deviation in zip(rows, names, kinds, off):
        usual = by_name.get(name) if name else by_kind.get(kind)
        if name:
            deviation = _deviation(row, usual)
        elif deviation and (
            kind in reached or any((kind, storage) in read for storage in where[row.path].reads)
        ):
            deviation = ""
        if first.get(kind) is row:
            reached.add(kind)
        if row.rms is not None:
            row = row._replace(like=name or kind, usual_rms=usual)
        result.append(row._replace(verdict=_own_verdict(row) or deviation))
    return _with_what_they_feed(result, _next_to_loss(rows, [""] * len(rows)).get(""))


def _namesakes(rows: Sequence[Layer], kinds: Sequence[str]) -> list[str]:
    """What layers at other depths are called like each one: numbers of blocks left open, or any numbers; or nothing."""
    blocks = [NUMBER.sub("*", row.path) for row in rows]
    digits = [DIGITS.sub("*", row.path) for row in rows]
    counts = Counter(
        (pattern, kind)
        for row, kind, *patterns in zip(rows, kinds, blocks, digits)
        if _is_sound(row)
        for pattern in dict.fromkeys(patterns)
    )
    return [
        next((pattern for pattern in patterns if counts[pattern, kind] > 1), "")
        for kind, *patterns in zip(kinds, blocks, digits)
    ]


def _next_to_loss(rows: Sequence[Layer], groups: Sequence[str]) -> dict[str, float]:
    """By group, the median of what its layers next to the loss have."""
    sound: dict[str, list[float]] = {}
    for row, group in zip(rows, groups):
        if row.rms is not None and _is_sound(row):
            sound.setdefault(group, []).append(row.rms)
    return {
        group: float(np.median(result[-max(1, round(len(result) * NEXT)) :]))
        for group, result in sound.items()
    }


def _with_what_they_feed(layers: list[Layer], usual: float | None) -> list[Layer]:
    """The same, with the verdict on the next layer that is not its like on those that are as far from all others."""
    # the layer after each, and the next one that is not like that: like and verdict
    nearest = other = ("", "")
    for number in reversed(range(len(layers))):
        row = layers[number]
        if row.rms is None:
            continue
        after = nearest[1] if nearest[0] != row.like else other[1]
        if not row.verdict and after and _deviation(row, usual) == after:
            layers[number] = row._replace(verdict=after, like=ALL_LAYERS, usual_rms=usual)
        other = nearest if nearest[0] != row.like else other
        nearest = row.like, layers[number].verdict
    return layers


def _is_sound(row: Layer) -> bool:
    return bool(row.rms) and bool(np.isfinite(row.rms or 0.0))


def _own_verdict(row: Layer) -> str:
    """What a layer's own figures say."""
    if row.reason:
        return "no gradient"
    if row.rms is None:
        return ""
    if row.rms == 0:
        return "zero"
    if np.isnan(row.rms):
        return "NaN"
    return "exploding" if np.isinf(row.rms) or (row.ratio or 0.0) > BEYOND else ""


def _deviation(row: Layer, usual: float | None) -> str:
    """How a layer differs from what is usual, if it does."""
    if usual is None or row.rms is None or not _is_sound(row):
        return ""
    return "exploding" if row.rms > usual * FAR else "vanishing" if row.rms < usual / FAR else ""


def _is_matrix(shape: Sequence[int]) -> bool:
    return sum(size > 1 for size in shape) > 1
