"""What backward computes again outside of any module is marked, and stands where it was computed first."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

import torch_vis as tv
from torch_vis.graph import Node


class Squared(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return twice(x) * x

    @staticmethod
    def backward(ctx, gradient):
        (x,) = ctx.saved_tensors
        return twice(twice(x)) * gradient


def twice(x: Tensor) -> Tensor:
    return x * 2


class Block(nn.Module):
    """A function in which a module is called, an operation that is repeated, and one without gradients."""

    def __init__(self, reentrant: bool | None) -> None:
        super().__init__()
        self.inner, self.reentrant = nn.Linear(4, 4), reentrant

    def body(self, x: Tensor) -> Tensor:
        x = torch.sin(x)
        for _ in range(3):
            x = torch.tanh(x + 1)
        return torch.cos(Squared.apply(self.inner(x))).exp()

    def forward(self, x: Tensor) -> Tensor:
        if self.reentrant is None:
            return self.body(x)
        return checkpoint(self.body, x, use_reentrant=self.reentrant)


def run(reentrant: bool | None) -> tv.Trace:
    torch.manual_seed(0)
    net = nn.Sequential(*(Block(reentrant) for _ in range(3)))
    return tv.trace(net, torch.randn(2, 4, requires_grad=True), backward=True)


def again(trace: tv.Trace) -> list[Node]:
    return [node for node in trace.graph.find(flag="recompute") if node.name != "detach"]


def module_path(node: Node) -> str:
    scope = node.scope
    while scope.kind != "module":
        assert scope.parent is not None
        scope = scope.parent
    return scope.path


@pytest.mark.parametrize("reentrant", [True, False])
def test_a_function_that_was_checkpointed(reentrant: bool) -> None:
    trace = run(reentrant)
    for number in range(3):
        first = [
            (node.name, module_path(node))
            for node in trace.graph.find(phase="forward")
            if node.path != "" and module_path(node).startswith(str(number))
        ]
        repeated = [
            (node.name, module_path(node)) for node in again(trace) if module_path(node)[0] == str(number)
        ]
        assert repeated == first and len(first) == 13
    assert all(node.link is None and node.phase == "backward" for node in again(trace))
    trace.check()


@pytest.mark.parametrize("reentrant", [True, False])
def test_its_backward_is_that_of_the_module_around_it(reentrant: bool) -> None:
    def backward(trace: tv.Trace) -> list[tuple[str, str]]:
        return [
            (node.name, node.path)
            for node in trace.graph.find(phase="backward")
            if "recompute" not in node.flags and node.name != "detach"
        ]

    assert backward(run(reentrant)) == backward(run(None)) and not again(run(None))


@pytest.mark.parametrize("reentrant", [True, False])
def test_a_comparison_sees_that_nothing_else_changed(reentrant: bool) -> None:
    found = tv.compare(run(None), run(reentrant))
    assert not [node for node in found.removed if node.name != "detach"] and not found.changed
    assert all("recompute" in node.flags or node.name == "detach" for node in found.added)
    assert not found.differences().rows


def test_a_function_around_modules_is_not_put_into_one_of_them() -> None:
    class Around(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.one, self.two = nn.Linear(4, 4), nn.Linear(4, 4)

        def forward(self, x: Tensor) -> Tensor:
            return checkpoint(lambda x: self.two(torch.sin(self.one(x)) + 1), x, use_reentrant=False)

    trace = tv.trace(nn.Sequential(Around()), torch.randn(2, 4, requires_grad=True), backward=True)
    assert [(node.name, node.path) for node in again(trace)] == [
        ("t", "0.one"),
        ("addmm", "0.one"),
        ("sin", "0"),
        ("add", "0"),
        ("t", "0.two"),
    ]


def test_inside_of_what_is_computed_again() -> None:
    def inner(x: Tensor) -> Tensor:
        return torch.sin(x).exp()

    class Outer(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            def outer(x: Tensor) -> Tensor:
                return checkpoint(inner, torch.tanh(x), use_reentrant=True)

            return checkpoint(outer, x, use_reentrant=True)

    trace = tv.trace(nn.Sequential(Outer(), Outer()), torch.randn(3, requires_grad=True), backward=True)
    names = [
        "tanh",
        "sin",
        "exp",
        "sin",
        "exp",
    ]  # the inner one is run by the outer one, and by its own backward
    assert [(node.name, node.path) for node in again(trace)] == [(n, "1") for n in names] + [
        (n, "0") for n in names
    ]
    assert {node.path for node in trace.graph.find(phase="backward") if node.name == "tanh_backward"} == {
        "0",
        "1",
    }


def test_a_backward_of_which_a_graph_is_made_computes_nothing_again() -> None:
    layer = nn.Sequential(nn.Linear(4, 4), nn.Tanh(), nn.Linear(4, 1))

    def penalty(x: Tensor) -> Tensor:
        (gradient,) = torch.autograd.grad(layer(x * x).sum(), x, create_graph=True)
        return (gradient * gradient).sum()

    assert not again(tv.trace(penalty, torch.randn(2, 4, requires_grad=True), backward=True))
    x = torch.randn(4)
    assert not again(tv.trace(lambda: torch.autograd.functional.hessian(lambda x: layer(x).sum(), x)))
    assert not again(tv.trace(lambda: torch.autograd.functional.hessian(layer, x)))


def test_a_function_that_backward_shares_with_forward_is_no_second_computation() -> None:
    trace = tv.trace(lambda x: Squared.apply(twice(x)), torch.randn(3, requires_grad=True), backward=True)
    assert len(trace.graph.find(op="mul", phase="backward")) >= 3 and not again(trace)


def test_a_module_that_is_called_twice_is_computed_again_in_order() -> None:
    class Twice(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inner, self.drop = nn.Sequential(nn.Linear(4, 4), nn.Tanh()), nn.Dropout(0.0)

        def forward(self, x: Tensor) -> Tensor:
            def body(x: Tensor) -> Tensor:
                return self.drop(self.inner(self.drop(self.inner(x))))

            for _ in range(2):
                x = checkpoint(body, x, use_reentrant=True)
            return x

    trace = tv.trace(Twice(), torch.randn(2, 4, requires_grad=True), backward=True)
    first = trace.graph.tree.first_calls
    calls = [
        (scope.path, scope.call, trace.graph.scopes[first[scope.index]].call)
        for scope in trace.graph.scopes
        if scope.index in first
    ]
    wanted = [(4, 2), (5, 3), (6, 0), (7, 1)]  # the second time first, each from its beginning
    for path in ("inner", "inner.0", "inner.1", "drop"):
        assert [pair for name, *pair in calls if name == path] == [list(pair) for pair in wanted]
    plain = Twice()
    plain.forward = lambda x: plain.drop(plain.inner(plain.drop(plain.inner(x))))  # type: ignore[method-assign]
    found = tv.compare(tv.trace(plain, torch.randn(2, 4), backward=True), trace)
    added = sorted(scope.path for scope in found.added_modules)
    assert added == sorted(["inner", "inner.0", "inner.1", "drop"] * 2)


def test_the_captured_backward_of_a_module_that_is_called_twice_is_from_the_last_on() -> None:
    class Twice(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.one, self.two, self.relu = nn.Linear(4, 4), nn.Linear(4, 4), nn.ReLU()

        def forward(self, x: Tensor) -> Tensor:
            return self.relu(self.two(self.relu(self.one(x))))

    class Both(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first, self.second = Twice(), Twice()

        def forward(self, x: Tensor) -> Tensor:
            return self.second(self.first(x))

    torch.manual_seed(0)
    net, x = Both(), torch.randn(3, 4)
    one = tv.trace(net, x, backward=True)
    net.zero_grad()
    found = tv.compare(one, tv.trace(net, x, backward=True, via="aot"))
    assert not found.added_modules and not found.removed_modules
    names = {node.name for node in found.removed}
    assert not names & {"threshold_backward", "mm", "relu", "addmm"} and not found.differences().rows


@pytest.mark.parametrize("reentrant", [True, False])
def test_functions_that_are_shown_by_name_are_those_of_the_module(reentrant: bool) -> None:
    torch.manual_seed(0)
    net = nn.Sequential(Block(reentrant), Block(reentrant))
    x = torch.randn(2, 4, requires_grad=True)
    for functions in ([Block.body, twice], [twice]):
        net.zero_grad()
        trace = tv.trace(net, x, backward=True, functions=functions)
        for number in "01":
            repeated = [node.name for node in again(trace) if module_path(node) == number]
            assert repeated == ["sin", *["add", "tanh"] * 3, "mul", "mul", "cos", "exp"]
        assert {module_path(node) for node in again(trace)} == {"0", "1", "0.inner", "1.inner"}


@pytest.mark.parametrize("reentrant", [False, True])
def test_what_is_computed_again_is_no_gradient(reentrant: bool) -> None:
    trace = run(reentrant)
    found = {value.role for node in trace.graph.find(flag="recompute") for value in node.outputs}
    assert found == {"activation"}
    plain = [
        node for node in trace.graph.find(phase="backward") if node not in trace.graph.find(flag="recompute")
    ]
    assert {value.role for node in plain for value in node.outputs} == {"gradient"}
