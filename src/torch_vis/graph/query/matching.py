"""What a selector selects in a graph: calls of modules, or operations."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import numpy as np

from torch_vis.errors import UsageError, no_match
from torch_vis.graph.columns import Columns
from torch_vis.graph.query.selector import (
    Atom,
    Branch,
    CallsOf,
    ModuleName,
    Operations,
    SelectorNames,
    Term,
    evaluate,
    glob_matcher,
    operator_names,
    selector,
)
from torch_vis.graph.schema import Flag, Phase
from torch_vis.graph.types import Bools, Ints


class SelectorMatch(NamedTuple):
    """What one branch of a selector selects: the branch, its names resolved, and the rows."""

    branch: Branch
    rows: Ints
    """Numbers of nodes, or of scopes."""
    is_operation: bool


class GraphQuery:
    """Answers selectors on one graph; ``node`` and ``scope`` make what a predicate is given."""

    def __init__(
        self,
        graph: Columns,
        *,
        node: Callable[[int], Any],
        scope: Callable[[int], Any],
        kinds: tuple[str, ...] = ("module",),
        second_paths: Mapping[str, str] | None = None,
    ) -> None:
        self.graph = graph
        self._node, self._scope = node, scope
        self.kinds = kinds
        # only these can be named; the rest keep their places, so that numbers are those of the graph
        rows = [
            ModuleName(module.path, module.type) if module.kind in kinds else ModuleName("", "")
            for module in graph.modules
        ]
        self.names = SelectorNames(
            rows, dict.fromkeys(call.op for call in graph.calls), self._ran_as, second_paths
        )

    def _ran_as(self, function: str) -> list[str]:
        """The operators that calls of a function of torch's ran, views last."""
        graph = self.graph
        names = [number for number, name in enumerate(graph.names) if name == function]
        nodes = np.flatnonzero(np.isin(graph.node_api, names))
        ordered = sorted(nodes.tolist(), key=lambda node: bool(graph.node_flags[node] & Flag.VIEW))
        return list(
            dict.fromkeys(operator_names(graph.calls[graph.node_call[node]].op)[2] for node in ordered)
        )

    def matches(self, wanted: Any, *, operations: bool = False) -> list[SelectorMatch]:
        """What each branch of a selector selects; with ``operations``, modules stand for the operations inside."""
        result = []
        for branch in selector(wanted).branches:
            branch = self.names.resolved(branch)
            if operations or branch.of_operations:
                result.append(SelectorMatch(branch, np.flatnonzero(self.nodes(branch.term)), True))
            else:
                result.append(SelectorMatch(branch, np.flatnonzero(self.scopes(branch.term)), False))
        return result

    def calls(self, wanted: Any) -> list[int]:
        """The calls of modules that a selector selects; raises where it names operations or tensors, or nothing."""
        scopes: list[int] = []
        for match in self.matches(wanted):
            if match.is_operation or match.branch.suffix or match.branch.reader is not None:
                raise UsageError(
                    f"{str(selector(wanted))!r} names operations or tensors; modules are wanted here"
                )
            scopes += match.rows.tolist()
        if not scopes:
            raise UsageError(f"{str(selector(wanted))!r} selects no call of a module")
        return sorted(set(scopes))

    def nodes(self, term: Term) -> Bools:
        """Which operations a term selects."""
        return np.asarray(evaluate(term, self._node_mask), dtype=bool)

    def scopes(self, term: Term) -> Bools:
        """Which calls of modules a term selects."""
        return np.asarray(evaluate(term, self._scope_mask), dtype=bool) & self._nameable

    # ---------------------------------------------------------------- calls of modules

    @property
    def _nameable(self) -> Bools:
        named = np.array([module.kind in self.kinds for module in self.graph.modules], dtype=bool)
        return named[self.graph.scope_module]

    def _scope_mask(self, atom: Any) -> Bools:
        graph = self.graph
        if isinstance(atom, CallsOf):
            return self._calls(atom)
        if isinstance(atom, Atom) and atom.field == "predicate":
            chosen = np.zeros(len(graph.scope_call), dtype=bool)
            for scope in np.flatnonzero(self._nameable).tolist():
                chosen[scope] = _truth(atom, self._scope(scope))
            return chosen
        raise UsageError(f"{atom} names operations and not calls of modules")

    def _calls(self, calls: CallsOf) -> Bools:
        graph = self.graph
        mask = np.isin(graph.scope_module, list(calls.modules)) & self._nameable
        if calls.number is not None:
            mask &= graph.scope_call == calls.number
        if calls.call is not None:
            mask &= self.calls_within == calls.call
        if not mask.any():
            module = graph.modules[next(iter(calls.modules))]
            often = int(np.isin(graph.scope_module, list(calls.modules)).sum())
            raise UsageError(
                f"module {module.path!r} was called {often} time{'s' if often != 1 else ''}, counted from 0; there "
                f"is no call {calls.number if calls.call is None else calls.call}"
            )
        return mask

    @property
    def calls_within(self) -> Ints:
        """For each scope, how many calls of the same module came before it within one call of the model."""
        graph = self.graph
        outer = self.outer_calls.tolist()
        counts: dict[tuple[int, int], int] = {}
        result = np.zeros(len(outer), dtype=np.int64)
        for scope, key in enumerate(zip(outer, graph.scope_module.tolist())):
            result[scope] = counts[key] = counts.get(key, -1) + 1
        return result

    @property
    def outer_calls(self) -> Ints:
        """For each scope the outermost call of a module around it, or itself; 0 where there is none."""
        parent = self.graph.tree.parent.tolist()
        is_module = self.graph.tree.is_module.tolist()
        outer = [0] * len(parent)
        for scope, above in enumerate(parent):
            outer[scope] = outer[above] if above >= 0 and outer[above] else scope if is_module[scope] else 0
        return np.array(outer, dtype=np.int64)

    # ---------------------------------------------------------------- operations

    def _node_mask(self, atom: Any) -> Bools:
        graph = self.graph
        if isinstance(atom, CallsOf):
            return graph.tree.inside_some(self._calls(atom))[graph.node_scope]
        if isinstance(atom, Operations):
            return self._operations(atom)
        if atom.field == "predicate":
            return np.array([_truth(atom, self._node(node)) for node in range(len(graph))], dtype=bool)
        if atom.field == "phase":
            return np.asarray(graph.node_phase == code_of(Phase, atom.text, "phase"))
        if atom.field == "flag":
            return np.asarray((graph.node_flags & code_of(Flag, atom.text, "flag")) != 0)
        if atom.field == "dtype":
            return makes_dtype(graph, atom.text)
        return at_line(graph, atom.text)

    def _operations(self, wanted: Operations) -> Bools:
        graph = self.graph
        if wanted.node is not None:
            return self._one_node(wanted)
        mask = of_operator(graph, wanted.op)
        group = self.outer_calls[graph.node_scope]
        if wanted.inside is not None:
            calls = self._calls(wanted.inside)
            group = graph.tree.nearest(calls)[graph.node_scope]
            mask &= group >= 0
        if wanted.nth is None:
            return mask
        counts: dict[int, int] = {}
        chosen = np.zeros(len(graph), dtype=bool)
        for node in np.flatnonzero(mask).tolist():
            place = counts[int(group[node])] = counts.get(int(group[node]), -1) + 1
            chosen[node] = place == wanted.nth
        if not chosen.any():
            most = max(counts.values(), default=-1) + 1
            raise UsageError(
                f"there is no {wanted.op}:{wanted.nth}: at most {most} of them ran in one call, counted from 0"
            )
        return chosen

    def _one_node(self, wanted: Operations) -> Bools:
        graph, node = self.graph, int(wanted.node or 0)
        if node >= len(graph):
            raise UsageError(f"no node {node}; there are {len(graph):,}, counted from 0")
        if not of_operator(graph, wanted.op)[node]:
            raise UsageError(f"node {node} is {graph.calls[graph.node_call[node]].op}, not {wanted.op}")
        mask = np.zeros(len(graph), dtype=bool)
        mask[node] = True
        return mask


