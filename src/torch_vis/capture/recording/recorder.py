"""What a run has done so far: the log of operations, and the tables of calls, lines, scopes and tensors it refers to.

Much of this runs once per operation, so it only looks things up and appends. What is appended holds no tensor and, but
for a few interned tables, nothing the garbage collector has to visit. ``assemble`` makes a graph of it afterwards.

The log is one list of integers, a row per operation: the row's length, the operation's number, its call template,
scope, source line, autograd sequence number, backward node (or ``FORWARD``, ``ACCUMULATE``, ``SEED``), thread, whether
gradients were recorded, when it began and ended, the caller, then the values that it read, wrote and returned.

A caller says which function of torch's an operation belongs to: a public function written in Python, or an instruction
in torch's own modules that calls one; -1 where the user's own line does.
"""

from __future__ import annotations

import itertools
import sys
import threading
import time
import weakref
from array import array
from collections import Counter
from collections.abc import Callable, Mapping
from contextvars import ContextVar
from types import CodeType
from typing import Any, NamedTuple, Protocol

import torch

from torch_vis.capture.containers import (
    Form,
    TensorLeaf,
    completed,
    form_leaves,
    form_of,
    inner_tensors,
    named_tensors,
    renumbered,
)
from torch_vis.capture.recording.op_plan import OpPlan
from torch_vis.capture.recording.source_lines import CodeInfo, kind_of
from torch_vis.capture.recording.tensors import Tensor, Tensors, irregular
from torch_vis.capture.undo import Undo
from torch_vis.graph.call import Call, Slot, Special, short_name
from torch_vis.graph.schema import RankGroup, Site

current_autograd_node = torch._C._current_autograd_node
sequence_number = torch._C._autograd._get_sequence_nr

get_ident = threading.get_ident
clock = time.perf_counter_ns
# the clock of runs that are not timed: always 0, and no call is cheaper
stopped = itertools.repeat(0).__next__

# in a row of the log, instead of the sequence number of a backward node
FORWARD, ACCUMULATE, SEED = -1, -2, -3
# where these stand in a row of the log
SITE, BACKWARD, THREAD, STARTED, ENDED = 4, 6, 7, 9, 10
# from here on, a backward node has no number: it accumulates into .grad
UNNUMBERED = 1 << 62
LITERALS = (int, float, complex, str, bool, type(None))
# How a leaf without a gradient gets its first: the tensor that was handed over, or a copy in the leaf's own layout.
FIRST_GRADIENT = frozenset({"detach", "clone", "new_empty_strided", "_sparse_coo_tensor_unsafe"})
# the recordings that the running context is a part of
_tasks: ContextVar[frozenset[object]] = ContextVar("torch_vis recordings", default=frozenset())
# plans by id of the operator, read once per process; a recorder takes copies, to number its own calls
_plans: dict[int, OpPlan] = {}


