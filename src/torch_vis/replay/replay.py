"""Replay: the recorded operations run again on memory of their own.

A replay knows blocks of memory and nothing else. An argument is built from the geometry and the block that the graph
names; a block that no executed operation has made is there, but filled with nonsense. So an edge that the graph
lacks shows as a wrong result, whatever aliasing the original program had.
"""

from __future__ import annotations

import ast
import hashlib
import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import cached_property
from typing import Any

import numpy as np
import torch
from torch.utils._python_dispatch import is_traceable_wrapper_subclass

from torch_vis.capture.kept_tensors import KeptTensors, copy_of
from torch_vis.capture.modes import kept_after_interrupt, without_gradients
from torch_vis.capture.recording.tensors import opaque_type
from torch_vis.capture.undo import Undo, context
from torch_vis.errors import CheckFailed, TensorsMissing, TorchVisError
from torch_vis.graph.call import Call, Slot, Special
from torch_vis.graph.graph import Graph
from torch_vis.graph.schema import RECORDED, Flag, Kind
from torch_vis.ops.schemas import resolve

# every byte of memory that nothing has written in a replay
POISON = 0xFF
# plain numbers: an enum's members are slow to get
COLLECTIVE, RANDOM, GRAD_MODE = int(Flag.COLLECTIVE), int(Flag.RANDOM), int(Flag.GRAD_MODE)

# from the text of a ``Special`` in a call template to the object that it stands for
BUILDERS: dict[str, Callable[[str], Any]] = {
    "dtype": lambda text: getattr(torch, text),
    "layout": lambda text: getattr(torch, text),
    "memory_format": lambda text: getattr(torch, text),
    "device": torch.device,
}


