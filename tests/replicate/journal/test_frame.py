"""Every layout of a frame's head reads what msgpack has written, and nothing beside it."""

from __future__ import annotations

import struct
from collections.abc import Callable
from typing import Any

import msgpack
import numpy as np
import pytest
from crc32c import crc32c
from hypothesis import given
from hypothesis import strategies as st

from replicate.journal import frame
from replicate.journal.record import Head, pack_elements, pack_frame, read_head
from replicate.model.transaction import Kind

U32 = st.integers(2**16, 2**32 - 1)
U64 = st.integers(2**32, 2**64 - 1)
"""Such as msgpack writes at that width of its own accord."""
ELEMENTS = ("kind", "seqno", "mark", "chain", "origin", "origin_seqno", "csn")
MARKER_OF = {"length": 0xCE, "check": 0xCE, "count": 0xDC, "origin": 0xCE}


@st.composite
def heads(draw: Callable[[Any], Any]) -> tuple[dict[str, int], bytes]:
    """The numbers of a head, and the bytes that msgpack makes of them."""
    payload = draw(st.integers(9, 300))
    found = {"length": draw(U32), "check": draw(U32), "count": 7 + payload, "kind": draw(st.integers(0, 127))}
    found |= {name: draw(U32 if name == "origin" else U64) for name in ELEMENTS[1:]}
    body = msgpack.packb([found[name] for name in ELEMENTS] + [0] * payload)
    return found, msgpack.packb(found["length"]) + msgpack.packb(found["check"]) + body


def with_markers(found: dict[str, int], names: tuple[str, ...]) -> list[int]:
    """Those numbers, each after its marker."""
    made = []
    for name in names:
        made += [found[name]] if name == "kind" else [MARKER_OF.get(name, 0xCF), found[name]]
    return made


WHOLE = tuple(field.name for field in frame.FIELDS)


def test_the_head_is_the_one_that_every_journal_has() -> None:
    assert WHOLE == ("length", "check", "count", *ELEMENTS) == Head._fields
    assert frame.HEAD.format == ">BIBIBHBBQBQBQBIBQBQ"
    assert (frame.FRAME_HEAD_BYTES, frame.FRAME_PREFIX_BYTES, frame.ORIGIN_OFFSET, frame.FIXED_ELEMENTS) == (
        64,
        10,
        41,
        7,
    )


@pytest.mark.parametrize(
    ("layout", "offset", "names"),
    [
        (frame.HEAD, 0, WHOLE),
        (frame.PREFIX, 0, WHOLE[:2]),
        (frame.LOCAL, frame.FRAME_PREFIX_BYTES, WHOLE[2:7]),
        (frame.ORIGIN, frame.ORIGIN_OFFSET, WHOLE[7:]),
        (frame.SHORT, 0, WHOLE[:5]),
    ],
)
@given(made=heads())
def test_a_layout_with_its_markers_reads_what_msgpack_wrote(
    layout: struct.Struct, offset: int, names: tuple[str, ...], made: tuple[dict[str, int], bytes]
) -> None:
    found, data = made
    assert list(layout.unpack_from(data, offset)) == with_markers(found, names)


@pytest.mark.parametrize(
    ("layout", "names"),
    [
        (frame.LENGTH, ("length",)),
        (frame.NUMBERED, ("length", "kind", "seqno")),
        (frame.SKIMMED, ("length", "kind", "seqno", "origin")),
        (frame.RENUMBERED, ("length", "check", "kind", "seqno", "chain", "origin", "origin_seqno")),
    ],
)
@given(made=heads())
def test_a_layout_of_some_numbers_passes_the_others_over(
    layout: struct.Struct, names: tuple[str, ...], made: tuple[dict[str, int], bytes]
) -> None:
    found, data = made
    assert layout.unpack_from(data) == tuple(found[name] for name in names)


def test_a_head_that_is_skimmed_or_renumbered_has_to_be_there_as_a_whole() -> None:
    assert frame.SKIMMED.size == frame.RENUMBERED.size == frame.FRAME_HEAD_BYTES


@given(made=heads())
def test_where_check_and_seqno_are_written_over(made: tuple[dict[str, int], bytes]) -> None:
    found, data = made
    assert struct.unpack_from(">I", data, frame.CHECK_OFFSET) == (found["check"],)
    assert struct.unpack_from(">Q", data, frame.SEQNO_OFFSET) == (found["seqno"],)


@given(made=heads())
def test_the_kind_is_read_with_the_marker_after_it(made: tuple[dict[str, int], bytes]) -> None:
    found, data = made
    joined = [*with_markers(found, WHOLE[:2]), 0xDC, found["kind"] << 8 | 0xCF, found["seqno"]]
    assert list(frame.JOINED.unpack_from(data)) == joined


@given(made=heads())
def test_numpy_reads_the_same(made: tuple[dict[str, int], bytes]) -> None:
    found, data = made
    head = np.frombuffer(data[: frame.FRAME_HEAD_BYTES], np.dtype(list(frame.NUMPY_FIELDS)))[0]
    assert {name: int(head[name]) for name in WHOLE} == found
    assert {name: int(head[name]) for name in frame.MARKERS} == frame.MARKERS


@given(made=heads(), before=st.binary(max_size=9))
def test_a_plausible_head_is_found_where_it_stands(made: tuple[dict[str, int], bytes], before: bytes) -> None:
    _, data = made
    assert len(before) in [match.start() for match in frame.PLAUSIBLE.finditer(before + data)]


@pytest.mark.slow
@pytest.mark.parametrize("at", [0, 5, 10, 13, 14, 23, 32, 41, 46, 55])
@given(made=heads())
def test_no_head_is_plausible_with_a_wrong_byte_between_its_numbers(
    at: int, made: tuple[dict[str, int], bytes]
) -> None:
    _, data = made
    assert not frame.PLAUSIBLE.match(data[:at] + b"\x80" + data[at + 1 :])


@given(seqno=st.integers(0, 2**64 - 1), origin=st.integers(0, 2**32 - 1), csn=st.integers(0, 2**64 - 1))
def test_what_is_packed_is_what_msgpack_unpacks(seqno: int, origin: int, csn: int) -> None:
    data, chain = pack_frame(Kind.TRANSACTION, seqno, 3, 4, origin, 5, csn, *pack_elements(1, 2, 3, "text"))
    reader = msgpack.Unpacker()
    reader.feed(data)
    length, check, body = reader
    assert body == [Kind.TRANSACTION, seqno, 3, chain, origin, 5, csn, 1, 2, 3, "text"]
    assert read_head(data) == Head(length, check, len(body), *body[:7])
    assert len(data) == frame.FRAME_PREFIX_BYTES + length


def test_where_an_origin_stands_is_found_in_a_frame_as_it_is_written() -> None:
    made, _ = pack_frame(Kind.TRANSACTION, 7, 6, 5, 0x1234_5678, 2**40, 9, b"", 0)
    place = frame.place_bytes(0x1234_5678, 2**40)
    assert made.count(place) == 1
    assert made.index(place) == frame.ORIGIN_OFFSET
    assert frame.SEQNO.unpack_from(made, frame.SEQNO_OFFSET) == (7,)
    assert frame.CHECK.unpack_from(made, frame.CHECK_OFFSET) == (crc32c(made[frame.FRAME_PREFIX_BYTES :]),)
