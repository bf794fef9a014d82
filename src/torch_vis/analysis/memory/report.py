"""Where the memory of a run goes: the timeline by use, the peak and what it is made of, checkpointing, allocators."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property
from itertools import pairwise
from operator import index
from typing import Any, NamedTuple

import numpy as np

from torch_vis.analysis.memory.caching_allocator import WORKSPACE, Caching, simulate_caching
from torch_vis.analysis.memory.checkpointing import Checkpoint, Checkpointing, paths_of
from torch_vis.analysis.memory.kernel_workspace import ROUGH
from torch_vis.analysis.memory.kernel_workspace import scratch_bytes as scratch_of
from torch_vis.analysis.report import Charts, Report, most
from torch_vis.errors import UsageError
from torch_vis.graph.graph import Graph, Node
from torch_vis.graph.lifetimes import USE_COLORS, Lifetimes, NextRun, Tensor, Use, growing_state, next_run
from torch_vis.graph.run import Limit, Run
from torch_vis.graph.schema import Flag
from torch_vis.graph.text import and_more, count, duration, size
from torch_vis.views.charts.chart import INK, Axis, Chart, Series, stages_of
from torch_vis.views.text.table_layout import PATH, Field, Listing, cut, table

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


class LiveTensors(list[Tensor]):
    """Tensors, the largest first; ``print`` shows the first of them as a table.

    >>> import torch, torch_vis as tv
    >>> t = tv.trace(torch.nn.Linear(3, 2), torch.ones(1, 3))
    >>> next(line for line in str(t.memory().at(1)).splitlines() if " weight " in line).split()[:5]
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
        if tensor.born is None or not tensor.name.startswith("%"):
            return tensor.name
        return f"{tensor.name} of {self._graph.nodes[tensor.born].name}"

    def __str__(self) -> str:
        return "\n".join(table(self.listing())) if self else "nothing is alive"


RANDOM = (  # what torch.utils.checkpoint keeps besides tensors that operations read
    "not counted: 5,056 bytes of random state a call (preserve_rng_state), and what a call is given but does not read"
)
POINTS = 2000  # along a timeline; beyond, the highest of each stretch is drawn


class RecomputedModule(NamedTuple):
    """A module whose calls are recomputed in backward, and what that costs; None where it is unknown."""

    path: str
    type: str
    calls: int
    extra_flops: int | None
    extra_time_ns: int | None


