"""Inputs as they are written on the command line: ``1x3x224x224:float32``, ``ids=2x128:int64:0..1000``."""

from __future__ import annotations

import os
import re
from typing import TYPE_CHECKING, Any, NamedTuple

from torch_vis.errors import UsageError, no_match

if TYPE_CHECKING:
    import torch

FLOATING = ("float16", "bfloat16", "float32", "float64", "complex64", "complex128")
WHOLE = ("int8", "uint8", "int16", "int32", "int64")
DTYPES = (*FLOATING, *WHOLE, "bool")
SPEC = re.compile(r"(?P<shape>\(\)|\d+(?:x\d+)*)(?::(?P<dtype>\w+))?(?::(?P<low>[^.:]+)\.\.(?P<high>[^:]+))?")
FORM = (
    "[NAME=]SHAPE[:DTYPE][:LOW..HIGH], as in 1x3x224x224, ids=2x128:int64:0..1000 or () for a single number, "
    "x=@batch.pt or x=@batch.npy for a tensor in a file, scale:=3 for a plain value"
)


class Input(NamedTuple):
    """One input to make up, or a file to load it from."""

    name: str | None
    shape: tuple[int, ...] = ()
    dtype: str = "float32"
    low: float | None = None
    high: float | None = None
    file: str | None = None
    value: tuple[Any] | None = None
    """A plain value, in a tuple so that it can be None."""

    def __str__(self) -> str:
        if self.value is not None:
            return f"{self.name or ''}:={self.value[0]!r}"
        name = f"{self.name}=" if self.name else ""
        return name + (
            f"@{self.file}" if self.file else f"{'x'.join(map(str, self.shape)) or '()'}:{self.dtype}"
        )


def parse(text: str) -> Input:
    """An input from how it is written.

    >>> parse("ids=2x128:int64:0..1000")
    Input(name='ids', shape=(2, 128), dtype='int64', low=0, high=1000, file=None, value=None)
    >>> parse("scale:=0.5").value
    (0.5,)
    """
    before, is_value, after = text.partition(":=")
    if is_value and (before.isidentifier() or not before):
        return Input(before or None, value=(_value(text, after),))
    name, is_named, rest = text.partition("=")
    if not is_named:
        name, rest = "", text
    elif not name.isidentifier():
        raise UsageError(f"input {text!r}: {name!r} is no name of an argument; write {FORM}")
    if rest.startswith("@"):
        if not os.path.isfile(rest[1:]):
            raise UsageError(f"input {text!r}: there is no file {rest[1:]!r}")
        return Input(name or None, file=rest[1:])
    result = SPEC.fullmatch(rest)
    if result is None:
        raise UsageError(f"input {text!r} cannot be read; write {FORM}")
    dtype = result["dtype"] or "float32"
    if dtype not in DTYPES:
        raise UsageError(f"input {text!r}: {no_match('dtype', dtype, DTYPES)}")
    low, high = _range(text, dtype, result["low"], result["high"])
    shape = () if result["shape"] == "()" else tuple(map(int, result["shape"].split("x")))
    return Input(name or None, shape, dtype, low, high)


def _value(text: str, written: str) -> Any:
    """A number, a word in quotes, True, None, or tuples and lists of these, as Python writes them."""
    import ast

    try:
        return ast.literal_eval({"true": "True", "false": "False", "null": "None"}.get(written, written))
    except (ValueError, SyntaxError):
        raise UsageError(
            f"input {text!r}: {written!r} is no value of Python's; write 3, 0.5, true or '\"a word\"'"
        ) from None


def _range(text: str, dtype: str, low: str | None, high: str | None) -> tuple[float | None, float | None]:
    if low is None or high is None:
        return None, None
    if dtype == "bool":
        raise UsageError(f"input {text!r}: bool takes no range")
    try:
        number = int if dtype in WHOLE else float
        least, most = number(low), number(high)
    except ValueError:
        raise UsageError(f"input {text!r}: {low}..{high} is not a range of {dtype}") from None
    if least >= most:
        raise UsageError(f"input {text!r}: the range {low}..{high} is empty; the second number is not in it")
    return least, most


def make(spec: Input, device: str, vocabulary: int | None) -> Any:
    """The tensor: random numbers of the shape and dtype; whole ones without a range below ``vocabulary`` or 2."""
    import torch

    if spec.value is not None:
        return spec.value[0]
    if spec.file is not None:
        return _load(spec.file, device)
    dtype: torch.dtype = getattr(torch, spec.dtype)
    if spec.dtype == "bool":
        return torch.rand(spec.shape, device=device) < 0.5
    if spec.dtype in WHOLE:
        low, high = (0, vocabulary or 2) if spec.low is None or spec.high is None else (spec.low, spec.high)
        return torch.randint(int(low), int(high), spec.shape, dtype=dtype, device=device)
    if spec.low is not None and spec.high is not None:
        return torch.empty(spec.shape, dtype=dtype, device=device).uniform_(spec.low, spec.high)
    return torch.randn(spec.shape, dtype=dtype, device=device)


def _load(path: str, device: str) -> Any:
    """A tensor, or tensors in lists and dictionaries, from what ``torch.save`` or ``numpy.save`` wrote."""
    import torch

    try:
        if path.endswith((".npy", ".npz")):
            import numpy

            result = numpy.load(path, allow_pickle=False)
            if isinstance(result, numpy.ndarray):
                return torch.from_numpy(result).to(device)
            return {name: torch.from_numpy(result[name]).to(device) for name in result}
        return torch.load(path, map_location=device, weights_only=True)
    except Exception as error:
        raise UsageError(
            f"{path} holds no tensors that can be loaded ({type(error).__name__}); an input comes from a .pt file that "
            "torch.save wrote, or from .npy"
        ) from error
