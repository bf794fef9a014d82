"""What a picture shows of one phase of a run: a tree of items, opened to a depth, with repeats folded into one.

All instances of a fold are looked at side by side: an item holds the elements of every instance, and its children are
found from the first, which stands for the others.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

import numpy as np

from torch_vis.graph import Graph
from torch_vis.graph.repeats import ROOM, Elements, Stretch, repeated
from torch_vis.graph.schema import Flag, Phase
from torch_vis.ops.display_names import ScopeLabels, span_label
from torch_vis.views.figure.options import Depth, ItemNames
from torch_vis.views.text.module_tree import AGAIN

MOST_IN_A_FRAME = 80  # beyond, neighbours are put together
DEEPEST = 64  # levels that "auto" tries
ADDED_LABELS = ("summed outputs", "gradient of 1")  # what the recording added, as the page calls it
ADDED_FILL = "#f1f3f5"


@dataclass(slots=True)
class FigureItem:
    """A box or, when opened, a frame: a module, an operation, or a stretch of several."""

    number: int
    parent: int
    kind: Literal["module", "operation", "repeat", "bundle", "input", "output"]
    label: str
    type: str
    elements: Any  # nodes and ~scopes that it stands for, all instances
    level: int = 0
    count: int = 1
    phase: int = Phase.FORWARD
    children: list[int] | None = None  # None: closed
    instances: Any = None  # for a stretch of several, its elements with one row for each instance
    first: int = 0  # the number of the first operation in it, which gives the order
    hidden: bool = False
    title: str = ""  # what a person calls it; "" for its label
    fill: str = ""  # the colour that a person gave it
    is_highlighted: bool = False


@dataclass(slots=True)
class FigureTree:
    """The items of one phase; those without children are boxes, the others frames."""

    items: list[FigureItem]
    elements: Elements
    labels: ScopeLabels
    depth: int | None
    top: list[int] = field(default_factory=list)

    @property
    def boxes(self) -> int:
        """How many boxes are drawn."""
        return sum(item.children is None and not item.hidden for item in self.items)


def grow(
    graph: Graph, phase: int, depth: Depth, named: ItemNames, added: Mapping[str, frozenset[int]]
) -> FigureTree:
    """The tree of one phase, opened to a depth: an integer, None for everything, "auto" for what is readable.

    ``added`` has the operations that the recording added, by what they are called together.
    """
    elements, labels = Elements(graph, [phase]), ScopeLabels(graph)
    if depth != "auto":
        return _grow(graph, elements, labels, phase, depth, named, added)
    best = _grow(graph, elements, labels, phase, 0, named, added)
    for level in range(1, DEEPEST):
        tree = _grow(graph, elements, labels, phase, level, named, added)
        if tree.boxes > ROOM and level > 1:
            return best
        if len(tree.items) == len(best.items) and level > 1:
            return tree
        best = tree
    return best


def _grow(
    graph: Graph,
    elements: Elements,
    labels: ScopeLabels,
    phase: int,
    depth: int | None,
    named: ItemNames,
    added: Mapping[str, frozenset[int]],
) -> FigureTree:
    tree = FigureTree([], elements, labels, depth)
    if not len(elements.nodes):
        return tree
    whole = FigureItem(-1, -1, "module", "", "", ~np.array([0]), level=0, phase=phase)
    tree.top = _open(graph, tree, whole, added)
    if named.options.color == "type":
        for number in tree.top:
            if tree.items[number].label in added:
                tree.items[number].fill = ADDED_FILL
    todo = list(tree.top)
    # The model itself, when it is all there is, is no level of its own: the picture is of it.
    modules = [number for number in tree.top if tree.items[number].kind == "module"]
    lone = modules[0] if len(modules) == 1 and tree.items[modules[0]].count == 1 else -1
    while todo:
        item = tree.items[todo.pop()]
        if not _opens(tree, item, depth, item.number == lone) and not _leads(item, named):
            continue
        if _stays_closed(item, named):
            continue
        item.children = _open(graph, tree, item)
        todo.extend(item.children)
    return tree


def _leads(item: FigureItem, named: ItemNames) -> bool:
    """Whether something inside of it is what the picture is to show."""
    only = named.options.only
    return item.kind in ("module", "repeat") and named.is_around(only, item.elements.tolist())


def _stays_closed(item: FigureItem, named: ItemNames) -> bool:
    """Whether a person wants it as one box, or not at all."""
    options, facts = named.options, (item.kind, item.label, item.type, item.elements.tolist())
    return named.matches(options.collapse, *facts) or named.matches(options.hide, *facts)


def _opens(tree: FigureTree, item: FigureItem, depth: int | None, lone: bool) -> bool:
    """A repeat opens with what is around it; a module that calls no other opens only when everything is asked for."""
    if item.kind == "repeat":
        return depth is None or item.level <= depth
    if item.kind != "module" or depth is None:
        return item.kind == "module"
    return item.level < depth and (lone or tree.elements.calls_modules(int(~item.elements[0])))


def _open(
    graph: Graph, tree: FigureTree, item: FigureItem, added: Mapping[str, frozenset[int]] | None = None
) -> list[int]:
    """Make the items inside one; what the recording added is one each."""
    if item.kind == "repeat":
        rows = item.instances
        groups = [Stretch(column, 1, 1) for column in range(rows.shape[1])]
        level = item.level
    else:
        rows = tree.elements.of(~item.elements)
        groups = _folds(tree.elements, rows[0])
        level = item.level + 1 if item.number >= 0 else 0
    names = {}
    for label, nodes in (added or {}).items():
        groups, start = _put_together(graph, groups, rows[0], nodes)
        names[start] = label
    if len(groups) > MOST_IN_A_FRAME:
        groups = _bundled(groups)
    numbers = []
    for start, period, count in groups:
        part = rows[:, start : start + period * count]
        child = _item(graph, tree, item, part, period, count)
        child.level = level
        child.label = names.get(start, child.label)
        if child.kind == "module" and count == 1 and len(part) == 1 and _is_module(graph, ~int(part[0, 0])):
            call = int(graph.scope_call[~int(part[0, 0])])
            if call and not child.label.endswith("decode") and not tree.elements.recomputed[~int(part[0, 0])]:
                child.label += f" #{call + 1}"
        numbers.append(child.number)
    return numbers


def _put_together(
    graph: Graph, groups: list[Stretch], row: Any, nodes: frozenset[int]
) -> tuple[list[Stretch], int]:
    """Neighbours that hold nothing but certain operations as one, and where it starts; -1 without any."""
    enter, leave = graph.tree.enter, graph.tree.leave

    scopes = {int(graph.node_scope[node]) for node in nodes}

    def holds(element: int) -> bool:
        if element >= 0 or ~element not in scopes:
            return element in nodes
        at = enter[graph.node_scope]
        inside = np.flatnonzero((at >= enter[~element]) & (at < leave[~element])).tolist()
        return bool(inside) and nodes.issuperset(inside)

    alike = [
        all(holds(int(element)) for element in row[start : start + period * times])
        for start, period, times in groups
    ]
    if not any(alike):
        return groups, -1
    first = alike.index(True)
    end = first
    while end < len(groups) and alike[end]:
        end += 1
    start = groups[first].start
    last = groups[end - 1]
    size = last.start + last.period * last.times - start
    return [*groups[:first], Stretch(start, size, 1), *groups[end:]], start


def _is_module(graph: Graph, scope: int) -> bool:
    return graph.modules[int(graph.scope_module[scope])].kind == "module"


def _folds(elements: Elements, row: Any) -> list[Stretch]:
    """A sequence of elements cut into single ones and repeated stretches."""
    strict, loose = (elements.keys(row, strict=kind) for kind in (True, False))
    cuts: list[Stretch] = []
    end = 0
    for stretch in [*repeated(strict, loose, elements.names(row), row < 0), Stretch(len(row), 1, 1)]:
        cuts.extend(Stretch(single, 1, 1) for single in range(end, stretch.start))
        if stretch.start < len(row):
            cuts.append(stretch)
        end = stretch.start + stretch.period * stretch.times
    return cuts


def _bundled(groups: list[Stretch]) -> list[Stretch]:
    """Neighbours put together, so that no more than ``MOST_IN_A_FRAME`` are left."""
    size = -(-len(groups) // MOST_IN_A_FRAME)
    bundles = []
    for start in range(0, len(groups), size):
        part = groups[start : start + size]
        end = part[-1].start + part[-1].period * part[-1].times
        bundles.append(part[0] if len(part) == 1 else Stretch(part[0].start, end - part[0].start, 1))
    return bundles


def _item(
    graph: Graph, tree: FigureTree, parent: FigureItem, part: Any, period: int, count: int
) -> FigureItem:
    first = int(part[0, 0])
    item = FigureItem(len(tree.items), parent.number, "operation", "", "", part.ravel(), count=count)
    item.phase = parent.phase
    item.first = first if first >= 0 else int(tree.elements.first[~first])
    if period > 1:
        item.instances = part.reshape(-1, period)
        item.kind = "repeat" if count > 1 else "bundle"
        item.label = tree.labels.step(item.instances)
        item.type = f"{period * len(part) if count == 1 else period:,} steps"
    elif first >= 0:
        item.label = item.type = tree.labels.element(first)
        flags = graph.node_flags[part[part >= 0]]
        item.hidden = bool((flags & Flag.VIEW).all()) and not (flags & Flag.ESCAPE).any()
    else:
        module = graph.modules[int(graph.scope_module[~first])]
        item.kind, item.type = "module", module.type
        item.label = span_label(tree.labels.element(int(element)) for element in part[0])
        outer = int(graph.scope_parent[~first])
        if tree.elements.recomputed[~first] and (outer < 0 or not tree.elements.recomputed[outer]):
            item.label = f"{AGAIN} {item.label}"
    tree.items.append(item)
    return item
