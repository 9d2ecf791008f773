"""One Parquet file: whole or not there; and what is said where PyArrow is not installed."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from pyarrow.parquet import ParquetFile, read_table

from replicate.audit import parquet
from replicate.audit.parquet import check_parquet, write_parquet
from replicate.errors import JournalDamagedError, JournalIOError, PrerequisiteMissingError


def test_rows_are_read_as_they_were_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(parquet, "GROUP_ROWS", 3)
    path = tmp_path / "a.parquet"
    rows = [(number, None if number % 2 else f"é{number}") for number in range(7)]
    assert write_parquet(path, ("seqno", "text"), rows) == 7
    assert read_table(path).to_pylist() == [{"seqno": number, "text": text} for number, text in rows]
    assert path.stat().st_mode & 0o777 == 0o600
    assert write_parquet(path, ("seqno", "text"), []) == 0
    assert read_table(path).num_rows == 0


def test_rows_of_many_megabytes_are_not_held_together(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(parquet, "GROUP_CHARACTERS", 100)
    path = tmp_path / "a.parquet"
    rows = [(number, "x" * 60) for number in range(6)]
    assert write_parquet(path, ("seqno", "text"), rows) == 6
    with ParquetFile(path) as file:
        assert [file.metadata.row_group(at).num_rows for at in range(3)] == [2, 2, 2]
    assert read_table(path).num_rows == 6


def test_what_ends_early_leaves_the_file_that_was_there(tmp_path: Path) -> None:
    path = tmp_path / "a.parquet"
    path.write_text("before")

    def broken() -> Iterator[tuple[int, str]]:
        yield 1, "x"
        raise JournalDamagedError("a frame's check does not match its content")

    with pytest.raises(JournalDamagedError):
        write_parquet(path, ("seqno", "text"), broken())
    assert path.read_text() == "before"
    assert list(tmp_path.iterdir()) == [path]
    with pytest.raises(JournalIOError):
        write_parquet(tmp_path / "none" / "a.parquet", ("seqno",), [])


def test_without_pyarrow_it_is_said_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    with pytest.raises(PrerequisiteMissingError, match="pyarrow") as caught:
        check_parquet()
    assert "pip install 'pyarrow" in caught.value.do
