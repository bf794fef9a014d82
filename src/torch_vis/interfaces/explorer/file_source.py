"""Files from others in the explorer: checkpoints, safetensors, exported programs, ONNX, and traces of our own.

A pickle can run any code while it is read, and so can what torch loads as TorchScript or as an exported program. Here
pickles are read as weights alone and archives from their own tables, which run nothing; more needs the caller's word.
"""

from __future__ import annotations

import io
import logging
import math
import operator
import os
from collections.abc import Mapping, Sequence
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np
import torch

from torch_vis.capture.tensor_contents import contents_of, histogram_of, unseen
from torch_vis.capture.undo import Undo, context, without_warnings
from torch_vis.errors import CorruptFile, NotOurFile, UsageError, optional
from torch_vis.graph.io.atomic import check_regular
from torch_vis.graph.io.tables_json import MOST_DIMENSIONS
from torch_vis.graph.io.world import is_world
from torch_vis.graph.text import count, many, size
from torch_vis.interfaces.explorer.archives import (
    TABLE_BYTES,
    Archive,
    NotUnderstood,
    read_exported,
    read_script,
)
from torch_vis.replay.activation_file import DTYPES
from torch_vis.views.terminal.forest import Forest, Sharing, share
from torch_vis.views.terminal.source import Bars, Details, Source, TensorRow, sizes

WEIGHTS = (".pt", ".pth", ".bin", ".ckpt", ".pkl", ".safetensors", ".pt2", ".onnx")
OF_SAFETENSORS = {code: dtype for dtype, code in DTYPES.items()}
FEW = 6  # of a list that a row shows
LONGEST_KEY = 120  # letters of a name that is no text
LONGEST = 128  # bits of a number that is written out
PLAIN = (int, float, complex, str, bool, bytes, type(None))
LEVELS = 100  # of a tree of names; what a file nests deeper is no model
DANGER = "it holds more than weights, and a pickle can run any code while it is read: if you trust where it comes from,"

UNKNOWN_FORM = "its tables have a form that cannot be read without running code"
LOADER = "torch's own loader can run any code of the file: if you trust where it comes from,"


class NeedsTrust(UsageError):
    """A file that cannot be read without running code of its own, and that nobody has vouched for."""

    def __init__(self, path: str, how: str = "open it with trust=True", reason: str = DANGER) -> None:
        super().__init__(f"{path} was not opened: {reason} {how}")
        self.path, self.reason = path, reason


class StoredTensor:
    """A tensor in a file: its shape and type now, its elements when they are asked for."""

    def __init__(
        self, shape: Sequence[int], dtype: str, nbytes: int, load: Any, device: str = "file"
    ) -> None:
        self.shape = tuple(int(size) for size in shape)
        if any(size < 0 for size in self.shape) or math.prod(self.shape) * 16 >= 2**63:
            raise CorruptFile(f"a tensor of the file has the shape {list(self.shape)}, which none can have")
        self.dtype, self.nbytes, self.load, self.device = dtype, int(nbytes), load, device
        self.scalar: Any = None
        """Its element, of a file whose reader has it at hand."""

    @property
    def numel(self) -> int:
        """The number of elements."""
        return math.prod(self.shape)

    @classmethod
    def of(cls, tensor: torch.Tensor) -> StoredTensor:
        """A tensor that is in memory."""
        dtype = str(tensor.dtype).removeprefix("torch.")
        nbytes = tensor.numel() * tensor.element_size()
        stored = cls(tuple(tensor.shape), dtype, nbytes, lambda: tensor, str(tensor.device))
        stored.scalar = scalar_of(tensor)
        return stored


def scalar_of(tensor: torch.Tensor) -> Any:
    """The element of a tensor that has one, as Python's; None of any other, and where it cannot be had."""
    if tensor.device.type != "cpu" or tensor.layout != torch.strided or tensor.numel() != 1:
        return None
    try:
        with unseen():
            return tensor.item()
    except (RuntimeError, NotImplementedError):  # of a type that has no numbers of Python's
        return None


