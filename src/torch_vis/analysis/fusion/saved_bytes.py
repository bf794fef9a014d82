"""What the kernels that were made save, chain by chain of those that were expected, in the bytes that these count."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from torch_vis.analysis.fusion import Fusion
    from torch_vis.analysis.fusion.dependences import Bools, Ints


class FusedBytes:
    """The bytes that compiled kernels save: ``of_chains`` has those of each chain, ``beyond`` what no chain expected.

    ``kernels`` has for each operation the kernels that it is in; one that is computed where it is used is in several.
    """

    def __init__(self, found: Fusion, kernels: Mapping[int, set[int]]) -> None:
        graph = found.graph
        self._found = found
        self.rows, self.root, self._size = found.reads
        self._reader = graph.in_node[self.rows]
        self._maker = graph.value_producer[self.root]
        pairs = zip(self._maker.tolist(), self._reader.tolist())
        none: set[int] = set()
        fused = [bool(kernels.get(a, none) & kernels.get(b, none)) for a, b in pairs]
        self.fused: Bools = np.array(fused, dtype=bool)
        first = [min(kernels.get(node, none), default=-1) for node in self._reader.tolist()]
        self._kernel = np.array(first, dtype=np.int64)
        read, again, unwritten = self._passed(), self._again(), self._unwritten()
        self.of_chains: Ints = read[0] + again[0] + unwritten[0]
        self.beyond = read[1] + again[1] + unwritten[1]

    @property
    def _chain(self) -> Ints:
        """Of each read the chain that has both sides, or the reader's where nobody in the run made it; -1 for none."""
        of = self._found.of
        return np.where(of[self._maker] == of[self._reader], of[self._reader], -1)

    def _split(self, chain: Ints, size: Ints) -> tuple[Ints, int]:
        found = np.zeros(self._found.count, dtype=np.int64)
        inside = chain >= 0
        np.add.at(found, chain[inside], size[inside])
        return found, int(size[~inside].sum())

    def _passed(self) -> tuple[Ints, int]:
        """Reads of what the reader's own kernel made."""
        return self._split(self._chain[self.fused], self._size[self.fused])

    def _again(self) -> tuple[Ints, int]:
        """Further reads of bytes that the same kernel reads already."""
        chain = self._found.of[self._reader]
        counted = (
            ~self.fused & (self._kernel >= 0) & (chain >= 0)
        )  # of operations in no chain, nothing was expected
        owner = self._kernel * max(self._found.count, 1) + chain
        more = self._found.again(counted, owner)
        return self._split(chain[counted], more[counted])

    def _unwritten(self) -> tuple[Ints, int]:
        """Tensors that only their own kernel reads."""
        found, count = self._found, len(self._found.graph.value_type)
        inside = np.bincount(self.root[self.fused], minlength=count)
        everywhere = np.bincount(self.root, minlength=count)
        gone = np.flatnonzero((inside > 0) & (inside == everywhere) & ~found.results)
        maker = found.graph.value_producer[gone]
        return self._split(np.where(found.vanishing[gone], found.of[maker], -1), found.written[gone])
