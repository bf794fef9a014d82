"""Shapes, counts and times as short texts, and the figures of a model that need no run."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch

from torch_vis.errors import NotTraceable
from torch_vis.interfaces.explorer.stats import get_forward_stats

_COUNTS = ((1_000_000_000, "B"), (1_000_000, "M"), (1_000, "K"))


@dataclass
class ModuleInfo:
    """What is known about one module; ``timing_stats`` are seconds, and None where it was not recorded.

    ``parameter_count`` and ``memory_usage`` (bytes) are those of the module with all inside it, tied parameters once;
    ``shapes`` are those of its own parameters.

    >>> import torch, torch_vis as tv
    >>> tv.ModuleInfo.of(torch.nn.Linear(3, 2))
    ModuleInfo(name='', module_type='Linear', parameter_count=8, shapes={'weight': (2, 3), 'bias': (2,)}, \
timing_stats=None, memory_usage=32)
    """

    name: str
    module_type: str
    parameter_count: int
    shapes: dict[str, tuple[int, ...]]
    timing_stats: dict[str, float] | None = None
    memory_usage: int | None = None

    @classmethod
    def of(cls, model: torch.nn.Module, path: str = "") -> ModuleInfo:
        """The module at a path of a model, with what was recorded of it."""
        module = model.get_submodule(path)
        unique = list(_unique(module))
        stats = get_forward_stats(model)
        return cls(
            path,
            type(module).__name__,
            sum(_numel(tensor) for _, tensor in unique),
            {
                name: tuple(one.shape)
                for name, one in module._parameters.items()
                if one is not None and _is_made(one)
            },
            stats[path].timing() if path in stats else None,
            sum(_nbytes(tensor) for _, tensor in unique),
        )


def format_shape(shape: Sequence[int | str] | None) -> str:
    """A shape with multiplication signs; nothing for one without dimensions. A size that is left open has a name.

    >>> import torch_vis as tv
    >>> tv.format_shape((3, 224, 224)), tv.format_shape(()), tv.format_shape(("s77", 768))
    ('3×224×224', '', 's77×768')
    """
    return "×".join(str(size) for size in shape) if shape else ""


def format_param_count(count: int) -> str:
    """A count with K, M or B behind it.

    >>> import torch_vis as tv
    >>> [tv.format_param_count(count) for count in (999, 1_700_000, 5_400_000_000)]
    ['999', '1.7M', '5.4B']
    """
    for place, (size, unit) in enumerate(_COUNTS):
        if abs(count) >= size:
            text = f"{count / size:.1f}"
            if text in ("1000.0", "-1000.0") and place:  # rounding reached the next unit
                size, unit = _COUNTS[place - 1]
                text = f"{count / size:.1f}"
            return text + unit
    return str(count)


def format_time(seconds: float) -> str:
    """A time in the unit that suits it.

    >>> import torch_vis as tv
    >>> [tv.format_time(one) for one in (5e-8, 2.5e-5, 0.00123, 2.5, 12.5, 90, 7200)]
    ['50.0ns', '25.00μs', '1.23ms', '2.5000s', '12.50s', '1.5min', '2.0h']
    >>> tv.format_time(0.9999999), tv.format_time(float("nan"))
    ('1.0000s', 'nan')
    """
    if math.isnan(seconds) or math.isinf(seconds):
        return str(seconds)
    size = abs(seconds)  # the limits are those at which rounding would reach the next unit
    if size < 999.95e-9:
        return f"{seconds * 1e9:.1f}ns"
    if size < 999.995e-6:
        return f"{seconds * 1e6:.2f}μs"
    if size < 999.995e-3:
        return f"{seconds * 1e3:.2f}ms"
    if size < 60.0:
        return f"{seconds:.4f}s" if size < 10.0 else f"{seconds:.2f}s"
    minutes = seconds / 60.0
    return f"{minutes:.1f}min" if abs(minutes) < 60.0 else f"{minutes / 60.0:.1f}h"


def analyze_memory_usage(model: torch.nn.Module) -> dict[str, int]:
    """The bytes of each parameter by name; one that has several names is there once.

    >>> import torch, torch_vis as tv
    >>> tv.analyze_memory_usage(torch.nn.Linear(3, 2))
    {'weight': 24, 'bias': 8}
    """
    return {name: _nbytes(tensor) for name, tensor in _unique(_model(model))}


def get_parameter_statistics(model: torch.nn.Module) -> dict[str, int]:
    """How many parameters a model has and the bytes they take, tied ones counted once and buffers not at all.

    >>> import torch, torch_vis as tv
    >>> tv.get_parameter_statistics(torch.nn.Linear(3, 2))
    {'total_params': 8, 'trainable_params': 8, 'non_trainable_params': 0, 'memory_usage': 32}
    """
    unique = [tensor for _, tensor in _unique(_model(model))]
    trainable = sum(_numel(tensor) for tensor in unique if tensor.requires_grad)
    total = sum(_numel(tensor) for tensor in unique)
    return {
        "total_params": total,
        "trainable_params": trainable,
        "non_trainable_params": total - trainable,
        "memory_usage": sum(_nbytes(tensor) for tensor in unique),
    }


def _unique(model: torch.nn.Module) -> Iterator[tuple[str, torch.Tensor]]:
    """Every parameter under its first name."""
    from torch_vis.interfaces.explorer.walk import identity

    seen = set()
    for name, tensor in model.named_parameters():
        key = identity(tensor) if _is_made(tensor) else id(tensor)
        if key not in seen:
            seen.add(key)
            yield name, tensor


def _is_made(tensor: torch.Tensor) -> bool:
    return not isinstance(tensor, torch.nn.parameter.UninitializedTensorMixin)  # type: ignore[attr-defined]


def _numel(tensor: torch.Tensor) -> int:
    return int(tensor.numel()) if _is_made(tensor) else 0


def _nbytes(tensor: torch.Tensor) -> int:
    return _numel(tensor) * tensor.dtype.itemsize


def _model(model: object) -> torch.nn.Module:
    if not isinstance(model, torch.nn.Module):
        raise NotTraceable(f"this takes a module, not {type(model).__name__}")
    return model
