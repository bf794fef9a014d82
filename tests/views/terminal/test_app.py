"""The explorer's program: every key, every panel, what a screen shows, what it writes."""

from __future__ import annotations

import json
import xml.etree.ElementTree as ElementTree
from pathlib import Path
from typing import Any

import pytest
import torch
from textual.events import Key

import torch_vis as tv
from tests.kit.net import Net
from tests.kit.screen import drive, go_to, panel, press, screen, settle, timeless
from torch_vis.views.terminal.app import PANELS


@pytest.fixture
def model() -> Net:
    return Net()


@pytest.fixture
def trace(model: Net) -> tv.Trace:
    return tv.trace(model, torch.randn(2, 1, 8, 8), backward=True)


def names(app: Any) -> list[str]:
    tree = app.tree_view
    return [tree.arrangement.label(int(row)) for row in tree.rows]


def test_the_first_screen(model: Net) -> None:
    async def steps(app: Any, pilot: Any) -> None:
        lines = screen(app).splitlines()
        assert lines[0].split("·")[0].strip() == "Net"
        assert "292 parameters" in lines[0] and "15 modules" in lines[0]
        assert lines[1].split()[:4] == ["module", "class", "params", "params"]
        assert any("conv" in line and "Conv2d" in line and "30" in line for line in lines)
        assert "quit" in lines[-1] and "filter" in lines[-1]

    drive(model, steps)


def test_a_terminal_of_80_columns_shows_the_time() -> None:
    layer = torch.nn.TransformerEncoderLayer(16, 2, 32, batch_first=True)
    trace = tv.trace(torch.nn.TransformerEncoder(layer, 2, enable_nested_tensor=False), torch.randn(2, 5, 16))

    async def steps(app: Any, pilot: Any) -> None:
        await pilot.resize_terminal(80, 24)
        await settle(app, pilot)
        assert {"out", "time"} <= set(app.tree_view.in_sight()), screen(app)

    drive(trace, steps)


def test_moving_opening_and_closing(model: Net) -> None:
    async def steps(app: Any, pilot: Any) -> None:
        tree = app.tree_view
        assert names(app)[:3] == ["Net", "conv", "blocks"]
        await press(app, pilot, "down", "j")
        assert tree.forest.paths[tree.row] == "blocks"
        await press(app, pilot, "h")
        assert "0" not in names(app)
        await press(app, pilot, "l", "l")
        assert tree.forest.paths[tree.row] == "blocks.0" and tree.arrangement.is_open[tree.row]
        await press(app, pilot, "enter")
        assert not tree.arrangement.is_open[tree.row]
        await press(app, pilot, "left")
        assert tree.forest.paths[tree.row] == "blocks"
        await press(app, pilot, "G")
        assert tree.forest.paths[tree.row] == "tail"
        await press(app, pilot, "up", "k", "g")
        assert tree.row == 0
        await press(app, pilot, "C")
        assert names(app) == ["Net", "conv", "blocks", "norm", "head", "tail"]
        await press(app, pilot, "z", "plus", "plus")
        assert len(names(app)) == 9
        await press(app, pilot, "E")
        assert len(names(app)) == 15
        await press(app, pilot, "minus")
        assert len(names(app)) == 9
        await press(app, pilot, "c")
        assert names(app) == ["Net"]
        await press(app, pilot, "e", "pagedown", "pageup")
        assert len(names(app)) == 15

    drive(model, steps)


