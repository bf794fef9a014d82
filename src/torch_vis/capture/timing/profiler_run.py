"""A run under torch's profiler: what it saw on the host and on devices, and which of it belongs to which operation.

The profiler notes an operation twice where a recorder's mode is active: once when the program calls it, and once more
when the recorder passes it on. The second event is the operation by itself, timed in C++, and it is the one wanted: of
the events of that name, the first that lies within the time that the recorder took down and is no longer than it.
"""

from __future__ import annotations

import functools
import os
import time
from bisect import bisect_left
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple

import numpy as np
import torch
from torch.autograd import profiler

from torch_vis.capture.assembling.log import OpRows, table
from torch_vis.capture.recording.recorder import clock
from torch_vis.errors import UsageError
from torch_vis.graph.types import Ints

FAR_NS, NEAR_NS = (
    1_000_000,
    20_000,
)  # how far two clocks may be apart, before and after they have been compared
QUIET = "99"
TRIES, SPINS, WARM = 5, 1000, 16


class Timeline(NamedTuple):
    """What the profiler saw. Times are nanoseconds on Python's clock, up to the drift between it and the profiler's."""

    names: list[str]
    thread: Ints  # of the events on the host, by thread and time
    start: Ints
    stop: Ints
    name: Ints
    number: Ints  # what device activity is linked to
    sequence: Ints  # of the autograd node that an operation makes or that the engine runs
    waits: Ints  # name, start, stop, linked number: calls in which the host waited for the device
    device: Ints  # name, start, stop, linked number, device, stream: kernels, copies and fills, by time

    def until(self, ended: int) -> Timeline:
        """Without the waits of after the run: the profiler's own."""
        return self._replace(waits=self.waits[self.waits[:, 1] < ended])


class Profiling:
    """What a block of ``profiling`` found; the timeline is there once the block has ended."""

    timeline: Timeline


WAITS = frozenset(
    "cudaStreamSynchronize cudaDeviceSynchronize cudaEventSynchronize cudaMemcpy cuCtxSynchronize "
    "cuStreamSynchronize cuEventSynchronize".split()
)


@contextmanager
def profiling(*, cuda: bool) -> Iterator[Profiling]:
    """Profile a block: operations on the host and, with ``cuda``, what ran on the devices."""
    found = Profiling()
    with quiet_profiler():
        run = profiler.profile(use_kineto=True, use_device="cuda" if cuda else None)
        run.__enter__()
    for _ in range(WARM):  # the first events of a profile make its buffers, and would be long
        torch.empty(0)
    begun = clock()
    apart = time.time_ns() - begun
    try:
        yield found
    finally:
        run.__exit__(None, None, None)
    found.timeline = _read(run.kineto_results, apart, begun)


def refuse_nested() -> None:
    """Raise where a profiler is active already: torch has only one."""
    if torch.autograd._profiler_enabled():
        raise UsageError("repeat= needs torch's profiler, and one is active already; trace outside its block")


@contextmanager
def quiet_profiler() -> Iterator[None]:
    """Keep the profiler's library from writing to the terminal; it asks for its level at its first use only."""
    if "KINETO_LOG_LEVEL" in os.environ:
        yield
        return
    os.environ["KINETO_LOG_LEVEL"] = QUIET
    try:
        yield
    finally:
        del os.environ["KINETO_LOG_LEVEL"]


@functools.cache
def event_ns() -> float:
    """What the profiler adds to a run for each event, in nanoseconds: measured once, at its best of several tries."""
    plain, profiled = [], []
    for _ in range(TRIES):
        plain.append(_spin())
        with profiling(cuda=False):
            profiled.append(_spin())
    return max(min(profiled) - min(plain), 0) / SPINS


def _spin() -> int:
    start = clock()
    for _ in range(SPINS):
        torch.empty(0)
    return clock() - start


