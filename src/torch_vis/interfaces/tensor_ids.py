"""Connected tensor tracing: what a block of code did, as a sequence of named operations linked by their tensors."""

from __future__ import annotations

import heapq
import itertools
import os
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from torch_vis._trace import Trace
from torch_vis.api import Recording
from torch_vis.capture.undo import Context, Undo
from torch_vis.errors import UsageError, no_match
from torch_vis.exporters.facts import METRICS, Names, clean
from torch_vis.exporters.onnx_protos import DOMAIN, Protos, import_domains, name_inputs, say
from torch_vis.graph import TensorType
from torch_vis.graph.io.atomic import replacing
from torch_vis.graph.text import many, with_unit
from torch_vis.interfaces.tensor_sequence import (
    FIGURES,
    LEVELS,
    Calls,
    Level,
    Operation,
    OperationSteps,
    operation_sequence,
)

if TYPE_CHECKING:
    import onnx


__all__ = ["TensorTracer", "create_onnx_visualization", "get_operation_sequence", "trace_tensor_ids"]


class TensorTracer(Context["TensorTracer"]):
    """Records the block that it is entered for; ``trace_tensor_ids`` makes one.

    >>> import torch, torch_vis as tv
    >>> x = torch.ones(2, 3)
    >>> with tv.trace_tensor_ids(input_tensors={"x": x}) as tracer:
    ...     y = torch.relu(x).view(6)
    >>> tracer
    <TensorTracer: 2 operations>
    >>> tracer.trace.check().results
    1
    """

    def __init__(self, recording: Recording) -> None:
        self._recording = recording
        self._used = False

    def _begin(self, undo: Undo) -> TensorTracer:
        if self._used:
            raise UsageError("a tracer records one block; call trace_tensor_ids() again for another")
        self._used = True
        undo.enter(self._recording)
        return self

    @property
    def trace(self) -> Trace:
        """The whole recording, for every view and exporter; after an exception, what ran until then.

        >>> import torch, torch_vis as tv
        >>> with tv.trace_tensor_ids() as tracer:
        ...     y = torch.ones(2) * 3
        >>> [node.op for node in tracer.trace.graph.nodes]
        ['aten::ones', 'aten::mul']
        """
        if not self._used or self._recording.is_open:
            raise UsageError(
                "the block is still recording; ask after it has ended"
                if self._used
                else "nothing is recorded yet; use it in a with statement"
            )
        return self._recording

    def get_operation_sequence(self, *, level: Level = "leaf") -> list[Operation]:
        """Every operation of the block, in order: see ``torch_vis.get_operation_sequence``.

        >>> import torch, torch_vis as tv
        >>> x = torch.ones(2, 3)
        >>> with tv.trace_tensor_ids(input_tensors=[x]) as tracer:
        ...     y = torch.relu(x).view(6)
        >>> for operation in tracer.get_operation_sequence():
        ...     print(operation["name"], operation["inputs"], operation["outputs"], operation["parents"])
        torch.relu [('input.0', (2, 3))] [('%1', (2, 3))] []
        Tensor.view [('%1', (2, 3))] [('%2', (6,))] [0]
        """
        return get_operation_sequence(self.trace, level=level)

    def __repr__(self) -> str:
        if not self._used or self._recording.is_open:
            return f"<TensorTracer: {'recording' if self._used else 'not started'}>"
        return f"<TensorTracer: {many(OperationSteps(self.trace.graph, 'leaf').count, 'operation')}>"


