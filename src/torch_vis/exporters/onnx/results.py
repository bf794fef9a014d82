"""Where a graph's results show: outputs leave the main graph, gradients and changed state the box that makes them."""

from __future__ import annotations

from typing import NamedTuple

from torch_vis.exporters.onnx.crossing import Crossing
from torch_vis.graph import Graph, TensorType
from torch_vis.graph.schema import ResultRow

WORDS = {"gradient": ".grad", "state": ".updated"}


class Join(NamedTuple):
    """A result that no single operation made, or that has a second name: a node that puts it together."""

    name: str
    kind: str
    sources: tuple[int, ...]
    type: TensorType


class Results:
    """The results of a run as named values, and as joins where a name alone does not do."""

    def __init__(self, graph: Graph, crossing: Crossing) -> None:
        self.graph = graph
        self.crossing = crossing
        self.names: dict[int, str] = {}
        self.shown: dict[int, list[int | Join]] = {}  # by box, in the order of the results
        self.lifted: list[tuple[int, int]] = []  # values, and how deep in the boxes they must come into sight
        for number in range(len(graph.results)):
            self._add(number)

    def _add(self, number: int) -> None:
        graph, producer = self.graph, self.crossing.producer
        row = graph.results[number]
        span = slice(int(graph.result_start[number]), int(graph.result_start[number + 1]))
        sources = tuple(dict.fromkeys(graph.result_value[span].tolist()))
        if not sources:
            return
        name = _name(row)
        made = [value for value in sources if producer[value] >= 0]
        alone = len(sources) == 1 == len(made) and sources[0] not in self.names
        box = 0 if row.kind == "output" or not alone else self.crossing.home(sources[0]).number
        depth = max(0, len(self.crossing.boxes[box].path) - 2)
        self.lifted += [(value, depth) for value in made]
        shown = self.shown.setdefault(box, [])
        if alone:
            self.names[sources[0]] = name
            shown.append(sources[0])
        else:
            type_ = graph.types[int(graph.value_type[sources[0]])]
            shown.append(Join(name, row.kind or "result", sources, type_))


def _name(row: ResultRow) -> str:
    """What a result is called; Netron shows of a long name what follows the slash."""
    word = WORDS.get(row.kind)
    if word is None:
        return row.name or row.kind
    owner, dot, tail = row.name.removesuffix(word).rpartition(".")
    return f"{owner}{dot and '/'}{tail}{word}"
