"""Methods of modules other than forward, and closures inside an optimizer's step: what is whose, and which phase."""

from __future__ import annotations

import contextlib
from collections import Counter
from collections.abc import Callable
from typing import Any

import pytest
import torch

import torch_vis as tv

X = torch.ones(5, 4)


class Lit(torch.nn.Module):
    """A model that is trained by its own method and never called itself."""

    def __init__(self) -> None:
        super().__init__()
        self.net = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.ReLU())
        self.head = torch.nn.Linear(8, 1)

    def shared_step(self, x: torch.Tensor) -> torch.Tensor:
        """Called from the method that is called."""
        out: torch.Tensor = self.head(self.net(x))
        return out

    def training_step(self, x: torch.Tensor) -> torch.Tensor:
        """The loss."""
        return self.shared_step(x).square().mean()

    def fit(self, optimizer: Any, around: Callable[[], Any]) -> None:
        """A loop in the model itself, in which a recording begins."""
        with around():
            optimizer.zero_grad()
            self.head(self.net(X)).mean().backward()
            optimizer.step()


def scopes(trace: tv.Trace) -> list[tuple[str, str]]:
    return [
        (trace.graph.scopes[scope.parent.index].type if scope.parent else "", scope.path or scope.type)
        for scope in list(trace.graph.scopes)[1:]
    ]


def phases(trace: tv.Trace, **which: Any) -> Counter[str]:
    return Counter(node.phase for node in trace.graph.find(**which))


INSIDE = [
    ("run", "Lit"), ("Lit", "net"), ("Sequential", "net.0"), ("Sequential", "net.1"), ("Lit", "head"),
]  # fmt: skip


@pytest.mark.parametrize("given", [True, False], ids=["traced", "recorded"])
def test_a_method_is_a_call_of_its_module(given: bool) -> None:
    model = Lit()
    if given:
        trace = tv.trace(model.training_step, X)
    else:
        with tv.record() as trace:
            model.training_step(X).backward()
    assert scopes(trace) == INSIDE
    assert trace.meta["model"] == "Lit"
    names = {value.name for value in trace.graph.values if value.role == "parameter"}
    assert {"net.0.weight", "head.bias"} <= names
    assert [node.scope.type for node in trace.graph.find(op="mean", phase="forward")] == ["Lit"]
    trace.check()


def test_two_of_a_class_are_told_apart() -> None:
    one, two = Lit(), Lit()
    with tv.record() as trace:
        one.training_step(X)
        two.training_step(X)
    assert [path for above, path in scopes(trace) if above == "run"] == ["lit", "lit_1"]
    assert ("Lit", "lit_1.net") in scopes(trace)


def test_a_loop_around_the_recording_gives_names_and_no_scope() -> None:
    model = Lit()
    trace = tv.record()
    model.fit(torch.optim.SGD(model.parameters(), lr=0.1), lambda: trace)
    assert [path for above, path in scopes(trace) if above == "run"] == ["net", "head", "SGD"]
    assert trace.meta["model"] == "Lit"


def test_nothing_of_a_method_is_kept_alive() -> None:
    """What a method lets go of is gone, although its frame was looked at."""
    gone: list[bool] = []

    class Freeing(Lit):
        def training_step(self, x: torch.Tensor) -> torch.Tensor:
            import weakref

            big = torch.ones(3)
            known = weakref.ref(big)
            y = self.net(x)
            del big
            gone.append(known() is None)
            return torch.as_tensor(y).mean()

    with tv.record():
        Freeing().training_step(X)
    assert gone == [True]


