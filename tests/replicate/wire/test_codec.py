"""Messages to bytes and back: equal, checked field by field, bounded whatever comes."""

from __future__ import annotations

import tracemalloc
from functools import reduce

import msgpack
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from replicate.daemon.own_introduction import NAMES_BYTES_MAX
from replicate.errors import InternalError, ProtocolViolationError, ReplicateError
from replicate.limits import BATCH_BYTES_MAX, HELLO_BYTES_MAX, MIB, ROWS_BYTES_MAX, ROWS_MAX
from replicate.model.partitions import ONLY_DEFAULT
from replicate.model.takeover import TAKEOVERS_MAX, Takeover
from replicate.model.vector import SynchronizationVector
from replicate.wire.codec import decode, encode
from replicate.wire.features import FEATURES
from replicate.wire.frame import FRAME_HEAD_BYTES, FrameReader
from replicate.wire.message import (
    LIMITS,
    MESSAGE_TYPES,
    Bye,
    CatalogueChunk,
    CatalogueEnd,
    Check,
    Data,
    Handover,
    HandoverAsk,
    HandoverDone,
    HandoverReady,
    HandoverStep,
    Heartbeat,
    HeartbeatReply,
    Hello,
    HelloReply,
    Introduction,
    Large,
    LostChunk,
    LostOffer,
    LostTaken,
    Message,
    MessageType,
    Parts,
    Refuse,
    Restart,
    SeedAck,
    SeedChunk,
    SeedDone,
    SeedEnd,
    SeedPreparing,
    SeedRequest,
    SeedRequestPartitions,
    SeedRequestRegions,
    SeedStart,
    Start,
    Xoff,
    Xon,
)

U64 = st.integers(0, 2**64 - 1)
U32 = st.integers(0, 2**32 - 1)
SEQNO = st.integers(1, 2**64 - 1)
TEXT = st.text(st.characters(codec="utf-8"), max_size=60)
NAME = st.from_regex(r"[A-Za-z0-9][A-Za-z0-9._-]{0,62}", fullmatch=True)
UUID = st.binary(min_size=16, max_size=16)
ORIGIN = st.integers(1, 2**32 - 1)
VECTOR = st.dictionaries(st.tuples(ORIGIN, U32), SEQNO, max_size=20).map(SynchronizationVector)
CHAINS = st.dictionaries(ORIGIN, st.tuples(U64, U64), max_size=20)
TEXTS = st.lists(TEXT, max_size=4).map(tuple)
BULK = st.binary(min_size=1, max_size=200)
RAW = st.integers(1, BATCH_BYTES_MAX)
WHO = st.builds(Introduction, UUID, UUID, NAME, NAME, U32, TEXT, st.lists(TEXT, max_size=4).map(tuple), U32, U32, U64)
FACTS = st.lists(st.tuples(TEXT.map(lambda t: t[:10]), st.one_of(U64, TEXT.map(lambda t: t[:20]))), max_size=5)

