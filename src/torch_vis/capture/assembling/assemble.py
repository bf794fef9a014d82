"""From a recorder's log to a graph: columns in bulk, names and roles from what the run knew."""

from __future__ import annotations

from bisect import bisect_right
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np
import torch

from torch_vis.capture.assembling.api_calls import api_calls
from torch_vis.capture.assembling.edges import GuessedReads, ValueMemory, resolve_reads
from torch_vis.capture.assembling.log import (
    OpInputs,
    UnseenCost,
    memory_columns,
    offsets,
    read_log,
    read_scopes,
    table,
    time_columns,
    unseen_cost,
)
from torch_vis.capture.assembling.phases import (
    GradientReads,
    engine_sites,
    find_recomputed,
    forward_of,
    lift_closures,
    work_on_gradients,
)
from torch_vis.capture.recording.opaque_nodes import record_fill
from torch_vis.capture.recording.recorder import FORWARD, Recorder
from torch_vis.capture.recording.source_lines import resolve
from torch_vis.graph.graph import Graph, GraphBuilder
from torch_vis.graph.lifetimes import block_births, in_place_sums, is_plain_sum
from torch_vis.graph.metrics import Column, Metrics
from torch_vis.graph.schema import (
    RECORDED,
    Flag,
    Kind,
    Module,
    Phase,
    Placement,
    ResultRow,
    Role,
    TensorType,
    extent,
)
from torch_vis.graph.tree import Tree
from torch_vis.graph.types import Bools, Ints

# of a named tensor: its role and the number of its name
Owner = tuple[Role, int]


class NamedTensor(NamedTuple):
    """A tensor that the program has a name for."""

    name: str
    tensor: torch.Tensor
    role: Role


class ResultTensor(NamedTuple):
    """A tensor that a run leaves behind: an output, a gradient, or state that it wrote."""

    name: str
    kind: str
    tensor: torch.Tensor


@dataclass
class RunFacts:
    """What the program knows of a run: its named tensors, its results, the paths of its modules."""

    named: list[NamedTensor] = field(default_factory=list)
    results: list[ResultTensor] = field(default_factory=list)
    gradients: list[tuple[str, int]] = field(default_factory=list)
    """The values that were a ``.grad`` at some time, by its name."""
    placements: list[tuple[torch.Tensor, Placement]] = field(default_factory=list)
    """Tensors that are a rank's part of larger ones, and how these lie on the mesh."""
    paths: dict[int, str] = field(default_factory=dict)
    """Module paths, by module number."""
    ended: int = 0
    live_outputs: bool = False
    """Whether tensors that are alive at the end and that nothing consumed count as outputs."""


class Assembly(NamedTuple):
    """A graph and its metrics, and how the recording went into them."""

    graph: Graph
    metrics: Metrics
    # reads that may name more than they take, by block; values by their number in the graph
    guesses: list[GuessedReads]
    # for each of the recorder's values, its number in the graph; one that the graph leaves out has the number before it
    numbers: Ints
    # how much more or less than what was taken off the run's time recording may have taken
    time_error_ns: int
    # for each of the recorder's values the one that it is an alias of, mostly itself
    stands_for: Ints


def assemble(rec: Recorder, facts: RunFacts) -> Assembly:
    """The graph of a recording that has ended; outputs that are only found now are added to the facts."""
    return _Assembler(rec, facts).build()


