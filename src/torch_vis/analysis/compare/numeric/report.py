"""Where two runs of a model part numerically: the first operation that differs, where the gap grows, what comes out."""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import cached_property
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from torch_vis.analysis.compare.align import module_of
from torch_vis.analysis.compare.numeric.attribution import CameIn, Judge
from torch_vis.analysis.compare.numeric.isolated_replay import OF_ROUNDING
from torch_vis.analysis.compare.numeric.paired_inputs import Pair, Readings
from torch_vis.analysis.compare.numeric.python_outputs import APART, THE_SAME, plain_outputs
from torch_vis.analysis.compare.numeric.side_by_side import Gaps, gaps
from torch_vis.analysis.compare.numeric.tensor_distance import Gap
from torch_vis.analysis.compare.outputs import MatchedResults, RunResult, match_results
from torch_vis.analysis.gradients.accumulation import accumulation_note, filled_before
from torch_vis.analysis.gradients.source_line import line_to_mend
from torch_vis.analysis.report import Report
from torch_vis.errors import UsageError
from torch_vis.graph.call import Call, Slot
from torch_vis.graph.gradients import ENDING
from torch_vis.graph.graph import Node, Value
from torch_vis.graph.schema import Flag
from torch_vis.graph.text import and_more, many
from torch_vis.graph.types import Bools
from torch_vis.ops.schemas import named_arguments
from torch_vis.views.charts.chart import COLORS, Axis, Chart, Series
from torch_vis.views.charts.labels import placed
from torch_vis.views.text.table import Field, Listing

