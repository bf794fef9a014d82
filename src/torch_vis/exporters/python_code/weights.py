"""The tensors of a saved program: blocks of memory in a safetensors file, and where in them each tensor lies.

Tied weights, views of one another, strides and overlaps stay what they are: each block is written once, and a tensor
is a location in it.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any, NamedTuple

import torch

from torch_vis.errors import UsageError, missing_extra
from torch_vis.graph.io.atomic import replacing

PLAIN = frozenset(
    "float16 bfloat16 float32 float64 int8 int16 int32 int64 uint8 uint16 uint32 uint64 bool".split()
)


class TensorLocation(NamedTuple):
    """Where a tensor lies: its block, its type there, offset, shape and strides in elements, and what it is."""

    block: str
    dtype: str
    offset: int
    shape: tuple[int, ...]
    stride: tuple[int, ...]
    device: str
    kind: str  # "parameter", "frozen" (a parameter without gradient) or "tensor"


class Weights(NamedTuple):
    """Blocks of memory by name, and the location of each tensor in them."""

    blocks: dict[str, torch.Tensor]
    locations: dict[str, TensorLocation]


def lay_out(tensors: Mapping[str, torch.Tensor]) -> Weights:
    """Find the blocks that tensors share."""
    groups: dict[tuple[Any, ...], list[str]] = {}
    plain = {name: _plain(name, tensor) for name, tensor in tensors.items()}
    for name, tensor in plain.items():
        storage = tensor.untyped_storage()
        key = (str(storage.device), storage.data_ptr()) if storage.nbytes() else ("empty", name)
        groups.setdefault(key, []).append(name)
    weights = Weights({}, {})
    for names in groups.values():
        _lay_group({name: plain[name] for name in names}, weights, tensors)
    return Weights(weights.blocks, {name: weights.locations[name] for name in tensors})


def _lay_group(
    group: Mapping[str, torch.Tensor], weights: Weights, originals: Mapping[str, torch.Tensor]
) -> None:
    """One block for the tensors that lie in one storage."""
    first_name, first = next(iter(group.items()))
    alike = {(t.dtype, t.storage_offset(), t.shape, t.stride()) for t in group.values()}
    as_bytes = len({t.dtype for t in group.values()}) > 1 or str(first.dtype)[6:] not in PLAIN
    unit = 1 if as_bytes else first.dtype.itemsize
    start = min(int(t.storage_offset()) * t.dtype.itemsize for t in group.values()) // unit
    stop = max(_end(t) for t in group.values()) // unit
    dtype = torch.uint8 if as_bytes else first.dtype
    if len(alike) == 1 and first.is_contiguous() and not as_bytes:
        block = first.detach()
    else:
        block = torch.empty(0, dtype=dtype, device=first.device).set_(
            first.untyped_storage(), start, (stop - start,), (1,)
        )
    weights.blocks[first_name] = block.cpu().clone(memory_format=torch.contiguous_format)
    for name, tensor in group.items():
        item = tensor.dtype.itemsize
        if (start * unit) % item:
            raise UsageError(
                f"{name} cannot be saved: it shares memory with others at an offset its type does not fit"
            )
        original = originals[name]
        kind = "tensor"
        if isinstance(original, torch.nn.Parameter):
            kind = "parameter" if original.requires_grad else "frozen"
        offset = int(tensor.storage_offset()) - start * unit // item
        shape, stride = tuple(tensor.shape), tuple(tensor.stride())
        weights.locations[name] = TensorLocation(
            first_name, str(tensor.dtype)[6:], offset, shape, stride, str(tensor.device), kind
        )


def _end(tensor: torch.Tensor) -> int:
    if not tensor.numel():
        return int(tensor.storage_offset()) * tensor.dtype.itemsize
    reach = sum((size - 1) * step for size, step in zip(tensor.shape, tensor.stride()))
    return (int(tensor.storage_offset()) + reach + 1) * tensor.dtype.itemsize


def _plain(name: str, tensor: torch.Tensor) -> torch.Tensor:
    """A tensor as plain memory, or the reason why there is none."""
    what = type(tensor).__name__
    if hasattr(tensor, "__tensor_flatten__") or what == "FakeTensor":
        raise UsageError(f"{name} cannot be saved: a {what} has no plain memory of its own")
    if tensor.layout is not torch.strided or tensor.is_quantized or tensor.is_nested or tensor.is_mkldnn:
        raise UsageError(
            f"{name} cannot be saved: safetensors has no form for a tensor that is sparse or quantized"
        )
    if tensor.device.type == "meta":
        raise UsageError(f"{name} cannot be saved: it is on the meta device and holds no data")
    return tensor.detach().resolve_conj().resolve_neg()


def write_blocks(path: str | os.PathLike[str], blocks: Mapping[str, torch.Tensor], note: str) -> None:
    """Write the blocks to a safetensors file, whole or not at all."""
    try:
        from safetensors.torch import save
    except ImportError as error:
        raise missing_extra("safetensors") from error
    with replacing(path) as file:
        file.write(save(dict(blocks), metadata={"written by": "torch_vis", "holds": note}))
