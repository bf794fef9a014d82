"""Values that leave for Python, code that cannot be seen, and tensors that are not plain memory."""

from __future__ import annotations

import ctypes
import inspect
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import torch_vis as tv
from tests.zoo import ZOO, close_process_group
from torch_vis import errors
from torch_vis.graph.run import LIMIT_KINDS


@pytest.fixture(autouse=True, scope="module")
def _process_group() -> Iterator[None]:
    yield
    close_process_group()


def of_zoo(name: str, **options: Any) -> tv.Trace:
    case = ZOO[name]
    model, args, kwargs = case.make()
    return tv.trace(model, *args, kwargs=kwargs, backward=case.backward, **options)


def names(t: tv.Trace) -> list[str]:
    return [node.name for node in t.graph.nodes]


# ---------------------------------------------------------------- values that leave for Python

LEAVING: dict[str, Callable[[Tensor], Any]] = {
    "item()": lambda x: x.sum().item(),
    "float()": lambda x: float(x.sum()),
    "int()": lambda x: int(x.sum()),
    "bool()": lambda x: bool((x > 0).all()),
    "numpy()": lambda x: x.numpy(),
    "tolist()": lambda x: x.tolist(),
    "asarray()": lambda x: np.asarray(x) * 2,
    "index": lambda x: [1, 2, 3][x.long().sum() * 0],
    "equal()": lambda x: torch.equal(x, x),
    "format": lambda x: f"{x.sum():.2f}",
    "iteration": lambda x: [float(part) for part in x],
    "dlpack": lambda x: np.from_dlpack(x) * 2,
}


@pytest.mark.parametrize("how", LEAVING)
def test_values_that_leave_are_listed_with_their_line(how: str) -> None:
    leave = LEAVING[how]

    def f(x: Tensor) -> Tensor:
        leave(x)
        return x * 2

    t = tv.trace(f, torch.ones(3))
    line = inspect.getsourcelines(leave)[1]
    assert t.limits, f"{how} is not listed"
    assert any(f"{__file__}:{line} " in limit for limit in t.limits), t.limits


def test_a_node_that_lets_a_value_out_is_marked() -> None:
    def f(x: Tensor) -> Tensor:
        n = int(x.sum())
        return x * n

    t = tv.trace(f, torch.ones(3))
    (node,) = t.graph.find(flag="escape")
    assert node.name == "_local_scalar_dense" and node.inputs[0].producer.name == "sum"
    (limit,) = t.limits
    assert "took a value to Python" in limit and "not in the graph" in limit
    site = inspect.getsourcelines(f)[1] + 1
    assert (limit.kind, limit.site) == ("python", f"{__file__}:{site}")


def test_every_limit_is_of_a_kind_that_is_listed() -> None:
    zoo = ("numpy_write", "nested_strided", "item_control_flow")
    kinds = {limit.kind for name in zoo for limit in of_zoo(name).limits}
    assert {"python", "missing", "memory"} <= kinds <= LIMIT_KINDS.keys() - {"other"}


def test_a_loop_of_escapes_is_one_sentence() -> None:
    def f(x: Tensor) -> Tensor:
        for _ in range(50):
            x = x * (1 if x.sum().item() > 0 else 2)
        return x

    t = tv.trace(f, torch.ones(3))
    assert len(t.limits) == 1 and "50 times" in t.limits[0]


def test_a_run_without_escapes_has_no_limits() -> None:
    assert tv.trace(nn.Linear(3, 2), torch.ones(1, 3), backward=True).limits == ()


def test_numpy_writes_cannot_be_seen_and_are_said_to_be_so() -> None:
    t = of_zoo("numpy_write")
    assert any("shares the tensor's memory" in limit and "cannot be seen" in limit for limit in t.limits)
    with pytest.raises(errors.CheckFailed):
        t.check()


# ---------------------------------------------------------------- higher-order, compiled, scripted


@pytest.mark.parametrize(
    ("name", "inner"),
    [("cond_operator", "sin cos"), ("while_loop_operator", "add"), ("scan_operator", "mul")],
)
def test_higher_order_operators(name: str, inner: str) -> None:
    t = of_zoo(name)
    assert set(inner.split()) & set(names(t)) or any(n.startswith(inner) for n in names(t)), names(t)
    t.check()


