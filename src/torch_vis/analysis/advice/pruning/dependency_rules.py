"""How each operator joins and passes on the dimensions of its tensors: one rule for each kind."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod

import numpy as np

from torch_vis.analysis.advice.pruning.dimensions import (
    DimEntry,
    Dims,
    Grid,
    GridAxis,
    Ids,
    Rule,
    RuleContext,
)
from torch_vis.graph import Slot
from torch_vis.graph.graph import Node
from torch_vis.ops.families import kind_of
from torch_vis.ops.names import plain_name
from torch_vis.ops.op_table import RESHAPES

# ---------------------------------------------------------------- what only arranges: views, permutations, parts, joins


def _permute(op: RuleContext) -> list[list[DimEntry]]:
    x, order = op.entries(0), op.arg(1)
    return [[x[dim] for dim in order]]


def _transpose(op: RuleContext) -> list[list[DimEntry]]:
    entries = list(op.entries(0))
    a, b = (op.arg(1), op.arg(2)) if op.node.name.startswith("transpose") else (-1, -2)
    if len(entries) > 1:
        entries[a], entries[b] = entries[b], entries[a]
    return [entries]


def _view(op: RuleContext) -> list[list[DimEntry]]:
    return [reshaped(op, op.entries(0), op.shape(0), op.out)]


def _expand(op: RuleContext) -> list[list[DimEntry]]:
    x, shape = op.entries(0), op.shape(0)
    out: list[DimEntry] = [None] * len(op.out)
    for back, size in enumerate(reversed(op.out), 1):
        if back <= len(x) and shape[-back] == size:
            out[-back] = x[-back]
        elif size:
            out[-back] = op.dimensions.loose(size)
    return [out]


def _cat(op: RuleContext) -> list[Dims]:
    parts, axis = op.arg(0), op.arg(1, 0)
    axis %= len(op.out)
    # an empty tensor may have one dimension
    parts = [part for part in parts if len(part) == len(op.out)]
    out: Dims = list(parts[0])
    for part in parts[1:]:
        for dim in range(len(out)):
            if dim != axis:
                out[dim] = op.tie(out[dim], part[dim])
    joined = [part[axis] for part in parts]
    if any(ids is None or op.dimensions.is_loose(ids) for ids in joined):
        op.lock(joined, "it is put beside what cannot be followed")
        out[axis] = None
    else:
        out[axis] = np.concatenate([ids for ids in joined if ids is not None])
    return [out]


def _split(op: RuleContext) -> list[list[DimEntry]]:
    x, axis = op.entries(0), op.arg(2, 0)
    axis %= len(x)
    lengths = [value.shape[axis] for value in op.node.outputs]
    ids = x[axis]
    if isinstance(ids, GridAxis):
        left = _stiffened(op, x, ids)
        return [left] * len(lengths)
    pieces: list[Ids | None] = [None] * len(lengths)
    if op.dimensions.is_loose(ids):
        pieces = [op.dimensions.loose(length) for length in lengths]
    elif ids is not None and len(set(lengths)) == 1:
        # A program that cuts into equal parts does so by size: what goes from one must go from all.
        cut = np.split(ids, len(lengths))
        for piece in cut[1:]:
            op.tie(cut[0], piece)
        pieces = list(cut)
        op.dimensions.size(ids, op.node.path)
    elif ids is not None:
        pieces = list(np.split(ids, np.cumsum(lengths)[:-1]))
        op.dimensions.number(ids, op.node.path, "it is split into parts of fixed sizes")
    return [[*x[:axis], piece, *x[axis + 1 :]] for piece in pieces]


def _slice(op: RuleContext) -> list[list[DimEntry]]:
    x, axis = op.entries(0), op.arg(1, 0)
    axis %= len(x)
    ids = x[axis]
    if op.shape(0)[axis] == op.out[axis]:
        return [list(x)]
    if isinstance(ids, GridAxis):
        return [_stiffened(op, x, ids)]
    left: DimEntry = None
    if op.dimensions.is_loose(ids) and op.out[axis]:
        left = op.dimensions.loose(op.out[axis])
    elif ids is not None:
        left = ids[slice(op.arg(2), op.arg(3), op.arg(4, 1))]
        op.dimensions.number(ids, op.node.path, "a part of it is taken by number")
    return [[*x[:axis], left, *x[axis + 1 :]]]


def _select(op: RuleContext) -> list[list[DimEntry]]:
    x, axis = op.entries(0), op.arg(1, 0)
    axis %= len(x)
    ids = x[axis]
    if isinstance(ids, GridAxis):
        left = _stiffened(op, x, ids, op.arg(2, 0))
        return [[*left[:axis], *left[axis + 1 :]]]
    op.lock([ids], "one of it is taken by number")
    return [[*x[:axis], *x[axis + 1 :]]]


def _unbind(op: RuleContext) -> list[list[DimEntry]]:
    x, axis = op.entries(0), op.arg(1, 0)
    axis %= len(x)
    ids = x[axis]
    if not isinstance(ids, GridAxis):
        op.lock([ids], "one of it is taken by number")
    outputs = []
    for number in range(len(op.node.outputs)):
        left = _stiffened(op, x, ids, number) if isinstance(ids, GridAxis) else x
        outputs.append([*left[:axis], *left[axis + 1 :]])
    return outputs


def _pad(op: RuleContext) -> list[Dims]:
    x, sizes = op.arg(0), op.arg(1)
    out = list(x)
    for number in range(len(sizes) // 2):
        if sizes[2 * number] or sizes[2 * number + 1]:
            op.lock([out[-1 - number]], "it is padded")
            out[-1 - number] = None
    return [out]


SHAPE_RULES: dict[str, Rule] = {
    "permute": _permute,
    "transpose": _transpose,
    "t": _transpose,
    "expand": _expand,
    "cat": _cat,
    **dict.fromkeys(
        "split chunk split_with_sizes unsafe_split unsafe_chunk unsafe_split_with_sizes".split(), _split
    ),
    "unbind": _unbind,
    "slice": _slice,
    "select": _select,
    "constant_pad_nd": _pad,
    **dict.fromkeys(RESHAPES, _view),
}


# ---------------------------------------------------------------- grids


def _stiffened(op: RuleContext, dims: Sequence[DimEntry], part: GridAxis, index: int = 0) -> list[DimEntry]:
    """Dimensions where one axis of a grid can no longer be cut alone, at one index of that axis."""
    grid = part.grid
    if grid.kept is not None:
        return [None if entry is part else entry for entry in dims]
    op.dimensions.stiffen(grid, part.axis)
    taken = np.take(grid.ids, index, axis=part.axis)
    if taken.ndim == 1:
        # what was taken lay within the heads, and they are what is left
        if part.axis == 1:
            op.dimensions.lines.append(taken)
        return [_other(entry, grid, part.axis, taken) for entry in dims]
    rigid = {axis - (axis > part.axis) for axis in grid.rigid if axis != part.axis}
    smaller = Grid(taken, rigid)
    return [
        _other(
            entry,
            grid,
            part.axis,
            GridAxis(smaller, entry.axis - (entry.axis > part.axis)) if isinstance(entry, GridAxis) else None,
        )
        for entry in dims
    ]


def _other(entry: DimEntry, grid: Grid, axis: int, replacement: DimEntry) -> DimEntry:
    if not isinstance(entry, GridAxis) or entry.grid is not grid:
        return entry
    return None if entry.axis == axis else replacement


def reshaped(
    op: RuleContext, dims: Sequence[DimEntry], before: Sequence[int], after: Sequence[int]
) -> list[DimEntry]:
    """The ids along the dimensions of a tensor in another shape."""
    out: list[DimEntry] = [None] * len(after)
    for old, new in _matched(before, after):
        old_dims, new_dims = [dim for dim in old if before[dim] > 1], [dim for dim in new if after[dim] > 1]
        if len(old_dims) == len(new_dims) == 1:
            out[new_dims[0]] = dims[old_dims[0]]
            continue
        if len(old_dims) > 1 and all(op.dimensions.is_loose(dims[dim]) for dim in old_dims):
            # which of them joins with what comes, nobody can tell
            for dim in new_dims:
                out[dim] = op.dimensions.loose(after[dim])
            continue
        cells = _cells(op, dims, before, old)
        if cells is None:
            continue
        cells = cells.reshape([after[dim] for dim in new])
        if len(old) > 1 or len(new) > 1:
            op.dimensions.size(cells.ravel(), op.node.path)
        varies = [dim for dim in range(len(new)) if _varies(cells, dim)] or [0]
        left = cells[tuple(slice(None) if dim in varies else 0 for dim in range(len(new)))].copy()
        if len(varies) == 1:
            out[new[varies[0]]] = left
            continue
        grid = Grid(left)
        for axis, dim in enumerate(varies):
            out[new[dim]] = GridAxis(grid, axis)
    return out


def _cells(
    op: RuleContext, dims: Sequence[DimEntry], before: Sequence[int], old: Sequence[int]
) -> Ids | None:
    """The ids of the elements that several dimensions span, None where none can be followed."""
    sizes = [before[dim] for dim in old]
    entries = [dims[dim] if before[dim] > 1 else None for dim in old]
    parts = [entry for entry in entries if isinstance(entry, GridAxis)]
    whole = bool(parts) and parts[0].grid.kept is None and parts[0].grid.ids.ndim == len(parts)
    if whole and all(
        entry is None
        or (isinstance(entry, GridAxis) and entry.grid is parts[0].grid)
        or op.dimensions.is_loose(entry)
        for entry in entries
    ):
        turned = parts[0].grid.ids.transpose([part.axis for part in parts])
        lengths = [before[dim] if isinstance(dims[dim], GridAxis) else 1 for dim in old]
        return np.broadcast_to(
            turned.reshape([n if isinstance(e, GridAxis) else 1 for n, e in zip(lengths, entries)]), sizes
        )
    lines = [op.dimensions.settled(entry) for entry in entries]
    followed = [dim for dim, ids in enumerate(lines) if ids is not None]
    # what is the same all along may be merged with anything
    if len(followed) > 1:
        followed = [dim for dim in followed if not op.dimensions.is_loose(lines[dim])] or followed[:1]
    if not followed:
        return None
    # of heads and what is within them, heads can be cut
    if len(followed) > 1:
        op.lock([lines[dim] for dim in followed[1:]], "a view merges it with another")
    ids = lines[followed[0]]
    assert ids is not None
    return np.broadcast_to(ids.reshape([-1 if n == followed[0] else 1 for n in range(len(old))]), sizes)


def _varies(cells: Ids, axis: int) -> bool:
    first = np.take(cells, [0], axis=axis)
    return bool((cells != first).any())


def _matched(before: Sequence[int], after: Sequence[int]) -> list[tuple[list[int], list[int]]]:
    """Dimensions of two shapes that hold the same elements: of ``(2, 3, 4)`` and ``(6, 4)``, 0, 1 and 0; 2 and 1."""
    if 0 in before or prod(before) != prod(after):
        return []
    groups = []
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
        groups.append((old, new))
        i, j = i + 1, j + 1
    return groups


# ---------------------------------------------------------------- recurrent layers
#
# All layers come in one call, one layer, or one step of one. A hidden unit has a row for each gate in both matrices and
# both biases, a column of the matrix that reads the state before, and its index in the states that are read and
# written. States of all layers and directions stand in one tensor, so that the unit of the same index goes from all of
# them: a layer keeps one ``hidden_size``.

LSTM_GATES, GRU_GATES, RNN_GATES = 4, 3, 1
# the gates of each mode, as the kernels number them
MODES = (RNN_GATES, RNN_GATES, LSTM_GATES, GRU_GATES)


def _gates(op: RuleContext) -> int:
    name = op.node.name
    return LSTM_GATES if "lstm" in name else GRU_GATES if "gru" in name else RNN_GATES


def _values(op: RuleContext, position: int) -> list[int]:
    """The tensors of an argument, of one or of several; none where it is left out."""
    args = op.node.call.args
    item = args[position] if position < len(args) else None
    items = item if type(item) is tuple else (item,)
    return [op.inputs[each.number] for each in items if isinstance(each, Slot)]


def _last(op: RuleContext, values: Sequence[int]) -> list[Ids | None]:
    return [op.dimensions.dims(value)[-1] for value in values]


def _summed(op: RuleContext, ids: Ids | None, weight: int) -> None:
    """Features that a matrix reads: its columns."""
    columns = op.dimensions.dims(weight)[1]
    op.tie(ids, columns)
    if op.dimensions.is_plain(weight):
        op.dimensions.feed(columns)


def _units(op: RuleContext, rows: Sequence[Ids | None], gates: int) -> Ids | None:
    """The units that rows of all gates stand for, one gate after another: what goes from one goes from all."""
    if any(ids is None for ids in rows):
        op.lock(rows, f"{op.node.name} joins it with an input, or with what cannot be followed")
        return None
    pieces = [piece for ids in rows if ids is not None for piece in np.split(ids, gates)]
    for ids in rows:
        if ids is not None:
            op.dimensions.size(ids, op.node.path)
    for piece in pieces[1:]:
        op.tie(pieces[0], piece)
    return pieces[0]


def _layer(
    op: RuleContext, x: Ids | None, params: Sequence[int], states: Sequence[Ids | None], gates: int
) -> tuple[Ids | None, Ids | None]:
    """One layer in one direction: the features that it gives, and its units; the two differ by a projection."""
    dimensions = op.dimensions
    matrices = [value for value in params if len(dimensions.graph.values[value].shape) == 2]
    biases = [value for value in params if len(dimensions.graph.values[value].shape) == 1]
    _summed(op, x, matrices[0])
    units = _units(op, [dimensions.dims(value)[0] for value in (*matrices[:2], *biases)], gates)
    if len(states) > 1:
        units = op.tie(units, states[1])
    out = units
    for projection in matrices[2:]:
        _summed(op, units, projection)
        out = dimensions.dims(projection)[0]
    out = op.tie(out, states[0])
    _summed(op, out, matrices[1])
    return out, units


def _layers(
    op: RuleContext, params: Sequence[int], states: Sequence[int], gates: int, count: int, directions: int
) -> list[Dims]:
    """Layers one upon another, each of what all directions of the one before it give."""
    x_dims, each = op.arg(0), len(params) // (count * directions)
    before = _last(op, states)
    x: Ids | None = x_dims[-1]
    out = units = None
    for layer in range(count):
        outputs: Dims = []
        for direction in range(directions):
            first = (layer * directions + direction) * each
            out, units = _layer(op, x, params[first : first + each], before, gates)
            outputs.append(out)
        known = [ids for ids in outputs if ids is not None]
        x = np.concatenate(known) if len(known) == len(outputs) else None
    after: list[Dims] = [
        [*([None] * (len(op.dimensions.graph.values[value].shape) - 1)), ids]
        for value, ids in zip(states, (out, units))
    ]
    return [[*x_dims[:-1], x], *after]


def _whole(op: RuleContext) -> list[Dims]:
    """``lstm``, ``gru``, ``rnn_tanh``: states, then parameters, then options; packed sequences have one tensor more."""
    args = op.node.call.args
    params_at = max(
        position
        for position, item in enumerate(args)
        if type(item) is tuple and item and isinstance(item[0], Slot)
    )
    count, directions = args[params_at + 2], 2 if args[params_at + 5] else 1
    return _layers(op, _values(op, params_at), _values(op, params_at - 1), _gates(op), count, directions)


def _library(op: RuleContext) -> list[Dims]:
    """``_cudnn_rnn`` and ``miopen_rnn``, which has two arguments less: the flat buffer, and the projection's size."""
    args, less = op.node.call.args, 0 if "cudnn" in op.node.name else 1
    states = [*_values(op, 4 - less), *_values(op, 5 - less)]
    count, directions = args[9 - 2 * less], 2 if args[13 - 2 * less] else 1
    return _layers(op, _values(op, 1), states, MODES[args[6 - less]], count, directions)


