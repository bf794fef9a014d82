"""Attribution and attention beside Captum on models where Captum works, and on models where it does not.

The figure is the largest difference over all attributions of a model, as a share of its largest attribution.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import torch
from torch import nn
from torch.nn import functional as F

import torch_vis as tv
from bench.row import Row, within
from tests.zoo import declare_torchvision_ops

LIMIT = 1e-5
STEPS, SAMPLES = 12, 6


class Case(NamedTuple):
    """A model with an input, the class that is explained, and a layer inside."""

    name: str
    model: nn.Module
    x: torch.Tensor
    layer: str
    window: tuple[int, ...]
    tokens: bool = False


class Recurrent(nn.Module):
    """The last state of a recurrent layer, classified."""

    def __init__(self, kind: str) -> None:
        super().__init__()
        self.rnn = getattr(nn, kind)(8, 16, 2, batch_first=True)
        self.head = nn.Linear(16, 5)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.head(self.rnn(x)[0][:, -1])


class Encoder(nn.Module):
    """Two layers of torch's own transformer."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList(
            nn.TransformerEncoderLayer(16, 4, 32, dropout=0.0, batch_first=True) for _ in range(2)
        )
        self.head = nn.Linear(16, 5)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for layer in self.layers:
            x = layer(x)
        return self.head(x.mean(1))


class Classifier(nn.Module):
    """A model of transformers that gives its logits, and takes its tokens alone."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        return self.model(input_ids=ids).logits


class PixelClassifier(Classifier):
    """The same of images."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.model(pixel_values=x).logits


def cases() -> Iterator[Case]:
    """Ten models: convolutions, recurrence, attention, mixers; of torch, torchvision, timm and transformers."""
    declare_torchvision_ops()
    import torchvision
    import transformers

    torch.manual_seed(0)
    image, sequence = torch.randn(2, 3, 32, 32), torch.randn(2, 6, 8)
    mlp = nn.Sequential(nn.Linear(10, 20), nn.Tanh(), nn.Linear(20, 5))
    yield Case("mlp", mlp, torch.randn(3, 10), "1", (2,))
    cnn = nn.Sequential(
        nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8), nn.ReLU(), nn.MaxPool2d(2), nn.Conv2d(8, 8, 3), nn.GELU(),
        nn.AdaptiveAvgPool2d(2), nn.Flatten(), nn.Linear(32, 5),
    )  # fmt: skip
    yield Case("cnn", cnn, image, "5", (3, 8, 8))
    yield Case("resnet18", torchvision.models.resnet18(), image, "layer2", (3, 16, 16))
    yield Case("mobilenet_v3", torchvision.models.mobilenet_v3_small(), image, "features.4", (3, 16, 16))
    convnext = transformers.ConvNextConfig(hidden_sizes=[8, 16, 24, 32], depths=[1, 1, 2, 1], num_labels=5)
    yield Case(
        "convnext", PixelClassifier(transformers.ConvNextForImageClassification(convnext)), image,
        "model.convnext.encoder.stages.1", (3, 16, 16),
    )  # fmt: skip
    vit = transformers.ViTConfig(
        hidden_size=32, num_hidden_layers=2, num_attention_heads=4, intermediate_size=64, image_size=32,
        patch_size=8, num_labels=5,
    )  # fmt: skip
    yield Case(
        "vit", PixelClassifier(transformers.ViTForImageClassification(vit)), image, "model.vit.layernorm", (3, 8, 8)
    )  # fmt: skip
    yield Case("lstm", Recurrent("LSTM"), sequence, "head", (1, 8))
    yield Case("gru", Recurrent("GRU"), sequence, "head", (1, 8))
    yield Case("encoder", Encoder(), torch.randn(2, 6, 16), "layers.0", (1, 16))
    bert = transformers.BertConfig(
        vocab_size=60, hidden_size=32, num_hidden_layers=2, num_attention_heads=4, intermediate_size=64,
        num_labels=5,
    )  # fmt: skip
    yield Case(
        "bert", Classifier(transformers.BertForSequenceClassification(bert)), torch.randint(1, 60, (2, 7)),
        "model.bert.embeddings.word_embeddings", (1, 32), tokens=True,
    )  # fmt: skip


def share(ours: torch.Tensor, theirs: torch.Tensor) -> float:
    """The largest difference as a share of the largest attribution."""
    scale = float(theirs.abs().max())
    if not scale > 0:
        raise ValueError("the reference attributes nothing, so that there is nothing to compare")
    return float((ours.detach() - theirs.detach()).abs().max()) / scale