MESSAGES = st.one_of(
    st.builds(Hello, U32, U32, WHO),
    st.builds(HelloReply, U32, U32, WHO),
    st.builds(Restart, SEQNO, VECTOR, CHAINS, U32, U64, st.lists(U32, max_size=9).map(tuple), st.booleans(), U32),
    st.builds(Start, SEQNO, U32, U64, U32),
    st.builds(CatalogueChunk, st.integers(0, MIB), BULK),
    st.builds(CatalogueEnd, U32, U32),
    st.builds(
        lambda first, count, raw, flag, data: Data(first, first + count - 1, count, raw, flag, data),
        st.integers(1, 2**63), st.integers(1, 5000), RAW, st.booleans(), BULK,
    ),
    st.builds(Parts, SEQNO, SEQNO, st.integers(0, 2**31), st.integers(1, 9), RAW, st.booleans(), BULK),
    st.builds(Large, SEQNO, SEQNO, st.integers(1, 2**32 - 1), BULK),
    st.builds(Heartbeat, *[U64] * 6),
    st.builds(HeartbeatReply, *[U64] * 9),
    st.builds(Xoff, TEXT, U64),
    st.builds(Xon, U64),
    st.builds(Refuse, TEXT, TEXT, FACTS.map(tuple)),
    st.builds(Bye, TEXT),
    st.builds(SeedRequest, UUID, UUID, U64),
    st.builds(SeedRequestPartitions, UUID, UUID, U64, st.lists(st.integers(1, 63), min_size=1, max_size=3).map(tuple)),
    st.builds(SeedRequestRegions, UUID, UUID, U64, st.lists(NAME, min_size=1, max_size=3).map(tuple)),
    st.builds(Check, U64, SEQNO, st.booleans(), SEQNO, NAME, TEXT, BULK, BULK, U64, UUID),
    st.builds(SeedPreparing, U64, U64),
    st.builds(SeedStart, UUID, U64, U64, U64),
    st.builds(SeedChunk, st.integers(0, 2**63), BULK),
    st.builds(SeedEnd, U64),
    st.builds(SeedAck, U64),
    st.builds(SeedDone, UUID),
    st.builds(LostOffer, *[U64] * 4),
    st.builds(LostChunk, st.integers(0, 2**63), BULK),
    st.builds(LostTaken, U64, U64),
    st.builds(HandoverAsk, U32, U64, U32, TEXTS),
    st.builds(HandoverReady, U32, U64, U32, VECTOR, CHAINS, TEXTS),
    st.builds(Handover, U64),
    st.builds(HandoverDone, U64, U32, TEXT),
)  # fmt: skip

WHO_ONE = Introduction(b"n" * 16, b"i" * 16, "oslo", "secondary", 1, "0.1", FEATURES, BATCH_BYTES_MAX, 15_000, 0)
EXAMPLES: list[Message] = [
    Hello(1, 1, WHO_ONE),
    HelloReply(1, 1, WHO_ONE),
    Restart(7, SynchronizationVector({(5, 0): 6}), {5: (6, 2**63)}, 3, 99, (1, 2), True, MIB),
    Start(7, 3, 100, 10),
    CatalogueChunk(0, b"catalogue"),
    CatalogueEnd(9, 1),
    Data(7, 8, 2, 10, False, b"0123456789"),
    Parts(9, 99, 0, 2, 10, True, b"0123456"),
    Large(9, 99, 2, b"frame"),
    Heartbeat(1, 2, 3, 4, 5, 6),
    HeartbeatReply(1, 2, 3, 4, 5, 6, 7, 8, 9),
    Xoff("full", 5),
    Xon(6),
    Refuse("GAP", "text", (("expected", 5), ("name", "x"))),
    Bye("stop"),
    SeedRequest(b"r" * 16, b"s" * 16, 7),
    SeedPreparing(3, 9),
    SeedStart(b"s" * 16, 7, 2**40, 99),
    SeedChunk(2**33, b"pages"),
    SeedEnd(2**40),
    SeedAck(2**33),
    SeedDone(b"s" * 16),
    LostOffer(2**63, 2**40, 7, 0),
    LostChunk(2**33, b"lines"),
    LostTaken(2**63, 2**33),
    HandoverAsk(HandoverStep.ENDED, 1, 60_000, ("no way back",)),
    HandoverReady(HandoverStep.PROVE, 41, 0, SynchronizationVector({(7, 0): 41}), {7: (41, 99)}),
    Handover(41),
    HandoverDone(41, 74, "the disk is full"),
    SeedRequestRegions(b"r" * 16, b"s" * 16, 7, ("main", "side")),
    Check(2**60, 3, True, 2**63, "main", "t", b"", b"k" * 2048, 2000, b"d" * 16),
    SeedRequestPartitions(b"r" * 16, b"s" * 16, 7, (2, 63)),
]


def body_of(message: Message) -> bytes:
    return b"".join(encode(message))[FRAME_HEAD_BYTES:]


def round_trip(message: Message) -> Message:
    reader = FrameReader(LIMITS)
    reader.receive(b"".join(encode(message)))
    frame = reader.next_frame()
    assert frame is not None
    assert not reader.is_mid_frame
    return decode(frame.type, frame.body)


