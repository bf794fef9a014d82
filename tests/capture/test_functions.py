"""Calls of public functions as scopes: the names, what nests in what, and that naming calls changes nothing."""

from __future__ import annotations

import gc
import sys
import threading
import warnings
import weakref
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode, _get_current_function_mode_stack, resolve_name
from torch.utils.checkpoint import checkpoint

import torch_vis as tv
from tests.kit.side_effects import observe, plain_run, torch_globals
from tests.zoo import ZOO, Case, close_process_group, first_difference, floating_sum
from torch_vis.capture.session import Capture
from torch_vis.errors import TensorsMissing, UsageError

needs_redispatch = pytest.mark.skipif(
    not hasattr(torch.overrides, "redispatch_function"),
    reason="this torch cannot run a call with its mode on",
)


@pytest.fixture(autouse=True, scope="module")
def _process_group() -> Iterator[None]:
    yield
    close_process_group()


def named(
    model: Callable[..., Any],
    *args: Any,
    kwargs: dict[str, Any] | None = None,
    loss: Callable[[Any], Tensor] | None = None,
    declared: tuple[Any, ...] = (),
) -> tv.Trace:
    """A trace with calls named, the functions declared among them."""
    if not declared:
        return tv.trace(model, *args, kwargs=kwargs, loss=loss, functions=True)
    capture = Capture(*([model] if isinstance(model, nn.Module) else []), functions=True, declared=declared)
    capture.has_output = True
    with capture:
        capture.output = model(*args)
    run, kept, output, _ = capture.finish()
    return tv.Trace(run.graph, run.metrics, run.limits, run.meta, output=output, kept=kept)


def tree(t: tv.Trace, kind: str = "function") -> list[tuple[str, str, list[str]]]:
    """Each scope of a kind: its path, its parent's path, and the operations that ran in it but in none inside."""
    own: dict[int, list[str]] = {}
    for node in t.graph.nodes:
        if node.phase != "backward":
            own.setdefault(node.scope.index, []).append(node.name)
    return [
        (scope.path, scope.parent.path if scope.parent else "", own.get(scope.index, []))
        for scope in t.graph.scopes
        if scope.kind == kind
    ]


def paths(t: tv.Trace) -> list[str]:
    return [path for path, _, _ in tree(t)]


# ---------------------------------------------------------------- nothing else changes

FAST_PATHS = {"multihead_attention_fast_path", "encoder_layer_fast_path", "encoder_nested_fast_path"}


@pytest.mark.parametrize("case", [pytest.param(case, id=name) for name, case in ZOO.items()])
def test_a_run_with_calls_named_is_the_plain_run_and_replays(case: Case) -> None:
    found: list[tv.Trace] = []

    def call(model: Any, args: Any, kwargs: Any) -> Any:
        found.append(named(model, *args, kwargs=kwargs, loss=floating_sum if case.backward else None))
        return found[0].output

    plain = plain_run(case)
    before = torch_globals()
    traced = observe(case, call)
    assert torch_globals() == before
    told = any("fast path" in limit for limit in found[0].limits)
    assert told == (case.name in FAST_PATHS)
    if not told:
        assert first_difference(plain, traced) is None
    if case.name == "numpy_write":
        return  # no trace of it can be replayed, and every trace says so
    try:
        found[0].check()
    except TensorsMissing as error:
        assert "meta or fake" in str(error)


def test_the_operations_are_those_of_a_trace_without_names() -> None:
    for name in (
        "bert_train",
        "resnet50_train",
        "custom_function",
        "checkpoint_nonreentrant",
        "adamw_foreach_step",
    ):
        case = ZOO[name]
        loss = floating_sum if case.backward else None
        model, args, kwargs = case.make()
        one = tv.trace(model, *args, kwargs=kwargs, loss=loss).graph
        model, args, kwargs = case.make()
        other = named(model, *args, kwargs=kwargs, loss=loss).graph
        for first, second in zip(one.nodes, other.nodes, strict=True):
            assert (first.op, first.phase) == (second.op, second.phase), name
            if first.phase == "forward":
                assert first.site == second.site, name
        assert one.node_link.tolist() == other.node_link.tolist(), name


