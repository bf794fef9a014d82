"""What a picture shows of one phase of a run: a tree of items, opened to a depth, with repeats folded into one.

All instances of a fold are looked at side by side: an item holds the elements of every instance, and its children are
found from the first, which stands for the others.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

import numpy as np

from torch_vis.graph import Graph
from torch_vis.graph.call import short_name
from torch_vis.graph.repeats import ROOM, Elements, Stretch, repeated
from torch_vis.graph.schema import Flag, Phase
from torch_vis.views.text.notes import AGAIN

Depth = int | Literal["auto"] | None
MOST_IN_A_FRAME = 80  # beyond, neighbours are put together
SPOKEN = {"_local_scalar_dense": "item", "_to_copy": "to", "_unsafe_view": "view"}  # as a program writes them
MOST_RUNS = 4  # of numbers that follow one another; of more only the ends are named
DEEPEST = 64  # levels that "auto" tries


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


@dataclass(slots=True)
class FigureTree:
    """The items of one phase; those without children are boxes, the others frames."""

    items: list[FigureItem]
    elements: Elements
    depth: int | None
    top: list[int] = field(default_factory=list)

    @property
    def boxes(self) -> int:
        """How many boxes are drawn."""
        return sum(item.children is None and not item.hidden for item in self.items)


def grow(graph: Graph, phase: int, depth: Depth) -> FigureTree:
    """The tree of one phase, opened to a depth: an integer, None for everything, "auto" for what is readable."""
    elements = Elements(graph, [phase])
    if depth != "auto":
        return _grow(graph, elements, phase, depth)
    best = _grow(graph, elements, phase, 0)
    for level in range(1, DEEPEST):
        tree = _grow(graph, elements, phase, level)
        if tree.boxes > ROOM and level > 1:
            return best
        if len(tree.items) == len(best.items) and level > 1:
            return tree
        best = tree
    return best


def _grow(graph: Graph, elements: Elements, phase: int, depth: int | None) -> FigureTree:
    tree = FigureTree([], elements, depth)
    if not len(elements.nodes):
        return tree
    whole = FigureItem(-1, -1, "module", "", "", ~np.array([0]), level=0, phase=phase)
    tree.top = _open(graph, tree, whole)
    todo = list(tree.top)
    # The model itself, when it is all there is, is no level of its own: the picture is of it.
    modules = [number for number in tree.top if tree.items[number].kind == "module"]
    lone = modules[0] if len(modules) == 1 and tree.items[modules[0]].count == 1 else -1
    while todo:
        item = tree.items[todo.pop()]
        if not _opens(tree, item, depth, item.number == lone):
            continue
        item.children = _open(graph, tree, item)
        todo.extend(item.children)
    return tree


def _opens(tree: FigureTree, item: FigureItem, depth: int | None, lone: bool) -> bool:
    """A repeat opens with what is around it; a module that calls no other opens only when everything is asked for."""
    if item.kind == "repeat":
        return depth is None or item.level <= depth
    if item.kind != "module" or depth is None:
        return item.kind == "module"
    return item.level < depth and (lone or tree.elements.calls_modules(int(~item.elements[0])))


def _open(graph: Graph, tree: FigureTree, item: FigureItem) -> list[int]:
    """Make the items inside one."""
    if item.kind == "repeat":
        rows = item.instances
        groups = [Stretch(column, 1, 1) for column in range(rows.shape[1])]
        level = item.level
    else:
        rows = tree.elements.of(~item.elements)
        groups = _folds(tree.elements, rows[0])
        level = item.level + 1 if item.number >= 0 else 0
    above = graph.scope_paths[~int(item.elements[0])] if item.kind == "module" else None
    if len(groups) > MOST_IN_A_FRAME:
        groups = _bundled(groups)
    seen: Counter[int] = Counter()
    numbers = []
    for start, period, count in groups:
        part = rows[:, start : start + period * count]
        child = _item(graph, tree, item, part, period, count, above)
        child.level = level
        if child.kind == "module" and above is not None:
            module = int(graph.scope_module[~int(part[0, 0])])
            seen[module] += 1
            if seen[module] > 1:
                child.label += f" #{seen[module]}"
        numbers.append(child.number)
    return numbers


def _folds(elements: Elements, row: Any) -> list[Stretch]:
    """A sequence of elements cut into single ones and repeated stretches."""
    strict, loose = (elements.keys(row, strict=kind) for kind in (True, False))
    cuts: list[Stretch] = []
    end = 0
    for stretch in [*repeated(strict, loose, row < 0), Stretch(len(row), 1, 1)]:
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
    graph: Graph, tree: FigureTree, parent: FigureItem, part: Any, period: int, count: int, above: str | None
) -> FigureItem:
    first = int(part[0, 0])
    item = FigureItem(len(tree.items), parent.number, "operation", "", "", part.ravel(), count=count)
    item.phase = parent.phase
    item.first = first if first >= 0 else int(tree.elements.first[~first])
    if period > 1:
        item.instances = part.reshape(-1, period)
        item.kind = "repeat" if count > 1 else "bundle"
        names = Counter(_name(graph, element) for element in part[0, :period].tolist())
        item.label = ", ".join(name for name, _ in names.most_common(3)) + (" …" if len(names) > 3 else "")
        item.type = f"{period * len(part) if count == 1 else period:,} steps"
    elif first >= 0:
        item.label = item.type = _name(graph, first)
        flags = graph.node_flags[part[part >= 0]]
        item.hidden = bool((flags & Flag.VIEW).all()) and not (flags & Flag.ESCAPE).any()
    else:
        module = graph.modules[int(graph.scope_module[~first])]
        item.kind, item.type = "module", module.type
        item.label = _label(module.path, module.type, above)
        if count > 1:
            item.label = _span(graph, part[0], above)
        outer = int(graph.scope_parent[~first])
        if tree.elements.again[~first] and (outer < 0 or not tree.elements.again[outer]):
            item.label = f"{AGAIN} {item.label}"
    tree.items.append(item)
    return item


def _name(graph: Graph, element: int) -> str:
    if element >= 0:
        name = short_name(graph.calls[graph.node_call[element]].op)
        return SPOKEN.get(name) or re.sub(
            r"^_(scaled_dot_product)_\w+?_(attention)(_for_cpu)?", r"\1_\2", name
        )
    return graph.modules[int(graph.scope_module[~element])].type


def _label(path: str, type: str, above: str | None) -> str:
    if not path:
        return type
    return path[len(above) + 1 :] if above and path.startswith(above + ".") else path


def _span(graph: Graph, row: Any, above: str | None) -> str:
    """The label of several: ``layer.0–11``, or the one name that they share."""
    labels = {
        _label(module.path, module.type, above)
        for module in (graph.modules[int(graph.scope_module[~int(element)])] for element in row)
    }
    if len(labels) == 1:
        return labels.pop()
    matches = [re.fullmatch(r"(.*?)(\d+)", label) for label in labels]
    numbers = sorted(int(match[2]) for match in matches if match)
    stem = next((match[1] for match in matches if match), "")
    return stem + ranges(numbers) if numbers else sorted(labels)[0]


def ranges(numbers: Sequence[int]) -> str:
    """Growing numbers in words as few as they can be.

    >>> ranges([0, 1, 2, 3]), ranges([0, 2]), ranges([0, 1, 2, 5]), ranges(range(0, 24, 2))
    ('0–3', '0, 2', '0–2, 5', '0, 2 … 22')
    """
    runs: list[list[int]] = []
    for number in numbers:
        if runs and number == runs[-1][-1] + 1:
            runs[-1].append(number)
        else:
            runs.append([number])
    texts = [f"{run[0]}–{run[-1]}" if len(run) > 1 else str(run[0]) for run in runs]
    return ", ".join(texts) if len(texts) <= MOST_RUNS else f"{texts[0]}, {texts[1]} … {texts[-1]}"
