"""Does a change pass from an input to a result, one operation at a time?

A whole run can hide a true connection: a value is added and subtracted again, or stacked and not selected. So each
operation on the way is asked alone whether a change of what it reads changes what it makes, first as it ran and then,
since a mask or a comparison may happen to block it, with its other inputs scrambled too.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch

from torch_vis.capture.kept_tensors import copy_of
from torch_vis.graph.graph import Graph
from torch_vis.graph.schema import Flag, Kind
from torch_vis.replay.replay import Replay, flat, quiet, same_bits

Change = Callable[[torch.Tensor], torch.Tensor]


def passes(
    replay: Replay, start: int, goals: Sequence[int], changes: Sequence[Change], states: dict[int, Any]
) -> set[int]:
    """Which of the results ``goals`` a change of the value ``start`` reaches, operation by operation."""
    graph = replay.graph
    reached = np.zeros(len(graph.value_type), dtype=bool)
    reached[(graph.value_storage == graph.value_storage[start]) & (graph.value_producer < 0)] = True
    wanted, _ = graph.ancestors([pair for goal in goals for pair in graph.outcomes[goal].sources()])
    for node in range(len(graph)):
        if wanted[node]:
            reads = _reached_reads(graph, node, reached)
            if reads and (
                graph.node_flags[node] & Flag.OPAQUE or _moves(replay, node, reads, changes, states)
            ):
                reached[graph.out_value[slice(*graph.output_span(node))]] = True
        replay.run([node], states=states, release=False)
    return {goal for goal in goals if _holds(graph, _own_sources(graph, goal), reached)}


def _own_sources(graph: Graph, goal: int) -> list[tuple[int, int]]:
    """What a result rests on, as far as it lies in the result's own memory: it cannot rest on anything else."""
    sources = graph.outcomes[goal].sources()
    home = graph.value_storage[sources[0][0]]
    return [pair for pair in sources if graph.value_storage[pair[0]] == home]


def _reached_reads(graph: Graph, node: int, reached: Any) -> list[tuple[int, int]]:
    span = range(*graph.input_span(node))
    pairs = [(int(graph.in_value[row]), int(graph.in_kind[row])) for row in span]
    return [pair for pair in pairs if _holds(graph, [pair], reached)]


def _holds(graph: Graph, pairs: Sequence[tuple[int, int]], reached: Any) -> bool:
    for value, kind in pairs:
        if kind == Kind.SHAPE:
            continue
        while value >= 0:
            if reached[value]:
                return True
            value = int(graph.value_carries[value]) if kind == Kind.WHOLE else -1
    return False


def _moves(
    replay: Replay,
    node: int,
    reads: Sequence[tuple[int, int]],
    changes: Sequence[Change],
    states: dict[int, Any],
) -> bool:
    plain = _results(replay, node, states, scramble=None, changed=())
    for change in (*changes, *EXTREMES):
        if plain is not None and _differ(
            plain, _results(replay, node, states, scramble=None, changed=reads, change=change)
        ):
            return True
        for seed in range(2):
            base = _results(replay, node, states, scramble=seed, changed=())
            moved = _results(replay, node, states, scramble=seed, changed=reads, change=change)
            if base is not None and _differ(base, moved):
                return True
    return False


def _results(
    replay: Replay,
    node: int,
    states: dict[int, Any],
    *,
    scramble: int | None,
    changed: Sequence[tuple[int, int]],
    change: Change | None = None,
) -> list[torch.Tensor] | None:
    """What a node would make of changed inputs, on copies; None if it refuses them."""
    graph, plan = replay.graph, replay.plan
    arguments = plan.arguments(node)
    kept = {int(graph.value_storage[value]) for value, _ in changed}
    kept |= {int(graph.value_storage[value]) for value in arguments}
    saved = {storage: copy_of(replay.memory[storage]) for storage in kept if storage in replay.memory}
    try:
        with quiet(plan.generators):
            if scramble is not None:
                generator = torch.Generator().manual_seed(scramble)
                for value in arguments:
                    _scramble(replay.tensor(value), generator)
            for value, _ in changed:
                if change is not None:
                    tensor = replay.tensor(value)
                    tensor.copy_(change(tensor.clone()))
            tensors = [replay.tensor(value).clone() for value in arguments]
            args, kwargs = plan.prepared(node).arguments(tensors)
            random = plan.generator(node) if graph.node_flags[node] & Flag.RANDOM else None
            if random is not None and node in states:
                random.set_state(states[node])
            made = list(flat(plan.prepared(node).run(*args, **kwargs)))
            rows = range(*graph.output_span(node))
            written = [tensors[-1 - graph.out_slot[row]] for row in rows if graph.out_slot[row] < 0]
            return [tensor.clone() for tensor in [*made, *written]]
    except (RuntimeError, IndexError, ValueError):
        return None  # outside what the operation accepts: another change may do
    finally:
        for storage, block in saved.items():
            replay.memory[storage].copy_(block)


def _filled(number: float) -> Change:
    def fill(tensor: torch.Tensor) -> torch.Tensor:
        return torch.full_like(tensor, number) if tensor.is_floating_point() else tensor

    return fill


EXTREMES = (
    _filled(float("nan")),
    _filled(1e30),
    _filled(-1e30),
)  # get past what cancels, and past any threshold


def _scramble(tensor: torch.Tensor, generator: torch.Generator) -> None:
    if tensor.is_floating_point():
        tensor.copy_(torch.randn(tensor.shape, generator=generator).to(tensor))
    elif tensor.dtype == torch.bool:
        tensor.copy_(torch.rand(tensor.shape, generator=generator).to(tensor.device) < 0.5)


def _differ(left: list[torch.Tensor], right: list[torch.Tensor] | None) -> bool:
    return right is not None and (
        len(left) != len(right) or any(not same_bits(a, b) for a, b in zip(left, right, strict=True))
    )
