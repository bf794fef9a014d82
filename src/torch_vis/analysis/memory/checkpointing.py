"""What activation checkpointing of each module call would save, and what it would cost.

A checkpointed call forgets what its operations saved for backward and computes it again when backward reaches the call. A
block is forgotten if the call made it and only backward operations of the call read it; what other calls' backward
reads stays, and so does what the program itself still holds. What the call was given is kept until its backward is
done. Computing again stops as torch stops: when the last tensor that backward needs is there. Each call is looked at on its own; ``with_checkpoints`` takes several together and gives the whole new timeline.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np

from torch_vis.analysis.memory.blocks import Blocks, Ints, Use
from torch_vis.errors import UsageError, no_match
from torch_vis.graph.graph import Graph
from torch_vis.graph.metrics import Metrics
from torch_vis.graph.schema import Flag, Phase


class Checkpoint(NamedTuple):
    """One call of a module, as if it were checkpointed.

    ``saved_bytes`` is what it no longer holds between its forward and its backward, less what it then has to hold of its
    inputs; ``peak_bytes`` is how much lower the run is where its peak is now. ``extra_flops`` is what is computed again,
    ``extra_time_ns`` the time of the call, a little more than that takes; None where it is not known.
    """

    path: str
    type: str
    call: int
    saved_bytes: int
    peak_bytes: int
    extra_flops: int | None
    extra_time_ns: int | None
    scope: int


class Recomputed(NamedTuple):
    """The memory of a run with some calls checkpointed: the peak, and whether it is reached while recomputing."""

    peak_bytes: int
    recomputing: bool
    live: Ints


class Checkpointing:
    """What checkpointing would do to a run.

    >>> import torch, torch_vis as tv
    >>> model = torch.nn.Sequential(*[torch.nn.Sequential(torch.nn.Linear(8, 8), torch.nn.Sigmoid()) for _ in range(3)])
    >>> t = tv.trace(model, torch.ones(4, 8), backward=True)
    >>> [(row.path, row.saved_bytes) for row in t.memory().checkpoints if row.path == ""]
    [('', 256)]
    """

    def __init__(self, graph: Graph, metrics: Metrics, blocks: Blocks) -> None:
        self.graph, self.metrics, self.blocks = graph, metrics, blocks
        self.parent = graph.scope_parent.astype(np.int64)
        self.depth = _depths(self.parent)
        phase = graph.node_phase
        self.forward = np.flatnonzero(phase == Phase.FORWARD)
        self.backward = np.flatnonzero((phase == Phase.BACKWARD) & (graph.node_flags & Flag.RECOMPUTE == 0))

    # ---------------------------------------------------------------- call by call

    def rows(self) -> list[Checkpoint]:
        """Every call of a module that saves something for backward, those that save most first."""
        graph, metrics = self.graph, self.metrics
        if not len(self.backward):
            return []
        saved, at_peak = self._savings()
        flops = self._sum_known("flops")
        times = metrics["scope_time_ns"] if "scope_time_ns" in metrics else None
        found = []
        for scope in np.flatnonzero(saved > 0).tolist():
            module = graph.modules[int(graph.scope_module[scope])]
            if module.kind == "module":
                cost = None if flops is None else flops[scope]
                time = None if times is None else times[scope]
                call = int(graph.scope_call[scope])
                lower = int(at_peak[scope])
                found.append(Checkpoint(module.path, module.type, call, int(saved[scope]), lower, cost, time, scope))
        return sorted(found, key=lambda row: (-row.peak_bytes, -row.saved_bytes, row.scope))

    def _savings(self) -> tuple[Ints, Ints]:
        """For every scope, bytes no longer held, and of those, the ones that are held where the peak is."""
        graph, blocks = self.graph, self.blocks
        top = self._forgettable()
        chosen = np.flatnonzero(top >= 0)
        size = blocks.bytes[chosen]
        count = len(self.parent)
        saved = np.bincount(top[chosen], weights=size, minlength=count)
        at = blocks.peak_node or 0
        here = (blocks.birth[chosen] <= at) & (blocks.death[chosen] > at)
        peak = np.bincount(top[chosen][here], weights=size[here], minlength=count)
        first = np.full(count, len(graph), dtype=np.int64)
        np.minimum.at(first, graph.node_scope[self.backward], self.backward)
        kept = self._kept_inputs()
        for scope in range(count - 1, 0, -1):  # a scope has a higher number than the one that it is in
            above = self.parent[scope]
            saved[above] += saved[scope]
            peak[above] += peak[scope]
            kept[above] += kept[scope]
            first[above] = min(first[above], first[scope])
        peak[first <= at] = 0.0  # by then it has been computed again
        peak -= np.where(first > at, kept, 0.0)
        return (saved - kept).astype(np.int64), np.maximum(peak, 0).astype(np.int64)

    def _forgettable(self) -> Ints:
        """For every block the innermost scope whose checkpointing would forget it; -1 for a block that has to stay."""
        graph, blocks = self.graph, self.blocks
        found = np.full(len(blocks.birth), -1, dtype=np.int64)
        block, node = self._backward_reads()
        if not len(block):
            return found
        born = np.flatnonzero(blocks.use == Use.SAVED)
        born = born[graph.node_phase[blocks.birth[born]] == Phase.FORWARD]
        own = graph.node_scope[blocks.birth[born]].astype(np.int64)
        low = np.full(len(blocks.birth), len(self.parent), dtype=np.int64)
        high = np.full(len(blocks.birth), -1, dtype=np.int64)
        low[born], high[born] = own, own
        scope = graph.node_scope[node].astype(np.int64)
        np.minimum.at(low, block, scope)
        np.maximum.at(high, block, scope)
        held = self._held_longer(block, node)
        born = born[~held[born]]
        # scopes are numbered as they are entered: what contains the first and the last contains those between
        found[born] = self._common(low[born], high[born])
        return found

    def _backward_reads(self) -> tuple[Ints, Ints]:
        graph = self.graph
        block, node = self.blocks.readers
        chosen = (graph.node_phase[node] == Phase.BACKWARD) & (graph.node_flags[node] & Flag.RECOMPUTE == 0)
        return block[chosen], node[chosen]

    def _held_longer(self, block: Ints, node: Ints) -> Ints:
        """Whether a block outlives the backward pass that reads it: then the program holds it, not autograd."""
        graph = self.graph
        last = np.full(len(self.blocks.birth), -1, dtype=np.int64)
        np.maximum.at(last, block, node)
        others = np.flatnonzero(graph.node_phase != Phase.BACKWARD)
        place = np.searchsorted(others, last)
        end = np.append(others, len(graph))[np.minimum(place, len(others))]
        return self.blocks.death > end

    def _kept_inputs(self) -> Ints:
        """Bytes that each scope has to hold on to although nothing saved them, to be summed over the scopes inside.

        A scope that reads a block from outside counts it once, however many of its operations read it.
        """
        graph, blocks = self.graph, self.blocks
        count = len(self.parent)
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
        np.add.at(total, self._common(scope[:-1][same], scope[1:][same]), -size[same])
        shared = self._common(own, scope)  # from here outwards it is not from outside
        order = np.lexsort((-self.depth[shared], block))
        first = order[np.append(True, block[order][1:] != block[order][:-1])]
        np.add.at(total, shared[first], -size[first])
        return total

    def _common(self, one: Ints, other: Ints) -> Ints:
        """The innermost scope around both of two scopes."""
        one, other = one.copy(), other.copy()
        while True:
            apart = np.flatnonzero(one != other)
            if not len(apart):
                return one
            deeper = self.depth[one[apart]] >= self.depth[other[apart]]
            up, down = apart[deeper], apart[~deeper]
            one[up] = self.parent[one[up]]
            other[down] = self.parent[other[down]]

    def _sum_known(self, name: str) -> list[int | None] | None:
        """A column summed over what each scope, those inside included, computes again; None where a part is not known."""
        if name not in self.metrics:
            return None
        column, count = self.metrics[name], len(self.graph)
        values, unknown = np.zeros(count + 1, dtype=np.int64), np.zeros(count + 1, dtype=np.int64)
        values[self.forward + 1] = column.values[self.forward]
        if column.known is not None:
            unknown[self.forward + 1] = ~column.known[self.forward]
            values[unknown > 0] = 0
        values, unknown = np.cumsum(values), np.cumsum(unknown)
        first, stop = self._runs
        low, high = np.minimum(first, count), np.maximum(stop, np.minimum(first, count))
        missing = (unknown[high] - unknown[low]) > 0
        return [None if gap else amount for amount, gap in zip((values[high] - values[low]).tolist(), missing.tolist())]

    @cached_property
    def _runs(self) -> tuple[Ints, Ints]:
        """For every scope its first forward operation, and the one before which computing it again stops."""
        graph, blocks = self.graph, self.blocks
        count, nodes = len(self.parent), len(graph)
        block, node = self._backward_reads()
        link = graph.node_link[node].astype(np.int64)
        known = link >= 0
        block, link = block[known], link[known]
        there = blocks.birth[block] <= link  # tensors that were there when the forward operation had run
        block, link = block[there], link[there]
        stop = np.zeros(nodes, dtype=np.int64)  # an operation runs again only if one of its own results was saved
        np.maximum.at(stop, link, link + (blocks.birth[block] == link))
        first, last = np.full(count, nodes, dtype=np.int64), np.zeros(count, dtype=np.int64)
        np.minimum.at(first, graph.node_scope[self.forward], self.forward)
        np.maximum.at(last, graph.node_scope[self.forward], stop[self.forward])
        for scope in range(count - 1, 0, -1):
            above = self.parent[scope]
            first[above], last[above] = min(first[above], first[scope]), max(last[above], last[scope])
        return first, last

    # ---------------------------------------------------------------- several together

    def with_checkpoints(self, paths: Sequence[str]) -> Recomputed:
        """The memory of the run if every call of these modules (paths or patterns) were checkpointed.

        The timeline is that of the recorded operations; the operations that are computed again come in between, before
        the first backward operation of their call that needs what was forgotten.
        """
        blocks, death = self.blocks, self.blocks.death.copy()
        forgotten: list[tuple[int, Ints, int, int]] = []
        top, reads = self._forgettable(), self.blocks.readers
        is_forward = self.graph.node_phase == Phase.FORWARD
        forward_reads = is_forward[reads[1]]
        last_read = blocks.birth.copy()
        np.maximum.at(last_read, reads[0][forward_reads], reads[1][forward_reads])
        for scope in self._chosen(paths):
            inside = self._inside(scope)
            gone = np.flatnonzero((top >= 0) & inside[top])
            backward = self.backward[inside[self.graph.node_scope[self.backward]]]
            if not len(backward) or not len(gone):
                continue
            block, node = self._backward_reads()
            wanted = node[np.isin(block, gone)]
            again, end = int(wanted.min()), int(backward.max()) + 1
            forgotten.append((scope, gone, again, end))
            mine = forward_reads & inside[self.graph.node_scope[reads[1]]]
            given = np.unique(reads[0][mine])
            given = given[(blocks.birth[given] >= 0) & is_forward[blocks.birth[given]]]
            given = given[~inside[self.graph.node_scope[blocks.birth[given]]]]
            death[given] = np.maximum(death[given], end)
        return self._timeline(forgotten, death, last_read)

    def _timeline(self, forgotten: list[tuple[int, Ints, int, int]], death: Ints, last_read: Ints) -> Recomputed:
        blocks, count = self.blocks, len(self.graph)
        change = np.zeros(count + 1, dtype=np.int64)
        longer = np.flatnonzero((death > blocks.death) & (blocks.death <= count))
        np.add.at(change, np.minimum(blocks.death[longer], count), blocks.bytes[longer])
        np.add.at(change, np.minimum(death[longer], count), -blocks.bytes[longer])
        for _, gone, again, _ in forgotten:
            np.add.at(change, np.minimum(last_read[gone] + 1, again), -blocks.bytes[gone])
            change[again] += int(blocks.bytes[gone].sum())
        live = blocks.live + np.cumsum(change[:count])
        peak, recomputing = int(live.max()) if count else 0, False
        for scope, gone, again, _ in forgotten:
            before = int(live[again]) - self._born_at(again) - int(blocks.bytes[gone].sum())
            highest = before + self._recompute_profile(scope, gone)
            if highest > peak:
                peak, recomputing = highest, True
        return Recomputed(peak, recomputing, live)

    def _born_at(self, node: int) -> int:
        return int(self.blocks.bytes[self.blocks.birth == node].sum())

    def _recompute_profile(self, scope: int, gone: Ints) -> int:
        """The most bytes that a call's forward operations hold at once of their own, with what is saved kept."""
        blocks, inside = self.blocks, self._inside(scope)
        first, stop = int(self._runs[0][scope]), int(self._runs[1][scope])
        mine = np.flatnonzero((blocks.birth >= first) & (blocks.birth < stop))
        mine = mine[inside[self.graph.node_scope[blocks.birth[mine]]]]
        if not len(mine):
            return 0
        end = np.minimum(blocks.death[mine], stop)
        end[np.isin(mine, gone)] = stop
        change = np.zeros(stop - first + 1, dtype=np.int64)
        np.add.at(change, blocks.birth[mine] - first, blocks.bytes[mine])
        np.add.at(change, end - first, -blocks.bytes[mine])
        return int(np.cumsum(change).max())

    def _inside(self, scope: int) -> Ints:
        """A mask of the scopes in a scope, itself included."""
        found = np.zeros(len(self.parent), dtype=bool)
        found[scope] = True
        for number in range(scope + 1, len(self.parent)):
            found[number] = found[self.parent[number]]
        return found

    def _chosen(self, paths: Sequence[str]) -> list[int]:
        """The calls of the modules named, an outer one in the place of those inside it."""
        from fnmatch import fnmatchcase

        graph = self.graph
        kinds = [graph.modules[module].kind for module in graph.scope_module.tolist()]
        called = [number for number, kind in enumerate(kinds) if kind == "module"]
        known = {graph.scope_paths[number] for number in called}
        wanted: set[str] = set()
        for pattern in paths:
            found = {path for path in known if path == pattern or fnmatchcase(path, pattern)}
            if not found:
                raise no_match("module", str(pattern), known)
            wanted |= found
        if not len(self.backward):
            raise UsageError("this trace has no backward pass, so nothing is saved for one: trace with backward=True")
        chosen: list[int] = []
        covered = np.zeros(len(self.parent), dtype=bool)
        ran = set(graph.node_scope[self.forward].tolist())
        for number in called:
            if graph.scope_paths[number] in wanted and not covered[number]:
                inside = self._inside(number)
                covered |= inside
                if ran & set(np.flatnonzero(inside).tolist()):
                    chosen.append(number)
        return chosen


def _depths(parent: Ints) -> Ints:
    depth = [0] * len(parent)
    for number, above in enumerate(parent.tolist()):
        depth[number] = depth[above] + 1 if above >= 0 else 0
    return np.array(depth, dtype=np.int64)


def paths_of(item: Any) -> list[str]:
    """One path or several, as a list."""
    return [item] if isinstance(item, str) else list(item)
