"""Predicted time of models that no calibration has seen, against plain runs that wait for the device at the ends."""

from __future__ import annotations

import os
import tempfile
import time
from collections.abc import Callable, Iterator
from statistics import median
from typing import Any, NamedTuple

import torch

from bench import child
from bench.latency_models import MODELS, Known
from bench.row import Row, within
from torch_vis import load_calibration, predict_latency, trace

LIMIT_PERCENT = 10.0
BATCHES, ROUNDS, TIMES = (1, 8, 32), 5, 4


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
        # in a process of its own: a profiler, once used, slows every launch that comes after it
        seconds = child.call("bench.latency:calibrate_to", path=path)
        errors, inside = compare(path, quick)
    where = torch.cuda.get_device_name() if on_gpu else "this CPU"
    off = 100 * sum(map(abs, errors)) / len(errors)
    share = 100 * sum(inside) / len(inside)
    note = f"{len(errors)} runs, {share:.0f} % within the range, calibrated in {seconds:.0f} s"
    row = within(f"predicted time on {where}, mean error", off, LIMIT_PERCENT, "%", note)
    return [row if on_gpu else row._replace(target="", met=None)]


def calibrate_to(path: str) -> float:
    """Calibrate into a file; the seconds that it took."""
    from torch_vis import calibrate

    start = time.perf_counter()
    calibrate(path=path, again=True)
    return time.perf_counter() - start


def compare(path: str, quick: bool) -> tuple[list[float], list[bool]]:
    """The relative error of each prediction, and whether the plain time lay in its range."""
    calibration = load_calibration(path)
    ready = list(cases(quick))
    plain = plain_times(ready)
    errors, inside = [], []
    for case, took in zip(ready, plain):
        found = predict_latency(trace(case.call, keep=False), calibration=calibration)
        errors.append(found.total_ns / took - 1)
        inside.append(found.low_ns <= took <= found.high_ns)
    return errors, inside


def plain_times(ready: list[Case]) -> list[float]:
    """The median of plain runs, taken in rounds over all cases: hosts change their pace from second to second."""
    on_gpu = torch.cuda.is_available()
    times: list[list[float]] = [[] for _ in ready]
    for turn in range(ROUNDS if on_gpu else 2):
        for place, case in enumerate(ready):
            for _ in range((3 if turn == 0 else 1) if on_gpu else 1):
                case.call()
            for _ in range(TIMES if on_gpu else 1):
                times[place].append(_timed(case.call, on_gpu))
    return [median(samples) for samples in times]


def _timed(call: Callable[[], Any], on_gpu: bool) -> float:
    if on_gpu:
        torch.cuda.synchronize()
    start = time.perf_counter_ns()
    call()
    if on_gpu:
        torch.cuda.synchronize()
    return float(time.perf_counter_ns() - start)


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
        made = module(data)
        made = made if isinstance(made, torch.Tensor) else made[0]
        made.float().square().mean().backward()
        optimizer.step()

    return {"forward": forward, "training": step}
