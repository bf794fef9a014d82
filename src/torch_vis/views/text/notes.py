"""Sentences on what the times and rows of a run stand for, where that is easily mistaken."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from torch_vis.graph import Graph
from torch_vis.graph.text import duration

AGAIN = "↻"  # stands beside what backward computes again
INSIDE = (
    "the modules inside torch.compile are not told apart; tv.trace(model, …, via='dynamo') of the model before "
    "torch.compile keeps them"
)


def wall_time(meta: Mapping[str, Any]) -> str:
    """The time of the recorded run, and how much of it was not the model's.

    >>> wall_time({"wall_ns": 2_500_000, "overhead_ns": 500_000, "compile_ns": 1_500_000})
    '2.50 ms, 500 µs of it to record, 1.50 ms to compile'
    """
    parts = {"record": meta.get("overhead_ns"), "compile": meta.get("compile_ns")}
    spent = [(duration(time), what) for what, time in parts.items() if time]
    texts = [f", {time}{'' if index else ' of it'} to {what}" for index, (time, what) in enumerate(spent)]
    return duration(meta["wall_ns"]) + "".join(texts)


def remarks(graph: Graph, meta: Mapping[str, Any]) -> list[str]:
    """All that there is to say of a run."""
    return [*compiling(meta), *repeated(meta), *inside_compiled(graph)]


def compiling(meta: Mapping[str, Any]) -> list[str]:
    """How much of the run was compilation, and how to leave it out.

    >>> compiling({"compile_ns": 2_000_000_000, "wall_ns": 2_500_000_000})[0][:62]
    'compiling took 2.00 s of the 2.50 s, and the module around it '
    """
    spent, wall = meta.get("compile_ns"), meta.get("wall_ns")
    if not spent or not wall or meta.get("repeat"):  # medians are of runs that compiled nothing
        return []
    part = f"{duration(spent)} of the {duration(wall)}, and the module around it counts it as its own"
    if (meta.get("program") or {}).get("via"):
        return [
            f"capturing the program took {part}; trace without via= for the times of the model as it runs"
        ]
    return [f"compiling took {part}; call the compiled model once before tracing to leave it out"]


def repeated(meta: Mapping[str, Any]) -> list[str]:
    """Which runs the times are of, where the wall time is of another."""
    runs = meta.get("repeat")
    if not runs:
        return []
    return [
        f"times of modules and operations are medians of {runs:,} more runs; the wall time is the recorded one's"
    ]


def inside_compiled(graph: Graph) -> list[str]:
    """Where the rows of compiled modules are."""
    compiled = any(kind == "compiled" and type_ == "OptimizedModule" for _, type_, kind in graph.modules)
    return [INSIDE] if compiled else []
