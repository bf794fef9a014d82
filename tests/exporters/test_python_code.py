"""Programs saved as Python: weights that share memory, containers, partitions, refusals, a fresh interpreter."""

from __future__ import annotations

import copy
import os
import runpy
import subprocess
import sys
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import torch
from torch import Tensor, nn

import torch_vis as tv
from torch_vis.errors import UsageError

pytestmark = pytest.mark.usefixtures("fresh_compiler")


def saved(t: Any, folder: Path) -> Any:
    path = folder / "saved.py"
    tv.save_graph_to_file(t, path)
    return runpy.run_path(str(path))["load"]()


class Pair(NamedTuple):
    first: Tensor
    second: Tensor


class Odd(nn.Module):
    """Tied, overlapping, expanded, transposed and complex state; nested inputs and outputs."""

    def __init__(self) -> None:
        super().__init__()
        self.one, self.two = nn.Linear(4, 4), nn.Linear(4, 4)
        self.two.weight = self.one.weight
        self.register_buffer("base", torch.arange(8.0))
        self.register_buffer("part", self.base[2:6])
        self.register_buffer("wide", torch.ones(1).expand(4))
        self.register_buffer("turned", torch.randn(4, 4).t())
        self.register_buffer("wave", torch.randn(4, dtype=torch.complex128))
        self.register_buffer("count", torch.zeros((), dtype=torch.int64), persistent=False)

    def forward(self, x: Tensor, *, extra: dict[str, list[Tensor]], scale: float = 2.0) -> dict[str, Any]:
        y = self.two(torch.relu(self.one(x))) @ self.turned + self.part * self.wide
        y = y + extra["more"][0] + self.wave.abs().float()
        return {"y": y * scale, "pair": Pair(y.sum(), self.base.sum()), "nothing": None, "n": 3}


def leaves(item: Any) -> list[Tensor]:
    return [leaf for leaf in torch.utils._pytree.tree_leaves(item) if isinstance(leaf, Tensor)]


X = torch.randn(3, 4)
MORE = {"extra": {"more": [torch.randn(3, 4)]}}


@pytest.mark.parametrize("via", ["export", "dynamo"])
def test_odd_state_and_containers_come_back(via: str, tmp_path: Path) -> None:
    model = Odd()
    run = saved(tv.trace(model, X, kwargs=MORE, via=via), tmp_path)
    found, wanted = run(X, **MORE), model(X, **MORE)
    assert list(found) == list(wanted) and found["n"] == 3 and found["nothing"] is None
    assert isinstance(found["pair"], tuple)
    assert all(torch.equal(one, two) for one, two in zip(leaves(found), leaves(wanted)))


def test_memory_that_was_shared_is_shared(tmp_path: Path) -> None:
    run = saved(tv.trace(Odd(), X, kwargs=MORE, via="export"), tmp_path)
    assert run.one.weight is run.two.weight
    run.base.zero_()
    assert not run.part.any()
    assert run.wide.stride() == (0,) and run.turned.stride() == (1, 4)
    assert set(Odd().state_dict()) <= set(run.state_dict())


def test_inputs_are_checked(tmp_path: Path) -> None:
    run = saved(tv.trace(Odd(), X, kwargs={**MORE, "scale": 2.0}, via="export"), tmp_path)
    with pytest.raises(TypeError, match="'extra' is missing"):
        run(X, scale=2.0)
    with pytest.raises(TypeError, match="1 expected, 2 given"):
        run(X, X, scale=2.0, **MORE)
    with pytest.raises(TypeError, match="other"):
        run(X, scale=2.0, other=X, **MORE)


def test_training_state_goes_on_in_the_file(tmp_path: Path) -> None:
    model = nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4))
    run = saved(tv.trace(model, X, via="export"), tmp_path)
    mine = copy.deepcopy(model)
    for _ in range(3):
        assert torch.equal(run(X), mine(X))
    for name, tensor in mine.state_dict().items():
        assert torch.equal(tensor, run.state_dict()[name]), name
    run(X).sum().backward()
    assert run.get_submodule("0").weight.grad is not None


def test_open_sizes_stay_open(tmp_path: Path) -> None:
    model = nn.Sequential(nn.Linear(4, 4), nn.Flatten())
    run = saved(tv.trace(model, X, via="export", dynamic_shapes=({0: torch.export.Dim.AUTO},)), tmp_path)
    other = torch.randn(7, 4)
    assert torch.equal(run(other), model(other))
    run = saved(tv.trace(model, X, via="dynamo", dynamic=True), tmp_path)
    assert torch.equal(run(other), model(other))


def test_higher_order_operators_are_nested(tmp_path: Path) -> None:
    def choose(x: Tensor) -> Tensor:
        return torch.cond(x.sum() > 0, lambda x: x.sin() * torch.ones(2), lambda x: x.cos(), (x,))

    for via in ("export", "dynamo"):
        run = saved(tv.trace(choose, torch.ones(2), via=via), tmp_path)
        for x in (torch.ones(2), -torch.ones(2)):
            assert torch.equal(run(x), choose(x)), via


