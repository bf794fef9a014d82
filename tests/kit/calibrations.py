"""A calibration made up of round figures, for tests of what is done with one."""

from __future__ import annotations

import numpy as np

from torch_vis.analysis.machine.calibration import Calibration
from torch_vis.analysis.machine.features import SIZES
from torch_vis.analysis.machine.host_model import HostCosts
from torch_vis.analysis.machine.kernel_model import Samples
from torch_vis.ops.families import KINDS, REAL_DTYPES

UNIT_NS = 10_000.0


def made_up(class_: str = "gpu", *, error: float = 0.1) -> Calibration:
    """Products at half of 10 TFLOP/s, elementwise operations at a full 100 GB/s, 10 µs on the host for each."""
    rows = []
    for power in range(4, 13):
        side = 2**power
        flops, moved = 2.0 * side**3, 12.0 * side**2
        rows.append(("mm", "matmul", flops, moved, [power, power, power], 1000 + flops / 5e3))
        rows.append(("add", "elementwise", side**2, moved, [np.log2(3) + 2 * power], 1000 + moved / 100))
    sizes = np.array([[*row[4], *[0.0] * (SIZES - len(row[4]))] for row in rows])
    samples = Samples(
        [row[0] for row in rows],
        np.array([KINDS.index(row[1]) for row in rows], dtype=np.int8),
        np.full(len(rows), REAL_DTYPES.index("float32"), dtype=np.int8),
        np.array([row[2] for row in rows]),
        np.array([row[3] for row in rows]),
        sizes,
        np.array([row[5] for row in rows]),
        np.ones(len(rows)),
        np.full(len(rows), np.nan),
    )
    copies = [(1 << 20, 2e11), (1 << 30, 1e11)]
    host = HostCosts(UNIT_NS, {}, error)
    settings = {"device": "made up", "torch": "2.11"}
    return Calibration(
        "made up", class_, settings, {"float32": 1e13}, copies, 10**10, 1000.0, 0.0, samples, host
    )
