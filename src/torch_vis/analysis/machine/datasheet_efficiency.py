"""What share of a device's roofs operations of each kind reach, for devices of which only the datasheet is known.

The shares were measured on one GPU (an H200, 4,400 operations) and estimated for CPUs from one of them. They are given
by how long the operation would take at the roof, since small work fills no device, and interpolated in between.
"""

from __future__ import annotations

import numpy as np

from torch_vis.analysis.machine.features import Workload
from torch_vis.analysis.machine.hardware import Hardware
from torch_vis.analysis.machine.host_model import HostCosts, usual
from torch_vis.analysis.machine.kernel_model import VIEW, KernelEstimate
from torch_vis.graph.types import Floats, Ints
from torch_vis.ops.families import KINDS, REAL_DTYPES

IDEAL_NS = (1e3, 1e4, 1e5, 1e6)
# shares at these times, and the spread of the logarithm of the time around what they give
ON_GPU: dict[str, tuple[tuple[float, ...], float]] = {
    "matmul": ((0.12, 0.43, 0.57, 0.74), 0.35),
    "convolution": ((0.03, 0.14, 0.22, 0.38), 0.7),
    "attention": ((0.07, 0.20, 0.35, 0.47), 0.45),
    "recurrent": ((0.01, 0.06, 0.11, 0.15), 0.9),
    "normalization": ((0.08, 0.26, 0.38, 0.45), 0.5),
    "softmax": ((0.10, 0.60, 0.70, 0.85), 0.3),
    "reduction": ((0.03, 0.35, 0.40, 0.55), 0.5),
    "pooling": ((0.05, 0.12, 0.15, 0.20), 0.8),
    "indexing": ((0.18, 0.28, 0.40, 0.70), 0.6),
    "sorting": ((0.02, 0.04, 0.08, 0.10), 1.0),
    "random": ((0.50, 0.60, 0.70, 0.80), 0.5),
    "factorization": ((0.0005, 0.002, 0.01, 0.05), 1.3),
    "elementwise": ((0.95, 0.90, 0.88, 0.90), 0.25),
    "copy": ((0.85, 0.80, 0.83, 0.85), 0.45),
    "optimizer": ((0.15, 0.50, 0.70, 0.77), 0.4),
}
ON_CPU: dict[str, tuple[tuple[float, ...], float]] = {
    "matmul": ((0.15, 0.35, 0.60, 0.80), 0.5),
    "convolution": ((0.03, 0.10, 0.35, 0.65), 0.7),
    "attention": ((0.10, 0.20, 0.40, 0.45), 0.6),
    "recurrent": ((0.05, 0.10, 0.20, 0.30), 0.8),
    "normalization": ((0.15, 0.25, 0.60, 0.80), 0.6),
    "softmax": ((0.20, 0.35, 0.60, 0.70), 0.6),
    "reduction": ((0.20, 0.40, 0.80, 0.80), 0.7),
    "pooling": ((0.10, 0.20, 0.25, 0.30), 0.8),
    "indexing": ((0.20, 0.20, 0.25, 0.30), 0.8),
    "sorting": ((0.02, 0.01, 0.01, 0.01), 1.0),
    "random": ((0.03, 0.02, 0.02, 0.02), 0.9),
    "factorization": ((0.02, 0.05, 0.10, 0.20), 0.9),
    "elementwise": ((0.50, 0.60, 0.80, 0.80), 0.5),
    "copy": ((0.50, 0.60, 0.80, 0.80), 0.5),
    "optimizer": ((0.30, 0.50, 0.70, 0.80), 0.6),
}
OTHER: tuple[tuple[float, ...], float] = ((0.10, 0.30, 0.40, 0.50), 0.9)
KERNELS = {"convolution": 2.0, "attention": 2.0, "recurrent": 60.0, "optimizer": 2.0}

# What a usual server's host takes for one small operation that is sent to a device, or that it runs itself.
HOST_UNIT_NS = {"gpu": 9000.0, "accelerator": 9000.0, "cpu": 3000.0}
HOST_ERROR = 0.45


def ideal_ns(hardware: Hardware, kind: Ints, dtype: Ints, flops: Floats, moved: Floats) -> Floats:
    """The least nanoseconds that a device takes by its roofs; NaN where neither work nor bytes are known."""
    compute, memory = roof_times(hardware, kind, dtype, flops, moved)
    return np.asarray(np.fmax(compute, memory))


def roof_times(
    hardware: Hardware, kind: Ints, dtype: Ints, flops: Floats, moved: Floats
) -> tuple[Floats, Floats]:
    """Nanoseconds at the roof of arithmetic and at that of memory.

    A float32 convolution uses tf32 where there is such a thing, as torch does unless told otherwise; a float32 matrix
    product does not.
    """
    peaks = np.array([hardware.peak(name) for name in REAL_DTYPES])
    code = dtype.astype(np.int64)
    float32 = code == REAL_DTYPES.index("float32")
    code[float32 & (kind == KINDS.index("convolution"))] = REAL_DTYPES.index("tf32")
    return flops / peaks[code] * 1e9 if len(code) else flops, moved / hardware.bandwidth * 1e9


class DatasheetModel:
    """The estimator of kernel times for a device that is known by its datasheet."""

    def __init__(self, hardware: Hardware) -> None:
        self.hardware = hardware

    def __call__(self, work: Workload) -> KernelEstimate:
        """The estimate for each class of a workload."""
        ideal = np.nan_to_num(ideal_ns(self.hardware, work.kind, work.dtype, work.flops, work.moved))
        table = ON_CPU if self.hardware.class_ == "cpu" else ON_GPU
        share, spread, kernels = np.ones(len(ideal)), np.zeros(len(ideal)), np.ones(len(ideal))
        for code in np.unique(work.kind):
            rows = work.kind == code
            shares, around = table.get(KINDS[code], OTHER)
            logs = np.log(np.maximum(ideal[rows], 1.0))
            share[rows] = np.exp(np.interp(logs, np.log(IDEAL_NS), np.log(shares)))
            spread[rows], kernels[rows] = around, KERNELS.get(KINDS[code], 1.0)
        floor = 0.0 if self.hardware.class_ == "cpu" else 0.75 * self.hardware.overhead_ns
        none = work.kind == VIEW
        time_ns = np.where(none, 0.0, floor + ideal / share)
        return KernelEstimate(time_ns, np.where(none, 0.0, kernels), spread, np.full(len(ideal), np.nan))


def usual_host(hardware: Hardware) -> HostCosts:
    """What the host of such a device usually takes."""
    unit_ns = HOST_UNIT_NS.get(hardware.class_, 9000.0)
    return HostCosts(unit_ns, {}, HOST_ERROR) if hardware.class_ == "cpu" else usual(unit_ns, HOST_ERROR)
