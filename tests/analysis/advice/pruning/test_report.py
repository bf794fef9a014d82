"""What can be cut out of a model, and the model without it."""

from __future__ import annotations

import copy

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn import functional as F

import torch_vis as tv
from tests.kit.traced import NAMES, traced
from tests.kit.unknown_operator import opaque
from tests.zoo_models.torchvision_ops import declare_torchvision_ops
from torch_vis.analysis.advice.pruning.dependency import Dependencies
from torch_vis.analysis.advice.pruning.surgery import without
from torch_vis.analysis.advice.pruning.trial import OTHER, PruningTrials
from torch_vis.analysis.compare.numeric.tensor_distance import distance_of
from torch_vis.errors import UsageError

declare_torchvision_ops()


class UNet(nn.Module):
    """Skips by concatenation, transposed convolutions, depthwise filters, a flattened head."""

    def __init__(self):
        super().__init__()
        self.a, self.b = nn.Conv2d(3, 8, 3, padding=1), nn.Conv2d(8, 12, 3, stride=2, padding=1)
        self.norm, self.up = nn.BatchNorm2d(12), nn.ConvTranspose2d(12, 6, 2, stride=2)
        self.deep = nn.Conv2d(14, 14, 3, padding=1, groups=14)
        self.mix, self.head = nn.Conv2d(14, 5, 1), nn.Linear(5 * 64, 10)

    def forward(self, x):
        a = F.relu(self.a(x))
        up = self.up(F.relu(self.norm(self.b(a))))
        mixed = self.mix(self.deep(torch.cat([a, up], 1)))
        return self.head(mixed.flatten(1))


def resnet():
    from torchvision.models import resnet18

    return resnet18()


def mobilenet():
    from torchvision.models import mobilenet_v2

    return mobilenet_v2()


def densenet():
    from torchvision.models import DenseNet

    return DenseNet(8, (2, 2), 16)


def gated():
    class Gated(nn.Module):
        def __init__(self):
            super().__init__()
            self.inner, self.outer = nn.Linear(6, 16), nn.Linear(8, 3)

        def forward(self, x):
            one, two = self.inner(x).chunk(2, dim=-1)
            return self.outer(torch.tanh(one) * two)

    return Gated()


CASES = {
    "unet": (UNet, (2, 3, 8, 8)),
    "resnet": (resnet, (2, 3, 64, 64)),
    "mobilenet": (mobilenet, (2, 3, 64, 64)),
    "densenet": (densenet, (2, 3, 64, 64)),
    "gated": (gated, (4, 6)),
}


