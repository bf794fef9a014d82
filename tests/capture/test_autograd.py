"""Backward, custom functions, checkpointing, autocast and modes, as the eager capture sees them."""

from __future__ import annotations

import functools
import gc
from collections import Counter
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

import torch_vis as tv
from tests.zoo import ZOO


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.up, self.down, self.norm = nn.Linear(4, 8), nn.Linear(8, 4), nn.LayerNorm(4)

    def forward(self, x: Tensor) -> Tensor:
        return x + self.down(torch.nn.functional.gelu(self.up(self.norm(x))))


def profiled(run: Callable[[], Any]) -> Counter[str]:
    """How often each operator runs in a plain run, by the profiler, which sees every one of them."""
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]) as profile:
        run()
    return Counter(event.name for event in profile.events() if event.name.startswith("aten::"))


# ---------------------------------------------------------------- links


def test_every_backward_operation_is_linked_to_its_module() -> None:
    model = nn.Sequential(Block(), nn.ReLU(), Block())
    t = tv.trace(model, torch.rand(3, 4), backward=True)
    backward = t.graph.find(phase="backward")
    unlinked = [node for node in backward if node.link is None]
    assert [node.name for node in unlinked] == ["ones_like"], (
        "only the seed of backward belongs to no operation"
    )
    for node in backward:
        if node.link is None:
            continue
        assert node.link.phase == "forward" and node.link.index < node.index
        assert node.scope == node.link.scope
    by_path = {
        path: {n.name for n in t.graph.find(path, phase="backward")} for path in ("0.up", "1", "2.norm")
    }
    assert "mm" in by_path["0.up"] and "threshold_backward" in by_path["1"]
    assert "native_layer_norm_backward" in by_path["2.norm"]


@pytest.mark.parametrize(
    ("forward", "name", "expected"),
    [
        (lambda x: x.tanh(), "tanh_backward", "tanh"),
        (lambda x: x.exp() * 1, "mul", "mul"),
        (lambda x: x.softmax(0), "_softmax_backward_data", "_softmax"),
        (torch.nn.functional.gelu, "gelu_backward", "gelu"),
        (lambda x: x.sigmoid_() if not x.is_leaf else (x * 1).sigmoid_(), "sigmoid_backward", "sigmoid_"),
    ],
)
def test_links_name_the_right_operation(
    forward: Callable[[Tensor], Tensor], name: str, expected: str
) -> None:
    t = tv.trace(forward, torch.rand(4, requires_grad=True), backward=True)
    nodes = t.graph.find(op=name, phase="backward")
    assert len(nodes) and {node.link.name for node in nodes if node.link} >= {expected}


def test_two_calls_of_one_module_are_told_apart_in_backward() -> None:
    layer = nn.Linear(4, 4)
    t = tv.trace(lambda x: layer(layer(x).tanh()), torch.rand(2, 4), backward=True)
    calls = [node.scope.call for node in t.graph.find(op="mm", phase="backward")]
    assert sorted(set(calls)) == [0, 1]
    assert calls == sorted(calls, reverse=True), "the second call is differentiated first"


def test_no_operation_is_there_that_the_plain_run_does_not_have() -> None:
    model = nn.Sequential(Block(), nn.ReLU(), nn.Linear(4, 2))
    x = torch.rand(3, 4)

    def step() -> None:
        model(x).sum().backward()

    step()  # so that gradients accumulate
    plain = profiled(step)
    recorded = Counter(node.op for node in tv.trace(step).graph.nodes)
    assert recorded - plain == Counter()


def test_saving_an_output_for_backward_adds_no_operation() -> None:
    """torch itself detaches a saved output under a mode; the plain run has no such operation."""
    model = nn.Sequential(nn.Linear(3, 2), nn.ReLU())
    x = torch.rand(1, 3)
    plain = profiled(lambda: model(x))
    assert Counter(node.op for node in tv.trace(model, x).graph.nodes) - plain == Counter()


