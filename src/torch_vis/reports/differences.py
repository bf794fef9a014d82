"""Where two runs of a model part numerically: the first operation that differs, where the gap grows, what comes out."""

from __future__ import annotations

from functools import cached_property
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from torch_vis.analysis.compare import module_of
from torch_vis.analysis.compare_results import Matched, match_results
from torch_vis.errors import UsageError
from torch_vis.graph.gradients import ENDING
from torch_vis.graph.rows import Node
from torch_vis.graph.words import many
from torch_vis.reports.accumulation import accumulation_note, filled_before
from torch_vis.reports.came_in import CameIn, came_in, given_to_both
from torch_vis.reports.lines import line_to_mend
from torch_vis.reports.report import Report
from torch_vis.run.differences import Gap, Gaps, gaps
from torch_vis.views.charts import Axis, Chart, Series
from torch_vis.views.charts_names import placed
from torch_vis.views.tables import Field, Listing

if TYPE_CHECKING:
    import pandas

    from torch_vis.analysis.compare import Alignment
    from torch_vis.tracing import Trace

MARKS = 12  # points of a chart that are named
LISTINGS = {
    "news": "Where the difference is news",
    "given": "Given to both, and different",
    "all": "All that differ, in order",
    "results": "Results",
}
APART = "not comparable"
MIXED = "accumulated into what was there before"
COMPILED = (
    "{} ran compiled code, which is one operation here, without a counterpart: only what comes out of it is compared. "
    'tv.trace(model, …, via="aot") or via="dynamo" of the model before torch.compile shows what is inside'
)
GROWTH = 10.0  # times what came in: an operation of which the difference is news


