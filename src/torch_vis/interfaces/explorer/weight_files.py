"""Weights in files, without a terminal: the tree as text and as data, and two files compared tensor by tensor."""

from __future__ import annotations

import math
from collections import Counter
from typing import Any, NamedTuple

import numpy as np
import torch

from torch_vis.capture.tensor_contents import unseen
from torch_vis.errors import UsageError
from torch_vis.interfaces.explorer.file_source import StateSource, StoredTensor
from torch_vis.interfaces.explorer.model_source import ModuleSource
from torch_vis.views.terminal.columns import Arrangement, RowListing, chosen
from torch_vis.views.terminal.source import ExplorerConfig, Source
from torch_vis.views.text.table_layout import Field, Listing, table

MOST_LINES = 60  # lines of a tree that opens by itself
FIGURE_NAMES = {
    "params": "parameters",
    "elements": "elements",
    "bytes": "size_bytes",
    "buffer_bytes": "buffer_bytes",
}


def as_text(source: Source, *, depth: int | str | None = "auto") -> str:
    """The tree with repeated neighbours folded; as many levels as fit, a number of them, or with None all."""
    shown = Arrangement(source.forest)
    shown.find_repeats()
    shown.folding = True
    shown.open_to(_levels(shown) if depth == "auto" else len(source.forest) if depth is None else int(depth))
    columns = [name for name in chosen(source.forest, ExplorerConfig()) if not name.endswith("_share")]
    words = set(columns) & set(source.forest.texts)
    rows = shown.rows()
    empty = {name for name in words if not any(source.forest.texts[name](int(row)) for row in rows)}
    listing = RowListing(shown, rows, [name for name in columns if name not in empty])
    return listing.as_text(source.title, source.facts).rstrip("\n")


def _levels(shown: Arrangement) -> int:
    """The most levels that are no more than a screen or two."""
    most = int(shown.forest.depth.max(initial=0))
    for depth in range(1, most + 1):
        shown.open_to(depth)
        if len(shown.rows()) > MOST_LINES:
            return max(1, depth - 1)
    return max(1, most)


def as_data(source: Source) -> dict[str, Any]:
    """Every row with its path, what it is, and its figures; what is not known is null."""
    forest = source.forest
    rows = []
    for row in range(len(forest)):
        row_data: dict[str, Any] = {
            "path": forest.paths[row],
            "class": forest.types[row],
            "kind": forest.kind(row),
        }
        for name, key in FIGURE_NAMES.items():
            if name in forest.numbers:
                figure = float(forest.numbers[name][row])
                row_data[key] = None if math.isnan(figure) else int(figure)
        details = source.details(row)
        row_data["tensors"] = [
            {
                "name": tensor.name, "role": tensor.role, "shape": tensor.shape, "dtype": tensor.dtype,
                "device": tensor.device, "size_bytes": tensor.nbytes,
            }
            for tensor in details.tensors
        ]  # fmt: skip
        value = dict(details.facts).get("value")
        if value is not None:
            row_data["value"] = value
        rows.append(row_data)
    total = {
        key: _first(forest.numbers.get(name)) for name, key in FIGURE_NAMES.items() if name in forest.numbers
    }
    return {"title": source.title, "facts": list(source.facts), **total, "rows": rows}


def _first(column: Any) -> int | None:
    return int(column[0]) if len(column) and not np.isnan(column[0]) else None


MOST_PAIRS = 60
SAME_OR_ONE_SIDED = ("equal", "only left", "only right")


class TensorPair(NamedTuple):
    """One name in two files: what it is in each, and how they differ; ``largest`` is the largest difference."""

    name: str
    left: str
    right: str
    change: str
    largest: float | None = None
    relative: float | None = None


class WeightDifferences:
    """What differs between the tensors of two files; ``same`` if nothing does."""

    def __init__(self, left: str, right: str, pairs: list[TensorPair]) -> None:
        self.left, self.right = left, right
        self.pairs = pairs

    @property
    def different(self) -> list[TensorPair]:
        """The pairs that are not equal bit for bit."""
        return [pair for pair in self.pairs if pair.change != "equal"]

    @property
    def same(self) -> bool:
        """Whether both hold the same names with the same tensors."""
        return not self.different

    def to_dict(self) -> dict[str, Any]:
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
            f"{number:,} {change if change in SAME_OR_ONE_SIDED else f'with other {change}'}"
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
        return "\n".join([head, "", *table(Listing("", fields, self.different, most=MOST_PAIRS))])


def compare_weights(left: Source, right: Source) -> WeightDifferences:
    """Match two files by the names of their tensors and compare these, element by element."""
    mine, theirs = _tensors(left), _tensors(right)
    pairs = [_pair(name, mine.get(name), theirs.get(name)) for name in dict.fromkeys([*mine, *theirs])]
    return WeightDifferences(left.title, right.title, pairs)


def _tensors(source: Source) -> dict[str, StoredTensor]:
    if isinstance(source, StateSource):
        paths = source.forest.paths
        return {paths[row]: item for row, item in source.items.items() if isinstance(item, StoredTensor)}
    if isinstance(source, ModuleSource):
        return {name: StoredTensor.of(tensor) for name, tensor in source.model.state_dict().items()}
    raise UsageError(f"{source.title} holds no weights to compare")


def _pair(name: str, left: StoredTensor | None, right: StoredTensor | None) -> TensorPair:
    if left is None or right is None:
        change = "only left" if right is None else "only right"
        return TensorPair(name, _words(left), _words(right), change)
    if left.shape != right.shape or left.dtype != right.dtype:
        change = "shapes" if left.shape != right.shape else "dtypes"
        return TensorPair(name, _words(left), _words(right), change)
    difference = _difference(left.load(), right.load())
    if difference is None:
        return TensorPair(name, _words(left), _words(right), "equal")
    return TensorPair(name, _words(left), _words(right), "values", *difference)


def _difference(left: torch.Tensor, right: torch.Tensor) -> tuple[float | None, float | None] | None:
    """The largest difference and how large it is beside the largest element; None where all are equal."""
    with unseen():
        a, b = left.detach().cpu(), right.detach().cpu()
        if a.layout != torch.strided or a.is_quantized:
            a, b = (t.dequantize() if t.is_quantized else t.to_dense() for t in (a, b))
        wide = torch.complex128 if a.is_complex() else torch.float64
        try:
            a, b = a.to(wide), b.to(wide)
        # elements that torch stores and computes nothing with
        except NotImplementedError:
            return None if _same_bytes(a, b) else (None, None)
        difference = (a - b).abs()
        # NaN is itself, and so is infinity
        difference[torch.isnan(a) & torch.isnan(b) | (a == b)] = 0
        if not difference.numel() or not bool((difference != 0).any()):
            return None
        top = float(torch.nan_to_num(a.abs(), posinf=0.0).max())
        largest = float(difference.max())
        return largest, largest / top if top else None


def _same_bytes(left: torch.Tensor, right: torch.Tensor) -> bool:
    return bool((left.contiguous().view(torch.uint8) == right.contiguous().view(torch.uint8)).all())


def _words(tensor: StoredTensor | None) -> str:
    return "" if tensor is None else f"{tensor.dtype}[{', '.join(map(str, tensor.shape))}]"
