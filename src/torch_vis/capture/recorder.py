"""What a run has done so far: the log of operations, and the tables of tensors, memory, calls and scopes it refers to.

Much of this runs once per operation, so it only looks things up and appends. What is appended holds no tensor and, but
for a few interned tables, nothing the garbage collector has to visit. ``assemble`` makes a graph of it afterwards.
"""

from __future__ import annotations

import ctypes
import itertools
import threading
import time
import weakref
from collections.abc import Callable
from types import CodeType
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from torch.nn.parameter import UninitializedTensorMixin  # type: ignore[attr-defined]

from torch_vis.capture.operators import Plan
from torch_vis.capture.sites import Code
from torch_vis.capture.templates import encode
from torch_vis.graph.rows import Site, TensorType
from torch_vis.graph.template import Call
from torch_vis.held import Held, copy_of

if TYPE_CHECKING:
    from torch_vis.capture.layers import Borders

current_autograd_node = torch._C._current_autograd_node
sequence_number = torch._C._autograd._get_sequence_nr

get_ident = threading.get_ident
clock = time.perf_counter_ns
stopped = itertools.repeat(0).__next__  # a clock for runs that are not timed; no call is cheaper

Tensor = torch.Tensor
ref = weakref.ref


QUANTIZED = frozenset({torch.qint8, torch.quint8, torch.qint32, torch.quint4x2, torch.quint2x4})


class Unrecordable(Exception):
    """An operation on something that is no tensor yet, such as a lazy parameter being given its shape."""


class StorageRef(weakref.ref):  # type: ignore[type-arg]
    """A weak reference to a block of memory that knows its number, address and size."""

    __slots__ = ("address", "number", "size")
    address: int
    number: int
    size: int


_schemas: dict[int, Plan] = {}  # read once per process; a recorder takes copies, to number its own calls


