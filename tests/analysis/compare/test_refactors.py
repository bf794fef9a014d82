"""Changes that people make to a model, compared with what it was: each stays with the module that was changed."""

from __future__ import annotations

import copy
import math
from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils.checkpoint import checkpoint

import torch_vis as tv
from torch_vis.analysis.compare.align import module_of
from torch_vis.graph import Node

WIDTH = 8
X = torch.linspace(-2, 2, 2 * 5 * WIDTH).sin().reshape(2, 5, WIDTH)


class Norm(nn.Module):
    """A layer norm, written out."""

    def __init__(self, source: nn.LayerNorm) -> None:
        super().__init__()
        self.weight, self.bias, self.eps = source.weight, source.bias, source.eps

    def forward(self, x: Tensor) -> Tensor:
        mean, var = x.mean(-1, keepdim=True), x.var(-1, keepdim=True, unbiased=False)
        return (x - mean) * torch.rsqrt(var + self.eps) * self.weight + self.bias


class Gelu(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return 0.5 * x * (1 + torch.erf(x / math.sqrt(2)))


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.norm, self.wide, self.act, self.narrow = (
            nn.LayerNorm(WIDTH),
            nn.Linear(WIDTH, 16),
            nn.GELU(),
            nn.Linear(16, WIDTH),
        )

    def forward(self, x: Tensor) -> Tensor:
        return x + self.narrow(self.act(self.wide(self.norm(x))))


class WrittenOut(nn.Module):
    """A block whose norm and activation are in its own code."""

    def __init__(self, source: Block) -> None:
        super().__init__()
        self.wide, self.narrow = source.wide, source.narrow
        self.scale, self.shift = source.norm.weight, source.norm.bias

    def forward(self, x: Tensor) -> Tensor:
        middle = x - x.mean(-1, keepdim=True)
        y = middle / torch.sqrt(middle.pow(2).mean(-1, keepdim=True) + 1e-5) * self.scale + self.shift
        h = self.wide(y)
        return x + self.narrow(h * 0.5 * (1.0 + torch.erf(h / math.sqrt(2))))


class Attention(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.q, self.k, self.v, self.out = (nn.Linear(WIDTH, WIDTH) for _ in range(4))
        self.fused = False

    def heads(self, x: Tensor) -> tuple[Tensor, ...]:
        return self.q(x), self.k(x), self.v(x)

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = (part.view(2, 5, 2, 4).transpose(1, 2) for part in self.heads(x))
        if self.fused:
            y = F.scaled_dot_product_attention(q, k, v)
        else:
            y = (q @ k.transpose(-2, -1) / 2).softmax(-1) @ v
        return x + self.out(y.transpose(1, 2).reshape(2, 5, WIDTH))


class OneProduct(Attention):
    """Attention whose three products are one."""

    def __init__(self, source: Attention) -> None:
        super().__init__()
        self.out, self.qkv = source.out, nn.Linear(WIDTH, 3 * WIDTH)
        parts = (source.q, source.k, source.v)
        del self.q, self.k, self.v
        with torch.no_grad():
            self.qkv.weight.copy_(torch.cat([part.weight for part in parts]))
            self.qkv.bias.copy_(torch.cat([part.bias for part in parts]))

    def heads(self, x: Tensor) -> tuple[Tensor, ...]:
        return self.qkv(x).chunk(3, -1)


class Net(nn.Module):
    def __init__(self, *blocks: nn.Module) -> None:
        super().__init__()
        self.pre, self.post = nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, WIDTH)
        self.blocks = nn.ModuleList(blocks)

    def forward(self, x: Tensor) -> Tensor:
        x = self.pre(x)
        for block in self.blocks:
            x = block(x)
        return self.post(x)


def changed(make: Callable[[], nn.Module], change: Callable[[nn.Module], nn.Module | None]) -> tv.Comparison:
    """A model of three blocks against the same with its second block changed."""
    torch.manual_seed(0)
    before = Net(*(make() for _ in range(3)))
    after = copy.deepcopy(before)
    after.blocks[1] = change(after.blocks[1]) or after.blocks[1]
    return tv.compare(tv.trace(before, X, backward=True), tv.trace(after, X, backward=True))


def setting(**parts: Callable[[nn.Module], nn.Module]) -> Callable[[nn.Module], None]:
    def change(block: nn.Module) -> None:
        for name, make in parts.items():
            setattr(block, name, make(getattr(block, name)))

    return change


def news(found: tv.Comparison) -> dict[str, set[str]]:
    """The modules in which something is only in one run, or changed."""
    rows: dict[str, list[Node]] = {
        "removed": list(found.removed),
        "added": list(found.added),
        "changed": [row.after for row in found.changed],
    }
    return {kind: {module_of(node) for node in nodes} for kind, nodes in rows.items() if nodes}


def wrong_pairs(found: tv.Comparison) -> list[tuple[str, str]]:
    """Pairs that are not the same numbers, of two models that are the same but for how they are written."""
    differences = found.differences(tolerance=1e-4)
    return [
        (row.a.name, module_of(row.a))
        for row in differences.rows
        if not differences.distances.rounding[row.a.index]
    ]


def both_ways(found: tv.Comparison) -> list[tv.Comparison]:
    return [found, tv.compare(found.b, found.a)]


@pytest.mark.parametrize("part", ["norm", "act"])
def test_a_layer_written_out_is_news_of_that_layer_alone(part: str) -> None:
    make = {"norm": Norm, "act": lambda _: Gelu()}[part]
    for found in both_ways(changed(Block, setting(**{part: make}))):
        path = f"blocks.1.{part}"
        assert news(found) == {"removed": {path}, "added": {path}}
        assert not found.added_modules and not found.removed_modules and wrong_pairs(found) == []
    fused = {"norm": ["native_layer_norm", "native_layer_norm_backward"], "act": ["gelu", "gelu_backward"]}
    assert [node.name for node in found.added] == fused[part]  # and no sum of gradients


def test_layers_moved_into_the_code_around_them() -> None:
    found, back = both_ways(changed(Block, WrittenOut))
    gone = {"blocks.1.norm", "blocks.1.act"}
    assert news(found) == {"removed": gone, "added": {"blocks.1"}}
    assert news(back) == {"removed": {"blocks.1"}, "added": gone}
    assert {scope.path for scope in found.removed_modules} == gone and not found.added_modules
    kept = {node.name for node in found.removed} - {"detach"}  # of gradients that now have other names
    assert kept == {"native_layer_norm", "native_layer_norm_backward", "gelu", "gelu_backward"}
    assert wrong_pairs(found) == wrong_pairs(back) == []


def test_attention_by_hand_against_fused() -> None:
    def fuse(block: nn.Module) -> None:
        block.fused = True  # type: ignore[assignment]

    for found in both_ways(changed(Attention, fuse)):
        told = news(found)
        # the gradient of k comes in another layout, and has to be copied into place in one of the two
        assert told["removed"] | told["added"] <= {"blocks.1.attn", "blocks.1", "blocks.1.k"}
        assert told["changed"] == {"blocks.1"}
        assert not [row for row in found.changed if not row.what[0].startswith("strides")]
        assert not found.added_modules and not found.removed_modules and not found.moved_modules
        assert wrong_pairs(found) == []


def test_three_products_that_became_one_are_gone() -> None:
    found, back = both_ways(changed(Attention, OneProduct))
    parts = ["blocks.1.q", "blocks.1.k", "blocks.1.v"]
    assert [scope.path for scope in found.removed_modules] == parts
    assert [scope.path for scope in found.added_modules] == ["blocks.1.qkv"] and not found.moved_modules
    assert [scope.path for scope in back.added_modules] == parts
    assert news(found)["removed"] == {*parts}
    assert news(found)["added"] == {"blocks.1", "blocks.1.qkv"} and news(found)["changed"] == {"blocks.1"}
    assert wrong_pairs(found) == wrong_pairs(back) == []


def test_another_activation() -> None:
    for found in both_ways(changed(Block, setting(act=lambda _: nn.SiLU()))):
        assert news(found) == {"removed": {"blocks.1.act"}, "added": {"blocks.1.act"}}
        assert len(found.added) == len(found.removed) == 2


def test_a_layer_without_its_bias() -> None:
    def drop(block: nn.Module) -> None:
        block.wide.bias = None

    found, back = both_ways(changed(Block, drop))
    assert news(found) == {"removed": {"blocks.1.wide"}, "added": {"blocks.1.wide"}}
    # the two products of backward are those they were, though they run in another order
    assert [node.name for node in found.removed if node.phase == "backward"] == ["sum", "view", "detach"]
    assert not [node for node in found.added if node.phase == "backward"]
    assert [node.name for node in back.removed] == [node.name for node in found.added]


def test_a_folded_normalisation() -> None:
    class Convolved(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.conv, self.norm, self.relu, self.last = (
                nn.Conv2d(3, 6, 3, bias=False),
                nn.BatchNorm2d(6),
                nn.ReLU(),
                nn.Conv2d(6, 4, 3),
            )

        def forward(self, x: Tensor) -> Tensor:
            return self.last(self.relu(self.norm(self.conv(x))))

    class Folded(nn.Module):
        def __init__(self, source: Convolved) -> None:
            super().__init__()
            self.conv = nn.utils.fuse_conv_bn_eval(source.conv, source.norm)
            self.relu, self.last = source.relu, source.last

        def forward(self, x: Tensor) -> Tensor:
            return self.last(self.relu(self.conv(x)))

    torch.manual_seed(0)
    before, x = Convolved().eval(), torch.randn(2, 3, 8, 8)
    after = Folded(copy.deepcopy(before))
    found = tv.compare(tv.trace(before, x, backward=True), tv.trace(after, x, backward=True))
    assert news(found) == {"removed": {"norm"}, "changed": {"conv"}}
    assert [scope.path for scope in found.removed_modules] == ["norm"] and not found.added_modules


def test_a_block_in_the_middle_that_has_a_name() -> None:
    class Named(nn.Module):
        def __init__(self, names: str) -> None:
            super().__init__()
            self.parts = nn.ModuleDict({name: Block() for name in names})

        def forward(self, x: Tensor) -> Tensor:
            for part in self.parts.values():
                x = part(x)
            return x

    one, two = (tv.trace(Named(names), X, backward=True) for names in ("abc", "abxc"))
    for found in both_ways(tv.compare(one, two)):
        [kind] = news(found)
        assert all(path.startswith("parts.x") for path in news(found)[kind]) and not found.changed


@pytest.mark.parametrize("reentrant", [True, False])
def test_what_is_computed_again_is_no_backward(reentrant: bool) -> None:
    class Saving(Net):
        def forward(self, x: Tensor) -> Tensor:
            x = self.pre(x)
            for block in self.blocks:
                x = checkpoint(block, x, use_reentrant=reentrant)
            return self.post(x)

    torch.manual_seed(0)
    before = Net(Block(), Block())
    after = copy.deepcopy(before)
    after.__class__ = Saving
    found, back = both_ways(tv.compare(tv.trace(before, X, backward=True), tv.trace(after, X, backward=True)))
    assert not found.changed and not back.changed and wrong_pairs(found) == []
    products = {"addmm", "mm", "gelu", "gelu_backward", "native_layer_norm", "native_layer_norm_backward"}
    assert not products & {node.name for node in found.removed}
    assert all("recompute" in node.flags for node in found.added if node.name in products)


def test_widths_that_changed_everywhere_are_changes_though_an_operation_is_new() -> None:
    weights = [torch.randn(b, a) for a, b in ((8, 16), (16, 32), (32, 64))]
    doubled = [torch.randn(b, a) for a, b in ((8, 32), (32, 64), (64, 128))]

    def run(layers: list[Tensor], more: bool) -> tv.Trace:
        def stack(x: Tensor) -> Tensor:
            for layer in layers:
                x = torch.tanh(F.linear(x, layer))
            return x.sin() if more else x

        return tv.trace(stack, torch.randn(2, 8))

    found = tv.compare(run(weights, False), run(doubled, True))
    assert [node.name for node in found.added] == ["sin"] and not len(found.removed)
    assert [row.what[0] for row in found.changed if row.after.name == "mm"] == [
        "f32[2, 16] → f32[2, 32]",
        "f32[2, 32] → f32[2, 64]",
        "f32[2, 64] → f32[2, 128]",
    ]
