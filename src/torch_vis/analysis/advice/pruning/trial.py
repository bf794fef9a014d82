"""Units of a model cut on trial: what is left is run, and compared with the whole model with these at zero."""

from __future__ import annotations

import copy
import functools
from collections.abc import Callable, Mapping, Sequence
from fractions import Fraction
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np
import torch
from torch.utils import _pytree as pytree

from torch_vis.analysis.advice.pruning.dependency import Dependencies, DependencyGroup
from torch_vis.analysis.advice.pruning.surgery import (
    AttributeChange,
    attempts,
    change_all,
    changed,
    compact,
    impossible,
    possible_changes,
    sharpened,
    torch_attention,
    without,
    zeroed,
)
from torch_vis.analysis.compare.numeric.tensor_distance import Distance, distance_of
from torch_vis.analysis.gradients.nan_origin import left_out
from torch_vis.analysis.machine.hardware import Hardware, find_hardware
from torch_vis.api import trace
from torch_vis.capture.modes import without_gradients
from torch_vis.capture.state import modes_kept
from torch_vis.capture.undo import Undo, context, hook_calls
from torch_vis.errors import UsageError
from torch_vis.replay.perturb import perturbed

# how many times more than rounding an output has to move for a comparison to tell right from wrong
SEEN = 10


