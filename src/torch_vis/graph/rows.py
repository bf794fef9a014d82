"""The rows a reader sees: records of the interned tables, and two-slot views of nodes, values and scopes."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from torch_vis.graph.call import Call, short_name
from torch_vis.graph.schema import Flag, Kind, Phase, Role

if TYPE_CHECKING:
    from torch_vis.graph.graph import Graph


class TensorType(NamedTuple):
    """Shape, strides and element type of a tensor; ``layout`` is "strided" or names what else it is.

    ``symbols`` names the sizes that a captured program leaves open, "" for those that it fixes; ``shape`` has the sizes
    of the run.

    >>> TensorType("float32", (2, 3), (3, 1)).nbytes
    24
    >>> print(TensorType("float32", (2, 3), (3, 1), symbols=("s0", "")))
    f32[s0, 3]
    """

    dtype: str
    shape: tuple[int, ...]
    stride: tuple[int, ...]
    layout: str = "strided"
    conj: bool = False
    neg: bool = False
    symbols: tuple[str, ...] = ()

    @property
    def numel(self) -> int:
        """The number of elements."""
        count = 1
        for size in self.shape:
            count *= size
        return count

    @property
    def sizes(self) -> list[str]:
        """The shape as it is read: an open size by its name, a fixed one as a number."""
        if not self.symbols:
            return [str(size) for size in self.shape]
        return [name or str(size) for name, size in zip(self.symbols, self.shape)]

    @property
    def itemsize(self) -> int | None:
        """Bytes per element, None where that is not fixed."""
        return ITEMSIZE.get(self.dtype)

    @property
    def nbytes(self) -> int | None:
        """Bytes of the elements, None where the layout does not say (sparse, nested)."""
        size = self.itemsize
        return None if size is None or self.layout != "strided" else size * self.numel

    def __str__(self) -> str:
        return f"{SHORT_DTYPE.get(self.dtype, self.dtype)}[{', '.join(self.sizes)}]"


ITEMSIZE = {
    **dict.fromkeys(["bool", "uint8", "int8", "qint8", "quint8", "bits8"], 1),
    **dict.fromkeys(
        ["float8_e4m3fn", "float8_e5m2", "float8_e4m3fnuz", "float8_e5m2fnuz", "float8_e8m0fnu"], 1
    ),
    **dict.fromkeys(["float16", "bfloat16", "int16", "uint16", "bits16"], 2),
    **dict.fromkeys(["float32", "int32", "uint32", "qint32", "complex32"], 4),
    **dict.fromkeys(["float64", "int64", "uint64", "complex64"], 8),
    "complex128": 16,
}
SHORT_DTYPE = {
    "float32": "f32",
    "float64": "f64",
    "float16": "f16",
    "bfloat16": "bf16",
    "int64": "i64",
    "int32": "i32",
    "int16": "i16",
    "int8": "i8",
    "uint8": "u8",
    "complex64": "c64",
    "complex128": "c128",
}


class Site(NamedTuple):
    """A line of the user's program."""

    file: str
    line: int
    function: str

    def __str__(self) -> str:
        return f"{self.file}:{self.line} in {self.function}"

    @property
    def short(self) -> str:
        """The same, with a file of an installed package by its path in there.

        >>> Site("/usr/lib/python3/site-packages/timm/layers/mlp.py", 40, "forward").short
        'timm/layers/mlp.py:40 in forward'
        """
        _, found, inside = self.file.replace("\\", "/").rpartition("/site-packages/")
        return str(self._replace(file=inside)) if found else str(self)


class Module(NamedTuple):
    """What a scope is a call of: a module by its path, a function, an optimizer, or the run itself."""

    path: str
    type: str
    kind: str = "module"


class ResultRow(NamedTuple):
    """One thing the run gave back: an output, a gradient, or state it changed."""

    name: str
    kind: str


class Row:
    """A two-slot view: the graph and a row number, equal when both are."""

    __slots__ = ("graph", "index")

    def __init__(self, graph: Graph, index: int) -> None:
        self.graph = graph
        self.index = index

    def __eq__(self, other: object) -> bool:
        return type(other) is type(self) and other.graph is self.graph and other.index == self.index

    def __hash__(self) -> int:
        return hash((id(self.graph), self.index))


