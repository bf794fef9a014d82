"""Torch's profiler around a run: its events, and which of them each operation of a recording is.

With a recorder active, the profiler notes an operation twice: once when the program calls it, and once more when the
recorder passes it on. The second event is the operation by itself, timed in C++, and it is the one wanted: of the
events of that name, the first that lies within the time that the recorder took down and is no longer (``match``).

Without a recorder, torch does a few things differently: it adds gradients up in place, say, and takes ``linear`` apart
in another way. So the two sequences are alike but not equal. They are compared piece by piece (``align``): what a call
of a module did by itself, and what one node of the backward pass did, are pieces that both runs have. Within a piece,
an event belongs to the next operation of its name (in place or not), and whatever lies inside the event is part of it.
"""

from __future__ import annotations

import functools
import os
import re
import time
from bisect import bisect_left
from collections import defaultdict
from typing import Any, NamedTuple

import numpy as np
import torch
from torch.autograd import profiler

from torch_vis.capture.assembling.log import OpRows, table
from torch_vis.capture.recording.recorder import clock
from torch_vis.capture.undo import Context, Undo, context, is_interrupted
from torch_vis.errors import UsageError
from torch_vis.graph.types import Ints
from torch_vis.ops.names import out_of_place

FAR_NS, NEAR_NS = 1_000_000, 20_000  # how far two clocks may be apart, before and after they were compared
QUIET = "99"
TEARDOWN = "TEARDOWN_CUPTI"  # "1": the profiler's library lets go of the device at the end of a block
DETACHABLE = (12, 6)  # the first CUDA in which it can, with captured CUDA graphs about
DETACHING_CALLS = 30
# calls of CUDA and HIP, and what the profiler notes of its own work
OF_DEVICE = re.compile(
    r"(cuda|cu|hip)[A-Z]\w*|INVALID|Activity Buffer Request|Lazy Function Loading|Runtime Triggered Module Loading"
)
TRIES, SPINS, WARM = 5, 1000, 16


class Timeline(NamedTuple):
    """What the profiler saw. Times are nanoseconds on Python's clock, up to the drift between it and the profiler's."""

    names: list[str]
    thread: Ints
    """That of the events on the host, which are ordered by thread and time."""
    start: Ints
    stop: Ints
    name: Ints
    number: Ints
    """What device activity is linked to."""
    sequence: Ints
    """That of the autograd node that an operation makes or that the engine runs."""
    waits: Ints
    """Name, start, stop, linked number: calls in which the host waited for the device."""
    device: Ints
    """Name, start, stop, linked number, device, stream: kernels, copies and fills, by time."""

    def until(self, ended: int) -> Timeline:
        """The timeline without the waits after the run, which are the profiler's own."""
        return self._replace(waits=self.waits[self.waits[:, 1] < ended])


class Profile:
    """What the profiler saw in a block of ``profiling``; the timeline is there once the block has ended."""

    timeline: Timeline


WAITS = frozenset(
    "cudaStreamSynchronize cudaDeviceSynchronize cudaEventSynchronize cudaMemcpy cuCtxSynchronize "
    "cuStreamSynchronize cuEventSynchronize".split()
)


class Profiling(Context[Profile]):
    """Profiles a block: operations on the host and, with ``cuda``, what ran on the devices."""

    def __init__(self, *, cuda: bool) -> None:
        self._profile = Profile()
        self._cuda = cuda

    def _begin(self, undo: Undo) -> Profile:
        self._run = run = profiler.profile(use_kineto=True, use_device="cuda" if self._cuda else None)
        undo.add(_stop, run)
        with quiet_profiler():
            run.__enter__()
        for _ in range(WARM):  # the first events of a profile make its buffers, and would be long
            torch.empty(0)
        self._begun = clock()
        self._clock_offset_ns = time.time_ns() - self._begun
        return self._profile

    def _ended(self, error: BaseException | None) -> None:
        if error is None:
            self._profile.timeline = _read(self._run.kineto_results, self._clock_offset_ns, self._begun)


