"""Outputs that are given back in another container are compared; where no output was, that is said first."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import torch_vis as tv

X = torch.randn(2, 8, generator=torch.Generator().manual_seed(0))


class Net(nn.Module):
    def __init__(self, give: Callable[[Tensor, Tensor], Any]) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.body, self.head, self.give = nn.Sequential(nn.Linear(8, 6), nn.ReLU()), nn.Linear(6, 4), give

    def forward(self, x: Tensor) -> Any:
        hidden = self.body(x)
        return self.give(self.head(hidden), hidden)


def compared(one: Callable[[Tensor, Tensor], Any], two: Callable[[Tensor, Tensor], Any]) -> tv.Comparison:
    return tv.compare(tv.trace(Net(one), X), tv.trace(Net(two), X))


def pairs(found: tv.Comparison) -> dict[str, str]:
    return {one.name: two.name for one, two in found.differences().matched.pairs}


def plain(y: Tensor, _: Tensor) -> Tensor:
    return y


def both(y: Tensor, hidden: Tensor) -> tuple[Tensor, Tensor]:
    return y, hidden


@pytest.mark.parametrize(
    ("give", "name"),
    [
        (lambda y, _: {"logits": y + 1}, "output.logits"),
        (lambda y, _: (y + 1,), "output.0"),
        (lambda y, _: {"rest": [y + 1]}, "output.rest.0"),
    ],
    ids=["dict", "tuple", "nested"],
)
def test_the_only_output_of_each_side_is_compared(give: Callable[[Tensor, Tensor], Any], name: str) -> None:
    one = compared(plain, give)
    # from B's side the operation that A lacks is one that was taken away
    for found, change in ((one, "added"), (tv.compare(one.b, one.a), "removed")):
        differences = found.differences()
        [(kind, gap)] = differences.results.values()
        assert kind == "output" and gap.largest == pytest.approx(1, rel=1e-5)
        assert differences.uncompared == {} and not differences.same
        in_short = differences.facts()["in short"]
        assert in_short.startswith(f"(root) add {change}") and "; results differ by" in in_short
    assert pairs(one) == {"output": name}
    assert one.changed_outputs == {"output": f"called {name} in B"}
    assert "add (only in B) instead of addmm in head" in one.differences().facts()["in short"]
    assert name in str(one.differences())


def test_what_is_the_same_but_for_its_container_is_said_to_be() -> None:
    found = compared(plain, lambda y, _: {"logits": y})
    assert found.differences().same and not found.same
    assert found.differences().facts()["in short"].startswith("no difference")


def test_several_are_matched_by_what_made_them() -> None:
    assert pairs(compared(both, lambda y, hidden: {"hidden": hidden, "logits": y})) == {
        "output.0": "output.logits",
        "output.1": "output.hidden",
    }
    assert pairs(compared(plain, both)) == {"output": "output.0"}
    assert pairs(compared(plain, lambda y, hidden: (hidden, {"logits": y}))) == {"output": "output.1.logits"}


def test_several_that_are_made_otherwise_are_matched_by_their_shapes() -> None:
    found = compared(both, lambda y, hidden: {"hidden": hidden * 2, "logits": y * 3})
    assert pairs(found) == {"output.0": "output.logits", "output.1": "output.hidden"}
    assert found.differences().results["output.0"][1].relative == pytest.approx(2)


def test_what_is_not_certain_is_not_matched() -> None:
    found = compared(plain, lambda y, _: (y * 2, y * 3)).differences()
    assert found.results == {} and not found.same
    assert found.facts()["in short"] == (
        "(root) mul, mul added; no output could be compared: output (only in A); output.0, output.1 (only in B); "
        "nothing else differs"
    )


def test_names_in_containers_of_one_kind_are_names() -> None:
    found = compared(lambda y, _: {"y": y, "a": y.exp()}, lambda y, _: {"y": y, "b": y.sin()})
    assert pairs(found) == {"output.y": "output.y"}
    assert found.changed_outputs == {"output.a": "only in A", "output.b": "only in B"}
    assert found.differences().facts()["in short"] == (
        "no difference in what could be compared; not compared: output.a (only in A); output.b (only in B); "
        "what changed: (root) exp → sin"
    )


def test_an_output_of_another_shape_is_not_called_the_same() -> None:
    found = compared(plain, lambda y, _: y.flatten()).differences()
    assert not found.same
    assert found.facts()["in short"] == (
        "(root) view added; no output could be compared: output (not comparable); nothing else differs"
    )
