"""Norms, NaN and dead units of a run, found by repeating it."""

from __future__ import annotations

import json

import pytest
import torch
from torch import nn

import torch_vis as tv
from tests.kit.labels import written
from tests.zoo import ZOO, close_process_group
from torch_vis.analysis.gradients.tensor_stats import contents
from torch_vis.errors import TensorsMissing, UsageError
from torch_vis.replay.replay import replay_context, same_bits
from torch_vis.replay.stepper import Stepper


def small(*layers: nn.Module) -> tv.Trace:
    torch.manual_seed(0)
    return tv.trace(nn.Sequential(*layers), torch.randn(4, 3), backward=True)


def close(a: float | None, b: float) -> bool:
    return a == b or (a is not None and abs(a - b) <= 1e-5 * max(abs(b), 1e-30))


def test_norms_are_those_of_the_run():
    t = small(nn.Linear(3, 8), nn.Dropout(0.5), nn.Linear(8, 2))
    kept = t.run(keep="all").kept
    norm = t.gradients().columns["norm"]
    seen = 0
    for node in t.graph.nodes:
        name = f"{node.path}/{node.name}#{node.index}"
        if norm[node.index] is not None and len(node.outputs) == 1:
            assert close(norm[node.index], float(kept[name].norm())), name
            seen += 1
    assert seen > 10


def test_layers_have_the_norms_of_their_gradients():
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(3, 8), nn.ReLU(), nn.Linear(8, 2))
    flow = tv.trace(model, torch.randn(4, 3), backward=True).gradients()
    for layer in flow.layers:
        module = model.get_submodule(layer.path)
        norm = sum(float(p.grad.norm()) ** 2 for p in module.parameters()) ** 0.5
        weight = sum(float(p.detach().norm()) ** 2 for p in module.parameters()) ** 0.5
        assert close(layer.gradient_norm, norm) and close(layer.weight_norm, weight)
    assert [layer.path for layer in flow.layers] == ["0", "2"]


def test_an_optimizer_step_leaves_the_weights_of_before():
    model = nn.Linear(3, 2)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.5)

    def step(x: torch.Tensor) -> None:
        model(x).sum().backward()
        optimizer.step()

    before = sum(float(p.detach().norm()) ** 2 for p in model.parameters()) ** 0.5
    with tv.record(model) as t:
        step(torch.ones(1, 3))
    assert close(t.gradients().layers[0].weight_norm, before)


def test_what_vanishes_is_told_from_what_explodes():
    layers = [layer for _ in range(20) for layer in (nn.Linear(3, 3), nn.Sigmoid())]
    verdicts = [layer.verdict for layer in small(*layers).gradients().layers]
    assert verdicts[0] == "vanishing" and verdicts[-1] == "" and "exploding" not in verdicts
    steep = [nn.Linear(3, 3, bias=False) for _ in range(8)]
    for layer in steep:
        nn.init.eye_(layer.weight)
        layer.weight.data *= 30
    verdicts = [layer.verdict for layer in small(*steep).gradients().layers]
    assert set(verdicts) == {"exploding"}  # all alike, and far beyond the weights themselves
    uneven = [nn.Linear(3, 3, bias=False) for _ in range(8)]
    for place, layer in enumerate(uneven):
        nn.init.eye_(layer.weight)
        layer.weight.data *= 0.01 if place < 4 else 100.0
    verdicts = [layer.verdict for layer in small(*uneven).gradients().layers]
    assert verdicts[0] == "exploding" and verdicts[-1] == ""


def test_nan_is_found_where_it_was_born():
    class Wrong(nn.Module):
        def forward(self, x):
            return torch.sqrt(x - 100).exp()

    flow = small(nn.Linear(3, 2), Wrong(), nn.ReLU()).gradients()
    assert flow.nan_origin is not None and (flow.nan_origin.name, flow.nan_origin.path) == ("sqrt", "1")
    assert "sqrt" in flow.facts()["first NaN"] and "test_tensor_stats.py" in flow.facts()["first NaN"]


def test_an_infinite_mask_is_no_nan():
    class Masked(nn.Module):
        def forward(self, x):
            return x.masked_fill(torch.tensor([True, False, False]), float("-inf")).softmax(-1)

    flow = small(nn.Linear(3, 3), Masked()).gradients()
    assert flow.nan_origin is None and flow.columns["infs"].total() == 4


