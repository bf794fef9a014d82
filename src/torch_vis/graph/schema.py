"""What a graph consists of: the records of its tables, and every column with its type, length and what it points to.

The builder fills these columns, the verifier checks them against this table, and the file format writes them as
they are. A new column is one more row here.
"""

from __future__ import annotations

from collections.abc import Sequence
from enum import EnumMeta, IntEnum
from typing import Any, NamedTuple

import numpy as np


class CodeMeta(EnumMeta):
    """Members of such a class are found without code in Python.

    Numpy asks the class of whatever it compares for attributes that are not there, and drops what is raised meanwhile:
    an interrupt inside Python's own ``__getattr__`` of enumerations would be lost.
    """

    __getattr__ = type.__getattribute__

    def __new__(cls, *args: Any, **options: Any) -> CodeMeta:
        """Make the class, its members as plain attributes."""
        enum = super().__new__(cls, *args, **options)
        for name, member in enum._member_map_.items():
            type.__setattr__(enum, name, member)
        return enum


class Phase(IntEnum, metaclass=CodeMeta):
    """What an operation ran for; what is done with gradients outside of backward, clipping say, is the optimizer's."""

    FORWARD = 0
    BACKWARD = 1
    OPTIMIZER = 2


class Role(IntEnum, metaclass=CodeMeta):
    """What a value is to the run."""

    ACTIVATION = 0
    INPUT = 1
    PARAMETER = 2
    BUFFER = 3
    CONSTANT = 4
    GRADIENT = 5
    OPTIMIZER_STATE = 6
    OUTPUT = 7


class Kind(IntEnum, metaclass=CodeMeta):
    """What an operation takes from an input value.

    ``DATA``: the bytes this value's own producer wrote. ``WHOLE``: those and all that the value carries along from
    earlier versions of its buffer. ``SHAPE``: the tensor's geometry or identity only, none of its bytes.
    """

    DATA = 0
    WHOLE = 1
    SHAPE = 2


class Flag(IntEnum, metaclass=CodeMeta):
    """Marks on a node, as bits."""

    ESCAPE = 1  # a value left for Python here
    RANDOM = 2  # draws from a random generator
    OPAQUE = 4  # stands for code that could not be looked into
    RECOMPUTE = 8  # a forward operation run again during backward
    VIEW = 16  # writes nothing: its outputs alias its inputs
    GRAD_MODE = 32  # gradients were being recorded, which a few kernels look at
    IN_PLACE_SUM = 64  # autograd adds this into its first input where nobody records
    COLLECTIVE = 128  # talks to other ranks, or waits for what they send


def extent(shape: Sequence[int], stride: Sequence[int]) -> int:
    """The elements from a strided tensor's first to its last, those that it skips included; 0 if it has none.

    >>> extent((2, 3), (4, 1)), extent((0, 3), (3, 1))
    (7, 0)
    """
    return 0 if 0 in shape else 1 + sum((size - 1) * step for size, step in zip(shape, stride))


# what a replay takes as recorded: code that cannot be looked into, and what other ranks would have to join in
RECORDED = int(Flag.OPAQUE | Flag.COLLECTIVE)


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
    def extent(self) -> int:
        """The elements from its first to its last, those that it skips included; 0 if it has none.

        >>> TensorType("float32", (2, 3), (4, 1)).extent
        7
        """
        return extent(self.shape, self.stride)

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
        _, separator, inside = self.file.replace("\\", "/").rpartition("/site-packages/")
        return str(self._replace(file=inside)) if separator else str(self)


class Module(NamedTuple):
    """What a scope is a call of: a module by its path, a function, an optimizer, or the run itself."""

    path: str
    type: str
    kind: str = "module"  # one of MODULE_KINDS


class ResultRow(NamedTuple):
    """One result of the run: an output, a gradient, or state it changed."""

    name: str
    kind: str  # one of RESULT_KINDS


class RankGroup(NamedTuple):
    """Ranks that talk to each other: all of them, one axis of a mesh, or some that the program chose.

    >>> RankGroup("dp", (1, 3), 1, "dp", "gloo").rank
    3
    """

    name: str
    """Its own name in this run: that of its axis where it has one."""
    ranks: tuple[int, ...]
    """Its members, by their number in the whole job."""
    position: int
    """The place of this run's own rank among them, -1 if it is none of them."""
    axis: str = ""
    """The axis of the mesh that it is, "" for none."""
    backend: str = ""

    @property
    def rank(self) -> int | None:
        """This run's own rank in the whole job."""
        return self.ranks[self.position] if 0 <= self.position < len(self.ranks) else None


class Placement(NamedTuple):
    """How a tensor lies on a mesh of ranks: its whole shape, and what of it each axis divides.

    >>> print(Placement((8, 4), ("dp", "tp"), ("Shard(dim=0)", "Replicate()")))
    [8, 4]: Shard(dim=0) on dp, Replicate() on tp
    """

    shape: tuple[int, ...]
    axes: tuple[str, ...]
    placements: tuple[str, ...]

    def __str__(self) -> str:
        parts = ", ".join(f"{placement} on {axis}" for axis, placement in zip(self.axes, self.placements))
        return f"{list(self.shape)}: {parts}"