def test_folding_repeats_sums_them_up(model: Net) -> None:
    async def steps(app: Any, pilot: Any) -> None:
        assert "0–2 × 3" in names(app), "without being asked"
        await press(app, pilot, "E")
        assert "0–2 × 3" in names(app) and len(names(app)) == 9
        row = app.source.forest.row("blocks.0")
        assert app.tree_view.figure("params", row) == 3 * (8 * 8 + 8)
        inner = app.source.forest.row("blocks.0.0")
        assert app.tree_view.figure("params", inner) == 3 * (8 * 8 + 8), "what is in a fold, as the fold"
        app.tree_view.go_to(names(app).index("0–2 × 3"))
        await settle(app, pilot)
        assert "the first of 3 alike; the tree has the sum of all" in screen(app)
        await press(app, pilot, "slash", *"blocks.2.0", "enter")
        assert names(app)[-3:] == ["blocks", "2", "0"], "a filter finds what is folded away"
        await press(app, pilot, "escape")
        assert len(names(app)) == 15, "what was found stays in sight when the filter is gone"
        await press(app, pilot, "z")
        assert "0–2 × 3" in names(app) and len(names(app)) == 9
        await press(app, pilot, "z")
        assert len(names(app)) == 15

    drive(model, steps)


def test_the_live_filter(model: Net) -> None:
    async def steps(app: Any, pilot: Any) -> None:
        await press(app, pilot, "slash", *"linear")
        assert names(app) == ["Net", "blocks", "0", "0", "1", "0", "2", "0", "head", "tail"]
        assert "5 match" in screen(app)
        await press(app, pilot, "enter", "n", "n")
        first = app.tree_view.row
        await press(app, pilot, "N")
        assert app.tree_view.row < first
        await press(app, pilot, "escape")
        assert "match" not in screen(app).splitlines()[0]
        await press(app, pilot, "slash", *("^", "h"), "vertical_line", *("t", "a", "i", "l", "$"))
        assert names(app) == ["Net", "head", "tail"]
        await press(app, pilot, "backspace", "backspace", "escape")
        assert app.query_one("#filter").value == ""
        await press(app, pilot, "slash", "a", "slash", "escape")
        await press(app, pilot, "slash", *"zzz")
        assert names(app) == [] and "0 match" in screen(app)
        await press(app, pilot, "enter", "down", "enter", "space", "e", "escape")
        assert len(names(app)) > 5

    drive(model, steps)


def test_a_key_in_the_same_instant_as_enter_is_a_command(model: Net) -> None:
    """Both keys are in the queue before the first is looked at, as when somebody types fast on a slow machine."""

    async def steps(app: Any, pilot: Any) -> None:
        await press(app, pilot, "slash", *"conv")
        for key, letter in (("enter", "\r"), ("3", "3")):
            app.post_message(Key(key, letter))
        await settle(app, pilot)
        assert app.query_one("#filter").value == "conv" and "def forward" in panel(app)

    drive(model, steps)


def test_a_filter_that_is_no_expression_says_so(model: Net) -> None:
    async def steps(app: Any, pilot: Any) -> None:
        await press(app, pilot, "slash", "left_parenthesis")
        assert "no regular expression, so taken as text" in screen(app)
        await press(app, pilot, "backspace", *"conv")
        assert "1 match" in screen(app) and "taken as text" not in screen(app)

    drive(model, steps)


def test_sorting_by_column_and_by_click(model: Net) -> None:
    async def steps(app: Any, pilot: Any) -> None:
        app.sort_by("params")
        await settle(app, pilot)
        assert names(app)[:2] == ["Net", "blocks"]
        await press(app, pilot, "O")
        assert names(app)[1] == "norm"
        await press(app, pilot, "f")
        assert names(app)[0] in ("blocks.0.1", "blocks.1.1", "blocks.2.1") or "blocks.0.1" in names(app)
        await press(app, pilot, "f")
        app.sort_by(None)
        await press(app, pilot, "o")
        assert app.arrangement.sort == "name" and names(app)[1] == "blocks"
        await pilot.click("#tree", offset=(4, 0))
        await settle(app, pilot)
        assert names(app)[1] == "tail"
        await pilot.click("#tree", offset=(4, 3))
        await settle(app, pilot)
        assert app.tree_view.cursor == 2

    drive(model, steps)