def test_dead_units_are_counted_by_channel():
    linear, convolution = nn.Linear(3, 8), nn.Conv2d(1, 4, 1)
    with torch.no_grad():
        linear.weight[:3] = 0
        linear.bias[:3] = -1
        convolution.weight[1] = 0
        convolution.bias[1] = -1
        linear.bias[3:] += 10
        convolution.weight[0] = 1
    flow = small(linear, nn.ReLU(), nn.Unflatten(1, (1, 2, 4)), convolution, nn.ReLU()).gradients()
    by_path = {row.path: row for row in flow.rectifiers}
    assert (by_path["1"].units, by_path["1"].dead) == (8, 3)
    assert by_path["4"].units == 4 and by_path["4"].dead >= 1


def test_figures_stay_beside_the_trace(tmp_path):
    t = small(nn.Linear(3, 2))
    t = t.with_metrics(t.gradients())
    t.save(tmp_path / "t.tvz")
    again = tv.load(tmp_path / "t.tvz")
    assert again.metrics["norm"][:] == t.metrics["norm"][:]


def test_two_runs_take_turns_with_random_streams_of_their_own():
    t = small(nn.Linear(3, 64), nn.Dropout(0.5), nn.Dropout(0.5))
    before = torch.get_rng_state()
    one, two = Stepper(t.graph, t.kept), Stepper(t.graph, t.kept)
    with replay_context(one.plan.generators):
        for here, there in zip(one.steps(), two.steps(), strict=True):
            for a, b in zip(one.outputs(here), two.outputs(there), strict=True):
                assert here == there and (
                    a.numel() == 0 or same_bits(a, b) or t.graph.nodes[here].name == "empty_like"
                )
    assert torch.equal(before, torch.get_rng_state())


def test_it_says_what_it_cannot_do(tmp_path):
    model, x = nn.Linear(3, 2), torch.ones(1, 3)
    with pytest.raises(UsageError, match="no backward pass"):
        tv.trace(model, x).gradients()
    t = tv.trace(model, x, backward=True)
    with torch.no_grad():
        model.weight += 1
    with pytest.raises(TensorsMissing, match="weight"):
        t.gradients()
    with pytest.raises(TensorsMissing, match="holds no tensors"):
        tv.trace(model, x, backward=True, hold=False).gradients()


def test_a_second_backward_does_not_spoil_the_first():
    model, x = nn.Sequential(nn.BatchNorm1d(3), nn.Linear(3, 2)), torch.randn(4, 3)
    t = tv.trace(model, x, backward=True)
    wanted = t.gradients().layers
    model(x).sum().backward()  # adds to .grad, moves the running statistics
    assert t.gradients().layers == wanted


@pytest.mark.parametrize("name", [name for name in ZOO if name != "numpy_write"])  # no replay sees that write
def test_results_have_their_norms_zoo_wide(name):
    case = ZOO[name]
    model, args, kwargs = case.make()
    try:
        t = tv.trace(model, *args, kwargs=kwargs, backward=case.backward)
        try:
            norm = contents(t.graph, t.kept)["norm"]
        except TensorsMissing:
            assert any(
                r.device.type == "meta" or type(r).__name__ == "FakeTensor" for r in t.kept.results.values()
            )
            return
        for number, result in enumerate(t.graph.outcomes):
            held = t.kept.results[number]
            producer = int(t.graph.value_producer[result.value.index])
            whole = len(result.sources()) == 1  # one operation wrote all of it
            if (
                result.kind == "output"
                and whole
                and producer >= 0
                and len(t.graph.nodes[producer].outputs) == 1
            ):
                if (
                    norm[producer] is not None
                    and held.is_floating_point()
                    and held.layout is torch.strided
                    and not held.is_nested
                ):
                    wanted = float(held.detach().double().norm())
                    assert close(norm[producer], wanted) or wanted != wanted
    finally:
        close_process_group()


def test_nan_that_came_in_is_not_born():
    model, x = nn.Sequential(nn.Linear(3, 3), nn.Linear(3, 2)), torch.ones(2, 3)
    x[0, 0] = float("nan")
    flow = tv.trace(model, x, backward=True).gradients()
    assert (
        flow.nan_origin is None
        and flow.nan_inputs == ["input"]
        and "in input" in flow.facts()["NaN before the run"]
    )


