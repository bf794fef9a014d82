"""What pruning says of units that are taken together, of batches with NaN or nothing in them, and of what failed."""

from __future__ import annotations

import copy
import math
from collections.abc import Callable

import pytest
import torch
from torch import nn

import torch_vis as tv
from tests.kit.heads import Kept
from tests.kit.labels import written
from torch_vis.analysis.advice.pruning.surgery import without
from torch_vis.analysis.advice.pruning.trial import OTHER
from torch_vis.errors import UsageError


class Two(nn.Module):
    """Two layers, and what is made of the units of both."""

    def __init__(self, joined: Callable[[torch.Tensor, torch.Tensor], torch.Tensor]) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.a, self.b, self.joined = nn.Linear(16, 32), nn.Linear(16, 32), joined

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.joined(self.a(x), self.b(x))


CHECKED = {
    "product": lambda a, b: a @ b.t(),
    "product of rectified": lambda a, b: a.relu() @ nn.functional.gelu(b).t(),
    "sum": lambda a, b: (a * b).sum(-1),
    "norm": lambda a, b: (a + b).norm(dim=-1),
}
UNCHECKED = {
    "product of gates": (lambda a, b: a.sigmoid() @ b.sigmoid().t(), "taken together by mm"),
    "mean": (lambda a, b: (a + b).mean(-1), "taken together by mean"),
    "softmax": (lambda a, b: (a.softmax(-1) * b).sum(-1), "normalised together"),
}


@pytest.mark.parametrize("name", CHECKED)
def test_units_that_count_for_nothing_at_zero_are_checked_by_their_weights(name: str) -> None:
    found = tv.advise.pruning(Two(CHECKED[name]), torch.randn(3, 16))
    (cut,) = found.groups
    assert not cut.problem and not cut.unchecked
    assert cut.error is not None and cut.error < 1e-5
    assert found.facts()["checked"].startswith("1 of 1 ")


class Running(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x.cumsum(-1)


def test_a_running_sum_is_checked() -> None:
    model = nn.Sequential(nn.Linear(16, 32), Running(), nn.Linear(32, 4))
    (cut,) = tv.advise.pruning(model, torch.randn(3, 16)).groups
    assert cut.error is not None and cut.error < 1e-5 and not cut.unchecked


@pytest.mark.parametrize("name", UNCHECKED)
def test_what_cannot_be_checked_is_not_put_on_a_norm_that_is_not_there(name: str) -> None:
    joined, why = UNCHECKED[name]
    (cut,) = tv.advise.pruning(Two(joined), torch.randn(3, 16)).groups
    assert not cut.problem and cut.error is None and why in cut.unchecked
    assert ("normalised" in cut.unchecked) == (name == "softmax")


def network() -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 2))


def test_nan_in_the_batch_is_named_and_left_out() -> None:
    model, x = network(), torch.randn(4, 8)
    spoilt = x.clone()
    spoilt[0, 0] = math.nan
    found = tv.advise.pruning(model, spoilt)
    assert found.left_out == {"input": 1, "the output": 2}
    assert "input (1), the output (2)" in found.facts()["warning"]
    clean = tv.advise.pruning(model, x[1:])
    assert found.output is not None and clean.output is not None
    assert found.output.relative == pytest.approx(clean.output.relative, rel=1e-5)
    assert found.groups[0].error is not None and found.groups[0].error < 1e-5
    assert "warning" not in clean.facts()


def test_nan_in_a_weight_is_named() -> None:
    model = network()
    with torch.no_grad():
        model[2].weight[0, 0] = math.nan
    found = tv.advise.pruning(model, torch.randn(4, 8))
    assert found.left_out == {"2.weight": 1, "the output": 4}
    assert math.isfinite(found.groups[0].share) and not found.groups[0].problem
    with torch.no_grad():
        model[0].weight[0, 0] = math.nan
    with pytest.raises(UsageError, match=r"all of the output is NaN .*starts with it, in 0.weight"):
        tv.advise.pruning(model, torch.randn(4, 8))


