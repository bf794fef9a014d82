"""One truth: what a module takes is the same on the page, in the printed table, in the explorer and in the reports.

Each surface is read as a person reads it: the cells of the page's table of modules, the text of ``print(t)``, the cells
of the explorer's rows; the numbers behind them are compared as well where a surface has them.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
import torch

import torch_vis as tv
from tests.kit.browser import Page, browser, needs_browser
from tests.zoo import cases, seed_everything
from torch_vis.graph.text import count, duration, size
from torch_vis.interfaces.explorer.trace_source import TraceSource
from torch_vis.views.terminal.columns import cell as explorer_cell

MODELS = (
    "bert gpt2 lstm unet shared_module checkpoint_nonreentrant transformer_train tied_weights batch_norm_train "
    "encoder_layer_fast_path"
).split()
# Each figure of the reports, how it is written, and what it is called in the table and in the explorer.
FIGURES: dict[str, tuple[Callable[[int], str], str, str]] = {
    "time_ns": (duration, "time", "time"),
    "backward_ns": (duration, "backward time", "backward"),
    "flops": (count, "FLOPs", "flops"),
    "alloc_bytes": (size, "allocated", "memory"),
    "parameters": (count, "params", "params"),
}
# The columns of the page's table.
PAGE: dict[str, tuple[str, Callable[[int], str]]] = {
    "calls": ("calls", "{:,}".format),
    "time": ("time_ns", duration),
    "backward": ("backward_ns", duration),
    "FLOPs": ("flops", count),
    "params": ("parameters", count),
    "allocated": ("alloc_bytes", size),
    "FLOPs backward": ("backward_flops", count),
    "accessed": ("moved_bytes", size),
    "ops": ("ops", "{:,}".format),
}

pytestmark = needs_browser


@pytest.fixture(scope="module")
def driver() -> Iterator[Any]:
    with browser() as driver:
        yield driver


@pytest.mark.parametrize("name", MODELS)
def test_every_module_has_the_same_figures_everywhere(name: str, driver: Any, tmp_path: Path) -> None:
    (case,) = [case for case in cases() if case.name == name]
    seed_everything()
    model, args, kwargs = case.make()
    with torch.enable_grad():
        t = tv.trace(model, *args, kwargs=kwargs, backward=case.backward, hold=False)
    # A module that is called from several places is a row for each; such rows are not the module's own figures.
    rows: dict[str, list[Any]] = {}
    for row in t.summary().modules:
        if row.kind == "module":
            rows.setdefault(row.path, []).append(row)
    lone = {path: found[0] for path, found in rows.items() if len(found) == 1 and found[0].calls}
    assert lone, "there are modules to compare"

    ran = {path for path, row in lone.items() if row.ops or row.backward_ops}
    assert on_the_page(driver, t, tmp_path / "run.html", lone) >= ran
    assert in_the_explorer(t, lone) == set(lone)
    assert in_the_table(t, lone) == set(lone)
    whole = t.summary().modules[0]
    if whole.kind == "run":
        shown = Page(driver, tmp_path / "run.html").open().js("return P.modules()[0].figures")
        forest = TraceSource(t).forest
        assert shown["time_ns"] == whole.time_ns == int(forest.numbers["time"][0]), (
            "the run, on page and explorer"
        )
        assert shown["backward_ns"] == whole.backward_ns
        assert whole.time_ns < t.meta["wall_ns"]
    for timed in t.time().modules:
        row = lone.get(timed.name)
        if row is not None and timed.type == row.type and timed.scope:
            assert (timed.inclusive_ns, timed.backward_ns) == (row.time_ns, row.backward_ns or 0), timed.name


def written(row: Any, figure: str, show: Callable[[int], str]) -> str:
    """A figure of a row as every table writes it."""
    number = getattr(row, figure)
    least = "≥ " if figure in row.incomplete else ""
    return "–" if number is None else f"{least}{show(number)}" if number else f"{least}0"


def on_the_page(driver: Any, t: tv.Trace, path: Path, lone: dict[str, Any]) -> set[str]:
    """Compare the page's table of modules, its numbers and its cells; which modules it has."""
    t.save(path)
    page = Page(driver, path).open()
    page.js("P.tab('modules')")
    data = page.js("return P.modules()")
    cells = page.js(
        "return [...document.querySelectorAll('.grid tbody tr')].map(row =>"
        "[...row.querySelectorAll('td.num')].map(cell => cell.textContent))"
    )
    titles = page.js("return [...document.querySelectorAll('.grid th button')].map(b => b.textContent)")
    assert len(data) == len(cells) and len(titles) == len(cells[0]) + 1
    seen = set()
    # The run and the model may both have the path ""; the model comes after the run.
    for row, texts in list(zip(data, cells))[1:]:
        one = lone.get(row["path"])
        if one is None or row["cls"] != one.type:
            continue
        seen.add(row["path"])
        for title, text in zip(titles[1:], texts, strict=True):
            figure, show = PAGE[title]
            assert row["figures"][figure] == getattr(one, figure), (row["path"], figure, "page")
            assert text == written(one, figure, show), (row["path"], figure, "cells of the page")
    return seen


