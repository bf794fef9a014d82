"""The receptive field of a value: which part of an input it depends on, proved by running with other numbers."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any, NamedTuple

import torch

from torch_vis.analysis.report import Report
from torch_vis.capture.containers import named_tensors
from torch_vis.errors import UsageError, no_match
from torch_vis.graph.schema import Role
from torch_vis.graph.text import many
from torch_vis.progress import progress
from torch_vis.replay.edited_replay import Diverged
from torch_vis.replay.held_run import HeldRun, input_values
from torch_vis.replay.perturb import PERTURBATIONS
from torch_vis.replay.replay import Replay, same_bits
from torch_vis.replay.rerun import Request, execute, planner_of
from torch_vis.views.text.table_layout import Field, Listing

EACH = 64  # slices of one dimension that are tried by themselves, at most


class FieldSide(NamedTuple):
    """One dimension of an input: the first and the last index that the value depends on."""

    dimension: int
    first: int
    last: int
    size: int
    """How many indices the input has."""
    read: tuple[int, ...] | None
    """Those that it depends on, each changed by itself; None where there are too many to try."""


class ReceptiveField(Report):
    """The part of an input that a value depends on, as a box.

    All that is outside of the box was changed at once, and the value stayed the same in every bit; each outermost slice
    of the box was changed alone, and the value did not stay.

    >>> import torch, torch_vis as tv
    >>> model = torch.nn.Sequential(torch.nn.Conv1d(1, 1, 3), torch.nn.Conv1d(1, 1, 3))
    >>> field = tv.trace(model, torch.randn(1, 1, 20)).receptive_field("1[0, 0, 4]")
    >>> field.box
    ((0, 1), (0, 1), (4, 9))
    """

    def __init__(self, run: HeldRun, wanted: Any, *, input: str | None = None) -> None:
        held = run.needs_tensors("run")
        graph = run.graph
        names = [str(value.name) for value in graph.inputs if value.role == Role.INPUT.name.lower()]
        values = input_values(graph, names)
        if not values:
            raise UsageError("the run read no tensor that it was given")
        if input is not None and input not in values:
            raise no_match("input", input, values)
        self.input = next(iter(values)) if input is None else input
        """The input that the field lies in."""
        self.text = str(wanted)
        """What it is the field of."""
        self.runs = 0
        """How often the recorded operations ran to find it."""
        self._planner, self._wanted = planner_of(run, held), wanted
        recorded = Replay(graph, held, self._planner.plan).tensor(values[self.input])
        self._given = recorded.detach().clone()
        self._before = self._value(self._given)
        self.sides: list[FieldSide] = self._box()
        """The sides of the box; none where the value does not depend on the input at all."""
        self.proved = self._is_tight()
        """Whether the value stayed the same in every bit when all that is outside of the box was changed."""

    @property
    def box(self) -> tuple[tuple[int, int], ...] | None:
        """The box as slices of the input, the end of each not in it; None where the value does not depend on it."""
        return tuple((side.first, side.last + 1) for side in self.sides) or None

    # ---------------------------------------------------------------- search

    def _value(self, given: torch.Tensor) -> list[torch.Tensor]:
        self.runs += 1
        rerun, _ = execute(self._planner, Request({self.input: given}, {}, self._wanted, None, results=False))
        tensors = [tensor for _, tensor in named_tensors(rerun.kept)]
        if not tensors:
            raise UsageError(f"{self.text!r} gives no tensor")
        return tensors

    def _depends(self, chosen: torch.Tensor) -> bool:
        """Whether other numbers where a mask is true make another value."""
        diverged = 0
        for change in PERTURBATIONS:
            new = torch.where(chosen, change(self._given), self._given)
            try:
                after = self._value(new)
            except Diverged:
                diverged += 1
                continue
            if not all(map(same_bits, self._before, after)):
                return True
        if diverged == len(PERTURBATIONS):
            raise UsageError(
                f"every other number in {self.input!r} takes another way through the program, which was not recorded"
            )
        return False

    def _along(self, dimension: int, first: int, last: int) -> bool:
        """Whether the value depends on slices of one dimension, from first to before last."""
        chosen = torch.zeros_like(self._given, dtype=torch.bool)
        chosen.narrow(dimension, first, last - first).fill_(True)
        return self._depends(chosen)

    def _up_to(self, dimension: int, index: int) -> bool:
        return self._along(dimension, 0, index + 1)

    def _from(self, dimension: int, back: int) -> bool:
        size = self._given.shape[dimension]
        return self._along(dimension, size - 1 - back, size)

    def _box(self) -> list[FieldSide]:
        if not self._given.numel() or not self._depends(torch.ones_like(self._given, dtype=torch.bool)):
            return []
        sides = []
        for dimension in progress(range(self._given.dim()), "receptive field"):
            size = self._given.shape[dimension]
            first = _least(size, partial(self._up_to, dimension))
            back = _least(size, partial(self._from, dimension))
            last = size - 1 - back
            inside = range(first, last + 1)
            read = None
            if len(inside) <= EACH:
                read = tuple(index for index in inside if self._along(dimension, index, index + 1))
            sides.append(FieldSide(dimension, first, last, size, read))
        return sides

    def _is_tight(self) -> bool:
        outside = torch.ones_like(self._given, dtype=torch.bool)
        if self.sides:
            outside[tuple(slice(side.first, side.last + 1) for side in self.sides)] = False
        return not outside.any() or not self._depends(outside)

    # ---------------------------------------------------------------- shown

    @property
    def title(self) -> str:  # type: ignore[override]
        """What it is the field of."""
        return f"receptive field of {self.text} in {self.input}"

    def facts(self) -> Mapping[str, str]:
        """The box, and how it was proved."""
        if not self.sides:
            box = "none: it does not depend on this input"
        else:
            box = f"[{', '.join(f'{side.first}:{side.last + 1}' for side in self.sides)}] of {list(self._given.shape)}"
        outside = (
            "changed, and it stayed the same in every bit" if self.proved else "it depends on that as well"
        )
        return {"box": box, "all that is outside": outside, "found by": many(self.runs, "run")}

    def listings(self) -> Sequence[Listing]:
        """Each dimension of the input."""
        fields = (
            Field("dimension", "dimension", str),
            Field("first", "from", str),
            Field("last", "to", str),
            Field("size", "of", str),
            Field("read", "of these it depends on", _counted),
        )
        return [Listing("dimensions", fields, self.sides)]

    def notes(self) -> Sequence[str]:
        """What a box leaves open."""
        return ["a box has no holes: read says which slices of it count, each dimension by itself"]


def _counted(read: tuple[int, ...] | None) -> str:
    return "too many to try" if read is None else f"{len(read):,}"


def _least(size: int, holds: Callable[[int], bool]) -> int:
    """The least index for which something holds that goes on to hold from there; it holds for the last."""
    low, high = 0, size - 1
    while low < high:
        middle = (low + high) // 2
        if holds(middle):
            high = middle
        else:
            low = middle + 1
    return low
