"""Which layer of one model became which of another, where names, containers, weights and gradients are others."""

from __future__ import annotations

import copy
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

import torch_vis as tv
from tests.zoo import ZOO
from torch_vis.analysis.compare.match_modules import ModuleMatcher
from torch_vis.cli.main import main

WIDTH = 8
X = torch.linspace(-2, 2, 3 * WIDTH).sin().reshape(3, WIDTH)


class Blocks(nn.Module):
    """Layers that are all alike, each with an activation beside it."""

    def __init__(self, count: int = 4) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.blocks = nn.ModuleList(nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.Tanh()) for _ in range(count))
        self.head = nn.Linear(WIDTH, 2)

    def forward(self, x: Tensor) -> Tensor:
        for block in self.blocks:
            x = block(x)
        return self.head(x)

    def without(self, place: int) -> Blocks:
        found = copy.deepcopy(self)
        del found.blocks[place]
        return found


class Flat(Blocks):
    """The same without containers: layers and activations in turn."""

    def __init__(self) -> None:
        super().__init__()
        self.linears = nn.ModuleList(block[0] for block in self.blocks)
        self.acts = nn.ModuleList(block[1] for block in self.blocks)
        del self.blocks

    def forward(self, x: Tensor) -> Tensor:
        for linear, act in zip(self.linears, self.acts):
            x = act(linear(x))
        return self.head(x)

    def without(self, place: int) -> Flat:
        found = copy.deepcopy(self)
        del found.linears[place], found.acts[place]
        return found


class Renamed(nn.Module):
    """Another class, with other names."""

    def __init__(self, source: Blocks) -> None:
        super().__init__()
        lists = (source.linears, source.acts) if isinstance(source, Flat) else (source.blocks,)
        self.first, self.out = lists[0], source.head
        self.second = lists[1] if len(lists) > 1 else [lambda x: x] * len(lists[0])

    def forward(self, x: Tensor) -> Tensor:
        for one, two in zip(self.first, self.second):
            x = two(one(x))
        return self.out(x)


class Wrapped(nn.Module):
    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, x: Tensor) -> Tensor:
        return self.model(x)


CHANGES: dict[str, Callable[[Blocks], nn.Module]] = {
    "wrapped": Wrapped,
    "renamed": Renamed,
    "renamed and wrapped": lambda model: Wrapped(Renamed(model)),
}


def compared(one: nn.Module, two: nn.Module, backward: bool = True, keep: bool = True) -> tv.Comparison:
    found = []
    for model in (one, two):
        model.zero_grad()
        found.append(tv.trace(model, X, backward=backward, hold=keep))
        model.zero_grad()
    return tv.compare(*found)


def gone(found: tv.Comparison) -> list[str]:
    """The layers that only the first has; not what is around them."""
    return [scope.path for scope in found.removed_modules if scope.path.rpartition(".")[2].isdigit()]


@pytest.mark.parametrize("change", CHANGES.values(), ids=CHANGES)
@pytest.mark.parametrize("place", range(4))
def test_weights_tell_which_layer_is_gone_whatever_it_is_called(
    change: Callable[[Blocks], nn.Module], place: int
) -> None:
    for make, names in (
        (Blocks, ("blocks.{}", "blocks.{}.0", "blocks.{}.1")),
        (Flat, ("linears.{}", "acts.{}")),
    ):
        model = make()
        found = compared(model, change(model.without(place)))
        assert gone(found) == [name.format(place) for name in names]
        assert not found.changed and not len(found.added) and not found.reordered_modules
        report = found.differences()
        assert "inputs" not in report.facts()
        assert not any(name.startswith(f"{names[0].format(place)}.") for name in report.results)
        back = tv.compare(found.b, found.a)
        added = [scope.path for scope in back.added_modules if scope.path]
        assert added == [name.format(place) for name in names]


@pytest.mark.parametrize("change", CHANGES.values(), ids=CHANGES)
def test_where_no_weights_tell_the_last_is_gone_and_it_says_so(change: Callable[[Blocks], nn.Module]) -> None:
    model = Flat()
    found = compared(model, change(model.without(1)), keep=False)
    assert gone(found) == ["linears.3", "acts.3"] and not found.changed
    [note] = [note for note in found.to_dict()["notes"] if "are alike" in note]
    assert note.startswith("4 layers of A (linears.0 … linears.3) and 3 of B (")


