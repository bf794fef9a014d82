"""A run that leaves nothing behind: weights, gradients, buffers, attributes and random streams are put back.

Bit for bit: the random generators of torch, Python and numpy; the memory of parameters, buffers, inputs and,
where operations are followed, of every other tensor from outside that the run wrote to; the ``.grad`` of all of them;
and the attributes of the modules with the lists, dictionaries and sets that they hold directly. State of the
program's own objects beyond that is the program's.
"""

from __future__ import annotations

import random
from collections import Counter, OrderedDict, defaultdict, deque
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import numpy as np
import torch
from torch.utils._pytree import tree_map_only

from torch_vis.capture.containers import named_tensors
from torch_vis.capture.kept_tensors import KeptTensors, copy_of
from torch_vis.capture.recording.dispatch_mode import RecordMode, is_wrapper
from torch_vis.capture.recording.recorder import Recorder, flat_tensors
from torch_vis.ops.higher_order import INLINED

COPIED = 64 << 20  # bytes up to which copying everything is cheaper than watching every operation
PLAIN = (torch.Tensor, torch.nn.Parameter, torch.nn.Buffer)
MAPPINGS = (dict, OrderedDict, defaultdict, Counter)
CONTAINERS = (*MAPPINGS, list, set, deque)
disabled = torch._C._DisableTorchDispatch  # what is done here is no operation of the program's


class Untouched:
    """Puts back what a run changes: around the run, ``watch`` whoever sees its writes, or else copies are made.

    >>> norm = torch.nn.BatchNorm1d(2)
    >>> with Untouched(norm, [], operations=False):
    ...     _ = norm(torch.ones(3, 2))
    >>> norm.num_batches_tracked
    tensor(0)
    """

    def __init__(self, model: Any, inputs: Iterable[torch.Tensor], *, operations: bool) -> None:
        self.modules = list(model.modules()) if isinstance(model, torch.nn.Module) else []
        self.inputs = list(inputs)
        self.operations = operations
        self.held: list[KeptTensors] = []
        self.lost: list[str] = []
        """Tensors that were changed and could not be put back."""
        self._guard: WriteGuard | None = None

    def __enter__(self) -> Untouched:
        self._streams = _Streams(self.modules)
        self._attributes = [_Attributes(module) for module in self.modules]
        self._tensors = [_Tensor(name, tensor) for name, tensor in self._named()]
        self._aside: list[tuple[torch.Tensor, Any, dict[int, Any]]] = []
        self._copies: list[tuple[torch.UntypedStorage, torch.UntypedStorage]] = []
        if not self.operations:
            self._prepare_memory()
        self._put_aside(kept.tensor for kept in self._tensors)
        return self

    def watch(self, held: KeptTensors) -> None:
        """Take what a recorder keeps from before the first write to it."""
        self.held.append(held)

    def expect(self, output: Any) -> None:
        """Put aside the gradients of whatever else a backward pass from this output would reach."""
        known = {id(tensor) for tensor, _, _ in self._aside}
        self._put_aside(leaf for leaf in leaves_of(output) if id(leaf) not in known)

    def __exit__(self, *exception: object) -> None:
        if self._guard is not None:
            self._guard.__exit__(None, None, None)
            self.held.append(self._guard.recorder.kept)
        for attributes in self._attributes:
            attributes.restore()
        with disabled(), torch.no_grad():
            restored = self._restore_memory()
            for kept in self._tensors:
                kept.restore(restored, self.lost)
            for tensor, gradient, hooks in self._aside:
                if tensor.grad is not gradient:
                    tensor.grad = gradient
                if hooks:
                    _post_hooks(tensor).update(hooks)
        self._streams.restore(self.held)

    # ---------------------------------------------------------------- memory

    def _named(self) -> Iterator[tuple[str, torch.Tensor]]:
        """Every tensor that the modules hold and that goes in, each once."""
        seen: set[int] = set()
        found: list[tuple[str, torch.Tensor]] = []
        for module in self.modules:
            kind = type(module).__name__
            for name, item in vars(module).items():
                found += [(f"{name} of {kind}", item)] if isinstance(item, torch.Tensor) else []
                if type(item) in CONTAINERS and item:
                    parts = item.items() if isinstance(item, MAPPINGS) else enumerate(item)
                    found += [
                        (f"{key} of {kind}", part) for key, part in parts if isinstance(part, torch.Tensor)
                    ]
            if isinstance(module, torch.jit.ScriptModule):
                found += [*module.named_parameters(), *module.named_buffers()]
        for place, tensor in enumerate(self.inputs):
            found.append((f"input {place}", tensor))
        for name, tensor in found:
            if id(tensor) not in seen:
                seen.add(id(tensor))
                yield name, tensor

    def _prepare_memory(self) -> None:
        """Where nobody sees the writes: copy everything, or have somebody look out for writes if that is much."""
        storages: dict[int, torch.UntypedStorage] = {}
        for kept in self._tensors:
            for _, tensor in named_tensors(kept.tensor):
                storage = _storage(tensor)
                if storage is not None:
                    storages[storage._cdata] = storage
        if sum(storage.nbytes() for storage in storages.values()) > COPIED:
            self._guard = WriteGuard(storages)
            self._guard.__enter__()
            return
        with disabled():
            self._copies = [(storage, copy_of(storage)) for storage in storages.values()]

    def _restore_memory(self) -> set[int]:
        """Put contents back; the addresses of the memory that has what it had."""
        pairs = list(self._copies)
        for held in self.held:
            pairs += [(held.storages[number], copy) for number, copy in held.originals.items()]
        for storage, copy in pairs:
            if storage is copy:
                continue  # it has no contents
            if storage.nbytes() != copy.nbytes():
                storage.resize_(copy.nbytes())
            storage.copy_(copy)
        return {storage._cdata for storage, _ in pairs}

    # ---------------------------------------------------------------- gradients

    def _put_aside(self, tensors: Iterable[torch.Tensor]) -> None:
        """Take gradients away, so that a backward pass makes new ones, and what would act on these (an optimizer)."""
        for tensor in tensors:
            if not tensor.is_leaf or (not _lazy(tensor) and tensor.is_inference()):
                continue
            hooks = dict(_post_hooks(tensor))
            _post_hooks(tensor).clear()
            self._aside.append((tensor, tensor.grad, hooks))
            if tensor.grad is not None:
                tensor.grad = None


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
            storage = _storage(tensor)
            if storage is not None and storage._cdata in self.storages:
                self.recorder.number_of(tensor)
                self.recorder.copy_before_write([tensor], (0,))


