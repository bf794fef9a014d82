"""Runs by shapes alone: the same graph as a real run, and nothing of the user's left changed."""

from __future__ import annotations

import subprocess
import sys
import textwrap
from typing import Any

import pytest
import torch
from torch import nn

import torch_vis as tv
from tests.kit.fake import difference
from tests.kit.traced import NAMES, traced
from tests.zoo import ZOO, close_process_group
from torch_vis.errors import CaptureFailed, NothingToDifferentiate, UsageError

# what takes numbers out of tensors, or has operations that torch knows no shapes for
REFUSED = frozenset(
    """cond_operator custom_operator sparse_output_and_input quantized_tensor quantized_linear
    fake_quantized nested_strided nested_jagged function_subclass lstm gru transformer_train
    encoder_nested_fast_path
    lbfgs_step indexed_reads item_control_flow numpy_round_trip numpy_write yolo_like""".split()
)
# what torch itself gets wrong by shapes, in words of its own
TORCH_FAILS = frozenset("set_storage sparse_coo flex_attention_eager".split())
VIEWS = "autograd writes to views of fake tensors through the views, not through as_strided"
DIFFERENT = {
    **dict.fromkeys(
        """disjoint_view_writes one_column_reader overwritten_column write_base_after_view rows_filled
        write_through_chain_of_views in_place_on_view_with_grad""".split(),
        VIEWS,
    ),
    "parameter_data_assignment": "assigning .data to a real tensor passes by the dispatcher",
    "func_jvp": "functorch makes zero tangents for fake tensors",
    "scan_operator": "scan is traced before it is run",
    "sparse_csr": "sparse sizes depend on numbers",
    "multihead_attention_fast_path": "the fast path is not taken for fake tensors",
    "while_loop_operator": "what the loop began with is let go of at its last operation, not after it",
    "embedding_bag": "torch's rule gives a smaller helper tensor",
}
COMPILED = {
    name for name in NAMES if name.startswith("compile")
}  # Dynamo compiles differently for fake tensors
UNORDERED = {"called_from_threads"}


# DTensor runs operations to work shapes out, but only the first time that a process meets them.
REMEMBERED = {"dtensor_world_of_one"}


@pytest.mark.parametrize("name", [name for name in NAMES if name not in COMPILED | UNORDERED])
def test_the_graph_is_that_of_a_real_run(name: str) -> None:
    case = ZOO[name]
    model, args, kwargs = case.make()
    expected: Any = CaptureFailed if name in REFUSED else Exception
    try:
        if name in REFUSED | TORCH_FAILS:
            with pytest.raises(expected) as caught:
                tv.trace(model, *args, kwargs=kwargs, backward=case.backward, fake=True)
            assert name in TORCH_FAILS or ".py:" in str(caught.value)
            return
        fake = tv.trace(model, *args, kwargs=kwargs, backward=case.backward, fake=True)
    finally:
        close_process_group()
    if name in REMEMBERED:
        few, many = sorted((_operators(fake), _operators(traced(name))), key=len)
        rest = iter(many)
        assert few and all(op in rest for op in few)  # in the same order, with others between
    else:
        assert (difference(traced(name), fake) is None) == (name not in DIFFERENT)


def _operators(trace: tv.Trace) -> list[str]:
    return [node.op for node in trace.graph.nodes]


def make_step(**options: Any) -> tuple[Any, nn.Module, torch.optim.Optimizer]:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(8, 16), nn.BatchNorm1d(16), nn.ReLU(), nn.Dropout(), nn.Linear(16, 4))
    optimizer = torch.optim.AdamW(model.parameters(), **options)

    def step(x: torch.Tensor) -> torch.Tensor:
        optimizer.zero_grad()
        loss = model(x).square().mean()
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        return loss.detach()

    return step, model, optimizer


def snapshot(model: nn.Module, optimizer: torch.optim.Optimizer) -> list[Any]:
    """Everything of a model and its optimizer that a training step changes, by identity and by value."""
    found: list[Any] = [torch.get_rng_state().tolist()]
    for tensor in [*model.parameters(), *model.buffers()]:
        grad = tensor.grad
        found += [id(tensor), tensor._version, tensor.tolist(), id(grad) if grad is not None else None]
        found.append(grad.tolist() if grad is not None else None)
    for parameter, state in optimizer.state.items():
        found.append((id(parameter), {key: (id(item), item.tolist()) for key, item in state.items()}))
    return found


@pytest.mark.parametrize("steps", [0, 2])
@pytest.mark.parametrize("foreach", [False, True])
def test_a_training_step_leaves_everything_as_it_was(steps: int, foreach: bool) -> None:
    step, model, optimizer = make_step(foreach=foreach)
    x = torch.randn(32, 8)
    for _ in range(steps):
        step(x)
    before = snapshot(model, optimizer)
    fake = tv.trace(step, x, fake=True)
    assert snapshot(model, optimizer) == before
    assert all(type(p) is nn.Parameter for p in model.parameters())
    real = tv.trace(step, x, hold=False)
    assert difference(real, fake) is None
    assert fake.memory().peak_bytes == real.memory().peak_bytes


