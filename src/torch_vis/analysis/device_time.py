"""How long an operation's kernels take on a device, from measurements of operations like it.

The estimate is what a roofline allows, times the factor by which the most similar measured operations missed it.
Similar means: of the same kind, near in the sizes that matter to it, and rather the same operator and element type.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from torch_vis.analysis.kinds import KINDS, REAL_DTYPES
from torch_vis.analysis.workload import SIZES, Workload

Floats = NDArray[np.float64]
NEIGHBOURS = 6
# How far another operator and another element type are, squared: as far as 3, 8 and 4 doublings of a size.
SIMILAR_OP, OTHER_OP, OTHER_DTYPE = 9.0, 64.0, 16.0
ALIKE = frozenset(
    {"matmul", "elementwise", "copy", "optimizer"}
)  # kinds whose operators take much the same time
ARITHMETIC = frozenset({"matmul", "convolution", "attention", "recurrent"})  # kinds that peaks can bound
CHUNK = 256
VIEW, RECURRENT = KINDS.index("view"), KINDS.index("recurrent")


class Samples(NamedTuple):
    """Operations whose time on a device was measured, a row each; the columns are those of ``Workload``."""

    op: list[str]
    kind: NDArray[np.int8]
    dtype: NDArray[np.int8]
    flops: Floats
    moved: Floats
    sizes: Floats
    time_ns: Floats
    kernels: Floats

    def to_plain(self) -> dict[str, Any]:
        """The columns as lists, for JSON; figures with the digits that a measurement has."""
        plain: dict[str, Any] = {"op": self.op}
        for name in ("kind", "dtype"):
            plain[name] = getattr(self, name).tolist()
        for name in ("flops", "moved", "time_ns", "kernels"):
            plain[name] = np.nan_to_num(getattr(self, name)).round().astype(np.int64).tolist()
        return {**plain, "sizes": self.sizes.round(3).tolist()}

    @classmethod
    def from_plain(cls, plain: dict[str, Any]) -> Samples:
        """The inverse of ``to_plain``."""
        codes = {name: np.array(plain[name], dtype=np.int8) for name in ("kind", "dtype")}
        figures = {
            name: np.array(plain[name], dtype=np.float64) for name in ("flops", "moved", "time_ns", "kernels")
        }
        sizes = np.array(plain["sizes"], dtype=np.float64).reshape(-1, SIZES)
        made = cls(
            [str(op) for op in plain["op"]],
            codes["kind"],
            codes["dtype"],
            figures["flops"],
            figures["moved"],
            sizes,
            figures["time_ns"],
            figures["kernels"],
        )
        if len({len(column) for column in made}) != 1:
            raise ValueError("the columns differ in length")
        return made


class Estimate(NamedTuple):
    """What is expected of each class of a workload: time, number of kernels, and the spread of the time's logarithm."""

    time_ns: Floats
    kernels: Floats
    spread: Floats


