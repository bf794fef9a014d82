"""What changed between two runs, module by module, in words: causes without their consequences.

A layer that was made wider gives every operation behind it another shape. All of these are changed operations, and
``Comparison.changed`` has them; here is the one line ``fc1 Linear(8, 16) → Linear(8, 32)``. What is looked for, from
whole modules down to arguments: modules of another class, new, gone, swapped or called in another order; what they
were set to; what optimizers were set to; shapes and types of what the runs started from; operations that only one run
has, that are called otherwise, or that read something else. What a change of a module accounts for is left out below
it, what shapes account for is left out behind it, and backward is looked at only where forward is the same.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Collection, Iterable, Sequence
from functools import cached_property
from typing import NamedTuple

import numpy as np

from torch_vis.analysis.compare.align import Alignment
from torch_vis.analysis.compare.module_deltas import ModuleLists, is_root, module_scopes
from torch_vis.analysis.compare.outputs import match_results
from torch_vis.analysis.compare.settings import FROZEN, Settings
from torch_vis.analysis.compare.wiring import SUMS, InputChange
from torch_vis.analysis.compare.words import (
    changed_argument_names,
    changed_arguments,
    changes_of_inputs,
    instead,
    type_changes,
    view_root,
)
from torch_vis.graph.flow import ancestors
from torch_vis.graph.graph import Graph, Node, Scope
from torch_vis.graph.lifetimes import ENDING
from torch_vis.graph.run import Run
from torch_vis.graph.schema import Flag, Phase, Role
from torch_vis.graph.text import and_more, inert, many
from torch_vis.graph.types import Bools, Ints

# Operators named in one change.
MOST_NAMES = 4
# What changed in one module that is not said in one line.
MOST_DETAILS = 3
# Arguments that follow from the shape of what an operation reads.
SIZES = frozenset({
    "size", "sizes", "shape", "normalized_shape", "input_sizes", "bias_sizes", "self_size", "input_size",
    "output_size", "repeats", "split_size", "split_sizes", "M", "N", "C", "HxW", "end", "length", "implicit",
})  # fmt: skip

# Views that choose some of the data; the others, and copies, only say where it lies.
CHOOSING = frozenset({
    "select", "slice", "diagonal", "unfold", "split", "split_with_sizes", "unbind", "chunk", "narrow",
})  # fmt: skip
COPIES = frozenset({"clone", "contiguous"})
# Kinds of rows on operations that follow from others, if there are any: sizes, and where data lies.
SIZED, LAID_OUT = "sizes", "layout"
CAST = "_to_copy"
# From so many modules with added casts on, one line names them all.
MANY_CASTS = 3


class ModuleChange(NamedTuple):
    """One difference between the runs: in which module, and what it is in words."""

    kind: str
    """``class``, ``added``, ``removed``, ``calls``, ``place``, ``order``, ``settings``, ``tied``, ``optimizer``,
    ``tensor``, ``operation``, ``recomputed``, ``gradient`` or ``output``."""
    a: str | None
    """The path of the module in ``a``, None where it is not there."""
    b: str | None
    what: str
    line: str | None = None
    """The user's line, of a change of operations."""
    position: float = 0.0
    """Where in the run: between the operations of ``b`` of these numbers."""
    nodes_a: tuple[int, ...] = ()
    """The operations of ``a`` that it is about."""
    nodes_b: tuple[int, ...] = ()

    @property
    def path(self) -> str:
        """The path of the module, in ``a`` if it is there."""
        return (self.b if self.a is None else self.a) or ""

    def __str__(self) -> str:
        return inert(f"{self.path or '(root)'} {self.what}")

    def to_dict(self) -> dict[str, str | None]:
        """The change as plain data."""
        return {"kind": self.kind, "a": self.a, "b": self.b, "what": self.what, "line": self.line}


def find_changes(a: Run, b: Run, alignment: Alignment) -> list[ModuleChange]:
    """What changed from ``a`` to ``b``, in the order of the run.

    >>> import torch, torch_vis as tv
    >>> x = torch.ones(1, 3)
    >>> one = tv.trace(torch.nn.Sequential(torch.nn.Linear(3, 2), torch.nn.ReLU()), x)
    >>> two = tv.trace(torch.nn.Sequential(torch.nn.Linear(3, 4), torch.nn.Tanh()), x)
    >>> [str(change) for change in tv.compare(one, two).changes]
    ['0 Linear(3, 2) → Linear(3, 4)', '1 ReLU → Tanh']
    """
    return _ChangeFinder(a, b, alignment).run()


class _RunSide:
    """One of the two runs: which operations have no counterpart, and which calls are accounted for."""

    def __init__(self, run: Run, is_matched: Bools, differs: Bools, is_matched_scope: Bools) -> None:
        self.graph, self.settings = run.graph, Settings(run.meta)
        self.is_matched, self.differs, self.is_matched_scope = is_matched, differs, is_matched_scope
        self.module: Ints = module_scopes(self.graph)[self.graph.node_scope]
        """For each operation the call of a module that it runs in; 0 for the model as a whole."""
        tree = self.graph.tree
        self.matched_inside: Ints = tree.inclusive(tree.of_nodes(is_matched.astype(np.int64)))
        self.unmatched_inside: Ints = tree.inclusive(tree.of_nodes((~is_matched).astype(np.int64)))
        self.matched_scopes_inside: Ints = tree.inclusive(is_matched_scope.astype(np.int64))
        self.is_explained = np.zeros(len(tree), dtype=bool)
        """Of each call whether what differs in it, and inside it, is accounted for."""
        self.own_explained = np.zeros(len(tree), dtype=bool)
        """Of each call whether what differs directly in it is, unless it reads something else."""
        self.is_recomputed: Bools = self.graph.node_flags & Flag.RECOMPUTE != 0

        self.in_module: dict[int, list[int]] = defaultdict(list)
        """The operations directly in each call of a module, recomputed ones left out."""
        for node, (scope, recomputed) in enumerate(zip(self.module.tolist(), self.is_recomputed.tolist())):
            if not recomputed:
                self.in_module[scope].append(node)
        self.calls: dict[int, list[int]] = defaultdict(list)
        """The calls of each module."""
        for scope, module in enumerate(self.graph.scope_module.tolist()):
            self.calls[module].append(scope)
        self._scopes_by_place = np.argsort(tree.enter)
        places = tree.enter[self.graph.node_scope]
        self._nodes_by_place = np.argsort(places, kind="stable")
        self._places = places[self._nodes_by_place]

    def scopes_inside(self, scope: int) -> Ints:
        """A call, and those inside it."""
        tree = self.graph.tree
        return self._scopes_by_place[tree.enter[scope] : tree.leave[scope]]

    def explain(self, scope: int) -> None:
        """Account for all that is in a call, and inside it."""
        self.is_explained[self.scopes_inside(scope)] = True

    def nodes_inside(self, scope: int) -> list[int]:
        """The operations of a call, and of those inside it."""
        tree = self.graph.tree
        begin, end = np.searchsorted(self._places, [tree.enter[scope], tree.leave[scope]])
        return sorted(self._nodes_by_place[begin:end].tolist())

    def calls_of(self, scope: int) -> list[int]:
        """The calls of the module that a call is of."""
        return self.calls[int(self.graph.scope_module[scope])]

    def path(self, scope: int) -> str:
        """The path of a call's module; that of the whole model is empty."""
        return "" if scope == 0 or is_root(self.graph, scope) else self.graph.scope_paths[scope]


