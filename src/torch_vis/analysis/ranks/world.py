"""Several ranks of one job together: each a trace, and what they do with each other."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import cached_property
from html import escape
from typing import TYPE_CHECKING, Any, NamedTuple

from torch_vis._reports import EXPLORE, resolved
from torch_vis._trace import Trace
from torch_vis.analysis.ranks.by_rank import WorldCommunicationReport, WorldMemoryReport, rank_spans
from torch_vis.analysis.ranks.exchanges import Exchange, exchanges_of
from torch_vis.analysis.ranks.lanes import Lanes
from torch_vis.analysis.ranks.meetings import Meeting, Meetings, Mismatch, meetings_of, waits_for_the_absent
from torch_vis.analysis.ranks.places import at_place
from torch_vis.analysis.ranks.schedule import ScheduleReport
from torch_vis.analysis.ranks.step_time import StepTimeReport
from torch_vis.analysis.ranks.waiting import (
    Clock,
    CriticalPathReport,
    RankTimeline,
    StragglersReport,
    clocks_of,
)
from torch_vis.errors import CheckFailed, NoMatch, TensorsMissing, UsageError
from torch_vis.exporters import perfetto
from torch_vis.formats import by_ending
from torch_vis.graph.io import world as world_file
from torch_vis.graph.io.atomic import PathLike, replacing
from torch_vis.graph.text import and_more, duration, inert, many, size
from torch_vis.views.page.show import LARGEST, frame, present, temporary
from torch_vis.views.text.table_layout import Field, Listing, table

if TYPE_CHECKING:
    from torch_vis.analysis.compare.comparison import Comparison


class RankAgreement(NamedTuple):
    """What came of holding what ranks got against what ranks gave."""

    exact: int
    """How many collectives and messages carried the same bytes."""
    summed: int
    """How many reductions gave the sum of what was given, taken in double precision."""
    error: float
    """The largest difference of those, as a part of the sum of what was given without its signs."""
    skipped: int
    """How many could not be looked at: a rank holds no tensors, or did not come."""
    wrong: tuple[str, ...]
    """Those that did not, in words."""

    def __str__(self) -> str:
        text = (
            f"{many(self.exact, 'collective')} got what was given bit for bit, {self.summed:,} the sum of it"
        )
        if self.summed:
            text += f" (within {self.error:.1e})"
        return text + (f"; {self.skipped:,} not looked at" if self.skipped else "")


class World:
    """Several ranks of one job: ``w[3]`` is the trace of rank 3, ``len(w)`` their number.

    ``tv.join`` makes one of the traces of all ranks or of their files, ``tv.load`` reads one that was saved.

    >>> import torch, torch.distributed as dist, torch_vis as tv
    >>> from torch.testing._internal.distributed.fake_pg import FakeStore
    >>> traces = []
    >>> for rank in range(2):
    ...     dist.init_process_group("fake", store=FakeStore(), rank=rank, world_size=2)
    ...     traces.append(tv.trace(lambda x: dist.all_reduce(x) or x * 2, torch.ones(100), fake=True))
    ...     dist.destroy_process_group()
    >>> w = tv.join(traces)
    >>> len(w), w[1].meta["rank"], w.problems, len(w.meetings)
    (2, 1, [], 1)
    """

    def __init__(
        self,
        traces: Mapping[int, Trace | Callable[[], Trace]],
        *,
        copies: Mapping[int, tuple[int, Mapping[str, Any]]] | None = None,
        measured: Mapping[int, tuple[int, int]] | None = None,
        agreement: RankAgreement | None = None,
    ) -> None:
        self._traces = dict(sorted(traces.items()))
        self._copies = dict(copies or {})
        self._measured = dict(measured or {})
        self._agreement = agreement
        self._like = dict(
            sorted({rank: self._copies.get(rank, (rank,))[0] for rank in (*traces, *self._copies)}.items())
        )

    # ---------------------------------------------------------------- its ranks

    @property
    def ranks(self) -> list[int]:
        """The ranks that are here."""
        return list(self._like)

    def __len__(self) -> int:
        return len(self._like)

    def __iter__(self) -> Iterator[Trace]:
        return (self[rank] for rank in self._like)

    def __getitem__(self, rank: int) -> Trace:
        if type(rank) is not int or rank not in self._like:
            raise NoMatch(f"no rank {rank!r}; there are ranks {rank_spans(self._like)}")
        trace = self._own(self._like[rank])
        if rank in self._copies:
            meta = {**trace.meta, **self._copies[rank][1], "rank": rank}
            graph = at_place(trace.graph, trace.meta, meta)
            trace = Trace.of(trace, output=trace.output, error=trace.error)
            trace.graph, trace.meta = graph, meta
        return trace

    def with_traces(self, traces: Mapping[int, Trace]) -> World:
        """The same world with other traces of the ranks that are no copies."""
        return World(traces, copies=self._copies, measured=self._measured, agreement=self._agreement)

    def _own(self, rank: int) -> Trace:
        trace = self._traces[rank]
        if not isinstance(trace, Trace):
            trace = self._traces[rank] = trace()
        return trace

    @cached_property
    def _runs(self) -> dict[int, Trace]:
        """The ranks that are no copies."""
        return {rank: self._own(rank) for rank in self._traces}

    @property
    def mesh(self) -> dict[str, int]:
        """The axes of the mesh that ranks lie on, and how many ranks each has."""
        axes: dict[str, int] = {}
        for run in self._runs.values():
            axes |= run.meta.get("mesh") or {}
        return axes

    @property
    def distinct(self) -> list[int]:
        """The ranks that are no copies of another: one of each kind."""
        return list(self._traces)

    @property
    def absent(self) -> list[int]:
        """The ranks of the job that are not here: ``tv.join(..., partial=True)`` went without them."""
        count = max((int(run.meta.get("world_size") or 0) for run in self._runs.values()), default=0)
        return [rank for rank in range(count) if rank not in self._like]

    def ranks_like(self, rank: int) -> list[int]:
        """The ranks that do what a distinct one does, itself among them."""
        return [other for other, like in self._like.items() if like == rank]

    @property
    def title(self) -> str:
        """What was run, and on how many ranks."""
        run = self._runs[min(self._runs)]
        return f"{inert(str(run.meta.get('script') or run.name))} on {many(len(self), 'rank')}"

    @property
    def has_times(self) -> bool:
        """Whether its ranks ran, or their times were predicted; ranks that were followed by shapes alone have none."""
        return not any(run.meta.get("fake") and not run.meta.get("predicted") for run in self._runs.values())

    # ---------------------------------------------------------------- what they do together

    @cached_property
    def exchanges(self) -> dict[int, list[Exchange]]:
        """By rank, its collectives and messages."""
        return {rank: exchanges_of(run) for rank, run in self._runs.items()}

    @cached_property
    def _met(self) -> Meetings:
        met = meetings_of(self.exchanges)
        return met._replace(problems=met.problems + waits_for_the_absent(self._runs, self.exchanges))

    @property
    def meetings(self) -> list[Meeting]:
        """Each collective and message, with its part on every rank."""
        return self._met.rows

    @property
    def problems(self) -> list[Mismatch]:
        """Where ranks do not agree: one that never comes, another operation, size, type, order; as sentences.

        Empty for ranks that do.
        """
        return self._met.problems

    @cached_property
    def clocks(self) -> dict[int, Clock]:
        """How far the clock of each rank is off from that of the first, with the error of that."""
        return clocks_of(self._runs, self.meetings, self.exchanges, self._measured)

    @cached_property
    def timeline(self) -> RankTimeline:
        """The meetings of all ranks on one time line."""
        if not self.has_times:
            raise UsageError(
                "these ranks were followed by shapes alone, and have no times; tv.simulate(…, hardware=…) predicts them"
            )
        return RankTimeline(self._runs, self.meetings, self.exchanges, self.clocks)

    # ---------------------------------------------------------------- ask it

    def memory(self) -> WorldMemoryReport:
        """The peak of each rank, the fullest first, and why the others are not as full."""
        return WorldMemoryReport({rank: run.memory() for rank, run in self._runs.items()}, self._like)

    def communication(self) -> WorldCommunicationReport:
        """What all ranks say to each other, by rank, axis, operation and line."""
        whole = sum(set(row.parts) >= set(row.members) & set(self._runs) for row in self.meetings)
        return WorldCommunicationReport(self.exchanges, self._like, self.problems, whole)

    def stragglers(self) -> StragglersReport:
        """Which ranks come late to collectives, how long others wait for them, and where."""
        return StragglersReport(self.timeline)

    def critical_path(self) -> CriticalPathReport:
        """What the length of the step is made of, across ranks."""
        return CriticalPathReport(self.timeline)

    def step_time(self) -> StepTimeReport:
        """How long the step of all ranks takes: computation, exposed communication, and the idle time of a pipeline."""
        return StepTimeReport(self.timeline, self._runs, self._like)

    def schedule(self) -> ScheduleReport:
        """When each stage of a pipeline runs which micro-batch, as a Gantt chart, and for how long it stands idle."""
        return ScheduleReport(self.timeline)

    def compare(self, a: int, b: int) -> Comparison:
        """Two ranks as two versions of a program: what one does and the other does not."""
        from torch_vis.analysis.compare.comparison import compare

        return compare(self[a], self[b], names=(f"rank {a}", f"rank {b}"))

    def check(self) -> RankAgreement:
        """Prove what ranks said to each other: what each got is what the others gave.

        Gathers and messages are compared bit for bit, sums with the sum in double precision. It is found out while
        ranks are joined, since that is when all of them have their tensors; ``t.check()`` on each rank proves the rest.
        Raises ``CheckFailed`` where ranks do not agree.
        """
        if self.problems:
            raise CheckFailed(f"ranks do not agree: {and_more(self.problems, 3)}")
        if self._agreement is None:
            raise TensorsMissing(
                "these ranks were joined without their tensors; tv.join(t) on all ranks compares what they gave and got"
            )
        if self._agreement.wrong:
            raise CheckFailed(and_more(self._agreement.wrong, 3))
        return self._agreement

    # ---------------------------------------------------------------- look at it, hand it on

    def save(self, path: PathLike, *, format: str | None = None) -> None:
        """Write all ranks to one file: ``.tvz``, which ``tv.load`` reads, a page, ``.html``, or ``.perfetto.json``.

        In a ``.tvz`` and in the page equal ranks share all but their times. The page has a lane for each rank, with
        equal ones folded, and the graph of every one. In the time line for Perfetto each rank is a process, and arrows
        connect those that meet. ``w[0].save(...)`` writes one rank in any format.
        """
        name = by_ending(path) if format is None else format
        if name == "tvz":
            facts = {
                "measured": [[rank, *clock] for rank, clock in self._measured.items()],
                "agreement": None if self._agreement is None else list(self._agreement),
            }
            world_file.save(path, self._runs, self._copies, facts)
        elif name == "html":
            text = self._html()
            with replacing(path) as file:
                file.write(text.encode("utf-8", "backslashreplace"))
        elif name == "perfetto":
            began = self.timeline.began
            arrows = [
                [(rank, self.exchanges[rank][place].node) for rank, place in row.parts.items()]
                for row in self.meetings
            ]
            perfetto.save_ranks(path, [(rank, run, began[rank]) for rank, run in self._runs.items()], arrows)
        else:
            raise UsageError(
                "all ranks together are written as .tvz, .html or .perfetto.json; "
                f"w[0].save({os.fspath(path)!r}) writes one rank"
            )

    def show(self) -> str:
        """Open the page of all ranks in the browser or the notebook; returns the file's path."""
        path = temporary(self.title)
        self.save(path)
        return present(path)

    def explore(self) -> None:
        """Open a list of the ranks in the terminal explorer, with the modules of each, until it is quit."""
        resolved(EXPLORE)(self)

    def _html(self) -> str:
        lanes = Lanes(
            self.title,
            self._runs,
            self._like,
            self.mesh,
            self.exchanges,
            self._met,
            self.timeline if self.has_times else None,
        )
        return lanes.html()

    def _repr_html_(self) -> str:
        text = self._html()
        return frame(text) if len(text) <= LARGEST else f"<pre>{escape(self.table())}</pre>"

    @classmethod
    def load(cls, path: PathLike) -> World:
        """Read what ``save`` wrote; a rank is read when it is asked for."""
        file = world_file.WorldFile(path)

        def reader(rank: int) -> Callable[[], Trace]:
            return lambda: Trace.of(file.run(rank))

        ranks = file.ranks
        copies = {rank: (file.like(rank), file.meta(rank)) for rank in ranks if file.like(rank) != rank}
        return cls(
            {rank: reader(rank) for rank in ranks if rank not in copies},
            copies=copies,
            measured=_clocks(file.facts.get("measured")),
            agreement=_agreement(file.facts.get("agreement")),
        )

    def table(self, *, width: int = 120) -> str:
        """The ranks, equal ones on one line, as ``print`` shows them."""
        kinds: dict[tuple[object, ...], list[int]] = {}
        for rank, like in self._like.items():
            run = self._runs[like]
            peak = run.memory().peak_bytes if run.lifetimes is not None else None
            sent = sum(row.sent_bytes or 0 for row in self.exchanges[like])
            untimed = run.meta.get("fake") and not run.meta.get("predicted")
            wall = None if untimed else run.meta.get("wall_ns")
            stage = run.meta.get("stage")
            key = (len(run.graph), stage, peak, len(self.exchanges[like]), round(sent), wall)
            kinds.setdefault(key, []).append(rank)
        fields = (
            Field("ranks", "ranks"), Field("number", "×", "{:,}".format),
            Field("operations", "operations", "{:,}".format), Field("stage", "stage", str),
            Field("peak_bytes", "peak", size),
            Field("collectives", "collectives", "{:,}".format), Field("sent_bytes", "sent", size),
            Field("wall_ns", "time", duration),
        )  # fmt: skip
        rows = [(rank_spans(ranks), len(ranks), *key) for key, ranks in kinds.items()]
        mesh = " × ".join(f"{axis} {count}" for axis, count in self.mesh.items())
        head = f"{many(len(self), 'rank')}{f' ({mesh})' if mesh else ''}: "
        head += f"{many(len(self.meetings), 'collective')} and messages, "
        absent = self.absent
        head += many(len(self.problems), "problem") if self.problems else f"all{' here' * bool(absent)} agree"
        if absent:
            head += f"; {'rank' if len(absent) == 1 else 'ranks'} {rank_spans(absent)} not here"
        lines = [inert(head), "", *table(Listing("", fields, rows, most=64), width)]
        lines += [inert(f"• {problem}") for problem in self.problems[:10]]
        return "\n".join(lines)

    def __str__(self) -> str:
        return self.table()

    def __repr__(self) -> str:
        return f"<World of {many(len(self), 'rank')}>"


def _clocks(plain: object) -> dict[int, tuple[int, int]]:
    """The clocks of a file, as far as they are any."""
    rows = plain if isinstance(plain, list) else []
    return {
        row[0]: (row[1], row[2])
        for row in rows
        if isinstance(row, list) and len(row) == 3 and all(type(item) is int for item in row)
    }


def _agreement(plain: object) -> RankAgreement | None:
    kinds = (int, int, float, int, list)
    if not isinstance(plain, list) or [type(item) for item in plain] != list(kinds):
        return None
    exact, summed, error, skipped, wrong = plain
    return RankAgreement(exact, summed, error, skipped, tuple(map(str, wrong)))


def traces_by_rank(traces: Sequence[Trace]) -> dict[int, Trace]:
    """Traces under the number of their rank; raises where they cannot be ranks of one job."""
    by_rank: dict[int, Trace] = {}
    for trace in traces:
        if "rank" not in trace.meta:
            raise UsageError(f"{trace!r} is no rank of a job: it was recorded without torch.distributed")
        rank = int(trace.meta["rank"])
        if rank in by_rank:
            raise UsageError(f"rank {rank} is there twice: these are not the ranks of one step")
        by_rank[rank] = trace
    return by_rank
