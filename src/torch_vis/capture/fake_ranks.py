"""Programs of several ranks by shapes: what ranks would tell each other is worked out, assumed or passed on here.

A run by shapes has one rank of a job, and no other answers. What sharded and parallel training need beyond shapes is
little: the sizes of Python objects that ranks exchange, the order in which ``DistributedDataParallel`` packs gradients,
and the shapes that a stage of a pipeline gets from the one before. All ranks are taken to give what this one gives.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Mapping
from types import FrameType
from typing import Any

import torch
from torch._subclasses.fake_tensor import FakeTensor
from torch.utils import _pytree as pytree
from torch.utils._python_dispatch import TorchDispatchMode

from torch_vis.capture.known_numbers import WAITED_FOR_LATER
from torch_vis.capture.modes import modes_aside, put_on
from torch_vis.capture.recording.source_lines import OURS, TORCH, leave_alone
from torch_vis.capture.undo import Undo, context
from torch_vis.errors import CaptureFailed, UsageError
from torch_vis.ops.collectives import TABLE, WAIT_TENSOR, Collective

C10D = "torch.distributed.distributed_c10d"
TENSORS = "torch.distributed.tensor."
FUNCTIONAL = "torch.distributed._functional_collectives"
REPLICAS = "torch.nn.parallel.distributed"
SCHEDULES = "torch.distributed.pipelining.schedules"
STAGES = "torch.distributed.pipelining.stage"
INTEGERS = (torch.int32, torch.int64)


class ShapesMissing(UsageError):
    """A stage of a pipeline waits for shapes from a rank that has not said them yet; ``rank`` is that one."""

    def __init__(self, stage: int, rank: int) -> None:
        super().__init__(
            f"stage {stage} of a pipeline gets its shapes from rank {rank}, which has not run: tv.simulate runs ranks "
            "in that order; or give PipelineStage input_args= and output_args="
        )
        self.rank = rank


class StageShapes:
    """What stages of a pipeline tell others of their shapes, by the rank and the stage that they tell it."""

    def __init__(self) -> None:
        self._rows: dict[tuple[int, int], Any] = {}

    def give(self, rank: int, stage: int, shapes: Any) -> None:
        """Leave for a stage on a rank what it gets."""
        self._rows[rank, stage] = shapes

    def take(self, rank: int, stage: int) -> Any:
        """What a stage on a rank gets; None where nobody has said it."""
        return self._rows.get((rank, stage))


# ---------------------------------------------------------------- one rank of a job that is not there


@context
def fake_rank(undo: Undo, rank: int, world_size: int) -> None:
    """Let this process be one rank of a job, in torch's fake process group, in which nobody answers."""
    import torch.distributed as dist

    if not dist.is_available():
        raise UsageError("this build of torch has no torch.distributed, so that no world can be simulated")
    if dist.is_initialized():
        raise UsageError(
            "this process is a rank of a real job; simulate a world before init_process_group, or after "
            "destroy_process_group"
        )
    from torch.testing._internal.distributed.fake_pg import FakeStore

    # torch puts the rank before what its own one prints
    undo.add(setattr, sys, "excepthook", sys.excepthook)
    undo.add(_leave_group)
    forget_meshes()
    dist.init_process_group("fake", store=FakeStore(), rank=rank, world_size=world_size)


def _leave_group() -> None:
    import torch.distributed as dist

    if dist.is_initialized():
        dist.destroy_process_group()
    forget_meshes()


def forget_meshes() -> None:
    """Have DTensor work placements out anew: what it remembers names groups of ranks that are gone."""
    tensors = sys.modules.get("torch.distributed.tensor")
    if tensors is None:
        return
    propagator = tensors.DTensor._op_dispatcher.sharding_propagator
    propagator.propagate_op_sharding.cache_clear()
    cached = getattr(type(propagator), "_propagate_tensor_meta_cached", None)
    if cached is not None:
        cached.cache_clear()
    clear = getattr(torch._C, "_clear_DTensor_sharding_propagator_cache", None)
    if clear is not None:
        clear()