def _truth(atom: Atom, row: Any) -> bool:
    assert atom.test is not None
    return bool(atom.test(row))


# ---------------------------------------------------------------- filters


def of_operator(graph: Columns, pattern: str) -> Bools:
    """Which nodes run an operator whose name matches."""
    matches = glob_matcher(pattern)
    hit = np.array([any(map(matches, operator_names(call.op))) for call in graph.calls], dtype=bool)
    return hit.reshape(len(graph.calls))[graph.node_call]


def makes_dtype(graph: Columns, pattern: str) -> Bools:
    """Which nodes make a value whose element type matches."""
    matches = glob_matcher(pattern)
    hit = np.array([matches(row.dtype) for row in graph.types], dtype=bool).reshape(len(graph.types))
    mask = np.zeros(len(graph), dtype=bool)
    if len(graph.out_value):
        matching = graph.out_value[hit[graph.value_type[graph.out_value]]]
        mask[graph.value_producer[matching]] = True
    return mask


def at_line(graph: Columns, text: str) -> Bools:
    """Which nodes ran at a line of a file, or anywhere in it: ``net.py:42``, ``net.py``."""
    file, colon, line = text.rpartition(":")
    if not colon or not line.isdigit():
        file, line = text, ""
    end = glob_matcher(f"*/{file}")
    exact = glob_matcher(file)
    hit = np.array(
        [
            (exact(site.file) or end(site.file)) and (not line or site.line == int(line))
            for site in graph.sites
        ],
        dtype=bool,
    ).reshape(len(graph.sites))
    if not hit.any():
        lines = sorted({f"{site.file.rpartition('/')[2]}:{site.line}" for site in graph.sites})
        raise no_match("source line", text, lines)
    return np.asarray((graph.node_site >= 0) & hit[graph.node_site])


