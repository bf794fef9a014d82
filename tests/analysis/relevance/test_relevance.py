"""Relevance: every rule hands on what it was given, and whole models bring it back to their inputs."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn import functional as F

import torch_vis as tv
from tests.zoo import ZOO, declare_torchvision_ops
from torch_vis import DLBacktrace
from torch_vis.errors import NoMatch, TensorsMissing, UsageError

declare_torchvision_ops()


class Calls(nn.Module):
    """A function of two inputs and its weights."""

    def __init__(self, function: Callable[..., Any], *weights: tuple[int, ...]) -> None:
        super().__init__()
        self.function = function
        self.weights = nn.ParameterList(nn.Parameter(torch.randn(shape)) for shape in weights)

    def forward(self, *inputs: torch.Tensor) -> Any:
        return self.function(*inputs, *self.weights)


def explained(model: nn.Module, *inputs: Any, **options: Any) -> Any:
    dlb = DLBacktrace(model=model.eval(), input_for_graph=inputs)
    return dlb.evaluation(dlb.predict(*inputs), **options)


RULES: dict[str, tuple[Callable[..., Any], list[tuple[int, ...]], list[tuple[int, ...]]]] = {
    "linear": (F.linear, [(3, 5)], [(4, 5), (4,)]),
    "matmul of inputs": (lambda a, b: a @ b, [(2, 3, 4), (2, 4, 5)], []),
    "addmm": (torch.addmm, [(3, 4), (3, 5)], [(5, 4)]),
    "einsum": (lambda x, w: torch.einsum("bij,jk->bik", x, w), [(2, 3, 4)], [(4, 5)]),
    "conv1d": (lambda x, w, b: F.conv1d(x, w, b, 2, 1), [(2, 4, 9)], [(6, 4, 3), (6,)]),
    "conv2d grouped": (lambda x, w, b: F.conv2d(x, w, b, 1, 1, 1, 2), [(2, 4, 5, 6)], [(6, 2, 3, 3), (6,)]),
    "conv3d": (lambda x, w: F.conv3d(x, w, None, 1, 1), [(1, 2, 4, 4, 4)], [(3, 2, 3, 3, 3)]),
    "conv transposed": (
        lambda x, w, b: F.conv_transpose2d(x, w, b, 2, 0),
        [(2, 4, 3, 3)],
        [(4, 5, 2, 2), (5,)],
    ),
    "attention": (
        F.scaled_dot_product_attention,
        [(2, 2, 4, 8), (2, 2, 5, 8), (2, 2, 5, 8)],
        [],
    ),
    "attention, causal": (
        lambda q, k, v: F.scaled_dot_product_attention(q, k, v, is_causal=True),
        [(2, 2, 4, 8)] * 3,
        [],
    ),
    "attention, grouped": (
        lambda q, k, v: F.scaled_dot_product_attention(q, k, v, enable_gqa=True),
        [(2, 4, 4, 8), (2, 2, 4, 8), (2, 2, 4, 8)],
        [],
    ),
    "attention in parts": (
        lambda q, k, v: ((q @ k.transpose(-1, -2)) / 3).softmax(-1) @ v,
        [(2, 4, 8), (2, 5, 8), (2, 5, 8)],
        [],
    ),
    "layer norm": (lambda x, w, b: F.layer_norm(x, (6,), w, b), [(3, 6)], [(6,), (6,)]),
    "group norm": (lambda x, w, b: F.group_norm(x, 2, w, b), [(2, 4, 5)], [(4,), (4,)]),
    "rms norm": (lambda x, w: F.rms_norm(x, (6,), w), [(3, 6)], [(6,)]),
    "rms norm in parts": (
        lambda x, w: w * (x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + 1e-6)),
        [(3, 6)],
        [(6,)],
    ),
    "max pool": (lambda x: F.max_pool2d(x, 3, 2, 1), [(2, 3, 7, 7)], []),
    "average pool": (lambda x: F.avg_pool2d(x, 3, 2, 1), [(2, 3, 7, 7)], []),
    "adaptive pools": (
        lambda x: F.adaptive_avg_pool2d(x, 2) + F.adaptive_max_pool2d(x, 2),
        [(2, 3, 7, 7)],
        [],
    ),
    "add, broadcast": (lambda a, b: a + 2 * b, [(2, 3, 4), (2, 1, 4)], []),
    "subtract with alpha": (lambda a, b: torch.sub(a, b, alpha=2), [(3, 4), (3, 4)], []),
    "multiply": (lambda a, b: a * b, [(3, 4), (3, 4)], []),
    "gate": (lambda a, b: torch.sigmoid(a) * b, [(3, 4), (3, 4)], []),
    "divide": (lambda a, b: a / (b.abs() + 1), [(3, 4), (3, 4)], []),
    "activations": (lambda x: F.gelu(x) + F.silu(x).tanh() + F.elu(x) + F.leaky_relu(x).exp(), [(3, 4)], []),
    "swiglu": (lambda x, g, u: F.silu(F.linear(x, g)) * F.linear(x, u), [(3, 4)], [(5, 4), (5, 4)]),
    "clamp, power, root": (lambda x: x.clamp(-1, 1).pow(2).add(1).sqrt(), [(3, 4)], []),
    "maximum": (torch.maximum, [(3, 4), (3, 4)], []),
    "where": (lambda a, b: torch.where(a > 0, a, b), [(3, 4), (3, 4)], []),
    "shapes": (
        lambda x: x.view(3, 2, 4).permute(1, 0, 2).reshape(2, 12)[:, 1:9].unflatten(1, (2, 4)).flatten(),
        [(3, 8)],
        [],
    ),
    "expand and repeat": (lambda x: x[:, None].expand(-1, 3, -1).repeat(1, 1, 2), [(3, 4)], []),
    "cat and stack": (lambda a, b: torch.stack([torch.cat([a, b]), torch.cat([b, a])]), [(3, 4), (3, 4)], []),
    "split, select, flip": (
        lambda x: torch.cat([p.flip(0) for p in x.split(2, 1)]) + x[:, :1].repeat(2, 1),
        [(3, 4)],
        [],
    ),
    "index and gather": (
        lambda x: x[torch.tensor([0, 2, 2])] + x.gather(1, torch.zeros(3, 4, dtype=torch.long)),
        [(3, 4)],
        [],
    ),
    "pad": (lambda x: F.pad(x, (1, 1), value=2.0)[:, 1:-1], [(3, 4)], []),
    "pad by reflection": (lambda x: F.pad(x[None], (1, 2), mode="reflect"), [(3, 4)], []),
    "mean and sum": (lambda x: x.mean(-1) + x.sum((1, 2)).unsqueeze(-1), [(2, 3, 4)], []),
    "upsampling": (lambda x: F.interpolate(x, scale_factor=2, mode="bilinear"), [(1, 2, 3, 3)], []),
    "upsampling, nearest": (lambda x: F.interpolate(x, scale_factor=2), [(1, 2, 3, 3)], []),
    "pixel shuffle": (lambda x: F.pixel_shuffle(x, 2), [(1, 4, 3, 3)], []),
    "sort and topk": (lambda x: x.sort(-1).values + x.topk(4, -1).values, [(3, 4)], []),
    "cumulative": (lambda x: x.cumsum(-1), [(3, 4)], []),
    "triangle": (lambda x: torch.tril(x) @ torch.ones(4, 2), [(4, 4)], []),
}


@pytest.mark.parametrize("mode", ["default", "contrastive"])
@pytest.mark.parametrize("name", RULES)
def test_a_rule_hands_on_what_it_was_given(name: str, mode: str) -> None:
    torch.manual_seed(len(name))
    function, inputs, weights = RULES[name]
    given = [torch.randn(shape) for shape in inputs]
    model = Calls(function, *weights)
    put = torch.rand_like(model(*given).detach())
    if name == "triangle":
        put[:] = 1
    found = explained(model, *given, relevance=put, mode=mode)
    assert found.put_in == pytest.approx(put.sum().item(), rel=1e-5)
    assert found.absorbed == {}, found
    assert found.at_inputs == pytest.approx(found.put_in, rel=1e-3)
    for tensor, like in zip((found.tensors[name] for name in found.inputs if name in found.tensors), given):
        assert torch.isfinite(tensor).all() and (mode == "contrastive" or (tensor >= 0).all())
        assert tensor.dim() == like.dim()


@pytest.mark.parametrize("mode", ["default", "contrastive"])
def test_every_rule_holds_on_a_recorded_run(mode: str) -> None:
    for name, (function, inputs, weights) in RULES.items():
        torch.manual_seed(len(name))
        model = Calls(function, *weights).eval()
        t = tv.trace(model, *(torch.randn(shape) for shape in inputs))
        put = torch.ones_like(t.output) if name == "triangle" else torch.rand_like(t.output)
        found = t.relevance(relevance=put, mode=mode)
        assert found.error < 1e-6 and not found.absorbed, (name, found)
        assert found.at_inputs == pytest.approx(float(put.sum()), rel=1e-5), name
        assert not [row for row in found.rows if row.rule in ("gradient", "no rule")], (name, found)


@pytest.mark.parametrize("name", ["resnet18", "bert", "vit", "lstm_cell_loop", "gpt2"])
def test_any_recorded_run_has_relevance(name: str) -> None:
    """Nothing is lost; a trace has what the exported program has."""
    model, args, kwargs = real(name)
    found = tv.trace(model.eval(), *args, kwargs=kwargs).relevance(target=3)
    assert found.error < 1e-6, found
    assert [*found.absorbed] == ({"vit": ["/cat#4"]}.get(name, [])), found
    assert not [row for row in found.rows if row.rule in ("gradient", "no rule")]


def test_writes_in_place_and_parts_of_a_buffer() -> None:
    torch.manual_seed(0)

    def program(x: torch.Tensor) -> torch.Tensor:
        buffer = torch.zeros(3, 4)
        buffer[0] = x[1]
        row = buffer[1]
        row.copy_(x[0].relu_())
        buffer[2].fill_(5.0)
        return buffer.mul_(2).sum(0)

    x = torch.rand(2, 4)
    found = tv.trace(program, x).relevance(relevance=torch.ones(4))
    shares = torch.stack([x[0], x[1]]) / (x.sum(0) + 5)
    torch.testing.assert_close(found["x"], shares, atol=1e-4, rtol=1e-3)
    assert found.error < 1e-6 and sum(found.absorbed.values()) == pytest.approx(
        4 - float(shares.sum()), abs=1e-3
    )


@pytest.mark.parametrize("norm", [nn.BatchNorm1d(4), nn.InstanceNorm1d(4, track_running_stats=True)])
def test_an_operation_that_also_writes_is_numbered_by_what_it_returns(norm: nn.Module) -> None:
    """In training a norm writes its running statistics beside its output; what is written comes first in the graph."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Conv1d(2, 4, 3), norm, nn.ReLU(), nn.Flatten(), nn.Linear(24, 3)).train()
    found = tv.trace(model, torch.randn(2, 2, 8)).relevance(target=1)
    assert found.error < 1e-6 and found.at_inputs == pytest.approx(2, abs=1e-4)


