"""Everything that a run may change, noted and brought back: the one way in which a model is left as it was.

``StateSnapshot`` is of one model (``of_model``) or of all that torch keeps state in (``of_everything``); ``RngStates``
and ``modes_kept`` are its smallest parts by themselves. What the program keeps in places of its own (a list of losses,
a counter) is found by following the callable (``note_reachable``), and else stays as the run left it.
"""

from __future__ import annotations

import functools
import gc
import random
import sys
import weakref
from collections import Counter, deque
from collections.abc import Callable, Iterable, Iterator
from contextlib import nullcontext
from types import BuiltinFunctionType, CellType, FunctionType, MethodType, ModuleType
from typing import Any, Literal, NamedTuple

import torch
from torch.nn import Parameter
from torch.optim import Optimizer
from torch.optim.lr_scheduler import LRScheduler

from torch_vis.capture.containers import named_tensors
from torch_vis.capture.kept_tensors import KeptTensors, copy_of, version_of
from torch_vis.capture.modes import push_mode, without_gradients
from torch_vis.capture.recording.dispatch_mode import RecordMode, is_wrapper
from torch_vis.capture.recording.recorder import Recorder, flat_tensors
from torch_vis.capture.undo import Context, Shared, Undo, context, without_warnings
from torch_vis.errors import UsageError
from torch_vis.ops.higher_order import INLINED

Memory = list[tuple[torch.UntypedStorage, torch.UntypedStorage]]
"""Blocks of memory, each with a copy of its contents."""
OWNERS = (torch.nn.Module, Optimizer, LRScheduler, torch.amp.GradScaler)
PLAIN = (torch.Tensor, torch.nn.Parameter, torch.nn.Buffer)
COPIED = 64 << 20  # bytes up to which copying everything is cheaper than watching every operation
MOST = 20_000  # objects that are followed; a data set in a list is not what a run changes
CONTAINERS = (dict, list, set, deque)
CLOSED = (torch.Tensor, torch.nn.Module, type, ModuleType, FunctionType, BuiltinFunctionType, str, bytes)
UNREADABLE = (RuntimeError, NotImplementedError, AttributeError, ValueError)
disabled = torch._C._DisableTorchDispatch  # what is done here is no operation of the program's
set_versions: Any = torch._C._autograd._unsafe_set_version_counter


