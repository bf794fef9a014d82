"""What calls of modules can be told by: where they are, what they are called, and what they do."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Sequence
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np
import torch

from torch_vis.analysis.compare.sides import Side
from torch_vis.capture.kept_tensors import KeptTensors
from torch_vis.graph.graph import Graph
from torch_vis.graph.schema import Phase, Role


class Key(NamedTuple):
    """What two calls have to have in common, for each call of the one run and of the other."""

    a: Sequence[Any]
    b: Sequence[Any]
    in_any_order: bool = False
    names: tuple[Sequence[str], Sequence[str]] | None = None
    """By which of those that have it in common two calls belong together, if that is not their order."""
    if_numbers_changed: bool = False
    """Only those with numbers for names, and only if these are not the same in both."""
    if_as_many: tuple[Sequence[Any], Sequence[Any]] | None = None
    """Of what there have to be as many in both: where three layers became one, none of them is that one."""
    weights: bool = False
    """Only where weights are equal as well, and what is alike between those."""


def is_number(label: str) -> bool:
    """Whether a name is a place in a list."""
    return label.rpartition(".")[2].isdigit()


def lists_renamed(here: list[str], there: list[str]) -> tuple[list[str], list[str]]:
    """The same names, but where lists have other names in the second, those that they have in the first, in order.

    >>> lists_renamed(["blocks.0", "blocks.1", "head"], ["layers.0", "layers.1", "head"])
    (['blocks.0', 'blocks.1', 'head'], ['blocks.0', 'blocks.1', 'head'])
    """
    lists_a, lists_b = (
        dict.fromkeys(label.rpartition(".")[0] for label in side if is_number(label))
        for side in (here, there)
    )
    only_a = [one for one in lists_a if one not in lists_b]
    only_b = [one for one in lists_b if one not in lists_a]
    if not only_b or len(only_a) != len(only_b):
        return here, there
    renamed = dict(zip(only_b, only_a))
    parts = [label.rpartition(".") for label in there]
    return here, [
        f"{renamed[base]}{dot or '.'}{last}".lstrip(".") if last.isdigit() and base in renamed else label
        for (base, dot, last), label in zip(parts, there)
    ]


def if_numbers_changed(
    names: tuple[list[str], list[str]], here: list[Any], there: list[Any]
) -> tuple[list[Any], list[Any]]:
    """The same keys for what has a number, if the numbers are others; unlike all for the rest."""
    numbers_a, numbers_b = (Counter(filter(is_number, side)) for side in names)
    wanted = numbers_a != numbers_b
    one, two = (
        [key if wanted and is_number(label) else object() for label, key in zip(side, keys)]
        for side, keys in zip(names, (here, there))
    )
    return one, two


def as_many(here: list[Any], there: list[Any]) -> set[Any]:
    """What is as often in both."""
    counts_a, counts_b = Counter(here), Counter(there)
    return {one for one, times in counts_a.items() if counts_b[one] == times}


def is_in(graph: Graph, scope: int, outer: int) -> bool:
    """Whether a call is made inside another."""
    while scope > outer:  # a call has a higher number than those around it
        scope = int(graph.scope_parent[scope])
    return scope == outer


def place_of(graph: Graph, scope: int) -> Any:
    """The module that a call is of, and which of its calls it is."""
    return graph.modules[int(graph.scope_module[scope])], int(graph.scope_call[scope])


def calls_inside(side: Side) -> list[list[int]]:
    """For each call those that are made directly inside it."""
    graph, solid = side.graph, side.solid
    found: list[list[int]] = [[] for _ in graph.scope_call]
    for scope, parent in enumerate(graph.scope_parent.tolist()):
        if parent >= 0 and solid[scope] == scope:
            found[solid[parent]].append(scope)
    return found


def calls_around(inside: list[list[int]]) -> list[int]:
    """For each call the one that it is made directly inside of, -1 for none."""
    found = [-1] * len(inside)
    for outer, scopes in enumerate(inside):
        for scope in scopes:
            found[scope] = outer
    return found


def names_of(graph: Graph) -> list[Any]:
    """What each call is within the one around it: the last part of its path, and its class."""
    found = []
    for module, parent in zip(graph.scope_module.tolist(), graph.scope_parent.tolist()):
        path, type_, kind = graph.modules[module]
        above = graph.scope_paths[parent]
        label = path[len(above) + 1 :] if above and path.startswith(above + ".") else path
        found.append((label, type_, kind))
    return found


def ending(name: Any) -> Any:
    """The last part of a name, with its class: what is left where a list of layers was renamed."""
    return name[0].rpartition(".")[2], *name[1:]


def classes_of(graph: Graph) -> list[Any]:
    """The class of the module that each call is of."""
    return [graph.modules[module][1:] for module in graph.scope_module.tolist()]


def fingerprints(
    side: Side, inside: list[list[int]], told: Callable[[list[int]], list[Any]], known: dict[Any, int]
) -> list[int]:
    """A number for each call that is equal where all that forward runs in it is, as far as ``told`` tells of it.

    What backward runs depends on what else there is: the first layer has less to do, and a gradient may be added to one
    that was there before.
    """
    own: list[list[Any]] = [[] for _ in inside]
    for (scope, phase), nodes in side.operations.items():
        if phase == Phase.FORWARD:
            own[scope].extend(told(nodes))
    prints = [0] * len(own)
    classes = classes_of(side.graph)
    for scope in range(len(own) - 1, -1, -1):
        key = (classes[scope], tuple(own[scope]), tuple(prints[child] for child in inside[scope]))
        prints[scope] = known.setdefault(key, len(known))
    return prints


class Contents:
    """The weights that the calls of one run read, by what ``read`` tells of a value, if it is there."""

    def __init__(
        self,
        side: Side,
        inside: list[list[int]],
        read: Callable[[int], Any] | None,
        known: dict[Any, int],
    ) -> None:
        self.side, self.inside, self.read, self.known = side, inside, read, known

    def has(self, scope: int) -> bool:
        """Whether a call, or one inside it, reads weights."""
        return self._has[scope]

    def of(self, scope: int) -> int | None:
        """A number that is equal where the weights in a call, and those inside it, are; None where they say nothing."""
        return None if self.read is None else self._numbers[scope]

    @cached_property
    def _has(self) -> list[bool]:
        found = [False] * len(self.inside)
        for scope in range(len(found) - 1, -1, -1):  # a call has a higher number than those around it
            found[scope] = scope in self._values or any(found[inner] for inner in self.inside[scope])
        return found

    @cached_property
    def _numbers(self) -> list[int | None]:
        assert self.read is not None
        found: list[int | None] = [None] * len(self.inside)
        for scope in range(len(found) - 1, -1, -1):
            own = [told for value in self._values.get(scope, ()) if (told := self.read(value)) is not None]
            inner = [told for child in self.inside[scope] if (told := found[child]) is not None]
            if own or inner:
                found[scope] = self.known.setdefault((*own, None, *inner), len(self.known))
        return found

    @cached_property
    def _values(self) -> dict[int, list[int]]:
        """The parameters and buffers that each call reads itself."""
        graph = self.side.graph
        role, made = graph.value_role[graph.in_value], graph.value_producer[graph.in_value] >= 0
        rows = np.flatnonzero(~made & ((role == Role.PARAMETER) | (role == Role.BUFFER)))
        scopes, values = graph.node_scope[graph.in_node[rows]].tolist(), graph.in_value[rows].tolist()
        found: dict[int, list[int]] = defaultdict(list)
        for scope, value in dict.fromkeys(zip(scopes, values)):
            found[self.side.solid[scope]].append(value)
        return dict(found)


SAMPLES = 512  # elements that are looked at, all over the tensor


def contents_of(graph: Graph, held: KeptTensors | None) -> Callable[[int], bytes | None]:
    """For a value from outside some of its bytes; None where they are not held, or are all the same.

    >>> import torch, torch_vis as tv
    >>> t = tv.trace(torch.nn.LayerNorm(3), torch.arange(3.0))
    >>> [contents_of(t.graph, t.kept)(value.index) is None for value in t.graph.inputs]
    [False, True, True]
    """
    known: dict[int, bytes | None] = {}

    def told(value: int) -> bytes | None:
        if value not in known:
            known[value] = None if held is None else _sample(graph, held, value)
        return known[value]

    return told


def _sample(graph: Graph, held: KeptTensors, value: int) -> bytes | None:
    number = int(graph.value_storage[value])
    storage = held.originals.get(number) or held.storages.get(number)
    kind = graph.types[int(graph.value_type[value])]
    if storage is None or storage.device.type == "meta" or not kind.nbytes or kind.itemsize is None:
        return None
    begin = int(graph.value_offset[value]) * kind.itemsize
    if begin + kind.nbytes > storage.nbytes():
        return None
    with torch.no_grad():
        memory = torch.empty(0, dtype=torch.uint8, device=storage.device).set_(storage)
        elements = memory[begin : begin + kind.nbytes].view(-1, kind.itemsize)
        chosen = torch.linspace(0, len(elements) - 1, min(SAMPLES, len(elements))).long()
        some = elements[chosen.to(elements.device)].cpu().numpy()
    return None if (some == some[0]).all() else bytes(some.tobytes())
