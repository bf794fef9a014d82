"""How each operator joins and passes on the dimensions of its tensors: one rule for each kind."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod

import numpy as np

from torch_vis.analysis.advice.pruning.dependency_step import Dims, Entry, Grid, Ids, Part, Rule, Step
from torch_vis.graph import Slot
from torch_vis.graph.graph import Node
from torch_vis.ops.families import kind_of
from torch_vis.ops.names import plain_name


def _permute(step: Step) -> list[list[Entry]]:
    x, order = step.raw(0), step.arg(1)
    return [[x[place] for place in order]]


def _transpose(step: Step) -> list[list[Entry]]:
    made = list(step.raw(0))
    one, two = (step.arg(1), step.arg(2)) if step.node.name.startswith("transpose") else (-1, -2)
    if len(made) > 1:
        made[one], made[two] = made[two], made[one]
    return [made]


def _view(step: Step) -> list[list[Entry]]:
    return [reshaped(step, step.raw(0), step.shape(0), step.out)]


def _expand(step: Step) -> list[list[Entry]]:
    x, shape = step.raw(0), step.shape(0)
    out: list[Entry] = [None] * len(step.out)
    for back, size in enumerate(reversed(step.out), 1):
        if back <= len(x) and shape[-back] == size:
            out[-back] = x[-back]
        elif size:
            out[-back] = step.coupling.loose(size)
    return [out]


def _cat(step: Step) -> list[Dims]:
    parts, axis = step.arg(0), step.arg(1, 0)
    axis %= len(step.out)
    # an empty tensor may have one dimension
    parts = [part for part in parts if len(part) == len(step.out)]
    out: Dims = list(parts[0])
    for part in parts[1:]:
        for place in range(len(out)):
            if place != axis:
                out[place] = step.tie(out[place], part[place])
    joined = [part[axis] for part in parts]
    if any(ids is None or step.coupling.is_loose(ids) for ids in joined):
        step.lock(joined, "it is put beside what cannot be followed")
        out[axis] = None
    else:
        out[axis] = np.concatenate([ids for ids in joined if ids is not None])
    return [out]


def _split(step: Step) -> list[list[Entry]]:
    x, axis = step.raw(0), step.arg(2, 0)
    axis %= len(x)
    lengths = [value.shape[axis] for value in step.node.outputs]
    ids = x[axis]
    if isinstance(ids, Part):
        left = _stiffened(step, x, ids)
        return [left] * len(lengths)
    pieces: list[Ids | None] = [None] * len(lengths)
    if step.coupling.is_loose(ids):
        pieces = [step.coupling.loose(length) for length in lengths]
    elif ids is not None and len(set(lengths)) == 1:
        # A program that cuts into equal parts does so by size: what goes from one must go from all.
        cut = np.split(ids, len(lengths))
        for piece in cut[1:]:
            step.tie(cut[0], piece)
        pieces = list(cut)
        step.coupling.size(ids, step.node.path)
    elif ids is not None:
        pieces = list(np.split(ids, np.cumsum(lengths)[:-1]))
        step.coupling.number(ids, step.node.path, "it is split into parts of fixed sizes")
    return [[*x[:axis], piece, *x[axis + 1 :]] for piece in pieces]


def _slice(step: Step) -> list[list[Entry]]:
    x, axis = step.raw(0), step.arg(1, 0)
    axis %= len(x)
    ids = x[axis]
    if step.shape(0)[axis] == step.out[axis]:
        return [list(x)]
    if isinstance(ids, Part):
        return [_stiffened(step, x, ids)]
    left: Entry = None
    if step.coupling.is_loose(ids) and step.out[axis]:
        left = step.coupling.loose(step.out[axis])
    elif ids is not None:
        left = ids[slice(step.arg(2), step.arg(3), step.arg(4, 1))]
        step.coupling.number(ids, step.node.path, "a part of it is taken by number")
    return [[*x[:axis], left, *x[axis + 1 :]]]


def _select(step: Step) -> list[list[Entry]]:
    x, axis = step.raw(0), step.arg(1, 0)
    axis %= len(x)
    ids = x[axis]
    if isinstance(ids, Part):
        left = _stiffened(step, x, ids, step.arg(2, 0))
        return [[*left[:axis], *left[axis + 1 :]]]
    step.lock([ids], "one of it is taken by number")
    return [[*x[:axis], *x[axis + 1 :]]]


def _unbind(step: Step) -> list[list[Entry]]:
    x, axis = step.raw(0), step.arg(1, 0)
    axis %= len(x)
    ids = x[axis]
    if not isinstance(ids, Part):
        step.lock([ids], "one of it is taken by number")
    made = []
    for number in range(len(step.node.outputs)):
        left = _stiffened(step, x, ids, number) if isinstance(ids, Part) else x
        made.append([*left[:axis], *left[axis + 1 :]])
    return made


def _pad(step: Step) -> list[Dims]:
    x, sizes = step.arg(0), step.arg(1)
    out = list(x)
    for number in range(len(sizes) // 2):
        if sizes[2 * number] or sizes[2 * number + 1]:
            step.lock([out[-1 - number]], "it is padded")
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
    **dict.fromkeys(
        "view _unsafe_view reshape _reshape_alias flatten unsqueeze squeeze unflatten".split(), _view
    ),
}


# ---------------------------------------------------------------- grids


def _stiffened(step: Step, dims: Sequence[Entry], part: Part, index: int = 0) -> list[Entry]:
    """Dimensions where one axis of a grid cannot be cut by itself any more, at one index of that axis."""
    grid = part.grid
    if grid.kept is not None:
        return [None if entry is part else entry for entry in dims]
    step.coupling.stiffen(grid, part.axis)
    taken = np.take(grid.ids, index, axis=part.axis)
    if taken.ndim == 1:
        # what was taken lay within the heads, and they are what is left
        if part.axis == 1:
            step.coupling.line(taken)
        return [_other(entry, grid, part.axis, taken) for entry in dims]
    rigid = {axis - (axis > part.axis) for axis in grid.rigid if axis != part.axis}
    smaller = Grid(taken, grid.path, rigid)
    return [
        _other(
            entry,
            grid,
            part.axis,
            Part(smaller, entry.axis - (entry.axis > part.axis)) if isinstance(entry, Part) else None,
        )
        for entry in dims
    ]


def _other(entry: Entry, grid: Grid, gone: int, instead: Entry) -> Entry:
    if not isinstance(entry, Part) or entry.grid is not grid:
        return entry
    return None if entry.axis == gone else instead


def reshaped(step: Step, dims: Sequence[Entry], before: Sequence[int], after: Sequence[int]) -> list[Entry]:
    """The numbers along the dimensions of a tensor in another shape."""
    out: list[Entry] = [None] * len(after)
    for old, new in _matched(before, after):
        one, two = [place for place in old if before[place] > 1], [place for place in new if after[place] > 1]
        if len(one) == len(two) == 1:
            out[two[0]] = dims[one[0]]
            continue
        if len(one) > 1 and all(step.coupling.is_loose(dims[place]) for place in one):
            # which of them joins with what comes, nobody can tell
            for place in two:
                out[place] = step.coupling.loose(after[place])
            continue
        cells = _cells(step, dims, before, old)
        if cells is None:
            continue
        cells = cells.reshape([after[place] for place in new])
        if len(old) > 1 or len(new) > 1:
            step.coupling.size(cells.ravel(), step.node.path)
        varies = [place for place in range(len(new)) if _varies(cells, place)] or [0]
        left = cells[tuple(slice(None) if place in varies else 0 for place in range(len(new)))].copy()
        if len(varies) == 1:
            out[new[varies[0]]] = left
            continue
        grid = Grid(left, step.node.path)
        for axis, place in enumerate(varies):
            out[new[place]] = Part(grid, axis)
    return out


def _cells(step: Step, dims: Sequence[Entry], before: Sequence[int], old: Sequence[int]) -> Ids | None:
    """The numbers of the elements that several dimensions span, None where there are none to follow."""
    sizes = [before[place] for place in old]
    entries = [dims[place] if before[place] > 1 else None for place in old]
    parts = [entry for entry in entries if isinstance(entry, Part)]
    whole = bool(parts) and parts[0].grid.kept is None and parts[0].grid.ids.ndim == len(parts)
    if whole and all(
        entry is None
        or (isinstance(entry, Part) and entry.grid is parts[0].grid)
        or step.coupling.is_loose(entry)
        for entry in entries
    ):
        turned = parts[0].grid.ids.transpose([part.axis for part in parts])
        lengths = [before[place] if isinstance(dims[place], Part) else 1 for place in old]
        return np.broadcast_to(
            turned.reshape([n if isinstance(e, Part) else 1 for n, e in zip(lengths, entries)]), sizes
        )
    lines = [step.coupling.settled(entry) for entry in entries]
    followed = [place for place, ids in enumerate(lines) if ids is not None]
    # what is the same all along may be merged with anything
    if len(followed) > 1:
        followed = [place for place in followed if not step.coupling.is_loose(lines[place])] or followed[:1]
    if not followed:
        return None
    # of heads and what is within them, heads can be cut
    if len(followed) > 1:
        step.lock([lines[place] for place in followed[1:]], "a view merges it with another")
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


# gates
LSTM_GATES, GRU_GATES, RNN_GATES = 4, 3, 1
# as the kernels number them
MODES = (RNN_GATES, RNN_GATES, LSTM_GATES, GRU_GATES)


def _gates(step: Step) -> int:
    name = step.node.name
    return LSTM_GATES if "lstm" in name else GRU_GATES if "gru" in name else RNN_GATES


def _values(step: Step, place: int) -> list[int]:
    """The tensors of an argument, of one or of several; none where it is left out."""
    args = step.node.call.args
    item = args[place] if place < len(args) else None
    items = item if type(item) is tuple else (item,)
    return [step.inputs[each.number] for each in items if isinstance(each, Slot)]


def _last(step: Step, values: Sequence[int]) -> list[Ids | None]:
    return [step.coupling.dims(value)[-1] for value in values]


def _summed(step: Step, ids: Ids | None, weight: int) -> None:
    """Features that a matrix reads: its columns."""
    columns = step.coupling.dims(weight)[1]
    step.tie(ids, columns)
    if step.coupling.is_plain(weight):
        step.coupling.feed(columns)


def _units(step: Step, rows: Sequence[Ids | None], gates: int) -> Ids | None:
    """The units that rows of all gates stand for, one gate after another: what goes from one goes from all."""
    if any(ids is None for ids in rows):
        step.lock(rows, f"{step.node.name} joins it with an input, or with what cannot be followed")
        return None
    pieces = [piece for ids in rows if ids is not None for piece in np.split(ids, gates)]
    for ids in rows:
        if ids is not None:
            step.coupling.size(ids, step.node.path)
    for piece in pieces[1:]:
        step.tie(pieces[0], piece)
    return pieces[0]


def _layer(
    step: Step, x: Ids | None, params: Sequence[int], states: Sequence[Ids | None], gates: int
) -> tuple[Ids | None, Ids | None]:
    """One layer in one direction: the features that it gives, and its units; the two differ by a projection."""
    coupling = step.coupling
    matrices = [value for value in params if len(coupling.graph.values[value].shape) == 2]
    biases = [value for value in params if len(coupling.graph.values[value].shape) == 1]
    _summed(step, x, matrices[0])
    units = _units(step, [coupling.dims(value)[0] for value in (*matrices[:2], *biases)], gates)
    if len(states) > 1:
        units = step.tie(units, states[1])
    out = units
    for projection in matrices[2:]:
        _summed(step, units, projection)
        out = coupling.dims(projection)[0]
    out = step.tie(out, states[0])
    _summed(step, out, matrices[1])
    return out, units


def _layers(
    step: Step, params: Sequence[int], states: Sequence[int], gates: int, count: int, directions: int
) -> list[Dims]:
    """Layers one upon another, each of what all directions of the one before it give."""
    given, each = step.arg(0), len(params) // (count * directions)
    before = _last(step, states)
    x: Ids | None = given[-1]
    out = units = None
    for layer in range(count):
        made: Dims = []
        for direction in range(directions):
            first = (layer * directions + direction) * each
            out, units = _layer(step, x, params[first : first + each], before, gates)
            made.append(out)
        known = [ids for ids in made if ids is not None]
        x = np.concatenate(known) if len(known) == len(made) else None
    after: list[Dims] = [
        [*([None] * (len(step.coupling.graph.values[value].shape) - 1)), ids]
        for value, ids in zip(states, (out, units))
    ]
    return [[*given[:-1], x], *after]


def _whole(step: Step) -> list[Dims]:
    """``lstm``, ``gru``, ``rnn_tanh``: states, then parameters, then options; packed sequences have one tensor more."""
    args = step.node.call.args
    place = max(
        at for at, item in enumerate(args) if type(item) is tuple and item and isinstance(item[0], Slot)
    )
    count, directions = args[place + 2], 2 if args[place + 5] else 1
    return _layers(step, _values(step, place), _values(step, place - 1), _gates(step), count, directions)


def _library(step: Step) -> list[Dims]:
    """``_cudnn_rnn`` and ``miopen_rnn``, which has two arguments less: the flat buffer, and the projection's size."""
    args, less = step.node.call.args, 0 if "cudnn" in step.node.name else 1
    states = [*_values(step, 4 - less), *_values(step, 5 - less)]
    count, directions = args[9 - 2 * less], 2 if args[13 - 2 * less] else 1
    return _layers(step, _values(step, 1), states, MODES[args[6 - less]], count, directions)


