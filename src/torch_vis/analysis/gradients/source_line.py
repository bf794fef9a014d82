"""Which line of the user's a report names for an operation."""

from __future__ import annotations

from torch_vis.graph.graph import Node
from torch_vis.graph.schema import Site


def line_to_mend(node: Node) -> Site | None:
    """The line that an operation is due to: of a backward one, that of its forward, not that of ``backward()``."""
    of = node.link if node.phase == "backward" else None
    return node.site if of is None or of.site is None else of.site
