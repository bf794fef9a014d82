"""What the page marks in a real Chromium: what backward computed again."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

import torch_vis as tv
from tests.kit.browser import Block, Page, column, facts, modules, needs_browser
from torch_vis.graph.module_table import ModuleTable

pytestmark = needs_browser
Show = Callable[[Any], Page]


class Checkpointed(nn.Module):
    """A stem, three blocks that are computed again in backward if that is asked for, and a head."""

    def __init__(self, again: bool = True) -> None:
        super().__init__()
        self.stem = nn.Linear(4, 8)
        self.blocks = nn.ModuleList(Block(16) for _ in range(3))
        self.head, self.again = nn.Linear(8, 2), again

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.stem(x)
        for block in self.blocks:
            x = checkpoint(block, x, use_reentrant=False) if self.again else block(x)
        return self.head(x)


@pytest.fixture(scope="module")
def trace() -> tv.Trace:
    return tv.trace(Checkpointed(), torch.ones(3, 4), backward=True)


def close(page: Page) -> None:
    """Close what is marked."""
    for box in page.boxes(isRecomputed=True, parent=""):
        page.js("return P.close(arguments[0])", box["id"])


def drawn(page: Page, scale: float = 1) -> list[str]:
    """Every text on the canvas where what is marked, or else the beginning, is drawn in some size."""
    painted = page.js(
        "const boxes = P.boxes(), scale = arguments[0];"
        "const {x, y} = (boxes.find(b => b.isRecomputed) ?? boxes[0]).sheet;"
        "P.camera({scale, x: 300 - x * scale, y: 200 - y * scale}); return P.painted()",
        scale,
    )
    return [part["text"] for part in painted if part["kind"] == "text"]


# ---------------------------------------------------------------- computed again


@pytest.fixture
def page(show: Show, trace: tv.Trace) -> Page:
    return show(trace)


def test_a_call_that_backward_runs_again_says_so_and_no_other_does(page: Page) -> None:
    close(page)
    marked = [text for text in drawn(page) if "recomputed" in text]
    assert marked == ["Block · f32[3, 16] · recomputed"], "the repeat in backward, not the one in forward"
    first = page.js("return P.calls().find(c => c.isRecomputed && c.path.startsWith('blocks.')).scope")
    page.js("return P.goToCall(arguments[0])", first)
    page.until("return P.selection()?.opening === 'one' && P.selection().rect")
    marked = [text for text in drawn(page) if "recomputed" in text]
    assert len(marked) == 1 and marked[0] in ("Block · recomputed", "recomputed"), "in the line of its name"
    assert page.js("return P.svg()").count(">recomputed<") == 1, "and in a picture of the page"


def test_the_mark_is_there_where_only_names_can_be_read(page: Page) -> None:
    close(page)
    texts = drawn(page, 0.7)
    assert "↻ blocks.0–2" in texts and not any("recomputed" in text for text in texts)
    assert "↻ recomputed" in page.text(".legend") and ">↻ recomputed<" in page.js("return P.svg()")


@pytest.mark.parametrize("opening", ["closed", "one", "all"])
@pytest.mark.parametrize("scale", [0.42, 0.5, 0.75, 1])
def test_the_sign_and_its_legend_are_there_however_it_is_shown(
    page: Page, opening: str, scale: float
) -> None:
    page.press("t")  # which leaves the graph little room
    page.js("return P.open(P.boxes().find(b => b.isRecomputed && !b.parent).id, arguments[0])", opening)
    signs = [text for text in drawn(page, scale) if text.startswith("↻ b")]
    assert len(signs) == 1, "what was checkpointed, and not once more all that is in it"
    assert "↻ recomputed" in page.text(".legend")
    page.js("P.heat('time_ns')")
    assert "↻ recomputed" in page.text(".legend"), "colours that are a measure do not hide it"


def test_the_flame_chart_has_the_sign(page: Page) -> None:
    page.press("t")
    page.until("return P.flame()")
    bars = sorted(page.js("return P.flame()"), key=lambda bar: bar["x"])
    marked = [bar["label"] for bar in bars if bar["label"].startswith("↻")]
    assert marked == ["↻ blocks.2", "↻ blocks.1", "↻ blocks.0"]
    assert "↻ recomputed" in page.text(".flame .chart-key")


# ---------------------------------------------------------------- some of several


class Some(Checkpointed):
    """Only the first and the last block are computed again."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.stem(x)
        for number, block in enumerate(self.blocks):
            x = block(x) if number == 1 else checkpoint(block, x, use_reentrant=False)
        return self.head(x)


