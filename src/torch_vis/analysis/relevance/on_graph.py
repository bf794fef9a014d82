"""Relevance through the graph of a recorded run, cell by cell of its memory.

Relevance lies in memory: an operation takes what lies in the cells that it wrote, and its rule puts that into the cells
that it read. So views, writes in place and aliases need no rules of their own.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import torch

from torch_vis.analysis.attribution.methods import AttributedMaps, named_output
from torch_vis.analysis.relevance.flow import (
    MODES,
    ROUNDING,
    SHAPE_ONLY,
    NodeRelevance,
    Relevance,
    Start,
    by_gradient,
    ruled,
)
from torch_vis.analysis.relevance.rules import GATES, TRANSPARENT, VIEWS, Amount, Leaf, OpCall, Shares
from torch_vis.capture.containers import named_tensors
from torch_vis.capture.modes import without_gradients
from torch_vis.capture.session import Capture
from torch_vis.capture.state import RngStates
from torch_vis.errors import TorchVisError, UsageError, no_match
from torch_vis.graph.flow import outputs_by_slot
from torch_vis.graph.graph import Graph
from torch_vis.graph.metrics import Column
from torch_vis.graph.schema import RECORDED, Flag, Kind, extent
from torch_vis.ops.names import out_of_place, plain_name
from torch_vis.ops.schemas import resolve
from torch_vis.replay.decompositions import FUSED_ATTENTION, attention_call, lstm_layer
from torch_vis.replay.differentiable import DifferentiableReplay
from torch_vis.replay.held_run import HeldRun
from torch_vis.views.text.table_layout import Field, Listing

CARRYING = ("float16", "float32", "float64", "bfloat16", "int8", "int16", "int32", "int64", "uint8")

GEOMETRIES = frozenset(VIEWS.split()) | {"detach"}


class GraphRelevance:
    """Relevance on its way back through one recorded run."""

    def __init__(
        self, run: HeldRun, args: tuple[Any, ...] = (), kwargs: Mapping[str, Any] | None = None
    ) -> None:
        self.graph: Graph = run.graph
        probe = DifferentiableReplay(run, args, kwargs)
        self.forward = DifferentiableReplay(run, args, kwargs, vary=list(probe.values))
        self.read: dict[int, list[torch.Tensor]] = {}
        self.outputs: dict[int, dict[int, torch.Tensor]] = {}
        with without_gradients():
            self.given = self.forward.run(observe=self._observe)
        self.inputs = dict(self.forward.values)
        self.carries = self._carriers()
        # relevance by element of each block of memory
        self.cells: dict[int, Amount] = {}
        # what was put into cells by way of each value, views of it included: total and net
        self.through: dict[int, tuple[float, float]] = {}
        self.accounts: dict[int, NodeRelevance] = {}
        self.scale = 0.0

    def _observe(self, node: int, read: list[torch.Tensor], outputs: dict[int, torch.Tensor]) -> None:
        self.read[node], self.outputs[node] = read, outputs

    def _carriers(self) -> Any:
        """Which values depend on the inputs' contents, as numbers."""
        graph = self.graph
        carries = np.zeros(len(graph.value_type), dtype=bool)
        can = np.array([row.dtype in CARRYING and row.layout == "strided" for row in graph.types], dtype=bool)
        can = can[graph.value_type]
        for value in self.inputs.values():
            carries[(graph.value_storage == graph.value_storage[value]) & (graph.value_producer < 0)] = True
        carries &= can
        for node in self.forward.nodes:
            outputs = graph.out_value[slice(*graph.output_span(node))]
            span = slice(*graph.input_span(node))
            taken = graph.in_value[span][graph.in_kind[span] != Kind.SHAPE]
            # a view has its elements wherever they come from
            if graph.node_flags[node] & Flag.VIEW:
                taken = graph.in_value[span]
            carried = graph.value_carries[outputs]
            over = bool(carries[carried[carried >= 0]].any())
            if over or (carries[taken].any() and plain_name(graph.nodes[node].op) not in SHAPE_ONLY):
                carries[outputs] = can[outputs]
        return carries

    # ---------------------------------------------------------------- memory

    def _geometry(self, value: int) -> tuple[tuple[int, ...], tuple[int, ...], int]:
        row = self.graph.types[self.graph.value_type[value]]
        return row.shape, row.stride, int(self.graph.value_offset[value])

    def at(self, value: int) -> Amount | None:
        """What lies in the cells of a value; None where nothing does."""
        cells = self.cells.get(int(self.graph.value_storage[value]))
        if cells is None:
            return None
        geometry = self._geometry(value)
        return Amount(*(None if part is None else part.as_strided(*geometry).clone() for part in cells))  # type: ignore[arg-type]

    def _take(self, value: int) -> Amount | None:
        """What lies in the cells of a value, which are empty then."""
        amount = self.at(value)
        if amount is not None:
            for part in self.cells[int(self.graph.value_storage[value])]:
                if part is not None:
                    part.as_strided(*self._geometry(value)).zero_()
        return amount

    def put(self, value: int, amount: Amount) -> None:
        """Add relevance to the cells of a value."""
        self._credit(value, amount)
        storage = int(self.graph.value_storage[value])
        cells = self.cells.get(storage)
        if cells is None:
            row = self.graph.types[self.graph.value_type[value]]
            count = max(
                int(self.graph.storage_bytes[storage]) // (row.itemsize or 1),
                row.extent + self._geometry(value)[2],
            )
            empty = [None if part is None else part.new_zeros(count) for part in amount]
            cells = self.cells[storage] = Amount(*empty)  # type: ignore[arg-type]
        for part, added in zip(cells, amount):
            if part is not None and added is not None:
                _accumulate(part, added, *self._geometry(value))

    def _credit(self, value: int, amount: Amount) -> None:
        """Note what is put in by way of a value and of those that it is a view of."""
        total, net = amount.sum(), amount.net_sum()
        while value >= 0:
            before = self.through.get(value, (0.0, 0.0))
            self.through[value] = before[0] + total, before[1] + net
            node = int(self.graph.value_producer[value])
            if node < 0 or not self._moves_nothing(node):
                return
            inputs = self.graph.nodes[node].inputs
            value = inputs[0].index if len(inputs) else -1

    # ---------------------------------------------------------------- back through the run

    def run(
        self, start: Mapping[int, Amount], watch: Mapping[int, Sequence[int]] | None = None
    ) -> dict[int, Any]:
        """Hand everything on until it has arrived; gives what the watched nodes' values were given."""
        for value, amount in start.items():
            self.put(value, amount)
        self.scale = sum(abs(amount.sum()) for amount in start.values())
        watched: dict[int, Any] = {}
        for node in reversed(self.forward.nodes):
            values = self._results_of(node)
            if watch is not None and node in watch:
                amounts = [self.at(value) for value in values]
                watched[node] = [a.total if a.net is None else a.net for a in amounts if a is not None]
            if self._moves_nothing(node):
                self._note_view(node, values)
                continue
            given = {i: a for i, v in enumerate(values) if (a := self._take(v)) is not None and _some(a)}
            if given:
                self._hand_on(node, values, given)
        return watched

    def _results_of(self, node: int) -> list[int]:
        """The values that an operation makes, in the order of its parts and rules: returned ones, then written ones.

        A batch norm in training returns its output and writes its running statistics.
        """
        by_slot = outputs_by_slot(self.graph, node)
        return [by_slot[slot] for slot in sorted(by_slot, key=lambda slot: (slot < 0, abs(slot)))]

    def _moves_nothing(self, node: int) -> bool:
        """Whether an operation leaves every element in its cell: a view, or a new geometry for a tensor in place."""
        if not self._writes(node):
            return bool(self.graph.node_flags[node] & Flag.VIEW)
        return plain_name(self.graph.nodes[node].op) in GEOMETRIES

    def _writes(self, node: int) -> bool:
        return bool((self.graph.out_slot[slice(*self.graph.output_span(node))] < 0).any())

    def _note_view(self, node: int, values: Sequence[int]) -> None:
        amounts = [self.through[value] for value in values if value in self.through]
        if amounts:
            total, net = sum(a[0] for a in amounts), sum(a[1] for a in amounts)
            self._account(node, total, total, "view", net)

    def _hand_on(self, node: int, values: Sequence[int], given: dict[int, Amount]) -> None:
        graph = self.graph
        total, net = sum(a.sum() for a in given.values()), sum(a.net_sum() for a in given.values())
        shares: Shares = {}
        rule = "constant"
        if self.carries[list(values)].any() and node in self.read:
            if graph.node_flags[node] & RECORDED:
                rule = "no rule"
            else:
                call = self._call(node, values)
                shares, rule = _shared(call, given)
                for leaf, amount in shares.items():
                    self.put(call.leaves[leaf].source, amount)
        self._account(node, total, sum(a.sum() for a in shares.values()), rule, net)

    def _account(self, node: int, total: float, passed: float, rule: str, net: float) -> None:
        row = self.graph.nodes[node]
        absorbed = total - passed
        if abs(absorbed) <= ROUNDING * self.scale:
            absorbed = 0.0
        name = f"{row.path}/{row.name}#{node}"
        self.accounts[node] = NodeRelevance(name, row.name, row.path, total, passed, absorbed, rule, net)

    def _call(self, node: int, values: Sequence[int]) -> OpCall:
        """A node as a call of an operator that gives new tensors."""
        graph = self.graph
        slots = self.forward.planner.plan.arguments(node)
        span = slice(*graph.input_span(node))
        through_alias = {
            int(graph.value_storage[value])
            for value, slot in zip(graph.in_value[span].tolist(), graph.in_slot[span].tolist())
            if slot < 0 and self.carries[value]
        }
        taken = set(graph.in_value[span][graph.in_kind[span] != Kind.SHAPE].tolist())
        by_tensor = {id(tensor): value for tensor, value in zip(self.read[node], slots)}

        def leaf(name: str, item: Any) -> Leaf:
            value = by_tensor.get(id(item))
            if value is None or not isinstance(item, torch.Tensor):
                return Leaf(name, item, None, False)
            carries = bool(self.carries[value] and value in taken)
            carries = carries or int(graph.value_storage[value]) in through_alias
            return Leaf(name, item, value, carries, lambda: _is_gate(graph, value))

        prepared = self.forward.planner.plan.prepared(node)
        args, kwargs = prepared.arguments(self.read[node])
        op = graph.nodes[node].call.op
        target = prepared.run if not self._writes(node) else _functional(op)
        out = [self.outputs[node][value] for value in values]
        return OpCall(target, plain_name(op), tuple(args), kwargs, leaf, out)


