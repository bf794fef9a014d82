"""Boxes of one frame set in layers, top to bottom, with lanes for the lines that pass between them.

Ranks are longest paths; a line that spans several ranks gets a lane (an empty cell) in each one that it passes; orders
within a rank follow the neighbours' mean; places are the least-squares ones that keep order and distance. A line is
upright wherever it passes a rank, and moves sideways only in the gaps between ranks, so that it never crosses a box.
"""

from __future__ import annotations

import heapq
import itertools
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

SWEEPS = 8
LANE = 8.0  # the room that a passing line takes
LITTLE = 40.0  # a box is set in the middle of its rank unless the rank is higher by more than this
STRAIGHT = 6.0  # how much more a lane holds to its line than a box to its neighbours


@dataclass(slots=True)
class LayoutCell:
    """A box to be placed: its size, its place in the order of execution, and whether it lies on the frame's edge."""

    width: float
    height: float
    order: int
    edge: str = ""  # "top" or "bottom": a port of the frame
    x: float = 0.0  # of its middle
    y: float = 0.0  # of its top
    rank: int = 0
    slot: int = 0
    is_lane: bool = False


@dataclass(slots=True)
class LayoutLine:
    """A line from a cell to a cell; ``exit`` and ``entry`` are where it touches them, from their middle.

    Lines with the same ``source`` and ``key`` share their lanes.
    """

    source: int
    target: int
    key: object = None
    exit: float = 0.0
    entry: float = 0.0
    path: list[tuple[float, float]] = field(default_factory=list)
    reversed: bool = False


def arrange(
    cells: list[LayoutCell], lines: list[LayoutLine], *, gap: float, rank_gap: float, port_gap: float
) -> tuple[float, float]:
    """Give every cell its place and every line its path; returns the width and the height of the frame.

    The frame's top left corner is at 0, 0.
    """
    if not cells:
        return 0.0, 0.0
    for line in lines:
        if cells[line.source].order > cells[line.target].order:
            line.source, line.target, line.reversed = line.target, line.source, True
            line.exit, line.entry = line.entry, line.exit
    real = len(cells)
    _rank(cells, lines)
    chains = _add_lanes(cells, lines)
    ranks = _ranks(cells)
    hops = _hops(cells, chains, lines)
    _order(cells, ranks, hops)
    _place(cells, ranks, hops, gap)
    bands = _stack(cells, ranks, rank_gap, port_gap)
    left = min(cell.x - cell.width / 2 for cell in cells)
    for cell in cells:
        cell.x -= left
    width = max(cell.x + cell.width / 2 for cell in cells)
    for line, chain in zip(lines, chains):
        line.path = _path(cells, line, chain, bands)
    del cells[real:]
    return width, bands[-1][1]


def _rank(cells: list[LayoutCell], lines: Sequence[LayoutLine]) -> None:
    """Longest paths from the top; what nothing feeds moves down to just above its first reader."""
    before: list[list[int]] = [[] for _ in cells]
    after: list[list[int]] = [[] for _ in cells]
    for line in lines:
        before[line.target].append(line.source)
        after[line.source].append(line.target)
    lowest = 1 if any(cell.edge == "top" for cell in cells) else 0
    by_order = sorted(range(len(cells)), key=lambda number: cells[number].order)
    for number in by_order:
        cell = cells[number]
        rank = max((cells[source].rank + 1 for source in before[number]), default=lowest)
        cell.rank = 0 if cell.edge == "top" else max(lowest, rank)
    for number in reversed(by_order):
        if not before[number] and after[number] and not cells[number].edge:
            cells[number].rank = max(lowest, min(cells[target].rank for target in after[number]) - 1)
    bottom = max(cell.rank for cell in cells if cell.edge != "bottom") if cells else 0
    for cell in cells:
        if cell.edge == "bottom":
            cell.rank = bottom + 1


def _add_lanes(cells: list[LayoutCell], lines: Sequence[LayoutLine]) -> list[list[int]]:
    """An empty cell in every rank that a line passes; returns each line's cells from end to end."""
    lanes: dict[tuple[int, object, int], int] = {}
    chains = []
    for line in lines:
        chain = [line.source]
        for rank in range(cells[line.source].rank + 1, cells[line.target].rank):
            # Lines that were turned round end at their source: only those of one reader can share a lane.
            key = (line.source, (line.key, line.target) if line.reversed else line.key, rank)
            if key not in lanes:
                lanes[key] = len(cells)
                cells.append(LayoutCell(LANE, 0.0, cells[line.source].order, rank=rank, is_lane=True))
            chain.append(lanes[key])
        chains.append([*chain, line.target])
    return chains


