"""Attention and the encoder fast path cost what their parts do: products, softmax, projections."""

from __future__ import annotations

import itertools
import math
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn
from torch.nn import functional

from tests.kit.cost_proofs import assert_values, cost_of, double, formula, tensor, traced
from tests.kit.counting import Array, Number, array, counting, dot, exp, flops, log, matmul, numbers

aten = torch.ops.aten
few = settings(max_examples=8)
KERNEL = "_scaled_dot_product_flash_attention_for_cpu"
size = st.integers(1, 3)


def attention(
    q: Array, k: Array, v: Array, scale: float, mask: Array | None, causal: bool
) -> tuple[Array, Array]:
    """One head: the result, and the logarithm of the sum of each row."""
    made, sums = [], []
    for i, row in enumerate(matmul(q, k.T) * scale):
        if mask is not None:
            row = row + mask[i]
        if causal:  # chosen, not computed
            row = array([each if j <= i else Number(-math.inf) for j, each in enumerate(row)], row.shape)
        top = max(row)
        powers = exp(row - top)
        total = sum(powers)
        sums.append(top + log(total))
        made.append(powers / total)
    return matmul(np.stack(made), v), array(sums, (len(q),))


@few
@given(size, size, st.integers(1, 4), st.integers(1, 4), st.booleans(), st.booleans())
def test_attention_is_its_products_and_a_softmax(
    b: int, h: int, n: int, e: int, masked: bool, causal: bool
) -> None:
    masked = masked and not causal
    keys = n if causal else n + 1
    q, k, v = double(b, h, n, e), double(b, h, keys, e), double(b, h, keys, e)
    mask = double(n, keys) if masked else None

    def kernel(q: Any, k: Any, v: Any) -> Any:
        return getattr(aten, KERNEL)(q, k, v, 0.0, causal, attn_mask=mask, scale=0.5)

    trace = traced(kernel, q, k, v)
    with counting() as tally:
        heads = [
            attention(
                *(numbers(t[i, j]) for t in (q, k, v)), 0.5, None if mask is None else numbers(mask), causal
            )
            for i, j in itertools.product(range(b), range(h))
        ]
    out, sums = (np.stack([head[part] for head in heads]) for part in (0, 1))
    assert_values(trace.output, (out.reshape(b, h, n, e), sums.reshape(b, h, n)))
    found = cost_of(trace, KERNEL)
    assert (found.flops, found.macs) == (flops(tally), b * h * n * keys * 2 * e)


@few
@given(size, st.integers(1, 4), st.integers(1, 4), st.integers(1, 4))
def test_the_gradient_of_attention(h: int, n: int, keys: int, e: int) -> None:
    q, k, v, g = double(1, h, n, e), double(1, h, keys, e), double(1, h, keys, e), double(1, h, n, e)
    out, lse = getattr(aten, KERNEL)(q, k, v, scale=0.5)

    def kernel(*args: Any) -> Any:
        return getattr(aten, f"{KERNEL}_backward")(*args, 0.0, False, scale=0.5)

    trace = traced(kernel, g, q, k, v, out, lse)
    with counting() as tally:
        made = [gradient(*(numbers(t[0, i]) for t in (g, q, k, v, out, lse)), 0.5) for i in range(h)]
    assert_values(trace.output, tuple(np.stack([head[part] for head in made])[None] for part in range(3)))
    found = cost_of(trace, f"{KERNEL}_backward")
    assert (found.flops, found.macs) == (flops(tally), h * n * keys * 5 * e)


def gradient(g: Array, q: Array, k: Array, v: Array, out: Array, lse: Array, scale: float) -> Any:
    """One head, the scores worked out again."""
    p = exp(matmul(q, k.T) * scale - lse[:, None])
    delta = array([dot(a, b) for a, b in zip(g, out)], (len(q), 1))
    ds = p * (matmul(g, v.T) - delta) * scale
    return matmul(ds, k), matmul(ds.T, q), matmul(p.T, g)


def test_fused_attention_costs_what_unfused_does() -> None:
    q, k, v = (double(2, 3, 5, 4) for _ in range(3))

    def unfused(q: Any, k: Any, v: Any) -> Any:
        scores = torch.bmm(q.flatten(0, 1), k.flatten(0, 1).transpose(1, 2)) * 0.5
        return torch.bmm(torch.softmax(scores, -1), v.flatten(0, 1))

    fused = cost_of(traced(functional.scaled_dot_product_attention, q, k, v))
    parts = cost_of(traced(unfused, q, k, v))
    rows = 2 * 3 * 5
    assert (fused.macs, fused.flops) == (
        parts.macs,
        parts.flops + 2 * rows,
    )  # and the logarithm of each row's sum
    with torch.inference_mode():
        one = traced(functional.scaled_dot_product_attention, q, k, v)
    assert [node.name for node in one.graph.nodes] == ["scaled_dot_product_attention"]
    assert cost_of(one)[:2] == parts[:2]


Q, K, V, LSE = tensor(2, 8, 5, 16), tensor(2, 8, 7, 16), tensor(2, 8, 7, 12), tensor(2, 8, 5)
OUT, SEED = tensor(2, 8, 5, 12), tensor(dtype="int64")