class ReferenceModel:
    """A model and a batch; ``output`` is what it gives, and ``why_incomparable`` why nothing can be compared with it.

    Elements that are NaN or infinite there are left out of every output, as zeros: ``nonfinite`` says how many of
    ``elements``. ``difference`` says in which way it is another than the model that was given.
    """

    difference = ""

    def __init__(self, model: torch.nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        self.model, self.args, self.kwargs = model, args, kwargs
        outputs = self._all_outputs(model)
        self._nonfinite_at = [_nonfinite_mask(tensor) for tensor in outputs]
        self.nonfinite = sum(int(mask.sum()) for mask in self._nonfinite_at if mask is not None)
        self.elements = sum(tensor.numel() for tensor in outputs)
        self.output = self._finite(outputs)
        repeated = distance_of(self.output, self.run(model))
        self.why_incomparable = ""
        if not self.elements:
            self.why_incomparable = f"the output has no {'elements' if outputs else 'tensor'}"
        elif repeated is None:
            self.why_incomparable = "the output cannot be compared"
        elif repeated.relative > tolerance(self.output):
            self.why_incomparable = "the output is not the same twice"

    @property
    def is_comparable(self) -> bool:
        """Whether its output is one that others can be compared with."""
        return not self.why_incomparable

    def run(self, model: torch.nn.Module) -> list[torch.Tensor]:
        """The numbers in a model's output for the batch."""
        return self._finite(self._all_outputs(model))

    def _all_outputs(self, model: torch.nn.Module) -> list[torch.Tensor]:
        return _run(model, self.args, self.kwargs)

    def _finite(self, outputs: list[torch.Tensor]) -> list[torch.Tensor]:
        """An output with zeros where this model's own is no number."""
        if not self.nonfinite or len(outputs) != len(self._nonfinite_at):
            return outputs
        return [
            tensor if mask is None or mask.shape != tensor.shape else tensor.masked_fill(mask, 0)
            for tensor, mask in zip(outputs, self._nonfinite_at)
        ]

    @cached_property
    def double(self) -> ReferenceModel:
        """A copy in double precision where it runs in it, so that heads mixed up are not taken for rounding."""
        try:
            args, kwargs = pytree.tree_map(_doubled, (self.args, self.kwargs))
            reference = ReferenceModel(copy.deepcopy(self.model).double(), args, kwargs)
        # the user's forward, or a kernel that there is not in double precision
        except Exception:
            model = copy.deepcopy(self.model)
            compact(model)
            reference = ReferenceModel(model, self.args, self.kwargs)
        return reference if reference.is_comparable else self

    def detects(self, other: list[torch.Tensor]) -> bool:
        """Whether another output is so far from the model's own that a comparison can tell right from wrong."""
        distance = self.distance(self.output, other)
        return distance is not None and distance > SEEN * tolerance(self.output)

    def distance(self, target: list[torch.Tensor], outputs: list[torch.Tensor]) -> float | None:
        """The distance of two outputs, None where there is nothing to compare."""
        return largest_distance(target, outputs)

    def perturbed(self) -> ReferenceModel | None:
        """The same model with random numbers mixed into all of its parameters, or None where it does not run so.

        What begins with zeros, a last layer or the scale of a branch, hides all that comes before it; so do weights
        that are next to nothing.
        """
        model = copy.deepcopy(self.model)
        compact(model)
        generator = torch.Generator().manual_seed(0)
        with without_gradients():
            for parameter in model.parameters():
                if parameter.is_floating_point() and parameter.numel():
                    parameter.copy_(perturbed(parameter, generator))
        try:
            reference = ReferenceModel(model, self.args, self.kwargs)
        # whatever the user's forward raises with numbers that it does not expect
        except Exception:
            return None
        reference.difference = "a copy with random numbers mixed into its weights"
        return reference if reference.is_comparable else None

    def by_module_outputs(self) -> ReferenceModel | None:
        """The same model, by what its modules give on the way: tokens say little of the scores that chose them."""
        reference = _ByModuleOutputs(self.model, self.args, self.kwargs)
        return reference if reference.output and reference.is_comparable else None


class _ByModuleOutputs(ReferenceModel):
    """A model that is compared by what each module gave last; what the cut made smaller is left out."""

    difference = "what modules give on the way"

    @cached_property
    def double(self) -> ReferenceModel:
        return self

    def _all_outputs(self, model: torch.nn.Module) -> list[torch.Tensor]:
        outputs: dict[str, list[torch.Tensor]] = {path: [] for path, _ in model.named_modules()}
        with _keeping_outputs(model, outputs):
            super()._all_outputs(model)
        return [tensor for tensors in outputs.values() for tensor in tensors]

    def distance(self, target: list[torch.Tensor], outputs: list[torch.Tensor]) -> float | None:
        if len(target) != len(outputs):
            return None
        same = [(a, b) for a, b in zip(target, outputs) if a.shape == b.shape]
        return largest_distance([a for a, _ in same], [b for _, b in same])


@context
def _keeping_outputs(undo: Undo, model: torch.nn.Module, outputs: dict[str, list[torch.Tensor]]) -> None:
    for path, module in model.named_modules():
        hook_calls(undo, module, functools.partial(_keep_output, outputs, path))


def _keep_output(
    outputs: dict[str, list[torch.Tensor]], path: str, _module: Any, _args: Any, output: Any
) -> None:
    outputs[path] = [tensor.clone() for tensor in _floating_tensors(output) if tensor.is_floating_point()]


def _nonfinite_mask(tensor: torch.Tensor) -> torch.Tensor | None:
    """Where a tensor has no number; None where it has one everywhere, or cannot be asked."""
    if tensor.is_nested or tensor.layout is not torch.strided:
        return None
    mask = ~torch.isfinite(tensor)
    return mask if bool(mask.any()) else None


def is_zero(tensors: Sequence[torch.Tensor]) -> bool:
    """Whether there is nothing else than zeros: no share of them can be given."""
    return not any(bool(tensor.any()) for tensor in tensors)


def largest_distance(target: Sequence[torch.Tensor], outputs: Sequence[torch.Tensor]) -> float | None:
    """The distance of those of two outputs that differ most, None where shapes differ.

    In one norm for all, a large tensor would hide a small one; what is rounding beside the others is left out.
    """
    if distance_of(target, outputs) is None:
        return None
    sizes = [_rms(tensor) for tensor in target]
    least = max(sizes, default=0.0) * tolerance(target) / 1000
    distances = [distance_of([a], [b]) for a, b, size in zip(target, outputs, sizes) if size > least]
    relative = [distance.relative for distance in distances if distance is not None]
    return max(relative) if relative else 0.0 if is_zero(outputs) else float("inf")


def _rms(tensor: torch.Tensor) -> float:
    return float(tensor.float().square().mean().sqrt()) if tensor.numel() else 0.0


def tolerance(tensors: Sequence[torch.Tensor]) -> float:
    """How far two outputs may differ if only the order of additions is another.

    In double precision that leaves room for programs that compute a part of it in single.
    """
    worst = max((torch.finfo(tensor.dtype).eps for tensor in tensors), default=0.0)
    return min(max(1000 * worst, 1e-5), 0.05)


@context
def unfused(undo: Undo) -> None:
    """Torch's attention layers as their parts: fused, they hide what belongs together and skip what is padded."""
    undo.add(torch.backends.mha.set_fastpath_enabled, torch.backends.mha.get_fastpath_enabled())
    torch.backends.mha.set_fastpath_enabled(False)


def _run(model: torch.nn.Module, args: Any, kwargs: Any) -> list[torch.Tensor]:
    torch.manual_seed(0)
    with unfused(), without_gradients():
        return _floating_tensors(model(*args, **kwargs))


def _doubled(item: Any) -> Any:
    return item.double() if isinstance(item, torch.Tensor) and item.is_floating_point() else item


def _floating_tensors(output: Any) -> list[torch.Tensor]:
    """The floating-point tensors of an output; where it has none, all of them."""
    leaves = pytree.tree_leaves(output if not hasattr(output, "to_tuple") else output.to_tuple())
    tensors = [leaf for leaf in leaves if isinstance(leaf, torch.Tensor)]
    floating = [tensor for tensor in tensors if tensor.is_floating_point()]
    return floating or [tensor.double() for tensor in tensors]


MIXED = "its heads are normalised, averaged or multiplied together: there is nothing to check the smaller model against"
INCOMPARABLE = "there is nothing to check the smaller model against"
HIDDEN = (
    "the output does not depend on them, with these weights or with others: there is nothing to check against"
)
BLIND = "no cut can be checked; t.gradients() finds where NaN was born"
RESHAPED = "the output has another shape"
OTHER = (
    "what is left gives something else than the whole model with these at zero: the program counts on them"
)


class Trial(NamedTuple):
    """The result of cutting: the model, how far its output moved, and how far it is from that with the columns zeroed.

    ``output`` is None where the whole model's is zero. ``error`` is None where there is nothing to compare with;
    ``by`` says what was compared where the output itself does not show the units, and ``hidden`` that nothing does.
    ``problem`` says why there is no model.
    """

    model: torch.nn.Module | None
    output: Distance | None
    error: float | None
    changes: tuple[AttributeChange, ...]
    problem: str
    by: str = ""
    hidden: bool = False


# a group that was not cut alone
UNTRIED_ALONE = Trial(None, None, None, (), "")


class GroupCut(NamedTuple):
    """Units of a group to cut, with what has to change in modules for it."""

    group: DependencyGroup
    units: Any
    changes: tuple[AttributeChange, ...]


class ExpectedOutput(NamedTuple):
    """What a smaller model has to give: the output of a whole one with columns at zero; whether it shows the units."""

    reference: ReferenceModel
    output: list[torch.Tensor]
    shows: bool


class PruningTrials:
    """A copy of a model in eval mode, its dependencies, and its output to compare with."""

    def __init__(
        self,
        model: torch.nn.Module,
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
        hardware: str | Hardware | None,
    ) -> None:
        self.hardware = None if hardware is None else find_hardware(hardware)
        self.model = copy.deepcopy(model).eval()
        compact(self.model)
        self.training = {name: module.training for name, module in model.named_modules()}
        self.args, self.kwargs = args, kwargs
        with unfused(), without_gradients():
            traced = trace(self.model, *args, kwargs=kwargs, hold=False)
        self.tensors = {**dict(self.model.named_parameters()), **dict(self.model.named_buffers())}
        self.dependencies = Dependencies(
            traced.graph, {name: tensor.shape for name, tensor in self.tensors.items()}
        )
        self.own = ReferenceModel(self.model, args, kwargs)
        if self.own.output and not self.own.elements and _is_empty((args, kwargs)):
            raise UsageError("the batch is empty: the output has no elements, so that no cut can be tried")
        self.left_out = self._left_out()
        self.is_zero = self.own.elements > 0 and is_zero(self.own.output)
        # what was compared with
        self._used = [self.own]
        # names of what had to be changed so far
        self._right: dict[tuple[str, ...], None] = {}

    @cached_property
    def _perturbed(self) -> ReferenceModel | None:
        return self.own.double.perturbed()

    @cached_property
    def _by_module_outputs(self) -> ReferenceModel | None:
        return self.own.double.by_module_outputs()

    @property
    def why_incomparable(self) -> str:
        """Why nothing can be checked, if that is so."""
        return f"{self.own.why_incomparable}: {INCOMPARABLE}" if self.own.why_incomparable else ""

    def _left_out(self) -> dict[str, int]:
        """How many elements of the inputs and of the output are NaN or infinite, and left out."""
        if not self.own.nonfinite:
            return {}
        with unfused(), without_gradients():
            traced = trace(self.model, *self.args, kwargs=self.kwargs)
        return left_out(traced.graph, traced.kept, self.own.nonfinite, self.own.elements, BLIND)

    # ---------------------------------------------------------------- cutting

    def cut_group(self, group: DependencyGroup, units: Any) -> Trial:
        """A model without these units of one group."""
        if not group.exact and not group.heads:
            return self._cut_mixed(units)
        target = (
            self._target(self.dependencies.fed(units)) if group.exact and self.own.is_comparable else None
        )
        if group.heads and (target is None or not target.shows):
            return _failed(MIXED if not group.exact else self.why_incomparable if target is None else HIDDEN)
        if not group.heads:
            tried = self._tried(units, (), target)
            if not tried.problem or target is None:
                return tried
        assert target is not None
        changes, problem = self._right_changes(group, units, target.reference)
        return _failed(problem) if changes is None else self._tried(units, changes, target)

    def _cut_mixed(self, units: Any) -> Trial:
        """A model without units that an operation takes together: columns at zero do not make them gone there.

        But all of their weights may, as where activations are multiplied or summed up. Where they do not, as in a
        normalisation, there is nothing to compare with.
        """
        if self.own.is_comparable:
            tried = self._tried(units, (), self._target(self.dependencies.everywhere(units)))
            if tried.problem != OTHER:
                return tried
        return self._tried(units, (), None)

    def _target(self, columns: Mapping[str, Sequence[Any]]) -> ExpectedOutput:
        """What the smaller model has to give, with its own weights or, where these hide the units, with others."""
        own = _expected(self.own, columns)
        if own.shows:
            return own
        # in double precision, rounding hides less
        expected = _expected(self.own.double, columns)
        if not expected.shows and self._perturbed is not None:
            expected = _expected(self._perturbed, columns)
        if not expected.shows and self._by_module_outputs is not None:
            expected = _expected(self._by_module_outputs, columns)
        if expected.shows and expected.reference not in self._used:
            self._used.append(expected.reference)
        return expected if expected.shows else own

    def _tried(
        self, units: Any, changes: tuple[AttributeChange, ...], target: ExpectedOutput | None
    ) -> Trial:
        """The model without these, run; where there is a target, compared with it."""
        smaller = self._smaller(self.model, units, changes)
        outputs, problem = compared(self.own, smaller, None)
        if not problem and [tensor.shape for tensor in outputs] != [
            tensor.shape for tensor in self.own.output
        ]:
            problem = RESHAPED
        error = None
        if target is not None and not problem:
            compared_outputs = outputs
            if target.reference is not self.own:
                other = self._smaller(target.reference.model, units, changes)
                compared_outputs, problem = compared(target.reference, other, None)
            error, problem = (
                (None, problem)
                if problem
                else distance_problem(target.reference, target.output, compared_outputs)
            )
        if problem:
            return _failed(problem)
        for name, module in smaller.named_modules():
            module.training = self.training.get(name, False)
        moved = None if self.is_zero else distance_of(self.own.output, outputs)
        if target is None:
            return Trial(smaller, moved, None, changes, "")
        return Trial(
            *(smaller, moved, error if target.shows else None, changes, ""),
            by=target.reference.difference,
            hidden=not target.shows,
        )

    def _right_changes(
        self, group: DependencyGroup, units: Any, reference: ReferenceModel
    ) -> tuple[tuple[AttributeChange, ...] | None, str]:
        """What has to be changed for the smaller model to be right, or None and why nothing makes it so."""
        sharp = {name for name, number in group.places if group.heads}
        double = reference.double
        with sharpened(double.model, sharp):
            with zeroed(double.model, self.dependencies.fed(units)):
                target = double.run(double.model)
            smaller = self._smaller(double.model, units)
        left = Fraction(len(group.units) - len(units), len(group.units))
        tiers = possible_changes(smaller, group.paths, self._sizes(group), left)
        known = torch_attention(smaller, group.paths, left) if group.heads else ()
        problems = []
        for changes in (known,) if known else attempts(tiers, self._right):
            with changed(smaller, changes):
                problem = compared(double, smaller, target)[1]
            if not problem:
                return changes if known else self._fewest(double, smaller, target, changes), ""
            problems.append(problem)
        return None, OTHER if OTHER in problems else problems[0]

    def _fewest(
        self,
        reference: ReferenceModel,
        smaller: torch.nn.Module,
        target: list[torch.Tensor],
        changes: tuple[AttributeChange, ...],
    ) -> tuple[AttributeChange, ...]:
        """The changes without those that are not called after heads and that it works without."""
        names = tuple(sorted({change.name for change in changes}))
        if names in self._right or not names:
            return changes
        for name in names:
            fewer = tuple(change for change in changes if change.name != name)
            if "head" in name or not fewer:
                continue
            with changed(smaller, fewer):
                if not compared(reference, smaller, target)[1]:
                    changes = fewer
        self._right[tuple(sorted({change.name for change in changes}))] = None
        return changes

    def cut_all(self, parts: Sequence[GroupCut]) -> Trial:
        """A model without all of these."""
        none = np.zeros(0, dtype=np.int64)
        exact = np.concatenate([none, *(units for group, units, _ in parts if group.exact)])
        other = np.concatenate([none, *(units for group, units, _ in parts if not group.exact)])
        every = np.concatenate([exact, other])
        changes = tuple(change for _, _, some in parts for change in some)
        for reference in self._used if self.own.is_comparable else ():
            heads = any(group.heads for group, _, _ in parts)
            chosen = reference.double if heads else reference
            with zeroed(chosen.model, self.dependencies.fed(exact)):
                try:
                    target = chosen.run(self._smaller(chosen.model, other))
                # whatever the user's forward raises
                except Exception as error:
                    return _failed(error_line(error))
            problem = compared(chosen, self._smaller(chosen.model, every, changes), target)[1]
            if problem:
                return _failed(problem)
        return self._tried(every, changes, None)

    def cut_together(self, parts: Sequence[GroupCut]) -> tuple[Trial, dict[int, str]]:
        """A model without as many of these as go together, and why others do not, by their places."""
        whole, left = self.cut_all(parts), list(parts)
        if whole.model is not None:
            return whole, {}
        refused: dict[int, str] = {}
        accepted: list[GroupCut] = []
        for position, part in enumerate(left):
            tried = self.cut_all([*accepted, part])
            if tried.problem:
                refused[position] = f"not together with the others: {tried.problem}"
            else:
                accepted.append(part)
        return self.cut_all(accepted), refused

    def _smaller(
        self, model: torch.nn.Module, units: Any, changes: Sequence[AttributeChange] = ()
    ) -> torch.nn.Module:
        smaller = without(model, self.dependencies.kept(units), share=True)
        change_all(smaller, changes)
        return smaller

    def _sizes(self, group: DependencyGroup) -> set[int]:
        """The numbers that a program may have for the size of a group: its heads, and what it has of each dimension."""
        members = np.isin(self.dependencies.unit, group.units)
        along = {int(members[self.dependencies.ids[name][number]].sum()) for name, number in group.places}
        return {*group.heads, *along, len(group.units)}

    def like(self, model: torch.nn.Module) -> Callable[[torch.nn.Module], bool]:
        """Whether a model gives what this one gives."""
        with modes_kept(model):
            wanted = self.own.run(model.eval())
        return lambda other: not compared(self.own, other.eval(), wanted)[1]

    def resized(self, parts: Sequence[GroupCut]) -> dict[int, set[int]]:
        """What each size became that something was cut from: not the same everywhere, where two parts were as large."""
        sizes: dict[int, set[int]] = {}
        for group, units, _ in parts:
            for size in self._sizes(group):
                sizes.setdefault(size, set()).add(size * (len(group.units) - len(units)) // len(group.units))
        return sizes

    # ---------------------------------------------------------------- figures

    def weights(self, group: DependencyGroup) -> Any:
        """The squared norm of everything that each unit has in parameters; what is NaN or infinite is left out."""
        total = np.zeros(len(self.dependencies.unit))
        for name, number in group.places:
            tensor = self.tensors.get(name)
            if isinstance(tensor, torch.nn.Parameter):
                others = [n for n in range(tensor.dim()) if n != number]
                squared = tensor.detach().double().square().nan_to_num(0.0, 0.0, 0.0)
                along = (squared.sum(dim=others) if others else squared).cpu().numpy()
                np.add.at(total, self.dependencies.unit[self.dependencies.ids[name][number]], along)
        return total[group.units]

    def lightest(self, group: DependencyGroup, ratio: float) -> Any:
        """The units of a group with the least weight; one at least stays."""
        number = min(len(group.units) - 1, max(1, round(len(group.units) * ratio)))
        return group.units[np.argsort(self.weights(group), kind="stable")[:number]]

    def parameters_of(self, group: DependencyGroup, units: Any) -> int:
        """How many parameters go with these units."""
        names = {name for name, _ in group.places}
        own = [name for name in names if isinstance(self.tensors.get(name), torch.nn.Parameter)]
        kept = self.dependencies.kept(units, own)
        return sum(
            self.tensors[name].numel() - int(np.prod([mask.sum() for mask in kept[name]])) for name in own
        )


def _expected(reference: ReferenceModel, columns: Mapping[str, Sequence[Any]]) -> ExpectedOutput:
    with zeroed(reference.model, columns):
        output = reference.run(reference.model)
    return ExpectedOutput(reference, output, reference.detects(output))


def compared(
    reference: ReferenceModel, model: torch.nn.Module, target: list[torch.Tensor] | None
) -> tuple[list[torch.Tensor], str]:
    """What a model gives for the batch of a reference, and why it is not what was wanted."""
    why = impossible(model)
    if why:
        return [], why
    try:
        outputs = reference.run(model)
    # whatever the user's forward raises: it takes the old size for granted
    except Exception as error:
        return [], error_line(error)
    return outputs, "" if target is None else distance_problem(reference, target, outputs)[1]


def distance_problem(
    reference: ReferenceModel, target: list[torch.Tensor], outputs: list[torch.Tensor]
) -> tuple[float | None, str]:
    """How far an output is from the one that was wanted, and why that is too far."""
    distance = reference.distance(target, outputs)
    if distance is None:
        return None, RESHAPED
    return distance, "" if distance <= tolerance(target) else OTHER


def _is_empty(inputs: Any) -> bool:
    """Whether some tensor that a model is given has no elements."""
    tensors = (leaf for leaf in pytree.tree_leaves(inputs) if isinstance(leaf, torch.Tensor))
    return any(not tensor.numel() for tensor in tensors)


def _failed(problem: str) -> Trial:
    return Trial(None, None, None, (), problem)


def error_line(error: Exception) -> str:
    """An error in a line."""
    return " ".join(f"{type(error).__name__}: {error}".split())[:160]