def test_a_view_has_what_came_through_it_alone() -> None:
    x = torch.rand(2, 3)
    t = tv.trace(lambda x: x.view(6).sum() + 3 * x.t().sum(), x)
    found = {row.op: row.relevance for row in t.relevance(relevance=torch.ones(())).rows}
    assert found["view"] == pytest.approx(0.25, abs=1e-4) and found["t"] == pytest.approx(0.75, abs=1e-4)
    assert found["input"] == pytest.approx(1.0)


def test_relevance_of_a_trace_is_a_column_and_a_picture() -> None:
    model = nn.Sequential(nn.Linear(3, 4), nn.ReLU(), nn.Linear(4, 2))
    nn.init.ones_(model[0].bias)
    t = tv.trace(model, torch.rand(2, 3))
    found = t.relevance(torch.rand(2, 3), target=torch.tensor([0, 1]), at="1", mode="contrastive")
    assert found["1"].shape == (2, 4) and [*found.charts()] == ["input", "1"]
    assert t.with_metrics(found).metrics["relevance"][1] == pytest.approx(2.0)
    assert "net" in str(found) and found.to_dict()["facts"]["put_in"] == 2.0
    with pytest.raises(UsageError, match="last dimension of 2"):
        t.relevance(target=2)
    with pytest.raises(NoMatch, match="contrastive"):
        t.relevance(mode="contrastiv")