def _one_layer(op: RuleContext) -> list[Dims]:
    """``mkldnn_rnn_layer``: without biases, zeros stand in their places."""
    args, x = op.node.call.args, op.arg(0)
    params = [value for position in range(1, 5 if args[12] else 3) for value in _values(op, position)]
    gates = MODES[args[9]]
    states = [
        value for position in (5, 6)[: 2 if gates == LSTM_GATES else 1] for value in _values(op, position)
    ]
    out, units = _layer(op, x[-1], params, _last(op, states), gates)
    return [
        [*x[:-1], out],
        *(
            [*([None] * (len(output.shape) - 1)), ids]
            for output, ids in zip(op.node.outputs[1:3], (out, units))
        ),
    ]


def _one_step(op: RuleContext) -> list[Dims]:
    """``lstm_cell`` and others: one step of one layer."""
    params = [value for position in range(2, 6) for value in _values(op, position)]
    x = op.arg(0)
    out, units = _layer(op, x[-1], params, _last(op, _values(op, 1)), _gates(op))
    return [[*x[:-1], out], [*x[:-1], units]]


def _gated(op: RuleContext) -> list[Dims]:
    """``_thnn_fused_lstm_cell`` and others: what a cell does with gates that are there already."""
    rows = _last(op, [value for position in (0, 1, 3, 4) for value in _values(op, position)])
    state = op.arg(2)
    units = op.tie(_units(op, rows, _gates(op)), state[-1])
    return [[*state[:-1], units]] * (2 if _gates(op) == LSTM_GATES else 1)