class StateSnapshot(Context["StateSnapshot"]):
    """What a run may change, as it is now; ``restore`` brings it back, as often as it is called.

    Attributes of modules, optimizers, schedulers and scalers with the containers in them: parameters, buffers, hooks,
    training flags, the optimizer's state. Of tensors the gradient, ``requires_grad`` and the count of writes. Random
    generators of torch, CUDA, Python and numpy, and those that modules hold. Contents of memory where ``memory`` has a
    copy, or a recorder kept one from before the first write (``watch``).

    >>> norm = torch.nn.BatchNorm1d(2)
    >>> with StateSnapshot.of_model(norm):
    ...     _ = norm(torch.ones(3, 2))
    >>> norm.num_batches_tracked
    tensor(0)
    """

    def __init__(
        self,
        tensors: Iterable[tuple[str, torch.Tensor]],
        owners: Iterable[Any],
        *,
        hold: bool = True,
        lazy: bool = True,
        is_model: bool = False,
        moved: bool = False,
    ) -> None:
        self.hold = hold
        """Whether gradients come back as the very tensors that they are now, and counts of writes as they are."""
        self.lazy = lazy
        """Whether lazy modules and parameters become lazy again."""
        self.owners = list(owners)
        self.memory: Memory = []
        self.kept: list[KeptTensors] = []
        self.lost: list[str] = []
        """Tensors of a model that were changed and could not be brought back."""
        self.is_model = is_model
        """Whether tensors come back whose memory was replaced, and those are ``lost`` of which there is no copy."""
        self.shapeless: list[weakref.ref[torch.Tensor]] = []
        """Lazy parameters, where they are not to become lazy again."""
        self._guard: Any = None
        self._hooks: list[tuple[dict[int, Any], dict[int, Any]]] = []
        self._cells: list[tuple[CellType, Any]] = []
        self._names: list[tuple[dict[str, Any], str, Any]] = []
        self._containers = ContainerStates(restore_classes=lazy)
        # Merely asking some tensors for an attribute warns.
        with torch._C.DisableTorchFunctionSubclass(), without_warnings():
            self.states: list[TensorState] = []
            owned = {id(item) for owner in self.owners if moved for item in tensors_of(owner)}
            for name, tensor in tensors:
                alias = is_model or (moved and (id(tensor) in owned or isinstance(tensor, Parameter)))
                self._note_tensor(name, tensor, alias=alias)
            for owner in self.owners:
                self._containers.note_attributes(owner)
        self.rng = RngStates(
            item
            for owner in self.owners
            for item in _attributes(owner).values()
            if isinstance(item, torch.Generator)
        )

    @classmethod
    def of_everything(cls, *, hold: bool = True, lazy: bool = True, moved: bool = False) -> StateSnapshot:
        """All tensors that are alive, and all modules, optimizers, schedulers and scalers; not contents of memory.

        With ``moved`` parameters, buffers and states of optimizers whose ``data`` was replaced get back what they had.
        """
        items = _older.alive() + tensors_and_owners()
        tensors = [("", item) for item in items if issubclass(type(item), torch.Tensor)]
        owners = [item for item in items if not issubclass(type(item), torch.Tensor)]
        return cls(tensors, owners, hold=hold, lazy=lazy, moved=moved)

    @classmethod
    def of_model(
        cls,
        model: Any,
        inputs: Iterable[torch.Tensor] = (),
        *,
        contents: Literal["all", "buffers", "none"] = "all",
    ) -> StateSnapshot:
        """One model and its inputs, with the contents of all their memory, of the buffers alone, or of none.

        Where there is much memory, a mode looks out for writes to it instead of copying all of it.
        """
        modules = list(model.modules()) if isinstance(model, torch.nn.Module) else []
        snapshot = cls(_named(modules, inputs), modules, is_model=True)
        if contents == "buffers":
            snapshot._copy(
                buffer for module in modules for buffer in module._buffers.values() if buffer is not None
            )
        elif contents == "all":
            snapshot._copy((state.ref() for state in snapshot.states), most=COPIED)
        return snapshot

    @property
    def tensors(self) -> list[torch.Tensor]:
        """The tensors that were noted and are still alive."""
        return [tensor for state in self.states if (tensor := state.ref()) is not None]

    def _begin(self, undo: Undo) -> StateSnapshot:
        undo.add(self.restore)
        if self._guard is not None:
            undo.add(self.watch, self._guard.recorder.kept)
            push_mode(undo, self._guard)
        return self

    # ---------------------------------------------------------------- before and during the run

    def watch(self, kept: KeptTensors) -> None:
        """Bring back what a recorder keeps from before the first write to it."""
        if not any(other is kept for other in self.kept):
            self.kept.append(kept)

    def set_gradients_aside(self, output: Any = None) -> None:
        """Set gradients to None, so that a backward pass makes new ones, and remove the hooks that would act on these.

        Without ``output`` of the tensors that were noted; else of whatever more a backward pass from it would reach.
        """
        if output is None:
            tensors = self.tensors
        else:
            known = {id(tensor) for tensor in self.tensors}
            tensors = [leaf for leaf in leaves_of(output) if id(leaf) not in known]
            for leaf in tensors:
                self._note_tensor("a tensor from outside", leaf, alias=self.is_model)
        for tensor in tensors:
            if is_leaf(tensor) and (is_lazy(tensor) or not tensor.is_inference()):
                hooks = _post_hooks(tensor)
                self._hooks.append((hooks, dict(hooks)))
                hooks.clear()
                if tensor.grad is not None:
                    tensor.grad = None

    def note_reachable(self, target: Callable[..., Any], given: Any) -> None:
        """Note what the program keeps in variables, containers and objects that a callable can reach."""
        reachable = reach(target, given)
        self._cells = [(cell, inside(cell)) for cell in reachable.cells if inside(cell) is not cell]
        self._names = [(known, name, known[name]) for known, name in reachable.names]
        for item in reachable.objects:
            self._containers.note(item, vars(item))
        for container in reachable.containers:
            self._containers.note(None, container)

    def note_objects(self, objects: Iterable[Any]) -> None:
        """Note the attributes of objects that are none of those in which torch keeps state, as their owners do."""
        for item in objects:
            self._containers.note_attributes(item)

    def keep_only(self, addresses: set[int], modules: set[int]) -> None:
        """Forget tensors outside this memory and what belongs to other modules: they are another program's."""
        optimizers = {
            id(owner)
            for owner in self.owners
            if isinstance(owner, Optimizer)
            and any(version_of(p).address in addresses for p in _managed(owner))
        }
        kept = {
            id(owner)
            for owner in self.owners
            if id(owner) in modules | optimizers
            or id(getattr(owner, "optimizer", None)) in optimizers
            or isinstance(owner, torch.amp.GradScaler)
        }
        own = addresses | {
            version_of(tensor).address
            for owner in self.owners
            if id(owner) in kept
            for tensor in tensors_of(owner)
        }
        everyone = {id(owner) for owner in self.owners}
        self._containers.keep(lambda owner: id(owner) in kept or id(owner) not in everyone)
        self.owners = [owner for owner in self.owners if id(owner) in kept]
        self.states = [state for state in self.states if state.geometry[0] in own]

    def changes(self) -> Iterator[tuple[TensorState, torch.Tensor]]:
        """The tensors that were written to, moved or given a history since."""
        for state in self.states:
            tensor = state.ref()
            if tensor is not None and state.differs(tensor):
                yield state, tensor

    # ---------------------------------------------------------------- afterwards

    def restore(self) -> None:
        """Bring everything back."""
        dispatch = disabled() if self.is_model else nullcontext()
        with dispatch, torch._C.DisableTorchFunctionSubclass(), without_gradients():
            self._containers.restore()
            restored = self._restore_memory()
            alive = [(tensor, state) for state in self.states if (tensor := state.ref()) is not None]
            for tensor, state in alive:
                state.restore(tensor)
            if self.is_model:
                alive = [pair for pair in alive if self._is_restored(*pair, restored)]
            if self.hold:
                restore_versions((tensor, state.version) for tensor, state in alive)
        for hooks, before in self._hooks:
            hooks.update(before)
        for cell, content in self._cells:
            if inside(cell) is not content:
                cell.cell_contents = content
        for known, name, content in self._names:
            if known.get(name, self) is not content:
                known[name] = content
        for kept in self.kept:
            self.rng.add_first(kept)
        self.rng.restore()

    def _restore_memory(self) -> set[int]:
        """Bring contents back; the addresses of the memory that has what it had."""
        pairs = list(self.memory)
        for kept in self.kept:
            pairs += [(kept.storages[number], copy) for number, copy in kept.originals.items()]
        for storage, copy in pairs:
            if storage is copy or storage.device.type == "meta":
                continue  # it has no contents
            if storage.nbytes() != copy.nbytes():
                storage.resize_(copy.nbytes())
            storage.copy_(copy)
        return {storage._cdata for storage, _ in pairs}

    def _is_restored(self, tensor: torch.Tensor, state: TensorState, restored: set[int]) -> bool:
        """Whether a tensor of a model has the contents that it had; if not, it is lost."""
        if state.version < 0 or tensor._version == state.version:
            return True
        storage = storage_of(tensor)
        if storage is not None and storage._cdata in restored:
            return True
        self.lost.append(state.name)
        return False

    def _note_tensor(self, name: str, tensor: torch.Tensor, *, alias: bool) -> None:
        if is_lazy(tensor) and not self.lazy:
            self.shapeless.append(weakref.ref(tensor))
            return
        try:
            self.states.append(TensorState(name, tensor, hold=self.hold, alias=alias))
        except UNREADABLE:
            return  # one that is just being made

    def _copy(self, tensors: Iterable[torch.Tensor | None], most: int | None = None) -> None:
        """Copy the memory of tensors, or have a mode look out for writes if that is too much."""
        storages: dict[int, torch.UntypedStorage] = {}
        for tensor in tensors:
            for _, part in named_tensors(tensor):
                storage = storage_of(part)
                if storage is not None:
                    storages[storage._cdata] = storage
        if most is not None and sum(storage.nbytes() for storage in storages.values()) > most:
            self._guard = WriteGuard(storages)
            return
        with disabled():
            self.memory = [(storage, copy_of(storage)) for storage in storages.values()]