def test_an_output_has_its_name_here_as_in_attribute() -> None:
    class Two(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.pool, self.head = nn.Linear(4, 3), nn.Linear(4, 2)

        def forward(self, x: torch.Tensor) -> dict[str, torch.Tensor]:
            return {"pool": self.pool(x), "logits": self.head(x)}

    t = tv.trace(Two(), torch.rand(2, 4))
    by_name, by_number = t.relevance(target=1, output="logits"), t.relevance(target=1, output=1)
    torch.testing.assert_close(by_name["x"], by_number["x"])
    assert by_name.goal == "output logits" and t.attribute("saliency", target=1, output="logits")
    for ask in (t.relevance, lambda **which: t.attribute("saliency", **which)):
        with pytest.raises(NoMatch, match="no output 'logit'; did you mean 'logits'"):
            ask(target=1, output="logit")


@pytest.mark.parametrize("kind", [nn.LSTM, nn.GRU, nn.RNN])
@pytest.mark.parametrize("mode", ["default", "contrastive"])
def test_recurrent_layers(kind: type[nn.RNNBase], mode: str) -> None:
    class Sequence(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.table = nn.Embedding(20, 8)
            self.layers = kind(8, 6, num_layers=2, batch_first=True, bidirectional=True)
            self.head = nn.Linear(12, 3)

        def forward(self, words: torch.Tensor) -> torch.Tensor:
            return self.head(self.layers(self.table(words))[0][:, -1])

    torch.manual_seed(0)
    words = torch.randint(0, 20, (2, 5))
    found = explained(Sequence(), words, target=1, mode=mode)
    assert found.at_inputs == pytest.approx(2.0, rel=1e-3) and not found.absorbed
    assert found.tensors["words"].shape == words.shape
    model = Sequence().eval()
    for grad in (True, False):
        with torch.set_grad_enabled(grad):
            same = tv.trace(model, words).relevance(target=1, mode=mode)
        assert same.error < 1e-6 and not same.absorbed and same["words"].shape == words.shape


def real(name: str) -> tuple[nn.Module, tuple[Any, ...], dict[str, Any]]:
    torch.manual_seed(0)
    if name == "resnet18":
        from torchvision.models.resnet import BasicBlock, ResNet

        return ResNet(BasicBlock, [2, 2, 2, 2], num_classes=10), (torch.randn(2, 3, 64, 64),), {}
    model, args, kwargs = ZOO[name].make()
    if name == "vit":
        nn.init.normal_(model.heads.head.weight)  # torchvision starts with zeros, which explain nothing
    return model, args, kwargs


@pytest.mark.parametrize("mode", ["default", "contrastive"])
@pytest.mark.parametrize(
    "name", ["resnet18", "resnet50", "bert", "vit", "lstm_cell_loop", "unet", "gpt2", "llama", "t5"]
)
def test_whole_models_bring_it_back_to_their_inputs(name: str, mode: str) -> None:
    model, args, kwargs = real(name)
    names = dict(zip(inspect.signature(model.forward).parameters, args, strict=False))
    dlb = DLBacktrace(model=model.eval(), input_for_graph={**names, **kwargs})
    found = dlb.evaluation(dlb.predict({**names, **kwargs}), mode=mode, target=3)
    kept = sum(found.absorbed.values())
    assert found.error < 1e-3, found
    assert found.at_inputs + kept == pytest.approx(found.put_in, rel=1e-3)
    # the class token of a ViT is no input, and of a first state of zeros an LSTM cell keeps its bias alone: what they
    # get stays there, and is listed
    listed = {"vit": {"cat"}, "lstm_cell_loop": {"lstm_cell"}}.get(name, set())
    assert set(found.absorbed) <= listed, found
    assert not [row for row in found.rows if row.rule in ("gradient", "no rule")]
    if not listed:
        assert found.at_inputs == pytest.approx(found.put_in, rel=1e-3)


def test_relevance_says_which_input_mattered() -> None:
    weight = torch.tensor([[2.0, 0.0, -1.0], [0.0, 5.0, 0.0]])
    model = nn.Linear(3, 2)
    with torch.no_grad():
        model.weight.copy_(weight)
        model.bias.fill_(7.0)
    x = torch.ones(1, 3)
    first = explained(model, x, target=0).tensors["input"]
    torch.testing.assert_close(first, torch.tensor([[2 / 3, 0.0, 1 / 3]]), atol=1e-4, rtol=1e-3)
    second = explained(model, x, target=1).tensors["input"]
    torch.testing.assert_close(second, torch.tensor([[0.0, 1.0, 0.0]]), atol=1e-4, rtol=1e-3)


def test_contrastive_tells_evidence_for_from_evidence_against() -> None:
    model = nn.Linear(2, 2, bias=False)
    with torch.no_grad():
        model.weight.copy_(torch.tensor([[3.0, -1.0], [0.0, 1.0]]))
    x = torch.ones(1, 2)
    found = explained(model, x, target=0, mode="contrastive")
    torch.testing.assert_close(found.tensors["input"], torch.tensor([[0.75, -0.25]]), atol=1e-4, rtol=1e-3)
    assert found.positive("input") == pytest.approx(0.75, abs=1e-3)
    assert found.negative("input") == pytest.approx(0.25, abs=1e-3)
    both = explained(model, x, target=0, against=1, mode="contrastive")
    torch.testing.assert_close(both.tensors["input"], torch.tensor([[0.75, -1.25]]), atol=1e-4, rtol=1e-3)
    assert both.at_inputs == pytest.approx(2.0, rel=1e-3)
    assert "against" in str(found) and "against" not in str(explained(model, x, target=0))


def test_gates_hand_everything_to_their_signal() -> None:
    a, b = torch.randn(3, 4), torch.randn(3, 4)
    found = explained(Calls(lambda a, b: torch.sigmoid(a) * b), a, b, target=0)
    shares = [found[name] for name in found.inputs]
    assert shares == [0.0, pytest.approx(3.0)]


def test_constants_that_are_joined_keep_their_part_and_are_listed() -> None:
    model = Calls(lambda x, token: torch.cat([token.expand(len(x), -1), x], 1).sum(1), (1, 2))
    found = explained(model, torch.ones(3, 2), relevance=torch.ones(3))
    assert list(found.absorbed) == ["cat"]
    assert found.error < 1e-6 and 0 < found.at_inputs < 3


def test_an_operation_without_a_rule_is_listed() -> None:
    found = explained(Calls(lambda x: torch.fft.fft(x).abs()), torch.randn(2, 4), target=0)
    assert found.error < 1e-6
    assert sum(found.absorbed.values()) == pytest.approx(2.0)
    assert "no rule" in str(found) or found.absorbed


def test_half_precision_is_conserved_as_well() -> None:
    model = nn.Sequential(nn.Linear(64, 64), nn.GELU(), nn.LayerNorm(64), nn.Linear(64, 4)).bfloat16()
    found = explained(model, torch.randn(3, 64).bfloat16(), target=2)
    assert found.at_inputs == pytest.approx(3.0, rel=1e-3)


class Dead(nn.Module):
    """A network in which the input has no part, by ``how`` it is silenced."""

    def __init__(self, how: Callable[[torch.Tensor], torch.Tensor], *, bias: bool = True) -> None:
        super().__init__()
        self.how = how
        self.head = nn.Linear(4, 2, bias=bias)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.head(self.how(x))


SILENT: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "dead ReLU": lambda x: torch.relu(x - 100),
    "times zero": lambda x: x * 0,
    "times a tensor of zeros": lambda x: x * torch.zeros(4),
    "zero weights": lambda x: x @ torch.zeros(4, 4),
    "clamped": lambda x: x.abs().clamp(max=0),
    "masked": lambda x: x.masked_fill(torch.ones(4, dtype=torch.bool), 0.0),
    "times zero, then more": lambda x: F.gelu(x * 0 + 3),
    "normalised without a scale": lambda x: F.layer_norm(x, (4,), torch.zeros(4), torch.ones(4)),
    "a softmax of one": lambda x: x[..., None].softmax(-1)[..., 0],
    "averages of zeros": lambda x: F.avg_pool1d(torch.relu(x - 100)[:, None], 1)[:, 0],
    "a mask at both ends": lambda x: torch.where(torch.zeros(4, dtype=torch.bool), x, 1.0),
    "rounded away": lambda x: (x / 1000).round() + 1,
    "attention to zeros": lambda x: F.scaled_dot_product_attention(*[x[:, None, None] * 0] * 3)[:, 0, 0],
}


@pytest.mark.parametrize("mode", ["default", "contrastive"])
@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("name", SILENT)
def test_what_no_input_has_part_in_stays_at_the_bias(name: str, bias: bool, mode: str) -> None:
    torch.manual_seed(0)
    x = torch.randn(2, 4)
    model = Dead(SILENT[name], bias=bias).eval()
    t = tv.trace(model, x)
    assert float(t.attribute(method="integrated_gradients", target=0).maps["x"].abs().max()) == 0
    for found in (explained(model, x, target=0, mode=mode), t.relevance(target=0, mode=mode)):
        assert found.at_inputs == 0 and found.error < 1e-6, found
        assert sum(found.absorbed.values()) == pytest.approx(2.0, rel=1e-6)
    assert float(t.relevance(target=0, mode=mode)["x"].abs().max()) == 0


def test_a_dead_row_stays_and_the_others_arrive() -> None:
    model = nn.Sequential(nn.Linear(4, 4), nn.ReLU(), nn.Linear(4, 2))
    with torch.no_grad():
        model[0].weight.copy_(torch.eye(4))
        model[0].bias.zero_()
    x = torch.tensor([[1.0, 2.0, 3.0, 4.0], [-1.0, -2.0, -3.0, -4.0]])
    found = tv.trace(model, x).relevance(target=0)
    assert found["input"].sum(1).tolist() == pytest.approx([1.0, 0.0], abs=1e-6)
    assert list(found.absorbed.values()) == pytest.approx([1.0]) and "2/addmm" in str(found.absorbed)


def test_for_and_against_are_what_raises_and_what_lowers_an_output_below_zero() -> None:
    model = nn.Linear(3, 1, bias=False)
    with torch.no_grad():
        model.weight.copy_(torch.tensor([[-3.0, 1.0, -1.0]]))
    x = torch.ones(1, 3)
    found = explained(model, x, target=0, mode="contrastive")
    assert found.positive("input") == pytest.approx(0.2) and found.negative("input") == pytest.approx(0.8)
    torch.testing.assert_close(found.tensors["input"], torch.tensor([[-0.6, 0.2, -0.2]]))
    torch.testing.assert_close(
        tv.trace(model, x).relevance(mode="contrastive")["input"], found.tensors["input"]
    )


def test_what_a_result_offers() -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(3, 4), nn.ReLU(), nn.Linear(4, 2))
    nn.init.ones_(model[0].bias)
    x = torch.randn(2, 3)
    dlb = DLBacktrace(model.eval(), (x,))
    node_io = dlb.predict(x)
    found = dlb.evaluation(node_io, multiplier=100.0, tensors=["relu", "linear*"])
    assert found.put_in == pytest.approx(200.0) and found["relu"] == pytest.approx(200.0, rel=1e-3)
    assert sorted(found.tensors) == ["input", "linear", "linear_1", "relu"]
    chosen = model(x).argmax(-1)
    assert torch.equal(found.tensors["linear_1"].argmax(-1), chosen)
    assert list(found.to_pandas().columns) == [
        "op",
        "module",
        "relevance",
        "passed",
        "absorbed",
        "rule",
        "net",
    ]
    assert str(found).splitlines()[-1].startswith("put in 200: 200 at the inputs")
    each = dlb.evaluation(node_io, target=torch.tensor([0, 1]), tensors=True)
    assert torch.equal(each.tensors["linear_1"], torch.eye(2))
    with pytest.raises(NoMatch, match="relu"):
        found["rely"]


