"""Put the ways to capture a model side by side: what each gives, what it costs, and how far its results are off.

The exit code is 1 if one of them cannot capture the model.
"""

from __future__ import annotations

from typing import Any

from torch_vis.cli import model_spec
from torch_vis.cli.import_path import users_code
from torch_vis.cli.output import Output
from torch_vis.cli.parser import Parser

EXAMPLES = (
    ("of a model of yours", "torch-vis captures net.py:make_model --input 2x8"),
    (
        "two of them, as data",
        "torch-vis captures net.py:make_model --input 2x8 --capture eager --capture fx --json",
    ),
)
CAPTURES = ("eager", "fx", "export", "dynamo", "aot", "onnx", "stablehlo")


def add_options(parser: Parser) -> None:
    """Its options."""
    model_spec.add_model_options(parser)
    parser.add_argument(
        "--capture", action="append", choices=CAPTURES, help="only this one; may be given several times"
    )


def run(options: Any, out: Output) -> int:
    """Capture in every way, and print the comparison."""
    import torch_vis as tv

    subject = model_spec.subject(options)
    with users_code(f"{subject.label} failed on {subject.given}"):
        which = options.capture or CAPTURES
        compared = tv.compare_captures(subject.model, *subject.args, kwargs=subject.kwargs, captures=which)
    rows = [row._asdict() for row in compared]
    out.give({"model": subject.label, "captures": rows}, str(compared))
    return int(not all(row["succeeded"] for row in rows))
