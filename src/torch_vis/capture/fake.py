"""Fake tensors for a run without numbers: each real tensor is replaced by one of the same shape, memory and device.

The user's tensors stay as they are. A mode above the recorder hands each operation a twin of every real tensor: a fake
tensor whose memory is as large, shared by as many views, and alive for as long. So the recorder sees the program that
would have run, and nothing of it is computed. What the program changes on the way (gradients, the optimizer's state,
attributes of modules) is put back at the end, also after an exception.
"""

from __future__ import annotations

import gc
import inspect
import logging
import math
import os
import sys
import traceback
import weakref
from collections.abc import Callable, Mapping
from contextlib import suppress
from functools import cache, partial
from types import FrameType, TracebackType
from typing import Any, NamedTuple, cast

import torch
from torch._subclasses import meta_utils
from torch._subclasses.fake_tensor import (
    DataDependentOutputException,
    DynamicOutputShapeException,
    FakeTensor,
    FakeTensorMode,
    UnsupportedFakeTensorException,
    UnsupportedOperatorException,
)
from torch.utils import _pytree as pytree
from torch.utils._python_dispatch import TorchDispatchMode

from torch_vis.capture.compilers.interpreter import ProgramRun
from torch_vis.capture.compilers.program import Subgraph
from torch_vis.capture.fake_ranks import (
    Building,
    Ready,
    StageShapes,
    as_ranks_see,
    fake_rank,
    flat_shards,
    make_optimizer_state,
    talk,
    until_ready,
    watched,
)
from torch_vis.capture.known_numbers import (
    MISSING,
    MOST_ELEMENTS,
    KnownNumbers,
    RememberedShapes,
    answers,
    assumption,
    numbers_for_python,
)
from torch_vis.capture.modes import (
    kept_after_interrupt,
    modes_aside,
    push_mode,
    with_gradients,
    without_gradients,
)
from torch_vis.capture.recording.dispatch_mode import is_wrapper
from torch_vis.capture.recording.source_lines import TORCH, kind_of, leave_alone, resolve
from torch_vis.capture.recording.user_functions import held_modules
from torch_vis.capture.session import Capture, CapturedRun, name_inputs
from torch_vis.capture.state import StateSnapshot, is_lazy
from torch_vis.capture.undo import Context, HeldSignals, Turn, Undo, context, undo_in_child
from torch_vis.errors import CaptureFailed, UsageError
from torch_vis.graph.graph import GraphBuilder
from torch_vis.graph.metrics import Metrics
from torch_vis.graph.run import Limit, Run
from torch_vis.graph.schema import Site
from torch_vis.ops.higher_order import TABLE
from torch_vis.ops.schemas import numbers_as_tensors

CPU = torch.device("cpu")
MODULES = tuple(os.path.join(TORCH, part) + os.sep for part in ("nn", "optim", "ao", "amp"))
INPLACE_OR_VIEW = torch._C.DispatchKey.ADInplaceOrView
is_excluded = torch._C._dispatch_tls_is_dispatch_key_excluded
DEVICE_OF = torch.ops.prim.device.default
DETACH, LIFT_FRESH = torch.ops.aten.detach.default, torch.ops.aten.lift_fresh.default
# types of arguments that hold no tensor and name no device
LITERALS = frozenset(
    {int, float, bool, complex, str, type(None), torch.dtype, torch.layout, torch.memory_format}
)
NUMBERS_NEEDED = (DataDependentOutputException, DynamicOutputShapeException)
# what DistributedDataParallel's reducer, in C++, says to gradients without numbers
REDUCER = ("expected the hook result is either", "its data is not allocated yet")
WITHOUT_DATA = ("FakeTensor", ".numpy() is not supported", "data pointer", *REDUCER)
# what torch says to a tensor of others, as a DTensor is, that lies on the meta device itself
HALF_THERE = 'to a storage on different device "meta"'
DESCRIBED = meta_utils.__file__
# the method of a mode, in which all operations run
DISPATCH = "__torch_dispatch__"
# how torch says that a device has no kernel of an operation
NO_KERNEL = "Could not run"
UNSUPPORTED = (UnsupportedFakeTensorException, UnsupportedOperatorException)

# What is put back at the end is all that there is, that of another such run too.
_turn = Turn()
_alone = context(_turn.take)


