"""The one snapshot that leaves a model as it was: everything that a run may change comes back."""

from __future__ import annotations

import copy
import gc
import random
from collections import Counter, OrderedDict, deque
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

import torch_vis as tv
from tests.kit.side_effects import random_states
from tests.zoo import first_difference
from torch_vis.capture import state as capture_state
from torch_vis.capture.state import RngStates, StateSnapshot, modes_kept, older_objects_aside


class Model(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(3, 4)
        self.norm = nn.BatchNorm1d(4)
        self.lazy = nn.LazyLinear(2)
        self.register_buffer("cache", torch.zeros(4), persistent=False)
        self.generator = torch.Generator().manual_seed(1)
        self.history: list[int] = []
        self.recent: deque[int] = deque([1], maxlen=3)
        self.counts = Counter(a=2)
        self.named = {"inner": {"step": 1}}

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.norm(self.linear(x))


# What a run may do to a model, by name.
CHANGES: dict[str, Callable[[Model], Any]] = {
    "parameter written": lambda model: model.linear.weight.detach().add_(1),
    "parameter replaced": lambda model: setattr(model.linear, "weight", nn.Parameter(torch.ones(4, 3))),
    "parameter given other memory": lambda model: setattr(model.linear.weight, "data", torch.ones(7)),
    "buffer written": lambda model: model(torch.randn(5, 3)),
    "buffer that is not saved": lambda model: model.cache.add_(1),
    "buffer replaced": lambda model: setattr(model, "cache", torch.ones(9)),
    "buffer resized": lambda model: model.cache.resize_(64).fill_(3),
    "buffer added": lambda model: model.register_buffer("more", torch.ones(1)),
    "gradient": lambda model: model(torch.randn(5, 3)).sum().backward(),
    "frozen": lambda model: model.linear.requires_grad_(False),
    "evaluating": lambda model: model.eval(),
    "hook": lambda model: model.linear.register_forward_hook(lambda *_: None),
    "lazy module called": lambda model: model.lazy(torch.ones(1, 5)),
    "module removed": lambda model: delattr(model, "norm"),
    "list": lambda model: model.history.append(1),
    "deque": lambda model: model.recent.extend([2, 3, 4]),
    "counter": lambda model: model.counts.update("ab"),
    "dictionary in a dictionary": lambda model: model.named["inner"].update(step=2),
    "own generator": lambda model: torch.rand(3, generator=model.generator),
    "random numbers": lambda model: (torch.rand(1), random.random(), np.random.rand()),
}


def plain_part(item: Any) -> Any:
    """An attribute as plain data: what is in a container, and the identity of anything else."""
    if isinstance(item, (dict, Counter, OrderedDict)):
        return [(key, id(part)) for key, part in item.items()]
    return [id(part) for part in item] if isinstance(item, (list, deque)) else id(item)


def observed(model: Model) -> dict[str, Any]:
    """All that a user could notice of a model, tensors by identity and contents."""
    tensors = [*model.named_parameters(), *model.named_buffers()]
    plain = [(name, t) for name, t in tensors if not isinstance(t, nn.UninitializedParameter)]
    return {
        "classes": [type(part) for part in model.modules()],
        "kinds": [(name, type(t), id(t), t.requires_grad, t.grad) for name, t in tensors],
        "contents": [(name, t.detach().clone(), t.shape, t.stride()) for name, t in plain],
        "versions": [(name, t._version) for name, t in plain],
        "attributes": [{name: plain_part(item) for name, item in vars(p).items()} for p in model.modules()],
        "inner": copy.deepcopy(model.named),
        "training": [part.training for part in model.modules()],
        "generator": model.generator.get_state(),
        "random": random_states(),
    }


@pytest.mark.parametrize("watched", [False, True], ids=["copied", "watched"])
@pytest.mark.parametrize("change", CHANGES)
def test_whatever_a_run_changes_of_a_model_comes_back(
    change: str, watched: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    if watched:
        monkeypatch.setattr(capture_state, "COPIED", -1)
    model = Model()
    before = observed(model)
    with StateSnapshot.of_model(model) as state:
        CHANGES[change](model)
        assert first_difference(before, observed(model)), "the change is one that can be seen"
    assert not first_difference(before, observed(model))
    assert state.lost == []


def test_it_comes_back_after_an_exception_and_as_often_as_wanted() -> None:
    model = Model()
    before = observed(model)
    state = StateSnapshot.of_model(model)
    for _ in range(2):
        with pytest.raises(ZeroDivisionError), state:
            for change in ("buffer written", "evaluating", "list", "random numbers"):
                CHANGES[change](model)
            raise ZeroDivisionError
        assert not first_difference(before, observed(model))


def test_buffers_alone_are_copied_where_that_is_asked_for() -> None:
    model = Model()
    with StateSnapshot.of_model(model, contents="buffers") as state:
        CHANGES["buffer written"](model)
        CHANGES["parameter written"](model)
    assert int(model.norm.num_batches_tracked) == 0
    assert state.lost == ["weight of Linear"], "what could not be brought back is said"


def test_gradients_set_aside_are_neither_added_to_nor_stepped_on() -> None:
    model, steps = nn.Linear(2, 1), []
    gradient = model.weight.grad = torch.ones(1, 2)
    model.weight.register_post_accumulate_grad_hook(steps.append)
    with StateSnapshot.of_model(model) as state:
        state.set_gradients_aside()
        model(torch.ones(1, 2)).sum().backward()
        assert model.weight.grad is not gradient
    assert model.weight.grad is gradient and torch.equal(gradient, torch.ones(1, 2)) and steps == []
    model(torch.ones(1, 2)).sum().backward()
    assert len(steps) == 1, "the hook is back"


def test_everything_includes_optimizers_schedulers_and_tensors_of_no_module() -> None:
    model, loose = nn.Linear(2, 1), torch.ones(3)
    version = model.weight._version
    optimizer = torch.optim.Adam(model.parameters())
    schedule = torch.optim.lr_scheduler.StepLR(optimizer, 1)
    with StateSnapshot.of_everything():
        loose.requires_grad_()
        (model(torch.ones(1, 2)).sum() + loose.sum()).backward()
        optimizer.step()
        schedule.step()
    assert not optimizer.state and schedule.last_epoch == 0 and optimizer.param_groups[0]["lr"] == 1e-3
    assert model.weight.grad is None and model.weight._version == version
    assert not loose.requires_grad and loose.grad is None


def test_objects_set_aside_from_the_collector_are_brought_back_all_the_same() -> None:
    gc.unfreeze()  # what was there before this file
    model, loose = nn.Linear(2, 1), torch.ones(3)
    with pytest.raises(ZeroDivisionError), older_objects_aside():
        assert gc.get_freeze_count() > 1000
        later = nn.Linear(2, 1)
        with older_objects_aside(), StateSnapshot.of_everything() as state:
            assert {id(model), id(later)} <= {id(owner) for owner in state.owners}
            loose.requires_grad_()
            model.eval()
            later.eval()
        assert model.training and later.training and not loose.requires_grad
        assert gc.get_freeze_count() > 1000, "the outer one needs them aside"
        _ = 1 / 0
    assert gc.get_freeze_count() == 0


def test_objects_that_a_program_has_set_aside_itself_stay_there() -> None:
    gc.freeze()
    try:
        before = gc.get_freeze_count()
        with older_objects_aside():
            pass
        assert gc.get_freeze_count() == before
    finally:
        gc.unfreeze()


def test_modes_and_random_numbers_by_themselves() -> None:
    model, states = nn.Sequential(nn.Dropout(), nn.Dropout().eval()), random_states()
    with RngStates(), modes_kept(model):
        model.eval()
        CHANGES["random numbers"](Model())
    assert [part.training for part in model.modules()] == [True, True, False]
    assert not first_difference(states, random_states())


def test_a_view_of_which_autograd_tells_nothing_is_traced() -> None:
    """It was made without gradients, and its memory is written with them, as local parts of DTensors are."""
    weight, memory = nn.Parameter(torch.ones(4)), torch.zeros(4)
    with torch.no_grad():
        view = memory.view(2, 2)

    def program() -> torch.Tensor:
        with torch.no_grad():
            total = view.sum()
        memory.add_(weight * 2)
        return memory.sum() + total

    t = tv.trace(program)
    t.check()
    with pytest.raises(RuntimeError):
        _ = view.is_leaf