def written(value: Any, letters: int = 38) -> str:
    """A value in few letters, whatever it is.

    >>> written(0.00030000001424923539), written([0.9, 0.999]), written("x" * 60, 10), written(None)
    ('0.0003', '[0.9, 0.999]', "'xxxxxxxx…", 'None')
    """
    if isinstance(value, (list, tuple)):
        inside = ", ".join(written(item) if type(item) in PLAIN else "…" for item in value[:FEW])
        more = f", … {len(value):,} in all" if len(value) > FEW else ""
        text = f"[{inside}{more}]" if isinstance(value, list) else f"({inside}{more})"
    elif isinstance(value, (str, bytes)):
        text = repr(value[:letters])
    elif isinstance(value, int) and value.bit_length() > LONGEST:
        text = f"a number of {value.bit_length():,} bits"
    else:
        text = (
            f"{value:.6g}"
            if type(value) is float
            else repr(value)
            if type(value) in PLAIN
            else type(value).__name__
        )
    return text if len(text) <= letters else f"{text[: letters - 1]}…"


class StateSource(Source):
    """Dotted names as a tree with tensors as leaves; other values are leaves that show their type."""

    def __init__(self, title: str, state: Mapping[str, Any], *, facts: Sequence[str] = ()) -> None:
        leaves = _leaves(title, state)
        names, types, parents, paths, kinds, self.items = _branches(title, leaves)
        forest = Forest(names, types, parents, paths=paths, kinds=kinds)
        super().__init__(title, forest, facts=facts)
        # Nothing has run, and there is no program that could.
        self.panels = ["details"]
        self._count()
        words = forest.texts
        words["shapes"] = lambda row: sizes(tensor.shape) if (tensor := self._tensor(row)) else ""
        words["dtype"] = lambda row: tensor.dtype if (tensor := self._tensor(row)) else ""
        words["device"] = lambda row: tensor.device if (tensor := self._tensor(row)) else ""
        words["value"] = self._value
        forest.describe = lambda row: (words["shapes"](row), words["dtype"](row), words["value"](row))

    def _tensor(self, row: int) -> StoredTensor | None:
        item = self.items.get(row)
        return item if isinstance(item, StoredTensor) else None

    def _value(self, row: int) -> str:
        """What a row holds, if that is one value."""
        item = self.items.get(row)
        if row not in self.items or isinstance(item, OnnxNode):
            return ""
        if isinstance(item, StoredTensor):
            return "" if item.scalar is None else written(item.scalar)
        return written(item)

    def _count(self) -> None:
        forest = self.forest
        rows = [row for row, item in self.items.items() if isinstance(item, StoredTensor)]
        tensors = [self.items[row] for row in rows]
        known: dict[Any, int] = {}
        items = [known.setdefault(_memory(tensor), len(known)) for tensor in tensors]
        first: dict[int, Any] = {}
        for item, tensor in zip(items, tensors):
            first.setdefault(item, tensor)
        sizes = [first[item].numel for item in range(len(first))]
        holding = Sharing(forest, rows, items, sizes)
        forest.sharing = holding
        forest.numbers["elements"] = holding.inclusive(holding.size).astype(np.float64)
        nbytes = np.array([first[item].nbytes for item in range(len(first))], dtype=np.int64)
        forest.numbers["bytes"] = holding.inclusive(nbytes).astype(np.float64)
        share(forest, "elements")
        total = int(forest.numbers["elements"][0]) if len(forest) else 0
        values = [row for row, item in self.items.items() if not isinstance(item, (StoredTensor, OnnxNode))]
        for name in ("elements", "elements_share", "bytes"):
            # they are no tensors
            forest.numbers[name][values] = np.nan
        self.facts = [
            f"{len(rows):,} tensor{'' if len(rows) == 1 else 's'}",
            f"{count(total)} elements",
            size(int(nbytes.sum())),
            *self.facts,
        ]

    def details(self, row: int) -> Details:
        """A tensor's shape and type, a value as it is, or what a branch holds."""
        item = self.items.get(row)
        facts = [("name", self.forest.paths[row] or self.title)]
        if isinstance(item, StoredTensor):
            tensor = TensorRow(
                self.forest.names[row], "tensor", item.shape, item.dtype, item.device, item.nbytes
            )
            value = [] if item.scalar is None else [("value", written(item.scalar))]
            return Details([*facts, *value], tensors=[tensor])
        if row in self.items:
            return Details(
                [*facts, ("value", repr(item)[:200] if isinstance(item, OnnxNode) else written(item, 200))]
            )
        elements = int(self.forest.numbers["elements"][row])
        return Details(
            [*facts, ("elements", f"{elements:,}"), ("size", size(int(self.forest.numbers["bytes"][row])))]
        )

    def figures(self, row: int) -> Sequence[TensorRow]:
        """The tensor, read from the file and looked into."""
        tensors = self.details(row).tensors
        item = self._tensor(row)
        if item is None or item.load is None:
            return tensors
        inside = contents_of(item.load())
        return [tensor._replace(figures=inside) for tensor in tensors]

    def histograms(self, row: int) -> Sequence[Bars] | None:
        """How the tensor's elements are spread."""
        item = self._tensor(row)
        bars = None if item is None or item.load is None else histogram_of(item.load())
        return None if bars is None else [Bars(self.forest.names[row], *bars)]