@pytest.mark.parametrize("raises", [False, True])
def test_data_that_was_replaced_comes_back(raises: bool) -> None:
    model = nn.Sequential(nn.Linear(3, 3), nn.BatchNorm1d(3))
    held = [model[0].weight, model[1].running_mean]
    before = [(tensor.data_ptr(), tensor.detach().clone()) for tensor in held]

    def step(x: torch.Tensor) -> torch.Tensor:
        for tensor in held:
            tensor.data = tensor.data * 2
        y = model(x)
        if raises:
            raise KeyError("in the middle")
        return y

    try:
        assert len(tv.trace(step, torch.ones(4, 3), fake=True).graph)
    except KeyError:
        assert raises
    assert [tensor.data_ptr() for tensor in held] == [address for address, _ in before]
    assert all(torch.equal(tensor, copy) for tensor, (_, copy) in zip(held, before))
    assert model(torch.ones(4, 3)).device.type == "cpu"


def test_models_are_called_as_in_a_real_run() -> None:
    first, second = nn.Linear(3, 3), nn.Linear(3, 3)

    def step(x: torch.Tensor) -> torch.Tensor:
        return second(first(x))

    real, by_shapes = (tv.trace(step, torch.ones(1, 3), fake=fake) for fake in (False, True))
    names = [[node.path for node in t.graph.nodes if node.op == "aten::addmm"] for t in (real, by_shapes)]
    assert names == [["first", "second"]] * 2


def test_everything_is_as_it_was_after_an_exception() -> None:
    step, model, optimizer = make_step()
    x = torch.randn(4, 8)
    step(x)

    def fails(x: torch.Tensor) -> None:
        step(x)
        model.extra = torch.ones(3)
        raise KeyError("half-way")

    before, attributes = snapshot(model, optimizer), set(vars(model))
    with pytest.raises(KeyError, match="half-way"):
        tv.trace(fails, x, fake=True)
    assert snapshot(model, optimizer) == before and set(vars(model)) == attributes
    assert not torch.utils._python_dispatch._get_current_dispatch_mode_stack()
    part = tv.trace(fails, x, fake=True, partial=True)
    assert isinstance(part.error, KeyError) and len(part.graph) > 20


def test_the_first_step_makes_the_state_of_the_optimizer() -> None:
    step, _, optimizer = make_step()
    x = torch.randn(4, 8)

    def two_steps() -> None:
        step(x)
        step(x)

    report = tv.trace(two_steps, fake=True).memory()
    assert len(optimizer.state) == 0
    step(x)
    assert report.peak_bytes == tv.trace(step, x).memory().peak_bytes  # of the second step


def test_nothing_is_computed_and_roles_are_known() -> None:
    model = nn.Linear(4, 2)
    trace = tv.trace(model, torch.full((3, 4), float("nan")), backward=True, fake=True)
    assert isinstance(trace.output, torch.Tensor) and trace.output.shape == (3, 2)
    assert {value.name for value in trace.graph.inputs} >= {"weight", "bias", "input"}
    assert [result.name for result in trace.graph.outcomes if result.kind == "gradient"] == [
        "weight.grad",
        "bias.grad",
    ]
    assert any("shapes only" in limit for limit in trace.limits)
    assert model.weight.grad is None


def test_a_model_too_big_for_any_machine() -> None:
    with torch.device("meta"):
        model = nn.Sequential(nn.Linear(1 << 20, 1 << 20), nn.ReLU(), nn.Linear(1 << 20, 8))
    report = tv.trace(model, torch.empty(64, 1 << 20, device="meta"), backward=True, fake=True).memory()
    assert report.peak_bytes > 2 * (1 << 42)  # weights and their gradients
    assert report.graph.devices[report.graph.storage_device[report.peak[0].storage]] == "cpu"


def test_a_model_made_by_the_user_in_a_fake_world() -> None:
    from torch._subclasses.fake_tensor import FakeTensorMode

    with FakeTensorMode():
        model, x = nn.Sequential(nn.Linear(8, 4), nn.Tanh()), torch.ones(2, 8)
    fake = tv.trace(model, x, backward=True, fake=True)
    real = tv.trace(nn.Sequential(nn.Linear(8, 4), nn.Tanh()), torch.ones(2, 8), backward=True)
    assert difference(real, fake) is None
    assert all(p.grad is None for p in model.parameters())


class UnknownStep(nn.Module):
    """A module that somebody forgot to write."""


def set_wrongly(x: torch.Tensor) -> None:
    weight = nn.Parameter(torch.ones(3))
    weight.sum().backward()
    torch.optim.Adam([weight], capturable=True).step()