@pytest.mark.parametrize("name", CASES)
def test_cutting_what_is_zero_changes_nothing(name):
    """The proof of the dependencies: units that are zero wherever they live can go, and the output does not notice."""
    torch.manual_seed(0)
    make, shape = CASES[name]
    model, x = make().eval(), torch.randn(*shape)
    with torch.no_grad():
        dependencies = Dependencies(tv.trace(model, x, hold=False).graph)
        groups = [group for group in dependencies.groups if not group.locked and len(group.units) > 1]
        assert groups
        dead = np.concatenate([group.units[:: max(2, len(group.units) // 3)] for group in groups])
        kept = dependencies.kept(dead)
        for path, parameter in model.named_parameters():
            for number, mask in enumerate(kept.get(path, ())):
                parameter.index_fill_(number, torch.as_tensor(np.flatnonzero(~mask)), 0.0)
    before = model(x)
    exact = without(model, kept)
    assert distance_of([before], [exact(x)]).relative < 1e-5
    assert sum(p.numel() for p in exact.parameters()) < sum(p.numel() for p in model.parameters())


@pytest.mark.parametrize("name", CASES)
def test_every_cut_is_what_zeroing_gives(name):
    torch.manual_seed(0)
    make, shape = CASES[name]
    found = tv.advise.pruning(make(), torch.randn(*shape))
    assert found.groups and not any(cut.problem for cut in found.groups)
    assert all(cut.error is not None and cut.error < 1e-5 for cut in found.groups)
    assert found.facts()["checked"].startswith(f"{len(found.groups)} of {len(found.groups)} ")


def test_the_smaller_model_runs_trains_and_tells_its_sizes():
    torch.manual_seed(0)
    model, x = UNet(), torch.randn(2, 3, 8, 8)
    found = tv.advise.pruning(model, x, ratio=0.5)
    assert found.model.training and found.after["parameters"] < 0.6 * found.before["parameters"]
    assert found.after["flops"] < 0.6 * found.before["flops"]
    assert found.model.a.out_channels == found.model.a.weight.shape[0] == 4
    assert found.model.norm.num_features == len(found.model.norm.running_mean) == 6
    assert found.model.up.in_channels == 6 and found.model.up.weight.shape[:2] == (6, 3)
    assert found.model.deep.groups == found.model.deep.in_channels == 7
    found.model(x).sum().backward()
    assert all(p.grad is not None and p.grad.shape == p.shape for p in found.model.parameters())


def test_the_lightest_units_go():
    model = nn.Sequential(nn.Linear(4, 6), nn.ReLU(), nn.Linear(6, 2))
    with torch.no_grad():
        for unit, scale in enumerate((5.0, 0.01, 3.0, 0.02, 4.0, 0.03)):
            model[0].weight[unit] = scale
            model[0].bias[unit] = scale
            model[2].weight[:, unit] = scale
    found = tv.advise.pruning(model, torch.ones(1, 4), ratio=0.5)
    assert torch.equal(found.model[0].bias, torch.tensor([5.0, 3.0, 4.0]))
    assert found.groups[0].share < 1e-4 and found.output.relative < 0.01


def test_what_takes_its_size_for_granted_is_left_whole():
    class Stubborn(nn.Module):
        def __init__(self):
            super().__init__()
            self.a, self.b, self.c = nn.Linear(4, 6), nn.Linear(6, 8), nn.Linear(8, 2)

        def forward(self, x):
            return self.c(F.relu(self.b(F.relu(self.a(x).reshape(-1, 6)))))

    found = tv.advise.pruning(Stubborn(), torch.ones(2, 4))
    problems = {cut.name: cut.problem for cut in found.groups}
    assert "shape" in problems["a.weight"] and not problems["b.weight"]
    assert found.model.a.out_features == 6 and found.model.b.out_features < 8


def test_heads_and_outputs_are_locked_with_reasons():
    layer = nn.TransformerEncoderLayer(16, 4, 32, batch_first=True)
    found = tv.advise.pruning(nn.Sequential(layer, nn.Linear(16, 5)).train(), torch.randn(2, 3, 16))
    reasons = {group.locked for group in found.locked}
    assert "it is the run's output" in reasons
    assert any(cut.name == "0.linear1.weight" and not cut.problem for cut in found.groups)
    assert "Not to be cut" in str(found)


def test_tied_weights_stay_tied():
    class Tied(nn.Module):
        def __init__(self):
            super().__init__()
            self.embedding, self.head = nn.Embedding(20, 8), nn.Linear(8, 20, bias=False)
            self.head.weight = self.embedding.weight

        def forward(self, ids):
            return self.head(torch.tanh(self.embedding(ids)))

    found = tv.advise.pruning(Tied(), torch.tensor([[1, 2]]), ratio=0.5)
    assert found.model.head.weight is found.model.embedding.weight
    assert found.model.head.weight.shape == (20, 4) and found.model.head.in_features == 4


def test_the_model_is_left_alone():
    model, x = UNet(), torch.randn(2, 3, 8, 8)
    before, state = copy.deepcopy(model.state_dict()), torch.get_rng_state()
    found = tv.advise.pruning(model, x)
    assert model.training and torch.equal(state, torch.get_rng_state())
    assert all(torch.equal(before[name], value) for name, value in model.state_dict().items())
    assert len(found.figure().data) == 1 and len(found.to_pandas()) == len(found.groups)


def test_the_figure_names_groups_and_of_many_those_that_matter_most():
    torch.manual_seed(0)
    model = nn.Sequential(
        *[part for _ in range(44) for part in (nn.Linear(6, 6), nn.ReLU())], nn.Linear(6, 2)
    )
    found = tv.advise.pruning(nn.Sequential(*model[:6], model[-1]), torch.randn(2, 6), ratio=0.5)
    assert len(found.groups) == 3
    shown = found.figure()
    assert [name.split(",")[0] for name in shown.layout.yaxis.ticktext] == [cut.name for cut in found.groups]
    assert [*shown.data[0].x] == [cut.output.relative for cut in found.groups]
    many = tv.advise.pruning(model, torch.randn(2, 6), ratio=0.5, each=False)
    chart = many.charts()["groups"]
    assert len(many.groups) == 44 and len(chart.series[0].x) == 40 and "40 of 44" in chart.title
    most = sorted((cut.parameters for cut in many.groups), reverse=True)[:40]
    assert sorted(chart.series[0].y, reverse=True) == most


@pytest.mark.parametrize("name", NAMES)
def test_coupling_is_found_zoo_wide(name):
    dependencies = Dependencies(traced(name).graph)
    for group in dependencies.groups:
        assert len(group.units) and all(dependencies.ids[parameter] for parameter, _ in group.places)


def test_bad_input():
    x = torch.ones(1, 4)
    with pytest.raises(UsageError, match="between 0 and 1, not 2"):
        tv.advise.pruning(nn.Linear(4, 4), x, ratio=2)
    with pytest.raises(UsageError, match="it has no parameters"):
        tv.advise.pruning(nn.ReLU(), x)
    with pytest.raises(UsageError, match="takes a module, not function"):
        tv.advise.pruning(lambda x: x, x)
    with pytest.raises(RuntimeError, match="shapes cannot be multiplied"):
        tv.advise.pruning(nn.Linear(4, 4), torch.ones(1, 5))


def test_figures_that_leave_out_unknown_work_are_lower_bounds_without_a_ratio():
    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.first, self.last = nn.Linear(8, 16), nn.Linear(16, 4)

        def forward(self, x):
            return self.last(self.first(opaque(x)).relu())

    found = tv.advise.pruning(Net(), torch.randn(64, 8), ratio=0.5, hardware="T4")
    for name in ("time, predicted", "FLOPs"):
        told = found.facts()[name]
        assert told.count("≥") == 2 and "%" not in told
    assert "%" in found.facts()["parameters"]


def test_time_is_predicted_for_hardware_that_is_named():
    model = nn.Sequential(nn.Linear(512, 4096), nn.ReLU(), nn.Linear(4096, 512))
    found = tv.advise.pruning(model, torch.randn(64, 512), ratio=0.5, hardware="T4")
    assert found.after["predicted_ns"] < found.before["predicted_ns"] and "time, predicted" in str(found)


def test_what_a_predicted_time_waits_for_is_told_beside_what_kernels_take():
    def pruned(width, batch):
        model = nn.Sequential(nn.Linear(width, width), nn.ReLU(), nn.Linear(width, 8))
        return tv.advise.pruning(model, torch.randn(batch, width), ratio=0.5, hardware="A100")

    small, large = pruned(64, 4), pruned(1024, 4096)
    assert small.facts()["time, predicted"].endswith("waiting for the host")
    assert any("waits for the host" in note for note in small.notes())
    assert large.facts()["time, predicted"].endswith("waiting for the device")
    assert not any("waits for the host" in note for note in large.notes())
    for found in (small, large):
        assert found.after["kernels_ns"] < found.before["kernels_ns"] <= found.before["predicted_ns"]
        assert found.facts()["of it kernels"].endswith("%)")


def test_what_is_not_checked_is_named_with_the_reason():
    model = nn.Sequential(nn.Linear(4, 12), nn.LayerNorm(12), nn.Linear(12, 8), nn.ReLU(), nn.Linear(8, 2))
    found = tv.advise.pruning(model, torch.randn(3, 4))
    assert found.facts()["checked"].startswith("1 of 2 ")
    (note,) = (note for note in found.notes() if "not checked" in note)
    assert "0.weight" in note and "2.weight" not in note and "normalised together" in note
    untried = tv.advise.pruning(model, torch.randn(3, 4), each=False)
    assert any("each=False" in note for note in untried.notes())
    assert found.facts()["groups"].startswith("2 can be cut, 2 must stay whole")
    assert "must stay whole, for 2 reasons: see 'Not to be cut'" in found.facts()["groups"]


class Branch(nn.Module):
    """A branch that begins at zero beside a way around it, as in networks that start as the identity."""

    def __init__(self):
        super().__init__()
        self.first, self.inner, self.outer = nn.Linear(8, 12), nn.Linear(12, 16), nn.Linear(16, 12)
        self.scale, self.last = nn.Parameter(torch.full((12,), 1e-6)), nn.Linear(12, 3)

    def forward(self, x):
        x = F.relu(self.first(x))
        return self.last(x + self.scale * self.outer(F.relu(self.inner(x))))


def blank():
    model = nn.Sequential(nn.Linear(6, 16), nn.ReLU(), nn.Linear(16, 8), nn.ReLU(), nn.Linear(8, 3))
    nn.init.zeros_(model[4].weight)
    nn.init.zeros_(model[4].bias)
    return model


def image_transformer():
    from torchvision.models import VisionTransformer

    return VisionTransformer(32, 8, 2, 4, 32, 64, num_classes=10)  # its last layer begins at zero


HIDING = {
    "a last layer of zeros": (blank, (4, 6), 2, {"0.weight", "2.weight"}),
    "torchvision's transformer": (image_transformer, (2, 3, 32, 32), 4, None),
    "a branch of small scale": (Branch, (4, 8), 2, {"inner.weight"}),
}


@pytest.mark.parametrize("name", HIDING)
def test_what_the_weights_hide_is_checked_with_others(name):
    torch.manual_seed(0)
    make, shape, checked, hidden = HIDING[name]
    model, x = make(), torch.randn(*shape)
    state = copy.deepcopy(model.state_dict())
    found = tv.advise.pruning(model, x, ratio=0.5)
    cuts = [cut for cut in found.groups if not cut.problem]
    assert len(cuts) == checked and all(cut.error is not None and not cut.unchecked for cut in cuts)
    assert {cut.name for cut in cuts if cut.by} == (hidden or {cut.name for cut in cuts})
    assert any("checked by a copy with random numbers" in note for note in found.notes())
    assert all(torch.equal(state[key], value) for key, value in model.state_dict().items())
    assert torch.equal(
        found.model.state_dict().popitem()[1], state.popitem()[1]
    )  # its own weights, not those
    if name != "a branch of small scale":  # an output of zeros
        assert found.output is None and all(cut.output is None for cut in cuts)
        assert found.facts()["output"].startswith("is zero")
        assert found.figure() is not None


def test_a_wrong_cut_is_seen_behind_a_layer_of_zeros():
    """The check can fail: columns of other units than the rows, in a model whose output is zero whatever is cut."""
    torch.manual_seed(0)
    bench = PruningTrials(blank(), (torch.randn(4, 6),), {}, None)
    group = next(group for group in bench.dependencies.groups if ("0.weight", 0) in group.places)
    units = bench.lightest(group, 0.5)
    assert not bench.cut_group(group, units).problem
    columns = bench.dependencies.ids["2.weight"][1]
    bench.dependencies.unit[columns] = np.roll(bench.dependencies.unit[columns], 1)
    assert bench.cut_group(group, units).problem == OTHER


def test_units_that_no_output_depends_on_are_not_checked():
    class Unread(nn.Module):
        def __init__(self):
            super().__init__()
            self.side, self.reader, self.last = nn.Linear(6, 16), nn.Linear(16, 4), nn.Linear(6, 3)

        def forward(self, x):
            self.reader(F.relu(self.side(x)))
            return self.last(x)

    found = tv.advise.pruning(Unread(), torch.randn(4, 6))
    side, reader = found.groups  # of one, a module inside has something to say; the other is read by nobody
    assert side.name == "side.weight" and side.error < 1e-6 and "modules give on the way" in side.by
    assert reader.error is None and "does not depend on them" in reader.unchecked
    assert found.facts()["checked"].startswith("1 of 2 ")
    assert any("not checked" in note and "reader.weight" in note for note in found.notes())


def test_scores_are_checked_where_the_output_is_what_they_chose():
    class Chosen(nn.Module):
        def __init__(self):
            super().__init__()
            self.layers = nn.Sequential(nn.Linear(6, 16), nn.ReLU(), nn.Linear(16, 4))

        def forward(self, x):
            return self.layers(x).argmax(-1)

    torch.manual_seed(0)
    bench = PruningTrials(Chosen(), (torch.randn(4, 6),), {}, None)
    (group,) = (group for group in bench.dependencies.groups if ("layers.0.weight", 0) in group.places)
    units = bench.lightest(group, 0.2)
    tried = bench.cut_group(group, units)
    assert tried.by == "what modules give on the way" and tried.error < 1e-6
    columns = bench.dependencies.ids["layers.2.weight"][1]
    bench.dependencies.unit[columns] = np.roll(bench.dependencies.unit[columns], 1)
    assert bench.cut_group(group, units).problem == OTHER


def test_an_operation_without_a_rule_keeps_what_touches_it_whole():
    class Sorted(nn.Module):
        def __init__(self):
            super().__init__()
            self.first, self.second, self.last = nn.Linear(6, 16), nn.Linear(16, 8), nn.Linear(8, 3)

        def forward(self, x):
            return self.last(F.relu(self.second(self.first(x).sort(-1).values)))

    found = tv.advise.pruning(Sorted(), torch.randn(4, 6))
    assert [cut.name for cut in found.groups] == ["second.weight"]
    assert "sort has no rule" in str(found)
    alone = tv.advise.pruning(nn.Sequential(nn.Linear(6, 16)), torch.randn(4, 6))
    assert not alone.groups and alone.after["parameters"] == alone.before["parameters"]
    assert "0 can be cut" in alone.facts()["groups"] and "it is the run's output" in str(alone)
    assert [*alone.facts()] == ["groups"] and any(
        "nothing in this model can be cut" in n for n in alone.notes()
    )


def test_a_group_too_small_for_the_ratio_is_remarked():
    model = nn.Sequential(nn.Linear(4, 2), nn.ReLU(), nn.Linear(2, 10), nn.ReLU(), nn.Linear(10, 2))
    (note,) = (n for n in tv.advise.pruning(model, torch.randn(3, 4), ratio=0.3).notes() if "ratio" in n)
    assert "ratio of 0.3" in note and "1 of 2 units of 0.weight" in note and "2.weight" not in note
    even = tv.advise.pruning(model, torch.randn(3, 4), ratio=0.5)
    assert not any("ratio" in note for note in even.notes())


class Flat(nn.Module):
    """Two layers whose weights lie in one piece of memory, which the program reads as a whole first."""

    def __init__(self) -> None:
        super().__init__()
        self.one, self.two = nn.Linear(4, 6), nn.Linear(6, 2)
        self.memory = torch.cat([layer.weight.detach().view(-1) for layer in (self.one, self.two)])
        for layer, part in zip((self.one, self.two), self.memory.split([24, 12])):
            layer.weight = nn.Parameter(part.view_as(layer.weight))

    def __deepcopy__(self, memo: dict[int, object]) -> Flat:
        made = Flat()
        made.load_state_dict(self.state_dict())
        return made

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        nothing = 0.0 * self.memory.sum()
        return self.two(self.one(x).relu()) + nothing


def test_memory_that_several_weights_lie_in_is_none_of_them() -> None:
    torch.manual_seed(0)
    found = tv.advise.pruning(Flat(), torch.randn(3, 4))
    assert [group.places for group in found.groups] == [
        (("one.bias", 0), ("one.weight", 0), ("two.weight", 1))
    ]
    assert "1 of 1 give what the whole model gives" in str(found)
