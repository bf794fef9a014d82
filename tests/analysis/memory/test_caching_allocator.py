"""What allocators take beyond tensors: measured on the CPU, predicted by rules; CUDA's played through."""

from __future__ import annotations

import copy
from collections.abc import Callable

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn import functional as F

import torch_vis as tv
from torch_vis.analysis.memory.caching_allocator import LARGE_SEGMENT, SMALL_SEGMENT, Pool
from torch_vis.capture.timing.allocator_events import held_blocks
from torch_vis.errors import UsageError
from torch_vis.graph.lifetimes import in_place_sums
from torch_vis.graph.text import size

MIB = 1 << 20


@pytest.fixture(autouse=True)
def one_thread() -> object:
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


def test_tensors_are_measured_to_the_byte() -> None:
    def work(x: torch.Tensor) -> torch.Tensor:
        y = x + 1
        z = y * 2
        del y
        return z.sum()

    x = torch.ones(MIB)
    report = tv.measure.memory(work, x)
    grown = report.peak_bytes - report.events.start_bytes
    assert 2 * 4 * MIB <= grown <= 2 * 4 * MIB + 1024
    assert report.events.peak_op == "aten::mul"
    assert all(
        row.most_bytes < 1024 for row in report.scratch
    )  # a number in a tensor of its own, at the most


def test_what_an_earlier_run_left_behind_is_seen_to_go() -> None:
    model = nn.Linear(512, 512)

    def step(x: torch.Tensor) -> None:
        model.zero_grad()
        model(x).sum().backward()

    x = torch.ones(4, 512)
    step(x)
    report = tv.measure.memory(step, x)
    assert abs(int(report.events.change.sum())) < 4096  # new gradients in the place of old ones


@pytest.mark.parametrize("set_to_none", [True, False])
@pytest.mark.parametrize("stepped", [True, False])
def test_gradients_that_python_never_saw_are_measured(set_to_none: bool, stepped: bool) -> None:
    """A gradient that only C++ has touched is no object of Python's, and takes memory all the same."""
    model, x = nn.Linear(1024, 1024, bias=False), torch.ones(8, 1024)

    def step() -> None:
        model.zero_grad(set_to_none=set_to_none)
        model(x).sum().backward()

    if stepped:
        step()
    weight = 4 * 1024 * 1024
    others = sum(held_blocks().values()) - (1 + stepped) * weight
    report = tv.measure.memory(step)
    assert report.events.start_bytes == others + 2 * weight
    # a gradient that is kept is there while the new one is added to it
    assert 0 <= report.added_bytes - (0 if set_to_none else weight) < 200_000


def test_what_only_a_graph_holds_is_measured() -> None:
    kept: list[torch.Tensor] = []

    def forward(x: torch.Tensor) -> None:
        kept[:] = [(x * 2).sin().exp().sum()]  # sin saves its input, which nothing else holds

    x = torch.ones(MIB, requires_grad=True)
    before = sum(held_blocks().values())
    assert tv.measure.memory(forward, x).events.start_bytes - before == pytest.approx(2 * 4 * MIB, abs=1024)


CONVOLUTIONS: dict[str, tuple[tuple[int, ...], tuple[int, ...], int, int]] = {
    "plain": ((2, 64, 28, 28), (64, 64, 3, 3), 1, 1),
    "strided": ((2, 32, 28, 28), (64, 32, 3, 3), 2, 1),
    "few channels": ((2, 3, 64, 64), (32, 3, 7, 7), 2, 1),
    "padded": ((2, 20, 30, 30), (24, 20, 5, 5), 1, 1),
    "depthwise": ((2, 32, 28, 28), (32, 1, 3, 3), 1, 32),
    "small": ((1, 8, 32, 32), (8, 8, 3, 3), 1, 1),
}


