"""The graph: immutable columns with rows to read, and the builder, the only way to make one."""

from __future__ import annotations

from collections.abc import Hashable, Iterator, Mapping, Sequence
from typing import Any, Generic, SupportsIndex, TypeVar, overload

import numpy as np

from torch_vis.graph.call import Call, short_name
from torch_vis.graph.columns import Columns
from torch_vis.graph.query.matching import GraphQuery, find
from torch_vis.graph.schema import (
    COLUMNS,
    MODULE_KINDS,
    TABLES,
    Flag,
    Kind,
    Module,
    Phase,
    Placement,
    RankGroup,
    ResultRow,
    Role,
    Site,
    TensorType,
)
from torch_vis.graph.text import inert, shortened
from torch_vis.graph.types import Ints
from torch_vis.graph.verify import check

# letters of a call in a row's repr
LONGEST = 400
Record = TypeVar("Record", bound=Hashable)
RowType = TypeVar("RowType", bound="Row")


class Row:
    """One row of a graph to read: the graph and the row's number, equal when both are."""

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
    def user_line(self) -> Site | None:
        """The line that it is due to: of a backward operation that of its forward one, not that of ``backward()``."""
        forward = self.link if self.phase == "backward" else None
        return self.site if forward is None or forward.site is None else forward.site

    @property
    def link(self) -> Node | None:
        """The forward operation that this backward operation belongs to."""
        link = int(self.graph.node_link[self.index])
        return None if link < 0 else Node(self.graph, link)

    @property
    def api(self) -> str | None:
        """The function of torch's whose call in the program ran it, by its last name; None where that is not known.

        >>> import torch, torch_vis as tv
        >>> graph = tv.trace(lambda x, w: torch.nn.functional.linear(x, w), torch.ones(1, 3), torch.ones(2, 3)).graph
        >>> [(node.name, node.api) for node in graph.nodes]
        [('t', 'linear'), ('mm', 'linear')]
        """
        api = int(self.graph.node_api[self.index])
        return None if api < 0 else self.graph.names[api]

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
        outputs = ", ".join(f"%{value.index}" for value in self.outputs)
        text = self.call.format(lambda slot: names.get(slot, f"%?{slot}"))
        return f"{outputs} = {text}" if outputs else text

    def __repr__(self) -> str:
        where = f" in {shortened(self.path)}" if self.path else ""
        return inert(f"<node {self.index}: {shortened(self.format(), LONGEST)}{where}>")


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
        """The operation that made it; None for a value from before the run."""
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
        name = f" {shortened(self.name)!r}" if self.name else ""
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
        """What it is a call of: ``"module"``, ``"function"``, ``"optimizer"``, ``"run"`` or another of its kinds."""
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
        return inert(
            f"<scope {self.index}: {shortened(self.path) or '(root)'} {shortened(self.type)}{again}>"
        )


class Result(Row):
    """Something the run returned, and the values in it; its name and kind are a row of ``graph.results``."""

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
        return f"<{self.kind} {shortened(self.name)!r}: {self.value.type}>"


class Rows(Sequence[RowType], Generic[RowType]):
    """Rows of one kind as a sequence, each made when it is asked for.

    >>> import torch, torch_vis as tv
    >>> nodes = tv.trace(torch.nn.ReLU(), torch.ones(2)).graph.nodes
    >>> len(nodes), nodes[0].name
    (1, 'relu')
    """

    __slots__ = ("_graph", "_row", "numbers")

    def __init__(self, graph: Graph, row: type[RowType], numbers: Ints | range) -> None:
        self._graph = graph
        self._row = row
        self.numbers = numbers

    def __len__(self) -> int:
        return len(self.numbers)

    @overload
    def __getitem__(self, item: SupportsIndex) -> RowType: ...
    @overload
    def __getitem__(self, item: slice) -> Rows[RowType]: ...
    def __getitem__(self, item: SupportsIndex | slice) -> RowType | Rows[RowType]:
        if isinstance(item, slice):
            return Rows(self._graph, self._row, self.numbers[item])
        return self._row(self._graph, int(self.numbers[item]))

    def __iter__(self) -> Iterator[RowType]:
        for number in self.numbers:
            yield self._row(self._graph, int(number))

    def __repr__(self) -> str:
        shown = ",\n ".join(repr(row) for row in self[:20])
        rest = f",\n … {len(self) - 20:,} more" if len(self) > 20 else ""
        return f"[{shown}{rest}]"


