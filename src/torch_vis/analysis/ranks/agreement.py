"""Whether ranks got what ranks gave: the tensors of every collective, laid side by side on one rank.

Each rank repeats its own run without talking, which shows what it gave; what it got it holds. Rank 0 asks for one
collective at a time, so that no more than that is there at once.
"""

from __future__ import annotations

import functools
import operator
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from torch_vis.analysis.ranks.exchanges import Exchange, slots_of, splits_of
from torch_vis.analysis.ranks.world import RankAgreement, World
from torch_vis.graph.graph import Graph
from torch_vis.ops.collectives import WAIT_TENSOR, collective
from torch_vis.replay.held_run import HeldRun
from torch_vis.replay.replay import replay_context
from torch_vis.replay.stepper import Stepper

if TYPE_CHECKING:
    import torch

Tensors = list["torch.Tensor"]
# how far off numbers that were added up may be, as a part of the sum of what was given without its signs
TOLERANCES = {"float64": 1e-12, "float32": 1e-5, "float16": 1e-2, "bfloat16": 5e-2}
TOLERANCES |= {"complex128": TOLERANCES["float64"], "complex64": TOLERANCES["float32"]}
BITWISE = {"band": operator.and_, "bor": operator.or_, "bxor": operator.xor}


class Got(NamedTuple):
    """What a rank got in one collective, one tensor after the other."""

    tensors: Tensors
    start: int | None = None
    """The number of the first element that is here, where only a part of what was received was waited for."""


class Contents:
    """What one rank gave and got in each of its collectives and messages."""

    def __init__(self, run: HeldRun) -> None:
        graph, held = run.graph, run.kept
        self.given: list[Tensors] = [[] for _ in graph.comm_node]
        self.got: list[Got] = [Got([]) for _ in graph.comm_node]
        assert held is not None
        places = {int(node): place for place, node in enumerate(graph.comm_node)}
        waits = dict(zip(graph.wait_node.tolist(), graph.wait_comm.tolist()))
        # of waits for a view of what a collective returned, which part of that it is, in the order of memory
        parts: dict[int, ViewedPart | None] = {}
        # storages that were made larger: what is in the rest of them no operation says
        grown: set[int] = set()
        stepper = Stepper(graph, held)

        def before(node: int) -> None:
            call = graph.calls[graph.node_call[node]]
            values = graph.in_value[slice(*graph.input_span(node))]
            if node in places:
                tensors = stepper.replay.tensors(stepper.plan.arguments(node))
                row = collective(call.op)
                slots = slots_of(call, None if row is None else row.given)
                by_slot = dict(zip(graph.in_slot[slice(*graph.input_span(node))].tolist(), values.tolist()))
                if not any(int(graph.value_storage[by_slot[slot]]) in grown for slot in slots):
                    self.given[places[node]] = [tensors[slot].detach().clone() for slot in slots]
            elif call.op.partition(".")[0] == "aten::resize_":
                old, new = graph.nodes[node].inputs[0].type, graph.nodes[node].outputs[0].type
                if new.numel > old.numel:
                    grown.add(int(graph.value_storage[values[0]]))
            elif node in waits and is_wait_of_view(graph, int(graph.comm_node[waits[node]]), node):
                (view,) = stepper.replay.tensors(stepper.plan.arguments(node))
                returned = graph.nodes[int(graph.comm_node[waits[node]])].outputs[0].type
                same = graph.nodes[node].outputs[0].type.dtype == returned.dtype
                parts[node] = part_of(view, returned.numel) if same else None

        with replay_context(stepper.plan.generators):
            for _ in stepper.steps(before):
                pass
        for node, place in places.items():
            self.got[place].tensors.extend(held.opaque_outputs.get(node, []))
        for node, place in waits.items():
            if node not in parts:
                self.got[place].tensors.extend(held.opaque_outputs.get(node, []))
                continue
            part = parts[node]
            if part is not None:
                received = [tensor.permute(part.order) for tensor in held.opaque_outputs.get(node, [])]
                self.got[place] = Got(received, part.start)


class ViewedPart(NamedTuple):
    """What a view shows of a whole: its dimensions in the order of memory, and where it begins; None for all of it."""

    order: tuple[int, ...]
    start: int | None


def is_wait_of_view(graph: Graph, node: int, wait: int) -> bool:
    """Whether a wait is for a view of the one tensor that a collective returned: a part of it, or turned."""
    if graph.nodes[wait].op.partition(".")[0] != WAIT_TENSOR:
        return False
    returned, waited = (graph.nodes[item].outputs for item in (node, wait))
    return len(returned) == len(waited) == 1 and returned[0].type != waited[0].type


