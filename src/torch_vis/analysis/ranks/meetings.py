"""Where ranks meet: which collective of one rank is which of another, and where they do not agree.

A collective is the n-th of its group on each of its members, a message the n-th between two ranks with one tag. Where
a rank left one out, or runs another, its sequence is laid beside that of the others like lines in a diff, so that what
follows still finds its counterpart.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from difflib import SequenceMatcher
from typing import NamedTuple

from torch_vis.analysis.ranks.exchanges import Exchange
from torch_vis.graph.run import Run
from torch_vis.graph.text import and_more, many, size

# sequences that differ over more than this are laid beside each other by position alone
LONGEST_DIFF = 3000
# what these send may be of another size on each rank
UNEVEN = frozenset({"all_to_all"})
NUMBERED = re.compile(r" \d+$")
# what is said of a step that did not come to its end on a rank
CUT_SHORT = ", as far as it went"


class Meeting(NamedTuple):
    """One collective or message on all ranks that take part."""

    kind: str
    axis: str
    members: tuple[int, ...]
    number: int
    parts: dict[int, int]
    """By rank, the place of its part among the exchanges of that rank."""
    root: int | None = None
    """The rank that all others wait for, where it is one alone: that of a broadcast, or the sender of a message."""


class Mismatch(NamedTuple):
    """A place where ranks do not agree; as text, a sentence."""

    rank: int
    what: str
    """missing, extra, operation, dtype, size, reduction, root, unmatched message."""
    kind: str
    axis: str
    place: str
    """The line and the module on that rank; of one that is missing, on another rank."""
    text: str

    def __str__(self) -> str:
        return self.text


class Meetings(NamedTuple):
    """What ranks do together, and where they do not."""

    rows: list[Meeting]
    problems: list[Mismatch]


Key = tuple[object, ...]


def meetings_of(ranks: Mapping[int, Sequence[Exchange]]) -> Meetings:
    """The meetings of some ranks, in the order of the first rank of each."""
    sequences: dict[Key, dict[int, list[int]]] = {}
    messages: dict[Key, dict[str, tuple[int, list[int]]]] = {}
    for rank, rows in ranks.items():
        groups: dict[tuple[tuple[int, ...], str], list[str]] = {}
        for place, row in enumerate(rows):
            if row.is_message:
                if row.peer is not None:
                    ends = (rank, row.peer) if row.kind == "send" else (row.peer, rank)
                    side = messages.setdefault((*ends, row.tag, row.members), {})
                    side.setdefault(row.kind, (rank, []))[1].append(place)
                continue
            if not row.members:
                continue
            # groups without a name of their own are numbered by each rank for itself
            base = NUMBERED.sub("", row.axis)
            names = groups.setdefault((row.members, base), [])
            if row.axis not in names:
                names.append(row.axis)
            key = (row.members, base, names.index(row.axis))
            sequences.setdefault(key, {}).setdefault(rank, []).append(place)
    result = Meetings([], [])
    for (members, *_), by_rank in sequences.items():
        assert isinstance(members, tuple)
        present = {rank: by_rank.get(rank, []) for rank in members if rank in ranks}
        _Group(ranks, members, present).match(result)
    for (source, target, *_), sides in messages.items():
        assert isinstance(source, int) and isinstance(target, int)
        if source in ranks and target in ranks:
            _match_messages(ranks, source, target, sides, result)
    result.rows.sort(key=lambda row: min((place, rank) for rank, place in row.parts.items()))
    return result


class _Group:
    """The collectives of one group of ranks."""

    def __init__(
        self,
        ranks: Mapping[int, Sequence[Exchange]],
        members: tuple[int, ...],
        places: Mapping[int, list[int]],
    ) -> None:
        self.ranks, self.members, self.places = ranks, members, places

    def match(self, result: Meetings) -> None:
        signatures = {rank: tuple(map(_agreed, self._rows(rank))) for rank in self.places}
        count = Counter(signatures.values())
        # what most do; of as many, what the lowest rank does
        common = max(count, key=lambda item: (count[item], -min(_ranks_with(signatures, item))))
        like_it = _ranks_with(signatures, common)
        first = min(like_it)
        parts: list[dict[int, int]] = [{} for _ in common]
        for rank, places in self.places.items():
            pairs: Iterable[tuple[int | None, int | None]]
            if signatures[rank] == common:
                pairs = zip(range(len(common)), range(len(common)))
            else:
                pairs = _beside(self._rows(first), self._rows(rank))
            for left, right in pairs:
                problem = self._problem(first, like_it, rank, left, right)
                if problem is not None:
                    result.problems.append(problem)
                elif left is not None and right is not None:
                    parts[left][rank] = places[right]
        for number, (row, part) in enumerate(zip(self._rows(first), parts)):
            root = row.peer if row.kind in ("broadcast", "scatter") else None
            result.rows.append(Meeting(row.kind, row.axis, self.members, number, part, root))

    def _rows(self, rank: int) -> list[Exchange]:
        return [self.ranks[rank][place] for place in self.places[rank]]

    def _problem(
        self, first: int, like_it: list[int], rank: int, left: int | None, right: int | None
    ) -> Mismatch | None:
        """Why a collective of most ranks and one of this rank are not the same."""
        one = len(like_it) == 1
        others = f"rank {like_it[0]}" if one else f"ranks {and_more(like_it)}"
        if left is None:
            assert right is not None
            row = self._rows(rank)[right]
            never = f"{others} never {'comes' if one else 'come'} to"
            text = f"rank {rank} runs {_words(row, right)} at {row.place}, which {never}"
            return Mismatch(rank, "extra", row.kind, row.axis, row.place, text)
        expected = self._rows(first)[left]
        if right is None:
            last = self._rows(rank)[-1] if self.places[rank] else None
            ended = "" if last is None else f"; its last of {expected.axis} is {last.kind} at {last.place}"
            wait = f"where {others} {'waits' if one else 'wait'}{ended}"
            text = f"rank {rank} never comes to {_words(expected, left)} at {expected.place}, {wait}"
            return Mismatch(rank, "missing", expected.kind, expected.axis, expected.place, text)
        row = self._rows(rank)[right]
        what = _difference(expected, row)
        if what is None:
            return None
        text = (
            f"rank {rank} runs {_words(row, right)} at {row.place}, where {others} {'runs' if one else 'run'} "
            f"{_words(expected, left)} at {expected.place}"
        )
        return Mismatch(rank, what, row.kind, row.axis, row.place, text)


def _ranks_with(signatures: Mapping[int, tuple[Key, ...]], wanted: tuple[Key, ...]) -> list[int]:
    return sorted(rank for rank, item in signatures.items() if item == wanted)


def _agreed(row: Exchange) -> Key:
    """What all members of a group have to agree on."""
    amount = None if row.kind in UNEVEN else row.bytes
    return row.kind, row.dtype, amount, row.reduction, row.peer


def _difference(expected: Exchange, row: Exchange) -> str | None:
    """What of it is different."""
    for name, left, right in zip(
        ("operation", "dtype", "size", "reduction", "root"), _agreed(expected), _agreed(row)
    ):
        # how numbers are added up is not always known
        if left != right and not (name == "reduction" and None in (left, right)):
            return name
    return None


def _words(row: Exchange, number: int) -> str:
    how = f" ({row.reduction})" if row.reduction else ""
    root = f" of root {row.peer}" if row.peer is not None else ""
    amount = "" if row.bytes is None else f" of {size(row.bytes)}"
    return f"{row.kind}{how}{root}{amount} {row.dtype}".rstrip() + f", number {number} of {row.axis}"


def _beside(left: list[Exchange], right: list[Exchange]) -> Iterator[tuple[int | None, int | None]]:
    """Two sequences laid beside each other: the places that belong together, None where one has nothing."""
    first = [(*_agreed(row), row.line, row.path) for row in left]
    second = [(*_agreed(row), row.line, row.path) for row in right]
    head = 0
    while head < min(len(first), len(second)) and first[head] == second[head]:
        head += 1
    tail = 0
    while tail < min(len(first), len(second)) - head and first[-1 - tail] == second[-1 - tail]:
        tail += 1
    yield from ((place, place) for place in range(head))
    middle = first[head : len(first) - tail], second[head : len(second) - tail]
    if max(map(len, middle)) > LONGEST_DIFF:
        codes = [("replace", 0, len(middle[0]), 0, len(middle[1]))]
    else:
        codes = list(SequenceMatcher(None, *middle, autojunk=False).get_opcodes())
    for _, a, b, c, d in codes:
        both = min(b - a, d - c)
        yield from ((head + a + place, head + c + place) for place in range(both))
        yield from ((head + place, None) for place in range(a + both, b))
        yield from ((None, head + place) for place in range(c + both, d))
    yield from ((len(first) - tail + place, len(second) - tail + place) for place in range(tail))


def waits_for_the_absent(runs: Mapping[int, Run], ranks: Mapping[int, Sequence[Exchange]]) -> list[Mismatch]:
    """Of ranks whose step was cut short, where they stand and wait for ranks that left no trace."""
    problems = []
    for rank, rows in ranks.items():
        if not str(runs[rank].meta.get("traced") or "").endswith(CUT_SHORT) or not rows:
            continue
        row = rows[-1]
        others = {row.peer} if row.is_message else set(row.members)
        absent = sorted(other for other in others if other is not None and other not in ranks)
        if row.done_ns is not None or row.kind == "send" or not absent:
            continue
        who = f"rank {absent[0]}" if len(absent) == 1 else f"ranks {and_more(absent)}"
        text = f"rank {rank} waits in {_words(row, row.number)} at {row.place}, for {who}: no trace was left there"
        problems.append(Mismatch(rank, "missing", row.kind, row.axis, row.place, text))
    return problems


def _match_messages(
    ranks: Mapping[int, Sequence[Exchange]],
    source: int,
    target: int,
    sides: Mapping[str, tuple[int, list[int]]],
    result: Meetings,
) -> None:
    """Messages from one rank to another with one tag, in order."""
    sent = sides.get("send", (source, []))[1]
    received = sides.get("recv", (target, []))[1]
    for number, (left, right) in enumerate(zip(sent, received)):
        given, got = ranks[source][left], ranks[target][right]
        parts = {source: left, target: right}
        if (given.dtype, given.bytes) != (got.dtype, got.bytes):
            what = "dtype" if given.dtype != got.dtype else "size"
            text = (
                f"rank {target} receives {_words(got, number)} from rank {source} at {got.place}, "
                f"which sends {_words(given, number)} at {given.place}"
            )
            result.problems.append(Mismatch(target, what, got.kind, got.axis, got.place, text))
            parts = {source: left}
        result.rows.append(Meeting("message", given.axis, (source, target), number, parts, source))
    for rank, other, rest, words in (
        (source, target, sent[len(received) :], "sends a message to rank {}, which never receives it"),
        (target, source, received[len(sent) :], "waits for a message from rank {}, which never sends it"),
    ):
        if rest:
            row = ranks[rank][rest[0]]
            more = f" (and {many(len(rest) - 1, 'more message')})" if len(rest) > 1 else ""
            text = f"rank {rank} {words.format(other)}: tag {row.tag}, at {row.place}{more}"
            result.problems.append(Mismatch(rank, "unmatched message", row.kind, row.axis, row.place, text))
