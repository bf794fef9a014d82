"""Matrix products, attention, whole encoder layers and recurrent layers to time."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F

from torch_vis.analysis.machine.probes.sizes import Bench, Probe, Work, backward, without_gradients

WIDTHS = [
    64,
    96,
    128,
    192,
    256,
    320,
    384,
    512,
    640,
    768,
    1024,
    1280,
    1536,
    2048,
    2560,
    3072,
    4096,
    5120,
    8192,
]
ROWS = [1, 2, 4, 8, 16, 32, 64, 128, 197, 256, 512, 1024, 2048, 4096, 8192, 16_384]


class Product(NamedTuple):
    """A matrix product: rows, depth, columns, batch, and how its sides lie."""

    rows: int
    depth: int
    columns: int
    batch: int
    form: str


def matmuls(bench: Bench, dtype: str, count: int) -> Iterator[Probe]:
    """Products of two matrices in the ways in which layers and their gradients call them."""

    def sample() -> Product:
        pick = bench.random.random
        form = bench.random.choice(["linear", "linear", "plain", "left", "right"])
        rows = bench.some(ROWS) if pick() < 0.6 else bench.between(1, 40_000)
        depth = bench.some(WIDTHS) if pick() < 0.7 else bench.between(32, 16_384, bench.some([8, 64]))
        columns = (
            bench.some([*WIDTHS, 1000, 32_000])
            if pick() < 0.7
            else bench.between(32, 50_000, bench.some([8, 64]))
        )
        if pick() < 0.12:
            columns += bench.some([1, 1, 2, 3])  # vocabularies are seldom round
        if form == "left":  # a weight's gradient: as deep as there are rows of data
            rows, depth = depth, rows
        return Product(rows, depth, columns, 1, form)

    def fits(product: Product) -> bool:
        rows, depth, columns, *_ = product
        cells = rows * depth + depth * columns + rows * columns
        return 2 * rows * depth * columns <= bench.flops[dtype] and cells <= bench.elements

    for product in bench.draw(count, sample, fits):
        yield Probe("matmul", partial(_matmul, bench, dtype, product))


def vocabularies(bench: Bench, dtype: str, count: int) -> Iterator[Probe]:
    """The last layers of language models, whose many columns are seldom a round number, and their gradients."""

    def sample() -> Product:
        rows, width = bench.between(32, 16_384, 8), bench.some(WIDTHS[3:14])
        words = bench.between(10_000, 200_000, bench.some([1, 1, 1, 2, 4, 8, 64]))
        form = bench.random.choice(["right", "plain", "left"])
        sides = {"right": (rows, width, words), "plain": (rows, words, width), "left": (words, rows, width)}
        return Product(*sides[form], 1, form)

    def fits(product: Product) -> bool:
        rows, depth, columns, *_ = product
        cells = rows * depth + depth * columns + rows * columns
        return 2 * rows * depth * columns <= bench.flops[dtype] / 4 and cells <= bench.elements

    for product in bench.draw(count, sample, fits):
        yield Probe("vocabulary", partial(_matmul, bench, dtype, product))


def _matmul(bench: Bench, dtype: str, product: Product) -> Work:
    rows, depth, columns, _, form = product
    make = partial(bench.tensor, dtype=dtype)
    if form == "linear":
        data, weight, bias = make(rows, depth), make(columns, depth), make(columns)
        return lambda: F.linear(data, weight, bias)
    left = make(depth, rows).t() if form == "left" else make(rows, depth)
    right = make(columns, depth).t() if form == "right" else make(depth, columns)
    return lambda: torch.mm(left, right)


def batched(bench: Bench, dtype: str, count: int) -> Iterator[Probe]:
    """Products of many pairs of matrices."""

    def sample() -> Product:
        rows, depth, columns = (bench.between(8, most, 8) for most in (1024, 512, 1024))
        return Product(rows, depth, columns, bench.between(2, 1024), bench.random.choice(["plain", "right"]))

    def fits(product: Product) -> bool:
        rows, depth, columns, batch, _ = product
        cells = batch * (rows * depth + depth * columns + rows * columns)
        return 2 * batch * rows * depth * columns <= bench.flops[dtype] and cells <= bench.elements

    def make(product: Product) -> Work:
        rows, depth, columns, batch, form = product
        left = bench.tensor(batch, rows, depth, dtype=dtype)
        right = bench.tensor(batch, *((columns, depth) if form == "right" else (depth, columns)), dtype=dtype)
        other = right.transpose(1, 2) if form == "right" else right
        return lambda: torch.bmm(left, other)

    for product in bench.draw(count, sample, fits):
        yield Probe("bmm", partial(make, product))


class Heads(NamedTuple):
    """An attention: batch, heads, tokens, width of a head, and what it looks at."""

    batch: int
    heads: int
    tokens: int
    width: int
    form: str


def attentions(bench: Bench, dtype: str, count: int) -> Iterator[Probe]:
    """Attention forward and backward, plain, causal and with a mask."""

    def sample() -> Heads:
        form = bench.random.choice(["plain", "plain", "causal", "causal", "mask"])
        return Heads(
            bench.some([1, 2, 4, 8, 16, 32, 64]),
            bench.some([4, 8, 12, 16, 32]),
            bench.between(16, 4096),
            bench.some([32, 64, 64, 64, 128]),
            form,
        )

    def fits(heads: Heads) -> bool:
        batch, number, tokens, width, _ = heads
        work = 4 * batch * number * tokens**2 * width
        return work <= bench.flops[dtype] / 4 and 4 * batch * number * tokens * width <= bench.elements

    for heads in bench.draw(count, sample, fits):
        yield Probe("attention", partial(_attention, bench, dtype, heads, False))
        yield Probe("attention backward", partial(_attention, bench, dtype, heads, True))


def _attention(bench: Bench, dtype: str, heads: Heads, gradient: bool) -> Work:
    batch, number, tokens, width, form = heads
    parts = [
        bench.tensor(batch, tokens, number, width, dtype=dtype).transpose(1, 2).requires_grad_(gradient)
        for _ in range(3)
    ]
    kind: Any = getattr(torch, dtype)
    mask = torch.zeros(batch, 1, tokens, tokens, device=bench.device, dtype=kind) if form == "mask" else None

    query, key, value = parts

    def call() -> torch.Tensor:
        return F.scaled_dot_product_attention(query, key, value, attn_mask=mask, is_causal=form == "causal")

    return backward(call(), (query, key, value)) if gradient else call


def encoders(bench: Bench, dtype: str, count: int) -> Iterator[Probe]:
    """Layers that inference runs as one operation."""

    def sample() -> tuple[int, int, int, bool]:
        width = bench.some([256, 512, 768, 1024])
        return bench.some([1, 2, 4, 8, 16, 32]), bench.between(16, 1024), width, bench.random.random() < 0.5

    def fits(drawn: tuple[int, int, int, bool]) -> bool:
        batch, tokens, width, _ = drawn
        return batch * tokens * width * 24 * width <= bench.flops[dtype] / 2

    def make(drawn: tuple[int, int, int, bool]) -> Work:
        batch, tokens, width, whole = drawn
        options: dict[str, Any] = {
            "batch_first": True,
            "device": bench.device,
            "dtype": getattr(torch, dtype),
        }
        data = bench.tensor(batch, tokens, width, dtype=dtype)
        if whole:
            layer = torch.nn.TransformerEncoderLayer(width, width // 64, 4 * width, **options).eval()
            return without_gradients(lambda: layer(data))
        heads = torch.nn.MultiheadAttention(width, width // 64, **options).eval()
        return without_gradients(lambda: heads(data, data, data, need_weights=False))

    for drawn in bench.draw(count, sample, fits):
        yield Probe("encoder", partial(make, drawn))


class Recurrence(NamedTuple):
    """A recurrent layer: its class, time steps, batch, widths, layers, and whether it goes both ways."""

    type: str
    steps: int
    batch: int
    inputs: int
    width: int
    layers: int
    both: bool


def recurrent(bench: Bench, dtype: str, count: int) -> Iterator[Probe]:
    """Recurrent layers forward and backward."""

    on_cpu = bench.device == "cpu"  # there only one layer of an LSTM is one operation

    def sample() -> Recurrence:
        return Recurrence(
            "LSTM" if on_cpu else bench.random.choice(["LSTM", "LSTM", "LSTM", "GRU", "GRU", "RNN"]),
            bench.between(4, 300),
            bench.some([1, 2, 4, 8, 16, 32, 64]),
            bench.some([64, 128, 256, 512, 1024]),
            bench.some([64, 128, 200, 256, 320, 384, 512, 512, 640, 768, 1024, 1024]),
            1 if on_cpu else bench.some([1, 1, 2, 2, 3]),
            not on_cpu and bench.random.random() < 0.2,
        )

    def fits(one: Recurrence) -> bool:
        work = 8 * one.steps * one.batch * one.width * (one.width + one.inputs) * one.layers
        return work <= min(bench.flops[dtype] / 2, 8e10)

    for one in bench.draw(count, sample, fits):
        yield Probe("recurrent", partial(_recurrent, bench, dtype, one, False), many=True)
        yield Probe("recurrent backward", partial(_recurrent, bench, dtype, one, True), many=True)


def _recurrent(bench: Bench, dtype: str, one: Recurrence, gradient: bool) -> Work:
    options: dict[str, Any] = {
        "batch_first": True,
        "device": bench.device,
        "dtype": getattr(torch, dtype),
    }
    layer = getattr(torch.nn, one.type)(one.inputs, one.width, one.layers, bidirectional=one.both, **options)
    data = bench.tensor(one.batch, one.steps, one.inputs, dtype=dtype, grad=gradient)
    if gradient:
        return backward(layer(data)[0], (data, *layer.parameters()))
    start = bench.tensor(one.layers * (1 + one.both), one.batch, one.width, dtype=dtype)
    state = (start, start) if one.type == "LSTM" else start
    return without_gradients(lambda: layer(data, state))
