"""The web page in a real Chromium, opened from disk: what a person does, and what they see."""

from __future__ import annotations

import json
import time
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import torch_vis as tv
from tests.kit.browser import Net, Page, browser, needs_browser
from tests.kit.graphs import empty_graph
from tests.kit.hostile import hostile_model
from tests.kit.nested import nested_trace
from torch_vis.graph import Metrics

pytestmark = needs_browser


@pytest.fixture(scope="module")
def driver() -> Iterator[Any]:
    with browser() as found:
        yield found


@pytest.fixture(scope="module")
def net_trace() -> tv.Trace:
    torch.manual_seed(0)
    return tv.trace(Net(), torch.ones(3, 4), backward=True)


@pytest.fixture(scope="module")
def net_page(driver: Any, net_trace: tv.Trace, tmp_path_factory: pytest.TempPathFactory) -> Page:
    path = tmp_path_factory.mktemp("page") / "net.html"
    net_trace.save(path)
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
    assert page.js("return P.columns().map(c => c.title)")[1].startswith("backward")
    assert "24 operations" not in page.text(".brand") and "operations" in page.text(".brand")


def test_the_block_that_differs_is_marked(page: Page) -> None:
    (repeat,) = page.boxes(kind="fold", column=0)
    assert repeat["odd"] == [2]


def test_double_click_opens_and_enter_closes(page: Page) -> None:
    is_open = "P.boxes().some(b => b.column === 0 && b.label === 'first')"
    page.js("return P.depth(1)")
    page.until(f"return !{is_open}")
    page.click("blocks.0–5", twice=True)
    page.until(f"return {is_open}")
    from selenium.webdriver.common.keys import Keys

    page.press(Keys.ENTER)
    page.until(f"return !{is_open}")


def test_a_repeat_steps_through_its_instances_and_shows_all(page: Page) -> None:
    from selenium.webdriver.common.keys import Keys

    page.js("return P.depth(1)")
    page.click("blocks.0–5")
    page.press(Keys.ENTER)
    page.until("return P.selection().opening === 'one'")
    page.press("]", "]")
    page.until("return P.selection().shown === 2")
    from selenium.webdriver.common.action_chains import ActionChains

    ActionChains(page.driver).key_down(Keys.SHIFT).send_keys(Keys.ENTER).key_up(Keys.SHIFT).perform()
    page.until("return P.boxes().filter(b => b.column === 0 && /^blocks\\.\\d$/.test(b.label)).length === 6")


def test_depth_keys_and_everything(page: Page) -> None:
    page.press("0")
    items = "P.boxes().filter(b => b.column === 0).length"
    few = page.until(f"return {items} < 5 && {items}")
    page.press("e")
    page.until(f"return {items} > {few} + 20")
    shown = [box for box in page.boxes() if box["node"] >= 0]
    operations = page.js("return P.operations()")
    assert len(shown) + sum(row["isView"] for row in operations) == len(operations)


def test_wheel_zooms_and_dragging_moves(page: Page) -> None:
    before = page.js("return P.camera()")
    page.js(
        "document.querySelector('.graph').dispatchEvent(new WheelEvent("
        "'wheel', {deltaY: -200, clientX: 400, clientY: 300, cancelable: true}))"
    )
    assert page.js("return P.camera().scale") > before["scale"]
    from selenium.webdriver.common.action_chains import ActionChains

    x = page.js("return P.camera().x")
    chain = ActionChains(page.driver).w3c_actions
    chain.pointer_action.move_to_location(500, 600).pointer_down().move_to_location(560, 600).pointer_up()
    chain.perform()
    assert page.js("return P.camera().x") == pytest.approx(x + 60, abs=2)
    assert page.js("return P.selection()") is None, "moving is not selecting"


def test_forward_and_backward_are_linked(page: Page) -> None:
    node = page.operation("relu")
    page.js("return P.goToNode(arguments[0])", node)
    page.until(f"return P.node() === {node}")
    assert "Its gradient" in page.text(".details")
    page.press("l")
    assert page.until(f"return P.node() !== {node} && P.operations()[P.node()].phase === 'backward'")
    page.press("l")
    page.until(f"return P.node() === {node}")


