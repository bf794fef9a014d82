"""The blocks of memory of a run: when each is alive, what it is for, who made it; and the peak of their sum."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from enum import IntEnum
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np

from torch_vis.errors import UsageError
from torch_vis.graph.call import Call, Slot, short_name
from torch_vis.graph.graph import Graph, Node, Value
from torch_vis.graph.metrics import Metrics
from torch_vis.graph.repeats import cache_blocks
from torch_vis.graph.schema import Flag, Kind, Phase, Role, Site, TensorType
from torch_vis.graph.types import Bools, Ints

COLUMNS = ("alloc_bytes", "free_bytes", "live_bytes")
LIFT = "aten::lift_fresh"
GIVEN = (Role.INPUT, Role.PARAMETER, Role.BUFFER)
# to zero a gradient is to be done with it
ZEROING = frozenset({"zero_", "_foreach_zero_"})
ENDING = ".grad"


class Peak(NamedTuple):
    """The most bytes that tensors held at once, and the operation during which they did."""

    node: int
    size_bytes: int


def peak_memory(metrics: Metrics) -> Peak | None:
    """When most was alive: what an operation leaves and what is freed right after it; None where it is not known.

    >>> import torch, torch_vis as tv
    >>> peak_memory(tv.trace(torch.nn.Linear(3, 2), torch.ones(1, 3)).metrics)
    Peak(node=1, size_bytes=52)
    """
    live, freed = metrics.get("live_bytes"), metrics.get("free_bytes")
    if live is None or freed is None or not len(live) or live.uncovered == len(live):
        return None
    during = np.where(live.known_rows, live.values + freed.values, -1)
    node = int(during.argmax())
    return Peak(node, int(during[node]))


def next_run(graph: Graph, metrics: Metrics, meta: Mapping[str, Any]) -> NextRun | None:
    """A training step from the second on, where the recorded one made the optimizer's state; else None.

    None also where the state has lists, which later steps may make longer (``growing_state``).

    >>> import torch, torch_vis as tv
    >>> t = tv.trace(torch.nn.Linear(3, 2), torch.ones(1, 3))
    >>> next_run(t.graph, t.metrics, t.meta) is None
    True
    """
    if not (graph.value_role == Role.OPTIMIZER_STATE).any() or any(name not in metrics for name in COLUMNS):
        return None
    if growing_state(graph):
        return None
    zeroed = meta.get("zeroed_at")
    nodes = [node for node in zeroed if type(node) is int] if isinstance(zeroed, (list, tuple)) else []
    return Lifetimes(graph, metrics).next_run(nodes)


def growing_state(graph: Graph) -> list[str]:
    """The lists that an optimizer keeps as its state, by name: later steps may add to them, as those of LBFGS do.

    >>> import torch, torch_vis as tv
    >>> model = torch.nn.Linear(3, 2, bias=False)
    >>> optimizer = torch.optim.LBFGS(model.parameters(), max_iter=3)
    >>> def loss():
    ...     optimizer.zero_grad()
    ...     total = model(torch.ones(1, 3)).square().sum()
    ...     total.backward()
    ...     return total
    >>> growing_state(tv.trace(lambda: optimizer.step(loss)).graph)[:2]
    ['LBFGS.weight.al', 'LBFGS.weight.old_dirs']
    """
    named = (graph.value_role == Role.OPTIMIZER_STATE) & (graph.value_name >= 0)
    names = (graph.names[number].rpartition(".") for number in graph.value_name[named].tolist())
    return sorted({name for name, _, last in names if last.isdigit()})


PLAIN_SUM = (Slot(0), Slot(1))


def is_plain_sum(call: Call) -> bool:
    """Whether a call adds two tensors and nothing more, as autograd does where gradients meet."""
    return call.op == "aten::add.Tensor" and call.args == PLAIN_SUM


class InPlaceSums(NamedTuple):
    """Blocks that are only made where somebody records, and for each the one that a plain run writes to."""

    made: Ints
    reused: Ints


def in_place_sums(graph: Graph) -> InPlaceSums:
    """Where autograd adds one gradient into another, unless somebody records: as two columns of blocks.

    >>> import torch, torch_vis as tv
    >>> t = tv.trace(lambda x: x.sin() + x.cos(), torch.ones(2, requires_grad=True), backward=True)
    >>> [len(column) for column in in_place_sums(t.graph)]
    [1, 1]
    """
    nodes = np.flatnonzero(graph.node_flags & Flag.IN_PLACE_SUM)
    operand = np.full(len(graph), -1, dtype=np.int64)
    first = (graph.in_slot == 0) & (graph.in_kind != Kind.SHAPE)
    operand[graph.in_node[first]] = graph.in_value[first]
    made, reused = graph.value_storage[graph.first_output[nodes]], graph.value_storage[operand[nodes]]
    return InPlaceSums(made.astype(np.int64), reused.astype(np.int64))


class Use(IntEnum):
    """What a block of memory is for, at any one time.

    ``SAVED`` was made by a forward operation and is read by a backward one later; ``ACTIVATION`` was made forward and
    is not. ``GRADIENT`` is a ``.grad`` at some time; whatever else backward or the optimizer make is ``TEMPORARY``.
    ``BUFFER`` is all that comes from outside and is neither parameter, gradient nor optimizer state: buffers, inputs,
    constants. ``CACHE`` is what a model that writes a text keeps from one token to the next.
    """

    PARAMETER = 0
    OPTIMIZER_STATE = 1
    BUFFER = 2
    GRADIENT = 3
    SAVED = 4
    ACTIVATION = 5
    TEMPORARY = 6
    CACHE = 7

    @property
    def words(self) -> str:
        """The use as a reader says it."""
        return WORDS[self]


WORDS = {
    Use.PARAMETER: "parameter",
    Use.OPTIMIZER_STATE: "optimizer state",
    Use.BUFFER: "buffer or input",
    Use.GRADIENT: "gradient",
    Use.SAVED: "saved for backward",
    Use.ACTIVATION: "activation",
    Use.TEMPORARY: "temporary",
    Use.CACHE: "KV cache",
}
# The same on the page and in every chart.
USE_COLORS = {
    Use.PARAMETER: "#8a94a3",
    Use.OPTIMIZER_STATE: "#9b6cc9",
    Use.BUFFER: "#c9b184",
    Use.GRADIENT: "#dd8a2c",
    Use.SAVED: "#2f86c8",
    Use.ACTIVATION: "#5f9e35",
    Use.TEMPORARY: "#cf3f49",
    Use.CACHE: "#12908e",
}
ROLES = {
    Use.PARAMETER: Role.PARAMETER,
    Use.OPTIMIZER_STATE: Role.OPTIMIZER_STATE,
    Use.BUFFER: Role.BUFFER,
}


class Tensor(NamedTuple):
    """One block of memory by the tensor that it is for: the parameter, the gradient, or what it was made as.

    ``born`` is the operation that made it, None for what came from outside; ``dies`` the operation before which it was
    freed, None for what outlived the run.
    """

    size_bytes: int
    name: str
    type: TensorType
    use: str
    path: str
    site: Site | None
    born: int | None
    dies: int | None
    storage: int


class MemoryByUse(NamedTuple):
    """What each block of memory is for, and how much there is of each use while each operation runs.

    The figures are those of ``Trace.memory()``, for views that draw them. A use is a number, an index into ``words``.

    >>> import torch, torch_vis as tv
    >>> t = tv.trace(torch.nn.Linear(3, 2), torch.ones(1, 3), backward=True)
    >>> memory = t.lifetimes.by_use
    >>> memory.words[memory.use[memory.alive(t.lifetimes.peak_node)[0]]], memory.live.max().item()
    ('parameter', 92)
    """

    words: tuple[str, ...]
    use: Ints
    """The use of each block."""
    value: Ints
    """The value that each block is named by: the parameter itself, what ``.grad`` is at last; -1 for none."""
    birth: Ints
    """The operation from which on each block is there; -1 for what was there before the run."""
    death: Ints
    """The operation before which each block is gone."""
    size_bytes: Ints
    """How large each block is."""
    reuses: Bools
    """Whether a block takes the place of one that the operation which makes it is the last to read."""
    during: Ints
    """The bytes of each use while each operation runs: a row for each use."""

    @property
    def live(self) -> Ints:
        """All bytes that are there while each operation runs."""
        live: Ints = self.during.sum(axis=0)
        return live

    def alive(self, node: int | None) -> Ints:
        """The blocks that are there while an operation runs, the largest first; for None, before the run."""
        at = -1 if node is None else node
        since = self.birth + self.reuses
        blocks = np.flatnonzero((since <= at) & (self.death > max(at, 0)) & (self.size_bytes > 0))
        return blocks[np.argsort(-self.size_bytes[blocks], kind="stable")]


class NextRun(NamedTuple):
    """A training step once the optimizer's state is there from the start, as it is from the second step on."""

    state_bytes: int
    """How much of the state the recorded step made."""
    peak_bytes: int
    """The most that tensors then hold at once."""
    node: int
    """The operation during which they do."""


