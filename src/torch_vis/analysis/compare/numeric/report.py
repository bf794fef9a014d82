"""Where two runs of a model part numerically: the first operation that differs, where the gap grows, what comes out."""

from __future__ import annotations

from functools import cached_property
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from torch_vis.analysis.compare.numeric.attribution import CameIn, Judge
from torch_vis.analysis.compare.numeric.chart import chart
from torch_vis.analysis.compare.numeric.compared_outputs import all_results, all_rounds, not_compared
from torch_vis.analysis.compare.numeric.headline import NO_NUMBERS, in_short, named, tensor_name, told
from torch_vis.analysis.compare.numeric.output_text import ZERO, result_listing, told_of_kind
from torch_vis.analysis.compare.numeric.paired_inputs import Pair, Readings
from torch_vis.analysis.compare.numeric.python_outputs import APART, plain_outputs
from torch_vis.analysis.compare.numeric.side_by_side import Gaps, gaps
from torch_vis.analysis.compare.numeric.tensor_distance import Gap
from torch_vis.analysis.compare.outputs import Matched, match_results
from torch_vis.analysis.gradients.accumulation import accumulation_note, filled_before
from torch_vis.analysis.gradients.source_line import line_to_mend
from torch_vis.analysis.report import Report
from torch_vis.errors import UsageError
from torch_vis.graph.gradients import ENDING
from torch_vis.graph.rows import Node
from torch_vis.graph.text import and_more, many
from torch_vis.graph.types import Bools
from torch_vis.views.charts.chart import Chart
from torch_vis.views.text.table import Field, Listing

if TYPE_CHECKING:
    import pandas

    from torch_vis.analysis.compare.align import Alignment
    from torch_vis.api import Trace

LISTINGS = {
    "news": "Where the difference is news",
    "rewired": "Where another tensor is read",
    "given": "Given to both, and different",
    "all": "All that differ, in order",
    "results": "Results",
}
COMPILED = (
    "{} ran compiled code, which is one operation here, without a counterpart: only what comes out of it is compared. "
    'tv.trace(model, …, via="aot") or via="dynamo" of the model before torch.compile shows what is inside'
)


class Difference(NamedTuple):
    """An operation of ``a`` and its counterpart in ``b`` that made other numbers."""

    a: Node
    b: Node
    relative: float
    largest: float
    came_in: float | None
    """The largest relative difference among what both really read; None where that is not known."""
    reads: str = ""
    """What its counterpart reads that is another tensor, or what only one of the two reads."""


class Given(NamedTuple):
    """A tensor that both runs were given, by its names in both, and how far apart it was before they ran."""

    name: str
    in_b: str
    role: str
    gap: Gap


