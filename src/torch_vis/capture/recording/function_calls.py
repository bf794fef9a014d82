"""Calls of torch's public functions as scopes: the names a program is written in, around the operations that they ran.

A ``TorchFunctionMode`` sees ``torch.nn.functional.conv2d`` or ``Tensor.view`` where the dispatch mode sees what those
are made of. It costs a Python call for each, and torch takes some fast paths only where no such mode is active, so it
is there only when names were asked for; a fast path that was not taken is counted and becomes a limit.
"""

from __future__ import annotations

import sys
from array import array
from collections.abc import Callable, Iterable
from typing import Any, NamedTuple

import torch
from torch.compiler import is_compiling
from torch.overrides import (
    TorchFunctionMode,
    _get_current_function_mode_stack,
    _pop_mode,
    resolve_name,
)

from torch_vis.capture.modes import FunctionModes, push_mode, restack
from torch_vis.capture.recording.recorder import (
    Recorder,
    current_autograd_node,
    flat_tensors,
    get_ident,
    sequence_number,
)
from torch_vis.capture.recording.tensors import Tensor
from torch_vis.capture.recording.user_functions import UserFunctions, api_name, code_of, last_part, name_of
from torch_vis.capture.undo import Context, Patch, Shared, Undo, in_child

getframe = sys._getframe
grad_enabled = torch.is_grad_enabled
# not in torch 2.11
redispatch: Any = getattr(torch.overrides, "redispatch_function", None)

# Torch lists its functions at the first question and keeps the list. Asked now, before a recorder wraps any of them.
resolve_name(torch.add)

OPENED = frozenset({"torch.nn.functional.multi_head_attention_forward"})
"""Functions that are a whole layer: what they call is worth a scope of its own, inside theirs."""

PASSED_THROUGH = frozenset({"Tensor.backward", "torch.autograd.backward", "torch.autograd.grad"})
"""Functions that only run other work: they have no scope, and what they call is seen."""

ATTRIBUTES_THAT_RUN = frozenset({"T", "mT", "H", "mH", "real", "imag", "data"})
PROPERTIES = frozenset(
    f"Tensor.{name}"
    for name in "__len__ dim element_size get_device is_complex is_contiguous is_floating_point ndimension numel "
    "register_hook requires_grad_ size storage_offset stride".split()
)
# the reason that attention writes down when a mode makes it leave the fast path
FAST_PATH = "some Tensor argument has_torch_function"
# by code: the variable that it writes this into
REASONS = {
    id(torch.nn.MultiheadAttention.forward.__code__): "why_not_fast_path",
    id(torch.nn.TransformerEncoderLayer.forward.__code__): "why_not_sparsity_fast_path",
    id(torch.nn.TransformerEncoder.forward.__code__): "why_not_sparsity_fast_path",
}


# stands for a tensor among the arguments of a call
TENSOR = "<tensor>"
PLAIN_TENSORS = (Tensor, torch.nn.Parameter)
# types of arguments that equal only arguments of the same type
PLAIN = frozenset({int, type(None), type(...), torch.dtype, torch.device, torch.layout, torch.memory_format})
# types of results without a tensor
EMPTY = (bool, int, float, complex, str, torch.dtype, torch.device, torch.Size, type(None))
# a longer list, or text, is data and written as its length
LONGEST = 64
DEEPEST = 8
FAILED = object()
# in a note: a tensor that no operation has seen
UNKNOWN = -1


class FunctionPlan(NamedTuple):
    """What to do when one function is called: run it, in a scope or not, with the mode on inside or not."""

    run: Any
    module: int
    opened: bool = False