class Lifetimes:
    """Every block of memory of a run, as columns: its size, use, birth and death.

    >>> import torch, torch_vis as tv
    >>> t = tv.trace(torch.nn.Linear(3, 2), torch.ones(1, 3), backward=True)
    >>> lifetimes = Lifetimes(t.graph, t.metrics)
    >>> [use.words for use in Use if (lifetimes.use == use).any()]
    ['parameter', 'buffer or input', 'gradient', 'saved for backward', 'activation', 'temporary']
    """

    def __init__(self, graph: Graph, metrics: Metrics) -> None:
        if any(name not in metrics for name in COLUMNS):
            raise UsageError(
                "this trace has no memory columns: it was recorded without memory, or saved without its metrics; "
                "record it again with tv.trace(model, x) or tv.record()"
            )
        self.graph = graph
        self.bytes = graph.storage_bytes
        self.birth = block_births(graph)
        self.death = graph.storage_death.astype(np.int64)
        self._columns = {name: metrics[name].values for name in COLUMNS}

    # ---------------------------------------------------------------- uses

    @cached_property
    def readers(self) -> tuple[Ints, Ints]:
        """Every read of a block by an operation, as two columns: the block and the operation."""
        graph = self.graph
        return graph.value_storage[graph.in_value].astype(np.int64), graph.in_node.astype(np.int64)

    @cached_property
    def use(self) -> Ints:
        """What each block is for, as numbers of ``Use``."""
        graph, birth = self.graph, self.birth
        phase = np.full(len(birth), -1, dtype=np.int64)
        allocated = birth >= 0
        phase[allocated] = graph.node_phase[birth[allocated]]
        recomputed = np.zeros(len(birth), dtype=bool)
        recomputed[allocated] = graph.node_flags[birth[allocated]] & Flag.RECOMPUTE != 0
        forward = (phase == Phase.FORWARD) | recomputed
        use = np.full(len(birth), Use.TEMPORARY, dtype=np.int64)
        use[~allocated] = Use.BUFFER
        use[forward] = Use.ACTIVATION
        block, node = self.readers
        backward = (graph.node_phase[node] == Phase.BACKWARD) & (node > birth[block])
        backward &= ~recomputed[block] | (graph.node_flags[node] & Flag.RECOMPUTE == 0)
        saved = np.zeros(len(birth), dtype=bool)
        saved[block[backward]] = True
        use[forward & saved] = Use.SAVED
        for role, meaning in ((Role.BUFFER, Use.BUFFER), (Role.OPTIMIZER_STATE, Use.OPTIMIZER_STATE)):
            use[self._holding(graph.value_role == role)] = meaning
        use[cache_blocks(graph)] = Use.CACHE
        kept = (graph.value_role == Role.GRADIENT) & (graph.value_name >= 0)
        kept[self._result_values("gradient")] = True
        use[self._holding(kept)] = Use.GRADIENT
        use[self._holding(graph.value_role == Role.PARAMETER)] = Use.PARAMETER
        return use

    def _holding(self, values: Ints) -> Bools:
        """Which blocks hold one of these values, given by numbers or as a mask."""
        result = np.zeros(len(self.birth), dtype=bool)
        result[self.graph.value_storage[values]] = True
        return result

    def _result_values(self, kind: str) -> Ints:
        """The values that the bytes of a kind of results come from."""
        graph = self.graph
        wanted = np.array([row.kind == kind for row in graph.results], dtype=bool)
        rows = np.repeat(wanted, np.diff(graph.result_start)) if len(wanted) else np.zeros(0, dtype=bool)
        values: Ints = graph.result_value[rows]
        return values

    # ---------------------------------------------------------------- bytes over time

    @cached_property
    def _flows(self) -> tuple[Ints, Ints, Ints]:
        """By use: bytes there at the start, allocated by each operation, and freed after each."""
        count, kinds = len(self.graph), len(Use)
        outside = (self.birth < 0) & (self.death > 0)
        first, last = self.bytes.copy(), self.bytes.copy()
        last[self.graph.resize_storage] = self.graph.resize_bytes
        first[self.graph.resize_storage[::-1]] = self.graph.resize_bytes[::-1]
        start = np.bincount(self.use[outside], weights=first[outside], minlength=kinds).astype(np.int64)
        allocated = self.birth >= 0
        result = self._sums(allocated, self.birth, first)
        freed = self._sums((self.death > 0) & (self.death <= count), self.death - 1, last)
        if count:
            self._add_resizes(start, result, freed)
            self._add_remaining(start, result, freed)
        return start, result, freed

    def _add_resizes(self, start: Ints, allocated: Ints, freed: Ints) -> None:
        """Add what blocks grew or shrank by, at the operations from which on they had the new size."""
        graph, count, sizes = self.graph, len(self.graph), dict[int, int]()
        columns = (graph.resize_storage, graph.resize_node, graph.resize_bytes)
        for block, node, size in zip(*(column.tolist() for column in columns)):
            grown = size - sizes.get(block, size)
            if grown > 0:
                allocated[self.use[block], min(node, count - 1)] += grown
            elif grown < 0 and node:
                freed[self.use[block], node - 1] -= grown
            elif grown < 0:
                start[self.use[block]] += grown
            sizes[block] = size

    def size_at(self, node: int | None) -> Ints:
        """How large each block is while an operation runs; for None, before the run."""
        graph, sizes = self.graph, self.bytes
        if len(graph.resize_node):
            sizes = sizes.copy()
            rows = graph.resize_node <= (0 if node is None else node)
            # the first row of a block is the size that it begins with
            sizes[graph.resize_storage[::-1]] = graph.resize_bytes[::-1]
            sizes[graph.resize_storage[rows]] = graph.resize_bytes[rows]
        return sizes

    def _sums(self, chosen: Bools, when: Ints, sizes: Ints) -> Ints:
        count, kinds = len(self.graph), len(Use)
        index = self.use[chosen] * count + when[chosen]
        return (
            np.bincount(index, weights=sizes[chosen], minlength=kinds * count)
            .astype(np.int64)
            .reshape(kinds, count)
        )

    def _add_remaining(self, start: Ints, allocated: Ints, freed: Ints) -> None:
        """Add what only the memory columns know, such as sums made in place, so that the uses add up to them."""
        extra = self._columns["alloc_bytes"] - allocated.sum(0)
        more = self._columns["free_bytes"] - freed.sum(0)
        for node in np.flatnonzero((extra != 0) | (more != 0)).tolist():
            use = self._use_written(node)
            allocated[use, node] += extra[node]
            freed[use, node] += more[node]
        # as arrays, whose sums of what no machine has go round where those of Python's numbers would not fit
        known = start.sum(keepdims=True) + allocated[:, :1].sum(0) - freed[:, :1].sum(0)
        start[Use.BUFFER : Use.BUFFER + 1] += self._columns["live_bytes"][:1] - known

    def _use_written(self, node: int) -> int:
        """The use of the largest block that an operation wrote to or made."""
        graph = self.graph
        first, stop = graph.output_span(node)
        blocks = graph.value_storage[graph.out_value[first:stop]]
        return int(self.use[blocks[np.argmax(self.bytes[blocks])]]) if len(blocks) else int(Use.TEMPORARY)

    @cached_property
    def after(self) -> Ints:
        """Bytes alive after each operation, when what it freed is gone: a row for each ``Use``.

        Their sum is the column ``live_bytes``.
        """
        start, allocated, freed = self._flows
        alive: Ints = start[:, None] + np.cumsum(allocated - freed, axis=1)
        return alive

    @cached_property
    def during(self) -> Ints:
        """Bytes alive while each operation runs, with what it makes and what is freed right after it, by ``Use``."""
        return self.after + self._flows[2]

    @cached_property
    def live(self) -> Ints:
        """All bytes alive while each operation runs."""
        live: Ints = self._columns["live_bytes"] + self._columns["free_bytes"]
        return live

    @cached_property
    def peak_node(self) -> int | None:
        """The operation during which most is alive; None for a run without operations."""
        return int(self.live.argmax()) if len(self.live) else None

    @property
    def peak_bytes(self) -> int:
        """The most bytes that are alive at once."""
        return int(self.live.max()) if len(self.live) else int(self._flows[0].sum())

    def next_run(self, zeroed: Iterable[int] = ()) -> NextRun | None:
        """The run as a second step would be, with the optimizer's state from the start; None where none was made.

        Gradients that outlive the run are there as well until they are set to None: before the run, or where the
        program does so in it (``zeroed``, the numbers of the operations before which it did).

        >>> import torch, torch_vis as tv
        >>> model = torch.nn.Linear(64, 64, bias=False)
        >>> optimizer = torch.optim.SGD(model.parameters(), momentum=0.9)
        >>> def step(x):
        ...     model(x).sum().backward()
        ...     optimizer.step()
        ...     optimizer.zero_grad()
        >>> tv.trace(step, torch.ones(512, 64)).lifetimes.next_run()
        NextRun(state_bytes=16384, peak_bytes=294916, node=2)
        """
        count = len(self.graph)
        kept = (self.birth >= 0) & (self.death > count)
        state = kept & (self.use == Use.OPTIMIZER_STATE)
        state_bytes = int(self.bytes[state].sum())
        if not state_bytes:
            return None
        until = np.where(state, self.birth, 0)
        zeroed_at = np.sort(np.array([0, *zeroed], dtype=np.int64))
        old = kept & (self.use == Use.GRADIENT)
        # each is zeroed by the last call before it is made anew
        until[old] = zeroed_at[np.searchsorted(zeroed_at, self.birth[old], side="right") - 1]
        change = np.zeros(count + 1, dtype=np.int64)
        is_held = until > 0
        change[0] = self.bytes[is_held].sum()
        np.subtract.at(change, until[is_held], self.bytes[is_held])
        live = self.live + np.cumsum(change[:count])
        node = int(live.argmax())
        return NextRun(state_bytes, int(live[node]), node)

    @cached_property
    def by_use(self) -> MemoryByUse:
        """What each block is for and how much there is of each use along the run, as plain columns."""
        words = tuple(use.words for use in Use)
        reuses = np.zeros(len(self.birth), dtype=bool)
        reuses[in_place_sums(self.graph).made] = True
        return MemoryByUse(
            words, self.use, self.value, self.birth, self.death, self.bytes, reuses, self.during
        )

    def alive(self, node: int | None) -> Ints:
        """The blocks that are alive while an operation runs, the largest first; for None, before the run."""
        blocks, sizes = self.by_use.alive(node), self.size_at(node)
        blocks = blocks[sizes[blocks] > 0]
        return blocks[np.argsort(-sizes[blocks], kind="stable")]

    # ---------------------------------------------------------------- names and owners

    @cached_property
    def first_value(self) -> Ints:
        """For each block the first value that lay in it, or the first of those with a name; -1 where there is none."""
        graph = self.graph
        result = np.full(len(self.birth), -1, dtype=np.int64)
        values = np.arange(len(graph.value_storage))[::-1]
        # the last write counts: the first value
        result[graph.value_storage[values]] = values
        named = values[graph.value_name[values] >= 0]
        result[graph.value_storage[named]] = named
        return result

    @cached_property
    def value(self) -> Ints:
        """For each block the value that names it, by its use; -1 without one.

        Of a gradient that is what ``.grad`` is at last: a bias's gradient is a sum that keeps its dimensions and a
        view of it. Of a parameter, a buffer or a state it is that itself, of all else the first value.
        """
        graph, result = self.graph, self.first_value.copy()
        for use, role in ROLES.items():
            values = np.flatnonzero(graph.value_role == role)[::-1]
            values = values[self.use[graph.value_storage[values]] == use]
            result[graph.value_storage[values]] = values
        kept = np.array([*gradients(graph).values(), *self._result_values("gradient")], dtype=np.int64)
        kept = kept[self.use[graph.value_storage[kept]] == Use.GRADIENT]
        result[graph.value_storage[kept]] = kept
        return result

    @cached_property
    def paths(self) -> list[str]:
        """The module that each block belongs to: where it was made, or whose parameter or buffer it is."""
        graph = self.graph
        scopes = graph.scope_paths
        scope_made_in = np.where(
            self.birth >= 0, graph.node_scope[np.maximum(self.birth, 0)] if len(graph) else 0, -1
        )
        result = [scopes[scope] if scope >= 0 else "" for scope in scope_made_in.tolist()]
        modules = {module.path for module in graph.modules if module.kind == "module"}
        outside = np.flatnonzero((self.birth < 0) | np.isin(self.use, (Use.GRADIENT, Use.OPTIMIZER_STATE)))
        for block in outside.tolist():
            name = self._name(block)
            owner = _owner(name, modules)
            if owner is not None:
                result[block] = owner
        return result

    def _name(self, block: int) -> str:
        value = int(self.value[block])
        number = -1 if value < 0 else int(self.graph.value_name[value])
        return self.graph.names[number] if number >= 0 else ""

    def sites(self, chosen: Ints) -> list[Site | None]:
        """The source lines that blocks are due to: of a gradient, that of what it is the gradient of."""
        births = self.birth[chosen].tolist()
        return [Node(self.graph, birth).user_line if birth >= 0 else None for birth in births]

    def tensors(self, chosen: Iterable[int], sizes: Ints | None = None) -> list[Tensor]:
        """Blocks as rows to read, as large as they were at their largest or as ``sizes`` says."""
        blocks = np.asarray(list(chosen), dtype=np.int64)
        sizes = self.bytes if sizes is None else sizes
        count, result = len(self.graph), []
        for block, site in zip(blocks.tolist(), self.sites(blocks)):
            number = int(self.value[block])
            if number < 0:
                continue
            value = Value(self.graph, number)
            birth, death = int(self.birth[block]), int(self.death[block])
            result.append(
                Tensor(
                    int(sizes[block]),
                    self._name(block) or f"%{number}",
                    value.type,
                    Use(self.use[block]).words,
                    self.paths[block],
                    site,
                    birth if birth >= 0 else None,
                    death if death <= count else None,
                    block,
                )
            )
        return result


