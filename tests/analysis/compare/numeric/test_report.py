"""Where two runs part numerically."""

from __future__ import annotations

import copy
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

import torch_vis as tv
from tests.zoo_models.compiled import HAS_COMPILER
from torch_vis.analysis.compare.numeric.report import SAME, UNSEEN
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
    assert found.rows == [] and found.first is None and found.origins == []
    assert {kind for kind, _ in found.results.values()} == {"output", "gradient"}
    assert all(gap.relative == 0 for _, gap in found.results.values())
    assert found.distances.known.sum() > 40


def test_the_first_difference_is_where_it_was_made():
    x = torch.randn(4, 8)
    found = tv.compare(seeded(model(), x), seeded(model(1.001), x)).differences()
    assert (found.first.a.name, found.first.a.path) == ("mul", "1")
    assert found.first.input_error == 0 and 5e-4 < found.first.relative < 2e-3
    assert found.origins[0] == found.first
    before = [
        node.index for node in found.a.graph.nodes if node.path.startswith("0") and node.phase == "forward"
    ]
    assert not {row.a.index for row in found.rows} & set(before)
    assert "mul in 1" in str(found) and "test_report.py" in str(found)


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
    assert sum(len(part.x) for part in found.figure().data) == len(found.rows)
    assert len(found.to_pandas()) == len(found.rows) > len(found.to_pandas("origins")) == len(found.origins)
    assert set(found.to_pandas("results").name) == set(found.to_pandas("Results").name) == set(found.results)
    assert any(note.text.startswith("first: mul in 1") for note in found.figure().layout.annotations)
    assert found.to_dict()["Results"][0]["relative"] >= found.to_dict()["Results"][-1]["relative"]


class Flat(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv, self.bn, self.fc = nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.Linear(4, 2)

    def forward(self, x):
        return self.fc(self.bn(self.conv(x)).relu().mean((2, 3)))


class Refactored(nn.Module):
    def __init__(self, flat: Flat):
        super().__init__()
        self.stem, self.head = nn.Sequential(flat.conv, flat.bn), flat.fc

    def forward(self, x):
        return self.head(self.stem(x).relu().mean((2, 3)))


def test_results_are_compared_though_their_modules_were_renamed():
    torch.manual_seed(0)
    x, before = torch.randn(4, 3, 8, 8), Flat()
    after = Refactored(copy.deepcopy(before))
    with torch.no_grad():
        after.head.weight *= 1.01
    found = tv.compare(seeded(before, x), seeded(after, x)).differences()
    assert {kind for kind, _ in found.results.values()} == {"output", "gradient", "state"}
    assert len(found.results) == 1 + 6 + 3 and found.uncompared == {}
    assert found.results["bn.running_mean"][1].relative == 0
    assert 5e-3 < found.results["conv.weight.grad"][1].relative < 2e-2
    assert "stem.0.weight.grad" in str(found)


def test_a_name_that_now_belongs_to_another_module_is_not_taken_for_it():
    class Swapped(nn.Module):
        def __init__(self, one, two):
            super().__init__()
            self.one, self.two = one, two

        def forward(self, x):
            first, second = (self.one, self.two) if self.one.out_features == 8 else (self.two, self.one)
            return second(torch.tanh(first(x)))

    torch.manual_seed(0)
    wide, narrow, x = nn.Linear(8, 8), nn.Linear(8, 2), torch.randn(4, 8)
    one, two = Swapped(wide, narrow), Swapped(copy.deepcopy(narrow), copy.deepcopy(wide))
    found = tv.compare(seeded(one, x), seeded(two, x)).differences()
    assert found.uncompared == {} and len(found.results) == 5
    assert all(gap.relative == 0 for _, gap in found.results.values())


def test_results_that_only_one_has_are_named():
    x = torch.randn(4, 8)
    one, two = model(), model()
    two[4].bias.requires_grad_(False)
    found = tv.compare(seeded(one, x), seeded(two, x)).differences()
    assert found.uncompared == {"only in A": ["4.bias.grad"]}
    assert "4.bias.grad" in found.facts()["results only in A"]


def test_gradients_that_the_step_lets_go_of_are_compared_too():
    def stepped(scale: float) -> tv.Trace:
        net = model(scale).eval()
        optimizer = torch.optim.SGD(net.parameters(), lr=0.1)

        def step():
            net(x).sum().backward()
            optimizer.step()
            optimizer.zero_grad()

        return tv.trace(step)

    x = torch.randn(4, 8)
    found = tv.compare(stepped(1.0), stepped(1.001)).differences()
    gradients = [gap.relative for kind, gap in found.results.values() if kind == "gradient"]
    assert len(gradients) == 14 and max(gradients) > 1e-4


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float64])
@pytest.mark.parametrize("layer", ["linear", "convolution"])
def test_a_gradient_that_is_zero_but_for_rounding_is_not_the_news(layer, dtype):
    torch.manual_seed(0)
    if layer == "linear":
        x = torch.randn(64, 8, dtype=dtype)
        one = nn.Sequential(nn.Linear(8, 16), nn.BatchNorm1d(16), nn.ReLU(), nn.Linear(16, 4)).to(dtype)
    else:
        x = torch.randn(4, 3, 10, 10, dtype=dtype)
        one = nn.Sequential(nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8), nn.ReLU(), nn.Conv2d(8, 4, 3)).to(dtype)
    two = copy.deepcopy(one)
    with torch.no_grad():
        two[0].weight[0, 0] += 0.1
    found = tv.compare(
        *(tv.trace(net, x, loss=lambda y: y.square().mean()) for net in (one, two))
    ).differences()
    rounding = {name for name, (_, gap) in found.results.items() if gap.rounding}
    assert rounding == {"0.bias.grad"}
    most, _, zero = found.facts()["gradient"].partition("; ")
    assert "0.bias.grad" not in most and zero == "zero but for rounding in both: 0.bias.grad"
    assert not any(found.distances.rounding[row.a.index] for row in found.rows)
    assert "zero but for rounding" in str(found)


