"""How data flows in two runs: what an operation reads, what was moved, and which of several alike layers is which."""

from __future__ import annotations

import copy
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

import torch_vis as tv
from tests.kit.traced import NAMES, traced
from torch_vis.cli.main import main

X = torch.linspace(-1, 1, 8).reshape(2, 4)


class Net(nn.Module):
    def __init__(self, run: Callable[[Net, Tensor], Tensor]) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.a, self.b, self.run = nn.Linear(4, 4), nn.Linear(4, 4), run

    def forward(self, x: Tensor) -> Tensor:
        return self.run(self, x)


def around_both(net: Net, x: Tensor) -> Tensor:
    return net.b(net.a(x)) + x


def around_one(net: Net, x: Tensor) -> Tensor:
    h = net.a(x)
    return net.b(h) + h


def difference(net: Net, x: Tensor) -> Tensor:
    p, q = net.a(x), net.b(x)
    return q - p


def negated(net: Net, x: Tensor) -> Tensor:
    p, q = net.a(x), net.b(x)
    return p - q


def both_ways(one: tv.Trace, two: tv.Trace) -> list[tv.Comparison]:
    return [tv.compare(one, two), tv.compare(two, one)]


def forward_changes(found: tv.Comparison) -> list[tuple[str, tuple[str, ...]]]:
    return [(row.after.name, row.what) for row in found.changed if row.after.phase == "forward"]


@pytest.mark.parametrize("backward", [False, True])
def test_a_residual_taken_from_elsewhere_is_a_change(backward: bool) -> None:
    one, two = (tv.trace(Net(run), X, backward=backward) for run in (around_both, around_one))
    found, back = both_ways(one, two)
    assert not found.same and not back.same
    assert forward_changes(found) == [("add", ("reads addmm in a instead of x (input)",))]
    assert forward_changes(back) == [("add", ("reads x (input) instead of addmm in a",))]
    assert "add in the run: reads addmm in a instead of x (input)" in str(found)


def test_swapped_operands_are_a_change_where_they_matter() -> None:
    for found in both_ways(tv.trace(Net(difference), X), tv.trace(Net(negated), X)):
        assert not found.same and forward_changes(found) == [("sub", ("its operands are swapped",))]
    sums = [tv.trace(Net(run), X) for run in (lambda n, x: n.a(x) + n.b(x), lambda n, x: n.b(x) + n.a(x))]
    assert not tv.compare(*sums).changed


def test_another_weight_of_the_same_model_is_a_change() -> None:
    def scaled(first: str, second: str) -> tv.Trace:
        class Scaled(nn.Module):
            def __init__(self) -> None:
                super().__init__()
                self.u, self.v = nn.Parameter(torch.ones(4)), nn.Parameter(torch.ones(4))

            def forward(self, x: Tensor) -> Tensor:
                return (x * getattr(self, first)).sin() * getattr(self, second)

        return tv.trace(Scaled(), X)

    found = tv.compare(scaled("u", "v"), scaled("v", "u"))
    assert [what for _, what in forward_changes(found)] == [
        ("reads v (parameter) instead of u (parameter)",),
        ("reads u (parameter) instead of v (parameter)",),
    ]


def test_a_renamed_weight_or_input_is_no_change() -> None:
    def run(x: Tensor, y: Tensor) -> Tensor:
        return x.sin() - y

    def renamed(left: Tensor, right: Tensor) -> Tensor:
        return left.sin() - right

    assert tv.compare(tv.trace(run, X, X + 1), tv.trace(renamed, X, X + 1)).same


def test_outputs_that_change_places_are_a_change() -> None:
    one = tv.trace(lambda x: (x.exp(), x.sin()), X)
    found = tv.compare(one, tv.trace(lambda x: (x.exp(), x.sin())[::-1], X))
    assert not found.same and not found.changed
    assert found.changed_outputs["output.0"] == "sin in the run instead of exp in the run"
    fewer = tv.compare(one, tv.trace(lambda x: (x.exp(), x.sin())[:1], X))
    assert not fewer.same and "output.1: only in A" in str(fewer)


