"""The conversation with a filter: what it is told, what may come back, and each lie at each step."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import msgpack
import pytest

from replicate.errors import DamagedError, FilterError, FormatUnknownError, InternalError
from replicate.filters.conversation import WAITING_BYTES_MAX
from replicate.filters.encoding import Form
from replicate.filters.restating import StreamLarge, StreamParts
from replicate.journal.record import FrameBatch, decode, read_part, unpacker
from replicate.limits import FILTER_EVENT_BYTES_MAX, FRAME_BYTES_MAX, MIB
from replicate.model.transaction import Kind, LargeCommit, NullRecord, Op, RowChange, TableDefinition
from tests.harness.frames import HISTORY, NULL
from tests.harness.talking import DELETE, INSERT, LOOSE, PERSON, SPLIT, TIMEOUT_S, UPDATE, Talk, table


def lines(text: bytes) -> list[Any]:
    return [json.loads(line) for line in text.splitlines()]


def test_what_a_filter_is_told() -> None:
    talk = Talk()
    update = [UPDATE, PERSON.table_id, 2, ["b", 1, "a", None]]
    delete = [DELETE, LOOSE.table_id, 0, [9, 2.5, b"\x00\xff"]]
    frame = talk.writer.frame([INSERT, PERSON.table_id, 0, [1, "a", None], *update, *delete])
    told = lines(talk.give(frame))
    assert lines(talk.hello) == [{"hello": "dualsite filter", "version": 1, "side": "receiver"}]
    assert told[0] == {"begin": 1, "origin": "00000007", "origin_seqno": 1, "time": "1970-01-01T00:00:00.000000Z"}
    place = {"region": "shop", "table": "person"}
    before, after = {"id": 1, "name": "a", "x": None}, {"id": 1, "name": "b", "x": None}
    assert told[1:] == [
        {"op": "insert", **place, "after": before},
        {"op": "update", **place, "before": before, "after": after},
        {"op": "delete", "region": "shop", "table": "loose", "before": {"rowid": 9, "a": 2.5, "b": {"blob": "00ff"}}},
        {"end": 1, "count": 3},
    ]


@pytest.mark.parametrize("form", Form)
@pytest.mark.parametrize("size", [1, 7, 100_000])
def test_what_comes_back_as_it_went_stays_the_frame_that_it_was(form: Form, size: int) -> None:
    talk = Talk(form=form)
    frames = talk.writer.many(50, PERSON.table_id)
    frames = [talk.writer.insert(PERSON.table_id, number, "ä" * number, -0.0) for number in range(50)]
    talk.writer.seqno = 100
    batch = FrameBatch(51, 100, 50, b"".join(frames))
    talk.out += talk.talk.give(batch, 0.0)
    told = talk.told()
    for offset in range(0, len(told), size):
        talk.say(told[offset : offset + size])
    assert b"".join(item.data for item in talk.out if isinstance(item, FrameBatch)) == batch.data
    assert talk.talk.is_idle
    assert talk.talk.waiting_bytes == 0
    assert talk.talk.passed == 50


def test_what_is_told_in_other_words_bears_the_number_and_the_hash_of_its_origin() -> None:
    talk = Talk(here=[SPLIT])
    frame = talk.writer.insert(PERSON.table_id, 1, "Ada Lovelace", None)
    talk.give(frame)
    row = {"op": "insert", "region": "shop", "table": "person", "after": {"id": 1, "first": "Ada", "last": "Lovelace"}}
    talk.say('{"begin":1}\n' + json.dumps(row) + '\n{"end":1,"count":1}\n')
    (made,) = talk.transactions()
    was = decode(frame)
    assert made.kind is Kind.RESTATED
    assert (made.seqno, made.chain, made.origin, made.origin_seqno, made.csn) == (
        was.seqno, was.chain, was.origin, was.origin_seqno, was.csn
    )  # fmt: skip
    comment, change = made.content
    assert getattr(comment, "text", "") == "filter mine"
    assert isinstance(change, RowChange)
    assert (change.table_id, change.after) == (SPLIT.table_id, (1, "Ada", "Lovelace"))


def test_an_echo_is_no_answer_where_the_other_side_has_other_tables() -> None:
    talk = Talk(here=[SPLIT])
    told = talk.row(1, "Ada Lovelace", None)
    with pytest.raises(FilterError, match=r"transaction 1: the after-image of shop.person lacks the column first"):
        talk.say(told)


@pytest.mark.parametrize("form", Form)
def test_nothing_of_it_is_left_and_its_number_is_kept(form: Form) -> None:
    talk = Talk(form=form)
    frame = talk.writer.insert(PERSON.table_id, 1, "a", None)
    talk.give(frame)
    group = [{"begin": 1}, {"end": 1, "count": 0}]
    talk.say(b"".join(map(msgpack.packb, group)) if form is Form.MSGPACK else '{"begin":1}\n{"end":1,"count":0}\n')
    (made,) = talk.transactions()
    assert (made.kind, made.chain, made.content) == (
        Kind.NULL, decode(frame).chain, (NullRecord("filter mine", (1,)),)
    )  # fmt: skip


def test_records_that_hold_no_rows_pass_in_their_place() -> None:
    talk = Talk()
    first, null = talk.writer.insert(PERSON.table_id, 1, "a", None), talk.writer.frame(["why", [1]], NULL)
    talk.writer.origin = 8
    history = talk.writer.frame([bytes(16), "north", 1, 0, [], "new"], HISTORY)
    told = talk.give(first, null, history)
    assert talk.out == []
    talk.say(told)
    assert [made.kind for made in talk.transactions()] == [Kind.TRANSACTION, Kind.NULL, Kind.HISTORY]
    talk.give(talk.writer.frame(["why", [1]], NULL))  # nothing is before it: it need not wait
    assert len(talk.transactions()) == 4


@pytest.mark.parametrize("form", Form)
def test_records_that_are_told_nobody_may_stand_anywhere_between_those_that_are(form: Form) -> None:
    """Before the greeting too; and whatever the filter says at once."""
    for order in ("n", "nt", "tn", "ntn", "nntnnt", "tnnt"):
        talk = Talk(form=form, is_greeted=False)
        frames = [
            talk.writer.frame(["why", [1]], NULL)
            if one == "n"
            else talk.writer.insert(PERSON.table_id, number, "a", None)
            for number, one in enumerate(order)
        ]
        talk.say(talk.hello + talk.give(*frames))
        assert b"".join(item.data for item in talk.out if isinstance(item, FrameBatch)) == b"".join(frames)
        assert talk.talk.is_idle


# Lies. `told` is what the filter was told of the transactions 1 and 2.

ROW = '{"op":"insert","region":"shop","table":"person","after":{"id":1,"name":"a","x":null}}\n'
LIES: dict[str, tuple[str, str]] = {
    "a line is no JSON": ("rubbish\n", "a line is no JSON"),
    "half of a number": ('{"begin":1,"x":NaN}\n', "a line is no JSON"),
    "binary": ("\x00\x01\n", "a line is no JSON"),
    "nested without end": ("[" * 100_000 + "\n", "a line is no JSON"),
    "another number": ('{"begin":2}\n', "transaction 2 begins; 1 is next"),
    "a number that is text": ('{"begin":"1"}\n', "transaction '1' begins; 1 is next"),
    "a truth for a number": ('{"begin":true}\n', "transaction True begins; 1 is next"),
    "no beginning": (ROW, "the beginning of transaction 1 should stand here"),
    "an end first": ('{"end":1,"count":0}\n', "the beginning of transaction 1 should stand here"),
    "two groups in one": ('{"begin":1}\n{"begin":2}\n', "transaction 2 begins before the end of 1"),
    "the end of another": ('{"begin":1}\n{"end":2,"count":0}\n', "transaction 2 ends; 1 has begun"),
    "a wrong count": ('{"begin":1}\n' + ROW + '{"end":1,"count":2}\n', "it ends with a count of 2; 1 changes came"),
    "no count": ('{"begin":1}\n{"end":1}\n', "it ends with a count of None; 0 changes came"),
    "the same twice": (('{"begin":1}\n{"end":1,"count":0}\n') * 2, "transaction 1 begins; 2 is next"),
    "one too many": (
        '{"begin":1}\n{"end":1,"count":0}\n{"begin":2}\n{"end":2,"count":0}\n{"begin":3}\n',
        "it spoke before",
    ),
    "no event": ('{"begin":1}\n17\n', "an event with op should stand here"),
    "an op that is none": ('{"begin":1}\n{"op":"upsert"}\n', "there is no op 'upsert'"),
    "an op that is no text": ('{"begin":1}\n{"op":[1]}\n', "an event with op should stand here"),
    "a field too many": ('{"begin":1}\n' + ROW.replace("}}", '},"z":1}'), "fields too many or too few: 'z'"),
    "an unknown table": ('{"begin":1}\n' + ROW.replace("person", "persons"), "there is no table 'persons' in region"),
    "an unknown region": ('{"begin":1}\n' + ROW.replace("shop", "shed"), "there is no table 'person' in region 'shed'"),
    "a table that is no text": ('{"begin":1}\n' + ROW.replace('"person"', "[]"), "there is no table \\[\\]"),
    "a column too many": ('{"begin":1}\n' + ROW.replace('"x"', '"w":1,"x"'), "shop.person has no column 'w'"),
    "a column too few": ('{"begin":1}\n' + ROW.replace(',"x":null', ""), "lacks the column x"),
    "a truth as a value": ('{"begin":1}\n' + ROW.replace("null", "true"), "the column x cannot take True"),
    "a list as a value": ('{"begin":1}\n' + ROW.replace("null", "[1]"), "the column x cannot take \\[1\\]"),
    "a number too large": ('{"begin":1}\n' + ROW.replace("null", str(2**63)), "the column x cannot take"),
    "half a surrogate": ('{"begin":1}\n' + ROW.replace('"a"', '"\\ud800"'), "holds what cannot be stored"),
    "a blob that is none": ('{"begin":1}\n' + ROW.replace("null", '{"blob":"0"}'), "the column x cannot take"),
    "no form of a value": ('{"begin":1}\n' + ROW.replace("null", '{"date":"now"}'), "the column x cannot take"),
    "not a number": ('{"begin":1}\n' + ROW.replace("null", '{"real":"nan"}'), "the column x cannot take nan"),
    "images that are none": ('{"begin":1}\n' + ROW.replace('{"id":1,"name":"a","x":null}', "[1]"), "values by column"),
}


@pytest.mark.parametrize("size", [1, 1 << 20])
@pytest.mark.parametrize("lie", LIES)
def test_a_lie_is_told_by_its_name_and_nothing_of_it_comes_out(lie: str, size: int) -> None:
    said, why = LIES[lie]
    if size == 1 and len(said) > 1000:
        size = 4096
    talk = Talk()
    talk.row(1, "a", None)
    talk.row(2, "b", None)

    def say() -> None:
        for offset in range(0, len(said), size):
            talk.say(said[offset : offset + size])

    with pytest.raises(FilterError, match=why) as caught:
        say()
    assert "the filter mine failed" in str(caught.value)
    assert "Mend the filter" in str(caught.value)
    assert all(made.kind is Kind.NULL for made in talk.transactions())


@pytest.mark.parametrize("said", ["rubbish\n", '{"hello":"me"}\n', '{"version":2}\n', "17\n", '{"begin":1}\n'])
def test_its_first_word_is_the_version(said: str) -> None:
    talk = Talk(is_greeted=False)
    with pytest.raises(FilterError, match=r"first word|no JSON"):
        talk.say(said)
    assert Talk(is_greeted=False).say('{"version":1,"name":"me"}\n') == []


def test_garbage_where_msgpack_should_stand() -> None:
    for said in (b"\xc1", b"\x81\xa5begin\x02", b"rubbish", b"\xff" * 100):
        talk = Talk(form=Form.MSGPACK)
        talk.row(1, "a", None)
        with pytest.raises(FilterError, match="failed at transaction 1"):
            talk.say(said)


@pytest.mark.parametrize("form", Form)
def test_a_line_without_an_end_is_refused_at_its_bound(form: Form) -> None:
    talk = Talk(form=form)
    talk.row(1, "a", None)
    piece = b"\xdb\x7f\xff\xff\xff" if form is Form.MSGPACK else b'{"begin":1,"x":"'
    talk.say(piece)
    for _ in range(FILTER_EVENT_BYTES_MAX // (4 * MIB) - 1):
        talk.say(b"x" * 4 * MIB)
    with pytest.raises(FilterError, match="longer than 64 MiB"):
        talk.say(b"x" * 4 * MIB)


# Time.


def test_time_counts_only_while_the_filter_has_something_to_do() -> None:
    talk = Talk()
    assert talk.talk.deadline is None
    talk.talk.tick(1e9)
    last = talk.talk
    talk.writer.seqno += 0
    frame = talk.writer.insert(PERSON.table_id, 1, "a", None)
    talk.out += last.give(FrameBatch(1, 1, 1, frame), 100.0)
    assert last.deadline == 100.0 + TIMEOUT_S
    told = talk.told(110.0)
    assert last.deadline == 110.0 + TIMEOUT_S
    last.tick(110.0 + TIMEOUT_S - 0.001)
    talk.say(told[:20], 150.0)
    last.tick(150.0 + TIMEOUT_S - 0.001)
    with pytest.raises(FilterError, match="failed at transaction 1: it has read and said nothing for 64 s"):
        last.tick(150.0 + TIMEOUT_S)
    talk.say(told[20:], 160.0)
    assert last.deadline is None


def test_a_large_one_that_has_not_come_whole_is_not_waited_for() -> None:
    talk = Talk()
    talk.large([INSERT, PERSON.table_id, 0, [1, "a", None]], is_whole=False)
    assert talk.talk.deadline is None


def test_a_filter_that_reads_nothing_is_given_no_more_than_a_bound() -> None:
    talk = Talk()
    given = 0
    while not talk.talk.is_full:
        talk.talk.give(
            FrameBatch(given + 1, given + 1, 1, talk.writer.insert(PERSON.table_id, 1, "x" * 10_000, None)), 0
        )
        given += 1
    assert given <= WAITING_BYTES_MAX // 10_000 + 1


# Large ones.


def many(count: int, size: int) -> list[Any]:
    return [element for number in range(count) for element in (INSERT, PERSON.table_id, 0, [number, "x" * size, None])]


def end(count: int) -> str:
    return f'{{"end":1,"count":{int(count)}}}\n'


def stream_of(talk: Talk) -> tuple[list[Any], LargeCommit, int]:
    """The changes in the parts that have come out, the commit after them, and its kind."""
    reader = unpacker()
    *parts, large = talk.out
    assert isinstance(large, StreamLarge)
    for number, item in enumerate(parts):
        assert isinstance(item, StreamParts)
        assert item.first_part == sum(one.count for one in parts[:number] if isinstance(one, StreamParts))
        offset = 0
        while offset < len(item.frames):
            head, _, piece = read_part(item.frames, offset)
            assert head.csn == 77
            reader.feed(piece)
            offset += head.frame_bytes
    made = decode(large.frame)
    content = made.content[0]
    assert isinstance(content, LargeCommit)
    return list(reader), content, made.kind


@pytest.mark.parametrize("form", Form)
def test_a_large_one_comes_out_in_parts_while_it_goes_in(form: Form) -> None:
    talk = Talk(form=form)
    changes = many(4000, 1000)
    told = talk.large(changes, is_whole=False)
    talk.say(told)
    assert len(talk.out) >= 10, "parts come out before its end is told"
    assert len(talk.talk._made.changes) < 2 * 256 * 1024  # type: ignore[union-attr]
    talk = Talk(form=form)
    told = talk.large(changes)
    talk.say(told)
    found, commit, kind = stream_of(talk)
    assert found == changes
    assert (kind, commit.token, commit.partitions) == (Kind.RESTATED_LARGE, 77, (1,))
    assert commit.payload_bytes == sum(len(read_part(i.frames)[2]) for i in talk.out if isinstance(i, StreamParts))


def test_a_small_one_may_become_large_and_a_large_one_small_or_nothing() -> None:
    talk = Talk()
    talk.row(1, "a", None)
    row = '{"op":"insert","region":"shop","table":"person","after":{"id":%d,"name":"%s","x":null}}\n'
    talk.say('{"begin":1}\n')
    count = FRAME_BYTES_MAX // 1000 + 100
    for number in range(count):
        talk.say(row % (number, "y" * 1000))
    talk.say(end(count))
    assert len(stream_of(talk)[0]) == 4 * count
    for said, kind in ((row % (1, "a"), Kind.RESTATED), ("", Kind.NULL)):
        talk = Talk()
        talk.large(many(600, 1000))
        talk.say('{"begin":1}\n' + said + end(bool(said)))
        (made,) = talk.transactions()
        assert (made.kind, made.seqno) == (kind, 1)


def test_many_small_changes_become_parts_too() -> None:
    talk = Talk()
    talk.row(1, "a", None)
    count = 15_000
    talk.say('{"begin":1}\n' + ROW * count + end(count))
    assert len(stream_of(talk)[0]) == 4 * count


def test_the_end_of_a_large_one_is_not_told_before_it_was_given() -> None:
    talk = Talk()
    talk.large(many(600, 1000), is_whole=False)
    with pytest.raises(FilterError, match="it ended the transaction before it was given all of it"):
        talk.say('{"begin":1}\n{"end":1,"count":0}\n')


def test_what_is_given_out_of_turn_or_makes_no_sense_is_refused() -> None:
    talk = Talk()
    with pytest.raises(DamagedError, match="does not fit its parts"):
        talk.end_large(1, 5, 1, 10, 0)
    talk = Talk()
    talk.large(many(600, 1000), is_whole=False)
    with pytest.raises(InternalError):
        talk.large(many(600, 1000))
    for odd in ([INSERT, 12345, 0, [1]], [INSERT, PERSON.table_id, 0, [1]], [INSERT, PERSON.table_id, 0, 5]):
        talk = Talk()
        with pytest.raises(DamagedError):
            talk.give(talk.writer.frame(odd))
    talk = Talk()
    with pytest.raises(FormatUnknownError):
        talk.give(talk.writer.frame([9, 0, 0, []]))


# Definitions.


def test_a_definition_that_passes_is_in_force_on_both_sides() -> None:
    talk = Talk()
    wider = talk_table()
    define = [int(Op.SCHEMA), 0, "shop", ["ALTER TABLE person ADD y"], int(Op.DEFINE), wider.table_id, 2, wider.pack()]
    told = talk.give(talk.writer.frame(define))
    told += talk.row(1, "a", None, "new", definition=wider)
    assert lines(told)[1] == {"op": "schema", "region": "shop", "sql": "ALTER TABLE person ADD y"}
    talk.say(told)
    assert [made.kind for made in talk.transactions()] == [Kind.TRANSACTION, Kind.TRANSACTION]


def test_a_definition_that_is_dropped_is_not_in_force_there() -> None:
    talk = Talk()
    wider = talk_table()
    talk.give(talk.writer.frame([int(Op.DEFINE), wider.table_id, 2, wider.pack()]))
    told = talk.row(1, "a", None, "new", definition=wider)
    talk.say('{"begin":1}\n{"end":1,"count":0}\n')
    with pytest.raises(FilterError, match=r"shop.person has no column 'y'"):
        talk.say(told)


def talk_table() -> TableDefinition:
    return table("person", "id INTEGER", "name TEXT", "x", "y", version=2)


@pytest.mark.parametrize(
    "change",
    [
        lambda: [int(Op.COMMENT), 0, 0, ["why"]],
        lambda: [int(Op.SEQUENCE), PERSON.table_id, 0, [None, 7]],
        lambda: [int(Op.REGION), 0, "shop", ["added", bytes(range(16))]],
        lambda: [int(Op.SCHEMA), 0, "shop", ["CREATE INDEX i ON person (x)"]],
    ],
)
@pytest.mark.parametrize("form", Form)
def test_what_is_no_row_passes_as_it_went(form: Form, change: Callable[[], list[Any]]) -> None:
    talk = Talk(form=form)
    frame = talk.writer.frame(change())
    talk.say(talk.give(frame))
    (item,) = talk.out
    assert isinstance(item, FrameBatch)
    assert item.data == frame
