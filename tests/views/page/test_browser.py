"""The web page in a real Chromium, opened from disk: what a person does, and what they see."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import torch_vis as tv
from tests.kit.browser import browser, needs_browser
from tests.kit.graphs import empty_graph
from tests.views.figure.test_renderers import hostile_model
from torch_vis.graph import Metrics

pytestmark = needs_browser
WAIT_S = 20.0


class Block(nn.Module):
    def __init__(self, size: int) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(8, size), nn.Linear(size, 8)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + self.second(torch.relu(self.first(x)))


class Net(nn.Module):
    """A stem, six blocks of which the third is wider, and a head."""

    def __init__(self, blocks: int = 6) -> None:
        super().__init__()
        self.stem = nn.Linear(4, 8)
        self.blocks = nn.ModuleList(Block(24 if place == 2 else 16) for place in range(blocks))
        self.head = nn.Linear(8, 2)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.stem(x)
        for block in self.blocks:
            x = block(x)
        return self.head(x)


class Page:
    """A page in the browser, driven as a person drives it."""

    def __init__(self, driver: Any, path: Path) -> None:
        self.driver, self.path = driver, path

    def open(self, hash: str = "") -> Page:
        self.driver.get("about:blank")
        self.driver.get_log("browser")
        self.driver.get(self.path.as_uri() + hash)
        self.until("return !!window.__torch_vis")
        return self

    def js(self, code: str, *args: Any) -> Any:
        return self.driver.execute_script(
            "const T = window.__torch_vis; const A = T?.app, S = T?.shell;" + code, *args
        )

    def until(self, code: str) -> Any:
        end = time.monotonic() + WAIT_S
        while time.monotonic() < end:
            found = self.js(code)
            if found:
                return found
            time.sleep(0.03)
        raise AssertionError(
            f"not seen within {WAIT_S} s: {code}; {self.js('return document.body.innerText')[:500]}"
        )

    def press(self, *keys: str) -> None:
        from selenium.webdriver.common.action_chains import ActionChains

        ActionChains(self.driver).send_keys(*keys).perform()

    def labels(self) -> list[str]:
        """What is to be seen: the labels of all boxes and frames."""
        return self.js("return A.scene.columns.flatMap(c => c.picture.items.map(i => i.box.label))")

    def click(self, label: str, *, twice: bool = False) -> None:
        """Click the middle of a box's first line."""
        from selenium.webdriver.common.action_chains import ActionChains

        x, y = self.js(
            "const box = A.scene.columns.flatMap(c => c.picture.items.map(i => i.box))"
            ".find(b => b.label === arguments[0]);"
            "S.view.fly({scale: 1, x: 0, y: 0}, false); const r = A.scene.rect(A.scene.find(box));"
            "S.view.camera = {scale: 1, x: 300 - r.x, y: 200 - r.y}; S.view.drawNow();"
            "const b = S.view.canvas.getBoundingClientRect(); return [b.left + 330, b.top + 214];",
            label,
        )
        chain = ActionChains(self.driver).w3c_actions
        chain.pointer_action.move_to_location(int(x), int(y))
        chain.pointer_action.double_click() if twice else chain.pointer_action.click()
        chain.perform()

    def text(self, selector: str) -> str:
        return str(self.js("return document.querySelector(arguments[0])?.innerText ?? ''", selector))

    def complaints(self) -> list[str]:
        return [entry["message"] for entry in self.driver.get_log("browser") if entry["level"] == "SEVERE"]


@pytest.fixture(scope="module")
def driver() -> Iterator[Any]:
    with browser() as found:
        yield found


@pytest.fixture(scope="module")
def net_page(driver: Any, tmp_path_factory: pytest.TempPathFactory) -> Page:
    torch.manual_seed(0)
    path = tmp_path_factory.mktemp("page") / "net.html"
    tv.trace(Net(), torch.ones(3, 4), backward=True).save(path)
    return Page(driver, path)


@pytest.fixture
def page(net_page: Page) -> Iterator[Page]:
    yield net_page.open()
    assert net_page.complaints() == []


