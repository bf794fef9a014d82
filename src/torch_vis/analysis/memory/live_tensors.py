"""The tensors that are alive at an operation: a list, and the table of it."""

from __future__ import annotations

from collections.abc import Sequence

from torch_vis.graph.graph import Graph
from torch_vis.graph.lifetimes import Tensor
from torch_vis.graph.text import count, size
from torch_vis.views.text.table import Field, Listing, table

FIELDS = (
    Field("size_bytes", "size", size),
    Field("name", "tensor"),
    Field("type", "type"),
    Field("use", "use"),
    Field("path", "module"),
    Field("site", "source line"),
    Field("born", "made by", count),
    Field("dies", "freed by", count),
)


class Alive(list[Tensor]):
    """Tensors, the largest first; ``print`` shows the first of them as a table.

    >>> import torch, torch_vis as tv
    >>> t = tv.trace(torch.nn.Linear(3, 2), torch.ones(1, 3))
    >>> str(t.memory().at(1)).splitlines()[2].split()[:5]
    ['24', 'B', 'weight', 'f32[2,', '3]']
    """

    def __init__(self, tensors: Sequence[Tensor], graph: Graph) -> None:
        super().__init__(tensors)
        self._graph = graph

    def listing(self, title: str = "", heading: str = "") -> Listing:
        """The rows of the table."""
        rows = [
            (
                tensor.size_bytes,
                self._told(tensor),
                str(tensor.type),
                tensor.use,
                tensor.path or "(root)",
                None if tensor.site is None else tensor.site.short,
                tensor.born,
                tensor.dies,
            )
            for tensor in self
        ]
        return Listing(title, FIELDS, rows, heading=heading)

    def _told(self, tensor: Tensor) -> str:
        """What a tensor is called; one without a name, by what made it."""
        made = tensor.name.startswith("%") and tensor.born is not None
        return f"{tensor.name} of {self._graph.nodes[tensor.born].name}" if made else tensor.name

    def __str__(self) -> str:
        return "\n".join(table(self.listing())) if self else "nothing is alive"