def tensors_and_owners() -> list[Any]:
    """All tensors, modules, optimizers, schedulers and scalers that the garbage collector looks at."""
    everything = gc.get_objects()
    # there are a thousand times more objects than types
    kinds = {kind for kind in set(map(type, everything)) if issubclass(kind, (torch.Tensor, *OWNERS))}
    return [item for item in everything if type(item) in kinds]


class OlderObjects:
    """All existing objects, frozen out of the garbage collector, which would visit each at every collection.

    A run by shapes that makes and drops a model needs the collector several times, and of hundreds of thousands of
    objects all but a few are those of loaded modules.
    """

    def __init__(self) -> None:
        self._seen: list[weakref.ref[Any]] = []
        self._is_aside = False

    def install(self) -> None:
        """Set them aside, unless the program has done that itself."""
        if self._is_aside or gc.get_freeze_count():
            return
        gc.collect()
        self._seen = [weakref.ref(item) for item in tensors_and_owners()]
        self._is_aside = True
        gc.freeze()

    def remove(self) -> None:
        """Unfreeze them."""
        if self._is_aside:
            gc.unfreeze()
            self._is_aside, self._seen = False, []

    def alive(self) -> list[Any]:
        """The tensors, modules, optimizers, schedulers and scalers among them."""
        return [item for seen in list(self._seen) if (item := seen()) is not None]


