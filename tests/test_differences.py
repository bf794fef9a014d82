"""Where two runs part numerically."""

from __future__ import annotations

import copy

import pytest
import torch
from torch import nn

import torch_vis as tv
from torch_vis.errors import TensorsMissing


class Block(nn.Module):
    def __init__(self, scale: float = 1.0):
        super().__init__()
        self.norm, self.inner, self.scale = nn.LayerNorm(8), nn.Linear(8, 8), scale

    def forward(self, x):
        return x + torch.tanh(self.inner(self.norm(x))) * self.scale


def model(scale: float = 1.0) -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(Block(), Block(scale), Block(), nn.Dropout(0.5), nn.Linear(8, 2))


def seeded(net: nn.Module, x: torch.Tensor, **options) -> tv.Trace:
    torch.manual_seed(1)
    return tv.trace(net, x, backward=True, **options)


def test_the_same_twice_differs_nowhere():
    x = torch.randn(4, 8)
    found = tv.compare(seeded(model(), x), seeded(model(), x)).differences()
    assert found.rows == [] and found.first is None and found.born == []
    assert {kind for kind, _ in found.results.values()} == {"output", "gradient"}
    assert all(gap.relative == 0 for _, gap in found.results.values())
    assert found.gaps.known.sum() > 40


def test_the_first_difference_is_where_it_was_made():
    x = torch.randn(4, 8)
    found = tv.compare(seeded(model(), x), seeded(model(1.001), x)).differences()
    assert (found.first.a.name, found.first.a.path) == ("mul", "1")
    assert found.first.came_in == 0 and 5e-4 < found.first.relative < 2e-3
    assert found.born[0] == found.first
    before = [
        node.index for node in found.a.graph.nodes if node.path.startswith("0") and node.phase == "forward"
    ]
    assert not {row.a.index for row in found.rows} & set(before)
    assert "mul in 1" in str(found) and "test_differences.py" in str(found)


def test_half_precision_against_full():
    x = torch.randn(4, 8)
    net = model().eval()
    half = copy.deepcopy(net).bfloat16()
    found = tv.compare(seeded(net, x), seeded(half, x.bfloat16())).differences(tolerance=1e-4)
    kind, gap = found.results["output"]
    assert kind == "output" and 1e-4 < gap.relative < 0.1
    exact = float((net(x) - half(x.bfloat16()).float()).norm() / net(x).norm())
    assert gap.relative == pytest.approx(exact, rel=1e-3)
    assert all(row.relative > 1e-4 for row in found.rows)


@pytest.mark.parametrize("via", ["fx", "export", "dynamo", "aot"])
def test_eager_against_a_capture(via):
    net, x = model().eval(), torch.randn(4, 8)
    found = tv.compare(
        seeded(net, x), seeded(net, x, via=via) if via != "export" else tv.trace(net, x, via=via)
    )
    assert found.differences().results["output"][1].relative < 1e-6


def test_runs_in_another_order():
    class Two(nn.Module):
        def __init__(self, swap):
            super().__init__()
            self.a, self.b, self.swap = nn.Linear(8, 8), nn.Linear(8, 8), swap

        def forward(self, x):
            if self.swap:
                b = self.b(x)
                return self.a(x) + b
            a = self.a(x)
            return a + self.b(x)

    x = torch.randn(2, 8)
    one, two = Two(False), Two(True)
    two.load_state_dict(one.state_dict())
    found = tv.compare(tv.trace(one, x), tv.trace(two, x)).differences()
    assert found.rows == [] and found.results["output"][1].relative == 0


def test_nan_on_one_side_is_infinitely_far():
    x = torch.ones(2, 8)
    with torch.no_grad():
        one, two = nn.Linear(8, 2), nn.Linear(8, 2)
        two.load_state_dict(one.state_dict())
        two.weight[0, 0] = float("nan")
    found = tv.compare(tv.trace(one, x), tv.trace(two, x)).differences()
    assert found.first.relative == float("inf")


def test_the_model_is_left_alone():
    net, x = model(), torch.randn(4, 8)
    one, two = seeded(net, x), seeded(net, x)
    before = {name: value.clone() for name, value in net.state_dict().items()}
    state = torch.get_rng_state()
    tv.compare(one, two).differences()
    assert torch.equal(state, torch.get_rng_state())
    assert all(torch.equal(before[name], value) for name, value in net.state_dict().items())


def test_without_tensors_it_says_so(tmp_path):
    t = seeded(model(), torch.randn(4, 8))
    t.save(tmp_path / "t.tvz")
    with pytest.raises(TensorsMissing, match="holds no tensors"):
        tv.compare(t, tv.load(tmp_path / "t.tvz")).differences()


def test_it_draws_and_lists(tmp_path):
    x = torch.randn(4, 8)
    found = tv.compare(seeded(model(), x), seeded(model(1.5), x)).differences()
    assert len(found.figure().data[0].x) == len([row for row in found.rows if row.relative < float("inf")])
    assert found.to_plain()["Results"][0]["relative"] >= found.to_plain()["Results"][-1]["relative"]
