"""What a device did in a run at its own pace: busy and idle, kernels by name, and where the host waited for it."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np

from torch_vis.graph.types import Ints


class Kernel(NamedTuple):
    """All launches of one kernel, copy or fill."""

    name: str
    launches: int
    time_ns: int


class Wait(NamedTuple):
    """A call in which the host waited for the device, and the operation that it was part of, if one is known."""

    name: str
    start_ns: int
    time_ns: int
    node: int | None


class Gap(NamedTuple):
    """A time in which the device was idle, and the operations whose kernels ran before and after it."""

    start_ns: int
    time_ns: int
    before: int | None
    after: int | None


class DeviceUse:
    """One device during the run that ``meta["device_time"]`` describes; times are from the beginning of that run.

    >>> rows = {"kernel_name": [0, 0], "kernel_node": [3, 4], "kernel_start_ns": [10, 30], "kernel_time_ns": [5, 5],
    ...         "kernel_device": [0, 0], "kernel_stream": [7, 7], "names": ["gemm"], "wait_name": [], "wait_node": [],
    ...         "wait_start_ns": [], "wait_time_ns": []}
    >>> use = DeviceUse(rows, 0)
    >>> use.span_ns, use.busy_ns, use.launch_bound, use.gaps
    (25, 10, 0.6, [Gap(start_ns=15, time_ns=15, before=3, after=4)])
    """

    def __init__(self, found: Mapping[str, Any], device: int) -> None:
        own = np.flatnonzero(np.array(found["kernel_device"], dtype=np.int64) == device)
        start = np.array(found["kernel_start_ns"], dtype=np.int64)[own]
        own = own[np.argsort(start, kind="stable")]
        self.number = device
        self._names: list[str] = list(found["names"])
        self._start, self._time, self._node, self._name = (
            np.array(found[f"kernel_{column}"], dtype=np.int64)[own]
            for column in ("start_ns", "time_ns", "node", "name")
        )
        self.waits = [
            Wait(self._names[name], start, time, node if node >= 0 else None)
            for name, start, time, node in zip(
                found["wait_name"], found["wait_start_ns"], found["wait_time_ns"], found["wait_node"]
            )
        ]

    @property
    def launches(self) -> int:
        """How many kernels, copies and fills ran."""
        return len(self._start)

    @property
    def kernel_ns(self) -> int:
        """Their time added up; where streams overlap it is more than the time that the device was busy."""
        return int(self._time.sum())

    @property
    def span_ns(self) -> int:
        """From the beginning of the first to the end of the last."""
        return int((self._start + self._time).max() - self._start.min()) if self.launches else 0

    @property
    def busy_ns(self) -> int:
        """How long at least one of them was running."""
        return self.span_ns - int(self._gaps[:, 1].sum())

    @property
    def waited_ns(self) -> int:
        """How long the host waited for devices."""
        return sum(wait.time_ns for wait in self.waits)

    @property
    def launch_bound(self) -> float:
        """The share of the span in which the device was idle while the host was not waiting for it: it was late."""
        begin, length = self._gaps[:, 0], self._gaps[:, 1]
        waited = np.zeros(len(begin), dtype=np.int64)
        for wait in self.waits:
            shared = np.minimum(begin + length, wait.start_ns + wait.time_ns) - np.maximum(
                begin, wait.start_ns
            )
            waited += np.maximum(shared, 0)
        return float((length - np.minimum(waited, length)).sum() / self.span_ns) if self.span_ns else 0.0

    @cached_property
    def gaps(self) -> list[Gap]:
        """When it was idle, the longest first."""
        order = np.argsort(-self._gaps[:, 1], kind="stable")
        return [
            Gap(begin, length, before if before >= 0 else None, after if after >= 0 else None)
            for begin, length, before, after in self._gaps[order].tolist()
        ]

    @cached_property
    def kernels(self) -> list[Kernel]:
        """By name, the longest first."""
        many = np.bincount(self._name, minlength=len(self._names))
        time = np.bincount(self._name, weights=self._time, minlength=len(self._names))
        result = [Kernel(name, int(many[n]), int(time[n])) for n, name in enumerate(self._names) if many[n]]
        return sorted(result, key=lambda kernel: (-kernel.time_ns, kernel.name))

    @cached_property
    def _gaps(self) -> Ints:
        """Begin and length of each idle time, and the nodes before and after it."""
        if not self.launches:
            return np.zeros((0, 4), dtype=np.int64)
        stop = self._start + self._time
        until = np.maximum.accumulate(stop)
        last = np.maximum.accumulate(np.where(stop == until, np.arange(len(stop)), 0))
        idle = np.flatnonzero(self._start[1:] > until[:-1])
        return np.stack(
            [until[idle], self._start[idle + 1] - until[idle], self._node[last[idle]], self._node[idle + 1]],
            axis=1,
        )


def devices(found: Mapping[str, Any]) -> list[DeviceUse]:
    """Every device that did something, the busiest first."""
    uses = [DeviceUse(found, device) for device in sorted(set(found["kernel_device"]))]
    return sorted(uses, key=lambda use: -use.kernel_ns)
