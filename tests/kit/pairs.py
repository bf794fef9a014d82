# ruff: noqa: E501
"""Pairs of runs with one known change, and the words that must name it: the change itself, not what follows from it.

A pair is made by a function of ``changed``, which gives the run before and after. Code is changed as people change it:
the classes of the small nets are made anew each time, with options in a closure, so that an edit of ``forward`` leaves
no attribute behind.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterator
from contextlib import nullcontext
from functools import partial
from types import SimpleNamespace
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils.checkpoint import checkpoint

import torch_vis as tv

Options = SimpleNamespace


class Pair(NamedTuple):
    """Two runs, and how what was changed must be told."""

    name: str
    trace: Callable[[bool], tv.Trace]
    """The run before the change, and the one after it."""
    changes: tuple[str, ...]
    """The lines of ``compare(a, b).changes``, all of them; ``*`` stands for anything."""
    sentence: str = ""
    """What the sentence of ``differences()`` has in it; empty where numbers are not asked for."""
    library: str = ""
    """The package that it needs beside torch."""


PAIRS: dict[str, Pair] = {}

# --- a small transformer, whose code is changed ---

FORMER: dict[str, Any] = {
    "width": 16, "heads": 2, "hidden": 32, "depth": 2, "vocab": 11, "act": nn.ReLU, "norm": nn.LayerNorm, "bias": True,
    "eps": 1e-5, "p": 0.0, "head": nn.Linear, "residual": True, "scale": None, "diagonal": 1, "causal": True,
    "pre": True, "fill": -1e9, "tied": False, "shared": False, "order": (0, 1), "skip": (), "wrap": None, "extra": None,
    "alpha": 1.0, "kv": "kv", "dim": -1, "softmax": True, "pool": None, "after": None, "positions": "learned",
    "cast": None, "detach": False, "gate": False, "checkpointed": False, "fused": False, "twice": False, "keep": False,
    "log": False, "init": None, "dtype": None, "half": None, "training": False, "act_at": None, "bias_at": None,
}  # fmt: skip


def former(**options: Any) -> nn.Module:
    """A small transformer; each option is one place of its code."""
    o = Options(**{**FORMER, **options})

    class Attention(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.q, self.k, self.v, self.o = (nn.Linear(o.width, o.width, bias=o.bias) for _ in range(4))

        def forward(self, x: Tensor) -> Tensor:
            batch, length, width = x.shape
            q, k, v = (
                layer(x).reshape(batch, length, o.heads, width // o.heads).transpose(1, 2)
                for layer in (self.q, *((self.k, self.v) if o.kv == "kv" else (self.v, self.k)))
            )
            if o.fused:
                y = F.scaled_dot_product_attention(q, k, v, is_causal=o.causal)
            else:
                scores = q @ k.transpose(-1, -2) * (o.scale or (width // o.heads) ** -0.5)
                if o.causal:
                    mask = torch.ones(length, length, dtype=torch.bool).triu(o.diagonal)
                    scores = scores.masked_fill(mask, o.fill)
                weights = scores.softmax(o.dim) if o.softmax else scores.sigmoid()
                y = weights @ v
            return self.o(y.transpose(1, 2).reshape(batch, length, width))

    class Block(nn.Module):
        def __init__(self, number: int) -> None:
            super().__init__()
            self.norm1, self.norm2 = (o.norm(o.width, eps=o.eps) for _ in range(2))
            self.attn = Attention()
            bias = o.bias if o.bias_at in (None, number) else not o.bias
            self.fc1, self.fc2 = nn.Linear(o.width, o.hidden, bias=bias), nn.Linear(o.hidden, o.width)
            self.act = o.act() if o.act_at in (None, number) else nn.ReLU()
            self.drop = nn.Dropout(o.p)
            if o.gate:
                self.gate = nn.Linear(o.width, o.hidden)

        def forward(self, x: Tensor) -> Tensor:
            if o.pre:
                x = x + self.attn(self.norm1(x))
                y = self.mlp(self.norm2(x))
                return x + o.alpha * y if o.alpha != 1 else x + y if o.residual else y
            x = self.norm1(x + self.attn(x))
            return self.norm2(x + self.mlp(x))

        def mlp(self, x: Tensor) -> Tensor:
            y = self.act(self.fc1(x))
            if o.gate:
                y = y * self.gate(x)
            if o.detach:
                y = y.detach()
            return self.drop(self.fc2(y))

    class Former(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.embed = nn.Embedding(o.vocab, o.width)
            self.place = nn.Embedding(8, o.width)
            self.blocks = nn.ModuleList(Block(number) for number in range(o.depth))
            if o.shared:
                self.blocks[1] = self.blocks[0]
            if o.extra is not None:
                self.extra = o.extra(o.width)
            self.norm = o.norm(o.width, eps=o.eps)
            self.head = o.head(o.width, o.vocab)
            if o.tied:
                self.head.weight = self.embed.weight

        def forward(self, tokens: Tensor) -> Any:
            x = self.embed(tokens)
            if o.positions == "learned":
                x = x + self.place(torch.arange(tokens.shape[1]))
            if o.positions == "scaled":
                x = x * math.sqrt(o.width) + self.place(torch.arange(tokens.shape[1]))
            for number in o.order if o.depth == 2 else range(o.depth):
                if number in o.skip:
                    continue
                block = self.blocks[number]
                if o.checkpointed:
                    x = checkpoint(block, x, use_reentrant=False)
                else:
                    x = block(x)
                if o.twice:
                    x = block(x)
            if o.extra is not None:
                x = self.extra(x)
            x = self.norm(x)
            if o.pool == "last":
                x = x[:, -1]
            elif o.pool == "mean":
                x = x.mean(1)
            y = self.head(x)
            return (y, x) if o.keep else F.log_softmax(y, -1) if o.log else y

    torch.manual_seed(0)
    model = Former().train(o.training)
    # of one that was not changed, so that all that both have is the same
    if o.init is not None:
        o.init(model)
    return model.to(o.dtype or torch.float32)


def tokens(batch: int = 2, length: int = 6, vocab: int = 11) -> Tensor:
    """The same tokens every time."""
    return torch.arange(batch * length).mul(7).remainder(vocab).reshape(batch, length)


def filled_from(model: nn.Module, other: nn.Module) -> nn.Module:
    """The model with what another has of the same name and shape."""
    own, state = model.state_dict(), other.state_dict()
    # what is shared has the values of its first name
    done: set[int] = set()
    with torch.no_grad():
        for name, tensor in own.items():
            if name in state and tensor.shape == state[name].shape and tensor.data_ptr() not in done:
                tensor.copy_(state[name])
                done.add(tensor.data_ptr())
    return model


def code(
    name: str,
    changes: str | tuple[str, ...],
    sentence: str = "",
    *,
    before: dict[str, Any] | None = None,
    run: Callable[[nn.Module], tv.Trace] | None = None,
    **options: Any,
) -> None:
    """A pair of small transformers."""

    def trace(changed: bool) -> tv.Trace:
        model = former(**{**(before or {}), **(options if changed else {})})
        if changed and "init" not in options:
            filled_from(model, former(**(before or {})))
        torch.manual_seed(1)
        return run(model) if run is not None else tv.trace(model, tokens(), hold=True)

    add(name, trace, changes, sentence)


def add(
    name: str,
    trace: Callable[[bool], tv.Trace],
    changes: str | tuple[str, ...],
    sentence: str = "",
    library: str = "",
) -> None:
    """A pair, under a name of its own."""
    assert name not in PAIRS
    lines = (changes,) if isinstance(changes, str) else changes
    PAIRS[name] = Pair(name, trace, lines, sentence, library)


class RMS(nn.Module):
    """A norm without a mean."""

    def __init__(self, width: int, eps: float = 1e-6) -> None:
        super().__init__()
        self.weight, self.eps = nn.Parameter(torch.ones(width)), eps

    def forward(self, x: Tensor) -> Tensor:
        return x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + self.eps) * self.weight


def backward(model: nn.Module) -> tv.Trace:
    """The run forward and backward."""
    return tv.trace(model, tokens(), backward=True, hold=True)


code("activation of all blocks", "blocks.*.act ReLU → GELU", "blocks.0.act ReLU → GELU", act=nn.GELU)
code("activation of one block", "blocks.1.act ReLU → GELU", "blocks.1.act ReLU → GELU", act=nn.GELU, act_at=1)
code(
    "approximate gelu",
    "blocks.*.act GELU(approximate='none') → GELU(approximate='tanh')",
    "blocks.0.act",
    before={"act": nn.GELU},
    act=partial(nn.GELU, approximate="tanh"),
)
code("silu in backward", "blocks.*.act ReLU → SiLU", "blocks.0.act ReLU → SiLU", run=backward, act=nn.SiLU)
code(
    "negative slope",
    "blocks.*.act LeakyReLU(negative_slope=0.01) → LeakyReLU(negative_slope=0.2)",
    "blocks.0.act LeakyReLU*it is called differently, negative_slope: 0.01 → 0.2",
    before={"act": nn.LeakyReLU},
    act=partial(nn.LeakyReLU, 0.2),
)
code(
    "norm of another class",
    ("blocks.*.norm* LayerNorm(16) → RMS", "norm LayerNorm(16) → RMS"),
    "blocks.0.norm1 LayerNorm",
    norm=RMS,
)
code(
    "eps of norms",
    (
        "blocks.*.norm* LayerNorm(16, eps=1e-05) → LayerNorm(16, eps=0.01)",
        "norm LayerNorm(16, eps=1e-05) → LayerNorm(16, eps=0.01)",
    ),
    "blocks.0.norm1",
    eps=1e-2,
)
code(
    "small eps",
    (
        "blocks.*.norm* LayerNorm(16, eps=1e-05) → LayerNorm(16, eps=1e-06)",
        "norm LayerNorm(16, eps=1e-05) → LayerNorm(16, eps=1e-06)",
    ),
    "blocks.0.norm1",
    eps=1e-6,
)
code(
    "no bias",
    tuple(f"blocks.*.attn.{n} Linear(16, 16*) → Linear(16, 16, bias=False)" for n in "qkvo")
    + ("blocks.*.fc1 *bias=False)",),
    "blocks.0.attn.q Linear(16, 16",
    bias=False,
)
code(
    "no bias of one layer",
    "blocks.1.fc1 Linear(16, 32*) → Linear(16, 32, bias=False)",
    "blocks.1.fc1 Linear(16, 32",
    bias_at=0,
)
code(
    "hidden width",
    ("blocks.*.fc1 Linear(16, 32) → Linear(16, 48)", "blocks.*.fc2 Linear(32, 16) → Linear(48, 16)"),
    "blocks.0.fc1 Linear(16, 32) → Linear(16, 48)",
    hidden=48,
)
code(
    "heads",
    (
        "blocks.*.attn view size: [2, 6, 2, 8] → [2, 6, 4, 4]",
        "blocks.*.attn mul other: 0.3535533905932738 → 0.5",
    ),
    "blocks.0.attn view size: [2, 6, 2, 8] → [2, 6, 4, 4]",
    heads=4,
)
code(
    "scale of attention",
    "blocks.*.attn mul other: 0.35* → 0.5*",
    "mul in blocks.0.attn*0.35* → 0.5",
    scale=0.5,
)
code("mask shifted", "blocks.*.attn triu diagonal: 1 → 2", "blocks.0.attn triu diagonal: 1 → 2", diagonal=2)
code("no mask", "blocks.*.attn *masked_fill removed*", "blocks.0.attn*masked_fill removed", causal=False)
code(
    "mask filled otherwise",
    "blocks.*.attn masked_fill value: -1000000000.0 → -10.0",
    "masked_fill in blocks.0.attn is the first to differ (1 relative): it is called differently, value: -1000000000.0 → -10.0",
    fill=-10.0,
)
code(
    "norm after",
    (
        "blocks.*.norm1 called after attn instead of first",
        "blocks.*.norm2 called after drop instead of after attn",
    ),
    "blocks.0",
    pre=False,
)
code("residual removed", "blocks.* add removed", "blocks.0 add removed", residual=False)
code("residual scaled", "blocks.* mul added", "blocks.0 mul added", alpha=0.5)
code(
    "residual scaled otherwise",
    "blocks.* mul other: 0.5 → 0.25",
    "mul in blocks.0*0.5 → 0.25",
    before={"alpha": 0.5},
    alpha=0.25,
)
code("k and v swapped", "blocks.*.attn*k*v*", "blocks.0.attn*k*v", kv="vk")
code(
    "softmax over another dimension",
    "blocks.*.attn *softmax dim: -1 → -2",
    "_softmax in blocks.0.attn is the first to differ (0.894 relative): it is called differently, dim: -1 → -2",
    dim=-2,
)
code(
    "sigmoid for softmax",
    "blocks.*.attn *softmax → sigmoid",
    "blocks.0.attn *softmax → sigmoid",
    softmax=False,
)
code("weights tied", "head*weight*tied*embed.weight*", "head*weight*embed.weight", tied=True)
code("layers shared", "blocks.1*blocks.0*", "blocks.1*blocks.0", shared=True)
code(
    "layers in another order",
    "blocks.0 called after blocks.1 instead of after place",
    "blocks.0 called after blocks.1 instead of after place",
    order=(1, 0),
)
code("layer left out", "blocks.1 Block removed", "blocks.1 Block removed", skip=(1,))
code("a layer more", "blocks.2 Block added", "blocks.2 Block added", depth=3)
code("each layer twice", "blocks.* called 1 → 2 times", "blocks.0 called 1 → 2 times", twice=True)
code("layer inserted", "extra LayerNorm(16*) added", "extra LayerNorm(16*) added", extra=nn.LayerNorm)
code(
    "linear inserted",
    "extra Linear(16, 16) added",
    "extra Linear(16, 16) added",
    extra=lambda width: nn.Linear(width, width),
)
code("gate", ("blocks.*.gate Linear(16, 32) added", "blocks.* mul added"), "blocks.0*gate", gate=True)
code("last token", "(root) select added", "(root) select added", pool="last")
code("mean of tokens", "(root) mean added", "(root) mean added", pool="mean")
code(
    "last token instead of mean",
    "(root) mean → select",
    "(root) mean → select",
    before={"pool": "mean"},
    pool="last",
)
code(
    "no positions",
    ("place Embedding(8, 16) removed", "(root) arange, add removed"),
    "place Embedding(8, 16) removed",
    positions=None,
)
code("embedding scaled", "(root) mul added", "(root) mul added", positions="scaled")
code("detached", "blocks.* *detach*", "blocks.0 detach added", run=backward, detach=True)
code(
    "fused attention",
    "blocks.*.attn *scaled_dot_product*",
    "no more than rounding: *; what changed: blocks.0.attn *scaled_dot_product*",
    fused=True,
)
code(
    "checkpointed",
    "blocks.* recomputed in backward",
    "no difference: all that could be compared is the same in both; what changed: blocks.* recomputed in backward",
    run=backward,
    checkpointed=True,
    before={"training": True},
    training=True,
)
code("another output too", ("output called output.0 in B", "output.1 only in B"), "", keep=True)
code("log softmax", "(root) *log_softmax added", "(root) *log_softmax added", log=True)
code(
    "dtype of all",
    "*float32 → *bfloat16*",
    "what changed: weights of 20 modules float32 → bfloat16",
    dtype=torch.bfloat16,
)
code(
    "vocabulary",
    ("embed Embedding(11, 16) → Embedding(13, 16)", "head Linear(16, 11) → Linear(16, 13)"),
    "embed Embedding(11, 16) → Embedding(13, 16)",
    vocab=13,
)
code(
    "dropout in training",
    "blocks.*.drop Dropout(p=0.1) → Dropout(p=0.3)",
    "blocks.0.drop Dropout(p=0.1) → Dropout(p=0.3)",
    before={"training": True, "p": 0.1},
    training=True,
    p=0.3,
)
code(
    "dropout that does nothing",
    (),
    "no difference: all that could be compared is the same in both",
    before={"p": 0.1},
    p=0.3,
)
code(
    "eval",
    "blocks.*.drop Dropout(training=True) → Dropout(training=False)",
    "blocks.0.drop Dropout(training=True) → Dropout(training=False)",
    before={"training": True, "p": 0.1},
    training=False,
    p=0.1,
)
code(
    "identity for the norm",
    ("blocks.*.norm* LayerNorm(16) → Identity", "norm LayerNorm(16) → Identity"),
    "blocks.0.norm1 LayerNorm",
    norm=lambda width, eps: nn.Identity(),
)
code(
    "init of one weight",
    (),
    "the runs start from different*blocks.1.fc1.weight",
    init=lambda m: nn.init.normal_(m.blocks[1].fc1.weight, std=0.1),
)
code("no change", (), "no difference")

# --- a small convolutional net ---

CNN: dict[str, Any] = {
    "channels": 8, "kernel": 3, "stride": 1, "padding": 1, "dilation": 1, "groups": 1, "mode": "zeros", "act": nn.ReLU,
    "norm": nn.BatchNorm2d, "pool": nn.MaxPool2d, "pool_size": 2, "ceil": False, "drop": nn.Dropout, "p": 0.0, "classes": 5,
    "residual": True, "down": "pool", "up": "nearest", "factor": 2.0, "join": "cat", "flatten": True, "training": False,
    "momentum": 0.1, "affine": True, "track": True, "global": "avg", "spectral": False, "wrap": False, "order": "bn-act",
    "inplace": False, "permuted": False, "pad": None, "include": True, "bias": True, "transposed": False, "frozen": (),
}  # fmt: skip


def cnn(**options: Any) -> nn.Module:
    """A small U-net; each option is one place of its code."""
    o = Options(**{**CNN, **options})

    class Unit(nn.Module):
        def __init__(self, inner: int, outer: int, **changed: Any) -> None:
            super().__init__()
            self.conv = (
                nn.Conv2d(inner, outer, 3, padding=1) if not changed else nn.Conv2d(inner, outer, **changed)
            )
            self.norm = o.norm(outer)
            self.act = o.act()

        def forward(self, x: Tensor) -> Tensor:
            if o.order == "act-bn":
                return self.norm(self.act(self.conv(x)))
            return self.act(self.norm(self.conv(x)))

    class Net(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            c = o.channels
            self.stem = Unit(3, c)
            self.mid = Unit(
                c, c, kernel_size=o.kernel, stride=o.stride, padding=o.padding, dilation=o.dilation, groups=o.groups,
                padding_mode=o.mode, bias=o.bias,
            )  # fmt: skip
            self.down = o.pool(o.pool_size)
            self.deep = Unit(c, c)
            self.up = (
                nn.ConvTranspose2d(c, c, 2, 2)
                if o.transposed
                else nn.Upsample(scale_factor=o.factor, mode=o.up)
            )
            self.out = Unit(2 * c if o.join == "cat" else c, c)
            self.drop = o.drop(o.p)
            self.fc = nn.Linear(c, o.classes)

        def forward(self, x: Tensor) -> Tensor:
            if o.permuted:
                x = x.flip(-1)
            if o.pad:
                x = F.pad(x, o.pad)
            x = self.stem(x)
            y = self.mid(x)
            x = x + y if o.residual and y.shape == x.shape else y
            y = self.up(self.deep(self.down(x)))
            x = torch.cat([x, y], 1) if o.join == "cat" else x + y
            x = self.drop(self.out(x))
            x = x.mean((2, 3)) if getattr(o, "global") == "avg" else x.amax((2, 3))
            return self.fc(x)

    torch.manual_seed(0)
    model = Net()
    for name, buffer in model.named_buffers():
        if "running" in name:
            buffer.copy_(torch.rand_like(buffer) * 0.5 + (0.5 if name.endswith("var") else -0.5))
    for name in o.frozen:
        model.get_submodule(name).requires_grad_(False)
    return model.train(o.training)


def image(size: int = 16) -> Tensor:
    """The same picture every time."""
    return torch.linspace(0, 40, 2 * 3 * size * size).sin().reshape(2, 3, size, size)


def conv(
    name: str,
    changes: str | tuple[str, ...],
    sentence: str = "",
    *,
    before: dict[str, Any] | None = None,
    run: Callable[[nn.Module], tv.Trace] | None = None,
    **options: Any,
) -> None:
    """A pair of small convolutional nets."""

    def trace(changed: bool) -> tv.Trace:
        model = cnn(**{**(before or {}), **(options if changed else {})})
        if changed:
            filled_from(model, cnn(**(before or {})))
        torch.manual_seed(1)
        return run(model) if run is not None else tv.trace(model, image(), hold=True)

    add(name, trace, changes, sentence)


def trained(model: nn.Module) -> tv.Trace:
    """The run of a picture forward and backward."""
    return tv.trace(model, image(), backward=True, hold=True)


def unit(before: str, after: str) -> str:
    """How a change of the convolution in the middle is told."""
    return f"mid.conv Conv2d(8, 8, {before}) → Conv2d(8, 8, {after})"


conv(
    "kernel",
    "mid.conv Conv2d(8, 8, 3, padding=1) → Conv2d(8, 8, 5, padding=2)",
    "mid.conv Conv2d(8, 8, 3, padding=1) → Conv2d(8, 8, 5, padding=2)",
    kernel=5,
    padding=2,
)
conv(
    "padding",
    ("mid.conv Conv2d(8, 8, 3, padding=1) → Conv2d(8, 8, 3, padding=0)", "(root) add removed"),
    unit("3, padding=1", "3, padding=0"),
    padding=0,
)
conv(
    "stride",
    ("mid.conv Conv2d(8, 8, 3, stride=1) → Conv2d(8, 8, 3, stride=2)", "(root) add removed"),
    unit("3, stride=1", "3, stride=2"),
    stride=2,
)
conv(
    "dilation",
    unit("3, padding=1, dilation=1", "3, padding=2, dilation=2"),
    "mid.conv Conv2d(8, 8, 3, *dilation=2)",
    dilation=2,
    padding=2,
)
conv("groups", unit("3, groups=1", "3, groups=2"), "mid.conv Conv2d(8, 8, 3, groups=1)", groups=2)
conv("depthwise", unit("3, groups=1", "3, groups=8"), "mid.conv Conv2d(8, 8, 3, groups=1)", groups=8)
conv(
    "padding mode",
    unit("3, padding_mode='zeros'", "3, padding_mode='reflect'"),
    "mid.conv*padding_mode",
    mode="reflect",
)
conv(
    "circular",
    unit("3, padding_mode='reflect'", "3, padding_mode='circular'"),
    "mid.conv*padding_mode",
    before={"mode": "reflect"},
    mode="circular",
)
conv("conv without bias", unit("3, bias=True", "3, bias=False"), "mid.conv*bias", bias=False)
conv("average pool", "down MaxPool2d(2*) → AvgPool2d(2*)", "down MaxPool2d", pool=nn.AvgPool2d)
conv(
    "pool size",
    (
        "down MaxPool2d(2, stride=2) → MaxPool2d(4, stride=4)",
        "up Upsample(scale_factor=2.0) → Upsample(scale_factor=4.0)",
    ),
    "",
    pool_size=4,
    before={"factor": 2.0},
    factor=4.0,
)
conv(
    "channels",
    (
        "stem.conv Conv2d(3, 8, 3) → Conv2d(3, 12, 3)",
        "*",
        "*",
        "*",
        "*",
        "*",
        "*",
        "*",
        "fc Linear(8, 5) → Linear(12, 5)",
    ),
    "stem.conv Conv2d(3, 8, 3) → Conv2d(3, 12, 3)",
    channels=12,
)
conv("classes", "fc Linear(8, 5) → Linear(8, 7)", "fc Linear(8, 5) → Linear(8, 7)", classes=7)
conv(
    "group norm",
    ("stem.norm BatchNorm2d(8) → GroupNorm(2, 8)", "mid.norm *", "deep.norm *", "out.norm *"),
    "stem.norm BatchNorm2d(8) → GroupNorm(2, 8)",
    norm=lambda c: nn.GroupNorm(2, c),
)
conv(
    "instance norm",
    ("stem.norm BatchNorm2d(8) → InstanceNorm2d(8)", "mid.norm *", "deep.norm *", "out.norm *"),
    "stem.norm BatchNorm2d(8) → InstanceNorm2d(8)",
    norm=nn.InstanceNorm2d,
)
conv(
    "norm without affine",
    (
        "stem.norm BatchNorm2d(8, affine=True, bias=True) → BatchNorm2d(8, affine=False, bias=False)",
        "mid.norm BatchNorm2d(8, affine=True, bias=True) → BatchNorm2d(8, affine=False, bias=False)",
        "deep.norm BatchNorm2d(8, affine=True, bias=True) → BatchNorm2d(8, affine=False, bias=False)",
        "out.norm BatchNorm2d(8, affine=True, bias=True) → BatchNorm2d(8, affine=False, bias=False)",
    ),
    "",
    norm=partial(nn.BatchNorm2d, affine=False),
)
conv(
    "norm eps",
    (
        "stem.norm BatchNorm2d(8, eps=1e-05) → BatchNorm2d(8, eps=0.001)",
        "mid.norm *",
        "deep.norm *",
        "out.norm *",
    ),
    "stem.norm",
    norm=partial(nn.BatchNorm2d, eps=1e-3),
)
conv(
    "norm momentum",
    (
        "stem.norm BatchNorm2d(8, momentum=0.1) → BatchNorm2d(8, momentum=0.01)",
        "mid.norm *",
        "deep.norm *",
        "out.norm *",
    ),
    "stem.norm",
    before={"training": True},
    training=True,
    norm=partial(nn.BatchNorm2d, momentum=0.01),
)
conv(
    "norm in eval",
    (
        "stem.norm BatchNorm2d(8, training=True) → BatchNorm2d(8, training=False)",
        "mid.norm *",
        "deep.norm *",
        "out.norm *",
    ),
    "stem.norm BatchNorm2d(8, training=True)",
    before={"training": True},
    training=False,
)
conv("activation before norm", ("stem.*", "mid.*", "deep.*", "out.*"), "stem.", order="act-bn")
conv(
    "activations of units",
    ("stem.act ReLU → SiLU", "mid.act ReLU → SiLU", "deep.act ReLU → SiLU", "out.act ReLU → SiLU"),
    "stem.act ReLU → SiLU",
    act=nn.SiLU,
)
conv("skip removed", "(root) add removed", "(root) add removed", residual=False)
conv(
    "skip added up",
    ("out.conv Conv2d(16, 8, 3) → Conv2d(8, 8, 3)", "(root) cat → add"),
    "cat → add",
    join="add",
)
conv(
    "bilinear",
    "up Upsample(mode='nearest') → Upsample(mode='bilinear')",
    "up Upsample(mode='nearest') → Upsample(mode='bilinear')",
    up="bilinear",
)
conv(
    "transposed",
    "up Upsample → ConvTranspose2d(8, 8, 2*)",
    "up Upsample → ConvTranspose2d(8, 8, 2*)",
    transposed=True,
)
conv("max over picture", "(root) mean → amax", "(root) mean → amax", **{"global": "max"})
conv("flipped", "(root) flip added", "(root) flip added", permuted=True)
conv("padded", "(root) *pad* added", "(root) *pad* added", pad=(1, 1, 1, 1))
conv(
    "dropout of channels",
    "drop Dropout → Dropout2d",
    "drop Dropout",
    before={"training": True, "p": 0.5},
    training=True,
    drop=nn.Dropout2d,
)
conv("frozen stem", "stem all parameters frozen", "", run=trained, frozen=("stem",))
conv(
    "inplace activation",
    ("stem.act ReLU(inplace=False) → ReLU(inplace=True)", "mid.act *", "deep.act *", "out.act *"),
    "no difference",
    act=partial(nn.ReLU, inplace=True),
)
conv("no change of a net", (), "no difference", run=trained)

# --- a step of training ---

STEP: dict[str, Any] = {
    "optimizer": torch.optim.AdamW, "set": {}, "loss": nn.CrossEntropyLoss, "reduction": "mean", "smoothing": 0.0,
    "shift": 1, "clip": None, "autocast": None, "accumulate": 1, "scale": 1.0, "zero": True, "steps": 0, "groups": False,
    "ema": False, "noise": None, "ignore": -100, "weights": None, "weight_decay": None, "penalty": 0.0, "seed": 1,
    "batch": 2, "length": 6, "closure": False, "frozen": (), "model": {},
}  # fmt: skip


def step(**options: Any) -> tv.Trace:
    """One step of training, of which each option is one place."""
    o = Options(**{**STEP, **options})
    model = former(**{"training": True, **o.model})
    if o.model:
        filled_from(model, former(training=True))
    for name in o.frozen:
        model.get_submodule(name).requires_grad_(False)
    rows: Any = model.parameters()
    if o.groups:
        rows = [
            {"params": list(model.blocks.parameters()), "lr": 1e-2},
            {"params": list(model.head.parameters())},
        ]
    optimizer = o.optimizer(rows, **o.set)
    ids = tokens(o.batch, o.length)
    criterion: Any = o.loss(reduction=o.reduction)
    if o.loss is nn.CrossEntropyLoss:
        criterion = nn.CrossEntropyLoss(
            reduction=o.reduction, label_smoothing=o.smoothing, ignore_index=o.ignore, weight=o.weights
        )

    def train() -> Tensor:
        if o.zero:
            optimizer.zero_grad()
        for _ in range(o.accumulate):
            with nullcontext() if o.autocast is None else torch.autocast("cpu", dtype=o.autocast):
                logits = model(ids)
                if o.shift:
                    scores, labels = logits[:, : -o.shift], ids[:, o.shift :]
                else:
                    scores, labels = logits, ids
                loss = criterion(
                    scores.flatten(0, 1),
                    labels.flatten()
                    if o.loss is nn.CrossEntropyLoss
                    else F.one_hot(labels.flatten(), 11).float(),
                )
            if o.penalty:
                loss = loss + o.penalty * sum(p.pow(2).sum() for p in model.blocks.parameters())
            (loss.sum() / o.scale if o.scale != 1 else loss.sum()).backward()
        if o.clip == "norm":
            nn.utils.clip_grad_norm_(model.parameters(), 0.1)
        elif o.clip == "value":
            nn.utils.clip_grad_value_(model.parameters(), 0.1)
        elif o.clip is not None:
            nn.utils.clip_grad_norm_(model.parameters(), o.clip)
        optimizer.step()
        return loss.detach()

    for _ in range(o.steps):
        train()
    torch.manual_seed(o.seed)
    return tv.trace(train, hold=True)


def training(
    name: str,
    changes: str | tuple[str, ...],
    sentence: str = "",
    *,
    before: dict[str, Any] | None = None,
    **options: Any,
) -> None:
    """A pair of steps of training."""
    add(name, lambda changed: step(**{**(before or {}), **(options if changed else {})}), changes, sentence)


training("learning rate", "AdamW lr 0.001 → 0.01", "AdamW lr 0.001 → 0.01", set={"lr": 1e-2})
training(
    "learning rate, slightly", "AdamW lr 0.001 → 0.00101", "AdamW lr 0.001 → 0.00101", set={"lr": 1.01e-3}
)
training(
    "weight decay",
    "AdamW weight_decay 0.01 → 0.1",
    "AdamW weight_decay 0.01 → 0.1",
    set={"weight_decay": 0.1},
)
training(
    "betas",
    "AdamW betas (0.9, 0.999) → (0.9, 0.95)",
    "AdamW betas",
    set={"betas": (0.9, 0.95)},
    steps=2,
    before={"steps": 2},
)
training("eps of AdamW", "AdamW eps 1e-08 → 0.001", "AdamW eps 1e-08 → 0.001", set={"eps": 1e-3})
training("amsgrad", "AdamW amsgrad False → True", "", set={"amsgrad": True})
training("foreach", "AdamW foreach * → True", "", set={"foreach": True}, before={"set": {"foreach": False}})
training(
    "fused",
    ("AdamW foreach False → None", "AdamW fused None → True"),
    "",
    set={"fused": True},
    before={"set": {"foreach": False}},
)
training("Adam for AdamW", "optimizer AdamW → Adam", "AdamW → Adam", optimizer=torch.optim.Adam)
training("SGD for AdamW", "optimizer AdamW → SGD", "AdamW → SGD", optimizer=torch.optim.SGD)
training("momentum", "SGD momentum 0 → 0.9", "", before={"optimizer": torch.optim.SGD}, set={"momentum": 0.9})
training(
    "momentum of later steps",
    "SGD momentum 0.5 → 0.9",
    "SGD momentum 0.5 → 0.9",
    before={"optimizer": torch.optim.SGD, "set": {"momentum": 0.5}, "steps": 1},
    set={"momentum": 0.9},
)
training(
    "nesterov",
    "SGD nesterov False → True",
    "SGD nesterov False → True",
    before={"optimizer": torch.optim.SGD, "set": {"momentum": 0.9}},
    set={"momentum": 0.9, "nesterov": True},
)
training(
    "decay of SGD",
    "SGD weight_decay 0 → 0.01",
    "SGD weight_decay 0 → 0.01",
    before={"optimizer": torch.optim.SGD},
    set={"weight_decay": 0.01},
)
training(
    "maximize",
    "SGD maximize False → True",
    "SGD maximize False → True",
    before={"optimizer": torch.optim.SGD},
    set={"maximize": True},
)
training("groups of parameters", "AdamW 1 group of parameters → 2", "", groups=True)
training(
    "sum of losses",
    "criterion CrossEntropyLoss(reduction='mean') → CrossEntropyLoss(reduction='sum')",
    "reduction",
    reduction="sum",
)
training("label smoothing", "*label_smoothing=0.0*label_smoothing=0.1*", "label_smoothing=0.1", smoothing=0.1)
training("ignored label", "*ignore_index=-100*ignore_index=0*", "ignore_index", ignore=0)
training("weights of classes", "*", "weight", weights=torch.linspace(0.5, 1.5, 11))
training("labels not shifted", "(root) *slice removed*", "slice", shift=0)
training("labels shifted twice", ("(root) slice end: -1 → -2", "(root) slice start: 1 → 2"), "slice", shift=2)
training(
    "another loss",
    (
        "(root) aminmax, _local_scalar_dense, _local_scalar_dense, zeros and 2 more added",
        "criterion CrossEntropyLoss → MSELoss",
    ),
    "criterion CrossEntropyLoss → MSELoss; the runs part at sum",
    loss=nn.MSELoss,
)
training("clipped by norm", "*added (optimizer)", "", clip="norm")
training("clipped by value", "*clamp* added (optimizer)", "", clip="value")
training(
    "clipped at another norm",
    "(root) mul other: 1.0 → 0.5 (optimizer)",
    "0.5",
    before={"clip": 1.0},
    clip=0.5,
)
training(
    "autocast",
    "(root) casts to bfloat16 added in 14 modules, as by autocast",
    "(root) casts to bfloat16 added in 14 modules, as by autocast",
    autocast=torch.bfloat16,
)
training(
    "accumulated",
    ("model called 1 → 2 times", "(root) slice, slice, sum added", "criterion called 1 → 2 times"),
    "",
    accumulate=2,
)
training("loss scaled", "(root) div added", "div added", scale=4.0)
training(
    "loss scaled otherwise", "(root) div other: 4.0 → 8.0", "div*4.0 → 8.0", before={"scale": 4.0}, scale=8.0
)
training(
    "gradients kept",
    "(root) gradients are added to those from before the run, in B alone (zero_grad)",
    "(root) gradients are added to those from before the run, in B alone (zero_grad); the runs part at",
    before={"steps": 1},
    zero=False,
)
training("penalty", "(root) pow, *added", "(root) pow, *added*; the runs part at sum", penalty=0.01)
training(
    "frozen blocks",
    "model.blocks.0 all parameters frozen",
    "no difference*what changed: model.blocks.0 all parameters frozen",
    frozen=("blocks.0",),
)
training(
    "batch size", "a tensor from outside (constant) i64[2, 6] → i64[4, 6]", "i64[2, 6] → i64[4, 6]", batch=4
)
training(
    "a later step",
    (),
    "the runs start from different inputs or weights, most of all AdamW",
    steps=2,
    before={"steps": 1},
)
training("step without change", (), "no difference")
training(
    "activation in training",
    "model.blocks.*.act ReLU → GELU",
    "blocks.0.act ReLU → GELU",
    model={"act": nn.GELU},
)
training(
    "dropout in a step",
    "model.blocks.*.drop Dropout(p=0.0) → Dropout(p=0.1)",
    "blocks.0.drop",
    model={"p": 0.1},
)

# --- models of timm and transformers, from configurations ---


def vision(
    name: str,
    changes: str | tuple[str, ...],
    sentence: str = "",
    *,
    model: str,
    size: int = 32,
    before: dict[str, Any] | None = None,
    edit: Callable[[Any], Any] | None = None,
    train: bool = False,
    run: str = "forward",
    **options: Any,
) -> None:
    """A pair of timm's models, made or edited in another way."""

    def trace(changed: bool) -> tv.Trace:
        import timm

        def build(more: dict[str, Any]) -> Any:
            torch.manual_seed(0)
            return timm.create_model(model, num_classes=more.pop("num_classes", 7), **more)

        net = build({**(before or {}), **(options if changed else {})})
        if changed:
            filled_from(net, build(dict(before or {})))
            if edit is not None:
                edit(net)
        torch.manual_seed(1)
        x = torch.linspace(0, 40, 3 * size * size).sin().reshape(1, 3, size, size)
        return tv.trace(net.train(train), x, hold=True, backward=run == "backward")

    add(name, trace, changes, sentence, "timm")