class Node(Row):
    """One operation that the dispatcher ran.

    >>> import torch, torch_vis as tv
    >>> node = tv.trace(torch.nn.Linear(3, 2), torch.ones(1, 3)).graph.nodes[-1]
    >>> node.op, node.phase, [str(v.type) for v in node.outputs]
    ('aten::addmm', 'forward', ['f32[1, 2]'])
    """

    __slots__ = ()

    @property
    def call(self) -> Call:
        """Operator and argument template."""
        return self.graph.calls[int(self.graph.node_call[self.index])]

    @property
    def op(self) -> str:
        """The operator's name, overload left out: ``aten::add``."""
        return self.call.op.partition(".")[0]

    @property
    def name(self) -> str:
        """The operator's short name: ``add``."""
        return short_name(self.call.op)

    @property
    def phase(self) -> str:
        """``"forward"``, ``"backward"`` or ``"optimizer"``."""
        return Phase(self.graph.node_phase[self.index]).name.lower()

    @property
    def scope(self) -> Scope:
        """The call of a module that it ran in."""
        return Scope(self.graph, int(self.graph.node_scope[self.index]))

    @property
    def path(self) -> str:
        """The path of the module it ran in, ``""`` for the root."""
        return self.scope.path

    @property
    def site(self) -> Site | None:
        """The user's source line, None where no Python frame was there to tell."""
        site = int(self.graph.node_site[self.index])
        return None if site < 0 else self.graph.sites[site]

    @property
    def link(self) -> Node | None:
        """The forward operation that this backward operation belongs to."""
        link = int(self.graph.node_link[self.index])
        return None if link < 0 else Node(self.graph, link)

    @property
    def flags(self) -> tuple[str, ...]:
        """Marks such as ``"escape"`` (a value left for Python here) or ``"random"``."""
        bits = int(self.graph.node_flags[self.index])
        return tuple(flag.name.lower() for flag in Flag if bits & flag)

    @property
    def inputs(self) -> tuple[Value, ...]:
        """The values named by its arguments, in slot order."""
        graph, span = self.graph, self.graph.input_span(self.index)
        rows = sorted((int(graph.in_slot[row]), int(graph.in_value[row])) for row in range(*span))
        return tuple(Value(graph, value) for slot, value in rows if slot >= 0)

    @property
    def reads(self) -> tuple[tuple[Value, str], ...]:
        """Every value it depends on with what it takes: ``"data"``, ``"whole"`` or ``"shape"``; aliases included."""
        graph, span = self.graph, self.graph.input_span(self.index)
        return tuple(
            (Value(graph, int(graph.in_value[row])), Kind(graph.in_kind[row]).name.lower())
            for row in range(*span)
        )

    @property
    def outputs(self) -> tuple[Value, ...]:
        """The values it makes: what it returns and the new versions of what it writes."""
        graph, span = self.graph, self.graph.output_span(self.index)
        return tuple(Value(graph, int(graph.out_value[row])) for row in range(*span))

    @property
    def producers(self) -> tuple[Node, ...]:
        """The operations whose bytes it reads."""
        return tuple(Node(self.graph, int(i)) for i in self.graph.producers(self.index))

    @property
    def users(self) -> tuple[Node, ...]:
        """The operations that read what it makes."""
        return tuple(Node(self.graph, int(i)) for i in self.graph.users(self.index))

    def format(self) -> str:
        """The operation as one line of code: ``%12 = add(%10, 1.0)``."""
        names = {slot: f"%{value.index}" for slot, value in enumerate(self.inputs)}
        made = ", ".join(f"%{value.index}" for value in self.outputs)
        text = self.call.format(lambda slot: names.get(slot, f"%?{slot}"))
        return f"{made} = {text}" if made else text

    def __repr__(self) -> str:
        where = f" in {self.path}" if self.path else ""
        return f"<node {self.index}: {self.format()}{where}>"


