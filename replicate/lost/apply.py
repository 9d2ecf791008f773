"""Putting lost transactions back on a primary: each through the ordinary commit path, once, or reported.

Guarantees: a transaction that was applied is never applied again, whatever is killed and repeated: its first change is
a comment that names it, in the same journal frame as its rows, and the journal is searched for that where the file of
what is settled may be older; nor is one that this history has had all along. The whole before-image of every row must
match, or the transaction is a conflict and nothing of it stands, unless it was asked for otherwise. A transaction over
several regions is tried in all of them before the first one commits; it is committed in one after the other.
Leaves to others: where the rows meet the database (region/sqlite/apply/put_back.py), reading the file (read.py), the
command line.
"""

from __future__ import annotations

import shlex
import uuid
from collections.abc import Collection, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any, Final, Literal

from msgspec import Struct, field

from replicate.door.door import Door
from replicate.door.primary import RegionSession
from replicate.door.snapshot import door_of
from replicate.errors import (
    ConflictError,
    JournalMissingError,
    NotPrimaryError,
    NotSupportedError,
    UsageError,
    WrongNetworkError,
)
from replicate.instance.instance import Instance
from replicate.journal.chain import Chain
from replicate.journal.frame import FIXED_ELEMENTS
from replicate.journal.reader import ChainReader, LargeTransaction
from replicate.journal.record import changes_of, decode_batch, pack_elements, read_part, unpacker
from replicate.journal.sections import SECTIONS_ROOM
from replicate.journal.spool import Spool
from replicate.limits import BATCH_BYTES_MAX, FRAME_CHANGES_MAX, MIB, PARTITION_DEFAULT
from replicate.lost.history import InHistory, find_in_history
from replicate.lost.read import LostChange, LostReader, LostTransaction
from replicate.lost.settled import APPLIED, IN_HISTORY, OVERWRITTEN, SKIPPED, Settled
from replicate.model.transaction import Kind, Op, TableDefinition
from replicate.pool import control as word
from replicate.region.protocol import CapturedChanges
from replicate.region.sqlite.apply.put_back import PutBack
from replicate.region.sqlite.apply.rows import Conflict
from replicate.region.sqlite.schema import recorded_definitions
from replicate.system.failpoint import hit
from replicate.system.locks import FileLock

OnConflict = Literal["stop", "skip", "overwrite"]
FRAMED_BYTES_MAX: Final = MIB // 2
"""Changes of more bytes, or more than fit a frame, go through a spool."""
_COMMENT: Final = "lost "
_NOTHING_TO_DO: Final = (Op.COMMENT.name, Op.SEQUENCE.name)
"""Counters rise with the rows: they are not set back to what they were on another site."""


class LostConflict(Struct, frozen=True):
    """A change that does not fit the row here. `kind`: "id taken", "row missing", "row differs", "constraint", "no
    parent", "table", or of a whole transaction "pruned": whether it is here already cannot be told. The images are
    whole; `found` is the row here."""

    seqno: int
    region: str
    table: str
    what: str
    kind: str
    reason: str
    columns: tuple[str, ...] = ()
    expected: tuple[Any, ...] | None = None
    found: tuple[Any, ...] | None = None
    after: tuple[Any, ...] | None = None


class LostApplied(Struct):
    """Numbers are those in the file. `as_seqnos`: what each is in the journal here. `in_history`: those that were
    here all along. `before`: how many were settled already. `left`: how many are not settled now. `stopped_at`: the one
    that stopped it, 0 when none did. Of a dry run: what would be so. What comes after the one at which it would stop
    is tried all the same, and is as it would be if that one was skipped."""

    file: Path
    dry_run: bool
    applied: list[int] = field(default_factory=list)
    overwritten: list[int] = field(default_factory=list)
    skipped: list[int] = field(default_factory=list)
    in_history: list[int] = field(default_factory=list)
    as_seqnos: dict[int, list[int]] = field(default_factory=dict)
    before: int = 0
    left: int = 0
    stopped_at: int = 0
    conflicts: list[LostConflict] = field(default_factory=list)


