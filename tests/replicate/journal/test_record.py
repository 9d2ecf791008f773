"""Frames: exact round trips; no change of any byte is ever accepted as other content; junk raises named errors only."""

from __future__ import annotations

import struct
from collections.abc import Callable

import msgpack
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from replicate.errors import FormatUnknownError, FrameDamaged, GapError, InternalError, ReplicateError
from replicate.journal.frame import FRAME_HEAD_BYTES, ORIGIN_OFFSET
from replicate.journal.record import (
    Head,
    catalogue_payload,
    chain_of,
    check_frame,
    decode,
    decode_batch,
    history_payload,
    large_payload,
    pack_frame,
    pack_part,
    read_head,
    read_part,
    unpacker,
)
from replicate.journal.walk import measure, walk
from replicate.limits import FRAME_BYTES_MAX, PART_BYTES
from replicate.model.transaction import (
    Catalogue,
    DefinitionChange,
    History,
    Kind,
    LargeCommit,
    LargePart,
    NullRecord,
    RowChange,
)
from replicate.model.vector import SynchronizationVector
from tests.harness.changed_frames import batch_of, null_payload
from tests.harness.journals import INSTANCE, FrameMaker, define_payload, insert_payload, make_definition

U64 = st.integers(0, 2**64 - 1)
U32 = st.integers(0, 2**32 - 1)
VALUES = st.lists(
    st.none() | st.integers(-(2**63), 2**63 - 1) | st.floats(allow_nan=False) | st.text() | st.binary(), min_size=1
)


@given(U64, U64, U64, U32, U64, U64, VALUES)
def test_round_trip(
    seqno: int, mark: int, previous: int, origin: int, origin_seqno: int, csn: int, values: list[object]
) -> None:
    payload, count = insert_payload(values)
    frame, chain = pack_frame(1, seqno, mark, previous, origin, origin_seqno, csn, payload, count)
    head = Head(len(frame) - 10, read_head(frame).check, 7 + count, 1, seqno, mark, chain, origin, origin_seqno, csn)
    assert check_frame(frame) == read_head(frame) == head
    assert chain_of(frame, previous) == chain
    transaction = decode(frame)
    assert (transaction.seqno, transaction.mark, transaction.chain) == (seqno, mark, chain)
    change = transaction.content[0]
    assert isinstance(change, RowChange)
    assert change.after == tuple(values)
    flat = decode_batch(frame)
    assert flat[0] == head.length
    assert flat[2] == [1, seqno, mark, chain, origin, origin_seqno, csn, 1, 0x8000_0001, 0, values]


def test_the_byte_picture() -> None:
    """The layout of the module's first comment, written down independently."""
    frame, chain = pack_frame(1, 2, 3, 4, 5, 6, 7, b"\xc0", 1)
    body = (
        struct.pack(">BHBBQBQBQBIBQBQ", 0xDC, 8, 1, 0xCF, 2, 0xCF, 3, 0xCF, chain, 0xCE, 5, 0xCF, 6, 0xCF, 7) + b"\xc0"
    )
    assert frame[10:] == body
    assert msgpack.unpackb(frame[10:]) == [1, 2, 3, chain, 5, 6, 7, None]
    assert frame[ORIGIN_OFFSET] == 0xCE
    assert len(body) == 54 + 1


def test_every_flipped_bit_is_noticed() -> None:
    frame = FrameMaker(next_seqno=2**40, origin_seqno=9, mark=2**39).transaction("x" * 20)
    for position in range(len(frame)):
        for bit in range(8):
            bad = bytearray(frame)
            bad[position] ^= 1 << bit
            with pytest.raises(ReplicateError):
                check_frame(bytes(bad))
            with pytest.raises(ReplicateError):
                decode(bytes(bad))


def test_every_cut_is_noticed() -> None:
    frame = FrameMaker().transaction("hello")
    for length in range(len(frame)):
        with pytest.raises(FrameDamaged):
            check_frame(frame[:length])
        with pytest.raises(FrameDamaged):
            check_frame(frame, 0, length)
    with pytest.raises(FrameDamaged):
        decode(frame + b"\0")


@given(st.data())
def test_swapped_pieces_are_noticed(data: st.DataObject) -> None:
    maker = FrameMaker()
    one, other = maker.transaction("a" * 30), maker.transaction("b" * 30)
    start = data.draw(st.integers(0, len(one) - 1))
    end = data.draw(st.integers(start + 1, len(one)))
    mixed = one[:start] + other[start:end] + one[end:]
    if mixed not in (one, other):
        with pytest.raises(ReplicateError):
            check_frame(mixed)


@given(st.binary(max_size=300))
def test_random_bytes_raise_named_errors_only(data: bytes) -> None:
    for reader in (check_frame, read_head, decode, decode_batch, measure, read_part):
        try:
            reader(data)
        except ReplicateError:
            pass
    for call in (lambda: list(walk(data)),):
        try:
            call()
        except ReplicateError:
            pass


