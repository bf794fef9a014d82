"""Traces that commands read, and the files that they write."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any

from torch_vis.cli.models import weights
from torch_vis.cli.output import Output
from torch_vis.cli.parser import Parser
from torch_vis.errors import FileError, UsageError

if TYPE_CHECKING:
    from torch_vis._trace import Trace

ENDINGS = (".tvz", ".json", ".html", ".py", *weights.ENDINGS)


def add_output_option(parser: Parser, *, required: bool = False) -> None:
    """``-o FILE``, as often as files are wanted."""
    parser.add_argument(
        "-o", "--output", action="append", default=[], required=required, metavar="FILE",
        help="write there; the ending says what: .tvz, .html, .json, .onnx, .svg, .md … (several -o are allowed)",
    )  # fmt: skip
    parser.add_argument(
        "--format",
        help="what to write, where the ending does not say it: a name, or your own package.module:Class",
    )


def can_write(paths: list[str], format: str | None) -> None:
    """Find out before the work whether every file could be written."""
    from torch_vis.formats import FORMATS, by_ending, no_match

    if format is not None and ":" not in format and format not in FORMATS:
        raise no_match("file format", format, FORMATS)
    for path in paths:
        if format is None:
            by_ending(path)
        folder = os.path.dirname(os.path.abspath(path))
        if not os.path.isdir(folder):
            raise FileError(f"cannot write {path}: there is no folder {folder}")


def write(trace: Trace, paths: list[str], format: str | None, out: Output) -> list[str]:
    """Save a trace to every path."""
    for path in paths:
        trace.save(path, format=format)
        out.say(f"wrote {path} ({_size(path)})")
    return list(paths)


def _size(path: str) -> str:
    from torch_vis.graph.text import size

    return size(os.path.getsize(path))


def is_trace(name: str | None) -> bool:
    """Whether a word on the command line is a file and not the name of a model."""
    if name is None or ":" in os.path.basename(name):
        return False
    return name.lower().endswith(ENDINGS) or os.path.exists(name) or os.sep in name


def load(path: str) -> Trace:
    """A trace that was saved."""
    import torch_vis as tv

    if not os.path.exists(path):
        raise FileError(f"there is no file {path!r}")
    if path.endswith(".py"):
        raise UsageError(f"{path!r} names no model: write {path}:NAME")
    return tv.load(path)


def facts(trace: Trace) -> dict[str, Any]:
    """What a trace comes to, as plain data."""
    from torch_vis.graph.lifetimes import peak_memory
    from torch_vis.graph.schema import Phase

    graph, metrics, meta = trace.graph, trace.metrics, trace.meta
    peak = peak_memory(metrics)
    phases = graph.node_phase.tolist()
    named = {Phase(number).name.lower(): phases.count(number) for number in sorted(set(phases))}
    return {
        "model": meta.get("model"),
        "operations": len(graph),
        "operations_by_phase": named,
        "parameters": meta.get("parameters"),
        "inputs": [{"name": v.name, "type": str(v.type)} for v in graph.inputs if v.role == "input"],
        "wall_ns": meta.get("wall_ns"),
        "flops": _total(metrics, "flops"),
        "peak_bytes": None if peak is None else peak.size_bytes,
        "limits": list(trace.limits),
    }


def _total(metrics: Any, name: str) -> dict[str, Any] | None:
    """A column's sum, with how many operations it does not know."""
    if name not in metrics:
        return None
    column = metrics[name]
    return {"sum": column.total(), "unknown_operations": column.uncovered}
