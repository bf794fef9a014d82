"""The ONNX model of a graph, built in place from the outside in."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from torch_vis.exporters.facts import Facts
from torch_vis.exporters.names import Names, clean, node_names, outside_name
from torch_vis.exporters.onnx.boxes import Box, Boxes, common_sites
from torch_vis.exporters.onnx.crossing import Crossing, bundle_word
from torch_vis.exporters.onnx.naming import body_name, box_name, box_title, module_of
from torch_vis.exporters.onnx.protos import Protos, can_be_sparse, name_inputs, say, true_type
from torch_vis.exporters.onnx.results import Join, Results
from torch_vis.exporters.onnx.sources import Sources
from torch_vis.graph import Graph, Metrics
from torch_vis.graph.call import short_name
from torch_vis.graph.schema import Role
from torch_vis.ops.schemas import named_arguments, slot_names

if TYPE_CHECKING:
    import onnx

DOMAIN = "torch_vis"
IR_VERSION = 10  # the first with metadata on nodes
LINE = 300  # characters of an operation's line of code
ALIAS = "through an alias"


class Writer:
    """Writes one graph; ``model`` is the result."""

    def __init__(self, graph: Graph, metrics: Metrics, protos: Protos) -> None:
        self.graph = graph
        self.protos = protos
        self.boxes = Boxes(graph)
        self.crossing = Crossing(self.boxes)
        self.results = Results(graph, self.crossing)
        self.crossing.connect(self.results.lifted)
        self.sources = Sources(graph, self.crossing)
        self.facts = Facts(graph, metrics)
        self.sums = self.facts.of_groups(self.boxes.home, [0, *(box.parent for box in self.boxes.boxes[1:])])
        self.sites = common_sites(self.boxes)
        self.unread = set(range(self.crossing.values)).difference(graph.in_value.tolist())
        self.types: list[int] = graph.value_type.tolist()
        self.domains = {DOMAIN}
        self.value_names = Names()
        self.names = self._name_values()
        self.node_names = node_names(graph)
        self.more_node_names = Names(self.node_names)
        self._calls: dict[int, _Call] = {}

    def model(self, limits: Sequence[str], meta: Mapping[str, Any]) -> onnx.ModelProto:
        """The whole model."""
        model = self.protos.onnx.ModelProto(ir_version=IR_VERSION, producer_name=DOMAIN)
        model.doc_string = f"{len(self.graph):,} operations of a recorded run"
        model.graph.name = clean(str(meta.get("model") or "run")) or "run"
        model.graph.input.extend(self._info(value) for value in self.sources.inputs)
        waiting = [(self.boxes[0], model.graph)]
        while waiting:
            waiting += self._fill(*waiting.pop())
        for domain in sorted(self.domains):
            model.opset_import.add(domain=domain, version=1)
        said = {**meta, **({"limits": "\n".join(limits)} if limits else {})}
        say(model, *((str(key), str(value)) for key, value in said.items()))
        return model

    def _name_values(self) -> list[str]:
        """A name for every value and bundle: its own, else the result's, else ``%12`` for ``graph.values[12]``."""
        names = [""] * (self.crossing.values + len(self.crossing.bundles))
        for value, producer in enumerate(self.crossing.producer):
            if producer < 0:
                names[value] = self.value_names.new(outside_name(self.graph, value))
        for value, name in self.results.names.items():
            names[value] = self.value_names.new(name)
        for value in range(self.crossing.values):
            names[value] = names[value] or self.value_names.new(f"%{value}")
        for number, box in enumerate(self.crossing.bundle_box):
            word = bundle_word(self.boxes[box].part)
            names[self.crossing.values + number] = self.value_names.new(f"{word}_{box}")
        return names

    def _fill(self, box: Box, proto: onnx.GraphProto) -> list[tuple[Box, onnx.GraphProto]]:
        """The contents of one graph; returns the boxes in it with bodies that are still to be filled."""
        inner = []
        leaving = set(self._leaving(box))
        for value in self.sources.declared.get(box.number, ()):
            self._declare(proto, value)
        for bundle, wanted in self.crossing.unpacked[box.number].items():
            self._unpack(proto, bundle, wanted)
        for item in self.boxes.ordered(box):
            if item < 0:
                inner.append((self.boxes[~item], self._box(proto, self.boxes[~item], leaving)))
            else:
                self._operation(proto, item, leaving)
        if box.number in self.crossing.packed:
            self._pack(proto, self.crossing.packed[box.number])
        self._give_out(box, proto)
        return inner

    def _leaving(self, box: Box) -> list[int]:
        """What a graph gives out, joins aside."""
        shown = [result for result in self.results.shown.get(box.number, []) if not isinstance(result, Join)]
        return [*dict.fromkeys([*self.crossing.exports[box.number], *shown])]

    def _give_out(self, box: Box, proto: onnx.GraphProto) -> None:
        """The outputs of a graph; in the main graph they stand in the order of the results."""
        proto.output.extend(self._info(thing) for thing in self.crossing.exports[box.number])
        for result in self.results.shown.get(box.number, []):
            if isinstance(result, Join):
                name = self.value_names.new(result.name)
                self._link(proto, clean(result.kind), name, result.sources)
                proto.output.append(self.protos.value_info(name, result.type))
            elif result not in self.crossing.exports[box.number]:
                proto.output.append(self._info(result))

    def _info(self, thing: int) -> onnx.ValueInfoProto:
        """The name and type of a value or bundle."""
        if thing < self.crossing.values:
            return self.protos.value_info(self.names[thing], self.graph.types[self.types[thing]])
        type_ = self.protos.bundle_type(self._word(thing))
        return self.protos.onnx.ValueInfoProto(name=self.names[thing], type=type_)

    def _word(self, bundle: int) -> str:
        return bundle_word(self.boxes[self.crossing.bundle_box[bundle - self.crossing.values]].part)

    def _declare(self, proto: onnx.GraphProto, value: int) -> None:
        """A tensor from outside, without its data."""
        type_ = self.graph.types[self.types[value]]
        if can_be_sparse(type_):
            proto.sparse_initializer.append(self.protos.weight(self.names[value], type_))
        elif 0 in type_.shape and all(isinstance(size, int) for size in type_.shape):
            proto.initializer.append(self.protos.nothing(self.names[value], type_))
        else:  # ONNX has no scalar without a number, and the number is not known
            role = Role(self.graph.value_role[value]).name.lower()
            self._link(proto, role, self.names[value], ())
            proto.value_info.append(self._info(value))

    def _link(self, proto: onnx.GraphProto, title: str, output: str, inputs: Sequence[int]) -> None:
        """A node that stands for no operation: a source, a bundle, a result."""
        name = self.more_node_names.new(output)
        names = [self.names[thing] for thing in inputs]
        proto.node.add(op_type=title, domain=DOMAIN, name=name, input=names, output=[output])

    def _pack(self, proto: onnx.GraphProto, bundle: int) -> None:
        members = self.crossing.bundles[bundle - self.crossing.values]
        self._link(proto, self._word(bundle), self.names[bundle], members)

    def _unpack(self, proto: onnx.GraphProto, bundle: int, wanted: set[int]) -> None:
        members = self.crossing.bundles[bundle - self.crossing.values]
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
        reads = self.crossing.reads[node]
        made = graph.out_value[slice(*graph.output_span(node))].tolist()
        inputs = [self.names[value] for _, value in reads]
        outputs = [self.names[value] for value in made]
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
        say(new, *self.facts.of_node(node, site=not said), *self._rare_facts(node, made))
        proto.value_info.extend(self._info(value) for value in made if value not in leaving)

    def _rare_facts(self, node: int, made: list[int]) -> list[tuple[str, str]]:
        """The forward operation, a module that has no box, element types that ONNX has not."""
        graph, found = self.graph, []
        link, scope = int(graph.node_link[node]), int(graph.node_scope[node])
        if link >= 0:
            found.append(("forward", self.node_names[link]))
        if scope != self.boxes[self.boxes.home[node]].scope and graph.scope_paths[scope]:
            found.append(("module", graph.scope_paths[scope]))
        for value in made:
            said = true_type(graph.types[self.types[value]])
            if said:
                found.append((f"type of {self.names[value]}", said))
        return found

    def _box(self, proto: onnx.GraphProto, box: Box, leaving: set[int]) -> onnx.GraphProto:
        """The node of a box, and its body with inputs but still without contents."""
        imports, exports = list(self.crossing.imports[box.number]), self._leaving(box)
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
        if any(thing < self.crossing.values and self.crossing.producer[thing] < 0 for thing in imports):
            name_inputs(new, (name.removeprefix(f"{module.path}.") for name in inputs))
        say(new, *self._box_facts(box))
        body = new.attribute.add(name="body", type=self.protos.onnx.AttributeProto.GRAPH).g
        body.name = body_name(self.boxes, box)
        body.input.extend(self._info(thing) for thing in imports)
        proto.value_info.extend(
            self._info(thing) for thing in exports if thing not in leaving and thing not in self.unread
        )
        return body

    def _box_facts(self, box: Box) -> list[tuple[str, str]]:
        found = []
        if box.stretch < 0:
            module, call = module_of(self.boxes, box), int(self.graph.scope_call[box.scope])
            found += [("kind", module.kind)] if module.kind != "module" else []
            found += [("call", str(call + 1))] if call else []
        if self.sites[box.number] != self.sites[box.parent]:
            found += self.facts.of_site(self.sites[box.number])
        return found + self.sums[box.number]

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