def test_overlaid_shows_one_column(page: Page) -> None:
    page.press("g")
    page.until("return P.state().mode === 'over' && P.columns().length === 1")
    assert page.js("return P.columns()[0].operations === P.operations().length")
    page.press("g", "g")
    page.until("return P.state().mode === 'backward'")


# ---------------------------------------------------------------- panels


def test_details_of_an_operation(page: Page) -> None:
    node = page.operation("addmm")
    page.js("return P.goToNode(arguments[0])", node)
    page.until(f"return P.node() === {node}")
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
    page.until("return P.searchResults()?.total === 1")
    page.press(Keys.ENTER)
    page.until("return P.operations()[P.node()]?.name === 'relu'")
    assert page.js("return P.operations()[P.node()].path") == "blocks.4"
    page.until("return P.selection()?.kind === 'op'")
    page.until(
        "const [x, y] = P.selection().rect, s = document.querySelector('.graph').getBoundingClientRect();"
        "return x > s.left && y > s.top && x < s.right && y < s.bottom && P.camera().scale > 0.5"
    )
    page.press("/")
    page.press(" nonsense:1")
    page.until("return document.querySelector('.results .error')")


def test_enter_takes_the_row_that_the_arrows_chose(page: Page) -> None:
    from selenium.webdriver.common.keys import Keys

    page.press("/")
    page.press("blocks.")
    page.until("return P.searchResults()?.modules.length > 3")
    page.press(Keys.ARROW_DOWN, Keys.ARROW_DOWN)
    chosen = page.text(".results .row.on .path").replace("\n", "")  # the beginning and the end stand apart
    assert chosen == page.js("return P.searchResults().modules[2]")
    assert page.text(".results .row.on mark") == "blocks."
    page.press(Keys.ENTER)
    page.until("return P.selection()?.path === arguments[0]".replace("arguments[0]", repr(chosen)))


def test_keys_work_after_a_list_was_used(page: Page) -> None:
    from selenium.webdriver.common.keys import Keys

    page.js("document.querySelector('select[aria-label=\"Heat map\"]').focus()")
    page.press(Keys.ARROW_DOWN)
    page.until("return P.state().heat")
    page.press("m")
    page.until("return P.state().dock === 'memory'")
    page.js("document.querySelector('select[aria-label=Phases]').focus()")
    page.press(Keys.ESCAPE)
    page.press("o")
    assert page.js("return P.state().mode") == "side"
    # The list that was opened takes the first Escape for itself, and leaves only that the key comes up.
    page.driver.find_element("css selector", "select[aria-label=Phases]").click()
    page.press(Keys.ESCAPE)
    page.press("o")
    assert page.js("return P.state().mode") == "side"


def test_a_module_that_ran_nothing_says_so(driver: Any, tmp_path: Path) -> None:
    from selenium.webdriver.common.keys import Keys

    tv.trace(nn.Sequential(nn.Linear(2, 2), nn.Identity()), torch.ones(1, 2)).save(tmp_path / "x.html")
    page = Page(driver, tmp_path / "x.html").open()
    page.press("/")
    page.press("Identity")
    page.until("return P.searchResults()?.modules.length === 1")
    assert "ran no operation" in page.text(".results .row")
    page.press(Keys.ENTER)
    page.until("return document.querySelector('.toast').innerText.includes('ran no operation')")


