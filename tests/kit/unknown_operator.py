"""An operator that no cost formula is known for, and a model with it between layers that have one."""

from __future__ import annotations

import torch


@torch.library.custom_op("torch_vis_tests::opaque", mutates_args=())
def opaque(x: torch.Tensor) -> torch.Tensor:
    return x.sin() * 2


class WithUnknown(torch.nn.Module):
    """A layer, then the operator beside a ``relu``, both in the model's own forward, then a layer."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.last = torch.nn.Linear(64, 64), torch.nn.Linear(64, 64)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.last(opaque(self.first(x).relu()))

    def known(self, x: torch.Tensor) -> torch.Tensor:
        """The same without the operator."""
        return self.last(self.first(x).relu())
