"""What is known of an operation beside its data flow, in words: phase, source line, cost, marks."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from torch_vis.graph import Graph, Metrics
from torch_vis.graph.schema import Flag, Phase
from torch_vis.graph.text import many, with_unit
from torch_vis.graph.tree import Tree
from torch_vis.graph.types import Array

Fact = tuple[str, str]
METRICS = {
    "time_ns": ("time", "ns"),
    "alloc_bytes": ("memory", "B"),
    "live_bytes": ("live", "B"),
    "flops": ("FLOPs", ""),
    "macs": ("MACs", ""),
    "moved_bytes": ("moved", "B"),
}
FEW = frozenset({"macs"})  # most operations have none, and it is said of those that have some
NOT_SUMMED = frozenset({"live_bytes"})  # a state of the run and no cost of the operation
PHASES = [phase.name.lower() for phase in Phase]
FLAGS = [
    ", ".join(flag.name.lower() for flag in Flag if bits & flag and flag is not Flag.GRAD_MODE)
    for bits in range(256)
]


class Facts:
    """The facts of one graph; a figure that is not known is left out.

    >>> import torch, torch_vis as tv
    >>> t = tv.trace(torch.nn.ReLU(), torch.ones(2))
    >>> dict(Facts(t.graph, t.metrics).of_node(0))["memory"]
    '8 B'
    """

    def __init__(self, graph: Graph, metrics: Metrics) -> None:
        self.graph = graph
        found = [name for name in METRICS if name in metrics]
        self.columns = {name: metrics[name] for name in found if metrics[name].along == "node"}
        self._figures = {
            name: (
                METRICS[name],
                column.values.tolist(),
                None if column.known is None else column.known.tolist(),
            )
            for name, column in self.columns.items()
        }
        self._sites = [site.short for site in graph.sites]
        self._site: list[int] = graph.node_site.tolist()
        self._phase: list[int] = graph.node_phase.tolist()
        self._flags: list[int] = graph.node_flags.tolist()

    def of_node(self, node: int, *, site: bool = True) -> list[Fact]:
        """What is known of one operation, the source line included or not."""
        found = [("phase", PHASES[self._phase[node]])]
        if site:
            found += self.of_site(self._site[node])
        for name, ((label, unit), values, known) in self._figures.items():
            if (known is None or known[node]) and (values[node] or name not in FEW):
                found.append((label, with_unit(values[node], unit, exact=name not in NOT_SUMMED)))
        flags = FLAGS[self._flags[node]]
        return [*found, ("flags", flags)] if flags else found

    def of_site(self, site: int) -> list[Fact]:
        """A source line by its number in ``graph.sites``; nothing for -1."""
        return [("source", self._sites[site])] if site >= 0 else []

    def of_groups(self, group: Sequence[int], parent: Sequence[int]) -> list[list[Fact]]:
        """The sums over nested groups: ``group`` is the group of each operation, ``parent`` the one around each group.

        A group comes after the one around it. Where some of its operations are not known, the sum says how many.
        """
        count = len(parent)
        tree, where = Tree([-1, *parent[1:]]), np.asarray(group, dtype=np.int64)

        def sums_of(values: Array) -> Array:
            own = np.zeros(count, dtype=np.float64 if values.dtype.kind == "f" else np.int64)
            np.add.at(own, where, values)
            return tree.inclusive(own)

        operations = sums_of(np.ones(len(group), dtype=np.int64))
        found = [[("operations", f"{operations[number]:,}")] for number in range(count)]
        for name, column in self.columns.items():
            if name in NOT_SUMMED:
                continue
            label, unit = METRICS[name]
            known = np.ones(len(group), dtype=bool) if column.known is None else column.known
            sums = sums_of(np.where(known, column.values, 0))
            missing = sums_of(~known)
            for number, (total, unknown) in enumerate(zip(sums.tolist(), missing.tolist())):
                if unknown < operations[number] and (total or name not in FEW):
                    rest = f"; {many(unknown, 'operation')} not known" if unknown else ""
                    found[number].append((label, with_unit(total, unit) + rest))
        return found
