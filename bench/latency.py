"""Predicted time of models that no calibration has seen, against plain runs that wait for the device at the ends."""

from __future__ import annotations

import os
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import nullcontext
from itertools import groupby
from statistics import median
from typing import Any, NamedTuple
from unittest.mock import patch

import torch

import torch_vis as tv
from bench import child
from bench.latency_models import MODELS, Known
from bench.quiet import Quiet, Taken
from bench.row import Row, for_information, within
from torch_vis.analysis.machine.probes.clocks import Burst, wall

LIMIT_PERCENT = 10.0
BATCHES, ROUNDS, TIMES = (1, 8, 32), 9, 2


class Case(NamedTuple):
    """One run to predict."""

    model: str
    dtype: str
    batch: int
    mode: str
    call: Callable[[], Any]


def run(quick: bool) -> list[Row]:
    """The mean error over all models, batches, element types, forward and training; on a CPU for information."""
    on_gpu = torch.cuda.is_available()
    with tempfile.TemporaryDirectory() as folder:
        path = os.path.join(folder, "calibration.json")
        # in processes of their own: a profiler, once used, slows every launch that comes after it
        threads = 1 if on_gpu else None
        if on_gpu:
            child.call("bench.latency:settle", threads=threads)
        seconds, *pace = child.call("bench.latency:calibrate_to", threads=threads, path=path)
        runs, *later = child.call("bench.latency:compare", threads=threads, path=path, quick=quick, pace=pace)
    where = torch.cuda.get_device_name() if on_gpu else "this CPU"
    off = 100 * sum(abs(row["predicted_ns"] / row["plain_ns"] - 1) for row in runs) / len(runs)
    # without an upper end, some of the work is not known
    ends = [(row["low_ns"], row["plain_ns"], row["high_ns"]) for row in runs]
    share = (
        100 * sum(high is not None and low <= plain_ns <= high for low, plain_ns, high in ends) / len(runs)
    )
    note = f"{len(runs)} runs, {share:.0f} % within the range, calibrated in {seconds:.0f} s"
    rows = [within(f"predicted time on {where}, mean error", off, LIMIT_PERCENT, "%", note)]
    if on_gpu:
        off = 100 * sum(abs(row["at_pace_ns"] / row["plain_ns"] - 1) for row in runs) / len(runs)
        slow = [usual / later[0] for usual in (pace[1], later[1])]
        note = "small operations took {:.2f} and {:.2f} × their best, calibrating and running".format(*slow)
        known = "… if the host's pace around each run is known"
        rows.append(for_information(within(known, off, LIMIT_PERCENT, "%", note)))
    else:
        rows = [for_information(row) for row in rows]
    return [*rows, *_by_model(runs)]


def _by_model(rows: list[dict[str, Any]]) -> Iterator[Row]:
    """The same for each model, for information."""
    for model, group in groupby(rows, key=lambda row: row["model"]):
        errors = [100 * (row["predicted_ns"] / row["plain_ns"] - 1) for row in group]
        note = f"{len(errors)} runs, {min(errors):+.0f} % to {max(errors):+.0f} %"
        off = sum(map(abs, errors)) / len(errors)
        yield for_information(within(f"… of which {model}", off, LIMIT_PERCENT, "%", note))


def settle() -> None:
    """Run everything once: a machine that has just started reads its libraries from disk and is slower for a while."""
    for case in cases(quick=False):
        case.call()
    torch.cuda.synchronize()


def calibrate_to(path: str) -> list[float]:
    """Calibrate into a file; the seconds that it took, and on a GPU the host's pace."""
    from torch_vis.measure import calibrate

    quiet = Quiet("cuda") if torch.cuda.is_available() else None
    start = time.perf_counter()
    with patch("torch_vis.analysis.machine.probes.clocks.burst", quiet.burst) if quiet else nullcontext():
        calibrate(path=path, again=True)
    return [time.perf_counter() - start, *(quiet.pace() if quiet else ())]


def compare(
    path: str, quick: bool, models: dict[str, Known] | None = None, pace: Sequence[float] = ()
) -> list[Any]:
    """For each run what it took plain, and what was predicted of it; then the host's pace. One model at a time."""
    calibration = tv.hardware.load(path)
    quiet = Quiet("cuda", *pace[:1]) if torch.cuda.is_available() else None
    rows = []
    for (model, dtype), group in groupby(cases(quick, models), key=lambda case: case[:2]):
        ready = list(group)
        for case, (plain_ns, unit) in zip(ready, plain_times(ready, quiet)):
            traced = tv.trace(case.call, hold=False)
            report = traced.latency(calibration=calibration)
            row: dict[str, Any] = {"model": model, "dtype": dtype, "batch": case.batch, "mode": case.mode}
            times = {"predicted_ns": report.total_ns, "low_ns": report.low_ns, "high_ns": report.high_ns}
            at_pace = None
            if unit is not None:
                at_pace = traced.latency(calibration=calibration.at_pace(unit)).total_ns
            rows.append({**row, "plain_ns": plain_ns, "unit_ns": unit, "at_pace_ns": at_pace, **times})
    return [rows, *(quiet.pace() if quiet else ())]


def plain_times(ready: list[Case], quiet: Quiet | None) -> list[Taken]:
    """The median of plain runs, taken in rounds over all cases; on a GPU, those while the host was quiet."""
    for case in ready:
        case.call()
    if quiet is None:
        return [Taken(median(wall(case.call, "cpu", 2)), None) for case in ready]
    taken: list[list[Burst]] = [[] for _ in ready]
    for _ in range(ROUNDS):
        for index, case in enumerate(ready):
            taken[index].append(quiet.burst(case.call, quiet.device, TIMES))
    return [quiet.taken(bursts) for bursts in taken]


def cases(quick: bool, models: dict[str, Known] | None = None) -> Iterator[Case]:
    """Every run, set up; on a CPU batch 1 in float32 only."""
    device = "cuda" if torch.cuda.is_available() else "cpu"
    chosen = dict(list((models or MODELS).items())[: 3 if quick else None])
    for name, known in chosen.items():
        for dtype in ("float32", "bfloat16") if device == "cuda" else ("float32",):
            torch.manual_seed(0)
            kind = getattr(torch, dtype)
            with torch.device(device):
                module = known.make().to(kind)
            optimizer = torch.optim.AdamW(module.parameters())
            for batch in BATCHES if device == "cuda" else (1,):
                data = known.data(batch, device, kind)
                for mode, call in _calls(module, optimizer, data).items():
                    yield Case(name, dtype, batch, mode, call)


def _calls(module: torch.nn.Module, optimizer: Any, data: torch.Tensor) -> dict[str, Callable[[], Any]]:
    def forward() -> None:
        if module.training:  # only then: the walk over all modules is no part of the run
            module.eval()
        with torch.no_grad():
            module(data)

    def step() -> None:
        if not module.training:
            module.train()
        optimizer.zero_grad()
        output = module(data)
        output = output if isinstance(output, torch.Tensor) else output[0]
        output.float().square().mean().backward()
        optimizer.step()

    return {"forward": forward, "training": step}
