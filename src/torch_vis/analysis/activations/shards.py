"""A folder of activations: safetensors shards, and for each process that writes a journal of the shards that are whole.

A shard has its final name only once all of it is on the disk, and says in its header which batches it holds; the
journal has the same in one line. So a process may be killed at any moment: a line that is cut off is dropped, and a
shard that has no line yet gives one.
"""

from __future__ import annotations

import json
import math
import os
import re
from collections import Counter
from collections.abc import Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from itertools import chain
from pathlib import Path
from typing import Any, NamedTuple

import torch

from torch_vis.errors import CorruptFile, FileError, NewerFile, NotOurFile, UsageError, shortened
from torch_vis.graph.io.atomic import PathLike, reading, replacing
from torch_vis.graph.io.tables_json import few_dimensions
from torch_vis.graph.text import inert
from torch_vis.replay.activation_file import DTYPES, layout
from torch_vis.replay.replay import plain_bytes

VERSION = 1
FORMAT = "torch_vis activations"
JOURNAL = re.compile(r"rank-(\d+)\.jsonl")
# of a header; what a file says of itself is not believed beyond this
MOST_HEADER = 1 << 28
LARGEST = 1 << 53
# rows of a folder, or as many as its shards have bytes: rows may be empty
MOST_ROWS = 1 << 18
NOTE = "torch_vis.batches"


class Batch(NamedTuple):
    """One batch of the loader: how many samples, a checksum of what the model was given, and which samples they are."""

    samples: int
    checksum: int
    ids: list[int] | None = None
    """The numbers of the samples in the data set, where the loader's sampler says them."""


class Kept(NamedTuple):
    """Rows of one array, as a batch gave them."""

    name: str
    call: int
    path: int
    tensor: torch.Tensor


class Segment(NamedTuple):
    """Rows of one array that lie together in a shard: those of some batches, of one shape."""

    name: str
    call: int
    """Which call of the module it is within each call of the model."""
    path: int
    """How many letters of the name are the module's path."""
    dtype: str
    shape: list[int]
    rows: list[list[int]]
    """For each batch that has some: its number, how many rows, and which of the batch's rows is the first of them."""
    start: int = 0
    """Of its first byte in the file."""


class Shard(NamedTuple):
    """One file: the batches that it completes, and where the rows of each array are."""

    file: str
    first: int
    """The number of its first batch."""
    batches: list[Batch]
    segments: list[Segment]

    def plain(self) -> dict[str, Any]:
        """As JSON has it."""
        return {
            "file": self.file,
            "first": self.first,
            "batches": self.batches,
            "segments": self.segments,
        }

    @classmethod
    def of(cls, record: Any, where: PathLike) -> Shard:
        """From JSON."""
        try:
            file = record["file"]
            if os.path.basename(file) != file:
                raise ValueError("a shard lies in the folder of its journal")
            batches = [Batch(*row) for row in record["batches"]]
            segments = [Segment(*row) for row in record["segments"]]
            for batch in batches:
                if batch.ids is not None and type(batch.ids) is not list:
                    raise ValueError("the numbers of a batch's samples are no list")
                _check_numbers(batch.samples, batch.checksum, *(batch.ids or ()))
            for row in segments:
                few_dimensions(row.shape)
                _check_numbers(row.call, row.path, row.start, *row.shape, *chain.from_iterable(row.rows))
                if type(row.name) is not str or row.dtype not in DTYPES or not row.shape:
                    raise ValueError("a segment has no such form")
                if sum(count for _, count, _ in row.rows) != row.shape[0]:
                    raise ValueError("a segment has other rows than its batches")
            _check_numbers(record["first"])
            return cls(file, record["first"], batches, segments)
        except (KeyError, TypeError, ValueError) as error:
            raise CorruptFile(
                f"{where} holds a line that no journal has: {inert(shortened(str(error)))}"
            ) from error


def _check_numbers(*numbers: Any) -> None:
    if not all(type(number) is int and 0 <= number < LARGEST for number in numbers):
        raise ValueError("a number is out of bounds")


class Journal(NamedTuple):
    """What one process wrote: how it was started, the shards, and whether it came to the end of the loader."""

    path: Path
    head: dict[str, Any]
    shards: list[Shard]
    complete: bool
    size_bytes: int
    """Of the lines that are whole."""