def test_nan_born_in_backward_is_told_with_the_line_to_mend():
    class Root(nn.Module):
        def forward(self, x):
            return (x * 0).sqrt()  # whose slope at zero is infinite

    flow = small(nn.Linear(3, 3), Root()).gradients()
    line = Root.forward.__code__.co_firstlineno + 1
    assert flow.nan_origin.phase == "backward" and flow.nan_origin.site.line != line
    assert f"test_tensor_stats.py:{line} in" in flow.facts()["first NaN"]
    assert "(backward of " in flow.facts()["first NaN"]


def test_an_infinity_that_has_nothing_to_do_with_the_nan_is_not_blamed():
    class Apart(nn.Module):
        def forward(self, x):
            mask = torch.zeros(3).masked_fill(torch.tensor([True, False, True]), float("-inf"))
            return torch.softmax(x + mask, -1), (-x.abs() - 1).log()

    x = torch.randn(4, 3, requires_grad=True)
    flow = tv.trace(Apart(), x, backward=True).gradients()
    assert flow.nan_origin.name == "log" and flow.infinite is None and "cause of NaN" not in flow.facts()


def test_the_infinity_that_nan_came_of_is_named():
    class Divides(nn.Module):
        def __init__(self):
            super().__init__()
            self.inner = nn.Linear(3, 3)

        def forward(self, x):
            h = self.inner(x)
            return self.inner(h / (h - h).detach())

    flow = small(Divides()).gradients()
    assert flow.infinite is not None and flow.infinite.name == "div" and "div" in flow.facts()["cause of NaN"]


@pytest.mark.parametrize("what", ["weight", "input"])
def test_the_infinity_that_came_in_and_that_nan_came_of_is_named(what):
    model, x = nn.Linear(3, 2), torch.randn(4, 3)
    with torch.no_grad():
        (model.weight if what == "weight" else x)[0, 0] = float("inf")
        model.weight[1, 0] = -1.0
    flow = tv.trace(model, x, loss=lambda y: (y - y.flip(-1)).sum()).gradients()
    assert flow.nan_origin is not None and flow.infinite_inputs == [what] and flow.infinite is None
    assert flow.facts()["cause of NaN"] == f"infinity, which was in {what}"
    assert flow.nan_inputs == []


def test_an_infinity_that_came_in_and_one_that_was_made_are_both_named():
    class Both(nn.Module):
        def __init__(self):
            super().__init__()
            self.scale = nn.Parameter(torch.tensor([1.0, float("inf"), 1.0]))

        def forward(self, x):
            return (x.abs() + 1) * self.scale - 1 / (x * 0)

    flow = tv.trace(Both(), torch.ones(2, 3), backward=True).gradients()
    assert flow.infinite_inputs == ["scale"] and flow.infinite.name == "reciprocal"
    told = flow.facts()["cause of NaN"]
    assert told.startswith("infinity, which was in scale and first appeared at reciprocal")


def test_an_infinite_mask_that_came_in_is_not_blamed_for_a_nan_made_later():
    class Masked(nn.Module):
        def __init__(self):
            super().__init__()
            self.inner = nn.Linear(3, 3)
            self.register_buffer("mask", torch.tensor([0.0, float("-inf"), 0.0]))

        def forward(self, x):
            return (self.inner(x) + self.mask).softmax(-1) @ (-x.abs() - 1).log().T

    flow = tv.trace(Masked(), torch.randn(4, 3), backward=True).gradients()
    assert flow.nan_origin.name == "log" and flow.infinite_inputs == [] and "cause of NaN" not in flow.facts()


def test_gradients_that_are_infinite_without_nan_are_told_where_from():
    model = nn.Linear(3, 1)
    with torch.no_grad():
        model.weight[0] = torch.tensor([float("inf"), 1.0, 1.0])
    first = nn.Linear(3, 3)
    with torch.no_grad():
        first.weight.abs_()
        first.bias.abs_()
    flow = tv.trace(nn.Sequential(first, model), torch.ones(2, 3), backward=True).gradients()
    assert flow.nan_origin is None and {row.path: row.verdict for row in flow.layers}["0"] == "exploding"
    assert flow.facts()["infinity"] == "was in 1.weight"


