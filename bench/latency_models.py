"""Known models in plain torch, for predictions: no library needed, and none of them is part of a calibration."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn


class Bottleneck(nn.Module):
    """ResNet's block of three convolutions."""

    def __init__(self, inputs: int, width: int, stride: int) -> None:
        super().__init__()
        self.conv1, self.bn1 = nn.Conv2d(inputs, width, 1, bias=False), nn.BatchNorm2d(width)
        self.conv2 = nn.Conv2d(width, width, 3, stride, 1, bias=False)
        self.bn2, self.bn3 = nn.BatchNorm2d(width), nn.BatchNorm2d(4 * width)
        self.conv3, self.relu = nn.Conv2d(width, 4 * width, 1, bias=False), nn.ReLU(inplace=True)
        self.around = None
        if stride > 1 or inputs != 4 * width:
            conv = nn.Conv2d(inputs, 4 * width, 1, stride, bias=False)
            self.around = nn.Sequential(conv, nn.BatchNorm2d(4 * width))

    def forward(self, x: Tensor) -> Tensor:
        y = self.relu(self.bn1(self.conv1(x)))
        y = self.bn3(self.conv3(self.relu(self.bn2(self.conv2(y)))))
        return self.relu(y + (x if self.around is None else self.around(x)))


def resnet50() -> nn.Module:
    """ResNet-50."""
    layers: list[nn.Module] = [nn.Conv2d(3, 64, 7, 2, 3, bias=False), nn.BatchNorm2d(64)]
    layers += [nn.ReLU(inplace=True), nn.MaxPool2d(3, 2, 1)]
    inputs = 64
    for width, blocks, stride in ((64, 3, 1), (128, 4, 2), (256, 6, 2), (512, 3, 2)):
        for number in range(blocks):
            layers.append(Bottleneck(inputs, width, stride if number == 0 else 1))
            inputs = 4 * width
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(2048, 1000))


class Decoder(nn.Module):
    """GPT-2's block."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.ln_1, self.ln_2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv, self.proj = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)
        self.drop, self.act = nn.Dropout(0.1), nn.GELU(approximate="tanh")

    def forward(self, x: Tensor) -> Tensor:
        batch, tokens, width = x.shape
        q, k, v = self.qkv(self.ln_1(x)).view(batch, tokens, 3, self.heads, -1).permute(2, 0, 3, 1, 4)
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.drop(self.proj(y.transpose(1, 2).reshape(batch, tokens, width)))
        return x + self.drop(self.down(self.act(self.up(self.ln_2(x)))))


class Gpt2(nn.Module):
    """GPT-2 small with its head on the vocabulary."""

    def __init__(self) -> None:
        super().__init__()
        self.wte, self.wpe, self.drop = nn.Embedding(50257, 768), nn.Embedding(1024, 768), nn.Dropout(0.1)
        self.h = nn.ModuleList(Decoder(768, 12) for _ in range(12))
        self.ln_f = nn.LayerNorm(768)

    def forward(self, ids: Tensor) -> Tensor:
        x = self.drop(self.wte(ids) + self.wpe(torch.arange(ids.shape[1], device=ids.device)))
        for block in self.h:
            x = block(x)
        return F.linear(self.ln_f(x), self.wte.weight)


class Bert(nn.Module):
    """BERT-base's embeddings and encoder with its pooler."""

    def __init__(self) -> None:
        super().__init__()
        self.words, self.places = nn.Embedding(30522, 768), nn.Embedding(512, 768)
        self.types, self.norm, self.drop = nn.Embedding(2, 768), nn.LayerNorm(768), nn.Dropout(0.1)
        layer = nn.TransformerEncoderLayer(768, 12, 3072, 0.1, "gelu", batch_first=True)
        self.encoder = nn.TransformerEncoder(layer, 12, enable_nested_tensor=False)
        self.pooler = nn.Linear(768, 768)

    def forward(self, ids: Tensor) -> Tensor:
        x = self.words(ids) + self.places(torch.arange(ids.shape[1], device=ids.device))
        x = self.encoder(self.drop(self.norm(x + self.types(torch.zeros_like(ids)))))
        return torch.tanh(self.pooler(x[:, 0]))


class Patch(nn.Module):
    """ViT's block."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.ln_1, self.ln_2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.attention = nn.MultiheadAttention(width, heads, batch_first=True)
        self.mlp = nn.Sequential(nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width))

    def forward(self, x: Tensor) -> Tensor:
        y = self.ln_1(x)
        x = x + self.attention(y, y, y, need_weights=False)[0]
        return x + self.mlp(self.ln_2(x))


class Vit(nn.Module):
    """ViT-B/16."""

    def __init__(self) -> None:
        super().__init__()
        self.patches = nn.Conv2d(3, 768, 16, 16)
        self.token, self.places = (
            nn.Parameter(torch.zeros(1, 1, 768)),
            nn.Parameter(torch.zeros(1, 197, 768)),
        )
        self.blocks = nn.Sequential(*(Patch(768, 12) for _ in range(12)))
        self.norm, self.head = nn.LayerNorm(768), nn.Linear(768, 1000)

    def forward(self, x: Tensor) -> Tensor:
        x = self.patches(x).flatten(2).transpose(1, 2)
        x = torch.cat([self.token.expand(len(x), -1, -1), x], 1) + self.places
        return self.head(self.norm(self.blocks(x))[:, 0])


class Lstm(nn.Module):
    """A language model of two LSTM layers."""

    def __init__(self) -> None:
        super().__init__()
        self.words, self.lstm = nn.Embedding(10000, 256), nn.LSTM(256, 512, 2, batch_first=True)
        self.head = nn.Linear(512, 1000)

    def forward(self, ids: Tensor) -> Tensor:
        return self.head(self.lstm(self.words(ids))[0][:, -1])


def pair(inputs: int, outputs: int) -> nn.Module:
    """U-Net's two convolutions."""
    layers: list[nn.Module] = []
    for width in (inputs, outputs):
        layers += [nn.Conv2d(width, outputs, 3, padding=1), nn.BatchNorm2d(outputs), nn.ReLU(inplace=True)]
    return nn.Sequential(*layers)