def part_of(view: torch.Tensor, numel: int) -> ViewedPart | None:
    """Which part of a contiguous tensor with so many elements a view is; None if it leaves some out in between.

    >>> import torch
    >>> whole = torch.arange(12).view(3, 4)
    >>> part_of(whole.t(), 12), part_of(whole[1:], 12), part_of(whole[:, 1:], 12)
    (ViewedPart(order=(1, 0), start=None), ViewedPart(order=(0, 1), start=4), None)
    """
    order = tuple(sorted(range(view.dim()), key=lambda dim: (-view.stride()[dim], view.size(dim) == 1)))
    if not view.permute(order).is_contiguous():
        return None
    return ViewedPart(order, None if view.numel() == numel else int(view.storage_offset()))


def serve(run: HeldRun, plan: Sequence[Any], send: Callable[[torch.Tensor], None]) -> None:
    """On a rank other than the first: send what rank 0 asks for, in the order of its plan."""
    if not plan:
        return
    contents = Contents(run)
    rank = run.meta["rank"]
    for _, parts in plan:
        if rank in parts:
            for got in (Got(contents.given[parts[rank]]), contents.got[parts[rank]]):
                for tensor in _described(got):
                    send(tensor)


def _dtypes() -> list[torch.dtype]:
    """The types of numbers that torch has, in an order that is the same on all ranks."""
    import torch

    return sorted({item for item in vars(torch).values() if isinstance(item, torch.dtype)}, key=str)


def _described(got: Got) -> Iterator[torch.Tensor]:
    """Tensors as bytes, each after its length and type; first how many there are, and where they begin."""
    import torch

    yield torch.tensor([len(got.tensors), -1 if got.start is None else got.start])
    for tensor in got.tensors:
        data = tensor.detach().cpu().contiguous().reshape(-1).view(torch.uint8)
        yield torch.tensor([data.numel(), _dtypes().index(tensor.dtype)])
        if data.numel():
            yield data


def _taken(receive: Callable[[int, torch.Tensor], None], rank: int) -> Got:
    import torch

    def numbers(count: int) -> list[int]:
        row = torch.zeros(count, dtype=torch.int64)
        receive(rank, row)
        return [int(item) for item in row]

    count, start = numbers(2)
    tensors = []
    for _ in range(count):
        length, dtype = numbers(2)
        data = torch.empty(length, dtype=torch.uint8)
        if length:
            receive(rank, data)
        tensors.append(data.view(_dtypes()[dtype]))
    return Got(tensors, None if start < 0 else start)


def compared(run: HeldRun, world: World, receive: Callable[[int, torch.Tensor], None]) -> RankAgreement:
    """On the first rank: ask all ranks for what they gave and got, and compare."""
    if not world.meetings:
        return RankAgreement(0, 0, 0.0, 0, ())
    own = Contents(run)
    counts = {"exact": 0, "summed": 0, "skipped": 0}
    error, wrong = 0.0, []
    for meeting in world.meetings:
        given: dict[int, Tensors] = {}
        got: dict[int, Got] = {}
        for rank, place in meeting.parts.items():
            if rank == run.meta["rank"]:
                given[rank] = _flat(own.given[place])
                got[rank] = own.got[place]._replace(tensors=_flat(own.got[place].tensors))
            else:
                given[rank] = _taken(receive, rank).tensors
                got[rank] = _taken(receive, rank)
        row = world.exchanges[min(meeting.parts)][meeting.parts[min(meeting.parts)]]
        if set(meeting.parts) != set(meeting.members) or meeting.kind == "other":
            counts["skipped"] += 1
            continue
        if meeting.kind == "all_to_all":
            given = {rank: _pieces(world, rank, place, given[rank]) for rank, place in meeting.parts.items()}
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


def _pieces(world: World, rank: int, place: int, tensors: Tensors) -> Tensors:
    """What a rank gives to each member of its group, in their order; nothing where that is not known."""
    row, graph = world.exchanges[rank][place], world[rank].graph
    call, count = graph.calls[graph.node_call[row.node]], len(row.members)
    operator = collective(call.op)
    if operator is None or operator.splits is None:
        # a list has a tensor for each; others divide along a dimension of their own
        return (
            tensors if len(tensors) == count and operator is not None and operator.filled is not None else []
        )
    if len(tensors) != 1:
        return []
    (whole,), splits = tensors, splits_of(call)
    if not splits:
        return list(whole.chunk(count)) if whole.numel() % count == 0 and whole.numel() else []
    total = sum(splits)
    if len(splits) != count or (total and whole.numel() % total):
        return []
    width = whole.numel() // total if total else 0
    return list(whole.split([rows * width for rows in splits]))