def test_accumulation_writes_into_the_gradient_in_place() -> None:
    model = nn.Linear(3, 2)
    model(torch.rand(2, 3)).sum().backward()
    held = model.weight.grad
    t = tv.trace(model, torch.rand(2, 3), backward=True)
    assert model.weight.grad is held
    writes = t.graph.find(op="add_", phase="backward")
    assert {value.name for node in writes for value in node.outputs} == {"weight.grad", "bias.grad"}
    assert {row.name for row in t.graph.outcomes if row.kind == "gradient"} == {"weight.grad", "bias.grad"}
    t.check()


def test_gradients_that_were_there_before_are_no_limit() -> None:
    model = nn.Linear(3, 2)
    model(torch.rand(2, 3)).sum().backward()
    assert tv.trace(model, torch.rand(2, 3), backward=True).limits == ()


def test_double_backward_is_forward_and_linked() -> None:
    def penalty(x: Tensor) -> Tensor:
        (grad,) = torch.autograd.grad((x**3).sum(), x, create_graph=True)
        return (grad**2).sum()

    x = torch.rand(3, requires_grad=True)
    t = tv.trace(penalty, x, backward=True)
    assert torch.allclose(x.grad, 36 * x.detach() ** 3)
    assert [row.name for row in t.graph.outcomes if row.kind == "gradient"] == ["x.grad"]
    t.check(inputs=True)


# ---------------------------------------------------------------- custom functions


