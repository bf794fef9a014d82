"""The page's graph in the room that it has: what takes it away, names from afar, pictures to keep."""

from __future__ import annotations

import base64
import io
import time
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

import torch_vis as tv
from tests.kit.browser import Net, Page, needs_browser
from torch_vis.graph import Column

pytestmark = needs_browser


@pytest.fixture
def page(show: Callable[[Any], Page]) -> Page:
    torch.manual_seed(0)
    return show(tv.trace(Net(), torch.ones(3, 4), backward=True))


def shown_whole(page: Page) -> bool:
    """Whether every box can be seen with nothing lying on it."""
    return bool(
        page.js(
            "const o = document.querySelector('.graph').getBoundingClientRect();"
            "const over = ['.zoom', '.show-side', 'aside']"
            ".map(s => document.querySelector(s).getBoundingClientRect()).filter(r => r.width && r.height);"
            "return P.boxes().every(({rect: [x, y, w, h]}) => {"
            "const [r, b] = [x + w, y + h];"
            "return x >= o.left && y >= o.top && r <= o.right && b <= o.bottom"
            " && over.every(v => r <= v.left || x >= v.right || b <= v.top || y >= v.bottom); })"
        )
    )


def settled(page: Page) -> bool:
    """The same, once flights and waits are over."""
    for _ in range(2):
        time.sleep(0.7)
    return shown_whole(page)


def test_what_takes_room_moves_the_graph_out_of_its_way(page: Page) -> None:
    assert shown_whole(page)
    page.press("m")
    page.until("return P.state().dock === 'memory'")
    assert settled(page)
    page.press("m", "h")
    page.until("return P.state().heat !== null")
    assert settled(page)
    page.js("P.tab('modules')")
    assert settled(page)
    before = page.js("const c = P.camera(); return P.camera({...c, x: c.x + 30})")
    page.press("t")
    time.sleep(0.7)
    assert page.js("return P.camera()") == before


def test_a_panel_that_covers_the_window_leaves_the_graph_where_it_is(page: Page) -> None:
    """On a telephone the strip beside the panel is too narrow for a graph."""
    page.driver.set_window_size(500, 800)
    page.driver.execute_cdp_cmd(
        "Emulation.setDeviceMetricsOverride",
        {"width": 420, "height": 800, "deviceScaleFactor": 1, "mobile": False},
    )
    try:
        page.open()
        time.sleep(0.7)
        before = page.js("return P.camera().scale")
        page.js("document.querySelector('.show-side').click()")
        time.sleep(1)
        assert page.js("return document.querySelector('aside').getBoundingClientRect().width") > 300
        assert page.js("return P.camera().scale") == before
    finally:
        page.driver.execute_cdp_cmd("Emulation.clearDeviceMetricsOverride", {})
        page.driver.set_window_size(1400, 900)


def test_opening_a_box_leaves_all_in_sight_while_it_can_be_read(page: Page) -> None:
    page.js("P.select('stem')")
    page.press("\ue007")
    page.until("return P.selection().opening === 'all'")
    assert settled(page)


CLOSED = "P.boxes().filter(box => box.inView && box.opening === 'closed')"


def test_what_is_opened_at_once_can_be_read_where_one_was(show: Callable[[Any], Page]) -> None:
    """Not a mosaic of all there is, which the button Fit gives."""

    def shown() -> list[dict[str, Any]]:
        time.sleep(0.7)
        # names come back at the end of the animation
        page.until(f"const drawn = {CLOSED}; return drawn.length > 0 && drawn.every(box => box.fontPx >= 11)")
        boxes: list[dict[str, Any]] = page.js(f"return {CLOSED}")
        return boxes

    page = show(
        tv.trace(
            nn.Sequential(
                *(Net() for _ in range(1)), *(nn.Sequential(nn.Linear(2, 4), Net()) for _ in range(3))
            ),
            torch.ones(4, 4),
        )
    )
    few = len(page.boxes())
    for _ in range(2):
        page.js("document.querySelector('button[title=\"One level more\"]').click()")
        shown()
    assert len(page.boxes()) > few
    page = show(tv.trace(Net(40), torch.ones(3, 4), backward=True))
    page.js("return P.open(P.boxes().find(box => box.isRepeat).id, 'all')")
    page.js("return P.goToCall(P.calls().find(call => call.path === 'blocks.17').scope)")
    time.sleep(0.7)
    page.press("e")
    page.until("return P.boxes().some(box => box.path === 'blocks.17.first' && box.kind === 'op')")
    assert any(box["path"].startswith("blocks.17") for box in shown()), "where one was"
    page.js("P.fit()")
    assert page.js("return P.camera().scale") < 0.5, "all of it is too much to be read"


