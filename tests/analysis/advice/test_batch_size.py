"""The batch that fits, and the one that pays."""

from __future__ import annotations

import copy
import re
from types import SimpleNamespace

import pytest
import torch
from torch import nn
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode

import torch_vis as tv
from tests.kit.labels import written
from torch_vis.analysis.advice import batch_size
from torch_vis.analysis.advice.batch_size import BatchedRun, BatchMemory, BatchSizeReport
from torch_vis.errors import UsageError


def network() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(
        nn.Conv2d(3, 8, 3),
        nn.BatchNorm2d(8),
        nn.ReLU(),
        nn.Dropout(0.5),
        nn.Flatten(),
        nn.Linear(8 * 14 * 14, 10),
    )


def peak(model: nn.Module, batch: int) -> int:
    x = torch.randn(batch, 3, 16, 16)
    return tv.trace(copy.deepcopy(model), x, backward=True).memory().allocator_peak_bytes


def taken(model: nn.Module, *shape: int, backward: bool = False) -> int:
    """What a plain run takes of the allocator, the model and its input included."""

    def run():
        x = torch.randn(shape)
        output = copy.deepcopy(model)(x)
        if backward:
            output.sum().backward()

    return tv.measure.memory(run).added_bytes


@pytest.mark.parametrize("memory", [1 << 20, 5_000_000, "16 MiB"])
def test_the_largest_batch_fits_and_one_more_does_not(memory):
    model = network()
    found = tv.advise.batch_size(
        model, torch.randn(4, 3, 16, 16), memory=memory, backward=True, measured=False
    )
    assert peak(model, found.largest) <= found.budget < peak(model, found.largest + 1)


def test_it_is_proved_by_running_and_the_model_is_left_alone():
    model, x = network(), torch.randn(4, 3, 16, 16)
    before, state = copy.deepcopy(model.state_dict()), torch.get_rng_state()
    found = tv.advise.batch_size(model, x, memory="2 MiB", backward=True)
    row = next(row for row in found.rows if row.batch == found.largest)
    timed = [row.batch for row in found.rows if row.per_second]
    assert timed[:3] == [1, 2, 4] and (found.knee is None or found.knee in timed[:-1])
    assert "knee" in found.facts()
    assert all(torch.equal(before[name], value) for name, value in model.state_dict().items())
    assert all(parameter.grad is None for parameter in model.parameters())
    assert torch.equal(state, torch.get_rng_state())
    needed = taken(model, row.batch, 3, 16, 16, backward=True)
    assert row.measured_bytes == pytest.approx(needed, abs=64) and row.measured_bytes <= found.budget
    assert "largest" in str(found) and len(found.figure("matplotlib", chart="throughput").axes) == 1


def test_keyword_inputs_and_what_has_no_batch():
    class Masked(nn.Module):
        def __init__(self):
            super().__init__()
            self.inner = nn.Linear(8, 8)

        def forward(self, x, *, mask, scale):
            return self.inner(x) * mask * scale

    mask, scale = torch.ones(3, 8), torch.tensor(2.0)
    found = tv.advise.batch_size(
        Masked(), torch.ones(3, 8), kwargs={"mask": mask, "scale": scale}, memory=10_000, measured=False
    )
    assert found.largest > 3 and found.per_sample_bytes > 0


def test_a_memory_that_never_fills_ends_at_the_largest():
    found = tv.advise.batch_size(
        nn.Linear(2, 2), torch.ones(1, 2), memory="1 GiB", measured=False, largest=64
    )
    assert found.largest == 64


def test_a_callable_is_not_run():
    calls = []
    model = nn.Linear(4, 4)
    optimizer = torch.optim.Adam(model.parameters())

    def step(x):
        calls.append(type(x))
        optimizer.zero_grad()
        model(x).sum().backward()
        optimizer.step()

    weight = model.weight.detach().clone()
    found = tv.advise.batch_size(step, torch.ones(2, 4), memory=3000)
    assert found.largest and found.knee is None and "may change things" in str(found)
    assert torch.equal(weight, model.weight) and not optimizer.state


