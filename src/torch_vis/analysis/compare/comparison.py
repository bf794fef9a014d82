"""``compare(a, b)``: in what two traces differ, as data, as a table and as a page."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator
from functools import cached_property
from itertools import islice
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from torch_vis.analysis.compare.align import align, module_of
from torch_vis.analysis.compare.change_text import differences_in, instead
from torch_vis.analysis.compare.charts import figures_of, incomplete_in
from torch_vis.analysis.compare.module_deltas import ModuleDelta, is_root, module_deltas, module_scopes
from torch_vis.analysis.compare.outputs import match_results
from torch_vis.analysis.compare.sequence_diff import increasing
from torch_vis.analysis.compare.text import chart, notes, text
from torch_vis.analysis.compare.weight_digest import contents_of
from torch_vis.api import Trace
from torch_vis.errors import TensorsMissing, UsageError, missing_extra, no_match
from torch_vis.graph.graph import Node, Rows, Scope
from torch_vis.graph.recomputed import first_calls
from torch_vis.graph.schema import Phase
from torch_vis.views.charts.chart import draw

if TYPE_CHECKING:
    import pandas

    from torch_vis.analysis.compare.numeric.report import Differences


MOST_TOLD = 5000  # changed operations whose differences a page says in words


class Change(NamedTuple):
    """An operation that is in both traces, but not the same: the two, and what differs."""

    before: Node
    after: Node
    what: tuple[str, ...]


class Comparison:
    """Two traces, aligned by structure; ``a`` is the earlier one.

    >>> import torch, torch_vis as tv
    >>> one = tv.trace(torch.nn.Sequential(torch.nn.Linear(3, 2), torch.nn.ReLU()), torch.ones(1, 3))
    >>> two = tv.trace(torch.nn.Sequential(torch.nn.Linear(3, 4), torch.nn.Tanh()), torch.ones(1, 3))
    >>> found = tv.compare(one, two)
    >>> [node.name for node in found.added], [node.name for node in found.removed], len(found.changed)
    (['tanh'], ['relu'], 2)
    """

    def __init__(self, a: Trace, b: Trace) -> None:
        self.a, self.b = a, b
        weights = contents_of(a.graph, a._held), contents_of(b.graph, b._held)
        self.alignment = align(a.graph, b.graph, weights)

    @property
    def same(self) -> bool:
        """Whether both ran the same operations on the same things, with the same arguments, shapes and types.

        And gave the same back; modules that both call are of the same classes, and called in the same order. Left out
        are names, and in which module an operation runs: a container around others, an ``Identity``, a layer that was
        written out or that a compiler took apart may be in one of the two alone. ``added_modules``,
        ``removed_modules`` and ``moved`` have these.

        >>> import torch, torch_vis as tv
        >>> x, layer = torch.ones(2), torch.nn.Tanh()
        >>> plain, more = torch.nn.Sequential(layer), torch.nn.Sequential(torch.nn.Identity(), layer)
        >>> found = tv.compare(tv.trace(plain, x), tv.trace(more, x))
        >>> found.same, [scope.type for scope in found.added_modules]
        (True, ['Identity'])
        >>> tv.compare(tv.trace(plain, x), tv.trace(torch.nn.Sequential(torch.nn.ReLU(), layer), x)).same
        False
        """
        operations = len(self.added) or len(self.removed) or self.alignment.changed.any()
        modules = self.reordered_modules or self.changed_modules
        return not (operations or modules or self.changed_outputs or self.ended[0] != self.ended[1])

    @property
    def ended(self) -> tuple[str | None, str | None]:
        """What ended each of the two early, None for one that came to its end: the rest of that one is not here."""
        return self.a.meta.get("error"), self.b.meta.get("error")

    @cached_property
    def added(self) -> Rows[Node]:
        """Operations of ``b`` that ``a`` does not have."""
        kept = np.zeros(len(self.b.graph), dtype=bool)
        kept[self.alignment.to_b[self.alignment.to_b >= 0]] = True
        return Rows(self.b.graph, Node, np.flatnonzero(~kept))

    @cached_property
    def removed(self) -> Rows[Node]:
        """Operations of ``a`` that ``b`` does not have."""
        return Rows(self.a.graph, Node, np.flatnonzero(self.alignment.to_b < 0))

    @cached_property
    def changed(self) -> list[Change]:
        """Operations that both have, with other arguments, shapes, types or strides, or that read something else."""
        return list(self._changes())

    def _changes(self) -> Iterator[Change]:
        for one in np.flatnonzero(self.alignment.to_b >= 0).tolist():
            two = int(self.alignment.to_b[one])
            if self.alignment.changed[two]:
                before, after = self.a.graph.nodes[one], self.b.graph.nodes[two]
                reads = self.alignment.wiring.reads.get(two, ())
                yield Change(before, after, tuple(differences_in(before, after, reads)))

    @cached_property
    def moved(self) -> list[tuple[Node, Node]]:
        """Operations that both have, in another of the modules that both have; of backward, they go with forward.

        Where a module itself is new or gone, it is listed as that.
        """
        a, b, to_b = self.a.graph, self.b.graph, self.alignment.to_b
        kept = np.flatnonzero((to_b >= 0) & (a.node_phase != Phase.BACKWARD))
        around_a, around_b = module_scopes(a)[a.node_scope[kept]], module_scopes(b)[b.node_scope[to_b[kept]]]
        went = self.alignment.scope_to_b[around_a]
        has_a = np.isin(around_b, self.alignment.scope_to_b)
        moved = kept[(went >= 0) & has_a & (b.scope_module[went] != b.scope_module[around_b])]
        return [(a.nodes[one], b.nodes[int(to_b[one])]) for one in moved.tolist()]

    @cached_property
    def changed_outputs(self) -> dict[str, str]:
        """The outputs that are something else, by name, in words, and those that only one of the runs has.

        So are those that both give back, in another container.

        >>> import torch, torch_vis as tv
        >>> one = tv.trace(lambda x: (x.exp(), x.sin()), torch.ones(2))
        >>> two = tv.trace(lambda x: (x.exp(), x.sin())[::-1], torch.ones(2))
        >>> tv.compare(one, two).changed_outputs["output.0"]
        'sin in the run instead of exp in the run'
        """
        matched = match_results(self.a.graph, self.b.graph, self.alignment.scope_to_b, self.alignment.wiring)
        a, b, wiring = self.a.graph.values, self.b.graph.values, self.alignment.wiring
        found = {
            one.name: instead(a[one.value], b[two.value])
            for one, two in matched.pairs
            if one.kind == "output" and wiring.is_other(one.value, two.value)
        }
        for one, two in matched.pairs:
            if one.kind == "output" and one.name != two.name:
                found.setdefault(one.name, f"called {two.name} in B")
        for rows, where in ((matched.only_a, "A"), (matched.only_b, "B")):
            found |= {row.name: f"only in {where}" for row in rows if row.kind == "output"}
        return found

    @cached_property
    def changed_modules(self) -> list[tuple[Scope, Scope]]:
        """Modules in the same place that are of another class, by their first calls; not the model as a whole.

        >>> import torch, torch_vis as tv
        >>> one, two = torch.nn.Sequential(torch.nn.ReLU()), torch.nn.Sequential(torch.nn.GELU())
        >>> x = torch.ones(2)
        >>> [(a.path, a.type, b.type) for a, b in tv.compare(tv.trace(one, x), tv.trace(two, x)).changed_modules]
        [('0', 'ReLU', 'GELU')]
        """
        a, b = self.a.graph, self.b.graph
        found: dict[int, tuple[Scope, Scope]] = {}
        for one, two in enumerate(self.alignment.scope_to_b.tolist()):
            number = int(a.scope_module[one])
            before, after = a.modules[number], b.modules[int(b.scope_module[two])]
            if two >= 0 and before.type != after.type and before.kind == "module" and number not in found:
                if not is_root(a, one) and not is_root(b, two):
                    found[number] = a.scopes[one], b.scopes[two]
        return list(found.values())

    @cached_property
    def modules(self) -> list[ModuleDelta]:
        """What the operations of each module come to in both: their number, parameters, time, memory, FLOPs."""
        return module_deltas(self.a, self.b, self.alignment)

    @cached_property
    def added_modules(self) -> list[Scope]:
        """Calls of modules that only ``b`` makes; not those that it makes again in backward."""
        kept = {
            *self.alignment.scope_to_b[self.alignment.scope_to_b >= 0].tolist(),
            *first_calls(self.b.graph),
        }
        return _modules(scope for scope in self.b.graph.scopes if scope.index not in kept)

    @cached_property
    def removed_modules(self) -> list[Scope]:
        """Calls of modules that only ``a`` makes; not those that it makes again in backward."""
        again = first_calls(self.a.graph)
        gone = [n for n in np.flatnonzero(self.alignment.scope_to_b < 0).tolist() if n not in again]
        return _modules(self.a.graph.scopes[n] for n in gone)

    @cached_property
    def moved_modules(self) -> list[tuple[Scope, Scope]]:
        """Calls of modules that both make, under another path."""
        found = []
        for one, two in enumerate(self.alignment.scope_to_b.tolist()):
            if two >= 0:
                before, after = self.a.graph.scopes[one], self.b.graph.scopes[two]
                if before.path != after.path and before.kind == "module":
                    if not (is_root(self.a.graph, one) and is_root(self.b.graph, two)):
                        found.append((before, after))
        return found

    @cached_property
    def reordered_modules(self) -> list[tuple[Scope, Scope]]:
        """Calls of modules that both make, in another order: the fewest that would have to move."""
        calls = [
            (one, two)
            for one, two in enumerate(self.alignment.scope_to_b.tolist())
            if two >= 0 and self.a.graph.scopes[one].kind == "module"
        ]
        kept = increasing([two for _, two in calls])
        moved = {one: two for place, (one, two) in enumerate(calls) if place not in kept}
        parent = self.a.graph.scope_parent
        return [
            (self.a.graph.scopes[one], self.b.graph.scopes[two])
            for one, two in moved.items()
            if int(parent[one]) not in moved  # what is inside has moved with it
        ]

    @cached_property
    def figures(self) -> dict[str, tuple[float | None, float | None]]:
        """What each of the two comes to: operations, parameters, time, memory, FLOPs; None where not known.

        Those that ``incomplete`` names are too low.
        """
        return figures_of(self.a, self.b)

    @cached_property
    def incomplete(self) -> dict[str, tuple[bool, bool]]:
        """The figures that leave out operations of which they are not known, and in which of the two they do."""
        return incomplete_in(self.a, self.b)

    def figure(self, renderer: str = "plotly") -> Any:
        """How much more or less of each figure ``b`` has, as bars in per cent of ``a``; those that are complete.

        >>> import torch, torch_vis as tv
        >>> one = tv.trace(torch.nn.Linear(3, 2), torch.ones(1, 3))
        >>> two = tv.trace(torch.nn.Linear(3, 4), torch.ones(1, 3))
        >>> len(tv.compare(one, two).figure().data[0].x)
        7
        """
        return draw(chart(self), renderer)

    def to_pandas(self, rows: str = "operations") -> pandas.DataFrame:
        """One row for each operation that was added, removed, changed or moved, or for each of the ``"modules"``.

        >>> import torch, torch_vis as tv
        >>> one, two = tv.trace(torch.nn.ReLU(), torch.ones(2)), tv.trace(torch.nn.Tanh(), torch.ones(2))
        >>> tv.compare(one, two).to_pandas()["change"].tolist()
        ['added', 'removed']
        >>> tv.compare(one, two).to_pandas("modules")["flops_b"].tolist()
        [2]
        """
        if rows not in ("operations", "modules"):
            raise no_match("rows", str(rows), ["operations", "modules"])
        try:
            import pandas
        except ImportError as error:
            raise missing_extra("pandas") from error
        if rows == "modules":
            return pandas.DataFrame([row.flat() for row in self.modules])
        found = [{"change": "added", **_plain(node), "what": ""} for node in self.added]
        found += [{"change": "removed", **_plain(node), "what": ""} for node in self.removed]
        found += [
            {"change": "changed", **_plain(row.after), "what": "; ".join(row.what)} for row in self.changed
        ]
        found += [
            {"change": "moved", **_plain(two), "what": f"{module_of(one)} → {module_of(two)}"}
            for one, two in self.moved
        ]
        return pandas.DataFrame(found, columns=["change", "node", "op", "module", "phase", "outputs", "what"])

    def differences(self, *, tolerance: float = 0.0) -> Differences:
        """Where the two part numerically: both runs are repeated side by side from the tensors that they hold.

        For two runs of one model: eager and captured, fp32 and bf16, before and after a change. Operations that differ
        by no more than ``tolerance``, relative to their norm, are left out.

        >>> import torch, torch_vis as tv
        >>> x = torch.ones(1, 3)
        >>> model = torch.nn.Linear(3, 2)
        >>> found = tv.compare(tv.trace(model, x), tv.trace(model, x, via="export")).differences()
        >>> len(found.rows), found.results["output"][1].relative
        (0, 0.0)
        """
        from torch_vis.analysis.compare.numeric.report import Differences

        for name, trace in (("A", self.a), ("B", self.b)):
            if trace.meta.get("fake"):
                raise TensorsMissing(
                    f"{name} was traced with fake=True: nothing was computed that could differ"
                )
        return Differences(self.a, self.b, self.alignment, tolerance)

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write a page (``.html``) that shows both runs as one graph, with what was added, removed and changed."""
        from torch_vis.views.page.compare import save_comparison

        if os.path.splitext(os.fspath(path))[1].lower() not in (".html", ".htm"):
            raise UsageError(
                f"a comparison is saved as a page: name a file that ends in .html, not {os.fspath(path)}"
            )
        told = {change.after.index: change.what for change in islice(self._changes(), MOST_TOLD)}
        save_comparison(path, _parts(self.a), _parts(self.b), self.alignment, words=told)

    def show(self) -> str:
        """Open that page: in the notebook that this is called from, or else in the browser; returns the file's path.

        >>> import torch, torch_vis as tv
        >>> t = tv.trace(torch.nn.ReLU(), torch.ones(2))
        >>> path = tv.compare(t, t).show()  # doctest: +SKIP
        """
        from torch_vis.views.page.show import present, temporary

        path = temporary("comparison")
        self.save(path)
        return present(path)

    def to_plain(self) -> dict[str, Any]:
        """The same as plain data, for JSON."""
        return {
            "same": self.same,
            "figures": {name: {"a": a, "b": b} for name, (a, b) in self.figures.items()},
            "incomplete": {name: {"a": a, "b": b} for name, (a, b) in self.incomplete.items()},
            "added": [_plain(node) for node in self.added],
            "removed": [_plain(node) for node in self.removed],
            "changed": [
                {"before": _plain(row.before), "after": _plain(row.after), "what": list(row.what)}
                for row in self.changed
            ],
            "moved": [{"before": _plain(one), "after": _plain(two)} for one, two in self.moved],
            "changed_outputs": self.changed_outputs,
            "changed_modules": [
                {"path": one.path, "in_b": two.path, "before": one.type, "after": two.type}
                for one, two in self.changed_modules
            ],
            "added_modules": [scope.path for scope in self.added_modules],
            "removed_modules": [scope.path for scope in self.removed_modules],
            "moved_modules": [[one.path, two.path] for one, two in self.moved_modules],
            "reordered_modules": [one.path for one, _ in self.reordered_modules],
            "modules": [row._asdict() for row in self.modules],
            "ended": {"a": self.ended[0], "b": self.ended[1]},
            "notes": notes(self),
        }

    def __repr__(self) -> str:
        parts = (len(self.added), len(self.removed), len(self.changed))
        return "<Comparison: {:,} added, {:,} removed, {:,} changed>".format(*parts)

    def __str__(self) -> str:
        return text(self)


def compare(a: Trace, b: Trace) -> Comparison:
    """Lay two traces over one another by their structure, not by number or name alone.

    >>> import torch, torch_vis as tv
    >>> x = torch.ones(1, 3)
    >>> tv.compare(tv.trace(torch.nn.ReLU(), x), tv.trace(torch.nn.ReLU(), x)).same
    True
    """
    for one in (a, b):
        if not isinstance(one, Trace):
            raise UsageError(f"compare() takes two traces, not {type(one).__name__}")
    return Comparison(a, b)


def _modules(scopes: Iterable[Scope]) -> list[Scope]:
    """Those that are calls of modules; not of the whole model once more, inside what a compiler captured of it."""
    return [
        scope
        for scope in scopes
        if scope.kind == "module" and not (scope.path and is_root(scope.graph, scope.index))
    ]


def _parts(trace: Trace) -> Any:
    return trace.graph, trace.metrics, trace.limits, trace.meta


def _plain(node: Node) -> dict[str, Any]:
    made = [str(value.type) for value in node.outputs]
    return {
        "node": node.index,
        "op": node.op,
        "module": module_of(node),
        "phase": node.phase,
        "outputs": made,
    }
