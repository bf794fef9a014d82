"""How each operator joins and passes on the dimensions of its tensors: one rule for each kind."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from math import prod
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from torch_vis.analysis.kinds import kind_of
from torch_vis.graph import Slot
from torch_vis.graph.rows import Node

if TYPE_CHECKING:
    from torch_vis.analysis.coupling import Coupling

Ids = NDArray[np.int64]
Dims = list["Ids | None"]  # for each dimension the numbers of its indices, None where they are not followed


@dataclass
class Step:
    """One operation, as a rule sees it."""

    coupling: Coupling
    node: Node
    inputs: list[int]

    def arg(self, place: int, default: Any = None) -> Any:
        """An argument by its place; a tensor as its dimensions."""
        args = self.node.call.args
        if place >= len(args):
            return default
        return self._resolved(args[place])

    def _resolved(self, item: Any) -> Any:
        if isinstance(item, Slot):
            return self.coupling.dims(self.inputs[item.number])
        if type(item) is tuple and any(isinstance(part, Slot) for part in item):
            return [self._resolved(part) for part in item]
        return item

    def shape(self, place: int) -> tuple[int, ...]:
        """The shape of a tensor argument."""
        slot = self.node.call.args[place]
        return self.coupling.graph.values[self.inputs[slot.number]].shape

    @property
    def out(self) -> tuple[int, ...]:
        """The shape of the first output."""
        return self.node.outputs[0].shape

    def tie(self, one: Ids | None, two: Ids | None) -> Ids | None:
        """Two dimensions that go together."""
        return self.coupling.tie(
            one, two, f"{self.node.name} joins it with an input, or with what cannot be followed"
        )

    def lock(self, dims: Sequence[Ids | None], why: str) -> None:
        """Nothing of these may be cut."""
        self.coupling.lock(dims, why)


Rule = Callable[[Step], list[Dims]]


def rule_of(node: Node) -> Rule | None:
    """The rule for an operation, None where there is none, or where its tensors are not plain ones."""
    if not node.op.startswith("aten::") or any(value.type.layout != "strided" for value in node.inputs):
        return None
    name = node.name.rstrip("_")
    return RULES.get(name) or _by_kind(node.call.op, name)


def _by_kind(op: str, name: str) -> Rule | None:
    if "batch_norm" in name and "backward" not in name:
        return _batch_norm
    if "scaled_dot_product" in name or "sdp" in name:
        return _attention
    if "pool" in name or name.startswith("upsample"):
        return _pooling
    kind = kind_of(op)
    if kind in ("elementwise", "softmax"):
        return _elementwise
    return None


# ---------------------------------------------------------------- rules


def _elementwise(step: Step) -> list[Dims]:
    """Every dimension of the output is that of each input that has it."""
    out: Dims = [None] * len(step.out)
    seen = [False] * len(out)
    graph = step.coupling.graph
    for value in step.inputs:
        shape, dims = graph.values[value].shape, step.coupling.dims(value)
        for back in range(1, min(len(shape), len(out)) + 1):
            if shape[-back] == step.out[-back] and (shape[-back] > 1 or not seen[-back]):
                out[-back] = step.tie(out[-back], dims[-back]) if seen[-back] else dims[-back]
                seen[-back] = True
    return [out] * len(step.node.outputs)


def _convolution(step: Step) -> list[Dims]:
    x, weight, bias = step.arg(0), step.arg(1), step.arg(2)
    transposed, groups = bool(step.arg(6, False)), step.arg(8, 1)
    into, outof = (weight[0], weight[1]) if transposed else (weight[1], weight[0])
    step.lock(weight[2:], "it is the window of a filter")
    channels = 1 if len(x) == len(weight) else 0  # without a batch, channels come first
    if groups == 1:
        step.tie(x[channels], into)
        made = outof
    elif groups == step.shape(0)[channels] and groups == step.out[channels]:
        made = step.tie(x[channels], weight[0])  # one filter for each channel
    else:
        step.lock([x[channels], weight[0], weight[1], *(bias or [])], "channels are in groups")
        made = None
    if isinstance(bias, list) and made is not None:
        made = step.tie(made, bias[0])
    out: Dims = [None] * len(step.out)
    out[channels] = made
    if channels:
        out[0] = x[0]
    return [out]


def _addmm(step: Step) -> list[Dims]:
    added, one, two = step.arg(0), step.arg(1), step.arg(2)
    step.tie(one[-1], two[-2])
    out = [*one[:-1], two[-1]]
    if added and step.shape(0)[-1] == step.out[-1]:
        out[-1] = step.tie(out[-1], added[-1])
    return [out]


def _product(step: Step) -> list[Dims]:
    one, two = step.arg(0), step.arg(1)
    step.tie(one[-1], two[-2] if len(two) > 1 else two[0])
    return [[*one[:-1], *two[-1:]] if len(two) > 1 else list(one[:-1])]


def _linear(step: Step) -> list[Dims]:
    x, weight, bias = step.arg(0), step.arg(1), step.arg(2)
    step.tie(x[-1], weight[1])
    made = step.tie(weight[0], bias[0]) if isinstance(bias, list) else weight[0]
    return [[*x[:-1], made]]


def _batch_norm(step: Step) -> list[Dims]:
    x = step.arg(0)
    channel = x[1]
    for place in range(1, 5):
        other = step.arg(place)
        if isinstance(other, list) and len(other) == 1:
            channel = step.tie(channel, other[0])
    out = [*x[:1], channel, *x[2:]]
    return [out, *([channel] for _ in step.node.outputs[1:])]


def _layer_norm(step: Step) -> list[Dims]:
    x, sizes = step.arg(0), step.arg(1)
    if len(sizes) != 1:
        step.lock(x[-len(sizes) :], "it is normalised over several dimensions")
        return [list(x)]
    last = x[-1]
    for place in (2, 3):
        other = step.arg(place)
        if isinstance(other, list):
            last = step.tie(last, other[0])
    return [[*x[:-1], last], *([*x[:-1], None] for _ in step.node.outputs[1:])]


def _group_norm(step: Step) -> list[Dims]:
    x = step.arg(0)
    step.lock(
        [x[1], *(ids for place in (1, 2) for ids in step.arg(place) or [])], "it is normalised in groups"
    )
    return [[x[0], None, *x[2:]]]


def _embedding(step: Step) -> list[Dims]:
    weight, indices = step.arg(0), step.arg(1)
    step.lock([weight[0]], "its rows are looked up by number")
    return [[*indices, weight[1]]]


def _pooling(step: Step) -> list[Dims]:
    x = step.arg(0)
    kept = len(x) - (len(step.out) - 2 if len(x) >= 4 else 1)
    return [[*x[:kept], *([None] * (len(x) - kept))]] * len(step.node.outputs)


def _reduction(step: Step) -> list[Dims]:
    x, over, keep = step.arg(0), step.arg(1), bool(step.arg(2, False))
    if over is None or (isinstance(over, tuple) and not over):
        return [[]]
    chosen = {number % len(x) for number in (over if isinstance(over, tuple) else (over,))}
    if keep:
        out: Dims = [None if place in chosen else ids for place, ids in enumerate(x)]
    else:
        out = [ids for place, ids in enumerate(x) if place not in chosen]
    return [out] * len(step.node.outputs)


def _permute(step: Step) -> list[Dims]:
    x, order = step.arg(0), step.arg(1)
    return [[x[place] for place in order]]


def _transpose(step: Step) -> list[Dims]:
    made = list(step.arg(0))
    one, two = (step.arg(1), step.arg(2)) if step.node.name.startswith("transpose") else (-1, -2)
    if len(made) > 1:
        made[one], made[two] = made[two], made[one]
    return [made]


def _view(step: Step) -> list[Dims]:
    return [reshaped(step, step.arg(0), step.shape(0), step.out)]


def _expand(step: Step) -> list[Dims]:
    x, shape = step.arg(0), step.shape(0)
    out: Dims = [None] * len(step.out)
    for back in range(1, len(x) + 1):
        out[-back] = x[-back] if shape[-back] == step.out[-back] else None
    return [out]


def _same(step: Step) -> list[Dims]:
    return [list(step.arg(0))]


def _made(step: Step) -> list[Dims]:
    """Something new: of constants, or with the shape of what it is given."""
    if step.inputs:
        dims = step.coupling.dims(step.inputs[0])
        return [list(dims) if len(dims) == len(step.out) else [None] * len(step.out)]
    return [[None] * len(value.shape) for value in step.node.outputs]


def _cat(step: Step) -> list[Dims]:
    parts, axis = step.arg(0), step.arg(1, 0)
    axis %= len(step.out)
    parts = [part for part in parts if len(part) == len(step.out)]  # an empty tensor may have one dimension
    out: Dims = list(parts[0])
    for part in parts[1:]:
        for place in range(len(out)):
            if place != axis:
                out[place] = step.tie(out[place], part[place])
    joined = [part[axis] for part in parts]
    if any(ids is None for ids in joined):
        step.lock(joined, "it is put beside what cannot be followed")
        out[axis] = None
    else:
        out[axis] = np.concatenate([ids for ids in joined if ids is not None])
    return [out]


def _split(step: Step) -> list[Dims]:
    x, axis = step.arg(0), step.arg(2, 0)
    axis %= len(x)
    lengths = [value.shape[axis] for value in step.node.outputs]
    ids = x[axis]
    pieces: list[Ids | None] = [None] * len(lengths)
    if ids is not None and len(set(lengths)) == 1:
        # A program that cuts into equal parts does so by size: what goes from one must go from all.
        cut = np.split(ids, len(lengths))
        for piece in cut[1:]:
            step.tie(cut[0], piece)
        pieces = list(cut)
    else:
        step.lock([ids], "it is split into parts of fixed sizes")
    return [[*x[:axis], piece, *x[axis + 1 :]] for piece in pieces]


def _slice(step: Step) -> list[Dims]:
    x, axis = step.arg(0), step.arg(1, 0)
    axis %= len(x)
    out = list(x)
    if step.shape(0)[axis] != step.out[axis]:
        step.lock([x[axis]], "a part of it is taken by number")
        out[axis] = None
    return [out]


def _select(step: Step) -> list[Dims]:
    x, axis = step.arg(0), step.arg(1, 0)
    axis %= len(x)
    step.lock([x[axis]], "one of it is taken by number")
    return [[*x[:axis], *x[axis + 1 :]]]


def _attention(step: Step) -> list[Dims]:
    query, key, value = step.arg(0), step.arg(1), step.arg(2)
    step.lock([query[-1], key[-1]], "attention is scaled by its size")
    heads = step.tie(step.tie(query[1], key[1]), value[1])
    out: Dims = [query[0], heads, *query[2:-1], value[-1]]
    return [out if len(out) == len(o.shape) else [None] * len(o.shape) for o in step.node.outputs]


def _pad(step: Step) -> list[Dims]:
    x, sizes = step.arg(0), step.arg(1)
    out = list(x)
    for number in range(len(sizes) // 2):
        if sizes[2 * number] or sizes[2 * number + 1]:
            step.lock([out[-1 - number]], "it is padded")
            out[-1 - number] = None
    return [out]


RULES: dict[str, Rule] = {
    "convolution": _convolution,
    "_convolution": _convolution,
    "addmm": _addmm,
    "baddbmm": _addmm,
    "mm": _product,
    "bmm": _product,
    "mv": _product,
    "matmul": _product,
    "linear": _linear,
    "native_layer_norm": _layer_norm,
    "native_group_norm": _group_norm,
    "embedding": _embedding,
    "permute": _permute,
    "transpose": _transpose,
    "t": _transpose,
    "expand": _expand,
    "cat": _cat,
    "split": _split,
    "chunk": _split,
    "slice": _slice,
    "select": _select,
    "constant_pad_nd": _pad,
    **dict.fromkeys(
        "view _unsafe_view reshape _reshape_alias flatten unsqueeze squeeze unflatten".split(), _view
    ),
    **dict.fromkeys(
        "mean sum amax amin prod std var var_mean logsumexp norm linalg_vector_norm".split(), _reduction
    ),
    **dict.fromkeys(
        "clone contiguous _to_copy detach alias dropout lift_fresh native_dropout copy cumsum".split(),
        _elementwise,
    ),
    **dict.fromkeys(
        "empty empty_like zeros zeros_like ones ones_like full full_like arange rand_like bernoulli scalar_tensor "
        "empty_strided new_zeros new_ones new_empty new_full tril triu".split(),
        _made,
    ),
}


# ---------------------------------------------------------------- shapes


def reshaped(step: Step, dims: Dims, before: Sequence[int], after: Sequence[int]) -> Dims:
    """The numbers along the dimensions of a tensor in another shape."""
    out: Dims = [None] * len(after)
    for old, new in _matched(before, after):
        followed = [place for place in old if dims[place] is not None and before[place] > 1]
        if not followed:
            continue
        sizes = [before[place] for place in old]
        if len(followed) > 1:
            step.lock([dims[place] for place in followed], "a view merges it with another")
            continue
        where = old.index(followed[0])
        ids = dims[followed[0]]
        assert ids is not None
        spread = np.broadcast_to(ids.reshape([-1 if n == where else 1 for n in range(len(old))]), sizes)
        cells = spread.reshape([after[place] for place in new])
        varies = [place for place in range(len(new)) if _varies(cells, place)]
        if len(varies) > 1:
            step.lock([ids], "a view splits it")
            continue
        keep = varies[0] if varies else 0
        line = cells[tuple(slice(None) if place == keep else 0 for place in range(len(new)))]
        out[new[keep]] = line.copy()
    return out


def _varies(cells: Ids, axis: int) -> bool:
    first = np.take(cells, [0], axis=axis)
    return bool((cells != first).any())


def _matched(before: Sequence[int], after: Sequence[int]) -> list[tuple[list[int], list[int]]]:
    """Dimensions of two shapes that hold the same elements: of ``(2, 3, 4)`` and ``(6, 4)``, 0, 1 and 0; 2 and 1."""
    if 0 in before or prod(before) != prod(after):
        return []
    found = []
    i = j = 0
    while i < len(before) and j < len(after):
        old, new = [i], [j]
        left, right = before[i], after[j]
        while left != right:
            if left < right:
                i += 1
                old.append(i)
                left *= before[i]
            else:
                j += 1
                new.append(j)
                right *= after[j]
        found.append((old, new))
        i, j = i + 1, j + 1
    return found
