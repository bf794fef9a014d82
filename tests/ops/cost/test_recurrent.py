"""Recurrent layers cost what the unrolled network does, whichever kernel runs them."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

import torch_vis as tv
from tests.kit.cost_proofs import assert_values, cost_of, double, formula, tensor, traced
from tests.kit.counting import Array, counting, flops, larger, matmul, numbers, sigmoid, tanh, zeros_like
from torch_vis.ops.cost import costs

aten = torch.ops.aten
STEPS, BATCH, WIDTH, HIDDEN = 3, 2, 4, 5


def linear(x: Array, w: Array, b: Array) -> Array:
    return matmul(x, w.T) + b


def lstm_step(x: Array, h: Array, c: Array, w: list[Array]) -> tuple[Array, Array]:
    gates = linear(x, w[0], w[2]) + linear(h, w[1], w[3])
    i, f, g, o = np.split(gates, 4, axis=1)
    c = sigmoid(f) * c + sigmoid(i) * tanh(g)
    return sigmoid(o) * tanh(c), c


def gru_step(x: Array, h: Array, w: list[Array]) -> Array:
    a, b = np.split(linear(x, w[0], w[2]), 3, axis=1), np.split(linear(h, w[1], w[3]), 3, axis=1)
    r, z = sigmoid(a[0] + b[0]), sigmoid(a[1] + b[1])
    n = tanh(a[2] + r * b[2])
    return n + z * (h - n)


def plain_step(x: Array, h: Array, w: list[Array], kind: str) -> Array:
    total = linear(x, w[0], w[2]) + linear(h, w[1], w[3])
    return tanh(total) if kind == "tanh" else larger(total, 0.0)


def unrolled(module: Any, x: Array) -> Array:
    """All layers of a network in one direction, step by step."""
    for layer in range(module.num_layers):
        w = [
            numbers(getattr(module, f"{name}_l{layer}"))
            for name in ("weight_ih", "weight_hh", "bias_ih", "bias_hh")
        ]
        h = zeros_like(np.empty((x.shape[1], module.hidden_size), dtype=object))
        c, made = h, []
        for step in x:
            if isinstance(module, nn.LSTM):
                h, c = lstm_step(step, h, c, w)
            elif isinstance(module, nn.GRU):
                h = gru_step(step, h, w)
            else:
                h = plain_step(step, h, w, module.nonlinearity)
            made.append(h)
        x = np.stack(made)
    return x


NETWORKS = {
    "lstm": lambda: nn.LSTM(WIDTH, HIDDEN, 2),
    "gru": lambda: nn.GRU(WIDTH, HIDDEN, 2),
    "tanh": lambda: nn.RNN(WIDTH, HIDDEN, 2),
    "relu": lambda: nn.RNN(WIDTH, HIDDEN, 2, nonlinearity="relu"),
}


@pytest.mark.parametrize("name", NETWORKS)
def test_a_network_is_its_steps(name: str) -> None:
    module, x = NETWORKS[name]().double(), double(STEPS, BATCH, WIDTH)
    plain = traced(lambda x: module(x)[0], x)
    with torch.inference_mode():
        one = traced(lambda x: module(x)[0], x)
    with counting() as tally:
        made = unrolled(module, numbers(x))
    assert_values(plain.output, made)
    assert [node.name for node in one.graph.nodes if node.name in ("lstm", "gru", "rnn_tanh", "rnn_relu")]
    weights = sum(p.numel() for p in module.parameters() if p.dim() == 2)
    for trace in (plain, one):
        assert (cost_of(trace).flops, cost_of(trace).macs) == (flops(tally), STEPS * BATCH * weights)


@pytest.mark.parametrize("bidirectional", [True, False])
@pytest.mark.parametrize("projected", [0, 3])
def test_directions_projections_and_packed_sequences(bidirectional: bool, projected: int) -> None:
    module = nn.LSTM(WIDTH, HIDDEN, 2, bidirectional=bidirectional, proj_size=projected).double()
    x = double(STEPS, BATCH, WIDTH)
    packed = nn.utils.rnn.pack_padded_sequence(x, [3, 1])
    for given in (x, packed):
        with torch.inference_mode():
            one = traced(lambda given=given: module(given))
        unfused = traced(lambda given=given: module(given))
        assert "lstm" in [node.name for node in one.graph.nodes]
        assert not {"lstm", "mkldnn_rnn_layer"} & {node.name for node in unfused.graph.nodes}
        assert cost_of(one)[:2] == cost_of(unfused)[:2]


def training(dtype: torch.dtype) -> tv.Trace:
    """One layer with all its gradients; single precision has a fused kernel on the CPU, double has not."""
    torch.manual_seed(0)
    module = nn.LSTM(WIDTH, HIDDEN).to(dtype)
    given = [
        torch.randn(*s, dtype=dtype, requires_grad=True)
        for s in ((STEPS, BATCH, WIDTH), *[(1, BATCH, HIDDEN)] * 2)
    ]
    return tv.trace(lambda: module(given[0], (given[1], given[2]))[0], backward=True)


def test_the_fused_cpu_layer_and_its_gradient() -> None:
    fused, unfused = training(torch.float32), training(torch.float64)
    names = [{node.name for node in trace.graph.nodes} for trace in (fused, unfused)]
    assert {"mkldnn_rnn_layer", "mkldnn_rnn_layer_backward"} <= names[0] and "mkldnn_rnn_layer" not in names[
        1
    ]
    assert cost_of(fused).macs == cost_of(unfused).macs

    def phase(trace: tv.Trace, name: str) -> list[int]:
        column = costs(trace.graph)[name]
        return [
            sum(column[node.index] for node in trace.graph.find(phase=phase))
            for phase in ("forward", "backward")
        ]

    assert phase(fused, "macs") == phase(unfused, "macs")
    assert phase(fused, "flops")[0] == phase(unfused, "flops")[0]


def parameters(gates: int, layers: int, directions: int = 1) -> tuple[Any, ...]:
    made: list[Any] = []
    for layer in range(layers):
        width = WIDTH if layer == 0 else HIDDEN * directions
        for _ in range(directions):
            made += [tensor(gates * HIDDEN, width), tensor(gates * HIDDEN, HIDDEN)]
            made += [tensor(gates * HIDDEN), tensor(gates * HIDDEN)]
    return tuple(made)


def test_the_fused_kernels_of_a_gpu() -> None:
    x, h, out = tensor(STEPS, BATCH, WIDTH), tensor(4, BATCH, HIDDEN), tensor(STEPS, BATCH, 2 * HIDDEN)
    for mode, gates, name in ((2, 4, "lstm.input"), (3, 3, "gru.input"), (1, 1, "rnn_tanh.input")):
        params = parameters(gates, 2, 2)
        hidden = (h, h) if mode == 2 else h
        plain = formula(f"aten::{name}", x, hidden, params, True, 2, 0.3, True, True, False, out=(out,))
        rest = (mode, HIDDEN, 0, 2, False, 0.3, True, True, (), None)
        assert formula("_cudnn_rnn", x, params, 4, None, h, None, *rest, out=(out,)) == plain
        miopen = (mode, HIDDEN, 2, False, 0.3, True, True, (), None)
        assert formula("miopen_rnn", x, params, 4, h, None, *miopen, out=(out,)) == plain
        undropped = formula(f"aten::{name}", x, hidden, params, True, 2, 0.0, True, True, False, out=(out,))
        assert plain.flops - undropped.flops == 2 * STEPS * BATCH * 2 * HIDDEN


def lstm_step_backward(dh: Any, dc: Any, c: Any, made: Any, i: Any, f: Any, g: Any, o: Any) -> list[Any]:
    """Gradients of the four gates before their functions, and of the state before."""
    t = tanh(made)
    dc = dc + dh * o * (1 - t * t)
    return [dc * g * (1 - i) * i, dc * c * (1 - f) * f, dc * i * (1 - g * g), dh * t * (1 - o) * o, dc * f]


def gru_step_backward(dh: Any, h: Any, b: Any, r: Any, z: Any, n: Any) -> list[Any]:
    rest = 1 - z
    dn = dh * rest * (1 - n * n)
    return [dn * b * (1 - r) * r, dh * (h - n) * z * rest, dn, dn * r, dh * z]


def test_the_steps_of_backward_are_the_derivatives() -> None:
    c, raw, dh, dc = double(6), double(4, 6), double(6), double(6)
    leaves = [each.requires_grad_() for each in (c, raw)]
    i, f, o = raw[0].sigmoid(), raw[1].sigmoid(), raw[3].sigmoid()
    g = raw[2].tanh()
    made = f * c + i * g
    torch.autograd.backward([o * made.tanh(), made], [dh, dc])
    with counting() as tally:
        found = lstm_step_backward(*(numbers(t) for t in (dh, dc, c, made, i, f, g, o)))
    assert_values([*leaves[1].grad, c.grad], tuple(found))
    back = formula("_thnn_fused_lstm_cell_backward_impl", None, None, tensor(6), tensor(6), tensor(24), False)
    assert back.flops == flops(tally)

    h, a, b, dh = double(6), double(3, 6), double(3, 6), double(6)
    for leaf in (h, a, b):
        leaf.requires_grad_()
    r, z = (a[0] + b[0]).sigmoid(), (a[1] + b[1]).sigmoid()
    n = (a[2] + r * b[2]).tanh()
    (n + z * (h - n)).backward(dh)
    with counting() as tally:
        found = gru_step_backward(*(numbers(t) for t in (dh, h, b[2], r, z, n)))
    assert_values([a.grad[0], a.grad[1], a.grad[2], b.grad[2], h.grad], tuple(found))
    assert formula("_thnn_fused_gru_cell_backward", tensor(6), tensor(30), False).flops == flops(tally)


def test_the_cells_alone() -> None:
    with counting() as tally:
        x, h, c = (numbers(double(BATCH, n)) for n in (WIDTH, HIDDEN, HIDDEN))
        w = [numbers(double(*s)) for s in ((20, WIDTH), (20, HIDDEN), (20,), (20,))]
        lstm_step(x, h, c, w)
    params = parameters(4, 1)
    state = (tensor(BATCH, HIDDEN), tensor(BATCH, HIDDEN))
    assert formula("lstm_cell", tensor(BATCH, WIDTH), state, *params).flops == flops(tally)
    products = BATCH * 20 * (WIDTH + HIDDEN)
    gates = tensor(BATCH, 20)
    fused = formula("_thnn_fused_lstm_cell", gates, gates, tensor(BATCH, HIDDEN), tensor(20), tensor(20))
    assert fused.flops == flops(tally) - 2 * products


def test_the_gradient_of_a_whole_layer() -> None:
    rows, params = STEPS * BATCH, parameters(4, 2)
    x, h, out = tensor(STEPS, BATCH, WIDTH), tensor(2, BATCH, HIDDEN), tensor(STEPS, BATCH, HIDDEN)
    before = (
        x,
        params,
        4,
        tensor(100),
        h,
        h,
        out,
        out,
        h,
        h,
        2,
        HIDDEN,
        0,
        2,
        False,
        0.0,
        True,
        False,
        (),
        None,
    )
    both = formula("_cudnn_rnn_backward", *before, tensor(10), (True, True, True, True))
    data = formula("_cudnn_rnn_backward", *before, tensor(10), (True, True, True, False))
    weights = sum(p.numel for p in params if len(p.shape) == 2)
    assert (both.macs, data.macs) == (2 * rows * weights, rows * weights)
    biases = sum(p.numel for p in params if len(p.shape) == 1)
    assert both.flops - data.flops == 2 * rows * weights + rows * biases
