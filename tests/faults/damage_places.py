"""Where an instance is damaged, and how: flips, cuts and swaps at every field of its segments, sidecar and identity.

Guarantees: fields are those of the product's own layouts, so one that is added is met; a frame's head, a segment's
header, both slots of the durable mark and each line of instance.json are cut and swapped at each field, and flipped at
each byte; no mutation leaves the file as it was. Whole frames, headers and files are exchanged, too.
Leaves to others: what must come of it (damage.py).
"""

from __future__ import annotations

import random
import re
import struct
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import combinations, pairwise
from pathlib import Path
from typing import Final

from replicate.errors import ReplicateError
from replicate.journal import durable, header, record
from replicate.journal import frame as layout
from replicate.journal.segment import open_segment
from replicate.limits import SEGMENT_HEADER_BYTES

BODY_STEP: Final = 37
"""After a frame's head every so many bytes are flipped; its head at each byte."""
IDENTITY: Final = "../instance.json"


@dataclass(frozen=True, slots=True)
class Mutation:
    """`kind`: flip (data is the mask), cut (zeros to the end), shorten (the file), swap (data stands there instead); of
    whole files: remove, exchange (data is the other's name), foreign (data is one of another instance).

    `name`: seen from the journal directory; `where`: what is met there, for the figures."""

    kind: str
    name: str
    offset: int
    data: bytes = b""
    where: str = "file"


@dataclass(frozen=True, slots=True)
class Foreign:
    """A segment and the identity of another instance."""

    segment: bytes
    identity: bytes


def fields(layout: struct.Struct) -> list[tuple[int, int]]:
    """(offset, length) of each field of a packed layout."""
    order, parts = layout.format[0], re.findall(r"\d+s|[A-Z]", layout.format)
    assert order == ">", "no padding between the fields"
    sizes = [struct.calcsize(order + part) for part in parts]
    assert sum(sizes) == layout.size, layout.format
    return [(sum(sizes[:at]), size) for at, size in enumerate(sizes)]


FRAME_FIELDS: Final = fields(layout.HEAD)
HEADER_FIELDS: Final = [*fields(header._LAYOUT), (header._CHECK_OFFSET, header._CHECK.size)]
SLOT_FIELDS: Final = fields(durable._SLOT)


def frames_of(path: Path) -> list[tuple[int, int]]:
    """(offset, length) of each frame of a segment, as they stand in the file."""
    with open_segment(path) as segment:
        offset = SEGMENT_HEADER_BYTES
        found = []
        try:
            while True:
                frame = segment.read_frame(offset)
                record.check_frame(frame)
                found.append((offset, len(frame)))
                offset += len(frame)
        except ReplicateError:
            return found


def mutations(instance: Path, foreign: Foreign, dice: random.Random, stride: int) -> Iterator[Mutation]:
    """All of them, every `stride`-th; those of whole files always."""
    journal = instance / "journal"
    segments = sorted(journal.glob("*.journal"))
    names = [path.name for path in segments]
    yield from (Mutation("remove", name, 0) for name in (*names, durable.SIDECAR_NAME, IDENTITY))
    yield from (Mutation("exchange", one, 0, other.encode()) for one, other in combinations(names, 2))
    yield from (Mutation("foreign", name, 0, foreign.segment) for name in names)
    yield Mutation("foreign", IDENTITY, 0, foreign.identity)
    made: list[Mutation] = []
    for path in segments:
        made += of_frames(path, dice)
        made.append(Mutation("shorten", path.name, 0))
    made += of_headers(segments, dice)
    made += of_sidecar(journal / durable.SIDECAR_NAME, dice)
    made += of_identity(instance / "instance.json", foreign.identity, dice)
    yield from made[dice.randrange(stride) :: stride]


