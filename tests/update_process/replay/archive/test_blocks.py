"""archive/blocks.py without Spark: changes by columns, their places and what they share, and what makes no sense."""

from __future__ import annotations

from typing import Any

import msgpack
import pytest

from replicate.errors import FormatUnknownError, JournalDamagedError
from replicate.journal import catalogue
from replicate.journal.record import DEFINE_MARK, pack_elements, pack_frame
from replicate.model.transaction import Catalogue, Column, Kind, Op, TableDefinition
from replicate.model.vector import SynchronizationVector
from update_process.replay.archive import blocks
from update_process.replay.archive.blocks import Block, BlockReader

COLUMNS = (Column("id", "INTEGER", False, "BINARY"), Column("a", "", False, "BINARY"), Column("b", "", False, "BINARY"))
T = TableDefinition("main", 1, "main", "t", 1, COLUMNS, (0,), False, False, False)
WIDER = TableDefinition(
    "main", 1, "main", "t", 2, (*COLUMNS, Column("c", "", False, "BINARY")), (0,), False, False, False
)
PAIR = TableDefinition("main", 1, "main", "pair", 1, COLUMNS[:2], (0, 1), False, False, True)


def read(monkeypatch: pytest.MonkeyPatch, *bodies: tuple[Any, ...], first: int = 1, last: int = 99) -> list[Any]:
    """seqno, place, table, version, op, key, before, after, text of every row."""
    catalogue = Catalogue({T.table_id: T, PAIR.table_id: PAIR}, (), SynchronizationVector({}), {})
    block = Block("here", 0, 1, 1, 99, False, msgpack.packb(catalogue.pack()))
    monkeypatch.setattr(BlockReader, "_frames", lambda _: iter([(100, body) for body in bodies]))
    return [
        (
            rows.transactions[rows.transaction_at[at]][0],
            rows.places[at],
            *rows.tables[rows.table_at[at]][2::2],
            Op(rows.ops[at]).name,
            *(packed and msgpack.unpackb(packed) for packed in (rows.keys[at], rows.befores[at], rows.afters[at])),
            rows.texts.get(at),
        )
        for rows in BlockReader(block).changes(first, last)
        for at in range(len(rows.keys))
    ]


def body(seqno: int, *changes: Any) -> tuple[Any, ...]:
    return (int(Kind.TRANSACTION), seqno, 0, 0, 7, seqno, 5 << 12, *changes)


def update(mask: int, *values: Any, table: TableDefinition = T) -> tuple[Any, ...]:
    return int(Op.UPDATE), table.table_id, mask, values


