"""A tree of modules as flat columns, rows in the order in which a reader meets them.

A row's subtree is the stretch ``row .. end[row]``, so that sums over it are differences of one running sum, and
hiding it is one slice. Nothing here walks the tree by recursion, and no object is made per row.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from torch_vis.graph.tree import Tree
from torch_vis.graph.types import Array, Floats, Ints

RECOMPUTED = "recomputed"  # what a row is marked with whose module backward ran again


class Forest:
    """Names, classes and figures of a tree; a figure that is not known is NaN.

    ``numbers`` holds a column per figure, ``texts`` a function of the row per column of words, so that words are made
    for the rows on the screen only.

    >>> forest = Forest(["net", "conv", "fc"], ["Net", "Conv2d", "Linear"], [-1, 0, 0])
    >>> forest.paths, forest.end.tolist(), forest.subtotal(np.array([0, 5, 2])).tolist()
    (['', 'conv', 'fc'], [3, 2, 3], [7, 5, 2])
    """

    def __init__(
        self,
        names: list[str],
        types: list[str],
        parent: Sequence[int],
        *,
        paths: list[str] | None = None,
        kinds: list[str] | None = None,
    ) -> None:
        self.names = names
        self.types = types
        self.parent: Ints = np.asarray(parent, dtype=np.int64)
        self.kinds = kinds
        tree = Tree(self.parent)
        self.depth, self.end = tree.depth, np.arange(len(tree)) + tree.size
        self.paths = _paths(names, parent) if paths is None else paths
        self.numbers: dict[str, Floats] = {}
        self.texts: dict[str, Callable[[int], str]] = {"type": types.__getitem__}
        self.later: dict[str, Callable[[], Floats]] = {}
        """Columns of figures that take a while, by what computes them; ``complete`` does it."""
        self.marks: dict[int, str] = {}
        """A word beside the names of some rows, which the filter finds as well."""
        self.sharing: Sharing | None = None
        self._signatures: Ints | None = None
        self.describe: Callable[[int], Any] = lambda row: ()
        """What of a row, beside its class and its children, must agree for two rows to be alike."""

    def __len__(self) -> int:
        return len(self.names)

    def kind(self, row: int) -> str:
        """What a row stands for: ``"module"``, ``"tensor"``, ``"shared"``, ``"function"``…"""
        return "module" if self.kinds is None else self.kinds[row]

    def children(self, row: int) -> list[int]:
        """The rows directly below a row; for -1 the outermost ones."""
        found, place = [], row + 1
        stop = len(self) if row < 0 else int(self.end[row])
        while place < stop:
            found.append(place)
            place = int(self.end[place])
        return found

    def subtotal(self, own: Array) -> Array:
        """The sum of a column over each row's subtree."""
        running = np.concatenate([[0], np.cumsum(own)])
        return running[self.end] - running[:-1]

    def complete(self, name: str) -> None:
        """Compute a column that was left for later."""
        compute = self.later.get(name)
        if compute is not None:
            self.numbers[name] = compute()
            self.later.pop(name, None)

    def row(self, path: str) -> int | None:
        """The row of a path, None where there is none."""
        return self._by_path.get(path)

    @property
    def _by_path(self) -> dict[str, int]:
        found: dict[str, int] | None = self.__dict__.get("_paths_index")
        if found is None:
            found = {}
            for row in range(len(self) - 1, -1, -1):
                found[self.paths[row]] = row
            self.__dict__["_paths_index"] = found
        return found

    @property
    def signatures(self) -> Ints:
        """Rows that are alike all the way down have equal numbers."""
        if self._signatures is None:
            known: dict[Any, int] = {}
            inside: list[list[Any]] = [[] for _ in self.names]
            found = np.zeros(len(self), dtype=np.int64)
            parents = self.parent.tolist()
            for row in range(len(self) - 1, -1, -1):
                key = (self.types[row], self.describe(row), tuple(inside[row]))
                number = known.setdefault(key, len(known))
                found[row] = number
                inside[row] = []
                if parents[row] >= 0:
                    inside[parents[row]].append((self.names[row], number))
            self._signatures = found
        return self._signatures


class Sharing:
    """Which things (parameters) each row holds itself, where one thing may be held by several rows.

    ``row`` and ``item`` are one pair per holding, rows ascending; ``size`` is a figure per item. A sum over a subtree
    counts an item once, however many rows of the subtree hold it.

    >>> forest = Forest(["net", "a", "b"], ["N", "A", "B"], [-1, 0, 0])
    >>> Sharing(forest, [1, 2, 2], [0, 0, 1], [10, 5]).inclusive(np.array([10, 5])).tolist()
    [15, 10, 15]
    """

    def __init__(
        self, forest: Forest, row: Sequence[int], item: Sequence[int], size: Sequence[int] | Ints
    ) -> None:
        self.forest = forest
        self.row: Ints = np.asarray(row, dtype=np.int64)
        self.item: Ints = np.asarray(item, dtype=np.int64)
        self.size: Ints = np.asarray(size, dtype=np.int64)
        self._again = self._meetings()

    def own(self, figure: Array) -> Array:
        """A figure of the items, summed over what each row holds itself."""
        found = np.bincount(self.row, weights=figure[self.item], minlength=len(self.forest))
        return found if figure.dtype.kind == "f" else found.astype(np.int64)

    def inclusive(self, figure: Array) -> Array:
        """The same over each row's subtree, every item once."""
        own = self.own(figure)
        meeting, item = self._again
        if len(meeting):
            twice = np.bincount(meeting, weights=figure[item], minlength=len(own))
            own = own - twice.astype(own.dtype)
        return self.forest.subtotal(own)

    def over(self, first: int, stop: int, figure: Array) -> int:
        """The sum over a stretch of rows, every item once."""
        low, high = np.searchsorted(self.row, [first, stop])
        return int(figure[np.unique(self.item[low:high])].sum())

    def _meetings(self) -> tuple[Ints, Ints]:
        """For each item held again, the row where the two holdings first come under one roof."""
        counts = np.bincount(self.item, minlength=len(self.size))
        again = np.flatnonzero(counts[self.item] > 1)
        order = again[np.lexsort((self.row[again], self.item[again]))]
        meeting, item = [], []
        parent, end = self.forest.parent, self.forest.end
        for one, two in zip(order[:-1].tolist(), order[1:].tolist()):
            if self.item[one] != self.item[two]:
                continue
            above = int(self.row[one])
            while above >= 0 and not above <= self.row[two] < end[above]:
                above = int(parent[above])
            if above >= 0:
                meeting.append(above)
                item.append(int(self.item[one]))
        return np.asarray(meeting, dtype=np.int64), np.asarray(item, dtype=np.int64)


def _paths(names: list[str], parent: Sequence[int]) -> list[str]:
    """The dotted paths; an outermost row is the model itself and has none."""
    paths: list[str] = []
    for name, up in zip(names, parent):
        if up < 0:
            paths.append("")
        else:
            above = paths[up]
            paths.append(f"{above}.{name}" if above else name)
    return paths
