"""Everything that a run may change, put back."""

from __future__ import annotations

import functools
import gc
import random
import sys
import warnings
import weakref
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from types import BuiltinFunctionType, CellType, FunctionType, MethodType, ModuleType
from typing import Any, NamedTuple

import torch
from torch.optim import Optimizer
from torch.optim.lr_scheduler import LRScheduler

from torch_vis.capture.kept_tensors import version_of
from torch_vis.errors import UsageError

# ---------------------------------------------------------------- memento


OWNERS = (torch.nn.Module, torch.optim.Optimizer, LRScheduler, torch.amp.GradScaler)
set_versions: Any = torch._C._autograd._unsafe_set_version_counter


class Memento:
    """The state of every tensor, module, optimizer, scheduler and scaler that is alive, as it was on entry.

    What a program keeps in places of its own (a list of losses, a counter) is not known here and stays as the run left
    it.
    """

    @property
    def tensors(self) -> list[torch.Tensor]:
        """The tensors that were alive on entry, those that others were made from."""
        return [tensor for tensor, *_ in self._tensors]

    def __enter__(self) -> Memento:
        self._tensors: list[tuple[torch.Tensor, bool, int, Any]] = []
        self._containers = Containers()
        with torch._C.DisableTorchFunctionSubclass():
            tensors, owners = alive()
            for tensor in tensors:
                self._note_tensor(tensor)
            for owner in owners:
                self._containers.note_all_of(owner)
        self._random = torch.get_rng_state()
        return self

    def __exit__(self, *exception: object) -> None:
        with torch._C.DisableTorchFunctionSubclass():
            self._containers.put_back()
            for tensor, requires, _, gradient in self._tensors:
                if tensor.grad_fn is not None:
                    tensor.detach_()
                if tensor.requires_grad != requires:
                    tensor.requires_grad_(requires)
                if requires and tensor.grad is not gradient:
                    tensor.grad = gradient
            put_back_versions((tensor, version) for tensor, _, version, _ in self._tensors)
        torch.set_rng_state(self._random)
        self._tensors, self._containers = [], Containers()

    def _note_tensor(self, tensor: torch.Tensor) -> None:
        try:
            if not tensor.is_leaf:
                return
            version = -1 if tensor.is_inference() else tensor._version
            gradient = tensor.grad if tensor.requires_grad else None
        except (RuntimeError, NotImplementedError, AttributeError):
            return  # a wrapper that is just being made, or one without such things
        self._tensors.append((tensor, tensor.requires_grad, version, gradient))


class Containers:
    """Dictionaries, lists and the like, each with whom it belongs to and what was in it when it was noted."""

    def __init__(self) -> None:
        self._rows: list[tuple[Any, type, Any, Any]] = []

    def note(self, owner: Any, container: Any) -> None:
        """Remember what is in a container now."""
        before: Any = dict(container) if isinstance(container, dict) else list(container)
        self._rows.append((owner, type(owner), container, before))

    def note_all_of(self, owner: Any) -> None:
        """Remember the attributes of an object, what is in them, and in that: an optimizer's state is that deep."""
        try:
            attributes = vars(owner)
        except TypeError:
            return
        self.note(owner, attributes)
        for part in list(attributes.values()):
            self._note_plain(owner, part)
            if isinstance(part, (dict, list)):
                for item in list(part.values() if isinstance(part, dict) else part):
                    self._note_plain(owner, item)

    def _note_plain(self, owner: Any, item: Any) -> None:
        if isinstance(item, dict) or type(item) is list:
            self.note(owner, item)

    def keep(self, wanted: Callable[[Any], bool]) -> None:
        """Forget the containers of all other owners."""
        self._rows = [row for row in self._rows if wanted(row[0])]

    def put_back(self) -> None:
        """Give every container what was in it, where that has changed."""
        for owner, kind, container, before in self._rows:
            if isinstance(before, dict) and type(owner) is not kind:
                continue  # a lazy module has become another class
            if not _holds(container, before):
                container.clear()
                container.update(before) if isinstance(container, (dict, set)) else container.extend(before)


def _holds(container: Any, before: Any) -> bool:
    """Whether the very same things are in a container."""
    if len(container) != len(before):
        return False
    if isinstance(before, dict):
        return all(key in container and container[key] is value for key, value in before.items())
    return all(a is b for a, b in zip(container, before))


def alive() -> tuple[list[torch.Tensor], list[Any]]:
    """All tensors there are, and all that torch keeps state in: modules, optimizers, schedulers, scalers."""
    tensors, owners = [], []
    for item in gc.get_objects():
        kind = type(item)
        if issubclass(kind, torch.Tensor):
            tensors.append(item)
        elif issubclass(kind, OWNERS):
            owners.append(item)
    return tensors, owners


def put_back_versions(counted: Iterable[tuple[torch.Tensor, int]]) -> None:
    """Let tensors have been written to as often as is said here; those of inference mode, with -1, do not count."""
    moved = [(tensor, version) for tensor, version in counted if version >= 0 and tensor._version != version]
    if moved:
        set_versions(tuple(tensor for tensor, _ in moved), tuple(version for _, version in moved))


