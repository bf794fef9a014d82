"""The ``.tvz`` file of several ranks: the files of all of them in one, in which equal parts are kept once.

===================  ============================================================================================
entry                content
===================  ============================================================================================
``torch_vis.json``   first and not compressed: ``{"format": "torch_vis.world", "version": 1}``
``blobs/N``          an entry of some rank's file, or one field of such an entry that is JSON
``ranks.json``       of each rank the blobs that its file is made of, or the rank that it is a copy of; ``facts``
``padding``          zeros, where all would be less than the file of one rank, or too little for what ranks.json holds
===================  ============================================================================================

Ranks of one program differ in their times, in their place among the ranks, and in little else.
"""

from __future__ import annotations

import hashlib
import io
import json
import zipfile
from collections.abc import Mapping
from typing import Any

from torch_vis.errors import CorruptFile, FileError
from torch_vis.graph.io import tvz
from torch_vis.graph.io.atomic import PathLike, read_whole, reading, replacing
from torch_vis.graph.io.json_stream import weight
from torch_vis.graph.io.tables_json import check_header, damaged, shown, to_json, whole
from torch_vis.graph.run import Run

FORMAT = "torch_vis.world"
VERSION = 1
INDEX = "ranks.json"
# the most memory that an index may take, however small its file is, and how many times the file
INDEX_BYTES, INDEX_TIMES = 16 << 20, 40
MOST_RANKS = 1 << 20
DATE = (1980, 1, 1, 0, 0, 0)