def _ranks(cells: Sequence[LayoutCell]) -> list[list[int]]:
    ranks: list[list[int]] = [[] for _ in range(max(cell.rank for cell in cells) + 1)]
    for number in sorted(range(len(cells)), key=lambda number: cells[number].order):
        ranks[cells[number].rank].append(number)
    ranks = [rank for rank in ranks if rank]
    for index, rank in enumerate(ranks):
        for number in rank:
            cells[number].rank = index
    return ranks


Hop = tuple[int, float, float, float]  # the neighbour, its offset, one's own offset, weight


def _hops(
    cells: Sequence[LayoutCell], chains: Sequence[Sequence[int]], lines: Sequence[LayoutLine]
) -> tuple[list[list[Hop]], list[list[Hop]]]:
    """For each cell its neighbours in the rank above and in the rank below, each once."""
    above: list[list[Hop]] = [[] for _ in cells]
    below: list[list[Hop]] = [[] for _ in cells]
    seen: set[tuple[int, int, float, float]] = set()
    for line, chain in zip(lines, chains):
        for index, (upper, lower) in enumerate(itertools.pairwise(chain)):
            out = line.exit if index == 0 else 0.0
            into = line.entry if index == len(chain) - 2 else 0.0
            if (upper, lower, out, into) in seen:
                continue
            seen.add((upper, lower, out, into))
            weight = STRAIGHT if cells[upper].is_lane and cells[lower].is_lane else 1.0
            below[upper].append((lower, into, out, weight))
            above[lower].append((upper, out, into, weight))
    return above, below


def _order(
    cells: list[LayoutCell], ranks: list[list[int]], hops: tuple[list[list[Hop]], list[list[Hop]]]
) -> None:
    """Order each rank by its neighbours' mean place, down and up in turn; the order with fewest crossings stays."""
    above, below = hops
    for rank in ranks:
        for slot, number in enumerate(rank):
            cells[number].slot = slot
    best, fewest = [list(rank) for rank in ranks], _crossings(cells, ranks, below)
    for sweep in range(SWEEPS):
        down = sweep % 2 == 0
        near = above if down else below
        for rank in ranks if down else reversed(ranks):
            wanted = {}
            for number in rank:
                slots = [cells[other].slot + 0.001 * offset for other, offset, _, _ in near[number]]
                wanted[number] = sum(slots) / len(slots) if slots else float(cells[number].slot)
            rank.sort(key=lambda number: wanted[number])
            for slot, number in enumerate(rank):
                cells[number].slot = slot
        crossings = _crossings(cells, ranks, below)
        if crossings < fewest:
            best, fewest = [list(rank) for rank in ranks], crossings
        if not fewest:
            break
    for rank, kept in zip(ranks, best):
        rank[:] = kept
        for slot, number in enumerate(rank):
            cells[number].slot = slot


def _crossings(
    cells: Sequence[LayoutCell], ranks: Sequence[Sequence[int]], below: Sequence[Sequence[Hop]]
) -> int:
    """How many pairs of lines cross, counted by inserting their lower ends in the order of the upper ones."""
    total = 0
    for rank in ranks:
        ends: list[float] = []
        for number in rank:
            ends.extend(sorted(cells[other].slot + 1e-4 * into for other, into, _, _ in below[number]))
        total += _inversions(ends)
    return total


def _inversions(numbers: list[float]) -> int:
    """Pairs that stand in the wrong order, by merging halves of growing width."""
    total, width = 0, 1
    while width < len(numbers):
        merged: list[float] = []
        for start in range(0, len(numbers), 2 * width):
            left, right = numbers[start : start + width], numbers[start + width : start + 2 * width]
            i = j = 0
            while i < len(left) or j < len(right):
                if j == len(right) or (i < len(left) and left[i] <= right[j]):
                    merged.append(left[i])
                    i += 1
                else:
                    merged.append(right[j])
                    total += len(left) - i
                    j += 1
        numbers, width = merged, 2 * width
    return total


def _place(
    cells: list[LayoutCell],
    ranks: Sequence[Sequence[int]],
    hops: tuple[list[list[Hop]], list[list[Hop]]],
    gap: float,
) -> None:
    """Move the cells of each rank towards their neighbours as far as order and distance allow."""
    above, below = hops
    for rank in ranks:
        at = 0.0
        for number in rank:
            cells[number].x = at + cells[number].width / 2
            at += cells[number].width + gap
        for number in rank:
            cells[number].x -= at / 2
    for sweep in range(2 * SWEEPS):
        down = sweep % 2 == 0
        both = sweep >= SWEEPS
        for rank in ranks if down else reversed(ranks):
            wanted, weights = [], []
            for number in rank:
                near = [*above[number], *below[number]] if both else (above if down else below)[number]
                weight = sum(hop[3] for hop in near)
                pull = sum(w * (cells[other].x + theirs - mine) for other, theirs, mine, w in near)
                wanted.append(pull / weight if weight else cells[number].x)
                weights.append(weight or 0.1)
            places = _spread(wanted, weights, [cells[number].width for number in rank], gap)
            for number, x in zip(rank, places):
                cells[number].x = x


