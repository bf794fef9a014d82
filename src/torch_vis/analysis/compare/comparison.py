"""``compare(a, b)``: in what two traces differ, as data, as a table and as a page."""

from __future__ import annotations

import os
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Sequence, Set
from functools import cached_property
from itertools import islice
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from torch_vis._trace import Trace
from torch_vis.analysis.compare.align import align, module_of
from torch_vis.analysis.compare.module_deltas import (
    ModuleDelta,
    is_root,
    largest,
    module_deltas,
    module_scopes,
)
from torch_vis.analysis.compare.module_keys import weight_digest
from torch_vis.analysis.compare.outputs import match_results
from torch_vis.analysis.compare.sequence_diff import increasing
from torch_vis.analysis.compare.sides import strides_of
from torch_vis.analysis.compare.wiring import InputChange
from torch_vis.errors import TensorsMissing, UsageError, missing_extra, no_match
from torch_vis.graph.graph import Graph, Node, Rows, Scope, Value
from torch_vis.graph.schema import Flag, Phase
from torch_vis.graph.text import and_more, count, duration, many, size
from torch_vis.views.charts.chart import Axis, Chart, Series, draw
from torch_vis.views.text.table import table

if TYPE_CHECKING:
    import pandas

    from torch_vis._trace import Trace
    from torch_vis.analysis.compare.numeric.report import DifferencesReport

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
        weights = weight_digest(a.graph, a.kept), weight_digest(b.graph, b.kept)
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
                reads = self.alignment.wiring.changed_inputs.get(two, ())
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
            if one.kind == "output" and wiring.are_different(one.value, two.value)
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
            *self.b.graph.tree.first_calls,
        }
        return _modules(scope for scope in self.b.graph.scopes if scope.index not in kept)

    @cached_property
    def removed_modules(self) -> list[Scope]:
        """Calls of modules that only ``a`` makes; not those that it makes again in backward."""
        again = self.a.graph.tree.first_calls
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

    def differences(self, *, tolerance: float = 0.0) -> DifferencesReport:
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
        from torch_vis.analysis.compare.numeric.report import DifferencesReport

        for name, trace in (("A", self.a), ("B", self.b)):
            if trace.meta.get("fake"):
                raise TensorsMissing(
                    f"{name} was traced with fake=True: nothing was computed that could differ"
                )
        return DifferencesReport(self.a, self.b, self.alignment, tolerance)

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write a page (``.html``) that shows both runs as one graph, with what was added, removed and changed."""
        from torch_vis.views.page.compare import save_comparison

        if os.path.splitext(os.fspath(path))[1].lower() not in (".html", ".htm"):
            raise UsageError(
                f"a comparison is saved as a page: name a file that ends in .html, not {os.fspath(path)}"
            )
        told = {change.after.index: change.what for change in islice(self._changes(), MOST_TOLD)}
        save_comparison(path, self.a, self.b, self.alignment, words=told)

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


def _plain(node: Node) -> dict[str, Any]:
    made = [str(value.type) for value in node.outputs]
    return {
        "node": node.index,
        "op": node.op,
        "module": module_of(node),
        "phase": node.phase,
        "outputs": made,
    }


MOST_ROWS = 20
MOST_LOOKED_AT = 2000  # operations, for lines that are equal


def differences_in(before: Node, after: Node, reads: Sequence[InputChange] = ()) -> list[str]:
    """What two operations make, how they are called and what they read, where that is not the same."""
    found = []
    made = [(", ".join(str(value.type) for value in node.outputs)) for node in (before, after)]
    if made[0] != made[1]:
        found.append(f"{made[0]} → {made[1]}")
    elif any(strides_of(one.type) != strides_of(two.type) for one, two in zip(before.outputs, after.outputs)):
        strides = [", ".join(str(value.type.stride) for value in node.outputs) for node in (before, after)]
        found.append(f"strides {strides[0]} → {strides[1]}")
    calls = before.call.format(), after.call.format()
    if calls[0] != calls[1]:
        found.append(f"{calls[0]} → {calls[1]}")
    elif before.call != after.call:
        found.append(f"{before.call.op} → {after.call.op}")
    return found + _rewired(before.graph, after.graph, reads)


def _rewired(a: Graph, b: Graph, reads: Sequence[InputChange]) -> list[str]:
    if len(reads) > 1 and sorted(read.identity_a for read in reads) == sorted(
        read.identity_b for read in reads
    ):
        return ["its operands are swapped" if len(reads) == 2 else "its operands are in another order"]
    told = []
    for read in reads:
        if read.a < 0 or read.b < 0:
            written = _maker(a.values[read.a] if read.b < 0 else b.values[read.b])
            told.append(f"reads what {written} writes" + (" in A alone" if read.b < 0 else " in B alone"))
        else:
            told.append(f"reads {instead(a.values[read.a], b.values[read.b])}")
    return list(dict.fromkeys(told))


def instead(before: Value, after: Value) -> str:
    """What a value is in the place of another: ``x (input) instead of addmm in a``."""
    for tell in (_source, _maker, _exactly):
        one, two = tell(before), tell(after)
        if one != two:
            break
    return f"{two} instead of {one}"


def _source(value: Value) -> str:
    """What a value comes from, with views looked through."""
    maker = value.producer
    while maker is not None and "view" in maker.flags and maker.inputs:
        value = maker.inputs[0]
        maker = value.producer
    return _maker(value)


def _maker(value: Value) -> str:
    """What made a value, or what it is if nothing did."""
    if value.producer is None:
        return f"{value.name} ({value.role})" if value.name else f"a {value.role} {value.type}"
    return line(value.producer)


def _exactly(value: Value) -> str:
    """The same, with which of several operations or results it is."""
    maker = value.producer
    if maker is None:
        return f"{_maker(value)}, value {value.index}"
    made = [output.index for output in maker.outputs]
    which = f", result {made.index(value.index)}" if len(made) > 1 else ""
    return f"{maker.call.format()} in {module_of(maker) or 'the run'}, operation {maker.index}{which}"


def line(node: Node) -> str:
    """An operation and where it runs."""
    return f"{node.name} in {module_of(node) or 'the run'}" + (
        f" ({node.phase})" if node.phase != "forward" else ""
    )


def listed(title: str, lines: list[str], total: int, more: str = "") -> list[str]:
    """Lines under a title, equal ones as one, those beyond the most that are shown as a number."""
    if not total:
        return []
    shown = list(Counter(lines).items())[:MOST_ROWS]
    rest = total - sum(times for _, times in shown)
    told = [f"  {text} × {times:,}" if times > 1 else f"  {text}" for text, times in shown]
    return ["", f"{title} ({total:,})", *told, *([f"  … and {rest:,} more{more}"] if rest else [])]


def listed_nodes(title: str, nodes: Rows[Node], graph: Graph) -> list[str]:
    """Operations under a title: those that compute, in their order, and how many views there are besides."""
    numbers = np.asarray(nodes.numbers, dtype=np.int64)
    is_view = graph.node_flags[numbers] & Flag.VIEW != 0
    kept = numbers[~is_view]
    lines = [line(graph.nodes[int(node)]) for node in kept[:MOST_LOOKED_AT]]
    found = listed(title, lines, len(kept)) if len(kept) else ["", f"{title} ({len(numbers):,})"]
    if len(numbers) and is_view.any():
        found[1] = f"{title} ({len(numbers):,})"
        names = Counter(graph.nodes[int(node)].name for node in numbers[is_view][:MOST_LOOKED_AT])
        told = ", ".join(name for name, _ in names.most_common(4)) + (" …" if len(names) > 4 else "")
        found.append(f"  {'and ' if len(kept) else ''}{many(int(is_view.sum()), 'view')}: {told}")
    return found if len(numbers) else []


FIGURES = {
    "operations": ("{:,}".format, None),
    "parameters": (count, None),
    "time": (duration, "time_ns"),
    "allocated": (size, "alloc_bytes"),
    "peak memory": (size, None),
    "FLOPs": (count, "flops"),
    "bytes moved": (size, "moved_bytes"),
}


def text(found: Comparison) -> str:
    """The whole comparison."""
    kept = len(found.a.graph) - len(found.removed)
    lines = [*_ended(found), *_figures(found), ""]
    lines += [f"{many(kept, 'operation')} in both, {len(found.changed):,} of them changed"]
    lines += listed_nodes("only in A", found.removed, found.a.graph)
    lines += listed_nodes("only in B", found.added, found.b.graph)
    computing = sorted(found.changed, key=lambda row: "view" in row.after.flags)  # before views
    changed = [f"{line(row.after)}: {'; '.join(row.what)}" for row in computing[:MOST_LOOKED_AT]]
    lines += listed("changed", changed, len(found.changed))
    moved = [
        f"{one.name}: {module_of(one) or '(root)'} → {module_of(two) or '(root)'}"
        for one, two in found.moved[:MOST_LOOKED_AT]
    ]
    lines += listed("moved to another module", moved, len(found.moved))
    outputs = [f"{name}: {what}" for name, what in found.changed_outputs.items()]
    lines += listed("outputs that are not the same", outputs, len(outputs))
    lines += _module_lines(found)
    deltas = largest(found.modules, all("plain_wall_ns" in trace.meta for trace in (found.a, found.b)))
    lines += ["", *table(deltas)] if len(deltas.rows) else []
    return "\n".join([*lines, "", *notes(found)])


def _ended(found: Comparison) -> list[str]:
    told = [
        f"{name} is incomplete: it was ended by {error}. What would have come after that is missing from it"
        for name, error in zip("AB", found.ended)
        if error
    ]
    return [*told, ""] if told else []


def _figures(found: Comparison) -> list[str]:
    lines = [f"{'':12}  {'A':>12}  {'B':>12}  {'B − A':>12}"]
    for name, (one, two) in found.figures.items():
        show = FIGURES[name][0]
        low = found.incomplete.get(name, (False, False))
        delta = "" if one is None or two is None or any(low) else _signed(two - one, show)
        cells = [f"{'≥ ' if too else ''}{_cell(amount, show)}" for amount, too in zip((one, two), low)]
        lines.append(f"{name:12}  {cells[0]:>12}  {cells[1]:>12}  {delta:>12}")
    return lines


def _module_lines(found: Comparison) -> list[str]:
    classes: dict[str, list[str]] = defaultdict(list)
    for one, two in found.changed_modules:
        classes[f"{one.type} → {two.type}"].append(one.path)
    changed = [f"{what}: {and_more(paths, 3)}" for what, paths in classes.items()]
    lines = ["", f"modules of another class ({len(found.changed_modules):,})"] if changed else []
    lines += [f"  {row}" for row in changed[:MOST_ROWS]]
    lines += [f"  … and {len(changed) - MOST_ROWS:,} more"] if len(changed) > MOST_ROWS else []
    for title, scopes in (
        ("modules only in A", found.removed_modules),
        ("modules only in B", found.added_modules),
    ):
        lines += _titled(title, _outermost(scopes), len(scopes))
    pairs = {(one.index, two.index) for one, two in found.moved_modules}
    moved = [
        f"{one.path or '(root)'} → {two.path or '(root)'}"
        for one, two in found.moved_modules
        if not _goes_along(one, two, pairs)
    ]
    along = "" if len(moved) == len(found.moved_modules) else ", and what is inside them"
    lines += _titled(f"modules under another path{along}", moved, len(found.moved_modules))
    order = [one.path for one, _ in found.reordered_modules[:MOST_LOOKED_AT]]
    return lines + listed("modules called in another order", order, len(found.reordered_modules))


def _titled(title: str, lines: list[str], total: int) -> list[str]:
    """Lines of which some stand for several modules, with the number of all of them in the title."""
    told = listed(title, lines, len(lines))
    return [*told[:1], f"{title} ({total:,})", *told[2:]] if told else []


def _outermost(scopes: Sequence[Scope]) -> list[str]:
    """A line for each call that lies in none of the others, with how many lie in it."""
    outer: dict[int, int] = {}
    for scope in scopes:  # what is around a call comes before it
        around = int(scope.graph.scope_parent[scope.index])
        outer[scope.index] = outer.get(around, scope.index)
    inside = Counter(outer.values())
    return [
        _called(scope) + (f" and {inside[scope.index] - 1:,} inside it" if inside[scope.index] > 1 else "")
        for scope in scopes
        if outer[scope.index] == scope.index
    ]


def _goes_along(one: Scope, two: Scope, moved: Set[tuple[int, int]]) -> bool:
    """Whether a call has another path because the one around it has, which moved as well."""
    before, after = one.parent, two.parent
    if before is None or after is None or (before.index, after.index) not in moved:
        return False
    inner = (own.path[len(around.path) :].removeprefix(".") for own, around in ((one, before), (two, after)))
    return next(inner) == next(inner)


def notes(found: Comparison) -> list[str]:
    """What a reader has to know of the figures and lists."""
    told = []
    if found.incomplete:
        told.append("≥: operations of which it is not known are left out, so that the two cannot be compared")
    for alike in found.alignment.ambiguous:
        scopes = [found.a.graph.scopes[n] for n in alike.a], [found.b.graph.scopes[n] for n in alike.b]
        told.append(
            f"{many(len(alike.a), 'layer')} of A ({_range(scopes[0])}) and {len(alike.b):,} of B ({_range(scopes[1])}) "
            f"are alike ({scopes[0][0].type}), and no weights tell which is which: they are matched by their numbers, "
            "so that those at the end count as new or gone"
        )
    for name, trace in (("A", found.a), ("B", found.b)):
        if trace.meta.get("fake"):
            told.append(f"{name} was not run (fake=True): it took no time, and made no numbers to compare")
    return [*told, "times are those of one run each; trace(..., repeat=10) gives medians"]


def _range(scopes: list[Scope]) -> str:
    return scopes[0].path if len(scopes) == 1 else f"{scopes[0].path} … {scopes[-1].path}"


def chart(found: Comparison) -> Chart:
    """How much more or less of each figure ``b`` has, in per cent; those that are complete."""
    known = {
        name: pair
        for name, pair in found.figures.items()
        if pair[0] and pair[1] is not None and name not in found.incomplete
    }
    told = {
        name: f"{name}: {_cell(one, FIGURES[name][0])} → {_cell(two, FIGURES[name][0])}"
        for name, (one, two) in known.items()
    }
    changes = [100 * ((two or 0) / (one or 1) - 1) for one, two in known.values()]
    series = Series("B − A", list(told.values()), changes, list(told.values()))
    return Chart("bars", "B against A", Axis(""), Axis("B − A, in % of A", "%"), [series])


def _called(scope: Scope) -> str:
    return f"{scope.path or '(root)'} ({scope.type})"


def _cell(amount: float | None, show: Any) -> str:
    return "" if amount is None else show(int(amount))


def _signed(amount: float, show: Any) -> str:
    return ("−" if amount < 0 else "+") + show(abs(int(amount))) if amount else "0"


def figures_of(a: Trace, b: Trace) -> dict[str, tuple[float | None, float | None]]:
    """Of each figure what it is in both; None where it is not known.

    >>> import torch, torch_vis as tv
    >>> t = tv.trace(torch.nn.Linear(3, 2), torch.ones(1, 3))
    >>> figures_of(t, t)["parameters"]
    (8, 8)
    """
    found: dict[str, tuple[float | None, float | None]] = {}
    for name, (_, metric) in FIGURES.items():
        if metric is not None:
            found[name] = (_total(a, metric), _total(b, metric))
    found["peak memory"] = (a.summary().peak_bytes, b.summary().peak_bytes)
    both = (a.meta.get("parameters"), b.meta.get("parameters"))
    return {"operations": (len(a.graph), len(b.graph)), "parameters": both, **found}


def incomplete_in(a: Trace, b: Trace) -> dict[str, tuple[bool, bool]]:
    """The figures that leave out operations of which they are not known, and in which of the two they do."""
    found = {
        name: (_is_low(a, metric), _is_low(b, metric))
        for name, (_, metric) in FIGURES.items()
        if metric is not None
    }
    return {name: low for name, low in found.items() if any(low)}


def _total(trace: Trace, metric: str) -> float | None:
    if metric == "time_ns" and trace.meta.get("fake"):
        return None
    return trace.metrics[metric].total() if metric in trace.metrics else None


def _is_low(trace: Trace, metric: str) -> bool:
    """Whether operations are missing from a total."""
    column = trace.metrics.get(metric)
    return column is not None and column.uncovered > 0
