"""Compression of bulk messages: each one alone, so that a cut connection leaves no state behind.

Guarantees: decompressing allocates no more than the size declared, which is at most BATCH_BYTES_MAX; a frame that
declares another size, needs a dictionary or too wide a window, or carries anything after its end is refused unopened.
Leaves to others: what is compressed, and whether both sides agreed on it. Pure.
"""

from __future__ import annotations

from typing import Final

import zstandard

from replicate.errors import ProtocolViolationError
from replicate.limits import BATCH_BYTES_MAX, MIB

LEVEL: Final = 1
"""The quickest of zstd's ordinary levels: a link should not cost more than the disk."""

WINDOW_BYTES_MAX: Final = 8 * MIB
RAW_BYTES_MIN: Final = 256
"""Smaller messages are sent as they are."""


class Compressor:
    """Compresses one message after the other. Not for several threads."""

    def __init__(self) -> None:
        self._zstd = zstandard.ZstdCompressor(level=LEVEL, write_content_size=True, write_checksum=False)

    def compress(self, data: bytes) -> bytes | None:
        """The compressed bytes, or None when that would save less than a twentieth."""
        if len(data) < RAW_BYTES_MIN:
            return None
        packed = self._zstd.compress(data)
        return packed if len(packed) <= len(data) - len(data) // 20 else None


class Decompressor:
    """The reverse. Not for several threads."""

    def __init__(self) -> None:
        self._zstd = zstandard.ZstdDecompressor(max_window_size=WINDOW_BYTES_MAX)

    def decompress(self, data: bytes, raw_bytes: int) -> bytes:
        """Exactly `raw_bytes` bytes. ProtocolViolationError when `data` is not one zstd frame of that size."""
        try:
            # The size that the frame itself declares is what the library allocates: look at it first.
            facts = zstandard.get_frame_parameters(data)
            if not 0 < raw_bytes <= BATCH_BYTES_MAX or facts.content_size != raw_bytes:
                raise ProtocolViolationError(
                    f"a compressed message declares {facts.content_size} bytes and {raw_bytes} were announced",
                    do=f"At most {BATCH_BYTES_MAX} are allowed; the connection is closed",
                )
            if facts.dict_id or facts.window_size > WINDOW_BYTES_MAX:
                raise ProtocolViolationError("a compressed message needs a dictionary or a window that we do not allow")
            raw = self._zstd.decompress(data, max_output_size=raw_bytes, allow_extra_data=False)
        except (zstandard.ZstdError, ValueError, MemoryError) as error:
            raise ProtocolViolationError(f"a compressed message cannot be decompressed: {error}") from None
        if len(raw) != raw_bytes:
            raise ProtocolViolationError(f"a compressed message holds {len(raw)} bytes and {raw_bytes} were announced")
        return raw
