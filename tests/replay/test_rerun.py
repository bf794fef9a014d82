"""t.run: the recorded graph on new inputs, with replacements like forward hooks', keeping activations."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from torch import Tensor, nn

import torch_vis as tv
from tests.zoo import ZOO, close_process_group
from torch_vis.errors import NoMatch, TensorsMissing, UsageError


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.a, self.act, self.flat, self.b = nn.Linear(4, 4), nn.ReLU(), nn.Flatten(), nn.Linear(4, 2)
        self.norm = nn.BatchNorm1d(2)

    def forward(self, x: Tensor, scale: float = 1.0) -> dict[str, Tensor]:
        h = self.act(self.a(x))
        g = self.flat(h.view(3, 2, 2))
        y = self.norm(self.b(g)) + h.sum() * scale
        return {"y": y, "x": x * 2}


X, OTHER = torch.randn(3, 4), torch.randn(3, 4)


@pytest.fixture
def model() -> nn.Module:
    torch.manual_seed(0)
    return Net().eval()


def test_new_inputs_give_what_the_model_gives(model: nn.Module) -> None:
    t = tv.trace(model, X)
    assert torch.equal(t.run(OTHER).output["y"], model(OTHER)["y"])
    assert torch.equal(t.run(kwargs={"x": OTHER}).output["y"], model(OTHER)["y"])
    assert torch.equal(t.run().output["y"], t.output["y"])
    strided = torch.randn(4, 3).t()
    assert torch.equal(t.run(strided).output["x"], strided * 2)


def test_gradients_and_state_are_those_of_a_new_run_and_the_model_is_left_alone() -> None:
    torch.manual_seed(0)
    model = Net().train()
    t = tv.trace(model, X, backward=True)
    kept = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    again = t.run(OTHER)
    for name, tensor in model.state_dict().items():
        assert torch.equal(tensor, kept[name]), name
    torch.manual_seed(0)
    fresh = Net().train()
    out = fresh(OTHER)
    (out["y"].sum() + out["x"].sum() if out["x"].requires_grad else out["y"].sum()).backward()
    assert torch.equal(again.output["y"], out["y"])
    for name, parameter in fresh.named_parameters():
        assert torch.equal(again.gradients[name], parameter.grad), name
    assert torch.equal(again.state["norm.running_mean"], fresh.norm.running_mean)


@pytest.mark.parametrize("name", ["a", "act", "flat", "b", "norm"])
def test_a_replacement_is_what_a_forward_hook_would_do(model: nn.Module, name: str) -> None:
    """`flat` gives a view of memory that is read elsewhere too: only its own readers see the replacement."""
    t = tv.trace(model, X)
    before = t.output["y"].clone()
    again = t.run(replace={name: lambda y: y * 0 + 1})
    hook = model.get_submodule(name).register_forward_hook(lambda *given: given[2] * 0 + 1)
    wanted = model(X)["y"]
    hook.remove()
    assert torch.equal(again.output["y"], wanted) and not torch.equal(before, wanted)
    assert torch.equal(t.run().output["y"], before)


def test_gradients_after_a_replacement_are_those_of_a_hook_that_adds(model: nn.Module) -> None:
    t = tv.trace(model, X, backward=True)
    again = t.run(replace={"act": lambda y: y + 1})
    model.zero_grad()
    hook = model.get_submodule("act").register_forward_hook(lambda *given: given[2] + 1)
    model(X)["y"].sum().backward()
    hook.remove()
    for name, parameter in model.named_parameters():
        assert torch.equal(again.gradients[name], parameter.grad), name


def test_only_what_depends_on_a_replacement_runs(model: nn.Module) -> None:
    t = tv.trace(model, X, backward=True)
    whole = t.run(OTHER, keep="all")
    for name in ("b", "norm", "act"):
        wanted = t.run(OTHER, replace={name: lambda y: y + 1}, keep=["a", "b"])
        found = whole.again(replace={name: lambda y: y + 1}, keep=["a", "b"])
        assert found.ran < wanted.ran
        assert torch.equal(found.output["y"], wanted.output["y"])
        for key, gradient in wanted.gradients.items():
            assert torch.equal(found.gradients[key], gradient), (name, key)
        for key, kept in wanted.kept.items():
            assert torch.equal(found.kept[key], kept), (name, key)
    assert torch.equal(whole.output["y"], model(OTHER)["y"])
    assert found.output["x"] is whole.output["x"]
    with pytest.raises(UsageError, match='keep="all"'):
        t.run(OTHER).again(replace={"b": torch.relu})


def test_what_is_written_in_place_is_made_again() -> None:
    def fill(x: Tensor) -> Tensor:
        cache = torch.zeros(3, 2)
        for step in range(3):
            cache[step] = torch.tanh(x) * step
        return cache.sum() + torch.sigmoid(x)

    t = tv.trace(fill, torch.ones(2))
    whole = t.run(torch.full((2,), 0.5), keep="all")
    tanh = t.graph.find(op="tanh")[1]
    found = whole.again(replace={tanh: torch.zeros(2)})
    assert torch.equal(found.output, t.run(torch.full((2,), 0.5), replace={tanh: torch.zeros(2)}).output)
    assert not torch.equal(found.output, whole.output)


def test_random_operations_draw_what_they_drew() -> None:
    def noisy(x: Tensor) -> tuple[Tensor, Tensor]:
        return torch.dropout(x, 0.5, True), torch.dropout(x + 1, 0.5, True)

    t = tv.trace(noisy, torch.ones(64))
    one, two = t.output
    assert torch.equal(t.run().output[0], one)
    again = t.run(torch.ones(64))
    assert torch.equal(again.output[1], two)
    (add,) = [node for node in t.graph.find(op="add") if node.outputs[0].users]
    assert torch.equal(t.run(replace={add: lambda y: y}).output[1], two)


def test_nodes_operators_and_patterns(model: nn.Module) -> None:
    t = tv.trace(model, X)
    (relu,) = t.graph.find(op="relu")
    zero = t.run(replace={relu: torch.zeros_like}).output["y"]
    assert torch.equal(zero, t.run(replace={relu.index: torch.zeros(3, 4)}).output["y"])
    assert torch.equal(zero, t.run(replace={"act": torch.zeros_like}).output["y"])
    assert torch.equal(zero, t.run(replace={"relu": torch.zeros_like}).output["y"])


def test_a_module_called_twice_is_replaced_twice() -> None:
    layer = nn.Linear(3, 3)
    model = nn.Sequential(layer, nn.Tanh(), layer)
    t = tv.trace(model, torch.ones(1, 3))
    seen: list[Tensor] = []

    def note(y: Tensor) -> Tensor:
        seen.append(y)
        return y + 1

    again = t.run(replace={"0": note})
    assert len(seen) == 2
    assert torch.equal(again.output, layer(torch.tanh(layer(torch.ones(1, 3)) + 1)) + 1)


def test_activations_in_memory_and_on_disk(model: nn.Module, tmp_path: Path) -> None:
    t = tv.trace(model, X, backward=True)
    caught: dict[str, Tensor] = {}
    for name in ("act", "b"):
        module = model.get_submodule(name)
        module.register_forward_hook(lambda *given, name=name: caught.__setitem__(name, given[2]))
        module.register_full_backward_hook(
            lambda *given, name=name: caught.__setitem__(f"{name}.grad", given[2][0])
        )
    model(OTHER)["y"].sum().backward()
    kept = t.run(OTHER, keep=["act", "b"]).kept
    assert set(kept) == set(caught)
    for name, tensor in caught.items():
        assert torch.equal(kept[name], tensor), name
    everything = t.run(OTHER, keep="all").kept
    assert len(everything) >= len(t.graph)
    again = t.run(OTHER, keep="all", to=tmp_path / "acts.safetensors")
    written = load_file(tmp_path / "acts.safetensors")
    assert again.kept == {} and set(written) == set(everything)
    for name, tensor in everything.items():
        assert torch.equal(written[name], tensor), name


def test_a_kept_value_is_as_it_was_before_a_later_write() -> None:
    def write(x: Tensor) -> Tensor:
        y = x * 2
        y.add_(1)
        return y + 0

    kept = tv.trace(write, torch.ones(2)).run(torch.zeros(2), keep=["mul", "add_"]).kept
    assert [tensor.tolist() for tensor in kept.values()] == [[0, 0], [1, 1]]


def test_sizes_that_are_open_can_be_other_sizes() -> None:
    model = nn.Linear(4, 2)
    t = tv.trace(model, X, via="export", dynamic_shapes=({0: torch.export.Dim("n", min=2, max=8)},))
    other = torch.randn(5, 4)
    assert torch.equal(t.run(other).output, model(other))
    assert torch.equal(t.run(OTHER).output, model(OTHER))
    with pytest.raises(UsageError, match="2 ≤ "):
        t.run(torch.randn(9, 4))
    with pytest.raises(UsageError, match="recorded sizes"):
        t.run(other, keep="all")


def test_a_branch_that_data_decided_is_named() -> None:
    def branch(x: Tensor) -> Tensor:
        return x + 1 if x.sum() > 0 else x - 1

    t = tv.trace(branch, torch.ones(2))
    assert t.run(torch.full((2,), 3.0)).limits == t.run().limits == ()
    with pytest.raises(
        UsageError, match=r"a branch on a tensor at .*saw True in the recorded run and sees False now"
    ):
        t.run(-torch.ones(2))


def test_a_number_that_left_for_python_is_named_where_it_is_another_now() -> None:
    t = tv.trace(lambda x: x * x.sum().item(), torch.ones(2))
    (told,) = t.run(torch.full((2,), 3.0)).limits
    assert "left for Python" in told and "(2.0, and 6.0 now)" in told
    assert t.run(torch.tensor([0.5, 1.5])).limits == ()


@pytest.mark.parametrize(
    ("call", "told"),
    [
        (lambda t: t.run(torch.ones(2, 4)), r"'x' is \[2, 4\] and was \[3, 4\].*export"),
        (lambda t: t.run(X.double()), "float64 and was torch.float32"),
        (lambda t: t.run(X.to("meta")), "on meta and was on cpu"),
        (lambda t: t.run([X]), "lack 'x'"),
        (lambda t: t.run(X, 2.0), "recorded with"),
        (lambda t: t.run(replace={"a": lambda y: y[:1]}), "shape"),
        (lambda t: t.run(replace={"a": lambda y: None}), "not a tensor"),
        (lambda t: t.run(replace={"a": 3}), "tensor or a function"),
        (lambda t: t.run(replace=[1]), "dictionary"),
        (lambda t: t.run(replace={99_999: torch.relu}), "no node 99999"),
        (lambda t: t.run(keep=3.5), "a selector is a text"),
        (lambda t: t.run(to="x.safetensors"), "keep="),
        (lambda t: t.run(keep="all", to="x.bin"), "safetensors"),
    ],
)
def test_what_cannot_run_says_why(model: nn.Module, call: Any, told: str) -> None:
    with pytest.raises(UsageError, match=told):
        call(tv.trace(model, X))


def test_unknown_names_and_traces_without_tensors(model: nn.Module) -> None:
    t = tv.trace(model, X)
    with pytest.raises(NoMatch, match="did you mean 'norm'"):
        t.run(replace={"nrom": torch.relu})
    with pytest.raises(TensorsMissing, match="hold=False"):
        tv.trace(model, X, hold=False).run(X)
    with tv.record() as block:
        y = X * 2
    assert torch.equal(next(iter(block.run().output.values())), y)
    with pytest.raises(UsageError, match="block"):
        block.run(X)


REAL = ["residual", "vit", "batch_norm_train", "lstm_cell_loop", "kv_cache", "dropout_train", "tied_weights"]


@pytest.mark.parametrize("name", [name for name in REAL if name in ZOO])
def test_zoo_models_run_again_bit_for_bit(name: str) -> None:
    case = ZOO[name]
    model, args, kwargs = case.make()
    t = tv.trace(model, *args, kwargs=kwargs, backward=case.backward)
    close_process_group()
    again = t.run(keep="all")
    for result in t.graph.outcomes:
        found = {"gradient": again.gradients, "state": again.state}.get(result.kind)
        if found is not None:
            name_ = result.name.removesuffix(".grad") if result.kind == "gradient" else result.name
            assert torch.equal(found[name_], t.kept.results[result.index]), result
    wanted = torch.utils._pytree.tree_leaves(t.output)
    for one, two in zip(wanted, torch.utils._pytree.tree_leaves(again.output)):
        assert not isinstance(one, Tensor) or torch.equal(one, two)


def test_a_model_in_another_mode_than_it_was_recorded_in_is_told_of() -> None:
    class Norms(torch.nn.Sequential):
        @torch.no_grad()
        def forward(self, x: Tensor) -> Tensor:
            return super().forward(x) * (2 if self.training else 1)

    model = torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.Dropout(), Norms(torch.nn.BatchNorm1d(4)))
    x = torch.randn(6, 4)
    t = tv.trace(model, x)
    assert t.run(x).limits == ()
    model.eval()
    (sentence,) = t.run(x).limits
    assert sentence == (
        "in evaluation mode now and in training mode in the recorded run: 1, 2, 2.0; the operations that run are those "
        "that were recorded"
    )
    assert t.run(x, keep="all").again(replace={"0": tv.edit.zero()}).limits == (sentence,)
    # a class that does not look at it runs the same
    plain = torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.ReLU())
    t = tv.trace(plain, x)
    plain.eval()
    assert t.run(x).limits == ()


def test_an_array_where_a_tensor_was_recorded_is_named() -> None:
    t = tv.trace(torch.nn.Linear(4, 2), torch.ones(3, 4))
    with pytest.raises(tv.errors.UsageError, match="'input' is of type ndarray here and was a tensor"):
        t.run(torch.ones(3, 4).numpy())


def test_bounds_in_the_wrong_order_are_refused() -> None:
    # torch would set everything to the upper one
    with pytest.raises(tv.errors.UsageError, match=r"clamp\(3, 1\): the lower bound comes first"):
        tv.edit.clamp(3, 1)


class HandsOn(torch.nn.Module):
    """Modules that hand on what no operation has read by then: an input, a parameter, what is written to later."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.weights = torch.nn.Identity(), torch.nn.Dropout()
        self.weight, self.fc = torch.nn.Parameter(torch.randn(4)), torch.nn.Linear(4, 4)
        self.pair, self.unread = torch.nn.Identity(), torch.nn.Identity()

    def forward(self, x: Tensor, y: Tensor, z: Tensor) -> Tensor:
        """Run."""
        x = self.first(x)
        weight = self.weights(self.weight)
        (y, _) = self.pair((y, x))
        self.unread(z)
        y += 1
        return self.fc(x) * weight + y