def _resealed(body: bytes) -> bytes:
    """A frame whose CHECK is right whatever the body is: what a hostile or newer writer could send."""
    from crc32c import crc32c

    return struct.pack(">BIBI", 0xCE, len(body), 0xCE, crc32c(body)) + body


@pytest.mark.parametrize("tuples", [False, True])
@pytest.mark.parametrize("place", [0, 1, 2])
@pytest.mark.parametrize(
    "wrong",
    [
        lambda frame: struct.pack(">Bf", 0xCA, len(frame) - 10) + frame[5:],  # LENGTH: a float, and right
        lambda frame: b"\xce" + (len(frame) - 9).to_bytes(4, "big") + frame[5:],
        lambda frame: frame[:-1],
        lambda frame: frame + b"\xc0",
        lambda frame: frame + b"\xc0" * 3,
        lambda frame: struct.pack(">BIBI", 0xCE, 9, 0xCE, 0) + b"\xa8" + bytes(8),  # a text in place of a body
        lambda frame: struct.pack(">BIBI", 0xCE, 3 + 8, 0xCE, 0) + b"\xc7\x08\x01" + bytes(8),  # an extension
        lambda frame: struct.pack(">BIBI", 0xCE, 3 + 6, 0xCE, 0) + b"\xdc\0\x06" + bytes(6),  # one element too few
    ],
)
def test_a_batch_with_one_thing_that_is_no_frame_is_refused(
    wrong: Callable[[bytes], bytes], place: int, tuples: bool
) -> None:
    maker = FrameMaker()
    made = [maker.transaction("x" * 20) for _ in range(3)]
    assert decode_batch(b"".join(made), tuples=tuples)[0::3] == [len(frame) - 10 for frame in made]
    made[place] = wrong(made[place])
    for count in (0, 3):
        with pytest.raises(FrameDamaged):
            decode_batch(b"".join(made), tuples=tuples, count=count)


@pytest.mark.parametrize("tuples", [False, True])
def test_a_batch_whose_frames_are_counted_decodes_as_any_and_a_wrong_count_is_refused(tuples: bool) -> None:
    maker = FrameMaker()
    data = b"".join(maker.transaction("x" * n) for n in range(40))
    expected = decode_batch(data, tuples=tuples)
    assert list(decode_batch(data, tuples=tuples, count=40)) == expected
    assert list(decode_batch(data, tuples=tuples, count=10**6)) == expected  # more than an array may have: not used
    for count in (1, 39, 41, 20_000):
        with pytest.raises(FrameDamaged):
            decode_batch(data, tuples=tuples, count=count)
    with pytest.raises(FrameDamaged):
        decode_batch(data[:-1], tuples=tuples, count=40)
    with pytest.raises(FrameDamaged):
        decode_batch(data + b"\0", tuples=tuples, count=40)


def test_a_length_that_is_a_truth_is_refused_even_when_the_sum_is_right() -> None:
    maker = FrameMaker()
    one, two = maker.transaction("x" * 20), maker.transaction("x" * 20)
    one = b"\xc3" + one[5:]
    two = struct.pack(">BI", 0xCE, len(one) + len(two) - 20 - 1) + two[5:]
    with pytest.raises(FrameDamaged):
        decode_batch(one + two)


@settings(max_examples=300)
@given(st.integers(0, 400), st.binary(max_size=8), st.integers(1, 6))
def test_mutated_bodies_with_a_right_check_raise_named_errors_only(position: int, junk: bytes, kind: int) -> None:
    maker = FrameMaker()
    body = bytearray(maker.transaction("x" * 300)[10:])
    body[3] = kind
    at = position % len(body)
    body[at : at + len(junk)] = junk
    for data in (_resealed(bytes(body)), _resealed(bytes(body)) * 2):
        for reader in (decode, decode_batch, read_part, batch_of, check_frame):
            try:
                reader(data)
            except ReplicateError:
                pass


@pytest.mark.parametrize(
    "payload",
    [
        b"\x81\xc0\xc0",  # a map
        b"\xc7\x00\x05",  # an extension that we do not know
        b"\xd6\xff\xff\xff\xff\xff",  # a timestamp
        b"\xdd\xff\xff\xff\xff",  # an array of 2^32 elements
        b"\xc6\xff\xff\xff\xff",  # a blob of 4 GiB
        b"\x91" * 2000 + b"\xc0",  # nested too deep
        b"\xa1\xff",  # text that is not UTF-8
        b"\xc1",  # never used by msgpack
    ],
)
def test_hostile_payloads_are_refused(payload: bytes) -> None:
    frame, _ = pack_frame(1, 1, 0, 0, 7, 1, 0, b"\x01\xce\x80\0\0\1\0" + b"\x91" + payload, 4)
    with pytest.raises(ReplicateError):
        decode(frame)


def test_a_kind_of_a_later_release_is_named() -> None:
    frame, _ = pack_frame(77, 1, 0, 0, 7, 1, 0, b"\xc0", 1)
    for reader in (read_head, check_frame, decode, measure):
        with pytest.raises(FormatUnknownError, match="kind 77"):
            reader(frame)


