"""``compare(a, b)``: in what two traces differ, as data, as a table and as a page."""

from __future__ import annotations

import os
from collections import Counter, defaultdict
from collections.abc import Callable, Collection, Iterator, Sequence
from functools import cached_property
from itertools import islice
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from torch_vis._deprecated import Renamed
from torch_vis._trace import Trace
from torch_vis.analysis.compare.align import align, module_of
from torch_vis.analysis.compare.change_lines import ChangeLine, change_lines
from torch_vis.analysis.compare.changes import ModuleChange, changed_outputs, find_changes
from torch_vis.analysis.compare.module_deltas import (
    ModuleDelta,
    ModuleLists,
    largest_deltas,
    module_deltas,
    module_scopes,
    signed,
)
from torch_vis.analysis.compare.module_keys import weight_digest
from torch_vis.analysis.compare.settings import counts_other_steps
from torch_vis.analysis.compare.words import changes_of, node_text
from torch_vis.errors import TensorsMissing, UsageError, no_match, optional
from torch_vis.graph.graph import Graph, Node, Rows, Scope
from torch_vis.graph.run import without_source
from torch_vis.graph.schema import Flag, Phase
from torch_vis.graph.text import and_more, count, duration, inert, many, size
from torch_vis.views.charts.chart import Axis, Chart, Series, draw
from torch_vis.views.text.table_layout import cut, table

if TYPE_CHECKING:
    import pandas

    from torch_vis.analysis.compare.numeric.report import DifferencesReport

# What the two runs are called if they have no names of their own.
SIDES = ("A", "B")
# Changed operations whose differences a page says in words.
MOST_ON_PAGE = 5000
# Lines of a list that are printed.
MOST_LINES = 20
# Operations that are looked at for the lines of a list, equal ones counted as one line.
MOST_LOOKED_AT = 2000

# The figures of a run: how each is written, and the metric that it is the total of.
FIGURES: dict[str, tuple[Callable[[int], str], str | None]] = {
    "operations": ("{:,}".format, None),
    "parameters": (count, None),
    "time": (duration, "time_ns"),
    "allocated": (size, "alloc_bytes"),
    "peak memory": (size, None),
    "FLOPs": (count, "flops"),
    "bytes accessed": (size, "moved_bytes"),
}


class Change(NamedTuple):
    """An operation that is in both traces, but not the same: the two, and what differs."""

    before: Node
    after: Node
    what: tuple[str, ...]


