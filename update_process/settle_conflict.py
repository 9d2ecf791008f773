"""Settling a conflict by an operator's decision: where a transaction would stop the Update Process, a NULL record takes
its number (it is left out), or a RESTATED one that says what its changes did to the rows that were here (overwritten).

Guarantees: either carries the transaction's own hash, so that what follows continues it, and redo, rollback and a third
site meet what is in the regions, and nothing else; a transaction that defines or changes a table is never settled: what
comes later could not be read.
Leaves to others: what was decided (conflict_decision.py), and the batch that comes before (applier.py).
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from msgspec.structs import replace

from replicate.door.secondary import ApplySession
from replicate.errors import ConflictError, JournalMissingError, NotSupportedError
from replicate.journal.reader import ChainReader, LargeTransaction
from replicate.journal.record import FrameBatch, Head, pack_null, read_head
from replicate.journal.retelling import Retelling
from replicate.region.sqlite.apply.rows import Conflict
from update_process.conflict_decision import (
    Decision,
    find_decision,
    name_of,
    name_of_large,
    read_decision,
    write_decision,
)
from update_process.window.columns import BOUND, PAYLOAD


class Settling:
    """For one apply session. `directory`: of conflicts and decisions."""

    def __init__(self, session: ApplySession, directory: Path) -> None:
        self._session = session
        self._directory = directory

    def decided(self, error: Exception, body: Sequence[Any]) -> Decision | None:
        """The decision about a whole transaction, decoded, that has met `error`; None: it stops here."""
        if not BOUND.isdisjoint(body[PAYLOAD::4]):
            return None
        return self._find(error, body[1], name_of(body[4], body[3]))

    def decided_large(self, seqno: int, part: Head) -> Decision | None:
        """The decision about the large transaction of which `part` is a part. Before any row is applied."""
        found = read_decision(self._directory, seqno)
        return found if found is not None and found.transaction == name_of_large(part.origin, part.csn) else None

    def decide_large(self, error: Exception, seqno: int, part: Head) -> bool:
        """Whether a decision about several transactions counts for a large one that has met `error`. It is noted as one
        about that alone: its rows are taken back, and it comes again from its first part."""
        transaction = name_of_large(part.origin, part.csn)
        found = self._find(error, seqno, transaction)
        if found is None:
            return False
        write_decision(self._directory, replace(found, seqno=seqno, transaction=transaction, until=seqno, table=""))
        return True

    def _find(self, error: Exception, seqno: int, transaction: str) -> Decision | None:
        conflict = error.conflict if isinstance(error, ConflictError) else None
        if not isinstance(conflict, Conflict):
            return None
        table = f"{conflict.region}.{conflict.table}"
        return find_decision(self._directory, seqno, transaction, table, self._name_at)

    def _name_at(self, seqno: int) -> str:
        reader = ChainReader(self._session.door.chain, seqno)
        with suppress(JournalMissingError):
            try:
                found = reader.read(1, seqno)
            finally:
                reader.close()
            if found is not None:
                head = read_head(found.commit_frame if isinstance(found, LargeTransaction) else found.data)
                return name_of(head.origin, head.chain)
        return ""

    def retelling(self, origin: int) -> Retelling:
        """For what an overwritten transaction of that origin does."""
        return Retelling(self._session.door.instance.journal_directory, origin)

    def commit(
        self, head: Head, partitions: Sequence[int], decision: Decision, retelling: Retelling | None = None
    ) -> None:
        """Commit what takes the place of the transaction with that head, which carried these partitions; the session
        has begun. `retelling`: what was made of an overwritten one; None: it is left out. Raises as
        `ApplySession.commit`."""
        session, named = self._session, tuple(sorted(partitions))
        said = f"decided by {decision.by} at {decision.at}"
        position = session.position.advanced(head.seqno, head.origin, head.origin_seqno, head.chain, named)
        if retelling is None:
            frame = pack_null(head, f"left out: {said}", named)
        else:
            frame = retelling.frame(head, f"overwritten: {said}", named)
            if retelling.spool is not None:
                session.commit_large(retelling.spool, frame, position, head.csn)
                return
        session.commit(FrameBatch(head.seqno, head.seqno, 1, frame), position, head.csn, last=read_head(frame))


def refuse_definitions(changes: Sequence[Any], seqno: int) -> None:
    """NotSupportedError where a transaction that is settled by a decision defines or changes a table."""
    if not BOUND.isdisjoint(changes[0::4]):
        raise NotSupportedError(
            f"transaction {seqno} changes the schema, and cannot be left out or overwritten",
            do="Make the row here as it was expected (replicate help disaster), or seed again: replicate -i INSTANCE "
            "seed --restart",
            seqno=seqno,
        )