def test_partitions_are_called_with_what_the_table_lists(tmp_path: Path) -> None:
    model = nn.Sequential(nn.Linear(4, 4), nn.ReLU())

    def broken(x: Tensor) -> Tensor:
        x = model(x)
        torch._dynamo.graph_break()
        return x * 2

    extractor = tv.trace_model_with_dynamo(broken, X)
    whole = saved(extractor, tmp_path)
    assert torch.equal(whole(X), broken(X)) and torch.equal(whole(X + 1), broken(X + 1))
    first, second = runpy.run_path(str(tmp_path / "saved.py"))["load_parts"]()
    assert torch.equal(second(*first(X))[0], broken(X))
    assert "L['x']" in (tmp_path / "saved.py").read_text()
    with pytest.raises(TypeError, match="takes 1 inputs"):
        first()


def test_a_backend_without_a_trace_saves_partitions(tmp_path: Path) -> None:
    extractor = tv.DynamoGraphExtractor()
    with pytest.raises(UsageError, match="call the compiled model"):
        tv.save_graph_to_file(extractor, tmp_path / "x.py")
    model = nn.Linear(4, 2)
    torch.compile(model, backend=extractor)(X)
    part = saved(extractor, tmp_path)
    assert torch.equal(part(X)[0], model(X))
    assert dict(part.held.named_parameters()).keys() == {"weight", "bias"}


def test_a_fresh_interpreter_needs_torch_and_safetensors_only(tmp_path: Path) -> None:
    model = Odd()
    tv.save_graph_to_file(tv.trace(model, X, kwargs=MORE, via="export"), tmp_path / "odd.py")
    torch.save((X, MORE, model(X, **MORE)["y"]), tmp_path / "given.pt")
    code = (
        "import sys, torch, odd\nx, more, y = torch.load('given.pt')\n"
        "assert torch.equal(odd.load()(x, **more)['y'], y)\nassert 'torch_vis' not in sys.modules"
    )
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    done = subprocess.run(
        [sys.executable, "-c", code],
        cwd=tmp_path,
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr


def test_what_cannot_be_saved_says_why_and_leaves_nothing(tmp_path: Path) -> None:
    path = tmp_path / "x.py"
    with pytest.raises(UsageError, match="holds no tensors"):
        tv.save_graph_to_file(tv.trace(nn.ReLU(), X, hold=False), path)
    with pytest.raises(UsageError, match="whole Linear"):
        tv.save_graph_to_file(tv.trace(nn.Sequential(nn.Linear(4, 2)), X, via="fx", hold=False), path)
    with pytest.raises(UsageError, match=r"\.py"):
        tv.save_graph_to_file(tv.trace(nn.ReLU(), X, via="export"), tmp_path / "x.txt")
    with pytest.raises(UsageError, match="extractor or a trace"):
        tv.save_graph_to_file(3, path)  # type: ignore[arg-type]
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("via", ["eager", "fx", "dynamo", "aot"])
def test_a_run_with_breaks_containers_and_a_recurrent_layer(via: str, tmp_path: Path) -> None:
    class Mixed(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.rnn, self.norm = nn.LSTM(4, 6, batch_first=True), nn.BatchNorm1d(6)

        def forward(self, x: Tensor, *, extra: dict[str, Tensor]) -> dict[str, object]:
            y, (h, _) = self.rnn(x[None])
            if via in ("dynamo", "aot"):
                torch._dynamo.graph_break()
            return {"y": self.norm(y[0]) * extra["scale"], "h": (h,), "n": 3}

    model, extra = Mixed().eval(), {"scale": torch.randn(6)}
    found = saved(tv.trace(model, X, kwargs={"extra": extra}, via=via), tmp_path)(X, extra=extra)
    wanted = model(X, extra=extra)
    assert (
        torch.equal(found["y"], wanted["y"])
        and torch.equal(found["h"][0], wanted["h"][0])
        and found["n"] == 3
    )


class Cond(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return torch.cond(x.sum() > 0, lambda x: x.relu(), lambda x: x.sin() - 1, (x,)) * 2


class Branches(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return x + 1 if x.sum() > 0 else x - 1


class BranchesLast(nn.Module):
    """Decides after everything was computed."""

    def forward(self, x: Tensor) -> Tensor:
        more, less = x + 1, x - 1
        return more if x.sum() > 0 else less


@pytest.mark.parametrize("via", ["eager", "dynamo", "aot"])
@pytest.mark.parametrize("kind", [Cond, Branches, BranchesLast])
def test_a_saved_run_refuses_inputs_that_go_another_way(kind: Any, via: str, tmp_path: Path) -> None:
    model, x = kind(), torch.ones(3, 4)
    loaded = saved(tv.trace(model, x, via=via), tmp_path)
    assert torch.equal(loaded(x * 2), model(x * 2))
    if kind is Cond and via == "dynamo":  # one program, with both ways
        assert torch.equal(loaded(-x), model(-x))
        return
    with pytest.raises(RuntimeError, match=r"test_python_code\.py:\d+ .* was True .* is False now"):
        loaded(-x)


def test_a_saved_run_warns_where_a_number_that_it_took_is_another_now(tmp_path: Path) -> None:
    loaded = saved(tv.trace(lambda x: x * x.sum().item(), torch.ones(2)), tmp_path)
    with pytest.warns(UserWarning, match=r"was 2\.0 when this was recorded and is 4\.0 now"):
        loaded(torch.full((2,), 2.0))
