"""Layers of parameters: how large their gradients are, and how that compares with their like at other depths.

The elements of a bias's gradient, of a query's and of a norm's differ by orders of magnitude wherever they stand, so a
layer is measured by what is like it: those of the same name but for numbers or, where there are none, those that
multiply (or shift, or are looked up) as it does. A gradient comes from the loss, so it is the last of these that count.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np

from torch_vis.graph.call import short_name
from torch_vis.graph.graph import Graph
from torch_vis.graph.schema import Phase, Role
from torch_vis.views.charts.labels import NUMBER

FAR = 1e3  # times under or over what a layer's like next to the loss have
BEYOND = 1e6  # times a layer's own weights
NEXT = 0.25  # the share of the layers that counts as next to the loss
ALL = "all layers"
DIGITS = re.compile(r"\d+")


class Layer(NamedTuple):
    """The parameters of one module: the norms of their gradients and of themselves, and what is wrong, if anything.

    A module with several matrices (an LSTM) has a layer for each of its parameters. ``rms`` is the root of the mean
    square of the gradient's elements, which does not grow with the size of a layer. ``elements`` counts all parameters
    that the run used, also those without a gradient; ``reason`` is why a layer has none. Of a layer that never ran,
    nothing else is known. ``like`` are the layers that it is measured by, and ``usual_rms`` what they have next to the
    loss.
    """

    path: str
    elements: int
    gradient_norm: float | None
    weight_norm: float | None
    ratio: float | None
    rms: float | None
    verdict: str
    reason: str = ""
    like: str = ""
    usual_rms: float | None = None


class Place(NamedTuple):
    """What a layer is and where it stands: ``kind`` of parameters, and the storages that its module reads."""

    kind: str
    reads: frozenset[int]


def parameters_by_layer(shapes: Mapping[str, Sequence[int]]) -> dict[str, list[str]]:
    """The parameters of each layer, by path: those of a module or, if it has several matrices, each by itself.

    >>> parameters_by_layer({"fc.weight": (4, 3), "fc.bias": (4,), "rnn.w0": (4, 4), "rnn.w1": (4, 4)})
    {'fc': ['fc.weight', 'fc.bias'], 'rnn.w0': ['rnn.w0'], 'rnn.w1': ['rnn.w1']}
    """
    modules: dict[str, list[str]] = {}
    for name in shapes:
        modules.setdefault(name.rpartition(".")[0], []).append(name)
    result: dict[str, list[str]] = {}
    for path, names in modules.items():
        if sum(_is_matrix(shapes[name]) for name in names) > 1:
            result.update({name: [name] for name in names})
        else:
            result[path] = names
    return result


def first_reads(graph: Graph) -> dict[str, int]:
    """The first operation that reads each parameter, also where another module than its own does."""
    given = graph.value_producer[graph.in_value] < 0
    result: dict[str, int] = {}
    for row in np.flatnonzero(given & (graph.value_role[graph.in_value] == Role.PARAMETER)).tolist():
        result.setdefault(graph.values[int(graph.in_value[row])].name or "", int(graph.in_node[row]))
    return result


def places_of(graph: Graph, layers: Mapping[str, Sequence[str]]) -> dict[str, Place]:
    """What each layer is, and what its module reads."""
    outside = np.flatnonzero((graph.value_role == Role.PARAMETER) & (graph.value_producer < 0)).tolist()
    values = {graph.values[value].name or "": value for value in outside}
    looked_up = {number for number, call in enumerate(graph.calls) if "embedding" in short_name(call.op)}
    read: dict[str, set[int]] = {}
    rows: set[int] = set()
    forward = graph.node_phase[graph.in_node] == Phase.FORWARD
    for node, value in zip(graph.in_node[forward].tolist(), graph.in_value[forward].tolist()):
        if graph.value_role[value] == Role.PARAMETER and graph.value_producer[value] < 0:
            if int(graph.node_call[node]) in looked_up:
                rows.add(value)
        else:
            path = graph.scope_paths[graph.node_scope[node]]
            read.setdefault(path, set()).add(int(graph.value_storage[value]))
    result = {}
    for path, names in layers.items():
        module = names[0].rpartition(".")[0]
        own = [values[name] for name in names if name in values]
        matrix = any(_is_matrix(graph.types[graph.value_type[value]].shape) for value in own)
        kind = "look-ups" if rows.intersection(own) else "matrices" if matrix else "vectors"
        result[path] = Place(kind, frozenset(read.get(module, ())))
    return result


def judged(rows: Sequence[Layer], where: Mapping[str, Place]) -> list[Layer]:
    """The layers, in the order in which they ran, with what they are measured by and what is wrong.

    One that has no namesakes is not at fault as long as the gradient comes through to where it stands: to others of
    its kind that ran before it or read what it reads. And those that are alike, but far from all others, go by what
    they feed: an embedding vanishes with the layers above it, an encoder with its decoder.
    """
    kinds = [where[row.path].kind if row.path in where else "" for row in rows]
    names = _namesakes(rows, kinds)
    by_name, by_kind = _next_to_loss(rows, names), _next_to_loss(rows, kinds)
    off = [_apart(row, by_kind.get(kind)) for row, kind in zip(rows, kinds)]
    sound = [(row, kind) for row, kind, apart in zip(rows, kinds, off) if _is_sound(row) and not apart]
    read = {(kind, storage) for row, kind in sound for storage in where[row.path].reads}
    first = {kind: row for row, kind in reversed(sound)}
    result: list[Layer] = []
    reached: set[str] = set()  # the kinds that have had a sound layer
    for row, name, kind, apart in zip(rows, names, kinds, off):
        usual = by_name.get(name) if name else by_kind.get(kind)
        if name:
            apart = _apart(row, usual)
        elif apart and (kind in reached or any((kind, one) in read for one in where[row.path].reads)):
            apart = ""
        if first.get(kind) is row:
            reached.add(kind)
        if row.rms is not None:
            row = row._replace(like=name or kind, usual_rms=usual)
        result.append(row._replace(verdict=_own_verdict(row) or apart))
    return _with_what_they_feed(result, _next_to_loss(rows, [""] * len(rows)).get(""))


def _namesakes(rows: Sequence[Layer], kinds: Sequence[str]) -> list[str]:
    """What layers at other depths are called like each one: numbers of blocks left open, or any numbers; or nothing."""
    blocks = [NUMBER.sub("*", row.path) for row in rows]
    digits = [DIGITS.sub("*", row.path) for row in rows]
    counts = Counter(
        (pattern, kind)
        for row, kind, *patterns in zip(rows, kinds, blocks, digits)
        if _is_sound(row)
        for pattern in dict.fromkeys(patterns)
    )
    return [
        next((pattern for pattern in patterns if counts[pattern, kind] > 1), "")
        for kind, *patterns in zip(kinds, blocks, digits)
    ]


def _next_to_loss(rows: Sequence[Layer], groups: Sequence[str]) -> dict[str, float]:
    """By group, the median of what its layers next to the loss have."""
    sound: dict[str, list[float]] = {}
    for row, group in zip(rows, groups):
        if row.rms is not None and _is_sound(row):
            sound.setdefault(group, []).append(row.rms)
    return {
        group: float(np.median(result[-max(1, round(len(result) * NEXT)) :]))
        for group, result in sound.items()
    }


def _with_what_they_feed(found: list[Layer], usual: float | None) -> list[Layer]:
    """The same, with the verdict on the next layer that is not its like on those that are as far from all others."""
    nearest = other = (
        "",
        "",
    )  # the layer after each, and the next one that is not like that: like and verdict
    for number in reversed(range(len(found))):
        row = found[number]
        if row.rms is None:
            continue
        after = nearest[1] if nearest[0] != row.like else other[1]
        if not row.verdict and after and _apart(row, usual) == after:
            found[number] = row._replace(verdict=after, like=ALL, usual_rms=usual)
        other = nearest if nearest[0] != row.like else other
        nearest = row.like, found[number].verdict
    return found


def _is_sound(row: Layer) -> bool:
    return bool(row.rms) and bool(np.isfinite(row.rms or 0.0))


def _own_verdict(row: Layer) -> str:
    """What a layer's own figures say."""
    if row.reason:
        return "no gradient"
    if row.rms is None:
        return ""
    if row.rms == 0:
        return "zero"
    if np.isnan(row.rms):
        return "NaN"
    return "exploding" if np.isinf(row.rms) or (row.ratio or 0.0) > BEYOND else ""


def _apart(row: Layer, usual: float | None) -> str:
    """How a layer differs from what is usual, if it does."""
    if usual is None or row.rms is None or not _is_sound(row):
        return ""
    return "exploding" if row.rms > usual * FAR else "vanishing" if row.rms < usual / FAR else ""


def _is_matrix(shape: Sequence[int]) -> bool:
    return sum(size > 1 for size in shape) > 1
