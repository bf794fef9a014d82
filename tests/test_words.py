"""Words of reports and tables: one thing is not several, labels are short, and what is told apart has its own name."""

from __future__ import annotations

import torch
from torch import nn

import torch_vis as tv


def test_one_thing_is_told_in_the_singular() -> None:
    one = tv.trace(nn.ReLU(), torch.ones(2))
    assert repr(one) == "<Trace of ReLU: 1 operation>"
    assert repr(one.graph) == "<Graph: 1 operation, 2 values, 2 scopes>"
    assert str(one.check()).startswith("1 result equal bit for bit: 1 operation in order, 1 pruned")
    other = tv.trace(nn.ReLU(), -torch.ones(2))
    facts = tv.compare(one, other).differences().facts()
    assert facts["compared"] == "1 of 1 operation, 1 result" and facts["differ"] == "1 operation"


def test_the_label_of_results_that_are_not_comparable_is_short_and_a_note_says_why() -> None:
    model = nn.Linear(3, 2)
    report = tv.compare(tv.trace(model, torch.ones(2, 3)), tv.trace(model, torch.ones(4, 3))).differences()
    assert report.facts()["results not comparable"] == "output"
    assert max(map(len, report.facts())) < 25
    assert "results not comparable: of another shape, or without plain numbers" in report.notes()
    same = tv.compare(tv.trace(model, torch.ones(2, 3)), tv.trace(model, torch.ones(2, 3))).differences()
    assert not any("not comparable" in text for text in [*same.facts(), *same.notes()])