class _Assembler:
    """Builds a graph in steps; each step leaves columns in attributes for those after it."""

    def __init__(self, rec: Recorder, facts: RunFacts) -> None:
        self.rec = rec
        self.facts = facts
        self.builder = GraphBuilder()
        self.unknown_aliases = np.zeros(0, dtype=np.int64)

    def build(self) -> Assembly:
        self._read_log()
        self._read_values()
        self._read_results()
        self._follow_aliases()
        guesses = self._resolve_reads()
        self.node_link = forward_of(self.rows, self.rec.calls, self.inputs, self.producer)
        self._set_scopes_and_phases()
        self._set_roles_and_names()
        self._find_optimizer_work()
        self._set_message_phases()
        numbers = self._fill()
        graph = self.builder.build()
        guesses = [GuessedReads(int(numbers[guess.base]), guess.nodes) for guess in guesses]
        unseen = unseen_cost(self.rec, self.rows)
        return Assembly(graph, self._metrics(graph, unseen), guesses, numbers, unseen.error, self.stands_for)

    # ---------------------------------------------------------------- columns from the log

    def _read_log(self) -> None:
        self.rows, self.inputs, outputs = read_log(self.rec)
        self.count = len(self.rows.call)
        self.out_node, self.out_value, self.out_slot = outputs
        self.out_start = offsets(self.out_node, self.count)

    def _read_values(self) -> None:
        rec = self.rec
        values = np.array(rec.values, dtype=np.int64).reshape(-1, 4)
        values = values[np.argsort(values[:, 0], kind="stable")]
        self.value_storage, self.value_offset, self.value_type = values[:, 1], values[:, 2], values[:, 3]
        self.producer = np.full(len(values), -1, dtype=np.int64)
        self.producer[self.out_value] = self.out_node
        self.written = np.zeros(len(values), dtype=bool)
        self.written[self.out_value[self.out_slot < 0]] = True
        storages = np.array(rec.storage_rows, dtype=np.int64).reshape(-1, 4)
        storages = storages[np.argsort(storages[:, 0], kind="stable")]
        _, self.first_bytes, self.storage_birth, self.storage_device = storages.T
        self.storage_bytes = self.first_bytes.copy()
        for storage, size, _ in rec.resizes:
            self.storage_bytes[storage] = max(self.storage_bytes[storage], size)
        ends = [span_at(0, row).end for row in rec.type_rows]
        itemsize = np.array([row.itemsize or 1 for row in rec.type_rows], dtype=np.int64)
        # resized by no operation, or it could not be read
        reach = np.array([end if end < float("inf") else 0 for end in ends], dtype=np.int64)
        needed = self.value_offset * itemsize[self.value_type] + reach[self.value_type]
        np.maximum.at(self.storage_bytes, self.value_storage, np.where(reach[self.value_type] > 0, needed, 0))
        self.storage_death = np.full(len(storages), self.count + 1, dtype=np.int64)
        deaths = table(rec.deaths if rec.memory else [], 2)
        self.storage_death[deaths[:, 0]] = np.maximum(deaths[:, 1], self.storage_birth[deaths[:, 0]])

    def _read_results(self) -> None:
        """Number the results; memory without contents among them was filled unseen, which adds to the log."""
        rec = self.rec
        if self.facts.live_outputs:
            self.facts.results.extend(self._live_outputs())
        numbers = []
        for result in self.facts.results:
            number = rec.number_of(result.tensor)
            if number in rec.uninitialized and rec.keep:
                number = record_fill(rec, result.tensor, number)
            numbers.append(number)
        if rec.count > self.count:
            self._read_log()
        if len(rec.values) > 4 * len(self.value_storage):
            self._read_values()
        self.result_value = np.array(numbers, dtype=np.int64)

    def _live_outputs(self) -> list[ResultTensor]:
        """What a block leaves behind: tensors it made that are alive and that no forward operation went on to use."""
        escapes = np.array([info.plan.escape for info in self.rec.calls], dtype=bool)
        # backward, and an operation that only shows Python a number, go on with nothing
        is_consumer = self.rows.backward == FORWARD
        if len(escapes):
            is_consumer &= ~escapes[self.rows.call]
        consumed = np.zeros(len(self.value_storage), dtype=bool)
        consumed[self.inputs.value[is_consumer[self.inputs.node]]] = True
        known = {id(result.tensor) for result in self.facts.results}
        alive = [
            (entry.number, tensor)
            for entry in list(self.rec.seen.values())
            if (tensor := entry()) is not None
            and self.producer[entry.number] >= 0
            and id(tensor) not in known
        ]
        outputs = [
            (number, tensor)
            for number, tensor in alive
            if not consumed[number] and self.rows.backward[self.producer[number]] == FORWARD
        ]
        # where the block consumed everything, all that is alive counts
        outputs = outputs or alive
        outputs.sort(key=lambda pair: (self._is_by_product(*pair), pair[0]))
        return [
            ResultTensor(f"output.{index}", "output", tensor) for index, (_, tensor) in enumerate(outputs)
        ]

    def _is_by_product(self, number: int, tensor: torch.Tensor) -> bool:
        """Whether a tensor came beside the first one that its operation made and has no gradient: a workspace, say.

        Autograd keeps such alive where a run ended before its backward; they are never what the run was about.
        """
        first = self.out_value[np.searchsorted(self.out_node, self.producer[number])]
        return bool(first != number and not tensor.requires_grad)

    # ---------------------------------------------------------------- dataflow

    def _follow_aliases(self) -> None:
        """Let a tensor that torch made unseen (a saved tensor, ``.data``) stand for the one it is an alias of."""
        aliases = self.rec.aliases
        self.stands_for = np.arange(len(self.value_storage))
        if not aliases:
            return
        shared = np.isin(self.value_storage, np.unique(self.value_storage[aliases]))
        known: dict[tuple[int, int, int], int] = {}
        is_alias = np.zeros(len(self.value_storage), dtype=bool)
        is_alias[aliases] = True
        for value in np.flatnonzero(shared).tolist():
            key = (int(self.value_storage[value]), int(self.value_offset[value]), int(self.value_type[value]))
            if is_alias[value]:
                self.stands_for[value] = known.get(key, value)
            elif self.written[value]:
                known[key] = value
            else:
                known.setdefault(key, value)
        # an alias of an unknown tensor is read through its memory
        self.unknown_aliases = np.array([a for a in aliases if self.stands_for[a] == a], dtype=np.int64)
        self.inputs = self.inputs._replace(value=self.stands_for[self.inputs.value])
        self.result_value = self.stands_for[self.result_value]

    def _resolve_reads(self) -> list[GuessedReads]:
        """Add the reads through memory; returns those that may name too much.

        Each result is taken for a read by a node of its own, after the last operation.
        """
        results = len(self.result_value)
        result_reads = OpInputs(
            self.count + np.arange(results),
            self.result_value,
            np.zeros(results, dtype=np.int64),
            np.full(results, Kind.DATA, dtype=np.int64),
        )
        reads = OpInputs(*(np.concatenate(columns) for columns in zip(self.inputs, result_reads)))
        memory = ValueMemory(
            self.value_storage,
            self.value_offset,
            self.value_type,
            self.producer,
            self.written.copy(),
            self.storage_bytes,
            self.rec.type_rows,
        )
        reads, self.carries, guesses, _ = resolve_reads(
            memory, reads, self._views(), self._is_inert, self.unknown_aliases
        )
        order = np.lexsort((np.where(reads.slot < 0, 1 << 30, reads.slot), reads.node))
        reads = OpInputs(*(column[order] for column in reads))
        inside = reads.node < self.count
        self.inputs = OpInputs(*(column[inside] for column in reads))
        self.result_reads = OpInputs(*(column[~inside] for column in reads))
        return guesses

    def _views(self) -> tuple[Ints, Ints]:
        """The values that operations return and that alias what was there before, and the operations."""
        birth = self.storage_birth[self.value_storage[self.out_value]]
        rows = np.flatnonzero(~self.written[self.out_value] & (birth < self.out_node))
        return self.out_node[rows], self.out_value[rows]

    def _is_inert(self, value: int) -> bool:
        """Whether a value was made from nothing but shapes."""
        producer = int(self.producer[value])
        if producer < 0:
            return False
        info = self.rec.calls[self.rows.call[producer]]
        return bool(info.slots == len(info.shape_only))

    # ---------------------------------------------------------------- scopes and phases

    def _set_scopes_and_phases(self) -> None:
        """Work out the scope and the phase of each operation; backward runs in the scope of its forward operation."""
        modules = self.rec.modules
        is_backward = self.rows.backward != FORWARD
        scope, optimizing = lift_closures(self.rec, self.rows)
        scopes = read_scopes(self.rec)
        self.scope_module, self.tree = scopes.module, Tree(scopes.parent)
        is_call = np.array([row.kind == "module" or row.type == "OptimizedModule" for row in modules])
        is_compiled = np.array([row.kind == "compiled" for row in modules]) & ~is_call
        in_rerun_call = self.tree.inside_some(scopes.in_backward.astype(bool) & is_call[scopes.module])
        in_compiled = self.tree.inside_some(is_compiled[scopes.module])
        in_calls = is_backward & in_rerun_call[scope]
        in_functions = find_recomputed(self.rows, self.rec.calls, self.node_link)
        recomputed = in_calls | in_functions.mask
        # what a compiler captured of backward is no recomputed call
        self.recomputed = recomputed & ~in_compiled[scope]
        self.node_link[recomputed] = -1
        moved = in_functions.mask & ~in_calls & (in_functions.first >= 0)
        scope = np.where(moved, scope[in_functions.first], scope)
        self.scope = np.where(self.node_link >= 0, scope[self.node_link], scope)
        self.phase = np.where(is_backward, Phase.BACKWARD, Phase.FORWARD)
        self.phase[optimizing] = Phase.OPTIMIZER

    # ---------------------------------------------------------------- roles and names

    def _set_roles_and_names(self) -> None:
        """Give each value its role and name: by the tensor itself, or else by the named memory that it lies in."""
        self.role = np.full(len(self.value_storage), Role.ACTIVATION, dtype=np.int64)
        is_made = self.producer >= 0
        # what backward recomputes has the role that it had in forward
        if self.count:
            gradients = (self.phase == Phase.BACKWARD) & ~self.recomputed
            self.role[is_made & gradients[self.producer]] = Role.GRADIENT
        self.role[~is_made] = Role.CONSTANT
        self.name = np.full(len(self.value_storage), -1, dtype=np.int64)
        memory = NamedMemory()
        by_value: dict[int, Owner] = {}
        self._add_named(memory, by_value)
        self._add_gradients(memory, by_value)
        if memory.storages:
            of_gradients = np.isin(self.value_storage, memory.storages_of(Role.GRADIENT))
            candidates = (~is_made | self.written | of_gradients) & np.isin(
                self.value_storage, memory.storages
            )
            for value in np.flatnonzero(candidates).tolist():
                owner = memory.owner(int(self.value_storage[value]), self._span(value))
                if owner is not None:
                    self.role[value], self.name[value] = owner
        for value, (role, number) in by_value.items():
            self.role[value], self.name[value] = role, number
        for result, value in zip(self.facts.results, self.result_value.tolist(), strict=True):
            if result.kind == "output" and self.role[value] == Role.ACTIVATION:
                self.role[value] = Role.OUTPUT

    def _add_named(self, memory: NamedMemory, by_value: dict[int, Owner]) -> None:
        """Enter the tensors that the program has names for, by their newest value and by their memory."""
        for name, tensor, role in self.facts.named:
            entry = self.rec.seen.get(id(tensor))
            number = self.builder.names.intern(name)
            if entry is not None and entry() is tensor:
                by_value.setdefault(entry.number, (role, number))
            storage = self._storage_number(tensor)
            if storage is not None:
                memory.add(storage, span_of(tensor), (role, number))

    def _add_gradients(self, memory: NamedMemory, by_value: dict[int, Owner]) -> None:
        """Enter the values that were a ``.grad`` at some time."""
        for name, number in self.facts.gradients:
            # -1 - n stands for the last value that operation n made; see GradWrites
            gradient = number if number >= 0 else self.out_value[self.out_start[-number] - 1]
            value = int(self.stands_for[gradient])
            by_value.setdefault(value, (Role.GRADIENT, self.builder.names.intern(name)))
            memory.add(int(self.value_storage[value]), self._span(value), by_value[value])

    def _find_optimizer_work(self) -> None:
        """Count work on gradients outside of modules and of backward with the optimizer."""
        is_module = np.array([row.kind == "module" for row in self.rec.modules])[self.scope_module]
        in_module = self.tree.inside_some(is_module)
        possible = (self.phase == Phase.FORWARD) & ~in_module[self.scope]
        possible[self.node_link[self.node_link >= 0]] = False
        input_gradients = {f"{row.name}.grad" for row in self.facts.named if row.role == Role.INPUT}
        # the last is for values without a name
        of_leaf = np.array([name not in input_gradients for name in self.builder.names.rows] + [False])
        gradients = (self.role == Role.GRADIENT) & of_leaf[self.name]
        state = np.isin(self.role, [Role.PARAMETER, Role.BUFFER, Role.OPTIMIZER_STATE])
        state |= np.isin(self.value_storage, self.value_storage[self.producer < 0]) & (
            self.role != Role.INPUT
        )
        writes = np.zeros(self.count, dtype=bool)
        writes[self.producer[gradients & (self.producer >= 0)]] = True
        start, read = np.searchsorted(self.inputs.node, np.arange(self.count + 1)), self.inputs.value
        reads = GradientReads(start, self.producer[read], gradients[read], (state & ~gradients)[read])
        self.phase[work_on_gradients(possible, writes, reads)] = Phase.OPTIMIZER

    def _set_message_phases(self) -> None:
        """Give a message the phase of what made the tensor it sends, or of what reads the tensor it receives.

        A pipeline sends and receives gradients between its backward passes, in no call that would tell.
        """
        rec = self.rec
        if not rec.comms:
            return
        waits: dict[int, list[int]] = {}
        for node, comm in rec.waits:
            waits.setdefault(comm, []).append(node)
        start = np.searchsorted(self.inputs.node, np.arange(self.count + 1))
        makers = self.producer[self.inputs.value]
        by_maker = np.argsort(makers, kind="stable")
        for number, (node, *_) in enumerate(rec.comms):
            row = rec.calls[self.rows.call[node]].plan.collective
            if row is None or row.kind not in ("send", "recv"):
                continue
            nodes = [node, *waits.get(number, [])]
            if row.kind == "send":
                others = makers[start[node] : start[node + 1]].tolist()
            else:
                first, last = np.searchsorted(makers, nodes[-1:] * 2, sorter=by_maker) + [0, 1]
                others = self.inputs.node[by_maker[first:last]].tolist()
            others = [other for other in others if other >= 0 and other not in nodes]
            if others:
                self.phase[nodes] = min(self.phase[others[0]], Phase.BACKWARD)

    def _span(self, value: int) -> ByteSpan:
        return span_at(int(self.value_offset[value]), self.rec.type_rows[self.value_type[value]])

    def _storage_number(self, tensor: torch.Tensor) -> int | None:
        entry = self.rec.seen.get(id(tensor))
        if entry is not None and entry() is tensor:
            return int(self.value_storage[entry.number])
        try:
            known = self.rec.storages.get(tensor.untyped_storage()._cdata)
        except (RuntimeError, NotImplementedError):
            return None
        return None if known is None or known() is None else known.number

    # ---------------------------------------------------------------- the graph

    def _fill(self) -> Ints:
        """Give the builder its columns; returns for each of the recorder's values its number in the graph."""
        rec, builder, inputs = self.rec, self.builder, self.inputs
        builder.calls = [info.call for info in rec.calls]
        for row in rec.type_rows:
            builder.types.rows.append(row)
        sites = np.array([builder.sites.intern(resolve(*site)) for site in rec.sites] + [-1], dtype=np.int64)
        for device in rec.devices:
            builder.devices.intern(str(device))
        modules = [
            builder.modules.intern(Module(self.facts.paths.get(number, row.path), row.type, row.kind))
            for number, row in enumerate(rec.modules)
        ]
        scope_module = np.array(modules, dtype=np.int64)[self.scope_module]
        calls = api_calls(rec, self.rows, self.scope, self.recomputed)
        functions = np.array([*map(builder.names.intern, calls.names), -1], dtype=np.int64)
        builder.results = [ResultRow(result.name, result.kind) for result in self.facts.results]
        used = self._used_values()
        numbers = np.cumsum(used) - 1
        carries = self.carries[used]
        builder.set(
            node_call=self.rows.call,
            node_scope=self.scope,
            node_site=sites[self.rows.site],
            node_link=self.node_link,
            node_phase=self.phase,
            node_flags=self._flags(),
            node_api=functions[calls.function],
            node_api_first=calls.first,
            in_start=offsets(inputs.node, self.count),
            out_start=self.out_start,
            in_value=numbers[inputs.value],
            in_slot=inputs.slot,
            in_kind=inputs.kind,
            out_value=numbers[self.out_value],
            out_slot=self.out_slot,
            value_producer=self.producer[used],
            value_type=self.value_type[used],
            value_storage=self.value_storage[used],
            value_offset=self.value_offset[used],
            value_carries=np.where(carries >= 0, numbers[carries], -1),
            value_name=self.name[used],
            value_role=self.role[used],
            storage_bytes=self.storage_bytes,
            storage_birth=self.storage_birth,
            storage_death=self.storage_death,
            storage_device=self.storage_device,
            scope_parent=self.tree.parent,
            scope_module=scope_module,
            scope_call=call_numbers(scope_module),
            result_start=offsets(self.result_reads.node - self.count, len(self.facts.results)),
            result_value=numbers[self.result_reads.value],
            result_kind=self.result_reads.kind,
            **self._sparse_columns(used, numbers),
        )
        builder.groups = list(rec.groups)
        return numbers

    def _sparse_columns(self, keep: Bools, numbers: Ints) -> dict[str, Ints]:
        """What few runs have: collectives, waits for them, and memory that became larger or smaller."""
        rec = self.rec
        columns: dict[str, Ints] = {}
        comms, waits = table(rec.comms, 5), table(rec.waits, 2)
        # the first row of a block is the size that it begins with
        changed = dict.fromkeys(storage for storage, _, _ in rec.resizes)
        begins = [(s, int(self.first_bytes[s]), max(int(self.storage_birth[s]), 0)) for s in changed]
        resizes = table(sorted(begins + rec.resizes, key=lambda row: row[2]), 3)
        for number, name in enumerate(("comm_node", "comm_group", "comm_seq", "comm_peer", "comm_tag")):
            columns[name] = comms[:, number]
        columns["wait_node"], columns["wait_comm"] = waits.T
        columns["resize_storage"], columns["resize_bytes"], node = resizes.T
        columns["resize_node"] = np.minimum(node, self.count)
        columns["placed_value"], columns["placed_how"] = self._placed(keep, numbers)
        return columns

    def _placed(self, keep: Bools, numbers: Ints) -> tuple[Ints, Ints]:
        """The values from outside that are a rank's part of a larger tensor, and how that lies on the mesh."""
        rows: dict[int, int] = {}
        outside = self.producer < 0
        for tensor, placement in self.facts.placements:
            storage = self._storage_number(tensor)
            if storage is None:
                continue
            number = self.builder.placements.intern(placement)
            shape = tuple(tensor.shape)
            for value in np.flatnonzero(outside & keep & (self.value_storage == storage)).tolist():
                if self.rec.type_rows[self.value_type[value]].shape == shape:
                    rows.setdefault(int(numbers[value]), number)
        ordered = table(sorted(rows.items()), 2)
        return ordered[:, 0], ordered[:, 1]

    def _used_values(self) -> Bools:
        """Which values go into the graph: all but aliases that turned out to stand for something known."""
        used = self.producer >= 0
        used[self.inputs.value] = True
        used[self.result_reads.value] = True
        used[self.carries[self.carries >= 0]] = True
        return used

    def _flags(self) -> Ints:
        plans = [info.plan for info in self.rec.calls]
        escape = np.array([Flag.ESCAPE if plan.escape else 0 for plan in plans], dtype=np.int64)
        random = np.array([Flag.RANDOM if plan.random else 0 for plan in plans], dtype=np.int64)
        flags = (escape | random)[self.rows.call] if plans else np.zeros(0, dtype=np.int64)
        flags[self.rec.opaque_nodes] |= Flag.OPAQUE
        flags[self.rec.collective_nodes] |= Flag.COLLECTIVE
        flags[self.recomputed] |= Flag.RECOMPUTE
        flags[self.rows.grad_mode == 1] |= Flag.GRAD_MODE
        births = self.storage_birth[self.value_storage[self.out_value]]
        fresh = (self.out_slot < 0) | (births >= self.out_node)
        fresh_count = np.bincount(self.out_node[fresh], minlength=self.count)
        is_view = (fresh_count == 0) & (np.diff(self.out_start) > 0) & (flags & RECORDED == 0)
        flags[is_view] |= Flag.VIEW
        flags[self._in_place_sums(is_view)] |= Flag.IN_PLACE_SUM
        return flags

    def _in_place_sums(self, is_view: Bools) -> Ints:
        """The sums that autograd makes in place where nobody records.

        Where two gradients meet, it adds the second into the first. Under a dispatch mode it makes a third, since it
        cannot know who else looks at the first. Such a sum is the engine's own and not of a function or hook that the
        user wrote, no graph of it is made, and its first operand dies right after it. If that one is a view (the
        gradient of a transposed weight), a third is made in any case.
        """
        rows, inputs = self.rows, self.inputs
        sums = np.array([is_plain_sum(info.call) for info in self.rec.calls] or [False], dtype=bool)
        engine = engine_sites(rows, self.rec.calls)
        chosen = (
            sums[rows.call] & (rows.backward != FORWARD) & (rows.grad_mode == 0) & np.isin(rows.site, engine)
        )
        operand = np.full(self.count, -1, dtype=np.int64)
        first = (inputs.slot == 0) & (inputs.kind != Kind.SHAPE)
        operand[inputs.node[first]] = inputs.value[first]
        output = np.full(self.count, -1, dtype=np.int64)
        output[self.out_node[::-1]] = self.out_value[::-1]
        nodes = np.flatnonzero(chosen & (operand >= 0) & (output >= 0))
        old, new = self.value_storage[operand[nodes]], self.value_storage[output[nodes]]
        producer = self.producer[operand[nodes]]
        alone = ~((producer >= 0) & is_view[producer]) & (self.storage_death[old] == nodes + 1)
        same = (self.first_bytes[old] == self.first_bytes[new]) & (self.storage_birth[new] == nodes)
        result: Ints = nodes[alone & same]
        return result

    # ---------------------------------------------------------------- metrics

    def _metrics(self, graph: Graph, unseen: UnseenCost) -> Metrics:
        rec = self.rec
        columns: list[Column] = []
        if rec.timing:
            columns += time_columns(rec, self.rows, graph.node_scope, self.facts.ended, unseen)
        if rec.memory:
            lives = block_births(graph), self.storage_death
            sizes = self.first_bytes, self.storage_bytes
            columns += memory_columns(rec, *lives, *sizes, self.count, in_place_sums(graph).made)
        return Metrics({column.name: column for column in columns})


