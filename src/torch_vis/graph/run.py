"""``Run``, what every view and analysis takes: graph, metrics, meta, and as ``Limit`` what could not be captured."""

from __future__ import annotations

import copy
import re
from collections.abc import Iterable, Mapping
from typing import Any, TypeVar

import numpy as np

from torch_vis.errors import GraphError, inert, shortened
from torch_vis.graph.graph import Graph
from torch_vis.graph.lifetimes import COLUMNS as MEMORY_COLUMNS
from torch_vis.graph.lifetimes import Lifetimes
from torch_vis.graph.metrics import Metrics
from torch_vis.graph.query.matching import GraphQuery
from torch_vis.graph.schema import COLUMNS, TABLES, Phase

# letters of a limit
LONGEST = 2000
SUMMED_OUTPUTS = "the sum of the outputs"
"""What ``meta["loss"]`` says where the recording itself made a loss to differentiate."""
LIMIT_KINDS: dict[str, str] = {
    "python": "a value left for Python; what was done with it there is not in the graph",
    "branch": "the data of this run decided what ran",
    "opaque": "code that cannot be looked into; a replay takes its outputs as recorded",
    "missing": "something was done that is not in the graph",
    "dataflow": "an edge that is there only because it could not be ruled out",
    "memory": "memory that is not counted, or not exactly",
    "time": "times that are not what they would be without a recorder, or not of what they seem",
    "altered": "the run, or what it leaves behind, is not what it is without a recorder",
    "shapes": "no numbers were computed",
    "program": "what a compiler's front-end made of the program",
    "other": "nothing more is known",
}
"""The kinds of limits, and what each means."""


class Limit(str):
    """Something that could not be captured: a sentence, with its kind and the source line where there is one.

    >>> limit = Limit("a value left for Python at net.py:3", kind="python", site="net.py:3")
    >>> limit, limit.kind, limit.site
    ('a value left for Python at net.py:3', 'python', 'net.py:3')
    """

    __slots__ = ("kind", "nodes", "results", "site")
    kind: str
    """What kind of limit it is: one of ``LIMIT_KINDS``."""
    site: str | None
    """The user's source line, as ``file:line``."""
    nodes: tuple[int, ...]
    """The operations that it is about, where it is known of each; for ``dataflow``, those with edges too many."""
    results: tuple[str, ...]
    """The names of the results that it is about, likewise."""

    def __new__(
        cls,
        text: str,
        *,
        kind: str = "other",
        site: str | None = None,
        nodes: Iterable[int] = (),
        results: Iterable[str] = (),
    ) -> Limit:
        # it is printed by itself, so that what it says of a model is made harmless here
        limit = super().__new__(cls, inert(" ".join(shortened(text, LONGEST).split("\n"))))
        limit.kind, limit.site, limit.nodes, limit.results = kind, site, tuple(nodes), tuple(results)
        return limit

    @property
    def text(self) -> str:
        """The sentence."""
        return str(self)

    def __reduce__(self) -> tuple[Any, ...]:
        return _limit, (str(self), self.kind, self.site, self.nodes, self.results)

    def on(self, nodes: Iterable[int]) -> Limit:
        """The same limit about other operations: those of a part of the run, by their numbers there."""
        return Limit(str(self), kind=self.kind, site=self.site, nodes=nodes, results=self.results)

    def to_dict(self) -> dict[str, Any]:
        """The limit as plain data; operations and results only where it names some."""
        plain: dict[str, Any] = {"kind": self.kind, "text": str(self), "site": self.site}
        if self.nodes:
            plain["nodes"] = list(self.nodes)
        if self.results:
            plain["results"] = list(self.results)
        return plain

    @classmethod
    def from_plain(cls, plain: object) -> Limit:
        """The limit that ``to_dict`` gave, or a sentence alone as earlier files have it."""
        fields = {"text": plain} if isinstance(plain, str) else plain
        if not isinstance(fields, Mapping) or not isinstance(fields.get("text"), str):
            raise ValueError(f"a limit is a {type(plain).__name__} without a text")
        kind, site = fields.get("kind") or "other", fields.get("site")
        if not isinstance(kind, str) or not (site is None or isinstance(site, str)):
            raise ValueError("the kind or the site of a limit is no text")
        nodes, results = fields.get("nodes") or [], fields.get("results") or []
        if not isinstance(nodes, list) or any(type(node) is not int or node < 0 for node in nodes):
            raise ValueError("the operations of a limit are no numbers")
        if not isinstance(results, list) or not all(isinstance(name, str) for name in results):
            raise ValueError("the results of a limit are no names")
        return cls(fields["text"], kind=kind, site=site, nodes=nodes, results=results)


def query_of(run: Run) -> GraphQuery:
    """What answers selectors on a run, by every path that a module of it has."""
    settings = run.meta.get("settings")
    paths = settings.get("second_paths") if isinstance(settings, Mapping) else None
    known = paths if isinstance(paths, Mapping) else {}
    texts = {second: first for second, first in known.items() if isinstance(first, str)}
    return run.graph.query(second_paths=texts)


def _limit(
    text: str, kind: str, site: str | None, nodes: tuple[int, ...] = (), results: tuple[str, ...] = ()
) -> Limit:
    return Limit(text, kind=kind, site=site, nodes=nodes, results=results)