def test_ties_to_backward_lie_on_no_box_and_on_no_name(show: Callable[[Any], Page]) -> None:
    from PIL import Image

    branches = nn.ModuleList(nn.Linear(4, 4) for _ in range(3))
    page = show(tv.trace(lambda x: sum(layer(x) for layer in branches), torch.ones(2, 4), backward=True))
    page.js("P.theme('light')")
    boxes = sorted(page.boxes(column=0, call="module"), key=lambda box: box["rect"][0])
    assert len(boxes) == 3
    page.js("return P.select(arguments[0])", boxes[0]["id"])
    page.js("P.fit()")
    picture = np.asarray(Image.open(io.BytesIO(page.driver.get_screenshot_as_png())).convert("RGB")).astype(
        int
    )
    red, green, blue = picture[..., 0], picture[..., 1], picture[..., 2]
    tie = (blue - green > 90) & (red - green > 30)
    assert tie.any(), "the tie is drawn"
    for box in page.boxes():
        x, y, w, h = (int(number) for number in box["rect"])
        if box["opening"] == "closed" and box["id"] != boxes[0]["id"]:
            assert not tie[y + 3 : y + h - 3, x + 3 : x + w - 3].any(), box["name"]


@pytest.mark.parametrize("scale", [0.36, 0.5, 0.7])
def test_from_afar_no_button_lies_on_a_box_or_on_another(page: Page, scale: float) -> None:
    page.js("return P.openAll()")
    page.js("P.camera({scale: arguments[0], x: 0, y: 0})", scale)
    found = page.js(
        "const z = P.buttons().filter(b => b.isOpen).map(b => b.rect);"
        "const leaves = P.boxes().filter(b => b.opening === 'closed')"
        ".map(({rect: [x, y, w, h]}) => ({x, y, w, h}));"
        "const meet = (a, b) => a.x < b.x + b.w && b.x < a.x + a.w && a.y < b.y + b.h && b.y < a.y + a.h;"
        "return [z.length, z.filter(a => leaves.some(b => meet(a, b))).length,"
        "z.filter((a, i) => z.some((b, j) => j > i && meet(a, b))).length]"
    )
    assert found[0] > 0 and found[1:] == [0, 0]


def test_a_picture_of_a_heat_map_says_what_its_colours_mean(page: Page) -> None:
    plain = picture(page)
    page.js("P.heat('alloc_bytes')")
    svg = page.js("return P.svg()")
    assert "memory allocated" in svg and " B<" in svg and "square root" in svg
    warm = picture(page)
    assert warm.height > plain.height
    page.js("P.heat('flops')")
    assert "GFLOP" in page.js("return P.svg()") or "FLOP<" in page.js("return P.svg()")


def picture(page: Page) -> Any:
    from PIL import Image

    data = page.driver.execute_async_script(
        "const done = arguments[0]; window.torchVis.png().then(b => { const r = new FileReader();"
        "r.onload = () => done(r.result.split(',')[1]); r.readAsDataURL(b); })"
    )
    return Image.open(io.BytesIO(base64.b64decode(data)))


def test_what_is_only_in_a_keeps_its_lines(show: Callable[[Any], Page]) -> None:
    torch.manual_seed(0)
    a, b = (tv.trace(Net(blocks), torch.ones(3, 4), backward=True) for blocks in (6, 5))
    page = show(tv.compare(a, b))
    page.js("return P.openAll()")
    boxes = {box["id"]: box for box in page.boxes()}
    edges = page.js("return P.edges()")
    read = {edge["source"] for edge in edges}
    dangling = [
        f"{box['path']} {box['label']}"
        for box in boxes.values()
        if box["kind"] == "op" and box["status"] == "removed" and box["id"] not in read
    ]
    assert [name for name in dangling if not name.endswith((" sum", " mm"))] == []
    assert ("removed", "same") in {
        (boxes[edge["source"]]["status"], boxes[edge["target"]]["status"])
        for edge in edges
        if edge["column"] == 0
    }


def test_a_heat_map_of_nothing_says_so(show: Callable[[Any], Page]) -> None:
    trace = tv.trace(Net(), torch.ones(3, 4))
    zero = Column("zero", np.zeros(len(trace.graph), dtype=np.int64))
    page = show(tv.Trace(trace.graph, trace.metrics.with_column(zero), meta=trace.meta))
    page.js("P.heat('zero')")
    assert "none: zero in every box" in page.text(".legend")
    assert page.js("return document.querySelectorAll('.legend .ramp').length") == 0


