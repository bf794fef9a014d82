"""The picture's contents and its layout: true edges, folded repeats, and nothing on top of anything else."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

import torch_vis as tv
from tests.kit.geometry import problems
from tests.kit.graphs import empty_graph, one_node_graph
from tests.kit.traced import NAMES, traced
from torch_vis.errors import NoMatch, UsageError
from torch_vis.graph import Metrics
from torch_vis.graph.run import Run
from torch_vis.graph.schema import Flag, Kind, Phase
from torch_vis.views.figure.diagram import FigureOptions, PhaseColumn, diagram
from torch_vis.views.figure.scene import Scene, scene
from torch_vis.views.figure.tree import ADDED_FILL

LOOKS = [
    FigureOptions(),
    FigureOptions(depth=1, color="time"),
    FigureOptions(depth=None, color="memory"),
    FigureOptions(phase="backward"),
]


class Half(nn.Module):
    """Layers of which every other one is checkpointed."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList(
            nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 4)) for _ in range(4)
        )

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for number, layer in enumerate(self.layers):
            x = checkpoint(layer, x, use_reentrant=False) if number % 2 == 0 else layer(x)
        return x


def test_what_is_computed_again_is_marked_and_stands_before_what_reads_it() -> None:
    trace = tv.trace(Half(), torch.ones(2, 4, requires_grad=True), backward=True)
    closed = picture(trace, FigureOptions(depth=0))
    assert "↻ layers.0, 2 × 2" in titles(closed, 1) and not any("↻" in title for title in titles(closed))
    again, reader = (
        next(b for b in closed.boxes if b.column == 1 and b.title == t) for t in ("↻ layers.0, 2 × 2", "Half")
    )
    assert again.y > reader.y + reader.height / 2, "backward goes upwards"
    assert not problems(closed)


def picture(t: tv.Trace, look: FigureOptions | None = None) -> Scene:
    return scene(t, look or FigureOptions())


def titles(drawn: Scene, column: int = 0) -> list[str]:
    return [box.title for box in drawn.boxes if box.column == column]


@pytest.mark.parametrize("name", NAMES)
def test_nothing_overlaps_and_no_line_crosses_a_box(name: str) -> None:
    for look in LOOKS:
        assert problems(picture(traced(name), look)) == [], look


@pytest.mark.parametrize("graph", [empty_graph(), one_node_graph()])
def test_next_to_nothing_can_be_drawn(graph: Any) -> None:
    drawn = scene(Run(graph, Metrics()), FigureOptions())
    assert problems(drawn) == [] and len(drawn.boxes) <= 3


# ---------------------------------------------------------------- the edges are those of the graph


def true_pairs(t: tv.Trace, column: PhaseColumn, nodes: list[Any]) -> set[tuple[int, int]]:
    """Which boxes read from which, found node by node from what each operation reads."""
    graph = t.graph
    box_of: dict[int, int] = {}
    for item in column.items:
        if item.children is None:
            box_of.update(dict.fromkeys(nodes[item.number].tolist(), item.number))

    def origin(value: int) -> int | None:
        while True:
            producer = int(graph.value_producer[value])
            if producer < 0 or producer not in box_of:
                return None
            if not column.items[box_of[producer]].hidden:
                return box_of[producer]
            reads = [row for row in range(*graph.input_span(producer)) if graph.in_kind[row] != Kind.SHAPE]
            if not reads:
                return None
            value = int(graph.in_value[reads[0]])

    pairs = set()
    for node, box in box_of.items():
        if column.items[box].hidden:
            continue
        taken = [
            int(graph.in_value[r]) for r in range(*graph.input_span(node)) if graph.in_kind[r] != Kind.SHAPE
        ]
        taken += [
            int(graph.value_carries[v.index]) for v in graph.nodes[node].outputs if v.carries is not None
        ]
        pairs |= {(source, box) for value in taken if (source := origin(value)) is not None and source != box}
    return pairs


@pytest.mark.parametrize("name", NAMES)
def test_the_edges_are_the_dependences_of_the_run(name: str) -> None:
    t = traced(name)
    drawn = diagram(t.graph, FigureOptions(depth=None))
    for number, column in enumerate(drawn.columns):
        if any(item.count > 1 and item.children is not None for item in column.items):
            continue  # what instances of a fold hand to one another is left out on purpose
        inner = {item.number for item in column.items if item.kind not in ("input", "output")}
        shown = {(edge.source, edge.target) for edge in column.edges}
        shown |= {(source, target) for target, sources in column.tags.items() for source in sources}
        shown = {pair for pair in shown if set(pair) <= inner}
        assert shown == true_pairs(t, column, drawn.item_nodes[number])


