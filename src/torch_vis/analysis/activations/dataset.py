"""Activations of a data set as arrays: one for each name, over all samples, read from the shards as they are needed."""

from __future__ import annotations

import math
import os
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from functools import cached_property, lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import torch

from torch_vis.analysis.activations.shards import Journal, Segment, journals, mapped
from torch_vis.analysis.report import Report
from torch_vis.capture.containers import end_of_one
from torch_vis.errors import CorruptFile, FileError, UsageError, optional
from torch_vis.graph.io.atomic import PathLike
from torch_vis.graph.text import many, size
from torch_vis.views.text.table_layout import Field, Listing

if TYPE_CHECKING:
    import pandas

# bytes that a step through an array takes at once, where its rows do not lie in order
STEP_BYTES = 1 << 24


class Piece(NamedTuple):
    """Rows of an array that lie together: their file, and the sample of each where it is known."""

    path: Path
    segment: Segment
    order: np.ndarray
    """Where each row stands in the order in which the loaders gave them: rank, batch, row."""
    samples: np.ndarray | None


@lru_cache(maxsize=256)
def _mapped(
    path: Path, state: tuple[int, ...], number: int, start: int, dtype: str, shape: tuple[int, ...]
) -> torch.Tensor:
    return mapped(path, Segment("", number, 0, dtype, list(shape), [], start))


