"""What the explorer looks at: a forest of rows, and for each row what its panels ask.

The program that shows it knows no torch. Whoever opens it (a live model, a trace, a file) answers with the plain
records below; a question that a source cannot answer gets None, and the panel says what would be needed.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from torch_vis.errors import UsageError, no_match
from torch_vis.graph import Graph, Metrics
from torch_vis.graph.lifetimes import Lifetimes
from torch_vis.graph.metrics import ElementStats
from torch_vis.graph.run import Run
from torch_vis.graph.types import Ints
from torch_vis.views.terminal.forest import Forest


class TensorRow(NamedTuple):
    """A parameter, a buffer, or a tensor at the border of a call."""

    name: str
    role: str
    shape: tuple[int, ...] | None
    dtype: str
    device: str
    nbytes: int | None
    note: str = ""
    figures: ElementStats | None = None


class Bars(NamedTuple):
    """How a tensor's elements are spread: counts in equal steps from ``low`` to ``high``."""

    name: str
    low: float
    high: float
    counts: tuple[int, ...]


class Details(NamedTuple):
    """What a row is: its line of classes, how it is made, its hyperparameters, its own tensors."""

    facts: Sequence[tuple[str, str]]
    inheritance: Sequence[str] = ()
    arguments: str = ""
    hyperparameters: Sequence[tuple[str, str]] = ()
    tensors: Sequence[TensorRow] = ()
    doc: str = ""


class CallRow(NamedTuple):
    """One call: when it began, its inclusive and own time, its inputs and outputs."""

    start_ns: int
    time_ns: int
    self_ns: int | None
    inputs: Sequence[TensorRow]
    outputs: Sequence[TensorRow]
    note: str = ""


class SourceCode(NamedTuple):
    """A stretch of a program: its file, the number of its first line, its text, and the lines to point at."""

    file: str
    first: int
    text: str
    marks: tuple[int, ...] = ()
    title: str = ""
    language: str = "python"


class Gradient(NamedTuple):
    """The gradient of one parameter: its norm, and the parameter's own."""

    row: int
    name: str
    norm: float | None
    weight_norm: float | None


class Picture(NamedTuple):
    """A tensor drawn: one or more grey images of the same size."""

    title: str
    images: Sequence[NDArray[np.float32]]


class Advice(NamedTuple):
    """A suggestion for a row: what it is about, the figures, and what follows."""

    kind: str
    text: str


