"""What a run has done so far: the log of operations, and the tables of calls, lines, scopes and tensors it refers to.

Much of this runs once per operation, so it only looks things up and appends. What is appended holds no tensor and, but
for a few interned tables, nothing the garbage collector has to visit. ``assemble`` makes a graph of it afterwards.
"""

from __future__ import annotations

import itertools
import threading
import time
import weakref
from collections.abc import Callable, Mapping
from types import CodeType
from typing import Any, NamedTuple, Protocol

import torch

from torch_vis.capture.containers import named_tensors, wrapped_parts
from torch_vis.capture.recording.op_plan import Plan
from torch_vis.capture.recording.source_lines import CodeInfo
from torch_vis.capture.recording.tensors import Tensor, Tensors
from torch_vis.graph.call import Call, Slot, Special
from torch_vis.graph.schema import Site

current_autograd_node = torch._C._current_autograd_node
sequence_number = torch._C._autograd._get_sequence_nr

get_ident = threading.get_ident
clock = time.perf_counter_ns
stopped = itertools.repeat(0).__next__  # a clock for runs that are not timed; no call is cheaper

FORWARD, ACCUMULATE, SEED = -1, -2, -3  # in a row of the log, in the place of a backward sequence number
UNNUMBERED = 1 << 62  # from here on, a backward node has no number: it accumulates into .grad
_schemas: dict[int, Plan] = {}  # read once per process; a recorder takes copies, to number its own calls


