"""Tracing leaves no mark: every case of the zoo gives the same bits and the same state, traced or not."""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import torch_vis as tv
from tests.kit.side_effects import observe, plain_run, torch_globals
from tests.zoo import ZOO, Case, close_process_group, first_difference, floating_sum


@pytest.fixture(autouse=True, scope="module")
def _process_group() -> Iterator[None]:
    yield
    close_process_group()


def traced_run(case: Case) -> dict[str, Any]:
    def call(model: Any, args: Any, kwargs: Any) -> Any:
        loss = floating_sum if case.backward else None
        return tv.trace(model, *args, kwargs=kwargs, loss=loss).output

    return observe(case, call)


@pytest.mark.parametrize("case", [pytest.param(case, id=name) for name, case in ZOO.items()])
def test_a_traced_run_is_the_plain_run(case: Case) -> None:
    plain = plain_run(case)
    before = torch_globals()
    traced = traced_run(case)
    assert torch_globals() == before
    assert first_difference(plain, traced) is None


def test_without_holding_tensors_too() -> None:
    for name in ("batch_norm_train", "dropout_train", "gradient_accumulation", "writes_input"):
        case = ZOO[name]
        plain = plain_run(case)

        def call(model: Any, args: Any, kwargs: Any, case: Case = case) -> Any:
            loss = floating_sum if case.backward else None
            return tv.trace(model, *args, kwargs=kwargs, loss=loss, hold=False).output

        assert first_difference(plain, observe(case, call)) is None


def test_check_changes_nothing() -> None:
    """The replay writes to memory of its own and puts the random streams back."""
    for name in ("batch_norm_train", "dropout_train", "explicit_generator", "adamw_foreach_step"):
        case = ZOO[name]
        plain = plain_run(case)

        def call(model: Any, args: Any, kwargs: Any, case: Case = case) -> Any:
            t = tv.trace(model, *args, kwargs=kwargs, loss=floating_sum if case.backward else None)
            t.check(inputs=case.name != "adamw_foreach_step")
            return t.output

        assert first_difference(plain, observe(case, call)) is None, name


# ---------------------------------------------------------------- a run that raises half-way


class Fails(nn.Module):
    def __init__(self, error: BaseException) -> None:
        super().__init__()
        self.first, self.norm, self.second = nn.Linear(3, 3), nn.BatchNorm1d(3), nn.Linear(3, 2)
        self.error = error

    def forward(self, x: Tensor) -> Tensor:
        x = self.norm(self.first(x))
        with torch.no_grad(), torch.autocast("cpu", dtype=torch.bfloat16):
            raise self.error
        return self.second(x)


class Odd(Exception):
    pass


@pytest.mark.parametrize(
    "error", [Odd("half-way", 7), KeyboardInterrupt(), SystemExit(3), StopIteration("x")]
)
def test_an_exception_reaches_the_caller_as_it_was_raised(error: BaseException) -> None:
    model = Fails(error).train()
    args = error.args
    before = torch_globals()
    with pytest.raises(type(error)) as caught:
        tv.trace(model, torch.rand(4, 3))
    assert caught.value is error and error.args == args
    assert error.__cause__ is None and error.__context__ is None
    assert getattr(error, "__notes__", []) == []
    assert torch_globals() == before
    assert model.training and not model.first._forward_hooks


def test_partial_gives_what_ran() -> None:
    error = Odd("half-way")
    model = Fails(error).train()
    before = torch_globals()
    t = tv.trace(model, torch.rand(4, 3), partial=True)
    assert torch_globals() == before
    assert t.error is error and t.output is None
    names = [node.name for node in t.graph.nodes]
    assert names[-1] == "native_batch_norm" and "addmm" in names
    assert {node.path for node in t.graph.nodes} == {"first", "norm"}
    assert t.check().results >= 2  # the statistics of the norm were written before the error


def test_record_holds_what_ran_before_the_error() -> None:
    model = Fails(Odd("half-way"))
    with pytest.raises(Odd) as caught, tv.record(model) as t:
        model(torch.rand(4, 3))
    assert t.error is caught.value
    assert [node.path for node in t.graph.nodes][-1] == "norm"
    t.graph.check()


