"""t.run keeps its word: what a module gives is what it returned, and what cannot act or would be wrong is said."""

from __future__ import annotations

import copy
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file
from torch import Tensor, nn
from torch.utils import _pytree as pytree

import torch_vis as tv
from torch_vis.errors import NoMatch, UsageError
from torch_vis.replay.rerun import RunPlanner

X, OTHER = torch.randn(3, 4), torch.randn(3, 4)


@dataclass
class Pair:
    first: Tensor
    rest: dict[str, list[Tensor]]


class Router(nn.Module):
    """Its last operation, a mean, feeds nothing."""

    def __init__(self) -> None:
        super().__init__()
        self.w = nn.Linear(4, 4)

    def forward(self, x: Tensor) -> Tensor:
        logits = self.w(x)
        logits.mean()
        return logits


class Swapped(nn.Module):
    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        a = x + 1
        b = x * 2
        return b, a


class Nested(nn.Module):
    def forward(self, x: Tensor) -> Pair:
        return Pair(x + 1, {"list": [x * 2, x * 3]})


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.router, self.swapped, self.nested = Router(), Swapped(), Nested()
        self.lost = nn.Linear(4, 4)

    def forward(self, x: Tensor) -> Tensor:
        self.lost(x)
        b, a = self.swapped(self.router(x))
        pair = self.nested(b - a)
        return pair.first + pair.rest["list"][1]


@pytest.fixture
def model() -> Net:
    torch.manual_seed(0)
    return Net().eval()


def hooked(model: nn.Module, path: str, edit: Callable[[Any], Any], *args: Any) -> Any:
    """What a model gives with a hand-written hook that replaces an output."""
    handle = model.get_submodule(path).register_forward_hook(lambda _, __, out: edit(out))
    try:
        with torch.no_grad():
            return model(*args)
    finally:
        handle.remove()


def test_a_module_whose_last_operation_feeds_nothing_is_kept_and_replaced(model: Net) -> None:
    t = tv.trace(model, X)
    wanted = hooked(model, "router", torch.zeros_like, X)
    assert not torch.equal(wanted, t.output)
    assert torch.equal(t.run(replace={"router": torch.zeros_like}).output, wanted)
    assert torch.equal(t.run(OTHER, keep=["router"]).kept["router"], model.router(OTHER))
    whole = t.run(keep="all")
    assert torch.equal(whole.again(replace={"router": torch.zeros_like}).output, wanted)