def test_no_warnings_are_added() -> None:
    case = ZOO["batch_norm_train"]
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        model, args, kwargs = case.make()
        named(model, *args, kwargs=kwargs, loss=floating_sum)
    assert said == []


def test_an_exception_leaves_nothing_behind() -> None:
    def f(x: Tensor) -> Tensor:
        y = x.exp()
        return torch.matmul(y, torch.ones(7))

    before = torch_globals()
    capture = Capture(functions=True, declared=[f])
    with pytest.raises(RuntimeError), capture:
        f(torch.ones(2, 3))
    assert torch_globals() == before
    t = tv.Trace.of(capture.finish().run)
    assert next(row for row in tree(t) if row[0] == "Tensor.exp")[2] == ["exp"]
    gc.collect()
    assert not [o for o in gc.get_objects() if type(o).__name__ == "frame" and o.f_code is f.__code__]


def test_a_mode_that_the_block_leaves_behind_stays() -> None:
    class Mine(TorchFunctionMode):
        pass

    capture, mine = Capture(functions=True), Mine()
    with capture:
        mine.__enter__()
    assert _get_current_function_mode_stack() == [mine]
    mine.__exit__(None, None, None)


def test_modes_of_the_user_see_what_they_saw() -> None:
    class Listing(TorchFunctionMode):
        def __init__(self) -> None:
            super().__init__()
            self.seen: list[str] = []

        def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            self.seen.append(resolve_name(func) or "?")
            return func(*args, **(kwargs or {}))

    model = nn.Sequential(nn.Linear(3, 4), nn.ReLU())
    attention = nn.MultiheadAttention(4, 2)

    def run(inside: bool, traced: bool) -> list[str]:
        def f(x: Tensor) -> Tensor:
            with listing if inside else torch.enable_grad():
                y = model(x)
                return attention(y, y, y)[0]

        listing = Listing()
        if inside:
            named(f, torch.ones(2, 3)) if traced else f(torch.ones(2, 3))
        else:
            with listing:
                named(f, torch.ones(2, 3)) if traced else f(torch.ones(2, 3))
        return [
            name
            for name in listing.seen
            if name in ("torch.nn.functional.linear", "torch.nn.functional.relu") or "multi_head" in name
        ]

    for inside in (True, False):
        assert run(inside, True) == run(inside, False) != []


def test_the_default_device_still_counts() -> None:
    def f() -> Tensor:
        with torch.device("meta"):
            return torch.ones(2) + 1

    t = named(f)
    assert t.output.device.type == "meta"
    assert paths(t) == ["torch.ones", "Tensor.add"]


def test_torchs_own_list_of_functions_is_not_touched() -> None:
    named(lambda x: x.tolist(), torch.ones(2))
    assert resolve_name(torch.Tensor.tolist) == "torch.Tensor.tolist"


@pytest.mark.parametrize("method", ["tolist", "numpy", "item"])
def test_a_value_that_leaves_is_told_once(method: str) -> None:
    t = named(lambda x: getattr(x, method)(), torch.ones(1))
    limits = [limit for limit in t.limits if "took a value" in limit]
    assert len(limits) == 1 and "times" not in limits[0] and "test_functions.py" in limits[0]


# ---------------------------------------------------------------- compiled code


def frames_compiled() -> int:
    return int(sys.modules["torch._dynamo.utils"].counters["frames"]["total"])


def test_compiled_functions_are_not_compiled_for_us_nor_again_after_us() -> None:
    torch._dynamo.reset()
    old = torch.compile(lambda x: x.sin() * 2, backend="eager")
    new = torch.compile(lambda x: x.cos() * 3, backend="eager")
    x = torch.ones(3)
    plain = old(x)
    before = frames_compiled()
    t = named(lambda x: (old(x) + 1, new(x)), x)
    assert torch.equal(t.output[0], plain + 1)
    assert frames_compiled() == before + 1  # the new one, at its first call
    old(x), new(x)
    assert frames_compiled() == before + 1
    assert paths(t) == ["Tensor.add"]
    assert t.limits == ()


