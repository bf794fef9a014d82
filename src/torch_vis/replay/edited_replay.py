"""A replay in which values are replaced and kept on the way, and what leaves for Python is compared.

What a program does with a number, an array or a size that it got from a tensor is in no graph. A rerun is right as long
as the same leaves as before; so whatever left and may be another now is made again and compared.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from functools import cached_property, partial
from typing import Any, NamedTuple

import numpy as np
import torch

from torch_vis.capture.containers import Form, filled, form_leaves, named_tensors
from torch_vis.capture.edits import EditPlace, Replacement, changed, same_form, sliced, takes_first
from torch_vis.capture.kept_tensors import Escape, KeptTensors, copy_of, python_part
from torch_vis.capture.modes import without_gradients
from torch_vis.capture.recording.tensors import digest_of
from torch_vis.errors import UsageError
from torch_vis.graph.graph import Graph
from torch_vis.graph.schema import RECORDED, Flag
from torch_vis.ops.names import plain_name
from torch_vis.replay.activation_file import InMemory
from torch_vis.replay.replay import PreparedCall, Replay, ReplayPlan, flat, replay_context
from torch_vis.replay.slicing import (
    KeptValue,
    ReplayTarget,
    Sight,
    full_index,
    gradient_names,
    kept_values,
)

VIEW = int(Flag.VIEW)
# operations that are not just a call: what they do besides is in ``Replay.run_node``
BESIDES = RECORDED | int(Flag.RANDOM | Flag.ESCAPE)
MASKS = ("bool", "uint8")
# Operators whose results have the sizes that numbers say, beside those that torch has tagged, and such that look at
# numbers in order to raise.
BY_DATA = frozenset(
    "_pack_padded_sequence _pad_packed_sequence _linalg_check_errors _assert_async _assert_scalar".split()
)
# Of these only masks are positions by their numbers.
INDEXING = frozenset("index _unsafe_index".split())


# Operators that raise by numbers of theirs: positions out of range, chances below 0.
RAISING = frozenset(
    "index _unsafe_index index_select index_add index_copy index_fill index_put gather scatter scatter_add "
    "scatter_reduce take put embedding _embedding_bag multinomial bernoulli normal nll_loss_forward nll_loss2d_forward "
    "one_hot unsafe_index".split()
)


class Diverged(Exception):
    """These inputs take another way through the program than the one that was recorded."""

    def __init__(self, node: int, was: bool, now: bool) -> None:
        super().__init__(node, was, now)
        self.node, self.was, self.now = node, was, now


class Basis(NamedTuple):
    """A finished run that another can start from: its memory as it left it, its random states, inputs and results."""

    memory: dict[int, torch.UntypedStorage]
    objects: dict[int, torch.Tensor]
    states: dict[int, Any]
    inputs: Mapping[str, torch.Tensor]
    results: dict[int, torch.Tensor]
    views: dict[int, BlockViews]


# a block of memory, and the tensors on it by the numbers of their values
BlockViews = tuple[torch.UntypedStorage, dict[int, torch.Tensor]]


class PlainCall(NamedTuple):
    """A call that makes new strided tensors of strided ones and does nothing else: most of what runs."""

    prepared: PreparedCall
    operator: Callable[..., Any]
    """What its operator is to C++, without the call of Python around it."""
    grad_mode: bool
    arguments: list[int]
    outputs: tuple[PlainOutput, ...]


class PlainOutput(NamedTuple):
    """A tensor that a plain call makes: its value and block, and its geometry as it was recorded."""

    value: int
    storage: int
    shape: tuple[int, ...]
    stride: tuple[int, ...]
    offset: int
    dtype: torch.dtype


class RunStep(NamedTuple):
    """How one node is run: the values in its slots, the blocks that it is only a view of, or a plain call."""

    arguments: list[int]
    viewed: frozenset[int]
    plain: PlainCall | None


class RunLayout:
    """What all runs of one graph share: plain lists in the place of columns, and which calls are plain."""

    def __init__(self, graph: Graph, plan: ReplayPlan) -> None:
        self.graph, self.plan = graph, plan
        self.storage: list[int] = graph.value_storage.tolist()
        self._steps: dict[int, RunStep] = {}
        self._outputs: dict[int, list[int]] = {}
        # conjugated and negated views carry a bit that a geometry does not tell
        self._strided = [
            row.layout == "strided" and not row.conj and not row.neg and not row.dtype.startswith("complex")
            for row in graph.types
        ]

    def outputs(self, node: int) -> list[int]:
        """The values that a node makes."""
        values = self._outputs.get(node)
        if values is None:
            values = self._outputs[node] = self.graph.out_value[slice(*self.graph.output_span(node))].tolist()
        return values

    def step(self, node: int) -> RunStep:
        """How a node is run, worked out once."""
        step = self._steps.get(node)
        if step is None:
            arguments = self.plan.arguments(node)
            step = self._steps[node] = RunStep(arguments, self._viewed(node), self._plain(node))
        return step

    def _viewed(self, node: int) -> frozenset[int]:
        """The blocks that a node looks at in another way, if that is all it does."""
        flags, values = self.plan.flags[node], self.outputs(node)
        is_pure = flags & VIEW and not flags & BESIDES
        if not is_pure or not all(self._strided[type_] for type_ in self.graph.value_type[values].tolist()):
            return frozenset()
        return frozenset(self.storage[value] for value in values)

    def _plain(self, node: int) -> PlainCall | None:
        graph, plan = self.graph, self.plan
        if plan.flags[node] & BESIDES:
            return None
        begin, end = graph.output_span(node)
        values, arguments = self.outputs(node), plan.arguments(node)
        types = graph.value_type[[*values, *arguments]].tolist()
        storages = [self.storage[value] for value in values]
        fresh = graph.out_slot[begin:end].tolist() == list(range(end - begin)) and end > begin
        if (
            not fresh
            or len(set(storages)) < len(storages)
            or not all(self._strided[type_] for type_ in types)
        ):
            return None
        if any(graph.storage_birth[storage] != node for storage in storages):
            return None
        outputs = []
        for value, storage in zip(values, storages):
            row = graph.types[graph.value_type[value]]
            dtype, _ = plan.dtype_and_extent(int(graph.value_type[value]))
            offset = int(graph.value_offset[value])
            outputs.append(PlainOutput(value, storage, tuple(row.shape), tuple(row.stride), offset, dtype))
        grad_mode = bool(plan.flags[node] & Flag.GRAD_MODE)
        prepared = plan.prepared(node)
        operator = getattr(prepared.run, "_op", prepared.run)
        return PlainCall(prepared, operator, grad_mode, arguments, tuple(outputs))


class EditedReplay(Replay):
    """A replay in which values can be replaced for those who read them afterwards.

    A replaced value gets a block of its own, and with it the views of it and the writes to it that follow. The
    operations that it came from still see the old one in their backward, as they do where a hook
    replaces an output. Operations that only make views are not run: a view is its geometry on a block.
    """

    def __init__(
        self,
        graph: Graph,
        held: KeptTensors,
        plan: ReplayPlan,
        layout: RunLayout,
        sink: Any,
        kept: Sequence[ReplayTarget],
        patches: Sequence[tuple[ReplayTarget, Replacement]],
    ) -> None:
        super().__init__(graph, held, plan)
        self.layout = layout
        # takes what is kept
        self.sink = sink
        # the operation that is running, -1 between two of them
        self.at = -1
        # tensors that were built on blocks, which serve as arguments again
        self.views: dict[int, BlockViews] = {}
        # operations that hand a number to Python, which is compared with the recorded one
        self.deciding: frozenset[int] = frozenset()
        # what those gave that has just run
        self.python_results: dict[int, Any] = {}
        # by operation, the numbers that left for Python and are not what they were
        self.changed_numbers: dict[int, Any] = {}
        # by value that was replaced: its blocks of its own with who sees each, the newest last
        self.moved: dict[int, list[tuple[int, Sight]]] = {}
        actions: list[tuple[int, Callable[[], None]]] = [
            (target.after, partial(self.patch, target, by, place))
            for (target, by), place in zip(patches, edit_places([target for target, _ in patches]))
        ]
        for target in kept:
            actions.append((target.after, partial(self.store, target)))
            for row in gradient_names(graph, target):
                actions.append((int(graph.value_producer[row.value]), partial(self.put, row)))
        # what is to be done, the last first; of one place in the order given
        self.waiting = sorted(actions, key=lambda action: action[0])[::-1]
        self.changed_escapes: list[Escape] = []

    def watch(self, escapes: Sequence[Escape], recorded: Escapes) -> None:
        """Compare what left for Python without an operation when as many operations have run as before it left."""

        def compare(escape: Escape) -> None:
            if recorded.is_another(escape, self, self.moved):
                _refuse_sizes(escape)
                self.changed_escapes.append(escape)

        actions: list[tuple[int, Callable[[], None]]] = [
            (escape.after - 1, partial(compare, escape)) for escape in escapes
        ]
        self.waiting = sorted([*self.waiting[::-1], *actions], key=lambda action: action[0])[::-1]

    def act(self, node: int) -> None:
        """Do what is due once all operations up to a node have run."""
        while self.waiting and self.waiting[-1][0] <= node:
            torch._C._set_grad_enabled(False)
            self.waiting.pop()[1]()

    def run(
        self,
        nodes: Sequence[int],
        *,
        states: dict[int, Any] | None = None,
        digests: bool = False,
        release: bool = True,
        done: Mapping[int, Sequence[int]] | None = None,
    ) -> None:
        """Execute nodes, and what was asked for between them; options are those of ``Replay.run``."""
        assert done is not None and not digests
        memory, moved, waiting, step = self.memory, self.moved, self.waiting, self.layout.step
        with replay_context(self.plan.generators):
            self.act(nodes[0] - 1 if nodes else len(self.graph))
            for node in nodes:
                if waiting and waiting[-1][0] < node:
                    self.act(node - 1)
                arguments, viewed, plain = step(node)
                is_moved = moved and not moved.keys().isdisjoint(arguments)
                # a view is its geometry: there is nothing to run where its memory is there
                if is_moved or self.hollow or not viewed or not memory.keys() >= viewed:
                    if is_moved or self.hollow or plain is None or not self._call(plain):
                        self.run_node(node, states)
                if waiting and waiting[-1][0] <= node:
                    self.act(node)
                if release:
                    for storage in done.get(node, ()):
                        memory.pop(storage, None)
                        self.objects.pop(storage, None)
                        self.views.pop(storage, None)
            self.act(len(self.graph))

    def block(self, value: int) -> int:
        """The block of a value: one of its own once it was replaced, for those who see that."""
        for block, sight in reversed(self.moved.get(value, ())):
            if sight.sees(self.at):
                return block
        return super().block(value)

    def run_node(self, node: int, states: dict[int, Any] | None) -> None:
        """Execute one node, as ``run`` does."""
        self.at = node
        if self.moved:
            self._follow(node)
        if not (self.plan.flags[node] & VIEW and self._is_there(node)):
            plain = self.layout.step(node).plain
            if plain is None or self.hollow or not self._call(plain):
                super().run_node(node, states)
        if node in self.deciding:
            self._compare(node)
        self.at = -1

    def _call(self, call: PlainCall) -> bool:
        """Run a plain call on tensors that are at hand; False where it is not as it was recorded, or raises.

        It is then run again in the way that tells what is wrong.
        """
        args, kwargs = call.prepared.arguments([self._at_hand(value) for value in call.arguments])
        if torch.is_grad_enabled() != call.grad_mode:
            torch._C._set_grad_enabled(call.grad_mode)
        try:
            result = call.operator(*args, **kwargs)
        except Exception:
            return False
        results = (result,) if isinstance(result, torch.Tensor) else tuple(flat(result))
        if len(results) != len(call.outputs):
            return False
        for tensor, row in zip(results, call.outputs):
            if (
                type(tensor) is not torch.Tensor
                or tensor.shape != row.shape
                or tensor.dtype is not row.dtype
                or tensor.stride() != row.stride
                or tensor.storage_offset() != row.offset
            ):
                return False
        for tensor, row in zip(results, call.outputs):
            block = self.memory[row.storage] = tensor.untyped_storage()
            self.views[row.storage] = block, {row.value: tensor}
        return True

    def _at_hand(self, value: int) -> torch.Tensor:
        """A value as a tensor that may serve several calls: nobody who writes gets it."""
        number = self.block(value) if value in self.moved else self.layout.storage[value]
        block, entry = self.memory.get(number), self.views.get(number)
        if block is None:
            return self.tensor(value)
        if entry is None or entry[0] is not block:
            entry = self.views[number] = block, {}
        tensor = entry[1].get(value)
        if tensor is None:
            tensor = entry[1][value] = self.tensor(value)
        return tensor

    def _is_there(self, node: int) -> bool:
        """Whether what a node makes are geometries on blocks that are there."""
        return all(self.block(value) in self.memory for value in self.layout.outputs(node))

    def call(self, node: int, tensors: Sequence[torch.Tensor]) -> Any:
        """What a node's operator gives; what of it is for Python is noted."""
        result = super().call(node, tensors)
        if node in self.deciding:
            self.python_results[node] = python_part(result)
        return result

    def _compare(self, node: int) -> None:
        """See whether what left for Python is what it was; another truth value is another way through the program."""
        was, now = self.held.python_values[node], self.python_results.pop(node)
        # 0.0 and -0.0 are equal, and NaN is not equal to itself
        if repr(was) == repr(now):
            return
        if isinstance(was, bool):
            raise Diverged(node, was, now)
        self.changed_numbers[node] = now

    def _follow(self, node: int) -> None:
        """Views of and writes to a replaced value lie in its block."""
        storage = self.layout.storage
        for read in self.plan.arguments(node):
            for block, sight in self.moved.get(read, ()):
                if not sight.sees(node):
                    continue
                for value in self.layout.outputs(node):
                    if storage[value] == storage[read]:
                        entries = self.moved.setdefault(value, [])
                        if (block, sight.after(node)) not in entries:
                            entries.append((block, sight.after(node)))

    def start_from(self, basis: Basis, rewritten: frozenset[int]) -> None:
        """Take the memory of a finished run, but for the blocks that this one writes itself."""
        self.memory.update(
            (storage, block) for storage, block in basis.memory.items() if storage not in rewritten
        )
        self.objects.update(
            (storage, item) for storage, item in basis.objects.items() if storage not in rewritten
        )
        # what is built on that memory serves the next run too
        self.views.update(
            (storage, entry) for storage, entry in basis.views.items() if storage not in rewritten
        )

    def basis_views(self) -> dict[int, BlockViews]:
        """A place for the tensors on each block of memory, to be filled by the runs that start from this one."""
        views: dict[int, BlockViews] = {storage: (block, {}) for storage, block in self.memory.items()}
        return views | {
            storage: entry
            for storage, entry in self.views.items()
            if storage in views and entry[0] is self.memory[storage]
        }

    def give(self, inputs: Mapping[int, torch.Tensor], names: Mapping[int, str]) -> None:
        """Put new inputs in the place of the recorded ones; ``names`` has those by value, too."""
        graph = self.graph
        for value, tensor in inputs.items():
            storage = int(graph.value_storage[value])
            if value in self.held.opaque_tensors:
                self.objects[storage] = tensor.detach()
                continue
            if self.memory[storage]._cdata == self.held.storages[storage]._cdata:
                self.memory[storage] = copy_of(self.held.storages[storage])
            with without_gradients():
                self._input(value, names.get(value)).copy_(tensor)

    def _input(self, value: int, name: str | None) -> torch.Tensor:
        """An input on its memory, as it was given: the first value there may be another tensor on the same."""
        storage, geometry = self.held.inputs.get(name or "", (-1, None))
        if geometry is None or storage != self.graph.value_storage[value]:
            return self.tensor(value)
        block = self.memory[storage]
        empty = torch.empty(0, dtype=geometry.dtype, device=block.device)
        return empty.set_(block, geometry.offset, geometry.shape, geometry.stride)

    def patch(self, target: ReplayTarget, by: Replacement, place: EditPlace) -> None:
        """Replace what a module or operation gave, or was given."""
        before = [self.tensor(value).clone() for value in target.values]
        if takes_first(by) or not target.whole:
            after = list(before)
            after[0] = changed(before[0], by, place, full_index(self.graph, target))
        else:
            after = called(target, by, before)
        blocks: dict[int, int] = {}
        for value, old, new in zip(target.values, before, after, strict=True):
            if new is old:
                continue
            same_form(target.name, old, new)
            refuse_passed(target, value)
            self._move(value, new, target.sight, blocks, target.name)

    def _move(self, value: int, new: torch.Tensor, sight: Sight, blocks: dict[int, int], name: str) -> None:
        """Give a value a block of its own with other contents."""
        storage = self.block(value)
        if storage not in blocks:
            block = -1 - len(self.moved) - len(blocks)
            while block in self.memory or block in self.objects or block in blocks.values():
                block -= 1
            blocks[storage] = block
            if storage in self.memory:
                self.memory[block] = copy_of(self.memory[storage])
        self.moved.setdefault(value, []).append((blocks[storage], sight))
        if storage in self.memory:
            tensor = self.on_block(value, self.memory[blocks[storage]])
            _fill_with(tensor, new, name)
            self._move_memory(value, blocks[storage], sight)
        else:
            self.objects[blocks[storage]] = new

    def _move_memory(self, value: int, block: int, sight: Sight) -> None:
        """Whoever takes the memory of a replaced value as such (a copy of it does) sees the new block too."""
        for memory in memory_taken(self.graph, value):
            self.moved.setdefault(memory, []).append((block, sight))

    def store(self, target: ReplayTarget) -> None:
        """Keep what a module or operation gave."""
        if isinstance(self.sink, InMemory) and isinstance(target.form, Form):
            copies = {value: self._kept(KeptValue("", value)) for value in target.values}
            self.sink.kept[target.name] = filled(
                target.form, lambda number: copies.get(-1 if number is None else number)
            )
            return
        for row in kept_values(self.graph, target._replace(is_module=False)):
            self.put(row)

    def put(self, row: KeptValue) -> None:
        """Keep one value."""
        self.sink.put(row.name, self._kept(row))

    def _kept(self, row: KeptValue) -> torch.Tensor:
        """A value as it is now: a copy where its memory may be written to."""
        tensor = sliced(self.tensor(row.value), row.part, row.name)
        written = self.plan.written[int(self.graph.value_storage[row.value])] or row.value in self.moved
        return tensor.clone() if written or row.part is not None else tensor

    def result(self, number: int) -> torch.Tensor:
        """One of the run's results."""
        return self.tensor(self.graph.outcomes[number].value.index)