class Tagger(nn.Module):
    def __init__(self, *, batch_first: bool):
        super().__init__()
        self.memory = nn.LSTM(16, 32, batch_first=batch_first)
        self.head = nn.Linear(32, 4)

    def forward(self, x):
        return self.head(self.memory(x)[0])


class TakesMore(nn.Module):
    """A model whose runs need more than shapes let expect."""

    def __init__(self):
        super().__init__()
        self.inner = nn.Linear(64, 64)

    def forward(self, x):
        y = self.inner(x)
        wide = y.new_zeros(len(x), 64 if isinstance(y, FakeTensor) else 1024)
        return y + wide[:, :64]


def test_a_run_over_the_memory_proves_nothing_and_a_smaller_batch_is_found():
    model = TakesMore()
    found = tv.advise.batch_size(model, torch.randn(4, 64), memory="1 MiB")
    row = next(row for row in found.rows if row.batch == found.largest)
    assert [over.measured_bytes > found.budget for over in found.over].count(True) >= 1
    assert found.largest < found.over[0].batch and row.measured_bytes <= row.needed_bytes <= found.budget
    measured = taken(model, found.largest, 64)
    assert measured == row.measured_bytes > 0.9 * found.budget  # and not much smaller than it could be
    facts = found.facts()
    assert "was to fit and did not" in facts["warning"] and "a plain run" in facts["proved"]
    assert max(row.batch for row in found.rows if row.per_second) <= found.largest


class TakesLess(nn.Module):
    """A model that skips, once it sees numbers, what shapes let expect; a part of it grows and a part does not."""

    def __init__(self):
        super().__init__()
        self.inner = nn.Linear(64, 64)

    def forward(self, x):
        y = self.inner(x)
        if isinstance(y, FakeTensor):
            wide = y.new_zeros(len(x) + 500, 16)
            return y + wide[: len(x), :1]
        return y + 1


def test_where_a_run_takes_less_than_predicted_the_largest_is_still_the_largest():
    model = TakesLess()
    found = tv.advise.batch_size(model, torch.randn(4, 64), memory="1 MiB")
    predicted = tv.advise.batch_size(model, torch.randn(4, 64), memory="1 MiB", measured=False)
    assert found.largest > predicted.largest and not found.over
    for batch, fits in ((found.largest, True), (found.largest + 1, False)):
        assert (taken(model, batch, 64) <= found.budget) == fits
    assert sum(row.measured_bytes is not None for row in found.rows) <= 6
    row = next(row for row in found.rows if row.batch == found.largest)
    assert "needed when it ran" in found.facts()["largest"] and "predicted" not in found.facts()["largest"]
    assert row.predicted_bytes > found.budget >= row.needed_bytes


def test_larger_batches_that_could_not_be_run_are_not_called_the_largest(monkeypatch):
    monkeypatch.setattr("torch_vis.analysis.advice.batch_size.TRIES", 1)
    found = tv.advise.batch_size(TakesLess(), torch.randn(4, 64), memory="1 MiB")
    row = next(row for row in found.rows if row.batch == found.largest)
    assert row.measured_bytes is not None
    assert "may fit by what ran" in str(found) and "perhaps" in str(found)


def test_where_no_run_stays_within_the_memory_none_is_the_largest():
    found = tv.advise.batch_size(TakesMore(), torch.randn(1, 64), memory=17_800)
    assert found.largest is None and found.over
    assert "proved" not in found.facts() and "none is known to fit" in str(found)


@pytest.mark.parametrize("steps_first", [False, True])
def test_an_lstm_is_proved(steps_first):
    x = torch.randn(20, 6, 16) if steps_first else torch.randn(6, 20, 16)
    model = Tagger(batch_first=not steps_first)
    found = tv.advise.batch_size(model, x, memory="8 MiB", backward=True)
    row = next(row for row in found.rows if row.batch == found.largest)
    assert (found.sample, found.dim) == (6, int(steps_first))
    assert f"the batch is dimension {found.dim} of the inputs" in str(found)
    assert ("memory (LSTM) reads (steps, batch, features)" in str(found)) == steps_first
    shape = (20, found.largest, 16) if steps_first else (found.largest, 20, 16)
    assert row.measured_bytes == pytest.approx(taken(model, *shape, backward=True), abs=64)
    assert row.measured_bytes <= found.budget
    assert not model.memory._forward_pre_hooks