@pytest.mark.parametrize("change", CHANGES.values(), ids=CHANGES)
def test_a_layer_that_is_gone_and_others_that_changed(change: Callable[[Blocks], nn.Module]) -> None:
    model = Blocks(9)
    after = model.without(4)
    for block in after.blocks[::3]:
        block[1] = nn.ReLU()
    found = compared(model, change(after))
    assert gone(found) == ["blocks.4", "blocks.4.0", "blocks.4.1"]
    assert [one.path for one, _ in found.changed_modules] == ["blocks.0.1", "blocks.3.1", "blocks.7.1"]
    assert {scope.path for scope in found.added_modules} <= {"", "model"}


def test_names_that_are_no_numbers_do_not_hide_which_is_gone() -> None:
    class Named(nn.Module):
        def __init__(self, **layers: nn.Module) -> None:
            super().__init__()
            self.layers = nn.ModuleDict(layers)

        def forward(self, x: Tensor) -> Tensor:
            for layer in self.layers.values():
                x = layer(x)
            return x

    a, b, c, d = (nn.Linear(WIDTH, WIDTH) for _ in range(4))
    found = compared(Named(a=a, b=b, c=c, d=d), Named(p=a, q=c, r=d))
    assert [scope.path for scope in found.removed_modules] == ["layers.b"] and not found.changed


def test_what_was_put_behind_is_no_layer_that_is_gone() -> None:
    model = Flat()

    class Longer(Wrapped):
        def __init__(self, inner: nn.Module) -> None:
            super().__init__(inner)
            self.post = nn.Linear(2, 2)

        def forward(self, x: Tensor) -> Tensor:
            return self.post(self.model(x))

    for change in (Longer, lambda inner: Longer(Renamed(inner))):
        found = compared(model, change(model.without(2)), backward=False)
        assert gone(found) == ["linears.2", "acts.2"] and not found.changed
        assert "model.post" not in gone(found) and "post" in {scope.path for scope in found.added_modules}


