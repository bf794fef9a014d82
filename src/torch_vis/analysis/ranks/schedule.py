"""When each stage of a pipeline runs which micro-batch, and for how much of the time it stands idle."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from functools import cached_property
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from torch_vis.analysis.report import Charts, Report
from torch_vis.graph.graph import Graph
from torch_vis.graph.schema import Phase
from torch_vis.graph.text import duration, many
from torch_vis.graph.types import Ints
from torch_vis.views.charts.chart import COLORS, Axis, Chart, Series
from torch_vis.views.text.table_layout import Field, Listing

if TYPE_CHECKING:
    from torch_vis.analysis.ranks.waiting import RankTimeline

MICROBATCH = re.compile(r"^stage (\d+)\.micro-batch (\d+)$")
# gradients of weights may be computed apart from those of activations, and later
WHATS = ("forward", "backward", "weights")
# of a chart
MOST_RANKS = 64


class PipelineChunk(NamedTuple):
    """One micro-batch on one stage, in one direction."""

    rank: int
    stage: int
    microbatch: int
    what: str
    """forward, backward, or weights: a second part of backward, which a schedule may put off."""
    start_ns: int
    """On the clock of all ranks, from the beginning of the first."""
    time_ns: int


class StageTime(NamedTuple):
    """How a rank of a pipeline spends the time in which any of them runs a micro-batch."""

    rank: int
    stages: str
    """The stages that it has."""
    microbatches: int
    forward_ns: int
    backward_ns: int
    idle_ns: int
    idle_share: float


def chunks_of(rank: int, graph: Graph, start_ns: Ints, time_ns: Ints) -> list[PipelineChunk]:
    """The micro-batches that a rank ran, in order of time; none of what is no stage of a pipeline."""
    batches = {
        number: (int(match[1]), int(match[2]))
        for number, module in enumerate(graph.modules)
        if module.kind == "microbatch" and (match := MICROBATCH.match(module.path))
    }
    # for each scope the call of a micro-batch that it is or lies in
    around = graph.tree.nearest(np.isin(graph.scope_module, list(batches)))
    modules = np.where(around >= 0, graph.scope_module[around], -1).tolist()
    begins, lasts = np.asarray(start_ns), np.asarray(time_ns)
    scopes, phases = graph.node_scope.tolist(), graph.node_phase.tolist()
    chunks: list[PipelineChunk] = []
    seen: set[tuple[int, int, str]] = set()
    before: tuple[int, int, int] | None = None
    for node in np.argsort(begins, kind="stable").tolist():
        batch = batches.get(modules[scopes[node]])
        if batch is None:
            continue
        begin, end = int(begins[node]), int(begins[node] + lasts[node])
        if before == (*batch, phases[node]):
            chunks[-1] = chunks[-1]._replace(time_ns=max(end - chunks[-1].start_ns, chunks[-1].time_ns))
            continue
        before = *batch, phases[node]
        what = WHATS[0] if phases[node] == Phase.FORWARD else WHATS[1]
        if (*batch, WHATS[1]) in seen and what == WHATS[1]:
            what = WHATS[2]
        seen.add((*batch, what))
        chunks.append(PipelineChunk(rank, *batch, what, begin, end - begin))
    return chunks


class ScheduleReport(Report):
    """The schedule of a pipeline: each micro-batch on each stage, and the share of time in which stages stand idle.

    Time counts from the first micro-batch of any rank until the last: a rank is idle while it runs none of its own,
    because it waits for another stage, or receives and sends.
    """

    title = "Pipeline schedule"

    def __init__(self, timeline: RankTimeline) -> None:
        self._about_times = timeline.about_times
        self.chunks: list[PipelineChunk] = [
            chunk
            for rank in timeline.began
            for chunk in chunks_of(rank, timeline.graph(rank), *timeline.operations(rank))
        ]
        """Every micro-batch of every rank, in both directions."""

    @property
    def stages(self) -> int:
        """How many stages the pipeline has."""
        return len({chunk.stage for chunk in self.chunks})

    @property
    def microbatches(self) -> int:
        """Into how many parts a batch is divided."""
        return len({chunk.microbatch for chunk in self.chunks})

    @property
    def start_ns(self) -> int:
        """When the first micro-batch begins."""
        return min((chunk.start_ns for chunk in self.chunks), default=0)

    @property
    def total_ns(self) -> int:
        """From the first micro-batch to the end of the last."""
        ends = (chunk.start_ns + chunk.time_ns for chunk in self.chunks)
        return max(ends, default=0) - self.start_ns

    @cached_property
    def ranks(self) -> list[StageTime]:
        """How each rank spends that time, in the order of ranks."""
        rows = []
        for rank in sorted({chunk.rank for chunk in self.chunks}):
            own = [chunk for chunk in self.chunks if chunk.rank == rank]
            sums = {what: sum(chunk.time_ns for chunk in own if chunk.what == what) for what in WHATS}
            idle = max(self.total_ns - sum(sums.values()), 0)
            stages = ", ".join(map(str, sorted({chunk.stage for chunk in own})))
            rows.append(
                StageTime(
                    rank,
                    stages,
                    len({chunk.microbatch for chunk in own}),
                    sums["forward"],
                    sums["backward"] + sums["weights"],
                    idle,
                    idle / self.total_ns if self.total_ns else 0.0,
                )
            )
        return rows

    @property
    def idle_share(self) -> float | None:
        """The share of the time of all ranks in which they run nothing; None where there is no pipeline."""
        if not self.ranks or not self.total_ns:
            return None
        return sum(row.idle_ns for row in self.ranks) / (len(self.ranks) * self.total_ns)

    @property
    def ideal_idle_share(self) -> float | None:
        """What it would be if every stage took the same time and nothing had to be sent: (p - 1) / (m + p - 1).

        For p ranks of one stage each and m micro-batches; None for other pipelines.
        """
        ranks = len(self.ranks)
        if not ranks or self.stages != ranks:
            return None
        return (ranks - 1) / (self.microbatches + ranks - 1)

    def facts(self) -> Mapping[str, str]:
        """The idle share."""
        if self.idle_share is None:
            return {"pipeline": "none: no rank runs a stage of one"}
        idle = f"{100 * self.idle_share:.1f} % of the time of {many(len(self.ranks), 'rank')}"
        if self.ideal_idle_share is not None:
            idle += f"; {100 * self.ideal_idle_share:.1f} % if all stages took the same time and nothing had to be sent"
        return {
            "pipeline": f"{many(self.stages, 'stage')}, {self.microbatches:,} micro-batches, {duration(self.total_ns)}",
            "idle": idle,
        }

    def listings(self) -> Sequence[Listing]:
        """Every rank."""
        fields = (
            Field("rank", "rank", str),
            Field("stages", "stages"),
            Field("microbatches", "micro-batches", "{:,}".format),
            Field("forward_ns", "forward", duration),
            Field("backward_ns", "backward", duration),
            Field("idle_ns", "idle", duration),
            Field("idle_share", "idle share", lambda share: f"{100 * share:.1f} %"),
        )
        return [Listing("Ranks", fields, self.ranks)] if self.ranks else []

    def charts(self) -> Mapping[str, Chart]:
        """The schedule as a Gantt chart."""
        return Charts(schedule=self._chart) if self.chunks else Charts()

    def _chart(self) -> Chart:
        shown = [row.rank for row in self.ranks[:MOST_RANKS]]
        names = {
            row.rank: f"rank {row.rank} (idle {100 * row.idle_share:.0f} %)"
            for row in self.ranks[:MOST_RANKS]
        }
        series = []
        for what, color in zip(WHATS, (COLORS[0], COLORS[1], COLORS[5])):
            rows = [chunk for chunk in self.chunks if chunk.what == what and chunk.rank in names]
            if rows:
                starts = [chunk.start_ns - self.start_ns for chunk in rows]
                ends = [start + chunk.time_ns for start, chunk in zip(starts, rows)]
                labels = [f"{what} of micro-batch {chunk.microbatch}, stage {chunk.stage}" for chunk in rows]
                series.append(
                    Series(
                        what,
                        [names[chunk.rank] for chunk in rows],
                        [chunk.time_ns for chunk in rows],
                        labels,
                        starts,
                        ends,
                        color,
                        [str(chunk.microbatch) for chunk in rows],
                    )
                )
        title = f"Pipeline schedule: idle {100 * (self.idle_share or 0):.0f} % of the time"
        return Chart(
            "spans", title, Axis("rank", names=[names[rank] for rank in shown]), Axis("time", "ns"), series
        )

    def notes(self) -> Sequence[str]:
        """What its times are."""
        return [self._about_times] if self.chunks else ()
