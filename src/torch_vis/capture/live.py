"""Live runs: activations are kept and changed during real calls of a model, by hooks that are gone afterwards.

A selected module has a hook; only where an operation inside a module or an edge is selected is there a dispatch mode.
Nothing of the model is wrapped or copied, so that inputs of any size, branches, loops and ``generate`` run as they do.
"""

from __future__ import annotations

import os
import sys
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import wraps
from typing import Any, NamedTuple

import torch
from torch._functorch.pyfunctorch import temporarily_clear_interpreter_stack
from torch.utils._python_dispatch import TorchDispatchMode

from torch_vis.capture.containers import KeptByName, argument_names, named_tensors, no_part, with_tensors
from torch_vis.capture.edits import (
    EditPlace,
    Replacement,
    changed,
    check_replacement,
    same_form,
    sliced,
    takes_first,
)
from torch_vis.capture.modes import push_mode, without_gradients
from torch_vis.capture.undo import (
    LEAVE,
    MISSING,
    MORE_STACK,
    Context,
    Setting,
    Shared,
    Undo,
    hook_calls,
    is_open,
    undo_in_child,
)
from torch_vis.errors import UsageError
from torch_vis.graph.query.selector import (
    Atom,
    Branch,
    CallsOf,
    HeadPlace,
    ModuleName,
    Operations,
    Selector,
    SelectorNames,
    atoms,
    evaluate,
    glob_matcher,
    head_place,
    is_about_operations,
    operator_names,
    selector,
)
from torch_vis.ops.schemas import argument_names as schema_names
from torch_vis.ops.schemas import numbers_as_tensors

OTHER_THREADS = (
    "calls of the model on other threads: operations and edges are met on the thread that entered the block"
)


class LiveModule(NamedTuple):
    """A module as a predicate in a selector is given it."""

    path: str
    type: str
    module: torch.nn.Module


class Stopped(BaseException):
    """Ends a call of the model once all that was asked for is there; no user code is meant to catch it."""


class Tap:
    """What is done at one module: the tensor that is meant, and what it is kept as or replaced by."""

    def __init__(
        self, key: str, module: torch.nn.Module, branch: Branch, name: str, by: Any, place: HeadPlace | None
    ) -> None:
        self.key, self.module, self.branch, self.name, self.by, self.place = (
            key,
            module,
            branch,
            name,
            by,
            place,
        )
        calls = [atom for atom in _calls_of(branch) if atom.call is not None or atom.number is not None]
        self.call = calls[0].call if calls else None
        self.number = calls[0].number if calls else None
        # calls of the module within one call of the model, and in all
        self.within = self.total = -1
        self.acted = 0

    @property
    def port(self) -> str:
        """Where it is: what the call is given, what it returns, or what comes back to that in backward."""
        return self.place.port if self.place is not None else self.branch.port or "output"

    @property
    def whole(self) -> bool:
        """Whether it is about all that the call returns, not one tensor of it."""
        return (
            self.port == "output"
            and not self.branch.leaf
            and self.branch.index is None
            and self.place is None
        )

    def due(self) -> bool:
        """Count a call; whether it is one that was selected."""
        self.within += 1
        self.total += 1
        return (self.call is None or self.call == self.within) and (
            self.number is None or self.number == self.total
        )

    def part(self, tensor: torch.Tensor) -> tuple[Any, ...] | None:
        """The slice of the tensor that is meant."""
        if self.place is None:
            return self.branch.index
        index = self.place.slice_of(self.branch.head, tensor.shape[-1], self.name)
        return index if self.branch.index is None else (*self.branch.index, index[1])


class OperationTap:
    """An operation in calls of some modules, an edge into them, or what meets the weight of one."""

    def __init__(
        self,
        key: str,
        name: str,
        by: Any,
        *,
        branch: Branch,
        owner: torch.nn.Module | None = None,
        owners: list[torch.nn.Module] | None = None,
        paths: dict[int, str] | None = None,
        op: str = "*",
        nth: int | None = None,
        sender: torch.nn.Module | None = None,
        weight: torch.Tensor | None = None,
        place: HeadPlace | None = None,
        root: torch.nn.Module | None = None,
    ) -> None:
        self.key, self.name, self.by, self.branch = key, name, by, branch
        self.owners = [owner] if owner is not None else owners
        self.root = root
        self.paths = paths or {}
        self.matches = glob_matcher(op)
        self.op, self.nth, self.sender, self.weight, self.place = op, nth, sender, weight, place
        # the owners whose call is going on, innermost last, with how many such operations each had so far
        self.open: list[list[Any]] = []
        # of an edge: what the sender gave, and what the reader is to see of it
        self.sent: list[tuple[torch.Tensor, torch.Tensor]] = []
        self.acted = 0

    def forget(self) -> None:
        """Let go of the calls of a run."""
        self.open.clear()
        self.sent.clear()