class Replay:
    """One execution of (some of) a graph's nodes, from the inputs and state that a trace holds."""

    def __init__(self, graph: Graph, held: KeptTensors, plan: ReplayPlan) -> None:
        self.graph = graph
        self.held = held
        self.plan = plan
        # blocks of memory, by storage
        self.memory: dict[int, torch.UntypedStorage] = dict(plan.only_read)
        # tensors without plain memory (sparse, nested, quantized), by storage
        self.objects: dict[int, torch.Tensor] = {}
        # blocks that are there in name only: those of wrappers around other tensors
        self.hollow: set[int] = set()
        # of what each node made, where they were asked for
        self.digests: dict[int, str] | None = None
        for value, tensor in held.opaque_tensors.items():
            storage = int(graph.value_storage[value])
            self.objects[storage] = tensor.clone() if plan.written[storage] else tensor
        for storage in plan.written_outside:
            self.restore(storage)

    def restore(self, storage: int) -> None:
        """Put a block from outside back to what it was before the run."""
        source = self.held.originals.get(storage, self.held.storages[storage])
        self.memory[storage] = copy_of(source) if self.plan.written[storage] else source

    def run(
        self,
        nodes: Sequence[int],
        *,
        states: dict[int, Any] | None = None,
        digests: bool = False,
        release: bool = True,
        done: Mapping[int, Sequence[int]] | None = None,
    ) -> None:
        """Execute nodes in the given order.

        ``states`` has the random state before each random node; of a node that is not in it the recorded state is used,
        or the stream goes on, and the state is added. Memory that no later one of these nodes and no result needs is
        freed, unless ``release`` is off; ``done`` is the plan's ``last_uses`` of these nodes, where it is known.
        """
        if digests:
            self.digests = {}
        if done is None or digests or not release:
            done = self.plan.last_uses(nodes) if release and not digests else {}
        with replay_context(self.plan.generators):
            for node in nodes:
                self.run_node(node, states)
                for storage in done.get(node, ()):
                    self.memory.pop(storage, None)
                    self.objects.pop(storage, None)

    def run_node(self, node: int, states: dict[int, Any] | None) -> None:
        """Execute one node, as ``run`` does; whatever a damaged graph makes torch raise is a ``CheckFailed``."""
        try:
            if self.plan.flags[node] & RECORDED:
                self._take_recorded(node)
                return
            if self.hollow:
                self._refuse_hollow(node)
            tensors = self.tensors(self.plan.arguments(node))
            if self.plan.flags[node] & RANDOM and states is not None:
                self._seed(node, states)
            self._bind(node, tensors, self.call(node, tensors))
            if self.digests is not None:
                values = self.graph.out_value[slice(*self.graph.output_span(node))]
                self.digests[node] = "".join(digest(self.tensor(int(value))) for value in values)
        except TorchVisError:
            raise
        except Exception as error:
            raise CheckFailed(
                f"replay of {node_text(self.graph, node)} raised {type(error).__name__}: {error}"
            ) from error

    def _refuse_hollow(self, node: int) -> None:
        """Raise where an operation would read memory that is not there."""
        graph = self.graph
        span = slice(*graph.input_span(node))
        for value in graph.in_value[span][graph.in_kind[span] != Kind.SHAPE].tolist():
            self.must_be_there(value)

    def must_be_there(self, value: int) -> None:
        """Raise if a value lies in memory that is there in name only."""
        if self.block(value) in self.hollow:
            raise CheckFailed(
                f"value {value} is a wrapper around another tensor and has no memory to be read"
            )

    def call(self, node: int, tensors: Sequence[torch.Tensor]) -> Any:
        """What a node's operator gives for these tensors in its slots."""
        prepared = self.plan.prepared(node)
        args, kwargs = prepared.arguments(tensors)
        grad_mode = bool(self.plan.flags[node] & GRAD_MODE)
        if torch.is_grad_enabled() != grad_mode:
            # ``replay_context``, around the whole replay, puts it back
            torch._C._set_grad_enabled(grad_mode)
        return prepared.run(*args, **kwargs)

    def _take_recorded(self, node: int) -> None:
        """Put what code that could not be looked into, or another rank, left behind where it was left.

        What a collective receives is there once somebody has waited for it: until then its outputs are nonsense.
        """
        graph = self.graph
        values = graph.out_value[slice(*graph.output_span(node))]
        for value in values:
            storage = int(graph.value_storage[value])
            if storage not in self.memory and storage in self.held.storages:
                self.restore(storage)
        contents = self.held.opaque_outputs.get(node, ())
        if self.plan.flags[node] & COLLECTIVE and not contents:
            for value in values:
                poison_contents(self.tensor(int(value)))
        for value, content in zip(values, contents, strict=False):
            self.tensor(int(value)).copy_(content)

    def _bind(self, node: int, tensors: Sequence[torch.Tensor], result: Any) -> None:
        """Let the values that a node makes lie on the memory that it wrote or returned."""
        graph = self.graph
        begin, end = graph.output_span(node)
        slots, values = graph.out_slot[begin:end].tolist(), graph.out_value[begin:end].tolist()
        written = [tensors[-1 - slot] for slot in slots if slot < 0]
        fresh = [t for t in flat(result) if not any(t is other for other in written)]
        if len(fresh) + len(written) != len(slots) or max(slots, default=-1) >= len(fresh):
            recorded = len(slots) - len(written)
            raise CheckFailed(
                f"replay of {node_text(graph, node)} returned {len(fresh)} tensors where {recorded} were recorded"
            )
        for slot, value in zip(slots, values, strict=True):
            tensor = tensors[-1 - slot] if slot < 0 else fresh[slot]
            self._place(node, value, tensor, is_write=slot < 0)

    def _place(self, node: int, value: int, tensor: torch.Tensor, *, is_write: bool) -> None:
        """Take a tensor's memory for a value, if its geometry is the one recorded."""
        graph = self.graph
        storage = self.block(value)
        row = graph.types[graph.value_type[value]]
        if row.layout != "strided":
            given = opaque_type(tensor)
            if given != row._replace(symbols=()):
                raise CheckFailed(
                    f"replay of {node_text(graph, node)} gave {given} ({given.layout}) "
                    f"where {row} ({row.layout}) was recorded"
                )
            self.objects[storage] = tensor
            return
        geometry = (tuple(tensor.shape), tuple(tensor.stride()), int(tensor.storage_offset()))
        expected = (row.shape, row.stride, int(graph.value_offset[value]))
        if geometry != expected or tensor.dtype != getattr(torch, row.dtype, None):
            raise CheckFailed(
                f"replay of {node_text(graph, node)} gave {tensor.dtype} {geometry} "
                f"where {row.dtype} {expected} was recorded"
            )
        is_new = storage >= 0 and graph.storage_birth[storage] == node
        if is_new or storage not in self.memory:
            self.memory[storage] = tensor.untyped_storage()
            if type(tensor) is not torch.Tensor and is_traceable_wrapper_subclass(tensor):
                self.hollow.add(storage)
        elif tensor.untyped_storage()._cdata != self.memory[storage]._cdata:
            if is_write:
                self.memory[storage] = tensor.untyped_storage()
            elif tensor.numel():
                raise CheckFailed(
                    f"replay of {node_text(graph, node)} returned new memory where a view was recorded"
                )

    def block(self, value: int) -> int:
        """The number of the block that a value lies in: its storage, unless a replay decides otherwise."""
        return int(self.graph.value_storage[value])

    def tensor(self, value: int) -> torch.Tensor:
        """A value as a tensor on the replay's memory."""
        graph = self.graph
        storage = self.block(value)
        row = graph.types[graph.value_type[value]]
        if row.layout != "strided":
            if storage not in self.objects:
                raise CheckFailed(f"value {value} ({row}) is needed before it is made")
            return self.objects[storage]
        block = self.memory.get(storage)
        if block is None:
            own = int(graph.value_storage[value])
            block = self.memory[storage] = poisoned(
                int(graph.storage_bytes[own]), graph.devices[graph.storage_device[own]]
            )
        dtype, reach = self.plan.dtype_and_extent(int(graph.value_type[value]))
        needed = (int(graph.value_offset[value]) + reach) * dtype.itemsize
        if block.nbytes() < needed:
            if storage in self.held.storages and not self.plan.written[storage]:
                raise CheckFailed(f"value {value} ({row}) reaches beyond its memory")
            block.resize_(needed)
        return self.on_block(value, block)

    def on_block(self, value: int, block: torch.UntypedStorage, start: int = 0) -> torch.Tensor:
        """A tensor of a value's geometry on some block, which begins at byte ``start`` of the value's own."""
        row = self.graph.types[self.graph.value_type[value]]
        dtype, reach = self.plan.dtype_and_extent(int(self.graph.value_type[value]))
        offset = int(self.graph.value_offset[value])
        if start:
            offset = offset - start // dtype.itemsize if reach else 0
        tensor = torch.empty(0, dtype=dtype, device=block.device).set_(block, offset, row.shape, row.stride)
        if row.conj:
            tensor = torch._conj(tensor)
        return torch._neg_view(tensor) if row.neg else tensor

    def tensors(self, values: Sequence[int]) -> list[torch.Tensor]:
        """Values as arguments of one call: one tensor of the run is one object, since some kernels ask for that."""
        tensors = [self.tensor(value) for value in values]
        if len(values) > 1 and len(set(values)) < len(values):
            by_value = dict(zip(values, tensors))
            return [by_value[value] for value in values]
        return tensors

    def _seed(self, node: int, states: dict[int, Any]) -> None:
        generator = self.plan.generator(node)
        if generator is None:
            return
        if node in states:
            generator.set_state(states[node])
        else:
            if node in self.held.rng_states:
                generator.set_state(self.held.rng_states[node].state)
            states[node] = generator.get_state()


