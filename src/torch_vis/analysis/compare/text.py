"""A comparison as a person reads it: figures, lists and remarks, and the chart of its figures."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Sequence, Set
from typing import TYPE_CHECKING, Any

from torch_vis.analysis.compare.align import module_of
from torch_vis.analysis.compare.change_text import MOST_LOOKED_AT, MOST_ROWS, line, listed, listed_nodes
from torch_vis.analysis.compare.module_deltas import largest
from torch_vis.graph.rows import Scope
from torch_vis.graph.text import and_more, count, duration, many, size
from torch_vis.views.charts.chart import Axis, Chart, Series
from torch_vis.views.text.table import table

if TYPE_CHECKING:
    from torch_vis.analysis.compare.comparison import Comparison

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
    lines += _modules(found)
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


def _modules(found: Comparison) -> list[str]:
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
    for alike in found.alignment.alike:
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
