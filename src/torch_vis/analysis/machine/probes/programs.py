"""Small programs whose time is the host's: loops of one operation, and towers of blocks, shallow and deep."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn


class FunctionLoop(nn.Module):
    """One function, called repeatedly."""

    def __init__(self, call: Callable[..., Tensor], times: int, *shapes: tuple[int, ...]) -> None:
        super().__init__()
        self.call, self.times = call, times
        self.weights = nn.ParameterList([nn.Parameter(torch.randn(*shape) * 0.05) for shape in shapes])

    def forward(self, x: Tensor) -> Tensor:
        weights = list(self.weights)
        for _ in range(self.times):
            x = self.call(x, *weights)
        return x


class BlockStack(nn.Module):
    """Blocks of one kind, one upon another."""

    def __init__(self, make: Callable[[], nn.Module], times: int) -> None:
        super().__init__()
        self.blocks = nn.ModuleList(make() for _ in range(times))

    def forward(self, x: Tensor) -> Tensor:
        for block in self.blocks:
            x = block(x)
        return x


class FusedAttentionBlock(nn.Module):
    """A block with fused attention, as decoders have it."""

    def __init__(self, width: int, heads: int = 4) -> None:
        super().__init__()
        self.heads = heads
        self.first, self.second = nn.LayerNorm(width), nn.LayerNorm(width)
        self.parts, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)
        self.drop = nn.Dropout(0.1)

    def forward(self, x: Tensor) -> Tensor:
        batch, tokens, width = x.shape
        parts = self.parts(self.first(x)).split(width, 2)
        q, k, v = (part.view(batch, tokens, self.heads, -1).transpose(1, 2) for part in parts)
        seen = F.scaled_dot_product_attention(q, k, v, is_causal=True).transpose(1, 2).reshape(x.shape)
        x = x + self.drop(self.out(seen))
        return x + self.drop(self.down(F.gelu(self.up(self.second(x)))))


class ExplicitAttentionBlock(nn.Module):
    """A block with attention written out."""

    def __init__(self, width: int, heads: int = 4) -> None:
        super().__init__()
        self.heads = heads
        self.q, self.k, self.v, self.out = (nn.Linear(width, width) for _ in range(4))
        self.norm, self.drop = nn.LayerNorm(width), nn.Dropout(0.1)

    def forward(self, x: Tensor) -> Tensor:
        batch, tokens, _ = x.shape
        q, k, v = (
            part(x).view(batch, tokens, self.heads, -1).permute(0, 2, 1, 3)
            for part in (self.q, self.k, self.v)
        )
        scores = self.drop((q @ k.transpose(-1, -2) / 4.0).softmax(-1))
        return self.norm(x + self.out((scores @ v).permute(0, 2, 1, 3).contiguous().view(x.shape)))


class MultiheadBlock(nn.Module):
    """Attention by torch's own module, which inference runs as one operation."""

    def __init__(self, width: int, heads: int = 4) -> None:
        super().__init__()
        self.norm, self.heads = nn.LayerNorm(width), nn.MultiheadAttention(width, heads, batch_first=True)

    def forward(self, x: Tensor) -> Tensor:
        y = self.norm(x)
        seen: Tensor = self.heads(y, y, y, need_weights=False)[0]
        return x + seen


class ResidualBlock(nn.Module):
    """Two convolutions with norms and a way around them."""

    def __init__(
        self, width: int, norm: Callable[[int], nn.Module], act: type[nn.Module], groups: int = 1
    ) -> None:
        super().__init__()
        self.wide = nn.Conv2d(width, width, 3, padding=1, bias=False, groups=groups)
        self.narrow = nn.Conv2d(width, width, 1, bias=False)
        self.first, self.second = norm(width), norm(width)
        self.act: Any = act(inplace=True)

    def forward(self, x: Tensor) -> Tensor:
        y = self.second(self.narrow(self.act(self.first(self.wide(x)))))
        return self.act(y + x)


class SqueezeExcite(nn.Module):
    """A map scaled by what its channels' means say."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.pool = nn.AdaptiveAvgPool2d(1)
        self.down, self.up = nn.Conv2d(width, 4, 1), nn.Conv2d(4, width, 1)
        self.act, self.gate = nn.SiLU(), nn.Sigmoid()

    def forward(self, x: Tensor) -> Tensor:
        return x * self.gate(self.up(self.act(self.down(self.pool(x)))))


class ChannelShuffle(nn.Module):
    """Half of the channels through a block, and both halves mixed."""

    def __init__(self, width: int) -> None:
        super().__init__()
        half = width // 2
        self.into, self.across = nn.Conv2d(half, half, 1), nn.Conv2d(half, half, 3, padding=1, groups=half)
        self.first, self.second = nn.BatchNorm2d(half), nn.BatchNorm2d(half)

    def forward(self, x: Tensor) -> Tensor:
        kept, y = x.chunk(2, 1)
        y = self.second(self.across(F.hardtanh(self.first(self.into(y)))))
        batch, channels, *sides = x.shape
        return torch.cat([kept, y], 1).view(batch, 2, channels // 2, *sides).transpose(1, 2).reshape(x.shape)


class DownUpBlock(nn.Module):
    """Down, up, and joined with the input of the same size, as in a U-Net."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.into, self.join = (
            nn.Conv2d(width, width, 3, padding=1),
            nn.Conv2d(2 * width, width, 3, padding=1),
        )
        self.up = nn.ConvTranspose2d(width, width, 2, 2)

    def forward(self, x: Tensor) -> Tensor:
        y = self.up(F.max_pool2d(F.relu(self.into(x)), 2))
        return F.relu(self.join(torch.cat([x, y], 1)))