class FunctionMode(TorchFunctionMode):
    """Opens a scope at each call of a public torch function; the function runs exactly as it would have.

    While it runs the mode is off, so that a function which calls others is one scope. Those in ``OPENED`` are run with
    the mode on. A scope in which nothing ran (``x.shape``) is dropped again.
    """

    def __init__(self, recorder: Recorder, closed: frozenset[str] = frozenset()) -> None:
        super().__init__()
        self.recorder = recorder
        # names that are not to be opened
        self.closed = closed
        self.plans: dict[Any, FunctionPlan] = {}
        # see ``_note``
        self.notes = array("q")
        # function and arguments as written, with ``TENSOR`` for each tensor
        self.spellings: dict[Any, int] = {}

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Run one call in a scope of its own."""
        rec = self.recorder
        if is_compiling() or rec.closed or not rec.is_here():
            return func(*args, **(kwargs or {}))
        try:
            plan = self.plans.get(func) or self._new_plan(func)
        except TypeError:
            plan = self._new_plan(func)
        if plan.module < 0 and not plan.opened:
            return plan.run(*args, **(kwargs or {}))
        alone = plan.opened and redispatch is not None and not torch._C._len_torch_function_stack()
        if plan.module < 0:
            return self._open(plan, types, args, kwargs) if alone else func(*args, **(kwargs or {}))
        if plan.opened:
            self._count_fast_path(types)
        entered, thread = rec.clock(), get_ident()
        tensors: list[Tensor] = []
        spelling = (plan.module, frozen(args, tensors), frozen(kwargs, tensors) if kwargs else None)
        numbers = [self._number(tensor) for tensor in tensors]
        if rec.user_functions is not None:
            rec.user_functions.follow(thread)
        before, count = rec.current.get(thread, 0), rec.count
        around = -1 if grad_enabled() else self._autograd_function(thread)
        if around >= 0:
            rec.current[thread] = around
        scope = rec.enter(plan.module, thread)
        out = FAILED
        try:
            if alone:
                out = self._open(plan, types, args, kwargs)
            else:
                out = plan.run(*args, **kwargs) if kwargs else plan.run(*args)
            return out
        finally:
            if rec.count == count and scope == len(rec.scopes) - 1 and not rec.many_threads:
                rec.scopes.pop()
            else:
                rec.leave(scope, thread)
                _, _, start, stop, *_ = rec.scopes[scope]
                if out is not FAILED and not rec.closed:
                    self._note(scope, spelling, tensors, numbers, out)
                if around >= 0:
                    _stretch(rec.scopes[around], rec.scopes[scope])
                rec.overhead += start - entered + rec.clock() - stop
            rec.current[thread] = before

    def __exit__(self, *exception: object) -> None:
        stack = _get_current_function_mode_stack()
        if stack and stack[-1] is self:
            _pop_mode()
        else:
            # the block left a mode of its own behind
            restack(FunctionModes, [mode for mode in stack if mode is not self])

    def _open(self, plan: FunctionPlan, types: Any, args: Any, kwargs: Any) -> Any:
        """Run a function with the mode on for what it calls, but not for the function itself."""
        with self:
            return redispatch(plan.run, types, args, kwargs or {})

    def _number(self, tensor: Tensor) -> int:
        """The number of a tensor's newest version; nothing is noted of one that no operation has seen."""
        entry = self.recorder.seen.get(id(tensor))
        if entry is None or entry() is not tensor:
            return UNKNOWN
        if entry.address and type(tensor) in PLAIN_TENSORS:
            return entry.number if entry.address == tensor.untyped_storage()._cdata else UNKNOWN
        return entry.number

    def _note(self, scope: int, spelling: Any, inputs: list[Tensor], before: list[int], out: Any) -> None:
        """Keep the inputs and outputs of a call as numbers: scope, spelling, how many of each, then these.

        An input that was first seen during the call has its number after it, as ``-2 - number``. The outputs of a call
        that returns no tensor are those that it changed.
        """
        for index, number in enumerate(before):
            if number == UNKNOWN:
                later = self._number(inputs[index])
                before[index] = UNKNOWN if later == UNKNOWN else -2 - later
        if type(out) is Tensor:
            after = [self._number(out)]
        elif not isinstance(out, EMPTY):
            after = [self._number(tensor) for tensor in flat_tensors((out,))] or [UNKNOWN]
        else:
            after = []
            for tensor, number in zip(inputs, before, strict=True):
                later = self._number(tensor)
                if later not in (UNKNOWN, number, -2 - number):
                    after.append(later)
        number = self.spellings.setdefault(spelling, len(self.spellings))
        self.notes.extend((scope, number, len(before), len(after), *before, *after))

    def _new_plan(self, func: Any) -> FunctionPlan:
        """What to do about a function, at its first call."""
        # a recorder may have wrapped a method already
        run = getattr(func, "unwrapped", func)
        name = api_name(run)
        opened = (name in OPENED or name in PASSED_THROUGH) and name not in self.closed
        if is_property(name) or name in PASSED_THROUGH:
            plan = FunctionPlan(run, -1, opened)
        else:
            shown = name.removesuffix(".__get__")
            module = self.recorder.module_number(run, shown, last_part(shown), "function")
            self.recorder.function_modules.add(module)
            plan = FunctionPlan(run, module, opened)
        try:
            self.plans[func] = plan
        except TypeError:
            # it has no hash, and is planned again at each call
            pass
        return plan

    def _autograd_function(self, thread: int) -> int:
        """The scope of the autograd.Function whose ``forward`` makes this call, -1 if none does."""
        rec = self.recorder
        if current_autograd_node() is not None:
            return -1
        frame: Any = getframe(2)
        while frame is not None:
            code = frame.f_code
            if id(code) not in rec.library_codes:
                info = rec.codes.get(id(code)) or rec.new_code(code)
                if info.function is not None:
                    return rec.function_scope(info, sequence_number(), thread)
                if info.user:
                    return -1
            frame = frame.f_back
        return -1

    def _count_fast_path(self, types: Any) -> None:
        """Count a call of attention that would have taken its fast path but for this mode."""
        if torch._C._len_torch_function_stack() or any(
            kind not in (torch.Tensor, torch.nn.Parameter) for kind in types
        ):
            return
        rec = self.recorder
        frame: Any = getframe(2)
        while frame is not None and not (rec.codes.get(id(frame.f_code)) or rec.new_code(frame.f_code)).user:
            reason = REASONS.get(id(frame.f_code))
            if reason is not None and frame.f_locals.get(reason) == FAST_PATH:
                tensors = frame.f_locals.get("tensor_args", ())
                if not grad_enabled() or not any(t is not None and t.requires_grad for t in tensors):
                    rec.uncaptured["fast paths"] += 1
                    return
            frame = frame.f_back


