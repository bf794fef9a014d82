"""What the weights of a call can be told by, where the run holds them."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable
from functools import cached_property
from typing import Any

import numpy as np

from torch_vis.analysis.compare_sides import Side
from torch_vis.graph.schema import Role


class Contents:
    """The weights that the calls of one run read, by what ``read`` tells of a value, if it is there."""

    def __init__(self, side: Side, inside: list[list[int]], read: Callable[[int], Any] | None) -> None:
        self.side, self.inside, self.read = side, inside, read

    def has(self, scope: int) -> bool:
        """Whether a call, or one inside it, reads weights."""
        return bool(self._read_in(scope))

    def of(self, scope: int) -> Any:
        """What the weights of a call, and of those inside it, can be told by; None where that says nothing."""
        if self.read is None:
            return None
        found = [told for value in self._read_in(scope) if (told := self.read(value)) is not None]
        return tuple(found) or None

    def _read_in(self, scope: int) -> list[int]:
        found: list[int] = []
        stack = [scope]
        while stack:
            top = stack.pop()
            found += self._values.get(top, ())
            stack += reversed(self.inside[top])
        return found

    @cached_property
    def _values(self) -> dict[int, list[int]]:
        """The parameters and buffers that each call reads itself."""
        graph = self.side.graph
        role, made = graph.value_role[graph.in_value], graph.value_producer[graph.in_value] >= 0
        rows = np.flatnonzero(~made & ((role == Role.PARAMETER) | (role == Role.BUFFER)))
        scopes, values = graph.node_scope[graph.in_node[rows]].tolist(), graph.in_value[rows].tolist()
        found: dict[int, list[int]] = defaultdict(list)
        for scope, value in dict.fromkeys(zip(scopes, values)):
            found[self.side.solid[scope]].append(value)
        return found
