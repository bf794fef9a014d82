"""Attribution at inputs and inside: against autograd by hand, on what hooks cannot reach, and where it has no sense."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn import functional as F

import torch_vis as tv
from torch_vis.errors import NoMatch, TensorsMissing, UsageError
from torch_vis.replay.differentiable import DifferentiableReplay


class Small(nn.Module):
    """Convolutions with what autograd is careful about: writes in place, views, a detached part, batch statistics."""

    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(3, 4, 3, padding=1)
        self.norm = nn.BatchNorm2d(4)
        self.head = nn.Linear(4, 5)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = F.relu(self.norm(self.conv(x)), inplace=True)
        z = torch.zeros_like(y)
        z[:, 1:] = y[:, :-1]
        z.mul_(y.detach() + 1)
        with torch.no_grad():
            scale = y.mean()
        return self.head((z * scale + y).mean((2, 3)))


def small() -> tuple[nn.Module, torch.Tensor]:
    torch.manual_seed(0)
    return Small().eval(), torch.randn(2, 3, 8, 8)


def gradient(model: Any, x: torch.Tensor, target: int) -> torch.Tensor:
    leaf = x.clone().requires_grad_()
    (grad,) = torch.autograd.grad(model(leaf)[:, target].sum(), leaf)
    return grad


def test_gradients_are_those_of_the_program() -> None:
    model, x = small()
    t = tv.trace(model, x)
    other = torch.randn_like(x)
    for inputs in ((), (other,)):
        report = t.attribute("gradient", *inputs, target=3)
        assert torch.equal(report["x"], gradient(model, inputs[0] if inputs else x, 3))
    assert torch.equal(t.attribute("saliency", target=1)["x"], gradient(model, x, 1).abs())


@pytest.mark.parametrize("kind", ["LSTM", "GRU", "RNN"])
@pytest.mark.parametrize("grad", [True, False])
def test_recurrent_kernels_have_gradients_however_they_were_recorded(kind: str, grad: bool) -> None:
    torch.manual_seed(0)
    rnn = getattr(nn, kind)(4, 5, 2, bidirectional=True, batch_first=True)
    model = nn.Sequential(rnn, _First()).eval()
    x = torch.randn(2, 3, 4)
    with torch.set_grad_enabled(grad):
        t = tv.trace(model, x)
    found = t.attribute("gradient", measure=lambda y: y[:, -1, 2])
    leaf = x.clone().requires_grad_()
    (expected,) = torch.autograd.grad(model(leaf)[:, -1, 2].sum(), leaf)
    torch.testing.assert_close(found[found.names[0]], expected)


class _First(nn.Module):
    def forward(self, y: Any) -> torch.Tensor:
        return y[0]


def test_random_operations_draw_what_they_drew() -> None:
    t = tv.trace(nn.Dropout(0.5).train(), torch.ones(4, 6))
    forward = DifferentiableReplay(t, vary=["input"])
    assert torch.equal(forward.run({"input": torch.ones(4, 6)}).output, t.output)
    state = torch.get_rng_state()
    t.attribute("smoothgrad", measure=lambda y: y.sum(1), samples=3)
    assert torch.equal(torch.get_rng_state(), state)


def test_integrated_gradients_add_up_and_take_baselines() -> None:
    model, x = small()
    t = tv.trace(model, x)
    report = t.attribute("integrated_gradients", target=[0, 4], baseline=x.mean(), steps=80)
    assert report.error is not None and abs(report.error) < 0.05 * abs(
        report.measured - report.baseline_measured
    )
    linear = nn.Linear(3, 2)
    again = tv.trace(linear, torch.ones(1, 3)).attribute(target=1, baseline=torch.full((1, 3), -1.0), steps=3)
    torch.testing.assert_close(again["input"][0], 2 * linear.weight[1].detach())


class Reused(nn.Module):
    """One layer that is called three times, with functions between."""

    def __init__(self) -> None:
        super().__init__()
        self.fc = nn.Linear(4, 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for _ in range(3):
            x = torch.tanh(self.fc(x))
        return x


def test_a_reused_layer_and_a_functional_model() -> None:
    torch.manual_seed(1)
    model, x = Reused(), torch.randn(2, 4)
    fc, t = model.fc, tv.trace(model, x)
    report = t.attribute("gradient", target=2, at="fc:1")
    h = fc(torch.tanh(fc(x)))
    expected = gradient(lambda h: torch.tanh(fc(torch.tanh(h))), h.detach(), 2)
    torch.testing.assert_close(report[report.names[0]], expected)
    # several places are attributed to one by one: a later call does not hide an earlier one
    every = t.attribute("gradient", target=2, at="fc:*")
    assert torch.equal(every["fc#1"], report[report.names[0]]) and len(every.names) == 3
    first = fc(x).detach()
    expected = gradient(lambda h: torch.tanh(fc(torch.tanh(fc(torch.tanh(h))))), first, 2)
    torch.testing.assert_close(every["fc"], expected)
    # at an operation, and at what one reads
    assert t.attribute("gradient", target=2, at="op:tanh")["/tanh#2"].shape == (2, 4)
    assert t.attribute("gradient", target=2, at="fc:2.input").names == ["fc#2.input"]


def test_grad_cam_and_conductance_of_a_layer() -> None:
    model, x = small()
    t = tv.trace(model, x)
    cam = t.attribute("grad_cam", target=1, at="conv")
    values = model.conv(x).detach()

    def tail(y: torch.Tensor) -> torch.Tensor:
        model.conv.forward, before = (lambda _: y), model.conv.forward  # type: ignore[method-assign]
        try:
            return model(x)
        finally:
            model.conv.forward = before  # type: ignore[method-assign]

    weights = gradient(tail, values, 1).mean((2, 3), keepdim=True)
    torch.testing.assert_close(cam["conv"], torch.relu((weights * values).sum(1, keepdim=True)))
    plain = nn.Sequential(nn.Conv2d(3, 4, 3), nn.GELU(), nn.Flatten(), nn.Linear(144, 3)).eval()
    flow = tv.trace(plain, x).attribute("conductance", target=1, at="1", steps=60)
    assert flow["1"].shape == (2, 4, 6, 6)
    assert flow.error is not None and abs(flow.error) < 0.05 * abs(flow.measured - flow.baseline_measured)


def test_occlusion_measures_what_is_hidden() -> None:
    linear = nn.Linear(4, 2)
    x = torch.tensor([[1.0, 2.0, 3.0, 4.0]])
    t = tv.trace(linear, x)
    effect = linear.weight[0].detach() * x[0]
    torch.testing.assert_close(t.attribute("occlusion", target=0)["input"][0], effect)
    pairs = t.attribute("occlusion", target=0, window=2, stride=1)["input"][0]
    sums = effect[:-1] + effect[1:]
    torch.testing.assert_close(pairs, torch.stack([sums[0], sums[:2].mean(), sums[1:].mean(), sums[2]]))


def test_tokens_are_attributed_at_their_embedding() -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Embedding(10, 6), nn.Flatten(), nn.Linear(18, 4)).eval()
    ids = torch.tensor([[1, 2, 3], [4, 5, 6]])
    t = tv.trace(model, ids)
    report = t.attribute(target=2, steps=4, tokens=["a", "b", "c"])
    assert report.names == ["0"] and report.by_position().shape == (2, 3)
    change = (model(ids) - model(torch.zeros_like(ids)))[:, 2].detach().double()
    np.testing.assert_allclose(report.by_position().sum(1), change.numpy(), rtol=1e-5)
    assert "c" in str(report) and [*report.charts()] == ["0", "bars"]
    with pytest.raises(UsageError, match="at='0'"):
        t.attribute("saliency", target=2, at="input")


def test_pictures_and_pages(tmp_path: Path) -> None:
    model, x = small()
    report = tv.trace(model, x).attribute("grad_cam", target=1, at="conv")
    for renderer in ("plotly", "matplotlib"):
        assert report.figure(renderer) is not None
    report.save(tmp_path / "cam.html")
    page = (tmp_path / "cam.html").read_text()
    assert page.count("data:image/png;base64,") == 2 and "http" not in page
    assert "<img" in report._repr_html_()
    data = report.to_dict()
    assert data["facts"]["measured"] == pytest.approx(report.measured) and len(data["largest"]) > 10
    with pytest.raises(NoMatch, match="html"):
        report.save(tmp_path / "cam.doc")


def test_bad_input_is_one_clear_error(tmp_path: Path) -> None:
    model, x = small()
    t = tv.trace(model, x)
    for match, method, options in (
        ("target=", "saliency", {"measure": lambda y: y.sum(), "target": 1}),
        ("outside the output", "saliency", {"target": 7}),
        ("has 2 numbers", "saliency", {"target": (1, 2)}),
        ("2 samples", "saliency", {"target": [1, 2, 3]}),
        ("steps is of", "saliency", {"target": 1, "steps": 3}),
        ("layer inside", "grad_cam", {"target": 1}),
        ("does not fit", "integrated_gradients", {"target": 1, "baseline": torch.ones(7)}),
        ("at least 1", "integrated_gradients", {"target": 1, "steps": 0}),
        ("window is", "occlusion", {"target": 1, "window": (9, 9, 9)}),
        ("one number", "saliency", {"measure": lambda y: y}),
        ("gradients need a tensor", "saliency", {"measure": lambda y: 3.0}),
        ("tokens are named", "saliency", {"target": 1, "tokens": ["a"]}),
    ):
        with pytest.raises(UsageError, match=match):
            t.attribute(method, **options)
    with pytest.raises(NoMatch, match="saliency"):
        t.attribute("salency", target=1)
    with pytest.raises(UsageError, match="sizes fixed"):
        t.attribute("saliency", torch.randn(3, 3, 8, 8), target=1)
    with pytest.raises(UsageError, match="target="):
        tv.trace(nn.Linear(3, 2), torch.ones(1, 4, 3)).attribute("saliency")
    t.save(tmp_path / "t.tvz")
    with pytest.raises(TensorsMissing):
        tv.load(tmp_path / "t.tvz").attribute("saliency", target=1)
    with pytest.raises(UsageError, match="numbers"):
        tv.trace(model, x, fake=True).attribute("saliency", target=1)


class Opposite(torch.autograd.Function):
    """A function with a gradient of its own, which a recording does not know."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
        return x * 2

    @staticmethod
    def backward(ctx: Any, grad: torch.Tensor) -> torch.Tensor:
        return -grad