class Comparison(Renamed):
    """Two traces, aligned by structure; ``a`` is the earlier one.

    >>> import torch, torch_vis as tv
    >>> one = tv.trace(torch.nn.Sequential(torch.nn.Linear(3, 2), torch.nn.ReLU()), torch.ones(1, 3))
    >>> two = tv.trace(torch.nn.Sequential(torch.nn.Linear(3, 4), torch.nn.Tanh()), torch.ones(1, 3))
    >>> found = tv.compare(one, two)
    >>> [node.name for node in found.added], [node.name for node in found.removed], len(found.changed)
    (['tanh'], ['relu'], 2)
    """

    def __init__(self, a: Trace, b: Trace, names: Sequence[str] | None = None) -> None:
        self.a, self.b = a, b
        """The two traces."""
        self.names = SIDES if names is None else (names[0], names[1])
        """What the two are called: A and B, if nothing else was given."""
        weights = weight_digest(a.graph, a.kept), weight_digest(b.graph, b.kept)
        self.alignment = align(a.graph, b.graph, weights)
        """Which operation and which call of one is which of the other."""
        # that a step is the second and not the first is no change
        changed = self.alignment.changed
        rewired = self.alignment.wiring.changed_inputs
        changed[[node for node in counts_other_steps(a, b, self.alignment.to_b) if node not in rewired]] = (
            False
        )

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
        if operations or modules or self.changed_outputs or self.ended[0] != self.ended[1]:
            return False
        # a setting that is no argument of an operation, but a number that it reads from memory
        return not any(change.kind == "optimizer" for change in self.changes)

    @property
    def ended(self) -> tuple[str | None, str | None]:
        """The exception that ended each of the two early, None for a complete run."""
        return self.a.meta.get("error"), self.b.meta.get("error")

    @cached_property
    def added(self) -> Rows[Node]:
        """Operations of ``b`` that ``a`` does not have."""
        matched = np.zeros(len(self.b.graph), dtype=bool)
        matched[self.alignment.to_b[self.alignment.to_b >= 0]] = True
        return Rows(self.b.graph, Node, np.flatnonzero(~matched))

    @cached_property
    def removed(self) -> Rows[Node]:
        """Operations of ``a`` that ``b`` does not have."""
        return Rows(self.a.graph, Node, np.flatnonzero(self.alignment.to_b < 0))

    @cached_property
    def changed(self) -> list[Change]:
        """Operations that both have, with other arguments, shapes, types or strides, or that read something else."""
        return list(self._changes())

    def _changes(self) -> Iterator[Change]:
        for node in np.flatnonzero(self.alignment.to_b >= 0).tolist():
            other = int(self.alignment.to_b[node])
            if self.alignment.changed[other]:
                before, after = self.a.graph.nodes[node], self.b.graph.nodes[other]
                inputs = self.alignment.wiring.changed_inputs.get(other, ())
                yield Change(before, after, tuple(changes_of(before, after, inputs, self.alignment.wiring)))

    @cached_property
    def moved(self) -> list[tuple[Node, Node]]:
        """Operations that both have, in another of the modules that both have; of backward, they go with forward.

        Where a module itself is new or gone, it is listed as that.
        """
        a, b, to_b = self.a.graph, self.b.graph, self.alignment.to_b
        matched = np.flatnonzero((to_b >= 0) & (a.node_phase != Phase.BACKWARD))
        module_a = module_scopes(a)[a.node_scope[matched]]
        module_b = module_scopes(b)[b.node_scope[to_b[matched]]]
        counterpart = self.alignment.scope_to_b[module_a]
        is_matched = (counterpart >= 0) & np.isin(module_b, self.alignment.scope_to_b)
        moved = matched[is_matched & (b.scope_module[counterpart] != b.scope_module[module_b])]
        return [(a.nodes[node], b.nodes[int(to_b[node])]) for node in moved.tolist()]

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
        return changed_outputs(self.a.graph, self.b.graph, self.alignment)

    @cached_property
    def changes(self) -> list[ModuleChange]:
        """What changed, module by module and in words: causes, and not what follows from them.

        >>> import torch, torch_vis as tv
        >>> x, width = torch.ones(1, 3), {"one": 2, "two": 4}
        >>> one, two = (torch.nn.Sequential(torch.nn.Linear(3, n), torch.nn.ReLU()) for n in width.values())
        >>> [str(change) for change in tv.compare(tv.trace(one, x), tv.trace(two, x)).changes]
        ['0 Linear(3, 2) → Linear(3, 4)']
        """
        return find_changes(self.a, self.b, self.alignment)

    @cached_property
    def lines(self) -> list[ChangeLine]:
        """The changes as they are printed: what changed alike in all layers of a list is one line.

        >>> import torch, torch_vis as tv
        >>> acts = [torch.nn.Sequential(*(act() for _ in range(3))) for act in (torch.nn.ReLU, torch.nn.GELU)]
        >>> print(tv.compare(*(tv.trace(model, torch.ones(2)) for model in acts)).lines[0])
        * ReLU → GELU
        """
        return change_lines(self.changes, [*self.a.graph.scope_paths, *self.b.graph.scope_paths])

    @property
    def changed_modules(self) -> list[tuple[Scope, Scope]]:
        """Modules in the same place that are of another class, by their first calls; not the model as a whole.

        >>> import torch, torch_vis as tv
        >>> one, two = torch.nn.Sequential(torch.nn.ReLU()), torch.nn.Sequential(torch.nn.GELU())
        >>> x = torch.ones(2)
        >>> [(a.path, a.type, b.type) for a, b in tv.compare(tv.trace(one, x), tv.trace(two, x)).changed_modules]
        [('0', 'ReLU', 'GELU')]
        """
        return self._lists.changed

    @cached_property
    def modules(self) -> list[ModuleDelta]:
        """What the operations of each module come to in both: their number, parameters, time, memory, FLOPs."""
        return module_deltas(self.a, self.b, self.alignment)

    @property
    def added_modules(self) -> list[Scope]:
        """Calls of modules that only ``b`` makes, those recomputed in backward left out."""
        return self._lists.added

    @property
    def removed_modules(self) -> list[Scope]:
        """Calls of modules that only ``a`` makes, those recomputed in backward left out."""
        return self._lists.removed

    @property
    def moved_modules(self) -> list[tuple[Scope, Scope]]:
        """Calls of modules that both make, under another path."""
        return self._lists.moved

    @property
    def reordered_modules(self) -> list[tuple[Scope, Scope]]:
        """Calls of modules that both make, in another order: the fewest that would have to move."""
        return self._lists.reordered

    @cached_property
    def _lists(self) -> ModuleLists:
        return ModuleLists(self.a.graph, self.b.graph, self.alignment)

    @cached_property
    def figures(self) -> dict[str, tuple[float | None, float | None]]:
        """What each of the two comes to: operations, parameters, time, memory, FLOPs; None where not known.

        Those that ``incomplete`` names are too low.

        >>> import torch, torch_vis as tv
        >>> t = tv.trace(torch.nn.Linear(3, 2), torch.ones(1, 3))
        >>> tv.compare(t, t).figures["parameters"]
        (8, 8)
        """
        figures: dict[str, tuple[float | None, float | None]] = {
            "operations": (len(self.a.graph), len(self.b.graph)),
            "parameters": (self.a.meta.get("parameters"), self.b.meta.get("parameters")),
        }
        for name, (_, metric) in FIGURES.items():
            if metric is not None:
                figures[name] = _total(self.a, metric), _total(self.b, metric)
        figures["peak memory"] = self.a.summary().peak_bytes, self.b.summary().peak_bytes
        return figures

    @cached_property
    def incomplete(self) -> dict[str, tuple[bool, bool]]:
        """The figures that leave out operations of which they are not known, and in which of the two they do."""
        incomplete = {
            name: (_is_incomplete(self.a, metric), _is_incomplete(self.b, metric))
            for name, (_, metric) in FIGURES.items()
            if metric is not None
        }
        return {name: runs for name, runs in incomplete.items() if any(runs)}

    def figure(self, renderer: str = "plotly") -> Any:
        """How much more or less of each figure ``b`` has, as bars in per cent of ``a``; those that are complete.

        >>> import torch, torch_vis as tv
        >>> one = tv.trace(torch.nn.Linear(3, 2), torch.ones(1, 3))
        >>> two = tv.trace(torch.nn.Linear(3, 4), torch.ones(1, 3))
        >>> len(tv.compare(one, two).figure().data[0].x)
        7
        """
        labels, changes = [], []
        for name, (a, b) in self.figures.items():
            if a and b is not None and name not in self.incomplete:
                show = FIGURES[name][0]
                labels.append(f"{name}: {show(int(a))} → {show(int(b))}")
                changes.append(100 * (b / a - 1))
        series = Series("B − A", labels, changes, labels)
        chart = Chart("bars", "B against A", Axis(""), Axis("B − A, in % of A", "%"), [series])
        return draw(chart, renderer)

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
        with optional("pandas"):
            import pandas
        if rows == "modules":
            return pandas.DataFrame([row.flat() for row in self.modules])
        records = [{"change": "added", **_node_dict(node), "what": ""} for node in self.added]
        records += [{"change": "removed", **_node_dict(node), "what": ""} for node in self.removed]
        records += [
            {"change": "changed", **_node_dict(row.after), "what": "; ".join(row.what)}
            for row in self.changed
        ]
        records += [
            {"change": "moved", **_node_dict(after), "what": f"{module_of(before)} → {module_of(after)}"}
            for before, after in self.moved
        ]
        columns = ["change", "node", "op", "module", "phase", "outputs", "what"]
        return pandas.DataFrame(records, columns=columns)

    def differences(self, *, tolerance: float = 0.0) -> DifferencesReport:
        """Where the two part numerically: both runs are repeated side by side from the tensors that they hold.

        For two runs of one model: eager and captured, fp32 and bf16, before and after a change. Operations that differ
        by no more than ``tolerance``, relative to their norm, are left out.

        >>> import torch, torch_vis as tv
        >>> x = torch.ones(1, 3)
        >>> model = torch.nn.Linear(3, 2)
        >>> report = tv.compare(tv.trace(model, x), tv.trace(model, x, via="export")).differences()
        >>> len(report.rows), report.results["output"][1].relative
        (0, 0.0)
        """
        from torch_vis.analysis.compare.numeric.report import DifferencesReport

        for name, trace in (("A", self.a), ("B", self.b)):
            if trace.meta.get("fake"):
                raise TensorsMissing(
                    f"{name} was traced with fake=True: nothing was computed that could differ"
                )
        return DifferencesReport(self.a, self.b, self.alignment, tolerance)

    def save(self, path: str | os.PathLike[str], *, source: bool = True) -> None:
        """Write a page (``.html``) that shows both runs as one graph, with what was added, removed and changed.

        ``source=False`` leaves out lines of the programs, folders and the machines' facts, for a page to be sent.
        """
        from torch_vis.views.page.page import save_comparison

        if os.path.splitext(os.fspath(path))[1].lower() not in (".html", ".htm"):
            raise UsageError(
                f"a comparison is saved as a page: name a file that ends in .html, not {os.fspath(path)}"
            )
        texts = {change.after.index: change.what for change in islice(self._changes(), MOST_ON_PAGE)}
        names = None if self.names == SIDES else self.names
        a, b = (self.a, self.b) if source else (without_source(self.a), without_source(self.b))
        save_comparison(path, a, b, self.alignment, names=names, words=texts, lines=self._page_lines())

    def _page_lines(self) -> list[tuple[str, str, Sequence[int], Sequence[int]]]:
        """The lines of ``lines``: where, what, and the operations of ``a`` and ``b`` that each is about."""
        return [
            (
                line.path,
                line.what,
                [node for change in line.changes for node in change.nodes_a],
                [node for change in line.changes for node in change.nodes_b],
            )
            for line in self.lines
        ]

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

    def to_dict(self) -> dict[str, Any]:
        """The same as plain data, for JSON."""
        return {
            "same": self.same,
            "names": list(self.names),
            "changes": [change.to_dict() for change in self.changes],
            "lines": [str(line) for line in self.lines],
            "figures": {name: {"a": a, "b": b} for name, (a, b) in self.figures.items()},
            "incomplete": {name: {"a": a, "b": b} for name, (a, b) in self.incomplete.items()},
            "added": [_node_dict(node) for node in self.added],
            "removed": [_node_dict(node) for node in self.removed],
            "changed": [
                {"before": _node_dict(row.before), "after": _node_dict(row.after), "what": list(row.what)}
                for row in self.changed
            ],
            "moved": [{"before": _node_dict(a), "after": _node_dict(b)} for a, b in self.moved],
            "changed_outputs": self.changed_outputs,
            "changed_modules": [
                {"path": a.path, "in_b": b.path, "before": a.type, "after": b.type}
                for a, b in self.changed_modules
            ],
            "added_modules": [scope.path for scope in self.added_modules],
            "removed_modules": [scope.path for scope in self.removed_modules],
            "moved_modules": [[a.path, b.path] for a, b in self.moved_modules],
            "reordered_modules": [a.path for a, _ in self.reordered_modules],
            "modules": [row._asdict() for row in self.modules],
            "ended": {"a": self.ended[0], "b": self.ended[1]},
            "notes": self.notes(),
        }

    def notes(self) -> list[str]:
        """What a reader has to know of the figures and lists."""
        notes = []
        if self.incomplete:
            notes.append(
                "≥: operations of which it is not known are left out, so that the two cannot be compared"
            )
        for group in self.alignment.ambiguous:
            scopes_a = [self.a.graph.scopes[scope] for scope in group.a]
            scopes_b = [self.b.graph.scopes[scope] for scope in group.b]
            layers_a = f"{many(len(group.a), 'layer')} of A ({_range(scopes_a)})"
            layers_b = f"{len(group.b):,} of B ({_range(scopes_b)})"
            notes.append(
                f"{layers_a} and {layers_b} are alike ({scopes_a[0].type}), and no weights tell which is which: they "
                "are matched by their numbers, so that those at the end count as new or gone"
            )
        for name, trace in (("A", self.a), ("B", self.b)):
            if trace.meta.get("fake"):
                notes.append(
                    f"{name} was not run (fake=True): it took no time, and made no numbers to compare"
                )
        return [*notes, "times are those of one run each; trace(..., repeat=10) gives medians"]

    def __repr__(self) -> str:
        parts = (len(self.added), len(self.removed), len(self.changed))
        return "<Comparison: {:,} added, {:,} removed, {:,} changed>".format(*parts)

    def __str__(self) -> str:
        lines = [
            f"{name} is incomplete: it was ended by {error}. What would have come after that is missing from it"
            for name, error in zip("AB", self.ended)
            if error
        ]
        lines += [""] if lines else []
        lines += [*self._change_lines(), "", *self._figure_lines(), ""]
        matched = len(self.a.graph) - len(self.removed)
        lines += [f"{many(matched, 'operation')} in both, {len(self.changed):,} of them changed"]
        lines += [*self._operation_lines(), *self._module_lines()]
        have_medians = all("plain_wall_ns" in trace.meta for trace in (self.a, self.b))
        deltas = largest_deltas(self.modules, have_medians)
        lines += ["", *table(deltas)] if len(deltas.rows) else []
        return "\n".join(map(inert, [*lines, "", *self.notes()]))

    def _change_lines(self) -> list[str]:
        """What changed, by module and in words."""
        a, b = self.names
        models = self.a.name, self.b.name
        if self.names == SIDES and models[0] != models[1]:
            a, b = (f"{name} ({model})" for name, model in zip(SIDES, models))
        if not self.lines:
            between = "" if self.names == SIDES else f" between {a} and {b}"
            same = "both ran the same operations on the same things"
            return [f"No change{between}: {same if self.same else 'but operations differ, as listed below'}"]
        return _listed(f"What changed, {a} → {b}", [str(line) for line in self.lines], len(self.lines))[1:]

    def _figure_lines(self) -> list[str]:
        before, after = (cut(name, 12) for name in self.names)
        delta_title = "B − A" if self.names == SIDES else "difference"
        lines = [f"{'':12}  {before:>12}  {after:>12}  {delta_title:>12}"]
        for name, (a, b) in self.figures.items():
            show = FIGURES[name][0]
            low = self.incomplete.get(name, (False, False))
            delta = "" if a is None or b is None or any(low) else signed(b - a, show)
            cell_a, cell_b = (
                ("≥ " if is_low else "") + ("" if figure is None else show(int(figure)))
                for figure, is_low in zip((a, b), low)
            )
            lines.append(f"{name:12}  {cell_a:>12}  {cell_b:>12}  {delta:>12}")
        return lines

    def _operation_lines(self) -> list[str]:
        lines = _node_lines(f"only in {self.names[0]}", self.removed, self.a.graph)
        lines += _node_lines(f"only in {self.names[1]}", self.added, self.b.graph)
        # views last
        changed = sorted(self.changed, key=lambda row: "view" in row.after.flags)[:MOST_LOOKED_AT]
        lines += _listed(
            "changed",
            [f"{node_text(row.after)}: {'; '.join(row.what)}" for row in changed],
            len(self.changed),
        )
        moved = [
            f"{before.name}: {module_of(before) or '(root)'} → {module_of(after) or '(root)'}"
            for before, after in self.moved[:MOST_LOOKED_AT]
        ]
        lines += _listed("moved to another module", moved, len(self.moved))
        outputs = [f"{name}: {what}" for name, what in self.changed_outputs.items()]
        return lines + _listed("outputs that are not the same", outputs, len(outputs))

    def _module_lines(self) -> list[str]:
        classes: dict[str, list[str]] = defaultdict(list)
        for before, after in self.changed_modules:
            classes[f"{before.type} → {after.type}"].append(before.path)
        changed = [f"{what}: {and_more(paths, 3)}" for what, paths in classes.items()]
        lines = _listed_groups("modules of another class", changed, len(self.changed_modules))
        for title, scopes in (
            (f"modules only in {self.names[0]}", self.removed_modules),
            (f"modules only in {self.names[1]}", self.added_modules),
        ):
            lines += _listed_groups(title, _outermost(scopes), len(scopes))
        pairs = {(before.index, after.index) for before, after in self.moved_modules}
        moved = [
            f"{before.path or '(root)'} → {after.path or '(root)'}"
            for before, after in self.moved_modules
            if not _moved_with_parent(before, after, pairs)
        ]
        inside = "" if len(moved) == len(self.moved_modules) else ", and what is inside them"
        lines += _listed_groups(f"modules under another path{inside}", moved, len(self.moved_modules))
        order = [before.path for before, _ in self.reordered_modules[:MOST_LOOKED_AT]]
        return lines + _listed("modules called in another order", order, len(self.reordered_modules))