def call_numbers(module: Ints) -> Ints:
    """For each scope, how many calls of the same module came before it.

    >>> call_numbers(np.array([0, 1, 1, 2, 1])).tolist()
    [0, 0, 1, 0, 2]
    """
    order = np.argsort(module, kind="stable")
    ranked = module[order]
    first = np.searchsorted(ranked, ranked)
    numbers = np.empty(len(module), dtype=np.int64)
    numbers[order] = np.arange(len(module)) - first
    return numbers


# ---------------------------------------------------------------- whose memory it is


class ByteSpan(NamedTuple):
    """The first byte of a tensor in its storage and one past its last; all of it where the tensor does not say."""

    start: float = 0
    end: float = float("inf")


def span_of(tensor: torch.Tensor) -> ByteSpan:
    """The bytes of a tensor."""
    try:
        offset, shape = int(tensor.storage_offset()), tuple(tensor.shape)
        return _span(offset, shape, tensor.stride(), tensor.element_size())
    except (RuntimeError, NotImplementedError):
        return ByteSpan()


def span_at(offset: int, type_: TensorType) -> ByteSpan:
    """The bytes of a tensor of a type at an offset.

    >>> span_at(2, TensorType("float32", (2, 3), (4, 1)))
    ByteSpan(start=8, end=36)
    """
    if type_.layout != "strided" or type_.itemsize is None:
        return ByteSpan()
    return _span(offset, type_.shape, type_.stride, type_.itemsize)