def test_there_is_an_example_of_every_type() -> None:
    assert [MESSAGE_TYPES[type(message)] for message in EXAMPLES] == list(MessageType)


@given(MESSAGES)
@settings(max_examples=400)
def test_what_is_encoded_decodes_equal(message: Message) -> None:
    assert round_trip(message) == message


@pytest.mark.parametrize("message", EXAMPLES, ids=lambda m: type(m).__name__)
def test_every_body_is_plain_msgpack(message: Message) -> None:
    assert isinstance(msgpack.unpackb(body_of(message)), list)


@pytest.mark.slow
@pytest.mark.parametrize("message", EXAMPLES, ids=lambda m: type(m).__name__)
def test_every_cut_and_every_flip_of_an_example(message: Message) -> None:
    """Fault 61: a mutated body gives a ProtocolViolationError or another well-formed message; nothing else."""
    message_type = int(MESSAGE_TYPES[type(message)])
    body = body_of(message)
    for cut in range(len(body)):
        with pytest.raises(ProtocolViolationError):
            decode(message_type, body[:cut])
    with pytest.raises(ProtocolViolationError):
        decode(message_type, body + b"\0")
    for index in range(len(body)):
        for value in range(256):
            try:
                decode(message_type, body[:index] + bytes([value]) + body[index + 1 :])
            except ProtocolViolationError:
                pass


@pytest.mark.slow
@given(st.sampled_from(sorted(MessageType)), st.binary(max_size=300))
@settings(max_examples=1500)
def test_random_bytes(message_type: int, body: bytes) -> None:
    try:
        message = decode(message_type, body)
    except ProtocolViolationError:
        return
    assert round_trip(message) == message


ANYTHING = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**63), 2**64 - 1) | st.text(max_size=5) | st.binary(max_size=9),
    lambda inner: st.lists(inner, max_size=12) | st.dictionaries(st.text(max_size=3), inner, max_size=3),
    max_leaves=20,
)  # fmt: skip


@pytest.mark.slow
@given(st.sampled_from(sorted(MessageType)), ANYTHING)
@settings(max_examples=1500)
def test_any_msgpack(message_type: int, content: object) -> None:
    try:
        decode(message_type, msgpack.packb(content))
    except ProtocolViolationError:
        pass


@pytest.mark.slow
@given(st.sampled_from(EXAMPLES), st.data())
@settings(max_examples=800)
def test_wrong_type_in_any_field(message: Message, data: st.DataObject) -> None:
    fields = msgpack.unpackb(body_of(message))
    index = data.draw(st.integers(0, len(fields) - 1))
    fields[index] = data.draw(ANYTHING)
    caught = None
    try:
        decode(int(MESSAGE_TYPES[type(message)]), msgpack.packb(fields))
    except ProtocolViolationError as error:
        caught = error
    assert caught is None or MESSAGE_TYPES[type(message)].name in caught.what


def bombs(size: int) -> dict[str, bytes]:
    return {
        "empty arrays": b"\xdd" + (size - 5).to_bytes(4, "big") + b"\x90" * (size - 5),
        "array that lies": b"\xdd\xff\xff\xff\xff",
        "nested arrays": b"\x91" * (size - 1) + b"\x90",
        "a tree": b"\x9f" * size,
        "binary that lies": b"\x91\xc6\xff\xff\xff\xff",
        "maps": b"\x91" + b"\x80" * (size - 1),
        "a map that lies": b"\x91\xdf\xff\xff\xff\xff",
        "extension": b"\x91\xc7\x05\x01hello",
        "huge timestamp": b"\x91\xc7\x0c\xff" + b"\xff" * 12,
        "not UTF-8": b"\x91\xa4\xff\xfe\xfd\xfc",
    }


@pytest.mark.turns(4)
@pytest.mark.parametrize("message_type", sorted(MessageType), ids=lambda t: t.name)
@pytest.mark.parametrize("bomb", sorted(bombs(8)))
def test_bombs_are_refused_in_bounded_memory(message_type: MessageType, bomb: str) -> None:
    """facts §6: 16 MiB of empty arrays became 1.19 GiB; here the limit of the type bounds it."""
    body = bombs(LIMITS[message_type])[bomb]
    tracemalloc.start()
    try:
        with pytest.raises(ProtocolViolationError):
            decode(message_type, body)
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak < 20 * MIB


