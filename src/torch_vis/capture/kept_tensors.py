"""The tensors and other live objects that a trace holds, from which a replay starts and with which it compares."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, NamedTuple

import torch


class RngState(NamedTuple):
    """The state of a random generator that an operation found, where it was not what the one before left behind."""

    generator: torch.Generator | None
    device: str
    state: torch.Tensor


@dataclass
class KeptTensors:
    """What a live trace keeps beside its graph; a file holds none of it."""

    storages: dict[int, torch.UntypedStorage] = field(default_factory=dict)
    """Memory that came from outside, by storage number."""
    originals: dict[int, torch.UntypedStorage] = field(default_factory=dict)
    """Its contents from before the run first wrote to it."""
    opaque_tensors: dict[int, torch.Tensor] = field(default_factory=dict)
    """Tensors from outside that have no plain memory (sparse, nested, quantized), by value number."""
    results: dict[int, torch.Tensor] = field(default_factory=dict)
    """What the run gave back, by result number."""
    opaque_outputs: dict[int, list[torch.Tensor]] = field(default_factory=dict)
    """Outputs of operations that could not be looked into, by node number."""
    rng_states: dict[int, RngState] = field(default_factory=dict)
    """Random states, by node number."""
    python_values: dict[int, Any] = field(default_factory=dict)
    """Values that left for Python (what ``.item()`` or a branch on a tensor saw), by node number."""
    objects: dict[str, Any] = field(default_factory=dict)
    """Arguments with no literal form (generators, functions), by the text that stands for them."""
    versions: list[tuple[str, torch.Tensor, tuple[int, torch.dtype, int]]] = field(default_factory=list)
    """The version counters at the end of the run, to see what was changed since."""

    def changed(self) -> list[str]:
        """The names of the tensors that were written to since the run ended."""
        return [name for name, tensor, version in self.versions if version_of(tensor) != version]

    def stale(self) -> list[str]:
        """Those among them that a replay starts from, and of which no earlier copy is held."""
        loose = {storage._cdata for number, storage in self.storages.items() if number not in self.originals}
        return [
            name
            for name, tensor, version in self.versions
            if version_of(tensor)[2] in loose and version_of(tensor) != version
        ]

    def restore(self) -> None:
        """Give the memory that the run wrote to the contents that it had before."""
        for number, original in self.originals.items():
            self.storages[number].copy_(original)


def copy_of(storage: torch.UntypedStorage) -> torch.UntypedStorage:
    """A block of memory with the same contents."""
    if storage.device.type == "meta":
        return storage  # it has none
    return torch.UntypedStorage(storage.nbytes(), device=storage.device).copy_(storage)


def version_of(tensor: torch.Tensor) -> tuple[int, torch.dtype, int]:
    """What changes when a tensor is written to, cast or given other memory; inference tensors count no writes."""
    try:
        address = tensor.untyped_storage()._cdata
    except (RuntimeError, NotImplementedError):
        address = 0
    return (-1 if tensor.is_inference() else tensor._version), tensor.dtype, address
