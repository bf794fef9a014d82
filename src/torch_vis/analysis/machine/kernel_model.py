"""How long an operation's kernels take on a device, from measurements of operations like it.

The estimate is what a roofline allows, times the factor by which similar measured operations missed it. That factor is
taken for a smooth function of what describes an operation: known where it was measured, followed in between, and the
less sure the further off the next measurement is (a Gaussian process on its logarithm). Similar means: of the same
kind, near in the sizes that matter to it, and rather the same operator and element type.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from torch_vis.analysis.machine.features import SIZES, Workload
from torch_vis.graph.types import Array, Bools, Floats, Ints
from torch_vis.ops.families import KINDS, REAL_DTYPES
from torch_vis.ops.names import plain_name

# How far another operator and another element type are, squared: as far as 3, 5 and 4 doublings of a size.
SIMILAR_OP, OTHER_OP, OTHER_DTYPE = 9.0, 25.0, 16.0
# of the time that the roofs allow, next to the sizes themselves
BASE_WEIGHT = 0.3
# doublings over which the factor changes by its own size
LENGTH = 10.0
# how far the factor's logarithm spreads
SIGMA = 0.8
# how far one measurement is off: a host has caches, neighbours and a clock of its own
NOISE = {"gpu": 0.1, "cpu": 0.25}
# kinds whose operators take much the same time
ALIKE = frozenset({"matmul", "elementwise", "copy", "optimizer"})
# kinds that peaks can bound
ARITHMETIC = frozenset({"matmul", "convolution", "attention", "recurrent", "factorization"})
# of them, those where each step waits for the one before
STEPWISE = frozenset({"recurrent", "factorization"})
# more spread for an element type of which only the peak, or nothing at all, was measured
UNTIMED, UNKNOWN = 0.35, 1.0
# of the peak, by the largest operations of every kind but the stepwise
REACHED = 0.3
CHUNK = 512
VIEW, RECURRENT, COPY = KINDS.index("view"), KINDS.index("recurrent"), KINDS.index("copy")
FIGURES = ("flops", "moved", "time_ns", "kernels", "host_ns")


class Samples(NamedTuple):
    """Operations whose time on a device was measured, a row each; the columns are those of ``Workload``.

    ``host_ns`` is what the host took to issue the operation, where that was measured too, and NaN elsewhere.
    """

    op: list[str]
    kind: Ints
    dtype: Ints
    flops: Floats
    moved: Floats
    sizes: Floats
    time_ns: Floats
    kernels: Floats
    host_ns: Floats

    def to_plain(self) -> dict[str, Any]:
        """The columns as lists, for JSON; figures with the digits that a measurement has."""
        plain: dict[str, Any] = {"op": self.op}
        for name in ("kind", "dtype"):
            plain[name] = getattr(self, name).tolist()
        for name in FIGURES:
            plain[name] = np.nan_to_num(getattr(self, name)).round().astype(np.int64).tolist()
        return {**plain, "sizes": self.sizes.round(3).tolist()}

    @classmethod
    def from_plain(cls, plain: dict[str, Any]) -> Samples:
        """The inverse of ``to_plain``."""
        columns: dict[str, Any] = {"op": [str(op) for op in plain["op"]]}
        columns |= {name: np.array(plain[name], dtype=np.int8) for name in ("kind", "dtype")}
        columns |= {name: np.array(plain[name], dtype=np.float64) for name in FIGURES}
        columns["host_ns"][columns["host_ns"] == 0] = np.nan
        sizes = np.array(plain["sizes"], dtype=np.float64).reshape(-1, SIZES)
        samples = cls(**columns, sizes=sizes)
        if len({len(column) for column in samples}) != 1:
            raise ValueError("the columns differ in length")
        return samples


class KernelEstimate(NamedTuple):
    """What is expected of each class of a workload: time, number of kernels, and the spread of the time's logarithm.

    ``host_ns`` is the time to issue it, for what was measured as a whole: an operation of many kernels; NaN elsewhere.
    """

    time_ns: Floats
    kernels: Floats
    spread: Floats
    host_ns: Floats


class FittedKind(NamedTuple):
    """The Gaussian process of one kind: its samples, the inverse of their covariance, means, and weights."""

    rows: Ints
    inverse: Floats
    means: Floats
    weights: Floats


class KernelModel:
    """The estimator of kernel times: samples of one device, with its roofs.

    ``bias_apart`` is whether a kernel of its own adds the bias of a convolution.
    """

    def __init__(
        self,
        samples: Samples,
        *,
        floor_ns: float,
        bandwidth: float,
        peaks: dict[str, float],
        noise: float,
        bias_apart: bool = False,
    ) -> None:
        self.samples = samples
        self.bias_apart = bias_apart
        self.peaks = peaks
        self.noise = noise
        self.floor_ns = floor_ns
        # bytes per ns
        self.bandwidth = bandwidth / 1e9
        self.roofs = self._roofs()
        self.base = self._base(samples)
        self.ops = np.array([plain_name(op) for op in samples.op])
        self._fits: dict[tuple[int, bool], FittedKind] = {}

    def _roofs(self) -> Floats:
        """FLOP per ns that any sample of a kind and element type reached; infinite where there is none.

        Few samples may all be small: what runs on the units of matrix products reaches a part of their peak.
        """
        roofs = np.full((len(KINDS), len(REAL_DTYPES)), np.inf)
        rates = np.nan_to_num(self.samples.flops) / np.maximum(self.samples.time_ns, 1.0)
        for kind, name in enumerate(KINDS):
            if name not in ARITHMETIC:
                continue
            for dtype in range(len(REAL_DTYPES)):
                reached = rates[(self.samples.kind == kind) & (self.samples.dtype == dtype)]
                if len(reached) and reached.max() > 0:
                    roofs[kind, dtype] = max(reached.max(), self._least(name, dtype))
            roofs[kind] = self._like_others(name, roofs[kind])
        return roofs

    def _like_others(self, kind: str, roofs: Floats) -> Floats:
        """The roofs of one kind, with those of types that were not timed: by their peaks, or the lowest of all."""
        timed = [code for code in range(len(REAL_DTYPES)) if np.isfinite(roofs[code])]
        known = [code for code in timed if self._peak(kind, code)]
        lowest = min((roofs[code] for code in timed), default=np.inf)
        reached = max((roofs[code] * 1e9 / self._peak(kind, code) for code in known), default=0.0)
        others = [min(reached, 1.0) * self._peak(kind, code) / 1e9 or lowest for code in range(len(roofs))]
        return np.where(np.isfinite(roofs), roofs, others)

    def _peak(self, kind: str, dtype: int) -> float:
        """FLOP/s at most; float32 convolutions use tf32."""
        name = REAL_DTYPES[dtype]
        if kind == "convolution" and name == "float32" and "tf32" in self.peaks:
            name = "tf32"
        return self.peaks.get(name, 0.0)

    def untimed(self, kind: Ints, dtype: Ints) -> Bools:
        """Which operations are of a kind that arithmetic bounds and in an element type that it was not timed in."""
        timed = np.ones((len(KINDS), len(REAL_DTYPES)), dtype=np.bool_)
        timed[[KINDS.index(name) for name in ARITHMETIC]] = False
        timed[self.samples.kind, self.samples.dtype] = True
        return np.asarray(~timed[kind, dtype])

    def _least(self, kind: str, dtype: int) -> float:
        """FLOP per ns that large operations of a kind reach at the least."""
        return REACHED * self._peak(kind, dtype) / 1e9 if kind not in STEPWISE else 0.0

    def _base(self, work: Samples | Workload) -> Floats:
        """The least time by the roofs; what goes step by step takes at least one smallest kernel for each."""
        compute = np.nan_to_num(work.flops) / self.roofs[work.kind, work.dtype]
        roof = np.maximum(compute, np.nan_to_num(work.moved) / self.bandwidth)
        return np.asarray(self.floor_ns * _steps(work) + roof)

    def __call__(self, work: Workload) -> KernelEstimate:
        """The estimate for each class."""
        base, steps = self._base(work), _steps(work)
        goals = np.zeros((len(base), 2))
        # of what is like nothing that was measured
        spread = np.full(len(base), SIGMA)
        host = np.full(len(base), np.nan)
        for kind in np.unique(work.kind):
            rows = np.flatnonzero(work.kind == kind)
            if kind == VIEW or not (self.samples.kind == kind).any():
                continue
            known = self._fitted(int(kind), whole=False)
            goals[rows], spread[rows] = self._posterior(known, work, base, rows)
            if kind == RECURRENT:
                known = self._fitted(int(kind), whole=True)
                if len(known.rows):
                    logs, _ = self._posterior(known, work, base, rows)
                    host[rows] = np.exp(logs[:, 0]) * self._issue(_steps(work)[rows])
        more = np.where([name in self.peaks for name in REAL_DTYPES], UNTIMED, UNKNOWN)[work.dtype]
        spread = np.where(self.untimed(work.kind, work.dtype), np.hypot(spread, more), spread)
        none = work.kind == VIEW
        time_ns, count = base * np.exp(goals[:, 0]), np.maximum(np.exp(goals[:, 1]) * steps, 1.0)
        # what was measured has none
        if self.bias_apart:
            has_bias = work.bias > 0
            time_ns += np.where(has_bias, self.floor_ns + work.bias / self.bandwidth, 0.0)
            count += has_bias
        return KernelEstimate(np.where(none, 0.0, time_ns), np.where(none, 0.0, count), spread, host)

    def _issue(self, steps: Floats) -> Floats:
        """About what it takes to issue so many steps; what was measured is a factor to this."""
        return np.asarray(self.floor_ns * (100.0 + 10.0 * steps))

    def _fitted(self, kind: int, *, whole: bool) -> FittedKind:
        """What the samples of a kind say of time and kernels, or as a ``whole`` of the time to issue them."""
        if (kind, whole) not in self._fits:
            samples = self.samples
            chosen = samples.kind == kind
            if whole:
                chosen = chosen & np.isfinite(samples.host_ns)
            rows = np.flatnonzero(chosen)
            steps = _steps(samples)[rows]
            if whole:
                goals = np.log(np.maximum(samples.host_ns[rows], 1.0) / self._issue(steps))[:, None]
            else:
                missed = np.maximum(samples.time_ns[rows], 1.0) / self.base[rows]
                goals = np.log(np.stack([missed, np.maximum(samples.kernels[rows], 1.0) / steps], axis=1))
            if len(rows):
                self._fits[kind, whole] = self._fit(rows, goals)
            else:
                self._fits[kind, whole] = FittedKind(rows, np.zeros((0, 0)), np.zeros(1), goals)
        return self._fits[kind, whole]

    def _fit(self, rows: Ints, goals: Floats) -> FittedKind:
        covariance = self._covariance(self.samples, self.ops[rows], self.base[rows], rows, rows)
        inverse = np.asarray(np.linalg.inv(covariance + self.noise**2 * np.eye(len(rows))), dtype=np.float64)
        means = (inverse @ goals).sum(axis=0) / inverse.sum()
        return FittedKind(rows, inverse, means, inverse @ (goals - means))

    def _posterior(
        self, known: FittedKind, work: Workload, base: Floats, rows: Ints
    ) -> tuple[Floats, Floats]:
        """The goals for some classes of one kind, and how far they may be off."""
        names = np.array([plain_name(work.op[row]) for row in rows])
        means, spread = np.empty((len(rows), len(known.means))), np.empty(len(rows))
        for start in range(0, len(rows), CHUNK):
            part = slice(start, start + CHUNK)
            covariance = self._covariance(work, names[part], base[rows[part]], rows[part], known.rows)
            means[part] = known.means + covariance @ known.weights
            left = SIGMA**2 - np.einsum("ij,jk,ik->i", covariance, known.inverse, covariance, optimize=True)
            spread[part] = np.sqrt(np.maximum(left, 0.0) + self.noise**2)
        return means, spread

    def _covariance(
        self, work: Samples | Workload, names: Array, base: Floats, rows: Ints, near: Ints
    ) -> Floats:
        """How much the factors of some operations say of one another: less with the distance of their features."""
        samples = self.samples
        squared = BASE_WEIGHT * (np.log2(base)[:, None] - np.log2(self.base[near])) ** 2
        for column_index in range(SIZES):
            nearby = samples.sizes[near, column_index]
            if nearby.any() or work.sizes[rows, column_index].any():
                squared += (work.sizes[rows, column_index][:, None] - nearby) ** 2
        other = SIMILAR_OP if KINDS[samples.kind[near[0]]] in ALIKE else OTHER_OP
        squared += np.where(names[:, None] != self.ops[near], other, 0.0)
        squared += np.where(work.dtype[rows][:, None] != samples.dtype[near], OTHER_DTYPE, 0.0)
        distance = np.sqrt(3.0 * squared) / LENGTH
        return np.asarray(SIGMA**2 * (1.0 + distance) * np.exp(-distance))


def _steps(work: Samples | Workload) -> Floats:
    """Time steps times layers of what is recurrent, and 1 of all else."""
    recurrent = work.kind == RECURRENT
    return np.asarray(np.where(recurrent, np.exp2(work.sizes[:, 0] + work.sizes[:, 1]), 1.0))
