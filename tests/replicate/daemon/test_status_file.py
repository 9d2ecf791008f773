"""daemon/status_file.py: replaced whole, and only what is a status is read as one."""

from __future__ import annotations

import errno
import json
import os
from pathlib import Path

import pytest

from replicate.daemon.status_file import SERVING, STOPPED, DaemonStatus, StatusFile
from replicate.errors import DiskFullError

STATUS = DaemonStatus("toy", 7, SERVING, "well", 1, 2, {"lag_s": 0.5, "source": None}, "", 0)


@pytest.fixture
def file(tmp_path: Path) -> StatusFile:
    return StatusFile(tmp_path / "run" / "toy.status.json")


def test_what_is_written_is_read(file: StatusFile) -> None:
    assert file.read() is None
    for status in (STATUS, DaemonStatus("toy", 7, STOPPED, "", 1, 3, {}, "DAMAGED: x", 65)):
        file.write(status)
        assert file.read() == status
    assert os.listdir(file.path.parent) == [file.path.name]
    assert file.path.stat().st_mode & 0o777 == 0o600


def test_a_status_that_cannot_be_written_leaves_the_old_one(file: StatusFile, monkeypatch: pytest.MonkeyPatch) -> None:
    file.write(STATUS)

    def fails(*_: object) -> None:
        raise OSError(errno.ENOSPC, "no")

    monkeypatch.setattr(os, "rename", fails)
    with pytest.raises(DiskFullError, match=r"could not write toy\.status\.json"):
        file.write(DaemonStatus("toy", 8, STOPPED, "", 1, 3))
    assert file.read() == STATUS
    assert os.listdir(file.path.parent) == [file.path.name]


def test_what_a_killed_writer_left_is_written_over(file: StatusFile) -> None:
    file.write(STATUS)
    file.path.with_name(".toy.status.json.tmp").write_text("half of it, and longer than a status " * 100)
    file.write(STATUS)
    assert file.read() == STATUS
    assert os.listdir(file.path.parent) == [file.path.name]


@pytest.mark.parametrize("text", ["", "{", "[]", "7", '{"name": "toy"}', "[" * 100_000])
def test_what_is_no_status_is_none(file: StatusFile, text: str) -> None:
    file.write(STATUS)
    file.path.write_text(text)
    assert file.read() is None


@pytest.mark.parametrize("key", ["pid", "facts", "exit_code", "changed_wall_ns"])
def test_a_value_of_another_kind_is_none(file: StatusFile, key: str) -> None:
    file.write(STATUS)
    made = json.loads(file.path.read_text())
    file.path.write_text(json.dumps({**made, key: "many"}))
    assert file.read() is None
