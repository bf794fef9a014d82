"""Every renderer on every graph: Plotly, Matplotlib, SVG, Graphviz and Mermaid, read by the format's own reader."""

from __future__ import annotations

import json
import pickle
import re
import shutil
import subprocess
import xml.etree.ElementTree as ET
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

import torch_vis as tv
from tests.kit.geometry import line_crosses, overlapping
from tests.kit.graphs import empty_graph, one_node_graph
from tests.kit.hostile import hostile_model
from tests.kit.traced import NAMES, traced
from tests.zoo import ZOO
from torch_vis.errors import MissingExtra
from torch_vis.graph import Metrics
from torch_vis.views.figure.options import FigureOptions
from torch_vis.views.figure.scene import scene

plt = pytest.importorskip("matplotlib.pyplot", reason="matplotlib is not installed")
go = pytest.importorskip("plotly.graph_objects", reason="plotly is not installed")
SVG = "{http://www.w3.org/2000/svg}"


@pytest.fixture(autouse=True)
def no_figure_stays_open() -> Any:
    plt.switch_backend("Agg")
    yield
    plt.close("all")


def empty_trace() -> tv.Trace:
    return tv.Trace(empty_graph(), Metrics())


# ---------------------------------------------------------------- SVG


@pytest.mark.parametrize("name", NAMES)
def test_svg_of_the_zoo_is_well_formed(name: str) -> None:
    t = traced(name)
    root = ET.fromstring(str(t.figure("svg")))
    boxes = [group for group in root.iter(f"{SVG}g") if group.find(f"{SVG}text") is not None]
    assert len(boxes) >= (1 if len(t.graph) else 0)


def test_svg_shows_names_as_text() -> None:
    t = tv.trace(hostile_model(), torch.ones(1, 4), backward=True)
    root = ET.fromstring(str(t.figure("svg")))
    assert {element.tag.removeprefix(SVG) for element in root.iter()} <= {
        *("svg", "rect", "text", "g", "title", "path", "polygon", "defs", "linearGradient", "stop")
    }
    words = " ".join(text.text or "" for text in root.iter(f"{SVG}text"))
    assert "<img src=x on" in words and "層" in words
    tips = [tip.text or "" for tip in root.iter(f"{SVG}title")]
    assert any("operation: aten::sum" in tip for tip in tips)


def test_svg_with_a_colour_scale() -> None:
    text = str(tv.trace(nn.Linear(3, 2), torch.ones(1, 3)).figure("svg", color="memory"))
    assert "linearGradient" in text and "memory allocated of the operations" in text


# ---------------------------------------------------------------- Plotly


@pytest.mark.parametrize("name", NAMES)
def test_plotly_draws_the_zoo(name: str) -> None:
    figure = traced(name).figure("plotly")
    assert isinstance(figure, go.Figure)
    json.loads(figure.to_json())


def rectangles(figure: Any, name: str) -> list[tuple[float, float, float, float]]:
    """The shapes of a name, from the coordinates of the traces: runs of points between gaps."""
    found = []
    for points in runs(figure, name):
        xs, ys = [x for x, _ in points], [y for _, y in points]
        found.append((min(xs), min(ys), max(xs), max(ys)))
    return found


def runs(figure: Any, name: str) -> list[list[tuple[float, float]]]:
    found: list[list[tuple[float, float]]] = []
    for trace in figure.data:
        if trace.name == name:
            found.append([])
            for x, y in zip(trace.x, trace.y):
                if x is None:
                    found.append([])
                else:
                    found[-1].append((float(x), float(y)))
    return [run for run in found if run]


@pytest.fixture(scope="module")
def bert() -> tv.Trace:
    model, args, kwargs = ZOO["bert"].make(full=True)
    return tv.trace(model, *args, kwargs=kwargs, backward=True, hold=False)


@pytest.mark.parametrize("depth", ["auto", 1, 3, None])
def test_bert_base_in_plotly_has_no_overlap_and_no_edge_through_a_node(bert: tv.Trace, depth: Any) -> None:
    figure = bert.figure("plotly", depth=depth)
    boxes, edges = rectangles(figure, "boxes"), runs(figure, "edges")
    assert len(boxes) > 10 and len(edges) >= len(boxes) // 2
    assert overlapping(boxes) == []
    through = [(edge[0], box) for edge in edges for box in boxes if line_crosses(edge, box)]
    assert through == []