class Difference(NamedTuple):
    """An operation of ``a`` and its counterpart in ``b`` that made other numbers."""

    a: Node
    b: Node
    relative: float
    largest: float
    came_in: float | None
    """The largest relative difference among what it read; None where that is not known."""
    reads: str = ""
    """What it, or its counterpart, reads that the other run does not have."""


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
        self.matched: Matched = match_results(a.graph, b.graph, alignment.scope_to_b)
        values = [(one.value, two.value) for one, two in self.matched.pairs]
        self._given = given_to_both(a.graph, b.graph, self._to_b)
        self.gaps: Gaps = gaps((a.graph, a._held), (b.graph, b._held), self._to_b, values, self._given)
        self.accumulated = {
            "A": filled_before(a.graph, a._held),
            "B": filled_before(b.graph, b._held),
        }

    @cached_property
    def given(self) -> list[Given]:
        """Inputs, parameters and buffers that were not the same before the runs, the largest difference first."""
        found = [
            Given(
                self.a.graph.values[here].name,
                self.b.graph.values[there].name,
                self.a.graph.values[here].role,
                gap,
            )
            for (here, there), gap in zip(self._given, self.gaps.given, strict=True)
            if gap is not None and gap.relative > 0
        ]
        return sorted(found, key=lambda row: -row.gap.relative)

    @cached_property
    def _came_in(self) -> CameIn:
        outside = {
            here: None if gap is None else gap.relative
            for (here, _), gap in zip(self._given, self.gaps.given, strict=True)
        }
        return came_in(self.a.graph, self.b.graph, self._to_b, self.gaps, outside)

    def _reads(self, node: int) -> str:
        """What an operation reads that only one of the runs has."""
        found = []
        for graph, lone, where in (
            (self.a.graph, self._came_in.lone_a[node], "A"),
            (self.b.graph, self._came_in.lone_b[node], "B"),
        ):
            if lone >= 0:
                found.append(f"{graph.nodes[int(lone)].name} (only in {where})")
        return ", ".join(found)

    @cached_property
    def rows(self) -> list[Difference]:
        """The operations that differ by more than the tolerance.

        Those that add to a gradient from before the run are left out: what they made is not of this run alone.
        """
        found = []
        differing = self.gaps.known & (self.gaps.relative > self.tolerance)
        differing[list(self._accumulating)] = False
        for node in np.flatnonzero(differing).tolist():
            pair = self.a.graph.nodes[node], self.b.graph.nodes[int(self._to_b[node])]
            gap = float(self.gaps.relative[node]), float(self.gaps.largest[node])
            reads, known = self._reads(node), float(self._came_in.known[node])
            explained = gap[0] <= GROWTH * known or not (reads or self._came_in.open[node])
            found.append(Difference(*pair, *gap, known if explained else None, reads))
        return found

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

        Those that read what only one of the runs has are among them, since it may be the cause. What is zero but for
        rounding in both runs is no news, however much of it differs, and neither is what reads tensors that cannot be
        compared.
        """
        return [
            row
            for row in self.rows
            if not self.gaps.rounding[row.a.index]
            and (bool(row.reads) if row.came_in is None else row.relative > GROWTH * row.came_in)
        ]

    @cached_property
    def results(self) -> dict[str, tuple[str, Gap]]:
        """Outputs, gradients and changed state that both have, by the name in ``a``: the kind, and the gap."""
        compared = zip(self.matched.pairs, self.gaps.results, strict=True)
        return {one.name: (one.kind, gap) for (one, _), gap in compared if gap is not None}

    @cached_property
    def left_out(self) -> dict[str, list[str]]:
        """The results that are not compared, by the reason."""
        compared = zip(self.matched.pairs, self.gaps.results, strict=True)
        found = {
            "only in A": [one.name for one in self.matched.only_a],
            "only in B": [one.name for one in self.matched.only_b],
            APART: [one.name for (one, _), gap in compared if gap is None],
        }
        return {reason: names for reason, names in found.items() if names}

    @cached_property
    def _compiled(self) -> list[str]:
        """Which of the two ran compiled code."""
        return [
            name
            for name, trace in (("A", self.a), ("B", self.b))
            if any(call.op == "torch_vis::compiled" for call in trace.graph.calls)
        ]

    def facts(self) -> dict[str, str]:
        compared = int(self.gaps.known.sum())
        found = {
            "compared": f"{compared:,} of {many(len(self.a.graph), 'operation')}, {many(len(self.results), 'result')}",
            "differ": many(len(self.rows), "operation")
            + (f" by more than {self.tolerance:g}" if self.tolerance else "")
            if compared
            else "nothing could be compared: no operation has a counterpart of the same shape",
        }
        if self.first is not None:
            site = line_to_mend(self.first.a)
            line = f", {site.short}" if site else ""
            found["first"] = f"{_named(self.first.a)}: {self.first.relative:.3g} relative{line}"
        if self.given:
            worst_given = self.given[0]
            found["given"] = (
                f"{many(len(self.given), 'tensor')} not the same before the runs: at most "
                f"{worst_given.gap.relative:.3g} relative, in {worst_given.name}"
            )
        for kind in ("output", "gradient", "state"):
            all_of = {name: gap for name, (what, gap) in self.results.items() if what == kind}
            of_run = {
                name: gap for name, gap in all_of.items() if kind != "gradient" or name not in self.mixed
            }
            of_kind = {name: gap for name, gap in of_run.items() if not gap.rounding}
            if all_of and not of_run:
                found[kind] = f"accumulated into what was there before, in {_some(list(all_of))}"
            elif all_of and not of_kind:
                found[kind] = f"zero but for rounding in both, in {_some(list(all_of))}"
            elif of_kind:
                worst = max(of_kind, key=lambda name: of_kind[name].relative)
                found[kind] = f"at most {of_kind[worst].relative:.3g} relative, in {worst}"
        for reason, names in self.left_out.items():
            found[f"results {reason}"] = _some(names)
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
        given = (Field("name", "given"), Field("role", "role"), *gap)
        other = {one.name: two.name for one, two in self.matched.pairs if one.name != two.name}
        renamed = (Field("in_b", "in B"),) if other else ()
        results = (Field("name", "result"), *renamed, Field("kind", "kind"), *gap, Field("remark", "remark"))
        worst = sorted(
            self.results.items(),
            key=lambda item: (item[0] in self.mixed or item[1][1].rounding, -item[1][1].relative),
        )
        rows = [
            (
                name,
                *((other.get(name),) if other else ()),
                kind,
                found.relative,
                found.largest,
                MIXED if kind == "gradient" and name in self.mixed else _remark(found),
            )
            for name, (kind, found) in worst
        ]
        return [
            Listing(LISTINGS["news"], operations, [_row(row) for row in self.born], most=15),
            Listing(
                LISTINGS["given"], given, [(row.name, row.role, *row.gap[:2]) for row in self.given], most=10
            ),
            Listing(LISTINGS["all"], operations, [_row(row) for row in self.rows], most=10),
            Listing(LISTINGS["results"], results, rows, most=15),
        ]

    def to_pandas(self, listing: str | None = None) -> pandas.DataFrame:
        """The rows of a listing as a pandas ``DataFrame``: ``"all"`` that differ by default, ``"news"``, ``"results"``.

        >>> import torch, torch_vis as tv
        >>> x, model = torch.ones(2, 3), torch.nn.Linear(3, 1)
        >>> found = tv.compare(tv.trace(model, x), tv.trace(model, 2 * x)).differences()
        >>> list(found.to_pandas().a), list(found.to_pandas("results").name)
        (['addmm'], ['output'])
        """
        name = "all" if listing is None else listing
        return super().to_pandas(LISTINGS.get(name, name))

    def notes(self) -> list[str]:
        noise = self.gaps.rounding.any() or any(gap.rounding for _, gap in self.results.values())
        missing = len(self.a.graph) - int(self.gaps.known.sum())
        filled = {where: found for where, found in self.accumulated.items() if found}
        apart = f"results {APART}: of another shape, or without plain numbers"
        return [
            *([COMPILED.format(" and ".join(self._compiled))] if self._compiled else []),
            *([apart] if APART in self.left_out else []),
            *(accumulation_note(found, f" of {where}") for where, found in filled.items()),
            f"relative: the norm of the difference over the norm in A; {many(missing, 'operation')} without numbers to "
            "compare (views, integers, no counterpart, another shape)",
            *(
                [
                    "zero but for rounding: a sum that cancels in both runs; what is left of it is no difference"
                ]
                if noise
                else []
            ),
        ]

    def charts(self) -> dict[str, Chart]:
        shown = np.flatnonzero(self.gaps.known & (self.gaps.relative > 0) & np.isfinite(self.gaps.relative))
        if not len(shown):
            return {}
        names = [_named(self.a.graph.nodes[node]) for node in shown.tolist()]
        news = {row.a.index for row in self.born[:MARKS]}
        first = -1 if self.first is None else self.first.a.index
        marks = [
            ("first: " if node == first else "") + _named(self.a.graph.nodes[node], 40)
            if node == first or node in news
            else ""
            for node in shown.tolist()
        ]
        series = Series("difference", shown.tolist(), self.gaps.relative[shown].tolist(), names, marks=marks)
        axes = Axis("operation of A, in the order of its run", "count"), Axis("relative difference", log=True)
        return {"operations": Chart("points", "Numerical differences along the run", *axes, [series])}


def _some(names: list[str]) -> str:
    return ", ".join(names[:5]) + (f" and {len(names) - 5:,} more" if len(names) > 5 else "")


def _remark(gap: Gap) -> str | None:
    return "zero but for rounding" if gap.rounding else None


def _named(node: Node, most: int = 1000) -> str:
    """An operation and where it stands, in about so many letters."""
    return placed(node.name, module_of(node), most) + (f" ({node.phase})" if node.phase != "forward" else "")


def _row(row: Difference) -> tuple[str, str | None, float, float, float | None, str | None]:
    site = line_to_mend(row.a)
    line = site.short if site else None
    return _named(row.a), line, row.relative, row.largest, row.came_in, row.reads or None