def frozen(item: Any, tensors: list[Tensor], depth: int = 0) -> Any:
    """An argument in a hashable form, as it was written; its tensors become ``TENSOR`` and are listed.

    >>> frozen((torch.ones(1), 2, 0.5, slice(1, None)), [])
    (<class 'tuple'>, '<tensor>', 2, (<class 'float'>, 0.5), (<class 'slice'>, 1, None, None))
    """
    kind = type(item)
    if kind in PLAIN_TENSORS or isinstance(item, Tensor):
        tensors.append(item)
        return TENSOR
    if kind in PLAIN:
        return item
    if kind is float or kind is bool:
        # 0.0 and -0.0 are equal, and so are False and 0
        return (kind, item or repr(item))
    if kind is str:
        return (kind, item if len(item) <= LONGEST else f"{item[: LONGEST - 1]}…")
    if depth == DEEPEST:
        return (object, kind.__name__)
    if isinstance(item, (tuple, list)):
        if len(item) > LONGEST and not isinstance(item[0], (Tensor, tuple, list, dict)):
            return (object, f"{kind.__name__} of {len(item):,}")
        shape = list if kind is list else tuple
        return (shape, *[frozen(part, tensors, depth + 1) for part in item])
    if isinstance(item, dict):
        return (dict, *[(str(key), frozen(part, tensors, depth + 1)) for key, part in item.items()])
    if kind is slice:
        return (kind, *[frozen(part, tensors, depth + 1) for part in (item.start, item.stop, item.step)])
    if isinstance(item, (int, complex)):
        return (object, repr(item))
    return (object, kind.__name__)