def test_what_is_written_under_an_argument_is_read() -> None:
    class Double(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            return x * 2

    class Writing(nn.Module):
        def __init__(self, first: bool) -> None:
            super().__init__()
            self.scale, self.first = Double(), first

        def forward(self, x: Tensor) -> Tensor:
            y = x + 0
            flat = y.view(-1)
            if self.first:
                y.add_(1)
            z = self.scale(flat)
            if not self.first:
                y.add_(1)
            return z

    found, back = both_ways(*(tv.trace(Writing(first), X) for first in (True, False)))
    assert forward_changes(found) == [("mul", ("reads what add_ in the run writes in A alone",))]
    assert forward_changes(back) == [("mul", ("reads what add_ in the run writes in B alone",))]


def test_what_is_put_between_is_one_addition() -> None:
    def plain(net: Net, x: Tensor) -> Tensor:
        return (net.b(net.a(x)) + x).sum()

    def more(net: Net, x: Tensor) -> Tensor:
        return (net.b(net.a(x).tanh().view(2, 4)) + x).sum()

    for found in both_ways(*(tv.trace(Net(run), X, backward=True) for run in (plain, more))):
        assert not found.changed
        names = {node.name for node in (*found.added, *found.removed) if "view" not in node.flags}
        assert names == {"tanh", "tanh_backward"}


class Attention(nn.Module):
    def __init__(self, order: str) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.q, self.k, self.v = (nn.Linear(8, 8) for _ in range(3))
        self.order = order

    def forward(self, x: Tensor) -> Tensor:
        parts = {name: getattr(self, name)(x).view(2, 4, 2, 4).transpose(1, 2) for name in self.order}
        return F.scaled_dot_product_attention(parts["q"], parts["k"], parts["v"])


def test_lines_that_change_places_are_the_same_lines() -> None:
    x = torch.randn(2, 4, 8)
    found = tv.compare(*(tv.trace(Attention(order), x, backward=True) for order in ("qkv", "kqv")))
    assert not found.changed and not len(found.added) and not len(found.removed)


def test_the_command_line_says_so(tmp_path: Path) -> None:
    for name, run in (("one", difference), ("two", negated)):
        tv.trace(Net(run), X).save(tmp_path / f"{name}.tvz")
    one, two = (str(tmp_path / f"{name}.tvz") for name in ("one", "two"))
    assert main(["compare", one, one]) == 0 and main(["compare", one, two]) == 1


@pytest.mark.parametrize("name", NAMES[1::8])
def test_nothing_reads_something_else_in_a_trace_itself(name: str) -> None:
    assert not tv.compare(traced(name), traced(name)).alignment.wiring.changed_inputs


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.Linear(4, 4)

    def forward(self, x: Tensor) -> Tensor:
        return x + torch.tanh(self.inner(x))


class Stack(nn.Module):
    def __init__(self, *layers: nn.Module) -> None:
        super().__init__()
        self.layers = nn.ModuleList(layers)

    def forward(self, x: Tensor) -> Tensor:
        for layer in self.layers:
            x = layer(x)
        return x


def blocks(count: int) -> list[nn.Module]:
    torch.manual_seed(0)
    return [Block() for _ in range(count)]


def places(found: tv.Comparison) -> list[tuple[str, str]]:
    """Where the layers of a list went."""
    pairs = enumerate(found.alignment.scope_to_b.tolist())
    kept = [(found.a.graph.scopes[one], found.b.graph.scopes[two]) for one, two in pairs if two >= 0]
    return [
        (one.path.rpartition(".")[2], two.path.rpartition(".")[2]) for one, two in kept if one.type == "Block"
    ]


@pytest.mark.parametrize("around", [nn.Sequential, Stack])
@pytest.mark.parametrize("put_in", [nn.Identity, lambda: nn.Dropout(0.5)], ids=["identity", "dropout"])
@pytest.mark.parametrize("keep", [True, False])
def test_a_layer_put_in_between_alike_ones(
    around: Callable[..., nn.Module], put_in: Callable[[], nn.Module], keep: bool
) -> None:
    first, second, third = blocks(3)
    one = tv.trace(around(first, second, third), X, hold=keep)
    two = tv.trace(around(first, put_in(), second, third), X, hold=keep)
    found, back = both_ways(one, two)
    assert places(found) == [("0", "0"), ("1", "2"), ("2", "3")]
    assert places(back) == [("0", "0"), ("2", "1"), ("3", "2")]
    assert not found.changed and not found.reordered_modules and not back.reordered_modules


def test_a_layer_put_in_is_found_in_another_type_as_well() -> None:
    def run(dtype: torch.dtype, *more: nn.Module) -> tv.Trace:
        first, *rest = blocks(3)
        return tv.trace(Stack(first, *more, *rest).to(dtype), X.to(dtype), backward=True)

    found = tv.compare(run(torch.float32), run(torch.float64, nn.Identity()))
    assert places(found) == [("0", "0"), ("1", "2"), ("2", "3")] and not found.alignment.wiring.changed_inputs


def test_calls_of_one_module_are_in_their_order_whatever_each_does() -> None:
    class Twice(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            torch.manual_seed(0)
            self.block, self.head = nn.Sequential(nn.Linear(4, 4), nn.Tanh()), nn.Linear(4, 2)

        def forward(self, x: Tensor) -> Tensor:
            return self.head(self.block(self.block(x)))

    one = tv.trace(Twice(), X, backward=True)
    with torch.autocast("cpu", dtype=torch.bfloat16):  # which casts weights at their first use alone
        two = tv.trace(Twice(), X, backward=True)
    for found in both_ways(one, two):
        assert not found.reordered_modules and not found.alignment.wiring.changed_inputs


def test_weights_tell_which_of_alike_layers_is_gone() -> None:
    four = blocks(4)
    one, two = tv.trace(Stack(*four), X, backward=True), tv.trace(Stack(four[0], *four[2:]), X, backward=True)
    found, back = both_ways(one, two)
    assert places(found) == [("0", "0"), ("2", "1"), ("3", "2")]
    assert places(back) == [("0", "0"), ("1", "2"), ("2", "3")]
    assert [scope.path for scope in found.removed_modules] == ["layers.1", "layers.1.inner"]
    assert not found.changed and "are alike" not in str(found)


def test_layers_that_nothing_tells_apart_are_matched_by_number_and_it_says_so() -> None:
    four = blocks(4)
    one, two = tv.trace(Stack(*four), X, hold=False), tv.trace(Stack(four[0], *four[2:]), X, hold=False)
    found = tv.compare(one, two)
    assert places(found) == [(str(n), str(n)) for n in range(3)]
    assert "4 layers of A (layers.0 … layers.3) and 3 of B (layers.0 … layers.2) are alike (Block)" in str(
        found
    )
    assert any("are alike" in note for note in found.to_dict()["notes"])


def test_a_module_of_another_class_is_a_change() -> None:
    class Own(nn.Linear):
        pass

    one, two = nn.Sequential(nn.Linear(4, 4), nn.ReLU()), nn.Sequential(Own(4, 4), nn.GELU())
    found = tv.compare(tv.trace(one, X), tv.trace(two, X))
    classes = [(one.path, one.type, two.type) for one, two in found.changed_modules]
    assert classes == [("0", "Linear", "Own"), ("1", "ReLU", "GELU")]
    assert "modules of another class (2)\n  Linear → Own: 0\n  ReLU → GELU: 1" in str(found)
    assert found.to_dict()["changed_modules"][0] == {
        "path": "0", "in_b": "0", "before": "Linear", "after": "Own",
    }  # fmt: skip
    alone = tv.compare(tv.trace(nn.Sequential(one[0]), X), tv.trace(nn.Sequential(two[0]), X))
    assert not alone.same and not alone.changed


def test_what_each_module_comes_to_adds_up() -> None:
    one = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 4))
    two = nn.Sequential(nn.Linear(4, 16), nn.ReLU(), nn.Linear(16, 4), nn.Tanh())
    found = tv.compare(tv.trace(one, X, backward=True), tv.trace(two, X, backward=True))
    rows = {row.b: row for row in found.modules}
    assert rows["0"].parameters == (40, 80) and rows["3"].a is None and rows["3"].operations == (0, 2)
    for name, figure in (("operations", "operations"), ("flops", "FLOPs"), ("alloc_bytes", "allocated")):
        assert sum(getattr(row, name)[0] for row in found.modules) == found.figures[figure][0]
        assert sum(getattr(row, name)[1] for row in found.modules) == found.figures[figure][1]
    assert len(found.to_dict()["modules"]) == len(found.to_pandas("modules")) == len(found.modules)
    table = str(found).partition("by what their own operations come to")[2]
    assert "3 (only in B)" in table and "+40" in table


