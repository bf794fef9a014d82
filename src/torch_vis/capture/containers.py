"""The tensors inside nested containers, each with the name a reader would give it.

``torch.utils._pytree`` has key paths too, but looks into neither mappings nor dataclasses that nobody registered, nor
into wrapper tensors, and it recurses, also for ever into what holds itself.
"""

from __future__ import annotations

import dataclasses
import hashlib
import inspect
import weakref
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from enum import Enum
from types import BuiltinFunctionType, FunctionType, MappingProxyType, MethodType
from typing import Any, NamedTuple

import torch
from torch.utils import _pytree

from torch_vis.errors import NoMatch, UsageError, no_match, shortened
from torch_vis.graph.query.selector import first_path


def named_tensors(item: Any, name: str = "") -> Iterator[tuple[str, torch.Tensor]]:
    """Every tensor in lists, tuples, named tuples, mappings, dataclasses and registered containers, in order.

    >>> [name for name, _ in named_tensors({"a": torch.ones(1), "b": [torch.ones(1)]}, "output")]
    ['output.a', 'output.b.0']
    """
    stack: list[tuple[str, Any]] = [(name, item)]
    visited: set[int] = set()
    while stack:
        path, top = stack.pop()
        if isinstance(top, torch.Tensor):
            parts = inner_tensors(top)
            if parts is None:
                yield path, top
                continue
        else:
            parts = container_items(top)
            if not parts or id(top) in visited:
                continue
            visited.add(id(top))
        stack.extend((f"{path}.{key}" if path else key, part) for key, part in reversed(parts))


def storages_in(item: Any) -> Iterator[Any]:
    """Every storage in nested containers, that of no tensor.

    >>> [storage.nbytes() for storage in storages_in({"a": [torch.ones(2).untyped_storage()]})]
    [8]
    """
    stack, visited = [item], set()
    while stack:
        top = stack.pop()
        if torch.is_storage(top):
            yield top
        elif not isinstance(top, torch.Tensor) and id(top) not in visited:
            visited.add(id(top))
            stack.extend(part for _, part in reversed(container_items(top)))


def inner_tensors(tensor: torch.Tensor) -> list[tuple[str, Any]] | None:
    """The plain tensors inside a wrapper such as a DTensor or a jagged nested tensor; None for a plain tensor."""
    flatten = getattr(type(tensor), "__tensor_flatten__", None)
    if flatten is None or type(tensor).__name__ == "FakeTensor":
        return None
    names, _ = flatten(tensor)
    return [(name, getattr(tensor, name)) for name in names]


def container_items(item: Any) -> list[tuple[str, Any]]:
    """The items of a container with their names; nothing for what is no container.

    >>> container_items({"a": 1}), container_items([2, 3]), container_items(4)
    ([('a', 1)], [('0', 2), ('1', 3)], [])
    """
    if isinstance(item, Mapping):
        return [(str(key), part) for key, part in item.items()]
    if isinstance(item, tuple) and hasattr(item, "_fields"):
        return [(str(key), part) for key, part in zip(item._fields, item, strict=False)]
    # torch.return_types
    if isinstance(item, tuple) and hasattr(item, "n_sequence_fields"):
        return list(zip(type(item).__match_args__, item, strict=False))  # type: ignore[attr-defined]
    if isinstance(item, (list, tuple)):
        return [(str(index), part) for index, part in enumerate(item)]
    if dataclasses.is_dataclass(item) and not isinstance(item, type):
        return [(field.name, getattr(item, field.name, None)) for field in dataclasses.fields(item)]
    node = _pytree.SUPPORTED_NODES.get(type(item))
    if node is not None:
        children, _ = node.flatten_fn(item)
        return [(str(index), part) for index, part in enumerate(children)]
    return []


class Form(NamedTuple):
    """A container as a pytree node: its type, the names of its items, and the items."""

    type: type
    keys: tuple[Any, ...]
    parts: tuple[Any, ...]


class TensorLeaf(NamedTuple):
    """The place of a tensor in a form, by the number of its value; None for one that nothing is known of."""

    number: int | None


