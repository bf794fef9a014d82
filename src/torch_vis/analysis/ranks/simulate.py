"""A world that is not there: each distinct rank of a mesh is traced by shapes in this process, the rest are copies."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from torch_vis._trace import Trace
from torch_vis.analysis.machine.calibration import Calibration, machine
from torch_vis.analysis.machine.hardware import Hardware
from torch_vis.analysis.ranks.by_rank import rank_spans
from torch_vis.analysis.ranks.places import Mesh, local_shape
from torch_vis.analysis.ranks.step_time import Link, links_of, predicted_runs
from torch_vis.analysis.ranks.world import World
from torch_vis.capture.fake import SimulatedRun, simulated_run
from torch_vis.capture.fake_ranks import ShapesMissing, StageShapes
from torch_vis.capture.state import older_objects_aside
from torch_vis.errors import UsageError
from torch_vis.graph.run import Limit
from torch_vis.graph.schema import Placement
from torch_vis.graph.text import and_more
from torch_vis.replay.held_run import with_costs

# a program that asks for the number of its rank may do something else on each: up to here all are traced
MOST_TRACED = 16
# rounds in which stages of a pipeline tell each other their shapes
MOST_TRIES = 256


def simulate(
    make: Callable[[Any], Callable[..., Any]],
    batch: Any = None,
    *,
    mesh: Mapping[str, int],
    hardware: Any = None,
    links: Mapping[str, Any] | None = None,
    ranks: str | Iterable[int] | None = None,
    assume: Mapping[str, str] | None = None,
) -> World:
    """Trace a parallel training step by shapes on a mesh of ranks that are not there, as one ``World``.

    ``make(mesh)`` gets a ``DeviceMesh`` with these axes and builds all that a rank builds (model, sharding, optimizer);
    it gives the step, which is called with ``batch``: what one rank gets, real tensors or of shapes alone. Nothing is
    allocated and nobody is talked to: the process group is torch's own fake one. The step is one from the middle of a
    training, so that the optimizer has its state. Ranks that would do the same are traced once: those of one place on
    each axis that the program asks for its place on (``mesh.get_local_rank("pp")``), with shards of one size. ``ranks``
    traces these, or ``"all"``.

    With ``hardware`` (a name, see ``tv.hardware.known``, or a calibration) every operation gets a predicted time, and
    collectives get theirs from ``links``: by axis ``"450 GB/s"``, or bandwidth and latency, ``("50 GB/s", "5 us")``.
    Then ``w.step_time()`` says how long the step takes and what it waits for.

    >>> import torch, torch_vis as tv
    >>> from torch.distributed.fsdp import fully_shard
    >>> def make(mesh):
    ...     model = fully_shard(torch.nn.Linear(1000, 1000), mesh=mesh["dp"])
    ...     return lambda x: model(x).sum().backward()
    >>> w = tv.simulate(make, torch.ones(1, 1000), mesh={"dp": 4})
    >>> len(w), w[3].meta["coordinates"], w[3].communication().bytes
    (4, {'dp': 3}, 8008000)
    """
    layout = Mesh.of(mesh)
    if not callable(make):
        raise UsageError(f"make is a function of the mesh that gives the step, not {type(make).__name__}")
    device = None if hardware is None else machine(hardware)
    if links is not None and device is None:
        raise UsageError("links= are for predicted times; say hardware= as well, e.g. hardware='H100 SXM'")
    speeds = None if device is None else links_of(layout.axes, device, links)
    simulation = Simulation(make, batch, layout, assume=assume)
    with older_objects_aside():
        world = simulation.world(_chosen(ranks, layout.size))
    return world if device is None or speeds is None else predicted(world, device, speeds)


def predicted(world: World, device: Calibration | Hardware, links: Mapping[str, Link]) -> World:
    """The world with predicted times for all that its ranks do."""
    if world.problems:
        raise UsageError(
            f"ranks do not agree, so that no time can be predicted: {and_more(world.problems, 2)}"
        )
    runs = {rank: world[rank] for rank in world.exchanges}
    timed = predicted_runs(runs, world.exchanges, world.meetings, device, links)
    return world.with_traces({rank: Trace.of(run) for rank, run in timed.items()})


def _chosen(ranks: str | Iterable[int] | None, size: int) -> list[int] | None:
    if ranks is None:
        return None
    if ranks != "all" and (isinstance(ranks, str) or not isinstance(ranks, Iterable)):
        raise UsageError(
            f"ranks are numbers from 0 to {size - 1}, as in [0, {size - 1}], or 'all', not {ranks!r}"
        )
    chosen: list[Any] = list(range(size)) if ranks == "all" else list(ranks)
    for rank in chosen:
        if type(rank) is not int or not 0 <= rank < size:
            raise UsageError(f"ranks are numbers from 0 to {size - 1}, or 'all', not {rank!r}")
    return chosen


class Simulation:
    """One program on one mesh, of which ranks are traced as they are asked for."""

    def __init__(
        self,
        make: Callable[[Any], Any],
        batch: Any,
        mesh: Mesh,
        *,
        assume: Mapping[str, str] | None = None,
        prepare: Callable[[Any], None] | None = None,
    ) -> None:
        self.make, self.batch, self.mesh = make, batch, mesh
        self._shapes, self._assume, self._prepare = StageShapes(), assume, prepare
        self.traces: dict[int, Trace] = {}
        self.asked: set[str] = set()
        """The axes on which the program asked for its place."""
        self.asked_rank: str | None = None
        """The line that asked for the number of the rank itself, or built what is divided by it."""
        self.placements: dict[Placement, None] = {}

    def world(self, ranks: Sequence[int] | None = None) -> World:
        """All ranks; those that are given, or else each that is distinct, traced."""
        if ranks is not None:
            for rank in ranks:
                self.trace(rank)
        else:
            self.trace(0)
            while missing := [rank for rank in self.distinct() if rank not in self.traces]:
                for rank in missing:
                    self.trace(rank)
        kinds = {self._kind(rank): rank for rank in reversed(self.traces)}
        copies = {}
        for rank in range(self.mesh.size):
            like = kinds.get(self._kind(rank))
            if rank not in self.traces and like is not None:
                copies[rank] = (like, {"coordinates": self.mesh.place(rank)})
        if self.asked_rank is not None and copies:
            text = (
                f"{self.asked_rank} asks for the number of the rank, and only ranks {rank_spans(self.traces)} were "
                "traced: others may go another way there; ranks='all' traces each"
            )
            for trace in self.traces.values():
                trace.limits += (Limit(text, kind="branch"),)
        return World(dict(sorted(self.traces.items())), copies=copies)

    def trace(self, rank: int) -> Trace:
        """One rank by shapes."""
        if rank in self.traces:
            return self.traces[rank]
        try:
            simulated = self._run(rank)
        except Exception as error:
            if hasattr(error, "add_note"):  # Python 3.11
                place = ", ".join(f"{axis} {at}" for axis, at in self.mesh.place(rank).items())
                error.add_note(f"this is rank {rank} of {self.mesh.size} ({place}), by shapes")
            raise
        run, building = simulated.run, simulated.building
        run.meta.update(
            mesh=dict(self.mesh.axes), coordinates=self.mesh.place(rank), host="simulated", began_ns=0
        )
        trace = Trace.of(run)
        trace.metrics = with_costs(run.graph, run.metrics)
        self.traces[rank] = trace
        self.asked |= building.axes
        if building.flat:
            self.asked_rank = self.asked_rank or "FullyShardedDataParallel"
        self.asked_rank = self.asked_rank or building.asked_rank
        self.placements.update(dict.fromkeys(run.graph.placements))
        return trace

    def _run(self, rank: int) -> SimulatedRun:
        """A rank, after those that tell its pipeline stages their shapes."""
        for _ in range(MOST_TRIES):
            try:
                return self._try(rank)
            except ShapesMissing as error:
                self._say_shapes(error.rank)
        return self._try(rank)

    def _say_shapes(self, rank: int) -> None:
        """Let the stages on a rank work out their shapes, and before it those that it gets its own from."""
        stack = [rank]
        for _ in range(MOST_TRIES):
            if not stack:
                return
            try:
                self._try(stack[-1], record=False)
                stack.pop()
            except ShapesMissing as error:
                if error.rank in stack:
                    # stages of both take turns: what it could say by now it has said
                    stack.pop()
                else:
                    stack.append(error.rank)

    def _try(self, rank: int, *, record: bool = True) -> SimulatedRun:
        return simulated_run(
            self.make,
            self.batch,
            dict(self.mesh.axes),
            rank,
            shapes=self._shapes,
            assume=self._assume,
            prepare=self._prepare,
            record=record,
        )

    # ---------------------------------------------------------------- which ranks are alike

    def distinct(self) -> list[int]:
        """The first rank of each kind, as far as is known by now."""
        first: dict[tuple[Any, ...], int] = {}
        for rank in range(self.mesh.size):
            first.setdefault(self._kind(rank), rank)
        return sorted(first.values())

    def _kind(self, rank: int) -> tuple[Any, ...]:
        """What makes a rank different from others: its place where the program asks for it, and the sizes it gets."""
        place = self.mesh.place(rank)
        if self.asked_rank is not None and self.mesh.size <= MOST_TRACED:
            return (rank,)
        shapes = tuple(local_shape(row, place, dict(self.mesh.axes)) for row in self.placements)
        return (*(place[axis] for axis in place if axis in self.asked), shapes)
