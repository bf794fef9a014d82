"""Blocks that the programs of a calibration are built of: none of a known model, all of what models are made of."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn


class Loop(nn.Module):
    """One function, again and again."""

    def __init__(self, call: Callable[..., Tensor], times: int, *shapes: tuple[int, ...]) -> None:
        super().__init__()
        self.call, self.times = call, times
        self.weights = nn.ParameterList([nn.Parameter(torch.randn(*shape) * 0.05) for shape in shapes])

    def forward(self, x: Tensor) -> Tensor:
        weights = list(self.weights)
        for _ in range(self.times):
            x = self.call(x, *weights)
        return x


class Tower(nn.Module):
    """Blocks of one kind, one upon another."""

    def __init__(self, make: Callable[[], nn.Module], times: int) -> None:
        super().__init__()
        self.blocks = nn.ModuleList(make() for _ in range(times))

    def forward(self, x: Tensor) -> Tensor:
        for block in self.blocks:
            x = block(x)
        return x


class Fused(nn.Module):
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


class Written(nn.Module):
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


class Heads(nn.Module):
    """Attention by torch's own module, which inference runs as one operation."""

    def __init__(self, width: int, heads: int = 4) -> None:
        super().__init__()
        self.norm, self.heads = nn.LayerNorm(width), nn.MultiheadAttention(width, heads, batch_first=True)

    def forward(self, x: Tensor) -> Tensor:
        y = self.norm(x)
        seen: Tensor = self.heads(y, y, y, need_weights=False)[0]
        return x + seen


class Residual(nn.Module):
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


class Gate(nn.Module):
    """A map scaled by what its channels' means say."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.pool = nn.AdaptiveAvgPool2d(1)
        self.down, self.up = nn.Conv2d(width, 4, 1), nn.Conv2d(4, width, 1)
        self.act, self.gate = nn.SiLU(), nn.Sigmoid()

    def forward(self, x: Tensor) -> Tensor:
        return x * self.gate(self.up(self.act(self.down(self.pool(x)))))


class Shuffle(nn.Module):
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


class Zoom(nn.Module):
    """Down, up again, and joined with what was there."""

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


class Words(nn.Module):
    """Words with their places through some blocks."""

    def __init__(self, width: int, times: int) -> None:
        super().__init__()
        self.words, self.places = nn.Embedding(100, width), nn.Embedding(64, width)
        self.norm, self.blocks = nn.LayerNorm(width), nn.ModuleList(Fused(width) for _ in range(times))
        self.head = nn.Linear(width, 100, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        y = self.norm(self.words(x) + self.places(torch.arange(x.shape[1], device=x.device)[None]))
        for block in self.blocks:
            y = block(y)
        return self.head(y)
