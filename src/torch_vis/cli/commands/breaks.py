"""List the graph breaks that torch.compile meets in a model: the source line, the reason, what torch advises.

The exit code is 1 if there are any.
"""

from __future__ import annotations

from typing import Any

from torch_vis.cli import model_spec
from torch_vis.cli.output import Output
from torch_vis.cli.parser import Parser

EXAMPLES = (
    ("of a model of yours", "torch-vis breaks net.py:Breaking --input 2x8"),
    ("as data", "torch-vis breaks net.py:make_model --input 2x8 --json"),
)


def add_options(parser: Parser) -> None:
    """Its options."""
    model_spec.add_model_options(parser)
    model_spec.add_trace_options(parser, via=False)


def run(options: Any, out: Output) -> int:
    """Compile, and print the breaks."""
    subject = model_spec.subject(options)
    trace = model_spec.traced(subject, options, keep=False, via="dynamo")
    rows = [dict(vars(row)) for row in trace.breaks]
    out.give({"model": subject.label, "breaks": rows}, _text(subject.label, rows))
    return int(bool(rows))


def _text(label: str, rows: list[dict[str, Any]]) -> str:
    if not rows:
        return f"{label}: no graph breaks"
    lines = [f"{label}: {len(rows)} graph break{'s' if len(rows) > 1 else ''}"]
    for row in rows:
        lines += [
            "",
            f"{row['file']}:{row['line']} in {row['function']}",
            f"  {row['code']}",
            f"  {row['reason']}",
        ]
        lines += [f"  → {hint}" for hint in row["hints"]]
    return "\n".join(lines)
