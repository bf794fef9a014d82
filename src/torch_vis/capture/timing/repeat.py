"""A recorded run, timed several times more: medians and spread, and no more left behind than one run leaves.

Several kinds of run take turns, each from the state in which the first one began. A plain one gives the time of the
whole. One that only follows the calls of modules gives theirs: a wrapper per call, nothing per operation. One under
torch's profiler gives the operations', taken in C++ and matched by ``profiler_events``. The recorder's own clock would
not do: it adds the call from Python to each operation, and what a mode costs to each module; of small operations that
is most of the time.
A few runs are recorded as well, under the profiler: they show that the operations are the same every time, time those
few that torch does not run without a recorder, and say which operation launched which kernel on a device.

Calls of modules are timed in some runs and operations in others, which the profiler slows down; and the medians of
parts do not come to the median of the whole. So the whole is what it was in runs without the profiler. It is divided
among the calls of modules near their medians, and the time that is a call's own among its operations and the host in
the ratio that they had under the profiler.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import numpy as np
import torch

from torch_vis.capture.assembling.log import OpRows, read_operations, table
from torch_vis.capture.containers import named_tensors
from torch_vis.capture.kept_tensors import KeptTensors, copy_of, version_of
from torch_vis.capture.recording.dispatch_mode import is_wrapper
from torch_vis.capture.recording.module_calls import ModuleCalls
from torch_vis.capture.recording.recorder import Recorder, clock, sequence_number
from torch_vis.capture.session import Capture, run_backward
from torch_vis.capture.state import (
    StateSnapshot,
    TensorState,
    autograd_node,
    geometry,
    is_lazy,
    refuse_iterators,
    storage_of,
    tensors_of,
)
from torch_vis.capture.timing.profiler_events import (
    Match,
    Pieces,
    Profiling,
    Timeline,
    align,
    current,
    device_profiler,
    ends,
    event_ns,
    match,
    pieces_of_events,
    refuse_nested,
)
from torch_vis.errors import UsageError
from torch_vis.graph.graph import Graph
from torch_vis.graph.metrics import Column, Metrics
from torch_vis.graph.run import Limit
from torch_vis.graph.schema import Phase
from torch_vis.graph.text import and_more
from torch_vis.graph.tree import Tree
from torch_vis.graph.types import Ints
from torch_vis.progress import progress

UNSEEN = "torch_vis::unseen_write"
FOLLOWED = (torch.nn.Module, torch.optim.Optimizer)
RECORDED = 3  # runs under recorder and profiler; kernels vary little


class RepeatStopped(Exception):
    """Why no more runs can be made, in words."""


class RepeatTarget(NamedTuple):
    """What is run, and how."""

    target: Callable[..., Any]
    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    backward: bool
    loss: Callable[[Any], Any] | None

    def __call__(self) -> None:
        output = self.target(*self.args, **self.kwargs)
        if self.backward or self.loss is not None:
            run_backward(output, self.loss)


class Repeats:
    """The further runs of one trace: made before the first run, asked for ``columns`` after it."""

    def __init__(self, call: RepeatTarget, repeat: Any, capture: Capture, *, functions: bool) -> None:
        if isinstance(repeat, bool) or not isinstance(repeat, int) or repeat < 1:
            raise UsageError(f"repeat is a number of runs, 0 for none, not {repeat!r}")
        refuse_nested()
        refuse_iterators(call.target, (call.args, call.kwargs, call.loss))
        self.call, self.repeat, self.capture, self.functions = call, repeat, capture, functions
        self.before = self._snapshot(hold=False)
        self.limits: list[str] = []
        self.walls: list[int] = []
        self.operations: list[Ints] = []
        self.calls: list[Ints] = []
        self.recorded: list[Ints] = []
        self.gaps: list[HostGaps] = []
        self.nested: Ints | None = None
        """How many events lie inside each operation's."""
        self.skipped = 0
        self.executions = Counter({"recorded": 1})
        """How often the program ran, by kind of run."""
        self.first_number = sequence_number()

    def measure(
        self, graph: Graph, metrics: Metrics, kept: KeptTensors, error: BaseException | None
    ) -> tuple[Metrics, tuple[str, ...], dict[str, Any]]:
        """Run repeatedly: the metrics with medians in their place, limits, and what is to be added to ``meta``."""
        self.graph, self.kept = graph, kept
        rows = read_operations(self.capture.recorder)
        self._rows = OpRows(*(column[self._seen_nodes()] for column in rows))
        self._aligned: tuple[Any, Ints] | None = None
        self.kernels = DeviceKernels(graph) if _uses_cuda(graph) else None
        after = self._snapshot(hold=True)
        reason = f"the run raised {type(error).__name__}" if error is not None else self._obstacle(after)
        if reason is None:
            self._share_memory(after)
            reason = self._run(after)
        columns = self._columns(metrics)
        if reason is not None:
            self.limits.append(
                f"{reason}; times are those of {len(self.operations) or 'the recorded'} run(s)"
            )
        return columns, tuple(Limit(text, kind="time") for text in self.limits), self._meta()

    # ---------------------------------------------------------------- state before and after

    def _snapshot(self, *, hold: bool) -> StateSnapshot:
        call = self.call
        snapshot = StateSnapshot.of_everything(hold=hold, lazy=False)
        snapshot.note_reachable(call.target, (call.args, call.kwargs, call.loss))
        return snapshot

    def _obstacle(self, after: StateSnapshot) -> str | None:
        """Why the first run cannot be undone, in words; None where it can."""
        rec, kept = self.capture.recorder, self.kept
        self.touched = {storage._cdata for storage in kept.storages.values()}
        roots = [owner for owner, *_ in rec.modules if isinstance(owner, torch.nn.Module)]
        parts = _parts(roots)
        modules = {id(part) for part in parts} | {id(row[0]) for row in rec.modules}
        for snapshot in (self.before, after):
            snapshot.keep_only(self.touched, modules)
        first_size = self._first_sizes()
        resized = [
            n for n, size in first_size.items() if n not in kept.storages or kept.storages[n].nbytes() != size
        ]
        self.empty = {number for number, size in first_size.items() if size == 0 and number in kept.storages}
        copied = {kept.storages[number]._cdata for number in {*kept.originals, *self.empty}}
        if _were_shaped(self.before, parts):
            return "not repeated: the run gives lazy parameters their shapes; call the model once before"
        if resized:
            return "not repeated: the run leaves memory from outside with another size"
        for state, tensor in _plain_changes(self.before):
            if autograd_node(tensor) is not None and version_of(tensor).writes != state.version:
                return "not repeated: the run writes in place to a tensor with a gradient history"
            if state.geometry != geometry(tensor):
                return "not repeated: the run gives a tensor from outside other memory or another shape"
            if state.geometry[0] not in copied:
                return "not repeated: the run writes to memory of which there is no copy from before"
        return None

    def _first_sizes(self) -> dict[int, int]:
        """Of memory from outside that changes its size during the run: the bytes that it had before."""
        rec = self.capture.recorder
        resized = {number for number, _, _ in rec.resizes} & rec.external_storages
        rows = zip(rec.storage_rows[::4], rec.storage_rows[1::4]) if resized else ()
        return {number: size for number, size in rows if number in resized}

    def _share_memory(self, after: StateSnapshot) -> None:
        """What is to be written back: before each run, and at the end."""
        kept, rec = self.kept, self.capture.recorder
        real = {n: s for n, s in kept.storages.items() if s.device.type != "meta"}
        # memory that is empty before the run and after it, as FSDP's of gathered parameters is, has no contents
        written = [number for number in kept.originals if number in real and number not in self.empty]
        self.before.memory = [(real[number], kept.originals[number]) for number in written]
        after.memory = [(storage, copy_of(storage)) for storage, _ in self.before.memory]
        known = {storage._cdata for storage, _ in after.memory}
        more = {
            storage._cdata: storage
            for owner in after.owners
            if isinstance(owner, torch.optim.Optimizer)  # one that steps in every fourth run only
            for _, tensor in named_tensors(tensors_of(owner))
            if (storage := storage_of(tensor)) is not None and storage.device.type != "meta"
        }
        left = [number for name, number, _, _ in rec.python_escapes if "numpy" in name or "array" in name]
        if left:  # writes through an array are not seen
            more |= {storage._cdata: storage for storage in real.values()}
        extra = [(s, copy_of(s)) for address, s in more.items() if address not in known]
        self.before.memory += extra
        after.memory += extra
        self.safe = {storage._cdata for storage, _ in after.memory} | {
            kept.storages[number]._cdata for number in self.empty
        }
        self.before.rng.add_first(kept)
        for generator in self.before.rng.states:
            after.rng.states.setdefault(generator, generator.get_state())

    def _run(self, after: StateSnapshot) -> str | None:
        """All the runs; why they ended early, in words, where they did."""
        kinds = (("plain", self._plain), ("with calls timed", self._followed), ("profiled", self._profiled))
        try:
            for turn in progress(range(self.repeat), "timing"):
                if self.kernels is None and turn < RECORDED:
                    self._again(after, "recorded", self._recorded)
                # Each kind comes after each other one: a run is faster after its like.
                for number in range(len(kinds)):
                    self._again(after, *kinds[(turn + number) % len(kinds)])
            if self.kernels is not None:
                self._run_on_device(after, self.kernels)
        except RepeatStopped as stopped:
            return str(stopped)
        finally:
            after.restore()
        return None

    def _run_on_device(self, after: StateSnapshot, kernels: DeviceKernels) -> None:
        """Those that profile the device: the last, since its profiler slows down what comes after it."""
        with device_profiler() as attached:
            # the first block of a process sets the device's profiler up
            self._again(after, "on the device", self._on_device)
            kernels.forget()
            for _ in range(min(self.repeat, RECORDED)):
                self._again(after, "recorded", self._recorded)
                self._again(after, "on the device", self._on_device)
        if attached.reason is not None:
            self.limits.append(attached.reason)

    def _again(self, after: StateSnapshot, kind: str, turn: Callable[[], None]) -> None:
        self.before.restore()
        _wake(self.kernels)
        self.executions[kind] += 1
        turn()
        for state, _ in _plain_changes(after):
            if state.geometry[0] not in self.safe:
                raise RepeatStopped(
                    "a repeated run wrote to memory that the first did not write to, and stayed the last"
                )

    # ---------------------------------------------------------------- the kinds of run

    def _go(self) -> None:
        try:
            self.call()
        except Exception as error:  # the program's own; it did not raise in the first run
            raise RepeatStopped(f"a repeated run raised {type(error).__name__}: {error}") from error

    def _plain(self) -> None:
        start = clock()
        self._go()
        _settle(self.kernels)
        self.walls.append(clock() - start)

    def _followed(self) -> None:
        calls = self._follow()
        if calls is not None:
            self.calls.append(np.maximum(calls[:, 2] - calls[:, 1], 0))

    def _follow(self) -> Ints | None:
        """Parent, begin and end of each call of a module; None where others are called than in the first run."""
        rec = Recorder(keep=False, memory=False)
        rec.operations = False
        with ModuleCalls(
            rec, frozenset(id(part) for _, root in self.capture.roots for part in root.modules())
        ):
            start = clock()
            self._go()
            ended = clock()
        rec.closed = True
        rows = table(rec.scopes, 6)
        rows[0, 2], rows[0, 3] = start, ended
        # by name: some programs make modules, and even their classes, anew in each run
        called = [type(rec.modules[module][0]).__name__ for module in rows[1:, 0].tolist()]
        first = [type(owner).__name__ for owner in self._owners() if owner is not None]
        return rows[:, 1:4] if called == first else None

    def _owners(self) -> list[Any]:
        """What each scope of the first run is a call of, where that is followed without a mode too; else None."""
        rec = self.capture.recorder
        owners = [rec.modules[row[0]][0] for row in rec.scopes[1:]]
        return [owner if isinstance(owner, FOLLOWED) else None for owner in owners]

    def _profiled(self) -> None:
        """The profiler without the recorder and without the device, each of which slows the host down."""
        timeline, events, _ = self._profile(cuda=False, gaps=self.gaps)
        spent = np.full(len(events), np.nan)
        has = events >= 0
        spent[has] = (timeline.stop - timeline.start)[events[has]]
        self.operations.append(spent)

    def _on_device(self) -> None:
        """What a device does at about the run's own pace."""
        assert self.kernels is not None
        timeline, events, (start, ended) = self._profile(cuda=True)
        self.kernels.add_alone(start, timeline.until(ended), events, self._seen_nodes())

    def _profile(
        self, *, cuda: bool, gaps: list[HostGaps] | None = None
    ) -> tuple[Timeline, Ints, tuple[int, int]]:
        """A run under the profiler: what it saw, the event of each operation, and when the run began and ended."""
        first_number = sequence_number()
        with Profiling(cuda=cuda) as profile:
            start = clock()
            scopes = self._follow()
            ended = clock()
        events: Ints = np.full(len(self._rows.call), -1, dtype=np.int64)
        if scopes is not None:
            pieces = pieces_of_events(profile.timeline, scopes, first_number)
            events, self.nested = self._align(profile.timeline, pieces)
            if gaps is not None:
                gaps.append(host_gaps(profile.timeline, events, scopes))
        return profile.timeline, events, (start, ended)

    def _align(self, timeline: Timeline, pieces: Pieces) -> tuple[Ints, Ints]:
        """The event of each operation, -1 for none, and how many events lie inside it."""
        after = ends(timeline)
        key = (after.tolist(), pieces.names, pieces.scope.tolist(), pieces.backward.tolist())
        if self._aligned is None or self._aligned[0] != key:  # most runs are like the one before
            self._aligned = key, align(self._pieces(), pieces, after)
        events = self._aligned[1]
        return events, (after - np.arange(1, len(after) + 1))[events] if len(after) else events

    def _pieces(self) -> Pieces:
        """The pieces that the first run's operations lie in."""
        rows = self._rows
        backward = np.where(rows.backward >= 0, rows.backward - self.first_number, rows.backward)
        names = [call.op.partition(".")[0] for call in self.graph.calls]
        return Pieces(
            self._followed_scopes()[rows.scope], backward, [names[call] for call in rows.call.tolist()]
        )

    def _recorded(self) -> None:
        modules = [root for _, root in self.capture.roots]
        capture = Capture(*modules, keep=False, memory=False, functions=self.functions)
        with Profiling(cuda=self.kernels is not None) as profile, capture:
            self._go()
        rec, rows = capture.recorder, read_operations(capture.recorder)
        ops, names = [info.call.op for info in rec.calls], [call.op for call in self.graph.calls]
        if [ops[call] for call in rows.call] != [names[call] for call in self._rows.call]:
            self.skipped += 1
            return
        timeline = profile.timeline
        matched = match(rows, [op.partition(".")[0] for op in ops], timeline)
        spent, has = rows.stop - rows.start, matched.event >= 0
        spent[has] = (timeline.stop - timeline.start)[matched.event[has]]
        self.recorded.append(spent)
        if self.kernels is not None:
            self.kernels.add(timeline.until(capture.ended), matched, self._seen_nodes())

    def _seen_nodes(self) -> Ints:
        """The operations that a recording has in any case; writes that only a replay needs are not among them."""
        unseen = np.array([call.op == UNSEEN for call in self.graph.calls] or [False], dtype=bool)
        return np.flatnonzero(~unseen[self.graph.node_call] if len(self.graph) else np.zeros(0, dtype=bool))

    # ---------------------------------------------------------------- results

    def _columns(self, metrics: Metrics) -> Metrics:
        for column in self._measured_columns(metrics):
            metrics = metrics.with_column(column)
        return metrics

    def _measured_columns(self, metrics: Metrics) -> Iterator[Column]:
        if self.skipped:
            self.limits.append(
                f"{self.skipped:,} of {self.skipped + len(self.recorded):,} repeated runs did other operations than "
                "the first; times are the first run's"
            )
        elif self.operations and not (self.calls and self.gaps):
            self.limits.append("the repeated runs called other modules; times are the first run's")
        if self.skipped or not (self.operations and self.recorded and self.calls and self.gaps):
            self.operations.clear()
            return
        yield from self._added_up(metrics["time_ns"].values, *self._spread())
        if self.kernels is not None:
            yield from self.kernels.columns()
            self.limits += self.kernels.limits()

    def _spread(self) -> tuple[Any, Any]:
        """Median and quartiles of each operation, of the profiled runs; and those that only recorded runs have."""
        profiled = np.stack(self.operations)
        if self.nested is not None:  # half of an event's cost falls before or after its own time
            profiled = np.maximum(profiled - event_ns() * (self.nested + 0.5), 0)
        alike: Any = np.isfinite(profiled).all(axis=0)
        loose = int((~alike).sum())
        if loose:
            self.limits.append(
                f"{loose:,} operations that torch runs in another form where nothing records; their times are "
                "those under the recorder"
            )
        rows = np.where(alike, _quartiles(np.where(alike, profiled, 0)), _quartiles(np.stack(self.recorded)))
        return rows, ~alike

    def _added_up(self, first: Ints, spread: Any, unlike: Any) -> Iterator[Column]:
        """Times of operations and of scopes: of calls as measured, of functions by the operations in them."""
        graph, nodes = self.graph, self._seen_nodes()
        followed = self._followed_scopes()
        rows = np.flatnonzero([True, *(owner is not None for owner in self._owners())])
        parent = np.where(rows > 0, followed[graph.scope_parent[rows]], -1)
        runs = np.stack(self.calls)
        own = agreed(runs, parent)
        last = self.gaps[-1].call
        call = np.where(last >= 0, last, followed[self._rows.scope])
        host = np.median([run.host for run in self.gaps], axis=0)
        host = np.maximum(host - np.bincount(call[unlike], weights=spread[0][unlike], minlength=len(own)), 0)
        rate = time_factors(own, call, spread[0], host)
        times = [np.floor(row * rate).astype(np.int64) for row in spread]
        for name, time in zip(("time_ns", "time_low_ns", "time_high_ns"), times):
            yield Column(name, _with_rows(np.zeros_like(first), nodes, time))
        inside = (graph.node_phase[nodes] != Phase.BACKWARD) & (call == followed[graph.node_scope[nodes]])
        inclusive = with_functions(
            own, rows, graph.scope_parent, graph.node_scope[nodes], np.where(inside, times[0], 0)
        )
        yield from scope_columns(inclusive, rows, graph.scope_parent, _quartiles(runs))

    def _followed_scopes(self) -> Ints:
        """For each scope of the first run its number among the followed ones, or that of the followed one around it."""
        followed, number = [0], 0
        for row, owner in zip(self.capture.recorder.scopes[1:], self._owners()):
            number += owner is not None
            followed.append(number if owner is not None else followed[row[1]])
        return np.array(followed, dtype=np.int64)

    def _meta(self) -> dict[str, Any]:
        meta: dict[str, Any] = {"repeat": len(self.operations), "executions": dict(self.executions)}
        if self.walls:
            middle, low, high = _quartiles(np.array(self.walls)).tolist()
            meta |= {"plain_wall_ns": middle, "plain_wall_low_ns": low, "plain_wall_high_ns": high}
        if self.kernels is not None and self.operations:
            meta["device_time"] = self.kernels.meta()
        return meta