def _some(amount: Amount) -> bool:
    return bool(amount.total.any()) or (amount.net is not None and bool(amount.net.any()))


def _accumulate(
    cells: torch.Tensor, added: torch.Tensor, shape: Sequence[int], stride: Sequence[int], offset: int
) -> None:
    """Add to the cells of a geometry, also where several of its elements are one cell."""
    added = added.to(cells.dtype)
    for dim, (size, step) in enumerate(zip(shape, stride)):
        if step == 0 and size > 1:
            added = added.sum(dim, keepdim=True)
    shape = tuple(added.shape)
    if added.numel() <= extent(shape, stride) and not _overlaps(shape, stride):
        cells.as_strided(shape, stride, offset).add_(added)
        return
    index = torch.arange(len(cells), device=cells.device).as_strided(shape, stride, offset)
    cells.index_add_(0, index.reshape(-1), added.reshape(-1))


def _overlaps(shape: Sequence[int], stride: Sequence[int]) -> bool:
    """Whether two elements of a geometry may be one cell."""
    reach = 0
    for step, size in sorted((step, size) for size, step in zip(shape, stride) if size > 1):
        if step <= reach:
            return True
        reach += step * (size - 1)
    return False


def _functional(op: str) -> Any:
    """The out-of-place operator of one that writes in place; the operator itself where there is none."""
    try:
        return resolve(out_of_place(op))
    except (TorchVisError, AttributeError, RuntimeError):
        return resolve(op)