class CheckpointedReport(Report):
    """The memory of a run if some module calls were checkpointed.

    What is computed again is not among the recorded operations, so that ``live`` may not go as high as ``peak_bytes``.

    >>> import torch, torch_vis as tv
    >>> layers = [torch.nn.Sequential(torch.nn.Linear(64, 64), torch.nn.GELU()) for _ in range(8)]
    >>> memory = tv.trace(torch.nn.Sequential(*layers), torch.ones(512, 64), backward=True).memory()
    >>> isinstance(memory.checkpoint("0"), tv.types.CheckpointedReport)
    True
    """

    title = "Memory with checkpoints"

    def __init__(self, run: Checkpointing, paths: list[str], *, predicted: bool) -> None:
        result = run.with_checkpoints(paths)
        self.graph, self.predicted = run.graph, predicted
        """The graph of the run, and whether it was a run by shapes alone."""
        self.peak_bytes = result.peak_bytes
        """The peak then."""
        self.recomputing = result.recomputing
        """Whether that peak is reached while a call is computed again."""
        self.live = result.live
        """The bytes during each recorded operation."""
        self.before_bytes = run.blocks.peak_bytes
        """The peak now."""
        self._before = run.blocks.live
        self._repeated, self._retained = run.steps.repeated, run.steps.retained
        self.modules = _modules(run, result.scopes.tolist(), predicted)
        """The modules whose calls are computed again, with what that costs."""

    @property
    def saved_bytes(self) -> int:
        """How much lower the peak is; negative where recomputing takes the run above it."""
        return self.before_bytes - self.peak_bytes

    @property
    def extra_flops(self) -> int | None:
        """The FLOPs that are recomputed; None where those of an operation are unknown."""
        return _sum([row.extra_flops for row in self.modules])

    @property
    def extra_time_ns(self) -> int | None:
        """The time of the operations that are recomputed; None where nothing was run."""
        return _sum([row.extra_time_ns for row in self.modules])

    def facts(self) -> dict[str, str]:
        """The two peaks, and what the lower one costs."""
        lower = self.saved_bytes
        change = f"{size(abs(lower))} {'lower' if lower >= 0 else 'higher'}"
        share = f" ({abs(lower) / self.before_bytes:.0%})" if self.before_bytes else ""
        when = ", reached while a call is computed again" if self.recomputing else ""
        result = {"peak now": size(self.before_bytes), "new peak": f"{size(self.peak_bytes)}{when}"}
        result["change"] = f"{change}{share}" if lower else "none"
        if self.extra_flops is not None:
            result["extra FLOPs"] = count(self.extra_flops)
        if self.extra_time_ns is not None:
            result["extra time"] = (
                f"about {duration(self.extra_time_ns)}, as the operations took when recorded"
            )
        return result

    def listings(self) -> list[Listing]:
        """What is recomputed, module by module."""
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
        result = [
            "worked out from the lifetimes of this run, nothing was run again: what tensors hold if "
            "torch.utils.checkpoint.checkpoint(module, …, use_reentrant=False) calls the modules"
        ]
        if self.modules:
            result.append(RANDOM)
        if self._repeated:
            result.append(
                "backward went through the same forward pass more than once: torch would recompute the calls each time "
                "and keep nothing in between, which is not followed here; the new peak may be lower"
            )
        if self._retained:
            result.append(
                "backward freed nothing that was saved: it is taken to be held by the program; if it was kept by "
                "retain_graph=True, the new peak may be lower"
            )
        if self.predicted:
            result.append("nothing was run: these are the lifetimes of a run by shapes alone")
        if not self.modules:
            result.append("none of these calls saves anything for backward that it could forget")
        return result


AGAIN = (
    Field("path", "module"), Field("type", "class"), Field("calls", "calls", count),
    Field("extra_flops", "extra FLOPs", count), Field("extra_time_ns", "extra time", duration),
)  # fmt: skip


def _modules(run: Checkpointing, scopes: list[int], predicted: bool) -> list[RecomputedModule]:
    """The modules of some calls, each once."""
    flops, times = run.extra("flops"), None if predicted else run.extra("time_ns")
    calls: dict[int, list[int]] = {}
    for scope in scopes:
        calls.setdefault(int(run.graph.scope_module[scope]), []).append(scope)
    result = []
    for number, inside in calls.items():
        module = run.graph.modules[number]
        costs = [
            None if known is None else _sum([known[scope] for scope in inside]) for known in (flops, times)
        ]
        result.append(RecomputedModule(module.path, module.type, len(inside), *costs))
    return result


def _sum(amounts: list[int | None]) -> int | None:
    """The sum of amounts; None where one is unknown."""
    known = [amount for amount in amounts if amount is not None]
    return sum(known) if len(known) == len(amounts) else None


def thinned(live: Any) -> tuple[list[int], Any]:
    """Places along a timeline, few enough to draw: of each stretch the one where most is alive."""
    if len(live) <= POINTS:
        return list(range(len(live))), np.arange(len(live))
    edges = np.linspace(0, len(live), POINTS + 1).astype(np.int64)
    chosen = np.array([low + int(live[low:high].argmax()) for low, high in pairwise(edges.tolist())])
    return chosen.tolist(), chosen


BARS = 30
SCRATCH = "an estimate: 4 of 5 convolutions within 2 %, LSTMs up to 37 % low"
TRIED = (  # what the rules of analysis/memory/scratch.py were found to be worth on shapes they were not made from
    "scratch of kernels on the CPU, as tried: in backward, 206 of 260 random convolutions were within 2 % + 2 KiB; "
    "depthwise windows above 3×3 are far off either way, and LSTMs up to 37 % too low"
)


class Share(NamedTuple):
    """Bytes at the peak of one module, line or use."""

    name: str
    size_bytes: int
    tensors: int


