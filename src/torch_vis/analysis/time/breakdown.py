"""Where the time of a run goes: by kind of operation, call of a module, module, source line and phase.

A call of a module takes its inclusive time: the operations that it runs forward, its own and those of the modules that
it calls, and what the host does besides (Python, dispatch, autograd's bookkeeping). The two add up to that time.
Operations of the backward pass run outside the call that they belong to, and are counted apart. So is what backward
computes again of what was checkpointed: it is part of what backward costs the module, and of the modules around the
place where that was first called.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np

from torch_vis.errors import UsageError
from torch_vis.graph.call import short_name
from torch_vis.graph.graph import Graph
from torch_vis.graph.metrics import Column, Metrics
from torch_vis.graph.schema import Flag, Phase
from torch_vis.graph.tree import Tree
from torch_vis.graph.types import Bools, Ints


class Group(NamedTuple):
    """Operations of one kind, line or phase, and the time that they took; ``kernel_ns`` is a device's, where known."""

    name: str
    operations: int
    time_ns: int
    kernel_ns: int | None


class Called(NamedTuple):
    """A call of a module, or all calls of one: ``operations_ns`` + ``host_ns`` = ``inclusive_ns``.

    ``self_ns`` is what the modules that it calls do not take, and never less than 0. ``recomputed_ns`` is the part of
    ``backward_ns`` that computes again what was checkpointed; a call that backward made for it has that as its
    inclusive time. ``low_ns`` and ``high_ns`` are quartiles over repeated runs, where it was repeated; ``kernel_ns``
    is what devices did for it, backward included, where that is known.
    """

    name: str
    type: str
    calls: int
    inclusive_ns: int
    self_ns: int
    operations_ns: int
    host_ns: int
    backward_ns: int
    recomputed_ns: int
    low_ns: int | None
    high_ns: int | None
    kernel_ns: int | None
    scope: int
    """Number of the call, or of the first one."""
    again: bool = False
    """Whether backward made the call, to compute again what was checkpointed."""


