"""older_than_wal.py on a database that is no tree: it comes to an end, and nothing is said."""

from __future__ import annotations

import struct
from pathlib import Path

import apsw
import pytest

from replicate.region.sqlite.bookkeeping import make_tables, write_slot
from replicate.region.sqlite.forensics.older_than_wal import find_gap

REGION = bytes(16)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """Tables of ours, checkpointed, and a WAL after them that begins with transaction 9."""
    path = tmp_path / "region.db"
    connection = apsw.Connection(str(path))
    connection.pragma("page_size", 512)
    connection.pragma("journal_mode", "wal")
    make_tables(connection)
    connection.execute("INSERT INTO _replicate_region VALUES (1, 1, x'', x'', ?, 'main', 1, 1, 'wal')", (REGION,))
    write_slot(connection, 5, b"five")
    connection.wal_checkpoint(mode=apsw.SQLITE_CHECKPOINT_TRUNCATE)
    connection.execute("BEGIN")
    write_slot(connection, 9, b"the record of nine")
    connection.execute("COMMIT")
    connection.config(apsw.SQLITE_DBCONFIG_NO_CKPT_ON_CLOSE, 1)
    connection.close()
    return path


def gap(path: Path) -> tuple[int, int, bytes] | None:
    connection = apsw.Connection(str(path), flags=apsw.SQLITE_OPEN_READONLY)
    try:
        found = find_gap(connection, str(path), region=REGION, primary=True, missed=lambda _: 7)
        return None if found is None else (found[0].held, found[0].first, found[0].record)
    finally:
        connection.close()


def test_what_lies_beneath_is_told(path: Path) -> None:
    assert gap(path) == (5, 9, b"the record of nine")


@pytest.mark.parametrize("child", [0, 1, 2, 2**32 - 1])
def test_a_way_that_leads_back_or_nowhere_is_no_gap(path: Path, child: int) -> None:
    """Every inner page of the ring leads to one page, often to itself."""
    data = bytearray(path.read_bytes())
    changed = 0
    for begin in range(512, len(data), 512):
        if data[begin] == 0x05:
            number = begin // 512 + 1 if child == 2 else child
            cells = struct.unpack_from(">H", data, begin + 3)[0]
            for at in struct.unpack_from(f">{cells}H", data, begin + 12):
                struct.pack_into(">I", data, begin + at, number)
            struct.pack_into(">I", data, begin + 8, number)
            changed += 1
    assert changed
    path.write_bytes(data)
    assert gap(path) is None
