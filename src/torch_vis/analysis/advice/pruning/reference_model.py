"""A model that cuts are tried on: what it gives for a batch, in its own precision and in double."""

from __future__ import annotations

import contextlib
import copy
import functools
from collections.abc import Iterator, Sequence
from functools import cached_property
from typing import Any

import torch
from torch.utils import _pytree as pytree

from torch_vis.analysis.advice.pruning.surgery import compact
from torch_vis.analysis.compare.numeric.side_by_side import gap_of
from torch_vis.replay.perturb import stirred

SEEN = 10  # times more than rounding that an output has to move for a comparison to tell right from wrong


class Subject:
    """A model and a batch; ``output`` is what it gives, and ``unsteady`` why nothing can be compared with it.

    Elements that are NaN or infinite there are left out of every output, as zeros: ``spoilt`` says how many of
    ``elements``. ``differs`` says in which way it is another than the model that was given.
    """

    differs = ""

    def __init__(self, model: torch.nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        self.model, self.args, self.kwargs = model, args, kwargs
        given = self._given(model)
        self._wrong = [_not_finite(tensor) for tensor in given]
        self.spoilt = sum(int(wrong.sum()) for wrong in self._wrong if wrong is not None)
        self.elements = sum(tensor.numel() for tensor in given)
        self.output = self._known(given)
        same = gap_of(self.output, self.run(model))
        self.unsteady = ""
        if not self.elements:
            self.unsteady = f"the output has no {'elements' if given else 'tensor'}"
        elif same is None:
            self.unsteady = "the output cannot be compared"
        elif same.relative > allowed(self.output):
            self.unsteady = "the output is not the same twice"

    @property
    def steady(self) -> bool:
        """Whether its output is one that others can be compared with."""
        return not self.unsteady

    def run(self, model: torch.nn.Module) -> list[torch.Tensor]:
        """The numbers in a model's output for the batch."""
        return self._known(self._given(model))

    def _given(self, model: torch.nn.Module) -> list[torch.Tensor]:
        return _run(model, self.args, self.kwargs)

    def _known(self, given: list[torch.Tensor]) -> list[torch.Tensor]:
        """An output with zeros where this model's own is no number."""
        if not self.spoilt or len(given) != len(self._wrong):
            return given
        return [
            tensor if wrong is None or wrong.shape != tensor.shape else tensor.masked_fill(wrong, 0)
            for tensor, wrong in zip(given, self._wrong)
        ]

    @property
    def fine(self) -> Subject:
        """A copy in double precision where it runs in it, so that heads mixed up are not taken for rounding."""
        return self._finer

    @cached_property
    def _finer(self) -> Subject:
        try:
            args, kwargs = pytree.tree_map(_doubled, (self.args, self.kwargs))
            made = Subject(copy.deepcopy(self.model).double(), args, kwargs)
        except Exception:  # the user's forward, or a kernel that there is not in double precision
            model = copy.deepcopy(self.model)
            compact(model)
            made = Subject(model, self.args, self.kwargs)
        return made if made.steady else self

    def notices(self, other: list[torch.Tensor]) -> bool:
        """Whether another output is so far from the model's own that a wrong one would be told from a right one."""
        gap = self.apart(self.output, other)
        return gap is not None and gap > SEEN * allowed(self.output)

    def apart(self, target: list[torch.Tensor], made: list[torch.Tensor]) -> float | None:
        """How far two outputs are apart, None where there is nothing to compare."""
        return furthest(target, made)

    def stirred(self) -> Subject | None:
        """The same model with random numbers mixed into all of its parameters, or None where it does not run so.

        What begins with zeros, a last layer or the scale of a branch, hides all that comes before it; so do weights
        that are next to nothing.
        """
        model = copy.deepcopy(self.model)
        compact(model)
        generator = torch.Generator().manual_seed(0)
        with torch.no_grad():
            for parameter in model.parameters():
                if parameter.is_floating_point() and parameter.numel():
                    parameter.copy_(stirred(parameter, generator))
        try:
            made = Subject(model, self.args, self.kwargs)
        except Exception:  # whatever the user's forward raises with numbers that it does not expect
            return None
        made.differs = "a copy with random numbers mixed into its weights"
        return made if made.steady else None

    def inside(self) -> Subject | None:
        """The same model, by what its modules give on the way: tokens say little of the scores that chose them."""
        made = _Inside(self.model, self.args, self.kwargs)
        return made if made.output and made.steady else None


class _Inside(Subject):
    """A model that is compared by what each module gave last; what the cut made smaller is left out."""

    differs = "what modules give on the way"

    @property
    def fine(self) -> Subject:
        return self

    def _given(self, model: torch.nn.Module) -> list[torch.Tensor]:
        found: dict[str, list[torch.Tensor]] = {path: [] for path, _ in model.named_modules()}
        hooks = [
            module.register_forward_hook(functools.partial(_kept, found, path))
            for path, module in model.named_modules()
        ]
        try:
            super()._given(model)
        finally:
            for hook in hooks:
                hook.remove()
        return [tensor for tensors in found.values() for tensor in tensors]

    def apart(self, target: list[torch.Tensor], made: list[torch.Tensor]) -> float | None:
        if len(target) != len(made):
            return None
        same = [(one, two) for one, two in zip(target, made) if one.shape == two.shape]
        return furthest([one for one, _ in same], [two for _, two in same])


def _kept(found: dict[str, list[torch.Tensor]], path: str, _module: Any, _args: Any, output: Any) -> None:
    found[path] = [tensor.clone() for tensor in _numbers(output) if tensor.is_floating_point()]


def _not_finite(tensor: torch.Tensor) -> torch.Tensor | None:
    """Where a tensor has no number; None where it has one everywhere, or cannot be asked."""
    if tensor.is_nested or tensor.layout is not torch.strided:
        return None
    wrong = ~torch.isfinite(tensor)
    return wrong if bool(wrong.any()) else None


def is_zero(tensors: Sequence[torch.Tensor]) -> bool:
    """Whether there is nothing else than zeros: no share of them can be told."""
    return not any(bool(tensor.any()) for tensor in tensors)


def furthest(target: Sequence[torch.Tensor], made: Sequence[torch.Tensor]) -> float | None:
    """How far apart those of two outputs are that differ most, None for other shapes.

    In one norm for all, a large tensor would hide a small one; what is rounding beside the others is left out.
    """
    if gap_of(target, made) is None:
        return None
    sizes = [_typical(tensor) for tensor in target]
    least = max(sizes, default=0.0) * allowed(target) / 1000
    gaps = [gap_of([one], [two]) for one, two, size in zip(target, made, sizes) if size > least]
    found = [gap.relative for gap in gaps if gap is not None]
    return max(found) if found else 0.0 if is_zero(made) else float("inf")


def _typical(tensor: torch.Tensor) -> float:
    return float(tensor.float().square().mean().sqrt()) if tensor.numel() else 0.0


def allowed(tensors: Sequence[torch.Tensor]) -> float:
    """How far apart two outputs may be that differ in the order of additions only.

    In double precision that leaves room for programs that compute a part of it in single.
    """
    worst = max((torch.finfo(tensor.dtype).eps for tensor in tensors), default=0.0)
    return min(max(1000 * worst, 1e-5), 0.05)


@contextlib.contextmanager
def unfused() -> Iterator[None]:
    """Torch's attention layers as their parts: fused, they hide what belongs together and skip what is padded."""
    fused = torch.backends.mha.get_fastpath_enabled()
    torch.backends.mha.set_fastpath_enabled(False)
    try:
        yield
    finally:
        torch.backends.mha.set_fastpath_enabled(fused)


def _run(model: torch.nn.Module, args: Any, kwargs: Any) -> list[torch.Tensor]:
    torch.manual_seed(0)
    with unfused(), torch.no_grad():
        return _numbers(model(*args, **kwargs))


def _doubled(item: Any) -> Any:
    return item.double() if isinstance(item, torch.Tensor) and item.is_floating_point() else item


def _numbers(output: Any) -> list[torch.Tensor]:
    """The floating-point tensors of an output; where it has none, all of them."""
    leaves = pytree.tree_leaves(output if not hasattr(output, "to_tuple") else output.to_tuple())
    tensors = [leaf for leaf in leaves if isinstance(leaf, torch.Tensor)]
    floating = [tensor for tensor in tensors if tensor.is_floating_point()]
    return floating or [tensor.double() for tensor in tensors]
