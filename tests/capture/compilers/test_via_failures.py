"""Captures that do not go as asked: errors of the model and of the front-end, arrays, options that do not apply."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

import torch_vis as tv
from torch_vis.errors import CaptureFailed, UsageError

X = torch.ones(3, 4)


pytestmark = pytest.mark.usefixtures("fresh_compiler")


class Arrays(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        total = x.detach().numpy().sum()
        return x * float(total)


class Raises(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return x.relu().view(5, 5)


class Catches(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        try:
            return x.view(3, 3)
        except RuntimeError:
            return x + 1


class Fixed(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return x.view(3, 4)


class Parts(nn.Module):
    """Calls a module on ever more rows, between graph breaks."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.Linear(4, 4)

    def forward(self, x: Tensor) -> Tensor:
        total = x.sum()
        for rows in range(1, 4):
            torch._dynamo.graph_break()
            total = total + self.inner(x[:rows]).sum()
        return total


@pytest.mark.parametrize("via", ("dynamo", "aot"))
def test_a_model_that_goes_through_numpy_is_captured(via: str) -> None:
    t = tv.trace(Arrays(), X, via=via)
    assert torch.equal(t.output, X * 12)
    t.check()


@pytest.mark.parametrize("via", ("fx", "export"))
def test_a_model_that_raises_gives_what_ran_where_that_is_asked_for(via: str) -> None:
    t = tv.trace(Raises(), X, via=via, partial=True)
    assert isinstance(t.error, RuntimeError) and "[5, 5]" in str(t.error)
    assert [node.name for node in t.graph.nodes] == ["relu"]
    assert any("without export" in line for line in t.limits) is (via == "export")
    with pytest.raises(RuntimeError, match="invalid for input of size 12") as raised:
        tv.trace(Raises(), X, via=via)
    assert not isinstance(raised.value, CaptureFailed)


@pytest.mark.parametrize("via", ("fx", "export", "dynamo"))
def test_an_error_that_the_model_catches_itself_is_the_front_ends(via: str) -> None:
    with pytest.raises(CaptureFailed, match=f"{via} cannot capture this model"):
        tv.trace(Catches(), X, via=via)


@pytest.mark.parametrize("via", ("export", "dynamo"))
def test_a_size_that_cannot_stay_open_is_said_to_be_constant(
    via: str, capfd: pytest.CaptureFixture[str]
) -> None:
    x = X.clone()
    torch._dynamo.mark_dynamic(x, 0)
    with pytest.raises(CaptureFailed, match=r"specialized it to be a constant \(3\)"):
        tv.trace(Fixed(), x, via=via)
    assert "Error while creating guard" not in capfd.readouterr().err


def test_fx_refuses_open_sizes() -> None:
    with pytest.raises(UsageError, match="dynamic=True is for via='export'"):
        tv.trace(nn.ReLU(), X, via="fx", dynamic=True)


def test_recompilations_are_of_the_users_code() -> None:
    t = tv.trace(Parts(), X, via="dynamo", dynamic=False)
    again = t.breaks.recompilations
    assert again and all("size mismatch" in row.guard for row in again)
    line = Parts.forward.__code__.co_firstlineno + 4
    assert {(row.file, row.line) for row in again} == {(__file__, line)}