def test_a_module_that_hands_on_what_nothing_has_read_yet_can_be_kept() -> None:
    torch.manual_seed(0)
    model = HandsOn().eval()
    old, new = (tuple(torch.randn(2, 4) for _ in range(3)) for _ in range(2))
    given = [tensor.clone() for tensor in new]
    t = tv.trace(model, *old)
    run = t.run(*new, keep=["first", "first.input", "weights", "pair"])
    assert torch.equal(run.kept["first"], given[0]) and torch.equal(run.kept["first.input"], given[0])
    assert torch.equal(run.kept["weights"], model.weight)
    assert [torch.equal(*pair) for pair in zip(run.kept["pair"], (given[1], given[0]))] == [True, True]
    assert torch.equal(run.output, model(*(tensor.clone() for tensor in given)))
    with pytest.raises(tv.errors.UsageError, match=r"none of the run read what it gave on; tv\.live keeps"):
        t.run(keep="unread")


def test_a_pattern_passes_over_modules_that_ran_nothing() -> None:
    model = torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.Dropout(), torch.nn.Tanh()).eval()
    t = tv.trace(model, torch.ones(2, 4))
    assert sorted(t.run(torch.ones(2, 4), keep="*").kept) == ["0", "2"]
    assert torch.equal(t.run(keep="1").kept["1"], t.run(keep="0").kept["0"])
    with pytest.raises(tv.errors.UsageError, match="ran no operation of its own"):
        t.run(replace={"1": torch.zeros_like})