class Cubed(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        ctx.save_for_backward(x)
        return x * x * x

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Tensor:
        (x,) = ctx.saved_tensors
        return grad * x.square() * 3


def test_a_custom_function_is_a_scope_with_its_operations_in_it() -> None:
    class Model(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            return Cubed.apply(Cubed.apply(x + 1)) + 1

    t = tv.trace(Model(), torch.rand(3, requires_grad=True), backward=True)
    functions = [scope for scope in t.graph.scopes if scope.kind == "function"]
    assert [(scope.type, scope.call, scope.parent.type) for scope in functions] == [
        ("Cubed", 0, "Model"),
        ("Cubed", 1, "Model"),
    ]
    for scope in functions:
        inside = [node for node in t.graph.nodes if node.scope == scope]
        assert [node.name for node in inside if node.phase == "forward"] == ["mul", "mul"]
        backward = [node.name for node in inside if node.phase == "backward"]
        assert Counter(backward) >= Counter({"mul": 2, "pow": 1})
    t.check(inputs=True)


# ---------------------------------------------------------------- checkpointing


@pytest.mark.parametrize("reentrant", [True, False])
def test_what_checkpointing_runs_again_is_marked(reentrant: bool) -> None:
    block = nn.Sequential(nn.Linear(4, 4), nn.Tanh(), nn.Dropout(0.5))

    def f(x: Tensor) -> Tensor:
        return checkpoint(block, x, use_reentrant=reentrant)

    x = torch.rand(2, 4, requires_grad=True)
    t = tv.trace(f, x, backward=True)
    again = t.graph.find(flag="recompute")
    assert {"addmm", "tanh"} <= {node.name for node in again}
    assert {node.phase for node in again} == {"backward"}
    first = [node.name for node in t.graph.find(phase="forward", op="tanh")]
    assert first == ["tanh"]
    gradients = t.graph.find(phase="backward", op="tanh_backward")
    assert len(gradients) == 1 and "recompute" not in gradients[0].flags
    assert {row.name for row in t.graph.outcomes if row.kind == "gradient"} >= {"x.grad"}
    t.check()


class _Residual(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.inner, self.outer = nn.Linear(4, 6), nn.Linear(6, 4)

    def forward(self, x: Tensor) -> Tensor:
        return x + self.outer(torch.tanh(self.inner(x)))


def _replaced(model: nn.Sequential) -> nn.Module:
    for block in model:
        block.forward = functools.partial(checkpoint, block.forward, use_reentrant=False)  # type: ignore[method-assign]
    return model


def _called(model: nn.Sequential) -> nn.Module:
    class Called(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.blocks = model

        def forward(self, x: Tensor) -> Tensor:
            for block in self.blocks:
                x = checkpoint(block, x, use_reentrant=False)
            return x

    return Called()


def test_a_checkpointed_method_is_over_when_torch_stops_it_early() -> None:
    """What runs again is left by an exception as soon as all is there; backward goes on outside of it."""
    marked, peaks = [], []
    for how in (_replaced, _called):
        torch.manual_seed(0)
        model = how(nn.Sequential(*(_Residual() for _ in range(3))))
        t = tv.trace(model, torch.rand(2, 4, requires_grad=True), backward=True)
        t.check()
        rows = [(node.op, "recompute" in node.flags) for node in t.graph.nodes if node.phase == "backward"]
        marked.append(rows)
        peaks.append(t.memory().peak_bytes)
    assert marked[0] == marked[1] and any(again for _, again in marked[0])
    assert not any(again for op, again in marked[0] if op in ("aten::mm", "aten::tanh_backward"))
    assert peaks[0] == peaks[1]


def test_a_compiled_layer_that_is_checkpointed_is_run_again(fresh_compiler: None) -> None:
    layer = torch.compile(nn.Sequential(nn.Linear(4, 4), nn.Tanh()), backend="eager")
    x = torch.rand(2, 4, requires_grad=True)
    t = tv.trace(lambda x: checkpoint(layer, x, use_reentrant=False), x, backward=True)
    assert {"addmm", "tanh"} <= {node.name for node in t.graph.find(flag="recompute")}
    assert str(t).count("\nOptimizedModule ") == 1 and "computed again" in str(t)
    t.check()


# ---------------------------------------------------------------- autocast and modes


def test_autocasts_casts_are_operations() -> None:
    model = nn.Linear(4, 4)

    def f(x: Tensor) -> Tensor:
        with torch.autocast("cpu", dtype=torch.bfloat16):
            return model(x)

    t = tv.trace(f, torch.rand(2, 4))
    casts = t.graph.find(op="_to_copy")
    assert len(casts) == 3, "input, weight and bias"
    assert {str(v.type).partition("[")[0] for node in casts for v in node.outputs} == {"bf16"}
    assert t.output.dtype == torch.bfloat16
    assert len(t.graph.find(op="addmm", dtype="bfloat16")) == 1
    t.check(inputs=True)


@pytest.mark.parametrize("mode", [torch.no_grad, torch.inference_mode])
@pytest.mark.parametrize("inside", [True, False])
def test_no_grad_and_inference_mode(mode: Any, inside: bool) -> None:
    model = nn.Sequential(nn.Linear(4, 4), nn.ReLU(), nn.BatchNorm1d(4)).train()
    x = torch.rand(3, 4)

    def f(x: Tensor) -> Tensor:
        if not inside:
            return model(x)
        with mode():
            y = model(x)
            y[0].mul_(2)
            return y

    if inside:
        t = tv.trace(f, x)
    else:
        with mode():
            t = tv.trace(f, x)
    names = [node.name for node in t.graph.nodes]
    assert "relu" in names and not t.output.requires_grad
    assert {"linear", "addmm"} & set(names), "inference mode shows composite operations whole"
    assert t.output.is_inference() == (mode is torch.inference_mode)
    t.check(inputs=True)


def test_operations_know_whether_gradients_were_recorded() -> None:
    """A few kernels look at the grad mode, so a replay has to know it."""

    def f(x: Tensor) -> Tensor:
        y = x * 2
        with torch.no_grad():
            y = y.neg()
        return y.exp()

    t = tv.trace(f, torch.rand(3))
    assert [node.name for node in t.graph.find(flag="grad_mode")] == ["mul", "exp"]


# ---------------------------------------------------------------- transforms


def test_torch_func_transforms_show_the_operations_that_ran() -> None:
    weight = torch.rand(3, 3)

    def loss(w: Tensor, x: Tensor) -> Tensor:
        return (x @ w).square().sum()

    t = tv.trace(lambda x: torch.func.vmap(torch.func.grad(loss), (None, 0))(weight, x), torch.rand(5, 3))
    assert t.output.shape == (5, 3, 3)
    assert len(t.graph.nodes) > 3
    _, values = t.graph.ancestors(t.graph.outcomes[0].sources())
    assert all(values[value.index] for value in t.graph.inputs)
    t.check(inputs=True)


@pytest.mark.parametrize("name", [case.name for case in ZOO.values() if "func" in case.tags])
def test_torch_func_of_the_zoo_connects_inputs(name: str) -> None:
    case = ZOO[name]
    model, args, kwargs = case.make()
    t = tv.trace(model, *args, kwargs=kwargs)
    used = [value for value in t.graph.inputs if value.role == "input"]
    assert used, "the transform's inputs are known by name"
    outputs = [row for row in t.graph.outcomes if row.kind == "output"]
    reached = [t.graph.ancestors(row.sources())[1] for row in outputs]
    assert any(mask[value.index] for mask in reached for value in used)


@pytest.mark.parametrize("kind", ["SiLU", "Hardswish", "ReLU6", "Mish", "Hardsigmoid", "ReLU"])
@pytest.mark.parametrize("first", [nn.BatchNorm1d(4), nn.Linear(4, 4)])
def test_the_gradient_of_an_in_place_activation_is_its_own(kind: str, first: nn.Module) -> None:
    """Autograd copies the input of most of these first, and the copy makes a node as well."""
    model = nn.Sequential(first, getattr(nn, kind)(inplace=True), nn.Linear(4, 3))
    graph = tv.trace(model, torch.randn(3, 4), backward=True).graph
    forward = next(node for node in graph.nodes if node.path == "1" and node.name.endswith("_"))
    gradients = [node for node in graph.nodes if node.link == forward]
    assert gradients and all(node.path == "1" for node in gradients)
    orphans = [
        node
        for node in graph.nodes
        if node.phase == "backward" and node.link is None and node.name != "ones_like"
    ]
    assert [node.name for node in orphans if "backward" in node.name] == []


@pytest.mark.parametrize("outer", [False, True])
def test_a_transform_inside_a_graph_of_the_users_is_linked_too(outer: bool) -> None:
    """Where the input requires a gradient as well, each operation makes two nodes, and is seen after the second."""
    model = nn.Sequential(nn.Linear(32, 16), nn.ReLU(), nn.Linear(16, 4))
    state = {name: value.detach() for name, value in model.named_parameters()}

    def gradients(x: Tensor) -> Any:
        return torch.func.grad(lambda p: torch.func.functional_call(model, p, (x,)).sum())(state)

    trace = tv.trace(gradients, torch.randn(8, 32, requires_grad=outer))
    trace.check()
    found = [(n.name, n.link.name, n.path) for n in trace.graph.find(op="*mm", phase="backward") if n.link]
    assert found == [("mm", "addmm", "2"), ("mm", "addmm", "2"), ("mm", "addmm", "0")]
    rows = {(row.path, row.type): row for row in trace.summary().modules}
    assert (
        rows["0", "Linear"].backward_flops == 2 * 8 * 16 * 32 + 8 * 16
    )  # of the weight, and the sum for the bias
    outputs = {key: row.outputs for key, row in rows.items()}
    assert outputs["0", "Linear"] == ("f32[8, 16]",) and outputs["", "Sequential"] == ("f32[8, 4]",)
    assert outputs["", "run"] == ("f32[16, 32]",), "what the run gives back is a gradient"


def test_a_model_that_gives_back_a_gradient_has_it_as_its_output() -> None:
    class Forces(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.energy = nn.Sequential(nn.Linear(3, 8), nn.Tanh(), nn.Linear(8, 1))

        def forward(self, x: Tensor) -> Tensor:
            x = x.requires_grad_()
            return torch.autograd.grad(self.energy(x).sum(), x)[0]

    rows = {row.path: row.outputs for row in tv.trace(Forces(), torch.randn(5, 3)).summary().modules}
    assert (
        rows[""] == ("f32[5, 3]",) and rows["energy"] == ("f32[5, 1]",) and rows["energy.0"] == ("f32[5, 8]",)
    )


# ---------------------------------------------------------------- what is done with gradients


def phases_of(run: Callable[..., Any], *args: Any) -> list[tuple[str, str]]:
    trace = tv.trace(run, *args)
    trace.check()
    return [(node.name, node.phase) for node in trace.graph.nodes if node.phase != "backward"]


def test_clipping_and_unscaling_belong_with_the_optimizer() -> None:
    model, scaler = nn.Linear(8, 8), torch.amp.GradScaler("cpu")
    optimizer = torch.optim.SGD(model.parameters())

    def step(x: Tensor) -> None:
        optimizer.zero_grad(set_to_none=False)
        scaler.scale(model(x).sum()).backward()
        scaler.unscale_(optimizer)
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        scaler.step(optimizer)
        scaler.update()

    step(torch.ones(2, 8))
    found = phases_of(step, torch.ones(2, 8))
    for name in (
        "zero_",
        "_amp_foreach_non_finite_check_and_unscale_",
        "_foreach_norm",
        "_foreach_mul_",
        "clamp",
    ):
        assert (name, "optimizer") in found and (name, "forward") not in found
    assert [name for name, phase in found if phase == "forward"][:3] == ["t", "addmm", "sum"]


def test_an_update_by_hand_is_one_and_the_next_forward_is_not() -> None:
    weight = torch.randn(4, 4, requires_grad=True)

    def steps(x: Tensor) -> Tensor:
        for _ in range(2):
            (x @ weight).square().mean().backward()
            with torch.no_grad():
                assert weight.grad is not None
                weight.sub_(0.1 * weight.grad)
                weight.grad = None
        with torch.no_grad():
            return (x @ weight).sum()

    step = [
        ("mm", "forward"),
        ("pow", "forward"),
        ("mean", "forward"),
        ("mul", "optimizer"),
        ("sub_", "optimizer"),
    ]
    assert phases_of(steps, torch.randn(2, 4)) == [*step, *step, ("mm", "forward"), ("sum", "forward")]


def test_what_is_computed_from_inputs_and_gradients_is_forward() -> None:
    """An attack on the input and a saliency update nothing."""
    model = nn.Linear(4, 4)

    def attack(x: Tensor) -> Tensor:
        model(x).sum().backward()
        with torch.no_grad():
            assert x.grad is not None
            return model(x + 0.1 * x.grad.sign())

    def saliency(x: Tensor) -> Tensor:
        model(x).sum().backward()
        assert model.weight.grad is not None
        return (x * model.weight.grad).softmax(-1)

    assert {phase for _, phase in phases_of(attack, torch.randn(4, 4, requires_grad=True))} == {"forward"}
    assert {phase for _, phase in phases_of(saliency, torch.randn(4, 4))} == {"forward"}


def test_a_loss_of_gradients_is_forward() -> None:
    """What is differentiated again is part of what the model computes."""
    model = nn.Linear(4, 4)

    def penalty(x: Tensor) -> None:
        model(x).square().sum().backward(create_graph=True)
        assert model.weight.grad is not None
        model.weight.grad.square().sum().backward()

    names = [name for name, phase in phases_of(penalty, torch.randn(2, 4)) if phase == "forward"]
    assert names == ["t", "addmm", "pow", "sum", "pow", "sum"]


def doubled() -> type[torch.autograd.Function]:
    class Doubled(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, x: Tensor) -> Tensor:
            return x * 2

        @staticmethod
        def backward(ctx: Any, *gradients: Tensor) -> Tensor:
            return gradients[0] * 2

    return Doubled


def test_a_function_whose_class_is_made_anew_has_its_scope_again() -> None:
    x = torch.ones(3, requires_grad=True)
    for _ in range(3):
        function = doubled()
        t = tv.trace(lambda function=function: function.apply(x).sum().backward())
        paths = [node.path for node in t.graph.nodes if node.op.startswith("aten::mul")]
        assert paths == ["Doubled", "Doubled"]
        # the class goes, its code stays
        del function, t
        gc.collect()
