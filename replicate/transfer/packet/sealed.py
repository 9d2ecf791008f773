"""A packet that only its target reads: the whole file sealed, in records that say for whom.

    FILE      = records (../records.py): RECIPIENT, CIPHERTEXT, …, END

Guarantees: those of records.py and of security/sealing.py; what is opened stays in memory, and is on no disk before it
is unpacked below the target's own directory.
Refuses to know: what is in it.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from enum import IntEnum
from typing import Final

import msgpack

from replicate.errors import UsageError
from replicate.limits import KIB, MIB
from replicate.system.files import write_all
from replicate.system.os_errors import io_error
from replicate.transfer.records import HEAD_BYTES, PREFIX_BYTES, UNREADABLE, RecordFormat, need

VERSION: Final = 1
PLAIN_BYTES_MAX: Final = 1024 * MIB
"""A packet is sealed and opened as a whole, in memory."""
CHUNK_BYTES: Final = 1 * MIB
_OVERHEAD_BYTES: Final = 1 * KIB

Read = Callable[[int, int], bytes]
"""Gives so many bytes from an offset."""


class SealedRecord(IntEnum):
    """The type byte of a record. Never re-used, never re-numbered."""

    RECIPIENT = 1
    CIPHERTEXT = 2
    END = 3


SEALED: Final = RecordFormat(
    b"DSREPSLD",
    "sealed packet",
    (VERSION, VERSION),
    {SealedRecord.RECIPIENT: 1 * KIB, SealedRecord.CIPHERTEXT: CHUNK_BYTES, SealedRecord.END: 16},
    make_do="Make one: replicate -i SENDER packet export --to TARGET --encrypt",
    damaged_do="Copy it again; if it is damaged where it was made, there: replicate -i SENDER packet recover",
)


def pack_sealed(ciphertext: bytes, target: str) -> Iterator[bytes]:
    """The whole file, in pieces."""
    position = 0

    def packed(kind: SealedRecord, *body: bytes) -> bytes:
        nonlocal position
        data = b"".join(SEALED.pack_record(kind, position, *body))
        position += len(data)
        return data

    prefix = SEALED.pack_prefix(VERSION)
    position = len(prefix)
    yield prefix
    yield packed(SealedRecord.RECIPIENT, msgpack.packb([target]))
    for at in range(0, len(ciphertext), CHUNK_BYTES):
        yield packed(SealedRecord.CIPHERTEXT, ciphertext[at : at + CHUNK_BYTES])
    yield packed(SealedRecord.END, msgpack.packb(len(ciphertext)))


def is_sealed(prefix: bytes) -> bool:
    """Whether a file that begins so is a sealed packet."""
    return prefix.startswith(SEALED.magic)


def unpack_sealed(read: Read, size: int, where: str) -> tuple[str, bytes]:
    """For whom it is, and what is sealed. DamagedError, FormatUnknownError; UsageError for one that is too large."""
    if size > PLAIN_BYTES_MAX + PLAIN_BYTES_MAX // 64 + _OVERHEAD_BYTES:
        raise UsageError(f"a sealed packet of {size} bytes is too large", where=where, do="Have smaller ones made")
    SEALED.check_prefix(read(0, min(PREFIX_BYTES, size)), where)
    position, target, chunks, end = PREFIX_BYTES, "", [], -1
    while position < size:
        if position + HEAD_BYTES > size:
            raise SEALED.damaged("the packet was cut", position, where)
        head = SEALED.read_head(read(position, HEAD_BYTES), position, where)
        body = read(position + HEAD_BYTES, head.length)
        SEALED.check_body(head, body, where)
        try:
            need((head.kind is SealedRecord.RECIPIENT) == (position == PREFIX_BYTES) and end < 0, "another order")
            if head.kind is SealedRecord.RECIPIENT:
                (target,) = msgpack.unpackb(body)
                need(type(target) is str, "a name")
            elif head.kind is SealedRecord.END:
                end = msgpack.unpackb(body)
            else:
                chunks.append(body)
        except UNREADABLE as error:
            raise SEALED.damaged(f"a record {head.kind.name} makes no sense: {error}", position, where) from error
        position += HEAD_BYTES + head.length
    if end != sum(map(len, chunks)):
        raise SEALED.damaged("the packet was cut", position, where)
    return target, b"".join(chunks)


def in_memory(plain: bytes, where: str) -> int:
    """A descriptor of a file with these bytes that is on no disk. `where`: the sealed file. ExhaustedError,
    DiskFullError or JournalIOError where the machine has no room."""
    fd = -1
    try:
        fd = os.memfd_create("packet", os.MFD_CLOEXEC)
        write_all(fd, plain, 0)
    except OSError as error:
        if fd >= 0:
            os.close(fd)
        raise io_error(error, "an opened packet does not fit the memory", where) from error
    return fd
