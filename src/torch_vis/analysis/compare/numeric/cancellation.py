"""Operations that take a mean away inside one kernel, and how large what they take it from is."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch

Args = Sequence[Any]
Made = Mapping[int, torch.Tensor]  # by the place in what an operation returns
ATTENTION = "scaled_dot_product"
BACKWARD = "_backward"


def size_of(tensor: torch.Tensor) -> float:
    """The norm of a plain floating-point tensor; 0 of any other.

    >>> size_of(torch.tensor([3.0, 4.0])), size_of(torch.tensor([3, 4]))
    (5.0, 0.0)
    """
    if (
        tensor.is_nested
        or tensor.layout is not torch.strided
        or tensor.is_meta
        or not tensor.is_floating_point()
    ):
        return 0.0
    wide = torch.float64 if tensor.dtype == torch.float64 else torch.float32
    return float(torch.linalg.vector_norm(tensor, dtype=wide))


def centres(name: str) -> bool:
    """Whether an operator of that short name is one of these."""
    return name in CENTRED or (ATTENTION in name and name.endswith(BACKWARD))


def summands(name: str, slot: int, args: Args, made: Made) -> float | None:
    """The norm that one of the results of an operation had if nothing was taken away; None where that is not known.

    ``args`` are the arguments as they were called.
    """
    if ATTENTION in name:
        return _attention(slot, args)
    if (
        name.endswith("norm" + BACKWARD) and slot > 0
    ):  # the gradients of weight and bias: sums over what comes in
        return size_of(args[0])
    return CENTRED[name](args, made) if slot == 0 else None


def _scaled(tensor: torch.Tensor, spread: torch.Tensor, weight: torch.Tensor | None) -> float:
    """The norm of something by the spread that a normalisation divides by, and by its weight."""
    wide = tensor.float() * spread.float()
    return size_of(wide if weight is None else wide * weight.float())


def _along(tensor: torch.Tensor | None, like: torch.Tensor) -> Any:
    """Something by channel, laid along the second axis."""
    return None if tensor is None else tensor.reshape(-1, *[1] * (like.dim() - 2))


def _by_group(spread: torch.Tensor, like: torch.Tensor) -> torch.Tensor:
    wide = spread.repeat_interleave(like.shape[1] // spread.shape[1], dim=1)
    return wide.reshape(*wide.shape, *[1] * (like.dim() - 2))


def _batch(args: Args, made: Made) -> float | None:
    training = made[2].numel() > 0
    return _scaled(args[0], _along(made[2], args[0]), _along(args[1], args[0])) if training else None


def _batch_backward(args: Args, made: Made) -> float | None:
    if not args[7]:  # not training: no mean is taken away
        return None
    return _scaled(args[0], _along(args[6], args[0]), _along(args[2], args[0]))


def _attention(slot: int, args: Args) -> float | None:
    """What the gradients of queries and keys would be if the scores' were not centred, about."""
    if slot > 1:
        return None
    gradient, query, key, value = args[:4]
    *heads, length, width = key.shape
    other = key if slot == 0 else query
    count = max(1, torch.Size(heads).numel())
    scale = 1 / width**0.5
    return scale * size_of(gradient) * size_of(value) * size_of(other) / (count * max(1, length) ** 1.5)


CENTRED: dict[str, Callable[[Args, Made], float | None]] = {
    "_softmax_backward_data": lambda args, made: size_of(args[0].float() * args[1].float()),
    "_log_softmax_backward_data": lambda args, made: size_of(args[0]),
    "native_layer_norm": lambda args, made: _scaled(args[0], made[2], args[2]),
    "native_batch_norm": _batch,
    "native_group_norm": lambda args, made: _scaled(
        args[0], _by_group(made[2], args[0]), _along(args[1], args[0])
    ),
    "native_layer_norm_backward": lambda args, made: _scaled(args[0], args[4], args[5]),
    "native_batch_norm_backward": _batch_backward,
    "native_group_norm_backward": lambda args, made: _scaled(
        args[0], _by_group(args[3], args[0]), _along(args[4], args[0])
    ),
}