def test_what_a_module_only_looks_at_in_another_way_is_replaced_for_those_behind_it() -> None:
    class Viewing(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.view, self.other = nn.Flatten(), nn.Identity()

        def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
            h = x * 2
            return self.view(h), self.other(h).sum(-1)

    x = torch.arange(8.0).view(2, 2, 2)
    t = tv.trace(Viewing(), x)
    flat, summed = t.run(replace={"view.input": lambda h: h + 1}).output
    assert torch.equal(flat, (x * 2 + 1).flatten(1)) and torch.equal(summed, (x * 2).sum(-1))


def test_a_replacement_that_could_not_act_raises(model: Net) -> None:
    t = tv.trace(model, X)
    with pytest.raises(UsageError, match=r"replacing 'lost' would change nothing"):
        t.run(replace={"lost": torch.zeros_like})
    with pytest.raises(UsageError, match="would change nothing"):
        t.run(keep="all").again(replace={"lost": torch.zeros_like})
    assert torch.equal(t.run(keep="lost").kept["lost"], model.lost(X))
    seen = t.run(replace={"lost": torch.zeros_like}, keep="lost").kept["lost"]
    assert not seen.any(), "what is kept depends on it"


def test_a_module_hands_over_what_it_returned(model: Net) -> None:
    t = tv.trace(model, X)
    seen: list[Any] = []

    def note(out: Any) -> Any:
        seen.append(out)
        return out

    t.run(replace={"swapped": note})
    routed = model.router(X)
    assert (
        isinstance(seen[0], tuple)
        and torch.equal(seen[0][0], routed * 2)
        and torch.equal(seen[0][1], routed + 1)
    )

    def twice_b(out: tuple[Tensor, Tensor]) -> tuple[Tensor, Tensor]:
        return out[0] * 2, out[1]

    assert torch.equal(t.run(replace={"swapped": twice_b}).output, hooked(model, "swapped", twice_b, X))

    def change(pair: Pair) -> Pair:
        return Pair(pair.first, {"list": [pair.rest["list"][0], pair.rest["list"][1] + 1]})

    assert torch.equal(t.run(replace={"nested": change}).output, hooked(model, "nested", change, X))
    kept = t.run(keep=["nested", "swapped"]).kept
    assert isinstance(kept["nested"], Pair) and len(kept["nested"].rest["list"]) == 2
    assert isinstance(kept["swapped"], tuple)
    with pytest.raises(UsageError, match="gives 2 tensors in a tuple; the replacement gave 1 tensor"):
        t.run(replace={"swapped": lambda out: out[0]})


def test_a_gpt2_block_with_a_cache_gives_its_hidden_states() -> None:
    transformers = pytest.importorskip("transformers")
    config = transformers.GPT2Config(
        n_layer=2, n_embd=32, n_head=4, vocab_size=64, bos_token_id=0, eos_token_id=0, use_cache=True
    )
    model = transformers.GPT2LMHeadModel(config).eval()
    ids = torch.arange(8)[None]
    t = tv.trace(model, ids, kwargs={"use_cache": True})
    kept = t.run(keep=["transformer.h.0"]).kept["transformer.h.0"]
    assert tuple(kept.shape) == (1, 8, 32)
    wanted = hooked(model, "transformer.h.0", lambda out: out * 0.5, ids).logits
    assert torch.equal(t.run(replace={"transformer.h.0": tv.edit.scale(0.5)}).output.logits, wanted)


# ---------------------------------------------------------------- what left for Python


def _from_list(x: Tensor) -> Tensor:
    return torch.tensor(x.tolist()) * 2


def _from_numpy(x: Tensor) -> Tensor:
    return torch.from_numpy(x.numpy() * 2) + 0


def _after_operation(x: Tensor) -> Tensor:
    return torch.from_numpy(np.asarray(x * 3)) + 1


def _through_data(x: Tensor) -> Tensor:
    y = x * 2
    return torch.as_tensor(y.data.numpy().copy()) + 1


def _dlpack(x: Tensor) -> Tensor:
    return torch.from_numpy(np.from_dlpack(x * 2).copy()) + 1


def _written_input(x: Tensor) -> Tensor:
    y = x * 1
    y.numpy()[0] = 7
    return y + 1


def _written_constant(x: Tensor) -> Tensor:
    mask = torch.zeros(3, 4)
    mask.numpy()[1] = 5
    return x + mask


def _written_array(x: Tensor) -> Tensor:
    scale = torch.ones(4)
    np.asarray(scale)[2] = 3
    return x * scale


def _written_dlpack(x: Tensor) -> Tensor:
    y = torch.zeros(3, 4)
    alias = torch.utils.dlpack.from_dlpack(y)
    alias.numpy()[0, 0] = 9
    return x + y


def _list_decides(x: Tensor) -> Tensor:
    return x * 2 if max(x.flatten().tolist()) > 0.1 else x - 1


LEAVING = [
    _from_list, _from_numpy, _after_operation, _through_data, _dlpack, _written_input, _written_constant,
    _written_array, _written_dlpack, _list_decides,
]  # fmt: skip


@pytest.mark.parametrize("program", LEAVING, ids=lambda program: program.__name__)
def test_a_rerun_that_would_be_wrong_after_a_value_left_says_so(program: Callable[[Tensor], Tensor]) -> None:
    first, second = torch.full((3, 4), 0.5), torch.full((3, 4), -2.0)
    t = tv.trace(program, first)
    again = t.run(second)
    assert not torch.equal(again.output, program(second.clone())), (
        "the case is one that a rerun cannot get right"
    )
    assert any("to Python" in limit or "gave away memory" in limit for limit in again.limits), again.limits


def test_a_value_that_left_and_does_not_matter_is_not_told_of() -> None:
    def program(x: Tensor) -> Tensor:
        torch.ones(3).tolist()
        return x + 1

    assert tv.trace(program, X).run(OTHER).limits == ()


# ---------------------------------------------------------------- names


def test_names_that_are_printed_are_accepted() -> None:
    layer = nn.Linear(3, 3)
    t = tv.trace(nn.Sequential(layer, nn.Tanh(), layer), torch.ones(1, 3))
    kept = t.run(keep=["0", "addmm"]).kept
    assert {"0", "0#1"} < set(kept)
    for name in kept:
        assert torch.equal(t.run(keep=[name]).kept[name], kept[name]), name
    changed = t.run(replace={"0#1": torch.zeros_like})
    assert not changed.output.any()
    assert not torch.equal(t.run(replace={"0:0": torch.zeros_like}).output, changed.output)
    assert [node.index for node in t.graph.find("0/addmm#4")] == [4]


def test_an_operator_that_did_not_run_raises_with_the_nearest() -> None:
    t = tv.trace(nn.Sequential(nn.Linear(3, 3), nn.ReLU()), torch.ones(1, 3))
    with pytest.raises(NoMatch, match="no operator 'rellu'; did you mean 'relu'"):
        t.graph.find(op="rellu")
    with pytest.raises(NoMatch, match=r"no operator 'linear'; in this run linear\(\) is 'addmm', 't'$"):
        t.graph.find(op="linear")
    assert len(t.graph.find(op="conv*")) == 0


# ---------------------------------------------------------------- only what depends on the change runs


def test_again_runs_only_what_follows_and_plans_it_once(monkeypatch: pytest.MonkeyPatch) -> None:
    blocks = [nn.Sequential(nn.Linear(8, 8), nn.GELU(), nn.Linear(8, 8)) for _ in range(40)]
    model = nn.Sequential(*blocks).eval()
    t = tv.trace(model, torch.randn(2, 8))
    whole = t.run(keep="all")
    last = whole.again(replace={"39": tv.edit.scale(0.5)})
    assert last.ran == 0, "nothing follows the last block"
    assert torch.equal(last.output, t.output * 0.5)
    before = whole.again(replace={"38": tv.edit.zero()})
    assert before.ran == len(t.graph.find("39")) - 2, "the weights are not transposed again"
    planned: list[int] = []
    work_out = RunPlanner._scheduled

    def counted(self: RunPlanner, *arguments: Any) -> Any:
        planned.append(1)
        return work_out(self, *arguments)

    monkeypatch.setattr(RunPlanner, "_scheduled", counted)
    for _ in range(3):
        whole.again(replace={"38": tv.edit.zero()})
    assert not planned, "the plan is kept"
    whole.again(replace={"37": tv.edit.zero()})
    assert len(planned) == 1


# ---------------------------------------------------------------- what a run gives back is made anew


class Unregistered(dict):
    """A mapping that torch knows nothing of."""


class Registered:
    """A container that was registered with torch."""

    def __init__(self, inner: Any) -> None:
        self.inner = inner


pytree.register_pytree_node(Registered, lambda it: ([it.inner], None), lambda parts, _: Registered(*parts))


@pytest.mark.parametrize(
    ("make", "read"),
    [
        (lambda x: Unregistered(y=[x]), lambda out: out["y"][0]),
        (lambda x: Registered({"y": x}), lambda out: out.inner["y"]),
        (lambda x: [Unregistered(y=Registered(x))], lambda out: out[0]["y"].inner),
        (lambda x: torch.max(x, 0), lambda out: out.values),
    ],
    ids=["mapping", "registered", "nested", "return type"],
)
def test_every_container_is_given_back_with_the_new_tensors(make: Any, read: Any) -> None:
    t = tv.trace(lambda x: make(x * 2), torch.ones(2))
    again = t.run(torch.zeros(2))
    assert type(again.output) is type(t.output) and again.output is not t.output
    assert not read(again.output).any() and read(t.output).all()


@pytest.mark.parametrize(
    ("recorded", "other"), [(torch.float64, torch.float16), (1, True), (1, 1.0), ("a", "b"), (2j, 3j)]
)
def test_another_value_beside_the_tensors_is_refused(recorded: Any, other: Any) -> None:
    t = tv.trace(lambda x, value: x + 1, torch.ones(2), recorded)
    t.run(torch.zeros(2), recorded)
    with pytest.raises(UsageError, match="another value may be another program"):
        t.run(torch.zeros(2), other)


class Tied(nn.Module):
    """Modules with several paths: one as it is, one in another that has two itself."""

    def __init__(self) -> None:
        super().__init__()
        self.tied = nn.Sequential(nn.Linear(4, 4), nn.ReLU())
        self.t2 = self.tied
        self.head = nn.ModuleDict({"fc": self.tied[0]})

    def forward(self, x: Tensor) -> Tensor:
        return self.t2(x).sum(-1)  # type: ignore[no-any-return]


def test_a_module_with_two_paths_has_both(tmp_path: Path) -> None:
    model, x = Tied(), torch.randn(2, 4)
    t = tv.trace(model, x)
    for second, first in (
        ("t2", "tied"),
        ("t2.0", "tied.0"),
        ("head.fc", "tied.0"),
        ("t2.0.input", "tied.0.input"),
    ):
        assert t.select(second).names == t.select(first).names == [first]
        assert t.run(keep=second).kept[second] is not None
        zeroed = t.run(replace={second: tv.edit.zero()}).output
        assert torch.equal(zeroed, t.run(replace={first: tv.edit.zero()}).output)
        with tv.live(model, replace={second: tv.edit.zero()}):
            assert torch.equal(zeroed, model(x))
    assert len(t.part("t2").graph) == len(t.part("tied").graph)
    t.save(tmp_path / "run.tvz")
    assert tv.load(tmp_path / "run.tvz").select("t2").names == ["tied"]
    with pytest.raises(NoMatch, match="no module or operation 't3'"):
        t.select("t3")


def test_a_view_whose_memory_is_copied_past_it_names_what_to_replace() -> None:
    class Copying(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.view = nn.Flatten(0)

        def forward(self, x: Tensor) -> Tensor:
            h = x * 2
            return copy.deepcopy(self.view(h)) + 1

    x = torch.arange(6.0).view(2, 3)
    t = tv.trace(Copying(), x)
    for name in ("view", "op:view"):
        with pytest.raises(UsageError, match=r"reads its memory past it.* 'mul#0'"):
            t.run(replace={name: tv.edit.zero()})
    assert torch.equal(t.run(replace={"mul#0": tv.edit.zero()}).output, torch.ones(6))


class Gate(nn.Module):
    """Gives its logits, which nothing reads after the first line, in front of what is made of them."""

    def __init__(self) -> None:
        super().__init__()
        self.fc = nn.Linear(4, 4)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        logits = self.fc(x)
        weights = logits.softmax(-1)
        best = weights.max(-1).values
        return logits, weights / best[:, None]


def test_what_a_call_gives_beside_is_there_when_it_returns(tmp_path: Path) -> None:
    class Net(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.router, self.fc = Gate(), nn.Linear(4, 4)

        def forward(self, x: Tensor) -> Tensor:
            return self.fc(x) * self.router(x)[1]

    model, x = Net(), torch.randn(3, 4)
    t = tv.trace(model, x)
    logits, weights = model.router(x)
    for kept in (t.run(keep="router"), t.run(x, keep="router")):
        found = kept.kept["router"]
        assert torch.equal(found[0], logits) and torch.equal(found[1], weights)
    assert torch.equal(t.run(keep="router.output.0[:, 1:3]").kept["router.output.0[:, 1:3]"], logits[:, 1:3])
    assert torch.equal(t.run(keep="router.fc.output").kept["router.fc.output"], logits)
    t.run(keep="router", to=tmp_path / "kept.safetensors")
    assert torch.equal(load_file(tmp_path / "kept.safetensors")["router.0"], logits)

    def swapped(given: tuple[Tensor, Tensor]) -> tuple[Tensor, Tensor]:
        return given[0], given[1] + given[0]

    wanted = model.fc(x) * (weights + logits)
    assert torch.equal(t.run(replace={"router": swapped}).output, wanted)


class Batch:
    """An object of one's own, into which nobody looks."""

    def __init__(self, x: Tensor) -> None:
        self.x = x


@pytest.mark.parametrize(
    ("program", "recorded", "other"),
    [
        (lambda a: torch.from_numpy(a) * 2, np.ones(3), np.zeros(3)),
        (lambda a: torch.ones(3) * float(a), np.float32(2), np.float32(3)),
        (lambda pair: pair.first * pair.rest, Pair(X, 2), Pair(X, 3)),  # type: ignore[arg-type]
        (lambda kinds: torch.ones(len(kinds)), {"a", "b"}, {"a"}),
        (lambda b: torch.frombuffer(b, dtype=torch.uint8) * 1, bytearray(b"ab"), bytearray(b"cd")),
    ],
)
def test_an_array_a_set_or_a_field_of_another_value_is_refused(
    program: Any, recorded: Any, other: Any
) -> None:
    t = tv.trace(program, recorded)
    assert torch.equal(t.run(copy.deepcopy(recorded)).output, program(recorded))
    with pytest.raises(UsageError, match="recorded with"):
        t.run(other)


@pytest.mark.parametrize(
    ("program", "recorded", "other", "told"),
    [
        (lambda d: torch.cat(list(d.values())), [{"a": X, "b": OTHER}], [{"b": X, "a": OTHER}], "order"),
        (lambda items: items[0] * (1 + isinstance(items, list)), [[X]], [(X,)], "of type tuple and was"),
        (lambda batch: batch.x * 2, [Batch(X)], [Batch(OTHER)], "of type Batch, which is not looked into"),
        (lambda x, f: f(x), [X, torch.relu], [X, torch.sigmoid], "not looked into"),
        (lambda x, more: x + sum(more), [X, iter([X])], [X, iter([OTHER])], "not looked into"),
        (lambda x, y: x.clone() if x is y else x + y, [X, OTHER], [X, X], "are one tensor, and were two"),
        (lambda x: x + x.is_contiguous(), [X], [torch.randn(4, 3).t()], "in pieces or another order"),
        (lambda x: x + x.requires_grad, [X], [OTHER.clone().requires_grad_()], "requires_grad of input 'x'"),
    ],
)
def test_what_cannot_be_compared_and_may_decide_is_told_of(
    program: Any, recorded: list[Any], other: list[Any], told: str
) -> None:
    t = tv.trace(program, *recorded)
    run = t.run(*other)
    assert told in " ".join(run.limits)
    assert not torch.equal(run.output, program(*other))
    assert t.run().limits == ()


def test_inputs_that_share_memory_otherwise_are_told_of_where_the_run_writes_to_them() -> None:
    def written(x: Tensor, y: Tensor) -> Tensor:
        return x.add_(1) + y

    def read(x: Tensor, y: Tensor) -> Tensor:
        return x + 1 + y

    base = torch.arange(24.0)
    for program in (written, read):
        t = tv.trace(program, base[:12].clone(), base[6:18].clone())
        run = t.run(base[:12].clone(), base.clone()[6:18])
        assert run.limits == ()
        shared = base.clone()
        run = t.run(shared[:12], shared[6:18])
        assert ("shares memory with 'x'" in " ".join(run.limits)) is (program is written)


def test_arguments_that_the_run_takes_apart_are_as_they_were_given() -> None:
    def program(batch: dict[str, Any]) -> Tensor:
        scale, x = batch.pop("scale"), batch.pop("x")
        return x * scale

    t = tv.trace(program, {"x": X, "scale": 2})
    assert torch.equal(t.run({"x": OTHER, "scale": 2}).output, OTHER * 2)
    with pytest.raises(UsageError, match=r"batch\.scale=2 .* is given batch\.scale=3"):
        t.run({"x": OTHER, "scale": 3})


def test_what_was_kept_is_found_by_the_text_that_asked_for_it() -> None:
    class Loop(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.fc = nn.Linear(4, 4)

        def forward(self, x: Tensor) -> Tensor:
            return self.fc(self.fc(x).relu())

    model = Loop()
    run = tv.trace(model, X).run(OTHER, keep=["fc:1", "op:relu", "fc:0[:, 1]"])
    hidden = model.fc(OTHER)
    assert torch.equal(run.kept["fc:1"], model(OTHER)) and torch.equal(run.kept["op:relu"], hidden.relu())
    assert torch.equal(run.kept["fc:0[:, 1]"], hidden[:, 1])
    with pytest.raises(NoMatch):
        run.kept["fc:2"]


def test_weights_that_changed_since_are_told_of() -> None:
    model = nn.Sequential(nn.Linear(4, 4), nn.ReLU())
    t = tv.trace(model, X)
    assert t.run(OTHER).limits == ()
    with torch.no_grad():
        model[0].weight.mul_(2)
    (told,) = t.run(OTHER).limits
    assert "changed since the run was recorded: 0.weight" in told
    assert torch.equal(t.run(OTHER).output, model(OTHER))


def test_an_edit_that_is_not_called_and_a_part_that_is_not_there_are_named() -> None:
    model = nn.Sequential(nn.Linear(4, 4), nn.ReLU())
    t = tv.trace(model, X)
    for act in (lambda r: t.run(replace=r), lambda r: tv.live(model, replace=r)):
        with pytest.raises(UsageError, match=r"tv\.edit\.zero makes an edit when it is called"):
            act({"0": tv.edit.zero})
    with pytest.raises(NoMatch, match="one tensor, which has no part '7'"):
        t.run(replace={"0.output.7": tv.edit.zero()})
    with pytest.raises(NoMatch, match="one tensor, which has no part '7'"), tv.live(model, keep="0.output.7"):
        model(X)


class Whole(nn.Module):
    """Gives one tensor twice, and is given one twice."""

    def __init__(self) -> None:
        super().__init__()
        self.fc, self.drop = nn.Linear(4, 4), nn.Dropout()

    def forward(self, x: Tensor, y: Tensor) -> tuple[Tensor, list[Tensor]]:
        h = self.drop(self.fc(x) + y)
        return h, [x, h]


class Around(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.part = Whole()

    def forward(self, x: Tensor) -> Tensor:
        first, rest = self.part(x * 2, x * 3)
        again, _ = self.part(first, first)
        return rest[1] + again


def test_one_tensor_in_several_places_of_a_call_is_told_of() -> None:
    t = tv.trace(Around().eval(), X)
    for key in ("part:0", "part:1.input"):
        assert "one tensor in several places" in " ".join(t.run(replace={key: tv.edit.zero()}).limits)
    assert t.run(replace={"part:0.input": tv.edit.zero()}).limits == ()
    with pytest.raises(UsageError, match="if the call returns it as it is"):
        t.run(replace={"part.drop:0.input": tv.edit.zero()})


def test_a_program_that_writes_to_a_replacement_leaves_it_as_it_was() -> None:
    class Writes(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.fc = nn.Linear(4, 4)

        def forward(self, x: Tensor) -> Tensor:
            return self.fc(x).add_(1)

    model, given = Writes(), torch.zeros(3, 4)
    with torch.no_grad(), tv.live(model, replace={"fc": given}):
        first, second = model(X), model(X)
    assert torch.equal(first, second) and not given.any()
    other = tv.trace(model, X).run(OTHER, keep=["fc"])
    before = other.kept["fc"].clone()
    with torch.no_grad(), tv.live(model, replace={"fc": tv.edit.patch_from(other)}):
        model(X)
    assert torch.equal(other.kept["fc"], before)


def test_a_copy_of_a_model_in_a_live_run_is_no_part_of_it() -> None:
    model = nn.Sequential(nn.Linear(4, 4), nn.ReLU())
    with tv.live(model, keep="0", replace={"1": tv.edit.zero()}) as run:
        twin = copy.deepcopy(model)
        assert twin(X).any() and not model(X).any()
    assert len(run.kept["0"]) == 1 and torch.equal(twin(X), model(X))
