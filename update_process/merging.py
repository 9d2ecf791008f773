"""Transactions in partitions that several suppliers write, on one of them: strictly where nobody has written beside
them, merged where somebody has.

A transaction tells what its writer had seen (SEEN). Where that is all that is here of others, it is applied as it is.
So is it where none of its rows was written beside it (unstamped.py).
Otherwise the rows that it changes are looked at one by one (region/sqlite/apply/merge.py). One that was merged stands
in our journal as what it came to here, with what its writer wrote after it, for other suppliers (RESOLVED).

Guarantees: what is merged is what all that is in our journal comes to, whatever order it came in; stamps, rows and
journal move in one commit.
Leaves to others: the receive pool, numbers, who may write (supplied_transactions.py).
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Any, Final

from replicate.door.absorb_stamps import absorb
from replicate.door.own_removal import REMOVES, OwnRemoval
from replicate.door.secondary import ApplySession
from replicate.errors import DamagedError
from replicate.journal.reader import SparseIndex
from replicate.journal.record import (
    Head,
    changes_of,
    pack_changes,
    pack_restated,
    read_head,
    resolved_change,
)
from replicate.journal.retelling import FRAMED_BYTES_MAX, Retelling
from replicate.limits import FRAME_CHANGES_MAX, PARTITION_STREAM
from replicate.model.merged_row import Stamp
from replicate.model.seen import merged_told, stable
from replicate.model.transaction import Op, TableDefinition, told_of
from replicate.model.vector import Position
from replicate.model.writers import Writers
from replicate.pool import control as word
from replicate.wire.vector_refusals import MERGED_HERE
from update_process.plan import Window
from update_process.routes import Routes
from update_process.unstamped import Followed, UnstampedRows
from update_process.window.columns import Plain
from update_process.work_result import Done

LAG_MAX: Final = 20_000
"""So many transactions of our journal may wait to be looked at: a supplier that applies strictly looks at none."""
ROW_OPS: Final = frozenset(map(int, (Op.INSERT, Op.UPDATE, Op.DELETE)))
_RESOLVED: Final = int(Op.RESOLVED)
"""A number is found among numbers in a third of the time that the name of it takes."""
PURGE_MIN: Final = 1000
"""Rows that were stamped before it is looked which stamps may go."""


class Merging:
    """One per applier. Between `begin` and the end of the transaction the regions' locks are the caller's."""

    def __init__(self, session: ApplySession, routes: Routes) -> None:
        self._session = session
        self._routes = routes
        self._rows = session.merging()
        self._words = session.door.words
        self._writers = Writers()
        self._writers_seen = self._catalogue_seen = -1
        self._tables: dict[int, TableDefinition] = {}
        self._shared: dict[int, bool] = {}
        """Table id -> whether several suppliers write it, or have."""
        self._told: dict[int, Mapping[int, int]] = {}
        self._bases: dict[int, Mapping[int, int]] = {}
        self._known_members: dict[bytes, list[int]] | None = None
        self.taken = 0
        """Transactions that the last `take` has taken."""
        self._csn = 0
        """The highest of the transactions that were taken since `begin`."""
        self._own = OwnRemoval(session, self._rows, lambda table_id: routes.known_table(table_id).partition)
        """Our own transaction that would come after the last one that was taken."""
        self.oversized: Retelling | None = None
        """What the last transaction came to that was taken, where a frame cannot hold it."""
        self._left = 0
        """Rows with stamps, as the last purge left them."""
        self._purged_with: dict[int, Mapping[int, int]] = {}
        """What had been told at that time."""
        self._merged = 0
        """Transactions of the batch that were merged."""
        self._walked: SparseIndex = {}
        """Where `absorb` has been in our journal."""
        self._absorbed = 0
        """Up to where in our journal rows have their stamps."""
        self._unstamped = UnstampedRows(session.door, routes.known_table, self._is_shared, self._walked)
        self._followed: list[Followed] = []
        """What was applied as it is, and is to come after our journal."""

    @property
    def is_active(self) -> bool:
        """Whether several suppliers write something, or have. As `begin` has found it."""
        return self._writers.was_shared

    def begin(self) -> None:
        """A transaction begins."""
        generation = self._words[word.CATALOGUE_GENERATION]
        if generation != self._catalogue_seen:
            self._routes.take_regions()
            self._forget_known()
            if self._tables != self._routes.tables:
                self._tables = dict(self._routes.tables)
                self._unstamped.forget()
            self._catalogue_seen = generation
        generation = self._words[word.WRITERS_GENERATION]
        if generation != self._writers_seen:
            self._writers = self._session.writers()
            self._writers_seen = generation
            self._forget_known()
            self._unstamped.forget()
        if not self.is_active:
            return
        self._rows.begin()
        self._absorbed = self._rows.absorbed
        self._followed.clear()
        self._told = dict(self._session.seen())
        self._csn = self._own.told_seqno = self._merged = 0

    def forget_tables(self) -> None:
        """The catalogue has changed."""
        self._catalogue_seen = -1

    def _forget_known(self) -> None:
        self._shared.clear()
        self._bases.clear()
        self._known_members = None

    # What a window needs.

    def merges(self, window: Window, position: Position) -> bool | None:
        """Whether the transactions of a window that comes after `position` are to be looked at row by row: somebody
        has written beside them. None: they change nothing that several write."""
        if window.plain is not None:
            tables, ops = set(window.plain.columns.table_ids), window.plain.columns.ops
        else:
            tables = {table_id for body in window.bodies for table_id in changes_of(body)[1::4]}
            ops = [op for body in window.bodies for op in changes_of(body)[0::4]]
        if not any(map(self._is_shared, tables)):
            return None
        if _RESOLVED in ops or self._rows.has_waiting:
            return True  # rows that it removes may be yet to come; those that wait may be put into their place
        origins = {window.plain.origin} if window.plain is not None else {body[4] for body in window.bodies}
        if len(origins) > 1:
            return True
        (origin,) = origins
        if not self._is_beside(origin, changes_of(window.bodies[0]), position):
            return False
        return window.plain is None or self._meets(window.plain, origin)

    def merges_large(
        self, tables: Collection[int], origin: int, seen: Sequence[Any], position: Position, *, removes: bool
    ) -> bool | None:
        """The same of a large transaction that changes those tables; `seen`: what tells what its writer had seen;
        `removes`: it removes rows for their unique values."""
        if not any(map(self._is_shared, tables)):
            return None
        return removes or self._rows.has_waiting or self._is_beside(origin, seen, position)

    def _is_beside(self, origin: int, changes: Sequence[Any], position: Position) -> bool:
        """Whether something is here that the writer of those changes had not seen."""
        told = self.told_by(origin, changes)
        return any(told.get(other, 0) < last for other, last in self._last_of(position).items() if other != origin)

    def _meets(self, plain: Plain, origin: int) -> bool:
        """Whether a row of transactions beside which somebody has written may be one that somebody has written. Where
        none is, to merge them is to apply them as they are."""
        try:
            rows = self._unstamped.rows_of(plain.columns)
        except (DamagedError, IndexError, TypeError):
            return True  # it makes no sense, and is told so where it is applied
        told, before = self.told_by(origin, ()), self._session.position
        ahead = (one.last for one in self._followed)
        if any(other != origin and last > told.get(other, 0) for other, last in ahead):
            return True  # what comes before it in the batch is to be in our journal first
        if not self._unstamped.look(self._absorbed, before.last_seqno, self._stable(before)):
            return True
        return self._unstamped.meets(rows, origin, told) or self._rows.may_meet(rows, told, origin)

    def _last_of(self, position: Position) -> dict[int, int]:
        """Origin -> its last transaction here; of our own, the last one in a partition that several write."""
        found = {origin: last for origin, (last, _) in position.chains.items()}
        if merged := self._words[word.OWN_MERGED_SEQNO]:  # 0: nobody knows since the pool was made
            found[self._words[word.OWN_ORIGIN]] = merged
        return found

    def _is_shared(self, table_id: int) -> bool:
        known = self._shared.get(table_id)
        if known is None:
            partition = self._routes.partition_of(table_id)
            known = self._shared[table_id] = partition is not None and self._writers.was_merged(partition)
        return known

    def told_by(self, origin: int, changes: Sequence[Any]) -> Mapping[int, int]:
        """What the writer of a transaction had seen; its changes may tell more, which is kept."""
        if origin not in self._bases:
            for history in self._session.door.catalogue_now().histories:
                base = {of: last for (of, partition), last in history.base.items() if partition == PARTITION_STREAM}
                self._bases[history.origin.key] = base
        told = self._told.get(origin) or self._bases.get(origin, {})
        if changes and changes[0] == Op.SEEN:
            told = merged_told(told, told_of(changes[3])[1])
        told = merged_told(told, self._bases.get(origin, {}))
        self._told[origin] = told
        return told

    # Merging.

    def lags(self, last_seqno: int) -> bool:
        """Whether so much of our journal was not looked at that it is time, though nothing needs it."""
        looked = max(self._absorbed, self._unstamped.looked)
        return last_seqno - looked > LAG_MAX or self._unstamped.is_full

    def absorb(self, position: Position) -> None:
        """Stamp the rows of all transactions of our journal, which ends at `position`, that were not looked at."""
        if self._absorbed < position.last_seqno:
            low = self._stable(position)
            absorb(self._rows, self._session.door, position.last_seqno, self._is_shared, low, self._walked)
            self._absorbed = position.last_seqno
        self._unstamped.forget(self._absorbed)

    def look(self, position: Position) -> None:
        """Know what all transactions of our journal, which ends at `position`, have written: their rows get stamps only
        where they cannot be held, or where none of them needs any."""
        is_known = self._unstamped.look(self._absorbed, position.last_seqno, self._stable(position))
        if is_known and self._unstamped.holds and not self._unstamped.is_full:
            return
        if is_known and not self._unstamped.holds and self._rows.is_empty:
            self._absorbed = position.last_seqno  # nobody will write beside any of them
        self.absorb(position)
        self.finish(position.last_seqno, position)

    def follow(self, window: Window, stop: int) -> None:
        """A window's first `stop` transactions were applied as they are."""
        bodies = window.bodies[:stop]
        last = (bodies[-1][4], bodies[-1][5])
        lasts = [last] if window.plain is not None else {body[4]: (body[4], body[5]) for body in bodies}.values()
        is_held = any(number > self._confirmed(origin) for origin, number in lasts)
        first_seqno = window.first_seqno
        held = bodies if is_held else ()
        self._followed.append(Followed(first_seqno, first_seqno + stop - 1, last, held, window.ends[stop - 1]))

    def take(self, window: Window, stop: int) -> list[bytes]:
        """Apply a window's first `stop` transactions, none of which comes alone, after all that `absorb` has stamped;
        as they are to stand in our journal. Fewer, where one of them has removed rows: `resolver` comes after it then.
        Raises as `Routes.apply_bodies`."""
        frames: list[bytes] = []
        for place in range(stop):
            body, frame = window.bodies[place], window.frames(place, place + 1)
            changes = changes_of(body)
            self._csn = max(self._csn, body[6])
            if changes:
                frame = self._take(window.first_seqno + place, body, changes, frame)
            frames.append(frame)
            if self._rows.removed or self.oversized is not None:
                break
        self.taken = len(frames)
        return frames

    def mark(self, position: Position) -> None:
        """Stamp all before a transaction that may be large, and be ready to take it back."""
        self.absorb(position)
        self._rows.mark()

    def take_piece(
        self, head: Head, changes: Sequence[Any], told: Mapping[int, int], *, removes: bool
    ) -> list[Any] | None:
        """Make the changes of one piece of a large transaction, whose writer had seen `told`; what they came to, None:
        what they are. `removes`: as in `merges_large`. Raises as `take`."""
        for rows in self._session.rows.values():
            rows.seqno = head.seqno
        self._rows.write_stamps()
        self._csn = max(self._csn, head.csn)
        stamp = Stamp(head.csn, head.origin, head.origin_seqno)
        is_stable = head.origin_seqno <= self._confirmed(head.origin)
        return self._rows.take(
            changes, stamp, told, self._is_shared, self._removing(), is_stable=is_stable, removes=removes
        )

    @property
    def removed(self) -> Sequence[Any]:
        """Deletes, flat, of rows that gave way for unique values in what was taken last."""
        return self._rows.removed

    @property
    def removes_much(self) -> bool:
        """Whether these are more than one transaction of ours holds after the one that was taken."""
        return bool(self._rows.removed) and len(pack_changes(self._rows.removed)) > FRAMED_BYTES_MAX // 2

    def take_back(self) -> None:
        """All that was taken since `mark`."""
        self._rows.take_back()

    def losses(self, seqno: int) -> list[bytes]:
        """What was lost in the transaction of that number, in the last piece that was taken."""
        return self._rows.losses(seqno)

    def note_merged(self) -> None:
        """A large transaction was merged."""
        self._merged += 1

    def commit_oversized(self, head: Head, position: Position) -> None:
        """Commit the one transaction that was taken, which came to more than a frame holds, and has removed no rows;
        `position` is after it. Raises what a commit raises."""
        retelling = self.oversized
        assert retelling is not None
        try:
            partitions = {partition for (_, partition) in position.vector.beyond(self._session.position.vector)}
            frame = retelling.frame(head, MERGED_HERE, tuple(sorted(partitions - {PARTITION_STREAM})))
            assert retelling.spool is not None
            self._session.commit_large(retelling.spool, frame, position, head.csn)
        finally:
            self.give_up_oversized()

    def give_up_oversized(self) -> None:
        """What was told of it is not used."""
        if self.oversized is not None:
            self.oversized.abort()
            self.oversized = None

    def resolver(self, position: Position) -> tuple[bytes, Position] | None:
        """Our own transaction that has all suppliers remove what the last one has removed here, which comes at
        `position`: it is done here already. And the position after it. None where nothing was removed."""
        return self._own.framed(position, self._rows.removed, (), ()) if self._rows.removed else None

    def give_way(self, position: Position, deletes: Sequence[Any], done: Done) -> None:
        """Commit our own transaction that has all suppliers remove rows for their unique values before that one comes
        which wants them, or whose rows they are: the first of these deletes, flat, which `take_back` has given. Raises
        as `OwnRemoval.commit`."""
        self._own.next_stamp(self._csn)
        self._own.commit(position, deletes, lambda after: self.finish(after.last_seqno, after))
        self.committed(done)

    def removed_by(self, window: Window, stop: int) -> set[tuple[int, int]]:
        """(origin, partition) where that origin, among the first `stop` transactions, only removes rows for their
        unique values: every supplier does that where it meets them, also one that may not write there."""
        found, others = set[tuple[int, int]](), set[tuple[int, int]]()
        if window.plain is not None and _RESOLVED not in window.plain.columns.ops:
            return found
        for body in window.bodies[:stop]:
            changes = changes_of(body)
            removes = list(changes[4:8]) == REMOVES and set(changes[8::4]) == {Op.DELETE}
            tables = {table_id for op, table_id in zip(changes[0::4], changes[1::4], strict=True) if op in ROW_OPS}
            touched = {(body[4], self._routes.known_table(table_id).partition) for table_id in tables}
            (found if removes else others).update(touched)
        return found - others

    def committed(self, done: Done) -> None:
        """The batch was committed."""
        for one in self._followed:
            self._unstamped.followed(one)
        self._followed.clear()
        done.merged += self._merged
        done.lost += self._rows.lost_count
        self._own.committed()

    def _removing(self) -> Stamp | None:
        """The stamp of our own transaction that would come next, after those that were taken; None: there may be none.

        While we get back what we had, others may have forgotten a row that gives way, and have another one under its
        key by now: ours would be the later word, and remove that one everywhere. While we write nothing, nobody may
        know of us yet, and wait for us before a change of the schema: ours would stand beside it (schema_fences.py)."""
        writes = self._session.door.instance.content.uuid in self._writers.writing()
        return self._own.next_stamp(self._csn) if writes and not self._is_restoring else None

    def _take(self, seqno: int, body: Sequence[Any], changes: Sequence[Any], frame: bytes) -> bytes:
        for rows in self._session.rows.values():
            rows.seqno = seqno
        origin = body[4]
        told = self.told_by(origin, changes)
        stamp, is_stable = Stamp(body[6], origin, body[5]), body[5] <= self._confirmed(origin)
        done = self._rows.take(changes, stamp, told, self._is_shared, self._removing(), is_stable=is_stable)
        if done is None:
            return frame
        self._merged += 1
        changes = [*done, *resolved_change(frame, self._rows.losses(seqno))]
        packed = pack_changes(changes)
        head = read_head(frame)
        if len(packed) <= FRAMED_BYTES_MAX and len(changes) <= 4 * FRAME_CHANGES_MAX:
            return pack_restated(head, MERGED_HERE, packed, len(changes))
        self.oversized = Retelling(self._session.door.instance.journal_directory, head.origin)
        self.oversized.add(changes)
        return b""

    def finish(self, last_seqno: int, position: Position) -> None:
        """Before COMMIT: all of our journal up to `last_seqno` was looked at; `position` is there."""
        self._rows.finish(last_seqno)
        if self._rows.kept_since_purge > max(PURGE_MIN, self._left):
            self._purge(position)

    def tend(self, position: Position, *, is_idle: bool) -> None:
        """Between two batches: look at what was not looked at, and forget what may be forgotten. `is_idle`: nothing
        waits to be applied; else all rows with stamps are gone through only after as many have been stamped."""
        for rows in self._session.rows.values():
            rows.look_at_own_counters()
        if is_idle or self.lags(position.last_seqno):
            self.look(position)
        if is_idle and self._told != self._purged_with:
            self._purge(position)

    def _purge(self, position: Position) -> None:
        self._purged_with = dict(self._told)
        self._left = self._rows.purge(self._stable(position))

    def _confirmed(self, origin: int) -> int:
        """The last transaction of an origin that all the others have told that they have: those but its writer, and us,
        who are about to have it. None, while we are restored: what we wrote beside it is yet to come back."""
        if self._is_restoring:
            return 0
        own = self._session.door.instance.content.uuid
        others = [origins for instance, origins in self._members().items() if instance != own and origin not in origins]
        return min(
            (max((self.told_by(one, ()).get(origin, 0) for one in origins), default=0) for origins in others),
            default=2**64,
        )

    @property
    def is_remembering(self) -> bool:
        """Whether rows are known, or have stamps as the last purge has left them, that somebody may write beside."""
        return self._left > 0 or self._unstamped.holds

    def lacking(self, position: Position) -> dict[bytes, dict[int, tuple[int, int]]]:
        """Of each other supplier that shares a partition what it has not told that it has: origin -> the last here, and
        the last that it has told."""
        rows = self.rows(position)
        here = rows.pop(self._session.door.instance.content.uuid)
        found = {
            instance: {origin: (last, row[origin]) for origin, last in here.items() if last > row[origin]}
            for instance, row in rows.items()
        }
        return {instance: lacking for instance, lacking in found.items() if lacking}

    def rows(self, position: Position) -> dict[bytes, dict[int, int]]:
        """Of each supplier that shares a partition what it has told that it has, of those that are here, and of us what
        is here: origin -> the last."""
        here = {origin: last for origin, (last, _) in position.chains.items()}
        found = {self._session.door.instance.content.uuid: here}
        for instance, origins in self._members().items():
            told: Mapping[int, int] = {}
            for origin in origins:
                told = merged_told(told, self.told_by(origin, ()))
            row = {origin: last if origin in origins else told.get(origin, 0) for origin, last in here.items()}
            found.setdefault(instance, row)
        return found

    def _members(self) -> Mapping[bytes, list[int]]:
        """Those who may write beside others, and the keys of their origins."""
        if self._known_members is None:
            histories = self._session.door.catalogue_now().histories
            self._known_members = {
                instance: [one.origin.key for one in histories if one.instance == instance]
                for instance in self._writers.members()
            }
        return self._known_members

    @property
    def _is_restoring(self) -> bool:
        return bool(self._words[word.ROLE] == word.ROLE_SECONDARY)

    def _stable(self, position: Position) -> dict[int, int]:
        if self._is_restoring:
            return {}
        members = self._members()
        here = {origin: last for origin, (last, _) in position.chains.items()}
        told = {origin: self.told_by(origin, ()) for origins in members.values() for origin in origins}
        return stable(members, told, here, self._session.door.instance.content.uuid)
