"""By what calls of modules can be recognised in another run: names, classes, what forward does, and weights."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Sequence
from functools import cached_property
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from torch_vis.analysis.compare.sides import Side
from torch_vis.graph.graph import Graph
from torch_vis.graph.schema import Phase, Role
from torch_vis.graph.tree import inner_path

if TYPE_CHECKING:
    from torch_vis.capture.kept_tensors import KeptTensors

# Elements of a tensor that its digest looks at, spread all over it.
SAMPLES = 512

WeightDigest = Callable[[int], Any]
"""For a value something that is equal where the contents are; None where they are unknown or say nothing."""


class Key(NamedTuple):
    """What two calls must have in common to be paired: for each call of ``a``, and for each of ``b``."""

    a: Sequence[Any]
    b: Sequence[Any]
    in_any_order: bool = False
    labels: tuple[Sequence[str], Sequence[str]] | None = None
    """Pair those with equal keys by these names, not by their order."""
    only_renumbered: bool = False
    """Pair only calls with an index for a name, and only if the indices are not the same in both."""
    only_equal_counts: tuple[Sequence[Any], Sequence[Any]] | None = None
    """Pair only kinds of which both have equally many: where three layers became one, none of them is that one."""
    by_weights: bool = False
    """Pair calls with equal weights, and what lies between those."""
    only_renamed: bool = False
    """Pair calls whose name and class are in both only if their weights are equal too.

    What has another size may do in one run what another module does in the other.
    """


def is_index(label: str) -> bool:
    """Whether a name is an index in a list of modules."""
    return label.rpartition(".")[2].isdigit()


def with_lists_renamed(labels_a: list[str], labels_b: list[str]) -> tuple[list[str], list[str]]:
    """The same names, but lists of modules that were renamed in ``b`` have the names that they have in ``a``.

    >>> with_lists_renamed(["blocks.0", "blocks.1", "head"], ["layers.0", "layers.1", "head"])
    (['blocks.0', 'blocks.1', 'head'], ['blocks.0', 'blocks.1', 'head'])
    """
    lists_a, lists_b = (
        dict.fromkeys(label.rpartition(".")[0] for label in labels if is_index(label))
        for labels in (labels_a, labels_b)
    )
    only_a = [name for name in lists_a if name not in lists_b]
    only_b = [name for name in lists_b if name not in lists_a]
    if not only_b or len(only_a) != len(only_b):
        return labels_a, labels_b
    renamed = dict(zip(only_b, only_a))
    parts = [label.rpartition(".") for label in labels_b]
    return labels_a, [
        f"{renamed[base]}{dot or '.'}{last}".lstrip(".") if last.isdigit() and base in renamed else label
        for (base, dot, last), label in zip(parts, labels_b)
    ]


def only_renumbered(
    labels: tuple[list[str], list[str]], keys_a: list[Any], keys_b: list[Any]
) -> tuple[list[Any], list[Any]]:
    """The keys of calls with an index for a name, if the indices differ between the runs; unlike all for the rest."""
    indices_a, indices_b = (Counter(filter(is_index, names)) for names in labels)
    wanted = indices_a != indices_b
    renumbered_a, renumbered_b = (
        [key if wanted and is_index(label) else object() for label, key in zip(names, keys)]
        for names, keys in zip(labels, (keys_a, keys_b))
    )
    return renumbered_a, renumbered_b


def is_inside(graph: Graph, scope: int, outer: int) -> bool:
    """Whether a call is made inside another."""
    tree = graph.tree
    return bool(tree.enter[outer] <= tree.enter[scope] < tree.leave[outer])


def call_key(graph: Graph, scope: int) -> Any:
    """The module that a call is of, and which of its calls it is."""
    return graph.modules[int(graph.scope_module[scope])], int(graph.scope_call[scope])


def children_of(side: Side) -> list[list[int]]:
    """For each call those that are made directly inside it."""
    children: list[list[int]] = [[] for _ in side.graph.scope_call]
    for scope, parent in enumerate(side.graph.scope_parent.tolist()):
        if parent >= 0 and side.owner[scope] == scope:
            children[side.owner[parent]].append(scope)
    return children


def parents_of(children: list[list[int]]) -> list[int]:
    """For each call the one that it is made directly inside of, -1 for none."""
    parents = [-1] * len(children)
    for outer, scopes in enumerate(children):
        for scope in scopes:
            parents[scope] = outer
    return parents


def empty_calls(side: Side, children: list[list[int]]) -> list[bool]:
    """For each call whether no operation runs in it, nor in a call inside it."""
    empty = [True] * len(children)
    for scope, _ in side.operations:
        empty[scope] = False
    # a call has a higher index than those around it
    for scope in range(len(empty) - 1, -1, -1):
        empty[scope] = empty[scope] and all(empty[child] for child in children[scope])
    return empty


def local_names(graph: Graph) -> list[tuple[str, str, str]]:
    """For each call its path within the one around it, its class and its kind."""
    names = []
    for module, parent in zip(graph.scope_module.tolist(), graph.scope_parent.tolist()):
        path, type_, kind = graph.modules[module]
        above = graph.scope_paths[parent]
        names.append((inner_path(path, above), type_, kind))
    return names


def last_part(name: tuple[str, str, str]) -> tuple[str, str, str]:
    """A name by its last part alone, which stays where a list of layers was renamed."""
    return name[0].rpartition(".")[2], *name[1:]


def classes_of(graph: Graph) -> list[Any]:
    """The class and kind of the module that each call is of."""
    return [graph.modules[module][1:] for module in graph.scope_module.tolist()]


def fingerprints(
    side: Side, children: list[list[int]], describe: Callable[[list[int]], list[Any]], known: dict[Any, int]
) -> list[int]:
    """A number for each call, equal where all that forward runs in it is, as far as ``describe`` tells operations.

    Backward is left out: it depends on what else there is. The first layer has less to do, and a gradient may be added
    to one that was there before.
    """
    own: list[list[Any]] = [[] for _ in children]
    for (scope, phase), nodes in side.operations.items():
        if phase == Phase.FORWARD:
            own[scope].extend(describe(nodes))
    prints = [0] * len(own)
    classes = classes_of(side.graph)
    for scope in range(len(own) - 1, -1, -1):
        key = (classes[scope], tuple(own[scope]), tuple(prints[child] for child in children[scope]))
        prints[scope] = known.setdefault(key, len(known))
    return prints


class CallWeights:
    """The weights that the calls of one run read, as digests, where the run holds them."""

    def __init__(
        self, side: Side, children: list[list[int]], digest: WeightDigest | None, known: dict[Any, int]
    ) -> None:
        self.side, self.children, self._digest, self.known = side, children, digest, known

    def has(self, scope: int) -> bool:
        """Whether a call, or one inside it, reads weights."""
        return self._has[scope]

    def digest(self, scope: int) -> int | None:
        """A number that is equal where the weights in a call, and inside it, are; None where they say nothing."""
        return None if self._digest is None else self._digests[scope]

    @cached_property
    def _has(self) -> list[bool]:
        has = [False] * len(self.children)
        # a call has a higher index than those around it
        for scope in range(len(has) - 1, -1, -1):
            has[scope] = scope in self._values or any(has[child] for child in self.children[scope])
        return has

    @cached_property
    def _digests(self) -> list[int | None]:
        assert self._digest is not None
        digests: list[int | None] = [None] * len(self.children)
        for scope in range(len(digests) - 1, -1, -1):
            own = [d for value in self._values.get(scope, ()) if (d := self._digest(value)) is not None]
            inner = [d for child in self.children[scope] if (d := digests[child]) is not None]
            if own or inner:
                digests[scope] = self.known.setdefault((*own, None, *inner), len(self.known))
        return digests

    @cached_property
    def _values(self) -> dict[int, list[int]]:
        """The parameters and buffers that each call reads itself."""
        graph = self.side.graph
        role, produced = graph.value_role[graph.in_value], graph.value_producer[graph.in_value] >= 0
        rows = np.flatnonzero(~produced & ((role == Role.PARAMETER) | (role == Role.BUFFER)))
        scopes, values = graph.node_scope[graph.in_node[rows]].tolist(), graph.in_value[rows].tolist()
        by_call: dict[int, list[int]] = defaultdict(list)
        for scope, value in dict.fromkeys(zip(scopes, values)):
            by_call[self.side.owner[scope]].append(value)
        return dict(by_call)


def weight_digest(graph: Graph, kept: KeptTensors | None) -> Callable[[int], bytes | None]:
    """For a value from before the run some of its bytes; None where they are not kept, or are all the same.

    >>> import torch, torch_vis as tv
    >>> t = tv.trace(torch.nn.LayerNorm(3), torch.arange(3.0))
    >>> [weight_digest(t.graph, t.kept)(value.index) is None for value in t.graph.inputs]
    [False, True, True]
    """
    known: dict[int, bytes | None] = {}

    def digest(value: int) -> bytes | None:
        if value not in known:
            known[value] = None if kept is None else _sample(graph, kept, value)
        return known[value]

    return digest


def _sample(graph: Graph, kept: KeptTensors, value: int) -> bytes | None:
    # traces from files hold no tensors, and are compared without torch
    import torch

    from torch_vis.capture.modes import without_gradients

    number = int(graph.value_storage[value])
    storage = kept.originals.get(number) or kept.storages.get(number)
    type_ = graph.types[int(graph.value_type[value])]
    if storage is None or storage.device.type == "meta" or not type_.nbytes or type_.itemsize is None:
        return None
    begin = int(graph.value_offset[value]) * type_.itemsize
    if begin + type_.nbytes > storage.nbytes():
        return None
    with without_gradients():
        memory = torch.empty(0, dtype=torch.uint8, device=storage.device).set_(storage)
        elements = memory[begin : begin + type_.nbytes].view(-1, type_.itemsize)
        chosen = torch.linspace(0, len(elements) - 1, min(SAMPLES, len(elements))).long()
        sample = elements[chosen.to(elements.device)].cpu().numpy()
    return None if (sample == sample[0]).all() else bytes(sample.tobytes())