def _read(results: Any, apart: int, begun: int) -> Timeline:
    names: dict[str, int] = {}
    host: list[tuple[int, ...]] = []
    waits: list[tuple[int, ...]] = []
    device: list[tuple[int, ...]] = []
    for event in results.events():
        name = event.name()
        number = names.setdefault(name, len(names))
        start, stop = event.start_ns() - apart, event.end_ns() - apart
        if event.device_type() != torch._C._autograd.DeviceType.CPU:
            if not event.is_user_annotation():  # the shadow of a name on the host, no work
                where = event.device_index(), event.device_resource_id()
                device.append((number, start, stop, event.linked_correlation_id(), *where))
        elif name in WAITS:
            waits.append((number, start, stop, event.linked_correlation_id()))
        elif not event.is_async() and start >= begun:
            row = (event.start_thread_id(), start, -stop, event.correlation_id(), number, event.sequence_nr())
            host.append(row)
    host.sort()
    thread, begin, end, linked, name_of, sequence = table(host, 6).T
    device.sort(key=lambda row: row[1])
    return Timeline(
        list(names), thread, begin, -end, name_of, linked, sequence, table(waits, 4), table(device, 6)
    )


class Match(NamedTuple):
    """Which event is which operation (-1: none), and which operation each event belongs to (-1: none)."""

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
    blocks = [_Block(timeline, thread) for thread in np.unique(timeline.thread)]
    for thread in dict.fromkeys(rows.thread.tolist()):
        own = np.flatnonzero(rows.thread == thread)
        part = OpRows(*(column[own] for column in rows))
        if not blocks:
            continue
        tried = [(*block.place(part, wanted[own]), block) for block in blocks]
        places, drift, found = max(tried, key=lambda row: int((row[0] >= 0).sum()))
        if not (places >= 0).any():  # nothing here has a name: take the thread that began first
            found = min(blocks, key=lambda block: int(block.start[0]))
        event[own] = np.where(places >= 0, places + found.first, -1)
        _own(owner, own, part, places, found, drift)
    return Match(event, owner)


class _Block:
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

    def place(self, rows: OpRows, wanted: Ints) -> tuple[Ints, int]:
        """The event of each operation in this thread, -1 for none, and how far the clocks were apart."""
        drift = 0
        for apart in (FAR_NS, NEAR_NS):
            places = self._place(rows, wanted, drift, apart)
            found = np.flatnonzero(places >= 0)
            if not len(found):
                break
            drift = int(np.median(self.start[places[found]] - rows.start[found]))
        return places, drift

    def _place(self, rows: OpRows, wanted: Ints, drift: int, apart: int) -> Ints:
        starts, stops = self.start.tolist(), self.stop.tolist()
        places = np.full(len(wanted), -1, dtype=np.int64)
        free = 0  # events before this one are taken, or lie within one that is
        begun, ended = (rows.start + drift).tolist(), (rows.stop + drift).tolist()
        for row, (name, begin, end) in enumerate(zip(wanted.tolist(), begun, ended)):
            having = self.by_name.get(name)
            if having is None:
                continue
            turn = bisect_left(having, free)
            while turn < len(having) and starts[having[turn]] <= end + apart:
                place = having[turn]
                start, stop = starts[place], stops[place]
                if start >= begin - apart and stop - start <= end - begin:
                    places[row] = place
                    free = bisect_left(starts, stop, place + 1)
                    break
                turn += 1
        return places


def _own(owner: Ints, own: Ints, rows: OpRows, places: Ints, block: _Block, drift: int) -> None:
    """Give each operation the events inside its own, or those that ran while it ran where it has none."""
    named = places >= 0
    low = np.where(named, places, np.searchsorted(block.start, rows.start + drift))
    until = np.where(named, block.stop[np.maximum(places, 0)], rows.stop + drift)
    high = np.searchsorted(block.start, until)
    for node, first, last in zip(own.tolist(), low.tolist(), np.maximum(high, low + named).tolist()):
        part = owner[block.first + first : block.first + last]
        part[part < 0] = node
