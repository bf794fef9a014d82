"""What is explained: a number that is taken of a run's output."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch

from torch_vis.capture.containers import named_tensors
from torch_vis.errors import UsageError, no_match
from torch_vis.replay.forward import Forward, ForwardPass


class Goal:
    """One number for each sample: the output at an index, or what a function of the output gives.

    ``target`` is an index into what an output has beside its samples: a number, a tuple of numbers, or one for each
    sample. Without it, the greatest of each row is taken. ``measure`` is a function of the whole output instead.
    """

    def __init__(
        self, target: Any = None, measure: Callable[[Any], Any] | None = None, output: int | str = 0
    ) -> None:
        if measure is not None and target is not None:
            raise UsageError("give target= or measure=, not both")
        if measure is not None and not callable(measure):
            raise UsageError("measure is a function of the output that gives a number")
        self.target, self.measure, self.output = target, measure, output
        self._index: Any = None

    def fix(self, given: ForwardPass) -> None:
        """Choose the index by a pass with nothing changed, where none was given."""
        if self.measure is not None:
            return
        tensor = self.chosen(given)
        if not tensor.is_floating_point():
            raise UsageError(f"output {self.output!r} is {tensor.dtype}; gradients need floating numbers")
        self._index = self._indices(tensor)

    def chosen(self, given: ForwardPass) -> torch.Tensor:
        """The output tensor that is meant."""
        named = dict(named_tensors(given.output))
        if isinstance(self.output, str):
            if self.output not in named:
                raise no_match("output", self.output, named)
            return named[self.output]
        tensors = list(named.values()) or given.outputs
        if self.output == 0:  # the first with numbers that can be explained
            return next((tensor for tensor in tensors if tensor.is_floating_point()), tensors[0])
        if not -len(tensors) <= self.output < len(tensors):
            raise UsageError(f"the run gives {len(tensors)} tensors; there is no output {self.output}")
        return tensors[self.output]

    def _indices(self, tensor: torch.Tensor) -> Any:
        target = self.target
        if target is None:
            if tensor.dim() < 2:
                return None
            if tensor.dim() == 2:
                return tensor.detach().argmax(-1)
            raise UsageError(
                f"the output has shape {list(tensor.shape)}: say which number of it to explain with target=(…), an "
                f"index of its last {tensor.dim() - 1} dimensions, or with measure="
            )
        if isinstance(target, torch.Tensor):
            target = target.tolist()
        if isinstance(target, list):
            if tensor.dim() < 1 or len(target) != len(tensor):
                raise UsageError(
                    f"target has {len(target)} entries, and the output has {len(tensor) if tensor.dim() else 1} "
                    "samples; a position in one sample is a tuple"
                )
            rows = [self._checked(tensor, item) for item in target]
            return rows if tensor.dim() != 2 else torch.tensor([row[0] for row in rows])
        return self._checked(tensor, target)

    def _checked(self, tensor: torch.Tensor, target: Any) -> tuple[int, ...]:
        index = tuple(target) if isinstance(target, (tuple, list)) else (target,)
        sizes = tensor.shape[1:]
        if not all(isinstance(item, int) and not isinstance(item, bool) for item in index):
            raise UsageError(f"target is an index, a tuple of them or one for each sample, not {target!r}")
        if len(index) != len(sizes):
            raise UsageError(
                f"target {target!r} has {len(index)} numbers, and the output has {len(sizes)} dimensions beside its "
                f"samples: {list(tensor.shape)}"
            )
        for item, size in zip(index, sizes):
            if not -size <= item < size:
                raise UsageError(f"target {target!r} is outside the output's shape {list(tensor.shape)}")
        return index

    def of(self, given: ForwardPass) -> torch.Tensor:
        """The number of each sample; one number where the samples cannot be told apart."""
        if self.measure is not None:
            with torch.enable_grad():
                measured = self.measure(given.output)
            if not isinstance(measured, torch.Tensor):
                raise UsageError(
                    f"measure gave {type(measured).__name__}; gradients need a tensor with one number, or one for each "
                    "sample"
                )
            if measured.dim() > 1:
                raise UsageError(
                    f"measure gave a tensor of shape {list(measured.shape)}; it has to give one number"
                )
            return measured
        tensor = self.chosen(given)
        index = self._index
        if index is None:
            return tensor
        if isinstance(index, torch.Tensor):
            return tensor.gather(-1, index.to(tensor.device).unsqueeze(-1)).squeeze(-1)
        if isinstance(index, tuple):
            return tensor[(slice(None), *index)]
        return torch.stack([tensor[(sample, *place)] for sample, place in enumerate(index)])

    @property
    def text(self) -> str:
        """What is explained, in words."""
        if self.measure is not None:
            name = getattr(self.measure, "__name__", "measure")
            return "measure" if name == "<lambda>" else f"{name}(output)"
        which = f"output {self.output}" if self.output != 0 else "output"
        index = self._index
        if index is None:
            return which
        if isinstance(index, torch.Tensor):
            index = sorted(set(index.tolist()))
            shown = ", ".join(map(str, index[:6])) + (" …" if len(index) > 6 else "")
            return f"{which}[:, {shown}]"
        if isinstance(index, tuple):
            return f"{which}[:, {', '.join(map(str, index))}]"
        return f"{which} at one index for each sample"


def one_number(goal: Goal, forward: Forward, given: ForwardPass) -> float:
    """The sum over all samples."""
    return float(goal.of(given).detach().double().sum())


def token_names(tokens: Sequence[str] | None, count: int) -> list[str]:
    """A name for each position: the tokens that were given, or numbers."""
    if tokens is None:
        return [str(number) for number in range(count)]
    if len(tokens) != count:
        raise UsageError(f"{len(tokens)} tokens are named, and there are {count} positions")
    return [str(token) for token in tokens]