class Unet(nn.Module):
    """U-Net with four levels."""

    def __init__(self) -> None:
        super().__init__()
        widths = (64, 128, 256, 512)
        self.down = nn.ModuleList(pair(a, b) for a, b in zip((3, *widths), widths))
        self.middle = pair(512, 1024)
        self.up = nn.ModuleList(nn.ConvTranspose2d(2 * width, width, 2, 2) for width in reversed(widths))
        self.join = nn.ModuleList(pair(2 * width, width) for width in reversed(widths))
        self.head = nn.Conv2d(64, 2, 1)

    def forward(self, x: Tensor) -> Tensor:
        kept = []
        for down in self.down:
            x = down(x)
            kept.append(x)
            x = F.max_pool2d(x, 2)
        x = self.middle(x)
        for up, join, before in zip(self.up, self.join, reversed(kept)):
            x = join(torch.cat([before, up(x)], 1))
        return self.head(x)


class Inverted(nn.Module):
    """EfficientNet's block: wide, one filter per channel, a gate, narrow again."""

    def __init__(self, inputs: int, outputs: int, window: int, stride: int, grow: int) -> None:
        super().__init__()
        wide = inputs * grow
        layers: list[nn.Module] = []
        if grow > 1:
            layers += [nn.Conv2d(inputs, wide, 1, bias=False), nn.BatchNorm2d(wide), nn.SiLU(inplace=True)]
        layers += [nn.Conv2d(wide, wide, window, stride, window // 2, groups=wide, bias=False)]
        self.wide = nn.Sequential(*layers, nn.BatchNorm2d(wide), nn.SiLU(inplace=True))
        few = max(1, inputs // 4)
        self.gate = nn.Sequential(
            nn.AdaptiveAvgPool2d(1), nn.Conv2d(wide, few, 1), nn.SiLU(), nn.Conv2d(few, wide, 1), nn.Sigmoid()
        )
        self.narrow = nn.Sequential(nn.Conv2d(wide, outputs, 1, bias=False), nn.BatchNorm2d(outputs))
        self.same = stride == 1 and inputs == outputs

    def forward(self, x: Tensor) -> Tensor:
        y = self.wide(x)
        y = self.narrow(y * self.gate(y))
        return x + y if self.same else y


def efficientnet() -> nn.Module:
    """EfficientNet-B0, without the random dropping of whole blocks."""
    layers: list[nn.Module] = [
        nn.Conv2d(3, 32, 3, 2, 1, bias=False),
        nn.BatchNorm2d(32),
        nn.SiLU(inplace=True),
    ]
    inputs = 32
    for grow, outputs, blocks, stride, window in (
        (1, 16, 1, 1, 3),
        (6, 24, 2, 2, 3),
        (6, 40, 2, 2, 5),
        (6, 80, 3, 2, 3),
        (6, 112, 3, 1, 5),
        (6, 192, 4, 2, 5),
        (6, 320, 1, 1, 3),
    ):
        for number in range(blocks):
            layers.append(Inverted(inputs, outputs, window, stride if number == 0 else 1, grow))
            inputs = outputs
    layers += [nn.Conv2d(320, 1280, 1, bias=False), nn.BatchNorm2d(1280), nn.SiLU(inplace=True)]
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(1280, 1000))


class Known(NamedTuple):
    """A model and what it reads: images of a side, or so many words of a vocabulary."""

    make: Callable[[], nn.Module]
    side: int = 0
    words: int = 0
    vocabulary: int = 0

    def data(self, batch: int, device: str, dtype: torch.dtype) -> Tensor:
        """A batch of it."""
        if self.side:
            return torch.randn(batch, 3, self.side, self.side, device=device, dtype=dtype)
        return torch.randint(0, self.vocabulary, (batch, self.words), device=device)


MODELS = {
    "ResNet-50": Known(resnet50, side=224),
    "BERT-base": Known(Bert, words=128, vocabulary=30522),
    "GPT-2": Known(Gpt2, words=128, vocabulary=50257),
    "ViT-B/16": Known(Vit, side=224),
    "LSTM": Known(Lstm, words=100, vocabulary=10000),
    "U-Net": Known(Unet, side=128),
    "EfficientNet-B0": Known(efficientnet, side=224),
}