@pytest.fixture
def make(driver: Any, tmp_path: Path) -> Callable[[tv.Trace], Page]:
    def made(trace: tv.Trace) -> Page:
        trace.save(tmp_path / "run.html")
        return Page(driver, tmp_path / "run.html").open()

    return made


# ---------------------------------------------------------------- the graph


def test_it_opens_folded_with_both_phases(page: Page) -> None:
    labels = page.labels()
    assert {"stem", "head", "x", "output"} <= set(labels)
    assert "blocks.0–5" in labels and "blocks.3" not in labels
    assert page.js("return A.scene.columns.map(c => c.title)")[1].startswith("backward")
    assert "24 operations" not in page.text(".brand") and "operations" in page.text(".brand")


def test_the_block_that_differs_is_marked(page: Page) -> None:
    assert page.js(
        "let f; A.roots[0].children[0].children.forEach(b => { if (b.kind === 'fold') f = b });"
        "return f.oddInstances"
    ) == [2]


def test_double_click_opens_and_enter_closes(page: Page) -> None:
    page.js("A.setDepth(1); return S.setDepth(1)")
    page.until("return !A.scene.columns[0].picture.items.some(i => i.box.label === 'first')")
    page.click("blocks.0–5", twice=True)
    page.until("return A.scene.columns[0].picture.items.some(i => i.box.label === 'first')")
    from selenium.webdriver.common.keys import Keys

    page.press(Keys.ENTER)
    page.until("return !A.scene.columns[0].picture.items.some(i => i.box.label === 'first')")


def test_a_repeat_steps_through_its_instances_and_shows_all(page: Page) -> None:
    from selenium.webdriver.common.keys import Keys

    page.js("return S.setDepth(1)")
    page.click("blocks.0–5")
    page.press(Keys.ENTER)
    page.until("return A.selected.opening === 'one'")
    page.press("]", "]")
    assert page.until("return A.selected.shown === 2 && A.selected.shown") == 2
    from selenium.webdriver.common.action_chains import ActionChains

    ActionChains(page.driver).key_down(Keys.SHIFT).send_keys(Keys.ENTER).key_up(Keys.SHIFT).perform()
    page.until(
        "return A.scene.columns[0].picture.items.filter(i => /^blocks\\.\\d$/.test(i.box.label)).length === 6"
    )


def test_depth_keys_and_everything(page: Page) -> None:
    page.press("0")
    few = page.until(
        "return A.scene.columns[0].picture.items.length < 5 && A.scene.columns[0].picture.items.length"
    )
    page.press("e")
    page.until(f"return A.scene.columns[0].picture.items.length > {few} + 20")
    shown = page.js(
        "return A.scene.columns.flatMap(c => c.picture.items.map(i => i.box.node)).filter(n => n >= 0).length"
    )
    views = page.js("return [...Array(A.run.count).keys()].filter(n => A.run.nodeFlags[n] & 16).length")
    assert shown + views == page.js("return A.run.count")


def test_wheel_zooms_and_dragging_moves(page: Page) -> None:
    before = page.js("return S.view.camera")
    page.js(
        "S.view.canvas.dispatchEvent(new WheelEvent("
        "'wheel', {deltaY: -200, clientX: 400, clientY: 300, cancelable: true}))"
    )
    assert page.js("return S.view.camera.scale") > before["scale"]
    from selenium.webdriver.common.action_chains import ActionChains

    x = page.js("return S.view.camera.x")
    chain = ActionChains(page.driver).w3c_actions
    chain.pointer_action.move_to_location(500, 600).pointer_down().move_to_location(560, 600).pointer_up()
    chain.perform()
    assert page.js("return S.view.camera.x") == pytest.approx(x + 60, abs=2)
    assert page.js("return A.selected") is None, "moving is not selecting"


def test_forward_and_backward_are_linked(page: Page) -> None:
    node = page.js("return [...Array(A.run.count).keys()].find(n => A.run.name(n) === 'relu')")
    page.js("return S.goNode(arguments[0])", node)
    page.until(f"return A.node === {node}")
    assert "Its gradient" in page.text(".details")
    page.press("l")
    assert page.until(f"return A.node !== {node} && A.run.nodePhase[A.node] === 1")
    page.press("l")
    page.until(f"return A.node === {node}")


