"""Differences that are what rounding left of sums that cancel: named as that, and never at the head of a report."""

from __future__ import annotations

import copy

import pytest
import torch
from torch import Tensor, nn

import torch_vis as tv
from tests.zoo_models.compiled import HAS_COMPILER
from torch_vis.analysis.compare.numeric.report import DifferencesReport

X = torch.randn(4, 12, 16, generator=torch.Generator().manual_seed(0))


class Attention(nn.Module):
    """The gradient of the keys' bias is exactly zero: it moves all scores of a row by the same."""

    def __init__(self) -> None:
        super().__init__()
        self.query, self.key, self.value = (nn.Linear(16, 16) for _ in range(3))
        self.norm = nn.LayerNorm(16)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        heads = [part(x).unflatten(-1, (2, 8)).transpose(1, 2) for part in (self.query, self.key, self.value)]
        y = nn.functional.scaled_dot_product_attention(*heads).transpose(1, 2).flatten(2)
        return self.norm(y), torch.tanh(y[:, 0])


def attention() -> nn.Module:
    torch.manual_seed(0)
    return Attention()


def cast(net: nn.Module, dtype: torch.dtype, **options) -> DifferencesReport:
    other = copy.deepcopy(net).to(dtype)
    one = tv.trace(net, X, **(options or {"backward": True}))
    return tv.compare(one, tv.trace(other, X.to(dtype), **(options or {"backward": True}))).differences()


def zero_in_both(found: DifferencesReport) -> set[str]:
    return {name for name, (_, gap) in found.results.items() if gap.zero_in == "AB"}


@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16])
def test_the_sum_of_what_a_normalisation_made_is_no_difference(dtype: torch.dtype) -> None:
    found = cast(attention(), dtype)
    total = next(node for node in found.a.graph.nodes if node.name == "sum" and node.phase == "forward")
    assert found.distances.relative[total.index] > 0.1  # which says nothing
    assert total.index not in [row.a.index for row in found.rows]
    assert zero_in_both(found) == {"key.bias.grad"}
    assert found.facts()["in short"].startswith("no more than rounding")


def test_the_chart_leaves_out_what_is_only_rounding() -> None:
    found = cast(attention(), torch.bfloat16)
    shown = [height for part in found.figure().data for height in part.y]
    assert len(shown) == len(found.rows) and max(shown) < 1
    assert found.distances.relative[found.distances.rounding].max() > 1


@pytest.mark.skipif(not HAS_COMPILER, reason="no C++ compiler here for inductor")
def test_compiled_code_is_judged_by_what_the_other_run_was_computed_from() -> None:
    net = attention()
    one = tv.trace(net, X, backward=True)
    net.zero_grad()
    try:
        two = tv.trace(torch.compile(net), X, backward=True)
    finally:
        torch._dynamo.reset()
    for found in (tv.compare(one, two).differences(), tv.compare(two, one).differences()):
        assert {name.removeprefix("_orig_mod.") for name in zero_in_both(found)} == {"key.bias.grad"}
        assert found.facts()["in short"].startswith("no more than rounding")
        assert all(row.relative < 1e-3 for row in found.rows)
        assert "key.bias.grad" not in found.facts()["gradient"].partition(";")[0]


def test_what_is_made_of_nothing_but_remainders_is_no_more_than_them() -> None:
    """The sum of what a normalisation makes does not depend on what came in: no gradient before it is real."""
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(16, 32), nn.GELU(), nn.Linear(32, 16), nn.LayerNorm(16))
    found = cast(net, torch.float64)
    assert zero_in_both(found) == {f"{n}.{part}.grad" for n in (0, 2) for part in ("weight", "bias")}
    assert not [row for row in found.rows if row.a.phase == "backward" and row.relative > 1e-3]
    assert "zero but for rounding in both: 0.weight.grad, 0.bias.grad and 2 more" in found.facts()["gradient"]


def test_a_real_gradient_is_not_taken_for_a_remainder() -> None:
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(16, 32), nn.GELU(), nn.Linear(32, 16), nn.LayerNorm(16))
    found = cast(net, torch.float64, loss=lambda y: y.square().mul(torch.arange(16)).sum())
    assert zero_in_both(found) == set()


def test_a_remainder_that_is_added_to_something_is_no_difference_of_the_sum() -> None:
    def total(x: Tensor) -> Tensor:
        y = nn.functional.layer_norm(x, (16,))
        return y.sum() + x.square().mean() * 1e-4

    one, two = tv.trace(total, X), tv.trace(total, X.double())
    found = tv.compare(one, two).differences()
    names = [row.a.name for row in found.rows]
    assert "add" not in names and "sum" not in names and "mean" in names