class MemoryReport(Report):
    """The memory of a run. Of a trace with ``fake=True`` it is a prediction: nothing was allocated.

    A figure counts what tensors hold; what kernels and allocators take on top of that is named apart. At the peak
    counts all that is alive while the operation runs: what it reads, what it makes and what is freed right after it.

    >>> import torch, torch_vis as tv
    >>> report = tv.trace(torch.nn.Linear(3, 2), torch.ones(1, 3), backward=True).memory()
    >>> report.peak_bytes, report.peak_node.name
    (92, 'sum')
    >>> report.peak[0].name, report.peak[0].use, report.peak[0].size_bytes
    ('weight', 'parameter', 24)
    """

    title = "Memory"

    def __init__(self, run: Run) -> None:
        self.graph, self.metrics, self.meta = run.graph, run.metrics, run.meta
        """The graph, the columns and the circumstances of the run."""
        self.blocks = run.lifetimes or Lifetimes(self.graph, self.metrics)
        """Every block of memory with its birth and its end."""
        self.predicted = bool(self.meta.get("fake"))
        """Whether nothing was run: the figures are worked out from shapes."""
        # which line looked at numbers that a run by shapes does not have
        branches = (limit for limit in run.limits if isinstance(limit, Limit) and limit.kind == "branch")
        self._undecided = list(map(str, branches)) if self.predicted else []

    # ---------------------------------------------------------------- what tensors hold

    @property
    def peak_bytes(self) -> int:
        """The most bytes that tensors hold at once."""
        return self.blocks.peak_bytes

    @property
    def peak_node(self) -> Node | None:
        """The operation during which they do; None for a run without operations."""
        node = self.blocks.peak_node
        return None if node is None else Node(self.graph, node)

    @cached_property
    def _next_run(self) -> NextRun | None:
        return next_run(self.graph, self.metrics, self.meta)

    @property
    def steady_peak_bytes(self) -> int | None:
        """The peak from the second step on, if this one made state of the optimizer; None if it made none.

        None also where the state has lists to which later steps may add, as that of LBFGS: ``notes()`` says so.
        Otherwise the state is then there from the start, and gradients until they are set to None.

        >>> import torch, torch_vis as tv
        >>> model = torch.nn.Linear(64, 64)
        >>> optimizer = torch.optim.AdamW(model.parameters())
        >>> def step(x):
        ...     optimizer.zero_grad()
        ...     model(x).sum().backward()
        ...     optimizer.step()
        >>> first = tv.trace(step, torch.ones(512, 64)).memory()
        >>> second = tv.trace(step, torch.ones(512, 64)).memory()
        >>> first.peak_bytes, first.steady_peak_bytes, second.peak_bytes, second.steady_peak_bytes
        (278788, 312076, 312076, None)
        """
        return None if self._next_run is None else self._next_run.peak_bytes

    @property
    def new_state_bytes(self) -> int:
        """How much state of an optimizer the run made."""
        made = self.blocks.next_run()
        return 0 if made is None else made.state_bytes

    @cached_property
    def peak(self) -> LiveTensors:
        """The tensors that make up the peak, the largest first."""
        return self.at(self.blocks.peak_node)

    def at(self, node: Node | int | None) -> LiveTensors:
        """The tensors that are alive while an operation runs, the largest first; for None, before the run.

        It is a list, of which ``print`` shows a table.

        >>> import torch, torch_vis as tv
        >>> t = tv.trace(torch.nn.Linear(3, 2), torch.ones(1, 3))
        >>> [tensor.name for tensor in t.memory().at(t.graph.nodes[0])]
        ['weight', 'input', 'bias']
        """
        return LiveTensors(self._tensors_at(self._number(node)), self.graph)

    def _tensors_at(self, node: int | None) -> list[Tensor]:
        return self.blocks.tensors(self.blocks.alive(node), self.blocks.size_at(node))

    def _number(self, node: Node | int | None) -> int | None:
        """The number of an operation of this run."""
        if node is None:
            return None
        if isinstance(node, Node):
            if node.graph is not self.graph:
                raise UsageError(
                    f"{node} is an operation of another graph than the one that this memory is of"
                )
            return node.index
        try:
            number = index(node)
        except TypeError:
            raise UsageError(f"name an operation by its node or its number, not by {node!r}") from None
        if not 0 <= number < len(self.graph):
            has = f"operations 0 to {len(self.graph) - 1:,}" if len(self.graph) else "no operations"
            raise UsageError(f"there is no operation {number:,}: this run has {has}")
        return number

    @property
    def lifetimes(self) -> list[Tensor]:
        """Every block of memory of the run, in the order in which the run met them."""
        return self.blocks.tensors(range(len(self.blocks.birth)))

    @cached_property
    def timeline(self) -> dict[str, Any]:
        """For every use, the bytes alive while each operation runs."""
        return {use.words: self.blocks.during[use] for use in Use}

    @cached_property
    def by_use(self) -> list[Share]:
        """The peak by what memory is for."""
        return self._shares(
            use.words for use in (Use(number) for number in self.blocks.use[self._alive].tolist())
        )

    @cached_property
    def by_module(self) -> list[Share]:
        """The peak by the modules that made the tensors or own them, the largest first."""
        return self._shares(self.blocks.paths[block] for block in self._alive.tolist())

    @cached_property
    def by_line(self) -> list[Share]:
        """The peak by source line; what came from outside the run has none."""
        sites = self.blocks.sites(self._alive)
        return self._shares("from outside" if site is None else site.short for site in sites)

    @cached_property
    def _alive(self) -> Any:
        return self.blocks.alive(self.blocks.peak_node)

    @cached_property
    def _alive_bytes(self) -> Any:
        return self.blocks.size_at(self.blocks.peak_node)[self._alive]

    def _shares(self, names: Any) -> list[Share]:
        total: dict[str, list[int]] = {}
        for name, amount in zip(names, self._alive_bytes.tolist(), strict=True):
            entry = total.setdefault(name, [0, 0])
            entry[0] += amount
            entry[1] += 1
        return sorted((Share(name, *entry) for name, entry in total.items()), key=lambda row: -row.size_bytes)

    # ---------------------------------------------------------------- checkpointing

    @cached_property
    def _checkpointing(self) -> Checkpointing:
        return Checkpointing(self.graph, self.metrics, self.blocks)

    @cached_property
    def checkpoints(self) -> list[Checkpoint]:
        """What checkpointing each call of a module by itself would save and cost; what leaves the lowest peak first."""
        rows = self._checkpointing.rows()
        return [row._replace(extra_time_ns=None) for row in rows] if self.predicted else rows

    def checkpoint(self, modules: Any) -> CheckpointedReport:
        """The memory of the run if all calls of these modules were checkpointed together.

        ``modules`` is a path, a pattern or a selector (``"class:Block & ~h.0"``), or several.

        ``print`` shows both peaks and what it costs; ``.figure()`` draws the memory along the run, now and then.

        >>> import torch, torch_vis as tv
        >>> layers = [torch.nn.Sequential(torch.nn.Linear(64, 64), torch.nn.GELU()) for _ in range(8)]
        >>> report = tv.trace(torch.nn.Sequential(*layers), torch.ones(512, 64), backward=True).memory()
        >>> report.peak_bytes, report.checkpoint("?").peak_bytes
        (2509064, 1591560)
        """
        return CheckpointedReport(self._checkpointing, paths_of(modules), predicted=self.predicted)

    # ---------------------------------------------------------------- allocators

    @cached_property
    def scratch_bytes(self) -> Any:
        """For every operation, an estimate of what its kernel takes for itself while it runs."""
        return scratch_of(self.graph, threads=int(self.meta.get("threads") or 1)).bytes

    @cached_property
    def allocator_peak_bytes(self) -> int:
        """An estimate of the CPU allocator's peak in a plain run: tensors and kernel scratch."""
        live = self._cpu_live()
        return int((live + self.scratch_bytes * self._on_cpu).max()) if len(live) else self.peak_bytes

    @cached_property
    def _is_rough(self) -> bool:
        """Whether kernels of the CPU whose rules are no more than good guesses take any scratch."""
        rough = np.array([call.op.partition(".")[0] in ROUGH for call in self.graph.calls], dtype=bool)
        scratch = self.scratch_bytes * self._on_cpu
        return bool(len(scratch)) and bool(scratch[rough[self.graph.node_call]].any())

    @cached_property
    def _on_cpu(self) -> Any:
        """Which operations give their results to the CPU."""
        values = self.graph.first_output
        devices = np.array([device == "cpu" for device in self.graph.devices] or [True], dtype=bool)
        known = values >= 0
        result = np.zeros(len(values), dtype=bool)
        result[known] = devices[self.graph.storage_device[self.graph.value_storage[values[known]]]]
        return result

    def _cpu_live(self) -> Any:
        live = self.blocks.live
        elsewhere = np.array([device != "cpu" for device in self.graph.devices], dtype=bool)
        if not elsewhere[self.graph.storage_device].any():
            return live
        storages = np.flatnonzero(elsewhere[self.graph.storage_device])
        change, nodes = np.zeros(len(self.graph) + 1, dtype=np.int64), len(self.graph)
        np.add.at(change, np.clip(self.blocks.birth[storages], 0, nodes), self.blocks.bytes[storages])
        np.subtract.at(change, np.clip(self.blocks.death[storages], 0, nodes), self.blocks.bytes[storages])
        return live - np.cumsum(change[:nodes])

    @cached_property
    def cuda(self) -> tuple[Caching, ...]:
        """What CUDA's caching allocator would report, device by device: the run played through a model of it."""
        used = {self.graph.devices[number] for number in np.unique(self.graph.storage_device).tolist()}
        return tuple(self.caching(device) for device in sorted(used) if device.startswith("cuda"))

    def caching(self, device: str, *, workspace: int = WORKSPACE) -> Caching:
        """The tensors of one device played through a model of CUDA's caching allocator.

        ``workspace`` is what cuBLAS takes for itself: 32 MiB from compute capability 9.0 on, 8.1 MiB before.
        """
        scratch = self.scratch_bytes
        return simulate_caching(self.graph, self.blocks, device=device, workspace=workspace, scratch=scratch)

    # ---------------------------------------------------------------- as a report

    def facts(self) -> dict[str, str]:
        """The peaks, in words."""
        node = self.peak_node
        where = ""
        if node is not None:
            path = cut(node.path, PATH) if node.path else "the run"
            where = f" at operation {node.index:,}, {node.name} in {path}"
        result = {"predicted peak" if self.predicted else "peak": f"{size(self.peak_bytes)}{where}"}
        if self._next_run is not None:
            later = self.graph.nodes[self._next_run.node]
            place = cut(later.path, PATH) if later.path else "the run"
            result["from the second step on"] = (
                f"{size(self._next_run.peak_bytes)} at {later.name} in {place}: this step made "
                f"{size(self._next_run.state_bytes)} of optimizer state, which is then there from the start"
            )
        if self.blocks.live.size:
            result["at the end"] = size(int(self.blocks.after[:, -1].sum()))
        if (self.graph.storage_device == 0).any() and "cpu" in self.graph.devices[:1]:
            bound = f" ({SCRATCH})" if self._is_rough else ""
            result["CPU allocator"] = (
                f"about {size(self.allocator_peak_bytes)} with the scratch of kernels{bound}"
            )
        for row in self.cuda:
            result[f"{row.device} allocator"] = (
                f"about {size(row.peak_bytes)} allocated, {size(row.reserved_bytes)} reserved, of which "
                f"{size(row.free_at_peak_bytes)} free at the peak; cuBLAS holds {size(row.workspace_bytes)}"
            )
        return result

    def listings(self) -> list[Listing]:
        """The peak by use, tensor, module and line, and what checkpointing would do."""
        shared = (Field("size_bytes", "at the peak", size), Field("tensors", "tensors", count))
        modules = [(share.name or "(root)", *share[1:]) for share in self.by_module]
        of = "At the predicted peak" if self.predicted else "At the peak"
        listings = [
            Listing("By use", (Field("name", "use"), *shared), self.by_use, heading=f"{of}, by use"),
            self.peak.listing("Tensors at the peak", f"{of}, tensor by tensor"),
            Listing("By module", (Field("name", "module"), *shared), modules, heading=f"{of}, by module"),
            Listing(
                "By line",
                (Field("name", "source line"), *shared),
                self.by_line,
                heading=f"{of}, by source line",
            ),
        ]
        if self.checkpoints:
            calls = [(row.path or "(root)", *row[1:-1]) for row in self.checkpoints]
            title = "Checkpointing, one call at a time"
            heading = "What checkpointing one call of a module would free and cost"
            listings.append(Listing(title, CHECKPOINTS, calls, heading=heading))
        return listings

    def charts(self) -> Charts:
        """The timeline by use, and the modules at the peak."""
        some = len(self.graph) > 0
        return Charts(timeline=self._timeline_chart, modules=self._modules_chart) if some else Charts()

    def _timeline_chart(self) -> Chart:
        x, chosen = thinned(self.blocks.live)
        names = [f"{number:,} {self.graph.nodes[number].name}" for number in x]
        series = [
            Series(use.words, x, self.blocks.during[use][chosen].tolist(), names, color=USE_COLORS[use])
            for use in Use
            if self.blocks.during[use].any()
        ]
        title = "Predicted memory by use" if self.predicted else "Memory by use"
        node = self.peak_node
        title += f", {size(self.peak_bytes)} at the peak" + (f" (operation {node.index:,})" if node else "")
        # often of one operation, hardly seen
        peak = Series("peak", [x[0], x[-1]], [self.peak_bytes] * 2, color=INK)
        along = Axis("operation, in the order of the run", "count")
        held = Axis("held by tensors", "bytes")
        return Chart("areas", title, along, held, series, [peak], stages_of(self.graph))

    def _modules_chart(self) -> Chart:
        shares = self.by_module[:BARS]
        labels, heights = [self._label(row.name) for row in shares], [row.size_bytes for row in shares]
        bars = [Series("at the peak", labels, heights)]
        title = f"Memory at the peak by module{most(len(shares), len(self.by_module))}"
        return Chart("bars", title, Axis("module"), Axis("held by tensors", "bytes"), bars)

    def _label(self, path: str) -> str:
        """What a module is called; one that has but a number is told with its class."""
        types = (module.type for module in self.graph.modules if module.path == path)
        return f"{path} {next(types, '')}".strip() if path.isdigit() else path or "(root)"

    def notes(self) -> list[str]:
        """What the figures are and are not."""
        result = [
            "what kernels and allocators take beyond tensors is an estimate; tv.measure.memory() measures it",
            *([TRIED] if self._is_rough else ()),
            "made by: the number of the operation that made a tensor, – where it is from before the run; freed by: "
            "that of the first operation that ran without it, – where it outlived the run",
        ]
        if self.predicted:
            result.append("nothing was run: these are the lifetimes of a run by shapes alone")
        if self._next_run is not None:
            result.append(
                "from the second step on: predicted for the same operations with the optimizer's state already there; "
                "gradients are taken to be set to None where this run did so, or else before it"
            )
        growing = growing_state(self.graph)
        if growing:
            result.append(
                f"the optimizer's state has lists, to which later steps may add: {and_more(growing, 4)}; how much "
                "they hold then is not known from one step"
            )
        result += self._undecided
        if self.meta.get("packed_bytes"):
            held = size(int(self.meta["packed_bytes"]))
            result.append(
                f"packed weights are opaque to torch: the about {held} that they hold are not counted"
            )
        if (self.graph.node_flags & Flag.RECOMPUTE != 0).any():
            result.append(RANDOM)
        if not (self.graph.node_phase == 1).any():
            result.append("no backward pass was recorded, so nothing counts as saved for backward")
        return result


CHECKPOINTS = (
    Field("path", "module"), Field("type", "class"), Field("call", "call", count),
    Field("saved_bytes", "frees", size), Field("peak_bytes", "lowers the peak by", size),
    Field("new_peak_bytes", "new peak", size),
    Field("extra_flops", "extra FLOPs", count), Field("extra_time_ns", "extra time", duration),
)  # fmt: skip
