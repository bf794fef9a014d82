"""The record of one run: its graph, its metrics, what was not captured, and the circumstances."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from functools import cached_property
from typing import Any

from torch_vis.graph.graph import Graph
from torch_vis.graph.lifetimes import COLUMNS as MEMORY_COLUMNS
from torch_vis.graph.lifetimes import Lifetimes
from torch_vis.graph.metrics import Metrics

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

    kind: str
    """What kind of limit it is: one of ``LIMIT_KINDS``."""
    site: str | None
    """The user's source line, as ``file:line``."""

    def __new__(cls, text: str, *, kind: str = "other", site: str | None = None) -> Limit:
        limit = super().__new__(cls, text)
        limit.kind, limit.site = kind, site
        return limit

    @property
    def text(self) -> str:
        """The sentence."""
        return str(self)

    def __reduce__(self) -> tuple[Any, ...]:
        return _limit, (str(self), self.kind, self.site)

    def to_dict(self) -> dict[str, str | None]:
        """The limit as plain data."""
        return {"kind": self.kind, "text": str(self), "site": self.site}

    @classmethod
    def from_plain(cls, plain: object) -> Limit:
        """The limit that ``to_dict`` gave, or a sentence alone as earlier files have it."""
        if isinstance(plain, Mapping):
            site = plain.get("site")
            kind = str(plain.get("kind") or "other")
            return cls(str(plain["text"]), kind=kind, site=None if site is None else str(site))
        return cls(str(plain))


def _limit(text: str, kind: str, site: str | None) -> Limit:
    return Limit(text, kind=kind, site=site)


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

    def __init__(
        self,
        graph: Graph,
        metrics: Metrics,
        limits: Iterable[str] = (),
        meta: Mapping[str, Any] | None = None,
    ) -> None:
        self.graph = graph
        self.metrics = metrics
        self.limits = limits
        self.meta = dict(meta or {})

    @property
    def limits(self) -> tuple[Limit, ...]:
        """What could not be captured, in sentences that know their kind and source line."""
        return self._limits

    @limits.setter
    def limits(self, limits: Iterable[str]) -> None:
        self._limits = tuple(limit if isinstance(limit, Limit) else Limit(limit) for limit in limits)

    @cached_property
    def lifetimes(self) -> Lifetimes | None:
        """The blocks of memory, what each is for and when it is alive; None where no memory was recorded."""
        recorded = all(name in self.metrics for name in MEMORY_COLUMNS)
        return Lifetimes(self.graph, self.metrics) if recorded else None

    @property
    def name(self) -> str:
        """The model's name, or ``"run"``."""
        return str(self.meta.get("model") or "run")
