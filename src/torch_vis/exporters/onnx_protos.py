"""Types, attributes and metadata as ONNX writes them."""

from __future__ import annotations

import struct
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

from torch_vis.errors import optional
from torch_vis.exporters.facts import clean
from torch_vis.graph import Slot, TensorType
from torch_vis.ops.schemas import literal, slot_names

if TYPE_CHECKING:
    import onnx

# ONNX's numbers of element types, by torch's names
DTYPES = {
    "float32": 1, "uint8": 2, "int8": 3, "uint16": 4, "int16": 5, "int32": 6, "int64": 7, "bool": 9,
    "float16": 10, "float64": 11, "uint32": 12, "uint64": 13, "complex64": 14, "complex128": 15, "bfloat16": 16,
    "float8_e4m3fn": 17, "float8_e4m3fnuz": 18, "float8_e5m2": 19, "float8_e5m2fnuz": 20, "uint4": 21, "int4": 22,
    "float8_e8m0fnu": 24, "uint2": 25, "int2": 26,
}  # fmt: skip
# the nearest that ONNX has, where it has not the same
NEAREST = {
    "complex32": "complex64", "qint8": "int8", "quint8": "uint8", "qint32": "int32", "quint4x2": "uint4",
    "quint2x4": "uint2", "bits16": "uint16", "int1": "int2", "int3": "int4", "uint1": "uint2", "uint3": "uint4",
    "int5": "int8", "int6": "int8", "int7": "int8",
}  # fmt: skip
DOMAIN = "torch_vis"
IR_VERSION = 10  # the first with metadata on nodes
INT64 = range(-(2**63), 2**63)
TEXT = 2000  # characters of a doc string or an attribute that are kept


def load_onnx() -> Any:
    """The onnx package."""
    with optional("onnx"):
        import onnx
    return onnx


def elem_type(dtype: str) -> int:
    """ONNX's number for an element type, or for the nearest one; bytes where there is none."""
    return DTYPES.get(NEAREST.get(dtype, dtype), DTYPES["uint8"])


def true_type(type_: TensorType) -> str | None:
    """What ONNX's type does not say of a tensor, in words; None where it says all."""
    exact = type_.dtype in DTYPES
    if exact and type_.layout == "strided":
        return None
    return clean(type_.dtype if type_.layout == "strided" else f"{type_.dtype}, {type_.layout}")


def can_be_sparse(type_: TensorType) -> bool:
    """Whether a weight of this type can be written without its data, as a sparse tensor of zeros."""
    return bool(type_.shape) and all(isinstance(size, int) and size > 0 for size in type_.shape)


