"""The classes of what torch_vis gives, for annotations and ``isinstance``.

>>> import torch, torch_vis as tv
>>> def slowest(report: tv.types.TimeReport) -> str:
...     return report.operators[0].name
>>> isinstance(tv.trace(torch.nn.ReLU(), torch.ones(2)).graph.nodes[0], tv.types.Node)
True
"""

from torch_vis.analysis.attribution.attention import AttentionReport
from torch_vis.analysis.attribution.edges import EdgeReport
from torch_vis.analysis.attribution.lens import LogitLensReport
from torch_vis.analysis.attribution.methods import AttributionReport
from torch_vis.analysis.control_flow import BranchesReport, LoopsReport
from torch_vis.analysis.fusion.report import FusionReport
from torch_vis.analysis.gradients.health import HealthReport
from torch_vis.analysis.gradients.report import GradientsReport
from torch_vis.analysis.machine.latency import LatencyReport
from torch_vis.analysis.machine.roofline import RooflineReport
from torch_vis.analysis.memory.report import MemoryReport
from torch_vis.analysis.partition.report import PartitionReport
from torch_vis.analysis.ranks.communication import CommunicationReport
from torch_vis.analysis.relevance.on_graph import RelevanceReport
from torch_vis.analysis.report import Report
from torch_vis.analysis.summary import SummaryReport
from torch_vis.analysis.time import TimeReport
from torch_vis.graph.graph import Node, Scope, Value
from torch_vis.graph.metrics import Column
from torch_vis.graph.record import Limit, Run
from torch_vis.graph.schema import Site, TensorType

__all__ = [
    "AttentionReport",
    "AttributionReport",
    "BranchesReport",
    "Column",
    "CommunicationReport",
    "EdgeReport",
    "FusionReport",
    "GradientsReport",
    "HealthReport",
    "LatencyReport",
    "Limit",
    "LogitLensReport",
    "LoopsReport",
    "MemoryReport",
    "Node",
    "PartitionReport",
    "RelevanceReport",
    "Report",
    "RooflineReport",
    "Run",
    "Scope",
    "Site",
    "SummaryReport",
    "TensorType",
    "TimeReport",
    "Value",
]
