"""Edits: what is put in the place of a tensor. They work alike in a rerun, a trace and a live run, and on gradients.

An edit is given the tensor that is there, or the slice of it that was selected, and gives one of the same shape,
element type and device. It is made of ordinary operations, so that gradients pass through it, and draws from no
random stream of the program.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import torch

from torch_vis.capture.containers import named_tensors
from torch_vis.errors import UsageError
from torch_vis.graph.query.selector import selector


class EditPlace(NamedTuple):
    """Where an edit acts: the name of the place, and how often it was called before."""

    name: str
    call: int = 0


class Edit:
    """Something to put in the place of a tensor; ``tv.edit`` has them."""

    def __init__(self, name: str, change: Callable[[torch.Tensor, EditPlace], torch.Tensor]) -> None:
        self.name = name
        self._change = change

    def __call__(self, tensor: torch.Tensor, place: EditPlace | None = None) -> torch.Tensor:
        place = place or EditPlace("")
        try:
            return self._change(tensor, place)
        except UsageError:
            raise
        # NotImplementedError is a RuntimeError
        except (RuntimeError, IndexError, TypeError, ValueError) as error:
            at = place.name or "this tensor"
            form = f"{str(tensor.dtype).removeprefix('torch.')} of shape {list(tensor.shape)}"
            reason = str(error).splitlines()[0] if str(error) else type(error).__name__
            raise UsageError(f"{self!r} cannot change {at}, which is {form}: {reason}") from error

    def __repr__(self) -> str:
        return f"tv.edit.{self.name}"


Replacement = torch.Tensor | torch.nn.Module | Edit | Callable[[Any], Any]


def zero() -> Edit:
    """Zeros in its place: zero ablation.

    >>> import torch, torch_vis as tv
    >>> t = tv.trace(torch.nn.Sequential(torch.nn.Linear(3, 2), torch.nn.ReLU()), torch.ones(1, 3))
    >>> t.run(replace={"0": tv.edit.zero()}).output
    tensor([[0., 0.]])
    """
    return Edit("zero()", lambda tensor, _: torch.zeros_like(tensor))


def mean(dim: int | Sequence[int] | None = None) -> Edit:
    """Its mean in its place: mean ablation. Over ``dim``, or over all dimensions but the last.

    >>> import torch, torch_vis as tv
    >>> tv.edit.mean()(torch.tensor([[1.0, 2.0], [3.0, 4.0]]))
    tensor([[2., 3.],
            [2., 3.]])
    """

    def change(tensor: torch.Tensor, place: EditPlace) -> torch.Tensor:
        dims: Any = tuple(range(max(tensor.dim() - 1, 0))) if dim is None else dim
        if not tensor.is_floating_point() and not tensor.is_complex():
            raise UsageError(f"mean() needs a floating tensor; {place.name or 'this'} is {tensor.dtype}")
        return tensor.mean(dims, keepdim=True).expand_as(tensor).clone() if dims != () else tensor

    return Edit("mean()" if dim is None else f"mean({dim})", change)


def scale(factor: float) -> Edit:
    """It times a factor.

    >>> import torch, torch_vis as tv
    >>> tv.edit.scale(0.5)(torch.tensor([2.0, 4.0]))
    tensor([1., 2.])
    """
    return Edit(f"scale({factor})", lambda tensor, _: (tensor * factor).to(tensor.dtype))


def add(vector: torch.Tensor | float, *, factor: float = 1.0) -> Edit:
    """It plus a vector that is broadcast to it, times a factor: steering.

    >>> import torch, torch_vis as tv
    >>> tv.edit.add(torch.tensor([0.0, 1.0]))(torch.zeros(2, 2))
    tensor([[0., 1.],
            [0., 1.]])
    """

    def change(tensor: torch.Tensor, place: EditPlace) -> torch.Tensor:
        added = _alike(vector, tensor) if isinstance(vector, torch.Tensor) else vector
        _broadcasts(added, tensor, place, "add")
        return (tensor + (added if factor == 1.0 else added * factor)).to(tensor.dtype)

    return Edit("add(…)", change)


def clamp(low: float | None = None, high: float | None = None) -> Edit:
    """It, with what is below ``low`` or above ``high`` cut off.

    >>> import torch, torch_vis as tv
    >>> tv.edit.clamp(0, 1)(torch.tensor([-1.0, 0.5, 2.0]))
    tensor([0.0000, 0.5000, 1.0000])
    """
    if low is None and high is None:
        raise UsageError("clamp() needs a lower or an upper bound, or both")
    if isinstance(low, (int, float)) and isinstance(high, (int, float)) and low > high:
        raise UsageError(f"clamp({low}, {high}): the lower bound comes first, and is above the upper one")
    return Edit(f"clamp({low}, {high})", lambda tensor, _: tensor.clamp(low, high))


def noise(std: float, *, seed: int = 0) -> Edit:
    """It plus normal noise, the same in every run of one seed; each call of the module has noise of its own.

    >>> import torch, torch_vis as tv
    >>> bool((tv.edit.noise(0.1)(torch.zeros(3)) == tv.edit.noise(0.1)(torch.zeros(3))).all())
    True
    """

    def change(tensor: torch.Tensor, place: EditPlace) -> torch.Tensor:
        generator = torch.Generator(device=tensor.device).manual_seed(seed + 1_000_003 * place.call)
        drawn = torch.empty_like(tensor, memory_format=torch.contiguous_format, requires_grad=False)
        return tensor + drawn.normal_(0.0, std, generator=generator)

    return Edit(f"noise({std})", change)


def project(direction: torch.Tensor) -> Edit:
    """It without its part along a direction in the last dimension: the direction is projected out.

    >>> import torch, torch_vis as tv
    >>> tv.edit.project(torch.tensor([2.0, 0.0]))(torch.tensor([[3.0, 4.0]]))
    tensor([[0., 4.]])
    """

    def change(tensor: torch.Tensor, place: EditPlace) -> torch.Tensor:
        along = _alike(direction, tensor)
        if along.dim() != 1 or tensor.shape[-1:] != along.shape:
            raise UsageError(
                f"project() takes a direction of {tensor.shape[-1] if tensor.dim() else 1} elements for "
                f"{place.name or 'this tensor'}, not one of shape {list(along.shape)}"
            )
        if not along.any():
            raise UsageError("project() takes a direction; a vector of zeros has none")
        unit = along / along.norm()
        outside: torch.Tensor = tensor - (tensor @ unit).unsqueeze(-1) * unit
        return outside

    return Edit("project(…)", change)


def swap(index: Sequence[int] | torch.Tensor, *, dim: int = 0) -> Edit:
    """It with its rows in another order along a dimension: resampling within a batch.

    >>> import torch, torch_vis as tv
    >>> tv.edit.swap([1, 0])(torch.tensor([[1.0], [2.0]]))
    tensor([[2.],
            [1.]])
    """

    def change(tensor: torch.Tensor, place: EditPlace) -> torch.Tensor:
        order = torch.as_tensor(index, device=tensor.device).reshape(-1)
        if tensor.dim() <= max(dim, -dim - 1) or len(order) != tensor.shape[dim]:
            raise UsageError(
                f"swap() takes an index for each of the rows of {place.name or 'this tensor'}, whose shape is "
                f"{list(tensor.shape)}; {len(order)} were given for dimension {dim}"
            )
        return tensor.index_select(dim, order)

    return Edit("swap(…)", change)


def patch_from(run: Any) -> Edit:
    """What another run has in the same place: activation patching.

    ``run`` is what ``t.run(..., keep="all")``, ``tv.live(..., keep=…)`` or ``tv.trace(..., keep=…)`` gave, with this
    place among what it kept, or its ``kept``; of a slice, the whole will do.

    >>> import torch, torch_vis as tv
    >>> t = tv.trace(torch.nn.Sequential(torch.nn.Linear(3, 2), torch.nn.ReLU()), torch.ones(1, 3))
    >>> other = t.run(torch.zeros(1, 3), keep="all")
    >>> bool((t.run(replace={"0": tv.edit.patch_from(other)}).output == other.output).all())
    True
    """

    def change(tensor: torch.Tensor, place: EditPlace) -> torch.Tensor:
        taken = _kept_at(run, place, tensor)
        # a copy: the program may write to what it is handed
        return taken.to(dtype=tensor.dtype, device=tensor.device, copy=True)

    return Edit("patch_from(…)", change)


def _kept_at(run: Any, place: EditPlace, tensor: torch.Tensor) -> torch.Tensor:
    """What another run kept at a place; of an edge, what it is from."""
    place = place._replace(name=place.name.removesuffix(" ->"))
    value_at = getattr(run, "value_at", None)
    if value_at is not None:
        at_place: torch.Tensor | None = value_at(place.name)
        if at_place is not None:
            return at_place
    kept = getattr(run, "kept", run)
    if not isinstance(kept, Mapping):
        raise UsageError(
            f"patch_from() takes a run that kept something, or its kept, not {type(run).__name__}"
        )
    index = None
    if place.name not in kept:
        # a slice of what was kept as a whole; a head is no slice of what its module returns
        branch = selector(place.name).branches[0] if place.name.endswith("]") else None
        whole = place.name.rpartition("[")[0]
        if branch is not None and branch.index is not None and branch.head is None and whole in kept:
            place, index = place._replace(name=whole), branch.index
    if place.name not in kept:
        names = ", ".join(map(repr, list(kept)[:6])) or "nothing"
        raise UsageError(f"patch_from(): the other run did not keep {place.name!r}; it kept {names}")
    record = kept[place.name]
    if isinstance(record, list) and place.name in kept:
        if place.call >= len(record):
            raise UsageError(
                f"patch_from(): the other run has {len(record)} calls of {place.name!r}, and this is one more"
            )
        record = record[place.call]
    first = next((part for _, part in named_tensors(record)), None)
    if first is None:
        raise UsageError(f"patch_from(): what the other run kept of {place.name!r} holds no tensor")
    first = sliced(first, index, place.name)
    if first.shape != tensor.shape:
        raise UsageError(
            f"patch_from(): {place.name!r} has shape {list(tensor.shape)} here and {list(first.shape)} in the other run"
        )
    return first


def _alike(vector: torch.Tensor, tensor: torch.Tensor) -> torch.Tensor:
    return vector.to(device=tensor.device, dtype=tensor.dtype if tensor.is_floating_point() else vector.dtype)


def _broadcasts(added: Any, tensor: torch.Tensor, place: EditPlace, name: str) -> None:
    if not isinstance(added, torch.Tensor):
        return
    try:
        shape = torch.broadcast_shapes(added.shape, tensor.shape)
    except RuntimeError:
        shape = None
    if shape != tensor.shape:
        raise UsageError(
            f"{name}(): a tensor of shape {list(added.shape)} cannot be added to {place.name or 'one'} of shape "
            f"{list(tensor.shape)}"
        )


EDITS = (zero, mean, scale, add, clamp, noise, project, swap, patch_from)


# ---------------------------------------------------------------- applying


def check_replacement(key: Any, by: Any) -> None:
    """Raise for what cannot be put in the place of a tensor."""
    if any(by is make for make in EDITS):
        raise UsageError(f"tv.edit.{by.__name__} makes an edit when it is called: tv.edit.{by.__name__}(…)")
    if not callable(by) and not isinstance(by, torch.Tensor):
        raise UsageError(
            f"the replacement for {str(key)!r} is a tensor or a function of what is there, a module, or one of "
            f"tv.edit, not {type(by).__name__}"
        )


def takes_first(by: Any) -> bool:
    """Whether a replacement is for one tensor: of several that a call gives, for the first."""
    return isinstance(by, (torch.Tensor, torch.nn.Module, Edit))


def changed(
    tensor: torch.Tensor, by: Any, place: EditPlace, index: tuple[Any, ...] | None = None
) -> torch.Tensor:
    """A tensor with a replacement for it, or for a slice of it; the tensor itself is left as it is."""
    part = tensor if index is None else _sliced(tensor, index, place)
    new = by if isinstance(by, torch.Tensor) else by(part, place) if isinstance(by, Edit) else by(part)
    same_form(place.name, part, new)
    if index is None:
        # the program may write to what it is handed, and the next call is to have the same
        return new.clone() if new is by else new
    whole = tensor.clone()
    whole[index] = new
    return whole


def _sliced(tensor: torch.Tensor, index: tuple[Any, ...], place: EditPlace) -> torch.Tensor:
    try:
        return tensor[index]
    except IndexError as error:
        raise UsageError(f"{place.name!r} has shape {list(tensor.shape)}: {error}") from None


def sliced(tensor: torch.Tensor, index: tuple[Any, ...] | None, name: str) -> torch.Tensor:
    """A slice of a tensor; the tensor itself where there is none."""
    return tensor if index is None else _sliced(tensor, index, EditPlace(name))


def same_form(name: str, old: torch.Tensor, new: Any) -> None:
    """Raise for a replacement of another shape, element type or device."""
    if not isinstance(new, torch.Tensor):
        raise UsageError(f"the replacement for {name!r} gave {type(new).__name__}, not a tensor")
    # a nested tensor of the strided layout has no shape to ask for
    is_nested = (old.is_nested and old.layout == torch.strided) or (
        new.is_nested and new.layout == torch.strided
    )
    if is_nested and old.is_nested != new.is_nested:
        raise UsageError(f"{name!r} and its replacement must both be nested tensors, or neither")
    for what in ("dtype", "device") if is_nested else ("shape", "dtype", "device"):
        if getattr(old, what) != getattr(new, what):
            raise UsageError(
                f"{name!r} has {what} {getattr(old, what)}; the replacement has {getattr(new, what)}"
            )