class _ChangeFinder:
    """Looks for changes, from whole modules down to arguments; ``rows`` are those that were found so far."""

    def __init__(self, a: Run, b: Run, alignment: Alignment) -> None:
        self.alignment, self.to_b = alignment, alignment.to_b
        self.scope_to_b: list[int] = alignment.scope_to_b.tolist()
        matched_b = np.zeros(len(b.graph), dtype=bool)
        matched_b[self.to_b[self.to_b >= 0]] = True
        matched_scopes_b = np.zeros(len(b.graph.tree), dtype=bool)
        matched_scopes_b[alignment.scope_to_b[alignment.scope_to_b >= 0]] = True
        # operations of a that have changed
        self.changed = np.flatnonzero((self.to_b >= 0) & alignment.changed[self.to_b])
        differs_a = self.to_b < 0
        differs_a[self.changed] = True
        self.a = _RunSide(a, self.to_b >= 0, differs_a, alignment.scope_to_b >= 0)
        self.b = _RunSide(b, matched_b, ~matched_b | alignment.changed, matched_scopes_b)
        self.lists = ModuleLists(a.graph, b.graph, alignment)
        self.rows: list[ModuleChange] = []
        self.displaced: tuple[set[int], set[int]] = set(), set()
        """The calls of a and b that changed places, or are of another module: what reads them reads something else."""
        self.detailed: set[tuple[int, int]] = set()
        """The pairs of calls whose operations are on the line of their modules' settings."""
        self.shared: set[int] = set()
        """The calls of b of modules that are several modules in one run, and one in the other."""

    def run(self) -> list[ModuleChange]:
        self._classes()
        self._wrapped()
        self._new_and_gone()
        self._places()
        self._orders()
        self._module_settings()
        self._optimizers()
        self._outside()
        self._operations((Phase.FORWARD,), "")
        self._recomputed()
        if not self.rows:
            self._accumulated()
        if not self.rows:
            self._grad_modes()
        if not self.rows:
            self._operations((Phase.BACKWARD,), " (backward)")
        self._optimizer_operations()
        self._gradients()
        if not self.rows:
            for name, what in changed_outputs(self.a.graph, self.b.graph, self.alignment).items():
                self.rows.append(ModuleChange("output", name, name, what, position=len(self.b.graph)))
        self._frozen_at_once()
        return sorted(self.rows, key=lambda row: row.position)

    def _frozen_at_once(self) -> None:
        """One row for a module of which all parameters, those inside it too, were frozen or unfrozen."""
        for ending, side in ((" frozen", self.b), (" no longer frozen", self.a)):
            frozen = {
                row.path: row for row in self.rows if row.kind == "settings" and _is_frozen(row.what, ending)
            }
            owners = _owners_of_parameters(side.graph)
            outer = {path: _outermost_of(path, owners, set(frozen)) for path in frozen}
            for module in dict.fromkeys(outer.values()):
                members = [row for path, row in frozen.items() if outer[path] == module]
                if len(members) > 1:
                    nodes_a = [node for row in members for node in row.nodes_a]
                    nodes_b = [node for row in members for node in row.nodes_b]
                    position = min(row.position for row in members)
                    row = ModuleChange("settings", module, module, f"all parameters{ending}", None, position)
                    merged = row._replace(nodes_a=tuple(nodes_a), nodes_b=tuple(nodes_b))
                    self.rows = [*(row for row in self.rows if row not in members), merged]

    # --- modules ---

    def _add(
        self,
        kind: str,
        scope: int,
        other: int,
        what: str,
        nodes: tuple[Sequence[int], Sequence[int]],
        line: str | None = None,
    ) -> None:
        nodes_a, nodes_b = tuple(nodes[0]), tuple(nodes[1])
        path_a = None if scope < 0 else self.a.path(scope)
        path_b = None if other < 0 else self.b.path(other)
        position = self._position(nodes_a, nodes_b)
        self.rows.append(ModuleChange(kind, path_a, path_b, what, line, position, nodes_a, nodes_b))

    def _position(self, nodes_a: Sequence[int], nodes_b: Sequence[int]) -> float:
        if nodes_b:
            return float(nodes_b[0])
        return float(self._place_in_b[nodes_a[0]]) + 0.5 if nodes_a else -0.5

    @cached_property
    def _place_in_b(self) -> Ints:
        """For each operation of ``a`` the counterpart of the last one up to it that has one; -1 before the first."""
        index = np.where(self.to_b >= 0, np.arange(len(self.to_b)), -1)
        last = np.maximum.accumulate(index) if len(index) else index
        return np.where(last >= 0, self.to_b[last], -1)

    def _classes(self) -> None:
        """Modules of another class account for what runs directly in them, and for all if nothing of it is in both."""
        for before, after in self.lists.changed:
            scope, other = before.index, after.index
            nodes_a: list[int] = []
            nodes_b: list[int] = []
            for call, call_b in self._pairs_of_calls(scope):
                self.a.own_explained[call] = self.b.own_explained[call_b] = True
                nodes_a += self.a.nodes_inside(call)
                nodes_b += self.b.nodes_inside(call_b)
                if not self.a.matched_inside[call] and not self.b.matched_inside[call_b]:
                    self.a.explain(call)
                    self.b.explain(call_b)
            made = self._made(self.a, before), self._made(self.b, after)
            self._add("class", scope, other, f"{made[0]} → {made[1]}", (nodes_a, nodes_b))

    def _wrapped(self) -> None:
        """Modules that another module took the place of, and holds: a layer with an adapter around it, say."""
        for own, other, pairs in (
            (self.a, self.b, self.lists.moved),
            (self.b, self.a, [(after, before) for before, after in self.lists.moved]),
        ):
            seen: set[str] = set()
            for inner, held in pairs:
                name = held.path.removeprefix(f"{inner.path}.")
                outer = int(other.graph.scope_parent[held.index])
                is_around = held.path == f"{inner.path}.{name}" and other.path(outer) == inner.path
                if not is_around or "." in name or other.is_matched_scope[outer] or inner.path in seen:
                    continue
                seen.add(inner.path)
                for call in other.calls_of(outer):
                    other.own_explained[call] = True
                wrapper = other.settings.made(inner.path, other.graph.scopes[outer].type)
                layer = self._made(own, inner)
                nodes = own.nodes_inside(inner.index), other.nodes_inside(outer)
                if own is self.a:
                    self._add("class", inner.index, outer, f"{layer} → {wrapper} around it ({name})", nodes)
                else:
                    what = f"{wrapper} around {layer} ({name}) → that alone"
                    self._add("class", outer, inner.index, what, (nodes[1], nodes[0]))

    def _pairs_of_calls(self, scope: int) -> list[tuple[int, int]]:
        """The calls of the module that a call of ``a`` is of, with their counterparts."""
        calls = self.a.calls_of(scope)
        return [(call, self.scope_to_b[call]) for call in calls if self.scope_to_b[call] >= 0]

    def _made(self, side: _RunSide, scope: Scope) -> str:
        """The class of a call's module, with its sizes if these are known."""
        return side.settings.made(scope.path, scope.type)

    def _new_and_gone(self) -> None:
        """Modules that only one run calls, if they compute something that the other does not."""
        for kind, side, scopes in (
            ("removed", self.a, self.lists.removed),
            ("added", self.b, self.lists.added),
        ):
            more_calls: dict[str, list[int]] = defaultdict(list)
            for scope in scopes:
                index = scope.index
                is_new = side.unmatched_inside[index] and not side.matched_inside[index]
                if side.is_explained[index] or not is_new or side.matched_scopes_inside[index]:
                    continue
                side.explain(index)
                if self._matched_calls(side, scope):
                    more_calls[scope.path].append(index)
                    continue
                nodes = side.nodes_inside(index)
                what = f"{self._made(side, scope)} {kind}"
                if kind == "removed":
                    self._add(kind, index, -1, what, (nodes, ()))
                else:
                    self._add(kind, -1, index, what, ((), nodes))
            for calls in more_calls.values():
                self._more_calls(side, calls)

    def _matched_calls(self, side: _RunSide, scope: Scope) -> int:
        """How often a module is called in both runs."""
        return sum(bool(side.is_matched_scope[call]) for call in side.calls_of(scope.index))

    def _more_calls(self, side: _RunSide, calls: list[int]) -> None:
        """A module that one run calls more often."""
        scope = side.graph.scopes[calls[0]]
        both = self._matched_calls(side, scope)
        nodes = [node for call in calls for node in side.nodes_inside(call)]
        counts = (both + len(calls), both) if side is self.a else (both, both + len(calls))
        what = f"called {counts[0]} → {many(counts[1], 'time')}"
        if side is self.a:
            self._add("calls", calls[0], -1, what, (nodes, ()))
        else:
            self._add("calls", -1, calls[0], what, ((), nodes))

    def _places(self) -> None:
        """Modules that changed places, and those that became calls of one another."""
        pairs = {
            (before.path, after.path): (before.index, after.index)
            for before, after in reversed(self.lists.moved)
        }
        known_a = dict(pairs.keys())
        inside: list[str] = []
        for path, other in reversed(pairs):
            cycle = [path]
            while known_a.get(cycle[-1], path) != path and len(cycle) < 8:
                cycle.append(known_a[cycle[-1]])
            is_cycle = len(cycle) > 1 and known_a.get(cycle[-1]) == path
            if not is_cycle or any(path.startswith(f"{outer}.") for outer in inside):
                continue
            self._displace(pairs[path, other])
            if path in inside:
                continue
            inside += cycle
            scope, index = pairs[path, other]
            nodes = self.a.nodes_inside(scope), self.b.nodes_inside(index)
            what = (
                f"changed places with {_beside(path, cycle[1])}"
                if len(cycle) == 2
                else f"changed places: {and_more(cycle, 4)}"
            )
            self._add("place", scope, index, what, nodes)
        self._shared()

    def _displace(self, pair: tuple[int, int]) -> None:
        for side, scope, displaced in zip((self.a, self.b), pair, self.displaced):
            displaced.update(side.scopes_inside(scope).tolist())

    def _shared(self) -> None:
        """Modules of one run that are one module in the other, if they have weights."""
        graphs = self.a.graph, self.b.graph
        rewired = self.alignment.wiring.changed_inputs
        reading = {int(self.b.module[node]) for node in rewired}
        partners: tuple[dict[str, dict[str, tuple[int, int]]], ...] = (defaultdict(dict), defaultdict(dict))
        # the calls of b of each pair of modules
        calls: dict[frozenset[str], set[int]] = defaultdict(set)
        for scope, other in enumerate(self.scope_to_b):
            if other >= 0 and graphs[0].scopes[scope].kind == "module":
                path, path_b = self.a.path(scope), self.b.path(other)
                partners[0][path].setdefault(path_b, (scope, other))
                partners[1][path_b].setdefault(path, (scope, other))
                calls[frozenset((path, path_b))].add(other)
        pairs: dict[tuple[str, str, str], tuple[int, int]] = {}
        for of_run, run in ((partners[1], "B"), (partners[0], "A")):
            for path, others in of_run.items():
                if len(others) < 2:
                    continue
                for name in others:
                    paired = calls[frozenset((path, name))]
                    if name == path or not reading & paired:
                        continue
                    self.shared |= paired
                    outer, outer_name = _outermost_shared(of_run, path, name)
                    pairs[outer, outer_name, run] = of_run[outer][outer_name]
        for (path, name, run), (scope, other) in pairs.items():
            nodes = self.a.nodes_inside(scope), self.b.nodes_inside(other)
            what = f"is {path} in B, shared" if run == "B" else f"is {name} in B, no longer shared"
            self._add("place", scope, other, what, nodes)

    def _orders(self) -> None:
        """Modules that are called in another order, those that changed places left out."""
        for before, after in self.lists.reordered:
            scope, other = before.index, after.index
            if scope in self.displaced[0] or self.a.is_explained[scope]:
                continue
            nodes = self.a.nodes_inside(scope), self.b.nodes_inside(other)
            partner = self._exchanged.get(scope)
            self._displace((scope, other))
            if partner is not None:
                self._displace((partner, self.scope_to_b[partner]))
                self._add(
                    "place",
                    scope,
                    other,
                    f"changed places with {_beside(self.a.path(scope), self.a.path(partner))}",
                    nodes,
                )
                continue
            where = self._after(scope, other)
            # of those around it that changed places it is known
            if where is not None or not any(row.kind == "place" for row in self.rows):
                self._add("order", scope, other, f"called {where or 'in another order'}", nodes)

    @cached_property
    def _exchanged(self) -> dict[int, int]:
        """Calls of ``a`` of which others read what they read of one another before: keys and values, say."""
        scope_to_a = {other: scope for scope, other in enumerate(self.scope_to_b) if other >= 0}
        instead: set[tuple[int, int]] = set()
        for rows in self.alignment.wiring.changed_inputs.values():
            for row in rows:
                if min(row.a, row.b) < 0:
                    continue
                producers = [
                    view_root(side.graph.values[value]).producer
                    for side, value in ((self.a, row.a), (self.b, row.b))
                ]
                if isinstance(producers[0], Node) and isinstance(producers[1], Node):
                    before = int(self.a.module[producers[0].index])
                    instead.add((before, scope_to_a.get(int(self.b.module[producers[1].index]), -1)))
        return {a: b for a, b in instead if a != b and b > 0 and (b, a) in instead}

    def _after(self, scope: int, other: int) -> str | None:
        """Between which calls a call is made now, and was made before; None where these have the same paths."""
        texts = []
        for side, index in ((self.b, other), (self.a, scope)):
            parent = int(side.graph.scope_parent[index])
            calls = [call for call in side.graph.tree.children[parent] if side.graph.tree.is_module[call]]
            place = calls.index(index) if index in calls else 0
            before = _beside(side.path(index), side.path(calls[place - 1]))
            texts.append(f"after {before}" if place else "first")
        return f"{texts[0]} instead of {texts[1]}" if texts[0] != texts[1] else None

    # --- settings ---

    def _module_settings(self) -> None:
        """What modules were set to, where something differs in them: an attribute alone may mean nothing."""
        symptoms = self._symptoms()
        seen: set[int] = set()
        for scope, other in enumerate(self.scope_to_b):
            graph, module = self.a.graph, int(self.a.graph.scope_module[scope])
            before = graph.modules[module]
            if other < 0 or before.kind != "module" or module in seen or scope not in symptoms:
                continue
            after = self.b.graph.modules[int(self.b.graph.scope_module[other])]
            if before.type != after.type or self.a.is_explained[scope]:
                continue
            seen.add(module)
            texts = self._settings_words(before.path, after.path, before.type)
            if not texts:
                continue
            nodes: tuple[list[int], list[int]] = [], []
            for call, call_b in self._pairs_of_calls(scope):
                # the model as a whole is known as 0
                own_a, own_b = (
                    0 if is_root(side.graph, index) else index
                    for side, index in ((self.a, call), (self.b, call_b))
                )
                is_layer = _is_of_torch(before.type)
                details = [] if is_layer else self._details(own_a, own_b)
                if not is_layer:
                    self.detailed.add((own_a, own_b))
                texts += [text for text in details if text not in texts]
                self.a.own_explained[own_a] = self.b.own_explained[own_b] = True
                nodes[0].extend(self._differing(self.a, own_a))
                nodes[1].extend(self._differing(self.b, own_b))
            self._add("settings", scope, other, "; ".join(texts[: 1 + MOST_DETAILS]), nodes)

    def _symptoms(self) -> set[int]:
        """Calls of ``a`` in which an operation differs, or that call something else."""
        a, b = self.a, self.b
        scope_to_a = {other: scope for scope, other in enumerate(self.scope_to_b) if other >= 0}
        calls = {int(call) for call in a.module[self.changed]} | {
            int(call) for call in a.module[~a.is_matched]
        }
        calls |= {scope_to_a.get(int(call), -1) for call in b.module[~b.is_matched]}
        for scopes, side in ((self.lists.removed, a), (self.lists.added, b)):
            for scope in scopes:
                parent = int(side.graph.scope_parent[scope.index])
                calls.add(parent if side is a else scope_to_a.get(parent, -1))
        calls |= self._reading_other_weights()
        if 0 in calls:
            calls |= {scope for scope in range(len(a.graph.tree)) if is_root(a.graph, scope)}
        return calls

    def _reading_other_weights(self) -> set[int]:
        """Calls of ``a`` that read a weight which has another shape or type in ``b``."""
        calls: set[int] = set()
        counterparts = self.alignment.wiring.outside_to_b
        for value in np.flatnonzero(counterparts >= 0).tolist():
            before, after = self.a.graph.values[value], self.b.graph.values[int(counterparts[value])]
            if (before.type.shape, before.type.dtype) != (after.type.shape, after.type.dtype):
                if before.role in ("parameter", "buffer"):
                    calls.update(int(self.a.module[node]) for node in self.a.graph.value_users(value))
        return calls

    def _settings_words(self, path: str, path_b: str, type_: str) -> list[str]:
        """A module as it was made in both runs: ``Linear(8, 16) → Linear(8, 32)``."""
        settings_a, settings_b = self.a.settings, self.b.settings
        names = settings_a.changed(path, settings_b, path_b)
        changes = []
        if set(names) - {FROZEN}:
            made = settings_a.made(path, type_, names), settings_b.made(path_b, type_, names)
            changes.append(f"{made[0]} → {made[1]}")
        if FROZEN in names:
            before, after = settings_a.value(path, FROZEN), settings_b.value(path_b, FROZEN)
            changes.append(f"{after} frozen" if after else f"{before} no longer frozen")
        return changes

    def _differing(self, side: _RunSide, scope: int) -> list[int]:
        """The operations directly in a call that differ."""
        return [node for node in side.in_module[scope] if side.differs[node]]

    def _details(self, scope: int, other: int) -> list[str]:
        """What changed among the operations directly in two calls, in words."""
        rows = self._in_module(scope, other, (Phase.FORWARD,), "")
        return [row.what for row in rows if row.kind not in (SIZED, LAID_OUT)]

    def _optimizers(self) -> None:
        before, after = self.a.settings.optimizers, self.b.settings.optimizers
        names_a, names_b = ([str(row.get("name")) for row in rows] for rows in (before, after))
        if not before or not after:
            names_a, names_b = (
                [module.type for module in side.graph.modules if module.kind == "optimizer"]
                for side in (self.a, self.b)
            )
        end = float(len(self.b.graph))
        if names_a != names_b:
            texts = [", ".join(names) or "none" for names in (names_a, names_b)]
            self.rows.append(
                ModuleChange("optimizer", "optimizer", "optimizer", f"{texts[0]} → {texts[1]}", position=end)
            )
            return
        for name, row_a, row_b in zip(names_a, before, after):
            for what in _group_changes(row_a.get("groups"), row_b.get("groups")):
                self.rows.append(ModuleChange("optimizer", name, name, what, position=end))
        self._optimizer_steps()

    def _optimizer_steps(self) -> None:
        """Optimizers that take more or fewer steps, where no module is called more or less often."""
        if any(row.kind == "calls" for row in self.rows):
            return
        steps_a, steps_b = _optimizer_calls(self.a.graph), _optimizer_calls(self.b.graph)
        for path in steps_a.keys() & steps_b.keys():
            counts = len(steps_a[path]), len(steps_b[path])
            if counts[0] != counts[1]:
                nodes = self.b.nodes_inside(steps_b[path][0])
                position = float(min(nodes, default=len(self.b.graph)))
                what = f"steps {counts[0]} → {many(counts[1], 'time')}"
                self.rows.append(ModuleChange("optimizer", path, path, what, position=position))

    # --- what the runs started from ---

    def _outside(self) -> None:
        """Inputs and weights of another shape or type; of a module that was made otherwise it is known already."""
        known_paths = {row.path for row in self.rows if row.kind in ("settings", "class")}
        counterparts = self.alignment.wiring.outside_to_b
        dtypes: dict[str, list[str]] = defaultdict(list)
        for value in np.flatnonzero(counterparts >= 0).tolist():
            before, after = self.a.graph.values[value], self.b.graph.values[int(counterparts[value])]
            types = before.type, after.type
            if (types[0].shape, types[0].dtype) == (types[1].shape, types[1].dtype):
                continue
            what = f"{before.type} → {after.type}"
            if before.name is None:
                if not any(row.kind == "tensor" and row.what == what for row in self.rows):
                    readers = self._readers(value)
                    where = f"a tensor from outside ({before.role})"
                    self.rows.append(ModuleChange("tensor", where, where, what, None, -1.0, *readers))
            elif before.role == "input":
                readers = self._readers(value)
                self.rows.append(ModuleChange("tensor", before.name, after.name, what, None, -1.0, *readers))
            elif before.role in ("parameter", "buffer"):
                path = before.name.rpartition(".")[0]
                if types[0].shape == types[1].shape:
                    dtypes[f"{types[0].dtype} → {types[1].dtype}"].append(before.name)
                elif path not in known_paths:
                    what = f"{before.name.rpartition('.')[2]} {before.type} → {after.type}"
                    readers = self._readers(value)
                    position = self._position(*readers)
                    self.rows.append(ModuleChange("tensor", path, path, what, None, position, *readers))
        for what, names in dtypes.items():
            paths = sorted({name.rpartition(".")[0] for name in names})
            where = (
                names[0]
                if len(names) == 1
                else f"weights of {many(len(paths), 'module')}"
                if paths[1:]
                else paths[0]
            )
            self.rows.append(ModuleChange("tensor", where, where, what, position=-1.0))

    def _readers(self, value: int) -> tuple[tuple[int, ...], tuple[int, ...]]:
        """Who reads a value from before the run: in ``a``, and their counterparts."""
        readers = [int(node) for node in self.a.graph.value_users(value)]
        return tuple(readers), tuple(int(self.to_b[node]) for node in readers if self.to_b[node] >= 0)

    # --- operations ---

    def _operations(self, phases: Collection[int], suffix: str) -> None:
        """What changed among the operations of modules, those accounted for left out."""
        scope_to_a = {other: scope for scope, other in enumerate(self.scope_to_b) if other >= 0}
        modules: dict[tuple[int, int], None] = {}
        for node in self._open(self.a, phases):
            scope = int(self.a.module[node])
            modules[scope, self._counterpart(scope)] = None
        for node in self._open(self.b, phases):
            other = int(self.b.module[node])
            modules[0 if other == 0 else scope_to_a.get(other, -1), other] = None
        rows = [row for scope, other in modules for row in self._in_module(scope, other, phases, suffix)]
        rows = self._casts_at_once(rows)
        causes = [row for row in [*self.rows, *rows] if row.kind not in (SIZED, LAID_OUT)]
        first = min((row.position for row in causes), default=None)
        # what is made in another size follows from what came before, if anything did; where data lies, from anything
        self.rows += [
            row._replace(kind="operation") if row.kind in (SIZED, LAID_OUT) else row
            for row in rows
            if row.kind not in (SIZED, LAID_OUT)
            or first is None
            or (row.kind == SIZED and row.position < first)
        ]

    def _casts_at_once(self, rows: list[ModuleChange]) -> list[ModuleChange]:
        """The same, with one row for casts that only one run has in many modules, as autocast adds them."""
        for change, side in (("added", self.b), ("removed", self.a)):
            casts = [row for row in rows if _are_casts(row.what, change)]
            # a module that is called several times is one
            modules = {row.b if side is self.b else row.a for row in casts}
            if len(modules) < MANY_CASTS:
                continue
            nodes = [node for row in casts for node in (row.nodes_b if side is self.b else row.nodes_a)]
            targets = Counter(
                row.outputs[0].type.dtype for n in nodes if (row := side.graph.nodes[n]).name == CAST
            )
            dtype = targets.most_common(1)[0][0]
            what = f"casts to {dtype} {change} in {many(len(modules), 'module')}, as by autocast"
            merged = ModuleChange(
                "operation",
                "",
                "",
                what,
                casts[0].line,
                min(row.position for row in casts),
                tuple(node for row in casts for node in row.nodes_a),
                tuple(node for row in casts for node in row.nodes_b),
            )
            rows = [merged, *(row for row in rows if row not in casts)]
        return rows

    def _counterpart(self, scope: int) -> int:
        return 0 if scope == 0 else self.scope_to_b[scope]

    def _open(self, side: _RunSide, phases: Collection[int]) -> list[int]:
        """The operations that have no counterpart, or changed, and are not accounted for."""
        graph = side.graph
        is_open = side.differs & ~side.is_recomputed & np.isin(graph.node_phase, list(phases))
        nodes: list[int] = np.flatnonzero(is_open & ~side.is_explained[graph.node_scope]).tolist()
        return nodes

    def _in_module(self, scope: int, other: int, phases: Collection[int], suffix: str) -> list[ModuleChange]:
        """What changed among the operations directly in two calls, of which one may not be there (-1)."""
        nodes_a = self._sequence(self.a, scope, phases)
        nodes_b = self._sequence(self.b, other, phases)
        if (scope, other) in self.detailed:
            return []
        own_explained = (scope >= 0 and self.a.own_explained[scope]) or (
            other >= 0 and self.b.own_explained[other]
        )
        among_b = set(nodes_b)
        rows: dict[str, ModuleChange] = {}

        def add(row: ModuleChange) -> None:
            # the same more than once
            known = rows.get(row.what)
            rows[row.what] = (
                row
                if known is None
                else known._replace(nodes_a=known.nodes_a + row.nodes_a, nodes_b=known.nodes_b + row.nodes_b)
            )

        gaps_a: dict[int, list[int]] = defaultdict(list)
        gaps_b: dict[int, list[int]] = defaultdict(list)
        anchor, place_of = -1, {-1: -1}
        for node in nodes_a:
            counterpart = int(self.to_b[node])
            if counterpart < 0:
                gaps_a[anchor].append(node)
            elif counterpart in among_b:
                anchor = place_of[counterpart] = node
        anchor = -1
        for node in nodes_b:
            if node in place_of:
                anchor = place_of[node]
            elif not self.b.is_matched[node]:
                gaps_b[anchor].append(node)
        if not own_explained:
            for gap in sorted({*gaps_a, *gaps_b}):
                in_a, in_b = gaps_a.get(gap, []), gaps_b.get(gap, [])
                kind, what = self._replaced(in_a, in_b, views=Phase.FORWARD in phases)
                if kind == LAID_OUT and (
                    self._stops_gradients(self.a, in_a) or self._stops_gradients(self.b, in_b)
                ):
                    kind = "operation"
                if what:
                    add(self._row(scope, other, what + suffix, in_a, in_b)._replace(kind=kind))
        for node in nodes_a:
            counterpart = int(self.to_b[node])
            if counterpart >= 0 and self.alignment.changed[counterpart]:
                before, after = self.a.graph.nodes[node], self.b.graph.nodes[counterpart]
                for kind, what in self._changed_operation(before, after, own_explained):
                    add(self._row(scope, other, what + suffix, [node], [counterpart])._replace(kind=kind))
        return list(rows.values())

    def _sequence(self, side: _RunSide, scope: int, phases: Collection[int]) -> list[int]:
        phase = side.graph.node_phase
        return [node for node in side.in_module[scope] if phase[node] in phases] if scope >= 0 else []

    def _row(self, scope: int, other: int, what: str, nodes_a: list[int], nodes_b: list[int]) -> ModuleChange:
        node = self.b.graph.nodes[nodes_b[0]] if nodes_b else self.a.graph.nodes[nodes_a[0]]
        line = None if node.user_line is None else node.user_line.short
        paths = None if scope < 0 else self.a.path(scope), None if other < 0 else self.b.path(other)
        position = self._position(nodes_a, nodes_b)
        return ModuleChange("operation", *paths, what, line, position, tuple(nodes_a), tuple(nodes_b))

    def _replaced(self, nodes_a: list[int], nodes_b: list[int], *, views: bool) -> tuple[str, str]:
        """Which operators replace which: ``relu → gelu``, ``mul added``; of ``views`` only where nothing else is."""
        kind = "operation"
        names_a, names_b = _names(self.a.graph, nodes_a), _names(self.b.graph, nodes_b)
        if views and not names_a and not names_b:
            kind = LAID_OUT
            names_a, names_b = (
                _names(self.a.graph, nodes_a, views=True),
                _names(self.b.graph, nodes_b, views=True),
            )
        if names_a and names_b:
            return kind, f"{and_more(names_a, MOST_NAMES)} → {and_more(names_b, MOST_NAMES)}"
        if not names_a and not names_b:
            return kind, ""
        return kind, f"{and_more(names_a or names_b, MOST_NAMES)} {'removed' if names_a else 'added'}"

    def _stops_gradients(self, side: _RunSide, nodes: list[int]) -> bool:
        """Whether a detach is among views of one run alone: it moves no data, and decides where gradients flow."""
        return any(side.graph.nodes[node].name == "detach" for node in nodes)

    def _changed_operation(self, before: Node, after: Node, own_explained: bool) -> list[tuple[str, str]]:
        """How two matched operations differ, other than by what they read."""
        changes: list[tuple[str, str]] = []
        inputs = self.alignment.wiring.changed_inputs.get(after.index, ())
        module = int(self.b.module[after.index])
        # of what others hand to it; what it is itself has a line already
        reads = [
            row
            for row in inputs
            if module not in self.shared
            and module not in self.displaced[1]
            and not self._is_explained_input(row)
            and not (own_explained and self._is_own(row))
        ]
        tied = [self._tied(row, module) for row in reads]
        changes += [("tied", what) for what in tied if what]
        reads = [row for row, what in zip(reads, tied) if not what]
        if reads:
            changes += [
                ("operation", f"{after.name} {what}")
                for what in changes_of_inputs(reads, self.alignment.wiring)
            ]
        if own_explained:
            return changes
        if before.call != after.call:
            arguments = changed_arguments(before.call, after.call)
            # nothing, where one of two calls says what the operator takes anyway
            if arguments and not self._is_forced(before, after):
                what = f"{after.name} {arguments}" if before.call.op == after.call.op else arguments
                is_size = _are_sizes(before, after) and (not before.inputs or after.name in CHOOSING)
                changes.append((SIZED if is_size else "operation", what))
        elif not reads and not self._reads_other_types(before, after):
            types = [[v.type.shape for v in node.outputs] for node in (before, after)]
            dtypes = [[v.type.dtype for v in node.outputs] for node in (before, after)]
            kind = LAID_OUT if types[0] == types[1] and dtypes[0] == dtypes[1] else "operation"
            changes += [(kind, f"{after.name} {what}") for what in type_changes(before, after)]
        return changes

    def _is_own(self, row: InputChange) -> bool:
        """Whether one of two tensors is a weight, not something that another module computed."""
        return any(
            value >= 0 and view_root(side.graph.values[value]).producer is None
            for side, value in ((self.a, row.a), (self.b, row.b))
        )

    def _tied(self, row: InputChange, module: int) -> str:
        """That a module of ``b`` uses a weight of another module where it had one of its own, or the reverse."""
        if min(row.a, row.b) < 0:
            return ""
        before, after = (
            view_root(side.graph.values[value]) for side, value in ((self.a, row.a), (self.b, row.b))
        )
        if not (before.role == after.role == "parameter" and before.name and after.name):
            return ""
        path = self.b.path(module)
        owners = [name.rpartition(".")[0] for name in (before.name, after.name)]
        if owners[0] == path != owners[1]:
            return f"{before.name.rpartition('.')[2]} tied to {after.name}"
        if owners[1] == path != owners[0]:
            return f"{after.name.rpartition('.')[2]} no longer tied to {before.name}"
        return ""

    def _is_explained_input(self, row: InputChange) -> bool:
        """Whether another tensor is read because modules changed places."""
        for side, value, displaced in (
            (self.a, row.a, self.displaced[0]),
            (self.b, row.b, self.displaced[1]),
        ):
            producer = -1 if value < 0 else view_root(side.graph.values[value]).producer
            if isinstance(producer, Node) and _scope_of(producer) in displaced:
                return True
        return False

    def _reads_other_types(self, before: Node, after: Node) -> bool:
        """Whether shapes or types of what two operations read differ."""
        types_a, types_b = ([(v.type.dtype, v.type.shape) for v in node.inputs] for node in (before, after))
        return types_a != types_b

    def _is_forced(self, before: Node, after: Node) -> bool:
        """Whether a call differs in nothing but sizes, which follow from what it reads."""
        if not self._reads_other_types(before, after):
            return False
        return "view" in after.flags or _are_sizes(before, after)

    # --- backward and after ---

    def _recomputed(self) -> None:
        """Modules that only one run recomputes in backward."""
        paths = [_recomputed_paths(side.graph) for side in (self.a, self.b)]
        for own, others, where in (
            (paths[1], paths[0], "recomputed"),
            (paths[0], paths[1], "no longer recomputed"),
        ):
            for path in own:
                if path not in others:
                    position = float(len(self.b.graph))
                    what = f"{where} in backward"
                    self.rows.append(ModuleChange("recomputed", path, path, what, None, position))

    def _grad_modes(self) -> None:
        """Modules that run without gradients in one of two runs alone, if backward is not the same."""
        if not (self._open(self.a, (Phase.BACKWARD,)) or self._open(self.b, (Phase.BACKWARD,))):
            return
        matched = np.flatnonzero((self.to_b >= 0) & (self.a.graph.node_phase == Phase.FORWARD))
        records = [(side.graph.node_flags & Flag.GRAD_MODE) != 0 for side in (self.a, self.b)]
        before, after = records[0][matched], records[1][self.to_b[matched]]
        recomputed = _recomputed_paths(self.a.graph)
        for without, run in ((matched[before & ~after], "B"), (matched[~before & after], "A")):
            without = without[~self.a.is_recomputed[without]]
            for scope in _outermost_scopes(self.a.graph, without):
                # Checkpointed in both; of the two ways, only the reentrant one runs forward without gradients.
                what = (
                    f"is checkpointed by reentry in {run} alone (use_reentrant=True)"
                    if self.a.graph.scope_paths[scope] in recomputed
                    else f"runs without gradients in {run} alone (no_grad)"
                )
                nodes = [node for node in self.a.nodes_inside(scope) if self.to_b[node] >= 0]
                counterparts = [int(self.to_b[node]) for node in nodes]
                self._add("gradient", scope, self._counterpart(scope), what, (nodes, counterparts))

    def _accumulated(self) -> None:
        """Where only one run adds its gradients to those from before."""
        nodes = [_accumulating(side.graph) for side in (self.a, self.b)]
        if bool(nodes[0]) == bool(nodes[1]):
            return
        run = "A" if nodes[0] else "B"
        what = f"gradients are added to those from before the run, in {run} alone (zero_grad)"
        position = self._position(*nodes)
        self.rows.append(
            ModuleChange("gradient", "", "", what, None, position, tuple(nodes[0]), tuple(nodes[1]))
        )

    def _optimizer_operations(self) -> None:
        """What changed after backward: all of it, or if something changed before that, operators of one run alone."""
        if any(row.kind == "optimizer" for row in self.rows):
            return
        if not self.rows:
            self._operations((Phase.OPTIMIZER,), " (optimizer)")
            return
        names = [
            {node.name for node in (side.graph.nodes[n] for n in self._open(side, (Phase.OPTIMIZER,)))}
            for side in (self.a, self.b)
        ]
        all_names = [
            {side.graph.nodes[int(n)].name for n in np.flatnonzero(side.graph.node_phase == Phase.OPTIMIZER)}
            for side in (self.a, self.b)
        ]
        end = float(len(self.b.graph))
        for only, other, what in ((names[1], all_names[0], "added"), (names[0], all_names[1], "removed")):
            new = sorted(only - other)
            if new and (all_names[0] and all_names[1]):
                text = f"{and_more(new, MOST_NAMES)} {what} (optimizer)"
                self.rows.append(ModuleChange("operation", "", "", text, position=end))

    def _gradients(self) -> None:
        """Parameters of both runs that have a gradient in one of them alone."""
        matched = match_results(self.a.graph, self.b.graph, self.alignment.scope_to_b, self.alignment.wiring)
        frozen = {row.path for row in self.rows if "frozen" in row.what}
        known = self._leading_to_changes(self.a, 0) | self._leading_to_changes(self.b, 1)
        wiring = self.alignment.wiring
        kept = [
            {side.graph.values[v].name for v in np.flatnonzero(known >= 0).tolist()}
            for side, known in ((self.a, wiring.outside_to_b), (self.b, self._outside_to_a))
        ]
        if any(row.kind == "gradient" for row in self.rows):
            return
        any_gradient = [
            any(row.kind == "gradient" for row in side.graph.outcomes) for side in (self.a, self.b)
        ]
        if not all(any_gradient):
            return
        for rows, names, text in (
            (matched.only_a, kept[0], "no gradient in B"),
            (matched.only_b, kept[1], "no gradient in A"),
        ):
            by_module: dict[str, list[str]] = defaultdict(list)
            for row in rows:
                name = row.name.removesuffix(ENDING)
                is_listed = name.rpartition(".")[0] in frozen or name in known
                if row.kind == "gradient" and name in names and not is_listed:
                    by_module[name.rpartition(".")[0]].append(name.rpartition(".")[2])
            for path, parts in by_module.items():
                what = f"{and_more(parts, 3)}: {text}"
                self.rows.append(
                    ModuleChange("gradient", path, path, what, position=float(len(self.b.graph)))
                )

    def _leading_to_changes(self, side: _RunSide, index: int) -> set[str]:
        """The names of the weights that lead to an operation that is listed: they may be cut off there."""
        graph = side.graph
        nodes = [
            node for row in self.rows if row.kind != "gradient" for node in (row.nodes_a, row.nodes_b)[index]
        ]
        before = ancestors(graph, [node for node in nodes if graph.node_phase[node] == Phase.FORWARD])
        values = graph.in_value[before[graph.in_node]]
        named = values[(graph.value_producer[values] < 0) & (graph.value_name[values] >= 0)]
        return {graph.names[int(number)] for number in np.unique(graph.value_name[named])}

    @cached_property
    def _outside_to_a(self) -> Ints:
        to_b = self.alignment.wiring.outside_to_b
        to_a = np.full(len(self.b.graph.value_type), -1, dtype=np.int64)
        matched = np.flatnonzero(to_b >= 0)
        to_a[to_b[matched]] = matched
        return to_a


