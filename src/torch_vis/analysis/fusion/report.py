"""What could be fused: the chains that a compiler could run as one kernel, and what each would save."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cached_property
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from torch_vis.analysis.fusion import fuse
from torch_vis.analysis.report import Charts, Report, most
from torch_vis.errors import UsageError
from torch_vis.graph.run import Run
from torch_vis.graph.text import count, size
from torch_vis.views.charts.chart import PALE, Axis, Chart, Series
from torch_vis.views.charts.labels import family
from torch_vis.views.text.table_layout import Field, Listing

if TYPE_CHECKING:
    from torch_vis.graph.graph import Graph

BARS = 30
NAMES = 6  # operations that a row names


class FusedChain(NamedTuple):
    """Operations that could be one kernel. ``bytes_before`` and ``bytes_after`` are None where a formula is missing.

    ``intermediate_bytes`` are those of tensors that only pass inside: each read, and the write where nothing else uses
    it. ``shared_bytes`` are further reads of a tensor that several of the operations read. ``share`` is that of all
    bytes that the run moves.
    """

    kind: str
    phase: str
    operations: tuple[int, ...]
    names: tuple[str, ...]
    modules: tuple[str, ...]
    kernels_saved: int
    intermediate_bytes: int
    shared_bytes: int
    bytes_before: int | None
    bytes_after: int | None
    share: float | None

    @property
    def saved_bytes(self) -> int:
        """The bytes that would not have to be written and read."""
        return self.intermediate_bytes + self.shared_bytes


class FusionReport(Report):
    """The chains of a run, those that save most first.

    >>> import torch, torch_vis as tv
    >>> report = tv.trace(lambda x: torch.softmax(x * 2 + 1, -1), torch.ones(4, 8)).fusion()
    >>> [(chain.kind, chain.names, chain.saved_bytes) for chain in report.chains]
    [('reduction', ('mul', 'add', '_softmax'), 512)]
    >>> report.kernels, report.kernels_after
    (3, 1)
    """

    title = "Fusion"

    def __init__(self, run: Run) -> None:
        graph, metrics = run.graph, run.metrics
        if not len(graph):
            raise UsageError("this trace has no operations, so there is nothing to fuse")
        self.graph = graph
        """The graph of the run."""
        self.fusion = fuse(graph, moved=metrics["moved_bytes"])
        """Which operations are kernels, and which chain each is in."""
        self.moved_bytes = metrics["moved_bytes"].total()
        """The bytes that all operations read and write as they are."""
        self.uncovered = metrics["moved_bytes"].uncovered
        """How many operations have no such figure."""
        self._paths = module_paths(graph)

    @property
    def saved_bytes(self) -> int:
        """What all chains together would save."""
        return int(self.fusion.saved.sum())

    @property
    def kernels(self) -> int:
        """How many kernels the run has; a view has none."""
        return int(self.fusion.is_kernel.sum())

    @property
    def kernels_after(self) -> int:
        """How many would be left."""
        return self.kernels - int((self.fusion.kernels - 1).sum())

    @cached_property
    def chains(self) -> list[FusedChain]:
        """The chains, those that save most first."""
        order = np.lexsort((np.arange(self.fusion.count), -self.fusion.saved))
        return [self._chain(group) for group in order.tolist()]

    def _chain(self, group: int) -> FusedChain:
        graph, fusion = self.graph, self.fusion
        members = fusion.members(group)
        nodes = [graph.nodes[int(number)] for number in members[fusion.is_kernel[members]]]
        known = not fusion.uncovered[group]
        before, saved = int(fusion.before[group]), int(fusion.saved[group])
        return FusedChain(
            kind=fusion.kind(group),
            phase=nodes[0].phase,
            operations=tuple(int(number) for number in members),
            names=tuple(node.name for node in nodes),
            modules=tuple(dict.fromkeys(self._paths[int(graph.node_scope[node.index])] for node in nodes)),
            kernels_saved=int(fusion.kernels[group]) - 1,
            intermediate_bytes=int(fusion.intermediate[group]),
            shared_bytes=int(fusion.shared[group]),
            bytes_before=before if known else None,
            bytes_after=before - saved if known else None,
            share=saved / self.moved_bytes if self.moved_bytes else None,
        )

    def facts(self) -> Mapping[str, str]:
        """What all chains come to."""
        share = f" of {size(int(self.moved_bytes))}" if self.moved_bytes else ""
        part = f" ({self.saved_bytes / self.moved_bytes:.1%})" if self.moved_bytes else ""
        return {
            "chains": f"{self.fusion.count:,}",
            "kernels": f"{self.kernels:,}, fused {self.kernels_after:,}",
            "bytes that need not move": f"{size(self.saved_bytes)}{share}{part}",
        }

    def listings(self) -> Sequence[Listing]:
        """One row per chain."""
        fields = (
            Field("operations", "operations"),
            Field("first", "from number", count),
            Field("kind", "kind"),
            Field("phase", "phase"),
            Field("module", "module"),
            Field("kernels_saved", "kernels saved", count),
            Field("bytes_before", "moves now", size),
            Field("bytes_after", "when fused", size),
            Field("saved_bytes", "saves", size),
            Field("share", "of the run", "{:.2%}".format),
        )
        rows = [
            (chained(chain.names), chain.operations[0], chain.kind, chain.phase, common_path(chain.modules),
             chain.kernels_saved, chain.bytes_before, chain.bytes_after, chain.saved_bytes, chain.share)
            for chain in self.chains
        ]  # fmt: skip
        title = "Chains that could be one kernel"
        listings = [Listing(title, fields, rows, heading=f"{title}, those that save most first")]
        if len(self._alike) < len(self.chains):
            alike = (
                Field("operations", "operations"),
                Field("chains", "chains", count),
                Field("module", "module"),
                Field("saved_bytes", "save together", size),
            )
            listings.append(Listing("Chains that are alike", alike, self._alike_rows()))
        return listings

    @cached_property
    def _alike(self) -> dict[tuple[str, str], list[FusedChain]]:
        """Chains of the same operations at the same place of repeated blocks, those that save most together first."""
        alike: dict[tuple[str, str], list[FusedChain]] = {}
        for chain in self.chains:
            alike.setdefault((chained(chain.names), family(shared_path(chain.modules))), []).append(chain)
        order = sorted(alike.items(), key=lambda item: -sum(chain.saved_bytes for chain in item[1]))
        return dict(order)

    def _alike_rows(self) -> list[tuple[str, int, str, int]]:
        return [
            (names, len(chains), module, sum(chain.saved_bytes for chain in chains))
            for (names, module), chains in self._alike.items()
        ]

    def charts(self) -> Charts:
        """Bytes saved and left by the chains that save most; chains that repeat in blocks are one bar."""
        return Charts(saved=self._saved_chart) if self._known else Charts()

    @property
    def _known(self) -> list[tuple[str, list[FusedChain]]]:
        """Equal chains whose bytes accessed are known, and their module."""
        return [
            (module, chains)
            for (_, module), chains in self._alike.items()
            if all(chain.bytes_after is not None for chain in chains)
        ]

    def _saved_chart(self) -> Chart:
        known = self._known
        rows = [chains for _, chains in known[:BARS]]
        labels: list[str] = []
        for module, chains in known[:BARS]:
            label = _label(module, chains)
            # two that differ in the middle alone are told apart by where they begin
            labels.append(f"{label} ({chains[0].operations[0]})" if label in labels else label)
        full = [chained(chains[0].names, 40) for chains in rows]
        sums = [
            (sum(c.saved_bytes for c in chains), sum(c.bytes_after or 0 for c in chains)) for chains in rows
        ]
        saved = Series("would be saved", labels, [saved for saved, _ in sums], full)
        left = Series("would be left", labels, [left for _, left in sums], full, color=PALE)
        title = f"Bytes that fusing would save{most(len(rows), len(known))}"
        axes = Axis("chain of operations"), Axis("bytes accessed", "bytes")
        return Chart("bars", title, *axes, [saved, left])

    def notes(self) -> Sequence[str]:
        """What is not covered."""
        if not self.uncovered:
            return ()
        return [f"the bytes of {self.uncovered:,} operations are not known and not in the totals"]


def _label(module: str, chains: Sequence[FusedChain]) -> str:
    """What a bar is of: how many chains, of which operations, where; one alone with the number that it begins with."""
    name = ends(chains[0].names)
    name = f"{len(chains):,} × {name}" if len(chains) > 1 else f"{chains[0].operations[0]}: {name}"
    return f"{name} in {module}" if module else name


def ends(names: Sequence[str]) -> str:
    """Names in order; of more than three, the first and the last.

    >>> ends(["add", "add", "relu"]), ends(list("abcdefgh"))
    ('add → add → relu', 'a → … → h')
    """
    return " → ".join(names if len(names) <= 3 else (names[0], "…", names[-1]))


def chained(names: Sequence[str], most: int = NAMES) -> str:
    """Names in order, the middle ones left out where there are many.

    >>> chained(["add", "add", "relu"]), chained(list("abcdefgh"), 4)
    ('add → add → relu', 'a → b → … 5 more … → h')
    """
    if len(names) <= most:
        return " → ".join(names)
    return " → ".join([*names[: most // 2], f"… {len(names) - most // 2 - 1} more …", names[-1]])


def module_paths(graph: Graph) -> list[str]:
    """For each scope the path of the module that it is a call of, or is called in; functions are looked through."""
    named = np.array([module.kind in ("module", "optimizer") for module in graph.modules], dtype=bool)
    nearest = graph.tree.nearest(named[graph.scope_module])
    return [graph.scope_paths[scope] if scope >= 0 else "" for scope in nearest.tolist()]


def common_path(paths: Sequence[str]) -> str:
    """The module that all paths lie in, and how many they are, if more than one.

    >>> common_path(["layer.0.mlp", "layer.0.norm"]), common_path(["head"]), common_path([""])
    ('layer.0 (2 modules)', 'head', '')
    """
    return paths[0] if len(paths) == 1 else f"{shared_path(paths)} ({len(paths)} modules)".lstrip()


def shared_path(paths: Sequence[str]) -> str:
    """The module that all paths lie in, empty where that is the whole model.

    >>> shared_path(["layer.0.mlp", "layer.0.norm"]), shared_path(["head"]), shared_path(["a", "b"])
    ('layer.0', 'head', '')
    """
    if len(paths) == 1:
        return paths[0]
    shared = []
    for step in zip(*(path.split(".") for path in paths)):
        if len(set(step)) > 1:
            break
        shared.append(step[0])
    return ".".join(shared)
