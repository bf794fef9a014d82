"""What activation checkpointing of each module call would save, and what it would cost.

A checkpointed call forgets what its operations saved for backward and computes it again when backward reaches the
call. A block is forgotten if the call made it and only backward operations of the call read it; what other calls'
backward reads stays, and so does what the program itself still holds, and if the call needs it too, it is there twice
once it is computed again. What the call was given is kept until its backward is done. Computing again stops as torch
stops: when the last tensor that backward needs is there. Each call is looked at on its own; ``with_checkpoints`` takes
several together and gives the whole new timeline.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from fnmatch import fnmatchcase
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np

from torch_vis.errors import UsageError, no_match
from torch_vis.graph.graph import Graph
from torch_vis.graph.lifetimes import Lifetimes, Use, is_plain_sum
from torch_vis.graph.metrics import Metrics
from torch_vis.graph.query.selector import Selector
from torch_vis.graph.schema import Flag, Phase, Role
from torch_vis.graph.types import Bools, Floats, Ints


class Checkpoint(NamedTuple):
    """One call of a module, as if it were checkpointed.

    ``saved_bytes`` is what it no longer holds between its forward and its backward, less what it then has to hold of
    its inputs. ``new_peak_bytes`` is the peak of the run then, while it computes again included, and ``peak_bytes`` how
    much lower that is than the peak is now; it is negative where computing again takes the run above it.
    ``extra_flops`` and ``extra_time_ns`` are those of the operations that are computed again, as they were recorded (an
    operation's first run may be slow; medians of a trace with ``repeat`` are not); None where they are not known.
    """

    path: str
    type: str
    call: int
    saved_bytes: int
    peak_bytes: int
    new_peak_bytes: int
    extra_flops: int | None
    extra_time_ns: int | None
    scope: int


class Recomputed(NamedTuple):
    """The memory of a run with some calls checkpointed: the peak, and whether it is reached while recomputing.

    ``scopes`` are those of the calls that are computed again.
    """

    peak_bytes: int
    recomputing: bool
    live: Ints
    scopes: Ints


class Checkpointing:
    """What checkpointing would do to a run.

    >>> import torch, torch_vis as tv
    >>> model = torch.nn.Sequential(*[torch.nn.Sequential(torch.nn.Linear(8, 8), torch.nn.Sigmoid()) for _ in range(3)])
    >>> t = tv.trace(model, torch.ones(4, 8), backward=True)
    >>> [(row.path, row.saved_bytes) for row in t.memory().checkpoints if row.path == ""]
    [('', 256)]
    """

    def __init__(self, graph: Graph, metrics: Metrics, blocks: Lifetimes) -> None:
        self.graph, self.metrics, self.blocks = graph, metrics, blocks
        self.tree = graph.tree
        self.forward = np.flatnonzero(graph.node_phase == Phase.FORWARD)
        self.steps = Steps(graph, blocks)

    # ---------------------------------------------------------------- call by call

    def rows(self) -> list[Checkpoint]:
        """Every call of a module that saves something for backward, what leaves the lowest peak first."""
        graph = self.graph
        if not len(self.steps.backward):
            return []
        saved = self._savings()
        named = np.array([module.kind == "module" for module in graph.modules], dtype=bool)
        chosen = np.flatnonzero((saved > 0) & named[graph.scope_module])
        peaks = peaks_alone(self, chosen).tolist()
        flops, times = self.extra("flops"), self.extra("time_ns")
        result = []
        for scope, peak in zip(chosen.tolist(), peaks, strict=True):
            module = graph.modules[int(graph.scope_module[scope])]
            result.append(
                Checkpoint(
                    module.path,
                    module.type,
                    int(graph.scope_call[scope]),
                    int(saved[scope]),
                    self.blocks.peak_bytes - peak,
                    peak,
                    None if flops is None else flops[scope],
                    None if times is None else times[scope],
                    scope,
                )
            )
        return sorted(result, key=lambda row: (row.new_peak_bytes, -row.saved_bytes, row.scope))

    def _savings(self) -> Ints:
        """For every scope, bytes that it would no longer hold."""
        top = self.forgettable
        chosen = np.flatnonzero(top >= 0)
        saved = np.bincount(top[chosen], weights=self.blocks.bytes[chosen], minlength=len(self.tree))
        return self.tree.inclusive((saved - self._kept_inputs()).astype(np.int64))

    @cached_property
    def forgettable(self) -> Ints:
        """For every block the innermost scope whose checkpointing would forget it; -1 for a block that has to stay."""
        graph, blocks = self.graph, self.blocks
        result = np.full(len(blocks.birth), -1, dtype=np.int64)
        block, node, *_ = self.steps.kept
        low = np.full(len(blocks.birth), len(self.tree), dtype=np.int64)
        high = result.copy()
        own = graph.node_scope[blocks.birth[block]].astype(np.int64)
        low[block], high[block] = own, own
        scope = graph.node_scope[node].astype(np.int64)
        np.minimum.at(low, block, scope)
        np.maximum.at(high, block, scope)
        needed = np.unique(block)
        needed = needed[~self.steps.held[needed]]
        # scopes are numbered as they are entered: what contains the first and the last contains those between
        result[needed] = self.tree.common(low[needed], high[needed])
        return result

    def _kept_inputs(self) -> Floats:
        """Bytes that each scope has to hold on to although nothing saved them, to be summed over the scopes inside.

        A scope that reads a block from outside counts it once, however many of its operations read it.
        """
        graph, blocks = self.graph, self.blocks
        count = len(self.tree)
        block, node = blocks.readers
        chosen = (blocks.use[block] == Use.ACTIVATION) & (graph.node_phase[node] == Phase.FORWARD)
        chosen &= (blocks.birth[block] >= 0) & (blocks.death[block] <= len(graph))
        pairs = np.unique(np.stack([block[chosen], graph.node_scope[node[chosen]].astype(np.int64)]), axis=1)
        total = np.zeros(count)
        if not pairs.shape[1]:
            return total
        block, scope = pairs
        size = blocks.bytes[block].astype(np.float64)
        own = graph.node_scope[blocks.birth[block]].astype(np.int64)
        np.add.at(total, scope, size)
        same = np.flatnonzero(block[1:] == block[:-1])
        np.add.at(total, self.tree.common(scope[:-1][same], scope[1:][same]), -size[same])
        shared = self.tree.common(own, scope)  # from here outwards it is not from outside
        order = np.lexsort((-self.tree.depth[shared], block))
        first = order[np.append(True, block[order][1:] != block[order][:-1])]
        np.add.at(total, shared[first], -size[first])
        return total

    def extra(self, name: str) -> list[int | None] | None:
        """A column summed over what each scope, with those inside, recomputes; None where a part is unknown."""
        if name not in self.metrics:
            return None
        column, count = self.metrics[name], len(self.graph)
        values, unknown = np.zeros(count + 1, dtype=np.int64), np.zeros(count + 1, dtype=np.int64)
        values[self.forward + 1] = column.values[self.forward]
        if column.known is not None:
            unknown[self.forward + 1] = ~column.known[self.forward]
            values[unknown > 0] = 0
        values, unknown = np.cumsum(values), np.cumsum(unknown)
        first, stop = self.runs
        low, high = np.minimum(first, count), np.maximum(stop, np.minimum(first, count))
        missing = (unknown[high] - unknown[low]) > 0
        return [
            None if gap else amount
            for amount, gap in zip((values[high] - values[low]).tolist(), missing.tolist())
        ]

    # ---------------------------------------------------------------- when

    @cached_property
    def recomputed_at(self) -> Ints:
        """For every scope the operation before which it would be recomputed.

        That is the first step of its backward that takes out anything it saved; the number of operations for none.
        """
        result = np.full(len(self.tree), len(self.graph), dtype=np.int64)
        node = np.flatnonzero(self.steps.saves)
        np.minimum.at(result, self.graph.node_scope[node], self.steps.start[node])
        return self.tree.inclusive(result, np.minimum)

    @cached_property
    def ends(self) -> Ints:
        """For every scope the operation before which its backward frees what a checkpoint of it holds.

        That is when the last step of autograd that saved something is over.
        """
        result = np.zeros(len(self.tree), dtype=np.int64)
        node = np.flatnonzero(self.steps.saves)
        np.maximum.at(result, self.graph.node_scope[node], self.steps.release[node])
        return self.tree.inclusive(result, np.maximum)

    @cached_property
    def runs(self) -> tuple[Ints, Ints]:
        """For every scope its first forward operation, and the one before which its recomputation stops."""
        graph = self.graph
        count, nodes = len(self.tree), len(graph)
        first, last = np.full(count, nodes, dtype=np.int64), np.zeros(count, dtype=np.int64)
        np.minimum.at(first, graph.node_scope[self.forward], self.forward)
        np.maximum.at(last, graph.node_scope[self.forward], self.steps.stop[self.forward])
        return self.tree.inclusive(first, np.minimum), self.tree.inclusive(last, np.maximum)

    @cached_property
    def last_needed(self) -> Ints:
        """For every block the last operation of forward that needs it.

        That is one that makes it, reads it or saves it, or the last of a call that was given it: whoever calls a
        module holds what he gives it until it returns.
        """
        graph, blocks = self.graph, self.blocks
        result = blocks.birth.copy()
        np.maximum.at(result, self.steps.saved.block, self.steps.saved.link)
        block, node = blocks.readers
        forward = (graph.node_phase[node] == Phase.FORWARD) & (blocks.birth[block] >= 0)
        block, node = block[forward], node[forward]
        np.maximum.at(result, block, node)
        pairs = np.unique(np.stack([block, graph.node_scope[node].astype(np.int64)]), axis=1)
        block, scope = pairs
        own = self.tree.depth[self.tree.common(graph.node_scope[blocks.birth[block]].astype(np.int64), scope)]
        block, scope, own = (column[self.tree.depth[scope] > own] for column in (block, scope, own))
        while len(block):
            given = self.tree.depth[scope] == own + 1
            np.maximum.at(result, block[given], self._last[scope[given]])
            block, scope, own = block[~given], self.tree.parent[scope[~given]], own[~given]
        self._until_autocast_is_left(result)
        return result

    def _until_autocast_is_left(self, needed: Ints) -> None:
        """Let casts of parameters live until autocast is left, which caches them.

        When that is, those say that nobody saved.
        """
        graph, blocks = self.graph, self.blocks
        casts = np.array([call.op == "aten::_to_copy" for call in graph.calls], dtype=bool)
        of = graph.value_role[graph.in_value] == Role.PARAMETER
        of &= (graph.node_phase[graph.in_node] == Phase.FORWARD) & casts[graph.node_call[graph.in_node]]
        value = graph.first_output[graph.in_node[of]]
        block = np.unique(graph.value_storage[value[value >= 0]])
        block = block[blocks.birth[block] >= 0]
        saved = blocks.use[block] == Use.SAVED
        left = np.unique(blocks.death[block[~saved & (blocks.death[block] > needed[block] + 1)]])
        block = block[saved]
        index = np.searchsorted(left, needed[block], side="right")
        block, index = block[index < len(left)], index[index < len(left)]
        needed[block] = left[index] - 1

    @cached_property
    def _last(self) -> Ints:
        """For every scope its last forward operation, those of the scopes inside included."""
        result = np.full(len(self.tree), -1, dtype=np.int64)
        np.maximum.at(result, self.graph.node_scope[self.forward], self.forward)
        return self.tree.inclusive(result, np.maximum)

    @cached_property
    def made_at(self) -> Ints:
        """For every operation the bytes that it makes."""
        birth, size = self.blocks.birth, self.blocks.bytes
        result = np.bincount(birth[birth >= 0], weights=size[birth >= 0], minlength=len(self.graph))
        return result.astype(np.int64)

    # ---------------------------------------------------------------- several together

    def with_checkpoints(self, paths: Sequence[Any]) -> Recomputed:
        """The memory of the run if every call of these modules (paths, patterns, selectors) were checkpointed.

        The timeline is that of the recorded operations; the operations that are computed again come in between, before
        the first backward operation of their call that needs what was forgotten.
        """
        scopes = self._outermost(paths)
        live, while_recomputing, used = together(self, scopes)
        peak = int(live.max()) if len(live) else self.blocks.peak_bytes
        return Recomputed(max(peak, while_recomputing), while_recomputing > peak, live, used)

    def _outermost(self, paths: Sequence[Any]) -> Ints:
        """The scopes of all calls of some modules; of calls inside one another, the outermost."""
        graph = self.graph
        kinds = [graph.modules[module].kind for module in graph.scope_module.tolist()]
        known = {path for path, kind in zip(graph.scope_paths, kinds) if kind == "module"}
        wanted: set[str] = set()
        for pattern in paths:
            result = _matching(pattern, known) if isinstance(pattern, str) else set()
            if not result and isinstance(pattern, str) and not any(letter in pattern for letter in ":&|~/( "):
                raise no_match("module", pattern, known)
            wanted |= result or {graph.scope_paths[scope] for scope in graph.query().calls(pattern)}
        if not len(self.steps.backward):
            raise UsageError(
                "this trace has no backward pass, so nothing is saved for one: trace with backward=True"
            )
        inside = [False] * len(self.tree)
        scopes: list[int] = []
        for scope, above in enumerate(self.tree.parent.tolist()):
            inside[scope] = above >= 0 and inside[above]
            if not inside[scope] and kinds[scope] == "module" and graph.scope_paths[scope] in wanted:
                inside[scope] = True
                scopes.append(scope)
        return np.array(scopes, dtype=np.int64)


def paths_of(item: Any) -> list[Any]:
    """One selector of modules or several, as a list."""
    paths = [item] if isinstance(item, str) or not isinstance(item, Iterable) else list(item)
    if not paths:
        raise UsageError('name one module or more by their paths or patterns, "encoder.layer.*" say')
    wrong = [path for path in paths if not isinstance(path, (str, Selector)) and not callable(path)]
    if wrong:
        raise UsageError(
            f'name modules by their paths or patterns, "encoder.layer.*" say, not by {wrong[0]!r}'
        )
    return paths


def _matching(pattern: str, known: Collection[str]) -> set[str]:
    """The paths that a pattern means: whole ones, or else as the model names them that a step calls.

    >>> sorted(_matching("layer.*", {"bert", "bert.layer.0", "bert.layer.1", "bert.head.layer.0"}))
    ['bert.layer.0', 'bert.layer.1']
    """
    result = {path for path in known if fnmatchcase(path, pattern) or path == pattern}
    if result:
        return result
    for path in known:
        parts = path.split(".")
        around = next((cut for cut in range(1, len(parts)) if ".".join(parts[:cut]) in known), len(parts))
        rest = ".".join(parts[around:])
        if rest and (fnmatchcase(rest, pattern) or rest == pattern):
            result.add(path)
    return result


class Changes(NamedTuple):
    """How runs differ from the recorded one: the run, the operation from which on it does, and by how many bytes."""

    run: Ints
    when: Ints
    size: Ints


def peaks_alone(run: Checkpointing, scopes: Ints) -> Ints:
    """For each of some calls, the peak of the run if it were the only one that is checkpointed."""
    if not len(scopes):
        return np.zeros(0, dtype=np.int64)
    result = _Checkpointed(run, scopes, alone=True)
    return np.maximum(result.highest(), result.while_computing_again(result.before()))[scopes]


def together(run: Checkpointing, scopes: Ints) -> tuple[Ints, int, Ints]:
    """The bytes alive during each operation if some calls, none inside another, are checkpointed.

    With it come the most that is alive while one is computed again, and the calls that are.
    """
    result = _Checkpointed(run, scopes, alone=False)
    live = result.live()
    most = result.while_computing_again(result.before(live))
    return live, int(most.max(initial=0)), np.intersect1d(scopes, result.copied_by)


class _Checkpointed:
    """Calls that are checkpointed, each in a run of its own or all in one; columns run along all scopes.

    A run is told by the scope of its call, or is number 0.
    """

    def __init__(self, run: Checkpointing, scopes: Ints, *, alone: bool) -> None:
        self.run, self.graph, self.blocks = run, run.graph, run.blocks
        self.count, self.alone = len(run.tree), alone
        self.wanted = np.zeros(self.count, dtype=bool)
        self.wanted[scopes] = True
        self.recomputed_at = np.where(self.wanted, run.recomputed_at, len(self.graph))
        self._own_copies()
        self.changes = self._changed()

    def _around(self, scope: Ints, least: Ints | int = 0) -> tuple[Ints, Ints]:
        """The calls in question around each scope, itself included, as deep as ``least`` or deeper: rows and calls."""
        parent, depth, wanted = self.run.tree.parent, self.run.tree.depth, self.wanted
        row, least = np.arange(len(scope)), np.broadcast_to(least, len(scope))
        rows: list[Ints] = [row[:0]]
        calls: list[Ints] = [row[:0]]
        while len(row):
            inside = depth[scope] >= least[row]
            row, scope = row[inside], scope[inside]
            rows.append(row[wanted[scope]])
            calls.append(scope[wanted[scope]])
            scope = parent[scope]
            row, scope = row[scope >= 0], scope[scope >= 0]
        return np.concatenate(rows), np.concatenate(calls)

    # ---------------------------------------------------------------- what a call forgets and keeps

    def _own_copies(self) -> None:
        """Find the blocks that calls made and backward reads: until when the block is needed, and until when a copy.

        Sets pairs of a block and a call around what made it, in order: ``made``, ``made_by`` and ``needed``; and of
        these where the call itself saved the block: ``copied``, ``copied_by`` and ``copied_until``.
        """
        graph, blocks, run = self.graph, self.blocks, self.run
        block, node, computed, release = run.steps.kept
        own = graph.node_scope[blocks.birth[block]].astype(np.int64)
        shared = run.tree.depth[run.tree.common(own, graph.node_scope[node].astype(np.int64))]
        row, call = self._around(own)
        inside = shared[row] >= run.tree.depth[call]
        key, index = np.unique(block[row] * self.count + call, return_inverse=True)
        self.made, self.made_by = key // self.count, key % self.count
        needed, until = run.last_needed[self.made] + 1, np.zeros(len(key), dtype=np.int64)
        np.maximum.at(needed, index[~inside], release[row[~inside]])
        np.maximum.at(until, index[inside], computed[row[inside]])
        death = blocks.death[self.made]
        self.needed = np.where(run.steps.held[self.made], death, np.minimum(needed, death))
        copied = until > 0
        self.copied, self.copied_by, self.copied_until = (
            self.made[copied],
            self.made_by[copied],
            until[copied],
        )

    def _given(self) -> tuple[Ints, Ints]:
        """Pairs of a block from outside a call and that call, which holds on to it until its backward is done."""
        graph, blocks, run = self.graph, self.blocks, self.run
        block, node = blocks.readers
        chosen = (graph.node_phase[node] == Phase.FORWARD) & (blocks.birth[block] >= 0)
        chosen &= blocks.death[block] <= len(graph)
        pairs = np.unique(np.stack([block[chosen], graph.node_scope[node[chosen]].astype(np.int64)]), axis=1)
        pairs = pairs[:, graph.node_phase[blocks.birth[pairs[0]]] == Phase.FORWARD]
        block, scope = pairs
        shared = run.tree.common(graph.node_scope[blocks.birth[block]].astype(np.int64), scope)
        row, call = self._around(scope, run.tree.depth[shared] + 1)
        some = self.recomputed_at[call] < len(graph)
        return block[row[some]], call[some]

    def _changed(self) -> Changes:
        """Where blocks live shorter or longer than in the recorded run, and where copies do."""
        blocks, total = self.blocks, len(self.blocks.birth)
        block, call = self._given()
        # a run and a block in it as one number
        given, made = self._runs(call) * total + block, self._runs(self.made_by) * total + self.made
        key, index = np.unique(np.concatenate([made, given]), return_inverse=True)
        run, block = key // total, key % total
        until = blocks.death[block]
        until[index[: len(made)]] = self.needed  # a block has one call around it in each run
        np.maximum.at(until, index[len(made) :], self.run.ends[call])
        other = until != blocks.death[block]
        run, block, until = run[other], block[other], until[other]
        size, copy = blocks.bytes[block], blocks.bytes[self.copied]
        copying = self._runs(self.copied_by)
        return Changes(
            np.concatenate([run, run, copying, copying]),
            np.concatenate(
                [until, blocks.death[block], self.recomputed_at[self.copied_by], self.copied_until]
            ),
            np.concatenate([-size, size, copy, -copy]),
        )

    def _runs(self, call: Ints) -> Ints:
        return call if self.alone else np.zeros_like(call)

    # ---------------------------------------------------------------- how high the run goes

    def live(self) -> Ints:
        """The bytes alive during each recorded operation, with all calls in one run."""
        change = np.zeros(len(self.graph) + 1, dtype=np.int64)
        np.add.at(change, np.minimum(self.changes.when, len(self.graph)), self.changes.size)
        result: Ints = self.blocks.live + np.cumsum(change[:-1])
        return result

    def highest(self) -> Ints:
        """The highest of the recorded operations, for each run."""
        blocks, nodes = self.blocks, len(self.graph)
        call, when, level = _levels(*self.changes)
        last = np.append(call[1:] != call[:-1], True)[: len(call)]
        stop = np.where(last, nodes, np.append(when[1:], nodes)[: len(call)])
        first = np.append(True, last[:-1])[: len(call)]
        call = np.concatenate([call, call[first]])  # and what comes before the first change
        start = np.concatenate([when, np.zeros(int(first.sum()), dtype=np.int64)])
        stop = np.concatenate([stop, when[first]])
        level = np.concatenate([level, np.zeros(int(first.sum()), dtype=np.int64)])
        some = start < stop
        result = np.full(self.count, 0, dtype=np.int64)
        np.maximum.at(result, call[some], _highest(blocks.live, start[some], stop[some]) + level[some])
        untouched = np.ones(self.count, dtype=bool)
        untouched[call] = False
        return np.where(untouched, blocks.peak_bytes, result)

    def before(self, live: Ints | None = None) -> Ints:
        """For each call the bytes alive when its recomputation begins."""
        node = np.minimum(self.recomputed_at, max(0, len(self.graph) - 1))
        copies = self._sums(self.copied_by, self.blocks.bytes[self.copied])
        if live is None:  # each in a run of its own
            run, when, size = self.changes
            past = when <= self.recomputed_at[run]
            level: Ints = self.blocks.live[node] + self._sums(run[past], size[past])
        else:
            level = live[node]
        result: Ints = level - self.run.made_at[node] - copies
        return result

    def _sums(self, call: Ints, size: Ints) -> Ints:
        return np.bincount(call, weights=size, minlength=self.count).astype(np.int64)

    def while_computing_again(self, before: Ints) -> Ints:
        """The peak while each call is recomputed; 0 for one that never is."""
        graph, blocks, run = self.graph, self.blocks, self.run
        mine = np.flatnonzero(blocks.birth >= 0)
        mine = mine[graph.node_phase[blocks.birth[mine]] == Phase.FORWARD]
        row, call = self._around(graph.node_scope[blocks.birth[mine]].astype(np.int64))
        block, stop = mine[row], run.runs[1][call]
        runs = blocks.birth[block] < stop
        block, call, stop = block[runs], call[runs], stop[runs]
        copied = np.isin(block * self.count + call, self.copied * self.count + self.copied_by)
        end = np.where(copied, stop, np.minimum(blocks.death[block], stop))
        size = blocks.bytes[block]
        call, _, level = _levels(
            np.concatenate([call, call]),
            np.concatenate([blocks.birth[block], end]),
            np.concatenate([size, -size]),
        )
        most = np.zeros(self.count, dtype=np.int64)
        np.maximum.at(most, call, level)
        return np.where(self.recomputed_at < len(graph), before + most, 0)


def _levels(call: Ints, when: Ints, change: Ints) -> tuple[Ints, Ints, Ints]:
    """Changes summed up along each call's time: one row for each time at which something changes.

    >>> [column.tolist() for column in _levels(*np.array([[2, 1, 2, 2], [5, 3, 5, 9], [4, 7, 1, -5]]))]
    [[1, 2, 2], [3, 5, 9], [7, 5, 0]]
    """
    order = np.lexsort((when, call))
    call, when, total = call[order], when[order], np.cumsum(change[order])
    new = np.flatnonzero(np.append(True, call[1:] != call[:-1])) if len(call) else order
    before = np.repeat(np.where(new > 0, total[new - 1], 0), np.diff(np.append(new, len(call))))
    last = np.append((call[1:] != call[:-1]) | (when[1:] != when[:-1]), True)[: len(call)]
    return call[last], when[last], (total - before)[last]


def _highest(level: Ints, start: Ints, stop: Ints) -> Ints:
    """The highest of a level in many stretches, none of them empty.

    Two stretches of a power of two cover any other. Of each power only those in question are looked up.

    >>> _highest(np.array([3, 1, 4, 1, 5]), np.array([0, 1, 0, 3]), np.array([2, 4, 5, 4])).tolist()
    [3, 4, 5, 1]
    """
    result, width, length = np.zeros(len(start), dtype=np.int64), 1, stop - start
    while len(level):
        chosen = (length >= width) & (length < 2 * width)
        result[chosen] = np.maximum(level[start[chosen]], level[stop[chosen] - width])
        level = np.maximum(level[:-width], level[width:])
        width *= 2
    return result


SHAPING = ("aten::sum.dim_IntList", "aten::view", "aten::_to_copy")
PLACING = ("aten::detach", "aten::clone", "aten::new_empty_strided", "aten::copy_", "aten::add_.Tensor")


class Reads(NamedTuple):
    """Reads by backward of what forward saved: the block, the reader, the operation that saved it."""

    block: Ints
    node: Ints
    link: Ints


class Steps:
    """The steps of the backward passes of a run; columns run along its operations, for those that are differentiated.

    >>> import torch, torch_vis as tv
    >>> t = tv.trace(torch.nn.Linear(3, 2), torch.ones(1, 3), backward=True)
    >>> steps = Steps(t.graph, t.memory().blocks)
    >>> [node.name for node in t.graph.nodes]
    ['t', 'addmm', 'sum', 'ones_like', 'expand', 't', 'mm', 't', 'sum', 'view', 'detach', 't', 'detach']
    >>> int(steps.start[1]), int(steps.computed[1]), int(steps.release[1])  # of addmm
    (5, 8, 10)
    """

    def __init__(self, graph: Graph, blocks: Lifetimes) -> None:
        self.graph, self.blocks = graph, blocks
        recomputed = graph.node_flags & Flag.RECOMPUTE != 0
        self.backward = np.flatnonzero((graph.node_phase == Phase.BACKWARD) & ~recomputed)
        self._link = graph.node_link[self.backward].astype(np.int64)

    @cached_property
    def reads(self) -> tuple[Ints, Ints]:
        """Reads of blocks by operations of backward, recomputed forward operations left out."""
        block, node = self.blocks.readers
        chosen = np.zeros(len(self.graph), dtype=bool)
        chosen[self.backward] = True
        return block[chosen[node]], node[chosen[node]]

    @cached_property
    def saved(self) -> Reads:
        """Reads of what the forward operation saved: memory that existed once it had run."""
        block, node = self.reads
        link = self.graph.node_link[node].astype(np.int64)
        exists = (link >= 0) & (self.blocks.birth[block] <= link)
        return Reads(block[exists], node[exists], link[exists])

    @cached_property
    def saves(self) -> Ints:
        """Which operations saved something."""
        result = np.zeros(len(self.graph), dtype=bool)
        result[self.saved.link] = True
        return result

    @cached_property
    def stop(self) -> Ints:
        """How far an operation has to run before all that it saved is there: the next one, or only itself.

        What it was given is saved before it runs, what it makes or writes after.
        """
        graph, result = self.graph, np.zeros(len(self.graph), dtype=np.int64)
        value, node = graph.in_value, graph.in_node
        link = graph.node_link[node].astype(np.int64)
        np.maximum.at(result, self.saved.link, self.saved.link)
        own = (link >= 0) & (graph.value_producer[value] == link)
        own &= (graph.node_phase[node] == Phase.BACKWARD) & (graph.node_flags[node] & Flag.RECOMPUTE == 0)
        result[link[own]] = link[own] + 1
        own_output = self.blocks.birth[self.saved.block] == self.saved.link
        result[self.saved.link[own_output]] = self.saved.link[own_output] + 1
        return result

    # ---------------------------------------------------------------- when

    @cached_property
    def start(self) -> Ints:
        """The first operation of each step; the number of operations where there is none."""
        result = np.full(len(self.graph), len(self.graph), dtype=np.int64)
        linked = self._link >= 0
        np.minimum.at(result, self._link[linked], self.backward[linked])
        return result

    @cached_property
    def _sums_of_gradients(self) -> Bools:
        return np.array([is_plain_sum(call) for call in self.graph.calls], dtype=bool)

    @cached_property
    def computed(self) -> Ints:
        """The operation before which each step has computed its gradients."""
        late = self._of(SHAPING + PLACING) | self._sums_of_gradients
        return np.minimum(self._ends(late), self.release)

    @cached_property
    def release(self) -> Ints:
        """The operation before which each step frees what was saved: as seen in the run, where it is seen."""
        result = self._ends(self._of(PLACING) | self._sums_of_gradients)
        over = self._ends(np.zeros(len(self.graph.calls), dtype=bool))
        block, node, link = self.saved
        last = np.full(len(self.blocks.birth), -1, dtype=np.int64)
        np.maximum.at(last, block, node)
        death = self.blocks.death[block]
        seen = (node == last[block]) & (death <= over[link])
        known = np.zeros(len(self.graph), dtype=np.int64)
        np.maximum.at(known, link[seen], death[seen])
        return np.where(known > 0, known, result)

    def _ends(self, late: Ints) -> Ints:
        """For each step the operation after its last one that is not of some kinds."""
        result = np.zeros(len(self.graph), dtype=np.int64)
        if not len(self.backward):
            return result
        chosen = (self._link >= 0) & ~late[self.graph.node_call[self.backward]]
        np.maximum.at(result, self._link[chosen], self.backward[chosen] + 1)
        return result

    def _of(self, names: tuple[str, ...]) -> Ints:
        return np.array([call.op in names for call in self.graph.calls], dtype=bool)

    @cached_property
    def repeated(self) -> bool:
        """Whether a step ran more than once, others in between: backward went through one forward pass twice."""
        _, node, link = self.saved
        count = len(self.graph)
        first, last = np.full(count, count, dtype=np.int64), np.full(count, -1, dtype=np.int64)
        np.minimum.at(first, link, node)
        np.maximum.at(last, link, node)
        between = (
            (self._link >= 0) & (self.backward >= first[self._link]) & (self.backward <= last[self._link])
        )
        own = np.bincount(self._link[between], minlength=count)
        return bool((last - first + 1 > own).any())

    # ---------------------------------------------------------------- whose

    @cached_property
    def kept(self) -> tuple[Ints, Ints, Ints, Ints]:
        """Reads of what forward made and saved, as columns.

        They are the block, the reader, the operation before which its step has computed, and the one before which it
        lets go. Of a reader that belongs to no forward operation, both are the end of its backward pass.
        """
        graph = self.graph
        block, node = self.reads
        saved = (self.blocks.use == Use.SAVED) & (self.blocks.birth >= 0)
        saved[saved] = graph.node_phase[self.blocks.birth[saved]] == Phase.FORWARD
        block, node = block[saved[block]], node[saved[block]]
        link = graph.node_link[node].astype(np.int64)
        others = np.flatnonzero(graph.node_phase != Phase.BACKWARD)
        over = np.append(others, len(graph))[np.searchsorted(others, node)]
        own = link >= 0
        computed = np.where(own, np.maximum(self.computed[link], node + 1), over)
        release = np.where(own, np.maximum(self.release[link], node + 1), over)
        return block, node, computed, release

    @cached_property
    def held(self) -> Bools:
        """Which blocks outlive the last step that reads them: then the program holds them, not autograd."""
        block, _, _, release = self.kept
        last = np.full(len(self.blocks.birth), -1, dtype=np.int64)
        np.maximum.at(last, block, release)
        result: Bools = (last >= 0) & (self.blocks.death > last)
        return result

    @property
    def retained(self) -> bool:
        """Whether backward freed nothing that was saved: it retained its graph, or the program holds all of it."""
        block, node, _, release = self.kept
        last = np.full(len(self.blocks.birth), -1, dtype=np.int64)
        np.maximum.at(last, block, release)
        # the last step says nothing: after it all is gone
        early = (last >= 0) & (last <= node.max(initial=-1))
        return int(early.sum()) > 1 and bool(self.held[early].all())