def test_plotly_says_every_fact_on_hover(bert: tv.Trace) -> None:
    figure = bert.figure("plotly", color="time")
    hovers = [text for trace in figure.data if trace.name == "operations" for text in trace.hovertext]
    attention = next(text for text in hovers if "query" in text)
    for fact in (
        "module: encoder.layer.0.attention.self.query",
        "class: Linear",
        "12 alike",
        "time:",
        "allocated:",
    ):
        assert fact in attention
    lines = [text for trace in figure.data if trace.name == "modules and edges" for text in trace.hovertext]
    assert any("→" in text and "f32[" in text for text in lines)


def test_a_plotly_figure_is_the_users(tmp_path: Path) -> None:
    figure = tv.trace(nn.Linear(3, 2), torch.ones(1, 3)).figure()
    figure.update_layout(title="mine", width=1200, height=800)
    figure.write_html(tmp_path / "f.html")
    assert "mine" in (tmp_path / "f.html").read_text()


def test_plotly_takes_names_as_text() -> None:
    figure = tv.trace(hostile_model(), torch.ones(1, 4)).figure("plotly")
    for trace in figure.data:
        for text in [*(trace.text or ()), *(trace.hovertext or ())]:
            assert "<img" not in text


# ---------------------------------------------------------------- Matplotlib


@pytest.mark.parametrize("name", NAMES[::3])
def test_matplotlib_draws_the_zoo(name: str, tmp_path: Path) -> None:
    figure = traced(name).figure("matplotlib")
    figure.savefig(tmp_path / "f.svg")
    ET.parse(tmp_path / "f.svg")


def test_matplotlib_draws_into_the_current_figure(tmp_path: Path) -> None:
    figure = tv.trace(nn.Linear(3, 2), torch.ones(1, 3), backward=True).figure("matplotlib", color="time")
    assert plt.gcf() is figure
    plt.title("PyTorch Computational Graph")
    plt.tight_layout()
    plt.savefig(tmp_path / "f.png", dpi=60, bbox_inches="tight")
    plt.savefig(tmp_path / "f.pdf")
    assert (tmp_path / "f.png").read_bytes().startswith(b"\x89PNG") and (
        tmp_path / "f.pdf"
    ).stat().st_size > 1000


@pytest.mark.parametrize("color", ["type", "time"])
def test_words_of_matplotlib_stay_in_their_boxes_at_any_size(color: str) -> None:
    """Whatever size a figure is given, with its layout tight too, and in a copy; sizes set by hand stay."""
    figure = tv.trace(nn.Linear(3, 2), torch.ones(1, 3)).figure("matplotlib", color=color)
    axes = figure.axes[0]
    size = figure.get_size_inches()

    def widths() -> list[float]:
        """Of all words, in the units of the drawing."""
        figure.canvas.draw()
        boxes = [text.get_window_extent().transformed(axes.transData.inverted()) for text in axes.texts]
        return [box.width for box in boxes]

    before = widths()
    for factors in ((0.5, 0.5), (2, 2), (1, 0.4), (1, 1)):
        figure.set_size_inches(size * factors)
        # letters are placed by whole pixels, which few of them are at the smallest size
        assert widths() == pytest.approx(before, rel=0.15, abs=3)
    axes.texts[0].set_fontsize(30)
    figure.set_size_inches(size / 2)
    figure.tight_layout()
    widths()
    assert axes.texts[0].get_fontsize() == 30
    copy = pickle.loads(pickle.dumps(figure))
    copy.set_size_inches(size)
    copy.canvas.draw()
    assert axes.texts[1].get_fontsize() < copy.axes[0].texts[1].get_fontsize() == pytest.approx(10, abs=2)


def test_saving_a_picture_opens_no_figure(tmp_path: Path) -> None:
    t = tv.trace(nn.Linear(3, 2), torch.ones(1, 3))
    for ending, start in ((".png", b"\x89PNG"), (".pdf", b"%PDF"), (".svg", b"<svg")):
        t.save(tmp_path / f"f{ending}")
        assert (tmp_path / f"f{ending}").read_bytes().startswith(start)
    assert plt.get_fignums() == []


def test_matplotlib_takes_names_as_text(tmp_path: Path) -> None:
    figure = tv.trace(hostile_model(), torch.ones(1, 4)).figure("matplotlib")
    figure.savefig(tmp_path / "f.svg")  # a dollar would be read as mathematics, and \frac fail
    ET.parse(tmp_path / "f.svg")


# ---------------------------------------------------------------- Graphviz

needs_dot = pytest.mark.skipif(shutil.which("dot") is None, reason="graphviz's programs are not installed")


