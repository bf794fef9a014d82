"""How everything stands that a run may change, so that it can be run again from there and leave what one run leaves.

What torch keeps (tensors, modules, optimizers, schedulers, scalers) is found in the garbage collector's list, what the
program keeps by following the callable (``reaching``). Contents of memory are those that the recording has copied.
What goes back as it does after any run that is to leave nothing behind is in ``restoring``.
"""

from __future__ import annotations

import random
import sys
import warnings
import weakref
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch.optim import Optimizer

from torch_vis.capture.kept_tensors import version_of
from torch_vis.capture.memento import Containers, alive, put_back_versions
from torch_vis.capture.reachable_state import inside, reach
from torch_vis.errors import UsageError

Memory = list[tuple[torch.UntypedStorage, torch.UntypedStorage]]


class TensorState:
    """One tensor as it stood: where its elements lie, how often it was written to, its history and its gradient."""

    __slots__ = ("_gradient", "geometry", "history", "ref", "requires_grad", "version")

    def __init__(self, tensor: torch.Tensor, *, hold: bool) -> None:
        self.ref = weakref.ref(tensor)
        self.geometry = geometry(tensor)
        self.version = version_of(tensor).writes
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
        self.tensors = [state for state in self.tensors if state.geometry[0] in own]

    def changes(self) -> Iterator[tuple[TensorState, torch.Tensor]]:
        """The tensors that were written to, moved or given a history since."""
        for state in self.tensors:
            tensor = state.ref()
            if tensor is not None and (
                version_of(tensor).writes != state.version
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
    address = version_of(tensor).address
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