def _outermost_scopes(graph: Graph, nodes: Ints) -> list[int]:
    """The outermost calls of modules of which all operations of forward are among some, in order."""
    tree = graph.tree
    chosen = np.zeros(len(graph), dtype=np.int64)
    chosen[nodes] = 1
    forward = (graph.node_phase == Phase.FORWARD) & (graph.node_flags & Flag.RECOMPUTE == 0)
    inside = tree.inclusive(tree.of_nodes(forward.astype(np.int64)))
    is_whole = (inside > 0) & (tree.inclusive(tree.of_nodes(chosen)) == inside)
    modules = module_scopes(graph)
    scopes: dict[int, None] = {}
    for scope in modules[graph.node_scope[nodes]].tolist():
        while scope > 0 and is_whole[(outer := int(modules[graph.scope_parent[scope]]))]:
            scope = outer
        scopes[scope] = None
    return list(scopes)


def _outermost_shared(
    partners: dict[str, dict[str, tuple[int, int]]], path: str, name: str
) -> tuple[str, str]:
    """The outermost modules around two that are one in the other run, of which this is so as well."""
    while True:
        (outer, _, last), (outer_name, _, last_name) = path.rpartition("."), name.rpartition(".")
        is_alike = last == last_name and outer != outer_name
        if not is_alike or outer_name not in partners.get(outer, {}):
            return path, name
        path, name = outer, outer_name