@context
def profiled(undo: Undo, run: Any) -> Any:
    """A block under one of torch's profilers, which is off afterwards."""
    undo.add(_turn_off, run)
    return run.__enter__()


def _turn_off(run: Any) -> None:
    """Leave a profiler; one that an interrupt has left half entered or half left is only turned off."""
    try:
        if torch.autograd._profiler_enabled():
            run.__exit__(None, None, None)
    except Exception:
        if not is_interrupted():
            raise
    finally:
        if torch.autograd._profiler_enabled():
            torch.autograd._disable_profiler()


def _stop(run: Any) -> None:
    """Leave a profiler, and where it does not know that it was entered, turn it off."""
    if run.entered and torch.autograd._profiler_enabled():
        run.__exit__(None, None, None)
    elif torch.autograd._profiler_enabled():
        torch.autograd._disable_profiler()


def refuse_nested() -> None:
    """Raise where a profiler is active already: torch has only one."""
    if torch.autograd._profiler_enabled():
        raise UsageError("repeat= needs torch's profiler, and one is active already; trace outside its block")


@context
def quiet_profiler(undo: Undo) -> None:
    """Keep the profiler's library from writing to the terminal; it asks for its level at its first use only."""
    if "KINETO_LOG_LEVEL" not in os.environ:
        undo.enter(environment("KINETO_LOG_LEVEL", QUIET))


@context
def environment(undo: Undo, name: str, value: str) -> None:
    """Set a variable of the environment for the time of a block."""
    before = os.environ.get(name)
    if before is None:
        undo.add(os.environ.pop, name, None)
    else:
        undo.add(os.environ.__setitem__, name, before)
    os.environ[name] = value


class DeviceProfiler:
    """Why the device's profiler could not be released, in words; None where it was."""

    reason: str | None = None


@context
def device_profiler(undo: Undo) -> DeviceProfiler:
    """Around the blocks that profile a device: at its end, later work of the process is as fast as before.

    CUPTI, once used, stays attached and slows every launch down until the process ends, unless torch's profiler is told
    to let go of it. Within this context it stays, since attaching takes long; an empty block at the end lets go.
    """
    state = DeviceProfiler()
    asked = os.environ.get(TEARDOWN)
    undo.enter(environment(TEARDOWN, "0"))
    undo.add(_let_go, state, asked)
    return state


def _let_go(state: DeviceProfiler, asked: str | None) -> None:
    state.reason = _why_attached(asked, torch.version.cuda)
    if state.reason is None and torch.version.cuda is not None:
        _detach()


def _why_attached(asked: str | None, version: str | None) -> str | None:
    slower = "torch's profiler stays attached to the device, and later work of this process is slower"
    if asked == "0":
        return f"{slower}: {TEARDOWN}=0 is in the environment"
    if version is not None and tuple(int(part) for part in version.split(".")[:2]) < DETACHABLE:
        newest = ".".join(map(str, DETACHABLE))
        return f"{slower}: it can be detached since CUDA {newest} only; trace in a process of its own"
    return None


def _detach() -> None:
    with environment(TEARDOWN, "1"):
        with quiet_profiler(), profiler.profile(use_kineto=True, use_device="cuda"):
            pass
        # The library lets go at the end of a call of CUDA's, once a thread of its own is ready for that.
        for _ in range(DETACHING_CALLS):
            torch.cuda.synchronize()
            time.sleep(0.001)


@functools.cache
def event_ns() -> float:
    """What the profiler adds to a run for each event, in nanoseconds: measured once, at its best of several tries."""
    plain, profiled = [], []
    for _ in range(TRIES):
        plain.append(_spin())
        with Profiling(cuda=False):
            profiled.append(_spin())
    return max(min(profiled) - min(plain), 0) / SPINS


