"""What exporters write of an operation in words: names that are never the same twice, and facts with their units."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from torch_vis.graph import Graph, Metrics
from torch_vis.graph.call import short_name
from torch_vis.graph.schema import Flag, Phase, Role
from torch_vis.graph.text import many, shortened, with_unit
from torch_vis.graph.tree import Tree, group_sums
from torch_vis.graph.types import Array

LONGEST = 2000


def clean(text: str, longest: int = LONGEST) -> str:
    """Text that can be written as UTF-8, cut in the middle where it is very long.

    >>> clean("caf\\udce9"), clean("0123456789", 5)
    ('caf?', '01…89')
    """
    text = shortened(text, longest)
    return text if text.isascii() else text.encode("utf-8", "replace").decode("utf-8")


def circumstances(meta: Mapping[str, Any]) -> dict[str, Any]:
    """What a person reads about a run; not what its modules were set to, which only comparing needs."""
    return {name: fact for name, fact in meta.items() if name != "settings"}


class Names:
    """Hands out names; one that is taken gets a number."""

    def __init__(self, taken: Iterable[str] = (), *, longest: int = LONGEST) -> None:
        self._taken = {"", *taken}
        self._next: dict[str, int] = {}
        self._longest = longest

    def new(self, wanted: str) -> str:
        """The name wanted, or the next one like it."""
        name = wanted = clean(wanted, self._longest)
        while name in self._taken:
            number = self._next[wanted] = self._next.get(wanted, 1) + 1
            name = f"{wanted}_{number}"
        self._taken.add(name)
        return name


def outside_name(graph: Graph, value: int) -> str:
    """The name of a value that came from outside, or what it is."""
    name = int(graph.value_name[value])
    role = Role(graph.value_role[value]).name.lower()
    return graph.names[name] if name >= 0 and graph.names[name] else f"{role}_{value}"


def node_names(graph: Graph) -> list[str]:
    """A name for each operation that also finds it in the graph: ``addmm_31`` is ``graph.nodes[31]``."""
    short = [clean(short_name(call.op)) or "operation" for call in graph.calls]
    return [f"{short[call]}_{node}" for node, call in enumerate(graph.node_call.tolist())]


Fact = tuple[str, str]
METRICS = {
    "time_ns": ("time", "ns"),
    "alloc_bytes": ("memory", "B"),
    "live_bytes": ("live", "B"),
    "flops": ("FLOPs", ""),
    "macs": ("MACs", ""),
    "moved_bytes": ("accessed", "B"),
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
        names = [name for name in METRICS if name in metrics]
        self.columns = {name: metrics[name] for name in names if metrics[name].along == "node"}
        self._figures = {
            name: (METRICS[name], column.values.tolist(), column.known_rows.tolist())
            for name, column in self.columns.items()
        }
        self._sites = [site.short for site in graph.sites]
        self._site: list[int] = graph.node_site.tolist()
        self._phase: list[int] = graph.node_phase.tolist()
        self._flags: list[int] = graph.node_flags.tolist()

    def of_node(self, node: int, *, site: bool = True) -> list[Fact]:
        """What is known of one operation, the source line included or not."""
        facts = [("phase", PHASES[self._phase[node]])]
        if site:
            facts += self.of_site(self._site[node])
        for name, ((label, unit), values, known) in self._figures.items():
            if known[node] and (values[node] or name not in FEW):
                facts.append((label, with_unit(values[node], unit, exact=name not in NOT_SUMMED)))
        flags = FLAGS[self._flags[node]]
        return [*facts, ("flags", flags)] if flags else facts

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
            return tree.inclusive(group_sums(where, values, count))

        operations = sums_of(np.ones(len(group), dtype=np.int64))
        facts = [[("operations", f"{operations[number]:,}")] for number in range(count)]
        for name, column in self.columns.items():
            if name in NOT_SUMMED:
                continue
            label, unit = METRICS[name]
            sums = sums_of(np.where(column.known_rows, column.values, 0))
            missing = sums_of(column.unknown_rows)
            for number, (total, unknown) in enumerate(zip(sums.tolist(), missing.tolist())):
                if unknown < operations[number] and (total or name not in FEW):
                    rest = f"; {many(unknown, 'operation')} not known" if unknown else ""
                    facts[number].append((label, with_unit(total, unit) + rest))
        return facts