def _beside(path: str, other: str) -> str:
    """A module as it is called beside another: by its name in the same one, unless that is an index; else by its path.

    >>> _beside("blocks.0.attn.k", "blocks.0.attn.v"), _beside("blocks.0", "blocks.1")
    ('v', 'blocks.1')
    """
    (outer, _, _), (other_outer, _, name) = path.rpartition("."), other.rpartition(".")
    return name if outer == other_outer and not name.isdigit() else other


def _scope_of(node: Node) -> int:
    """The call that an operation runs in."""
    return int(node.graph.node_scope[node.index])


def changed_outputs(a: Graph, b: Graph, alignment: Alignment) -> dict[str, str]:
    """The outputs that are something else, by name, in words, and those that only one of the runs has."""
    wiring = alignment.wiring
    matched = match_results(a, b, alignment.scope_to_b, wiring)
    changes = {}
    for row_a, row_b in matched.pairs:
        if row_a.kind != "output":
            continue
        if wiring.are_different(row_a.value, row_b.value):
            changes[row_a.name] = instead(a.values[row_a.value], b.values[row_b.value], wiring)
        elif row_a.name != row_b.name:
            changes[row_a.name] = f"called {row_b.name} in B"
    for rows, run in ((matched.only_a, "A"), (matched.only_b, "B")):
        changes |= {row.name: f"only in {run}" for row in rows if row.kind == "output"}
    return changes


