"""Matrix products, attention, whole encoder layers and recurrent layers to time."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F

from torch_vis.analysis.machine.probes.probe import Probe, ProbeSampler, Work, backward, without_gradients

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


class MatmulSizes(NamedTuple):
    """A matrix product: rows, depth, columns, batch, and how its sides lie."""

    rows: int
    depth: int
    columns: int
    batch: int
    form: str


def matmuls(bench: ProbeSampler, dtype: str, count: int) -> Iterator[Probe]:
    """Products of two matrices in the ways in which layers and their gradients call them."""

    def sample() -> MatmulSizes:
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
            # vocabularies are seldom round
            columns += bench.some([1, 1, 2, 3])
        # a weight's gradient: as deep as there are rows of data
        if form == "left":
            rows, depth = depth, rows
        return MatmulSizes(rows, depth, columns, 1, form)

    def fits(product: MatmulSizes) -> bool:
        rows, depth, columns, *_ = product
        cells = rows * depth + depth * columns + rows * columns
        return 2 * rows * depth * columns <= bench.flops[dtype] and cells <= bench.elements

    for product in bench.draw(count, sample, fits):
        yield Probe("matmul", partial(_matmul, bench, dtype, product))


def vocabularies(bench: ProbeSampler, dtype: str, count: int) -> Iterator[Probe]:
    """The last layers of language models, whose many columns are seldom a round number, and their gradients."""

    def sample() -> MatmulSizes:
        rows, width = bench.between(32, 16_384, 8), bench.some(WIDTHS[3:14])
        words = bench.between(10_000, 200_000, bench.some([1, 1, 1, 2, 4, 8, 64]))
        form = bench.random.choice(["right", "plain", "left"])
        sides = {"right": (rows, width, words), "plain": (rows, words, width), "left": (words, rows, width)}
        return MatmulSizes(*sides[form], 1, form)

    def fits(product: MatmulSizes) -> bool:
        rows, depth, columns, *_ = product
        cells = rows * depth + depth * columns + rows * columns
        return 2 * rows * depth * columns <= bench.flops[dtype] / 4 and cells <= bench.elements

    for product in bench.draw(count, sample, fits):
        yield Probe("vocabulary", partial(_matmul, bench, dtype, product))


def _matmul(bench: ProbeSampler, dtype: str, product: MatmulSizes) -> Work:
    rows, depth, columns, _, form = product
    make = partial(bench.tensor, dtype=dtype)
    if form == "linear":
        data, weight, bias = make(rows, depth), make(columns, depth), make(columns)
        return lambda: F.linear(data, weight, bias)
    left = make(depth, rows).t() if form == "left" else make(rows, depth)
    right = make(columns, depth).t() if form == "right" else make(depth, columns)
    return lambda: torch.mm(left, right)


def batched(bench: ProbeSampler, dtype: str, count: int) -> Iterator[Probe]:
    """Products of many pairs of matrices."""

    def sample() -> MatmulSizes:
        rows, depth, columns = (bench.between(8, most, 8) for most in (1024, 512, 1024))
        return MatmulSizes(
            rows, depth, columns, bench.between(2, 1024), bench.random.choice(["plain", "right"])
        )

    def fits(product: MatmulSizes) -> bool:
        rows, depth, columns, batch, _ = product
        cells = batch * (rows * depth + depth * columns + rows * columns)
        return 2 * batch * rows * depth * columns <= bench.flops[dtype] and cells <= bench.elements

    def make(product: MatmulSizes) -> Work:
        rows, depth, columns, batch, form = product
        left = bench.tensor(batch, rows, depth, dtype=dtype)
        right = bench.tensor(batch, *((columns, depth) if form == "right" else (depth, columns)), dtype=dtype)
        other = right.transpose(1, 2) if form == "right" else right
        return lambda: torch.bmm(left, other)

    for product in bench.draw(count, sample, fits):
        yield Probe("bmm", partial(make, product))


class AttentionSizes(NamedTuple):
    """An attention: batch, heads, tokens, width of a head, and what it looks at."""

    batch: int
    heads: int
    tokens: int
    width: int
    form: str


def attentions(bench: ProbeSampler, dtype: str, count: int) -> Iterator[Probe]:
    """Attention forward and backward, plain, causal and with a mask."""

    def sample() -> AttentionSizes:
        form = bench.random.choice(["plain", "plain", "causal", "causal", "mask"])
        return AttentionSizes(
            bench.some([1, 2, 4, 8, 16, 32, 64]),
            bench.some([4, 8, 12, 16, 32]),
            bench.between(16, 4096),
            bench.some([32, 64, 64, 64, 128]),
            form,
        )

    def fits(heads: AttentionSizes) -> bool:
        batch, number, tokens, width, _ = heads
        work = 4 * batch * number * tokens**2 * width
        return work <= bench.flops[dtype] / 4 and 4 * batch * number * tokens * width <= bench.elements

    for heads in bench.draw(count, sample, fits):
        yield Probe("attention", partial(_attention, bench, dtype, heads, False))
        yield Probe("attention backward", partial(_attention, bench, dtype, heads, True))


def _attention(bench: ProbeSampler, dtype: str, heads: AttentionSizes, gradient: bool) -> Work:
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


def encoders(bench: ProbeSampler, dtype: str, count: int) -> Iterator[Probe]:
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


class RecurrentSizes(NamedTuple):
    """A recurrent layer: its class, time steps, batch, widths, layers, and whether it goes both ways."""

    type: str
    steps: int
    batch: int
    inputs: int
    width: int
    layers: int
    both: bool


def recurrent(bench: ProbeSampler, dtype: str, count: int) -> Iterator[Probe]:
    """Recurrent layers forward and backward."""

    # there only one layer of an LSTM is one operation
    on_cpu = bench.device == "cpu"

    def sample() -> RecurrentSizes:
        return RecurrentSizes(
            "LSTM" if on_cpu else bench.random.choice(["LSTM", "LSTM", "LSTM", "GRU", "GRU", "RNN"]),
            bench.between(4, 300),
            bench.some([1, 2, 4, 8, 16, 32, 64]),
            bench.some([64, 128, 256, 512, 1024]),
            bench.some([64, 128, 200, 256, 320, 384, 512, 512, 640, 768, 1024, 1024]),
            1 if on_cpu else bench.some([1, 1, 2, 2, 3]),
            not on_cpu and bench.random.random() < 0.2,
        )

    def fits(one: RecurrentSizes) -> bool:
        work = 8 * one.steps * one.batch * one.width * (one.width + one.inputs) * one.layers
        return work <= min(bench.flops[dtype] / 2, 8e10)

    for one in bench.draw(count, sample, fits):
        yield Probe("recurrent", partial(_recurrent, bench, dtype, one, False), many=True)
        yield Probe("recurrent backward", partial(_recurrent, bench, dtype, one, True), many=True)


def _recurrent(bench: ProbeSampler, dtype: str, one: RecurrentSizes, gradient: bool) -> Work:
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


CHANNELS = [16, 32, 64, 64, 128, 128, 256, 256, 512, 512, 1024, 2048]
SIDES = [4, 7, 8, 10, 14, 16, 20, 28, 32, 40, 48, 56, 64, 80, 96, 112, 128, 160, 192, 224, 256]
# channels of an image
IMAGE = 3
BATCHES = [1, 1, 2, 4, 8, 8, 16, 32, 32, 64]


class ConvolutionSizes(NamedTuple):
    """A convolution: batch, side of the map, channels in and out, side of the window, stride, groups, direction."""

    batch: int
    side: int
    inputs: int
    outputs: int
    window: int
    stride: int
    groups: int
    transposed: bool

    @property
    def made(self) -> int:
        """The side of what it makes."""
        return self.side * self.stride if self.transposed else max(self.side // self.stride, 1)

    @property
    def flops(self) -> float:
        """Its arithmetic."""
        pixels = self.side**2 if self.transposed else self.made**2
        return 2.0 * self.batch * pixels * self.outputs * self.inputs / self.groups * self.window**2


def convolutions(bench: ProbeSampler, dtype: str, count: int) -> Iterator[Probe]:
    """Convolutions forward and backward: dense, grouped, one per channel, strided, transposed.

    Every second one is heavy: those are what a device is busy with, and of all that models have they are few.
    """
    most = bench.flops.get("tf32" if dtype == "float32" else dtype, bench.flops[dtype]) / 8

    def sample() -> ConvolutionSizes:
        pick = bench.random.random()
        window = bench.some([1, 1, 1, 1, 3, 3, 3, 3, 3, 5, 7, 2, 4])
        inputs = bench.some([*CHANNELS, bench.between(16, 1024, 8)])
        outputs = bench.some([*CHANNELS, inputs, inputs, bench.between(16, 1024, 8)])
        groups, stride = 1, 2 if window in (2, 4) else bench.some([1, 1, 1, 2])
        if inputs >= 16 and pick < 0.2:
            groups = outputs = inputs
            window = bench.some([3, 3, 5, 5, 7])
        # the first layer of most models
        elif pick > 0.92:
            window, stride = bench.random.choice([(7, 2), (3, 1), (3, 2), (4, 4), (16, 16)])
            image = bench.some([96, 128, 160, 192, 224, 256])
            return ConvolutionSizes(
                bench.some(BATCHES), image, IMAGE, bench.some([16, 32, 64, 96, 768]), window, stride, 1, False
            )
        elif inputs % 32 == outputs % 32 == 0 and pick < 0.25:
            groups = 32
        turned = groups == 1 and window in (2, 4) and bench.random.random() < 0.6
        return ConvolutionSizes(
            bench.some(BATCHES), bench.some(SIDES), inputs, outputs, window, stride, groups, turned
        )

    def fits(one: ConvolutionSizes, least: float) -> bool:
        cells = one.batch * (one.inputs * one.side**2 + one.outputs * one.made**2)
        return one.window <= one.side and least < one.flops <= most and cells <= bench.elements

    for least, part in ((1e4, count - count // 2), (most / 50, count // 2)):
        for one in bench.draw(part, sample, partial(fits, least=least)):
            yield Probe("convolution", partial(_convolution, bench, dtype, one, False))
            yield Probe("convolution backward", partial(_convolution, bench, dtype, one, True))


def _convolution(bench: ProbeSampler, dtype: str, one: ConvolutionSizes, gradient: bool) -> Work:
    asked = gradient and one.inputs != IMAGE
    data = bench.tensor(one.batch, one.inputs, one.side, one.side, dtype=dtype, grad=asked)
    ends = (one.inputs, one.outputs) if one.transposed else (one.outputs, one.inputs // one.groups)
    weight = bench.tensor(*ends, one.window, one.window, dtype=dtype, grad=gradient)

    def call() -> torch.Tensor:
        if one.transposed:
            return F.conv_transpose2d(data, weight, None, stride=one.stride)
        padding = one.window // 2 if one.window % 2 else 0
        return F.conv2d(data, weight, None, stride=one.stride, padding=padding, groups=one.groups)

    if not gradient:
        return call
    # of a model's first layer nobody asks for the gradient of its input
    return backward(call(), (weight,) if one.inputs == IMAGE else (data, weight))


def normalizations(bench: ProbeSampler, dtype: str, count: int) -> Iterator[Probe]:
    """Batch normalisation in training, backward and inference; group normalisation as well."""

    def sample() -> tuple[int, int, int]:
        channels = [16, 24, 32, 40, 64, 96, 112, 128, 192, 256, 320, 512, 1024, 2048]
        return (
            bench.some(BATCHES),
            bench.some(channels),
            bench.some([7, 8, 14, 16, 28, 32, 56, 64, 80, 112, 128, 160]),
        )

    def fits(drawn: tuple[int, int, int]) -> bool:
        return drawn[0] * drawn[1] * drawn[2] ** 2 <= bench.elements / 2

    for number, drawn in enumerate(bench.draw(count, sample, fits)):
        kind = "group" if number % 4 == 3 else "batch"
        for form in ("training", "backward", "inference")[: 2 if kind == "group" else 3]:
            yield Probe("normalization", partial(_normalization, bench, dtype, drawn, kind, form))


def _normalization(
    bench: ProbeSampler, dtype: str, drawn: tuple[int, int, int], kind: str, form: str
) -> Work:
    batch, channels, side = drawn
    gradient = form != "inference"
    data = bench.tensor(batch, channels, side, side, dtype=dtype, grad=gradient)
    weight, bias = (bench.tensor(channels, dtype=dtype, grad=gradient) for _ in range(2))
    mean, variance = bench.tensor(channels, dtype=dtype), bench.tensor(channels, dtype=dtype).abs_()

    def call() -> torch.Tensor:
        if kind == "group":
            return F.group_norm(data, 8, weight, bias)
        return F.batch_norm(data, mean, variance, weight, bias, form != "inference")

    if form == "backward":
        return backward(call(), (data, weight, bias))
    return without_gradients(call) if form == "inference" else call


def poolings(bench: ProbeSampler, dtype: str, elements: int) -> Iterator[Probe]:
    """Pooling and resampling of maps with about so many elements, forward and backward."""
    side, channels = bench.some([7, 8, 14, 16, 28, 32, 56, 64, 112]), bench.some([16, 64, 128, 256])
    batch = max(1, elements // (side**2 * channels))
    calls = {
        "max 3": lambda x: F.max_pool2d(x, 3, 2, 1),
        "max 2": lambda x: F.max_pool2d(x, 2),
        "mean": lambda x: F.adaptive_avg_pool2d(x, 1),
        "nearest": lambda x: F.interpolate(x, scale_factor=2),
        "bilinear": lambda x: F.interpolate(x, scale_factor=2, mode="bilinear"),
    }

    def make(name: str, gradient: bool) -> Work:
        data = bench.tensor(batch, channels, side, side, dtype=dtype, grad=gradient)
        call = calls[name]
        return backward(call(data), (data,)) if gradient else lambda: call(data)

    for name in calls:
        for gradient in (False, True):
            yield Probe("pooling", partial(make, name, gradient))


COLUMNS = 256
# of a table to look up in
ENTRIES = 30_000
OF_LISTS = (
    (4, 500),
    (30, 500),
    (150, 500),
    (4, 20_000),
    (150, 20_000),
    (4, 600_000),
    (60, 600_000),
    (8, 8_000_000),
)
Tensor = torch.Tensor

ONE: dict[str, Callable[[Tensor], Any]] = {
    "relu": F.relu,
    "relu_": F.relu_,
    "gelu": F.gelu,
    "silu": F.silu,
    "sigmoid": torch.sigmoid,
    "tanh": torch.tanh,
    "rsqrt": torch.rsqrt,
    "pow": lambda x: x**2,
    "scale": lambda x: x * 0.5,
    "shift": lambda x: x + 1.0,
    "clone": torch.clone,
    "dropout": lambda x: F.dropout(x, 0.1, True),
    "sum": torch.sum,
    "sum rows": lambda x: x.sum(-1),
    "sum columns": lambda x: x.sum(0),
    "mean": torch.mean,
    "mean rows": lambda x: x.mean(-1),
    "amax": lambda x: x.amax(-1),
    "argmax": lambda x: x.argmax(-1),
    "cumsum": lambda x: x.cumsum(-1),
    "exp": torch.exp,
    "log": torch.log,
    "half": lambda x: -x[:, : COLUMNS // 2],
    "halves": lambda x: torch.cat([x[:, COLUMNS // 2 :], x[:, : COLUMNS // 2]], -1),
    "one for all": lambda x: x[:, :1].expand(-1, COLUMNS) / 7.0,
    "norm": torch.linalg.vector_norm,
}
TWO: dict[str, Callable[[Tensor, Tensor], Any]] = {
    "add": torch.add,
    "add_": lambda x, y: x.add_(y),
    "mul": torch.mul,
    "div": torch.div,
    "copy_": lambda x, y: x.copy_(y),
    "cat": lambda x, y: torch.cat([x, y], 1),
    "add row": lambda x, y: x + y[0],
    "mul column": lambda x, y: x * y[:, :1],
}
TURNED: tuple[Callable[[Tensor], Any], ...] = (F.relu, F.gelu, F.silu, torch.sigmoid)
DRAWN: tuple[Callable[[Tensor], Any], ...] = (
    torch.rand_like,
    torch.randn_like,
    lambda x: x.bernoulli_(0.9),
    lambda x: torch.randint_like(x, 100),
)
SORTED: tuple[Callable[[Tensor], Any], ...] = (
    lambda x: x.sort(-1),
    lambda x: x.view(-1).sort(),
    lambda x: x.topk(5),
    # a few of many, as those that choose among words do
    lambda x: x.view(16, -1).topk(40),
)
FACTORIZED: tuple[Callable[[Tensor], Any], ...] = (
    torch.linalg.svd,
    torch.linalg.eigh,
    torch.linalg.qr,
    torch.linalg.cholesky_ex,
    lambda x: torch.linalg.solve_ex(x, x),
    torch.linalg.inv_ex,
)
LISTS: tuple[Callable[[list[Tensor], list[Tensor]], Any], ...] = (
    lambda x, y: torch._foreach_add_(x, y, alpha=0.1),
    lambda x, y: torch._foreach_mul_(x, 0.9),
    lambda x, y: torch._foreach_sqrt(x),
    lambda x, y: torch._foreach_lerp_(x, y, 0.1),
    lambda x, y: torch._foreach_addcdiv_(x, y, y, value=0.1),
    lambda x, y: torch._foreach_addcmul_(x, y, y, value=0.1),
    lambda x, y: torch._foreach_div_(x, [2.0] * len(x)),
)


def elements(bench: ProbeSampler, dtype: str, size: int) -> Iterator[Probe]:
    """Operations on tensors of about so many elements."""
    rows = size // COLUMNS + 1
    make = partial(bench.tensor, rows, COLUMNS, dtype=dtype)

    def one(call: Callable[[Tensor], Any]) -> Work:
        data = make().abs_()
        return lambda: call(data)

    def two(call: Callable[[Tensor, Tensor], Any]) -> Work:
        data, other = make(), make()
        return lambda: call(data, other)

    def turned(call: Callable[[Tensor], Any]) -> Work:
        data = make(grad=True)
        return backward(call(data), (data,))

    for single in ONE.values():
        yield Probe("elements", partial(one, single))
    for double in TWO.values():
        yield Probe("elements", partial(two, double))
    for single in TURNED:
        yield Probe("elements backward", partial(turned, single))
    for copy in copies(bench, dtype, rows):
        yield Probe("copy", copy)
    for lookup in lookups(bench, dtype, rows):
        yield Probe("lookup", lookup)
    for draw in DRAWN:
        yield Probe("random", partial(one, draw))
    for sort in SORTED:
        yield Probe("sorting", partial(one, sort))


def copies(bench: ProbeSampler, dtype: str, rows: int) -> Iterator[Callable[[], Work]]:
    """Copies that change the order, the element type, or make something out of nothing."""

    def cast() -> Work:
        data = bench.tensor(rows, COLUMNS, dtype=dtype)
        other = torch.bfloat16 if dtype == "float32" else torch.float32
        return lambda: data.to(other)

    def turn() -> Work:
        data = bench.tensor(COLUMNS, rows, dtype=dtype).t()
        return data.contiguous

    def heads() -> Work:
        data = bench.tensor(max(1, rows // 32), 32, 8, 32, dtype=dtype).transpose(1, 2)
        return data.contiguous

    def zeros() -> Work:
        return lambda: torch.zeros(rows, COLUMNS, device=bench.device, dtype=getattr(torch, dtype))

    def maps() -> Work:
        data = bench.tensor(max(1, rows // 196), COLUMNS, 14, 14, dtype=dtype)
        return lambda: data.mean((2, 3))

    def grow() -> Work:
        data = bench.tensor(max(1, rows // 196), COLUMNS, 14, 14, dtype=dtype)
        more = bench.tensor(len(data), COLUMNS // 8, 14, 14, dtype=dtype)
        return lambda: torch.cat([data, more], 1)

    def last() -> Work:
        data = bench.tensor(max(1, rows // 196), COLUMNS, 14, 14, dtype=dtype)
        other = bench.tensor(len(data), 14, 14, COLUMNS, dtype=dtype).permute(0, 3, 1, 2)
        return lambda: data + other

    def table() -> Work:
        data = bench.tensor(max(1, rows // 32), 32, 8, 32, dtype=dtype).transpose(1, 2)
        factor = bench.tensor(32, 32, dtype=dtype)
        return lambda: data * factor

    yield from (cast, turn, heads, zeros, maps, grow, last, table)


def lookups(bench: ProbeSampler, dtype: str, rows: int) -> Iterator[Callable[[], Work]]:
    """Rows taken out of tables by number, and losses that pick one column of each row."""

    def embed(gradient: bool) -> Work:
        weight, places = (
            bench.tensor(ENTRIES, COLUMNS, dtype=dtype, grad=gradient),
            bench.numbers(ENTRIES, rows),
        )
        return (
            backward(F.embedding(places, weight), (weight,))
            if gradient
            else lambda: F.embedding(places, weight)
        )

    def index() -> Work:
        data, places = bench.tensor(rows, COLUMNS, dtype=dtype), bench.numbers(rows, max(1, rows // 2))
        return lambda: data[places]

    def gather() -> Work:
        data, places = bench.tensor(rows, COLUMNS, dtype=dtype), bench.numbers(COLUMNS, rows, 16)
        return lambda: data.gather(1, places)

    def loss(gradient: bool) -> Work:
        data = bench.tensor(rows, COLUMNS, dtype=dtype).log_softmax(-1).requires_grad_(gradient)
        places = bench.numbers(COLUMNS, rows)
        return backward(F.nll_loss(data, places), (data,)) if gradient else lambda: F.nll_loss(data, places)

    yield from (partial(embed, False), partial(embed, True), index, gather)
    yield from (partial(loss, False), partial(loss, True))


def rows(bench: ProbeSampler, dtype: str, count: int) -> Iterator[Probe]:
    """Layer normalisation and softmax, forward and backward."""

    def sample() -> tuple[int, int]:
        return bench.between(1, 60_000), bench.some([64, 128, 256, 512, 768, 1024, 2048, 4096])

    def norm(drawn: tuple[int, int], gradient: bool, number: int) -> Work:
        # maps are normalised with their channels last, which they are seldom stored with
        turned = number % 4 == 3
        data = bench.tensor(*(drawn[::-1] if turned else drawn), dtype=dtype)
        data = (data.t() if turned else data).requires_grad_(gradient)
        weight, bias = (bench.tensor(drawn[1], dtype=dtype, grad=gradient) for _ in range(2))

        def call() -> Tensor:
            return F.layer_norm(data, (drawn[1],), weight, bias)

        return backward(call(), (data, weight, bias)) if gradient else call

    def softmax(drawn: tuple[int, int], gradient: bool, number: int) -> Work:
        data = bench.tensor(*drawn, dtype=dtype, grad=gradient)
        call = (F.softmax, F.log_softmax)[number % 2]
        return backward(call(data, -1), (data,)) if gradient else lambda: call(data, -1)

    drawn = bench.draw(count, sample, lambda sizes: sizes[0] * sizes[1] <= bench.elements / 3)
    for number, sizes in enumerate(drawn):
        for gradient in (False, True):
            yield Probe("layer norm", partial(norm, sizes, gradient, number))
            yield Probe("softmax", partial(softmax, sizes, gradient, number))


def factorizations(bench: ProbeSampler, dtype: str, count: int) -> Iterator[Probe]:
    """Matrices taken apart and systems solved, each a few times."""

    def sample() -> tuple[int, int]:
        return bench.some([1, 1, 1, 4, 32]), bench.between(4, 512)

    def make(call: Callable[[Tensor], Any], many: int, size: int) -> Work:
        data = bench.tensor(many, size, size, dtype=dtype)
        positive = data @ data.mT + size * torch.eye(size, device=bench.device)
        return lambda: call(positive)

    for call in FACTORIZED:
        for many, size in bench.draw(count, sample, lambda sizes: sizes[0] * sizes[1] ** 3 <= 2e7):
            yield Probe("factorization", partial(make, call, many, size))


def optimizers(bench: ProbeSampler, dtype: str) -> Iterator[Probe]:
    """What optimizers do to lists of tensors at once."""

    def make(call: Callable[[list[Tensor], list[Tensor]], Any], count: int, size: int) -> Work:
        ones, others = ([bench.tensor(size, dtype=dtype).abs_() for _ in range(count)] for _ in range(2))
        return lambda: call(ones, others)

    for count, size in OF_LISTS:
        if count * size <= bench.elements / 1.5:
            for call in LISTS:
                yield Probe("optimizer", partial(make, call, count, size))


VARIED = ("matmul", "vocabulary", "bmm", "attention", "encoder", "recurrent", "convolution")
"""Families whose time depends on the kernel that a library chooses, forward and backward."""
# few of them, and rows of odd length are four times slower: no other product tells
FIRST = "vocabulary"
SIZES = (1_000, 30_000, 400_000, 3_000_000, 25_000_000)


def all_probes(bench: ProbeSampler, dtypes: tuple[str, ...], share: float = 1.0) -> list[Probe]:
    """The operations of every kind for each element type; ``share`` is how many of the usual number."""
    found: list[Probe] = []
    for dtype in dtypes:

        def some(count: int) -> int:
            return max(2, round(count * share))

        found += matmuls(bench, dtype, some(220))
        found += vocabularies(bench, dtype, some(14))
        found += batched(bench, dtype, some(36))
        found += attentions(bench, dtype, some(30))
        found += encoders(bench, dtype, some(14))
        found += recurrent(bench, dtype, some(34))
        found += convolutions(bench, dtype, some(110))
        found += normalizations(bench, dtype, some(30))
        found += rows(bench, dtype, some(16))
        found += optimizers(bench, dtype)
        # on a GPU it takes seconds to load the library
        if bench.device == "cpu" and dtype == "float32":
            found += factorizations(bench, dtype, some(5))
        for size in SIZES:
            if size <= bench.elements / 3:
                found += elements(bench, dtype, round(size * bench.random.uniform(0.6, 1.6)))
                found += poolings(bench, dtype, size)
    # when time runs out, what is missing is missing evenly, but rather of what memory alone bounds
    drawn = random.Random(1)

    def place(probe: Probe) -> float:
        late = 0.4 if probe.family == FIRST else 1.0 if probe.family.startswith(VARIED) else 2.0
        return drawn.random() * late

    return sorted(found, key=place)
