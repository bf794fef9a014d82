"""Several ranks in the explorer: a list of them, equal ones on one line, with the modules of each below it."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest
import torch
import torch.distributed as dist
from torch import nn

import torch_vis as tv
from tests.kit.ranks import fake_group
from torch_vis.analysis.ranks.world import World
from torch_vis.interfaces.explorer.explorer import source_of
from torch_vis.interfaces.explorer.world_source import WorldSource
from torch_vis.views.terminal import program


@pytest.fixture(scope="module")
def world() -> tv.World:
    model = nn.Sequential(nn.Linear(4, 4), nn.ReLU())
    traces = {}
    for rank in (0, 1):
        with fake_group(4, rank):
            x = torch.ones(2 + rank, 4)
            traces[rank] = tv.trace(lambda x=x: (model(x), dist.all_reduce(torch.ones(3))), fake=True)
    return World(traces, copies={2: (1, {}), 3: (1, {})})


def test_ranks_are_rows_with_their_modules(world: tv.World) -> None:
    source = source_of(world)
    assert isinstance(source, WorldSource)
    names = source.forest.names
    assert names[0] == "4 ranks" and "rank 0" in names and "ranks 1–3 × 3" in names
    first, second = names.index("rank 0"), names.index("ranks 1–3 × 3")
    assert source.forest.children(0) == [first, second]
    assert source.forest.names[first + 1 : second] == source.forest.names[second + 1 :]
    assert ("collectives", "1, sends 18 B") in source.details(second).facts
    assert ("ranks", "4") in source.details(0).facts
    # a row of the second rank is answered by it
    part, row = source.part(second)
    assert part.graph is world[1].graph and row == 0
    assert source.part(0) == (source, 0)


def test_it_opens_from_a_file_and_every_panel_draws(world: tv.World, tmp_path: Path) -> None:
    world.save(tmp_path / "step.tvz")
    source = source_of(str(tmp_path / "step.tvz"))
    assert isinstance(source, WorldSource) and source.title == "Sequential on 4 ranks"

    async def walk() -> list[str]:
        app = program(source)
        texts = []
        async with app.run_test(size=(140, 30)) as pilot:
            await pilot.press("down", "down")
            for name in ("details", "operations", "memory"):
                app.show_panel(name)
                await pilot.pause(0.3)
                texts.append(app.export_screenshot())
        return texts

    details, operations, _ = asyncio.run(walk())
    assert "4&#160;ranks" in details and "ranks&#160;1–3" in details
    assert "addmm" in operations
