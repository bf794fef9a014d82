"""The ``.explorer.json`` file for Model Explorer, and beside it a heat map for each cost: ``x.heat.time.json``.

Modules are nested layers by their path. Backward, recomputation and the optimizer have layers of their own, so that
forward reads as it was written.
"""

from __future__ import annotations

import math
import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, BinaryIO

import numpy as np

from torch_vis.exporters.facts import Facts, circumstances, node_names, outside_name
from torch_vis.exporters.nesting import Namespaces, node_reads
from torch_vis.graph import Column, Graph, Metrics, Slot, TensorType
from torch_vis.graph.io.atomic import PathLike, replacing
from torch_vis.graph.io.tables_json import to_json
from torch_vis.graph.run import Run
from torch_vis.graph.schema import Role
from torch_vis.ops.display_names import op_label
from torch_vis.ops.schemas import literal, named_arguments, slot_names

ENDING = ".explorer.json"
HEAT = {"time_ns": ("time", "ns"), "alloc_bytes": ("memory", "bytes"), "flops": ("flops", "FLOPs")}
# a few operations take most of the cost, so the colours change fastest at the low end
GRADIENT = [
    {"stop": 0, "bgColor": "#ffffff"},
    {"stop": 0.05, "bgColor": "#fff3c4"},
    {"stop": 0.3, "bgColor": "#fdae61"},
    {"stop": 1, "bgColor": "#d73027"},
]
CODE = 500  # characters of an operation's line of code

Record = dict[str, Any]


def save(path: PathLike, run: Run) -> None:
    """Write a graph for Model Explorer, and a heat map beside it for time, memory and FLOPs where they are known.

    In Model Explorer, open the file and then load a heat map as node data. Each file is written whole or not at all.

    >>> import os, tempfile, torch, torch_vis as tv
    >>> folder = tempfile.mkdtemp()
    >>> t = tv.trace(torch.nn.ReLU(), torch.ones(2))
    >>> save(folder + "/run.explorer.json", t)
    >>> sorted(os.listdir(folder))[-2:]
    ['run.heat.memory.json', 'run.heat.time.json']
    """
    graph, metrics, name = run.graph, run.metrics, run.name
    with replacing(path) as file:
        _write(file, name, _Explorer(graph, metrics), run.limits, circumstances(run.meta))
    for metric, (word, unit) in HEAT.items():
        if metric in metrics and metrics[metric].along == "node":
            heat = _heat(graph, metrics[metric], f"{word} ({unit})" if word != "flops" else "FLOPs")
            with replacing(heat_path(path, word)) as file:
                file.write(to_json("heat map", {name: heat}, strict=True).encode())


def heat_path(path: PathLike, word: str) -> str:
    """Where the heat map of a cost goes.

    >>> heat_path("out/run.explorer.json", "time"), heat_path("run.json", "time")
    ('out/run.heat.time.json', 'run.heat.time.json')
    """
    text = os.fspath(path)
    stem = text[: -len(ENDING)] if text.lower().endswith(ENDING) else os.path.splitext(text)[0]
    return f"{stem}.heat.{word}.json"


def _write(
    file: BinaryIO, name: str, explorer: _Explorer, limits: Sequence[str], meta: Mapping[str, Any]
) -> None:
    def text(item: Any) -> bytes:
        return to_json("graph", item, strict=True).encode()

    file.write(b'{"label":' + text(name) + b',"graphs":[{"id":' + text(name) + b',"nodes":[')
    separator = b"\n"
    for record in explorer.nodes():
        file.write(separator + text(record))
        separator = b",\n"
    facts = {**meta, **({"limits": "\n".join(limits)} if limits else {})}
    groups = {"": {str(key): str(value) for key, value in facts.items()}, **explorer.groups()}
    file.write(b'\n],"groupNodeAttributes":' + text(groups) + b"}]}\n")


def _heat(graph: Graph, column: Column, name: str) -> Record:
    """The figures of one cost by operation; those that are not known have no entry."""
    results = {
        node: {"value": value}
        for node, value, counts in zip(node_names(graph), column.values.tolist(), column.known_rows.tolist())
        if counts and math.isfinite(value)
    }
    return {"name": name, "results": results, "gradient": GRADIENT}


