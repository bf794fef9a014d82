"""A picture with a place for everything: boxes, frames and lines in one coordinate system, y downwards, in pixels.

Each frame is laid out on its own and then put, as one box, into the frame around it. A line that leaves a frame does so
through a port on the frame's edge, which is laid out like any box; so lines cross no box on their way out or in.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import pairwise

from torch_vis.graph.run import Run, added_by_recording
from torch_vis.graph.schema import Phase
from torch_vis.graph.text import inert, many, shortened
from torch_vis.views.figure.diagram import Diagram, Edge, PhaseColumn, diagram
from torch_vis.views.figure.layered import LayoutCell, LayoutLine, arrange, in_flow
from torch_vis.views.figure.options import FigureOptions
from torch_vis.views.figure.palette import FRAME, HIGHLIGHT, STROKE, Colors, colors, mixed
from torch_vis.views.figure.tree import FigureItem

TITLE, SMALL = 12.0, 9.5  # sizes of letters
LINE = 14.0  # from one line of small text to the next
PADDING = 9.0
HEAD = 20.0  # a frame's title
INSIDE = 12.0  # from a frame's edge to what is in it
GAP, RANK_GAP, PORT_GAP = 18.0, 26.0, 8.0
BETWEEN_COLUMNS = 70.0
MARGIN = 24.0
LONGEST = 28  # letters of a title
WHOLE_TITLES = (", ended by ", " branch not taken")  # in what a compiler says of its parts: never shortened
MOST_TAGS = 3
SHADES = ("#f6f8fa", "#ffffff")  # of frames; neighbouring levels differ
HEADINGS = {Phase.FORWARD: "forward ↓", Phase.BACKWARD: "backward ↑", Phase.OPTIMIZER: "optimizer ↓"}
SIDEWAYS = str.maketrans("↓↑", "→←")
HEADING_ROOM = 64.0  # for the title and the caption
ROW_HEADING = 22.0  # for the name of a phase, where phases are rows
RIM, THICK_RIM = 0.8, 2.4  # of a box, and of one that is brought out


@dataclass(slots=True)
class Box:
    """A rectangle with its words; ``item`` and ``column`` say what of the diagram it stands for."""

    column: int
    item: FigureItem
    title: str
    subtitle: str
    tags: list[str]
    width: float
    height: float
    fill: str
    # The figure behind the colour.
    amount: float | None
    facts: list[tuple[str, str]]
    # Of its left edge, and of its top.
    x: float = 0.0
    y: float = 0.0

    @property
    def words(self) -> list[str]:
        """The lines of small text."""
        return [self.subtitle, *self.tags] if self.subtitle else self.tags

    @property
    def rim(self) -> tuple[str, float]:
        """The colour and the width of its outline."""
        return (HIGHLIGHT, THICK_RIM) if self.item.is_highlighted else (STROKE, RIM)

    @property
    def corner(self) -> float:
        """How round the corners are: inputs and outputs are pills, modules nearly square."""
        if self.item.kind in ("input", "output"):
            return self.height / 2
        return 5.0 if self.item.kind == "module" else 9.0


@dataclass(slots=True)
class Frame:
    """The outline of an opened module."""

    title: str
    x: float
    y: float
    width: float
    height: float
    level: int
    title_below: bool
    fill: str = "#ffffff"
    facts: list[tuple[str, str]] = field(default_factory=list)
    is_highlighted: bool = False

    @property
    def rim(self) -> tuple[str, float]:
        """The colour and the width of its outline."""
        return (HIGHLIGHT, THICK_RIM) if self.is_highlighted else (FRAME, 1.0)


@dataclass(slots=True)
class Wire:
    """A line between two boxes; its parts join at the edges of frames."""

    source: Box
    target: Box
    parts: list[list[tuple[float, float]]]
    label: str
    count: int
    # Whether it runs from left to right: its parts are turned back before their bends are worked out.
    is_sideways: bool = False

    @property
    def tip(self) -> list[tuple[float, float]]:
        """The corners of the arrow's tip, the point first."""
        points = turned(self.parts[-1]) if self.is_sideways else self.parts[-1]
        x, y = points[-1]
        before = next((py for _, py in reversed(points) if abs(py - y) > 1e-6), y - 1)
        back = -7.0 if y > before else 7.0
        tip = [(x, y), (x - 3.2, y + back), (x + 3.2, y + back)]
        return turned(tip) if self.is_sideways else tip


