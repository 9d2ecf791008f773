"""Leaving a transaction out by an operator's decision: where it would stop the Update Process, a NULL record takes its
number.

Guarantees: the NULL record carries the transaction's own hash and partitions, so that what follows continues it, and
redo, rollback and a third site meet nothing that is not in the regions; a transaction that defines or changes a table
is never left out: what comes later could not be read.
Leaves to others: what was decided (decision.py), and the batch that comes before (applier.py).
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

from replicate.door.secondary import ApplySession
from replicate.errors import ConflictError, JournalMissingError, NotSupportedError
from replicate.journal.reader import ChainReader, LargeTransaction
from replicate.journal.record import FrameBatch, Head, pack_null, read_head
from replicate.region.sqlite.apply.rows import Conflict
from update_process.decision import Decision, find_decision, name_of, name_of_large, read_decision, write_decision
from update_process.window.columns import BOUND, PAYLOAD


class LeavingOut:
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

    def commit(self, head: Head, partitions: Sequence[int], decision: Decision) -> None:
        """Commit the NULL record in place of the transaction with that head, which carried these partitions; the
        session has begun. Raises as `ApplySession.commit`."""
        named = tuple(sorted(partitions))
        frame = pack_null(head, f"left out: decided by {decision.by} at {decision.at}", named)
        position = self._session.position.advanced(head.seqno, head.origin, head.origin_seqno, head.chain, named)
        batch = FrameBatch(head.seqno, head.seqno, 1, frame)
        self._session.commit(batch, position, head.csn, last=read_head(frame))


def refuse_definitions(changes: Sequence[Any], seqno: int) -> None:
    """NotSupportedError where a transaction that is left out defines or changes a table."""
    if not BOUND.isdisjoint(changes[0::4]):
        raise NotSupportedError(
            f"transaction {seqno} changes the schema, and cannot be left out",
            do="Make the row here as it was expected (replicate help disaster), or seed again: replicate -i INSTANCE "
            "seed --restart",
            seqno=seqno,
        )
