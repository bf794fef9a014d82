"""The models that the figures are measured on: random weights, fixed inputs."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from tests.zoo import declare_torchvision_ops


class Loop(torch.nn.Module):
    """A chain of additions of four numbers: all overhead, no work."""

    def __init__(self, operations: int) -> None:
        super().__init__()
        self.operations = operations

    def forward(self, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        for _ in range(self.operations):
            x = x + y
        return x


class Tower(torch.nn.Module):
    """Wide linear layers one upon another, each with its ReLU."""

    def __init__(self, layers: int, width: int) -> None:
        super().__init__()
        self.layers = torch.nn.ModuleList(torch.nn.Linear(width, width) for _ in range(layers))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for layer in self.layers:
            x = torch.relu(layer(x))
        return x


class Cell(torch.nn.Module):
    """One step of an LSTM, written out."""

    def __init__(self, size: int = 8) -> None:
        super().__init__()
        self.gates = torch.nn.Linear(2 * size, 4 * size)
        self.head = torch.nn.Linear(size, 1)

    def forward(self, x: torch.Tensor, h: torch.Tensor, c: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        i, f, g, o = self.gates(torch.cat([x, h], 1)).chunk(4, 1)
        c = f.sigmoid() * c + i.sigmoid() * g.tanh()
        return o.sigmoid() * c.tanh(), c


def loop(operations: int) -> tuple[Loop, tuple[torch.Tensor, ...]]:
    """The chain of additions and its inputs."""
    return Loop(operations), (torch.ones(4), torch.full((4,), 0.5))


def training_loop(times: int = 6) -> Callable[[int], torch.Tensor]:
    """A function of the number of steps that trains a small LSTM: views, writes into a buffer, backward, optimizer."""
    torch.manual_seed(0)
    cell = Cell()
    optimizer = torch.optim.AdamW(cell.parameters(), foreach=False)
    data = torch.randn(64, 4, 8)

    def train(steps: int) -> torch.Tensor:
        seen = torch.zeros_like(data)
        for step in range(steps):
            optimizer.zero_grad()
            h = c = torch.zeros(4, 8)
            for time in range(times):
                place = (step + time) % len(data)
                h, c = cell(data[place], h, c)
                seen[place].copy_(h.detach())
            cell.head(h).square().mean().backward()
            optimizer.step()
        return seen

    return train


def bert(batch: int, tokens: int, **config: Any) -> tuple[torch.nn.Module, torch.Tensor]:
    """BERT, BERT-base unless told otherwise, and token numbers for it; in training mode."""
    declare_torchvision_ops()
    from transformers import BertConfig, BertModel

    torch.manual_seed(0)
    model = BertModel(BertConfig(**config)).train()
    return model, torch.randint(0, model.config.vocab_size, (batch, tokens))


def small_bert() -> tuple[torch.nn.Module, torch.Tensor]:
    """Twelve layers of BERT so narrow that every operation is small."""
    sizes = {"hidden_size": 48, "num_hidden_layers": 12, "num_attention_heads": 4, "intermediate_size": 96}
    return bert(1, 8, vocab_size=100, **sizes)


def resnet50(batch: int, pixels: int = 224) -> tuple[torch.nn.Module, torch.Tensor]:
    """ResNet-50 and images for it; in training mode."""
    declare_torchvision_ops()
    from torchvision.models import resnet50

    torch.manual_seed(0)
    return resnet50(weights=None).train(), torch.randn(batch, 3, pixels, pixels)
