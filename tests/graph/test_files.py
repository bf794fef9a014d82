"""Files are written whole or not at all."""

from __future__ import annotations

import os
import stat
from pathlib import Path

import pytest

from torch_vis.errors import FileError
from torch_vis.graph.io.atomic import read_whole, replacing


def write(path: Path, data: bytes = b"new") -> None:
    with replacing(path) as file:
        file.write(data)


def test_nothing_is_at_the_path_before_all_is_written(tmp_path: Path) -> None:
    path = tmp_path / "run.tvz"
    with replacing(path) as file:
        file.write(b"half")
        file.flush()
        assert not path.exists()
    assert path.read_bytes() == b"half"
    assert os.listdir(tmp_path) == ["run.tvz"]


@pytest.mark.parametrize("error", [ValueError, KeyboardInterrupt, SystemExit, MemoryError])
def test_a_failed_write_leaves_the_old_file_and_no_other(tmp_path: Path, error: type[BaseException]) -> None:
    path = tmp_path / "run.tvz"
    path.write_bytes(b"old")
    with pytest.raises(error), replacing(path) as file:
        file.write(b"new")
        raise error
    assert path.read_bytes() == b"old"
    assert os.listdir(tmp_path) == ["run.tvz"]


def test_a_full_disk_is_a_file_error(tmp_path: Path) -> None:
    path = tmp_path / "run.tvz"
    with pytest.raises(FileError, match=r"cannot write .*run.tvz: No space left on device"), replacing(path):
        raise OSError(28, "No space left on device")
    assert os.listdir(tmp_path) == []


def test_the_permissions_of_a_new_file_follow_the_umask_and_of_an_old_one_stay(tmp_path: Path) -> None:
    write(tmp_path / "new")
    (tmp_path / "plain").write_bytes(b"")
    assert (tmp_path / "new").stat().st_mode == (tmp_path / "plain").stat().st_mode
    (tmp_path / "new").chmod(0o640)
    write(tmp_path / "new")
    assert stat.S_IMODE((tmp_path / "new").stat().st_mode) == 0o640


def test_a_symbolic_link_stays_one(tmp_path: Path) -> None:
    (tmp_path / "real").write_bytes(b"old")
    (tmp_path / "link").symlink_to(tmp_path / "real")
    write(tmp_path / "link")
    assert (tmp_path / "link").is_symlink()
    assert (tmp_path / "real").read_bytes() == b"new"


def test_paths_that_cannot_be_written_say_why(tmp_path: Path) -> None:
    with pytest.raises(FileError, match="it is a directory; name a file in it"):
        write(tmp_path)
    with pytest.raises(FileError, match=r"cannot write .*nowhere.*: No such file or directory"):
        write(tmp_path / "nowhere" / "run.tvz")
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(FileError, match="not a regular file"):
        write(tmp_path / "pipe")
    with pytest.raises(FileError, match="not a regular file"):
        write(Path(os.devnull))


def test_paths_that_cannot_be_read_say_why(tmp_path: Path) -> None:
    with pytest.raises(FileError, match="there is no such file"):
        read_whole(tmp_path / "run.tvz")
    with pytest.raises(FileError, match="it is a directory"):
        read_whole(tmp_path)
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(FileError, match="not a regular file"):
        read_whole(tmp_path / "pipe")


@pytest.mark.parametrize(
    ("name", "reason"),
    [
        ("a" * 300, "File name too long"),
        ("file/run.tvz", "Not a directory"),
        ("a\0b.tvz", "no file has such a name"),
    ],
)
def test_a_path_that_no_file_can_have_is_a_file_error(tmp_path: Path, name: str, reason: str) -> None:
    """What the removal of the draft says of it is not what the user is told."""
    (tmp_path / "file").write_bytes(b"")
    with pytest.raises(FileError, match=reason):
        write(tmp_path / name)
    with pytest.raises(FileError, match=r"cannot read|" + reason):
        read_whole(tmp_path / name)
    assert os.listdir(tmp_path) == ["file"]


def test_a_folder_that_cannot_be_written_is_a_file_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*args: object, **kwargs: object) -> None:
        raise OSError(30, "Read-only file system", ".torch_vis-1.part")

    monkeypatch.setattr("torch_vis.graph.io.atomic._open_draft", refuse)
    monkeypatch.setattr(Path, "unlink", refuse)
    with pytest.raises(FileError, match=r"cannot write .*run.tvz: Read-only file system"):
        write(tmp_path / "run.tvz")