def _names(graph: Graph, nodes: Iterable[int], *, views: bool = False) -> list[str]:
    """The operators of some operations; views only if asked for."""
    rows = [graph.nodes[node] for node in nodes]
    return [
        row.name
        for row in rows
        if views or row.name in CHOOSING or ("view" not in row.flags and row.name not in COPIES)
    ]


def _is_of_torch(class_name: str) -> bool:
    """Whether torch has a layer of that name; without torch here, none is known, and what is inside is said as well.

    >>> _is_of_torch("Dropout"), _is_of_torch("Block")
    (True, False)
    """
    try:
        import torch
    except ImportError:
        return False
    return hasattr(torch.nn, class_name)


def _optimizer_calls(graph: Graph) -> dict[str, list[int]]:
    """The scopes of each optimizer's steps, by what it is called."""
    calls: dict[str, list[int]] = defaultdict(list)
    for scope in graph.scopes:
        if scope.kind == "optimizer":
            calls[scope.path].append(scope.index)
    return calls


def _are_casts(what: str, change: str) -> bool:
    """Whether a row says that casts were added, or removed, and nothing else."""
    names, _, ending = what.partition(" (")[0].rpartition(" ")
    return ending == change and set(names.partition(" and ")[0].split(", ")) == {CAST}


def _is_frozen(what: str, ending: str) -> bool:
    names = what.removesuffix(ending)
    return what.endswith(ending) and "→" not in what and "no longer" not in names