class _Streams:
    """The states of the random generators: the global ones, and those that modules hold."""

    def __init__(self, modules: Iterable[torch.nn.Module]) -> None:
        self.python = random.getstate()
        self.numpy = np.random.get_state()
        self.cuda = torch.cuda.is_initialized()
        found = [torch.default_generator, *(torch.cuda.default_generators if self.cuda else ())]
        for module in modules:
            found += [item for item in vars(module).values() if isinstance(item, torch.Generator)]
        self.states = [(generator, generator.get_state()) for generator in found]

    def restore(self, held: Iterable[KeptTensors]) -> None:
        states = dict(self.states)
        for kept in held:
            for _, seed in sorted(
                kept.rng_states.items()
            ):  # the first state that was found is the one from before
                if seed.generator is not None:
                    states.setdefault(seed.generator, seed.state)
        for generator, state in states.items():
            generator.set_state(state)
        random.setstate(self.python)
        np.random.set_state(self.numpy)


class _Attributes:
    """What a module consists of, to the depth of the containers that its attributes are."""

    def __init__(self, module: torch.nn.Module) -> None:
        self.module = module
        self.kind = type(module)
        self.values = dict(vars(module))
        self.contents = [
            (item, _copy(item)) for item in self.values.values() if type(item) in CONTAINERS and item
        ]
        self.empty = [item for item in self.values.values() if type(item) in CONTAINERS and not item]

    def restore(self) -> None:
        if type(self.module) is not self.kind:  # a lazy module that has got its shape
            self.module.__class__ = self.kind
        now = vars(self.module)
        if not _same(now, self.values):
            now.clear()
            now.update(self.values)
        for item, before in self.contents:
            if not _same(item, before):
                _refill(item, before)
        for item in self.empty:
            if item:
                item.clear()


