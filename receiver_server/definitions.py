"""The tables that this side has, as they will be when all that is in the receive pool is applied.

Guarantees: what the own journal has in force, and after it each definition that stands in the pool, in their order.
Leaves to others: what they are for (filtering.py). Blocks on the disk: call it in a thread.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from receiver_server.position import NotRecoveredError, find_applied
from replicate.door.recovery.opening import make_chain
from replicate.errors import DamagedError
from replicate.instance.instance import Instance
from replicate.journal.catalogue import catalogue_before, with_frame
from replicate.journal.frame import FRAME_HEAD_BYTES
from replicate.journal.record import UNPACK_ERRORS, read_part, unpacker
from replicate.journal.walk import may_define, walk
from replicate.model.transaction import Catalogue, Op, TableDefinition
from replicate.pool.receive_pool import READ, ReceivedRecord, ReceivePool, RecordKind

_DEFINE: Final = int(Op.DEFINE)


def definitions_here(instance: Instance, pool: ReceivePool) -> Mapping[int, TableDefinition]:
    """By id, of one table the newest last. NotRecoveredError while that cannot be known; what reading raises."""
    first_address = pool.words[READ]
    applied = find_applied(instance)
    if applied is None:
        raise NotRecoveredError("this instance is not seeded", where=str(instance.path))
    known = catalogue_before(make_chain(instance), applied.last_seqno + 1)
    large = _Large()
    for record in pool.peek(first_address):
        if record.kind is RecordKind.CATALOGUE or record.last_seqno <= applied.last_seqno:
            continue
        if record.kind is RecordKind.PARTS:
            large.take(record)
        elif record.kind is RecordKind.LARGE:
            known = large.end(known, instance)
        else:
            known = _with_frames(known, record.data, applied.last_seqno)
    return known.newest().definitions


def _with_frames(known: Catalogue, data: bytes, applied_seqno: int) -> Catalogue:
    view = memoryview(data)
    for begin, head in walk(data):
        end = begin + head.frame_bytes
        if head.seqno > applied_seqno and may_define(data, begin + FRAME_HEAD_BYTES, end):
            known = with_frame(known, view[begin:end])
    return known


class _Large:
    """The definitions of a large transaction whose parts stand in the pool."""

    def __init__(self) -> None:
        self._reader: Any = None
        self._rest: list[Any] = []
        self._made: list[TableDefinition] = []

    def take(self, record: ReceivedRecord) -> None:
        """A record of parts."""
        offset = 0
        while offset < len(record.data):
            head, number, piece = read_part(record.data, offset)
            offset += head.frame_bytes
            if number == 0:
                self._reader, self._rest, self._made = unpacker(), [], []
            if self._reader is None:
                return  # its first parts are with the Update Process already
            try:
                self._reader.feed(piece)
                self._rest.extend(self._reader)
            except UNPACK_ERRORS as error:
                raise DamagedError(f"a part of transaction {record.first_seqno} does not decode: {error}") from error
            whole = len(self._rest) & ~3
            changes, self._rest = self._rest[:whole], self._rest[whole:]
            self._made += [
                TableDefinition.unpack(values)
                for op, values in zip(changes[0::4], changes[3::4], strict=True)
                if op == _DEFINE
            ]

    def end(self, known: Catalogue, instance: Instance) -> Catalogue:
        """Its commit."""
        if self._reader is None:
            raise NotRecoveredError(
                "the Update Process is at a large transaction, and what that defines is not known before its end",
                where=str(instance.path),
            )
        for definition in self._made:
            known = known.with_definition(definition)
        self._reader, self._made = None, []
        return known