def _pack(op: RuleContext) -> list[Dims]:
    """Steps of all sequences in one dimension."""
    return [[None, *op.arg(0)[2:]], [None]]


def _unpack(op: RuleContext) -> list[Dims]:
    return [[None, None, *op.arg(0)[1:]], [None]]


RECURRENT_RULES: dict[str, Rule] = {
    **dict.fromkeys("lstm gru rnn_tanh rnn_relu _lstm_mps".split(), _whole),
    **dict.fromkeys("_cudnn_rnn miopen_rnn".split(), _library),
    "mkldnn_rnn_layer": _one_layer,
    **dict.fromkeys("lstm_cell gru_cell rnn_tanh_cell rnn_relu_cell".split(), _one_step),
    **dict.fromkeys("_thnn_fused_lstm_cell _thnn_fused_gru_cell".split(), _gated),
    "_pack_padded_sequence": _pack,
    "_pad_packed_sequence": _unpack,
}


def rule_of(node: Node) -> Rule | None:
    """The rule for an operation, None where there is none, or where its tensors are not plain ones."""
    if not node.op.startswith("aten::") or any(value.type.layout != "strided" for value in node.inputs):
        return None
    name = plain_name(node.name)
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


# ---------------------------------------------------------------- what computes


def _elementwise(op: RuleContext) -> list[list[DimEntry]]:
    """Every dimension of the output is that of each input that has it."""
    graph, dimensions = op.dimensions.graph, op.dimensions
    if len(set(op.inputs)) == 1 and graph.values[op.inputs[0]].shape == op.out:
        return [dimensions.entries(op.inputs[0])] * len(op.node.outputs)
    tensors = [(dimensions.dims(value), graph.values[value].shape) for value in op.inputs]
    return [[*op.joined(*tensors, shape=op.out)]] * len(op.node.outputs)


