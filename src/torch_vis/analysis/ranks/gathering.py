"""Ranks brought together: over the network while they run, or from the files that they left."""

from __future__ import annotations

import glob
import io
import os
import time
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, overload

from torch_vis._trace import Trace
from torch_vis.analysis.ranks.agreement import compared, serve
from torch_vis.analysis.ranks.by_rank import rank_spans
from torch_vis.analysis.ranks.meetings import CUT_SHORT
from torch_vis.analysis.ranks.waiting import off_by
from torch_vis.analysis.ranks.world import World, traces_by_rank
from torch_vis.api import load
from torch_vis.errors import UsageError
from torch_vis.graph.io import tvz
from torch_vis.graph.text import duration

if TYPE_CHECKING:
    import torch.distributed as dist

ROUND_TRIPS = 16
# what one host's clocks cannot be apart, whatever else it does
ANOTHER_STEP_NS = 50_000_000
JOINED = "the joined ranks"


@overload
def join(ranks: Trace, *, partial: bool = False, check: bool | None = None) -> World | None: ...
@overload
def join(
    ranks: str | os.PathLike[str] | Iterable[Trace | World | str | os.PathLike[str]],
    *,
    partial: bool = False,
    check: bool | None = None,
) -> World: ...
def join(ranks: Any, *, partial: bool = False, check: bool | None = None) -> World | None:
    """The ranks of one job as one ``World``.

    Called on all ranks with the trace of each (``w = tv.join(t)``), it gathers them on rank 0, where it gives the world
    (None on the others); it talks over a group of its own. ``check`` is whether ranks then compare what they gave and
    got (see ``World.check``): without it, they do where all hold their tensors. Or called anywhere with files (a
    pattern, or paths) or with the traces of all ranks. ``partial`` takes ranks of which others are missing.

    >>> import torch_vis as tv
    >>> try:
    ...     tv.join("no_such_step.r*.tvz")
    ... except tv.errors.UsageError as error:
    ...     print(error)
    no file is called 'no_such_step.r*.tvz'
    """
    if isinstance(ranks, Trace):
        return _join_live(ranks, check=check)
    if check:
        raise UsageError("check= compares tensors of running ranks: call tv.join(t) on all of them")
    if isinstance(ranks, (str, os.PathLike)):
        ranks = _files(ranks)
    if not isinstance(ranks, Iterable):
        raise UsageError(f"join() takes a trace, traces, files or a pattern, not {type(ranks).__name__}")
    traces: list[Trace] = []
    for item in ranks:
        loaded = item if isinstance(item, (Trace, World)) else load(item)
        traces.extend(loaded if isinstance(loaded, World) else [loaded])
    if not traces:
        raise UsageError("there is nothing to join")
    return world_of(traces_by_rank(traces), partial=partial)


def _files(pattern: str | os.PathLike[str]) -> list[str]:
    text = os.fspath(pattern)
    files = [text] if os.path.exists(text) else sorted(glob.glob(text))
    if not files:
        raise UsageError(f"no file is called {text!r}")
    return files


def world_of(
    traces: Mapping[int, Trace],
    *,
    partial: bool = False,
    measured: Mapping[int, tuple[int, int]] | None = None,
) -> World:
    """A world of traces that are ranks of one step; raises where they cannot be."""
    _same_job(traces, partial)
    world = World(traces, measured=measured)
    _same_program(world)
    _same_step(world)
    return world


def _same_job(traces: Mapping[int, Trace], partial: bool) -> None:
    first = min(traces)
    for rank, trace in traces.items():
        for fact, words in (
            ("world_size", "jobs of another size"),
            ("script", "different scripts"),
            ("traced", "different steps"),
            ("mesh", "different meshes"),
        ):
            here, there = traces[first].meta.get(fact), trace.meta.get(fact)
            if fact == "traced":
                here, there = (str(label).removesuffix(CUT_SHORT) for label in (here, there))
            if here != there and not (fact == "mesh" and (here is None or there is None)):
                raise UsageError(
                    f"ranks {first} and {rank} are of {words}: {_plain(here)} and {_plain(there)}"
                )
    count = int(traces[first].meta.get("world_size") or len(traces))
    missing = sorted(set(range(count)) - set(traces))
    if missing and not partial:
        raise UsageError(
            f"of {count} ranks {rank_spans(missing)} {'is' if len(missing) == 1 else 'are'} missing; "
            "partial=True joins those that are there"
        )


def _plain(fact: Any) -> str:
    if isinstance(fact, dict):
        return ", ".join(f"{axis}={count}" for axis, count in fact.items())
    return str(fact)


def _same_program(world: World) -> None:
    """Raise if ranks have neither a collective nor a source file in common."""
    files = {rank: {site.file for site in world[rank].graph.sites} for rank in world.ranks}
    first = min(files)
    met = {rank for row in world.meetings if first in row.parts for rank in row.parts}
    for rank, names in files.items():
        if rank not in met and names and files[first] and not names & files[first]:
            raise UsageError(
                f"ranks {first} and {rank} are of different programs: they have no collective and no source file in "
                f"common ({min(map(os.path.basename, files[first]))} and {min(map(os.path.basename, names))})"
            )


