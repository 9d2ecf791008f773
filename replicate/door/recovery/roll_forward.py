"""Rolling a region forward from the journal: what was appended but not committed there.

Guarantees: each transaction is one SQLite transaction together with its number, or, on a secondary, whose batches are
long, part of one of many; what the region has already is skipped; whole before-images are checked as the Update Process
checks them, and a mismatch stops with a named error, everything before it done and nothing half done. Leaves to others:
why the work is unfinished. The caller holds the region's lock.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, Final

from msgspec import Struct

from replicate.errors import (
    CopyTooOldError,
    DamagedError,
    InternalError,
    JournalMissingError,
    NotSupportedError,
    RegionDamagedError,
)
from replicate.instance.file import RegionEntry
from replicate.instance.instance import Instance
from replicate.journal.chain import Chain
from replicate.journal.frame import FIXED_ELEMENTS
from replicate.journal.reader import ChainReader, LargeTransaction
from replicate.journal.record import (
    CHANGES_BEGIN,
    Head,
    changes_of,
    decode_batch,
    read_head,
    read_part,
    sections_in,
    unpacker,
)
from replicate.limits import BATCH_BYTES_MAX, PARTITION_MAX, PARTITION_NONE, PARTITION_STREAM, RING_RECORD_BYTES_MAX
from replicate.model.partition_moves import moves_in
from replicate.model.region_record import without_making
from replicate.model.transaction import OF_WRITERS, TABLE_ID_MIN, TELLS_ONLY, Catalogue, Kind, Op, TableDefinition
from replicate.pool import control as word
from replicate.region.protocol import MendedRegion, ScrRow

_BOUND: Final = frozenset((int(Op.DEFINE), int(Op.SCHEMA), int(Op.REGION)))
"""Statements are prepared again after a transaction with one of these: it is redone by itself."""


def note_region(words: memoryview, entry: RegionEntry, region: MendedRegion, have: int) -> None:
    """Say in the control block that the region is done, and holds its transactions up to `have`."""
    # The stored version, not the present one: a foreign change of the schema must still be noticed.
    words[word.REGION_SCHEMA + entry.region_id] = region.stored_version()
    # In this order: the process that looks in between takes the region for unfinished, and waits for our lock.
    words[word.REGION_APPENDED + entry.region_id] = have
    words[word.REGION_DONE + entry.region_id] = have
    words[word.WRITERS_GENERATION] += 1  # what was redone may have named another writer of a partition


def check_reach(instance: Instance, chain: Chain, entry: RegionEntry, region: MendedRegion) -> int:
    """The first number in the journal. JournalMissingError when that is after what the region lacks."""
    have, oldest = region.seqno(), chain.oldest_seqno()
    is_primary = instance.role == "primary"
    if is_primary and not have:
        return oldest  # it is being added: no transaction of before is its own
    if (region.held_below() if is_primary else have + 1) < oldest:
        raise JournalMissingError(
            f"region {entry.name} holds transactions up to {have}, the journal begins with {oldest}: what is between "
            "was pruned",
            where=str(entry.path),
            do="This is an old copy of the region: put the right file, with its -wal, back; or begin again: "
            + instance.way_out,
            last_seqno=have,
            first_seqno=oldest,
        )
    return oldest


class InForce(Struct, frozen=True):
    """What is in force at the journal's end: it knows every table of all frames from `first_seqno`, its newest
    segment's first, on."""

    first_seqno: int
    catalogue: Catalogue


def roll_forward(
    instance: Instance,
    chain: Chain,
    entry: RegionEntry,
    region: MendedRegion,
    target: int,
    own_origin: int,
    newest: Callable[[], InForce],
    *,
    only: Collection[int] | None = None,
) -> int:
    """Apply to one region what the journal has for it above the region's own seqno, up to `target`; its seqno
    then. `newest` is asked only when there is something to apply. `only`: the rows of these partitions, to a copy that
    has no others (CopyTooOldError where a table is put into one); None: of those that are held here."""
    have = region.seqno()
    if have >= target:
        return have
    start = max(have + 1, check_reach(instance, chain, entry, region))
    if instance.role == "primary":  # where nothing was written for long
        start = max(start, region.may_lack_from())
    if start > target:
        return have
    reader = ChainReader(chain, start)
    try:
        end = newest()
        # To know what is in force at a place takes a walk through its segment.
        known = end.catalogue if start >= end.first_seqno else reader.catalogue_at(start)
        redo = _Redo(instance, entry, region, known, own_origin, only)
        while (found := reader.read(BATCH_BYTES_MAX, target)) is not None:
            if isinstance(found, LargeTransaction):
                redo.large(found)
                continue
            redo.frames(found.data)
    finally:
        reader.close()
    return region.seqno()


