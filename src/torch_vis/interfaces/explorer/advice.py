"""What could be made smaller, from the weights themselves (int8, near zero), and how large a batch fits."""

from __future__ import annotations

import os

import torch

from torch_vis._trace import Trace
from torch_vis.analysis.advice.quantization.channels import Channels
from torch_vis.capture.modules_only.tensor_stats import readable, unseen
from torch_vis.graph.text import size
from torch_vis.views.terminal.source import Advice

MOST_ELEMENTS = 50_000_000  # looked at for advice, per tensor


def advise(module: torch.nn.Module) -> list[Advice]:
    """Suggestions for a module's own weights."""
    found: list[Advice] = []
    for name, weight in module._parameters.items():
        if (
            weight is None
            or weight.dim() < 2
            or weight.numel() > MOST_ELEMENTS
            or weight.layout != torch.strided
        ):
            continue
        with unseen():
            plain = readable(weight)
            if plain is None or not plain.numel() or not bool(torch.isfinite(plain).all()):
                continue
            rows = _channels(module).rows(plain)
            found.append(Advice(f"int8 {name}", _quantized(rows, weight.element_size())))
            found.append(Advice(f"prune {name}", _pruned(rows)))
    return found


def _channels(module: torch.nn.Module) -> Channels:
    """Where a module has its output channels: first, but for the few whose weights begin with what comes in."""
    if isinstance(module, torch.nn.modules.conv._ConvTransposeNd):
        return Channels((1,), module.groups)
    if type(module).__name__ == "Conv1D" and not isinstance(module, torch.nn.Conv1d):  # of transformers
        return Channels((1,))
    return Channels()


def _quantized(rows: torch.Tensor, width: int) -> str:
    """What eight bits per weight, with one scale per output channel, would lose."""
    scale = rows.abs().amax(1, keepdim=True).clamp_min(1e-12) / 127
    error = (rows / scale).round().clamp(-127, 127) * scale - rows
    signal, noise = float(rows.square().sum()), float(error.square().sum())
    saved = rows.numel() * (width - 1)
    ratio = (
        f"{10 * torch.log10(torch.tensor(signal / noise)).item():.0f} dB above its rounding"
        if noise
        else "exact"
    )
    return f"saves {size(max(0, saved))}; the weights are {ratio}"


def _pruned(rows: torch.Tensor) -> str:
    """How many weights, and how many whole output channels, are next to nothing."""
    small = float((rows.abs() < 0.01 * rows.abs().max()).double().mean())
    norms = rows.norm(dim=1)
    dead = int((norms < 0.05 * norms.max()).sum())
    weak = f", {dead:,} of {len(norms):,} output channels are below 5 % of the strongest" if dead else ""
    return f"{small:.1%} of the weights are below 1 % of the largest{weak}"


def batch_advice(model: torch.nn.Module, trace: Trace) -> list[Advice] | None:
    """How large a batch fits this machine's memory, from shapes alone; None where inputs cannot be made up again."""
    from torch_vis.analysis.advice.batch_size.report import batch_size
    from torch_vis.graph.schema import Phase

    entry = trace.entry
    if entry is None or not entry.given or any("." in name for name in entry.given):
        return None
    inputs = {
        name: torch.zeros(tuple(map(int, shape)), dtype=dtype, device=device)
        for name, (dtype, shape, device) in entry.given.items()
    }
    device = next(iter(inputs.values())).device
    backward = bool((trace.graph.node_phase == Phase.BACKWARD).any())
    report = batch_size(model, kwargs=inputs, memory=_memory(device), backward=backward, measure=False)
    what = "forward and backward" if backward else "forward"
    rows = [Advice(name, text) for name, text in report.facts().items()]
    return [
        *rows,
        Advice("how", f"predicted from shapes, {what}; tv.advise.batch_size also runs and times it"),
    ]


def _memory(device: torch.device) -> int:
    """All of a device's memory."""
    if device.type == "cuda":
        return int(torch.cuda.get_device_properties(device).total_memory)
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