def edit_places(targets: Sequence[ReplayTarget]) -> list[EditPlace]:
    """Where each replacement acts, with the number of its call among those of the same name."""
    counts: Counter[str] = Counter()
    places = []
    for target in targets:
        name = target.name.partition("#")[0]
        places.append(EditPlace(target.name, counts[name]))
        counts[name] += 1
    return places


def refuse_passed(target: ReplayTarget, value: int) -> None:
    """Raise where a replaced value is what the call was given."""
    if value in target.passed:
        raise UsageError(
            f"{target.name!r} returns its input as it is, which others read as well: replace what makes it, or "
            "use tv.live, which distinguishes calls"
        )


def called(target: ReplayTarget, by: Any, before: list[torch.Tensor]) -> list[torch.Tensor]:
    """What a function gives for the whole of what a call gave, tensor by tensor."""
    if target.form is None:
        given: Any = before[0] if len(before) == 1 else tuple(before)
        names = [""] if len(before) == 1 else [str(number) for number in range(len(before))]
    else:
        tensors = iter(before)
        given = filled(target.form, lambda number: None if number is None else next(tensors))
        names = [name for name, number in form_leaves(target.form) if number is not None]
    result = by(given)
    named = dict(named_tensors(result))
    if [*named] != names:
        what = type(result).__name__
        if isinstance(result, torch.Tensor) or named:
            what = f"{len(named)} tensor{'s' if len(named) != 1 else ''} ({what})"
        if len(names) == 1 and names == [""]:
            raise UsageError(f"the replacement for {target.name!r} gave {what}, not a tensor")
        raise UsageError(
            f"{target.name!r} gives {len(names)} tensors in a {type(given).__name__}; the replacement gave {what}"
        )
    return [named[name] for name in names]


