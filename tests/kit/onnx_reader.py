"""Reads an exported model back, as strictly as ONNX could: what each operation reads, looked up name by name."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from torch_vis.graph import Graph

OWN = "torch_vis"
BUNDLES = {"saved", "gradients", "updated"}
RESULTS = {"output", "gradient", "state"}
ROLES = {"parameter", "buffer", "constant", "gradient", "optimizer_state", "activation", "output"}


def graphs(model: Any) -> Iterator[tuple[Any, Any]]:
    """Every graph of a model with the node that it is the body of; None for the main graph."""
    waiting = [(None, model.graph)]
    while waiting:
        node, graph = waiting.pop()
        yield node, graph
        waiting += [
            (inner, attribute.g)
            for inner in graph.node
            for attribute in inner.attribute
            if attribute.HasField("g")
        ]


def nodes(model: Any) -> list[Any]:
    """Every node of every graph."""
    return [node for _, graph in graphs(model) for node in graph.node]


def metadata(node: Any) -> dict[str, str]:
    return {entry.key: entry.value for entry in node.metadata_props}


def attributes(node: Any) -> dict[str, Any]:
    import onnx

    return {attribute.name: onnx.helper.get_attribute_value(attribute) for attribute in node.attribute}


def shape(info: Any) -> tuple[Any, ...]:
    dims = info.type.tensor_type.shape.dim
    return tuple(dim.dim_param if dim.HasField("dim_param") else dim.dim_value for dim in dims)


class Flat:
    """A model without its boxes: for each operation the origin of each input, and the origins of the outputs.

    An origin is ``(operation, place among its outputs)``, or ``("outside", name)``. A body sees its own inputs and
    weights and nothing of the graph around it.
    """

    def __init__(self, model: Any) -> None:
        self.inputs: dict[int, list[Any]] = {}
        self.boxes: dict[int, list[str]] = {}
        self.types: dict[str, Any] = {}
        env = {info.name: ("outside", info.name) for info in model.graph.input}
        self._run(model.graph, env, [])
        self.outputs = {info.name: env[info.name] for info in model.graph.output}

    def _run(self, graph: Any, env: dict[str, Any], path: list[str]) -> None:
        for weight in [*(w.values for w in graph.sparse_initializer), *graph.initializer]:
            assert weight.name not in env, f"{weight.name} is there already"
            env[weight.name] = ("outside", weight.name)
        for info in [*graph.input, *graph.output, *graph.value_info]:
            self.types.setdefault(info.name, info)
            assert info.type == self.types[info.name].type, f"{info.name} has two types"
        for node in graph.node:
            read = [env[name] for name in node.input]
            for name, origin in zip(node.output, self._outputs(node, read, path), strict=True):
                assert not name or name not in env, f"{name} is there already"
                env[name] = origin

    def _outputs(self, node: Any, read: list[Any], path: list[str]) -> list[Any]:
        if node.attribute and node.attribute[0].name == "body":
            body = node.attribute[0].g
            assert [info.name for info in body.input] == list(node.input)
            assert [info.name for info in body.output] == list(node.output) or not body.output
            env = dict(zip(node.input, read, strict=True))
            self._run(body, env, [*path, node.name])
            return [env.get(name) for name in node.output]
        if node.domain == OWN and node.op_type in BUNDLES:
            if len(read) == 1 and isinstance(read[0], list):
                return read[0]
            return [read]
        if node.domain == OWN and node.op_type in RESULTS and read:
            return [read]
        if node.domain == OWN and node.op_type in ROLES and not read:
            return [("outside", node.output[0])]
        number = int(node.name.rpartition("_")[2])
        assert number not in self.inputs, f"operation {number} is there twice"
        self.inputs[number] = read
        self.boxes[number] = path
        return [(number, place) for place in range(len(node.output))]


def expected_inputs(graph: Graph, node: int) -> list[Any]:
    """What an operation reads by the graph itself, as origins: arguments in order, and a set of what else it reads."""
    row = graph.nodes[node]
    named = list(row.inputs)
    seen = {value.index for value in named}
    more = {value.index: value for value, _ in row.reads if value.index not in seen}
    for value in row.outputs:
        below = value.carries
        if (
            below is not None
            and below.index not in seen
            and (below.producer is None or below.producer != row)
        ):
            more[below.index] = below
    return [[origin(value) for value in named], sorted(map(repr, map(origin, more.values())))]


def origin(value: Any) -> Any:
    producer = value.producer
    if producer is None:
        return ("outside", value.name or f"{value.role}_{value.index}")
    return (producer.index, [made.index for made in producer.outputs].index(value.index))
