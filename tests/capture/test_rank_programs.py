"""Real ranks in every way in which people train: recorded, proved alone, joined, and the same as simulated ones."""

from __future__ import annotations

import time
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import nn

import torch_vis as tv
from tests.kit.rank_programs import LATER, PROGRAMS
from tests.kit.ranks import fake_group, on_ranks
from torch_vis.analysis.ranks.exchanges import exchanges_of

pytestmark = pytest.mark.filterwarnings("ignore")
UNTIMED = dict.fromkeys(("exposed_ns", "waited_ns", "start_ns", "done_ns", "landed_ns", "quiet_ns", "node"))


def talk(t: tv.Trace) -> Any:
    """What a rank says to others, without times and numbers of nodes; and its FLOPs."""
    return [row._replace(**UNTIMED) for row in exchanges_of(t)], t.summary().flops


def proved(rank: int, count: int) -> dict[str, Any]:
    """Trace a step of each program, prove it while the other rank is elsewhere, join."""
    results = {}
    for name, program in (PROGRAMS | LATER).items():
        torch.manual_seed(0)
        step = program(rank)
        # static graphs put their buckets together after the second step
        for _ in range(3):
            step()
        t = tv.trace(step)
        time.sleep(0.05 * (count - 1 - rank))
        try:
            t.check()
        except tv.errors.CheckFailed as error:
            raise AssertionError(f"{name}: {error}") from error
        world = tv.join(t)
        if world is not None:
            assert not world.problems, (name, world.problems)
            agreement = world.check()
            assert agreement.skipped == 0 and agreement.exact + agreement.summed == len(world.meetings), name
        dist.barrier()
        results[name] = (*talk(t), {row.line for row in exchanges_of(t)})
    return results


def test_every_way_to_train_is_proved_and_simulated() -> None:
    ranks = on_ranks(proved, 2)
    for name, program in PROGRAMS.items():

        def make(mesh: Any, program: Any = program) -> Any:
            torch.manual_seed(0)
            return program(dist.get_rank())

        w = tv.simulate(make, mesh={"x": 2}, ranks="all")
        assert not w.problems and len(w.meetings), name
        alike = [limit for limit in w[0].limits if "are taken to give what this one gives" in limit]
        # which parameters were used is what the reducer asks others
        assert bool(alike) == ("unused" in name or "static" in name), (name, alike)
        for rank in range(2):
            assert talk(w[rank]) == ranks[rank][name][:2], (name, rank)
    for rank in ranks:
        for name, (exchanges, _, lines) in rank.items():
            assert exchanges, name
            # no line of a library's
            assert all(line is None or "tests/kit" in line for line in lines), (name, lines)
        # two small matrices instead of the gradient, and what is too small to be worth it
        kinds = [row.kind for row in rank["hook that compresses"][0]]
        assert kinds == ["all_reduce"] * 3


@pytest.mark.parametrize("original", [False, True])
def test_flat_shards_are_as_they_were_after_a_run_by_shapes(original: bool) -> None:
    from torch.distributed.fsdp import FullyShardedDataParallel

    with fake_group(2):
        net = nn.Sequential(nn.Linear(4, 6), nn.ReLU(), nn.Linear(6, 4))
        device = torch.device("cpu")
        model = FullyShardedDataParallel(net, device_id=device, use_orig_params=original)
        optimizer = torch.optim.SGD(model.parameters(), 0.1)

        def step() -> None:
            model(torch.ones(2, 4)).sum().backward()
            optimizer.step()
            optimizer.zero_grad()

        step()
        before = [parameter.detach().clone() for parameter in model.parameters()]
        if original:
            # parameters over real memory would get gradients of shapes alone
            with pytest.raises(tv.errors.CaptureFailed, match="use_orig_params=True"):
                tv.trace(step, fake=True)
        else:
            by_shapes = tv.trace(step, fake=True)
        assert all(map(torch.equal, before, model.parameters()))
        t = tv.trace(step)
        t.check()
        assert original or talk(by_shapes) == talk(t)