def _spin() -> int:
    start = clock()
    for _ in range(SPINS):
        torch.empty(0)
    return clock() - start


def _read(results: Any, clock_offset_ns: int, begun: int) -> Timeline:
    names: dict[str, int] = {}
    host: list[tuple[int, ...]] = []
    waits: list[tuple[int, ...]] = []
    device: list[tuple[int, ...]] = []
    for event in results.events():
        name = event.name()
        number = names.setdefault(name, len(names))
        start, stop = event.start_ns() - clock_offset_ns, event.end_ns() - clock_offset_ns
        if event.device_type() != torch._C._autograd.DeviceType.CPU:
            if not event.is_user_annotation():  # the shadow of a name on the host, no work
                where = event.device_index(), event.device_resource_id()
                device.append((number, start, stop, event.linked_correlation_id(), *where))
        elif name in WAITS:
            waits.append((number, start, stop, event.linked_correlation_id()))
        elif not event.is_async() and start >= begun:
            own = 0 if _is_of_device(event) else event.correlation_id()
            host.append((event.start_thread_id(), start, -stop, own, number, event.sequence_nr()))
    host.sort()
    thread, begin, end, linked, name_of, sequence = table(host, 6).T
    device.sort(key=lambda row: row[1])
    return Timeline(
        list(names), thread, begin, -end, name_of, linked, sequence, table(waits, 4), table(device, 6)
    )


def _is_of_device(event: Any) -> bool:
    """Whether an event is a call of the device's library or the profiler's own: they are numbered by themselves.

    Some have the numbers of operations, and what such an operation launched would count as theirs.
    """
    return event.linked_correlation_id() > 0 or OF_DEVICE.fullmatch(event.name()) is not None


class Match(NamedTuple):
    """The event of each operation (-1: none), and the operation that each event belongs to (-1: none)."""

    event: Ints
    owner: Ints


def match(rows: OpRows, names: list[str], timeline: Timeline) -> Match:
    """Find the event of each operation; ``names`` are those of the operators, by template number.

    Code that the profiler has no name for, a compiled region say, owns what ran on its thread while it ran.
    """
    event = np.full(len(rows.call), -1, dtype=np.int64)
    owner = np.full(len(timeline.start), -1, dtype=np.int64)
    known = {name: number for number, name in enumerate(timeline.names)}
    wanted = np.array([known.get(name, -1) for name in names], dtype=np.int64)[rows.call]
    threads = [_ThreadEvents(timeline, thread) for thread in np.unique(timeline.thread)]
    for thread in dict.fromkeys(rows.thread.tolist()):
        own = np.flatnonzero(rows.thread == thread)
        part = OpRows(*(column[own] for column in rows))
        if not threads:
            continue
        tried = [(*events.match(part, wanted[own]), events) for events in threads]
        matched, drift, best = max(tried, key=lambda row: int((row[0] >= 0).sum()))
        if not (matched >= 0).any():  # no operation has a named event: take the thread that began first
            best = min(threads, key=lambda events: int(events.start[0]))
        event[own] = np.where(matched >= 0, matched + best.first, -1)
        _own(owner, own, part, matched, best, drift)
    return Match(event, owner)


