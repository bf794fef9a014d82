"""Models of very many layers are compared in time that grows with their number, not with its square."""

from __future__ import annotations

import pytest
import torch
from torch import nn

import torch_vis as tv
from torch_vis.analysis.compare.match_modules import ModuleMatcher

LAYERS = 300


class Counting(dict[int, int]):
    """A table that counts how often it was asked."""

    asked = 0

    def __contains__(self, key: object) -> bool:
        self.asked += 1
        return super().__contains__(key)


def test_layers_that_were_each_wrapped_are_found_in_linear_time(monkeypatch: pytest.MonkeyPatch) -> None:
    parents_of_matched = ModuleMatcher.parents_of_matched
    asked = []

    def counted(self: ModuleMatcher) -> None:
        self.to_a = Counting(self.to_a)
        parents_of_matched(self)
        asked.append(self.to_a.asked)

    monkeypatch.setattr(ModuleMatcher, "parents_of_matched", counted)
    layers, x = [nn.Linear(2, 2) for _ in range(LAYERS)], torch.ones(1, 2)
    wrapped = tv.trace(nn.Sequential(*(nn.Sequential(layer) for layer in layers)), x)
    found = tv.compare(wrapped, tv.trace(nn.Sequential(*layers), x))
    assert found.same and len(found.removed_modules) == LAYERS
    assert 0 < asked[0] < 10 * LAYERS