class TapMode(TorchDispatchMode):
    """Meets operations while calls of the selected modules are going on."""

    def __init__(
        self, taps: list[OperationTap], keep: Callable[[str, Any], None], act: Callable[[OperationTap], None]
    ) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.taps, self.keep, self.act = taps, keep, act
        # a mode is of one thread, and hooks are of all
        self.thread = threading.get_ident()
        self.other_threads = False
        self._names: dict[Any, tuple[str, ...]] = {}

    def hook(self, undo: Undo) -> None:
        """Have hooks say which calls are going on."""
        for tap in self.taps:
            for owner in tap.owners if tap.owners is not None else [tap.root]:
                if owner is None:
                    continue
                hook_calls(undo, owner, self._entering(tap), before=True, prepend=True)
                hook_calls(undo, owner, self._leaving(tap), always_call=True)
            if tap.sender is not None:
                hook_calls(undo, tap.sender, self._sending(tap))

    def _is_met(self) -> bool:
        """Whether this is the thread that the mode is on."""
        is_met = threading.get_ident() == self.thread
        self.other_threads = self.other_threads or not is_met
        return is_met

    def _entering(self, tap: OperationTap) -> Callable[..., None]:
        def enter(module: torch.nn.Module, _: Any) -> None:
            if self._is_met():
                tap.open.append([module, -1])

        return enter

    def _leaving(self, tap: OperationTap) -> Callable[..., None]:
        def leave(module: torch.nn.Module, _: Any, __: Any) -> None:
            if self._is_met() and tap.open:
                tap.open.pop()

        return leave

    def _sending(self, tap: OperationTap) -> Callable[..., None]:
        def send(_: Any, __: Any, output: Any) -> None:
            tensors = [tensor for _, tensor in named_tensors(output)]
            if not tensors or not self._is_met():
                return
            place = EditPlace(tap.name)
            if tap.by is None or (not callable(tap.by) and not isinstance(tap.by, torch.Tensor)):
                tap.sent = [(tensors[0], tensors[0])]
                return
            with without_gradients():
                old = tensors[0].detach()
                new = changed(old, tap.by, place, tap.branch.index)
                # a block with the same geometry, so that views of the old one are views of the new one
                block = old.untyped_storage().clone()
                seen = torch.empty(0, dtype=old.dtype, device=old.device).set_(
                    block, old.storage_offset(), old.shape, old.stride()
                )
                seen.copy_(new)
            tap.sent = [(tensors[0], seen)]

        return send

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Run one operation, with what was selected of it kept or changed."""
        kwargs = kwargs or {}
        due: list[tuple[OperationTap, EditPlace]] = []
        for tap in self.taps:
            if not tap.open:
                continue
            if tap.sender is not None:
                args, kwargs = self._substituted(tap, args, kwargs)
            elif tap.weight is not None:
                args = self._beside(tap, args)
            elif self._matches(tap, func):
                module, count = tap.open[-1]
                tap.open[-1][1] = count + 1
                if tap.nth is None or tap.nth == count + 1:
                    path = tap.paths.get(id(module), "")
                    due.append((tap, EditPlace(f"{path}/{tap.op}:{count + 1}{tap.branch.suffix}", tap.acted)))
        for tap, place in due:
            if tap.branch.port == "input":
                args = self._input(tap, place, func, args)
        args = numbers_as_tensors(func, args)
        out = func(*args, **kwargs)
        for tap, place in due:
            if tap.branch.port != "input":
                out = self._met(tap, place, out)
        return out

    def _matches(self, tap: OperationTap, func: Any) -> bool:
        names = self._names.get(func)
        if names is None:
            schema = getattr(func, "_schema", None)
            text = str(func) if schema is None else f"{schema.name}.{schema.overload_name or 'default'}"
            names = self._names[func] = operator_names(text)
        return any(map(tap.matches, names))

    def _met(self, tap: OperationTap, place: EditPlace, out: Any) -> Any:
        """Keep or change what an operation gives."""
        leaves = list(named_tensors(out))
        if not leaves:
            return out
        wanted = tap.branch.leaf or leaves[0][0]
        chosen = dict(leaves).get(wanted)
        if chosen is None:
            raise UsageError(
                f"{place.name!r}: the operation gives {len(leaves)} tensors, and none is called {wanted!r}"
            )
        if tap.by is None or not (callable(tap.by) or takes_first(tap.by)):
            if tap.by is None:
                self.keep(place.name, sliced(chosen, tap.branch.index, place.name))
            self.act(tap)
            return out
        new = changed(chosen, tap.by, place, tap.branch.index)
        self.act(tap)
        return with_tensors(out, lambda name, tensor: new if name == wanted else tensor)

    def _input(self, tap: OperationTap, place: EditPlace, func: Any, args: Any) -> Any:
        """Keep or change an argument of an operation, by its name or place."""
        schema = getattr(func, "_schema", None)
        names = (
            ()
            if schema is None
            else schema_names(f"{schema.name}{'.' * bool(schema.overload_name)}{schema.overload_name}") or ()
        )
        tensors = [at for at, arg in enumerate(args) if isinstance(arg, torch.Tensor)]
        leaf = tap.branch.leaf
        if leaf in names and names.index(leaf) in tensors:
            at = names.index(leaf)
        elif (leaf or "0").isdigit() and int(leaf or 0) < len(tensors):
            at = tensors[int(leaf or 0)]
        else:
            raise UsageError(
                f"{place.name!r}: the operation has no tensor called {leaf!r}; it takes {', '.join(names)}"
            )
        if tap.by is None or not (callable(tap.by) or takes_first(tap.by)):
            if tap.by is None:
                self.keep(place.name, sliced(args[at], tap.branch.index, place.name))
            self.act(tap)
            return args
        new = changed(args[at], tap.by, place, tap.branch.index)
        self.act(tap)
        return (*args[:at], new, *args[at + 1 :])

    def _substituted(self, tap: OperationTap, args: Any, kwargs: Any) -> tuple[Any, Any]:
        """An edge's reader sees the replacement wherever it is given the sender's tensor, or a view of it."""
        if not tap.sent:
            return args, kwargs
        old, seen = tap.sent[-1]
        address = old.untyped_storage()._cdata

        def swap(_: str, tensor: torch.Tensor) -> torch.Tensor:
            if tensor.layout is not torch.strided or tensor.untyped_storage()._cdata != address:
                return tensor
            if tap.by is None:
                self.keep(tap.name, sliced(tensor, tap.branch.index, tap.name))
                self.act(tap)
                return tensor
            self.act(tap)
            with torch._C._DisableTorchDispatch():
                return torch.empty(0, dtype=tensor.dtype, device=tensor.device).set_(
                    seen.untyped_storage(), tensor.storage_offset(), tensor.shape, tensor.stride()
                )

        return with_tensors(tuple(args), swap), with_tensors(kwargs, swap)

    def _beside(self, tap: OperationTap, args: Any) -> Any:
        """What an operation multiplies with a projection's weight: the heads, side by side."""
        assert tap.weight is not None and tap.place is not None
        address = tap.weight.untyped_storage()._cdata
        tensors = [at for at, arg in enumerate(args) if isinstance(arg, torch.Tensor)]
        meets = [at for at in tensors if args[at].untyped_storage()._cdata == address]
        width = tap.weight.shape[-1]
        others = [
            at for at in tensors if at not in meets and args[at].dim() > 1 and args[at].shape[-1] == width
        ]
        if not meets or not others:
            return args
        at = others[0]
        index = tap.place.slice_of(tap.branch.head, width, tap.name)
        place = EditPlace(tap.name, tap.acted)
        if tap.by is None or not (callable(tap.by) or takes_first(tap.by)):
            if tap.by is None:
                self.keep(tap.name, sliced(args[at], index, tap.name))
            self.act(tap)
            return args
        new = changed(args[at], tap.by, place, index)
        self.act(tap)
        return (*args[:at], new, *args[at + 1 :])