def open_file(path: str | os.PathLike[str], *, trust: bool = False) -> Source:
    """The source that a file holds, by its ending."""
    name = os.fspath(path)
    check_regular(name)
    ending = os.path.splitext(name)[1].lower()
    if ending == ".tvz" and is_world(name):
        from torch_vis.analysis.ranks.world import World
        from torch_vis.interfaces.explorer.world_source import WorldSource

        return WorldSource(World.load(name))
    if ending in (".tvz", ".json"):
        from torch_vis._trace import Trace
        from torch_vis.api import reader_of
        from torch_vis.interfaces.explorer.trace_source import TraceSource

        return TraceSource(Trace.of(reader_of(name).load(name, trust=trust)))
    readers = {".safetensors": _safetensors, ".onnx": _onnx}
    if ending in readers:
        return readers[ending](name)
    if ending in (".pt", ".pth", ".bin", ".ckpt", ".pkl", ".pt2"):
        return _of_torch(name, trust, ending)
    raise NotOurFile(
        f"cannot read {name}: the explorer opens .pt, .pth, .bin, .ckpt, .safetensors, .pt2, .onnx, .tvz and .json"
    )


def _of_torch(path: str, trust: bool, ending: str) -> Source:
    """A file that torch wrote; its content decides how it is read, not its ending."""
    archive = _archive(path)
    try:
        if archive is not None and archive.is_exported:
            return _exported(path, archive, trust)
        if archive is not None and archive.is_script:
            return _script(path, archive, trust)
    except NotUnderstood as error:
        raise NeedsTrust(path, reason=f"{UNKNOWN_FORM} ({error}); {LOADER}") from error
    if ending == ".pt2":
        raise CorruptFile(f"cannot read {path}: it is no exported program, which is an archive of tables")
    if (
        archive is not None
        and not trust
        and any(entry.file_size > _most(entry) for entry in archive.records.values())
    ):
        raise CorruptFile(
            f"cannot read {path}: it is compressed, which torch.save does not do, and would be far larger"
        )
    return _pickled(path, trust)


def _most(entry: Any) -> int:
    """The bytes that a record of an archive may have; an uncompressed one has its size in the file."""
    import zipfile

    return int(entry.compress_size) if entry.compress_type == zipfile.ZIP_STORED else TABLE_BYTES


def _archive(path: str) -> Archive | None:
    import zipfile

    try:
        return Archive(path) if zipfile.is_zipfile(path) else None
    except (zipfile.BadZipFile, NotImplementedError, ValueError, OSError) as error:
        raise CorruptFile(f"cannot read {path}: {str(error).partition(chr(10))[0]}") from error


def _pickled(path: str, trust: bool) -> Source:
    import pickle

    from torch_vis.interfaces.explorer.model_source import ModuleSource, class_of

    if _start(path)[:4] != b"PK\x03\x04" and _start(path)[:1] != b"\x80":
        raise CorruptFile(f"cannot read {path}: it is neither what torch.save writes nor a pickle")
    is_archive = _start(path) == b"PK\x03\x04"
    try:
        if is_archive:
            loaded: Any = torch.load(path, map_location="cpu", weights_only=True, mmap=True)
        else:
            with io.FileIO(path) as raw, _Bounded(raw) as file:
                loaded = torch.load(file, map_location="cpu", weights_only=True)
    except pickle.UnpicklingError as error:
        if not trust:
            raise NeedsTrust(path) from error
        loaded = _trusted(path)
    # a hostile pickle makes torch's reader raise anything
    except Exception as error:
        raise CorruptFile(f"cannot read {path}: {str(error).partition(chr(10))[0]}") from error
    title = Path(path).name
    if isinstance(loaded, torch.nn.Module):
        return ModuleSource(loaded, title=f"{title}: {class_of(loaded)}")
    if isinstance(loaded, torch.Tensor):
        loaded = {"tensor": loaded}
    if not isinstance(loaded, (Mapping, list, tuple)):
        raise UsageError(f"{path} holds a {type(loaded).__name__}: no module, no tensors")
    return StateSource(
        title, loaded if isinstance(loaded, Mapping) else {str(at): item for at, item in enumerate(loaded)}
    )