def test_every_change_of_the_view_can_be_undone(page: Page) -> None:
    def shown() -> list[Any]:
        return [
            page.labels(),
            page.js("const {mode, heat, dock, tab} = P.state(); return [mode, heat, dock, tab]"),
        ]

    page.js("P.link()")
    states = [shown()]
    for change in ("return P.openAll()", "P.heat('flops')", "return P.phases('over')", "P.dock('memory')"):
        page.js(change)
        page.js("P.link()")
        states.append(shown())
    assert len({json.dumps(state) for state in states}) == len(states)
    for state in reversed(states[:-1]):
        page.press("u")
        labels = json.dumps(json.dumps(state[0], separators=(",", ":"), ensure_ascii=False))
        page.until(f"return JSON.stringify(P.boxes().map(b => b.label)) === {labels}")
        assert shown() == state
    page.driver.forward()
    page.until(
        "return P.state().heat === null && P.boxes().length > arguments[0]".replace(
            "arguments[0]", str(len(states[0][0]))
        )
    )
    assert shown() == states[1]
    page.driver.back()
    page.until(f"return P.boxes().length === {len(states[0][0])}")
    assert shown() == states[0]


def test_heat_map_with_a_legend(page: Page, net_trace: tv.Trace) -> None:
    assert page.js("return P.state().heat") is None
    page.press("h")
    page.until("return P.state().heat && document.querySelector('.ramp')")
    page.js("P.heat('time_ns')")
    assert "time" in page.text(".legend") and " s" in page.text(".legend").replace("µs", " s").replace(
        "ms", " s"
    )
    times, nodes = net_trace.metrics["time_ns"], net_trace.graph.find("stem", phase="forward")
    assert page.box("stem", column=0)["heat"] == sum(times[node.index] for node in nodes)
    page.press("H")
    page.until("return P.state().heat === null")


def test_module_table_sorts(page: Page) -> None:
    page.js("P.tab('modules')")
    page.js(
        "[...document.querySelectorAll('.grid th button')].find(t => t.innerText.startsWith('params')).click()"
    )
    names = page.js("return [...document.querySelectorAll('.grid tbody tr')].map(r => r.cells[0].innerText)")
    assert any(name.startswith("blocks.2 ") for name in names[:4]), names[:4]
    page.js(
        "[...document.querySelectorAll('.grid tbody tr')].find(r => r.innerText.startsWith('head')).click()"
    )
    page.until("return P.selection()?.label === 'head'")


def test_memory_timeline_brush_and_peak(page: Page) -> None:
    page.press("m")
    page.until("return P.state().dock === 'memory' && P.memory()")
    peak = page.js("const m = P.memory(); return m.total[m.peak]")
    assert peak > 0
    assert page.text(".list").startswith("Peak")
    page.js("P.brush(3, 6)")
    page.until("return P.state().marked > 0")
    most = page.js("return Math.max(...P.memory().total.slice(3, 7))")
    assert page.text(".list").startswith(f"At most {most / 1024:.2f} KiB at once from operation 3 to 6")
    assert most <= peak
    page.js("document.querySelector('.list .heading button').click()")
    rows = page.js("return document.querySelectorAll('.list .row.link').length")
    blocks = page.js("const {peak} = P.memory(); return P.alive(peak, peak).length")
    assert rows == min(blocks, 60)
    page.press("\ue00c")
    page.until("return P.state().marked === null")


def test_flame_chart_selects(page: Page) -> None:
    page.press("t")
    page.until("return P.state().dock === 'time' && P.flame()")
    page.js(
        "const {x, y, w, h} = P.flame().find(b => b.label === 'head');"
        "document.querySelector('.flame canvas').dispatchEvent("
        "new MouseEvent('click', {clientX: x + w / 2, clientY: y + h / 2}))"
    )
    assert page.until("return P.selection()?.label") in ("head", "addmm", "t")


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

    page.js("return P.depth(1)")
    page.click("stem")
    page.press(Keys.ARROW_DOWN)
    page.until("return P.selection().label !== 'stem'")
    page.press(Keys.ARROW_UP)
    page.until("return P.selection().label === 'stem'")
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
    page.js("return P.depth(2)")
    page.js("P.heat('flops'); P.theme('dark'); P.dock('memory')")
    node = page.operation("addmm", last=True)
    page.js("return P.goToNode(arguments[0])", node)
    page.until(f"return P.node() === {node}")
    time.sleep(0.6)  # the flight, and the moment after which the address is written
    hash = page.js("return P.link()")
    state = (
        "const {heat, theme, dock} = P.state();"
        "return [P.node(), heat, theme, dock, P.selection().id, P.camera().scale]"
    )
    before, labels = page.js(state), page.labels()
    page.open(hash)
    after = page.js(state)
    # an address has two digits of the scale
    assert after[:-1] == before[:-1] and after[-1] == pytest.approx(before[-1], abs=0.01)
    assert page.labels() == labels


