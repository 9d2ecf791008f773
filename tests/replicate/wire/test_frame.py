"""Frames of the wire: independent of how bytes are cut, refused early, bounded, poisoned after an error."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from replicate.errors import InternalError, ProtocolViolationError
from replicate.wire.frame import FRAME_HEAD_BYTES, FrameReader, pack_wire_frame

LIMITS = {1: 100, 2: 10, 3: 200_000}
FRAMES = st.lists(st.tuples(st.sampled_from([1, 3]), st.binary(max_size=100)), max_size=8)


def packed(message_type: int, body: bytes) -> bytes:
    return b"".join(pack_wire_frame(message_type, body))


def take(reader: FrameReader, *pieces: bytes) -> None:
    for piece in pieces:
        reader.receive(piece)
        drained(reader)


def drained(reader: FrameReader) -> list[tuple[int, bytes]]:
    frames = []
    while (frame := reader.next_frame()) is not None:
        frames.append(tuple(frame))
    return frames


@given(FRAMES, st.data())
def test_cutting_does_not_matter(frames: list[tuple[int, bytes]], data: st.DataObject) -> None:
    stream = b"".join(packed(*frame) for frame in frames)
    cuts = sorted(data.draw(st.lists(st.integers(0, len(stream)), max_size=20)))
    reader = FrameReader(LIMITS)
    found = []
    for begin, end in zip([0, *cuts], [*cuts, len(stream)], strict=True):
        reader.receive(stream[begin:end])
        found += drained(reader)
    assert found == frames
    assert not reader.is_mid_frame
    assert reader.received_bytes == len(stream)


def test_split_at_every_byte() -> None:
    stream = packed(1, b"alpha") + packed(3, b"") + packed(1, b"omega")
    for cut in range(len(stream) + 1):
        reader = FrameReader(LIMITS)
        reader.receive(stream[:cut])
        found = drained(reader)
        reader.receive(memoryview(stream)[cut:])
        assert found + drained(reader) == [(1, b"alpha"), (3, b""), (1, b"omega")]


def test_bulk_is_not_copied() -> None:
    bulk = b"x" * 1000
    pieces = pack_wire_frame(3, b"head", bulk)
    assert pieces[1] is bulk
    reader = FrameReader(LIMITS)
    reader.receive(b"".join(pieces))
    assert drained(reader) == [(3, b"head" + bulk)]


@pytest.mark.parametrize(
    ("begin", "who"),
    [
        (b"HTTP/1.1 400 Bad Request\r\n", "a web server"),
        (b"GET / HTTP/1.1\r\n", "a web browser"),
        (b"OPTIONS * HTTP/1.1\r\n", "a web browser"),
        (b"PRI * HTTP/2.0\r\n", "HTTP/2"),
        (b"SSH-2.0-OpenSSH\r\n", "SSH"),
        (b"\x15\x03\x01\x00\x02\x02\x46", "TLS"),
        (b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc", "TLS"),
    ],
)
def test_what_is_not_ours_at_all_is_named_however_it_is_cut(begin: bytes, who: str) -> None:
    for cut in range(len(begin)):
        reader = FrameReader(LIMITS)
        with pytest.raises(ProtocolViolationError, match=rf"not Dualsite Replicate.*{who}"):
            take(reader, begin[:cut], begin[cut:])


def test_a_stranger_s_words_after_a_frame_are_no_stranger() -> None:
    reader = FrameReader(LIMITS)
    reader.receive(packed(1, b"alpha") + b"HTTP/1.1 400 Bad Request")
    assert reader.next_frame() == (1, b"alpha")
    with pytest.raises(ProtocolViolationError, match="type 32 is unknown"):
        reader.next_frame()


def test_every_flipped_bit_is_refused_or_incomplete() -> None:
    stream = packed(1, b"some content")
    for bit in range(8 * len(stream)):
        bad = bytearray(stream)
        bad[bit // 8] ^= 1 << (bit % 8)
        reader = FrameReader(LIMITS)
        reader.receive(bad)
        try:
            assert drained(reader) == []
        except ProtocolViolationError:
            continue
        assert reader.is_mid_frame
        assert reader.frame_bytes > len(b"some content")


@pytest.mark.parametrize(("head", "words"), [((11, 0, 2), "limit is 10"), ((0, 0, 77), "type 77 is unknown")])
def test_refused_from_the_head(head: tuple[int, int, int], words: str) -> None:
    reader = FrameReader(LIMITS)
    reader.receive(head[0].to_bytes(4, "big") + head[1].to_bytes(4, "big") + bytes([head[2]]))
    with pytest.raises(ProtocolViolationError, match=words):
        reader.next_frame()


def test_poisoned_after_an_error_and_holds_nothing() -> None:
    reader = FrameReader(LIMITS)
    reader.receive(packed(1, b"well") + packed(9, b"ill") + packed(1, b"well"))
    assert reader.next_frame() == (1, b"well")
    for _ in range(3):
        with pytest.raises(ProtocolViolationError, match="type 9"):
            reader.next_frame()
        reader.receive(packed(1, b"well") * 1000)
    assert not reader.is_mid_frame


def test_limits_may_rise_between_two_frames_of_one_chunk() -> None:
    reader = FrameReader({1: 100})
    reader.receive(packed(1, b"hello") + packed(3, b"x" * 1000))
    assert reader.next_frame() == (1, b"hello")
    reader.limits = LIMITS
    assert reader.next_frame() == (3, b"x" * 1000)


def test_half_a_frame_is_told() -> None:
    reader = FrameReader(LIMITS)
    assert not reader.is_mid_frame
    reader.receive(packed(1, b"abc")[: FRAME_HEAD_BYTES - 1])
    assert reader.next_frame() is None
    assert (reader.is_mid_frame, reader.frame_bytes) == (True, 0)
    reader.receive(packed(1, b"abc")[FRAME_HEAD_BYTES - 1 : FRAME_HEAD_BYTES])
    assert reader.next_frame() is None
    assert (reader.is_mid_frame, reader.frame_bytes) == (True, 3)


@pytest.mark.parametrize("message_type", [-1, 256])
def test_no_frame_of_an_impossible_type(message_type: int) -> None:
    with pytest.raises(InternalError):
        pack_wire_frame(message_type, b"")