# ---------------------------------------------------------------- what ranks exchange


def talk(known: Any, func: Any, args: Any, on_shapes: Callable[[], Any]) -> Any:
    """What an operation gives that talks to other ranks, if all of them give what this one gives."""
    # torch's rules would make copies of what is only wrapped, or waited for
    if func._schema.name == WAITED_FOR_LATER:
        return sys.modules[FUNCTIONAL].AsyncCollectiveTensor(args[0])
    if func._schema.name == WAIT_TENSOR:
        return args[0]
    out = on_shapes()
    _follow_numbers(known, TABLE.get(func._schema.name), args)
    if func is torch.ops.c10d.allreduce_.default:
        # code in C++ asks the handle for the result, as that of DistributedDataParallel does
        future: Any = torch.futures.Future()
        future.set_result(list(args[0]))
        bindings: Any = torch._C._distributed_c10d
        return args[0], bindings._create_work_from_future(future).boxed()
    return out


def _follow_numbers(known: Any, row: Collective | None, args: Any) -> None:
    """Let known numbers be what a collective leaves of them."""
    if row is None or not isinstance(row.filled, int) or row.filled >= len(args):
        return
    filled = [item for item in pytree.tree_leaves(args[row.filled]) if isinstance(item, FakeTensor)]
    if row.kind == "broadcast" or all(known.of(item) is None for item in filled):
        return
    given = [] if row.given is None else pytree.tree_leaves(args[row.given])
    numbers = [known.of(item) for item in given if isinstance(item, FakeTensor)]
    if row.kind == "all_gather" and len(numbers) == 1 and numbers[0] is not None:
        with torch._C._DisableTorchDispatch(), torch.no_grad():
            for item in filled:
                target = known.of(item)
                if target is not None:
                    target.view(-1, numbers[0].numel()).copy_(numbers[0].view(1, -1))
        return
    for item in filled:
        known.forget(item)


@context
def as_ranks_see(undo: Undo, fake: Any, shapes: StageShapes | None) -> None:
    """While a run is by shapes: objects that ranks exchange, replicas of a model and stages of a pipeline."""
    modules = sys.modules
    if C10D not in modules:
        return
    _exchange_objects(undo, modules[C10D], fake)
    # or each collective would be waited for at once, and no placement remembered, as while a compiler traces
    not_tracing = leave_alone(lambda: False)
    for name in [name for name in modules if name == FUNCTIONAL or name.startswith(TENSORS)]:
        if "_are_we_tracing" in vars(modules[name]):
            undo.set(modules[name], "_are_we_tracing", not_tracing)
    if REPLICAS in modules:
        _replicate(undo, modules[REPLICAS], fake)
    if SCHEDULES in modules:
        _pass_shapes_on(undo, modules[SCHEDULES], modules[STAGES], shapes or StageShapes())


def _exchange_objects(undo: Undo, c10d: Any, fake: Any) -> None:
    """Objects are pickled on real bytes, whose numbers are known; each rank gets its own back."""
    packed, unpacked = c10d._object_to_tensor, c10d._tensor_to_object

    @leave_alone
    def to_tensor(*args: Any, **kwargs: Any) -> Any:
        with modes_aside():
            return packed(*args, **kwargs)

    @leave_alone
    def to_object(tensor: torch.Tensor, *args: Any, **kwargs: Any) -> Any:
        real = fake.below.known.of(fake.twins.of(tensor))
        if real is None:
            raise CaptureFailed(
                "an object that another rank sends is not known in a run by shapes; trace without fake=True"
            )
        with modes_aside():
            return unpacked(real, *args, **kwargs)

    undo.set(c10d, "_object_to_tensor", to_tensor)
    undo.set(c10d, "_tensor_to_object", to_object)