def test_what_cannot_be_evaluated() -> None:
    x = torch.randn(2, 3)
    dlb = DLBacktrace(nn.Linear(3, 2).eval(), (x,))
    node_io = dlb.predict(x)
    with pytest.raises(UsageError, match="what predict"):
        dlb.evaluation(x)  # type: ignore[arg-type]
    with pytest.raises(TensorsMissing, match="keep='all'"):
        dlb.evaluation(dlb.predict(x, keep="outputs"))
    with pytest.raises(NoMatch, match="contrastive"):
        dlb.evaluation(node_io, mode="contrastiv")
    with pytest.raises(UsageError, match="last dimension of 2"):
        dlb.evaluation(node_io, target=2)
    with pytest.raises(UsageError, match=r"shape \(2, 2\)"):
        dlb.evaluation(node_io, relevance=torch.ones(3))
    with pytest.raises(UsageError, match="no output 1"):
        dlb.evaluation(node_io, output=1)
    with pytest.raises(UsageError, match="contrastive"):
        dlb.evaluation(node_io, against=1)
    with pytest.raises(UsageError, match="below zero"):
        dlb.evaluation(node_io, relevance=-torch.ones(2, 2))
    with pytest.raises(NoMatch, match="linear"):
        dlb.evaluation(node_io, tensors=["linaer"])
