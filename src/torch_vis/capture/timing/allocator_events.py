"""What the allocators themselves report of a run: every block taken and given back, kernel scratch included.

The run is not recorded by us: torch's profiler listens to the CPU allocator, and CUDA's caching allocator counts for
itself. Scratch is memory that a kernel takes for itself and gives back before it ends, so no tensor ever holds it.
"""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterator, Mapping
from functools import cache
from typing import Any, NamedTuple

import numpy as np
import torch
from torch._C._profiler import _EventType
from torch.profiler import ProfilerActivity, profile, record_function

from torch_vis.capture.timing.profiler_events import profiled, quiet_profiler
from torch_vis.graph.types import Ints

MARK = "torch_vis: measured run"


class AllocatingOp(NamedTuple):
    """An operation that allocated memory: its name, the bytes that it freed before its end, and those it kept."""

    op: str
    scratch_bytes: int
    kept_bytes: int


class AllocatorEvents(NamedTuple):
    """An allocator during one run: every change in bytes, the operation it came from, and what was there before."""

    change: Ints
    kernel: Ints
    """The number of the operation in ``kernels``, -1 outside of any."""
    kernels: list[AllocatingOp]
    start_bytes: int

    @property
    def peak_bytes(self) -> int:
        """The most that was allocated at once."""
        return self.start_bytes + max(0, int(np.cumsum(self.change).max(initial=0)))

    @property
    def peak_op(self) -> str | None:
        """The operation that was running then."""
        if not len(self.change):
            return None
        number = int(self.kernel[int(np.cumsum(self.change).argmax())])
        return self.kernels[number].op if number >= 0 else None


class CudaFigures(NamedTuple):
    """The caching allocator's own figures during one run, for one device, in bytes."""

    device: str
    start_bytes: int
    peak_bytes: int
    reserved_bytes: int
    """The most that was reserved from the driver."""
    requested_bytes: int
    """The most that tensors and kernels asked for, before rounding."""
    free_at_peak_bytes: int | None
    """Reserved, and not allocated, at the moment of the peak: fragmentation and cache; None without a history."""
    kernels: list[AllocatingOp]
    """The operations that ran, with what each took for itself."""


class Measured(NamedTuple):
    """What one run took from the allocators."""

    output: Any
    cpu: AllocatorEvents
    cuda: tuple[CudaFigures, ...]


def measure(
    function: Callable[..., Any], args: tuple[Any, ...], kwargs: Mapping[str, Any], warmup: int
) -> Measured:
    """Run a function and listen to the allocators; the ``warmup`` runs before it are listened to, but not counted.

    The allocator reports the end of a block only if it has reported its beginning, so what an unheard run left
    behind (gradients, say) would seem to stay. What is there at the start is what the allocator gave out while it was
    listened to and did not get back, whoever holds it, and what tensors hold from before.
    """
    devices = list(range(torch.cuda.device_count())) if torch.cuda.is_initialized() else []
    gc.collect()  # the end of what was there before is not reported, and torch prints a line about it
    listening = profile(activities=[ProfilerActivity.CPU], profile_memory=True)
    with quiet_profiler(), profiled(listening):
        for _ in range(warmup):
            function(*args, **kwargs)
        gc.collect()
        held = held_blocks()
        marks = [_cuda_start(device) for device in devices]
        with record_function(MARK):
            output = function(*args, **kwargs)
        figures = [_cuda_figures(device, start) for device, start in zip(devices, marks)]
    profiler: Any = listening.profiler
    roots = profiler.kineto_results.experimental_event_tree()
    cuda = tuple(row._replace(kernels=_events(roots, torch.device(row.device))[1]) for row in figures)
    changes, kernels = _events(roots, torch.device("cpu"))
    cpu = AllocatorEvents(*changes.during_run(), kernels, changes.start_bytes(held))
    return Measured(output, cpu, cuda)


def held_blocks() -> dict[int, int]:
    """The blocks of CPU memory that tensors of this process hold, by address: their bytes."""
    blocks: dict[int, int] = {}
    for item in gc.get_objects():
        if issubclass(type(item), torch.Tensor):
            try:
                _add_block(blocks, item)
                # what only C++ has touched is no object of Python's until somebody asks for it
                if item.is_leaf and item.requires_grad and item.grad is not None:
                    _add_block(blocks, item.grad)
            except (RuntimeError, NotImplementedError, AttributeError):
                continue  # a tensor without plain memory
    return blocks


def _add_block(blocks: dict[int, int], tensor: torch.Tensor) -> None:
    if tensor.device.type == "cpu":
        memory = tensor.untyped_storage()
        if memory.device.type == "cpu" and memory.nbytes():
            blocks[memory.data_ptr()] = memory.nbytes()


# ---------------------------------------------------------------- events


