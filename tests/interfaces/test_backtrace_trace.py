"""An evaluated run as a trace: the relevance of every node, beside the operations that it ran."""

from __future__ import annotations

import pytest
import torch
from torch import nn

import torch_vis as tv
from torch_vis.errors import UsageError


class Gated(nn.Module):
    """A branch that runs a body of its own, between two layers."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.last = nn.Linear(3, 4), nn.Linear(4, 2)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.first(x)
        x = torch.cond(x.sum() > 0, lambda y: y.relu() + 1, lambda y: y.tanh(), (x,))
        return self.last(x)


@pytest.mark.parametrize("model", [nn.Sequential(nn.Linear(3, 4), nn.ReLU(), nn.Linear(4, 2)), Gated()])
def test_every_node_has_its_relevance_at_the_operation_that_makes_its_result(model: nn.Module) -> None:
    dlb = tv.DLBacktrace(model.eval(), (torch.ones(1, 3),))
    found = dlb.evaluation(dlb.predict(torch.rand(1, 3)), target=1)
    t = dlb.trace
    column = t.metrics["relevance"]
    products = [node for node in t.graph.nodes if node.name == "addmm"]
    named = [name for name in dlb.topological_order if name.startswith("linear")]
    assert [column[node.index] for node in products] == [pytest.approx(found[name]) for name in named]
    assert all(column[node.index] is None for node in t.graph.nodes if node.name == "t")
    torch.testing.assert_close(t.output, model(t_inputs(dlb)))


def t_inputs(dlb: tv.DLBacktrace) -> torch.Tensor:
    assert dlb._evaluated is not None
    return dlb._evaluated[0][-1]


def test_without_an_evaluation_there_is_nothing_to_show() -> None:
    dlb = tv.DLBacktrace(nn.Linear(3, 2).eval(), (torch.ones(1, 3),))
    with pytest.raises(UsageError, match="no relevance to show yet"):
        _ = dlb.trace