@pytest.mark.parametrize("maker", [torch.optim.LBFGS, torch.optim.SGD, torch.optim.AdamW])
def test_a_closure_is_forward_and_backward(maker: Any) -> None:
    model = Lit()
    optimizer = maker(model.parameters(), lr=0.1)

    def closure() -> torch.Tensor:
        optimizer.zero_grad()
        loss = model.training_step(X)
        loss.backward()
        return loss

    with tv.record() as trace:
        optimizer.step(closure)
    assert set(phases(trace, op="addmm")) == set(phases(trace, op="relu")) == {"forward"}
    assert set(phases(trace, op="mean")) == {"forward"}  # of the loss, which no module computes
    found = phases(trace)
    assert found["forward"] and found["backward"] and found["optimizer"]
    assert {above for above, path in scopes(trace) if path == "Lit"} == {"run"}
    times, name = trace.metrics["scope_time_ns"], maker.__name__
    rows = {scope.type: times[scope.index] for scope in trace.graph.scopes if scope.type in (name, "run")}
    inside = sum(times[scope.index] for scope in trace.graph.scopes if scope.type == "Lit")
    assert rows[name] + inside <= rows["run"]
    trace.check()


def test_an_optimizer_that_records_gradients_keeps_its_own_operations() -> None:
    weight = torch.ones(3, requires_grad=True)
    optimizer = torch.optim.SGD([weight.clone()], lr=0.1, differentiable=True)
    optimizer.param_groups[0]["params"][0].grad = torch.ones(3)
    with tv.record() as trace:
        optimizer.step()
    assert set(phases(trace)) == {"optimizer"}


def test_a_run_that_raised_gave_what_its_modules_gave() -> None:
    """A workspace that autograd keeps for a backward that never came is no output."""

    class Reading(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.lstm = torch.nn.LSTM(4, 8, batch_first=True)
            self.head = torch.nn.Linear(8, 2)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            out: torch.Tensor = self.head(self.lstm(x)[0][:, -1])
            return out

    model = Reading()
    trace = tv.record()

    def step() -> None:
        with trace:
            loss = model(torch.ones(3, 6, 4)).sum()
            raise ValueError(loss)

    with pytest.raises(ValueError):
        step()
    table = trace.table(width=160)
    assert "u8[" not in table and "f32[3, 6, 8]" in table and "f32[3, 2]" in table


def test_values_that_an_optimizer_reads_are_its_own() -> None:
    model, found = Lit(), []
    optimizer = torch.optim.AdamW(model.parameters(), foreach=False)

    def step() -> None:
        loss = model.training_step(X)
        loss.backward()
        optimizer.step(), found.append(loss.item()), found.append(loss.item())  # fmt: skip

    limits = [one for one in tv.trace(step).limits if "took a value" in one]
    assert len(limits) == 2, limits
    assert sum("by AdamW itself" in one for one in limits) == 1
    assert sum(", 2 times" in one for one in limits) == 1  # from one line, however often it is there


class Wrapping(torch.optim.Optimizer):
    """An optimizer whose step is two of another one's; the second may raise."""

    def __init__(self, parameters: Any, fails: bool) -> None:
        parameters = list(parameters)
        super().__init__(parameters, {})
        self.inner, self.fails = torch.optim.SGD(parameters, lr=0.1), fails

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:
        self.inner.step()
        if self.fails:
            raise ValueError("on purpose")
        self.inner.step()


@pytest.mark.parametrize("fails", [False, True])
def test_a_step_inside_a_step_ends_and_so_does_the_one_around_it(fails: bool) -> None:
    model = torch.nn.Linear(2, 2)
    optimizer = Wrapping(model.parameters(), fails)
    with tv.record(model) as trace:
        model(torch.ones(1, 2)).sum().backward()
        with contextlib.suppress(ValueError):
            optimizer.step()
        with torch.no_grad():
            torch.ones(3).mul(2)
    assert [(scope.type, scope.parent.type) for scope in trace.graph.scopes if scope.parent][1:] == [
        ("Wrapping", "run"),
        *[("SGD", "Wrapping")] * (1 if fails else 2),
    ]
    assert [node.phase for node in trace.graph.nodes][-2:] == ["forward", "forward"]


def test_memory_that_was_asked_for_too_early_is_there_at_the_end() -> None:
    with tv.record() as trace:
        assert trace.lifetimes is None
        torch.ones(3).add(1)
    assert trace.lifetimes is not None and trace.memory().peak_bytes == 24
