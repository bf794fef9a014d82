"""Time that the whole trace() adds to a plain run, against what TorchLens adds when it records structure alone."""

from __future__ import annotations

import warnings
from typing import Any

import torch

import torch_vis as tv
from bench import models
from bench.row import Row, at_least
from bench.timing import Samples, Side, interleave

# Everything that TorchLens can leave out; the cheapest of the sets tried (structure_only=True adds checks of its own).
LEAST: dict[str, Any] = {
    "layers_to_save": "none",
    "save_code_context": False,
    "save_rng_states": False,
    "save_arg_values": False,
    "save_raw_input": False,
    "save_raw_output": False,
    "recurrence_detection": False,
    "compute_input_output_distances": False,
    "capture_tensor_grad_hooks": False,
    "keep_orphans": True,
}


def run(quick: bool) -> list[Row]:
    """Two figures: a loop of 2,000 operations and the forward of BERT-base."""
    torch.set_num_threads(1)
    operations = 1_000 if quick else 2_000
    chain, inputs = models.loop(operations)
    rows = [_row(f"{operations:,}-operation loop", compare(chain, inputs, 2 if quick else 7), 100)]
    bert, ids = models.bert(1, 32 if quick else 128)
    samples = compare(bert.eval(), (ids,), 2 if quick else 15)
    return [*rows, _row("BERT-base forward", samples, 20)]


def compare(model: torch.nn.Module, args: tuple[Any, ...], rounds: int) -> Samples:
    """The plain run, trace() and TorchLens, in turns; torch is wrapped for TorchLens only while its turn lasts."""
    import torchlens
    from torchlens.backends.torch.wrappers import unwrap_torch, wrap_torch
    from torchlens.options import CaptureOptions

    def lens() -> Any:
        return torchlens.trace(model, list(args), capture=CaptureOptions(**LEAST))

    sides = {
        "plain": Side(lambda: model(*args)),
        "trace": Side(lambda: tv.trace(model, *args)),
        "torchlens": Side(lens, before=wrap_torch, after=unwrap_torch),
    }
    with warnings.catch_warnings(), torch.no_grad():
        warnings.simplefilter("ignore")
        return interleave(sides, rounds=rounds, warmups=1)


def _row(what: str, samples: Samples, limit: float) -> Row:
    ours, peer = samples.added("trace"), samples.added("torchlens")
    return at_least(
        f"trace() of a {what}" if what[0].isdigit() else f"trace() of {what}",
        f"+{ours * 1e3:.1f} ms",
        f"TorchLens +{peer * 1e3:,.0f} ms",
        peer / ours,
        limit,
        samples.best_added("torchlens") / samples.best_added("trace"),
    )