class Neighbours:
    """The estimator: samples of one device, with its roofs."""

    def __init__(self, samples: Samples, *, floor_ns: float, bandwidth: float) -> None:
        self.samples = samples
        self.floor_ns = floor_ns
        self.bandwidth = bandwidth / 1e9  # bytes per ns
        self.roofs = self._roofs()
        self.base = self._base(samples)
        self.missed = np.log(np.maximum(samples.time_ns, 1.0) / self.base)
        self.each = np.log(np.maximum(samples.kernels, 1.0) / _steps(samples))
        self.ops = np.array([plain_name(op) for op in samples.op])

    def _roofs(self) -> Floats:
        """FLOP per ns that any sample of a kind and element type reached; infinite where there is none."""
        made = np.full((len(KINDS), len(REAL_DTYPES)), np.inf)
        rates = np.nan_to_num(self.samples.flops) / np.maximum(self.samples.time_ns, 1.0)
        for kind, name in enumerate(KINDS):
            if name not in ARITHMETIC:
                continue
            for dtype in range(len(REAL_DTYPES)):
                chosen = rates[(self.samples.kind == kind) & (self.samples.dtype == dtype)]
                if len(chosen) and chosen.max() > 0:
                    made[kind, dtype] = chosen.max()
            known = made[kind][np.isfinite(made[kind])]
            made[kind][~np.isfinite(made[kind])] = known.min() if len(known) else np.inf
        return made

    def _base(self, work: Samples | Workload) -> Floats:
        """The least time by the roofs; what goes step by step takes at least one smallest kernel for each."""
        compute = np.nan_to_num(work.flops) / self.roofs[work.kind, work.dtype]
        roof = np.maximum(compute, np.nan_to_num(work.moved) / self.bandwidth)
        return np.asarray(self.floor_ns * _steps(work) + roof)

    def __call__(self, work: Workload, *, leave_out: bool = False) -> Estimate:
        """The estimate for each class; ``leave_out`` looks past samples that are the same operation exactly."""
        base, steps = self._base(work), _steps(work)
        missed, kernels = np.zeros(len(base)), np.ones(len(base))
        spread = np.full(len(base), 0.7)  # of what is like nothing that was measured
        names = np.array([plain_name(op) for op in work.op]) if len(base) else np.zeros(0, dtype=str)
        for kind in np.unique(work.kind):
            rows, near = np.flatnonzero(work.kind == kind), np.flatnonzero(self.samples.kind == kind)
            if kind == VIEW or not len(near):
                continue
            for start in range(0, len(rows), CHUNK):
                part = rows[start : start + CHUNK]
                distance = self._distance(work, names, base, part, near)
                if leave_out:
                    distance[distance < 1e-9] = np.inf
                missed[part], kernels[part], spread[part] = self._weighted(distance, near)
        none = work.kind == VIEW
        count = np.maximum(kernels * steps, 1.0)
        return Estimate(np.where(none, 0.0, base * np.exp(missed)), np.where(none, 0.0, count), spread)

    def _distance(
        self, work: Workload, names: NDArray[Any], base: Floats, rows: NDArray[Any], near: NDArray[Any]
    ) -> Floats:
        samples = self.samples
        apart = (np.log2(base[rows])[:, None] - np.log2(self.base[near])) ** 2
        for place in range(SIZES):
            column = samples.sizes[near, place]
            if column.any() or work.sizes[rows, place].any():
                apart += (work.sizes[rows, place][:, None] - column) ** 2
        other = SIMILAR_OP if KINDS[work.kind[rows[0]]] in ALIKE else OTHER_OP
        apart += np.where(names[rows][:, None] != self.ops[near], other, 0.0)
        apart += np.where(work.dtype[rows][:, None] != samples.dtype[near], OTHER_DTYPE, 0.0)
        return np.asarray(apart)

    def _weighted(self, distance: Floats, near: NDArray[Any]) -> tuple[Floats, Floats, Floats]:
        """The mean of the nearest samples, the nearer the heavier, and how far they are from one another."""
        count = min(NEIGHBOURS, len(near))
        closest = np.argpartition(distance, count - 1, axis=1)[:, :count]
        apart = np.take_along_axis(distance, closest, axis=1)
        scale = np.maximum(np.median(apart, axis=1, keepdims=True), 0.05)
        weight = np.exp(-np.minimum(apart / scale, 50.0)) + 1e-9
        weight /= weight.sum(axis=1, keepdims=True)
        missed, kernels = self.missed[near][closest], self.each[near][closest]
        mean = (weight * missed).sum(axis=1)
        variance = (weight * (missed - mean[:, None]) ** 2).sum(axis=1)
        far = 0.1 * np.sqrt(apart.min(axis=1))  # one doubling away from the nearest: a tenth less sure
        return mean, np.exp((weight * kernels).sum(axis=1)), np.sqrt(variance + far**2 + 0.03**2)


def _steps(work: Samples | Workload) -> Floats:
    """Time steps times layers of what is recurrent, and 1 of all else."""
    recurrent = work.kind == RECURRENT
    return np.asarray(np.where(recurrent, np.exp2(work.sizes[:, 0] + work.sizes[:, 1]), 1.0))


def plain_name(op: str) -> str:
    """An operator's name with its in-place form under the plain one.

    >>> plain_name("relu_"), plain_name("__and__")
    ('relu', '__and__')
    """
    return op[:-1] if op.endswith("_") and not op.endswith("__") else op