def compare(a: Trace, b: Trace, *, names: Sequence[str] | None = None) -> Comparison:
    """Align two traces by their structure, not by number or name alone.

    ``names`` are what the two are called where the comparison is printed and in its page.

    >>> import torch, torch_vis as tv
    >>> x = torch.ones(1, 3)
    >>> tv.compare(tv.trace(torch.nn.ReLU(), x), tv.trace(torch.nn.ReLU(), x)).same
    True
    >>> one, two = torch.nn.Sequential(torch.nn.ReLU()), torch.nn.Sequential(torch.nn.GELU())
    >>> comparison = tv.compare(tv.trace(one, x), tv.trace(two, x), names=("before", "after"))
    >>> print("\\n".join(str(comparison).splitlines()[:2]))
    What changed, before → after (1)
      0 ReLU → GELU
    """
    for trace in (a, b):
        if not isinstance(trace, Trace):
            raise UsageError(f"compare() takes two traces, not {type(trace).__name__}")
    is_pair = isinstance(names, (tuple, list)) and len(names) == 2
    if names is not None and not (is_pair and all(isinstance(name, str) and name for name in names)):
        raise UsageError(f"names are two texts, one for each trace, not {names!r}")
    if names is not None and names[0] == names[1]:
        raise UsageError(f"names tell the two traces apart; both are {names[0]!r}")
    return Comparison(a, b, names)


