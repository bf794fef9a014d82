"""What a run by shapes knows: the numbers of masks, positions and counts, and what operations gave on shapes before.

A program decides by them: a mask of ones is left out, positions that follow each other are one sequence, a step count
is raised. They are small and come from what the run was given or makes itself, so each operation all of whose arguments
are known is computed beside the shapes, on real tensors that share memory as the program's do. Weights and activations
are never among them.

A random number by itself (whether a layer is skipped) is taken to be the middle of its range, and activations of which
a program asks if they are finite to be so; ``limits`` names the lines that decide by either. Under an assumption
(``ASSUMPTIONS``) also what a router would choose is known.
"""

from __future__ import annotations

import math
import os
import sys
from collections.abc import Callable, Mapping
from threading import get_ident
from types import FrameType
from typing import Any, ClassVar, NamedTuple

import torch
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode
from torch.utils import _pytree as pytree

from torch_vis.capture.modes import without_gradients
from torch_vis.capture.recording.dispatch_mode import is_wrapper
from torch_vis.capture.recording.source_lines import OURS, TORCH, resolve
from torch_vis.capture.undo import Undo, context
from torch_vis.errors import UsageError, no_match
from torch_vis.graph.run import Limit
from torch_vis.graph.schema import Site

aten = torch.ops.aten
CPU = torch.device("cpu")
MOST_ELEMENTS = 1 << 20  # of one tensor; beyond, computing would cost more than it tells
MOST_DRAWN = 16  # random numbers at once: beyond, they are noise, and no program decides by it
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
FUNCTIONAL = "_c10d_functional::"
WAITED_FOR_LATER = f"{FUNCTIONAL}_wrap_tensor_autograd"
ASSUMPTIONS = {"tokens": ("balanced", "worst")}
"""What can be assumed of numbers that are not known, and how."""