def apply_lost(
    instance: Instance,
    path: Path,
    *,
    only: Collection[int] = (),
    on_conflict: OnConflict = "stop",
    dry_run: bool = False,
    timeout_s: float,
) -> LostApplied:
    """Apply the transactions of the file, all or those with the numbers `only`, in their order.

    `dry_run`: everything is tried, every conflict reported, nothing kept. Raises NotPrimaryError, WrongNetworkError,
    UsageError (one of `only` is not there),
    NotSupportedError (a schema change is among them), what reading the file and `Settled.of` raise, and what a commit
    raises: what was applied before stays, and is known. BusyError: another run lasts longer than `timeout_s`.
    """
    if instance.role != "primary":
        raise NotPrimaryError(
            f"instance {instance.name} is secondary: it takes transactions from its primary only",
            where=str(instance.path),
            do="Apply them on the primary",
        )
    with LostReader(path) as lost, door_of(instance) as door, ExitStack() as stack:
        one_run = FileLock(instance.locks_directory / "lost-apply.lock")  # two would apply the same ones
        stack.callback(one_run.close)
        one_run.acquire(timeout_s, what="the run that applies lost transactions")
        network = str(uuid.UUID(bytes=instance.content.network))
        if lost.head["network"] != network:
            raise WrongNetworkError(
                f"the file is of network {lost.head['network']}, {instance.name} belongs to {network}", where=str(path)
            )
        settled = Settled.of(path, str(uuid.UUID(bytes=instance.content.uuid)))
        _refuse_unknown(lost, path, only)
        found = LostApplied(path, dry_run)
        wanted = list(_wanted(lost, settled, only, found))
        if not wanted:
            return found
        with door.locked(timeout_s):
            position = door.position()
        history = find_in_history(door.chain, position, wanted)
        _refuse_schema_changes(lost, [one for one in wanted if one.seqno not in history.there])
        in_journal = _found_in_journal(door, settled)
        if not dry_run:
            # What was found and has no line yet is looked for there again, until it has one.
            lacks_lines = _lacks_lines(lost, settled, in_journal)
            settled.begin(max(settled.search_from, 1) - 1 if lacks_lines else int(door.words[word.LAST_SEQNO]))
        regions = _Regions(door, timeout_s, dry_run=dry_run)
        stack.callback(regions.close)
        _Applying(lost, regions, settled, in_journal, history, on_conflict, found).all_of(wanted)
        if not dry_run and not _lacks_lines(lost, settled, in_journal):
            settled.end()
    return found


def _refuse_unknown(lost: LostReader, path: Path, only: Collection[int]) -> None:
    """UsageError when one is asked for that is not there, or has nothing to apply."""
    if not only:
        return
    unknown = sorted({*only} - {one.seqno for one in lost.transactions() if one.is_data})
    if unknown:
        raise UsageError(
            f"no transaction {unknown[0]} waits to be applied in this file, or ever did",
            where=str(path),
            do=f"replicate lost show {shlex.quote(str(path))} lists those that are there",
        )


def _wanted(lost: LostReader, settled: Settled, only: Collection[int], found: LostApplied) -> Iterator[LostTransaction]:
    for one in lost.transactions():
        if not one.is_data:
            continue
        if one.seqno in settled.how:
            found.before += 1
        elif not only or one.seqno in only:
            yield one
        else:
            found.left += 1


def _refuse_schema_changes(lost: LostReader, wanted: list[LostTransaction]) -> None:
    for one in wanted:
        for change in lost.changes(one):
            if change.what in (Op.SCHEMA.name, Op.DEFINE.name):
                raise NotSupportedError(
                    f"transaction {one.seqno} changes the schema: {change.what} {change.table} {change.text}",
                    where=str(lost.path),
                    do="Make that change on this primary by hand if it is wanted; then apply the others: --only N",
                )


def _lacks_lines(lost: LostReader, settled: Settled, in_journal: Collection[str]) -> bool:
    """Whether the journal has some of the file's transactions of which no line tells."""
    numbers = {name.partition(" ")[0] for name in in_journal}
    return bool(numbers) and any(
        f"{one.origin}/{one.origin_seqno}" in numbers
        for one in lost.transactions()
        if one.is_data and one.seqno not in settled.how
    )


def _found_in_journal(door: Door, settled: Settled) -> dict[str, int]:
    """What was applied of which no line tells: by a run that was killed, or from a copy of the file. The whole journal
    is looked through where nobody knows."""
    search_from, oldest = settled.search_from, door.chain.oldest_seqno()
    if not settled.is_ended and 1 < search_from < oldest:
        raise JournalMissingError(
            f"a run was killed after transaction {search_from - 1}, and the journal begins with {oldest} now: whether "
            "a lost transaction was applied in between cannot be told",
            where=str(door.instance.path),
            do="Look which rows are there, and apply the others by their numbers from a copy of the file (--only N)",
        )
    return dict(_in_journal(door.chain, max(search_from, oldest), int(door.words[word.LAST_SEQNO])))