def _plain_changes(snapshot: StateSnapshot) -> Iterator[tuple[TensorState, torch.Tensor]]:
    """The changed tensors; not DTensors, whose local parts are among them."""
    return (change for change in snapshot.changes() if not is_wrapper(type(change[1])))


def _parts(roots: list[torch.nn.Module]) -> list[torch.nn.Module]:
    """These modules and all inside them, each once: many of them may contain others of them."""
    memo: set[torch.nn.Module] = set()
    return [part for root in roots for _, part in root.named_modules(memo)]


def _were_shaped(before: StateSnapshot, parts: list[torch.nn.Module]) -> bool:
    """Whether lazy parameters of these modules have got their shapes since."""
    tables = [table for part in parts for table in (part._parameters, part._buffers)]
    own = {id(tensor) for table in tables for tensor in table.values() if tensor is not None}
    lazy = [tensor for ref in before.shapeless if (tensor := ref()) is not None]
    return any(id(tensor) in own and not is_lazy(tensor) for tensor in lazy)


def _uses_cuda(graph: Graph) -> bool:
    return torch.cuda.is_available() and any(device.startswith("cuda") for device in graph.devices)


def _wake(kernels: DeviceKernels | None) -> None:
    """Wake what slept while state was put back."""
    torch.ones(8).add_(1)
    if kernels is not None:
        torch.ones(8, device="cuda").add_(1)
    _settle(kernels)


