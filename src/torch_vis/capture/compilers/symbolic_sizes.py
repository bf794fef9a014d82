"""Sizes that a captured program leaves open: which, their names and their ranges."""

from __future__ import annotations

import copy
import inspect
import re
from collections.abc import Iterable, Mapping
from typing import Any

import torch
from torch import fx
from torch.utils import _pytree as pytree

from torch_vis.capture.undo import Undo, context
from torch_vis.graph.graph import Graph

Bounds = tuple[int | None, int | None]
UNBOUNDED = 2**62  # from here on torch means "any"


def open_sizes(target: torch.nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Every size of every tensor left open, as far as the program allows, in the form that export takes."""
    auto = torch.export.Dim.AUTO

    def all_of(leaf: Any) -> Any:
        return dict.fromkeys(range(leaf.dim()), auto) if isinstance(leaf, torch.Tensor) else None

    return _by_argument(all_of, target, args, kwargs)


def marked_sizes(target: torch.nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """The sizes that ``mark_dynamic`` marked, with the limits given there; None where nothing is marked."""
    if not any(getattr(leaf, "_dynamo_dynamic_indices", None) for leaf in pytree.tree_leaves((args, kwargs))):
        return None

    def marked(leaf: Any) -> Any:
        if not isinstance(leaf, torch.Tensor):
            return None
        limits = {row.dim: (row.min, row.max) for row in getattr(leaf, "_dynamo_dynamic_range", ())}
        dims = {}
        for dim in sorted(getattr(leaf, "_dynamo_dynamic_indices", ())):
            least, most = limits.get(dim, (None, None))
            dims[dim] = torch.export.Dim.DYNAMIC(min=least, max=most)
        return dims or None

    return _by_argument(marked, target, args, kwargs)


@context
def marks_kept(undo: Undo, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
    """Put back what torch notes on the tensors about open sizes; a failed export leaves its own marks there."""
    tensors = [leaf for leaf in pytree.tree_leaves((args, kwargs)) if isinstance(leaf, torch.Tensor)]
    for tensor in tensors:
        marks = {key: copy.copy(mark) for key, mark in vars(tensor).items() if _is_mark(key)}
        undo.add(_restore_marks, tensor, marks)


def _restore_marks(tensor: torch.Tensor, marks: dict[str, Any]) -> None:
    for key in [key for key in vars(tensor) if _is_mark(key)]:
        delattr(tensor, key)
    vars(tensor).update(marks)


def _is_mark(key: str) -> bool:
    return key.startswith(("_dynamo_", "_has_dynamo_"))


def _by_argument(
    spec: Any, target: torch.nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> dict[str, Any]:
    bound = inspect.signature(target.forward).bind(*args, **kwargs)
    return {name: pytree.tree_map(spec, value) for name, value in bound.arguments.items()}


# ---------------------------------------------------------------- names


def given_names(
    module: fx.GraphModule, flat: list[Any], target: torch.nn.Module, args: Any, kwargs: Any, shapes: Any
) -> dict[str, str]:
    """The user's names of symbols: of each ``Dim("batch")``, by the name that torch gave its symbol."""
    from torch.export.dynamic_shapes import _combine_args, _tree_map_with_path

    wanted: dict[int, list[tuple[int, str]]] = {}

    def note(path: Any, leaf: Any, spec: Any) -> None:
        if not isinstance(leaf, torch.Tensor) or not isinstance(spec, (dict, list, tuple)):
            return
        dims = spec.items() if isinstance(spec, dict) else enumerate(spec)
        named = [
            (dim, name) for dim, size in dims if isinstance(name := getattr(size, "__name__", None), str)
        ]
        wanted.setdefault(id(leaf), []).extend(named)

    given = _combine_args(target, args, kwargs)
    if not isinstance(shapes, dict):
        shapes = dict(zip(given, shapes))
    _tree_map_with_path(note, given, shapes, tree_name="inputs")
    names: dict[str, str] = {}
    placeholders = [node for node in module.graph.nodes if node.op == "placeholder"]
    for node, tensor in zip(placeholders, flat):
        known = node.meta.get("val")
        for dim, name in wanted.get(id(tensor), ()):
            size = symbol(known.shape[dim]) if isinstance(known, torch.Tensor) else ""
            if size.isidentifier() and name.isidentifier():
                names[size] = name
    return names


def symbol(size: Any) -> str:
    """The name of a size that is open; "" for one that is fixed, or that belongs to a nested tensor."""
    return "" if isinstance(size, int) or size.node.is_nested_int() else str(size)


def renamed(text: str, names: Mapping[str, str]) -> str:
    """An expression over symbols in the user's names.

    >>> renamed("2*s31 + s3", {"s31": "batch"})
    '2*batch + s3'
    """
    return re.sub(r"[A-Za-z_]\w*", lambda match: names.get(match[0], match[0]), text) if names else text


# ---------------------------------------------------------------- ranges


def bounds_of(modules: Iterable[fx.GraphModule], names: Mapping[str, str]) -> dict[str, Bounds]:
    """The smallest and largest value of each symbol that the sizes of a program are made of."""
    bounds: dict[str, Bounds] = {}
    for module in modules:
        for node in module.graph.nodes:
            known = node.meta.get("val", node.meta.get("example_value"))
            sizes: Iterable[Any] = known.shape if isinstance(known, torch.Tensor) else ()
            for size in sizes:
                if symbol(size):
                    _note_bounds(size.node, names, bounds)
    return bounds


def _note_bounds(size: Any, names: Mapping[str, str], bounds: dict[str, Bounds]) -> None:
    ranges = size.shape_env.var_to_range
    for name in sorted(size.expr.free_symbols, key=str):
        if name in ranges and (label := names.get(str(name), str(name))) not in bounds:
            bounds[label] = (_number(ranges[name].lower), _number(ranges[name].upper))


def constrained(constraints: Mapping[Any, Any], names: Mapping[str, str]) -> dict[str, Bounds]:
    """The ranges that an exported program declares."""
    rows = {name: (_number(row.lower), _number(row.upper)) for name, row in constraints.items()}
    return {names.get(str(name), str(name)): row for name, row in rows.items() if str(name).isidentifier()}


def _number(limit: Any) -> int | None:
    text = str(limit)
    return int(text) if text.lstrip("-").isdigit() and abs(int(text)) < UNBOUNDED else None


def range_text(name: str, bounds: Bounds) -> str:
    """A range as text.

    >>> range_text("batch", (2, 64)), range_text("s0", (2, None))
    ('2 ≤ batch ≤ 64', '2 ≤ s0')
    """
    least, most = bounds
    return (f"{least} ≤ " if least is not None else "") + name + (f" ≤ {most}" if most is not None else "")


# ---------------------------------------------------------------- in the graph


def with_symbols(
    graph: Graph, symbols: Mapping[int, tuple[str, ...]], numbers: Any, names: Mapping[str, str]
) -> Graph:
    """The graph with the sizes that the program leaves open named in its types."""
    if not symbols:
        return graph
    types = list(graph.types)
    known = {row: number for number, row in enumerate(types)}
    value_type = graph.value_type.copy()
    for value, sizes in symbols.items():
        index = int(numbers[value])
        row = types[value_type[index]]
        if len(sizes) != len(row.shape):
            continue
        named = row._replace(symbols=tuple(renamed(size, names) for size in sizes))
        if named not in known:
            known[named] = len(types)
            types.append(named)
        value_type[index] = known[named]
    return graph.replaced(value_type=value_type, types=types)
