"""How long a step of simulated ranks takes: operations by a machine, collectives by links, and who waits for whom.

Each rank runs its operations one after another, as in a prediction of one machine. A collective begins when the last of
its ranks has come and the one before it in its group is done, and takes a latency for each hop of a ring and the bytes
that a rank sends by the bandwidth. A rank goes on until it waits for one that is not done.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np

from torch_vis.analysis.machine.calibration import Calibration, RankLinks, profile
from torch_vis.analysis.machine.hardware import UNITS, Hardware
from torch_vis.analysis.machine.latency import predict
from torch_vis.analysis.ranks.by_rank import rank_spans
from torch_vis.analysis.ranks.exchanges import MESSAGES, Exchange
from torch_vis.analysis.ranks.meetings import Meeting
from torch_vis.analysis.ranks.waiting import RankTimeline
from torch_vis.analysis.report import Charts, Report
from torch_vis.errors import UsageError, no_match
from torch_vis.graph.graph import Graph
from torch_vis.graph.metrics import Column, Metrics
from torch_vis.graph.run import Limit, Run
from torch_vis.graph.schema import Flag, Phase
from torch_vis.graph.text import duration, many
from torch_vis.graph.types import Ints
from torch_vis.views.charts.chart import Axis, Chart, Series
from torch_vis.views.text.table_layout import Field, Listing

# what starting any collective takes, and each hop of its ring: within a machine, and between machines
# (as torch.distributed.tensor has them for Ampere and Hopper)
BASE_NS = 6_600.0
HOP_NS, FAR_HOP_NS = 600.0, 2_700.0
# ranks of one machine, where nobody says how fast an axis is
NODE_RANKS = 8
# in one direction, by the makers' datasheets; the rest by their cards' own bus
NEAR_GB_PER_S = (
    ("V100 SXM", 150), ("A100 80GB SXM", 300), ("A100 40GB", 300), ("H100 SXM", 450), ("H200", 450),
    ("GH200", 450), ("B200", 900), ("MI300X", 448), ("MI250X", 200),
)  # fmt: skip
BUS_GB_PER_S, FAR_GB_PER_S = 32, 50
# of a datasheet's figure, what collectives of a usual size reach
REACHED = 0.8
RATE = re.compile(r"\s*([\d.]+(?:e[+-]?\d+)?)\s*([kmgt]i?)?\s*(bit|b|B)\s*/\s*s\s*", re.IGNORECASE)
TIME = re.compile(r"\s*([\d.]+(?:e[+-]?\d+)?)\s*(ns|us|µs|ms|s)\s*")
SECONDS_NS = {"ns": 1.0, "us": 1e3, "µs": 1e3, "ms": 1e6, "s": 1e9}
RING_HOPS = {"all_reduce": 2, "send": 0, "recv": 0}


class AxisLink(NamedTuple):
    """How fast the ranks of an axis reach each other: what each sends per second, and what a hop and a start take."""

    bytes_per_second: float
    hop_ns: float = FAR_HOP_NS
    base_ns: float = BASE_NS

    def __str__(self) -> str:
        return f"{self.bytes_per_second / 1e9:g} GB/s, {self.base_ns / 1e3:g} µs and {self.hop_ns / 1e3:g} µs a hop"

    def time_ns(self, row: Exchange) -> float:
        """How long a collective or message takes once all its ranks have come.

        >>> from torch_vis.analysis.ranks.exchanges import Exchange
        >>> fields = dict.fromkeys(Exchange._fields)
        >>> row = Exchange(**fields | {"kind": "all_reduce", "members": (0, 1, 2, 3), "sent_bytes": 1.5e6})
        >>> AxisLink(1e9, hop_ns=1000.0, base_ns=5000.0).time_ns(row)
        1511000.0
        """
        hops = 1 if row.kind in MESSAGES else RING_HOPS.get(row.kind, 1) * max(len(row.members) - 1, 0)
        sent = row.bytes if row.kind == "recv" else row.sent_bytes
        return self.base_ns + hops * self.hop_ns + (sent or 0) / self.bytes_per_second * 1e9


AS_MEASURED = "as measured among "


class MeasuredLink(NamedTuple):
    """How ranks of an axis reach each other as those of a job did, in which it was measured."""

    measured: RankLinks

    @property
    def bytes_per_second(self) -> float:
        """What each rank sends per second at most."""
        return self.measured.bytes_per_second

    def __str__(self) -> str:
        return f"{AS_MEASURED}{self.measured.ranks} ranks"

    def time_ns(self, row: Exchange) -> float:
        """How long a collective or message takes once all its ranks have come."""
        return self.measured.time_ns(row.kind, row.bytes or 0, len(row.members))


Link = AxisLink | MeasuredLink


def links_of(
    axes: Sequence[tuple[str, int]], device: Calibration | Hardware, given: Mapping[str, Any] | None
) -> dict[str, Link]:
    """The links of the axes of a mesh: as they are given, or else those of a usual machine with this device.

    Of axes that nobody says anything of, those that lie within one machine of 8 ranks have the device's own links.

    >>> from torch_vis.analysis.machine.hardware import find_hardware
    >>> links = links_of((("dp", 16), ("tp", 8)), find_hardware("h100"), {"dp": "400 Gbit/s"})
    >>> [f"{link.bytes_per_second / 1e9:g}" for link in links.values()]
    ['50', '360']
    """
    given = {} if given is None else given
    if not isinstance(given, Mapping):
        raise UsageError(f"links is a dictionary such as {{'tp': '450 GB/s'}}, not {given!r}")
    names = [axis for axis, _ in axes]
    for axis in given:
        if axis not in names:
            raise no_match("axis of the mesh", str(axis), names)
    name = profile(device).name
    near = next((rate for start, rate in NEAR_GB_PER_S if name.startswith(start)), BUS_GB_PER_S)
    measured = device.links if isinstance(device, Calibration) else None
    links: dict[str, Link] = {}
    inside = 1
    for axis, count in reversed(axes):
        inside *= count
        is_near = inside <= NODE_RANKS
        if axis in given:
            links[axis] = _link(axis, given[axis], is_near)
        elif measured is not None:
            links[axis] = MeasuredLink(measured)
        elif device.class_ == "cpu":
            raise UsageError(
                f"say how fast axis {axis} is: links={{{axis!r}: '10 GB/s'}}; or measure it: tv.measure.calibrate() "
                "under torchrun"
            )
        else:
            rate = (near if is_near else FAR_GB_PER_S) * 1e9 * REACHED
            links[axis] = AxisLink(rate, HOP_NS if is_near else FAR_HOP_NS)
    return {axis: links[axis] for axis in names}


def _link(axis: str, given: Any, is_near: bool) -> AxisLink:
    if isinstance(given, AxisLink):
        return given
    rate, latency = given if isinstance(given, (tuple, list)) and len(given) == 2 else (given, None)
    hop = HOP_NS if is_near else FAR_HOP_NS
    if latency is None:
        return AxisLink(_rate(axis, rate), hop)
    time = TIME.fullmatch(latency) if isinstance(latency, str) else None
    if time is None:
        raise UsageError(f"links: the latency of {axis} is a text like '5 us', not {latency!r}")
    return AxisLink(_rate(axis, rate), hop, float(time[1]) * SECONDS_NS[time[2]])


def _rate(axis: str, rate: Any) -> float:
    if isinstance(rate, (int, float)) and not isinstance(rate, bool) and rate > 0:
        return float(rate)
    match = RATE.fullmatch(rate) if isinstance(rate, str) else None
    if match is None or not float(match[1]):
        raise UsageError(
            f"links: {axis} is a text like '50 GB/s' or '400 Gbit/s', or bytes per second, not {rate!r}"
        )
    bits = match[3] == "b" or match[3].lower() == "bit"
    return float(match[1]) * UNITS[(match[2] or "").lower()] / (8 if bits else 1)


# ---------------------------------------------------------------- the ranks on one time line


class _Rank:
    """One rank as it is followed: how far it is, and when its host and its device are."""

    def __init__(self, run: Run, device: Calibration | Hardware) -> None:
        graph = run.graph
        latency = predict(graph, run.metrics, device)
        self.graph, self.overlaps, self.unknown = graph, latency.overlaps, len(latency.unknown)
        self.issue, self.work = latency.host_ns.copy(), latency.device_ns.copy()
        self.comms = {int(node): place for place, node in enumerate(graph.comm_node.tolist())}
        self.waits = dict(zip(graph.wait_node.tolist(), graph.wait_comm.tolist()))
        waited = set(self.waits.values())
        # one that nobody waits for is over when it returns
        self.blocking = {place for place in self.comms.values() if place not in waited}
        self.events = sorted({*self.comms, *self.waits})
        # the link carries them, and no kernel of this device
        self.work[self.events] = 0.0
        measured = device.links if isinstance(device, Calibration) else None
        self.hidden = 1.0
        if measured is not None:
            # on a CPU, what carries bytes takes its time from what computes
            self.hidden = 1.0 if self.overlaps else measured.hidden
            for node in self.comms:
                self.issue[node] += measured.around_ns(graph.calls[graph.node_call[node]].op)
        self.start, self.time = np.zeros(len(graph)), np.zeros(len(graph))
        self.host = self.device = 0.0
        # until when it is known what collectives took from computing
        self.beside_until = 0.0
        self.position = self.event = 0
        self.free: dict[Any, float] = {}

    @property
    def is_done(self) -> bool:
        return self.position >= len(self.graph)

    @property
    def now(self) -> float:
        return max(self.host, self.device) if self.overlaps else self.host

    def run_until(self, node: int) -> None:
        """Run the operations up to one that talks."""
        part = slice(self.position, node)
        if part.start >= part.stop:
            return
        issue, work = self.issue[part], self.work[part]
        if not self.overlaps:
            ends = self.host + np.cumsum(issue + work)
            self.start[part], self.time[part] = ends - issue - work, issue + work
            self.host = float(ends[-1])
        else:
            issued, worked = self.host + np.cumsum(issue), np.cumsum(work)
            # a kernel starts when it is issued and the one before is done
            ends = np.maximum.accumulate(np.maximum(issued - (worked - work), self.device)) + worked
            self.start[part], self.time[part] = ends - work, work
            self.host, self.device = float(issued[-1]), float(ends[-1])
        self.position = node

    def give(self, node: int, ready: float) -> None:
        """Note a collective that goes on while the program does: what it sends was there at ``ready``."""
        issue = float(self.issue[node])
        if self.overlaps:
            # the host is ahead: on the device's clock a rank comes when the kernels before are done
            self.start[node], self.time[node] = ready, 0.0
        else:
            # by now it has been issued
            self.start[node], self.time[node] = max(self.host - issue, 0.0), issue
        self.position = node + 1

    def wait_until(self, node: int, done: float, began: float) -> None:
        """Stand still until a collective is done, which has taken time from what was computed beside it."""
        # a collective that is its own wait has been issued by now
        if node in self.waits:
            self.host += float(self.issue[node])
        now = self.now if self.overlaps else self.host
        if self.hidden < 1.0:
            beside = max(min(now, done) - max(began, self.beside_until), 0.0)
            self.beside_until = max(self.beside_until, min(now, done))
            done = max(now, done) + (1.0 - self.hidden) * beside
        self.start[node], self.time[node] = now, max(done - now, 0.0)
        if self.overlaps:
            # the host goes on, and what it issues waits on the device
            self.device = max(now, done)
        else:
            self.host = max(now, done)
        self.position = node + 1


class _Clockwork:
    """Ranks that run side by side."""

    def __init__(
        self,
        runs: Mapping[int, Run],
        exchanges: Mapping[int, Sequence[Exchange]],
        meetings: Sequence[Meeting],
        device: Calibration | Hardware,
        links: Mapping[str, Link],
    ) -> None:
        self.exchanges, self.meetings, self.links = exchanges, meetings, links
        self.ranks = {rank: _Rank(run, device) for rank, run in runs.items()}
        self.meeting_of = {
            (rank, place): number
            for number, row in enumerate(self.meetings)
            for rank, place in row.parts.items()
        }
        self.came: dict[Any, dict[int, tuple[int, float]]] = {}
        # when each was done, and when it began
        self.done: dict[tuple[int, int], tuple[float, float]] = {}

    def run(self) -> None:
        """Let all ranks run to their ends."""
        pending = set(self.ranks)
        while pending:
            moved = False
            for rank in sorted(pending):
                moved |= self._advance(rank)
                if self.ranks[rank].is_done:
                    pending.discard(rank)
            if not moved:
                raise UsageError(
                    f"ranks {rank_spans(pending)} wait for each other, so that the step has no end to predict; "
                    "w.problems says where they do not agree"
                )

    def _advance(self, rank: int) -> bool:
        """Run one rank until it waits for others; whether it got any further."""
        state = self.ranks[rank]
        before = state.position, state.event
        while state.event < len(state.events):
            node = state.events[state.event]
            state.run_until(node)
            place = state.comms.get(node)
            if place is not None:
                if (rank, place) not in self.done and not self._came(rank, place):
                    self._start(rank, place, node)
                if place in state.blocking:
                    if (rank, place) not in self.done:
                        return before != (state.position, state.event)
                    state.wait_until(node, *self.done[rank, place])
                elif state.position == node:
                    state.give(node, self.came[self._meeting(rank, place)][rank][1])
            else:
                waited = self.done.get((rank, state.waits[node]))
                if waited is None:
                    return before != (state.position, state.event)
                state.wait_until(node, *waited)
            state.event += 1
        state.run_until(len(state.graph))
        return True

    def _came(self, rank: int, place: int) -> bool:
        return rank in self.came.get(self._meeting(rank, place), ())

    def _meeting(self, rank: int, place: int) -> Any:
        return self.meeting_of.get((rank, place), (rank, place))

    def _start(self, rank: int, place: int, node: int) -> None:
        """A rank has come to a collective; the last one lets it begin."""
        state = self.ranks[rank]
        state.host += float(state.issue[node])
        key = self._meeting(rank, place)
        came = self.came.setdefault(key, {})
        came[rank] = (place, state.now)
        expected = self.meetings[key].parts if type(key) is int else {rank: place}
        if len(came) < len(expected):
            return
        rows = {member: self.exchanges[member][own] for member, (own, _) in came.items()}
        streams = {member: _stream(row) for member, row in rows.items()}
        begin = max(
            max(ready, self.ranks[member].free.get(streams[member], 0.0))
            for member, (_, ready) in came.items()
        )
        link = self.links.get(rows[rank].axis) or min(
            self.links.values(), key=lambda one: one.bytes_per_second
        )
        end = begin + max(link.time_ns(row) for row in rows.values())
        for member, (own, _) in came.items():
            self.done[member, own] = (end, begin)
            self.ranks[member].free[streams[member]] = end


def _stream(row: Exchange) -> Any:
    """What comes one after another: the collectives of a group, and messages to or from one rank."""
    return (row.axis, row.kind, row.peer) if row.is_message else row.axis


def predicted_runs(
    runs: Mapping[int, Run],
    exchanges: Mapping[int, Sequence[Exchange]],
    meetings: Sequence[Meeting],
    device: Calibration | Hardware,
    links: Mapping[str, Link],
) -> dict[int, Run]:
    """The runs of ranks that meet, with predicted times for all that they do."""
    clockwork = _Clockwork(runs, exchanges, meetings, device, links)
    clockwork.run()
    name = device.device if isinstance(device, Calibration) else device.name
    facts = {"machine": name, "links": {axis: str(link) for axis, link in links.items()}}
    timed = {}
    for rank, state in clockwork.ranks.items():
        run = runs[rank]
        wall = int(max((state.start + state.time).max(initial=0.0), state.now))
        meta = {key: item for key, item in run.meta.items() if not key.startswith("overhead")}
        text = f"times are predicted for {name}, not measured"
        if state.unknown:
            text += f"; those of {many(state.unknown, 'operator')} are not known and count as next to nothing"
        timed[rank] = Run(
            run.graph,
            _with_times(run.metrics, state),
            (*run.limits, Limit(text, kind="times")),
            {**meta, "predicted": facts, "wall_ns": wall},
        )
    return timed


def _with_times(metrics: Metrics, state: _Rank) -> Metrics:
    """The columns of a run with predicted times in place of those of working out shapes."""
    start, time = np.rint(state.start).astype(np.int64), np.rint(state.time).astype(np.int64)
    first, last = _spans(state.graph, metrics, start, start + time)
    inclusive = last - first
    inside = np.zeros(len(inclusive), dtype=np.int64)
    called = state.graph.scope_parent >= 0
    np.add.at(inside, state.graph.scope_parent[called], inclusive[called])
    columns = [
        Column("start_ns", start), Column("time_ns", time),
        Column("scope_start_ns", first, along="scope"), Column("scope_time_ns", inclusive, along="scope"),
        Column("scope_self_ns", np.maximum(inclusive - inside, 0), along="scope"),
    ]  # fmt: skip
    for column in columns:
        metrics = metrics.with_column(column)
    return metrics


def _spans(graph: Graph, metrics: Metrics, start: Ints, end: Ints) -> tuple[Ints, Ints]:
    """When the first operation of each call begins, and the last one ends.

    What backward does has the scope of the forward operation that it belongs to, and runs after that. Calls that run
    backward themselves are known by when they were recorded.
    """
    tree = graph.tree
    again = (graph.node_flags & Flag.RECOMPUTE) > 0
    backward = (graph.node_phase == Phase.BACKWARD) & ~again
    forward = ~backward
    first = np.full(len(tree), np.iinfo(np.int64).max)
    last = np.zeros(len(tree), dtype=np.int64)
    np.minimum.at(first, graph.node_scope[forward], start[forward])
    np.maximum.at(last, graph.node_scope[forward], end[forward])
    first, last = tree.inclusive(first, np.minimum), tree.inclusive(last, np.maximum)
    # messages between stages of a pipeline run in backward and are no part of it
    with_peer = graph.comm_peer >= 0
    messages = np.concatenate([graph.comm_node[with_peer], graph.wait_node[with_peer[graph.wait_comm]]])
    backward[messages.astype(np.int64)] = False
    numbers, others = np.flatnonzero(backward), np.flatnonzero(~backward)
    if len(numbers) and {"start_ns", "scope_start_ns", "scope_time_ns"} <= set(metrics):
        recorded, calls = metrics["start_ns"].values[numbers], metrics["scope_start_ns"].values
        begins = np.searchsorted(recorded, calls)
        untils = np.searchsorted(recorded, calls + metrics["scope_time_ns"].values)
        for scope in np.flatnonzero(begins < untils).tolist():
            # its time was recorded without what recording took: it goes on until something runs outside of it
            after = others[np.searchsorted(others, numbers[untils[scope] - 1]) :]
            places = tree.enter[graph.node_scope[after]]
            outside = after[(places < tree.enter[scope]) | (places >= tree.leave[scope])]
            until = np.searchsorted(numbers, outside[0]) if len(outside) else len(numbers)
            rows = numbers[begins[scope] : until]
            first[scope] = min(first[scope], int(start[rows].min()))
            last[scope] = max(last[scope], int(end[rows].max()))
    return np.minimum(first, last), last


# ---------------------------------------------------------------- what a step is made of


def _covered(spans: Iterable[tuple[int, int]]) -> int:
    """How much of a line so many spans of it cover together.

    >>> _covered([(0, 2), (1, 4), (6, 7)])
    5
    """
    total, end = 0, None
    for start, stop in sorted(spans):
        start = start if end is None else max(start, end)
        if stop > start:
            total, end = total + stop - start, stop
    return total


class RankTime(NamedTuple):
    """What one rank does with the time of a step."""

    rank: int
    ranks: str
    """This rank and those that do the same."""
    compute_ns: int
    exposed_ns: int
    """Waiting for collectives, which no computation hides."""
    idle_ns: int
    """Waiting for messages of other stages, and for the last rank at the end: the bubble of a pipeline."""
    hidden_ns: int
    """Communication while it computes."""

    @property
    def busy_share(self) -> float:
        """What of the step it computes."""
        whole = self.compute_ns + self.exposed_ns + self.idle_ns
        return self.compute_ns / whole if whole else 0.0


class StepTimeReport(Report):
    """How long a step of all ranks takes, and what each does with it: computes, waits for collectives, stands idle.

    Of ranks that ran it is what was recorded; of simulated ones it is predicted (``predicted`` says for what).
    """

    title = "Step time"

    def __init__(self, timeline: RankTimeline, runs: Mapping[int, Run], like: Mapping[int, int]) -> None:
        self._timeline, self._runs, self._like = timeline, runs, like
        self.predicted: Mapping[str, Any] | None = timeline.predicted
        """The machine and the links that times are predicted for; None where they were measured."""

    @cached_property
    def total_ns(self) -> int:
        """From the beginning of the first rank to the end of the last."""
        ended = self._timeline.ended.values()
        return max(ended, default=0) - min(self._timeline.began.values(), default=0)

    @cached_property
    def ranks(self) -> list[RankTime]:
        """A row for each rank, or each kind of ranks that do the same; the one that waits least first."""
        rows = []
        for rank, exchanges in self._timeline.ranks.items():
            exposed = idle = 0
            for row in exchanges:
                waited = row.waited_ns or 0
                if row.is_message:
                    idle += waited
                else:
                    exposed += waited
            began, ended = self._timeline.began[rank], self._timeline.ended[rank]
            compute = max(ended - began - exposed - idle, 0)
            idle += self.total_ns - (ended - began)
            alike = [other for other, like in self._like.items() if like == rank]
            rows.append(RankTime(rank, rank_spans(alike), compute, exposed, idle, self._hidden(rank)))
        return sorted(rows, key=lambda row: (row.exposed_ns + row.idle_ns, row.rank))

    @cached_property
    def _last_came(self) -> dict[tuple[int, int], int]:
        """When the last rank came to each collective, by rank and place in it: before that nothing is on its way."""
        timeline, last = self._timeline, {}
        for meeting in timeline.meetings:
            parts = [(rank, timeline.ranks[rank][place]) for rank, place in meeting.parts.items()]
            starts = [timeline.began[rank] + (row.start_ns or 0) for rank, row in parts]
            last.update(dict.fromkeys(meeting.parts.items(), max(starts, default=0)))
        return last

    def _hidden(self, rank: int) -> int:
        """How long something was on its way to or from a rank that did not stand waiting."""
        began, waits, under_way = self._timeline.began[rank], [], []
        for place, row in enumerate(self._timeline.ranks[rank]):
            if row.start_ns is None or row.done_ns is None:
                continue
            done = began + row.done_ns
            waits.append((done - (row.waited_ns or 0), done))
            begun = self._last_came.get((rank, place), began + row.start_ns)
            under_way.append((min(max(begun, began + row.start_ns), done), done))
        return _covered([*waits, *under_way]) - _covered(waits)

    def _mean(self, figure: str) -> float:
        weights = {rank: list(self._like.values()).count(rank) for rank in self._timeline.ranks}
        whole = sum(weights.values()) * self.total_ns
        return sum(getattr(row, figure) * weights[row.rank] for row in self.ranks) / whole if whole else 0.0

    @property
    def compute_share(self) -> float:
        """What of the time of all ranks is computation."""
        return self._mean("compute_ns")

    @property
    def exposed_share(self) -> float:
        """What of it ranks wait for collectives."""
        return self._mean("exposed_ns")

    @property
    def idle_share(self) -> float:
        """What of it ranks wait for other stages: the bubble of a pipeline."""
        return self._mean("idle_ns")

    @cached_property
    def flops(self) -> int:
        """What all ranks compute in the step; a lower bound where some operations have no formula."""
        sums = {}
        for rank, run in self._runs.items():
            column = run.metrics.get("flops")
            sums[rank] = int(column.total() or 0) if column is not None else 0
        return sum(sums[like] for like in self._like.values())

    @property
    def flops_per_second(self) -> float:
        """That of one rank, on average."""
        whole = len(self._like) * self.total_ns
        return self.flops / whole * 1e9 if whole else 0.0

    def facts(self) -> Mapping[str, str]:
        """The step, and what it is made of."""
        how = f", predicted for {self.predicted['machine']}" if self.predicted else ""
        facts = {
            "step": f"{duration(self.total_ns)} on {many(len(self._like), 'rank')}{how}",
            "made of": f"computation {self.compute_share:.0%}, exposed communication {self.exposed_share:.0%}, "
            f"idle {self.idle_share:.0%}",
        }
        if self.flops:
            facts["computed"] = f"{self.flops_per_second / 1e12:.3g} TFLOP/s on each rank"
        if self.predicted:
            facts["links"] = "; ".join(f"{axis} {link}" for axis, link in self.predicted["links"].items())
        return facts

    def listings(self) -> Sequence[Listing]:
        """Every kind of ranks."""
        fields = (
            Field("ranks", "ranks"),
            Field("compute_ns", "computes", duration),
            Field("exposed_ns", "waits for collectives", duration),
            Field("idle_ns", "idle", duration),
            Field("hidden_ns", "communication hidden", duration),
            Field("busy_share", "busy", "{:.0%}".format),
        )
        rows = [
            (row.ranks, row.compute_ns, row.exposed_ns, row.idle_ns, row.hidden_ns, row.busy_share)
            for row in self.ranks
        ]
        return [Listing("Ranks", fields, rows, most=64)]

    def charts(self) -> Mapping[str, Chart]:
        """What each kind of ranks does with the step."""
        return Charts(ranks=self._chart)

    def _chart(self) -> Chart:
        rows = sorted(self.ranks)[:64]
        names = [f"ranks {row.ranks}" for row in rows]
        series = [
            Series("computes", names, [row.compute_ns for row in rows]),
            Series("waits for collectives", names, [row.exposed_ns for row in rows]),
            Series("idle", names, [row.idle_ns for row in rows]),
        ]
        return Chart("dots", "The step by rank", Axis("rank"), Axis("time", "ns"), series)

    def notes(self) -> Sequence[str]:
        """What it rests on."""
        if not self.predicted:
            return [self._timeline.about_times]
        links = self.predicted.get("links", {}).values()
        measured = [link for link in links if str(link).startswith(AS_MEASURED)]
        notes = []
        if measured:
            notes.append(
                "a collective begins when its last rank has come, and takes as long as one of its kind and size did "
                "among ranks of a job that computed side by side; so was measured how much of it computing hides, and "
                "what Python takes around it. A step that other work on the machine disturbs takes longer"
            )
        if not measured or len(measured) < len(links):
            notes.append(
                "a collective begins when its last rank has come, and takes a latency per hop of a ring and the bytes "
                "sent by the bandwidth; congestion, and what communication takes of a device's memory bandwidth, are "
                "not in it"
            )
        return notes
