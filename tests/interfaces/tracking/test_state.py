"""A tracked batch changes nothing: no weight, gradient, buffer, attribute or random stream."""

from __future__ import annotations

import copy
import random
from collections import Counter, deque
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from tests.kit.side_effects import lasting_globals, module_state, random_states
from tests.zoo import first_difference
from torch_vis import track_computational_graph_execution
from torch_vis.capture import state as capture_state

WAYS = ["operations", "calls, all copied", "calls, writes watched"]


@pytest.fixture(params=WAYS)
def track(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[..., Any]]:
    """The tracking of one run, in each of the ways in which it can know what to put back."""
    if request.param == "calls, writes watched":
        monkeypatch.setattr(capture_state, "COPIED", -1)
    operations = request.param == "operations"
    before = lasting_globals()

    def run(model: Any, given: Any) -> Any:
        tracker = track_computational_graph_execution(model, given, track_tensor_ops=operations)
        assert not [limit for limit in tracker.trace.limits if "could not be put back" in limit]
        return tracker

    yield run
    assert lasting_globals() == before


def train(optimizer_class: Any, track: Callable[..., Any] | None, **options: Any) -> list[Any]:
    """The documented loop: the first batch of each epoch is tracked, or is not."""
    torch.manual_seed(3)
    model = nn.Sequential(nn.Linear(4, 8), nn.BatchNorm1d(8), nn.Dropout(0.3), nn.ReLU(), nn.Linear(8, 1))
    optimizer = optimizer_class(model.parameters(), lr=0.05, **options)
    criterion = nn.MSELoss()
    dataloader = [(torch.rand(6, 4), torch.rand(6, 1)) for _ in range(3)]
    counts, losses = [], []
    for _ in range(3):
        for batch_idx, (data, target) in enumerate(dataloader):
            if batch_idx == 0 and track is not None:
                counts.append(track(model, data).get_graph_summary()["total_nodes"])
            optimizer.zero_grad()
            output = model(data)
            loss = criterion(output, target)
            loss.backward()
            optimizer.step()
            losses.append(loss.detach())
    assert track is None or len(set(counts)) == 1
    gradients = [parameter.grad for parameter in model.parameters()]
    moments = [item for state in optimizer.state.values() for item in state.values()]
    return [losses, module_state(model), gradients, moments, random_states()]


@pytest.mark.parametrize(
    ("optimizer", "options"),
    [(torch.optim.SGD, {"momentum": 0.9}), (torch.optim.AdamW, {}), (torch.optim.AdamW, {"foreach": True})],
)
def test_the_training_loop_is_the_same_bit_for_bit(
    track: Callable[..., Any], optimizer: Any, options: dict[str, Any]
) -> None:
    assert first_difference(train(optimizer, None, **options), train(optimizer, track, **options)) is None


def test_gradients_that_were_there_stay_the_very_same(track: Callable[..., Any]) -> None:
    model, x = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 2)), torch.rand(3, 4, requires_grad=True)
    model(x).sum().backward()
    model[1].weight.grad = None
    before = [(p.grad, None if p.grad is None else p.grad.clone()) for p in (*model.parameters(), x)]
    track(model, x)
    for parameter, (gradient, values) in zip((*model.parameters(), x), before, strict=True):
        assert parameter.grad is gradient
        assert first_difference(gradient, values) is None


def test_a_graph_of_the_programs_own_is_not_run_through(track: Callable[..., Any]) -> None:
    encoder, head = nn.Linear(4, 4), nn.Linear(4, 2)
    encoded = torch.tanh(encoder(torch.rand(3, 4)))
    tracker = track(head, encoded)
    assert tracker.get_graph_summary()["backward"]
    assert encoder.weight.grad is None
    head(encoded).sum().backward()  # its graph is whole
    assert encoder.weight.grad is not None