def test_the_dimension_of_the_batch_is_told_from_what_reads_it():
    embedded = nn.Sequential(nn.Embedding(10, 8), nn.TransformerEncoderLayer(8, 2, 16))
    ids = torch.randint(0, 10, (7, 3))
    found = tv.advise.batch_size(embedded, ids, memory="1 MiB", measured=False)
    assert (found.dim, found.sample) == (1, 3)
    found = tv.advise.batch_size(embedded, ids, memory="1 MiB", measured=False, dim=0)
    assert (found.dim, found.sample) == (0, 7)
    attention = nn.MultiheadAttention(8, 2)
    x, mask = torch.randn(7, 3, 8), torch.zeros(3, 7, dtype=torch.bool)
    inputs = {"query": x, "key": x, "value": x, "key_padding_mask": mask}
    found = tv.advise.batch_size(attention, kwargs=inputs, memory="1 MiB", measured=False)
    assert (found.dim, found.sample) == (1, 3) and found.largest > 3


def test_a_model_that_cannot_take_one_sample_starts_at_two():
    model = nn.Sequential(nn.Linear(8, 32), nn.BatchNorm1d(32), nn.Linear(32, 2))
    found = tv.advise.batch_size(model, torch.randn(8, 8), memory="64 KiB", backward=True)
    assert found.rows[0].batch == 2 and found.largest > 8
    assert "from 2 on: of 1 the model says ValueError: Expected more than 1 value" in str(found)
    with pytest.raises(UsageError, match="a batch of 2 takes"):
        tv.advise.batch_size(model, torch.randn(8, 8), memory="1 KiB", backward=True)


def test_a_model_that_takes_whole_samples_only():
    def groups(x):
        return x.view(4, -1, 8).sum(1)

    found = tv.advise.batch_size(groups, torch.randn(4, 8), memory="64 KiB")
    assert found.largest % 4 == 0 and all(row.batch % 4 == 0 for row in found.rows)
    assert "only multiples of the sample's 4" in str(found)
    model, x, labels = nn.Linear(4, 2), torch.ones(5, 4), torch.zeros(5, 2)
    for loss in (lambda y: (y - labels).sum(), lambda y: (y.T @ labels).sum()):
        with pytest.raises(UsageError, match=r"a batch of 5 runs, others do not: of . the model says"):
            tv.advise.batch_size(model, x, memory="1 MiB", loss=loss)
    with pytest.raises(UsageError, match="a batch of 1 runs, others do not: of 2"):
        tv.advise.batch_size(lambda x: x.view(1, 8), torch.ones(1, 8), memory="1 MiB")
    with pytest.raises(ZeroDivisionError):
        tv.advise.batch_size(lambda x: 1 / 0, torch.ones(5, 4), memory="1 MiB")


def test_bad_input():
    x = torch.ones(2, 256)
    with pytest.raises(UsageError, match="nothing fits in 1000 B: a batch of 1 takes"):
        tv.advise.batch_size(nn.Linear(256, 256), x, memory=1000)
    with pytest.raises(UsageError, match="name of hardware, not 'much'"):
        tv.advise.batch_size(nn.Linear(256, 256), x, memory="much")
    for largest in (0, -3, True, 2.5):
        with pytest.raises(UsageError, match=f"largest={largest}: .* whole number, at least 1"):
            tv.advise.batch_size(nn.Linear(256, 256), x, largest=largest)
    with pytest.raises(UsageError, match="takes batches from 2 on"):
        tv.advise.batch_size(nn.BatchNorm1d(8), torch.ones(4, 8), largest=1)
    with pytest.raises(UsageError, match="counted from the front"):
        tv.advise.batch_size(nn.Linear(256, 256), x, dim=-1)
    with pytest.raises(UsageError, match="with a dimension 2 for the batch"):
        tv.advise.batch_size(nn.Linear(256, 256), x, dim=2)
    with pytest.raises(UsageError, match="none of the inputs"):
        tv.advise.batch_size(nn.Linear(256, 256), memory="1 GiB")


