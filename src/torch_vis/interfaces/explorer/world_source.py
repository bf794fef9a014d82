"""Several ranks in the explorer: a list of them, equal ones on one line, and under each the tree of its modules."""

from __future__ import annotations

from bisect import bisect_right

import numpy as np

from torch_vis.analysis.ranks.by_rank import rank_spans
from torch_vis.analysis.ranks.world import World
from torch_vis.graph.text import duration, inert, many, size
from torch_vis.interfaces.explorer.trace_source import TraceSource
from torch_vis.views.terminal.forest import Forest
from torch_vis.views.terminal.source import Details, Source

# of problems that are listed
MOST_PROBLEMS = 20


class WorldSource(Source):
    """A world: its first row is all ranks, those below it are ranks, and below each are its modules."""

    def __init__(self, world: World) -> None:
        self.world = world
        self.ranks = [world.ranks_like(rank) for rank in world.distinct]
        self.parts = [TraceSource(world[rank]) for rank in world.distinct]
        names, types, parents, kinds = [f"{len(world):,} ranks"], [""], [-1], ["run"]
        self._starts: list[int] = []
        for ranks, part in zip(self.ranks, self.parts):
            forest, first = part.forest, len(names)
            self._starts.append(first)
            is_single = len(ranks) == 1
            names += [
                f"rank {ranks[0]}" if is_single else f"ranks {rank_spans(ranks)} × {len(ranks):,}",
                *forest.names[1:],
            ]
            types += forest.types
            parents += [0, *(first + forest.parent[1:]).tolist()]
            kinds += ["rank", *(forest.kind(row) for row in range(1, len(forest)))]
        whole = Forest(names, types, parents, kinds=kinds)
        for column in set.intersection(*(set(part.forest.numbers) for part in self.parts)):
            figures = [part.forest.numbers[column] for part in self.parts]
            whole.numbers[column] = np.concatenate([[np.nan], *figures])
        whole.marks = {first: self._place(rank) for first, rank in zip(self._starts, world.distinct)}
        super().__init__(inert(world.title), whole, notes=[str(problem) for problem in world.problems])
        mesh = " × ".join(f"{axis} {count}" for axis, count in world.mesh.items())
        agree = many(len(world.problems), "problem") if world.problems else "all agree"
        self.facts += [fact for fact in (mesh, many(len(world.meetings), "collective"), agree) if fact]

    def _place(self, rank: int) -> str:
        meta = self.world[rank].meta
        place = [f"{axis} {at}" for axis, at in (meta.get("coordinates") or {}).items()]
        if meta.get("stage") is not None:
            place.append(f"stage {meta['stage']}")
        return " · ".join(place) if len(self.world.ranks_like(rank)) == 1 else ""

    def part(self, row: int) -> tuple[Source, int]:
        """The rank that a row belongs to, and the row there; the first row and those of ranks are answered here."""
        number = bisect_right(self._starts, row) - 1
        if number < 0:
            return self, row
        return self.parts[number], row - self._starts[number]

    def details(self, row: int) -> Details:
        """What all ranks come to, or one of them."""
        if row == 0:
            return Details(self._all())
        part, own = self.part(row)
        details = part.details(own)
        return details if own else details._replace(facts=[*self._rank(row), *details.facts])

    def _all(self) -> list[tuple[str, str]]:
        world = self.world
        facts = [("ranks", f"{len(world):,}")]
        facts += [("mesh", " × ".join(f"{axis} {count}" for axis, count in world.mesh.items()))]
        facts += [("collectives", f"{len(world.meetings):,}")]
        if world.has_times:
            facts += [*world.stragglers().facts().items()]
            facts += [("critical path", world.critical_path().facts()["length"])]
        facts += [("problem", str(problem)) for problem in world.problems[:MOST_PROBLEMS]]
        return [(name, inert(text)) for name, text in facts if text]

    def _rank(self, row: int) -> list[tuple[str, str]]:
        number = self._starts.index(row)
        world, rank = self.world, self.world.distinct[number]
        rows = world.exchanges[rank]
        facts = [("place", self._place(rank)), ("host", str(world[rank].meta.get("host") or ""))]
        if world[rank].lifetimes is not None:
            facts.append(("peak", size(world[rank].memory().peak_bytes)))
        sent = round(sum(exchange.sent_bytes or 0 for exchange in rows))
        facts.append(("collectives", f"{len(rows):,}, sends {size(sent)}"))
        if world.has_times:
            own = next(straggler for straggler in world.stragglers().ranks if straggler.rank == rank)
            facts.append(("waited", duration(own.waited_ns)))
            facts.append(("lets others wait", f"{duration(own.imposed_ns)}, came last {own.last:,} ×"))
        return [(name, inert(text)) for name, text in facts if text]
