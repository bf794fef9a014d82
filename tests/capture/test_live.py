"""tv.live: activations kept and changed during real calls equal hand-written hooks bit for bit, and nothing is left."""

from __future__ import annotations

import random
import warnings
from collections.abc import Callable
from typing import Any, NamedTuple

import pytest
import torch
from torch import Tensor, nn

import torch_vis as tv
from tests.zoo import ZOO, close_process_group, leaves, same_bits
from torch_vis.errors import NoMatch, UsageError


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.fc, self.act = nn.Linear(4, 4), nn.Tanh()

    def forward(self, x: Tensor, scale: float = 1.0) -> tuple[Tensor, dict[str, Tensor]]:
        h = self.act(self.fc(x)) * scale
        return h, {"twice": h * 2}


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.blocks = nn.ModuleList([Block(), Block()])
        self.drop, self.head = nn.Dropout(), nn.Linear(4, 2)

    def forward(self, x: Tensor) -> Tensor:
        for block in (*self.blocks, self.blocks[0]):
            x, more = block(x, scale=0.5)
            x = x + more["twice"]
        return self.head(self.drop(x)) + x.sum()


@pytest.fixture
def model() -> Net:
    torch.manual_seed(0)
    return Net().eval()


X = torch.randn(3, 4)


def state_of(model: nn.Module) -> list[Any]:
    """What a live run could leave behind on a model."""
    return [
        (
            sorted(vars(module)),
            len(module._forward_hooks),
            len(module._forward_pre_hooks),
            len(module._backward_hooks),
            module.__dict__.get("forward"),
        )
        for module in model.modules()
    ]


def test_what_calls_give_is_kept_in_its_form_for_inputs_of_any_size(model: Net) -> None:
    before = state_of(model)
    with tv.live(model, keep=["blocks.0", "head.input"]) as run:
        for rows in (1, 5, 2):
            model(torch.ones(rows, 4))
    assert run.calls == 3 and len(run.kept["blocks.0"]) == 6, "it is called twice in each call"
    first, more = run.kept["blocks.0"][0]
    assert tuple(first.shape) == (1, 4) and torch.equal(more["twice"], first * 2)
    assert [tuple(kept.shape) for kept in run.kept["head.input"]] == [(1, 4), (5, 4), (2, 4)]
    assert state_of(model) == before


def test_calls_are_told_apart(model: Net) -> None:
    with tv.live(model, keep=["blocks.0:1", "blocks.0#3.output.twice"]) as run:
        model(X)
        model(X * 2)
    assert len(run.kept["blocks.0:1"]) == 2, "the second of each call of the model"
    assert len(run.kept["blocks.0#3.output.twice"]) == 1, "the fourth of the run"
    assert torch.equal(run.kept["blocks.0:1"][1][1]["twice"], run.kept["blocks.0#3.output.twice"][0])


def test_what_is_kept_is_not_changed_by_later_writes() -> None:
    model = nn.Sequential(nn.Linear(3, 3), nn.ReLU(inplace=True))
    x = torch.randn(2, 3)
    with tv.live(model, keep="0") as run:
        model(x)
    assert torch.equal(run.kept["0"][0], model[0](x))


def test_a_learned_intervention_trains(model: Net) -> None:
    steer = nn.Linear(4, 4)
    optimizer = torch.optim.SGD(steer.parameters(), 0.001)
    losses = []
    for _ in range(3):
        with tv.live(model, replace={"blocks.1.act": steer}, keep="blocks.1.act", differentiable=True) as run:
            loss = (model(X) - 1).pow(2).mean()
        assert run.kept["blocks.1.act"][0].requires_grad
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    assert losses[-1] < losses[0]


def test_gradients_are_kept_and_replaced(model: Net) -> None:
    seen: list[Tensor] = []

    def grads(hook: Callable[[Tensor], Tensor | None] | None) -> list[Tensor]:
        model.zero_grad()
        handles = []
        if hook is not None:
            on = lambda _, __, out: out.register_hook(hook) and None  # noqa: E731
            handles.append(model.blocks[1].act.register_forward_hook(on))
        model(X).sum().backward()
        for handle in handles:
            handle.remove()
        return [p.grad.clone() for p in model.parameters() if p.grad is not None]

    wanted = grads(lambda grad: grad * 0.5)
    plain = grads(seen.append)
    model.zero_grad()
    with tv.live(model, replace={"blocks.1.act.grad": tv.edit.scale(0.5)}):
        model(X).sum().backward()
    found = [p.grad.clone() for p in model.parameters() if p.grad is not None]
    assert all(map(torch.equal, wanted, found)) and not all(map(torch.equal, plain, found))
    with tv.live(model, keep="blocks.1.act.grad") as run:
        model(X).sum().backward()
    assert torch.equal(run.kept["blocks.1.act.grad"][0], seen[0])