class TokenModel(nn.Module):
    """TokenModel with their places through some blocks."""

    def __init__(self, width: int, times: int) -> None:
        super().__init__()
        self.words, self.places = nn.Embedding(100, width), nn.Embedding(64, width)
        self.norm, self.blocks = (
            nn.LayerNorm(width),
            nn.ModuleList(FusedAttentionBlock(width) for _ in range(times)),
        )
        self.head = nn.Linear(width, 100, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        y = self.norm(self.words(x) + self.places(torch.arange(x.shape[1], device=x.device)[None]))
        for block in self.blocks:
            y = block(y)
        return self.head(y)


TIMES = 12
WITH_DEEP = frozenset(
    {"residual", "residual silu", "residual group", "gate", "zoom", "fused", "written", "encoder"}
)
LOOPS: dict[str, tuple[Callable[..., Any], str, tuple[tuple[int, ...], ...]]] = {
    "add": (lambda x: x + 1.5, "rows", ()),
    "mul": (lambda x, p: x * p, "rows", ((64,),)),
    "div": (lambda x: x / 2.0, "rows", ()),
    "relu": (F.relu, "rows", ()),
    "gelu": (F.gelu, "rows", ()),
    "sigmoid": (torch.sigmoid, "rows", ()),
    "tanh": (torch.tanh, "rows", ()),
    "pow": (lambda x: x**2, "rows", ()),
    "dropout": (lambda x: F.dropout(x, 0.1, True), "rows", ()),
    "softmax": (lambda x: x.softmax(-1), "rows", ()),
    "linear": (F.linear, "rows", ((64, 64), (64,))),
    "matmul": (torch.matmul, "rows", ((64, 64),)),
    "norm": (lambda x, w, b: F.layer_norm(x, (64,), w, b), "rows", ((64,), (64,))),
    "bmm": (lambda x: x @ x.transpose(-1, -2) @ x, "rows", ()),
    "views": (lambda x: x.view(2, 16, 4, 16).transpose(1, 2).transpose(1, 2).reshape(2, 16, 64), "rows", ()),
    "chunk": (lambda x: torch.cat(x.chunk(2, -1), -1), "rows", ()),
    "sum": (lambda x: x + x.sum(-1, keepdim=True), "rows", ()),
    "mean": (lambda x: x - x.mean(-1, keepdim=True), "rows", ()),
    "attention": (
        lambda x: F.scaled_dot_product_attention(x[:, None], x[:, None], x[:, None]).squeeze(1),
        "rows",
        (),
    ),
    "where": (lambda x: torch.where(x > 0, x, 0.5), "rows", ()),
    "cast": (lambda x: x.to(torch.float64).to(x.dtype), "rows", ()),
    "clone": (lambda x: x.clone().add_(1.0), "rows", ()),
    "conv": (lambda x, w: F.conv2d(x, w, None, padding=1), "maps", ((16, 16, 3, 3),)),
    "conv bias": (F.conv2d, "maps", ((16, 16, 1, 1), (16,))),
    "each channel": (lambda x, w: F.conv2d(x, w, None, padding=1, groups=16), "maps", ((16, 1, 3, 3),)),
    "group norm": (lambda x, w, b: F.group_norm(x, 4, w, b), "maps", ((16,), (16,))),
    "pool": (lambda x: F.interpolate(F.max_pool2d(x, 2), scale_factor=2), "maps", ()),
}


class HostProgram(NamedTuple):
    """A program: how to make the module, what it reads, its weight in the fit, and which element types to run it in."""

    name: str
    make: Callable[[], nn.Module]
    reads: str
    weight: float
    dtypes: tuple[str, ...]


def all_programs(dtypes: tuple[str, ...], *, deep: bool = True) -> Iterator[HostProgram]:
    """Every program. Towers are most like models, the deep ones above all, and weigh most.

    The deep ones are worth their time where kernels do not run on the host; there they stand for their small forms.
    """
    for program in _all(dtypes):
        if program.name.startswith("deep") <= deep and not (deep and program.name in WITH_DEEP):
            yield program


def _all(dtypes: tuple[str, ...]) -> Iterator[HostProgram]:
    """What is most like models comes first: when time runs out, the rest is left out."""
    yield HostProgram("deep words", lambda: TokenModel(384, 8), "words 64", 2.0, dtypes)
    for name, (block, reads, depth) in _blocks().items():
        weight = 2.0 if name.startswith("deep") else 0.7
        yield HostProgram(name, partial(BlockStack, block, depth), reads, weight, dtypes)
    yield HostProgram("words", lambda: TokenModel(64, 3), "words 16", 0.7, dtypes)
    for name, (call, reads, shapes) in LOOPS.items():
        yield HostProgram(name, _loop(call, shapes), reads, 0.2, dtypes[:1])


def _loop(call: Callable[..., Any], shapes: tuple[tuple[int, ...], ...]) -> Callable[[], nn.Module]:
    return lambda: FunctionLoop(call, TIMES, *shapes)


def _blocks() -> dict[str, tuple[Callable[[], nn.Module], str, int]]:
    """Blocks, what they read, and how many stand on one another."""

    def encoder(width: int, **options: Any) -> Callable[[], nn.Module]:
        return lambda: nn.TransformerEncoderLayer(width, 4, 2 * width, batch_first=True, **options)

    return {
        "deep residual": (lambda: ResidualBlock(128, nn.BatchNorm2d, nn.ReLU), "wide maps", 14),
        "deep gate": (
            lambda: nn.Sequential(ResidualBlock(96, nn.BatchNorm2d, nn.SiLU, 96), SqueezeExcite(96)),
            "narrow maps",
            8,
        ),
        "deep zoom": (lambda: DownUpBlock(128), "wide maps", 8),
        "deep fused": (lambda: FusedAttentionBlock(384), "wide rows", 10),
        "deep shuffle": (lambda: ChannelShuffle(96), "narrow maps", 10),
        "deep group": (lambda: ResidualBlock(128, lambda c: nn.GroupNorm(8, c), nn.SiLU), "wide maps", 8),
        "deep written": (lambda: ExplicitAttentionBlock(384), "wide rows", 8),
        "deep encoder": (encoder(384, norm_first=True, activation="gelu"), "wide rows", 8),
        "heads": (lambda: MultiheadBlock(64), "rows", 6),
        "identity": (nn.Identity, "rows", 8),
        "linear relu": (lambda: nn.Sequential(nn.Linear(64, 64), nn.ReLU(inplace=True)), "rows", 8),
        "perceptron": (
            lambda: nn.Sequential(
                nn.LayerNorm(64), nn.Linear(64, 256), nn.GELU(), nn.Dropout(0.1), nn.Linear(256, 64)
            ),
            "rows",
            8,
        ),
        "batch norm": (lambda: nn.BatchNorm2d(16), "maps", 8),
        "residual": (lambda: ResidualBlock(16, nn.BatchNorm2d, nn.ReLU), "maps", 8),
        "residual silu": (lambda: ResidualBlock(16, nn.BatchNorm2d, nn.SiLU, 16), "maps", 8),
        "residual group": (lambda: ResidualBlock(16, lambda c: nn.GroupNorm(4, c), nn.ReLU), "maps", 6),
        "gate": (lambda: SqueezeExcite(16), "maps", 8),
        "zoom": (lambda: DownUpBlock(16), "maps", 8),
        "fused": (lambda: FusedAttentionBlock(64), "rows", 6),
        "written": (lambda: ExplicitAttentionBlock(64), "rows", 6),
        "encoder": (encoder(64), "rows", 6),
    }


SHAPES: dict[str, tuple[int, ...]] = {
    "rows": (2, 16, 64),
    "wide rows": (4, 64, 384),
    "maps": (2, 16, 8, 8),
    "wide maps": (4, 128, 28, 28),
    "narrow maps": (4, 96, 28, 28),
}


def data_for(program: HostProgram, device: str, dtype: str) -> Tensor:
    """What a program reads."""
    if program.reads.startswith("words"):
        return torch.randint(0, 50, (2, int(program.reads.split()[1])), device=device)
    return torch.randn(*SHAPES[program.reads], device=device, dtype=getattr(torch, dtype), requires_grad=True)


def runs(program: HostProgram, number: int, device: str, dtype: str) -> dict[str, Callable[[], Any]]:
    """A program's inference and its training step, ready to be called."""
    with torch.device(device):
        module = program.make().to(getattr(torch, dtype))
    data = data_for(program, device, dtype)
    parameters = list(module.parameters())
    optimizer: Any = None
    if parameters:
        optimizer = (
            torch.optim.SGD(parameters, 0.01, momentum=0.9) if number % 2 else torch.optim.AdamW(parameters)
        )

    def inference() -> Any:
        if module.training:
            module.eval()
        with torch.no_grad():
            return module(data)

    def training() -> None:
        if not module.training:
            module.train()
        if optimizer is not None:
            optimizer.zero_grad()
        data.grad = None
        module(data).float().square().mean().backward()
        if optimizer is not None:
            optimizer.step()

    return {"inference": inference, "training": training}
