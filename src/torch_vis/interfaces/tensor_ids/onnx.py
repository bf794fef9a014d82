"""An operation sequence as an ONNX file for Netron, from the list of operations alone."""

from __future__ import annotations

import itertools
import os
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from torch_vis.errors import UsageError
from torch_vis.exporters.facts import METRICS
from torch_vis.exporters.onnx.naming import Names, clean
from torch_vis.exporters.onnx.protos import Protos, can_be_sparse, name_inputs, say
from torch_vis.graph.io.atomic import replacing
from torch_vis.graph.text import with_unit
from torch_vis.interfaces.tensor_ids.reading import UNKNOWN, Entry, Reading
from torch_vis.interfaces.tensor_ids.sequence import FIGURES

if TYPE_CHECKING:
    import onnx

PathLike = str | os.PathLike[str]
DEFAULT = "torch_operations"
DOMAIN = "torch_vis"
IR_VERSION = 10  # the first with metadata on nodes
HELD = frozenset({"parameter", "buffer", "optimizer_state"})
GRADIENT = "gradient of "


def create_onnx_visualization(operations: Sequence[Mapping[str, Any]], path: PathLike | None = None) -> str:
    """Write operations as an ONNX model that Netron shows, and return the path of the file.

    The list is all that it takes: one that ``get_operation_sequence`` gave, the same after a trip through JSON, part of
    it, or one made by hand with ``name``, ``inputs`` and ``outputs`` for each operation. A tensor id that no operation
    in the list makes is an input of the graph (a weight, where ``input_roles`` says so), one that none reads is an
    output. The model is valid ONNX and shows what ran; it is not there to be executed.

    Without a path the file is ``torch_operations.onnx`` in the current folder, or ``torch_operations_2.onnx`` and so
    on: what is there already stays. A file at a path that is given is replaced.

    >>> import os, tempfile, onnx, torch, torch_vis as tv
    >>> x = torch.ones(2, 3)
    >>> with tv.trace_tensor_ids(input_tensors={"x": x}) as tracer:
    ...     y = torch.nn.functional.relu(x).view(6)
    >>> path = tv.create_onnx_visualization(
    ...     tracer.get_operation_sequence(), os.path.join(tempfile.mkdtemp(), "relu.onnx")
    ... )
    >>> [(node.domain, node.op_type, list(node.input)) for node in onnx.load(path).graph.node]
    [('torch.nn.functional', 'relu', ['x']), ('Tensor', 'view', ['%1'])]
    """
    if path is not None and not isinstance(path, (str, os.PathLike)):
        raise UsageError(f"a path is a string or a Path, not {type(path).__name__} {path!r}")
    data = _Model(Protos(), Reading(operations)).proto.SerializeToString(deterministic=True)
    target = _free_path() if path is None else os.fspath(path)
    with replacing(target) as file:
        file.write(data)
    return target


def _free_path() -> str:
    names = (f"{DEFAULT}_{number}.onnx" for number in itertools.count(2))
    return next(name for name in itertools.chain([f"{DEFAULT}.onnx"], names) if not os.path.lexists(name))