def test_exports(page: Page) -> None:
    import xml.etree.ElementTree as ET

    page.click("head")
    words = [
        text.text or ""
        for text in ET.fromstring(page.js("return P.svg()")).iter("{http://www.w3.org/2000/svg}text")
    ]
    assert "stem" in words and any(word.startswith("blocks.0–5") for word in words)
    found = json.loads(page.js("return P.json()"))
    assert [row["op"] for row in found["operations"]][-1] == "aten::addmm"
    assert found["operations"][0]["metrics"]["time_ns"] > 0
    assert page.js("return P.markdown()").startswith("### head\n\n| | |")
    size = page.driver.execute_async_script(
        "const done = arguments[0]; window.torchVis.png().then(b => done([b.type, b.size]), e => done(String(e)))"
    )
    assert size[0] == "image/png" and size[1] > 2000


@pytest.mark.parametrize("size", [(1280, 720), (3840, 2160), (640, 450)], ids=["720p", "4K", "720p at 200 %"])
def test_nothing_is_cut_off(page: Page, size: tuple[int, int]) -> None:
    page.driver.set_window_size(*size)
    try:
        page.open()
        assert page.js("return document.documentElement.scrollWidth <= innerWidth")
        assert page.js(
            "const c = document.querySelector('.graph'); return c.clientWidth > 200 && c.clientHeight > 150"
        )
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
    page.js("return P.openAll()")
    page.js("P.tab('modules')")
    page.js("return P.goToCall(2)")
    page.press("m")
    page.until("return P.memory()")
    assert page.js("return document.images.length + document.querySelectorAll('iframe, object').length") == 0
    assert "<img src=x onerror=alert(1)>" in page.text("aside") or "onerror" in page.text("aside")
    assert "onerror" in page.js("return P.svg()") and "<img" not in page.js("return P.svg()")
    assert page.complaints() == []


def test_no_request_leaves_the_page(page: Page) -> None:
    page.js("return P.openAll()")
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
    page.js("P.tab('modules')")
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
    counts = Counter(row["status"] for row in page.js("return P.operations()"))
    assert counts["added"] + counts["same"] + counts["changed"] == len(b.graph)
    assert counts["removed"] + counts["same"] + counts["changed"] == len(a.graph)
    page.js("return P.openAll()")
    status = {
        f"{row['path']} {row['name']}": row["status"]
        for row in page.js("return P.operations()")
        if row["phase"] == "forward"
    }
    assert status["blocks.1 tanh"] == "added" and status["blocks.1 relu"] == "removed"
    assert status["stem addmm"] == "same" and status["head.1 sigmoid"] == "added"
    page.js("P.heat('difference_ns')")
    known = page.js("return P.columns()[0].heat")
    forward = [
        sum(t.metrics["time_ns"][n] for n in range(len(t.graph)) if t.graph.node_phase[n] == 0)
        for t in (a, b)
    ]
    assert known == forward[1] - forward[0]
    assert "added" in page.text(".summary")
    assert page.complaints() == []


def test_modules_nested_2_000_deep_are_drawn_searched_and_fitted(driver: Any, tmp_path: Path) -> None:
    """What a frame keeps for its name once grew with every level, to sizes at which numbers no longer count."""
    path = tmp_path / "nested.html"
    nested_trace(2_000).save(path)
    page = Page(driver, path).open()
    page.js("return P.openAll()")
    assert page.js("return P.state().height") < 2_000 * 300
    assert len(page.boxes(kind="module")) == 2_000
    page.press("/", *"mul", "\ue007")
    page.until("return P.searchResults()?.total === 2000")
    page.press("\ue00c", "f")
    page.js("P.fit()")
    assert page.js("return P.boxes().length") >= 4_000
    assert not page.complaints()
