"""The ``.onnx`` file for Netron: modules that expand in place, shapes on edges, weights without their data.

It describes a run and is not meant to be executed: operators keep torch's names, in the domain ``aten``. A call of a
module is a node of the domain ``torch_vis`` whose attribute ``body`` is a graph; what it did in backward is a node of
its own.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from torch_vis.exporters.facts import Facts, Names, circumstances, clean, node_names, outside_name
from torch_vis.exporters.nesting import RunPart, Stretches, main_scope, node_parts, node_reads
from torch_vis.exporters.onnx_protos import (
    DOMAIN,
    Protos,
    can_be_sparse,
    import_domains,
    name_inputs,
    say,
    true_type,
)
from torch_vis.graph import Graph, Metrics, TensorType
from torch_vis.graph.call import short_name
from torch_vis.graph.io.atomic import PathLike, replacing
from torch_vis.graph.run import Run
from torch_vis.graph.schema import Module, ResultRow, Role
from torch_vis.graph.types import Ints
from torch_vis.ops.schemas import named_arguments, slot_names

if TYPE_CHECKING:
    import onnx


LINE = 300  # characters of an operation's line of code
ALIAS = "through an alias"


def save(path: PathLike, run: Run) -> None:
    """Write a graph as an ONNX model that Netron shows, whole or not at all.

    >>> import tempfile, onnx
    >>> from torch_vis.graph import GraphBuilder, Metrics
    >>> from torch_vis.graph.run import Run
    >>> path = tempfile.mkdtemp() + "/run.onnx"
    >>> save(path, Run(GraphBuilder().build(), Metrics(), meta={"model": "Net"}))
    >>> onnx.load(path).graph.name
    'Net'
    """
    data = to_onnx(run).SerializeToString(deterministic=True)
    with replacing(path) as file:
        file.write(data)


def to_onnx(run: Run) -> onnx.ModelProto:
    """The same model as an ``onnx.ModelProto``.

    >>> import torch, torch_vis as tv
    >>> t = tv.trace(torch.nn.Sequential(torch.nn.Linear(3, 2), torch.nn.ReLU()), torch.ones(1, 3))
    >>> model = to_onnx(t)
    >>> [(node.op_type, [inner.op_type for inner in node.attribute[0].g.node]) for node in model.graph.node]
    [('Linear', ['t', 'addmm']), ('ReLU', ['relu'])]
    """
    return Writer(run.graph, run.metrics, Protos()).model(run.limits, circumstances(run.meta))


class Writer:
    """Writes one graph; ``model`` is the result."""

    def __init__(self, graph: Graph, metrics: Metrics, protos: Protos) -> None:
        self.graph = graph
        self.protos = protos
        self.boxes = Boxes(graph)
        self.borders = BoxBorders(self.boxes)
        self.results = Results(graph, self.borders)
        self.borders.connect(self.results.lifted)
        self.sources = OutsideTensors(graph, self.borders)
        self.facts = Facts(graph, metrics)
        self.sums = self.facts.of_groups(self.boxes.home, [0, *(box.parent for box in self.boxes.boxes[1:])])
        self.sites = common_sites(self.boxes)
        self.unread = set(range(self.borders.values)).difference(graph.in_value.tolist())
        self.types: list[int] = graph.value_type.tolist()
        self.domains = {DOMAIN}
        self.value_names = Names()
        self.names = self._name_values()
        self.node_names = node_names(graph)
        self.more_node_names = Names(self.node_names)
        self._calls: dict[int, _Call] = {}

    def model(self, limits: Sequence[str], meta: Mapping[str, Any]) -> onnx.ModelProto:
        """The whole model."""
        model = self.protos.model(clean(str(meta.get("model") or "run")) or "run", len(self.graph))
        model.graph.input.extend(self._info(value) for value in self.sources.inputs)
        waiting = [(self.boxes[0], model.graph)]
        while waiting:
            waiting += self._fill(*waiting.pop())
        import_domains(model, self.domains)
        facts = {**meta, **({"limits": "\n".join(limits)} if limits else {})}
        say(model, *((str(key), str(value)) for key, value in facts.items()))
        return model

    def _name_values(self) -> list[str]:
        """A name for every value and bundle: its own, else the result's, else ``%12`` for ``graph.values[12]``."""
        names = [""] * (self.borders.values + len(self.borders.bundles))
        for value, producer in enumerate(self.borders.producer):
            if producer < 0:
                names[value] = self.value_names.new(outside_name(self.graph, value))
        for value, name in self.results.names.items():
            names[value] = self.value_names.new(name)
        for value in range(self.borders.values):
            names[value] = names[value] or self.value_names.new(f"%{value}")
        for number, box in enumerate(self.borders.bundle_box):
            word = bundle_word(self.boxes[box].part)
            names[self.borders.values + number] = self.value_names.new(f"{word}_{box}")
        return names

    def _fill(self, box: OnnxBox, proto: onnx.GraphProto) -> list[tuple[OnnxBox, onnx.GraphProto]]:
        """The contents of one graph; returns the boxes in it with bodies that are still to be filled."""
        inner = []
        leaving = set(self._leaving(box))
        for value in self.sources.declared.get(box.number, ()):
            self._declare(proto, value)
        for bundle, wanted in self.borders.unpacked[box.number].items():
            self._unpack(proto, bundle, wanted)
        for item in self.boxes.ordered(box):
            if item < 0:
                inner.append((self.boxes[~item], self._box(proto, self.boxes[~item], leaving)))
            else:
                self._operation(proto, item, leaving)
        if box.number in self.borders.packed:
            self._pack(proto, self.borders.packed[box.number])
        self._give_out(box, proto)
        return inner

    def _leaving(self, box: OnnxBox) -> list[int]:
        """What a graph gives out, joins aside."""
        shown = [result for result in self.results.shown.get(box.number, []) if not isinstance(result, Join)]
        return [*dict.fromkeys([*self.borders.exports[box.number], *shown])]

    def _give_out(self, box: OnnxBox, proto: onnx.GraphProto) -> None:
        """The outputs of a graph; in the main graph they stand in the order of the results."""
        proto.output.extend(self._info(wire) for wire in self.borders.exports[box.number])
        for result in self.results.shown.get(box.number, []):
            if isinstance(result, Join):
                name = self.value_names.new(result.name)
                self._link(proto, clean(result.kind), name, result.sources)
                proto.output.append(self.protos.value_info(name, result.type))
            elif result not in self.borders.exports[box.number]:
                proto.output.append(self._info(result))

    def _info(self, wire: int) -> onnx.ValueInfoProto:
        """The name and type of a value or bundle."""
        if wire < self.borders.values:
            return self.protos.value_info(self.names[wire], self.graph.types[self.types[wire]])
        type_ = self.protos.bundle_type(self._word(wire))
        return self.protos.onnx.ValueInfoProto(name=self.names[wire], type=type_)

    def _word(self, bundle: int) -> str:
        return bundle_word(self.boxes[self.borders.bundle_box[bundle - self.borders.values]].part)

    def _declare(self, proto: onnx.GraphProto, value: int) -> None:
        """A tensor from outside, without its data."""
        if not self.protos.declare(proto, self.names[value], self.graph.types[self.types[value]]):
            # ONNX has no scalar without a number, and the number is not known.
            role = Role(self.graph.value_role[value]).name.lower()
            self._link(proto, role, self.names[value], ())
            proto.value_info.append(self._info(value))

    def _link(self, proto: onnx.GraphProto, title: str, output: str, inputs: Sequence[int]) -> None:
        """A node that stands for no operation: a source, a bundle, a result."""
        name = self.more_node_names.new(output)
        names = [self.names[wire] for wire in inputs]
        proto.node.add(op_type=title, domain=DOMAIN, name=name, input=names, output=[output])

    def _pack(self, proto: onnx.GraphProto, bundle: int) -> None:
        members = self.borders.bundles[bundle - self.borders.values]
        self._link(proto, self._word(bundle), self.names[bundle], members)

    def _unpack(self, proto: onnx.GraphProto, bundle: int, wanted: set[int]) -> None:
        members = self.borders.bundles[bundle - self.borders.values]
        proto.node.add(
            op_type=self._word(bundle),
            domain=DOMAIN,
            name=self.more_node_names.new(self.names[bundle]),
            input=[self.names[bundle]],
            output=[self.names[wire] if wire in wanted else "" for wire in members],
        )
        proto.value_info.extend(self._info(wire) for wire in members if wire in wanted)

    def _operation(self, proto: onnx.GraphProto, node: int, leaving: set[int]) -> None:
        graph = self.graph
        call = self._call(int(graph.node_call[node]))
        reads = self.borders.reads[node]
        values = graph.out_value[slice(*graph.output_span(node))].tolist()
        inputs = [self.names[value] for _, value in reads]
        outputs = [self.names[value] for value in values]
        line = graph.calls[call.number].format(lambda slot: _tail(inputs[slot]))
        new = proto.node.add(
            op_type=call.title,
            domain=call.domain,
            name=self.node_names[node],
            doc_string=clean(f"{', '.join(map(_tail, outputs))} = {line}" if outputs else line, LINE),
            input=inputs,
            output=outputs or self._placeholder(inputs, self.node_names[node]),
            attribute=call.attributes,
        )
        name_inputs(new, (call.slots.get(slot, ALIAS) for slot, _ in reads))
        box_has_site = self.sites[self.boxes.home[node]] == graph.node_site[node]
        say(new, *self.facts.of_node(node, site=not box_has_site), *self._rare_facts(node, values))
        proto.value_info.extend(self._info(value) for value in values if value not in leaving)

    def _rare_facts(self, node: int, values: list[int]) -> list[tuple[str, str]]:
        """The forward operation, a module that has no box, element types that ONNX has not."""
        graph, facts = self.graph, []
        link, scope = int(graph.node_link[node]), int(graph.node_scope[node])
        if link >= 0:
            facts.append(("forward", self.node_names[link]))
        if scope != self.boxes[self.boxes.home[node]].scope and graph.scope_paths[scope]:
            facts.append(("module", graph.scope_paths[scope]))
        for value in values:
            dtype = true_type(graph.types[self.types[value]])
            if dtype:
                facts.append((f"type of {self.names[value]}", dtype))
        return facts

    def _box(self, proto: onnx.GraphProto, box: OnnxBox, leaving: set[int]) -> onnx.GraphProto:
        """The node of a box, and its body with inputs but still without contents."""
        imports, exports = list(self.borders.imports[box.number]), self._leaving(box)
        module = module_of(self.boxes, box)
        inputs = [self.names[wire] for wire in imports]
        name = self.more_node_names.new(box_name(self.boxes, box))
        new = proto.node.add(
            op_type=box_title(self.boxes, box),
            domain=DOMAIN,
            name=name,
            input=inputs,
            output=[self.names[wire] for wire in exports] or self._placeholder(inputs, name),
        )
        if any(wire < self.borders.values and self.borders.producer[wire] < 0 for wire in imports):
            name_inputs(new, (name.removeprefix(f"{module.path}.") for name in inputs))
        say(new, *self._box_facts(box))
        body = new.attribute.add(name="body", type=self.protos.onnx.AttributeProto.GRAPH).g
        body.name = body_name(self.boxes, box)
        body.input.extend(self._info(wire) for wire in imports)
        proto.value_info.extend(
            self._info(wire) for wire in exports if wire not in leaving and wire not in self.unread
        )
        return body

    def _box_facts(self, box: OnnxBox) -> list[tuple[str, str]]:
        facts = []
        if box.stretch < 0:
            module, call = module_of(self.boxes, box), int(self.graph.scope_call[box.scope])
            facts += [("kind", module.kind)] if module.kind != "module" else []
            facts += [("call", str(call + 1))] if call else []
        if self.sites[box.number] != self.sites[box.parent]:
            facts += self.facts.of_site(self.sites[box.number])
        return facts + self.sums[box.number]

    def _placeholder(self, inputs: list[str], name: str) -> list[str]:
        """An output for a node that would have neither input nor output, which ONNX does not allow."""
        return [] if inputs else [self.value_names.new(name)]

    def _call(self, number: int) -> _Call:
        call = self._calls.get(number)
        if call is None:
            record = self.graph.calls[number]
            arguments = [(clean(name), argument) for name, argument in named_arguments(record)]
            domain = clean(record.op.rpartition("::")[0]) or DOMAIN
            self.domains.add(domain)
            title = clean(short_name(record.op)) or "operation"
            call = _Call(number, title, domain, self.protos.attributes(arguments), slot_names(arguments))
            self._calls[number] = call
        return call