@pytest.mark.parametrize("batch", [1, 100])
def test_rows_places_and_what_they_share(batch: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(blocks, "BATCH_ROWS", batch)
    found = read(
        monkeypatch,
        body(1, int(Op.INSERT), T.table_id, 0, (1, 2, 3), *update(2, 9, 1, 2, 3)),
        body(2, *update(2, 8, 1, 9, 3), *update(1, 4, 1, 8, 3), *update(6, b"", -0.0, 4, 8, 3)),
        body(3, *update(2, 6, 1, 5, table=PAIR), *update(1, 1, 1, 6, table=PAIR)),
        body(4, int(Op.SCHEMA), 0, "main", ("ALTER",), int(Op.DEFINE), WIDER.table_id, 0, tuple(WIDER.pack())),
        body(5, int(Op.DELETE), WIDER.table_id, 0, (4, b"", -0.0, None), int(Op.COMMENT), 0, 0, ("so",)),
        body(6, int(Op.SEQUENCE), T.table_id, 0, (None, 4)),
    )
    assert [(*row[:7], repr(row[7]), row[8]) for row in found[:4]] == [
        (1, 0, "t", 1, "INSERT", [1], None, "[1, 2, 3]", None),
        (1, 1, "t", 1, "UPDATE", [1], [1, 2, 3], "[1, 9, 3]", None),
        (2, 0, "t", 1, "UPDATE", [1], [1, 9, 3], "[1, 8, 3]", None),
        (2, 1, "t", 1, "UPDATE", [1], [1, 8, 3], "None", None),
    ]
    assert found[4] == (2, 2, "t", 1, "UPDATE", [4], None, [4, 8, 3], None)
    assert repr(found[5]) == repr((2, 3, "t", 1, "UPDATE", [4], [4, 8, 3], [4, b"", -0.0], None))
    assert found[6:9] == [
        (3, 0, "pair", 1, "UPDATE", [1, 5], [1, 5], None, None),
        (3, 1, "pair", 1, "UPDATE", [1, 6], None, [1, 6], None),
        (3, 2, "pair", 1, "UPDATE", [1, 6], [1, 6], [1, 6], None),
    ]
    assert [row[:5] for row in found[9:]] == [
        (4, 0, None, None, "SCHEMA"),
        (4, 1, "t", 2, "DEFINE"),
        (5, 0, "t", 2, "DELETE"),
        (5, 1, None, None, "COMMENT"),
        (6, 0, "t", 1, "SEQUENCE"),
    ]
    assert (found[9][8], found[12][8], found[13][6:8]) == ("ALTER", "so", (None, 4))


def test_only_the_range_is_given_and_definitions_before_it_are_known(monkeypatch: pytest.MonkeyPatch) -> None:
    bodies = (
        body(1, int(Op.DEFINE), WIDER.table_id, 0, tuple(WIDER.pack())),
        body(2, int(Op.INSERT), WIDER.table_id, 0, (1, 2, 3, 4)),
        body(3, int(Op.INSERT), WIDER.table_id, 0, (2, 2, 3, 4)),
    )
    assert [row[:5] for row in read(monkeypatch, *bodies, first=2, last=2)] == [(2, 0, "t", 2, "INSERT")]


def test_a_mark_of_a_definition_by_accident_is_not_decoded_at_length(monkeypatch: pytest.MonkeyPatch) -> None:
    """4 and a number of five bytes look like the beginning of one, and stand in many frames."""
    payloads = [
        (int(Op.INSERT), T.table_id, 0, (1, 4, 70_000)),
        (int(Op.DEFINE), WIDER.table_id, 2, WIDER.pack(), int(Op.INSERT), WIDER.table_id, 0, (1, 2, 4, 70_000)),
        (int(Op.DELETE), WIDER.table_id, 0, (1, 2, 4, 70_000)),
    ]
    packed = [pack_elements(*payload) for payload in payloads]
    frames = [pack_frame(Kind.TRANSACTION, at, 0, 0, 7, at, 0, *one)[0] for at, one in enumerate(packed, 1)]
    assert all(DEFINE_MARK in frame for frame in frames)
    decoded: list[bytes] = []

    def with_frame(known: Catalogue, frame: bytes) -> Catalogue:
        decoded.append(frame)
        return catalogue.with_frame(known, frame)

    monkeypatch.setattr(blocks, "with_frame", with_frame)
    found = blocks._after(Catalogue({T.table_id: T}), b"".join(frames))
    assert list(found.definitions) == [T.table_id, WIDER.table_id]
    assert decoded == frames[1:2]


@pytest.mark.parametrize(
    ("change", "error"),
    [
        ((int(Op.INSERT), 7, 0, (1, 2, 3)), JournalDamagedError),
        ((int(Op.INSERT), T.table_id, 0, (1, 2)), JournalDamagedError),
        ((int(Op.INSERT), T.table_id, 0, "abc"), JournalDamagedError),
        ((int(Op.INSERT), T.table_id, 0, 5), JournalDamagedError),
        ((int(Op.INSERT), [], 0, (1, 2, 3)), JournalDamagedError),
        ((int(Op.DELETE), T.table_id, 0), JournalDamagedError),
        (update(2, 9, 1, 2), JournalDamagedError),
        (update(8, 9, 1, 2, 3), JournalDamagedError),
        ((*update(2, 9, 1, 2, 3), *update(2, 9, 1, 2, 3, 4)), JournalDamagedError),
        ((99, T.table_id, 0, (1, 2, 3)), FormatUnknownError),
    ],
)
def test_what_makes_no_sense_is_one_error(
    change: tuple[Any, ...], error: type[Exception], monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(error):
        read(monkeypatch, body(1, *change))


def test_what_was_told_in_other_words_has_its_changes_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    label = (int(Op.COMMENT), 0, 2**63, ("a filter",))
    insert = (int(Op.INSERT), T.table_id, 0, (1, 2, 3))
    restated = (int(Kind.RESTATED), *body(2, *label, *insert)[1:])
    found = read(monkeypatch, body(1, *insert), restated)
    assert [row[:5] for row in found] == [(1, 0, "t", 1, "INSERT"), (2, 0, "t", 1, "INSERT")]


def test_what_suppliers_tell_each_other_is_no_change(monkeypatch: pytest.MonkeyPatch) -> None:
    """It takes no row, and the rows around it keep their places."""
    found = read(
        monkeypatch,
        body(1, int(Op.SEEN), 0, 0, (5, 1, 7), int(Op.INSERT), T.table_id, 0, (1, 2, 3), *update(2, 9, 1, 2, 3)),
        body(2, int(Op.INSERT), T.table_id, 0, (2, 2, 3), int(Op.RESOLVED), 0, 1, (b"payload", 4, ())),
    )
    assert [(seqno, op, key) for seqno, _, _, _, op, key, *_ in found] == [
        (1, "INSERT", [1]),
        (1, "UPDATE", [1]),
        (2, "INSERT", [2]),
    ]