def _settle(kernels: DeviceKernels | None) -> None:
    if kernels is not None:
        torch.cuda.synchronize()


def _with_rows(base: Ints, rows: Ints, values: Ints) -> Ints:
    """A copy of a column with other values in some rows."""
    column = base.copy()
    column[rows] = values
    return column


def _quartiles(runs: Any) -> Ints:
    """Median, lower and upper quartile over runs."""
    quartiles: Ints = np.quantile(runs, (0.5, 0.25, 0.75), axis=0).round().astype(np.int64)
    return quartiles


# ---------------------------------------------------------------- times that add up


class HostGaps(NamedTuple):
    """Of one profiled run: the time of the host alone in each call of a module, and where each operation ran."""

    host: Any
    call: Ints
    """The call of a module that each operation ran in, by time; -1 for an operation that is no event."""


def host_gaps(timeline: Timeline, events: Ints, scopes: Ints) -> HostGaps:
    """What the host did besides operations and besides the calls inside a call.

    ``events`` are those of the operations; ``scopes`` has parent, begin and end of the calls of that run. The time of
    the profiler itself is taken off.
    """
    count, cost = len(scopes), event_ns()
    after, lasted = ends(timeline), timeline.stop - timeline.start
    times, inner = current(scopes)
    running = inner[np.searchsorted(times, timeline.start, side="right")]
    has = events >= 0
    own = events[has]
    inside = np.zeros(len(after) + 1, dtype=np.int64)
    np.add.at(inside, own, 1)
    np.add.at(inside, after[own], -1)
    others = np.flatnonzero(np.cumsum(inside)[:-1] == 0)
    took = np.where(scopes[:, 2] > 0, scopes[:, 2] - scopes[:, 1], 0)
    left = Tree(scopes[:, 0]).own(took)
    # half of an event's cost falls before or after its own time
    spent = np.bincount(running[own], weights=lasted[own] + cost / 2, minlength=count)
    spent = spent + cost * np.bincount(running[others], minlength=count)
    call = np.full(len(events), -1, dtype=np.int64)
    call[has] = running[own]
    return HostGaps(np.maximum(left - spent, 0), call)


