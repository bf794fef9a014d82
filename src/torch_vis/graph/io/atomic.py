"""Files read whole and written whole: a reader never sees half a file, and a failed write leaves the old one."""

from __future__ import annotations

import os
import secrets
import stat
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import BinaryIO

from torch_vis.errors import FileError

PathLike = str | os.PathLike[str]


@contextmanager
def replacing(path: PathLike) -> Iterator[BinaryIO]:
    """A file to write to, which takes the place of ``path`` only once all of it is on the disk.

    It is a hidden neighbour of ``path`` until then. On any error, Ctrl-C included, the neighbour is removed and what
    was at ``path`` stays as it was. The new file keeps the permissions of the old one.

    >>> import tempfile
    >>> target = Path(tempfile.mkdtemp(), "note.txt")
    >>> with replacing(target) as file:
    ...     _ = file.write(b"done")
    >>> target.read_text()
    'done'
    """
    target = _target(path)
    draft = target.parent / f".torch_vis-{secrets.token_hex(8)}.part"
    try:
        with _open_draft(draft) as file:
            yield file
            file.flush()
            os.fsync(file.fileno())
        if target.exists():
            os.chmod(draft, target.stat().st_mode & 0o7777)
        os.replace(draft, target)
    except FileError:
        raise
    except OSError as error:
        raise FileError(f"cannot write {path}: {_reason(error)}") from error
    finally:
        # it is gone when the write succeeded, and was never there when the folder cannot be written to
        with suppress(OSError):
            draft.unlink()
    _sync_folder(target.parent)


def _target(path: PathLike) -> Path:
    """The file that is to be replaced: through a symbolic link the one it names, not the link."""
    try:
        target = Path(os.path.realpath(path))
        if target.is_dir():
            raise FileError(f"cannot write {path}: it is a directory; name a file in it")
        if target.exists() and not target.is_file():
            raise FileError(f"cannot write {path}: it is not a regular file")
    except FileError:
        raise
    except (OSError, ValueError) as error:
        raise FileError(f"cannot write {path}: {_reason(error)}") from error
    return target


@contextmanager
def reading(path: PathLike) -> Iterator[BinaryIO]:
    """A file to read from; ``FileError`` says why there is none."""
    check_regular(path)
    try:
        with open(path, "rb") as file:
            yield file
    except FileError:
        raise
    except OSError as error:
        raise FileError(f"cannot read {path}: {_reason(error)}") from error


def check_regular(path: PathLike) -> None:
    """Raise for what is no file: a pipe or a device may have no end, or one to wait for."""
    try:
        mode = os.stat(path).st_mode
    except FileNotFoundError as error:
        raise FileError(f"cannot read {path}: there is no such file") from error
    except (OSError, ValueError) as error:
        raise FileError(f"cannot read {path}: {_reason(error)}") from error
    if stat.S_ISDIR(mode):
        raise FileError(f"cannot read {path}: it is a directory; name a file in it")
    if not stat.S_ISREG(mode):
        raise FileError(f"cannot read {path}: it is not a regular file")


def write_text(path: PathLike, text: str) -> None:
    """Write a text as UTF-8, whole or not at all; what UTF-8 cannot hold, half of a letter, is written as an escape."""
    with replacing(path) as file:
        file.write(text.encode("utf-8", "backslashreplace"))


def read_whole(path: PathLike) -> bytes:
    """The bytes of a file; ``FileError`` says why it cannot be read."""
    with reading(path) as file:
        return file.read()


def _reason(error: OSError | ValueError) -> str:
    """Why a path cannot be used; one with a NUL in it, which no file has, is a ``ValueError``."""
    if isinstance(error, OSError):
        return error.strerror or str(error)
    return "no file has such a name"


def _open_draft(draft: Path) -> BinaryIO:
    def opener(name: str, flags: int) -> int:
        return os.open(name, flags | os.O_EXCL, 0o666)  # the umask has its say, unlike with tempfile

    return open(draft, "wb", opener=opener)


def _sync_folder(folder: Path) -> None:
    """Make the new name itself last through a power cut, where the system can."""
    with suppress(OSError):  # Windows cannot open a folder; the file's own bytes are safe by now
        descriptor = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)
