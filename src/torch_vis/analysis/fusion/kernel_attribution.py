"""Which operation of a trace is in which kernel of the compiled program, told by where Inductor's nodes came from."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from torch_vis.capture.compilers.inductor_kernels import CompiledGraph, InductorKernel, call_nodes
from torch_vis.ops.loops import TABLE
from torch_vis.ops.names import plain_name
from torch_vis.ops.op_table import LoopKind

if TYPE_CHECKING:
    from torch_vis._trace import Trace
    from torch_vis.analysis.fusion.dependences import Bools

OPTIMISED = "optimised away, or taken apart so far that its parts cannot be told"
EAGER = "not compiled: torch.compile left it out of the graphs that it made"
PARTITION = re.compile(r"\bpartition (\d+)")
ALIASES = {  # operators that become another one before Inductor sees them
    "_native_batch_norm_legit_no_training": "native_batch_norm",
    "_native_batch_norm_legit_functional": "native_batch_norm",
    "_native_batch_norm_legit": "native_batch_norm",
    "_batch_norm_with_update_functional": "native_batch_norm",
}


class KernelAttribution:
    """The kernels of a compiled program, each with the operations that it has, and for each operation its kernels.

    The trace has to be one through Dynamo of the same program. Its partitions are then the graphs that Inductor was
    given, and a scope in one stands for the node that Inductor's nodes name as their source.
    """

    def __init__(self, traced: Trace, is_kernel: Bools, programs: Sequence[CompiledGraph]) -> None:
        self.graph = traced.graph
        self.kernels: list[tuple[InductorKernel, list[int]]] = []
        self.inside: dict[int, set[int]] = defaultdict(set)
        self._is_kernel = is_kernel
        self._programs = programs
        self._program = traced.program
        self._modules = traced.program.modules if traced.program is not None else []
        self._taken: set[int] = set()  # scopes of the partitions that Inductor was given
        self._place()

    def _place(self) -> None:
        modules = self._modules
        for scope_of, (partition, scopes) in self._partitions().items():
            if partition >= len(modules) or partition >= len(self._programs):
                continue
            nodes, program = call_nodes(modules[partition]), self._programs[partition]
            if nodes != program.nodes:
                continue  # Dynamo took it otherwise this time; its operations count as not matched
            self._taken.add(scope_of)
            rows = [self.graph.scopes[scope] for scope in scopes]
            indices = matches([row[1:] for row in nodes], [(row.path, row.type) for row in rows])
            within = {
                nodes[index].name: self._within[scope] for index, scope in zip(indices, scopes) if index >= 0
            }
            matched = self._match(program, within)
            # What a library computes is also named by loops that only bring its arguments into another layout.
            called = {
                n for k in program.kernels if k.extern for o in k.origins for n in matched.get(o.node, ())
            }
            for kernel in program.kernels:
                number = len(self.kernels)
                named = {node for o in kernel.origins for node in matched.get(o.node, ())}
                members = sorted(named if kernel.extern else named - called)
                self.kernels.append((kernel, members))
                for node in members:
                    self.inside[node].add(number)

    def _partitions(self) -> dict[int, tuple[int, list[int]]]:
        """Each call of a partition, by its scope: its number, and the scopes of the nodes that it ran, in order."""
        graph = self.graph
        owner, partitions = [-1] * len(graph.scope_call), {}
        modules = [graph.modules[module] for module in graph.scope_module]
        kinds, inside = [module.kind for module in modules], [-1] * len(modules)
        for scope, parent in enumerate(graph.scope_parent.tolist()):
            number = PARTITION.search(f"{modules[scope].path} {modules[scope].type}")
            if kinds[scope] == "compiled" and number is not None:
                inside[scope] = scope
                partitions[scope] = (int(number[1]), list[int]())
            elif parent >= 0:
                inside[scope], owner[scope] = inside[parent], owner[parent]
                if kinds[scope] == "function" and inside[scope] >= 0 and owner[scope] < 0:
                    owner[scope] = scope
                    partitions[inside[scope]][1].append(scope)
        self._inside = inside
        self._within: dict[int, list[int]] = defaultdict(list)
        for node in np.flatnonzero(self._is_kernel).tolist():
            self._within[owner[int(graph.node_scope[node])]].append(node)
        return partitions

    def unplaced(self) -> dict[str, list[int]]:
        """The operations that are in no kernel, by the reason."""
        reasons: dict[str, list[int]] = {}
        for node in np.flatnonzero(self._is_kernel).tolist():
            if node not in self.inside:
                reasons.setdefault(self._why(node), []).append(node)
        return reasons

    def _why(self, node: int) -> str:
        """Why an operation is in no kernel."""
        if self._inside[int(self.graph.node_scope[node])] in self._taken:
            return OPTIMISED
        breaks = self._program.breaks if self._program is not None else ()
        row = self.graph.nodes[node]
        at = [
            graph_break for graph_break in breaks if any(lost.op == row.op for lost in graph_break.lost)
        ] or breaks
        if not at:
            return EAGER
        parts = [at[0].reason, at[0].explanation, *at[0].hints[:1]]
        return f"not compiled, graph break: {'. '.join(text.rstrip('.') for text in parts if text)}"

    def _match(self, program: CompiledGraph, within: Mapping[str, list[int]]) -> dict[str, list[int]]:
        """For each of Inductor's nodes the operation that it was; one whose operator occurs several times, in order."""
        origins = {origin.node: origin for kernel in program.kernels for origin in kernel.origins}
        alike: dict[tuple[str, str], list[Any]] = defaultdict(list)
        for origin in sorted(origins.values(), key=lambda origin: origin.position):
            op = _plain(origin.op)
            if TABLE.get(op) != LoopKind.FREE:
                alike[origin.source, op].append(origin)
        nodes_of: dict[str, list[int]] = {}
        for (source, op), nodes in alike.items():
            ran = within.get(source, [])
            same = [node for node in ran if _plain(self.graph.nodes[node].name) == op] or ran
            if len(same) == 1:
                nodes_of.update({origin.node: same for origin in nodes})
            elif len(same) == len(nodes):
                nodes_of.update({origin.node: [node] for origin, node in zip(nodes, same)})
        return nodes_of


def matches(whole: Sequence[Any], part: Sequence[Any]) -> list[int]:
    """Where each item of a sequence stands in a longer one that it is a part of; -1 where that is not certain.

    Items keep their order, so the first way to lay one over the other from the left and from the right are the bounds.

    >>> matches("abcab", "ab"), matches("abcdb", "acb"), matches("ab", "c")
    ([-1, -1], [0, 2, 4], [-1])
    """
    left = _leftmost(whole, part)
    right = _leftmost(whole[::-1], part[::-1])
    if left is None or right is None:
        return [-1] * len(part)
    mirrored = [len(whole) - 1 - index for index in reversed(right)]
    return [a if a == b else -1 for a, b in zip(left, mirrored)]


def _leftmost(whole: Sequence[Any], part: Sequence[Any]) -> list[int] | None:
    matched, index = [], 0
    for item in part:
        while index < len(whole) and whole[index] != item:
            index += 1
        if index == len(whole):
            return None
        matched.append(index)
        index += 1
    return matched


def _plain(name: str) -> str:
    return ALIASES.get(plain_name(name), plain_name(name))
