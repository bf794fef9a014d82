"""The dispatch mode that records every operation: the code that runs once per operation is all here."""

from __future__ import annotations

import ctypes
import sys
from typing import Any, NamedTuple

import torch
from torch.utils._python_dispatch import (
    TorchDispatchMode,
    _get_dispatch_stack_at,
    _len_torch_dispatch_stack,
)

from torch_vis.capture.kept_tensors import RngState, python_part
from torch_vis.capture.recording.collectives import land_read, run_collective, run_wait_tensor
from torch_vis.capture.recording.op_plan import OpPlan, eager_kernel
from torch_vis.capture.recording.opaque_nodes import record_fill
from torch_vis.capture.recording.recorder import (
    ACCUMULATE,
    FORWARD,
    SEED,
    UNNUMBERED,
    CallForms,
    Recorder,
    current_autograd_node,
    flat_tensors,
    get_ident,
    sequence_number,
)
from torch_vis.capture.recording.source_lines import CodeInfo, leave_alone
from torch_vis.capture.recording.tensors import (
    Tensor,
    Unrecordable,
    look_at_lent,
    note_made_from_python,
    take_written,
)
from torch_vis.ops.higher_order import INLINED
from torch_vis.ops.schemas import numbers_as_tensors

getframe = sys._getframe
grad_enabled = torch.is_grad_enabled
# how the name of the profiler's range of ``zero_grad()`` begins, which frees gradients without an operation
ZEROING = "Optimizer.zero_grad#"
# stands for a tensor in the key by which equal calls are recognised
SLOT = object()
# types of arguments that go into that key as they are
KEY_LITERALS = frozenset({int, type(None), str, torch.dtype, torch.device, torch.layout, torch.memory_format})


