"""Training steps are compared: what a step does more leaves the rest of it as it is."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

import torch_vis as tv


class Twice(nn.Module):
    """A layer that is called twice, so that its gradients are sums."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(4, 4)

    def forward(self, x: Tensor) -> Tensor:
        return self.layer(self.layer(x))


@pytest.mark.parametrize(
    "model",
    [nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 4)), Twice(), nn.TransformerEncoderLayer(4, 2, 8, 0.0)],
    ids=["layers", "shared", "transformer"],
)
def test_clipping_gradients_only_adds_to_a_step(model: nn.Module) -> None:
    optimizer, x = torch.optim.SGD(model.parameters(), 0.1), torch.randn(2, 4)

    def step(clip: bool) -> None:
        optimizer.zero_grad()
        model(x).sum().backward()
        if clip:
            nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()

    found = tv.compare(tv.trace(step, False), tv.trace(step, True))
    assert not found.removed and not found.changed
    assert {node.phase for node in found.added} == {"optimizer"}