class Inner(nn.Module):
    def __init__(self, active: bool) -> None:
        super().__init__()
        self.linear, self.active = nn.Linear(4, 4), active

    def forward(self, x: Tensor) -> Tensor:
        return self.linear(x).relu() if self.active else self.linear(x)


class Outer(nn.Module):
    def __init__(self, active: bool) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.inner, self.active = Inner(not active), active

    def forward(self, x: Tensor) -> Tensor:
        y = self.inner(x)
        return (y.relu() if self.active else y) * 2


def test_an_operation_moved_to_another_module_is_the_same_operation() -> None:
    found, back = both_ways(*(tv.trace(Outer(active), X, backward=True) for active in (True, False)))
    assert not len(found.added) and not len(found.removed) and not found.changed
    assert [(one.name, one.path, two.path) for one, two in found.moved] == [("relu", "", "inner")]
    assert [(one.path, two.path) for one, two in back.moved] == [("inner", "")]
    assert "moved to another module (1)\n  relu: (root) → inner" in str(found)
    assert found.to_pandas()["change"].tolist() == ["moved"] and len(found.to_dict()["moved"]) == 1


def test_updates_of_other_optimizers_are_others() -> None:
    def step(make: Callable[..., torch.optim.Optimizer]) -> tv.Trace:
        torch.manual_seed(0)
        layer = nn.Linear(4, 4)
        optimizer = make(layer.parameters())

        def run(x: Tensor) -> None:
            layer(x).sum().backward()
            optimizer.step()

        return tv.trace(run, X)

    plain = step(lambda p: torch.optim.SGD(p, lr=0.1))
    for found in both_ways(plain, step(lambda p: torch.optim.Adam(p, foreach=False))):
        assert not found.changed
    assert len(tv.compare(plain, step(lambda p: torch.optim.SGD(p, lr=0.2))).changed) == 2