class ReplayPlan:
    """What every replay of one trace shares: prepared calls, argument lists, which blocks are written."""

    def __init__(self, graph: Graph, held: KeptTensors) -> None:
        self.graph = graph
        self.held = held
        self._prepared: dict[int, PreparedCall] = {}
        self._types: dict[int, tuple[torch.dtype, int]] = {}
        self.flags: list[int] = graph.node_flags.tolist()
        self.written = np.zeros(len(graph.storage_bytes), dtype=bool)
        self.written[graph.value_storage[graph.out_value[graph.out_slot < 0]]] = True
        self.allocated_in_run = graph.storage_birth >= 0
        outside = [storage for storage in held.storages if not self.allocated_in_run[storage]]
        self.only_read = {
            storage: held.originals.get(storage, held.storages[storage])
            for storage in outside
            if not self.written[storage]
        }
        self.written_outside = [storage for storage in outside if self.written[storage]]
        self.generators = {seed.generator for seed in held.rng_states.values() if seed.generator is not None}
        missing = (graph.value_producer < 0) & ~self._supplied()
        if missing.any():
            value = graph.values[int(np.flatnonzero(missing)[0])]
            raise TensorsMissing(
                f"{value!r} is not held by this trace, so it cannot be replayed; trace with hold=True"
            )

    def _supplied(self) -> Any:
        """Which values a replay can start from or make: their memory is held, or allocated in the run."""
        graph, held = self.graph, self.held
        storages = np.zeros(len(graph.storage_bytes), dtype=bool)
        storages[list(held.storages)] = True
        storages[graph.value_storage[list(held.opaque_tensors)]] = True
        storages |= self.allocated_in_run
        return storages[graph.value_storage]

    def prepared(self, node: int) -> PreparedCall:
        """The node's call, decoded once per template."""
        call = int(self.graph.node_call[node])
        prepared = self._prepared.get(call)
        if prepared is None:
            prepared = self._prepared[call] = PreparedCall(self.graph.calls[call], self.held.objects)
        return prepared

    def last_uses(self, nodes: Sequence[int], looks: Iterable[tuple[int, int]] = ()) -> dict[int, list[int]]:
        """For each node, the blocks of memory that are needed no more after it, when nodes run in this order.

        ``looks`` are values that are looked at besides, each with the node after which.
        """
        graph = self.graph
        order = np.asarray(nodes, dtype=np.int64)
        position = np.full(len(graph), -1, dtype=np.int64)
        position[order] = np.arange(len(order))
        last = np.full(len(graph.storage_bytes), -1, dtype=np.int64)
        np.maximum.at(last, graph.value_storage[graph.in_value], position[graph.in_node])
        np.maximum.at(last, graph.value_storage[graph.out_value], position[graph.out_node])
        if len(order):
            for value, after in looks:
                # once the first node from there on has run; a block that is looked at after the last of them stays
                storage, at = graph.value_storage[value], int(np.searchsorted(order, after))
                last[storage] = max(last[storage], at)
            last[last >= len(order)] = -1
        last[graph.value_storage[graph.result_value]] = -1
        done: dict[int, list[int]] = {}
        for storage in np.flatnonzero(last >= 0).tolist():
            done.setdefault(int(order[last[storage]]), []).append(storage)
        return done

    def arguments(self, node: int) -> list[int]:
        """The values in a node's slots, in slot order."""
        values, start = self._slots
        return values[start[node] : start[node + 1]]

    @cached_property
    def _slots(self) -> tuple[list[int], list[int]]:
        """The values in all slots, node by node in slot order, and where each node's begin."""
        graph = self.graph
        rows = np.flatnonzero(graph.in_slot >= 0)
        rows = rows[np.lexsort((graph.in_slot[rows], graph.in_node[rows]))]
        counts = np.bincount(graph.in_node[rows], minlength=len(graph))
        return graph.in_value[rows].tolist(), [0, *np.cumsum(counts).tolist()]

    def dtype_and_extent(self, type_: int) -> tuple[torch.dtype, int]:
        """The dtype of the tensor type of this number, and how many elements from its offset on it reaches."""
        known = self._types.get(type_)
        if known is None:
            row = self.graph.types[type_]
            known = self._types[type_] = getattr(torch, row.dtype), row.extent
        return known

    def generator(self, node: int) -> torch.Generator | None:
        """The generator that a random node draws from."""
        graph = self.graph
        prepared = self.prepared(node)
        given = (*prepared.args, *prepared.kwargs.values())
        explicit = next((item for item in given if isinstance(item, torch.Generator)), None)
        if explicit is not None:
            return explicit
        start, stop = graph.output_span(node)
        values = graph.out_value[start:stop]
        if not len(values):
            return None
        device = torch.device(graph.devices[graph.storage_device[graph.value_storage[values[0]]]])
        if device.type == "cuda":
            return torch.cuda.default_generators[device.index or 0]
        return torch.default_generator if device.type == "cpu" else None

    def orderings(self) -> tuple[Any, Any]:
        """The pairs of nodes, before and after, that every order must respect.

        Read after write, write after read and write after write, as the graph knows them.
        """
        graph = self.graph
        reads = graph.in_kind != Kind.SHAPE
        # a tensor without plain memory is one object: even its shape is there only once it is made
        is_object = np.array([row.layout != "strided" for row in graph.types], dtype=bool)
        if is_object.any():
            reads = reads | is_object[graph.value_type[graph.in_value]]
        source = graph.value_producer[graph.in_value[reads]]
        target = graph.in_node[reads]
        has_producer = source >= 0
        before, after = [source[has_producer]], [target[has_producer]]
        is_write = graph.out_slot < 0
        births = graph.storage_birth[graph.value_storage[graph.out_value]] == graph.out_node
        writes = self.written[graph.value_storage[graph.out_value]] & (is_write | births)
        touched = self.written[graph.value_storage[graph.in_value]] & reads
        storage = np.concatenate(
            [graph.value_storage[graph.in_value[touched]], graph.value_storage[graph.out_value[writes]]]
        )
        node = np.concatenate([graph.in_node[touched], graph.out_node[writes]])
        writing = np.concatenate(
            [np.zeros(int(touched.sum()), dtype=bool), np.ones(int(writes.sum()), dtype=bool)]
        )
        pairs: list[tuple[int, int]] = []
        last_storage, last_write = -1, -1
        readers: list[int] = []
        for row in np.lexsort((writing, node, storage)).tolist():
            if storage[row] != last_storage:
                last_storage, last_write, readers = int(storage[row]), -1, []
            user = int(node[row])
            if not writing[row]:
                readers.append(user)
                continue
            pairs.extend((reader, user) for reader in readers if reader != user)
            if last_write >= 0 and last_write != user:
                pairs.append((last_write, user))
            last_write, readers = user, []
        if pairs:
            extra = np.array(pairs, dtype=np.int64)
            before.append(extra[:, 0])
            after.append(extra[:, 1])
        return np.concatenate(before), np.concatenate(after)