def test_until_stops_each_call_and_leaves_the_model_as_it_was(model: Net) -> None:
    ran: list[int] = []
    handle = model.head.register_forward_hook(lambda *_: ran.append(1))
    before = state_of(model)
    with tv.live(model, keep="blocks.0.fc", until=True) as run:
        assert model(X) is None and model(X) is None
    assert len(run.kept["blocks.0.fc"]) == 2 and not ran
    with tv.live(model, keep="**.fc", until="blocks.1.fc") as run:
        model(X)
    assert sorted(run.kept) == ["blocks.0.fc", "blocks.1.fc"] and not ran
    assert state_of(model) == before
    handle.remove()
    t = tv.trace(model, X, keep="blocks.0", until=True)
    assert t.activations["blocks.0"] and not t.graph.query().names.operators.count("aten::sum")


@pytest.mark.parametrize("error", [ValueError, KeyboardInterrupt])
def test_nothing_is_left_after_an_exception(model: Net, error: type[BaseException]) -> None:
    before, fast = state_of(model), torch.backends.mha.get_fastpath_enabled()

    def fail(_: Tensor) -> Tensor:
        raise error("stop")

    for replace in ({"blocks.1.act": fail}, {"blocks.1/tanh:0": fail}):
        with pytest.raises(error), tv.live(model, keep="blocks.0", replace=replace, until="head"):
            model(X)
        assert state_of(model) == before
        assert not torch.utils._python_dispatch._get_current_dispatch_mode_stack()
    assert torch.backends.mha.get_fastpath_enabled() is fast


def test_operations_inside_a_module_and_edges(model: Net) -> None:
    with torch.no_grad(), tv.live(model, keep=["blocks.1/tanh:0", "head/addmm.input.mat1"]) as run:
        model(X)
    with tv.live(model, keep=["blocks.1.act", "head.input"]) as hooks:
        model(X)
    assert torch.equal(run.kept["blocks.1/tanh:0"][0], hooks.kept["blocks.1.act"][0])
    assert torch.equal(run.kept["head/addmm:0.input.mat1"][0], hooks.kept["head.input"][0])
    with torch.no_grad(), tv.live(model, replace={"blocks.1/tanh:0": tv.edit.zero()}):
        by_operation = model(X)
    with torch.no_grad(), tv.live(model, replace={"blocks.1.act": tv.edit.zero()}):
        assert torch.equal(model(X), by_operation)
    t = tv.trace(nn.Sequential(nn.Linear(4, 4), nn.Tanh()), X)
    with pytest.raises(UsageError, match="reads nothing of it"):
        t.run(replace={"0 -> 0": tv.edit.zero()})


