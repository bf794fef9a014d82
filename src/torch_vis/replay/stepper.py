"""A replay one operation at a time, so that each one's outputs can be looked at before their memory is released."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import torch

from torch_vis.capture.kept_tensors import KeptTensors
from torch_vis.errors import TensorsMissing
from torch_vis.graph.graph import Graph
from torch_vis.graph.schema import Flag
from torch_vis.graph.text import and_more
from torch_vis.replay.replay import Replay, ReplayPlan, replay_context

See = Callable[[int, list[torch.Tensor]], None]


def tensors_for_replay(graph: Graph, held: KeptTensors | None) -> KeptTensors:
    """The tensors that a replay starts from; raises where they are not there any more."""
    if held is None:
        raise TensorsMissing(
            "this trace holds no tensors (loaded from a file, released, or traced with hold=False); trace again"
        )
    if not held.holds_numbers:
        raise TensorsMissing("the run used meta or fake tensors, which hold no data; trace with real tensors")
    stale = held.stale()
    if stale:
        raise TensorsMissing(
            f"changed since the trace: {and_more(stale)}; the run can only be repeated before they are written to again"
        )
    return held


class Stepper:
    """A replay that is advanced one operation at a time; the model and its state are not touched.

    ``steps`` is to be taken inside ``replay_context(run.plan.generators)``. Two runs may take turns: each has
    its own random stream.
    """

    def __init__(self, graph: Graph, held: KeptTensors | None) -> None:
        self.graph = graph
        self.plan = ReplayPlan(graph, tensors_for_replay(graph, held))
        self.replay = Replay(graph, self.plan.held, self.plan)
        self.done = self.plan.last_uses(range(len(graph)))
        self.states: dict[int, Any] = {}
        self.left: dict[Any, Any] = {}  # the state in which each generator was left

    def steps(self, before: Callable[[int], None] | None = None) -> Iterator[int]:
        """Run the operations in order; what one made can be looked at until the next is asked for.

        ``before`` is told of each one before it runs: what it reads may be overwritten by it.
        """
        random = (self.graph.node_flags & Flag.RANDOM) != 0
        for node in range(len(self.graph)):
            if before is not None:
                before(node)
            if random[node]:
                self._draw(node)
            else:
                self.replay.run_node(node, None)
            yield node
            for storage in self.done.get(node, ()):
                self.replay.memory.pop(storage, None)
                self.replay.objects.pop(storage, None)

    def _draw(self, node: int) -> None:
        generator = self.plan.generator(node)
        if generator in self.left and node not in self.plan.held.rng_states:
            self.states[node] = self.left[generator]
        self.replay.run_node(node, self.states)
        if generator is not None:
            self.left[generator] = generator.get_state()

    def outputs(self, node: int) -> list[torch.Tensor]:
        """What an operation that has just run made."""
        values = self.graph.out_value[slice(*self.graph.output_span(node))].tolist()
        return [self.replay.tensor(value) for value in values]


def observe(graph: Graph, held: KeptTensors | None, see: See, wanted: Any = None) -> None:
    """Rerun the recorded operations and show what each made, or each of those that a mask selects."""
    run = Stepper(graph, held)
    with replay_context(run.plan.generators):
        for node in run.steps():
            if wanted is None or wanted[node]:
                see(node, run.outputs(node))