def test_a_gradient_that_became_real_is_a_difference():
    torch.manual_seed(0)
    one = nn.Sequential(nn.Linear(8, 16), nn.BatchNorm1d(16), nn.Linear(16, 4))
    two = copy.deepcopy(one)
    two[1].eval()  # no mean is taken away any more
    x = torch.randn(64, 8)
    found = tv.compare(
        *(tv.trace(net, x, loss=lambda y: y.square().mean()) for net in (one, two))
    ).differences()
    assert not found.results["0.bias.grad"][1].rounding
    assert "0.bias.grad" in found.facts()["gradient"]


def test_no_view_is_named():
    class Sliced(nn.Module):
        def __init__(self):
            super().__init__()
            self.inner = nn.Linear(8, 8)

        def forward(self, x):
            return self.inner(x)[:, 2:]  # a result that is a view

    torch.manual_seed(0)
    one = Sliced()
    two = copy.deepcopy(one)
    with torch.no_grad():
        two.inner.weight[2:] += 0.1
    x = torch.randn(4, 8)
    found = tv.compare(seeded(one, x), seeded(two, x)).differences()
    assert found.rows and not any("view" in row.a.flags for row in found.rows)


def test_a_difference_in_backward_is_told_with_the_line_of_its_forward():
    class Slope(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x, slope):
            ctx.slope = slope
            return x.clone()

        @staticmethod
        def backward(ctx, gradient):
            return gradient * ctx.slope, None

    class Net(nn.Module):
        def __init__(self, slope):
            super().__init__()
            self.inner, self.slope = nn.Linear(8, 2), slope

        def forward(self, x):
            return Slope.apply(torch.sin(self.inner(x)), self.slope)

    torch.manual_seed(0)
    one, two = Net(1.0), Net(2.0)
    two.load_state_dict(one.state_dict())
    x = torch.randn(4, 8)
    found = tv.compare(seeded(one, x), seeded(two, x)).differences()
    line = Net.forward.__code__.co_firstlineno + 1
    assert found.results["output"][1].relative == 0 and found.first.a.phase == "backward"
    lines = {row["line"] for row in found.to_dict()["All operations that differ, in order"]}
    assert any(f"test_report.py:{line} in" in text for text in lines)