@pytest.mark.parametrize("before", [True, False])
def test_gradients_that_were_there_before_change_no_module(before: bool) -> None:
    class Plain(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.a, self.act, self.b = nn.Linear(WIDTH, WIDTH), nn.ReLU(), nn.Linear(WIDTH, 2)

        def forward(self, x: Tensor) -> Tensor:
            return self.b(self.act(self.a(x)))

    class Grouped(nn.Module):
        def __init__(self, source: Plain) -> None:
            super().__init__()
            self.body, self.head = nn.Sequential(source.a, source.act), nn.Sequential(source.b)

        def forward(self, x: Tensor) -> Tensor:
            return self.head(self.body(x))

    model = Plain()
    if before:
        model(X).sum().backward()
    one = tv.trace(model, X, backward=True)
    model.zero_grad()
    found = tv.compare(one, tv.trace(Grouped(model), X, backward=True))
    assert not found.removed_modules and not found.changed
    moved = [(here.path, there.path) for here, there in found.moved_modules]
    assert moved == [("a", "body.0"), ("act", "body.1"), ("b", "head.0")]
    results = found.differences().results
    assert len(results) == 5 and all(gap.relative == 0 for _, gap in results.values())


@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("shape", [(2, WIDTH), (2, 4, WIDTH)], ids=str)
def test_a_product_under_autocast_is_the_same_product(bias: bool, shape: tuple[int, ...]) -> None:
    x = torch.linspace(-1, 1, torch.Size(shape).numel()).reshape(shape)
    alone = nn.Linear(WIDTH, 2, bias=bias)
    for model in (alone, nn.Sequential(nn.LayerNorm(WIDTH), alone), nn.Sequential(nn.GELU(), alone)):
        one = tv.trace(model, x)
        with torch.autocast("cpu", dtype=torch.bfloat16):
            two = tv.trace(model, x)
        found, back = tv.compare(one, two), tv.compare(two, one)
        assert not len(found.removed) and not len(back.added)
        assert {node.name for node in (*found.added, *back.removed)} == {"_to_copy"}
        product = "addmm" if bias else "mm"
        assert [row.after.name for row in found.changed if "mm" in row.after.name] == [product]


@pytest.mark.parametrize("via", ["export", "dynamo"])
def test_calls_of_one_module_on_the_same_data_are_in_their_order(via: str) -> None:
    model, args, kwargs = ZOO["recursive_module"].make()
    one, two = tv.trace(model, *args, kwargs=kwargs), tv.trace(model, *args, kwargs=kwargs, via=via)
    for found in (tv.compare(one, two), tv.compare(two, one)):
        assert found.same and not found.changed and not found.moved


def test_a_module_that_runs_nothing_makes_no_difference(tmp_path: Path) -> None:
    layer, act = nn.Linear(WIDTH, WIDTH), nn.ReLU()
    plain = tv.trace(nn.Sequential(layer, act), X)
    for more in (
        nn.Sequential(layer, nn.Identity(), act),
        nn.Sequential(layer, nn.Sequential(act)),
        nn.Sequential(layer, nn.Dropout(0.5).eval(), act),
    ):
        found = tv.compare(plain, tv.trace(more, X))
        assert found.same and len(found.added_modules) == 1
    other = tv.compare(plain, tv.trace(nn.Sequential(layer, nn.Dropout(0.5), act), X))
    assert not other.same
    for name, trace in (("plain", plain), ("more", found.b), ("other", other.b)):
        trace.save(tmp_path / f"{name}.tvz")
    one, two, three = (str(tmp_path / f"{name}.tvz") for name in ("plain", "more", "other"))
    assert main(["compare", one, two]) == 0 and main(["compare", one, three]) == 1


# Models of very many layers are compared in time that grows with their number, not with its square.
LAYERS = 300


class Counting(dict[int, int]):
    """A table that counts how often it was asked."""

    asked = 0

    def __contains__(self, key: object) -> bool:
        self.asked += 1
        return super().__contains__(key)


def test_layers_that_were_each_wrapped_are_found_in_linear_time(monkeypatch: pytest.MonkeyPatch) -> None:
    parents_of_matched = ModuleMatcher.parents_of_matched
    asked = []

    def counted(self: ModuleMatcher) -> None:
        self.to_a = Counting(self.to_a)
        parents_of_matched(self)
        asked.append(self.to_a.asked)

    monkeypatch.setattr(ModuleMatcher, "parents_of_matched", counted)
    layers, x = [nn.Linear(2, 2) for _ in range(LAYERS)], torch.ones(1, 2)
    wrapped = tv.trace(nn.Sequential(*(nn.Sequential(layer) for layer in layers)), x)
    found = tv.compare(wrapped, tv.trace(nn.Sequential(*layers), x))
    assert found.same and len(found.removed_modules) == LAYERS
    assert 0 < asked[0] < 10 * LAYERS


class Attention(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.q, self.k, self.v, self.o = (nn.Linear(8, 8) for _ in range(4))
        self.drop = nn.Identity()

    def forward(self, x: Tensor) -> Tensor:
        scores = self.q(x) @ self.k(x).transpose(-1, -2)
        return x + self.drop(self.o(scores.softmax(-1) @ self.v(x)))


def attentions() -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(*(Attention() for _ in range(3)))


def swapped_modules(found: tv.Comparison) -> set[tuple[str, str]]:
    return {(before.path, after.path) for before, after in found.moved_modules if before.path.count(".") < 2}


def test_a_block_that_became_an_identity_is_of_another_class() -> None:
    x, model = torch.randn(2, 5, 8), attentions()
    other = copy.deepcopy(model)
    other[1] = nn.Identity()
    found = tv.compare(tv.trace(model, x), tv.trace(other, x))
    assert [(a.path, a.type, b.type) for a, b in found.changed_modules] == [("1", "Attention", "Identity")]
    assert found.moved_modules == [] and found.added_modules == []


@pytest.mark.parametrize("backward", [False, True])
def test_swapped_layers_are_known_by_their_weights(backward: bool) -> None:
    x, model = torch.randn(2, 5, 8), attentions()
    other = copy.deepcopy(model)
    other[0], other[1] = other[1], other[0]
    found = tv.compare(tv.trace(model, x, backward=backward), tv.trace(other, x, backward=backward))
    assert not found.same and {("0", "1"), ("1", "0")} <= swapped_modules(found)
    assert [before.path for before, _ in found.reordered_modules] in (["0"], ["1"])
    # the first layer computes no gradient of its input
    assert {node.phase for node in [*found.added, *found.removed]} <= {"backward"} and found.moved == []


def test_swapped_modules_with_names_are_known_by_their_weights() -> None:
    x, model = torch.randn(2, 5, 8), attentions()
    other = copy.deepcopy(model)
    other[1].k, other[1].v = other[1].v, other[1].k
    found = tv.compare(tv.trace(model, x), tv.trace(other, x))
    assert not found.same and swapped_modules(found) == {("1.k", "1.v"), ("1.v", "1.k")}


def test_other_weights_do_not_swap_layers() -> None:
    x, model = torch.randn(2, 5, 8), attentions()
    torch.manual_seed(1)
    other = nn.Sequential(*(Attention() for _ in range(3)))
    assert tv.compare(tv.trace(model, x), tv.trace(other, x)).same