def _spread(
    wanted: Sequence[float], weights: Sequence[float], widths: Sequence[float], gap: float
) -> list[float]:
    """The places nearest to the wanted ones (weighted squares) that keep the order and the distance.

    >>> _spread([0.0, 0.0], [1.0, 1.0], [10.0, 10.0], 2.0)
    [-6.0, 6.0]
    """
    shift = [0.0]
    for left, right in itertools.pairwise(widths):
        shift.append(shift[-1] + (left + right) / 2 + gap)
    # each: weighted sum, weight, number of cells
    blocks: list[list[float]] = []
    for want, weight, by in zip(wanted, weights, shift):
        blocks.append([(want - by) * weight, weight, 1])
        while len(blocks) > 1 and blocks[-2][0] * blocks[-1][1] >= blocks[-1][0] * blocks[-2][1]:
            total, weight, count = blocks.pop()
            blocks[-1][0] += total
            blocks[-1][1] += weight
            blocks[-1][2] += count
    means = [total / weight for total, weight, count in blocks for _ in range(int(count))]
    return [mean + by for mean, by in zip(means, shift)]


def _stack(
    cells: list[LayoutCell], ranks: Sequence[Sequence[int]], rank_gap: float, port_gap: float
) -> list[tuple[float, float]]:
    """Set the ranks below one another; returns where each begins and ends."""
    bands: list[tuple[float, float]] = []
    at = 0.0
    for index, rank in enumerate(ranks):
        height = max(cells[number].height for number in rank)
        for number in rank:
            spare = height - cells[number].height
            # beside a tall frame, at its top
            cells[number].y = at + (spare / 2 if spare < LITTLE else 0.0)
        bands.append((at, at + height))
        edges = {cells[number].edge for number in rank}
        below = {cells[number].edge for number in ranks[index + 1]} if index + 1 < len(ranks) else set()
        straight = len(rank) == 1 == len(ranks[min(index + 1, len(ranks) - 1)])
        at += height + (port_gap if straight and ("top" in edges or "bottom" in below) else rank_gap)
    return bands


def _path(
    cells: Sequence[LayoutCell], line: LayoutLine, chain: Sequence[int], bands: Sequence[tuple[float, float]]
) -> list[tuple[float, float]]:
    """The knots of a line: upright through each rank, sideways in the gaps between."""
    points: list[tuple[float, float]] = []
    for index, number in enumerate(chain):
        cell = cells[number]
        top, bottom = bands[cell.rank]
        if index == 0:
            x = cell.x + line.exit
            points += [(x, cell.y + cell.height), (x, bottom)]
        elif index == len(chain) - 1:
            x = cell.x + line.entry
            points += [(x, top), (x, cell.y)]
        else:
            points += [(cell.x, top), (cell.x, bottom)]
    return points[::-1] if line.reversed else points


def in_flow(parts: Sequence[int], pairs: Iterable[tuple[int, int]]) -> list[int]:
    """Parts in the order of what flows between them; ``parts`` are in the order in which they began.

    What backward computes again begins after the module that reads it. Where two parts read one another, the one that
    began first stands first.

    >>> in_flow([1, 2, 3], [(3, 1), (1, 2)]), in_flow([1, 2, 3], [(1, 2), (2, 1), (3, 1)])
    ([3, 1, 2], [3, 1, 2])
    """
    position = {part: number for number, part in enumerate(parts)}
    readers: dict[int, set[int]] = {part: set() for part in parts}
    for source, target in pairs:
        if source != target:
            readers[source].add(target)
    waiting = dict.fromkeys(parts, 0)
    for targets in readers.values():
        for target in targets:
            waiting[target] += 1
    ready = [position[part] for part in parts if not waiting[part]]
    heapq.heapify(ready)
    done: list[int] = []
    taken: set[int] = set()
    next_unready = 0
    while len(done) < len(parts):
        if not ready:
            # They read one another in a circle.
            while parts[next_unready] in taken:
                next_unready += 1
            heapq.heappush(ready, next_unready)
        part = parts[heapq.heappop(ready)]
        taken.add(part)
        done.append(part)
        for target in readers[part]:
            waiting[target] -= 1
            if not waiting[target] and target not in taken:
                heapq.heappush(ready, position[target])
    return done