def loose_ends(pieces: list[list[list[float]]]) -> int:
    """How many ends of a line's pieces meet no other."""
    ends = [end for piece in pieces for end in piece]
    return sum(
        not any(math.dist(a, b) < 0.5 for j, b in enumerate(ends) if i != j) for i, a in enumerate(ends)
    )


@pytest.mark.parametrize("mode", ["side", "over"])
def test_lines_lead_from_what_is_computed_again_to_what_reads_it(show: Show, mode: str) -> None:
    page = show(tv.trace(Some(), torch.ones(3, 4), backward=True))
    page.js("return P.phases(arguments[0])", mode)
    page.js("return P.openAll()")
    lines = [edge for edge in page.js("return P.edges()") if edge["pieces"]]
    assert len(lines) > 30
    broken = [f"{edge['from']} → {edge['to']}" for edge in lines if loose_ends(edge["pieces"]) != 2]
    assert broken == [], "broken off at the border of a frame"


def test_what_is_computed_again_stands_before_what_reads_it_and_has_a_true_name(show: Show) -> None:
    page = show(tv.trace(Some(), torch.ones(3, 4), backward=True))
    close(page)
    assert "↻ blocks.0, 2" in drawn(page), "and not 0–2, which would be three"
    (again,) = page.boxes(column=1, isRecomputed=True, parent="")
    (net,) = page.boxes(column=1, type="Some")
    assert again["sheet"]["y"] > net["sheet"]["y"], "backward is read upwards"


def test_arrowheads_are_drawn_over_the_cards_behind_a_repeat(show: Show) -> None:
    page = show(tv.trace(Some(), torch.ones(3, 4), backward=True))
    painted = page.js("P.camera({scale: 1, x: 20, y: 40}); return P.painted()")
    cards = [
        index for index, part in enumerate(painted) if part.get("text", "").startswith(("Linear", "Block"))
    ]
    tips = [index for index, part in enumerate(painted) if part["kind"] == "tips"]
    assert tips and tips[0] > min(cards)


def test_the_page_marks_the_calls_that_the_table_counts_as_backward(page: Page, trace: tv.Trace) -> None:
    again = trace.graph.tree.recomputed
    assert again.any()
    assert page.js("return P.calls().map(c => c.isRecomputed)") == again.tolist()
    number = facts(page, ".summary")["computed again"]
    assert f"computed again  {number} of the operations of backward" in str(trace)
    calls = [scope for scope in trace.graph.scopes if scope.kind == "module" and not again[scope.index]]
    assert facts(page, ".summary")["module calls"] == str(len(calls))


def test_details_lead_from_one_computation_to_the_other(page: Page, trace: tv.Trace) -> None:
    again = trace.graph.tree.recomputed
    first, second = (
        next(s.index for s in trace.graph.scopes if s.path == "blocks.1" and again[s.index] == wanted)
        for wanted in (False, True)
    )
    selected = "return (P.selection()?.scope ?? -1) === arguments[0]"
    page.js("return P.goToCall(arguments[0])", first)
    page.until(selected.replace("arguments[0]", str(first)))
    found = facts(page, ".details")
    assert found["computed again"] == "during backward" and "recomputed" not in found
    link = "[...document.querySelectorAll('.details .link')].find(b => b.innerText === arguments[0]).click()"
    page.js(link, "during backward")
    page.until(selected.replace("arguments[0]", str(second)))
    found = facts(page, ".details")
    assert found["recomputed"] == "run again during backward; see it in forward"
    assert found["path"] == "blocks.1" and "computed again" not in found
    page.js(link, "see it in forward")
    page.until(selected.replace("arguments[0]", str(first)))


