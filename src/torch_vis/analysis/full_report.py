"""Everything that can be found out about a run, in one file: Markdown to read, JSON to go on with.

``t.save("run.md")`` writes the Markdown: totals, the module table, a picture, and every report that there is data for.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable

from torch_vis._trace import Trace
from torch_vis.analysis.report import Report
from torch_vis.analysis.summary import UNCOVERED
from torch_vis.errors import TorchVisError, UsageError
from torch_vis.graph.io.atomic import PathLike, write_text
from torch_vis.graph.run import Run
from torch_vis.views.text import markdown
from torch_vis.views.text.module_tree import gaps
from torch_vis.views.text.table_layout import Listing

ABOUT = {
    "memory": "What tensors hold while each operation runs, and what it is made of where it is most.",
    "time": "How long operations, modules and source lines took, as the host saw it.",
    "roofline": "How near operations come to what the machine can do, and what holds them back.",
    "latency": "How long the run is expected to take on this machine, by what was measured to calibrate it.",
    "fusion": "Neighbouring operations that a compiler could run as one kernel: what passes between them would not "
    "have to be written to memory and read again.",
    "partition": "The run cut into parts that can run one after another. Each chain that could be fused is a part, and "
    "so is each operation that could not.",
    "communication": "What this rank says to others: collectives and messages, their bytes, and the time they take.",
    "health": "Whether numbers are sound: their ranges, where NaN and infinity first appear, dead and saturated units.",
    "gradients": "How large gradients are, layer by layer, in the order in which the layers ran.",
}
ENDINGS = (".md", ".markdown", ".json")


def save(path: PathLike, run: Run) -> None:
    """Write all reports of a run as Markdown."""
    trace = run if isinstance(run, Trace) else Trace(run.graph, run.metrics, run.limits, run.meta)
    write_text(path, _markdown(trace, *gathered(trace)))


def write_report(trace: Trace, path: PathLike) -> None:
    """Write all reports of a trace to a file that ends in ``.md`` or ``.json``."""
    try:
        ending = os.path.splitext(os.fspath(path))[1].lower()
    except TypeError:
        raise UsageError(
            f"a report is written to a file: name one that ends in .md or .json, not {path!r}"
        ) from None
    if ending not in ENDINGS:
        raise UsageError(
            f"a report is written as .md or .json; name a file that ends so, not {os.fspath(path)}"
            + ("; t.save() writes the run as a page" if ending in (".html", ".htm") else "")
        )
    if ending != ".json":
        save(path, trace)
        return
    reports, missing = gathered(trace)
    plain = {name: report.to_dict() for name, report in {"summary": trace.summary(), **reports}.items()}
    write_text(path, json.dumps({**plain, "missing": missing}, indent=1, default=str))


def gathered(trace: Trace) -> tuple[dict[str, Report], dict[str, str]]:
    """The reports that this trace has the data for, and why the others are missing."""
    builders: dict[str, Callable[[], Report]] = {
        "memory": trace.memory,
        "time": trace.time,
        "roofline": trace.roofline,
        "latency": trace.latency,
        "fusion": trace.fusion,
        "partition": trace.partition,
        "health": trace.health,
        "gradients": trace.gradients,
    }
    if len(trace.graph.comm_node):
        builders["communication"] = trace.communication
    reports: dict[str, Report] = {}
    missing: dict[str, str] = {}
    for name, build in builders.items():
        try:
            reports[name] = build()
        except TorchVisError as error:
            missing[name] = str(error)
    return reports, missing


def _markdown(trace: Trace, reports: dict[str, Report], missing: dict[str, str]) -> str:
    lines = [markdown.report(Run(trace.graph, trace.metrics, (), trace.meta)).rstrip("\n")]
    lines += _left_out(trace)
    for name, report in reports.items():
        lines += ["", f"## {report.title or name.capitalize()}", "", ABOUT[name], "", *_facts(report)]
        for listing in report.listings():
            if len(listing.rows):
                title = listing.heading or listing.title
                lines += ["", f"### {markdown.escaped(title)}", "", *_listing(listing)]
        notes = [f"> - {markdown.escaped(note)}" for note in report.notes()]
        lines += ["", *notes] if notes else []
    if trace.limits:
        lines += ["", "## Not captured", "", *(f"- {markdown.escaped(limit)}" for limit in trace.limits)]
    if missing:
        lines += ["", "## Not in this report", ""]
        lines += [f"- **{name}**: {markdown.escaped(reason)}" for name, reason in missing.items()]
    return "\n".join([*lines, ""])


def _left_out(trace: Trace) -> list[str]:
    """Which sums leave operations out, and the operators that no sum of FLOPs has in it, where there are some."""
    summary = trace.summary()
    notes = [f"- {markdown.escaped(note)}" for note in gaps(trace.metrics)]
    lines = ["", "## Sums that are too low", "", *notes] if notes else []
    listing = next(listing for listing in summary.listings() if listing.title == UNCOVERED)
    if len(listing.rows):
        lines += ["", f"## {UNCOVERED}", "", "Sums of FLOPs leave them out.", "", *_listing(listing)]
    return lines


def _facts(report: Report) -> list[str]:
    return [
        f"- **{markdown.escaped(name)}**: {markdown.escaped(fact)}" for name, fact in report.facts().items()
    ]


def _listing(listing: Listing) -> list[str]:
    fields, cells = listing.shown()
    rows = [[markdown.escaped(item) for item in row] for row in cells]
    figures = [field.show is not None for field in fields]
    lines = markdown.table([markdown.escaped(field.title) for field in fields], rows, figures=figures)
    rest = len(listing.rows) - len(rows)
    return [*lines, "", f"… and {rest:,} more"] if rest else lines
