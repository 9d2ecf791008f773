"""Frames of the wire: how messages are cut out of a stream of bytes, whatever pieces it arrives in.

    FRAME = LENGTH(u32 BE) CHECK(u32 BE) TYPE(u8) BODY        LENGTH = bytes of BODY; CHECK = crc32c(TYPE BODY)

Guarantees: what comes out depends on the bytes alone, never on how they were cut; a type that is not expected, or a
length above the limit of its type, is refused from the nine bytes of the head, before anything of the body is kept;
at most one frame and one chunk are held. After an error the reader is poisoned and gives nothing more.
Leaves to others: what a message means, sockets, clocks. Pure.
"""

from __future__ import annotations

import struct
from collections.abc import Mapping
from typing import Final, NamedTuple

from crc32c import crc32c

from replicate.errors import InternalError, ProtocolViolationError

_HEAD: Final = struct.Struct(">IIB")
FRAME_HEAD_BYTES: Final = _HEAD.size
_STRANGERS: Final = (
    (b"HTTP/", "a web server (HTTP)"),
    *((verb + b" ", "a web browser or the like (HTTP)") for verb in (b"GET", b"HEAD", b"POST", b"PUT", b"OPTIONS")),
    (b"PRI * ", "a web browser or the like (HTTP/2)"),
    (b"SSH-", "an SSH server or client"),
    (b"\x15\x03", "something that speaks TLS (a web server with HTTPS, or this side alone lacks tls.loopback)"),
    (b"\x16\x03", "something that speaks TLS (a web browser with HTTPS, or this side alone lacks tls.loopback)"),
)
"""How what is not ours begins, within the nine bytes of a head. An opening of ours begins with 0: it is short."""
_SEEDS: Final = tuple(crc32c(bytes((number,))) for number in range(256))


class WireFrame(NamedTuple):
    """One complete, verified frame."""

    type: int
    body: bytes


def pack_wire_frame(message_type: int, head: bytes, bulk: bytes = b"") -> list[bytes]:
    """One frame around the body `head + bulk`, in pieces: `bulk`, which may be large, is not copied.

    InternalError when the type is no byte or the body longer than 32 bits can say.
    """
    length = len(head) + len(bulk)
    if not 0 <= message_type <= 255 or length > 0xFFFF_FFFF:
        raise InternalError(f"no wire frame: type {message_type}, {length} bytes")
    check = crc32c(head, _SEEDS[message_type])
    if not bulk:
        return [_HEAD.pack(length, check, message_type) + head]
    return [_HEAD.pack(length, crc32c(bulk, check), message_type) + head, bulk]


class FrameReader:
    """Cuts a stream into frames. Feed it with `receive`, then call `next_frame` until it gives None.

    The caller may change `limits` between two frames (more is allowed once the peer has said who it is); it then
    applies to every frame whose head has not been looked at yet.
    """

    def __init__(self, limits: Mapping[int, int]) -> None:
        """`limits`: message type -> most bytes of its body. A type that is not in it is refused."""
        self.limits = limits
        self._buffer = bytearray()
        self._head: tuple[int, int, int] | None = None
        self._error: ProtocolViolationError | None = None
        self._is_opening = True
        self.received_bytes = 0
        """All bytes ever fed in."""

    def receive(self, data: bytes | bytearray | memoryview) -> None:
        """Take bytes as they came. After an error they are dropped."""
        self.received_bytes += len(data)
        if self._error is None:
            self._buffer += data

    @property
    def is_mid_frame(self) -> bool:
        """True when part of a frame is here and its rest is not (valid once `next_frame` gave None)."""
        return self._head is not None or bool(self._buffer)

    @property
    def frame_bytes(self) -> int:
        """The length that the half-received frame has declared for its body; 0 while that is not known."""
        return self._head[0] if self._head is not None else 0

    def next_frame(self) -> WireFrame | None:
        """The next complete frame, or None when more bytes are needed.

        ProtocolViolationError when the head is refused or the check fails; then the same error for ever.
        """
        if self._error is not None:
            raise self._error
        buffer = self._buffer
        if self._head is None:
            if self._is_opening and buffer and buffer[0]:
                self._refuse_stranger()
            if len(buffer) < FRAME_HEAD_BYTES:
                return None
            length, check, message_type = _HEAD.unpack_from(buffer)
            limit = self.limits.get(message_type)
            if limit is None:
                self._fail(f"a message of type {message_type} is unknown, or not allowed yet")
            elif length > limit:
                self._fail(f"a message of type {message_type} with {length} bytes; its limit is {limit}")
            self._head = (length, check, message_type)
            del buffer[:FRAME_HEAD_BYTES]
        length, check, message_type = self._head
        if len(buffer) < length:
            return None
        with memoryview(buffer) as view:
            body = bytes(view[:length])
        if crc32c(body, _SEEDS[message_type]) != check:
            self._fail(f"the check of a message of type {message_type} with {length} bytes does not fit its content")
        del buffer[:length]
        self._head = None
        self._is_opening = False
        return WireFrame(message_type, body)

    def _refuse_stranger(self) -> None:
        """The first bytes of all are no opening of ours: whose are they?"""
        for begin, who in _STRANGERS:
            if self._buffer.startswith(begin):
                self._fail(
                    f"this is not Dualsite Replicate, but {who}",
                    do="Look at what has connected, or at the peer's address and port (replicate -i PRIMARY peer list)",
                )

    def _fail(self, what: str, do: str = "The connection is closed; look for damage on the way, or versions") -> None:
        self._buffer.clear()
        self._head = None
        self._error = ProtocolViolationError(what, do=do)
        raise self._error
