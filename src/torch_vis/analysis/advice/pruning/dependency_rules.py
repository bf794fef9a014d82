"""How each operator joins and passes on the dimensions of its tensors: one rule for each kind."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from torch_vis.analysis.advice.pruning.dependency_recurrent import RECURRENT_RULES
from torch_vis.analysis.advice.pruning.dependency_shapes import SHAPE_RULES
from torch_vis.analysis.advice.pruning.dependency_step import Dims, Entry, Ids, Rule, Step
from torch_vis.graph.graph import Node
from torch_vis.ops.families import kind_of


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
    if kind == "softmax":
        return _along
    return _elementwise if kind == "elementwise" else None


# ---------------------------------------------------------------- rules


def _elementwise(step: Step) -> list[list[Entry]]:
    """Every dimension of the output is that of each input that has it."""
    graph, coupling = step.coupling.graph, step.coupling
    if len(set(step.inputs)) == 1 and graph.values[step.inputs[0]].shape == step.out:
        return [coupling.raw(step.inputs[0])] * len(step.node.outputs)
    tensors = [(coupling.dims(value), graph.values[value].shape) for value in step.inputs]
    return [[*step.joined(*tensors, shape=step.out)]] * len(step.node.outputs)


def _along(step: Step) -> Sequence[Sequence[Entry]]:
    """As elementwise, where the elements along one dimension depend on each other."""
    axis = step.arg(1)
    if isinstance(axis, int):
        step.mix([step.arg(0)[axis]])
    return _elementwise(step)


def _convolution(step: Step) -> list[Dims]:
    x, weight, bias = step.arg(0), step.arg(1), step.arg(2)
    transposed, groups = bool(step.arg(6, False)), step.arg(8, 1)
    into, outof = (weight[0], weight[1]) if transposed else (weight[1], weight[0])
    step.lock(weight[2:], "it is the window of a filter")
    channels = 1 if len(x) == len(weight) else 0  # without a batch, channels come first
    if groups == 1:
        step.contract(0, x[channels], 1, into)
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
    made = _matrices(step, 1, 2)
    return [step.joined((made, step.out), (step.arg(0), step.shape(0)), shape=step.out)]


def _product(step: Step) -> list[Dims]:
    return [_matrices(step, 0, 1)]


def _matrices(step: Step, left: int, right: int) -> Dims:
    """The dimensions of a product of two arguments: leading ones go together, the inner one is summed over."""
    one, two = step.arg(left), step.arg(right)
    step.contract(left, one[-1], right, two[-2] if len(two) > 1 else two[0])
    ends: Dims = [*one[-2:-1], *(two[-1:] if len(two) > 1 else ())]
    sizes = step.out[: len(step.out) - len(ends)]
    lead = step.joined((one[:-2], step.shape(left)[:-2]), (two[:-2], step.shape(right)[:-2]), shape=sizes)
    if not any(step.coupling.is_plain(step.value(place)) for place in (left, right)):
        step.coupling.attend(lead, step.node.path)
    return [*lead, *ends]


def _linear(step: Step) -> list[Dims]:
    x, weight, bias = step.arg(0), step.arg(1), step.arg(2)
    step.contract(0, x[-1], 1, weight[1])
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
    step.mix([last])
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


def _reduction(step: Step) -> Sequence[Sequence[Entry]]:
    if step.node.name in ("max", "min") and len(step.inputs) > 1:
        return _elementwise(step)  # the larger of two tensors
    x, first = step.arg(0), 2 if "norm" in step.node.name else 1  # a norm has its order before the dimensions
    over, named = step.arg(first), dict(step.node.call.kwargs)
    keep = bool(named.get("keepdim", step.arg(first + 1, False)))
    every = over is None or (isinstance(over, tuple) and not over)
    places = range(len(x)) if every else (over if isinstance(over, tuple) else (over,))
    chosen = {number % len(x) for number in places} if x else set()
    step.mix([x[place] for place in chosen])
    if _numbers_used(step):
        step.lock([x[place] for place in chosen], f"{step.node.name} gives the number of one of it")
    if len(step.out) == len(x) and keep:
        out: Dims = [None if place in chosen else ids for place, ids in enumerate(x)]
    else:
        out = [ids for place, ids in enumerate(x) if place not in chosen]
    return [out] * len(step.node.outputs)


def _numbers_used(step: Step) -> bool:
    """Whether something is done with where along a dimension the largest or smallest element is, as with a class."""
    if step.node.name in ("argmax", "argmin"):
        return True
    graph = step.coupling.graph
    return step.node.name in ("max", "min") and any(
        len(graph.value_users(value.index)) or value.index in graph.result_value
        for value in step.node.outputs[1:]
    )


def _made(step: Step) -> list[Dims]:
    """Something new: of constants, or with the shape of what it is given."""
    given = step.coupling.graph.values[step.inputs[0]].shape if step.inputs else ()
    if given and given == step.out:
        return [step.coupling.dims(step.inputs[0])]
    if step.node.name in ("arange", "bernoulli"):
        return [[None] * len(value.shape) for value in step.node.outputs]
    return [[step.coupling.loose(size) if size else None for size in step.out]]


def _index(step: Step) -> list[Dims]:
    """Some of a dimension, by one tensor of numbers."""
    x, by = step.arg(0), step.node.call.args[1]
    if step.node.name == "index_select":
        places, shape = [by % len(x)], step.shape(2)
    else:
        places = [place for place, item in enumerate(by) if item is not None]
        shape = step.coupling.graph.values[step.inputs[by[places[0]].number]].shape
    if len(places) != 1:
        step.lock(x, "it is looked up by several numbers")
        return [[None] * len(step.out)]
    at = places[0]
    if len(x) + len(shape) - 1 != len(step.out):  # a mask takes the place of several dimensions
        step.lock(x, "it is chosen by a mask")
        return [[None] * len(step.out)]
    step.lock([x[at]], "its rows are looked up by number")
    return [[*x[:at], *([None] * len(shape)), *x[at + 1 :]]]


def _roll(step: Step) -> list[Dims]:
    x, over = step.arg(0), step.arg(2, ())
    moved = {number % len(x) for number in over} if over else set(range(len(x)))
    step.lock([x[place] for place in moved], "it is rolled")
    return [[None if place in moved else ids for place, ids in enumerate(x)]]


def _repeat(step: Step) -> list[Dims]:
    x, times, shape = step.arg(0), step.arg(1), step.shape(0)
    out: Dims = [None] * len(times)
    for back in range(1, len(times) + 1):
        ids = x[-back] if back <= len(x) else None
        if back <= len(x) and (shape[-back] > 1 or times[-back] == 1):
            out[-back] = None if ids is None else np.tile(ids, times[-back])
        elif times[-back]:
            out[-back] = step.coupling.loose(times[-back])
    return [out]


def _stack(step: Step) -> list[Dims]:
    parts, axis = step.arg(0), step.arg(1, 0) % len(step.out)
    shape = [*step.out[:axis], *step.out[axis + 1 :]]
    out = step.joined(*((part, shape) for part in parts), shape=shape)
    return [[*out[:axis], None, *out[axis:]]]


def _glu(step: Step) -> list[Dims]:
    """One half of a dimension times what the other lets through."""
    x = step.arg(0)
    axis = step.arg(1, -1) % len(x)
    ids, half = x[axis], None
    if ids is not None:
        half = step.tie(*np.split(ids, 2))
        step.coupling.size(ids, step.node.path)
    return [[*x[:axis], half, *x[axis + 1 :]]]


def _attention(step: Step) -> list[Dims]:
    query, key, value = step.arg(0), step.arg(1), step.arg(2)
    step.lock([query[-1], key[-1]], "attention is scaled by its size")
    shape, graph = step.shape(0), step.coupling.graph
    sides: list[tuple[Dims, Sequence[int]]] = [(query[:-2], shape[:-2])]
    for place, dims in ((1, key), (2, value)):
        sides.append(_spread(dims[:-2], step.shape(place)[:-2], shape[:-2]))
    for other in step.inputs[3:]:  # a mask, or a bias that knows the heads
        if graph.values[other].dtype.startswith(("float", "bfloat", "bool")):
            sides.append((step.coupling.dims(other)[:-2], graph.values[other].shape[:-2]))
    lead = step.joined(*sides, shape=shape[:-2])
    step.coupling.attend(lead, step.node.path)
    out: Dims = [*lead, query[-2], value[-1]]
    return [out if len(out) == len(o.shape) else [None] * len(o.shape) for o in step.node.outputs]


def _spread(
    dims: Sequence[Ids | None], sizes: Sequence[int], wanted: Sequence[int]
) -> tuple[Dims, Sequence[int]]:
    """The dimensions of keys or values, each head as often as there are heads of queries to it; one is for all."""
    made = [
        ids if ids is None or size in (1, want) else np.repeat(ids, want // size)
        for ids, size, want in zip(dims, sizes, wanted)
    ]
    return made, [size if size == 1 else want for size, want in zip(sizes, wanted)]


RULES: dict[str, Rule] = {
    **SHAPE_RULES,
    **RECURRENT_RULES,
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
    "_fused_rms_norm": _layer_norm,
    "native_group_norm": _group_norm,
    "embedding": _embedding,
    "index": _index,
    "index_select": _index,
    "roll": _roll,
    "repeat": _repeat,
    "stack": _stack,
    "glu": _glu,
    "cumsum": _along,
    **dict.fromkeys(
        "mean sum amax amin prod std var var_mean logsumexp norm linalg_vector_norm argmax argmin all any max "
        "min".split(),
        _reduction,
    ),
    **dict.fromkeys(
        "clone contiguous _to_copy detach alias dropout lift_fresh native_dropout copy masked_fill fill "
        "zero".split(),
        _elementwise,
    ),
    **dict.fromkeys(
        "empty empty_like zeros zeros_like ones ones_like full full_like arange rand_like bernoulli scalar_tensor "
        "empty_strided new_zeros new_ones new_empty new_full tril triu".split(),
        _made,
    ),
}
# What passes a parameter on as it is, in another arrangement or element type.
PLAIN = {*SHAPE_RULES, "clone", "contiguous", "_to_copy", "detach", "alias", "lift_fresh"} - {"cat"}