@pytest.mark.parametrize("name", NAMES)
def test_every_operation_is_in_one_box(name: str) -> None:
    graph = traced(name).graph
    for look in LOOKS[:3]:
        drawn = diagram(graph, look)
        boxed = [
            nodes
            for column, found in zip(drawn.columns, drawn.item_nodes)
            for item, nodes in zip(column.items, found)
            if item.children is None
        ]
        every = np.sort(np.concatenate(boxed)) if boxed else np.empty(0)
        assert every.tolist() == list(range(len(graph)))


# ---------------------------------------------------------------- folding and depth


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.query, self.key, self.value = nn.Linear(8, 8), nn.Linear(8, 8), nn.Linear(8, 8)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + torch.softmax(self.query(x) * self.key(x), -1) * self.value(x)


class Stack(nn.Module):
    def __init__(self, count: int) -> None:
        super().__init__()
        self.layers = nn.ModuleList(Block() for _ in range(count))
        self.head = nn.Linear(8, 2)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for layer in self.layers:
            x = layer(x)
        return self.head(x)


def test_repeated_blocks_are_folded_and_roles_are_not() -> None:
    drawn = picture(tv.trace(Stack(12), torch.ones(2, 8)))
    assert any(frame.title == "layers.0–11 × 12 · Block" for frame in drawn.frames)
    assert titles(drawn).count("query") == titles(drawn).count("key") == titles(drawn).count("value") == 1
    facts = {box.title: dict(box.facts) for box in drawn.boxes}
    assert facts["query"]["operations"].startswith("24")  # of all twelve
    wires = {(wire.source.title, wire.target.title) for wire in drawn.wires}
    assert ("x", "query") in wires and ("softmax", "mul") in wires and ("add", "head") in wires


def test_a_block_that_differs_is_not_folded() -> None:
    model = Stack(4)
    model.layers[2].query = nn.Sequential(nn.Linear(8, 8), nn.ReLU())
    drawn = picture(tv.trace(model, torch.ones(2, 8)), FigureOptions(depth=1))
    assert [box.title for box in drawn.boxes if "layers" in box.title] == [
        "layers.0–1 × 2",
        "layers.2",
        "layers.3",
    ]


def test_depth_opens_modules_level_by_level() -> None:
    t = tv.trace(Stack(3), torch.ones(2, 8))
    assert {"Stack"} <= set(titles(picture(t, FigureOptions(depth=0))))
    assert {"layers.0–2 × 3", "head"} <= set(titles(picture(t, FigureOptions(depth=1))))
    assert {"query", "key", "value", "head"} <= set(titles(picture(t, FigureOptions(depth=2))))
    assert "addmm" not in titles(picture(t, FigureOptions(depth=9))) and "addmm" in titles(
        picture(t, FigureOptions(depth=None))
    )


def test_a_loop_over_one_module_or_plain_operations_is_folded() -> None:
    cell = nn.GRUCell(4, 4)

    def loop(x: torch.Tensor) -> torch.Tensor:
        h = x
        for _ in range(50):
            h = cell(x, h)
        for _ in range(30):
            h = (h * 2).relu()
        return h

    drawn = picture(tv.trace(loop, torch.ones(1, 4)))
    assert len(drawn.boxes) < 8
    assert any("× 50" in box.title for box in drawn.boxes) and any(
        "× 30" in frame.title for frame in drawn.frames
    )


def test_a_hundred_thousand_operations_are_drawn_folded() -> None:
    def program(x: torch.Tensor) -> torch.Tensor:
        for step in range(25_000):
            x = (x * 1.01 + 1).relu() if step % 7 else x.tanh()
        return x

    with torch.no_grad():
        t = tv.trace(program, torch.ones(2), hold=False)
    drawn = picture(t)
    assert len(t.graph) > 60_000 and len(drawn.boxes) < 100 and problems(drawn) == []


def test_many_different_operations_are_put_together() -> None:
    def program(x: torch.Tensor) -> torch.Tensor:
        for step in range(400):
            x = torch.cat([x, x[:1]]) if step % 3 else x[: step + 1] * step
        return x

    drawn = picture(tv.trace(program, torch.ones(3)))
    assert len(drawn.boxes) <= 84 and problems(drawn) == []


