"""What an operation's time depends on, as numbers: its kind, its element type, the sizes that matter to that kind."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from math import log2, prod
from typing import Any, NamedTuple

import numpy as np

from torch_vis.graph import Call, Column, Graph, TensorType
from torch_vis.graph.call import short_name
from torch_vis.graph.flow import inputs_by_slot
from torch_vis.graph.types import Floats, Ints
from torch_vis.ops.call_groups import classes
from torch_vis.ops.families import KINDS, dtypes, kinds

SIZES = 8
Types = list[TensorType]


class Workload(NamedTuple):
    """The operations of a graph that are alike in everything, each class once.

    ``group`` is the class of each node. The other columns have a row per class: the operator's name without
    namespace and overload, the codes of kind and element type, the FLOPs and bytes (NaN where not known), how many
    tensors it reads, ``sizes``, which ``DESCRIBED`` explains, and ``bias``: the bytes that pass the kernel which adds
    the bias of a convolution, or sums up its gradient, where there is one for it.
    """

    group: Ints
    op: list[str]
    kind: Ints
    dtype: Ints
    flops: Floats
    moved: Floats
    tensors: Ints
    sizes: Floats
    bias: Floats


def workload(graph: Graph, metrics: Mapping[str, Column]) -> Workload:
    """The classes of a graph's operations with all that their time depends on.

    >>> import torch, torch_vis as tv
    >>> t = tv.trace(torch.nn.Linear(4, 8), torch.ones(2, 4))
    >>> work = workload(t.graph, t.metrics)
    >>> work.op, (2 ** work.sizes[1, :3]).round().tolist()
    (['t', 'addmm'], [2.0, 8.0, 4.0])
    """
    nodes = np.arange(len(graph))
    if not len(nodes):
        none = np.zeros(0)
        return Workload(
            nodes,
            [],
            none.astype(np.int8),
            none.astype(np.int8),
            none,
            none,
            nodes,
            np.zeros((0, SIZES)),
            none,
        )
    inputs = (graph.value_type[graph.in_value].astype(np.int64), graph.in_start, graph.in_slot >= 0)
    outputs = (graph.value_type[graph.out_value].astype(np.int64), graph.out_start, None)
    views = kinds(graph)
    # what is given twice moves once: calls that are alike in all types may differ in that
    bytes_, moves = np.unique(metrics["moved_bytes"].values, return_inverse=True)
    head = (graph.node_call.astype(np.int64) * len(KINDS) + views) * len(bytes_) + moves.reshape(-1)
    group = classes(nodes, head, inputs, outputs)
    first = np.zeros(int(group.max()) + 1, dtype=np.int64)
    first[group[::-1]] = nodes[::-1]
    kind, dtype = views[first], dtypes(graph)[first]
    flops, moved, macs = (metrics[name].floats()[first] for name in ("flops", "moved_bytes", "macs"))
    names = [KINDS[code] for code in kind]
    sizes = np.array([_sizes(graph, int(node), name, work) for node, name, work in zip(first, names, macs)])
    bias = np.array(
        [_bias(graph, int(node)) if name == "convolution" else 0.0 for node, name in zip(first, names)]
    )
    ops = [short_name(graph.calls[call].op) for call in graph.node_call[first]]
    tensors = np.diff(graph.in_start)[first]
    return Workload(group, ops, kind, dtype, flops, moved, tensors, sizes.reshape(-1, SIZES), bias)


def _sizes(graph: Graph, node: int, kind: str, macs: float) -> list[float]:
    """The sizes of one operation, padded with zeros."""
    describe = DESCRIBED.get(kind)
    if describe is None:
        return [0.0] * SIZES
    call, inputs, outputs = _types(graph, node)
    sizes = describe(call, inputs, outputs, 0.0 if np.isnan(macs) else float(macs)) if outputs else []
    return [*sizes, *[0.0] * (SIZES - len(sizes))][:SIZES]


def _types(graph: Graph, node: int) -> tuple[Call, Types, Types]:
    """An operation's call, what it reads in the order of its arguments, and what it makes."""
    inputs = [graph.types[graph.value_type[value]] for value in inputs_by_slot(graph, node).values()]
    values = graph.out_value[slice(*graph.output_span(node))]
    outputs = [graph.types[graph.value_type[value]] for value in values]
    return graph.calls[int(graph.node_call[node])], inputs, outputs


