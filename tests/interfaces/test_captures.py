"""One model through every capture, side by side."""

from __future__ import annotations

import importlib.util
from typing import Any

import pytest
import torch
from torch import nn

import torch_vis as tv
from torch_vis.errors import NoMatch, NotTraceable, UsageError
from torch_vis.interfaces import captures

needs_jax = pytest.mark.skipif(
    importlib.util.find_spec("torchax") is None or importlib.util.find_spec("jax") is None,
    reason="the stablehlo extra is not installed",
)


class Branching(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(4, 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.layer(x)
        return x + 1 if x.sum() > 0 else x - 1


class Pair(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(4, 3)

    def forward(self, x: torch.Tensor, *, scale: torch.Tensor) -> dict[str, torch.Tensor]:
        y = self.layer(x)
        return {"plain": y, "scaled": torch.relu(y) * scale}


@pytest.fixture(scope="module")
def found() -> Any:
    torch.manual_seed(0)
    args, kwargs = (torch.randn(3, 4),), {"scale": torch.randn(3, 3)}
    return tv.compare_captures(Pair().eval(), *args, kwargs=kwargs, captures=captures.CAPTURES[:-1])


@pytest.mark.parametrize("wrong", ["not a number", "one output less"])
def test_a_capture_that_gives_something_else_is_infinitely_far_off(wrong: str) -> None:
    class Otherwise(nn.Module):
        def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, ...]:
            if not torch.compiler.is_compiling():
                return x, x + 1
            return (x, (x + 1) * float("nan")) if wrong == "not a number" else (x,)

    rows = tv.compare_captures(Otherwise(), torch.ones(3), captures=["eager", "dynamo"])
    assert [row.difference for row in rows] == [0.0, float("inf")]


def test_every_capture_of_a_plain_model(found: Any) -> None:
    assert [row.capture for row in found] == ["eager", "fx", "export", "dynamo", "aot", "onnx"]
    assert all(row.succeeded for row in found), str(found)
    assert [row.difference for row in found][:4] == [0.0] * 4
    assert found["aot"].difference < 1e-5 and found["onnx"].difference < 1e-5
    assert found["export"].operations == {"linear": 1, "relu": 1, "mul": 1}
    assert found["eager"].operations == {"t": 1, "addmm": 1, "relu": 1, "mul": 1}
    assert found["onnx"].nodes == sum(found["onnx"].operations.values()) > 0
    assert found["dynamo"].breaks == 0 and found["eager"].breaks is None
    assert len(found["export"].dynamic) == 1 and found["export"].dynamic[0].startswith("2 ≤")
    assert all(row.seconds > 0 for row in found)


def test_as_data_and_as_text(found: Any) -> None:
    table = found.to_pandas()
    assert table.loc["export", "nodes"] == 3
    lines = str(found).splitlines()
    assert len(lines) == 8 and lines[2].startswith("eager")
    assert repr(found) == "<Captures: 6 of 6 succeeded>"
    with pytest.raises(NoMatch, match="onnx"):
        found["onxn"]


def test_branches_on_values() -> None:
    x = torch.randn(2, 4)
    rows = tv.compare_captures(Branching().eval(), x, captures=["fx", "export", "dynamo", "onnx"])
    assert not vars(x)  # a failed export leaves marks, from which Dynamo would leave sizes open
    assert rows["dynamo"].dynamic == () and max(map(len, str(rows).splitlines())) <= 120
    assert [row.succeeded for row in rows] == [False, False, True, False]
    assert "test_captures.py" in rows["fx"].reason and "test_captures.py" in rows["export"].reason
    assert all("\n" not in row.reason for row in rows if row.reason)
    assert rows["dynamo"].breaks == 1 and rows["dynamo"].difference == 0.0
    assert rows["export"].nodes is None and rows["export"].difference is None


@needs_jax
def test_stablehlo_is_run_and_compared() -> None:
    torch.manual_seed(0)
    model = nn.Sequential(
        nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.ReLU(), nn.Flatten(), nn.Linear(144, 5)
    ).eval()
    row = tv.compare_captures(model, torch.randn(2, 3, 8, 8), captures=["stablehlo"])[0]
    assert row.succeeded, row.reason
    assert row.difference < 1e-4 and row.operations["convolution"] == 1


def test_a_missing_extra_is_a_row(monkeypatch: pytest.MonkeyPatch) -> None:
    real = importlib.util.find_spec
    gone = {"onnxscript", "torchax"}
    monkeypatch.setattr(
        importlib.util, "find_spec", lambda name, *rest: None if name in gone else real(name, *rest)
    )
    rows = tv.compare_captures(nn.Linear(3, 2).eval(), torch.ones(2, 3), captures=["onnx", "stablehlo"])
    assert not rows["onnx"].succeeded and not rows["stablehlo"].succeeded
    assert "pip install 'torch-vis[onnx-export]'" in rows["onnx"].reason
    if real("jax"):
        assert rows["stablehlo"].reason == "torchax is not installed; run: pip install 'torch-vis[stablehlo]'"


def test_functions_and_random_numbers() -> None:
    def noisy(x: torch.Tensor) -> torch.Tensor:
        return x * 2 + torch.rand_like(x)

    before = torch.get_rng_state()
    rows = tv.compare_captures(noisy, torch.ones(2, 3), captures=["eager", "fx", "export", "dynamo"])
    assert [row.difference for row in rows] == [0.0] * 4, str(rows)
    assert torch.equal(before, torch.get_rng_state())


def test_the_model_is_as_it_was() -> None:
    """Every capture of a model that trains writes its buffers; afterwards they are as before, random numbers too."""

    class Counting(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.norm = nn.BatchNorm1d(3)
            self.register_buffer("calls", torch.zeros(()))

        def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
            self.calls += 1
            return torch.dropout(self.norm(x), 0.5, True) + self.calls, self.calls

    model = Counting().train()
    state = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    x, random = torch.randn(4, 3), torch.get_rng_state()
    captures = tv.compare_captures(model, x, captures=("eager", "fx", "export", "dynamo", "aot"))
    assert [
        row.difference for row in captures if row.succeeded and row.capture in ("eager", "fx", "dynamo")
    ] == [0.0] * 3
    assert all(torch.equal(tensor, state[name]) for name, tensor in model.state_dict().items())
    assert torch.equal(torch.get_rng_state(), random)


def test_what_cannot_be_compared() -> None:
    with pytest.raises(NotTraceable, match="int"):
        tv.compare_captures(3)  # type: ignore[arg-type]
    with pytest.raises(NoMatch, match="dynamo"):
        tv.compare_captures(nn.ReLU(), torch.ones(2), captures=["dynam"])
    with pytest.raises(RuntimeError, match="shape"):
        tv.compare_captures(nn.Linear(3, 2), torch.ones(2, 5))


def test_fx_counts_classes_and_randomness_is_told() -> None:
    model = nn.Sequential(nn.Linear(4, 4), nn.ReLU(), nn.Linear(4, 4), nn.Dropout(0.5))
    rows = tv.compare_captures(model, torch.randn(2, 4), captures=["fx", "onnx"])
    assert rows["fx"].operations == {"Linear": 2, "ReLU": 1, "Dropout": 1}
    assert "random numbers" in rows["onnx"].reason


def test_the_cause_is_told_and_not_what_jax_remarks_below_it() -> None:
    told = "Traceback\nValueError: not so\n---\nFor simplicity, JAX has removed its internal frames\n"
    assert captures._raised(told) == "ValueError: not so"


def test_no_captures() -> None:
    with pytest.raises(UsageError, match="at least one"):
        tv.compare_captures(nn.Linear(2, 2), torch.ones(1, 2), captures=[])