def test_overlaid_shows_one_column(page: Page) -> None:
    page.press("g")
    page.until("return A.mode === 'over' && A.scene.columns.length === 1")
    assert page.js("return A.scene.columns[0].picture.forest.total === A.run.count")
    page.press("g", "g")
    page.until("return A.mode === 'backward'")


# ---------------------------------------------------------------- panels


def test_details_of_an_operation(page: Page) -> None:
    node = page.js("return [...Array(A.run.count).keys()].find(n => A.run.name(n) === 'addmm')")
    page.js("return S.goNode(arguments[0])", node)
    page.until(f"return A.node === {node}")
    text = page.text(".details")
    for fact in (
        "aten::addmm",
        "mat1",
        "f32[3, 8]",
        "stem.bias",
        "parameter",
        "Producers",
        "Source",
        "not known",
    ):
        assert fact in text or fact == "not known", fact
    assert "self.stem" in page.text(".source .here") or "forward" in text


def test_search_finds_flies_and_filters(page: Page) -> None:
    from selenium.webdriver.common.keys import Keys

    page.press("/")
    page.press("op:relu phase:forward path:blocks.4")
    page.until("return S.search.found?.total === 1")
    page.press(Keys.ENTER)
    page.until("return A.node >= 0 && A.run.name(A.node) === 'relu'")
    assert page.js("return A.run.path(A.run.nodeScope[A.node])") == "blocks.4"
    assert page.until("return A.selected && A.selected.kind === 'op'")
    rect = page.until(
        "const c = S.view.camera, r = A.scene.rect(A.scene.find(A.selected)), s = S.view.size;"
        "const x = r.x * c.scale + c.x, y = r.y * c.scale + c.y;"
        "return x > 0 && y > 0 && x < s.w && y < s.h && c.scale > 0.5 && [x, y]"
    )
    assert rect
    page.press("/")
    page.press(" nonsense:1")
    page.until("return document.querySelector('.results .error')")


def test_heat_map_with_a_legend(page: Page) -> None:
    assert page.js("return A.heat") is None
    page.press("h")
    page.until("return A.heat && document.querySelector('.ramp')")
    page.js("A.setHeat('time_ns')")
    assert "inclusive time" in page.text(".legend") and " s" in page.text(".legend").replace(
        "µs", " s"
    ).replace("ms", " s")
    total = page.js("return A.heat.of(A.roots[0].children[0])")
    assert total == page.js(
        "const r = A.run; const f = A.roots[0].forest; let t = 0; const b = A.roots[0].children[0];"
        "for (let p = b.start; p < b.end; p++) t += r.metric('time_ns', f.order[p]); return t"
    )
    page.press("H")
    page.until("return A.heat === null")


def test_module_table_sorts(page: Page) -> None:
    page.js("S.showTab('modules')")
    page.js(
        "[...document.querySelectorAll('.grid th button')].find(t => t.innerText.startsWith('params')).click()"
    )
    names = page.js("return [...document.querySelectorAll('.grid tbody tr')].map(r => r.cells[0].innerText)")
    assert any(name.startswith("blocks.2 ") for name in names[:4]), names[:4]
    page.js(
        "[...document.querySelectorAll('.grid tbody tr')].find(r => r.innerText.startsWith('head')).click()"
    )
    page.until("return A.selected?.label === 'head'")


def test_memory_timeline_brush_and_peak(page: Page) -> None:
    page.press("m")
    page.until("return S.docked === 'memory' && S.timeline.memory")
    peak = page.js("return S.timeline.memory.total[S.timeline.memory.peak]")
    live = page.js("return Math.max(...A.run.metrics.get('live_bytes').values)")
    assert peak > 0 and live > 0
    assert page.text(".list").startswith("Peak")
    page.js("S.timeline.setBrush(3, 6)")
    page.until("return A.marked && A.marked.size > 0")
    most = page.js("return Math.max(...S.timeline.memory.total.slice(3, 7))")
    assert page.text(".list").startswith(f"At most {most / 1024:.2f} KiB at once from operation 3 to 6")
    assert most <= peak
    page.js("document.querySelector('.list .heading button').click()")
    rows = page.js("return document.querySelectorAll('.list .row.link').length")
    blocks = page.js("return S.timeline.memory.alive(S.timeline.memory.peak, S.timeline.memory.peak).length")
    assert rows == min(blocks, 60)
    page.press("\ue00c")
    page.until("return A.marked === null")


