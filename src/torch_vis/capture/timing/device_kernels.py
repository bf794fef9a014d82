"""What ran on a CUDA device in repeated runs: kernels, copies and fills, with the operation that launched each."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from typing import Any, NamedTuple

import numpy as np

from torch_vis.capture.timing.profiler_events import Match, Timeline, ends
from torch_vis.graph.graph import Graph
from torch_vis.graph.metrics import Column
from torch_vis.graph.text import and_more
from torch_vis.graph.types import Ints

NAMES_SHOWN = 3


class DeviceRun(NamedTuple):
    """One run's activity on devices, by device, stream and time, with the node of each row; -1: no operation's."""

    names: list[str]
    device: Ints
    node: Ints
    waits: Ints
    waiting: Ints


class DeviceKernels:
    """Gathers runs under recorder and profiler (which kernel is whose) and under the profiler alone (when it ran)."""

    def __init__(self, graph: Graph) -> None:
        self.graph = graph
        self._alone: list[tuple[int, DeviceRun]] = []
        self._runs: list[DeviceRun] = []
        self._known = np.zeros(len(graph), dtype=bool)

    def forget(self) -> None:
        """Leave out what has been gathered so far: it was a rehearsal."""
        self._alone.clear()

    def add(self, timeline: Timeline, matched: Match, kept: Ints) -> None:
        """Take up a run whose events are matched to operations; ``kept`` are the nodes of those."""
        self._known[kept] = True
        self._runs.append(_run(timeline, matched.owner, kept))

    def add_alone(self, start: int, timeline: Timeline, events: Ints, kept: Ints) -> None:
        """Take up a run without a recorder that began at ``start``; ``events`` are those of the operations."""
        owner, after = np.full(len(timeline.start), -1, dtype=np.int64), ends(timeline)
        for node, event in enumerate(events.tolist()):
            if event >= 0:
                owner[event : after[event]] = node
        self._alone.append((start, _run(timeline, owner, kept)))

    def columns(self) -> Iterator[Column]:
        """Device time of each operation, over runs, and when its first kernel began."""
        if not any(len(run.device) for run in self._runs):
            return
        count = len(self.graph)
        sums = []
        for run in self._runs:
            own = run.node >= 0
            spent = (run.device[:, 2] - run.device[:, 1])[own]
            sums.append(np.bincount(run.node[own], weights=spent, minlength=count))
        middle, low, high = np.quantile(np.stack(sums), (0.5, 0.25, 0.75), axis=0).round().astype(np.int64)
        yield Column("kernel_ns", middle, known=self._known)
        yield Column("kernel_low_ns", low, known=self._known)
        yield Column("kernel_high_ns", high, known=self._known)
        run, origin = self._shown()
        own = run.node >= 0
        first = np.full(count, np.iinfo(np.int64).max)
        np.minimum.at(first, run.node[own], run.device[own, 1] - origin)
        launched = first < np.iinfo(np.int64).max
        yield Column("kernel_start_ns", np.where(launched, first, 0), known=launched)

    def limits(self) -> list[str]:
        """What has no operation, in sentences."""
        if not any(len(run.device) for run in self._runs):
            return ["the profiler saw nothing on the device, so there are no kernel times"]
        run = self._runs[-1]
        stray = np.flatnonzero(run.node < 0)
        if not len(stray):
            return []
        often = Counter(run.names[name] for name in run.device[stray, 0].tolist())
        spent = int((run.device[stray, 2] - run.device[stray, 1]).sum())
        shown = and_more([f"{name[:60]} × {times}" for name, times in often.most_common()], NAMES_SHOWN)
        return [
            f"{len(stray):,} of {len(run.node):,} kernels ({spent / 1e3:,.1f} µs) were launched by no recorded "
            f"operation: {shown}"
        ]

    def meta(self) -> dict[str, Any]:
        """The run at its own pace whose device span is the median, as plain columns; times from its beginning on."""
        run, origin = self._shown()
        names = sorted({run.names[name] for name in [*run.device[:, 0].tolist(), *run.waits[:, 0].tolist()]})
        number = {name: index for index, name in enumerate(names)}
        recorded = self._runs[-1]
        return {
            "names": names,
            "kernel_name": [number[run.names[name]] for name in run.device[:, 0].tolist()],
            "kernel_node": run.node.tolist(),
            "kernel_start_ns": (run.device[:, 1] - origin).tolist(),
            "kernel_time_ns": (run.device[:, 2] - run.device[:, 1]).tolist(),
            "kernel_device": run.device[:, 4].tolist(),
            "kernel_stream": run.device[:, 5].tolist(),
            "wait_name": [number[run.names[name]] for name in run.waits[:, 0].tolist()],
            "wait_node": run.waiting.tolist(),
            "wait_start_ns": (run.waits[:, 1] - origin).tolist(),
            "wait_time_ns": (run.waits[:, 2] - run.waits[:, 1]).tolist(),
            "total_ns": int((recorded.device[:, 2] - recorded.device[:, 1]).sum()),
            "unmatched": int((recorded.node < 0).sum()),
        }

    def _shown(self) -> tuple[DeviceRun, int]:
        """The middle one of the runs without the recorder, with the nodes of a recorded one where they did the same."""
        recorded = self._runs[-1]
        if not self._alone:
            return recorded, int(recorded.device[:, 1].min())
        timed = sorted(self._alone, key=lambda row: _span(row[1].device))
        origin, run = timed[len(timed) // 2]
        if _names(run, run.device) == _names(recorded, recorded.device):
            run = run._replace(node=recorded.node)
        if _names(run, run.waits) == _names(recorded, recorded.waits):
            run = run._replace(waiting=recorded.waiting)
        return run, origin


def _run(timeline: Timeline, owner: Ints, kept: Ints) -> DeviceRun:
    """What ran on devices with the nodes of it; ``owner`` are the operations of events, ``kept`` the nodes of those."""
    device = _ordered(timeline.device)
    of = {int(number): int(node) for number, node in zip(timeline.number, np.append(kept, -1)[owner])}

    def nodes(linked: Ints) -> Ints:
        return np.array(
            [of.get(number, -1) if number > 0 else -1 for number in linked.tolist()], dtype=np.int64
        )

    return DeviceRun(timeline.names, device, nodes(device[:, 3]), timeline.waits, nodes(timeline.waits[:, 3]))


def _names(run: DeviceRun, rows: Ints) -> list[str]:
    return [run.names[name] for name in rows[:, 0].tolist()]


def _ordered(device: Ints) -> Ints:
    ordered: Ints = device[np.lexsort((device[:, 1], device[:, 5], device[:, 4]))]
    return ordered


def _span(device: Ints) -> int:
    return int(device[:, 2].max() - device[:, 1].min()) if len(device) else 0
