"""The memory of a run with some module calls checkpointed, beside that of the run as it was."""

from __future__ import annotations

from itertools import pairwise
from typing import Any, NamedTuple

import numpy as np

from torch_vis.analysis.memory.checkpointing import Checkpointing
from torch_vis.analysis.report import Charts, Report
from torch_vis.graph.text import count, duration, size
from torch_vis.views.charts.chart import Axis, Chart, Series, stages_of
from torch_vis.views.text.table import Field, Listing

RANDOM = (  # what torch.utils.checkpoint keeps besides tensors that operations read
    "not counted: 5,056 bytes of random state a call (preserve_rng_state), and what a call is given but does not read"
)
POINTS = 2000  # along a timeline; beyond, the highest of each stretch is drawn


class Again(NamedTuple):
    """A module whose calls are computed again in backward, and what that costs; None where it is not known."""

    path: str
    type: str
    calls: int
    extra_flops: int | None
    extra_time_ns: int | None


class Checkpointed(Report):
    """The memory of a run if some module calls were checkpointed.

    ``peak_bytes`` is the peak then, and ``before_bytes`` the one now. ``recomputing`` says whether it is reached while
    a call is computed again: those operations are not among the recorded ones, so that ``live``, the bytes during each
    of these, does not go as high.
    """

    title = "Memory with checkpoints"

    def __init__(self, run: Checkpointing, paths: list[str], *, predicted: bool) -> None:
        found = run.with_checkpoints(paths)
        self.graph, self.predicted = run.graph, predicted
        self.peak_bytes, self.recomputing, self.live = found.peak_bytes, found.recomputing, found.live
        self.before_bytes, self._before = run.blocks.peak_bytes, run.blocks.live
        self._repeated, self._retained = run.steps.repeated, run.steps.retained
        self.modules = _modules(run, found.scopes.tolist(), predicted)

    @property
    def saved_bytes(self) -> int:
        """How much lower the peak is; negative where computing again takes the run above it."""
        return self.before_bytes - self.peak_bytes

    @property
    def extra_flops(self) -> int | None:
        """The FLOPs that are computed again; None where those of an operation are not known."""
        return _sum([row.extra_flops for row in self.modules])

    @property
    def extra_time_ns(self) -> int | None:
        """The time of the operations that are computed again; None where nothing was run."""
        return _sum([row.extra_time_ns for row in self.modules])

    def facts(self) -> dict[str, str]:
        """The two peaks, and what the lower one costs."""
        lower = self.saved_bytes
        change = f"{size(abs(lower))} {'lower' if lower >= 0 else 'higher'}"
        share = f" ({abs(lower) / self.before_bytes:.0%})" if self.before_bytes else ""
        when = ", reached while a call is computed again" if self.recomputing else ""
        found = {"peak now": size(self.before_bytes), "new peak": f"{size(self.peak_bytes)}{when}"}
        found["change"] = f"{change}{share}" if lower else "none"
        if self.extra_flops is not None:
            found["extra FLOPs"] = count(self.extra_flops)
        if self.extra_time_ns is not None:
            found["extra time"] = (
                f"about {duration(self.extra_time_ns)}, as the operations took when recorded"
            )
        return found

    def listings(self) -> list[Listing]:
        """What is computed again, module by module."""
        rows = [(row.path or "(root)", *row[1:]) for row in self.modules]
        return [Listing("Computed again", AGAIN, rows, heading="Computed again in backward")]

    def charts(self) -> Charts:
        """The bytes alive along the run, now and with checkpoints."""
        return Charts(timeline=self._timeline_chart) if len(self.graph) else Charts()

    def _timeline_chart(self) -> Chart:
        lines: list[Series] = []
        for name, live in (("now", self._before), ("with checkpoints", self.live)):
            x, chosen = thinned(live)
            names = [f"{number:,} {self.graph.nodes[number].name}" for number in x]
            # the second in dashes over the first: for part of a run the two are often the same
            lines.append(Series(name, x, live[chosen].tolist(), names, dashed=bool(lines)))
        peak = Series(f"new peak: {size(self.peak_bytes)}", [0, len(self.graph) - 1], [self.peak_bytes] * 2)
        along = Axis("operation, in the order of the run", "count")
        title, held = "Memory with checkpoints", Axis("held by tensors", "bytes")
        return Chart("lines", title, along, held, lines, [peak], stages_of(self.graph))

    def notes(self) -> list[str]:
        """What the figures are and are not."""
        found = [
            "worked out from the lifetimes of this run, nothing was run again: what tensors hold if "
            "torch.utils.checkpoint.checkpoint(module, …, use_reentrant=False) calls the modules"
        ]
        if self.modules:
            found.append(RANDOM)
        if self._repeated:
            found.append(
                "backward came by the same forward pass more than once: torch would compute the calls again each time "
                "and keep nothing in between, which is not followed here; the new peak may be lower"
            )
        if self._retained:
            found.append(
                "backward let go of nothing that was saved: it is taken to be held by the program; if it was kept by "
                "retain_graph=True, the new peak may be lower"
            )
        if self.predicted:
            found.append("nothing was run: these are the lifetimes of a run by shapes alone")
        if not self.modules:
            found.append("none of these calls saves anything for backward that it could forget")
        return found


AGAIN = (
    Field("path", "module"), Field("type", "class"), Field("calls", "calls", count),
    Field("extra_flops", "extra FLOPs", count), Field("extra_time_ns", "extra time", duration),
)  # fmt: skip


def _modules(run: Checkpointing, scopes: list[int], predicted: bool) -> list[Again]:
    """The modules of some calls, each once."""
    flops, times = run.extra("flops"), None if predicted else run.extra("time_ns")
    calls: dict[int, list[int]] = {}
    for scope in scopes:
        calls.setdefault(int(run.graph.scope_module[scope]), []).append(scope)
    found = []
    for number, inside in calls.items():
        module = run.graph.modules[number]
        costs = [
            None if known is None else _sum([known[scope] for scope in inside]) for known in (flops, times)
        ]
        found.append(Again(module.path, module.type, len(inside), *costs))
    return found


def _sum(amounts: list[int | None]) -> int | None:
    """What amounts come to; None where one of them is not known."""
    known = [amount for amount in amounts if amount is not None]
    return sum(known) if len(known) == len(amounts) else None


def thinned(live: Any) -> tuple[list[int], Any]:
    """Places along a timeline, few enough to draw: of each stretch the one where most is alive."""
    if len(live) <= POINTS:
        return list(range(len(live))), np.arange(len(live))
    edges = np.linspace(0, len(live), POINTS + 1).astype(np.int64)
    chosen = np.array([low + int(live[low:high].argmax()) for low, high in pairwise(edges.tolist())])
    return chosen.tolist(), chosen