class Source:
    """A forest and what is known about its rows; what a kind of source can tell, it overrides.

    >>> Source("net", Forest(["net"], ["Net"], [-1])).details(0).facts
    [('class', 'Net')]
    """

    def __init__(
        self, title: str, forest: Forest, *, facts: Sequence[str] = (), notes: Sequence[str] = ()
    ) -> None:
        self.title = title
        self.forest = forest
        self.facts = list(facts)
        """Short sentences for the line at the top."""
        self.notes = list(notes)
        """What could not be seen, or should be known."""
        self.graph: Graph | None = None
        self.metrics: Metrics | None = None
        self.row_of_scope: Ints | None = None
        """For each call in the graph, the row that it belongs to; -1 for none."""
        self.other: Source | None = None
        """A second source to compare this one with."""
        self.panels: Sequence[str] | None = None
        """The panels that can ever have something to say of it; None for all."""

    @cached_property
    def lifetimes(self) -> Lifetimes | None:
        """The blocks of memory of the run; None where there is no run, or no memory was recorded."""
        if self.graph is None or self.metrics is None:
            return None
        return Run(self.graph, self.metrics).lifetimes

    def part(self, row: int) -> tuple[Source, int]:
        """The source that a row belongs to, and the row's number there: this source, unless it combines several."""
        return self, row

    def details(self, row: int) -> Details:
        """What a row is; ``tensors`` come without their figures."""
        return Details([("class", self.forest.types[row])])

    def figures(self, row: int) -> Sequence[TensorRow]:
        """The row's own tensors, with figures of their contents."""
        return self.details(row).tensors

    def histograms(self, row: int) -> Sequence[Bars] | None:
        """How the elements of the row's own tensors are spread."""
        return None

    def calls(self, row: int) -> Sequence[CallRow] | None:
        """Every call that was followed; None where none was."""
        return None

    def source_code(self, row: int) -> SourceCode | None:
        """The program text behind a row."""
        return None

    def gradients(self) -> Sequence[Gradient] | None:
        """The gradients of all parameters, in the order of the rows; None without gradients."""
        return None

    @property
    def no_gradients(self) -> str:
        """What would have to be done for gradients to be here."""
        return (
            "There are no gradients. Run a backward pass (loss.backward()) before the explorer is opened, or "
            "tv.trace(model, x, backward=True).explore(), and the norm of each parameter's gradient is drawn here."
        )

    def pictures(self, row: int) -> Sequence[Picture] | None:
        """What came out of the row, as images; None where nothing was kept."""
        return None

    @property
    def no_pictures(self) -> str:
        """What would have to be done for pictures to be here."""
        return (
            "No activations are at hand. Trace a run and look at it in the same process: tv.trace(model, x).explore(); "
            "or record one with pictures: with tv.record_torch_module_forward_stats(model, maps=True): model(x)"
        )

    def batch_sizes(self) -> Sequence[Advice] | None:
        """How large a batch could be; None where there is no model and no batch to try it with."""
        return None

    def advice(self, row: int) -> Sequence[Advice]:
        """What could be made smaller or faster."""
        return ()

    def nodes(self, row: int, *, below: bool = True) -> Ints:
        """The operations of a row in the graph, with or without those of the rows below it."""
        if self.graph is None or self.row_of_scope is None:
            return np.empty(0, dtype=np.int64)
        rows: Any = self.row_of_scope[self.graph.node_scope]
        stop = int(self.forest.end[row]) if below else row + 1
        return np.flatnonzero((rows >= row) & (rows < stop))


def sizes(shape: Sequence[int] | None) -> str:
    """A shape as people write it."""
    return "?" if shape is None else "×".join(map(str, shape)) if len(shape) else "scalar"


SCHEMES = ("dark", "light")


@dataclass(frozen=True)
class ExplorerConfig:
    """Settings of the explorer and of the summaries.

    The four ``show_`` switches are columns and parts of panels. ``compact_view`` leaves the tree alone on the screen:
    no panel, no bars, no columns of words. ``color_scheme`` is ``"dark"``, ``"light"`` or the name of a Textual
    theme. Modules deeper than ``max_depth`` are not shown at all; they still count in the figures of those above.

    >>> ExplorerConfig(show_timing=False, max_depth=2).max_depth
    2
    """

    show_parameter_counts: bool = True
    show_shapes: bool = True
    show_timing: bool = True
    show_memory: bool = True
    compact_view: bool = False
    color_scheme: str = "dark"
    max_depth: int | None = None

    def __post_init__(self) -> None:
        depth = self.max_depth
        if depth is not None and (type(depth) is not int or depth < 0):
            raise UsageError(f"max_depth is a number of levels from 0 up, or None for all, not {depth!r}")
        if not isinstance(self.color_scheme, str):
            raise UsageError(f"color_scheme is 'dark', 'light' or a theme's name, not {self.color_scheme!r}")
        known = {*SCHEMES, *_themes()} if self.color_scheme not in SCHEMES else SCHEMES
        if self.color_scheme not in known and len(known) > len(SCHEMES):
            raise no_match("color scheme", self.color_scheme, known)


def _themes() -> Collection[str]:
    """The themes that Textual has; none are known where it is not installed."""
    try:
        from textual.theme import BUILTIN_THEMES
    except ImportError:
        return ()
    return BUILTIN_THEMES