# ---------------------------------------------------------------- reachable_state


MOST = 20_000  # objects looked at; a data set in a list is not what a run changes
CONTAINERS = (dict, list, set, deque)
CLOSED = (torch.Tensor, torch.nn.Module, type, ModuleType, FunctionType, BuiltinFunctionType, str, bytes)


class Reach(NamedTuple):
    """Places found: variables of enclosing functions, global names, containers, and objects with attributes."""

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
    found = Reach([], [], [], [])
    todo: deque[Any] = deque([target, given])
    seen: dict[int, Any] = {}
    while todo and len(seen) < MOST:
        item = todo.popleft()
        if id(item) in seen:
            continue
        seen[id(item)] = item
        todo.extend(_next(item, found, is_target=item is target))
    return found


def _next(item: Any, found: Reach, *, is_target: bool) -> Iterator[Any]:
    """What one thing leads to; the places in it are noted."""
    if isinstance(item, functools.partial):
        yield from (item.func, item.args, item.keywords)
    elif isinstance(item, MethodType):
        yield from (item.__func__, item.__self__)
    elif isinstance(item, FunctionType):
        yield from _held_by(item, found)
    elif isinstance(item, CONTAINERS):
        found.containers.append(item)
        yield from list(item.values() if isinstance(item, dict) else item)
    elif isinstance(item, tuple):
        yield from item
    elif not isinstance(item, CLOSED) and isinstance(getattr(item, "__dict__", None), dict):
        found.objects.append(item)
        yield from list(vars(item).values())


def _held_by(function: FunctionType, found: Reach) -> Iterator[Any]:
    for cell in function.__closure__ or ():
        found.cells.append(cell)
        yield inside(cell)
    known = function.__globals__
    for name in function.__code__.co_names:
        item = known.get(name)
        if name in known and not isinstance(item, (type, ModuleType, FunctionType, BuiltinFunctionType)):
            found.names.append((known, name))
            yield item


def inside(cell: CellType) -> Any:
    """What a variable of an enclosing function holds; the cell itself where it holds nothing yet."""
    try:
        return cell.cell_contents
    except ValueError:
        return cell


# ---------------------------------------------------------------- state


Memory = list[tuple[torch.UntypedStorage, torch.UntypedStorage]]


class TensorState:
    """One tensor as it stood: where its elements lie, how often it was written to, its history and its gradient."""

    __slots__ = ("_gradient", "geometry", "history", "ref", "requires_grad", "version")

    def __init__(self, tensor: torch.Tensor, *, hold: bool) -> None:
        self.ref = weakref.ref(tensor)
        self.geometry = geometry(tensor)
        self.version = version_of(tensor)[0]
        self.history = history(tensor)
        self.requires_grad = tensor.requires_grad
        gradient = tensor.grad if has_gradient(tensor) else None
        # one from before the run is not held: the run may let go of it, and the memory that this frees counts
        self._gradient: Any = (lambda: gradient) if hold or gradient is None else weakref.ref(gradient)

    def put_back(self, tensor: torch.Tensor) -> None:
        """Its gradient and its flag; a gradient that was not held is given as a copy, as zeros where it is gone."""
        if self.history is None and tensor.requires_grad != self.requires_grad:
            tensor.requires_grad_(self.requires_grad)
        if not has_gradient(tensor):
            return
        gradient = self._gradient()
        if isinstance(self._gradient, weakref.ref):
            gradient = torch.zeros_like(tensor) if gradient is None else gradient.detach().clone()
        if tensor.grad is not gradient:
            tensor.grad = gradient