def agreed(runs: Any, parent: Ints) -> Ints:
    """The own time of each call, from the time of all calls run by run: the whole is the median of the whole.

    >>> runs = np.array([[10, 6, 2], [12, 6, 3], [14, 7, 4]])  # a call with two others in it
    >>> agreed(runs, np.array([-1, 0, 0])).tolist()
    [3, 6, 3]
    """
    tree = Tree(parent)
    own = tree.own(runs)
    own_middle, own_most = np.maximum(np.median(own, axis=0), 0).tolist(), own.max(axis=0).tolist()
    middle, most = np.median(runs, axis=0).tolist(), runs.max(axis=0).tolist()
    whole, agreed_own = middle.copy(), [0.0] * len(middle)
    # Parents come first.
    for call, parts in enumerate(tree.children):
        agreed_own[call], *rest = shares(
            whole[call],
            [own_middle[call], *(middle[part] for part in parts)],
            [own_most[call], *(most[part] for part in parts)],
        )
        for part, share in zip(parts, rest):
            whole[part] = share
    return np.round(agreed_own).astype(np.int64)


def shares(whole: float, middle: list[float], most: list[float]) -> list[float]:
    """Parts that add up to the whole: in the ratio of their medians, but none above its maximum as far as possible.

    >>> shares(10, [4, 4], [4, 9])
    [4.0, 6.0]
    """
    together = sum(middle)
    rate = whole / together if together > 0 else 0.0
    parts = [share * rate if rate <= 1 else min(share * rate, limit) for share, limit in zip(middle, most)]
    left = whole - sum(parts)
    room = [max(limit - share, 0.0) for share, limit in zip(parts, most)]
    if left > 0 and sum(room) > 0:
        given = min(left / sum(room), 1.0)
        parts = [share + spare * given for share, spare in zip(parts, room)]
    parts[0] += max(whole - sum(parts), 0.0)
    return parts