def trace_tensor_ids(
    input_tensors: Any = None, *, functions: Sequence[Callable[..., Any]] = (), keep: bool = True
) -> TensorTracer:
    """Record a block of code as operations under their public names, connected by the tensors that pass between them.

    ``input_tensors`` names the tensors that come from outside: a tensor, or lists, tuples and dictionaries of them,
    however nested; a dictionary's keys are the names. It may be left out: what the block reads is found in any case.
    ``backward()`` and optimizer steps in the block are recorded too, and each gradient is linked to its operation.

    Custom operators and classes of ``torch.autograd.Function`` are operations of their own accord. ``functions`` adds
    Python functions of yours that are to be one operation each, whatever they call. ``keep=False`` holds no tensors, so
    that ``tracer.trace.check()`` is not possible.

    Torch's fast path for attention in inference is not taken while calls are named; ``tracer.trace.limits`` says where
    that was so. Everything else runs as it would have.

    >>> import torch, torch_vis as tv
    >>> model, x = torch.nn.Linear(3, 2), torch.ones(1, 3)
    >>> with tv.trace_tensor_ids(input_tensors=[x]) as tracer:
    ...     loss = model(x).sum()
    ...     loss.backward()
    >>> [operation["name"] for operation in tracer.get_operation_sequence()][:3]
    ['torch.nn.functional.linear', 'Tensor.sum', 'torch.ones_like']
    """
    from torch_vis.capture.session import Capture

    if callable(functions) or not isinstance(functions, Sequence):
        raise UsageError(f"functions is a list of functions, not {type(functions).__name__}")
    capture = Capture(keep=keep, functions=True, declared=functions)
    capture.inputs = _name_inputs(input_tensors)
    return TensorTracer(Recording(capture))


def get_operation_sequence(traced: TensorTracer | Trace, *, level: Level = "leaf") -> list[Operation]:
    """Every operation of a tracer or of a trace, in the order in which they began, as plain dictionaries.

    An operation is one call of a public function, under the name that a program calls it by. The function that a
    program or a module of torch's calls is what counts: ``F.cross_entropy`` is one operation, and what it calls in turn
    is not shown. There is one exception: ``F.multi_head_attention_forward`` is the whole of a module under the name of
    a function, and shown as the calls that it makes; ``level="outermost"`` keeps it in one, and a torch that has no
    ``torch.overrides.redispatch_function`` yet (2.11) always does. What runs outside of any such call goes by its
    dispatcher name (``aten::mul``); in a trace that was recorded without ``functions=True``, that is all. What backward
    runs for one operation in one go is one operation, ``gradient of …``.

    ===================  ===========================================================================================
    key                  what it holds
    ===================  ===========================================================================================
    ``id``               the operation's number
    ``name``             ``torch.nn.functional.conv2d``, ``Tensor.view``, ``torch.ops.mylib.foo``, ``gradient of …``
    ``phase``            ``forward``, ``backward`` or ``optimizer``
    ``inputs``           the tensors it was given: pairs of tensor id and shape, in the order of the call
    ``outputs``          the tensors it returned, as pairs too; where it returns none, those that it changed
    ``side_outputs``     what else it made that others read: kept for the gradient, or written to on the way
    ``input_dtypes``     the element type of each input; ``output_dtypes`` and ``side_output_dtypes`` likewise
    ``input_roles``      what each input is to the run: ``activation``, ``input``, ``parameter``, ``buffer``…
    ``parents``          ids of the operations whose outputs it takes, and of those whose bytes it reads through
                         another tensor: a reader of a view depends on the view and on who wrote to its memory
    ``gradient_of``      the id of the operation whose gradient it computes, or None
    ``gradients``        ids of the operations that compute its gradient
    ``module``           the path of the module it ran in, ``""`` for the outermost or none
    ``source``           the line of the program, ``file:line``, or None
    ``arguments``        its literal arguments by name, as the call was written (an index as text)
    ``dispatched``       the dispatcher operations that it ran
    ``nodes``            their numbers in ``trace.graph``
    ``time_ns``          the time that they took
    ``memory_bytes``     the bytes that they allocated
    ``flops``            what they computed; None where one of them is not known. ``macs``, ``moved_bytes`` likewise
    ===================  ===========================================================================================

    A tensor id names one version of one tensor and nothing else: a write in place makes a new one (``weight@1``), and
    so does a tensor that happens to take the memory of one that is gone. Tensors with a name of their own go by it, the
    others by their number in the graph: ``%12`` is ``trace.graph.values[12]``. Where a part was assigned to
    (``h[:, 0] = 0``), the whole is a new version too, ``%12@1``.

    Of a gradient, of a function of yours or of ``autograd.Function``, and of any operation of a trace that was not just
    recorded by ``trace_tensor_ids`` or ``record``, the call itself is not known: its inputs are what its dispatcher
    operations read (computed tensors first, then parameters, then those that it depends on through an alias), its
    outputs all that they made, its arguments theirs.

    >>> import torch, torch_vis as tv
    >>> x = torch.ones(2)
    >>> with tv.trace_tensor_ids(input_tensors={"x": x}) as tracer:
    ...     y = x.add_(1) * x
    >>> add, mul = tv.get_operation_sequence(tracer)
    >>> add["outputs"], mul["inputs"], mul["parents"]
    ([('x@1', (2,))], [('x@1', (2,)), ('x@1', (2,))], [0])
    """
    if level not in LEVELS:
        raise no_match("level", str(level), LEVELS)
    trace = traced.trace if isinstance(traced, TensorTracer) else traced
    if not isinstance(trace, Trace):
        raise UsageError(f"get_operation_sequence() takes a tracer or a trace, not {type(traced).__name__}")
    if isinstance(trace, Recording) and trace.is_open:
        raise UsageError("the block is still recording; ask after it has ended")
    return operation_sequence(trace.graph, trace.metrics, level, Calls(trace))