def _owners_of_parameters(graph: Graph) -> set[str]:
    """The paths of the modules whose own parameters a run reads."""
    values = np.flatnonzero((graph.value_role == Role.PARAMETER) & (graph.value_name >= 0))
    return {graph.names[int(graph.value_name[value])].rpartition(".")[0] for value in values.tolist()}


def _outermost_of(path: str, owners: set[str], chosen: set[str]) -> str:
    """The outermost module around one in which all that have parameters are among the chosen ones."""
    while path:
        outer = path.rpartition(".")[0]
        inside = {owner for owner in owners if not outer or owner == outer or owner.startswith(f"{outer}.")}
        if not inside <= chosen:
            return path
        path = outer
    return path


def _are_sizes(before: Node, after: Node) -> bool:
    names = changed_argument_names(before.call, after.call)
    return bool(names) and set(names) <= SIZES


def _accumulating(graph: Graph) -> list[int]:
    """The operations of backward that add to a gradient from before the run."""
    sums = np.array([call.op.partition(".")[0] in SUMS for call in graph.calls], dtype=bool)[graph.node_call]
    is_gradient = (graph.value_producer < 0) & (graph.value_role == Role.GRADIENT)
    reads = np.zeros(len(graph), dtype=bool)
    reads[graph.in_node[is_gradient[graph.in_value]]] = True
    nodes: list[int] = np.flatnonzero(sums & reads & (graph.node_phase == Phase.BACKWARD)).tolist()
    return nodes