class Protos:
    """Makes the small messages, and caches those that recur."""

    def __init__(self) -> None:
        self.onnx = load_onnx()
        self._types: dict[TensorType, onnx.TypeProto] = {}

    def model(self, name: str, operations: int) -> onnx.ModelProto:
        """A model without contents, of a run with so many operations."""
        model = self.onnx.ModelProto(ir_version=IR_VERSION, producer_name=DOMAIN)
        model.doc_string = f"{operations:,} operations of a recorded run"
        model.graph.name = name
        return model

    def declare(self, graph: onnx.GraphProto, name: str, type_: TensorType) -> bool:
        """Declare a weight without its data; False for a scalar and for open sizes, which ONNX cannot so declare."""
        if can_be_sparse(type_):
            graph.sparse_initializer.append(self.weight(name, type_))
        elif 0 in type_.shape and all(isinstance(size, int) for size in type_.shape):
            graph.initializer.append(self.nothing(name, type_))
        else:
            return False
        return True

    def type(self, type_: TensorType) -> onnx.TypeProto:
        """The type and shape of a tensor."""
        proto = self._types.get(type_)
        if proto is None:
            proto = self._types[type_] = self.onnx.TypeProto()
            proto.tensor_type.elem_type = elem_type(type_.dtype)
            proto.tensor_type.shape.SetInParent()
            for size in type_.shape:
                if isinstance(size, int) and size in INT64:
                    proto.tensor_type.shape.dim.add(dim_value=size)
                else:
                    proto.tensor_type.shape.dim.add(dim_param=clean(str(size)))
        return proto

    def bundle_type(self, word: str) -> onnx.TypeProto:
        """The type of several values that go together."""
        proto = self.onnx.TypeProto()
        proto.opaque_type.domain, proto.opaque_type.name = DOMAIN, word
        return proto

    def value_info(self, name: str, type_: TensorType) -> onnx.ValueInfoProto:
        """A value's name and type."""
        return self.onnx.ValueInfoProto(name=name, type=self.type(type_), doc_string=true_type(type_))

    def weight(self, name: str, type_: TensorType) -> onnx.SparseTensorProto:
        """A tensor by shape and type, without its data."""
        proto = self.onnx.SparseTensorProto(dims=type_.shape)
        proto.values.name, proto.values.data_type = name, elem_type(type_.dtype)
        proto.values.dims.append(0)
        proto.indices.data_type = DTYPES["int64"]
        proto.indices.dims.append(0)
        dtype = true_type(type_)
        if dtype:
            proto.values.doc_string = dtype
            say(proto.values, ("dtype", dtype))
        return proto

    def nothing(self, name: str, type_: TensorType) -> onnx.TensorProto:
        """A tensor that has no elements, and so all of its data."""
        return self.onnx.TensorProto(name=name, data_type=elem_type(type_.dtype), dims=type_.shape)

    def attributes(self, arguments: list[tuple[str, Any]]) -> list[onnx.AttributeProto]:
        """The arguments that are no tensors."""
        slots = slot_names(arguments)
        attributes = (self._attribute(name, argument, slots) for name, argument in arguments)
        return [attribute for attribute in attributes if attribute is not None]

    def _attribute(self, name: str, argument: Any, slots: dict[int, str]) -> onnx.AttributeProto | None:
        if argument is None or isinstance(argument, Slot):
            return None
        kind = self.onnx.AttributeProto
        if isinstance(argument, int) and argument in INT64:
            # a bool is 0 or 1
            return kind(name=name, type=kind.INT, i=int(argument))
        if isinstance(argument, float) and is_single(argument):
            return kind(name=name, type=kind.FLOAT, f=argument)
        if type(argument) is tuple and all(isinstance(part, int) and part in INT64 for part in argument):
            return kind(name=name, type=kind.INTS, ints=map(int, argument))
        if type(argument) is tuple and all(isinstance(part, float) and is_single(part) for part in argument):
            return kind(name=name, type=kind.FLOATS, floats=argument)
        if type(argument) is tuple and all(isinstance(part, Slot) for part in argument):
            return None
        # ONNX has no doubles here: 1e-12 as a single would show as 9.999999960041972e-13, so it is text
        text = argument if isinstance(argument, str) else literal(argument, slots)
        return kind(name=name, type=kind.STRING, s=clean(text, TEXT).encode())


def import_domains(model: onnx.ModelProto, domains: Iterable[str]) -> None:
    """Name the domains whose operators a model uses."""
    for domain in sorted(domains):
        model.opset_import.add(domain=domain, version=1)


def say(proto: Any, *facts: tuple[str, str]) -> None:
    """Add lines of metadata, which Netron shows at the side."""
    for key, value in facts:
        proto.metadata_props.add(key=clean(key), value=clean(value, TEXT))


def name_inputs(proto: onnx.NodeProto, names: Iterable[str]) -> None:
    """Say what the inputs of a node are called, in the one form that Netron reads."""
    quoted = ", ".join("'" + name.replace("'", "’").replace(", ", ",") + "'" for name in names)
    if quoted:
        proto.metadata_props.add(key="input_names", value=f"[{quoted}]")


def is_single(number: float) -> bool:
    """Whether a float fits into 32 bits without loss.

    >>> is_single(0.5), is_single(0.1), is_single(float("inf")), is_single(1e300)
    (True, False, True, False)
    """
    try:
        return number != number or struct.unpack("f", struct.pack("f", number))[0] == number
    except OverflowError:
        return False
