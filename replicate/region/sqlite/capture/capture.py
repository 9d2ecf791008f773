"""Capturing an application's changes as they happen: the preupdate hook, marks, cuts, and what a commit hands to the
door.

Guarantees: what `finish` returns is exactly what the transaction did to the replicated tables, in true order and
with full images; a change that cannot be captured sets `refusal`, and a transaction with a refusal is never
committed. Memory is bounded: what does not fit one frame goes to a spool.
Leaves to others: PEP 249, locks, the journal. Which statement failed and what of it stays is told by the caller
(`mark`, `cut`).

The hook must never raise: SQLite stores the row all the same (measured). So any exception in it becomes a refusal.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from functools import lru_cache
from typing import TYPE_CHECKING, Any, Final, Literal

import apsw
import msgpack

from replicate.errors import InternalError, NotSupportedError, ReplicateError
from replicate.journal.sections import SECTIONS_ROOM
from replicate.limits import FRAME_BYTES_MAX, FRAME_CHANGES_MAX, PART_BYTES, PARTITION_DEFAULT, PARTITION_STREAM
from replicate.model.transaction import MASK_BITS_MAX, Op, TableDefinition
from replicate.region.protocol import CapturedChanges
from replicate.region.sqlite.allowed_definitions import counter_statements
from replicate.region.sqlite.bookkeeping import OWN_TABLES
from replicate.region.sqlite.capture.blobs import BlobWrites, read_row
from replicate.region.sqlite.capture.marks import Context, Mark
from replicate.region.sqlite.capture.net import NetChanges
from replicate.region.sqlite.capture.outcome import kept
from replicate.region.sqlite.capture.overflow import Overflow
from replicate.region.sqlite.capture.tables import CapturedTable, TableMap, not_utf8, recaptured, with_zeros
from replicate.region.sqlite.schema import COUNTERS
from replicate.region.sqlite.sql.names import is_internal, is_own, quote
from replicate.region.sqlite.virtual_tables import flush

if TYPE_CHECKING:
    from replicate.journal.spool import Spool

ELEMENTS_PER_CHANGE: Final = 4
FRAME_ROOM: Final = 128
"""Left free in a frame for its own heads."""

_LIMIT: Final = FRAME_BYTES_MAX - FRAME_ROOM
_INSERT: Final = apsw.SQLITE_INSERT
_UPDATE: Final = apsw.SQLITE_UPDATE
_NO_CHANGE: Final = apsw.no_change


_OWN: Final = dict.fromkeys(OWN_TABLES)
_ONLY_DEFAULT: Final = (PARTITION_DEFAULT,)
_DEFAULT_SET: Final = frozenset(_ONLY_DEFAULT)
_FRESH: Final = Context(TableMap({}, False), None, frozenset(), False, False, None)


def frame_room(tables: TableMap) -> int:
    """How many bytes of changes one frame holds."""
    return _LIMIT - SECTIONS_ROOM if tables.partitioned else _LIMIT


@lru_cache(maxsize=64)
def _counters_of(schema: str) -> str:
    return COUNTERS.replace("main", quote(schema))


class Capture:
    """The changes of one connection's open transaction. Installed on the connection for its whole life.

    `active` while a transaction holds the region; a replicated row that changes outside of one is refused at commit.
    `foreign` once the connection has temporary or attached tables: only then does the hook ask whose table it is.
    `schema`: the name under which the region is attached.
    """

    def __init__(
        self, connection: apsw.Connection, region: str, spool_factory: Callable[[], Spool], schema: str = "main"
    ) -> None:
        self.schema = schema
        self._connection = connection
        self.region = region
        self._overflow = Overflow(spool_factory)
        self._pack = msgpack.Packer(autoreset=True).pack
        self._buffer = bytearray()
        self._limit = _LIMIT
        self._changes = 0
        self._tables: dict[str, CapturedTable | None] = {}
        self._tables_of: TableMap | None = None
        self._last: CapturedTable | None = None
        self._context = _FRESH
        self._begun = _FRESH
        self._noted: tuple[Context, CapturedTable | None, Context] = (_FRESH, None, _FRESH)
        """What `_note` made of which context, of a table that the hook tells all of."""
        self.active = False
        self._is_clear = True
        self.foreign = schema != "main"
        self.counted = False
        """Whether some table counts in sqlite_sequence."""
        self.restless = False
        """Whether there may be changes that no hook has told of yet: `settle` before what takes back, and at COMMIT."""
        self.pressing = False
        """Whether some of them must be settled before a statement that may fail. (Touched rows need not: what is left
        of a failed statement is seen when they are looked at.)"""
        self._blobs = BlobWrites()
        self._blob_rows = self._blobs.rows
        self._net = NetChanges(schema)
        self.deaf = False
        """Whether changes of rows pass unheard: those that a CREATE VIRTUAL TABLE makes."""
        self.poisoned = False
        """Whether the transaction can only be rolled back."""
        connection.preupdate_hook(self._on_change, id=self)

    def close(self) -> None:
        """Take the hook off and throw away what was captured."""
        self._connection.preupdate_hook(None, id=self)
        self.clear()

    # The transaction.

    def begin(self, tables: TableMap) -> None:
        """A transaction holds the region from here on. `tables`: as its snapshot has them. (Cleared before.)"""
        if not self._is_clear:  # an interrupt arose while it was being cleared
            self.clear()
        self._is_clear = False
        if self._begun.tables is not tables:
            self._begun = Context(tables, None, frozenset(), False, False, None)
        self._context = self._begun
        if tables is not self._tables_of:
            self._take_tables(tables)
        elif tables.partitioned:
            self._limit = frame_room(tables)
        self.active = True

    def clear(self, adopted: bool = False) -> None:
        """Forget everything. `adopted`: the spool has become a part of the journal and is not removed."""
        # First what takes no call, at whose end an interrupt may arise.
        overflow, net = self._overflow, self._net
        self._changes = overflow.size_bytes = 0
        self._limit = _LIMIT
        self._context = _FRESH
        self.active = self.poisoned = self._is_clear = False
        self._last = None
        self._buffer.clear()
        if self._blob_rows:
            self._blobs.clear()
        if net.is_used:
            net.clear()
        if overflow.spool is not None:
            overflow.clear(adopted)
        self._is_clear = True

    @property
    def changes(self) -> int:
        """Changes captured so far (rows, schema statements with their definitions), and rows to be looked at."""
        return self._changes + self._net.pending

    @property
    def refusal(self) -> BaseException | None:
        """What made the transaction one that can only be rolled back, as it was raised."""
        return self._context.refusal

    @property
    def refused(self) -> ReplicateError | None:
        """Why the transaction can only be rolled back; None while it can be committed."""
        return None if self.refusal is None else self._refusal_error()

    @property
    def start(self) -> Mark:
        """The mark before the transaction's first change."""
        return Mark(0, 0, self._begun)

    @property
    def tables(self) -> TableMap:
        """The tables as this transaction sees them."""
        return self._context.tables

    def mark(self) -> Mark:
        """The present place. Cheap: taken before every statement."""
        return Mark(self._overflow.size_bytes + len(self._buffer), self._changes, self._context)

    def place(self) -> tuple[int, int, Context]:
        """The fields of a mark: cheaper still, for what is seldom needed."""
        return self._overflow.size_bytes + len(self._buffer), self._changes, self._context

    def cut(self, mark: Mark, *, failed: bool = False) -> None:
        """Forget what was captured after `mark`: the database has taken it back. `failed`: of one statement that was
        not, perhaps, taken back in tables whose net change is told, and in sqlite_sequence; that is looked at then."""
        spilled = self._overflow.size_bytes
        if mark.offset >= spilled:
            del self._buffer[mark.offset - spilled :]
        else:
            self._buffer.clear()
            self._overflow.cut(mark.offset)
        self._changes = mark.changes
        self._blobs.clear()  # those before the mark have been told
        self._net.cut(mark.changes)
        if not failed:
            self._net.untouch()
        self._last = None
        if self._context.tables is not mark.context.tables:
            self._use(mark.context.tables)
        by_hand = self._context.by_hand
        self._context = mark.context._replace(by_hand=by_hand) if failed and by_hand else mark.context
        self.poisoned = mark.context.refusal is not None

    def kept(self, mark: Mark, text: str) -> bool | None:
        """Whether what the failed statement `text` did after `mark` is still there (outcome.py)."""
        unseen = self.unseen(mark)
        if self.changes == mark.changes and not unseen:
            return False
        return kept(self._connection, self.schema, self.tables, self.after(mark), text, unseen=unseen)

    def grown(self, mark: Mark) -> bool:
        """Whether anything was captured after `mark`."""
        return self.changes > mark.changes

    def unseen(self, mark: Mark) -> bool:
        """Whether rows may have changed after `mark` that could not be captured."""
        return self._context.refusal is not None and mark.context.refusal is None

    def after(self, mark: Mark) -> bytes | None:
        """The captured bytes after `mark`; None if a part of them has left memory."""
        start = mark.offset - self._overflow.size_bytes
        return bytes(self._buffer[start:]) if start >= 0 else None

    def refuse(self, why: BaseException) -> None:
        """From here on the transaction can only be rolled back. The first reason counts."""
        if self._context.refusal is None:
            self._context = self._context._replace(refusal=why)
        self.poisoned = True
        self._is_clear = False  # perhaps no transaction is open, and none clears it at its end

    def settle(self) -> None:
        """Have virtual tables write what they keep back, and tell of rows whose BLOBs were written in place, or which
        the hook could not give. InterruptError: all is as it was, and the next call does it."""
        if self._context.tables.virtual:
            flush(self._connection)
        name = ""
        mark, written = self.mark(), {**self._blobs.rows}
        try:
            for table, rowid, before in self._blobs.take_all():
                name = table.definition.table
                after = read_row(self._connection, table, rowid, self.schema)
                self._note(table)
                self._append(self._update_of(table, before, after))
            if self._net.pending:
                name = self._net.names
                for table, goes, image in self._net.take(self._connection, self._changes):
                    self._note(table)
                    if table.counts and not goes:  # an UPDATE counts nothing here, its INSERT does there
                        self.watch_sequences()
                        self.doubt_sequences()
                    self._append((table.delete_prefix if goes else table.insert_prefix) + self._pack(image))
        except apsw.InterruptError:
            # Somebody's SELECT was interrupted, and nothing can be read until it ends: what was written stands.
            self.cut(mark, failed=True)
            self._blobs.rows.update(written)
            raise
        except BaseException as error:
            self._poison(error, name)
        self.restless = self.pressing = self._context.tables.virtual

    def finish(self) -> CapturedChanges:
        """What the commit journals. Raises the refusal, or what the spool raises; the transaction can then only be
        rolled back."""
        context = self._context
        if not self.poisoned and (context.sequences is not None or context.by_hand):
            self.close_sequences()
            context = self._context
        if self.poisoned:
            raise self._refusal_error()
        if self._net.is_used:
            self._net.end_reading()
        spool = self._overflow.spool
        if spool is not None:
            if self._changes:
                self._flush()
            else:
                self._overflow.clear()
                spool = None
        partitions, tables = context.partitions, None
        if len(partitions) > 1:
            if spool is None:
                tables = self.partitions()
            else:
                partitions -= {PARTITION_STREAM}
        # A named tuple's own constructor is a function of Python: a percent of a commit, measured.
        return tuple.__new__(
            CapturedChanges,
            (
                bytes(self._buffer) if spool is None else b"",
                self._changes * ELEMENTS_PER_CHANGE,
                _ONLY_DEFAULT if partitions == _DEFAULT_SET else tuple(sorted(partitions)) or _ONLY_DEFAULT,
                context.defines,
                spool,
                context.schema_changed,
                None,
                tables,
            ),
        )

    def partitions(self) -> dict[int, int]:
        """Table id -> partition, at the transaction's beginning."""
        return self._begun.tables.partitions()

    def _refusal_error(self) -> ReplicateError:
        why = self.refusal
        if isinstance(why, ReplicateError):
            return why
        return InternalError(f"a change could not be captured ({type(why).__name__}: {why})", do="Roll back; tell us")

    # Schema changes and counters.

    def statement(self, text: str, partition: int = PARTITION_STREAM) -> None:
        """A schema change (or `PRAGMA user_version = …`) has been run, and travels as its text, in its place.
        `partition`: of its audit element."""
        partitions = self._context.partitions
        if partition:  # what it makes of the tables goes to everybody
            partitions |= {partition, PARTITION_STREAM}
        partitions = partitions or frozenset((PARTITION_DEFAULT,))
        self._context = self._context._replace(schema_changed=True, partitions=partitions)
        self._note_section(PARTITION_STREAM)
        self._emit(Op.SCHEMA, partition, self.region, [text])

    def comment(self, text: str, partition: int = PARTITION_STREAM) -> None:
        """A comment of the application's travels in its place."""
        self._note_section(partition)
        self._emit(Op.COMMENT, partition, 0, [text])

    def _note_section(self, number: int) -> None:
        """Something that is of no table belongs to that section. Of an instance whose tables are all in DEFAULT, only
        what leaves DEFAULT counts."""
        if self._context.tables.partitioned or number:
            self._context = self._context._replace(partitions=self._context.partitions | {number})

    def redefine(self, changed: tuple[TableDefinition, ...], tables: TableMap) -> None:
        """The schema has changed: DEFINE what is new, and go on with `tables`."""
        if changed:
            self._note_section(PARTITION_STREAM)
        for definition in changed:
            self._emit(Op.DEFINE, definition.table_id, definition.version, definition.pack())
        before = self._context.tables
        self._use(tables)
        crossed = recaptured(before, tables)
        if crossed:
            self._net.cross(self._connection, crossed, before, tables, self._changes, self._stream)
            self.restless = self.pressing or self._net.pending > 0
        sequences = self._read_sequences() if tables.autoincrement else None
        self._context = self._context._replace(
            defines=self._context.defines or bool(changed),
            sequences=sequences,
            by_hand=frozenset(),  # DROP and RENAME write there, and do so on the other site
        )

    def _stream(self) -> Iterator[bytes]:
        """All that was captured so far."""
        yield from self._overflow.stream()
        yield bytes(self._buffer)

    def insert(self, table: str, rows: Any) -> None:
        """Rows that no hook reported (CREATE TABLE AS): images of a table that has just been defined."""
        captured = self._tables[table]
        assert captured is not None
        self._add_images(captured, captured.insert_prefix, rows)

    def delete_all(self, table: str, rows: Any) -> None:
        """Rows that go with their table, and its counter. Of these rows no hook is heard from here on, until the tables
        are read again (`redefine`, `hear_again`): SQLite may delete them one by one, or tell nobody."""
        captured = self._tables[table]
        assert captured is not None
        self._add_images(captured, captured.delete_prefix, rows)
        if captured.counts and (count := self._read_sequences().get(table)) is not None:
            self._note(captured)
            self._emit(Op.SEQUENCE, captured.definition.table_id, 0, [count, None])
        self._tables[table], self._last = None, None

    def _add_images(self, captured: CapturedTable, prefix: bytes, rows: Any) -> None:
        try:
            for image in rows:
                self._note(captured)
                self._append(prefix + self._pack(list(image)))
        except UnicodeDecodeError:
            raise not_utf8(captured.definition.table) from None

    def hear_again(self) -> None:
        """The table was not dropped."""
        self._tables_of = None
        self._take_tables(self._context.tables)

    def watch_sequences(self) -> None:
        """A statement comes that may move counters of AUTOINCREMENT. (No hook tells of it if it inserts no row, as
        INSERT OR IGNORE may: measured.)"""
        if self._context.sequences is None and self._context.tables.autoincrement:
            self._context = self._context._replace(sequences=self._read_sequences())

    def doubt_sequences(self) -> None:
        """Rows may have been inserted without their counter, or a counter was written by hand (INSERT OR FAIL keeps
        rows and raises no counter, measured): all counters travel."""
        if self._context.sequences is not None:
            self._context = self._context._replace(doubt=True)

    def close_sequences(self) -> None:
        """Put the AUTOINCREMENT counters that moved, or may have, into the stream. Before each schema change, and at
        commit."""
        context = self._context
        by_hand = context.by_hand
        if context.sequences is not None:
            now = self._read_sequences()
            for name, table in self._tables.items():
                if table is None or not table.counts:
                    continue
                old, new = context.sequences.get(name), now.get(name)
                if old != new or context.doubt:
                    self._note(table)
                    self._emit(Op.SEQUENCE, table.definition.table_id, 0, [old, new])
                    if new is None and name in now:
                        by_hand |= {name}  # a row that holds no number, which that change takes away there
            self._context = self._context._replace(sequences=now, doubt=False)
        if by_hand:
            self._close_by_hand(by_hand)
            self._context = self._context._replace(by_hand=frozenset())

    def _close_by_hand(self, names: frozenset[Any]) -> None:
        """Rows of sqlite_sequence by which no table counts travel as texts, after the counters: left over, or there
        before their table. So does one that holds no number, which the counters take for none."""
        query = f"SELECT seq FROM {quote(self.schema)}.sqlite_sequence WHERE name IS ?"
        for name in sorted(names, key=repr):
            table = self._tables.get(name)
            found = [value for (value,) in self._connection.execute(query, (name,))]
            if len(found) > 1:
                self._refuse_two_counters()
            elif table is None or not table.counts or found == [None]:
                for text in counter_statements(name, *found, where=self.region):
                    self.statement(text)

    def _read_sequences(self) -> Mapping[str, int]:
        rows: list[Any] = self._connection.execute(_counters_of(self.schema)).fetchall()
        counters = dict(rows)
        if len(counters) != len(rows):
            self._refuse_two_counters()
        return counters

    def _refuse_two_counters(self) -> None:
        self.refuse(NotSupportedError("a table has two counters in sqlite_sequence", do="Roll back; keep one"))

    def _use(self, tables: TableMap) -> None:
        self._context = self._context._replace(tables=tables)
        self._take_tables(tables)

    def _take_tables(self, tables: TableMap) -> None:
        if tables is not self._tables_of:
            self._tables_of = tables
            self._tables = {**tables.tables, **_OWN}
            if self._overflow.spool is None:
                self._limit = frame_room(tables)
            self.counted = tables.autoincrement
            self.pressing = tables.virtual or bool(self._blobs)
            self.restless = self.pressing or self._net.pending > 0
        self._last = None

    # The hook. Every name that is looked up here costs a percent of all writes.

    def _on_change(self, update: apsw.PreUpdate) -> None:
        try:
            if self.foreign and update.database_name != self.schema:
                return
            table: CapturedTable | Literal[False] | None = self._tables.get(update.table_name, False)
            if not table:
                if table is False and not self.deaf:
                    self._stranger(update.table_name, update)
                return
            if table is not self._last:
                self._note(table)
                if table.net:
                    self._touch(table, update)
                    return
            opcode = update.opcode
            pack = self._pack
            if opcode != _INSERT and self._blob_rows:
                self._tell_blobs(table, update)
            if opcode == _UPDATE:
                old: Any = update.old
                new: Any = update.update  # both are there for an UPDATE
                if 0.0 in old:
                    new = with_zeros(update, old, new)
                if not table.plain:
                    old, new = table.images(update, old, new)
                mask, bit, values = 0, 1, []
                for value in new:
                    if value is not _NO_CHANGE:
                        mask |= bit
                        values.append(value)
                    bit += bit
                values += old
                prefix = table.update_prefixes.get(mask)
                if prefix is None:
                    prefix = self._update_prefix(table, mask)
                chunk = prefix + pack(values)
            elif opcode == _INSERT:
                image = update.new
                chunk = table.insert_prefix + pack(image if table.plain else table.image(update.rowid, image))
            elif update.blob_write >= 0:
                self._blobs.note(table, update.rowid, table.image(update.rowid, update.old))
                self.restless = self.pressing = True
                return
            else:
                image = update.old
                chunk = table.delete_prefix + pack(image if table.plain else table.image(update.rowid, image))
            # `_append`, written out: this is passed for every row of a bulk change.
            buffer = self._buffer
            buffer += chunk
            self._changes = changes = self._changes + 1
            if len(buffer) > self._limit or (changes > FRAME_CHANGES_MAX and self._overflow.spool is None):
                self._flush()
        except BaseException as error:
            self._poison(error, update.table_name)

    def _touch(self, table: CapturedTable, update: apsw.PreUpdate) -> None:
        """The hook cannot give the row: note which one it is."""
        self._net.touch(table, update.rowid, update.rowid_new if update.opcode == _UPDATE else update.rowid)
        self.restless = True

    def _tell_blobs(self, table: CapturedTable, update: apsw.PreUpdate) -> None:
        """Before another change of a row: what was written to its BLOBs until now."""
        if update.blob_write < 0:
            before = self._blobs.take(table, update.rowid)
            if before is not None:
                self._append(self._update_of(table, before, table.image(update.rowid, update.old)))

    def _update_of(self, table: CapturedTable, before: list[Any], after: list[Any]) -> bytes:
        mask, values = 0, []
        for at, (old, new) in enumerate(zip(before, after, strict=True)):
            if type(old) is not type(new) or old != new:
                mask |= 1 << at
                values.append(new)
        prefix = table.update_prefixes.get(mask) or self._update_prefix(table, mask)
        images: bytes = self._pack([*values, *before])
        return prefix + images

    def _append(self, chunk: bytes) -> None:
        buffer = self._buffer
        buffer += chunk
        self._changes += 1
        if len(buffer) > self._limit or (self._changes > FRAME_CHANGES_MAX and self._overflow.spool is None):
            self._flush()

    def _emit(self, op: Op, table_id: int, argument: Any, values: list[Any]) -> None:
        pack = self._pack
        self._append(pack(int(op)) + pack(table_id) + pack(argument) + pack(values))

    def _flush(self) -> None:
        self._overflow.write(bytes(self._buffer))
        self._limit = PART_BYTES
        self._buffer.clear()

    def _note(self, table: CapturedTable) -> None:
        before, noted, after = self._noted  # transactions are alike: the last one's answer is this one's
        if self._context is before and table is noted and self.active:
            self._context, self._last = after, table
            return
        if not self.active:
            raise InternalError(f"a row of table {table.definition.table} changed outside of a transaction of ours")
        if table.refusal is not None:
            raise table.refusal
        self._last = None if table.net else table
        context, partition = self._context, table.definition.partition
        if partition not in context.partitions:
            self._context = context._replace(partitions=context.partitions | {partition})
            self._noted = (context, self._last, self._context)

    def _stranger(self, name: str, update: apsw.PreUpdate) -> None:
        if name == "sqlite_sequence":
            rows = [row for row in (update.old, update.new) if row is not None]
            by_hand = self._context.by_hand.union(row[0] for row in rows)
            self._context = self._context._replace(by_hand=by_hand)
            if self._context.tables.autoincrement and self._context.sequences is None:
                raise InternalError("sqlite_sequence was written without our expecting it", do="Roll back; tell us")
            self.doubt_sequences()
            return
        if is_own(name) or is_internal(name):
            self._tables[name] = None  # our bookkeeping and SQLite's own: not asked about again
            return
        raise NotSupportedError(f"rows of {name} cannot be replicated", do="Roll back", table=name)

    def _update_prefix(self, table: CapturedTable, mask: int) -> bytes:
        length = table.definition.image_length
        argument = mask if length <= MASK_BITS_MAX else mask.to_bytes((length + 7) // 8, "little")
        prefix: bytes = table.update_head + self._pack(argument)
        if len(table.update_prefixes) < 256:
            table.update_prefixes[mask] = prefix
        return prefix

    def _poison(self, error: BaseException, name: str) -> None:
        if isinstance(error, UnicodeDecodeError):
            error = not_utf8(name)
        self.refuse(error)
