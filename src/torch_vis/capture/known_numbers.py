"""The numbers that a run by shapes does know: masks, positions, counts, and what follows from these alone.

A program decides by them: a mask of ones is left out, positions that follow each other are one sequence, a step count
is raised. They are small and come from what the run was given or makes itself, so each operation all of whose arguments
are known is computed beside the shapes, on real tensors that share memory as the program's do. Weights, activations and
random numbers are never among them. Under an assumption (``ASSUMPTIONS``) also what a router would choose is known.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Mapping
from types import FrameType
from typing import Any, NamedTuple

import torch
from torch._subclasses.fake_tensor import FakeTensor
from torch.utils import _pytree as pytree

from torch_vis.capture.recording.dispatch_mode import is_wrapper
from torch_vis.capture.recording.source_lines import OURS, TORCH, resolve
from torch_vis.capture.undo import Undo, context
from torch_vis.errors import UsageError, no_match
from torch_vis.graph.record import Limit
from torch_vis.graph.schema import Site

aten = torch.ops.aten
CPU = torch.device("cpu")
MOST_ELEMENTS = 1 << 20  # of one tensor; beyond, computing would cost more than it tells
MISSING = object()
RANDOM = torch.Tag.nondeterministic_seeded
BY_NUMBERS = (torch.Tag.data_dependent_output, torch.Tag.dynamic_output_shape)
INDEXING = frozenset({aten.index.Tensor, aten._unsafe_index.Tensor})
EMPTY = frozenset({aten.empty.memory_format, aten.empty_strided.default})
# what is made in the shape of another tensor, and filled with this; None for what is given
LIKE = {
    aten.empty_like.default: 0,
    aten.new_empty.default: 0,
    aten.new_empty_strided.default: 0,
    aten.zeros_like.default: 0,
    aten.new_zeros.default: 0,
    aten.ones_like.default: 1,
    aten.new_ones.default: 1,
    aten.full_like.default: None,
    aten.new_full.default: None,
}
# files that ask for a number and go the same way whatever it is, or the usual way with this one: a scale of updates,
# whether a gradient overflowed
TAKEN = {
    os.path.join("torch", "optim", "_adafactor.py"): 1.0,
    os.path.join("transformers", "optimization.py"): 1.0,
    os.path.join("torch", "amp", "grad_scaler.py"): 0.0,
}
WAITED_FOR_LATER = "_c10d_functional::_wrap_tensor_autograd"
ASSUMPTIONS = {"tokens": ("balanced", "worst")}
"""What can be assumed of numbers that are not known, and how."""


class RealTwin:
    """The real tensor behind a fake one; whatever shares its memory shares ``valid``, a list with one flag."""

    __slots__ = ("tensor", "valid")

    def __init__(self, tensor: torch.Tensor, valid: list[bool] | None = None) -> None:
        self.tensor = tensor
        self.valid = [True] if valid is None else valid


class Plan(NamedTuple):
    """What is known of an operator: whether its results can be known, and which arguments it writes.

    What a ``composite`` one gives may depend on numbers inside it.
    """

    followed: bool
    by_numbers: bool
    written: tuple[int | str, ...]
    chooses: int | None
    composite: bool = False
    talks: bool = False
    """Whether it is a collective that fills its arguments, or the wrapper of one that is waited for later."""


class KnownNumbers:
    """The known numbers of one run, whose fake mode is ``world``."""

    def __init__(self, world: Any, assume: str | None = None) -> None:
        self.world = world
        self.assume = assume
        self.assumed: dict[str, int] = {}
        """How often something was assumed, by what."""
        self.unknown: dict[str, int] = {}
        """The lines that asked for numbers that are not known, and how often."""
        self.taken: dict[tuple[str, float], int] = {}
        """Lines of optimizers for which a number was taken, with the number, and how often."""
        self.plans: dict[Any, Plan] = {}

    @property
    def limits(self) -> list[Limit]:
        """What the run was not given and took for granted."""
        limits = []
        for site, times in self.unknown.items():
            text = (
                f"{site} asks for the numbers of a mask or of positions that are not known{_often(times)}: the way "
                "was taken that suits any numbers, and with real ones the run may do and hold less; give them as real "
                "tensors on the CPU"
            )
            limits.append(Limit(text, kind="branch", site=site))
        for (site, number), times in self.taken.items():
            text = f"{site} asks for a number that is not known, taken to be {number:g}{_often(times)}"
            limits.append(Limit(text, kind="branch", site=site))
        for text, times in self.assumed.items():
            text = f"assumed, as asked for ({self.assume}): {text}{_often(times)}"
            limits.append(Limit(text, kind="branch"))
        return limits

    def note_unknown(self, site: Site | None) -> None:
        """Remember a line that asked for numbers that are not known."""
        name = "an unknown line" if site is None else site.short
        self.unknown[name] = self.unknown.get(name, 0) + 1

    # ---------------------------------------------------------------- one tensor

    @staticmethod
    def of(tensor: Any) -> torch.Tensor | None:
        """The numbers of a fake tensor, or None."""
        numbers = tensor.__dict__.get("_numbers")
        return numbers.tensor if numbers is not None and numbers.valid[0] else None

    @staticmethod
    def give(tensor: Any, real: torch.Tensor, valid: list[bool] | None = None) -> None:
        """Let these be the numbers of a fake tensor."""
        tensor._numbers = RealTwin(real, valid)

    @staticmethod
    def forget(tensor: Any) -> None:
        """Nothing is known of a tensor, and of what shares its memory, any more."""
        numbers = tensor.__dict__.get("_numbers")
        if numbers is not None:
            numbers.valid[0] = False

    # ---------------------------------------------------------------- one operation

    def plan(self, func: Any) -> Plan:
        """What is known of an operator."""
        plan = self.plans.get(func)
        if plan is None:
            plan = self.plans[func] = _plan(func)
        return plan

    def answer(self, func: Any, args: Any, kwargs: Any, rule: Callable[..., Any]) -> Any:
        """What an operation gives whose result is a number or as large as numbers say; MISSING where it is not known.

        ``rule`` is the operation on shapes.
        """
        if func not in INDEXING:
            real = self._compute(func, args, kwargs)
            if real is not MISSING:
                like = next(item for item in pytree.arg_tree_leaves(*args, **kwargs) if _is_fake(item))
                return pytree.tree_map_only(torch.Tensor, lambda part: self._shown(part, like), real)
            rule_for = BY_MASK.get(func)
            if rule_for is not None:
                return rule_for(self, *args, **kwargs)
            return self._taken(args[0].dtype) if func is aten._local_scalar_dense.default else MISSING
        indices = self._without_masks(args[1])
        return MISSING if indices is None else rule(args[0], indices, *args[2:], **kwargs)

    def follow(self, plan: Plan, func: Any, args: Any, kwargs: Any, out: Any) -> None:
        """Work out the numbers of what an operation gave, and forget those that it wrote over."""
        if func in LIKE and type(out) is FakeTensor and _is_small(out):
            # of the first argument it looks at the shape alone
            if self.assume is not None or not out.dtype.is_floating_point:
                self._fill(func, args, kwargs, out)
            return
        if func is aten.resize_.default and _keeps_shape(args):
            return
        if not plan.followed or not self._are_known(args):
            if plan.written:
                self._forget(plan.written, args, kwargs)
            if self.assume is not None and plan.chooses is not None:
                self._choose(func, plan.chooses, args, kwargs, out)
            return
        if not plan.written and not _is_small(out):
            return
        real = self._compute(func, args, kwargs)
        if real is MISSING:
            self._forget(plan.written, args, kwargs)
        elif not plan.written or not _returns_written(func):
            self._attach(func, args, kwargs, out, real)

    def _fill(self, func: Any, args: Any, kwargs: Any, out: Any) -> None:
        """The numbers of a tensor made like another one; what is read before it is written may be anything."""
        filled = LIKE[func]
        number = filled if filled is not None else kwargs.get("fill_value", args[-1])
        if isinstance(number, (bool, int, float)):
            with torch._C._DisableTorchDispatch():
                real = torch.full(out.shape, number, dtype=out.dtype)
                self.give(out, torch.empty_strided(out.shape, out.stride(), dtype=out.dtype).copy_(real))

    def _taken(self, dtype: torch.dtype) -> Any:
        """A number for code that scales by it and goes the same way with any other; else MISSING."""
        frame: FrameType | None = sys._getframe(1)
        while frame is not None:
            file = frame.f_code.co_filename
            number = next((number for ending, number in TAKEN.items() if file.endswith(ending)), None)
            if number is not None:
                site = str(resolve(frame.f_code, frame.f_lasti).short)
                self.taken[site, number] = self.taken.get((site, number), 0) + 1
                return bool(number) if dtype == torch.bool else number
            if not file.startswith((TORCH, OURS)):
                return MISSING
            frame = frame.f_back
        return MISSING

    def _compute(self, func: Any, args: Any, kwargs: Any) -> Any:
        """The operation on known numbers; MISSING where one is not known, or the kernel refuses."""
        leaves, spec = pytree.tree_flatten((args, kwargs))
        for position, item in enumerate(leaves):
            if isinstance(item, torch.Tensor):
                known = self.of(item) if _is_fake(item) else None
                if known is None:
                    return MISSING
                leaves[position] = known
            elif isinstance(item, torch.device):
                leaves[position] = CPU
        args, kwargs = pytree.tree_unflatten(leaves, spec)
        with torch._C._DisableTorchDispatch(), torch.no_grad():
            try:
                real = func(*args, **kwargs)
            except (RuntimeError, NotImplementedError, IndexError):
                return MISSING
            if func in EMPTY and isinstance(real, torch.Tensor):
                # what is read before it is written may be anything
                real.zero_()
        return real

    def _attach(self, func: Any, args: Any, kwargs: Any, out: Any, real: Any) -> None:
        shown, computed = pytree.tree_leaves(out), pytree.tree_leaves(real)
        if len(shown) != len(computed):
            return
        shared: dict[int, list[bool]] | None = None
        for fake, known in zip(shown, computed):
            if not _is_fake(fake) or not isinstance(known, torch.Tensor) or fake.shape != known.shape:
                continue
            if fake.dtype != known.dtype:
                continue
            if shared is None:
                given = [item for item in pytree.arg_tree_leaves(*args, **kwargs) if _is_fake(item)]
                shared = {
                    item._numbers.tensor.untyped_storage()._cdata: item._numbers.valid for item in given
                }
            self.give(fake, known, shared.get(known.untyped_storage()._cdata))

    def _are_known(self, args: Any) -> bool:
        """Whether every tensor among positional arguments has numbers; those by keyword are looked at later."""
        for item in args:
            if type(item) is FakeTensor:
                numbers = item.__dict__.get("_numbers")
                if numbers is None or not numbers.valid[0]:
                    return False
            elif type(item) in (list, tuple) and item and not self._are_known(item):
                return False
        return True

    def _forget(self, written: tuple[int | str, ...], args: Any, kwargs: Any) -> None:
        for place in written:
            item = kwargs.get(place) if isinstance(place, str) else args[place] if place < len(args) else None
            for tensor in item if isinstance(item, (list, tuple)) else (item,):
                numbers = tensor.__dict__.get("_numbers") if _is_fake(tensor) else None
                if numbers is not None:
                    numbers.valid[0] = False

    def _shown(self, real: torch.Tensor, like: FakeTensor) -> Any:
        """A fake tensor with these numbers."""
        with self.world:
            out = torch.empty_strided(real.shape, real.stride(), dtype=real.dtype, device=like.fake_device)
        self.give(out, real)
        return out

    # ---------------------------------------------------------------- masks

    def _without_masks(self, indices: Any) -> list[Any] | None:
        """Indices with every mask as the positions that it has; None where there is no mask."""
        if not any(_is_fake(item) and item.dtype in (torch.bool, torch.uint8) for item in indices):
            return None
        result: list[Any] = []
        for item in indices:
            if not _is_fake(item) or item.dtype not in (torch.bool, torch.uint8):
                result.append(item)
                continue
            mask = self.mask(item)
            if mask is None:
                return None
            with torch._C._DisableTorchDispatch():
                parts = mask.nonzero(as_tuple=True)
            result += [self._shown(part, item) for part in parts]
        return result

    def mask(self, tensor: FakeTensor) -> torch.Tensor | None:
        """The numbers of a mask, known or assumed."""
        known = self.of(tensor)
        if known is not None or self.assume is None or tensor.numel() > 64 * MOST_ELEMENTS:
            return known
        self._count(
            "a mask that nothing is known of", "all of it" if self.assume == "worst" else "every other one"
        )
        with torch._C._DisableTorchDispatch():
            mask = torch.ones(tensor.shape, dtype=torch.bool)
            if self.assume != "worst":
                mask.view(-1)[1::2] = False
        return mask

    def positions(self, tensor: FakeTensor) -> Any:
        """The result of ``nonzero``."""
        mask = self.mask(tensor)
        if mask is None:
            return MISSING
        with torch._C._DisableTorchDispatch():
            positions = mask.nonzero()
        return self._shown(positions, tensor)

    def selected(self, tensor: FakeTensor, mask: FakeTensor) -> Any:
        """The result of ``masked_select``."""
        known = self.mask(mask)
        if known is None:
            return MISSING
        shape = torch.broadcast_shapes(tensor.shape, known.shape)
        with torch._C._DisableTorchDispatch():
            size = int(known.expand(shape).sum())
        with self.world:
            return tensor.new_empty(size)

    # ---------------------------------------------------------------- what a router would choose

    def _choose(self, func: Any, position: int, args: Any, kwargs: Any, out: Any) -> None:
        """Let the indices that an operation chose be those of the assumption."""
        indices = out[position] if isinstance(out, (tuple, list)) else out
        scores = args[0]
        if (
            not _is_fake(indices)
            or not _is_fake(scores)
            or indices.dtype != torch.int64
            or not indices.numel()
        ):
            return
        if indices.numel() > 64 * MOST_ELEMENTS:
            return
        dim = _dimension(func, args, kwargs, scores)
        if dim is None:
            return
        options = scores.shape[dim]
        chosen = indices.shape[dim] if indices.dim() == scores.dim() else 1
        with torch._C._DisableTorchDispatch():
            rows = torch.arange(indices.numel() // max(chosen, 1)).unsqueeze(-1)
            first = rows * chosen if self.assume == "balanced" else torch.zeros_like(rows)
            real = (first + torch.arange(chosen)) % options
            if indices.dim() == scores.dim():
                moved = [size for place, size in enumerate(indices.shape) if place != dim]
                real = real.view(*moved, chosen).movedim(-1, dim)
            else:
                real = real.view(indices.shape)
            self.give(indices, real.contiguous())
        share = "evenly" if self.assume == "balanced" else "all alike"
        self._count(f"which of {options:,} each row takes", share)

    def _count(self, what: str, how: str) -> None:
        text = f"{what}: {how}"
        self.assumed[text] = self.assumed.get(text, 0) + 1


BY_MASK: dict[Any, Callable[..., Any]] = {
    aten.nonzero.default: KnownNumbers.positions,
    aten.masked_select.default: KnownNumbers.selected,
}
# operators that choose among options by score, with the place of the indices in what they give
CHOICES = {
    aten.topk.default: 1,
    aten.sort.default: 1,
    aten.sort.stable: 1,
    aten.argsort.default: 0,
    aten.argmax.default: 0,
    aten.argmin.default: 0,
    aten.max.dim: 1,
    aten.min.dim: 1,
    aten.multinomial.default: 0,
}


def assumption(assume: Mapping[str, str] | None) -> str | None:
    """How the tokens of a router are taken to be spread; None where nothing is to be assumed.

    >>> assumption({"tokens": "balanced"})
    'balanced'
    """
    if assume is None:
        return None
    if not isinstance(assume, Mapping):
        raise UsageError(
            f"assume is a dictionary such as {{'tokens': 'balanced'}}, not {type(assume).__name__}"
        )
    for name, how in assume.items():
        if name not in ASSUMPTIONS:
            raise no_match("assumption", str(name), [*ASSUMPTIONS])
        if how not in ASSUMPTIONS[name]:
            raise no_match(f"assumption about {name}", str(how), [*ASSUMPTIONS[name]])
    return assume.get("tokens")


def _keeps_shape(args: Any) -> bool:
    """Whether a tensor is resized to the shape that its numbers have."""
    known = KnownNumbers.of(args[0])
    return known is not None and tuple(args[1]) == tuple(known.shape)


def _often(times: int) -> str:
    return f" ({times:,} times)" if times > 1 else ""


def _plan(func: Any) -> Plan:
    schema = getattr(func, "_schema", None)
    if schema is None:
        return Plan(False, False, (), None)
    tags = func.tags
    written: list[int | str] = []
    for position, argument in enumerate(schema.arguments):
        if argument.alias_info is not None and argument.alias_info.is_write:
            written.append(argument.name if argument.kwarg_only else position)
    namespace = schema.name.partition("::")[0]
    in_place_view = torch.Tag.inplace_view in tags and func is not aten.detach_.default
    followed = namespace in ("aten", "prims") and RANDOM not in tags and not in_place_view
    by_numbers = func in INDEXING or any(tag in tags for tag in BY_NUMBERS)
    composite = namespace == "aten" and func.has_kernel_for_dispatch_key(
        torch._C.DispatchKey.CompositeImplicitAutograd
    )
    talks = namespace == "c10d" or schema.name == WAITED_FOR_LATER
    return Plan(followed, by_numbers, tuple(written), CHOICES.get(func), composite, talks)


def _returns_written(func: Any) -> bool:
    """Whether an operator gives back nothing but what it wrote to."""
    return all(item.alias_info is not None and item.alias_info.is_write for item in func._schema.returns)


def _is_fake(item: Any) -> bool:
    return type(item) is FakeTensor


def _is_small(out: Any) -> bool:
    if type(out) is FakeTensor:
        return bool(out.numel() <= MOST_ELEMENTS or out.untyped_storage().nbytes() <= MOST_ELEMENTS)
    return isinstance(out, (tuple, list)) and all(_is_small(item) or item is None for item in out)


def _dimension(func: Any, args: Any, kwargs: Any, scores: FakeTensor) -> int | None:
    """Along which dimension an operator chooses; None for all elements at once."""
    for position, argument in enumerate(func._schema.arguments):
        if argument.name == "dim":
            given = args[position] if position < len(args) and not argument.kwarg_only else None
            dim = kwargs.get("dim", argument.default_value if given is None else given)
            return None if dim is None else int(dim) % max(scores.dim(), 1)
    return scores.dim() - 1


@context
def numbers_for_python(
    undo: Undo, known: KnownNumbers, twin_of: Callable[[torch.Tensor], torch.Tensor]
) -> None:
    """Let ``tolist`` and ``numpy`` give the numbers that are known, in one reading as of a real tensor."""
    before = {name: torch.Tensor.__dict__.get(name, MISSING) for name in ("tolist", "numpy")}
    of_fakes = FakeTensor.__dict__.get("tolist", MISSING)

    def reading(name: str) -> Any:
        otherwise = getattr(torch.Tensor, name)

        def method(self: torch.Tensor, *args: Any, **kwargs: Any) -> Any:
            if type(self) is FakeTensor and self.fake_mode is not known.world:
                real = None
            else:
                twin = self if is_wrapper(type(self)) else twin_of(self)
                real = known.of(twin) if type(twin) is FakeTensor else None
            if real is not None:
                with torch._C._DisableTorchDispatch():
                    return otherwise(real.clone())
            if name == "tolist" and type(self) is FakeTensor and of_fakes is not MISSING:
                return of_fakes(self)
            return otherwise(self, *args, **kwargs)

        method.__name__ = name
        method.__doc__ = getattr(otherwise, "__doc__", None)
        return method

    if of_fakes is not MISSING:
        undo.add(setattr, FakeTensor, "tolist", of_fakes)
        del FakeTensor.tolist
    for name, original in before.items():
        undo.add(_put_back, name, original)
        setattr(torch.Tensor, name, reading(name))


def _put_back(name: str, original: Any) -> None:
    if original is not MISSING:
        setattr(torch.Tensor, name, original)
    elif name in torch.Tensor.__dict__:
        delattr(torch.Tensor, name)