def test_gradients_of_mixed_precision_arrive_in_the_same_places() -> None:
    def run(enabled: bool) -> tv.Trace:
        torch.manual_seed(0)
        net = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 4))

        def loss(x: Tensor) -> Tensor:
            with torch.autocast("cpu", dtype=torch.bfloat16, enabled=enabled):
                return net(x).float().sum()

        return tv.trace(loss, X, backward=True)

    found = tv.compare(run(False), run(True))
    assert "detach" not in {node.name for node in (*found.added, *found.removed)}
    assert {node.name for node in found.added} == {"_to_copy"}


def test_a_run_that_was_ended_early_is_said_to_be() -> None:
    class Broken(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            x = x + 1
            raise ValueError("too early")

    class Whole(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            return x + 1

    found = tv.compare(tv.trace(Whole(), X), tv.trace(Broken(), X, partial=True))
    assert str(found).startswith("B is incomplete: it was ended by ValueError: too early")
    assert not found.same and found.to_dict()["ended"] == {"a": None, "b": "ValueError: too early"}


@pytest.mark.parametrize("via", ["export", "aot", "dynamo"])
def test_the_whole_model_is_in_the_same_place_whatever_captured_it(via: str) -> None:
    model = nn.Sequential(nn.Linear(4, 4), nn.ReLU())
    found = tv.compare(tv.trace(model, X), tv.trace(model, X, via=via))
    assert not found.moved_modules and not found.moved and not found.added_modules
    assert found.same or via == "aot"  # which adds a detach


def test_views_are_a_number_beneath_what_computes() -> None:
    def more(x: Tensor) -> Tensor:
        for _ in range(30):
            x = x.view(4, 2).t().t().view(2, 4)
        return x.exp().sin()

    found = tv.compare(tv.trace(lambda x: x.exp(), X), tv.trace(more, X))
    lines = str(found).partition("only in B")[2].splitlines()
    assert lines[1] == "  sin in the run" and lines[2].startswith("  and 120 views: ")


def test_the_figure_is_in_per_cent_with_what_it_is_of() -> None:
    one, two = (tv.trace(nn.Linear(4, width), X) for width in (3, 4))
    for first, second, label, change in (
        (one, two, "parameters: 15 → 20", "+33.3 %"),
        (two, one, "parameters: 20 → 15", "−25 %"),
    ):
        figure = tv.compare(first, second).figure()
        labels, texts = list(figure.layout.yaxis.ticktext), [text.strip() for text in figure.data[-1].text]
        assert texts[labels.index(label)] == change and all(text.endswith(" %") for text in texts)
    # beside the zero line: to the left of a bar below zero stand the names
    assert min(figure.data[-1].x) == 0


class Pair(nn.Module):
    """Two layers that may be one, or share their weight."""

    def __init__(self) -> None:
        super().__init__()
        self.a, self.b = nn.Linear(8, 8), nn.Linear(8, 8)

    def forward(self, x: Tensor) -> Tensor:
        return self.b(self.a(x).relu())

    def shared(self) -> Pair:
        self.b = self.a
        return self

    def tied(self) -> Pair:
        self.b.weight = self.a.weight
        return self


@pytest.mark.parametrize("backward", [False, True])
@pytest.mark.parametrize("change", [Pair.shared, Pair.tied])
def test_a_shared_layer_and_a_tied_weight_are_changes(change: Callable[[Pair], Pair], backward: bool) -> None:
    x, plain = torch.randn(2, 8), Pair()
    one = tv.trace(plain, x, backward=backward)
    other = tv.trace(change(copy.deepcopy(plain)), x, backward=backward)
    for found in (tv.compare(one, other), tv.compare(other, one)):
        assert not found.same
        reading = [what for row in found.changed for what in row.what if row.after.phase == "forward"]
        assert any("a.weight (parameter)" in what and "b.weight (parameter)" in what for what in reading)
        for name in ("operations", "parameters", "FLOPs", "allocated", "bytes accessed"):
            a, b = found.figures[name]
            column = {"FLOPs": "flops", "allocated": "alloc_bytes", "bytes accessed": "moved_bytes"}.get(
                name, name
            )
            rows = [getattr(row, column) for row in found.modules]
            assert (sum(row[0] for row in rows), sum(row[1] for row in rows)) == (a, b), name


@pytest.mark.parametrize(
    "norm, x",
    [
        (nn.LayerNorm(8), torch.randn(4, 8)),
        (nn.BatchNorm1d(8), torch.randn(4, 8)),
        (nn.GroupNorm(2, 8), torch.randn(4, 8)),
        (nn.Conv1d(1, 1, 1), torch.randn(4, 1, 8)),
    ],
    ids=["layer norm", "batch norm", "group norm", "convolution"],
)
def test_what_a_backward_returns_goes_by_its_mask(norm: nn.Module, x: Tensor) -> None:
    whole, seed = nn.Sequential(nn.Linear(8, 8, bias=False), norm), torch.randn_like(x)

    def step(*, frozen: bool) -> None:
        model = copy.deepcopy(whole)
        model[0].requires_grad_(not frozen)
        optimizer = torch.optim.AdamW([p for p in model.parameters() if p.requires_grad], foreach=False)
        (model(x) * seed).sum().backward()
        optimizer.step()

    found = tv.compare(*(tv.trace(lambda frozen=frozen: step(frozen=frozen)) for frozen in (False, True)))
    assert {row.after.phase for row in found.changed} == {"backward"}
    assert not [what for row in found.changed for what in row.what if what.startswith("reads")]
    assert found.differences().rows == []
