"""Units of a model cut on trial: what is left is run, and compared with the whole model with these at zero."""

from __future__ import annotations

import contextlib
import copy
import statistics
import time
from collections.abc import Callable, Iterator, Sequence
from fractions import Fraction
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np
import torch
from torch.utils import _pytree as pytree

from torch_vis.analysis.coupling import Coupling, Group
from torch_vis.analysis.hardware import find_hardware
from torch_vis.reports.cutting import (
    Change,
    attempts,
    change_all,
    changed,
    possible_changes,
    sharpened,
    torch_attention,
    without,
    zeroed,
)
from torch_vis.reports.least import summed
from torch_vis.run.differences import Gap, gap_of
from torch_vis.tracing import trace

RUNS = 5
MIXED = "its heads are normalised or averaged together: there is nothing to check the smaller model against"
UNSTEADY = (
    "the output is not the same twice, or not finite: there is nothing to check the smaller model against"
)
RESHAPED = "the output has another shape"
OTHER = (
    "what is left gives something else than the whole model with these at zero: the program counts on them"
)


class Trial(NamedTuple):
    """What came of cutting: the model, how far its output moved, and how far it is from the one of zeroed columns.

    ``error`` is None where there is nothing to compare with. ``problem`` says why there is no model.
    """

    model: torch.nn.Module | None
    output: Gap | None
    error: float | None
    changes: tuple[Change, ...]
    problem: str