class TensorRef(weakref.ref):  # type: ignore[type-arg]
    """A weak reference to a tensor that knows the number of its newest version and the address of its memory."""

    __slots__ = ("address", "number")
    address: int | None
    number: int


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

    def __init__(self, *, keep: bool, timing: bool = True, memory: bool = True) -> None:
        self.keep = keep
        self.timing = timing
        self.memory = memory  # whether the death of a block of memory is reported
        self.operations = True  # False where only the calls of modules are followed, without a mode
        self.borders: Borders | None = None  # sees what goes into and comes out of module calls
        self.clock: Callable[[], int] = clock if timing else stopped
        self.held = Held()
        self.log: list[int] = []  # rows on end, each headed by its length and its number
        self.node_numbers = itertools.count()
        self.count = 0
        self.plans: dict[int, Plan] = {}
        self.calls: list[CallInfo] = []
        self.codes: dict[int, Code] = {}
        self.boring: set[int] = set()  # ids of code that is torch's or ours, and nothing special
        self.sites: list[tuple[CodeType | Site, int]] = []
        self.types: dict[Any, int] = {}
        self.type_rows: list[TensorType] = []
        self.type_opaque: list[bool] = []
        self.seen: dict[int, TensorRef] = {}
        self.values: list[int] = []  # number, storage, offset and type of each, on end
        self.value_numbers = itertools.count()
        self.storages: dict[int, StorageRef] = {}
        self.storage_rows: list[int] = []  # number, bytes, birth and device of each, on end
        self.storage_numbers = itertools.count()
        self.resizes: list[tuple[int, int, int]] = []
        self.devices: dict[torch.device, int] = {torch.device("cpu"): 0}
        self.deaths: list[tuple[int, int]] = []
        self.opaque_refs: dict[int, Any] = {}
        self.outside: set[int] = set()
        self.dirty: set[int] = set()
        self.external_refs: dict[int, Any] = {}
        self.aliases: list[int] = []
        self.scopes: list[Any] = [[0, -1, clock(), 0, 0, 0]]
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
        self.steps: dict[
            int, tuple[int, Any]
        ] = {}  # by thread: an open optimizer step and the frame it runs in
        self.appeared: list[int] = []
        self.closed = False
        self.shared = False  # operations of other threads are recorded as well
        self.older_threads = frozenset(thread.ident for thread in threading.enumerate())
        self.flips = False  # a tensor with a conjugate or negative bit has been seen
        self.foreign = False  # a tensor type with a __torch_function__ of its own has been seen
        self.dead = self._dead if memory else None  # bound once: each binding is an object of its own
        self.module_numbers: dict[int, int] = {}
        self.naming: Any = None  # the mode that names calls of public functions, where names were asked for
        self.declared: Any = None  # what recognises the user's own functions, where some were named
        self.codes_before: frozenset[int] = frozenset()  # ids of the code that ran when the recording began
        self.api_modules: set[int] = set()  # numbers of public functions among the modules

    # ---------------------------------------------------------------- tensors

    def meet(self, tensor: Tensor) -> TensorRef:
        """Note a tensor that was not made by a recorded operation: from outside, or an alias torch made unseen."""
        self.flips = self.flips or tensor.is_conj() or tensor.is_neg()
        known = self.seen.get(id(tensor))
        before = len(self.storage_rows)
        number = self.note(tensor, -1)
        if known is not None and known() is tensor and known.address is not None:
            self.unseen["reassigned"] = self.unseen.get("reassigned", 0) + 1
        if len(self.storage_rows) > before:
            self.hold(tensor, number)
            if current_autograd_node() is not None:
                self.appeared.append(number)
        else:
            self.aliases.append(number)
        return self.seen[id(tensor)]

    def number_of(self, tensor: Tensor) -> int:
        """The number of a tensor's newest version, noted now if it was not known."""
        entry = self.seen.get(id(tensor))
        if entry is None or entry() is not tensor:
            return self.meet(tensor).number
        if entry.address is not None and entry.address != tensor.untyped_storage()._cdata:
            return self.meet(tensor).number
        return entry.number

    def hold(self, tensor: Tensor, number: int) -> None:
        storage_number = self._storage_of(number)
        self.outside.add(storage_number)
        self.external_refs[number] = ref(tensor)
        if not self.keep:
            return
        entry = self.seen[id(tensor)]
        if entry.address is None:
            self.held.opaque[number] = tensor
        else:
            self.held.storages[storage_number] = tensor.untyped_storage()

    def _storage_of(self, number: int) -> int:
        rows = self.values
        place = len(rows) - 4
        while rows[place] != number:  # threads may have appended in another order than they counted
            place -= 4
        return rows[place + 1]

    def note(self, tensor: Tensor, birth: int) -> int:
        """Number a new version of a tensor; ``birth`` is the operation that makes it, -1 if none does."""
        try:
            storage = tensor.untyped_storage()
            address = storage._cdata
            key: Any = (tensor.shape, tensor.stride(), tensor.dtype)
            if self.flips:
                key += (tensor.is_conj(), tensor.is_neg())
            offset = int(tensor.storage_offset())
        except (RuntimeError, NotImplementedError):
            return self._note_opaque(tensor, birth)
        kind = self.types.get(key)
        if kind is None:
            kind = self._new_type(tensor, key)
        if self.type_opaque[kind]:
            return self._note_opaque(tensor, birth)
        known = self.storages.get(address)
        if known is None or known() is None:  # a death may go unreported
            size = storage.nbytes()
            if tensor._is_zerotensor() or (not size and tensor.numel()):
                return self._note_opaque(tensor, birth)  # a tensor that is known to be zero has no memory
            known = StorageRef(storage, self.dead)
            known.number = next(self.storage_numbers)
            known.address = address
            known.size = size
            self.storages[address] = known
            self.storage_rows += (
                known.number,
                size,
                birth,
                0 if tensor.is_cpu else self._device(tensor.device),
            )
        number = next(self.value_numbers)
        self.values += (number, known.number, offset, kind)
        entry = self.seen[id(tensor)] = TensorRef(tensor)
        entry.number = number
        entry.address = address
        return number

    def check_size(self, tensor: Tensor, node: int) -> None:
        """Note that a write made a block of memory larger or smaller."""
        address = self.seen[id(tensor)].address
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
        if known is not None and known() is tensor and known.address is None:
            storage_number = self._storage_of(known.number)
        else:
            storage_number = next(self.storage_numbers)
            self.storage_rows += (storage_number, 0, birth, self._device(tensor.device))
            self.opaque_refs[storage_number] = ref(tensor, lambda _: self._opaque_dead(storage_number))
        number = next(self.value_numbers)
        self.values += (number, storage_number, 0, kind)
        entry = self.seen[id(tensor)] = TensorRef(tensor)
        entry.number = number
        entry.address = None
        return number

    def _new_type(self, tensor: Tensor, key: Any) -> int:
        shape, stride, dtype, conj, neg = key if self.flips else (*key, False, False)
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
        if self.closed:
            return
        if self.storages.get(storage.address) is storage:
            del self.storages[storage.address]
        self.deaths.append((storage.number, self.count))

    def _opaque_dead(self, storage: int) -> None:
        if not self.closed:
            self.deaths.append((storage, self.count))

    # ---------------------------------------------------------------- nodes

    def next_node(self) -> int:
        """The number of the operation that is about to be noted."""
        number = next(self.node_numbers)
        self.count = number + 1
        return number

    def settle(self) -> None:
        """After closing: wait for an operation that another thread is just noting."""
        waits = 1000 if self.shared else 0
        while waits and len(self.row_places()) < self.count:
            time.sleep(0.001)
            waits -= 1

    def row_places(self) -> list[int]:
        """Where each row of the log begins."""
        places, place = [], 0
        while place < len(self.log):
            places.append(place)
            place += self.log[place]
        return places

    def write(self, number: int, *row: int) -> None:
        """Append a row to the log."""
        self.log += (len(row) + 2, number, *row)

    # ---------------------------------------------------------------- calls and sites

    def plan(self, func: Any) -> Plan:
        """The plan of an operator, made at its first call."""
        schema = _schemas.get(id(func))
        if schema is None:
            schema = _schemas[id(func)] = Plan(func)
        plan = self.plans[id(func)] = schema.fresh()
        self.flips = self.flips or plan.flips
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
        self.sites.append((info.code, instruction))
        return number

    def site_of(self, frame: Any) -> int:
        """The number of the user's source line that a frame was called from, -1 if there is none."""
        while frame is not None:
            info = self.codes.get(id(frame.f_code)) or self.new_code(frame.f_code)
            if info.user:
                found = info.sites.get(frame.f_lasti)
                return self.new_site(info, frame.f_lasti) if found is None else found
            frame = frame.f_back
        return -1

    def new_code(self, code: CodeType) -> Code:
        """What a code object is, at its first appearance."""
        info = self.codes[id(code)] = Code(code)
        if not info.notable:
            self.boring.add(id(code))
        return info

    # ---------------------------------------------------------------- scopes

    def enter(self, module: int, thread: int) -> int:
        """Open a scope on this thread and return its number."""
        number = len(self.scopes)
        again = 0 if current_autograd_node() is None else 1
        self.scopes.append([module, self.current.get(thread, 0), self.clock(), 0, self.overhead, again])
        self.current[thread] = number
        return number

    def leave(self, number: int, thread: int) -> None:
        """Close a scope, with any left open inside it by an exception."""
        module, parent, began, _, before, again = self.scopes[number]
        # a tuple of numbers is nothing that the garbage collector comes back to
        self.scopes[number] = (module, parent, began, self.clock(), self.overhead - before, again)
        self.current[thread] = parent

    def end_lost_step(self, thread: int, frame: Any) -> None:
        """Close an optimizer step that an exception ended: its frame is no longer below the one that runs now."""
        scope, step = self.steps[thread]
        while frame is not None and frame is not step:
            frame = frame.f_back
        if frame is None:
            del self.steps[thread]
            self.leave(scope, thread)

    def function_scope(self, info: Code, sequence: int, thread: int) -> int:
        """The scope of the running call of an autograd.Function: one per class and sequence number."""
        parent = self.current.get(thread, 0)
        if (
            self.scopes[parent][0] in self.api_modules
        ):  # a call in its forward, whose scope is inside this one's
            return parent
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

    def knows(self, tensor: Tensor) -> bool:
        """Whether this very tensor has been seen."""
        entry = self.seen.get(id(tensor))
        return entry is not None and entry() is tensor

    def was_written(self, tensor: Tensor) -> bool:
        """Whether an operation wrote to the memory of this tensor."""
        entry = self.seen.get(id(tensor))
        if entry is None or entry() is not tensor:
            return False
        if entry.address is None:
            return any(info.writes for info in self.calls)
        known = self.storages.get(entry.address)
        return known is not None and known.number in self.dirty

    # ---------------------------------------------------------------- state

    def save_originals(self, tensors: list[Tensor], slots: tuple[int, ...]) -> None:
        """Copy outside memory that is about to be written for the first time."""
        for slot in slots:
            entry = self.seen[id(tensors[slot])]
            if entry.address is None:
                continue
            number = self.storages[entry.address].number
            if number in self.outside and number not in self.held.originals:
                with torch._C._DisableTorchDispatch():
                    self.held.originals[number] = copy_of(tensors[slot].untyped_storage())

    def seed(
        self, kwargs: dict[str, Any], args: tuple[Any, ...]
    ) -> tuple[Any, str, torch.Tensor, bytes] | None:
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


def backward_number(node: Any) -> int:
    """The sequence number of a backward node; -2 for the ones that accumulate into ``.grad``."""
    number: int = node._sequence_nr()
    return number if number < 1 << 62 else -2


def state_bytes(state: torch.Tensor) -> bytes:
    """A generator's state as bytes, read without an operation."""
    return ctypes.string_at(state.data_ptr(), state.numel())


def flat_tensors(items: Any) -> Any:
    """The tensors in nested tuples, lists and dictionaries, in order."""
    for item in items:
        if isinstance(item, Tensor):
            yield item
        elif isinstance(item, (tuple, list)):
            yield from flat_tensors(item)
        elif isinstance(item, dict):
            yield from flat_tensors(item.values())