def _verdict(
    kind: str,
    members: tuple[int, ...],
    row: Exchange,
    given: Mapping[int, Tensors],
    got: Mapping[int, Got],
) -> float | str | None:
    """How far off what was received is; a sentence where it is wrong, None where it cannot be told."""
    if kind == "barrier":
        return 0.0
    if kind == "message":
        source, target = members
        return _same(target, given[source], got[target].tensors) if given[source] else None
    if any(not got[rank].tensors for rank in members) and kind in (
        "all_reduce",
        "all_gather",
        "reduce_scatter",
    ):
        return None
    if kind == "all_to_all" and not all(len(given[rank]) == len(members) for rank in members):
        return None
    if kind in ("all_gather", "broadcast", "all_to_all", "gather", "scatter"):
        for position, rank in enumerate(members):
            # only the root gets anything
            if kind == "gather" and rank != row.peer:
                continue
            if kind == "broadcast" and rank == row.peer:
                continue
            expected = _expected(kind, members, row, given, position)
            if expected is None:
                return None
            verdict = _same(rank, _part(expected, got[rank]), got[rank].tensors)
            if verdict:
                return verdict
        return 0.0
    if kind in ("all_reduce", "reduce_scatter", "reduce"):
        if any(item.start is not None for item in got.values()):
            return None
        return _sums(kind, members, row, given, {rank: item.tensors for rank, item in got.items()})
    return None


def _whole(tensors: Tensors) -> torch.Tensor:
    """Flat tensors one after the other; as bytes, where they are of several types."""
    import torch

    if len({tensor.dtype for tensor in tensors}) > 1:
        tensors = [tensor.view(torch.uint8) for tensor in tensors]
    return torch.cat(tensors) if tensors else torch.empty(0)


def _by_rank(tensors: Tensors, ranks: int) -> Tensors:
    """The parts of several tensors that go to the first rank, then those that go to the next."""
    parts = [tensor.chunk(ranks) for tensor in tensors]
    return [part[rank] for rank in range(ranks) for part in parts if rank < len(part)]


def _part(expected: Tensors, got: Got) -> Tensors:
    """Of all that should have come, what is here."""
    if got.start is None:
        return expected
    return [_whole(expected)[got.start : got.start + sum(tensor.numel() for tensor in got.tensors)]]


def _expected(
    kind: str, members: tuple[int, ...], row: Exchange, given: Mapping[int, Tensors], position: int
) -> Tensors | None:
    """What the rank at a position should have got."""
    if kind == "broadcast":
        return None if row.peer is None or not given[row.peer] else given[row.peer]
    if kind == "scatter":
        # the root gives a tensor to each, in the order of ranks
        return None if row.peer is None or not given[row.peer] else [given[row.peer][position]]
    if kind in ("all_gather", "gather"):
        # of several tensors each is gathered by itself
        count = len(given[members[0]])
        if not count or any(len(given[rank]) != count for rank in members):
            return None
        return [given[rank][item] for item in range(count) for rank in members]
    return [given[rank][position] for rank in members]


def _same(rank: int, given: Tensors, received: Tensors) -> float | str:
    import torch

    expected, got = _whole(given), _whole(received)
    if expected.numel() != got.numel() or expected.dtype != got.dtype:
        return f"rank {rank} got {got.numel():,} numbers where {expected.numel():,} were given"
    if torch.equal(expected.view(torch.uint8), got.view(torch.uint8)):
        return 0.0
    differ = int((expected.view(torch.uint8) != got.view(torch.uint8)).sum())
    return f"rank {rank} got other bytes than were given ({differ:,} of {expected.nbytes:,})"


# ---------------------------------------------------------------- sums


def _sums(
    kind: str,
    members: tuple[int, ...],
    row: Exchange,
    given: Mapping[int, Tensors],
    got: Mapping[int, Tensors],
) -> float | str | None:
    """How far off the numbers are that were added up, in parts of the same type each."""
    error = 0.0
    receivers = [rank for rank in members if kind != "reduce" or rank == row.peer]
    for dtype in dict.fromkeys(tensor.dtype for tensor in given[members[0]]):
        gave = {rank: [t for t in given[rank] if t.dtype == dtype] for rank in members}
        if kind == "reduce_scatter" and len(gave[members[0]]) > 1 and len(got[members[0]]) > 1:
            # of several tensors each is divided by itself
            gave = {rank: _by_rank(tensors, len(members)) for rank, tensors in gave.items()}
        parts = [_whole(gave[rank]) for rank in members]
        if len({len(part) for part in parts}) > 1:
            return None
        reduced = Reduced.of(row.reduction, parts)
        if reduced is None:
            return None
        for rank in receivers:
            expected = reduced
            if kind == "reduce_scatter":
                expected = reduced.part(members.index(rank), len(members))
            received = _whole([t for t in got[rank] if t.dtype == dtype])
            if len(expected.numbers) != len(received):
                return f"rank {rank} got {received.numel():,} numbers where {len(expected.numbers):,} were summed"
            off = expected.off(received)
            if not off.share <= reduced.tolerance:
                return f"rank {rank} got sums that are off by up to {off.most:.3g}"
            error = max(error, off.share)
    return error


