"""Loops and branches as data: the turn of every operation, what turns hand on, and which way a line went."""

from __future__ import annotations

import ast
import operator
from collections.abc import Callable, Mapping, Sequence
from functools import lru_cache
from typing import Any, NamedTuple

import numpy as np

from torch_vis.analysis.report import Report
from torch_vis.graph.graph import Graph, Node
from torch_vis.graph.metrics import Column
from torch_vis.graph.repeats import Elements, folds
from torch_vis.graph.run import Run
from torch_vis.graph.schema import Flag, Kind, Phase
from torch_vis.graph.text import many, source_text, syntax_of
from torch_vis.graph.types import Ints
from torch_vis.ops.display_names import loop_of, place_label
from torch_vis.views.text.table_layout import Field, Listing


class LoopCarried(NamedTuple):
    """A loop-carried value: what each turn of a loop hands to the next, its producer and its reader."""

    loop: int
    """The number of the loop."""
    producer: str
    """The operation that makes it, with stars for the numbers of modules."""
    reader: str
    """The operation that reads it, a turn later."""
    type: str
    """Element type and shape, in the first turn."""
    turns: int
    """From how many turns to the one after it."""
    nodes: tuple[tuple[int, int], ...]
    """Number of producer and reader for each of them."""


class LoopRow(NamedTuple):
    """A part of the run that does the same several times in a row."""

    number: int
    name: str
    """The loop of the program, by its head and line, or the modules that take turns."""
    path: str
    """The module that it runs in."""
    turns: int
    operations: int
    """Of all turns together."""
    outer: int | None
    """The loop around it, of which it runs in each turn; None where there is none."""
    handed: tuple[LoopCarried, ...]


class LoopsReport(Report):
    """The loops of a run: what repeats, how often, and what each turn hands to the next.

    >>> import torch, torch_vis as tv
    >>> def cumulate(x):
    ...     h = x[0]
    ...     for row in x:
    ...         h = torch.tanh(h * row + 1)
    ...     return h
    >>> loops = tv.trace(cumulate, torch.ones(5, 3)).loops()
    >>> loops.rows[0].turns, [(row.producer, row.reader) for row in loops.rows[0].handed]
    (5, [('tanh', 'mul')])
    """

    title = "Loops"

    def __init__(self, run: Run) -> None:
        self.run = run
        """The run that they are of."""
        graph = run.graph
        loops = _Loops(graph)
        self._members: list[tuple[Ints, Ints]] = []
        loop_of_node = np.full(len(graph), -1, dtype=np.int64)
        turn = np.full(len(graph), -1, dtype=np.int64)
        self.rows: list[LoopRow] = []
        """One row for each loop, outer ones first."""
        for span in loops.spans:
            nodes, turns = loops.members(span)
            if not len(nodes):
                continue
            number, around = len(self.rows), int(loop_of_node[nodes[0]])
            loop_of_node[nodes], turn[nodes] = number, turns
            self._members.append((nodes, turns))
            self.rows.append(
                LoopRow(
                    number,
                    loops.name(span, nodes),
                    place_label(graph, span.scope),
                    span.times,
                    len(nodes),
                    None if around < 0 else around,
                    loops.handed(nodes, turns, number),
                )
            )
        self.loop = Column("loop", loop_of_node, known=loop_of_node >= 0)
        """For each operation the number of the innermost loop that it runs in."""
        self.turn = Column("turn", turn, known=turn >= 0)
        """For each operation the turn of that loop, counted from 0."""

    def turns_of(self, node: Node | int) -> tuple[tuple[int, int], ...]:
        """The loops that an operation runs in and its turn in each, the outermost first.

        >>> import torch, torch_vis as tv
        >>> t = tv.trace(lambda x: [x := x.sin() for _ in range(4)][-1], torch.ones(2))
        >>> t.loops().turns_of(2)
        ((0, 2),)
        """
        index = node if isinstance(node, int) else node.index
        loop, result = self.loop[index], []
        while loop is not None:
            nodes, turns = self._members[loop]
            result.append((loop, int(turns[np.searchsorted(nodes, index)])))
            loop = self.rows[loop].outer
        return tuple(reversed(result))

    def columns(self) -> Mapping[str, Column]:
        """Loop and turn of each operation, for ``t.with_metrics(t.loops())``: files and heat maps have them then."""
        return {"loop": self.loop, "turn": self.turn}

    def facts(self) -> Mapping[str, str]:
        """How many loops there are, and how much of the run is in them."""
        inside = int((self.loop.values >= 0).sum())
        share = inside / len(self.run.graph) if len(self.run.graph) else 0.0
        return {
            "loops": f"{len(self.rows):,}",
            "in them": f"{many(inside, 'operation')}, {share:.0%} of the run",
        }

    def listings(self) -> Sequence[Listing]:
        """The loops, and what turns hand on."""
        loops = (
            Field("number", "number", str), Field("name", "loop"), Field("path", "in"),
            Field("turns", "turns", "{:,}".format), Field("operations", "operations", "{:,}".format),
            Field("outer", "inside", _inside),
        )  # fmt: skip
        handed = (
            Field("loop", "loop", str), Field("producer", "made by"), Field("reader", "read by, a turn later"),
            Field("type", "type"), Field("turns", "times", "{:,}".format),
        )  # fmt: skip
        return [
            Listing("loops", loops, [row[:-1] for row in self.rows], most=30),
            Listing(
                "handed from turn to turn",
                handed,
                [row[:-1] for loop in self.rows for row in loop.handed],
                most=30,
            ),
        ]

    def notes(self) -> Sequence[str]:
        """What counts as a loop."""
        return [
            "a loop is a stretch that repeats in one call: of operators, or of modules that are called again or "
            "numbered; turns that take different branches are not recognised as a loop"
        ]


