"""Cases about which bytes an operation reads and writes: views, in-place writes and `out=`."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from tests.zoo_models.registry import Built, case


@case("adversarial", "view", "inplace")
def disjoint_view_writes() -> Built:
    """Two in-place writes into different columns of one clone, then the whole is read."""

    def f(x: Tensor, a: Tensor, b: Tensor) -> Tensor:
        y = x.clone()
        y[:, 0].add_(a)
        y[:, 1].mul_(b)
        return y

    grad = {"requires_grad": True}
    return f, (torch.randn(3, 2, **grad), torch.randn(3, **grad), torch.randn(3, **grad)), {}


@case("adversarial", "view", "inplace")
def one_column_reader() -> Built:
    """After writes into two columns only the first column is read, so `b` must not reach the output."""

    def f(x: Tensor, a: Tensor, b: Tensor) -> Tensor:
        y = x.clone()
        y[:, 0].add_(a)
        y[:, 1].mul_(b)
        return y[:, 0] * 2

    grad = {"requires_grad": True}
    return f, (torch.randn(3, 2, **grad), torch.randn(3, **grad), torch.randn(3, **grad)), {}


@case("adversarial", "view", "inplace")
def overwritten_column() -> Built:
    """A column is written twice, and the first writer must not count as a producer of it."""

    def f(x: Tensor, a: Tensor, b: Tensor) -> Tensor:
        y = x.clone()
        y[:, 0] = a
        y[:, 0] = b
        return y

    grad = {"requires_grad": True}
    return f, (torch.randn(3, 2, **grad), torch.randn(3, **grad), torch.randn(3, **grad)), {}


@case("adversarial", "view", "inplace")
def write_base_after_view() -> Built:
    """A view is taken before its base is written and read after it."""

    def f(x: Tensor) -> tuple[Tensor, Tensor]:
        y = x * 1.5
        row = y[1]
        before = row + 1
        y.mul_(3)
        return before, row + 1

    return f, (torch.randn(3, 4, requires_grad=True),), {}


@case("adversarial", "view", "inplace", backward=False)
def write_after_read() -> Built:
    """A value is read, then overwritten, so shuffling must keep the read before the write."""

    def f(x: Tensor) -> tuple[Tensor, Tensor]:
        y = x.clone()
        kept = y + 1
        y.zero_()
        later = y + 1
        return kept, later

    return f, (torch.randn(4),), {}


@case("adversarial", "view", "inplace", backward=False)
def kv_buffer() -> Built:
    """A preallocated key-value buffer grows by one slot a step and each step reads the filled part."""

    def f(x: Tensor, *, steps: int) -> Tensor:
        cache = torch.zeros(2, steps, x.shape[-1])
        state, read = x, []
        for step in range(steps):
            cache[0, step] = state
            cache[1, step] = state * 0.5
            score = torch.softmax(cache[0, : step + 1] @ state, dim=0)
            state = torch.tanh(score @ cache[1, : step + 1])
            read.append(state)
        return torch.stack(read)

    return f, (torch.randn(8),), {"steps": 12}


@case("adversarial", "view", "inplace")
def rows_filled() -> Built:
    """An uninitialised output is filled row by row from different sources."""

    def f(x: Tensor) -> Tensor:
        out = torch.empty(4, 3)
        for i in range(4):
            out[i] = x[i] * (i + 1)
        return out

    return f, (torch.randn(4, 3, requires_grad=True),), {}


@case("adversarial", "view", "inplace", backward=False)
def strided_writes() -> Built:
    """Even and odd elements of one buffer are written apart, interleaved in memory but disjoint."""

    def f(a: Tensor, b: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        y = torch.zeros(10)
        y[0::2].add_(a)
        y[1::2].sub_(b)
        return y[::2] + 1, y[1::2] + 1, y.sum()

    return f, (torch.randn(5), torch.randn(5)), {}


@case("adversarial", "inplace", "mutates", backward=False)
def writes_input() -> Built:
    """The argument itself is changed in place and also returned."""

    def f(x: Tensor) -> Tensor:
        x.mul_(2)
        x[0].add_(1)
        return x

    return f, (torch.randn(3, 4),), {}


@case("adversarial", "inplace", "mutates")
def writes_buffer() -> Built:
    """A registered buffer counts calls and keeps a moving average, both written in place."""

    class Running(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.register_buffer("calls", torch.zeros((), dtype=torch.long))
            self.register_buffer("mean", torch.zeros(4))
            self.scale = nn.Parameter(torch.ones(4))

        def forward(self, x: Tensor) -> Tensor:
            self.calls += 1
            self.mean.lerp_(x.detach().mean(0), 0.1)
            return (x - self.mean) * self.scale

    return Running(), (torch.randn(5, 4),), {}


@case("adversarial", "inplace", "mutates", backward=False)
def parameter_changed_under_no_grad() -> Built:
    """Forward clamps its own weight under no_grad before it uses it."""

    class Clamped(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.linear = nn.Linear(4, 4)

        def forward(self, x: Tensor) -> Tensor:
            first = self.linear(x)
            with torch.no_grad():
                self.linear.weight.clamp_(-0.2, 0.2)
                self.linear.bias.copy_(first.mean(0))
            return self.linear(x) + first.detach()

    return Clamped(), (torch.randn(2, 4),), {}


@case("adversarial", "out", backward=False)
def out_writes() -> Built:
    """`out=` targets are fresh tensors, a view of a larger one and a tuple of two."""

    def f(x: Tensor) -> tuple[Tensor, ...]:
        whole = torch.zeros(3, 4)
        torch.mul(x, 2, out=whole[1])
        total = torch.empty(4)
        torch.add(whole[1], x, out=total)
        values, indices = torch.empty(2), torch.empty(2, dtype=torch.long)
        torch.topk(total, 2, out=(values, indices))
        return whole, total, values, indices

    return f, (torch.randn(4),), {}


@case("adversarial", "out", backward=False)
def out_resizes() -> Built:
    """`out=` grows an empty tensor, so its storage and its shape change under the same object."""

    def f(x: Tensor) -> Tensor:
        target = torch.empty(0)
        torch.matmul(x, x.t(), out=target)
        again = torch.empty(0)
        torch.cat([target, x], dim=1, out=again)
        return again

    return f, (torch.randn(3, 5),), {}


@case("adversarial", "view")
def multi_output() -> Built:
    """Operations with several outputs, of which some are dropped and some are views."""

    def f(x: Tensor) -> tuple[Tensor, ...]:
        values, indices = torch.topk(x, 2, dim=1)
        left, right = x.split([1, 3], dim=1)
        first, *_, last = x.unbind(0)
        chunks = x.chunk(2, dim=1)
        singular = torch.linalg.svd(x, full_matrices=False)[1]
        low, where = x.min(dim=0)
        return values, indices, left * 2, right.sum(), first + last, chunks[1], singular, low, where

    return f, (torch.randn(4, 4, requires_grad=True),), {}


@case("adversarial", "view", "inplace", backward=False)
def split_then_write() -> Built:
    """The pieces of a split are written in place and the base is read."""

    def f(x: Tensor) -> tuple[Tensor, Tensor]:
        y = x.clone()
        a, b, c = y.split(2, dim=1)
        a.add_(1)
        c.copy_(a)
        return y, b * 2

    return f, (torch.randn(3, 6),), {}


@case("adversarial", "view", "inplace", backward=False)
def overlapping_views() -> Built:
    """Windows from `unfold` and `as_strided` share elements, and a write shows in several of them."""

    def f(x: Tensor) -> tuple[Tensor, ...]:
        y = x.clone()
        windows = y.unfold(0, 4, 2)
        diagonal = y.as_strided((3,), (3,), 1)
        y[4].fill_(9.0)
        diagonal.mul_(2)
        wide = y[:2].expand(3, 2)
        return windows.sum(1), wide + 1, diagonal, torch.as_strided(y, (2, 5), (3, 1)).clone()

    return f, (torch.randn(10),), {}


@case("adversarial", "view")
def expanded_gradient() -> Built:
    """A broadcast through `expand` and stride zero is read many times."""

    def f(x: Tensor) -> Tensor:
        wide = x.expand(5, 3)
        return (wide * torch.arange(5.0)[:, None]).sum(0) + wide[2] + wide.contiguous()[4]

    return f, (torch.randn(3, requires_grad=True),), {}


@case("adversarial", "inplace", "metadata", backward=False)
def metadata_in_place() -> Built:
    """`transpose_`, `squeeze_`, `unsqueeze_`, `t_` and `swapdims_` change the shape and none of the bytes."""

    def f(x: Tensor) -> tuple[Tensor, Tensor]:
        y = x * 2
        y.unsqueeze_(0).transpose_(1, 2)
        first = y.sum(1)
        y.squeeze_(0).t_()
        y.add_(1)
        return first, y.swapdims_(0, 1)

    return f, (torch.randn(3, 4),), {}


@case("adversarial", "metadata", backward=False)
def data_assignment() -> Built:
    """`tensor.data = other` changes what a tensor holds with no operation to see."""

    def f(x: Tensor) -> tuple[Tensor, Tensor]:
        y = x + 1
        z = y * 2
        y.data = z.sqrt().nan_to_num()
        y.data.add_(1)
        return y * 3, z

    return f, (torch.randn(4),), {}


@case("adversarial", "metadata", "mutates", backward=False)
def parameter_data_assignment() -> Built:
    """A module swaps the data of its parameter inside forward and uses it before and after."""

    class Swapped(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.weight = nn.Parameter(torch.randn(4))

        def forward(self, x: Tensor) -> Tensor:
            before = x * self.weight
            self.weight.data = self.weight.data * 0.5 + x.detach()
            return before + x * self.weight

    return Swapped(), (torch.randn(4),), {}


@case("adversarial", "metadata", backward=False)
def set_storage() -> Built:
    """`set_` points a tensor at another storage, after which writes to one show in the other."""

    def f(x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        y = x.clone()
        z, w = torch.zeros(2), torch.zeros(1)
        z.set_(y[2:4])
        z.add_(10)
        w.set_(y.untyped_storage(), 1, (3,), (1,))
        w.mul_(2)
        return y * 1, z, w

    return f, (torch.randn(5),), {}


@case("adversarial", "inplace", "metadata", backward=False)
def resize_and_detach() -> Built:
    """`resize_` grows a tensor and `detach_` cuts it off from its history."""

    def f(x: Tensor) -> tuple[Tensor, Tensor]:
        y = x * 2
        cut = (y + 1).detach_()
        grown = y.clone()
        grown.resize_(2, 4)
        grown[1].fill_(0)
        return grown, cut

    return f, (torch.randn(4),), {}


@case("adversarial", "view", "inplace", backward=False)
def reinterpreted_bytes() -> Built:
    """The same bytes are seen as float32 and as int32, and a write through one shows in the other."""

    def f(x: Tensor) -> tuple[Tensor, Tensor]:
        y = x.clone()
        bits = y.view(torch.int32)
        bits.bitwise_and_(0x7FFFFFFF)
        return y + 0, bits

    return f, (torch.randn(6),), {}


@case("adversarial", "view", "inplace")
def write_through_chain_of_views() -> Built:
    """A write goes through transpose, reshape, diagonal and a slice before the base is read."""

    def f(x: Tensor, a: Tensor) -> Tensor:
        y = x.clone()
        y.t().view(2, 2, 4)[1].diagonal()[:1].add_(a)
        y.movedim(0, 1).flatten()[3:5].zero_()
        return y.exp()

    return f, (torch.randn(4, 4, requires_grad=True), torch.randn(1, requires_grad=True)), {}


@case("adversarial", "view", "inplace", backward=False)
def copy_onto_itself() -> Built:
    """One part of a buffer is copied onto another part of the same buffer, and parts are swapped."""

    def f(x: Tensor) -> Tensor:
        y = x.clone()
        y[:2].copy_(y[2:4].clone())
        y[0], y[3] = y[3].clone(), y[0].clone()
        y[1:] += y[:-1].clone()
        return y

    return f, (torch.randn(4, 3),), {}
