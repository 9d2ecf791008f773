"""A model of a region: what SQLite keeps, without SQLite. The one part of the street that is not the product's code.

A real region takes a millisecond to open; a world has a hundredth of that. So the database is a list of commits, and a
power loss leaves a prefix of them, never shorter than what was checkpointed (WAL, synchronous=NORMAL). A commit is
whole or not there, with its ring slot and its synchronization checkpoint records; that SQLite does so is shown by the
tests with real regions. The functions below stand in the places of those of replicate/database.

Guarantees: one writer at a time (apsw.BusyError); a row that is inserted twice is a ConflictError, as there.
Refuses to know: the journal, and what is right.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

import apsw

from replicate.database.bookkeeping import RingSlot, ScrRow
from replicate.database.sqlite import FileFacts
from replicate.errors import ConflictError
from replicate.transaction import Op, TableDefinition

INODE = 4711


@dataclass(slots=True)
class Pending:
    """What a transaction will do."""

    rows: list[int] = field(default_factory=list)
    slot: tuple[int, bytes | None] | None = None
    scr: list[ScrRow] = field(default_factory=list)
    state: dict[str, Any] = field(default_factory=dict)
    schema: int = 0
    stores_schema: bool = False
    marks: list[int] = field(default_factory=list)
    deleted: list[int] = field(default_factory=list)
    ring_end: int | None = None
    """Slots of higher numbers are emptied."""
    least_seqno: int = 0
    """The region holds at least that number, without a record."""

    @property
    def is_empty(self) -> bool:
        """Nothing of this region was changed: its COMMIT is none."""
        is_changed = self.rows or self.slot or self.scr or self.state or self.schema or self.stores_schema
        return not (is_changed or self.deleted or self.ring_end is not None)


@dataclass(slots=True)
class Region:
    """One region of a host. `rows`: the identities of the rows, in the order in which they were inserted."""

    ring_slots: int
    number: int = 0
    rows: list[int] = field(default_factory=list)
    present: set[int] = field(default_factory=set)
    slots: dict[int, tuple[int, bytes | None]] = field(default_factory=dict)
    scr: dict[tuple[int, int], ScrRow] = field(default_factory=dict)
    schema: int = 1
    stored_schema: int = 1
    state: dict[str, Any] = field(default_factory=dict)
    seqno: int = 0
    writer: Any = None
    commits: list[tuple[Any, ...]] = field(default_factory=list)
    """What stood before each commit that is not certain yet, to go back to."""
    fails_in: int = 0
    """The n-th COMMIT from now fails with a full disk (0: none)."""
    on_commit: Callable[[Region, Pending], None] = lambda _region, _pending: None
    on_take_back: Callable[[Region, Pending], None] = lambda _region, _pending: None

    def copy(self) -> Region:
        made = Region(self.ring_slots, self.number, list(self.rows), set(self.rows))
        made._set(self._state())
        return made

    def _state(self) -> tuple[Any, ...]:
        return (
            list(self.rows), dict(self.slots), dict(self.scr), self.schema, self.stored_schema, dict(self.state),
            self.seqno,
        )  # fmt: skip

    def _set(self, state: tuple[Any, ...]) -> None:
        self.rows, self.slots, self.scr, self.schema, self.stored_schema, self.state, self.seqno = state
        self.present = set(self.rows)

    def commit(self, pending: Pending) -> None:
        if self.fails_in:
            self.fails_in -= 1
            if not self.fails_in:
                raise apsw.FullError("database or disk is full")
        self.commits.append(self._state())
        if pending.deleted or pending.ring_end is not None:
            self._take_back(pending)
        self.rows += pending.rows
        self.present.update(pending.rows)
        if pending.slot is not None:
            seqno, record = pending.slot
            self.slots[seqno % self.ring_slots] = (seqno, record)
            self.seqno = max(self.seqno, seqno)
        for row in pending.scr:
            known = self.scr.get((row.origin, row.partition))
            if known is None or (row.seqno >= known.seqno and row.origin_seqno >= known.origin_seqno):
                self.scr[row.origin, row.partition] = row
            self.seqno = max(self.seqno, row.seqno)
        self.state.update(pending.state)
        self.schema += pending.schema
        if pending.stores_schema:
            self.stored_schema = self.schema
        self.on_commit(self, pending)

    def _take_back(self, pending: Pending) -> None:
        gone = set(pending.deleted)
        if len(gone) != len(pending.deleted) or gone - self.present:
            raise ConflictError(f"rows {pending.deleted} are to be deleted, and are not all there")
        self.rows = [row for row in self.rows if row not in gone]
        self.present -= gone
        end = pending.ring_end
        if end is not None:
            self.slots = {place: slot for place, slot in self.slots.items() if slot[0] <= end}
            rest = [slot[0] for slot in self.slots.values()] + [row.seqno for row in self.scr.values()]
            self.seqno = max(rest, default=0)
        place = pending.least_seqno % self.ring_slots
        if pending.least_seqno > self.slots.get(place, (0, None))[0]:
            self.slots[place] = (pending.least_seqno, None)
            self.seqno = max(self.seqno, pending.least_seqno)
        self.on_take_back(self, pending)

    def sync(self) -> None:
        """All commits are certain from now on."""
        self.commits.clear()

    def checkpoint(self, dice: random.Random) -> None:
        """SQLite has synced what was committed up to some moment."""
        del self.commits[: dice.randrange(len(self.commits) + 1)]

    def power_loss(self, dice: random.Random) -> None:
        """A prefix of the commits stays."""
        self.writer = None
        self.fails_in = 0
        lot = dice.random()
        if self.commits and lot < 0.8:
            place = dice.randrange(len(self.commits) + 1) if lot < 0.5 else 0
            if place < len(self.commits):
                self._set(self.commits[place])
        self.commits.clear()


class Connection:
    """As much of an apsw.Connection as the product uses on a region. `process` owns it, and other regions of its host
    may be attached to it. `between` is called between two files' commits of one transaction."""

    system_errno = 0

    def __init__(self, region: Region, process: Any, between: Callable[[], None] = lambda: None) -> None:
        self.region = region
        self.parts = {"main": region}
        self._pending: dict[str, Pending] = {}
        self._process = process
        self._between = between
        self._is_synced = False

    @property
    def in_transaction(self) -> bool:
        self._process.check()
        return bool(self._pending)

    def cursor(self) -> Connection:
        return self

    def status(self, _what: int) -> tuple[int, int]:
        return (0, 0)

    def cache_flush(self) -> None:
        pass

    def changes(self) -> int:
        return 1

    def execute(self, sql: str, *arguments: Any, **_: Any) -> Any:
        self._process.check()
        word = sql.partition(" ")[0]
        if word == "BEGIN":
            self._begin()
        elif word == "COMMIT":
            self._commit()
        elif word == "ROLLBACK" and not sql.startswith("ROLLBACK TO"):
            self._roll_back()
        elif word == "ATTACH":
            path, schema = (text.strip("'\"") for text in sql.removeprefix("ATTACH ").split(" AS "))
            self.parts[schema] = self._process.host.region_at(path)
        elif word == "UPDATE" and "_replicate_ring" in sql:
            self._update_ring(sql, *arguments[0])
        elif word == "PRAGMA" and "synchronous" in sql:
            self._is_synced = sql.endswith("FULL")
        elif word == "PRAGMA":
            return SimpleNamespace(get=schema_version(self))
        elif word == "SAVEPOINT":
            self._open().marks.append(len(self._open().rows))
        elif word == "ROLLBACK":
            del self._open().rows[self._open().marks[-1] :]
        elif word == "RELEASE":
            self._open().marks.pop()
        elif "_replicate_state" in sql or sql.startswith("SELECT max("):
            return self._bookkeeping(sql, *arguments)
        else:
            raise AssertionError(f"the model of a region does not know {sql!r}")
        return None

    def _bookkeeping(self, sql: str, values: tuple[Any, ...] = ()) -> Any:
        """What functions of replicate/database/bookkeeping.py ask themselves, that no function of ours stands for."""
        if sql.startswith("SELECT value"):
            return SimpleNamespace(get=self.region.state.get(values[0]))
        if sql.startswith("SELECT max("):
            return SimpleNamespace(get=self.region.seqno)
        assert sql.startswith("INSERT OR REPLACE"), sql
        if self._pending:
            self._open().state[values[0]] = values[1]
        else:
            self.region.commit(Pending(state=dict([values])))
        return None

    def _update_ring(self, sql: str, *values: int) -> None:
        if "seqno = 0" in sql:
            (self._open().ring_end,) = values
        else:
            self._open().least_seqno = values[1]

    def _begin(self) -> None:
        for region in self.parts.values():
            if region.writer is not None and not region.writer._process.is_dead:
                raise apsw.BusyError("database is locked")
        for schema, region in self.parts.items():
            region.writer, self._pending[schema] = self, Pending()

    def _commit(self) -> None:
        """One file after the other, as SQLite does in WAL mode. When one fails, those before it are committed."""
        has_one = False
        for schema, pending in list(self._pending.items()):
            region = self.parts[schema]
            if not pending.is_empty:
                if has_one:
                    self._between()
                region.commit(pending)
                if self._is_synced:
                    region.sync()
                has_one = True
                self._pending[schema] = Pending()
        self._roll_back()

    def _roll_back(self) -> None:
        self._pending.clear()
        for region in self.parts.values():
            if region.writer is self:
                region.writer = None

    def version(self, schema: str = "main") -> int:
        """Of the region's one table's form."""
        return int(self.parts[schema].state.get("version", 1))

    def run(self, rows: list[int], *, version: int = 0, schema: str = "main") -> None:
        """What the application's statements do. `version`: the table gets that form first (0: it stays)."""
        pending = self._open(schema)
        pending.rows += rows
        if version:
            pending.schema += 1
            pending.state["version"] = version

    def _open(self, schema: str = "main") -> Pending:
        return self._pending[schema]

    def close(self, _force: bool = False) -> None:
        if not self._process.is_dead:
            self._roll_back()