def _inside(outer: int | None) -> str:
    return "" if outer is None else f"loop {outer}"


class _Span(NamedTuple):
    """Where a loop is: a scope, the first of its elements, and how many elements a turn has."""

    scope: int
    start: int
    period: int
    times: int


class _Loops:
    """Finds the operations of loops, and what their turns hand on; the work for a loop is as large as the loop."""

    def __init__(self, graph: Graph) -> None:
        self.graph = graph
        self.elements = Elements(graph, (int(Phase.FORWARD),))
        table = folds(self.elements)
        columns = (table.scope, table.start, table.period, table.times)
        spans = [_Span(*row) for row in zip(*(column.tolist() for column in columns))]
        # outer loops before those inside their turns
        self.spans = sorted(spans, key=lambda span: int(graph.tree.depth[span.scope]))
        entered = graph.tree.enter[graph.node_scope[self.elements.nodes]]
        order = np.argsort(entered, kind="stable")
        self._entered, self._nodes = entered[order], self.elements.nodes[order]
        self._turn = np.full(len(graph), -1, dtype=np.int64)
        stems: dict[str, int] = {}
        self._stem = np.array(
            [stems.setdefault(_stars(m.path), len(stems)) for m in graph.modules], dtype=np.int64
        )
        names: dict[str, int] = {}
        self._op = np.array([names.setdefault(call.op, len(names)) for call in graph.calls], dtype=np.int64)

    def _elements(self, span: _Span) -> Ints:
        begin = int(self.elements.start[span.scope]) + span.start
        return np.asarray(self.elements.element[begin : begin + span.period * span.times])

    def members(self, span: _Span) -> tuple[Ints, Ints]:
        """The operations of a loop in order, and the turn of each."""
        members = self._elements(span)
        turn = np.arange(len(members)) // span.period
        is_node = members >= 0
        nodes, turns = [members[is_node]], [turn[is_node]]
        calls = ~members[~is_node]
        enter, leave = self.graph.tree.enter[calls], self.graph.tree.leave[calls]
        bounds = np.searchsorted(self._entered, np.stack([enter, leave]))
        for first, last, number in zip(*bounds.tolist(), turn[~is_node].tolist()):
            nodes.append(self._nodes[first:last])
            turns.append(np.full(last - first, number))
        every, numbers = np.concatenate(nodes), np.concatenate(turns)
        order = np.argsort(every)
        return every[order], numbers[order]

    def handed(self, nodes: Ints, turns: Ints, loop: int) -> tuple[LoopCarried, ...]:
        """What operations of one turn read that an operation of the turn before has made."""
        graph = self.graph
        self._turn[nodes] = turns
        lengths = graph.in_start[nodes + 1] - graph.in_start[nodes]
        ends = np.cumsum(lengths)
        rows = np.repeat(graph.in_start[nodes] - (ends - lengths), lengths) + np.arange(int(lengths.sum()))
        producer, reader = graph.value_producer[graph.in_value[rows]], graph.in_node[rows]
        ours = (producer >= 0) & (graph.in_kind[rows] != Kind.SHAPE)
        ours &= (self._turn[producer] >= 0) & (self._turn[producer] == self._turn[reader] - 1)
        self._turn[nodes] = -1
        rows, producer, reader = rows[ours], producer[ours], reader[ours]
        if not len(rows):
            return ()
        keys = np.stack([*self._key(producer), *self._key(reader)])
        _, kind = np.unique(keys, axis=1, return_inverse=True)
        result = []
        for number in dict.fromkeys(kind.ravel().tolist()):
            chosen = np.flatnonzero(kind.ravel() == number)
            pairs = tuple(dict.fromkeys(zip(producer[chosen].tolist(), reader[chosen].tolist())))
            maker, user = (_stemmed(graph, node) for node in pairs[0])
            values = graph.in_value[rows[chosen]]
            type_ = str(graph.values[int(values[0])].type)
            if len(np.unique(graph.value_type[values])) > 1:
                type_ += " and others"
            times = len(np.unique(turns[np.searchsorted(nodes, producer[chosen])]))
            result.append(LoopCarried(loop, maker, user, type_, times, pairs))
        return tuple(result)

    def _key(self, nodes: Ints) -> tuple[Ints, Ints]:
        graph = self.graph
        return self._op[graph.node_call[nodes]], self._stem[graph.scope_module[graph.node_scope[nodes]]]

    def name(self, span: _Span, nodes: Ints) -> str:
        """The loop of the program, or the modules or operators of one turn."""
        graph, members = self.graph, self._elements(span)[: span.period].tolist()
        line = loop_of(graph, [member for member in members if member >= 0] or nodes)
        if line is not None:
            return line
        names: dict[str, None] = {}
        for member in members:
            if member >= 0:
                names.setdefault(graph.nodes[member].name)
            else:
                names.setdefault(_stars(graph.scope_paths[~member]) or graph.scopes[~member].type)
        return ", ".join([*names][:4]) + (", …" if len(names) > 4 else "")


