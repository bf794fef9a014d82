"""A program as a compiler's front-end captured it: its graph modules, and what there is to say about them."""

from __future__ import annotations

import inspect
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from torch import fx

from torch_vis.capture.bodies import Subgraph
from torch_vis.capture.breaks import Break, Recompilation
from torch_vis.capture.eager import Capture
from torch_vis.capture.player import Player
from torch_vis.graph.graph import Graph
from torch_vis.graph.schema import COLUMNS, TABLES


@dataclass
class Program:
    """What was captured: one graph module, or one for each partition between graph breaks."""

    via: str
    modules: list[fx.GraphModule] = field(default_factory=list)
    exported: Any = None  # the ExportedProgram, where there is one
    signature: inspect.Signature | None = None  # of the callable that Dynamo took
    breaks: tuple[Break, ...] = ()
    guards: tuple[str, ...] = ()
    recompilations: tuple[Recompilation, ...] = ()
    ranges: dict[str, str] = field(default_factory=dict)  # of each symbol: "2 ≤ s0 ≤ 128"
    subgraphs: tuple[Subgraph, ...] = ()  # of higher-order operators: branches, bodies of loops
    compile_ns: int = 0

    def to_plain(self) -> dict[str, Any]:
        """What is kept with the trace when it is saved."""
        return {
            "via": self.via,
            "partitions": [count_nodes(module) for module in self.modules],
            "breaks": [row._asdict() for row in self.breaks],
            "guards": list(self.guards),
            "recompilations": [row._asdict() for row in self.recompilations],
            "ranges": dict(self.ranges),
            "subgraphs": [row.to_plain() for row in self.subgraphs],
            "compile_ns": self.compile_ns,
        }


def count_nodes(module: fx.GraphModule) -> int:
    """How many nodes of a graph compute something."""
    return sum(node.op.startswith("call_") for node in module.graph.nodes)


class Stage:
    """Plays the programs of one capture, each in a scope, and remembers which sizes are symbols."""

    def __init__(self, capture: Capture) -> None:
        self.capture = capture
        self.origins: dict[Any, Any] = {}
        self.symbols: dict[int, tuple[str, ...]] = {}
        self.subgraphs: dict[Any, Subgraph] = {}

    def player(self, module: fx.GraphModule) -> Player:
        """A player for one run of a graph module."""
        return Player(module, self.capture.recorder, self.origins, self.symbols, self.subgraphs)


def with_symbols(graph: Graph, symbols: dict[int, tuple[str, ...]], numbers: Any) -> Graph:
    """The graph with the sizes that the program leaves open named in its types."""
    if not symbols:
        return graph
    columns = {name: getattr(graph, name) for name in COLUMNS}
    tables: dict[str, list[Any]] = {name: list(getattr(graph, name)) for name in TABLES}
    known = {row: number for number, row in enumerate(tables["types"])}
    types = columns["value_type"].copy()
    for value, names in symbols.items():
        place = int(numbers[value])
        row = tables["types"][types[place]]
        if len(names) != len(row.shape):
            continue
        named = row._replace(symbols=names)
        if named not in known:
            known[named] = len(tables["types"])
            tables["types"].append(named)
        types[place] = known[named]
    columns["value_type"] = np.asarray(types)
    return Graph(columns, tables)