class Graph(Columns):
    """Everything one run did, as columns.

    A graph is made by ``GraphBuilder`` and never changed. Bulk data is numpy (``graph.node_scope``), repeated
    records are interned tables (``graph.calls``), and ``graph.nodes``, ``graph.values`` and ``graph.scopes`` give rows
    to read. Edges are derived: nothing is kept in two places.

    >>> import torch, torch_vis as tv
    >>> graph = tv.trace(torch.nn.Sequential(torch.nn.Linear(3, 2), torch.nn.ReLU()), torch.ones(1, 3)).graph
    >>> [node.name for node in graph.nodes]
    ['t', 'addmm', 'relu']
    >>> [node.name for node in graph.nodes[1].users]
    ['relu']
    """

    def replaced(self, **parts: Any) -> Graph:
        """The same graph with other columns or tables, given by name."""
        columns = {name: parts.get(name, getattr(self, name)) for name in COLUMNS}
        return Graph(columns, {name: parts.get(name, getattr(self, name)) for name in TABLES})

    @property
    def nodes(self) -> Rows[Node]:
        """Every operation, in execution order."""
        return Rows(self, Node, range(len(self.node_call)))

    @property
    def values(self) -> Rows[Value]:
        """Every version of every tensor, in the order in which they appeared."""
        return Rows(self, Value, range(len(self.value_type)))

    @property
    def scopes(self) -> Rows[Scope]:
        """Every call of a module; the first is the whole run."""
        return Rows(self, Scope, range(len(self.scope_call)))

    @property
    def outcomes(self) -> Rows[Result]:
        """The results of the run: outputs, gradients, changed state."""
        return Rows(self, Result, range(len(self.results)))

    @property
    def inputs(self) -> Rows[Value]:
        """The values that came from outside: inputs, parameters, buffers, constants."""
        return Rows(self, Value, np.flatnonzero(self.value_producer < 0))

    def find(
        self,
        path: Any = None,
        *,
        op: str | None = None,
        phase: str | None = None,
        dtype: str | None = None,
        flag: str | None = None,
    ) -> Rows[Node]:
        """The operations that match every pattern given.

        ``path`` is any selector (``torch_vis.graph.query.selector`` has the language): a module's path or pattern
        stands for its own operations and those of the modules inside it. ``op`` is a pattern of operator names, with or
        without namespace; one without ``*`` that names no operator of the run raises ``NoMatch``.

        >>> import torch, torch_vis as tv
        >>> t = tv.trace(torch.nn.Sequential(torch.nn.Linear(3, 2), torch.nn.ReLU()), torch.ones(1, 3))
        >>> [node.name for node in t.graph.find("0", op="add*", phase="forward")]
        ['addmm']
        >>> [node.index for node in t.graph.find("class:Linear & op:add* | 1/relu:0")]
        [1, 2]
        """
        query = self.query(*MODULE_KINDS)
        numbers = find(self, query, path=path, op=op, phase=phase, dtype=dtype, flag=flag)
        return Rows(self, Node, numbers)

    def query(self, *kinds: str, second_paths: Mapping[str, str] | None = None) -> GraphQuery:
        """What answers selectors on this graph; ``kinds`` are those of scopes that can be named, modules by default.

        ``second_paths`` has further paths of modules, each with the one that the graph has.
        """
        return GraphQuery(
            self,
            node=lambda index: Node(self, index),
            scope=lambda index: Scope(self, index),
            kinds=kinds or ("module",),
            second_paths=second_paths,
        )

    def check(self) -> None:
        """Verify the graph against its own rules; raises ``GraphError`` that names the offending node.

        >>> import torch, torch_vis as tv
        >>> tv.trace(torch.nn.ReLU(), torch.ones(2)).graph.check()
        """
        check(self)


class Table(Generic[Record]):
    """Records kept once each, numbered in the order in which they came.

    >>> names = Table()
    >>> names.intern("a"), names.intern("b"), names.intern("a"), names.rows
    (0, 1, 0, ['a', 'b'])
    """

    __slots__ = ("_numbers", "rows")

    def __init__(self) -> None:
        self.rows: list[Record] = []
        self._numbers: dict[Record, int] = {}

    def intern(self, record: Record) -> int:
        """The record's number, new or old."""
        number = self._numbers.get(record)
        if number is None:
            number = self._numbers[record] = len(self.rows)
            self.rows.append(record)
        return number

    def __len__(self) -> int:
        return len(self.rows)


class GraphBuilder:
    """Collects the tables and columns of a graph and verifies them once, in ``build``.

    Calls are appended and not interned by value: ``1``, ``1.0`` and ``True`` are equal in Python and different to an
    operator, so the capture decides which calls are the same.

    >>> builder = GraphBuilder()
    >>> len(builder.build())
    0
    """

    def __init__(self) -> None:
        self.calls: list[Call] = []
        self.types: Table[TensorType] = Table()
        self.sites: Table[Site] = Table()
        self.modules: Table[Module] = Table()
        self.names: Table[str] = Table()
        self.devices: Table[str] = Table()
        self.results: list[ResultRow] = []
        self.groups: list[RankGroup] = []
        self.placements: Table[Placement] = Table()
        self._columns: dict[str, Ints] = {}

    def set(self, **columns: Ints | Sequence[int]) -> None:
        """Set whole columns by name."""
        for name, column in columns.items():
            spec = COLUMNS[name]
            self._columns[name] = np.asarray(column, dtype=spec.dtype)

    def build(self) -> Graph:
        """The graph; raises ``GraphError`` if the columns break a rule."""
        columns: dict[str, Ints] = {}
        for name, spec in COLUMNS.items():
            if name in self._columns:
                columns[name] = self._columns[name]
            elif spec.default is None:
                columns[name] = np.zeros(1 if spec.along.endswith("+1") else 0, dtype=spec.dtype)
        if not len(columns["scope_call"]) and "scope_call" not in self._columns:
            columns["scope_parent"] = np.array([-1], dtype=np.int32)
            columns["scope_module"] = np.array(
                [self.modules.intern(Module("", "run", "run"))], dtype=np.int32
            )
            columns["scope_call"] = np.array([0], dtype=np.int32)
        graph = Graph(columns, self._tables())
        graph.check()
        return graph

    def _tables(self) -> Mapping[str, Sequence[Any]]:
        return {
            "calls": self.calls,
            "types": self.types.rows,
            "sites": self.sites.rows,
            "modules": self.modules.rows,
            "names": self.names.rows,
            "devices": self.devices.rows,
            "results": self.results,
            "groups": self.groups,
            "placements": self.placements.rows,
        }