def journals(folder: PathLike) -> list[Journal]:
    """The journals of a folder, in the order of ranks."""
    try:
        names = sorted(os.listdir(folder))
    except OSError as error:
        raise FileError(
            f"cannot read {os.fspath(folder)}: {error.strerror}; tv.extract(…, to=…) makes such a folder"
        ) from error
    ranked = sorted((int(match[1]), name) for name in names if (match := JOURNAL.fullmatch(name)))
    return [read_journal(Path(folder, name)) for _, name in ranked]


def read_journal(path: Path) -> Journal:
    """A journal with what can be trusted of it; shards that it has no line for yet are found by their names."""
    with reading(path) as file:
        lines = file.read().split(b"\n")
    # what follows the last line break was cut off
    lines.pop()
    records = [_record(line, path) for line in lines]
    if not records or records[0].get("format") != FORMAT:
        if not records:
            return Journal(path, {}, [], False, 0)
        raise NotOurFile(f"{path} is no journal of activations")
    _check_head(records[0], path)
    ends = [record for record in records[1:] if "complete" in record]
    shards = [Shard.of(record, path) for record in records[1:] if "complete" not in record]
    for shard in shards:
        if not Path(path.parent, shard.file).is_file():
            raise CorruptFile(f"{path.parent} has lost {shard.file}, which its journal names")
    size_bytes = sum(len(line) + 1 for line in lines)
    while (following := Path(path.parent, shard_name(path, len(shards)))).is_file():
        shards.append(read_shard(following))
    _check_places(path, shards)
    return Journal(path, records[0], shards, bool(ends) and "complete" in records[-1], size_bytes)


def _check_head(head: Mapping[str, Any], path: Path) -> None:
    version, ranks, limits = head.get("version", 0), head.get("ranks", 1), head.get("limits", [])
    if type(version) is not int or type(ranks) is not int:
        raise CorruptFile(f"{path} begins with a line that no journal has")
    if not isinstance(limits, list) or not all(isinstance(text, str) for text in limits):
        raise CorruptFile(f"{path} begins with a line that no journal has")
    if version > VERSION:
        raise NewerFile(f"{path} was written by a later version of torch_vis")


def _check_places(path: Path, shards: Sequence[Shard]) -> None:
    """Raise where segments lie outside of their files, or are of batches that there are not."""
    count = sum(len(shard.batches) for shard in shards)
    rows = room = 0
    files: set[str] = set()
    for shard in shards:
        if shard.file in files:
            raise CorruptFile(f"{path} names {shard.file} twice")
        files.add(shard.file)
        size_bytes = os.path.getsize(path.parent / shard.file)
        room += size_bytes
        for segment in shard.segments:
            itemsize: int = getattr(torch, segment.dtype).itemsize
            rows += segment.shape[0]
            beyond = segment.start + itemsize * math.prod(segment.shape) > size_bytes
            if beyond or rows > max(MOST_ROWS, room):
                raise CorruptFile(f"{path.parent / shard.file} is cut off, or its journal is damaged")
            if any(number >= count for number, _, _ in segment.rows):
                raise CorruptFile(f"{path} holds a line about a batch that there is not")


def _record(line: bytes, path: Path) -> dict[str, Any]:
    try:
        record = json.loads(line)
    except (ValueError, RecursionError) as error:
        raise CorruptFile(f"{path} holds a line that cannot be read: {error}") from error
    if not isinstance(record, dict):
        raise CorruptFile(f"{path} holds a line that no journal has")
    return record


def shard_name(journal: Path, number: int) -> str:
    """What a process calls its shards."""
    return f"{journal.stem}-{number:06d}.safetensors"