def _along(op: RuleContext) -> Sequence[Sequence[DimEntry]]:
    """As elementwise, where the elements along one dimension depend on each other."""
    axis = op.arg(1)
    if isinstance(axis, int):
        op.mix([op.arg(0)[axis]])
    return _elementwise(op)


def _convolution(op: RuleContext) -> list[Dims]:
    x, weight, bias = op.arg(0), op.arg(1), op.arg(2)
    transposed, groups = bool(op.arg(6, False)), op.arg(8, 1)
    into, outof = (weight[0], weight[1]) if transposed else (weight[1], weight[0])
    op.lock(weight[2:], "it is the window of a filter")
    # without a batch, channels come first
    channels = 1 if len(x) == len(weight) else 0
    if groups == 1:
        op.contract(0, x[channels], 1, into)
        out_channels = outof
    elif groups == op.shape(0)[channels] and groups == op.out[channels]:
        # one filter for each channel
        out_channels = op.tie(x[channels], weight[0])
    else:
        op.lock([x[channels], weight[0], weight[1], *(bias or [])], "channels are in groups")
        out_channels = None
    if isinstance(bias, list) and out_channels is not None:
        out_channels = op.tie(out_channels, bias[0])
    out: Dims = [None] * len(op.out)
    out[channels] = out_channels
    if channels:
        out[0] = x[0]
    return [out]