def test_columns_can_be_chosen_and_moved(model: Net) -> None:
    async def steps(app: Any, pilot: Any) -> None:
        await press(app, pilot, "v")
        assert "arguments" in screen(app)
        await press(app, pilot, "space", "enter")
        assert "type" not in app.tree_view.columns
        await press(app, pilot, "v", "space", "escape")
        assert "type" not in app.tree_view.columns
        first = app.tree_view.in_sight()[0]
        await press(app, pilot, "L")
        assert app.tree_view.in_sight()[0] != first
        await press(app, pilot, "H", "b")
        assert app.tree_view.in_sight()[0] == first and not app.tree_view.bars

    drive(model, steps)


@pytest.mark.parametrize("number", range(1, 10))
def test_every_panel_without_a_run_says_what_it_would_need(model: Net, number: int) -> None:
    async def steps(app: Any, pilot: Any) -> None:
        await press(app, pilot, str(number))
        text = panel(app)
        name = list(PANELS)[number - 1]
        assert app.panel == name and text
        if name not in ("details", "source"):
            assert "tv." in text or "loss.backward" in text, name
        assert "could not be filled" not in text

    drive(model, steps)


PHRASES = {
    "details": ["path", "parameters", "Inheritance", "torch.nn.modules.module.Module"],
    "performance": ["forward", "backward", "FLOPs in forward", "Calls"],
    "source": ["class Net", "def forward", "self.head(x) + self.tail(x)"],
    "flow": ["┌", "▼", "input x", "result output"],
    "operations": ["convolution", "In order", "→", "←"],
    "memory": ["peak of the run", "Alive at the peak", "█"],
    "gradients": ["norm of all", "head.weight", "█"],
    "compare": ["There is no second model"],
}


@pytest.mark.parametrize("name", PHRASES)
def test_every_panel_of_a_traced_model(model: Net, trace: tv.Trace, name: str) -> None:
    async def steps(app: Any, pilot: Any) -> None:
        app.show_panel(name)
        await settle(app, pilot)
        text = panel(app)
        assert [phrase for phrase in PHRASES[name] if phrase not in text] == [], text

    drive(model, steps, trace=trace)


@pytest.mark.parametrize("name", PANELS)
def test_every_panel_on_every_row_of_a_trace_alone(trace: tv.Trace, name: str) -> None:
    async def steps(app: Any, pilot: Any) -> None:
        await press(app, pilot, "E")
        app.show_panel(name)
        for _ in range(len(names(app))):
            await press(app, pilot, "j")
            assert panel(app) and "could not be filled" not in panel(app), panel(app)

    drive(trace, steps)


def test_times_in_the_tree_are_those_of_the_trace(model: Net, trace: tv.Trace) -> None:
    async def steps(app: Any, pilot: Any) -> None:
        numbers, forest = app.source.forest.numbers, app.source.forest
        scopes = {scope.path: scope.index for scope in trace.graph.scopes if scope.kind == "module"}
        for path in ("", "conv", "blocks.1.0"):
            row = forest.row(path)
            assert numbers["time"][row] == trace.metrics["scope_time_ns"][scopes[path]]
            assert numbers["self"][row] == trace.metrics["scope_self_ns"][scopes[path]]
        total = sum(
            took for took, phase in zip(trace.metrics["time_ns"][:], trace.graph.node_phase) if phase == 1
        )
        inside = sum(
            trace.metrics["time_ns"][n.index]
            for n in trace.graph.nodes
            if n.phase == "backward" and n.scope.index
        )
        assert numbers["backward"][0] == inside <= total
        assert numbers["flops"][forest.row("conv")] == sum(
            trace.metrics["flops"][n.index] for n in trace.graph.find("conv", phase="forward")
        )

    drive(model, steps, trace=trace)


