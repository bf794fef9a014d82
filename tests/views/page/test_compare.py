"""The page of a comparison in a real Chromium: blocks in order, what was removed, names that lie on nothing."""

from __future__ import annotations

import copy
import itertools
import re
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn

import torch_vis as tv
from tests.kit.browser import Page, needs_browser

pytestmark = needs_browser
Show = Callable[[Any], Page]
Rect = dict[str, float]


def is_frame(box: dict[str, Any]) -> bool:
    return box["opening"] != "closed"


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


def blocks(page: Page, column: int) -> list[tuple[str, float, float, bool]]:
    """The label and place of each block in a column, and whether it lies inside the repeat of three."""
    boxes = page.boxes(column=column)
    (repeat,) = (box for box in boxes if box["kind"] == "fold" and box["count"] == 3)
    return [
        (box["label"], box["sheet"]["x"], box["sheet"]["y"], within(box["sheet"], repeat["sheet"]))
        for box in boxes
        if re.fullmatch(r"blocks\.\d", box["label"])
    ]


def meet(a: Rect, b: Rect) -> bool:
    return (
        a["x"] < b["x"] + b["w"]
        and b["x"] < a["x"] + a["w"]
        and a["y"] < b["y"] + b["h"]
        and b["y"] < a["y"] + a["h"]
    )


def within(a: Rect, b: Rect) -> bool:
    return (
        a["x"] >= b["x"]
        and a["y"] >= b["y"]
        and a["x"] + a["w"] <= b["x"] + b["w"]
        and a["y"] + a["h"] <= b["y"] + b["h"]
    )


@pytest.mark.parametrize("size", [(1500, 1000), (1000, 700), (600, 800)])
def test_a_repeat_that_is_open_holds_all_of_its_blocks_in_their_order(
    show: Show, driver: Any, size: tuple[int, int]
) -> None:
    driver.set_window_size(*size)
    page = show(compared(everywhere))
    page.js("return P.openAll()")
    for column, up in ((blocks(page, 0), False), (blocks(page, 1), True)):
        assert {label for label, *_ in column} == {"blocks.0", "blocks.1", "blocks.2"}
        assert all(inside for *_, inside in column)
        places = {label: (x, -y if up else y) for label, x, y, _ in column}
        names = sorted(places, reverse=up)
        for before, after in itertools.pairwise(names):
            (x, y), (next_x, next_y) = places[before], places[after]
            # below it, or on in a column to the right
            assert next_y > y + 20 or next_x > x + 20, places


def test_a_block_that_was_removed_stands_by_itself_and_the_one_in_its_place_says_what_it_was(
    show: Show,
) -> None:
    page = show(compared(without_one))
    page.js("return P.depth(1)")
    for column in range(2):
        found = [box for box in page.boxes(column=column) if box["label"].startswith("blocks.")]
        assert sorted((box["label"], box["status"], box["was"]) for box in found) == [
            ("blocks.0", "same", ""),
            ("blocks.1", "removed", ""),
            ("blocks.1", "same", "was blocks.2"),
        ]
        assert len({box["operations"] for box in found}) == 1
    page.js("P.select(P.boxes().find(b => b.was).id)")
    assert page.js("return document.querySelector('.details').textContent").count("blocks.2")


def test_what_replaces_a_module_stands_where_it_stood(show: Show) -> None:
    page = show(compared(in_one))
    page.js("return P.openAll()")
    boxes = page.boxes(column=0)
    label = {box["id"]: box["label"] for box in boxes}
    found = [
        (box["label"], box["status"], label[box["parent"]]) for box in boxes if box["label"].endswith("lu")
    ]
    assert sorted(row for row in found if row[1] != "same") == [
        ("gelu", "removed", "act"),
        ("relu", "added", "act"),
    ]


@pytest.mark.parametrize("change", [everywhere, in_one, without_one])
def test_names_and_buttons_of_frames_lie_on_no_box_no_border_and_no_other_name(
    show: Show, driver: Any, change: Callable[[Tower], None]
) -> None:
    driver.set_window_size(1500, 1000)
    page = show(compared(change))
    page.js("return P.openAll()")
    for scale in (0.12, 0.16, 0.2, 0.25, 0.31, 0.33, 0.4, 0.5, 0.65, 0.8, 0.9, 1.2):
        page.js("P.camera({scale: arguments[0], x: 5, y: 5})", scale)
        painted, boxes = page.js("return [P.painted(), P.boxes()]")
        plates = [part for part in painted if part["kind"] == "plate"]
        leaves, frames = (
            [dict(zip("xywh", box["rect"])) for box in boxes if is_frame(box) == kind]
            for kind in (False, True)
        )
        assert plates or scale < 0.3, scale
        assert not [plate for plate in plates if any(meet(plate, box) for box in leaves)], scale
        assert not [pair for pair in itertools.combinations(plates, 2) if meet(*pair)], scale
        assert not [
            plate for plate in plates if any(meet(plate, f) and not within(plate, f) for f in frames)
        ], scale


def test_from_afar_the_colours_still_say_what_differs(show: Show) -> None:
    page = show(compared(in_one))
    page.js("return P.openAll()")
    far = {box["status"]: box["farFill"] for box in page.boxes(column=0, kind="op")}
    assert len({far[status] for status in ("same", "added", "removed")}) == 3


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
        "return [...document.querySelectorAll('.summary .changes:not(.words) li')].map(l => l.textContent)"
        ".filter(t => t.includes('→'))"
    )
    assert len(told) < len(result.changed) and any(" more like it" in text for text in told)
    plain = [text.split(" and ")[0] for text in told]
    names = page.js(
        "return [...document.querySelectorAll('.summary .changes:not(.words) .row b')].map(b => b.textContent)"
    )
    assert len(set(zip(names, plain, strict=True))) == len(told)
    counted = sum(1 + int(text.split(" and ")[1].split()[0]) if " and " in text else 1 for text in told)
    rest = page.js(
        "return document.querySelector('.summary .changes:not(.words)').nextElementSibling?.textContent ?? ''"
    )
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
    page.js("return P.openAll()")
    assert [box["label"] for box in page.boxes() if box["was"]] == []
