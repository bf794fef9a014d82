"""The recorder: one dispatch mode that notes every operation as a flat tuple of numbers.

Everything here runs once per operation, so it only looks things up and appends. What is appended holds no tensor and,
but for a few interned tables, nothing the garbage collector has to visit. ``assemble`` makes a graph of it afterwards.
"""

from __future__ import annotations

import ctypes
import itertools
import sys
import threading
import time
import weakref
from typing import Any, NamedTuple

import torch
from torch.nn.parameter import UninitializedTensorMixin
from torch.utils._python_dispatch import TorchDispatchMode

from torch_vis.capture.operators import INLINED, Plan
from torch_vis.capture.sites import Code, resolve
from torch_vis.capture.templates import encode
from torch_vis.graph.rows import Site, TensorType
from torch_vis.graph.template import Call
from torch_vis.held import Held, Seed

current_autograd_node = torch._C._current_autograd_node
sequence_number = torch._C._autograd._get_sequence_nr
grad_enabled = torch.is_grad_enabled
get_ident = threading.get_ident
clock = time.perf_counter_ns
getframe = sys._getframe
Tensor = torch.Tensor
ref = weakref.ref

SLOT = object()
QUANTIZED = frozenset({torch.qint8, torch.quint8, torch.qint32, torch.quint4x2, torch.quint2x4})


class Unrecordable(Exception):
    """An operation on something that is no tensor yet, such as a lazy parameter being given its shape."""


class StorageRef(weakref.ref):  # type: ignore[type-arg]
    """A weak reference to a block of memory that knows its number, address and size."""

    __slots__ = ("address", "number", "size")
    address: int
    number: int
    size: int


class CallInfo(NamedTuple):
    """A call template and what it means for the dataflow."""

    call: Call
    slots: int
    writes: tuple[int, ...]
    overwrites: frozenset[int]
    shape_only: frozenset[int]
    plan: Plan