def test_recorded_statistics_fill_performance_and_pictures(model: Net) -> None:
    with tv.record_torch_module_forward_stats(model, contents=True, maps=True):
        for _ in range(3):
            model(torch.randn(1, 1, 8, 8))

    async def steps(app: Any, pilot: Any) -> None:
        await press(app, pilot, "j", "2")
        assert "mean" in panel(app) and "1×1×8×8" in panel(app) and "slowest" in panel(app)
        await press(app, pilot, "8")
        assert "output of call 2 1×3×8×8" in panel(app) and "▀▀▀▀▀▀▀▀" in panel(app)
        await press(app, pilot, "4")
        assert "argument 0" in panel(app)

    drive(model, steps)


def test_a_live_trace_has_maps_and_gradients(model: Net, trace: tv.Trace) -> None:
    """The run is repeated for the pictures, and the norms are those of the gradients that it left."""
    whole = sum(float(p.grad.norm()) ** 2 for p in model.parameters() if p.grad is not None) ** 0.5

    async def alone(app: Any, pilot: Any) -> None:
        go_to(app, app.source.forest.row("conv"))
        await press(app, pilot, "8")
        text = panel(app)
        assert "output of call 0 2×3×8×8" in text and "▀▀▀▀▀▀▀▀" in text
        assert "ch 0" in text and "ch 2" in text
        app.sort_by("gradient")
        await settle(app, pilot)
        assert app.arrangement.sort == "gradient"
        assert app.source.forest.numbers["gradient"][0] == pytest.approx(whole, rel=1e-5)

    drive(trace, alone)

    async def with_model(app: Any, pilot: Any) -> None:
        go_to(app, app.source.forest.row("conv"))
        await press(app, pilot, "8")
        assert "output of call 0 2×3×8×8" in panel(app)
        await press(app, pilot, "v")
        app.screen.query_one("SelectionList").select("gradient")
        await press(app, pilot, "enter")
        assert "gradient" in app.tree_view.columns
        assert app.source.forest.numbers["gradient"][0] == pytest.approx(whole, rel=1e-5)

    drive(model, with_model, trace=trace)


def test_a_trace_from_a_file_says_that_it_keeps_no_tensors(trace: tv.Trace, tmp_path: Path) -> None:
    trace.save(tmp_path / "t.tvz")

    async def bare(app: Any, pilot: Any) -> None:
        await press(app, pilot, "7")
        assert "a file keeps no tensors" in " ".join(panel(app).split())
        await press(app, pilot, "8")
        assert "A file keeps no tensors" in " ".join(panel(app).split())

    drive(tv.load(tmp_path / "t.tvz"), bare)
    trace.with_metrics(trace.gradients()).save(tmp_path / "norms.tvz")

    async def with_norms(app: Any, pilot: Any) -> None:
        await press(app, pilot, "7")
        assert "norm of all" in panel(app) and "head.weight" in panel(app)

    drive(tv.load(tmp_path / "norms.tvz"), with_norms)


@pytest.mark.parametrize("to_none", [True, False], ids=["freed", "zeroed"])
def test_gradients_that_the_step_let_go_of_are_shown(model: Net, tmp_path: Path, to_none: bool) -> None:
    """A training step ends in ``zero_grad()``; what its backward gave is what one looks for."""
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    norms = []

    def step(x: torch.Tensor) -> None:
        model(x).sum().backward()
        norms.append(
            {name: float(p.grad.norm()) for name, p in model.named_parameters() if p.grad is not None}
        )
        optimizer.step()
        optimizer.zero_grad(set_to_none=to_none)

    trace = tv.trace(step, torch.randn(2, 1, 8, 8))
    file = tmp_path / "norms.tvz"
    one = norms[0]
    whole = sum(norm**2 for norm in one.values()) ** 0.5

    async def steps(app: Any, pilot: Any) -> None:
        found = {gradient.name: gradient.norm for gradient in app.source.gradients()}
        assert found == {name: pytest.approx(norm, rel=1e-4, abs=1e-5) for name, norm in one.items()}
        app.sort_by("gradient")
        await settle(app, pilot)
        assert app.source.forest.numbers["gradient"][0] == pytest.approx(whole, rel=1e-4)
        await press(app, pilot, "7")
        assert "norm of all" in panel(app) and "conv.weight" in panel(app)

    drive(trace, steps)
    drive(model, steps, trace=trace)
    trace.with_metrics(trace.gradients()).save(file)
    drive(tv.load(file), steps)


