"""Outputs that are no tensors are compared as well, and what could not be compared is never called the same."""

from __future__ import annotations

import enum
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

import torch_vis as tv
from torch_vis.analysis.compare.numeric.report import DifferencesReport

X = torch.randn(2, 8, generator=torch.Generator().manual_seed(0))


class Mark(enum.Enum):
    ONE = 1
    TWO = 2


def compared(one: Callable[[Tensor], Any], two: Callable[[Tensor], Any], x: Tensor = X) -> DifferencesReport:
    return tv.compare(tv.trace(one, x), tv.trace(two, x)).differences()


def beside(item: Any) -> Callable[[Tensor], Any]:
    return lambda x: {"n": item, "y": x.exp()}


def in_short(found: DifferencesReport) -> str:
    return found.facts()["in short"]


def test_a_number_that_differs_is_a_result_that_differs() -> None:
    found = compared(lambda x: x.exp().sum().item(), lambda x: x.exp().sum().item() * 2)
    assert not found.same and found.results["output"][1].relative == pytest.approx(1)
    assert in_short(found).startswith("results differ by at most 1 relative, in output")
    assert compared(lambda x: x.sum().item(), lambda x: x.sum().item()).same


def test_arrays_of_numpy_are_compared() -> None:
    def scaled(by: float) -> Callable[[Tensor], Any]:
        return lambda x: {"n": x.exp().numpy() * by, "y": x.exp()}

    found = compared(scaled(1), scaled(1.5))
    assert not found.same and found.results["output.n"][1].relative == pytest.approx(0.5)
    assert compared(scaled(1), scaled(1)).same
    assert compared(scaled(float("nan")), scaled(float("nan"))).same


@pytest.mark.parametrize(
    ("one", "two"),
    [
        (1, 2),
        (2**60, 2**60 + 1),
        (10**30, 10**30 + 1),
        (float("nan"), 1.0),
        ("a", "b"),
        (True, False),
        (None, 3),
        (Mark.ONE, Mark.TWO),
        (torch.float32, torch.float64),
        (np.float32(1), np.float32(2)),
        (np.array([1, 2]), np.array([1, 3])),
        ([1, "a"], [1, "b"]),
    ],
    ids=repr,
)
def test_what_is_something_else_is_named(one: Any, two: Any) -> None:
    found = compared(beside(one), beside(two))
    assert not found.same and "output.n" in in_short(found) and "rounding" not in in_short(found)
    assert not compared(beside(two), beside(one)).same
    same = compared(beside(one), beside(one))
    assert same.same and in_short(same).startswith("no difference")


def test_the_tolerance_counts_for_numbers() -> None:
    traces = [tv.trace(beside(number), X) for number in (1.0, 1.001)]
    found = tv.compare(*traces)
    assert [found.differences(tolerance=tolerance).same for tolerance in (0, 0.1)] == [False, True]


@pytest.mark.parametrize(
    ("one", "two", "reason"),
    [
        (object(), object(), "not comparable"),
        (np.zeros(2), np.zeros(3), "not comparable"),
        (np.array([None, [1]], dtype=object), np.array([None, [1]], dtype=object), "not comparable"),
        ({"a": 1}, {"a": 1, "b": 2}, "only in B"),
    ],
    ids=["object", "shape", "objects", "one alone"],
)
def test_what_cannot_be_compared_is_said(one: Any, two: Any, reason: str) -> None:
    found = compared(beside(one), beside(two))
    assert not found.same and "output.n" in in_short(found) and reason in in_short(found)


def test_an_output_that_is_not_held_is_not_called_the_same() -> None:
    one, two = (tv.trace(beside(number), X) for number in (1, 2))
    one.output = None
    found = tv.compare(one, two).differences()
    assert not found.same and "not compared: output (not held by A)" in in_short(found)


def test_nothing_in_the_place_of_nothing_is_no_difference() -> None:
    assert compared(lambda x: (x.exp(), None), lambda x: x.exp()).same


def test_objects_are_compared_by_what_they_hold() -> None:
    def normal(by: float) -> Callable[[Tensor], Any]:
        return lambda x: {"d": torch.distributions.Normal(x, x.exp() * by)}

    assert compared(normal(1), normal(1)).same
    found = compared(normal(1), normal(2))
    assert not found.same and found.results["output.d.scale"][1].relative == pytest.approx(1)
    assert not compared(normal(1), lambda x: {"d": torch.distributions.Cauchy(x, x.exp())}).same


def test_runs_that_give_nothing_back_are_said_to() -> None:
    def nothing(x: Tensor) -> None:
        x.exp()

    assert in_short(compared(nothing, nothing)).endswith("neither run gives anything back")
    with tv.record() as one:
        _kept = X.exp()
    with tv.record() as two:
        _also = X.exp()
    assert tv.compare(one, two).differences().same


def test_whole_numbers_are_compared_as_results() -> None:
    def most(x: Tensor) -> Tensor:
        return x.argmax(-1)

    found = compared(most, most)
    assert found.same and in_short(found).startswith("no difference")
    assert found.facts()["differ"] == "no operation has numbers to compare"
    assert not compared(most, lambda x: x.argmin(-1)).same


@pytest.mark.parametrize(("give", "x"), [(torch.exp, X[:0]), (Tensor.to_sparse, X)], ids=["empty", "sparse"])
def test_without_numbers_nothing_is_said_to_be_the_same(give: Callable[[Tensor], Tensor], x: Tensor) -> None:
    found = compared(give, give, x)
    assert not found.same and not found.any_compared
    assert in_short(found) == (
        "nothing could be compared: no operation has numbers to compare, and no result has"
    )


def test_an_empty_output_beside_others_does_not_differ() -> None:
    assert compared(lambda x: (x.exp(), x[:0]), lambda x: (x.exp(), x[:0])).same
    assert not compared(lambda x: (x.exp(), x[:0]), lambda x: (x.exp(), x[:1])).same


def test_rounding_in_a_tensor_that_only_an_object_holds_is_known() -> None:
    class Cache:
        def __init__(self, keys: torch.Tensor) -> None:
            self.keys = keys

    def run(order: int) -> tv.Trace:
        torch.manual_seed(0)
        x, w = torch.randn(8, 64), torch.randn(64, 64)

        def attend(x: torch.Tensor) -> tuple[torch.Tensor, Cache]:
            y = (x @ w) if order == 0 else x[:, :32] @ w[:32] + x[:, 32:] @ w[32:]
            return y @ w, Cache(y * 2)

        return tv.trace(attend, x)

    differences = tv.compare(run(0), run(1)).differences()
    assert differences.python_outputs.hidden == {"output.1.keys"}
    # it was infinitely many times: no sentence on these runs could speak of rounding
    assert 0 < differences.ulps("output.1.keys") < 3