def _name_inputs(input_tensors: Any) -> list[tuple[str, Any]]:
    from torch.utils._pytree import tree_leaves

    from torch_vis.capture.containers import named_tensors

    tensors = list(named_tensors(input_tensors, "" if isinstance(input_tensors, Mapping) else "input"))
    if not tensors and any(leaf is not None for leaf in tree_leaves(input_tensors)):
        raise UsageError(
            f"input_tensors holds no tensor: {type(input_tensors).__name__} {input_tensors!r:.60}; "
            "give the tensors themselves, or nothing"
        )
    return tensors


UNKNOWN = ""  # the element type of a tensor in a list that does not say


class ListedOperation(NamedTuple):
    """One operation, read and found to be in order."""

    number: int
    name: str
    inputs: list[str]
    outputs: list[str]
    record: Mapping[str, Any]

    def error(self, what: str) -> UsageError:
        """That something is wrong with this operation."""
        return _wrong(self.number, self.record, what)


class OperationList:
    """The operations, the type of each tensor, and which operation makes it."""

    def __init__(self, operations: Sequence[Mapping[str, Any]]) -> None:
        if not _is_list(operations):
            raise UsageError(
                "create_onnx_visualization() takes the list that get_operation_sequence() gives, "
                f"not {type(operations).__name__}"
            )
        self.types: dict[str, TensorType] = {}
        self.roles: dict[str, str] = {}
        self.producer: dict[str, int] = {}
        self.entries = [self._entry(index, record) for index, record in enumerate(operations)]
        for entry in self.entries:
            self._note_outputs(entry)

    def _entry(self, index: int, record: Any) -> ListedOperation:
        if not isinstance(record, Mapping):
            raise UsageError(
                f"operations[{index}] is {type(record).__name__} {record!r:.60}, and not a dictionary"
            )
        name = record.get("name")
        if not isinstance(name, str) or not name:
            raise _wrong(index, record, f"'name' must be a text, not {name!r:.60}")
        # outputs first: whoever makes a tensor knows its type best
        outputs = self._tensors(index, record, "outputs", "output_dtypes")
        if "side_outputs" in record:
            outputs += self._tensors(index, record, "side_outputs", "side_output_dtypes")
        inputs = self._tensors(index, record, "inputs", "input_dtypes")
        roles: Any = record.get("input_roles")
        for tensor, role in zip(inputs, roles if _is_list(roles) else (), strict=False):
            self.roles.setdefault(tensor, str(role))
        return ListedOperation(index, name, inputs, outputs, record)

    def _tensors(self, index: int, record: Mapping[str, Any], key: str, dtype_key: str) -> list[str]:
        pairs: Any = record.get(key)
        if not _is_list(pairs):
            raise _wrong(index, record, f"'{key}' must be a list of tensor id and shape, not {pairs!r:.60}")
        dtypes: Any = record.get(dtype_key)
        if dtypes is None:
            dtypes = [UNKNOWN] * len(pairs)
        if not _is_list(dtypes) or len(dtypes) != len(pairs):
            raise _wrong(
                index, record, f"'{dtype_key}' must have one element type for each of '{key}' ({len(pairs)})"
            )
        tensors = []
        for number, (pair, dtype) in enumerate(zip(pairs, dtypes, strict=True)):
            tensor, shape = _pair(index, record, f"{key}[{number}]", pair)
            self.types.setdefault(tensor, TensorType(str(dtype), shape, ()))
            tensors.append(tensor)
        return tensors

    def _note_outputs(self, entry: ListedOperation) -> None:
        for number, tensor in enumerate(entry.outputs):
            first = self.producer.setdefault(tensor, entry.number)
            if first != entry.number or tensor in entry.outputs[:number]:
                raise entry.error(
                    f"outputs[{number}] {tensor!r} is made by operations[{first}] already; a tensor id names "
                    "one version of one tensor, so a write in place needs a new one"
                )

    def ordered(self) -> list[ListedOperation]:
        """The operations in topological order; unchanged where they are in one already."""
        left, then = self._waiting()
        ready = [index for index, count in enumerate(left) if not count]
        ordered = []
        while ready:
            index = heapq.heappop(ready)
            ordered.append(self.entries[index])
            for other in then.get(index, ()):
                left[other] -= 1
                if not left[other]:
                    heapq.heappush(ready, other)
        if len(ordered) < len(self.entries):
            stuck = next(index for index, count in enumerate(left) if count)
            raise self.entries[stuck].error("'inputs' come from 'outputs' that come from it: a circle")
        return ordered

    def _waiting(self) -> tuple[list[int], dict[int, list[int]]]:
        """For each operation how many others it depends on, and those that depend on it."""
        left: list[int] = []
        then: dict[int, list[int]] = {}
        for entry in self.entries:
            before = {self.producer[tensor] for tensor in entry.inputs if tensor in self.producer}
            if entry.number in before:
                raise entry.error(
                    "'inputs' and 'outputs' have an id in common; a write in place makes a new one"
                )
            left.append(len(before))
            for other in before:
                then.setdefault(other, []).append(entry.number)
        return left, then