def test_an_operation_is_as_far_off_as_the_worst_of_what_it_made():
    class Attend(nn.Module):
        def forward(self, q, k, v):
            return torch.nn.functional.scaled_dot_product_attention(q, k, v)

    torch.manual_seed(0)
    full = [torch.randn(2, 4, 16, 16).mul(0.02).requires_grad_() for _ in "qkv"]
    half = [one.detach().bfloat16().requires_grad_() for one in full]
    found = tv.compare(tv.trace(Attend(), *full), tv.trace(Attend(), *half)).differences()
    row = next(row for row in found.rows if "attention" in row.a.name)
    # its logarithms of sums are a hundred times as large as what it is for
    assert (
        row.relative == pytest.approx(found.results["output"][1].relative, rel=1e-6) and row.relative > 1e-3
    )


def test_the_mean_that_a_normalisation_keeps_is_no_difference_of_its_own():
    torch.manual_seed(0)
    one = nn.Sequential(nn.LayerNorm(64), nn.LayerNorm(64))  # what comes in has no mean
    two = copy.deepcopy(one)
    with torch.no_grad():
        two[0].weight *= 1 + 1e-3
    x = torch.randn(8, 64)
    found = tv.compare(tv.trace(one, x), tv.trace(two, x)).differences()
    assert [row.a.path for row in found.rows] == ["0", "1"] and found.origins == []
    assert [row.name for row in found.input_differences] == ["0.weight"]
    assert all(row.relative < 2e-3 for row in found.rows)


def traced_twice(**options) -> tuple[tv.Trace, tv.Trace]:
    torch.manual_seed(0)
    net, x = nn.Sequential(nn.Linear(3, 4), nn.GELU(), nn.Linear(4, 1)), torch.randn(2, 3)
    return tv.trace(net, x, backward=True, **options), tv.trace(net, x, backward=True, **options)


def test_gradients_from_before_the_run_are_no_difference():
    found = tv.compare(*traced_twice()).differences()
    assert found.rows == [] and all(gap.relative == 0 for _, gap in found.results.values())
    assert len(found.results) == 5
    assert any("`.grad` was not empty before the run of B: 4 gradients" in note for note in found.notes())
    assert not any("run of A" in note for note in found.notes())


def test_both_runs_may_have_added_to_gradients():
    torch.manual_seed(0)
    net, x = nn.Sequential(nn.Linear(3, 4), nn.GELU(), nn.Linear(4, 1)), torch.randn(2, 3)
    _, one, two = (tv.trace(net, x, backward=True) for _ in range(3))
    found = tv.compare(one, two).differences()
    assert found.rows == [] and found.origins == []
    assert all(gap.relative == 0 for _, gap in found.results.values())
    assert all(any(f"run of {which}" in note for note in found.notes()) for which in "AB")


def test_gradients_of_which_the_part_of_the_run_is_not_known_are_marked():
    def clipped(net: nn.Module) -> None:
        net(x).sum().backward()
        nn.utils.clip_grad_norm_(net.parameters(), 1e-3)

    torch.manual_seed(0)
    net, x = nn.Sequential(nn.Linear(3, 4), nn.GELU(), nn.Linear(4, 1)), torch.randn(2, 3)
    other = copy.deepcopy(net)
    other(-x).sum().backward()
    found = tv.compare(tv.trace(lambda: clipped(net)), tv.trace(lambda: clipped(other))).differences()
    assert found.facts()["gradient"].startswith("accumulated into what was there before")
    assert any("both together are shown" in note for note in found.notes())


