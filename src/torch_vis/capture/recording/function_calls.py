"""Calls of torch's public functions as scopes: the names a program is written in, around the operations that they ran.

A ``TorchFunctionMode`` sees ``torch.nn.functional.conv2d`` or ``Tensor.view`` where the dispatch mode sees what those
are made of. It costs a Python call for each, and torch takes some short cuts only where no such mode is active, so it
is there only when names were asked for; a short cut that was not taken is counted and told.
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
    _push_mode,
    resolve_name,
)

from torch_vis.capture.recording.recorder import (
    Recorder,
    current_autograd_node,
    flat_tensors,
    get_ident,
    sequence_number,
)
from torch_vis.capture.recording.tensors import Tensor
from torch_vis.capture.recording.user_functions import UserFunctions, api_name, code_of, last_part, name_of

getframe = sys._getframe
grad_enabled = torch.is_grad_enabled
redispatch: Any = getattr(torch.overrides, "redispatch_function", None)  # not in torch 2.11

# Torch lists its functions at the first question and keeps the list. Asked now, before a recorder wraps any of them.
resolve_name(torch.add)

OPENED = frozenset({"torch.nn.functional.multi_head_attention_forward"})
"""Functions that are a whole layer: what they call is worth a scope of its own, inside theirs."""

PASSED_THROUGH = frozenset({"Tensor.backward", "torch.autograd.backward", "torch.autograd.grad"})
"""Functions that run the work of others: no scope, and what they call is seen."""

ATTRIBUTES_THAT_RUN = frozenset({"T", "mT", "H", "mH", "real", "imag", "data"})
QUIET = frozenset(
    f"Tensor.{name}"
    for name in "__len__ dim element_size get_device is_complex is_contiguous is_floating_point ndimension numel "
    "register_hook requires_grad_ size storage_offset stride".split()
)
FAST_PATH = (
    "some Tensor argument has_torch_function"  # what attention notes when a mode makes it go the long way
)
REASONS = {  # by code: the variable that it notes this in
    id(torch.nn.MultiheadAttention.forward.__code__): "why_not_fast_path",
    id(torch.nn.TransformerEncoderLayer.forward.__code__): "why_not_sparsity_fast_path",
    id(torch.nn.TransformerEncoder.forward.__code__): "why_not_sparsity_fast_path",
}


TENSOR = "<tensor>"  # stands for a tensor among the arguments of a call
PLAIN_TENSORS = (Tensor, torch.nn.Parameter)
PLAIN = frozenset(
    {int, type(None), type(...), torch.dtype, torch.device, torch.layout, torch.memory_format}
)  # arguments that are told from all others by being equal
EMPTY = (bool, int, float, complex, str, torch.dtype, torch.device, torch.Size, type(None))  # hold no tensor
LONGEST = 64  # a longer list, or text, is data and told by its length
DEEPEST = 8
FAILED = object()
UNKNOWN = -1  # in a note: a tensor that no operation has seen


class FunctionPlan(NamedTuple):
    """What to do at the call of one function."""

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
        self.closed = closed  # names that are not to be opened
        self.known: dict[Any, FunctionPlan] = {}
        self.notes = array("q")  # see ``_note``
        self.spellings: dict[Any, int] = {}  # function and arguments as written, tensors left blank

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Run one call in a scope of its own."""
        rec = self.recorder
        if is_compiling() or rec.closed:
            return func(*args, **(kwargs or {}))
        try:
            called = self.known.get(func) or self._meet(func)
        except TypeError:  # it cannot be hashed
            called = self._meet(func)
        if called.module < 0 and not called.opened:
            return called.run(*args, **(kwargs or {}))
        alone = called.opened and redispatch is not None and not torch._C._len_torch_function_stack()
        if called.module < 0:
            return self._open(called, types, args, kwargs) if alone else func(*args, **(kwargs or {}))
        if called.opened:
            self._fast_path(types)
        entered, thread = rec.clock(), get_ident()
        given: list[Tensor] = []
        spelling = (called.module, frozen(args, given), frozen(kwargs, given) if kwargs else None)
        numbers = [self._number(tensor) for tensor in given]
        if rec.declared is not None:
            rec.declared.follow(thread)
        before, count = rec.current.get(thread, 0), rec.count
        around = -1 if grad_enabled() else self._autograd_function(thread)
        if around >= 0:
            rec.current[thread] = around
        scope = rec.enter(called.module, thread)
        out = FAILED
        try:
            if alone:
                out = self._open(called, types, args, kwargs)
            else:
                out = called.run(*args, **kwargs) if kwargs else called.run(*args)
            return out
        finally:
            if rec.count == count and scope == len(rec.scopes) - 1 and not rec.shared:
                rec.scopes.pop()
            else:
                rec.leave(scope, thread)
                _, _, began, ended, *_ = rec.scopes[scope]
                if out is not FAILED and not rec.closed:
                    self._note(scope, spelling, given, numbers, out)
                if around >= 0:
                    _stretch(rec.scopes[around], rec.scopes[scope])
                rec.overhead += began - entered + rec.clock() - ended
            rec.current[thread] = before

    def __exit__(self, *exception: object) -> None:
        stack = _get_current_function_mode_stack()
        if stack and stack[-1] is self:
            _pop_mode()
        else:  # the block left a mode of its own behind
            _restack([mode for mode in stack if mode is not self])

    def _open(self, called: FunctionPlan, types: Any, args: Any, kwargs: Any) -> Any:
        """Run a function with the mode on for what it calls, though not for itself again."""
        with self:
            return redispatch(called.run, types, args, kwargs or {})

    def _number(self, tensor: Tensor) -> int:
        """The number of a tensor's newest version; nothing is noted of one that no operation has seen."""
        entry = self.recorder.seen.get(id(tensor))
        if entry is None or entry() is not tensor:
            return UNKNOWN
        if entry.address and type(tensor) in PLAIN_TENSORS:
            return entry.number if entry.address == tensor.untyped_storage()._cdata else UNKNOWN
        return entry.number

    def _note(self, scope: int, spelling: Any, given: list[Tensor], before: list[int], out: Any) -> None:
        """Keep what a call was given and gave back, as numbers: scope, spelling, how many of each, then these.

        A tensor that was first seen during the call has its number after it, as ``-2 - number``. A call that gives
        back no tensor gives those that it changed.
        """
        for place, number in enumerate(before):
            if number == UNKNOWN:
                found = self._number(given[place])
                before[place] = UNKNOWN if found == UNKNOWN else -2 - found
        if type(out) is Tensor:
            after = [self._number(out)]
        elif not isinstance(out, EMPTY):
            after = [self._number(tensor) for tensor in flat_tensors((out,))] or [UNKNOWN]
        else:
            after = []
            for tensor, number in zip(given, before, strict=True):
                found = self._number(tensor)
                if found not in (UNKNOWN, number, -2 - number):
                    after.append(found)
        number = self.spellings.setdefault(spelling, len(self.spellings))
        self.notes.extend((scope, number, len(before), len(after), *before, *after))

    def _meet(self, func: Any) -> FunctionPlan:
        """What to do about a function, at its first call."""
        run = getattr(func, "unwrapped", func)  # a method that a recorder wraps already
        name = api_name(run)
        opened = (name in OPENED or name in PASSED_THROUGH) and name not in self.closed
        if is_quiet(name) or name in PASSED_THROUGH:
            called = FunctionPlan(run, -1, opened)
        else:
            shown = name.removesuffix(".__get__")
            module = self.recorder.module_number(run, shown, last_part(shown), "function")
            self.recorder.api_modules.add(module)
            called = FunctionPlan(run, module, opened)
        try:
            self.known[func] = called
        except TypeError:
            pass  # it is met again at each call
        return called

    def _autograd_function(self, thread: int) -> int:
        """The scope of the autograd.Function whose ``forward`` makes this call, -1 if none does."""
        rec = self.recorder
        if current_autograd_node() is not None:
            return -1
        frame: Any = getframe(2)
        while frame is not None:
            code = frame.f_code
            if id(code) not in rec.boring:
                info = rec.codes.get(id(code)) or rec.new_code(code)
                if info.function is not None:
                    return rec.function_scope(info, sequence_number(), thread)
                if info.user:
                    return -1
            frame = frame.f_back
        return -1

    def _fast_path(self, types: Any) -> None:
        """Count an attention that would have gone its fast path but for this mode."""
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
                    rec.unseen["fast paths"] = rec.unseen.get("fast paths", 0) + 1
                    return
            frame = frame.f_back


