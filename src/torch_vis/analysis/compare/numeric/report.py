"""``compare(a, b).differences()``: where two runs of a model differ numerically, as data, tables, a chart and words."""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import cached_property
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from torch_vis._deprecated import warn
from torch_vis.analysis.compare.align import module_of
from torch_vis.analysis.compare.change_lines import ChangeLine, change_lines
from torch_vis.analysis.compare.changes import ModuleChange, find_changes
from torch_vis.analysis.compare.numeric.difference_origin import (
    DifferenceOrigins,
    InputError,
    local_differences,
)
from torch_vis.analysis.compare.numeric.paired_inputs import InputPair, PairedInputs
from torch_vis.analysis.compare.numeric.python_outputs import NOT_COMPARABLE, compare_python_outputs
from torch_vis.analysis.compare.numeric.side_by_side import Distances, SideBySide
from torch_vis.analysis.compare.numeric.tensor_distance import NO_DISTANCE, OF_ROUNDING, Distance
from torch_vis.analysis.compare.outputs import ComparedResult, MatchedResults, match_results
from torch_vis.analysis.compare.words import changed_argument_names, changed_arguments
from torch_vis.analysis.gradients.accumulation import accumulation_note, filled_before
from torch_vis.analysis.report import Charts, Report
from torch_vis.errors import UsageError
from torch_vis.graph.flow import ancestors
from torch_vis.graph.graph import Node, Value
from torch_vis.graph.lifetimes import ENDING
from torch_vis.graph.schema import Flag, Phase
from torch_vis.graph.text import and_more, many
from torch_vis.graph.types import Bools
from torch_vis.ops.schemas import argument_defaults, argument_names, named_arguments
from torch_vis.views.charts.chart import COLORS, Axis, Chart, Series
from torch_vis.views.charts.labels import placed
from torch_vis.views.text.table_layout import Field, Listing

if TYPE_CHECKING:
    import pandas

    from torch_vis._trace import Trace
    from torch_vis.analysis.compare.align import Alignment

LISTINGS = {
    "origins": "Where a difference originates",
    "rewired": "Where another tensor is read",
    "inputs": "Inputs, parameters and buffers that differ",
    "all": "All operations that differ, in order",
    "results": "Results",
}
COMPILED = (
    "{} ran compiled code, which is one operation here, without a counterpart: only what comes out of it is compared. "
    'tv.trace(model, …, via="aot") or via="dynamo" of the model before torch.compile shows what is inside'
)
# Remarks on results.
ACCUMULATED = "accumulated into what was there before"
ZERO = "zero but for rounding"
EXPLAINED = "rounding explains it"
ROUNDING_ONLY = f"led by a gradient that is {ZERO}"
# Parts of the sentence in short.
SAME = "no difference: all that could be compared is the same in both"
UNSEEN = "the runs start from different inputs or weights, and nothing that both compute differs"
NOTHING_ELSE = "nothing else differs"
CHANGED = "what changed"
NO_NUMBERS = "no operation has numbers to compare"
NO_OUTPUT = "neither run gives anything back"
# Between what a module was set to and what that did to its operations.
DETAILS = "; "
DROPOUT = "dropout_p"
# Changes of what runs in a module, which may follow from what the module, or one around it, was set to.
FOLLOWING = ("operation", "order", "place")
# A relative difference beyond which code that changed is not only written in another way.
WRITTEN_OTHERWISE = 0.01
# Changes of the code that are named.
MOST_CHANGES = 3
# Points of the chart that are named.
MOST_MARKS = 12
PROPAGATED, REWIRED, ORIGIN = "propagated", "another tensor is read", "originates here"
INFINITE = "infinite: NaN in one run, or zero in A"
KINDS = {PROPAGATED: COLORS[0], REWIRED: COLORS[1], ORIGIN: COLORS[3], INFINITE: COLORS[6]}


class Difference(NamedTuple):
    """An operation of ``a`` and its counterpart in ``b`` that computed different numbers."""

    a: Node
    b: Node
    relative: float
    largest: float
    input_error: float | None
    """The largest relative difference among the inputs that both really read; None where that is not known."""
    reads: str = ""
    """What its counterpart reads that is another tensor, or what only one of the two reads."""

    @property
    def came_in(self) -> float | None:
        """The old name of ``input_error``."""
        warn("Difference.came_in is now called input_error", stacklevel=2)
        return self.input_error


class InputDifference(NamedTuple):
    """A tensor that both runs started from, by its names in both, and how far it differed."""

    name: str
    in_b: str
    role: str
    distance: Distance

    @property
    def gap(self) -> Distance:
        """The old name of ``distance``."""
        warn("InputDifference.gap is now called distance", stacklevel=2)
        return self.distance


