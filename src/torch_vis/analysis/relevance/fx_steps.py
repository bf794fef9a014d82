"""A graph module run step by step, with every value at hand.

The operators are called as they stand in the graph. All that depends on the graph alone (which arguments are literals,
where the others come from, who reads a value last) is worked out once, so that a step costs about a microsecond.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from typing import Any

import torch
from torch import fx
from torch.fx.node import map_arg

from torch_vis.errors import UsageError


class Step:
    """One call: the operator, its literals, and where its other arguments come from."""

    __slots__ = ("args", "done", "kwargs", "name", "nested", "place", "slots", "sources", "target")

    def __init__(self, node: fx.Node, place: int, places: dict[fx.Node, int]) -> None:
        self.name = node.name
        self.place = place
        self.target: Callable[..., Any] = node.target  # type: ignore[assignment]
        self.args = list(node.args)
        self.kwargs = dict(node.kwargs)
        self.sources = tuple(places[source] for source in node.all_input_nodes)
        self.slots: list[tuple[Any, int]] = []  # arguments that are a value
        self.nested: list[tuple[Any, Any]] = []  # arguments with values somewhere inside
        self.done: tuple[int, ...] = ()  # values that nobody reads after this step
        for key, value in [*enumerate(self.args), *self.kwargs.items()]:
            if isinstance(value, fx.Node):
                self.slots.append((key, places[value]))
            elif _holds_nodes(value):
                self.nested.append((key, value))

    def arguments(self, values: list[Any], places: dict[fx.Node, int]) -> tuple[list[Any], dict[str, Any]]:
        """The call's arguments with the values in their places."""
        args, kwargs = self.args.copy(), self.kwargs
        if kwargs:
            kwargs = kwargs.copy()
        for key, source in self.slots:
            if type(key) is int:
                args[key] = values[source]
            else:
                kwargs[key] = values[source]
        for key, value in self.nested:
            filled = map_arg(value, lambda node: values[places[node]])
            if type(key) is int:
                args[key] = filled
            else:
                kwargs[key] = filled
        return args, kwargs


class Steps:
    """The steps of a graph module whose nodes are inputs, attributes, calls of functions and one output."""

    def __init__(self, module: fx.GraphModule) -> None:
        self.module = module
        self.nodes: list[fx.Node] = list(module.graph.nodes)
        self.places = {node: place for place, node in enumerate(self.nodes)}
        self.by_name = {node.name: node for node in self.nodes}
        self.inputs = [place for place, node in enumerate(self.nodes) if node.op == "placeholder"]
        self.calls: list[Step] = []
        self.attributes: list[tuple[int, str]] = []
        self.output: Any = None
        last: dict[int, Step] = {}
        for place, node in enumerate(self.nodes):
            if node.op == "call_function":
                step = Step(node, place, self.places)
                self.calls.append(step)
                last.update(dict.fromkeys((*step.sources, place), step))
            elif node.op == "get_attr":
                self.attributes.append((place, str(node.target)))
            elif node.op == "output":
                self.output = node.args[0]
                last.update(dict.fromkeys((self.places[source] for source in node.all_input_nodes), None))  # type: ignore[arg-type]
            elif node.op != "placeholder":
                raise UsageError(f"a graph with {node.op} nodes ({node.name}) is not run step by step")
        self._last_uses(last)

    def _last_uses(self, last: dict[int, Step]) -> None:
        found: dict[int, list[int]] = {}
        for place, step in last.items():
            if step is not None:
                found.setdefault(step.place, []).append(place)
        for step in self.calls:
            step.done = tuple(found.get(step.place, ()))

    def run(self, inputs: Sequence[Any], keep: Collection[int] | None = None) -> list[Any]:
        """Every node's value by its place, or those of ``keep`` and what the output reads."""
        values: list[Any] = [None] * len(self.nodes)
        for place, value in zip(self.inputs, inputs, strict=True):
            values[place] = value
        for place, path in self.attributes:
            values[place] = _attribute(self.module, path)
        places = self.places
        for step in self.calls:
            args, kwargs = step.arguments(values, places)
            try:
                values[step.place] = step.target(*args, **kwargs)
            except Exception as error:
                if hasattr(error, "add_note"):  # Python 3.11
                    error.add_note(f"in node {step.name!r}: {step.target}")
                raise
            if keep is not None:
                for place in step.done:
                    if place not in keep:
                        values[place] = None
        return values

    def outputs(self, values: list[Any]) -> Any:
        """What the graph returns."""
        return map_arg(self.output, lambda node: values[self.places[node]])


def _holds_nodes(value: Any) -> bool:
    found: list[fx.Node] = []
    if isinstance(value, (list, tuple, dict, slice)):
        map_arg(value, found.append)
    return bool(found)


def _attribute(module: torch.nn.Module, path: str) -> Any:
    item: Any = module
    for part in path.split("."):
        item = getattr(item, part)
    return item
