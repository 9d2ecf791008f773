"""journal/sections.py and the frame of kind MIXED: every subset of its sections proves itself, nothing else does."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from replicate.errors import JournalDamagedError
from replicate.journal.frame import FRAME_HEAD_BYTES
from replicate.journal.record import (
    chain_of,
    changes_of,
    check_frame,
    decode,
    decode_batch,
    pack_changes,
    pack_frame,
    proven_after,
    read_head,
    trim,
)
from replicate.journal.sections import (
    SECTIONS_ROOM,
    owners_of,
    partitions_of,
    section_of,
    sectioned,
    sections_fault,
    trimmed,
)
from replicate.limits import FRAME_CHANGES_MAX, PARTITION_NONE
from replicate.model.transaction import TABLE_ID_MIN, Kind, Op, RowChange
from tests.harness.changed_frames import sealed

NUMBERS = (1, 2, 7, 63, PARTITION_NONE)
TABLES = {TABLE_ID_MIN + number % 1000: number for number in NUMBERS}
OF_TABLE = {number: table_id for table_id, number in TABLES.items()}
PREVIOUS = 77

changes = st.lists(st.tuples(st.sampled_from((0, *NUMBERS)), st.one_of(st.text(), st.binary(), st.integers(0, 9))))


def flat(rows: list[tuple[int, Any]]) -> list[Any]:
    made: list[Any] = []
    for number, value in rows:
        made += [Op.INSERT, OF_TABLE[number], 0, [value]] if number else [Op.SCHEMA, 0, "shop", [str(value)]]
    return made


def mixed(rows: list[tuple[int, Any]]) -> bytes:
    packed = pack_changes(flat(rows))
    payload, count = sectioned(packed, *owners_of(packed, dict(TABLES)))
    return pack_frame(Kind.MIXED, 9, 3, PREVIOUS, 5, 8, 7 << 12, payload, count)[0]


def payload_of(frame: bytes) -> bytes:
    return frame[FRAME_HEAD_BYTES:]


@given(changes, st.sets(st.sampled_from(NUMBERS)))
def test_every_subset_proves_itself(rows: list[tuple[int, Any]], wanted: set[int]) -> None:
    whole = mixed(rows)
    assert check_frame(whole).chain == chain_of(whole, PREVIOUS)
    assert partitions_of(payload_of(whole)) == tuple(sorted({number for number, _ in rows}))
    if not rows:
        assert sections_fault(payload_of(whole))
        return
    assert sections_fault(payload_of(whole)) == ""
    left = [row for row in rows if row[0] == 0 or row[0] in wanted]

    def wants(number: int) -> bool:
        return number == 0 or number in wanted

    frame = trim(whole, wants)
    head, body = check_frame(frame), decode_batch(frame)[2]
    assert list(changes_of(body)) == flat(left)
    assert proven_after(frame, head.kind, head.chain, PREVIOUS)
    assert (head.kind == Kind.NULL) == (not left)
    assert len(frame) <= len(whole)
    for field in ("seqno", "mark", "chain", "origin", "origin_seqno", "csn"):
        assert getattr(head, field) == getattr(read_head(whole), field)
    if left:
        assert not proven_after(frame, head.kind, head.chain, PREVIOUS + 1)
        assert partitions_of(payload_of(frame)) == partitions_of(payload_of(whole))
        assert trim(frame, wants) == frame
        assert len(decode(frame).content) == len(left)


def test_what_a_trimmed_one_says_cannot_be_changed() -> None:
    """A byte that is turned, in a frame whose CHECK is right: by a source, or a relay, with a fault."""
    frame = trim(mixed([(0, "CREATE"), (2, "b"), (7, "g"), (2, "c"), (63, b"x")]), {0, 2, 63}.__contains__)
    head = check_frame(frame)
    for at in range(FRAME_HEAD_BYTES, len(frame)):
        bad = bytearray(frame)
        bad[at] ^= 1
        turned = sealed(bytes(bad))
        assert not proven_after(turned, head.kind, head.chain, PREVIOUS), at


def test_a_part_of_a_section_is_no_section() -> None:
    """Rows that were left out, doubled, given to another section, or of one that was never there."""
    packed = [pack_changes(flat([row])) for row in ((1, "a"), (1, "b"), (2, "c"))]
    payload, _ = sectioned(b"".join(packed), [1, 1, 2], [len(packed[0]), 2 * len(packed[0]), 3 * len(packed[0])])
    marks = payload.index(b"\x91\xc4\x03\x00\x00\x01")
    table = payload[:marks]
    assert sections_fault(payload) == ""

    def fault(owners: bytes, *rows: int) -> str:
        return sections_fault(
            table + b"\x91\xc4" + bytes([len(owners)]) + owners + b"".join(packed[row] for row in rows)
        )

    assert fault(b"\x00\x00", 0, 1) == ""
    assert fault(b"\x01", 2) == ""
    assert fault(b"") == ""  # nothing is here, and nothing is said to be
    for owners, rows in (
        (b"\x00", (0,)), (b"\x00\x00", (1, 0)), (b"\x00\x00\x00", (0, 1, 1)), (b"\x00\x01\x01", (0, 1, 2)),
        (b"\x01", (0,)), (b"\x02", (2,)), (b"\x00\x00", (0, 1, 2)), (b"\x00\x00\x01", (0, 1)),
    ):  # fmt: skip
        assert "sections" in fault(owners, *rows) or "digest" in fault(owners, *rows), (owners, rows)


@given(st.binary(max_size=80))
def test_any_bytes_are_told(data: bytes) -> None:
    for payload in (data, b"\x09\x00\xc5" + data, b"\x09\x00\xc5\x00\x10" + data):
        fault = sections_fault(payload)
        if fault:
            for ask in (partitions_of, lambda one: trimmed(one, {1}.__contains__)):
                try:
                    ask(payload)
                except JournalDamagedError:
                    continue


def test_the_most_sections() -> None:
    many = {TABLE_ID_MIN + number: number for number in (*range(1, 64), PARTITION_NONE)}
    made: list[Any] = [Op.SCHEMA, 0, "shop", ["x"]]
    for table_id in many:
        made += [Op.INSERT, table_id, 0, [1]]
    packed = pack_changes(made)
    payload, count = sectioned(packed, *owners_of(packed, many))
    assert len(payload) - len(packed) + FRAME_CHANGES_MAX - count // 4 <= SECTIONS_ROOM
    frame = pack_frame(Kind.MIXED, 9, 3, PREVIOUS, 5, 8, 7 << 12, payload, count)[0]
    for number in many.values():
        left = trim(frame, {0, number}.__contains__)
        head = check_frame(left)
        assert proven_after(left, Kind.MIXED, head.chain, PREVIOUS)
        assert [change.table_id for change in decode(left).content if isinstance(change, RowChange)] == [
            table_id for table_id, one in many.items() if one == number
        ]


def test_the_section_of_a_change() -> None:
    known = dict(TABLES)
    assert section_of(Op.INSERT, OF_TABLE[7], known) == 7
    assert section_of(Op.SEQUENCE, OF_TABLE[1], known) == 1
    assert section_of(Op.SCHEMA, 0, known) == section_of(Op.REGION, 0, known) == 0
    assert section_of(Op.COMMENT, 9, known) == 9
    assert section_of(Op.DEFINE, TABLE_ID_MIN + 5000, known, ["shop", 12]) == 0
    assert section_of(Op.UPDATE, TABLE_ID_MIN + 5000, known) == 12
    with pytest.raises(JournalDamagedError, match="nobody has defined"):
        section_of(Op.INSERT, TABLE_ID_MIN + 5001, known)