def _fill_with(tensor: torch.Tensor, new: torch.Tensor, name: str) -> None:
    """Write over a tensor; of one that repeats its elements (``expand``), over each of them once."""
    for dim, (size, stride) in enumerate(zip(tensor.shape, tensor.stride())):
        if size > 1 and not stride:
            first = new.narrow(dim, 0, 1)
            if not bool(((first == new) | (first.isnan() & new.isnan())).all()):
                raise UsageError(
                    f"{name!r} repeats its elements along dimension {dim} in memory, and the replacement has different "
                    "ones there: replace what reads it, or use tv.live"
                )
            tensor, new = tensor.narrow(dim, 0, 1), first
    tensor.copy_(new)


def memory_taken(graph: Graph, value: int) -> list[int]:
    """The values that stand for the memory of a value as such, where an operation of the run made that memory."""
    storage = graph.value_storage[value]
    if graph.storage_birth[storage] < 0:
        return []
    taken: list[int] = np.flatnonzero((graph.value_storage == storage) & (graph.value_producer < 0)).tolist()
    return taken


# ---------------------------------------------------------------- what left for Python


class Escapes:
    """The escapes of the recorded run: what left for Python, by the memory that it lay on."""

    def __init__(self, graph: Graph, held: KeptTensors, plan: ReplayPlan) -> None:
        self.graph, self.held, self.plan = graph, held, plan
        order = np.argsort(graph.value_storage, kind="stable")
        self._order = order
        # a view that is made later changes nothing
        self._is_write = np.zeros(len(graph.value_type), dtype=bool)
        self._is_write[graph.out_value[graph.out_slot < 0]] = True
        self._start = np.searchsorted(graph.value_storage[order], np.arange(len(graph.storage_bytes) + 1))

    @property
    def any(self) -> bool:
        """Whether anything left, or sizes went by numbers."""
        held = self.held
        left = held.python_values or held.escapes or held.overlaps or held.raised or held.started
        return bool(left or self._by_data)

    def _values(self, storage: int) -> Any:
        """The values that lie on a block."""
        return self._order[self._start[storage] : self._start[storage + 1]]

    def changed_before(self, touched: Any) -> list[Escape]:
        """The tensors that left and may have been others by then."""
        return [escape for escape in self.held.escapes if self._changes(escape, touched, before=True)]

    def changed_after(self, touched: Any) -> list[Escape]:
        """The tensors whose memory was given away, and which may be written with something else afterwards."""
        shared = (escape for escape in self.held.escapes if escape.shares)
        return [escape for escape in shared if self._changes(escape, touched, before=False)]

    def _changes(self, escape: Escape, touched: Any, *, before: bool) -> bool:
        if escape.storage < 0:
            return escape.value >= 0 and before and bool(touched[escape.value])
        values = self._values(escape.storage)
        early = self.graph.value_producer[values] < escape.after
        chosen = values[early] if before else values[~early & self._is_write[values]]
        return bool(touched[chosen].any())

    def left(self, escape: Escape) -> list[int]:
        """The values that an escape left with, or that lay on its memory by then."""
        if escape.storage < 0:
            return [escape.value] if escape.value >= 0 else []
        values = self._values(escape.storage)
        return values[self.graph.value_producer[values] < escape.after].tolist()

    def makers(self, escape: Escape) -> list[int]:
        """The operations that wrote what an escape left with."""
        if escape.storage < 0:
            return []
        producers = self.graph.value_producer[self._values(escape.storage)]
        return np.unique(producers[(producers >= 0) & (producers < escape.after)]).tolist()

    def deciding(self, touched: Any) -> list[int]:
        """The operations that may give other sizes now, or raise, whoever reads their results."""
        graph = self.graph
        nodes = self._by_data
        span = (graph.input_span(node) for node in nodes)
        return [node for node, (a, b) in zip(nodes, span) if touched[graph.in_value[a:b]].any()]

    def raising(self, touched: Any) -> list[int]:
        """The operations whose results nobody reads, that may raise now where they did not."""
        graph = self.graph
        return [
            node for node in self._raising if touched[graph.in_value[slice(*graph.input_span(node))]].any()
        ]

    @cached_property
    def _raising(self) -> list[int]:
        graph = self.graph
        by_call = np.array([plain_name(call.op) in RAISING for call in graph.calls], dtype=bool)
        chosen = by_call[graph.node_call] if len(by_call) else np.zeros(len(graph), dtype=bool)
        read = np.zeros(len(graph.value_type), dtype=bool)
        read[graph.in_value] = True
        chosen[graph.out_node[read[graph.out_value]]] = False
        return np.flatnonzero(chosen & ((graph.node_flags & RECORDED) == 0)).tolist()

    @cached_property
    def _by_data(self) -> list[int]:
        graph = self.graph
        by_call = np.array([_goes_by_data(call.op) for call in graph.calls], dtype=bool)
        masks = np.array([row.dtype in MASKS for row in graph.types], dtype=bool)
        plain = np.array([row.layout == "strided" for row in graph.types], dtype=bool)
        chosen = by_call[graph.node_call] if len(by_call) else np.zeros(len(graph), dtype=bool)
        # the sizes of what is inside a sparse or nested tensor are numbers of it
        chosen[graph.in_node[~plain[graph.value_type[graph.in_value]]]] = True
        chosen &= (graph.node_flags & (RECORDED | int(Flag.COLLECTIVE))) == 0
        rows = []
        for node in np.flatnonzero(chosen).tolist():
            types = graph.value_type[graph.in_value[slice(*graph.input_span(node))]]
            if plain_name(graph.calls[graph.node_call[node]].op) not in INDEXING or masks[types].any():
                rows.append(node)
        return rows

    def is_another(self, escape: Escape, run: Replay, moved: Mapping[int, Any]) -> bool:
        """Whether a run that has come as far as an escape would let something else leave."""
        if escape.digest is None:
            return True
        now = self._now(escape, run, moved)
        return now is None or digest_of(now) != escape.digest

    def _now(self, escape: Escape, run: Replay, moved: Mapping[int, Any]) -> torch.Tensor | None:
        """What leaves now; None where that is not known."""
        geometry = escape.geometry
        if escape.value >= 0 and geometry is not None:
            return run.tensor(escape.value)
        values = self._values(escape.storage)
        block = run.memory.get(escape.storage)
        if block is None or not moved.keys().isdisjoint(values.tolist()):
            return None
        if geometry is None:
            return torch.empty(0, dtype=torch.uint8, device=block.device).set_(block)
        empty = torch.empty(0, dtype=geometry.dtype, device=block.device)
        return empty.set_(block, geometry.offset, geometry.shape, geometry.stride)

    def is_another_input(self, escape: Escape, inputs: Mapping[str, torch.Tensor]) -> bool:
        """Whether a tensor on an input that no operation touched is another with these inputs."""
        given = [inputs[name] for name in escape.inputs if name in inputs]
        if not given or escape.storage >= 0:
            return False
        (tensor, *_), geometry = given, escape.geometry
        if geometry is None:
            same_form = tensor.is_contiguous() and not tensor.storage_offset()
        else:
            same_form = tuple(tensor.shape) == geometry.shape and tensor.dtype == geometry.dtype
        if same_form and digest_of(tensor) == escape.digest:
            return False
        _refuse_sizes(escape)
        return True

    def sentences(self, changed: list[Escape], touched: Any, needed: list[int]) -> list[str]:
        """What a rerun has to say: of what is another now, and of what is not repeated."""
        graph, held = self.graph, self.held
        if not (held.escapes or held.overlaps or held.raised or held.started):
            return []
        sentences = [
            f"{escape.method}() took a value to Python at {escape.where}, and it may be another now: what was done "
            "with it there is as recorded"
            for escape in changed
        ]
        read = self._read(needed)
        sentences += [
            f"{escape.method}() at {escape.where} gave away memory that the run reads: what was written through it "
            "is not repeated"
            for escape in held.escapes
            if escape.written and escape.storage >= 0 and read[escape.storage]
        ]
        storages = np.zeros(len(graph.storage_bytes), dtype=bool)
        storages[graph.value_storage[touched]] = True
        storages |= self.plan.written
        unseen = {escape.storage for escape in held.escapes if escape.written}
        for a, b in held.overlaps:
            if storages[a] or storages[b] or (unseen & {a, b} and (read[a] or read[b])):
                sentences.append(
                    "a tensor that came back from another library lies on memory of the run, and nothing tells when it "
                    "was written to: what is read of it is as recorded"
                )
        sentences += [
            f"{plain_name(raised.op)} raised at {raised.where} in the recorded run, and may not now: what was done "
            "then is as recorded"
            for raised in held.raised
            if touched[list(raised.values)].any()
        ]
        if touched.any():
            sentences += [
                f"{what} may have read what is another now: what it did outside of recorded modules is as recorded"
                for what in held.started
            ]
        return list(dict.fromkeys(sentences))

    def _read(self, needed: list[int]) -> Any:
        """A mask of the blocks that some operations read, or results lie on."""
        graph = self.graph
        runs = np.zeros(len(graph), dtype=bool)
        runs[needed] = True
        read = np.zeros(len(graph.storage_bytes), dtype=bool)
        read[graph.value_storage[graph.in_value[runs[graph.in_node]]]] = True
        read[graph.value_storage[graph.result_value]] = True
        return read


def _refuse_sizes(escape: Escape) -> None:
    """Raise where torch would take other sizes from numbers than it did."""
    if escape.sizes:
        raise UsageError(
            f"{escape.method}() at {escape.where} took sizes from numbers of a tensor, and these may be others now, so "
            "other operations would run than those that were recorded; trace again with these inputs"
        )


def _goes_by_data(name: str) -> bool:
    """Whether numbers may decide the sizes of what an operator gives; those of other libraries may go by them."""
    if not name.startswith("aten::"):
        return True
    if plain_name(name) in BY_DATA:
        return True
    packet, _, overload = name.removeprefix("aten::").partition(".")
    operator = getattr(getattr(torch.ops.aten, packet, None), overload or "default", None)
    return operator is not None and torch.Tag.dynamic_output_shape in operator.tags
