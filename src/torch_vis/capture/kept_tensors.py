"""The tensors and other live objects that a trace keeps, from which a replay starts and with which it compares."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, NamedTuple

import torch


class RngState(NamedTuple):
    """The state of a random generator before an operation drew from it."""

    generator: torch.Generator | None
    device: str
    state: torch.Tensor


class TensorVersion(NamedTuple):
    """What changes when a tensor is written to, cast or given other memory."""

    # -1 for inference tensors, which count no writes
    writes: int
    dtype: torch.dtype
    # of the storage, 0 where there is none
    address: int


class Escape(NamedTuple):
    """A tensor that left for Python without an operation, by ``tolist()``, ``numpy()`` or an array protocol."""

    method: str
    # its value, -1 where no operation of the run had it
    value: int
    # its block of memory, -1 where no operation touched it
    storage: int
    # the names of the inputs on whose memory it lies
    inputs: tuple[str, ...]
    # the user's line, in words
    where: str


@dataclass
class KeptTensors:
    """What a live trace keeps beside its graph; a file has none of it."""

    storages: dict[int, torch.UntypedStorage] = field(default_factory=dict)
    """Memory from outside the run, by storage number."""
    originals: dict[int, torch.UntypedStorage] = field(default_factory=dict)
    """A copy of its contents from before the run first wrote to it."""
    opaque_tensors: dict[int, torch.Tensor] = field(default_factory=dict)
    """Tensors from outside the run that have no plain memory (sparse, nested, quantized), by value number."""
    results: dict[int, torch.Tensor] = field(default_factory=dict)
    """The results of the run, by result number."""
    opaque_outputs: dict[int, list[torch.Tensor]] = field(default_factory=dict)
    """Outputs of operations that could not be looked into, by node number."""
    rng_states: dict[int, RngState] = field(default_factory=dict)
    """Random states that are not what the random operation before left behind, by node number."""
    python_values: dict[int, Any] = field(default_factory=dict)
    """Values that left for Python (what ``.item()`` or a branch on a tensor saw), by node number."""
    escapes: list[Escape] = field(default_factory=list)
    """Tensors that left for Python without an operation."""
    given: dict[int, Any] = field(default_factory=dict)
    """What each call of a module was given, ``(args, kwargs)`` as a form of values, by scope number."""
    returned: dict[int, Any] = field(default_factory=dict)
    """What each call of a module returned, as a form of values, by scope number."""
    objects: dict[str, Any] = field(default_factory=dict)
    """Arguments with no literal form (generators, functions), by the text that stands for them."""
    versions: list[tuple[str, torch.Tensor, TensorVersion]] = field(default_factory=list)
    """The versions of named tensors at the end of the run, to see which were changed since."""

    def changed(self) -> list[str]:
        """The names of the tensors that were written to since the run ended."""
        return [name for name, tensor, version in self.versions if version_of(tensor) != version]

    def stale(self) -> list[str]:
        """Those of the changed tensors that a replay starts from, and of which no earlier copy is kept."""
        uncopied = {s._cdata for number, s in self.storages.items() if number not in self.originals}
        return [
            name
            for name, tensor, version in self.versions
            if (now := version_of(tensor)) != version and now.address in uncopied
        ]


def copy_of(storage: torch.UntypedStorage) -> torch.UntypedStorage:
    """A block of memory with the same contents; a block of the meta device, which has none, is its own copy."""
    if storage.device.type == "meta":
        return storage
    return torch.UntypedStorage(storage.nbytes(), device=storage.device).copy_(storage)


def version_of(tensor: torch.Tensor) -> TensorVersion:
    """The version of a tensor now."""
    try:
        address = tensor.untyped_storage()._cdata
    except (RuntimeError, NotImplementedError):
        address = 0
    return TensorVersion(-1 if tensor.is_inference() else tensor._version, tensor.dtype, address)