def _in_journal(chain: Chain, first: int, last: int) -> Iterator[tuple[str, int]]:
    """What was applied already, as the journal tells from `first` on: the name of each, and its number there."""
    reader = ChainReader(chain, first)
    try:
        while (found := reader.read(BATCH_BYTES_MAX, last)) is not None:
            if isinstance(found, LargeTransaction):
                stream = unpacker()
                stream.feed(read_part(next(found.parts()))[2])
                bodies = [[Kind.TRANSACTION, found.seqno, *[None] * (FIXED_ELEMENTS - 2), *map(_next, [stream] * 4)]]
            else:
                bodies = list(decode_batch(found.data)[2::3])
            for body in bodies:
                changes = changes_of(body)
                if changes and changes[0] == Op.COMMENT:
                    text = changes[3][0]
                    if text.startswith(_COMMENT):
                        yield text.removeprefix(_COMMENT), body[1]
    finally:
        reader.close()


def _next(stream: Any) -> Any:
    return next(stream, None)


class _Regions:
    """A writer's session in every region, begun and ended together, in the order of locks."""

    def __init__(self, door: Door, timeout_s: float, *, dry_run: bool) -> None:
        self.door = door
        self._timeout_s = timeout_s
        self._dry_run = dry_run
        self.sessions: dict[str, RegionSession] = {}
        self.put_back: dict[str, PutBack] = {}
        self.tables: dict[str, TableDefinition] = {}
        try:
            for entry in door.instance.regions:
                self._open(entry.name)
            if dry_run:
                for session in self.sessions.values():
                    session.begin(timeout_s=timeout_s)
        except BaseException:
            self.close()
            raise

    def _open(self, name: str) -> None:
        session = self.sessions[name] = RegionSession(self.door, name)
        definitions = recorded_definitions(session.connection)
        self.put_back[name] = PutBack(session.connection, definitions, region=name)
        for one in definitions:
            self.tables[f"{one.region}.{one.owner}.{one.table}"] = one

    def begin(self, seqno: int) -> None:
        for name, session in self.sessions.items():
            if self._dry_run:
                session.connection.execute("SAVEPOINT lost")
            else:
                session.begin(timeout_s=self._timeout_s)
            self.put_back[name].begin(seqno)

    def keep_tried(self) -> None:
        """Of a dry run: the next one is tried upon this one."""
        for session in self.sessions.values():
            session.connection.execute("RELEASE lost")

    def rollback(self) -> None:
        for session in self.sessions.values():
            if not self._dry_run:
                session.rollback()
            elif session.connection.in_transaction:
                session.connection.execute("ROLLBACK TO lost")
                session.connection.execute("RELEASE lost")

    def close(self) -> None:
        for session in self.sessions.values():
            session.close()


_FRAMED_BYTES_MAX: Final = FRAMED_BYTES_MAX - SECTIONS_ROOM


class _Made:
    """What was made in one region, on its way into the journal."""

    def __init__(self, session: RegionSession, name: str) -> None:
        self._session = session
        self._data, self._spool = bytearray(), None
        self._elements, self._partitions = 0, set[int]()
        self._tables: dict[int, int] = {}
        self._add(int(Op.COMMENT), 0, 0, [_COMMENT + name])

    _spool: Spool | None

    def take(self, changes: list[Any], partition: int | None = None) -> None:
        if partition is not None:
            self._partitions.add(partition)
            self._tables.update(dict.fromkeys(changes[1::4], partition))
        for place in range(0, len(changes), 4):
            self._add(*changes[place : place + 4])

    def _add(self, *change: Any) -> None:
        self._data += pack_elements(*change)[0]
        self._elements += 4
        if self._spool is not None or self._elements >= 4 * FRAME_CHANGES_MAX or len(self._data) > _FRAMED_BYTES_MAX:
            door = self._session.door
            if self._spool is None:
                self._spool = Spool.create(door.instance.journal_directory, door.words[word.OWN_ORIGIN])
            self._spool.write(bytes(self._data))
            self._data.clear()

    def commit(self) -> int:
        spool, self._spool = self._spool, None
        partitions = tuple(sorted(self._partitions))
        tables = None if self._partitions <= {PARTITION_DEFAULT} else self._tables
        try:
            return self._session.commit(
                CapturedChanges(bytes(self._data), self._elements, partitions, False, spool, False, tables=tables)
            )
        finally:
            if spool is not None:
                spool.abort()  # does nothing after its adoption

    def abort(self) -> None:
        if self._spool is not None:
            self._spool.abort()