def test_other_kinds_decode() -> None:
    history = History(INSTANCE, "alpha", 3, 9, SynchronizationVector({(9, 0): 5}), "promoted", 44)
    definition = make_definition()
    catalogue = Catalogue().with_definition(definition).with_history(history)
    cases = [
        (Kind.HISTORY, history_payload(history), history),
        (Kind.NULL, null_payload("void", (1, 2)), NullRecord("void", (1, 2))),
        (
            Kind.LARGE,
            large_payload(2**63, 3, 700_000, 2**64 - 1, (1,)),
            LargeCommit(2**63, 3, 700_000, 2**64 - 1, (1,)),
        ),
        (Kind.CATALOGUE, catalogue_payload(catalogue), catalogue),
        (Kind.TRANSACTION, define_payload(definition), DefinitionChange(definition)),
    ]
    for kind, payload, content in cases:
        frame, _ = pack_frame(kind, 44, 0, 0, 7, 1, 0, *payload)
        assert decode(frame).content == (content,)


def test_parts() -> None:
    one, chain = pack_part(7, 99, 0, b"x" * PART_BYTES, 0)
    two, after = pack_part(7, 99, 1, b"tail", chain)
    assert len(one) <= FRAME_BYTES_MAX
    head, number, data = read_part(one + two, len(one))
    assert (head.csn, head.origin, head.seqno, number, bytes(data)) == (99, 7, 0, 1, b"tail")
    assert chain_of(two, chain) == after == head.chain
    assert decode(two).content == (LargePart(1, b"tail"),)
    with pytest.raises(FrameDamaged):
        read_part(FrameMaker().transaction())


def test_what_does_not_fit_is_our_bug() -> None:
    with pytest.raises(InternalError):
        pack_frame(1, 2**64, 0, 0, 1, 1, 1, b"", 0)
    with pytest.raises(InternalError):
        pack_frame(1, 1, 0, 0, 1, 1, 1, b"x" * FRAME_BYTES_MAX, 1)
    with pytest.raises(InternalError):
        pack_frame(1, 1, 0, 0, 1, 1, 1, b"", 65_536)
    frame, _ = pack_frame(Kind.CATALOGUE, 1, 0, 0, 1, 1, 1, b"\xc6" + struct.pack(">I", 2**20) + bytes(2**20), 1)
    assert check_frame(frame).frame_bytes == len(frame)


# Batches.


@given(st.integers(1, 40), st.integers(0, 200))
def test_a_batch_is_walked_frame_by_frame(count: int, size: int) -> None:
    data = FrameMaker(next_seqno=100).transactions(count, "x" * size)
    assert [head.seqno for _, head in walk(data)] == list(range(100, 100 + count))
    assert measure(data, verify=True) == (100, 99 + count, count, len(data))


@given(st.integers(0, 3000))
def test_a_cut_batch_is_refused(length: int) -> None:
    data = FrameMaker().transactions(10, "x" * 100)
    piece = data[: length % len(data)]
    if len(piece) in {offset for offset, _ in walk(data)}:
        return
    for reader in (decode_batch, lambda piece: list(walk(piece))):
        with pytest.raises(FrameDamaged):
            reader(piece)


def test_measure_stops_before_what_it_should_not_take() -> None:
    maker = FrameMaker()
    data = maker.transactions(10)
    size = len(data) // 10
    assert measure(data, last_seqno=4) == (1, 4, 4, 4 * size)
    assert measure(data, last_seqno=0) == (0, 0, 0, 0)
    assert measure(data, max_bytes=3 * size + 1).frames == 3
    assert measure(data, max_bytes=1).frames == 1
    assert measure(data + bytes(500)).end == len(data)
    assert measure(data[:-1]).frames == 9
    assert measure(bytes(500)).frames == 0
    assert measure(data, 2 * size, next_seqno=3).first_seqno == 3
    with pytest.raises(GapError) as caught:
        measure(data, next_seqno=5)
    assert caught.value.facts == {"offset": 0, "seqno": 1, "expected": 5}
    without_fifth = data[: 4 * size] + data[5 * size :]
    assert measure(without_fifth) == (1, 4, 4, 4 * size)  # the good ones first
    with pytest.raises(GapError):
        measure(without_fifth, 4 * size, next_seqno=5)


def test_measure_gives_good_frames_before_a_bad_one() -> None:
    data = bytearray(FrameMaker().transactions(3, "x" * 50))
    size = len(data) // 3
    data[2 * size + FRAME_HEAD_BYTES + 3] ^= 1
    assert measure(data).last_seqno == 2
    assert measure(data, verify=False).last_seqno == 3
    with pytest.raises(FrameDamaged):
        measure(data, 2 * size)


def test_the_change_stream_unpacks_across_slices() -> None:
    stream = b"".join(insert_payload([number, "x" * number])[0] for number in range(100))
    reader = unpacker()
    flat: list[object] = []
    for start in range(0, len(stream), 7):
        reader.feed(stream[start : start + 7])
        flat.extend(reader)
    assert flat[3::4] == [[number, "x" * number] for number in range(100)]