class Timing:
    """The times of a run, added up along its graph.

    >>> import torch, torch_vis as tv
    >>> t = tv.trace(torch.nn.Sequential(torch.nn.Linear(3, 2), torch.nn.ReLU()), torch.ones(1, 3))
    >>> timing = Timing(t.graph, t.metrics)
    >>> sorted(group.name for group in timing.by_operator)
    ['addmm', 'relu', 't']
    >>> sum(group.time_ns for group in timing.by_operator) + timing.host_ns == timing.total_ns
    True
    """

    def __init__(self, graph: Graph, metrics: Metrics) -> None:
        if "time_ns" not in metrics or "scope_time_ns" not in metrics:
            raise UsageError("this trace has no times: it was recorded without, or on shapes alone")
        self.graph, self.metrics = graph, metrics
        self.time: Ints = metrics["time_ns"].values.astype(np.int64)
        self.inclusive: Ints = metrics["scope_time_ns"].values.astype(np.int64)
        self.kernel: Column | None = None
        if "kernel_ns" in metrics:
            self.kernel = metrics["kernel_ns"]
        self.again = graph.tree.recomputed

    @property
    def total_ns(self) -> int:
        """The time of the whole run on the host."""
        return int(self.inclusive[0])

    @property
    def operations_ns(self) -> int:
        """The time of all operations."""
        return int(self.time.sum())

    @property
    def host_ns(self) -> int:
        """What is left of the whole: Python, dispatch, the autograd engine, waiting between operations."""
        return self.total_ns - self.operations_ns

    # ---------------------------------------------------------------- operations

    @cached_property
    def by_operator(self) -> list[Group]:
        """By operator, overloads together, the longest first."""
        names = [short_name(call.op) for call in self.graph.calls]
        return self._grouped(names, self.graph.node_call)

    @cached_property
    def by_line(self) -> list[Group]:
        """By source line, the longest first; a backward operation counts for the line of its forward operation."""
        graph = self.graph
        names = [*(site.short for site in graph.sites), "no source line"]
        linked = graph.node_link >= 0
        site = np.where(linked, graph.node_site[graph.node_link], graph.node_site)
        return self._grouped(names, np.where(site < 0, len(names) - 1, site))

    @cached_property
    def by_phase(self) -> list[Group]:
        """By phase, in order."""
        names = [phase.name.lower() for phase in Phase]
        result = {group.name: group for group in self._grouped(names, self.graph.node_phase)}
        return [result[name] for name in names if name in result]

    def _grouped(self, names: Sequence[str], rows: Any) -> list[Group]:
        numbers: dict[str, int] = {}
        of = np.array([numbers.setdefault(name, len(numbers)) for name in names], dtype=np.int64)
        group = of[rows] if len(rows) else np.zeros(0, dtype=np.int64)
        many = np.bincount(group, minlength=len(numbers))
        time = np.bincount(group, weights=self.time, minlength=len(numbers))
        kernel = self._kernels(group, len(numbers))
        result = [
            Group(name, int(many[number]), int(time[number]), kernel[number])
            for name, number in numbers.items()
            if many[number]
        ]
        return sorted(result, key=lambda row: (-row.time_ns, row.name))

    def _kernels(self, group: Ints, count: int) -> list[int | None]:
        """Device time by group; None where no operation of it is known."""
        if self.kernel is None:
            return [None] * count
        known = np.ones(len(group), dtype=bool) if self.kernel.known is None else self.kernel.known
        spent = np.bincount(group[known], weights=self.kernel.values[known], minlength=count)
        some = np.bincount(group[known], minlength=count)
        return [int(time) if many else None for time, many in zip(spent, some)]

    # ---------------------------------------------------------------- modules

    @cached_property
    def by_call(self) -> list[Called]:
        """Every call of a module, function or optimizer, in order; the first is the run."""
        graph, again = self.graph, self.again
        backward = graph.node_phase == Phase.BACKWARD
        repeated = backward & (graph.node_flags & Flag.RECOMPUTE != 0)
        first = graph.tree.by_first_call
        inside = self._inside(self.time, ~backward, graph.tree)
        inside[again] = self._inside(self.time, repeated & again[graph.node_scope], graph.tree)[again]
        behind = self._inside(self.time, backward, first)
        recomputed = self._inside(self.time, repeated, first)
        behind[again] -= recomputed[again]
        recomputed[again] = 0
        inside[0], behind[0], recomputed[0] = self.operations_ns, 0, 0  # the run is around its backward pass
        own = self._own()
        low, high = (self._spread(name) for name in ("scope_time_low_ns", "scope_time_high_ns"))
        kernel: Any = [None] * len(own)
        if self.kernel is not None:
            known = np.ones(len(graph), dtype=bool) if self.kernel.known is None else self.kernel.known
            kernel = self._inside(self.kernel.values.astype(np.int64), known, first).tolist()
        return [
            Called(
                name=graph.scope_paths[scope],
                type=graph.modules[module].type,
                calls=1,
                inclusive_ns=int(self.inclusive[scope]),
                self_ns=int(own[scope]),
                operations_ns=int(inside[scope]),
                host_ns=int(self.inclusive[scope] - inside[scope]),
                backward_ns=int(behind[scope]),
                recomputed_ns=int(recomputed[scope]),
                low_ns=low[scope],
                high_ns=high[scope],
                kernel_ns=kernel[scope],
                scope=scope,
                again=bool(again[scope]),
            )
            for scope, module in enumerate(graph.scope_module.tolist())
        ]

    @cached_property
    def by_module(self) -> list[Called]:
        """Every module with all of its calls, the longest first; calls inside a call of the same count once.

        Those that backward made again are no calls of the module here, but part of its backward time.
        """
        calls: dict[int, list[Called]] = {}
        for call in self.by_call:
            calls.setdefault(int(self.graph.scope_module[call.scope]), []).append(call)
        outermost = self.graph.tree.by_first_call.outermost(self.graph.scope_module)
        return sorted(
            (
                self._module(group, [call for call in group if outermost[call.scope]])
                for group in calls.values()
            ),
            key=lambda row: (-row.inclusive_ns - row.backward_ns, row.scope),
        )

    def _module(self, group: list[Called], outer: list[Called]) -> Called:
        """All calls of a module as one; ``outer`` are those that are inside no other of them."""
        first = [call for call in group if not call.again]
        once = [call for call in outer if not call.again]
        # what was computed again took its time in backward, of which modules have the operations
        recomputed = sum(call.operations_ns if call.again else call.recomputed_ns for call in outer)
        behind = sum(call.backward_ns + (call.operations_ns if call.again else 0) for call in outer)
        alone = len(first) == 1
        return group[0]._replace(
            calls=len(first),
            inclusive_ns=sum(call.inclusive_ns for call in once),
            self_ns=sum(call.self_ns + self._made_again[call.scope] for call in first),
            operations_ns=sum(call.operations_ns for call in once),
            host_ns=sum(call.host_ns for call in once),
            backward_ns=behind,
            recomputed_ns=recomputed,
            low_ns=first[0].low_ns if alone else None,  # quartiles of calls do not add up
            high_ns=first[0].high_ns if alone else None,
            kernel_ns=None if self.kernel is None else sum(call.kernel_ns or 0 for call in outer),
            again=False,
        )

    @cached_property
    def _made_again(self) -> list[int]:
        """For each call the time that calls took which backward, running in it, made again."""
        result = np.zeros(len(self.inclusive), dtype=np.int64)
        parent = self.graph.scope_parent
        outer = self.again & ~self.again[parent]
        np.add.at(result, parent[outer], self.inclusive[outer])
        return list(result.tolist())

    def _own(self) -> Ints:
        """What the calls inside each call do not take."""
        return np.maximum(
            self.graph.tree.own(self.inclusive), 0
        )  # what recording took is taken off by an estimate

    def _spread(self, name: str) -> list[int | None]:
        return self.metrics[name][:] if name in self.metrics else [None] * len(self.inclusive)

    def _inside(self, amount: Ints, chosen: Bools, tree: Tree) -> Ints:
        """Sums over some operations of each call and of the calls inside it."""
        return tree.inclusive(self.graph.tree.of_nodes(amount, chosen))