_older = OlderObjects()
_aside = Shared(_older)


@context
def older_objects_aside(undo: Undo) -> None:
    """For several runs that each make and drop a model: let the garbage collector look at what they make alone.

    >>> gc.unfreeze()  # or what the program has set aside itself stays as it is
    >>> with older_objects_aside():
    ...     gc.get_freeze_count() > 1000
    True
    >>> gc.get_freeze_count()
    0
    """
    _aside.take(undo, object())


class TensorState:
    """One tensor: where its elements lie, how often it was written to, its history and its gradient."""

    __slots__ = (
        "_alias",
        "_gradient",
        "geometry",
        "history",
        "kind",
        "name",
        "ref",
        "requires_grad",
        "version",
    )

    def __init__(self, name: str, tensor: torch.Tensor, *, hold: bool, alias: bool) -> None:
        lazy = is_lazy(tensor)
        self.name = name
        self.ref = weakref.ref(tensor)
        self.kind = type(tensor)
        self.geometry = (0, tensor.dtype) if lazy else geometry(tensor)
        self.version = -1 if lazy else version_of(tensor).writes
        self.history = history(tensor)
        self.requires_grad = tensor.requires_grad
        gradient = tensor.grad if has_gradient(tensor) else None
        # Unless it is held: the run may let go of it, and the memory that this frees counts.
        self._gradient: Any = (lambda: gradient) if hold or gradient is None else weakref.ref(gradient)
        self._alias: torch.Tensor | None = None
        kind = type(tensor)
        # a parameter of a kind of its own is plain memory as well, unless it is about other tensors
        if lazy or (alias and (kind in PLAIN or (issubclass(kind, Parameter) and not is_wrapper(kind)))):
            with disabled():
                self._alias = tensor.data

    def differs(self, tensor: torch.Tensor) -> bool:
        """Whether a tensor was written to, moved or given a history since."""
        if version_of(tensor).writes != self.version or geometry(tensor) != self.geometry:
            return True
        return history(tensor) != self.history

    def restore(self, tensor: torch.Tensor) -> None:
        """Its memory, class, flag and gradient; a gradient that was not held is a copy, or zeros where it is gone."""
        if self._alias is not None and _layout(tensor) != _layout(self._alias):
            tensor.data = self._alias
        if type(tensor) is not self.kind:
            tensor.__class__ = self.kind
        if self.history is None:
            if autograd_node(tensor) is not None:
                tensor.detach_()
            if tensor.requires_grad != self.requires_grad:
                tensor.requires_grad_(self.requires_grad)
        if not has_gradient(tensor):
            return
        gradient = self._gradient()
        if isinstance(self._gradient, weakref.ref):
            gradient = torch.zeros_like(tensor) if gradient is None else gradient.detach().clone()
        if tensor.grad is not gradient:
            tensor.grad = gradient


