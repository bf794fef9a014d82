"""The model of the tests on a GPU, and its input."""

from __future__ import annotations

import torch
from torch import nn


class Net(nn.Module):
    """Convolution, batch norm, dropout, attention and an in-place write."""

    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(3, 8, 3, padding=1)
        self.norm = nn.BatchNorm2d(8)
        self.attention = nn.MultiheadAttention(8, 2, batch_first=True, dropout=0.1)
        self.head = nn.Linear(8, 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = torch.relu_(self.norm(self.conv(x))).flatten(2).transpose(1, 2)
        y = nn.functional.dropout(self.attention(y, y, y)[0], 0.2, training=self.training)
        y[:, 0] = 0.0
        return self.head(y)


def net() -> Net:
    torch.manual_seed(0)
    return Net().cuda()


def image() -> torch.Tensor:
    return torch.randn(2, 3, 8, 8, device="cuda", generator=torch.Generator("cuda").manual_seed(1))