class RecordMode(TorchDispatchMode):
    """Records every operation that this thread dispatches, in the log of a recorder."""

    supports_higher_order_operators = True

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        # saves a wrapper on every operation
        return False

    @classmethod
    def ignore_compile_internals(cls) -> bool:
        # or compiled functions called under the mode would stay eager after it
        return True

    def __init__(self, recorder: Recorder) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.recorder = recorder

    # One function, for speed: it takes some three microseconds, and a call of a function that returns several things
    # a tenth of one. Only what is rare is moved out.
    #
    #   step    works out                                               from
    #   ------  ------------------------------------------------------  ---------------------------------
    #   where   the user's source line, the function of torch's called  the frames on the stack
    #   what    the call template, the values that are read or written  the arguments
    #   run     the results and the time, exactly as without us         the operator's own kernel
    #   whose   scope, backward node, the values that were made         recorder, autograd, the results
    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Record one operation; the operation itself runs exactly as it would have."""
        rec = self.recorder
        clock = rec.clock
        entered = clock()
        plan = rec.plans.get(id(func))
        if plan is None:
            plan = rec.plan(func)
        if plan.skip or rec.closed:
            return self._run_unrecorded(plan, args, kwargs)
        if types and plan.is_detach and types[0] in (Tensor, torch.nn.Parameter):
            # torch's own shallow copy, a call only because a mode is there
            with torch._C._DisableTorchDispatch():
                out = plan.run(*args)
            rec.shallow_copies += 1
            rec.overhead += clock() - entered
            return out
        for tensor_type in types:
            wrapper = rec.wrapper_types.get(tensor_type)
            if wrapper is None:
                wrapper = rec.wrapper_types[tensor_type] = is_wrapper(tensor_type)
            if wrapper:
                return NotImplemented
        if rec.open_steps and get_ident() in rec.open_steps:
            rec.end_lost_step(get_ident(), getframe())
        if plan.is_special:
            if not plan.takes_storage:
                return self._run_special(plan, args, kwargs or {})
            func, args = storage_as_tensor(args)
            plan = rec.plans.get(id(func)) or rec.plan(func)

        # ---- where: the first frame of the user's; a thread of the autograd engine has none at all
        library_codes = rec.library_codes
        site = caller = -1
        function = None
        seeding = False
        frame: Any = getframe().f_back
        while frame is not None:
            code = frame.f_code
            if id(code) not in library_codes:
                info = rec.codes.get(id(code))
                if info is None:
                    # and look at it again
                    rec.new_code(code)
                    continue
                if info.left_out:
                    return self._run_left_out(info, plan, args, kwargs)
                if info.seeding:
                    seeding = True
                elif info.caller >= 0:
                    caller = info.caller
                elif info.function is not None and function is None:
                    function = info
                if info.user:
                    known_site = info.sites.get(frame.f_lasti)
                    site = rec.new_site(info, frame.f_lasti) if known_site is None else known_site
                    break
            elif caller < 0:
                callers = library_codes[id(code)]
                if callers is not None:
                    caller = callers.get(frame.f_lasti, -1)
                    if caller < 0:
                        caller = callers[frame.f_lasti] = rec.new_caller(code, frame.f_lasti)
            frame = frame.f_back

        # ---- what: the call template, and the values in its slots
        seen = rec.seen
        tensor_types = rec.tensor_types
        key: list[Any] = []
        numbers: list[int] = []
        try:
            arg: Any
            for arg in args:
                arg_type = type(arg)
                if arg_type in tensor_types:
                    entry = seen.get(id(arg))
                    if (
                        entry is None
                        or entry() is not arg
                        or (entry.address and entry.address != arg.untyped_storage()._cdata)  # type: ignore[union-attr]
                    ):
                        entry = rec.add_external(arg)
                    numbers.append(entry.number)
                    key.append(SLOT)
                elif arg_type is int or arg is None:
                    key.append(arg)
                elif arg_type is float:
                    key.append((arg_type, arg or repr(arg)))  # 0.0 and -0.0 are equal, and different calls
                elif arg_type is list and arg and type(arg[0]) is int and not plan.mixes_numbers:
                    key.append((arg_type, len(arg)))
                    key += arg
                else:
                    self._add_argument(arg, arg_type, key, numbers)
            if kwargs:
                for name, arg in kwargs.items():
                    key.append(name)
                    self._add_argument(arg, type(arg), key, numbers)
            else:
                kwargs = {}
        except Unrecordable:
            return plan.run(*args, **(kwargs or {}))
        try:
            call = plan.calls.get(tuple(key))
        except TypeError:
            key, call = None, None  # type: ignore[assignment]
        if call is None:
            with_tensors = numbers_as_tensors(func, args)
            if with_tensors is not args:
                return self.__torch_dispatch__(func, types, with_tensors, kwargs)
            call = rec.new_call(plan, None if key is None else tuple(key), args, kwargs)
        writes = rec.calls[call].writes
        written: list[Tensor] = []
        if writes:
            tensors = list(flat_tensors((*args, *kwargs.values())))
            if rec.keep:
                rec.copy_before_write(tensors, writes)
            written = [tensors[slot] for slot in writes]
        rng_before = generator_state(args, kwargs) if plan.random and rec.keep else None
        if not plan.is_view and (rec.pending or rec.uninitialized or rec.lent):
            numbers = self._numbers_after_unseen_writes(call, numbers, args, kwargs)

        # ---- run: the operation itself
        try:
            if plan.is_hop and (name := plan.name.rpartition("::")[2]) in INLINED:
                return self.run_higher_order(plan, name, args, kwargs)
            started = clock()
            if rec.foreign_types and not plan.is_hop:
                with torch._C.DisableTorchFunctionSubclass():
                    out = plan.run(*args, **kwargs)
            else:
                out = plan.run(*args, **kwargs) if kwargs else plan.run(*args)
        except Exception:
            # the program may go on, another way than where it does not raise
            rec.raised.append((plan.name, numbers, site))
            raise
        ended = clock()
        if rec.closed:
            return out
        if rec.lent and written:
            take_written(rec, written)
        if plan.lifts and rec.keep:
            note_made_from_python(rec, args[0], site)

        # ---- whose: scope, backward node, thread, and the values that were made
        thread = get_ident()
        grad_node = current_autograd_node()
        sequence = sequence_number()
        if rec.user_functions is not None and (grad_node is None or thread in rec.user_functions.in_backward):
            rec.user_functions.follow(thread)
        if function is not None and grad_node is None:
            scope = rec.function_scope(function, sequence, thread)
        else:
            scope = rec.current.get(thread, 0)
        # the operation's number in the graph, and the producer of the values that it makes
        node = next(rec.node_numbers)
        if rec.dead:
            rec.note_deaths()
        rec.count = node + 1
        backward = FORWARD
        # an operation that has a number has a row, with as much of it as an interrupt lets us note
        try:
            if grad_node is None:
                backward = SEED if seeding else FORWARD
            else:
                backward = grad_node._sequence_nr()
                if backward >= UNNUMBERED:
                    backward = ACCUMULATE
                    rec.grad_writes.note(grad_node, plan.name, args, numbers, node)
            if written:
                self._add_written(writes, written, out, numbers, node)
            elif type(out) is Tensor:
                numbers.append(rec.add(out, node))
            elif out is not None:
                for tensor in flat_tensors((out,)):
                    numbers.append(rec.add(tensor, node))
            if plan.uninitialized:
                rec.uninitialized[numbers[-1]] = node
            if rng_before is not None:
                keep_rng_state(rec, rng_before, node)
            if plan.escape and numbers:
                rec.python_escapes.append((plan.name, numbers[0], site, node))
                rec.kept.python_values[node] = python_part(out)
        finally:
            # a row of the log, as recorder.py describes it
            rec.log += (
                12 + len(numbers), node, call, scope, site, sequence, backward, thread, grad_enabled(),
                started, ended, caller, *numbers,
            )  # fmt: skip
        spent = clock() - entered - (ended - started)
        rec.overhead += spent
        rec.regular.append(spent - rec.irregular)
        rec.irregular = 0
        return out

    def _add_argument(self, arg: Any, arg_type: type, key: list[Any], numbers: list[int]) -> None:
        """Add an argument that is not a plain positional tensor or integer to the key of a call."""
        if arg_type in KEY_LITERALS:
            key.append(arg)
        elif arg_type is float:
            key.append((arg_type, arg or repr(arg)))
        elif arg_type is complex:
            # 0, 0j and -0j are equal
            key.append((arg_type, repr(arg)))
        elif arg_type is bool:
            key.append((arg_type, arg))
        elif arg_type is list or arg_type is tuple:
            key.append((arg_type, len(arg)))
            if arg and {*map(type, arg)} == {int}:
                key += arg
            else:
                for part in arg:
                    self._add_argument(part, type(part), key, numbers)
        elif isinstance(arg, Tensor):
            rec = self.recorder
            rec.tensor_types.add(arg_type)
            tensor_type: Any = arg_type
            if tensor_type.__torch_function__ is not torch._C._disabled_torch_function_impl:
                rec.foreign_types = True
            numbers.append(rec.number_of(arg))
            key.append(SLOT)
        elif isinstance(arg, dict):
            key.append((arg_type, tuple(arg)))
            for part in arg.values():
                self._add_argument(part, type(part), key, numbers)
        elif arg_type is torch.ScriptObject:
            # a packed weight: made anew for each call, and cannot be compared; its hash is the address of what it
            # stands for, which its call keeps alive
            key.append((arg_type, hash(arg)))
        else:
            key.append(arg)

    def _add_written(
        self, slots: tuple[int, ...], written: list[Tensor], out: Any, numbers: list[int], node: int
    ) -> None:
        """Number the new versions of the tensors that an operation wrote, then the other tensors that it returned."""
        rec = self.recorder
        if rec.uninitialized:
            for slot in slots:
                rec.uninitialized.pop(numbers[slot], None)
        for tensor in written:
            numbers.append(rec.add(tensor, node))
            rec.note_write(tensor, node)
        for tensor in flat_tensors((out,)):
            if not any(tensor is other for other in written):
                numbers.append(rec.add(tensor, node))

    def _run_unrecorded(self, plan: OpPlan, args: Any, kwargs: Any) -> Any:
        """Run bookkeeping that is no operation, or what comes after the end; note where gradients are zeroed."""
        if args and type(args[0]) is str and args[0].startswith(ZEROING):
            self.recorder.zeroed.append(self.recorder.count)
        return plan.run(*args, **(kwargs or {}))

    def _run_left_out(self, info: CodeInfo, plan: OpPlan, args: Any, kwargs: Any) -> Any:
        """Run an operation that is not recorded.

        Inside code that a compiler generated its neighbours are invisible. What DTensor runs on fake tensors, to learn
        the shape of the whole tensor, is no work of the program.
        """
        self.recorder.uncaptured["compiled"] += info.compiled
        return plan.run(*args, **(kwargs or {}))

    def _run_special(self, plan: OpPlan, args: Any, kwargs: Any) -> Any:
        """Run an operation that talks to other ranks, waits for them, or is Python inside."""
        frame = getframe().f_back
        site, in_engine, left_out = self.recorder.called_from(frame)
        if left_out:
            return plan.run(*args, **kwargs)
        if plan.inlined is not None:
            with self:
                return plan.inlined(*args, **kwargs)
        if plan.collective is not None:
            return run_collective(self.recorder, plan, args, kwargs, (site, in_engine, frame))
        return run_wait_tensor(self.recorder, plan, args, kwargs, (site, in_engine, frame))

    def _numbers_after_unseen_writes(
        self, call: int, numbers: list[int], args: Any, kwargs: Any
    ) -> list[int]:
        """The values that an operation reads, once what others wrote into them without an operation is noted.

        Another rank may have sent something there, code that cannot be seen may have filled it, and Python may have
        written through memory that it shares.
        """
        rec = self.recorder
        if rec.pending and land_read(rec, list(flat_tensors((*args, *kwargs.values())))):
            numbers = [rec.number_of(tensor) for tensor in flat_tensors((*args, *kwargs.values()))]
        if rec.uninitialized and rec.keep:
            self._record_fills(call, numbers, args, kwargs)
        if rec.lent:
            look_at_lent(rec, flat_tensors((*args, *kwargs.values())))
        return numbers

    def _record_fills(self, call: int, numbers: list[int], args: Any, kwargs: Any) -> None:
        """Record who filled memory that is read though no operation wrote to it: code that cannot be seen."""
        rec = self.recorder
        info = rec.calls[call]
        tensors: list[Tensor] | None = None
        for slot, number in enumerate(numbers):
            if number not in rec.uninitialized or slot in info.writes or slot in info.shape_only:
                continue
            if tensors is None:
                tensors = list(flat_tensors((*args, *kwargs.values())))
            numbers[slot] = record_fill(rec, tensors[slot], number)

    def run_higher_order(self, plan: OpPlan, name: str, args: Any, kwargs: Any) -> Any:
        """Run a higher-order operator's own eager kernel with the mode on, so that what it calls is recorded."""
        kernel = eager_kernel(plan.func)
        rec = self.recorder
        thread = get_ident()
        number = rec.enter(rec.module_number(plan.func, name, name, "operator"), thread)
        try:
            with self:
                return kernel(*args, **kwargs)
        finally:
            rec.leave(number, thread)