class FakeTensors(Context["FakeTensors"]):
    """A stretch without numbers: ``below`` and ``above`` are the modes on either side of the recorder's."""

    def __init__(self, assume: Mapping[str, str] | None = None, *, shapes: StageShapes | None = None) -> None:
        self.below = ShapesOnly(assumption(assume))
        self.twins = FakeTwins(self.below)
        # raised where torch asks a fake tensor for its device, an exception ends the process
        self.held = HeldSignals()
        self.above = TwinMode(self.twins, self.held)
        self._shapes = shapes

    @property
    def limits(self) -> list[str]:
        """What the shapes leave open."""
        return [*self.below.corrections.limits, *self.below.known.limits]

    def _begin(self, undo: Undo) -> FakeTensors:
        undo_in_child(undo)
        _turn.take(undo)
        undo.enter(self.held)
        undo.enter(kept_after_interrupt())
        before = undo.enter(StateSnapshot.of_everything(moved=True))
        before.note_objects(flat_shards(before.owners))
        # A fake tensor of an absent device that gets a gradient ends the process before any mode is asked.
        for tensor in before.tensors:
            self.twins.note_from_outside(tensor)
            if is_lazy(tensor):
                self.twins.lazy[id(tensor)] = weakref.ref(tensor)
            if isinstance(tensor, FakeTensor):
                if tensor.requires_grad:
                    refuse_absent(tensor.fake_device)
            elif (tensor.is_meta or _is_flat(tensor)) and not is_lazy(tensor):
                # its own class is put back with everything else
                tensor.__class__ = on_cpu(type(tensor))
        undo.add(torch.clear_autocast_cache)  # its fake casts would be used after this run
        undo.enter(_as_foreach_sees())
        undo.enter(_as_modules_convert(self.below.known))
        undo.enter(_as_transformers_sees(self.twins))
        undo.enter(numbers_for_python(self.below.known, self.twins.of))
        undo.enter(as_ranks_see(self, self._shapes))
        undo.enter(_quiet())
        push_mode(undo, self.below)
        return self

    def _ended(self, error: BaseException | None) -> None:
        traceback = None if error is None else error.__traceback__
        if error is not None and (
            needs_numbers(error) or HALF_THERE in str(error) or has_no_rule(error, traceback)
        ):
            raise _explained(error, traceback) from error


class ShapesOnly(FakeTensorMode):
    """Torch's fake mode, but an operation that returns one of its arguments returns that very tensor.

    Where all arguments are known numbers, torch computes the result and gives back a new tensor in their place. Where
    torch's rule is not what the kernel does, the kernel is right.
    """

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        # saves a wrapper on every operation
        return False

    def __init__(self, assume: str | None = None) -> None:
        super().__init__(allow_non_fake_inputs=True)
        self.corrections = Corrections()
        self.known = KnownNumbers(self, assume)
        self.remembered = RememberedShapes(self)

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Run one operation on shapes, and on the numbers where they are known."""
        if func is DEVICE_OF and type(args[0]) is FakeTensor:
            return args[0].device
        if func is LIFT_FRESH and self.is_our_fake(args[0]):
            return args[0]  # as it is with real tensors
        known = self.known
        kwargs = kwargs or {}
        plan = known.plans.get(id(func)) or known.plan(func)
        if plan.is_bookkeeping:
            return func(*args, **kwargs)
        if plan.by_numbers:
            out = known.answer(func, args, kwargs, lambda *a, **k: self._on_shapes(func, types, a, k))
            if out is not MISSING:
                return out
        if plan.composite:
            # torch's mode would remember by shapes what depends on numbers
            with self:
                out = func.decompose(*args, **kwargs)
            if out is not NotImplemented:
                return out
        if plan.talks:
            return talk(known, func, args, lambda: self._on_shapes(func, types, args, kwargs))
        out = self._on_shapes(func, types, args, kwargs)
        if type(out) is FakeTensor and out.constant is not None:
            real, out.constant = out.constant, None
            known.give(out, real)
        elif plan.followed or plan.written:
            known.follow(plan, func, args, kwargs, out)
        if plan.draws:
            known.draw(func, args, kwargs, out)
        return out

    def _on_shapes(self, func: Any, types: Any, args: Any, kwargs: Any) -> Any:
        rule = INSTEAD.get(func)
        out = None if rule is None else rule(*args, **kwargs)
        if out is None:
            out = self._dispatched(func, types, args, kwargs)
        if isinstance(out, tuple):
            schema = getattr(func, "_schema", None)
            if schema is None:
                return out
            return self.corrections.afterwards(func, args, _masked(schema, args, kwargs, out))
        if not isinstance(out, torch.Tensor):
            return out
        returned = _returned(func)
        if returned is None:
            return out
        position, name = returned
        return args[position] if position < len(args) else kwargs.get(name, out)

    def _dispatched(self, func: Any, types: Any, args: Any, kwargs: Any) -> Any:
        """What torch's mode gives, and gave before for the same."""
        key = self.remembered.key(func, args, kwargs)
        if key is None:
            return self.dispatch(func, types, args, kwargs)
        out = self.remembered.make(key, args)
        if out is MISSING:
            before = answers()
            out = self.dispatch(func, types, args, kwargs)
            # one answer from torch's memory and nothing else: not an operation inside that it remembered
            if answers() == (before[0] + 1, before[1]) or (
                # or one that gives what it gives by shapes, and has made none of its arguments larger
                self.remembered.follows_shapes(func) and self.remembered.key(func, args, kwargs) == key
            ):
                self.remembered.learn(key, func, args, out)
        return out


@cache
def _returned(func: Any) -> tuple[int, str] | None:
    """The argument that an operator writes and returns, by position and name; None where it returns something else."""
    schema = getattr(func, "_schema", None)
    if schema is None or not schema.is_mutable:
        return None
    written = schema.returns[0].alias_info
    if written is None or not written.is_write:
        return None
    for position, argument in enumerate(schema.arguments):
        if argument.alias_info is not None and argument.alias_info.before_set == written.before_set:
            return position, argument.name
    return None