class PreparedCall:
    """A call template made ready to be filled with tensors, many times."""

    def __init__(self, call: Call, objects: Mapping[str, Any]) -> None:
        self.run = resolve(call.op)
        self.objects = objects
        self.args = tuple(self._literal(arg) for arg in call.args)
        self.kwargs = {name: self._literal(arg) for name, arg in call.kwargs}
        # most calls have their tensors side by side among the positional arguments
        self._slots = [(at, arg.number) for at, arg in enumerate(self.args) if isinstance(arg, Slot)]
        self._is_flat = not any(isinstance(arg, (list, dict)) for arg in self.args) and not any(
            isinstance(arg, (list, dict, Slot)) for arg in self.kwargs.values()
        )

    def arguments(self, tensors: Sequence[torch.Tensor]) -> tuple[list[Any], dict[str, Any]]:
        """Positional and keyword arguments with the tensors in their slots."""
        if self._is_flat:
            given = list(self.args)
            for at, number in self._slots:
                given[at] = tensors[number]
            return given, self.kwargs
        args = [_fill(arg, tensors) for arg in self.args]
        return args, {name: _fill(arg, tensors) for name, arg in self.kwargs.items()}

    def _literal(self, item: Any) -> Any:
        if isinstance(item, Special):
            return self.objects[item.text] if item.kind == "object" else BUILDERS[item.kind](item.text)
        if type(item) is tuple:
            if len(item) == 2 and isinstance(item[0], Special) and item[0].kind == "dict":
                return dict(zip(ast.literal_eval(item[0].text), map(self._literal, item[1]), strict=True))
            return [self._literal(part) for part in item]
        return item