def _bias(graph: Graph, node: int) -> float:
    """The bytes for the bias of a convolution: its result read and written once more, or its gradient read."""
    call, inputs, outputs = _types(graph, node)
    if "backward" in call.op:
        # which gradients: of the input, the weight, the bias
        gradients: Any = call.args[-1] if call.args else None
        summed = type(gradients) in (tuple, list) and len(gradients) == 3 and gradients[2] is True
        return float(inputs[0].nbytes or 0) if summed else 0.0
    added = any(len(type_.shape) == 1 for type_ in inputs)
    return 2.0 * (outputs[0].nbytes or 0) if added and outputs else 0.0


def _log(count: float) -> float:
    return log2(max(count, 1.0))


def _matmul(call: Call, inputs: Types, outputs: Types, macs: float) -> list[float]:
    out = outputs[0]
    rows = out.shape[-2] if len(out.shape) > 1 else 1
    columns = out.shape[-1] if out.shape else 1
    sides = [t for t in inputs if len(t.shape) >= 2][-2:]
    turned = [float(bool(t.stride) and t.stride[-1] != 1) for t in sides]
    depth = macs / max(out.numel, 1)
    batch = out.numel / max(rows * columns, 1)
    # whose fast units want wide loads most
    narrow = (out.itemsize or 4) < 4
    odd = max(_unevenness(t) for t in (*sides, out)) * (8 / 3 if narrow else 1.0)
    rough = 0.4 * (_roughness(columns) + _roughness(round(depth)))
    return [_log(rows), _log(columns), _log(depth), _log(batch), odd, rough, *turned]


def _unevenness(type_: TensorType) -> float:
    """How many doublings the rows of a matrix, as they lie in memory, lack to begin where the widest loads can."""
    if len(type_.stride) < 2:
        return 0.0
    row = max(type_.stride[-2:]) * (type_.itemsize or 4)
    return float(next(lacking for lacking in range(5) if row % (16 >> lacking) == 0))


def _roughness(count: int) -> float:
    """How many doublings a size lacks to be a multiple of 64, the least that most tiles have."""
    return float(next((6 - power for power in range(6, 0, -1) if count % (1 << power) == 0), 6))


def _convolution(call: Call, inputs: Types, outputs: Types, macs: float) -> list[float]:
    backward = "backward" in call.op
    maps = [t for t in inputs if len(t.shape) >= 3]
    if len(maps) < 2 + backward:
        return []
    weight = maps[1 + backward]
    read, written = (maps[1], maps[0]) if backward else (maps[0], outputs[0])
    options = [a for a in call.args if type(a) in (bool, int)]
    transposed, groups = bool(options[0]) if options else False, int(options[-1]) if options else 1
    pixels = written.shape[0] * prod(written.shape[2:])
    taps = prod(weight.shape[2:])
    depth = read.shape[1] / max(groups, 1) * taps
    across = prod(read.shape[2:]) / max(prod(written.shape[2:]), 1)
    last = float(len(read.stride) > 1 and read.stride[1] == 1 and read.shape[1] > 1)
    return [
        _log(pixels),
        _log(written.shape[1]),
        _log(depth),
        _log(groups),
        _log(taps),
        log2(max(across, 2**-8)),
        2.0 * transposed,
        2.0 * last,
    ]


def _attention(call: Call, inputs: Types, outputs: Types, macs: float) -> list[float]:
    maps = [t for t in inputs if len(t.shape) == 4]
    # a whole layer in one operation
    if len(maps) < 3:
        read = max((t for t in inputs if len(t.shape) == 3), key=lambda t: t.numel, default=None)
        if read is None:
            return []
        batch, tokens, width = read.shape
        return [_log(batch), _log(tokens), _log(tokens), _log(width)]
    query, key = maps[1:3] if "backward" in call.op else maps[:2]
    mask = 2.0 * (len(maps) > 3 and "backward" not in call.op)
    causal = 2.0 * any(a is True for a in call.args)
    heads = query.shape[0] * query.shape[1]
    return [_log(heads), _log(query.shape[2]), _log(key.shape[2]), _log(query.shape[3]), mask, causal]


def _rows(call: Call, inputs: Types, outputs: Types, macs: float) -> list[float]:
    big = max(inputs, key=lambda t: t.numel, default=outputs[0])
    across = big.shape[-1] if big.shape else 1
    if "batch_norm" in call.op or "group_norm" in call.op:
        across = big.shape[1] if len(big.shape) > 1 else 1
    training = "batch_norm" in call.op and any(argument is True for argument in call.args)
    return [_log(big.numel), _log(across), 3.0 * training, 2.0 * _is_loose(big)]


