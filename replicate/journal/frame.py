"""Where each number of a frame's head stands: the one place that says so, from which every way to read it is made.

    FRAME = ce LENGTH(u32) ce CHECK(u32) BODY              LENGTH = bytes of BODY; CHECK = CRC-32C of BODY
    BODY  = dc COUNT(u16) KIND(fixint) cf SEQNO cf MARK cf CHAIN ce ORIGIN(u32) cf ORIGIN_SEQNO cf CSN payload…

All numbers are big-endian, u64 where nothing else is said: every frame is valid msgpack. A marker is the byte by which
msgpack says what follows.

Guarantees: every layout here is made of FIELDS, once, when this is imported; a reader pays nothing for it.
Leaves to others: what the numbers mean (record.py), and how frames follow each other (walk.py). Pure.
"""

from __future__ import annotations

import re
import struct
from typing import Final, NamedTuple

_CODE_OF_MARKER: Final = {0xDC: "H", 0xCE: "I", 0xCF: "Q"}
"""An array's 16-bit count, and numbers of 32 and 64 bits, as `struct` names them."""
_BYTES: Final = {"B": 1, "H": 2, "I": 4, "Q": 8}


class Field(NamedTuple):
    """A number of the head. `code`: its size, as `struct` names it; `marker`: the byte before it, None if it is its own
    (a number below 128)."""

    name: str
    code: str
    marker: int | None


def _marked(name: str, marker: int) -> Field:
    return Field(name, _CODE_OF_MARKER[marker], marker)


FIELDS: Final = (
    _marked("length", 0xCE),
    _marked("check", 0xCE),
    _marked("count", 0xDC),
    Field("kind", "B", None),
    _marked("seqno", 0xCF),
    _marked("mark", 0xCF),
    _marked("chain", 0xCF),
    _marked("origin", 0xCE),
    _marked("origin_seqno", 0xCF),
    _marked("csn", 0xCF),
)
_NAMES: Final = tuple(field.name for field in FIELDS)
_FIRST_OF_BODY: Final = _NAMES.index("count")
_FIRST_OF_ORIGIN: Final = _NAMES.index("origin")


def _codes(fields: tuple[Field, ...]) -> str:
    """As `struct` takes them, markers and all."""
    return "".join(field.code if field.marker is None else f"B{field.code}" for field in fields)


def _only(*names: str) -> struct.Struct:
    """Of the head these numbers, up to the last of them; what stands between is passed over."""
    codes = ""
    for field in FIELDS[: max(map(_NAMES.index, names)) + 1]:
        codes += "" if field.marker is None else "x"
        codes += field.code if field.name in names else f"{_BYTES[field.code]}x"
    return struct.Struct(f">{codes}")


PREFIX: Final = struct.Struct(f">{_codes(FIELDS[:_FIRST_OF_BODY])}")
LOCAL: Final = struct.Struct(f">{_codes(FIELDS[_FIRST_OF_BODY:_FIRST_OF_ORIGIN])}")
ORIGIN: Final = struct.Struct(f">{_codes(FIELDS[_FIRST_OF_ORIGIN:])}")
HEAD: Final = struct.Struct(f">{_codes(FIELDS)}")
"""All of it: PREFIX, LOCAL and ORIGIN, each number with its marker before it."""
SHORT: Final = struct.Struct(f">{_codes(FIELDS[: _NAMES.index('seqno') + 1])}")
"""Up to SEQNO."""
JOINED: Final = struct.Struct(f">{_codes(FIELDS[:_FIRST_OF_BODY])}B2xHQ")
"""The same without COUNT, and KIND and the marker after it as one number."""
LENGTH: Final = _only("length")
CHAIN: Final = _only("chain")
AUDITED: Final = _only("length", "kind", "origin", "csn")
NUMBERED: Final = _only("length", "kind", "seqno")
OF_ORIGIN: Final = _only("length", "seqno", "origin", "origin_seqno")
SKIMMED: Final = struct.Struct(f"{_only('length', 'kind', 'seqno', 'origin').format}18x")
"""LENGTH, KIND, SEQNO and ORIGIN, of a head that is there as a whole."""
RENUMBERED: Final = struct.Struct(
    f"{_only('length', 'check', 'kind', 'seqno', 'chain', 'origin', 'origin_seqno').format}9x"
)
"""What a frame that gets another SEQNO is looked at for, of a head that is there as a whole."""

CHECK: Final = struct.Struct(f">{FIELDS[_NAMES.index('check')].code}")
SEQNO: Final = struct.Struct(f">{FIELDS[_NAMES.index('seqno')].code}")
"""These numbers alone, without their markers, at the offsets that follow."""
CHECK_OFFSET: Final = _only("check").size - _BYTES["I"]
SEQNO_OFFSET: Final = _only("seqno").size - _BYTES["Q"]
"""Where in a frame the bytes of these two begin."""
LABEL_OFFSET: Final = _only("kind").size
"""Where in a frame that begins which a record in its place bears, too: what comes after KIND."""
FRAME_HEAD_BYTES: Final = HEAD.size
FRAME_PREFIX_BYTES: Final = PREFIX.size
"""What stands before the body: LENGTH, CHECK and their markers."""
ORIGIN_OFFSET: Final = PREFIX.size + LOCAL.size
"""Where in a frame the bytes begin that CHAIN covers."""
FIXED_ELEMENTS: Final = len(FIELDS) - _FIRST_OF_BODY - 1
"""Of the array that a body is: those before its payload."""
NUMPY_FIELDS: Final = tuple(
    part
    for field in FIELDS
    for part in (
        *(() if field.marker is None else ((f"{field.name}_marker", "u1"),)),
        (field.name, f">u{_BYTES[field.code]}"),
    )
)
"""HEAD as numpy has it."""
MARKERS: Final = {f"{field.name}_marker": field.marker for field in FIELDS if field.marker is not None}
_PLACE: Final = struct.Struct(f">{_codes(FIELDS[_FIRST_OF_ORIGIN : _NAMES.index('csn')])}")


def place_bytes(origin: int, origin_seqno: int) -> bytes:
    """ORIGIN and ORIGIN_SEQNO with their markers, as they stand in a frame."""
    return _PLACE.pack(MARKERS["origin_marker"], origin, MARKERS["origin_seqno_marker"], origin_seqno)


PLAUSIBLE: Final = re.compile(
    b"(?=%b)"
    % b"".join(
        b"[\x00-\x7f]" if field.marker is None else re.escape(bytes([field.marker])) + b".{%d}" % _BYTES[field.code]
        for field in FIELDS
    ),
    re.DOTALL,
)
"""Where the fixed bytes of a head stand; a lookahead, so that candidates may overlap."""
