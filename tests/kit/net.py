"""The small model that the explorer is tested on; a snapshot shows its source, so lines here are not moved lightly."""

from __future__ import annotations

import torch


class Net(torch.nn.Module):
    """Two alike blocks, a tied head, a convolution for the pictures."""

    def __init__(self) -> None:
        super().__init__()
        self.conv = torch.nn.Conv2d(1, 3, 3, padding=1)
        self.blocks = torch.nn.ModuleList(
            torch.nn.Sequential(torch.nn.Linear(8, 8), torch.nn.ReLU()) for _ in range(3)
        )
        self.norm = torch.nn.BatchNorm2d(3)
        self.head = torch.nn.Linear(8, 4)
        self.tail = torch.nn.Linear(8, 4)
        self.tail.weight = self.head.weight

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.norm(self.conv(x))
        for block in self.blocks:
            x = block(x)
        return self.head(x) + self.tail(x)