def test_from_afar_a_heat_map_writes_its_figures_where_there_is_room(page: Page) -> None:
    page.js("P.heat('alloc_bytes')")
    page.js("P.camera({...P.camera(), scale: 0.7})")
    texts = [text for text in page.js("return P.painted()") if text["kind"] == "text"]
    boxes = [box for box in page.boxes() if box["opening"] == "closed" and box["heatText"] and box["inView"]]
    inside = [
        [text["text"] for text in texts if x <= text["x"] <= x + w and y <= text["y"] <= y + h]
        for x, y, w, h in (box["rect"] for box in boxes)
    ]
    named = [(box, said) for box, said in zip(boxes, inside) if said]
    assert named and any(box["heatText"] in said for box, said in named)
    for box, said in named:
        assert set(said) <= {box["heatText"], said[0], "+", f"×{box['count']}"}, box["name"]
    assert {
        round(text["size"], 1) for text in texts if text["text"] in {box["heatText"] for box, _ in named}
    } == {11.0}


class Recurrent(nn.Module):
    """A cell in a loop, which hands itself what it made."""

    def __init__(self) -> None:
        super().__init__()
        self.cell = nn.RNNCell(4, 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        state = torch.zeros_like(x[0])
        for step in x:
            state = self.cell(step, state)
        return state


def test_a_picture_says_what_it_is_of_and_shows_what_the_page_shows(show: Callable[[Any], Page]) -> None:
    import xml.etree.ElementTree as ET

    page = show(tv.trace(Recurrent(), torch.ones(5, 2, 4), backward=True))
    name = "{http://www.w3.org/2000/svg}"
    root = ET.fromstring(page.js("P.heat(null); return P.svg()"))
    places = {text.text: float(text.attrib["y"]) for text in root.iter(f"{name}text")}
    title = root.findtext(f"{name}title")
    assert title is not None and title.startswith("Recurrent · ") and title.endswith(" operations")
    assert places[title] < min(place for words, place in places.items() if words != title)
    low = page.boxes(name="summed outputs")[0]["sheet"]
    shape = page.boxes(name="summed outputs")[0]["shape"]
    beside = [
        float(text.attrib["y"])
        for text in root.iter(f"{name}text")
        if text.text == shape and low["x"] < float(text.attrib["x"]) < low["x"] + low["w"]
    ]
    assert any(low["y"] < place < low["y"] + low["h"] for place in beside), "within its box"
    dashed = [path for path in root.iter(f"{name}path") if "stroke-dasharray" in path.attrib]
    assert len(dashed) >= 1 and "handed to the next turn" in places, "what the loop hands on"
    page.js("P.heat('time_ns')")
    texts = [text.text for text in ET.fromstring(page.js("return P.svg()")).iter(f"{name}text")]
    figures = [box["heatText"] for box in page.boxes(opening="closed") if box["heatText"]]
    assert figures and all(figure in texts for figure in figures)


def test_a_picture_of_both_phases_in_one_tells_their_lines_apart(page: Page) -> None:
    page.js("P.theme('light'); return P.phases('over')")
    svg = page.js("return P.svg()")
    assert "lines of the backward pass" in svg and svg.count("#e0ab78") >= 2, "a line and its key"


def test_the_legend_says_what_the_lines_of_a_selection_are(page: Page) -> None:
    from selenium.webdriver.common.keys import Keys

    assert "producers" not in page.text(".legend")
    page.click("head")
    page.until("return P.selection()?.label === 'head'")
    legend = page.text(".legend")
    assert "from producers" in legend and "the same in another phase" in legend
    page.press(Keys.ESCAPE)
    page.until("return P.selection() === null")
    assert "producers" not in page.text(".legend")


def test_what_is_told_and_what_is_outlined_are_the_same_after_a_repeat_shows_all(page: Page) -> None:
    fold = page.boxes(kind="fold", column=0)[0]["id"]
    page.js("return P.open(arguments[0], 'one')", fold)
    page.js("return P.select(arguments[0])", fold)
    assert "one of" in page.text(".details"), "the instance that is shown"
    page.js("return P.open(arguments[0], 'all')", fold)
    assert "one of" not in page.text(".details") and "stands for" in page.text(".details")
    page.js("return P.open(arguments[0], 'one')", fold)
    inner = page.boxes(parent=fold)[0]
    page.js("return P.select(arguments[0])", inner["id"])
    page.js("return P.open(arguments[0], 'all')", fold)
    assert page.js("return P.selection().id") == inner["id"]
    legend = page.text(".legend")
    assert "to consumers" in legend, "lines of the closed box that it is in are brought out"


def test_what_was_drawn_at_once_is_not_drawn_again(page: Page) -> None:
    drawn = page.driver.execute_async_script(
        "const done = arguments[0], P = torchVis, of = document.querySelector('.graph').getContext('2d');"
        "let count = 0; const fill = of.fillRect;"
        "of.fillRect = (x, y, ...rest) => { count += Number(!x && !y); fill.call(of, x, y, ...rest); };"
        "P.camera({...P.camera(), x: 3});"
        "requestAnimationFrame(() => requestAnimationFrame(() => done(count)));"
    )
    assert drawn == 1