class CallObserver(Protocol):
    """Sees the tensors that go into each call of a module and those that come out of it."""

    def take(self, scope: int, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        """A call begins."""

    def give(self, scope: int, result: Any) -> None:
        """A call has returned."""


class CallInfo(NamedTuple):
    """A call template and what it means for the dataflow."""

    call: Call
    slots: int
    writes: tuple[int, ...]
    overwrites: frozenset[int]
    shape_only: frozenset[int]
    plan: Plan


class Recorder(Tensors):
    """What a run has done so far: the log of operations and the tables that the log refers to."""

    def __init__(self, *, keep: bool, timing: bool = True, memory: bool = True) -> None:
        super().__init__(keep=keep, memory=memory)
        self.timing = timing
        self.operations = True  # False where only the calls of modules are followed, without a mode
        self.borders: CallObserver | None = None  # sees what goes into and comes out of module calls
        self.clock: Callable[[], int] = clock if timing else stopped
        self.log: list[int] = []  # rows on end, each headed by its length and its number
        self.node_numbers = itertools.count()
        self.plans: dict[int, Plan] = {}
        self.calls: list[CallInfo] = []
        self.codes: dict[int, CodeInfo] = {}
        self.boring: set[int] = set()  # ids of code that is torch's or ours, and nothing special
        self.sites: list[tuple[CodeType | Site, int]] = []
        self.scopes: list[Any] = [[0, -1, clock(), 0, 0, 0]]
        self.current: dict[int, int] = {}
        self.modules: list[tuple[Any, str, str, str]] = [(None, "", "run", "run")]
        self.function_scopes: dict[tuple[int, int, int], int] = {}
        self.random_states: dict[Any, bytes] = {}
        self.escapes: list[tuple[str, int, int, int]] = []
        self.opaque_nodes: list[int] = []
        self.blank: dict[int, int] = {}
        self.gradients = GradWrites()
        self.fill_call = -1
        self.tensor_types: set[type] = {Tensor, torch.nn.Parameter}
        self.wrapper_types: dict[type, bool] = {}
        self.overhead = 0
        self.steps: dict[
            int, tuple[int, Any]
        ] = {}  # by thread: an open optimizer step and the frame it runs in
        self.shared = False  # operations of other threads are recorded as well
        self.older_threads = frozenset(thread.ident for thread in threading.enumerate())
        self.foreign = False  # a tensor type with a __torch_function__ of its own has been seen
        self.module_numbers: dict[int, int] = {}
        self.naming: Any = None  # the mode that names calls of public functions, where names were asked for
        self.declared: Any = None  # what recognises the user's own functions, where some were named
        self.codes_before: frozenset[int] = frozenset()  # ids of the code that ran when the recording began
        self.api_modules: set[int] = set()  # numbers of public functions among the modules

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
        template, slots_of = encode(plan.name, args, kwargs, self.kept.objects)
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

    def new_site(self, info: CodeInfo, instruction: int) -> int:
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

    def new_code(self, code: CodeType) -> CodeInfo:
        """What a code object is, at its first appearance."""
        info = self.codes[id(code)] = CodeInfo(code)
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

    def function_scope(self, info: CodeInfo, sequence: int, thread: int) -> int:
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

    # ---------------------------------------------------------------- writes

    def was_written(self, tensor: Tensor) -> bool:
        """Whether an operation wrote to the memory of this tensor."""
        entry = self.seen.get(id(tensor))
        if entry is None or entry() is not tensor:
            return False
        if entry.address is None:
            return any(info.writes for info in self.calls)
        known = self.storages.get(entry.address)
        return known is not None and known.number in self.dirty


def backward_number(node: Any) -> int:
    """The sequence number of a backward node; ``ACCUMULATE`` for the ones that accumulate into ``.grad``."""
    number: int = node._sequence_nr()
    return number if number < UNNUMBERED else ACCUMULATE


def flat_tensors(items: Any) -> Any:
    """The tensors in nested tuples, lists and dictionaries, in order."""
    for item in items:
        if isinstance(item, Tensor):
            yield item
        elif isinstance(item, (tuple, list)):
            yield from flat_tensors(item)
        elif isinstance(item, dict):
            yield from flat_tensors(item.values())


PLAIN = (int, float, complex, str, bool, type(None))


def encode(
    op: str, args: tuple[Any, ...], kwargs: Mapping[str, Any], objects: dict[str, Any]
) -> tuple[Call, dict[int | str, tuple[int, ...]]]:
    """The template of a call, and which slots each argument (by position or name) holds.

    What has no literal form is put into ``objects`` under the text that stands for it.
    """
    encoder = _Encoder(objects)
    slots_of: dict[int | str, tuple[int, ...]] = {}
    positional: list[Any] = []
    for position, arg in enumerate(args):
        first = encoder.slots
        positional.append(encoder.item(arg))
        slots_of[position] = tuple(range(first, encoder.slots))
    named: list[tuple[str, Any]] = []
    for name, arg in kwargs.items():
        first = encoder.slots
        named.append((name, encoder.item(arg)))
        slots_of[name] = tuple(range(first, encoder.slots))
    return Call(op, tuple(positional), tuple(named)), slots_of


class _Encoder:
    def __init__(self, objects: dict[str, Any]) -> None:
        self.objects = objects
        self.slots = 0

    def item(self, arg: Any) -> Any:
        if isinstance(arg, torch.Tensor):
            self.slots += 1
            return Slot(self.slots - 1)
        if type(arg) in PLAIN:
            return arg
        if isinstance(arg, (list, tuple)):
            return tuple([self.item(part) for part in arg])
        if isinstance(arg, dict):
            return (Special("dict", repr(tuple(arg))), tuple([self.item(part) for part in arg.values()]))
        if isinstance(arg, torch.dtype):
            return Special("dtype", str(arg).removeprefix("torch."))
        if isinstance(arg, torch.device):
            return Special("device", str(arg))
        if isinstance(arg, torch.layout):
            return Special("layout", str(arg).removeprefix("torch."))
        if isinstance(arg, torch.memory_format):
            return Special("memory_format", str(arg).removeprefix("torch."))
        text = f"{type(arg).__name__} #{len(self.objects)}"
        self.objects[text] = arg
        return Special("object", text)


# How a leaf without a gradient gets its first: what was handed over, or a copy in the leaf's own layout.
FIRST = frozenset({"detach", "clone", "new_empty_strided", "_sparse_coo_tensor_unsafe"})


class GradWrites:
    """Pairs of a leaf and the number of a value that was its gradient, in order.

    ``-1 - n`` stands for the last value that operation ``n`` made.
    """

    def __init__(self) -> None:
        self.rows: list[tuple[weakref.ref[Tensor], int]] = []
        self.met: Callable[[Tensor], Tensor] = _itself  # what stands for a tensor in a run without numbers

    def wrote(self, node: Any, name: str, args: Any, numbers: list[int], birth: int) -> None:
        """An operation ran in a node that accumulates; ``numbers`` has the values that it read."""
        leaf = getattr(node, "variable", None)
        if leaf is None:
            return
        short = name.rpartition("::")[2].partition(".")[0]
        if leaf.grad is None:
            if short in FIRST:
                self.rows.append((weakref.ref(leaf), -1 - birth))
            return
        before = self.met(leaf.grad)
        # out of place only for a graph of the gradients, or sparse; otherwise it is a hook that looks at them
        makes = short == "add" and (torch.is_grad_enabled() or before.is_sparse)
        operands = args[:1] if short == "add_" else args[:2] if makes else ()
        for arg, number in zip(operands, numbers):
            if arg is before:
                self.rows += [(weakref.ref(leaf), number), (weakref.ref(leaf), -1 - birth)]

    def read_by(self, tensors: Tensors, optimizer: Any) -> None:
        """Note the gradients that a step of an optimizer is about to read, whoever made them."""
        for group in optimizer.param_groups:
            for leaf in group["params"]:
                gradient = leaf.grad
                for _, found in named_tensors(gradient) if gradient is not None else ():
                    part = self.met(found)
                    if part.layout is torch.strided or tensors.knows(part):
                        self.rows.append((weakref.ref(leaf), tensors.number_of(part)))

    def named(self, names: Mapping[int, str]) -> list[tuple[str, int]]:
        """The same by name; ``names`` has those of the leaves, by identity."""
        found = []
        for leaf_ref, number in self.rows:
            leaf = leaf_ref()
            if leaf is None:
                continue
            name = names.get(id(leaf)) or names.get(id(self.met(leaf)))
            if name is None:
                continue
            parts = wrapped_parts(leaf)
            if parts is None:
                found.append((f"{name}.grad", number))
            elif len(parts) == 1:  # of several, it cannot be told which
                found.append((f"{name}.grad.{parts[0][0]}", number))
        return found


def _itself(tensor: Tensor) -> Tensor:
    return tensor