class Rows:
    """RowApplier."""

    def __init__(self, connection: Connection, definitions: Any, *, region: str = "") -> None:
        self._connection = connection
        self.definitions = dict(definitions)
        self.region = region
        self.seqno = 0

    def begin(self) -> None:
        pass

    def forget_plans(self) -> None:
        pass

    def define(self, table_id: int, definition: TableDefinition) -> None:
        self.definitions[table_id] = definition

    def apply_columns(self, ops: Any, table_ids: Any, arguments: Any, values: Any) -> None:
        pending = self._connection._open()
        present, rows = self._connection.region.present, pending.rows
        for op, table_id, image in zip(ops, table_ids, values, strict=True):
            if op == Op.INSERT:
                assert table_id in self.definitions
                if image[0] in present or image[0] in rows:
                    raise ConflictError(f"row {image[0]} is there already", seqno=self.seqno)
                rows.append(image[0])
            elif op == Op.DELETE:
                pending.deleted.append(image[0])
            elif op == Op.DEFINE:
                self.definitions[table_id] = definition = TableDefinition.unpack(image)
                pending.state["version"] = definition.version
            elif op == Op.SCHEMA:
                pending.schema += 1
                pending.stores_schema = True

    def apply_sorted(self, ops: Any, table_ids: Any, arguments: Any, values: Any) -> None:
        self.apply_columns(ops, table_ids, arguments, values)

    def apply_all(self, changes: Sequence[Any], start: int = 0) -> int:
        flat = changes[start:]
        self.apply_columns(flat[0::4], flat[1::4], flat[2::4], flat[3::4])
        return len(flat) // 4


