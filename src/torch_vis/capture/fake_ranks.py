"""Programs of several ranks by shapes: what ranks would tell each other is worked out, assumed or passed on here.

A run by shapes has one rank of a job, and no other answers. What sharded and parallel training need beyond shapes is
little: the sizes of Python objects that ranks exchange, the order in which ``DistributedDataParallel`` packs gradients,
and the shapes that a stage of a pipeline gets from the one before. All ranks are taken to give what this one gives.
"""

from __future__ import annotations

import operator
import os
import sys
from collections import OrderedDict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from types import FrameType, SimpleNamespace
from typing import Any

import torch
from torch._subclasses.fake_tensor import FakeTensor
from torch.utils import _pytree as pytree
from torch.utils._python_dispatch import TorchDispatchMode

from torch_vis.capture.known_numbers import WAITED_FOR_LATER
from torch_vis.capture.modes import modes_aside, push_mode, without_gradients
from torch_vis.capture.recording.collectives import group_named, reduction_named
from torch_vis.capture.recording.source_lines import OURS, TORCH, leave_alone
from torch_vis.capture.undo import Undo, context
from torch_vis.errors import CaptureFailed, UsageError
from torch_vis.graph.run import Limit
from torch_vis.ops.collectives import TABLE, WAIT_TENSOR, Collective

C10D = "torch.distributed.distributed_c10d"
TENSORS = "torch.distributed.tensor."
FUNCTIONAL = "torch.distributed._functional_collectives"
REPLICAS = "torch.nn.parallel.distributed"
UTILITIES, FLAT = "torch.distributed.utils", "torch.distributed.fsdp."
SCHEDULES = "torch.distributed.pipelining.schedules"
STAGES = "torch.distributed.pipelining.stage"
SHARDED = "torch.distributed.fsdp._fully_shard._fsdp_param_group"
SHARDS = "torch.distributed.fsdp._fully_shard._fsdp_param"
PROPAGATION = "torch.distributed.tensor._sharding_prop"
STRATEGIES = "torch.distributed.tensor._ops.utils"
MESHES = "torch.distributed.device_mesh"
STRIDED = "_StridedShard"
# kinds of parameters whose layouts are remembered at once
MOST_ALIKE = 64
INTEGERS = (torch.int32, torch.int64)
# collectives after which a program knows more than what its own rank knew
EXCHANGED = frozenset({"all_reduce", "all_to_all", "reduce_scatter"})


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
    row = TABLE.get(func._schema.name)
    numbers = None if row is None else _received(known, row, args, sys._getframe())
    # torch's rule is the same where it has one: of several tensors at once it has none
    in_place = row is not None and isinstance(row.filled, int) and func._schema.name.startswith("c10d::")
    out = _in_place(func, row, args) if in_place or func._schema.name.endswith("coalesced_") else on_shapes()
    if row is None:
        return out
    if not isinstance(row.filled, int):
        if numbers is not None and isinstance(out, FakeTensor) and numbers.numel() == out.numel():
            known.give(out, numbers.view(out.shape))
        return out
    filled = [item for item in pytree.tree_leaves(args[row.filled]) if isinstance(item, FakeTensor)]
    _fill(known, filled, numbers)
    if numbers is not None and row.kind in EXCHANGED and known.of(filled[0]) is not None:
        known.exchanged.setdefault(row.kind, taken_for_alike(row.kind))
    return _with_future(out, filled) if row.kind not in ("send", "recv") else out


def _in_place(func: Any, row: Collective | None, args: Any) -> Any:
    """The result of an operator that only fills its arguments: these, if it returns them, and a handle to wait on."""
    bindings: Any = torch._C._distributed_c10d
    work = bindings.FakeWork().boxed()
    assert row is not None
    return (args[row.filled], work) if len(func._schema.returns) == 2 else work