def test_gradients_that_were_let_go_of_and_cannot_be_found_again(model: Net) -> None:
    def step(x: torch.Tensor) -> None:
        model(x).sum().backward()
        model.zero_grad()

    trace = tv.trace(step, torch.randn(2, 1, 8, 8))
    with torch.no_grad():
        model.conv.weight.add_(1)

    async def steps(app: Any, pilot: Any) -> None:
        await press(app, pilot, "7")
        assert "changed since the trace" in " ".join(panel(app).split())

    drive(trace, steps)


def test_a_trace_that_has_gone_stale_says_so(model: Net, trace: tv.Trace) -> None:
    with torch.no_grad():
        model.conv.weight.add_(1)

    async def steps(app: Any, pilot: Any) -> None:
        await press(app, pilot, "8")
        assert "changed since the trace" in " ".join(panel(app).split())

    drive(trace, steps)


def test_a_run_says_what_it_was(trace: tv.Trace) -> None:
    trace.meta.update(script="train.py", traced="step 2")

    async def steps(app: Any, pilot: Any) -> None:
        text = panel(app)
        assert "train.py" in text and "step 2" in text and "wall time" in text

    drive(trace, steps)


def test_batch_sizes_on_demand(model: Net) -> None:
    trace = tv.trace(model, torch.randn(2, 1, 8, 8))

    async def steps(app: Any, pilot: Any) -> None:
        await press(app, pilot, "a")
        assert "largest" in panel(app) and "predicted from shapes" in " ".join(panel(app).split())

    drive(model, steps, trace=trace)

    async def without(app: Any, pilot: Any) -> None:
        await press(app, pilot, "a")
        assert "needs the model and a batch" in " ".join(panel(app).split())

    drive(trace, without)


def test_a_slow_panel_does_not_keep_the_words_of_another(model: Net, monkeypatch: pytest.MonkeyPatch) -> None:
    import threading

    from torch_vis.views.terminal.app import Panel

    going = threading.Event()

    def slow(source: Any, row: int, canvas: Any) -> None:
        going.wait(20)
        canvas.say("at last")

    async def steps(app: Any, pilot: Any) -> None:
        monkeypatch.setitem(PANELS, "activations", Panel("Maps", slow))
        await pilot.press("8")
        for _ in range(200):
            await pilot.pause(0.02)
            if "working" in screen(app):
                break
        assert "working …" in screen(app) and "Inheritance" not in screen(app)
        going.set()
        await settle(app, pilot)
        assert "at last" in screen(app)

    drive(model, steps)


def test_keys_for_newcomers_are_there_at_any_width(model: Net) -> None:
    async def steps(app: Any, pilot: Any) -> None:
        assert "? help" in screen(app).splitlines()[-1] and "q quit" in screen(app).splitlines()[-1]

    for width in (60, 80, 110):
        drive(model, steps, size=(width, 30))

    async def tabs(app: Any, pilot: Any) -> None:
        assert any("¹Details" in line and "⁹Diff" in line for line in screen(app).splitlines())

    for width in (130, 140, 150):
        drive(model, tabs, size=(width, 40))


def test_control_c_leaves(model: Net) -> None:
    async def steps(app: Any, pilot: Any) -> None:
        await press(app, pilot, "ctrl+c")
        assert not app.is_running

    drive(model, steps)


def test_flow_keeps_what_differs_and_leaves_gradients_out() -> None:
    model = torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.Linear(4, 4))

    def step() -> None:
        model(torch.ones(2, 4)).sum().backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)

    async def steps(app: Any, pilot: Any) -> None:
        go_to(app, app.source.forest.row("0"))
        await press(app, pilot, "4")
        below = panel(app).partition("┬")[2].partition("State")[0]
        assert below.count("▶") == 1 and "to 1 · addmm" in below, below
        assert "norm" not in below
        above = panel(app).partition("▼")[0]
        assert "constant" not in above

    drive(tv.trace(step), steps)