@pytest.mark.parametrize("when", ["before", "inside"])
def test_gradients_that_were_zeroed_are_not_accumulated(when):
    torch.manual_seed(0)
    net, x = nn.Linear(3, 1), torch.randn(2, 3)
    net(x).sum().backward()

    def step():
        net.zero_grad(set_to_none=False)
        net(x).sum().backward()

    if when == "before":
        net.zero_grad(set_to_none=False)
    one = tv.trace(net, x, backward=True) if when == "before" else tv.trace(step)
    assert not one.gradients().accumulated
    assert one.gradients().layers[0].gradient_norm == pytest.approx(
        float(torch.cat([net.weight.grad.flatten(), net.bias.grad]).norm())
    )


def test_the_flow_is_of_what_the_run_itself_added():
    first, second = (one.gradients() for one in traced_twice())
    assert first.facts()["gradient norm"] == second.facts()["gradient norm"]
    assert [row.gradient_norm for row in first.layers] == [row.gradient_norm for row in second.layers]
    assert "zero_grad()" in str(second) and "zero_grad()" not in str(first)


@pytest.mark.skipif(not HAS_COMPILER, reason="no C++ compiler here for inductor")
def test_a_compiled_run_says_how_to_see_inside():
    torch.manual_seed(0)
    net, x = nn.Sequential(nn.Linear(3, 4), nn.GELU()), torch.randn(2, 3)
    one = tv.trace(net, x)
    compiled = tv.trace(torch.compile(net), x)
    torch._dynamo.reset()
    found = tv.compare(one, compiled).differences()
    assert any("B ran compiled code" in note and 'via="aot"' in note for note in found.notes())
    assert not any("compiled" in note for note in tv.compare(one, one).differences().notes())


@pytest.mark.parametrize("backend", ["eager", "aot_eager"])
def test_a_compiled_model_whose_modules_are_gone_is_compared_operation_by_operation(backend: str) -> None:
    torch.manual_seed(0)
    net = torch.nn.Sequential(torch.nn.Linear(8, 16), torch.nn.GELU(), torch.nn.Linear(16, 4))
    x = torch.randn(3, 8)
    one = tv.trace(net, x, backward=True)
    net.zero_grad()
    try:
        two = tv.trace(torch.compile(net, backend=backend), x, backward=True)
    finally:
        torch._dynamo.reset()
    found = tv.compare(one, two)
    kept = {one.graph.nodes[node].name for node in np.flatnonzero(found.alignment.to_b >= 0).tolist()}
    assert {"addmm", "gelu", "mm", "gelu_backward", "sum"} <= kept
    differences = found.differences()
    assert len(differences.rows) == 0 and not differences.matched.only_a and not differences.matched.only_b
    assert {"output", "0.weight.grad", "2.bias.grad"} <= set(differences.results)


def test_what_was_given_to_both_and_differs_is_named() -> None:
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(8, 8), nn.Tanh(), nn.Linear(8, 2))
    other = copy.deepcopy(net)
    with torch.no_grad():
        other[2].weight[0, 0] += 0.1
    x = torch.randn(3, 8)
    found = tv.compare(tv.trace(net, x), tv.trace(other, 1.01 * x)).differences()
    assert {row.name: row.role for row in found.input_differences} == {
        "input": "input",
        "2.weight": "parameter",
    }
    assert next(
        row for row in found.input_differences if row.name == "input"
    ).distance.relative == pytest.approx(0.01, rel=1e-3)
    assert found.origins == []  # nothing of it is of an operation's own making
    assert found.first.input_error == pytest.approx(0.01, rel=1e-3)
    assert found.facts()["inputs"].startswith("2 tensors not the same before the runs")
    assert "Inputs, parameters and buffers that differ" in str(found)
    assert tv.compare(tv.trace(net, x), tv.trace(net, x)).differences().input_differences == []


def test_an_operation_after_one_that_is_new_is_not_blamed_alone() -> None:
    torch.manual_seed(0)
    one, two = nn.Linear(8, 8), nn.Linear(8, 2)
    x = torch.randn(3, 8)
    before = tv.trace(lambda x: two(one(x)), x)
    after = tv.trace(lambda x: two((one(x) - 100).sqrt()), x)
    found = tv.compare(before, after).differences()
    [row] = found.rewired
    assert row.reads == "another tensor: sqrt (only in B) instead of addmm in one" and found.origins == []
    assert row.input_error == float("inf")  # all of it is NaN
    [row] = tv.compare(after, before).differences().rewired
    assert row.reads == "another tensor: addmm in one instead of sqrt (only in A)"


