"""Finding and comparing the tensors in what a model returns, bit for bit."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Mapping
from typing import Any

import torch
from torch import Tensor

_BITS = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}


def leaves(value: Any, path: str = "") -> Iterator[tuple[str, Any]]:
    """Yield every leaf of nested containers, dataclasses and cache objects with the path that leads to it."""
    if isinstance(value, Mapping):
        for key, item in value.items():
            yield from leaves(item, f"{path}[{key!r}]")
    elif isinstance(value, (list, tuple, set, frozenset)):
        for position, item in enumerate(value):
            yield from leaves(item, f"{path}[{position}]")
    elif dataclasses.is_dataclass(value) and not isinstance(value, type):
        for item in dataclasses.fields(value):
            yield from leaves(getattr(value, item.name), f"{path}.{item.name}")
    else:
        yield path, value


def tensors(value: Any) -> list[Tensor]:
    """Every tensor among the leaves, in order."""
    return [leaf for _, leaf in leaves(value) if isinstance(leaf, Tensor)]


def floating_sum(value: Any) -> Tensor | None:
    """The sum of the floating outputs that carry a gradient, or None when there is none."""
    total: Tensor | None = None
    for tensor in tensors(value):
        if not tensor.requires_grad or not (tensor.is_floating_point() or tensor.is_complex()):
            continue
        part = tensor.to_dense() if tensor.layout in (torch.sparse_coo, torch.sparse_csr) else tensor
        part = part.values() if part.is_nested and part.layout == torch.jagged else part
        part = sum(piece.sum() for piece in part.unbind()) if part.is_nested else part.sum()
        part = part.real if part.is_complex() else part
        total = part.double() if total is None else total + part.double()
    return total


def same_bits(left: Any, right: Any) -> bool:
    """Whether two leaves are the same bit for bit; NaN equals the same NaN, and -0.0 does not equal 0.0."""
    if not isinstance(left, Tensor):
        comparable = isinstance(left, (bool, int, float, complex, str, bytes, type(None)))
        return type(left) is type(right) and (not comparable or left == right)
    if not isinstance(right, Tensor) or _meta(left) != _meta(right):
        return False
    if _is_fake(left):
        return True
    parts = zip(_dense_parts(left), _dense_parts(right), strict=True)
    return all(torch.equal(_as_integers(a), _as_integers(b)) for a, b in parts)


def first_difference(left: Any, right: Any) -> str | None:
    """The path of the first leaf that differs, or None when both are the same."""
    mine, theirs = list(leaves(left)), list(leaves(right))
    if [path for path, _ in mine] != [path for path, _ in theirs]:
        return f"containers differ: {[path for path, _ in mine]} against {[path for path, _ in theirs]}"
    for (path, a), (_, b) in zip(mine, theirs, strict=True):
        if not same_bits(a, b):
            return path or "the output"
    return None


def _meta(tensor: Tensor) -> tuple[Any, ...]:
    size = () if tensor.is_nested else tuple(tensor.shape)
    return type(tensor), tensor.dtype, tensor.layout, tensor.device, size, tensor.requires_grad


def _is_fake(tensor: Tensor) -> bool:
    return tensor.device.type == "meta" or type(tensor).__name__ == "FakeTensor"


def _dense_parts(tensor: Tensor) -> list[Tensor]:
    tensor = tensor.detach()
    if hasattr(tensor, "to_local"):
        return [tensor.to_local()]
    if tensor.is_nested:
        return list(tensor.unbind())
    if tensor.layout == torch.sparse_coo:
        return [tensor._indices(), tensor._values()]
    if tensor.layout in (torch.sparse_csr, torch.sparse_bsr):
        return [tensor.crow_indices(), tensor.col_indices(), tensor.values()]
    if tensor.layout in (torch.sparse_csc, torch.sparse_bsc):
        return [tensor.ccol_indices(), tensor.row_indices(), tensor.values()]
    if tensor.is_quantized:
        return [tensor.int_repr(), torch.tensor([tensor.q_scale(), tensor.q_zero_point()])]
    return [tensor]


def _as_integers(tensor: Tensor) -> Tensor:
    tensor = tensor.resolve_conj().resolve_neg().contiguous()
    if tensor.is_complex():
        tensor = torch.view_as_real(tensor).contiguous()
    if tensor.dtype == torch.bool or tensor.layout != torch.strided:
        return tensor
    return tensor.view(_BITS[tensor.element_size()]) if tensor.is_floating_point() else tensor