def frozen(item: Any, tensors: list[Tensor], depth: int = 0) -> Any:
    """An argument as something hashable that tells how it was written; its tensors are left blank and listed.

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
        return (kind, item or repr(item))  # 0.0 and -0.0 are equal, and so are False and 0
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


def is_quiet(name: str) -> bool:
    """Whether a function only tells something of a tensor.

    >>> is_quiet("Tensor.shape.__get__"), is_quiet("Tensor.mT.__get__"), is_quiet("Tensor.add")
    (True, False, False)
    """
    if name.endswith((".__get__", ".__set__")):
        return name.split(".")[-2] not in ATTRIBUTES_THAT_RUN
    return name in QUIET


def _stretch(outer: list[int], inner: list[int]) -> None:
    """Let a scope that has no times of its own reach from the first to the last of those in it."""
    outer[2] = outer[2] or inner[2]
    outer[3] = inner[3]
    outer[4] += inner[4]


def _restack(modes: list[TorchFunctionMode]) -> None:
    """Make these the function modes of this thread, outermost first."""
    for _ in range(torch._C._len_torch_function_stack()):
        _pop_mode()
    for mode in modes:
        _push_mode(mode)


# ---------------------------------------------------------------- compiled code
#
# Dynamo guards on the function modes that are active: a compiled function called under ours would be compiled once
# more for us, and one that is first called under ours would be compiled again after us. So the mode is off while
# Dynamo's hook is on. There is no other way to hear of that than the function through which the hook is set.

_watchers = 0
_set_hook: Any = None
_parked: dict[
    int, tuple[Any, list[TorchFunctionMode]]
] = {}  # by thread: whose doing, and the modes as they were


def watch_compiled() -> bool:
    """Step aside for compiled functions from now on; False if Dynamo is not even loaded."""
    global _watchers, _set_hook
    frames: Any = sys.modules.get("torch._dynamo.eval_frame")
    _watchers += 1
    if frames is None:
        return False
    if _set_hook is None:
        _set_hook = frames._maybe_set_eval_frame
        frames._maybe_set_eval_frame = _hook_is_set
    return True


def unwatch_compiled() -> None:
    """Undo one ``watch_compiled``."""
    global _watchers, _set_hook
    _watchers -= 1
    if not _watchers and _set_hook is not None:
        sys.modules["torch._dynamo.eval_frame"]._maybe_set_eval_frame = _set_hook  # type: ignore[attr-defined]
        _set_hook = None


def _hook_is_set(callback: Any) -> Any:
    """Stands for ``torch._dynamo.eval_frame._maybe_set_eval_frame``; a callback of None turns the hook off."""
    thread, caller = get_ident(), getframe(1)
    if callback is not None:
        stack = _get_current_function_mode_stack()
        if thread not in _parked and any(isinstance(mode, FunctionMode) for mode in stack):
            _parked[thread] = (caller, stack)
            _restack([mode for mode in stack if not isinstance(mode, FunctionMode)])
        return _set_hook(callback)  # from here on Dynamo looks at every frame: nothing of ours may follow
    before = _set_hook(None)
    if thread in _parked and _parked[thread][0] is caller:  # and not a function that asked not to be compiled
        _, stack = _parked.pop(thread)
        now = _get_current_function_mode_stack()
        kept = [mode for mode in stack if isinstance(mode, FunctionMode) or mode in now]
        _restack(kept + [mode for mode in now if mode not in stack])
    return before


class FunctionScopes:
    """Scopes for calls of public torch functions and, recognised by their frames, for functions of the user's."""

    def __init__(self, recorder: Recorder, functions: Iterable[Callable[..., Any]] = ()) -> None:
        functions = list(functions)
        whole = frozenset(name_of(function) for function in functions if code_of(function) is None)
        self.recorder = recorder
        recorder.naming = FunctionMode(recorder, whole)
        recorder.declared = UserFunctions(recorder, functions) if functions else None

    def __enter__(self) -> FunctionScopes:
        self._watching = watch_compiled()
        try:
            self.recorder.naming.__enter__()
        except BaseException:
            unwatch_compiled()
            raise
        return self

    def __exit__(self, *exception: object) -> None:
        rec = self.recorder
        try:
            rec.naming.__exit__(None, None, None)
        finally:
            unwatch_compiled()
            if rec.declared is not None:
                rec.declared.end()
        if not self._watching and "torch._dynamo.eval_frame" in sys.modules:
            frames = sys.modules["torch._dynamo.utils"].counters["frames"]
            rec.unseen["compiled under names"] = frames["total"]