class ContainerStates:
    """Dictionaries, lists and the like, each with its owner and what is in it."""

    def __init__(self, *, restore_classes: bool) -> None:
        self.restore_classes = restore_classes
        self._rows: list[tuple[Any, type, Any, Any]] = []

    def note(self, owner: Any, container: Any) -> None:
        """Remember what is in a container now."""
        before: Any = dict(container) if isinstance(container, dict) else list(container)
        self._rows.append((owner, type(owner), container, before))

    def note_attributes(self, owner: Any) -> None:
        """Remember the attributes of an object, what is in them, and in that: an optimizer's state is that deep."""
        attributes = _attributes(owner)
        if not attributes:
            return
        self.note(owner, attributes)
        for part in list(attributes.values()):
            if isinstance(part, dict) or type(part) in CONTAINERS:
                self.note(owner, part)
                for item in list(part.values() if isinstance(part, dict) else part):
                    if isinstance(item, dict) or type(item) is list:
                        self.note(owner, item)

    def keep(self, wanted: Callable[[Any], bool]) -> None:
        """Forget the containers of all other owners."""
        self._rows = [row for row in self._rows if wanted(row[0])]

    def restore(self) -> None:
        """Give every container what was in it, where that has changed."""
        for owner, kind, container, before in self._rows:
            if isinstance(before, dict) and type(owner) is not kind:
                # A lazy module has become another class.
                if not self.restore_classes:
                    continue
                owner.__class__ = kind
            if not _holds(container, before):
                _refill(container, before)


class RngStates(Context["RngStates"]):
    """The states of the random generators of torch, CUDA, Python and numpy, and of more that are named.

    >>> with RngStates():
    ...     first = torch.rand(1), random.random()
    >>> first == (torch.rand(1), random.random())
    True
    """

    def __init__(self, generators: Iterable[torch.Generator] = ()) -> None:
        self._python = random.getstate()
        self._numpy = sys.modules["numpy.random"].get_state() if "numpy.random" in sys.modules else None
        cuda = torch.cuda.default_generators if torch.cuda.is_initialized() else ()
        self.states: dict[Any, torch.Tensor] = {
            generator: generator.get_state() for generator in (torch.default_generator, *cuda, *generators)
        }

    def _begin(self, undo: Undo) -> RngStates:
        undo.add(self.restore)
        return self

    def add_first(self, kept: KeptTensors) -> None:
        """Add the generators that a recorder met, in the state in which it first met each."""
        for _, seed in sorted(kept.rng_states.items()):
            if seed.generator is not None:
                self.states.setdefault(seed.generator, seed.state)

    def restore(self) -> None:
        """Set every generator to its state."""
        random.setstate(self._python)
        if self._numpy is not None:
            sys.modules["numpy.random"].set_state(self._numpy)
        for generator, state in self.states.items():
            generator.set_state(state)


@context
def modes_kept(undo: Undo, model: torch.nn.Module) -> None:
    """Let every module train or evaluate afterwards as it does now.

    >>> model = torch.nn.Dropout()
    >>> with modes_kept(model):
    ...     _ = model.eval()
    >>> model.training
    True
    """
    for module in model.modules():
        undo.add(setattr, module, "training", module.training)


class WriteGuard(RecordMode):
    """Copies memory that is about to be written to for the first time, and notes nothing else."""

    def __init__(self, storages: dict[int, torch.UntypedStorage]) -> None:
        super().__init__(Recorder(keep=True, timing=False, memory=False))
        self.storages = storages

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Run one operation as it is."""
        rec = self.recorder
        plan = rec.plans.get(id(func)) or rec.plan(func)
        for kind in types:
            if is_wrapper(kind):
                return NotImplemented
        kwargs = kwargs or {}
        if plan.is_hop and (name := plan.name.rpartition("::")[2]) in INLINED:
            return self.run_higher_order(plan, name, args, kwargs)
        if plan.writes or plan.undeclared:
            for argument in plan.written(args, kwargs):
                item = kwargs.get(argument) if isinstance(argument, str) else args[argument]
                self._save(list(flat_tensors((item,))))
        return plan.run(*args, **kwargs)

    def _save(self, tensors: list[torch.Tensor]) -> None:
        for tensor in tensors:
            storage = storage_of(tensor)
            if storage is not None and storage._cdata in self.storages:
                self.recorder.number_of(tensor)
                self.recorder.copy_before_write([tensor], (0,))


# ---------------------------------------------------------------- tensors


def restore_versions(counted: Iterable[tuple[torch.Tensor, int]]) -> None:
    """Set how often tensors were written to; those of inference mode, with -1, do not count."""
    moved = [(tensor, version) for tensor, version in counted if version >= 0 and tensor._version != version]
    if moved:
        set_versions(tuple(tensor for tensor, _ in moved), tuple(version for _, version in moved))


def geometry(tensor: torch.Tensor) -> tuple[Any, ...]:
    """Where a tensor's elements lie, the address of its memory first; 0 where it has no plain memory."""
    address = version_of(tensor).address
    if not address or tensor.layout is not torch.strided or tensor.is_nested:
        return (0, tensor.dtype)
    return address, tensor.dtype, tuple(tensor.shape), tensor.stride(), tensor.storage_offset()


