"""What a rank says to others, as a report: by mesh axis, operation, phase, module and source line."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import cached_property
from typing import NamedTuple

from torch_vis.analysis.ranks.exchanges import Exchange, exchanges_of
from torch_vis.analysis.report import Charts, Report, least, most, summed
from torch_vis.graph.run import Run
from torch_vis.graph.text import duration, many, size
from torch_vis.views.charts.chart import Axis, Chart, Series
from torch_vis.views.text.table_layout import Field, Listing

BARS = 20


class ExchangeSum(NamedTuple):
    """Collectives and messages added up; None where nothing is known, a lower bound where not all is."""

    name: str
    calls: int
    bytes: int | None
    sent_bytes: int | None
    exposed_ns: int | None
    waited_ns: int | None
    bytes_per_second: int | None
    """What was sent, by the time from each start until it was waited for: no less than that passed."""


def rate(bytes_per_second: float) -> str:
    """Bytes per second, as a person reads them.

    >>> rate(2 * 1024**2)
    '2.00 MiB/s'
    """
    return f"{size(round(bytes_per_second))}/s"


SUMS = (
    Field("calls", "calls", "{:,}".format),
    Field("bytes", "bytes", least(size)),
    Field("sent_bytes", "sent", least(size)),
    Field("exposed_ns", "exposed", least(duration)),
    Field("waited_ns", "waited", least(duration)),
    Field("bytes_per_second", "sent per second", rate, drop=1),
)


def known_sum(figures: Iterable[float | None]) -> int | None:
    """The sum of those that are known: a lower bound where some are not, None where none is.

    >>> known_sum([1, 2]), known_sum([1, None]), known_sum([None]), known_sum([])
    (3, 1, None, 0)
    """
    rows = [*figures]
    known = [row for row in rows if row is not None]
    return summed(round(sum(known)) if known or not rows else None, len(rows) - len(known))


def sum_of(name: str, rows: Sequence[Exchange]) -> ExchangeSum:
    """Some exchanges added up under a name."""
    timed = [row for row in rows if row.span_ns and row.sent_bytes]
    passed = sum(row.span_ns or 0 for row in timed)
    sent = sum(row.sent_bytes or 0 for row in timed)
    return ExchangeSum(
        name,
        len(rows),
        known_sum(row.bytes for row in rows),
        known_sum(row.sent_bytes for row in rows),
        known_sum(row.exposed_ns for row in rows),
        known_sum(row.waited_ns for row in rows),
        round(sent / passed * 1e9) if passed else None,
    )


def sums_by(rows: Iterable[Exchange], name: Callable[[Exchange], str]) -> list[ExchangeSum]:
    """Exchanges added up by something of theirs, the most bytes first."""
    groups: dict[str, list[Exchange]] = {}
    for row in rows:
        groups.setdefault(name(row), []).append(row)
    return sorted(
        (sum_of(key, group) for key, group in groups.items()), key=lambda row: -(row.sent_bytes or 0)
    )


class CommunicationReport(Report):
    """The collectives and messages of one rank: how many bytes, where from, and how long the program stood still.

    ``bytes`` are those of whole messages, ``sent_bytes`` what this rank sends of them if the ranks of a group stand in
    a ring: 2 (n - 1) / n of an all_reduce, (n - 1) / n of an all_gather or a reduce_scatter. ``exposed_ns`` is the time
    in which the program did nothing but start them or wait: what no computation hides.

    >>> import torch, torch_vis as tv
    >>> report = tv.trace(torch.nn.Linear(3, 2), torch.ones(1, 3)).communication()
    >>> report.bytes, report.sent_bytes, report.exchanges
    (0, 0, [])
    """

    title = "Communication"

    def __init__(self, run: Run) -> None:
        self._run = run

    # ---------------------------------------------------------------- what it found

    @cached_property
    def exchanges(self) -> list[Exchange]:
        """Every collective and message, in order."""
        return exchanges_of(self._run)

    @property
    def calls(self) -> int:
        """How many there are."""
        return len(self.exchanges)

    @property
    def bytes(self) -> int | None:
        """The bytes of all messages; a lower bound where some are not known."""
        return self._whole.bytes

    @property
    def sent_bytes(self) -> int | None:
        """What this rank sends of them."""
        return self._whole.sent_bytes

    @property
    def exposed_ns(self) -> int | None:
        """How long the program did nothing but start them and wait; None where that was not seen."""
        return self._whole.exposed_ns

    @property
    def waited_ns(self) -> int | None:
        """Of that, how long it stood waiting."""
        return self._whole.waited_ns

    @cached_property
    def _whole(self) -> ExchangeSum:
        return sum_of("", self.exchanges)

    @property
    def unknown(self) -> int:
        """Of how many the bytes are not known."""
        return sum(row.bytes is None for row in self.exchanges)

    @cached_property
    def by_axis(self) -> list[ExchangeSum]:
        """Added up by group of ranks: by mesh axis, where groups are axes."""
        return sums_by(self.exchanges, lambda row: f"{row.axis} ({len(row.members)})")

    @cached_property
    def by_operation(self) -> list[ExchangeSum]:
        """Added up by operation and group."""
        return sums_by(self.exchanges, lambda row: f"{row.kind} on {row.axis}")

    @cached_property
    def by_phase(self) -> list[ExchangeSum]:
        """Added up by phase."""
        return sums_by(self.exchanges, lambda row: row.phase)

    @cached_property
    def by_module(self) -> list[ExchangeSum]:
        """Added up by the module in which they ran."""
        return sums_by(self.exchanges, lambda row: row.path or "(outside of modules)")

    @cached_property
    def by_line(self) -> list[ExchangeSum]:
        """Added up by source line."""
        return sums_by(self.exchanges, lambda row: row.line or "(no line)")

    # ---------------------------------------------------------------- how it is shown

    def facts(self) -> Mapping[str, str]:
        """The bytes, what of them this rank sends, and the time."""
        if not self.exchanges:
            return {"collectives": "none: this run talks to no other rank"}
        whole = self._whole
        facts = {"collectives": f"{self.calls:,} of rank {self.rank}" if self.rank else f"{self.calls:,}"}
        if whole.bytes is not None and whole.sent_bytes is not None:
            sent = least(size)(whole.sent_bytes)
            facts["bytes"] = f"{least(size)(whole.bytes)}, of which this rank sends {sent}"
        if whole.exposed_ns is not None and whole.waited_ns is not None:
            waited = least(duration)(whole.waited_ns)
            facts["exposed"] = f"{least(duration)(whole.exposed_ns)}, of which it waited {waited}"
        return facts

    @property
    def rank(self) -> str:
        """Which rank it is, and where in its mesh, in words."""
        meta = self._run.meta
        if "rank" not in meta:
            return ""
        place = ", ".join(
            f"{axis} {meta['coordinates'][axis]} of {count}"
            for axis, count in (meta.get("mesh") or {}).items()
            if axis in (meta.get("coordinates") or {})
        )
        return f"{meta['rank']} of {meta['world_size']}" + (f" ({place})" if place else "")

    def listings(self) -> Sequence[Listing]:
        """The sums."""
        if not self.exchanges:
            return ()
        sums = (
            ("By axis", "axis (ranks)", self.by_axis),
            ("By operation", "operation", self.by_operation),
            ("By phase", "phase", self.by_phase),
            ("By module", "module", self.by_module),
            ("By source line", "source line", self.by_line),
        )
        return [Listing(title, (Field("name", name), *SUMS), rows) for title, name, rows in sums]

    def charts(self) -> Mapping[str, Chart]:
        """What is sent, by operation and by module."""
        if not self.exchanges:
            return Charts()
        return Charts(
            operations=lambda: sent_chart("operation", self.by_operation),
            modules=lambda: sent_chart("module", self.by_module),
        )

    def notes(self) -> Sequence[str]:
        """How bytes are counted, and what is not known."""
        if not self.exchanges:
            return ()
        notes = [
            "sent: as ranks in a ring send it, 2 (n - 1) / n of an all_reduce for one; a backend may do it otherwise"
        ]
        if self.unknown:
            notes.append(f"the bytes of {many(self.unknown, 'operation')} are not known, and in no sum")
        unseen = sum(row.waited_ns is None for row in self.exchanges)
        if unseen and not self._run.meta.get("fake"):
            notes.append(
                f"nobody was seen waiting for {unseen:,} of {self.calls:,}: code in C++ or a device did, at some time"
            )
        return notes


def sent_chart(what: str, rows: Sequence[ExchangeSum]) -> Chart:
    """The bytes sent of some sums, as bars."""
    shown = rows[:BARS]
    sent = Series("sent", [row.name for row in shown], [row.sent_bytes or 0 for row in shown])
    title = f"Bytes sent by {what}{most(len(shown), len(rows))}"
    return Chart("bars", title, Axis(what), Axis("sent", "bytes"), [sent])