class _Call(NamedTuple):
    """What every operation with the same call has in common."""

    number: int
    title: str
    domain: str
    attributes: list[onnx.AttributeProto]
    slots: dict[int, str]


def _tail(name: str) -> str:
    """The end of a name, enough to know it by in a line of code: ``query.bias``."""
    return ".".join(name.replace("/", ".").split(".")[-2:])


Demand = tuple[int, int]  # a value, and the box whose operation reads it


class BoxBorders:
    """The boundary of every box of a graph, box by box; dictionaries serve as ordered sets.

    What crosses it is a wire: a value, or a bundle of wires, whose number is that of the bundle after all values.
    """

    def __init__(self, boxes: Boxes) -> None:
        graph = boxes.graph
        self.boxes = boxes
        self.producer: list[int] = graph.value_producer.tolist()
        self.reads = node_reads(graph)
        self.values = len(self.producer)
        # the members of the wires with the numbers values + 0, values + 1, …
        self.bundles: list[list[int]] = []
        self.bundle_box: list[int] = []
        self.imports: list[dict[int, None]] = [{} for _ in boxes.boxes]
        self.exports: list[dict[int, None]] = [{} for _ in boxes.boxes]
        # box: the bundle that is made in it
        self.packed: dict[int, int] = {}
        # for each box the bundles that are split in it, with the members that are read there
        self.unpacked: list[dict[int, set[int]]] = [{} for _ in boxes.boxes]
        self._height: dict[int, int] = {}
        # the bundle that a wire is a member of
        self._inside: dict[int, int] = {}
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
        """How deep in the boxes around it a value is shown alone, not in a bundle."""
        return self._height.get(value, len(self.home(value).path) - 1)

    def let_in(self, wire: int, box: OnnxBox, depth: int) -> None:
        """Bring a wire from the box of that depth down to a box inside."""
        for number in box.path[depth + 1 :]:
            self.imports[number][wire] = None

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
        producer = self.home(value)
        depth = 0
        for ours, theirs in zip(producer.path[1:], reader.path[1:]):
            if ours != theirs:
                break
            depth += 1
        if producer.part != reader.part and producer.number and reader.number:
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
        """Make the bundles of all boxes, the innermost boxes first; a bundle of one is no bundle."""
        members: dict[int, list[int]] = {}
        for value in values:
            members.setdefault(self.home(value).path[self.height(value)], []).append(value)
        for number in range(len(self.boxes) - 1, 0, -1):
            inside = members.pop(number, None)
            if inside is None:
                continue
            inside.sort()
            wire = inside[0]
            if len(inside) > 1:
                wire = self.values + len(self.bundles)
                self.bundles.append(inside)
                self.bundle_box.append(number)
                self.packed[number] = wire
                self._inside.update(dict.fromkeys(inside, wire))
            self.exports[number][wire] = None
            parent = self.boxes[number].parent
            if parent:
                members.setdefault(parent, []).append(wire)

    def _route_to(self, value: int) -> list[int]:
        """The bundles to open on the way from the main graph to a value, the value last."""
        bundles = [value]
        while bundles[-1] in self._inside:
            bundles.append(self._inside[bundles[-1]])
        return bundles[::-1]

    def _hand_down(self, demands: Iterable[Demand]) -> None:
        """Bring bundles to the boxes whose operations read from them, and split them where needed."""
        routes = {value: self._route_to(value) for value, _ in demands}
        arrived: list[dict[int, list[Demand]]] = [{} for _ in self.boxes.boxes]
        for value, reader in demands:
            arrived[self.boxes[reader].path[1]].setdefault(routes[value][0], []).append((value, reader))
        for number in range(1, len(self.boxes)):
            self.imports[number].update(dict.fromkeys(arrived[number]))
            at_hand = list(arrived[number].items())
            while at_hand:
                wire, wanted = at_hand.pop()
                inner = self._by_inner_box(number, wanted)
                if wire < self.values or (len(inner) == 1 and number not in inner):
                    for box, some in inner.items():
                        if box != number:
                            arrived[box].setdefault(wire, []).extend(some)
                    continue
                parted: dict[int, list[Demand]] = {}
                for value, reader in wanted:
                    route = routes[value]
                    parted.setdefault(route[route.index(wire) + 1], []).append((value, reader))
                self.unpacked[number][wire] = set(parted)
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
        # one that came back as it was
        for value in self.graph.result_value[: int(start[-1])].tolist():
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