def test_flame_chart_selects(page: Page) -> None:
    page.press("t")
    page.until("return S.docked === 'time' && S.flame.chart")
    page.js(
        "const r = S.flame.chart.rows[1], i = [...r.owner].findIndex(o => o >= 0 && A.run.path(o) === 'head');"
        "const c = S.flame.canvas, b = c.getBoundingClientRect(), f = S.flame.chart;"
        "const x = b.left + b.width * ((r.start[i] + r.end[i]) / 2 - f.from) / (f.to - f.from);"
        "c.dispatchEvent(new MouseEvent('click', {clientX: x, clientY: b.top + 36 + 19 + 9}))"
    )
    assert page.until("return A.selected && A.selected.label") in ("head", "addmm", "t")


def test_summary_and_limits(make: Callable[[tv.Trace], Page]) -> None:
    def escapes(x: torch.Tensor) -> torch.Tensor:
        return x * float(x.sum().item())

    page = make(tv.trace(escapes, torch.ones(3)))
    assert "item() took a value to Python" in page.text(".summary")
    assert "Not captured (1)" in page.text(".summary")
    assert page.complaints() == []


# ---------------------------------------------------------------- use


def test_arrows_walk_producers_and_consumers(page: Page) -> None:
    from selenium.webdriver.common.keys import Keys

    page.click("stem")
    page.press(Keys.ARROW_DOWN)
    page.until("return A.selected.label !== 'stem'")
    page.press(Keys.ARROW_UP)
    page.until("return A.selected.label === 'stem'")
    page.press("?")
    page.until("return document.querySelector('dialog[open]')")
    assert "walk" in page.text("dialog")


def test_dark_and_light(page: Page) -> None:
    first = page.js("return document.documentElement.dataset.theme")
    page.press("d")
    page.until(f"return document.documentElement.dataset.theme !== '{first}'")
    assert page.js("return getComputedStyle(document.body).backgroundColor") in (
        "rgb(18, 21, 27)",
        "rgb(244, 245, 248)",
    )


def test_a_link_brings_the_view_back(page: Page) -> None:
    page.js("return S.setDepth(2)")
    page.js("A.setHeat('flops'); A.themeChoice = 'dark'; S.applyTheme(); S.showDock('memory')")
    node = page.js("return [...Array(A.run.count).keys()].findLast(n => A.run.name(n) === 'addmm')")
    page.js("return S.goNode(arguments[0])", node)
    page.until(f"return A.node === {node}")
    time.sleep(0.6)  # the flight, and the moment after which the address is written
    page.js("S.writeHash()")
    hash = page.js("return location.hash")
    state = (
        "return [A.node, A.heat.id, A.theme.dark, S.docked, A.selected.key, S.view.camera.scale.toFixed(2)]"
    )
    before, labels = page.js(state), page.labels()
    page.open(hash)
    assert page.js(state) == before
    assert page.labels() == labels


def test_exports(page: Page) -> None:
    import xml.etree.ElementTree as ET

    page.click("head")
    words = [
        text.text or ""
        for text in ET.fromstring(page.js("return T.toSvg()")).iter("{http://www.w3.org/2000/svg}text")
    ]
    assert "stem" in words and any(word.startswith("blocks.0–5") for word in words)
    found = json.loads(page.js("return T.json()"))
    assert [row["op"] for row in found["operations"]][-1] == "aten::addmm"
    assert found["operations"][0]["metrics"]["time_ns"] > 0
    assert page.js("return T.markdown()").startswith("### head\n\n| | |")
    size = page.driver.execute_async_script(
        "const done = arguments[0]; window.__torch_vis.png().then(b => done([b.type, b.size]), e => done(String(e)))"
    )
    assert size[0] == "image/png" and size[1] > 2000