def test_a_value_that_many_boxes_read_is_named_at_each() -> None:
    parts = nn.ModuleList(nn.Linear(4, 4 + place) for place in range(9))
    drawn = picture(
        tv.trace(lambda x, mask: [part(x + 1) * mask for part in parts], torch.ones(2, 4), torch.ones(1))
    )
    assert sum("← mask" in box.tags for box in drawn.boxes) == 8
    assert titles(drawn).count("mask") == 1  # with a line to its first reader


def test_an_output_hangs_on_every_write_to_it() -> None:
    def program(x: torch.Tensor) -> torch.Tensor:
        y = x * 2
        y[:, 0].add_(1)
        return y

    drawn = picture(tv.trace(program, torch.ones(4, 4)))
    wires = {(wire.source.title, wire.target.title) for wire in drawn.wires}
    assert {("add_", "output"), ("mul", "output"), ("mul", "add_")} <= wires
    assert [box.subtitle for box in drawn.boxes if box.title == "mul"] == ["4×4"]


def test_a_box_shows_the_shape_of_what_it_makes_itself() -> None:
    model = nn.Sequential(nn.Conv2d(3, 8, 1), nn.BatchNorm2d(8), nn.Flatten(), nn.Linear(128, 2))
    drawn = picture(tv.trace(model, torch.ones(2, 3, 4, 4)), FigureOptions(depth=1))
    facts = {box.title: (box.subtitle, dict(box.facts).get("output")) for box in drawn.boxes}
    assert facts["Conv2d 0"] == ("2×8×4×4", "f32[2, 8, 4, 4]")
    assert facts["BatchNorm2d 1"] == ("2×8×4×4", "f32[2, 8, 4, 4]")
    assert facts["Flatten 2"] == ("2×128", "f32[2, 128]")


# ---------------------------------------------------------------- phases, colours, words


def test_backward_runs_upwards_beside_forward() -> None:
    model = nn.Sequential(nn.Linear(4, 4), nn.Tanh(), nn.Linear(4, 1))
    drawn = picture(tv.trace(model, torch.ones(2, 4), backward=True))
    place = {(box.column, box.title): box for box in drawn.boxes}
    assert place[0, "Linear 0"].y < place[0, "Tanh 1"].y < place[0, "Linear 2"].y
    assert place[1, "Linear 0"].y < place[1, "Tanh 1"].y < place[1, "Linear 2"].y
    assert place[1, "Linear 0"].x > place[0, "Linear 0"].x
    wires = {(w.source.column, w.source.title, w.target.title) for w in drawn.wires}
    assert {(1, "Linear 2", "Tanh 1"), (1, "Tanh 1", "Linear 0"), (0, "Tanh 1", "Linear 2")} <= wires
    assert [heading for heading, _, _ in drawn.headings] == ["forward ↓", "backward ↑"]


def test_an_optimizer_step_is_a_column_of_its_own() -> None:
    model = nn.Linear(4, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)

    def step(x: torch.Tensor) -> None:
        model(x).sum().backward()
        optimizer.step()

    drawn = diagram(tv.trace(step, torch.ones(2, 4)).graph, FigureOptions())
    assert [column.phase for column in drawn.columns] == [Phase.FORWARD, Phase.BACKWARD, Phase.OPTIMIZER]


def test_a_phase_can_be_drawn_alone() -> None:
    t = tv.trace(nn.Linear(4, 1), torch.ones(2, 4), backward=True)
    assert {box.column for box in picture(t, FigureOptions(phase="backward")).boxes} == {0}
    with pytest.raises(NoMatch, match="did you mean 'backward'"):
        picture(t, FigureOptions(phase="backwards"))


def test_colour_by_time_is_the_measured_time() -> None:
    t = tv.trace(nn.Sequential(nn.Linear(4, 4), nn.Tanh()), torch.ones(2, 4))
    drawn = picture(t, FigureOptions(color="time"))
    amounts = {box.title: box.amount for box in drawn.boxes if box.item.kind == "module"}
    assert amounts["Tanh 1"] == t.metrics["time_ns"][2]
    assert amounts["Linear 0"] == t.metrics["time_ns"][0] + t.metrics["time_ns"][1]
    assert drawn.scale is not None and drawn.colors.ticks()[-1][0] == 1.0
    most = max(amount for amount in amounts.values() if amount)
    hottest = [box for box in drawn.boxes if box.amount == most]
    assert hottest[0].fill == drawn.colors.heat(most) != drawn.colors.heat(0)