def save(
    path: PathLike,
    runs: Mapping[int, Run],
    copies: Mapping[int, tuple[int, Mapping[str, Any]]],
    facts: Mapping[str, Any],
) -> None:
    """Write the runs of some ranks, whole or not at all.

    ``copies`` are ranks that do the same as another: which, and what is different in their ``meta``. ``facts`` are
    plain data about all of them.
    """
    with (
        replacing(path) as file,
        zipfile.ZipFile(file, "w", zipfile.ZIP_DEFLATED, compresslevel=tvz.LEVEL) as archive,
    ):
        marker = to_json("the marker", {"format": FORMAT, "version": VERSION})
        archive.writestr(zipfile.ZipInfo(tvz.MARKER, DATE), marker, zipfile.ZIP_STORED)
        blobs: dict[bytes, int] = {}
        rows: list[dict[str, Any]] = []
        least = 0
        for rank, run in sorted(runs.items()):
            entries, size = _written(archive, blobs, run)
            rows.append({"rank": rank, "entries": entries})
            least = max(least, size)
        for rank, (like, meta) in sorted(copies.items()):
            rows.append({"rank": rank, "like": like, "meta": dict(meta)})
        index = to_json("what is known of the ranks", {"ranks": rows, "facts": dict(facts)})
        archive.writestr(zipfile.ZipInfo(INDEX, DATE), index.encode(), zipfile.ZIP_DEFLATED, tvz.LEVEL)
        if (memory := weight(index)) > INDEX_BYTES:
            least = max(least, memory // INDEX_TIMES)
        if tvz.MOST_TIMES * least > tvz.FREE_BYTES and (short := least - file.tell()) > 0:
            archive.writestr(zipfile.ZipInfo("padding", DATE), bytes(short), zipfile.ZIP_STORED)


def _written(archive: zipfile.ZipFile, blobs: dict[bytes, int], run: Run) -> tuple[dict[str, Any], int]:
    """Write what no rank before had of a run's file; which blob each of its entries is, and the size of that file."""
    data = io.BytesIO()
    tvz.write(data, run)
    entries: dict[str, Any] = {}

    def blob(content: bytes) -> int:
        key = hashlib.sha256(content).digest()
        if key not in blobs:
            blobs[key] = len(blobs)
            name = zipfile.ZipInfo(f"blobs/{blobs[key]}", DATE)
            archive.writestr(name, content, zipfile.ZIP_DEFLATED, tvz.LEVEL)
        return blobs[key]

    with zipfile.ZipFile(data) as single:
        for name in single.namelist():
            content = single.read(name)
            fields = _fields(content) if name.endswith(".json") else None
            if fields is None:
                entries[name] = blob(content)
            else:
                entries[name] = [[field, blob(text)] for field, text in fields.items()]
    return entries, data.getbuffer().nbytes


def _fields(content: bytes) -> dict[str, bytes] | None:
    """The fields of a JSON object, each as JSON; None where they would not give the same text."""
    texts = {name: to_json(name, part).encode() for name, part in json.loads(content).items()}
    return texts if _object(texts) == content else None


def _object(fields: Mapping[str, bytes]) -> bytes:
    parts = (to_json("a name", name).encode() + b":" + text for name, text in fields.items())
    return b"{" + b",".join(parts) + b"}"


def is_world(path: PathLike) -> bool:
    """Whether a file is one of several ranks, by its first bytes."""
    with reading(path) as file:
        return FORMAT.encode() in file.read(128)


class WorldFile:
    """An open file of several ranks, of which each is read when it is asked for."""

    def __init__(self, path: PathLike) -> None:
        self.path = path
        self._data = read_whole(path)
        try:
            self._archive = zipfile.ZipFile(io.BytesIO(self._data))
            check_header(path, json.loads(self._read(tvz.MARKER, tvz.SHORT)), VERSION, FORMAT)
            self._rows, self.facts = self._index()
        except FileError:
            raise
        except tvz.DAMAGE as error:
            raise damaged(path, error) from error

    @property
    def ranks(self) -> list[int]:
        """The ranks that it has, copies included."""
        return sorted(self._rows)

    def like(self, rank: int) -> int:
        """The rank that a rank is a copy of: itself, mostly."""
        return int(self._rows[rank].get("like", rank))

    def meta(self, rank: int) -> dict[str, Any]:
        """What is different in the ``meta`` of a copy."""
        return dict(self._rows[rank].get("meta", {}))

    def run(self, rank: int) -> Run:
        """The run of a rank that is no copy, which may take as much memory as if it were all of the file."""
        most = tvz.allowed(len(self._data))
        size = 0
        data = io.BytesIO()
        try:
            with zipfile.ZipFile(data, "w") as archive:
                for name, content in self._rows[rank]["entries"].items():
                    numbers = [content] if type(content) is int else [number for _, number in content]
                    # one that is named often is there as often
                    size += sum(self._entry(f"blobs/{number}").file_size for number in numbers)
                    if size > most:
                        raise CorruptFile(
                            f"{self.path} was not loaded: rank {rank} is far larger than its file"
                        )
                    archive.writestr(zipfile.ZipInfo(name, DATE), self._content(content))
        except FileError:
            raise
        except tvz.DAMAGE as error:
            raise damaged(self.path, error) from error
        return tvz.read(self.path, data.getvalue(), most)

    def _content(self, content: Any) -> bytes:
        if type(content) is int:
            return self._read(f"blobs/{content}")
        return _object({str(field): self._read(f"blobs/{number}") for field, number in content})

    def _index(self) -> tuple[dict[int, dict[str, Any]], dict[str, Any]]:
        most = max(INDEX_BYTES, INDEX_TIMES * len(self._data))
        text = self._read(INDEX, most).decode()
        if weight(text) > most:
            raise ValueError(f"{INDEX} holds far more than its file")
        plain = json.loads(text)
        rows: dict[int, dict[str, Any]] = {}
        for row in plain["ranks"]:
            rank = whole(row["rank"], "a rank", 0, MOST_RANKS)
            if rank in rows:
                raise ValueError(f"rank {rank} is there twice")
            rows[rank] = row
        for rank, row in rows.items():
            like = row.get("like", rank)
            if like not in rows or "entries" not in rows[like]:
                raise ValueError(f"rank {rank} is a copy of {shown(like)}, which is not there")
            _check_row(rows[like])
            if type(row.get("meta", {})) is not dict:
                raise ValueError(f"what is different in rank {rank} is {shown(row['meta'])}")
        if type(plain["facts"]) is not dict:
            raise ValueError(f"the facts are {shown(plain['facts'])}")
        return rows, plain["facts"]

    def _read(self, name: str, most: int | None = None) -> bytes:
        entry = self._entry(name)
        if most is not None and entry.file_size > most:
            raise ValueError(f"{name} is {entry.file_size} bytes long")
        with self._archive.open(entry) as stream:
            return stream.read(entry.file_size)

    def _entry(self, name: str) -> zipfile.ZipInfo:
        entry = self._archive.getinfo(name)
        if entry.file_size > tvz.MOST_EXPANSION * entry.compress_size + 1024:
            raise ValueError(f"{name} cannot hold {entry.file_size} bytes")
        return entry


def _check_row(row: Mapping[str, Any]) -> None:
    """Raise unless the entries of a rank are blobs, or names with a blob each."""
    for name, content in row["entries"].items():
        numbers = [content] if type(content) is int else [number for _, number in content]
        if not all(type(number) is int and number >= 0 for number in numbers):
            raise ValueError(f"{shown(name)} is made of {shown(content)}")
