"""The page of several ranks in a real Chromium: lanes on one clock, lines across them, and the graph of a rank."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist

import torch_vis as tv
from tests.kit.browser import Page, browser, needs_browser
from tests.kit.ranks import fake_group, on_ranks, training_step
from torch_vis.analysis.ranks.world import World
from torch_vis.views.page.page import BUNDLE

pytestmark = [needs_browser, pytest.mark.filterwarnings("ignore")]


def saved(rank: int, count: int, folder: str) -> None:
    step = training_step("1f1b", rank, count)
    step()
    tv.trace(step).save(f"{folder}/step.r{rank}.tvz")


@pytest.fixture(scope="module")
def driver() -> Iterator[Any]:
    with browser() as started:
        yield started


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> tv.World:
    folder = tmp_path_factory.mktemp("ranks")
    on_ranks(saved, 2, str(folder))
    joined = tv.join(str(folder / "step.r*.tvz"))
    assert joined is not None
    return joined


@pytest.fixture(scope="module")
def page(driver: Any, world: tv.World, tmp_path_factory: pytest.TempPathFactory) -> Page:
    path = tmp_path_factory.mktemp("page") / "world.html"
    world.save(path)
    return Page(driver, path)


def test_lanes_and_lines_are_those_of_the_world(page: Page, world: tv.World) -> None:
    page.open("#theme=light")
    lanes = page.js("return P.lanes()")
    assert [lane["name"] for lane in lanes] == ["rank 0", "rank 1"]
    waits = {row.rank: row for row in world.stragglers().ranks}
    for rank, lane in enumerate(lanes):
        assert lane["operations"] == len(world[rank].graph)
        assert lane["peak_bytes"] == world[rank].memory().peak_bytes
        assert (lane["waited_ns"], lane["imposed_ns"]) == (waits[rank].waited_ns, waits[rank].imposed_ns)
    assert lanes[0]["rect"]["y"] + lanes[0]["rect"]["h"] < lanes[1]["rect"]["y"]
    drawn = page.js("return P.meetings()")
    assert len(drawn) == len(world.meetings)
    for row, meeting in zip(drawn, world.meetings):
        late = world.timeline.last(meeting, world.timeline.arrivals(meeting))
        assert late is not None
        assert row["kind"] == meeting.kind == "message" and row["last"] == late.rank
        arrivals = {item.rank: item for item in world.timeline.arrivals(meeting)}
        assert {part["lane"]: part["start"] for part in row["parts"]} == {
            rank: item.start_ns for rank, item in arrivals.items()
        }
    # one axis, one colour; another on a dark page
    (light,) = {row["color"] for row in drawn}
    (dark,) = page.js("P.theme('dark'); return [...new Set(P.meetings().map((row) => row.color))]")
    assert light != dark and page.js("return P.state().dark")
    assert "all agree" in page.text(".bar") and not page.complaints()


def test_keys_lead_from_lanes_to_a_graph_and_back(page: Page, world: tv.World) -> None:
    from selenium.webdriver.common.keys import Keys

    page.open()
    page.press(Keys.ARROW_DOWN, Keys.ARROW_DOWN)
    assert page.js("return P.state().lane") == 1
    assert "rank 1" in page.text(".world-side") and "waited" in page.text(".world-side")
    page.press(Keys.ARROW_RIGHT)
    assert page.js("return P.state().meeting") >= 0
    assert "In the order in which they came" in page.text(".world-side")
    page.press(Keys.ESCAPE, "w")
    longest = page.js("return P.meetings()[P.state().meeting].parts.map((part) => part.waited_ns)")
    every = page.js("return P.meetings().flatMap((row) => row.parts.map((part) => part.waited_ns))")
    assert max(longest) == max(every)
    page.press(Keys.ESCAPE, Keys.ARROW_DOWN, Keys.ENTER)
    page.until("return P.rank()?.isReady")
    assert page.js("return P.state().rank") == 0
    # an ordinary page of a trace, with the waits as a heat map
    operations = page.js("return P.rank().operations().length")
    assert operations == len(world[0].graph)
    assert "waited_ns" in page.js("return P.rank().heatMaps().map((map) => map.id)")
    # keys inside the graph's frame reach all ranks as well
    page.press(".")
    page.until("return P.state().rank === 1 && P.rank()?.isReady")
    assert page.js("return P.rank().operations().length") == len(world[1].graph)
    page.press("r")
    assert page.js("return P.state().rank") == -1 and page.js("return P.lanes()[0].rect !== null")
    page.driver.back()
    page.until("return P.state().rank === 1 && P.rank()?.isReady")
    assert not page.complaints()


def test_a_collective_leads_to_its_operation(page: Page, world: tv.World) -> None:
    page.open("#theme=dark")
    node = page.js("return P.meetings()[0].parts[0].node")
    page.js("return P.open(0, arguments[0])", node)
    assert page.js("return P.rank().node()") == node
    assert page.js("return P.rank().operations()[arguments[0]].name", node) == "send"
    assert page.js("return P.rank().state().theme") == "dark"


def test_waits_and_the_schedule_are_views_of_their_own(page: Page, world: tv.World) -> None:
    page.open("#view=pipeline")
    assert page.js("return P.state().view") == "pipeline"
    schedule = world.schedule()
    assert page.js("return P.chunks().map((row) => row.slice(1, 4))") == [
        [chunk.stage, chunk.microbatch, chunk.what] for chunk in schedule.chunks
    ]
    assert page.js("return P.state().idle_share") == pytest.approx(schedule.idle_share)
    assert "pipeline idle" in page.text(".world-side")
    page.press("2")
    assert page.js("return P.state().view") == "waited"
    assert re.search(r"waited 0\s+[\d.]+ [µm]?s", page.text(".world-legend"))
    # letters nobody has to lean forward for
    sizes = page.js(
        "return [...document.querySelectorAll('body *')].filter((e) => e.innerText && e.offsetWidth)"
        ".map((e) => parseFloat(getComputedStyle(e).fontSize))"
    )
    assert min(sizes) >= 11
    assert not page.complaints()


def test_equal_ranks_are_one_lane_and_one_graph(driver: Any, tmp_path: Path) -> None:
    def program(x: torch.Tensor) -> torch.Tensor:
        dist.all_reduce(x)
        return x * 2

    with fake_group(1024):
        trace = tv.trace(program, torch.ones(100), fake=True)
    world = World({0: trace}, copies={rank: (0, {}) for rank in range(1, 1024)})
    path = tmp_path / "many.html"
    world.save(path)
    one = tmp_path / "one.html"
    trace.save(one)
    around = sum((BUNDLE / name).stat().st_size for name in ("world.js", "world.css"))
    assert path.stat().st_size - around < 1.1 * one.stat().st_size
    page = Page(driver, path).open()
    (lane,) = page.js("return P.lanes()")
    assert (lane["name"], lane["count"], lane["ranks"]) == ("ranks 0–1023", 1024, [[0, 1023]])
    # any of them can be opened, and says which it is
    page.js("return P.open(700)")
    assert "rank 700" in page.text(".rank-strip") and "the same as ranks 0–1023" in page.text(".rank-strip")
    assert page.js("return P.rank().operations().length") == len(trace.graph)


def test_what_does_not_agree_is_said_first(driver: Any, tmp_path: Path) -> None:
    traces = []
    for rank in range(2):
        with fake_group(2, rank):
            size = 8 if rank else 16
            traces.append(tv.trace(lambda size=size: dist.all_reduce(torch.ones(size)), fake=True))
    world = tv.join(traces)
    assert world is not None and world.problems
    path = tmp_path / "problems.html"
    world.save(path)
    page = Page(driver, path).open()
    assert "1 problem" in page.text(".bar")
    assert str(world.problems[0]) in page.text(".world-side .problems")
    assert "<iframe" in world._repr_html_()


def test_names_of_the_longest_waits_are_whole(page: Page) -> None:
    page.open()
    cut = page.js(
        "return [...document.querySelectorAll('.world-side .row b')]"
        ".filter((name) => name.scrollWidth > name.clientWidth + 1).map((name) => name.innerText)"
    )
    assert cut == [] and page.js("return document.querySelectorAll('.world-side .row b').length") > 3