def _one_layer(step: Step) -> list[Dims]:
    """``mkldnn_rnn_layer``: without biases, zeros stand in their places."""
    args, x = step.node.call.args, step.arg(0)
    params = [value for place in range(1, 5 if args[12] else 3) for value in _values(step, place)]
    gates = MODES[args[9]]
    states = [value for place in (5, 6)[: 2 if gates == LSTM_GATES else 1] for value in _values(step, place)]
    out, units = _layer(step, x[-1], params, _last(step, states), gates)
    return [
        [*x[:-1], out],
        *(
            [*([None] * (len(made.shape) - 1)), ids]
            for made, ids in zip(step.node.outputs[1:3], (out, units))
        ),
    ]


def _one_step(step: Step) -> list[Dims]:
    """``lstm_cell`` and others: one step of one layer."""
    params = [value for place in range(2, 6) for value in _values(step, place)]
    x = step.arg(0)
    out, units = _layer(step, x[-1], params, _last(step, _values(step, 1)), _gates(step))
    return [[*x[:-1], out], [*x[:-1], units]]


def _gated(step: Step) -> list[Dims]:
    """``_thnn_fused_lstm_cell`` and others: what a cell does with gates that are there already."""
    rows = _last(step, [value for place in (0, 1, 3, 4) for value in _values(step, place)])
    state = step.arg(2)
    units = step.tie(_units(step, rows, _gates(step)), state[-1])
    return [[*state[:-1], units]] * (2 if _gates(step) == LSTM_GATES else 1)


def _pack(step: Step) -> list[Dims]:
    """Steps of all sequences in one dimension."""
    return [[None, *step.arg(0)[2:]], [None]]


def _unpack(step: Step) -> list[Dims]:
    return [[None, None, *step.arg(0)[1:]], [None]]


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
    # without a batch, channels come first
    channels = 1 if len(x) == len(weight) else 0
    if groups == 1:
        step.contract(0, x[channels], 1, into)
        made = outof
    elif groups == step.shape(0)[channels] and groups == step.out[channels]:
        # one filter for each channel
        made = step.tie(x[channels], weight[0])
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
        # the larger of two tensors
        return _elementwise(step)
    # a norm has its order before the dimensions
    x, first = step.arg(0), 2 if "norm" in step.node.name else 1
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
    # a mask takes the place of several dimensions
    if len(x) + len(shape) - 1 != len(step.out):
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
    # a mask, or a bias that knows the heads
    for other in step.inputs[3:]:
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