def test_what_is_not_known_is_white_and_counted() -> None:
    t = tv.trace(nn.Tanh(), torch.ones(2))
    time = t.metrics["time_ns"]
    unknown = t.metrics.with_column(tv.graph.metrics.Column("time_ns", time.values, known=np.array([False])))  # type: ignore[attr-defined]
    drawn = scene(Run(t.graph, unknown, meta=t.meta), FigureOptions(color="time"))
    assert drawn.colors.unknown == 1 and "not known (1)" in drawn.note
    assert [box.fill for box in drawn.boxes if box.item.kind == "operation"] == ["#ffffff"]


def test_a_colour_or_depth_that_does_not_exist() -> None:
    t = tv.trace(nn.Tanh(), torch.ones(2))
    with pytest.raises(NoMatch, match=r"no colour 'tyme'; did you mean .*'time'"):
        picture(t, FigureOptions(color="tyme"))
    for depth in (-1, 1.5, "deep", True):
        with pytest.raises(UsageError, match="depth is a number from 0 on"):
            FigureOptions(depth=depth)  # type: ignore[arg-type]
    with pytest.raises(UsageError, match="has no time_ns"):
        scene(Run(t.graph, Metrics()), FigureOptions(color="time"))


def test_the_facts_of_a_box_say_what_it_is() -> None:
    drawn = picture(tv.trace(lambda x: x.tanh(), torch.ones(2, 3)))
    facts = dict(next(box.facts for box in drawn.boxes if box.title == "tanh"))
    assert facts["operation"] == "aten::tanh" and facts["output"] == "f32[2, 3]"
    assert "test_figure.py" in facts["source"] and {"time", "allocated"} <= facts.keys()


def test_what_claims_to_be_a_view_and_shows_nothing_of_another_is_drawn() -> None:
    """A file may mark any operation as a view; one that reads no bytes has nobody behind it to draw instead."""
    t = tv.trace(lambda x: torch.ones_like(x).mul(2) + x, torch.ones(2))
    graph = t.graph.replaced(node_flags=t.graph.node_flags | Flag.VIEW)
    drawn = scene(Run(graph, Metrics(), (), {}), FigureOptions())
    assert "ones_like" in titles(drawn)


def test_what_the_recording_added_is_one_quiet_box() -> None:
    """The sum of the outputs and the seed of backward are no part of the model."""

    class TwoOutputs(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.a, self.b = nn.Linear(4, 2), nn.Linear(4, 3)

        def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
            return self.a(x), self.b(x)

    trace = tv.trace(TwoOutputs(), torch.ones(2, 4), backward=True)
    boxes = scene(trace, FigureOptions()).boxes
    titles = [box.title for box in boxes]
    assert titles.count("summed outputs") == 1 and titles.count("gradient of 1") == 1
    assert not {"sum", "add", "ones_like"} & set(titles)
    (summed,) = [box for box in boxes if box.title == "summed outputs"]
    assert summed.fill == ADDED_FILL
    heated = scene(trace, FigureOptions(color="flops")).boxes
    assert ADDED_FILL not in {box.fill for box in heated}, "under a measure, its own colour"


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"title": 3}, "title is a text"),
        ({"color": ["time"]}, "color is 'type', 'none', or a measure such as 'time', not .'time'"),
        ({"color": None}, "or a measure such as 'time', not None"),
        ({"legend": "no"}, "legend is True or False, not 'no'"),
        ({"shapes": 1}, "shapes is True or False, not 1"),
        ({"labels": {"Linear": 3}}, "the label of 'Linear' is a text, not 3"),
        ({"collapse": 3}, "not by int"),
        ({"collapse": lambda path: True}, "takes two arguments, the path and the name of the class"),
        (
            {"collapse": lambda path, cls: path[99]},
            "raised IndexError: string index out of range, for the path",
        ),
    ],
)
def test_an_option_of_another_kind_is_refused(options: dict[str, Any], words: str) -> None:
    trace = tv.trace(nn.Linear(2, 2), torch.ones(1, 2))
    with pytest.raises(UsageError, match=words):
        trace.figure("svg", **options)
