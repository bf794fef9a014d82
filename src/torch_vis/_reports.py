"""The table of reports: for each question about a run the class that answers it, and the options that it takes.

``Trace`` has a method of each name, and the command line a report (``torch-vis report memory run.tvz``). This is the
one look upwards from the trace to the analyses; nothing is loaded before it is used.
"""

from __future__ import annotations

from importlib import import_module
from typing import Any, NamedTuple


class Question(NamedTuple):
    """A question about a run: the class of the report that answers it, and the names of the options that it takes."""

    target: str
    """The report's class, as ``module:class``; it is made of the run and the options."""
    options: tuple[str, ...] = ()
    needs_numbers: bool = False
    """Whether a run on shapes alone cannot answer it."""


REPORTS: dict[str, Question] = {
    "summary": Question("torch_vis.analysis.summary:SummaryReport"),
    "memory": Question("torch_vis.analysis.memory.report:MemoryReport"),
    "time": Question("torch_vis.analysis.time:TimeReport", needs_numbers=True),
    "gradients": Question("torch_vis.analysis.gradients.report:GradientsReport", needs_numbers=True),
    "health": Question("torch_vis.analysis.gradients.health:HealthReport", needs_numbers=True),
    "fusion": Question("torch_vis.analysis.fusion.report:FusionReport"),
    "partition": Question(
        "torch_vis.analysis.partition.report:PartitionReport",
        ("by", "depth", "max_operations", "max_flops", "max_bytes"),
    ),
    "roofline": Question(
        "torch_vis.analysis.machine.roofline:RooflineReport", ("hardware",), needs_numbers=True
    ),
    "latency": Question("torch_vis.analysis.machine.latency:LatencyReport", ("hardware", "calibration")),
    "communication": Question("torch_vis.analysis.ranks.communication:CommunicationReport"),
}
# what explains a run: these need its tensors, and take inputs and functions beside the options of the command line
EXPLANATIONS: dict[str, Question] = {
    "attribute": Question(
        "torch_vis.analysis.attribution.methods:AttributionReport",
        ("method", "target", "at", "steps"),
        needs_numbers=True,
    ),
    "attention": Question(
        "torch_vis.analysis.attribution.attention:AttentionReport", ("at",), needs_numbers=True
    ),
    "logit_lens": Question(
        "torch_vis.analysis.attribution.lens:LogitLensReport", ("at", "top"), needs_numbers=True
    ),
}
FULL_REPORT = "torch_vis.analysis.full_report:write_report"
SELECT = "torch_vis.analysis.workbench:Selection"
SWEEP = "torch_vis.analysis.workbench:SweepReport"
WORLD = "torch_vis.analysis.ranks.world:World"
EXPLORE = "torch_vis.interfaces.explorer.explorer:explore"
HELP = "torch_vis.cli.task_table:tasks"


def resolved(target: str) -> Any:
    """The object that a ``module:name`` of the tables above stands for; its module is imported."""
    module, _, name = target.partition(":")
    return getattr(import_module(module), name)
