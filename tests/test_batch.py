"""The batch that fits, and the one that pays."""

from __future__ import annotations

import copy

import pytest
import torch
from torch import nn

import torch_vis as tv
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


@pytest.mark.parametrize("memory", [1 << 20, 5_000_000, "16 MiB"])
def test_the_largest_batch_fits_and_one_more_does_not(memory):
    model = network()
    found = tv.analyze_batch_size(
        model, torch.randn(4, 3, 16, 16), memory=memory, backward=True, measure=False
    )
    assert peak(model, found.largest) <= found.budget < peak(model, found.largest + 1)


def test_it_is_proved_by_running_and_the_model_is_left_alone():
    model, x = network(), torch.randn(4, 3, 16, 16)
    before, state = copy.deepcopy(model.state_dict()), torch.get_rng_state()
    found = tv.analyze_batch_size(model, x, memory="2 MiB", backward=True)
    row = next(row for row in found.rows if row.batch == found.largest)
    assert row.measured_bytes == row.tensor_bytes <= row.predicted_bytes
    timed = [row.batch for row in found.rows if row.per_second]
    assert timed[:3] == [1, 2, 4] and (found.knee is None or found.knee in timed[:-1])
    assert "knee" in found.facts()
    assert all(torch.equal(before[name], value) for name, value in model.state_dict().items())
    assert all(parameter.grad is None for parameter in model.parameters())
    assert torch.equal(state, torch.get_rng_state())
    assert "largest" in str(found) and len(found.figure("matplotlib", chart="throughput").axes) == 1


def test_keyword_inputs_and_what_has_no_batch():
    class Masked(nn.Module):
        def __init__(self):
            super().__init__()
            self.inner = nn.Linear(8, 8)

        def forward(self, x, *, mask, scale):
            return self.inner(x) * mask * scale

    mask, scale = torch.ones(3, 8), torch.tensor(2.0)
    found = tv.analyze_batch_size(
        Masked(), torch.ones(3, 8), kwargs={"mask": mask, "scale": scale}, memory=10_000, measure=False
    )
    assert found.largest > 3 and found.per_sample_bytes > 0


def test_a_memory_that_never_fills_ends_at_the_largest():
    found = tv.analyze_batch_size(
        nn.Linear(2, 2), torch.ones(1, 2), memory="1 GiB", measure=False, largest=64
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
    found = tv.analyze_batch_size(step, torch.ones(2, 4), memory=3000)
    assert found.largest and found.knee is None and "may change things" in str(found)
    assert torch.equal(weight, model.weight) and not optimizer.state


def test_bad_input():
    x = torch.ones(2, 256)
    with pytest.raises(UsageError, match="nothing fits in 1000 B: a batch of 1 takes"):
        tv.analyze_batch_size(nn.Linear(256, 256), x, memory=1000)
    with pytest.raises(UsageError, match="name of hardware, not 'much'"):
        tv.analyze_batch_size(nn.Linear(256, 256), x, memory="much")
    with pytest.raises(UsageError, match="none of the inputs"):
        tv.analyze_batch_size(nn.Linear(256, 256), memory="1 GiB")


def test_memory_that_grows_with_the_square_is_closed_in_on():
    found = tv.analyze_batch_size(lambda x: (x @ x.T).sum(), torch.ones(4, 16), memory="256 KiB")
    assert len(found.rows) < 30 and found.per_sample_bytes > 4 * found.largest
