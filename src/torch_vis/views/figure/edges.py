"""The order in which the parts of a frame stand: after what they read, and otherwise as they ran."""

from __future__ import annotations

import heapq
from collections.abc import Iterable, Sequence


def in_flow(parts: Sequence[int], pairs: Iterable[tuple[int, int]]) -> list[int]:
    """Parts in the order of what flows between them; ``parts`` are in the order in which they began.

    What backward computes again begins after the module that reads it. Where two parts read one another, the one that
    began first stands first.

    >>> in_flow([1, 2, 3], [(3, 1), (1, 2)]), in_flow([1, 2, 3], [(1, 2), (2, 1), (3, 1)])
    ([3, 1, 2], [3, 1, 2])
    """
    place = {part: number for number, part in enumerate(parts)}
    readers: dict[int, set[int]] = {part: set() for part in parts}
    for source, target in pairs:
        if source != target:
            readers[source].add(target)
    waiting = dict.fromkeys(parts, 0)
    for targets in readers.values():
        for target in targets:
            waiting[target] += 1
    ready = [place[part] for part in parts if not waiting[part]]
    heapq.heapify(ready)
    done: list[int] = []
    taken: set[int] = set()
    next_unready = 0
    while len(done) < len(parts):
        if not ready:  # they read one another in a circle
            while parts[next_unready] in taken:
                next_unready += 1
            heapq.heappush(ready, next_unready)
        part = parts[heapq.heappop(ready)]
        taken.add(part)
        done.append(part)
        for target in readers[part]:
            waiting[target] -= 1
            if not waiting[target] and target not in taken:
                heapq.heappush(ready, place[target])
    return done