class Standing:
    """How everything stands now; ``put_back`` brings it there again, as often as it is called.

    With ``hold``, gradients are put back as the very tensors that they are now, and version counters as they are.
    """

    def __init__(self, target: Callable[..., Any], given: Any, *, hold: bool) -> None:
        self.hold = hold
        self.tensors: list[TensorState] = []
        self.memory: Memory = []
        self.generators: dict[Any, torch.Tensor] = {}
        self._containers = Containers()
        with torch._C.DisableTorchFunctionSubclass(), warnings.catch_warnings():
            warnings.simplefilter("ignore")  # merely asking some tensors for an attribute warns
            tensors, self.owners = alive()
            for tensor in tensors:
                self._note_tensor(tensor)
            for owner in self.owners:
                self._containers.note_all_of(owner)
        self._note_places(target, given)
        self._random = random.getstate()
        self._numpy = sys.modules["numpy.random"].get_state() if "numpy.random" in sys.modules else None
        self._torch = torch.get_rng_state()
        self._cuda = torch.cuda.get_rng_state_all() if torch.cuda.is_initialized() else []

    def put_back(self) -> None:
        """Bring everything back to where it stood."""
        with torch._C.DisableTorchFunctionSubclass(), torch.no_grad():
            self._containers.put_back()
            for storage, contents in self.memory:
                storage.copy_(contents)
            self._put_back_tensors()
        for cell, content in self._cells:
            if inside(cell) is not content:
                cell.cell_contents = content
        for known, name, content in self._names:
            if known.get(name, self) is not content:
                known[name] = content
        self._put_back_random()

    def keep_only(self, addresses: set[int], modules: set[int]) -> None:
        """Forget tensors outside this memory and what belongs to other modules: they are another program's."""
        optimizers = {
            id(owner)
            for owner in self.owners
            if isinstance(owner, Optimizer) and any(version_of(p)[2] in addresses for p in _managed(owner))
        }
        kept = {
            id(owner)
            for owner in self.owners
            if id(owner) in modules | optimizers
            or id(getattr(owner, "optimizer", None)) in optimizers
            or isinstance(owner, torch.amp.GradScaler)
        }
        own = addresses | {
            version_of(tensor)[2]
            for owner in self.owners
            if id(owner) in kept
            for tensor in tensors_of(owner)
        }
        everyone = {id(owner) for owner in self.owners}
        self._containers.keep(lambda owner: id(owner) in kept or id(owner) not in everyone)
        self.owners = [owner for owner in self.owners if id(owner) in kept]
        self.tensors = [state for state in self.tensors if state.geometry[0] in own]

    def changes(self) -> Iterator[tuple[TensorState, torch.Tensor]]:
        """The tensors that were written to, moved or given a history since."""
        for state in self.tensors:
            tensor = state.ref()
            if tensor is not None and (
                version_of(tensor)[0] != state.version
                or geometry(tensor) != state.geometry
                or history(tensor) != state.history
            ):
                yield state, tensor

    def _note_tensor(self, tensor: torch.Tensor) -> None:
        try:
            self.tensors.append(TensorState(tensor, hold=self.hold))
        except (RuntimeError, NotImplementedError, AttributeError, ValueError):
            return  # one without memory, without a shape yet, or just being made

    def _note_places(self, target: Callable[..., Any], given: Any) -> None:
        found = reach(target, given)
        self._cells = [(cell, inside(cell)) for cell in found.cells if inside(cell) is not cell]
        self._names = [(known, name, known[name]) for known, name in found.names]
        for item in found.objects:
            self._containers.note(item, vars(item))
        for container in found.containers:
            self._containers.note(None, container)

    def _put_back_tensors(self) -> None:
        left = [(tensor, state) for state in self.tensors if (tensor := state.ref()) is not None]
        for tensor, state in left:
            state.put_back(tensor)
        if self.hold:
            put_back_versions((tensor, state.version) for tensor, state in left)

    def _put_back_random(self) -> None:
        random.setstate(self._random)
        if self._numpy is not None:
            sys.modules["numpy.random"].set_state(self._numpy)
        torch.set_rng_state(self._torch)
        if self._cuda:
            torch.cuda.set_rng_state_all(self._cuda)
        for generator, state in self.generators.items():
            generator.set_state(state)


def refuse_iterators(target: Callable[..., Any], given: Any) -> None:
    """Raise where a callable takes its data from an iterator: running it again would use up more of it."""
    found = reach(target, given)
    places = [inside(cell) for cell in found.cells] + [known[name] for known, name in found.names]
    places += [value for item in found.objects for value in vars(item).values()]
    for item in places:
        if hasattr(item, "__next__") and not hasattr(item, "fileno"):
            raise UsageError(
                f"repeat= would take more from a {type(item).__name__} than one run does; fetch the batch outside "
                "and pass it to trace()"
            )


def geometry(tensor: torch.Tensor) -> tuple[Any, ...]:
    """Where a tensor's elements lie, the address of its memory first; 0 where it has no plain memory."""
    address = version_of(tensor)[2]
    if not address or tensor.layout is not torch.strided:
        return (0, tensor.dtype)
    return address, tensor.dtype, tuple(tensor.shape), tensor.stride(), tensor.storage_offset()


def history(tensor: torch.Tensor) -> tuple[str, int] | None:
    """The autograd node that made a tensor, by name and number; to hold the node would hold its graph."""
    made = tensor.grad_fn
    return None if made is None else (made.name(), made._sequence_nr())


def has_gradient(tensor: torch.Tensor) -> bool:
    """Whether a tensor can have a gradient of its own."""
    return tensor.requires_grad and (tensor.is_leaf or tensor.retains_grad)


def _managed(optimizer: Optimizer) -> list[torch.Tensor]:
    return [parameter for group in optimizer.param_groups for parameter in group["params"]]


def tensors_of(owner: Any) -> list[torch.Tensor]:
    """The parameters and buffers of a module by itself, or what an optimizer works on and keeps."""
    if isinstance(owner, torch.nn.Module):
        found = [*owner._parameters.values(), *owner._buffers.values()]
    elif isinstance(owner, Optimizer):
        found = _managed(owner) + [item for state in owner.state.values() for item in state.values()]
    else:
        found = list(vars(owner).values())
    return [item for item in found if isinstance(item, torch.Tensor)]