def replace(path: str, make: Callable[[Any], Any]) -> Callable[[Any], None]:
    """An edit that puts something in the place of a module."""

    def edit(model: nn.Module) -> None:
        outer, _, last = path.rpartition(".")
        torch.manual_seed(3)
        setattr(model.get_submodule(outer), last, make(model.get_submodule(path)))

    return edit


def swap(first: str, second: str) -> Callable[[Any], None]:
    """An edit that lets two modules change places."""

    def edit(model: nn.Module) -> None:
        one, two = model.get_submodule(first), model.get_submodule(second)
        replace(first, lambda _: two)(model)
        replace(second, lambda _: one)(model)

    return edit


def share(first: str, second: str) -> Callable[[Any], None]:
    """An edit that makes the second module the first."""
    return lambda model: replace(second, lambda _: model.get_submodule(first))(model)


def put(path: str, **attributes: Any) -> Callable[[Any], None]:
    """An edit of attributes."""

    def edit(model: nn.Module) -> None:
        for name, value in attributes.items():
            setattr(model.get_submodule(path), name, value)

    return edit


def blurred(path: str) -> Callable[[Any], None]:
    """An edit of one weight."""

    def edit(model: nn.Module) -> None:
        with torch.no_grad():
            model.get_parameter(path).mul_(1.1)

    return edit