def _masked(schema: Any, args: Any, kwargs: Any, out: tuple[Any, ...]) -> tuple[Any, ...]:
    """Leave out the gradients that were not asked for, which some of torch's rules for shapes make all the same."""
    last = schema.arguments[-1].name if schema.arguments else ""
    if last != "output_mask":
        return out
    mask = kwargs.get(last, args[-1] if len(args) == len(schema.arguments) else None)
    if not isinstance(mask, (list, tuple)) or len(mask) != len(out):
        return out
    return tuple(item if wanted else None for item, wanted in zip(out, mask))


class FakeTwins:
    """The fake tensors that stand for real ones: one for each tensor, on memory of their own for each block."""

    def __init__(self, world: ShapesOnly) -> None:
        self.world = world
        self._tensors: dict[int, tuple[weakref.ref[Any], FakeTensor, tuple[Any, ...]]] = {}
        self._storages: dict[int, tuple[weakref.ref[Any], torch.UntypedStorage]] = {}
        # addresses of the memory of twins
        self._own: dict[int, weakref.ref[Any]] = {}
        # memory without numbers that was there before this world, by address
        self._outside: dict[int, weakref.ref[Any]] = {}
        # parameters that had no shape at first: the memory that they get is of this world already
        self.lazy: dict[int, weakref.ref[torch.Tensor]] = {}
        # copies of what lay in the memory that twins stand for; the memory of a twin ends when nothing else holds it
        self._copies: dict[int, tuple[weakref.ref[Any], torch.UntypedStorage, list[bool]]] = {}

    def of(self, tensor: torch.Tensor) -> torch.Tensor:
        """The twin of a tensor; a fake tensor of this world is its own."""
        if isinstance(tensor, FakeTensor) and tensor.fake_mode is self.world:
            return tensor
        key = id(tensor)
        known = self._tensors.get(key)
        layout = self._layout(tensor)
        if known is not None and known[0]() is tensor and known[2] == layout:
            return known[1]
        twin = self._twin(tensor, layout)
        # a function in C: an interrupt inside one in Python would be lost
        forget: Any = partial(self._tensors.pop, key)
        self._tensors[key] = (weakref.ref(tensor, forget), twin, layout)
        return twin

    def memory_of(self, storage: torch.UntypedStorage) -> torch.UntypedStorage:
        """The memory that stands for some of the user's; of a twin it is its own."""
        address = storage._cdata
        known = self._storages.get(address)
        if known is not None and known[0]() is not None:
            return known[1]
        if address in self._own or (storage.device.type == "meta" and address not in self._outside):
            return storage
        return self._new_memory(storage, address, storage.nbytes())

    def note_from_outside(self, tensor: torch.Tensor) -> None:
        """Know the memory of a tensor that was there before; one of shapes alone looks like those of this world."""
        if tensor.device.type == "meta" or isinstance(tensor, FakeTensor):
            try:
                storage = tensor.untyped_storage()
            except (RuntimeError, NotImplementedError):
                return
            # another block may lie there once it is gone
            forget: Any = partial(self._outside.pop, storage._cdata)
            self._outside[storage._cdata] = weakref.ref(storage, forget)

    def _new_memory(self, storage: torch.UntypedStorage, address: int, size: int) -> torch.UntypedStorage:
        memory = torch.UntypedStorage(size, device="meta")
        own = memory._cdata
        # functions in C; that of weakref.finalize is not
        forget: Any = partial(self._own.pop, own)
        self._own[own] = weakref.ref(memory, forget)
        forget = partial(self._storages.pop, address)
        self._storages[address] = (weakref.ref(storage, forget), memory)
        return memory

    def _layout(self, tensor: torch.Tensor) -> tuple[Any, ...]:
        """What changes when a tensor is given other memory or another geometry."""
        try:
            storage = tensor.untyped_storage()
            return storage._cdata, storage.nbytes(), tensor.shape, tensor.stride(), tensor.storage_offset()
        except (RuntimeError, NotImplementedError):
            return (None,)

    def _twin(self, tensor: torch.Tensor, layout: tuple[Any, ...]) -> FakeTensor:
        device = CPU if tensor.device.type == "meta" else tensor.device
        refuse_absent(device)
        with torch._C._DisableTorchDispatch(), torch._C.DisableTorchFunctionSubclass(), without_gradients():
            if layout == (None,) or tensor.layout is not torch.strided or tensor.is_quantized:
                return self.world.from_tensor(tensor.detach())
            shape = torch.empty(0, dtype=tensor.dtype, device="meta")
            shape.set_(self._memory(tensor, layout), layout[4], layout[2], layout[3])
            twin = FakeTensor(self.world, shape, device)
            self._tell_numbers(tensor, layout, twin)
        return twin

    def _tell_numbers(self, tensor: torch.Tensor, layout: tuple[Any, ...], twin: FakeTensor) -> None:
        """Let a twin have the numbers of its tensor, if a program may decide by them: a mask, a step count."""
        known = self.world.known
        if isinstance(tensor, FakeTensor):
            if tensor.constant is not None:
                known.give(twin, tensor.constant.detach().clone())
            return
        if tensor.untyped_storage().device.type != "cpu" or tensor.numel() > MOST_ELEMENTS:
            return
        if tensor.dtype.is_floating_point or tensor.dtype.is_complex:
            if tensor.numel() == 1:
                known.give(twin, tensor.detach().clone())
            return
        address, size, shape, stride, offset = layout
        if size > 8 * MOST_ELEMENTS:
            return
        memory = self._memory(tensor, layout)
        known_copy = self._copies.get(address)
        # another block may lie where one lay that is gone
        if known_copy is None or known_copy[0]() is not memory:
            known_copy = self._copies[address] = (
                weakref.ref(memory),
                tensor.untyped_storage().clone(),
                [True],
            )
        _, copy, valid = known_copy
        known.give(twin, torch.empty(0, dtype=tensor.dtype).set_(copy, offset, shape, stride), valid)

    def _memory(self, tensor: torch.Tensor, layout: tuple[Any, ...]) -> torch.UntypedStorage:
        address, size = layout[:2]
        lazy = self.lazy.get(id(tensor))
        if lazy is not None and lazy() is tensor:
            return tensor.untyped_storage()
        known = self._storages.get(address)
        if known is not None and known[0]() is not None and known[1].nbytes() == size:
            return known[1]
        return self._new_memory(tensor.untyped_storage(), address, size)


