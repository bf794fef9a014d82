"""What can be found out from a trace: one method per report, each worked out when it is asked for."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from torch_vis.graph.graph import Graph
    from torch_vis.graph.metrics import Metrics


class Reading:
    """The reports of a trace."""

    graph: Graph
    metrics: Metrics