Step = tuple[int, int]  # down into a box: its scope, and the number of a stretch of that or -1
BOX_DEPTH = 24  # of boxes in boxes: protobuf reads no deeper than 100 messages, and each box takes three


@dataclass(slots=True)
class OnnxBox:
    """A call of a module, or as much of it as one part of the run did in one go; box 0 is the run."""

    number: int
    scope: int
    part: RunPart
    path: tuple[int, ...]  # the boxes around it from box 0 on, itself included
    level: int = 0  # above the level of everything beside it that it depends on
    first: int = 0  # its earliest operation
    last: int = 0  # its latest operation
    run: int = 0  # how many boxes this call had in the same place and part before
    stretch: int = -1  # the number among the stretches of its scope, where it is one of those
    used: bool = False  # something beside it depends on it
    tangled: bool = False  # its items depend on items that began later
    items: list[int] = field(default_factory=list)  # operations, and boxes as ~number, as they begin
    open: dict[tuple[Step, RunPart], int] = field(default_factory=dict)

    @property
    def parent(self) -> int:
        """The box around it."""
        return self.path[-2]


class Boxes:
    """Every box of a graph, and for each operation the innermost one that it is in.

    ``node_level`` orders the operations of a box, as ``Box.level`` does the boxes in it: what depends on something
    beside it has the higher level, so no cycle is possible.
    """

    def __init__(self, graph: Graph) -> None:
        self.graph = graph
        self.root = main_scope(graph)
        self.boxes = [OnnxBox(0, self.root, RunPart.FORWARD, (0,))]
        self.home: list[int] = []
        self.node_level: list[int] = []
        self._chains: dict[tuple[int, RunPart], tuple[Step, ...]] = {}
        self._scope_parent: list[int] = graph.scope_parent.tolist()
        self._place_all(node_parts(graph))

    def __getitem__(self, number: int) -> OnnxBox:
        return self.boxes[number]

    def __len__(self) -> int:
        return len(self.boxes)

    def ordered(self, box: OnnxBox) -> list[int]:
        """The items of a box in topological order, else as they ran."""
        if not box.tangled:
            return box.items
        return sorted(
            box.items, key=lambda item: self.boxes[~item].level if item < 0 else self.node_level[item]
        )

    def _place_all(self, parts: Ints) -> None:
        self._stretches = Stretches(self.graph, parts, self.root)
        scopes = self.graph.node_scope.tolist()
        for node, (scope, code, sources) in enumerate(zip(scopes, parts.tolist(), _node_sources(self.graph))):
            part = RunPart(code)
            chain = (*self._chain(scope, part), *self._stretch(scope, part))
            self._place(node, chain[:BOX_DEPTH], part, sources)

    def _place(self, node: int, chain: Sequence[Step], part: RunPart, sources: list[int]) -> None:
        """Walk from the run down to the operation's box, opening a box where the one at hand would close a cycle."""
        box = self.boxes[0]
        for step in chain:
            at_hand = box.open.get((step, part), -1)
            inside, outside = self._divide(box, sources, at_hand)
            level, latest = self._above(box, outside)
            if at_hand < 0 or (level > self.boxes[at_hand].level and self.boxes[at_hand].used):
                if at_hand >= 0:
                    self.boxes[at_hand].used = True
                    level = max(level, self.boxes[at_hand].level + 1)
                at_hand, inside = self._open(box, step, part, node, level, at_hand), []
            inner = self.boxes[at_hand]
            inner.last = node
            inner.level = max(inner.level, level)
            box.tangled |= latest > inner.first
            box, sources = inner, inside
        level, _ = self._above(box, sources)
        box.items.append(node)
        self.home.append(box.number)
        self.node_level.append(level)

    def _open(self, box: OnnxBox, step: Step, part: RunPart, node: int, level: int, before: int) -> int:
        number = len(self.boxes)
        path = (*box.path, number)
        run = self.boxes[before].run + 1 if before >= 0 else 0
        self.boxes.append(OnnxBox(number, step[0], part, path, level, node, run=run, stretch=step[1]))
        box.open[step, part] = number
        box.items.append(~number)
        return number

    def _divide(self, box: OnnxBox, sources: list[int], at_hand: int) -> tuple[list[int], list[int]]:
        """The sources inside a box of this box, and the others in this box."""
        inside: list[int] = []
        outside: list[int] = []
        depth = len(box.path)
        for source in sources:
            path = self.boxes[self.home[source]].path
            (inside if len(path) > depth and path[depth] == at_hand else outside).append(source)
        return inside, outside

    def _above(self, box: OnnxBox, sources: list[int]) -> tuple[int, int]:
        """The lowest level above all of the sources, and when the last of them began; marks the boxes as used."""
        level, latest, depth = 0, -1, len(box.path)
        for source in sources:
            path = self.boxes[self.home[source]].path
            if len(path) > depth:
                beside = self.boxes[path[depth]]
                beside.used = True
                level, latest = max(level, beside.level + 1), max(latest, beside.first)
            else:
                level, latest = max(level, self.node_level[source] + 1), max(latest, source)
        return level, latest

    def _chain(self, scope: int, part: RunPart) -> tuple[Step, ...]:
        """The steps from the main graph down to a scope."""
        above = []
        while self._stretches.inside(scope) and (scope, part) not in self._chains:
            above.append(scope)
            scope = self._scope_parent[scope]
        chain = self._chains.get((scope, part), ())
        for inner in reversed(above):
            between = self._stretch(self._scope_parent[inner], part)
            chain = self._chains[inner, part] = (*chain, *between, (inner, -1))[:BOX_DEPTH]
        return chain

    def _stretch(self, scope: int, part: RunPart) -> tuple[Step, ...]:
        """The step into the next stretch of a scope; none where it has no stretches."""
        number = self._stretches.next(scope, part)
        return () if number < 0 else ((self._stretches.inside(scope) or self.root, number),)


