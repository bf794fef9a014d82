"""How long the host takes to issue an operation: Python, dispatcher, autograd and the launch of its kernels.

Small programs whose time is the host's alone were timed; each is an equation between the operations that it ran and its
time. The costs are the most likely ones given these equations and a first guess: one for each kind of operation in each
mode, and how far single operators are off it.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from torch_vis.analysis.machine.features import Workload
from torch_vis.analysis.machine.kernel_model import KernelEstimate
from torch_vis.graph import Graph
from torch_vis.graph.schema import Flag, Phase
from torch_vis.graph.types import Bools, Floats, Ints
from torch_vis.ops.families import KINDS
from torch_vis.ops.names import plain_name

# how far a figure is off: in relation to it, and at the least
SURE, LEAST = 0.1, 0.05

# without gradients, with a record for backward, in backward
USUAL_KINDS: dict[str, tuple[float, float, float]] = {
    "attention": (1.65, 1.9, 1.85),
    "convolution": (2.8, 3.85, 3.65),
    "copy": (1.7, 2.2, 1.65),
    "elementwise": (1.35, 2.0, 1.5),
    "indexing": (1.4, 1.85, 1.75),
    "matmul": (1.55, 1.5, 1.1),
    "normalization": (2.0, 2.25, 2.15),
    "pooling": (1.55, 2.05, 1.95),
    "reduction": (0.9, 1.6, 1.3),
    "softmax": (1.05, 1.6, 1.5),
    "view": (0.35, 0.6, 1.15),
}
USUAL_OPERATORS: dict[str, tuple[float, float, float]] = {
    "attention/_scaled_dot_product_cudnn_attention": (0.5, 0.2, 0.0),
    "attention/_scaled_dot_product_cudnn_attention_backward": (0.0, 0.0, 0.15),
    "copy/cat": (0.8, 0.6, 0.2),
    "copy/clone": (-0.25, -0.05, 0.05),
    "copy/copy": (0.0, 0.0, -0.4),
    "copy/select_backward": (0.0, 0.0, 0.3),
    "elementwise/add": (0.25, 0.15, 0.05),
    "elementwise/div": (0.0, 0.0, -0.15),
    "elementwise/hardtanh": (0.85, 0.85, 0.0),
    "elementwise/hardtanh_backward": (0.0, 0.0, 0.75),
    "elementwise/mul": (-0.1, -0.15, -0.3),
    "elementwise/native_dropout": (0.25, 0.15, 0.0),
    "elementwise/native_dropout_backward": (0.0, 0.0, 0.15),
    "elementwise/relu": (0.15, 0.3, 0.0),
    "elementwise/sigmoid": (-0.2, -0.15, 0.0),
    "elementwise/sigmoid_backward": (0.0, 0.0, -0.15),
    "elementwise/silu": (-0.6, -0.35, 0.0),
    "elementwise/silu_backward": (0.0, 0.0, -0.3),
    "elementwise/threshold_backward": (0.0, 0.0, 0.25),
    "matmul/addmm": (0.6, -0.3, 0.0),
    "matmul/bmm": (-0.3, -0.2, -0.35),
    "matmul/mm": (0.1, 0.15, -0.25),
    "normalization/cudnn_batch_norm": (0.25, 0.45, 0.0),
    "normalization/cudnn_batch_norm_backward": (0.0, 0.0, 0.4),
    "normalization/native_batch_norm": (-0.3, -0.35, 0.0),
    "normalization/native_batch_norm_backward": (0.0, 0.0, -0.35),
    "normalization/native_group_norm": (0.4, 0.4, 0.0),
    "normalization/native_group_norm_backward": (0.0, 0.0, 0.35),
    "normalization/native_layer_norm": (0.4, 0.05, 0.0),
    "pooling/max_pool2d_with_indices": (0.55, 0.35, 0.0),
    "pooling/max_pool2d_with_indices_backward": (0.0, 0.0, 0.3),
    "pooling/upsample_nearest2d": (-0.2, -0.1, 0.0),
    "pooling/upsample_nearest2d_backward": (0.0, 0.0, -0.1),
    "reduction/mean": (-0.1, -0.2, 0.0),
    "reduction/sum": (0.05, 0.0, -0.35),
    "view/detach": (0.0, 0.0, 0.4),
    "view/slice": (0.0, 0.0, 0.15),
}
TERMS: dict[str, float] = {
    **{
        f"{mode}/{name}": units
        for table in (USUAL_KINDS, USUAL_OPERATORS)
        for name, row in table.items()
        for mode, units in zip(("plain", "grad", "backward"), row)
        if units
    },
    "optimizer/optimizer": 3.0,
    "optimizer/optimizer/_foreach_add": 0.3,
    "optimizer/optimizer/_foreach_mul": 0.15,
    "optimizer/view": 0.0,
    "scope": 0.35,
    "launch": 1.05,
    "encoder": 17.5,
    "heads": 8.6,
    "tensor": 0.15,
    "backward": 8.8,
    "optimizer": 14.2,
    "run": 0.0,
}
"""By the names of ``HostCosts.terms``."""


MODES = ("plain", "grad", "backward", "optimizer")
"""How an operation is run: without gradients, with a record for backward, in backward, by an optimizer."""

# First guesses in units of what one small operation takes, with how sure they are: of an operation, of a view.
FIRST = {"plain": (1.0, 0.6), "grad": (1.8, 0.9), "backward": (1.7, 0.9), "optimizer": (2.5, 1.5)}
FIRST_VIEW = {"plain": (0.22, 0.15), "grad": (0.7, 0.4), "backward": (0.6, 0.4), "optimizer": (0.3, 0.3)}
EXTRAS = {
    # a call of a module
    "scope": (0.35, 0.2),
    # every kernel of an operation after its first
    "launch": (0.5, 0.25),
    "recurrent_launch": (0.8, 0.4),
    # a whole layer in one operation: operations of its own, all but their Python
    "encoder": (20.0, 15.0),
    "heads": (10.0, 8.0),
    # every tensor that a list of them holds
    "tensor": (0.1, 0.1),
    # once for the start of backward
    "backward": (9.0, 7.0),
    # once for the start of a step
    "optimizer": (9.0, 7.0),
    # once
    "run": (0.5, 1.0),
}
OPERATOR_SPREAD = 0.5
# layers whose operations C++ calls, and the part that each then costs: no arguments from Python, no results to it
RECURRENT_MODULES = frozenset({"RNN", "LSTM", "GRU"})
FROM_CPP = 0.5
# how many operations before one count for what is in the caches, and how many bytes each moves where they are swept
SWEPT_AROUND, SWEPT_BYTES = 16, 1 << 18
# how far the time of one program is off
NOISE = 0.08
VIEW, LISTED = KINDS.index("view"), KINDS.index("optimizer")
RECURRENT = KINDS.index("recurrent")
WHOLE_LAYERS = {"_transformer_encoder_layer_fwd": "encoder", "_native_multi_head_attention": "heads"}


class Equation(NamedTuple):
    """One program that was timed: how often it ran what, and how long its host took."""

    counts: dict[str, float]
    time_ns: float
    weight: float = 1.0


class HostCosts(NamedTuple):
    """Nanoseconds on the host by term (``"grad"/"matmul"``, ``"scope"`` …) and the relative error of whole programs.

    ``swept`` is how many times longer a host that computes itself takes where that sweeps its caches: small programs
    find all of Python's code and data there, and models of usual size do not.
    """

    unit_ns: float
    terms: dict[str, float]
    error: float
    swept: float = 1.0

    def per_class(self, work: Workload) -> Floats:
        """What each class of operation costs in each mode, launches left out."""
        costs = np.zeros((len(work.op), len(MODES)))
        for row, (op, kind) in enumerate(zip(work.op, work.kind)):
            for column, mode in enumerate(MODES):
                of_kind = f"{mode}/{KINDS[kind]}"
                first = (FIRST_VIEW if kind == VIEW else FIRST)[mode][0] * self.unit_ns
                cost = self.terms.get(of_kind, first) + self.terms.get(f"{of_kind}/{plain_name(op)}", 0.0)
                costs[row, column] = max(cost, 0.05 * first)
        return costs

    def extra(self, name: str) -> float:
        """What one of ``EXTRAS`` costs."""
        return max(self.terms.get(name, EXTRAS[name][0] * self.unit_ns), 0.0)


def from_cpp(graph: Graph) -> Bools:
    """Which operations C++ calls one after another, without Python in between: those of a recurrent layer.

    The layer's own call from Python is that of its first operation.
    """
    recurrent = np.array([module.type in RECURRENT_MODULES for module in graph.modules], dtype=np.bool_)
    inside = recurrent[graph.scope_module][graph.node_scope] & (graph.node_phase == Phase.FORWARD)
    nodes = np.flatnonzero(inside)
    first = nodes[np.unique(graph.node_scope[nodes], return_index=True)[1]]
    inside[first] = False
    return np.asarray(inside)


def modes(graph: Graph) -> Ints:
    """The mode that each operation was run in, a place in ``MODES``."""
    recorded = (graph.node_flags & Flag.GRAD_MODE) != 0
    codes = np.where(recorded, 1, 0)
    codes[graph.node_phase == Phase.BACKWARD] = 2
    codes[graph.node_phase == Phase.OPTIMIZER] = 3
    return np.asarray(codes, dtype=np.int64)


def per_node(graph: Graph, work: Workload, estimate: KernelEstimate, costs: HostCosts) -> Floats:
    """What the host spends on each operation; calls of modules are spread over the operations."""
    mode, group = modes(graph), work.group
    if not len(group):
        return np.zeros(0)
    host_ns = costs.per_class(work)[group, mode] * np.where(from_cpp(graph), FROM_CPP, 1.0)
    for name, times in _launches(work, estimate).items():
        host_ns += (costs.extra(name) * times)[group]
    whole = estimate.host_ns[group]
    host_ns = np.where(np.isfinite(whole), whole, host_ns)
    host_ns += np.where(work.kind[group] == LISTED, work.tensors[group], 0) * costs.extra("tensor")
    host_ns += costs.extra("scope") * len(graph.scope_call) / len(group)
    host_ns[0] += costs.extra("run")
    for code, name in ((2, "backward"), (3, "optimizer")):
        first = np.flatnonzero(mode == code)[:1]
        host_ns[first] += costs.extra(name)
    return host_ns


def swept_share(work: Workload) -> Floats:
    """How far operations run in caches that those around them have swept: 0 for not at all, 1 for wholly.

    A step follows another one, so that before the first operation comes the last.
    """
    moved = np.nan_to_num(work.moved)[work.group]
    count = min(SWEPT_AROUND, len(moved))
    sums = np.concatenate([[0.0], np.cumsum(np.concatenate([moved[len(moved) - count :], moved]))])
    before = sums[count : count + len(moved)] - sums[: len(moved)]
    return np.asarray(np.minimum(before / max(count, 1) / SWEPT_BYTES, 1.0))


def counts(graph: Graph, work: Workload, estimate: KernelEstimate) -> dict[str, float]:
    """The left side of an equation: how often a run did what the host pays for.

    Operations whose time to issue was measured as a whole are left out: the right side is without them.
    """
    mode, group = modes(graph), work.group
    paid = np.where(from_cpp(graph), FROM_CPP, 1.0)
    table = np.bincount(group * len(MODES) + mode, weights=paid, minlength=len(work.op) * len(MODES)).reshape(
        -1, len(MODES)
    )
    totals: dict[str, float] = defaultdict(float)
    parts = ~np.isfinite(estimate.host_ns)
    for row, column in zip(*np.nonzero(table * parts[:, None])):
        of_kind = f"{MODES[column]}/{KINDS[work.kind[row]]}"
        totals[of_kind] += table[row, column]
        totals[f"{of_kind}/{plain_name(work.op[row])}"] += table[row, column]
    calls = np.bincount(group, minlength=len(work.op)) * parts
    for name, times in _launches(work, estimate).items():
        totals[name] = float(calls @ times)
    totals["tensor"] = float(work.tensors[group][work.kind[group] == LISTED].sum())
    totals["scope"], totals["run"] = len(graph.scope_call), 1
    totals["backward"], totals["optimizer"] = float((mode == 2).any()), float((mode == 3).any())
    return {name: float(count) for name, count in totals.items() if count}


def _launches(work: Workload, estimate: KernelEstimate) -> dict[str, Floats]:
    """What each class of operation pays for its kernels after the first: how often which of ``EXTRAS``."""
    more = np.maximum(estimate.kernels - 1.0, 0.0)
    recurrent = work.kind == RECURRENT
    launches = {"launch": np.where(recurrent, 0.0, more), "recurrent_launch": np.where(recurrent, more, 0.0)}
    for op, term in WHOLE_LAYERS.items():
        launches[term] = np.minimum(more, 1.0) * np.array([name == op for name in work.op], dtype=np.float64)
    return launches


def usual(unit_ns: float, error: float) -> HostCosts:
    """The costs of a host of a GPU of which only is known what one small operation takes."""
    return HostCosts(unit_ns, {name: units * unit_ns for name, units in TERMS.items()}, error)


def fit(
    equations: Sequence[Equation], unit_ns: float, *, noise: float = NOISE, on_gpu: bool = False
) -> HostCosts:
    """The most likely costs. ``unit_ns`` is what one small operation takes on this host.

    The first guess for the host of a GPU is good, and the equations correct it, the less the more ``noise`` they have;
    for a CPU it is a rough one.

    >>> loops = [Equation({"plain/elementwise": n, "plain/elementwise/add": n, "run": 1}, 900.0 * n) for n in (5, 50)]
    >>> costs = fit(loops, 1000.0)
    >>> round(costs.terms["plain/elementwise"] + costs.terms["plain/elementwise/add"], -2)
    900.0
    """
    known = usual(unit_ns, 0.5) if on_gpu else HostCosts(unit_ns, {}, 0.5)
    if not equations:
        return known
    names = sorted({name for equation in equations for name in equation.counts})
    column = {name: number for number, name in enumerate(names)}
    left = np.zeros((len(equations), len(names)))
    for row, equation in enumerate(equations):
        for name, count in equation.counts.items():
            left[row, column[name]] = count
    right = np.array([equation.time_ns for equation in equations])
    guess, spread = np.array([_first(name, on_gpu) for name in names]).T * unit_ns
    weight = np.array([equation.weight for equation in equations]) / (noise * right)
    scaled = left * weight[:, None]
    normal = np.diag(1 / spread**2) + scaled.T @ scaled
    costs = guess + np.linalg.solve(normal, scaled.T @ ((right - left @ guess) * weight))
    # how far a program is off whose own equation was not used: its residual over what its equation left free
    leverage = np.einsum("ij,jk,ik->i", scaled, np.linalg.inv(normal), scaled)
    off = (right - left @ costs) / right / np.maximum(1.0 - leverage, 0.05)
    error = float(np.sqrt(np.average(np.clip(off, -1.5, 1.5) ** 2, weights=weight * right)))
    return HostCosts(unit_ns, {**known.terms, **dict(zip(names, costs.tolist()))}, error)


def _first(name: str, on_gpu: bool) -> tuple[float, float]:
    """The guess for a term and how sure it is, in units of one small operation."""
    if on_gpu and name in TERMS:
        units = TERMS[name]
        return units, max(SURE * abs(units), LEAST)
    if name in EXTRAS:
        return EXTRAS[name]
    mode, kind, *operator = name.split("/")
    value, spread = (FIRST_VIEW if kind == "view" else FIRST)[mode]
    if not operator:
        return value, spread
    return 0.0, LEAST if on_gpu else OPERATOR_SPREAD * value


def to_plain(costs: HostCosts) -> dict[str, Any]:
    """The costs for JSON."""
    terms = {name: round(cost, 1) for name, cost in costs.terms.items()}
    figures = {"unit_ns": round(costs.unit_ns, 1), "error": round(costs.error, 4), "terms": terms}
    return figures if costs.swept == 1.0 else {**figures, "swept": round(costs.swept, 3)}


def from_plain(plain: dict[str, Any]) -> HostCosts:
    """The inverse of ``to_plain``."""
    terms = {str(name): float(cost) for name, cost in plain["terms"].items()}
    return HostCosts(float(plain["unit_ns"]), terms, float(plain["error"]), float(plain.get("swept", 1.0)))
