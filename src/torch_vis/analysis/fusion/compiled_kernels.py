"""What ``torch.compile`` fused on this machine, beside what could be fused: pair by pair, chain by chain, in bytes."""

from __future__ import annotations

import os
import re
import sys
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from functools import cached_property
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from torch_vis._trace import Trace
from torch_vis.analysis.fusion import fuse
from torch_vis.analysis.fusion.report import (
    BARS,
    NAMES,
    chained,
    common_path,
    ends,
    module_paths,
    shared_path,
)
from torch_vis.analysis.report import Charts, Report, most
from torch_vis.api import trace
from torch_vis.capture.compilers.diagnose import own_error, quiet
from torch_vis.capture.compilers.inductor_kernels import CompiledGraph, InductorKernel, call_nodes, compiled
from torch_vis.capture.modes import without_gradients
from torch_vis.capture.state import StateSnapshot
from torch_vis.capture.undo import Undo, context
from torch_vis.errors import CaptureFailed, NotTraceable, UsageError, takes_kwargs
from torch_vis.graph.text import count, size
from torch_vis.graph.tree import group_sums
from torch_vis.graph.types import Bools, Ints
from torch_vis.ops.families import TABLE
from torch_vis.ops.names import plain_name
from torch_vis.ops.op_table import LoopKind
from torch_vis.views.charts.chart import COLORS, PALE, Axis, Chart, Series
from torch_vis.views.charts.labels import family
from torch_vis.views.text.table_layout import Field, Listing

if TYPE_CHECKING:
    from torch_vis._trace import Trace
    from torch_vis.analysis.fusion import Fusion
    from torch_vis.graph.graph import Graph


class FusedBytes:
    """The bytes that compiled kernels save: ``of_chains`` has those of each chain, ``beyond`` what no chain expected.

    ``kernels`` has for each operation the kernels that it is in; one that is computed where it is used is in several.
    """

    def __init__(self, fusion: Fusion, kernels: Mapping[int, set[int]]) -> None:
        graph = fusion.graph
        self._fusion = fusion
        self.rows, self.root, self._size = fusion.reads
        self._reader = graph.in_node[self.rows]
        self._producer = graph.value_producer[self.root]
        pairs = zip(self._producer.tolist(), self._reader.tolist())
        none: set[int] = set()
        fused = [bool(kernels.get(a, none) & kernels.get(b, none)) for a, b in pairs]
        self.fused: Bools = np.array(fused, dtype=bool)
        first = [min(kernels.get(node, none), default=-1) for node in self._reader.tolist()]
        self._kernel = np.array(first, dtype=np.int64)
        read, again, unwritten = self._passed(), self._again(), self._unwritten()
        self.of_chains: Ints = read[0] + again[0] + unwritten[0]
        self.beyond = read[1] + again[1] + unwritten[1]

    @property
    def _chain(self) -> Ints:
        """Of each read the chain that has both sides, or the reader's where nobody in the run made it; -1 for none."""
        of = self._fusion.of
        return np.where(of[self._producer] == of[self._reader], of[self._reader], -1)

    def _split(self, chain: Ints, size: Ints) -> tuple[Ints, int]:
        inside = chain >= 0
        return group_sums(chain[inside], size[inside], self._fusion.count), int(size[~inside].sum())

    def _passed(self) -> tuple[Ints, int]:
        """Reads of what the reader's own kernel made."""
        return self._split(self._chain[self.fused], self._size[self.fused])

    def _again(self) -> tuple[Ints, int]:
        """Further reads of bytes that the same kernel reads already."""
        chain = self._fusion.of[self._reader]
        # of operations in no chain, nothing was expected
        counted = ~self.fused & (self._kernel >= 0) & (chain >= 0)
        owner = self._kernel * max(self._fusion.count, 1) + chain
        more = self._fusion.again(counted, owner)
        return self._split(chain[counted], more[counted])

    def _unwritten(self) -> tuple[Ints, int]:
        """Tensors that only their own kernel reads."""
        fusion, count = self._fusion, len(self._fusion.graph.value_type)
        inside = np.bincount(self.root[self.fused], minlength=count)
        everywhere = np.bincount(self.root, minlength=count)
        gone = np.flatnonzero((inside > 0) & (inside == everywhere) & ~fusion.results)
        producer = fusion.graph.value_producer[gone]
        return self._split(np.where(fusion.vanishing[gone], fusion.of[producer], -1), fusion.written[gone])


WORDS = {"yes": "fused", "no": "not fused", "partly": "partly fused", "unknown": "not compiled"}


