"""What passes in and out of each box, so that a body has explicit inputs and outputs and no edge is lost.

Within one part of the run every value crosses by itself. What one part leaves for another (activations saved for
backward, gradients for the optimizer) would give the boxes of a deep model hundreds of inputs and outputs each. A
box hands that out as one *bundle* of its values and of the bundles of the boxes in it, and it is taken apart where the
paths to its members part again. A value or bundle is called a *thing* here, and both share one numbering.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

import numpy as np

from torch_vis.exporters.facts import outside_name
from torch_vis.exporters.nesting import RunPart, node_reads
from torch_vis.exporters.onnx.boxes import Boxes, OnnxBox, module_of
from torch_vis.exporters.onnx.protos import can_be_sparse
from torch_vis.graph import Graph, TensorType
from torch_vis.graph.schema import ResultRow, Role

Demand = tuple[int, int]  # a value, and the box whose operation reads it


class BoxBorders:
    """The boundary of every box of a graph, box by box; dictionaries serve as ordered sets."""

    def __init__(self, boxes: Boxes) -> None:
        graph = boxes.graph
        self.boxes = boxes
        self.producer: list[int] = graph.value_producer.tolist()
        self.reads = node_reads(graph)
        self.values = len(self.producer)
        self.bundles: list[list[int]] = []  # the members of thing number values + 0, values + 1, …
        self.bundle_box: list[int] = []
        self.imports: list[dict[int, None]] = [{} for _ in boxes.boxes]
        self.exports: list[dict[int, None]] = [{} for _ in boxes.boxes]
        self.packed: dict[int, int] = {}  # box: the bundle that is made in it
        # for each box the bundles that are taken apart in it, with the members that are wanted there
        self.unpacked: list[dict[int, set[int]]] = [{} for _ in boxes.boxes]
        self._height: dict[int, int] = {}
        self._inside: dict[int, int] = {}  # the bundle that a thing is a member of
        self._late: dict[Demand, None] = {}

    def home(self, value: int) -> OnnxBox:
        """The box of the operation that makes a value."""
        return self.boxes[self.boxes.home[self.producer[value]]]

    def connect(self, lifted: Iterable[tuple[int, int]]) -> None:
        """Fill in what the operations read; ``lifted`` values must come out to the box of that depth as well."""
        uses = self._uses()
        for value, depth in lifted:
            self._lift(value, depth)
        for value, reader in uses:
            self._connect_one(value, self.boxes[reader])
        for value, reader in self._late:
            if self.height(value) == 0:
                self.let_in(value, self.boxes[reader], 0)
        kept = [demand for demand in self._late if self.height(demand[0]) > 0]
        self._bundle(dict.fromkeys(value for value, _ in kept))
        self._hand_down(kept)

    def height(self, value: int) -> int:
        """How deep in the boxes around it a value comes into sight by itself."""
        return self._height.get(value, len(self.home(value).path) - 1)

    def let_in(self, thing: int, box: OnnxBox, depth: int) -> None:
        """Bring a thing from the box of that depth down to a box inside."""
        for number in box.path[depth + 1 :]:
            self.imports[number][thing] = None

    def _uses(self) -> list[Demand]:
        home, producer = self.boxes.home, self.producer
        return list(
            dict.fromkeys(
                (value, home[node])
                for node, reads in enumerate(self.reads)
                for _, value in reads
                if producer[value] >= 0 and home[producer[value]] != home[node]
            )
        )

    def _connect_one(self, value: int, reader: OnnxBox) -> None:
        maker = self.home(value)
        depth = 0
        for ours, theirs in zip(maker.path[1:], reader.path[1:]):
            if ours != theirs:
                break
            depth += 1
        if maker.part != reader.part and maker.number and reader.number:
            self._late[value, reader.number] = None
            return
        self._lift(value, depth)
        self.let_in(value, reader, depth)

    def _lift(self, value: int, depth: int) -> None:
        """Bring a value out into the box of that depth."""
        for number in self.home(value).path[depth + 1 :]:
            self.exports[number][value] = None
        self._height[value] = min(self.height(value), depth)

    def _bundle(self, values: Iterable[int]) -> None:
        """Make the bundles of all boxes, the innermost boxes first; what would be a bundle of one goes by itself."""
        members: dict[int, list[int]] = {}
        for value in values:
            members.setdefault(self.home(value).path[self.height(value)], []).append(value)
        for number in range(len(self.boxes) - 1, 0, -1):
            inside = members.pop(number, None)
            if inside is None:
                continue
            inside.sort()
            thing = inside[0]
            if len(inside) > 1:
                thing = self.values + len(self.bundles)
                self.bundles.append(inside)
                self.bundle_box.append(number)
                self.packed[number] = thing
                self._inside.update(dict.fromkeys(inside, thing))
            self.exports[number][thing] = None
            parent = self.boxes[number].parent
            if parent:
                members.setdefault(parent, []).append(thing)

    def _way_to(self, value: int) -> list[int]:
        """The bundles to open on the way from the main graph to a value, the value last."""
        way = [value]
        while way[-1] in self._inside:
            way.append(self._inside[way[-1]])
        return way[::-1]

    def _hand_down(self, demands: Iterable[Demand]) -> None:
        """Bring bundles to the boxes whose operations read from them, and take them apart where they must be."""
        ways = {value: self._way_to(value) for value, _ in demands}
        arrived: list[dict[int, list[Demand]]] = [{} for _ in self.boxes.boxes]
        for value, reader in demands:
            arrived[self.boxes[reader].path[1]].setdefault(ways[value][0], []).append((value, reader))
        for number in range(1, len(self.boxes)):
            self.imports[number].update(dict.fromkeys(arrived[number]))
            at_hand = list(arrived[number].items())
            while at_hand:
                thing, wanted = at_hand.pop()
                inner = self._by_inner_box(number, wanted)
                if thing < self.values or (len(inner) == 1 and number not in inner):
                    for box, some in inner.items():
                        if box != number:
                            arrived[box].setdefault(thing, []).extend(some)
                    continue
                parted: dict[int, list[Demand]] = {}
                for value, reader in wanted:
                    way = ways[value]
                    parted.setdefault(way[way.index(thing) + 1], []).append((value, reader))
                self.unpacked[number][thing] = set(parted)
                at_hand.extend(parted.items())

    def _by_inner_box(self, number: int, demands: list[Demand]) -> dict[int, list[Demand]]:
        """Demands by the box in this one that they come from, or this one itself."""
        depth = len(self.boxes[number].path)
        by_box: dict[int, list[Demand]] = {}
        for value, reader in demands:
            path = self.boxes[reader].path
            by_box.setdefault(path[depth] if len(path) > depth else number, []).append((value, reader))
        return by_box


def bundle_word(part: RunPart) -> str:
    """What the values are that a part of the run leaves for the others."""
    return {RunPart.BACKWARD: "gradients", RunPart.OPTIMIZER: "updated"}.get(part, "saved")


WORDS = {"gradient": ".grad", "state": ".updated"}


class Join(NamedTuple):
    """A result that no single operation made, or that has a second name: a node that puts it together."""

    name: str
    kind: str
    sources: tuple[int, ...]
    type: TensorType


class Results:
    """The results of a run as named values, and as joins where a name alone does not do."""

    def __init__(self, graph: Graph, borders: BoxBorders) -> None:
        self.graph = graph
        self.borders = borders
        self.names: dict[int, str] = {}
        self.shown: dict[int, list[int | Join]] = {}  # by box, in the order of the results
        self.lifted: list[tuple[int, int]] = []  # values, and how deep in the boxes they must come into sight
        for number in range(len(graph.results)):
            self._add(number)

    def _add(self, number: int) -> None:
        graph, producer = self.graph, self.borders.producer
        row = graph.results[number]
        span = slice(int(graph.result_start[number]), int(graph.result_start[number + 1]))
        sources = tuple(dict.fromkeys(graph.result_value[span].tolist()))
        if not sources:
            return
        name = _result_name(row)
        computed = [value for value in sources if producer[value] >= 0]
        alone = len(sources) == 1 == len(computed) and sources[0] not in self.names
        box = 0 if row.kind == "output" or not alone else self.borders.home(sources[0]).number
        depth = max(0, len(self.borders.boxes[box].path) - 2)
        self.lifted += [(value, depth) for value in computed]
        shown = self.shown.setdefault(box, [])
        if alone:
            self.names[sources[0]] = name
            shown.append(sources[0])
        else:
            type_ = graph.types[int(graph.value_type[sources[0]])]
            shown.append(Join(name, row.kind or "result", sources, type_))


def _result_name(row: ResultRow) -> str:
    """What a result is called; Netron shows of a long name what follows the slash."""
    word = WORDS.get(row.kind)
    if word is None:
        return row.name or row.kind
    owner, dot, tail = row.name.removesuffix(word).rpartition(".")
    return f"{owner}{dot and '/'}{tail}{word}"


class OutsideTensors:
    """The inputs of the main graph, and for each box the weights, buffers and constants that are declared in it.

    One tensor may be declared in several boxes: its forward and its backward have it each at hand, under one name.
    """

    def __init__(self, graph: Graph, borders: BoxBorders) -> None:
        self.graph = graph
        self.borders = borders
        self.declared: dict[int, list[int]] = {}
        readers = self._readers()
        outside = np.flatnonzero(graph.value_producer < 0)
        is_input = graph.value_role[outside] == Role.INPUT
        self.inputs: list[int] = outside[is_input].tolist()
        for value in self.inputs:
            for number in readers.get(value, ()):
                borders.let_in(value, borders.boxes[number], 0)
        for value in outside[~is_input].tolist():
            self._declare(value, list(readers.get(value, ())))

    def _readers(self) -> dict[int, dict[int, None]]:
        """The boxes whose own operations read each value from outside."""
        readers: dict[int, dict[int, None]] = {}
        for node, reads in enumerate(self.borders.reads):
            for _, value in reads:
                if self.borders.producer[value] < 0:
                    readers.setdefault(value, {})[self.borders.boxes.home[node]] = None
        start = self.graph.result_start
        for value in self.graph.result_value[: int(start[-1])].tolist():  # one that came back as it was
            if self.borders.producer[value] < 0:
                readers.setdefault(value, {})[0] = None
        return readers

    def _declare(self, value: int, readers: list[int]) -> None:
        boxes = self.borders.boxes
        places = {self._place(value, boxes[number]) for number in readers}
        for number in readers:
            path = boxes[number].path
            depth = next(depth for depth, above in enumerate(path) if above in places)
            declared = self.declared.setdefault(path[depth], [])
            if value not in declared[-1:]:
                declared.append(value)
            self.borders.let_in(value, boxes[number], depth)

    def _place(self, value: int, box: OnnxBox) -> int:
        """The box around the module that owns the tensor; else the box that reads it."""
        path = module_of(self.borders.boxes, box).path
        owner, _, _ = outside_name(self.graph, value).rpartition(".")
        fits = can_be_sparse(self.graph.types[int(self.graph.value_type[value])])
        return box.parent if box.number and fits and owner == path else box.number
