"""The ONNX model of a graph, built in place from the outside in."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from torch_vis.exporters.facts import Facts, Names, clean, node_names, outside_name
from torch_vis.exporters.onnx.borders import BoxBorders, Join, OutsideTensors, Results, bundle_word
from torch_vis.exporters.onnx.boxes import (
    Boxes,
    OnnxBox,
    body_name,
    box_name,
    box_title,
    common_sites,
    module_of,
)
from torch_vis.exporters.onnx.protos import DOMAIN, Protos, import_domains, name_inputs, say, true_type
from torch_vis.graph import Graph, Metrics
from torch_vis.graph.call import short_name
from torch_vis.graph.schema import Role
from torch_vis.ops.schemas import named_arguments, slot_names

if TYPE_CHECKING:
    import onnx


LINE = 300  # characters of an operation's line of code
ALIAS = "through an alias"


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
        said = {**meta, **({"limits": "\n".join(limits)} if limits else {})}
        say(model, *((str(key), str(value)) for key, value in said.items()))
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
        proto.output.extend(self._info(thing) for thing in self.borders.exports[box.number])
        for result in self.results.shown.get(box.number, []):
            if isinstance(result, Join):
                name = self.value_names.new(result.name)
                self._link(proto, clean(result.kind), name, result.sources)
                proto.output.append(self.protos.value_info(name, result.type))
            elif result not in self.borders.exports[box.number]:
                proto.output.append(self._info(result))

    def _info(self, thing: int) -> onnx.ValueInfoProto:
        """The name and type of a value or bundle."""
        if thing < self.borders.values:
            return self.protos.value_info(self.names[thing], self.graph.types[self.types[thing]])
        type_ = self.protos.bundle_type(self._word(thing))
        return self.protos.onnx.ValueInfoProto(name=self.names[thing], type=type_)

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
        names = [self.names[thing] for thing in inputs]
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
            output=[self.names[thing] if thing in wanted else "" for thing in members],
        )
        proto.value_info.extend(self._info(thing) for thing in members if thing in wanted)

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
        said = self.sites[self.boxes.home[node]] == graph.node_site[node]
        say(new, *self.facts.of_node(node, site=not said), *self._rare_facts(node, values))
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
            said = true_type(graph.types[self.types[value]])
            if said:
                facts.append((f"type of {self.names[value]}", said))
        return facts

    def _box(self, proto: onnx.GraphProto, box: OnnxBox, leaving: set[int]) -> onnx.GraphProto:
        """The node of a box, and its body with inputs but still without contents."""
        imports, exports = list(self.borders.imports[box.number]), self._leaving(box)
        module = module_of(self.boxes, box)
        inputs = [self.names[thing] for thing in imports]
        name = self.more_node_names.new(box_name(self.boxes, box))
        new = proto.node.add(
            op_type=box_title(self.boxes, box),
            domain=DOMAIN,
            name=name,
            input=inputs,
            output=[self.names[thing] for thing in exports] or self._placeholder(inputs, name),
        )
        if any(thing < self.borders.values and self.borders.producer[thing] < 0 for thing in imports):
            name_inputs(new, (name.removeprefix(f"{module.path}.") for name in inputs))
        say(new, *self._box_facts(box))
        body = new.attribute.add(name="body", type=self.protos.onnx.AttributeProto.GRAPH).g
        body.name = body_name(self.boxes, box)
        body.input.extend(self._info(thing) for thing in imports)
        proto.value_info.extend(
            self._info(thing) for thing in exports if thing not in leaving and thing not in self.unread
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
            arguments = named_arguments(record)
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