def _total(trace: Trace, metric: str) -> float | None:
    if metric == "time_ns" and trace.meta.get("fake"):
        return None
    return trace.metrics[metric].total() if metric in trace.metrics else None


def _is_incomplete(trace: Trace, metric: str) -> bool:
    """Whether operations are missing from a total."""
    column = trace.metrics.get(metric)
    return column is not None and column.uncovered > 0


def _node_dict(node: Node) -> dict[str, Any]:
    return {
        "node": node.index,
        "op": node.op,
        "module": module_of(node),
        "phase": node.phase,
        "outputs": [str(value.type) for value in node.outputs],
    }


# --- in words ---


def _listed(title: str, lines: list[str], total: int) -> list[str]:
    """Lines under a title, equal ones as one, those beyond the most that are shown as a number."""
    if not total:
        return []
    shown = list(Counter(lines).items())[:MOST_LINES]
    rest = total - sum(times for _, times in shown)
    texts = [f"  {text} × {times:,}" if times > 1 else f"  {text}" for text, times in shown]
    return ["", f"{title} ({total:,})", *texts, *([f"  … and {rest:,} more"] if rest else [])]


def _listed_groups(title: str, lines: list[str], total: int) -> list[str]:
    """Lines of which some stand for several modules, with the number of all of them in the title."""
    listed = _listed(title, lines, len(lines))
    return [*listed[:1], f"{title} ({total:,})", *listed[2:]] if listed else []


