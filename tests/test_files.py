"""Files are written whole or not at all."""

from __future__ import annotations

import errno
import fcntl
import os
import stat
from pathlib import Path

import pytest

from comet_mpc.errors import ConfigurationError
from comet_mpc.files import atomic_write, sync


def test_a_file_appears_whole_when_it_is_finished(tmp_path: Path) -> None:
    path = tmp_path / "new" / "file"
    with atomic_write(path, durable=True) as file:
        file.write(b"first")
        assert not path.exists()
    assert path.read_bytes() == b"first"
    with atomic_write(path) as file:
        file.write(b"second")
        assert path.read_bytes() == b"first"
    assert path.read_bytes() == b"second"
    assert [found.name for found in path.parent.iterdir()] == ["file"]


def test_an_error_leaves_the_old_file_and_nothing_beside_it(tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_bytes(b"old")
    with pytest.raises(TypeError), atomic_write(path) as file:
        file.writelines([b"new", "text"])  # type: ignore[list-item]
    assert path.read_bytes() == b"old"
    assert [found.name for found in tmp_path.iterdir()] == ["file"]


def test_a_secret_is_private_before_its_first_byte(tmp_path: Path) -> None:
    path = tmp_path / "secret"
    with atomic_write(path, mode=0o600):
        (beside,) = tmp_path.iterdir()
        assert stat.S_IMODE(beside.stat().st_mode) == 0o600
    assert stat.S_IMODE(path.stat().st_mode) == 0o600


def test_the_first_of_two_writers_wins_if_asked(tmp_path: Path) -> None:
    path = tmp_path / "secret"
    with atomic_write(path, once=True) as late, atomic_write(path, once=True) as early:
        early.write(b"early")
        late.write(b"late")
    assert path.read_bytes() == b"early"
    assert [found.name for found in tmp_path.iterdir()] == ["secret"]


def test_what_cannot_be_written_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"")
    with pytest.raises(ConfigurationError, match=r"cannot write .*file/below: "), atomic_write(tmp_path / "file/below"):
        pass


def test_where_fsync_does_not_wait_for_the_disk_the_full_one_is_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    """As on macOS; and where a file system refuses it, the usual one."""
    asked: list[object] = []
    monkeypatch.setattr(fcntl, "F_FULLFSYNC", 51, raising=False)
    monkeypatch.setattr(fcntl, "fcntl", lambda *arguments: asked.append(arguments))
    monkeypatch.setattr(os, "fsync", lambda descriptor: asked.append(descriptor))
    sync(7)
    assert asked == [(7, 51)]

    def refused(*arguments: object) -> None:
        raise OSError(errno.EINVAL, "no")

    monkeypatch.setattr(fcntl, "fcntl", refused)
    sync(7)
    assert asked[1:] == [7]