def _addmm(op: RuleContext) -> list[Dims]:
    product = _matrices(op, 1, 2)
    return [op.joined((product, op.out), (op.arg(0), op.shape(0)), shape=op.out)]


def _product(op: RuleContext) -> list[Dims]:
    return [_matrices(op, 0, 1)]


def _matrices(op: RuleContext, left: int, right: int) -> Dims:
    """The dimensions of a product of two arguments: leading ones go together, the inner one is summed over."""
    a, b = op.arg(left), op.arg(right)
    op.contract(left, a[-1], right, b[-2] if len(b) > 1 else b[0])
    ends: Dims = [*a[-2:-1], *(b[-1:] if len(b) > 1 else ())]
    sizes = op.out[: len(op.out) - len(ends)]
    lead = op.joined((a[:-2], op.shape(left)[:-2]), (b[:-2], op.shape(right)[:-2]), shape=sizes)
    if not any(op.dimensions.is_plain(op.value(position)) for position in (left, right)):
        op.dimensions.attend(lead, op.node.path)
    return [*lead, *ends]


def _linear(op: RuleContext) -> list[Dims]:
    x, weight, bias = op.arg(0), op.arg(1), op.arg(2)
    op.contract(0, x[-1], 1, weight[1])
    features = op.tie(weight[0], bias[0]) if isinstance(bias, list) else weight[0]
    return [[*x[:-1], features]]


