"""One truth: what a module takes is the same on the page, in the printed table, in the explorer and in the report."""

from __future__ import annotations

import math
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

import torch_vis as tv
from tests.kit.browser import browser, needs_browser
from tests.views.page.test_browser import Page
from tests.zoo import cases, seed_everything
from torch_vis.graph.text import count, duration, size
from torch_vis.interfaces.explorer.trace_source import TraceSource

MODELS = (
    "bert gpt2 lstm unet shared_module checkpoint_nonreentrant transformer_train tied_weights batch_norm_train "
    "encoder_layer_fast_path"
).split()
# What the explorer calls the figures of the report.
EXPLORER = {
    "time": "time_ns",
    "backward": "backward_ns",
    "flops": "flops",
    "memory": "alloc_bytes",
    "params": "parameters",
}
PAGE = ("time_ns", "backward_ns", "flops", "alloc_bytes", "parameters", "calls")
SHOWN = {"time": ("time_ns", duration), "FLOPs": ("flops", count), "allocated": ("alloc_bytes", size)}

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

    t.save(tmp_path / "run.html")
    # The run and the model may both have the path ""; the model comes after the run.
    page = Page(driver, tmp_path / "run.html").open()
    on_page = {row["path"]: row["figures"] for row in page.js("return P.modules()") if row["path"] in lone}
    forest = TraceSource(t).forest
    compared = 0
    for path, row in lone.items():
        figures = on_page.get(path)
        for figure in PAGE if figures else ():
            if figures.get(figure) is not None:
                assert figures[figure] == getattr(row, figure), (path, figure, "page")
                compared += 1
        # The first row is the run; the model is the one below it.
        line = 1 if not path and forest.kind(0) == "run" else forest.row(path)
        for column, figure in EXPLORER.items() if line is not None else ():
            shown = float(forest.numbers[column][line]) if column in forest.numbers else math.nan
            if not math.isnan(shown) and getattr(row, figure) is not None:
                assert shown == getattr(row, figure), (path, figure, "explorer")
                compared += 1
    assert compared >= 4 * len(lone), "hardly anything was compared"
    text = t.table(width=400, depth=None)
    outermost = next(iter(lone.values()))
    for title, (figure, show) in SHOWN.items():
        if title in text and getattr(outermost, figure):
            assert show(getattr(outermost, figure)) in text, (title, "table")
