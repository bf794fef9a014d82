"""A model's buffers as they were, whatever a run of it does or raises."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

import torch

from torch_vis.capture.kept_tensors import copy_of


@contextlib.contextmanager
def unchanged(model: Any) -> Iterator[None]:
    """Give a model's buffers their contents back at the end, also where what is inside is interrupted.

    >>> norm = torch.nn.BatchNorm1d(4)
    >>> with unchanged(norm):
    ...     made = norm(torch.randn(8, 4))
    >>> int(norm.num_batches_tracked)
    0
    """
    modules = list(model.modules()) if isinstance(model, torch.nn.Module) else []
    buffers = [(module, dict(module._buffers)) for module in modules]
    plain = [tensor for _, own in buffers for tensor in own.values() if tensor is not None]
    memory = {storage._cdata: storage for tensor in plain if (storage := _storage(tensor)) is not None}
    copies = [(storage, copy_of(storage)) for storage in memory.values()]
    try:
        yield
    finally:
        for module, own in buffers:
            module._buffers.update(own)
        for storage, before in copies:
            if storage.device.type != "meta":
                storage.copy_(before)


def _storage(tensor: torch.Tensor) -> torch.UntypedStorage | None:
    """The memory of a tensor, None of one that has no plain one."""
    try:
        return tensor.untyped_storage() if type(tensor) is torch.Tensor else None
    # sparse
    except (RuntimeError, NotImplementedError):
        return None