class Run:
    """What every view, exporter and analysis reads: plain data of one recorded run, without its tensors.

    >>> from torch_vis.graph import GraphBuilder, Metrics
    >>> run = Run(GraphBuilder().build(), Metrics(), ["nothing ran"], {"model": "Net"})
    >>> run.name, run.limits
    ('Net', ('nothing ran',))
    """

    graph: Graph
    """Every operation and the tensors that connect them."""
    metrics: Metrics
    """Time, memory, FLOPs and other columns beside the graph."""
    meta: dict[str, Any]
    """The circumstances: versions, devices, wall time."""
    _lifetimes: tuple[Graph, Lifetimes | None] | None = None

    def __init__(
        self,
        graph: Graph,
        metrics: Metrics,
        limits: Iterable[str] = (),
        meta: Mapping[str, Any] | None = None,
        *,
        lifetimes: Lifetimes | None = None,
    ) -> None:
        self.graph = graph
        self.metrics = metrics
        self.limits = limits
        self.meta = dict(meta or {})
        # taken over from a run of the same operations in other scopes
        if lifetimes is not None:
            self._lifetimes = graph, lifetimes

    @property
    def limits(self) -> tuple[Limit, ...]:
        """What could not be captured, in sentences that know their kind and source line."""
        return self._limits

    @limits.setter
    def limits(self, limits: Iterable[str]) -> None:
        self._limits = tuple(limit if isinstance(limit, Limit) else Limit(limit) for limit in limits)
        for limit in self._limits:
            if limit.nodes and not 0 <= min(limit.nodes) <= max(limit.nodes) < len(self.graph):
                raise GraphError(f"a limit is about operation {max(limit.nodes)} of {len(self.graph)}")

    @property
    def lifetimes(self) -> Lifetimes | None:
        """The blocks of memory, what each is for and when it is alive; None where no memory was recorded."""
        # a block that is recorded gets its graph and metrics when it ends
        if self._lifetimes is None or self._lifetimes[0] is not self.graph:
            recorded = all(name in self.metrics for name in MEMORY_COLUMNS)
            self._lifetimes = self.graph, Lifetimes(self.graph, self.metrics) if recorded else None
        return self._lifetimes[1]

    @property
    def name(self) -> str:
        """The model's name, or ``"run"``."""
        return str(self.meta.get("model") or "run")


RunType = TypeVar("RunType", bound=Run)
# Facts about the machine and lines of the program, by their names in ``meta``.
OF_THE_MACHINE = frozenset({"machine", "python", "threads", "host", "user", "cwd", "command", "argv"})
OF_THE_PROGRAM = frozenset({"code", "context", "guards", "source"})
FOLDERS = re.compile(r"(?:\b[A-Za-z]:)?[\\/](?:[^\s:'\"<>|\\/]+[\\/])+")


def without_source(run: RunType) -> RunType:
    """The same run without lines of the program, folders and facts about the machine, for files that are to be sent.

    Files keep their names, those of installed packages their place in there, so that a line can still be spoken of.

    >>> import torch, torch_vis as tv
    >>> t = without_source(tv.trace(torch.nn.ReLU(), torch.ones(2)))
    >>> "machine" in t.meta, all(site.file.startswith("…/") for site in t.graph.sites)
    (False, True)
    """
    graph = run.graph
    columns = {name: getattr(graph, name) for name in COLUMNS}
    tables = {name: list(getattr(graph, name)) for name in TABLES}
    tables["sites"] = [site._replace(file=_nameless(site.file)) for site in graph.sites]
    result = copy.copy(run)
    result.graph = Graph(columns, tables)
    result.limits = [
        Limit(
            FOLDERS.sub("…/", limit),
            kind=limit.kind,
            site=None if limit.site is None else FOLDERS.sub("…/", limit.site),
            nodes=limit.nodes,
            results=limit.results,
        )
        for limit in run.limits
    ]
    result.meta = {name: _sent(value) for name, value in run.meta.items() if name not in OF_THE_MACHINE}
    return result


def _nameless(file: str) -> str:
    """A file's name without its folders, marked so that it is not taken for a file on this machine."""
    path = file.replace("\\", "/")
    _, separator, inside = path.rpartition("/site-packages/")
    return f"…/{inside if separator else path.rpartition('/')[2]}"


def _sent(value: Any) -> Any:
    if isinstance(value, str):
        return FOLDERS.sub("…/", value)
    if isinstance(value, Mapping):
        # the fields stay, empty, for readers that expect them
        return {name: type(part)() if name in OF_THE_PROGRAM else _sent(part) for name, part in value.items()}
    return [_sent(part) for part in value] if isinstance(value, (list, tuple)) else value


def added_by_recording(run: Run) -> tuple[list[int], list[int]]:
    """The operations that no program asked for: those that sum the outputs to a loss, and the seeds of backward.

    >>> import torch, torch_vis as tv
    >>> t = tv.trace(torch.nn.Linear(3, 2), torch.ones(1, 3), backward=True)
    >>> [[t.graph.nodes[node].name for node in nodes] for nodes in added_by_recording(t)]
    [['sum'], ['ones_like']]
    """
    graph = run.graph
    is_seed = (graph.node_phase == Phase.BACKWARD) & (graph.node_scope == 0) & (graph.node_link < 0)
    seeds = [node for node in np.flatnonzero(is_seed).tolist() if graph.nodes[node].name == "ones_like"]
    summed: list[int] = []
    if run.meta.get("loss") == SUMMED_OUTPUTS and seeds:
        waiting = list(graph.nodes[seeds[0]].inputs)
        while waiting:
            node = waiting.pop().producer
            if node is None or node.scope.index or node.index in summed:
                continue
            summed.append(node.index)
            if node.name != "sum":
                waiting.extend(node.inputs)
    return sorted(summed), seeds