class ExpectedChain(NamedTuple):
    """A chain that could be one kernel, whether it is (``"yes"``, ``"partly"``, ``"no"``, ``"unknown"``), and bytes.

    ``could_save`` is what it would save as one kernel, ``saved_bytes`` what the kernels made save of that.
    """

    operations: tuple[int, ...]
    names: tuple[str, ...]
    modules: tuple[str, ...]
    kind: str
    fused: str
    could_save: int
    saved_bytes: int

    @property
    def missing_bytes(self) -> int:
        """What could be saved and is not."""
        return self.could_save - self.saved_bytes


def chains_chart(chains: Sequence[ExpectedChain], beyond: int) -> Chart:
    """What compiled kernels save, and what not, of the chains that could save most; equal ones are one bar.

    ``beyond`` are bytes that kernels save and that no chain expected: a bar of its own.
    """
    alike: dict[str, list[ExpectedChain]] = {}
    for chain in chains:
        module = family(shared_path(chain.modules))
        name = f"{ends(chain.names)}{f' in {module}' if module else ''}: {WORDS[chain.fused]}"
        alike.setdefault(name, []).append(chain)
    sums = {
        f"{len(some):,} × {name}" if len(some) > 1 else name: (
            sum(chain.saved_bytes for chain in some),
            sum(chain.missing_bytes for chain in some),
        )
        for name, some in alike.items()
    }
    shown = dict(sorted(sums.items(), key=lambda item: -sum(item[1]))[:BARS])
    if beyond:
        shown["not expected, and fused"] = (beyond, 0)
    series = [
        Series(name, [*shown], [row[module] for row in shown.values()], color=color)
        for module, (name, color) in enumerate((("saved", COLORS[2]), ("could be saved, and is not", PALE)))
        if any(row[module] for row in shown.values())
    ]
    title = f"Bytes that expected chains save as compiled{most(min(BARS, len(sums)), len(sums))}"
    axes = Axis("chain"), Axis("bytes that need not be accessed", "bytes")
    return Chart("bars", title, *axes, series)


NAMED = 3  # reasons that a note is made of


class CompiledKernel(NamedTuple):
    """One kernel of the compiled program, with the operations of the trace that it contains."""

    number: int
    name: str
    extern: bool
    operations: tuple[int, ...]
    names: tuple[str, ...]
    modules: tuple[str, ...]
    predicted: (
        str  # "yes", "partly" or "no": whether t.fusion() has its operations together; "" for a single one
    )
    layout_of: tuple[
        str, ...
    ] = ()  # of a loop that computes nothing: whose arguments it brings into another layout


class Uncompiled(NamedTuple):
    """Operations that could be attributed to no kernel, and why."""

    reason: str
    operations: tuple[int, ...]
    names: tuple[str, ...]


class Agreement(NamedTuple):
    """Pairs of operations that pass bytes from one to the other: how many are fused where.

    ``precision`` is the share of the pairs expected to be fused that Inductor fused, ``recall`` the share of the pairs
    that it fused that were expected.
    """

    both: int
    only_predicted: int
    only_compiled: int
    neither: int

    @property
    def precision(self) -> float | None:
        """Of the pairs expected, the share that was fused."""
        expected = self.both + self.only_predicted
        return self.both / expected if expected else None

    @property
    def recall(self) -> float | None:
        """Of the pairs fused, the share that was expected."""
        fused = self.both + self.only_compiled
        return self.both / fused if fused else None