def test_unknown_type_is_named() -> None:
    with pytest.raises(ProtocolViolationError, match="type 99 is unknown"):
        decode(99, b"\x90")


def test_hello_of_a_later_release_with_more_fields_is_understood() -> None:
    fields = [*msgpack.unpackb(body_of(Hello(1, 9, WHO_ONE))), "", [], [], [], "new", 5]
    assert decode(MessageType.HELLO, msgpack.packb(fields)) == Hello(1, 9, WHO_ONE)


@pytest.mark.parametrize("name", ["", "a\n", "-a", "../x", "a" * 64, "a b"])
def test_names_are_names(name: str) -> None:
    with pytest.raises(ProtocolViolationError):
        round_trip(Hello(1, 1, replace(WHO_ONE, name=name)))


@pytest.mark.parametrize(
    "message",
    [
        Data(5, 4, 0, 10, False, b"x"),
        Data(5, 6, 3, 10, False, b"x"),
        Data(0, 0, 1, 10, False, b"x"),
        Data(5, 5, 1, BATCH_BYTES_MAX + 1, False, b"x"),
        Data(5, 5, 1, 0, False, b""),
        Parts(0, 1, 0, 1, 5, False, b"x"),
        Parts(5, 0, 0, 1, 5, False, b"x"),
        Parts(5, 1, 0, 0, 5, False, b"x"),
        Parts(5, 1, 2**32 - 1, 1, 5, False, b"x"),
        Large(5, 1, 0, b"x"),
        Large(5, 1, 1, b""),
        CatalogueChunk(0, b""),
        CatalogueChunk(2**32 - 1, b"x"),
        Start(0, 0, 0, 0),
    ],
    ids=repr,
)
def test_numbers_that_contradict_each_other(message: Message) -> None:
    with pytest.raises(ProtocolViolationError):
        round_trip(message)


def test_a_last_word_always_fits() -> None:
    long = "ü" * 5000
    refuse = Refuse(long, long, tuple((long, long) for _ in range(50)))
    found = round_trip(refuse)
    assert isinstance(found, Refuse)
    assert found.text.startswith("üü")
    assert round_trip(Bye("\ud800" + long)) == Bye("?" + "ü" * 511)
    minus = round_trip(Refuse("A", "b", (("difference", -5), ("expected", 2**70))))
    assert minus == Refuse("A", "b", (("difference", "-5"), ("expected", str(2**70))))


def test_what_does_not_fit_its_field_is_our_bug() -> None:
    with pytest.raises(InternalError):
        encode(Data(2**64, 2**64, 1, 1, False, b"x"))
    with pytest.raises(InternalError):
        encode(Xon(2**64))
    with pytest.raises(ReplicateError):
        round_trip(Xon(-1))


TAKEN = Takeover("oslo", b"i" * 16, 2, 77, 10, 9, 2**64 - 1)
FIELDS_1_1 = 12
"""Of a hello of release 1.1: the version, and what it says of itself."""


def test_takeovers_stand_last_and_only_where_there_are_any() -> None:
    """Releases 1.1 pass over what follows the fields that they know."""
    plain = msgpack.unpackb(body_of(Hello(1, 1, WHO_ONE)))
    told = Hello(1, 1, replace(WHO_ONE, takeovers=(TAKEN,) * TAKEOVERS_MAX))
    fields = msgpack.unpackb(body_of(told))
    assert len(plain) == FIELDS_1_1
    assert fields[:FIELDS_1_1] == plain
    assert fields[FIELDS_1_1] == ""  # the filters stand between
    assert len(fields) == FIELDS_1_1 + 2
    assert round_trip(told) == told
    assert len(body_of(told)) <= HELLO_BYTES_MAX


SOME_ROWS = ("main", "t", "a > 3", "side", "u", "b IN ('x', 'é')")


