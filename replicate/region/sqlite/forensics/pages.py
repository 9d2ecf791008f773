"""SQLite's pages as bytes: just enough of the documented file format to find a row of ours in a page that was read raw.

Guarantees: whatever the bytes, NotOurPage is the only exception; nothing is followed outside of the page that was
given. Leaves to others: files, the WAL, what the rows mean. Pure.

The format is sqlite.org/fileformat2.html: a B-tree page has a header of 8 bytes (12 where it has children), then an
array of the places of its cells. Overflow pages are never read: what we look for stands in the part of a row that is
always on its own page.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from typing import Final

TABLE_LEAF: Final = 0x0D
TABLE_INNER: Final = 0x05
INDEX_LEAF: Final = 0x0A
_LEAVES: Final = frozenset((TABLE_LEAF, INDEX_LEAF))
_INTEGER_BYTES: Final = {1: 1, 2: 2, 3: 3, 4: 4, 5: 6, 6: 8}
_REAL: Final = 7
_ZERO: Final = 8
_ONE: Final = 9
_FIRST_PAGE_OFFSET: Final = 100
"""Page 1 begins with the database's own header."""

Value = int | bytes | None
"""A column: an integer, the bytes of a text or BLOB as far as they stand on the page, None for NULL (and REAL)."""


class NotOurPage(ValueError):
    """The bytes are no page of the kind that was expected."""


def _varint(page: bytes, at: int) -> tuple[int, int]:
    """The number that begins at `at`, and where it ends."""
    number = 0
    for place in range(at, at + 8):
        byte = page[place]
        number = number << 7 | byte & 0x7F
        if byte < 0x80:
            return number, place + 1
    number = number << 8 | page[at + 8]
    return (number - (1 << 64) if number >> 63 else number), at + 9


def kind_of(page: bytes, *, is_first: bool = False) -> int:
    """The kind of B-tree page: one of the constants above, or any other byte."""
    at = _FIRST_PAGE_OFFSET if is_first else 0
    return page[at] if len(page) > at else 0


def _cells(page: bytes, header_bytes: int, *, is_first: bool) -> tuple[int, ...]:
    at = _FIRST_PAGE_OFFSET if is_first else 0
    (count,) = struct.unpack_from(">H", page, at + 3)
    return struct.unpack_from(f">{count}H", page, at + header_bytes)


def children(page: bytes, *, is_first: bool = False) -> list[tuple[int, int]]:
    """(highest rowid below it, page number) of each child of an inner table page; the last one's rowid is 2^63."""
    if kind_of(page, is_first=is_first) != TABLE_INNER:
        raise NotOurPage("no inner page of a table")
    try:
        found = []
        for at in _cells(page, 12, is_first=is_first):
            found.append((_varint(page, at + 4)[0], int.from_bytes(page[at : at + 4], "big")))
        right = (_FIRST_PAGE_OFFSET if is_first else 0) + 8
        found.append((1 << 63, int.from_bytes(page[right : right + 4], "big")))
    except (struct.error, IndexError) as error:
        raise NotOurPage(str(error)) from None
    return found


def rows(page: bytes, columns: int, *, is_first: bool = False) -> Iterator[tuple[int, list[Value]]]:
    """(rowid, the first `columns` columns) of each row of a leaf page; the rowid of a WITHOUT ROWID row is 0.

    NotOurPage also when a row has fewer columns, or one of them does not begin on the page.
    """
    kind = kind_of(page, is_first=is_first)
    if kind not in _LEAVES:
        raise NotOurPage("no leaf page")
    try:
        for at in _cells(page, 8, is_first=is_first):
            payload_bytes, place = _varint(page, at)
            rowid = 0
            if kind == TABLE_LEAF:
                rowid, place = _varint(page, place)
            yield rowid, _record(page, place, payload_bytes, columns)
    except (struct.error, IndexError) as error:
        raise NotOurPage(str(error)) from None


def _record(page: bytes, begin: int, payload_bytes: int, columns: int) -> list[Value]:
    header_bytes, at = _varint(page, begin)
    body, end = begin + header_bytes, begin + payload_bytes
    header_end = body
    values: list[Value] = []
    while len(values) < columns:
        if at >= header_end:
            raise NotOurPage("a row has fewer columns")
        serial, at = _varint(page, at)
        value: Value = None
        size = _INTEGER_BYTES.get(serial, 0)
        if size:
            value = int.from_bytes(page[body : body + size], "big", signed=True)
        elif serial in (_ZERO, _ONE):
            value = serial - _ZERO
        elif serial == _REAL:
            size = 8
        elif serial >= 12:
            size = (serial - 12) // 2
            value = page[body : min(body + size, end)]
        if size and body >= len(page):
            raise NotOurPage("a column does not begin on this page")
        values.append(value)
        body += size
    return values