def history(tensor: torch.Tensor) -> tuple[str, int] | None:
    """The autograd node of a tensor, by name and number; to hold the node would hold its graph."""
    node = autograd_node(tensor)
    return None if node is None else (node.name(), node._sequence_nr())


def autograd_node(tensor: torch.Tensor) -> Any:
    """The autograd node of a tensor; None also where autograd refuses to say.

    It does of a view that was made without gradients, once the memory of it is written with them.

    >>> import torch
    >>> memory = torch.zeros(2)
    >>> with torch.no_grad():
    ...     view = memory.view(1, 2)
    >>> _ = memory.add_(torch.ones(2, requires_grad=True))
    >>> autograd_node(view), has_gradient(view)
    (None, False)
    """
    try:
        return tensor.grad_fn
    except RuntimeError:
        return None


def has_gradient(tensor: torch.Tensor) -> bool:
    """Whether a tensor can have a gradient of its own."""
    return is_leaf(tensor) or tensor.retains_grad


def is_leaf(tensor: torch.Tensor) -> bool:
    """Whether a tensor is a leaf of autograd, as far as that is known."""
    try:
        return tensor.is_leaf
    except RuntimeError:
        return False


def gradient_of_leaf(tensor: torch.Tensor) -> torch.Tensor | None:
    """The gradient of a parameter or of an input that has one."""
    return tensor.grad if is_leaf(tensor) and tensor.requires_grad else None


def is_lazy(tensor: torch.Tensor) -> bool:
    """Whether a parameter has not got its shape yet."""
    return isinstance(tensor, torch.nn.parameter.UninitializedTensorMixin)  # type: ignore[attr-defined]


def leaves_of(output: Any) -> list[torch.Tensor]:
    """The tensors into whose ``.grad`` a backward pass from this output would add."""
    stack = [tensor.grad_fn for _, tensor in named_tensors(output) if tensor.grad_fn is not None]
    seen: set[Any] = set()
    leaves: list[torch.Tensor] = []
    while stack:
        node: Any = stack.pop()
        if node in seen:
            continue
        seen.add(node)
        if type(node).__name__ == "AccumulateGrad":
            leaves.append(node.variable)
        stack.extend(following for following, _ in node.next_functions if following is not None)
    return leaves


def tensors_of(owner: Any) -> list[torch.Tensor]:
    """A module's own parameters and buffers, or an optimizer's parameters and state."""
    if isinstance(owner, torch.nn.Module):
        items = [*owner._parameters.values(), *owner._buffers.values()]
    elif isinstance(owner, Optimizer):
        items = _managed(owner) + [item for state in owner.state.values() for item in state.values()]
    else:
        items = list(vars(owner).values())
    return [item for item in items if isinstance(item, torch.Tensor)]


def _managed(optimizer: Optimizer) -> list[torch.Tensor]:
    return [parameter for group in optimizer.param_groups for parameter in group["params"]]


def _named(
    modules: list[torch.nn.Module], inputs: Iterable[torch.Tensor]
) -> Iterator[tuple[str, torch.Tensor]]:
    """Every tensor that modules hold and that is an input, each once."""
    named: list[tuple[str, Any]] = []
    for module in modules:
        kind = type(module).__name__
        for name, item in vars(module).items():
            named.append((f"{name} of {kind}", item))
            if isinstance(item, dict) or type(item) in CONTAINERS:
                parts = item.items() if isinstance(item, dict) else enumerate(item)
                named += [(f"{key} of {kind}", part) for key, part in parts]
        if isinstance(module, torch.jit.ScriptModule):
            named += [*module.named_parameters(), *module.named_buffers()]
    named += [(f"input {position}", tensor) for position, tensor in enumerate(inputs)]
    seen: set[int] = set()
    for name, item in named:
        if isinstance(item, torch.Tensor) and id(item) not in seen:
            seen.add(id(item))
            yield name, item