def test_what_reads_tensors_of_another_shape_is_no_news() -> None:
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(8, 8), nn.Tanh(), nn.Linear(8, 2))
    runs = []
    for batch in (3, 5):
        net.zero_grad()
        runs.append(tv.trace(net, torch.randn(batch, 8), backward=True))
    found = tv.compare(*runs).differences()
    assert [row for row in found.rows if row.a.phase == "backward"] and found.origins == []


def test_what_reads_a_weight_of_another_shape_is_no_news() -> None:
    """A scale for each column and one for all give outputs of the same shape, but cannot be compared themselves."""
    x = torch.randn(3, 8)
    one, two = (tv.trace(lambda x, scale: x * scale, x, torch.full(size, 2.0)) for size in ((8,), (1,)))
    same = tv.compare(one, two).differences()
    assert not same.rows and not same.input_differences
    other = tv.trace(lambda x, scale: x * scale, x, torch.full((1,), 3.0))
    [row] = tv.compare(one, other).differences().rows
    assert row.input_error is None and tv.compare(one, other).differences().origins == []


LABELS = torch.tensor([0, 1, 2, 0])
QUIET = {
    "(root) nll_loss_forward ignore_index: -100 → 3": (
        lambda y: nn.functional.cross_entropy(y, LABELS),
        lambda y: nn.functional.cross_entropy(y, LABELS, ignore_index=3),
    ),
    "(root) clamp min: -50 → -60": (lambda y: y.clamp(-50, 50), lambda y: y.clamp(-60, 50)),
    "(root) masked_fill value: -10000.0 → -inf": (
        lambda y: y.masked_fill(y > 1e9, -1e4),
        lambda y: y.masked_fill(y > 1e9, float("-inf")),
    ),
}
WRITTEN_OTHERWISE = {
    "a dimension from the end": (lambda y: y.softmax(-1).sum((-2, 1)), lambda y: y.softmax(1).sum((0, -1))),
    "another call of the same": (lambda y: y.mean((0, 1)), lambda y: y.mean()),
    "a default that is given": (lambda y: y.topk(2).values, lambda y: y.topk(2, dim=1, largest=True).values),
    "a view": (lambda y: y.view(-1, 6) + 1, lambda y: y.view(2, 6) + 1),
}


def in_short(functions: tuple[Any, Any]) -> str:
    y = torch.randn(4, 3, generator=torch.Generator().manual_seed(0))
    return tv.compare(*(tv.trace(function, y) for function in functions)).differences().in_short()


@pytest.mark.parametrize("change", QUIET)
def test_an_argument_that_shows_in_no_number_is_in_the_sentence(change: str) -> None:
    assert in_short(QUIET[change]) == f"{SAME}; what changed: {change}"


@pytest.mark.parametrize("name", WRITTEN_OTHERWISE)
def test_what_is_only_written_in_another_way_is_not(name: str) -> None:
    assert in_short(WRITTEN_OTHERWISE[name]) == SAME


def test_weights_that_differ_and_show_in_no_result_are_in_the_sentence() -> None:
    table = nn.Embedding(10, 4)
    other = copy.deepcopy(table)
    with torch.no_grad():
        other.weight[7] = 100 * table.weight[7]
    rows = torch.tensor([1, 2])
    found = tv.compare(tv.trace(table, rows), tv.trace(other, rows))
    report = found.differences()
    assert not report.same and report.rows == []
    assert report.in_short().startswith(f"{UNSEEN}: most of all weight (")
    assert found.differences(tolerance=1000).in_short() == SAME
    twice = tv.compare(
        tv.trace(lambda x: table(x).relu(), rows), tv.trace(lambda x: other(x).clamp(0, 1e9), rows)
    )
    assert UNSEEN in twice.differences().in_short()