class _ThreadEvents:
    """The events of one thread."""

    def __init__(self, timeline: Timeline, thread: int) -> None:
        self.first, last = np.searchsorted(timeline.thread, [thread, thread + 1]).tolist()
        self.start, self.stop = timeline.start[self.first : last], timeline.stop[self.first : last]
        name = timeline.name[self.first : last]
        order = np.argsort(name, kind="stable")
        bounds = np.flatnonzero(np.diff(name[order], prepend=-1)).tolist()
        self.by_name = {
            int(name[order[low]]): order[low:high].tolist()
            for low, high in zip(bounds, [*bounds[1:], len(order)])
        }

    def match(self, rows: OpRows, wanted: Ints) -> tuple[Ints, int]:
        """The event of each operation in this thread, -1 for none, and the offset of the clocks."""
        drift = 0
        for tolerance_ns in (FAR_NS, NEAR_NS):
            events = self._match(rows, wanted, drift, tolerance_ns)
            matched = np.flatnonzero(events >= 0)
            if not len(matched):
                break
            drift = int(np.median(self.start[events[matched]] - rows.start[matched]))
        return events, drift

    def _match(self, rows: OpRows, wanted: Ints, drift: int, tolerance_ns: int) -> Ints:
        starts, stops = self.start.tolist(), self.stop.tolist()
        events = np.full(len(wanted), -1, dtype=np.int64)
        free = 0  # events before this one are taken, or lie within one that is
        begun, ended = (rows.start + drift).tolist(), (rows.stop + drift).tolist()
        for row, (name, begin, end) in enumerate(zip(wanted.tolist(), begun, ended)):
            candidates = self.by_name.get(name)
            if candidates is None:
                continue
            turn = bisect_left(candidates, free)
            while turn < len(candidates) and starts[candidates[turn]] <= end + tolerance_ns:
                event = candidates[turn]
                start, stop = starts[event], stops[event]
                if start >= begin - tolerance_ns and stop - start <= end - begin:
                    events[row] = event
                    free = bisect_left(starts, stop, event + 1)
                    break
                turn += 1
        return events


def _own(owner: Ints, own: Ints, rows: OpRows, events: Ints, thread: _ThreadEvents, drift: int) -> None:
    """Assign to each operation the events inside its own event, or those during it where it has none."""
    named = events >= 0
    low = np.where(named, events, np.searchsorted(thread.start, rows.start + drift))
    until = np.where(named, thread.stop[np.maximum(events, 0)], rows.stop + drift)
    high = np.searchsorted(thread.start, until)
    for node, first, last in zip(own.tolist(), low.tolist(), np.maximum(high, low + named).tolist()):
        part = owner[thread.first + first : thread.first + last]
        part[part < 0] = node


# ---------------------------------------------------------------- without a recorder


FORWARD, ACCUMULATE, SEED = -1, -2, -3  # what stands in the place of a backward node's number, as in the log
ENGINE = "autograd::engine::evaluate_function: "
COMPILED = "## Call CompiledFxGraph"  # what Inductor calls a run of its code
AHEAD = 8  # operations that may be left out at a time
SKIPS = 24  # events that are looked at on the way to one of the right name


class Pieces(NamedTuple):
    """For operations or events in order: the piece that each lies in, and its name."""

    scope: Ints
    """The number of the module call."""
    backward: Ints
    """The number of the backward node, counted from the beginning of the run."""
    names: list[str]


def pieces_of_events(timeline: Timeline, scopes: Ints, first_number: int) -> Pieces:
    """The pieces that events lie in; ``scopes`` has parent, begin and end of the module calls of that run."""
    count = len(timeline.start)
    scope, backward = np.zeros(count, dtype=np.int64), np.full(count, FORWARD, dtype=np.int64)
    if count:
        times, inner = current(scopes)
        main = timeline.thread == timeline.thread[np.argmin(timeline.start)]
        scope[main] = inner[np.searchsorted(times, timeline.start[main], side="right")]
    after = ends(timeline)
    engine = np.array([name.startswith(ENGINE) for name in timeline.names], dtype=bool)
    for event in np.flatnonzero(engine[timeline.name]).tolist() if count else ():
        number = int(timeline.sequence[event])
        outside = number < 0 or number >= 1 << 62
        backward[event : after[event]] = ACCUMULATE if outside else number - first_number
    return Pieces(scope, backward, [timeline.names[name] for name in timeline.name.tolist()])


def ends(timeline: Timeline) -> Ints:
    """For each event, the number of the first one after it that is not inside it."""
    after = np.arange(1, len(timeline.start) + 1)
    for thread in np.unique(timeline.thread).tolist():
        first, last = np.searchsorted(timeline.thread, [thread, thread + 1]).tolist()
        inside = first + np.searchsorted(timeline.start[first:last], timeline.stop[first:last])
        after[first:last] = np.maximum(after[first:last], inside)
    return after


