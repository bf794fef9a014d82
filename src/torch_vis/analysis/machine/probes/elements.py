"""Operations over every element to time: arithmetic, copies, sums, normalisations of rows, lookups, optimizers."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import torch
import torch.nn.functional as F

from torch_vis.analysis.machine.probes.sizes import Bench, Probe, Work, backward

COLUMNS = 256
ENTRIES = 30_000  # of a table to look up in
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
    lambda x: x.view(16, -1).topk(40),  # a few of many, as those that choose among words do
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


def elements(bench: Bench, dtype: str, size: int) -> Iterator[Probe]:
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


def copies(bench: Bench, dtype: str, rows: int) -> Iterator[Callable[[], Work]]:
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


def lookups(bench: Bench, dtype: str, rows: int) -> Iterator[Callable[[], Work]]:
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


def rows(bench: Bench, dtype: str, count: int) -> Iterator[Probe]:
    """Layer normalisation and softmax, forward and backward."""

    def sample() -> tuple[int, int]:
        return bench.between(1, 60_000), bench.some([64, 128, 256, 512, 768, 1024, 2048, 4096])

    def norm(drawn: tuple[int, int], gradient: bool, number: int) -> Work:
        turned = (
            number % 4 == 3
        )  # maps are normalised with their channels last, which they are seldom stored with
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


def factorizations(bench: Bench, dtype: str, count: int) -> Iterator[Probe]:
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


def optimizers(bench: Bench, dtype: str) -> Iterator[Probe]:
    """What optimizers do to lists of tensors at once."""

    def make(call: Callable[[list[Tensor], list[Tensor]], Any], count: int, size: int) -> Work:
        ones, others = ([bench.tensor(size, dtype=dtype).abs_() for _ in range(count)] for _ in range(2))
        return lambda: call(ones, others)

    for count, size in OF_LISTS:
        if count * size <= bench.elements / 1.5:
            for call in LISTS:
                yield Probe("optimizer", partial(make, call, count, size))