class Live(Context["Live"]):
    """Keeps and replaces activations while a model runs, for as long as it is entered.

    >>> import torch, torch_vis as tv
    >>> model = torch.nn.Sequential(torch.nn.Linear(3, 2), torch.nn.ReLU())
    >>> with tv.live(model, keep="0", replace={"1": tv.edit.scale(2)}) as run:
    ...     outputs = [model(torch.ones(rows, 3)) for rows in (1, 5)]
    >>> [tuple(kept.shape) for kept in run.kept["0"]]
    [(1, 2), (5, 2)]
    """

    def __init__(
        self,
        model: torch.nn.Module,
        *,
        keep: Any = None,
        replace: Mapping[Any, Replacement] | None = None,
        until: Any = None,
        differentiable: bool = False,
    ) -> None:
        if not isinstance(model, torch.nn.Module):
            raise UsageError(f"live() takes a module, not {type(model).__name__}")
        if replace is not None and not isinstance(replace, Mapping):
            raise UsageError(
                f"replace is a dictionary of selectors and their replacements, not {type(replace).__name__}"
            )
        for key, by in (replace or {}).items():
            check_replacement(key, by)
        self.model = getattr(model, "_orig_mod", model)
        self._compiled = self.model is not model
        self.kept: dict[str, list[Any]] = KeptByName()
        """What each place gave, one item for each call, in the form in which the module returned it."""
        self.limits: tuple[str, ...] = ()
        """What was other than in a run without this, in sentences."""
        self.calls = 0
        """How many calls of the model there were."""
        self.differentiable = differentiable
        self._rows = _rows(self.model)
        self._names = SelectorNames([ModuleName(row.path, row.type) for row in self._rows], _operators())
        self._taps: list[Tap | Any] = []
        self._operations: list[OperationTap] = []
        for key, by in (replace or {}).items():
            self._add(key, by)
        for item in _listed(keep):
            self._add(item, None)
        self._until: list[Any] = []
        if until is True:
            self._until = [tap for tap in (*self._taps, *self._operations) if tap.by is None]
            if not self._until:
                raise UsageError("until=True stops when all that keep= asks for is there; say what to keep")
        elif until is not None and until is not False:
            before = len(self._taps), len(self._operations)
            for item in _listed(until):
                self._add(item, STOP)
            self._until = [*self._taps[before[0] :], *self._operations[before[1] :]]
        self._mode: TapMode | None = None
        self._process = 0
        self._reached: set[int] = set()

    # ---------------------------------------------------------------- what is selected

    def _add(self, wanted: Any, by: Any) -> None:
        """Find the modules and operations that a selector means."""
        text = (
            str(wanted) if isinstance(wanted, (str, Selector)) else getattr(wanted, "__name__", repr(wanted))
        )
        selects_any = False
        # what several branches select is kept and changed once
        before = len(self._taps)
        for branch in selector(wanted).branches:
            branch = self._names.resolved(branch)
            if branch.reader is not None or branch.of_operations:
                self._operations += [self._operation_tap(branch, text, by)]
                selects_any = True
                continue
            numbers = [n for n in range(len(self._rows)) if self._selects(branch, n)]
            for number in _once(numbers, self._rows):
                self._add_tap(branch, number, text, by)
                selects_any = True
        if not selects_any:
            raise UsageError(f"{text!r} selects no module of {type(self.model).__name__}")
        self._taps[before:] = {tap.name: tap for tap in self._taps[before:]}.values()

    def _selects(self, branch: Branch, number: int) -> bool:
        def of_atom(atom: Any) -> bool:
            if isinstance(atom, CallsOf):
                return number in atom.modules
            if isinstance(atom, Atom) and atom.field == "predicate" and atom.test is not None:
                return bool(atom.test(self._rows[number]))
            raise UsageError(f"{atom} names operations and not calls of modules")

        return bool(evaluate(branch.term, of_atom))

    def _add_tap(self, branch: Branch, number: int, text: str, by: Any) -> None:
        path, _, module = self._rows[number]
        calls = [atom for atom in _calls_of(branch) if number in atom.modules]
        label = path
        if calls and calls[0].call is not None:
            label += f":{calls[0].call}"
        if calls and calls[0].number is not None:
            label += f"#{calls[0].number}"
        name = label + branch.suffix
        place = None
        if branch.head is not None:
            place = self._head(path)
            if place.port == "weight":
                weight = self.model.get_parameter(f"{place.path}.weight")
                self._operations.append(
                    OperationTap(text, name, by, owner=module, weight=weight, place=place, branch=branch)
                )
                return
            module = self.model.get_submodule(place.path)
        if branch.port == "output" and not branch.suffix.endswith("]") and not branch.leaf:
            name = name.removesuffix(".output")
        self._taps.append(Tap(text, module, branch, name, by, place))

    def _head(self, path: str) -> HeadPlace:
        by_path = {row.path: row.module for row in self._rows}

        def setting(at: str, name: str) -> int | None:
            number = vars(by_path[at]).get(name)
            return number if isinstance(number, int) and not isinstance(number, bool) else None

        def called(at: str) -> bool:
            return not any(isinstance(by_path[around], torch.nn.MultiheadAttention) for around in _above(at))

        return head_place(path, [row.path for row in self._rows], setting, called)

    def _operation_tap(self, branch: Branch, text: str, by: Any) -> OperationTap:
        """An operation inside a module, or an edge."""
        if branch.head is not None:
            raise UsageError(f"{text!r}: heads are those of a module, not of an operation or edge")
        if branch.port == "grad":
            raise UsageError(f"{text!r}: gradients are kept and replaced at modules")
        if branch.reader is not None:
            return self._edge_tap(branch, text, by)
        atoms = [atom for atom in _atoms(branch) if isinstance(atom, Operations)]
        others = [atom for atom in _atoms(branch) if not isinstance(atom, (Operations, CallsOf))]
        if any(atom.field != "predicate" for atom in others) or len(atoms) != 1:
            raise UsageError(
                f"{text!r}: during a run, an operation is selected by its operator and the module that it runs in; "
                "phase, file, dtype and flag are known in a recorded graph: t.run(…)"
            )
        (operation,) = atoms
        if operation.node is not None:
            raise UsageError(
                f"{text!r}: #{operation.node} is the number of a node in a recorded graph: use t.run(…)"
            )
        around = [atom for atom in _atoms(branch) if isinstance(atom, CallsOf)]
        numbers = operation.inside.modules if operation.inside is not None else None
        for atom in around:
            numbers = atom.modules if numbers is None else numbers & atom.modules
        owners = (
            None if numbers is None else [self._rows[n].module for n in _once(sorted(numbers), self._rows)]
        )
        paths = {} if owners is None else {id(row.module): row.path for row in reversed(self._rows)}
        return OperationTap(
            text,
            text,
            by,
            owners=owners,
            paths=paths,
            op=operation.op,
            nth=operation.nth,
            branch=branch,
            root=self.model,
        )

    def _edge_tap(self, branch: Branch, text: str, by: Any) -> OperationTap:
        if branch.of_operations or (branch.reader is not None and is_about_operations(branch.reader)):
            raise UsageError(
                f"{text!r}: during a run an edge is between modules; between operations, use t.run(…)"
            )
        senders = [self._rows[n].module for n in range(len(self._rows)) if self._selects(branch, n)]
        readers = [
            row.module
            for n, row in enumerate(self._rows)
            if self._selects(Branch(branch.reader or branch.term), n)
        ]
        if len(set(map(id, senders))) != 1:
            raise UsageError(f"{text!r}: an edge begins at one module, and {len(senders)} are selected")
        name = next(row.path for row in self._rows if row.module is senders[0]) + branch.suffix
        return OperationTap(text, f"{name} ->", by, owners=readers, sender=senders[0], branch=branch)

    # ---------------------------------------------------------------- hooks

    __exit__ = LEAVE

    def _begin(self, undo: Undo) -> Live:
        if torch.compiler.is_compiling():
            raise UsageError("live() cannot be used inside a function that torch.compile compiles")
        self.kept.clear()
        self.limits, self.calls, self._process, self._mode = (), 0, os.getpid(), None
        self._reset()
        undo_in_child(undo)
        MORE_STACK.take(undo, self)
        self._leave_compiled(undo)
        undo.add(self._let_go)
        for tap in self._taps:
            self._hook(undo, tap)
        hook_calls(undo, self.model, self._begins, before=True, prepend=True)
        if self._until:
            _let_stop(undo, self)
        if self._operations:
            self._mode = TapMode(self._operations, self._keep, self._act)
            self._mode.hook(undo)
            push_mode(undo, self._mode)
        return self

    def _ended(self, error: BaseException | None) -> bool:
        if self._mode is not None and self._mode.other_threads:
            self.limits += (OTHER_THREADS,)
        if isinstance(error, Stopped) and error.args[0] is self:
            return True
        # a forked child has neither hooks nor calls
        if error is None and self.calls and self._process == os.getpid():
            self._refuse_idle([(tap.key, tap.by, tap.acted) for tap in (*self._taps, *self._operations)])
        return False

    def _refuse_idle(self, acted: list[tuple[str, Any, int]]) -> None:
        """Raise for a selector that met nothing though the model ran."""
        for key in dict.fromkeys(key for key, by, _ in acted if by is not STOP):
            if not any(times for other, _, times in acted if other == key):
                is_changed = any(by is not None and by is not STOP for other, by, _ in acted if other == key)
                what = "replaced" if is_changed else "kept"
                raise UsageError(
                    f"nothing was {what} at {key!r}: the model was called {self.calls} time"
                    f"{'s' if self.calls != 1 else ''}, and no such call, operation or gradient came by"
                )

    def _leave_compiled(self, undo: Undo) -> None:
        """Let compiled code run as it was written, so that its modules can be seen; say so where there is some."""
        modules = [row.module for row in self._rows]
        compiled = any(getattr(module, "_compiled_call_impl", None) is not None for module in modules)
        compiled = (
            compiled
            or self._compiled
            or any(type(module).__name__ == "OptimizedModule" for module in modules)
        )
        if compiled or "torch._dynamo" in sys.modules:
            _AS_WRITTEN.take(undo, self)
        if (
            any(tap.weight is not None for tap in self._operations)
            and torch.backends.mha.get_fastpath_enabled()
        ):
            _IN_PARTS.take(undo, self)
            self.limits += (
                "the fused fast path of MultiheadAttention was not taken, so that its heads can be met",
            )
        if compiled:
            self.limits += (
                "compiled modules ran as written, not compiled: inside compiled code nothing can be met",
            )

    def _reset(self) -> None:
        for tap in self._taps:
            tap.within = tap.total = -1
            tap.acted = 0
        for operation in self._operations:
            operation.acted = 0
        self._let_go()

    def _let_go(self) -> None:
        """Forget the calls that were going on."""
        for operation in self._operations:
            operation.forget()

    def _begins(self, *_: Any) -> None:
        """A call of the model begins."""
        self.calls += 1
        self._reached.clear()
        for tap in self._taps:
            tap.within = -1

    def _hook(self, undo: Undo, tap: Tap) -> None:
        if tap.port == "input":
            positions = argument_names(tap.module)

            def before(_: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
                if not tap.due():
                    return None
                names = [*positions, *map(str, range(len(positions), len(args)))][: len(args)]
                given = dict(zip(names, args)) | kwargs
                new = self._at(tap, given)
                if new is given:
                    return None
                return tuple(new[name] for name in names), {name: new[name] for name in kwargs}

            hook_calls(undo, tap.module, before, before=True, with_kwargs=True)
            return

        def after(_: Any, __: Any, output: Any) -> Any:
            if not tap.due():
                return None
            if tap.port == "grad":
                self._await_gradient(tap, output)
                return None
            new = self._at(tap, output)
            return None if new is output else new

        hook_calls(undo, tap.module, after)

    def _await_gradient(self, tap: Tap, output: Any) -> None:
        """Meet the gradient of what a call returned when backward comes by."""
        leaves = [(name, tensor) for name, tensor in named_tensors(output) if tensor.requires_grad]
        chosen = _leaf(leaves, tap.branch.leaf, tap.name)
        place = EditPlace(tap.name, tap.total)

        def meet(gradient: torch.Tensor) -> torch.Tensor | None:
            # the user may hold the output, and go backward from it when the block is over
            if not is_open(self):
                return None
            tap.acted += 1
            part = tap.part(gradient)
            if tap.by is None or tap.by is STOP:
                self._keep(tap.name, sliced(gradient, part, tap.name))
                self._reach(tap)
                return None
            return changed(gradient, tap.by, place, part)

        if chosen is not None:
            chosen[1].register_hook(meet)

    # ---------------------------------------------------------------- acting

    def _at(self, tap: Tap, item: Any) -> Any:
        """Keep or change what is at a tap; gives the same object where nothing changed."""
        tap.acted += 1
        if tap.by is None or tap.by is STOP:
            if tap.by is None:
                self._keep(tap.name, item if tap.whole else self._tensor_of(tap, item))
            self._reach(tap)
            return item
        if tap.whole and not takes_first(tap.by):
            new = tap.by(item)
            self._same_forms(tap.name, item, new)
            return new
        leaf = _leaf(list(named_tensors(item)), tap.branch.leaf, tap.name)
        if leaf is None:
            raise UsageError(f"{tap.name!r} holds no tensor that could be replaced")
        place = EditPlace(tap.name, tap.total)

        def change(name: str, tensor: torch.Tensor) -> torch.Tensor:
            return changed(tensor, tap.by, place, tap.part(tensor)) if name == leaf[0] else tensor

        return with_tensors(item, change)

    def _tensor_of(self, tap: Tap, item: Any) -> torch.Tensor:
        leaf = _leaf(list(named_tensors(item)), tap.branch.leaf, tap.name)
        if leaf is None:
            raise UsageError(f"{tap.name!r} holds no tensor that could be kept")
        return sliced(leaf[1], tap.part(leaf[1]), tap.name)

    def _same_forms(self, name: str, old: Any, new: Any) -> None:
        """Raise for what a function gave in another form than the call did."""
        ours, theirs = dict(named_tensors(old)), dict(named_tensors(new))
        if isinstance(old, torch.Tensor):
            same_form(name, old, new)
        elif [*ours] != [*theirs] or type(old) is not type(new):
            raise UsageError(
                f"{name!r} gives {len(ours)} tensors in a {type(old).__name__}; the replacement gave {len(theirs)} in "
                f"a {type(new).__name__}"
            )
        else:
            for leaf, tensor in ours.items():
                same_form(f"{name}.{leaf}", tensor, theirs[leaf])

    def _act(self, operation: OperationTap) -> None:
        """An operation that was selected came by."""
        operation.acted += 1
        self._reach(operation)

    def _keep(self, name: str, item: Any) -> None:
        """Keep what is there now: a copy, unless it is to be differentiated."""
        if torch._C._functorch.peek_interpreter_stack() is not None:
            with temporarily_clear_interpreter_stack():
                item = with_tensors(item, lambda _, tensor: self._copy(_outside(tensor)))
        else:
            item = with_tensors(item, lambda _, tensor: self._copy(tensor))
        self.kept.setdefault(name, []).append(item)

    def _copy(self, tensor: torch.Tensor) -> torch.Tensor:
        if self.differentiable:
            return tensor
        with torch._C._DisableTorchDispatch():
            return tensor.detach().clone()

    def _reach(self, tap: Any) -> None:
        """Stop the call once everything is there that it was to go on for."""
        if not self._until or not any(other is tap for other in self._until):
            return
        self._reached.add(id(tap))
        if len(self._reached) == len(self._until):
            raise Stopped(self)


def _outside(tensor: torch.Tensor) -> torch.Tensor:
    """What a tensor inside of ``vmap`` or ``grad`` is outside of them: batches have their dimensions in front."""
    transforms = torch._C._functorch
    batches = []
    while transforms.is_functorch_wrapped_tensor(tensor):
        if transforms.is_batchedtensor(tensor):
            batches.append(transforms.maybe_get_bdim(tensor))
        tensor = transforms.get_unwrapped(tensor)
    for outer, dim in enumerate(reversed(batches)):
        tensor = tensor.movedim(dim + outer, outer)
    return tensor


STOP = object()  # stands for a replacement at a place that only ends the call


def _let_stop(undo: Undo, live: Live) -> None:
    """Let calls of the model end where they are stopped; they then return None.

    Several may need that at once, and end in any order: one function stands for ``forward`` until the last has ended.
    """
    model = live.model
    own = model.__dict__.get("forward", MISSING)
    lives: dict[int, Live] | None = getattr(own, "torch_vis_lives", None)
    stopping: Any = own
    if lives is None:
        lives = {}
        stopping = _stopping(model.forward, lives)
        stopping.torch_vis_lives, stopping.torch_vis_own = lives, own
    undo.add(_stop_no_more, model, stopping, live)
    lives[id(live)] = live
    model.__dict__["forward"] = stopping


def _stopping(forward: Callable[..., Any], lives: dict[int, Live]) -> Any:
    @wraps(forward)
    def stopping(*args: Any, **kwargs: Any) -> Any:
        try:
            return forward(*args, **kwargs)
        except Stopped as stopped:
            if id(stopped.args[0]) not in lives:
                raise
            return None

    return stopping


def _stop_no_more(model: torch.nn.Module, stopping: Any, live: Live) -> None:
    stopping.torch_vis_lives.pop(id(live), None)
    # not where somebody has put another around it, which then calls one that does nothing
    own = stopping.torch_vis_own
    if not stopping.torch_vis_lives and model.__dict__.get("forward") is stopping:
        if own is MISSING:
            model.__dict__.pop("forward", None)
        else:
            model.__dict__["forward"] = own


def _stance() -> Any:
    import torch._dynamo.eval_frame

    return torch._dynamo.eval_frame._stance


def _set_stance(stance: Any) -> None:
    import torch._dynamo.eval_frame

    torch._dynamo.eval_frame._set_stance(stance)


def _force_eager(stance: Any) -> Any:
    return type(stance)("force_eager")


# for as long as any live run has need of it
_AS_WRITTEN = Shared(Setting(_stance, _set_stance, _force_eager))
_IN_PARTS = Shared(
    Setting(torch.backends.mha.get_fastpath_enabled, torch.backends.mha.set_fastpath_enabled, lambda _: False)
)


def live(
    model: torch.nn.Module,
    *,
    keep: Any = None,
    replace: Mapping[Any, Replacement] | None = None,
    until: Any = None,
    differentiable: bool = False,
) -> Live:
    """Keep and change activations during real calls of a model: any input, any number of calls, ``generate`` too.

    ``keep`` selects what to keep (a selector or several; see ``docs/workbench.md``): ``run.kept[name]`` is the list of
    what each call gave, in the form in which the module returned it. ``replace`` maps selectors to a tensor, a function
    of what is there, a module that is spliced in, or an edit of ``tv.edit``. ``until`` ends each call of the model
    after what it selects, or with ``until=True`` when all that ``keep`` asks for is there; such a call returns None.
    What is kept is a copy without gradients; with ``differentiable=True`` it is the tensor itself, with its history.
    Replacements take part in autograd as any hook's do. Compiled modules run as written meanwhile, and ``run.limits``
    says so. It acts on every call of the model while the block runs, by whichever thread or task. When the block ends,
    nothing is left behind.

    >>> import torch, torch_vis as tv
    >>> model = torch.nn.Sequential(torch.nn.Linear(3, 2), torch.nn.ReLU())
    >>> with tv.live(model, keep=["0", "1.input"], replace={"0[:, 0]": tv.edit.zero()}) as run:
    ...     output = model(torch.ones(1, 3))
    >>> list(run.kept), bool((run.kept["0"][0] == run.kept["1.input"][0]).all())
    (['0', '1.input'], True)
    """
    return Live(model, keep=keep, replace=replace, until=until, differentiable=differentiable)


def _rows(model: torch.nn.Module) -> list[LiveModule]:
    rows = model.named_modules(remove_duplicate=False)
    return [
        LiveModule(path.replace("_orig_mod.", ""), type(module).__name__, module) for path, module in rows
    ]


def _operators() -> Iterator[str]:
    """Every operator that torch knows here: thousands, so they are listed when somebody asks."""
    yield from torch._C._dispatch_get_all_op_names()


def _listed(wanted: Any) -> list[Any]:
    if wanted is None:
        return []
    return list(wanted) if isinstance(wanted, (list, tuple, set)) else [wanted]


def _once(numbers: Iterable[int], rows: list[LiveModule]) -> list[int]:
    """Each module once, by its first path."""
    return list({id(rows[number].module): number for number in reversed(list(numbers))}.values())[::-1]


def _above(path: str) -> list[str]:
    parts = path.split(".")
    return [".".join(parts[:count]) for count in range(len(parts))]


def _atoms(branch: Branch) -> list[Any]:
    return list(atoms(branch.term))


def _calls_of(branch: Branch) -> list[CallsOf]:
    return [atom for atom in _atoms(branch) if isinstance(atom, CallsOf)]


def _leaf(leaves: list[tuple[str, torch.Tensor]], wanted: str, name: str) -> tuple[str, torch.Tensor] | None:
    """The tensor of a container that is meant: by its name, its place, or the first."""
    if not wanted:
        return leaves[0] if leaves else None
    for leaf in leaves:
        if leaf[0] == wanted or leaf[0].rpartition(".")[2] == wanted or leaf[0].startswith(f"{wanted}."):
            return leaf
    if wanted.isdigit() and int(wanted) < len(leaves):
        return leaves[int(wanted)]
    raise no_part(name, wanted, [leaf for leaf, _ in leaves])