class Differences(Report):
    """The numerical differences of two runs, operation by operation, in the order of the first.

    >>> import torch, torch_vis as tv
    >>> torch.manual_seed(0)  # doctest: +ELLIPSIS
    <...>
    >>> model = torch.nn.Sequential(torch.nn.Linear(3, 4), torch.nn.GELU(), torch.nn.Linear(4, 1))
    >>> x = torch.randn(2, 3)
    >>> one = tv.trace(model, x)
    >>> with torch.no_grad():
    ...     other = torch.nn.Sequential(model[0], torch.nn.GELU(approximate="tanh"), model[2])
    >>> found = tv.compare(one, tv.trace(other, x)).differences()
    >>> found.first.a.name, found.first.a.path
    ('gelu', '1')
    """

    title = "Numerical differences"

    def __init__(self, a: Trace, b: Trace, alignment: Alignment, tolerance: float) -> None:
        if not tolerance >= 0:
            raise UsageError(f"tolerance is a relative difference, 0 or more, not {tolerance!r}")
        self.a, self.b = a, b
        self.tolerance = tolerance
        self._to_b = alignment.to_b
        self.matched: Matched = match_results(a.graph, b.graph, alignment.scope_to_b, alignment.wiring)
        values = [(one.value, two.value) for one, two in self.matched.pairs]
        self._readings = Readings(a.graph, b.graph, self._to_b)
        self.gaps: Gaps = gaps((a.graph, a._held), (b.graph, b._held), self._readings, values)
        self._judge = Judge(self._readings, self.gaps)
        self.plain = plain_outputs(a, b)
        self.accumulated = {
            "A": filled_before(a.graph, a._held),
            "B": filled_before(b.graph, b._held),
        }

    @cached_property
    def given(self) -> list[Given]:
        """Inputs, parameters and buffers that were not the same before the runs, the largest difference first."""
        found = []
        for here, gap in self.gaps.given.items():
            if gap is not None and gap.relative > 0:
                one, two = self.a.graph.values[here], self.b.graph.values[self._readings.given[here]]
                found.append(Given(tensor_name(one), tensor_name(two), one.role, gap))
        infinite = float("inf")  # what was zero in A has no relative difference, and comes last
        return sorted(
            found,
            key=lambda row: (row.gap.largest == infinite, row.gap.relative < infinite, row.gap.relative),
            reverse=True,
        )

    @cached_property
    def _all_came_in(self) -> dict[int, CameIn]:
        return {node: self._judge.of(node) for node in np.flatnonzero(self.differing).tolist()}

    def came_in(self, node: Node) -> CameIn:
        """What came in to an operation of ``a`` that differs."""
        return self._all_came_in[node.index]

    @cached_property
    def differing(self) -> Bools:
        """Operations that differ at all; not those that add to a gradient from before, nor what is only rounding."""
        found = self.gaps.known & (self.gaps.relative > 0) & ~self.gaps.rounding
        found[list(self._accumulating)] = False
        return found

    @cached_property
    def rows(self) -> list[Difference]:
        """The operations that differ by more than the tolerance.

        Those that add to a gradient from before the run are left out: what they made is not of this run alone. So is
        what is zero but for rounding in both runs: what is left of it is no difference.
        """
        found = []
        for node in np.flatnonzero(self.differing & (self.gaps.relative > self.tolerance)).tolist():
            pair = self.a.graph.nodes[node], self.b.graph.nodes[int(self._to_b[node])]
            gap = float(self.gaps.relative[node]), float(self.gaps.largest[node])
            found.append(Difference(*pair, *gap, self._all_came_in[node].largest, self._reads(node)))
        return found

    def _reads(self, node: int) -> str:
        """In words, what the counterpart of an operation reads instead of what it reads itself."""
        others = self._all_came_in[node].others
        if others:
            here, there = self._instead(others[0])
            rest = f" and {len(others) - 1} more" if len(others) > 1 else ""
            return (
                f"another part of {here}" if others[0].same else f"another tensor: {there} instead of {here}"
            ) + rest
        alone = zip("AB", self._readings.alone(node))
        return ", ".join(
            f"{self.called(w, value)}, in {w} alone" for w, values in alone for value in values[:1]
        )

    def _instead(self, pair: Pair) -> tuple[str, str]:
        """Two tensors that are read in one place, in words."""
        here, there = self.called("A", pair.here), self.called("B", pair.there)
        return (here, f"another part of {there}") if pair.same else (here, there)

    def called(self, where: str, value: int) -> str:
        """A tensor of one of the runs in words, and whether what made it is only there."""
        graph = (self.a if where == "A" else self.b).graph
        value = self._readings.sides["AB".index(where)].root[value]
        known = self._readings.counterpart if where == "A" else self._readings.back
        lone = graph.value_producer[value] >= 0 and value not in known
        return tensor_name(graph.values[value]) + (f" (only in {where})" if lone else "")

    @cached_property
    def _accumulating(self) -> set[int]:
        """The operations of ``a`` that add to what was in ``.grad`` before, or whose counterparts do."""
        here, there = (
            {node for row in found.values() for node in row.nodes} for found in self.accumulated.values()
        )
        return here | set(np.flatnonzero(np.isin(self._to_b, list(there))).tolist())

    @cached_property
    def mixed(self) -> set[str]:
        """The gradients that hold what was there before the run, of which the run's own part is not known."""
        unknown = [
            {f"{name}{ENDING}" for name, row in found.items() if row.own is None}
            for found in self.accumulated.values()
        ]
        return {
            one.name
            for one, two in self.matched.pairs
            if one.kind == "gradient" and (one.name in unknown[0] or two.name in unknown[1])
        }

    @property
    def first(self) -> Difference | None:
        """The first operation that differs; None where none does."""
        return self.rows[0] if self.rows else None

    @cached_property
    def born(self) -> list[Difference]:
        """The operations of which the difference is news: of their own making, or ten times what came in.

        So are those that are called otherwise, if they make something else of the same numbers. What an operation makes
        of sums that cancel is judged by the size of what it sums up. No news is what reads another tensor than its
        counterpart (see ``rewired``), and what reads tensors that cannot be compared.
        """
        return [row for row in self.rows if self.came_in(row.a).news]

    @cached_property
    def rewired(self) -> list[Difference]:
        """The operations that differ because they read another tensor than their counterparts.

        What is computed in another way counts if it is something else, and not only rounded otherwise, when it is
        computed from the same: both ways are tried on what ``a`` had, so that nothing else that differs can hide it.
        """
        return [row for row in self.rows if self.came_in(row.a).rewired]

    def is_start(self, row: Difference) -> bool:
        """Whether a difference begins at an operation, or comes in there from elsewhere than in the other run."""
        return self.came_in(row.a).news or self.came_in(row.a).rewired

    @cached_property
    def results(self) -> dict[str, tuple[str, Gap]]:
        """Outputs, gradients and changed state that both have, by the name in ``a``: the kind, and the gap."""
        return all_results(self)

    @property
    def any_compared(self) -> bool:
        """Whether anything was compared: numbers of an operation or a result, or an output that is no tensor."""
        compared = any(gap is not None for gap in self.gaps.results)
        return compared or bool(self.gaps.known.any()) or self.plain.any_compared

    @cached_property
    def led_by_rounding(self) -> set[str]:
        """The states that an optimizer changed by a gradient that is zero but for rounding in both runs."""
        zero = {name.removesuffix(ENDING) for name, (_, gap) in self.results.items() if gap.zero_in == "AB"}
        states = [name for name, (kind, gap) in self.results.items() if kind == "state" and gap.relative]
        inner = {name: ".".join(name.split(".")[1:-1]) for name in states}  # of Adam.fc.bias.exp_avg, fc.bias
        return {name for name in states if name in zero or inner[name] in zero}

    @property
    def same(self) -> bool:
        """Whether all outputs were compared, and nothing that both have differs by more than the tolerance.

        Outputs that are no tensors count as well: numbers by the tolerance, all else must be equal.
        What is zero but for rounding, or led by that, does not count.

        >>> import torch, torch_vis as tv
        >>> x, model = torch.ones(2, 3), torch.nn.Linear(3, 1)
        >>> one, two = tv.trace(model, x), tv.trace(model, 1.001 * x)
        >>> [tv.compare(one, two).differences(tolerance=tolerance).same for tolerance in (0, 0.1)]
        [False, True]
        """
        without = self.mixed | self.led_by_rounding
        gaps = [gap for name, (_, gap) in self.results.items() if not gap.rounding and name not in without]
        gaps += [row.gap for row in self.given]
        compared = self.any_compared and not self.outputs_left_out and not self.plain.other
        return compared and not self.rows and all(gap.relative <= self.tolerance for gap in gaps)

    def rounds(self, name: str) -> float:
        """By how many times the rounding of what it was computed from a result differs."""
        return self._rounds[name]

    @cached_property
    def _rounds(self) -> dict[str, float]:
        return all_rounds(self)

    @property
    def left_out(self) -> dict[str, list[str]]:
        """The results that are not compared, by the reason."""
        return not_compared(self, "output", "gradient", "state")

    @property
    def outputs_left_out(self) -> dict[str, list[str]]:
        """The outputs among them."""
        return not_compared(self, "output")

    @cached_property
    def compiled(self) -> list[str]:
        """Which of the two ran compiled code."""
        return [
            name
            for name, trace in (("A", self.a), ("B", self.b))
            if any(call.op == "torch_vis::compiled" for call in trace.graph.calls)
        ]

    def facts(self) -> dict[str, str]:
        compared = int(self.gaps.known.sum())
        found = {"in short": in_short(self)}
        if self.first is not None:
            site = line_to_mend(self.first.a)
            line = f", {site.short}" if site else ""
            found["first"] = f"{named(self.first.a)}: {told(self.first)}{line}"
        if self.given:
            worst_given = self.given[0]
            found["given"] = (
                f"{many(len(self.given), 'tensor')} not the same before the runs: at most "
                f"{told(worst_given.gap)}, in {worst_given.name}"
            )
        found |= {
            kind: text for kind in ("output", "gradient", "state") if (text := told_of_kind(self, kind))
        }
        if self.plain.other:
            found["other outputs"] = and_more([f"{name}: {told}" for name, told in self.plain.other.items()])
        for reason, names in self.left_out.items():
            found[f"results {reason}"] = and_more(names)
        found["differ"] = (
            many(len(self.rows), "operation")
            + (f" by more than {self.tolerance:g}" if self.tolerance else "")
            if compared
            else NO_NUMBERS
        )
        found["compared"] = (
            f"{compared:,} of {many(len(self.a.graph), 'operation')}, {many(len(self.results), 'result')}"
        )
        return found

    def listings(self) -> list[Listing]:
        figure = "{:.3g}".format
        gap = (Field("relative", "relative", figure), Field("largest", "largest", figure))
        operations = (
            Field("a", "operation"),
            Field("line", "line"),
            *gap,
            Field("came_in", "came in", figure),
            Field("reads", "reads"),
        )
        rewired = (*operations[:3], operations[4], Field("reads_a", "A reads"), Field("reads_b", "B reads"))
        given = (Field("name", "given"), Field("role", "role"), *gap)
        return [
            Listing(LISTINGS["news"], operations, [_row(row) for row in self.born], most=15),
            Listing(LISTINGS["rewired"], rewired, [self._rewired_row(row) for row in self.rewired], most=15),
            Listing(
                LISTINGS["given"], given, [(row.name, row.role, *row.gap[:2]) for row in self.given], most=10
            ),
            Listing(LISTINGS["all"], operations, [_row(row) for row in self.rows], most=10),
            result_listing(self, LISTINGS["results"], gap),
        ]

    def _rewired_row(self, row: Difference) -> tuple[str, str | None, float, float | None, str, str]:
        name, line, relative, _, came_in, _ = _row(row)
        return name, line, relative, came_in, *self._instead(self.came_in(row.a).others[0])

    def to_pandas(self, listing: str | None = None) -> pandas.DataFrame:
        """The rows of a listing as a pandas ``DataFrame``: those that differ by default, ``"news"``, ``"rewired"``, …

        >>> import torch, torch_vis as tv
        >>> x, model = torch.ones(2, 3), torch.nn.Linear(3, 1)
        >>> found = tv.compare(tv.trace(model, x), tv.trace(model, 2 * x)).differences()
        >>> list(found.to_pandas().a), list(found.to_pandas("results").name)
        (['addmm'], ['output'])
        """
        name = "all" if listing is None else listing
        return super().to_pandas(LISTINGS.get(name, name))

    def notes(self) -> list[str]:
        noise = bool(self.gaps.rounding.any()) or any(gap.rounding for _, gap in self.results.values())
        missing = len(self.a.graph) - int(self.gaps.known.sum())
        filled = {where: found for where, found in self.accumulated.items() if found}
        apart = f"results {APART}: of another shape, or without plain numbers"
        return [
            *([COMPILED.format(" and ".join(self.compiled))] if self.compiled else []),
            *([apart] if APART in self.left_out else []),
            *(accumulation_note(found, f" of {where}") for where, found in filled.items()),
            f"relative: the norm of the difference over the norm in A; {many(missing, 'operation')} without numbers to "
            "compare (views, integers, no counterpart, another shape)",
            *(
                [
                    f"{ZERO}: a sum that cancels, judged by the size of its summands, and what is made of it; where "
                    "that is so in both runs, what is left of it is no difference, is not counted, and is not drawn"
                ]
                if noise
                else []
            ),
        ]

    def charts(self) -> dict[str, Chart]:
        shown = np.flatnonzero(self.differing).tolist()
        return {"operations": chart(self, shown)} if shown else {}


def _row(row: Difference) -> tuple[str, str | None, float, float, float | None, str | None]:
    site = line_to_mend(row.a)
    line = site.short if site else None
    return named(row.a), line, row.relative, row.largest, row.came_in, row.reads or None