def test_two_of_a_kind_are_told_apart(model: Net) -> None:
    async def steps(app: Any, pilot: Any) -> None:
        await press(app, pilot, "9")
        assert "Net (first) against Net (second)" in panel(app)

    drive(model, steps, against=Net())


def test_two_models_side_by_side(model: Net) -> None:
    other = Net()
    other.head = torch.nn.Linear(8, 5)
    other.extra = torch.nn.ReLU()

    async def steps(app: Any, pilot: Any) -> None:
        await press(app, pilot, "9")
        text = panel(app)
        assert "≠ head" in text and "+ extra" in text and "only right" in text
        assert "conv" not in text.partition("Modules")[2]

    drive(model, steps, against=other)


def test_panels_by_tab_held_rows_and_histograms(model: Net) -> None:
    async def steps(app: Any, pilot: Any) -> None:
        await press(app, pilot, "tab")
        assert app.panel == "performance"
        await press(app, pilot, "shift+tab", "shift+tab")
        assert app.panel == "compare"
        await press(app, pilot, "1", "j", "space", "j", "j")
        assert "Conv2d" in panel(app).splitlines()[0]
        assert "kernel_size" in panel(app).partition("Hyperparameters")[2]
        assert "3×1×3×3" in panel(app) and "std" in panel(app)
        await press(app, pilot, "escape", "k", "k", "i")
        assert "elements" in panel(app) and "█" in panel(app)
        await press(app, pilot, "p")
        assert not app.query_one("#side").display
        await press(app, pilot, "2")
        assert app.query_one("#side").display
        await press(app, pilot, "right_square_bracket", "left_square_bracket")

    drive(model, steps)


def test_themes_help_palette_and_quit(model: Net) -> None:
    async def steps(app: Any, pilot: Any) -> None:
        assert app.current_theme.dark
        await press(app, pilot, "t")
        assert not app.current_theme.dark
        await press(app, pilot, "question_mark")
        assert "hold the row in the panel" in screen(app)
        await press(app, pilot, "escape", "ctrl+p")
        assert "Search for commands" in screen(app)
        await press(app, pilot, "escape")
        titles = [command.title for command in app.get_system_commands(app.screen)]
        assert "Panel: Memory" in titles and "Sort by params" in titles
        await press(app, pilot, "q")
        assert not app.is_running

    drive(model, steps, config=tv.ExplorerConfig(color_scheme="dark"))


@pytest.mark.parametrize("frozen", [False, True])
def test_the_collector_is_as_it_was(model: Net, frozen: bool) -> None:
    """Also where the program has told the collector before what stays."""
    import gc

    async def steps(app: Any, pilot: Any) -> None:
        assert gc.get_freeze_count()

    gc.unfreeze()
    try:
        if frozen:
            gc.freeze()
        drive(model, steps)
        assert bool(gc.get_freeze_count()) == frozen
    finally:
        gc.freeze()  # as between files


def test_the_clipboard(model: Net) -> None:
    async def steps(app: Any, pilot: Any) -> None:
        await press(app, pilot, "j", "y")
        assert app.clipboard == "conv"
        await press(app, pilot, "Y")
        assert app.clipboard.startswith("Conv2d")

    drive(model, steps)


