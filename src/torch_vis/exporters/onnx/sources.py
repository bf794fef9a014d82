"""Where tensors from outside are declared: a weight on the box of its module, so that it shows while that is closed."""

from __future__ import annotations

import numpy as np

from torch_vis.exporters.names import outside_name
from torch_vis.exporters.onnx.boxes import Box
from torch_vis.exporters.onnx.crossing import Crossing
from torch_vis.exporters.onnx.naming import module_of
from torch_vis.exporters.onnx.protos import can_be_sparse
from torch_vis.graph import Graph
from torch_vis.graph.schema import Role


class Sources:
    """The inputs of the main graph, and for each box the weights, buffers and constants that are declared in it.

    One tensor may be declared in several boxes: its forward and its backward have it each at hand, under one name.
    """

    def __init__(self, graph: Graph, crossing: Crossing) -> None:
        self.graph = graph
        self.crossing = crossing
        self.declared: dict[int, list[int]] = {}
        readers = self._readers()
        outside = np.flatnonzero(graph.value_producer < 0)
        is_input = graph.value_role[outside] == Role.INPUT
        self.inputs: list[int] = outside[is_input].tolist()
        for value in self.inputs:
            for number in readers.get(value, ()):
                crossing.let_in(value, crossing.boxes[number], 0)
        for value in outside[~is_input].tolist():
            self._declare(value, list(readers.get(value, ())))

    def _readers(self) -> dict[int, dict[int, None]]:
        """The boxes whose own operations read each value from outside."""
        found: dict[int, dict[int, None]] = {}
        for node, reads in enumerate(self.crossing.reads):
            for _, value in reads:
                if self.crossing.producer[value] < 0:
                    found.setdefault(value, {})[self.crossing.boxes.home[node]] = None
        start = self.graph.result_start
        for value in self.graph.result_value[: int(start[-1])].tolist():  # one that came back as it was
            if self.crossing.producer[value] < 0:
                found.setdefault(value, {})[0] = None
        return found

    def _declare(self, value: int, readers: list[int]) -> None:
        boxes = self.crossing.boxes
        places = {self._place(value, boxes[number]) for number in readers}
        for number in readers:
            path = boxes[number].path
            depth = next(depth for depth, above in enumerate(path) if above in places)
            declared = self.declared.setdefault(path[depth], [])
            if value not in declared[-1:]:
                declared.append(value)
            self.crossing.let_in(value, boxes[number], depth)

    def _place(self, value: int, box: Box) -> int:
        """The box around the module that owns the tensor; else the box that reads it."""
        path = module_of(self.crossing.boxes, box).path
        owner, _, _ = outside_name(self.graph, value).rpartition(".")
        fits = can_be_sparse(self.graph.types[int(self.graph.value_type[value])])
        return box.parent if box.number and fits and owner == path else box.number