class Bench:
    """A copy of a model in eval mode, its coupling, and its output to compare with."""

    def __init__(
        self, model: torch.nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any], hardware: str | None
    ) -> None:
        self.hardware = None if hardware is None else find_hardware(hardware)
        self.model = copy.deepcopy(model).eval()
        self.training = {name: module.training for name, module in model.named_modules()}
        self.args, self.kwargs = args, kwargs
        with _unfused(), torch.no_grad():
            found = trace(self.model, *args, kwargs=kwargs, keep=False)
        self.coupling = Coupling(found.graph)
        self.tensors = {**dict(self.model.named_parameters()), **dict(self.model.named_buffers())}
        self.output = self.run(self.model)
        same = gap_of(self.output, self.run(self.model))
        self.steady = same is not None and same.relative <= _allowed(
            self.output
        )  # not where it is not finite
        self._right: dict[tuple[str, ...], None] = {}  # names of what had to be changed so far

    def run(self, model: torch.nn.Module) -> list[torch.Tensor]:
        """The numbers in the model's output for the batch."""
        return _run(model, self.args, self.kwargs)

    def check(self, model: torch.nn.Module) -> list[torch.Tensor]:
        """The same of a model that is only there to be compared, in double precision where it runs in it."""
        return _run(model, *self._finer[1:])

    @property
    def fine(self) -> torch.nn.Module:
        """The model in double precision, where it runs in it."""
        return self._finer[0]

    @cached_property
    def _finer(self) -> tuple[torch.nn.Module, Any, Any]:
        """The model and the batch in double precision, so that heads mixed up are not taken for rounding."""
        fine = copy.deepcopy(self.model)
        try:
            args, kwargs = pytree.tree_map(_doubled, (self.args, self.kwargs))
            fine.double()
            _run(fine, args, kwargs)
        except Exception:  # the user's forward, or a kernel that there is not in double precision
            return copy.deepcopy(self.model), self.args, self.kwargs
        return fine, args, kwargs

    # ---------------------------------------------------------------- cutting

    def cut_group(self, group: Group, units: Any) -> Trial:
        """A model without these units of one group."""
        exact = group.exact and self.steady
        if group.heads and not exact:
            return _failed(UNSTEADY if group.exact else MIXED)
        target = None
        if exact:
            with zeroed(self.model, self.coupling.fed(units)):
                target = self.run(self.model)
        if not group.heads:
            smaller = self._smaller(self.model, units)
            made, problem = self._ran(smaller, target)
            if not problem:
                return self._finished(smaller, made, target, ())
            if not exact:
                return _failed(problem)
        changes, problem = self._right_changes(group, units)
        if changes is None:
            return _failed(problem)
        smaller = self._smaller(self.model, units, changes)
        made, problem = self._ran(smaller, target)
        return _failed(problem) if problem else self._finished(smaller, made, target, changes)

    def _right_changes(self, group: Group, units: Any) -> tuple[tuple[Change, ...] | None, str]:
        """What has to be changed for the smaller model to be right, or None and why nothing makes it so."""
        sharp = {name for name, number in group.places if group.heads}
        with sharpened(self.fine, sharp):
            with zeroed(self.fine, self.coupling.fed(units)):
                target = self.check(self.fine)
            smaller = self._smaller(self.fine, units)
        left = Fraction(len(group.units) - len(units), len(group.units))
        tiers = possible_changes(smaller, group.paths, self._sizes(group), left)
        known = torch_attention(smaller, group.paths, left) if group.heads else ()
        problems = []
        for changes in (known,) if known else attempts(tiers, self._right):
            with changed(smaller, changes):
                problem = _compared(self.check, smaller, target)[1]
            if not problem:
                return changes if known else self._fewest(smaller, target, changes), ""
            problems.append(problem)
        return None, OTHER if OTHER in problems else problems[0]

    def _fewest(
        self, smaller: torch.nn.Module, target: list[torch.Tensor], changes: tuple[Change, ...]
    ) -> tuple[Change, ...]:
        """The changes without those that are not called after heads and that it works without."""
        names = tuple(sorted({change.name for change in changes}))
        if names in self._right or not names:
            return changes
        for name in names:
            fewer = tuple(change for change in changes if change.name != name)
            if "head" in name or not fewer:
                continue
            with changed(smaller, fewer):
                if not _compared(self.check, smaller, target)[1]:
                    changes = fewer
        self._right[tuple(sorted({change.name for change in changes}))] = None
        return changes

    def cut_all(self, parts: Sequence[tuple[Group, Any, tuple[Change, ...]]]) -> Trial:
        """A model without all of these."""
        none = np.zeros(0, dtype=np.int64)
        exact = np.concatenate([none, *(units for group, units, _ in parts if group.exact)])
        other = np.concatenate([none, *(units for group, units, _ in parts if not group.exact)])
        every = np.concatenate([exact, other])
        changes = tuple(change for _, _, some in parts for change in some)
        if self.steady:
            heads = any(group.heads for group, _, _ in parts)
            model, run = (self.fine, self.check) if heads else (self.model, self.run)
            with zeroed(model, self.coupling.fed(exact)):
                try:
                    target = run(self._smaller(model, other))
                except Exception as error:  # whatever the user's forward raises
                    return _failed(_told(error))
            problem = _compared(run, self._smaller(model, every, changes), target)[1]
            if problem:
                return _failed(problem)
        smaller = self._smaller(self.model, every, changes)
        made, problem = self._ran(smaller, None)
        return _failed(problem) if problem else self._finished(smaller, made, None, changes)

    def cut_together(
        self, parts: Sequence[tuple[Group, Any, tuple[Change, ...]]]
    ) -> tuple[Trial, dict[int, str]]:
        """A model without as many of these as go together, and why others do not, by their places."""
        whole, left = self.cut_all(parts), list(parts)
        if whole.model is not None:
            return whole, {}
        refused: dict[int, str] = {}
        taken: list[tuple[Group, Any, tuple[Change, ...]]] = []
        for place, part in enumerate(left):
            tried = self.cut_all([*taken, part])
            if tried.problem:
                refused[place] = f"not together with the others: {tried.problem}"
            else:
                taken.append(part)
        return self.cut_all(taken), refused

    def _smaller(self, model: torch.nn.Module, units: Any, changes: Sequence[Change] = ()) -> torch.nn.Module:
        smaller = without(model, self.coupling.kept(units), share=True)
        change_all(smaller, changes)
        return smaller

    def _ran(
        self, model: torch.nn.Module, target: list[torch.Tensor] | None
    ) -> tuple[list[torch.Tensor], str]:
        """The output of a model, and what is wrong with it."""
        made, problem = _compared(self.run, model, target)
        if not problem and [tensor.shape for tensor in made] != [tensor.shape for tensor in self.output]:
            problem = RESHAPED
        return made, problem

    def _finished(
        self,
        smaller: torch.nn.Module,
        made: list[torch.Tensor],
        target: list[torch.Tensor] | None,
        changes: tuple[Change, ...],
    ) -> Trial:
        for name, module in smaller.named_modules():
            module.training = self.training.get(name, False)
        gap = None if target is None else gap_of(target, made)
        return Trial(smaller, gap_of(self.output, made), None if gap is None else gap.relative, changes, "")

    def _sizes(self, group: Group) -> set[int]:
        """The numbers that a program may have for the size of a group: its heads, and what it has of each dimension."""
        members = np.isin(self.coupling.unit, group.units)
        along = {int(members[self.coupling.ids[name][number]].sum()) for name, number in group.places}
        return {*group.heads, *along, len(group.units)}

    # ---------------------------------------------------------------- figures

    def weights(self, group: Group) -> Any:
        """The squared norm of everything that each unit has in parameters."""
        total = np.zeros(len(self.coupling.unit))
        for name, number in group.places:
            tensor = self.tensors.get(name)
            if isinstance(tensor, torch.nn.Parameter):
                others = [n for n in range(tensor.dim()) if n != number]
                squared = tensor.detach().double().square()
                along = (squared.sum(dim=others) if others else squared).cpu().numpy()
                np.add.at(total, self.coupling.unit[self.coupling.ids[name][number]], along)
        return total[group.units]

    def lightest(self, group: Group, ratio: float) -> Any:
        """The units of a group with the least weight; one at least stays."""
        number = min(len(group.units) - 1, max(1, round(len(group.units) * ratio)))
        return group.units[np.argsort(self.weights(group), kind="stable")[:number]]

    def parameters_of(self, group: Group, units: Any) -> int:
        """How many parameters go with these units."""
        names = {name for name, _ in group.places}
        own = [name for name in names if isinstance(self.tensors.get(name), torch.nn.Parameter)]
        kept = self.coupling.kept(units, own)
        return sum(
            self.tensors[name].numel() - int(np.prod([mask.sum() for mask in kept[name]])) for name in own
        )

    def figures(self, model: torch.nn.Module) -> dict[str, int]:
        """Parameters, FLOPs of a forward run, its median time, and where hardware is named the time predicted there.

        What leaves out operations of unknown work is a ``Least``.
        """
        modes = [(module, module.training) for module in model.modules()]
        model.eval()
        with torch.no_grad():
            found = trace(model, *self.args, kwargs=self.kwargs, keep=False)
        spent = []
        for _ in range(RUNS):
            begun = time.perf_counter_ns()
            with torch.no_grad():
                model(*self.args, **self.kwargs)
            if torch.cuda.is_available() and torch.cuda.is_initialized():
                torch.cuda.synchronize()
            spent.append(time.perf_counter_ns() - begun)
        for module, mode in modes:
            module.training = mode
        column = found.metrics["flops"]
        known = {"flops": summed(column.total(), column.uncovered)}  # None where no operation has a formula
        if self.hardware is not None:
            there = found.latency(hardware=self.hardware)
            known["predicted_ns"] = summed(round(there.total_ns), there.unknown_operations)
        return {
            "parameters": sum(parameter.numel() for parameter in model.parameters()),
            "time_ns": round(statistics.median(spent)),
            **{name: figure for name, figure in known.items() if figure is not None},
        }