def test_the_panel_is_saved_with_the_tree(model: Net, tmp_path: Path) -> None:
    other = Net()
    other.head = torch.nn.Linear(8, 5)

    async def steps(app: Any, pilot: Any) -> None:
        await press(app, pilot, "9")
        for ending in ("txt", "json", "html"):
            app.save(str(tmp_path / f"both.{ending}"))
        await press(app, pilot, "p")
        app.save(str(tmp_path / "alone.json"))

    drive(model, steps, against=other)
    for ending in ("txt", "html"):
        assert "≠ head" in (tmp_path / f"both.{ending}").read_text()
    found = json.loads((tmp_path / "both.json").read_text())
    assert found["panel"]["title"] == "Compare" and any("≠ head" in line for line in found["panel"]["lines"])
    assert "panel" not in json.loads((tmp_path / "alone.json").read_text())


def test_a_picture_has_no_messages_over_it(model: Net, tmp_path: Path) -> None:
    async def steps(app: Any, pilot: Any) -> None:
        app.notify("something else", title="A toast", timeout=600)
        await settle(app, pilot)
        assert "A toast" in screen(app)
        app.save(str(tmp_path / "view.svg"))
        await settle(app, pilot)
        assert "A toast" in screen(app)  # and they are back afterwards

    drive(model, steps, toasts=True)
    picture = (tmp_path / "view.svg").read_text()
    assert "Conv2d" in picture and "toast" not in picture


def test_what_is_shown_can_be_saved(model: Net, tmp_path: Path) -> None:
    async def steps(app: Any, pilot: Any) -> None:
        await press(app, pilot, "C", "s", "slash")
        assert app.screen.query_one("Input").value.endswith("/")
        app.screen.query_one("Input").value = str(tmp_path / "view.txt")
        await press(app, pilot, "enter")
        for ending in ("json", "html", "svg"):
            app.save(str(tmp_path / f"view.{ending}"))
        app.save(str(tmp_path / "view.docx"))
        await settle(app, pilot)
        assert any(
            "did you mean" in note.message or "there are" in note.message for note in app._notifications
        )

    drive(model, steps)
    text = (tmp_path / "view.txt").read_text()
    assert text.splitlines()[0].startswith("Net · 292 parameters")
    table, _, side = text.partition("\n\nDetails\n")
    assert [
        line.split()[0] for line in table.splitlines()[2:]
    ] == "module Net conv blocks norm head tail".split()
    assert "Inheritance" in side
    data = json.loads((tmp_path / "view.json").read_text())
    assert [row["path"] for row in data["rows"]] == ["", "conv", "blocks", "norm", "head", "tail"]
    assert data["rows"][0]["params"] == 292
    page = (tmp_path / "view.html").read_text()
    assert "<td" in page and "Conv2d" in page
    ElementTree.fromstring((tmp_path / "view.svg").read_text())
    assert not (tmp_path / "view.docx").exists()


def test_the_configuration_does_what_it_says(model: Net) -> None:
    async def deep(app: Any, pilot: Any) -> None:
        await press(app, pilot, "E")
        assert max(app.source.forest.depth[row] for row in app.tree_view.rows) == 1

    drive(model, deep, config=tv.ExplorerConfig(max_depth=1))

    async def compact(app: Any, pilot: Any) -> None:
        assert not app.query_one("#side").display and not app.tree_view.bars
        assert app.tree_view.columns == ["params", "params_share", "bytes"]

    drive(model, compact, config=tv.ExplorerConfig(compact_view=True))

    async def light(app: Any, pilot: Any) -> None:
        assert not app.current_theme.dark

    drive(model, light, config=tv.ExplorerConfig(color_scheme="light"))

    async def nord(app: Any, pilot: Any) -> None:
        assert app.theme == "nord"

    drive(model, nord, config=tv.ExplorerConfig(color_scheme="nord"))
    with pytest.raises(tv.errors.NoMatch, match="no color scheme 'drak'; did you mean 'dark'"):
        tv.ExplorerConfig(color_scheme="drak")


@pytest.mark.parametrize("size", [(20, 5), (60, 15), (400, 100)])
def test_any_size_of_terminal(model: Net, trace: tv.Trace, size: tuple[int, int]) -> None:
    async def steps(app: Any, pilot: Any) -> None:
        for number in range(1, 10):
            await press(app, pilot, str(number), "j")
        await pilot.resize_terminal(90, 30)
        await settle(app, pilot)
        assert "Net" in screen(app)

    drive(model, steps, trace=trace, size=size)