def test_frozen_layers_and_layers_that_all_explode_are_told():
    frozen = nn.Linear(3, 3)
    frozen.weight.requires_grad_(False)
    frozen.bias.requires_grad_(False)
    assert [layer.verdict for layer in small(frozen, nn.Linear(3, 2)).gradients().layers] == [
        "no gradient",
        "",
    ]
    steep = [nn.Linear(3, 3, bias=False) for _ in range(12)]
    for layer in steep:
        nn.init.normal_(layer.weight, std=30.0)
    assert {layer.verdict for layer in small(*steep).gradients().layers} == {"exploding"}


def test_layers_without_a_gradient_have_their_parameters_and_the_reason():
    class Parts(nn.Module):
        def __init__(self):
            super().__init__()
            self.trained, self.frozen = nn.Linear(3, 4), nn.Linear(4, 4)
            self.cut, self.partly, self.unused = nn.Linear(4, 2), nn.Linear(4, 2), nn.Linear(3, 3)
            self.frozen.requires_grad_(False)
            self.partly.weight.requires_grad_(False)

        def forward(self, x):
            h = self.frozen(self.trained(x))
            return self.partly(h) + self.cut(h).detach()

    flow = tv.trace(Parts(), torch.randn(5, 3), backward=True).gradients()
    rows = {row.path: (row.elements, row.verdict, row.reason) for row in flow.layers}
    assert rows == {
        "trained": (16, "", ""),
        "frozen": (20, "no gradient", "frozen"),
        "cut": (10, "no gradient", "the loss does not depend on it"),
        "partly": (10, "", ""),
        "unused": (12, "no gradient", "never ran"),
    }
    partly = next(row for row in flow.layers if row.path == "partly")
    assert partly.rms == pytest.approx(partly.gradient_norm / 2**0.5)  # of the two elements that have one
    told = flow.facts()["no gradient"]
    assert "unused (never ran)" in told and "frozen (frozen)" in told
    assert "no parameter was given a gradient" not in str(flow)


@pytest.mark.parametrize("renderer", ["plotly", "matplotlib"])
def test_the_figure_names_the_layers(renderer):
    model = nn.Sequential(nn.Linear(3, 4), nn.ReLU(), nn.Linear(4, 1))
    figure = tv.trace(model, torch.randn(2, 3), backward=True).gradients().figure(renderer)
    assert written(figure, "x") == ["0 Linear", "2 Linear"]


@pytest.mark.parametrize("renderer", ["plotly", "matplotlib"])
def test_the_figure_of_a_deep_stack_has_a_line_for_each_kind_of_layer(renderer):
    class Layer(nn.Module):
        def __init__(self):
            super().__init__()
            self.norm, self.up, self.down = nn.LayerNorm(4), nn.Linear(4, 8), nn.Linear(8, 4)

        def forward(self, x):
            return x + self.down(self.up(self.norm(x)).relu())

    model = nn.Sequential()
    model.add_module("embed", nn.Linear(4, 4))
    model.add_module("layers", nn.Sequential(*(Layer() for _ in range(40))))
    torch.manual_seed(0)
    figure = tv.trace(model, torch.randn(2, 4), backward=True).gradients().figure(renderer)
    series = figure.data if renderer == "plotly" else figure.axes[0].lines
    names = [one.name if renderer == "plotly" else one.get_label() for one in series]
    assert names == ["norm", "up", "down", "others"]
    assert written(figure, "x")[:3] == ["layers.0", "layers.2", "layers.4"]
    if renderer == "plotly":
        assert series[1].hovertext[7].startswith("layers.7.up<br>")


def test_dead_units_are_told_with_operator_line_and_numbers() -> None:
    def step(x: torch.Tensor) -> torch.Tensor:
        return torch.relu(x).sum()

    shift = torch.ones(30, requires_grad=True)
    x = torch.ones(2, 30)
    x[:, 3:28] = -5
    flow = tv.trace(lambda x: step(x + shift), x, backward=True).gradients()
    (row,) = flow.to_dict()["Units that are stuck for the whole batch"]
    assert row["operator"] == "relu" and row["line"].endswith(".step") and row["dead"] == 25
    assert list(row["dead_units"]) == list(range(3, 28)) == json.loads(json.dumps(row["dead_units"]))
    text = flow.table(width=400)
    assert "3, 4, 5" in text and "21, 22 and 5 more" in text
    assert max(map(len, flow.table(width=100).splitlines())) <= 100