class UnheldObject(NamedTuple):
    """Stands for an object of a form that is neither a tensor nor a literal, and was not held: a cache, say."""

    type: str

    def __repr__(self) -> str:
        return f"<{self.type}, not held>"


# levels of containers inside one another that a form follows
DEEPEST = 64
PLAIN = (
    type(None),
    bool,
    int,
    float,
    complex,
    str,
    bytes,
    torch.dtype,
    torch.device,
    torch.Size,
    slice,
    range,
)
PLAIN_TYPES = frozenset(PLAIN)


def split(item: Any) -> Form | None:
    """A list, tuple, named tuple, mapping or dataclass as a form; None for anything else.

    >>> split({"a": 1, "b": 2})
    Form(type=<class 'dict'>, keys=('a', 'b'), parts=(1, 2))
    """
    if isinstance(item, (torch.Tensor, *PLAIN)):
        return None
    if isinstance(item, Mapping):
        return Form(type(item), tuple(item), tuple(item.values()))
    if isinstance(item, tuple) and (hasattr(item, "_fields") or hasattr(item, "n_sequence_fields")):
        return Form(type(item), tuple(name for name, _ in container_items(item)), tuple(item))
    if isinstance(item, (list, tuple)):
        return Form(type(item), tuple(range(len(item))), tuple(item))
    if dataclasses.is_dataclass(item) and not isinstance(item, type):
        names = [field.name for field in dataclasses.fields(item) if hasattr(item, field.name)]
        return Form(type(item), tuple(names), tuple(getattr(item, name) for name in names))
    return None


def join(form: Form, parts: Sequence[Any]) -> Any:
    """The container of a form with these items.

    >>> join(split({"a": 1, "b": 2}), [3, 4])
    {'a': 3, 'b': 4}
    """
    kind: Any = form.type
    if kind in (list, tuple):
        return kind(parts)
    if kind is dict:
        return dict(zip(form.keys, parts))
    if issubclass(kind, tuple) and hasattr(kind, "_fields"):
        return kind(*parts)
    if issubclass(kind, (list, tuple)):
        return kind(parts)
    if hasattr(kind, "__dataclass_fields__") and not issubclass(kind, Mapping):
        instance = object.__new__(kind)
        for name, part in zip(form.keys, parts):
            object.__setattr__(instance, name, part)
        return instance
    try:
        return kind(dict(zip(form.keys, parts)))
    except TypeError:
        return kind(**dict(zip(form.keys, parts)))


def form_of(item: Any, number: Callable[[torch.Tensor], int | None], depth: int = DEEPEST) -> Any:
    """A container without its tensors: what holds none stays, each tensor becomes a ``TensorLeaf``."""
    # each call of a module asks, mostly for one tensor in a tuple: by type first, which takes a fifth of the time
    kind = type(item)
    if kind in PLAIN_TYPES:
        return item
    if kind is torch.Tensor or isinstance(item, torch.Tensor):
        return TensorLeaf(number(item))
    if (kind is tuple or kind is list) and depth:
        return Form(kind, (*range(len(item)),), tuple([form_of(part, number, depth - 1) for part in item]))
    if isinstance(item, PLAIN):
        return item
    form = split(item) if depth else None
    if form is None:
        return UnheldObject(kind.__name__)
    return Form(kind, form.keys, tuple([form_of(part, number, depth - 1) for part in form.parts]))


def form_leaves(form: Any, name: str = "") -> Iterator[tuple[str, int | None]]:
    """The tensors of a form in order, each with its name as ``named_tensors`` gives it."""
    if isinstance(form, TensorLeaf):
        yield name, form.number
    elif isinstance(form, Form):
        for key, part in zip(form.keys, form.parts):
            yield from form_leaves(part, f"{name}.{key}" if name else str(key))


def argument_names(module: Any) -> list[str]:
    """What a module's ``forward`` calls its positional arguments.

    >>> argument_names(torch.nn.Linear(1, 1))
    ['input']
    """
    try:
        parameters = inspect.signature(module.forward).parameters.values()
    except (TypeError, ValueError, AttributeError):
        return []
    positional = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
    return [parameter.name for parameter in parameters if parameter.kind in positional]