def code_of(codes: type[Phase] | type[Flag], name: str, kind: str) -> int:
    """The number of a phase or flag by its name."""
    known = {code.name.lower(): int(code) for code in codes}
    if name not in known:
        raise no_match(kind, name, known)
    return known[name]


def find(
    graph: Columns,
    query: GraphQuery,
    *,
    path: Any,
    op: str | None,
    phase: str | None,
    dtype: str | None,
    flag: str | None,
) -> Ints:
    """The numbers of the nodes that a selector and every pattern given select."""
    for name, pattern in {"op": op, "phase": phase, "dtype": dtype, "flag": flag}.items():
        if pattern is not None and not isinstance(pattern, str):
            raise UsageError(f"{name} is a pattern of text, not {pattern!r}")
    mask = np.ones(len(graph), dtype=bool)
    if path is not None and path != "":
        chosen = np.zeros(len(graph), dtype=bool)
        for match in query.matches(path, operations=True):
            if match.branch.suffix or match.branch.reader is not None:
                what = "an edge" if match.branch.reader is not None else "a tensor of them"
                out = f": leave {match.branch.suffix!r} out" if match.branch.suffix else ""
                raise UsageError(f"find() gives operations; {path!r} names {what}{out}")
            chosen[match.rows] = True
        mask &= chosen
    if op is not None:
        if not any(letter in op for letter in "*?["):
            query.names.operator(op)
        mask &= of_operator(graph, op)
    if phase is not None:
        mask &= graph.node_phase == code_of(Phase, phase, "phase")
    if flag is not None:
        mask &= (graph.node_flags & code_of(Flag, flag, "flag")) != 0
    if dtype is not None:
        mask &= makes_dtype(graph, dtype)
    return np.flatnonzero(mask)