def test_what_is_zero_in_one_run_alone_is_measured_by_what_it_is_the_sum_of() -> None:
    torch.manual_seed(0)
    one = nn.Sequential(nn.Linear(16, 16), nn.BatchNorm1d(16), nn.Tanh())
    two = copy.deepcopy(one)
    two[1].eval()
    found = tv.compare(*(tv.trace(net, X[:, 0], backward=True) for net in (one, two))).differences()
    gap = found.results["0.bias.grad"][1]
    assert gap.zero_in == "A" and 0.1 < gap.relative < 10
    back = tv.compare(found.b, found.a).differences().results["0.bias.grad"][1]
    assert back.zero_in == "B" and not back.rounding
    assert "zero but for rounding in A alone: 0.bias.grad" in found.facts()["gradient"]


def test_a_sum_in_double_precision_has_more_digits() -> None:
    x = torch.randn(1000, dtype=torch.float64)

    def total(x: Tensor, more: float) -> Tensor:
        return (torch.cat([x, -x]) + more).sum()

    found = tv.compare(tv.trace(total, x, 1e-10), tv.trace(total, x, 2e-10)).differences()
    assert found.results["output"][1].relative == pytest.approx(1, rel=1e-2)
    assert not found.results["output"][1].rounding


def test_scores_that_all_have_one_gradient_give_queries_and_keys_none() -> None:
    """Where all values are the same, attention gives them whatever the scores are."""

    class Alike(Attention):
        def forward(self, x: Tensor) -> Tensor:  # type: ignore[override]
            heads = [part(x).unflatten(-1, (2, 8)).transpose(1, 2) for part in (self.query, self.key)]
            value = self.value(x[:, :1]).expand(-1, x.shape[1], -1).unflatten(-1, (2, 8)).transpose(1, 2)
            return nn.functional.scaled_dot_product_attention(*heads, value.contiguous())

    torch.manual_seed(0)
    found = cast(Alike(), torch.float64, loss=lambda y: y.square().sum())
    assert {"query.weight.grad", "key.weight.grad", "query.bias.grad"} <= zero_in_both(found)
    assert "value.weight.grad" not in zero_in_both(found)
    assert all(row.relative < 1e-3 for row in found.rows)


def test_a_step_by_a_gradient_that_is_only_rounding_does_not_head_the_report() -> None:
    """Adam makes a whole step of whatever a gradient is, and so of what rounding left of it."""

    def stepped(net: nn.Module, x: Tensor) -> tv.Trace:
        optimizer = torch.optim.Adam(net.parameters(), lr=1e-3)

        def step() -> None:
            made, first = net(x)
            (made.square().mean() + first.sum()).backward()
            optimizer.step()

        return tv.trace(step)

    net = attention()
    other = copy.deepcopy(net).double()
    found = tv.compare(stepped(net, X), stepped(other, X.double())).differences()
    assert found.results["key.bias"][1].relative > 1e-4 and "key.bias" in found.rounding_only
    assert found.facts()["in short"].startswith("no more than rounding")
    assert found.facts()["state"].endswith("led by a gradient that is zero but for rounding: key.bias")


@pytest.mark.parametrize(
    "option", [{"eps": 1e-6}, {"weight_decay": 0.1}, {"lr": 1.1e-3}, {"betas": (0.9, 0.99)}]
)
def test_moments_of_small_gradients_are_no_rounding(option: dict[str, object]) -> None:
    def step(**options) -> tv.Trace:
        torch.manual_seed(0)
        net = nn.Sequential(nn.Linear(16, 32), nn.LayerNorm(32), nn.GELU(), nn.Linear(32, 4))
        adam = torch.optim.AdamW(net.parameters(), **options)

        def run() -> None:
            for _ in range(2):
                adam.zero_grad()
                (1e-2 * net(X)).pow(2).mean().backward()
                adam.step()

        return tv.trace(run)

    found = tv.compare(step(), step(**option)).differences()
    ((name, _),) = option.items()
    moments = [n for n in found.a.graph.nodes if n.name == "addcmul_"]
    assert moments and not found.distances.rounding[[node.index for node in moments]].any()
    assert found.in_short().startswith(f"AdamW {name} ") and found.rows


def test_what_a_number_less_a_tensor_near_it_is_follows_from_the_tensor() -> None:
    kept = torch.linspace(0.98, 1.0, 10)
    found = tv.compare(*(tv.trace(lambda part: (1 - part).sqrt() * 3, kept**n) for n in (1, 3))).differences()
    # 1 - 0.99 and 1 - 0.97 are far apart, and where they came from are not
    assert found.first is not None and found.first.a.name == "rsub" and found.first.relative > 1
    assert found.origins == [] and found.in_short().startswith("the runs start from different inputs")


def test_zero_that_a_number_less_a_tensor_gives_is_exact() -> None:
    one, two = torch.tensor([1.0, 1.0, 1.0]), torch.tensor([1.0, 1.0, 0.0])
    found = tv.compare(*(tv.trace(lambda mask: (1 - mask) * -1e9, mask) for mask in (one, two))).differences()
    assert not found.same and len(found.rows) == 2