MISUSED = {
    "attention of another width": (lambda x: nn.MultiheadAttention(16, 2)(x, x, x), AssertionError),
    "a mode for another number of dimensions": (
        lambda x: nn.functional.interpolate(x, scale_factor=2, mode="bilinear"),
        NotImplementedError,
    ),
    "a module without forward": (UnknownStep(), NotImplementedError),
    "an optimizer's own assertion": (set_wrongly, AssertionError),
}


@pytest.mark.parametrize("name", MISUSED)
def test_what_is_wrong_with_real_tensors_is_not_laid_to_missing_shapes(name: str) -> None:
    function, expected = MISUSED[name]
    said = []
    for fake in (False, True):
        with pytest.raises(expected) as caught:
            tv.trace(function, torch.ones(3, 2, 12), fake=fake)
        said.append(str(caught.value))
    assert said[0] == said[1] and "knows no shapes" not in said[1]


def test_a_number_that_decides_is_an_error_that_names_the_line() -> None:
    def decides(x: torch.Tensor) -> torch.Tensor:
        return x + 1 if x.sum() > 0 else x

    with pytest.raises(CaptureFailed, match=r"test_fake\.py:\d+ in .*decides.*shapes only"):
        tv.trace(decides, torch.ones(2), fake=True)
    assert [
        node.name for node in tv.trace(decides, torch.ones(2)).graph.nodes
    ]  # it can be traced with numbers


def test_a_number_that_the_program_knows_may_decide() -> None:
    count = torch.tensor(3)

    def repeats(x: torch.Tensor) -> torch.Tensor:
        for _ in range(int(count)):
            x = x + 1
        return x

    names = [node.name for node in tv.trace(repeats, torch.ones(2), fake=True).graph.nodes]
    assert names.count("add") == 3 and count.item() == 3


def test_options_that_do_not_go_together() -> None:
    with pytest.raises(UsageError, match="leave out via"):
        tv.trace(nn.ReLU(), torch.ones(2), fake=True, via="export")
    with pytest.raises(NothingToDifferentiate):
        tv.trace(nn.ReLU(), torch.ones(2), fake=True, backward=True)


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
def test_a_device_that_is_not_there_is_refused() -> None:
    def run(code: str) -> str:
        command = [sys.executable, "-c", textwrap.dedent(code)]
        done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
        assert done.returncode == 0, done.stderr
        return done.stdout

    said = run("""
        import torch, torch_vis as tv
        from torch._subclasses.fake_tensor import FakeTensorMode
        with FakeTensorMode():
            weight = torch.empty(4, 2, device="cuda", requires_grad=True)
        for program in (lambda: tv.trace(lambda: (weight * 2).sum(), fake=True, backward=True),
                        lambda: tv.trace(lambda: torch.ones(2, device="cuda") * 2, fake=True)):
            try:
                program()
            except tv.errors.UsageError as error:
                print(error)
    """)
    assert said.count("a machine with CUDA") == 2


@pytest.mark.parametrize("backward", [False, True])
def test_lazy_modules_run_by_shapes_and_stay_lazy(backward: bool) -> None:
    model = nn.Sequential(nn.LazyConv2d(4, 3), nn.LazyBatchNorm2d(), nn.Flatten(), nn.LazyLinear(2))
    x = torch.ones(5, 3, 8, 8)
    shown, drawn = repr(model), torch.get_rng_state()
    fake = tv.trace(model, x, fake=True, backward=backward)
    assert repr(model) == shown and torch.equal(torch.get_rng_state(), drawn)
    real = tv.trace(model, x, backward=backward)
    assert [node.name for node in fake.graph.nodes] == [node.name for node in real.graph.nodes]
    assert [value.shape for value in fake.graph.values] == [value.shape for value in real.graph.values]
    # memory that a lazy parameter gets is that of the operation that made it
    assert fake.memory().peak_bytes == real.memory().peak_bytes


@pytest.mark.parametrize("inner", [nn.Linear(3, 3), nn.Sequential(nn.Linear(3, 3), nn.BatchNorm1d(3))])
def test_gradients_that_are_exchanged_in_cpp(inner: nn.Module, tmp_path: Any) -> None:
    torch.distributed.init_process_group("gloo", init_method=f"file://{tmp_path}/store", rank=0, world_size=1)
    try:
        model, x = nn.parallel.DistributedDataParallel(inner), torch.ones(5, 3)
        model(x).sum().backward()
        gradients = [parameter.grad.clone() for parameter in model.parameters()]
        fake = tv.trace(lambda x: model(x).sum().backward(), x, fake=True)
        assert all(map(torch.equal, gradients, [parameter.grad for parameter in model.parameters()]))
        real = tv.trace(lambda x: model(x).sum().backward(), x)
        said = [[(row.kind, row.bytes) for row in t.communication().exchanges] for t in (fake, real)]
        assert said[0] == said[1] and said[0][-1][0] == "all_reduce"
        assert fake.memory().peak_bytes == real.memory().peak_bytes
        assert all(
            torch.equal(2 * old, parameter.grad) for old, parameter in zip(gradients, model.parameters())
        )
    finally:
        torch.distributed.destroy_process_group()
