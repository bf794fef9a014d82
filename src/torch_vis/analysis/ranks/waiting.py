"""Who waits for whom: clocks of ranks on one time line, stragglers, and the path that decides how long a step takes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from torch_vis.analysis.ranks.exchanges import Exchange
from torch_vis.analysis.ranks.meetings import Meeting
from torch_vis.analysis.report import Charts, Report
from torch_vis.graph.graph import Graph
from torch_vis.graph.run import Run
from torch_vis.graph.text import and_more, duration
from torch_vis.graph.types import Ints
from torch_vis.views.charts.chart import Axis, Chart, Series
from torch_vis.views.text.table_layout import Field, Listing

# of one host's clocks, of which each run reads two one after the other
READING_NS = 1_000
# all members have to come before any of them can go on
TOGETHER = frozenset({"all_reduce", "all_gather", "reduce_scatter", "all_to_all", "barrier"})


class Clock(NamedTuple):
    """How far the clock of a rank is off from that of the first rank, and by how much that may be wrong."""

    rank: int
    host: str
    offset_ns: int
    """What is added to its times."""
    error_ns: int | None
    """None where nothing bounds it."""
    how: str
    """same host, round trips, collectives, or not known."""


class Arrival(NamedTuple):
    """One rank at one meeting, on the time line of all."""

    rank: int
    start_ns: int
    waiting_ns: int
    """When it began to wait."""
    done_ns: int


def _bounds(
    meetings: Sequence[Meeting], ranks: Mapping[int, Sequence[Exchange]], base: int, other: int
) -> tuple[int | None, int | None]:
    """The least and the most that the beginning of one rank can be after that of another.

    Whoever has got something got it after it was given.
    """
    low: int | None = None
    high: int | None = None
    for meeting in meetings:
        if base not in meeting.parts or other not in meeting.parts:
            continue
        first, second = ranks[base][meeting.parts[base]], ranks[other][meeting.parts[other]]
        together = meeting.kind in TOGETHER and _all_give(first) and _all_give(second)
        # the other came before this one had all
        if together or meeting.root == other:
            if first.done_ns is not None and second.start_ns is not None:
                bound = first.done_ns - second.start_ns
                high = bound if high is None else min(high, bound)
        if together or meeting.root == base:
            if second.done_ns is not None and first.start_ns is not None:
                bound = first.start_ns - second.done_ns
                low = bound if low is None else max(low, bound)
    return low, high


def _all_give(row: Exchange) -> bool:
    """Whether a rank gives something to each of the others: nobody need wait for nothing."""
    if row.kind == "barrier":
        return True
    even = (row.bytes or 0) * (len(row.members) - 1)
    return row.elements > 0 and (
        row.kind != "all_to_all" or round((row.sent_bytes or 0) * len(row.members)) == even
    )


def clocks_of(
    runs: Mapping[int, Run],
    meetings: Sequence[Meeting],
    ranks: Mapping[int, Sequence[Exchange]],
    measured: Mapping[int, tuple[int, int]],
) -> dict[int, Clock]:
    """The clock of each rank: as round trips measured it, that of one host, or else as collectives bound it."""
    base = min(runs)
    began = {rank: int(run.meta.get("began_ns") or 0) for rank, run in runs.items()}
    clocks = {}
    for rank, run in runs.items():
        host = str(run.meta.get("host") or "")
        if rank in measured:
            clocks[rank] = Clock(rank, host, *measured[rank], "round trips")
            continue
        if rank == base or (host and host == runs[base].meta.get("host")):
            clocks[rank] = Clock(rank, host, 0, READING_NS, "same host")
            continue
        low, high = _bounds(meetings, ranks, base, rank)
        if low is None or high is None:
            clocks[rank] = Clock(rank, host, 0, None, "not known")
            continue
        apart = began[rank] - began[base]
        clocks[rank] = Clock(rank, host, (low + high) // 2 - apart, (high - low) // 2, "collectives")
    return clocks


def off_by(
    runs: Mapping[int, Run],
    meetings: Sequence[Meeting],
    ranks: Mapping[int, Sequence[Exchange]],
    clocks: Mapping[int, Clock],
) -> dict[int, int]:
    """By rank, how much too early or late it is to have met the first rank, where it is."""
    base = min(runs)
    wrong = {}
    for rank, run in runs.items():
        low, high = _bounds(meetings, ranks, base, rank)
        apart = int(run.meta.get("began_ns") or 0) - int(runs[base].meta.get("began_ns") or 0)
        apart += clocks[rank].offset_ns
        if low is not None and apart < low:
            wrong[rank] = low - apart
        if high is not None and apart > high:
            wrong[rank] = apart - high
    return wrong


class RankTimeline:
    """The meetings of ranks on one time line, in nanoseconds from the beginning of the first of them."""

    def __init__(
        self,
        runs: Mapping[int, Run],
        meetings: Sequence[Meeting],
        ranks: Mapping[int, Sequence[Exchange]],
        clocks: Mapping[int, Clock],
    ) -> None:
        self.meetings, self.ranks, self.clocks = meetings, ranks, clocks
        self._runs = runs
        absolute = {
            rank: int(run.meta.get("began_ns") or 0) + clocks[rank].offset_ns for rank, run in runs.items()
        }
        origin = min(absolute.values())
        self.began = {rank: start - origin for rank, start in absolute.items()}
        self.ended = {
            rank: self.began[rank] + int(run.meta.get("wall_ns") or 0) for rank, run in runs.items()
        }
        for rank, run in runs.items():
            if "start_ns" in run.metrics and len(run.graph):
                last = run.metrics["start_ns"].values + run.metrics["time_ns"].values
                self.ended[rank] = self.began[rank] + int(last.max())

    @property
    def predicted(self) -> Mapping[str, Any] | None:
        """The machine and the links that times are predicted for; None where they were measured."""
        return next((run.meta["predicted"] for run in self._runs.values() if run.meta.get("predicted")), None)

    @property
    def about_times(self) -> str:
        """What the times of all ranks are, in words."""
        if self.predicted:
            return f"times are predicted for {self.predicted['machine']}, not measured"
        return "times are those of the recorded step, in which recording slows every rank down"

    def graph(self, rank: int) -> Graph:
        """The graph of a rank."""
        return self._runs[rank].graph

    def operations(self, rank: int) -> tuple[Ints, Ints]:
        """When each operation of a rank began on the time line of all, and how long it took."""
        metrics = self._runs[rank].metrics
        if not {"start_ns", "time_ns"} <= set(metrics):
            none = np.zeros(len(self._runs[rank].graph), dtype=np.int64)
            return none + self.began[rank], none
        begins = metrics["start_ns"].values.astype(np.int64) + self.began[rank]
        return begins, metrics["time_ns"].values.astype(np.int64)

    def arrivals(self, meeting: Meeting) -> list[Arrival]:
        """The ranks at a meeting, in the order in which they came; none where the times of one are not known.

        Where C++ code waits, as the reducer of DistributedDataParallel, a rank is taken to wait while it runs nothing.
        """
        rows = []
        for rank, place in meeting.parts.items():
            row = self.ranks[rank][place]
            done, waited = row.done_ns, row.waited_ns
            if done is None or waited is None:
                done, waited = row.landed_ns, row.quiet_ns
            if row.start_ns is None or done is None or waited is None:
                return []
            began = self.began[rank]
            waiting = max(done - waited, row.start_ns)
            rows.append(Arrival(rank, began + row.start_ns, began + waiting, began + max(done, waiting)))
        return sorted(rows, key=lambda row: (row.start_ns, row.rank))

    def last(self, meeting: Meeting, arrivals: Sequence[Arrival]) -> Arrival | None:
        """The one that the others had to wait for; None where nobody waits for all."""
        late = waited_for(meeting, arrivals)
        return next((row for row in arrivals if row.rank == late), None)


def waited_for(meeting: Meeting, arrivals: Sequence[Arrival]) -> int | None:
    """The rank that the others of a meeting had to wait for; None where nobody waits for all."""
    latest = max(arrivals, key=lambda row: (row.start_ns, row.rank))
    if meeting.kind in TOGETHER:
        return latest.rank
    root = next((row for row in arrivals if row.rank == meeting.root), None)
    if root is None:
        return None
    # a sender may stand there until somebody receives
    if meeting.kind == "message" and root.waiting_ns < latest.start_ns <= root.done_ns:
        return latest.rank
    return root.rank


class Straggler(NamedTuple):
    """What one rank lets others wait, and waits itself."""

    rank: int
    last: int
    """How often it was the last to come."""
    imposed_ns: int
    """How long others stood waiting while it had not come, added up."""
    waited_ns: int
    """How long it stood waiting for ranks that had not come."""
    place: str
    """The line and the module before which it lost most."""


class StragglersReport(Report):
    """Which ranks come late, how long others wait for them, and where.

    ``imposed_ns`` counts only time in which others really stood waiting: who is late to a collective that overlaps with
    computation costs nothing.
    """

    title = "Stragglers"

    def __init__(self, timeline: RankTimeline) -> None:
        self._timeline = timeline
        self.meetings, self.untimed, self.unseen = 0, 0, 0
        """At how many meetings arrivals could be compared, at how many not, and at how many C++ code waited."""
        self.ranks: list[Straggler] = self._found()
        """A row for each rank: how often it was the last, and how long others waited for it."""

    def _found(self) -> list[Straggler]:
        timeline = self._timeline
        last = dict.fromkeys(timeline.began, 0)
        imposed, waited = dict.fromkeys(timeline.began, 0), dict.fromkeys(timeline.began, 0)
        places: dict[int, dict[str, int]] = {rank: {} for rank in timeline.began}
        for meeting in timeline.meetings:
            arrivals = timeline.arrivals(meeting)
            if len(arrivals) < 2:
                self.untimed += 1
                continue
            self.meetings += 1
            parts = (timeline.ranks[rank][place] for rank, place in meeting.parts.items())
            self.unseen += any(part.waited_ns is None for part in parts)
            late = timeline.last(meeting, arrivals)
            if late is None:
                continue
            last[late.rank] += 1
            for row in arrivals:
                stall = min(max(late.start_ns - row.waiting_ns, 0), row.done_ns - row.waiting_ns)
                if row.rank != late.rank and stall:
                    waited[row.rank] += stall
                    imposed[late.rank] += stall
                    place = timeline.ranks[late.rank][meeting.parts[late.rank]].place
                    places[late.rank][place] = places[late.rank].get(place, 0) + stall
        rows = [
            Straggler(
                rank,
                last[rank],
                imposed[rank],
                waited[rank],
                max(places[rank], key=lambda place: places[rank][place], default=""),
            )
            for rank in timeline.began
        ]
        return sorted(rows, key=lambda row: (-row.imposed_ns, row.rank))

    @property
    def slowest(self) -> Straggler | None:
        """The rank that lets others wait longest; None where nobody waits."""
        return self.ranks[0] if self.ranks and self.ranks[0].imposed_ns else None

    @property
    def clock_error_ns(self) -> int | None:
        """How far clocks may be off against each other; None where it is not known."""
        errors = [clock.error_ns for clock in self._timeline.clocks.values()]
        return None if None in errors else max((error or 0 for error in errors), default=0)

    def facts(self) -> Mapping[str, str]:
        """The slowest rank, and how well clocks agree."""
        if self.slowest is None:
            words = "nobody was seen waiting for another"
        else:
            row = self.slowest
            words = f"rank {row.rank} lets others wait {duration(row.imposed_ns)}, most before {row.place}"
        error = self.clock_error_ns
        return {
            "straggler": words,
            "clocks": "not known how far apart" if error is None else f"within {duration(error)}",
        }

    def listings(self) -> Sequence[Listing]:
        """Every rank."""
        fields = (
            Field("rank", "rank", str),
            Field("last", "came last", "{:,}".format),
            Field("imposed_ns", "let others wait", duration),
            Field("waited_ns", "waited", duration),
            Field("place", "most before"),
        )
        return [Listing("Ranks", fields, self.ranks)]

    def charts(self) -> Mapping[str, Chart]:
        """What each rank lets others wait."""
        return Charts(ranks=self._chart) if self.slowest is not None else Charts()

    def _chart(self) -> Chart:
        rows = sorted(self.ranks)[:64]
        names = [f"rank {row.rank}" for row in rows]
        series = [
            Series("lets others wait", names, [row.imposed_ns for row in rows]),
            Series("waited", names, [row.waited_ns for row in rows]),
        ]
        return Chart("dots", "Waiting by rank", Axis("rank"), Axis("time", "ns"), series)

    def notes(self) -> Sequence[str]:
        """What is not in it."""
        notes = [self._timeline.about_times]
        if self.unseen:
            notes.append(
                f"at {self.unseen:,} collectives C++ code waited, unseen: a rank is taken to wait while it runs nothing"
            )
        if self.untimed:
            notes.append(f"{self.untimed:,} collectives of which nobody was seen waiting are left out")
        return notes


class PathStretch(NamedTuple):
    """A part of the critical path."""

    rank: int
    what: str
    """compute or communication."""
    start_ns: int
    time_ns: int
    until: str
    """The collective at its end, and its place in the program."""


class CriticalPathReport(Report):
    """What the length of the step is made of: from its end back, always to the rank that was waited for.

    To make anything shorter that is not on it does not make the step shorter.
    """

    title = "Critical path"

    def __init__(self, timeline: RankTimeline) -> None:
        self._timeline = timeline
        self.stretches: list[PathStretch] = self._walked()
        """The path from the first operation to the last, stretch by stretch."""

    def _walked(self) -> list[PathStretch]:
        timeline = self._timeline
        stops: dict[int, list[tuple[Meeting, list[Arrival]]]] = {rank: [] for rank in timeline.began}
        for meeting in timeline.meetings:
            arrivals = timeline.arrivals(meeting)
            # of ranks that do the same one may stand for all: it waits for itself, and for the transfer
            if arrivals and timeline.last(meeting, arrivals) is not None:
                for row in arrivals:
                    stops[row.rank].append((meeting, arrivals))
        done = {
            rank: [next(row for row in arrivals if row.rank == rank).done_ns for _, arrivals in rows]
            for rank, rows in stops.items()
        }
        for rank, rows in stops.items():
            order = sorted(range(len(rows)), key=lambda index: done[rank][index])
            stops[rank] = [rows[index] for index in order]
        rank = max(timeline.ended, key=lambda item: (timeline.ended[item], -item))
        now, until = timeline.ended[rank], "the end of the step"
        path: list[PathStretch] = []
        while stops[rank]:
            meeting, arrivals = stops[rank].pop()
            here = next(row for row in arrivals if row.rank == rank)
            if here.done_ns > now:
                continue
            late = timeline.last(meeting, arrivals)
            assert late is not None
            words = f"{meeting.kind} on {meeting.axis}, {timeline.ranks[rank][meeting.parts[rank]].place}"
            if late.rank == rank or late.start_ns <= here.waiting_ns:
                # it was there in time: only the transfer itself can hold it up
                if here.done_ns > here.waiting_ns:
                    path.append(PathStretch(rank, "compute", here.done_ns, now - here.done_ns, until))
                    path.append(
                        PathStretch(
                            rank, "communication", here.waiting_ns, here.done_ns - here.waiting_ns, words
                        )
                    )
                    now, until = here.waiting_ns, words
                continue
            begun = min(late.start_ns, here.done_ns)
            path.append(PathStretch(rank, "compute", here.done_ns, now - here.done_ns, until))
            path.append(PathStretch(rank, "communication", begun, here.done_ns - begun, words))
            rank, now, until = late.rank, begun, words
        path.append(
            PathStretch(rank, "compute", timeline.began[rank], max(now - timeline.began[rank], 0), until)
        )
        return _joined([row for row in reversed(path) if row.time_ns > 0])

    @property
    def total_ns(self) -> int:
        """Its length."""
        return sum(row.time_ns for row in self.stretches)

    @property
    def compute_ns(self) -> int:
        """What of it is computation."""
        return sum(row.time_ns for row in self.stretches if row.what == "compute")

    @property
    def communication_ns(self) -> int:
        """What of it is communication."""
        return self.total_ns - self.compute_ns

    @property
    def by_rank(self) -> dict[int, int]:
        """How much of it lies on each rank."""
        totals: dict[int, int] = {}
        for row in self.stretches:
            totals[row.rank] = totals.get(row.rank, 0) + row.time_ns
        return dict(sorted(totals.items(), key=lambda item: -item[1]))

    def facts(self) -> Mapping[str, str]:
        """Its length, and whose it is."""
        shares = [f"rank {rank} {duration(time)}" for rank, time in self.by_rank.items()]
        return {
            "length": f"{duration(self.total_ns)}: {duration(self.compute_ns)} of computation, "
            f"{duration(self.communication_ns)} of communication",
            "ranks": and_more(shares, 8),
        }

    def listings(self) -> Sequence[Listing]:
        """Its parts, in order."""
        fields = (
            Field("rank", "rank", str),
            Field("what", "what"),
            Field("start_ns", "from", duration),
            Field("time_ns", "time", duration),
            Field("until", "until"),
        )
        return [Listing("Stretches", fields, self.stretches, most=40)]

    def notes(self) -> Sequence[str]:
        """What its times are."""
        return [self._timeline.about_times]


def _joined(path: list[PathStretch]) -> list[PathStretch]:
    """The path with neighbours of one rank and one kind as one."""
    rows: list[PathStretch] = []
    for row in path:
        if rows and (rows[-1].rank, rows[-1].what) == (row.rank, row.what):
            rows[-1] = rows[-1]._replace(time_ns=rows[-1].time_ns + row.time_ns, until=row.until)
        else:
            rows.append(row)
    return rows
