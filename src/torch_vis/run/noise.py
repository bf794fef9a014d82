"""Which tensors of a run are zero but for rounding: what an exact computation would have cancelled.

The gradient of a bias before a batch normalisation is such a sum: its elements are what rounding left of zero. By how
much it differs from another run's, relative to itself, says nothing.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
import torch
from numpy.typing import NDArray

from torch_vis.graph.graph import Graph
from torch_vis.graph.schema import Flag, Kind
from torch_vis.graph.template import short_name
from torch_vis.run.observe import Watched

FOREACH = "_foreach_"
SLACK = 4.0  # times the rounding that is expected
ACCUMULATES = 2.0**-23  # eps of what sums are held in: float32, or better
SUMS = frozenset({"sum", "mean"})
PRODUCTS = frozenset({"mm", "addmm", "bmm", "baddbmm", "mv", "addmv", "convolution", "convolution_backward"})
ADDS = frozenset({"add", "sub", "rsub", "lerp", "addcmul"})
SCALES = frozenset({"mul", "div", "neg", "clone", "_to_copy", "detach"})  # what is noise stays noise


class Noise:
    """Follows a run that is watched; ``after(node)`` is to be called when an operation has run."""

    def __init__(self, run: Watched) -> None:
        self.run, self.graph = run, run.graph
        self.values: set[int] = set()
        self.nodes = np.zeros(len(self.graph), dtype=bool)
        names = [short_name(call.op).rstrip("_") for call in self.graph.calls]
        self._foreach = [name.startswith(FOREACH) for name in names]
        names = [name.removeprefix(FOREACH) for name in names]
        self._kind = [_kind(name) for name in names]
        self._name = names
        views = (self.graph.node_flags & Flag.VIEW) != 0
        self._view = views.tolist()
        self._sizes = self._outside(_read_by_sums(self.graph, self._kind))

    def _outside(self, wanted: NDArray[np.bool_]) -> dict[int, float]:
        """The norms that are wanted of what came from outside; of all else they are still to come."""
        self._wanted = wanted
        outside = np.flatnonzero(wanted & (self.graph.value_producer < 0)).tolist()
        return {value: size_of(self.run.replay.tensor(value)) for value in outside}

    def after(self, node: int) -> None:
        """Look at what an operation made."""
        graph = self.graph
        kind = "scales" if self._view[node] else self._kind[int(graph.node_call[node])]
        made = graph.out_value[slice(*graph.output_span(node))].tolist()
        measured = [value for value in made if self._wanted[value]]
        if not kind and not measured:
            return
        tensors = (
            dict(zip(made, self.run.made(node))) if measured or kind in ("sums", "products", "adds") else {}
        )
        for value in measured:
            self._sizes[value] = size_of(tensors[value])
        if kind:
            read = [value.index for value in graph.nodes[node].inputs]
            lists = self._foreach[int(graph.node_call[node])]
            for place, value in enumerate(made):
                own = read[place :: len(made)] if lists else read
                if self._is_noise(kind, node, own, value, tensors.get(value)):
                    self.values.add(value)
            self.nodes[node] = bool(made) and all(value in self.values for value in made)

    def _is_noise(
        self, kind: str, node: int, read: Sequence[int], value: int, made: torch.Tensor | None
    ) -> bool:
        if kind == "scales":
            return bool(read) and read[0] in self.values
        if kind == "copies":
            return bool(read) and read[-1] in self.values
        if made is None or not made.is_floating_point() or not made.numel():
            return False
        sizes = {one: self._sizes.get(one, 0.0) for one in read}
        if kind == "adds":
            if len(read) < 2:  # to a number, which is no tensor
                return False
            noisy = [one for one in read if one in self.values]
            if noisy and all(one in self.values or not sizes[one] for one in read):
                return True
        name = self._name[int(self.graph.node_call[node])]
        if name == "convolution_backward" and made.dim() == 1:
            kind, read = "sums", read[:1]  # the gradient of the bias
        elif kind == "products":
            read = _factors(name, read, sizes)
        if kind == "sums" and read and read[0] in self.values:
            return True
        size = self._sizes[value] if value in self._sizes else size_of(made)
        floor = self._floor(kind, name, [(sizes[one], self._numel(one)) for one in read], made)
        return 0 < floor < math.inf and size <= floor  # where nothing went in, zero is exact

    def _floor(self, kind: str, name: str, read: list[tuple[float, int]], made: torch.Tensor) -> float:
        """The norm down to which a result is nothing but rounding: by how large what went in was."""
        eps = torch.finfo(made.dtype).eps
        if kind == "adds":
            return SLACK * eps * max(size for size, _ in read)
        if kind == "sums" and read:
            terms = read[0][1] / made.numel()
            floor = SLACK * read[0][0] * (eps + ACCUMULATES * terms**0.5)
            return floor / terms if name == "mean" else floor
        if len(read) < 2:
            return 0.0
        (one, many), (two, others) = read
        terms = max(1.0, (many * others / made.numel()) ** 0.5)
        return SLACK * one * two * (eps / terms**0.5 + ACCUMULATES)

    def _numel(self, value: int) -> int:
        return self.graph.types[self.graph.value_type[value]].numel


def _factors(name: str, read: Sequence[int], sizes: dict[int, float]) -> Sequence[int]:
    """Of what a product reads, the two that are multiplied: what is added comes before them, or after."""
    if name == "convolution_backward":  # a gradient by the input, and by the weight
        return [read[0], max(read[1:3], key=sizes.__getitem__)]
    return read[:2] if name == "convolution" else read[-2:]


def _kind(name: str) -> str:
    for kind, names in (("sums", SUMS), ("products", PRODUCTS), ("adds", ADDS), ("scales", SCALES)):
        if name in names:
            return kind
    return "copies" if name == "copy" else ""


def _read_by_sums(graph: Graph, kinds: list[str]) -> NDArray[np.bool_]:
    """A mask of the values that sums of some kind read."""
    adding = np.array([kind in ("sums", "products", "adds") for kind in kinds], dtype=bool)
    rows = graph.in_kind != Kind.SHAPE
    if len(adding):
        rows &= adding[graph.node_call][graph.in_node]
    found = np.zeros(len(graph.value_type), dtype=bool)
    found[graph.in_value[rows]] = True
    return found


def size_of(tensor: torch.Tensor) -> float:
    """The norm of a plain floating-point tensor; 0 of any other."""
    if (
        tensor.is_nested
        or tensor.layout is not torch.strided
        or tensor.is_meta
        or not tensor.is_floating_point()
    ):
        return 0.0
    wide = torch.float64 if tensor.dtype == torch.float64 else torch.float32
    return float(torch.linalg.vector_norm(tensor, dtype=wide))