class KernelsReport(Report):
    """The kernels of a compiled model, and how they compare with the chains that ``Trace.fusion`` finds.

    >>> import torch, torch_vis as tv
    >>> kernels = tv.measure.kernels(lambda x: (x + 1).relu() * 2, torch.ones(4))  # doctest: +SKIP
    >>> [kernel.names for kernel in kernels.kernels], kernels.agreement.precision  # doctest: +SKIP
    ([('add', 'relu', 'mul')], 1.0)
    """

    title = "Kernels that torch.compile made"

    def __init__(self, traced: Trace, programs: Sequence[CompiledGraph]) -> None:
        self.trace = traced
        """The run whose operations the kernels are set against."""
        self.graph: Graph = traced.graph
        """The graph of the run."""
        self.fusion = fuse(self.graph, moved=traced.metrics["moved_bytes"])
        """The chains that were expected."""
        placed = KernelAttribution(traced, self.fusion.is_kernel, programs)
        self._kernels, self._in = placed.kernels, placed.inside
        self._bytes = FusedBytes(self.fusion, self._in)
        self.outside = [
            Uncompiled(reason, tuple(nodes), tuple(self.graph.nodes[node].name for node in nodes))
            for reason, nodes in placed.unplaced().items()
        ]
        """Operations that are in no kernel, by the reason."""

    @property
    def unmatched(self) -> int:
        """How many operations could be attributed to no kernel; ``outside`` has them with the reasons."""
        return sum(len(row.operations) for row in self.outside)

    @cached_property
    def kernels(self) -> list[CompiledKernel]:
        """The kernels in the order in which they were scheduled."""
        rows, paths = [], module_paths(self.graph)
        for number, (kernel, members) in enumerate(self._kernels):
            nodes = [self.graph.nodes[node] for node in members]
            rows.append(
                CompiledKernel(
                    number=number,
                    name=kernel.name,
                    extern=kernel.extern,
                    operations=tuple(members),
                    names=tuple(node.name for node in nodes),
                    modules=tuple(dict.fromkeys(paths[int(self.graph.node_scope[node])] for node in members)),
                    predicted=self._predicted(members),
                    layout_of=() if members else tuple(dict.fromkeys(o.op for o in kernel.origins)),
                )
            )
        return rows

    def _predicted(self, members: Sequence[int]) -> str:
        if len(members) < 2:
            return ""
        groups = [int(self.fusion.of[node]) for node in members]
        most = max(groups.count(group) for group in set(groups) - {-1}) if set(groups) - {-1} else 0
        return "yes" if most == len(groups) else "partly" if most > 1 else "no"

    # ------------------------------------------------------------ the two beside one another

    @cached_property
    def _pairs(self) -> tuple[Any, Any, Any, Any]:
        """Reads of one kernel's tensor by another: row, producer, reader, and whether a compiled kernel has both."""
        graph, flow = self.graph, self.fusion.flow
        rows = np.flatnonzero(flow.reads)
        producer = graph.value_producer[flow.root[graph.in_value[rows]]]
        reader = graph.in_node[rows]
        known = np.zeros(len(graph), dtype=bool)
        known[list(self._in)] = True
        keep = (
            (producer >= 0)
            & self.fusion.is_kernel[np.maximum(producer, 0)]
            & known[np.maximum(producer, 0)]
            & known[reader]
        )
        rows, producer, reader = rows[keep], producer[keep], reader[keep]
        fused = [bool(self._in[a] & self._in[b]) for a, b in zip(producer.tolist(), reader.tolist())]
        return rows, producer, reader, np.array(fused, dtype=bool)

    def agreement_of(self, *, products: bool) -> Agreement:
        """The agreement over all pairs, or without those of a matrix product and what follows it.

        Inductor calls a library for products on the CPU, and by default on a GPU, and can then add nothing to them.
        """
        _, producer, reader, fused = self._pairs
        kept = (
            np.ones(len(producer), dtype=bool)
            if products
            else self.fusion.flow.kind[producer] != LoopKind.HEAVY
        )
        pairs: dict[tuple[int, int], bool] = {}
        for a, b, both in zip(producer[kept].tolist(), reader[kept].tolist(), fused[kept].tolist()):
            pairs[a, b] = both
        counts = [0, 0, 0, 0]
        for (a, b), both in pairs.items():
            expected = self.fusion.of[a] >= 0 and self.fusion.of[a] == self.fusion.of[b]
            counts[(0 if both else 1) if expected else (2 if both else 3)] += 1
        return Agreement(*counts)

    @cached_property
    def agreement(self) -> Agreement:
        """Over pairs that no library's matrix product stands between."""
        return self.agreement_of(products=False)

    @property
    def predicted_bytes(self) -> int:
        """What all chains together could save."""
        return int(self.fusion.saved.sum())

    @property
    def saved_bytes(self) -> int:
        """What the compiled kernels save in all, of what was expected and beyond."""
        return int(self._bytes.of_chains.sum()) + self._bytes.beyond

    @cached_property
    def chains(self) -> list[ExpectedChain]:
        """The chains that were expected, in the order of the run."""
        fusion, paths = self.fusion, module_paths(self.graph)
        chains = []
        for group, verdict in enumerate(self._verdicts()):
            members = fusion.members(group)
            kernels = members[fusion.is_kernel[members]].tolist()
            chains.append(
                ExpectedChain(
                    operations=tuple(members.tolist()),
                    names=tuple(self.graph.nodes[node].name for node in kernels),
                    modules=tuple(dict.fromkeys(paths[int(self.graph.node_scope[node])] for node in kernels)),
                    kind=fusion.kind(group),
                    fused=verdict,
                    could_save=int(fusion.saved[group]),
                    saved_bytes=int(self._bytes.of_chains[group]),
                )
            )
        return chains

    def _verdicts(self) -> list[str]:
        _, producer, reader, fused = self._pairs
        of = self.fusion.of
        inner = (of[producer] >= 0) & (of[producer] == of[reader])
        total = np.bincount(of[producer[inner]], minlength=self.fusion.count)
        good = np.bincount(of[producer[inner]], weights=fused[inner], minlength=self.fusion.count)
        words = np.select([total == 0, good == total, good == 0], ["unknown", "yes", "no"], "partly")
        return [str(word) for word in words.tolist()]

    # ------------------------------------------------------------ as a report

    def facts(self) -> Mapping[str, str]:
        """Kernels, agreement and bytes."""
        loops = sum(not kernel.extern for kernel in self.kernels)
        own, every = self.agreement, self.agreement_of(products=True)
        return {
            "kernels": f"{len(self.kernels):,}: {loops:,} generated, {len(self.kernels) - loops:,} of libraries",
            "operations": f"{int(self.fusion.is_kernel.sum()):,}, of them {self.unmatched:,} in no kernel",
            "expected pairs that were fused": _share(own.precision, own.both, own.only_predicted),
            "fused pairs that were expected": _share(own.recall, own.both, own.only_compiled),
            "… with those of matrix products": f"{_percent(every.precision)} and {_percent(every.recall)}",
            "bytes saved": self._saved(),
        }  # fmt: skip

    def _saved(self) -> str:
        expected, beyond = self.saved_bytes - self._bytes.beyond, self._bytes.beyond
        more = f", and {size(beyond)} that were not expected" if beyond else ""
        return f"{size(expected)} of {size(self.predicted_bytes)} that could be{more}"

    def listings(self) -> Sequence[Listing]:
        """The kernels; then the chains that were expected and not fused."""
        fields = (
            Field("operations", "operations"),
            Field("made_by", "made by"),
            Field("module", "module"),
            Field("count", "operations", count),
            Field("predicted", "expected"),
        )
        rows = [
            (
                chained(kernel.names) or f"layout for {', '.join(kernel.layout_of)}",
                "library" if kernel.extern else "Inductor",
                common_path(kernel.modules) if kernel.modules else "",
                len(kernel.names),
                kernel.predicted,
            )
            for kernel in self.kernels
        ]
        missing = [
            (
                chained(chain.names),
                common_path(chain.modules),
                chain.kind,
                chain.fused,
                *chain[-2:],
                chain.missing_bytes,
            )
            for chain in sorted(self.chains, key=lambda chain: -chain.missing_bytes)
            if chain.missing_bytes
        ]
        fields_missing = (
            Field("operations", "operations"),
            Field("module", "module"),
            Field("kind", "kind"),
            Field("fused", "fused"),
            Field("could_save", "could save", size),
            Field("saved_bytes", "saves", size),
            Field("missing_bytes", "missing", size),
        )
        fields_outside = (
            Field("reason", "why they are in no kernel"),
            Field("count", "operations", count),
            Field("names", "which"),
        )
        outside = [
            (row.reason, len(row.operations), chained(list(dict.fromkeys(row.names)))) for row in self.outside
        ]
        return [
            Listing("Kernels", fields, rows),
            Listing("Chains expected, not wholly fused", fields_missing, missing),
            Listing("Operations in no kernel", fields_outside, outside),
        ]

    def charts(self) -> Charts:
        """What the kernels made save of what each chain could."""
        beyond = self._bytes.beyond
        if not beyond and not any(chain.saved_bytes or chain.missing_bytes for chain in self.chains):
            return Charts()
        return Charts(chains=lambda: chains_chart(self.chains, beyond))

    def notes(self) -> Sequence[str]:
        """How the figures are meant."""
        notes = [
            "a pair is two operations of which one reads what the other makes; without those after a matrix product, "
            "for which Inductor calls a library",
        ]
        for row in self.outside[:NAMED]:
            names = ", ".join(list(dict.fromkeys(row.names))[:NAMES])
            notes.append(f"in no kernel: {names}: {row.reason}")
        return notes