def test_an_edge_is_what_one_reader_reads() -> None:
    class Fork(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.a, self.b, self.c = nn.Linear(4, 4), nn.Linear(4, 4), nn.Linear(4, 4)

        def forward(self, x: Tensor) -> Tensor:
            h = self.a(x)
            return self.b(h.view(-1, 4)) + self.c(h)

    torch.manual_seed(0)
    model = Fork()
    with torch.no_grad():
        wanted = model.b(torch.zeros(3, 4)) + model.c(model.a(X))
        with tv.live(model, replace={"a -> b": tv.edit.zero()}):
            assert torch.equal(model(X), wanted)
    t = tv.trace(model, X)
    assert torch.equal(t.run(replace={"a -> b": tv.edit.zero()}).output, wanted)
    assert torch.equal(t.run(keep="all").again(replace={"a -> b": tv.edit.zero()}).output, wanted)
    both = t.run(replace={"a -> b": tv.edit.zero(), "a -> c": tv.edit.zero()}).output
    assert torch.equal(both, t.run(replace={"a": tv.edit.zero()}).output)


def test_heads_of_multi_head_attention_and_of_fused_projections() -> None:
    class Fused(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.num_heads = 4
            self.qkv, self.proj = nn.Linear(16, 48), nn.Linear(16, 16)

        def forward(self, x: Tensor) -> Tensor:
            q, k, v = self.qkv(x).view(*x.shape[:2], 3, 4, 4).permute(2, 0, 3, 1, 4)
            z = nn.functional.scaled_dot_product_attention(q, k, v)
            return self.proj(z.transpose(1, 2).reshape(x.shape))

    torch.manual_seed(0)
    model, x = nn.Sequential(), torch.randn(2, 5, 16)
    model.add_module("attn", Fused())

    def without_head(_: Any, args: tuple[Tensor]) -> tuple[Tensor]:
        z = args[0].clone()
        z[..., 8:12] = 0
        return (z,)

    with torch.no_grad():
        handle = model.attn.proj.register_forward_pre_hook(without_head)
        wanted = model(x)
        handle.remove()
        with tv.live(model, replace={"attn[head=2]": tv.edit.zero()}):
            assert torch.equal(model(x), wanted)
        assert torch.equal(tv.trace(model, x).run(replace={"attn[head=2]": tv.edit.zero()}).output, wanted)
        with pytest.raises(UsageError, match="there are 4 heads"), tv.live(model, keep="attn[head=4]"):
            model(x)


def test_compiled_models_run_as_written_and_are_not_compiled_again() -> None:
    from torch._dynamo.utils import counters

    model = nn.Sequential(nn.Linear(4, 4), nn.Tanh())
    compiled = torch.compile(model, backend="eager")
    with torch.no_grad():
        wanted = compiled(X)
        frames = counters["frames"]["ok"]
        with tv.live(compiled, keep="0") as run:
            assert torch.equal(compiled(X), wanted)
        assert torch.equal(run.kept["0"][0], model[0](X)) and "compiled" in run.limits[0]
        compiled(X)
    assert counters["frames"]["ok"] == frames


@pytest.mark.parametrize(
    ("call", "told"),
    [
        (lambda m: tv.live(m, keep="blocks.9"), "no module or operation 'blocks.9'"),
        (lambda m: tv.live(m, keep="fc"), "'fc' is ambiguous: 2 modules end so"),
        (lambda m: tv.live(m, keep="class:Lineer"), "no module of class 'Lineer'; did you mean 'Linear'"),
        (lambda m: tv.live(m, replace={"head": 3}), "a tensor or a function"),
        (lambda m: tv.live(m, replace=["head"]), "dictionary"),
        (lambda m: tv.live(m, keep="head[head=1]"), "has no heads"),
        (lambda m: tv.live(m, keep=""), "empty selector"),
        (lambda m: tv.live(m, keep="(head"), r"\( is not closed"),
        (lambda m: tv.live(m, keep="~" * 3000 + "head"), "nested at most 100 deep"),
        (lambda m: tv.live(m, keep="(" * 3000 + "head" + ")" * 3000), "nested at most 100 deep"),
        (lambda m: tv.live(m, keep="q" * 1_000_000), "at most 100,000 characters, and 'qqq.* has 1,000,000"),
        (lambda m: tv.live(m, keep="(head | fc)" * 40), "at most 10,000 parts"),
        (lambda m: tv.live(m, keep="head[a]"), "no index"),
        (lambda m: tv.live(m, until=True), "say what to keep"),
        (lambda m: tv.live(lambda x: x), "takes a module"),
        (lambda m: tv.live(m, keep="head/addmm#5"), "recorded graph"),
        (lambda m: tv.live(m, keep="phase:backward"), "recorded graph"),
    ],
)
def test_what_cannot_be_selected_says_why(model: Net, call: Any, told: str) -> None:
    with pytest.raises((UsageError, NoMatch), match=told):
        call(model)


@pytest.mark.parametrize(
    ("replace", "told"),
    [
        ({"head": lambda y: y[:1]}, "shape"),
        ({"head": lambda y: None}, "not a tensor"),
        ({"head": torch.zeros(3, 2, dtype=torch.int64)}, "dtype"),
        ({"blocks.0": lambda out: out[0]}, "gives 2 tensors in a tuple"),
        ({"head[9]": tv.edit.zero()}, "out of bounds"),
        ({"head": tv.edit.project(torch.ones(7))}, "direction of 2 elements"),
        ({"head": tv.edit.swap([0])}, "an index for each of the rows"),
        ({"blocks.0:7": tv.edit.zero()}, "nothing was replaced at 'blocks.0:7'"),
    ],
)
def test_a_replacement_of_another_form_is_one_clear_error(model: Net, replace: Any, told: str) -> None:
    with pytest.raises(UsageError, match=told), tv.live(model, replace=replace):
        model(X)
    assert all(not module._forward_hooks for module in model.modules())


def test_the_old_name_of_hold_says_what_to_write(model: Net) -> None:
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        assert tv.trace(model, X, keep=False).kept is None
        with tv.record(keep=False) as block:
            model(X)
    assert block.kept is None
    assert [str(w.message).partition(",")[0] for w in caught] == [
        "keep= of trace() is now called hold=",
        "keep= of record() is now called hold=",
    ]
    assert all(w.filename == __file__ for w in caught)


def test_what_two_branches_select_is_changed_once() -> None:
    model, x = nn.Sequential(nn.Linear(2, 2), nn.ReLU()), torch.ones(1, 2)
    with tv.live(model, replace={"0 | class:Linear": lambda y: y * 3}, keep="0 | *") as run:
        model(x)
    assert torch.equal(run.kept["0"][0], model[0](x) * 3) and [*map(len, run.kept.values())] == [1, 1]


def test_what_was_kept_answers_to_the_end_of_a_name() -> None:
    model = nn.Sequential(nn.Sequential(nn.Linear(2, 2), nn.ReLU()), nn.Sequential(nn.Linear(2, 2)))
    x = torch.ones(1, 2)
    with tv.live(model, keep=["0.1", "*.0"]) as run:
        model(x)
    kept = tv.trace(model, x).run(keep=["0.1", "0.0", "1.0"]).kept
    for by_name in (run.kept, kept):
        assert by_name["1"] is by_name["0.1"] and "1" not in by_name and by_name.get("1") is None
        with pytest.raises(UsageError, match=r"'0' is ambiguous: '0\.0', '1\.0' were kept"):
            by_name["0"]
        with pytest.raises(UsageError, match=r"no activation '0\.2'"):
            by_name["0.2"]


# ---------------------------------------------------------------- bit for bit with hooks, over the zoo

EDITS: list[Callable[[], tuple[Any, Callable[[Tensor], Tensor]]]] = [
    lambda: (tv.edit.zero(), torch.zeros_like),
    lambda: (tv.edit.scale(0.5), lambda y: y * 0.5),
    lambda: (tv.edit.add(0.25), lambda y: y + 0.25),
    lambda: (tv.edit.clamp(-0.1, 0.1), lambda y: y.clamp(-0.1, 0.1)),
    lambda: (lambda y: y * 2 + 1, lambda y: y * 2 + 1),
]
TRIES = 4  # for each model


def candidates(model: nn.Module, args: Any, kwargs: Any) -> list[str]:
    """The paths of modules that are called once and return one floating tensor."""
    seen: dict[str, list[Any]] = {}
    handles = [
        module.register_forward_hook(lambda _, __, out, path=path: seen.setdefault(path, []).append(out))
        for path, module in model.named_modules()
        if path
    ]
    try:
        with torch.no_grad():
            model(*args, **kwargs)
    finally:
        for handle in handles:
            handle.remove()
    return [
        path
        for path, outs in seen.items()
        if len(outs) == 1
        and type(outs[0]) is Tensor
        and outs[0].is_floating_point()
        and not outs[0].is_sparse
        # torch cannot clamp these, and a compiled module has no name of its own
        and not outs[0].is_nested
        and not path.endswith("_orig_mod")
    ]


MODELS = [name for name, case in ZOO.items() if not {"slow", "real"} & set(case.tags)]


@pytest.mark.parametrize("name", MODELS)
def test_interventions_equal_hooks_bit_for_bit(name: str) -> None:
    case = ZOO[name]
    model, args, kwargs = case.make()
    if not isinstance(model, nn.Module):
        pytest.skip("a function")
    model.eval()
    try:
        paths = candidates(model, args, kwargs)
    except Exception as error:
        pytest.skip(f"does not run in eval mode without gradients: {type(error).__name__}")
    finally:
        close_process_group()
    if not paths:
        pytest.skip("no module returns one floating tensor")
    generator = random.Random(name)
    for _ in range(TRIES):
        path, (edit, by_hand) = generator.choice(paths), generator.choice(EDITS)()
        fresh, args, kwargs = case.make()
        fresh.eval()
        handle = fresh.get_submodule(path).register_forward_hook(lambda _, __, out, by=by_hand: by(out))
        torch.manual_seed(1)
        with torch.no_grad():
            wanted = fresh(*args, **kwargs)
        handle.remove()
        again, args, kwargs = case.make()
        again.eval()
        torch.manual_seed(1)
        # a compiled module has no name of its own in a path
        name = path.replace("_orig_mod.", "")
        with torch.no_grad(), tv.live(again, replace={name: edit}, keep=name) as run:
            found = again(*args, **kwargs)
        assert len(run.kept[name]) == 1
        for one, two in zip(leaves(wanted), leaves(found), strict=True):
            assert not isinstance(one, Tensor) or same_bits(one, two), (path, edit)
    close_process_group()


def test_generation_with_a_cache_equals_hooks_token_by_token() -> None:
    transformers = pytest.importorskip("transformers")
    config = transformers.GPT2Config(
        n_layer=2, n_embd=32, n_head=4, vocab_size=64, bos_token_id=0, eos_token_id=0
    )
    torch.manual_seed(0)
    model, ids = transformers.GPT2LMHeadModel(config).eval(), torch.arange(1, 9)[None]
    steer = torch.randn(32)
    caught: list[Tensor] = []
    block = model.transformer.h[1]
    handles = [
        block.register_forward_hook(lambda _, __, out: out + steer),
        block.register_forward_hook(lambda _, __, out: caught.append(out.clone())),
    ]
    wanted = model.generate(ids, max_new_tokens=6, do_sample=False, pad_token_id=0)
    for handle in handles:
        handle.remove()
    with tv.live(model, keep="h.1", replace={"h.1": tv.edit.add(steer)}) as run:
        found = model.generate(ids, max_new_tokens=6, do_sample=False, pad_token_id=0)
    assert torch.equal(wanted, found) and run.calls == 6
    assert all(map(torch.equal, run.kept["transformer.h.1"], caught)) and len(caught) == 6


def test_what_is_kept_inside_of_transforms_is_a_plain_tensor_with_the_batch_in_front() -> None:
    model = torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.Tanh())
    x = torch.randn(2, 3, 4)
    with tv.live(model, keep="0") as run:
        torch.vmap(torch.vmap(model), in_dims=1, out_dims=1)(x)
        torch.func.vmap(torch.func.grad(lambda row: model(row).sum()))(x[0])
    both, rows = run.kept["0"]
    assert torch.allclose(both, model[0](x.transpose(0, 1)))
    assert torch.allclose(rows, model[0](x[0]))
    assert not any(torch._C._functorch.is_functorch_wrapped_tensor(kept) for kept in (both, rows))


class Pair(NamedTuple):
    """Two tensors by name."""

    first: torch.Tensor
    second: torch.Tensor


class Pairs(torch.nn.Module):
    """A part that returns a named tuple."""

    class Part(torch.nn.Module):
        def forward(self, x: torch.Tensor) -> Pair:
            return Pair(x + 1, x * 2)

    def __init__(self) -> None:
        super().__init__()
        self.part = Pairs.Part()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        pair = self.part(x)
        out: torch.Tensor = pair.first * pair.second
        return out


def test_a_named_tuple_has_the_same_names_in_a_live_and_a_recorded_run() -> None:
    model, x = Pairs(), torch.randn(3)
    t = tv.trace(model, x)
    replace = (
        {"part": lambda pair: Pair(pair.first, -pair.second)},
        {"part.output.second": tv.edit.scale(-1.0)},
    )
    for change in replace:
        with tv.live(model, keep="part.output.first", replace=change) as run:
            expected = model(x)
        again = t.run(replace=change, keep="part.output.first")
        assert torch.equal(again.output, expected)
        assert torch.equal(again.kept["part.output.first"], run.kept["part.output.first"][0])