def turned(points: Iterable[tuple[float, float]]) -> list[tuple[float, float]]:
    """Points with their coordinates exchanged: from top to bottom becomes from left to right."""
    return [(y, x) for x, y in points]


def strokes(
    points: Sequence[tuple[float, float]], is_sideways: bool = False
) -> Iterator[tuple[str, list[tuple[float, float]]]]:
    """A line through its knots as the pen draws it: ``M`` to a point, ``L`` a straight piece, ``C`` an S across.

    >>> [letter for letter, _ in strokes([(0, 0), (0, 5), (9, 9)])]
    ['M', 'L', 'C']
    """
    way = turned(points) if is_sideways else list(points)
    steps = [("M", way[:1])]
    for (x1, y1), (x2, y2) in pairwise(way):
        if abs(x1 - x2) < 0.05:
            steps.append(("L", [(x2, y2)]))
        else:
            middle = (y1 + y2) / 2
            steps.append(("C", [(x1, middle), (x2, middle), (x2, y2)]))
    for letter, corners in steps:
        yield letter, turned(corners) if is_sideways else corners


@dataclass(slots=True)
class Scene:
    """All that a renderer has to draw."""

    title: str
    caption: str
    width: float
    height: float
    boxes: list[Box]
    frames: list[Frame]
    wires: list[Wire]
    headings: list[tuple[str, float, float]]
    colors: Colors
    # Name, fill, x and y of a swatch.
    legend: list[tuple[str, str, float, float]] = field(default_factory=list)
    # x, y and width of a colour scale, and what stands beside it.
    scale: tuple[float, float, float] | None = None
    note: str = ""


def scene(run: Run, options: FigureOptions) -> Scene:
    """Lay out a picture of a run."""
    drawn = diagram(run.graph, options, added_by_recording(run))
    palette = colors(drawn, run.metrics, options.color)
    title = run.name if options.title is None else options.title
    result = Scene(title, "", 0.0, 0.0, [], [], [], [], palette)
    layouts = []
    for number in range(len(drawn.columns)):
        layout = _Column(drawn, number, palette)
        layout.lay_out()
        layouts.append(layout)
    top = MARGIN + (HEADING_ROOM if title else 0.0)
    tallest = max((layout.height for layout in layouts), default=0.0)
    (_set_in_rows if options.is_sideways else _set_in_columns)(result, layouts, top, tallest)
    if options.legend:
        _add_legend(result)
    views = sum(column.views for column in drawn.columns)
    shown = sum(
        len(item_nodes[number])
        for column, item_nodes in zip(drawn.columns, drawn.item_nodes)
        for number in column.top
    )
    boxes = sum(box.item.kind not in ("input", "output") for box in result.boxes)
    left_out = sum(column.left_out for column in drawn.columns)
    hidden = f"; {many(views, 'view')} not drawn" if views else ""
    hidden += f"; {many(left_out, 'operation')} left out" if left_out else ""
    result.caption = f"{many(shown - left_out, 'operation')} in {many(boxes, 'box')}{hidden}" if title else ""
    return result


