"""What each operation does in a training step: forward, a backward of which forward, recomputed, or the optimizer's.

Backward computes without recording gradients, and what was checkpointed is computed again with it, by the same lines as
the first time. So nothing has to be noted for it while the program runs.

A closure runs a forward and a backward inside ``optimizer.step()``, which are no work of the optimizer's: LBFGS calls
its closure several times in a step, and Lightning runs every training step as one. The optimizer computes without
recording gradients and its closure with it, so that tells the two apart.

Clipping, unscaling or an update by hand, on the other hand, belong with the optimizer and not with forward. Such
operations run outside of every module, nothing differentiates them, and they read a gradient, or what others of them
made of it, and besides that nothing but state and what is made of it. What also reads an input or an activation, as a
saliency or an attack on the input does, computes something new, unless it writes to a gradient.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections import Counter, defaultdict
from typing import NamedTuple

import numpy as np

from torch_vis.capture.assembling.log import OpInputs, OpRows, ScopeRows, read_scopes
from torch_vis.capture.recording.recorder import ACCUMULATE, FORWARD, SEED, CallInfo, Recorder
from torch_vis.graph.tree import Tree
from torch_vis.graph.types import Bools, Ints

# how many nodes one write to a view makes, at the most
LATE_NODES = 4
# how many levels of differentiation there are beneath another, at the most
LEVELS = 3
# forward operations by source line and operator, and by source line and ""
NodesByLine = dict[tuple[int, str], list[int]]


# ---------------------------------------------------------------- backward


def forward_of(rows: OpRows, calls: list[CallInfo], inputs: OpInputs, producers: Ints) -> Ints:
    """For each operation the forward operation that it differentiates, -1 for none; ``producers`` are by value.

    An operation that adds to a ``.grad`` has no number of its own and belongs to whatever made the gradient.
    """
    count = len(rows.call)
    links = np.full(count, -1, dtype=np.int64)
    backward = np.flatnonzero(rows.backward >= 0)
    if len(backward):
        owners = _owners(rows, calls, backward)
        links[backward] = np.where(owners < backward, owners, -1)
    start = np.searchsorted(inputs.node, np.arange(count + 1))
    for node in np.flatnonzero(rows.backward == ACCUMULATE).tolist():
        for row in range(int(start[node + 1]) - 1, int(start[node]) - 1, -1):
            producer = int(producers[inputs.value[row]])
            if producer >= 0 and links[producer] >= 0:
                links[node] = links[producer]
                break
    return links


def _owners(rows: OpRows, calls: list[CallInfo], backward: Ints) -> Ints:
    """The operation that made each backward node: the first to see the sequence number after the node's.

    Sequence numbers belong to the thread that made the node. A CPU backward runs on that thread, a CUDA backward on
    the engine's, which makes no nodes of its own unless a graph of the backward is asked for.
    """
    is_clone = np.array([info.plan.name == "aten::clone" for info in calls])[rows.call]
    is_write = np.array([bool(info.writes) for info in calls])[rows.call]
    links = np.full(len(backward), -1, dtype=np.int64)
    next_ = np.full(len(backward), -1, dtype=np.int64)
    wanted = rows.backward[backward] + 1
    for thread in dict.fromkeys(rows.thread.tolist()):
        own = np.flatnonzero(rows.thread == thread)
        # a thread's sequence numbers only grow
        index = np.searchsorted(rows.sequence[own], wanted)
        owner = own[np.minimum(index, len(own) - 1)]
        exact = (index < len(own)) & (rows.sequence[owner] == wanted)
        # an in-place activation makes its node, then a copy of its input, which makes one as well, then it writes
        after = own[np.minimum(index + 1, len(own) - 1)]
        copied = ~exact & (index + 1 < len(own)) & is_clone[owner] & is_write[after]
        copied &= (rows.sequence[owner] == wanted + 1) & (rows.sequence[after] == wanted + 1)
        owner = np.where(copied, after, owner)
        exact |= copied
        # a write to a view makes its nodes when it is done, and no later operation sees their numbers first
        before = own[np.maximum(index - 1, 0)]
        late = ~exact & (index > 0) & is_write[before] & (rows.sequence[before] >= wanted - LATE_NODES)
        mine = rows.thread[backward] == thread
        open_ = (links < 0) | mine
        links = np.where(open_ & exact, owner, np.where(open_ & late & (links < 0), before, links))
        skipped = ~exact & ~late & (index < len(own)) & (rows.sequence[owner] <= wanted + LEVELS)
        next_ = np.where(skipped & mine, owner, next_)
    # inside a transform an operation makes a node for each level that differentiates, and runs after the last of them:
    # it is the next one that is seen, unless that has backward operations of its own
    taken = np.zeros(len(rows.call), dtype=bool)
    taken[links[links >= 0]] = True
    return np.where((links < 0) & (next_ >= 0) & ~taken[next_], next_, links)


def engine_sites(rows: OpRows, calls: list[CallInfo]) -> Ints:
    """The source lines, by number, of operations that autograd runs: the lines that ask for a backward pass.

    What a function or a hook of the user's runs has a line inside of it. -1 is no line: a thread of autograd's own.
    """
    derived = np.array([info.call.op.partition(".")[0].endswith("_backward") for info in calls] or [False])
    own = (rows.backward == SEED) | (rows.backward == ACCUMULATE) | derived[rows.call]
    if not own.any():
        own = rows.backward != FORWARD
    return np.union1d(rows.site[own], [-1])


# ---------------------------------------------------------------- recomputed outside of the calls of modules


class RecomputedOps(NamedTuple):
    """Along the operations: which were recomputed, and which of forward they were the first time (-1: unknown)."""

    mask: Bools
    first: Ints


def find_recomputed(rows: OpRows, calls: list[CallInfo], links: Ints) -> RecomputedOps:
    """What was recomputed of functions; ``links`` are to the operations whose gradient needed it."""
    count = len(rows.call)
    result = RecomputedOps(np.zeros(count, dtype=bool), np.full(count, -1, dtype=np.int64))
    likely = (rows.backward >= 0) & (rows.grad_mode == 1) & (rows.site >= 0)
    if not likely.any():
        return result
    names = [info.call.op for info in calls]
    engine = engine_sites(rows, calls)
    # where all of backward is called from, what runs is backward, also if a graph of it is asked for
    lines = np.setdiff1d(rows.site[rows.backward >= 0], engine)
    by_line: NodesByLine = defaultdict(list)
    for node in np.flatnonzero((rows.backward == FORWARD) & np.isin(rows.site, lines)).tolist():
        site = int(rows.site[node])
        by_line[site, names[rows.call[node]]].append(node)
        by_line[site, ""].append(node)
    for nodes in _backward_nodes(rows, likely):
        _BackwardNode(rows, names, by_line, nodes).mark(int(links[nodes[0]]), result)
    return result


def _backward_nodes(rows: OpRows, likely: Bools) -> list[list[int]]:
    """The operations of each backward node that may have recomputed something, in order."""
    order = np.lexsort((np.arange(len(rows.call)), rows.thread))
    order = order[rows.backward[order] >= 0]
    ends = np.flatnonzero((np.diff(rows.backward[order]) != 0) | (np.diff(rows.thread[order]) != 0)) + 1
    return [nodes.tolist() for nodes in np.split(order, ends) if likely[nodes].any()]


class _BackwardNode:
    """The operations of one backward node: those that it had recomputed, then its own."""

    def __init__(self, rows: OpRows, names: list[str], by_line: NodesByLine, nodes: list[int]) -> None:
        self.rows, self.names, self.by_line, self.nodes = rows, names, by_line, nodes
        self.sites: list[int] = rows.site[nodes].tolist()

    def mark(self, link: int, result: RecomputedOps) -> None:
        """Mark the part that was recomputed, with the operation that each of it was the first time.

        ``link`` is the forward operation that the node differentiates.
        """
        sure = [index for index, node in enumerate(self.nodes) if self._is_sure(node)]
        if not sure:
            return
        begin, end = sure[0], sure[-1] + 1
        while begin and self._is_forward(begin - 1):
            begin -= 1
        while end < len(self.nodes) and self._is_forward(end):
            end += 1
        # it may have been recomputed itself
        if link >= 0 and result.first[link] >= 0:
            link = int(result.first[link])
        keys = [self._key(index) for index in range(begin, end)]
        times, seen = Counter(keys), Counter[tuple[int, str]]()
        first = -1
        for node, key in zip(self.nodes[begin:end], keys):
            same = self.by_line.get(key)
            if same:
                first = same[min(self._begin(same, link, times[key]) + seen[key], len(same) - 1)]
            seen[key] += 1
            result.mask[node], result.first[node] = True, first

    def _key(self, index: int) -> tuple[int, str]:
        """By what an operation is searched: its line and its operator, or its line alone."""
        key = self.sites[index], self.names[self.rows.call[self.nodes[index]]]
        return key if key in self.by_line else (self.sites[index], "")

    def _is_sure(self, node: int) -> bool:
        """Whether gradients were recorded, and the same line ran the same operator in forward."""
        key = int(self.rows.site[node]), self.names[self.rows.call[node]]
        return bool(self.rows.grad_mode[node] == 1) and key in self.by_line

    def _is_forward(self, index: int) -> bool:
        """Whether the line ran in forward: beside another operation, or in a function without gradients."""
        return (self.sites[index], "") in self.by_line

    def _begin(self, same: list[int], link: int, times: int) -> int:
        """Of the operations of one line, the first of so many that ran together with the linked one.

        Those are the last that ran before it, or where it ran without recording gradients, the first after it.
        """
        if link >= 0 and self.rows.grad_mode[link] != 1:
            return bisect_left(same, link)
        return max((bisect_right(same, link) if link >= 0 else len(same)) - times, 0)


# ---------------------------------------------------------------- the optimizer


class GradientReads(NamedTuple):
    """What operations read, in order: where each one's reads begin, what made the value, whether it is a gradient, and
    whether it is state."""

    start: Ints
    producer: Ints
    gradient: Bools
    state: Bools


def lift_closures(rec: Recorder, rows: OpRows) -> tuple[Ints, Bools]:
    """Take closures out of their optimizer: the scope of each operation, and which are the optimizer's own.

    Calls of modules come to stand beside the optimizer's step and not in it, and their time is taken off its own.
    """
    scopes = read_scopes(rec)
    optimizer = _optimizers(rec, scopes)
    around = optimizer[rows.scope]
    own = around >= 0
    if not own.any():
        return rows.scope, own
    differentiable = np.array([_records_gradients(rec, module) for module in scopes.module.tolist()])
    closure = own & ((rows.backward != FORWARD) | ((rows.grad_mode == 1) & ~differentiable[around]))
    lifted = rows.scope.copy()
    direct = closure & (rows.scope == around)
    lifted[direct] = scopes.parent[around[direct]]
    time_ns = (rows.stop - rows.start)[direct]
    spent = np.bincount(around[direct], weights=time_ns, minlength=len(optimizer)).astype(np.int64)
    # scopes of functions in which only operations of a closure ran
    of_closure = np.zeros(len(optimizer), dtype=bool)
    of_closure[rows.scope[closure]] = True
    of_closure[rows.scope[own & ~closure]] = False
    _move_scopes(rec, scopes, optimizer, of_closure, spent)
    return lifted, own & ~closure


def _optimizers(rec: Recorder, scopes: ScopeRows) -> Ints:
    """For each scope the optimizer's step that it is in, -1 for none; a call of a module inside is not in it."""
    kind = np.array([row.kind for row in rec.modules])[scopes.module]
    nearest = Tree(scopes.parent).nearest(np.isin(kind, ["optimizer", "module", "compiled"]))
    return np.where((nearest >= 0) & (kind[nearest] == "optimizer"), nearest, -1)