class _Tensor:
    """Where a tensor's memory lies, and what belongs to the tensor itself and not to its memory."""

    def __init__(self, name: str, tensor: torch.Tensor) -> None:
        self.name = name
        self.tensor = tensor
        self.kind = type(tensor)
        self.requires_grad = tensor.requires_grad
        self.version = None if _lazy(tensor) or tensor.is_inference() else tensor._version
        self.alias: torch.Tensor | None = None
        if type(tensor) in PLAIN or _lazy(tensor):
            with disabled():
                self.alias = tensor.data

    def restore(self, restored: set[int], lost: list[str]) -> None:
        tensor, alias = self.tensor, self.alias
        if alias is not None and _place(tensor) != _place(alias):
            tensor.data = alias
        if type(tensor) is not self.kind:
            tensor.__class__ = self.kind
        if tensor.requires_grad != self.requires_grad and tensor.is_leaf:
            tensor.requires_grad_(self.requires_grad)
        if self.version is not None and tensor._version != self.version:
            storage = _storage(tensor)
            if storage is None or storage._cdata not in restored:
                lost.append(self.name)
            else:
                torch._C._autograd._unsafe_set_version_counter((tensor,), (self.version,))


def without_history(items: Any) -> Any:
    """The same arguments, with tensors that come out of a graph of the user's cut off from it."""
    if not any(tensor.grad_fn is not None for _, tensor in named_tensors(items)):
        return items

    def cut(tensor: torch.Tensor) -> torch.Tensor:
        return tensor if tensor.grad_fn is None else tensor.detach().requires_grad_(tensor.requires_grad)

    return tree_map_only(torch.Tensor, cut, items)


def leaves_of(output: Any) -> list[torch.Tensor]:
    """The tensors into whose ``.grad`` a backward pass from this output would add."""
    stack = [tensor.grad_fn for _, tensor in named_tensors(output) if tensor.grad_fn is not None]
    seen: set[Any] = set()
    found: list[torch.Tensor] = []
    while stack:
        node: Any = stack.pop()
        if node in seen:
            continue
        seen.add(node)
        if type(node).__name__ == "AccumulateGrad":
            found.append(node.variable)
        stack.extend(following for following, _ in node.next_functions if following is not None)
    return found


def _lazy(tensor: torch.Tensor) -> bool:
    """Whether a parameter has not got its shape yet."""
    return isinstance(tensor, torch.nn.parameter.UninitializedTensorMixin)  # type: ignore[attr-defined]


def _post_hooks(tensor: torch.Tensor) -> dict[int, Any]:
    hooks: dict[int, Any] | None = getattr(tensor, "_post_accumulate_grad_hooks", None)
    return {} if hooks is None else hooks


def _storage(tensor: torch.Tensor) -> torch.UntypedStorage | None:
    if _lazy(tensor):
        return None
    try:
        return tensor.untyped_storage()
    except (RuntimeError, NotImplementedError):
        return None


def _place(tensor: torch.Tensor) -> Any:
    storage = _storage(tensor)
    if storage is None:
        return None
    return storage._cdata, tensor.dtype, tensor.shape, tensor.stride(), tensor.storage_offset()


def _copy(item: Any) -> Any:
    return dict(item) if isinstance(item, MAPPINGS) else list(item)


def _same(item: Any, before: Any) -> bool:
    """Whether a container holds the very same objects in the same order."""
    if len(item) != len(before):
        return False
    if isinstance(item, dict):
        return all(a == b and x is y for (a, x), (b, y) in zip(item.items(), before.items()))
    return all(x is y for x, y in zip(item, before))


def _refill(item: Any, before: Any) -> None:
    item.clear()
    refill: Callable[[Any], None] = item.update if isinstance(item, (*MAPPINGS, set)) else item.extend
    if isinstance(item, Counter):
        refill = lambda values: dict.update(item, values)  # noqa: E731  (a counter's own update would add)
    refill(before)