def _stemmed(graph: Graph, node: int) -> str:
    """An operation by its module and operator, with a star for the numbers of modules that take turns."""
    row = graph.nodes[node]
    return f"{_stars(row.path)}/{row.name}" if row.path else row.name


def _stars(path: str) -> str:
    """A path with a star in the place of each number."""
    return ".".join("*" if part.isdigit() else part for part in path.split("."))


# ---------------------------------------------------------------- branches


AHEAD = 64  # operations after a look among which the first of a way is sought


class BranchRow(NamedTuple):
    """A line that looked at a tensor: what it saw, and which way it went."""

    node: int
    """The operation through which the number left for Python."""
    line: str
    """The file and line."""
    text: str
    """What stands there: ``if x.sum() > 0``."""
    path: str
    saw: bool | int | float | complex | None
    """The number that left for Python; None where it is not known."""
    taken: str | None
    """``"then"`` or ``"else"``; for a loop ``"then"`` is another turn. None where nothing tells."""
    why: str
    """What tells: the operations that ran (``"ran"``), or the truth that the line saw (``"saw"``)."""


class _BranchTest(NamedTuple):
    """A place in a source file that decides: its lines, and those of both ways."""

    kind: str
    first: int
    last: int
    text: str
    then: tuple[int, int]
    otherwise: tuple[int, int] | None
    truths: Mapping[bool, bool]
    """What the whole test is if a tensor in it is this, whichever of its parts that is, as far as that tells."""
    bound: tuple[str, float] | None
    """Of ``x.item() < 3`` the comparison and the number."""