def in_the_explorer(t: tv.Trace, lone: dict[str, Any]) -> set[str]:
    """Compare the explorer's rows; which modules it has."""
    forest = TraceSource(t).forest
    seen = set()
    for path, row in lone.items():
        # The first row is the run; the model is the one below it.
        line = 1 if not path and forest.kind(0) == "run" else forest.row(path)
        if line is None:
            continue
        seen.add(path)
        for figure, (show, _, column) in FIGURES.items():
            number = getattr(row, figure)
            if column not in forest.numbers:
                assert not any(getattr(other, figure) for other in lone.values()), (figure, "explorer")
                continue
            text = explorer_cell(column, float(forest.numbers[column][line]))
            # What is not there is not written, as parameters of a module without any.
            assert text == ("" if number is None else show(number)) or (not number and text in ("", "0")), (
                path,
                figure,
                "explorer",
            )
    return seen


def in_the_table(t: tv.Trace, lone: dict[str, Any]) -> set[str]:
    """Compare the printed table, a row of several modules with the sum over them; which modules it has."""
    lines = t.table(width=400, depth=None).splitlines()
    rule = next(number for number, line in enumerate(lines) if line.startswith("───"))
    groups, titles = lines[rule - 2], lines[rule - 1]
    columns = {}
    for match in re.finditer(r"\S+", titles):
        is_backward = "backward" in groups and match.end() > groups.index("─")
        columns[("backward " if is_backward else "") + match[0]] = match.end()
    ends = {title: (before, end) for (_, before), (title, end) in pairwise([("", 0), *columns.items()])}
    seen: set[str] = set()
    above: list[list[str]] = []
    for line in lines[rule + 1 :]:
        if not line:
            break
        stem = re.match(r"[│├└─ ]*", line)[0]  # type: ignore[index]
        name = line[len(stem) :].partition("  ")[0].removesuffix(" ↻")
        if not name or name.startswith("·"):
            continue
        depth = len(stem) // 3
        paths = members(name, above[depth - 1] if depth else [], lone)
        above[depth:] = [paths]
        if not paths or any(path not in lone for path in paths):
            continue
        seen.update(paths)
        for figure, (show, title, _) in FIGURES.items():
            if title not in ends:
                assert not any(getattr(lone[path], figure) for path in paths), (figure, "table")
                continue
            if figure == "parameters" and len(paths) > 1:
                continue  # those that several share count once
            number = sum(getattr(lone[path], figure) or 0 for path in paths)
            low = "≥ " if any(figure in lone[path].incomplete for path in paths) else ""
            start, end = ends[title]
            text = line[start:end].rpartition("  ")[2].strip()
            expected = low + (show(number) if number else "0")
            assert text == expected or (not number and text in ("", "–")), (paths, figure, "table")
    return seen


def members(name: str, around: list[str], lone: dict[str, Any]) -> list[str]:
    """The paths of the modules that a row stands for, inside those of the row around it."""
    folded = re.fullmatch(r"(.*?)(\d+)-(\d+) × (\d+)", name)
    if folded:
        first, last, times = map(int, folded.groups()[1:])
        labels = [f"{folded[1]}{number}" for number in range(first, last + 1)]
        assert len(labels) == times
    else:
        labels = [name]
    if not around:
        # The model itself is called by its class.
        return [path for path, row in lone.items() if not path and row.type == name] or labels
    return [f"{path}.{label}" if path else label for path in around for label in labels]
