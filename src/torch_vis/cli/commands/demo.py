"""Trace one training step of a small transformer, prove the trace, and leave files to look at; takes some seconds."""

from __future__ import annotations

import os
from typing import Any

from torch_vis.cli.commands.table import PROGRAM
from torch_vis.cli.models import targets
from torch_vis.cli.output import Output
from torch_vis.cli.parser import Parser

EXAMPLES = (
    ("into the folder torch-vis-demo", "torch-vis demo"),
    ("somewhere else", "torch-vis demo --folder tour"),
)


def add_options(parser: Parser) -> None:
    """Its options."""
    parser.add_argument(
        "--folder", default="torch-vis-demo", help="where the files go (default: torch-vis-demo)"
    )


def run(options: Any, out: Output) -> int:
    """Trace, prove, save, and say how to go on."""
    import torch

    import torch_vis as tv

    torch.manual_seed(0)
    layer = torch.nn.TransformerEncoderLayer(64, 4, 128, batch_first=True)
    model = torch.nn.Sequential(
        torch.nn.Embedding(100, 64),
        torch.nn.TransformerEncoder(layer, 4, enable_nested_tensor=False),
        torch.nn.Linear(64, 100),
    )
    optimizer = torch.optim.AdamW(model.parameters())
    ids = torch.randint(0, 100, (2, 16))
    with tv.record(model) as trace:
        loss = torch.nn.functional.cross_entropy(model(ids).flatten(0, 1), ids.flatten())
        loss.backward()
        optimizer.step()
    proof = str(trace.check())
    os.makedirs(options.folder, exist_ok=True)
    paths = [os.path.join(options.folder, f"demo{ending}") for ending in (".tvz", ".html", ".svg", ".md")]
    targets.write(trace, paths, None, out)
    closing = f"{trace.table()}\n\nproof: {proof}\n\ngo on with\n  {PROGRAM} summary {paths[0]} --depth all"
    out.give({**targets.facts(trace), "proof": proof, "files": paths}, closing)
    return 0
