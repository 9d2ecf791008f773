"""A file aside of its name: there whole, or not at all, and no descriptor is left open."""

from __future__ import annotations

import errno
import os
from pathlib import Path

import pytest

from replicate.errors import DiskFullError, JournalIOError, NotFoundError, ReplicateError
from replicate.transfer import unfinished_file
from replicate.transfer.unfinished_file import AsideFile


def nothing() -> None:
    """No failpoint."""


def full() -> None:
    raise OSError(errno.ENOSPC, "full")


def descriptors() -> int:
    return len(os.listdir("/proc/self/fd"))


def test_it_gets_its_name_when_it_is_whole(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    synced: list[int] = []
    monkeypatch.setattr(unfinished_file, "SYNC_BYTES", 3)
    monkeypatch.setattr(os, "fdatasync", synced.append)
    before = descriptors()
    one = AsideFile(tmp_path / "one", "file")
    for pieces in ([b"a", b"b"], [b"c"], [b"d"]):
        one.write(pieces, nothing)
        assert not (tmp_path / "one").exists()
    assert len(synced) == 1
    one.finish(nothing)
    one.abandon()
    assert (tmp_path / "one").read_bytes() == b"abcd"
    assert os.listdir(tmp_path) == ["one"]
    assert descriptors() == before


def test_after_a_failure_nothing_is_left(tmp_path: Path) -> None:
    before = descriptors()
    one = AsideFile(tmp_path / "one", "file")
    with pytest.raises(DiskFullError, match="the file could not be written"):
        one.write([b"a"], full)
    one.abandon()
    one.abandon()
    other = AsideFile(tmp_path / "other", "file")
    with pytest.raises((DiskFullError, JournalIOError), match="the file could not be finished"):
        other.finish(full)
    other.abandon()
    assert os.listdir(tmp_path) == []
    assert descriptors() == before


def test_what_a_killed_writer_left_is_replaced_and_a_link_is_not_followed(tmp_path: Path) -> None:
    (tmp_path / ".one.part").symlink_to(tmp_path / "elsewhere")
    one = AsideFile(tmp_path / "one", "file")
    one.write([b"a"], nothing)
    one.finish(nothing)
    assert os.listdir(tmp_path) == ["one"]


def test_where_there_is_no_directory(tmp_path: Path) -> None:
    with pytest.raises(ReplicateError, match="the file could not be made") as caught:
        AsideFile(tmp_path / "no" / "one", "file")
    assert isinstance(caught.value, NotFoundError | JournalIOError)