def sine_or_cosine(x: Tensor) -> Tensor:
    return torch.cond(x.sum() > 0, lambda x: x.sin(), lambda x: x.cos(), (x,))


@pytest.mark.parametrize("grad", [False, True])
def test_cond_is_a_scope_with_the_branch_taken_inside(grad: bool) -> None:
    with torch.set_grad_enabled(grad):
        t = tv.trace(sine_or_cosine, torch.ones(3, requires_grad=grad))
    torch._dynamo.reset()
    scopes = [scope for scope in t.graph.scopes if scope.kind == "operator"]
    assert [scope.type for scope in scopes] == ["cond"]
    (node,) = t.graph.find(op="sin")
    outer = []
    scope = node.scope
    while scope is not None:
        outer.append(scope.type)
        scope = scope.parent
    assert "cond" in outer and "cos" not in [node.name for node in t.graph.nodes]
    t.check(inputs=True)


def test_the_backward_of_cond_is_linked() -> None:
    t = tv.trace(sine_or_cosine, torch.ones(3, requires_grad=True), backward=True)
    torch._dynamo.reset()
    t.check()
    (node,) = t.graph.find(op="cos", phase="backward")
    assert "recompute" not in node.flags and node.link is not None


def test_a_compiled_submodule_is_one_node_or_its_operations() -> None:
    for name in ("compile_eager_backend", "compile_aot_eager_backend", "compile_whole_module"):
        t = of_zoo(name)
        assert any(scope.kind == "compiled" for scope in t.graph.scopes), name
        t.check()
        torch._dynamo.reset()


needs_inductor = pytest.mark.skipif(
    "compile_inductor_backend" not in ZOO, reason="no C++ compiler here for inductor"
)


@needs_inductor
def test_what_ran_inside_compiled_code_is_said_to_be_unseen() -> None:
    t = of_zoo("compile_inductor_backend")
    torch._dynamo.reset()
    assert any("compiled" in limit for limit in t.limits)
    nodes = t.graph.find(flag="opaque")
    assert [(node.op, node.phase) for node in nodes] == [
        ("torch_vis::compiled", "forward"),
        ("torch_vis::compiled", "backward"),
    ]
    assert nodes[1].link == nodes[0]
    assert {node.scope.kind for node in nodes} == {"compiled"}
    t.check(inputs=True)


@needs_inductor
def test_a_compiled_function_is_one_node_between_its_inputs_and_outputs() -> None:
    """Not only modules are compiled: what a compiled function returns does not come from nowhere."""
    compiled = torch.compile(lambda x, y: (x * 2 + y).sin())
    x = torch.rand(3, requires_grad=True)
    t = tv.trace(lambda x, y: compiled(x, y) + 1, x, torch.rand(3), backward=True)
    torch._dynamo.reset()
    first, last = t.graph.find(op="torch_vis::compiled")
    assert {value.name for value in first.inputs} == {"x", "y"}
    assert last.phase == "backward" and last.link == first
    _, values = t.graph.ancestors(t.graph.outcomes[0].sources())
    assert {value.name for value in t.graph.inputs if values[value.index]} >= {"x", "y"}
    assert any("compiled" in limit for limit in t.limits)
    t.check(inputs=True)


@needs_inductor
def test_what_compiled_code_writes_is_a_write_of_its_node() -> None:
    @torch.compile
    def count(total: Tensor, x: Tensor) -> Tensor:
        total.add_(x)
        return total * 2

    total = torch.zeros(3)
    t = tv.trace(lambda total, x: count(total, x) + total, total, torch.ones(3))
    torch._dynamo.reset()
    assert torch.equal(total, torch.ones(3))
    (node,) = t.graph.find(flag="opaque")
    last = t.graph.nodes[-1]
    assert [value.producer for value in last.inputs] == [node, node]
    assert {row.name for row in t.graph.outcomes} == {"output", "total"}
    t.check(inputs=True)


# ---------------------------------------------------------------- memory that code outside of torch fills


def fill(tensor: Tensor) -> None:
    """Write to a tensor's memory as a C++ extension does: no operation, no hook."""
    ctypes.memset(tensor.data_ptr(), 1, tensor.untyped_storage().nbytes() - 4 * tensor.storage_offset())


