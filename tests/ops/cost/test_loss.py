"""Losses and their gradients cost what their definition counts."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from torch.nn import functional

import torch_vis as tv
from tests.kit.cost_proofs import assert_counts, assert_values, cost_of, double, traced
from tests.kit.counting import (
    Array,
    Number,
    array,
    choose,
    counting,
    exp,
    flops,
    larger,
    log,
    log1p,
    numbers,
    smaller,
    unit,
)

aten = torch.ops.aten


def reduced(losses: Array, reduction: int) -> Any:
    flat = list(losses.reshape(-1))
    if reduction == 0:
        return losses
    return sum(flat) / len(flat) if reduction == 1 else sum(flat)


def huber(x: Array, y: Array) -> Array:
    d = abs(x - y)
    return choose(d < 0.7, 0.5 * d * d, 0.7 * (d - 0.35))


def smooth(x: Array, y: Array) -> Array:
    d = abs(x - y)
    return choose(d < 0.7, 0.5 * d * d / 0.7, d - 0.35)


def _squares(x: Array, y: Array) -> Array:
    d = x - y
    return d * d


LOSSES: dict[str, tuple[Callable[..., Any], Callable[..., Any]]] = {
    "mse_loss": (aten.mse_loss, _squares),
    "smooth_l1_loss": (lambda x, y, r: aten.smooth_l1_loss(x, y, r, 0.7), smooth),
    "huber_loss": (lambda x, y, r: aten.huber_loss(x, y, r, 0.7), huber),
    "soft_margin_loss": (aten.soft_margin_loss, lambda x, y: log1p(exp(-(x * y)))),
    "binary_cross_entropy_with_logits": (
        lambda x, y, r: aten.binary_cross_entropy_with_logits(x, y, None, None, r),
        lambda x, y: (1 - y) * x - (smaller(x, 0.0) - log1p(exp(-abs(x)))),
    ),
    "binary_cross_entropy": (
        lambda x, y, r: aten.binary_cross_entropy(unit(x), unit(y), None, r),
        lambda x, y: (unit(y) - 1) * log1p(-unit(x)) - unit(y) * log(unit(x)),
    ),
}


@pytest.mark.parametrize("reduction", [0, 1, 2])
@pytest.mark.parametrize("name", LOSSES)
def test_losses(name: str, reduction: int) -> None:
    function, each = LOSSES[name]
    x, y = double(3, 4), double(3, 4)
    assert_counts(
        lambda x, y: function(x, y, reduction), lambda x, y: reduced(each(x, y), reduction), x, y, op=name
    )


GRADIENTS: dict[str, tuple[Callable[..., Any], Callable[..., Any]]] = {
    "mse_loss_backward": (
        lambda g, x, y: aten.mse_loss_backward(g, x, y, 1),
        lambda g, x, y: 2 / 12 * (x - y) * g,
    ),
    "smooth_l1_loss_backward": (
        lambda g, x, y: aten.smooth_l1_loss_backward(g, x, y, 1, 0.7),
        lambda g, x, y: _bent(g, x, y, lambda k, d: k * d / 0.7, lambda k: k),
    ),
    "huber_loss_backward": (
        lambda g, x, y: aten.huber_loss_backward(g, x, y, 1, 0.7),
        lambda g, x, y: _bent(g, x, y, lambda k, d: k * d, lambda k: k * 0.7),
    ),
    "binary_cross_entropy_backward": (
        lambda g, x, y: aten.binary_cross_entropy_backward(g, unit(x), unit(y), None, 2),
        lambda g, x, y: g * (unit(x) - unit(y)) / ((1 - unit(x)) * unit(x)),
    ),
}


def _bent(g: Array, x: Array, y: Array, near: Any, far: Any) -> Array:
    d, k = x - y, 1 / 12 * g
    beyond = far(k)
    return choose(abs(d) < 0.7, near(k, d), choose(d < 0, -beyond, beyond))


@pytest.mark.parametrize("name", GRADIENTS)
def test_gradients_of_losses(name: str) -> None:
    function, reference = GRADIENTS[name]
    g = double(3, 4) if "binary" in name else double(1).expand(3, 4)
    args = g if "binary" in name else g[0, 0]
    trace = traced(function, args, x := double(3, 4), y := double(3, 4))
    with counting() as tally:
        made = reference(numbers(g), numbers(x), numbers(y))
    assert_values(trace.output, made)
    assert cost_of(trace, name).flops == flops(tally)


@pytest.mark.parametrize("reduction", [0, 1, 2])
@pytest.mark.parametrize("weighted", [True, False])
def test_the_loss_of_picked_classes(weighted: bool, reduction: int) -> None:
    x, w, target = double(5, 4), double(4, low=0.5, high=1), torch.tensor([0, 3, 1, 1, 2])

    def reference(x: Array) -> Any:
        weights = numbers(w)
        losses = [-(x[i, c] * weights[c]) if weighted else -x[i, c] for i, c in enumerate(target.tolist())]
        if reduction == 0:
            return array(losses, (5,))
        total, count = sum(losses), sum(weights[c] if weighted else Number(1) for c in target.tolist())
        return total / count if reduction == 1 else total

    assert_counts(
        lambda x: aten.nll_loss_forward(x, target, w if weighted else None, reduction, -100)[0],
        reference,
        x,
        op="nll_loss_forward",
    )


def test_cross_entropy_is_its_parts() -> None:
    x, target = double(5, 4), torch.tensor([0, 3, 1, 1, 2])
    with torch.inference_mode():
        one = traced(functional.cross_entropy, x, target)
    assert [node.name for node in one.graph.nodes] == ["cross_entropy_loss"]
    assert cost_of(one).flops == cost_of(traced(functional.cross_entropy, x, target)).flops


# Alignments


def log_sum(*parts: Any) -> Any:
    top = max(parts)
    top = Number(0) if float(top) == -math.inf else top
    return log(_added(parts, top)) + top


def _added(parts: Any, top: Any) -> Any:
    first, *rest = [exp(part - top) for part in parts]
    for each in rest:
        first = first + each
    return first


def alphas(logs: Array, labels: list[int]) -> list[list[Any]]:
    """Forward log probabilities of every prefix; between and around the labels there are blanks."""
    states = [0, *(each for label in labels for each in (label, 0))]
    nothing = Number(-math.inf)
    table = [[logs[0, states[s]] if s < 2 else nothing for s in range(len(states))]]
    for step in logs[1:]:
        row, last = [], table[-1]
        for s, state in enumerate(states):
            skips = s > 1 and state != states[s - 2]
            before = (last[s], last[s - 1] if s else nothing, last[s - 2] if skips else nothing)
            row.append(log_sum(*before) + step[state])
        table.append(row)
    return table


def test_alignments() -> None:
    logs, target = torch.log_softmax(double(6, 1, 4), -1), [1, 3, 3]
    trace = traced(lambda x: aten._ctc_loss(x, torch.tensor([target]), [6], [3])[0], logs)
    with counting() as tally:
        last = alphas(numbers(logs[:, 0]), target)[-1]
        made = -log_sum(last[-1], last[-2])
    assert_values(trace.output, array([made], (1,)))
    assert cost_of(trace, "_ctc_loss").flops == flops(tally)


def test_alignments_whose_lengths_are_tensors_count_as_full() -> None:
    logs = torch.log_softmax(double(6, 2, 4), -1).requires_grad_()
    target = torch.tensor([[1, 3, 3], [2, 1, 2]])

    def both(*lengths: Any) -> list[int]:
        def function(x: torch.Tensor) -> torch.Tensor:
            return aten._ctc_loss(x, target, *lengths)[0].sum()

        trace = tv.trace(function, logs, backward=True)
        found = trace.metrics["flops"]
        return [found[node.index] for node in trace.graph.nodes if "ctc" in node.op]

    listed = both([6, 6], [3, 3])
    assert len(listed) == 2
    assert both(torch.tensor([6, 6]), torch.tensor([3, 3])) == listed
    assert both(torch.tensor([6, 4]), torch.tensor([3, 2])) == listed


@pytest.mark.parametrize("reduction", [0, 1, 2])
def test_margins_of_several_labels(reduction: int) -> None:
    x, target = double(2, 4), torch.tensor([[3, 0, -1, 1], [1, -1, 0, 0]])
    labels = [[3, 0], [1]]

    def reference(x: Array) -> Any:
        losses = []
        for row, mine in zip(x, labels):
            total = Number(0)
            for y in range(4):
                for i in range(4):  # both are computed for all, and those that do not count are masked
                    term = larger(np.array([1 - row[y] + row[i]]), 0.0)[0]
                    total = total + (term if y in mine and i not in mine else Number(0))
            losses.append(total / 4)
        if reduction == 0:
            return array(losses, (2,))
        return sum(losses) / 2 if reduction == 1 else sum(losses)

    assert_counts(
        lambda x: aten.multilabel_margin_loss_forward(x, target, reduction)[0],
        reference,
        x,
        op="multilabel_margin_loss_forward",
    )


def test_the_gradient_of_margins_of_several_labels() -> None:
    x, target = double(2, 4), torch.tensor([[3, 0, -1, 1], [1, -1, 0, 0]])
    labels = [[3, 0], [1]]
    is_target = aten.multilabel_margin_loss_forward(x, target, 1)[1]

    def reference(g: Array, x: Array) -> Array:
        made = array((Number(0) for _ in range(8)), (2, 4))
        for row, mine, into in zip(x, labels, made):
            for y in range(4):
                for i in range(4):
                    above = 1 - row[y] + row[i] > 0
                    slope = 1 / 8 if above and y in mine and i not in mine else 0.0
                    into[y], into[i] = into[y] - slope, into[i] + slope
        return made * g

    assert_counts(
        lambda g, x: aten.multilabel_margin_loss_backward(g, x, target, 1, is_target),
        reference,
        torch.tensor(3.0, dtype=torch.float64),
        x,
        op="multilabel_margin_loss_backward",
    )


def test_margins() -> None:
    x, target = double(3, 4), torch.tensor([0, 2, 3])

    def reference(x: Array) -> Any:
        losses = []
        for row, y in zip(x, target.tolist()):
            terms = [larger(np.array([1 - row[y] + row[i]]), 0.0)[0] for i in range(4) if i != y]
            losses.append(sum(terms) / 4)
        return sum(losses) / 3

    assert_counts(lambda x: aten.multi_margin_loss(x, target), reference, x, op="multi_margin_loss")