class TwinMode(TorchDispatchMode):
    """Hands every operation of this thread the twins of its arguments."""

    supports_higher_order_operators = True

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        # saves a wrapper on every operation
        return False

    def __init__(self, twins: FakeTwins, held: HeldSignals) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.twins = twins
        self.held = held
        self._wrappers: dict[type, bool] = {}

    def substitute(self, tensor: torch.Tensor) -> torch.Tensor:
        """The twin of a tensor."""
        return self.twins.of(tensor)

    def memory_of(self, storage: torch.UntypedStorage) -> torch.UntypedStorage:
        """The memory of the twins of tensors on some memory."""
        return self.twins.memory_of(storage)

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Pass one operation on to the recorder."""
        if func is DEVICE_OF:  # asked from where an exception would end the process
            return args[0].fake_device if isinstance(args[0], FakeTensor) else func(*args)
        self.held.deliver()
        for kind in types:
            wrapper = self._wrappers.get(kind)
            if wrapper is None:
                wrapper = self._wrappers[kind] = is_wrapper(kind)
            if wrapper:
                return NotImplemented
        if func is DETACH and not is_excluded(INPLACE_OR_VIEW):
            # torch's own shallow copy, a call only because a mode is there: autograd has not been passed on the way
            if is_lazy(args[0]):  # which has no shape, and so no twin, before it gets one
                with modes_aside():
                    return func(args[0])
            with modes_aside(), self.twins.world:
                return func(self.twins.of(args[0]))
        world = self.twins.world
        args = numbers_as_tensors(func, args)
        for item in args:
            if type(item) not in LITERALS and not (type(item) is FakeTensor and item.fake_mode is world):
                args = tuple(self._stand_ins(item) for item in args)
                break
        if not kwargs:
            return func(*args)
        return func(*args, **{name: self._stand_ins(item) for name, item in kwargs.items()})

    def _stand_ins(self, item: Any) -> Any:
        """An argument with the twins of all tensors in it."""
        kind = type(item)
        if kind in LITERALS:
            return item
        if kind is list or kind is tuple:
            return kind(self._stand_ins(part) for part in item)
        if isinstance(item, (torch.Tensor, torch.device)):
            return self._stand_in(item)
        return pytree.tree_map(self._stand_in, item)

    def _stand_in(self, item: Any) -> Any:
        if isinstance(item, torch.Tensor):
            return self.twins.of(item)
        if isinstance(item, torch.device):
            refuse_absent(item)
            return CPU if item.type == "meta" else item
        return item


# as those of the recorder
for _method in (ShapesOnly.__torch_dispatch__, ShapesOnly._on_shapes, TwinMode.__torch_dispatch__):
    leave_alone(_method)


@context
def _as_foreach_sees(undo: Undo) -> None:
    """Let optimizers and clipping choose their kernels for many tensors at once as they would for real ones."""
    from torch.utils._foreach_utils import _foreach_supported_types as supported

    before = list(supported)
    undo.add(supported.__setitem__, slice(None), before)
    supported.extend([FakeTensor, *(on_cpu(kind) for kind in before)])


@context
def _as_modules_convert(undo: Undo, known: KnownNumbers) -> None:
    """Let ``module.to(dtype)`` change parameters of shapes alone in place, as it changes real ones.

    Torch would swap them with others, and refuses where anything refers to them weakly, as its own fake mode does.
    """
    original: Any = torch.utils.swap_tensors

    @leave_alone
    def swap(t1: torch.Tensor, t2: torch.Tensor) -> None:
        if not (isinstance(t1, FakeTensor) and isinstance(t2, FakeTensor)):
            original(t1, t2)
            return
        number = known.of(t2)
        known.forget(t1)
        t1.data = t2
        t1.fake_device = t2.fake_device
        if number is not None:
            known.give(t1, number)

    undo.set(torch.utils, "swap_tensors", swap)


def _is_flat(tensor: torch.Tensor) -> bool:
    """Whether a tensor has the shards of many: FSDP gives it other data, of shapes alone here, and asks where it is."""
    return "_is_flat_param" in tensor.__dict__ and not isinstance(tensor, FakeTensor)


@cache
def on_cpu(kind: type[torch.Tensor]) -> type[torch.Tensor]:
    """A subclass of a tensor class whose tensors say that they are on the CPU.

    Tensors of a model on the meta device get it for as long as the run lasts. What asks them where they are (fused
    optimizers, checkpointing, ``x.to(weight.device)``) then goes the way that it goes for the twins.
    """
    answers: dict[str, Any] = {
        "__module__": kind.__module__,
        "__qualname__": kind.__qualname__,
        "__doc__": kind.__doc__,
        "__slots__": (),
        "device": property(lambda tensor: CPU),
        "is_meta": property(lambda tensor: False),
        "is_cpu": property(lambda tensor: True),
    }
    if kind in (torch.Tensor, torch.nn.Buffer):
        # or each operation on a subclass would be asked by its class first
        answers["__torch_function__"] = torch._C._disabled_torch_function_impl
    metaclass: Any = type(kind)
    changed: type[torch.Tensor] = metaclass(kind.__name__, (kind,), answers)
    return changed


@context
def _as_transformers_sees(undo: Undo, twins: FakeTwins) -> None:
    """Let transformers look at masks and positions as it does in a real run.

    It asks whether a tensor is fake, and if so makes masks that it would otherwise leave out. Where the numbers are
    known it is told no; where they are not, it is told yes, and ``limits`` says which line asked.
    """
    module: Any = sys.modules.get("transformers.utils.import_utils")
    original = getattr(module, "is_fake_tensor", None)
    if original is None:
        return

    def is_fake_tensor(x: Any) -> bool:
        if not isinstance(x, torch.Tensor) or is_wrapper(type(x)):
            return bool(original(x))
        if x.is_floating_point():
            return False
        known = twins.world.known
        twin = twins.of(x)
        if isinstance(twin, FakeTensor) and known.of(twin) is not None:
            return False
        known.note_unknown(_line_outside(sys._getframe(1)))
        return True

    undo.add(setattr, module, "is_fake_tensor", original)
    module.is_fake_tensor = is_fake_tensor


def _line_outside(frame: FrameType | None) -> Site | None:
    """The line that runs, outside of what asks on behalf of others."""
    while frame is not None and frame.f_code.co_name in ("is_tracing", "is_fake_tensor"):
        frame = frame.f_back
    return None if frame is None else resolve(frame.f_code, frame.f_lasti)


@context
def _quiet(undo: Undo) -> None:
    """Leave out the page that torch logs of an operation that fails, before it raises: the error says it as well."""

    def passes(record: logging.LogRecord) -> bool:
        return not str(record.msg).startswith("failed while attempting to run meta")

    log = logging.getLogger("torch._subclasses.fake_tensor")
    undo.add(log.removeFilter, passes)
    log.addFilter(passes)


def refuse_absent(device: torch.device) -> None:
    """Raise for a device that this build of torch lacks: autograd on its fake tensors ends the whole process."""
    if device.type == "cuda" and not torch.cuda.is_available():
        raise UsageError(
            f"the run uses {device}, and torch cannot follow fake tensors of a device that is not there; trace it on "
            "a machine with CUDA, or with the model on the CPU or the meta device"
        )


def needs_numbers(error: BaseException) -> bool:
    """Whether torch says, by type or in its own words, that a fake tensor has no data."""
    if isinstance(error, RuntimeError) and any(words in str(error) for words in WITHOUT_DATA):
        return True
    return isinstance(error, NUMBERS_NEEDED)


def has_no_rule(error: BaseException, traceback: TracebackType | None) -> bool:
    """Whether torch does not know the shapes that an operation gives."""
    if isinstance(error, UNSUPPORTED) or (isinstance(error, RuntimeError) and "no fake impl" in str(error)):
        return True
    in_operation = False
    while traceback is not None and traceback.tb_next is not None:
        in_operation |= traceback.tb_frame.f_code.co_name == DISPATCH
        traceback = traceback.tb_next
    file = "" if traceback is None else traceback.tb_frame.f_code.co_filename
    if file == DESCRIBED and isinstance(error, RuntimeError):
        return True  # what an operation gave is no tensor that can be fake: a nested one of an encoder's fast path
    if not file.startswith(TORCH) or not isinstance(error, (NotImplementedError, AssertionError)):
        return False
    # modules, functions and optimizers of torch say so of wrong arguments as well, of real tensors too
    return in_operation or file.startswith(os.path.dirname(DESCRIBED)) or NO_KERNEL in str(error)


def _explained(error: BaseException, traceback: TracebackType | None) -> CaptureFailed:
    site = _last_line(traceback)
    where = f"at {site}, " if site is not None else ""
    func = getattr(error, "func", None)
    what = f"{func}" if func is not None else "the program"
    if needs_numbers(error):
        if any(words in str(error) for words in REDUCER):
            return CaptureFailed(
                f"{where}backward exchanges gradients in C++, as DistributedDataParallel does, and a fake run has "
                "shapes only; trace the module inside (model.module), or trace without fake=True"
            )
        return CaptureFailed(
            f"{where}{what} needs the numbers in a tensor, and a fake run has shapes only; decide by shapes there, or "
            "trace without fake=True; if a router of experts chooses there, give assume={'tokens': 'balanced'}"
        )
    if HALF_THERE in str(error):
        return CaptureFailed(
            f"{where}a tensor made of others, as a DTensor is, lies on the meta device, where a fake run cannot follow "
            "it; build the model in tv.simulate(make, …), also with torch.device('meta'), or on the CPU"
        )
    message = (str(error).strip().splitlines() or [type(error).__name__])[0]
    return CaptureFailed(
        f"{where}{what} runs an operation that torch knows no shapes for ({message}); trace without fake=True, or, "
        "if it is yours, register its shapes with torch.library.register_fake"
    )


def _last_line(traceback: TracebackType | None) -> Site | None:
    """The innermost line of the user's that an exception passed through, or else of a module of torch's."""
    of_user = of_torch = None
    while traceback is not None:
        code = traceback.tb_frame.f_code
        if kind_of(code).user:
            of_user = resolve(code, traceback.tb_lasti)
        elif code.co_filename.startswith(MODULES):
            of_torch = resolve(code, traceback.tb_lasti)
        traceback = traceback.tb_next
    return of_user or of_torch


aten = torch.ops.aten
HALVES = (torch.bfloat16, torch.float16)
GROUPED = (*HALVES, torch.float32)  # precisions of the kernel
PAGE = 4096  # oneDNN starts each part of a workspace on a page
LINE = 64  # and each row in it on a cache line
SAMPLE = (3, 16, 300, 70)  # steps, batch, features and units that tell the parts of a workspace apart
WORKSPACE_LIMIT = Limit(
    "what oneDNN keeps of an LSTM for its backward pass is an estimate: the rule for its size does not hold on this "
    "machine",
    kind="memory",
)


class Corrections:
    """The rules of one fake run, and what had to be left open (``limits``)."""

    def __init__(self) -> None:
        self.limits: list[str] = []

    def afterwards(self, func: Any, args: tuple[Any, ...], out: tuple[Any, ...]) -> tuple[Any, ...]:
        """What torch's rule gives, corrected."""
        rule = AFTERWARDS.get(func)
        if rule is None or args[0].device.type != "cpu":
            return out
        if rule is _recurrent and not workspace_rule_holds(args[0].dtype):
            if WORKSPACE_LIMIT not in self.limits:
                self.limits.append(WORKSPACE_LIMIT)
        return rule(args, out)