class TaskMode(RecordMode):
    """As ``RecordMode``, for a recording inside an asyncio task: what other tasks of the thread do is not recorded."""

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Record one operation if it is of the task."""
        rec = self.recorder
        if rec.is_here():
            return super().__torch_dispatch__(func, types, args, kwargs)
        plan = rec.plans.get(id(func)) or rec.plan(func)
        # torch's own shallow copy, which a mode below must not take for an operation
        if types and plan.is_detach and types[0] in (Tensor, torch.nn.Parameter):
            with torch._C._DisableTorchDispatch():
                return plan.run(*args)
        return plan.run(*args, **(kwargs or {}))


# Dynamo must not compile what runs once per operation or call
for _method in (
    RecordMode.__torch_dispatch__,
    CallForms.before_call,
    CallForms.after_call,
    TaskMode.__torch_dispatch__,
    Recorder.note_deaths,
    Recorder.enter,
    Recorder.leave,
    Recorder.module_number,
    Recorder.end_lost_step,
):
    leave_alone(_method)


def recorders_here() -> list[Recorder]:
    """The recorders whose modes are on in this thread, outermost first."""
    recorders = []
    for index in range(_len_torch_dispatch_stack()):
        mode = _get_dispatch_stack_at(index)
        if isinstance(mode, RecordMode) and mode.recorder.is_here():
            recorders.append(mode.recorder)
    return recorders


def is_wrapper(kind: type) -> bool:
    """Whether a tensor type is a wrapper whose own dispatch must run, so that the operations inside it are seen."""
    if kind.__name__ == "FakeTensor" or getattr(kind, "__torch_dispatch__", None) is None:
        return False
    handler = kind.__torch_dispatch__  # type: ignore[attr-defined]
    return getattr(handler, "__func__", handler) not in (
        torch._C._disabled_torch_dispatch_impl,
        getattr(Tensor.__torch_dispatch__, "__func__", Tensor.__torch_dispatch__),
    )


def storage_as_tensor(args: Any) -> tuple[Any, Any]:
    """``set_`` from a bare storage as the same ``set_`` from a tensor on that storage, which the graph can connect."""
    target, storage, *geometry = args
    with torch._C._DisableTorchDispatch():
        source = torch.empty(0, dtype=target.dtype, device=target.device).set_(storage)
    if not geometry:
        geometry = [0, list(source.shape), list(source.stride())]
    elif len(geometry) == 2:
        geometry.append(torch.empty(geometry[1], device="meta").stride())
    return torch.ops.aten.set_.source_Tensor_storage_offset, (target, source, *geometry)


# ---------------------------------------------------------------- random generators


class GeneratorState(NamedTuple):
    """A generator that an operation is about to draw from, and its state before."""

    generator: Any
    device: str
    state: torch.Tensor
    content: bytes  # of the state, to compare


def generator_state(args: tuple[Any, ...], kwargs: dict[str, Any]) -> GeneratorState | None:
    """The generator that a random operation is about to draw from; None on a device whose generator is not known."""
    generator = kwargs.get("generator") or next(
        (arg for arg in args if isinstance(arg, torch.Generator)), None
    )
    name = "cpu"
    if generator is None:
        device = kwargs.get("device")
        if device is None:
            device = next((arg.device for arg in args if isinstance(arg, Tensor)), "cpu")
        device = torch.device(device)
        if device.type == "cuda":
            index = torch.cuda.current_device() if device.index is None else device.index
            generator = torch.cuda.default_generators[index]
            name = f"cuda:{index}"
        elif device.type == "cpu":
            generator = torch.default_generator
        else:
            return None
    state = generator.get_state()
    return GeneratorState(generator, name, state, _content(state))


def keep_rng_state(rec: Recorder, before: GeneratorState, node: int) -> None:
    """After an operation has drawn: keep the state from before, if it is not what the last random one left behind."""
    generator, device, state, content = before
    if rec.rng_states.get(generator) != content:
        is_default = generator is torch.default_generator or device != "cpu"
        rec.kept.rng_states[node] = RngState(None if is_default else generator, device, state)
    rec.rng_states[generator] = _content(generator.get_state())


def _content(state: torch.Tensor) -> bytes:
    """A generator's state, read without an operation."""
    return ctypes.string_at(state.data_ptr(), state.numel())
