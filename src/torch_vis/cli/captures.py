"""Put the ways to capture a model side by side: eager, fx, export, Dynamo and AOT; what each gives and what differs."""

from __future__ import annotations

from typing import Any

from torch_vis.cli import models
from torch_vis.cli.guard import users_code
from torch_vis.cli.landing import part
from torch_vis.cli.output import Output
from torch_vis.cli.parser import Parser

EXAMPLES = (
    ("of a model of yours", "torch-vis captures net.py:make_model --input 2x8"),
    ("as data", "torch-vis captures net.py:make_model --input 2x8 --json"),
)


def add_options(parser: Parser) -> None:
    """Its options."""
    models.add_model_options(parser)


def run(options: Any, out: Output) -> int:
    """Capture in every way, and print the comparison."""
    import torch_vis as tv

    compare = part(tv, "compare_captures", "comparison of captures")
    found = models.subject(options)
    with users_code(f"{found.label} failed on {found.given}"):
        compared = compare(found.model, *found.args, kwargs=found.kwargs)
    plain = compared.to_plain() if hasattr(compared, "to_plain") else str(compared)
    out.give(plain, str(compared))
    return 0
