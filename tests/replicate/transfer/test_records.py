"""Checked records: whatever byte of a file is changed, it is said where."""

from __future__ import annotations

from enum import IntEnum

import pytest
from hypothesis import given
from hypothesis import strategies as st

from replicate.errors import DamagedError, FormatUnknownError, InternalError
from replicate.transfer.records import HEAD_BYTES, PREFIX_BYTES, RecordFormat


class Letter(IntEnum):
    A = 1
    B = 2


FILE = RecordFormat(b"DSTESTED", "test file", (2, 3), {Letter.A: 10, Letter.B: 0}, "make it", "mend it")


def read(raw: bytes, position: int) -> None:
    FILE.check_body(FILE.read_head(raw[:HEAD_BYTES], position, "x"), raw[HEAD_BYTES:], "x")


@given(st.binary(max_size=10), st.integers(0, 2**40))
def test_a_record_comes_back(body: bytes, position: int) -> None:
    raw = b"".join(FILE.pack_record(Letter.A, position, body[:3], body[3:]))
    head = FILE.read_head(raw[:HEAD_BYTES], position, "x")
    assert (head.kind, head.length) == (Letter.A, len(body))
    FILE.check_body(head, raw[HEAD_BYTES:], "x")


@given(st.binary(min_size=1, max_size=10), st.integers(0, 7), st.data())
def test_any_changed_bit_is_found(body: bytes, bit: int, data: st.DataObject) -> None:
    raw = bytearray(b"".join(FILE.pack_record(Letter.A, 40, body)))
    raw[data.draw(st.integers(0, len(raw) - 1))] ^= 1 << bit
    with pytest.raises(DamagedError) as caught:
        read(bytes(raw), 40)
    assert caught.value.where == "x, offset 40"
    assert caught.value.do == "mend it"


def test_a_record_that_was_moved_is_found() -> None:
    raw = b"".join(FILE.pack_record(Letter.A, 40, b"abc"))
    with pytest.raises(DamagedError, match="no record begins here"):
        FILE.read_head(raw[:HEAD_BYTES], 41, "x")


@pytest.mark.parametrize("number", [0, 3, 255])
def test_a_type_that_nobody_knows_is_refused(number: int) -> None:
    raw = bytearray(FILE.pack_record(Letter.B, 0)[0])
    raw[4] = number
    with pytest.raises(DamagedError):
        FILE.read_head(bytes(raw), 0, "x")


def test_no_record_is_longer_than_its_type_allows() -> None:
    with pytest.raises(InternalError):
        FILE.pack_record(Letter.B, 0, b"a")
    long = RecordFormat(FILE.magic, "other", FILE.versions, {Letter.A: 2**31}, "", "")
    raw = long.pack_record(Letter.A, 0, bytes(11))[0]
    with pytest.raises(DamagedError):  # before the body is read
        FILE.read_head(raw[:HEAD_BYTES], 0, "x")


def test_versions() -> None:
    for version in (2, 3):
        assert FILE.check_prefix(FILE.pack_prefix(version), "x") == version
    with pytest.raises(FormatUnknownError, match="format 4, this release knows up to 3"):
        FILE.check_prefix(FILE.pack_prefix(4), "x")
    with pytest.raises(DamagedError):
        FILE.check_prefix(FILE.pack_prefix(1), "x")


@pytest.mark.parametrize("byte", range(PREFIX_BYTES))
def test_any_changed_byte_of_the_beginning_is_found(byte: int) -> None:
    raw = bytearray(FILE.pack_prefix(2))
    raw[byte] ^= 4
    with pytest.raises((DamagedError, FormatUnknownError)):
        FILE.check_prefix(bytes(raw), "x")


def test_what_is_no_such_file_says_what_to_do() -> None:
    with pytest.raises(DamagedError, match="no test file") as caught:
        FILE.check_prefix(b"", "x")
    assert caught.value.do == "make it"