class Value(Row):
    """One version of one tensor."""

    __slots__ = ()

    @property
    def type(self) -> TensorType:
        """Shape, strides and element type."""
        return self.graph.types[int(self.graph.value_type[self.index])]

    @property
    def shape(self) -> tuple[int, ...]:
        """Its shape."""
        return self.type.shape

    @property
    def dtype(self) -> str:
        """Its element type, as torch names it: ``"float32"``."""
        return self.type.dtype

    @property
    def device(self) -> str:
        """Where its memory is."""
        return self.graph.devices[int(self.graph.storage_device[self.storage])]

    @property
    def producer(self) -> Node | None:
        """The operation that made it; None for what came from outside."""
        producer = int(self.graph.value_producer[self.index])
        return None if producer < 0 else Node(self.graph, producer)

    @property
    def users(self) -> tuple[Node, ...]:
        """The operations that take it, in order."""
        return tuple(Node(self.graph, int(i)) for i in self.graph.value_users(self.index))

    @property
    def role(self) -> str:
        """``"parameter"``, ``"activation"``, ``"gradient"``…"""
        return Role(self.graph.value_role[self.index]).name.lower()

    @property
    def name(self) -> str | None:
        """The parameter's, buffer's or input's name, where it has one."""
        name = int(self.graph.value_name[self.index])
        return None if name < 0 else self.graph.names[name]

    @property
    def storage(self) -> int:
        """The number of the memory block that it lies in."""
        return int(self.graph.value_storage[self.index])

    @property
    def offset(self) -> int:
        """Where it begins in its memory block, in elements."""
        return int(self.graph.value_offset[self.index])

    @property
    def carries(self) -> Value | None:
        """The version of the buffer that this partial write was laid over."""
        carried = int(self.graph.value_carries[self.index])
        return None if carried < 0 else Value(self.graph, carried)

    def __repr__(self) -> str:
        name = f" {self.name!r}" if self.name else ""
        return f"<value {self.index}: {self.type} {self.role}{name}>"


class Scope(Row):
    """One call of a module (or of a function, an optimizer's step, a compiled region)."""

    __slots__ = ()

    @property
    def path(self) -> str:
        """The module's path, ``"encoder.layer.0"``."""
        return self._module.path

    @property
    def type(self) -> str:
        """The module's class."""
        return self._module.type

    @property
    def kind(self) -> str:
        """``"module"``, ``"function"``, ``"optimizer"``, ``"operator"``, ``"compiled"`` or ``"run"``."""
        return self._module.kind

    @property
    def call(self) -> int:
        """Which call of this module it is, from 0."""
        return int(self.graph.scope_call[self.index])

    @property
    def parent(self) -> Scope | None:
        """The scope it was called from."""
        parent = int(self.graph.scope_parent[self.index])
        return None if parent < 0 else Scope(self.graph, parent)

    @property
    def _module(self) -> Module:
        return self.graph.modules[int(self.graph.scope_module[self.index])]

    def __repr__(self) -> str:
        again = f" call {self.call}" if self.call else ""
        return f"<scope {self.index}: {self.path or '(root)'} {self.type}{again}>"


class Result(Row):
    """Something the run gave back, and the values it rests on."""

    __slots__ = ()

    @property
    def name(self) -> str:
        """Where it was: ``"output.logits"``, ``"encoder.weight"``."""
        return self._row.name

    @property
    def kind(self) -> str:
        """``"output"``, ``"gradient"`` or ``"state"``."""
        return self._row.kind

    @property
    def value(self) -> Value:
        """The tensor itself."""
        return Value(self.graph, self.sources()[0][0])

    def sources(self) -> list[tuple[int, int]]:
        """The ``(value, kind)`` pairs that its bytes come from; the first names the tensor itself."""
        graph = self.graph
        span = range(int(graph.result_start[self.index]), int(graph.result_start[self.index + 1]))
        return [(int(graph.result_value[row]), int(graph.result_kind[row])) for row in span]

    @property
    def _row(self) -> ResultRow:
        return self.graph.results[self.index]

    def __repr__(self) -> str:
        return f"<{self.kind} {self.name!r}: {self.value.type}>"