def test_rows_stand_last_and_only_where_there_are_any() -> None:
    plain = msgpack.unpackb(body_of(Hello(1, 1, WHO_ONE)))
    told = HelloReply(1, 2, replace(WHO_ONE, rows=SOME_ROWS))
    fields = msgpack.unpackb(body_of(told))
    assert len(plain) == FIELDS_1_1
    assert fields[FIELDS_1_1:] == ["", [], list(SOME_ROWS)]
    assert round_trip(told) == told
    assert round_trip(HelloReply(1, 2, WHO_ONE)) == HelloReply(1, 2, WHO_ONE)


def test_names_of_partitions_stand_after_all_that() -> None:
    told = Hello(1, 2, replace(WHO_ONE, names=("sales", "", "été")))
    assert msgpack.unpackb(body_of(told))[FIELDS_1_1:] == ["", [], [], ["sales", "", "été"]]
    assert round_trip(told) == told


@pytest.mark.parametrize("names", [7, [1], ["x" * 1025], ["x"] * 63])
def test_what_are_no_names_is_refused(names: object) -> None:
    body = msgpack.packb([*msgpack.unpackb(body_of(Hello(1, 2, WHO_ONE))), "", [], [], names])
    with pytest.raises(ProtocolViolationError):
        decode(int(MessageType.HELLO), body)


def test_as_many_names_as_may_be_fit_a_hello_beside_all_else() -> None:
    known = reduce(lambda now, _: now.created("é" * 12 + str(len(now.names))), range(62), ONLY_DEFAULT.with_limit(63))
    for filters in ("f" * 500, "é" * 500, ""):
        names = known.told(NAMES_BYTES_MAX - len(filters.encode()))
        told = Hello(
            1, 2, replace(WHO_ONE, name="n" * 63, filter=filters, takeovers=(TAKEN,) * TAKEOVERS_MAX, names=names)
        )
        assert len(body_of(told)) <= HELLO_BYTES_MAX
        assert round_trip(told) == told


def test_as_many_rows_as_may_be_fit_a_hello() -> None:
    """Beside a filter of the most characters, and names of the most."""
    size = ROWS_BYTES_MAX // (3 * ROWS_MAX)
    told = replace(WHO_ONE, name="n" * 63, filter="f" * 500, rows=("x" * size,) * (3 * ROWS_MAX))
    assert len(body_of(HelloReply(1, 2, told))) <= HELLO_BYTES_MAX
    assert round_trip(HelloReply(1, 2, told)) == HelloReply(1, 2, told)


@pytest.mark.parametrize("rows", [7, ["main", "t"], [1, 2, 3], ["x"] * (3 * ROWS_MAX + 3), ["main", "t", "x" * 1025]])
def test_what_are_no_rows_is_refused(rows: object) -> None:
    body = msgpack.packb([*msgpack.unpackb(body_of(HelloReply(1, 2, replace(WHO_ONE, rows=SOME_ROWS))))[:-1], rows])
    with pytest.raises(ProtocolViolationError):
        decode(int(MessageType.HELLO_REPLY), body)


@pytest.mark.parametrize(
    "takeovers",
    [
        7,
        [7],
        [[]],
        [["oslo", b"i" * 16, 2, 77, 10, 9]],
        [["oslo", b"i" * 15, 2, 77, 10, 9, 1]],
        [["no name", b"i" * 16, 2, 77, 10, 9, 1]],
        [["oslo", b"i" * 16, 2, 77, 2**64 - 1, 9, 1]],
        [["oslo", b"i" * 16, 2, 2**32, 10, 9, 1]],
        [["oslo", b"i" * 16, 2, 77, 10, 9, 1]] * (TAKEOVERS_MAX + 1),
    ],
)
def test_takeovers_that_make_no_sense_are_refused(takeovers: object) -> None:
    fields = msgpack.unpackb(body_of(Hello(1, 1, WHO_ONE)))
    with pytest.raises(ProtocolViolationError):
        decode(MessageType.HELLO, msgpack.packb([*fields, "", takeovers]))