def test_weights_and_streams_after_an_error_are_those_of_the_plain_run() -> None:
    def attempt(traced: bool) -> list[Any]:
        torch.manual_seed(5)
        model = nn.Sequential(nn.Dropout(0.5), Fails(Odd("x"))).train()
        x = torch.rand(4, 3)
        with pytest.raises(Odd):
            tv.trace(model, x) if traced else model(x)
        return [*model.state_dict().values(), torch.get_rng_state()]

    assert first_difference(attempt(False), attempt(True)) is None


def test_an_error_in_backward_leaves_nothing_behind() -> None:
    def fail(_: Tensor) -> Tensor:
        raise Odd("in backward")

    model = nn.Linear(3, 2)
    model.weight.register_hook(fail)
    before = torch_globals()
    with pytest.raises(Odd):
        tv.trace(model, torch.ones(1, 3), backward=True)
    t = tv.trace(model, torch.ones(1, 3), backward=True, partial=True)
    assert torch_globals() == before
    assert isinstance(t.error, Odd) and t.output is not None
    assert {node.phase for node in t.graph.nodes} == {"forward", "backward"}


# ---------------------------------------------------------------- training


def train(steps: int, *, traced: bool) -> list[Any]:
    torch.manual_seed(3)
    layers = (nn.Linear(4, 8), nn.BatchNorm1d(8), nn.Dropout(0.3), nn.ReLU(), nn.Linear(8, 1))
    model = nn.Sequential(*layers).train()
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    schedule = torch.optim.lr_scheduler.StepLR(optimizer, 2)
    losses: list[Any] = []

    def step(x: Tensor, y: Tensor) -> Tensor:
        optimizer.zero_grad()
        loss = (model(x) - y).square().mean()
        loss.backward()
        optimizer.step()
        return loss.detach()

    for _ in range(steps):
        x, y = torch.rand(6, 4), torch.rand(6, 1)
        losses.append(tv.trace(step, x, y).output if traced else step(x, y))
        schedule.step()
    moments = [tensor for state in optimizer.state.values() for tensor in state.values()]
    return [losses, list(model.state_dict().values()), moments, torch.get_rng_state(), schedule.get_last_lr()]


def test_a_traced_training_loop_is_the_untraced_one() -> None:
    assert first_difference(train(5, traced=False), train(5, traced=True)) is None


def test_no_warnings_are_added() -> None:
    case = ZOO["batch_norm_train"]
    with warnings.catch_warnings(record=True) as plain:
        warnings.simplefilter("always")
        plain_run(case)
    with warnings.catch_warnings(record=True) as traced:
        warnings.simplefilter("always")
        traced_run(case)
    assert [str(w.message) for w in traced] == [str(w.message) for w in plain]


def traced_by_jit(x: Tensor) -> Tensor:
    return torch.jit.trace(lambda x: x * x.sum().item() * int(x.shape[0]), (x,), check_trace=False)(x)  # type: ignore[no-any-return]


@pytest.mark.filterwarnings("ignore")
def test_torch_jit_trace_inside_works_where_a_number_was_a_constant() -> None:
    """The constants of its graph are numbers to a dispatch mode, also where the operator takes a tensor."""
    x = torch.arange(6.0).reshape(2, 3)
    plain = traced_by_jit(x)
    t = tv.trace(traced_by_jit, x)
    assert torch.equal(t.output, plain)
    t.check()
    assert torch.equal(t.run(x).output, plain)

    def sizes_alone(x: Tensor) -> Tensor:
        return torch.jit.trace(lambda x: x * int(x.shape[0]), (x,), check_trace=False)(x)  # type: ignore[no-any-return]

    assert tv.trace(sizes_alone, x, fake=True).output.shape == x.shape

    class Model(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            return traced_by_jit(x).relu()

    model = Model()
    with tv.live(model, keep="op:relu") as run:
        model(x)
    assert torch.equal(run.kept["/relu:0"][0], plain.relu())