class RealTwin:
    """The real tensor behind a fake one; whatever shares its memory shares ``valid``, a list with one flag.

    ``taken`` says of numbers that were not known what they were taken for.
    """

    __slots__ = ("taken", "tensor", "valid")

    def __init__(self, tensor: torch.Tensor, valid: list[bool] | None = None, *, taken: str = "") -> None:
        self.tensor = tensor
        self.valid = [True] if valid is None else valid
        self.taken = taken


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
    """Whether it is a collective, or a wait for what one gives."""
    is_bookkeeping: bool = False
    """Whether it is about no tensor at all: a range of a profiler."""
    is_like: bool = False
    """Whether it makes a tensor in the shape of another one."""
    asks_if_finite: bool = False
    draws: bool = False
    """Whether it draws random numbers, of which a few are taken to be the middle of their range."""
    func: Any = None
    """The operator; held, so that no other gets its number."""


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
        self.decided: dict[tuple[str, str], int] = {}
        """Lines that decided by a number that was taken for another, with what it was taken for, and how often."""
        self.exchanged: dict[str, Limit] = {}
        """What is said of numbers that ranks exchange, by the kind of the collective."""
        self.plans: dict[int, Plan] = {}
        """By the number of an operator: torch computes its hash in Python."""
        self.any_number = False
        """Whether a program that asks for a number that is not known gets one, as a script does that prints it."""

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
        for (site, taken), times in self.decided.items():
            text = f"{site} decides by {taken}{_often(times)}: with other numbers it may go another way"
            limits.append(Limit(text, kind="branch", site=site))
        limits += self.exchanged.values()
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
    def give(tensor: Any, real: torch.Tensor, valid: list[bool] | None = None, *, taken: str = "") -> None:
        """Let these be the numbers of a fake tensor."""
        tensor._numbers = RealTwin(real, valid, taken=taken)

    @staticmethod
    def forget(tensor: Any) -> None:
        """Nothing is known of a tensor, and of what shares its memory, any more."""
        numbers = tensor.__dict__.get("_numbers")
        if numbers is not None:
            numbers.valid[0] = False

    # ---------------------------------------------------------------- one operation

    def plan(self, func: Any) -> Plan:
        """What is known of an operator."""
        plan = self.plans.get(id(func))
        if plan is None:
            plan = self.plans[id(func)] = _plan(func)._replace(
                is_like=func in LIKE, asks_if_finite=func in ASKS_IF_FINITE, draws=func in DRAWS, func=func
            )
        return plan

    def answer(self, func: Any, args: Any, kwargs: Any, rule: Callable[..., Any]) -> Any:
        """What an operation gives whose result is a number or as large as numbers say; MISSING where it is not known.

        ``rule`` is the operation on shapes.
        """
        if func not in INDEXING:
            real = self._compute(func, args, kwargs)
            if real is not MISSING:
                self._note_taken(args)
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
        if plan.is_like and type(out) is FakeTensor and _is_small(out):
            # of the first argument it looks at the shape alone
            if self.assume is not None or not out.dtype.is_floating_point:
                self._fill(func, args, kwargs, out)
            return
        if func is aten.resize_.default and _keeps_shape(args):
            return
        if plan.asks_if_finite and self._take_as_finite(func, args, out):
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

    def draw(self, func: Any, args: Any, kwargs: Any, out: Any) -> None:
        """The number of a random draw: the middle of its range."""
        if type(out) is not FakeTensor or out.numel() > MOST_DRAWN:
            return
        number = DRAWS[func](*args, **{name: value for name, value in kwargs.items() if name in RANGE})
        with torch._C._DisableTorchDispatch():
            self.give(
                out, torch.full(out.shape, number, dtype=torch.float64).to(out.dtype), taken=RANDOM_NUMBER
            )

    def _note_taken(self, args: Any) -> None:
        """Remember the line that decides by a number that was taken for another."""
        reasons = [item._numbers.taken for item in pytree.arg_tree_leaves(*args) if _is_fake(item)]
        taken = next((reason for reason in reasons if reason), "")
        if not taken:
            return
        frame: FrameType | None = sys._getframe(1)
        while frame is not None and frame.f_code.co_filename.startswith((TORCH, OURS)):
            frame = frame.f_back
        site = "an unknown line" if frame is None else str(resolve(frame.f_code, frame.f_lasti).short)
        self.decided[site, taken] = self.decided.get((site, taken), 0) + 1

    def _take_as_finite(self, func: Any, args: Any, out: Any) -> bool:
        """Let numbers that are not known be finite where an operation asks for just that."""
        if type(out) is not FakeTensor or not _is_fake(args[0]):
            return False
        answer = None
        if func in OF_ITSELF and args[1] is args[0]:
            answer = OF_ITSELF[func]
        elif func in OF_INFINITY and isinstance(args[1], float) and math.isinf(args[1]):
            answer = OF_INFINITY[func]
        elif func in NOT_FINITE:
            answer = False
        elif func in UNIFORM and all(self._is_uniform(item) for item in args):
            single = [item._numbers.tensor.as_strided((), ()) for item in args]
            with torch._C._DisableTorchDispatch():
                answer = bool(func(*single))
        if answer is None:
            return False
        with torch._C._DisableTorchDispatch():
            self.give(out, torch.full((), answer).expand(out.shape), taken=FINITE)
        return True

    def _is_uniform(self, item: Any) -> bool:
        """Whether all elements of a tensor are one number in memory, which was taken."""
        known = self.of(item) if _is_fake(item) else None
        return known is not None and item._numbers.taken == FINITE and not any(known.stride())

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
                if not self.any_number:
                    return MISSING
                site = str(resolve(frame.f_code, frame.f_lasti).short)
                self.taken[site, 1.0] = self.taken.get((site, 1.0), 0) + 1
                return True if dtype == torch.bool else 1.0 if dtype.is_floating_point else 1
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
        with torch._C._DisableTorchDispatch(), without_gradients():
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
        taken = ""
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
                taken = next((item._numbers.taken for item in given if item._numbers.taken), "")
            self.give(fake, known, shared.get(known.untyped_storage()._cdata), taken=taken)

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
# what is taken, in the words of limits
RANDOM_NUMBER = "a random number, taken to be the middle of its range"
FINITE = "whether numbers are finite, taken to be so"
# ways to ask for what is finite, with the answer where all is: ``isfinite(x)`` is ``(x == x) * (abs(x) != inf)``
OF_ITSELF = {aten.eq.Tensor: True, aten.ne.Tensor: False}
OF_INFINITY = {aten.ne.Scalar: True, aten.eq.Scalar: False}
NOT_FINITE = frozenset({aten.isnan.default, aten.isinf.default, aten.isposinf.default, aten.isneginf.default})
UNIFORM = frozenset(
    {
        aten.mul.Tensor,
        aten.bitwise_and.Tensor,
        aten.bitwise_or.Tensor,
        aten.bitwise_not.default,
        aten.logical_and.default,
        aten.logical_or.default,
        aten.logical_not.default,
    }
)
ASKS_IF_FINITE = frozenset({*OF_ITSELF, *OF_INFINITY, *NOT_FINITE, *UNIFORM})
# the middle of what random operators draw, given their arguments
RANGE = frozenset({"low", "high", "from", "to", "p", "mean"})
DRAWS: dict[Any, Callable[..., float]] = {
    aten.rand.default: lambda *_, **__: 0.5,
    aten.rand.generator: lambda *_, **__: 0.5,
    aten.rand_like.default: lambda *_, **__: 0.5,
    aten.randn.default: lambda *_, **__: 0.0,
    aten.randn.generator: lambda *_, **__: 0.0,
    aten.randn_like.default: lambda *_, **__: 0.0,
    aten.randint.default: lambda high, *_, **__: high // 2,
    aten.randint.low: lambda low, high, *_, **__: (low + high) // 2,
    aten.uniform_.default: lambda _, low=0.0, high=1.0, **limits: (
        (limits.get("from", low) + limits.get("to", high)) / 2
    ),
    aten.normal_.default: lambda _, mean=0.0, *__, **___: mean,
    aten.bernoulli_.float: lambda _, p=0.5, *__, **___: float(p > 0.5),
    aten.bernoulli.p: lambda _, p=0.5, *__, **___: float(p > 0.5),
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
    talks = namespace == "c10d" or schema.name == WAITED_FOR_LATER or schema.name.startswith(FUNCTIONAL)
    is_bookkeeping = namespace == "profiler"
    return Plan(followed, by_numbers, tuple(written), CHOICES.get(func), composite, talks, is_bookkeeping)


def _returns_written(func: Any) -> bool:
    """Whether an operator returns only tensors that it wrote to."""
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
    thread = get_ident()
    before = {name: torch.Tensor.__dict__.get(name, MISSING) for name in ("tolist", "numpy")}
    of_fakes = FakeTensor.__dict__.get("tolist", MISSING)

    def reading(name: str) -> Any:
        otherwise = getattr(torch.Tensor, name)

        def method(self: torch.Tensor, *args: Any, **kwargs: Any) -> Any:
            # a real tensor of another thread is no part of this run
            elsewhere = type(self) is not FakeTensor and get_ident() != thread
            if elsewhere or (type(self) is FakeTensor and self.fake_mode is not known.world):
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


# ---------------------------------------------------------------- what operations gave before

# Torch remembers what an operation gives by all that is known of its arguments. Where it has answered from its memory
# once, the answer depends on that alone, and is remembered here under a key that is as exact and cheaper to make.
PROXY = torch._C._TorchDispatchModeKey.PROXY
# types of arguments that go into a key as they are
LITERALS = frozenset(
    {
        int, float, bool, complex, str, type(None),
        torch.dtype, torch.layout, torch.memory_format, torch.device,
    }
)  # fmt: skip
Key = tuple[Any, ...]
# operators of which torch remembers nothing, though what they give follows from all that a key says: from the sizes and
# counts that they are given, whatever group of ranks they name
BY_SHAPES_ALONE = frozenset(
    {
        "aten::_foreach_copy_",
        "aten::_unsafe_view",
        "aten::split_with_sizes",
        "fsdp::all_gather_copy_in",
        "fsdp::chunk_cat",
        "fsdp::split_with_sizes_copy",
        *(
            f"{FUNCTIONAL}{name}{ending}"
            for name in ("all_gather_into_tensor", "all_reduce", "reduce_scatter_tensor")
            for ending in ("", "_coalesced")
        ),
        f"{FUNCTIONAL}all_to_all_single",
        f"{FUNCTIONAL}broadcast",
    }
)
# what is remembered at most, and the longest key: lists of a model's parameters are seldom seen twice
MOST_RECIPES, LONGEST_KEY = 50_000, 4_000


class NotRemembered(Exception):
    """An argument of which a key does not say all that matters."""


class Recipe(NamedTuple):
    """How one tensor that an operation gives is made."""

    argument: int
    """It is this argument itself; -1 if it is a new tensor."""
    memory: int
    """It lies in the memory of this argument; -1 if it has its own."""
    shape: tuple[int, ...] = ()
    stride: tuple[int, ...] = ()
    offset: int = 0
    dtype: torch.dtype | None = None
    device: torch.device | None = None
    requires_grad: bool = False


def answers() -> tuple[int, int]:
    """How often torch's fake modes have answered from their memory so far, and how often they could not."""
    mode = FakeTensorMode
    return mode.cache_hits, mode.cache_misses + sum(mode.cache_bypasses.values())


class Several(NamedTuple):
    """How a tuple or a list of tensors is made."""

    kind: type
    parts: tuple[Recipe | None, ...]


class RememberedShapes:
    """What one fake mode makes of what all of them remember: shapes are the same in every run."""

    _recipes: ClassVar[dict[Key, Recipe | Several | None]] = {}

    def __init__(self, mode: FakeTensorMode) -> None:
        self.mode = mode
        # what a new fake tensor of a device knows of itself
        self._patterns: dict[torch.device, dict[str, Any]] = {}
        self.is_on = mode.shape_env is None and not mode.cache_crosscheck_enabled
        """Whether anything is remembered."""
        bindings: Any = torch._C
        self._refuse_data = (
            bindings._set_warn_deprecated_on_mutable_data_ptr
            if mode._allow_unsafe_data_ptr_access
            else bindings._set_throw_on_mutable_data_ptr
        )

    @staticmethod
    def follows_shapes(func: Any) -> bool:
        """Whether all that an operator does with shapes follows from the key, though torch does not remember it."""
        return func._schema.name in BY_SHAPES_ALONE

    def key(self, func: Any, args: Any, kwargs: Any) -> Key | None:
        """What says all that the result depends on; None where something does not go into a key."""
        if not self.is_on or not self.mode.cache_enabled or type(func) is not torch._ops.OpOverload:
            return None
        # in inference other tensors are made, and a compiler that traces follows them itself
        if torch.is_inference_mode_enabled() or torch._C._get_dispatch_mode(PROXY) is not None:
            return None
        key: list[Any] = [func, torch.get_default_dtype(), torch._C._get_default_device()]
        try:
            self._add(args, key)
            if kwargs:
                for name, item in kwargs.items():
                    key.append(name)
                    self._add((item,), key)
        except NotRemembered:
            return None
        return tuple(key)

    def _add(self, items: Any, key: list[Any]) -> None:
        for item in items:
            kind = type(item)
            if kind is FakeTensor:
                if (
                    item.fake_mode is not self.mode
                    or item.constant is not None
                    or item.layout is not torch.strided
                    or item.is_conj()
                    or item.is_neg()
                    or item.is_inference()
                ):
                    raise NotRemembered
                key += (
                    FakeTensor,
                    item.dtype,
                    item.shape,
                    item.stride(),
                    item.storage_offset(),
                    item.untyped_storage().nbytes(),
                    item.requires_grad,
                    item.fake_device,
                )
            elif kind in LITERALS:
                # 1, 1.0 and True are equal, and different arguments
                key += (kind, item)
            elif kind is list or kind is tuple:
                key += (kind, len(item))
                self._add(item, key)
            else:
                raise NotRemembered

    def make(self, key: Key, args: Any) -> Any:
        """What an operation gave before, made anew; MISSING where nothing is remembered."""
        recipe: Any = self._recipes.get(key, MISSING)
        if type(recipe) is Recipe:
            return self._made(recipe, args)
        if type(recipe) is Several:
            kind, parts = recipe
            return kind(None if part is None else self._made(part, args) for part in parts)
        return recipe

    def _made(self, recipe: Recipe, args: Any) -> Any:
        argument, memory, shape, stride, offset, dtype, device, requires_grad = recipe
        if argument >= 0:
            return args[argument]
        with torch._C._DisableTorchDispatch():
            if memory < 0:
                shapes = torch.empty_strided(shape, stride, dtype=dtype, device="meta")
            else:
                shapes = torch.empty(0, dtype=dtype, device="meta")
                shapes.set_(args[memory].untyped_storage(), offset, shape, stride)
            made: Any = torch.Tensor._make_subclass(
                FakeTensor,
                shapes,
                requires_grad,
                dispatch_device=True,
                device_for_backend_keys=device,
            )
        self._refuse_data(made)
        pattern = self._patterns.get(device)  # type: ignore[arg-type]
        made.__dict__.update(self._new_pattern(device) if pattern is None else pattern)
        return made

    def _new_pattern(self, device: Any) -> dict[str, Any]:
        with torch._C._DisableTorchDispatch():
            shapes = torch.empty(0, device="meta")
            pattern = self._patterns[device] = dict(FakeTensor(self.mode, shapes, device).__dict__)
        return pattern

    def learn(self, key: Key, func: Any, args: Any, out: Any) -> None:
        """Remember what torch answered from its own memory, or what follows from the key alone."""
        if len(key) > LONGEST_KEY:
            return
        recipe: Recipe | Several | None = None
        if type(out) is tuple or type(out) is list:
            parts = [None if part is None else self._recipe(func, args, part) for part in out]
            if any(recipe is None and part is not None for part, recipe in zip(out, parts)):
                return
            recipe = Several(type(out), tuple(parts))
        elif out is not None:
            recipe = self._recipe(func, args, out)
            if recipe is None:
                return
        if len(self._recipes) >= MOST_RECIPES:
            self._recipes.clear()
        self._recipes[key] = recipe

    def _recipe(self, func: Any, args: Any, out: Any) -> Recipe | None:
        if type(out) is not FakeTensor or out.layout is not torch.strided or out.is_quantized:
            return None
        for place, item in enumerate(args):
            if item is out:
                return Recipe(place, -1)
        if out.constant is not None or out.is_conj() or out.is_neg() or out.is_inference():
            return None
        memory = self._memory(args, out)
        if memory is None or (func.is_view and memory < 0):
            return None
        device = out.fake_device
        recipe = Recipe(
            -1, memory, tuple(out.shape), out.stride(), int(out.storage_offset()), out.dtype, device,
            out.requires_grad,
        )  # fmt: skip
        # as torch does when it remembers: what is made has to be dispatched alike
        made = self._made(recipe, args)
        alike = torch._C._dispatch_key_set(made) == torch._C._dispatch_key_set(out)
        same_size = made.untyped_storage().nbytes() == out.untyped_storage().nbytes()
        return recipe if alike and same_size and made.__dict__.keys() == out.__dict__.keys() else None

    @staticmethod
    def _memory(args: Any, out: FakeTensor) -> int | None:
        """The argument in whose memory a tensor lies; -1 if it has its own, None if it is no single argument's."""
        address = out.untyped_storage()._cdata
        for place, item in enumerate(args):
            if type(item) is FakeTensor:
                if item.untyped_storage()._cdata == address:
                    return place
            elif type(item) in (list, tuple):
                given = [part for part in pytree.tree_leaves(item) if type(part) is FakeTensor]
                if any(part.untyped_storage()._cdata == address for part in given):
                    return None
        return -1
