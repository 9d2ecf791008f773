"""Counters of AUTOINCREMENT in blocks of each site's own."""

from __future__ import annotations

import apsw
from hypothesis import given
from hypothesis import strategies as st

from replicate.model.transaction import LEFT, SHARED, WRITTEN
from replicate.region.sqlite.bookkeeping import make_tables, read_writers, write_writer
from replicate.region.sqlite.own_counters import (
    BLOCK_BITS,
    PLACES,
    OwnCounters,
    counted_apart,
    counted_out,
    is_in_own_block,
    next_block,
    own_places,
)
from replicate.region.sqlite.schema import read_definition, record_definitions

OWN, OTHER = b"1" * 16, b"2" * 16
BLOCK = 1 << BLOCK_BITS
COUNTERS = st.integers(0, 2**50)
SITES = st.integers(0, PLACES - 1)


@given(COUNTERS, SITES)
def test_the_next_block_is_an_own_one_after_and_no_other_own_one_lies_between(counter: int, place: int) -> None:
    found = next_block(counter, place)
    assert found >= counter
    assert found % BLOCK == 0
    assert is_in_own_block(found + 1, place)
    assert found - counter <= PLACES * BLOCK


@given(COUNTERS)
def test_a_key_is_of_one_place(counter: int) -> None:
    key = counter * 2 + 1  # no border of a block
    assert sum(is_in_own_block(key, place) for place in range(PLACES)) == 1


@given(st.integers(0, 2**20), SITES)
def test_all_of_a_block_is_of_its_place(block: int, place: int) -> None:
    """From the first key to the last one, at which the counter stands when it is used up."""
    begin = block * PLACES + place << BLOCK_BITS
    for counter in (begin, begin + 1, begin + BLOCK - 1, begin + BLOCK):
        assert is_in_own_block(counter, place)
    assert not is_in_own_block(begin + BLOCK + 1, place)


def region(*, place: int = 1) -> apsw.Connection:
    """Of OWN, with the counted table t, whose partition OTHER shares with it."""
    connection = apsw.Connection(":memory:")
    make_tables(connection)
    connection.execute("INSERT INTO _replicate_region VALUES (1, 1, x'', ?, x'', 'main', 0, 0, 'wal')", (OWN,))
    connection.execute("CREATE TABLE t (id INTEGER PRIMARY KEY AUTOINCREMENT, v)")
    connection.execute("CREATE TABLE plain (id INTEGER PRIMARY KEY, v)")
    record_definitions(connection, region="main")
    write_writer(connection, 1, [WRITTEN, OTHER], 1)
    write_writer(connection, 1, [SHARED, OWN, place], 1)
    return connection


def counter_of(connection: apsw.Connection) -> object:
    return connection.execute("SELECT seq FROM sqlite_sequence WHERE name = 't'").get


def settle(connection: apsw.Connection) -> None:
    counters = OwnCounters(connection)
    counters.expect(read_definition(connection, "t", region="main"))
    counters.settle()


def test_a_writer_begins_in_front_of_its_first_block() -> None:
    connection = region()
    counters = OwnCounters(connection)
    counters.take_places()
    counters.settle()
    assert counter_of(connection) == BLOCK
    connection.execute("INSERT INTO t (v) VALUES (1)")
    assert connection.last_insert_rowid() == BLOCK + 1


def test_after_a_row_from_elsewhere_it_counts_in_a_block_of_its_own() -> None:
    connection = region()
    connection.execute("INSERT INTO t VALUES (?, 'from elsewhere')", (7 * BLOCK + 5,))
    settle(connection)
    connection.execute("INSERT INTO t (v) VALUES ('own')")
    assert is_in_own_block(connection.last_insert_rowid(), 1)
    before = counter_of(connection)
    settle(connection)
    assert counter_of(connection) == before, "an own row moves nothing"


def test_a_block_that_is_nearly_used_up_is_left_in_time() -> None:
    connection = region()
    connection.execute("INSERT INTO t VALUES (?, 'own')", (2 * BLOCK - 10,))
    settle(connection)
    assert counter_of(connection) == (PLACES + 1) * BLOCK


def test_a_commit_that_counted_out_of_its_blocks_is_found() -> None:
    connection = region()

    places = own_places(connection, read_writers(connection), OWN)
    assert places == {"t": 1}
    connection.execute("INSERT INTO t VALUES (?, 'own')", (BLOCK + 1,))
    assert counted_out(connection, places) is None
    connection.execute("INSERT INTO t VALUES (?, 'not own')", (2 * BLOCK + 1,))
    assert counted_out(connection, places) == ("t", 2 * BLOCK + 1)


def test_who_writes_nothing_there_counts_as_its_rows_are() -> None:
    connection = region()
    write_writer(connection, 1, [LEFT, OWN], 2)
    connection.execute("INSERT INTO t VALUES (77, 'from elsewhere')")
    settle(connection)
    assert counter_of(connection) == 77
    assert counted_apart(connection) == {"t", "plain"}, "they are compared no more, even so"