@takes_kwargs
def compiled_kernels(
    model: Callable[..., Any], *args: Any, kwargs: Mapping[str, Any] | None = None
) -> KernelsReport:
    """Compile a model by ``torch.compile`` on this machine and say which operations it fused, beside what was expected.

    Forward only and without gradients. The model is run twice: once traced through Dynamo, once compiled. Its buffers,
    the random state, torch's settings and whatever had been compiled before are as they were afterwards. On the CPU a
    C++ compiler is needed.

    >>> import torch, torch_vis as tv
    >>> print(tv.measure.kernels(lambda x: (x + 1).relu(), torch.ones(4)).agreement)  # doctest: +SKIP
    Agreement(both=1, only_predicted=0, only_compiled=0, neither=0)
    """
    if not callable(model):
        raise NotTraceable(f"compiled_kernels() takes a module or a callable, not {type(model).__name__}")
    given = dict(kwargs or {})
    state = StateSnapshot.of_model(model, contents="buffers")
    with without_gradients():
        with state, quiet(), _inductors_variables_removed():
            programs = _compiled(model, args, given)
        with state:
            traced = trace(model, *args, kwargs=given, via="dynamo", hold=False)
    if not len(traced.graph):
        raise UsageError("the model ran no operations, so there is nothing to compile")
    return KernelsReport(traced, programs)