def _recomputed_paths(graph: Graph) -> dict[str, None]:
    """The outermost modules that backward recomputes, in order."""
    tree = graph.tree
    paths: dict[str, None] = {}
    modules = module_scopes(graph)
    for node in np.flatnonzero(graph.node_flags & Flag.RECOMPUTE != 0).tolist():
        scope = int(modules[graph.node_scope[node]])
        while scope > 0 and tree.recomputed[graph.scope_parent[scope]] and graph.scope_parent[scope] > 0:
            scope = int(graph.scope_parent[scope])
        paths["" if scope == 0 else graph.scope_paths[scope]] = None
    return paths


def _group_changes(groups_a: object, groups_b: object) -> list[str]:
    """What the groups of an optimizer are set to, where it is not the same: ``lr 0.1 → 0.01``."""
    if not isinstance(groups_a, list) or not isinstance(groups_b, list):
        return []
    if len(groups_a) != len(groups_b):
        return [f"{many(len(groups_a), 'group')} of parameters → {len(groups_b):,}"]
    changes: dict[str, list[int]] = defaultdict(list)
    for number, (a, b) in enumerate(zip(groups_a, groups_b)):
        if isinstance(a, dict) and isinstance(b, dict):
            for name in dict.fromkeys([*a, *b]):
                # what a scheduler keeps of the rate that the optimizer was made with
                follows = name == "initial_lr" and a.get("lr") != b.get("lr") and name in a and name in b
                if a.get(name) != b.get(name) and not follows:
                    changes[f"{name} {a.get(name, 'none')} → {b.get(name, 'none')}"].append(number)
    everywhere = len(groups_a)
    return [
        what if len(numbers) == everywhere else f"{what} in group {and_more(numbers, 3)}"
        for what, numbers in changes.items()
    ]