class _Redo:
    """One region's redo: routes changes to it, and keeps its number as the commit door would have."""

    def __init__(
        self,
        instance: Instance,
        entry: RegionEntry,
        region: MendedRegion,
        known: Catalogue,
        own_origin: int,
        only: Collection[int] | None,
    ) -> None:
        # Of every incarnation: after a rise the frames of the one before may still have to be redone.
        self._own_origins = {
            history.origin.key for history in known.histories if history.instance == instance.content.uuid
        }
        self._own_origins.add(own_origin)
        self._content, self._only = instance.content, only
        self._is_primary, self._is_supplier = instance.role == "primary", instance.is_supplier
        self._name = entry.name
        self._region = region
        self._keeps_records = self._is_primary and not self._is_supplier and instance.content.partitions.in_use
        self._partitions = {key: one.partition for key, one in known.definitions.items()}
        self._tables: dict[int, TableDefinition] = dict(known.definitions)
        self._touched: set[int] = set()
        here = {key: one for key, one in known.definitions.items() if one.region == entry.name}
        self._rows = region.rows(here, entry.name)
        self._rows.passes_over = self._passes_over

    def frames(self, data: bytes) -> None:
        """Redo whole transactions. On a secondary those that only change rows go into one local commit: each by itself
        takes eight times as long, and a batch of the Update Process may have 250,000."""
        offset = 0
        together: list[tuple[bytes, Head, Sequence[Any]]] = []
        for body in decode_batch(data)[2::3]:
            head = read_head(data, offset)
            one = data[offset : offset + head.frame_bytes], head, body
            offset += head.frame_bytes
            begin = CHANGES_BEGIN.get(head.kind)
            is_change = begin is not None and _BOUND.isdisjoint(body[begin::4])
            if is_change and not self._comes_alone(head):
                together.append(one)
                continue
            self._together(together)
            together = []
            self.frame(*one)
        self._together(together)

    def _together(self, frames: Sequence[tuple[bytes, Head, Sequence[Any]]]) -> None:
        if not frames:
            return
        scr: dict[tuple[int, int], ScrRow] = {}
        first, last = frames[0][1], frames[-1][1]
        try:
            with self._local_commit(last.seqno):
                for _, head, body in frames:
                    changes = self._changes(head, body)
                    self._rows.seqno = head.seqno
                    if changes:
                        self._rows.apply_all(changes)
                    scr.update(((row.origin, row.partition), row) for row in self._scr(head))
                self._move_checkpoint(list(scr.values()), first.seqno, last.seqno)
        except (DamagedError, NotSupportedError):
            if len(frames) == 1:
                raise
            for one in frames:  # the one that it is has its error, and what is before it is done
                self.frame(*one)

    def _changes(self, head: Head, body: Sequence[Any]) -> list[Any]:
        """What is this region's of a transaction; `_touched` tells its partitions."""
        self._touched.clear()
        if head.kind == Kind.NULL:
            self._touched.update(body[FIXED_ELEMENTS + 1])
        return self._ours(changes_of(body))

    def frame(self, frame: bytes, head: Head, body: Sequence[Any]) -> None:
        """Redo one whole transaction, if it touches this region (on a secondary every one moves its SCR)."""
        changes = self._changes(head, body)
        moved = self._own_records(head, sections_in(body, self._partitions)) if self._keeps_records else []
        if not changes and self._comes_alone(head) and not (moved and _is_of_no_table(body)):
            return
        record = frame if len(frame) <= RING_RECORD_BYTES_MAX else None
        self._transaction(head, [changes] if changes else [], record, moved)

    def large(self, large: LargeTransaction) -> None:
        """Redo a large transaction part by part."""
        self._touched.clear()
        head = read_head(large.commit_frame)
        moved = self._own_records(head, large.partitions) if self._keeps_records else []
        self._transaction(head, self._runs(large), None, moved)

    def _runs(self, large: LargeTransaction) -> Iterator[list[Any]]:
        stream = unpacker()
        waiting: list[Any] = []
        for part in large.parts(0):
            stream.feed(read_part(part)[2])
            waiting.extend(stream)
            whole = len(waiting) // 4 * 4
            yield self._ours(waiting[:whole])
            del waiting[:whole]
        if waiting:
            raise RegionDamagedError(f"large transaction {large.seqno} ends inside a change", where=self._region.where)

    def _transaction(self, head: Head, runs: Any, record: bytes | None, moved: list[ScrRow]) -> None:
        with self._local_commit(head.seqno):
            for run in runs:
                self._rows.apply_all(run)
            if self._is_primary and head.origin in self._own_origins:
                self._region.write_slot(head.seqno, record)
                if moved:
                    self._region.move_checkpoint(moved, applied_from=0)
            else:
                self._move_checkpoint(self._scr(head), head.seqno, head.seqno)

    def _comes_alone(self, head: Head) -> bool:
        """Whether it is a commit of its own, of the regions that it changes. Transactions of others come in batches and
        move the checkpoint records; on a supplier they stand between ours."""
        return self._is_primary and (not self._is_supplier or head.origin in self._own_origins)

    def _move_checkpoint(self, rows: list[ScrRow], first_seqno: int, last_seqno: int) -> None:
        self._region.move_checkpoint(rows, applied_from=0 if self._is_supplier else first_seqno)
        if self._is_supplier:
            self._region.write_slot(last_seqno, None)

    @contextmanager
    def _local_commit(self, seqno: int) -> Iterator[None]:
        """One SQLite transaction; none when the block, or its COMMIT, raises. `seqno`: what its rows are told of."""
        with self._region.transaction():
            self._rows.begin()
            self._rows.seqno = seqno
            yield
            self._rows.finish()

    def _scr(self, head: Head) -> list[ScrRow]:
        stream = ScrRow(head.origin, PARTITION_STREAM, head.origin_seqno, head.chain, head.csn, head.seqno)
        touched = sorted(self._touched)
        return [stream, *(ScrRow(head.origin, one, head.origin_seqno, 0, 0, head.seqno) for one in touched)]

    def _own_records(self, head: Head, sections: Iterable[int]) -> list[ScrRow]:
        """As the commit moves them in each region that it changes (door/primary.py)."""
        numbers = sorted(set(sections) - {PARTITION_STREAM, PARTITION_NONE})
        return [ScrRow(head.origin, one, head.origin_seqno, head.chain, head.csn, head.seqno) for one in numbers]

    def _passes_over(self, partition: int) -> bool:
        return self._content.passes_over(partition) if self._only is None else partition not in self._only

    def _refuse_moves(self, changes: Sequence[Any]) -> None:
        """CopyTooOldError where a table comes to a copy of some partitions: its rows are not there, or its counter."""
        for definition, before, _ in moves_in(changes):
            if self._passes_over(before) and not self._passes_over(definition.partition):
                raise CopyTooOldError(
                    f"table {definition.table} of region {definition.region} was put into partition "
                    f"{self._content.partitions.name(definition.partition)} after the copy was made",
                    where=self._region.where,
                )

    def _ours(self, flat: Sequence[Any]) -> list[Any]:
        """The changes of this region; those of others only tell which partitions were touched."""
        ours: list[Any] = []
        flat = without_making(flat)  # where the file is, that is made
        if self._only is not None:
            self._refuse_moves(flat)
        for place in range(0, len(flat), 4):
            op, ident, argument, values = flat[place : place + 4]
            if PARTITION_STREAM < ident <= PARTITION_MAX and not self._is_supplier:  # a change of no table
                self._touched.add(ident)
            if op in (Op.SEEN, Op.RESOLVED):
                ours.extend((op, ident, argument, values))
            if op in TELLS_ONLY or (op == Op.REGION and values[0] not in OF_WRITERS):
                continue
            if op in (Op.SCHEMA, Op.REGION):
                region = argument
            else:
                if op == Op.DEFINE:
                    self._tables[ident] = TableDefinition.unpack(values)
                definition = self._tables.get(ident)
                if definition is None:
                    raise InternalError(f"a change of table id {ident!r}, which was not defined before it")
                region = definition.region
                if op != Op.DEFINE and self._passes_over(definition.partition):
                    continue
                self._touched.add(definition.partition)
            if region == self._name:
                ours.extend((op, ident, argument, values))
        return ours


def _is_of_no_table(body: Sequence[Any]) -> bool:
    """A comment, say: it is in each region that is rolled forward over it, since nothing tells in which it was made."""
    return all(ident < TABLE_ID_MIN for ident in changes_of(body)[1::4])