@context
def _inductors_variables_removed(undo: Undo) -> None:
    """Take away what Inductor leaves in the environment of the process the first time that it compiles."""
    undo.add(_remove_variables, set(os.environ))


def _remove_variables(before: set[str]) -> None:
    for name in [name for name in os.environ if name not in before and "TORCHINDUCTOR" in name]:
        del os.environ[name]


def _compiled(
    model: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]
) -> list[CompiledGraph]:
    """The kernels; where the model fails without a compiler too, that is its own error and is raised as it is."""
    try:
        return compiled(model, args, kwargs)
    except CaptureFailed:
        own = own_error(model, args, kwargs)
        if own is None:
            raise
        if sys.version_info >= (3, 11):
            own.add_note("the model itself failed with these inputs; without torch.compile it fails as well")
        raise own from None


def _percent(share: float | None) -> str:
    return "–" if share is None else f"{share:.0%}"


def _share(share: float | None, part: int, rest: int) -> str:
    return f"{_percent(share)} ({part:,} of {part + rest:,})"


OPTIMISED = "optimised away, or decomposed so far that its parts cannot be recognised"
EAGER = "not compiled: torch.compile left it out of the graphs that it made"
PARTITION = re.compile(r"\bpartition (\d+)")
ALIASES = {  # operators that become another one before Inductor sees them
    "_native_batch_norm_legit_no_training": "native_batch_norm",
    "_native_batch_norm_legit_functional": "native_batch_norm",
    "_native_batch_norm_legit": "native_batch_norm",
    "_batch_norm_with_update_functional": "native_batch_norm",
}