RES = {"model": "resnet18", "before": {}}
vision(
    "timm: block replaced by Identity",
    "layer3.1 BasicBlock → Identity",
    "layer3.1 BasicBlock → Identity",
    **RES,
    edit=replace("layer3.1", lambda _: nn.Identity()),
)
vision(
    "timm: activations",
    ("act1 ReLU → SiLU", "layer*.*.act* ReLU → SiLU"),
    "act1 ReLU → SiLU",
    **RES,
    act_layer=nn.SiLU,
)
vision(
    "timm: norms",
    (
        "bn1 BatchNorm2d(64) → GroupNorm(4, 64)",
        "layer1.*.bn1 BatchNorm2d(64) → GroupNorm(4, 64)",
        "layer1.*.bn2 BatchNorm2d(64) → GroupNorm(4, 64)",
        "layer2.*.bn1 BatchNorm2d(128) → GroupNorm(4, 128)",
        "layer2.*.bn2 BatchNorm2d(128) → GroupNorm(4, 128)",
        "layer2.0.downsample.1 BatchNorm2d(128) → GroupNorm(4, 128)",
        "layer3.*.bn1 BatchNorm2d(256) → GroupNorm(4, 256)",
        "layer3.*.bn2 BatchNorm2d(256) → GroupNorm(4, 256)",
        "layer3.0.downsample.1 BatchNorm2d(256) → GroupNorm(4, 256)",
        "layer4.*.bn1 BatchNorm2d(512) → GroupNorm(4, 512)",
        "layer4.*.bn2 BatchNorm2d(512) → GroupNorm(4, 512)",
        "layer4.0.downsample.1 BatchNorm2d(512) → GroupNorm(4, 512)",
    ),
    "bn1 BatchNorm2d(64) → *",
    **RES,
    norm_layer=lambda c, **k: nn.GroupNorm(4, c),
)
vision(
    "timm: one stride",
    (
        "layer2.0.conv1 Conv2d(64, 128, 3, stride=2) → Conv2d(64, 128, 3, stride=1)",
        "layer2.0.downsample.0 Conv2d(64, 128, 1, stride=2) → Conv2d(64, 128, 1, stride=1)",
    ),
    "layer2.0.conv1",
    **RES,
    edit=lambda m: (put("layer2.0.conv1", stride=(1, 1))(m), put("layer2.0.downsample.0", stride=(1, 1))(m)),
)
vision(
    "timm: blocks swapped",
    "layer1.0 changed places with layer1.1",
    "layer1.0 changed places with layer1.1",
    **RES,
    edit=swap("layer1.0", "layer1.1"),
)
vision(
    "timm: block shared",
    "layer1.1 is layer1.0 in B, shared",
    "layer1.1 is layer1.0 in B, shared",
    **RES,
    edit=share("layer1.0", "layer1.1"),
)
vision("timm: weight changed", (), "layer2.1.conv2.weight", **RES, edit=blurred("layer2.1.conv2.weight"))
vision(
    "timm: pool of stem",
    "maxpool MaxPool2d(3*) → AvgPool2d(3*)",
    "maxpool MaxPool2d",
    **RES,
    edit=replace("maxpool", lambda _: nn.AvgPool2d(3, 2, 1)),
)
vision(
    "timm: classes",
    "fc Linear(512, 7) → Linear(512, 9)",
    "fc Linear(512, 7) → Linear(512, 9)",
    **RES,
    num_classes=9,
)
vision(
    "timm: head removed",
    "fc Linear(512, 7) → Identity",
    "fc Linear(512, 7) → Identity",
    **RES,
    edit=replace("fc", lambda _: nn.Identity()),
)
vision(
    "timm: pooling",
    "global_pool.pool AdaptiveAvgPool2d(1) → AdaptiveMaxPool2d(1)",
    "global_pool",
    **RES,
    global_pool="max",
)
vision(
    "timm: eps of one norm",
    "layer4.0.bn2 BatchNorm2d(512, eps=1e-05) → BatchNorm2d(512, eps=0.1)",
    "layer4.0.bn2",
    **RES,
    edit=put("layer4.0.bn2", eps=0.1),
)
VIT = {
    "model": "vit_tiny_patch16_224",
    "size": 32,
    "before": {"img_size": 32, "depth": 3, "embed_dim": 48, "num_heads": 3},
}
vision(
    "timm: heads",
    "blocks.*.attn Attention(num_heads=3, head_dim=16, scale=0.25) → Attention(num_heads=6, head_dim=8, scale=0.353553391); view size: [1, 5, 3, 3, 16] → [1, 5, 3, 6, 8]",
    "blocks.0.attn Attention(*num_heads=3",
    **VIT,
    num_heads=6,
)
vision("timm: depth", "blocks.3 Block added", "blocks.3 Block added", **VIT, depth=4)
vision(
    "timm: no bias of qkv",
    "blocks.*.attn.qkv Linear(48, 144, bias=True) → Linear(48, 144, bias=False)",
    "what changed: blocks.*.attn.qkv",
    **VIT,
    qkv_bias=False,
)
vision(
    "timm: norm of qk",
    ("blocks.*.attn.q_norm Identity → LayerNorm", "blocks.*.attn.k_norm Identity → LayerNorm"),
    "blocks.0.attn.q_norm Identity → LayerNorm",
    **VIT,
    qk_norm=True,
)
vision(
    "timm: layer scale",
    "blocks.*.ls* Identity → LayerScale",
    "blocks.0.ls1 Identity → LayerScale",
    **VIT,
    init_values=0.1,
)
vision(
    "timm: pooled by mean",
    (
        "(root) VisionTransformer(global_pool='token') → VisionTransformer(global_pool='avg'); select → slice, mean",
        "norm changed places with fc_norm",
    ),
    "",
    **VIT,
    global_pool="avg",
)
vision(
    "timm: activation of vit",
    "blocks.*.mlp.act GELU → ReLU",
    "blocks.0.mlp.act GELU → ReLU",
    **VIT,
    act_layer=nn.ReLU,
)
vision(
    "timm: mlp ratio",
    (
        "blocks.*.mlp.fc1 Linear(48, 192) → Linear(48, 96)",
        "blocks.*.mlp.fc2 Linear(192, 48) → Linear(96, 48)",
    ),
    "blocks.0.mlp.fc1 Linear(48, 192) → Linear(48, 96)",
    **VIT,
    mlp_ratio=2.0,
)
vision(
    "timm: not fused",
    "blocks.*.attn *fused_attn=True*fused_attn=False*",
    "",
    **VIT,
    edit=lambda m: [put(f"blocks.{n}.attn", fused_attn=False)(m) for n in range(3)],
)
vision(
    "timm: scale of attention",
    "blocks.1.attn *scale=*",
    "blocks.1.attn Attention(scale",
    **VIT,
    edit=put("blocks.1.attn", scale=0.5, fused_attn=False),
)
vision(
    "timm: vit blocks swapped",
    "blocks.0 changed places with blocks.2",
    "blocks.0 changed places with blocks.2",
    **VIT,
    edit=lambda m: m.blocks.__setattr__("_modules", {"0": m.blocks[2], "1": m.blocks[1], "2": m.blocks[0]}),
)
vision(
    "timm: block removed",
    "blocks.1 Block removed",
    "blocks.1 Block removed",
    **VIT,
    edit=lambda m: m.blocks.__delitem__(1),
)
vision(
    "timm: drop path",
    ("blocks.1-2.drop_path1 Identity → DropPath", "blocks.1-2.drop_path2 Identity → DropPath"),
    "",
    **VIT,
    train=True,
    drop_path_rate=0.2,
)
vision(
    "timm: patch size",
    (
        "patch_embed.proj Conv2d(3, 48, 16, stride=16) → Conv2d(3, 48, 8, stride=8)",
        "patch_embed PatchEmbed(patch_size=16, grid_size=2, num_patches=4) → PatchEmbed(patch_size=8, grid_size=4, num_patches=16)",
        "(root) pos_embed f32[1, 5, 48] → f32[1, 17, 48]",
    ),
    "patch_embed.proj Conv2d(3, 48, 16",
    **VIT,
    patch_size=8,
)
vision(
    "timm: efficientnet activation",
    (
        "bn*.act SiLU → ReLU",
        "blocks.*.*.bn1.act SiLU → ReLU",
        "blocks.*.*.se.act1 SiLU → ReLU",
        "blocks.1.*.bn2.act SiLU → ReLU",
        "blocks.2.*.bn2.act SiLU → ReLU",
        "blocks.3.*.bn2.act SiLU → ReLU",
        "blocks.4.*.bn2.act SiLU → ReLU",
        "blocks.5.*.bn2.act SiLU → ReLU",
        "blocks.6.0.bn2.act SiLU → ReLU",
    ),
    "bn1.act SiLU → ReLU",
    model="efficientnet_b0",
    before={},
    act_layer=nn.ReLU,
)