class DifferencesReport(Report):
    """The numerical differences of two runs, operation by operation, in the order of the first.

    >>> import torch, torch_vis as tv
    >>> torch.manual_seed(0)  # doctest: +ELLIPSIS
    <...>
    >>> model = torch.nn.Sequential(torch.nn.Linear(3, 4), torch.nn.GELU(), torch.nn.Linear(4, 1))
    >>> x = torch.randn(2, 3)
    >>> one = tv.trace(model, x)
    >>> with torch.no_grad():
    ...     other = torch.nn.Sequential(model[0], torch.nn.GELU(approximate="tanh"), model[2])
    >>> report = tv.compare(one, tv.trace(other, x)).differences()
    >>> report.first.a.name, report.first.a.path
    ('gelu', '1')
    """

    title = "Numerical differences"

    def __init__(self, a: Trace, b: Trace, alignment: Alignment, tolerance: float) -> None:
        if not tolerance >= 0:
            raise UsageError(f"tolerance is a relative difference, 0 or more, not {tolerance!r}")
        self.a, self.b, self._alignment = a, b, alignment
        """The two runs."""
        self.tolerance = tolerance
        """The relative difference from which on two results count as different."""
        self._to_b = alignment.to_b
        self.matched: MatchedResults = match_results(a.graph, b.graph, alignment.scope_to_b, alignment.wiring)
        """Which result of one run is which of the other."""
        self._paired = PairedInputs(alignment.wiring)
        run_a, run_b = (a.graph, a.kept), (b.graph, b.kept)
        results = [(row_a.value, row_b.value) for row_a, row_b in self.matched.pairs]
        runs = SideBySide(run_a, run_b, self._paired, results)
        self.distances: Distances = runs.distances
        """How far apart every operation's results are."""
        self.local_differences = local_differences(run_a, run_b, runs)
        """Of operations where a difference may begin: how far they differ if all before them is as in ``a``."""
        self._origins = DifferenceOrigins(self._paired, runs.distances, self.local_differences)
        self.python_outputs = compare_python_outputs(a, b)
        """Outputs that are no tensors: numbers, words, arrays of numpy."""
        self._filled_before = {"A": filled_before(*run_a), "B": filled_before(*run_b)}

    # --- operations ---

    @cached_property
    def differing(self) -> Bools:
        """Operations that differ at all; not those that add to a gradient from before, nor what is only rounding."""
        differing: Bools = self.distances.known & (self.distances.relative > 0) & ~self.distances.rounding
        differing[list(self._accumulating)] = False
        return differing

    @cached_property
    def rows(self) -> list[Difference]:
        """The operations that differ by more than the tolerance.

        Those that add to a gradient from before the run are left out: what they computed is not of this run alone. So
        is what is zero but for rounding in both runs: what is left of it is no difference.
        """
        rows = []
        for node in np.flatnonzero(self.differing & (self.distances.relative > self.tolerance)).tolist():
            pair = self.a.graph.nodes[node], self.b.graph.nodes[int(self._to_b[node])]
            distance = float(self.distances.relative[node]), float(self.distances.largest[node])
            rows.append(Difference(*pair, *distance, self._input_errors[node].largest, self._reads(node)))
        return rows

    @property
    def first(self) -> Difference | None:
        """The first operation that differs; None where none does."""
        return self.rows[0] if self.rows else None

    @cached_property
    def origins(self) -> list[Difference]:
        """The operations where a difference originates: they differ ten times more than their inputs.

        So do those that are called differently, if they compute something else from the same numbers. What an
        operation makes of sums that cancel is judged by the size of what it adds up. An operation that reads another
        tensor than its counterpart is no origin (see ``rewired``), nor is one whose inputs cannot be compared.
        """
        return [row for row in self.rows if self.input_error(row.a).is_origin]

    @cached_property
    def rewired(self) -> list[Difference]:
        """The operations that differ because they read another tensor than their counterparts.

        What is computed in another way counts if it is something else, and not only rounded differently, when it is
        computed from the same: both ways are tried on the numbers of ``a``, so that no other difference can hide it.
        """
        return [row for row in self.rows if self.input_error(row.a).rewired]

    def is_start(self, row: Difference) -> bool:
        """Whether a difference originates at an operation, or enters there because it reads another tensor."""
        error = self.input_error(row.a)
        return error.is_origin or error.rewired

    def input_error(self, node: Node) -> InputError:
        """What came into an operation of ``a`` that differs."""
        return self._input_errors[node.index]

    @cached_property
    def _input_errors(self) -> dict[int, InputError]:
        return {node: self._origins.of(node) for node in np.flatnonzero(self.differing).tolist()}

    @cached_property
    def _accumulating(self) -> set[int]:
        """The operations of ``a`` that add to what was in ``.grad`` before, or whose counterparts do."""
        nodes_a, nodes_b = (
            {node for row in gradients.values() for node in row.nodes}
            for gradients in self._filled_before.values()
        )
        return nodes_a | set(np.flatnonzero(np.isin(self._to_b, list(nodes_b))).tolist())

    # --- inputs and results ---

    @cached_property
    def input_differences(self) -> list[InputDifference]:
        """Inputs, parameters and buffers that differed before the runs, the largest difference first."""
        rows = []
        for value, distance in self.distances.outside.items():
            if distance is not None and distance.relative > 0:
                in_a, in_b = self.a.graph.values[value], self.b.graph.values[self._paired.outside[value]]
                rows.append(InputDifference(tensor_name(in_a), tensor_name(in_b), in_a.role, distance))
        infinite = float("inf")

        # what was zero in A has no relative difference, and comes last
        def order(row: InputDifference) -> tuple[bool, bool, float]:
            distance = row.distance
            return distance.largest == infinite, distance.relative < infinite, distance.relative

        return sorted(rows, key=order, reverse=True)

    @cached_property
    def results(self) -> dict[str, tuple[str, Distance]]:
        """Outputs, gradients and changed state that both have, by the name in ``a``: the kind, and the distance."""
        results = {}
        for (row_a, row_b), distance in zip(self.matched.pairs, self.distances.results, strict=True):
            if self._are_empty(row_a, row_b):
                distance = NO_DISTANCE
            if distance is not None:
                results[row_a.name] = row_a.kind, distance
        return results | {name: ("output", row) for name, row in self.python_outputs.distances.items()}

    def _are_empty(self, row_a: ComparedResult, row_b: ComparedResult) -> bool:
        """Whether two results are of one type and have no elements; where that is all there is, it is not the same."""
        a, b = self.a.graph.values[row_a.value].type, self.b.graph.values[row_b.value].type
        return self.any_compared and 0 in a.shape and (a.shape, a.dtype) == (b.shape, b.dtype)

    @property
    def any_compared(self) -> bool:
        """Whether anything was compared: numbers of an operation or a result, or an output that is no tensor."""
        compared = any(distance is not None for distance in self.distances.results)
        return compared or bool(self.distances.known.any()) or self.python_outputs.any_compared

    @property
    def uncompared(self) -> dict[str, list[str]]:
        """The results that are not compared, by the reason."""
        return self._uncompared("output", "gradient", "state")

    @property
    def uncompared_outputs(self) -> dict[str, list[str]]:
        """The outputs among them."""
        return self._uncompared("output")

    def _uncompared(self, *kinds: str) -> dict[str, list[str]]:
        compared = zip(self.matched.pairs, self.distances.results, strict=True)
        rows = {
            "only in A": self.matched.only_a,
            "only in B": self.matched.only_b,
            NOT_COMPARABLE: [
                row_a
                for (row_a, row_b), distance in compared
                if distance is None and not self._are_empty(row_a, row_b)
            ],
        }
        names = {reason: [row.name for row in left if row.kind in kinds] for reason, left in rows.items()}
        for reason, more in self.python_outputs.uncompared.items():
            names[reason] = [*names.get(reason, []), *more]
        return {reason: left for reason, left in names.items() if left}

    @cached_property
    def accumulated(self) -> set[str]:
        """The gradients that hold what was there before the run, of which the run's own part is not known."""
        unknown_a, unknown_b = (
            {f"{name}{ENDING}" for name, row in gradients.items() if row.own is None}
            for gradients in self._filled_before.values()
        )
        return {
            row_a.name
            for row_a, row_b in self.matched.pairs
            if row_a.kind == "gradient" and (row_a.name in unknown_a or row_b.name in unknown_b)
        }

    @cached_property
    def rounding_only(self) -> set[str]:
        """The states that an optimizer changed by a gradient that is zero but for rounding in both runs."""
        zero = {name.removesuffix(ENDING) for name, (_, row) in self.results.items() if row.zero_in == "AB"}
        states = [name for name, (kind, row) in self.results.items() if kind == "state" and row.relative]
        # of Adam.fc.bias.exp_avg, fc.bias
        parameters = {name: ".".join(name.split(".")[1:-1]) for name in states}
        return {name for name in states if name in zero or parameters[name] in zero}

    def ulps(self, name: str) -> float:
        """By how many times the rounding of what it was computed from a result differs."""
        return self._ulps[name]

    @cached_property
    def _ulps(self) -> dict[str, float]:
        pairs = zip(self.matched.pairs, self.distances.rounding_errors, strict=True)
        errors = {row.name: error for (row, _), error in pairs}
        # of a number that is no tensor, or a tensor that an object holds, it is not known: that of the others at most
        errors |= dict.fromkeys(self.python_outputs.floats, max(errors.values(), default=0.0))
        ulps = {}
        for name, (_, distance) in self.results.items():
            error = errors.get(name, 0.0)
            infinite = float("inf") if distance.relative else 0.0
            ulps[name] = distance.relative / error if error else infinite
        return ulps

    @property
    def same(self) -> bool:
        """Whether all outputs were compared, and nothing that both have differs by more than the tolerance.

        Outputs that are no tensors count as well: numbers by the tolerance, all else must be equal.
        What is zero but for rounding, or follows from that, does not count.

        >>> import torch, torch_vis as tv
        >>> x, model = torch.ones(2, 3), torch.nn.Linear(3, 1)
        >>> one, two = tv.trace(model, x), tv.trace(model, 1.001 * x)
        >>> [tv.compare(one, two).differences(tolerance=tolerance).same for tolerance in (0, 0.1)]
        [False, True]
        """
        distances = [*self._meaningful_results().values(), *(row.distance for row in self.input_differences)]
        compared = self.any_compared and not self.uncompared_outputs and not self.python_outputs.other
        return compared and not self.rows and all(row.relative <= self.tolerance for row in distances)

    def _meaningful_results(self) -> dict[str, Distance]:
        """The results whose difference says something."""
        without = self.accumulated | self.rounding_only
        return {
            name: row for name, (_, row) in self.results.items() if not row.rounding and name not in without
        }

    @cached_property
    def compiled(self) -> list[str]:
        """Which of the two ran compiled code."""
        return [
            name
            for name, trace in (("A", self.a), ("B", self.b))
            if any(call.op == "torch_vis::compiled" for call in trace.graph.calls)
        ]

    # --- the report ---

    def facts(self) -> dict[str, str]:
        compared = int(self.distances.known.sum())
        facts = {"in short": self.in_short()}
        if self.first is not None:
            site = self.first.a.user_line
            line = f", {site.short}" if site else ""
            facts["first"] = f"{named(self.first.a)}: {distance_text(self.first)}{line}"
        if self.changes:
            facts[CHANGED] = and_more(self._lines_of(self.changes), MOST_CHANGES)
        if self.input_differences:
            largest = self.input_differences[0]
            facts["inputs"] = (
                f"{many(len(self.input_differences), 'tensor')} not the same before the runs: at most "
                f"{distance_text(largest.distance)}, in {largest.name}"
            )
        facts |= {
            kind: text for kind in ("output", "gradient", "state") if (text := self._results_text(kind))
        }
        other = self.python_outputs.other
        if other:
            facts["other outputs"] = and_more([f"{name}: {text}" for name, text in other.items()])
        for reason, names in self.uncompared.items():
            facts[f"results {reason}"] = and_more(names)
        tolerance = f" by more than {self.tolerance:g}" if self.tolerance else ""
        facts["differ"] = many(len(self.rows), "operation") + tolerance if compared else NO_NUMBERS
        facts["compared"] = (
            f"{compared:,} of {many(len(self.a.graph), 'operation')}, {many(len(self.results), 'result')}"
        )
        return facts

    def listings(self) -> list[Listing]:
        figure = "{:.3g}".format
        distance = (Field("relative", "relative", figure), Field("largest", "largest", figure))
        operation = (Field("a", "operation"), Field("line", "line"))
        input_error = Field("input_error", "input error", figure)
        operations = (*operation, *distance, input_error, Field("reads", "reads"))
        reads = Field("reads_a", "A reads"), Field("reads_b", "B reads")
        inputs = (Field("name", "tensor"), Field("role", "role"), *distance)
        input_rows = [(row.name, row.role, *row.distance[:2]) for row in self.input_differences]
        return [
            Listing(LISTINGS["origins"], operations, [_row(row) for row in self.origins], most=15),
            Listing(
                LISTINGS["rewired"],
                (*operation, distance[0], input_error, *reads),
                [self._rewired_row(row) for row in self.rewired],
                most=15,
            ),
            Listing(LISTINGS["inputs"], inputs, input_rows, most=10),
            Listing(LISTINGS["all"], operations, [_row(row) for row in self.rows], most=10),
            self._result_listing(distance),
        ]

    def _rewired_row(self, row: Difference) -> tuple[str, str | None, float, float | None, str, str]:
        name, line, relative, _, input_error, _ = _row(row)
        return name, line, relative, input_error, *self._tensors(self.input_error(row.a).others[0])

    def _result_listing(self, distance: tuple[Field, Field]) -> Listing:
        """All results that both runs have, the largest difference first, those of which that says nothing last."""
        other = {row_a.name: row_b.name for row_a, row_b in self.matched.pairs if row_a.name != row_b.name}
        renamed = (Field("in_b", "in B"),) if other else ()
        fields = (
            Field("name", "result"),
            *renamed,
            Field("kind", "kind"),
            *distance,
            Field("remark", "remark"),
        )
        meaningful = self._meaningful_results()
        ordered = sorted(
            self.results.items(), key=lambda row: (row[0] not in meaningful, -row[1][1].relative)
        )
        rows = [
            (name, *((other.get(name),) if other else ()), kind, *row[:2], self._remark(name, kind, row))
            for name, (kind, row) in ordered
        ]
        return Listing(LISTINGS["results"], fields, rows, most=15)

    def _remark(self, name: str, kind: str, distance: Distance) -> str | None:
        if kind == "gradient" and name in self.accumulated:
            return ACCUMULATED
        if name in self.rounding_only:
            return ROUNDING_ONLY
        if distance.rounding:
            return ZERO if distance.zero_in else EXPLAINED
        return f"{ZERO} in {distance.zero_in}" if distance.zero_in else None

    def to_pandas(self, listing: str | None = None) -> pandas.DataFrame:
        """The rows of a listing as a pandas ``DataFrame``: operations that differ, or ``"origins"``, ``"rewired"``, …

        >>> import torch, torch_vis as tv
        >>> x, model = torch.ones(2, 3), torch.nn.Linear(3, 1)
        >>> report = tv.compare(tv.trace(model, x), tv.trace(model, 2 * x)).differences()
        >>> list(report.to_pandas().a), list(report.to_pandas("results").name)
        (['addmm'], ['output'])
        """
        old = {"news": "origins", "given": "inputs"}
        name = "all" if listing is None else old.get(listing, listing)
        return super().to_pandas(LISTINGS.get(name, name))

    def notes(self) -> list[str]:
        has_rounding = bool(self.distances.rounding.any()) or any(
            distance.rounding for _, distance in self.results.values()
        )
        missing = len(self.a.graph) - int(self.distances.known.sum())
        notes = []
        if self.compiled:
            notes.append(COMPILED.format(" and ".join(self.compiled)))
        if NOT_COMPARABLE in self.uncompared:
            notes.append(f"results {NOT_COMPARABLE}: of another shape, or without plain numbers")
        notes += [
            accumulation_note(gradients, f" of {where}")
            for where, gradients in self._filled_before.items()
            if gradients
        ]
        notes.append(
            f"relative: the norm of the difference over the norm in A; {many(missing, 'operation')} without numbers to "
            "compare (views, integers, no counterpart, another shape)"
        )
        if has_rounding:
            notes.append(
                f"{ZERO}: a sum that cancels, judged by the size of its summands, and what is made of it; where "
                "that is so in both runs, what is left of it is no difference, is not counted, and is not drawn"
            )
        return notes

    def charts(self) -> Charts:
        """The differences as points along the first run; those that are infinitely far stand at the edge."""
        return Charts(operations=self._operations_chart) if self.differing.any() else Charts()

    def _operations_chart(self) -> Chart:
        nodes = np.flatnonzero(self.differing).tolist()
        heights = self.distances.relative[nodes].tolist()
        edge = 10 * max((height for height in heights if math.isfinite(height)), default=0.1)
        kinds: dict[str, list[int]] = {name: [] for name in KINDS}
        for node, height in zip(nodes, heights, strict=True):
            error = self._input_errors[node]
            kind = ORIGIN if error.is_origin else REWIRED if error.rewired else PROPAGATED
            kinds[kind if math.isfinite(height) else INFINITE].append(node)
        series = [self._series(name, members, edge) for name, members in kinds.items() if members]
        axes = Axis("operation of A, in the order of its run", "count"), Axis("relative difference", log=True)
        return Chart("points", "Numerical differences along the run", *axes, series)

    def _series(self, name: str, nodes: list[int], edge: float) -> Series:
        first = -1 if self.first is None else self.first.a.index
        marked = {row.a.index for row in [*self.origins[:MOST_MARKS], *self.rewired[:MOST_MARKS]]} | {first}
        rows = [self.a.graph.nodes[node] for node in nodes]
        marks = [
            ("first: " if row.index == first else "") + named(row, 40) if row.index in marked else ""
            for row in rows
        ]
        heights = [min(float(self.distances.relative[node]), edge) for node in nodes]
        return Series(name, nodes, heights, [named(row) for row in rows], marks=marks, color=KINDS[name])

    # --- in words ---

    def _reads(self, node: int) -> str:
        """What the counterpart of an operation reads instead of what it reads itself."""
        others = self._input_errors[node].others
        if others:
            in_a, in_b = self._tensors(others[0])
            rest = f" and {len(others) - 1} more" if len(others) > 1 else ""
            if others[0].same:
                return f"another part of {in_a}{rest}"
            return f"another tensor: {in_b} instead of {in_a}{rest}"
        unpaired = zip("AB", self._paired.unpaired(node))
        return ", ".join(
            f"{self.tensor_text(run, value)}, in {run} alone"
            for run, values in unpaired
            for value in values[:1]
        )

    def _tensors(self, pair: InputPair) -> tuple[str, str]:
        """Two tensors that are read in one place."""
        in_a, in_b = self.tensor_text("A", pair.a), self.tensor_text("B", pair.b)
        if pair.same:
            return in_a, f"another part of {in_b}"
        return (
            (in_a, in_b)
            if in_a != in_b
            else (f"{in_a}{self._number('A', pair.a)}", f"{in_b}{self._number('B', pair.b)}")
        )

    def _number(self, run: str, value: int) -> str:
        """Which of several tensors of one name: the number of its operation, or its own."""
        values = self._paired.values_a if run == "A" else self._paired.values_b
        root = values.root[value]
        producer = values.producer[root]
        return f", operation {producer}" if producer >= 0 else f", value {root}"

    def tensor_text(self, run: str, value: int) -> str:
        """A tensor of one of the runs, and whether what computed it is only there."""
        paired, is_a = self._paired, run == "A"
        graph = (self.a if is_a else self.b).graph
        value = (paired.values_a if is_a else paired.values_b).root[value]
        counterpart = (paired.value_to_b if is_a else paired.value_to_a)[value]
        is_alone = graph.value_producer[value] >= 0 and counterpart < 0
        name = tensor_name(graph.values[value])
        # under its own path the first run may have another module
        if not is_a and counterpart >= 0 and graph.value_producer[value] >= 0:
            in_a = tensor_name(self.a.graph.values[counterpart])
            if in_a != name:
                return (
                    f"{in_a} ({module_of(graph.nodes[int(graph.value_producer[value])]) or 'the run'} in B)"
                )
        return name + (f" (only in {run})" if is_alone else "")

    def _results_text(self, kind: str) -> str:
        """The results of a kind: the one that differs most, of those that can be compared."""
        of_kind = {name: row for name, (what, row) in self.results.items() if what == kind}
        if not of_kind:
            return ""
        own = {n: row for n, row in of_kind.items() if kind != "gradient" or n not in self.accumulated}
        if not own:
            return f"{ACCUMULATED}, in {and_more(list(of_kind))}"
        rounding_only = [name for name in own if name in self.rounding_only]
        nonzero = {n: row for n, row in own.items() if row.zero_in != "AB" and n not in rounding_only}
        parts = []
        if nonzero:
            worst = max(nonzero, key=lambda name: (not nonzero[name].rounding, nonzero[name].relative))
            remark = f": {EXPLAINED}" if nonzero[worst].rounding else ""
            text = f"{at_most(nonzero[worst])}, in {worst}{remark}"
            parts.append(text if nonzero[worst].relative else "the same")
        for where, runs in (("A", "A alone"), ("B", "B alone"), ("AB", "both")):
            zero = [name for name, row in own.items() if row.zero_in == where]
            parts += [f"{ZERO} in {runs}: {and_more(zero, 2)}"] if zero else []
        if rounding_only:
            parts.append(f"{ROUNDING_ONLY}: {and_more(rounding_only, 2)}")
        return "; ".join(parts)

    def in_short(self) -> str:
        """What to look at, in a sentence."""
        uncompared = self.uncompared_outputs
        other = self.python_outputs.other
        has_outputs = any(kind == "output" for kind, _ in self.results.values()) or bool(other)
        if not self.any_compared:
            no_output = "" if uncompared or has_outputs else f"; {NO_OUTPUT}"
            return f"nothing could be compared: {NO_NUMBERS}, and no result has{no_output}"
        differs, text = self._what_differs()
        quiet_change = "" if differs else self._quiet_change
        quiet = f"; {CHANGED}: {quiet_change}" if quiet_change else ""
        if quiet_change and not uncompared:
            alone = [f"{and_more(names, 2)} ({reason})" for reason, names in self.uncompared.items()]
            quiet = (f"; not compared: {'; '.join(alone)}" if alone else "") + quiet
        if other:
            outputs = [f"{name} ({change})" for name, change in other.items()]
            is_other = f"{and_more(outputs, 3)} {'is' if len(outputs) == 1 else 'are'} something else"
            text = is_other + (f"; {text}" if differs else "")
        if not uncompared:
            return (text or SAME) + ("" if has_outputs else f"; {NO_OUTPUT}") + quiet
        names = "; ".join(f"{and_more(names, 3)} ({reason})" for reason, names in uncompared.items())
        if has_outputs:
            return f"{text or 'no difference in what could be compared'}; not compared: {names}{quiet}"
        if text:
            return f"{text}; no output could be compared{quiet}"
        cause = f"{quiet_change}; " if quiet_change else ""
        return f"{cause}no output could be compared: {names}; {NOTHING_ELSE}"

    def _what_differs(self) -> tuple[bool, str]:
        """Whether what could be compared differs by more than rounding, and where; no text where it is the same."""
        results = self._meaningful_results()
        worst = max(results, key=lambda name: results[name].relative, default="")
        results_differ = bool(worst and results[worst].relative)
        if not self.rows and not results_differ:
            has_rounding = any(row.relative for _, row in self.results.values())
            rounding = ", but for what is nothing but rounding" if has_rounding else ""
            if any(row.distance.relative > self.tolerance for row in self.input_differences):
                return False, f"{UNSEEN}{rounding}: {self._largest_input()}"
            return False, f"{SAME}{rounding}" if has_rounding else ""
        by = f"{at_most(results[worst])}, in {worst}" if worst else ""
        ulps = max((self.ulps(name) for name in results), default=0.0)
        start = self._start
        is_rounding = ulps <= OF_ROUNDING and (start is None or not self._is_code(start))
        if results_differ and is_rounding and not self._is_of_change(worst, results[worst]):
            return True, self._rounding_text(f"{by} ({ulps:.2g} times the rounding of a single step)")
        if self.compiled and results_differ:
            inside = self._inside_compiled()
            return True, self._inputs_differ() or f"what the compiled code gave differs: {by}; {inside}"
        if start is not None:
            return True, self._caused(start, self._where_it_starts(start) + self._first_nonfinite(start))
        if self.tolerance:
            return (
                True,
                f"nothing that both runs do differs by more than {self.tolerance:g}; results differ by {by}",
            )
        if self._inputs_differ():
            return True, self._inputs_differ()
        producers = self._producers_of_result(worst)
        if self.changes and worst not in self.python_outputs.distances:
            return True, f"{self._change_text(self.changes[0])}; results differ by {by}{producers}"
        return True, (
            f"results differ by {by}, but nothing that both runs do: look at what only one of them does{producers}"
        )

    def _is_of_change(self, name: str, distance: Distance) -> bool:
        """Whether a result differs by more than other ways of writing do, and something that changed leads to it.

        Rounding is estimated generously behind an optimizer, which makes steps of one size of gradients near zero.
        """
        if distance.relative <= WRITTEN_OTHERWISE or name in self.python_outputs.distances:
            return False
        row_a, row_b = next(pair for pair in self.matched.pairs if pair[0].name == name)
        return bool(self._changes_before(row_a.value, row_b.value))

    def _changes_before(self, value_a: int, value_b: int) -> list[ModuleChange]:
        """The changes of operations that lead to a value of ``a`` and its counterpart."""
        node_a, node_b = (
            int(trace.graph.value_producer[value]) for trace, value in ((self.a, value_a), (self.b, value_b))
        )
        if min(node_a, node_b) < 0:
            return []
        before_a, before_b = ancestors(self.a.graph, [node_a]), ancestors(self.b.graph, [node_b])
        return [
            row
            for row in self.changes
            if before_a[list(row.nodes_a)].any() or before_b[list(row.nodes_b)].any()
        ]

    def _rounding_text(self, by: str) -> str:
        """A difference as large as rounding, with what changed: code that was written otherwise may round otherwise.

        What an optimizer is set to is no way of writing, and is not called rounding.
        """
        cause = next((row for row in self.changes if row.kind == "optimizer"), None)
        if cause is not None:
            return f"{self._change_text(cause)}; results differ by {by}"
        changed = f"; {CHANGED}: {self._change_text(self.changes[0])}" if self.changes else ""
        return f"no more than rounding: results differ by {by}{changed}"

    def _change_text(self, change: ModuleChange) -> str:
        """A change, and its line; of a module that was set otherwise, not what that did to its operations."""
        text = str(change).partition(DETAILS)[0] if change.kind == "settings" else str(change)
        return f"{text} ({change.line})" if change.line else text

    @cached_property
    def _start(self) -> Difference | None:
        """Where the differences start: at a change of the code, else where more than rounding starts, else first."""
        starts = [row for row in self.rows if self.is_start(row)]
        code = (row for row in starts if self._is_code(row))
        larger = (row for row in starts if self.distances.ulps[row.a.index] > OF_ROUNDING)
        return next(code, next(larger, starts[0] if starts else self.first))

    def _is_code(self, row: Difference) -> bool:
        """Whether an operation is called differently, or reads something else, and not only rounds differently."""
        error, node = self.input_error(row.a), row.a.index
        is_changed = self._paired.is_called_differently(node) or self._paired.is_reordered(node)
        if not error.rewired and not is_changed:
            return False
        local = self.local_differences.get(row.a.index)
        if local is None or local.outputs is None:
            return bool(self.distances.ulps[row.a.index] > OF_ROUNDING)
        return local.outputs

    # --- what changed in the code ---

    @cached_property
    def changes(self) -> list[ModuleChange]:
        """What changed from one run to the other that can change numbers, module by module and in words."""
        return [row for row in self._all_changes if row.kind not in ("recomputed", "output")]

    @cached_property
    def _all_changes(self) -> list[ModuleChange]:
        return find_changes(self.a, self.b, self._alignment)

    def _lines_of(self, changes: Sequence[ModuleChange]) -> list[ChangeLine]:
        return change_lines(changes, [*self.a.graph.scope_paths, *self.b.graph.scope_paths])

    @property
    def _quiet_change(self) -> str:
        """A change that shows in no number that could be compared.

        Where all could be, gradients and state too, it is none of single operations: code may be written in another
        way. A number or a word that an operation is called with is no way of writing: other inputs may show it.
        """
        recomputed = [row for row in self._all_changes if row.kind == "recomputed"]
        rows = [
            row
            for row in (*self.changes, *recomputed)
            if self.uncompared
            or row.kind != "operation"
            or self._stops_gradients(row)
            or self._is_called_otherwise(row)
        ]
        if not rows:
            return ""
        return str(
            next(line for line in self._lines_of([*self.changes, *recomputed]) if rows[0] in line.changes)
        )

    def _stops_gradients(self, change: ModuleChange) -> bool:
        """Whether a change decides where gradients flow and nothing else: no number of the forward run shows it."""
        if change.kind == "gradient":
            return True
        nodes = [self.a.graph.nodes[node] for node in change.nodes_a]
        nodes += [self.b.graph.nodes[node] for node in change.nodes_b]
        return any(node.name == "detach" for node in nodes)

    def _is_called_otherwise(self, change: ModuleChange) -> bool:
        """Whether a change is that operations which compute are called with other numbers or words than in ``a``."""
        if not change.nodes_a or len(change.nodes_a) != len(change.nodes_b):
            return False
        return all(self._has_other_arguments(node) for node in change.nodes_a)

    def _has_other_arguments(self, node: int) -> bool:
        """Whether an operation of ``a``, which is no view, has other numbers or words than its counterpart.

        A dimension may be counted from the front or from the end.
        """
        row, other = self.a.graph.nodes[node], int(self._to_b[node])
        if other < 0 or "view" in row.flags:
            return False
        call, counterpart = row.call, self.b.graph.nodes[other].call
        if call.op != counterpart.op:
            return False
        rank = len(row.inputs[0].type.shape) if row.inputs else 0
        mine, others = (argument_defaults(one.op) | dict(named_arguments(one)) for one in (call, counterpart))
        return any(
            not name.startswith("dim")
            or _from_front(mine.get(name), rank) != _from_front(others.get(name), rank)
            for name in changed_argument_names(call, counterpart)
        )

    def _caused(self, start: Difference, sentence: str) -> str:
        """A sentence on where it starts, with the change of the code that led there, unless that is what it says.

        What only passes on what came before is named after the change.
        """
        cause = self._cause(start.a.index)
        if cause is None:
            # what changed leads to no number that differs, or to others beside it
            is_change = self.is_start(start) and self._is_code(start)
            # where gradients stop, what follows reads a tensor from before, and no operation leads there
            stop = next((row for row in self.changes if self._stops_gradients(row)), None)
            if stop is not None and self.input_error(start.a).rewired:
                return f"{self._change_text(stop)}; {sentence}"
            return (
                sentence
                if is_change or not self.changes
                else f"{sentence}; {CHANGED}: {self._change_text(self.changes[0])}"
            )
        is_told = cause.kind == "operation" and not self.input_error(start.a).rewired
        if is_told and self.is_start(start) and self._is_code(start):
            return sentence
        return f"{self._change_text(cause)}; {sentence}"

    def _cause(self, node: int) -> ModuleChange | None:
        """The first change that an operation of ``a`` or its counterpart depends on.

        What was written for a module that is new, gone or of another class comes after that module, and after what
        the modules around it were set to.
        """
        before_a = ancestors(self.a.graph, [node])
        before_b = ancestors(self.b.graph, [int(self._to_b[node])])
        after_step = any(
            (trace.graph.node_phase[before] == Phase.OPTIMIZER).any()
            for trace, before in ((self.a, before_a), (self.b, before_b))
        )
        causes = [
            row
            for row in self.changes
            if (row.kind == "optimizer" and after_step)
            or before_a[list(row.nodes_a)].any()
            or before_b[list(row.nodes_b)].any()
        ]
        if not causes:
            return None
        first = causes[0]
        if first.kind in FOLLOWING:
            return self._set_around(first.path) or _module_in(first, causes) or first
        return first

    def _set_around(self, path: str) -> ModuleChange | None:
        """What the innermost module around a path, or at it, was set to otherwise: that may decide what runs in it."""
        rows = [row for row in self.changes if row.kind == "settings" and is_inside(path, row.path)]
        return max(rows, key=lambda row: len(row.path), default=None)

    def _producers_of_result(self, name: str) -> str:
        """What computes a result in both runs, if that is not the same."""
        if name in self.python_outputs.distances:
            is_tensor = name in self.python_outputs.hidden
            return (
                "" if is_tensor else f"; {name} is no tensor, and what is computed outside torch is not seen"
            )
        row_a, row_b = next(pair for pair in self.matched.pairs if pair[0].name == name)
        in_a, in_b = self.tensor_text("A", row_a.value), self.tensor_text("B", row_b.value)
        return f" ({in_b} instead of {in_a})" if in_a != in_b else ""

    def _inside_compiled(self) -> str:
        """What may be the matter inside compiled code."""
        if any(((trace.graph.node_flags & Flag.RANDOM) != 0).any() for trace in (self.a, self.b)):
            return "it draws random numbers of its own (dropout), so that only model.eval() can be compared"
        return "what is inside it cannot be compared"

    def _inputs_differ(self) -> str:
        if not self.input_differences:
            return ""
        propagated = all(row.input_error is not None for row in self.rows)
        also = ", and operations propagate that" if propagated else ""
        return f"the runs start from different inputs or weights, {self._largest_input()}{also}"

    def _largest_input(self) -> str:
        """What differs most before the runs, after what neither run changes: no step before them changed it either."""
        largest, untouched = self.input_differences[0], self._untouched_input
        most = f"most of all {largest.name} ({distance_text(largest.distance)})"
        if untouched is None:
            return most
        first = f"{untouched.name} ({distance_text(untouched.distance)})"
        return f"among them {first}, which neither run changes, and {most}"

    @property
    def _untouched_input(self) -> InputDifference | None:
        """What differs most of the tensors that the runs leave as they are, where they change what differs more."""
        rows_a = [row for row, _ in self.matched.pairs] + self.matched.only_a
        rows_b = [row for _, row in self.matched.pairs] + self.matched.only_b
        of_a, of_b = self.a.graph.value_storage, self.b.graph.value_storage
        in_a = {int(of_a[row.value]) for row in rows_a if row.kind == "state"}
        in_b = {int(of_b[row.value]) for row in rows_b if row.kind == "state"}
        changed = {
            tensor_name(self.a.graph.values[value])
            for value in self.distances.outside
            if int(of_a[value]) in in_a or int(of_b[self._paired.outside[value]]) in in_b
        }
        if self.input_differences[0].name not in changed:
            return None
        return next((row for row in self.input_differences if row.name not in changed), None)

    def _first_nonfinite(self, start: Difference) -> str:
        """Where one run alone first computed NaN or infinity, unless that is where it starts."""
        row = next((row for row in self.rows if row.largest == float("inf")), start)
        return "" if row is start else f"; {named(row.a)} is the first to give {distance_text(row)}"

    def _where_it_starts(self, row: Difference) -> str:
        if not self.is_start(row):
            read = "cannot be compared" if row.input_error is None else f"differs by {row.input_error:.3g}"
            first = f"{named(row.a)} is the first to differ ({distance_text(row)}); what it reads {read}"
            return self._inputs_differ() or first
        is_first = "is the first to differ" if row is self.first else "differs"
        too = ""
        if self.input_differences:
            too = f"; the runs also start from different inputs or weights, {self._largest_input()}"
        return self._why_it_starts(row, f"{named(row.a)} {is_first}") + too

    def _why_it_starts(self, row: Difference, differs: str) -> str:
        error = self.input_error(row.a)
        if error.rewired:
            return f"the runs part at {named(row.a)}, which reads {row.reads}"
        arguments = changed_arguments(row.a.call, row.b.call)
        if arguments:
            return f"{differs} ({distance_text(row)}): it is called differently, {arguments}"
        if self._paired.is_reordered(row.a.index):
            return f"the runs part at {named(row.a)}, which reads the same tensors in another order"
        if draws_numbers(row.a):
            return (
                f"{named(row.a)} drew other random numbers: seed both runs alike, with torch.manual_seed(…)"
            )
        also = "" if error.others else "also "
        read = "is the same" if not row.input_error else f"differs by {row.input_error:.3g} only"
        reads = f"; it {also}reads {row.reads}" if row.reads else ""
        return f"{differs} ({distance_text(row)}), though what it reads {read}{reads}"