def _with_future(out: Any, filled: list[Any]) -> Any:
    """A handle by which code, in C++ too, is given what was received, as by that of a real backend."""
    last = out[-1] if isinstance(out, (tuple, list)) and out else out
    if not isinstance(last, torch.ScriptObject):
        return out
    future: Any = torch.futures.Future()
    future.set_result(filled)
    bindings: Any = torch._C._distributed_c10d
    work = bindings._create_work_from_future(future).boxed()
    return (*out[:-1], work) if isinstance(out, (tuple, list)) else work


def _received(known: Any, row: Collective, args: Any, frame: FrameType) -> torch.Tensor | None:
    """The numbers, flat, that a collective leaves on this rank; None where they are unknown."""
    given = [] if row.given is None else pytree.tree_leaves(args[row.given])
    numbers = [known.of(item) for item in given if isinstance(item, FakeTensor)]
    if not numbers or any(item is None for item in numbers):
        return None
    # nobody decides by many of these: they are memory that looks empty until C++ code writes to it
    if any(item.is_floating_point() and item.numel() > 1 for item in numbers):
        return None
    group = group_named(args[row.group]) if row.group is not None else None
    if group is None:
        return None
    ranks, place = int(group.size()), int(group.rank())
    with torch._C._DisableTorchDispatch(), without_gradients():
        if row.kind in ("all_gather", "gather") and len(numbers) == 1:
            return torch.cat([numbers[0].flatten()] * ranks)
        if row.kind == "all_to_all":
            return torch.cat([_part(row, args, numbers, ranks, place).flatten()] * ranks)
        if row.kind == "scatter":
            return numbers[place].flatten() if place < len(numbers) else None
        if row.kind == "broadcast":
            return torch.cat([item.flatten() for item in numbers])
        if row.kind not in ("all_reduce", "reduce", "reduce_scatter"):
            return None
        if row.kind == "reduce_scatter":
            numbers = [_part(row, args, numbers, ranks, place)]
        reduction = args[row.op] if isinstance(args[row.op], str) else reduction_named(frame)
        whole = torch.cat([item.flatten() for item in numbers])
        if reduction in ("sum", "product"):
            return whole * ranks if reduction == "sum" else whole**ranks
        return whole if reduction in ("avg", "max", "min", "band", "bor") else None


def taken_for_alike(kind: str) -> Limit:
    """What is said of a program that may decide by numbers that ranks exchange."""
    return Limit(
        f"ranks exchange numbers that the program may decide by ({kind}): the others are taken to give what this "
        "one gives",
        kind="branch",
    )


def _part(row: Collective, args: Any, numbers: list[torch.Tensor], ranks: int, place: int) -> torch.Tensor:
    """What a rank gives to the one in its own place."""
    if len(numbers) > 1:
        return numbers[place]
    rows = list(args[row.splits] or ()) if row.splits is not None else []
    if rows:
        return torch.split(numbers[0], rows)[place]
    return numbers[0].flatten().view(ranks, -1)[place]


def _fill(known: Any, filled: list[Any], numbers: torch.Tensor | None) -> None:
    """Let tensors that a collective has written have the numbers that it left."""
    if numbers is None or sum(item.numel() for item in filled) != numbers.numel():
        for item in filled:
            known.forget(item)
        return
    parts = numbers.split([item.numel() for item in filled])
    with torch._C._DisableTorchDispatch(), without_gradients():
        for item, part in zip(filled, parts):
            target = known.of(item)
            if target is not None:
                target.copy_(part.view(target.shape))


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
    # memory without numbers has no address, and is there all the same
    allocated = leave_alone(lambda tensor: tensor.untyped_storage().nbytes() > 0)
    for name in [name for name in modules if name == UTILITIES or name.startswith(FLAT)]:
        if "_data_ptr_allocated" in vars(modules[name]):
            undo.set(modules[name], "_data_ptr_allocated", allocated)
    _look_once(undo, modules)
    flat = getattr(modules.get(f"{FLAT}_flat_param"), "FlatParamHandle", None)
    if flat is not None:
        _refuse_original_parameters(undo, flat)
    if REPLICAS in modules:
        _replicate(undo, modules[REPLICAS], fake)
    if SCHEDULES in modules:
        _pass_shapes_on(undo, modules[SCHEDULES], modules[STAGES], shapes or StageShapes())


