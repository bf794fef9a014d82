"""A script that runs as one rank of a job that is not there: by shapes, in torch's fake process group."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Mapping
from typing import Any

from torch_vis.capture.fake import FAKE_LIMIT, FakeTensors
from torch_vis.capture.fake_ranks import forget_meshes
from torch_vis.capture.modes import put_on
from torch_vis.capture.recording.source_lines import leave_alone
from torch_vis.capture.undo import Context, Undo

# what has to be loaded before it can be made to go by shapes
PARTS = ("fsdp", "pipelining", "tensor.parallel", "device_mesh")


class ScriptRank(Context["ScriptRank"]):
    """The stretch of a script from when torch is there to its end."""

    def __init__(self, mesh: Mapping[str, int], rank: int, world_size: int) -> None:
        self.mesh, self.rank, self.world_size = mesh, rank, world_size
        self.fake = FakeTensors()
        # a script prints its loss: whatever it is, it goes the same way
        self.fake.below.known.any_number = True

    def _begin(self, undo: Undo) -> ScriptRank:
        import torch.distributed as dist
        from torch.distributed import distributed_c10d as c10d

        for part in PARTS:
            importlib.import_module(f"torch.distributed.{part}")
        from torch.testing._internal.distributed.fake_pg import FakeStore

        original = dist.init_process_group

        @leave_alone
        def init_process_group(*_: Any, **__: Any) -> None:
            """Stands for that of torch.distributed while a script is simulated."""
            original("fake", store=FakeStore(), rank=self.rank, world_size=self.world_size)

        undo.add(setattr, sys, "excepthook", sys.excepthook)
        undo.add(_leave)
        undo.enter(self.fake)
        for module in (dist, c10d):
            undo.set(module, "init_process_group", init_process_group)
        put_on(undo, self.fake.above)
        return self

    def describe(self, trace: Any, place: Mapping[str, int]) -> None:
        """Say in a trace what it is of."""
        trace.meta.update(
            fake=True,
            simulated=True,
            host="simulated",
            began_ns=0,
            mesh=dict(self.mesh),
            coordinates=dict(place),
        )
        trace.meta.setdefault("rank", self.rank)
        trace.meta.setdefault("world_size", self.world_size)
        trace.limits = (*trace.limits, *self.fake.limits, FAKE_LIMIT)


def _leave() -> None:
    import torch.distributed as dist

    if dist.is_initialized():
        dist.destroy_process_group()
    forget_meshes()