def _from_front(dims: Any, rank: int) -> Any:
    """Dimensions counted from the front.

    >>> _from_front([-1, 0], 3)
    [2, 0]
    """
    if isinstance(dims, (list, tuple)):
        return [_from_front(dim, rank) for dim in dims]
    return dims % rank if isinstance(dims, int) and rank else dims


def _row(row: Difference) -> tuple[str, str | None, float, float, float | None, str | None]:
    site = row.a.user_line
    line = site.short if site else None
    return named(row.a), line, row.relative, row.largest, row.input_error, row.reads or None


def is_inside(path: str, outer: str) -> bool:
    """Whether a module is another one or lies in it.

    >>> is_inside("blocks.0.attn", "blocks.0"), is_inside("blocks.10", "blocks.1"), is_inside("fc", "")
    (True, False, True)
    """
    return not outer or path == outer or path.startswith(f"{outer}.")


def _module_in(row: ModuleChange, causes: Sequence[ModuleChange]) -> ModuleChange | None:
    """A module that is new, gone or of another class, directly in the one whose operations changed for it."""
    kinds = ("class", "added", "removed")
    modules = (cause for cause in causes if cause.kind in kinds and cause.path.rpartition(".")[0] == row.path)
    return next(modules, None)


def draws_numbers(node: Node) -> bool:
    """Whether an operation drew random numbers; those with a dropout of their own do so only where that is not 0."""
    arguments = dict(named_arguments(node.call))
    has_dropout = DROPOUT in (argument_names(node.call.op) or ())
    return "random" in node.flags and (not has_dropout or bool(arguments.get(DROPOUT)))


def named(node: Node, most: int = 1000) -> str:
    """An operation and its module, in about so many letters."""
    return placed(node.name, module_of(node), most) + (f" ({node.phase})" if node.phase != "forward" else "")


def tensor_name(value: Value) -> str:
    """A tensor by its own name, or by the operation that computed it."""
    if value.producer is not None:
        return named(value.producer)
    return value.name or f"{value.type} from outside"


def distance_text(distance: Distance | Difference) -> str:
    """A distance in words.

    >>> distance_text(Distance(0.25, 1.0)), distance_text(Distance(float("inf"), 2.0))
    ('0.25 relative', '2 from zero')
    """
    if distance.relative < float("inf"):
        return f"{distance.relative:.3g} relative"
    if distance.largest < float("inf"):
        return f"{distance.largest:.3g} from zero"
    return "NaN or infinity in one run alone"


def at_most(distance: Distance | Difference) -> str:
    """The largest of some distances in words."""
    text = distance_text(distance)
    return f"at most {text}" if distance.largest < float("inf") else text
