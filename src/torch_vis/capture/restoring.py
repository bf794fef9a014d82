"""What a run would leave behind, put back: gradients, optimizer states, attributes of modules, versions of tensors."""

from __future__ import annotations

import gc
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
        self._mappings: list[tuple[Any, dict[Any, Any]]] = []
        self._lists: list[tuple[list[Any], list[Any]]] = []
        with torch._C.DisableTorchFunctionSubclass():
            for item in gc.get_objects():
                kind = type(item)
                if issubclass(kind, torch.Tensor):
                    self._note_tensor(item)
                elif issubclass(kind, OWNERS):
                    self._note_owner(item)
        self._random = torch.get_rng_state()
        return self

    def __exit__(self, *exception: object) -> None:
        with torch._C.DisableTorchFunctionSubclass():
            for mapping, before in self._mappings:
                if not _same(mapping, before):
                    mapping.clear()
                    mapping.update(before)
            for items, copy in self._lists:
                if len(items) != len(copy) or any(a is not b for a, b in zip(items, copy)):
                    items[:] = copy
            moved: list[tuple[torch.Tensor, int]] = []
            for tensor, requires, version, gradient in self._tensors:
                if tensor.grad_fn is not None:
                    tensor.detach_()
                if tensor.requires_grad != requires:
                    tensor.requires_grad_(requires)
                if requires and tensor.grad is not gradient:
                    tensor.grad = gradient
                if version >= 0 and tensor._version != version:
                    moved.append((tensor, version))
            if moved:
                set_versions(tuple(tensor for tensor, _ in moved), tuple(version for _, version in moved))
        torch.set_rng_state(self._random)
        self._tensors, self._mappings, self._lists = [], [], []

    def _note_tensor(self, tensor: torch.Tensor) -> None:
        try:
            if not tensor.is_leaf:
                return
            version = -1 if tensor.is_inference() else tensor._version
            gradient = tensor.grad if tensor.requires_grad else None
        except (RuntimeError, NotImplementedError, AttributeError):
            return  # a wrapper that is just being made, or one without such things
        self._tensors.append((tensor, tensor.requires_grad, version, gradient))

    def _note_owner(self, owner: Any) -> None:
        try:
            inside = vars(owner)
        except TypeError:
            return
        self._note_mapping(inside)
        for part in list(inside.values()):
            if type(part) in (dict, list) or isinstance(part, dict):
                self._note_container(part)

    def _note_container(self, part: Any) -> None:
        """A dictionary or list of an owner's and those in it: an optimizer's state is one level deeper."""
        if isinstance(part, dict):
            self._note_mapping(part)
            inner: Any = part.values()
        else:
            self._lists.append((part, list(part)))
            inner = part
        for item in list(inner):
            if isinstance(item, dict):
                self._note_mapping(item)

    def _note_mapping(self, mapping: Any) -> None:
        self._mappings.append((mapping, dict(mapping)))


def _same(mapping: Any, before: dict[Any, Any]) -> bool:
    return len(mapping) == len(before) and all(
        key in mapping and mapping[key] is value for key, value in before.items()
    )