class CallObserver(Protocol):
    """Sees the inputs and outputs of each call of a module, as a forward pre-hook and a forward hook do."""

    def before_call(self, scope: int, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        """A call begins."""

    def after_call(self, scope: int, result: Any) -> None:
        """A call has returned."""


def call_form(given: Any) -> Form:
    """The arguments of a call, ``(args, kwargs)``, of what ``CallForms`` noted of them."""
    if type(given) is not int:
        form: Form = given
        return form
    return Form(tuple, (0, 1), (Form(tuple, (0,), (TensorLeaf(given),)), Form(dict, (), ())))


class CallForms:
    """Notes the arguments and results of each call of a module as pytrees of value numbers (``Form``); holds no tensor.

    A call whose containers raise when they are looked into has no form: the user's run goes on, and what needs the form
    takes what the rest of the run reads of the call.
    """

    def __init__(self, recorder: Recorder) -> None:
        self.recorder = recorder
        # by scope; of most calls, which take one tensor, its number alone (see ``call_form``)
        self.given: dict[int, Any] = {}
        self.returned: dict[int, Any] = {}
        # calls without a form
        self.unreadable = 0
        # whether the form that is made has a tensor that no operation had seen yet
        self._met_unseen = False
        # arguments of open calls with a tensor that no operation had seen yet
        self.open: dict[int, Any] = {}
        # forms, by their scope, of calls that ended before an operation had seen all of their tensors: a number in them
        # is a place in ``unseen``, which has weak references and where the tensor's memory was
        self.late: list[tuple[dict[int, Any], int, Any]] = []
        self.unseen: list[tuple[Any, int]] = []

    def before_call(self, scope: int, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        """A call begins."""
        try:
            if not kwargs and len(args) == 1 and type(args[0]) is Tensor:
                entry = self.recorder.seen.get(id(args[0]))
                if entry is not None and entry() is args[0]:
                    self.given[scope] = entry.number
                    return
            self._met_unseen = False
            self.given[scope] = form_of((args, kwargs), self._number)
            if self._met_unseen:
                self.open[scope] = (args, kwargs)
        except Exception:
            self.unreadable += 1

    def after_call(self, scope: int, result: Any) -> None:
        """A call has returned."""
        try:
            if scope in self.open:
                given = self.open.pop(scope)
                self.given[scope] = completed(self.given[scope], form_of(given, self._number))
                if any(number is None for _, number in form_leaves(self.given[scope])):
                    self._follow(self.given, scope, given)
            if type(result) is Tensor:
                entry = self.recorder.seen.get(id(result))
                if entry is not None and entry() is result:
                    self.returned[scope] = TensorLeaf(entry.number)
                    return
            self._met_unseen = False
            self.returned[scope] = form_of(result, self._number)
            if self._met_unseen:
                self._follow(self.returned, scope, result)
        except Exception:
            self.unreadable += 1

    def _settle(self) -> None:
        """The numbers of tensors from outside that operations saw after the calls."""
        alive = {number: tensor() for number, tensor in self.recorder.external_tensors.items()}
        # reversed, so that a tensor has the number of its first version, which is what the calls had
        numbers = {id(tensor): number for number, tensor in reversed(alive.items()) if tensor is not None}
        late_numbers: list[int | None] = []
        for reference, address in self.unseen:
            tensor = reference()
            in_place = tensor is not None and _address(tensor) == address
            late_numbers.append(numbers.get(id(tensor)) if in_place else None)
        for forms, scope, form in self.late:
            forms[scope] = completed(forms[scope], renumbered(form, late_numbers.__getitem__))
        self.late.clear()
        self.unseen.clear()
        self.open.clear()

    def forms(self) -> tuple[dict[int, Any], dict[int, Any]]:
        """The arguments (see ``call_form``) and the results of the calls, by scope, once the run has ended."""
        self._settle()
        return self.given, self.returned

    def _follow(self, forms: dict[int, Any], scope: int, item: Any) -> None:
        """Note the tensors of a call that no operation has seen by its end, as where the call returns its input."""
        self.late.append((forms, scope, form_of(item, self._refer)))

    def _refer(self, tensor: Tensor) -> int:
        self.unseen.append((weakref.ref(tensor), _address(tensor)))
        return len(self.unseen) - 1

    def _number(self, tensor: Tensor) -> int | None:
        entry = self.recorder.seen.get(id(tensor))
        if entry is not None and entry() is tensor:
            return entry.number
        self._met_unseen = True
        return None


def _address(tensor: Tensor) -> int:
    """Of a tensor's memory, 0 where it has none that is plain."""
    try:
        return int(tensor.untyped_storage()._cdata)
    except (RuntimeError, NotImplementedError):
        return 0


class CallInfo(NamedTuple):
    """A call template and what it means for the dataflow."""

    call: Call
    slots: int
    """How many tensors it takes."""
    writes: tuple[int, ...]
    """The slots that it writes in place."""
    overwrites: frozenset[int]
    """The slots that it writes without reading what was there."""
    shape_only: frozenset[int]
    """The slots of which it reads the shape and no data."""
    plan: OpPlan


class ModuleEntry(NamedTuple):
    """What a scope is a call of: a module, a function, an optimizer, or the run itself."""

    owner: Any
    path: str
    type: str
    kind: str


class Recorder(Tensors):
    """Records one run: the log of operations, and the tables of calls, lines, scopes and tensors it refers to."""

    def __init__(self, *, keep: bool, timing: bool = True, memory: bool = True) -> None:
        super().__init__(keep=keep, memory=memory)
        self.timing = timing
        # False where only the calls of modules are followed, without a mode
        self.operations = True
        self.clock = clock if timing else stopped
        self.call_observer: CallObserver | None = None
        # names calls of public functions, where names were asked for
        self.function_mode: Any = None
        # recognises the user's own functions, where some were named, and methods of modules
        self.user_functions: Any = None

        # ---- the log of operations
        self.log: list[int] = []
        # gives each operation its number, also where several threads record
        self.node_numbers = itertools.count()
        # by id of the operator
        self.plans: dict[int, OpPlan] = {}
        # call templates
        self.calls: list[CallInfo] = []
        # what each random generator's last operation left behind
        self.rng_states: dict[Any, bytes] = {}
        # operations that raised: the operator, the values that it was given, and the source line
        self.raised: list[tuple[str, list[int], int]] = []
        # classes of tensors that were among the arguments so far
        self.tensor_types: set[type] = {Tensor, torch.nn.Parameter}
        # of other classes, whether it is a wrapper whose own dispatch has to run
        self.wrapper_types: dict[type, bool] = {}
        # a tensor type with a __torch_function__ of its own has been seen
        self.foreign_types = False

        # ---- whose code runs: source lines, and functions of torch's
        self.codes: dict[int, CodeInfo] = {}
        # by id, code that is torch's or ours and nothing special: its instructions that call, with their numbers among
        # the callers; None where they say nothing
        self.library_codes: dict[int, dict[int, int] | None] = {}
        # code and instruction of each caller; -1 for a public function as a whole
        self.callers: list[tuple[CodeType, int]] = []
        # code and instruction of each source line
        self.sites: list[tuple[CodeType | Site, int]] = []
        # ids of the code that ran when the recording began
        self.codes_at_start: frozenset[int] = frozenset()

        # ---- scopes, and what they are calls of
        # rows: module number, parent scope, start, stop, the recorder's own time inside, whether called in backward
        self.scopes: list[Any] = [[0, -1, clock(), 0, 0, 0]]
        # the innermost open scope, by thread
        self.current: dict[int, int] = {}
        self.modules: list[ModuleEntry] = [ModuleEntry(None, "", "run", "run")]
        # numbers among the modules, by id of the module, function or optimizer
        self.module_numbers: dict[int, int] = {}
        # scopes of calls of autograd.Function, by its code, the sequence number and the parent scope
        self.function_scopes: dict[tuple[int, int, int], int] = {}
        # numbers of public functions among the modules
        self.function_modules: set[int] = set()
        # by id of a pipeline stage and number of a micro-batch, what owns the scope of that
        self.chunks: dict[tuple[int, int], object] = {}

        # ---- what no operation tells: values that leave, memory that unseen code fills
        # method or operator, value, source line and operation, -1 where there is none
        self.python_escapes: list[tuple[str, int, int, int]] = []
        # operations that stand for code that could not be looked into
        self.opaque_nodes: list[int] = []
        # operations that made memory without contents, by value
        self.uninitialized: dict[int, int] = {}
        # the call template of operations that stand for such memory being filled unseen, -1 until there is one
        self.fill_template = -1

        # ---- gradients and optimizers
        self.grad_writes = GradWrites()
        # by thread: an open optimizer step and the frame it runs in
        self.open_steps: dict[int, list[tuple[int, Any]]] = {}
        # what each optimizer was set to when its first step began, by its number among the modules
        self.steps: dict[int, dict[str, Any]] = {}
        # the operations before which an optimizer let go of its gradients
        self.zeroed: list[int] = []

        # ---- what recording itself takes
        # nanoseconds that the recorder itself took, and what it took for each operation but for what is irregular
        self.overhead = 0
        self.regular = array("q")
        # calls that torch makes only because a mode is there, and that are no operations
        self.shallow_copies = 0

        # ---- who runs: tasks, threads, other processes
        # of a recording inside an asyncio task: what the contexts of that task and of those it starts know it by
        self.task: object | None = None
        # operations of other threads are recorded as well
        self.many_threads = False
        # threads that the run has started
        self.threads: list[threading.Thread] = []
        # threads and processes that may read tensors of the run, in words, and the line where each was started
        self.started: list[tuple[str, int]] = []
        self.threads_at_start = frozenset(thread.ident for thread in threading.enumerate())

        # ---- other ranks
        # source lines that talked to other ranks on threads that are not recorded
        self.talked_elsewhere: list[int] = []
        # operations that talk to other ranks or wait for them
        self.collective_nodes: list[int] = []
        # rows: operation, group, number, peer and tag
        self.comms: list[tuple[int, int, int, int, int]] = []
        # operations that waited, and the rows of ``comms`` that they waited for
        self.waits: list[tuple[int, int]] = []
        # collectives that nobody has waited for yet; a thread that changes them holds ``landing``
        self.pending: list[Any] = []
        self.landing = threading.RLock()
        self.groups: list[RankGroup] = []
        # numbers of groups by the name that torch has for them
        self.group_numbers: dict[str, int] = {}
        # how many collectives there were so far, by group, and messages by sender, receiver and tag
        self.comm_counts: Counter[tuple[Any, ...]] = Counter()
        # numbers of the call templates of collectives
        self.comm_calls: dict[Any, int] = {}

    def is_here(self) -> bool:
        """Whether what runs now is of the task that records; outside of tasks, all that the thread does is."""
        return self.task is None or self.task in _tasks.get()

    def bind_to_task(self, undo: Undo) -> None:
        """Inside an asyncio task, leave out what other tasks of the thread do while this one waits."""
        asyncio = sys.modules.get("asyncio")
        if asyncio is not None and asyncio._get_running_loop() is not None:
            task = self.task = object()
            undo.add(lambda: _tasks.set(_tasks.get() - {task}))
            _tasks.set(_tasks.get() | {task})

    # ---------------------------------------------------------------- nodes

    def has_started(self, thread: int) -> bool:
        """Whether a thread is one of the recorded run's; of threads that no Python started, whether it is new."""
        known = next((other for other in threading.enumerate() if other.ident == thread), None)
        if known is None or isinstance(known, threading._DummyThread):
            return thread not in self.threads_at_start
        # not by its number, which may have been another's
        return any(other is known for other in self.threads)

    def next_node(self) -> int:
        """The number of the operation that is about to be recorded."""
        number = next(self.node_numbers)
        if self.dead:
            self.note_deaths()
        self.count = number + 1
        return number

    def settle(self) -> None:
        """After closing: wait for an operation that another thread is just recording."""
        waits = 1000 if self.many_threads else 0
        while waits and len(self.row_starts()) < self.count:
            time.sleep(0.001)
            waits -= 1

    def row_starts(self) -> list[int]:
        """The index in the log at which each row begins."""
        starts, index = [], 0
        while index < len(self.log):
            starts.append(index)
            index += self.log[index]
        return starts

    def write(self, number: int, *row: int) -> None:
        """Append a row to the log."""
        self.log += (len(row) + 2, number, *row)

    def complete_rows(self, start: int, thread: int, site: int, backward: int) -> None:
        """Fill in the source line and the backward node that a thread's rows lack, from an index of the log on."""
        while start < len(self.log):
            if self.log[start + THREAD] == thread:
                if self.log[start + SITE] < 0:
                    self.log[start + SITE] = site
                if self.log[start + BACKWARD] == FORWARD:
                    self.log[start + BACKWARD] = backward
            start += self.log[start]

    # ---------------------------------------------------------------- calls and sites

    @irregular
    def plan(self, func: Any) -> OpPlan:
        """The plan of an operator, made at its first call."""
        known = _plans.get(id(func))
        if known is None:
            known = _plans[id(func)] = OpPlan(func)
        plan = self.plans[id(func)] = known.fresh()
        self.conj_or_neg = self.conj_or_neg or plan.conj_or_neg
        return plan

    @irregular
    def new_call(self, plan: OpPlan, key: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> int:
        """Number a call template that was not seen before."""
        template, slots_of = encode(plan.name, args, kwargs, self.kept.objects)

        def slots(arguments: Any) -> tuple[int, ...]:
            return tuple(slot for argument in arguments for slot in slots_of.get(argument, ()))

        info = CallInfo(
            template,
            sum(1 for _ in template.slots()),
            slots(plan.written(args, kwargs)),
            frozenset(slots(plan.overwrites)),
            frozenset(slots(plan.unread(args))),
            plan,
        )
        number = len(self.calls)
        self.calls.append(info)
        if key is not None:
            plan.calls[key] = number
        return number

    @irregular
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
                number = info.sites.get(frame.f_lasti)
                return self.new_site(info, frame.f_lasti) if number is None else number
            frame = frame.f_back
        return -1

    def called_from(self, frame: Any) -> tuple[int, bool, bool]:
        """Where a frame was called from: the user's source line, whether inside a backward pass, whether left out.

        Left out is what code runs that is not recorded, between the frame and that line.
        """
        in_backward = False
        codes = self.codes
        while frame is not None:
            code = frame.f_code
            info = codes.get(id(code)) or self.new_code(code)
            # of most code of torch's there is nothing to say
            if info.notable:
                in_backward = in_backward or info.seeding
                if info.left_out:
                    return -1, in_backward, True
                if info.user:
                    number = info.sites.get(frame.f_lasti)
                    site = self.new_site(info, frame.f_lasti) if number is None else number
                    return site, in_backward, False
            frame = frame.f_back
        return -1, in_backward, False

    @irregular
    def new_code(self, code: CodeType) -> CodeInfo:
        """Classify a code object at its first appearance: the user's, compiled, a library's."""
        info = self.codes[id(code)] = CodeInfo(code)
        kind = kind_of(code)
        if not info.notable:
            self.library_codes[id(code)] = {} if kind.names_calls else None
        elif kind.public:
            info.caller = self.new_caller(code, -1)
        return info

    def new_caller(self, code: CodeType, instruction: int) -> int:
        """Number an instruction of torch's own that was not seen before, or a public function."""
        self.callers.append((code, instruction))
        return len(self.callers) - 1

    # ---------------------------------------------------------------- scopes

    def enter(self, module: int, thread: int) -> int:
        """Open a scope on this thread and return its number."""
        number = len(self.scopes)
        in_backward = 0 if current_autograd_node() is None else 1
        self.scopes.append([module, self.current.get(thread, 0), self.clock(), 0, self.overhead, in_backward])
        self.current[thread] = number
        return number

    def leave(self, number: int, thread: int) -> None:
        """Close a scope, with any left open inside it by an exception."""
        module, parent, start, _, before, in_backward = self.scopes[number]
        # the garbage collector does not come back to a tuple of numbers
        self.scopes[number] = (module, parent, start, self.clock(), self.overhead - before, in_backward)
        self.current[thread] = parent

    def end_lost_step(self, thread: int, frame: Any) -> None:
        """Close optimizer steps that an exception ended: their frames are no longer below the one that runs now."""
        steps = self.open_steps[thread]
        while steps and not _is_below(steps[-1][1], frame):
            self.leave(steps.pop()[0], thread)
        if not steps:
            del self.open_steps[thread]

    def function_scope(self, info: CodeInfo, sequence: int, thread: int) -> int:
        """The scope of the running call of an autograd.Function: one per class and sequence number."""
        parent = self.current.get(thread, 0)
        # a call in its forward, whose scope is inside this one's
        if self.scopes[parent][0] in self.function_modules:
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
        """The number, among the modules, of what a scope is a call of."""
        number = self.module_numbers.get(id(owner))
        if number is None:
            number = self.module_numbers[id(owner)] = len(self.modules)
            self.modules.append(ModuleEntry(owner, path, type_name, kind))
        return number

    def chunk_key(self, stage: Any, chunk: int) -> object:
        """What stands for one micro-batch of a pipeline stage as the owner of a scope."""
        return self.chunks.setdefault((id(stage), chunk), object())

    # ---------------------------------------------------------------- writes

    def storage_number(self, tensor: Tensor) -> int | None:
        """The number of the memory that a tensor lies on, None where none of it was seen."""
        try:
            known = self.storages.get(tensor.untyped_storage()._cdata)
        except (RuntimeError, NotImplementedError):
            return None
        return None if known is None or known() is None else known.number

    def was_written(self, tensor: Tensor) -> bool:
        """Whether an operation wrote to the memory of this tensor."""
        entry = self.seen.get(id(tensor))
        if entry is None or entry() is not tensor:
            return False
        if entry.address is None:
            return any(info.writes for info in self.calls)
        known = self.storages.get(entry.address)
        return known is not None and known.number in self.written_storages


class GradWrites:
    """The values that became a ``.grad`` during a run, noted as it happens, since ``zero_grad()`` may free them.

    Pairs of a leaf and the number of a value that was its gradient, in order; ``-1 - n`` stands for the last value that
    operation ``n`` made. Autograd says which leaf it accumulates into, so this costs nothing per operation.
    """

    def __init__(self) -> None:
        self.rows: list[tuple[weakref.ref[Tensor], int]] = []
        # the tensor that a fake run uses instead of one of the user's
        self.substitute: Callable[[Tensor], Tensor] = _itself

    def note(self, grad_node: Any, name: str, args: Any, numbers: list[int], node: int) -> None:
        """An operation ran in an ``AccumulateGrad`` node; ``numbers`` has the values that it read."""
        leaf = getattr(grad_node, "variable", None)
        if leaf is None:
            return
        short = short_name(name)
        if leaf.grad is None:
            if short in FIRST_GRADIENT:
                self.rows.append((weakref.ref(leaf), -1 - node))
            return
        gradient = self.substitute(leaf.grad)
        # out of place only for a graph of the gradients, or sparse; otherwise it is a hook that looks at them
        out_of_place = short == "add" and (torch.is_grad_enabled() or gradient.is_sparse)
        operands = args[:1] if short == "add_" else args[:2] if out_of_place else ()
        for arg, number in zip(operands, numbers):
            if arg is gradient:
                self.rows += [(weakref.ref(leaf), number), (weakref.ref(leaf), -1 - node)]

    def note_step(self, tensors: Tensors, optimizer: Any) -> None:
        """Note the gradients that a step of an optimizer is about to read, whoever made them."""
        for group in optimizer.param_groups:
            for leaf in group["params"]:
                if leaf.grad is None:
                    continue
                for _, tensor in named_tensors(leaf.grad):
                    part = self.substitute(tensor)
                    if part.layout is torch.strided or tensors.knows(part):
                        self.rows.append((weakref.ref(leaf), tensors.number_of(part)))

    def named(self, names: Mapping[int, str]) -> list[tuple[str, int]]:
        """The names of gradients and the values that they were; ``names`` has those of the leaves, by ``id``."""
        rows = []
        for leaf_ref, number in self.rows:
            leaf = leaf_ref()
            if leaf is None:
                continue
            name = names.get(id(leaf)) or names.get(id(self.substitute(leaf)))
            if name is None:
                continue
            parts = inner_tensors(leaf)
            if parts is None:
                rows.append((f"{name}.grad", number))
            # of several, it is not known which
            elif len(parts) == 1:
                rows.append((f"{name}.grad.{parts[0][0]}", number))
        return rows


def _itself(tensor: Tensor) -> Tensor:
    return tensor


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


# ---------------------------------------------------------------- call templates


def encode(
    op: str, args: tuple[Any, ...], kwargs: Mapping[str, Any], objects: dict[str, Any]
) -> tuple[Call, dict[int | str, tuple[int, ...]]]:
    """The template of a call with live arguments, and which slots each argument (by position or name) has.

    An argument that has no literal form is put into ``objects`` under the text that stands for it.
    """
    encoder = _Encoder(objects)
    slots_of: dict[int | str, tuple[int, ...]] = {}
    encoded: list[Any] = []
    named: list[tuple[int | str, Any]] = [*enumerate(args), *kwargs.items()]
    for key, arg in named:
        first = encoder.slots
        encoded.append(encoder.item(arg))
        slots_of[key] = tuple(range(first, encoder.slots))
    count = len(args)
    return Call(op, tuple(encoded[:count]), tuple(zip(kwargs, encoded[count:]))), slots_of


class _Encoder:
    def __init__(self, objects: dict[str, Any]) -> None:
        self.objects = objects
        self.slots = 0

    def item(self, arg: Any) -> Any:
        if isinstance(arg, Tensor):
            self.slots += 1
            return Slot(self.slots - 1)
        if type(arg) in LITERALS:
            return arg
        if isinstance(arg, Special):
            return arg
        if isinstance(arg, (list, tuple)):
            return tuple([self.item(part) for part in arg])
        if isinstance(arg, dict):
            return (Special("dict", repr(tuple(arg))), tuple([self.item(part) for part in arg.values()]))
        if isinstance(arg, torch.device):
            return Special("device", str(arg))
        for kind in (torch.dtype, torch.layout, torch.memory_format):
            if isinstance(arg, kind):
                return Special(kind.__name__, str(arg).removeprefix("torch."))
        text = f"{type(arg).__name__} #{len(self.objects)}"
        self.objects[text] = arg
        return Special("object", text)


# recorders of threads that may start others, and the modules whose calls there they record too
adopting: list[tuple[Recorder, frozenset[int]]] = []


def _is_below(frame: Any, top: Any) -> bool:
    """Whether a frame is one of those that ``top`` was called from, or itself."""
    while top is not None and top is not frame:
        top = top.f_back
    return top is not None