def test_memory_that_grows_with_the_square_is_closed_in_on():
    found = tv.advise.batch_size(lambda x: (x @ x.T).sum(), torch.ones(4, 16), memory="256 KiB")
    assert len(found.rows) < 30 and found.per_sample_bytes > 4 * found.largest


def test_sizes_far_beyond_the_memory_are_not_looked_at():
    model, x = nn.LSTM(32, 64, batch_first=True), torch.randn(4, 20, 32)
    found = tv.advise.batch_size(model, x, memory="16 MiB", backward=True, measured=False)
    assert max(row.batch for row in found.rows) <= 8 * found.largest


def rounded() -> BatchSizeReport:
    """A search as it ends where a kernel rounds up right after the largest batch."""
    needs = {1: 100_000, 2: 152_000, 500: 26_048_000, 1233: 64_164_000, 1234: 65_000_000, 4932: 257_000_000}
    rows = [BatchMemory(batch, amount, amount) for batch, amount in needs.items()]
    rows[3] = rows[3]._replace(measured_bytes=64_164_000)
    return BatchSizeReport(rows, 64_500_000, 16, 1 << 20, [])


def test_what_a_sample_takes_is_not_what_one_step_was_rounded_up_to():
    assert rounded().per_sample_bytes == 52_000


def test_the_table_says_what_is_over_and_leaves_out_what_only_the_search_met():
    found = rounded()
    lines = [line.split() for line in str(found).splitlines() if line.strip()[:1].isdigit()]
    assert [(line[0], line[-1]) for line in lines] == [("1", "yes"), ("1,233", "largest"), ("1,234", "over")]
    assert lines[1][1:3] == ["61.19", "MiB"] and lines[2][1:3] == ["61.99", "MiB"]
    assert len(found.rows) == 6


def test_the_picture_has_the_budget_and_the_largest_batch_and_ends_near_it():
    chart = rounded().charts()["memory"]
    line, largest = chart.series
    assert line.x[-1] == 1234 and (largest.x, largest.y) == ([1233], [64_164_000]) and "1,233" in largest.name
    assert [list(guide.y) for guide in chart.guides] == [[64_500_000] * 2]
    assert len(rounded().figure("matplotlib").axes) == 1
    unbound = BatchSizeReport(rounded().rows, None, 16, 1 << 20, [])
    assert unbound.charts()["memory"].series[0].x[-1] == 4932 and "over" not in str(unbound)


@pytest.mark.parametrize("memory", [-4, 0, 0.5, float("nan"), float("inf"), "-4 GiB", "nan", "0 GiB"])
def test_numbers_that_are_no_amount_of_memory_are_refused_as_numbers(memory):
    told = f"={memory!r}: a number of bytes is finite and at least 1"
    with pytest.raises(UsageError, match=re.escape(f"memory{told}")):
        tv.advise.batch_size(nn.Linear(4, 4), torch.ones(2, 4), memory=memory)
    with pytest.raises(UsageError, match=re.escape(f"max_bytes{told}")):
        tv.trace(nn.Linear(4, 4), torch.ones(2, 4)).partition(max_bytes=memory)


@pytest.mark.parametrize("given", [True, [1], "foo", "."])
def test_what_is_no_number_is_answered_with_what_the_argument_takes(given):
    with pytest.raises(
        UsageError, match=f"memory is a number of bytes, .*hardware, not {re.escape(repr(given))}"
    ):
        tv.advise.batch_size(nn.Linear(4, 4), torch.ones(2, 4), memory=given)
    wanted = f"max_bytes is a number of bytes or a text like '16 GiB', not {given!r}"
    with pytest.raises(UsageError, match=f"^{re.escape(wanted)}$"):  # a part is no device
        tv.trace(nn.Linear(4, 4), torch.ones(2, 4)).partition(max_bytes=given)


