"""Reductions and distances cost what their definition counts."""

from __future__ import annotations

import math
from collections.abc import Callable
from itertools import pairwise
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.kit.cost_proofs import assert_counts, double
from tests.kit.counting import Array, Number, array, dot, exp, log, sqrt

aten = torch.ops.aten
few = settings(max_examples=10)


# Reductions


def rows(x: Array, each: Callable[[Array], Any]) -> Array:
    return array([each(row) for row in x], (len(x),))


def mean(row: Array) -> Any:
    return sum(row) / len(row)


def variance(row: Array) -> Any:
    centred = row - mean(row)
    return dot(centred, centred) / (len(row) - 1)


def log_sum(row: Array) -> Any:
    top = max(row)
    return top + log(sum(exp(row - top)))


def power(row: Array, p: float) -> Any:
    return sum(abs(each) ** p for each in row) ** (1 / p)


def steps(row: Array, join: Callable[[Any, Any], Any], start: float) -> Array:
    made, total = [], Number(start)
    for each in row:
        total = join(total, each)
        made.append(total)
    return array(made, row.shape)


REDUCTIONS: dict[str, tuple[str, Callable[..., Any], Callable[..., Any]]] = {
    "sum": ("sum", lambda x: x.sum(1), lambda x: rows(x, sum)),
    "mean": ("mean", lambda x: x.mean(1), lambda x: rows(x, mean)),
    "prod": ("prod", lambda x: x.prod(1), lambda x: rows(x, math.prod)),
    "var": ("var", lambda x: x.var(1), lambda x: rows(x, variance)),
    "std": ("std", lambda x: x.std(1), lambda x: rows(x, lambda row: sqrt(variance(row)))),
    "amax": ("amax", lambda x: x.amax(1), lambda x: rows(x, max)),
    "logsumexp": ("logsumexp", lambda x: x.logsumexp(1), lambda x: rows(x, log_sum)),
    "norm 2": (
        "linalg_vector_norm",
        lambda x: torch.linalg.vector_norm(x, 2, 1),
        lambda x: rows(x, lambda row: sqrt(dot(row, row))),
    ),
    "norm 1": (
        "linalg_vector_norm",
        lambda x: torch.linalg.vector_norm(x, 1, 1),
        lambda x: rows(x, lambda row: sum(abs(row))),
    ),
    "norm inf": (
        "linalg_vector_norm",
        lambda x: torch.linalg.vector_norm(x, math.inf, 1),
        lambda x: rows(x, lambda row: max(abs(row))),
    ),
    "norm 3": (
        "linalg_vector_norm",
        lambda x: torch.linalg.vector_norm(x, 3, 1),
        lambda x: rows(x, lambda row: power(row, 3)),
    ),
    "cumsum": (
        "cumsum",
        lambda x: x.cumsum(1),
        lambda x: np.stack([steps(r, lambda a, b: a + b, 0) for r in x]),
    ),
    "cumprod": (
        "cumprod",
        lambda x: x.cumprod(1),
        lambda x: np.stack([steps(r, lambda a, b: a * b, 1) for r in x]),
    ),
    "trace": (
        "trace",
        torch.trace,
        lambda x: sum(x[i, i] for i in range(min(x.shape))),
    ),
    "diff": ("diff", aten.diff, lambda x: x[:, 1:] - x[:, :-1]),
}


@few
@given(st.integers(1, 3), st.integers(2, 5))
def test_reductions(m: int, n: int) -> None:
    x = double(m, n)
    for op, function, reference in REDUCTIONS.values():
        with torch.inference_mode():  # which shows ``diff`` as one operation
            assert_counts(function, reference, x, op=op)


def test_distances_of_pairs() -> None:
    x, y = double(3, 4), double(5, 4)

    def reference(x: Array, y: Array) -> Array:
        return array([sqrt(dot(d, d)) for a in x for b in y for d in [a - b]], (len(x), len(y)))

    assert_counts(torch.cdist, reference, x, y, op="_cdist_forward")
    assert_counts(
        torch.pdist,
        lambda x: array(
            [sqrt(dot(d, d)) for i in range(3) for j in range(i + 1, 3) for d in [x[i] - x[j]]], (3,)
        ),
        x,
        op="_pdist_forward",
    )


