"""replay/spark/staged.py: files as Spark stages them, read back by parts."""

from __future__ import annotations

import tracemalloc
from pathlib import Path
from random import Random
from typing import Any

import msgpack
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from replicate.errors import DamagedError
from update_process.replay.net import EVERY_PART, NetRow, Part
from update_process.replay.spark import staged
from update_process.replay.spark.staged import staged_columns, staged_counters, staged_rows, staged_tables

GONE = NetRow(1, [1, "a"], None, 10)
STAYED = NetRow(2, [2, b"\x00", 2.5], [2, None, -0.0], 11)
CAME = NetRow(1, None, [3, "c" * 300], 12)
PASSED = NetRow(2, None, None, 13, [4])
COUNTER = (2, msgpack.packb(None), msgpack.packb(7))


def write(path: Path, *rows: tuple[int, bytes, bytes | None, bytes | None, int]) -> None:
    types = (pa.int64(), pa.binary(), pa.binary(), pa.binary(), pa.int64())
    columns = [pa.array(values, kind) for values, kind in zip(zip(*rows, strict=True), types, strict=True)]
    pq.write_table(pa.table(columns, names=list(staged.COLUMNS)), path)


def packed(row: NetRow) -> tuple[int, bytes, bytes | None, bytes | None, int]:
    before, after = (None if image is None else msgpack.packb(image) for image in (row.before, row.after))
    return row.table_id, msgpack.packb(row.passed or [5]), before, after, row.seqno


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(staged, "BATCH_ROWS", 2)
    write(tmp_path / "a.parquet", packed(STAYED), packed(GONE), packed(PASSED), (2, b"", *COUNTER[1:], 9))
    write(tmp_path / "b.parquet", packed(CAME), packed(STAYED))
    (tmp_path / "_SUCCESS").touch()
    return tmp_path


@pytest.mark.parametrize(
    ("parts", "expected"),
    [
        (Part.GONE, [GONE]),
        (Part.STAYED, [STAYED, STAYED]),
        (Part.CAME, [CAME]),
        (Part.PASSED, [PASSED]),
        (Part.CAME | Part.GONE, [GONE, CAME]),
        (Part(0), []),
    ],
)
def test_only_what_is_asked_for_is_read(folder: Path, parts: Part, expected: list[NetRow]) -> None:
    assert [repr(row) for row in staged_rows(folder, parts)] == [repr(row) for row in expected]


@pytest.mark.parametrize("parts", [*Part, Part.GONE | Part.STAYED, EVERY_PART])
def test_columns_hold_the_same_rows(folder: Path, parts: Part) -> None:
    found: list[tuple[Any, ...]] = []
    for one in staged_columns(folder, parts):
        assert one.part in parts
        nothing = [None] * one.rows
        found += zip([one.table_id] * one.rows, one.befores or nothing, one.afters or nothing, strict=True)
    expected = [(row[0], *(image and tuple(image) for image in row[1:3])) for row in staged_rows(folder, parts)]
    assert sorted(map(repr, found)) == sorted(map(repr, expected))
    assert expected


def test_everything_is_there_once(folder: Path) -> None:
    found = sorted(map(repr, staged_rows(folder, EVERY_PART)))
    assert found == sorted(map(repr, [GONE, STAYED, STAYED, CAME, PASSED]))
    assert staged_tables(folder) == {1, 2}
    assert staged_counters(folder) == [COUNTER]


@pytest.mark.parametrize("image", [b"\x92\x01", b"\xc1", b"\x91\x01\x91\x02", b"\x05", b""])
def test_an_image_that_is_none_is_damage(tmp_path: Path, image: Any) -> None:
    write(tmp_path / "a.parquet", (1, b"\x91\x01", image, None, 1))
    with pytest.raises(DamagedError, match="staged image"):
        list(staged_rows(tmp_path, Part.GONE))
    with pytest.raises(DamagedError, match="staged image"):
        list(staged_columns(tmp_path, Part.GONE))


@pytest.mark.slow
def test_memory_is_bounded_by_bytes_whatever_the_width(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """More rows than are to be in memory: of wide ones, fewer come together. Each file has a width of its own."""
    monkeypatch.setattr(staged, "BATCH_BYTES", 2**20)
    dice = Random(1)
    for name, rows, width in (("a", 160, 250_000), ("b", 40_000, 60)):
        images = [msgpack.packb([number, dice.randbytes(width)]) for number in range(rows)]
        write(
            tmp_path / f"{name}.parquet",
            *((1, msgpack.packb([number]), image, None, number) for number, image in enumerate(images)),
        )
        del images
    whole_bytes = sum(path.stat().st_size for path in tmp_path.iterdir())
    tracemalloc.start()
    try:
        counts = [one.rows for one in staged_columns(tmp_path, EVERY_PART)]
        assert sum(1 for _ in staged_rows(tmp_path, EVERY_PART)) == sum(counts) == 40_160
        _, peak_bytes = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert counts[0] < 8 < 1000 < counts[-2] < 40_000
    assert peak_bytes < 16 * 2**20 < 40 * 2**20 < whole_bytes