def bound_arguments(
    target: Callable[..., Any], args: tuple[Any, ...], kwargs: Mapping[str, Any]
) -> Mapping[str, Any]:
    """Arguments under the names that the callable gives its parameters.

    >>> bound_arguments(lambda a, *b: None, (1, 2, 3), {})
    {'a': 1, 'b': (2, 3)}
    """
    called = target.forward if isinstance(target, torch.nn.Module) else target
    try:
        return inspect.signature(called).bind(*args, **kwargs).arguments
    except (TypeError, ValueError):
        return {**{f"input.{index}": arg for index, arg in enumerate(args)}, **kwargs}


def filled(form: Any, tensor: Callable[[int | None], Any]) -> Any:
    """The container of a form, with a tensor for each leaf."""
    if isinstance(form, TensorLeaf):
        return tensor(form.number)
    if isinstance(form, Form):
        return join(form, [filled(part, tensor) for part in form.parts])
    return form


def renumbered(form: Any, number: Callable[[int], int | None]) -> Any:
    """A form whose leaves have other numbers."""
    if isinstance(form, TensorLeaf):
        return TensorLeaf(None if form.number is None else number(form.number))
    if isinstance(form, Form):
        return Form(form.type, form.keys, tuple([renumbered(part, number) for part in form.parts]))
    return form


def completed(form: Any, later: Any) -> Any:
    """A form in which leaves that nothing was known of have the numbers of a later form of the same containers."""
    if isinstance(form, TensorLeaf):
        return later if form.number is None and isinstance(later, TensorLeaf) else form
    if isinstance(form, Form) and isinstance(later, Form) and len(form.parts) == len(later.parts):
        return form._replace(parts=tuple(map(completed, form.parts, later.parts)))
    return form


def with_tensors(
    item: Any, change: Callable[[str, torch.Tensor], Any], name: str = "", depth: int = DEEPEST
) -> Any:
    """The same containers with other tensors; a container in which nothing changes is the same object.

    >>> given = [torch.ones(1), {"a": torch.ones(1)}]
    >>> changed = with_tensors(given, lambda name, tensor: tensor * 2 if name == "0" else tensor)
    >>> changed[0], changed[1] is given[1]
    (tensor([2.]), True)
    """
    if isinstance(item, torch.Tensor):
        return change(name, item)
    form = split(item) if depth else None
    if form is None:
        return _with_children(item, change, name, depth) if depth else item
    parts = [
        with_tensors(part, change, f"{name}.{key}" if name else str(key), depth - 1)
        for key, part in zip(form.keys, form.parts)
    ]
    if all(new is old for new, old in zip(parts, form.parts)):
        return item
    return join(form, parts)


def _with_children(item: Any, change: Callable[[str, torch.Tensor], Any], name: str, depth: int) -> Any:
    """``with_tensors`` of a container that somebody registered with torch; of anything else, the same object."""
    node = _pytree.SUPPORTED_NODES.get(type(item))
    if node is None:
        return item
    children, context = node.flatten_fn(item)
    parts = [
        with_tensors(part, change, f"{name}.{index}" if name else str(index), depth - 1)
        for index, part in enumerate(children)
    ]
    return item if all(new is old for new, old in zip(parts, children)) else node.unflatten_fn(parts, context)


class KeptByName(dict[str, Any]):
    """What was kept, by the whole name of each place; the end of a name will do where no other ends so.

    >>> KeptByName({"transformer.h.3": 1, "transformer.h.4": 2})["h.3"]
    1
    """

    # further paths of modules, each with the one that is a name here
    second_paths: Mapping[str, str] = MappingProxyType({})
    # texts that asked for one place, each with its name
    asked: Mapping[str, str] = MappingProxyType({})

    def __missing__(self, name: Any) -> Any:
        if isinstance(name, str) and self.asked.get(name) in self:
            return self[self.asked[name]]
        first = first_path(name, self.second_paths) if isinstance(name, str) else None
        if first is not None and first in self:
            return self[first]
        return self[end_of_one(name, self)]