def _is_gate(graph: Graph, value: int) -> bool:
    """Whether a value was made by a gate, perhaps reshaped since."""
    while (node := int(graph.value_producer[value])) >= 0:
        name = plain_name(graph.nodes[node].op)
        if name in GATES:
            return True
        inputs = graph.nodes[node].inputs
        if (name not in TRANSPARENT and not graph.node_flags[node] & Flag.VIEW) or not inputs:
            return False
        value = inputs[0].index
    return False


# ---------------------------------------------------------------- through one operation


def _shared(call: OpCall, given: Mapping[int, Amount]) -> tuple[Shares, str]:
    """The shares of an operation's arguments: by its rule, by its parts, or by its gradient."""
    if not call.carriers:
        return {}, "constant"
    if call.name in ("copy", "copy_"):
        sources = call.carriers_named("src")
        return {
            p: given[0].like(call.leaves[p].value.shape) for p in sources
        }, "move" if sources else "constant"
    answer = ruled(call, given)
    if answer is not None:
        return answer
    shares = _by_parts(call, given)
    return (shares, "parts") if shares is not None else by_gradient(call, given)


def _parts_of(call: OpCall) -> Callable[..., Any] | None:
    """The operation as a function of plain operators, where it is known."""
    name = call.name
    if name == "mkldnn_rnn_layer":
        return lstm_layer
    if name in FUSED_ATTENTION:
        return lambda *args, **kwargs: attention_call(name, args, kwargs).output()
    if not isinstance(call.target, torch._ops.OpOverload):
        return None
    return torch._decomp.decomposition_table.get(call.target)