def _reduction(call: Call, inputs: Types, outputs: Types, macs: float) -> list[float]:
    big = max(inputs, key=lambda t: t.numel, default=outputs[0])
    out = outputs[0]
    last = float(not out.shape or not big.shape or out.shape[-1] != big.shape[-1])
    return [_log(big.numel), _log(out.numel), 2.0 * last, 1.0 * _is_loose(big)]


def _recurrent(call: Call, inputs: Types, outputs: Types, macs: float) -> list[float]:
    # a single step
    if len(inputs[0].shape) != 3:
        return [0.0, 0.0, _log(inputs[0].shape[0]), 3.0 * _log(outputs[0].shape[-1])]
    read = inputs[0]
    # one layer, steps first, and a state without a dimension for layers
    if "mkldnn" in call.op:
        batch, width, layers = read.shape[1], inputs[2].shape[-1], 1
    else:
        state = next((t for t in inputs[1:] if len(t.shape) == 3), read)
        layers, batch, width = state.shape
    times = max(read.numel // max(batch * read.shape[-1], 1), 1)
    weights = [t.shape[0] for t in inputs if len(t.shape) == 2 and t.shape[0] % max(width, 1) == 0]
    gates = weights[0] // max(width, 1) if weights else 4
    other = {4: 0.0, 3: 5.0}.get(gates, 10.0)
    # the width and the number of gates decide which kernels there are
    return [_log(times), _log(layers), _log(batch), 3.0 * _log(width), other, _log(read.shape[-1])]


def _elements(call: Call, inputs: Types, outputs: Types, macs: float) -> list[float]:
    out = outputs[0]
    whole = [t for t in inputs if t.numel == out.numel]
    turned = any(_is_turned(t, out) for t in whole)
    spread = any(1 < t.numel < out.numel for t in inputs)
    loose = any(_is_loose(t) for t in (*whole, out))
    return [_log(sum(t.numel for t in (*inputs, out))), 2.0 * turned, 1.0 * spread, 1.5 * loose]


def _is_loose(type_: TensorType) -> bool:
    """Whether a tensor's elements do not lie one after another, so that kernels compute where each one is."""
    expected = 1
    for size, stride in zip(reversed(type_.shape), reversed(type_.stride)):
        if size > 1:
            if stride != expected:
                return True
            expected *= size
    return False


def _is_turned(a: TensorType, b: TensorType) -> bool:
    """Whether two tensors of a size lie in memory in different orders."""
    if len(a.stride) != len(b.stride):
        return False
    order = [tuple(np.argsort([-s for s in t.stride], kind="stable")) for t in (a, b)]
    return order[0] != order[1] and min(a.numel, b.numel) > 1


def _sorting(call: Call, inputs: Types, outputs: Types, macs: float) -> list[float]:
    big = max(inputs, key=lambda t: t.numel, default=outputs[0])
    last = big.shape[-1] if big.shape else 1
    return [_log(big.numel), _log(last), _log(outputs[0].shape[-1] if outputs[0].shape else 1)]


def _factorization(call: Call, inputs: Types, outputs: Types, macs: float) -> list[float]:
    big = max(inputs, key=lambda t: t.numel, default=outputs[0])
    rows, columns = big.shape[-2:] if len(big.shape) > 1 else (1, big.numel)
    return [_log(big.numel // max(rows * columns, 1)), _log(rows), _log(columns)]


def _listed(call: Call, inputs: Types, outputs: Types, macs: float) -> list[float]:
    return [_log(sum(t.numel for t in inputs)), _log(len(inputs))]


DESCRIBED: dict[str, Callable[[Call, Types, Types, float], list[Any]]] = {
    # rows, columns, depth, batch; how unevenly rows lie, no multiple of 64, either side turned
    "matmul": _matmul,
    # pixels, channels, depth, groups, taps, stride; transposed, channels last
    "convolution": _convolution,
    # heads, queries, keys, width; mask, causal
    "attention": _attention,
    # steps, layers, batch, width; number of gates, width of what it reads
    "recurrent": _recurrent,
    # elements, how many lie together; whether statistics are taken, whether they lie apart
    "normalization": _rows,
    "softmax": _rows,
    # elements read and made; whether the last dimension is reduced, whether they lie apart
    "reduction": _reduction,
    # elements; whether orders differ, something is spread, elements lie apart
    "pooling": _elements,
    "indexing": _elements,
    # elements, how many lie in the last dimension, how many of them are wanted
    "sorting": _sorting,
    "random": _elements,
    # matrices, rows, columns
    "factorization": _factorization,
    "elementwise": _elements,
    "copy": _elements,
    # elements, tensors
    "optimizer": _listed,
}
"""For each kind, the sizes that its time depends on; counts are logarithms to base 2."""