def flat_shards(owners: Iterable[Any]) -> Iterator[Any]:
    """What FullyShardedDataParallel keeps beside its modules: handles of flat parameters, and these."""
    kind = getattr(sys.modules.get(f"{FLAT}_flat_param"), "FlatParamHandle", None)
    if kind is None:
        return
    for owner in owners:
        handle = vars(owner).get("_handle")
        if isinstance(handle, kind):
            yield handle
            yield handle.flat_param


def _refuse_original_parameters(undo: Undo, kind: Any) -> None:
    """Flat parameters over real tensors set the gradients of these, which cannot be of shapes alone."""

    def refusing(name: str, has_gradients: Callable[[Any], bool]) -> None:
        original = getattr(kind, name)

        @leave_alone
        def method(self: Any) -> None:
            if self._use_orig_params and not isinstance(self.flat_param, FakeTensor) and has_gradients(self):
                raise CaptureFailed(
                    "gradients of FullyShardedDataParallel(use_orig_params=True) over real tensors cannot be of shapes "
                    "alone; build the model in tv.simulate(make, …), or trace without fake=True"
                )
            original(self)

        undo.set(kind, name, method)

    refusing("prepare_gradient_for_backward", lambda handle: True)
    refusing("_use_sharded_grad_views", lambda handle: handle.sharded_grad is not None)