def _recorded(function: Callable[..., Any], inputs: Sequence[torch.Tensor]) -> HeldRun:
    """A run of a function, its inputs by their number."""
    capture = Capture(keep=True)
    capture.inputs = [(str(number), tensor) for number, tensor in enumerate(inputs)]
    capture.has_output = True
    with RngStates(), without_gradients(), capture:
        capture.output = function(*inputs)
    done = capture.finish()
    run = done.run
    return HeldRun(run.graph, run.metrics, run.limits, run.meta, output=capture.output, kept=done.kept)


def _by_parts(call: OpCall, given: Mapping[int, Amount]) -> Shares | None:
    """Through the operations that an operation is made of, recorded like any other run."""
    function = _parts_of(call)
    if function is None:
        return None
    positions = [p for p, leaf in enumerate(call.leaves) if isinstance(leaf.value, torch.Tensor)]
    carriers = [p for p in positions if call.leaves[p].carries]

    def parts(*tensors: torch.Tensor) -> Any:
        return call.run(dict(zip(carriers, tensors)), function)

    try:
        recorded = _recorded(parts, [call.leaves[p].value.detach().clone() for p in carriers])
    except (RuntimeError, NotImplementedError, TypeError, ValueError):
        # no decomposition for these arguments: the caller has another rule
        return None
    if all(plain_name(node.op) == call.name for node in recorded.graph.nodes):
        return None
    inner = GraphRelevance(recorded)
    results = recorded.output if isinstance(recorded.output, (tuple, list)) else [recorded.output]
    outputs = [value for _, value in zip(named_tensors(list(results)), inner.forward.outputs)]
    start = {outputs[index]: amount for index, amount in given.items() if index < len(outputs)}
    inner.run(start)
    shares = {}
    for number, position in enumerate(carriers):
        value = inner.inputs.get(str(number))
        amount = None if value is None else inner.at(value)
        if amount is not None:
            shares[position] = amount
    return shares


# ---------------------------------------------------------------- of a trace


class RelevanceReport(AttributedMaps):
    """How much each operation contributed to an output: ``maps`` by element of the inputs, ``rows`` by operation.

    ``columns`` has the figure of each operation, for ``t.with_metrics(report)`` and the page's heat map.
    """

    title = "Relevance"

    def __init__(
        self,
        run: HeldRun,
        *args: Any,
        kwargs: Mapping[str, Any] | None = None,
        target: Any = None,
        mode: str = "default",
        against: Any = None,
        output: int | str = 0,
        relevance: torch.Tensor | None = None,
        at: Any = None,
        tokens: Sequence[str] | None = None,
    ) -> None:
        self.flow = graph_relevance(
            run,
            args,
            kwargs,
            mode=mode,
            target=target,
            against=against,
            output=output,
            relevance=relevance,
            at=at,
        )
        """Every operation with what it was given, handed on and kept."""
        self.method = "relevance"
        self.mode = mode
        """``"default"`` or ``"contrastive"``."""
        self.goal = f"output {output}" if output else "output"
        self.maps = {name: tensor for name, tensor in self.flow.tensors.items() if torch.is_tensor(tensor)}
        self.names = list(self.maps)
        self.put_in = self.flow.put_in
        """What was put in at the output."""
        self.at_inputs = self.flow.at_inputs
        """What of it arrived at the inputs."""
        self.error = self.flow.error
        """How much is unaccounted for, as a share of what was put in."""
        self.rows = self.flow.rows
        """One row for each input and operation that was given anything."""
        self._size = len(run.graph)
        self._tokens = tokens
        forward = DifferentiableReplay(run, args, kwargs)
        self._inputs = {name: forward.input(name) for name in self.flow.inputs}

    def columns(self) -> list[Column]:
        """The relevance of each operation."""
        values, known = np.zeros(self._size), np.zeros(self._size, dtype=bool)
        for node, amount in self.flow.by_node.items():
            values[node], known[node] = amount, True
        return [Column("relevance", values, known=known)]

    @property
    def absorbed(self) -> dict[str, float]:
        """What stayed on the way, by operation: in constants that are joined, or where there is no rule."""
        return self.flow.absorbed

    def facts(self) -> Mapping[str, str]:
        """Where what was put in has arrived."""
        kept = sum(self.absorbed.values())
        return {
            "put in": f"{self.put_in:.6g} at the {self.goal}",
            "at the inputs": f"{self.at_inputs:.6g}",
            "absorbed": f"{kept:.6g}"
            + (f" at {', '.join(list(self.absorbed)[:4])}" if self.absorbed else ""),
            "unaccounted for": f"{self.error:.1e} of it",
        }

    def listings(self) -> Sequence[Listing]:
        """The largest at the inputs, and every operation."""
        number = "{:.5g}".format
        fields = [Field("name", "operation"), Field("relevance", "relevance", number)]
        if self.mode == "contrastive":
            fields.append(Field("net", "net", number))
        fields += [
            Field("absorbed", "absorbed", lambda item: number(item) if item else ""),
            Field("rule", "rule"),
        ]
        rows = [tuple(getattr(row, field.name) for field in fields) for row in self.rows]
        return [
            *super().listings(),
            Listing("operations", tuple(fields), rows, most=30, heading="Operations"),
        ]


