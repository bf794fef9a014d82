"""What a run would leave behind, put back: gradients, optimizer states, attributes of modules, versions of tensors.

A ``Memento`` does so around a block. ``standing``, for runs that are made over and over, is built from the same parts.
"""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch.optim.lr_scheduler import LRScheduler

OWNERS = (torch.nn.Module, torch.optim.Optimizer, LRScheduler, torch.amp.GradScaler)
set_versions: Any = torch._C._autograd._unsafe_set_version_counter


class Memento:
    """The state of every tensor, module, optimizer, scheduler and scaler that is alive, as it was on entry.

    What a program keeps in places of its own (a list of losses, a counter) is not known here and stays as the run left
    it.
    """

    @property
    def tensors(self) -> list[torch.Tensor]:
        """The tensors that were alive on entry, those that others were made from."""
        return [tensor for tensor, *_ in self._tensors]

    def __enter__(self) -> Memento:
        self._tensors: list[tuple[torch.Tensor, bool, int, Any]] = []
        self._containers = Containers()
        with torch._C.DisableTorchFunctionSubclass():
            tensors, owners = alive()
            for tensor in tensors:
                self._note_tensor(tensor)
            for owner in owners:
                self._containers.note_all_of(owner)
        self._random = torch.get_rng_state()
        return self

    def __exit__(self, *exception: object) -> None:
        with torch._C.DisableTorchFunctionSubclass():
            self._containers.put_back()
            for tensor, requires, _, gradient in self._tensors:
                if tensor.grad_fn is not None:
                    tensor.detach_()
                if tensor.requires_grad != requires:
                    tensor.requires_grad_(requires)
                if requires and tensor.grad is not gradient:
                    tensor.grad = gradient
            put_back_versions((tensor, version) for tensor, _, version, _ in self._tensors)
        torch.set_rng_state(self._random)
        self._tensors, self._containers = [], Containers()

    def _note_tensor(self, tensor: torch.Tensor) -> None:
        try:
            if not tensor.is_leaf:
                return
            version = -1 if tensor.is_inference() else tensor._version
            gradient = tensor.grad if tensor.requires_grad else None
        except (RuntimeError, NotImplementedError, AttributeError):
            return  # a wrapper that is just being made, or one without such things
        self._tensors.append((tensor, tensor.requires_grad, version, gradient))


class Containers:
    """Dictionaries, lists and the like, each with whom it belongs to and what was in it when it was noted."""

    def __init__(self) -> None:
        self._rows: list[tuple[Any, type, Any, Any]] = []

    def note(self, owner: Any, container: Any) -> None:
        """Remember what is in a container now."""
        before: Any = dict(container) if isinstance(container, dict) else list(container)
        self._rows.append((owner, type(owner), container, before))

    def note_all_of(self, owner: Any) -> None:
        """Remember the attributes of an object, what is in them, and in that: an optimizer's state is that deep."""
        try:
            attributes = vars(owner)
        except TypeError:
            return
        self.note(owner, attributes)
        for part in list(attributes.values()):
            self._note_plain(owner, part)
            if isinstance(part, (dict, list)):
                for item in list(part.values() if isinstance(part, dict) else part):
                    self._note_plain(owner, item)

    def _note_plain(self, owner: Any, item: Any) -> None:
        if isinstance(item, dict) or type(item) is list:
            self.note(owner, item)

    def keep(self, wanted: Callable[[Any], bool]) -> None:
        """Forget the containers of all other owners."""
        self._rows = [row for row in self._rows if wanted(row[0])]

    def put_back(self) -> None:
        """Give every container what was in it, where that has changed."""
        for owner, kind, container, before in self._rows:
            if isinstance(before, dict) and type(owner) is not kind:
                continue  # a lazy module has become another class
            if not _holds(container, before):
                container.clear()
                container.update(before) if isinstance(container, (dict, set)) else container.extend(before)


def _holds(container: Any, before: Any) -> bool:
    """Whether the very same things are in a container."""
    if len(container) != len(before):
        return False
    if isinstance(before, dict):
        return all(key in container and container[key] is value for key, value in before.items())
    return all(a is b for a, b in zip(container, before))


def alive() -> tuple[list[torch.Tensor], list[Any]]:
    """All tensors there are, and all that torch keeps state in: modules, optimizers, schedulers, scalers."""
    tensors, owners = [], []
    for item in gc.get_objects():
        kind = type(item)
        if issubclass(kind, torch.Tensor):
            tensors.append(item)
        elif issubclass(kind, OWNERS):
            owners.append(item)
    return tensors, owners


def put_back_versions(counted: Iterable[tuple[torch.Tensor, int]]) -> None:
    """Let tensors have been written to as often as is said here; those of inference mode, with -1, do not count."""
    moved = [(tensor, version) for tensor, version in counted if version >= 0 and tensor._version != version]
    if moved:
        set_versions(tuple(tensor for tensor, _ in moved), tuple(version for _, version in moved))