def current(scopes: Ints) -> tuple[Ints, Ints]:
    """The times at which the innermost module call changes, and the call from each time on."""
    count = len(scopes)
    closed = np.flatnonzero(scopes[:, 2] > 0)
    closed = closed[closed > 0]
    times = np.concatenate([scopes[1:, 1], scopes[closed, 2]])
    inner = np.concatenate([np.arange(1, count), scopes[closed, 0]])
    # of equal times, calls are left from the inside out before others are entered
    order = np.lexsort((np.concatenate([np.arange(1, count), -closed]), times))
    return times[order], np.concatenate([[0], inner[order]])


def align(nodes: Pieces, events: Pieces, after: Ints) -> Ints:
    """The event of each operation, -1 for none.

    >>> none, names = np.zeros(3, dtype=np.int64), ["aten::ones", "aten::sin", "aten::add"]
    >>> nodes = Pieces(none, none - 1, names)
    >>> events = Pieces(none, none - 1, ["aten::ones", "aten::fill_", "aten::add_"])
    >>> align(nodes, events, np.array([2, 2, 3])).tolist()
    [0, -1, 2]
    """
    aligned = np.full(len(nodes.names), -1, dtype=np.int64)
    backward = np.where(nodes.backward == SEED, FORWARD, nodes.backward)
    events_by_piece: dict[Any, list[int]] = defaultdict(list)
    for event, key in enumerate(zip(events.scope.tolist(), events.backward.tolist())):
        events_by_piece[key].append(event)
    nodes_by_piece: dict[Any, list[int]] = defaultdict(list)
    for node, key in enumerate(zip(nodes.scope.tolist(), backward.tolist())):
        nodes_by_piece[key].append(node)
    inside = after.tolist()
    for key, own in nodes_by_piece.items():
        if key in events_by_piece:
            piece = _Piece(events_by_piece[key], events.names, inside)
            aligned[own] = piece.align([_plain(nodes.names[node]) for node in own])
    return aligned


def _plain(name: str) -> str:
    return "torch_vis::compiled" if name.startswith(COMPILED) else out_of_place(name)


class _Piece:
    """The events of one piece: their numbers, and their positions by name."""

    def __init__(self, events: list[int], names: list[str], after: list[int]) -> None:
        self.events = events
        self.after = [bisect_left(events, after[event]) for event in events]
        self.positions: dict[str, list[int]] = {}
        for position, event in enumerate(events):
            self.positions.setdefault(_plain(names[event]), []).append(position)

    def align(self, wanted: list[str]) -> list[int]:
        """Walk along both sequences; the operation that costs least to go to comes next."""
        aligned = [-1] * len(wanted)
        node = at = 0
        while node < len(wanted):
            best = (AHEAD + SKIPS, 0, -1)
            for left_out in range(min(AHEAD, len(wanted) - node)):
                if left_out >= best[0]:
                    break
                position = self._next(wanted[node + left_out], at)
                if position >= 0:
                    best = min(best, (left_out + self._skipped(at, position), left_out, position))
            _, left_out, position = best
            if position < 0:
                node += 1
                continue
            aligned[node + left_out] = self.events[position]
            node += left_out + 1
            at = self.after[position]
        return aligned

    def _next(self, name: str, at: int) -> int:
        positions = self.positions.get(name, [])
        turn = bisect_left(positions, at)
        return positions[turn] if turn < len(positions) else -1

    def _skipped(self, at: int, position: int) -> int:
        """How many events end before this one begins, those inside of others not counted."""
        count = 0
        while at < position and count < SKIPS:
            if self.after[at] <= position:
                count += 1
                at = self.after[at]
            else:
                at += 1  # it lies in this one
        return count