def test_calls_are_named_again_after_a_compiled_one_that_raises() -> None:
    torch._dynamo.reset()

    @torch.compile(backend="eager")
    def fails(x: Tensor) -> Tensor:
        y = x.sin()
        torch._dynamo.graph_break()
        raise KeyError(y.shape)

    def f(x: Tensor) -> Tensor:
        try:
            return fails(x)
        except KeyError:
            return x.cos()

    assert paths(named(f, torch.ones(3))) == ["Tensor.cos"]


# ---------------------------------------------------------------- names

NAMED: dict[str, Callable[[Tensor], Any]] = {
    "torch.nn.functional.conv2d": lambda x: F.conv2d(x[None, None], torch.ones(1, 1, 1, 1)),
    "torch.nn.functional.linear": lambda x: F.linear(x, x),
    "torch.nn.functional.relu": F.relu,
    "torch.nn.functional.max_pool2d": lambda x: F.max_pool2d(x[None], 2),
    "torch.nn.functional.dropout": F.dropout,
    "torch.nn.functional.cross_entropy": lambda x: F.cross_entropy(x, x),
    "torch.nn.functional.normalize": F.normalize,
    "torch.relu": torch.relu,
    "torch.matmul": lambda x: torch.matmul(x, x),
    "torch.stack": lambda x: torch.stack([x, x]),
    "torch.einsum": lambda x: torch.einsum("ij->ji", x) + 0,
    "torch.linalg.norm": torch.linalg.norm,
    "torch.fft.fft": torch.fft.fft,
    "torch.ones_like": torch.ones_like,
    "torch._foreach_add": lambda x: torch._foreach_add([x, x], 1.0),
    "torch.ops.aten.sin": torch.ops.aten.sin.default,
    "torch.ops.aten.add.Tensor": lambda x: torch.ops.aten.add.Tensor(x, x),
    "Tensor.view": lambda x: x.view(4),
    "Tensor.add": lambda x: x + x,
    "Tensor.add_": lambda x: x.clone().add_(1),
    "Tensor.__rsub__": lambda x: 1 - x,
    "Tensor.matmul": lambda x: x @ x,
    "Tensor.__getitem__": lambda x: x[0],
    "Tensor.__setitem__": lambda x: x.clone().__setitem__(0, 1.0),
    "Tensor.mT": lambda x: x.mT,
    "Tensor.item": lambda x: x.sum().item(),
    "Tensor.to": lambda x: x.to(torch.float64),
}


@pytest.mark.parametrize("name", NAMED)
def test_names(name: str) -> None:
    assert paths(named(NAMED[name], torch.ones(2, 2)))[-1 if name != "torch.einsum" else 0] == name


def test_what_runs_nothing_is_no_scope() -> None:
    def f(x: Tensor) -> Any:
        return (
            x.shape,
            x.dtype,
            x.size(0),
            len(x),
            x.dim(),
            x.requires_grad,
            x.is_contiguous(),
            x.T.shape[0] + x.numel(),
        )

    assert paths(named(f, torch.ones(2, 3))) == ["Tensor.T"]


def test_calls_nest_in_modules_and_hold_their_operations() -> None:
    model = nn.Sequential(nn.Linear(3, 2), nn.ReLU())
    t = named(model, torch.ones(1, 3), loss=torch.sum)
    assert tree(t) == [
        ("torch.nn.functional.linear", "0", ["t", "addmm"]),
        ("torch.nn.functional.relu", "1", ["relu"]),
        ("torch.sum", "", ["sum"]),
        ("torch.ones_like", "", []),
    ]
    linear = next(scope for scope in t.graph.scopes if scope.path == "torch.nn.functional.linear")
    backward = [node.name for node in t.graph.nodes if node.scope == linear and node.phase == "backward"]
    assert "mm" in backward
    time = t.metrics["scope_time_ns"]
    assert time[linear.parent.index] >= time[linear.index] > 0  # type: ignore[union-attr]


@needs_redispatch
def test_attention_is_opened() -> None:
    attention = nn.MultiheadAttention(8, 2)
    x = torch.ones(3, 2, 8)
    t = named(lambda x: attention(x, x, x)[0], x)
    whole = "torch.nn.functional.multi_head_attention_forward"
    inside = [path for path, parent, _ in tree(t) if parent == whole]
    assert inside.count("torch.nn.functional.linear") == 2 and "torch.bmm" in inside
    assert [parent for path, parent, _ in tree(t) if path == whole] == [""]
    assert t.limits == ()