def _set_in_columns(result: Scene, layouts: list[_Column], top: float, tallest: float) -> None:
    """Phases side by side, each from top to bottom."""
    is_named = len(layouts) > 1 or any(layout.column.phase != Phase.FORWARD for layout in layouts)
    if is_named and not result.title:
        top += ROW_HEADING
    left = MARGIN
    for layout in layouts:
        heading = HEADINGS[Phase(layout.column.phase)]
        room = max(layout.width, text_width(heading, TITLE))
        # Backward begins where forward ends: at the bottom.
        layout.emit(result, left, top + (tallest - layout.height if layout.flipped else 0.0))
        if is_named:
            result.headings.append((heading, left + room / 2, top - 14.0))
        left += room + BETWEEN_COLUMNS
    result.width = max(left - BETWEEN_COLUMNS + MARGIN, 360.0)
    result.height = top + tallest + MARGIN


def _set_in_rows(result: Scene, layouts: list[_Column], top: float, longest: float) -> None:
    """Phases one below the other, each from left to right."""
    is_named = len(layouts) > 1 or any(layout.column.phase != Phase.FORWARD for layout in layouts)
    for layout in layouts:
        heading = HEADINGS[Phase(layout.column.phase)].translate(SIDEWAYS)
        if is_named:
            result.headings.append((heading, MARGIN + text_width(heading, TITLE) / 2, top + 8.0))
            top += ROW_HEADING
        layout.emit(result, top, MARGIN + (longest - layout.height if layout.flipped else 0.0))
        top += layout.width + BETWEEN_COLUMNS / 2
    result.width = max(longest + 2 * MARGIN, 360.0)
    result.height = top - (BETWEEN_COLUMNS / 2 if layouts else 0.0) + MARGIN


def _add_legend(result: Scene) -> None:
    """What the colours mean, below the picture."""
    x, y = MARGIN, result.height - 4
    palette = result.colors
    if palette.measure is not None:
        result.scale = (x, y, 240.0)
        result.note = palette.note
        if palette.unknown:
            result.note += f"; white: not known ({palette.unknown})"
        result.width = max(result.width, x + 264 + text_width(result.note, SMALL))
        result.height = y + 34
        return
    for name, fill in palette.legend():
        width = 30 + text_width(name, SMALL)
        if x > MARGIN and x + width > result.width:
            x, y = MARGIN, y + 18
        result.legend.append((name, fill, x, y))
        x += width
    result.height = y + 24