@needs_dot
def test_graphviz_reads_the_whole_zoo(tmp_path: Path) -> None:
    for name in NAMES:
        traced(name).save(tmp_path / f"{name}.dot")
    done = subprocess.run(
        ["nop", *sorted(tmp_path.glob("*.dot"))], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0 and not done.stderr, done.stderr
    assert done.stdout.count("digraph") == len(NAMES)


@needs_dot
@pytest.mark.parametrize("name", ["bert", "resnet50", "adamw_foreach_step"])
def test_graphviz_lays_out_what_is_drawn(name: str) -> None:
    source = traced(name).figure("graphviz")
    root = ET.fromstring(source.pipe(format="svg"))
    nodes = [g for g in root.iter(f"{SVG}g") if g.get("class") == "node"]
    drawn = [g for g in nodes if g.findtext(f"{SVG}title") != "legend"]
    lines = [g for g in root.iter(f"{SVG}g") if g.get("class") == "edge"]
    boxes = str(traced(name).figure("svg"))
    assert len(drawn) == source.source.count("fillcolor=") - source.source.count("; fillcolor=")
    assert len(lines) == boxes.count("<polygon")


@needs_dot
def test_graphviz_says_what_its_colours_mean() -> None:
    trace = tv.trace(nn.Sequential(nn.Linear(4, 4), nn.ReLU()), torch.ones(1, 4))
    assert "matrix product" in trace.figure("graphviz").source
    heat = trace.figure("graphviz", color="flops").source
    assert "FLOPs of the operations in a box" in heat
    assert "legend" not in trace.figure("graphviz", legend=False).source


def test_graphviz_takes_names_as_text() -> None:
    svg = tv.trace(hostile_model(), torch.ones(1, 4)).figure("graphviz").pipe(format="svg").decode()
    assert "&lt;img" in svg and "<img" not in svg
    ET.fromstring(svg)


# ---------------------------------------------------------------- nothing to draw, nothing to draw with


@pytest.mark.parametrize("renderer", ["plotly", "matplotlib", "graphviz", "svg"])
def test_an_empty_run_is_an_empty_picture(renderer: str) -> None:
    assert empty_trace().figure(renderer) is not None
    assert tv.Trace(one_node_graph(), Metrics()).figure(renderer) is not None


@pytest.mark.parametrize(
    ("renderer", "package"), [("plotly", "plotly"), ("matplotlib", "matplotlib"), ("graphviz", "graphviz")]
)
def test_a_missing_library_names_the_line_that_installs_it(
    renderer: str, package: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in [package, f"{package}.pyplot", f"{package}.graph_objects"]:
        monkeypatch.setitem(__import__("sys").modules, name, None)
    with pytest.raises(MissingExtra, match=rf"pip install 'torch-vis\[{package}\]'"):
        tv.trace(nn.Tanh(), torch.ones(2)).figure(renderer)
    with pytest.raises(ImportError):
        tv.trace(nn.Tanh(), torch.ones(2)).figure(renderer)


# ---------------------------------------------------------------- as a person wants it


@pytest.fixture(scope="module")
def stack() -> tv.Trace:
    layers = [
        torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.Dropout(), torch.nn.ReLU()) for _ in range(2)
    ]
    model = torch.nn.Sequential()
    model.add_module("stem", torch.nn.Linear(4, 4))
    model.add_module("body", torch.nn.Sequential(*layers, torch.nn.Tanh()))
    return tv.trace(model, torch.ones(2, 4), backward=True)


@pytest.mark.parametrize("renderer", ["svg", "matplotlib", "plotly", "graphviz"])
def test_names_colours_and_rims_are_the_users_in_every_renderer(stack: tv.Trace, renderer: str) -> None:
    options: dict[str, Any] = {"labels": {"stem": "Projection A"}, "colors": {torch.nn.ReLU: "#123456"}}
    figure = stack.figure(renderer, depth=None, highlight="Tanh", title="My net", direction="LR", **options)
    if renderer == "matplotlib":
        from matplotlib.colors import to_rgba

        texts = {text.get_text() for text in figure.axes[0].texts}
        edges = {patch.get_edgecolor() for patch in figure.axes[0].patches}
        fills = {patch.get_facecolor() for patch in figure.axes[0].patches}
        assert {"Projection A", "My net"} <= texts
        assert to_rgba("#d1480f") in edges and any(fill[:3] != (1, 1, 1) for fill in fills)
        return
    text = {"svg": str, "plotly": lambda made: made.to_json(), "graphviz": lambda made: made.source}[
        renderer
    ](figure)
    assert "Projection A" in text and "#d1480f" in text
    assert renderer == "plotly" or "My net" in text


def test_from_left_to_right_nothing_overlaps(stack: tv.Trace) -> None:
    drawn = scene(stack, FigureOptions(depth=None, direction="LR"))
    assert drawn.width > drawn.height, "it is read sideways"
    boxes = drawn.boxes
    for index, a in enumerate(boxes):
        for b in boxes[index + 1 :]:
            apart = (
                a.x + a.width <= b.x or b.x + b.width <= a.x or a.y + a.height <= b.y or b.y + b.height <= a.y
            )
            assert apart, (a.title, b.title)
    for wire in drawn.wires:
        first, last = wire.parts[0][0], wire.parts[-1][-1]
        way = -1 if stack.graph.nodes and wire.source.item.phase == 1 else 1
        assert (last[0] - first[0]) * way > 0, "forward runs to the right, backward to the left"


def test_what_is_hidden_is_bridged_and_what_is_meant_alone_is_there(stack: tv.Trace) -> None:
    def titles(**options: Any) -> list[str]:
        drawn = scene(stack, FigureOptions(depth=None, phase="forward", **options))
        assert all(wire.source in drawn.boxes and wire.target in drawn.boxes for wire in drawn.wires)
        return [box.title for box in drawn.boxes] + [frame.title for frame in drawn.frames]

    assert any("Dropout" in title for title in titles())
    hidden = scene(stack, FigureOptions(depth=None, phase="forward", hide="Dropout"))
    assert not any("ropout" in box.title for box in hidden.boxes)
    ends = {(wire.source.title, wire.target.title) for wire in hidden.wires}
    assert any(a.startswith(("linear", "addmm", "Linear")) and "elu" in b.lower() for a, b in ends), ends
    only = titles(only="body")
    assert not any("stem" in title for title in only) and any(
        "Tanh" in title or "tanh" in title for title in only
    )
    closed = titles(collapse=lambda path, cls: path == "body")
    assert "body" in closed and not any("Tanh" in title for title in closed)
    assert not any("4" in box.subtitle for box in scene(stack, FigureOptions(shapes=False)).boxes)
    assert not scene(stack, FigureOptions(legend=False)).legend


def test_a_choice_that_leaves_nothing_is_refused(stack: tv.Trace) -> None:
    for renderer in ("svg", "matplotlib"):
        with pytest.raises(
            tv.errors.UsageError, match=r"nothing is left to draw with hide='body\*\*' and only='body'"
        ):
            stack.figure(renderer, hide="body**", only="body")
    with pytest.raises(tv.errors.UsageError, match=r"nothing is left to draw with hide='\*\*'"):
        stack.figure("svg", hide="**")


def test_a_choice_that_names_nothing_is_refused(stack: tv.Trace) -> None:
    with pytest.raises(tv.errors.NoMatch, match=r"Dropuot.*did you mean 'Dropout'"):
        stack.figure("svg", hide="Dropuot")
    with pytest.raises(tv.errors.UsageError, match="no colour"):
        stack.figure("svg", colors={"ReLU": "reddish"})
    with pytest.raises(tv.errors.NoMatch, match="direction"):
        stack.figure("svg", direction="RL")  # type: ignore[arg-type]


def test_boxes_are_coloured_by_a_column_of_ones_own(stack: tv.Trace) -> None:
    own = np.arange(len(stack.graph), dtype=np.float64)
    t = stack.with_metrics(tv.types.Column("my_column", own))
    drawn = scene(t, FigureOptions(depth=None, phase="forward", color="my_column"))
    amounts = [box.amount for box in drawn.boxes if box.amount is not None]
    assert amounts and len({box.fill for box in drawn.boxes}) > 3
    with pytest.raises(tv.errors.NoMatch, match="my_colum"):
        t.figure("svg", color="my_colum")


def test_a_graphviz_figure_is_the_users(stack: tv.Trace) -> None:
    figure = stack.figure("graphviz", direction="LR")
    figure.graph_attr["ranksep"] = "2"
    figure.node("mine", label="added")
    assert "ranksep=2" in figure.source and "rankdir=LR" in figure.source and "mine" in figure.source


def test_graphviz_reads_names_of_any_length(tmp_path: Path) -> None:
    name = '&"é\\' * 20_000
    kind = type(name, (torch.nn.Module,), {"forward": lambda self, x: x * 2})
    tv.trace(kind(), torch.ones(2)).save(tmp_path / "long.dot")
    text = (tmp_path / "long.dot").read_text(encoding="utf-8")
    assert all(len(string.encode()) < 16_384 for string in re.findall(r'"(?:[^"\\]|\\.)*"', text))
