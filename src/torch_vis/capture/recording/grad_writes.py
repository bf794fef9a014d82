"""What became a ``.grad`` during a run, noted as it happens: by the end ``zero_grad()`` may have let go of it.

Autograd says which leaf it accumulates into, so this costs something once per gradient and nothing per operation.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Mapping
from typing import Any

import torch

from torch_vis.capture.containers import named_tensors, wrapped_parts
from torch_vis.capture.recording.tensors import Tensor, Tensors

# How a leaf without a gradient gets its first: what was handed over, or a copy in the leaf's own layout.
FIRST = frozenset({"detach", "clone", "new_empty_strided", "_sparse_coo_tensor_unsafe"})


class Accumulated:
    """Pairs of a leaf and the number of a value that was its gradient, in order.

    ``-1 - n`` stands for the last value that operation ``n`` made.
    """

    def __init__(self) -> None:
        self.rows: list[tuple[weakref.ref[Tensor], int]] = []
        self.met: Callable[[Tensor], Tensor] = _itself  # what stands for a tensor in a run without numbers

    def wrote(self, node: Any, name: str, args: Any, numbers: list[int], birth: int) -> None:
        """An operation ran in a node that accumulates; ``numbers`` has the values that it read."""
        leaf = getattr(node, "variable", None)
        if leaf is None:
            return
        short = name.rpartition("::")[2].partition(".")[0]
        if leaf.grad is None:
            if short in FIRST:
                self.rows.append((weakref.ref(leaf), -1 - birth))
            return
        before = self.met(leaf.grad)
        # out of place only for a graph of the gradients, or sparse; otherwise it is a hook that looks at them
        makes = short == "add" and (torch.is_grad_enabled() or before.is_sparse)
        operands = args[:1] if short == "add_" else args[:2] if makes else ()
        for arg, number in zip(operands, numbers):
            if arg is before:
                self.rows += [(weakref.ref(leaf), number), (weakref.ref(leaf), -1 - birth)]

    def read_by(self, tensors: Tensors, optimizer: Any) -> None:
        """Note the gradients that a step of an optimizer is about to read, whoever made them."""
        for group in optimizer.param_groups:
            for leaf in group["params"]:
                gradient = leaf.grad
                for _, found in named_tensors(gradient) if gradient is not None else ():
                    part = self.met(found)
                    if part.layout is torch.strided or tensors.knows(part):
                        self.rows.append((weakref.ref(leaf), tensors.number_of(part)))

    def named(self, names: Mapping[int, str]) -> list[tuple[str, int]]:
        """The same by name; ``names`` has those of the leaves, by identity."""
        found = []
        for leaf_ref, number in self.rows:
            leaf = leaf_ref()
            if leaf is None:
                continue
            name = names.get(id(leaf)) or names.get(id(self.met(leaf)))
            if name is None:
                continue
            parts = wrapped_parts(leaf)
            if parts is None:
                found.append((f"{name}.grad", number))
            elif len(parts) == 1:  # of several, it cannot be told which
                found.append((f"{name}.grad.{parts[0][0]}", number))
        return found


def _itself(tensor: Tensor) -> Tensor:
    return tensor
