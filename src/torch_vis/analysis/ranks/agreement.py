"""Whether ranks got what ranks gave: the tensors of every collective, laid side by side on one rank.

Each rank repeats its own run without talking, which shows what it gave; what it got it holds. Rank 0 asks for one
collective at a time, so that no more than that is there at once.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from torch_vis.analysis.ranks.exchanges import Exchange, slots_of
from torch_vis.analysis.ranks.world import RankAgreement, World
from torch_vis.ops.collectives import collective
from torch_vis.replay.live_run import LiveRun
from torch_vis.replay.replay import quiet
from torch_vis.replay.stepper import Stepper

if TYPE_CHECKING:
    import torch

Tensors = list["torch.Tensor"]
# reductions in single precision and below, as a part of the largest summand times the number of ranks
TOLERANCES = {"float64": 1e-12, "float32": 1e-5, "float16": 1e-2, "bfloat16": 5e-2}


class Contents:
    """What one rank gave and got in each of its collectives and messages."""

    def __init__(self, run: LiveRun) -> None:
        graph, held = run.graph, run.kept
        self.given: list[Tensors] = [[] for _ in graph.comm_node]
        self.got: list[Tensors] = [[] for _ in graph.comm_node]
        assert held is not None
        places = {int(node): place for place, node in enumerate(graph.comm_node)}
        stepper = Stepper(graph, held)

        def before(node: int) -> None:
            if node in places:
                tensors = stepper.replay.tensors(stepper.plan.arguments(node))
                call = graph.calls[graph.node_call[node]]
                row = collective(call.op)
                slots = slots_of(call, None if row is None else row.given)
                self.given[places[node]] = [tensors[slot].detach().clone() for slot in slots]

        with quiet(stepper.plan.generators):
            for _ in stepper.steps(before):
                pass
        for node, place in places.items():
            self.got[place] += held.opaque_outputs.get(node, [])
        for node, place in zip(graph.wait_node.tolist(), graph.wait_comm.tolist()):
            self.got[place] += held.opaque_outputs.get(node, [])


def serve(run: LiveRun, plan: Sequence[Any], send: Callable[[torch.Tensor], None]) -> None:
    """On a rank other than the first: send what rank 0 asks for, in the order of its plan."""
    if not plan:
        return
    contents = Contents(run)
    rank = run.meta["rank"]
    for _, parts in plan:
        if rank in parts:
            for tensors in (contents.given[parts[rank]], contents.got[parts[rank]]):
                for tensor in _described(tensors):
                    send(tensor)


def _described(tensors: Tensors) -> Iterator[torch.Tensor]:
    """Tensors as bytes, each after its length; first how many there are."""
    import torch

    yield torch.tensor([len(tensors)])
    for tensor in tensors:
        data = tensor.detach().cpu().contiguous().reshape(-1).view(torch.uint8)
        yield torch.tensor([data.numel()])
        if data.numel():
            yield data


def _taken(receive: Callable[[int, torch.Tensor], None], rank: int, dtype: torch.dtype) -> Tensors:
    import torch

    def number() -> int:
        length = torch.zeros(1, dtype=torch.int64)
        receive(rank, length)
        return int(length)

    tensors = []
    for _ in range(number()):
        data = torch.empty(number(), dtype=torch.uint8)
        if data.numel():
            receive(rank, data)
        tensors.append(data.view(dtype))
    return tensors


def compared(run: LiveRun, world: World, receive: Callable[[int, torch.Tensor], None]) -> RankAgreement:
    """On the first rank: ask all ranks for what they gave and got, and compare."""
    import torch

    own = Contents(run)
    counts = {"exact": 0, "summed": 0, "skipped": 0}
    error, wrong = 0.0, []
    for meeting in world.meetings:
        given: dict[int, Tensors] = {}
        got: dict[int, Tensors] = {}
        for rank, place in meeting.parts.items():
            row = world.exchanges[rank][place]
            dtype = getattr(torch, row.dtype.partition(",")[0] or "float32")
            if rank == run.meta["rank"]:
                given[rank], got[rank] = _flat(own.given[place]), _flat(own.got[place])
            else:
                given[rank] = _taken(receive, rank, dtype)
                got[rank] = _taken(receive, rank, dtype)
        row = world.exchanges[min(meeting.parts)][meeting.parts[min(meeting.parts)]]
        if set(meeting.parts) != set(meeting.members) or meeting.kind == "other":
            counts["skipped"] += 1
            continue
        verdict = _verdict(meeting.kind, meeting.members, row, given, got)
        if verdict is None:
            counts["skipped"] += 1
        elif isinstance(verdict, str):
            wrong.append(f"{meeting.kind} on {meeting.axis}, number {meeting.number}, {row.place}: {verdict}")
        else:
            counts["summed" if row.reduction else "exact"] += 1
            error = max(error, verdict)
    return RankAgreement(counts["exact"], counts["summed"], error, counts["skipped"], tuple(wrong))


def _flat(tensors: Tensors) -> Tensors:
    return [tensor.detach().cpu().contiguous().reshape(-1) for tensor in tensors]


def _verdict(
    kind: str,
    members: tuple[int, ...],
    row: Exchange,
    given: Mapping[int, Tensors],
    got: Mapping[int, Tensors],
) -> float | str | None:
    """How far off what was received is; a sentence where it is wrong, None where it cannot be told."""
    import torch

    def whole(tensors: Tensors) -> torch.Tensor:
        return torch.cat(tensors) if tensors else torch.empty(0)

    gave = {rank: whole(given[rank]) for rank in given}
    got_ = {rank: whole(got[rank]) for rank in got}
    if kind == "barrier":
        return 0.0
    if kind == "message":
        source, target = members
        return _same(target, gave[source], got_[target])
    if any(not len(got_[rank]) for rank in members) and kind in (
        "all_reduce",
        "all_gather",
        "reduce_scatter",
    ):
        return None
    if kind in ("all_gather", "broadcast", "all_to_all", "gather", "scatter"):
        for position, rank in enumerate(members):
            # only the root gets anything
            if kind == "gather" and rank != row.peer:
                continue
            expected = _expected(kind, members, row, given, position)
            if expected is None or (kind == "broadcast" and rank == row.peer):
                continue
            verdict = _same(rank, expected, got_[rank])
            if verdict:
                return verdict
        return 0.0
    if kind in ("all_reduce", "reduce_scatter", "reduce"):
        return _sums(kind, members, row, gave, got_)
    return None


def _expected(
    kind: str, members: tuple[int, ...], row: Exchange, given: Mapping[int, Tensors], position: int
) -> torch.Tensor | None:
    """What the rank at a position should have got."""
    import torch

    if kind == "broadcast":
        return None if row.peer is None else torch.cat(given[row.peer])
    if kind == "scatter":
        # the root gives a tensor to each, in the order of ranks
        return None if row.peer is None or not given[row.peer] else given[row.peer][position]
    if kind in ("all_gather", "gather"):
        # of several tensors each is gathered by itself
        count = len(given[members[0]])
        return torch.cat([given[rank][item] for item in range(count) for rank in members])
    parts = [torch.cat(given[rank]) for rank in members]
    if any(len(part) % len(members) for part in parts) or len({len(part) for part in parts}) > 1:
        return None
    return torch.cat([part.chunk(len(members))[position] for part in parts])


def _same(rank: int, expected: torch.Tensor, got: torch.Tensor) -> float | str:
    import torch

    if expected.numel() != got.numel() or expected.dtype != got.dtype:
        return f"rank {rank} got {got.numel():,} numbers where {expected.numel():,} were given"
    if torch.equal(expected.view(torch.uint8), got.view(torch.uint8)):
        return 0.0
    differ = int((expected.view(torch.uint8) != got.view(torch.uint8)).sum())
    return f"rank {rank} got other bytes than were given ({differ:,} of {expected.nbytes:,})"


def _sums(
    kind: str,
    members: tuple[int, ...],
    row: Exchange,
    gave: Mapping[int, torch.Tensor],
    got: Mapping[int, torch.Tensor],
) -> float | str | None:
    import torch

    stacked = torch.stack([gave[rank].to(torch.float64) for rank in members])
    reductions: dict[str | None, Callable[[], torch.Tensor]] = {
        "sum": lambda: stacked.sum(0),
        "avg": lambda: stacked.mean(0),
        "max": lambda: stacked.amax(0),
        "min": lambda: stacked.amin(0),
        "product": lambda: stacked.prod(0),
    }
    reduction = reductions.get(row.reduction)
    if reduction is None:
        return None
    expected = reduction()
    finite = torch.where(stacked.isfinite(), stacked, 0.0)
    scale = float(finite.abs().sum(0).max()) if stacked.numel() else 0.0
    tolerance = TOLERANCES.get(row.dtype, 0.0)
    error = 0.0
    for position, rank in enumerate(members):
        if kind == "reduce" and rank != row.peer:
            continue
        part = expected.chunk(len(members))[position] if kind == "reduce_scatter" else expected
        if part.numel() != got[rank].numel():
            return f"rank {rank} got {got[rank].numel():,} numbers where {part.numel():,} were summed"
        received = got[rank].to(torch.float64)
        # what is not a number on both sides, or infinite, is the same
        same = (part == received) | (part.isnan() & received.isnan())
        off = float(torch.where(same, 0.0, (part - received).abs()).max()) if part.numel() else 0.0
        if not (off <= tolerance * scale or off == 0.0):
            return f"rank {rank} got sums that are off by up to {off:.3g}"
        error = max(error, off / scale if scale else 0.0)
    return error