class Recorder:
    """What a run has done so far: the log of operations and the tables that the log refers to."""

    def __init__(self, *, keep: bool) -> None:
        self.keep = keep
        self.held = Held()
        self.log: list[tuple[int, ...]] = []
        self.plans: dict[int, Plan] = {}
        self.calls: list[CallInfo] = []
        self.codes: dict[int, Code] = {}
        self.sites: list[Site] = []
        self.types: dict[Any, int] = {}
        self.type_rows: list[TensorType] = []
        self.type_opaque: list[bool] = []
        self.seen: dict[int, tuple[Any, int, int | None]] = {}
        self.values: list[tuple[int, int, int, int]] = []
        self.value_numbers = itertools.count()
        self.storages: dict[int, StorageRef] = {}
        self.storage_rows: list[tuple[int, int, int, int]] = []
        self.storage_numbers = itertools.count()
        self.resizes: list[tuple[int, int, int]] = []
        self.devices: dict[torch.device, int] = {}
        self.deaths: list[tuple[int, int]] = []
        self.opaque_refs: dict[int, Any] = {}
        self.outside: set[int] = set()
        self.dirty: set[int] = set()
        self.external_refs: dict[int, Any] = {}
        self.aliases: list[int] = []
        self.scopes: list[list[int]] = [[0, -1, clock(), 0, 0, 0]]
        self.current: dict[int, int] = {}
        self.modules: list[tuple[Any, str, str, str]] = [(None, "", "run", "run")]
        self.function_scopes: dict[tuple[int, int, int], int] = {}
        self.random_states: dict[Any, bytes] = {}
        self.escapes: list[tuple[str, int, int, int]] = []
        self.opaque_nodes: list[int] = []
        self.blank: dict[int, int] = {}
        self.fill_call = -1
        self.unseen: dict[str, int] = {}
        self.tensor_types: set[type] = {Tensor, torch.nn.Parameter}
        self.wrapper_types: dict[type, bool] = {}
        self.overhead = 0
        self.module_numbers: dict[int, int] = {}

    # ---------------------------------------------------------------- tensors

    def meet(self, tensor: Tensor) -> tuple[Any, int, int | None]:
        """Note a tensor that was not made by a recorded operation: from outside, or an alias torch made unseen."""
        known = self.seen.get(id(tensor))
        before = len(self.storage_rows)
        number = self.note(tensor, -1)
        if known is not None and known[0]() is tensor and known[2] is not None:
            self.unseen["reassigned"] = self.unseen.get("reassigned", 0) + 1
        if len(self.storage_rows) > before:
            self._hold(tensor, number)
            if current_autograd_node() is not None:
                self.unseen["appeared"] = self.unseen.get("appeared", 0) + 1
        else:
            self.aliases.append(number)
        return self.seen[id(tensor)]

    def _hold(self, tensor: Tensor, number: int) -> None:
        storage_number = self.values[-1][1] if self.values[-1][0] == number else self._storage_of(number)
        self.outside.add(storage_number)
        self.external_refs[number] = ref(tensor)
        if not self.keep:
            return
        entry = self.seen[id(tensor)]
        if entry[2] is None:
            self.held.opaque[number] = tensor
        else:
            self.held.storages[storage_number] = tensor.untyped_storage()

    def _storage_of(self, number: int) -> int:
        return next(row[1] for row in reversed(self.values) if row[0] == number)

    def note(self, tensor: Tensor, birth: int) -> int:
        """Number a new version of a tensor; ``birth`` is the operation that makes it, -1 if none does."""
        try:
            storage = tensor.untyped_storage()
            address = storage._cdata
            key = (tensor.shape, tensor.stride(), tensor.dtype, tensor.is_conj(), tensor.is_neg())
            offset = tensor.storage_offset()
        except (RuntimeError, NotImplementedError):
            return self._note_opaque(tensor, birth)
        kind = self.types.get(key)
        if kind is None:
            kind = self._new_type(tensor, key)
        if self.type_opaque[kind]:
            return self._note_opaque(tensor, birth)
        known = self.storages.get(address)
        if known is None:
            size = storage.nbytes()
            if tensor._is_zerotensor() or (not size and tensor.numel()):
                return self._note_opaque(tensor, birth)  # a tensor that is known to be zero has no memory
            known = StorageRef(storage, self._dead)
            known.number = next(self.storage_numbers)
            known.address = address
            known.size = size
            self.storages[address] = known
            self.storage_rows.append((known.number, known.size, birth, self._device(tensor.device)))
        number = next(self.value_numbers)
        self.values.append((number, known.number, offset, kind))
        self.seen[id(tensor)] = (ref(tensor), number, address)
        return number

    def check_size(self, tensor: Tensor, node: int) -> None:
        """Note that a write made a block of memory larger or smaller."""
        address = self.seen[id(tensor)][2]
        if address is None:
            return
        known, size = self.storages[address], tensor.untyped_storage().nbytes()
        self.dirty.add(known.number)
        if size != known.size:
            self.resizes.append((known.number, size, node))
            known.size = size

    def _note_opaque(self, tensor: Tensor, birth: int) -> int:
        if isinstance(tensor, UninitializedTensorMixin):
            raise Unrecordable
        layout = str(tensor.layout).removeprefix("torch.")
        if layout == "strided":
            layout = "zero"
        if tensor.dtype in QUANTIZED:
            layout = "quantized"
        elif tensor.is_nested:
            layout = "nested"
        try:
            shape = tuple(int(size) for size in tensor.shape)
        except RuntimeError:  # a nested tensor has no one shape
            shape = ()
        key = (shape, layout, tensor.dtype)
        kind = self.types.get(key)
        if kind is None:
            kind = self.types[key] = len(self.type_rows)
            self.type_opaque.append(True)
            self.type_rows.append(TensorType(str(tensor.dtype).removeprefix("torch."), shape, (), layout))
        known = self.seen.get(id(tensor))
        if known is not None and known[0]() is tensor and known[2] is None:
            storage_number = self._storage_of(known[1])
        else:
            storage_number = next(self.storage_numbers)
            self.storage_rows.append((storage_number, 0, birth, self._device(tensor.device)))
            deaths, log = self.deaths, self.log
            watch = ref(tensor, lambda _: deaths.append((storage_number, len(log))))
            self.opaque_refs[storage_number] = watch
        number = next(self.value_numbers)
        self.values.append((number, storage_number, 0, kind))
        self.seen[id(tensor)] = (ref(tensor), number, None)
        return number

    def _new_type(self, tensor: Tensor, key: Any) -> int:
        shape, stride, dtype, conj, neg = key
        row = TensorType(
            str(dtype).removeprefix("torch."),
            tuple(int(size) for size in shape),
            tuple(int(step) for step in stride),
            "strided",
            conj,
            neg,
        )
        kind = self.types[key] = len(self.type_rows)
        plain = tensor.layout is torch.strided and dtype not in QUANTIZED and not tensor.is_nested
        self.type_opaque.append(not plain)
        self.type_rows.append(row)
        return kind

    def _device(self, device: torch.device) -> int:
        number = self.devices.get(device)
        if number is None:
            number = self.devices[device] = len(self.devices)
        return number

    def _dead(self, storage: StorageRef) -> None:
        if self.storages.get(storage.address) is storage:
            del self.storages[storage.address]
        self.deaths.append((storage.number, len(self.log)))

    # ---------------------------------------------------------------- calls and sites

    def plan(self, func: Any) -> Plan:
        """The plan of an operator, made at its first call."""
        plan = self.plans[id(func)] = Plan(func)
        return plan

    def new_call(self, plan: Plan, key: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> int:
        """Number a call template that was not seen before."""
        template, slots_of = encode(plan.name, args, kwargs, self.held.objects)
        writes = plan.written(args, kwargs)
        written = tuple(slot for argument in writes for slot in slots_of.get(argument, ()))
        over = frozenset(slot for argument in plan.overwrites for slot in slots_of.get(argument, ()))
        shape = frozenset(slot for argument in plan.shape_only for slot in slots_of.get(argument, ()))
        slots = sum(1 for _ in template.slots())
        number = len(self.calls)
        self.calls.append(CallInfo(template, slots, written, over, shape, plan))
        if key is not None:
            plan.calls[key] = number
        return number

    def new_site(self, info: Code, instruction: int) -> int:
        """Number a source position that was not seen before."""
        number = info.sites[instruction] = len(self.sites)
        self.sites.append(resolve(info.code, instruction))
        return number

    # ---------------------------------------------------------------- scopes

    def enter(self, module: int, thread: int) -> int:
        """Open a scope on this thread and return its number."""
        number = len(self.scopes)
        again = 0 if current_autograd_node() is None else 1
        self.scopes.append([module, self.current.get(thread, 0), clock(), 0, self.overhead, again])
        self.current[thread] = number
        return number

    def leave(self, number: int, thread: int) -> None:
        """Close a scope, with any left open inside it by an exception."""
        row = self.scopes[number]
        row[3] = clock()
        row[4] = self.overhead - row[4]
        self.current[thread] = row[1]

    def function_scope(self, info: Code, sequence: int, thread: int) -> int:
        """The scope of the running call of an autograd.Function: one per class and sequence number."""
        parent = self.current.get(thread, 0)
        key = (id(info), sequence, parent)
        number = self.function_scopes.get(key)
        if number is None:
            assert info.function is not None
            name = info.function.__name__
            module = self.module_number(info.function, name, name, "function")
            number = self.function_scopes[key] = len(self.scopes)
            self.scopes.append([module, parent, 0, 0, 0, 0])
        return number

    def module_number(self, owner: Any, path: str, type_name: str, kind: str) -> int:
        """The number of what a scope is a call of."""
        number = self.module_numbers.get(id(owner))
        if number is None:
            number = self.module_numbers[id(owner)] = len(self.modules)
            self.modules.append((owner, path, type_name, kind))
        return number

    def opaque_call(self, module: Any, arguments: Any, result: Any) -> None:
        """Stand one node for a compiled module whose outputs came from code that cannot be seen."""
        fresh = [tensor for tensor in flat_tensors((result,)) if not self.knows(tensor)]
        if not fresh:
            return
        inputs = list(flat_tensors((arguments,))) + list(module.parameters()) + list(module.buffers())
        numbers = [self.seen[id(t)][1] if self.knows(t) else self.meet(t)[1] for t in inputs]
        plan = self.plans.setdefault(id(module), Plan(None))
        plan.name = "torch_vis::compiled"
        template, _ = encode(plan.name, tuple(inputs), {}, self.held.objects)
        call = len(self.calls)
        self.calls.append(CallInfo(template, len(inputs), (), frozenset(), frozenset(), plan))
        birth = len(self.log)
        for tensor in fresh:
            before = len(self.storage_rows)
            number = self.note(tensor, birth)
            numbers.append(number)
            if len(self.storage_rows) > before:
                self._hold(tensor, number)
        thread = get_ident()
        scope = self.current.get(thread, 0)
        now = clock()
        self.opaque_nodes.append(birth)
        self.log.append((call, scope, -1, sequence_number(), -1, thread, False, self.scopes[scope][2], now, *numbers))

    def fill(self, tensor: Tensor, number: int) -> int:
        """Note that unseen code has put something into memory that was made without contents."""
        del self.blank[number]
        address = self.seen[id(tensor)][2]
        if address is None or self.storages[address].number in self.dirty or tensor.device.type == "meta":
            return number
        if self.fill_call < 0:
            plan = Plan(None)
            plan.name = "torch_vis::unseen_write"
            self.fill_call = len(self.calls)
            template, _ = encode(plan.name, (tensor,), {}, self.held.objects)
            self.calls.append(CallInfo(template, 1, (0,), frozenset({0}), frozenset(), plan))
        node = len(self.log)
        with torch._C._DisableTorchDispatch():
            self.held.given[node] = [tensor.detach().clone()]
        filled = self.note(tensor, node)
        self.check_size(tensor, node)
        thread, now = get_ident(), clock()
        self.opaque_nodes.append(node)
        self.unseen["filled"] = self.unseen.get("filled", 0) + 1
        self.log.append((self.fill_call, self.current.get(thread, 0), -1, sequence_number(), -1, thread, False, now, now, number, filled))
        return filled

    def knows(self, tensor: Tensor) -> bool:
        """Whether this very tensor has been seen."""
        entry = self.seen.get(id(tensor))
        return entry is not None and entry[0]() is tensor

    def was_written(self, tensor: Tensor) -> bool:
        """Whether an operation wrote to the memory of this tensor."""
        entry = self.seen.get(id(tensor))
        if entry is None or entry[0]() is not tensor:
            return False
        if entry[2] is None:
            return any(info.writes for info in self.calls)
        known = self.storages.get(entry[2])
        return known is not None and known.number in self.dirty

    # ---------------------------------------------------------------- state

    def save_originals(self, tensors: list[Tensor], slots: tuple[int, ...]) -> None:
        """Copy outside memory that is about to be written for the first time."""
        for slot in slots:
            entry = self.seen[id(tensors[slot])]
            if entry[2] is None:
                continue
            number = self.storages[entry[2]].number
            if number in self.outside and number not in self.held.originals:
                with torch._C._DisableTorchDispatch():
                    self.held.originals[number] = copy_storage(tensors[slot].untyped_storage())

    def seed(self, kwargs: dict[str, Any], args: tuple[Any, ...]) -> tuple[Any, str, torch.Tensor, bytes] | None:
        """The generator that a random operation is about to draw from, and its state."""
        generator = kwargs.get("generator")
        device = "cpu"
        if generator is None:
            found = kwargs.get("device")
            if found is None:
                tensors = [arg for arg in args if isinstance(arg, Tensor)]
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
        return generator, device, state, state_bytes(state)


def state_bytes(state: torch.Tensor) -> bytes:
    """A generator's state as bytes, read without an operation."""
    return ctypes.string_at(state.data_ptr(), state.numel())


def copy_storage(storage: torch.UntypedStorage) -> torch.UntypedStorage:
    """A block of memory with the same contents."""
    copy = torch.UntypedStorage(storage.nbytes(), device=storage.device)
    copy.copy_(storage)
    return copy


def is_wrapper(kind: type) -> bool:
    """Whether a tensor type is a wrapper whose own dispatch must run, so that the operations inside it are seen."""
    if kind.__name__ == "FakeTensor" or getattr(kind, "__torch_dispatch__", None) is None:
        return False
    handler = kind.__torch_dispatch__  # type: ignore[attr-defined]
    return getattr(handler, "__func__", handler) not in (
        torch._C._disabled_torch_dispatch_impl,
        getattr(Tensor.__torch_dispatch__, "__func__", Tensor.__torch_dispatch__),
    )


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
        super().__init__()
        self.recorder = recorder

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Note one operation; the operation itself runs exactly as it would have."""
        rec = self.recorder
        entered = clock()
        plan = rec.plans.get(id(func))
        if plan is None:
            plan = rec.plan(func)
        if plan.skip:
            return plan.run(*args, **(kwargs or {}))
        for kind in types:
            wrapper = rec.wrapper_types.get(kind)
            if wrapper is None:
                wrapper = rec.wrapper_types[kind] = is_wrapper(kind)
            if wrapper:
                return NotImplemented

        if plan.takes_storage:
            func, args = storage_as_tensor(args)
            plan = rec.plans.get(id(func)) or rec.plan(func)

        # where: the first frame of the user's
        codes = rec.codes
        site = -1
        function = None
        seeding = False
        frame: Any = getframe(1)
        while frame is not None:
            code = frame.f_code
            info = codes.get(id(code))
            if info is None:
                info = codes[id(code)] = Code(code)
            if info.special:
                if info.compiled:
                    return self._unseen(plan, args, kwargs)
                if info.seeding:
                    seeding = True
                elif function is None:
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
            for arg in args:
                kind = type(arg)
                if kind in tensor_types:
                    entry = seen.get(id(arg))
                    if (
                        entry is None
                        or entry[0]() is not arg
                        or (entry[2] is not None and entry[2] != arg.untyped_storage()._cdata)
                    ):
                        entry = rec.meet(arg)
                    numbers.append(entry[1])
                    key.append(SLOT)
                elif kind is int or arg is None:
                    key.append(arg)
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
        seed = rec.seed(kwargs, args) if plan.random and rec.keep else None

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
            out = plan.run(*args, **kwargs) if kwargs else plan.run(*args)
        ended = clock()

        # whose: module, autograd node, thread
        thread = get_ident()
        node = current_autograd_node()
        sequence = sequence_number()
        if function is not None and node is None:
            scope = rec.function_scope(function, sequence, thread)
        else:
            scope = rec.current.get(thread, 0)
        if node is not None:
            backward = backward_number(node)
        else:
            backward = -3 if seeding else -1

        log = rec.log
        birth = len(log)
        if written:
            for tensor in written:
                numbers.append(rec.note(tensor, birth))
                rec.check_size(tensor, birth)
            for tensor in flat_tensors((out,)):
                if not any(tensor is other for other in written):
                    numbers.append(rec.note(tensor, birth))
        elif type(out) is Tensor:
            numbers.append(rec.note(out, birth))
        else:
            for tensor in flat_tensors((out,)):
                numbers.append(rec.note(tensor, birth))
        if plan.blank:
            rec.blank[numbers[-1]] = birth
        if seed is not None:
            self._seeded(seed, birth)
        if plan.escape:
            rec.escapes.append((plan.name, numbers[0], site, birth))
        log.append((call, scope, site, sequence, backward, thread, grad_enabled(), started, ended, *numbers))
        rec.overhead += clock() - entered - (ended - started)
        return out

    def _other(self, arg: Any, kind: type, key: list[Any], numbers: list[int]) -> None:
        """Note an argument that is not a plain positional tensor or integer."""
        rec = self.recorder
        if kind in rec.tensor_types:
            entry = rec.seen.get(id(arg))
            if (
                entry is None
                or entry[0]() is not arg
                or (entry[2] is not None and entry[2] != arg.untyped_storage()._cdata)
            ):
                entry = rec.meet(arg)
            numbers.append(entry[1])
            key.append(SLOT)
        elif kind is float:
            key.append((kind, arg or repr(arg)))
        elif kind is bool:
            key.append((kind, arg))
        elif kind is list or kind is tuple:
            key.append((kind, len(arg)))
            for part in arg:
                self._other(part, type(part), key, numbers)
        elif isinstance(arg, Tensor):
            rec.tensor_types.add(kind)
            self._other(arg, kind, key, numbers)
        elif isinstance(arg, dict):
            key.append((kind, tuple(arg)))
            for part in arg.values():
                self._other(part, type(part), key, numbers)
        else:
            key.append(arg)

    def _seeded(self, seed: tuple[Any, str, torch.Tensor, bytes], birth: int) -> None:
        """Keep a random state where it is not what the last random operation left."""
        rec = self.recorder
        generator, device, state, found = seed
        if rec.random_states.get(generator) != found:
            default = generator is torch.default_generator or device != "cpu"
            rec.held.seeds[birth] = Seed(None if default else generator, device, state)
        rec.random_states[generator] = state_bytes(generator.get_state())

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
            numbers[slot] = rec.fill(tensors[slot], number)

    def _higher_order(self, plan: Plan, name: str, args: Any, kwargs: Any) -> Any:
        """Run a higher-order operator's own eager kernel with the mode on, so that what it calls is recorded."""
        kernel = choose if name == "cond" else plan.func.py_kernels[torch._C.DispatchKey.CompositeExplicitAutograd]
        rec = self.recorder
        thread = get_ident()
        number = rec.enter(rec.module_number(plan.func, name, name, "operator"), thread)
        try:
            with self:
                return kernel(*args, **kwargs)
        finally:
            rec.leave(number, thread)


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


def choose(condition: Any, if_true: Any, if_false: Any, operands: Any = ()) -> Any:
    """What ``torch.cond`` does in eager mode; its own kernel refuses to run under a mode."""
    return if_true(*operands) if condition else if_false(*operands)


def backward_number(node: Any) -> int:
    """The sequence number of a backward node; -2 for the ones that accumulate into ``.grad``."""
    number: int = node._sequence_nr()
    return number if number < 1 << 62 else -2


def flat_tensors(items: Any) -> Any:
    """The tensors in nested tuples, lists and dictionaries, in order."""
    for item in items:
        if isinstance(item, Tensor):
            yield item
        elif isinstance(item, (tuple, list)):
            yield from flat_tensors(item)
        elif isinstance(item, dict):
            yield from flat_tensors(item.values())

