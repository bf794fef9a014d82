"""A run cut into parts: what each comes to, what passes between them, and why each cut is where it is."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cached_property
from typing import TYPE_CHECKING, Any, NamedTuple

from torch_vis.analysis.fusion.report import chained, common_path, ends, module_paths, shared_path
from torch_vis.analysis.machine.hardware import amount_bytes
from torch_vis.analysis.partition import Budget, Parts, cut
from torch_vis.analysis.report import Charts, Report, most
from torch_vis.errors import UsageError
from torch_vis.graph.run import Run
from torch_vis.graph.schema import Phase
from torch_vis.graph.text import count, size
from torch_vis.ops.display_names import op_label
from torch_vis.views.charts.chart import Axis, Chart, Series
from torch_vis.views.text.table_layout import Field, Listing
from torch_vis.views.text.table_layout import cut as cut_text

if TYPE_CHECKING:
    pass

BARS = 40
ROOM, WIDE = 200, 100  # letters in a line that take all columns of a part, and those of half of them
OUTSIDE = "input of the run"
HELD = (
    "inputs, weights and outputs are what a part has to hold, whole; what it moves is that without what stays inside, "
    "and of a table that is looked up in the rows read; FLOPs per byte are of that"
)
VIEWS = "views run no kernel, so max_operations does not count them"


class Transfer(NamedTuple):
    """Tensors that a part reads from others, and why the parts were not merged."""

    reason: str
    tensors: int
    bytes: int


class PartRow(NamedTuple):
    """One part. ``moved_bytes`` are those that pass in and out if what is internal stays on the chip.

    Inputs, weights and outputs are tensors that it has to hold, whole; of a table that is looked up in, only the rows
    move. ``intensity`` is FLOPs per byte accessed. Both are None where operations are not known. ``reason`` is why it
    begins where it does; ``crossings`` say more of what it takes from other parts.
    """

    number: int
    operations: tuple[int, ...]
    names: tuple[str, ...]
    modules: tuple[str, ...]
    phase: str
    flops: int | None
    input_bytes: int
    output_bytes: int
    weight_bytes: int
    internal_bytes: int
    moved_bytes: int | None
    intensity: float | None
    reason: str
    crossings: tuple[Transfer, ...]


class PartitionReport(Report):
    """The parts of a run, in an order in which they can be run one after another.

    >>> import torch, torch_vis as tv
    >>> model = torch.nn.Sequential(torch.nn.Linear(8, 8), torch.nn.ReLU(), torch.nn.Linear(8, 2))
    >>> found = tv.trace(model, torch.ones(4, 8)).partition()
    >>> [(part.names, part.output_bytes, part.reason) for part in found.parts]
    [(('addmm', 'relu'), 128, 'input of the run'), (('addmm',), 32, 'operand of a matrix product')]
    """

    title = "Partition"

    def __init__(
        self,
        run: Run,
        *,
        by: str = "fusion",
        depth: int | None = None,
        max_operations: int | None = None,
        max_flops: float | None = None,
        max_bytes: float | str | None = None,
    ) -> None:
        graph, metrics = run.graph, run.metrics
        most = None if max_bytes is None else amount_bytes(max_bytes, "max_bytes", hardware=False)
        budget = Budget(max_operations, max_flops, most)
        if not len(graph):
            raise UsageError("this trace has no operations, so there is nothing to partition")
        self.graph = graph
        """The graph of the run."""
        flops, moved = metrics["flops"], metrics["moved_bytes"]
        self.columns = Parts(
            graph, cut(graph, by=by, depth=depth, budget=budget, flops=flops, moved=moved), flops, moved
        )
        """The parts as columns, one row for each."""

    @cached_property
    def parts(self) -> list[PartRow]:
        """The parts, in order."""
        graph, columns = self.graph, self.columns
        paths, ops = module_paths(graph), [op_label(call.op) for call in graph.calls]
        where = [paths[scope] for scope in graph.node_scope.tolist()]
        names = [ops[call] for call in graph.node_call.tolist()]
        loud, phases = columns.cut.fused.is_kernel.tolist(), graph.node_phase.tolist()
        rows = zip(
            *(column.tolist() for column in (columns.input_bytes, columns.output_bytes, columns.weight_bytes,
                                             columns.internal_bytes, columns.flops, columns.uncovered)),
            columns.passing_bytes, columns.intensity, columns.cut.begins, strict=True,
        )  # fmt: skip
        parts = []
        for number, (taken, given, weights, internal, flops, missing, moved, intensity, begins) in enumerate(
            rows
        ):
            members = columns.members(number).tolist()
            shown = [node for node in members if loud[node]] or members
            crossings = tuple(Transfer(*row) for row in columns.reasons(number))
            parts.append(
                PartRow(
                    number=number,
                    operations=tuple(members),
                    names=tuple(names[node] for node in shown),
                    modules=tuple(dict.fromkeys(where[node] for node in shown)),
                    phase=Phase(phases[shown[0]]).name.lower(),
                    flops=None if missing else flops,
                    input_bytes=taken,
                    output_bytes=given,
                    weight_bytes=weights,
                    internal_bytes=internal,
                    moved_bytes=moved,
                    intensity=intensity,
                    reason=begins or (crossings[0].reason if crossings else OUTSIDE),
                    crossings=crossings,
                )
            )
        return parts

    @cached_property
    def boundaries(self) -> list[Transfer]:
        """All tensors that pass from part to part, by reason, the most bytes first."""
        totals: dict[str, list[int]] = {}
        for part in self.parts:
            for crossing in part.crossings:
                total = totals.setdefault(crossing.reason, [0, 0])
                total[0] += crossing.tensors
                total[1] += crossing.bytes
        rows = [Transfer(reason, *total) for reason, total in totals.items()]
        return sorted(rows, key=lambda row: (-row.bytes, row.reason))

    @property
    def part_count(self) -> int:
        """How many parts there are."""
        return self.columns.count

    @property
    def total_flops(self) -> int:
        """What all parts compute."""
        return int(self.columns.flops.sum())

    @property
    def transfer_bytes(self) -> int:
        """What passes between parts."""
        return sum(row.bytes for row in self.boundaries)

    @property
    def internal_bytes(self) -> int:
        """What stays inside of parts."""
        return int(self.columns.internal_bytes.sum())

    def facts(self) -> Mapping[str, str]:
        """How many parts, and what passes between them."""
        return {
            "parts": f"{self.part_count:,}, of {len(self.graph):,} operations",
            "FLOPs": count(self.total_flops),
            "passes between parts": size(self.transfer_bytes),
            "stays inside": size(self.internal_bytes),
        }

    def listings(self) -> Sequence[Listing]:
        """One row per part, and one per reason."""
        fields = (
            Field("number", "part", "{:,}".format), Field("names", "what it runs"), Field("module", "module"),
            Field("phase", "phase"), Field("operations", "operations", count),
            Field("views", "of which views", count), Field("flops", "FLOPs", count),
            Field("input_bytes", "inputs", size), Field("weight_bytes", "weights", size),
            Field("output_bytes", "outputs", size), Field("internal_bytes", "stays inside", size),
            Field("moved_bytes", "moves", size), Field("intensity", "FLOPs per byte", "{:,.2f}".format),
            Field("reason", "cut off by"),
        )  # fmt: skip
        rows: list[tuple[Any, ...]] = [
            (part.number, chained(part.names), common_path(part.modules), part.phase, len(part.operations), views,
             part.flops, part.input_bytes, part.weight_bytes, part.output_bytes, part.internal_bytes,
             part.moved_bytes, part.intensity, part.reason)
            for part, views in zip(self.parts, (self.columns.operations - self.columns.kernels).tolist(), strict=True)
        ]  # fmt: skip
        why = (
            Field("reason", "why they are not one part"),
            Field("tensors", "tensors", count),
            Field("bytes", "bytes", size),
        )
        return [
            Listing("Parts", fields, rows, heading="Parts, in the order of the run"),
            Listing("What passes between parts", why, self.boundaries),
        ]

    def printed(self, width: int) -> Sequence[Listing]:
        """What runs and why it is cut off, and below it what each part holds; all at once where there is room."""
        whole, why = self.listings()
        if width >= ROOM:
            return [whole, why]
        runs, holds = (
            "names module flops moved_bytes reason",
            "input_bytes weight_bytes output_bytes internal_bytes",
        )
        holds = f"phase operations views {holds}"
        if width < WIDE:
            runs, holds = runs.replace("module ", ""), holds.replace("phase operations views", "module")
        first = _columns(whole, f"number {runs}".split())
        second = _columns(whole, f"number {holds} intensity".split())._replace(heading="What each part holds")
        return [self._cut(first, width), why, self._cut(second, width)]

    def _cut(self, listing: Listing, width: int) -> Listing:
        """A listing whose names and modules are shortened to the room that other columns leave, so that reasons fit."""
        rows = [list(row) for row in listing.rows[: listing.most]]
        fields, cells = listing._replace(rows=rows).shown()
        longest = [max(map(len, column), default=0) for column in zip(*cells)] or [0] * len(fields)
        cuts = {field.name: long for field, long in zip(fields, longest) if field.name in ("names", "module")}
        rest = [max(long, _title(f)) for f, long in zip(fields, longest) if f.name not in cuts]
        left = width - sum(rest) - 2 * (len(fields) - 1)
        index_of = {field.name: index for index, field in enumerate(listing.fields)}
        for number, (name, long) in enumerate(sorted(cuts.items(), key=lambda item: item[1])):
            # what the shorter one leaves, the other has
            limit = max(min(long, left // (len(cuts) - number)), 4)
            left -= limit
            for row, part in zip(rows, self.parts):
                text = row[index_of[name]] if name == "module" else _short(part.names, limit)
                row[index_of[name]] = cut_text(text, limit) if len(text) > limit else text
        return listing._replace(rows=[*rows, *listing.rows[listing.most :]])

    def charts(self) -> Charts:
        """The bytes that the largest parts hold, by kind, and those that parts access."""
        if not any(part.moved_bytes for part in self.parts):
            return Charts(bytes=self._bytes_chart)
        return Charts(bytes=self._bytes_chart, moved=self._accessed_chart)

    def _bytes_chart(self) -> Chart:
        columns = {
            "inputs": "input_bytes",
            "weights": "weight_bytes",
            "outputs": "output_bytes",
            "stays inside": "internal_bytes",
        }
        largest = sorted(self.parts, key=lambda part: -sum(getattr(part, name) for name in columns.values()))
        shown = sorted(largest[:BARS], key=lambda part: part.number)
        labels = [self._label(part) for part in shown]
        hover = [f"{chained(part.names)}, cut off by: {part.reason}" for part in shown]
        series = [
            Series(title, labels, [getattr(part, name) for part in shown], hover)
            for title, name in columns.items()
            if any(getattr(part, name) for part in shown)
        ]
        title = f"Bytes that each part holds, in the order of the run{most(len(shown), len(self.parts))}"
        return Chart("bars", title, Axis("part"), Axis("bytes", "bytes"), series)

    def _accessed_chart(self) -> Chart:
        known = [part for part in self.parts if part.moved_bytes]
        largest = sorted(known, key=lambda part: -(part.moved_bytes or 0))[:BARS]
        shown = sorted(largest, key=lambda part: part.number)
        hover = [
            "FLOPs per byte: not known" if part.intensity is None else f"{part.intensity:,.2f} FLOPs per byte"
            for part in shown
        ]
        accessed = Series(
            "accessed",
            [self._label(part) for part in shown],
            [part.moved_bytes or 0 for part in shown],
            hover,
        )
        title = f"Bytes that each part accesses, in the order of the run{most(len(shown), len(known))}"
        return Chart("bars", title, Axis("part"), Axis("bytes", "bytes"), [accessed])

    def _label(self, part: PartRow) -> str:
        path = shared_path(part.modules)
        return f"{part.number}: {ends(part.names)}" + (f" in {path}" if path else "")

    def notes(self) -> Sequence[str]:
        """What is not covered."""
        missing = int(self.columns.uncovered.sum())
        notes = [HELD]
        notes += [VIEWS] if (self.columns.operations > self.columns.kernels).any() else []
        if missing:
            notes.append(f"the FLOPs of {missing:,} operations are not known and not in the totals")
        return notes


def _columns(listing: Listing, names: Sequence[str]) -> Listing:
    """Some columns of a listing, in another order."""
    index_of = {field.name: index for index, field in enumerate(listing.fields)}
    chosen = [index_of[name] for name in names]
    rows = [[row[index] for index in chosen] for row in listing.rows]
    return listing._replace(fields=tuple(listing.fields[index] for index in chosen), rows=rows)


def _short(names: Sequence[str], wide: int) -> str:
    """Names in order, as many as there is room for."""
    forms = [chained(names), chained(names, 4), ends(names)]
    return next((form for form in forms if len(form) <= wide), forms[-1])


def _title(field: Field) -> int:
    """What a title needs where there is little room."""
    return max(map(len, field.title.split())) if field.show else len(field.title)