def of_frames(path: Path, dice: random.Random) -> Iterator[Mutation]:
    """Each frame of a segment: its bytes, its fields, and its place among the others."""
    whole, name = path.read_bytes(), path.name
    frames = frames_of(path)
    for offset, length in frames:
        inside = [*range(layout.FRAME_HEAD_BYTES), *range(layout.FRAME_HEAD_BYTES, min(length, 2000), BODY_STEP)]
        yield from (Mutation("flip", name, offset + at, _mask(dice), "frame") for at in [*inside, length - 1])
        cuts = [at for at, _ in FRAME_FIELDS] + [5, layout.FRAME_HEAD_BYTES, length - 1]
        yield from (Mutation("cut", name, offset + at, where="frame") for at in cuts)
        yield Mutation("shorten", name, offset + length // 2, where="frame")
    for (one, length), (other, size) in pairwise(frames):
        swapped = whole[other : other + size] + whole[one : one + length]
        yield Mutation("swap", name, one, swapped, "frame")
        yield Mutation("swap", name, other, whole[one : one + length], "frame")  # the one before, once more
        yield from _exchanged(name, whole, one, whole[other:], FRAME_FIELDS, "frame")


def of_headers(segments: list[Path], dice: random.Random) -> Iterator[Mutation]:
    """Each header of a segment: its bytes, its fields, and those of the one before."""
    for path in segments:
        end = header._LAYOUT.size
        at_bytes = [*range(end), end + 100, *range(header._CHECK_OFFSET, SEGMENT_HEADER_BYTES)]
        yield from (Mutation("flip", path.name, at, _mask(dice), "header") for at in at_bytes)
        yield from (Mutation("cut", path.name, at, where="header") for at, _ in HEADER_FIELDS)
        yield from (Mutation("shorten", path.name, at, where="header") for at, _ in HEADER_FIELDS[1:])
    for one, other in pairwise(segments):
        for changed, given in ((one, other), (other, one)):
            whole, data = changed.read_bytes(), given.read_bytes()
            yield from _exchanged(changed.name, whole, 0, data, [*HEADER_FIELDS, (0, SEGMENT_HEADER_BYTES)], "header")


def of_sidecar(path: Path, dice: random.Random) -> Iterator[Mutation]:
    """The durable mark: both slots, and the one in the other's place."""
    whole = path.read_bytes()
    for slot, other in zip(durable._SLOT_OFFSETS, reversed(durable._SLOT_OFFSETS), strict=True):
        yield from (Mutation("flip", path.name, slot + at, _mask(dice), "mark") for at in range(durable._SLOT.size))
        for kind in ("cut", "shorten"):
            yield from (Mutation(kind, path.name, slot + at, where="mark") for at, _ in SLOT_FIELDS)
        pieces = [*SLOT_FIELDS, (0, durable._SLOT.size)]
        yield from _exchanged(path.name, whole, slot, whole[other:], pieces, "mark")


def of_identity(path: Path, foreign: bytes, dice: random.Random) -> Iterator[Mutation]:
    """instance.json: each byte, each line, and the lines of another instance's."""
    whole = path.read_bytes()
    yield from (Mutation("flip", IDENTITY, at, _mask(dice), "identity") for at in range(len(whole)))
    lines, others = whole.splitlines(keepends=True), foreign.splitlines(keepends=True)
    offset = 0
    for line, other in zip(lines, others, strict=True):
        yield from (Mutation(kind, IDENTITY, offset, where="identity") for kind in ("cut", "shorten"))
        if line != other:
            yield Mutation("swap", IDENTITY, offset, other + whole[offset + len(line) :], "identity")
        offset += len(line)


def _exchanged(
    name: str, whole: bytes, offset: int, data: bytes, pieces: list[tuple[int, int]], where: str
) -> Iterator[Mutation]:
    """The pieces of `data` where those of `whole` at `offset` stand, but for those that are equal."""
    for at, size in pieces:
        piece = data[at : at + size]
        if whole[offset + at : offset + at + size] != piece:
            yield Mutation("swap", name, offset + at, piece, where)


def _mask(dice: random.Random) -> bytes:
    return bytes([1 << dice.randrange(8)])
