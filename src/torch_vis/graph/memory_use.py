"""What the memory of a run is for, as it is handed to those who show it."""

from __future__ import annotations

from typing import NamedTuple

from torch_vis.graph.types import Array


class MemoryByUse(NamedTuple):
    """What each block of memory is for, and how much there is of each use while each operation runs.

    The figures are those of ``Trace.memory()``, for views that draw them. A use is a number, a place in ``words``.

    >>> import torch, torch_vis as tv
    >>> t = tv.trace(torch.nn.Linear(3, 2), torch.ones(1, 3), backward=True)
    >>> memory = t.metrics.memory
    >>> memory.words[memory.use[memory.alive(memory.peak_node)[0]]], memory.live.max().item()
    ('parameter', 92)
    """

    words: tuple[str, ...]
    use: Array
    """The use of each block."""
    value: Array
    """The value that each block is told by, such as the parameter or what ``.grad`` is at last; -1 if there is none."""
    birth: Array
    """The operation from which on each block is there; -1 for what was there before the run."""
    death: Array
    """The operation before which each block is gone."""
    size_bytes: Array
    """How large each block is."""
    during: Array
    """The bytes of each use while each operation runs: a row for each use."""

    @property
    def live(self) -> Array:
        """All bytes that are there while each operation runs."""
        found: Array = self.during.sum(axis=0)
        return found

    @property
    def peak_node(self) -> int | None:
        """The operation during which most is there; None for a run without operations."""
        live = self.live
        return int(live.argmax()) if len(live) else None

    def alive(self, node: int | None) -> Array:
        """The blocks that are there while an operation runs, the largest first."""
        at = -1 if node is None else node
        found = ((self.birth <= at) & (self.death > max(at, 0)) & (self.size_bytes > 0)).nonzero()[0]
        return found[(-self.size_bytes[found]).argsort(kind="stable")]