class Off(NamedTuple):
    """How far off numbers are that were added up: at most, and as a part of what was given without its signs."""

    most: float
    share: float


class Reduced(NamedTuple):
    """What comes of reducing what all ranks gave: floating point numbers in double precision, others as they are."""

    numbers: torch.Tensor
    magnitude: torch.Tensor
    """What comes of them without their signs: how far rounding can reach."""
    given: torch.Tensor
    """What was given, a row for each rank."""
    is_choice: bool
    """Whether one of the given numbers is taken."""

    @classmethod
    def of(cls, reduction: str | None, parts: Tensors) -> Reduced | None:
        """None where it is not known how numbers are reduced.

        >>> import torch
        >>> Reduced.of("sum", [torch.tensor([200], dtype=torch.uint8)] * 2).numbers.tolist()
        [144]
        """
        import torch

        stacked = torch.stack(parts)
        dtype = stacked.dtype
        if dtype.is_floating_point:
            stacked = stacked.to(torch.float64)
        elif dtype.is_complex:
            stacked = stacked.to(torch.complex128)
        elif reduction == "avg":
            return None
        if reduction in BITWISE and not (dtype.is_floating_point or dtype.is_complex):
            numbers = functools.reduce(BITWISE[reduction], stacked)
            return cls(numbers, numbers, torch.stack(parts), False)
        # whole numbers run over as they do where they are added up; double precision would round large ones
        reductions: dict[str | None, Callable[[torch.Tensor], torch.Tensor]] = {
            "sum": lambda rows: rows.sum(0, dtype=rows.dtype),
            "avg": lambda rows: rows.mean(0),
            "max": lambda rows: rows.amax(0),
            "min": lambda rows: rows.amin(0),
            "product": lambda rows: rows.prod(0, dtype=rows.dtype),
        }
        if reduction not in reductions:
            return None
        is_choice = reduction in ("max", "min")
        unsigned = stacked.abs() if stacked.is_floating_point() or stacked.is_complex() else stacked
        magnitude = unsigned.clamp(min=1).prod(0) if reduction == "product" else unsigned.sum(0)
        return cls(reductions[reduction](stacked), magnitude, torch.stack(parts), is_choice)

    def part(self, position: int, count: int) -> Reduced:
        """That of the rank at a position, where each of so many gets a part."""
        numbers, magnitude = (item.chunk(count)[position] for item in (self.numbers, self.magnitude))
        return Reduced(numbers, magnitude, self.given.chunk(count, dim=1)[position], self.is_choice)

    @property
    def is_exact(self) -> bool:
        """Whether the numbers are whole ones, which nothing rounds."""
        return not (self.numbers.is_floating_point() or self.numbers.is_complex())

    @property
    def tolerance(self) -> float:
        """How far off a sum may be, as a part of ``magnitude``."""
        import torch

        dtype = self.given.dtype
        if self.is_exact:
            return 0.0
        rounding = len(self.given) * torch.finfo(dtype).eps
        return max(TOLERANCES.get(str(dtype).removeprefix("torch."), 0.0), rounding)

    def off(self, received: torch.Tensor) -> Off:
        """By how much what a rank received is off."""
        import torch

        expected = self.numbers
        if not received.numel():
            return Off(0.0, 0.0)
        if self.is_exact:
            if torch.equal(expected, received):
                return Off(0.0, 0.0)
            # double precision may not tell large ones apart
            most = max(1.0, float((expected.double() - received.double()).abs().max()))
            return Off(most, most)
        wide, limits = received.to(expected.dtype), torch.finfo(received.dtype)
        same = (expected == wide) | (expected.isnan() & wide.isnan())
        # what is too large for the type on the way stays infinite, or is no number from there on
        same |= ~wide.isfinite() & (self.magnitude > limits.max)
        if self.is_choice:
            # of a number and of one that is none, it depends on the order which is taken
            same |= self.given.isnan().any(0) & (wide.isnan() | (self.given == received).any(0))
        off = torch.where(same, 0.0, (expected - wide).abs())
        # numbers below the smallest that a type has whole are rounded to steps of that
        shares = torch.where(same, 0.0, off / self.magnitude.clamp(min=limits.smallest_normal))
        return Off(float(off.max()), float(shares.max()))