def time_factors(own: Ints, call: Ints, spent: Any, host: Any) -> Any:
    """The factor for the time of each operation: with the host's, they then add up to their call's own time.

    ``call`` is that in which an operation ran, ``spent`` its time under the profiler, ``host`` the host's time besides
    operations, by call.

    >>> time_factors(np.array([10]), np.array([0, 0]), np.array([8, 8]), np.array([4])).tolist()
    [0.5, 0.5]
    """
    together = np.bincount(call, weights=spent, minlength=len(own)) + host
    rate = np.divide(own, together, out=np.zeros(len(own)), where=together > 0)
    return rate[call]


def with_functions(own: Ints, rows: Ints, parent: Ints, node_scope: Ints, time: Ints) -> Ints:
    """The time of all scopes, from the own time of those that are calls of modules (``rows``).

    Others have the time of operations in them (``time``, 0 for those that ran elsewhere), and what is inside them.
    """
    times = np.zeros(len(parent), dtype=np.int64)
    times[rows] = own
    within = np.zeros(len(parent), dtype=bool)
    within[rows] = True
    tree = Tree(parent)
    nearest = tree.nearest(within)
    other = ~within[node_scope]
    np.add.at(times, node_scope[other], time[other])
    np.subtract.at(times, nearest[node_scope[other]], time[other])
    return tree.inclusive(times)