def test_memory_filled_by_unseen_code_is_a_node() -> None:
    def f(x: Tensor) -> Tensor:
        y = torch.empty(4)
        fill(y)
        return y + x

    t = tv.trace(f, torch.ones(4))
    assert [node.op for node in t.graph.nodes] == ["aten::empty", "torch_vis::unseen_write", "aten::add"]
    assert t.graph.nodes[1].flags == ("opaque",) and t.graph.nodes[2].inputs[0].producer == t.graph.nodes[1]
    (limit,) = t.limits
    assert "torch_vis::unseen_write" in limit
    t.check(inputs=True)


def test_memory_that_operations_fill_or_nobody_reads_is_no_unseen_write() -> None:
    def f(x: Tensor) -> Tensor:
        torch.empty(3)
        y = torch.empty(4)
        y.copy_(x)
        return y + torch.empty_like(x).fill_(2) + torch.zeros_like(torch.empty(4))

    t = tv.trace(f, torch.ones(4))
    assert not len(t.graph.find(flag="opaque")) and t.limits == ()
    t.check(inputs=True)


@pytest.mark.xfail(strict=True, reason="only a read of the very tensor that empty() made is looked at")
@pytest.mark.parametrize("how", ["through a view", "in part"])
def test_unseen_code_that_fills_a_part_is_noticed_too(how: str) -> None:
    def f(x: Tensor) -> Tensor:
        y = torch.empty(4)
        if how == "in part":
            y[:2] = x
            fill(y[2:])
            return y * 2
        view = y[:2]
        fill(y)
        return view + x

    t = tv.trace(f, torch.ones(2))
    assert t.limits
    t.check()


@pytest.mark.parametrize("name", ["script_submodule", "traced_submodule"])
def test_torchscript_submodules_show_their_operations(name: str) -> None:
    t = of_zoo(name)
    assert len(t.graph.nodes) > 3
    t.check()


def test_a_custom_operator_is_a_node_under_its_own_name() -> None:
    t = of_zoo("custom_operator")
    assert any(not node.op.startswith("aten::") for node in t.graph.find(phase="forward"))
    t.check()


# ---------------------------------------------------------------- other tensors


def test_dtensor_shows_the_operations_on_the_local_shards() -> None:
    t = of_zoo("dtensor_world_of_one")
    assert {"addmm"} & set(names(t)) or {"mm"} & set(names(t))
    named = {value.name for value in t.graph.values if value.role == "parameter"}
    assert named, "the parameters of a distributed module are still parameters"


def test_collectives_are_operations() -> None:
    t = of_zoo("collectives")
    assert any("c10d" in node.op for node in t.graph.nodes)
    t.check()


@pytest.mark.parametrize("name", ["fake_tensor_input", "meta_tensor_input"])
def test_fake_and_meta_tensors_give_a_graph_and_no_data(name: str) -> None:
    t = of_zoo(name)
    assert len(t.graph.find(op="addmm")) >= 1
    assert any(value.role == "parameter" for value in t.graph.values)
    with pytest.raises(errors.TensorsMissing, match="meta or fake"):
        t.check()


@pytest.mark.parametrize(
    ("name", "layout"),
    [("sparse_coo", "sparse_coo"), ("sparse_csr", "sparse_csr"), ("quantized_tensor", "quantized")],
)
def test_tensors_without_plain_memory_name_their_layout(name: str, layout: str) -> None:
    t = of_zoo(name)
    assert layout in {row.layout for row in t.graph.types}
    assert any(layout in limit and "not counted" in limit for limit in t.limits)
    t.check()


def test_nested_tensors() -> None:
    t = of_zoo("nested_strided")
    assert "nested" in {row.layout for row in t.graph.types}
    t.check()
    of_zoo("nested_jagged").check()


def test_complex_tensors_and_lazy_conjugates() -> None:
    def f(x: Tensor) -> tuple[Tensor, Tensor]:
        y = x.conj()
        return y * 2, torch.view_as_real(x)[..., 0] + 1

    t = tv.trace(f, torch.rand(3, dtype=torch.complex64))
    assert any(row.conj for row in t.graph.types) and any(row.dtype == "complex64" for row in t.graph.types)
    t.check(inputs=True)


def test_random_operations_are_marked() -> None:
    t = tv.trace(nn.Dropout(0.5).train(), torch.rand(8))
    marked = [node.name for node in t.graph.find(flag="random")]
    assert marked and set(marked) <= {"native_dropout", "bernoulli_", "dropout"}
    first = t.check()
    assert first == t.check(), "checking does not use the stream up"
