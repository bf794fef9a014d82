"""What the weights of a call can be told by, where the run holds them."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable
from functools import cached_property
from typing import Any

import numpy as np

from torch_vis.analysis.compare.sides import Side
from torch_vis.graph.schema import Role


class Contents:
    """The weights that the calls of one run read, by what ``read`` tells of a value, if it is there."""

    def __init__(
        self,
        side: Side,
        inside: list[list[int]],
        read: Callable[[int], Any] | None,
        known: dict[Any, int],
    ) -> None:
        self.side, self.inside, self.read, self.known = side, inside, read, known

    def has(self, scope: int) -> bool:
        """Whether a call, or one inside it, reads weights."""
        return self._has[scope]

    def of(self, scope: int) -> int | None:
        """A number that is equal where the weights in a call, and those inside it, are; None where they say nothing."""
        return None if self.read is None else self._numbers[scope]

    @cached_property
    def _has(self) -> list[bool]:
        found = [False] * len(self.inside)
        for scope in range(len(found) - 1, -1, -1):  # a call has a higher number than those around it
            found[scope] = scope in self._values or any(found[inner] for inner in self.inside[scope])
        return found

    @cached_property
    def _numbers(self) -> list[int | None]:
        assert self.read is not None
        found: list[int | None] = [None] * len(self.inside)
        for scope in range(len(found) - 1, -1, -1):
            own = [told for value in self._values.get(scope, ()) if (told := self.read(value)) is not None]
            inner = [told for child in self.inside[scope] if (told := found[child]) is not None]
            if own or inner:
                found[scope] = self.known.setdefault((*own, None, *inner), len(self.known))
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
        return dict(found)