def _records_gradients(rec: Recorder, module: int) -> bool:
    owner, _, _, kind = rec.modules[module]
    return kind == "optimizer" and bool(getattr(owner, "defaults", {}).get("differentiable"))


def _move_scopes(rec: Recorder, scopes: ScopeRows, optimizer: Ints, of_closure: Bools, spent: Ints) -> None:
    """Let calls inside a closure have the step's parent; ``spent`` is time that was not the optimizer's."""
    kinds = [row.kind for row in rec.modules]
    for scope, (module, parent, start, stop, overhead, in_backward) in enumerate(
        np.stack(scopes, 1).tolist()
    ):
        if parent < 0 or optimizer[parent] != parent or kinds[module] == "optimizer":
            continue
        if kinds[module] in ("module", "compiled") or of_closure[scope]:
            outer = int(scopes.parent[parent])
            rec.scopes[scope] = (module, outer, start, stop, overhead, in_backward)
            spent[parent] += max(0, stop - start - overhead) if stop else 0
    for scope in np.flatnonzero(spent).tolist():
        module, parent, start, stop, overhead, in_backward = rec.scopes[scope]
        rec.scopes[scope] = (module, parent, start, stop, overhead + int(spent[scope]), in_backward)


def work_on_gradients(possible: Bools, writes: Bools, reads: GradientReads) -> Ints:
    """Which of the possible operations work on gradients; ``writes`` are those that write to one.

    >>> reads = GradientReads(np.array([0, 1, 3, 5]), np.array([-1, 0, -1, 1, 1]), np.array([1, 0, 0, 0, 0]) > 0,
    ...                       np.array([0, 0, 1, 0, 0]) > 0)
    >>> work_on_gradients(np.ones(3, dtype=bool), np.zeros(3, dtype=bool), reads).tolist()
    [0, 1, 2]
    """
    count = len(possible)
    reader = np.repeat(np.arange(count), np.diff(reads.start))
    if not (possible[reader] & reads.gradient).any():
        return np.zeros(0, dtype=np.int64)
    # on gradients, and on nothing but state; the last of each is for values that nothing made
    of_gradients, of_state = bytearray(count + 1), bytearray(count + 1)
    edges, producers = reads.start.tolist(), reads.producer.tolist()
    gradient, state, may, into = (
        column.tolist() for column in (reads.gradient, reads.state, possible, writes)
    )
    for node in range(count):
        rows = range(edges[node], edges[node + 1])
        of_state[node] = all(state[row] or of_state[producers[row]] for row in rows)
        if may[node] and any(
            gradient[row] or (not state[row] and of_gradients[producers[row]]) for row in rows
        ):
            of_gradients[node] = into[node] or all(
                gradient[row] or state[row] or of_gradients[producers[row]] or of_state[producers[row]]
                for row in rows
            )
    return np.flatnonzero(np.frombuffer(of_gradients, dtype=np.uint8)[:-1])
