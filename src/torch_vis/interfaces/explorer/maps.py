"""Activation maps of a recorded run: the run is repeated once, and what each call gave is kept as small pictures."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from torch_vis._trace import Trace
from torch_vis.errors import TensorsMissing
from torch_vis.graph.module_table import output_values
from torch_vis.graph.schema import Phase
from torch_vis.views.terminal.panels.panel_canvas import sizes
from torch_vis.views.terminal.source import Picture

MOST_CALLS = 3  # of one row


class Maps:
    """The pictures of one trace; made when the first is asked for, and then all at once."""

    def __init__(self, trace: Trace, row_of_scope: Any) -> None:
        self.trace = trace
        self.calls: dict[int, list[tuple[int, int]]] = {}
        """For each row its calls: the number, and the value that came out."""
        graph = trace.graph
        for scope, value in sorted(output_values(graph).items()):
            row = int(row_of_scope[scope])
            producer = int(graph.value_producer[value])
            if row >= 0 and producer >= 0 and graph.node_phase[producer] == Phase.FORWARD:
                self.calls.setdefault(row, []).append((len(self.calls.get(row, ())), value))
        self._made: dict[int, list[Any]] | None = None

    def of(self, row: int) -> Sequence[Picture]:
        """What came out of a row, newest call first; raises ``TensorsMissing`` where the run cannot be repeated."""
        if self._made is None:
            self._made = self._repeat()
        found = []
        for number, value in reversed(self.calls.get(row, ())[:MOST_CALLS]):
            images = self._made.get(value)
            if images:
                shape = self.trace.graph.values[value].shape
                found.append(Picture(f"output of call {number} {sizes(shape)}", images))
        return found

    def _repeat(self) -> dict[int, list[Any]]:
        from torch_vis.capture.modules_only.tensor_stats import maps_of
        from torch_vis.replay.stepper import observe

        graph = self.trace.graph
        wanted = {value for calls in self.calls.values() for _, value in calls[:MOST_CALLS]}
        last = max((int(graph.value_producer[value]) for value in wanted), default=-1)
        found: dict[int, list[Any]] = {}

        def see(node: int, made: Any) -> None:
            if node > last:
                raise Enough
            first = int(graph.out_start[node])
            for place, tensor in enumerate(made):
                value = int(graph.out_value[first + place])
                if value in wanted:
                    found[value] = [np.asarray(image) for image in maps_of(tensor)]

        try:
            observe(graph, self.trace.kept, see)
        except Enough:
            pass  # what follows is backward, and of no interest here
        except TensorsMissing as error:
            raise TensorsMissing(f"no maps: {error}") from error
        return found


class Enough(Exception):
    """All that is wanted has been seen."""