def against_captum(case: Case) -> dict[str, float]:
    """Every method on one model, both ways: how far apart the attributions are."""
    from captum import attr

    model, x = case.model.eval(), case.x
    trace = tv.trace(model, x)
    layer = model.get_submodule(case.layer)
    target = [number % 5 for number in range(len(x))]
    index = torch.tensor(target)

    def ours(method: str, **options: Any) -> torch.Tensor:
        report = trace.attribute(method, target=target, **options)
        return report[report.names[0]]

    pairs: dict[str, tuple[torch.Tensor, torch.Tensor]] = {}
    at = case.layer
    layered = attr.LayerIntegratedGradients(model, layer)
    pairs["integrated_gradients at a layer"] = (
        ours("integrated_gradients", at=at, steps=STEPS),
        layered.attribute(x, torch.zeros_like(x), target=index, n_steps=STEPS),
    )
    pairs["gradient at a layer"] = (
        ours("input_x_gradient", at=at),
        attr.LayerGradientXActivation(model, layer).attribute(x, target=index),
    )
    if not case.tokens:
        pairs["saliency"] = (ours("saliency"), attr.Saliency(model).attribute(x, target=index))
        pairs["input_x_gradient"] = (
            ours("input_x_gradient"),
            attr.InputXGradient(model).attribute(x, target=index),
        )
        pairs["integrated_gradients"] = (
            ours("integrated_gradients", steps=STEPS, baseline=0.1),
            attr.IntegratedGradients(model).attribute(x, 0.1, target=index, n_steps=STEPS),
        )
        torch.manual_seed(7)
        pairs["smoothgrad"] = (
            ours("smoothgrad", samples=SAMPLES, std=0.2, seed=7),
            attr.NoiseTunnel(attr.Saliency(model)).attribute(
                x, nt_type="smoothgrad", nt_samples=SAMPLES, stdevs=0.2, target=index
            ),
        )
        stride = tuple(max(size // 2, 1) for size in case.window)
        pairs["occlusion"] = (
            ours("occlusion", window=case.window, stride=stride),
            attr.Occlusion(model).attribute(x, case.window, stride, target=index),
        )
        pairs["conductance"] = (
            ours("conductance", at=at, steps=STEPS),
            attr.LayerConductance(model, layer).attribute(x, target=index, n_steps=STEPS),
        )
    if pairs["gradient at a layer"][0].dim() > 2:
        pairs["grad_cam"] = (
            ours("grad_cam", at=at),
            attr.LayerGradCam(model, layer).attribute(x, target=index, relu_attributions=True),
        )
    return {name: share(*pair) for name, pair in pairs.items()}


# ---------------------------------------------------------------- where Captum does not work


class Reused(nn.Module):
    """One layer that is called three times."""

    def __init__(self) -> None:
        super().__init__()
        self.fc = nn.Linear(6, 6)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for _ in range(3):
            x = torch.tanh(self.fc(x))
        return x


class Functional(nn.Module):
    """No module inside: weights and functions."""

    def __init__(self) -> None:
        super().__init__()
        self.w = nn.Parameter(torch.randn(8, 3, 3, 3) / 5)
        self.v = nn.Parameter(torch.randn(5, 8) / 3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return F.relu(F.conv2d(x, self.w)).mean((2, 3)) @ self.v.t()


def by_hand(
    function: Callable[[torch.Tensor], torch.Tensor], value: torch.Tensor, target: int
) -> torch.Tensor:
    """The gradient of a tail of a program that is written out again."""
    leaf = value.detach().clone().requires_grad_()
    (gradient,) = torch.autograd.grad(function(leaf)[:, target].sum(), leaf)
    return gradient


def beyond_captum() -> dict[str, float]:
    """The second call of a reused layer, and an operation of a functional model, against the tail written by hand."""
    torch.manual_seed(1)
    reused, x = Reused().eval(), torch.randn(2, 6)
    ours = tv.trace(reused, x).attribute("gradient", target=2, at="fc:1")
    h = reused.fc(torch.tanh(reused.fc(x)))
    theirs = by_hand(lambda h: torch.tanh(reused.fc(torch.tanh(h))), h, 2)
    rows = {"second call of a reused layer": share(ours[ours.names[0]], theirs)}
    model, image = Functional().eval(), torch.randn(2, 3, 9, 9)
    cam = tv.trace(model, image).attribute("grad_cam", target=1, at="op:relu")
    h = F.relu(F.conv2d(image, model.w))
    gradient = by_hand(lambda h: h.mean((2, 3)) @ model.v.t(), h, 1)
    expected = torch.relu((gradient.mean((2, 3), keepdim=True) * h).sum(1, keepdim=True))
    rows["grad_cam of a functional model"] = share(cam[cam.names[0]], expected)
    return rows


def run(quick: bool = False) -> list[Row]:
    """One row for each model, with the method that is furthest off."""
    warnings.filterwarnings("ignore")
    rows = []
    for case in cases():
        apart = against_captum(case)
        worst = max(apart, key=lambda name: apart[name])
        note = f"Captum, {len(apart)} methods; {worst}"
        rows.append(within(f"attribution of {case.name}", apart[worst], LIMIT, "of the largest", note))
        if quick and len(rows) == 3:
            break
    for name, difference in beyond_captum().items():
        rows.append(
            within(
                name,
                difference,
                LIMIT,
                "of the largest",
                "by hand; Captum names the last call and modules alone",
            )
        )
    return rows
