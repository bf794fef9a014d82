"""A program as a compiler's front-end captured it: its graph modules, and what there is to say about them."""

from __future__ import annotations

import inspect
from dataclasses import dataclass, field
from typing import Any

from torch import fx

from torch_vis.capture.compilers.graph_breaks import Break, Log, Lost, Recompilation
from torch_vis.capture.compilers.hop_bodies import Subgraph
from torch_vis.capture.compilers.interpreter import Player
from torch_vis.capture.compilers.symbolic_sizes import Bounds, told
from torch_vis.capture.session import Capture


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
    lost: tuple[Lost, ...] = ()  # what ran outside of partitions and belongs to no break
    bounds: dict[str, Bounds] = field(
        default_factory=dict
    )  # of each symbol, the least and the most it can be
    names: dict[str, str] = field(default_factory=dict)  # the user's names of symbols, by torch's
    subgraphs: tuple[Subgraph, ...] = ()  # of higher-order operators: branches, bodies of loops
    compile_ns: int = 0

    @property
    def ranges(self) -> dict[str, str]:
        """The range of each symbol, as it is read: ``2 ≤ s0 ≤ 128``."""
        return {name: told(name, bounds) for name, bounds in self.bounds.items()}

    def to_plain(self) -> dict[str, Any]:
        """What is kept with the trace when it is saved."""
        return {
            "via": self.via,
            "partitions": [count_nodes(module) for module in self.modules],
            "breaks": [
                {**row._asdict(), "lost": [part._asdict() for part in row.lost]} for row in self.breaks
            ],
            "lost": [part._asdict() for part in self.lost],
            "guards": list(self.guards),
            "recompilations": [row._asdict() for row in self.recompilations],
            "ranges": self.ranges,
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
        self.log: Log | None = None  # what Dynamo said, where it is the one that captures

    def player(self, module: fx.GraphModule) -> Player:
        """A player for one run of a graph module."""
        return Player(module, self.capture.recorder, self.origins, self.symbols, self.subgraphs)
