"""Loops, branches and receptive fields as data."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

import torch_vis as tv
from torch_vis.errors import UsageError


class Program(nn.Module):
    """A loop over time, a loop over layers, and lines that look at numbers."""

    def __init__(self) -> None:
        super().__init__()
        self.cell = nn.GRUCell(3, 4)
        self.layers = nn.ModuleList(nn.Linear(4, 4) for _ in range(3))

    def forward(self, x: Tensor) -> Tensor:
        h = x.new_zeros(1, 4)
        for row in x:
            h = self.cell(row[None], h)
        if h.sum() > 100:
            h = h * 2
        else:
            h = h - 1
        for layer in self.layers:
            h = layer(h).relu()
        h = h + 1 if not h.sum() > 100 else h - 1
        if h.sum().item() > 0:
            return h.neg()
        return h


@pytest.fixture(scope="module")
def trace() -> tv.Trace:
    torch.manual_seed(0)
    return tv.trace(Program(), torch.randn(5, 3))


def test_loops_have_turns_and_hand_something_on(trace: tv.Trace) -> None:
    report = trace.loops()
    time, layers = report.rows
    assert time.name.startswith("for row in x") and time.turns == 5
    assert layers.name.startswith("for layer in self.layers") and layers.turns == 3
    # the state of the cell, and what a layer gives to the next
    assert {row.producer for row in time.handed} == {"cell/add_"} and {row.turns for row in time.handed} == {
        4
    }
    assert [(row.producer, row.reader) for row in layers.handed] == [("relu", "layers.*/addmm")]
    for number, call in enumerate(scope for scope in trace.graph.scopes if scope.path == "cell"):
        inside = [node for node in trace.graph.nodes if node.scope.index == call.index]
        assert inside and all(report.turns_of(node) == ((0, number),) for node in inside)
    for row in time.handed:
        assert all(report.turn[reader] == report.turn[maker] + 1 for maker, reader in row.nodes)
        assert all(
            maker in {p.index for p in trace.graph.nodes[reader].producers} for maker, reader in row.nodes
        )


def test_loops_inside_loops_and_columns() -> None:
    def program(x: Tensor) -> Tensor:
        for _ in range(3):
            for _ in range(6):
                x = x.sin()
            x = x.cos() * 2
        return x

    t = tv.trace(program, torch.ones(2))
    report = t.loops()
    assert [row.turns for row in report.rows if row.outer is None] in ([3], [6, 6, 6])
    again = t.with_metrics(report).metrics
    assert again["turn"].values.tolist() == report.turn.values.tolist()
    assert tv.trace(nn.Linear(2, 2), torch.ones(1, 2)).loops().rows == []


def test_branches_say_what_was_seen_and_which_way_it_went(trace: tv.Trace) -> None:
    rows = trace.branches().rows
    assert [row.text.partition(" >")[0] for row in rows] == [
        "if h.sum()",
        "h + 1 if not h.sum()",
        "if h.sum().item()",
    ]
    assert [(row.taken, row.why) for row in rows[:2]] == [("else", "ran"), ("then", "saw")]
    assert rows[0].saw is False and isinstance(rows[2].saw, float)
    assert rows[2].taken == "then" and all("test_control_flow.py" in row.line for row in rows)


def test_what_not_and_or_and_a_filter_make_of_a_tensor_is_known_where_it_decides() -> None:
    def program(x: torch.Tensor, strict: bool) -> torch.Tensor:
        x = x * 2 if not x.sum() > 0 else x * 3
        x = x + 1 if strict and x.max() > 100 else x + 2
        x = x - 1 if x.sum() > 0 or x.max() > 3 else x - 2
        x = x / 2 if x.min() > 0 and strict else x / 3
        return torch.stack([part for part in x.unbind() if part.sum() > 1])

    rows = tv.trace(program, torch.tensor([1.0, 2.0]), True).branches().rows
    assert [row.taken for row in rows] == ["else", "else", "then", None, "then", "then"]
    assert rows[-1].text == "if part.sum() > 1"


def test_a_receptive_field_is_what_arithmetic_says() -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Conv1d(2, 3, 5, stride=2), nn.Tanh(), nn.Conv1d(3, 2, 3, dilation=2))
    t = tv.trace(model, torch.randn(2, 2, 40))
    field = t.receptive_field("2[1, 0, 4]")
    # output 4 reads 4, 6 and 8 of the first layer, and these 8 to 20 of the input
    assert field.box == ((1, 2), (0, 2), (8, 21)) and field.proved
    assert t.receptive_field("0[0, :, 3]").box == ((0, 1), (0, 2), (6, 11))
    with pytest.raises(UsageError, match="no input 'y'"):
        t.receptive_field("0", input="y")


def test_a_causal_model_reads_what_came_before() -> None:
    torch.manual_seed(0)

    class Causal(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.embed, self.mix = nn.Embedding(9, 8), nn.Linear(8, 8)

        def forward(self, ids: Tensor, unread: Tensor) -> Tensor:
            h = self.mix(self.embed(ids))
            return nn.functional.scaled_dot_product_attention(h, h, h, is_causal=True) + 0 * unread.shape[0]

    t = tv.trace(Causal(), torch.arange(7)[None], torch.ones(3))
    assert t.receptive_field("output[0, 3]").box == ((0, 1), (0, 4))
    assert t.receptive_field("mix[0, 3]", input="ids").box == ((0, 1), (3, 4))