def read_shard(path: Path) -> Shard:
    """What a shard says of itself in its header."""
    with reading(path) as file:
        size = int.from_bytes(file.read(8), "little")
        if not 0 < size <= MOST_HEADER:
            raise CorruptFile(f"{path} is no safetensors file")
        text = file.read(size)
    try:
        header = json.loads(text)
        shard = Shard.of(json.loads(header["__metadata__"][NOTE]), path)
        starts = [
            header[key_of(number, row)]["data_offsets"][0] + 8 + size
            for number, row in enumerate(shard.segments)
        ]
        _check_numbers(*starts)
    except (KeyError, TypeError, ValueError, IndexError, RecursionError) as error:
        raise CorruptFile(f"{path} is no shard of activations: {inert(shortened(str(error)))}") from error
    segments = [row._replace(start=start) for row, start in zip(shard.segments, starts)]
    return shard._replace(segments=segments)


def key_of(number: int, segment: Segment) -> str:
    """What a segment is called in its file."""
    return f"{segment.name}:{segment.call}@{number}"


class ShardWriter:
    """Writes batches to shards, one file at a time and beside the run; what is there already stays."""

    def __init__(self, folder: PathLike, rank: int, head: Mapping[str, Any], shard_bytes: int) -> None:
        self.folder = Path(folder)
        self.shard_bytes = shard_bytes
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise FileError(f"cannot write {os.fspath(folder)}: {error.strerror}") from error
        self.path = self.folder / f"rank-{rank}.jsonl"
        self.head = {"format": FORMAT, "version": VERSION, "rank": rank, **head}
        self._refuse_others()
        # writing and cutting, whether it is there or not
        self._file = self._opened()
        try:
            self._lock()
            self.done = self._recovered()
        except BaseException:
            self._file.close()
            raise
        self._waiting: list[tuple[Batch, list[Kept]]] = []
        self._waiting_bytes = 0
        self._pool = ThreadPoolExecutor(1, "torch_vis-shards")
        self._pending: Future[None] | None = None
        self._failed = False

    def _opened(self) -> Any:
        try:
            return open(self.path, "r+b" if self.path.exists() else "w+b", buffering=0)
        except OSError as error:
            raise FileError(f"cannot write {self.path}: {error.strerror}") from error

    def _refuse_others(self) -> None:
        """Raise for a folder that holds another extraction."""
        for journal in journals(self.folder):
            for name, mine in self.head.items():
                theirs = journal.head.get(name, mine)
                if name != "rank" and journal.head and theirs != mine:
                    raise UsageError(
                        f"{self.folder} holds another extraction: its {name} is {theirs!r} and not {mine!r}; give "
                        "another folder, or remove this one"
                    )

    def _lock(self) -> None:
        try:
            import fcntl
        except ImportError:
            return  # Windows
        try:
            fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            raise FileError(f"cannot write {self.path}: another process is extracting into it") from error

    def _recovered(self) -> list[Batch]:
        """Bring the journal to what is on the disk; gives the batches that are."""
        journal = read_journal(self.path)
        self._file.truncate(journal.size_bytes)
        self._file.seek(0, os.SEEK_END)
        if not journal.head:
            self._append(self.head)
        elif journal.complete:
            # it may go on where the loader has become longer
            self._rewrite(journal)
        else:
            known = sum(line.startswith(b'{"file"') for line in self._lines())
            for shard in journal.shards[known:]:
                self._append(shard.plain())
        self.shards = len(journal.shards)
        return [batch for shard in journal.shards for batch in shard.batches]

    def _lines(self) -> list[bytes]:
        self._file.seek(0)
        return self._file.read().split(b"\n")

    def _rewrite(self, journal: Journal) -> None:
        """The journal without the line that says that it is complete."""
        end = len(b"\n".join(line for line in self._lines() if line and b'"complete"' not in line)) + 1
        self._file.truncate(end)
        self._file.seek(0, os.SEEK_END)

    def _append(self, record: Mapping[str, Any]) -> None:
        try:
            self._file.write(json.dumps(record).encode() + b"\n")
            os.fsync(self._file.fileno())
        except OSError as error:
            raise FileError(f"cannot write {self.path}: {error.strerror}") from error

    def add(self, batch: Batch, tensors: list[Kept]) -> None:
        """Take a batch."""
        self._waiting.append((batch, tensors))
        self._waiting_bytes += sum(row.tensor.nbytes for row in tensors)
        if self._waiting_bytes >= self.shard_bytes:
            self.flush()

    def flush(self) -> None:
        """Let what was taken be written; waits for the shard before it, so that memory stays what it is."""
        self.wait()
        if self._waiting and not self._failed:
            waiting, self._waiting, self._waiting_bytes = self._waiting, [], 0
            self._pending = self._pool.submit(self._write, waiting)

    def wait(self) -> None:
        """Until everything that was handed over is on the disk; raises what went wrong there."""
        pending, self._pending = self._pending, None
        if pending is None:
            return
        try:
            pending.result()
        except Exception:
            # what comes after a shard that is missing must not be written
            self._failed = True
            raise

    def finish(self) -> None:
        """Write what is left, and that it is all."""
        self.flush()
        self.wait()
        self._append({"complete": True})

    def close(self) -> None:
        """Let go of the folder; what was not written is not."""
        self._pool.shutdown()
        self._file.close()

    def _write(self, waiting: list[tuple[Batch, list[Kept]]]) -> None:
        number = self.shards
        name = shard_name(self.path, number)
        groups = _grouped(waiting, len(self.done))
        segments = [segment for segment, _ in groups]
        shard = Shard(name, len(self.done), [batch for batch, _ in waiting], segments)
        entries = [(key_of(n, row), row.dtype, row.shape) for n, row in enumerate(segments)]
        head, starts, _ = layout(entries, {NOTE: json.dumps(shard.plain()), "written by": "torch_vis"})
        with replacing(self.folder / name) as file:
            file.write(head)
            for _, tensors in groups:
                for tensor in tensors:
                    file.write(buffer_of(tensor))
        placed = [
            row._replace(start=len(head) + starts[key_of(n, row)]) for n, row in enumerate(shard.segments)
        ]
        self._append(shard._replace(segments=placed).plain())
        self.shards += 1
        self.done += shard.batches