def test_the_gradient_of_distances() -> None:
    g, x, y = double(3, 5), double(3, 4), double(5, 4)
    far = torch.cdist(x, y)

    def reference(g: Array, x: Array, y: Array, far: Array) -> Array:
        made = array([0] * x.size, x.shape)
        for i in range(3):
            for j in range(5):
                for k in range(4):
                    made[i, k] += (x[i, k] - y[j, k]) / far[i, j] * g[i, j]
        return made

    assert_counts(
        lambda g, x, y, far: aten._cdist_backward(g, x, y, 2.0, far),
        reference,
        g,
        x,
        y,
        far,
        op="_cdist_backward",
    )


def test_rows_brought_down_to_a_norm() -> None:
    def reference(x: Array) -> Array:
        made = []
        for row in x:
            size = sqrt(dot(row, row))
            factor = 1.0 / (size + 1e-7)
            made.append(row * (factor if size > 1.0 else Number(1)))
        return np.stack(made)

    assert_counts(lambda x: torch.renorm(x, 2, 0, 1.0), reference, double(3, 4), op="renorm")


def test_counts_of_bins() -> None:
    def reference(x: Array) -> Array:
        made, width = array([0] * 4, (4,)), Number(2) - -2
        for each in x:
            made[min(int(float((each + 2) / width * 4)), 3)] += Number(1)
        return made

    assert_counts(lambda x: torch.histc(x, 4, -2, 2), reference, double(20), op="histc")


@pytest.mark.parametrize("edged", [True, False])
def test_densities_divide_by_sum_and_width(edged: bool) -> None:
    edges, x = [-2.0, -1.0, 0.0, 2.0] if edged else [-2.0, -1.0, 0.0, 1.0, 2.0], double(20)

    def reference(x: Array) -> Array:
        bins = len(edges) - 1
        made = array([Number(0)] * bins, (bins,))
        width = None if edged else Number(2) - -2
        for each in x:
            place = float(each) if edged else int(float((each + 2) / width * bins))
            made[np.searchsorted(edges, place, side="right") - 1 if edged else min(place, bins - 1)] += (
                Number(1)
            )
        total = sum(made)
        widths = [Number(b) - a for a, b in pairwise(edges)]
        return array((one / total / width for one, width in zip(made, widths)), (bins,))

    def function(x: torch.Tensor) -> torch.Tensor:
        if edged:
            return torch.histogram(x, torch.tensor(edges, dtype=torch.float64), density=True)[0]
        return torch.histogram(x, 4, range=(-2.0, 2.0), density=True)[0]

    assert_counts(function, reference, x, op="histogram")


@pytest.mark.parametrize("how", ["max", "min", "prod", "mean", "sum"])
def test_gradients_of_segments(how: str) -> None:
    x, lengths = double(6, low=0.5), torch.tensor([2, 3, 1])
    x[1] = x[0]  # two are the largest
    segments = [(0, 2), (2, 5), (5, 6)]
    y = torch.segment_reduce(x, how, lengths=lengths)

    def reference(g: Array, y: Array, x: Array) -> Array:
        made = []
        for (start, end), slope, total in zip(segments, g, y):
            part = x[start:end]
            if how == "prod":
                slope = slope * total
                made += [slope / each for each in part]
            elif how == "mean":
                made += [slope / len(part) for _ in part]
            elif how == "sum":
                made += [slope] * len(part)
            else:
                same = [float(each) == float(total) for each in part]
                count = sum((Number(each) for each in same), start=0)
                shared = [slope / count for _ in part]
                made += [share if each else Number(0) for share, each in zip(shared, same)]
        return array(made, (6,))

    assert_counts(
        lambda g, y, x: torch.ops.aten._segment_reduce_backward(g, y, x, how, lengths=lengths, axis=0),
        reference,
        double(3, low=0.5),  # torch shares out only those above zero
        y,
        x,
        op="_segment_reduce_backward",
    )
