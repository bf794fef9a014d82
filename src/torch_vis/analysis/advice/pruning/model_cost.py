"""What a run of a model takes: its parameters, FLOPs, the time measured here, and what is predicted for a device."""

from __future__ import annotations

import statistics
import time
from typing import Any

import torch

from torch_vis.analysis.machine.hardware import Hardware
from torch_vis.analysis.machine.lower_bound import summed
from torch_vis.api import trace

RUNS = 5


def taken(
    model: torch.nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any], hardware: Hardware | None
) -> tuple[dict[str, int], str]:
    """Parameters, FLOPs of a forward run, its median time, and where hardware is named the time predicted there.

    Of that, what kernels take is told apart, and as the second result what the run waits for, the host or the
    device. What leaves out operations of unknown work is a ``Least``.
    """
    modes = [(module, module.training) for module in model.modules()]
    model.eval()
    with torch.no_grad():
        found = trace(model, *args, kwargs=kwargs, keep=False)
    spent = []
    for _ in range(RUNS):
        begun = time.perf_counter_ns()
        with torch.no_grad():
            model(*args, **kwargs)
        if torch.cuda.is_available() and torch.cuda.is_initialized():
            torch.cuda.synchronize()
        spent.append(time.perf_counter_ns() - begun)
    for module, mode in modes:
        module.training = mode
    column = found.metrics["flops"]
    known = {"flops": summed(column.total(), column.uncovered)}  # None where no operation has a formula
    waits_for = ""
    if hardware is not None:
        there = found.latency(hardware=hardware)
        missing = there.unknown_operations
        waits_for = (there.found.waits_for or "") if there.found.overlaps else ""
        known["predicted_ns"] = summed(round(there.total_ns), missing)
        known["kernels_ns"] = summed(round(float(there.found.device_ns.sum())), missing)
    figures = {
        "parameters": sum(parameter.numel() for parameter in model.parameters()),
        "time_ns": round(statistics.median(spent)),
        **{name: figure for name, figure in known.items() if figure is not None},
    }
    return figures, waits_for
