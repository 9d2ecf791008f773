"""What a packet's records say comes back as it was, and nothing else is taken for it."""

from __future__ import annotations

import contextlib

import msgpack
import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from replicate.errors import DamagedError
from replicate.transfer.packet.format import (
    AN_EXCERPT,
    BY_VECTOR,
    END_BYTES,
    PACKET,
    PIECE_BYTES,
    VERSION,
    BetweenSuppliers,
    Excerpt,
    PacketRecord,
    PacketSummary,
    SegmentPart,
    Signature,
    pack_end,
    pack_piece,
    unpack_end,
    unpack_piece,
)
from replicate.transfer.records import UNREADABLE
from tests.harness.packets import SUMMARIES, summary

JUNK = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**63), 2**64 - 1) | st.text(max_size=3) | st.binary(max_size=17),
    lambda inner: st.lists(inner, max_size=4),
)
FIELDS = len(msgpack.unpackb(summary(1, 2).pack()))


@given(SUMMARIES)
def test_a_summary_comes_back(one: PacketSummary) -> None:
    assert PacketSummary.unpack(one.pack()) == one


@given(SUMMARIES, st.integers(0, 9), st.integers(0, 2**32 - 1), st.integers(0, 2**64 - 1))
def test_what_suppliers_say_besides_comes_back(one: PacketSummary, met: int, origin: int, number: int) -> None:
    said = BetweenSuppliers(7, (origin, number), (0, 0), (met,) * len(one.targets))
    made = replace(one, suppliers=said)
    assert PacketSummary.unpack(made.pack()) == made
    assert (made.version, one.version) == (BY_VECTOR, VERSION)
    before = one.pack()
    assert made.pack()[3 : len(before)] == before[3:], "but for the number of fields nothing else has moved"


@pytest.mark.parametrize(
    "packed", [None, [], [1, 2, 3, 4, 5], [1, 0, 0, 0, 0, 2**32], [1, 0, -1, 0, 0, 1], "suppliers"]
)
def test_what_no_supplier_says_is_refused(packed: object) -> None:
    fields = msgpack.unpackb(summary(1, 20, number=3).pack())
    with pytest.raises(DamagedError):
        PacketSummary.unpack(msgpack.packb([*fields, packed]))


@given(SUMMARIES, st.sets(st.integers(1, 63), max_size=9), st.text(max_size=9))
def test_what_an_excerpt_says_besides_comes_back(one: PacketSummary, numbers: set[int], told_by: str) -> None:
    said = Excerpt(tuple(sorted(numbers)), told_by) if numbers or told_by else None
    made = replace(one, excerpt=said)
    assert PacketSummary.unpack(made.pack()) == made
    assert made.version == (VERSION if said is None else AN_EXCERPT)
    before = one.pack()
    assert made.pack()[3 : len(before)] == before[3:], "but for the number of fields nothing else has moved"


@pytest.mark.parametrize(
    "packed",
    [
        [None],
        [None, None],
        [None, [[], ""]],
        [None, [[0], ""]],
        [None, [[3, 2], ""]],
        [None, [[2, 2], ""]],
        [None, [[0x7FFF_FFFF], ""]],
        [None, [["2"], ""]],
        [None, [[2], 7]],
        [None, [[2]]],
        [[1, 2, 3, 4, 5, 6], [[2], ""]],
        [None, [[2], ""], 1],
    ],
)
def test_what_no_excerpt_says_is_refused(packed: list[object]) -> None:
    fields = msgpack.unpackb(summary(1, 20, number=3).pack())
    assert PacketSummary.unpack(msgpack.packb([*fields, None, [[2], ""]])).excerpt == Excerpt((2,))
    with pytest.raises(DamagedError):
        PacketSummary.unpack(msgpack.packb([*fields, *packed]))


@given(st.integers(0, FIELDS - 1), JUNK)
def test_a_summary_with_another_field_is_one_or_is_refused(place: int, junk: object) -> None:
    fields = msgpack.unpackb(summary(1, 20, number=3).pack())
    fields[place] = junk
    with contextlib.suppress(DamagedError):  # and nothing else
        made = PacketSummary.unpack(msgpack.packb(fields))
        assert PacketSummary.unpack(made.pack()) == made


@given(st.binary(max_size=64))
def test_bytes_are_no_summary(raw: bytes) -> None:
    with pytest.raises(DamagedError):
        PacketSummary.unpack(raw)


@pytest.mark.parametrize(
    "one",
    [
        summary(9, 8),
        summary(8, 8, inside=5, end_inside=4),
        summary(1, 2, number=2, before=2),
        summary(1, 2, targets=()),
        summary(1, 2, targets=("../x",)),
    ],
    ids=["backwards", "backwards inside", "before itself", "for nobody", "a path for a name"],
)
def test_a_summary_that_makes_no_sense_is_refused(one: PacketSummary) -> None:
    with pytest.raises(DamagedError):
        PacketSummary.unpack(one.pack())


def test_a_receipt_brings_nothing() -> None:
    assert summary(5, 5).is_receipt
    assert not summary(5, 6).is_receipt
    assert not summary(5, 5, end_inside=3).is_receipt


@pytest.mark.parametrize("part", [SegmentPart(1), SegmentPart(7, 100, 0), SegmentPart(7, 100, 99)])
def test_a_segment_comes_back(part: SegmentPart) -> None:
    assert SegmentPart.unpack(part.pack()) == part


@pytest.mark.parametrize("fields", [[0, 0, 0], [1, 0, 1], [1, 5, 5], [1, 2**62, 0], [-1, 0, 0], [1, 5, "0"], [1], 7])
def test_no_other_segment(fields: object) -> None:
    with pytest.raises(UNREADABLE):
        SegmentPart.unpack(msgpack.packb(fields))


def test_pieces_and_the_end() -> None:
    assert unpack_piece(b"".join(pack_piece(5, b"abc"))) == (5, b"abc")
    for raw in (b"", b"".join(pack_piece(0, b"")), b"".join(pack_piece(PIECE_BYTES + 1, b"a"))):
        with pytest.raises(UNREADABLE):
            unpack_piece(raw)
    with pytest.raises(UNREADABLE):
        unpack_piece(b"".join(pack_piece(2, b"abc")))
    assert unpack_end(pack_end(2**40)) == 2**40
    assert sum(map(len, PACKET.pack_record(PacketRecord.END, 9, pack_end(3)))) == END_BYTES


def test_a_signature_comes_back() -> None:
    one = Signature(b"pem", b"value")
    assert Signature.unpack(one.pack()) == one
    for raw in (b"", msgpack.packb([b"pem"]), msgpack.packb(["pem", b""])):
        with pytest.raises(DamagedError):
            Signature.unpack(raw)