def _same_step(world: World) -> None:
    """Raise if the clocks say that ranks cannot have met."""
    runs = {rank: world[rank] for rank in world.ranks}
    backends = {group.backend for run in runs.values() for group in run.graph.groups}
    if "fake" in backends or any(run.meta.get("fake") for run in runs.values()):
        return
    wrong = off_by(runs, world.meetings, world.exchanges, world.clocks)
    rank = max(wrong, key=lambda item: wrong[item], default=None)
    if rank is not None and wrong[rank] > ANOTHER_STEP_NS + 2 * (world.clocks[rank].error_ns or 0):
        raise UsageError(
            f"ranks {min(runs)} and {rank} are of different steps: by their clocks they missed each other by "
            f"{duration(wrong[rank])}"
        )


# ---------------------------------------------------------------- ranks that run


def _join_live(trace: Trace, check: bool | None) -> World | None:
    import torch.distributed as dist

    if not dist.is_available() or not dist.is_initialized():
        raise UsageError(
            "join(t) is for ranks that run, and this process is none: start it with torchrun, or give join() files"
        )
    if dist.get_backend() == "fake":
        raise UsageError(
            "the other ranks of a fake process group are not there; tv.join takes a list of traces"
        )
    if trace.meta.get("rank") != dist.get_rank():
        raise UsageError(f"this is rank {dist.get_rank()}, and the trace is of rank {trace.meta.get('rank')}")
    group = dist.new_group(backend="gloo")
    try:
        return _Gathering(trace, group).world(check)
    finally:
        dist.destroy_process_group(group)


class _Gathering:
    """One join: rank 0 collects, the others send."""

    def __init__(self, trace: Trace, group: dist.ProcessGroup) -> None:
        import torch.distributed as dist

        self.trace, self.group = trace, group
        self.rank, self.count = dist.get_rank(), dist.get_world_size()

    def world(self, check: bool | None) -> World | None:
        """The world on rank 0; None on the others."""
        import torch.distributed as dist

        measured = self._clocks()
        data = io.BytesIO()
        problem = None
        try:
            tvz.write(data, self.trace)
        except Exception as error:
            problem = f"rank {self.rank}: {type(error).__name__}: {error}"
        held = self.trace.kept is not None and not self.trace.meta.get("fake")
        mine = (data.getvalue(), held, problem)
        every: list[Any] | None = [None] * self.count if self.rank == 0 else None
        dist.gather_object(mine, every, dst=0, group=self.group)
        if every is None:
            serve(self.trace, self._receive_plan(), self._send)
            return None
        world: World | None = None
        failed: Exception | None = None
        plan: list[Any] | None = None
        try:
            world = self._put_together(every, measured)
            wanted = all(row[1] for row in every) if check is None else check
            if check and not all(row[1] for row in every):
                raise UsageError("check=True, and not all ranks hold their tensors: trace with hold=True")
            if wanted and not world.problems:
                plan = [(row.members, row.parts) for row in world.meetings]
        except Exception as error:
            failed = error
        # the others wait for this, whatever came of it
        dist.broadcast_object_list([plan or []], src=0, group=self.group)
        if failed is not None:
            raise failed
        assert world is not None
        if plan is not None:
            return World(
                {rank: world[rank] for rank in world.ranks},
                measured=measured,
                agreement=compared(self.trace, world, self._receive),
            )
        return world

    def _put_together(self, every: Sequence[Any], measured: Mapping[int, tuple[int, int]]) -> World:
        for _, _, problem in every:
            if problem:
                raise UsageError(f"the ranks cannot be joined: {problem}")
        traces = {0: self.trace}
        for rank, (data, _, _) in enumerate(every):
            if rank:
                traces[rank] = Trace.of(tvz.read(JOINED, data, float("inf")))
        return world_of(traces_by_rank(list(traces.values())), measured=measured)

    def _receive_plan(self) -> list[Any]:
        import torch.distributed as dist

        plan: list[Any] = [None]
        dist.broadcast_object_list(plan, src=0, group=self.group)
        return list(plan[0])

    def _send(self, tensor: Any) -> None:
        import torch.distributed as dist

        dist.send(tensor, 0, group=self.group)

    def _receive(self, rank: int, tensor: Any) -> None:
        import torch.distributed as dist

        dist.recv(tensor, rank, group=self.group)

    def _clocks(self) -> dict[int, tuple[int, int]]:
        """On rank 0: how far the clock of each rank of another host is off, by the fastest of some round trips."""
        import platform

        import torch
        import torch.distributed as dist

        hosts: list[Any] = [None] * self.count
        dist.all_gather_object(hosts, platform.node(), group=self.group)
        measured: dict[int, tuple[int, int]] = {}
        stamp = torch.zeros(1, dtype=torch.int64)
        for rank in range(1, self.count):
            rows = []
            for _ in range(ROUND_TRIPS):
                if self.rank == 0:
                    begin = time.time_ns()
                    dist.send(stamp, rank, group=self.group)
                    dist.recv(stamp, rank, group=self.group)
                    end = time.time_ns()
                    rows.append((end - begin, (begin + end) // 2 - int(stamp)))
                elif self.rank == rank:
                    dist.recv(stamp, 0, group=self.group)
                    stamp[0] = time.time_ns()
                    dist.send(stamp, 0, group=self.group)
            if rows:
                trip, offset = min(rows)
                # the clock of one host is one clock, unless what was measured rules that out
                if hosts[rank] != hosts[0] or abs(offset) > trip:
                    measured[rank] = (offset, trip // 2)
        return measured