class _Bounded(io.BufferedReader):
    """A file that has no more bytes than it has: others make room for all that a pickle asks for."""

    def read(self, size: int | None = -1, /) -> bytes:
        left = max(0, os.fstat(self.fileno()).st_size - self.tell())
        return super().read(left if size is None or size < 0 else min(size, left))


def _trusted(path: str) -> Any:
    try:
        return torch.load(path, map_location="cpu", weights_only=False)
    except (AttributeError, ImportError) as error:
        raise UsageError(f"{path} needs code that is not here: {error}") from error


def _start(path: str) -> bytes:
    with open(path, "rb") as file:
        return file.read(4)


def _script(path: str, archive: Archive, trust: bool) -> Source:
    """TorchScript as its modules, which have the names and classes of the original."""
    from torch_vis.interfaces.explorer.model_source import ModuleSource, class_of

    facts = []
    if trust:
        try:
            module: torch.nn.Module = torch.jit.load(path, map_location="cpu")
        except RuntimeError as error:
            raise CorruptFile(f"cannot read {path}: {str(error).strip().partition(chr(10))[0]}") from error
    else:
        script = read_script(archive)
        module = script.module
        if script.restoring:
            facts.append(f"{many(script.restoring, 'module')} not restored: only the file's own code can")
        if script.unlisted:
            facts.append(f"{many(script.unlisted, 'tensor')} of another kind not listed")
    source = ModuleSource(module, title=f"{Path(path).name}: {class_of(module)}")
    source.facts += facts
    return source


def _safetensors(path: str) -> Source:
    with optional("safetensors"):
        from safetensors import SafetensorError, safe_open
    try:
        with safe_open(path, framework="pt") as file:
            metadata = file.metadata() or {}
            state: dict[str, Any] = {}
            for name in file.keys():  # noqa: SIM118  (it is no dictionary)
                part = file.get_slice(name)
                dtype = OF_SAFETENSORS.get(part.get_dtype(), part.get_dtype().lower())
                width = getattr(torch, dtype).itemsize if part.get_dtype() in OF_SAFETENSORS else 1
                shape = part.get_shape()
                nbytes = math.prod(shape) * width
                state[name] = stored = StoredTensor(shape, dtype, nbytes, _safe_loader(path, name))
                if stored.numel == 1:
                    stored.scalar = scalar_of(file.get_tensor(name))
    except (SafetensorError, OSError) as error:
        raise CorruptFile(f"cannot read {path}: {error}") from error
    if metadata:
        state["__metadata__"] = dict(sorted(metadata.items()))
    facts = [f"{key}: {value}"[:40] for key, value in sorted(metadata.items())]
    return StateSource(Path(path).name, state, facts=facts[:3])


def _safe_loader(path: str, name: str) -> Any:
    def load() -> Any:
        from safetensors import SafetensorError

        try:
            status = os.stat(path)
            return _opened(path, status.st_ino, status.st_size, status.st_mtime_ns).get_tensor(name)
        except (SafetensorError, OSError, RuntimeError) as error:
            raise CorruptFile(f"cannot read {name} of {path}: {error}") from error

    return load


# every tensor of two files may be asked for, and whoever opens one anew reads the table of all of them each time
@lru_cache(maxsize=2)
def _opened(path: str, *state: int) -> Any:
    """A safetensors file, open as long as it is the same and one of the last two that were read."""
    from safetensors import safe_open

    return safe_open(path, framework="pt")


def _exported(path: str, archive: Archive, trust: bool) -> Source:
    """An exported program as the module that it unlifts to, which has the names and classes of the original."""
    from torch_vis.interfaces.explorer.model_source import ModuleSource

    if trust:
        module, classes, operations = _trusted_program(path)
    else:
        module, classes, operations = read_exported(archive)
    source = ModuleSource(module, title=Path(path).name, classes=classes)
    source.facts.append(f"exported program, {many(operations, 'operation')}")
    return source