@pytest.mark.parametrize("size", [(1280, 720), (3840, 2160), (640, 450)], ids=["720p", "4K", "720p at 200 %"])
def test_nothing_is_cut_off(page: Page, size: tuple[int, int]) -> None:
    page.driver.set_window_size(*size)
    try:
        page.open()
        assert page.js("return document.documentElement.scrollWidth <= innerWidth")
        assert page.js("return S.view.canvas.clientWidth > 200 && S.view.canvas.clientHeight > 150")
        for button in page.js(
            "return [...document.querySelectorAll('header button, header select')].map(b => {"
            "const r = b.getBoundingClientRect(), inside = r.left >= 0 && r.right <= innerWidth + 1;"
            "return [b.title, inside, b.offsetParent !== null]})"
        ):
            assert button[1] or not button[2], f"{button[0]} is outside of the window"
    finally:
        page.driver.set_window_size(1400, 900)


# ---------------------------------------------------------------- safe


def test_hostile_names_do_nothing(make: Callable[[tv.Trace], Page]) -> None:
    page = make(tv.trace(hostile_model(), torch.ones(1, 4), backward=True))
    page.js("return S.openEverything()")
    page.js("S.showTab('modules')")
    page.js("return S.goScope(2)")
    page.press("m")
    page.until("return S.timeline.memory")
    assert page.js("return document.images.length + document.querySelectorAll('iframe, object').length") == 0
    assert "<img src=x onerror=alert(1)>" in page.text("aside") or "onerror" in page.text("aside")
    assert "onerror" in page.js("return T.toSvg()") and "<img" not in page.js("return T.toSvg()")
    assert page.complaints() == []


def test_no_request_leaves_the_page(page: Page) -> None:
    page.js("return S.openEverything()")
    assert (
        page.js(
            "return performance.getEntriesByType('resource').filter(e => !e.name.startsWith('blob:')).length"
        )
        == 0
    )
    blocked = page.driver.execute_async_script(
        "const done = arguments[0]; fetch('http://127.0.0.1:9/').then(() => done('sent'), () => done('refused'))"
    )
    assert blocked == "refused"
    assert any("Content Security Policy" in message for message in page.complaints())


def test_an_empty_run(make: Callable[[tv.Trace], Page]) -> None:
    page = make(tv.Trace(empty_graph(), Metrics()))
    page.press("e", "m", "t", "f")
    page.js("S.showTab('modules')")
    assert "0 operations" in page.text(".brand")
    assert page.complaints() == []


# ---------------------------------------------------------------- compare


def test_a_comparison(driver: Any, tmp_path: Path) -> None:
    torch.manual_seed(0)
    one, two = Net(4), Net(4)
    two.blocks[1].forward = lambda x: x + torch.tanh(x)  # type: ignore[method-assign, assignment]
    two.head = nn.Sequential(nn.Linear(8, 2), nn.Sigmoid())  # type: ignore[assignment]
    a, b = (tv.trace(model, torch.ones(3, 4), backward=True) for model in (one, two))
    tv.compare(a, b).save(tmp_path / "diff.html")
    page = Page(driver, tmp_path / "diff.html").open()
    counts = page.js("return A.run.data.compare.counts")
    assert counts["added (only in B)"] + counts["the same"] + counts["changed"] == len(b.graph)
    assert counts["removed (only in A)"] + counts["the same"] + counts["changed"] == len(a.graph)
    page.js("return S.openEverything()")
    status = page.js(
        "return Object.fromEntries([...Array(A.run.count).keys()].filter(n => A.run.nodePhase[n] === 0)"
        ".map(n => [A.run.path(A.run.nodeScope[n]) + ' ' + A.run.name(n), A.run.difference[n]]))"
    )
    assert status["blocks.1 tanh"] == 1 and status["blocks.1 relu"] == 2 and status["stem addmm"] == 0
    assert status["head.1 sigmoid"] == 1
    page.js("A.setHeat('difference_ns')")
    known = page.js("return A.heat.of(A.roots[0])")
    forward = [
        sum(t.metrics["time_ns"][n] for n in range(len(t.graph)) if t.graph.node_phase[n] == 0)
        for t in (a, b)
    ]
    assert known == forward[1] - forward[0]
    assert "added" in page.text(".summary")
    assert page.complaints() == []
