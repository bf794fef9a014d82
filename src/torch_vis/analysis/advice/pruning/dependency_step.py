"""What a rule of the coupling works with: the numbers along a tensor's dimensions, and one operation at a time."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from torch_vis.graph import Slot
from torch_vis.graph.graph import Node
from torch_vis.graph.types import Ints
from torch_vis.ops.names import plain_name

if TYPE_CHECKING:
    from torch_vis.analysis.advice.pruning.dependency import Coupling

Ids = Ints
# for each dimension the numbers of its indices, None where they are not followed
Dims = list["Ids | None"]


@dataclass(eq=False)
class Grid:
    """A dimension that a view has split, before it is known which part is the one that can be cut.

    Of ``(batch, 96)`` seen as ``(batch, 3, 4, 8)`` the numbers of 96 stand in a grid of 3 by 4 by 8. Taking one of the
    three makes that axis ``rigid``: what goes, goes from all three. At the first operation that computes, the
    outermost axis that is left is ``kept`` (the heads), and what lies within one of its indices is tied together.
    """

    ids: Ids
    # of the module whose view it was
    path: str
    rigid: set[int] = field(default_factory=set)
    kept: int | None = None

    def along(self, axis: int) -> Ids:
        """The numbers along an axis, of the first index of all others."""
        return self.ids[tuple(slice(None) if place == axis else 0 for place in range(self.ids.ndim))]


@dataclass(frozen=True, eq=False)
class Part:
    """One axis of a grid, in the place of a dimension's numbers."""

    grid: Grid
    axis: int

    def __len__(self) -> int:
        return int(self.grid.ids.shape[self.axis])


Entry = Ids | Part | None


@dataclass
class Step:
    """One operation, as a rule sees it."""

    coupling: Coupling
    node: Node
    inputs: list[int]

    def arg(self, place: int, default: Any = None) -> Any:
        """An argument by its place; a tensor as its dimensions, what a view has split decided."""
        args = self.node.call.args
        if place >= len(args):
            return default
        return self._resolved(args[place])

    def _resolved(self, item: Any) -> Any:
        if isinstance(item, Slot):
            return self.coupling.dims(self.inputs[item.number])
        if type(item) is tuple and any(isinstance(part, Slot) for part in item):
            return [self._resolved(part) for part in item]
        return item

    def value(self, place: int) -> int:
        """The number of a tensor argument's value."""
        return self.inputs[self.node.call.args[place].number]

    def raw(self, place: int) -> list[Entry]:
        """The dimensions of a tensor argument, what a view has split left open."""
        return self.coupling.raw(self.value(place))

    def shape(self, place: int) -> tuple[int, ...]:
        """The shape of a tensor argument."""
        return self.coupling.graph.values[self.value(place)].shape

    @property
    def out(self) -> tuple[int, ...]:
        """The shape of the first output."""
        return self.node.outputs[0].shape

    def tie(self, one: Ids | None, two: Ids | None) -> Ids | None:
        """Two dimensions that go together."""
        return self.coupling.tie(
            one, two, f"{self.node.name} joins it with an input, or with what cannot be followed"
        )

    def contract(self, x: int, one: Ids | None, weight: int, two: Ids | None) -> None:
        """Two dimensions that are summed over together, of the arguments at two places.

        Where one is a parameter's, zeroing it there is what cutting comes to; two activations have no such place.
        """
        self.tie(one, two)
        if self.coupling.is_plain(self.value(weight)):
            self.coupling.feed(two)
        elif self.coupling.is_plain(self.value(x)):
            self.coupling.feed(one)
        else:
            self.mix([one, two])

    def joined(self, *tensors: tuple[Sequence[Ids | None], Sequence[int]], shape: Sequence[int]) -> Dims:
        """The dimensions of what several tensors give when they are spread over one shape, aligned at the end."""
        out: Dims = [None] * len(shape)
        seen = [False] * len(shape)
        for dims, sizes in tensors:
            for back in range(1, min(len(sizes), len(shape)) + 1):
                if sizes[-back] == shape[-back] and (shape[-back] > 1 or not seen[-back]):
                    out[-back] = self.tie(out[-back], dims[-back]) if seen[-back] else dims[-back]
                    seen[-back] = True
        return out

    def mix(self, dims: Sequence[Ids | None]) -> None:
        """Dimensions along which elements depend on each other here."""
        self.coupling.mix(dims, plain_name(self.node.name))

    def lock(self, dims: Sequence[Ids | None], why: str) -> None:
        """Nothing of these may be cut."""
        self.coupling.lock(dims, why)


Rule = Callable[[Step], Sequence[Sequence[Entry]]]