class IntegersAside(TorchDispatchMode):
    """Runs operations on integers alone without the modes below: code in C++ reads them from memory."""

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Run one operation, on real tensors if all it has are integers."""
        kwargs = kwargs or {}
        tensors = [item for item in pytree.arg_tree_leaves(*args, **kwargs) if isinstance(item, torch.Tensor)]
        real = not any(isinstance(tensor, FakeTensor) for tensor in tensors)
        if real and (tensors or kwargs.get("dtype") in INTEGERS):
            with modes_aside():
                return func(*args, **kwargs)
        return func(*args, **kwargs)


def _replicate(undo: Undo, replicas: Any, fake: Any) -> None:
    """``DistributedDataParallel`` compares shapes and the order of gradients with other ranks, in C++."""
    reducer: Any = torch._C._distributed_c10d.Reducer
    rebuilt = reducer._rebuild_buckets

    @context
    def integers_aside(undo: Undo) -> None:
        put_on(undo, IntegersAside())  # type: ignore[no-untyped-call]

    @leave_alone
    def rebuild(self: Any) -> Any:
        with integers_aside():
            return rebuilt(self)

    undo.set(replicas, "_verify_param_shape_across_processes", leave_alone(lambda *_, **__: None))
    undo.set(reducer, "_rebuild_buckets", rebuild)


def _pass_shapes_on(undo: Undo, schedules: Any, stages: Any, shapes: StageShapes) -> None:
    """Stages of a pipeline vote on how they learn their shapes, and tell each other: here through ``shapes``."""
    mode, stage_kind = schedules.InferenceMode, stages.PipelineStage
    first = schedules._PipelineSchedule._warmup_p2p

    @leave_alone
    def vote(self: Any, own: Any, has_backward: bool, *args: Any) -> None:
        if not all(isinstance(stage, stage_kind) for stage in own):
            first(self, own, has_backward, *args)
            return
        for stage in own:
            dynamic = mode.needs_dynamic(stage._user_meta, has_backward)
            stage._inference_mode = mode.DYNAMIC if dynamic else mode.STATIC

    @leave_alone
    def send(self: Any, meta: Any, stage: int) -> None:
        # shapes of gradients are those of what they are gradients of
        if stage > self.stage_index:
            shapes.give(self._resolve_peer_global_rank(stage), stage, meta)

    @leave_alone
    def receive(self: Any, stage: int) -> Any:
        if stage > self.stage_index:
            return stages._StageBackwardMeta(
                backward_metas=stages._derive_grad_metas(self._stage_meta.outputs)
            )
        meta = shapes.take(torch.distributed.get_rank(), self.stage_index)
        if meta is None:
            raise ShapesMissing(self.stage_index, self._resolve_peer_global_rank(stage))
        return meta

    undo.set(schedules._PipelineSchedule, "_warmup_p2p", vote)
    undo.set(stage_kind, "_send_meta", send)
    undo.set(stage_kind, "_recv_meta", receive)


# ---------------------------------------------------------------- what a program builds and asks for


class Ready(BaseException):
    """Ends the first step of a program once its pipeline knows its shapes."""


class Building:
    """What a program builds before its step, and what it asks for about its place among ranks."""

    def __init__(self) -> None:
        self.optimizers: list[torch.optim.Optimizer] = []
        self.replicas: list[Any] = []
        """Models in DistributedDataParallel."""
        self.flat: list[torch.nn.Module] = []
        """Models in FullyShardedDataParallel, whose ranks have other parts of other parameters."""
        self.pipelines: list[Any] = []
        """Schedules of pipelines."""
        self.axes: set[str] = set()
        """The axes of the mesh on which it asked for its place."""
        self.asked_rank: str | None = None
        """The line that asked for the number of its rank among all, where one did."""


@context
def watched(undo: Undo, building: Building, axes: Mapping[frozenset[int], str]) -> None:
    """Note what is built; ``axes`` has the names of groups of ranks by their members."""
    import torch.distributed.fsdp
    import torch.distributed.pipelining
    from torch.distributed import distributed_c10d as c10d
    from torch.distributed.device_mesh import DeviceMesh
    from torch.distributed.fsdp import FullyShardedDataParallel
    from torch.nn.parallel import DistributedDataParallel

    def counted(kind: Any, note: Callable[[Any], None]) -> None:
        original = kind.__init__

        @leave_alone
        def init(self: Any, *args: Any, **kwargs: Any) -> None:
            note(self)
            original(self, *args, **kwargs)

        undo.set(kind, "__init__", init)

    counted(torch.optim.Optimizer, building.optimizers.append)
    counted(DistributedDataParallel, building.replicas.append)
    counted(FullyShardedDataParallel, building.flat.append)
    counted(sys.modules[SCHEDULES]._PipelineSchedule, building.pipelines.append)
    inside, coordinate = c10d._rank_not_in_group, DeviceMesh.get_coordinate

    @leave_alone
    def rank_not_in_group(group: Any) -> Any:
        frame = sys._getframe(1)
        line = _asked_by_user(frame) if frame.f_code.co_name == "get_rank" else None
        if line is not None:
            members = None if group is None else frozenset(c10d.get_process_group_ranks(group))
            axis = None if members is None else axes.get(members)
            if axis is None:
                building.asked_rank = building.asked_rank or line
            else:
                building.axes.add(axis)
        return inside(group)

    @leave_alone
    def get_coordinate(self: Any) -> Any:
        line = _asked_by_user(sys._getframe(1))
        if line is not None:
            if self.mesh_dim_names:
                building.axes.update(map(str, self.mesh_dim_names))
            else:
                building.asked_rank = building.asked_rank or line
        return coordinate(self)

    undo.set(c10d, "_rank_not_in_group", rank_not_in_group)
    undo.set(DeviceMesh, "get_coordinate", get_coordinate)


ASKING = tuple(os.path.join(TORCH, "distributed", name) for name in ("distributed_c10d.py", "device_mesh.py"))
QUESTIONS = frozenset({"get_rank", "get_local_rank", "get_coordinate"})


def _asked_by_user(frame: FrameType | None) -> str | None:
    """The line that asks, outside of the functions that hand the question on; None where torch or we ask."""
    while frame is not None and frame.f_code.co_filename in ASKING:
        if frame.f_code.co_name not in QUESTIONS:
            return None
        frame = frame.f_back
    if frame is None or frame.f_code.co_filename.startswith((TORCH, OURS)):
        return None
    return f"{os.path.basename(frame.f_code.co_filename)}:{frame.f_lineno}"


def make_optimizer_state(optimizer: torch.optim.Optimizer) -> None:
    """Have an optimizer make the state that it makes in its first step, and change nothing else."""
    if optimizer.state:
        return
    parameters = [p for group in optimizer.param_groups for p in group["params"] if p.requires_grad]
    if any(parameter.grad is not None for parameter in parameters):
        return
    for parameter in parameters:
        parameter.grad = torch.zeros_like(parameter)
    optimizer.step()
    for parameter in parameters:
        parameter.grad = None


@context
def until_ready(undo: Undo) -> None:
    """Schedules of pipelines end the step, by ``Ready``, as soon as their stages know their shapes."""
    schedules = sys.modules[SCHEDULES]
    for kind, name in (
        (schedules.PipelineScheduleSingle, "_initialize_stage"),
        (schedules.PipelineScheduleMulti, "_initialize_stages"),
    ):
        original = getattr(kind, name)

        def initialize(self: Any, *args: Any, _original: Any = original, **kwargs: Any) -> None:
            _original(self, *args, **kwargs)
            raise Ready

        undo.set(kind, name, leave_alone(initialize))