class ActivationArray:
    """One activation over all samples of a data set: rows along the first dimension, read from the files when asked.

    ``array[7]`` is a row, ``array[10:20]`` and ``array[[3, 1]]`` are tensors of rows; further indices apply to these.
    ``shape`` has None where rows differ; such rows are taken one at a time, or filled up by ``padded``.

    >>> import tempfile, torch, torch_vis as tv
    >>> model = torch.nn.Sequential(torch.nn.Linear(3, 2), torch.nn.ReLU())
    >>> batches = torch.randn(10, 3).split(4)
    >>> array = tv.extract(model, batches, keep="0", to=tempfile.mkdtemp())["0"]
    >>> array.shape, torch.equal(array[8:], model[0](batches[2]))
    ((10, 2), True)
    """

    def __init__(self, name: str, pieces: Sequence[Piece]) -> None:
        self.name = name
        self._pieces = list(pieces)
        dtypes = {piece.segment.dtype for piece in pieces}
        self.dtype: torch.dtype | None = getattr(torch, dtypes.pop()) if len(dtypes) == 1 else None
        """Of its elements; None where batches differ in it."""
        self._starts = np.cumsum([0, *(len(piece.order) for piece in pieces)])
        self._rows = self._arranged()

    def _arranged(self) -> np.ndarray:
        """The rows in order: of samples where all are known, each once, and else as the loaders gave them."""
        if not self._pieces:
            return np.zeros(0, np.int64)
        samples = self._all_samples()
        if samples is None or len({int(piece.order[0, 0]) for piece in self._pieces if len(piece.order)}) < 2:
            order = np.concatenate([piece.order for piece in self._pieces])
            return np.lexsort(order.T[::-1])
        # a sampler that gives all ranks as many samples repeats some: the first of each is taken
        _, first = np.unique(samples, return_index=True)
        return first

    def _all_samples(self) -> np.ndarray | None:
        parts = [piece.samples for piece in self._pieces]
        if any(part is None for part in parts):
            return None
        return np.concatenate([np.zeros(0, np.int64), *(part for part in parts if part is not None)])

    @cached_property
    def samples(self) -> np.ndarray | None:
        """The number of the sample that each row is of; None where a batch did not give one row for each sample."""
        samples = self._all_samples()
        return None if samples is None else samples[self._rows]

    def __len__(self) -> int:
        return len(self._rows)

    @cached_property
    def shape(self) -> tuple[int | None, ...]:
        """How many rows, and the size of a row; None where that differs between rows."""
        shapes = {tuple(piece.segment.shape[1:]) for piece in self._pieces}
        if len({len(shape) for shape in shapes}) != 1:
            return (len(self), *(() if not shapes else (None,)))
        return (len(self), *(sizes[0] if len({*sizes}) == 1 else None for sizes in zip(*shapes)))

    @property
    def nbytes(self) -> int:
        """Of all rows in the files."""
        return sum(_size_bytes(piece.segment) for piece in self._pieces)

    def __getitem__(self, index: Any) -> torch.Tensor:
        rows, *rest = index if isinstance(index, tuple) else (index,)
        taken = self._taken(rows)
        return (
            taken[(*(() if isinstance(rows, (int, np.integer)) else (slice(None),)), *rest)]
            if rest
            else taken
        )

    def _taken(self, rows: Any) -> torch.Tensor:
        if isinstance(rows, (int, np.integer)) and not isinstance(rows, bool):
            if not -len(self) <= rows < len(self):
                raise UsageError(f"{self.name!r} has {len(self):,} rows, and no row {rows}")
            return self._gathered(self._rows[int(rows)][None])[0]
        if rows is Ellipsis:
            rows = slice(None)
        if not isinstance(rows, slice):
            rows = np.asarray(rows)
            if rows.dtype == bool and len(rows) != len(self):
                raise UsageError(f"{self.name!r} has {len(self):,} rows, and the mask is for {len(rows):,}")
            if rows.dtype != bool and rows.size:
                if rows.dtype.kind not in "iu":
                    raise UsageError("rows are taken by whole numbers, slices or a mask")
                if rows.min() < -len(self) or rows.max() >= len(self):
                    raise UsageError(f"{self.name!r} has {len(self):,} rows, from 0 on")
        return self._gathered(self._rows[rows if isinstance(rows, slice) or rows.size else slice(0)])

    def _gathered(self, places: np.ndarray) -> torch.Tensor:
        """Rows by where they lie; of neighbours in one file, a view of it."""
        if not len(places):
            empty = [0, *(0 if n is None else n for n in self.shape[1:])]
            return torch.empty(empty, dtype=self.dtype or torch.float32)
        pieces = np.searchsorted(self._starts, places, side="right") - 1
        inside = places - self._starts[pieces]
        if pieces[0] == pieces[-1] and (len(places) == 1 or (pieces == pieces[0]).all()):
            tensor = self._tensor(int(pieces[0]))
            if len(places) == 1 or (np.diff(inside) == 1).all():
                return tensor.narrow(0, int(inside[0]), len(places))
            return tensor[torch.from_numpy(inside)]
        used = [int(piece) for piece in np.unique(pieces)]
        forms = {(self._pieces[p].segment.dtype, tuple(self._pieces[p].segment.shape[1:])) for p in used}
        if len(forms) > 1:
            shown = ", ".join(sorted(f"{dtype}{list(shape)}" for dtype, shape in forms)[:4])
            raise UsageError(
                f"rows of {self.name!r} are not of one form ({shown}): take them one at a time, or use padded()"
            )
        result = torch.empty(
            (len(places), *self._tensor(used[0]).shape[1:]), dtype=self._tensor(used[0]).dtype
        )
        for piece in used:
            own = np.flatnonzero(pieces == piece)
            result[torch.from_numpy(own)] = self._tensor(piece)[torch.from_numpy(inside[own])]
        return result

    def _tensor(self, piece: int) -> torch.Tensor:
        row = self._pieces[piece]
        segment = row.segment
        try:
            now = os.stat(row.path)
        except OSError as error:
            raise FileError(f"cannot read {row.path}: {error.strerror}") from error
        # another file may have taken its place since
        state = now.st_dev, now.st_ino, now.st_size, now.st_mtime_ns
        return _mapped(row.path, state, segment.call, segment.start, segment.dtype, tuple(segment.shape))

    def __iter__(self) -> Iterator[torch.Tensor]:
        for row in range(len(self)):
            yield self[row]

    def batches(self) -> Iterator[torch.Tensor]:
        """All rows in order, a stretch of them at a time, so that memory does not grow with their number.

        >>> import tempfile, torch, torch_vis as tv
        >>> folder = tempfile.mkdtemp()
        >>> model = torch.nn.Sequential(torch.nn.ReLU())
        >>> array = tv.extract(model, torch.randn(10, 3).split(4), keep="0", to=folder)["0"]
        >>> sum(len(batch) for batch in array.batches())
        10
        """
        pieces = np.searchsorted(self._starts, self._rows, side="right") - 1
        # a stretch ends where the piece changes, the rows do not follow one another, or it is large
        ends = np.flatnonzero((np.diff(pieces) != 0) | (np.diff(self._rows) != 1)) + 1
        if len(ends) * 4 > len(self._rows) and len({*map(_form, self._pieces)}) == 1:
            # rows that lie scattered are gathered
            most = max(1, STEP_BYTES // max(1, self.nbytes // max(1, len(self))))
            ends = np.arange(most, len(self._rows), most)
        for stretch in np.split(self._rows, ends):
            if len(stretch):
                yield self._gathered(stretch)

    def tensor(self) -> torch.Tensor:
        """All rows in memory, or of one shard a view of the file."""
        return self[:]

    def numpy(self) -> np.ndarray:
        """All rows as a numpy array; bfloat16, which numpy does not have, as float32."""
        tensor = self.tensor()
        numpy: np.ndarray = (tensor.float() if tensor.dtype == torch.bfloat16 else tensor).numpy()
        return numpy

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> np.ndarray:
        array = self.numpy()
        return array if dtype is None else array.astype(dtype)

    def padded(self, value: float = 0.0) -> torch.Tensor:
        """All rows in memory, filled up with a value to the size of the largest."""
        shapes = [piece.segment.shape[1:] for piece in self._pieces]
        if len({len(shape) for shape in shapes}) > 1 or self.dtype is None:
            raise UsageError(f"rows of {self.name!r} differ in dtype or in how many dimensions they have")
        most = [max(sizes) for sizes in zip(*shapes)]
        result = torch.full((len(self), *most), value, dtype=self.dtype)
        for at, row in enumerate(self):
            region: Any = (at, *(slice(0, n) for n in row.shape))
            result[region] = row
        return result

    def to_pandas(self) -> pandas.DataFrame:
        """A table with a row for each row and a column for each element, by the number of the sample where known."""
        with optional("pandas"):
            import pandas
        table = self.numpy().reshape(len(self), -1)
        index = None if self.samples is None else pandas.Index(self.samples, name="sample")
        return pandas.DataFrame(table, index=index)

    def __repr__(self) -> str:
        dtype = "mixed" if self.dtype is None else str(self.dtype).removeprefix("torch.")
        shown = ", ".join("?" if size is None else str(size) for size in self.shape)
        return f"<ActivationArray {self.name!r}: {dtype}[{shown}]>"


def _form(piece: Piece) -> tuple[str, tuple[int, ...]]:
    return piece.segment.dtype, tuple(piece.segment.shape[1:])


def _size_bytes(segment: Segment) -> int:
    return int(getattr(torch, segment.dtype).itemsize) * math.prod(segment.shape)


class ActivationSet(Report):
    """The activations that ``tv.extract`` wrote to a folder: ``acts[name]`` is one array over all samples.

    It holds what is whole on the disk, also while an extraction goes on or after one that was killed: see ``complete``.
    """

    def __init__(self, folder: PathLike) -> None:
        self.folder = Path(folder)
        """Where its files are."""
        self._journals = [journal for journal in journals(folder) if journal.head]
        if not self._journals:
            raise FileError(f"{os.fspath(folder)} holds no activations; tv.extract(…, to=…) writes some")
        self.meta: dict[str, Any] = {
            name: value for name, value in self._journals[0].head.items() if name not in ("rank", "version")
        }
        """How it was made: the model's class, what was kept, how many processes, in which mode."""
        ranks = int(self.meta.get("ranks", 1))
        self.stats: dict[Any, Any] = {}
        """What ``stats=`` of ``tv.extract`` asked for, where this is what it gave."""
        self.complete = len(self._journals) == ranks and all(journal.complete for journal in self._journals)
        """Whether every process came to the end of its loader."""
        pieces = _pieces(self.folder, self._journals)
        calls = Counter(name for name, _ in pieces)
        # a module that is called once for each call of the model needs no number
        self._arrays: dict[str, ActivationArray] = {}
        for (name, call), rows in pieces.items():
            label = name if calls[name] == 1 else labelled(name, call, rows[0].segment.path)
            self._arrays[label] = ActivationArray(label, rows)

    @cached_property
    def samples(self) -> int:
        """How many samples there are, each counted once."""
        batches = [batch for journal in self._journals for shard in journal.shards for batch in shard.batches]
        if len(self._journals) > 1 and all(batch.ids is not None for batch in batches):
            return len({sample for batch in batches for sample in batch.ids or ()})
        return sum(batch.samples for batch in batches)

    @property
    def limits(self) -> tuple[str, ...]:
        """What to know of the run, in sentences."""
        return (
            *self.meta.get("limits", ()),
            *(
                f"{name!r} has {len(array):,} rows for {many(self.samples, 'sample')}: a row is no sample, as where "
                "a module puts samples and positions into one dimension; dim= says where samples lie"
                for name, array in self._arrays.items()
                if len(array) != self.samples
            ),
        )

    def __getitem__(self, name: str) -> ActivationArray:
        return self._arrays[name if name in self._arrays else end_of_one(name, self._arrays)]

    def __iter__(self) -> Iterator[str]:
        return iter(self._arrays)

    def __len__(self) -> int:
        return len(self._arrays)

    def __contains__(self, name: object) -> bool:
        return name in self._arrays

    def keys(self) -> list[str]:
        """The names."""
        return list(self._arrays)

    def items(self) -> list[tuple[str, ActivationArray]]:
        """The names with their arrays."""
        return list(self._arrays.items())

    @property
    def title(self) -> str:  # type: ignore[override]
        """What it is of."""
        return f"Activations of {self.meta.get('model', 'a model')}"

    def facts(self) -> Mapping[str, str]:
        """How many samples, and whether that is all."""
        written = sum(array.nbytes for array in self._arrays.values())
        shards = sum(len(journal.shards) for journal in self._journals)
        return {
            "samples": f"{self.samples:,}{'' if self.complete else ', and the loader did not come to its end'}",
            "in": f"{shards:,} file{'s' if shards != 1 else ''} of {size(written)} in all",
        }

    def listings(self) -> Sequence[Listing]:
        """One row for each array."""
        fields = (
            Field("name", "name"), Field("dtype", "dtype"), Field("shape", "shape"), Field("nbytes", "size", size)
        )  # fmt: skip
        rows = [
            (
                name,
                "mixed" if array.dtype is None else str(array.dtype).removeprefix("torch."),
                " × ".join("?" if n is None else str(n) for n in array.shape),
                array.nbytes,
            )
            for name, array in self._arrays.items()
        ]
        return [Listing("arrays", fields, rows, heading="Arrays")]

    def notes(self) -> Sequence[str]:
        """What to know of the run."""
        return self.limits


def _pieces(folder: Path, records: Sequence[Journal]) -> dict[tuple[str, int], list[Piece]]:
    """The pieces of each array."""
    pieces: dict[tuple[str, int], list[Piece]] = {}
    before = 0
    for rank, journal in enumerate(records):
        batches = [batch for shard in journal.shards for batch in shard.batches]
        counts = [batch.samples for batch in batches]
        starts = np.cumsum([before, *counts])
        rows_of: Counter[tuple[str, int, int]] = Counter()
        for shard in journal.shards:
            for segment in shard.segments:
                for number, count, _ in segment.rows:
                    rows_of[segment.name, segment.call, number] += count
        for shard in journal.shards:
            for segment in shard.segments:
                order = np.concatenate(
                    [np.zeros((0, 3), np.int64)]
                    + [
                        np.stack((np.full(n, rank), np.full(n, number), np.arange(first, first + n)), axis=1)
                        for number, n, first in segment.rows
                    ]
                )
                each = all(
                    rows_of[segment.name, segment.call, number] == counts[number]
                    for number, _, _ in segment.rows
                )
                samples = None
                if each:
                    parts = []
                    for number, n, first in segment.rows:
                        ids = batches[number].ids
                        if ids is None:
                            parts.append(np.arange(starts[number] + first, starts[number] + first + n))
                        else:
                            parts.append(np.asarray(ids[first : first + n], np.int64))
                    samples = np.concatenate([np.zeros(0, np.int64), *parts])
                    if len(samples) != len(order):
                        raise CorruptFile(f"{journal.path} names other samples than rows")
                key = (segment.name, segment.call)
                pieces.setdefault(key, []).append(Piece(folder / shard.file, segment, order, samples))
        before = int(starts[-1])
    return pieces


def labelled(name: str, call: int, path: int) -> str:
    """The name of one of several calls, as a selector has it: the number behind the module's path.

    >>> labelled("h.0.fc.input", 2, 6)
    'h.0.fc:2.input'
    """
    return f"{name[:path]}:{call}{name[path:]}"


def open_activations(folder: PathLike) -> ActivationSet:
    """Open the activations that ``tv.extract`` wrote: nothing is read before it is asked for.

    >>> import tempfile, torch, torch_vis as tv
    >>> folder = tempfile.mkdtemp()
    >>> model = torch.nn.Sequential(torch.nn.Linear(3, 2), torch.nn.ReLU())
    >>> written = tv.extract(model, torch.randn(10, 3).split(4), keep=["0", "1"], to=folder)
    >>> acts = tv.open_activations(folder)
    >>> acts["1"].shape, acts.samples, acts.complete
    ((10, 2), 10, True)
    """
    if not isinstance(folder, (str, os.PathLike)):
        raise UsageError(f"open_activations() takes the path of a folder, not {type(folder).__name__}")
    return ActivationSet(folder)
