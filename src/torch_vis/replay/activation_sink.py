"""Where the activations of a run go: into a dictionary, or straight into a safetensors file."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any, BinaryIO

import torch

from torch_vis.errors import UsageError
from torch_vis.graph.graph import Graph
from torch_vis.graph.io.atomic import replacing
from torch_vis.replay.replay import plain_bytes

DTYPES = {
    "float64": "F64", "float32": "F32", "float16": "F16", "bfloat16": "BF16", "int64": "I64", "int32": "I32",
    "int16": "I16", "int8": "I8", "uint8": "U8", "uint16": "U16", "uint32": "U32", "uint64": "U64", "bool": "BOOL",
    "float8_e4m3fn": "F8_E4M3", "float8_e5m2": "F8_E5M2", "complex64": "C64",
}  # fmt: skip


class InMemory:
    """Keeps tensors in a dictionary."""

    def __init__(self) -> None:
        self.kept: dict[str, torch.Tensor] = {}

    def put(self, name: str, tensor: torch.Tensor, *, copy: bool) -> None:
        """Keep a tensor; a copy of it where its memory is written to later."""
        self.kept[name] = tensor.clone() if copy else tensor


class OnDisk:
    """Writes tensors to their places in a safetensors file as they come; sizes are known before the run."""

    def __init__(self, file: BinaryIO, graph: Graph, values: Mapping[str, int]) -> None:
        self.kept: dict[str, torch.Tensor] = {}
        self.refused: list[str] = []
        self._file = file
        self._places: dict[str, int] = {}
        header: dict[str, Any] = {"__metadata__": {"written by": "torch_vis"}}
        end = 0
        for name, value in values.items():
            row = graph.types[graph.value_type[value]]
            if row.dtype not in DTYPES or row.nbytes is None:
                self.refused.append(name)
                continue
            header[name] = {
                "dtype": DTYPES[row.dtype], "shape": list(row.shape), "data_offsets": [end, end + row.nbytes]
            }  # fmt: skip
            self._places[name] = end
            end += row.nbytes
        text = json.dumps(header).encode()
        text += b" " * (-len(text) % 8)
        self._file.write(len(text).to_bytes(8, "little") + text)
        self._start = 8 + len(text)
        self._file.truncate(self._start + end)

    def put(self, name: str, tensor: torch.Tensor, *, copy: bool) -> None:
        """Write a tensor to its place."""
        if name in self._places:
            self._file.seek(self._start + self._places[name])
            self._file.write(plain_bytes(tensor).cpu().numpy().tobytes())


@contextmanager
def keeper(
    graph: Graph, values: Mapping[str, int], path: str | os.PathLike[str] | None
) -> Iterator[InMemory | OnDisk]:
    """A place for the named values of a run: memory, or the file at ``path``."""
    if path is None:
        yield InMemory()
        return
    if os.path.splitext(os.fspath(path))[1] != ".safetensors":
        raise UsageError(f"activations are written to a .safetensors file, not {os.fspath(path)!r}")
    with replacing(path) as file:
        yield OnDisk(file, graph, values)
