"""Whether the numbers of a run are sound: ranges, where NaN and infinity first appear, dead and saturated units."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np

from torch_vis.analysis.gradients.nan_origin import first_with, origins
from torch_vis.analysis.gradients.report import STUCK_NOTE, Rectifier, place, stuck_listing, stuck_rows
from torch_vis.analysis.gradients.tensor_stats import InactiveUnits, contents_and_norms, outside_faults
from torch_vis.analysis.report import Charts, Report, most
from torch_vis.errors import TensorsMissing
from torch_vis.graph.graph import Graph, Node
from torch_vis.graph.metrics import Column
from torch_vis.graph.schema import Phase
from torch_vis.graph.text import and_more, many
from torch_vis.graph.types import Array, Bools
from torch_vis.replay.held_run import HeldRun
from torch_vis.views.charts.chart import Axis, Chart, Series
from torch_vis.views.text.table_layout import Field, Listing

COLUMNS = ("norm", "nans", "infs", "units", "dead_units", "saturated_units", "lowest", "highest")
FIGURES = ("lowest", "highest", "norm", "nans", "infs")
GIVEN = ("given_nans", "given_infs")
BARS = 40
NAMED = 5


class OperationHealth(NamedTuple):
    """The numbers that one operation made; ``lowest`` and ``highest`` are of those that are finite."""

    node: int
    operation: str
    path: str
    phase: str
    lowest: float | None
    highest: float | None
    norm: float
    nans: int
    infs: int
    line: str | None


class ModuleHealth(NamedTuple):
    """The numbers that all calls of a module made, with the modules inside, and units of its activations.

    ``lowest`` and ``highest`` are of its forward operations; NaN and infinity are those of backward as well.
    """

    path: str
    type: str
    operations: int
    lowest: float | None
    highest: float | None
    nans: int
    infs: int
    units: int
    dead: int
    saturated: int


class HealthReport(Report):
    """The numbers of a run, forward alone or a whole training step: what is out of range, and where that began.

    ``columns`` goes into files and onto the page by ``t.with_metrics(report)``; a file with them can be asked again.

    >>> import torch, torch_vis as tv
    >>> model = torch.nn.Sequential(torch.nn.Linear(3, 4), torch.nn.ReLU())
    >>> health = tv.trace(model, torch.full((2, 3), float("inf"))).health()
    >>> health.infinite_inputs, health.nan_origin.name
    (['input'], 'addmm')
    """

    title = "Health"

    def __init__(self, run: HeldRun) -> None:
        self.graph = run.graph
        """The graph of the run."""
        self.columns: dict[str, Column]
        """What was found of every operation."""
        self._stuck: dict[int, InactiveUnits] | None = None
        if run.kept is None and all(name in run.metrics for name in (*COLUMNS, *GIVEN)):
            self.columns = {name: run.metrics[name] for name in (*COLUMNS, *GIVEN)}
            return
        if run.kept is None and not run.meta.get("fake"):
            raise TensorsMissing(
                "this trace holds no tensors, and no columns of health: trace again, and save "
                "t.with_metrics(t.health()) to ask the file later"
            )
        self.columns, _, self._stuck = contents_and_norms(self.graph, run.kept, (), health=True)
        self.columns |= _given(self.graph, outside_faults(self.graph, run.kept))

    # ---------------------------------------------------------------- what it found

    @cached_property
    def operations(self) -> list[OperationHealth]:
        """Every operation that made floating-point numbers, in order."""
        columns: dict[str, Any] = {name: self.columns[name][:] for name in FIGURES}
        rows = []
        for node in np.flatnonzero(self.columns["nans"].known_rows).tolist():
            row = self.graph.nodes[node]
            site = row.user_line
            lowest, highest, norm, nans, infs = (columns[name][node] for name in FIGURES)
            line = None if site is None else site.short
            ends = lowest, highest, norm or 0.0
            rows.append(
                OperationHealth(node, row.name, row.path, row.phase, *ends, nans or 0, infs or 0, line)
            )
        return rows

    @cached_property
    def modules(self) -> list[ModuleHealth]:
        """Every module that was called, in the order of first calls; the first is the run."""
        graph, tree = self.graph, self.graph.tree
        forward = graph.node_phase == Phase.FORWARD
        known = self.columns["nans"].known_rows
        sums = {
            name: tree.inclusive(tree.of_nodes(self.columns[name].values.astype(np.int64), known))
            for name in ("nans", "infs")
        }
        counted = self.columns["units"].known_rows
        sums |= {
            name: tree.inclusive(tree.of_nodes(self.columns[name].values.astype(np.int64), counted))
            for name in ("units", "dead_units", "saturated_units")
        }
        count = tree.inclusive(tree.of_nodes(np.ones(len(graph), dtype=np.int64), known))
        low = self._ends("lowest", forward, np.minimum, np.inf)
        high = self._ends("highest", forward, np.maximum, -np.inf)
        outermost = tree.outermost(graph.scope_module)
        rows: dict[int, ModuleHealth] = {}
        for scope, module in enumerate(graph.scope_module.tolist()):
            entry = graph.modules[module]
            if entry.kind not in ("run", "module", "compiled") or not outermost[scope]:
                continue
            figures: list[Any] = [int(sums[name][scope]) for name in ("nans", "infs", *UNITS)]
            ends: list[Any] = [float(end[scope]) if np.isfinite(end[scope]) else None for end in (low, high)]
            row = ModuleHealth(graph.scope_paths[scope], entry.type, int(count[scope]), *ends, *figures)
            rows[module] = row if module not in rows else _joined(rows[module], row)
        return list(rows.values())

    def _ends(self, name: str, forward: Bools, combine: np.ufunc, nothing: float) -> Array:
        """The lowest or highest number in each scope."""
        column = self.columns[name]
        chosen = np.flatnonzero(forward & column.known_rows)
        own = np.full(len(self.graph.scope_parent), nothing)
        combine.at(own, self.graph.node_scope[chosen], column.values[chosen])
        return self.graph.tree.inclusive(own, combine)

    @cached_property
    def activations(self) -> list[Rectifier]:
        """Activations that can become flat, most dead or saturated units first; from a file, no unit by number."""
        if self._stuck is not None:
            return stuck_rows(self.graph, self._stuck)
        rows = []
        for node in np.flatnonzero(self.columns["units"].known_rows).tolist():
            row = stuck_rows(
                self.graph, {node: InactiveUnits(int(self.columns["units"].values[node]), [], [])}
            )[0]
            dead, saturated = (int(self.columns[name].values[node]) for name in UNITS[1:])
            rows.append(row._replace(dead=dead, saturated=saturated))
        return sorted(rows, key=lambda row: -(row.dead + row.saturated) / max(1, row.units))

    @cached_property
    def nan_inputs(self) -> list[str]:
        """The inputs and parameters that had NaN before the run."""
        return self._given_with("given_nans")

    @cached_property
    def nan_origin(self) -> Node | None:
        """The first operation that made NaN out of inputs without NaN; None where there is none."""
        return first_with(self.graph, self.columns["nans"], self.nan_inputs)

    @cached_property
    def infinite_inputs(self) -> list[str]:
        """The inputs and parameters that had infinities before the run."""
        return self._given_with("given_infs")

    @cached_property
    def infinity_origin(self) -> Node | None:
        """The first operation that made infinity out of finite inputs; None where there is no such."""
        return first_with(self.graph, self.columns["infs"], self.infinite_inputs)

    @cached_property
    def nan_cause(self) -> str:
        """The infinity that NaN was made of, in words; empty where it was not, or there is none."""
        if self.nan_origin is None:
            return ""
        cause = origins(self.graph, self.columns["infs"], self.infinite_inputs, [self.nan_origin.index])
        ways = [f"was in {and_more(cause.inputs, NAMED)}"] if cause.inputs else []
        if cause.node is not None and cause.node.index != self.nan_origin.index:
            ways.append(f"first appeared {place(cause.node)}")
        return f"infinity, which {' and '.join(ways)}" if ways else ""

    @property
    def nans(self) -> int:
        """How many elements that operations made are NaN."""
        return sum(row.nans for row in self.operations)

    @property
    def infs(self) -> int:
        """How many elements that operations made are infinite."""
        return sum(row.infs for row in self.operations)

    @property
    def lowest(self) -> float | None:
        """The lowest finite number that any operation made."""
        return min((row.lowest for row in self.operations if row.lowest is not None), default=None)

    @property
    def highest(self) -> float | None:
        """The highest finite number that any operation made."""
        return max((row.highest for row in self.operations if row.highest is not None), default=None)

    @property
    def dead_units(self) -> int:
        """How many units of activations never fire."""
        return sum(row.dead for row in self.activations)

    @property
    def saturated_units(self) -> int:
        """How many units never change, at another number than 0."""
        return sum(row.saturated for row in self.activations)

    def _given_with(self, name: str) -> list[str]:
        values = np.flatnonzero(self.columns[name].values).tolist()
        return [self.graph.values[value].name or str(value) for value in values]

    # ---------------------------------------------------------------- as a table

    def facts(self) -> Mapping[str, str]:
        """How much NaN and infinity, how many dead and saturated units, and where they begin."""
        spoilt = [row for row in self.operations if row.nans or row.infs]
        result = {"operations": f"{len(self.operations):,} made floating-point numbers"}
        if self.lowest is not None:
            result["range"] = f"{self.lowest:.4g} to {self.highest:.4g}"
        if not spoilt:
            result["NaN and infinity"] = "none"
        else:
            result["NaN"] = _spread(self.nans, sum(1 for row in spoilt if row.nans))
            result["infinity"] = _spread(self.infs, sum(1 for row in spoilt if row.infs))
        for word, inputs, origin in (
            ("NaN", self.nan_inputs, self.nan_origin),
            ("infinity", self.infinite_inputs, self.infinity_origin),
        ):
            if inputs:
                result[f"{word} before the run"] = f"in {and_more(inputs, NAMED)}"
            if origin is not None:
                result[f"first {word}"] = place(origin)
        if self.nan_cause:
            result["cause of NaN"] = self.nan_cause
        units = sum(row.units for row in self.activations)
        if units:
            result["dead units"] = f"{self.dead_units:,} of {units:,}"
            result["saturated units"] = f"{self.saturated_units:,} of {units:,}"
        return result

    def listings(self) -> Sequence[Listing]:
        """Operations with NaN or infinity, modules, dead and saturated units, and operations of the widest range."""
        figure, number = "{:.4g}".format, "{:,}".format
        ends = (Field("lowest", "lowest", figure), Field("highest", "highest", figure))
        faults = (Field("nans", "NaN", number), Field("infs", "infinite", number))
        operations = (
            Field("node", "number", str),
            Field("operation", "operation"),
            Field("path", "module"),
            Field("phase", "phase"),
            *ends,
            Field("norm", "norm", figure),
            *faults,
            Field("line", "source line"),
        )
        modules = (
            Field("path", "module"),
            Field("type", "class"),
            Field("operations", "operations", number),
            *ends,
            *faults,
            Field("units", "units", number, rare=True),
            Field("dead", "dead", number, rare=True),
            Field("saturated", "saturated", number, rare=True),
        )
        spoilt = [row for row in self.operations if row.nans or row.infs]
        widest = sorted(self.operations, key=lambda row: -_largest(row))
        named = [row._replace(path=row.path or "(root)") for row in self.modules]
        return [
            Listing("NaN and infinity", operations, [_named(row) for row in spoilt], most=20,
                    heading="Operations that made NaN or infinity, first to last"),
            Listing("modules", modules, named, most=40, heading="Numbers by module"),
            stuck_listing(self.activations)._replace(heading="Dead and saturated units of this run"),
            Listing("operations", operations, [_named(row) for row in widest], most=10,
                    heading="The operations of the largest numbers"),
        ]  # fmt: skip

    def notes(self) -> Sequence[str]:
        """What is counted, and what is not."""
        result = [
            "counted are the outputs of operations, views left out; lowest and highest are of finite elements, and for "
            "a module of its forward operations"
        ]
        if self._stuck is None:
            result.append(
                "from the columns of a file: which units are dead or saturated is not in it, only how many"
            )
        return [*result, STUCK_NOTE] if self.activations else result

    def charts(self) -> Charts:
        """How large the numbers of each module are."""
        rows = [row for row in self.modules if _largest(row) > 0]
        return Charts(modules=lambda: self._modules_chart(rows)) if rows else Charts()

    def _modules_chart(self, every: Sequence[ModuleHealth]) -> Chart:
        rows = sorted(every, key=lambda row: -_largest(row))[:BARS]
        labels = [row.path or row.type for row in rows]
        series = [
            Series("largest absolute value", list(range(len(rows))), [_largest(row) for row in rows], labels)
        ]
        title = "The largest numbers of each module" + most(len(rows), len(every))
        along = Axis("module", names=labels)
        return Chart("lines", title, along, Axis("largest absolute value", log=True), series)


UNITS = ("units", "dead_units", "saturated_units")


def _given(graph: Graph, faults: Mapping[str, tuple[int, int]]) -> dict[str, Column]:
    """How many elements were NaN and infinite of each value that the run was given."""
    columns = {name: np.zeros(len(graph.value_type), dtype=np.int64) for name in GIVEN}
    for value in np.flatnonzero(graph.value_producer < 0).tolist():
        counts = faults.get(graph.values[value].name or str(value), (0, 0))
        for name, count in zip(GIVEN, counts):
            columns[name][value] = count
    outside = graph.value_producer < 0
    return {name: Column(name, column, along="value", known=outside) for name, column in columns.items()}


def _joined(a: ModuleHealth, b: ModuleHealth) -> ModuleHealth:
    """Two calls of a module as one row."""
    lows = [end for end in (a.lowest, b.lowest) if end is not None]
    highs = [end for end in (a.highest, b.highest) if end is not None]
    sums = [left + right for left, right in zip(a[5:], b[5:])]
    return ModuleHealth(
        a.path, a.type, a.operations + b.operations, min(lows, default=None), max(highs, default=None), *sums
    )


def _spread(elements: int, operations: int) -> str:
    return f"{many(elements, 'element')} of {many(operations, 'operation')}" if elements else "none"


def _largest(row: OperationHealth | ModuleHealth) -> float:
    return max(abs(row.lowest or 0.0), abs(row.highest or 0.0))


def _named(row: OperationHealth) -> OperationHealth:
    return row._replace(path=row.path or "(root)")
