"""A script that runs as one rank of a job that is not there: by shapes, in torch's fake process group."""

from __future__ import annotations

import importlib
import os
import pickle
import sys
from collections.abc import Mapping
from typing import Any

from torch_vis.capture.fake import FAKE_LIMIT, FakeTensors
from torch_vis.capture.fake_ranks import StageShapes, forget_meshes
from torch_vis.capture.modes import push_mode
from torch_vis.capture.recording.source_lines import leave_alone
from torch_vis.capture.undo import Context, Undo
from torch_vis.errors import UsageError

# what has to be loaded before it can be made to go by shapes
PARTS = ("fsdp", "pipelining", "tensor.parallel", "device_mesh")


class ShapesInFolder(StageShapes):
    """What stages of a pipeline tell others of their shapes, where each rank is a process: in files of a folder."""

    def __init__(self, folder: str) -> None:
        super().__init__()
        self._folder = folder

    def give(self, rank: int, stage: int, shapes: Any) -> None:
        """Leave for a stage on a rank what it gets."""
        super().give(rank, stage, shapes)
        with open(self._path(rank, stage), "wb") as file:
            pickle.dump(shapes, file)

    def take(self, rank: int, stage: int) -> Any:
        """What a stage on a rank gets; None where nobody has said it."""
        path = self._path(rank, stage)
        if not os.path.exists(path):
            return super().take(rank, stage)
        # written by ourselves, in a folder of our own
        with open(path, "rb") as file:
            return pickle.load(file)

    def _path(self, rank: int, stage: int) -> str:
        return os.path.join(self._folder, f"{rank}.{stage}.shapes")


class ScriptRank(Context["ScriptRank"]):
    """The stretch of a script from when torch is there to its end; ranks of one job leave shapes in ``folder``."""

    def __init__(self, mesh: Mapping[str, int], rank: int, world_size: int, folder: str | None) -> None:
        self.mesh, self.rank, self.world_size = mesh, rank, world_size
        self.fake = FakeTensors(shapes=None if folder is None else ShapesInFolder(folder))
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
        push_mode(undo, self.fake.above)
        return self

    def describe(self, trace: Any, place: Mapping[str, int]) -> None:
        """Say in a trace what it is of; raises if the script has laid its ranks out otherwise."""
        for axis, count in (trace.meta.get("mesh") or {}).items():
            if self.mesh.get(axis, count) != count:
                raise UsageError(
                    f"--world says {axis}={self.mesh[axis]}, and the script's own mesh has {count} ranks on that axis: "
                    f"give --world the sizes into which the script divides {self.world_size} ranks"
                )
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
