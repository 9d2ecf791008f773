"""Small files: replaced whole, removed durably, read with care."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from replicate.errors import JournalIOError, PermissionRefusedError, ReplicateError
from replicate.system import files
from replicate.system.files import BYTES_MAX, read_private, remove_file, replace_file, replace_unsynced, sync_file


def test_a_file_is_replaced_whole_and_nothing_is_left_beside_it(tmp_path: Path) -> None:
    path = tmp_path / "small"
    for data in (b"first", b"", b"x" * 300_000):
        replace_file(path, data)
        assert read_private(path) == data
        assert os.listdir(tmp_path) == ["small"]
    assert path.stat().st_mode & 0o777 == 0o600


def test_where_a_file_cannot_be_replaced_the_old_one_stands(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "small"
    replace_file(path, b"old")

    def refused(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(files.os, "rename", refused)
    with pytest.raises(ReplicateError, match="could not write small"):
        replace_file(path, b"new")
    assert read_private(path) == b"old"
    assert os.listdir(tmp_path) == ["small"]


def test_what_need_not_outlive_the_machine_is_replaced_whole_without_a_sync(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    synced: list[object] = []
    monkeypatch.setattr(files.os, "fsync", synced.append)
    path = tmp_path / "status"
    for data in (b"first", b"", b"x" * 300_000):
        replace_unsynced(path, data)
        assert (read_private(path), os.listdir(tmp_path), path.stat().st_mode & 0o777) == (data, ["status"], 0o600)
    assert not synced
    replace_file(path, b"durable")
    assert len(synced) == 2, "the file, and its directory"


def test_a_link_is_not_synced_through(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    sync_file(tmp_path / "file")
    (tmp_path / "link").symlink_to(tmp_path / "file")
    with pytest.raises(OSError, match="symbolic links"):
        sync_file(tmp_path / "link")


def test_a_file_is_removed_and_its_directory_synced_after_that(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "mark"
    path.touch()
    synced: list[tuple[str, list[str]]] = []
    monkeypatch.setattr(files, "sync_directory", lambda where: synced.append((where, os.listdir(where))))
    remove_file(path, "the mark could not be removed")
    assert synced == [(str(tmp_path), [])]


def test_what_cannot_be_removed_is_named(tmp_path: Path) -> None:
    with pytest.raises(JournalIOError, match="the mark could not be removed") as caught:
        remove_file(tmp_path / "mark", "the mark could not be removed")
    assert str(tmp_path / "mark") in str(caught.value)


def test_what_is_private_is_read_from_no_link_and_no_device(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError):
        read_private(tmp_path / "none")
    (tmp_path / "link").symlink_to(tmp_path / "none")
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "large").touch()
    os.truncate(tmp_path / "large", BYTES_MAX + 1)
    for name in ("link", "pipe", "large"):
        with pytest.raises(PermissionRefusedError) as caught:
            read_private(tmp_path / name)
        assert name in str(caught.value)