def test_without_a_memory_a_sample_has_its_bytes_or_they_are_not_known():
    model, x = nn.Linear(256, 256), torch.ones(4, 256)
    found = tv.advise.batch_size(model, x, measured=False)
    assert found.per_sample_bytes == 2048 and found.grows_evenly and found.largest is None
    found = tv.advise.batch_size(model, x, largest=1)
    assert found.per_sample_bytes is None and found.grows_evenly is None
    facts = found.facts()
    assert facts["per sample"].startswith("not known") and facts["knee"].startswith("not known")
    assert [row.batch for row in found.rows] == [1]
    timed = tv.advise.batch_size(model, x, largest=6)
    assert max(row.batch for row in timed.rows) <= 6


def test_memory_that_does_not_grow_evenly_is_said_to_do_so():
    found = tv.advise.batch_size(lambda x: x @ x.T, torch.ones(4, 16), memory="256 KiB")
    assert found.grows_evenly is False
    told = found.facts()["per sample"]
    assert "memory does not grow evenly" in told and f"to {found.largest:,}" in told
    half = found.largest // 2  # a square grows by the sum of the two sides for each row more
    assert found.per_sample_bytes == pytest.approx(4 * (found.largest + half) + 64, rel=0.02)
    even = tv.advise.batch_size(network(), torch.randn(4, 3, 16, 16), memory="2 MiB", measured=False)
    assert even.grows_evenly and "evenly" not in even.table()


@pytest.mark.parametrize("renderer", ["plotly", "matplotlib"])
def test_large_throughputs_are_written_as_small_ones_are(renderer):
    paces = [1500.0, 5200.0, 8400.0, 13600.0]
    rows = [BatchMemory(2**power, 10_000, 9_000, None, 1_000, pace) for power, pace in enumerate(paces)]
    figure = BatchSizeReport(rows, None, 4, 1 << 20, []).figure(renderer, chart="throughput")
    assert written(figure, "y") == ["0", "5,000", "10,000"]


# ---------------------------------------------------------------- what was measured, and what was not


class SumOfWide(nn.Module):
    """The gradient of a sum is one number expanded, which kernels of the backward pass copy out for themselves."""

    def __init__(self):
        super().__init__()
        self.inner = nn.Sequential(nn.Linear(64, 256), nn.GELU(), nn.Linear(256, 64))

    def forward(self, x):
        return self.inner(x)


def test_the_largest_batch_fits_by_what_the_allocator_gives_out():
    model = SumOfWide()
    found = tv.advise.batch_size(model, torch.randn(2, 64), memory="4 MiB", backward=True)
    assert taken(model, found.largest, 64, backward=True) <= found.budget
    assert taken(model, found.largest + 4, 64, backward=True) > found.budget


@pytest.mark.parametrize("what", ["model", "fake"])
def test_what_has_shapes_alone_is_neither_run_nor_timed(what):
    if what == "model":
        model, x = nn.Linear(64, 64, device="meta"), torch.ones(2, 64, device="meta")
    else:
        with FakeTensorMode():
            model, x = nn.Linear(64, 64), torch.ones(2, 64)
    found = tv.advise.batch_size(model, x, memory="1 MiB")
    assert found.largest and all(row.per_second is None and row.measured_bytes is None for row in found.rows)
    assert "shapes alone" in str(found) and "knee" not in found.facts()


def test_inside_a_profile_it_says_that_nothing_was_measured():
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]):
        found = tv.advise.batch_size(nn.Linear(64, 64), torch.ones(2, 64), memory="1 MiB")
    assert all(row.measured_bytes is None for row in found.rows) and "one is active already" in str(found)


def test_the_time_of_a_batch_is_without_what_it_takes_to_make_it(monkeypatch):
    now = 0
    inputs, run = BatchedRun.inputs, BatchedRun.run

    def lasting(function, time_ns):
        def call(*args, **kwargs):
            nonlocal now
            now += time_ns
            return function(*args, **kwargs)

        return call

    monkeypatch.setattr(BatchedRun, "inputs", lasting(inputs, 1000))
    monkeypatch.setattr(BatchedRun, "run", lasting(run, 10))
    monkeypatch.setattr(batch_size, "time", SimpleNamespace(perf_counter_ns=lambda: now))
    found = tv.advise.batch_size(nn.Linear(4, 4), torch.ones(2, 4), largest=2)
    assert [row.time_ns for row in found.rows] == [10, 10] and found.rows[1].per_second == 2e8