MODULE_KINDS = ("module", "function", "optimizer", "operator", "compiled", "run", "stage", "microbatch")
RESULT_KINDS = ("output", "gradient", "state")
# "zero" stands for torch's tensors of zeros without memory, "quantized" and "nested" for what has no one layout
LAYOUTS = frozenset(
    "strided zero quantized nested jagged sparse_coo sparse_csr sparse_csc sparse_bsr sparse_bsc _mkldnn".split()
)


class Spec(NamedTuple):
    """One column: its element type, the table it runs along, and the table its numbers point into."""

    dtype: type[np.generic]
    along: str
    refers: str | None = None
    optional: bool = False  # -1 allowed, meaning "none"
    default: int | None = (
        None  # in every row of a file from before there was the column; None: every file has it
    )


COLUMNS: dict[str, Spec] = {
    # one row per operation, in execution order
    "node_call": Spec(np.int32, "node", "call"),
    "node_scope": Spec(np.int32, "node", "scope"),
    "node_site": Spec(np.int32, "node", "site", optional=True),
    # the forward operation that a backward one belongs to
    "node_link": Spec(np.int32, "node", "node", optional=True),
    "node_phase": Spec(np.int8, "node"),
    "node_flags": Spec(np.uint8, "node"),
    "in_start": Spec(np.int64, "node+1"),
    "out_start": Spec(np.int64, "node+1"),
    # one row per tensor that an operation reads; slot -1 is a read through an alias, named by no argument;
    # ``in_kind`` is a ``Kind``: which of the value's bytes it takes
    "in_value": Spec(np.int32, "input", "value"),
    "in_slot": Spec(np.int32, "input"),
    "in_kind": Spec(np.int8, "input"),
    # one row per value that an operation makes; slot >= 0 counts returned tensors, -1-k means argument k was written
    "out_value": Spec(np.int32, "output", "value"),
    "out_slot": Spec(np.int32, "output"),
    # one row per version of a tensor; a write to a part of a buffer ``carries`` the version that it was laid over
    "value_producer": Spec(np.int32, "value", "node", optional=True),
    "value_type": Spec(np.int32, "value", "type"),
    "value_storage": Spec(np.int32, "value", "storage"),
    "value_offset": Spec(np.int64, "value"),
    "value_carries": Spec(np.int32, "value", "value", optional=True),
    "value_name": Spec(np.int32, "value", "name", optional=True),
    "value_role": Spec(np.int8, "value"),
    # one row per block of memory; ``storage_birth`` is the operation that allocated it; it is freed before node
    # ``storage_death`` runs, or never: number of nodes + 1
    "storage_bytes": Spec(np.int64, "storage"),
    "storage_birth": Spec(np.int32, "storage", "node", optional=True),
    "storage_death": Spec(np.int32, "storage"),
    "storage_device": Spec(np.int16, "storage", "device"),
    # one row per call of a module or function; row 0 is the whole run; ``scope_call`` counts the calls of one module
    "scope_parent": Spec(np.int32, "scope", "scope", optional=True),
    "scope_module": Spec(np.int32, "scope", "module"),
    "scope_call": Spec(np.int32, "scope"),
    # one row per value that a result's bytes come from; ``result_kind`` is a ``Kind``, as ``in_kind`` is. Whether the
    # result is an output, a gradient or changed state is said in its row of the table ``results``
    "result_start": Spec(np.int64, "result+1"),
    "result_value": Spec(np.int32, "result_input", "value"),
    "result_kind": Spec(np.int8, "result_input"),
    # of each operation the public function of torch's whose call ran it, and the first operation of that call
    "node_api": Spec(np.int32, "node", "name", optional=True, default=-1),
    "node_api_first": Spec(np.int32, "node", "node", optional=True, default=-1),
    # one row per operation that talks to other ranks; the peer is a rank of the whole job. ``comm_seq`` counts those of
    # one group, for messages those between the same two ranks with the same tag
    "comm_node": Spec(np.int32, "comm", "node", default=0),
    "comm_group": Spec(np.int32, "comm", "group", optional=True, default=-1),
    "comm_seq": Spec(np.int32, "comm", default=0),
    "comm_peer": Spec(np.int32, "comm", default=-1),
    "comm_tag": Spec(np.int64, "comm", default=0),
    # one row per operation that waits for such a one
    "wait_node": Spec(np.int32, "wait", "node", default=0),
    "wait_comm": Spec(np.int32, "wait", "comm", default=0),
    # one row per time that a block of memory became larger or smaller: the operation from which on it is, and its size
    "resize_storage": Spec(np.int32, "resize", "storage", default=0),
    "resize_node": Spec(np.int32, "resize", default=0),
    "resize_bytes": Spec(np.int64, "resize", default=0),
    # one row per value that is a rank's part of a larger tensor
    "placed_value": Spec(np.int32, "placed", "value", default=0),
    "placed_how": Spec(np.int32, "placed", "placement", default=0),
}
# the tables that few runs have a row in: an empty column of theirs is not written to files
SPARSE = frozenset({"comm", "wait", "resize", "placed"})

# the interned records that columns point into, by the name of the table
TABLES = ("calls", "types", "sites", "modules", "names", "devices", "results", "groups", "placements")
# those that files from before there were any do not have
LATER_TABLES = frozenset({"groups", "placements"})