def _run(model: torch.nn.Module, args: Any, kwargs: Any) -> list[torch.Tensor]:
    torch.manual_seed(0)
    with _unfused(), torch.no_grad():
        return _numbers(model(*args, **kwargs))


@contextlib.contextmanager
def _unfused() -> Iterator[None]:
    """Torch's attention layers as their parts: fused, they hide what belongs together and skip what is padded."""
    fused = torch.backends.mha.get_fastpath_enabled()
    torch.backends.mha.set_fastpath_enabled(False)
    try:
        yield
    finally:
        torch.backends.mha.set_fastpath_enabled(fused)


def _compared(
    run: Callable[[torch.nn.Module], list[torch.Tensor]],
    model: torch.nn.Module,
    target: list[torch.Tensor] | None,
) -> tuple[list[torch.Tensor], str]:
    """The output of a model, and why it is not the one that was wanted."""
    try:
        made = run(model)
    except Exception as error:  # whatever the user's forward raises: it takes the old size for granted
        return [], _told(error)
    if target is None:
        return made, ""
    gap = gap_of(target, made)
    if gap is None:
        return made, RESHAPED
    return made, "" if gap.relative <= _allowed(target) else OTHER


def _doubled(item: Any) -> Any:
    return item.double() if isinstance(item, torch.Tensor) and item.is_floating_point() else item


def _failed(problem: str) -> Trial:
    return Trial(None, None, None, (), problem)


def _told(error: Exception) -> str:
    return " ".join(f"{type(error).__name__}: {error}".split())[:160]


def _numbers(output: Any) -> list[torch.Tensor]:
    """The floating-point tensors of an output; where it has none, all of them."""
    leaves = pytree.tree_leaves(output if not hasattr(output, "to_tuple") else output.to_tuple())
    tensors = [leaf for leaf in leaves if isinstance(leaf, torch.Tensor)]
    floating = [tensor for tensor in tensors if tensor.is_floating_point()]
    return floating or [tensor.double() for tensor in tensors]


def _allowed(tensors: Sequence[torch.Tensor]) -> float:
    """How far apart two outputs may be that differ in the order of additions only.

    In double precision that leaves room for programs that compute a part of it in single.
    """
    worst = max((torch.finfo(tensor.dtype).eps for tensor in tensors), default=0.0)
    return min(max(1000 * worst, 1e-5), 0.05)