def _owner(name: str, modules: set[str]) -> str | None:
    """The module that a named tensor belongs to: of ``AdamW.head.weight.exp_avg`` it is ``head``."""
    for text in (name, name.partition(".")[2]):
        parts = text.split(".")
        for end in range(len(parts) - 1, 0, -1):
            path = ".".join(parts[:end])
            if path in modules:
                return path
    return None


def block_births(graph: Graph) -> Ints:
    """For each block the operation from which on it takes up memory; -1 for what was there before the run.

    ``torch.tensor(...)`` fills a block that no operation makes and hands it to ``lift_fresh``. Its contents come from
    outside, and so says ``storage_birth``; its memory does not.

    >>> import torch, torch_vis as tv
    >>> graph = tv.trace(lambda x: x.relu() + torch.tensor([1.0, 2.0]), torch.ones(2)).graph
    >>> graph.storage_birth.tolist(), block_births(graph).tolist()
    ([-1, 0, -1, 2], [-1, 0, 1, 2])
    """
    birth = graph.storage_birth.astype(np.int64)
    lifts = np.array([call.op.partition(".")[0] == LIFT for call in graph.calls], dtype=bool)
    if not lifts.any():
        return birth
    first = np.full(len(birth), -1, dtype=np.int64)
    # the last write counts: the first reader
    backwards = slice(None, None, -1)
    first[graph.value_storage[graph.in_value[backwards]]] = graph.in_node[backwards]
    given = np.zeros(len(birth), dtype=bool)
    given[graph.value_storage[np.isin(graph.value_role, GIVEN)]] = True
    block = np.flatnonzero((birth < 0) & (first >= 0) & ~given)
    block = block[lifts[graph.node_call[first[block]]]]
    birth[block] = first[block]
    return birth


