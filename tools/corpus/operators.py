"""The operators of a trace: how often each was called, how long that took, and how much of it has no FLOPs figure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import NamedTuple

import numpy as np

import torch_vis as tv


class Tally(NamedTuple):
    """What is known of the calls of one operator; ``unknown`` and ``unknown_ns`` are those without a figure."""

    calls: int = 0
    unknown: int = 0
    time_ns: int = 0
    unknown_ns: int = 0


def tallies(trace: tv.Trace) -> dict[str, Tally]:
    """The operators of a trace by name, overload included."""
    graph = trace.graph
    names = {call.op: None for call in graph.calls}
    place = {name: number for number, name in enumerate(names)}
    group = np.array([place[call.op] for call in graph.calls], dtype=np.int64)[graph.node_call]
    known = trace.metrics["flops"].known
    missing = np.zeros(len(graph), dtype=bool) if known is None else ~known
    spent = trace.metrics["time_ns"].values

    def summed(weights: np.ndarray) -> list[int]:
        return np.bincount(group, weights=weights, minlength=len(names)).astype(np.int64).tolist()

    columns = (np.ones(len(graph)), missing, spent, np.where(missing, spent, 0))
    return {name: Tally(*row) for name, row in zip(names, zip(*map(summed, columns))) if row[0]}


def added(parts: Iterable[Mapping[str, Iterable[int]]]) -> dict[str, Tally]:
    """The same of several traces together."""
    found: dict[str, Tally] = {}
    for part in parts:
        for name, row in part.items():
            found[name] = Tally(*(a + b for a, b in zip(found.get(name, Tally()), row)))
    return found