def test_nan_does_not_hide_a_wrong_cut() -> None:
    class Counted(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return x / x.shape[-1]

    model, x = nn.Sequential(nn.Linear(8, 16), Counted(), nn.Linear(16, 2)), torch.randn(4, 8)
    x[0, 0] = math.nan
    assert [cut.problem for cut in tv.advise.pruning(model, x).groups] == [OTHER]


def test_an_empty_batch_is_said_to_be_empty() -> None:
    with pytest.raises(UsageError, match="the batch is empty"):
        tv.advise.pruning(network(), torch.ones(0, 8))
    with pytest.raises(UsageError, match="the batch is empty"):
        tv.advise.batch_size(network(), torch.ones(0, 8), memory="1 MiB")
    with pytest.raises(UsageError, match="none of the inputs is a tensor with a dimension 0"):
        tv.advise.batch_size(network(), 3, memory="1 MiB")


def test_an_output_without_elements_is_not_blamed_on_the_batch() -> None:
    class Chosen(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return x[:0]

    found = tv.advise.pruning(nn.Sequential(*network(), Chosen()), torch.randn(4, 8))
    assert "no elements" in found.groups[0].unchecked


def test_what_does_not_run_is_told_from_what_gives_something_else() -> None:
    class Sized(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return x.reshape(-1, 12)

    class Counted(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return x / x.shape[-1]

    torch.manual_seed(0)
    parts = [
        nn.Linear(8, 12),
        Sized(),
        nn.Linear(12, 9),
        Counted(),
        nn.Linear(9, 6),
        nn.ReLU(),
        nn.Linear(6, 2),
    ]
    found = tv.advise.pruning(nn.Sequential(*parts), torch.randn(5, 8))
    told = found.facts()["groups"]
    assert told.startswith("1 can be cut, 2 cannot: 1 does not run, 1 gives something else")


def test_several_outputs_are_said_to_be_taken_together() -> None:
    class Both(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.body, self.one, self.two = nn.Linear(8, 12), nn.Linear(12, 2), nn.Linear(12, 3)

        def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
            x = self.body(x).relu()
            return self.one(x), self.two(x)

    notes = tv.advise.pruning(Both(), torch.randn(3, 8)).notes()
    assert any("all of its 2 tensors in one norm" in note for note in notes)
    assert not any("in one norm" in note for note in tv.advise.pruning(network(), torch.ones(1, 8)).notes())


@pytest.mark.parametrize("renderer", ["plotly", "matplotlib"])
def test_heads_that_cannot_be_cut_are_shown_as_such(renderer: str) -> None:
    class Normed(Kept):
        def __init__(self) -> None:
            super().__init__()
            self.to_out = nn.Sequential(nn.LayerNorm(32), self.to_out)

    model = nn.Sequential(Normed(), nn.Linear(24, 6), nn.Linear(6, 2))
    found = tv.advise.pruning(model, torch.randn(2, 5, 24))
    assert found.heads and all(head.problem and not head.cut for head in found.heads)
    chart = found.charts()["heads"]
    assert [series.name for series in chart.series] == ["cannot be cut"] and "none can be cut" in chart.title
    assert len(written(found.figure(renderer, chart="heads"), "y")) == 4
    free = tv.advise.pruning(nn.Sequential(Kept(), nn.Linear(24, 2)), torch.randn(2, 5, 24), ratio=0.5)
    assert [series.name for series in free.charts()["heads"].series] == ["cut", "stays"]


def test_copies_on_trial_have_recurrent_weights_of_their_own(monkeypatch: pytest.MonkeyPatch) -> None:
    """On a GPU these lie in one piece of memory, and torch warns of any that do not."""
    flat: list[nn.Module] = []

    def remember(self: nn.Module) -> None:
        flat.append(self)

    monkeypatch.setattr(nn.RNNBase, "flatten_parameters", remember)
    model = nn.Sequential(nn.Linear(4, 6), nn.LSTM(6, 5), nn.LSTM(5, 5))
    coupled = {"0.weight": [torch.tensor([1, 1, 1, 1, 0, 0]).bool().numpy(), torch.ones(4).bool().numpy()]}
    coupled["1.weight_ih_l0"] = [torch.ones(20).bool().numpy(), coupled["0.weight"][0]]
    before = copy.deepcopy(model.state_dict())
    smaller = without(model, coupled, share=True)
    assert smaller[1] in flat and smaller[1].weight_ih_l0.shape == (20, 4)
    own = {id(parameter) for parameter in model.parameters()}
    assert not own & {id(parameter) for parameter in smaller[1].parameters()}
    assert [*map(id, smaller[1]._flat_weights)] == [*map(id, smaller[1].parameters())]
    assert [*map(id, smaller[2].parameters())] == [*map(id, model[2].parameters())]  # nothing of it is gone
    assert all(torch.equal(before[name], tensor) for name, tensor in model.state_dict().items())


def test_a_default_device_does_not_matter_to_units_that_the_output_hides() -> None:
    model, x = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 4)), torch.randn(4, 8)
    nn.init.zeros_(model[2].weight)
    with torch.device("meta"):
        found = tv.advise.pruning(model, x)
    assert found.model[0].out_features < 16


class Classes(nn.Module):
    """Four classes, of which something is told by number or otherwise."""

    def __init__(self, told: Callable[[torch.Tensor], object]) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.a, self.b, self.told = nn.Linear(8, 16), nn.Linear(16, 4), told

    def forward(self, x: torch.Tensor) -> object:
        return self.told(self.b(self.a(x).relu()))


BY_NUMBER = {
    "argmax": lambda y: y.argmax(-1),
    "argmin of all": lambda y: y.argmin(),
    "looked up": lambda y: torch.arange(4.0)[y.argmax(-1)],
    "max": lambda y: y.max(-1),
    "number of min": lambda y: y.min(-1, keepdim=True).indices,
    "topk": lambda y: y.topk(2).indices,
    "sort": lambda y: y.sort().indices,
    "argsort": lambda y: y.argsort(),
}


@pytest.mark.parametrize("told", BY_NUMBER.values(), ids=BY_NUMBER)
def test_what_is_given_by_number_keeps_all_its_numbers(told: Callable[[torch.Tensor], object]) -> None:
    found = tv.advise.pruning(Classes(told), torch.randn(8, 8))
    assert found.model.b.out_features == 4 and found.model.a.out_features < 16
    assert any(("b.weight", 0) in group.places for group in found.locked)


def test_the_largest_without_its_number_may_be_of_fewer() -> None:
    found = tv.advise.pruning(Classes(lambda y: y.max(-1).values), torch.randn(8, 8))
    assert found.model.b.out_features == 3


def test_a_model_that_gives_nothing_is_not_told_that_it_gives_zeros() -> None:
    found = tv.advise.pruning(Classes(lambda y: None), torch.randn(8, 8))
    assert "has no tensor" in found.facts()["output"] and "zero" not in found.facts()["output"]
    assert any("the output has no tensor" in note for note in found.notes())
    empty = tv.advise.pruning(Classes(lambda y: y[:0]), torch.randn(8, 8))
    assert "output" not in empty.facts()