def common_sites(boxes: Boxes) -> list[int]:
    """For each box that did not run in forward, the one source line of all its operations; -1 where there is none.

    All of backward was called from one line as a rule. Said once, it does not drown the lines of the model.
    """
    unseen, mixed = -2, -1
    sites = [unseen] * len(boxes)
    for site, home in zip(boxes.graph.node_site.tolist(), boxes.home):
        sites[home] = site if sites[home] in (unseen, site) else mixed
    for number in range(len(boxes) - 1, 0, -1):
        parent = boxes[number].parent
        sites[parent] = sites[number] if sites[parent] in (unseen, sites[number]) else mixed
    return [mixed if boxes[n].part == RunPart.FORWARD else site for n, site in enumerate(sites)]


def _node_sources(graph: Graph) -> list[list[int]]:
    """For each operation the earlier ones that it depends on, each once."""
    producers = graph.value_producer.tolist()
    return [
        list(dict.fromkeys(producers[value] for _, value in reads if producers[value] >= 0))
        for reads in node_reads(graph)
    ]


SUFFIXES = {RunPart.BACKWARD: " backward", RunPart.RECOMPUTE: " recompute"}


def module_of(boxes: Boxes, box: OnnxBox) -> Module:
    """What a box is a call of."""
    graph = boxes.graph
    return graph.modules[int(graph.scope_module[box.scope])]