class _Column:
    """One phase being laid out."""

    def __init__(self, drawn: Diagram, number: int, palette: Colors) -> None:
        self.drawn = drawn
        self.graph = drawn.graph
        self.column: PhaseColumn = drawn.columns[number]
        self.items = self.column.items
        self.number = number
        self.palette = palette
        self.flipped = self.column.phase == Phase.BACKWARD
        self.is_sideways = drawn.options.is_sideways
        self.boxes: dict[int, Box] = {}
        self.sizes: dict[int, tuple[float, float]] = {}
        self.cells: dict[int, list[LayoutCell]] = {}  # by frame, -1 the column itself
        self.members: dict[int, list[int]] = {}  # the items behind the first cells of a frame
        self.ports: dict[tuple[int, str, int], int] = {}  # frame, side and source to a cell
        self.lines: dict[int, list[LayoutLine]] = {}
        # for each edge its lines as (frame, number)
        self.routes: list[list[tuple[int, int]]] = []
        self._known: dict[tuple[int, int, int, int], int] = {}
        # an item's cell in its frame
        self.where: dict[int, int] = {}
        self.width = self.height = 0.0

    def lay_out(self) -> None:
        """Arrange every frame, the innermost first."""
        self._make_boxes()
        frames = [item.number for item in self.items if item.children is not None]
        between: dict[int, list[tuple[int, int]]] = {}
        for edge in self.column.edges:
            out, into, shared = self._ways(edge)
            between.setdefault(shared, []).append((out[-1], into[-1]))
        for frame in [*frames, -1]:
            members = self.column.top if frame < 0 else self.items[frame].children or []
            shown = [number for number in members if not self.items[number].hidden]
            begun = sorted(shown, key=lambda number: self.items[number].first)
            self.members[frame] = in_flow(begun, between.get(frame, ()))
            for index, number in enumerate(self.members[frame]):
                self.where[number] = index
            self.cells[frame] = [LayoutCell(0.0, 0.0, index) for index in range(len(shown))]
            self.lines[frame] = []
        self._make_lines()
        for frame in [*reversed(frames), -1]:
            self._arrange(frame)

    def _make_boxes(self) -> None:
        for item in self.items:
            if item.children is None and not item.hidden:
                box = self.boxes[item.number] = box_of(self.drawn, self.number, item, self.palette)
                size = (box.width, box.height)
                # laid out from top to bottom in any case, and turned at last
                self.sizes[item.number] = (size[1], size[0]) if self.is_sideways else size

    def _ways(self, edge: Edge) -> tuple[list[int], list[int], int]:
        """From each end of an edge outwards, the items up to those that lie side by side, and the frame they lie in."""
        out, into = [edge.source], [edge.target]
        source, target = self.items[edge.source].parent, self.items[edge.target].parent
        # a frame has a smaller number than what is in it
        while source != target:
            if source > target:
                out.append(source)
                source = self.items[source].parent
            else:
                into.append(target)
                target = self.items[target].parent
        return out, into, source

    def _make_lines(self) -> None:
        """Cut every edge into a line within each frame that it passes."""
        for edge in self.column.edges:
            out, into, shared = self._ways(edge)
            route: list[tuple[int, int]] = []
            for inner, frame in pairwise(out):
                port = self._port(frame, "bottom", edge.source)
                route.append(self._line(frame, self.where[inner], port, edge.source))
            down: list[tuple[int, int]] = []
            for outer, frame in pairwise(into):
                port = self._port(frame, "top", edge.source)
                down.append(self._line(frame, port, self.where[outer], edge.source))
            middle = self._line(shared, self.where[out[-1]], self.where[into[-1]], edge.source)
            self.routes.append([*route, middle, *reversed(down)])

    def _port(self, frame: int, side: str, source: int) -> int:
        key = (frame, side, source)
        if key not in self.ports:
            cells = self.cells[frame]
            self.ports[key] = len(cells)
            cells.append(LayoutCell(6.0, 0.0, -1 if side == "top" else 1 << 60, edge=side))
        return self.ports[key]

    def _line(self, frame: int, source: int, target: int, key: int) -> tuple[int, int]:
        number = self._known.get((frame, source, target, key))
        if number is None:
            number = self._known[frame, source, target, key] = len(self.lines[frame])
            self.lines[frame].append(LayoutLine(source, target, key))
        return frame, number

    def _arrange(self, frame: int) -> None:
        cells, lines = self.cells[frame], self.lines[frame]
        for index, number in enumerate(self.members[frame]):
            cells[index].width, cells[index].height = self.sizes[number]
        for line in lines:
            line.exit = self._offset(frame, line.source, "bottom", line.key)
            line.entry = self._offset(frame, line.target, "top", line.key)
        inner_width, height = arrange(cells, lines, gap=GAP, rank_gap=RANK_GAP, port_gap=PORT_GAP)
        self._fan_in(frame)
        if frame < 0:
            self.width, self.height = inner_width, height
            return
        least = text_width(self._heading(frame), SMALL + 1) + 4
        if self.is_sideways:
            self.sizes[frame] = (inner_width + 2 * INSIDE + HEAD, max(height, least) + 2 * INSIDE)
            return
        width = max(inner_width, least)
        slack = (width - inner_width) / 2
        for cell in cells:
            cell.x += slack
        for line in lines:
            line.path = [(x + slack, y) for x, y in line.path]
        self.sizes[frame] = (width + 2 * INSIDE, height + 2 * INSIDE + HEAD)

    def _offset(self, frame: int, cell: int, side: str, key: object) -> float:
        """Where a line touches a cell: at the port, if the cell is a frame."""
        if cell >= len(self.members[frame]):
            return 0.0
        inner = self.members[frame][cell]
        port = self.ports.get((inner, side, key))  # type: ignore[arg-type]
        if port is None:
            return 0.0
        return self._inset[0] + self.cells[inner][port].x - self.sizes[inner][0] / 2

    @property
    def _inset(self) -> tuple[float, float]:
        """From a frame's corner to what is in it: its title is at the top of the turned picture."""
        return (INSIDE + HEAD, INSIDE) if self.is_sideways else (INSIDE, INSIDE + HEAD)

    def _fan_in(self, frame: int) -> None:
        """Spread the lines that come into one box along its top, in the order in which they come."""
        entering: dict[int, dict[object, list[LayoutLine]]] = {}
        for line in self.lines[frame]:
            if line.target < len(self.members[frame]) and not line.reversed:
                if self.members[frame][line.target] in self.boxes:
                    entering.setdefault(line.target, {}).setdefault(line.key, []).append(line)
        for target, by_source in entering.items():
            if len(by_source) < 2:
                continue
            groups = sorted(by_source.values(), key=lambda lines: lines[0].path[-3][0])
            cell = self.cells[frame][target]
            step = min(22.0, cell.width * 0.7 / (len(groups) - 1))
            for index, lines in enumerate(groups):
                x = cell.x + (index - (len(groups) - 1) / 2) * step
                for line in lines:
                    line.path[-2:] = [(x, y) for _, y in line.path[-2:]]

    def _heading(self, frame: int) -> str:
        title, type_ = named(self.items[frame])
        return f"{title} · {type_}" if type_ else title

    # ------------------------------------------------------------------ from frames to the page

    def emit(self, result: Scene, left: float, top: float) -> None:
        """Put everything onto the page."""
        origins = {-1: (left, top)}
        for frame in [-1, *(item.number for item in self.items if item.children is not None)]:
            x, y = origins[frame]
            for index, number in enumerate(self.members[frame]):
                cell = self.cells[frame][index]
                at = (x + cell.x - cell.width / 2, y + cell.y)
                if number in self.boxes:
                    self.boxes[number].x, self.boxes[number].y = at
                    result.boxes.append(self.boxes[number])
                else:
                    origins[number] = (at[0] + self._inset[0], at[1] + self._inset[1])
                    self._emit_frame(result, number, at)
        for edge, route in zip(self.column.edges, self.routes):
            parts = self._joined(route, origins)
            type_ = self.graph.types[self.graph.value_type[edge.value]]
            source, target = self.boxes[edge.source], self.boxes[edge.target]
            result.wires.append(Wire(source, target, parts, str(type_), edge.count))
        if self.flipped:
            self._flip(result, top)
        if self.is_sideways:
            self._turn(result)

    def _turn(self, result: Scene) -> None:
        """Exchange the two directions of everything that was laid out here."""
        for box in self.boxes.values():
            box.x, box.y = box.y, box.x
        for frame in result.frames[len(result.frames) - (len(self.members) - 1) :]:
            frame.x, frame.y, frame.width, frame.height = frame.y, frame.x, frame.height, frame.width
        for wire in result.wires[len(result.wires) - len(self.routes) :]:
            wire.parts = [turned(part) for part in wire.parts]
            wire.is_sideways = True

    def _emit_frame(self, result: Scene, number: int, at: tuple[float, float]) -> None:
        width, height = self.sizes[number]
        item = self.items[number]
        title_below = self.flipped and not self.is_sideways
        frame = Frame(self._heading(number), *at, width, height, item.level, title_below)
        frame.facts = self.palette.facts(self.number, item)
        frame.fill = frame_fill(item)
        frame.is_highlighted = item.is_highlighted
        result.frames.append(frame)

    def _joined(
        self, route: list[tuple[int, int]], origins: dict[int, tuple[float, float]]
    ) -> list[list[tuple[float, float]]]:
        """The lines of one edge, put together where one goes on from the other."""
        parts: list[list[tuple[float, float]]] = []
        for frame, number in route:
            x, y = origins[frame]
            points = [(x + px, y + py) for px, py in self.lines[frame][number].path]
            if parts and abs(parts[-1][-1][0] - points[0][0]) < 1e-6 and points[0][1] >= parts[-1][-1][1]:
                parts[-1].extend(points)
            else:
                parts.append(points)
        return parts

    def _flip(self, result: Scene, top: float) -> None:
        """Turn the column upside down: backward is read from the bottom."""
        ours = {id(box) for box in self.boxes.values()}
        end = 2 * top + self.height
        for number, box in self.boxes.items():
            box.y = end - box.y - self.sizes[number][1]
        for frame in result.frames[len(result.frames) - (len(self.members) - 1) :]:
            frame.y = end - frame.y - frame.height
        for wire in result.wires:
            if id(wire.source) in ours:
                wire.parts = [[(x, end - y) for x, y in part] for part in wire.parts]


