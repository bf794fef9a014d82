"""From a recorder's log to a graph: columns in bulk, names and roles from what the run knew."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
import torch

from torch_vis.capture.assembling.backward_links import computed_again, forward_of
from torch_vis.capture.assembling.edges import Memory
from torch_vis.capture.assembling.edges import resolve as resolve_reads
from torch_vis.capture.assembling.log import OpInputs, call_numbers, offsets, read_log, table
from torch_vis.capture.assembling.metric_columns import memory_columns, time_columns
from torch_vis.capture.assembling.phases import GradientReads, Operations, lift, on_gradients
from torch_vis.capture.assembling.tensor_owners import ByteSpan, NamedMemory, span_at, span_of
from torch_vis.capture.recording.opaque_nodes import record_fill
from torch_vis.capture.recording.recorder import FORWARD, Recorder
from torch_vis.capture.recording.source_lines import resolve
from torch_vis.graph.graph import Graph, GraphBuilder
from torch_vis.graph.lifetimes import block_births
from torch_vis.graph.metrics import Metrics
from torch_vis.graph.schema import Flag, Kind, Module, Phase, ResultRow, Role
from torch_vis.graph.tree import Tree
from torch_vis.graph.types import Bools, Ints


@dataclass
class RunFacts:
    """What the run was about: the tensors with names, and what it gave back."""

    named: list[tuple[str, torch.Tensor, Role]] = field(default_factory=list)
    results: list[tuple[str, str, torch.Tensor]] = field(default_factory=list)
    gradients: list[tuple[str, int]] = field(default_factory=list)
    """The numbers of values that were a ``.grad`` at some time, by its name."""
    paths: dict[int, str] = field(default_factory=dict)
    """Module paths, by module number."""
    ended: int = 0
    live: bool = False
    """Whether tensors that are alive at the end and that nothing consumed count as outputs."""


def assemble(rec: Recorder, facts: RunFacts) -> tuple[Graph, Metrics, int, Ints]:
    """The graph, its metrics, how many writes had a region that could only be guessed, and the values' new numbers."""
    return _Assembly(rec, facts).build()


