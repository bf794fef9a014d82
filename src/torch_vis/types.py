"""The classes of what torch_vis gives, for annotations and ``isinstance``.

>>> import torch, torch_vis as tv
>>> def slowest(report: tv.types.TimeReport) -> str:
...     return report.operators[0].name
>>> isinstance(tv.trace(torch.nn.ReLU(), torch.ones(2)).graph.nodes[0], tv.types.Node)
True
"""

from typing import TYPE_CHECKING, Any

from torch_vis._deprecated import CLASSES, warn
from torch_vis.analysis.activations.dataset import ActivationSet
from torch_vis.analysis.advice.batch_size import BatchSizeReport
from torch_vis.analysis.advice.checkpointing import CheckpointingReport
from torch_vis.analysis.advice.pruning.report import PruningReport
from torch_vis.analysis.advice.quantization import QuantizationReport
from torch_vis.analysis.attribution.attention import AttentionReport
from torch_vis.analysis.attribution.edges import EdgeReport
from torch_vis.analysis.attribution.lens import LogitLensReport
from torch_vis.analysis.attribution.methods import AttributionReport
from torch_vis.analysis.compare.change_lines import ChangeLine
from torch_vis.analysis.compare.changes import ModuleChange
from torch_vis.analysis.compare.comparison import Change
from torch_vis.analysis.compare.module_deltas import ModuleDelta
from torch_vis.analysis.compare.numeric.report import DifferencesReport
from torch_vis.analysis.control_flow import BranchesReport, LoopsReport
from torch_vis.analysis.fusion.compiled_kernels import KernelsReport
from torch_vis.analysis.fusion.report import FusionReport
from torch_vis.analysis.gradients.health import HealthReport
from torch_vis.analysis.gradients.report import GradientsReport
from torch_vis.analysis.machine.calibration import Calibration
from torch_vis.analysis.machine.hardware import Hardware
from torch_vis.analysis.machine.latency import LatencyReport
from torch_vis.analysis.machine.roofline import RooflineReport
from torch_vis.analysis.memory.measured import AllocatorReport
from torch_vis.analysis.memory.report import CheckpointedReport, MemoryReport
from torch_vis.analysis.partition.report import PartitionReport
from torch_vis.analysis.ranks.by_rank import WorldCommunicationReport, WorldMemoryReport
from torch_vis.analysis.ranks.communication import CommunicationReport
from torch_vis.analysis.ranks.exchanges import Exchange
from torch_vis.analysis.ranks.fit import FitReport
from torch_vis.analysis.ranks.meetings import Meeting, Mismatch
from torch_vis.analysis.ranks.schedule import ScheduleReport
from torch_vis.analysis.ranks.step_time import StepTimeReport
from torch_vis.analysis.ranks.waiting import Clock, CriticalPathReport, RankTimeline, StragglersReport
from torch_vis.analysis.ranks.world import RankAgreement
from torch_vis.analysis.receptive_field import ReceptiveField
from torch_vis.analysis.relevance.on_graph import RelevanceReport
from torch_vis.analysis.report import Report
from torch_vis.analysis.summary import SummaryReport
from torch_vis.analysis.time import TimeReport
from torch_vis.analysis.workbench import Selection, SweepReport
from torch_vis.api import Recording
from torch_vis.capture.edits import Edit
from torch_vis.capture.live import Live
from torch_vis.graph.graph import Node, Result, Rows, Scope, Value
from torch_vis.graph.metrics import Column
from torch_vis.graph.query.matching import GraphQuery
from torch_vis.graph.run import Limit, Run
from torch_vis.graph.schema import Site, TensorType
from torch_vis.replay.check import CheckResult
from torch_vis.replay.rerun import Rerun
from torch_vis.views.text.breaks import Breaks

__all__ = [
    "ActivationSet",
    "AllocatorReport",
    "AttentionReport",
    "AttributionReport",
    "BatchSizeReport",
    "BranchesReport",
    "Breaks",
    "Calibration",
    "Change",
    "ChangeLine",
    "CheckResult",
    "CheckpointedReport",
    "CheckpointingReport",
    "Clock",
    "Column",
    "CommunicationReport",
    "CriticalPathReport",
    "DifferencesReport",
    "EdgeReport",
    "Edit",
    "Exchange",
    "FitReport",
    "FusionReport",
    "GradientsReport",
    "GraphQuery",
    "Hardware",
    "HealthReport",
    "KernelsReport",
    "LatencyReport",
    "Limit",
    "Live",
    "LogitLensReport",
    "LoopsReport",
    "Meeting",
    "MemoryReport",
    "Mismatch",
    "ModuleChange",
    "ModuleDelta",
    "Node",
    "PartitionReport",
    "PruningReport",
    "QuantizationReport",
    "RankAgreement",
    "RankTimeline",
    "ReceptiveField",
    "Recording",
    "RelevanceReport",
    "Report",
    "Rerun",
    "Result",
    "RooflineReport",
    "Rows",
    "Run",
    "ScheduleReport",
    "Scope",
    "Selection",
    "Site",
    "StepTimeReport",
    "StragglersReport",
    "SummaryReport",
    "SweepReport",
    "TensorType",
    "TimeReport",
    "Value",
    "WorldCommunicationReport",
    "WorldMemoryReport",
]

if not TYPE_CHECKING:

    def __getattr__(name: str) -> Any:
        """A class that was renamed."""
        if name not in CLASSES:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        warn(f"{__name__}.{name} is now {__name__}.{CLASSES[name]}", stacklevel=2)
        return globals()[CLASSES[name]]
