"""A format for each parameter: the narrowest that each takes alone, and what of that they take together."""

from __future__ import annotations

import heapq
from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

from torch_vis.analysis.advice.quantization.sensitivity import Rounding, Whole


class Advised(NamedTuple):
    """Formats that hold together, None for a parameter to keep: ``whole`` is what comes of all of them at once.

    ``alone_db`` is what the output would be with every parameter in the narrowest format that it takes alone.
    """

    formats: dict[str, str | None]
    whole: Whole
    alone_db: float | None


def narrowest(rows: Sequence[Rounding], floor_db: float) -> dict[str, str | None]:
    """For each parameter the narrowest format that leaves enough of the output with this one alone rounded."""
    found: dict[str, str | None] = {row.weight: None for row in rows}
    for row in sorted(rows, key=lambda row: row.bytes_after):
        if found[row.weight] is None and row.reached_db >= floor_db and not row.hidden:
            found[row.weight] = row.format
    return found


def advised(
    rows: Sequence[Rounding], floor_db: float, tried: Callable[[Mapping[str, str]], Whole]
) -> Advised | None:
    """Formats that leave enough of the output together, where any was found; ``tried`` runs with some of them.

    None as well where there is no output to look at: nothing tells what they do together.

    Errors add up. Where they come to too much, the parameters that bring most get the next better format, or stay as
    they are; how many have to is found by halving, so that few runs are needed.
    """
    alone = narrowest(rows, floor_db)
    if not any(alone.values()):
        return None
    first = tried(_chosen(alone))
    if first.output_db is None:
        return None
    if first.output_db >= floor_db:
        return Advised(alone, first, first.output_db)
    steps = _widened(rows, alone)
    low, high = 0, len(steps)  # too much is rounded; enough is left
    found = Advised(dict.fromkeys(alone), tried({}), first.output_db)
    while high - low > 1:
        middle = (low + high) // 2
        formats = {**alone, **dict(steps[:middle])}
        whole = tried(_chosen(formats))
        if whole.output_db is None or whole.output_db >= floor_db:
            high, found = middle, Advised(formats, whole, first.output_db)
        else:
            low = middle
    return found


def _chosen(formats: Mapping[str, str | None]) -> dict[str, str]:
    return {weight: form for weight, form in formats.items() if form is not None}


def _widened(rows: Sequence[Rounding], alone: Mapping[str, str | None]) -> list[tuple[str, str | None]]:
    """Parameters that get another format, one after another until all stay as they are: the worst one next."""
    better = {row.weight: [row] for row in rows if row.format == alone[row.weight]}
    for row in sorted(rows, key=lambda row: (row.bytes_after, -row.reached_db)):
        mine = better.get(row.weight, ())
        if mine and row.reached_db > mine[-1].reached_db:
            better[row.weight].append(row)
    queue = [(mine[0].reached_db, weight, 0) for weight, mine in better.items()]
    heapq.heapify(queue)
    found: list[tuple[str, str | None]] = []
    while queue:
        _, weight, place = heapq.heappop(queue)
        mine = better[weight][place + 1 :]
        found.append((weight, mine[0].format if mine else None))
        if mine:
            heapq.heappush(queue, (mine[0].reached_db, weight, place + 1))
    return found
