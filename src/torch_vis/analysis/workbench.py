"""The workbench: what a selector selects, and sweeps of one change over many places of a run.

Each try of a sweep starts from the same run, so that only what follows the change is computed.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import torch

from torch_vis.analysis.report import Charts, MapReport, Report
from torch_vis.capture.containers import form_leaves
from torch_vis.capture.edits import check_replacement
from torch_vis.errors import UsageError
from torch_vis.graph.graph import Node, Scope
from torch_vis.graph.query.selector import selector
from torch_vis.graph.run import Run
from torch_vis.graph.text import many
from torch_vis.progress import progress
from torch_vis.replay.held_run import HeldRun
from torch_vis.replay.rerun import Rerun, planner_of, run_whole
from torch_vis.replay.slicing import ReplayTarget
from torch_vis.views.charts.maps import MapPicture, NumberGrid
from torch_vis.views.text.table_layout import Field, Listing


class Selection(Report):
    """The calls of modules and the operations that a selector selects; ``print`` shows them as a table.

    >>> import torch, torch_vis as tv
    >>> t = tv.trace(torch.nn.Sequential(torch.nn.Linear(3, 2), torch.nn.ReLU()), torch.ones(1, 3))
    >>> t.select("class:Linear | op:relu").names
    ['0', '1/relu#2']
    """

    def __init__(self, run: Run, wanted: Any) -> None:
        self.run = run
        """The run that it selects from."""
        self.text = str(selector(wanted))
        """The selector as text."""
        self.rows: list[Scope | Node] = []
        """The calls and operations, in the order of the selector and of the run."""
        self.names: list[str] = []
        """Their names, which are selectors themselves."""
        graph = run.graph
        for match in graph.query().matches(wanted):
            for row in match.rows.tolist():
                if match.is_operation:
                    node = graph.nodes[row]
                    self._add(node, f"{node.path}/{node.name}#{row}{match.branch.suffix}")
                else:
                    scope = graph.scopes[row]
                    call = f"#{scope.call}" if scope.call else ""
                    self._add(scope, f"{scope.path}{call}{match.branch.suffix}")
        if not self.rows:
            raise UsageError(f"{self.text!r} selects nothing of this run")

    def _add(self, row: Scope | Node, name: str) -> None:
        if name not in self.names:
            self.rows.append(row)
            self.names.append(name)

    @property
    def title(self) -> str:  # type: ignore[override]
        """The selector."""
        return f"{self.text}: {len(self.rows):,} selected"

    def facts(self) -> Mapping[str, str]:
        """What it comes to is the title."""
        return {}

    def listings(self) -> Sequence[Listing]:
        """One row for each match."""
        fields = (
            Field("name", "name"),
            Field("class", "class or operator"),
            Field("gives", "gives"),
            Field("line", "line"),
        )
        rows = []
        for name, row in zip(self.names, self.rows):
            if isinstance(row, Node):
                gives = ", ".join(str(value.type) for value in row.outputs)
                rows.append((name, row.op, gives, "" if row.site is None else row.site.short))
            else:
                rows.append((name, row.type, self._returned(row), ""))
        return [Listing("matches", fields, rows, most=60, heading="Matches")]

    def _returned(self, scope: Scope) -> str:
        """What a call returned, where the trace holds that."""
        kept = getattr(self.run, "kept", None)
        form = None if kept is None else kept.returned.get(scope.index)
        values = [number for _, number in form_leaves(form) if number is not None]
        return ", ".join(str(self.run.graph.values[value].type) for value in values[:4])

    def __len__(self) -> int:
        return len(self.rows)

    def __iter__(self) -> Any:
        return iter(self.rows)


class SweepRow(NamedTuple):
    """One place with the change made there: what was measured then, and by how much that is more than without it."""

    place: str
    column: int | None
    value: float
    effect: float


class SweepReport(MapReport):
    """One change at many places of a run, and what it does to a measure; ``figure`` draws it as a grid."""

    def __init__(
        self,
        run: HeldRun,
        wanted: Any,
        edit: Any,
        *,
        measure: Callable[[Any], Any],
        args: tuple[Any, ...] = (),
        kwargs: Mapping[str, Any] | None = None,
        positions: Sequence[int] | None = None,
        heads: bool = False,
        dim: int = 1,
    ) -> None:
        if not callable(measure):
            raise UsageError("measure is a function of the output that gives a number")
        if positions is not None and heads:
            raise UsageError("a sweep goes over positions or over heads, not both")
        check_replacement(wanted, edit)
        base = run_whole(run, args, dict(kwargs or {}))
        planner = planner_of(run, run.needs_tensors("run"))
        targets = planner.targets(wanted)
        self.columns_are = "head" if heads else "position" if positions is not None else ""
        """What the columns of the grid are: heads, positions, or nothing."""
        self.baseline = _number(measure(base.output))
        """What is measured without the change."""
        self.places = [target.name for target in targets]
        """Where the change was made, in order."""
        tries = [
            (target, column)
            for target in targets
            for column in self._columns(planner, target, positions, heads)
        ]
        self.rows: list[SweepRow] = []
        """One row for each place and column."""
        for target, column in progress(tries, "sweep"):
            value = _number(measure(self._changed(base, target, column, dim, edit).output))
            self.rows.append(SweepRow(target.name, column, value, value - self.baseline))

    def _columns(
        self, planner: Any, target: ReplayTarget, positions: Sequence[int] | None, heads: bool
    ) -> list[int | None]:
        if heads:
            first = planner.targets(f"{target.name}[head=0]")[0]
            width = planner.graph.values[first.values[0]].shape[-1]
            count = first.place.heads or width // first.place.size
            return list(range(count))
        return [None] if positions is None else list(positions)

    def _changed(self, base: Rerun, target: ReplayTarget, column: int | None, dim: int, edit: Any) -> Rerun:
        if column is None:
            name = target.name
        elif self.columns_are == "head":
            name = f"{target.name}[head={column}]"
        else:
            name = f"{target.name}[{', '.join([':'] * dim + [str(column)])}]"
        return base.again(replace={name: edit})

    @property
    def title(self) -> str:  # type: ignore[override]
        """What was swept over."""
        over = f" × {len({row.column for row in self.rows})} {self.columns_are}s" if self.columns_are else ""
        return f"Sweep over {many(len(self.places), 'place')}{over}"

    def facts(self) -> Mapping[str, str]:
        """The measure without a change, and the place with the largest effect."""
        if not self.rows:
            return {}
        most = max(self.rows, key=lambda row: abs(row.effect) if math.isfinite(row.effect) else -1.0)
        at = most.place if most.column is None else f"{most.place}, {self.columns_are} {most.column}"
        return {"without a change": f"{self.baseline:.6g}", "largest effect": f"{most.effect:+.6g} at {at}"}

    def listings(self) -> Sequence[Listing]:
        """Every place, the largest effect first."""
        fields = [Field("place", "place"), Field("column", self.columns_are or "column", str)]
        fields += [Field("value", "measure", "{:.6g}".format), Field("effect", "effect", "{:+.6g}".format)]
        rows = sorted(self.rows, key=lambda row: -abs(row.effect))
        return [Listing("places", tuple(fields), rows, heading="Places")]

    def grid(self) -> tuple[list[str], list[int | None], list[list[float]]]:
        """The effects as a grid: places, columns, and a row of numbers for each place; NaN where none was tried."""
        columns = list(dict.fromkeys(row.column for row in self.rows))
        effects = {(row.place, row.column): row.effect for row in self.rows}
        return self.places, columns, [[effects.get((p, c), math.nan) for c in columns] for p in self.places]

    def charts(self) -> Mapping[str, Any]:
        """The effects as a grid of colours, places by positions or heads."""
        return Charts(effects=self._picture)

    def _picture(self) -> MapPicture:
        places, columns, grid = self.grid()
        labels = ["effect" if column is None else str(column) for column in columns]
        return MapPicture(
            self.title, [NumberGrid("", grid, places, labels, "", self.columns_are, diverging=True)]
        )


def _number(measured: Any) -> float:
    if isinstance(measured, torch.Tensor) and measured.numel() != 1:
        raise UsageError(f"measure gave a tensor of shape {list(measured.shape)}; it has to give one number")
    try:
        return float(measured)
    except (TypeError, ValueError):
        raise UsageError(f"measure gave {type(measured).__name__}; it has to give one number") from None
