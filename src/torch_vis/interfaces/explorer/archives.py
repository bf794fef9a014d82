"""TorchScript files and exported programs, read from their own tables: no code of the file runs.

Torch's loaders for both run code that the file brings along: ``torch.export.load`` unpickles sample inputs, and
``torch.jit.load`` calls ``__setstate__``. What such a file says of its modules and tensors lies beside that code, as
text, as a description in a pickle and as raw bytes, and is read from there. Of a pickle, which Python's own reader
would run, every instruction that would call, construct or import gives a record instead.
"""

from __future__ import annotations

import io
import json
import os
import pickletools
import re
import struct
import zipfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, NamedTuple

import numpy as np
import torch

from torch_vis.graph.io.tables_json import MOST_DIMENSIONS


class Global(NamedTuple):
    """The name of a class or a function; it is never looked up."""

    module: str
    name: str


class PersistentRef(NamedTuple):
    """A reference to something outside the pickle, such as the bytes of a storage."""

    key: Any


class PickledCall:
    """What a pickle would have called or constructed, its arguments, and the state that it would have been given."""

    __slots__ = ("args", "function", "state")

    def __init__(self, function: Any, args: Any) -> None:
        self.function, self.args = function, args
        self.state: Any = None


KEYS = (str, int, float, bool, PickledCall)


def read_pickle(data: bytes) -> Any:
    """The value that a pickle describes: plain containers and numbers, and records for all that would run code."""
    stack: list[Any] = []
    marks: list[int] = []
    memo: dict[Any, Any] = {}
    for opcode, argument, _ in pickletools.genops(data):
        name = opcode.name
        if name in LITERALS:
            stack.append(LITERALS[name](argument))
        elif name == "MARK":
            marks.append(len(stack))
        elif name in AFTER_MARK:
            start = marks.pop()
            items = stack[start:]
            del stack[start:]
            AFTER_MARK[name](stack, items)
        elif name in ON_STACK:
            ON_STACK[name](stack)
        elif name in ("BINPUT", "LONG_BINPUT"):
            memo[argument] = stack[-1]
        elif name in ("BINGET", "LONG_BINGET"):
            stack.append(memo[argument])
        elif name == "STOP":
            return stack.pop()
        elif name != "PROTO":
            raise ValueError(f"TorchScript writes no instruction {name}")
    raise ValueError("the pickle has no end")


def _global(argument: str) -> Global:
    module, _, name = argument.partition(" ")
    return Global(module, name)


def _call(stack: list[Any]) -> None:
    args, function = stack.pop(), stack.pop()
    stack.append(PickledCall(function, args))


def _build(stack: list[Any]) -> None:
    state = stack.pop()
    if not isinstance(stack[-1], PickledCall) or stack[-1].state is not None:
        raise ValueError("a state for what is no object")
    stack[-1].state = state


def _append(stack: list[Any], items: list[Any]) -> None:
    if type(stack[-1]) is not list:
        raise ValueError("an element for what is no list")
    stack[-1].extend(items)


def _set_items(stack: list[Any], items: list[Any]) -> None:
    if type(stack[-1]) is not dict:
        raise ValueError("a key for what is no dictionary")
    # a key is hashed, which for a deeply nested tuple overflows the interpreter's stack
    if not all(isinstance(key, KEYS) for key in items[::2]):
        raise ValueError("a key that TorchScript does not write")
    stack[-1].update(zip(items[::2], items[1::2], strict=True))


def _last(stack: list[Any], number: int) -> list[Any]:
    """Take some values off the stack."""
    if len(stack) < number:
        raise ValueError("the pickle takes more than it has put down")
    items = stack[-number:]
    del stack[-number:]
    return items


LITERALS: dict[str, Callable[[Any], Any]] = {
    "NONE": lambda _: None,
    "NEWTRUE": lambda _: True,
    "NEWFALSE": lambda _: False,
    "EMPTY_TUPLE": lambda _: (),
    "EMPTY_LIST": lambda _: [],
    "EMPTY_DICT": lambda _: {},
    "GLOBAL": _global,
    **dict.fromkeys(
        ("BININT", "BININT1", "BININT2", "LONG1", "BINFLOAT", "BINUNICODE"), lambda argument: argument
    ),
}
AFTER_MARK: dict[str, Callable[[list[Any], list[Any]], None]] = {
    "TUPLE": lambda stack, items: stack.append(tuple(items)),
    "APPENDS": _append,
    "SETITEMS": _set_items,
}
ON_STACK: dict[str, Callable[[list[Any]], None]] = {
    "TUPLE1": lambda stack: stack.append(tuple(_last(stack, 1))),
    "TUPLE2": lambda stack: stack.append(tuple(_last(stack, 2))),
    "TUPLE3": lambda stack: stack.append(tuple(_last(stack, 3))),
    "APPEND": lambda stack: _append(stack, _last(stack, 1)),
    "SETITEM": lambda stack: _set_items(stack, _last(stack, 2)),
    "BINPERSID": lambda stack: stack.append(PersistentRef(stack.pop())),
    "REDUCE": _call,
    "NEWOBJ": _call,
    "BUILD": _build,
}