class Chunks(Sequence[torch.Tensor]):
    """The parts of a tensor as torch.chunk cuts it, empty ones at the end; each is made when it is asked for.

    >>> parts = Chunks(torch.arange(5), 4, 0)
    >>> [part.tolist() for part in parts], parts[-4].tolist()
    ([[0, 1], [2, 3], [4], []], [0, 1])
    """

    def __init__(self, tensor: torch.Tensor, count: int, dim: int) -> None:
        self._tensor, self._count, self._dim = tensor, count, dim
        self._size = tensor.size(dim)
        self._step = -(-self._size // count)

    def __len__(self) -> int:
        return self._count

    def __getitem__(self, index: Any) -> Any:
        if isinstance(index, slice):
            return [self[place] for place in range(*index.indices(self._count))]
        place = operator.index(index)
        place += self._count if place < 0 else 0
        if not 0 <= place < self._count:
            raise IndexError(f"part {index} of {self._count}")
        start = place * self._step
        if self._size and start >= self._size:
            return self._tensor.new_empty(0)
        return self._tensor.narrow(self._dim, start, min(self._step, self._size - start))


def _look_once(undo: Undo, modules: Mapping[str, Any]) -> None:
    """What torch works out for each rank, each parameter or each pair of them, though it needs one."""
    shards = modules.get(SHARDS)
    if hasattr(shards, "_chunk_with_empty"):
        undo.set(shards, "_chunk_with_empty", Chunks)
    _join_meshes_once(undo, modules)
    _place_alike_once(undo, modules)
    propagation = modules.get(PROPAGATION)
    original = getattr(propagation, "_propagate_use_strided_shard_flag", None)
    if original is None:
        return
    last: list[Any] = [None, None]

    @leave_alone
    def propagate_flag(strategy: Any, schema: Any) -> None:
        # for an optimizer's step it is asked once per parameter, and looks at all parameters each time
        if last[0] is not schema:
            specs = {
                spec.use_strided_shard_as_shard_order: spec
                for spec in reversed(schema.args_spec)
                if any(type(placement).__name__ == STRIDED for placement in spec.placements)
            }
            last[:] = schema, SimpleNamespace(args_spec=tuple(reversed(specs.values())))
        original(strategy, last[1])

    undo.set(propagation, "_propagate_use_strided_shard_flag", propagate_flag)


def _join_meshes_once(undo: Undo, modules: Mapping[str, Any]) -> None:
    """The mesh of two axes, which ``fully_shard`` makes for each parameter: one for all, since none is changed."""
    kind = getattr(modules.get(MESHES), "DeviceMesh", None)
    original = getattr(kind, "_concatenate", None)
    if original is None:
        return
    joined: dict[tuple[int, ...], tuple[list[Any], Any]] = {}

    @leave_alone
    def concatenate(meshes: list[Any]) -> Any:
        key = tuple(map(id, meshes))
        known = joined.get(key)
        if known is None:
            # the meshes are held, so that no other one gets their numbers
            known = joined[key] = list(meshes), original(meshes)
        return known[1]

    undo.add(setattr, kind, "_concatenate", vars(kind)["_concatenate"])
    kind._concatenate = staticmethod(concatenate)  # type: ignore[union-attr]


def _place_alike_once(undo: Undo, modules: Mapping[str, Any]) -> None:
    """How parameters that are placed alike can be laid out, which torch works out for each one of a list of them."""
    strategies = modules.get(STRATEGIES)
    original = getattr(strategies, "expand_to_full_mesh_op_strategy", None)
    if original is None:
        return
    # torch has one schema for all that are alike; of these the latest, with what they were asked with
    known: OrderedDict[int, tuple[Any, ...]] = OrderedDict()

    @leave_alone
    def expand(mesh: Any, schema: Any, choices: Any, **options: Any) -> Any:
        row = known.get(id(schema))
        if row is not None and row[0] is schema and row[1] is mesh and row[2:4] == (choices, options):
            return row[4]
        out = original(mesh, schema, choices, **options)
        known[id(schema)] = schema, mesh, choices, options, out
        if len(known) > MOST_ALIKE:
            known.popitem(last=False)
        return out

    undo.set(strategies, "expand_to_full_mesh_op_strategy", expand)


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
        # memory into which nobody has sent anything
        if real is None or not real.any():
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
        push_mode(undo, IntegersAside())  # type: ignore[no-untyped-call]

    @leave_alone
    def rebuild(self: Any) -> Any:
        with integers_aside():
            return rebuilt(self)

    undo.set(replicas, "_verify_param_shape_across_processes", leave_alone(lambda *_, **__: None))
    undo.set(reducer, "_rebuild_buckets", rebuild)


def _pass_shapes_on(undo: Undo, schedules: Any, stages: Any, shapes: StageShapes) -> None:
    """Stages of a pipeline vote on how they learn their shapes, and tell each other: here through ``shapes``."""
    if not hasattr(schedules, "InferenceMode"):
        undo.set(stages.PipelineStage, "_shape_inference", _refuse_unknown_shapes)
        return
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


@leave_alone
def _refuse_unknown_shapes(stage: Any, *_: Any) -> None:
    """An older torch, in which a stage sends its shapes to the next as objects."""
    raise UsageError(
        f"stage {stage.stage_index} of the pipeline learns its shapes from another rank, which cannot be simulated "
        f"with torch {torch.__version__}: give PipelineStage input_args and output_args, or use a newer torch"
    )


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
        self.sharded: list[Any] = []
        """Groups of parameters of ``fully_shard``."""
        self.pipelines: list[Any] = []
        """Schedules of pipelines."""
        self.axes: set[str] = set()
        """The axes of the mesh on which it asked for its place."""
        self.asked_rank: str | None = None
        """The line that asked for the number of its rank among all, where one did."""

    def state(self) -> tuple[Any, ...]:
        """The state that a first step may change, so that the next step runs differently."""
        return len(self.replicas), [group._sharded_state for group in self.sharded]


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
    counted(sys.modules[SHARDED].FSDPParamGroup, building.sharded.append)
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
