"""The most that a device gives: large matrix products by element type, and copies from small to large."""

from __future__ import annotations

import os
import time

import torch
import torch.nn.functional as F

from torch_vis.analysis.machine.probes.clocks import wall
from torch_vis.analysis.machine.probes.probe import Work

GPU_SIDES, CPU_SIDES = (4096, 8192), (512, 1024)
GPU_COPIES = [1 << power for power in range(16, 31, 2)]
CPU_COPIES = [1 << power for power in range(12, 27, 2)]
# seconds for one figure
TAKES = 0.1


def peaks(device: str, dtypes: tuple[str, ...], others: tuple[str, ...] = ()) -> dict[str, float]:
    """FLOP/s that the best of a few square products reaches; on a GPU also float32 convolutions, which use ``tf32``.

    Of the ``others``, the smallest product alone; an element type that the device has no products in is left out.
    """
    on_gpu = device.startswith("cuda")
    sides = GPU_SIDES if on_gpu else CPU_SIDES
    rates = {dtype: max(_rate(side, dtype, device) for side in sides) for dtype in dtypes}
    for dtype in others:
        try:
            rates[dtype] = _rate(sides[0], dtype, device)
        except (RuntimeError, TypeError):
            continue
    if on_gpu and torch.backends.cudnn.allow_tf32:
        data = torch.randn(32, 512, 56, 56, device=device)
        weight = torch.randn(512, 512, 3, 3, device=device)
        seconds = best_seconds(lambda: F.conv2d(data, weight, padding=1), device)
        rates["tf32"] = 2.0 * 32 * 56 * 56 * 512 * 512 * 9 / seconds
    return rates


def _rate(side: int, dtype: str, device: str) -> float:
    """FLOP/s of one square product."""
    a, b = (torch.randn(side, side, device=device).to(getattr(torch, dtype)) for _ in range(2))
    return 2.0 * side**3 / best_seconds(lambda: torch.mm(a, b), device)


def copies(device: str) -> list[tuple[int, float]]:
    """Bytes per second, read and written together, of copies of growing size: the steps are the caches."""
    rates = []
    for size in GPU_COPIES if device.startswith("cuda") else CPU_COPIES:
        source = torch.zeros(size // 8, device=device)
        target = torch.empty_like(source)
        seconds = best_seconds(lambda s=source, t=target: t.copy_(s), device)  # type: ignore[misc]
        rates.append((size, size / seconds))
    return rates


def best_seconds(call: Work, device: str) -> float:
    """Seconds per call at best: several calls between two looks at the clock, so that launching is hidden."""
    wall(call, device, 2)
    once = min(wall(call, device, 2)) / 1e9
    count = max(1, min(100, round(TAKES / 5 / max(once, 1e-6))))

    def several() -> None:
        for _ in range(count):
            call()

    started = time.perf_counter()
    seconds: list[float] = []
    while len(seconds) < 5 and (not seconds or time.perf_counter() - started < TAKES):
        seconds.append(wall(several, device, 1)[0] / count / 1e9)
    return min(seconds)


def memory_bytes(device: str) -> int:
    """Bytes of memory that a device has."""
    if device.startswith("cuda"):
        return int(torch.cuda.get_device_properties(device).total_memory)
    try:
        return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    except (ValueError, OSError, AttributeError):
        # not told on this system
        return 1 << 33
