"""What a command is given: the file of a trace, a file of weights, or the name of a model; and files that it writes."""

from __future__ import annotations

import os
import re
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

from torch_vis.cli import model_spec
from torch_vis.cli.command_table import PROGRAM
from torch_vis.cli.output import Output
from torch_vis.cli.parser import Parser
from torch_vis.errors import FileError, UsageError, missing_extra, no_match

if TYPE_CHECKING:
    from torch_vis._trace import Trace
    from torch_vis.analysis.ranks.world import World
    from torch_vis.views.terminal.source import Source


# one rank of a file of several: step.tvz#3
OF_RANK = re.compile(r"#(\d+)$")
WEIGHT_ENDINGS = (".pt", ".pth", ".bin", ".ckpt", ".pkl", ".safetensors", ".pt2", ".onnx")
ENDINGS = (".tvz", ".json", ".html", ".py", *WEIGHT_ENDINGS)


def add_output_option(parser: Parser) -> None:
    """``-o FILE``, as often as files are wanted."""
    parser.add_argument(
        "-o", "--output", action="append", default=[], metavar="FILE",
        help="write there; the ending says what: .tvz, .html, .json, .onnx, .svg, .md … (several -o are allowed)",
    )  # fmt: skip
    parser.add_argument(
        "--format",
        help="what to write, where the ending does not say it: a name, or your own package.module:Class",
    )


def can_write(paths: list[str], format: str | None) -> None:
    """Find out before the work whether every file could be written."""
    from torch_vis.formats import FORMATS, by_ending

    if format is not None and ":" not in format and format not in FORMATS:
        raise no_match("file format", format, FORMATS)
    for path in paths:
        row = FORMATS.get(by_ending(path) if format is None else format)
        if row is not None and row.extra is not None and find_spec(row.extra) is None:
            raise missing_extra(row.extra)
        folder = os.path.dirname(os.path.abspath(path))
        if not os.path.isdir(folder):
            raise FileError(f"cannot write {path}: there is no folder {folder}")


def takes_ranks(path: str, format: str | None) -> bool:
    """Whether a file can hold several ranks."""
    from torch_vis.formats import by_ending

    return (by_ending(path) if format is None else format) in ("tvz", "html", "perfetto")


def write(trace: Trace | World, paths: list[str], format: str | None, out: Output) -> list[str]:
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
    name = OF_RANK.sub("", name)
    return name.lower().endswith(ENDINGS) or os.path.exists(name) or os.sep in name


def load(path: str) -> Trace:
    """A trace that was saved; of a file of several ranks the one that is named, as in step.tvz#3."""
    import torch_vis as tv

    loaded = load_any(path)
    if isinstance(loaded, tv.World):
        raise UsageError(
            f"{path} has {len(loaded)} ranks: name one, as in {path}#{loaded.ranks[0]}; of all of them there are "
            f"{PROGRAM} show, explore, and report memory, communication, stragglers, critical_path and schedule"
        )
    return loaded


def load_any(path: str) -> Any:
    """A trace that was saved, a rank of several (step.tvz#3), or all of them."""
    import torch_vis as tv

    rank = OF_RANK.search(path)
    if rank is not None and not os.path.exists(path):
        world = load_any(path[: rank.start()])
        if not isinstance(world, tv.World):
            raise UsageError(f"{path[: rank.start()]} is of one rank alone: leave out {rank[0]}")
        return world[int(rank[1])]
    if not os.path.exists(path):
        raise FileError(f"there is no file {path!r}")
    if path.endswith(".py"):
        raise UsageError(f"{path!r} names no model: write {path}:NAME")
    return tv.load(path)


def world(word: str | None) -> World | None:
    """All ranks of a file of several; None for anything else."""
    from torch_vis.graph.io.world import is_world

    if word is None or not word.lower().endswith(".tvz") or not os.path.isfile(word) or not is_world(word):
        return None
    from torch_vis.analysis.ranks.world import World

    return World.load(word)


def facts(trace: Trace) -> dict[str, Any]:
    """What a trace comes to, as plain data."""
    from torch_vis.graph.lifetimes import next_run, peak_memory
    from torch_vis.graph.schema import Phase

    graph, metrics, meta = trace.graph, trace.metrics, trace.meta
    peak, later = peak_memory(metrics), next_run(graph, metrics, meta)
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
        "steady_peak_bytes": None if later is None else later.peak_bytes,
        "limits": list(trace.limits),
    }


def _total(metrics: Any, name: str) -> dict[str, Any] | None:
    """A column's sum, with how many operations it does not know."""
    if name not in metrics:
        return None
    column = metrics[name]
    return {"sum": column.total(), "unknown_operations": column.uncovered}


TRUST = "load the file as torch does: it can run any code on this machine, so only for files from people you trust"


def add_trust_option(parser: Parser) -> None:
    """``--trust``."""
    parser.add_argument("--trust", action="store_true", help=TRUST)


def is_weights(word: str | None) -> bool:
    """Whether a word names a file of weights, by its ending."""
    return word is not None and word.lower().endswith(WEIGHT_ENDINGS)


def opened(path: str, *, trust: bool) -> Source:
    """What is in the file."""
    if not os.path.exists(path):
        raise FileError(f"there is no file {path!r}")
    from torch_vis.interfaces.explorer.file_source import NeedsTrust, open_file

    try:
        return open_file(path, trust=trust)
    except NeedsTrust as error:
        raise NeedsTrust(error.path, "add --trust", error.reason) from error


def contents(word: str) -> str:
    """What is in a file that is no trace, as far as its ending says."""
    ending = os.path.splitext(word)[1].lower()
    return {".onnx": "is a graph for ONNX", ".pt2": "is an exported program"}.get(
        ending, "holds weights alone"
    )


def refuse(command: str, word: str | None) -> None:
    """For commands that need a run: say of a file of weights or of another program's graph what it takes instead."""
    if word is None or not is_weights(word):
        return
    if not os.path.exists(word):
        raise FileError(f"there is no file {word!r}")
    raise UsageError(
        f"{command} needs a run, and {word} {contents(word)}: trace the model that it belongs to, as in "
        f"{PROGRAM} trace file.py:make_model --input 1x3x224x224 -o model.tvz ({PROGRAM} summary {word} lists what is "
        "in it)"
    )


def give(source: Source, options: Any, out: Output) -> int:
    """Print the tree of a file, or all of it as data."""
    from torch_vis.interfaces.explorer.weight_files import as_data, as_text

    if out.as_json:
        out.give(as_data(source), "")
    else:
        out.give(None, as_text(source, depth=getattr(options, "depth", "auto")))
    return 0


def trace_of(
    options: Any, command: str, *, keep: bool = False, word: str | None = None, beside_model: bool = False
) -> Trace:
    """The trace that the options name, for a command: loaded, or made now.

    ``beside_model``: the options of a model may be given with a file as well, since they are those of another word.
    """
    word = word if word is not None else options.target
    refuse(command, word)
    if not is_trace(word):
        return model_spec.traced(model_spec.subject(options, word), options, keep=keep)
    if model_spec.has_model(options):
        raise UsageError(f"one thing at a time, not the file {word!r} and a model of a library")
    for flag in ("input", "backward", "loss", "fake", "via", "repeat"):
        if getattr(options, flag, None) and not beside_model:
            raise UsageError(f"{word} is a trace that was made already; --{flag} is for models")
    return load(str(word))