def _fill(item: Any, tensors: Sequence[torch.Tensor]) -> Any:
    if isinstance(item, Slot):
        return tensors[item.number]
    if isinstance(item, list):
        return [_fill(part, tensors) for part in item]
    if isinstance(item, dict):
        return {key: _fill(part, tensors) for key, part in item.items()}
    return item


@context
def replay_context(undo: Undo, generators: Iterable[torch.Generator]) -> None:
    """The state of torch that replays run in: no gradients, no autocast, random generators restored afterwards."""
    undo.enter(kept_after_interrupt())
    cuda = torch.cuda.default_generators if torch.cuda.is_initialized() else ()
    for generator in (torch.default_generator, *cuda, *generators):
        undo.add(generator.set_state, generator.get_state())
    undo.enter(without_gradients())
    for device in ("cpu", "cuda"):
        undo.add(torch.set_autocast_enabled, device, torch.is_autocast_enabled(device))
        torch.set_autocast_enabled(device, False)


def poisoned(size: int, device: str, poison: int = POISON) -> torch.UntypedStorage:
    """A block that holds nonsense: NaN for floating types and -1 for integers, or some other byte everywhere."""
    block = torch.UntypedStorage(size, device=torch.device(device))
    return block if device == "meta" else block.fill_(poison)  # type: ignore[attr-defined]


