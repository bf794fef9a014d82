"""What lines and boxes of the page say of tensors: shapes as modules return them, gradients that add up."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import torch_vis as tv
from tests.kit.browser import Page, browser, needs_browser

pytestmark = needs_browser


class Heads(nn.Module):
    """Attention in heads, which are joined again before it returns."""

    def __init__(self) -> None:
        super().__init__()
        self.query = nn.Linear(8, 8)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        heads = self.query(x).view(2, 5, 2, 4).transpose(1, 2)
        out = nn.functional.scaled_dot_product_attention(heads, heads, heads)
        return out.transpose(1, 2).reshape(2, 5, 8)


class Attending(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.heads, self.out = Heads(), nn.Linear(8, 3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.out(self.heads(x))


@pytest.fixture(scope="module")
def driver() -> Iterator[Any]:
    with browser() as found:
        yield found


@pytest.fixture
def show(driver: Any, tmp_path: Path) -> Iterator[Callable[[Any], Page]]:
    pages: list[Page] = []

    def shown(trace: Any) -> Page:
        trace.save(tmp_path / "run.html")
        pages.append(Page(driver, tmp_path / "run.html").open())
        return pages[-1]

    yield shown
    assert all(page.complaints() == [] for page in pages)


def test_a_line_that_leaves_a_module_has_the_shape_that_the_module_returned(
    show: Callable[[Any], Page],
) -> None:
    page = show(tv.trace(Attending(), torch.ones(2, 5, 8)))
    page.js("return P.open('heads')")
    shapes = {(edge["from"], edge["to"]): edge["shape"] for edge in page.js("return P.edges()")}
    (inside,) = [start for start, end in shapes if end == "out"]
    assert inside.startswith("scaled_dot_product_attention"), "the frame is open"
    assert shapes[inside, "out"] == "f32[2, 5, 8]", "not that of the heads"
    assert shapes["query", inside] == "f32[2, 5, 8]"


def test_a_box_of_backward_has_the_shape_of_the_gradient_that_it_hands_on(
    show: Callable[[Any], Page],
) -> None:
    """Not that of its bias, which happens to be computed last; where nothing is handed on, that of its weight."""
    model = nn.Sequential(nn.Linear(4, 6), nn.GELU(), nn.Linear(6, 3))
    page = show(tv.trace(model, torch.ones(5, 4), backward=True))
    page.js("return P.open('Sequential')")
    shapes = {box["name"]: box["shape"] for box in page.boxes(phase="backward", kind="module")}
    assert shapes == {
        "Sequential": "f32[6, 4]",
        "Linear 2": "f32[5, 6]",
        "GELU 1": "f32[5, 6]",
        "Linear 0": "f32[6, 4]",
    }


def test_gradients_of_two_calls_that_add_up_say_so(show: Callable[[Any], Page]) -> None:
    from selenium.webdriver.common.action_chains import ActionChains

    shared = nn.Sequential(nn.Linear(4, 4), nn.ReLU())

    def step() -> torch.Tensor:
        loss = shared(torch.ones(2, 4)).sum() + shared(torch.zeros(2, 4)).sum()
        loss.backward()
        return loss

    page = show(tv.trace(step))
    page.js("return P.closeAll()")
    page.js("P.fit()")
    assert {"Sequential", "Sequential #2"} <= {box["name"] for box in page.boxes(phase="backward")}
    edge = next(
        edge
        for edge in page.js("return P.edges()")
        if {edge["from"], edge["to"]} == {"Sequential", "Sequential #2"} and edge["column"] == 1
    )
    points = edge["points"]
    (x0, y0), (x1, y1) = points[len(points) // 2 - 1], points[len(points) // 2]
    chain = ActionChains(page.driver).w3c_actions
    chain.pointer_action.move_to_location(int((x0 + x1) / 2), int((y0 + y1) / 2))
    chain.pointer_action.click()
    chain.perform()
    page.until("return P.selectedEdges().length")
    text = page.text(".details")
    assert "gradients of one tensor are summed there" in text
    assert f"from\t{edge['from']}" in text and f"to\t{edge['to']}" in text, "calls are told apart"


def test_the_loss_of_a_script_is_not_told_as_the_recordings_own(show: Callable[[Any], Page]) -> None:
    model = nn.Sequential(nn.Linear(4, 3))

    def step() -> torch.Tensor:
        loss = nn.functional.cross_entropy(model(torch.ones(2, 4)), torch.tensor([0, 1]))
        loss.backward()
        return loss

    page = show(tv.trace(step))
    backward = [box for box in page.boxes() if box["phase"] == "backward"]
    assert "cross_entropy" in {box["name"] for box in backward if not box["isAdded"]}
    assert [box["name"] for box in backward if box["isAdded"]] == ["gradient of 1"]


def test_figures_of_a_heat_map_stay_on_their_box(show: Callable[[Any], Page]) -> None:
    page = show(tv.trace(Attending(), torch.ones(2, 5, 8), backward=True))
    page.js("P.heat('time_ns')")
    texts = [painted for painted in page.js("return P.painted()") if painted["kind"] == "text"]
    for box in page.boxes(isAdded=True):
        x, y, w, h = box["rect"]
        own = [text for text in texts if x <= text["x"] <= x + w and y <= text["y"] <= y + h]
        for text in own:
            wide = page.js(
                "const c = document.createElement('canvas').getContext('2d');"
                "c.font = `${arguments[1]}px sans-serif`; return c.measureText(arguments[0]).width",
                text["text"],
                text["size"],
            )
            assert text["text"] == "+" or text["x"] + 0.9 * wide <= x + w, (box["name"], text["text"])


def test_the_port_opens_and_selects_modules_that_are_not_drawn(show: Callable[[Any], Page]) -> None:
    page = show(tv.trace(nn.Sequential(Attending(), nn.Linear(3, 3)), torch.ones(2, 5, 8)))
    page.js("return P.closeAll()")
    page.js("return P.open('0.heads')")
    assert any(box["path"] == "0.heads.query" for box in page.boxes())
    page.js("return P.closeAll()")
    page.js("return P.select('0.heads.query')")
    assert page.js("return P.selection().path") == "0.heads.query"
    with pytest.raises(Exception, match='no box and no module that ran is called "nothing"'):
        page.js("return P.open('nothing')")
    with pytest.raises(Exception, match='no phases "overlay"; there are'):
        page.js("return P.phases('overlay')")


class Wrapped(nn.Module):
    """A module that gives what it was given, so that several can follow one another."""

    def __init__(self) -> None:
        super().__init__()
        self.heads = Heads()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.heads(x)


def test_the_port_tells_a_repeat_by_the_instance_that_it_shows(show: Callable[[Any], Page]) -> None:
    page = show(tv.trace(nn.Sequential(*(Wrapped() for _ in range(4))), torch.ones(2, 5, 8)))
    for path in ("2", "0", "3", "1.heads.query"):
        page.js("return P.select(arguments[0])", path)
        assert page.js("return P.selection().path") == path
        assert path in {box["path"] for box in page.boxes()}
    hits = page.js("return P.search('scaled_dot')")
    assert {hit["path"] for hit in hits} == {f"{number}.heads" for number in range(4)}, "the modules around"


def test_what_the_docs_say_of_the_port_is_there(show: Callable[[Any], Page]) -> None:
    page = show(tv.trace(Attending(), torch.ones(2, 5, 8)))
    text = (Path(__file__).parents[3] / "docs" / "page.md").read_text(encoding="utf-8")
    for what in ("boxes", "edges"):
        table = text.split(f"`{what}()`: ")[1].split("\n\n")[1]
        fields = {
            name for row in table.splitlines()[2:] for name in re.findall(r"`(\w+)`", row.split("|")[1])
        }
        rows = page.js(f"return P.{what}()")
        assert len(fields) > 3 and rows and all(fields <= row.keys() for row in rows)
    assert set(re.findall(r"`(mode|heat|theme|tab|dock|canvas)`", text)) <= page.js("return P.state()").keys()
    calls = re.findall(r"^\| `(\w+)\(", text, re.MULTILINE)
    assert calls == ["open", "select", "search"]
    assert all(page.js(f"return typeof P.{call}") == "function" for call in calls)
