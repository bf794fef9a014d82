"""Ranks as lanes of the page: which are folded into one, when each operation ran, where they meet and wait."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from torch_vis._trace import Trace
from torch_vis.analysis.ranks.by_rank import rank_spans
from torch_vis.analysis.ranks.exchanges import Exchange
from torch_vis.analysis.ranks.meetings import Meeting, Meetings
from torch_vis.analysis.ranks.schedule import ScheduleReport
from torch_vis.analysis.ranks.waiting import (
    TOGETHER,
    Arrival,
    CriticalPathReport,
    RankTimeline,
    StragglersReport,
    waited_for,
)
from torch_vis.graph.text import inert
from torch_vis.views.page.world import Lane, world_html

# of problems that are listed one by one
MOST_PROBLEMS = 50
# where something is not known
UNKNOWN = -1


def spans_of(ranks: Sequence[int]) -> list[tuple[int, int]]:
    """Some ranks as first and last of each unbroken stretch.

    >>> spans_of([0, 1, 2, 5])
    [(0, 2), (5, 5)]
    """
    spans: list[tuple[int, int]] = []
    for rank in sorted(ranks):
        if spans and rank == spans[-1][1] + 1:
            spans[-1] = (spans[-1][0], rank)
        else:
            spans.append((rank, rank))
    return spans


class Lanes:
    """The page of a world, put together; ``timeline`` is None for ranks without times, which are shown by operation."""

    def __init__(
        self,
        title: str,
        runs: Mapping[int, Trace],
        like: Mapping[int, int],
        mesh: Mapping[str, int],
        exchanges: Mapping[int, Sequence[Exchange]],
        met: Meetings,
        timeline: RankTimeline | None,
    ) -> None:
        self.title, self.runs, self.like, self.mesh = title, runs, like, mesh
        self.exchanges, self.met, self.timeline = exchanges, met, timeline
        self._numbers = {rank: number for number, rank in enumerate(runs)}
        self._axes: dict[str, int] = {}
        self._kinds: dict[str, int] = {}
        self._places: dict[str, int] = {}

    def html(self) -> str:
        """The page as text."""
        columns = self._meetings()
        about = {
            "ranks": len(self.like),
            "mesh": dict(self.mesh),
            "unit": "operations" if self.timeline is None else "ns",
            "axes": list(self._axes),
            "kinds": list(self._kinds),
            "places": list(self._places),
            "problems": [
                {"rank": row.rank, "what": row.what, "text": inert(str(row))}
                for row in self.met.problems[:MOST_PROBLEMS]
            ],
            "more_problems": max(len(self.met.problems) - MOST_PROBLEMS, 0),
            **self._reports(),
        }
        lanes = [self._lane(rank) for rank in self.runs]
        return world_html(self.title, about, columns, lanes, list(self.runs.values()))

    # ---------------------------------------------------------------- lanes

    def _operations(self, rank: int) -> tuple[Any, Any]:
        if self.timeline is not None:
            return self.timeline.operations(rank)
        count = len(self.runs[rank].graph)
        return np.arange(count), np.ones(count, dtype=np.int64)

    def _lane(self, rank: int) -> Lane:
        run = self.runs[rank]
        members = [other for other, like in self.like.items() if like == rank]
        start, time = self._operations(rank)
        live = run.metrics["live_bytes"].values if "live_bytes" in run.metrics else None
        rows = self.exchanges[rank]
        place = run.meta.get("coordinates") or {}
        facts = {
            "name": f"rank {rank}" if len(members) == 1 else f"ranks {rank_spans(members)}",
            "count": len(members),
            "coordinates": [[axis, place[axis]] for axis in self.mesh if axis in place],
            "stage": run.meta.get("stage"),
            "host": inert(str(run.meta.get("host") or "")),
            "operations": len(run.graph),
            "peak_bytes": run.memory().peak_bytes if run.lifetimes is not None else None,
            "collectives": len(rows),
            "sent_bytes": round(sum(row.sent_bytes or 0 for row in rows)),
        }
        return Lane(spans_of(members), self._numbers[rank], start, time, run.graph.node_phase, live, facts)

    # ---------------------------------------------------------------- meetings

    def _meetings(self) -> dict[str, Any]:
        """The meetings as columns, and the part of each rank in them; times on the axis of all lanes, -1 if unknown."""
        meetings: list[tuple[int, ...]] = []
        parts: list[tuple[int, ...]] = []
        for meeting in self.met.rows:
            first = len(parts)
            rows = sorted((rank, self.exchanges[rank][place]) for rank, place in meeting.parts.items())
            parts += [(self._numbers[rank], row.node, *self._moments(rank, row)) for rank, row in rows]
            row = rows[0][1]
            meetings.append(
                (
                    self._kinds.setdefault(meeting.kind, len(self._kinds)),
                    self._axes.setdefault(meeting.axis, len(self._axes)),
                    self._places.setdefault(row.place, len(self._places)),
                    UNKNOWN if row.bytes is None else row.bytes,
                    len(meeting.members),
                    meeting.number,
                    _last(meeting, parts[first:]),
                    first,
                )
            )
        names = ("kind", "axis", "place", "bytes", "members", "number", "last", "first")
        part_names = ("part_lane", "part_node", "part_start", "part_waiting", "part_done")
        table = np.array(meetings, dtype=np.int64).reshape(-1, len(names)).T
        part_table = np.array(parts, dtype=np.int64).reshape(-1, len(part_names)).T
        return {**dict(zip(names, table)), **dict(zip(part_names, part_table))}

    def _moments(self, rank: int, row: Exchange) -> tuple[int, int, int]:
        """When a rank began its part of a meeting, when it began to wait, and when it was over."""
        if self.timeline is None:
            return row.node, UNKNOWN, UNKNOWN
        began = self.timeline.began[rank]
        if row.start_ns is None:
            return UNKNOWN, UNKNOWN, UNKNOWN
        if row.done_ns is None or row.waited_ns is None:
            return began + row.start_ns, UNKNOWN, UNKNOWN
        waiting = max(row.done_ns - row.waited_ns, row.start_ns)
        return began + row.start_ns, began + waiting, began + row.done_ns

    # ---------------------------------------------------------------- reports

    def _reports(self) -> dict[str, Any]:
        """Who waits for whom, the critical path, and the schedule of a pipeline."""
        if self.timeline is None:
            return {"chunks": []}
        stragglers, path = StragglersReport(self.timeline), CriticalPathReport(self.timeline)
        schedule = ScheduleReport(self.timeline)
        return {
            "clock_error_ns": stragglers.clock_error_ns,
            "waits": [
                [self._numbers[row.rank], row.last, row.imposed_ns, row.waited_ns, row.place]
                for row in stragglers.ranks
            ],
            "untimed": stragglers.untimed,
            "path": [
                [self._numbers[row.rank], row.what, row.start_ns, row.time_ns, row.until]
                for row in path.stretches
            ],
            "chunks": [
                [self._numbers[row.rank], row.stage, row.microbatch, row.what, row.start_ns, row.time_ns]
                for row in schedule.chunks
            ],
            "idle": [[self._numbers[row.rank], row.idle_share] for row in schedule.ranks],
            "idle_share": schedule.idle_share,
            "ideal_idle_share": schedule.ideal_idle_share,
        }


def _last(meeting: Meeting, parts: Sequence[tuple[int, ...]]) -> int:
    """Which part of a meeting all others had to wait for; -1 where nobody waits for all, or it is not known."""
    ranks = sorted(meeting.parts)
    arrivals = [Arrival(rank, *part[2:]) for rank, part in zip(ranks, parts)]
    if len(parts) < 2 or any(row.start_ns == UNKNOWN for row in arrivals):
        return UNKNOWN
    if meeting.kind in TOGETHER:
        starts = [row.start_ns for row in arrivals]
        return starts.index(max(starts))
    late = waited_for(meeting, arrivals)
    return UNKNOWN if late is None else ranks.index(late)