EXPECTED = Path(__file__).parent / "screen.txt"


def test_the_screen_is_the_one_that_was_looked_at(model: Net) -> None:
    """A snapshot. To renew it after a change of looks: delete the file, run, look at what it says, commit it."""
    torch.manual_seed(0)
    shots: list[str] = []

    async def steps(app: Any, pilot: Any) -> None:
        shots.append(timeless(screen(app)))
        await press(app, pilot, "E", "z", "3")
        shots.append(timeless(screen(app)))

    drive(Net(), steps, size=(140, 30))
    found = "\n════\n".join(shots) + "\n"
    if not EXPECTED.exists():
        EXPECTED.write_text(found)
        pytest.fail(f"{EXPECTED.name} was not there; it has been written: look at it, and commit it")
    assert found == EXPECTED.read_text()


@pytest.mark.parametrize("empty", [torch.nn.Module(), torch.nn.Sequential(), {}])
def test_nothing_to_see(empty: Any) -> None:
    async def steps(app: Any, pilot: Any) -> None:
        for number in range(1, 10):
            await press(app, pilot, str(number), "j", "enter")
        assert screen(app)

    drive(empty, steps)


def test_an_empty_trace() -> None:
    async def steps(app: Any, pilot: Any) -> None:
        for number in range(1, 10):
            await press(app, pilot, str(number), "j")
        assert "could not be filled" not in panel(app)

    drive(tv.trace(lambda: None), steps)


def test_quitting_while_a_panel_is_being_filled(model: Net, monkeypatch: pytest.MonkeyPatch) -> None:
    """What comes too late finds no screen, and says nothing of that."""
    import threading

    from torch_vis.views.terminal.app import Panel

    begun, going = threading.Event(), threading.Event()

    def slow(source: Any, row: int, canvas: Any) -> None:
        begun.set()
        going.wait(20)

    async def steps(app: Any, pilot: Any) -> None:
        monkeypatch.setitem(PANELS, "activations", Panel("Maps", slow))
        await pilot.press("8")
        while not begun.is_set():
            await pilot.pause(0.01)
        await app.query_one("#body").remove()
        going.set()

    drive(model, steps)  # which raises what a worker raised


def test_an_answer_that_comes_late_is_not_shown(model: Net, monkeypatch: pytest.MonkeyPatch) -> None:
    """A thread cannot be stopped; what the first of two requests says after the second is not what was asked last."""
    import threading

    begun, going, said = threading.Event(), threading.Event(), threading.Event()
    details = PANELS["details"]

    def first_is_slow(source: Any, row: int, canvas: Any) -> None:
        if not canvas.histograms:
            begun.set()
            going.wait(20)
        details.draw(source, row, canvas)

    async def steps(app: Any, pilot: Any) -> None:
        plain = panel(app)
        assert "█" not in plain
        monkeypatch.setitem(PANELS, "details", details._replace(draw=first_is_slow))
        from_worker = app.from_worker
        monkeypatch.setattr(app, "from_worker", lambda *args: (from_worker(*args), said.set()))
        app.redraw_panel()
        while not begun.is_set():
            await pilot.pause(0.01)
        await press(app, pilot, "i")
        assert "█" in panel(app)
        said.clear()
        going.set()
        while not said.is_set():
            await pilot.pause(0.01)
        await settle(app, pilot)
        assert "█" in panel(app)

    drive(torch.nn.Linear(3, 4), steps)


def test_folding_twice_is_not_folding_once(model: Net) -> None:
    async def steps(app: Any, pilot: Any) -> None:
        before = app.arrangement.folding
        app.action_fold()
        app.action_fold()
        await settle(app, pilot)
        assert app.arrangement.folding == before

    drive(model, steps)
