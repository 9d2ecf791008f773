"""Ring slots, checkpoint records and state: what is written comes back, and nothing goes back unnoticed."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import apsw
import pytest
from hypothesis import given
from hypothesis import strategies as st

from replicate.errors import FormatUnknownError, RegionDamagedError
from replicate.limits import RING_RECORD_BYTES_MAX, RING_SLOTS
from replicate.region.protocol import RingSlot, ScrRow, scr_chains, scr_vector
from replicate.region.sqlite import bookkeeping
from replicate.region.sqlite.open import open_region
from tests.harness.regions import make_region

U64 = st.integers(0, 2**64 - 1)


@pytest.fixture
def region(tmp_path: Path) -> Iterator[apsw.Connection]:
    make_region(tmp_path / "r.db", "CREATE TABLE t (a)")
    connection = open_region(tmp_path / "r.db")
    yield connection
    connection.close()


def test_the_ring_keeps_the_last_slots_in_order(region: apsw.Connection) -> None:
    assert bookkeeping.read_ring(region) == []
    assert bookkeeping.region_seqno(region) == 0
    write = bookkeeping.slot_writer(region)
    region.execute("BEGIN IMMEDIATE")
    for seqno in range(1, RING_SLOTS + 101):
        record = None if seqno % 50 == 0 else bytes([seqno % 256]) * (seqno % 7 * 500)
        (write if seqno % 2 else lambda n, r: bookkeeping.write_slot(region, n, r))(seqno, record)
    region.execute("COMMIT")
    ring = bookkeeping.read_ring(region)
    assert [slot.seqno for slot in ring] == list(range(101, RING_SLOTS + 101))
    assert ring[0] == RingSlot(101, bytes([101]) * (101 % 7 * 500))
    assert ring[49] == RingSlot(150, None)
    assert bookkeeping.region_seqno(region) == RING_SLOTS + 100


def test_a_slot_of_a_rolled_back_transaction_is_as_before(region: apsw.Connection) -> None:
    bookkeeping.write_slot(region, 5, b"five")
    region.execute("BEGIN IMMEDIATE")
    bookkeeping.write_slot(region, 5 + RING_SLOTS, b"x" * RING_RECORD_BYTES_MAX)
    region.execute("ROLLBACK")
    assert bookkeeping.read_ring(region) == [RingSlot(5, b"five")]


def test_a_missing_slot_is_damage(region: apsw.Connection) -> None:
    region.execute("DELETE FROM _replicate_ring WHERE slot = 9")
    with pytest.raises(RegionDamagedError, match="slot 9"):
        bookkeeping.write_slot(region, 9, b"")
    with pytest.raises(RegionDamagedError, match="slot 9"):
        bookkeeping.slot_writer(region)(RING_SLOTS + 9, b"")


@given(chain=U64, csn=U64)
def test_unsigned_numbers_come_back(chain: int, csn: int) -> None:
    connection = apsw.Connection(":memory:")
    bookkeeping.make_tables(connection)
    row = ScrRow(2**32 - 1, 1, 2**63 - 1, chain, csn, 9)
    bookkeeping.write_scr(connection, [row])
    assert bookkeeping.read_scr(connection) == [row]
    connection.close()


def test_checkpoint_records_only_rise(region: apsw.Connection) -> None:
    stream, part = ScrRow(7, 0, 10, 123, 5, 10), ScrRow(7, 1, 9, 0, 5, 9)
    bookkeeping.write_scr(region, [stream, part])
    higher = ScrRow(7, 0, 12, 124, 6, 15)
    bookkeeping.write_scr(region, [higher, higher])
    rows = bookkeeping.read_scr(region)
    assert rows == [higher, part]
    assert scr_vector(rows).last(7) == 12
    assert scr_vector(rows).last(7, 1) == 9
    assert scr_chains(rows) == {7: (12, 124)}
    assert bookkeeping.region_seqno(region) == 15
    with pytest.raises(RegionDamagedError, match="would go back from 12"):
        bookkeeping.write_scr(region, [ScrRow(7, 0, 11, 1, 1, 16)])
    bookkeeping.replace_scr(region, [stream])
    assert bookkeeping.read_scr(region) == [stream]


def test_state_values(region: apsw.Connection) -> None:
    assert bookkeeping.read_state(region, "x") is None
    for value in (1, 1.5, "text", b"bytes", None):
        bookkeeping.write_state(region, "x", value)
        assert bookkeeping.read_state(region, "x") == value
    region.execute("DELETE FROM _replicate_state")
    with pytest.raises(RegionDamagedError, match="schema_version"):
        bookkeeping.stored_schema_version(region)


def test_a_newer_or_incomplete_bookkeeping_is_refused(region: apsw.Connection) -> None:
    region.execute("BEGIN; DROP TABLE _replicate_scr")
    with pytest.raises(RegionDamagedError, match="missing tables: _replicate_scr"):
        bookkeeping.read_identity(region, where="r.db")
    region.execute("ROLLBACK; UPDATE _replicate_region SET format = 99")
    with pytest.raises(FormatUnknownError, match="format 99"):
        bookkeeping.read_identity(region, where="r.db")