def box_of(drawn: Diagram, number: int, item: FigureItem, palette: Colors) -> Box:
    """A closed item as a box with its words, the size that they take, its colour and its facts."""
    graph, column = drawn.graph, drawn.columns[number]
    title, class_ = named(item)
    parts = [class_]
    if item.kind in ("repeat", "bundle") or (item.kind in ("input", "output") and drawn.options.shapes):
        parts.append(shortened(inert(item.type), LONGEST + 6))
    elif item.number in column.handed and drawn.options.shapes:
        sizes = graph.types[graph.value_type[column.handed[item.number]]].sizes
        parts.append(shortened(inert("×".join(sizes) or "scalar"), LONGEST))
    subtitle = " · ".join(part for part in parts if part)
    tags = [
        f"← {shortened(inert(column.items[tag].label), LONGEST)}" for tag in column.tags.get(item.number, ())
    ]
    if len(tags) > MOST_TAGS:
        tags = [*tags[: MOST_TAGS - 1], f"← {len(tags) - MOST_TAGS + 1} more"]
    words = [text_width(text, SMALL) for text in [subtitle, *tags]]
    width = max(text_width(title, TITLE), *words) + 2 * PADDING
    height = 2 * PADDING - 4 + LINE + (LINE - 1) * (bool(subtitle) + len(tags))
    return Box(number, item, title, subtitle, tags, max(width, 44.0), height, *palette.paint(number, item))