def test_where_no_gradient_passes_is_said() -> None:
    x = torch.randn(2, 3)
    layer = nn.Linear(3, 3)
    with pytest.raises(UsageError, match=r"ran without gradients"):
        tv.trace(lambda x: Opposite.apply(layer(x)), x).attribute("saliency", target=1)
    report = tv.trace(lambda x: layer(x) + Opposite.apply(x), x).attribute("saliency", target=1)
    assert "1 operations ran without gradients" in report.notes()[0]
    with torch.no_grad():
        t = tv.trace(lambda x: layer(x) * 2, x)
    assert t.attribute("saliency", target=1).notes() == []
    with torch.no_grad():
        fused = tv.trace(nn.TransformerEncoderLayer(8, 2, batch_first=True).eval(), torch.randn(1, 3, 8))
    with pytest.raises(UsageError, match="gradients enabled"):
        fused.attribute("saliency", target=(0, 1))


def test_nothing_is_left_behind() -> None:
    model, x = small()
    before = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    t = tv.trace(model, x)
    t.attribute("integrated_gradients", target=1, steps=3)
    with pytest.raises(ZeroDivisionError):
        t.attribute("saliency", measure=lambda y: 1 / 0)
    assert torch.is_grad_enabled() and all(p.grad is None for p in model.parameters())
    assert all(torch.equal(before[name], tensor) for name, tensor in model.state_dict().items())
    assert t.check()