def gradients(graph: Graph) -> dict[str, int]:
    """For each leaf that was given a gradient, by name, the value that its ``.grad`` was last, before it was freed.

    >>> import torch, torch_vis as tv
    >>> model = torch.nn.Linear(3, 1)
    >>> def step():
    ...     model(torch.ones(2, 3)).sum().backward()
    ...     model.zero_grad()
    >>> graph = tv.trace(step).graph
    >>> {name: graph.values[value].shape for name, value in gradients(graph).items()}
    {'weight': (1, 3), 'bias': (1,)}
    """
    zeroing = np.array([short_name(call.op) in ZEROING for call in graph.calls], dtype=bool)
    shapes = _leaf_shapes(graph)
    last: dict[str, int] = {}
    for value in np.flatnonzero((graph.value_role == Role.GRADIENT) & (graph.value_name >= 0)).tolist():
        name, _, part = graph.names[int(graph.value_name[value])].rpartition(ENDING)
        producer = int(graph.value_producer[value])
        if part or (producer >= 0 and zeroing[graph.node_call[producer]]):
            continue
        # a gradient's memory has other views too: a bias's is made as a sum that keeps its dimensions
        shape = graph.types[graph.value_type[value]].shape
        if shapes.get(name, shape) == shape or name not in last:
            last[name] = value
    for result in graph.outcomes:
        if result.kind == "gradient" and result.name.endswith(ENDING):
            value = result.value.index
            producer = int(graph.value_producer[value])
            if producer < 0 or not zeroing[graph.node_call[producer]]:
                last[result.name.removesuffix(ENDING)] = value
    return last


def _leaf_shapes(graph: Graph) -> dict[str, tuple[int, ...]]:
    outside = (graph.value_producer < 0) & (graph.value_name >= 0) & (graph.value_role != Role.GRADIENT)
    return {
        graph.names[int(graph.value_name[value])]: graph.types[graph.value_type[value]].shape
        for value in np.flatnonzero(outside).tolist()
    }
