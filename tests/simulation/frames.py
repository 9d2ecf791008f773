"""What oracles read of a journal's frames.

Guarantees: only frames that bear a transaction of their own are taken; parts of large ones are not.
Leaves to others: what a writer calls a transaction, and what is right (the oracles).
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final

from replicate.journal.record import LARGE_BEGINS, STREAM_KINDS, Head, as_written, changes_of, decode_batch
from replicate.journal.walk import walk
from replicate.model.transaction import Op

ROW_OPS: Final = frozenset((Op.INSERT, Op.UPDATE, Op.DELETE))


def transactions_in(data: bytes) -> Iterator[tuple[Head, bytes]]:
    """Head and frame of each."""
    for offset, head in walk(data):
        if head.kind in STREAM_KINDS or head.kind in LARGE_BEGINS:
            yield head, data[offset : offset + head.frame_bytes]


def read(frame: bytes) -> tuple[list[Any], list[Any]]:
    """The body as its writer made it, and its changes of rows, flat."""
    (body,) = decode_batch(as_written(frame) or frame)[2::3]
    changes = changes_of(body)
    rows: list[Any] = []
    for place in range(0, len(changes), 4):
        if changes[place] in ROW_OPS:
            rows += changes[place : place + 4]
    return body, rows
