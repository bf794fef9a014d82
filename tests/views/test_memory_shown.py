"""The memory of a run, wherever it is shown: the page, the terminal explorer and the report tell the same bytes."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

import torch_vis as tv
from tests.kit.browser import Page, needs_browser
from tests.kit.graphs import one_node_graph
from tests.kit.screen import drive, panel, press
from torch_vis.graph import Metrics
from torch_vis.graph.text import size

Show = Callable[[Any], Page]


class Layer(nn.Module):
    """A block with dropout, whose outputs backward reads."""

    def __init__(self) -> None:
        super().__init__()
        self.up, self.act, self.drop, self.down = (
            nn.Linear(16, 64),
            nn.GELU(),
            nn.Dropout(0.5),
            nn.Linear(64, 16),
        )

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + self.down(self.drop(self.act(self.up(x))))


class Net(nn.Module):
    """Four such blocks, of which some are computed again in backward."""

    def __init__(self, again: tuple[int, ...] = (), *, reentrant: bool = False) -> None:
        super().__init__()
        self.layers, self.again, self.reentrant = nn.ModuleList(Layer() for _ in range(4)), again, reentrant

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for number, layer in enumerate(self.layers):
            x = checkpoint(layer, x, use_reentrant=self.reentrant) if number in self.again else layer(x)
        return x


def traced(model: nn.Module) -> tv.Trace:
    torch.manual_seed(0)
    return tv.trace(model, torch.ones(32, 16, requires_grad=True), backward=True)


def trained() -> tv.Trace:
    model = Net((1,))
    optimizer = torch.optim.Adam(model.parameters())

    def step() -> None:
        optimizer.zero_grad()
        model(torch.ones(32, 16)).sum().backward()
        optimizer.step()

    def two() -> None:
        step()
        step()

    return tv.trace(two)


RUNS: dict[str, Callable[[], tv.Trace]] = {
    "dropout": lambda: traced(Net()),
    "some checkpointed": lambda: traced(Net((0, 2))),
    "all checkpointed": lambda: traced(Net((0, 1, 2, 3), reentrant=True)),
    "optimizer": trained,
    "a constant that is made on the way": lambda: tv.trace(
        lambda x: (x.relu() + torch.tensor([1.0] * 512)).sum(),
        torch.ones(512, requires_grad=True),
        backward=True,
    ),
}


@pytest.fixture(scope="module", params=RUNS)
def trace(request: pytest.FixtureRequest) -> tv.Trace:
    return RUNS[request.param]()


@needs_browser
def test_the_page_counts_what_the_report_counts(show: Show, trace: tv.Trace) -> None:
    page, memory = show(trace), trace.memory()
    page.press("m")
    page.until("return P.memory()")
    shown = page.js("return P.memory()")
    assert shown["uses"] == {use: alive.tolist() for use, alive in memory.timeline.items()}
    assert shown["peak"] == memory.peak_node.index  # type: ignore[union-attr]
    blocks = page.js(
        "const {peak} = P.memory(); return P.alive(peak, peak).map(b => [b.name, b.use, b.bytes])"
    )
    assert blocks == [[one.name, one.use, one.size_bytes] for one in memory.peak]
    key = page.text(".chart-key").replace("\n", " ")
    for share in memory.by_use:
        assert f"{share.name} {size(share.size_bytes)}" in key


def test_the_explorer_counts_what_the_report_counts(trace: tv.Trace) -> None:
    memory = trace.memory()

    async def steps(app: Any, pilot: Any) -> None:
        await press(app, pilot, "6")
        text = " ".join(panel(app).split())
        assert memory.facts()["peak"] in text, "the same operation as everywhere"
        by_use = text.partition("At the peak by use size use ")[2]
        for share in memory.by_use:
            assert f"{size(share.size_bytes)} {share.name}" in by_use
        first = memory.peak[0]
        assert f"{size(first.size_bytes)} {first.use}" in text.partition("Alive at the peak")[2]

    drive(trace, steps)


def test_what_forward_makes_is_no_gradient() -> None:
    trace = RUNS["dropout"]()
    memory = trace.lifetimes.by_use
    assert memory is not None
    forward = trace.graph.node_phase == 0
    assert memory.during[memory.words.index("gradient")][forward].max() == 0
    assert memory.during[memory.words.index("saved for backward")][forward].max() > 0


@needs_browser
def test_a_comparison_shows_the_memory_of_b(show: Show) -> None:
    a, b = traced(Net((0, 2))), traced(Net())
    page = show(tv.compare(a, b))
    page.press("m")
    page.until("return P.memory()")
    operations = page.js("return P.operations()")
    nodes = [row["node"] for row in operations if row["status"] != "removed"]
    live = page.js("return P.memory()")["uses"]
    assert len(nodes) == len(b.graph) and len(operations) > len(nodes)
    assert set(live) == set(b.memory().timeline)
    for use, alive in b.memory().timeline.items():
        assert [live[use][node] for node in nodes] == alive.tolist()
    most = "return P.alive(arguments[0], arguments[0]).reduce((sum, b) => sum + b.bytes, 0)"
    for node in range(0, len(operations), 7):
        assert page.js(most, node) == sum(row[node] for row in live.values()), "the blocks add up to the line"


@needs_browser
def test_a_run_without_memory_says_so(show: Show) -> None:
    page = show(tv.Trace(one_node_graph(), Metrics()))
    page.press("m")
    page.until("return P.memory()")
    assert page.text(".list") == "No memory was recorded with this run."