# In the place of functions of the same names.


def write_slot(connection: Connection, seqno: int, record: bytes | None, schema: str = "main") -> None:
    connection._process.check()
    connection._open(schema).slot = (seqno, record)


def slot_writer(connection: Connection, schema: str = "main") -> Callable[[int, bytes | None], None]:
    return lambda seqno, record: write_slot(connection, seqno, record, schema)


def write_scr(connection: Connection, rows: Any) -> None:
    connection._process.check()
    connection._open().scr += rows


def read_scr(connection: Connection, _schema: str = "main") -> list[ScrRow]:
    return [connection.region.scr[key] for key in sorted(connection.region.scr)]


def read_ring(connection: Connection, _schema: str = "main") -> list[RingSlot]:
    return [RingSlot(*slot) for slot in sorted(connection.region.slots.values(), key=lambda slot: slot[0])]


def read_state(connection: Connection, key: str) -> Any:
    return connection.region.state.get(key)


def write_state(connection: Connection, key: str, value: Any, schema: str = "main") -> None:
    connection._process.check()
    connection._open(schema).state[key] = value


def region_seqno(connection: Connection, schema: str = "main") -> int:
    return connection.parts[schema].seqno


def schema_version(connection: Connection, schema: str = "main") -> int:
    pending = connection._pending.get(schema)
    return connection.parts[schema].schema + (pending.schema if pending is not None else 0)


def stored_schema_version(connection: Connection, _schema: str = "main") -> int:
    return connection.region.stored_schema


def store_schema_version(connection: Connection, schema: str = "main") -> None:
    connection._open(schema).stores_schema = True


def check_schema_version(connection: Connection, *, do: str = "") -> None:
    assert connection.region.schema == connection.region.stored_schema, do


def region_facts(_path: Any) -> FileFacts:
    return FileFacts(7, INODE)


def check_nothing(*_: Any, **__: Any) -> None:
    """What a model can not fail."""