@pytest.mark.skipif(not torch.backends.mkldnn.is_available(), reason="torch is built without oneDNN")
@pytest.mark.skipif(
    "AVX512" not in torch.backends.cpu.get_cpu_capability(), reason="other registers, other blocks"
)
@pytest.mark.parametrize("name", CONVOLUTIONS)
def test_convolutions_take_what_the_rules_say(name: str) -> None:
    shape, weights, stride, groups = CONVOLUTIONS[name]
    x = torch.randn(shape, requires_grad=shape[1] > 3)  # images get no gradient
    weight = torch.randn(weights, requires_grad=True)

    def work() -> None:
        y = F.conv2d(x, weight, None, stride, weights[2] // 2, 1, groups)
        torch.autograd.grad(y, (x, weight) if x.requires_grad else weight, torch.ones_like(y))

    predicted = tv.trace(work, fake=True)
    scratch = predicted.memory().scratch_bytes
    kernels = tv.measure.memory(work).events.kernels
    for op in ("aten::convolution", "aten::convolution_backward"):
        (node,) = [node.index for node in predicted.graph.nodes if node.op == op]
        (measured,) = [kernel.scratch_bytes for kernel in kernels if kernel.op == op]
        assert scratch[node] == pytest.approx(measured, rel=0.25, abs=65536)


COPIED = {
    "the sum of what it gave": ((8, 32, 30, 30), (32, 32, 3, 3), 1, lambda x: x),
    "every other row": ((4, 32, 60, 30), (32, 32, 3, 3), 1, lambda x: x[:, :, ::2]),
    "turned round": ((4, 32, 30, 30), (16, 32, 3, 3), 1, lambda x: x.transpose(2, 3)),
    "one image for all": ((1, 32, 30, 30), (32, 32, 3, 3), 1, lambda x: x.expand(4, -1, -1, -1)),
    "few channels, with a gradient": ((8, 8, 16, 16), (48, 8, 3, 3), 1, lambda x: x),
    "strided, with a gradient": ((16, 40, 16, 16), (16, 40, 3, 3), 2, lambda x: x),
    "one pixel in four": ((8, 64, 28, 28), (64, 64, 1, 1), 2, lambda x: x),
}


@pytest.mark.skipif(not torch.backends.mkldnn.is_available(), reason="torch is built without oneDNN")
@pytest.mark.skipif(
    "AVX512" not in torch.backends.cpu.get_cpu_capability(), reason="other registers, other blocks"
)
@pytest.mark.parametrize("name", COPIED)
def test_convolutions_of_what_is_laid_out_anew(name: str) -> None:
    shape, weights, stride, view = COPIED[name]
    x, weight = torch.randn(shape, requires_grad=True), torch.randn(weights, requires_grad=True)

    def work() -> None:
        F.conv2d(view(x), weight, None, stride).sum().backward()

    predicted = tv.trace(work, fake=True)
    scratch = predicted.memory().scratch_bytes
    kernels = tv.measure.memory(work).events.kernels
    (node,) = [node.index for node in predicted.graph.nodes if node.op == "aten::convolution_backward"]
    (measured,) = [kernel.scratch_bytes for kernel in kernels if kernel.op == "aten::convolution_backward"]
    assert scratch[node] == pytest.approx(measured, rel=0.02)


CHANNELS_LAST: dict[str, tuple[tuple[int, ...], tuple[int, ...], int, bool, bool]] = {
    "depthwise 7×7": ((2, 96, 8, 8), (96, 1, 7, 7), 96, False, True),
    "depthwise 9×9, a gradient in order": ((2, 168, 2, 2), (168, 1, 9, 9), 168, False, False),
    "depthwise 3×3 beyond the image": ((2, 42, 2, 2), (42, 1, 3, 3), 42, False, True),
    "depthwise 3×3": ((2, 64, 14, 14), (64, 1, 3, 3), 64, False, True),
    "weights in order": ((2, 24, 7, 7), (48, 24, 5, 5), 1, False, True),
    "weights with channels last": ((2, 32, 14, 14), (64, 32, 3, 3), 1, True, True),
    "groups, a gradient in order": ((4, 64, 14, 14), (48, 16, 3, 3), 4, False, False),
}


@pytest.mark.skipif(not torch.backends.mkldnn.is_available(), reason="torch is built without oneDNN")
@pytest.mark.skipif(
    "AVX512" not in torch.backends.cpu.get_cpu_capability(), reason="other registers, other blocks"
)
@pytest.mark.parametrize("name", CHANNELS_LAST)
def test_convolutions_with_channels_last_take_what_the_rules_say(name: str) -> None:
    """ConvNeXt and EdgeNeXt lay images out so, and peaked at up to 1.6 times what was said."""
    shape, weights, groups, turned, same = CHANNELS_LAST[name]
    last = torch.channels_last
    x = torch.randn(shape).to(memory_format=last).requires_grad_()
    weight = (
        torch.randn(weights).to(memory_format=last if turned else torch.contiguous_format).requires_grad_()
    )
    y = torch.empty_like(F.conv2d(x, weight, None, 1, weights[2] // 2, 1, groups))
    gradient = torch.randn(y.shape).to(memory_format=last if same else torch.contiguous_format)

    def work() -> None:
        result = F.conv2d(x, weight, None, 1, weights[2] // 2, 1, groups)
        torch.autograd.grad(result, (x, weight), gradient)

    predicted = tv.trace(work, fake=True)
    scratch = predicted.memory().scratch_bytes
    kernels = tv.measure.memory(work).events.kernels
    (node,) = [node.index for node in predicted.graph.nodes if node.op == "aten::convolution_backward"]
    (measured,) = [kernel.scratch_bytes for kernel in kernels if kernel.op == "aten::convolution_backward"]
    assert scratch[node] == pytest.approx(measured, rel=0.02, abs=2048)


@pytest.mark.skipif(not torch.backends.mkldnn.is_available(), reason="torch is built without oneDNN")
@pytest.mark.parametrize("sizes", [(20, 64, 32, 64), (14, 8, 64, 64), (11, 64, 64, 128)])
@pytest.mark.parametrize("expanded", [False, True])
def test_an_lstm_takes_what_the_rules_say(sizes: tuple[int, int, int, int], expanded: bool) -> None:
    steps, batch, features, units = sizes
    model, x = nn.LSTM(features, units), torch.randn(steps, batch, features)
    gradient = torch.ones(()) if expanded else torch.ones(steps, batch, units)

    def work() -> None:
        model(x)[0].backward(gradient.expand(steps, batch, units))

    predicted = tv.trace(work, fake=True)
    scratch = predicted.memory().scratch_bytes
    kernels = tv.measure.memory(work).events.kernels
    for op in ("aten::mkldnn_rnn_layer", "aten::mkldnn_rnn_layer_backward"):
        (node,) = [node.index for node in predicted.graph.nodes if node.op == op]
        (measured,) = [kernel.scratch_bytes for kernel in kernels if kernel.op == op]
        assert scratch[node] == pytest.approx(measured, rel=0.08)


def residual() -> tuple[nn.Module, torch.Tensor]:
    class Net(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first, self.norm = nn.Conv2d(16, 64, 3, padding=1), nn.BatchNorm2d(64)
            self.second, self.head = nn.Conv2d(64, 64, 3, padding=1), nn.Linear(64, 10)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            x = self.first(x).relu()
            x = x + self.norm(self.second(x)).relu()
            return self.head(x.mean((2, 3)))

    return Net(), torch.randn(4, 16, 32, 32)


def transformer() -> tuple[nn.Module, torch.Tensor]:
    layer = nn.TransformerEncoderLayer(64, 4, 256, batch_first=True)
    return nn.TransformerEncoder(layer, 3), torch.randn(8, 64, 64)


@pytest.mark.parametrize("make", [residual, transformer])
def test_the_peak_of_a_training_step_is_predicted(make: Callable[[], tuple[nn.Module, torch.Tensor]]) -> None:
    model, x = make()
    optimizer = torch.optim.Adam(model.parameters())

    def step() -> None:
        optimizer.zero_grad()
        model(x).square().mean().backward()
        optimizer.step()

    def two_steps() -> None:
        step()
        step()

    predicted = tv.trace(two_steps, fake=True).memory()
    measured = tv.measure.memory(step)
    others = measured.events.start_bytes - int(tv.trace(step, hold=False).memory().blocks.after[:, -1].sum())
    taken = measured.peak_bytes - max(0, others)  # tensors of other tests are not this step's
    assert predicted.allocator_peak_bytes == pytest.approx(taken, rel=0.02)


class Attention(nn.Module):
    """Products of batches whose matrices are slices of another tensor."""

    def __init__(self) -> None:
        super().__init__()
        self.inside = nn.Linear(64, 192)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        query, key, value = self.inside(x).chunk(3, -1)
        return (query @ key.transpose(-1, -2)).softmax(-1) @ value


class Turned(nn.Module):
    """What a layer gives, turned round, in front of another."""

    def __init__(self, last: nn.Module) -> None:
        super().__init__()
        self.table, self.last = nn.Embedding(100, 128), last

    def forward(self, words: torch.Tensor) -> torch.Tensor:
        return self.last(self.table(words).transpose(0, 1))


def on_picture(layer: nn.Module) -> nn.Module:
    """A layer behind one that needs its gradient."""
    return nn.Sequential(nn.Conv2d(8, 32, 1), layer)


IN_ROWS: dict[str, Callable[[], tuple[nn.Module, torch.Tensor]]] = {
    "linear": lambda: (nn.Linear(512, 512), torch.randn(512, 512)),
    "gelu": lambda: (nn.Sequential(nn.Linear(512, 512), nn.GELU()), torch.randn(512, 512)),
    "gelu by tanh": lambda: (nn.Sequential(nn.Linear(512, 512), nn.GELU("tanh")), torch.randn(512, 512)),
    "gelu between": lambda: (
        nn.Sequential(nn.Linear(128, 512), nn.GELU(), nn.Linear(512, 128)),
        torch.randn(1024, 128),
    ),
    "layer norm": lambda: (nn.Sequential(nn.Linear(256, 512), nn.LayerNorm(512)), torch.randn(512, 256)),
    "softmax": lambda: (nn.Sequential(nn.Linear(256, 512), nn.Softmax(-1)), torch.randn(512, 256)),
    "log_softmax of a slice": lambda: (
        Turned(nn.Sequential(nn.Linear(128, 100), nn.LogSoftmax(-1))),
        torch.randint(0, 100, (32, 64)),
    ),
    "layer norm, turned": lambda: (Turned(nn.LayerNorm(128)), torch.randint(0, 100, (64, 64))),
    "attention": lambda: (Attention(), torch.randn(16, 64, 64)),
    "embedding": lambda: (nn.Embedding(500, 256), torch.randint(0, 500, (32, 64))),
    "batch norm": lambda: (on_picture(nn.BatchNorm2d(32)), torch.randn(8, 8, 64, 64)),
    "average pool": lambda: (on_picture(nn.AvgPool2d(2)), torch.randn(8, 8, 64, 64)),
    "max pool": lambda: (on_picture(nn.MaxPool2d(2)), torch.randn(8, 8, 64, 64)),
    "bilinear": lambda: (on_picture(nn.Upsample(scale_factor=2, mode="bilinear")), torch.randn(8, 8, 64, 64)),
}


@pytest.mark.parametrize("name", IN_ROWS)
def test_copies_of_what_does_not_lie_in_order_are_counted(name: str) -> None:
    """An expanded gradient, which is what a sum hands back, is laid out anew by kernels that want rows."""
    model, x = IN_ROWS[name]()
    predicted = tv.trace(model, x, backward=True).memory().allocator_peak_bytes

    def step() -> None:
        model.zero_grad()
        # as a trace does, hold the output to the end
        output = model(x)
        output.sum().backward()

    measured = tv.measure.memory(step)
    assert abs(predicted - measured.peak_bytes) < 0.01 * predicted, (predicted, measured.peak_bytes)


def test_gradients_that_torch_adds_in_place_are_not_counted_twice() -> None:
    x = torch.randn(MIB, requires_grad=True)

    def work() -> None:
        y = x.sigmoid()
        torch.autograd.grad((y * y.detach() + y.sin()).sum(), x)

    trace = tv.trace(work, fake=True)
    measured = tv.measure.memory(work)
    grown = measured.peak_bytes - measured.events.start_bytes
    predicted = trace.memory().allocator_peak_bytes - 4 * MIB  # x was there before
    assert predicted == pytest.approx(grown, rel=0.01)


class Packed(nn.Module):
    """A recurrent layer on packed sequences: in backward, gradients meet at every step."""

    def __init__(self, layer: type[nn.Module]) -> None:
        super().__init__()
        self.inner = layer(32, 64)

    def forward(self, x: torch.Tensor, lengths: torch.Tensor) -> torch.Tensor:
        return self.inner(nn.utils.rnn.pack_padded_sequence(x, lengths))[0].data


@pytest.mark.parametrize("layer", [nn.GRU, nn.LSTM])
def test_the_peak_is_that_of_a_run_that_nobody_records(layer: type[nn.Module]) -> None:
    model, x, lengths = Packed(layer), torch.ones(24, 16, 32), torch.arange(24, 8, -1)

    def run() -> None:
        inputs = x.clone()
        output = copy.deepcopy(model)(inputs, lengths)
        output.sum().backward()

    measured = tv.measure.memory(run).added_bytes
    report = tv.trace(model, x, lengths, backward=True).memory()
    assert report.peak_bytes == pytest.approx(measured, abs=1024)
    assert sum(tensor.size_bytes for tensor in report.peak) == report.peak_bytes
    assert sum(share.size_bytes for share in report.by_use) == report.peak_bytes
    assert (
        sum(lane.max() for lane in report.timeline.values())
        >= report.peak_bytes
        == max(np.sum(list(report.timeline.values()), axis=0))
    )


def sums(t: tv.Trace) -> int:
    return len(in_place_sums(t.graph).made)


def test_only_autograd_itself_adds_in_place() -> None:
    class Twice(torch.autograd.Function):
        @staticmethod
        def forward(ctx: object, x: torch.Tensor) -> torch.Tensor:
            return x * 2

        @staticmethod
        def backward(ctx: object, gradient: torch.Tensor) -> torch.Tensor:
            first, second = gradient * 1, gradient * 1
            return first + second

    def hooked(x: torch.Tensor) -> torch.Tensor:
        y = x * 2
        y.register_hook(lambda gradient: gradient * 1 + gradient * 2)
        return y.sin()

    def twice_derived(x: torch.Tensor) -> torch.Tensor:
        y = x.sin() * x.cos()
        (gradient,) = torch.autograd.grad(y.sum(), x, create_graph=True)
        return gradient.detach()

    x = torch.ones(8, requires_grad=True)
    assert sums(tv.trace(lambda x: x.sin() + x.cos(), x, backward=True)) == 1
    assert sums(tv.trace(lambda x: torch.autograd.grad(x.sin() + x.cos(), x, torch.ones(8)), x)) == 1
    assert sums(tv.trace(Twice.apply, x, backward=True)) == 0
    assert sums(tv.trace(hooked, x, backward=True)) == 0
    assert sums(tv.trace(twice_derived, x)) == 0


def test_measure_memory_refuses_what_it_cannot_run() -> None:
    with pytest.raises(UsageError, match="takes a callable"):
        tv.measure.memory(3)  # type: ignore[arg-type]
    with pytest.raises(UsageError, match="number of runs"):
        tv.measure.memory(nn.ReLU(), torch.ones(1), warmup=-1)


@pytest.mark.parametrize("renderer", ["plotly", "matplotlib"])
def test_the_measured_report(renderer: str) -> None:
    pytest.importorskip(renderer)
    report = tv.measure.memory(nn.Conv2d(16, 16, 3), torch.ones(2, 16, 32, 32))
    assert "CPU peak" in str(report) and report.output.shape == (2, 16, 30, 30)
    assert 2 * 16 * 30 * 30 * 4 <= report.added_bytes == report.peak_bytes - report.events.start_bytes
    assert report.facts()["taken by the run"].startswith(size(report.added_bytes))
    assert report.figure(renderer) is not None and report.to_dict()["facts"]


# ---------------------------------------------------------------- CUDA's caching allocator


def test_small_blocks_share_a_segment_and_are_rounded() -> None:
    pool = Pool()
    for nbytes in (1, 512, 513):
        pool.take(nbytes)
    assert (pool.allocated, pool.reserved) == (512 + 512 + 1024, SMALL_SEGMENT)


def test_blocks_of_some_megabytes_share_a_segment_of_twenty() -> None:
    pool = Pool()
    first = pool.take(2 * MIB)
    pool.take(3 * MIB)
    assert pool.reserved == LARGE_SEGMENT
    pool.take(11 * MIB)  # fits into the rest of the same segment
    assert (pool.allocated, pool.reserved) == (16 * MIB, LARGE_SEGMENT)
    pool.give(first)
    pool.take(25 * MIB + 1)
    assert pool.reserved == LARGE_SEGMENT + 26 * MIB  # one of its own, rounded to 2 MiB
    assert pool.allocated == 14 * MIB + 26 * MIB  # what is left of it is not worth a block


def test_free_neighbours_become_one() -> None:
    pool = Pool()
    blocks = [pool.take(4 * MIB) for _ in range(5)]
    for block in blocks[1:4]:
        pool.give(block)
    pool.take(12 * MIB)
    assert (pool.allocated, pool.reserved) == (20 * MIB, LARGE_SEGMENT)


def test_the_smallest_block_that_fits_is_taken() -> None:
    pool = Pool()
    large, small = pool.take(40 * MIB), pool.take(30 * MIB)
    pool.give(large)
    pool.give(small)
    pool.take(29 * MIB + 512)
    assert pool.take(40 * MIB) == large


def test_random_traffic_keeps_the_books() -> None:
    numbers, pool = np.random.default_rng(0), Pool()
    held: list[int] = []
    for _ in range(3000):
        if held and numbers.random() < 0.48:
            pool.give(held.pop(int(numbers.integers(len(held)))))
        else:
            held.append(pool.take(int(2 ** numbers.uniform(0, 26))))
        assert pool.allocated == sum(pool.size[address] for address in held) <= pool.reserved
    for address in held:
        pool.give(address)
    assert (
        pool.allocated == 0 and sum(size for part in pool.free.values() for size, _ in part) == pool.reserved
    )


def test_workspaces_of_matrix_products_are_kept() -> None:
    trace = tv.trace(nn.Linear(64, 64), torch.ones(8, 64), backward=True)
    report = trace.memory()
    with_one = report.caching("cpu")
    assert with_one.workspace_bytes == 2 * 32 * MIB + MIB  # a thread forward, a thread backward, and the bias
    assert with_one.peak_bytes - report.caching("cpu", workspace=0).peak_bytes in (64 * MIB, 65 * MIB)
    assert with_one.reserved_bytes >= with_one.peak_bytes + with_one.free_at_peak_bytes - 1


def test_the_estimate_says_how_good_it_was_found_to_be() -> None:
    model = nn.Conv2d(16, 32, 3)
    report = tv.trace(model, torch.ones(2, 16, 8, 8), backward=True).memory()
    assert "convolutions within 2 %, LSTMs up to 37 % low" in report.facts()["CPU allocator"]
    text = " ".join(str(report).split())
    assert "206 of 260 random convolutions were within 2 % + 2 KiB" in text
    assert "depthwise windows above 3×3 are far off either way" in text
    plain = tv.trace(nn.ReLU(), torch.ones(4)).memory()  # no kernel of it takes anything for itself
    assert "37 %" not in str(plain)


def test_memory_that_is_there_for_a_part_of_the_run_alone() -> None:
    """FSDP's gathered parameters lie on memory that grows before they are needed and is given back after."""
    buffers = [torch.empty(1 << 20) for _ in range(4)]
    for buffer in buffers:
        buffer.untyped_storage().resize_(0)

    def gather(x: torch.Tensor) -> torch.Tensor:
        for buffer in buffers:
            buffer.untyped_storage().resize_(4 << 20)
            x = x + buffer.fill_(1.0).sum()
            buffer.untyped_storage().resize_(0)
        return x

    memory = tv.trace(gather, torch.ones(128)).memory()
    # one of the four at a time, beside some small ones
    assert 4 << 20 <= memory.peak_bytes < 5 << 20
    assert memory.peak_bytes <= memory.caching("cpu", workspace=0).peak_bytes < 5 << 20
