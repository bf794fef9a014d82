"""Where relevance starts: a chosen place in one of the model's outputs."""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from torch import fx

from torch_vis.analysis.relevance.fx_steps import Steps
from torch_vis.analysis.relevance.part import Part, wide
from torch_vis.errors import UsageError


class Start(NamedTuple):
    """What is to be explained."""

    returned: list[Any]  # the nodes that the model returns
    output: int
    target: Any
    against: Any
    relevance: torch.Tensor | None
    multiplier: float

    def part(self, steps: Steps, values: list[Any], *, contrastive: bool) -> tuple[tuple[int, int], Part]:
        """The place, the position among its outputs, and the relevance to start with."""
        node = self._node()
        value = values[steps.places[node]]
        if not isinstance(value, torch.Tensor):
            raise UsageError(
                f"output {self.output} is no tensor ({type(value).__name__}); choose another with output="
            )
        if self.against is not None and not contrastive:
            raise UsageError("against= is for mode='contrastive'")
        put = self._given(value) if self.relevance is not None else self._at(value, self.target)
        net = None
        if contrastive:
            net = put
            if self.against is not None:
                other = self._at(value, self.against)
                put, net = put + other, put - other
        elif bool((put < 0).any()):
            raise UsageError(
                "relevance below zero needs mode='contrastive', where evidence against is followed apart"
            )
        else:
            put = put.clone()
        return (steps.places[node], 0), Part(put.abs() if net is not None else put, net)

    def _node(self) -> fx.Node:
        if not -len(self.returned) <= self.output < len(self.returned):
            raise UsageError(
                f"the model returns {len(self.returned)} tensors; there is no output {self.output}"
            )
        node = self.returned[self.output]
        if not isinstance(node, fx.Node):
            raise UsageError(f"output {self.output} is the constant {node!r}; choose another with output=")
        return node

    def _given(self, value: torch.Tensor) -> torch.Tensor:
        given = self.relevance
        if not isinstance(given, torch.Tensor) or given.shape != value.shape:
            shown = tuple(given.shape) if isinstance(given, torch.Tensor) else type(given).__name__
            raise UsageError(
                f"relevance must be a tensor of the output's shape {tuple(value.shape)}, not {shown}"
            )
        return given.detach().to(value.device, wide(value)) * self.multiplier

    def _at(self, value: torch.Tensor, target: Any) -> torch.Tensor:
        """The multiplier at one index of the last dimension of every row, zero elsewhere."""
        put = torch.zeros(value.shape, dtype=wide(value), device=value.device)
        if not value.dim():
            return put + self.multiplier
        if target is None:
            chosen = value.argmax(-1, keepdim=True)
        else:
            chosen = torch.as_tensor(target, device=value.device)
            if chosen.is_floating_point():
                raise UsageError(f"target is an index of the last dimension, not {target!r}")
            last = value.shape[-1]
            if bool(((chosen >= last) | (chosen < -last)).any()):
                raise UsageError(f"target {target!r} is outside the output's last dimension of {last}")
            try:
                chosen = (chosen % last).expand(value.shape[:-1]).unsqueeze(-1)
            except RuntimeError as error:
                raise UsageError(
                    f"target has shape {tuple(chosen.shape)}, and the output has rows {tuple(value.shape[:-1])}: "
                    "give one index, or one for each"
                ) from error
        return put.scatter_(-1, chosen, self.multiplier)