class _Applying:
    """One run over a file."""

    def __init__(
        self,
        lost: LostReader,
        regions: _Regions,
        settled: Settled,
        in_journal: dict[str, int],
        history: InHistory,
        on_conflict: OnConflict,
        found: LostApplied,
    ) -> None:
        self._lost = lost
        self._regions = regions
        self._settled = settled
        self._in_journal = in_journal
        self._history = history
        self._on_conflict = on_conflict
        self._found = found

    def all_of(self, wanted: list[LostTransaction]) -> None:
        found = self._found
        for place, one in enumerate(wanted):
            try:
                numbers, how = self._one(one)
            except ConflictError as error:
                found.conflicts.append(_conflict(one.seqno, error))
                if self._on_conflict != "skip" and not found.stopped_at:
                    found.stopped_at = one.seqno
                    found.left += len(wanted) - place
                    if not found.dry_run:
                        return
                numbers, how = [], SKIPPED
            self._of(how).append(one.seqno)
            if found.dry_run:
                continue
            found.as_seqnos[one.seqno] = numbers
            hit("lost.committed")
            self._settled.note(one.seqno, how, numbers)
            hit("lost.noted")

    def _of(self, how: str) -> list[int]:
        found = self._found
        return {
            APPLIED: found.applied,
            OVERWRITTEN: found.overwritten,
            SKIPPED: found.skipped,
            IN_HISTORY: found.in_history,
        }[how]

    def _one(self, one: LostTransaction) -> tuple[list[int], str]:
        """The numbers that it has here, and how. ConflictError: nothing of it stands."""
        if one.seqno in self._history.there:
            return [self._history.there[one.seqno]], IN_HISTORY
        if one.seqno in self._history.untold and self._on_conflict != "overwrite":
            raise ConflictError(
                f"number {one.origin_seqno} of origin {one.origin} is in the history here, and the journal begins "
                "after it: whether it is this transaction cannot be told",
                where=str(self._lost.path),
                kind="pruned",
            )
        regions, made = self._regions, dict[str, _Made]()
        numbers = [
            self._in_journal[name] for entry in regions.sessions if (name := _name(one, entry)) in self._in_journal
        ]
        how = APPLIED
        regions.begin(one.seqno)
        try:
            for change in self._lost.changes(one):
                if change.what in _NOTHING_TO_DO:
                    continue
                definition = self._definition(change)
                region = definition.region
                if (name := _name(one, region)) in self._in_journal:
                    continue
                if region not in made:
                    made[region] = _Made(regions.sessions[region], name)
                changes, gave_way = regions.put_back[region].put(
                    Op[change.what], definition, change.before, change.after, overwrite=self._on_conflict == "overwrite"
                )
                made[region].take(changes, definition.partition)
                how = OVERWRITTEN if gave_way else how
            for region, one_made in made.items():
                one_made.take(regions.put_back[region].finish())
            if self._found.dry_run:
                regions.keep_tried()
                return [], how
            for region in [name for name in regions.sessions if name in made]:
                numbers.append(made[region].commit())
                hit("lost.region_committed")
            regions.rollback()
        except BaseException:
            for one_made in made.values():
                one_made.abort()
            regions.rollback()
            raise
        return numbers, how

    def _definition(self, change: LostChange) -> TableDefinition:
        definition = self._regions.tables.get(change.table)
        if definition is None:
            raise ConflictError(f"there is no table {change.table} here", where=str(self._lost.path), kind="table")
        names = (*(("rowid",) if definition.rowid else ()), *(column.name for column in definition.columns))
        if names != change.columns:
            raise ConflictError(
                f"table {change.table} has the columns {', '.join(names)} here, and had {', '.join(change.columns)}",
                where=str(self._lost.path),
                kind="table",
            )
        return definition


def _name(one: LostTransaction, region: str) -> str:
    """What names a region's part of a transaction in the journal, wherever it is applied."""
    return f"{one.origin}/{one.origin_seqno} {region}"


def _conflict(seqno: int, error: ConflictError) -> LostConflict:
    one = error.conflict
    if not isinstance(one, Conflict):
        return LostConflict(seqno, "", "", "", str(error.facts.get("kind", "constraint")), error.what)
    return LostConflict(
        seqno,
        one.region,
        one.table,
        Op(one.op).name,
        _KINDS.get(one.reason, "constraint"),
        one.reason,
        one.columns,
        one.expected,
        one.found,
        one.after,
    )


_KINDS: Final = {
    "the row exists already": "id taken",
    "the row is missing": "row missing",
    "the row differs from its before-image": "row differs",
}
