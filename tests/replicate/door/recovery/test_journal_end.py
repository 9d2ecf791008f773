"""What is read back at a journal's end, NULL records in place, and changes taken back."""

from __future__ import annotations

from pathlib import Path

import apsw
import pytest

from replicate.door.recovery.journal_end import adopted_head, changes_catalogue, read_tail, void_payload
from replicate.door.recovery.unapply import inverse
from replicate.errors import JournalDamagedError, NotSupportedError
from replicate.journal.record import check_frame, decode, pack_frame
from replicate.model.transaction import Kind, NullRecord, Op
from replicate.region.sqlite.apply.rows import RowApplier
from replicate.region.sqlite.schema import read_definition
from tests.harness.journals import ToyJournal, define_payload, make_definition


@pytest.mark.parametrize("size", [66, 67, 96, 97, 98, 99, 100, 130, 300, 4096, 70_000])
def test_a_null_record_takes_exactly_the_room_of_a_frame(size: int) -> None:
    payload, count = void_payload("DiskFullError", size)
    frame, _ = pack_frame(Kind.NULL, 5, 0, 0, 7, 5, 9, payload, count)
    assert len(frame) == size
    content = decode(frame).content[0]
    assert isinstance(content, NullRecord)
    assert content.partitions == ()


def test_whole_frames_are_read_and_nothing_after_them(tmp_path: Path) -> None:
    journal = ToyJournal(tmp_path / "journal")
    data = journal.maker.transactions(3)
    begin = journal.append(data)
    tail = read_tail(journal.segment, begin, len(data), 1)
    assert tail.batch is not None
    assert (tail.batch.first_seqno, tail.batch.last_seqno, tail.batch.data) == (1, 3, data)
    assert tail.last == check_frame(data, len(data) // 3 * 2)
    for cut in (1, 70, len(data) // 3):
        shorter = read_tail(journal.segment, begin, len(data) - cut, 1)
        assert shorter.batch is not None
        assert shorter.batch.last_seqno == 2
    assert read_tail(journal.segment, begin, 5, 1).batch is None
    assert read_tail(journal.segment, begin, len(data), 2).batch is None
    assert adopted_head(journal.chain, 1) is None
    assert adopted_head(journal.chain, 99) is None
    journal.close()


def test_only_what_defines_changes_the_catalogue() -> None:
    payload, count = define_payload(make_definition())
    frame, _ = pack_frame(Kind.TRANSACTION, 1, 0, 0, 7, 1, 9, payload, count)
    assert changes_catalogue(check_frame(frame), frame)
    payload = b"\x01\xce\x80\x00\x00\x01\x00\x91\xc4\x02\x05\xce"
    frame, _ = pack_frame(Kind.TRANSACTION, 1, 0, 0, 7, 1, 9, payload, 4)
    assert not changes_catalogue(check_frame(frame), frame)


def test_the_inverse_of_a_stream() -> None:
    stream = [1, 9, 0, [1, "a"], 2, 9, 0b10, ["b", 1, "a"], 3, 9, 0, [4, "z"], 7, 9, 0, [1, 2], 6, 0, 0, ["note"]]
    assert inverse(stream) == [1, 9, 0, [4, "z"], 2, 9, 0b10, ["a", 1, "b"], 3, 9, 0, [1, "a"], 7, 9, 0, [2, 1]]
    assert inverse(inverse(stream)) == stream[:-4]
    with pytest.raises(NotSupportedError):
        inverse([int(Op.SCHEMA), 0, "main", ["DROP TABLE t"]])
    with pytest.raises(JournalDamagedError):
        inverse([1, 2, 3])


def test_the_inverse_sets_counters_last(tmp_path: Path) -> None:
    """Putting a deleted row back raises the counter of its table, which must end where it was."""
    connection = apsw.Connection(str(tmp_path / "counted.db"))
    connection.execute("CREATE TABLE t (id INTEGER PRIMARY KEY AUTOINCREMENT, v)")
    connection.execute("INSERT INTO t VALUES (10, 'a')")
    definition = read_definition(connection, "t", region="main")
    key = definition.table_id
    stream = [
        *(int(Op.INSERT), key, 0, [11, "b"]),
        *(int(Op.DELETE), key, 0, [11, "b"]),
        *(int(Op.SEQUENCE), key, 0, [10, 11]),
    ]
    undone = inverse(stream)
    assert undone[-4:] == [int(Op.SEQUENCE), key, 0, [11, 10]]
    connection.execute("UPDATE sqlite_sequence SET seq = 11")
    connection.config(apsw.SQLITE_DBCONFIG_ENABLE_TRIGGER, 0)
    rows = RowApplier(connection, {key: definition}, region="main")
    connection.execute("BEGIN")
    rows.begin()
    rows.apply_all(undone)
    connection.execute("COMMIT")
    assert connection.execute("SELECT seq FROM sqlite_sequence").get == 10
    assert connection.execute("SELECT count(*) FROM t").get == 1
    connection.close()


def test_a_row_above_its_counter_that_is_put_back(tmp_path: Path) -> None:
    """An UPDATE of the key leaves the counter alone, and so does the deletion of that row; putting it back does not."""
    connection = apsw.Connection(str(tmp_path / "counted.db"))
    connection.execute("CREATE TABLE t (id INTEGER PRIMARY KEY AUTOINCREMENT, v)")
    connection.execute("INSERT INTO t VALUES (10, 'a')")
    definition = read_definition(connection, "t", region="main")
    key = definition.table_id
    connection.config(apsw.SQLITE_DBCONFIG_ENABLE_TRIGGER, 0)
    rows = RowApplier(connection, {key: definition}, region="main")
    connection.execute("BEGIN")
    rows.begin()
    rows.apply_all(inverse([int(Op.DELETE), key, 0, [99, "b"]]))
    rows.apply_all(inverse([int(Op.INSERT), key, 0, [10, "a"], int(Op.SEQUENCE), key, 0, [7, 10]]))
    rows.settle_sequences()
    connection.execute("COMMIT")
    assert connection.execute("SELECT seq FROM sqlite_sequence").get == 7
    assert connection.execute("SELECT id FROM t").get == 99
    connection.close()
