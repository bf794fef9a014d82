"""Words of reports and tables: one thing is not several, labels are short, and what is told apart has its own name."""

from __future__ import annotations

import torch
from torch import nn

import torch_vis as tv


def test_one_thing_is_told_in_the_singular() -> None:
    one = tv.trace(nn.ReLU(), torch.ones(2))
    assert repr(one) == "<Trace of ReLU: 1 operation>"
    assert repr(one.graph) == "<Graph: 1 operation, 2 values, 2 scopes>"
    assert str(one.check()).startswith(
        "1 result equal bit for bit: 1 operation in order, pruned to 1, 2 random"
    )
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


def test_a_repeated_run_says_which_times_are_of_which_runs() -> None:
    t = tv.trace(nn.Linear(3, 2), torch.ones(1, 3), repeat=3)
    told = "times of modules and operations are medians of 3 more runs; the wall time is the recorded one's"
    assert told in t.table(width=200)
    time = t.time()
    assert time.facts()["whole run"].endswith("the median of 3 runs in which calls of modules were timed")
    assert "the median of others that nothing watched, half of them within" in time.facts()["plain run"]
    assert any("are of different runs" in note for note in time.notes())
    once = tv.trace(nn.Linear(3, 2), torch.ones(1, 3))
    assert "more runs" not in once.table(width=200) and "plain run" not in once.time().facts()


def test_what_is_alive_at_an_operation_prints_as_a_table_and_stays_a_list() -> None:
    t = tv.trace(nn.Sequential(nn.Linear(3, 2), nn.ReLU()), torch.ones(1, 3))
    alive = t.memory().at(1)
    assert isinstance(alive, list) and [row.name for row in alive][:2] == ["0.weight", "input"]
    assert {"size", "tensor", "use", "module"} <= set(str(alive).partition("─")[0].split())
    lines = str(alive).splitlines()[-len(alive) :]
    assert lines[0].split()[:3] == ["24", "B", "0.weight"] and all("B" in line for line in lines)
    assert str(alive.__class__([], t.graph)) == "nothing is alive"
