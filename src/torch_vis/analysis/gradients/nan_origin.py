"""Where NaN first appears in a run: the operation that made it out of inputs without, and the infinity behind it."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from typing import NamedTuple

from torch_vis.analysis.gradients.tensor_stats import outside_faults
from torch_vis.capture.kept_tensors import KeptTensors
from torch_vis.errors import UsageError
from torch_vis.graph.graph import Graph, Node
from torch_vis.graph.metrics import Column
from torch_vis.graph.schema import Kind
from torch_vis.graph.text import and_more
from torch_vis.graph.types import Bools


class Origins(NamedTuple):
    """The origins of such numbers: the first operation that made them, and tensors that had them before the run."""

    node: Node | None
    inputs: list[str]


def first_with(graph: Graph, column: Column, outside: Collection[str]) -> Node | None:
    """The first operation that made such numbers while nothing that it read had any; ``outside`` had to begin with."""
    if not column.values.any():
        return None
    spoilt = column.values > 0
    known = column.known_rows
    for node in range(len(spoilt)):
        if known[node] and not spoilt[node]:
            continue
        row = graph.nodes[node]
        given = any(value.name in outside for value in row.inputs) or bool(
            spoilt[graph.producers(node)].any()
        )
        if known[node] and not given:
            return row
        # views are not looked at: they have what they are views of
        spoilt[node] |= given
    return None


def origins(graph: Graph, column: Column, outside: Collection[str], nodes: Iterable[int]) -> Origins:
    """The origins of such numbers in what these operations read, found by following them back to where they begin."""
    spoilt, known = column.values > 0, column.known_rows
    inputs: dict[str, None] = {}
    result: list[int] = []
    stack = list(nodes)
    seen, asked = set(stack), set(stack)
    while stack:
        node = stack.pop()
        names, producers = _spoilt_sources(graph, node, spoilt, known, outside)
        inputs.update(dict.fromkeys(names))
        if not names and not producers and (node not in asked or spoilt[node]):
            result.append(node)
        stack += [producer for producer in producers if producer not in seen]
        seen.update(producers)
    return Origins(graph.nodes[min(result)] if result else None, list(inputs))


def _spoilt_sources(
    graph: Graph, node: int, spoilt: Bools, known: Bools, outside: Collection[str]
) -> tuple[list[str], list[int]]:
    """What an operation reads that has such numbers, views looked through: tensors from outside, and operations."""
    names: list[str] = []
    producers: list[int] = []
    stack, seen = [node], {node}
    while stack:
        rows = slice(*graph.input_span(stack.pop()))
        for value in graph.in_value[rows][graph.in_kind[rows] != Kind.SHAPE].tolist():
            producer, name = int(graph.value_producer[value]), graph.values[value].name or str(value)
            if producer < 0:
                names += [name] if name in outside else []
            elif producer not in seen:
                seen.add(producer)
                if known[producer]:
                    producers += [producer] if spoilt[producer] else []
                else:
                    stack.append(producer)
    return names, producers


def left_out(graph: Graph, kept: KeptTensors | None, spoilt: int, elements: int, so: str) -> dict[str, int]:
    """How many elements are NaN or infinite: of the inputs, by name, and ``spoilt`` of those of the output.

    An infinite input or buffer that does no harm is a mask. Where nothing of the output is left it raises, and ``so``
    says what that means.
    """
    roles = {value.name: value.role for value in graph.values if value.producer is None}
    given = {
        name: nans + infs if roles.get(name) == "parameter" else nans
        for name, (nans, infs) in outside_faults(graph, kept).items()
    }
    given = {name: number for name, number in given.items() if number}
    if spoilt and spoilt == elements:
        why = f" (the run starts with it, in {', '.join(given)})" if given else ""
        raise UsageError(f"all of the output is NaN or infinite{why}, so {so}")
    return {**given, "the output": spoilt} if spoilt else given


def warning(left_out: dict[str, int], most: int = 4) -> str:
    """The same in words.

    >>> warning({"input": 1, "the output": 1024})
    'NaN or infinite elements in input (1), the output (1,024): left out of all figures'
    """
    named = [f"{name} ({number:,})" for name, number in left_out.items()]
    return f"NaN or infinite elements in {and_more(named, most)}: left out of all figures"