if TYPE_CHECKING:
    import pandas

    from torch_vis._trace import Trace
    from torch_vis.analysis.compare.align import Alignment

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
        self.matched: MatchedResults = match_results(a.graph, b.graph, alignment.scope_to_b, alignment.wiring)
        values = [(one.value, two.value) for one, two in self.matched.pairs]
        self._readings = Readings(a.graph, b.graph, self._to_b)
        self.gaps: Gaps = gaps((a.graph, a.kept), (b.graph, b.kept), self._readings, values)
        self._judge = Judge(self._readings, self.gaps)
        self.plain = plain_outputs(a, b)
        self.accumulated = {
            "A": filled_before(a.graph, a.kept),
            "B": filled_before(b.graph, b.kept),
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


MOST_ARGUMENTS = 3
SAME = "no difference: all that could be compared is the same in both"
NOT_ELSE = "nothing else differs"
NO_NUMBERS = "no operation has numbers to compare"
NO_OUTPUT = "neither run gives anything back"


def named(node: Node, most: int = 1000) -> str:
    """An operation and where it stands, in about so many letters."""
    return placed(node.name, module_of(node), most) + (f" ({node.phase})" if node.phase != "forward" else "")


def tensor_name(value: Value) -> str:
    """A tensor by its own name, or by the operation that made it."""
    if value.producer is not None:
        return named(value.producer)
    return value.name or f"{value.type} from outside"


def told(gap: Gap | Difference) -> str:
    """A difference in words.

    >>> told(Gap(0.25, 1.0)), told(Gap(float("inf"), 2.0))
    ('0.25 relative', '2 from zero')
    """
    if gap.relative < float("inf"):
        return f"{gap.relative:.3g} relative"
    return (
        f"{gap.largest:.3g} from zero" if gap.largest < float("inf") else "NaN or infinity in one run alone"
    )


def at_most(gap: Gap | Difference) -> str:
    """The largest of some differences in words."""
    return f"at most {told(gap)}" if gap.largest < float("inf") else told(gap)


def called_otherwise(one: Call, two: Call) -> str:
    """The arguments in which two calls differ, but for which tensors they take.

    >>> called_otherwise(Call("aten::gelu", (Slot(0),), ()), Call("aten::gelu", (Slot(0),), (("approximate", "tanh"),)))
    "approximate: none → 'tanh'"
    """
    if one.op != two.op:
        return f"{one.op} → {two.op}"
    here, there = _by_name(one), _by_name(two)
    found = [
        f"{name}: {_shown(here.get(name))} → {_shown(there.get(name))}"
        for name in dict.fromkeys([*here, *there])
        if _shown(here.get(name)) != _shown(there.get(name))
    ]
    return and_more(found, MOST_ARGUMENTS)


def _by_name(call: Call) -> dict[str, Any]:
    return dict(named_arguments(call, unnamed="argument {}"))


def _shown(item: Any) -> str:
    if isinstance(item, Slot):
        return "a tensor"
    return "none" if item is None else Call("", (item,), ()).format()[1:-1]


def in_short(found: Differences) -> str:
    """What to look at, in a sentence."""
    missing = found.outputs_left_out
    has_outputs = any(kind == "output" for kind, _ in found.results.values()) or bool(found.plain.other)
    if not found.any_compared:
        no_output = "" if missing or has_outputs else f"; {NO_OUTPUT}"
        return f"nothing could be compared: {NO_NUMBERS}, and no result has{no_output}"
    told = _what_differs(found)
    if found.plain.other:
        told = _other_outputs(found) + (f"; {told}" if told and not told.startswith(SAME) else "")
    if not missing:
        return (told or SAME) + ("" if has_outputs else f"; {NO_OUTPUT}")
    names = "; ".join(f"{and_more(names, 3)} ({reason})" for reason, names in missing.items())
    if has_outputs:
        return (
            f"{told}; not compared: {names}"
            if told
            else f"no difference in what could be compared; not compared: {names}"
        )
    return (
        f"{told}; no output could be compared"
        if told
        else f"no output could be compared: {names}; {NOT_ELSE}"
    )


def _other_outputs(found: Differences) -> str:
    """The outputs that are no numbers, and something else in both."""
    told = [f"{name} ({words})" for name, words in found.plain.other.items()]
    return f"{and_more(told, 3)} {'is' if len(told) == 1 else 'are'} something else"


def _what_differs(found: Differences) -> str:
    """The same of what could be compared; nothing where that is the same."""
    without = found.mixed | found.led_by_rounding
    results = {
        name: gap for name, (_, gap) in found.results.items() if not gap.rounding and name not in without
    }
    worst = max(results, key=lambda name: results[name].relative, default="")
    if not found.rows and not (worst and results[worst].relative):
        return f"{SAME}, but for what is nothing but rounding" if _only_rounds(found) else ""
    off = f"{at_most(results[worst])}, in {worst}" if worst else ""
    if worst and results[worst].relative and all(found.rounds(name) <= OF_ROUNDING for name in results):
        times = max(found.rounds(name) for name in results)
        return f"no more than rounding: results differ by {off} ({times:.2g} times the rounding of a single step)"
    if found.compiled and worst and results[worst].relative:
        return _given(found) or f"what the compiled code gave differs: {off}; {_inside(found)}"
    start = next((row for row in found.rows if found.is_start(row)), found.first)
    if start is not None:
        return _where_it_starts(found, start) + _not_a_number(found, start)
    if found.tolerance:
        return f"nothing that both runs do differs by more than {found.tolerance:g}; results differ by {off}"
    return _given(found) or (
        f"results differ by {off}, but nothing that both runs do: look at what only one of them does"
        + _made_by_another(found, worst)
    )


def _made_by_another(found: Differences, name: str) -> str:
    """What gives a result in both runs, if that is not the same."""
    if name in found.plain.gaps:
        is_tensor = name in found.plain.hidden
        return "" if is_tensor else f"; {name} is no tensor, and what is computed outside torch is not seen"
    one, two = next(pair for pair in found.matched.pairs if pair[0].name == name)
    here, there = found.called("A", one.value), found.called("B", two.value)
    return f" ({there} instead of {here})" if here != there else ""


def _only_rounds(found: Differences) -> bool:
    return any(gap.relative for _, gap in found.results.values())


def _inside(found: Differences) -> str:
    """What may be the matter inside compiled code."""
    if any(((trace.graph.node_flags & Flag.RANDOM) != 0).any() for trace in (found.a, found.b)):
        return "it draws random numbers of its own (dropout), so that only model.eval() can be compared"
    return "what is inside it cannot be compared"


def _given(found: Differences) -> str:
    if not found.given:
        return ""
    handed_on = ", and operations hand that on" if all(row.came_in is not None for row in found.rows) else ""
    return f"what the runs were given differs, {_most_of_all(found)}{handed_on}"


def _most_of_all(found: Differences) -> str:
    first = found.given[0]
    return f"most of all {first.name} ({told(first.gap)})"


def _not_a_number(found: Differences, start: Difference) -> str:
    """Where one run alone first made what is no number, unless that is where it starts."""
    row = next((row for row in found.rows if row.largest == float("inf")), start)
    return "" if row is start else f"; {named(row.a)} is the first to give {told(row)}"


def _where_it_starts(found: Differences, row: Difference) -> str:
    if not found.is_start(row):
        read = "cannot be compared" if row.came_in is None else f"differs by {row.came_in:.3g}"
        return _given(found) or f"{named(row.a)} is the first to differ ({told(row)}); what it reads {read}"
    is_first = "is the first to differ" if row is found.first else "differs"
    too = f"; what the runs were given differs too, {_most_of_all(found)}" if found.given else ""
    return _why_here(found, row, f"{named(row.a)} {is_first}") + too


def _why_here(found: Differences, row: Difference, differs: str) -> str:
    """What is the matter with an operation where a difference starts."""
    if found.came_in(row.a).rewired:
        return f"the runs part at {named(row.a)}, which reads {row.reads}"
    if "random" in row.a.flags:
        return f"{named(row.a)} drew other random numbers: seed both runs alike, with torch.manual_seed(…)"
    otherwise = called_otherwise(row.a.call, row.b.call)
    if otherwise:
        return f"{differs} ({told(row)}): it is called otherwise, {otherwise}"
    also = "" if found.came_in(row.a).others else "also "
    read = "is the same" if not row.came_in else f"differs by {row.came_in:.3g} only"
    return f"{differs} ({told(row)}), though what it reads {read}" + (
        f"; it {also}reads {row.reads}" if row.reads else ""
    )


MIXED = "accumulated into what was there before"
ZERO = "zero but for rounding"
EXPLAINED = "rounding explains it"
LED = f"led by a gradient that is {ZERO}"


def told_of_kind(found: Differences, kind: str) -> str:
    """The results of a kind in words: the one that differs most of those of which that can be said."""
    all_of = {name: gap for name, (what, gap) in found.results.items() if what == kind}
    of_run = {name: gap for name, gap in all_of.items() if kind != "gradient" or name not in found.mixed}
    led = [name for name in of_run if name in found.led_by_rounding]
    of_kind = {name: gap for name, gap in of_run.items() if gap.zero_in != "AB" and name not in led}
    if not all_of:
        return ""
    if not of_run:
        return f"{MIXED}, in {and_more(list(all_of))}"
    parts = []
    if of_kind:
        worst = max(of_kind, key=lambda name: (not of_kind[name].rounding, of_kind[name].relative))
        remark = f": {EXPLAINED}" if of_kind[worst].rounding else ""
        parts.append(
            f"{at_most(of_kind[worst])}, in {worst}{remark}" if of_kind[worst].relative else "the same"
        )
    for where, run in (("A", "A alone"), ("B", "B alone"), ("AB", "both")):
        zero = [name for name, gap in of_run.items() if gap.zero_in == where]
        parts += [f"{ZERO} in {run}: {and_more(zero, 2)}"] if zero else []
    return "; ".join([*parts, *([f"{LED}: {and_more(led, 2)}"] if led else [])])


def result_listing(found: Differences, title: str, gap: Sequence[Field]) -> Listing:
    """All results that both runs have, those that differ most first, those of which that says nothing last."""
    other = {one.name: two.name for one, two in found.matched.pairs if one.name != two.name}
    renamed = (Field("in_b", "in B"),) if other else ()
    fields = (Field("name", "result"), *renamed, Field("kind", "kind"), *gap, Field("remark", "remark"))
    quiet = found.mixed | found.led_by_rounding
    worst = sorted(
        found.results.items(), key=lambda row: (row[0] in quiet or row[1][1].rounding, -row[1][1].relative)
    )
    rows = [
        (name, *((other.get(name),) if other else ()), kind, *one[:2], _remark(found, name, kind, one))
        for name, (kind, one) in worst
    ]
    return Listing(title, fields, rows, most=15)


def _remark(found: Differences, name: str, kind: str, gap: Gap) -> str | None:
    if kind == "gradient" and name in found.mixed:
        return MIXED
    if name in found.led_by_rounding:
        return LED
    if gap.rounding:
        return ZERO if gap.zero_in else EXPLAINED
    return f"{ZERO} in {gap.zero_in}" if gap.zero_in else None


def all_results(found: Differences) -> dict[str, tuple[str, Gap]]:
    """The results that were compared, by the name in A: the kind, and the gap."""
    compared = zip(found.matched.pairs, found.gaps.results, strict=True)
    tensors = {one.name: (one.kind, gap) for (one, _), gap in compared if gap is not None}
    empty = {one.name: (one.kind, THE_SAME) for one, two in found.matched.pairs if _is_empty(found, one, two)}
    return tensors | empty | {name: ("output", gap) for name, gap in found.plain.gaps.items()}


def _is_empty(found: Differences, one: RunResult, two: RunResult) -> bool:
    """Whether two results are of one type and have no elements; where nothing else is there, that is not the same."""
    here, there = found.a.graph.values[one.value].type, found.b.graph.values[two.value].type
    return found.any_compared and 0 in here.shape and (here.shape, here.dtype) == (there.shape, there.dtype)


def not_compared(found: Differences, *kinds: str) -> dict[str, list[str]]:
    """The results of some kinds that were not compared, by the reason."""
    compared = zip(found.matched.pairs, found.gaps.results, strict=True)
    rows = {
        "only in A": found.matched.only_a,
        "only in B": found.matched.only_b,
        APART: [one for (one, two), gap in compared if gap is None and not _is_empty(found, one, two)],
    }
    names = {reason: [one.name for one in left if one.kind in kinds] for reason, left in rows.items()}
    for reason, more in found.plain.left_out.items():
        names[reason] = [*names.get(reason, []), *more]
    return {reason: left for reason, left in names.items() if left}


def all_rounds(found: Differences) -> dict[str, float]:
    """By how many times the rounding of what it was computed from each result differs."""
    off_by = {one.name: off for (one, _), off in zip(found.matched.pairs, found.gaps.off_by, strict=True)}
    # of a number that is no tensor it is not known: that of the others at most
    off_by |= dict.fromkeys(found.plain.fractions, max(off_by.values(), default=0.0))
    return {name: _times(gap, off_by.get(name, 0.0)) for name, (_, gap) in found.results.items()}


def _times(gap: Gap, off: float) -> float:
    return gap.relative / off if off else float("inf") if gap.relative else 0.0


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