def is_property(name: str) -> bool:
    """Whether a function only reads a property of a tensor.

    >>> is_property("Tensor.shape.__get__"), is_property("Tensor.mT.__get__"), is_property("Tensor.add")
    (True, False, False)
    """
    if name.endswith((".__get__", ".__set__")):
        return name.split(".")[-2] not in ATTRIBUTES_THAT_RUN
    return name in PROPERTIES


def _stretch(outer: list[int], inner: list[int]) -> None:
    """Extend a scope that has no times of its own to those of a scope inside it."""
    outer[2] = outer[2] or inner[2]
    outer[3] = inner[3]
    outer[4] += inner[4]


# ---------------------------------------------------------------- compiled code
#
# Dynamo guards on the function modes that are active: a compiled function called under ours would be compiled once
# more for us, and one that is first called under ours would be compiled again after us. So the mode is off while
# Dynamo's hook is on. There is no other way to hear of that than the function through which the hook is set.

# by thread: the frame that turned Dynamo's hook on, and the function modes as they were
_parked: dict[int, tuple[Any, list[TorchFunctionMode]]] = {}


def _wrap_set_hook(original: Any) -> Any:
    """What stands for ``_maybe_set_eval_frame``; a callback of None turns the hook off."""

    def set_hook(callback: Any) -> Any:
        if _dynamo_hook.wrapper is not set_hook:
            return original(callback)
        thread, caller = get_ident(), getframe(1)
        if callback is not None:
            stack = _get_current_function_mode_stack()
            if thread not in _parked and any(isinstance(mode, FunctionMode) for mode in stack):
                _parked[thread] = (caller, stack)
                restack(FunctionModes, [mode for mode in stack if not isinstance(mode, FunctionMode)])
            # from here on Dynamo looks at every frame: nothing of ours may follow
            return original(callback)
        before = original(None)
        # and not a function that asked not to be compiled
        if thread in _parked and _parked[thread][0] is caller:
            _, stack = _parked.pop(thread)
            now = _get_current_function_mode_stack()
            kept = [mode for mode in stack if isinstance(mode, FunctionMode) or mode in now]
            restack(FunctionModes, kept + [mode for mode in now if mode not in stack])
        return before

    return set_hook


_dynamo_hook = Patch(
    lambda: sys.modules.get("torch._dynamo.eval_frame"), "_maybe_set_eval_frame", _wrap_set_hook
)
_watched = Shared(_dynamo_hook)
in_child(_parked.clear)


def _unpark(mode: FunctionMode, thread: int) -> None:
    """Forget a mode that stepped aside for compiled code which an interrupt has ended."""
    caller, stack = _parked.get(thread, (None, []))
    others = [other for other in stack if other is not mode]
    if any(isinstance(other, FunctionMode) for other in others):
        _parked[thread] = caller, others
    else:
        _parked.pop(thread, None)


class FunctionScopes(Context[None]):
    """Scopes for calls of public torch functions and, recognised by their frames, for functions of the user's."""

    def __init__(self, recorder: Recorder, functions: Iterable[Callable[..., Any]] = ()) -> None:
        functions = list(functions)
        operations = frozenset(name_of(function) for function in functions if code_of(function) is None)
        self.recorder = recorder
        recorder.function_mode = FunctionMode(recorder, operations)
        recorder.user_functions = UserFunctions(recorder, functions) if functions else None

    def _begin(self, undo: Undo) -> None:
        undo.add(self._end_functions, "torch._dynamo.eval_frame" in sys.modules)
        _watched.take(undo, self)
        undo.add(_unpark, self.recorder.function_mode, get_ident())
        push_mode(undo, self.recorder.function_mode)

    def _end_functions(self, watched: bool) -> None:
        rec = self.recorder
        if rec.user_functions is not None:
            rec.user_functions.end()
        if not watched and "torch._dynamo.eval_frame" in sys.modules:
            frames = sys.modules["torch._dynamo.utils"].counters["frames"]
            rec.uncaptured["compiled under names"] = frames["total"]