def scope_columns(inclusive: Ints, rows: Ints, parent: Ints, quartiles: Any) -> Iterator[Column]:
    """Inclusive and own time of all scopes, and the quartiles of those that were timed (``rows``).

    These are as far from what the call came to, in proportion, as they were from its median.
    """
    middle, *spread = quartiles
    yield Column("scope_time_ns", inclusive, along="scope")
    rate = np.divide(inclusive[rows], middle, out=np.ones(len(rows)), where=middle > 0)
    for name, bounds, bound in zip(("low", "high"), spread, (np.minimum, np.maximum)):
        column = inclusive.copy()
        column[rows] = bound(np.round(bounds * rate).astype(np.int64), inclusive[rows])
        yield Column(f"scope_time_{name}_ns", column, along="scope")
    yield Column("scope_self_ns", Tree(parent).own(inclusive), along="scope")


NAMES_SHOWN = 3


class DeviceRun(NamedTuple):
    """One run's activity on devices, by device, stream and time, with the node of each row; -1: no operation's."""

    names: list[str]
    device: Ints
    node: Ints
    waits: Ints
    waiting: Ints


class DeviceKernels:
    """Gathers runs under recorder and profiler (which kernel is whose) and under the profiler alone (when it ran)."""

    def __init__(self, graph: Graph) -> None:
        self.graph = graph
        self._alone: list[tuple[int, DeviceRun]] = []
        self._runs: list[DeviceRun] = []
        self._known = np.zeros(len(graph), dtype=bool)

    def forget(self) -> None:
        """Leave out what has been gathered so far: it was a rehearsal."""
        self._alone.clear()

    def add(self, timeline: Timeline, matched: Match, kept: Ints) -> None:
        """Take up a run whose events are matched to operations; ``kept`` are the nodes of those."""
        self._known[kept] = True
        self._runs.append(_run(timeline, matched.owner, kept))

    def add_alone(self, start: int, timeline: Timeline, events: Ints, kept: Ints) -> None:
        """Take up a run without a recorder that began at ``start``; ``events`` are those of the operations."""
        owner, after = np.full(len(timeline.start), -1, dtype=np.int64), ends(timeline)
        for node, event in enumerate(events.tolist()):
            if event >= 0:
                owner[event : after[event]] = node
        self._alone.append((start, _run(timeline, owner, kept)))

    def columns(self) -> Iterator[Column]:
        """Device time of each operation, over runs, and when its first kernel began."""
        if not any(len(run.device) for run in self._runs):
            return
        count = len(self.graph)
        sums = []
        for run in self._runs:
            own = run.node >= 0
            spent = (run.device[:, 2] - run.device[:, 1])[own]
            sums.append(np.bincount(run.node[own], weights=spent, minlength=count))
        middle, low, high = np.quantile(np.stack(sums), (0.5, 0.25, 0.75), axis=0).round().astype(np.int64)
        yield Column("kernel_ns", middle, known=self._known)
        yield Column("kernel_low_ns", low, known=self._known)
        yield Column("kernel_high_ns", high, known=self._known)
        run, origin = self._shown()
        own = run.node >= 0
        first = np.full(count, np.iinfo(np.int64).max)
        np.minimum.at(first, run.node[own], run.device[own, 1] - origin)
        launched = first < np.iinfo(np.int64).max
        yield Column("kernel_start_ns", np.where(launched, first, 0), known=launched)

    def limits(self) -> list[str]:
        """What has no operation, in sentences."""
        if not any(len(run.device) for run in self._runs):
            return ["the profiler saw nothing on the device, so there are no kernel times"]
        run = self._runs[-1]
        stray = np.flatnonzero(run.node < 0)
        if not len(stray):
            return []
        often = Counter(run.names[name] for name in run.device[stray, 0].tolist())
        spent = int((run.device[stray, 2] - run.device[stray, 1]).sum())
        shown = and_more([f"{name[:60]} × {times}" for name, times in often.most_common()], NAMES_SHOWN)
        return [
            f"{len(stray):,} of {len(run.node):,} kernels ({spent / 1e3:,.1f} µs) were launched by no recorded "
            f"operation: {shown}"
        ]

    def meta(self) -> dict[str, Any]:
        """The run at its own pace whose device span is the median, as plain columns; times from its beginning on."""
        run, origin = self._shown()
        names = sorted({run.names[name] for name in [*run.device[:, 0].tolist(), *run.waits[:, 0].tolist()]})
        number = {name: index for index, name in enumerate(names)}
        recorded = self._runs[-1]
        return {
            "names": names,
            "kernel_name": [number[run.names[name]] for name in run.device[:, 0].tolist()],
            "kernel_node": run.node.tolist(),
            "kernel_start_ns": (run.device[:, 1] - origin).tolist(),
            "kernel_time_ns": (run.device[:, 2] - run.device[:, 1]).tolist(),
            "kernel_device": run.device[:, 4].tolist(),
            "kernel_stream": run.device[:, 5].tolist(),
            "wait_name": [number[run.names[name]] for name in run.waits[:, 0].tolist()],
            "wait_node": run.waiting.tolist(),
            "wait_start_ns": (run.waits[:, 1] - origin).tolist(),
            "wait_time_ns": (run.waits[:, 2] - run.waits[:, 1]).tolist(),
            "total_ns": int((recorded.device[:, 2] - recorded.device[:, 1]).sum()),
            "unmatched": int((recorded.node < 0).sum()),
        }

    def _shown(self) -> tuple[DeviceRun, int]:
        """The middle one of the runs without the recorder, with the nodes of a recorded one where they did the same."""
        recorded = self._runs[-1]
        if not self._alone:
            return recorded, int(recorded.device[:, 1].min())
        timed = sorted(self._alone, key=lambda row: _span(row[1].device))
        origin, run = timed[len(timed) // 2]
        if _names(run, run.device) == _names(recorded, recorded.device):
            run = run._replace(node=recorded.node)
        if _names(run, run.waits) == _names(recorded, recorded.waits):
            run = run._replace(waiting=recorded.waiting)
        return run, origin


def _run(timeline: Timeline, owner: Ints, kept: Ints) -> DeviceRun:
    """What ran on devices with the nodes of it; ``owner`` are the operations of events, ``kept`` the nodes of those."""
    device = _ordered(timeline.device)
    of = {int(number): int(node) for number, node in zip(timeline.number, np.append(kept, -1)[owner])}

    def nodes(linked: Ints) -> Ints:
        return np.array(
            [of.get(number, -1) if number > 0 else -1 for number in linked.tolist()], dtype=np.int64
        )

    return DeviceRun(timeline.names, device, nodes(device[:, 3]), timeline.waits, nodes(timeline.waits[:, 3]))


def _names(run: DeviceRun, rows: Ints) -> list[str]:
    return [run.names[name] for name in rows[:, 0].tolist()]


def _ordered(device: Ints) -> Ints:
    ordered: Ints = device[np.lexsort((device[:, 1], device[:, 5], device[:, 4]))]
    return ordered


def _span(device: Ints) -> int:
    return int(device[:, 2].max() - device[:, 1].min()) if len(device) else 0