def test_a_rerun_with_gradients_trains_what_replaces() -> None:
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(3, 4), torch.nn.ReLU(), torch.nn.Linear(4, 2))
    x = torch.randn(2, 3)
    t = tv.trace(model, x)
    shift = torch.nn.Parameter(torch.ones(4))
    by_hand = {
        tv.edit.add(shift): model[0](x) + shift,
        (lambda y: y * shift): model[0](x) * shift,
        shift.expand(2, 4): shift.expand(2, 4),
    }
    for by, hidden in by_hand.items():
        run = t.run(replace={"0": by}, keep="1", differentiable=True)
        expected = model[2](hidden.relu())
        assert torch.equal(run.output, expected)
        (grad,) = torch.autograd.grad(run.output.sum() + run.kept["1"].sum(), shift)
        (wanted,) = torch.autograd.grad(expected.sum() + hidden.relu().sum(), shift)
        assert torch.allclose(grad, wanted)


def test_gradients_of_a_rerun_come_to_its_inputs() -> None:
    model = torch.nn.Linear(3, 2)
    x = torch.randn(2, 3, requires_grad=True)
    (grad,) = torch.autograd.grad(
        tv.trace(model, torch.zeros(2, 3)).run(x, differentiable=True).output.sum(), x
    )
    assert torch.equal(grad, torch.autograd.grad(model(x).sum(), x)[0])


def test_a_rerun_with_gradients_refuses_what_it_cannot_do() -> None:
    t = tv.trace(torch.nn.Sequential(torch.nn.Linear(3, 2), torch.nn.Tanh()), torch.ones(2, 3), backward=True)
    with pytest.raises(UsageError, match="keeps places by name"):
        t.run(keep="all", differentiable=True)
    with pytest.raises(UsageError, match="nothing else"):
        t.run(replace={"0.grad": torch.zeros_like}, differentiable=True)


def test_what_repeats_its_elements_is_replaced_by_what_does_too() -> None:
    class Spread(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            return (x * 2).expand(3, 4)

    class Net(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.spread = Spread()

        def forward(self, x: Tensor) -> Tensor:
            out: Tensor = self.spread(x) + 1
            return out

    t = tv.trace(Net(), torch.arange(4.0))
    new = torch.tensor([1.0, float("nan"), 3.0, 4.0]).expand(3, 4)
    assert torch.equal(t.run(replace={"spread": new}).output.nan_to_num(), (new + 1).nan_to_num())
    with pytest.raises(UsageError, match="'spread' repeats its elements along dimension 0 in memory"):
        t.run(replace={"spread": torch.arange(12.0).view(3, 4)})