def no_part(name: str, part: str, parts: Iterable[str]) -> NoMatch:
    """The error for a part that what is in a place does not have.

    >>> str(no_part("fc.output.1", "1", [""]))
    "'fc.output.1': there is one tensor, which has no part '1'"
    """
    known = list(parts)
    if known == [""]:
        return NoMatch(f"{name!r}: there is one tensor, which has no part {part!r}")
    return no_match(f"part of {name!r}", part, known)


def end_of_one(name: Any, names: Iterable[str]) -> str:
    """The one name that ends so."""
    names = list(names)
    ends = [other for other in names if isinstance(name, str) and other.endswith(f".{name}")]
    if len(ends) > 1:
        raise UsageError(f"{name!r} is ambiguous: {', '.join(map(repr, ends[:4]))} were kept")
    if not ends:
        raise no_match("activation", str(name), names)
    return ends[0]


# ---------------------------------------------------------------- what is beside the tensors


# known by which one they are: nobody expects them to be looked into
KNOWN_BY_IDENTITY = (type, FunctionType, BuiltinFunctionType, torch.nn.Module, torch.Generator)


class PlainArgument(NamedTuple):
    """An argument, or a part of one, that is no tensor."""

    kind: str
    """``"value"`` and ``"array"`` have to be what they were; ``"container"`` and ``"object"`` are told of."""
    content: Any
    """What is equal where it is the same; None for what cannot be compared."""
    text: str
    """What a message calls it."""


def beside_tensors(arguments: Mapping[str, Any]) -> dict[str, PlainArgument]:
    """Everything in arguments that is no tensor, by its name.

    >>> {name: item.text for name, item in beside_tensors({"x": [torch.ones(1), 2], "flag": True}).items()}
    {'x': 'of type list', 'x.1': '2', 'flag': 'True'}
    """
    others: dict[str, PlainArgument] = {}
    stack = list(arguments.items())[::-1]
    visited: set[int] = set()
    while stack:
        name, item = stack.pop()
        # an argument that is not given is None more often than not
        if item is None or isinstance(item, torch.Tensor) or id(item) in visited:
            continue
        others[name] = _compared(item) or _container(item) or _object(item)
        if others[name].kind == "container":
            visited.add(id(item))
            stack.extend((f"{name}.{key}", part) for key, part in reversed(container_items(item)))
    return others


def _compared(item: Any) -> PlainArgument | None:
    """What has to be the same in a rerun: literals, and what is numbers in memory; None for anything else."""
    if isinstance(item, (*PLAIN, Enum)):
        # 1, 1.0 and True are equal, and make another program; NaN is not equal to itself
        return PlainArgument("value", (type(item), repr(item)), shortened(repr(item)))
    if isinstance(item, (set, frozenset)) and all(isinstance(part, PLAIN) for part in item):
        return PlainArgument("value", (type(item), tuple(sorted(map(repr, item)))), shortened(repr(item)))
    try:
        view = memoryview(item)
    except (TypeError, ValueError, BufferError):
        return None
    if "O" in view.format:
        return None
    content = hashlib.blake2b(view if view.c_contiguous else view.tobytes(), digest_size=16).digest()
    return PlainArgument("array", (type(item), view.format, view.shape, content), _kind(item))


def _container(item: Any) -> PlainArgument | None:
    """The form of a container; None for what is none."""
    form = split(item)
    if form is not None:
        return PlainArgument("container", (form.type, form.keys), _kind(item))
    node = _pytree.SUPPORTED_NODES.get(type(item))
    if node is None:
        return None
    children, context = node.flatten_fn(item)
    return PlainArgument("container", (type(item), len(children), repr(context)), _kind(item))


def _object(item: Any) -> PlainArgument:
    """Something that is not looked into: functions, types and modules are known by which one they are."""
    known: Any = item.__func__ if isinstance(item, MethodType) else item
    if isinstance(known, KNOWN_BY_IDENTITY):
        try:
            owner = weakref.ref(item.__self__) if isinstance(item, MethodType) else None
            return PlainArgument("object", (weakref.ref(known), owner), _kind(item))
        except TypeError:
            pass
    return PlainArgument("object", None, _kind(item))


def _kind(item: Any) -> str:
    """What kind of thing an object is, in words."""
    return f"of type {type(item).__name__}"
