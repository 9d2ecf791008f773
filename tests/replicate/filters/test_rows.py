"""filters/rows.py: what a consumer has after each transaction is what the condition finds at the source then."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from random import Random
from typing import Any

import msgpack
import pytest
from hypothesis import given
from hypothesis import strategies as st

from replicate.errors import PeerRefusedError
from replicate.filters.restating import StreamLarge, StreamParts
from replicate.filters.rows import RowSelection
from replicate.filters.selection import PartitionSelection
from replicate.filters.wishes import parse_wish
from replicate.journal.record import (
    FrameBatch,
    changes_of,
    check_frame,
    decode_batch,
    kind_of,
    large_payload,
    mixed,
    pack_changes,
    pack_frame,
    pack_part,
    read_head,
    read_part,
)
from replicate.journal.walk import walk
from replicate.limits import FRAME_CHANGES_MAX
from replicate.model.transaction import Column, Kind, Op, TableDefinition, mask_of

COLUMNS = (Column("id", "INTEGER", False, "BINARY"), Column("a", "", False, "NOCASE"))


def table(name: str, partition: int = 1, columns: tuple[Column, ...] = COLUMNS, version: int = 1) -> TableDefinition:
    return TableDefinition("shop", partition, "main", name, version, columns, (0,), False, False, False)


T, U = table("t"), table("u", 2)
DEFINITIONS = {one.table_id: one for one in (T, U)}
CONDITIONS = ("a > 3", "a IN ('x', 'Y') OR id < 4", "a IS NULL", "NOT a = 'X'", "id BETWEEN 2 AND 6 AND a IS NOT NULL")
COLUMN_LISTS = ("COLUMNS (id)", "COLUMNS (ID) WHERE id < 5", "COLUMNS (id, a) WHERE a > 3")
VALUES = (None, 1, 5, 7.5, "x", "X", "y", b"x")

Site = dict[int, dict[Any, tuple[Any, ...]]]


def update(definition: TableDefinition, before: tuple[Any, ...], after: tuple[Any, ...]) -> list[Any]:
    changed = [place for place, pair in enumerate(zip(before, after, strict=True)) if pair[0] != pair[1]] or [1]
    return [
        Op.UPDATE, definition.table_id, mask_of(changed, len(before)), [*(after[place] for place in changed), *before]
    ]  # fmt: skip


def some_changes(dice: Random, site: Site, count: int) -> list[list[Any]]:
    """Random changes, done at the site, too: rows move into the condition, out of it, and to other keys."""
    made = []
    for _ in range(count):
        definition = dice.choice((T, T, U))
        rows = site[definition.table_id]
        key, row = dice.randrange(9), (dice.randrange(9), dice.choice(VALUES))
        if key in rows and dice.random() < 0.3:
            made.append([Op.DELETE, definition.table_id, 0, list(rows.pop(key))])
        elif key in rows and (row[0] == key or row[0] not in rows):
            made.append(update(definition, rows.pop(key), row))
            rows[row[0]] = row
        elif key not in rows:
            rows[key] = (key, row[1])
            made.append([Op.INSERT, definition.table_id, 0, [key, row[1]]])
    return made


def apply(site: Site, changes: list[Any]) -> None:
    """As an Update Process does: each before-image must be there."""
    for at in range(0, len(changes), 4):
        op, ident, argument, values = changes[at : at + 4]
        if op == Op.INSERT:
            assert values[0] not in site[ident]
            site[ident][values[0]] = tuple(values)
        elif op == Op.DELETE:
            assert site[ident].pop(values[0]) == tuple(values)
        elif op == Op.UPDATE:
            changed = [place for place in range(2) if argument >> place & 1]
            before = tuple(values[len(changed) :])
            assert site[ident].pop(before[0]) == before
            after = list(before)
            for place, value in zip(changed, values, strict=False):
                after[place] = value
            assert after[0] not in site[ident]
            site[ident][after[0]] = tuple(after)


def chosen(site: Site, text: str) -> dict[Any, tuple[Any, ...]]:
    bound = parse_wish(text).bind(T)
    return {key: tuple(bound.columns.shown(row)) for key, row in site[T.table_id].items() if bound.keeps(row)}


def frame_of(seqno: int, changes: list[list[Any]]) -> bytes:
    packed = pack_changes([element for change in changes for element in change])
    payload, count = mixed(packed, 4 * len(changes), {key: one.partition for key, one in DEFINITIONS.items()})
    return pack_frame(kind_of(payload), seqno, 0, 3, 7, seqno, seqno << 12, payload, count)[0]


@pytest.mark.slow
@given(st.integers(0, 2**32), st.sampled_from((*CONDITIONS, *COLUMN_LISTS)), st.sampled_from((None, {1}, {1, 2})))
def test_random_histories(seed: int, text: str, wanted: set[int] | None) -> None:
    dice = Random(seed)
    source: Site = {T.table_id: {}, U.table_id: {}}
    consumer: Site = {T.table_id: {}, U.table_id: {}}
    partitions = None if wanted is None else PartitionSelection(wanted, DEFINITIONS)
    selection = RowSelection({("shop", "t"): text}, DEFINITIONS, partitions)
    seqno, nothing = 0, 0
    while seqno < 25:
        frames, expected = [], []
        first = seqno + 1
        for _ in range(dice.choice((1, 1, 3))):
            changes = some_changes(dice, source, dice.choice((1, 1, 2, 6)))
            if changes:
                seqno += 1
                frames.append(frame_of(seqno, changes))
                expected.append((chosen(source, text), dict(source[U.table_id])))
        if not frames:
            continue
        batch = FrameBatch(first, seqno, len(frames), b"".join(frames))
        taken = selection.take(batch)
        selection.check()
        assert (taken.first_seqno, taken.last_seqno, taken.count) == (first, seqno, len(frames))
        for (begin, head), frame, (t, u) in zip(walk(taken.data), frames, expected, strict=True):
            sent = taken.data[begin : begin + head.frame_bytes]
            check_frame(sent)
            assert read_head(sent)[4:] == read_head(frame)[4:]  # its number, its origin's, and its hash
            body = decode_batch(sent)[2]
            nothing += head.kind == Kind.NULL
            assert head.kind != Kind.NULL or list(body[-1]) == []
            apply(consumer, list(changes_of(body)) if head.kind != Kind.NULL else [])
            assert consumer[T.table_id] == t
            assert consumer[U.table_id] == (u if wanted != {1} else {})
    assert selection.kept_back == nothing


def test_what_is_not_told_otherwise_goes_as_it_is() -> None:
    selection = RowSelection({("shop", "t"): "a > 3"}, DEFINITIONS)
    row = [Op.INSERT, T.table_id, 0, [1, 5]]
    batch = FrameBatch(1, 2, 2, frame_of(1, [row]) + frame_of(2, [[Op.INSERT, U.table_id, 0, [1, 1]]]))
    assert selection.take(batch).data == batch.data
    other = FrameBatch(3, 3, 1, frame_of(3, [[Op.INSERT, U.table_id, 0, [2, 1]]]))
    assert selection.take(other) is other


class Large:
    """A large transaction of those changes, in parts of `piece` bytes."""

    def __init__(self, changes: list[list[Any]], piece: int) -> None:
        stream = pack_changes([element for change in changes for element in change])
        self.frames, chain = [], 0
        for number, begin in enumerate(range(0, len(stream), piece)):
            frame, chain = pack_part(7, 99, number, stream[begin : begin + piece], chain)
            self.frames.append(frame)
        known = {key: one.partition for key, one in DEFINITIONS.items()}
        self.partitions = tuple(sorted({known[change[1]] for change in changes if change[1] in known}))
        payload, count = large_payload(99, len(self.frames), len(stream), chain, self.partitions)
        self.commit_frame = pack_frame(Kind.LARGE, 5, 0, 3, 7, 5, 5 << 12, payload, count)[0]

    def parts(self) -> Iterator[bytes]:
        yield from self.frames


def content(items: list[Any]) -> list[Any]:
    """The changes in what a selection gives."""
    *parts, last = items
    if not parts:
        assert isinstance(last, FrameBatch)
        return [] if read_head(last.data).kind == Kind.NULL else list(changes_of(decode_batch(last.data)[2]))
    assert isinstance(last, StreamLarge)
    stream = b""
    for item in parts:
        assert isinstance(item, StreamParts)
        begin = 0
        while begin < len(item.frames):
            stream += bytes(read_part(item.frames, begin)[2])
            begin += read_head(item.frames, begin).frame_bytes
    reader = msgpack.Unpacker(max_buffer_size=2**30)
    reader.feed(stream)
    return list(reader)


@pytest.mark.parametrize("text", ["a > 3", "COLUMNS (id) WHERE id < 7"])
@pytest.mark.parametrize(("count", "piece"), [(1, 40), (50, 7), (3 * FRAME_CHANGES_MAX, 200_000)])
def test_a_large_transaction(count: int, piece: int, text: str) -> None:
    dice = Random(count)
    source: Site = {T.table_id: {}, U.table_id: {}}
    consumer: Site = {T.table_id: {}, U.table_id: {}}
    changes = some_changes(dice, source, count)
    whole = Large(changes, piece)
    selection = RowSelection({("shop", "t"): text}, DEFINITIONS)
    assert selection.takes_whole(whole.commit_frame, whole.partitions) == (1 not in whole.partitions)
    apply(consumer, content(list(selection.large(whole.commit_frame, whole.parts(), 1234))))
    assert consumer[T.table_id] == chosen(source, text)
    assert consumer[U.table_id] == source[U.table_id]


def test_of_a_large_transaction_nothing_is_left() -> None:
    whole = Large([[Op.INSERT, T.table_id, 0, [key, 1]] for key in range(30_000)], 200_000)
    selection = RowSelection({("shop", "t"): "a > 3"}, DEFINITIONS)
    (item,) = selection.large(whole.commit_frame, whole.parts(), 1234)
    assert isinstance(item, FrameBatch)
    assert read_head(item.data).kind == Kind.NULL
    assert selection.kept_back == 1


def test_a_large_transaction_of_other_tables_goes_whole() -> None:
    whole = Large([[Op.INSERT, U.table_id, 0, [key, 1]] for key in range(9)], 50)
    selection = RowSelection({("shop", "t"): "a > 3"}, DEFINITIONS)
    assert selection.takes_whole(whole.commit_frame, whole.partitions)
    selection.learn_large(whole.parts)
    again = Large([[Op.DEFINE, table("t", 2).table_id, 1, table("t", 2).pack()]], 50)
    with pytest.raises(PeerRefusedError, match="it was made again in a large transaction"):
        selection.learn_large(again.parts)
    # While the table is not there, it may come in any.
    dormant = RowSelection({("shop", "gone"): "a > 3"}, DEFINITIONS)
    assert not dormant.takes_whole(whole.commit_frame, whole.partitions)


def defined(definition: TableDefinition) -> list[Any]:
    return [Op.DEFINE, definition.table_id, definition.version, definition.pack()]


def schema(text: str) -> list[Any]:
    return [Op.SCHEMA, 0, "shop", [text]]


def taken_one(selection: RowSelection, seqno: int, *changes: list[Any]) -> list[Any]:
    packed = pack_changes([element for change in changes for element in change])
    frame = pack_frame(Kind.TRANSACTION, seqno, 0, 3, 7, seqno, seqno << 12, packed, 4 * len(changes))[0]
    sent = selection.take(FrameBatch(seqno, seqno, 1, frame)).data
    return list(changes_of(decode_batch(sent)[2])) if read_head(sent).kind != Kind.NULL else []


def test_a_table_with_more_columns_is_judged_by_its_new_images() -> None:
    selection = RowSelection({("shop", "t"): "a > 3"}, DEFINITIONS)
    wider = table("t", columns=(COLUMNS[0], Column("b", "", False, "BINARY"), COLUMNS[1]), version=2)
    taken_one(selection, 1, schema("ALTER TABLE t ADD COLUMN b"), defined(wider))
    in_it = [Op.INSERT, wider.table_id, 0, [1, 9, 5]]
    assert taken_one(selection, 2, in_it, [Op.INSERT, wider.table_id, 0, [2, 9, 1]]) == in_it


STOPS: Mapping[str, tuple[list[list[Any]], str]] = {
    "dropped": (
        [schema("ALTER TABLE t DROP COLUMN a"), defined(table("t", columns=COLUMNS[:1], version=2))],
        "table t has no column a",
    ),
    "renamed column": (
        [
            schema("ALTER TABLE t RENAME COLUMN a TO z"),
            defined(table("t", columns=(COLUMNS[0], Column("z", "", False, "BINARY")), version=2)),
        ],
        "table t has no column a",
    ),
    "renamed": ([schema("ALTER TABLE t /* so */ RENAME -- and\n TO v"), defined(table("v"))], "it was renamed"),
    "in quotes": ([schema('ALTER TABLE main . "T"RENAME TO[u]'), defined(table("u"))], "it was renamed"),
    "not understood": ([schema('ALTER TABLE "a--b" RENAME TO t'), defined(table("t", version=2))], "or another"),
    "in its place": ([schema('alter table "new__t" rename to "T"'), defined(table("t", version=2))], "or another"),
}


@pytest.mark.parametrize("name", STOPS)
def test_a_table_that_changes_stops_the_stream_before_that_transaction(name: str) -> None:
    changes, told = STOPS[name]
    selection = RowSelection({("shop", "t"): "a > 3"}, DEFINITIONS)
    packed = pack_changes([element for change in changes for element in change])
    stops = pack_frame(Kind.TRANSACTION, 2, 0, 3, 7, 2, 2 << 12, packed, 4 * len(changes))[0]
    before = frame_of(1, [[Op.INSERT, T.table_id, 0, [1, 5]], [Op.INSERT, T.table_id, 0, [2, 1]]])
    after = frame_of(3, [[Op.INSERT, U.table_id, 0, [1, 5]]])
    taken = selection.take(FrameBatch(1, 3, 3, before + stops + after))
    assert (taken.first_seqno, taken.last_seqno, taken.count) == (1, 1, 1)
    assert list(changes_of(decode_batch(taken.data)[2])) == [Op.INSERT, T.table_id, 0, [1, 5]]
    for goes_on in (selection.check, lambda: selection.take(FrameBatch(4, 4, 1, after))):
        with pytest.raises(PeerRefusedError, match=told) as caught:
            goes_on()
    assert caught.value.facts["reason"] == "ROWS_REFUSED"
    again = RowSelection({("shop", "t"): "a > 3"}, DEFINITIONS)
    with pytest.raises(PeerRefusedError, match=told):
        again.take(FrameBatch(2, 2, 1, stops))


OTHERS = (
    "ALTER TABLE teas RENAME TO v",
    "ALTER TABLE u RENAME TO [green tea]",
    "CREATE INDEX tea ON u (a)",
    "ALTER TABLE tea ADD COLUMN c",
    "ALTER TABLE tea RENAME COLUMN c TO d",
    "ALTER TABLE tea RENAME c TO tea",
    "CREATE TRIGGER tea BEFORE INSERT ON u BEGIN SELECT 'ALTER TABLE tea RENAME TO u'; END",
)


def test_other_names_stop_nothing() -> None:
    selection = RowSelection({("shop", "tea"): "a > 3"}, DEFINITIONS)
    for at, text in enumerate(OTHERS, 1):
        assert taken_one(selection, at, schema(text))


def test_what_cannot_be_told_from_the_beginning() -> None:
    for text, told in (("b > 3", "table t has no column b"), ("a >", "cannot be read")):
        with pytest.raises(PeerRefusedError, match=told):
            RowSelection({("shop", "t"): text}, DEFINITIONS)


# Some columns.

SECRET = Column("secret", "TEXT", True, "BINARY")
WITH_SECRET = table("t", columns=(*COLUMNS, SECRET))
LISTED = {("shop", "t"): "COLUMNS (id, a)"}


def listing() -> RowSelection:
    return RowSelection(LISTED, {WITH_SECRET.table_id: WITH_SECRET, U.table_id: U})


def test_what_goes_of_a_row() -> None:
    """Each kind of change, with and without what is listed."""
    selection, ident = listing(), WITH_SECRET.table_id
    for number, (change, goes) in enumerate(
        (
            ([Op.INSERT, ident, 0, [1, 5, "s"]], [Op.INSERT, ident, 0, [1, 5, ""]]),
            ([Op.INSERT, ident, 0, [1, 5, ""]], [Op.INSERT, ident, 0, [1, 5, ""]]),
            ([Op.DELETE, ident, 0, [1, 5, "s"]], [Op.DELETE, ident, 0, [1, 5, ""]]),
            ([Op.UPDATE, ident, 0b100, ["z", 1, 5, "s"]], []),
            ([Op.UPDATE, ident, 0b110, [6, "z", 1, 5, "s"]], [Op.UPDATE, ident, 0b010, [6, 1, 5, ""]]),
            ([Op.UPDATE, ident, 0b001, [2, 1, 5, "s"]], [Op.UPDATE, ident, 0b001, [2, 1, 5, ""]]),
            ([Op.UPDATE, ident, 0b010, [6, 1, 5, ""]], [Op.UPDATE, ident, 0b010, [6, 1, 5, ""]]),
        ),
        1,
    ):
        assert taken_one(selection, number, change) == goes, change
    assert selection.kept_back == 1


def test_what_has_blanks_already_goes_byte_for_byte() -> None:
    """As a third site gets it from a secondary that has blanks."""
    changes = [[Op.INSERT, WITH_SECRET.table_id, 0, [1, 5, ""]], [Op.UPDATE, WITH_SECRET.table_id, 2, [6, 1, 5, ""]]]
    packed = pack_changes([element for change in changes for element in change])
    frame = pack_frame(Kind.TRANSACTION, 1, 0, 3, 7, 1, 1 << 12, packed, 8)[0]
    batch = FrameBatch(1, 1, 1, frame)
    assert listing().take(batch) is batch


NULLABLE = table("t", columns=(*COLUMNS, Column("secret", "TEXT", False, "BINARY")), version=2)
MADE_AGAIN: Mapping[str, tuple[list[list[Any]], str]] = {
    "an index, without a definition": (
        [schema("CREATE UNIQUE INDEX i ON T (lower(secret))")],
        "of table shop.t the columns id, a cannot be told any more: an index keeps unique",
    ),
    "a check": ([schema("ALTER TABLE t ADD COLUMN b CHECK (b > 3)")], "column b comes with a CHECK"),
    "may be NULL": ([defined(NULLABLE)], "column secret may be NULL, or may not"),
    "listed, gone": (
        [schema("ALTER TABLE t DROP COLUMN a"), defined(table("t", columns=(COLUMNS[0], SECRET)))],
        "a is gone",
    ),
    "in its place, told": ([schema("CREATE TABLE new__t (id)")], "it is made again"),
    "in its place, without a statement": (
        [defined(table("_alembic_tmp_t"))],
        "_alembic_tmp_t is made to take its place",
    ),
    "renamed": ([schema("ALTER TABLE t RENAME TO v"), defined(table("v"))], "it was renamed"),
}


@pytest.mark.parametrize("name", MADE_AGAIN)
def test_what_both_sites_would_not_make_alike_stops_the_stream_before_it(name: str) -> None:
    """And of rows after it in the same transaction nothing goes: they may have come from the table."""
    changes, told = MADE_AGAIN[name]
    for selection in (
        listing(),
        RowSelection(LISTED, {WITH_SECRET.table_id: WITH_SECRET}, PartitionSelection(None, {})),
    ):
        with pytest.raises(PeerRefusedError, match=told) as caught:
            taken_one(selection, 1, *changes)
        assert caught.value.facts["reason"] == "ROWS_REFUSED"
        assert "--columns" in str(caught.value.do)
    large = Large([*changes, [Op.INSERT, U.table_id, 0, [1, "gone abroad"]]], 50)
    items: list[Any] = []
    with pytest.raises(PeerRefusedError, match=told):
        items.extend(listing().large(large.commit_frame, large.parts(), 1234))
    assert not items
    with pytest.raises(PeerRefusedError, match=told):
        listing().learn_large(large.parts)


def test_a_table_of_which_not_all_is_here_ends_the_stream_where_it_comes_to_what_is_wanted() -> None:
    """A third site wants partition 1; of u, in partition 2, its relay has some rows."""

    def of_the_relay() -> RowSelection:
        return RowSelection({}, DEFINITIONS, PartitionSelection((1,), DEFINITIONS), {("shop", "u"): "a > 3"})

    selection = of_the_relay()
    assert taken_one(selection, 1, [Op.INSERT, U.table_id, 0, [1, 5]]) == []
    mine = [int(Op.INSERT), T.table_id, 0, [1, "goes"]]
    assert taken_one(selection, 2, mine) == mine
    assert taken_one(selection, 3, defined(table("u", 2, version=2)))  # it stays there
    comes = defined(table("u", 1, version=3))
    with pytest.raises(
        PeerRefusedError, match=r"table shop\.u where a > 3 cannot be told any more: it comes"
    ) as caught:
        taken_one(selection, 4, comes)
    assert caught.value.facts["reason"] == "ROWS_REFUSED"
    large = Large([comes, [Op.INSERT, T.table_id, 0, [1, 5]]], 50)
    with pytest.raises(PeerRefusedError, match="it comes to what is wanted"):
        list(of_the_relay().large(large.commit_frame, large.parts(), 1234))
    with pytest.raises(PeerRefusedError, match="it comes to what is wanted"):
        of_the_relay().learn_large(large.parts)


def test_other_changes_of_it_go_as_they_are() -> None:
    selection = listing()
    wider = table("t", columns=(*COLUMNS, SECRET, Column("b", "", False, "BINARY")), version=2)
    for number, change in enumerate(
        (
            schema("CREATE INDEX i ON t (secret)"),
            schema("CREATE VIEW v AS SELECT secret FROM t"),
            schema("ALTER TABLE u ADD COLUMN b DEFAULT 3"),
            [Op.SCHEMA, 0, "side", ["CREATE TABLE t (id)"]],
        ),
        1,
    ):
        assert taken_one(selection, number, change) == change
    changes = [schema("ALTER TABLE t ADD COLUMN b"), defined(wider), [Op.INSERT, wider.table_id, 0, [1, 5, "s", "b"]]]
    told = taken_one(selection, 9, *changes)
    assert told[:8] == [*changes[0], *changes[1]]
    assert told[8:] == [Op.INSERT, wider.table_id, 0, [1, 5, "", None]]


@pytest.mark.parametrize("table_name", ["t", 'a "quoted" one', "[x]", '"'])
def test_a_schema_change_is_found_however_the_name_is_written(table_name: str) -> None:
    definition = table(table_name, columns=(*COLUMNS, SECRET))
    selection = RowSelection({("shop", table_name): "COLUMNS (id, a)"}, {definition.table_id: definition})
    quoted = '"' + table_name.replace('"', '""').upper() + '"'
    with pytest.raises(PeerRefusedError, match="an index keeps unique"):
        taken_one(selection, 1, schema(f"CREATE UNIQUE INDEX i ON {quoted} (secret)"))
