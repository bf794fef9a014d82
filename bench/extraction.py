"""Extraction of a data set: throughput beside a hook that writes the same bytes, and memory that does not grow."""

from __future__ import annotations

import shutil
import tempfile
import time
from pathlib import Path
from statistics import median
from typing import Any

import torch

import torch_vis as tv
from bench import child, process
from bench.row import Row, at_least, at_most

SAMPLES, BATCH, FEATURES = 10_000, 50, 784
LIMIT, GROWTH = 0.95, 1.05


def run(quick: bool) -> list[Row]:
    """Samples in a second on both sides in turn; and the peak of a long extraction beside that of a short one."""
    rounds, samples = (3, 2_000) if quick else (7, SAMPLES)
    seconds = child.call("bench.extraction:measure", samples=samples, rounds=rounds)
    ours, peer = median(seconds["extract"]), median(seconds["hook"])
    best = min(seconds["hook"]) / min(seconds["extract"])
    few, many = (child.call("bench.extraction:peak", samples=count) for count in (samples // 4, samples * 2))
    return [
        at_least(
            f"extract, {samples:,} samples",
            f"{samples / ours:,.0f} samples/s",
            f"hook: {samples / peer:,.0f} samples/s",
            peer / ours,
            LIMIT,
            best,
        ),
        at_most(
            f"memory of {samples * 2:,} samples",
            f"{many / process.MIB:,.0f} MiB",
            f"{samples // 4:,}: {few / process.MIB:,.0f} MiB",
            many / few,
            GROWTH,
        ),
    ]


def model() -> torch.nn.Module:
    """A small model with a wide layer: what is written counts as much as what is computed."""
    torch.manual_seed(0)
    layers: list[torch.nn.Module] = [torch.nn.Linear(FEATURES, 1024), torch.nn.GELU()]
    for _ in range(4):
        layers += [torch.nn.Linear(1024, 1024), torch.nn.GELU()]
    return torch.nn.Sequential(*layers).eval()


def batches(samples: int) -> Any:
    """Made one at a time, so that the data themselves take no memory."""
    generator = torch.Generator().manual_seed(0)
    for _ in range(samples // BATCH):
        yield torch.randn(BATCH, FEATURES, generator=generator)


def by_hook(net: torch.nn.Module, samples: int, folder: Path) -> None:
    """What one writes by hand: a hook, and the tensors of every few batches to a safetensors file."""
    from safetensors.torch import save_file

    kept: list[torch.Tensor] = []
    number = held = 0

    def flush() -> None:
        nonlocal number, held
        save_file({"0": torch.cat(kept)}, folder / f"{number:06d}.safetensors")
        kept.clear()
        number, held = number + 1, 0

    handle = net.get_submodule("4").register_forward_hook(
        lambda _, __, out: kept.append(out.detach().clone())
    )
    try:
        with torch.no_grad():
            for batch in batches(samples):
                net(batch)
                held += kept[-1].nbytes
                if held >= 64 << 20:
                    flush()
        if kept:
            flush()
    finally:
        handle.remove()


def by_extract(net: torch.nn.Module, samples: int, folder: Path) -> None:
    """The same by ``tv.extract``."""
    tv.extract(net, batches(samples), keep="4", to=folder)


def measure(samples: int, rounds: int) -> dict[str, list[float]]:
    """In a process of its own: seconds of wall time of both, in turn."""
    net = model()
    sides = {"hook": by_hook, "extract": by_extract}
    found: dict[str, list[float]] = {name: [] for name in sides}
    for turn in range(rounds + 1):
        for name, side in sides.items():
            folder = Path(tempfile.mkdtemp())
            start = time.perf_counter()
            side(net, samples, folder)
            # the first turn warms up
            if turn:
                found[name].append(time.perf_counter() - start)
            shutil.rmtree(folder)
    return found


def peak(samples: int) -> int:
    """In a process of its own: the most resident bytes of an extraction."""
    net = model()
    folder = Path(tempfile.mkdtemp())
    by_extract(net, 2 * BATCH, folder / "warm")
    process.forget_peak()
    tv.extract(net, batches(samples), keep="4", to=folder / "acts", shard_bytes=4 << 20)
    found = process.peak()
    shutil.rmtree(folder)
    return found
