"""Makes mutated bytes verify again, so that a fuzzer gets past the checksums that would stop it at once.

Guarantees: nothing but checks (and chain hashes, where asked) is changed; bytes that are not even shaped like a frame
come back as they were. Written from the formats as documented, not with the product's own packers.
Leaves to others: what is in the frames.
"""

from __future__ import annotations

from crc32c import crc32c
from xxhash import xxh3_64_intdigest

_PREFIX = 10
_CHAIN = 33
_ORIGIN = 41


def journal_frames(data: bytes, offset: int = 0, *, chains: bool = False, seeds: dict[int, int] | None = None) -> bytes:
    """Frames of the journal from `offset` on: each CHECK, and each CHAIN with `chains`, continued origin by origin."""
    made = bytearray(data)
    known = dict(seeds or {})
    while offset + _ORIGIN + 5 <= len(made) and made[offset] == 0xCE:
        length = int.from_bytes(made[offset + 1 : offset + 5], "big")
        end = offset + _PREFIX + length
        if end > len(made) or length < _ORIGIN + 5 - _PREFIX:
            break
        if chains:
            origin = int.from_bytes(made[offset + _ORIGIN + 1 : offset + _ORIGIN + 5], "big")
            known[origin] = xxh3_64_intdigest(bytes(made[offset + _ORIGIN : end]), known.get(origin, 0))
            made[offset + _CHAIN : offset + _CHAIN + 8] = known[origin].to_bytes(8, "big")
        made[offset + 6 : offset + 10] = crc32c(bytes(made[offset + _PREFIX : end])).to_bytes(4, "big")
        offset = end
    return bytes(made)


def one_frame(data: bytes) -> bytes:
    """One journal frame that fills `data`: LENGTH and CHECK."""
    if len(data) < _PREFIX:
        return data
    made = bytearray(data)
    made[1:5] = (len(data) - _PREFIX).to_bytes(4, "big")
    made[6:10] = crc32c(bytes(made[_PREFIX:])).to_bytes(4, "big")
    return bytes(made)


def wire_frames(data: bytes) -> bytes:
    """Frames of the wire: LENGTH, CHECK, TYPE, BODY; each CHECK."""
    made, offset = bytearray(data), 0
    while offset + 9 <= len(made):
        end = offset + 9 + int.from_bytes(made[offset : offset + 4], "big")
        if end > len(made):
            break
        made[offset + 4 : offset + 8] = crc32c(bytes(made[offset + 8 : end])).to_bytes(4, "big")
        offset = end
    return bytes(made)


def header(data: bytes, size: int) -> bytes:
    """A block of `size` bytes in front, whose last four are the CRC-32C of all before them."""
    if len(data) < size:
        return data
    return data[: size - 4] + crc32c(data[: size - 4]).to_bytes(4, "big") + data[size:]


def seed_records(data: bytes) -> bytes:
    """A seed file: the check of its beginning, and of each record: CHECK, TYPE, LENGTH, POSITION, BODY."""
    made = bytearray(header(data, 16))
    offset = 16
    while offset + 17 <= len(made):
        end = offset + 17 + int.from_bytes(made[offset + 5 : offset + 9], "big")
        if end > len(made):
            break
        made[offset + 9 : offset + 17] = offset.to_bytes(8, "big")
        made[offset : offset + 4] = crc32c(bytes(made[offset + 4 : end])).to_bytes(4, "big")
        offset = end
    return bytes(made)


def pool_records(data: bytes, address: int = 0) -> bytes:
    """Records of a pool's ring (native numbers): check, length, own address."""
    made, offset = bytearray(data), 0
    while offset + 40 <= len(made):
        length = int.from_bytes(made[offset + 4 : offset + 8], "little")
        kind = int.from_bytes(made[offset + 36 : offset + 40], "little")
        end = offset + (40 if kind == 1 else length)
        if length < 40 or end > len(made):
            break
        made[offset + 8 : offset + 16] = (address + offset).to_bytes(8, "little")
        made[offset : offset + 4] = crc32c(bytes(made[offset + 4 : end])).to_bytes(4, "little")
        offset += (length + 7) & ~7
    return bytes(made)