def _trusted_program(path: str) -> tuple[torch.nn.Module, dict[str, str], int]:
    """What torch loads from an exported program, which can run code of the file."""
    try:
        # which logs at length why, and then raises a sentence about that log
        with _quietly("torch.export"):
            program = torch.export.load(path)
    except Exception as error:  # a zip of another kind, an older serialisation, a missing operator
        raise CorruptFile(
            f"cannot read {path}: it is no exported program that torch {torch.__version__} can load"
        ) from error
    try:
        module: torch.nn.Module = torch.export.unflatten(program)
    except (RuntimeError, AssertionError, ValueError):
        module = program.module()
    # the parts of an operation's result are no operations
    operations = sum(
        node.op == "call_function" and node.target is not operator.getitem for node in program.graph.nodes
    )
    return module, _classes(program), operations


def _classes(program: Any) -> dict[str, str]:
    """The class that each module of an exported program had, by its path."""
    classes: dict[str, str] = {}
    for node in program.graph.nodes:
        for path, kind in (node.meta.get("nn_module_stack") or {}).values():
            name = kind if isinstance(kind, str) else kind.__qualname__
            classes.setdefault(path, name.rpartition(".")[2])
    return classes


@context
def _quietly(undo: Undo, logger: str) -> None:
    """A stretch in which a logger says nothing, and nobody warns."""
    undo.enter(without_warnings())
    undo.set(logging.getLogger(logger), "disabled", True)


def _onnx(path: str) -> Source:
    with optional("onnx"):
        import onnx
        from onnx import numpy_helper
        from onnx.external_data_helper import ExternalDataInfo, uses_external_data
    try:
        model = onnx.load(path, load_external_data=False)
    except Exception as error:  # protobuf raises its own kinds for what is no protobuf
        raise CorruptFile(f"cannot read {path}: {str(error).partition(chr(10))[0]}") from error
    if not model.graph.node and not model.graph.initializer:
        raise CorruptFile(f"cannot read {path}: there is no graph in it")
    base = os.path.dirname(os.path.abspath(path))

    def loader(tensor: Any) -> Any:
        def load() -> Any:
            # what the tables say need not be so, and what lies in another file need not be there or allowed
            try:
                if uses_external_data(tensor):
                    check_regular(os.path.join(base, ExternalDataInfo(tensor).location))
                return _from_numpy(np.array(numpy_helper.to_array(tensor, base)))
            except Exception as error:
                what = f"{_text(tensor.name)} of {path}: {str(error).partition(chr(10))[0]}"
                raise CorruptFile(f"cannot read {what}") from error

        return load

    state: dict[str, Any] = {}
    for tensor in model.graph.initializer:
        name = _text(tensor.name)
        if tensor.data_type == onnx.TensorProto.STRING:
            texts = [_text(text) for text in tensor.string_data]
            state[f"initializers.{name}"] = texts if tensor.dims else "".join(texts)
            continue
        try:
            dtype = onnx.helper.tensor_dtype_to_np_dtype(tensor.data_type)
        except (KeyError, TypeError, ValueError) as error:
            raise CorruptFile(
                f"cannot read {path}: {name} has the element type {tensor.data_type}, which ONNX has none of"
            ) from error
        if len(tensor.dims) > MOST_DIMENSIONS:
            raise CorruptFile(f"cannot read {path}: {name} has {len(tensor.dims):,} dimensions")
        nbytes = math.prod(tensor.dims) * dtype.itemsize
        stored = StoredTensor(tensor.dims, str(dtype), nbytes, loader(tensor))
        if stored.numel == 1 and not uses_external_data(tensor):
            stored.scalar = scalar_of(stored.load())
        state[f"initializers.{name}"] = stored
    for number, node in enumerate(model.graph.node):
        kind = _text(node.op_type)
        label = _text(node.name) or f"{kind}_{number}"
        state[f"nodes.{label.strip('/').replace('/', '.')}"] = OnnxNode(
            kind, [_text(name) for name in node.input], [_text(name) for name in node.output]
        )
    opsets = ", ".join(f"{_text(opset.domain) or 'ai.onnx'} {opset.version}" for opset in model.opset_import)
    facts = [f"{len(model.graph.node):,} nodes", f"opset {opsets}", _text(model.producer_name)]
    return StateSource(Path(path).name, state, facts=[fact for fact in facts if fact])


