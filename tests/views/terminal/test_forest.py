"""The explorer's tree as columns: sums, folds, filter and sorting, on trees of any shape."""

from __future__ import annotations

import re

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from torch_vis.views.terminal.columns import COLUMNS, Arrangement, cell, chosen
from torch_vis.views.terminal.forest import Forest, Sharing
from torch_vis.views.terminal.source import ExplorerConfig


def forest_of(parents: list[int]) -> Forest:
    return Forest(
        [f"n{at}" for at in range(len(parents))], [f"T{at % 3}" for at in range(len(parents))], parents
    )


@st.composite
def forests(draw: st.DrawFn) -> Forest:
    """Trees in preorder: each row hangs below the last row or below one of those above it."""
    parents = [-1]
    for _ in range(draw(st.integers(0, 20))):
        line = [len(parents) - 1]
        while parents[line[-1]] >= 0:
            line.append(parents[line[-1]])
        parents.append(draw(st.sampled_from(line)))
    return forest_of(parents)


def below(forest: Forest, row: int) -> list[int]:
    found = []
    for other in range(len(forest)):
        up = other
        while up >= 0 and up != row:
            up = int(forest.parent[up])
        if up == row:
            found.append(other)
    return found


@given(forests(), st.data())
def test_a_sum_over_a_subtree_counts_a_tied_thing_once(forest: Forest, data: st.DataObject) -> None:
    size = np.array([1, 10, 100, 1000])
    pairs = data.draw(
        st.lists(st.tuples(st.integers(0, len(forest) - 1), st.integers(0, 3)), max_size=12, unique=True)
    )
    pairs.sort()
    sharing = Sharing(forest, [row for row, _ in pairs], [item for _, item in pairs], size)
    for row in range(len(forest)):
        held = {item for at, item in pairs if at in below(forest, row)}
        assert sharing.inclusive(size)[row] == sum(int(size[item]) for item in held)
        assert sharing.over(row, int(forest.end[row]), size) == sum(int(size[item]) for item in held)


@given(forests(), st.data())
def test_rows_on_show_are_those_whose_parents_are_open(forest: Forest, data: st.DataObject) -> None:
    shown = Arrangement(forest)
    shown.is_open = np.array(data.draw(st.lists(st.booleans(), min_size=len(forest), max_size=len(forest))))
    expected = [row for row in range(len(forest)) if all(shown.is_open[up] for up in above(forest, row))]
    assert shown.rows().tolist() == expected


def above(forest: Forest, row: int) -> list[int]:
    found, up = [], int(forest.parent[row])
    while up >= 0:
        found.append(up)
        up = int(forest.parent[up])
    return found


@given(forests(), st.data())
def test_sorting_keeps_children_below_their_parent_and_orders_neighbours(
    forest: Forest, data: st.DataObject
) -> None:
    figures = data.draw(st.lists(st.integers(0, 5), min_size=len(forest), max_size=len(forest)))
    forest.numbers["params"] = np.array(figures, dtype=np.float64)
    shown = Arrangement(forest)
    shown.open_to(99)
    shown.sort = "params"
    rows = shown.rows().tolist()
    assert sorted(rows) == list(range(len(forest)))
    for place, row in enumerate(rows):
        inside = rows[place + 1 : place + int(forest.end[row]) - row]
        assert sorted(inside) == below(forest, row)[1:]
        neighbours = [figures[one] for one in inside if forest.parent[one] == row]
        assert neighbours == sorted(neighbours, reverse=True)


PATTERNS = [
    "n1",
    "t2",
    "T1",
    "^n2$",
    "n[",
    "(",
    "1|2",
    ".",
    "n.*1",
    "n1.*n2",
    ".*",
    "N.*2",
    "n.2",
    "n+",
    "t1$",
]


@given(forests(), st.sampled_from(PATTERNS))
def test_a_filter_shows_what_matches_and_what_is_above_it(forest: Forest, pattern: str) -> None:
    shown = Arrangement(forest)
    shown.matching = shown.search(pattern)
    case = 0 if any(letter.isupper() for letter in pattern) else re.IGNORECASE
    try:
        expression = re.compile(pattern, case | re.MULTILINE)
    except re.error:
        expression = re.compile(re.escape(pattern), case)
    lines = [f"{path}\n{kind}" for path, kind in zip(forest.paths, forest.types)]
    hits = [row for row, line in enumerate(lines) if expression.search(line)]
    assert np.flatnonzero(shown.matching).tolist() == hits
    assert shown.rows().tolist() == sorted({*hits, *(up for row in hits for up in above(forest, row))})
    shown.flat = True
    assert shown.rows().tolist() == hits


def test_what_is_not_known_is_sorted_last_either_way() -> None:
    forest = forest_of([-1, 0, 0, 0])
    forest.numbers["time"] = np.array([9, np.nan, 1, 2])
    shown = Arrangement(forest)
    shown.open_to(9)
    shown.sort = "time"
    assert shown.rows().tolist() == [0, 3, 2, 1]
    shown.descending = False
    assert shown.rows().tolist() == [0, 2, 3, 1]


def test_repeated_neighbours_fold_into_one() -> None:
    names = ["net", "0", "a", "1", "a", "2", "b", "head"]
    forest = Forest(names, ["N", "B", "A", "B", "A", "B", "A", "H"], [-1, 0, 1, 0, 3, 0, 5, 0])
    shown = Arrangement(forest)
    shown.open_to(9)
    shown.folding = True
    assert [shown.label(int(row)) for row in shown.rows()] == ["net", "0–1 × 2", "a", "2", "b", "head"]


def test_a_depth_limit_hides_what_is_deeper_for_good() -> None:
    shown = Arrangement(forest_of([-1, 0, 1, 2]), max_depth=1)
    shown.open_to(99)
    assert shown.rows().tolist() == [0, 1]
    assert not shown.has_children[1]


@pytest.mark.parametrize("depth", [3_000])
def test_a_chain_of_modules_deeper_than_python_recurses(depth: int) -> None:
    forest = forest_of([at - 1 for at in range(depth)])
    shown = Arrangement(forest)
    shown.open_to(depth)
    assert len(shown.rows()) == depth
    assert int(forest.subtotal(np.ones(depth))[0]) == depth


@pytest.mark.parametrize(
    ("switch", "gone"),
    [
        ("show_parameter_counts", {"params"}),
        ("show_shapes", {"out", "shapes"}),
        ("show_timing", {"time", "self", "backward", "recomputed", "flops", "calls"}),
        ("show_memory", {"memory", "bytes"}),
    ],
)
def test_each_switch_of_the_configuration_takes_its_columns_away(switch: str, gone: set[str]) -> None:
    forest = forest_of([-1])
    for name in COLUMNS:
        forest.numbers[name] = np.ones(1)
    everything = chosen(forest, ExplorerConfig())
    assert set(everything) - set(chosen(forest, ExplorerConfig(**{switch: False}))) == gone


def test_figures_that_are_not_known_are_not_written_as_zero() -> None:
    assert cell("time", float("nan")) == ""
    assert cell("params", 0) == "0"
