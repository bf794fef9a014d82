"""Which modules to checkpoint: the predicted peak and the recomputation of each choice, from one run on shapes."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from torch_vis.analysis.machine.hardware import Hardware, amount_bytes
from torch_vis.analysis.report import Charts, Report
from torch_vis.api import trace
from torch_vis.errors import UsageError, takes_kwargs
from torch_vis.graph.text import and_more, count, size
from torch_vis.views.charts.chart import Axis, Chart, Series
from torch_vis.views.text.table_layout import Field, Listing

if TYPE_CHECKING:
    from torch_vis.analysis.memory.report import MemoryReport

MOST_CHOICES = (
    24  # that are predicted: the groups of most modules, then the single modules that leave the lowest peak
)


class Choice(NamedTuple):
    """Some modules checkpointed together: the peak that is left, and the FLOPs that are computed again for it."""

    modules: str
    """The modules in one word: a path, a pattern, or the first of them."""
    type: str
    paths: tuple[str, ...]
    """All of them, as ``t.memory().checkpoint()`` takes them."""
    peak_bytes: int
    saved_bytes: int
    extra_flops: int | None


class CheckpointingReport(Report):
    """The choices of modules to checkpoint, the lowest peak first.

    ``best`` is the one to take: the cheapest that fits where a budget was given, else the lowest peak; None where
    nothing that can be checkpointed lowers the peak (or, with a budget, where nothing fits).
    """

    title = "Checkpointing"

    def __init__(self, memory: MemoryReport, budget_bytes: int | None = None) -> None:
        self.memory = memory
        """The memory of the run as it is."""
        self.peak_bytes = memory.peak_bytes
        """The peak without checkpoints."""
        self.budget_bytes = budget_bytes
        """The bytes that it has to fit into; None where none was given."""
        choices = [_choice(memory, paths, type_) for paths, type_ in _candidates(memory)]
        lower = [choice for choice in choices if choice.saved_bytes > 0]
        self.choices = sorted(lower, key=lambda choice: (choice.peak_bytes, choice.extra_flops or 0))
        """What can be checkpointed and lowers the peak, the lowest first."""

    @property
    def best(self) -> Choice | None:
        """The choice to take."""
        if self.budget_bytes is None:
            return self.choices[0] if self.choices else None
        fits = [choice for choice in self.choices if choice.peak_bytes <= self.budget_bytes]
        return min(fits, key=lambda choice: (choice.extra_flops or 0, choice.peak_bytes), default=None)

    @property
    def fits_already(self) -> bool:
        """Whether the run is within the budget as it is."""
        return self.budget_bytes is not None and self.peak_bytes <= self.budget_bytes

    def facts(self) -> dict[str, str]:
        """The peak now, the choice to take and what it costs."""
        facts = {"peak now": size(self.peak_bytes)}
        if self.budget_bytes is not None:
            facts["budget"] = size(self.budget_bytes) + (" (it fits as it is)" if self.fits_already else "")
        best = None if self.fits_already else self.best
        if best is not None:
            extra = (
                "" if best.extra_flops is None else f", for {count(best.extra_flops)} FLOPs computed again"
            )
            facts["advice"] = f"checkpoint {best.modules} ({best.type}): peak {size(best.peak_bytes)}{extra}"
        elif not self.fits_already:
            facts["advice"] = "none: no choice of modules " + ("fits" if self.choices else "lowers the peak")
        return facts

    def listings(self) -> list[Listing]:
        """The choices that lower the peak."""
        return [Listing("choices", CHOICES, self.choices, heading="What can be checkpointed")]

    def charts(self) -> Charts:
        """The peak that each choice leaves against what it computes again."""
        known = [choice for choice in self.choices if choice.extra_flops is not None]
        return Charts(choices=lambda: _choices_chart(known)) if known else Charts()

    def notes(self) -> list[str]:
        """How the figures were found."""
        return [
            "predicted from the lifetimes of one run on shapes; "
            "t.memory().checkpoint(paths) has the timeline of a choice"
        ]


def _choices_chart(known: Sequence[Choice]) -> Chart:
    points = Series(
        "choices",
        [row.extra_flops for row in known],
        [row.peak_bytes for row in known],
        [row.modules for row in known],
    )
    x, y = Axis("computed again", "flops"), Axis("peak", "bytes")
    return Chart("points", "Peak memory against recomputation", x, y, [points])


CHOICES = (
    Field("modules", "modules"), Field("type", "class"), Field("paths", "count", lambda paths: count(len(paths))),
    Field("peak_bytes", "peak", size), Field("saved_bytes", "saved", size),
    Field("extra_flops", "computed again (FLOPs)", count),
)  # fmt: skip


@takes_kwargs
def checkpointing(
    model: Callable[..., Any],
    *args: Any,
    kwargs: Mapping[str, Any] | None = None,
    loss: Callable[[Any], Any] | None = None,
    memory: float | str | Hardware | None = None,
) -> CheckpointingReport:
    """Which modules to checkpoint so that a forward and backward pass needs less memory, predicted on shapes.

    ``memory`` is a budget in bytes, as ``"24 GiB"`` or a device by name: the advice is then the choice that fits and
    computes least again. Nothing is run and nothing of the model is changed.

    >>> import torch, torch_vis as tv
    >>> layers = [torch.nn.Sequential(torch.nn.Linear(64, 64), torch.nn.GELU()) for _ in range(8)]
    >>> advice = tv.advise.checkpointing(torch.nn.Sequential(*layers), torch.ones(512, 64))
    >>> advice.best.modules, advice.best.peak_bytes < advice.peak_bytes
    ('*', True)
    """
    run = trace(model, *args, kwargs=kwargs, backward=loss is None, loss=loss, fake=True)
    budget = None if memory is None else amount_bytes(memory, "memory")
    return CheckpointingReport(run.memory(), budget)


def _candidates(memory: MemoryReport) -> list[tuple[tuple[str, ...], str]]:
    """Siblings of one class together, those with most members first; then single modules of the lowest peaks."""
    if not len(memory.graph):
        raise UsageError("this run has no operations, so there is nothing to checkpoint")
    types = {row.path: row.type for row in memory.graph.modules if row.kind == "module" and row.path}
    siblings: dict[tuple[str, str], list[str]] = {}
    for path, type_ in types.items():
        siblings.setdefault((path.rpartition(".")[0], type_), []).append(path)
    groups = [(tuple(paths), type_) for (_, type_), paths in siblings.items() if len(paths) > 1]
    groups.sort(key=lambda group: -len(group[0]))
    single = [((row.path,), types[row.path]) for row in memory.checkpoints if row.path in types]
    half = MOST_CHOICES // 2
    return list(dict.fromkeys([*groups[:half], *single[: MOST_CHOICES - min(half, len(groups))]]))


def _choice(memory: MemoryReport, paths: tuple[str, ...], type_: str) -> Choice:
    checkpoint = memory.checkpoint(list(paths))
    return Choice(
        _pattern(memory, paths, type_),
        type_,
        paths,
        checkpoint.peak_bytes,
        checkpoint.saved_bytes,
        checkpoint.extra_flops,
    )


def _pattern(memory: MemoryReport, paths: tuple[str, ...], type_: str) -> str:
    """One path or pattern that stands for the modules, where the pattern means no others."""
    if len(paths) == 1:
        return paths[0]
    parent = paths[0].rpartition(".")[0]
    start = f"{parent}." if parent else ""
    depth = start.count(".")
    others = [
        row
        for row in memory.graph.modules
        if row.kind == "module" and row.path.startswith(start) and row.path
    ]
    alike = all(row.type == type_ for row in others if row.path.count(".") == depth)
    return f"{start}*" if alike else and_more(paths, 3)