def language(
    name: str,
    changes: str | tuple[str, ...],
    sentence: str = "",
    *,
    model: str,
    before: dict[str, Any] | None = None,
    edit: Callable[[Any], Any] | None = None,
    train: bool = False,
    inputs: Callable[[bool], dict[str, Any]] | None = None,
    loss: bool = False,
    made: Callable[[Any, bool], Any] | None = None,
    **options: Any,
) -> None:
    """A pair of transformers' models, from another configuration or edited."""

    def trace(changed: bool) -> tv.Trace:
        import transformers

        def build(more: dict[str, Any]) -> Any:
            torch.manual_seed(0)
            kind = getattr(transformers, model)
            return kind(kind.config_class(**{**LANGUAGE[model], **more}))

        net = build({**(before or {}), **(options if changed else {})})
        if changed:
            filled_from(net, build(dict(before or {})))
            if edit is not None:
                edit(net)
        torch.manual_seed(1)
        kwargs = {"input_ids": tokens(2, 6)} if inputs is None else inputs(changed)
        more = {"loss": lambda out: out.loss} if loss else {}
        return tv.trace(net.train(train), kwargs=kwargs, hold=True, **more)

    add(name, trace, changes, sentence, "transformers")


TINY = {
    "vocab_size": 31,
    "hidden_size": 32,
    "intermediate_size": 64,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
}
LANGUAGE: dict[str, dict[str, Any]] = {
    "BertModel": TINY | {"attn_implementation": "sdpa"},
    "BertForMaskedLM": TINY,
    "GPT2LMHeadModel": {"vocab_size": 31, "n_embd": 32, "n_layer": 2, "n_head": 4, "n_positions": 16},
    "LlamaForCausalLM": TINY | {"num_key_value_heads": 4},
    "MixtralForCausalLM": TINY | {"num_key_value_heads": 2, "num_local_experts": 4},
    "T5ForConditionalGeneration": {
        "vocab_size": 31,
        "d_model": 32,
        "d_kv": 8,
        "d_ff": 64,
        "num_layers": 2,
        "num_heads": 4,
        "decoder_start_token_id": 0,
    },
    "GPTNeoXForCausalLM": TINY,
    "OPTForCausalLM": {
        "vocab_size": 31,
        "hidden_size": 32,
        "ffn_dim": 64,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "word_embed_proj_dim": 32,
        "max_position_embeddings": 32,
    },
    "BartForConditionalGeneration": {
        "vocab_size": 31,
        "d_model": 32,
        "encoder_layers": 2,
        "decoder_layers": 2,
        "encoder_attention_heads": 4,
        "decoder_attention_heads": 4,
        "encoder_ffn_dim": 64,
        "decoder_ffn_dim": 64,
        "max_position_embeddings": 32,
    },
    "Qwen2ForCausalLM": TINY | {"num_key_value_heads": 2, "tie_word_embeddings": False},
    "FalconForCausalLM": {
        "vocab_size": 31,
        "hidden_size": 32,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "new_decoder_architecture": False,
    },
    "MambaForCausalLM": {"vocab_size": 31, "hidden_size": 32, "num_hidden_layers": 2, "state_size": 4},
    "DistilBertModel": {"vocab_size": 31, "dim": 32, "hidden_dim": 64, "n_layers": 2, "n_heads": 4},
    "ElectraModel": TINY | {"embedding_size": 16},
    "ViTModel": TINY | {"image_size": 32, "patch_size": 16},
}
BERT = {"model": "BertModel"}
language(
    "bert: activation",
    "encoder.layer.*.intermediate*GELU*",
    "encoder.layer.0.intermediate",
    **BERT,
    hidden_act="relu",
)
language(
    "bert: heads",
    "encoder.layer.*.attention.self *num_attention_heads=4*num_attention_heads=8*",
    "encoder.layer.0.attention.self",
    **BERT,
    num_attention_heads=8,
)
language(
    "bert: eps",
    (
        "embeddings.LayerNorm LayerNorm(32, eps=1e-12) → LayerNorm(32, eps=0.001)",
        "encoder.layer.*.attention.output.LayerNorm LayerNorm(32, eps=1e-12) → LayerNorm(32, eps=0.001)",
        "encoder.layer.*.output.LayerNorm LayerNorm(32, eps=1e-12) → LayerNorm(32, eps=0.001)",
    ),
    "embeddings.LayerNorm",
    **BERT,
    layer_norm_eps=1e-3,
)
language(
    "bert: eager attention",
    "encoder.layer.*.attention.self*",
    "",
    **BERT,
    attn_implementation="eager",
    before={},
)
language(
    "bert: layers",
    "encoder.layer.2 BertLayer added",
    "encoder.layer.2 BertLayer added",
    **BERT,
    num_hidden_layers=3,
)
language(
    "bert: dropout",
    (
        "embeddings.dropout Dropout(p=0.1) → Dropout(p=0.2)",
        "encoder.layer.*.attention.output.dropout Dropout(p=0.1) → Dropout(p=0.2)",
        "encoder.layer.*.output.dropout Dropout(p=0.1) → Dropout(p=0.2)",
    ),
    "p=0.1*p=0.2",
    **BERT,
    train=True,
    hidden_dropout_prob=0.2,
)
language(
    "bert: mask",
    (
        "(root) _to_copy, all, _local_scalar_dense, arange and 10 more added",
        "encoder.layer.*.attention.self scalar_tensor, scalar_tensor, where added",
        "encoder.layer.*.attention.self _scaled_dot_product_flash_attention_for_cpu attn_mask: none → a tensor",
    ),
    "",
    **BERT,
    inputs=lambda changed: (
        {
            "input_ids": tokens(2, 6),
            "attention_mask": torch.ones(2, 6, dtype=torch.long).index_fill(1, torch.tensor([5]), 0),
        }
        if changed
        else {"input_ids": tokens(2, 6)}
    ),
)
language(
    "bert: mask hides more",
    (),
    "the runs start from different inputs or weights, most of all attention_mask",
    **BERT,
    inputs=lambda changed: {
        "input_ids": tokens(2, 6),
        "attention_mask": (torch.arange(6) < (4 if changed else 5)).long().expand(2, 6).contiguous(),
    },
)
language(
    "bert: other tokens",
    (),
    "input_ids",
    **BERT,
    inputs=lambda changed: {"input_ids": tokens(2, 6) + changed},
)
language(
    "bert: longer",
    "*input_ids i64[2, 6] → i64[2, 8]*",
    "",
    **BERT,
    inputs=lambda changed: {"input_ids": tokens(2, 8 if changed else 6)},
)
language("bert: pooler removed", "pooler BertPooler removed", "pooler", **BERT, edit=put("", pooler=None))
language(
    "bert: layers swapped",
    "encoder.layer.0 changed places with encoder.layer.1",
    "encoder.layer.0 changed places",
    **BERT,
    edit=swap("encoder.layer.0", "encoder.layer.1"),
)
language(
    "bert: query and key swapped",
    "encoder.layer.0.attention.self.query changed places with key",
    "query changed places with key; the runs part at _scaled_dot_product_flash_attention_for_cpu in encoder.layer.0.attention.self, which reads the same tensors in another order",
    **BERT,
    edit=swap("encoder.layer.0.attention.self.query", "encoder.layer.0.attention.self.key"),
)
language(
    "bert: layer shared",
    "encoder.layer.1 is encoder.layer.0 in B, shared",
    "shared",
    **BERT,
    edit=share("encoder.layer.0", "encoder.layer.1"),
)
language(
    "bert: untied",
    "*cls.predictions.decoder*",
    "no difference*what changed: cls.predictions.decoder weight no longer tied",
    model="BertForMaskedLM",
    tie_word_embeddings=False,
)
language(
    "bert: norm replaced",
    "encoder.layer.1.output.LayerNorm LayerNorm(32) → Identity",
    "encoder.layer.1.output.LayerNorm LayerNorm(32) → Identity",
    **BERT,
    edit=replace("encoder.layer.1.output.LayerNorm", lambda _: nn.Identity()),
)
GPT = {"model": "GPT2LMHeadModel"}
language(
    "gpt2: activation",
    "transformer.h.*.mlp.act NewGELUActivation → *GELU*",
    "transformer.h.0.mlp.act",
    **GPT,
    activation_function="gelu",
)
language(
    "gpt2: scale by layer",
    "transformer.h.*attn*",
    "transformer.h",
    **GPT,
    scale_attn_by_inverse_layer_idx=True,
)
language(
    "gpt2: heads", "transformer.h.*.attn *num_heads=4*num_heads=2*", "transformer.h.0.attn", **GPT, n_head=2
)
language(
    "gpt2: eps",
    (
        "transformer.h.*.ln_* LayerNorm(32, eps=1e-05) → LayerNorm(32, eps=0.1)",
        "transformer.ln_f LayerNorm(32, eps=1e-05) → LayerNorm(32, eps=0.1)",
    ),
    "transformer.h.0.ln_1",
    **GPT,
    layer_norm_epsilon=0.1,
)
language(
    "gpt2: untied",
    "lm_head*",
    "no difference*what changed: lm_head weight no longer tied to",
    **GPT,
    tie_word_embeddings=False,
)
language(
    "gpt2: inner width",
    ("transformer.h.*.mlp.c_fc *128*64*", "transformer.h.*.mlp.c_proj *128*64*"),
    "transformer.h.0.mlp.c_fc",
    **GPT,
    n_inner=64,
)
language(
    "gpt2: labels",
    (),
    "labels",
    **GPT,
    loss=True,
    inputs=lambda changed: {"input_ids": tokens(2, 6), "labels": tokens(2, 6) + changed},
)
language(
    "gpt2: dropout",
    (
        "transformer.h.*.attn.resid_dropout Dropout(p=0.1) → Dropout(p=0.4)",
        "transformer.h.*.mlp.dropout Dropout(p=0.1) → Dropout(p=0.4)",
    ),
    "",
    **GPT,
    train=True,
    resid_pdrop=0.4,
)
LLAMA = {"model": "LlamaForCausalLM"}
language("llama: rope theta", (), "model.rotary_emb", **LLAMA, rope_theta=500.0)
language(
    "llama: eps",
    (
        "model.layers.*.input_layernorm LlamaRMSNorm(variance_epsilon=1e-06) → LlamaRMSNorm(variance_epsilon=0.01); add other: 1e-06 → 0.01",
        "model.layers.*.post_attention_layernorm LlamaRMSNorm(variance_epsilon=1e-06) → LlamaRMSNorm(variance_epsilon=0.01); add other: 1e-06 → 0.01",
        "model.norm LlamaRMSNorm(variance_epsilon=1e-06) → LlamaRMSNorm(variance_epsilon=0.01); add other: 1e-06 → 0.01",
    ),
    "model.layers.0.input_layernorm",
    **LLAMA,
    rms_norm_eps=1e-2,
)
language(
    "llama: key heads",
    (
        "model.layers.*.self_attn.k_proj Linear(32, 32) → Linear(32, 16)",
        "model.layers.*.self_attn LlamaAttention(num_key_value_groups=1) → LlamaAttention(num_key_value_groups=2)",
        "model.layers.*.self_attn.v_proj Linear(32, 32) → Linear(32, 16)",
    ),
    "model.layers.0.self_attn.k_proj Linear(32, 32) → Linear(32, 16)",
    **LLAMA,
    num_key_value_heads=2,
)
language(
    "llama: bias",
    (
        "model.layers.*.self_attn.q_proj Linear(32, 32, bias=False) → Linear(32, 32, bias=True)",
        "model.layers.*.self_attn.k_proj Linear(32, 32, bias=False) → Linear(32, 32, bias=True)",
        "model.layers.*.self_attn.v_proj Linear(32, 32, bias=False) → Linear(32, 32, bias=True)",
        "model.layers.*.self_attn.o_proj Linear(32, 32, bias=False) → Linear(32, 32, bias=True)",
    ),
    "what changed: model.layers.*.self_attn.q_proj",
    **LLAMA,
    attention_bias=True,
)
language(
    "llama: activation",
    "model.layers.*.mlp.act_fn SiLU* → GELU*",
    "model.layers.0.mlp.act_fn",
    **LLAMA,
    hidden_act="gelu",
)
language("llama: tied", "lm_head*embed_tokens*", "lm_head", **LLAMA, tie_word_embeddings=True)
language(
    "llama: width",
    (
        "model.layers.*.mlp.gate_proj Linear(32, 64) → Linear(32, 96)",
        "model.layers.*.mlp.up_proj Linear(32, 64) → Linear(32, 96)",
        "model.layers.*.mlp LlamaMLP(intermediate_size=64) → LlamaMLP(intermediate_size=96)",
        "model.layers.*.mlp.down_proj Linear(64, 32) → Linear(96, 32)",
    ),
    "model.layers.0.mlp.gate_proj Linear(32, 64) → Linear(32, 96)",
    **LLAMA,
    intermediate_size=96,
)
language(
    "llama: norm skipped",
    "model.layers.1.post_attention_layernorm LlamaRMSNorm → Identity",
    "model.layers.1.post_attention_layernorm LlamaRMSNorm",
    **LLAMA,
    edit=replace("model.layers.1.post_attention_layernorm", lambda _: nn.Identity()),
)
language(
    "llama: gate and up swapped",
    "model.layers.0.mlp.gate_proj changed places with up_proj",
    "changed places",
    **LLAMA,
    edit=swap("model.layers.0.mlp.gate_proj", "model.layers.0.mlp.up_proj"),
)
language(
    "llama: no cache",
    ("model slice, sub, cat, slice and 8 more added", "model.layers.*.self_attn cat, cat removed"),
    "",
    **LLAMA,
    inputs=lambda changed: {"input_ids": tokens(2, 6), "use_cache": not changed},
)
language(
    "mixtral: experts per token",
    (
        "model.layers.*.mlp.gate MixtralTopKRouter(top_k=2) → MixtralTopKRouter(top_k=1); topk k: 2 → 1",
        "model.layers.*.mlp.experts floor_divide other: 2 → 1",
    ),
    "",
    model="MixtralForCausalLM",
    num_experts_per_tok=1,
)
language(
    "t5: gated",
    (
        "encoder.block.*.layer.1.DenseReluDense T5DenseActDense → T5DenseGatedActDense",
        "encoder.block.*.layer.1.DenseReluDense.act ReLU → NewGELUActivation",
        "encoder.block.*.layer.1.DenseReluDense.wi_1 Linear(32, 64) added",
        "decoder.block.*.layer.2.DenseReluDense T5DenseActDense → T5DenseGatedActDense",
        "decoder.block.*.layer.2.DenseReluDense.act ReLU → NewGELUActivation",
        "decoder.block.*.layer.2.DenseReluDense.wi_1 Linear(32, 64) added",
    ),
    "",
    model="T5ForConditionalGeneration",
    inputs=lambda changed: {"input_ids": tokens(2, 6), "labels": tokens(2, 4)},
    feed_forward_proj="gated-gelu",
)
language(
    "t5: buckets",
    (
        "encoder.block.0.layer.0.SelfAttention.relative_attention_bias Embedding(32, 4) → Embedding(8, 4)",
        "decoder.block.0.layer.0.SelfAttention.relative_attention_bias Embedding(32, 4) → Embedding(8, 4)",
        "encoder.block.0.layer.0.SelfAttention T5Attention(relative_attention_num_buckets=32) → T5Attention(relative_attention_num_buckets=8); mul other: 16 → 4; lt other: 8 → 2; div other: 8 → 2",
        "decoder.block.0.layer.0.SelfAttention T5Attention(relative_attention_num_buckets=32) → T5Attention(relative_attention_num_buckets=8); lt other: 16 → 4; div other: 16 → 4; div other: 2.0794415416798357 → 3.4657359027997265",
    ),
    "",
    model="T5ForConditionalGeneration",
    inputs=lambda changed: {"input_ids": tokens(2, 6), "labels": tokens(2, 4)},
    relative_attention_num_buckets=8,
)
language(
    "neox: not parallel",
    (
        "gpt_neox.layers.0 GPTNeoXLayer(use_parallel_residual=True) → GPTNeoXLayer(use_parallel_residual=False); add reads addmm in gpt_neox.layers.0.attention.dense instead of addmm in gpt_neox.layers.0.mlp.dense_4h_to_h; add reads embedding in gpt_neox.embed_in instead of addmm in gpt_neox.layers.0.attention.dense; add reads addmm in gpt_neox.layers.0.mlp.dense_4h_to_h instead of add in gpt_neox.layers.0",
        "gpt_neox.layers.0.post_attention_layernorm native_layer_norm reads add in gpt_neox.layers.0 instead of embedding in gpt_neox.embed_in",
        "gpt_neox.layers.1 GPTNeoXLayer(use_parallel_residual=True) → GPTNeoXLayer(use_parallel_residual=False); add reads addmm in gpt_neox.layers.1.attention.dense instead of addmm in gpt_neox.layers.1.mlp.dense_4h_to_h; add reads add in gpt_neox.layers.0 instead of addmm in gpt_neox.layers.1.attention.dense; add reads addmm in gpt_neox.layers.1.mlp.dense_4h_to_h instead of add in gpt_neox.layers.1",
        "gpt_neox.layers.1.post_attention_layernorm native_layer_norm reads add in gpt_neox.layers.1 instead of add in gpt_neox.layers.0",
    ),
    "gpt_neox.layers.0",
    model="GPTNeoXForCausalLM",
    use_parallel_residual=False,
)
OPT = {"model": "OPTForCausalLM"}
language(
    "opt: norm after",
    (
        "model.decoder.layers.*.self_attn_layer_norm called after self_attn instead of first",
        "model.decoder.layers.* OPTDecoderLayer(do_layer_norm_before=True) → OPTDecoderLayer(do_layer_norm_before=False)",
        "model.decoder.layers.*.final_layer_norm called after fc2 instead of after self_attn",
        "model.decoder.final_layer_norm LayerNorm(32) removed",
    ),
    "model.decoder.layers.0 OPTDecoderLayer(do_layer_norm_before=True) → OPTDecoderLayer(do_layer_norm_before=False);",
    **OPT,
    do_layer_norm_before=False,
)
language(
    "opt: activation",
    "model.decoder.layers.*.activation_fn ReLU → GELUActivation",
    "model.decoder.layers.0.activation_fn ReLU → GELUActivation;",
    **OPT,
    activation_function="gelu",
)
language(
    "bart: embeddings scaled",
    (
        "model.encoder.embed_tokens BartScaledWordEmbedding(embed_scale=1.0) → *(embed_scale=5.65685425)*",
        "model.decoder.embed_tokens BartScaledWordEmbedding(embed_scale=1.0) → *(embed_scale=5.65685425)*",
    ),
    "model.encoder.embed_tokens BartScaledWordEmbedding(embed_scale=1.0) → *mul in model.encoder.embed_tokens is the first",
    model="BartForConditionalGeneration",
    scale_embedding=True,
)
language(
    "bart: decoder layers",
    "model.decoder.layers.1 BartDecoderLayer removed",
    "model.decoder.layers.1 BartDecoderLayer removed; the runs part at mm in lm_head",
    model="BartForConditionalGeneration",
    decoder_layers=1,
)
language(
    "qwen2: tied",
    "lm_head weight tied to model.embed_tokens.weight",
    "lm_head weight tied to model.embed_tokens.weight",
    model="Qwen2ForCausalLM",
    tie_word_embeddings=True,
)
FALCON = {"model": "FalconForCausalLM"}
language(
    "falcon: alibi",
    (
        "transformer FalconModel(use_alibi=False) → FalconModel(use_alibi=True)*",
        "transformer.h.*.self_attention mul, slice, slice, neg and 10 more removed",
        "transformer.h.*.self_attention scalar_tensor, scalar_tensor, where removed",
    ),
    "transformer FalconModel(use_alibi=False) → FalconModel(use_alibi=True);",
    **FALCON,
    alibi=True,
)
language(
    "falcon: not parallel",
    ("transformer.h.* add_ → add", "transformer.h.*.post_attention_layernorm LayerNorm(32) added"),
    "transformer.h.0.post_attention_layernorm LayerNorm(32) added;",
    **FALCON,
    parallel_attn=False,
)
language(
    "mamba: kernel",
    (
        "backbone.layers.*.mixer MambaMixer(conv_kernel_size=4) → MambaMixer(conv_kernel_size=3)*",
        "backbone.layers.*.mixer.conv1d weight f32[64, 1, 4] → f32[64, 1, 3]",
    ),
    "backbone.layers.0.mixer MambaMixer(conv_kernel_size=4) → MambaMixer(conv_kernel_size=3);",
    model="MambaForCausalLM",
    conv_kernel=3,
)
language(
    "distilbert: heads",
    "transformer.layer.*.attention DistilBertSelfAttention(n_heads=4*) → DistilBertSelfAttention(n_heads=2*)*",
    "transformer.layer.0.attention DistilBertSelfAttention(n_heads=4*) → DistilBertSelfAttention(n_heads=2",
    model="DistilBertModel",
    n_heads=2,
)
language(
    "electra: embedding size",
    (
        "embeddings.word_embeddings Embedding(31, 16) → Embedding(31, 32)",
        "embeddings.token_type_embeddings Embedding(2, 16) → Embedding(2, 32)",
        "embeddings.position_embeddings Embedding(512, 16) → Embedding(512, 32)",
        "embeddings.LayerNorm LayerNorm(16) → LayerNorm(32)",
        "embeddings_project Linear(16, 32) removed",
    ),
    "embeddings.word_embeddings Embedding(31, 16) → Embedding(31, 32);",
    model="ElectraModel",
    embedding_size=32,
)
language(
    "vit: dropout of attention",
    "layers.*.attention ViTAttention(attention_dropout=0.0) → ViTAttention(attention_dropout=0.3)*",
    "layers.0.attention ViTAttention(attention_dropout=0.0) → ViTAttention(attention_dropout=0.3);",
    model="ViTModel",
    train=True,
    inputs=lambda changed: {"pixel_values": image(32)[:1]},
    attention_probs_dropout_prob=0.3,
)


