"""Call templates: an operator's arguments with its tensors taken out.

A template is a tuple of plain literals (None, bool, int, float, complex, str, nested tuples), ``Slot`` where a tensor
goes, and ``Special`` for what plain Python has no literal for (a dtype, a device, a generator, a function).
It can be stored, compared and printed without torch.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, NamedTuple


class Slot(NamedTuple):
    """The place of the tensor of that number among a call's arguments."""

    number: int


class Special(NamedTuple):
    """A literal that only torch can build: ``Special("dtype", "float32")``."""

    kind: str
    text: str


class Call(NamedTuple):
    """An operator and the template it was called with.

    >>> call = Call("aten::add.Tensor", (Slot(0), 1.0), ())
    >>> call.format()
    'add(%0, 1.0)'
    """

    op: str
    args: tuple[Any, ...]
    kwargs: tuple[tuple[str, Any], ...]

    def slots(self) -> Iterator[int]:
        """Every slot index, in the order in which the arguments name them."""
        yield from _slots((self.args, tuple(value for _, value in self.kwargs)))

    def format(self, name: Callable[[int], str] = "%{}".format) -> str:
        """The call as a person would write it, each tensor named by ``name(slot)``."""
        parts = [_show(arg, name) for arg in self.args]
        parts += [f"{key}={_show(arg, name)}" for key, arg in self.kwargs]
        return f"{short_name(self.op)}({', '.join(parts)})"


def short_name(op: str) -> str:
    """The operator's name without namespace and overload.

    >>> short_name("aten::add_.Tensor")
    'add_'
    """
    return op.rpartition("::")[2].partition(".")[0]


def _slots(item: Any) -> Iterator[int]:
    stack = [item]
    while stack:
        top = stack.pop()
        if isinstance(top, Slot):
            yield top.number
        elif type(top) is tuple:
            stack.extend(reversed(top))


def _show(item: Any, name: Callable[[int], str]) -> str:
    if isinstance(item, Slot):
        return name(item.number)
    if isinstance(item, Special):
        return item.text
    if type(item) is tuple:
        return "[" + ", ".join(_show(part, name) for part in item) + "]"
    return repr(item)


def to_plain(item: Any) -> Any:
    """A template as JSON data: ``Slot(0)`` becomes ``{"tensor": 0}``, a dtype ``{"dtype": "float32"}``.

    >>> to_plain((Slot(0), 1.0, Special("dtype", "float32"), float("inf")))
    [{'tensor': 0}, 1.0, {'dtype': 'float32'}, {'float': 'inf'}]
    """
    if isinstance(item, Slot):
        return {"tensor": item.number}
    if isinstance(item, Special):
        return {item.kind: item.text}
    if type(item) is tuple:
        return [to_plain(part) for part in item]
    if isinstance(item, float) and (item != item or item in (float("inf"), float("-inf"))):
        return {"float": repr(item)}
    if isinstance(item, complex):
        return {"complex": repr(item)}
    return item


def from_plain(item: Any) -> Any:
    """The inverse of ``to_plain``.

    >>> from_plain([{"tensor": 0}, {"complex": "(1+2j)"}])
    (Slot(number=0), (1+2j))
    """
    if isinstance(item, list):
        return tuple(from_plain(part) for part in item)
    if isinstance(item, dict):
        ((kind, text),) = item.items()
        if kind == "tensor":
            return Slot(int(text))
        if kind == "float":
            return float(text)
        if kind == "complex":
            return complex(text)
        return Special(kind, text)
    return item