def _grouped(
    waiting: Sequence[tuple[Batch, list[Kept]]], first: int
) -> list[tuple[Segment, list[torch.Tensor]]]:
    """Tensors of one array and one shape, in the order of the batches; the widest elements first, so that all align."""
    groups: dict[tuple[Any, ...], tuple[list[list[int]], list[torch.Tensor]]] = {}
    for at, (_, tensors) in enumerate(waiting, first):
        before: Counter[tuple[str, int]] = Counter()
        for name, call, path, tensor in tensors:
            dtype = str(tensor.dtype).removeprefix("torch.")
            key = (name, call, path, dtype, tuple(tensor.shape[1:]))
            rows, kept = groups.setdefault(key, ([], []))
            rows.append([at, len(tensor), before[name, call]])
            kept.append(tensor)
            before[name, call] += len(tensor)
    result = [
        (Segment(name, call, path, dtype, [sum(row[1] for row in rows), *shape], rows), kept)
        for (name, call, path, dtype, shape), (rows, kept) in groups.items()
    ]
    return sorted(result, key=lambda group: -int(getattr(torch, group[0].dtype).itemsize))


def buffer_of(tensor: torch.Tensor) -> Any:
    """A tensor's bytes, without a copy where they lie together in this machine's memory."""
    array: Any = plain_bytes(tensor).cpu().numpy()
    return memoryview(array)


def mapped(path: Path, segment: Segment) -> torch.Tensor:
    """A segment as a tensor over the file itself: its pages are read when they are looked at, and never written."""
    dtype: torch.dtype = getattr(torch, segment.dtype)
    end = segment.start + dtype.itemsize * math.prod(segment.shape)
    try:
        size_bytes = os.path.getsize(path)
        if end > size_bytes:
            raise CorruptFile(f"{path} is cut off: it has {size_bytes:,} bytes and should have {end:,}")
        if not math.prod(segment.shape):
            return torch.empty(segment.shape, dtype=dtype)
        if segment.start % dtype.itemsize:
            raise CorruptFile(f"{path}: {segment.name} does not begin where a {segment.dtype} can")
        storage: Any = torch.UntypedStorage.from_file(os.fspath(path), shared=False, nbytes=size_bytes)
    except CorruptFile:
        raise
    except (OSError, RuntimeError) as error:
        raise FileError(f"cannot read {path}: {error}") from error
    strides = torch.empty(segment.shape, device="meta").stride()
    return torch.empty(0, dtype=dtype).set_(storage, segment.start // dtype.itemsize, segment.shape, strides)
