"""The peak memory of training steps as predicted by shapes alone, against what was measured.

Three measures: what tensors hold (against the same steps recorded with numbers), what the CPU allocator gives out
(against its own events, scratch of kernels included), and where there is a GPU what CUDA's caching allocator gives out
and reserves (against its own count). The prediction is of two steps of a new model, of which the first makes the
optimizer's state; nothing has run before it.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from bench import child
from bench.process import MIB
from bench.row import Row

BATCH, TOKENS, PIXELS = 2, 128, 224
LIMITS = {"tensors hold": 0.001, "CPU allocator": 0.02, "CUDA allocated": 0.03}


def run(quick: bool) -> list[Row]:
    """Per model and measure: predicted, measured, their ratio."""
    rows = []
    for name in ["resnet18"] if quick else list(STEPS):
        for device in ["cpu", "cuda"] if torch.cuda.is_available() else ["cpu"]:
            found = child.call("bench.memory_prediction:measure", name=name, device=device)
            rows.extend(_row(f"{measure}, {STEPS[name][0]}", *pair) for measure, pair in found.items())
    return rows


def _row(figure: str, predicted: int, measured: int) -> Row:
    ratio = predicted / measured
    limit = LIMITS.get(figure.partition(",")[0])
    target = f"within {limit:.1%}" if limit else ""
    met = abs(ratio - 1) <= limit if limit else None
    return Row(
        figure, f"{predicted / MIB:,.2f} MiB", f"measured {measured / MIB:,.2f} MiB", ratio, target, met
    )


def measure(name: str, device: str) -> dict[str, tuple[int, int]]:
    """In a process of its own: predicted and measured bytes, by measure."""
    torch.set_num_threads(1)
    import torch_vis as tv

    torch.manual_seed(0)
    step = STEPS[name][1](device)

    def two_steps() -> None:
        step()
        step()

    predicted = tv.trace(two_steps, fake=True).memory()
    measured = tv.measure.memory(step)
    if device == "cuda":
        ours, theirs = predicted.caching("cuda:0"), measured.cuda[0]
        return {
            "CUDA allocated": (ours.peak_bytes, theirs.peak_bytes),
            "CUDA reserved": (ours.reserved_bytes, theirs.reserved_bytes),
        }
    held = tv.trace(step, hold=False).memory()
    return {
        "tensors hold": (predicted.peak_bytes, held.peak_bytes),
        "CPU allocator": (predicted.allocator_peak_bytes, measured.peak_bytes),
    }


Step = Callable[[], None]


def _training(model: torch.nn.Module, optimizer: torch.optim.Optimizer, loss: Callable[[], Any]) -> Step:
    def step() -> None:
        optimizer.zero_grad()
        loss().backward()
        optimizer.step()

    model.train()
    return step


def resnet18(device: str) -> Step:
    """ResNet-18 with Adam."""
    from tests.zoo import declare_torchvision_ops

    declare_torchvision_ops()
    from torchvision.models import resnet18

    model = resnet18(weights=None).to(device)
    images = torch.randn(BATCH, 3, PIXELS, PIXELS, device=device)
    labels = torch.randint(0, 1000, (BATCH,), device=device)
    optimizer = torch.optim.Adam(model.parameters())
    return _training(model, optimizer, lambda: torch.nn.functional.cross_entropy(model(images), labels))


def bert(device: str) -> Step:
    """BERT-base with AdamW, on masked tokens."""
    from tests.zoo import declare_torchvision_ops

    declare_torchvision_ops()
    from transformers import BertConfig, BertForMaskedLM

    return _language(BertForMaskedLM(BertConfig()), device)


def gpt2(device: str) -> Step:
    """GPT-2 with AdamW."""
    from tests.zoo import declare_torchvision_ops

    declare_torchvision_ops()
    from transformers import GPT2Config, GPT2LMHeadModel

    return _language(GPT2LMHeadModel(GPT2Config()), device)


def _language(model: torch.nn.Module, device: str) -> Step:
    model.to(device)
    ids = torch.randint(0, 30000, (BATCH, TOKENS), device=device)
    return _training(model, torch.optim.AdamW(model.parameters()), lambda: model(ids, labels=ids).loss)


STEPS: dict[str, tuple[str, Callable[[str], Step]]] = {
    "resnet18": ("ResNet-18 with Adam", resnet18),
    "bert": ("BERT-base with AdamW", bert),
    "gpt2": ("GPT-2 with AdamW", gpt2),
}