def _post_hooks(tensor: torch.Tensor) -> dict[int, Any]:
    hooks: dict[int, Any] | None = getattr(tensor, "_post_accumulate_grad_hooks", None)
    return {} if hooks is None else hooks


def storage_of(tensor: torch.Tensor) -> torch.UntypedStorage | None:
    """The memory of a tensor; None where it has no plain one."""
    if is_lazy(tensor):
        return None
    try:
        return tensor.untyped_storage()
    except (RuntimeError, NotImplementedError):
        return None


def _layout(tensor: torch.Tensor) -> Any:
    return None if storage_of(tensor) is None else geometry(tensor)


# ---------------------------------------------------------------- containers


def _attributes(owner: Any) -> dict[str, Any]:
    attributes = getattr(owner, "__dict__", None)
    return attributes if isinstance(attributes, dict) else {}


def _holds(container: Any, before: Any) -> bool:
    """Whether a container holds the very same objects in the same order."""
    if len(container) != len(before):
        return False
    if isinstance(before, dict):
        pairs = zip(container.items(), before.items())
        return all((a is b or a == b) and x is y for (a, x), (b, y) in pairs)
    return all(a is b for a, b in zip(container, before))


def _refill(container: Any, before: Any) -> None:
    container.clear()
    if isinstance(container, Counter):  # its own update would add
        dict.update(container, before)
    elif isinstance(container, (dict, set)):
        container.update(before)
    else:
        container.extend(before)


# ---------------------------------------------------------------- what a callable can reach


class Reach(NamedTuple):
    """Places that a callable can reach: variables of enclosing functions, global names, containers, and objects."""

    cells: list[CellType]
    names: list[tuple[dict[str, Any], str]]
    containers: list[Any]
    objects: list[Any]


def reach(target: Callable[..., Any], given: Any = ()) -> Reach:
    """Whatever a callable holds on to and what it is given, followed through containers and attributes.

    >>> history = []
    >>> def step(x):
    ...     history.append(x)
    >>> reach(step).containers == [history]
    True
    """
    reachable = Reach([], [], [], [])
    todo: deque[Any] = deque([target, given])
    seen: dict[int, Any] = {}
    while todo and len(seen) < MOST:
        item = todo.popleft()
        if id(item) not in seen:
            seen[id(item)] = item
            todo.extend(_next(item, reachable))
    return reachable


def _next(item: Any, reachable: Reach) -> Iterator[Any]:
    """What an object leads to; the places in it are noted."""
    if isinstance(item, functools.partial):
        yield from (item.func, item.args, item.keywords)
    elif isinstance(item, MethodType):
        yield from (item.__func__, item.__self__)
    elif isinstance(item, FunctionType):
        yield from _variables(item, reachable)
    elif isinstance(item, CONTAINERS):
        reachable.containers.append(item)
        yield from list(item.values() if isinstance(item, dict) else item)
    elif isinstance(item, tuple):
        yield from item
    elif not isinstance(item, CLOSED) and isinstance(getattr(item, "__dict__", None), dict):
        reachable.objects.append(item)
        yield from list(vars(item).values())


def _variables(function: FunctionType, reachable: Reach) -> Iterator[Any]:
    """The values of a function's enclosing and global variables."""
    for cell in function.__closure__ or ():
        reachable.cells.append(cell)
        yield inside(cell)
    known = function.__globals__
    for name in function.__code__.co_names:
        item = known.get(name)
        if name in known and not isinstance(item, (type, ModuleType, FunctionType, BuiltinFunctionType)):
            reachable.names.append((known, name))
            yield item


def inside(cell: CellType) -> Any:
    """What a variable of an enclosing function holds; the cell itself where it holds nothing yet."""
    try:
        return cell.cell_contents
    except ValueError:
        return cell


def refuse_iterators(target: Callable[..., Any], given: Any) -> None:
    """Raise where a callable takes its data from an iterator: running it a second time would use up more of it."""
    reachable = reach(target, given)
    items = [inside(cell) for cell in reachable.cells] + [known[name] for known, name in reachable.names]
    items += [value for item in reachable.objects for value in vars(item).values()]
    for item in items:
        if hasattr(item, "__next__") and not hasattr(item, "fileno"):
            raise UsageError(
                f"repeat= would take more from a {type(item).__name__} than one run does; fetch the batch outside "
                "and pass it to trace()"
            )
