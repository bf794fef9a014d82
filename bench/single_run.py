"""What ``time()`` says of a single recorded run, against the same run without a recorder."""

from __future__ import annotations

from statistics import median
from typing import Any

import torch
from torch import Tensor, nn

import torch_vis as tv
from bench.row import Row
from bench.timing import wall

ROUNDS = 25
# beyond the range that the report gives
SLACK = 0.1


def run(quick: bool) -> list[Row]:
    """A row for each program: the median report with its range, beside the median of plain runs."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        return [_row(name, *program, rounds=5 if quick else ROUNDS) for name, program in _programs().items()]
    finally:
        torch.set_num_threads(threads)


def _programs() -> dict[str, tuple[Any, Tensor, bool]]:
    layers = nn.Sequential(*[nn.Linear(16, 16) for _ in range(10)])
    return {
        "20 adds of 4 elements": (_adds, torch.ones(4), False),
        "10 Linear(16, 16), fwd": (layers, torch.ones(2, 16), False),
        "10 Linear(16, 16), fwd+bwd": (layers, torch.ones(2, 16), True),
        "GRU, 30 steps": (nn.GRU(16, 16), torch.ones(30, 2, 16), False),
        "Linear(512, 512), batch 256, fwd+bwd": (nn.Linear(512, 512), torch.ones(256, 512), True),
        "TransformerEncoderLayer, fwd+bwd": (nn.TransformerEncoderLayer(64, 4), torch.ones(16, 2, 64), True),
    }


def _adds(x: Tensor) -> Tensor:
    for _ in range(20):
        x = torch.add(x, x)
    return x


def _row(name: str, model: Any, inputs: Tensor, backward: bool, rounds: int) -> Row:
    plain, reports = [], []
    for _ in range(rounds):
        begun = wall()
        output = model(inputs)
        if backward:
            output.sum().backward()
        plain.append((wall() - begun) * 1e9)
        reports.append(tv.trace(model, inputs, backward=backward).time())
    took = median(plain)
    report = sorted(reports, key=lambda found: found.total_ns)[rounds // 2]
    met = report.low_ns <= took * (1 + SLACK) and took * (1 - SLACK) <= report.high_ns
    ours = f"{report.total_ns / 1e3:.0f} µs ({report.low_ns / 1e3:.0f} to {report.high_ns / 1e3:.0f})"
    return Row(f"time() of {name}", ours, f"{took / 1e3:.0f} µs", report.total_ns / took, "in its range", met)