# ---------------------------------------------------------------- oneDNN's LSTM


def workspace_bytes(steps: int, batch: int, features: int, units: int, itemsize: int) -> int:
    """Bytes that oneDNN keeps of one layer and direction of an LSTM: gates and states of all steps, in whole pages.

    >>> workspace_bytes(20, 64, 32, 64, 4)
    5160960
    """
    wide, rows, states = max(features, units), steps * batch, 2 * (steps + 1) * batch
    parts = (
        rows * _row_bytes(4 * units, itemsize),
        rows * _row_bytes(units, itemsize),
        states * _row_bytes(wide, itemsize),
        states * _row_bytes(wide, 4),  # gradients are in single precision
        states * _row_bytes(wide, 4),
        states * units * itemsize,
        states * units * 4,
    )
    return sum(-(-part // PAGE) * PAGE for part in parts)


def _row_bytes(size: int, itemsize: int) -> int:
    """A row filled up to whole cache lines; one line more where rows would fall into the same places of a cache."""
    line = LINE // itemsize
    filled = -(-size // line) * line
    return (filled + line if filled % 256 == 0 else filled) * itemsize


@cache
def workspace_rule_holds(dtype: torch.dtype) -> bool:
    """Whether the kernel of this machine keeps what the rule says, seen from one small run."""
    steps, batch, features, units = SAMPLE
    with (
        modes_aside(),
        torch._C._DisableTorchDispatch(),
        torch._C._DisableAutocast(),
        with_gradients(),
    ):
        shapes = (
            (steps, batch, features),
            (4 * units, features),
            (4 * units, units),
            (4 * units,),
            (4 * units,),
            (batch, units),
            (batch, units),
        )
        tensors = [torch.zeros(shape, dtype=dtype, device="cpu") for shape in shapes]
        flags: tuple[Any, ...] = (False, [], 2, units, 1, True, False, False, True)
        try:
            kept = aten.mkldnn_rnn_layer.default(*tensors, *flags)[3]
        except RuntimeError:
            return False
        return bool(kept.numel() == workspace_bytes(*SAMPLE, dtype.itemsize))


def _recurrent(args: tuple[Any, ...], out: tuple[Any, ...]) -> tuple[Any, ...]:
    """Torch's rule forgets the workspace; the kernel keeps one wherever a gradient may be asked for."""
    if not torch.is_grad_enabled():
        return (*out[:3], None)
    (steps, batch, features), units = args[0].shape, args[10]
    size = workspace_bytes(steps, batch, features, units, args[0].dtype.itemsize)
    return (*out[:3], out[3].new_empty(size))


def _recurrent_backward(args: tuple[Any, ...], out: tuple[Any, ...]) -> tuple[Any, ...]:
    """Each bias has a gradient of its own, where torch's rule gives one tensor for both."""
    return (*out[:4], torch.empty_like(out[4]), *out[5:])


# ---------------------------------------------------------------- norms of half precision


def _statistics(args: tuple[Any, ...], out: tuple[Any, ...]) -> tuple[Any, ...]:
    """Means and deviations are in single precision if the weights are, as under autocast."""
    if args[0].dtype not in HALVES or not any(_is_single(item) for item in args[1:]):
        return out
    return (out[0], *(part.new_empty(part.shape, dtype=torch.float32) for part in out[1:3]), *out[3:])


def _group_norm_backward(args: tuple[Any, ...], out: tuple[Any, ...]) -> tuple[Any, ...]:
    """The gradient of the input is as precise as the input."""
    if out[0] is None or out[0].dtype == args[1].dtype:
        return out
    return (torch.empty_like(out[0], dtype=args[1].dtype), *out[1:])


def _is_single(item: Any) -> bool:
    return isinstance(item, torch.Tensor) and item.dtype == torch.float32


# ---------------------------------------------------------------- products of groups of rows


def _grouped_mm(
    a: torch.Tensor,
    b: torch.Tensor,
    offs: torch.Tensor | None = None,
    bias: torch.Tensor | None = None,
    out_dtype: torch.dtype | None = None,
) -> torch.Tensor | None:
    """Torch's rule is that of a CUDA kernel for bfloat16; the CPU's takes other precisions as well."""
    if a.device.type != "cpu" or a.dtype not in GROUPED or a.dtype != b.dtype or bias is not None:
        return None
    flat = a.dim() == 2, b.dim() == 2
    if (a.shape[-1] != b.shape[-2] and not all(flat)) or (offs is None) != (flat == (False, False)):
        return None
    if not (_is_aligned(a) and _is_aligned(b)):
        raise RuntimeError("_grouped_mm: strides should be multiple of 16 bytes")
    rows, columns = a.shape[-2], b.shape[-1]
    stack = {(True, True): offs, (False, False): a}.get(flat)
    dtype = out_dtype or a.dtype
    step = 16 // dtype.itemsize
    width = -(-columns // step) * step  # between rows, so that each starts at a multiple of 16 bytes
    if stack is None:
        return a.new_empty_strided((rows, columns), (width, 1), dtype=dtype)
    return a.new_empty_strided((stack.shape[0], rows, columns), (rows * width, width, 1), dtype=dtype)


def _is_aligned(matrix: torch.Tensor) -> bool:
    across, along = matrix.stride()[-2:]
    step = 16 // matrix.dtype.itemsize
    return (along if across == 1 and along >= max(1, matrix.shape[-2]) else across) % step == 0


# what an operation gives where torch's rule refuses what the kernel does; None to ask torch
INSTEAD: dict[Any, Callable[..., Any]] = {aten._grouped_mm.default: _grouped_mm}
AFTERWARDS: dict[Any, Callable[[tuple[Any, ...], tuple[Any, ...]], tuple[Any, ...]]] = {
    aten.mkldnn_rnn_layer.default: _recurrent,
    aten.mkldnn_rnn_layer_backward.default: _recurrent_backward,
    aten.native_layer_norm.default: _statistics,
    aten.native_group_norm.default: _statistics,
    aten.native_batch_norm.default: _statistics,
    aten._native_batch_norm_legit.default: _statistics,
    aten._batch_norm_with_update.default: _statistics,
    aten.native_group_norm_backward.default: _group_norm_backward,
}


FAKE_LIMIT = Limit(
    "shapes only: no numbers were computed, the times are those of working out shapes, and a program that looks at "
    "values before it decides (a mask of ones that is left out) may go another way than it would with them",
    kind="shapes",
)
SUBGRAPH_LIMIT = Limit(
    "a subgraph of a captured program, worked out on shapes: no numbers were computed, and the times mean nothing",
    kind="shapes",
)


def fake_run(
    model: Callable[..., Any],
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
    backward: bool,
    loss: Callable[[Any], Any] | None,
    *,
    functions: bool = False,
    partial: bool = False,
    assume: Mapping[str, str] | None = None,
) -> CapturedRun:
    """Run a model without numbers."""
    with FakeTensors(assume) as fake:
        modules = [model] if isinstance(model, torch.nn.Module) else []
        known = held_modules(model) if not modules else {}
        capture = Capture(*modules, keep=False, functions=functions, substitutes=fake.above, known=known)
        capture.inputs = name_inputs(model, args, kwargs)
        capture.run(lambda: model(*args, **kwargs), backward=backward, loss=loss, partial=partial)
        captured = capture.finish()
    run = captured.run
    run.meta.update(backward=backward or loss is not None, fake=True)
    run.limits += (*fake.limits, FAKE_LIMIT)
    return captured


def run_subgraph(subgraph: Subgraph) -> CapturedRun:
    """Run a subgraph alone: what a branch that was not taken would do."""
    module = subgraph.module
    assert module is not None
    names = [node.name for node in module.graph.nodes if node.op == "placeholder"]
    try:
        with FakeTensors() as fake:
            capture = Capture(keep=False, substitutes=fake.above)
            capture.inputs = [(n, i) for n, i in zip(names, subgraph.inputs) if isinstance(i, torch.Tensor)]
            capture.has_output = True
            with capture:
                capture.output = ProgramRun(capture, on_shapes=True).interpret(module, *subgraph.inputs)
            captured = capture.finish()
    except CaptureFailed as error:
        raise UsageError(
            f"{subgraph.name} goes its way by numbers, and a subgraph is worked out on shapes, which have none"
        ) from error
    run = captured.run
    run.meta.update(fake=True, model=subgraph.name)
    called = {str(node.target) for node in module.graph.nodes if node.op == "call_function"}
    undecided = [row.without_numbers for name, row in TABLE.items() if row.without_numbers and name in called]
    run.limits += (SUBGRAPH_LIMIT, *(Limit(text, kind="shapes") for text in undecided))
    return captured


# ---------------------------------------------------------------- one rank of a simulated world


class NoStep(UsageError):
    """The function that builds a rank returned no step: None means an impossible layout."""


class SimulatedRun(NamedTuple):
    """One simulated rank: its run, and what the program asked about its place among the ranks."""

    run: Run
    building: Building


def simulated_run(
    make: Callable[[Any], Any],
    batch: Any,
    mesh: Mapping[str, int],
    rank: int,
    *,
    shapes: StageShapes,
    assume: Mapping[str, str] | None = None,
    prepare: Callable[[Any], None] | None = None,
    record: bool = True,
) -> SimulatedRun:
    """Run a step as one rank of a mesh by shapes: ``make(mesh)`` builds it, ``batch`` is what it is called with.

    It is a step from the middle of a training: the optimizers have their state, gradients their buckets, stages their
    shapes. ``prepare`` gets the step before it runs; without ``record`` only the shapes of a pipeline are worked out.
    """
    from torch.distributed.device_mesh import init_device_mesh

    building = Building()
    # cycles that the run before has left would be noted as if they were the program's
    gc.collect()
    with _alone(), fake_rank(rank, math.prod(mesh.values())):
        # before modules of torch's are patched
        layout = init_device_mesh("cpu", tuple(mesh.values()), mesh_dim_names=tuple(mesh))
        axes = {frozenset(torch.distributed.get_process_group_ranks(layout.get_group(a))): a for a in mesh}
        with watched(building, axes if len(mesh) > 1 else {}), FakeTensors(assume, shapes=shapes) as fake:
            with _with_mode(fake.above):
                step = _made(make, layout, batch)
                if prepare is not None:
                    prepare(step)
                for optimizer in building.optimizers if record else ():
                    make_optimizer_state(optimizer)
                _warm_up(step, batch, building)
            if not record:
                return SimulatedRun(Run(GraphBuilder().build(), Metrics()), building)
            for _ in range(2):
                # what building left in cycles would be freed at some time during the step, or not at all
                gc.collect()
                before = building.state()
                capture = Capture(keep=False, substitutes=fake.above, known=held_modules(step))
                capture.inputs = name_inputs(step, (batch,), {}) if batch is not None else []
                capture.run(_called(step, batch), backward=False, loss=None, partial=False)
                run = capture.finish().run
                if building.state() == before:
                    break
                # only now is it as in the middle: replicas are made, parameters stay whole where nothing shards them
                with _with_mode(fake.above):
                    _rebuild_buckets(building)
    run.meta.update(fake=True, simulated=True)
    run.limits += (*fake.limits, FAKE_LIMIT)
    return SimulatedRun(run, building)


def _made(make: Callable[[Any], Any], layout: Any, batch: Any) -> Callable[..., Any]:
    """The step that ``make`` gives for a mesh."""
    from torch.distributed import device_mesh

    try:
        step = make(layout)
    except KeyError as error:
        *_, (frame, _) = traceback.walk_tb(error.__traceback__)
        if frame.f_code.co_filename != device_mesh.__file__:
            raise
        axes = ", ".join(layout.mesh_dim_names)
        raise UsageError(
            f"make(mesh) asks for an axis that the mesh does not have, only {axes}: {error.args[0]}"
        ) from error
    if not callable(step):
        raise NoStep(f"make(mesh) gives the step, a callable of the batch, not {type(step).__name__}")
    try:
        # the outermost callable alone: a decorator may give what is inside it more
        inspect.signature(step, follow_wrapped=False).bind(*([] if batch is None else [batch]))
    except TypeError as error:
        if batch is None:
            text = f"the step that make(mesh) gives is called without a batch, and that does not fit: {error}"
        else:
            text = f"the step that make(mesh) gives is called with the batch alone, and that does not fit: {error}"
        raise UsageError(text) from None
    except ValueError:
        # nothing is known of how it is called
        pass
    return cast("Callable[..., Any]", step)


def _called(step: Callable[..., Any], batch: Any) -> Callable[[], Any]:
    return step if batch is None else lambda: step(batch)


@context
def _with_mode(undo: Undo, mode: Any) -> None:
    push_mode(undo, mode)


def _warm_up(step: Callable[..., Any], batch: Any, building: Building) -> None:
    """Do what only the first step does: pipelines learn their shapes, replicas and flat shards the order of layers."""
    if building.pipelines:
        with suppress(Ready), until_ready():
            _called(step, batch)()
    elif building.replicas or any(getattr(model, "forward_prefetch", False) for model in building.flat):
        _called(step, batch)()
        _rebuild_buckets(building)


def _rebuild_buckets(building: Building) -> None:
    for model in building.replicas:
        model.reducer._rebuild_buckets()