def box_title(boxes: Boxes, box: OnnxBox) -> str:
    """The words on a box: the class and the part of the run."""
    if box.stretch >= 0:
        return f"operations{SUFFIXES.get(box.part, '')}"
    return clean((module_of(boxes, box).type or "module") + SUFFIXES.get(box.part, ""))


def box_name(boxes: Boxes, box: OnnxBox) -> str:
    """A box's name: the module's path, and what makes it unique among the module's boxes."""
    module = module_of(boxes, box)
    what = (module.path or module.type or "module") + _call(boxes, box) + SUFFIXES.get(box.part, "")
    return what + (f" {_range(box)}" if box.stretch >= 0 else _run(box))


def body_name(boxes: Boxes, box: OnnxBox) -> str:
    """The name of a box's body: the module's path from the box around it on.

    Netron shows what follows the last dot, so the steps of the path are parted by slashes.
    """
    if box.stretch >= 0:
        return _range(box)
    module, above = module_of(boxes, box), module_of(boxes, boxes[box.parent])
    path = module.path
    if above.path and path.startswith(f"{above.path}."):
        path = path[len(above.path) + 1 :]
    return clean((path or module.type or "module").replace(".", "/") + _call(boxes, box) + _run(box))


def _call(boxes: Boxes, box: OnnxBox) -> str:
    call = int(boxes.graph.scope_call[box.scope])
    return f" call {call + 1}" if call else ""


def _run(box: OnnxBox) -> str:
    return f" part {box.run + 1}" if box.run else ""


def _range(box: OnnxBox) -> str:
    """The operations of a stretch, by their numbers."""
    return f"{box.first}–{box.last}"