class KernelAttribution:
    """The kernels of a compiled program, each with the operations that it has, and for each operation its kernels.

    The trace has to be one through Dynamo of the same program. Its partitions are then the graphs that Inductor was
    given, and a scope in one stands for the node that Inductor's nodes name as their source.
    """

    def __init__(self, traced: Trace, is_kernel: Bools, programs: Sequence[CompiledGraph]) -> None:
        self.graph = traced.graph
        self.kernels: list[tuple[InductorKernel, list[int]]] = []
        self.inside: dict[int, set[int]] = defaultdict(set)
        self._is_kernel = is_kernel
        self._programs = programs
        self._program = traced.program
        self._modules = traced.program.modules if traced.program is not None else []
        # scopes of the partitions that Inductor was given
        self._taken: set[int] = set()
        self._place()

    def _place(self) -> None:
        modules = self._modules
        for scope_of, (partition, scopes) in self._partitions().items():
            if partition >= len(modules) or partition >= len(self._programs):
                continue
            nodes, program = call_nodes(modules[partition]), self._programs[partition]
            if nodes != program.nodes:
                # Dynamo took it otherwise this time; its operations count as not matched
                continue
            self._taken.add(scope_of)
            rows = [self.graph.scopes[scope] for scope in scopes]
            indices = matches([row[1:] for row in nodes], [(row.path, row.type) for row in rows])
            within = {
                nodes[index].name: self._within[scope] for index, scope in zip(indices, scopes) if index >= 0
            }
            matched = self._match(program, within)
            # What a library computes is also named by loops that only bring its arguments into another layout.
            called = {
                n for k in program.kernels if k.extern for o in k.origins for n in matched.get(o.node, ())
            }
            for kernel in program.kernels:
                number = len(self.kernels)
                named = {node for o in kernel.origins for node in matched.get(o.node, ())}
                members = sorted(named if kernel.extern else named - called)
                self.kernels.append((kernel, members))
                for node in members:
                    self.inside[node].add(number)

    def _partitions(self) -> dict[int, tuple[int, list[int]]]:
        """Each call of a partition, by its scope: its number, and the scopes of the nodes that it ran, in order."""
        graph = self.graph
        owner, partitions = [-1] * len(graph.scope_call), {}
        modules = [graph.modules[module] for module in graph.scope_module]
        kinds, inside = [module.kind for module in modules], [-1] * len(modules)
        for scope, parent in enumerate(graph.scope_parent.tolist()):
            number = PARTITION.search(f"{modules[scope].path} {modules[scope].type}")
            if kinds[scope] == "compiled" and number is not None:
                inside[scope] = scope
                partitions[scope] = (int(number[1]), list[int]())
            elif parent >= 0:
                inside[scope], owner[scope] = inside[parent], owner[parent]
                if kinds[scope] == "function" and inside[scope] >= 0 and owner[scope] < 0:
                    owner[scope] = scope
                    partitions[inside[scope]][1].append(scope)
        self._inside = inside
        self._within: dict[int, list[int]] = defaultdict(list)
        for node in np.flatnonzero(self._is_kernel).tolist():
            self._within[owner[int(graph.node_scope[node])]].append(node)
        return partitions

    def unplaced(self) -> dict[str, list[int]]:
        """The operations that are in no kernel, by the reason."""
        reasons: dict[str, list[int]] = {}
        for node in np.flatnonzero(self._is_kernel).tolist():
            if node not in self.inside:
                reasons.setdefault(self._why(node), []).append(node)
        return reasons

    def _why(self, node: int) -> str:
        """Why an operation is in no kernel."""
        if self._inside[int(self.graph.node_scope[node])] in self._taken:
            return OPTIMISED
        breaks = self._program.breaks if self._program is not None else ()
        row = self.graph.nodes[node]
        at = [
            graph_break for graph_break in breaks if any(lost.op == row.op for lost in graph_break.lost)
        ] or breaks
        if not at:
            return EAGER
        parts = [at[0].reason, at[0].explanation, *at[0].hints[:1]]
        return f"not compiled, graph break: {'. '.join(text.rstrip('.') for text in parts if text)}"

    def _match(self, program: CompiledGraph, within: Mapping[str, list[int]]) -> dict[str, list[int]]:
        """For each of Inductor's nodes the operation that it was; one whose operator occurs several times, in order."""
        origins = {origin.node: origin for kernel in program.kernels for origin in kernel.origins}
        alike: dict[tuple[str, str], list[Any]] = defaultdict(list)
        for origin in sorted(origins.values(), key=lambda origin: origin.position):
            op = _plain(origin.op)
            if TABLE.get(op) != LoopKind.FREE:
                alike[origin.source, op].append(origin)
        nodes_of: dict[str, list[int]] = {}
        for (source, op), nodes in alike.items():
            ran = within.get(source, [])
            same = [node for node in ran if _plain(self.graph.nodes[node].name) == op] or ran
            if len(same) == 1:
                nodes_of.update({origin.node: same for origin in nodes})
            elif len(same) == len(nodes):
                nodes_of.update({origin.node: [node] for origin, node in zip(nodes, same)})
        return nodes_of


def matches(whole: Sequence[Any], part: Sequence[Any]) -> list[int]:
    """Where each item of a sequence stands in a longer one that it is a part of; -1 where that is not certain.

    Items keep their order, so the first way to lay one over the other from the left and from the right are the bounds.

    >>> matches("abcab", "ab"), matches("abcdb", "acb"), matches("ab", "c")
    ([-1, -1], [0, 2, 4], [-1])
    """
    left = _leftmost(whole, part)
    right = _leftmost(whole[::-1], part[::-1])
    if left is None or right is None:
        return [-1] * len(part)
    mirrored = [len(whole) - 1 - index for index in reversed(right)]
    return [a if a == b else -1 for a, b in zip(left, mirrored)]


def _leftmost(whole: Sequence[Any], part: Sequence[Any]) -> list[int] | None:
    matched, index = [], 0
    for item in part:
        while index < len(whole) and whole[index] != item:
            index += 1
        if index == len(whole):
            return None
        matched.append(index)
        index += 1
    return matched


def _plain(name: str) -> str:
    return ALIASES.get(plain_name(name), plain_name(name))
