"""Higher-order operators in captures: branches, loops and steps as scopes, and runs that take another way."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch._higher_order_ops import scan, while_loop

import torch_vis as tv
from torch_vis.errors import NoMatch, TensorsMissing, UsageError

PROGRAMS = ("export", "dynamo", "aot")
ROWS = torch.linspace(0.1, 1.0, 12).reshape(3, 4)


pytestmark = pytest.mark.usefixtures("fresh_compiler")


class Chooses(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.up, self.down = nn.Linear(4, 4), nn.Linear(4, 4)

    def forward(self, x: Tensor) -> Tensor:
        return (
            torch.cond(x.sum() > 0, lambda x: self.up(x).relu(), lambda x: self.down(x).sin().cos(), (x,)) + 1
        )


class Loops(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        _, x = while_loop(lambda i, x: i < x.sum(), lambda i, x: (i + 1, x * 0.9), (torch.tensor(0), x))
        return x.sum()


class Folds(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        carry, rows = scan(lambda carry, row: (carry + row, carry * row), torch.zeros(4), x)
        return (rows.relu() * 2).sum() + carry.sum()


def above(node: Any) -> list[str]:
    """The paths of the scopes around a node, innermost first."""
    found, scope = [], node.scope
    while scope is not None:
        found.append(scope.path)
        scope = scope.parent
    return found


@pytest.mark.parametrize("via", ("eager", *PROGRAMS))
@pytest.mark.parametrize("kind", [Chooses, Folds])
def test_outputs_and_gradients_are_proved(kind: Callable[[], nn.Module], via: str) -> None:
    x = ROWS.clone().requires_grad_()
    t = tv.trace(kind(), x, backward=True, via=via)
    t.check()
    want = ROWS.clone().requires_grad_()
    kind()(want).sum().backward()
    assert x.grad is not None and want.grad is not None and torch.allclose(x.grad, want.grad)


@pytest.mark.parametrize("via", PROGRAMS)
def test_cond_shows_the_branch_that_ran_and_names_the_other(via: str) -> None:
    t = tv.trace(Chooses(), ROWS, via=via)
    relu = next(node for node in t.graph.nodes if node.name == "relu")
    assert "cond.true" in above(relu) and relu.site is not None and relu.site.file == __file__
    (other,) = [scope for scope in t.graph.scopes if scope.path == "cond.false"]
    assert other.type.startswith("not taken: ") and "sin, cos" in other.type
    assert not any(node.name in ("sin", "cos") for node in t.graph.nodes)
    assert "not taken" in t.table(width=160)
    assert t.program is not None
    assert [(sub.name, sub.ran) for sub in t.program.subgraphs] == [("cond.true", 1), ("cond.false", 0)]
    assert any("cond at" in line and Path(__file__).name in line for line in t.limits)


def test_a_branch_that_was_not_taken_is_a_graph_of_its_own(tmp_path: Path) -> None:
    t = tv.trace(Chooses(), ROWS, via="export")
    other = t.subgraph("cond.false")
    assert [node.name for node in other.graph.nodes] == ["t", "addmm", "sin", "cos"]
    assert other.output[0].shape == (3, 4)
    for ending in (".svg", ".html", ".json", ".md"):
        other.save(tmp_path / f"branch{ending}")
    with pytest.raises(NoMatch, match=r"did you mean 'cond\.false'"):
        t.subgraph("cond.fals")
    with pytest.raises(UsageError, match="via='export'"):
        tv.trace(nn.ReLU(), ROWS).subgraph("cond.false")


def test_subgraphs_are_saved_with_the_trace(tmp_path: Path) -> None:
    tv.trace(Chooses(), ROWS, via="export").save(tmp_path / "t.tvz")
    plain = tv.load(tmp_path / "t.tvz").meta["program"]["subgraphs"]
    assert [(row["name"], row["ran"]) for row in plain] == [("cond.true", 1), ("cond.false", 0)]
    assert plain[1]["operations"] == ["aten.linear.default", "aten.sin.default", "aten.cos.default"]


@pytest.mark.parametrize("via", PROGRAMS)
def test_every_turn_of_a_loop_is_a_scope(via: str) -> None:
    model, x = Loops(), torch.full((4,), 2.0)
    t = tv.trace(model, x, via=via)
    assert torch.equal(t.output, model(x))
    t.check()
    turns = [scope for scope in t.graph.scopes if scope.path == "while_loop.body"]
    assert [scope.call for scope in turns] == list(range(len(turns))) and len(turns) > 1
    folded = tv.trace(Folds(), ROWS, via=via)
    assert len([scope for scope in folded.graph.scopes if scope.path == "scan.step"]) == 3


@pytest.mark.parametrize("via", PROGRAMS)
def test_the_functions_of_flex_attention_are_scopes(via: str) -> None:
    from torch.nn.attention.flex_attention import flex_attention

    def attend(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        return flex_attention(q, k, v, score_mod=lambda s, b, h, i, j: s + (i - j) * 0.1)

    q = torch.randn(1, 2, 16, 8)
    t = tv.trace(attend, q, q + 1, q + 2, via=via)
    t.check()
    paths = {path for node in t.graph.nodes for path in above(node)}
    assert {"flex_attention.score_mod", "flex_attention.mask_mod"} <= paths


@pytest.mark.parametrize("via", ("eager", *PROGRAMS))
def test_run_takes_the_way_that_new_inputs_take_or_says_that_it_cannot(via: str) -> None:
    model = Chooses()
    t = tv.trace(model, ROWS, via=via)
    with torch.no_grad():
        again = t.run(2 * ROWS)
        assert torch.equal(again.output, model(2 * ROWS)) and again.limits == ()
        if via == "export":
            assert torch.equal(t.run(-ROWS).output, model(-ROWS)) and t.run(-ROWS).limits
            return
    with pytest.raises(
        UsageError, match=r"cond at .*test_via_bodies.py:\d+ .*saw True .* sees False now.*via='export'"
    ):
        t.run(-ROWS)


def test_run_turns_a_loop_as_often_as_new_inputs_ask_for() -> None:
    model, x = Loops(), torch.full((4,), 2.0)
    t = tv.trace(model, x, via="export")
    assert torch.equal(t.run(x / 4).output, model(x / 4)) and torch.equal(t.run(x / 8).output, model(x / 8))
    with pytest.raises(UsageError, match="while_loop at"):
        tv.trace(model, x, via="dynamo").run(x / 8)


def test_a_scan_runs_on_new_inputs() -> None:
    for via in PROGRAMS:
        assert torch.equal(tv.trace(Folds(), ROWS, via=via).run(2 * ROWS).output, Folds()(2 * ROWS))


def test_an_intervention_that_turns_a_branch_is_refused() -> None:
    run = tv.trace(Chooses(), ROWS).run(keep="all")
    total = next(name for name in run.kept if "sum" in name)
    with pytest.raises(UsageError, match="cond at"):
        run.again(replace={0: lambda value: -value})
    assert total


@pytest.mark.parametrize("via", ["export", "dynamo"])
def test_blocks_under_no_grad_keep_their_modules_and_lines(via: str) -> None:
    class Frozen(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.head, self.tail = nn.Linear(4, 4), nn.Linear(4, 2)

        def forward(self, x: Tensor) -> Tensor:
            with torch.no_grad():
                x = self.head(x).relu()
            return self.tail(x)

    t = tv.trace(Frozen(), ROWS, via=via, backward=True)
    t.check()
    product = next(node for node in t.graph.nodes if node.name == "addmm")
    assert "head" in above(product) and product.site is not None and product.site.file == __file__


class Nests(nn.Module):
    """A cond inside the branch of a cond, and one after it."""

    def forward(self, x: Tensor) -> Tensor:
        def inner(x: Tensor) -> Tensor:
            return torch.cond(x.max() > 2, lambda x: x * 3, lambda x: x.cos(), (x,))

        y = torch.cond(x.sum() > 0, inner, lambda x: x - 1, (x,))
        return torch.cond(y.mean() > 0, lambda y: y.exp(), lambda y: y.neg(), (y,))


@pytest.mark.parametrize("via", PROGRAMS)
def test_each_cond_names_its_own_branch_that_was_not_taken(via: str) -> None:
    t = tv.trace(Nests(), ROWS, via=via)
    conds = [scope.type for scope in t.graph.scopes if scope.path == "cond"]
    assert conds == [
        "cond, false branch not taken: sub",
        "cond, true branch not taken: mul",
        "cond, false branch not taken: neg",
    ]
    t.check()


@pytest.mark.parametrize("via", PROGRAMS)
def test_a_branch_that_holds_control_flow_shows_every_way(via: str) -> None:
    branch = tv.trace(Nests(), ROWS, via=via).subgraph("cond.true")
    assert [node.name for node in branch.graph.nodes] == ["max", "gt", "mul", "cos"]
    assert any("both of its branches" in line for line in branch.limits)


@pytest.mark.parametrize("via", PROGRAMS)
def test_the_functions_of_flex_attention_are_graphs_of_their_own(via: str) -> None:
    from torch.nn.attention.flex_attention import create_block_mask, flex_attention

    mask = create_block_mask(lambda b, h, i, j: i >= j, None, None, 128, 128, device="cpu")
    bias = torch.ones(2)

    def attend(q: Tensor) -> Tensor:
        return flex_attention(q, q, q, score_mod=lambda s, b, h, i, j: s + (i - j) * bias[h], block_mask=mask)

    t = tv.trace(attend, torch.randn(1, 2, 128, 16), via=via)
    score = t.subgraph("flex_attention.score_mod")
    assert [node.name for node in score.graph.nodes] == ["sub", "index", "mul", "add"]
    assert [node.name for node in t.subgraph("flex_attention.mask_mod").graph.nodes] == ["ge"]


def test_what_shapes_and_files_cannot_do_is_said(tmp_path: Path) -> None:
    t = tv.trace(Chooses(), ROWS, via="export")
    branch = t.subgraph("cond.false")
    with pytest.raises(TensorsMissing, match="worked out on shapes"):
        branch.check()
    with pytest.raises(TensorsMissing, match="worked out on shapes"):
        branch.run()
    t.save(tmp_path / "t.tvz")
    with pytest.raises(UsageError, match="a file keeps no subgraphs"):
        tv.load(tmp_path / "t.tvz").subgraph("cond.false")
