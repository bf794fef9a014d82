"""Two files of weights side by side: names, shapes, types and elements."""

from __future__ import annotations

from collections import Counter
from typing import Any, NamedTuple

import torch

from torch_vis.capture.modules_only.tensor_stats import unseen
from torch_vis.errors import UsageError
from torch_vis.interfaces.explorer.files import StateSource, Stored
from torch_vis.interfaces.explorer.modules import ModuleSource
from torch_vis.views.terminal.source import Source
from torch_vis.views.text.table import Field, Listing, table

SHOWN = 60
PLAIN = ("equal", "only left", "only right")


class Pair(NamedTuple):
    """One name in two files: what it is in each, and how they differ; ``largest`` is the largest difference."""

    name: str
    left: str
    right: str
    change: str
    largest: float | None = None
    relative: float | None = None


class WeightDifferences:
    """What differs between the tensors of two files; ``same`` if nothing does."""

    def __init__(self, left: str, right: str, pairs: list[Pair]) -> None:
        self.left, self.right = left, right
        self.pairs = pairs

    @property
    def different(self) -> list[Pair]:
        """The pairs that are not equal bit for bit."""
        return [pair for pair in self.pairs if pair.change != "equal"]

    @property
    def same(self) -> bool:
        """Whether both hold the same names with the same tensors."""
        return not self.different

    def to_plain(self) -> dict[str, Any]:
        """As data."""
        return {
            "left": self.left,
            "right": self.right,
            "same": self.same,
            "counts": dict(Counter(pair.change for pair in self.pairs)),
            "differences": [pair._asdict() for pair in self.different],
        }

    def __str__(self) -> str:
        counts = Counter(pair.change for pair in self.pairs)
        words = ", ".join(
            f"{number:,} {change if change in PLAIN else f'with other {change}'}"
            for change, number in counts.most_common()
        )
        head = f"{self.left} against {self.right}: {words or 'no tensors in either'}"
        if self.same:
            return head
        figure = "{:.3g}".format
        fields = (
            Field("name", "tensor"), Field("left", self.left), Field("right", self.right),
            Field("change", "differs in"), Field("largest", "by at most", figure),
            Field("relative", "of the largest", "{:.2%}".format),
        )  # fmt: skip
        return "\n".join([head, "", *table(Listing("", fields, self.different, most=SHOWN))])


def compare_weights(left: Source, right: Source) -> WeightDifferences:
    """Match two files by the names of their tensors and compare these, element by element."""
    mine, theirs = _tensors(left), _tensors(right)
    pairs = [_pair(name, mine.get(name), theirs.get(name)) for name in dict.fromkeys([*mine, *theirs])]
    return WeightDifferences(left.title, right.title, pairs)


def _tensors(source: Source) -> dict[str, Stored]:
    if isinstance(source, StateSource):
        paths = source.forest.paths
        return {paths[row]: item for row, item in source.items.items() if isinstance(item, Stored)}
    if isinstance(source, ModuleSource):
        return {name: Stored.of(tensor) for name, tensor in source.model.state_dict().items()}
    raise UsageError(f"{source.title} holds no weights to compare")


def _pair(name: str, left: Stored | None, right: Stored | None) -> Pair:
    if left is None or right is None:
        change = "only left" if right is None else "only right"
        return Pair(name, _words(left), _words(right), change)
    if left.shape != right.shape or left.dtype != right.dtype:
        change = "shapes" if left.shape != right.shape else "dtypes"
        return Pair(name, _words(left), _words(right), change)
    largest, relative = _difference(left.load(), right.load())
    if largest is None:
        return Pair(name, _words(left), _words(right), "equal")
    return Pair(name, _words(left), _words(right), "values", largest, relative)


def _difference(left: torch.Tensor, right: torch.Tensor) -> tuple[float | None, float | None]:
    """The largest difference and how large it is beside the largest element; None where all are equal."""
    with unseen():
        one, two = left.detach().cpu(), right.detach().cpu()
        if one.layout != torch.strided or one.is_quantized:
            one, two = (t.dequantize() if t.is_quantized else t.to_dense() for t in (one, two))
        wide = torch.complex128 if one.is_complex() else torch.float64
        one, two = one.to(wide), two.to(wide)
        gap = (one - two).abs()
        gap[torch.isnan(one) & torch.isnan(two) | (one == two)] = 0  # NaN is itself, and so is infinity
        if not gap.numel() or not bool((gap != 0).any()):
            return None, None
        top = float(torch.nan_to_num(one.abs(), posinf=0.0).max())
        largest = float(gap.max())
        return largest, largest / top if top else None


def _words(one: Stored | None) -> str:
    return "" if one is None else f"{one.dtype}[{', '.join(map(str, one.shape))}]"
