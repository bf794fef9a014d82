"""Ranks side by side: their memory and what they say to each other, equal ranks on one line."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from functools import cached_property
from typing import NamedTuple

from torch_vis.analysis.memory.report import MemoryReport
from torch_vis.analysis.ranks.communication import SUMS, ExchangeSum, known_sum, sent_chart, sum_of, sums_by
from torch_vis.analysis.ranks.exchanges import Exchange
from torch_vis.analysis.ranks.meetings import Mismatch
from torch_vis.analysis.report import Charts, Report, least
from torch_vis.graph.text import and_more, many, size
from torch_vis.views.charts.chart import Axis, Chart, Series
from torch_vis.views.text.table_layout import Field, Listing

LISTED = 64


def rank_spans(ranks: Iterable[int]) -> str:
    """Some ranks in few letters.

    >>> rank_spans([0, 1, 2, 3, 7]), rank_spans([5]), rank_spans(range(0, 1024, 8))
    ('0–3, 7', '5', '0, 8, 16, 24, 32, 40 and 122 more')
    """
    spans: list[list[int]] = []
    for rank in sorted(ranks):
        if spans and rank == spans[-1][1] + 1:
            spans[-1][1] = rank
        else:
            spans.append([rank, rank])
    texts = [str(low) if low == high else f"{low}–{high}" for low, high in spans]
    return and_more(texts, 6)


class RankMemory(NamedTuple):
    """The memory of ranks that need the same."""

    ranks: str
    number: int
    """How many ranks these are."""
    peak_bytes: int
    at: str
    """The operation at the peak, and its module."""
    less: str
    """What the fullest rank has more of."""


class WorldMemoryReport(Report):
    """The peak of each rank, the fullest first, and why the others are not as full."""

    title = "Memory by rank"

    def __init__(self, reports: Mapping[int, MemoryReport], like: Mapping[int, int]) -> None:
        self.reports = reports
        """The memory of each rank, by its number."""
        self._like = like

    @property
    def fullest(self) -> int:
        """The rank with the highest peak; the lowest of several."""
        return min(self._like, key=lambda rank: (-self.reports[self._like[rank]].peak_bytes, rank))

    @property
    def peak_bytes(self) -> int:
        """The peak of the fullest rank."""
        return self.reports[self._like[self.fullest]].peak_bytes

    @property
    def least_bytes(self) -> int:
        """The peak of the rank that needs least."""
        return min(report.peak_bytes for report in self.reports.values())

    @cached_property
    def ranks(self) -> list[RankMemory]:
        """Ranks with equal peaks of equal parts, the fullest first."""
        groups: dict[tuple[object, ...], list[int]] = {}
        for rank, like in self._like.items():
            report = self.reports[like]
            key = (report.peak_bytes, tuple((share.name, share.size_bytes) for share in report.by_use))
            groups.setdefault(key, []).append(rank)
        most = {share.name: share.size_bytes for share in self.reports[self._like[self.fullest]].by_use}
        rows = []
        for members in groups.values():
            report = self.reports[self._like[members[0]]]
            node = report.peak_node
            own = {share.name: share.size_bytes for share in report.by_use}
            less = sorted(((most[name] - own.get(name, 0), name) for name in most), reverse=True)
            words = [f"{name} {size(amount)}" for amount, name in less if amount > 0]
            at = "" if node is None else f"{node.name}{f' in {node.path}' if node.path else ''}"
            rows.append(
                RankMemory(rank_spans(members), len(members), report.peak_bytes, at, and_more(words, 3))
            )
        return sorted(rows, key=lambda row: -row.peak_bytes)

    def facts(self) -> Mapping[str, str]:
        """The fullest rank."""
        facts = {"fullest": f"rank {self.fullest}, {size(self.peak_bytes)}"}
        if self.least_bytes != self.peak_bytes:
            facts["emptiest"] = size(self.least_bytes)
        return facts

    def listings(self) -> Sequence[Listing]:
        """The ranks, and what the fullest holds at its peak."""
        fields = (
            Field("ranks", "ranks"),
            Field("number", "×", "{:,}".format),
            Field("peak_bytes", "peak", size),
            Field("at", "at"),
            Field("less", "the fullest has more of"),
        )
        uses = (Field("name", "use"), Field("size_bytes", "size", size))
        shares = [(share.name, share.size_bytes) for share in self.reports[self._like[self.fullest]].by_use]
        return [
            Listing("Ranks", fields, self.ranks, most=LISTED),
            Listing("At the peak of the fullest", uses, shares),
        ]

    def charts(self) -> Mapping[str, Chart]:
        """The peak of each rank."""
        return Charts(ranks=self._chart)

    def _chart(self) -> Chart:
        rows = self.ranks[:LISTED]
        series = Series("peak", [f"ranks {row.ranks}" for row in rows], [row.peak_bytes for row in rows])
        return Chart("bars", "Peak by rank", Axis("rank"), Axis("memory", "bytes"), [series])


class WorldCommunicationReport(Report):
    """What all ranks say to each other: by rank, by axis and by operation, and where they do not agree."""

    title = "Communication by rank"

    def __init__(
        self,
        exchanges: Mapping[int, Sequence[Exchange]],
        like: Mapping[int, int],
        problems: Sequence[Mismatch],
        matched: int,
    ) -> None:
        self._like = like
        self.exchanges = exchanges
        """What each rank said to others, by its number."""
        self.problems = problems
        """What ranks do not agree on, with the operation and the line."""
        self.matched = matched
        """How many meetings have all their ranks."""

    @cached_property
    def ranks(self) -> list[ExchangeSum]:
        """Ranks that send the same, the most bytes first; times are those of the first of them."""
        groups: dict[tuple[object, ...], list[int]] = {}
        for rank, like in self._like.items():
            rows = self.exchanges[like]
            timed = rank if any(row.waited_ns is not None for row in rows) else None
            key = (len(rows), known_sum(r.bytes for r in rows), known_sum(r.sent_bytes for r in rows), timed)
            groups.setdefault(key, []).append(rank)
        rows_of = [
            sum_of(rank_spans(ranks), self.exchanges[self._like[ranks[0]]]) for ranks in groups.values()
        ]
        return sorted(rows_of, key=lambda row: -(row.sent_bytes or 0))

    def _every(self) -> list[Exchange]:
        return [row for like in self._like.values() for row in self.exchanges[like]]

    @cached_property
    def by_axis(self) -> list[ExchangeSum]:
        """Added up over all ranks, by mesh axis."""
        return sums_by(self._every(), lambda row: f"{row.axis} ({len(row.members)})")

    @cached_property
    def by_operation(self) -> list[ExchangeSum]:
        """Added up over all ranks, by operation and axis."""
        return sums_by(self._every(), lambda row: f"{row.kind} on {row.axis}")

    @cached_property
    def by_line(self) -> list[ExchangeSum]:
        """Added up over all ranks, by source line."""
        return sums_by(self._every(), lambda row: row.line or "(no line)")

    @property
    def calls(self) -> int:
        """How many collectives and messages all ranks start."""
        return sum(len(self.exchanges[like]) for like in self._like.values())

    @property
    def sent_bytes(self) -> int | None:
        """What all ranks together send; a lower bound where some is not known."""
        return known_sum(row.sent_bytes for row in self.by_axis)

    @property
    def bytes(self) -> int | None:
        """The bytes of all messages as every rank counts them."""
        return known_sum(row.bytes for row in self.by_axis)

    def facts(self) -> Mapping[str, str]:
        """What is sent, and whether ranks agree."""
        agree = f"{self.matched:,} matched on all their ranks"
        if self.problems:
            agree += f", {many(len(self.problems), 'problem')}"
        sent = self.sent_bytes
        return {
            "collectives": agree,
            "sent": "not known"
            if sent is None
            else f"{least(size)(sent)} by {many(len(self._like), 'rank')}",
        }

    def listings(self) -> Sequence[Listing]:
        """The sums."""
        sums = (
            ("Ranks", "ranks", self.ranks),
            ("By axis", "axis (ranks)", self.by_axis),
            ("By operation", "operation", self.by_operation),
            ("By source line", "source line", self.by_line),
        )
        listings = [Listing(title, (Field("name", name), *SUMS), rows) for title, name, rows in sums]
        if self.problems:
            fields = (
                Field("rank", "rank", str), Field("what", "what"), Field("kind", "operation"), Field("axis", "axis"),
                Field("place", "where"), Field("text", "in words"),
            )  # fmt: skip
            listings.insert(0, Listing("Problems", fields, self.problems))
        return listings

    def charts(self) -> Mapping[str, Chart]:
        """What is sent, by operation."""
        if not self.calls:
            return Charts()
        return Charts(operations=lambda: sent_chart("operation", self.by_operation))

    def notes(self) -> Sequence[str]:
        """What does not agree, and how bytes are counted."""
        return [
            *map(str, self.problems[:10]),
            "sent: as ranks in a ring send it, 2 (n - 1) / n of an all_reduce for one; a backend may do it otherwise",
        ]
