"""The web page's picture and frame in a real Chromium: what can be read, what lies on what, where keys lead."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import torch_vis as tv
from tests.kit.browser import Page, browser, needs_browser

pytestmark = needs_browser

# Where the picture is on the page, and the rectangles of what lies on it.
SHOWN = """
const c = P.camera(), b = document.querySelector('.graph').getBoundingClientRect(), {width, height} = P.state();
const shown = [b.left + c.x, b.top + c.y, width * c.scale, height * c.scale];
const over = ['.zoom', '.show-side'].flatMap(s => {
  const r = document.querySelector(s).getBoundingClientRect();
  return r.width ? [[r.left, r.top, r.width, r.height]] : [];
});
return [shown, over, [b.left, b.top, b.width, b.height]];
"""


class Stage(nn.Module):
    """Blocks one after another, with a name too long for a small box."""

    def __init__(self, blocks: int) -> None:
        super().__init__()
        self.blocks = nn.Sequential(
            *(nn.Sequential(nn.Linear(8, 8), nn.ReLU(), nn.LayerNorm(8)) for _ in range(blocks))
        )

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.blocks(x)


class Tall(nn.Module):
    """Eleven modules in a chain, none like another, as a ResNet has at its top."""

    def __init__(self) -> None:
        super().__init__()
        self.stem, self.norm, self.act = nn.Linear(4, 8), nn.LayerNorm(8), nn.ReLU()
        self.stage1, self.stage2, self.stage3 = Stage(1), Stage(2), Stage(8)
        self.pool, self.flat, self.drop = nn.AvgPool1d(2), nn.Flatten(), nn.Dropout(0.1)
        self.projection, self.head = nn.Linear(4, 4), nn.Linear(4, 2)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.stage3(self.stage2(self.stage1(self.act(self.norm(self.stem(x))))))
        return self.head(self.projection(self.drop(self.flat(self.pool(x)))))


def step(model: nn.Module, optimizer: torch.optim.Optimizer, x: torch.Tensor) -> torch.Tensor:
    loss = model(x).sum()
    loss.backward()
    optimizer.step()
    return loss


@pytest.fixture(scope="module")
def saved(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Page]:
    """The page of a chain of modules; its browser serves the other pages as well."""
    path = tmp_path_factory.mktemp("page") / "tall.html"
    tv.trace(Tall(), torch.ones(3, 4), backward=True).save(path)
    with browser() as driver:
        yield Page(driver, path)


def resize(page: Page, width: int, height: int, ratio: float = 1) -> None:
    size = {"width": width, "height": height, "deviceScaleFactor": ratio, "mobile": False}
    page.driver.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", size)


@pytest.fixture
def page(saved: Page) -> Iterator[Page]:
    resize(saved, 1280, 720)
    yield saved.open()
    assert saved.complaints() == []


def meet(a: list[float], b: list[float]) -> bool:
    return a[0] < b[0] + b[2] and b[0] < a[0] + a[2] and a[1] < b[1] + b[3] and b[1] < a[1] + a[3]


# ---------------------------------------------------------------- the picture


def test_the_first_screen_can_be_read(page: Page) -> None:
    words = {part["text"]: part["size"] for part in page.js("return P.painted()") if part["kind"] == "text"}
    left, top, wide, high = page.js("return P.state().canvas")
    names = [
        box["label"]
        for box in page.boxes(opening="closed")
        if box["rect"][0] + box["rect"][2] <= left + wide and box["rect"][1] + box["rect"][3] <= top + high
    ]
    assert {"stem", "x"} <= set(names)
    for name in names:
        assert words.get(name, 0) >= 10.5, (
            f"{name} has {words.get(name)} pixels, whole names are {sorted(words)}"
        )
    shown, _, stage = page.js(SHOWN)
    assert shown[2] > 0.5 * stage[2], "the chain uses the width of the window"


def test_the_first_screen_shows_a_repeat(page: Page) -> None:
    assert 8 in [box["count"] for box in page.boxes(kind="fold")], (
        "stage3 is open, so that its eight blocks are seen"
    )


@pytest.mark.parametrize("heat", ["", "time_ns"])
@pytest.mark.parametrize("size", [(1280, 720), (960, 540), (640, 360), (3840, 2160)])
def test_fit_leaves_the_overlays_free(page: Page, size: tuple[int, int], heat: str) -> None:
    resize(page, *size)
    page.open(f"#heat={heat}" if heat else "")
    page.js("document.body.classList.remove('no-side')")
    page.press("f")
    page.until("return P.state().width * P.camera().scale <= document.querySelector('.graph').clientWidth")
    page.until("const before = P.camera().x; P.fit(); return P.camera().x === before")
    shown, overlays, stage = page.js(SHOWN)
    assert overlays
    assert not any(meet(shown, over) for over in overlays), (shown, overlays)
    assert shown[0] >= stage[0] and shown[0] + shown[2] <= stage[0] + stage[2] + 1


def step_page(driver: Any, folder: Path, layers: int) -> Page:
    """One step of training: three phases side by side."""
    model = nn.Sequential(*(nn.Linear(2, 2) for _ in range(layers)))
    tv.trace(step, model, torch.optim.AdamW(model.parameters()), torch.ones(1, 2)).save(folder / "step.html")
    page = Page(driver, folder / "step.html")
    resize(page, 1280, 720)
    return page.open()


def test_titles_of_phases_neither_collide_nor_are_cut_off(saved: Page, tmp_path: Path) -> None:
    page = step_page(saved.driver, tmp_path, 1)
    text = page.js("return P.svg()")
    import re
    import xml.etree.ElementTree as ET

    box = [float(part) for part in ET.fromstring(text).attrib["viewBox"].split()]
    rows = re.findall(r'<text x="([\d.-]+)" y="([\d.-]+)" font-size="15"[^>]*>([^<]*)<', text)
    widths = page.js(
        "const c = document.createElement('canvas').getContext('2d');"
        "c.font = '600 15px ' + getComputedStyle(document.body).fontFamily;"
        "return arguments[0].map(t => c.measureText(t).width)",
        [title for *_, title in rows],
    )
    assert len(rows) == 3
    titles = [(float(x), float(x) + w, float(y)) for (x, y, _), w in zip(rows, widths, strict=True)]
    assert all(box[0] <= start and end < box[0] + box[2] for start, end, _ in titles), (titles, box)
    for (start, end, y), (other, other_end, other_y) in itertools.combinations(titles, 2):
        assert end < other or other_end < start or abs(y - other_y) > 20, titles


def test_an_optimizer_opened_whole_fills_the_window(saved: Page, tmp_path: Path) -> None:
    page = step_page(saved.driver, tmp_path, 30)
    page.js("return P.openAll()")
    width, height = page.js("const c = P.columns()[2]; return [c.width, c.height]")
    assert 0.3 < width / height < 4, f"{width:.0f} × {height:.0f}"
    assert page.js("return P.state().width / P.state().height") < 6


# ---------------------------------------------------------------- the frame around it


@pytest.mark.parametrize("size", [(640, 360), (960, 540), (1280, 720)])
def test_the_bar_stays_within_reach_of_an_open_panel(page: Page, size: tuple[int, int]) -> None:
    resize(page, *size)
    page.open()
    page.js("document.body.classList.remove('no-side'); P.tab('modules')")
    hidden = page.js(
        "return [...document.querySelectorAll('header button, header select, header input, header summary')]"
        ".filter(b => b.offsetParent && !b.closest('.menu-body, .results')).filter(b => {"
        "const r = b.getBoundingClientRect();"
        "const at = document.elementFromPoint(r.left + r.width / 2, r.top + r.height / 2);"
        "return !at || !b.contains(at) && !at.contains(b) || at.tagName === 'HEADER'}).map(b => b.title || b.tagName)"
    )
    assert hidden == []
    assert page.js("return document.querySelector('aside').getBoundingClientRect().top >= 30")


@pytest.mark.parametrize("size", [(640, 360), (960, 540)])
def test_the_memory_chart_is_there_in_a_small_window(page: Page, size: tuple[int, int]) -> None:
    resize(page, *size)
    page.open()
    page.js("if (innerWidth > 820) P.tab('modules'); P.dock('memory')")
    chart = page.js(
        "const r = document.querySelector('.dock .chart').getBoundingClientRect(); return [r.width, r.height]"
    )
    assert chart[0] > 140 and chart[1] > 50, chart
    assert page.js("return document.querySelector('.graph').clientHeight") > 90


def test_the_panel_is_widened_by_its_edge_and_stays_so(page: Page) -> None:
    from selenium.webdriver.common.action_chains import ActionChains

    before = page.js("return document.querySelector('aside').clientWidth")
    grip = page.driver.find_element("css selector", "aside .grip")
    ActionChains(page.driver).drag_and_drop_by_offset(grip, -150, 0).perform()
    after = page.js("return document.querySelector('aside').clientWidth")
    assert abs(after - before - 150) < 12
    page.open()
    assert page.js("return document.querySelector('aside').clientWidth") == after
    ActionChains(page.driver).double_click(page.driver.find_element("css selector", "aside .grip")).perform()
    page.until(f"return document.querySelector('aside').clientWidth === {before}")


def test_a_tip_goes_when_something_is_done(page: Page) -> None:
    from selenium.webdriver.common.action_chains import ActionChains

    box, scale = page.box("norm", column=0), page.js("return P.camera().scale")
    x, y = (edge + 20 * scale for edge in box["rect"][:2])
    chain = ActionChains(page.driver).w3c_actions
    chain.pointer_action.move_to_location(int(x), int(y))
    chain.perform()
    page.until(
        "const tip = document.querySelector('.tip'); return !tip.hidden && tip.innerText.startsWith('norm')"
    )
    tip = page.js(
        "const t = document.querySelector('.tip').getBoundingClientRect(); return [t.left, t.top, t.width, t.height]"
    )
    assert not meet(tip, [x, y, 1, 1]), "it lies beside what it tells about"
    chain.pointer_action.click()
    chain.perform()
    page.until("return document.querySelector('.tip').hidden && P.selection()?.label === 'norm'")


# ---------------------------------------------------------------- keys


def test_arrows_lead_through_frames_and_on_to_the_backward_pass(page: Page) -> None:
    from selenium.webdriver.common.keys import Keys

    page.press(Keys.ARROW_DOWN)
    page.until("return P.selection()?.kind === 'input'")
    seen = []
    for _ in range(40):
        seen.append(page.js("const s = P.selection(); return [s.label, s.phases[0]]"))
        if seen[-1][1] == "backward":
            break
        page.press(Keys.ARROW_DOWN)
    labels = [label for label, _ in seen]
    assert [name for name in labels if name in ("stem", "norm", "projection", "head")] == [
        "stem",
        "norm",
        "projection",
        "head",
    ]
    assert seen[-1][1] == "backward", f"from the output to what the backward pass reads of it: {labels}"
    page.press(Keys.ARROW_UP)
    page.until("return P.selection().phases[0] === 'forward'")


def test_sideways_goes_to_what_stands_beside(page: Page) -> None:
    from selenium.webdriver.common.keys import Keys

    page.press(Keys.ARROW_DOWN, Keys.ARROW_DOWN)
    page.until("return P.selection()?.label === 'stem'")
    page.press(Keys.ARROW_RIGHT)
    selected, stem = page.js("return P.selection()"), page.box("stem", column=0)
    place, own = selected["sheet"], stem["sheet"]
    assert selected["opening"] == "closed" and selected["label"] != "stem"
    assert place["x"] >= own["x"] + own["w"] - 4 and abs(place["y"] - own["y"]) < 300


def test_a_link_keeps_the_layout_in_another_window(page: Page) -> None:
    size = "[P.state().width, P.state().height]"
    hash, place = page.js(f"return [P.link(), {size}]")
    resize(page, 900, 900)
    page.open(hash)
    assert page.js(f"return {size}") == place