def _span(offset: int, shape: tuple[int, ...], stride: tuple[int, ...], itemsize: int) -> ByteSpan:
    return ByteSpan(offset * itemsize, (offset + extent(shape, stride)) * itemsize)


class NamedMemory:
    """Named tensors by the memory they lie on. Several may share one storage: recurrent layers on a GPU do.

    >>> memory = NamedMemory()
    >>> memory.add(0, ByteSpan(0, 8), (Role.PARAMETER, 1))
    >>> memory.add(0, ByteSpan(8, 16), (Role.PARAMETER, 2))
    >>> memory.owner(0, ByteSpan(8, 12)), memory.owner(0, ByteSpan(0, 16)), memory.owner(1, ByteSpan(0, 8))
    ((<Role.PARAMETER: 2>, 2), None, None)
    """

    def __init__(self) -> None:
        self._owners: dict[int, dict[ByteSpan, Owner]] = {}
        self._sorted: dict[int, list[tuple[ByteSpan, Owner]]] = {}

    @property
    def storages(self) -> list[int]:
        """The storages that hold a named tensor."""
        return list(self._owners)

    def storages_of(self, role: Role) -> list[int]:
        """The storages whose first named tensor has a role."""
        return [storage for storage, owners in self._owners.items() if next(iter(owners.values()))[0] == role]

    def add(self, storage: int, span: ByteSpan, owner: Owner) -> None:
        """Add a named tensor; of several on the same bytes the first counts."""
        self._owners.setdefault(storage, {}).setdefault(span, owner)

    def owner(self, storage: int, span: ByteSpan) -> Owner | None:
        """The tensor that a span lies in; None where it reaches beyond one.

        One that has its memory alone has all of it, however large it is in the end: it may have been resized.
        """
        if storage not in self._sorted:
            self._sorted[storage] = sorted(self._owners.get(storage, {}).items(), key=lambda row: row[0])
        rows = self._sorted[storage]
        if len(rows) == 1:
            return rows[0][1]
        index = bisect_right(rows, span.start, key=lambda row: row[0].start) - 1
        while index >= 0:
            if span.end <= rows[index][0].end:
                return rows[index][1]
            index -= 1
        return None