class _Model:
    """The model of a list of operations; ``proto`` is the result."""

    def __init__(self, protos: Protos, reading: Reading) -> None:
        self.protos = protos
        self.reading = reading
        self.values = Names()
        self.tensors = {tensor: self.values.new(tensor) for tensor in reading.types}
        self.titles = self._name_nodes()
        self.domains = {DOMAIN}
        self.proto: onnx.ModelProto = protos.onnx.ModelProto(ir_version=IR_VERSION, producer_name=DOMAIN)
        self.proto.doc_string = f"{len(reading.entries):,} operations of a recorded run"
        self.proto.graph.name = DEFAULT
        self._declare()
        for entry in reading.ordered():
            self._operation(entry)
        self._outputs()
        for domain in sorted(self.domains):
            self.proto.opset_import.add(domain=domain, version=1)

    def _name_nodes(self) -> list[str]:
        """A name for each node with the operation's id in it."""
        names = Names()
        self.by_id: dict[Any, str] = {}
        found = []
        for entry in self.reading.entries:
            number = entry.record.get("id")
            number = number if isinstance(number, (int, str)) else entry.place
            found.append(names.new(f"{split_name(entry.name)[1]}_{number}"))
            self.by_id.setdefault(number, found[-1])
        return found

    def _declare(self) -> None:
        """Tensors that no operation makes: weights without their data, and inputs of the graph."""
        graph, reading = self.proto.graph, self.reading
        for tensor, type_ in reading.types.items():
            if tensor in reading.maker:
                continue
            held = reading.roles.get(tensor) in HELD and type_.dtype != UNKNOWN
            if held and can_be_sparse(type_):
                graph.sparse_initializer.append(self.protos.weight(self.tensors[tensor], type_))
            elif held and 0 in type_.shape:
                graph.initializer.append(self.protos.nothing(self.tensors[tensor], type_))
            else:  # a weight too, if it is a scalar: ONNX has none without a value
                graph.input.append(self._info(tensor))

    def _info(self, tensor: str) -> onnx.ValueInfoProto:
        """A tensor's name and type."""
        type_ = self.reading.types[tensor]
        info = self.protos.value_info(self.tensors[tensor], type_)
        if type_.dtype == UNKNOWN:
            info.type.tensor_type.elem_type = self.protos.onnx.TensorProto.UNDEFINED
            info.doc_string = ""
        return info

    def _operation(self, entry: Entry) -> None:
        domain, title = split_name(entry.name)
        self.domains.add(domain)
        name = self.titles[entry.place]
        inputs = [self.tensors[tensor] for tensor in entry.inputs]
        outputs = [self.tensors[tensor] for tensor in entry.outputs]
        made = f"{', '.join(outputs)} = " if outputs else ""
        node = self.proto.graph.node.add(
            op_type=title,
            domain=domain,
            name=name,
            input=inputs,
            output=outputs or ([] if inputs else [self.values.new(name)]),  # one of the two there must be
            doc_string=clean(f"{made}{entry.name}({', '.join(inputs)})"),
        )
        arguments = entry.record.get("arguments")
        if isinstance(arguments, Mapping):
            named = [(clean(str(key)), _frozen(value)) for key, value in arguments.items()]
            node.attribute.extend(self.protos.attributes(named))
        name_inputs(node, [self._port(number, tensor) for number, tensor in enumerate(entry.inputs)])
        say(node, *self._facts(entry.record), *self._through_memory(entry))

    def _port(self, number: int, tensor: str) -> str:
        """What a node calls an input: a weight by the last part of its name."""
        return tensor.rpartition(".")[2] if self.reading.roles.get(tensor) in HELD else str(number)

    def _facts(self, record: Mapping[str, Any]) -> list[tuple[str, str]]:
        found = [(key, str(record[key])) for key in ("phase", "module", "source") if record.get(key)]
        if record.get("gradient_of") is not None:
            found.append(("gradient of", self._name_of(record["gradient_of"])))
        gradients = record.get("gradients")
        if gradients and isinstance(gradients, (list, tuple)):
            found.append(("gradients", ", ".join(map(self._name_of, gradients))))
        for key, column in FIGURES.items():
            if isinstance(record.get(key), (int, float)):
                label, unit = METRICS[column]
                found.append((label, with_unit(record[key], unit)))
        dispatched = record.get("dispatched")
        if dispatched and isinstance(dispatched, (list, tuple)):
            found.append(("dispatched", ", ".join(map(str, dispatched))))
        return found

    def _through_memory(self, entry: Entry) -> list[tuple[str, str]]:
        """The operations that it depends on though it takes no tensor of theirs: no line in the picture says so."""
        parents, makers = entry.record.get("parents"), self.reading.maker
        if not parents or not isinstance(parents, (list, tuple)):
            return []
        seen = {self.titles[makers[tensor]] for tensor in entry.inputs if tensor in makers}
        others = [name for name in map(self._name_of, parents) if name not in seen]
        return [("reads memory written by", ", ".join(others))] if others else []

    def _name_of(self, number: Any) -> str:
        """The name of the node of an operation, which may not be in the list."""
        known = self.by_id.get(number) if isinstance(number, (int, str)) else None
        return known or f"operation {number}"

    def _outputs(self) -> None:
        """What nobody reads leaves the graph; the rest is typed in its place."""
        read = {tensor for entry in self.reading.entries for tensor in entry.inputs}
        for tensor in self.reading.maker:
            part = self.proto.graph.value_info if tensor in read else self.proto.graph.output
            part.append(self._info(tensor))


def split_name(name: str) -> tuple[str, str]:
    """An operation's name as ONNX domain and operator.

    >>> split_name("torch.nn.functional.conv2d"), split_name("aten::mul"), split_name("MyFunction")
    (('torch.nn.functional', 'conv2d'), ('aten', 'mul'), ('torch_vis', 'MyFunction'))
    >>> split_name("gradient of torch.nn.functional.linear")
    ('torch.nn.functional', 'grad linear')
    """
    bare, title = name, ""
    while bare.startswith(GRADIENT):
        bare = bare.removeprefix(GRADIENT)
        title += "grad "  # Netron shows 20 characters or so
    domain, separator, last = bare.rpartition("::")
    if not separator:
        domain, _, last = bare.rpartition(".")
    if not domain or domain.startswith("ai.onnx"):  # those operators are ONNX's own, with rules of their own
        domain = DOMAIN
    return clean(domain), clean(title + (last or bare))


def _frozen(value: Any) -> Any:
    """A JSON value as an argument of a call: lists as tuples."""
    if isinstance(value, (list, tuple)):
        return tuple(_frozen(part) for part in value)
    return value if isinstance(value, (str, int, float)) or value is None else str(value)