def _batch_norm(op: RuleContext) -> list[Dims]:
    x = op.arg(0)
    channel = x[1]
    for position in range(1, 5):
        other = op.arg(position)
        if isinstance(other, list) and len(other) == 1:
            channel = op.tie(channel, other[0])
    out = [*x[:1], channel, *x[2:]]
    return [out, *([channel] for _ in op.node.outputs[1:])]


def _layer_norm(op: RuleContext) -> list[Dims]:
    x, sizes = op.arg(0), op.arg(1)
    if len(sizes) != 1:
        op.lock(x[-len(sizes) :], "it is normalised over several dimensions")
        return [list(x)]
    last = x[-1]
    op.mix([last])
    for position in (2, 3):
        other = op.arg(position)
        if isinstance(other, list):
            last = op.tie(last, other[0])
    return [[*x[:-1], last], *([*x[:-1], None] for _ in op.node.outputs[1:])]


def _group_norm(op: RuleContext) -> list[Dims]:
    x = op.arg(0)
    op.lock(
        [x[1], *(ids for position in (1, 2) for ids in op.arg(position) or [])], "it is normalised in groups"
    )
    return [[x[0], None, *x[2:]]]


def _embedding(op: RuleContext) -> list[Dims]:
    weight, indices = op.arg(0), op.arg(1)
    op.lock([weight[0]], "its rows are looked up by number")
    return [[*indices, weight[1]]]


def _pooling(op: RuleContext) -> list[Dims]:
    x = op.arg(0)
    kept = len(x) - (len(op.out) - 2 if len(x) >= 4 else 1)
    return [[*x[:kept], *([None] * (len(x) - kept))]] * len(op.node.outputs)


def _reduction(op: RuleContext) -> Sequence[Sequence[DimEntry]]:
    if op.node.name in ("max", "min") and len(op.inputs) > 1:
        # the larger of two tensors
        return _elementwise(op)
    # a norm has its order before the dimensions
    x, first = op.arg(0), 2 if "norm" in op.node.name else 1
    over, named = op.arg(first), dict(op.node.call.kwargs)
    keep = bool(named.get("keepdim", op.arg(first + 1, False)))
    every = over is None or (isinstance(over, tuple) and not over)
    reduced = range(len(x)) if every else (over if isinstance(over, tuple) else (over,))
    chosen = {number % len(x) for number in reduced} if x else set()
    op.mix([x[dim] for dim in chosen])
    if _numbers_used(op):
        op.lock([x[dim] for dim in chosen], f"{op.node.name} gives the number of one of it")
    if len(op.out) == len(x) and keep:
        out: Dims = [None if dim in chosen else ids for dim, ids in enumerate(x)]
    else:
        out = [ids for dim, ids in enumerate(x) if dim not in chosen]
    return [out] * len(op.node.outputs)


def _numbers_used(op: RuleContext) -> bool:
    """Whether something is done with where along a dimension the largest or smallest element is, as with a class."""
    if op.node.name in ("argmax", "argmin"):
        return True
    graph = op.dimensions.graph
    return op.node.name in ("max", "min") and any(
        len(graph.value_users(value.index)) or value.index in graph.result_value
        for value in op.node.outputs[1:]
    )


def _new_tensor(op: RuleContext) -> list[Dims]:
    """Something new: of constants, or with the shape of what it is given."""
    shape = op.dimensions.graph.values[op.inputs[0]].shape if op.inputs else ()
    if shape and shape == op.out:
        return [op.dimensions.dims(op.inputs[0])]
    if op.node.name in ("arange", "bernoulli"):
        return [[None] * len(value.shape) for value in op.node.outputs]
    return [[op.dimensions.loose(size) if size else None for size in op.out]]


