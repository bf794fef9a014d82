"""The dispatch mode that notes every operation: the code that runs once per operation is all here."""

from __future__ import annotations

import ctypes
import sys
from typing import Any, NamedTuple

import torch
from torch.utils._python_dispatch import TorchDispatchMode

from torch_vis.capture.kept_tensors import RngState
from torch_vis.capture.recording import opaque_nodes as unseen
from torch_vis.capture.recording.op_plan import Plan, eager_kernel
from torch_vis.capture.recording.recorder import (
    ACCUMULATE,
    FORWARD,
    SEED,
    UNNUMBERED,
    Recorder,
    current_autograd_node,
    flat_tensors,
    get_ident,
    sequence_number,
)
from torch_vis.capture.recording.source_lines import leave_alone
from torch_vis.capture.recording.tensors import Tensor, Unrecordable
from torch_vis.ops.higher_order import INLINED

getframe = sys._getframe
grad_enabled = torch.is_grad_enabled
SLOT = object()
LITERALS = frozenset({int, type(None), str, torch.dtype, torch.device, torch.layout, torch.memory_format})


class RecordMode(TorchDispatchMode):
    """Sends every operation of this thread to a recorder."""

    supports_higher_order_operators = True

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        return False  # saves a wrapper on every operation

    @classmethod
    def ignore_compile_internals(cls) -> bool:
        return True  # or compiled functions called under the mode would stay eager after it

    def __init__(self, recorder: Recorder) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.recorder = recorder

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Note one operation; the operation itself runs exactly as it would have."""
        rec = self.recorder
        clock = rec.clock
        entered = clock()
        plan = rec.plans.get(id(func))
        if plan is None:
            plan = rec.plan(func)
        if plan.skip or rec.closed:
            return plan.run(*args, **(kwargs or {}))
        if types and plan.is_detach and types[0] in (Tensor, torch.nn.Parameter):
            with (
                torch._C._DisableTorchDispatch()
            ):  # torch's own shallow copy, a call only because a mode is there
                return plan.run(*args)
        for kind in types:
            wrapper = rec.wrapper_types.get(kind)
            if wrapper is None:
                wrapper = rec.wrapper_types[kind] = is_wrapper(kind)
            if wrapper:
                return NotImplemented

        if rec.steps and get_ident() in rec.steps:
            rec.end_lost_step(get_ident(), getframe())
        if plan.takes_storage:
            func, args = storage_as_tensor(args)
            plan = rec.plans.get(id(func)) or rec.plan(func)

        # where: the first frame of the user's
        boring = rec.boring
        site = -1
        function = None
        seeding = False
        frame: Any = getframe().f_back  # none at all on a thread of the autograd engine's
        while frame is not None:
            code = frame.f_code
            if id(code) not in boring:
                info = rec.codes.get(id(code)) or rec.new_code(code)
                if info.compiled:
                    return self._unseen(plan, args, kwargs)
                if info.seeding:
                    seeding = True
                elif info.function is not None and function is None:
                    function = info
                if info.user:
                    found = info.sites.get(frame.f_lasti)
                    site = rec.new_site(info, frame.f_lasti) if found is None else found
                    break
            frame = frame.f_back

        # what: the call template, and the values in its slots
        seen = rec.seen
        tensor_types = rec.tensor_types
        key: list[Any] = []
        numbers: list[int] = []
        try:
            arg: Any
            for arg in args:
                kind = type(arg)
                if kind in tensor_types:
                    entry = seen.get(id(arg))
                    if (
                        entry is None
                        or entry() is not arg
                        or (entry.address and entry.address != arg.untyped_storage()._cdata)  # type: ignore[union-attr]
                    ):
                        entry = rec.meet(arg)
                    numbers.append(entry.number)
                    key.append(SLOT)
                elif kind is int or arg is None:
                    key.append(arg)
                elif kind is float:
                    key.append((kind, arg or repr(arg)))
                elif kind is list and arg and type(arg[0]) is int:
                    key.append((kind, len(arg)))
                    key += arg
                else:
                    self._other(arg, kind, key, numbers)
            if kwargs:
                for name, arg in kwargs.items():
                    key.append(name)
                    self._other(arg, type(arg), key, numbers)
            else:
                kwargs = {}
        except Unrecordable:
            return plan.run(*args, **(kwargs or {}))
        try:
            call = plan.calls.get(tuple(key))
        except TypeError:
            key, call = None, None  # type: ignore[assignment]
        if call is None:
            call = rec.new_call(plan, None if key is None else tuple(key), args, kwargs)
        writes = rec.calls[call].writes
        written: list[Tensor] = []
        if writes:
            tensors = list(flat_tensors((*args, *kwargs.values())))
            if rec.keep:
                rec.save_originals(tensors, writes)
            written = [tensors[slot] for slot in writes]
        seed = drawn_from(args, kwargs) if plan.random and rec.keep else None

        if rec.blank and rec.keep and not plan.is_view:
            self._fill_blanks(call, numbers, args, kwargs)
        if plan.is_hop:
            name = plan.name.rpartition("::")[2]
            if name in INLINED:
                return self._higher_order(plan, name, args, kwargs)
            started = clock()
            out = plan.run(*args, **kwargs)
        else:
            started = clock()
            if rec.foreign:
                with torch._C.DisableTorchFunctionSubclass():
                    out = plan.run(*args, **kwargs)
            else:
                out = plan.run(*args, **kwargs) if kwargs else plan.run(*args)
        ended = clock()
        if rec.closed:
            return out

        # whose: module, autograd node, thread
        thread = get_ident()
        node = current_autograd_node()
        sequence = sequence_number()
        if rec.declared is not None and (node is None or thread in rec.declared.again):
            rec.declared.follow(thread)
        if function is not None and node is None:
            scope = rec.function_scope(function, sequence, thread)
        else:
            scope = rec.current.get(thread, 0)
        birth = next(rec.node_numbers)
        rec.count = birth + 1
        if node is None:
            backward = SEED if seeding else FORWARD
        else:
            backward = node._sequence_nr()
            if backward >= UNNUMBERED:
                backward = ACCUMULATE
                rec.gradients.wrote(node, plan.name, args, numbers, birth)
        if written:
            if rec.blank:
                for slot in writes:
                    rec.blank.pop(numbers[slot], None)
            for tensor in written:
                numbers.append(rec.note(tensor, birth))
                rec.check_size(tensor, birth)
            for tensor in flat_tensors((out,)):
                if not any(tensor is other for other in written):
                    numbers.append(rec.note(tensor, birth))
        elif type(out) is Tensor:
            numbers.append(rec.note(out, birth))
        elif out is not None:
            for tensor in flat_tensors((out,)):
                numbers.append(rec.note(tensor, birth))
        if plan.blank:
            rec.blank[numbers[-1]] = birth
        if seed is not None:
            keep_state(rec, seed, birth)
        if plan.escape:
            rec.escapes.append((plan.name, numbers[0], site, birth))
            rec.kept.python_values[birth] = out
        rec.log += (
            11 + len(numbers),
            birth,
            call,
            scope,
            site,
            sequence,
            backward,
            thread,
            grad_enabled(),
            started,
            ended,
            *numbers,
        )
        rec.overhead += clock() - entered - (ended - started)
        return out

    def _other(self, arg: Any, kind: type, key: list[Any], numbers: list[int]) -> None:
        """Note an argument that is not a plain positional tensor or integer."""
        if kind in LITERALS:
            key.append(arg)
        elif kind is float:
            key.append((kind, arg or repr(arg)))
        elif kind is bool:
            key.append((kind, arg))
        elif kind is list or kind is tuple:
            key.append((kind, len(arg)))
            if arg and type(arg[0]) is int:
                key += arg
            else:
                for part in arg:
                    self._other(part, type(part), key, numbers)
        elif isinstance(arg, Tensor):
            rec = self.recorder
            rec.tensor_types.add(kind)
            own: Any = kind
            if own.__torch_function__ is not torch._C._disabled_torch_function_impl:
                rec.foreign = True
            numbers.append(rec.number_of(arg))
            key.append(SLOT)
        elif isinstance(arg, dict):
            key.append((kind, tuple(arg)))
            for part in arg.values():
                self._other(part, type(part), key, numbers)
        elif kind is torch.ScriptObject:  # a packed weight: made anew for each call, and cannot be compared
            key.append((kind, hash(arg)))  # the address of what it stands for, which its call keeps alive
        else:
            key.append(arg)

    def _unseen(self, plan: Plan, args: Any, kwargs: Any) -> Any:
        """Run an operation inside code that a compiler generated: its neighbours are invisible, so it is left out."""
        rec = self.recorder
        rec.unseen["compiled"] = rec.unseen.get("compiled", 0) + 1
        return plan.run(*args, **(kwargs or {}))

    def _fill_blanks(self, call: int, numbers: list[int], args: Any, kwargs: Any) -> None:
        """Before memory without contents is read: if no operation wrote to it, code that cannot be seen did."""
        rec = self.recorder
        info = rec.calls[call]
        tensors: list[Tensor] | None = None
        for slot, number in enumerate(numbers):
            if number not in rec.blank or slot in info.writes or slot in info.shape_only:
                continue
            if tensors is None:
                tensors = list(flat_tensors((*args, *kwargs.values())))
            numbers[slot] = unseen.fill(rec, tensors[slot], number)

    def _higher_order(self, plan: Plan, name: str, args: Any, kwargs: Any) -> Any:
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


leave_alone(RecordMode.__torch_dispatch__)
for _method in (
    Recorder._dead,
    Recorder._opaque_dead,
    Recorder.enter,
    Recorder.leave,
    Recorder.module_number,
    Recorder.end_lost_step,
):
    leave_alone(_method)


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


class GeneratorState(NamedTuple):
    """A generator that an operation is about to draw from, and how it was found."""

    generator: Any
    device: str
    state: torch.Tensor
    content: bytes


def drawn_from(args: tuple[Any, ...], kwargs: dict[str, Any]) -> GeneratorState | None:
    """The generator that a random operation is about to draw from; None on a device whose generator is not known."""
    generator = kwargs.get("generator")
    device = "cpu"
    if generator is None:
        found = kwargs.get("device")
        if found is None:
            tensors = [arg for arg in args if isinstance(arg, torch.Tensor)]
            found = tensors[0].device if tensors else torch.device("cpu")
        found = torch.device(found)
        if found.type == "cuda":
            index = torch.cuda.current_device() if found.index is None else found.index
            generator = torch.cuda.default_generators[index]
            device = f"cuda:{index}"
        elif found.type == "cpu":
            generator = torch.default_generator
        else:
            return None
    state = generator.get_state()
    return GeneratorState(generator, device, state, _bytes(state))


def keep_state(rec: Recorder, found: GeneratorState, node: int) -> None:
    """After an operation has drawn: keep the state that it found, where that was not left by the one before."""
    generator, device, state, content = found
    if rec.random_states.get(generator) != content:
        default = generator is torch.default_generator or device != "cpu"
        rec.kept.rng_states[node] = RngState(None if default else generator, device, state)
    rec.random_states[generator] = _bytes(generator.get_state())


def _bytes(state: torch.Tensor) -> bytes:
    """A generator's state, read without an operation."""
    return ctypes.string_at(state.data_ptr(), state.numel())