TABLE_BYTES = 16 << 20  # of a compressed table; torch writes them uncompressed
CODE_BYTES = 64 << 20  # of all program text together
EXPANDED_BYTES = 1 << 28  # of a tensor that repeats its elements, beyond its storage
LARGEST = 1 << 50  # of a length, a stride or an offset, so that no product overflows
DEPTH = 100  # levels of modules
PLACES = 1_000_000  # names of modules, where one module may have many


class NotUnderstood(ValueError):
    """An archive whose tables have another form than those that are read here."""


class FileModule(torch.nn.Module):
    """A module as a file describes it: the name of its class, its tensors and its parts. It cannot run."""

    def __init__(self, class_name: str) -> None:
        super().__init__()
        self._class_name = class_name

    @property
    def original_name(self) -> str:
        """The class that the module had when it was saved."""
        return self._class_name

    def own(self, name: str, tensor: torch.Tensor, *, parameter: bool, requires_grad: bool) -> None:
        """Give it a parameter or a buffer; any name will do, since none becomes an attribute."""
        if parameter:
            wants = requires_grad and (tensor.is_floating_point() or tensor.is_complex())
            self._parameters[name] = torch.nn.Parameter(tensor, requires_grad=wants)
        else:
            self._buffers[name] = tensor


class Archive:
    """The records of a zip that torch wrote, under their names in it; tensors are mapped into memory, not copied."""

    def __init__(self, path: str) -> None:
        self.path = path
        with zipfile.ZipFile(path) as file:
            entries = file.infolist()
        folder = entries[0].filename.partition("/")[0] + "/" if entries else ""
        self.records = {
            entry.filename[len(folder) :]: entry for entry in entries if entry.filename.startswith(folder)
        }
        self._bytes = np.memmap(path, dtype=np.uint8, mode="c")
        self._tensors: dict[tuple[str, torch.dtype], torch.Tensor] = {}
        self._code_bytes = 0
        if sum(entry.compress_size for entry in entries) > os.path.getsize(path):
            raise NotUnderstood("its entries overlap")

    @property
    def is_script(self) -> bool:
        """Whether it is TorchScript."""
        return "constants.pkl" in self.records or any(name.startswith("code/") for name in self.records)

    @property
    def is_exported(self) -> bool:
        """Whether it is an exported program, in any of the forms that torch has written."""
        return any(name.startswith("models/") or name in EXPORTED for name in self.records)

    def text(self, name: str, most: int = TABLE_BYTES) -> bytes:
        """A record that is a table or program text."""
        entry = self.records[name]
        if entry.compress_type == zipfile.ZIP_STORED:
            return self._stored(name).tobytes()
        if entry.compress_type != zipfile.ZIP_DEFLATED or entry.file_size > most:
            raise NotUnderstood(f"{name} is compressed and larger than {most >> 20} MiB")
        # with a number: without one, all that is compressed is expanded first, whatever size it claims
        with zipfile.ZipFile(self.path) as file, file.open(entry) as stream:
            return stream.read(entry.file_size)

    def code(self, name: str) -> str:
        """The program text in a record, as text; empty where there is none."""
        if name not in self.records:
            return ""
        data = self.text(name, CODE_BYTES - self._code_bytes)
        self._code_bytes += len(data)
        return data.decode("utf-8", "replace")

    def elements(self, name: str, dtype: torch.dtype) -> torch.Tensor:
        """All elements of a storage, flat; two names of one storage share their memory."""
        key = name, dtype
        if key not in self._tensors:
            data = self._stored(name)
            if len(data) % dtype.itemsize:
                raise NotUnderstood(f"{name} holds no whole number of elements")
            if data.ctypes.data % dtype.itemsize:
                data = data.copy()
            self._tensors[key] = (
                torch.from_numpy(data).view(dtype) if len(data) else torch.empty(0, dtype=dtype)
            )
        return self._tensors[key]

    def _stored(self, name: str) -> Any:
        entry = self.records[name]
        is_raw = entry.compress_type == zipfile.ZIP_STORED and entry.compress_size == entry.file_size
        if not is_raw or entry.flag_bits & 1:
            raise NotUnderstood(f"{name} is compressed or encrypted")
        head = bytes(self._bytes[entry.header_offset : entry.header_offset + 30])
        if head[:4] != b"PK\x03\x04":
            raise NotUnderstood(f"{name} is not where the archive says")
        start = entry.header_offset + 30 + sum(struct.unpack("<HH", head[26:]))
        data = self._bytes[start : start + entry.file_size]
        if len(data) != entry.file_size:
            raise NotUnderstood(f"{name} goes on after the end of the file")
        return data