def test_inside_of_it_details_say_it_too(page: Page, trace: tv.Trace) -> None:
    again = trace.graph.tree.recomputed
    inner = next(s.index for s in trace.graph.scopes if s.path == "blocks.2.first" and again[s.index])
    page.js("return P.goToCall(arguments[0])", inner)
    page.until(f"return P.selection()?.scope === {inner}")
    assert facts(page, ".details")["recomputed"].startswith("run again during backward")


@pytest.mark.parametrize("text", ["flag:recomputed", "flag:recompute", "flag:recomp*", "recomputed"])
def test_the_search_finds_what_is_computed_again(page: Page, trace: tv.Trace, text: str) -> None:
    page.press("/")
    page.press(text)
    page.until("return P.searchResults()?.total > 0")
    found = page.js("const {total, modules} = P.searchResults(); return [total, modules]")
    assert found == [len(trace.graph.find(flag="recompute")), ["blocks.2", "blocks.1", "blocks.0"]]
    assert page.text(".results").count("Block · call 2 · recomputed") == 3


def test_the_module_table_counts_calls_as_the_printed_one_does(page: Page, trace: tv.Trace) -> None:
    found = modules(page)
    calls = column(page, "calls")
    for block in ModuleTable(trace.graph, trace.metrics).modules[1:]:
        label = {"": "Checkpointed"}.get(block.path, block.path)
        rows = [row for name, row in found.items() if name.split()[0] == label]
        assert not rows or rows[0][calls] == str(block.calls), block.path
    assert [name for name in found if "↻" in name] == [f"blocks.{place} ↻ Block" for place in range(3)]
    assert "↻ recomputed: run again during backward." in page.text(".modules .foot")
    page.js(
        "const i = document.querySelector('.modules input'); i.value = 'recomputed';"
        "i.dispatchEvent(new Event('input'))"
    )
    assert len(page.js("return [...document.querySelectorAll('.grid tbody tr')].map(r => r.innerText)")) == 3


def test_operations_that_are_checkpointed_without_a_module_say_so_themselves(show: Show) -> None:
    class Bare(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.stem, self.head = nn.Linear(4, 8), nn.Linear(8, 2)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.head(checkpoint(lambda x: x.exp().sin().exp(), self.stem(x), use_reentrant=False))

    trace = tv.trace(Bare(), torch.ones(3, 4), backward=True)
    again = trace.graph.find(flag="recompute")
    assert {"sin"} <= {node.name for node in again} and not trace.graph.tree.recomputed.any()
    page = show(trace)
    assert facts(page, ".summary")["computed again"] == str(len(again))
    sine = next(node.index for node in again if node.name == "sin")
    page.js("return P.goToNode(arguments[0])", sine)
    page.until(f"return P.node() === {sine}")
    assert "f32[3, 8] · recomputed" in drawn(page)
    assert facts(page, ".details")["note"] == "a forward operation run again during backward"


def test_without_checkpoints_the_page_speaks_of_none(show: Show) -> None:
    page = show(tv.trace(Checkpointed(again=False), torch.ones(3, 4), backward=True))
    assert not [text for text in drawn(page) if "recomputed" in text]
    assert "computed again" not in facts(page, ".summary") and "recomputed" not in page.text(".legend")
    assert not [name for name in modules(page) if "↻" in name]


def test_a_comparison_marks_what_one_of_them_computes_again(show: Show, trace: tv.Trace) -> None:
    plain = tv.trace(Checkpointed(again=False), torch.ones(3, 4), backward=True)
    number = len(trace.graph.find(flag="recompute"))
    for a, b, sign in ((plain, trace, "+"), (trace, plain, "−")):
        page = show(tv.compare(a, b))
        close(page)
        assert [text for text in drawn(page) if "recomputed" in text] == ["Block · f32[3, 16] · recomputed"]
        cells = [str(number if one is trace else 0) for one in (a, b)]
        assert facts(page, ".summary")["computed again"] == f"{cells[0]} | {cells[1]} | {sign}{number}"
        assert facts(page, ".summary")["module calls"].endswith(" | 0")