def _node_lines(title: str, nodes: Rows[Node], graph: Graph) -> list[str]:
    """Operations under a title: those that compute, in their order, and how many views there are besides."""
    indices = np.asarray(nodes.numbers, dtype=np.int64)
    if not len(indices):
        return []
    is_view = graph.node_flags[indices] & Flag.VIEW != 0
    computing = indices[~is_view]
    texts = [node_text(graph.nodes[int(node)]) for node in computing[:MOST_LOOKED_AT]]
    lines = ["", f"{title} ({len(indices):,})", *_listed(title, texts, len(computing))[2:]]
    if is_view.any():
        names = Counter(graph.nodes[int(node)].name for node in indices[is_view][:MOST_LOOKED_AT])
        most_common = ", ".join(name for name, _ in names.most_common(4)) + (" …" if len(names) > 4 else "")
        also = "and " if len(computing) else ""
        lines.append(f"  {also}{many(int(is_view.sum()), 'view')}: {most_common}")
    return lines


def _outermost(scopes: Sequence[Scope]) -> list[str]:
    """A line for each call that lies in none of the others, with how many lie in it."""
    outer: dict[int, int] = {}
    # what is around a call comes before it
    for scope in scopes:
        parent = int(scope.graph.scope_parent[scope.index])
        outer[scope.index] = outer.get(parent, scope.index)
    counts = Counter(outer.values())
    lines = []
    for scope in scopes:
        if outer[scope.index] == scope.index:
            inside = counts[scope.index] - 1
            also = f" and {inside:,} inside it" if inside else ""
            lines.append(f"{scope.path or '(root)'} ({scope.type}){also}")
    return lines


def _moved_with_parent(before: Scope, after: Scope, moved: Collection[tuple[int, int]]) -> bool:
    """Whether a call has another path because the one around it has, which moved as well."""
    parent_a, parent_b = before.parent, after.parent
    if parent_a is None or parent_b is None or (parent_a.index, parent_b.index) not in moved:
        return False
    return _name_inside(before, parent_a) == _name_inside(after, parent_b)


def _name_inside(scope: Scope, parent: Scope) -> str:
    return scope.path[len(parent.path) :].removeprefix(".")


def _range(scopes: list[Scope]) -> str:
    return scopes[0].path if len(scopes) == 1 else f"{scopes[0].path} … {scopes[-1].path}"