EXPORTED = ("archive_format", "serialized_exported_program.json")


def strided(elements: torch.Tensor, shape: Sequence[int], stride: Sequence[int], offset: int) -> torch.Tensor:
    """The tensor that lies in a storage with this geometry, if it is inside."""
    numbers = [*shape, *stride, offset]
    if (
        len(shape) != len(stride)
        or len(shape) > MOST_DIMENSIONS
        or any(type(number) is not int or number < 0 for number in numbers)
    ):
        raise NotUnderstood("a tensor's shape and strides are no such")
    size = 1
    for length in shape:
        size *= max(length, 1)
    if size * elements.element_size() > elements.nbytes + EXPANDED_BYTES or max(numbers) > LARGEST:
        raise NotUnderstood("a tensor is far larger than its storage")
    last = offset + sum((length - 1) * step for length, step in zip(shape, stride))
    if 0 not in shape and last >= elements.numel():
        raise NotUnderstood("a tensor reaches beyond its storage")
    return torch.as_strided(elements, shape, stride, 0 if 0 in shape else offset)


@contextmanager
def _tables() -> Iterator[None]:
    """A stretch that reads what a file says, which may be anything."""
    try:
        yield
    except NotUnderstood:
        raise
    except Exception as error:
        raise NotUnderstood(f"{type(error).__name__}: {str(error).partition(chr(10))[0]}"[:100]) from error


# TorchScript


class ScriptClass(NamedTuple):
    """What the program text of a TorchScript class declares."""

    is_module: bool
    parameters: frozenset[str]
    buffers: frozenset[str]
    restores_itself: bool


class ScriptFile(NamedTuple):
    """A TorchScript file: its module, and how many modules and tensors of it are not listed in full."""

    module: FileModule
    restoring: int
    unlisted: int


STORAGES = {
    "DoubleStorage": torch.float64,
    "FloatStorage": torch.float32,
    "HalfStorage": torch.float16,
    "BFloat16Storage": torch.bfloat16,
    "LongStorage": torch.int64,
    "IntStorage": torch.int32,
    "ShortStorage": torch.int16,
    "CharStorage": torch.int8,
    "ByteStorage": torch.uint8,
    "BoolStorage": torch.bool,
    "ComplexFloatStorage": torch.complex64,
    "ComplexDoubleStorage": torch.complex128,
}
TENSOR = Global("torch._utils", "_rebuild_tensor_v2")


def read_script(archive: Archive) -> ScriptFile:
    """The modules of a TorchScript file with their tensors, from ``data.pkl`` and the declarations of its classes."""
    with _tables():
        if archive.records.get("byteorder") and archive.text("byteorder") != b"little":
            raise NotUnderstood("its bytes are not little-endian")
        root = read_pickle(archive.text("data.pkl"))
        return _ScriptReader(archive).read(root)