def _index(op: RuleContext) -> list[Dims]:
    """Some of a dimension, by one tensor of numbers."""
    x, by = op.arg(0), op.node.call.args[1]
    if op.node.name == "index_select":
        positions, shape = [by % len(x)], op.shape(2)
    else:
        positions = [position for position, item in enumerate(by) if item is not None]
        shape = op.dimensions.graph.values[op.inputs[by[positions[0]].number]].shape
    if len(positions) != 1:
        op.lock(x, "it is looked up by several numbers")
        return [[None] * len(op.out)]
    at = positions[0]
    # a mask takes the place of several dimensions
    if len(x) + len(shape) - 1 != len(op.out):
        op.lock(x, "it is chosen by a mask")
        return [[None] * len(op.out)]
    op.lock([x[at]], "its rows are looked up by number")
    return [[*x[:at], *([None] * len(shape)), *x[at + 1 :]]]


def _roll(op: RuleContext) -> list[Dims]:
    x, over = op.arg(0), op.arg(2, ())
    moved = {number % len(x) for number in over} if over else set(range(len(x)))
    op.lock([x[dim] for dim in moved], "it is rolled")
    return [[None if dim in moved else ids for dim, ids in enumerate(x)]]


def _repeat(op: RuleContext) -> list[Dims]:
    x, times, shape = op.arg(0), op.arg(1), op.shape(0)
    out: Dims = [None] * len(times)
    for back in range(1, len(times) + 1):
        ids = x[-back] if back <= len(x) else None
        if back <= len(x) and (shape[-back] > 1 or times[-back] == 1):
            out[-back] = None if ids is None else np.tile(ids, times[-back])
        elif times[-back]:
            out[-back] = op.dimensions.loose(times[-back])
    return [out]


def _stack(op: RuleContext) -> list[Dims]:
    parts, axis = op.arg(0), op.arg(1, 0) % len(op.out)
    shape = [*op.out[:axis], *op.out[axis + 1 :]]
    out = op.joined(*((part, shape) for part in parts), shape=shape)
    return [[*out[:axis], None, *out[axis:]]]


def _glu(op: RuleContext) -> list[Dims]:
    """One half of a dimension times what the other lets through."""
    x = op.arg(0)
    axis = op.arg(1, -1) % len(x)
    ids, half = x[axis], None
    if ids is not None:
        half = op.tie(*np.split(ids, 2))
        op.dimensions.size(ids, op.node.path)
    return [[*x[:axis], half, *x[axis + 1 :]]]


def _attention(op: RuleContext) -> list[Dims]:
    query, key, value = op.arg(0), op.arg(1), op.arg(2)
    op.lock([query[-1], key[-1]], "attention is scaled by its size")
    shape, graph = op.shape(0), op.dimensions.graph
    sides: list[tuple[Dims, Sequence[int]]] = [(query[:-2], shape[:-2])]
    for position, dims in ((1, key), (2, value)):
        sides.append(_spread(dims[:-2], op.shape(position)[:-2], shape[:-2]))
    # a mask, or a bias that knows the heads
    for other in op.inputs[3:]:
        if graph.values[other].dtype.startswith(("float", "bfloat", "bool")):
            sides.append((op.dimensions.dims(other)[:-2], graph.values[other].shape[:-2]))
    lead = op.joined(*sides, shape=shape[:-2])
    op.dimensions.attend(lead, op.node.path)
    out: Dims = [*lead, query[-2], value[-1]]
    return [out if len(out) == len(o.shape) else [None] * len(o.shape) for o in op.node.outputs]


def _spread(
    dims: Sequence[Ids | None], sizes: Sequence[int], wanted: Sequence[int]
) -> tuple[Dims, Sequence[int]]:
    """The dimensions of keys or values, each head as often as there are heads of queries to it; one is for all."""
    entries = [
        ids if ids is None or size in (1, want) else np.repeat(ids, want // size)
        for ids, size, want in zip(dims, sizes, wanted)
    ]
    return entries, [size if size == 1 else want for size, want in zip(sizes, wanted)]


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
        _new_tensor,
    ),
}
# What passes a parameter on as it is, in another arrangement or element type.
ARRANGES = {*SHAPE_RULES, "clone", "contiguous", "_to_copy", "detach", "alias", "lift_fresh"} - {"cat"}