def _pair(index: int, record: Mapping[str, Any], where: str, pair: Any) -> tuple[str, tuple[Any, ...]]:
    if not isinstance(pair, (tuple, list)) or len(pair) != 2:
        raise _wrong(index, record, f"{where} must be a pair of tensor id and shape, not {pair!r:.60}")
    tensor, shape = pair
    if not isinstance(tensor, (str, int)) or tensor == "":
        raise _wrong(index, record, f"{where}: a tensor id is a text or a number, not {tensor!r:.60}")
    if not isinstance(shape, (tuple, list)) or not all(_is_size(size) for size in shape):
        raise _wrong(index, record, f"{where}: a shape is a list of sizes, not {shape!r:.60}")
    return str(tensor), tuple("?" if size is None else size for size in shape)


def _is_size(size: Any) -> bool:
    """A number, or a name or None for a size that is not fixed."""
    return size is None or isinstance(size, str) or (type(size) is int and size >= 0)


def _is_list(item: Any) -> bool:
    return isinstance(item, Sequence) and not isinstance(item, (str, bytes))


def _wrong(index: int, record: Mapping[str, Any], what: str) -> UsageError:
    return UsageError(f"operations[{index}] ({record.get('name')}): {what}")


PathLike = str | os.PathLike[str]
DEFAULT = "torch_operations"

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
    data = _Model(Protos(), OperationList(operations)).proto.SerializeToString(deterministic=True)
    target = _free_path() if path is None else os.fspath(path)
    with replacing(target) as file:
        file.write(data)
    return target


def _free_path() -> str:
    names = (f"{DEFAULT}_{number}.onnx" for number in itertools.count(2))
    return next(name for name in itertools.chain([f"{DEFAULT}.onnx"], names) if not os.path.lexists(name))


