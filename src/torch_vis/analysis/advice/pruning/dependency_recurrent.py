"""How recurrent layers join and pass on dimensions: all layers in one call, one layer, or one step of one.

A hidden unit has a row for each gate in both matrices and both biases, a column of the matrix that reads the state
before, and its place in the states that come in and go out. States of all layers and directions stand in one tensor, so
that the unit of the same number goes from all of them: a layer keeps one ``hidden_size``.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from torch_vis.analysis.advice.pruning.dependency_step import Dims, Ids, Rule, Step
from torch_vis.graph import Slot

LSTM, GRU, PLAIN = 4, 3, 1  # gates
MODES = (PLAIN, PLAIN, LSTM, GRU)  # as the kernels number them


def _gates(step: Step) -> int:
    name = step.node.name
    return LSTM if "lstm" in name else GRU if "gru" in name else PLAIN


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
    states = [value for place in (5, 6)[: 2 if gates == LSTM else 1] for value in _values(step, place)]
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
    return [[*state[:-1], units]] * (2 if _gates(step) == LSTM else 1)


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
