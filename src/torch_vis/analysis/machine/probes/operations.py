"""Single operations that a calibration times: products, attention, convolutions, elementwise and the like."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F

from torch_vis.analysis.machine.probes import Probe, ProbeSampler, Work, backward, without_gradients

WIDTHS = [
    *range(64, 129, 32),
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


def matmuls(sampler: ProbeSampler, dtype: str, count: int) -> Iterator[Probe]:
    """Products of two matrices in the ways in which layers and their gradients call them."""

    def sample() -> MatmulSizes:
        pick = sampler.random.random
        form = sampler.random.choice(["linear", "linear", "plain", "left", "right"])
        rows = sampler.some(ROWS) if pick() < 0.6 else sampler.between(1, 40_000)
        depth = sampler.some(WIDTHS) if pick() < 0.7 else sampler.between(32, 16_384, sampler.some([8, 64]))
        columns = (
            sampler.some([*WIDTHS, 1000, 32_000])
            if pick() < 0.7
            else sampler.between(32, 50_000, sampler.some([8, 64]))
        )
        if pick() < 0.12:
            # vocabularies are seldom round
            columns += sampler.some([1, 1, 2, 3])
        # a weight's gradient: as deep as there are rows of data
        if form == "left":
            rows, depth = depth, rows
        return MatmulSizes(rows, depth, columns, 1, form)

    def fits(product: MatmulSizes) -> bool:
        rows, depth, columns, *_ = product
        cells = rows * depth + depth * columns + rows * columns
        return 2 * rows * depth * columns <= sampler.flops[dtype] and cells <= sampler.elements

    for product in sampler.draw(count, sample, fits):
        yield Probe("matmul", partial(_matmul, sampler, dtype, product))


def vocabularies(sampler: ProbeSampler, dtype: str, count: int) -> Iterator[Probe]:
    """The last layers of language models, whose many columns are seldom a round number, and their gradients."""

    def sample() -> MatmulSizes:
        rows, width = sampler.between(32, 16_384, 8), sampler.some(WIDTHS[3:14])
        words = sampler.between(10_000, 200_000, sampler.some([1, 1, 1, 2, 4, 8, 64]))
        form = sampler.random.choice(["right", "plain", "left"])
        sides = {"right": (rows, width, words), "plain": (rows, words, width), "left": (words, rows, width)}
        return MatmulSizes(*sides[form], 1, form)

    def fits(product: MatmulSizes) -> bool:
        rows, depth, columns, *_ = product
        cells = rows * depth + depth * columns + rows * columns
        return 2 * rows * depth * columns <= sampler.flops[dtype] / 4 and cells <= sampler.elements

    for product in sampler.draw(count, sample, fits):
        yield Probe("vocabulary", partial(_matmul, sampler, dtype, product))


def _matmul(sampler: ProbeSampler, dtype: str, product: MatmulSizes) -> Work:
    rows, depth, columns, _, form = product
    make = partial(sampler.tensor, dtype=dtype)
    if form == "linear":
        data, weight, bias = make(rows, depth), make(columns, depth), make(columns)
        return lambda: F.linear(data, weight, bias)
    left = make(depth, rows).t() if form == "left" else make(rows, depth)
    right = make(columns, depth).t() if form == "right" else make(depth, columns)
    return lambda: torch.mm(left, right)


def batched(sampler: ProbeSampler, dtype: str, count: int) -> Iterator[Probe]:
    """Products of many pairs of matrices."""

    def sample() -> MatmulSizes:
        rows, depth, columns = (sampler.between(8, most, 8) for most in (1024, 512, 1024))
        return MatmulSizes(
            rows, depth, columns, sampler.between(2, 1024), sampler.random.choice(["plain", "right"])
        )

    def fits(product: MatmulSizes) -> bool:
        rows, depth, columns, batch, _ = product
        cells = batch * (rows * depth + depth * columns + rows * columns)
        return 2 * batch * rows * depth * columns <= sampler.flops[dtype] and cells <= sampler.elements

    def make(product: MatmulSizes) -> Work:
        rows, depth, columns, batch, form = product
        left = sampler.tensor(batch, rows, depth, dtype=dtype)
        right = sampler.tensor(
            batch, *((columns, depth) if form == "right" else (depth, columns)), dtype=dtype
        )
        other = right.transpose(1, 2) if form == "right" else right
        return lambda: torch.bmm(left, other)

    for product in sampler.draw(count, sample, fits):
        yield Probe("bmm", partial(make, product))


class AttentionProbe(NamedTuple):
    """An attention: batch, heads, tokens, width of a head, and what it looks at."""

    batch: int
    heads: int
    tokens: int
    width: int
    form: str


def attentions(sampler: ProbeSampler, dtype: str, count: int) -> Iterator[Probe]:
    """Attention forward and backward, plain, causal and with a mask."""

    def sample() -> AttentionProbe:
        form = sampler.random.choice(["plain", "plain", "causal", "causal", "mask"])
        return AttentionProbe(
            sampler.some([1, 2, 4, 8, 16, 32, 64]),
            sampler.some([4, 8, 12, 16, 32]),
            sampler.between(16, 4096),
            sampler.some([32, 64, 64, 64, 128]),
            form,
        )

    def fits(heads: AttentionProbe) -> bool:
        batch, number, tokens, width, _ = heads
        work = 4 * batch * number * tokens**2 * width
        return work <= sampler.flops[dtype] / 4 and 4 * batch * number * tokens * width <= sampler.elements

    for heads in sampler.draw(count, sample, fits):
        yield Probe("attention", partial(_attention, sampler, dtype, heads, False))
        yield Probe("attention backward", partial(_attention, sampler, dtype, heads, True))


def _attention(sampler: ProbeSampler, dtype: str, heads: AttentionProbe, gradient: bool) -> Work:
    batch, number, tokens, width, form = heads
    parts = [
        sampler.tensor(batch, tokens, number, width, dtype=dtype).transpose(1, 2).requires_grad_(gradient)
        for _ in range(3)
    ]
    kind: Any = getattr(torch, dtype)
    mask = (
        torch.zeros(batch, 1, tokens, tokens, device=sampler.device, dtype=kind) if form == "mask" else None
    )

    query, key, value = parts

    def call() -> torch.Tensor:
        return F.scaled_dot_product_attention(query, key, value, attn_mask=mask, is_causal=form == "causal")

    return backward(call(), (query, key, value)) if gradient else call


def encoders(sampler: ProbeSampler, dtype: str, count: int) -> Iterator[Probe]:
    """Layers that inference runs as one operation."""

    def sample() -> tuple[int, int, int, bool]:
        width = sampler.some([256, 512, 768, 1024])
        return (
            sampler.some([1, 2, 4, 8, 16, 32]),
            sampler.between(16, 1024),
            width,
            sampler.random.random() < 0.5,
        )

    def fits(drawn: tuple[int, int, int, bool]) -> bool:
        batch, tokens, width, _ = drawn
        return batch * tokens * width * 24 * width <= sampler.flops[dtype] / 2

    def make(drawn: tuple[int, int, int, bool]) -> Work:
        batch, tokens, width, whole = drawn
        options: dict[str, Any] = {
            "batch_first": True,
            "device": sampler.device,
            "dtype": getattr(torch, dtype),
        }
        data = sampler.tensor(batch, tokens, width, dtype=dtype)
        if whole:
            layer = torch.nn.TransformerEncoderLayer(width, width // 64, 4 * width, **options).eval()
            return without_gradients(lambda: layer(data))
        heads = torch.nn.MultiheadAttention(width, width // 64, **options).eval()
        return without_gradients(lambda: heads(data, data, data, need_weights=False))

    for drawn in sampler.draw(count, sample, fits):
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


def recurrent(sampler: ProbeSampler, dtype: str, count: int) -> Iterator[Probe]:
    """Recurrent layers forward and backward."""

    # there only one layer of an LSTM is one operation
    on_cpu = sampler.device == "cpu"

    def sample() -> RecurrentSizes:
        return RecurrentSizes(
            "LSTM" if on_cpu else sampler.random.choice(["LSTM", "LSTM", "LSTM", "GRU", "GRU", "RNN"]),
            sampler.between(4, 300),
            sampler.some([1, 2, 4, 8, 16, 32, 64]),
            sampler.some([64, 128, 256, 512, 1024]),
            sampler.some([64, 128, 200, 256, 320, 384, 512, 512, 640, 768, 1024, 1024]),
            1 if on_cpu else sampler.some([1, 1, 2, 2, 3]),
            not on_cpu and sampler.random.random() < 0.2,
        )

    def fits(sizes: RecurrentSizes) -> bool:
        work = 8 * sizes.steps * sizes.batch * sizes.width * (sizes.width + sizes.inputs) * sizes.layers
        return work <= min(sampler.flops[dtype] / 2, 8e10)

    for sizes in sampler.draw(count, sample, fits):
        yield Probe("recurrent", partial(_recurrent, sampler, dtype, sizes, False), many=True)
        yield Probe("recurrent backward", partial(_recurrent, sampler, dtype, sizes, True), many=True)


def _recurrent(sampler: ProbeSampler, dtype: str, sizes: RecurrentSizes, gradient: bool) -> Work:
    options: dict[str, Any] = {"batch_first": True, "device": sampler.device, "dtype": getattr(torch, dtype)}
    layer = getattr(torch.nn, sizes.type)(
        sizes.inputs, sizes.width, sizes.layers, bidirectional=sizes.both, **options
    )
    data = sampler.tensor(sizes.batch, sizes.steps, sizes.inputs, dtype=dtype, grad=gradient)
    if gradient:
        return backward(layer(data)[0], (data, *layer.parameters()))
    start = sampler.tensor(sizes.layers * (1 + sizes.both), sizes.batch, sizes.width, dtype=dtype)
    state = (start, start) if sizes.type == "LSTM" else start
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
    def output_side(self) -> int:
        """The side of what it makes."""
        return self.side * self.stride if self.transposed else max(self.side // self.stride, 1)

    @property
    def flops(self) -> float:
        """Its arithmetic."""
        pixels = self.side**2 if self.transposed else self.output_side**2
        return 2.0 * self.batch * pixels * self.outputs * self.inputs / self.groups * self.window**2


def convolutions(sampler: ProbeSampler, dtype: str, count: int) -> Iterator[Probe]:
    """Convolutions forward and backward: dense, grouped, one per channel, strided, transposed.

    Every second one is heavy: those are what a device is busy with, and of all that models have they are few.
    """
    most = sampler.flops.get("tf32" if dtype == "float32" else dtype, sampler.flops[dtype]) / 8

    def sample() -> ConvolutionSizes:
        pick = sampler.random.random()
        window = sampler.some([1, 1, 1, 1, 3, 3, 3, 3, 3, 5, 7, 2, 4])
        inputs = sampler.some([*CHANNELS, sampler.between(16, 1024, 8)])
        outputs = sampler.some([*CHANNELS, inputs, inputs, sampler.between(16, 1024, 8)])
        groups, stride = 1, 2 if window in (2, 4) else sampler.some([1, 1, 1, 2])
        if inputs >= 16 and pick < 0.2:
            groups = outputs = inputs
            window = sampler.some([3, 3, 5, 5, 7])
        # the first layer of most models
        elif pick > 0.92:
            window, stride = sampler.random.choice([(7, 2), (3, 1), (3, 2), (4, 4), (16, 16)])
            image = sampler.some([96, 128, 160, 192, 224, 256])
            return ConvolutionSizes(
                sampler.some(BATCHES),
                image,
                IMAGE,
                sampler.some([16, 32, 64, 96, 768]),
                window,
                stride,
                1,
                False,
            )
        elif inputs % 32 == outputs % 32 == 0 and pick < 0.25:
            groups = 32
        turned = groups == 1 and window in (2, 4) and sampler.random.random() < 0.6
        return ConvolutionSizes(
            sampler.some(BATCHES), sampler.some(SIDES), inputs, outputs, window, stride, groups, turned
        )

    def fits(sizes: ConvolutionSizes, least: float) -> bool:
        cells = sizes.batch * (sizes.inputs * sizes.side**2 + sizes.outputs * sizes.output_side**2)
        return sizes.window <= sizes.side and least < sizes.flops <= most and cells <= sampler.elements

    for least, part in ((1e4, count - count // 2), (most / 50, count // 2)):
        for sizes in sampler.draw(part, sample, partial(fits, least=least)):
            yield Probe("convolution", partial(_convolution, sampler, dtype, sizes, False))
            yield Probe("convolution backward", partial(_convolution, sampler, dtype, sizes, True))


def _convolution(sampler: ProbeSampler, dtype: str, sizes: ConvolutionSizes, gradient: bool) -> Work:
    input_gradient = gradient and sizes.inputs != IMAGE
    data = sampler.tensor(sizes.batch, sizes.inputs, sizes.side, sizes.side, dtype=dtype, grad=input_gradient)
    ends = (
        (sizes.inputs, sizes.outputs) if sizes.transposed else (sizes.outputs, sizes.inputs // sizes.groups)
    )
    weight = sampler.tensor(*ends, sizes.window, sizes.window, dtype=dtype, grad=gradient)

    def call() -> torch.Tensor:
        if sizes.transposed:
            return F.conv_transpose2d(data, weight, None, stride=sizes.stride)
        padding = sizes.window // 2 if sizes.window % 2 else 0
        return F.conv2d(data, weight, None, stride=sizes.stride, padding=padding, groups=sizes.groups)

    if not gradient:
        return call
    # of a model's first layer nobody asks for the gradient of its input
    return backward(call(), (weight,) if sizes.inputs == IMAGE else (data, weight))


def normalizations(sampler: ProbeSampler, dtype: str, count: int) -> Iterator[Probe]:
    """Batch normalisation in training, backward and inference; group normalisation as well."""

    def sample() -> tuple[int, int, int]:
        channels = [16, 24, 32, 40, 64, 96, 112, 128, 192, 256, 320, 512, 1024, 2048]
        return (
            sampler.some(BATCHES),
            sampler.some(channels),
            sampler.some([7, 8, 14, 16, 28, 32, 56, 64, 80, 112, 128, 160]),
        )

    def fits(drawn: tuple[int, int, int]) -> bool:
        return drawn[0] * drawn[1] * drawn[2] ** 2 <= sampler.elements / 2

    for number, drawn in enumerate(sampler.draw(count, sample, fits)):
        kind = "group" if number % 4 == 3 else "batch"
        for form in ("training", "backward", "inference")[: 2 if kind == "group" else 3]:
            yield Probe("normalization", partial(_normalization, sampler, dtype, drawn, kind, form))


def _normalization(
    sampler: ProbeSampler, dtype: str, drawn: tuple[int, int, int], kind: str, form: str
) -> Work:
    batch, channels, side = drawn
    gradient = form != "inference"
    data = sampler.tensor(batch, channels, side, side, dtype=dtype, grad=gradient)
    weight, bias = (sampler.tensor(channels, dtype=dtype, grad=gradient) for _ in range(2))
    mean, variance = sampler.tensor(channels, dtype=dtype), sampler.tensor(channels, dtype=dtype).abs_()

    def call() -> torch.Tensor:
        if kind == "group":
            return F.group_norm(data, 8, weight, bias)
        return F.batch_norm(data, mean, variance, weight, bias, form != "inference")

    if form == "backward":
        return backward(call(), (data, weight, bias))
    return without_gradients(call) if form == "inference" else call


def poolings(sampler: ProbeSampler, dtype: str, elements: int) -> Iterator[Probe]:
    """Pooling and resampling of maps with about so many elements, forward and backward."""
    side, channels = sampler.some([7, 8, 14, 16, 28, 32, 56, 64, 112]), sampler.some([16, 64, 128, 256])
    batch = max(1, elements // (side**2 * channels))
    calls = {
        "max 3": lambda x: F.max_pool2d(x, 3, 2, 1),
        "max 2": lambda x: F.max_pool2d(x, 2),
        "mean": lambda x: F.adaptive_avg_pool2d(x, 1),
        "nearest": lambda x: F.interpolate(x, scale_factor=2),
        "bilinear": lambda x: F.interpolate(x, scale_factor=2, mode="bilinear"),
    }

    def make(name: str, gradient: bool) -> Work:
        data = sampler.tensor(batch, channels, side, side, dtype=dtype, grad=gradient)
        call = calls[name]
        return backward(call(data), (data,)) if gradient else lambda: call(data)

    for name in calls:
        for gradient in (False, True):
            yield Probe("pooling", partial(make, name, gradient))


COLUMNS = 256
# of a table to look up in
ENTRIES = 30_000
OF_LISTS = (
    *((4, 500), (30, 500), (150, 500), (4, 20_000), (150, 20_000)),
    *((4, 600_000), (60, 600_000), (8, 8_000_000)),
)
Tensor = torch.Tensor

UNARY: dict[str, Callable[[Tensor], Any]] = {
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
BINARY: dict[str, Callable[[Tensor, Tensor], Any]] = {
    "add": torch.add,
    "add_": lambda x, y: x.add_(y),
    "mul": torch.mul,
    "div": torch.div,
    "copy_": lambda x, y: x.copy_(y),
    "cat": lambda x, y: torch.cat([x, y], 1),
    "add row": lambda x, y: x + y[0],
    "mul column": lambda x, y: x * y[:, :1],
}
DIFFERENTIATED: tuple[Callable[[Tensor], Any], ...] = (F.relu, F.gelu, F.silu, torch.sigmoid)
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


def elements(sampler: ProbeSampler, dtype: str, size: int) -> Iterator[Probe]:
    """Operations on tensors of about so many elements."""
    rows = size // COLUMNS + 1
    make = partial(sampler.tensor, rows, COLUMNS, dtype=dtype)

    def unary(call: Callable[[Tensor], Any]) -> Work:
        data = make().abs_()
        return lambda: call(data)

    def binary(call: Callable[[Tensor, Tensor], Any]) -> Work:
        data, other = make(), make()
        return lambda: call(data, other)

    def backward_of(call: Callable[[Tensor], Any]) -> Work:
        data = make(grad=True)
        return backward(call(data), (data,))

    for name, single in UNARY.items():
        yield Probe("basic" if name in BASIC else "elements", partial(unary, single))
    for name, double in BINARY.items():
        yield Probe("basic" if name in BASIC else "elements", partial(binary, double))
    for single in DIFFERENTIATED:
        yield Probe("elements backward", partial(backward_of, single))
    for copy in copies(sampler, dtype, rows):
        yield Probe("copy", copy)
    for lookup in lookups(sampler, dtype, rows):
        yield Probe("lookup", lookup)
    for draw in DRAWN:
        yield Probe("random", partial(unary, draw))
    for sort in SORTED:
        yield Probe("sorting", partial(unary, sort))


def copies(sampler: ProbeSampler, dtype: str, rows: int) -> Iterator[Callable[[], Work]]:
    """Copies that change the order, the element type, or make something out of nothing."""

    def cast() -> Work:
        data = sampler.tensor(rows, COLUMNS, dtype=dtype)
        other = torch.bfloat16 if dtype == "float32" else torch.float32
        return lambda: data.to(other)

    def turn() -> Work:
        data = sampler.tensor(COLUMNS, rows, dtype=dtype).t()
        return data.contiguous

    def heads() -> Work:
        data = sampler.tensor(max(1, rows // 32), 32, 8, 32, dtype=dtype).transpose(1, 2)
        return data.contiguous

    def zeros() -> Work:
        return lambda: torch.zeros(rows, COLUMNS, device=sampler.device, dtype=getattr(torch, dtype))

    def maps() -> Work:
        data = sampler.tensor(max(1, rows // 196), COLUMNS, 14, 14, dtype=dtype)
        return lambda: data.mean((2, 3))

    def grow() -> Work:
        data = sampler.tensor(max(1, rows // 196), COLUMNS, 14, 14, dtype=dtype)
        more = sampler.tensor(len(data), COLUMNS // 8, 14, 14, dtype=dtype)
        return lambda: torch.cat([data, more], 1)

    def last() -> Work:
        data = sampler.tensor(max(1, rows // 196), COLUMNS, 14, 14, dtype=dtype)
        other = sampler.tensor(len(data), 14, 14, COLUMNS, dtype=dtype).permute(0, 3, 1, 2)
        return lambda: data + other

    def table() -> Work:
        data = sampler.tensor(max(1, rows // 32), 32, 8, 32, dtype=dtype).transpose(1, 2)
        factor = sampler.tensor(32, 32, dtype=dtype)
        return lambda: data * factor

    yield from (cast, turn, heads, zeros, maps, grow, last, table)


def lookups(sampler: ProbeSampler, dtype: str, rows: int) -> Iterator[Callable[[], Work]]:
    """Rows taken out of tables by number, and losses that pick one column of each row."""

    def embed(gradient: bool) -> Work:
        weight, indices = (
            sampler.tensor(ENTRIES, COLUMNS, dtype=dtype, grad=gradient),
            sampler.numbers(ENTRIES, rows),
        )
        return (
            backward(F.embedding(indices, weight), (weight,))
            if gradient
            else lambda: F.embedding(indices, weight)
        )

    def index() -> Work:
        data, indices = sampler.tensor(rows, COLUMNS, dtype=dtype), sampler.numbers(rows, max(1, rows // 2))
        return lambda: data[indices]

    def gather() -> Work:
        data, indices = sampler.tensor(rows, COLUMNS, dtype=dtype), sampler.numbers(COLUMNS, rows, 16)
        return lambda: data.gather(1, indices)

    def loss(gradient: bool) -> Work:
        data = sampler.tensor(rows, COLUMNS, dtype=dtype).log_softmax(-1).requires_grad_(gradient)
        indices = sampler.numbers(COLUMNS, rows)
        return backward(F.nll_loss(data, indices), (data,)) if gradient else lambda: F.nll_loss(data, indices)

    yield from (partial(embed, False), partial(embed, True), index, gather)
    yield from (partial(loss, False), partial(loss, True))


def rows(sampler: ProbeSampler, dtype: str, count: int) -> Iterator[Probe]:
    """Layer normalisation and softmax, forward and backward."""

    def sample() -> tuple[int, int]:
        return sampler.between(1, 60_000), sampler.some([64, 128, 256, 512, 768, 1024, 2048, 4096])

    def norm(drawn: tuple[int, int], gradient: bool, number: int) -> Work:
        # maps are normalised with their channels last, which they are seldom stored with
        turned = number % 4 == 3
        data = sampler.tensor(*(drawn[::-1] if turned else drawn), dtype=dtype)
        data = (data.t() if turned else data).requires_grad_(gradient)
        weight, bias = (sampler.tensor(drawn[1], dtype=dtype, grad=gradient) for _ in range(2))

        def call() -> Tensor:
            return F.layer_norm(data, (drawn[1],), weight, bias)

        return backward(call(), (data, weight, bias)) if gradient else call

    def softmax(drawn: tuple[int, int], gradient: bool, number: int) -> Work:
        data = sampler.tensor(*drawn, dtype=dtype, grad=gradient)
        call = (F.softmax, F.log_softmax)[number % 2]
        return backward(call(data, -1), (data,)) if gradient else lambda: call(data, -1)

    drawn = sampler.draw(count, sample, lambda sizes: sizes[0] * sizes[1] <= sampler.elements / 3)
    for number, sizes in enumerate(drawn):
        for gradient in (False, True):
            yield Probe("layer norm", partial(norm, sizes, gradient, number))
            yield Probe("softmax", partial(softmax, sizes, gradient, number))


def factorizations(sampler: ProbeSampler, dtype: str, count: int) -> Iterator[Probe]:
    """Factorisations of matrices and systems solved, each a few times."""

    def sample() -> tuple[int, int]:
        return sampler.some([1, 1, 1, 4, 32]), sampler.between(4, 512)

    def make(call: Callable[[Tensor], Any], many: int, size: int) -> Work:
        data = sampler.tensor(many, size, size, dtype=dtype)
        positive = data @ data.mT + size * torch.eye(size, device=sampler.device)
        return lambda: call(positive)

    for call in FACTORIZED:
        for many, size in sampler.draw(count, sample, lambda sizes: sizes[0] * sizes[1] ** 3 <= 2e7):
            yield Probe("factorization", partial(make, call, many, size))


def optimizers(sampler: ProbeSampler, dtype: str) -> Iterator[Probe]:
    """What optimizers do to lists of tensors at once."""

    def make(call: Callable[[list[Tensor], list[Tensor]], Any], count: int, size: int) -> Work:
        ones, others = ([sampler.tensor(size, dtype=dtype).abs_() for _ in range(count)] for _ in range(2))
        return lambda: call(ones, others)

    for count, size in OF_LISTS:
        if count * size <= sampler.elements / 1.5:
            for call in LISTS:
                yield Probe("optimizer", partial(make, call, count, size))


VARIED = ("matmul", "vocabulary", "bmm", "attention", "encoder", "recurrent", "convolution")
"""Families whose time depends on the kernel that a library chooses, forward and backward."""
# vocabularies, since rows of odd length are four times slower, as no other product tells; and what models are full of
FIRST = {"vocabulary": 0.4, "basic": 0.1}
BASIC = frozenset({"relu", "gelu", "sum", "clone", "add", "add_", "mul", "copy_"})
SIZES = (1_000, 30_000, 400_000, 3_000_000, 25_000_000)


def all_probes(sampler: ProbeSampler, dtypes: tuple[str, ...], share: float = 1.0) -> list[Probe]:
    """The operations of every kind for each element type; ``share`` is how many of the usual number."""
    probes: list[Probe] = []
    for dtype in dtypes:

        def some(count: int) -> int:
            return max(2, round(count * share))

        probes += matmuls(sampler, dtype, some(220))
        probes += vocabularies(sampler, dtype, some(14))
        probes += batched(sampler, dtype, some(36))
        probes += attentions(sampler, dtype, some(30))
        probes += encoders(sampler, dtype, some(14))
        probes += recurrent(sampler, dtype, some(34))
        probes += convolutions(sampler, dtype, some(110))
        probes += normalizations(sampler, dtype, some(30))
        probes += rows(sampler, dtype, some(16))
        probes += optimizers(sampler, dtype)
        # on a GPU it takes seconds to load the library
        if sampler.device == "cpu" and dtype == "float32":
            probes += factorizations(sampler, dtype, some(5))
        for size in SIZES:
            if size <= sampler.elements / 3:
                probes += elements(sampler, dtype, round(size * sampler.random.uniform(0.6, 1.6)))
                probes += poolings(sampler, dtype, size)
    # when time runs out, what is missing is missing evenly, but rather of what memory alone bounds
    drawn = random.Random(1)

    def rank(probe: Probe) -> float:
        usual = 1.0 if probe.family.startswith(VARIED) else 2.0
        return drawn.random() * FIRST.get(probe.family, usual)

    return sorted(probes, key=rank)
