"""The picture's contents: the items of each phase, and the edges between them.

An edge is drawn between two items when an operation of the one reads bytes that an operation of the other wrote.
Inside a fold only the first instance is drawn: what one instance hands to the next is not an edge of the picture. Views
are not drawn as boxes of their own; edges go through them.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from torch_vis.errors import UsageError
from torch_vis.graph import Graph
from torch_vis.graph.flow import bases, roots
from torch_vis.graph.schema import Kind, Phase, Role
from torch_vis.ops.api_level import api_graph
from torch_vis.views.figure.options import PHASES, FigureOptions, ItemNames, color_of
from torch_vis.views.figure.tree import ADDED_LABELS, FigureItem, FigureTree, grow

MANY_READERS = 7  # what more boxes than this read is named at each of them, without lines across the picture
MANY_READERS_OF_AN_INPUT = 4
MOST_INPUTS = 12


@dataclass(slots=True)
class Edge:
    """What one item hands to another: how many tensors, and one of them."""

    source: int
    target: int
    value: int
    count: int = 1


@dataclass(slots=True)
class PhaseColumn:
    """One phase of the run: its items by number, and the edges among them."""

    phase: int
    items: list[FigureItem]
    top: list[int]
    edges: list[Edge] = field(default_factory=list)
    tags: dict[int, list[int]] = field(default_factory=dict)  # by item: sources that are only named there
    handed: dict[int, int] = field(default_factory=dict)  # by item: a value that others take from it
    views: int = 0  # operations that are not drawn because they only look at memory
    left_out: int = 0  # operations that were not to be drawn


@dataclass(slots=True)
class Diagram:
    """Everything a picture shows, before it has a place."""

    graph: Graph
    options: FigureOptions
    columns: list[PhaseColumn]
    item_nodes: list[list[Any]]  # for each column and item, the operations it stands for


def walk(column: PhaseColumn) -> Iterator[tuple[str, FigureItem]]:
    """The items of a column in reading order: ("open", frame), what is in it, ("close", frame), and ("box", item)."""
    stack = [("box", column.items[number]) for number in reversed(column.top)]
    while stack:
        step, item = stack.pop()
        if step == "close" or item.children is None:
            if not item.hidden:
                yield step, item
            continue
        yield "open", item
        stack.append(("close", item))
        stack.extend(("box", column.items[number]) for number in reversed(item.children))


def diagram(graph: Graph, options: FigureOptions, added: Iterable[Iterable[int]] = ((), ())) -> Diagram:
    """What is to be drawn of a graph, at the level of the functions that the program calls.

    ``added`` is what ``added_by_recording`` says of the run.
    """
    graph = api_graph(graph)
    no_model = dict(zip(ADDED_LABELS, map(frozenset, added), strict=True))
    named = ItemNames(graph, options)
    columns, nodes = [], []
    wanted = [PHASES[options.phase]] if options.phase else list(Phase)
    depth = options.depth
    for phase in wanted:
        tree = grow(graph, int(phase), depth, named, no_model)
        if not tree.items:
            continue
        if depth == "auto":
            # all phases to the depth that suits the first
            depth = tree.depth
        column, item_nodes = _column(graph, tree, int(phase), named)
        columns.append(column)
        nodes.append(item_nodes)
    if (options.hide or options.only) and not any(_shows_work(column) for column in columns):
        named_options = [name for name in ("hide", "only") if getattr(options, name)]
        raise UsageError(
            f"nothing is left to draw with {' and '.join(f'{n}={getattr(options, n)!r}' for n in named_options)}: "
            "name less in hide, or more in only"
        )
    return Diagram(graph, options, columns, nodes)


def _shows_work(column: PhaseColumn) -> bool:
    """Whether something else than inputs and outputs is shown."""
    return any(not item.hidden and item.kind not in ("input", "output") for item in column.items)


def _column(graph: Graph, tree: FigureTree, phase: int, named: ItemNames) -> tuple[PhaseColumn, list[Any]]:
    enter, leave = graph.tree.enter, graph.tree.leave
    item_of = _place_nodes(graph, tree, enter, leave)
    _show_ends(graph, tree, item_of)
    hidden = np.array([item.hidden for item in tree.items], dtype=bool)
    views = int(hidden[item_of[item_of >= 0]].sum())
    column = PhaseColumn(phase, tree.items, tree.top, views=views)
    source, target, value = _arcs(graph, item_of, hidden)
    if phase == Phase.FORWARD:
        item_of, source = _add_inputs(graph, column, item_of, source, target)
    _connect(graph, column, item_of, source, target, value, tree, enter, leave)
    if phase == Phase.FORWARD:
        _add_outputs(graph, column, item_of, _sources(graph, item_of, hidden))
    for edge in column.edges:
        # a file can call an operation a view although it shows no other value
        column.items[edge.source].hidden = column.items[edge.target].hidden = False
    nodes = _nodes_of(tree.items, item_of[: len(graph)], enter, graph)
    if named.options.hide or named.options.only:
        _leave_out(column, nodes, named)
    _look(column, named)
    _name_hubs(column)
    return column, nodes


def _leave_out(column: PhaseColumn, nodes: list[Any], named: ItemNames) -> None:
    """Take items out of the picture; what feeds one is joined to what it feeds."""
    options = named.options
    kept: set[int] = set()
    removed: list[int] = []
    # a frame comes before what is in it
    for item in column.items:
        facts = (item.kind, item.label, item.type, item.elements.tolist())
        is_kept = item.parent in kept or (bool(options.only) and named.matches(options.only, *facts))
        if is_kept:
            kept.add(item.number)
        is_end = item.kind in ("input", "output")
        is_left = bool(options.only) and not is_kept and not is_end
        if item.children is None and (
            is_left or (bool(options.hide) and named.matches(options.hide, *facts))
        ):
            removed.append(item.number)
    for number in removed:
        _bridge(column, number)
        column.items[number].hidden = True
        column.left_out += len(nodes[number]) if number < len(nodes) else 0
    for item in reversed(column.items):
        if item.children is not None and all(column.items[child].hidden for child in item.children):
            item.children, item.hidden = None, True
    if options.only:
        joined = {number for edge in column.edges for number in (edge.source, edge.target)}
        for item in column.items:
            item.hidden |= item.kind in ("input", "output") and item.number not in joined


def _bridge(column: PhaseColumn, number: int) -> None:
    """Join what feeds an item to what it feeds, and drop its own edges."""
    before = [edge for edge in column.edges if edge.target == number]
    after = [edge for edge in column.edges if edge.source == number]
    column.edges = [edge for edge in column.edges if number not in (edge.source, edge.target)]
    known = {(edge.source, edge.target) for edge in column.edges}
    for first in before:
        for second in after:
            if first.source != second.target and (first.source, second.target) not in known:
                known.add((first.source, second.target))
                column.edges.append(Edge(first.source, second.target, first.value, first.count))


def _look(column: PhaseColumn, named: ItemNames) -> None:
    """Names, colours and rims that were asked for."""
    options = named.options
    if not (options.labels or options.colors or options.highlight):
        return
    for item in column.items:
        facts = (item.kind, item.label, item.type, item.elements.tolist())
        for pattern, text in options.labels.items():
            if named.is_named(pattern, *facts):
                item.title = text
        for pattern, color in options.colors.items():
            if named.is_named(pattern, *facts):
                item.fill = color_of(color)
        item.is_highlighted = bool(options.highlight) and named.matches(options.highlight, *facts)


def _place_nodes(graph: Graph, tree: FigureTree, enter: Any, leave: Any) -> Any:
    """For each operation, and each value after them, the closed item that it is in; -1 for none."""
    closed = [item for item in tree.items if item.children is None]
    where = np.full(len(graph) + len(graph.value_type), -1, dtype=np.int64)
    scopes = [(~item.elements[item.elements < 0], item.number) for item in closed]
    lines = np.concatenate([part for part, _ in scopes]) if scopes else np.empty(0, dtype=np.int64)
    numbers = np.repeat([number for _, number in scopes], [len(part) for part, _ in scopes])
    ours = tree.elements.nodes
    if len(lines):
        row = _inside(enter[lines], leave[lines], enter[graph.node_scope[ours]])
        where[ours] = np.where(row >= 0, numbers[row], -1)
    for item in closed:
        where[item.elements[item.elements >= 0]] = item.number
    return where


def _inside(enter: Any, leave: Any, at: Any) -> Any:
    """For each place the interval (of disjoint ones) that it lies in, -1 for none."""
    order = np.argsort(enter)
    slot = np.searchsorted(enter[order], at, side="right") - 1
    row = order[np.maximum(slot, 0)]
    return np.where((slot >= 0) & (at < leave[row]), row, -1)


def _show_ends(graph: Graph, tree: FigureTree, item_of: Any) -> None:
    """Show views that nothing can be seen through, since they read no bytes of another value."""
    hidden = np.array([item.hidden for item in tree.items], dtype=bool)
    outputs = graph.out_value
    views = _hidden_nodes(graph, item_of, hidden)
    ends = graph.out_node[(bases(graph, views)[outputs] == outputs) & views[graph.out_node]]
    for number in np.unique(item_of[ends]).tolist():
        tree.items[number].hidden = False


def _hidden_nodes(graph: Graph, item_of: Any, hidden: Any) -> Any:
    count = len(graph)
    return (item_of[:count] >= 0) & hidden[np.maximum(item_of[:count], 0)]


def _sources(graph: Graph, item_of: Any, hidden: Any) -> Any:
    """For each value the operation whose bytes it shows, hidden views looked through; from outside, count + value."""
    count = len(graph)
    root = roots(graph, _hidden_nodes(graph, item_of, hidden))
    producer = graph.value_producer[root]
    return np.where(producer >= 0, producer, count + root)


def _arcs(graph: Graph, item_of: Any, hidden: Any) -> tuple[Any, Any, Any]:
    """Every read of bytes, from where they were written (looking through views) to the operation that reads."""
    made_by = _sources(graph, item_of, hidden)
    takes = np.flatnonzero((graph.in_kind != Kind.SHAPE) & (item_of[graph.in_node] >= 0))
    value, target = graph.in_value[takes].astype(np.int64), graph.in_node[takes].astype(np.int64)
    over = np.flatnonzero((graph.value_carries >= 0) & (graph.value_producer >= 0))
    over = over[item_of[graph.value_producer[over]] >= 0]
    value = np.concatenate([value, graph.value_carries[over]])
    target = np.concatenate([target, graph.value_producer[over]])
    keep = ~hidden[item_of[target]]
    value, target = value[keep], target[keep]
    source = made_by[value]
    # Seen through a view, a box still hands out what it made itself.
    own = np.where(source < len(graph), graph.first_output[np.minimum(source, max(0, len(graph) - 1))], value)
    direct = graph.value_producer[value] == source
    return source, target, np.where(direct | (own < 0), value, own)


def _add_inputs(graph: Graph, column: PhaseColumn, item_of: Any, source: Any, target: Any) -> tuple[Any, Any]:
    """One item for each input of the run, or one for all of them where they are many."""
    count = len(graph)
    values = np.unique(source[source >= count]) - count
    values = values[graph.value_role[values] == Role.INPUT]
    names = [graph.names[graph.value_name[v]] if graph.value_name[v] >= 0 else "input" for v in values]
    together = len(values) > MOST_INPUTS
    for value, name in zip(values.tolist(), names):
        if not together or value == values[0]:
            label = f"{len(values)} inputs" if together else name
            text = "" if together else str(graph.types[graph.value_type[value]])
            number = len(column.items)
            empty = np.empty(0, dtype=np.int64)
            column.items.append(FigureItem(number, -1, "input", label, text, empty, first=-1))
            column.top.append(number)
        item_of[count + value] = len(column.items) - 1
    return item_of, source


def _connect(
    graph: Graph,
    column: PhaseColumn,
    item_of: Any,
    source: Any,
    target: Any,
    value: Any,
    tree: FigureTree,
    enter: Any,
    leave: Any,
) -> None:
    start, end = item_of[source], item_of[target]
    keep = (start >= 0) & (end >= 0) & (start != end)
    for item in tree.items:
        if item.count > 1 and item.children is not None:
            instance = _instances(graph, item, enter, leave)
            from_instance = np.where(source < len(graph), instance[np.minimum(source, len(graph) - 1)], -1)
            to_instance = instance[target]
            keep &= ~((from_instance >= 0) & (to_instance >= 0) & ((from_instance > 0) | (to_instance > 0)))
    start, end, value = start[keep], end[keep], value[keep]
    pairs, first, counts = np.unique(start * len(column.items) + end, return_index=True, return_counts=True)
    for pair, index, number in zip(pairs.tolist(), first.tolist(), counts.tolist()):
        a, b = divmod(pair, len(column.items))
        column.edges.append(Edge(a, b, int(value[index]), number))


def _instances(graph: Graph, item: FigureItem, enter: Any, leave: Any) -> Any:
    """For each operation inside a fold the number of the instance that it is in, -1 for those outside."""
    rows = item.instances if item.instances is not None else item.elements.reshape(-1, 1)
    number = np.repeat(np.arange(len(rows)), rows.shape[1])
    flat = rows.ravel()
    scopes = ~flat[flat < 0]
    instance = np.full(len(graph), -1, dtype=np.int64)
    if len(scopes):
        row = _inside(enter[scopes], leave[scopes], enter[graph.node_scope])
        instance = np.where(row >= 0, number[flat < 0][row], -1)
    instance[flat[flat >= 0]] = number[flat >= 0]
    return instance


def _add_outputs(graph: Graph, column: PhaseColumn, item_of: Any, made_by: Any) -> None:
    """One item for the outputs of the run that each box makes."""
    by_boxes: dict[tuple[int, ...], list[tuple[str, int]]] = {}
    for row in graph.outcomes:
        if row.kind == "output":
            values = _all_versions(graph, row.sources())
            boxes = {int(item_of[made_by[value]]) for value in values}
            by_boxes.setdefault(tuple(sorted(boxes)), []).append((row.name, values[0]))
    for sources, results in by_boxes.items():
        name, value = results[0]
        label = name if len(results) == 1 else f"{name} and {len(results) - 1} more"
        number = len(column.items)
        text = str(graph.types[graph.value_type[value]])
        item = FigureItem(
            number, -1, "output", label, text, np.empty(0, dtype=np.int64), first=len(graph) + number
        )
        column.items.append(item)
        column.top.append(number)
        for source in sources:
            if source >= 0:
                column.edges.append(Edge(source, number, value, len(results)))


def _all_versions(graph: Graph, sources: list[tuple[int, int]]) -> list[int]:
    """The values that a result rests on, with the earlier versions of a buffer that it takes as a whole."""
    versions: dict[int, None] = {}
    for value, kind in sources:
        while value >= 0 and value not in versions:
            versions[value] = None
            value = int(graph.value_carries[value]) if kind == Kind.WHOLE else -1
    return list(versions)


def _name_hubs(column: PhaseColumn) -> None:
    """Take the lines of what very many boxes read out of the picture; each reader names it instead."""
    readers: dict[int, list[Edge]] = {}
    for edge in column.edges:
        column.handed.setdefault(edge.source, edge.value)
        readers.setdefault(edge.source, []).append(edge)
    for source, edges in readers.items():
        is_input = column.items[source].kind == "input"
        if len(edges) > (MANY_READERS_OF_AN_INPUT if is_input else MANY_READERS):
            edges.sort(key=lambda edge: column.items[edge.target].first)
            for edge in edges[1:]:
                column.edges.remove(edge)
                column.tags.setdefault(edge.target, []).append(source)
    fed = {edge.source for edge in column.edges} | {edge.target for edge in column.edges}
    fed |= {n for tags in column.tags.values() for n in tags}
    for item in column.items:
        if (
            item.kind == "operation"
            and item.type.startswith(("empty", "new_empty"))
            and item.number not in fed
        ):
            # memory that others fill: nothing comes from it
            item.hidden = True


def _nodes_of(items: list[FigureItem], item_of: Any, enter: Any, graph: Graph) -> list[Any]:
    """For each item the operations in it, frames included."""
    placed = np.flatnonzero(item_of >= 0)
    order = np.argsort(item_of[placed], kind="stable")
    starts = np.searchsorted(item_of[placed][order], np.arange(len(items) + 1))
    nodes: list[Any] = [placed[order[a:b]] for a, b in itertools.pairwise(starts)]
    # children come after their parent
    for item in reversed(items):
        if item.children:
            nodes[item.number] = np.sort(np.concatenate([nodes[child] for child in item.children]))
    return nodes
