"""What torch_vis says that an operation costs, compared with the count of a reference that computes the same values."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import torch

import torch_vis as tv
from tests.kit.counting import Array, counting, floats, flops, numbers, zeros
from torch_vis.graph import TensorType
from torch_vis.ops.cost import Cost, Operation, costs
from torch_vis.ops.cost.registry import formula_of


def traced(function: Callable[..., Any], *args: Any, **kwargs: Any) -> tv.Trace:
    """A trace without gradients."""
    with torch.no_grad():
        return tv.trace(function, *args, kwargs=kwargs)


def cost_of(trace: tv.Trace, op: str | None = None) -> Cost:
    """What the operations of a name cost together, or all of them; each must be covered."""
    columns = costs(trace.graph, trace.metrics.get("stored"))
    rows = [node.index for node in trace.graph.nodes if op is None or node.op == f"aten::{op}"]
    assert rows, [node.op for node in trace.graph.nodes]
    found = [[columns[name][row] for name in ("flops", "macs", "moved_bytes")] for row in rows]
    assert None not in [cell for row in found for cell in row[:2]], "not covered"
    return Cost(*(sum(cells) if None not in cells else None for cells in zip(*found)))  # type: ignore[arg-type]


def assert_counts(
    function: Callable[..., Any],
    reference: Callable[..., Any],
    *tensors: Any,
    op: str,
    macs: bool = False,
    **kwargs: Any,
) -> None:
    """The reference computes what the operator does, and the formula says what the reference counts.

    ``function`` and ``reference`` take the tensors; with ``macs`` every product that is counted must be one.
    """
    trace = traced(function, *tensors, **kwargs)
    found = cost_of(trace, op)
    with counting() as tally:
        made = reference(
            *(numbers(t) if isinstance(t, torch.Tensor) and t.is_floating_point() else t for t in tensors)
        )
    assert_values(trace.output, made)
    assert found.flops == flops(tally), (found, tally)
    assert found.macs == (tally["mul"] if macs else 0), (found, tally)


def assert_values(output: Any, made: Any) -> None:
    """Results of torch and of a reference agree."""
    outputs = output if isinstance(output, (tuple, list)) else (output,)
    mades = made if isinstance(made, tuple) else (made,)
    for ours, theirs in zip(mades, outputs):
        if ours is not None:
            np.testing.assert_allclose(floats(ours), np.asarray(theirs), rtol=1e-6, atol=1e-9)


def tensor(*shape: int, dtype: str = "float32") -> TensorType:
    """The type of a contiguous tensor."""
    strides, step = [], 1
    for size in reversed(shape):
        strides.insert(0, step)
        step *= size
    return TensorType(dtype, shape, tuple(strides))


def formula(op: str, *args: Any, out: Any = (), **kwargs: Any) -> Cost | None:
    """What the formula of an operator says of a call that cannot be made on this machine."""
    outputs = out if type(out) is tuple else (out,)
    entry = formula_of(op if "::" in op else f"aten::{op}")
    assert entry is not None, f"{op} has no formula"
    return entry.formula(Operation(op, args, kwargs, outputs, ()))


def double(*shape: int, low: float = -2.0, high: float = 2.0) -> torch.Tensor:
    """Random numbers between two bounds."""
    return torch.rand(*shape, dtype=torch.float64) * (high - low) + low


SIZES = [1, 2, 3, 5]


def substituted(a: Array, b: Array, *, lower: bool, unit: bool) -> Array:
    n = len(a)
    x = zeros(*b.shape)
    order = range(n) if lower else range(n - 1, -1, -1)
    for column in range(b.shape[1]):
        for i in order:
            total = b[i, column]
            for k in range(i) if lower else range(i + 1, n):
                total = total - a[i, k] * x[k, column]
            x[i, column] = total if unit else total / a[i, i]
    return x


def dominant(n: int) -> torch.Tensor:
    """A matrix for which elimination exchanges nothing."""
    return double(n, n) + 10 * n * torch.eye(n, dtype=torch.float64)


def check(function: Any, reference: Any, *tensors: Any, op: str) -> None:
    trace = traced(function, *tensors)
    with counting() as tally:
        made = reference(*map(numbers, tensors))
    assert_values(trace.output, made)
    assert cost_of(trace, op).flops == flops(tally)