class BranchesReport(Report):
    """The lines that looked at a number of a tensor and went one way or the other.

    >>> import torch, torch_vis as tv
    >>> def step(x):
    ...     return x.relu() if x.sum() > 0 else x.neg()
    >>> [row.saw for row in tv.trace(step, torch.ones(2)).branches().rows]
    [True]
    """

    title = "Branches"

    def __init__(self, run: Run) -> None:
        self.run = run
        """The run that they are of."""
        graph = run.graph
        kept = getattr(run, "kept", None)
        saw = {} if kept is None else kept.python_values
        self.rows: list[BranchRow] = []
        """One row for each time that a number left for Python, in the order of the run."""
        self._order = np.lexsort((np.arange(len(graph)), graph.node_scope))
        self._starts = np.searchsorted(graph.node_scope[self._order], np.arange(len(graph.scope_call) + 1))
        self._site = [None if site < 0 else graph.sites[site] for site in graph.node_site.tolist()]
        for node in np.flatnonzero(graph.node_flags & Flag.ESCAPE).tolist():
            self.rows.append(self._branch(graph, node, saw.get(node)))

    def _branch(self, graph: Graph, node: int, saw: Any) -> BranchRow:
        site, path = self._site[node], graph.scope_paths[graph.node_scope[node]]
        if site is None:
            return BranchRow(node, "", "", path, saw, None, "")
        line = f"{site.short}"
        tests = [test for test in _tests(site.file) if test.first <= site.line <= test.last]
        if not tests:
            text = source_text(site.file)
            words = text[site.line - 1].strip() if 0 < site.line <= len(text) else ""
            return BranchRow(node, line, words, path, saw, None, "")
        test = max(tests, key=lambda test: (test.first, -test.last))
        taken, why = self._ran(graph, node, test), "ran"
        truth = test.truths.get(saw) if isinstance(saw, bool) else _compared(test.bound, saw)
        if taken is None and truth is not None:
            taken, why = ("then" if truth else "else"), "saw"
        return BranchRow(node, line, test.text, path, saw, taken, why if taken else "")

    def _ran(self, graph: Graph, node: int, test: _BranchTest) -> str | None:
        """The way of which an operation ran next in the same call, if the two ways have lines of their own."""
        site = self._site[node]
        if test.kind == "expression" or site is None:
            return None
        scope = int(graph.node_scope[node])
        same = self._order[self._starts[scope] : self._starts[scope + 1]]
        for after in same[np.searchsorted(same, node) + 1 :][:AHEAD].tolist():
            other = self._site[after]
            if other is None or (other.file, other.function) != (site.file, site.function):
                continue
            if test.first <= other.line <= test.last:
                if other.line == site.line:
                    continue
                return None
            if test.then[0] <= other.line <= test.then[1]:
                return "then"
            if test.otherwise is not None and test.otherwise[0] <= other.line <= test.otherwise[1]:
                return "else"
            return None
        return None

    def facts(self) -> Mapping[str, str]:
        """How many lines looked, and how often each way was taken."""
        ways, lines = [row.taken for row in self.rows], {row.line for row in self.rows}
        return {
            "numbers that left for Python": f"{len(self.rows):,}, at {many(len(lines), 'line')}",
            "then": f"{ways.count('then'):,}",
            "else": f"{ways.count('else'):,}",
            "not known": f"{ways.count(None):,}",
        }

    def listings(self) -> Sequence[Listing]:
        """Every look at a number."""
        fields = (
            Field("node", "node", str), Field("line", "line"), Field("text", "program"), Field("path", "in"),
            Field("saw", "saw", _shown), Field("taken", "went", _shown), Field("why", "told by"),
        )  # fmt: skip
        return [Listing("branches", fields, self.rows, most=60)]


def _shown(value: Any) -> str:
    return "" if value is None else f"{value:.6g}" if isinstance(value, float) else str(value)


