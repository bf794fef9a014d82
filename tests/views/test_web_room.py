"""The page's graph in the room that it has: what takes it away, names from afar, pictures to keep."""

from __future__ import annotations

import base64
import io
import time
from collections.abc import Callable
from typing import Any

import pytest
import torch

import torch_vis as tv
from tests.browser import needs_browser
from tests.views.test_web_browser import Net, Page

pytestmark = needs_browser


@pytest.fixture
def page(show: Callable[[Any], Page]) -> Page:
    torch.manual_seed(0)
    return show(tv.trace(Net(), torch.ones(3, 4), backward=True))


def shown_whole(page: Page) -> bool:
    """Whether every box can be seen with nothing lying on it."""
    return bool(
        page.js(
            "const o = S.view.canvas.getBoundingClientRect(), {scale, x, y} = S.view.camera;"
            "const over = S.view.overlays.map(e => e.getBoundingClientRect()).filter(r => r.width && r.height);"
            "return A.scene.columns.every(c => c.picture.items.every((_, i) => {"
            "const l = c.x[i] * scale + x + o.left, t = c.y[i] * scale + y + o.top;"
            "const r = l + c.w[i] * scale, b = t + c.h[i] * scale;"
            "return l >= o.left && t >= o.top && r <= o.right && b <= o.bottom"
            " && over.every(v => r <= v.left || l >= v.right || b <= v.top || t >= v.bottom); }))"
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
    page.until("return S.docked === 'memory'")
    assert settled(page)
    page.press("m", "h")
    page.until("return A.heat !== null")
    assert settled(page)
    page.js("S.showTab('modules')")
    assert settled(page)
    page.js("S.view.pan(30, 0)")
    before = page.js("return [S.view.camera.x, S.view.camera.y, S.view.camera.scale]")
    page.press("t")
    time.sleep(0.7)
    assert page.js("return [S.view.camera.x, S.view.camera.y, S.view.camera.scale]") == before


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
        before = page.js("return S.view.camera.scale")
        page.js("document.querySelector('.show-side').click()")
        time.sleep(1)
        assert page.js("return document.querySelector('aside').getBoundingClientRect().width") > 300
        assert page.js("return S.view.camera.scale") == before
    finally:
        page.driver.execute_cdp_cmd("Emulation.clearDeviceMetricsOverride", {})
        page.driver.set_window_size(1400, 900)


def test_opening_a_box_leaves_all_in_sight_while_it_can_be_read(page: Page) -> None:
    page.js(
        "const box = A.scene.columns[0].picture.items.map(i => i.box).find(b => b.label === 'stem');"
        "A.select(box)"
    )
    page.press("\ue007")
    page.until("return A.selected.opening === 'all'")
    assert settled(page)


@pytest.mark.parametrize("scale", [0.36, 0.5, 0.7])
def test_from_afar_no_button_lies_on_a_box_or_on_another(page: Page, scale: float) -> None:
    page.js("return S.openEverything()")
    page.js("S.view.fly({scale: arguments[0], x: 0, y: 0}, false); S.view.drawNow()", scale)
    found = page.js(
        "const z = S.view.painter.zones.filter(z => z.box.opening !== 'closed'), {scale, x, y} = S.view.camera;"
        "const leaves = A.scene.columns.flatMap(c => c.picture.items.flatMap((it, i) => it.own >= 0 ? [] :"
        "[{x: c.x[i] * scale + x, y: c.y[i] * scale + y, w: c.w[i] * scale, h: c.h[i] * scale}]));"
        "const meet = (a, b) => a.x < b.x + b.w && b.x < a.x + a.w && a.y < b.y + b.h && b.y < a.y + a.h;"
        "return [z.length, z.filter(a => leaves.some(b => meet(a, b))).length,"
        "z.filter((a, i) => z.some((b, j) => j > i && meet(a, b))).length]"
    )
    assert found[0] > 0 and found[1:] == [0, 0]


def test_a_picture_of_a_heat_map_says_what_its_colours_mean(page: Page) -> None:
    plain = picture(page)
    page.js("A.setHeat('alloc_bytes')")
    svg = page.js("return T.toSvg()")
    assert "memory allocated" in svg and " B<" in svg and "square root" in svg
    warm = picture(page)
    assert warm.height > plain.height
    page.js("A.setHeat('flops')")
    assert "GFLOP" in page.js("return T.toSvg()") or "FLOP<" in page.js("return T.toSvg()")


def picture(page: Page) -> Any:
    from PIL import Image

    data = page.driver.execute_async_script(
        "const done = arguments[0]; window.__torch_vis.png().then(b => { const r = new FileReader();"
        "r.onload = () => done(r.result.split(',')[1]); r.readAsDataURL(b); })"
    )
    return Image.open(io.BytesIO(base64.b64decode(data)))


def test_what_is_only_in_a_keeps_its_lines(show: Callable[[Any], Page]) -> None:
    torch.manual_seed(0)
    a, b = (tv.trace(Net(blocks), torch.ones(3, 4), backward=True) for blocks in (6, 5))
    page = show(tv.compare(a, b))
    page.js("return S.openEverything()")
    dangling = page.js(
        "return A.scene.columns.flatMap(({picture: {items, edges}}) => items.flatMap(({box, own}, i) =>"
        "box.kind === 'op' && box.difference === 2 && !edges.some(e => e.source === i)"
        "? [A.run.path(A.run.nodeScope[box.node]) + ' ' + box.label] : []))"
    )
    assert [name for name in dangling if not name.endswith((" sum", " mm"))] == []
    assert page.js(
        "return A.scene.columns[0].picture.edges.some(e => { const [s, t] = [e.source, e.target]"
        ".map(i => A.scene.columns[0].picture.items[i].box); return s.difference === 2 && t.difference === 0 })"
    )


def test_a_heat_map_of_nothing_says_so(page: Page) -> None:
    page.js(
        "A.heat = {...A.measures[0], id: 'zero', label: 'zero', of: () => 0}; A.range = {least: 0, most: 0};"
        "A.emit('look')"
    )
    assert "none: zero in every box" in page.text(".legend")
    assert page.js("return document.querySelectorAll('.legend .ramp').length") == 0