def frame_fill(item: FigureItem) -> str:
    """The ground of an opened item: what a person chose is paler there, so that titles can be read."""
    return mixed((item.fill, "#ffffff"), 0.65) if item.fill else SHADES[item.level % 2]


def named(item: FigureItem) -> tuple[str, str]:
    """What a box or frame is called, and its class where that says more; a name that a person gave is enough."""
    if item.title:
        return inert(item.title) + (f" × {item.count}" if item.count > 1 else ""), ""
    name = shortened(inert(item.label), LONGEST)
    most = 3 * LONGEST if any(words in item.type for words in WHOLE_TITLES) else LONGEST
    class_ = shortened(inert(item.type), most) if item.kind == "module" and item.type != item.label else ""
    # A numbered module has its class in its name.
    if item.label.startswith(f"{item.type} "):
        class_ = ""
    return name + (f" × {item.count}" if item.count > 1 else ""), class_


# How much room a text takes, without asking a font: widths of a common sans-serif, on the wide side.
_WIDTHS = {
    **dict.fromkeys("iljI|!'.,:;", 0.32),
    **dict.fromkeys("ftr()[]{}-/\\ ·", 0.42),
    **dict.fromkeys("mwMW@%…–×—", 0.92),
    **dict.fromkeys("ABCDEFGHJKLNOPQRSTUVXYZ&", 0.71),
    **dict.fromkeys("_0123456789", 0.64),
}
_USUAL = 0.62


def text_width(text: str, size: float) -> float:
    """The width of a text in a font of a size, in the same unit."""
    return size * sum(_WIDTHS.get(letter, 1.0 if ord(letter) > 0x2E80 else _USUAL) for letter in text)