@pytest.mark.parametrize(
    ("op", "args", "out"),
    [
        ("_scaled_dot_product_flash_attention", (Q, K, V, 0.0, True), (OUT, LSE)),
        ("_scaled_dot_product_efficient_attention", (Q, K, V, None, True), (OUT, LSE, SEED, SEED)),
        ("_scaled_dot_product_cudnn_attention", (Q, K, V, None, True), (OUT, LSE)),
        ("_scaled_dot_product_fused_attention_overrideable", (Q, K, V), (OUT, LSE)),
        ("_cudnn_attention_forward", (Q, K, V, None, None, None, 5, 7, True), (OUT, LSE)),
    ],
)
def test_every_kernel_counts_the_same(op: str, args: Any, out: Any) -> None:
    plain = formula(KERNEL, Q, K, V, out=(OUT, LSE))
    assert formula(op, *args, out=out) == plain
    assert plain.macs == 2 * 8 * 5 * 7 * (16 + 12)


def test_kernels_that_have_the_length_before_the_heads() -> None:
    q, k, v, out = tensor(2, 5, 8, 16), tensor(2, 7, 8, 16), tensor(2, 7, 8, 12), tensor(2, 5, 8, 12)
    plain = formula(KERNEL, Q, K, V, out=(OUT, LSE))
    assert (
        formula("_flash_attention_forward", q, k, v, None, None, 5, 7, 0.0, False, False, out=(out, LSE))
        == plain
    )
    efficient = formula(
        "_efficient_attention_forward", q, k, v, None, None, None, None, None, 0.0, 0, True, out=(out, LSE)
    )
    assert efficient == plain
    packed = tensor(3, dtype="int32")
    assert (
        formula("_flash_attention_forward", q, k, v, packed, packed, 5, 7, 0.0, False, False, out=(out,))
        is None
    )


def test_every_backward_kernel_counts_the_same() -> None:
    plain = formula(f"{KERNEL}_backward", OUT, Q, K, V, OUT, LSE, 0.0, False)
    none = tensor(0)
    flash = (OUT, Q, K, V, OUT, LSE, None, None, 5, 7, 0.0, False, SEED, SEED)
    assert formula("_scaled_dot_product_flash_attention_backward", *flash) == plain
    efficient = (OUT, Q, K, V, none, OUT, LSE, SEED, SEED, 0.0, (True, True, True, False))
    assert formula("_scaled_dot_product_efficient_attention_backward", *efficient) == plain
    cudnn = (OUT, Q, K, V, OUT, LSE, SEED, SEED, none, none, none, 5, 7, 0.0, False)
    assert formula("_scaled_dot_product_cudnn_attention_backward", *cudnn) == plain
    mine = (OUT, Q, K, V, none, (True, True, True, False), OUT, LSE, none, none, 5, 7, 0.0, False, SEED, SEED)
    assert formula("_scaled_dot_product_fused_attention_overrideable_backward", *mine) == plain
    assert plain.macs == 2 * 8 * 5 * 7 * (3 * 16 + 2 * 12)


def test_heads_that_share_keys_still_use_them_each() -> None:
    few_keys, few_values = tensor(2, 2, 7, 16), tensor(2, 2, 7, 12)
    op = "_scaled_dot_product_flash_attention"
    assert formula(op, Q, few_keys, few_values, out=(OUT, LSE)) == formula(op, Q, K, V, out=(OUT, LSE))


# The encoder


def multi_head(x: Any, module: nn.MultiheadAttention) -> Any:
    """Multi-head attention out of plain operations, the queries scaled."""
    rows, width, heads = x.shape[0] * x.shape[1], module.embed_dim, module.num_heads
    projected = torch.addmm(module.in_proj_bias, x.reshape(rows, width), module.in_proj_weight.t())
    q, k, v = (
        part.reshape(*x.shape[:2], heads, -1).transpose(1, 2).flatten(0, 1) for part in projected.chunk(3, -1)
    )
    scores = torch.bmm(q * (width // heads) ** -0.5, k.transpose(1, 2))
    made = torch.bmm(torch.softmax(scores, -1), v).unflatten(0, (x.shape[0], heads)).transpose(1, 2)
    return torch.addmm(module.out_proj.bias, made.reshape(rows, width), module.out_proj.weight.t()).view_as(x)


def test_multi_head_attention_is_its_parts() -> None:
    module, x = nn.MultiheadAttention(8, 2, batch_first=True).double().eval(), double(3, 5, 8)
    fast = traced(lambda x: module(x, x, x, need_weights=False)[0], x)
    slow = traced(lambda x: multi_head(x, module), x)
    assert [node.name for node in fast.graph.nodes if node.name == "_native_multi_head_attention"]
    np.testing.assert_allclose(fast.output, slow.output)
    assert cost_of(fast)[:2] == cost_of(slow)[:2]
    weights = cost_of(traced(lambda x: module(x, x, x)[0], x))
    assert weights.flops - cost_of(fast).flops == 3 * 5 * 5 * (2 + 1)


@pytest.mark.parametrize("activation", ["relu", "gelu"])
@pytest.mark.parametrize("norm_first", [True, False])
def test_an_encoder_layer_is_its_parts(activation: str, norm_first: bool) -> None:
    layer = nn.TransformerEncoderLayer(
        8, 2, 16, activation=activation, batch_first=True, norm_first=norm_first
    )
    layer.double().eval()

    def unfused(x: Any) -> Any:
        def attend(x: Any) -> Any:
            return multi_head(x, layer.self_attn)

        def feed(x: Any) -> Any:
            return layer.linear2(layer.activation(layer.linear1(x)))

        if norm_first:
            x = x + attend(layer.norm1(x))
            return x + feed(layer.norm2(x))
        x = layer.norm1(x + attend(x))
        return layer.norm2(x + feed(x))

    x = double(3, 5, 8)
    fast, slow = traced(layer, x), traced(unfused, x)
    assert [node.name for node in fast.graph.nodes] == ["_transformer_encoder_layer_fwd"]
    np.testing.assert_allclose(fast.output, slow.output)
    assert cost_of(fast)[:2] == cost_of(slow)[:2]
