"""The page's panels in a real Chromium: what they say of a run, and that it is true."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

import torch_vis as tv
from tests.kit.browser import Net, Page, facts, needs_browser
from torch_vis.graph.text import count, duration, size

pytestmark = needs_browser
ENTER, ESCAPE = "\ue007", "\ue00c"


@pytest.fixture(scope="module")
def trace() -> tv.Trace:
    torch.manual_seed(0)
    return tv.trace(Net(), torch.ones(3, 4), backward=True)


@pytest.fixture
def page(show: Callable[[Any], Page], trace: tv.Trace) -> Page:
    return show(trace)


def total(trace: tv.Trace, path: str, metric: str, phase: str = "forward") -> float:
    column = trace.metrics[metric]
    return sum(column[node.index] or 0 for node in trace.graph.find(path, phase=phase))


# ---------------------------------------------------------------- one of several alike


@pytest.mark.parametrize("way", ["search", "table"])
def test_one_of_several_alike_is_shown_by_itself(page: Page, trace: tv.Trace, way: str) -> None:
    if way == "search":
        page.press("/")
        page.press("path:blocks.4")
        page.until("return P.searchResults()?.modules.length >= 1")
        page.press(ENTER)
    else:
        page.js("P.tab('modules')")
        page.js(
            "[...document.querySelectorAll('.grid tbody tr')]"
            ".find(r => r.innerText.startsWith('blocks.4')).click()"
        )
    page.until("return P.selection()?.opening === 'one' && P.selection().shown === 4")
    if way == "table":
        assert page.js("return P.state().tab") == "modules", "the table stays in front"
        assert page.text("tr.on").startswith("blocks.4")
        page.js("P.tab('details')")
    assert page.text(".details h2") == "blocks.4"
    found = facts(page, ".details")
    assert found["operations"] == str(len(trace.graph.find("blocks.4", phase="forward")))
    assert found["parameters"] == str(sum(p.numel() for p in Net().blocks[4].parameters()))
    page.press("]")
    page.until("return document.querySelector('.details h2').innerText === 'blocks.5'")
    page.js(
        "[...document.querySelectorAll('.details .link')].find(b => /together/.test(b.innerText)).click()"
    )
    assert facts(page, ".details")["operations"] == str(len(trace.graph.find("blocks.*", phase="forward")))
    assert "1 instance that differs" in page.text(".details") and "blocks.2" in page.text(".details")


def test_parameters_count_where_they_are_used(page: Page, trace: tv.Trace) -> None:
    node = next(node for node in trace.graph.nodes if node.name == "addmm" and node.path == "head")
    page.js("return P.goToNode(arguments[0])", node.index)
    page.until(f"return P.node() === {node.index}")
    assert facts(page, ".details")["parameters"] == str(8 * 2 + 2)
    roles = page.js("return [...document.querySelectorAll('.details .rows tr')].map(r => r.innerText)")
    weight = next(row for row in roles if row.startswith("mat2"))
    assert "parameter" in weight and "head.weight" in weight and "activation" not in weight
    assert not [name for name in facts(page, ".details") if "_" in name], "names, not keys"


def test_a_view_that_is_gone_to_is_drawn(page: Page) -> None:
    page.press("/")
    page.press("op:t path:head phase:forward")
    page.until("return P.searchResults()?.total === 1")
    page.press(ENTER)
    page.until("return P.operations()[P.node()]?.name === 't' && P.selection()?.node === P.node()")
    assert page.js("return P.selection().rect") is not None


def test_the_source_of_a_module_is_its_own(page: Page, trace: tv.Trace) -> None:
    scope = next(scope.index for scope in trace.graph.scopes if scope.path == "blocks.0")
    page.js("return P.goToCall(arguments[0])", scope)
    page.until("return document.querySelector('.details h2').innerText === 'blocks.0'")
    assert "return x + self.second" in page.text(".details .source .here")
    root = next(scope.index for scope in trace.graph.scopes if scope.type == "Net")
    page.js("return P.goToCall(arguments[0])", root)
    page.until("return document.querySelector('.details h2').innerText === 'Net'")
    assert "Source of its first operation, t in stem" in page.text(".details")


# ---------------------------------------------------------------- summary


def test_the_peak_is_the_same_everywhere(page: Page, trace: tv.Trace) -> None:
    live, free = (trace.metrics[name].values for name in ("live_bytes", "free_bytes"))
    page.press("m")
    page.until("return P.memory()")
    assert page.js("const m = P.memory(); return m.total[m.peak]") == int((live + free).max())
    page.js("P.tab('summary')")
    shown = facts(page, ".summary")["peak memory"]
    assert page.text(".list h3").startswith(f"Peak: {shown} at")
    assert f"peak memory  {shown}" in str(trace)


def test_the_summary_speaks_of_the_run_in_words(page: Page) -> None:
    found = facts(page, ".summary")
    assert found["backward"].isdigit() and "recording overhead" in found
    assert not [name for name in found if "_" in name or name.endswith(" ns")]


def test_the_summary_tells_of_runs_that_were_repeated(show: Callable[[Any], Page]) -> None:
    trace = tv.trace(Net(), torch.ones(3, 4), repeat=3)
    found, meta = facts(show(trace), ".summary"), trace.meta
    low, high = (duration(meta[f"plain_wall_{end}_ns"]) for end in ("low", "high"))
    assert found["without recording"] == duration(meta["plain_wall_ns"])
    assert found["runs timed"] == "3" and found["middle half of runs"] == f"{low} to {high}"
    assert not [name for name in found if name.startswith("plain")]


def test_a_run_that_did_not_finish_says_so(show: Callable[[Any], Page]) -> None:
    class Broken(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            raise ValueError(f"boom {x.relu().dim()}")

    page = show(tv.trace(Broken(), torch.ones(2), partial=True))
    assert "ValueError: boom 1" in page.text(".summary .alert")
    assert "Not captured (1)" in page.text(".summary")
    assert "Everything the run did" not in page.text(".summary")


def test_an_empty_run_says_that_nothing_ran(show: Callable[[Any], Page]) -> None:
    page = show(tv.trace(nn.Identity(), torch.ones(2)))
    assert "No operation ran" in page.text(".stage") and "not known" not in page.text(".summary")
    assert facts(page, ".summary")["parameters"] == "0"


class Branches(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.a, self.b = nn.Linear(4, 4), nn.Linear(4, 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.a(x).relu()
        if x.sum() > 0:  # the line of the break
            x = x + 1
        return torch.nn.functional.linear(self.b(x), self.a.weight)


def test_graph_breaks_lead_to_their_partition(show: Callable[[Any], Page]) -> None:
    t = tv.trace(Branches(), torch.ones(2, 4), via="dynamo")
    page = show(t)
    text = page.text(".breaks")
    (found,) = t.breaks
    assert "# the line of the break" in text and "ends partition 0" in text
    assert all(hint[:60] in text for hint in found.hints)
    assert any("⚡ ended by" in box["type"] for box in page.boxes())
    page.js("document.querySelector('.breaks .link').click()")
    page.until("return P.selection()?.label === 'partition 0'")
    assert "Ends in a graph break" in page.text(".details .alert")
    page.js("return P.openAll()")
    page.until("return P.boxes().length > 8")
    calls = [box["label"] for box in page.boxes(kind="module")]
    assert calls.count("linear") == 3 and "x" not in calls, "by the function, not by the program's variable"


# ---------------------------------------------------------------- comparison


@pytest.fixture(scope="module")
def pair() -> tuple[tv.Trace, tv.Trace]:
    torch.manual_seed(0)
    one, two = Net(6), Net(4)
    return tv.trace(one, torch.ones(3, 4)), tv.trace(two, torch.ones(3, 4))


def test_a_comparison_has_the_figures_of_both(
    show: Callable[[Any], Page], pair: tuple[tv.Trace, tv.Trace]
) -> None:
    a, b = pair
    page = show(tv.compare(a, b))
    found = facts(page, ".summary")
    assert found["operations"] == f"{len(a.graph)} | {len(b.graph)} | −{len(a.graph) - len(b.graph)}"
    params = [t.meta["parameters"] for t in pair]
    cells = found["parameters"].split(" | ")
    assert cells[0] == f"{params[0]:,}" and cells[1] == f"{params[1]:,}"
    assert cells[2] == f"−{params[0] - params[1]}"
    read = "const {total, unknown} = P.total(arguments[0]); return [total, unknown]"
    for metric in ("flops", "alloc_bytes", "time_ns"):
        for name, t in ((f"{metric}@a", a), (metric, b)):
            assert page.js(read, name) == [t.metrics[metric].total(), 0], name
    assert page.js(read, "parameters") == [params[1], 0]


def test_sums_that_leave_something_out_are_not_compared(show: Callable[[Any], Page]) -> None:
    layer, x = torch.nn.Linear(8, 8), torch.ones(2, 8)
    with torch.library._scoped_library("paged", "FRAGMENT") as library:
        library.define("own(Tensor x) -> Tensor")
        library.impl("own", lambda x: x.clone(), "CompositeExplicitAutograd")
        two = tv.trace(lambda x: torch.ops.paged.own(layer(x)), x)
    page = show(tv.compare(tv.trace(layer, x), two))
    assert facts(page, ".summary")["FLOPs"].split(" | ") == ["272", "≥ 272", ""]


def test_what_only_one_of_them_has_shows_its_figures(
    show: Callable[[Any], Page], pair: tuple[tv.Trace, tv.Trace]
) -> None:
    a, b = pair
    page = show(tv.compare(a, b))
    page.js("P.tab('modules')")
    heads = page.js("return [...document.querySelectorAll('.grid th')].map(t => t.innerText)")
    assert heads[1:3] == ["Δ time", "Δ memory"] and "time A" in heads and "time B" in heads
    node = page.operation("addmm", status="removed")
    page.js("return P.goToNode(arguments[0])", node)
    page.until(f"return P.node() === {node}")
    path = page.js("return P.operations()[P.node()].path")
    flops = total(a, path, "flops")
    assert facts(page, ".details")["FLOPs"] == f"{flops:.0f} | – | −{flops:.0f}"
    assert "not known" not in page.text(".details .sides")


# ---------------------------------------------------------------- heat maps


def test_heat_maps_without_data_say_what_would_give_it(page: Page) -> None:
    options = page.js(
        "return [...document.querySelectorAll('select[aria-label=\"Heat map\"] option')]"
        ".map(o => [o.innerText, o.disabled])"
    )
    grey = [text for text, disabled in options if disabled]
    assert any("gradient norm (save t.with_metrics(t.gradients())" in text for text in grey)
    assert any("roofline bound (save t.with_metrics(t.roofline())" in text for text in grey)
    assert not any("t.gradients" in text for text, disabled in options if not disabled)


def test_gradient_norms(show: Callable[[Any], Page]) -> None:
    torch.manual_seed(0)
    t = tv.trace(Net(), torch.ones(3, 4), backward=True)
    t = t.with_metrics(t.gradients())
    page = show(t)
    page.js("P.heat('gradient_norm')")
    norm = t.metrics["norm"]
    phase = t.graph.node_phase
    most = max(norm[n] or 0 for n in np.flatnonzero(phase == 1).tolist())
    forward, backward = page.js("return P.columns().map(c => c.heat)")
    assert backward == pytest.approx(most) and forward is None
    assert "gradient norm" in page.text(".legend") and "logarithmic" in page.text(".legend")
    assert "not known" not in page.text(".legend"), "forward boxes have no gradient to be known"


def test_roofline_bounds(show: Callable[[Any], Page]) -> None:
    model = nn.Sequential(nn.Linear(256, 256), nn.ReLU())
    t = tv.trace(model, torch.ones(64, 256))
    t = t.with_metrics(t.roofline(hardware="epyc-9654"))
    page = show(t)
    page.js("P.heat('bound')")
    assert all(word in page.text(".legend") for word in ("compute", "memory", "overhead"))
    bound = t.metrics["bound"]
    page.js("return P.openAll()")
    page.until("return P.boxes().some(b => b.node >= 0)")
    drawn = [(box["node"], box["heatText"], box["fill"]) for box in page.boxes(column=0) if box["node"] >= 0]
    words = ("none", "compute", "memory", "overhead")
    assert drawn and all(word == words[bound[node]] for node, word, _ in drawn)
    assert len({fill for *_, fill in drawn}) == len({word for _, word, _ in drawn})


def test_relevance_of_an_evaluation(show: Callable[[Any], Page]) -> None:
    torch.manual_seed(0)
    dlb = tv.DLBacktrace(Net().eval(), (torch.ones(3, 4),))
    found = dlb.evaluation(dlb.predict(torch.randn(3, 4)), target=0)
    page = show(dlb.trace)
    page.js("P.heat('relevance')")
    assert page.box("head", column=0)["heat"] == pytest.approx(found["linear_13"])


def test_the_legend_says_how_it_adds_up_and_its_scale(page: Page) -> None:
    page.js("P.heat('rate')")
    assert "FLOPs of all in a box over their time" in page.text(".legend")
    assert "square root" in page.text(".legend") and "0 FLOP/s" in page.text(".legend")
    page.js("P.heat('flops')")
    assert "sum of all in a box" in page.text(".legend") and "FLOP" in page.text(".ticks")


# ---------------------------------------------------------------- use


def test_a_link_brings_back_panels_and_brush(page: Page) -> None:
    page.js("P.tab('modules')")
    page.js("[...document.querySelectorAll('.grid th button')].find(t => t.innerText === 'params').click()")
    page.press("m")
    page.until("return P.memory()")
    hash = page.js("P.brush(3, 9); return P.link()")
    page.open(hash)
    state = page.js("return P.state()")
    assert [state["tab"], state["sort"], state["brush"]] == ["modules", "-parameters", [3, 9]]
    assert page.js(
        "return [...document.querySelectorAll('th[aria-sort=descending]')].map(t => t.innerText)"
    ) == ["params ↓"]
    assert state["marked"] > 0 and "from operation 3 to 9" in page.text(".list")


def test_save_without_a_selection_says_so(page: Page) -> None:
    page.js("document.querySelector('.menu').open = true")
    page.js(
        "[...document.querySelectorAll('.menu-body button')].find(b => /JSON/.test(b.textContent)).click()"
    )
    assert "nothing is selected" in page.text(".toast")
    page.press("c")
    assert "nothing is selected" in page.text(".toast")
    page.js("document.querySelector('.menu').open = true")
    page.press(ESCAPE)
    page.until("return !document.querySelector('.menu').open")


def test_inside_a_notebook_no_link_is_promised(driver: Any, trace: tv.Trace, tmp_path: Path) -> None:
    (tmp_path / "cell.html").write_text(f"<!doctype html><meta charset=utf-8>{trace._repr_html_()}")
    driver.get((tmp_path / "cell.html").as_uri())
    driver.switch_to.frame(0)
    page = Page(driver, tmp_path / "cell.html")
    page.until("return window.torchVis?.isReady")
    page.js(
        "[...document.querySelectorAll('.menu-body button')].find(b => /link/.test(b.textContent)).click()"
    )
    assert "inside a notebook there are no links" in page.text(".toast")
    driver.switch_to.default_content()


def test_names_that_would_turn_the_text_are_written_out(show: Callable[[Any], Page]) -> None:
    class Odd(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.add_module("\u202eRTL evil", nn.Linear(4, 4))

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return next(self.children())(x)

    page = show(tv.trace(Odd(), torch.ones(1, 4)))
    assert "\\u202eRTL evil" in page.labels()
    page.js("P.tab('modules')")
    assert "\\u202eRTL evil" in page.text(".grid") and "\u202e" not in page.js(
        "return document.body.innerText + P.svg()"
    )


def test_a_long_path_keeps_its_end(show: Callable[[Any], Page]) -> None:
    model: nn.Module = nn.Linear(4, 4)
    for depth in range(12):
        model = nn.Sequential(OrderedDict({f"a_rather_long_name_{depth}": model}))
    page = show(tv.trace(model, torch.ones(1, 4)))
    page.press("/")
    page.press("Linear")
    page.until("return document.querySelectorAll('.results .path-tail').length > 1")
    tails = page.js(
        "return [...document.querySelectorAll('.results .path-tail')]"
        ".map(t => [t.innerText, t.scrollWidth <= t.clientWidth + 1, t.parentElement.title])"
    )
    assert tails[0][2].startswith("a_rather_long_name_11.") and tails[0][0] == "a_rather_long_name_0"
    assert all(whole for _, whole, _ in tails)


def test_containers_stay_in_the_module_tree(page: Page) -> None:
    page.js("P.tab('modules')")
    names = page.js("return [...document.querySelectorAll('.grid tbody tr b')].map(b => b.innerText)")
    assert names[:5] == ["whole run", "Net", "stem", "blocks.0", "first"]
    assert page.js("return document.querySelector('.grid th').getAttribute('aria-sort')") == "other"


def test_the_timeline_has_axes_and_only_what_can_be_seen(page: Page) -> None:
    page.press("m")
    page.until("return P.memory()")
    memory = page.js("return P.memory()")
    least = 0.01 * memory["total"][memory["peak"]]
    uses = [use for use, alive in memory["uses"].items() if max(alive) > least]
    key = page.text(".chart-key")
    assert {"parameter", "saved for backward", "temporary"} <= set(uses)
    assert all(use in key for use in uses) and "optimizer" not in key


def test_the_flame_chart_tells_phases_and_what_lies_between(page: Page) -> None:
    page.press("t")
    page.until("return P.flame()")
    # The widest bar of a module below the root: where it lies depends on how long the run took.
    box, at = page.js(
        "const c = document.querySelector('.flame canvas'), b = c.getBoundingClientRect();"
        "const bar = P.flame().filter(f => f.scope > 0 && f.row > 0).sort((f, g) => g.w - f.w)[0];"
        "const [x, y] = [Math.max(bar.x, b.left) + Math.min(bar.w, 40) / 2, bar.y + bar.h / 2];"
        "c.dispatchEvent(new PointerEvent('pointermove', {clientX: x, clientY: y}));"
        "const r = document.querySelector('.flame-note').getBoundingClientRect();"
        "return [[r.left - b.left, r.top - b.top, r.right - b.left], [x - b.left, y - b.top]]"
    )
    note = page.text(".flame-note")
    assert ("forward" in note or "backward" in note) and "between them" in note
    # it begins at the pointer, or before it where it would go over the edge
    assert box[0] - 60 < at[0] < box[2] + 60 and abs(box[1] - at[1]) < 90, "beside the pointer"


SHARES = (
    "return [...document.querySelectorAll('.summary section')].map(s => [s.querySelector('h3').textContent,"
    "[...s.querySelectorAll('.share')].map(r => [r.querySelector('.name').textContent,"
    "r.querySelector('.amount').textContent])]).filter(([, rows]) => rows.length)"
)


def test_the_first_panel_says_where_time_flops_and_memory_went(page: Page, trace: tv.Trace) -> None:
    titles = page.js("return [...document.querySelectorAll('.summary h3')].map(t => t.textContent)")
    assert titles[:4] == ["Time by phase", "Time by module", "Time by function", "Time by line"]
    assert titles[-1] == "Machine"
    rows = [(name, amount.split(" · ")[0]) for name, amount in dict(page.js(SHARES))["Time by function"]]
    assert rows == [(group.name, duration(group.time_ns)) for group in trace.time().functions[: len(rows)]]
    assert "linear" in dict(rows) and not {"addmm", "t"} & {*dict(rows)}, "as the program calls them"
    row = "[...document.querySelectorAll('.summary .share.link')].find(r => /linear/.test(r.textContent))"
    amount = page.js(f"return {row}.querySelector('.amount').textContent")
    page.js(f"{row}.click()")
    page.until("return P.state().heat === 'time_ns' && P.state().marked")
    found = page.js("return P.searchResults()")
    # of each call its operations, and those of its gradient
    own = [node.index for node in trace.graph.nodes if node.api == "linear"]
    linked = [node.index for node in trace.graph.nodes if trace.graph.node_link[node.index] in own]
    assert sorted(found["nodes"]) == sorted({*own, *linked}) and own and linked
    assert amount.split(" · ")[0] == duration(
        int(sum(trace.metrics["time_ns"][n] or 0 for n in {*own, *linked}))
    )

    choose = (
        "[...document.querySelectorAll('.cost')].find(b => b.textContent.startsWith(arguments[0])).click()"
    )
    page.js(choose, "FLOPs")
    flops = dict(page.js(SHARES))
    forward = sum(
        trace.metrics["flops"][node.index] or 0 for node in trace.graph.nodes if node.phase == "forward"
    )
    assert dict(flops["FLOPs by phase"])["forward"].startswith(f"{count(forward)} · ")
    page.js(choose, "memory")
    memory = dict(page.js(SHARES))
    by_use = {share.name: size(share.size_bytes) for share in trace.memory().by_use if share.size_bytes}
    assert {name: text.split(" · ")[0] for name, text in memory["Memory at the peak, by use"]} == by_use
    assert "Memory at the peak, by module" in memory


def test_a_line_of_the_first_panel_has_its_gradients_too(page: Page, trace: tv.Trace) -> None:
    """What its row counts is what its search brings out."""
    lines = dict(page.js(SHARES))["Time by line"]
    line, amount = lines[0]
    page.js("P.search(arguments[0])", f"file:{line}")
    found = page.js("return P.searchResults()")
    chosen = [trace.graph.nodes[number] for number in found["nodes"]]
    assert len(chosen) == found["total"] and "backward" in {node.phase for node in chosen}
    taken = sum(trace.metrics["time_ns"][node.index] or 0 for node in chosen)
    assert amount.split(" · ")[0] == duration(int(taken))


class Odd(nn.Module):
    """A loop of calls that know nothing of one another, a cast there and back, a parameter that loses its gradient."""

    def __init__(self) -> None:
        super().__init__()
        self.each = nn.Linear(64, 64)
        self.chain = nn.Linear(64, 64)
        self.lost = nn.Linear(64, 64)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        parts = []
        for row in x:
            parts.append(self.each(row))
        h = parts[0]
        for _ in range(len(x)):
            h = self.chain(h)
        with torch.no_grad():
            lost = self.lost(h)
        big = (torch.stack(parts)[:, None] * torch.stack(parts)[None]).sum()
        return h.half().float().sum() + lost.sum() + big


def test_the_first_panel_says_what_is_odd(show: Callable[[Any], Page]) -> None:
    page = show(tv.trace(Odd(), torch.ones(12, 64), backward=True))
    texts = page.js("return [...document.querySelectorAll('.summary .row.odd')].map(r => r.textContent)")
    (loop,) = [text for text in texts if "none of them needs" in text]
    line = Odd.forward.__code__.co_firstlineno + 3
    assert loop.startswith("addmm ran 12 times") and f"test_panels.py:{line}" in loop, "each, not chain"
    assert any("float32 → float16 → float32" in text for text in texts)
    assert any("2 parameters that the run reads got no gradient: lost.weight" in text for text in texts)
    assert any(text.startswith("A temporary of ") for text in texts)
    page.js(
        "[...document.querySelectorAll('.summary .row.odd')].find(r => /none of/.test(r.textContent)).click()"
    )
    assert page.js("return P.searchResults().total") >= 12


def test_a_word_is_marked_across_the_place_where_a_path_may_be_cut(show: Callable[[Any], Page]) -> None:
    long = Nested([("encoder_of_the_whole", nn.Linear(4, 4)), ("attention_of_the_last", nn.Linear(4, 4))])
    page = show(tv.trace(nn.Sequential(OrderedDict(some_outer_part=long)), torch.ones(2, 4)))
    page.press("/", "part.attention")
    page.until("return P.searchResults()?.modules.length")
    assert page.text(".results .row.on .path").replace("\n", "") == "some_outer_part.attention_of_the_last"
    marks = page.js("return [...document.querySelectorAll('.results .row.on mark')].map(m => m.textContent)")
    assert "".join(marks) == "part.attention"


class Nested(nn.Sequential):
    def __init__(self, parts: list[tuple[str, nn.Module]]) -> None:
        super().__init__(OrderedDict(parts))


def test_a_gradient_is_due_to_the_line_of_what_it_is_the_gradient_of(page: Page, trace: tv.Trace) -> None:
    backward = [node for node in trace.graph.nodes if node.phase == "backward" and node.link is not None]
    node = next(node for node in backward if node.link and node.link.site != node.site)
    assert node.link is not None and node.link.site is not None
    page.js("return P.goToNode(arguments[0])", node.index)
    page.until(f"return P.node() === {node.index}")
    file = "/".join(node.link.site.file.split("/")[-2:])
    assert f"{file}:{node.link.site.line}" in page.text(".details")
    assert "whose gradient this is" in page.text(".details")


def test_the_peak_is_offered_where_something_else_is_shown(page: Page) -> None:
    page.js("P.dock('memory')")
    page.until("return P.memory()")
    assert "show the peak" not in page.text(".dock")
    page.js("P.brush(0, 0)")
    assert "show the peak" in page.text(".dock")


def test_names_of_tensors_keep_their_end_and_say_that_they_are_cut(show: Callable[[Any], Page]) -> None:
    inner = nn.Sequential(OrderedDict(intermediate_projection=nn.Linear(64, 64)))
    page = show(tv.trace(nn.Sequential(OrderedDict(encoder_of_all=inner)), torch.ones(2, 64), backward=True))
    page.js("P.dock('memory')")
    page.until("return document.querySelector('.dock .list .row b .path')")
    # The end of the text is not beyond the right of what shows it, and a head that is cut has room for its "…".
    ends = page.js(
        "return [...document.querySelectorAll('.dock .list .row b .path')].map(path => {"
        "const tail = path.querySelector('.path-tail'), text = tail.firstChild.getBoundingClientRect();"
        "const head = path.querySelector('.path-head');"
        "return [text.right - tail.getBoundingClientRect().right,"
        "head.textContent ? head.getBoundingClientRect().width : 99]; })"
    )
    assert ends and all(over < 1 and head >= 12 for over, head in ends)