class _ScriptReader:
    """The reading of one TorchScript file."""

    def __init__(self, archive: Archive) -> None:
        self.archive = archive
        self.classes: dict[Global, ScriptClass] = {}
        self.files: dict[str, dict[str, ScriptClass]] = {}
        self.restoring = self.unlisted = 0

    def read(self, root: Any) -> ScriptFile:
        if not self._is_module(root):
            raise NotUnderstood("it holds no module")
        # a record has no value of its own: its identity is what two names of one module share
        modules: dict[PickledCall, FileModule] = {root: FileModule(root.function.name)}
        waiting = [root]
        while waiting:
            record = waiting.pop()
            for name, value in self._attributes(record):
                if self._is_module(value):
                    if value not in modules:
                        modules[value] = FileModule(value.function.name)
                        waiting.append(value)
                    modules[record]._modules[name] = modules[value]
                elif isinstance(value, PickledCall):
                    self._own(modules[record], self.classes[record.function], name, value)
            state = record.state if isinstance(record.state, dict) else {}
            modules[record].training = bool(state.get("training", True))
        _refuse_endless(modules[root])
        return ScriptFile(modules[root], self.restoring, self.unlisted)

    def _is_module(self, value: Any) -> bool:
        if not isinstance(value, PickledCall) or not isinstance(value.function, Global):
            return False
        name = value.function
        if name.module.partition(".")[0] != "__torch__":
            return False
        if name not in self.classes:
            path = "code/" + name.module.replace(".", "/") + ".py"
            if path not in self.files:
                self.files[path] = _declared(self.archive.code(path))
            self.classes[name] = self.files[path].get(name.name, NO_MODULE)
        return self.classes[name].is_module

    def _attributes(self, record: PickledCall) -> list[tuple[str, Any]]:
        """The attributes of a module; of one that would restore itself with its own code, what it would be given."""
        if not self.classes[record.function].restores_itself and isinstance(record.state, dict):
            return [(str(name), value) for name, value in record.state.items()]
        self.restoring += 1
        state: Any = record.state
        items: Any = (
            state.items() if isinstance(state, dict) else enumerate(state if _is_row(state) else [state])
        )
        return [(f"state_{name}", value) for name, value in items]

    def _own(self, module: FileModule, kind: ScriptClass, name: str, value: PickledCall) -> None:
        restored = kind.restores_itself
        if name not in kind.parameters and name not in kind.buffers and not restored:
            return
        if value.function != TENSOR:
            self.unlisted += 1
            return
        storage, offset, shape, stride, requires_grad = value.args[:5]
        if not isinstance(storage, PersistentRef) or storage.key[0] != "storage":
            raise NotUnderstood("a tensor has no storage")
        elements = self.archive.elements(f"data/{storage.key[2]}", STORAGES[storage.key[1].name])
        tensor = strided(elements, shape, stride, offset)
        is_parameter = name in kind.parameters or (restored and bool(requires_grad))
        module.own(name, tensor, parameter=is_parameter, requires_grad=bool(requires_grad))


def _is_row(value: Any) -> bool:
    return isinstance(value, (list, tuple)) and not isinstance(value, (Global, PersistentRef))


NO_MODULE = ScriptClass(False, frozenset(), frozenset(), False)


def _declared(code: str) -> dict[str, ScriptClass]:
    """What the classes in a program text declare, by name; the text is searched, and never compiled."""
    classes = {}
    heads = list(re.finditer(r"^class (\w+)\((\w+)\):$", code, re.MULTILINE))
    ends = [head.start() for head in heads[1:]]
    for head, end in zip(heads, [*ends, len(code)]):
        body = code[head.end() : end]
        classes[head[1]] = ScriptClass(
            head[2] == "Module",
            _names(body, "__parameters__"),
            _names(body, "__buffers__"),
            re.search(r"^  def __setstate__\(", body, re.MULTILINE) is not None,
        )
    return classes


def _names(body: str, table: str) -> frozenset[str]:
    line = re.search(rf"^  {table} = \[([^\n]*)\]$", body, re.MULTILINE)
    return frozenset(re.findall(r'"([^"]*)"', line[1])) if line else frozenset()


def _refuse_endless(root: FileModule) -> None:
    """Refuse modules inside themselves, too many levels, and modules that have more names than can be listed."""
    counts: dict[FileModule, int] = {}
    levels: dict[FileModule, int] = {}
    inside: set[FileModule] = set()
    stack: list[tuple[FileModule, bool]] = [(root, False)]
    while stack:
        module, is_done = stack.pop()
        parts = [part for part in module._modules.values() if isinstance(part, FileModule)]
        if is_done:
            inside.discard(module)
            counts[module] = 1 + sum(counts[part] for part in parts)
            levels[module] = 1 + max((levels[part] for part in parts), default=0)
            if counts[module] > PLACES or levels[module] > DEPTH:
                raise NotUnderstood("its modules are nested too deep")
        elif module not in counts:
            if module in inside:
                raise NotUnderstood("a module is inside itself")
            inside.add(module)
            stack.append((module, True))
            stack.extend((part, False) for part in parts)


# exported programs


class ExportedFile(NamedTuple):
    """An exported program: its modules with their tensors, the classes that they had, and its number of operations."""

    module: FileModule
    classes: dict[str, str]
    operations: int


