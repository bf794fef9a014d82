"""What is computed in another way, while other differences come in: found by trying both ways on the same numbers."""

from __future__ import annotations

import copy
import math
from collections.abc import Callable

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

import torch_vis as tv
from tests.zoo import ZOO, close_process_group
from torch_vis.analysis.compare.numeric.report import DifferencesReport
from torch_vis.analysis.compare.wiring import Wiring, module_paths

WIDTH = 32
X = torch.randn(4, 6, WIDTH, generator=torch.Generator().manual_seed(0))


class Norm(nn.Module):
    """A layer norm, written out."""

    def __init__(self, norm: nn.LayerNorm) -> None:
        super().__init__()
        self.norm = norm

    def forward(self, x: Tensor) -> Tensor:
        mean, var = x.mean(-1, keepdim=True), x.var(-1, keepdim=True, unbiased=False)
        return (x - mean) * torch.rsqrt(var + 1e-5) * self.norm.weight + self.norm.bias


class Gelu(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return 0.5 * x * (1 + torch.erf(x / math.sqrt(2)))


class Attention(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.qkv, self.fused = nn.Linear(WIDTH, 3 * WIDTH), True

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = (part.unflatten(-1, (4, 8)).transpose(1, 2) for part in self.qkv(x).chunk(3, -1))
        if self.fused:
            y = F.scaled_dot_product_attention(q, k, v)
        else:
            y = (q @ k.transpose(-2, -1) / math.sqrt(8)).softmax(-1) @ v
        return y.transpose(1, 2).flatten(2)


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.attention, self.norm, self.act = Attention(), nn.LayerNorm(WIDTH), nn.GELU()
        self.up, self.down = nn.Linear(WIDTH, 64), nn.Linear(64, WIDTH)

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.attention(x)
        return x + self.down(self.act(self.up(self.norm(x))))


def changed(
    change: Callable[[Block], object], noise: float, blocks: tuple[int, ...] = (0, 1, 2), **options
) -> DifferencesReport:
    """Three blocks against the same with some of them changed, and noise on the first weight of all."""
    torch.manual_seed(0)
    one = nn.Sequential(Block(), Block(), Block())
    two = copy.deepcopy(one)
    with torch.no_grad():
        weight = two[0].attention.qkv.weight
        weight += noise * torch.randn_like(weight)
    for block in blocks:
        change(two[block])
    options = options or {"loss": lambda y: y.square().sum()}
    return tv.compare(tv.trace(one, X, **options), tv.trace(two, X, **options)).differences()


def activation(make: Callable[[], nn.Module]) -> Callable[[Block], None]:
    return lambda block: setattr(block, "act", make())


NOISE = [0.0, 1e-3, 0.1]


@pytest.mark.parametrize("noise", NOISE)
def test_another_activation_is_named_in_every_block(noise: float) -> None:
    found = changed(activation(nn.ReLU), noise)
    rewired = [row.a.path for row in found.rewired if row.a.phase == "forward"]
    assert rewired == ["0.down", "1.down", "2.down"] and found.origins == []
    told = "addmm in 0.down, which reads another tensor: relu in 0.act (only in B) instead of gelu in 0.act (only in A)"
    assert told in found.facts()["in short"]


def test_a_late_change_is_not_hidden_by_weights_that_differ_from_the_start() -> None:
    found = changed(activation(nn.ReLU), 0.1, blocks=(2,), backward=False)
    [row] = found.rewired
    assert row.a.path == "2.down" and row is not found.first
    told = found.facts()["in short"]
    assert told.startswith("2.act GELU → ReLU; the runs part at addmm in 2.down")
    assert "the runs also start from different inputs or weights, most of all 0.attention.qkv.weight" in told


@pytest.mark.parametrize("noise", NOISE)
def test_an_operation_that_is_called_otherwise_is_news_whatever_comes_in(noise: float) -> None:
    found = changed(activation(lambda: nn.GELU("tanh")), noise, blocks=(1, 2))
    born = [row.a.path for row in found.origins if row.a.phase == "forward"]
    assert born == ["1.act", "2.act"] and found.rewired == []
    assert "called differently, approximate: 'none' → 'tanh'" in found.facts()["in short"]


def split(block: Block) -> None:
    block.attention.fused = False


@pytest.mark.parametrize("noise", NOISE)
@pytest.mark.parametrize(
    "change",
    [lambda block: setattr(block, "norm", Norm(block.norm)), activation(Gelu), split],
    ids=["norm", "gelu", "attention"],
)
def test_what_is_only_written_otherwise_is_not_named(change: Callable[[Block], object], noise: float) -> None:
    for found in (both := changed(change, noise)), tv.compare(both.b, both.a).differences():
        assert found.rows and found.rewired == [] and found.origins == []
        start = "the runs start from different inputs or weights" if noise else "no more than rounding"
        assert found.facts()["in short"].startswith(start)


def test_a_sum_with_what_differs_anyway_still_reads_another_tensor() -> None:
    """Of two summands one comes from before, and differs; the other is made in another way."""

    class Sum(nn.Module):
        def __init__(self, act: nn.Module) -> None:
            super().__init__()
            self.act, self.first = act, nn.Linear(WIDTH, WIDTH)

        def forward(self, x: Tensor) -> Tensor:
            y = self.first(x)
            return y + self.act(y)

    torch.manual_seed(0)
    one = Sum(nn.GELU())
    two = Sum(nn.ReLU())
    two.load_state_dict(
        {name: value + 0.3 * torch.randn_like(value) for name, value in one.state_dict().items()}
    )
    found = tv.compare(tv.trace(one, X), tv.trace(two, X)).differences()
    assert [row.a.name for row in found.rewired] == ["add"]
    assert found.rewired[0].input_error > 0.1


def test_a_number_that_followed_from_what_came_in_is_not_a_change_of_the_code() -> None:
    weight = torch.randn(WIDTH, generator=torch.Generator().manual_seed(1))

    def scaled(x: Tensor, weight: Tensor) -> Tensor:
        y = x * weight
        return y * float(y.std())

    found = tv.compare(tv.trace(scaled, X, weight), tv.trace(scaled, X, 1.1 * weight)).differences()
    assert len(found.rows) == 3 and found.origins == [] and found.rewired == []


def test_what_another_width_stands_in_for_is_another_tensor() -> None:
    torch.manual_seed(0)
    one = nn.Sequential(nn.Linear(WIDTH, 16), nn.ReLU(), nn.Linear(16, 4))
    two = nn.Sequential(nn.Linear(WIDTH, 48), nn.GELU(), nn.Linear(48, 4))
    found = tv.compare(tv.trace(one, X), tv.trace(two, X)).differences()
    assert [row.a.path for row in found.rewired] == ["2"]
    assert "operations hand that on" not in found.facts()["in short"]


def test_neither_model_is_touched() -> None:
    torch.manual_seed(0)
    one, two = nn.Sequential(Block()), nn.Sequential(Block())
    two[0].act = nn.ReLU()
    before = [{name: value.clone() for name, value in net.state_dict().items()} for net in (one, two)]
    tv.compare(tv.trace(one, X, backward=True), tv.trace(two, X, backward=True)).differences()
    for net, kept in zip((one, two), before):
        assert all(torch.equal(value, kept[name]) for name, value in net.state_dict().items())


# Collectives cannot be repeated here, the first run of a mesh sets it up, and the others have no numbers.
LEFT_OUT = {"collectives", "dtensor_world_of_one", "fake_tensor_input", "meta_tensor_input"}
SMALL = [name for name, case in ZOO.items() if "real" not in case.tags and name not in LEFT_OUT]


@pytest.mark.parametrize("name", SMALL)
def test_operations_that_were_only_not_recognised_are_no_change(name: str) -> None:
    """A third of all counterparts forgotten: what then seems to be done otherwise is the same on the same numbers."""
    runs = []
    for factor in (1.0, 1.02):
        model, args, kwargs = ZOO[name].make()
        with torch.no_grad():
            for parameter in list(model.parameters())[:1] if isinstance(model, nn.Module) else []:
                if parameter.is_floating_point():
                    parameter.mul_(factor)
        torch.manual_seed(0)
        try:
            runs.append(tv.trace(model, *args, kwargs=kwargs, backward=ZOO[name].backward))
        finally:
            close_process_group()
    alignment = tv.compare(*runs).alignment
    to_b = alignment.to_b.copy()
    to_b[np.random.default_rng(0).random(len(to_b)) < 0.3] = -1
    a, b = (run.graph for run in runs)
    wiring = Wiring(a, b, to_b, module_paths(a, b, alignment.scope_to_b))
    report = DifferencesReport(*runs, alignment._replace(to_b=to_b, wiring=wiring), 0.0)
    for local in report.local_differences.values():
        assert not local.outputs and True not in local.inputs