@lru_cache(maxsize=256)
def _tests(file: str) -> tuple[_BranchTest, ...]:
    """The places of a source file that decide; none where it is not there or is no Python."""
    result = []
    for node in ast.walk(syntax_of(file)[1]):
        if isinstance(node, (ast.If, ast.While)):
            word = "if" if isinstance(node, ast.If) else "while"
            otherwise = _lines(node.orelse) if node.orelse else None
            head = f"{word} {ast.unparse(node.test)}"
            last = node.test.end_lineno or node.lineno
            result.append(
                _BranchTest(word, node.lineno, last, head, _lines(node.body), otherwise, *_truth(node.test))
            )
        elif isinstance(node, ast.IfExp):
            last = node.end_lineno or node.lineno
            head = ast.unparse(node)
            result.append(
                _BranchTest("expression", node.lineno, last, head, (0, -1), None, *_truth(node.test))
            )
        elif isinstance(node, ast.comprehension):
            for condition in node.ifs:
                last = condition.end_lineno or condition.lineno
                head = f"if {ast.unparse(condition)}"
                result.append(
                    _BranchTest("expression", condition.lineno, last, head, (0, -1), None, *_truth(condition))
                )
        elif isinstance(node, ast.Assert):
            last = node.end_lineno or node.lineno
            head = f"assert {ast.unparse(node.test)}"
            result.append(_BranchTest("assert", node.lineno, last, head, (0, -1), None, *_truth(node.test)))
    return tuple(result)


def _truth(test: ast.expr) -> tuple[Mapping[bool, bool], tuple[str, float] | None]:
    """How the truth of a test follows from the number that left."""
    return _truths(test), _bound(test)


def _truths(test: ast.expr) -> Mapping[bool, bool]:
    """What a test is by what a tensor in it is, as far as that alone tells: one false part of an ``and`` does."""
    if isinstance(test, ast.UnaryOp) and isinstance(test.op, ast.Not):
        return {saw: not truth for saw, truth in _truths(test.operand).items()}
    if isinstance(test, ast.BoolOp):
        decided = isinstance(test.op, ast.Or)
        parts = [_truths(part) for part in test.values]
        return {saw: decided for saw in (True, False) if all(part.get(saw) is decided for part in parts)}
    return {True: True, False: False} if _plain(test) else {}


def _plain(test: ast.expr) -> bool:
    if isinstance(
        test, ast.Call
    ):  # bool(x > 0), x.any(): of a function one cannot know what it makes of the truth
        return isinstance(test.func, ast.Attribute) or (
            isinstance(test.func, ast.Name) and test.func.id == "bool"
        )
    return isinstance(test, (ast.Name, ast.Attribute, ast.Compare, ast.Subscript)) and not (
        isinstance(test, ast.Compare) and len(test.ops) > 1
    )


COMPARISONS: dict[str, Callable[[Any, Any], bool]] = {
    "Lt": operator.lt, "LtE": operator.le, "Gt": operator.gt, "GtE": operator.ge, "Eq": operator.eq,
    "NotEq": operator.ne,
}  # fmt: skip


def _bound(test: ast.expr) -> tuple[str, float] | None:
    """What a number that left by ``item``, ``float`` or ``int`` is compared with, where that is a number itself."""
    if not isinstance(test, ast.Compare) or len(test.ops) != 1 or not isinstance(test.left, ast.Call):
        return None
    called = test.left.func
    name = (
        called.attr
        if isinstance(called, ast.Attribute)
        else called.id
        if isinstance(called, ast.Name)
        else ""
    )
    try:
        number = ast.literal_eval(test.comparators[0])
    except ValueError:
        return None
    known = name in ("item", "float") and isinstance(number, (int, float))
    return (
        (type(test.ops[0]).__name__, number) if known and type(test.ops[0]).__name__ in COMPARISONS else None
    )


def _compared(bound: tuple[str, float] | None, saw: Any) -> bool | None:
    if bound is None or isinstance(saw, bool) or not isinstance(saw, (int, float)):
        return None
    return bool(COMPARISONS[bound[0]](saw, bound[1]))


def _lines(body: Sequence[ast.stmt]) -> tuple[int, int]:
    return body[0].lineno, body[-1].end_lineno or body[-1].lineno