def graph_relevance(
    run: HeldRun,
    args: tuple[Any, ...] = (),
    kwargs: Mapping[str, Any] | None = None,
    *,
    mode: str = "default",
    target: Any = None,
    against: Any = None,
    output: int | str = 0,
    relevance: torch.Tensor | None = None,
    multiplier: float = 1.0,
    at: Any = None,
) -> Relevance:
    """The relevance of every operation of a run for one of its outputs."""
    if mode not in MODES:
        raise no_match("mode", str(mode), MODES)
    flow = GraphRelevance(run, args, kwargs)
    tensors = flow.given.outputs
    if isinstance(output, str):
        wanted = named_output(flow.given.output, output)
        output = next(number for number, tensor in enumerate(tensors) if tensor is wanted)
    start = Start(tensors, output, target, against, relevance, multiplier)
    chosen = start.chosen()
    number = next(number for number, tensor in enumerate(tensors) if tensor is chosen)
    with without_gradients():
        amount = start.amount_at(chosen, contrastive=mode == "contrastive")
    graph = run.graph
    watch: dict[int, Any] = {}
    if at is not None:
        targets = flow.forward.planner.targets(at)
        watch = {int(graph.value_producer[t.values[0]]): t for t in targets}
        if -1 in watch:
            raise UsageError(f"{watch[-1].name!r} hands on what it was given: name what makes it")
    with without_gradients():
        watched = flow.run({flow.forward.outputs[number]: amount}, watch)
    total = amount.sum()
    rows = [NodeRelevance(name, "input", "", 0.0, 0.0, 0.0, "input") for name in flow.inputs]
    maps: dict[str, Any] = {}
    for index, (name, value) in enumerate(flow.inputs.items()):
        arrived = flow.at(value)
        if arrived is None and flow.carries[value]:
            maps[name] = torch.zeros_like(flow.forward.input(name), dtype=amount.total.dtype)
        elif arrived is not None:
            maps[name] = arrived.total if arrived.net is None else arrived.net
            rows[index] = rows[index]._replace(
                relevance=arrived.sum(), passed=arrived.sum(), net=arrived.net_sum()
            )
    owned = {int(graph.value_storage[value]) for value in flow.inputs.values()}
    for storage, cells in flow.cells.items():
        # what lies in memory from outside that is no input, a buffer that was written to in part
        if storage not in owned and abs(cells.sum()) > ROUNDING * flow.scale:
            names = [str(v.name) for v in graph.inputs if graph.value_storage[v.index] == storage and v.name]
            left, net = cells.sum(), cells.net_sum()
            name = names[0] if names else f"memory {storage}"
            rows.append(NodeRelevance(name, "constant", "", left, 0.0, left, "constant", net))
    rows += [flow.accounts[node] for node in sorted(flow.accounts)]
    rows.append(NodeRelevance("output", "output", "", total, total, 0.0, "start", amount.net_sum()))
    for node, kept in watched.items():
        maps[watch[node].name] = kept[0] if len(kept) == 1 else kept
    by_node = {node: row.relevance for node, row in flow.accounts.items()}
    return Relevance(rows, maps, list(flow.inputs), total, mode, by_node)