class SizeChanges(NamedTuple):
    """What an allocator gave out and got back while it was listened to, in the order of time."""

    time_ns: Ints
    change: Ints
    kernel: Ints
    address: Ints
    begin_ns: int
    """When the run that counts began."""
    end_ns: int

    def during_run(self) -> tuple[Ints, Ints]:
        """Changes and kernels within the run that counts."""
        own = (self.time_ns >= self.begin_ns) & (self.time_ns <= self.end_ns)
        return self.change[own], self.kernel[own]

    def start_bytes(self, held: Mapping[int, int]) -> int:
        """The bytes allocated when that run began: blocks with an event, and others that tensors held.

        >>> row = np.array([1, 2, 3, 9])
        >>> changes = SizeChanges(row, np.array([8, 16, -8, 64]), row, np.array([100, 200, 100, 300]), 5, 10)
        >>> changes.start_bytes({200: 12, 400: 32})  # 12 of the 16 bytes at 200 are a tensor's
        48
        """
        before = self.time_ns < self.begin_ns
        heard: dict[int, int] = {}
        for address, change in zip(self.address[before].tolist(), self.change[before].tolist()):
            if change > 0:
                heard[address] = change
            else:
                heard.pop(address, None)
        return sum(heard.values()) + sum(size for address, size in held.items() if address not in heard)


def _events(roots: list[Any], device: torch.device) -> tuple[SizeChanges, list[AllocatingOp]]:
    """The allocator's events, each with the operation around it, and the operations of the run that counts."""
    begin, end = _marked(roots)
    rows: list[tuple[int, int, int, int]] = []
    kernels: list[tuple[str, list[int]]] = []
    stack: list[tuple[Any, int]] = [(root, -1) for root in reversed(roots)]
    while stack:
        event, kernel = stack.pop()
        if event.tag == _EventType.Allocation:
            fields = event.extra_fields
            if fields.device == device or (fields.device.type, device.type) == ("cpu", "cpu"):
                rows.append((event.start_time_ns, fields.alloc_size, kernel, fields.ptr))
            continue
        counts = event.start_time_ns >= begin
        if kernel < 0 and counts and event.tag == _EventType.TorchOp and is_operation(event.name):
            kernel = len(kernels)
            kernels.append((event.name, []))
        stack.extend((child, kernel) for child in reversed(event.children))
    rows.sort(key=lambda row: row[0])
    times, sizes, owners, addresses = np.array(rows, dtype=np.int64).reshape(-1, 4).T
    changes = SizeChanges(times, sizes, owners, addresses, begin, end)
    for change, kernel in zip(*(column.tolist() for column in changes.during_run())):
        if kernel >= 0:
            kernels[kernel][1].append(change)
    return changes, [AllocatingOp(name, *_scratch(own)) for name, own in kernels]


def _marked(roots: list[Any]) -> tuple[int, int]:
    """When the run that counts began and ended; without its mark, all counts."""
    stack = list(roots)
    while stack:
        event = stack.pop()
        if event.name == MARK:
            return event.start_time_ns, event.start_time_ns + event.duration_time_ns
        stack.extend(event.children)
    return 0, np.iinfo(np.int64).max


def _scratch(changes: list[int]) -> tuple[int, int]:
    level = np.cumsum(np.array(changes, dtype=np.int64))
    kept = max(int(level[-1]), 0) if len(level) else 0
    return max(int(level.max(initial=0)) - kept, 0), kept


@cache
def is_operation(name: str) -> bool:
    """Whether a name is that of an operation with a kernel of its own, not of one that is made of others."""
    space, _, short = name.partition("::")
    packet = getattr(getattr(torch.ops, space, None), short, None) if short else None
    if packet is None:
        return False
    has = torch._C._dispatch_has_kernel_for_dispatch_key
    full = [name if overload == "default" else f"{name}.{overload}" for overload in packet.overloads()]
    return not any(torch._C._dispatch_has_kernel(op) and has(op, "CompositeImplicitAutograd") for op in full)


# ---------------------------------------------------------------- CUDA


def _cuda_start(device: int) -> int:
    torch.cuda.synchronize(device)
    torch.cuda.reset_peak_memory_stats(device)
    torch.cuda.memory._record_memory_history("all", context=None, device=device, clear_history=True)
    return torch.cuda.memory_allocated(device)


def _cuda_figures(device: int, start: int) -> CudaFigures:
    torch.cuda.synchronize(device)
    stats = torch.cuda.memory_stats(device)
    snapshot = torch.cuda.memory._snapshot(device)
    torch.cuda.memory._record_memory_history(None, device=device)
    return CudaFigures(
        f"cuda:{device}",
        start,
        stats["allocated_bytes.all.peak"],
        stats["reserved_bytes.all.peak"],
        stats["requested_bytes.all.peak"],
        _free_at_peak(snapshot, device, start, stats["reserved_bytes.all.current"]),
        [],
    )


def _free_at_peak(snapshot: Any, device: int, start: int, reserved_now: int) -> int | None:
    """Reserved less allocated at the moment of the highest allocation, from the allocator's own history."""
    history = snapshot.get("device_traces", [])
    if device >= len(history) or not history[device]:
        return None
    grown = sum(change for change, kind in _history(history[device]) if kind == "segment")
    allocated, reserved = start, reserved_now - grown
    highest, free = allocated, reserved - allocated
    for change, kind in _history(history[device]):
        if kind == "segment":
            reserved += change
        else:
            allocated += change
            if allocated > highest:
                highest, free = allocated, reserved - allocated
    return free


def _history(entries: list[Any]) -> Iterator[tuple[int, str]]:
    for entry in entries:
        action, size = entry["action"], entry["size"]
        if action == "alloc":
            yield size, "block"
        elif action == "free_completed":
            yield -size, "block"
        elif action in ("segment_alloc", "segment_map"):
            yield size, "segment"
        elif action in ("segment_free", "segment_unmap"):
            yield -size, "segment"