# the numbers that torch's schema gives to dtypes
DTYPES = {
    1: torch.uint8,
    2: torch.int8,
    3: torch.int16,
    4: torch.int32,
    5: torch.int64,
    6: torch.float16,
    7: torch.float32,
    8: torch.float64,
    9: torch.complex32,
    10: torch.complex64,
    11: torch.complex128,
    12: torch.bool,
    13: torch.bfloat16,
    28: torch.uint16,
    29: torch.float8_e4m3fn,
    30: torch.float8_e5m2,
    31: torch.float8_e4m3fnuz,
    32: torch.float8_e5m2fnuz,
    34: torch.uint32,
    35: torch.uint64,
}
STRIDED = 7  # the number of the layout


def read_exported(archive: Archive) -> ExportedFile:
    """The modules of an exported program with their tensors, from the tables that describe graph and weights."""
    with _tables():
        program = json.loads(archive.text("models/model.json"))["graph_module"]
        nodes = program["graph"]["nodes"]
        classes = _classes(nodes)
        root = FileModule(classes.get("", "module"))
        for call in program["module_call_graph"]:
            _module_at(root, call["fqn"], classes)
        for path in classes:
            _module_at(root, path, classes)
        tables = [
            (folder, name, payload)
            for folder in ("weights", "constants")
            for name, payload in _config(archive, folder).items()
        ]
        order = {name: number for number, name in enumerate(_signature(program["signature"]))}
        for folder, name, payload in sorted(tables, key=lambda row: order.get(row[1], len(order))):
            # a custom object is no tensor; nothing of it is read
            if payload["tensor_meta"] is not None:
                tensor = _payload(archive, f"data/{folder}/{payload['path_name']}", payload)
                above, _, own_name = name.rpartition(".")
                grad = bool(payload["tensor_meta"]["requires_grad"])
                module = _module_at(root, above, classes)
                module.own(own_name, tensor, parameter=bool(payload["is_param"]), requires_grad=grad)
                # they are in no state dict
                if folder == "constants":
                    module._non_persistent_buffers_set.add(own_name)
        return ExportedFile(root, classes, len(nodes))


def _config(archive: Archive, folder: str) -> dict[str, Any]:
    """The table of the tensors in a folder, by their names."""
    table = json.loads(archive.text(f"data/{folder}/model_{folder}_config.json"))["config"]
    return dict(table)


def _classes(nodes: list[dict[str, Any]]) -> dict[str, str]:
    """The class that each module had, by its path; of a second call, whose path ends in ``@1``, it is known already."""
    result: dict[str, str] = {}
    for node in nodes:
        for entry in filter(None, node["metadata"].get("nn_module_stack", "").split(";")):
            _, path, kind = entry.rsplit(",", 2)
            if "@" not in path:
                result.setdefault(path, kind.rpartition(".")[2])
    return result


def _signature(signature: dict[str, Any]) -> Iterator[str]:
    """The names of parameters, buffers and constants in the order of the program's inputs."""
    for spec in signature["input_specs"]:
        for kind in ("parameter", "buffer", "tensor_constant"):
            if kind in spec:
                yield str(spec[kind][f"{kind}_name"])


def _module_at(root: FileModule, path: str, classes: dict[str, str]) -> FileModule:
    """The module at a path, made with those above it where they are missing."""
    parts = path.split(".") if path else []
    if len(parts) > DEPTH:
        raise NotUnderstood("its modules are nested too deep")
    module = root
    for depth, name in enumerate(parts, start=1):
        part = module._modules.get(name)
        if not isinstance(part, FileModule):
            part = FileModule(classes.get(".".join(parts[:depth]), "module"))
            module._modules[name] = part
        module = part
    return module


def _payload(archive: Archive, name: str, payload: dict[str, Any]) -> torch.Tensor:
    """A tensor of an exported program; one that was pickled, as those of subclasses are, is read as weights alone."""
    if payload["use_pickle"]:
        data = io.BytesIO(archive.text(name))
        tensor = torch.load(data, map_location="cpu", weights_only=True)
        if not isinstance(tensor, torch.Tensor):
            raise NotUnderstood(f"{name} is no tensor")
        return tensor.detach()
    meta = payload["tensor_meta"]
    if meta["layout"] != STRIDED:
        raise NotUnderstood(f"{name} is a tensor of another layout")
    shape = [size["as_int"] for size in meta["sizes"]]
    stride = [step["as_int"] for step in meta["strides"]]
    elements = archive.elements(name, DTYPES[meta["dtype"]])
    return strided(elements, shape, stride, meta["storage_offset"]["as_int"])
