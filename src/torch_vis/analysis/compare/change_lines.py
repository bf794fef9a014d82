"""The changes of two runs in few lines: the same change in several layers of a list is one line."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterable, Sequence
from itertools import pairwise
from typing import TYPE_CHECKING, NamedTuple

from torch_vis.graph.text import inert, split_number

if TYPE_CHECKING:
    from torch_vis.analysis.compare.changes import ModuleChange

STAR = "*"
# The digits that number modules: an index in a list, or the end of a name as in layer1.


class ChangeLine(NamedTuple):
    """Changes that are printed on one line: where, as a pattern of paths, and what."""

    path: str
    what: str
    changes: tuple[ModuleChange, ...]

    def __str__(self) -> str:
        return inert(f"{self.path or '(root)'} {self.what}")

    @property
    def paths(self) -> list[str]:
        """The paths of the modules that it is about."""
        return [change.path for change in self.changes]


def change_lines(changes: Sequence[ModuleChange], paths: Iterable[str]) -> list[ChangeLine]:
    """The changes, in order, as lines; ``paths`` are those of all modules of both runs.

    >>> from torch_vis.analysis.compare.changes import ModuleChange
    >>> row = ModuleChange("class", "", "", "ReLU → GELU")
    >>> acts = [row._replace(a=f"blocks.{n}.act") for n in range(3)]
    >>> [str(line) for line in change_lines(acts, [f"blocks.{n}.act" for n in range(3)])]
    ['blocks.*.act ReLU → GELU']
    >>> [str(line) for line in change_lines(acts[1:], [f"blocks.{n}.act" for n in range(3)])]
    ['blocks.1-2.act ReLU → GELU']
    """
    known: dict[str, set[str]] = defaultdict(set)
    for path in paths:
        for masked in _maskings(path):
            known[masked].add(path)
    lines: dict[tuple[str, str], list[ModuleChange]] = {}
    for change in changes:
        lines.setdefault((_masked(change.path), change.what), []).append(change)
    rows = []
    for (masked, what), alike in lines.items():
        own = list(dict.fromkeys(change.path for change in alike))
        for path, members in _patterns(masked, own, known.get(masked, set())):
            chosen = tuple(change for change in alike if change.path in members)
            rows.append(ChangeLine(path, what, chosen))
    rows = _joined(rows, known)
    place = {id(change): number for number, change in enumerate(changes)}
    return sorted(rows, key=lambda row: min(place[id(change)] for change in row.changes))


def _masked(path: str) -> str:
    """A path with stars for the indices in it."""
    return ".".join(STAR if part.isdigit() else part for part in path.split("."))


def _loosely_masked(path: str) -> str:
    """A path with stars also for the numbers at the ends of names."""
    return ".".join(_starred(part) for part in path.split("."))


def _starred(name: str) -> str:
    stem, number = split_number(name)
    return name if number is None else f"{stem}{STAR}"


def _maskings(path: str) -> set[str]:
    return {_masked(path), _loosely_masked(path)}


def _patterns(masked: str, own: list[str], all_paths: Collection[str]) -> list[tuple[str, set[str]]]:
    """The paths that changed alike as patterns, each with its paths: one star if all did, else which of them."""
    if len(own) == 1:
        return [(own[0], set(own))]
    if set(own) >= set(all_paths):
        return [(_varying(own), set(own))]
    groups: dict[tuple[str, ...], list[str]] = defaultdict(list)
    parts = [path.split(".") for path in own]
    varies = [len(set(column)) > 1 for column in zip(*parts)]
    last = max(index for index, differs in enumerate(varies) if differs)
    for path in own:
        groups[tuple(_with_star(path, last))].append(path)
    patterns = []
    for names, members in groups.items():
        pattern = ".".join(names)
        siblings = {path for path in all_paths if ".".join(_with_star(path, last)) == pattern}
        if len(members) == 1:
            patterns.append((members[0], set(members)))
        elif set(members) >= siblings:
            patterns.append((pattern, set(members)))
        else:
            numbers = _ranges(sorted(int(path.split(".")[last]) for path in members))
            patterns.append((".".join((*names[:last], numbers, *names[last + 1 :])), set(members)))
    return patterns


def _with_star(path: str, index: int) -> list[str]:
    names = path.split(".")
    return [*names[:index], STAR, *names[index + 1 :]] if index < len(names) else names


def _varying(paths: list[str]) -> str:
    """Paths of one form as one, with stars where they differ."""
    columns = zip(*(path.split(".") for path in paths))
    return ".".join(_common_name(list(dict.fromkeys(names))) for names in columns)


def _common_name(names: list[str]) -> str:
    return names[0] if len(names) == 1 else _starred(names[0])


def _ranges(numbers: list[int]) -> str:
    """Numbers in few letters.

    >>> _ranges([0, 1, 2, 5])
    '0-2,5'
    """
    spans = [[numbers[0], numbers[0]]]
    for before, number in pairwise(numbers):
        if number == before + 1:
            spans[-1][1] = number
        else:
            spans.append([number, number])
    return ",".join(f"{first}" if first == last else f"{first}-{last}" for first, last in spans)


def _joined(rows: list[ChangeLine], known: dict[str, set[str]]) -> list[ChangeLine]:
    """Lines with one text whose paths differ in the numbers of names, as one, if all such modules are among them."""
    groups: dict[tuple[str, str], list[ChangeLine]] = defaultdict(list)
    for row in rows:
        groups[_loosely_masked(row.path), row.what].append(row)
    joined = []
    for (masked, what), members in groups.items():
        paths = list(dict.fromkeys(path for row in members for path in row.paths))
        such = known.get(masked)
        # A pattern that already says which numbers are meant is no pattern of all.
        if len(members) > 1 and such and set(paths) >= such:
            changes = tuple(change for row in members for change in row.changes)
            joined.append(ChangeLine(_varying(paths), what, changes))
        else:
            joined += members
    return joined