class _Assembly:
    def __init__(self, rec: Recorder, facts: RunFacts) -> None:
        self.rec = rec
        self.facts = facts
        self.builder = GraphBuilder()
        self.unseen_aliases = np.zeros(0, dtype=np.int64)

    def build(self) -> tuple[Graph, Metrics, int, Ints]:
        self._read_log()
        self._read_values()
        self._read_results()
        self._follow_aliases()
        guessed = self._resolve()
        self.node_link = forward_of(self.rows, self.rec.calls, self.in_node, self.in_value, self.maker)
        self._scopes()
        self._roles()
        self._updates()
        self._fill()
        graph = self.builder.build()
        return graph, self._metrics(graph), guessed, self.renumber

    # ---------------------------------------------------------------- columns from the log

    def _read_log(self) -> None:
        self.rows, reads, made = read_log(self.rec)
        self.count = len(self.rows.call)
        self.in_node, self.in_value, self.in_slot, self.in_kind = reads
        self.out_node, self.out_value, self.out_slot = made
        self.out_start = offsets(self.out_node, self.count)

    def _read_values(self) -> None:
        rec = self.rec
        values = np.array(rec.values, dtype=np.int64).reshape(-1, 4)
        values = values[np.argsort(values[:, 0], kind="stable")]
        self.value_storage, self.value_offset, self.value_type = values[:, 1], values[:, 2], values[:, 3]
        self.maker = np.full(len(values), -1, dtype=np.int64)
        self.maker[self.out_value] = self.out_node
        self.written = np.zeros(len(values), dtype=bool)
        self.written[self.out_value[self.out_slot < 0]] = True
        storages = np.array(rec.storage_rows, dtype=np.int64).reshape(-1, 4)
        storages = storages[np.argsort(storages[:, 0], kind="stable")]
        self.storage_bytes, self.storage_birth, self.storage_device = (
            storages[:, 1].copy(),
            storages[:, 2],
            storages[:, 3],
        )
        self.first_bytes = storages[:, 1]
        for storage, size, _ in rec.resizes:
            self.storage_bytes[storage] = max(self.storage_bytes[storage], size)
        self.storage_death = np.full(len(storages), self.count + 1, dtype=np.int64)
        deaths = table(rec.deaths if rec.memory else [], 2)
        self.storage_death[deaths[:, 0]] = np.maximum(deaths[:, 1], self.storage_birth[deaths[:, 0]])

    def _read_results(self) -> None:
        """Results are reads at the very end, one pseudo-node each."""
        rec = self.rec
        if self.facts.live:
            self.facts.results.extend(self._live_results())
        numbers = []
        for _, _, tensor in self.facts.results:
            numbers.append(rec.number_of(tensor))
            if numbers[-1] in rec.uninitialized and rec.keep:
                numbers[-1] = record_fill(rec, tensor, numbers[-1])
        if rec.count > self.count:
            self._read_log()
        if len(rec.values) > 4 * len(self.value_storage):
            self._read_values()
        self.result_value = np.array(numbers, dtype=np.int64)

    def _live_results(self) -> list[tuple[str, str, torch.Tensor]]:
        """What a block leaves behind: tensors it made that are alive and that no forward operation went on to use."""
        plans = [info.plan.escape for info in self.rec.calls]
        passing = (np.array(plans, dtype=bool)[self.rows.call] if plans else np.zeros(0, dtype=bool)) | (
            self.rows.backward != FORWARD
        )
        consumed = np.zeros(len(self.value_storage), dtype=bool)
        consumed[self.in_value[~passing[self.in_node]]] = True
        taken = {id(tensor) for _, _, tensor in self.facts.results}
        found = []
        for entry in list(self.rec.seen.values()):
            tensor, number = entry(), entry.number
            if tensor is None or consumed[number] or self.maker[number] < 0 or id(tensor) in taken:
                continue
            if self.rows.backward[self.maker[number]] == FORWARD:
                found.append((number, tensor))
        if not found:  # everything was looked at inside the block: then all that is alive counts
            found = [
                (entry.number, tensor)
                for entry in list(self.rec.seen.values())
                if (tensor := entry()) is not None
                and self.maker[entry.number] >= 0
                and id(tensor) not in taken
            ]
        found.sort(key=lambda pair: (self._is_by_product(*pair), pair[0]))
        return [(f"output.{place}", "output", tensor) for place, (_, tensor) in enumerate(found)]

    def _is_by_product(self, number: int, tensor: torch.Tensor) -> bool:
        """Whether a tensor came beside the first one that its operation made and has no gradient: a workspace, say.

        Autograd keeps such alive where a run ended before its backward; they are never what the run was about.
        """
        first = self.out_value[np.searchsorted(self.out_node, self.maker[number])]
        return bool(first != number and not tensor.requires_grad)

    # ---------------------------------------------------------------- dataflow

    def _follow_aliases(self) -> None:
        """Let a tensor that torch made unseen (a saved tensor, ``.data``) stand for the one it is an alias of."""
        aliases = self.rec.aliases
        self.stands_for = np.arange(len(self.value_storage))
        if not aliases:
            return
        wanted = np.isin(self.value_storage, np.unique(self.value_storage[aliases]))
        known: dict[tuple[int, int, int], int] = {}
        is_alias = np.zeros(len(self.value_storage), dtype=bool)
        is_alias[aliases] = True
        for value in np.flatnonzero(wanted).tolist():
            key = (int(self.value_storage[value]), int(self.value_offset[value]), int(self.value_type[value]))
            if is_alias[value]:
                self.stands_for[value] = known.get(key, value)
            elif self.written[value]:
                known[key] = value
            else:
                known.setdefault(key, value)
        unknown = np.array([a for a in aliases if self.stands_for[a] == a], dtype=np.int64)
        # an alias of unknown make is read through its memory
        self.unseen_aliases = unknown
        self.in_value = self.stands_for[self.in_value]
        self.result_value = self.stands_for[self.result_value]

    def _resolve(self) -> int:
        result_count = len(self.result_value)
        reads = OpInputs(
            np.concatenate([self.in_node, self.count + np.arange(result_count)]),
            np.concatenate([self.in_value, self.result_value]),
            np.concatenate([self.in_slot, np.zeros(result_count, dtype=np.int64)]),
            np.concatenate([self.in_kind, np.full(result_count, Kind.DATA, dtype=np.int64)]),
        )
        follow = self.written.copy()
        memory = Memory(
            self.value_storage,
            self.value_offset,
            self.value_type,
            self.maker,
            follow,
            self.storage_bytes,
            self.rec.type_rows,
        )
        reads, self.carries, guessed = resolve_reads(
            memory, reads, self._views, self._inert, self.unseen_aliases
        )
        order = np.lexsort((np.where(reads.slot < 0, 1 << 30, reads.slot), reads.node))
        reads = OpInputs(*(column[order] for column in reads))
        inside = reads.node < self.count
        self.in_node, self.in_value = reads.node[inside], reads.value[inside]
        self.in_slot, self.in_kind = reads.slot[inside], reads.kind[inside]
        outside = ~inside
        self.result_node = reads.node[outside] - self.count
        self.result_rows, self.result_kinds = reads.value[outside], reads.kind[outside]
        return guessed

    def _views(self, node: int) -> dict[int, list[int]]:
        """The values a node returns that alias its inputs, by the memory they lie in."""
        if node >= self.count:
            return {}
        values = self.out_value[self.out_start[node] : self.out_start[node + 1]]
        storages = self.value_storage[values]
        views: dict[int, list[int]] = {}
        for row in np.flatnonzero(~self.written[values] & (self.storage_birth[storages] < node)):
            views.setdefault(int(storages[row]), []).append(int(values[row]))
        return views

    def _inert(self, value: int) -> bool:
        maker = int(self.maker[value])
        if maker < 0:
            return False
        info = self.rec.calls[self.rows.call[maker]]
        return bool(info.slots == len(info.shape_only))

    # ---------------------------------------------------------------- scopes and phases

    def _scopes(self) -> None:
        rec = self.rec
        is_backward = self.rows.backward != FORWARD
        spent = self.rows.ended - self.rows.begun
        ran = Operations(self.rows.scope, self.rows.grad_mode, is_backward, spent)
        scope, optimizing = lift(rec, ran)
        rows = table(rec.scopes, 6)
        kinds = [kind for _, _, _, kind in rec.modules]
        self.scope_module, self.scope_parent = rows[:, 0], rows[:, 1]
        called = np.array([kind == "module" or type_ == "OptimizedModule" for *_, type_, kind in rec.modules])
        captured = np.array([kind == "compiled" for kind in kinds]) & ~called
        again, captured = rows[:, 5].astype(bool) & called[self.scope_module], captured[self.scope_module]
        tree = Tree(self.scope_parent)
        again, captured = tree.inside_some(again), tree.inside_some(captured)
        inside = is_backward & again[scope]  # in calls that were made inside backward
        outside = computed_again(self.rows, rec.calls, self.node_link)
        own = inside | outside.mask
        self.recomputed = own & ~captured[scope]  # what a compiler captured of backward is no call made again
        self.node_link[own] = -1
        moved = outside.mask & ~inside & (outside.first >= 0)
        scope = np.where(moved, scope[outside.first], scope)
        self.scope = np.where(self.node_link >= 0, scope[self.node_link], scope)
        self.phase = np.where(is_backward, Phase.BACKWARD, Phase.FORWARD)
        self.phase[optimizing] = Phase.OPTIMIZER

    # ---------------------------------------------------------------- roles and names

    def _roles(self) -> None:
        self.role = np.full(len(self.value_storage), Role.ACTIVATION, dtype=np.int64)
        made = self.maker >= 0
        if self.count:  # what backward computes again is what it was in forward
            gradients = (self.phase == Phase.BACKWARD) & ~self.recomputed
            self.role[made & gradients[self.maker]] = Role.GRADIENT
        self.role[~made] = Role.CONSTANT
        self.name = np.full(len(self.value_storage), -1, dtype=np.int64)
        places = NamedMemory()
        own: dict[int, tuple[Role, int]] = {}
        for name, tensor, role in self.facts.named:
            entry = self.rec.seen.get(id(tensor))
            number = self.builder.names.intern(name)
            if entry is not None and entry() is tensor:
                own.setdefault(entry.number, (role, number))
            storage = self._storage_number(tensor)
            if storage is not None:
                places.add(storage, span_of(tensor), (role, number))
        for name, number in self.facts.gradients:
            at = number if number >= 0 else self.out_value[self.out_start[-number] - 1]
            value = int(self.stands_for[at])
            own.setdefault(value, (Role.GRADIENT, self.builder.names.intern(name)))
            places.add(int(self.value_storage[value]), self._span(value), own[value])
        if places.storages:
            keep = ~made | self.written | np.isin(self.value_storage, places.of_role(Role.GRADIENT))
            for value in np.flatnonzero(keep & np.isin(self.value_storage, places.storages)).tolist():
                found = places.find(int(self.value_storage[value]), self._span(value))
                if found is not None:
                    self.role[value], self.name[value] = found
        for value, (role, number) in own.items():
            self.role[value], self.name[value] = role, number
        for (_, kind, _), value in zip(self.facts.results, self.result_value.tolist(), strict=True):
            if kind == "output" and self.role[value] == Role.ACTIVATION:
                self.role[value] = Role.OUTPUT

    def _updates(self) -> None:
        """What is done with gradients outside of modules and of backward counts with the optimizer."""
        is_module = np.array([kind == "module" for *_, kind in self.rec.modules])[self.scope_module]
        in_module = Tree(self.scope_parent).inside_some(is_module)
        possible = (self.phase == Phase.FORWARD) & ~in_module[self.scope]
        possible[self.node_link[self.node_link >= 0]] = False
        names = self.builder.names.rows
        inputs = {f"{name}.grad" for name, _, role in self.facts.named if role == Role.INPUT}
        known = np.array([name not in inputs for name in names] + [False])
        gradients = (self.role == Role.GRADIENT) & known[self.name]
        kept = np.isin(self.role, [Role.PARAMETER, Role.BUFFER, Role.OPTIMIZER_STATE])
        kept |= np.isin(self.value_storage, self.value_storage[self.maker < 0]) & (self.role != Role.INPUT)
        writes = np.zeros(self.count, dtype=bool)
        writes[self.maker[gradients & (self.maker >= 0)]] = True
        start, read = np.searchsorted(self.in_node, np.arange(self.count + 1)), self.in_value
        reads = GradientReads(start, self.maker[read], gradients[read], (kept & ~gradients)[read])
        found = on_gradients(possible, writes, reads)
        self.phase[found] = Phase.OPTIMIZER

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

    def _fill(self) -> None:
        rec, builder = self.rec, self.builder
        builder.calls = [info.call for info in rec.calls]
        for row in rec.type_rows:
            builder.types.rows.append(row)
        sites = np.array([builder.sites.intern(resolve(*site)) for site in rec.sites] + [-1], dtype=np.int64)
        for device in rec.devices:
            builder.devices.intern(str(device))
        modules = [
            builder.modules.intern(Module(self.facts.paths.get(number, path), name, kind))
            for number, (_, path, name, kind) in enumerate(rec.modules)
        ]
        scope_module = np.array(modules, dtype=np.int64)[self.scope_module]
        builder.results = [ResultRow(name, kind) for name, kind, _ in self.facts.results]
        keep = self._used_values()
        renumber = np.cumsum(keep) - 1
        self.renumber, self.kept_values = renumber, keep
        carries = self.carries[keep]
        builder.set(
            node_call=self.rows.call,
            node_scope=self.scope,
            node_site=sites[self.rows.site],
            node_link=self.node_link,
            node_phase=self.phase,
            node_flags=self._flags(),
            in_start=offsets(self.in_node, self.count),
            out_start=self.out_start,
            in_value=renumber[self.in_value],
            in_slot=self.in_slot,
            in_kind=self.in_kind,
            out_value=renumber[self.out_value],
            out_slot=self.out_slot,
            value_producer=self.maker[keep],
            value_type=self.value_type[keep],
            value_storage=self.value_storage[keep],
            value_offset=self.value_offset[keep],
            value_carries=np.where(carries >= 0, renumber[carries], -1),
            value_name=self.name[keep],
            value_role=self.role[keep],
            storage_bytes=self.storage_bytes,
            storage_birth=self.storage_birth,
            storage_death=self.storage_death,
            storage_device=self.storage_device,
            scope_parent=self.scope_parent,
            scope_module=scope_module,
            scope_call=call_numbers(scope_module),
            result_start=offsets(self.result_node, len(self.facts.results)),
            result_value=renumber[self.result_rows],
            result_kind=self.result_kinds,
        )

    def _used_values(self) -> Bools:
        """Everything but aliases that turned out to stand for something known."""
        used = self.maker >= 0
        used[self.in_value] = True
        used[self.result_rows] = True
        used[self.carries[self.carries >= 0]] = True
        return used

    def _flags(self) -> Ints:
        plans = [info.plan for info in self.rec.calls]
        escape = np.array([Flag.ESCAPE if plan.escape else 0 for plan in plans], dtype=np.int64)
        random = np.array([Flag.RANDOM if plan.random else 0 for plan in plans], dtype=np.int64)
        flags = (escape | random)[self.rows.call] if plans else np.zeros(0, dtype=np.int64)
        flags[self.rec.opaque_nodes] |= Flag.OPAQUE
        flags[self.recomputed] |= Flag.RECOMPUTE
        flags[self.rows.grad_mode == 1] |= Flag.GRAD_MODE
        fresh = (self.out_slot < 0) | (
            self.storage_birth[self.value_storage[self.out_value]] >= self.out_node
        )
        makes = np.bincount(self.out_node[fresh], minlength=self.count)
        flags[(makes == 0) & (np.diff(self.out_start) > 0) & (flags & Flag.OPAQUE == 0)] |= Flag.VIEW
        return flags

    # ---------------------------------------------------------------- metrics

    def _metrics(self, graph: Graph) -> Metrics:
        rec, found = self.rec, []
        if rec.timing:
            found += time_columns(rec, self.rows.begun, self.rows.ended, graph.node_scope, self.facts.ended)
        if rec.memory:
            blocks = (block_births(graph), self.storage_death, self.first_bytes, self.storage_bytes)
            found += memory_columns(rec, *blocks, self.count)
        return Metrics({column.name: column for column in found})