class _Model:
    """The model of a list of operations; ``proto`` is the result."""

    def __init__(self, protos: Protos, reading: OperationList) -> None:
        self.protos = protos
        self.reading = reading
        self.values = Names()
        self.tensors = {tensor: self.values.new(tensor) for tensor in reading.types}
        self.titles = self._name_nodes()
        self.domains = {DOMAIN}
        self.proto: onnx.ModelProto = protos.model(DEFAULT, len(reading.entries))
        self._declare()
        for entry in reading.ordered():
            self._operation(entry)
        self._outputs()
        import_domains(self.proto, self.domains)

    def _name_nodes(self) -> list[str]:
        """A name for each node with the operation's id in it."""
        names = Names()
        self.by_id: dict[Any, str] = {}
        titles = []
        for entry in self.reading.entries:
            number = entry.record.get("id")
            number = number if isinstance(number, (int, str)) else entry.number
            titles.append(names.new(f"{split_name(entry.name)[1]}_{number}"))
            self.by_id.setdefault(number, titles[-1])
        return titles

    def _declare(self) -> None:
        """Tensors that no operation makes: weights without their data, and inputs of the graph."""
        graph, reading = self.proto.graph, self.reading
        for tensor, type_ in reading.types.items():
            if tensor in reading.producer:
                continue
            held = reading.roles.get(tensor) in HELD and type_.dtype != UNKNOWN
            # A weight too, if it is a scalar, is an input: ONNX has none without a value.
            if not (held and self.protos.declare(graph, self.tensors[tensor], type_)):
                graph.input.append(self._info(tensor))

    def _info(self, tensor: str) -> onnx.ValueInfoProto:
        """A tensor's name and type."""
        type_ = self.reading.types[tensor]
        info = self.protos.value_info(self.tensors[tensor], type_)
        if type_.dtype == UNKNOWN:
            info.type.tensor_type.elem_type = self.protos.onnx.TensorProto.UNDEFINED
            info.doc_string = ""
        return info

    def _operation(self, entry: ListedOperation) -> None:
        domain, title = split_name(entry.name)
        self.domains.add(domain)
        name = self.titles[entry.number]
        inputs = [self.tensors[tensor] for tensor in entry.inputs]
        outputs = [self.tensors[tensor] for tensor in entry.outputs]
        results = f"{', '.join(outputs)} = " if outputs else ""
        node = self.proto.graph.node.add(
            op_type=title,
            domain=domain,
            name=name,
            input=inputs,
            output=outputs or ([] if inputs else [self.values.new(name)]),  # one of the two there must be
            doc_string=clean(f"{results}{entry.name}({', '.join(inputs)})"),
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
        facts = [(key, str(record[key])) for key in ("phase", "module", "source") if record.get(key)]
        if record.get("gradient_of") is not None:
            facts.append(("gradient of", self._name_of(record["gradient_of"])))
        gradients = record.get("gradients")
        if gradients and isinstance(gradients, (list, tuple)):
            facts.append(("gradients", ", ".join(map(self._name_of, gradients))))
        for key, column in FIGURES.items():
            if isinstance(record.get(key), (int, float)):
                label, unit = METRICS[column]
                facts.append((label, with_unit(record[key], unit)))
        dispatched = record.get("dispatched")
        if dispatched and isinstance(dispatched, (list, tuple)):
            facts.append(("dispatched", ", ".join(map(str, dispatched))))
        return facts

    def _through_memory(self, entry: ListedOperation) -> list[tuple[str, str]]:
        """The operations that it depends on though it takes no tensor of theirs: no line in the picture says so."""
        parents, producers = entry.record.get("parents"), self.reading.producer
        if not parents or not isinstance(parents, (list, tuple)):
            return []
        seen = {self.titles[producers[tensor]] for tensor in entry.inputs if tensor in producers}
        others = [name for name in map(self._name_of, parents) if name not in seen]
        return [("reads memory written by", ", ".join(others))] if others else []

    def _name_of(self, number: Any) -> str:
        """The name of the node of an operation, which may not be in the list."""
        known = self.by_id.get(number) if isinstance(number, (int, str)) else None
        return known or f"operation {number}"

    def _outputs(self) -> None:
        """What nobody reads leaves the graph; the rest is typed in its place."""
        read = {tensor for entry in self.reading.entries for tensor in entry.inputs}
        for tensor in self.reading.producer:
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
        # Netron shows 20 characters or so
        title += "grad "
    domain, separator, last = bare.rpartition("::")
    if not separator:
        domain, _, last = bare.rpartition(".")
    # those operators are ONNX's own, with rules of their own
    if not domain or domain.startswith("ai.onnx"):
        domain = DOMAIN
    return clean(domain), clean(title + (last or bare))


def _frozen(value: Any) -> Any:
    """A JSON value as an argument of a call: lists as tuples."""
    if isinstance(value, (list, tuple)):
        return tuple(_frozen(part) for part in value)
    return value if isinstance(value, (str, int, float)) or value is None else str(value)