def test_a_leaf_that_the_model_only_closes_over_gets_no_gradient(track: Callable[..., Any]) -> None:
    weight = torch.rand(4, 2, requires_grad=True)
    track(lambda x: x @ weight, torch.rand(3, 4))
    assert weight.grad is None

    class Hidden(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.weights = [nn.Parameter(torch.rand(4, 2))]

        def forward(self, x: Tensor) -> Tensor:
            return x @ self.weights[0]

    model = Hidden()
    track(model, torch.rand(3, 4))
    assert model.weights[0].grad is None


class Busy(nn.Module):
    """Changes everything that a forward pass can change of itself."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.rand(4, 4))
        self.register_buffer("count", torch.zeros(()))
        self.register_buffer("mean", torch.zeros(4))
        self.register_buffer("grown", torch.zeros(2))
        self.plain = torch.zeros(3)
        self.calls = 0
        self.history: list[Any] = []
        self.recent: deque[int] = deque([7], maxlen=1)
        self.seen = Counter({"x": 1})
        self.tags = {"a"}
        self.cache = {"first": torch.ones(1)}
        self.generator = torch.Generator().manual_seed(5)

    def forward(self, x: Tensor) -> Tensor:
        self.calls += 1
        self.count = self.count + 1  # another tensor under the same name
        self.mean.mul_(0.9).add_(x.detach().mean(0))
        self.grown.resize_(5).fill_(1)
        self.plain.add_(1)
        self.history.append(x)
        self.recent.append(1)
        self.seen["x"] += 5
        self.tags.add("b")
        self.cache["first"].add_(1)
        self.cache["second"] = x
        self.new = 3
        with torch.no_grad():
            self.weight.mul_(1.5)
            self.weight.data.clamp_(max=1.0)
        self.weight.data = self.weight.data + 1
        x = x * torch.rand(4) * torch.rand(4, generator=self.generator)
        x = x * random.random() * float(np.random.rand())
        self.train(not self.training)
        return x @ self.weight


def everything(model: Busy) -> list[Any]:
    plain = [
        model.calls,
        list(model.recent),
        dict(model.seen),
        set(model.tags),
        list(model.cache),
        model.plain,
    ]
    places = [model.weight.data_ptr(), model.mean.data_ptr(), id(model.count), model.weight._version]
    return [module_state(model), plain, places, list(model.cache.values()), model.generator.get_state()]


def test_what_a_model_changes_of_itself_is_put_back(track: Callable[..., Any]) -> None:
    model, x = Busy(), torch.rand(3, 4)
    before = copy.deepcopy([*everything(model)[:2], *everything(model)[3:], random_states(), x])
    places = everything(model)[2]
    track(model, x)
    after = [*everything(model)[:2], *everything(model)[3:], random_states(), x]
    assert first_difference(before, after) is None
    assert everything(model)[2] == places
    assert model.history == [] and not hasattr(model, "new")


def test_an_input_that_the_model_writes_to_is_put_back(track: Callable[..., Any]) -> None:
    class Writes(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            return x.mul_(2).add_(1)

    x = torch.arange(4.0)
    track(Writes(), x)
    assert x.tolist() == [0, 1, 2, 3] and x._version == 0


def test_a_graph_that_saved_a_changed_buffer_can_still_be_run_backward(track: Callable[..., Any]) -> None:
    class Scales(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.register_buffer("scale", torch.ones(4))

        def forward(self, x: Tensor) -> Tensor:
            y = x * self.scale.clone()
            self.scale.mul_(2)
            return y

    model, x = Scales(), torch.rand(4, requires_grad=True)
    pending = (x * model.scale).sum()
    track(model, x)
    pending.backward()
    assert x.grad is not None and x.grad.tolist() == [1, 1, 1, 1]


def test_a_lazy_module_stays_lazy(track: Callable[..., Any]) -> None:
    def build() -> nn.Module:
        torch.manual_seed(1)
        return nn.Sequential(nn.LazyLinear(8), nn.LazyBatchNorm1d(), nn.Dropout())

    x = torch.rand(3, 4)
    untracked = build()
    expected = untracked(x)
    model = build()
    shown = repr(model)
    track(model, x)
    assert repr(model) == shown and "LazyLinear" in shown
    assert first_difference(expected, model(x)) is None, "the weights are drawn when they would have been"


def test_what_steps_inside_of_backward_does_not_step(track: Callable[..., Any]) -> None:
    model = nn.Linear(4, 2)
    optimizers = {p: torch.optim.Adam([p]) for p in model.parameters()}
    for parameter in model.parameters():
        parameter.register_post_accumulate_grad_hook(lambda p: optimizers[p].step())
    before = [parameter.detach().clone() for parameter in model.parameters()]
    track(model, torch.rand(3, 4))
    assert first_difference(before, [p.detach() for p in model.parameters()]) is None
    assert not any(optimizer.state for optimizer in optimizers.values())
    model(torch.rand(3, 4)).sum().backward()
    assert all(optimizer.state for optimizer in optimizers.values()), "the hooks are back"


class Fails(nn.Module):
    def __init__(self, where: str) -> None:
        super().__init__()
        self.norm, self.linear, self.where = nn.BatchNorm1d(4), nn.Linear(4, 2), where
        self.calls = 0

    def forward(self, x: Tensor) -> Tensor:
        self.calls += 1
        x = self.norm(x) * torch.rand(4)
        if self.where == "forward":
            raise LookupError("half-way")
        y = self.linear(x)
        if self.where == "backward":
            y.register_hook(lambda _: 1 / 0)
        return y


@pytest.mark.parametrize(("where", "error"), [("forward", LookupError), ("backward", ZeroDivisionError)])
def test_a_run_that_raises_leaves_nothing_behind_either(
    track: Callable[..., Any], where: str, error: type[Exception]
) -> None:
    model, x = Fails(where), torch.rand(3, 4, requires_grad=True)
    gradient = model.linear.weight.grad = torch.ones(2, 4)
    before = copy.deepcopy([module_state(model), random_states()])
    with pytest.raises(error):
        track(model, x)
    assert first_difference(before, [module_state(model), random_states()]) is None
    assert x.grad is None
    assert model.linear.weight.grad is gradient and gradient.tolist() == [[1] * 4] * 2
    assert model.linear.bias.grad is None and model.calls == 0


def test_random_numbers_go_on_as_before(track: Callable[..., Any]) -> None:
    model, x = nn.Dropout(), torch.rand(8)
    before = random_states()
    track(model, x)
    assert first_difference(before, random_states()) is None


def test_large_models_are_watched_and_not_copied() -> None:
    """Beyond the limit no copy of the weights is made."""
    model = nn.Linear(64, 64)
    made = []

    class Spy(capture_state.WriteGuard):
        def __init__(self, storages: Any) -> None:
            super().__init__(storages)
            made.append(self)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(capture_state, "COPIED", 64 * 64 * 4)
        patch.setattr(capture_state, "WriteGuard", Spy)
        track_computational_graph_execution(model, torch.rand(2, 64), track_tensor_ops=False)
    assert len(made) == 1 and made[0].recorder.kept.originals == {}
