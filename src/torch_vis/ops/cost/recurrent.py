"""Recurrent layers: every step multiplies by each weight matrix once, then combines the gates element by element.

The fused kernels cost what the unrolled network does. With ``i, f, g, o`` for the gates of an LSTM and ``r, z,
n`` of a GRU, a sum of two parts each:

- LSTM ``c' = f c + i g``, ``h' = o tanh(c')``; GRU ``n = tanh(a + r b)``, ``h' = n + z (h - n)``.
- backward LSTM, with ``dc += dh o (1 - tanh²(c'))``: ``di = dc g i (1 - i)``, ``df = dc c f (1 - f)``, ``dg =
  dc i (1 - g g)``,
  ``do = dh tanh(c') o (1 - o)``, ``dc f``.
- backward GRU: ``dn = dh (1 - z) (1 - n n)``, ``dz = dh (h - n) z (1 - z)``, ``dr = dn b r (1 - r)``, ``dn r``,
  ``dh z``.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import prod
from typing import Any, NamedTuple

from torch_vis.graph import TensorType
from torch_vis.ops.cost.registry import Cost, Operation, aten, family, numel

cost = family("recurrent")


class RnnCell(NamedTuple):
    """Gates of a cell, and the work for one hidden unit of one step, forward and backward."""

    gates: int
    forward: int
    backward: int


RELU = RnnCell(1, 1, 0)  # one sum
TANH = RnnCell(1, 2, 3)  # a sum and a tanh; g (1 - h h)
LSTM = RnnCell(4, 4 + 3 * 3 + 1 + 3 + 2, 23)
GRU = RnnCell(3, 2 * (1 + 3) + 3 + 3, 15)
MODES = (RELU, TANH, LSTM, GRU)  # as the kernels number them
CARRIED = {RELU: 1, TANH: 1, LSTM: 1, GRU: 2}  # additions of gradients that reach a unit by several ways


def layers(
    rows: int, params: Sequence[TensorType], cell: RnnCell, *, dropped: int = 0
) -> tuple[int, int, int]:
    """Multiply-adds, additions of biases and cell arithmetic of all layers over all steps of all sequences."""
    matrices = [each for each in params if len(each.shape) == 2]
    units = sum(each.shape[0] for each in _hidden(params)) // cell.gates
    biases = numel(each for each in params if len(each.shape) == 1)
    return rows * numel(matrices), rows * biases, rows * units * cell.forward + 2 * rows * dropped


def _hidden(params: Sequence[TensorType]) -> list[TensorType]:
    """The hidden-to-hidden weights: the second matrix of each layer and direction, projections left aside."""
    layers = []
    previous: TensorType | None = None
    for each in params:
        if len(each.shape) == 2 and previous is not None and previous.shape[0] == each.shape[0]:
            layers.append(each)
            previous = None
        elif len(each.shape) == 2:
            previous = each
    return layers


def _cost_of(op: Operation, counted: tuple[int, int, int]) -> Cost:
    macs, biases, rest = counted
    return op.count(mac=macs)._replace(flops=2 * macs + biases + rest)


def _dropped(params: Sequence[TensorType], cell: RnnCell, num_layers: int, dropout: Any, train: bool) -> int:
    """Elements of one row that dropout between the layers passes over: the output of every layer but the last."""
    if not dropout or not train or num_layers < 2:
        return 0
    hidden = _hidden(params)
    return sum(each.shape[1] for each in hidden[: len(hidden) // num_layers * (num_layers - 1)])


@cost(*aten("lstm gru rnn_tanh rnn_relu _lstm_mps"))
def whole(op: Operation) -> Cost:
    """All layers as one operation, as inference mode shows them; ``data`` overloads take packed sequences."""
    name = op.op.partition(".")[0].removeprefix("aten::")
    cell = {"gru": GRU, "rnn_tanh": TANH, "rnn_relu": RELU}.get(name, LSTM)
    packed = op.overload == "data"
    params, _, num_layers, dropout, train = op.args[3:8] if packed else op.args[2:7]
    dropped = _dropped(params, cell, num_layers, dropout, train)
    return _cost_of(op, layers(prod(op.args[0].shape[:-1]), params, cell, dropped=dropped))


@cost(*aten("lstm_cell gru_cell rnn_tanh_cell rnn_relu_cell"))
def one_cell(op: Operation) -> Cost:
    """One step of one layer."""
    name = op.op.removeprefix("aten::")
    cell = {"gru_cell": GRU, "rnn_tanh_cell": TANH, "rnn_relu_cell": RELU}.get(name, LSTM)
    params = [each for each in op.args[2:6] if each is not None]
    return _cost_of(op, layers(prod(op.args[0].shape[:-1]), params, cell))


@cost(*aten("mkldnn_rnn_layer"))
def mkldnn_layer(op: Operation) -> Cost:
    """One layer in one direction."""
    params = op.args[1:5] if op.args[12] else op.args[1:3]
    return _cost_of(op, layers(prod(op.args[0].shape[:-1]), params, MODES[op.args[9]]))


@cost(*aten("mkldnn_rnn_layer_backward"))
def mkldnn_layer_backward(op: Operation) -> Cost:
    """The gradients of one layer in one direction."""
    params = op.args[1:5] if op.args[17] else op.args[1:3]
    return _cost_of(op, gradients(prod(op.args[0].shape[:-1]), params, MODES[op.args[14]], weights=True))


def gradients(
    rows: int, params: Sequence[TensorType], cell: RnnCell, *, weights: bool
) -> tuple[int, int, int]:
    """What ``layers`` says of forward, for backward: data, and weights and biases where asked for."""
    macs, biases, _ = layers(rows, params, cell)
    units = sum(each.shape[0] for each in _hidden(params)) // cell.gates
    return macs * (1 + weights), biases * weights, rows * units * (cell.backward + CARRIED[cell])


@cost(*aten("_cudnn_rnn miopen_rnn"))
def cudnn(op: Operation) -> Cost:
    """All layers and directions."""
    # one argument less before the mode, and one less after it
    shift = 0 if "_cudnn" in op.op else -1
    mode = op.args[6 + shift]
    num_layers, dropout, train = (
        op.args[9 + 2 * shift],
        op.args[11 + 2 * shift],
        op.args[12 + 2 * shift],
    )
    params = op.args[1]
    dropped = _dropped(params, MODES[mode], num_layers, dropout, train)
    return _cost_of(op, layers(prod(op.args[0].shape[:-1]), params, MODES[mode], dropped=dropped))


@cost(*aten("_cudnn_rnn_backward miopen_rnn_backward"))
def cudnn_backward(op: Operation) -> Cost:
    """The gradients of all layers and directions."""
    mode, mask = op.args[10], op.args[-1]
    return _cost_of(
        op, gradients(prod(op.args[0].shape[:-1]), op.args[1], MODES[mode], weights=bool(mask[3]))
    )


@cost(*aten("_thnn_fused_lstm_cell _thnn_fused_gru_cell"))
def fused_cell(op: Operation) -> Cost:
    """The arithmetic of a cell on gates that are there already, with their biases."""
    cell = LSTM if "lstm" in op.op else GRU
    units = op.args[2].numel
    biases = sum(op.arg(position, "") is not None for position in (3, 4))
    return Cost(units * (cell.forward + biases * cell.gates))


@cost(*aten("_thnn_fused_lstm_cell_backward_impl"))
def fused_lstm_backward(op: Operation) -> Cost:
    """The gradients of the gates and of the cell's state, and the sum for the bias."""
    units = op.args[2].numel
    return Cost(units * (LSTM.backward + (LSTM.gates if op.args[5] else 0)))


@cost(*aten("_thnn_fused_gru_cell_backward"))
def fused_gru_backward(op: Operation) -> Cost:
    """The gradients of the gates and of the state, and the sums for both biases."""
    units = op.args[0].numel
    return Cost(units * (GRU.backward + (2 * GRU.gates if op.args[2] else 0)))
