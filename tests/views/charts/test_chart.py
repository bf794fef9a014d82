"""Charts as a reader sees them: what is written along the axes, and that nothing is written over something else."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator
from typing import Any

import matplotlib.pyplot
import matplotlib.text
import pytest

from tests.kit.labels import written
from torch_vis.errors import NoMatch
from torch_vis.views.charts.chart import QUIET, Axis, Chart, Series, draw
from torch_vis.views.charts.labels import families, named_ticks

LAYERS = [f"model.h.{block}.{part}" for block in range(24) for part in ("ln", "attn", "mlp")]
STACK = ["model.embed", *LAYERS, "model.head"]


@pytest.fixture(autouse=True)
def figures_let_go() -> Iterator[None]:
    yield
    matplotlib.pyplot.close("all")


def title_of(figure: Any) -> str:
    return figure.layout.title.text if hasattr(figure, "layout") else figure.axes[0].get_title(loc="left")


@pytest.mark.parametrize("renderer", ["plotly", "matplotlib"])
def test_places_are_named(renderer: str) -> None:
    names = ["stem.conv", "stem.norm", "head"]
    line = Series("gradient", [0, 1, 2], [1e-3, 2e-3, 1e-2], names)
    chart = Chart("lines", "Flow", Axis("layer", names=names), Axis("size", log=True), [line])
    figure = draw(chart, renderer)
    assert written(figure, "x") == names and title_of(figure) == "Flow"
    assert written(figure, "y") == ["0.001", "0.002", "0.005", "0.01"]


def test_figures_of_bars_below_zero_stand_clear_of_the_names() -> None:
    chart = Chart("bars", "T", Axis(""), Axis("change"), [Series("c", ["time", "memory"], [-40.0, 20.0])])
    figure = draw(chart, "matplotlib")
    figure.draw_without_rendering()
    (axes,) = figure.axes
    names = [label.get_window_extent() for label in axes.get_yticklabels()]
    assert [text.get_text() for text in axes.texts] == ["−40", "20"]
    for text, end in zip(axes.texts, (0, 20)):
        box = text.get_window_extent()
        assert not any(box.overlaps(name) for name in names)
        assert box.x0 > axes.transData.transform((end, 0))[0]


def test_of_many_names_the_blocks_are_written_and_none_over_another() -> None:
    places, labels = named_ticks(STACK)
    assert labels[:3] == ["h.0", "h.1", "h.2"] and labels[-2:] == ["h.23", "head"]
    apart = [after - before for before, after in itertools.pairwise(places)]
    assert min(apart) * 26 >= len(STACK)
    assert all(STACK[int(place)].startswith(f"model.{label}") for place, label in zip(places, labels))


@pytest.mark.parametrize("count", [33, 100, 1000, 5000])
def test_names_without_numbers_are_thinned(count: int) -> None:
    places, labels = named_ticks([f"layer_{chr(97 + place % 26)}{place}x" for place in range(count)])
    assert 10 < len(places) <= 27 and places[0] == 0 and len(set(labels)) == len(labels)


def test_layers_of_a_kind_are_one_line() -> None:
    found = families(STACK, most=8)
    assert found is not None and set(found.values()) == {"ln", "attn", "mlp", "others"}
    assert families(STACK, most=2) is None and families(STACK[:9], most=8) is None
    both = families(
        [f"{side}.{n}.mlp" for side in ("encoder", "decoder") for n in range(20)] + ["head"] * 2, most=8
    )
    assert both is not None and {"encoder.*.mlp", "decoder.*.mlp"} < set(both.values())


@pytest.mark.parametrize("renderer", ["plotly", "matplotlib"])
@pytest.mark.parametrize("kind", ["bars", "dots"])
def test_rows_stay_apart_where_their_labels_are_cut_short_alike(renderer: str, kind: Any) -> None:
    labels = [f"void kernel<{'float, ' * 20}{number}{', long' * 20}>" for number in range(3)]
    chart = Chart(kind, "T", Axis("kernel"), Axis("time", "ns"), [Series("time", labels, [3e6, 2e6, 1e6])])
    figure = draw(chart, renderer)
    assert len(written(figure, "y")) == 3 and all(len(label) < 70 for label in written(figure, "y"))
    if renderer == "plotly":
        assert [*figure.data[0].y] == [0, 1, 2] and labels[1].split("<")[0] in figure.data[0].hovertext[1]


@pytest.mark.parametrize("renderer", ["plotly", "matplotlib"])
def test_bars_of_one_series_have_their_figures_beside_them(renderer: str) -> None:
    chart = Chart("bars", "T", Axis(""), Axis("time", "ns"), [Series("t", ["a", "b"], [2_000_000, 500])])
    figure = draw(chart, renderer)
    beside = (
        [*figure.data[0].text] if renderer == "plotly" else [text.get_text() for text in figure.axes[0].texts]
    )
    assert beside == ["2.00 ms", "500 ns"]


def sums_in(figure: Any) -> dict[str, float]:
    """The texts at the ends of bars, with where they begin along the axis of figures."""
    if hasattr(figure, "layout"):
        (sums,) = (drawn for drawn in figure.data if drawn.type == "scatter")
        assert sums.mode == "text" and sums.textposition == "middle right" and not sums.showlegend
        return {text.strip(): end for text, end in zip(sums.text, sums.x)}
    return {text.get_text(): text.xy[0] for text in figure.axes[0].texts}


STACKED = [
    Series("forward", ["stem", "head"], [2_000_000, 500]),
    Series("backward", ["head", "stem"], [1_000, 3_000_000]),
    Series("optimizer", ["loss"], [700]),
]


@pytest.mark.parametrize("renderer", ["plotly", "matplotlib"])
def test_stacked_bars_say_what_they_come_to(renderer: str) -> None:
    chart = Chart("bars", "T", Axis(""), Axis("time", "ns"), STACKED)
    found = sums_in(draw(chart, renderer))
    assert found == {"5.00 ms": 5_000_000, "1.50 µs": 1_500, "700 ns": 700}


@pytest.mark.parametrize("renderer", ["plotly", "matplotlib"])
@pytest.mark.parametrize(
    "chart",
    [
        Chart("bars", "T", Axis(""), Axis(""), [Series("a", ["x"], [3.0]), Series("b", ["x"], [-1.0])]),
        Chart("bars", "T", Axis(""), Axis(""), [Series("a", ["x"], [3.0]), Series("b", ["x"], [math.nan])]),
        Chart("bars", "T", Axis(""), Axis(""), [Series("a", ["x"], [3.0], low=[2.0], high=[4.0])] * 2),
    ],
    ids=["below zero", "not known", "ranges"],
)
def test_what_adds_up_to_nothing_has_no_sum(renderer: str, chart: Chart) -> None:
    figure = draw(chart, renderer)
    texts = (
        [drawn for drawn in figure.data if drawn.type == "scatter"]
        if renderer == "plotly"
        else figure.axes[0].texts
    )
    assert not list(texts)


def texts_in(figure: Any) -> list[str]:
    notes = figure.layout.annotations if hasattr(figure, "layout") else figure.axes[0].texts
    return [note.text if hasattr(note, "text") else note.get_text() for note in notes]


@pytest.mark.parametrize("renderer", ["plotly", "matplotlib"])
def test_dots_have_their_figures_beside_them(renderer: str) -> None:
    chart = Chart("dots", "T", Axis(""), Axis("time", "ns"), STACKED)
    figure = draw(chart, renderer)
    each = [(label, number) for series in STACKED for label, number in zip(series.x, series.y)]
    assert sorted(texts_in(figure)) == sorted(chart.y.text(number) for _, number in each)
    if renderer == "matplotlib":
        figure.canvas.draw()
        (axes,) = figure.axes
        boxes = [text.get_window_extent() for text in axes.texts]
        assert all(axes.bbox.x1 < box.x0 and box.x1 <= figure.bbox.x1 for box in boxes)
        assert not any(one.overlaps(two) for one, two in itertools.combinations(boxes, 2))
        rows = [axes.transData.transform((0, place))[1] for place in range(3)]
        labels = [label.get_text() for label in axes.get_yticklabels()]
        for text, box, (label, _) in zip(axes.texts, boxes, each):
            middle = (box.y0 + box.y1) / 2
            assert min(range(3), key=lambda row: abs(rows[row] - middle)) == labels.index(label), text


@pytest.mark.parametrize("renderer", ["plotly", "matplotlib"])
def test_rows_with_many_dots_have_no_figures(renderer: str) -> None:
    heads = Series("heads", ["layer"] * 3, [1.0, 2.0, 3.0])
    assert texts_in(draw(Chart("dots", "T", Axis(""), Axis("weight"), [heads]), renderer)) == []


@pytest.mark.parametrize("renderer", ["plotly", "matplotlib"])
def test_stages_are_named_above_what_is_drawn(renderer: str) -> None:
    area = Series("held", range(100), [float(place) for place in range(100)])
    stages = [(0.0, "forward"), (60.0, "backward"), (99.0, "optimizer")]
    guide = Series("peak", [0, 99], [99.0, 99.0])
    figure = draw(Chart("areas", "T", Axis("", "count"), Axis(""), [area], [guide], stages), renderer)
    assert [text for text in texts_in(figure) if text] == ["forward", "backward"]  # no room for the last
    if renderer == "plotly":
        assert [shape.x0 for shape in figure.layout.shapes] == [60, 99]
        return
    figure.canvas.draw()
    (axes,) = figure.axes
    top = axes.transData.transform((0, 99))[1]
    for text in axes.texts:
        assert not text.get_text() or text.get_window_extent().y0 > top


def test_sums_lie_on_nothing_else_and_within_the_figure() -> None:
    parts = [
        Series(f"part {n}", [f"row {m}" for m in range(12)], [m * 1e6 for m in range(12)]) for n in range(3)
    ]
    figure = draw(Chart("bars", "A title", Axis("row"), Axis("time", "ns"), parts), "matplotlib")
    figure.canvas.draw()
    (axes,) = figure.axes
    texts = [text.get_window_extent() for text in axes.texts]
    others = [bar.get_window_extent() for bar in axes.patches if bar.get_width()]
    others += [
        axes.get_legend().get_window_extent(),
        *(label.get_window_extent() for label in axes.get_yticklabels()),
    ]
    assert len(texts) == 12 and all(box.x1 <= figure.bbox.x1 for box in texts)
    assert not any(box.overlaps(other) for box in texts for other in others)
    assert not any(one.overlaps(two) for one, two in itertools.combinations(texts, 2))


def test_a_hover_over_a_part_of_a_bar_says_of_how_much() -> None:
    forward, *_ = draw(Chart("bars", "T", Axis(""), Axis("time", "ns"), STACKED)).data
    assert forward.hovertext[0] == "stem<br>2.00 ms of 5.00 ms"


@pytest.mark.parametrize("renderer", ["plotly", "matplotlib"])
def test_a_line_over_areas_is_not_hidden_by_them(renderer: str) -> None:
    area = Series("device", [0, 1, 2], [10, 20, 30])
    host = Series("host", [0, 1, 2], [5, 10, 15])
    figure = draw(Chart("areas", "T", Axis(""), Axis("", "ns"), [area], [host]), renderer)
    if renderer == "plotly":
        assert [drawn.name for drawn in figure.data] == ["device", "host"]  # the last is the topmost
        assert figure.data[1].line.dash == "dash" and figure.data[1].line.shape == "hv"
        return
    (axes,) = figure.axes
    (line,) = axes.lines
    assert line.get_linestyle() == "--" and line.get_zorder() > axes.collections[0].get_zorder()
    assert line.get_drawstyle() == "steps-post"


@pytest.mark.parametrize(
    ("least", "most"), [(0.0024, 0.0036), (1.0, 1.0), (3e-9, 4e5), (1, 128), (0.5, 60), (7.0, 7.1)]
)
def test_a_logarithmic_axis_always_has_figures_on_it(least: float, most: float) -> None:
    chart = Chart("points", "", Axis(""), Axis("gap", log=True), [Series("", [0, 1], [least, most])])
    low, high, places, labels = chart.scale("y")
    assert low <= least <= most <= high and high / low < 20 * most / least
    assert 2 <= len([place for place in places if low <= place <= high]) <= 12
    assert len(set(labels)) == len(labels)


@pytest.mark.parametrize(("least", "most"), [(1570, 1590), (0, 3), (-50, 117), (5, 5), (0, 0), (380, 650)])
def test_an_axis_has_figures_on_it_wherever_it_begins(least: float, most: float) -> None:
    chart = Chart("points", "", Axis("parameters", "count"), Axis(""), [Series("", [least, most], [0, 1])])
    low, high, places, labels = chart.scale("x")
    assert low <= least <= most <= high and len(places) >= 2 and len(set(labels)) == len(labels)


def test_texts_beside_points_do_not_overlap() -> None:
    crowd = Series("ops", [1.0, 1.01, 5.0, 9.0], [1.0, 1.0, 9.0, 9.0], marks=["first", "second", "third", ""])
    chart = Chart("points", "", Axis("x"), Axis("y"), [crowd])
    assert [text for _, _, text, *_ in chart.marks] == ["first", "third"]


@pytest.mark.parametrize("renderer", ["plotly", "matplotlib"])
def test_a_text_does_not_lie_on_the_next_point(renderer: str) -> None:
    near = Series("ops", [1.0, 1.5, 9.0], [5.0, 5.0, 9.0], marks=["embedding in wte", "", "far"])
    chart = Chart("points", "", Axis("x"), Axis("y"), [near])
    assert [lift for *_, lift in chart.marks] == [1, 0]
    figure = draw(chart, renderer)
    if renderer == "plotly":
        assert [note.yshift > 0 for note in figure.layout.annotations] == [True, False]
        return
    figure.canvas.draw()
    axes = figure.axes[0]
    texts = {text.get_text(): text.get_window_extent() for text in axes.texts}
    across, up = axes.transData.transform((1.5, 5.0))
    assert texts["embedding in wte"].x0 < across < texts["embedding in wte"].x1
    assert not texts["embedding in wte"].contains(across, up)


@pytest.mark.parametrize("renderer", ["plotly", "matplotlib"])
def test_a_text_that_has_to_stand_far_from_its_point_has_a_line_to_it(renderer: str) -> None:
    crowd = [(0.1 * n, 4 + 0.5 * m) for n in (*range(45), *range(55, 100)) for m in range(5)]
    x, y = [5.0, 0.0, *(x for x, _ in crowd)], [5.0, 10.0, *(y for _, y in crowd)]
    names = ["convolution in layer1", "", *([""] * len(crowd))]
    chart = Chart("points", "", Axis("x"), Axis("y"), [Series("ops", x, y, marks=names)])
    (mark,) = chart.marks
    assert abs(mark.lift) > 1
    figure = draw(chart, renderer)
    if renderer == "plotly":
        (note,) = figure.layout.annotations
        assert note.showarrow and note.arrowhead == 0 and note.ay * mark.lift < 0
        return
    figure.canvas.draw()
    (axes,) = figure.axes
    (text,) = axes.texts
    assert text.arrow_patch is not None
    written = matplotlib.text.Text.get_window_extent(text)  # without the line
    assert not any(written.contains(*axes.transData.transform(point)) for point in crowd)


def test_a_line_to_a_text_goes_through_no_other_text() -> None:
    """A point under a crowd, and under it the text of another one: what is free lies beyond that text."""
    crowd = [(0.1 * n, 5.9 + 0.5 * m) for n in range(100) if n != 50 for m in range(6)]
    points = [(4.0, 5.0), (5.0, 5.9), (0.0, 0.0), (9.9, 10.0), *crowd]
    names = ["convolution in layer", "mm", *([""] * (len(points) - 2))]
    series = Series("ops", [x for x, _ in points], [y for _, y in points], marks=names)
    assert [mark.text for mark in Chart("points", "", Axis("x"), Axis("y"), [series]).marks] == names[:1]


def test_a_text_that_finds_no_free_place_is_left_out() -> None:
    x = [0.25 * n for n in range(41) for _ in range(41)]
    y = [0.25 * m for _ in range(41) for m in range(41)]
    names = ["somewhere in the middle" if place == 41 * 10 + 20 else "" for place in range(len(x))]
    assert not Chart("points", "", Axis("x"), Axis("y"), [Series("ops", x, y, marks=names)]).marks


def test_a_text_does_not_lie_on_a_roof() -> None:
    roof = Series("roof", [0.0, 10.0], [5.0, 5.0])
    chart = Chart(
        "points", "", Axis("x"), Axis("y"), [Series("o", [1.0, 9.0], [5.0, 9.0], marks=["mm", ""])], [roof]
    )
    assert [mark.lift for mark in chart.marks] == [1]


@pytest.mark.parametrize("renderer", ["plotly", "matplotlib"])
def test_the_legend_stands_between_the_title_and_what_it_explains(renderer: str) -> None:
    many = [Series(f"kind {n} of a long name", ["a", "b"], [n, n]) for n in range(9)]
    few = draw(Chart("bars", "T", Axis(""), Axis("time", "ns"), many[:1]), renderer)
    figure = draw(Chart("bars", "T", Axis(""), Axis("time", "ns"), many), renderer)
    if renderer == "plotly":
        legend = figure.layout.legend
        assert legend.yref == "container" and legend.yanchor == "top" and legend.traceorder == "normal"
        assert 30 < (1 - legend.y) * figure.layout.height < 60 and figure.layout.height > few.layout.height
        return
    figure.canvas.draw()
    axes = figure.axes[0]
    legend, plot = axes.get_legend().get_window_extent(), axes.get_window_extent()
    assert plot.y1 <= legend.y0 < legend.y1 <= axes._left_title.get_window_extent().y0
    assert figure.bbox.x0 < legend.x0 < plot.x1 and legend.x1 <= figure.bbox.x1


def test_a_long_title_has_the_width_of_the_figure() -> None:
    title = "What cutting each group alone does to the output: the 40 of 144 that move it most"
    long = [f"transformer.layer.{number}.attention.output.dense.weight, 157 k" for number in range(3)]
    figure = draw(
        Chart("dots", title, Axis("units"), Axis("gap"), [Series("", long, [1, 2, 3])]), "matplotlib"
    )
    figure.canvas.draw()
    axes = figure.axes[0]
    told = axes._left_title.get_window_extent()
    assert figure.bbox.x0 < told.x0 < axes.get_window_extent().x0 and told.x1 < figure.bbox.x1


@pytest.mark.parametrize("renderer", ["plotly", "matplotlib"])
@pytest.mark.parametrize(
    ("names", "slant"),
    [(["emb", "rnn", "head"], False), ([f"encoder.block{n}.dense" for n in range(20)], True)],
)
def test_names_slant_only_where_they_would_touch(renderer: str, names: list[str], slant: bool) -> None:
    line = Series("", range(len(names)), range(1, len(names) + 1))
    figure = draw(Chart("lines", "T", Axis("layer", names=names), Axis(""), [line]), renderer)
    if renderer == "plotly":
        assert figure.layout.xaxis.tickangle == (-45 if slant else 0)
        assert figure.layout.xaxis.ticklabeloverflow == "allow"  # the first is not left out
        return
    assert {label.get_rotation() for label in figure.axes[0].get_xticklabels()} == {45 if slant else 0}


@pytest.mark.parametrize("renderer", ["plotly", "matplotlib"])
def test_the_last_step_of_an_area_is_seen(renderer: str) -> None:
    level = Series("alive", [0, 1, 2], [1024, 2048, 9000], ["a", "b", "c"])
    figure = draw(Chart("areas", "T", Axis("operation", "count"), Axis("", "bytes"), [level]), renderer)
    if renderer == "plotly":
        assert [*figure.data[0].x] == [0, 1, 2, 3] and [*figure.data[0].y] == [1024, 2048, 9000, 9000]
        assert figure.layout.xaxis.range[1] == 3
        return
    (area,) = figure.axes[0].collections
    assert area.get_paths()[0].contains_point((2.5, 8000)) and figure.axes[0].get_xlim() == (0, 3)


@pytest.mark.parametrize("renderer", ["plotly", "matplotlib"])
def test_a_line_over_areas_ends_where_they_do(renderer: str) -> None:
    level, peak = Series("alive", range(5), [1, 2, 9, 2, 1]), Series("peak", [0, 4], [9, 9])
    figure = draw(Chart("areas", "T", Axis(""), Axis("", "bytes"), [level], [peak]), renderer)
    if renderer == "plotly":
        assert figure.data[0].x[-1] == figure.data[1].x[-1] == figure.layout.xaxis.range[1] == 5
        return
    (axes,) = figure.axes
    assert axes.lines[0].get_xdata()[-1] == axes.get_xlim()[1] == 5


@pytest.mark.parametrize("kind", ["dots", "points"])
def test_a_point_at_the_end_of_an_axis_is_whole(kind: Any) -> None:
    ends = Series("", ["a", "b"] if kind == "dots" else [0, 1], [0, 100])
    assert Chart(kind, "", Axis(""), Axis(""), [ends]).scale("y").low < 0
    assert Chart(kind, "", Axis(""), Axis(""), [ends._replace(y=[30, 100])]).scale("y").low == 0


def test_rows_stand_as_their_axis_names_them() -> None:
    parts = [Series("cut", ["head 1"], [0.2]), Series("stays", ["head 0", "head 2"], [0.4, 0.4])]
    heads = Axis("head", names=["head 0", "head 1", "head 2"])
    for renderer in ("plotly", "matplotlib"):
        assert written(draw(Chart("dots", "T", heads, Axis(""), parts), renderer), "y") == list(heads.names)


def test_a_text_without_room_to_the_right_stands_to_the_left() -> None:
    series = Series("ops", [1.0, 9.0], [1.0, 9.0], marks=["first of them", "last of them"])
    chart = Chart("points", "", Axis("x"), Axis("y"), [series])
    assert [(mark.text, mark.side) for mark in chart.marks] == [("first of them", 1), ("last of them", -1)]
    first, last = draw(chart).layout.annotations
    assert first.xanchor == "left" and last.xanchor == "right"
    figure = draw(chart, "matplotlib")
    figure.canvas.draw()
    axes = figure.axes[0]
    assert all(text.get_window_extent().x1 <= axes.get_window_extent().x1 for text in axes.texts)


def test_a_bar_as_thin_as_a_line_is_seen() -> None:
    figure = draw(
        Chart("bars", "T", Axis(""), Axis(""), [Series("a", ["x"], [1]), Series("b", ["x"], [999])])
    )
    bars = [drawn for drawn in figure.data if drawn.type == "bar"]
    assert len(bars) == 2 and all(bar.marker.line.width == 0 for bar in bars)  # the template's line is white


@pytest.mark.parametrize("renderer", ["plotly", "matplotlib"])
def test_a_point_of_note_is_larger_than_those_of_its_line(renderer: str) -> None:
    line = Series("throughput", [1, 2, 4], [10, 20, 25])
    parts = [line, Series("knee", [2], [20], loose=True), Series("others", [1], [5], color=QUIET, loose=True)]
    figure = draw(Chart("lines", "T", Axis(""), Axis(""), parts), renderer)
    sizes = (
        [drawn.marker.size or 6 for drawn in figure.data]  # Plotly's own, where none is given
        if renderer == "plotly"
        else [drawn.get_markersize() for drawn in figure.axes[0].lines]
    )
    assert sizes[1] > sizes[0] == sizes[2]


def test_a_renderer_that_is_not_there() -> None:
    with pytest.raises(NoMatch, match="plotly"):
        draw(Chart("bars", "", Axis(""), Axis(""), [Series("", ["a"], [1])]), "plotli")