class _Explorer:
    """The nodes of one graph as Model Explorer's records: tensors from outside, operations, results."""

    def __init__(self, graph: Graph, metrics: Metrics) -> None:
        self.graph = graph
        self.ids = node_names(graph)
        self.reads = node_reads(graph)
        self.spaces = Namespaces(graph)
        self.facts = Facts(graph, metrics)
        self.producer: list[int] = graph.value_producer.tolist()
        self.types = [_type_text(type_) for type_ in graph.types]
        self.calls = [self._call(number) for number in range(len(graph.calls))]
        index = np.arange(len(graph.out_value)) - np.repeat(graph.out_start[:-1], np.diff(graph.out_start))
        self.output_id = dict(zip(graph.out_value.tolist(), index.tolist()))

    def nodes(self) -> Iterator[Record]:
        """Every record, what is read before what reads it."""
        yield from self._outside()
        for node in range(len(self.graph)):
            yield self._operation(node)
        yield from self._results()

    def groups(self) -> dict[str, dict[str, str]]:
        """What is known of each layer: its module, and the sums over its operations."""
        spaces = self.spaces
        sums = self.facts.of_groups(spaces.of_node, spaces.parents)
        groups = {}
        for name, scope, facts in zip(spaces.names, spaces.scopes, sums):
            if name:
                module = self.graph.modules[int(self.graph.scope_module[scope])] if scope >= 0 else None
                about = {"class": module.type, "module": module.path} if module else {}
                groups[name] = {**about, **dict(facts)}
        return groups

    def _outside(self) -> Iterator[Record]:
        """Tensors from outside, each beside the first operation that reads it; the run's inputs at the top."""
        graph = self.graph
        reader: dict[int, int] = {}
        for node in range(len(graph) - 1, -1, -1):
            reader.update((value, node) for _, value in self.reads[node] if self.producer[value] < 0)
        for value in np.flatnonzero(graph.value_producer < 0).tolist():
            role, name = Role(graph.value_role[value]), outside_name(graph, value)
            facts = [("name", name), ("role", role.name.lower())]
            near = -1 if role == Role.INPUT else reader.get(value, -1)
            label, space = self._beside(near, name)
            yield _record(f"value:{value}", label, space, facts, [], [self._type(value)])

    def _beside(self, node: int, name: str) -> tuple[str, str]:
        """The label and namespace of a tensor that stands beside an operation; -1 is the main graph.

        Inside its module, ``fc.weight`` is just ``weight``.
        """
        if node < 0:
            return name, ""
        path = self.graph.scope_paths[int(self.graph.node_scope[node])]
        return name.removeprefix(f"{path}.") or name, self.spaces.name(node)

    def _operation(self, node: int) -> Record:
        graph = self.graph
        call = int(graph.node_call[node])
        title, facts, ports, code = self.calls[call]
        link, scope = int(graph.node_link[node]), int(graph.node_scope[node])
        facts = [*facts, ("code", code), *self.facts.of_node(node)]
        if graph.scope_paths[scope]:
            facts.append(("module", graph.scope_paths[scope]))
        if link >= 0:
            facts.append(("forward", self.ids[link]))
        reads = self.reads[node]
        outputs = graph.out_value[slice(*graph.output_span(node))].tolist()
        record = _record(
            self.ids[node],
            title,
            self.spaces.name(node),
            facts,
            [self._source(value) for _, value in reads],
            [self._type(value) for value in outputs],
        )
        record["inputsMetadata"] = [
            {"id": str(index), "attrs": _attrs([("__tensor_tag", ports.get(slot, "through an alias"))])}
            for index, (slot, _) in enumerate(reads)
        ]
        return record

    def _results(self) -> Iterator[Record]:
        """The results of the run: outputs at the top, gradients and changed state beside what made them."""
        for result in self.graph.outcomes:
            values = list(dict.fromkeys(value for value, _ in result.sources()))
            producers = [self.producer[value] for value in values if self.producer[value] >= 0]
            near = producers[0] if producers and result.kind != "output" else -1
            label, space = self._beside(near, result.name or result.kind)
            label += " updated" if result.kind == "state" else ""
            facts = [("name", result.name), ("result", result.kind)]
            sources = [self._source(value) for value in values]
            yield _record(f"result:{result.index}", label, space, facts, sources, [])

    def _call(self, number: int) -> tuple[str, list[tuple[str, str]], dict[int, str], str]:
        """What operations with the same call share: title, hyperparameters, names of inputs, line of code."""
        call = self.graph.calls[number]
        arguments = named_arguments(call)
        ports = slot_names(arguments)
        facts = [("op", call.op)]
        facts += [
            (name, literal(argument, ports))
            for name, argument in arguments
            if not isinstance(argument, Slot) and argument is not None and not _only_slots(argument)
        ]
        code = call.format(lambda slot: ports.get(slot, "?"))
        return op_label(call.op) or call.op, facts, ports, code if len(code) <= CODE else f"{code[:CODE]}…"

    def _source(self, value: int) -> tuple[str, int]:
        producer = self.producer[value]
        return (f"value:{value}", 0) if producer < 0 else (self.ids[producer], self.output_id[value])

    def _type(self, value: int) -> str:
        return self.types[int(self.graph.value_type[value])]


def _record(
    name: str,
    label: str,
    space: str,
    facts: Iterable[tuple[str, str]],
    sources: Iterable[tuple[str, int]],
    types: Iterable[str],
) -> Record:
    return {
        "id": name,
        "label": label,
        "namespace": space,
        "attrs": _attrs(facts),
        "incomingEdges": [
            {"sourceNodeId": source, "sourceNodeOutputId": str(output), "targetNodeInputId": str(index)}
            for index, (source, output) in enumerate(sources)
        ],
        "outputsMetadata": [
            {"id": str(index), "attrs": _attrs([("tensor_shape", type_)])}
            for index, type_ in enumerate(types)
        ],
    }


def _attrs(facts: Iterable[tuple[str, str]]) -> list[Record]:
    return [{"key": key, "value": value} for key, value in facts]


def _only_slots(argument: Any) -> bool:
    return type(argument) is tuple and bool(argument) and all(isinstance(part, Slot) for part in argument)


def _type_text(type_: TensorType) -> str:
    layout = "" if type_.layout == "strided" else f" {type_.layout}"
    return f"{type_.dtype}[{', '.join(map(str, type_.shape))}]{layout}"