def test_a_lost_fast_path_is_told_and_one_that_would_not_be_taken_is_not() -> None:
    attention = nn.MultiheadAttention(8, 2, batch_first=True)
    x = torch.ones(3, 2, 8)

    def told(grad: bool) -> bool:
        with torch.set_grad_enabled(grad):
            return any("fast path" in limit for limit in named(lambda x: attention(x, x, x)[0], x).limits)

    assert not told(False) and not told(True)  # in training
    attention.eval()
    assert told(False) and not told(True)
    assert tv.trace(lambda x: attention(x, x, x)[0], x).limits == ()


class Scaled(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        ctx.save_for_backward(x)
        return (x * 2).exp()

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Tensor:
        return grad * 2


@pytest.mark.parametrize("grad", [True, False])
def test_an_autograd_function_holds_the_calls_in_its_forward(grad: bool) -> None:
    x = torch.ones(2, requires_grad=grad)
    t = named(lambda x: Scaled.apply(x + 1).sum(), x, loss=torch.sum if grad else None)
    assert [row for row in tree(t) if row[1] in ("", "Scaled")][:4] == [
        ("Tensor.add", "", ["add"]),
        ("Scaled", "", []),
        ("Tensor.mul", "Scaled", ["mul"]),
        ("Tensor.exp", "Scaled", ["exp"]),
    ]
    scope = next(scope for scope in t.graph.scopes if scope.path == "Scaled")
    assert t.metrics["scope_time_ns"][scope.index] > 0
    t.check(inputs=True)


@needs_redispatch
def test_what_checkpointing_runs_again_is_named_too() -> None:
    block = nn.Sequential(nn.Linear(4, 4), nn.Tanh())
    x = torch.rand(2, 4, requires_grad=True)
    t = named(lambda x: checkpoint(block, x, use_reentrant=False), x, loss=torch.sum)
    again = [node.scope.path for node in t.graph.find(flag="recompute")]
    assert "torch.nn.functional.linear" in again and "torch.tanh" in again


def test_calls_on_threads_that_the_run_starts_are_named() -> None:
    model = nn.Linear(3, 2)

    def f(x: Tensor) -> list[Tensor]:
        found: list[Tensor] = []
        threads = [threading.Thread(target=lambda: found.append(model(x))) for _ in range(3)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        return found

    capture, x = Capture(model, functions=True), torch.ones(1, 3)
    with capture:
        f(x)
    t = tv.Trace.of(capture.finish().run)
    assert [(path, ops) for path, _, ops in tree(t)] == [("torch.nn.functional.linear", ["t", "addmm"])] * 3


def test_a_trace_inside_a_trace() -> None:
    inner: list[tv.Trace] = []

    def f(x: Tensor) -> Tensor:
        inner.append(named(lambda x: F.relu(x) + 1, x))
        return inner[0].output * 2

    t = named(f, torch.ones(2))
    assert paths(inner[0]) == ["torch.nn.functional.relu", "Tensor.add"]
    assert paths(t) == ["torch.nn.functional.relu", "Tensor.add", "Tensor.mul"]


# ---------------------------------------------------------------- functions that the user declares


def helper(x: Tensor) -> Tensor:
    return inner_helper(x) + 1


def inner_helper(x: Tensor) -> Tensor:
    return x.relu()


@torch.no_grad()
def wrapped(x: Tensor) -> Tensor:
    return x.exp()


class Owner:
    def method(self, x: Tensor) -> Tensor:
        return x.sin()

    def __call__(self, x: Tensor) -> Tensor:
        return x.cos()


def test_declared_functions_are_scopes_call_by_call() -> None:
    def f(x: Tensor) -> Tensor:
        for _ in range(2):
            x = helper(x)
        return x * 2

    t = named(f, torch.ones(2), declared=(helper,))
    name = f"{__name__}.helper"
    assert [(path, parent) for path, parent, _ in tree(t)] == [
        (name, ""), ("Tensor.relu", name), ("Tensor.add", name),
        (name, ""), ("Tensor.relu", name), ("Tensor.add", name),
        ("Tensor.mul", ""),
    ]  # fmt: skip
    assert [scope.call for scope in t.graph.scopes if scope.path == name] == [0, 1]


def test_declared_functions_nest_in_modules_and_hold_modules() -> None:
    class Model(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.linear = nn.Linear(2, 2)

        def around(self, x: Tensor) -> Tensor:
            return helper(self.linear(x))

        def forward(self, x: Tensor) -> Tensor:
            return self.around(x) * 2

    model = Model()
    t = named(model, torch.ones(1, 2), declared=(Model.around, helper))
    around = f"{__name__}.test_declared_functions_nest_in_modules_and_hold_modules.Model.around"
    assert [(path, parent) for path, parent, _ in tree(t)] == [
        (around, ""),
        ("torch.nn.functional.linear", "linear"),
        (f"{__name__}.helper", around),
        ("Tensor.relu", f"{__name__}.helper"),
        ("Tensor.add", f"{__name__}.helper"),
        ("Tensor.mul", ""),
    ]
    assert [(path, parent) for path, parent, _ in tree(t, "module")][1] == ("linear", around)


def test_decorated_functions_methods_and_objects_are_recognised() -> None:
    owner = Owner()
    t = named(
        lambda x: owner(owner.method(wrapped(x))), torch.ones(2), declared=(wrapped, owner.method, owner)
    )
    assert [path.rpartition(".")[2] for path in paths(t)] == [
        "wrapped",
        "exp",
        "method",
        "sin",
        "Owner",
        "cos",
    ]


def test_frames_are_let_go_before_the_next_operation() -> None:
    """A tensor that only a declared function held is freed where it would have been."""

    def makes(x: Tensor) -> Tensor:
        large = x.expand(1000).clone()
        return large.sum()

    def f(x: Tensor) -> Tensor:
        return makes(x) + 1

    live = [
        named(f, torch.ones(1), declared=declared).metrics["live_bytes"][:] for declared in ((), (makes,))
    ]
    assert live[0] == live[1]


@pytest.mark.parametrize("wrong", [3, nn.ReLU(), len])
def test_what_cannot_be_declared_is_said(wrong: Any) -> None:
    with pytest.raises(UsageError, match="functions="):
        Capture(functions=True, declared=[wrong])


def test_what_is_an_operation_anyway_may_be_declared() -> None:
    attention = nn.MultiheadAttention(8, 2)
    x = torch.ones(3, 2, 8)
    t = named(
        lambda x: attention(x, x, x)[0], x, declared=(torch.matmul, Scaled, F.multi_head_attention_forward)
    )
    assert paths(t) == ["torch.nn.functional.multi_head_attention_forward"]


# ---------------------------------------------------------------- what calls were given


def test_notes_of_calls_hold_no_tensor_and_leave_out_calls_that_ran_nothing_or_raised() -> None:
    capture = Capture(functions=True, keep=False)
    x = torch.ones(2, 3)
    with capture:
        y = torch.relu(x)
        assert y.contiguous() is y
        with pytest.raises(RuntimeError):
            torch.matmul(y, y)
        z = torch.cat([y, x], dim=1)
    naming = capture.recorder.function_mode
    numbers = capture.recorder.number_of
    relu, cat = naming.notes.tolist()[:6], naming.notes.tolist()[6:]
    assert relu[2:] == [1, 1, -2 - numbers(x), numbers(y)]  # x was first seen in the call
    assert cat[2:] == [2, 1, numbers(y), numbers(x), numbers(z)]
    assert all(
        not isinstance(part, Tensor) for spelling in naming.spellings for part in gc.get_referents(spelling)
    )
    gone = weakref.ref(z)
    del z
    assert gone() is None


def test_arguments_written_alike_are_spelled_once() -> None:
    capture = Capture(functions=True, keep=False)
    x = torch.ones(2)
    with capture:
        for _ in range(5):
            x * 2
        x * 2.0
        x * True
    assert len(capture.recorder.function_mode.spellings) == 3