class Adapter(nn.Module):
    """A layer with something of low rank beside it."""

    def __init__(self, base: nn.Linear) -> None:
        super().__init__()
        self.base = base
        self.down = nn.Linear(base.in_features, 2, bias=False)
        self.up = nn.Linear(2, base.out_features, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        return self.base(x) + self.up(self.down(x))


QUERY = "encoder.layer.1.attention.self.query"
language(
    "bert: adapter",
    (
        f"{QUERY} Linear(32, 32) → Adapter around it (base)",
        f"{QUERY}.down Linear(32, 2) added",
        f"{QUERY}.up Linear(2, 32) added",
    ),
    f"{QUERY} Linear(32, 32) → Adapter around it (base);",
    **BERT,
    edit=replace(QUERY, Adapter),
)
language(
    "bert: weight norm",
    (
        "encoder.layer.0.output.dense Linear(64, 32) → ParametrizedLinear(64, 32)",
        "encoder.layer.0.output.dense.parametrizations.weight ParametrizationList added",
    ),
    "what changed: encoder.layer.0.output.dense Linear(64, 32) → ParametrizedLinear(64, 32)",
    **BERT,
    edit=lambda model: nn.utils.parametrizations.weight_norm(model.encoder.layer[0].output.dense),
)


def hooked(path: str, change: Callable[[Any], Any]) -> Callable[[Any], None]:
    """An edit by a hook on what a module gives back."""
    return lambda model: model.get_submodule(path).register_forward_hook(lambda _, __, out: change(out))


language(
    "bert: doubled by a hook",
    "encoder.layer.1.output mul added",
    "encoder.layer.1.output mul added",
    **BERT,
    edit=hooked("encoder.layer.1.output", lambda out: out * 2),
)


def in_bfloat16(path: str) -> Callable[[Any], None]:
    """An edit that lets one layer compute in bfloat16."""

    def edit(model: nn.Module) -> None:
        layer = model.get_submodule(path).bfloat16()
        layer.register_forward_pre_hook(lambda _, args: (args[0].bfloat16(),))
        layer.register_forward_hook(lambda _, __, out: out.float())

    return edit


language(
    "bert: one layer in bfloat16",
    (
        "encoder.layer.1.intermediate.dense float32 → bfloat16",
        "encoder.layer.1.intermediate.dense _to_copy added",
    ),
    "what changed: encoder.layer.1.intermediate.dense float32 → bfloat16",
    **BERT,
    edit=in_bfloat16("encoder.layer.1.intermediate.dense"),
)


def without_gradients(path: str) -> Callable[[Any], None]:
    """An edit that lets one module run without gradients."""

    def edit(model: nn.Module) -> None:
        module = model.get_submodule(path)
        module.forward = torch.no_grad()(module.forward)

    return edit


LABELS = {"inputs": lambda changed: {"input_ids": tokens(2, 6), "labels": tokens(2, 6), "use_cache": False}}
language(
    "gpt2: a block without gradients",
    "transformer.h.0 runs without gradients in B alone (no_grad)",
    "transformer.h.0 runs without gradients in B alone (no_grad); results differ",
    **GPT,
    **LABELS,
    loss=True,
    edit=without_gradients("transformer.h.0"),
)
language(
    "gpt2: checkpointed",
    "transformer.h.* recomputed in backward",
    "no difference: all that could be compared is the same in both; what changed: transformer.h.* recomputed in backward",
    **GPT,
    **LABELS,
    loss=True,
    train=True,
    edit=lambda model: model.gradient_checkpointing_enable(),
)
vision(
    "timm: no squeeze and excitation",
    "blocks.1.0.se SqueezeExcite → Identity",
    "blocks.1.0.se SqueezeExcite → Identity;",
    model="efficientnet_b0",
    edit=replace("blocks.1.0.se", lambda _: nn.Identity()),
)
vision(
    "timm: kernel of convnext",
    (
        "stages.0.blocks.0.conv_dw Conv2d(8, 8, 7, padding=3) → Conv2d(8, 8, 5, padding=2)",
        "stages.1-3.blocks.0.conv_dw Conv2d(16, 16, 7, padding=3) → Conv2d(16, 16, 5, padding=2)",
    ),
    "stages.0.blocks.0.conv_dw Conv2d(8, 8, 7, padding=3) → Conv2d(8, 8, 5, padding=2);",
    model="convnext_atto",
    before={"depths": (1, 1, 1, 1), "dims": (8, 16, 16, 16)},
    kernel_sizes=5,
)
vision(
    "timm: one mlp shared",
    "blocks.1.mlp is blocks.0.mlp in B, shared",
    "blocks.1.mlp is blocks.0.mlp in B, shared;",
    **VIT,
    edit=share("blocks.0.mlp", "blocks.1.mlp"),
)
vision(
    "timm: one weight tied",
    "blocks.1.attn.qkv weight tied to blocks.0.attn.qkv.weight",
    "blocks.1.attn.qkv weight tied to blocks.0.attn.qkv.weight",
    **VIT,
    edit=lambda model: setattr(model.blocks[1].attn.qkv, "weight", model.blocks[0].attn.qkv.weight),
)
vision(
    "timm: registers",
    "(root) VisionTransformer(num_prefix_tokens=1, num_reg_tokens=0) → VisionTransformer(num_prefix_tokens=3, num_reg_tokens=2)*",
    "(root) VisionTransformer(num_prefix_tokens=1, num_reg_tokens=0) → VisionTransformer(num_prefix_tokens=3, num_reg_tokens=2);",
    **VIT,
    reg_tokens=2,
)
vision(
    "timm: input normalised",
    "(root) sub, div added",
    "(root) sub, div added",
    **RES,
    edit=lambda model: model.register_forward_pre_hook(lambda _, args: ((args[0] - 0.5) / 0.25,)),
)
language("no change of bert", (), "no difference", **BERT)
language("no change of llama", (), "no difference", **LLAMA)


def is_like(pattern: str, text: str) -> bool:
    """Whether a text is what a pattern says, in which ``*`` stands for anything."""
    return re.fullmatch(".*".join(map(re.escape, pattern.split("*"))), text, re.DOTALL) is not None


def wrongs(pair: Pair) -> Iterator[str]:
    """In what the words for a pair are not what they must be."""
    comparison = tv.compare(pair.trace(False), pair.trace(True))
    lines = [str(line) for line in comparison.lines]
    if len(lines) != len(pair.changes) or not all(map(is_like, pair.changes, lines)):
        yield f"changes {lines}, not {list(pair.changes)}"
    if comparison.same != (not pair.changes):
        yield f"same is {comparison.same}"
    if pair.sentence:
        sentence = comparison.differences().in_short()
        if not is_like(f"*{pair.sentence}*", sentence):
            yield f"numbers: {sentence!r} has no {pair.sentence!r}"