def poison_contents(tensor: torch.Tensor) -> None:
    """Write poison over all elements of a tensor: NaN, -1 or true."""
    tensor.fill_(math.nan if tensor.is_floating_point() or tensor.is_complex() else -1)


def flat(result: Any) -> Iterator[torch.Tensor]:
    """The tensors in an operator's result, in order."""
    if isinstance(result, torch.Tensor):
        yield result
    elif isinstance(result, (tuple, list)):
        for part in result:
            yield from flat(part)
    elif isinstance(result, dict):
        for part in result.values():
            yield from flat(part)


def plain_bytes(tensor: torch.Tensor) -> torch.Tensor:
    """A tensor's contents as a flat row of bytes."""
    dense = tensor.detach().resolve_conj().resolve_neg().contiguous()
    if not dense.numel():
        return dense.new_empty(0, dtype=torch.uint8)
    return dense.as_strided((dense.numel(),), (1,)).view(torch.uint8)


def digest(tensor: torch.Tensor) -> str:
    """A short text that changes with any bit of a tensor."""
    return "".join(
        hashlib.blake2b(plain_bytes(part).cpu().numpy().tobytes(), digest_size=8).hexdigest()
        for part in plain_parts(tensor)
    )


def plain_parts(tensor: torch.Tensor) -> list[torch.Tensor]:
    """The strided tensors that make up a sparse, nested or quantized one."""
    if tensor._is_zerotensor():
        return [tensor.clone()]
    if tensor.is_nested:
        return list(tensor.unbind())
    if tensor.is_quantized:
        if tensor.qscheme() in (torch.per_channel_affine, torch.per_channel_affine_float_qparams):
            return [tensor.int_repr(), tensor.q_per_channel_scales(), tensor.q_per_channel_zero_points()]
        return [
            tensor.int_repr(),
            torch.tensor([tensor.q_scale(), tensor.q_zero_point()], dtype=torch.float64),
        ]
    if tensor.layout is torch.sparse_coo:
        return [tensor._indices(), tensor._values()]
    if tensor.layout in (torch.sparse_csr, torch.sparse_bsr):
        return [tensor.crow_indices(), tensor.col_indices(), tensor.values()]
    if tensor.layout in (torch.sparse_csc, torch.sparse_bsc):
        return [tensor.ccol_indices(), tensor.row_indices(), tensor.values()]
    if tensor.is_mkldnn:
        return [tensor.to_dense()]
    return [tensor]


def same_bits(a: torch.Tensor, b: torch.Tensor) -> bool:
    """Whether two tensors agree in shape, type and every bit; NaN equals itself, 0.0 does not equal -0.0."""
    if a.dtype != b.dtype or (not a.is_nested and a.shape != b.shape):
        return False
    if a.device.type == "meta":
        return b.device.type == "meta"
    left, right = plain_parts(a), plain_parts(b)
    return len(left) == len(right) and all(
        x.shape == y.shape and x.dtype == y.dtype and torch.equal(plain_bytes(x), plain_bytes(y))
        for x, y in zip(left, right, strict=True)
    )


def node_text(graph: Graph, node: int) -> str:
    """A node as an error names it: operation, module and line."""
    row = graph.nodes[node]
    module = f" in {row.path!r}" if row.path else ""
    line = f" at {row.site}" if row.site else ""
    return f"node {node}, {row.format()}{module}{line}"