def _text(text: str | bytes) -> str:
    """A text of a protobuf, which gives bytes where they are no UTF-8."""
    return text if isinstance(text, str) else text.decode("utf-8", "replace")


def _from_numpy(array: np.ndarray) -> torch.Tensor:
    """A tensor with these elements, also of the types that numpy has from a package of their own."""
    try:
        return torch.from_numpy(array)
    except TypeError:
        dtype = getattr(torch, array.dtype.name, None)
        if isinstance(dtype, torch.dtype) and dtype.is_floating_point:
            return torch.from_numpy(array.view(f"u{array.dtype.itemsize}")).view(dtype)
        # of fewer bits than a byte: each of them is one of these
        return torch.from_numpy(array.astype(np.float32))


class OnnxNode:
    """A node of a file's graph: its operator and the names that it reads and writes."""

    def __init__(self, kind: str, inputs: list[str], outputs: list[str]) -> None:
        self.kind, self.inputs, self.outputs = kind, inputs, outputs

    def __repr__(self) -> str:
        return f"{', '.join(self.outputs)} = {self.kind}({', '.join(self.inputs)})"


def _leaves(title: str, state: Mapping[str, Any]) -> dict[str, Any]:
    """Every value that is no container, under its dotted name."""
    leaves: dict[str, Any] = {}
    stack: list[tuple[str, Any, int]] = [
        (_key(key), value, 1) for key, value in reversed(list(state.items()))
    ]
    busy: set[int] = set()
    while stack:
        name, value, depth = stack.pop()
        if depth > LEVELS:
            raise CorruptFile(
                f"cannot read {title}: its containers are nested more than {LEVELS} levels deep"
            )
        if isinstance(value, torch.Tensor):
            leaves[name] = StoredTensor.of(value)
        elif isinstance(value, (list, tuple)) and all(type(item) in PLAIN for item in value):
            leaves[name] = value
        elif isinstance(value, (Mapping, list, tuple)) and len(value) and id(value) not in busy:
            busy.add(id(value))
            pairs = value.items() if isinstance(value, Mapping) else enumerate(value)
            stack.extend((f"{name}.{_key(key)}", item, depth + 1) for key, item in reversed(list(pairs)))
        else:
            leaves[name] = value
    return leaves


def _key(key: Any) -> str:
    """What a key of a dictionary is called: a pair of pairs may be short in a file and endless as text."""
    return key if isinstance(key, str) else written(key, LONGEST_KEY)


def _branches(title: str, leaves: Mapping[str, Any]) -> tuple[Any, ...]:
    """The rows of a tree whose branches are the parts of the names, in the order in which the names come."""
    inside: dict[str, list[str]] = {"": []}
    for name in leaves:
        parts = name.split(".", LEVELS)
        for depth in range(1, len(parts) + 1):
            above, path = ".".join(parts[: depth - 1]), ".".join(parts[:depth])
            if path not in inside:
                inside[path] = []
                inside[above].append(path)
    names: list[str] = []
    types: list[str] = []
    parents: list[int] = []
    paths: list[str] = []
    kinds: list[str] = []
    items: dict[int, Any] = {}
    stack: list[tuple[str, int]] = [("", -1)]
    while stack:
        path, parent = stack.pop()
        row, value = len(names), leaves.get(path)
        names.append(path.rpartition(".")[2] or title)
        parents.append(parent)
        paths.append(path)
        if path in leaves:
            items[row] = value
        types.append(_kind(value) if path in leaves else "")
        kinds.append("tensor" if isinstance(value, StoredTensor) else "value" if path in leaves else "branch")
        stack.extend((below, row) for below in reversed(inside[path]))
    return names, types, parents, paths, kinds, items


def _kind(value: Any) -> str:
    if isinstance(value, StoredTensor):
        return "Tensor"
    return value.kind if isinstance(value, OnnxNode) else type(value).__name__


def _memory(stored: Any) -> Any:
    """What two names of the same memory have in common."""
    if stored.load is not None and stored.device not in ("file", "meta"):
        from torch_vis.interfaces.explorer.model_source import identity

        return identity(stored.load())
    return id(stored)
