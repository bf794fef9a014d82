"""The page of a comparison in a real Chromium: blocks in order, what was removed, names that lie on nothing."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn

import torch_vis as tv
from tests.kit.browser import needs_browser
from tests.views.page.test_browser import Page

pytestmark = needs_browser
Show = Callable[[Any], Page]


class Mlp(nn.Module):
    """Two layers with an activation between them."""

    def __init__(self) -> None:
        super().__init__()
        self.up, self.act, self.down = nn.Linear(8, 16), nn.GELU(), nn.Linear(16, 8)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.down(self.act(self.up(x)))


class Block(nn.Module):
    """Two of them, each with a norm and a skip."""

    def __init__(self) -> None:
        super().__init__()
        self.norm, self.first, self.second = nn.LayerNorm(8), Mlp(), Mlp()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = x + self.first(self.norm(x))
        return x + self.second(x)


class Tower(nn.Module):
    """A stem, three blocks and a head."""

    def __init__(self) -> None:
        super().__init__()
        self.stem, self.blocks = nn.Linear(4, 8), nn.ModuleList(Block() for _ in range(3))
        self.head = nn.Linear(8, 2)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.stem(x)
        for block in self.blocks:
            x = block(x)
        return self.head(x)


def everywhere(model: Tower) -> None:
    for block in model.blocks:
        block.first.act = nn.ReLU()


def in_one(model: Tower) -> None:
    model.blocks[1].first.act = nn.ReLU()


def without_one(model: Tower) -> None:
    del model.blocks[1]


def compared(change: Callable[[Tower], None]) -> tv.Comparison:
    torch.manual_seed(0)
    one = Tower()
    two = copy.deepcopy(one)
    change(two)
    a, b = (tv.trace(model, torch.ones(3, 4), backward=True) for model in (one, two))
    return tv.compare(a, b)


BLOCKS = (
    "return A.scene.columns.map(c => {"
    "const f = c.picture.items.findIndex(i => i.box.kind === 'fold' && i.box.count === 3);"
    "return c.picture.items.flatMap((it, i) => /^blocks\\.\\d$/.test(it.box.label) ?"
    "[[it.box.label, c.x[i], c.y[i], f >= 0 && c.x[i] >= c.x[f] && c.x[i] + c.w[i] <= c.x[f] + c.w[f]"
    " && c.y[i] >= c.y[f] && c.y[i] + c.h[i] <= c.y[f] + c.h[f]]] : []); })"
)


@pytest.mark.parametrize("size", [(1500, 1000), (1000, 700), (600, 800)])
def test_a_repeat_that_is_open_holds_all_of_its_blocks_in_their_order(
    show: Show, driver: Any, size: tuple[int, int]
) -> None:
    driver.set_window_size(*size)
    page = show(compared(everywhere))
    page.js("return S.openEverything()")
    forward, backward = page.js(BLOCKS)
    for column, up in ((forward, False), (backward, True)):
        assert {label for label, *_ in column} == {"blocks.0", "blocks.1", "blocks.2"}
        assert all(inside for *_, inside in column)
        places = {label: (x, -y if up else y) for label, x, y, _ in column}
        names = sorted(places, reverse=up)
        one_below_the_other = sorted(names, key=lambda name: places[name][1])
        one_beside_the_other = sorted(names, key=lambda name: places[name][0])
        levels, sides = ({round(places[name][axis]) for name in names} for axis in (1, 0))
        assert (len(levels) == 3 and one_below_the_other == names) or (
            len(levels) == 1 and len(sides) == 3 and one_beside_the_other == names
        )


def test_a_block_that_was_removed_stands_by_itself_and_the_one_in_its_place_says_what_it_was(
    show: Show,
) -> None:
    page = show(compared(without_one))
    for column in range(2):
        found = page.js(
            "return A.scene.columns[arguments[0]].picture.items.map(i => i.box)"
            ".filter(b => b.label.startsWith('blocks.')).map(b => [b.label, b.difference, b.was, b.operations])",
            column,
        )
        assert sorted(row[:3] for row in found) == [
            ["blocks.0", 0, ""],
            ["blocks.1", 0, "was blocks.2"],
            ["blocks.1", 2, ""],
        ]
        assert len({operations for *_, operations in found}) == 1
    page.js("A.select(A.scene.columns[0].picture.items.map(i => i.box).find(b => b.was))")
    assert page.js("return document.querySelector('.details').textContent").count("blocks.2")


def test_what_replaces_a_module_stands_where_it_stood(show: Show) -> None:
    page = show(compared(in_one))
    page.js("return S.openEverything()")
    found = page.js(
        "const c = A.scene.columns[0].picture; return c.items.filter(i => i.box.label.endsWith('lu'))"
        ".map(i => [i.box.label, i.box.difference, c.items[c.frames[i.frame].item].box.label])"
    )
    assert sorted(row for row in found if row[1]) == [["gelu", 2, "act"], ["relu", 1, "act"]]


PLATES = (
    "const scale = arguments[0], proto = CanvasRenderingContext2D.prototype, round = proto.roundRect, plates = [];"
    "const view = S.view; view.fly({scale, x: 5, y: 5}, false);"
    "proto.roundRect = function (x, y, w, h, r) { if ([A.theme.plate, A.theme.accent].includes(this.fillStyle)) {"
    "const m = this.getTransform(), k = devicePixelRatio;"
    "plates.push([m.a * x + m.e, m.d * y + m.f, m.a * w, m.d * h].map(n => n / k)); }"
    "return round.call(this, x, y, w, h, r); };"
    "try { view.drawNow(); } finally { proto.roundRect = round; }"
    "const at = (c, i) => [c.x[i] * scale + 5, c.y[i] * scale + 5, c.w[i] * scale, c.h[i] * scale];"
    "const meet = (a, b) => a[0] < b[0] + b[2] && b[0] < a[0] + a[2] && a[1] < b[1] + b[3] && b[1] < a[1] + a[3];"
    "const within = (a, b) => a[0] >= b[0] && a[1] >= b[1] && a[0] + a[2] <= b[0] + b[2] && a[1] + a[3] <= b[1] + b[3];"
    "const of = own => A.scene.columns.flatMap(c =>"
    "c.picture.items.flatMap((it, i) => own === (it.own >= 0) ? [at(c, i)] : []));"
    "const leaves = of(false), frames = of(true);"
    "return [plates.length, plates.filter(p => leaves.some(b => meet(p, b))).length,"
    "plates.filter((p, i) => plates.some((q, j) => j > i && meet(p, q))).length,"
    "plates.filter(p => frames.some(f => meet(p, f) && !within(p, f))).length]"
)


@pytest.mark.parametrize("change", [everywhere, in_one, without_one])
def test_names_and_buttons_of_frames_lie_on_no_box_no_border_and_no_other_name(
    show: Show, driver: Any, change: Callable[[Tower], None]
) -> None:
    driver.set_window_size(1500, 1000)
    page = show(compared(change))
    page.js("return S.openEverything()")
    for scale in (0.12, 0.16, 0.2, 0.25, 0.31, 0.33, 0.4, 0.5, 0.65, 0.8, 0.9, 1.2):
        names, *covered = page.js(PLATES, scale)
        assert names > 0 and covered == [0, 0, 0], scale


def test_from_afar_the_colours_still_say_what_differs(show: Show) -> None:
    page = show(compared(in_one))
    page.js("return S.openEverything()")
    far = page.js(
        "return [0, 1, 2].map(d => { const b = A.scene.columns[0].picture.items.map(i => i.box)"
        ".find(b => b.kind === 'op' && b.difference === d); return A.paint(b, A.theme).far; })"
    )
    assert len(set(far)) == 3


def test_the_module_table_has_what_was_removed_where_it_was(show: Show) -> None:
    page = show(compared(without_one))
    page.js("[...document.querySelectorAll('.tabs button')].find(b => b.textContent === 'Modules').click()")
    names = page.js("return [...document.querySelectorAll('.modules td.name')].map(n => n.textContent)")
    blocks = [name for name in names if "blocks." in name]
    assert blocks == ["blocks.0 Block", "− blocks.1 Block", "blocks.1 Block · was blocks.2"]
    assert [name for name in names if name.startswith("− ")] == names[
        names.index(blocks[1]) : names.index(blocks[2])
    ]
    assert names[-1] == "head Linear" and "− removed, ≠ changed" in page.text(".modules")


def test_operations_that_changed_in_the_same_way_are_told_together(show: Show) -> None:

    torch.manual_seed(0)
    one, two = Tower(), Tower()
    two.to(torch.float64)
    result = tv.compare(tv.trace(one, torch.ones(3, 4)), tv.trace(two, torch.ones(3, 4, dtype=torch.float64)))
    page = show(result)
    told = page.js(
        "return [...document.querySelectorAll('.summary .changes li')].map(l => l.textContent)"
        ".filter(t => t.includes('→'))"
    )
    assert len(told) < len(result.changed) and any(" more like it" in text for text in told)
    plain = [text.split(" and ")[0] for text in told]
    names = page.js(
        "return [...document.querySelectorAll('.summary .changes .row b')].map(b => b.textContent)"
    )
    assert len(set(zip(names, plain, strict=True))) == len(told)
    counted = sum(1 + int(text.split(" and ")[1].split()[0]) if " and " in text else 1 for text in told)
    rest = page.js("return document.querySelector('.summary .changes').nextElementSibling?.textContent ?? ''")
    assert counted + (int(rest.split()[1]) if rest else 0) == len(result.changed)


def test_what_is_in_a_module_that_was_wrapped_keeps_its_name(show: Show) -> None:
    class Wrapper(nn.Module):
        def __init__(self, module: nn.Module) -> None:
            super().__init__()
            self.module = module

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.module(x)

    torch.manual_seed(0)
    model = Tower()
    result = tv.compare(*(tv.trace(one, torch.ones(3, 4)) for one in (model, Wrapper(model))))
    page = show(result)
    page.js("return S.openEverything()")
    assert page.js("return A.run.data.compare.was") == []
    assert not any(
        "was" in box for box in page.js("return A.scene.columns[0].picture.items.map(i => i.box.was)")
    )
