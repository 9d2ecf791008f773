"""filters/selection.py: what goes to a consumer is the history restricted to what it wants, frame for frame."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from replicate.errors import JournalDamagedError
from replicate.filters.restating import StreamLarge, StreamParts
from replicate.filters.selection import PartitionSelection
from replicate.journal.record import (
    FrameBatch,
    chain_of,
    changes_of,
    check_frame,
    decode_batch,
    decode_changes,
    kind_of,
    large_payload,
    mixed,
    pack_changes,
    pack_elements,
    pack_frame,
    pack_null,
    pack_part,
    pack_restated,
    proven_after,
    read_head,
    read_part,
)
from replicate.journal.walk import walk
from replicate.limits import PARTITION_NONE, PARTITION_STREAM
from replicate.model.transaction import Column, Kind, Op, TableDefinition

NUMBERS = (1, 2, 9, PARTITION_NONE)


def table(number: int, version: int = 1) -> TableDefinition:
    return TableDefinition(
        "shop",
        number,
        "main",
        f"t{number}",
        version,
        (Column("id", "INTEGER", False, "BINARY"),),
        (0,),
        False,
        False,
        False,
    )


TABLES = {number: table(number) for number in NUMBERS}
NEWER = {number: table(number, 2) for number in NUMBERS}
DEFINITIONS = {one.table_id: one for one in TABLES.values()}

Row = tuple[str, int]
WHATS = ("row", "row", "newer", "ddl", "comment", "moved", "sequence", "define")
rows = st.lists(
    st.tuples(st.sampled_from(WHATS), st.sampled_from(NUMBERS)),
    min_size=1,
    max_size=5,
)
older = st.lists(st.tuples(st.sampled_from(("row", "ddl", "moved", "define")), st.just(1)), min_size=1, max_size=3)
"""Changes from before there were partitions, which are all in one frame."""
transactions = st.lists(
    st.one_of(
        st.tuples(st.just("plain"), older), st.tuples(st.sampled_from(("mixed", "plain", "restated", "null")), rows)
    ),
    min_size=1,
    max_size=8,
)
wishes = st.one_of(st.none(), st.sets(st.sampled_from(NUMBERS[:3]), min_size=1))


def section(row: Row) -> int:
    return {"ddl": 0, "define": 0, "moved": 0}.get(row[0], row[1])


def flat(row: Row, value: int, known: frozenset[int] = frozenset()) -> list[Any]:
    """`known`: the tables that have been defined again."""
    what, number = row
    defined = TABLES[number]
    newer = NEWER[number] if number in known else defined
    return {
        "newer": [Op.INSERT, newer.table_id, 0, [value]],
        "row": [Op.INSERT, defined.table_id, 0, [value]],
        "sequence": [Op.SEQUENCE, defined.table_id, 0, [None, value]],
        "ddl": [Op.SCHEMA, 0, "shop", [f"CREATE {value}"]],
        "comment": [Op.COMMENT, number, 0, [f"comment {value}"]],
        "moved": [Op.COMMENT, defined.table_id, 1, [f"moved {value}"]],
        "define": [Op.DEFINE, NEWER[number].table_id, 2, NEWER[number].pack()],
    }[what]


@dataclass
class History:
    data: bytes
    changes: list[list[tuple[int, list[Any]]]]
    """For each transaction the section and the flat change."""
    chains: list[int]


def made(history: Sequence[tuple[str, list[Row]]]) -> History:
    frames, changes, chains = [], [], [0]
    known: set[int] = set()
    partitions = {key: one.partition for key, one in DEFINITIONS.items()}
    partitions |= {one.table_id: one.partition for one in NEWER.values()}
    for at, (kind, listed) in enumerate(history, 1):
        one = [(section(row), flat(row, 100 * at + place, frozenset(known))) for place, row in enumerate(listed)]
        if kind != "null":
            known |= {number for what, number in listed if what == "define"}
        packed = pack_changes([element for _, change in one for element in change])
        sections = {number for number, _ in one}
        if kind == "null":
            one, payload, count, code = [], *pack_elements("by hand", []), Kind.NULL
        elif kind == "mixed" or not sections <= {0, 1}:  # before there were partitions, all was in DEFAULT
            payload, count = mixed(packed, 4 * len(one), partitions)
            code = kind_of(payload)
        else:
            payload, count, code = packed, 4 * len(one), Kind.TRANSACTION
        frame, chain = pack_frame(code, at, 0, chains[-1], 7, at, at << 12, payload, count)
        if kind == "restated":
            frame = pack_restated(read_head(frame), "a filter", packed, 4 * len(one))
        frames.append(frame)
        changes.append(one)
        chains.append(chain)
    return History(b"".join(frames), changes, chains)


def batches(data: bytes, borders: set[int]) -> Iterator[FrameBatch]:
    offset, first, waiting = 0, 1, []
    for begin, head in walk(data):
        waiting.append(data[begin : begin + head.frame_bytes])
        offset = head.seqno
        if offset in borders or begin + head.frame_bytes == len(data):
            yield FrameBatch(first, offset, len(waiting), b"".join(waiting))
            first, waiting = offset + 1, []


@given(transactions, wishes, st.sets(st.integers(1, 8)))
@example([("plain", [("row", 1), ("ddl", 1)])], {2}, set())
@example([("plain", [("row", 1), ("moved", 1)])], {2}, set())
@example([("plain", [("row", 1), ("define", 1)])], {2}, set())
@example([("mixed", [("define", 2)]), ("mixed", [("define", 1), ("row", 2)]), ("mixed", [("newer", 1)])], {2}, set())
def test_what_goes_is_the_history_restricted(
    history: list[tuple[str, list[Row]]], wanted: set[int] | None, borders: set[int]
) -> None:
    whole = made(history)
    selection = PartitionSelection(wanted, DEFINITIONS)
    sent = b"".join(selection.take(batch).data for batch in batches(whole.data, borders))
    kept = {0, *(NUMBERS[:3] if wanted is None else wanted)}
    found = [(head, sent[begin : begin + head.frame_bytes]) for begin, head in walk(sent)]
    before = [(head, whole.data[begin : begin + head.frame_bytes]) for begin, head in walk(whole.data)]
    assert [head.seqno for head, _ in found] == list(range(1, len(history) + 1))
    for (head, frame), (was, frame_before), changes in zip(found, before, whole.changes, strict=True):
        check_frame(frame)
        assert head[4:] == was[4:]  # number, mark, hash, origin and time
        assert proven_after(frame, head.kind, head.chain, whole.chains[head.seqno - 1])
        left = [change for number, change in changes if number in kept]
        taken = list(changes_of(decode_batch(frame)[2]))
        assert taken == [element for change in left for element in change]
        decode_changes(taken)
        if len(left) == len(changes):
            assert frame == frame_before
        elif not left:
            assert frame == pack_null(read_head(frame_before), "", ())
    assert selection.kept_back == sum(
        1 for changes in whole.changes if changes and not any(number in kept for number, _ in changes)
    )
    counts: dict[int, list[int]] = {}
    for (_, frame_before), changes in zip(before, whole.changes, strict=True):
        for number in {number for number, _ in changes} - {PARTITION_STREAM}:
            transactions_, frame_bytes = counts.setdefault(number, [0, 0])
            counts[number] = [transactions_ + 1, frame_bytes + len(frame_before)]
    assert selection.counts == counts


@pytest.mark.parametrize("op", [Op.INSERT, Op.UPDATE, Op.DELETE, Op.SEQUENCE])
@pytest.mark.parametrize("count", [1, 2, 3000])
def test_rows_of_each_kind_that_stay_are_one_null(op: Op, count: int) -> None:
    """Between others, and as the last frame of a batch."""
    frames, chain = [], 0
    for at, number in enumerate((2, 1, 2, 2, 9, 2), 1):
        change = [int(op), TABLES[number].table_id, 1, [at]]
        frame, chain = pack_frame(
            Kind.TRANSACTION, at, 0, chain, 7, at, at << 12, pack_changes(change * count), 4 * count
        )
        frames.append(frame)
    for end in (4, 6):
        selection = PartitionSelection({1}, DEFINITIONS)
        sent = selection.take(FrameBatch(1, end, end, b"".join(frames[:end]))).data
        told = [one if at == 1 else pack_null(read_head(one), "", ()) for at, one in enumerate(frames[:end])]
        assert (sent, selection.kept_back) == (b"".join(told), end - 1)


def test_what_all_goes_is_the_same_batch() -> None:
    whole = made([("mixed", [("row", 1), ("row", 2)]), ("plain", [("ddl", 1)]), ("mixed", [("row", 9)])])
    batch = FrameBatch(1, 3, 3, whole.data)
    assert PartitionSelection({1, 2, 9}, DEFINITIONS).take(batch) is batch
    assert PartitionSelection(None, DEFINITIONS).take(batch) is batch
    assert PartitionSelection({1}, DEFINITIONS).take(batch) is not batch


def test_none_never_goes_no_matter_who_asks() -> None:
    whole = made([("mixed", [("row", PARTITION_NONE)]), ("mixed", [("row", PARTITION_NONE), ("row", 1)])])
    for wanted in (None, {1, PARTITION_NONE}, set(NUMBERS)):
        sent = PartitionSelection(wanted, DEFINITIONS).take(FrameBatch(1, 2, 2, whole.data)).data
        bodies = decode_batch(sent)[2::3]
        assert [len(changes_of(body)) // 4 for body in bodies] == [0, 1]


def test_a_table_that_nobody_has_defined() -> None:
    whole = made([("mixed", [("row", 2)])])
    with pytest.raises(JournalDamagedError, match="nobody has defined"):
        PartitionSelection({1}, {}).take(FrameBatch(1, 1, 1, whole.data))


@dataclass
class Large:
    frames: list[bytes]
    partitions: tuple[int, ...]
    commit_frame: bytes

    def parts(self) -> Iterator[bytes]:
        yield from self.frames


def large(listed: list[Row], piece: int) -> Large:
    stream = pack_changes([element for place, row in enumerate(listed) for element in flat(row, place)])
    frames, chain = [], 0
    for number, begin in enumerate(range(0, len(stream), piece)):
        frame, chain = pack_part(7, 99, number, stream[begin : begin + piece], chain)
        frames.append(frame)
    partitions = tuple(sorted({section(row) for row in listed} - {0}))
    payload, count = large_payload(99, len(frames), len(stream), chain, partitions)
    commit, _ = pack_frame(Kind.LARGE, 5, 0, 3, 7, 5, 5 << 12, payload, count)
    return Large(frames, partitions, commit)


@given(rows, wishes, st.integers(1, 40))
def test_a_large_transaction(listed: list[Row], wanted: set[int] | None, piece: int) -> None:
    """Whatever the border between two parts."""
    whole = large(listed, piece)
    selection = PartitionSelection(wanted, DEFINITIONS)
    kept = {0, *(NUMBERS[:3] if wanted is None else wanted)}
    left = [element for place, row in enumerate(listed) if section(row) in kept for element in flat(row, place)]
    assert selection.takes_whole(whole.commit_frame, whole.partitions) == ({section(row) for row in listed} <= kept)
    all_of = PartitionSelection(wanted, DEFINITIONS).wants_all_of(whole.parts())
    assert all_of == ({section(row) for row in listed} <= kept), "by its changes, whatever its frame names"
    if selection.takes_whole(whole.commit_frame, whole.partitions):
        selection.learn_large(whole.parts)
        defined = {key for key, one in ((one.table_id, one) for one in NEWER.values()) if key in selection._partitions}
        assert defined == {NEWER[number].table_id for what, number in listed if what == "define"}
        return
    (item,) = selection.large(whole.commit_frame, whole.parts(), 1234)
    assert isinstance(item, FrameBatch)
    head = check_frame(item.data)
    assert head[4:] == read_head(whole.commit_frame)[4:]
    assert list(changes_of(decode_batch(item.data)[2])) == left
    assert head.kind == (Kind.RESTATED if left else Kind.NULL)


def test_a_large_transaction_of_which_much_is_left() -> None:
    whole = large([("row", 1 + place % 2) for place in range(40_000)], 300_000)
    selection = PartitionSelection({2}, DEFINITIONS)
    *parts, last = selection.large(whole.commit_frame, whole.parts(), 1234)
    assert isinstance(last, StreamLarge)
    data = b""
    for item in parts:
        assert isinstance(item, StreamParts)
        data += b"".join(bytes(read_part(item.frames, begin)[2]) for begin, _ in _parts(item.frames))
    assert data == pack_changes([element for place in range(1, 40_000, 2) for element in flat(("row", 2), place)])
    assert chain_of(last.frame, 0)


def _parts(frames: bytes) -> Iterator[tuple[int, int]]:
    begin = 0
    while begin < len(frames):
        size = read_head(frames, begin).frame_bytes
        yield begin, size
        begin += size
