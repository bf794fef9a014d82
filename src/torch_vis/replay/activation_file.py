"""Safetensors files of activations: how one is laid out, and where a run puts the tensors that it keeps."""

from __future__ import annotations

import json
import math
import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, BinaryIO

import torch

from torch_vis.capture.edits import sliced
from torch_vis.errors import UsageError
from torch_vis.graph.graph import Graph
from torch_vis.graph.io.atomic import replacing
from torch_vis.replay.replay import plain_bytes
from torch_vis.replay.slicing import KeptValue

DTYPES = {
    "float64": "F64", "float32": "F32", "float16": "F16", "bfloat16": "BF16", "int64": "I64", "int32": "I32",
    "int16": "I16", "int8": "I8", "uint8": "U8", "uint16": "U16", "uint32": "U32", "uint64": "U64", "bool": "BOOL",
    "float8_e4m3fn": "F8_E4M3", "float8_e5m2": "F8_E5M2", "complex64": "C64",
}  # fmt: skip


def layout(
    entries: Iterable[tuple[str, str, Sequence[int]]], notes: Mapping[str, str]
) -> tuple[bytes, dict[str, int], int]:
    """How a file begins that holds tensors of these names, dtypes and shapes; where each starts, and how many bytes.

    >>> head, starts, size_bytes = layout([("a", "float32", (2, 3)), ("b", "int8", ())], {})
    >>> starts, size_bytes, len(head) % 8
    ({'a': 0, 'b': 24}, 25, 0)
    """
    header: dict[str, Any] = {"__metadata__": dict(notes)}
    starts: dict[str, int] = {}
    end = 0
    for name, dtype, shape in entries:
        size_bytes = getattr(torch, dtype).itemsize * math.prod(shape)
        starts[name] = end
        offsets = [end, end + size_bytes]
        header[name] = {"dtype": DTYPES[dtype], "shape": list(shape), "data_offsets": offsets}
        end += size_bytes
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    return len(text).to_bytes(8, "little") + text, starts, end


class InMemory:
    """Keeps tensors in a dictionary."""

    def __init__(self) -> None:
        self.kept: dict[str, Any] = {}

    def put(self, name: str, tensor: torch.Tensor) -> None:
        """Keep a tensor."""
        self.kept[name] = tensor


class OnDisk:
    """Writes tensors to their places in a safetensors file as they come; sizes are known before the run."""

    def __init__(self, file: BinaryIO, graph: Graph, rows: Sequence[KeptValue]) -> None:
        self.kept: dict[str, Any] = {}
        self.refused: list[str] = []
        self._file = file
        entries: list[tuple[str, str, Sequence[int]]] = []
        for name, value, index in rows:
            row = graph.types[graph.value_type[value]]
            if row.dtype not in DTYPES or row.nbytes is None:
                self.refused.append(name)
                continue
            shape = sliced(torch.empty(row.shape, device="meta"), index, name).shape
            entries.append((name, row.dtype, shape))
        head, self._places, end = layout(entries, {"written by": "torch_vis"})
        self._file.write(head)
        self._start = len(head)
        self._file.truncate(self._start + end)

    def put(self, name: str, tensor: torch.Tensor) -> None:
        """Write a tensor to its place."""
        if name in self._places:
            self._file.seek(self._start + self._places[name])
            self._file.write(plain_bytes(tensor).cpu().numpy().tobytes())


@contextmanager
def keeper(
    graph: Graph, rows: Sequence[KeptValue], path: str | os.PathLike[str] | None
) -> Iterator[InMemory | OnDisk]:
    """A place for the named values of a run: memory, or the file at ``path``."""
    if path is None:
        yield InMemory()
        return
    if os.path.splitext(os.fspath(path))[1] != ".safetensors":
        raise UsageError(f"activations are written to a .safetensors file, not {os.fspath(path)!r}")
    with replacing(path) as file:
        yield OnDisk(file, graph, rows)
