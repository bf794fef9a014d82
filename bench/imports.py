"""What ``import torch_vis`` takes beyond ``import torch``."""

from __future__ import annotations

from statistics import median

from bench import child
from bench.row import Row, at_most, for_information

LIMIT = 1.05
PLAIN = "import time, torch; print(time.process_time())"
OURS = "import time, torch, torch_vis; print(time.process_time())"
# inside one process, where the difference is not drowned by that of two processes
PARTS = """
import json, time
clock = time.process_time
marks = [clock()]
import torch
marks.append(clock())
import torch_vis
marks.append(clock())
from torch_vis.capture import session as eager
marks.append(clock())
print(json.dumps([b - a for a, b in zip(marks, marks[1:])]))
"""


def run(quick: bool) -> list[Row]:
    """The figure from inside one process; for information, two kinds of processes in turns, and what trace() loads."""
    plain, ours, parts = [], [], []
    child.python(OURS)
    for _ in range(1 if quick else 7):
        plain.append(child.python(PLAIN))
        ours.append(child.python(OURS))
        parts.append(child.python(PARTS))
    whole = at_most(
        "import torch, torch_vis: whole process",
        f"{median(ours):.3f} s",
        f"import torch {median(plain):.3f} s",
        median(a / b for a, b in zip(ours, plain)),
        LIMIT,
        min(ours) / min(plain),
    )
    rows = [for_information(whole)]
    for figure, until in (("import torch_vis after torch", 2), ("and what trace() loads at first use", 3)):
        beyond = [sum(part[1:until]) for part in parts]
        torch = [part[0] for part in parts]
        row = at_most(
            figure,
            f"+{median(beyond) * 1e3:.1f} ms",
            f"import torch {median(torch):.3f} s",
            1 + median(a / b for a, b in zip(beyond, torch)),
            LIMIT,
            1 + min(beyond) / min(torch),
        )
        rows.append(row if until == 2 else for_information(row))
    return rows
