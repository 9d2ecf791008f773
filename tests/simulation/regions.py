"""A model of a region: what SQLite keeps, without SQLite. The one part of the street that is not the product's code.

A real region takes a millisecond to open; a world has a hundredth of that. So the database is a list of commits, and a
power loss leaves a prefix of them, never shorter than what was checkpointed (WAL, synchronous=NORMAL). A commit is
whole or not there, with its ring slot and its synchronization checkpoint records; that SQLite does so is shown by the
tests with real regions. It is a kind of region (replicate/region/protocol.py), and stands in the place of SQLite's.

Guarantees: one writer at a time (LockedModelError); a row that is inserted twice is a ConflictError, as there.
Leaves to others: the journal, and what is right.
"""

from __future__ import annotations

import errno
import os
import random
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from replicate.errors import BusyError, ConflictError, DiskFullError, ReplicateError
from replicate.limits import PARTITION_STREAM
from replicate.model.transaction import TableDefinition
from replicate.model.vector import Position
from replicate.model.writers import Writers
from replicate.region.protocol import (
    CapturedChanges,
    FileFacts,
    Gap,
    MergingRows,
    RegionKind,
    RingSlot,
    RowsOfRegion,
    ScrRow,
    scr_chains,
    scr_vector,
)
from tests.simulation.content import Content, unpack_merge
from tests.simulation.merging import ModelMerging
from tests.simulation.rows import ModelRows, change_content, change_listed

INODE = 4711
_NO_CONTENT = Content()


@dataclass(slots=True)
class Pending:
    """What a transaction will do."""

    rows: list[int] = field(default_factory=list)
    slot: tuple[int, bytes | None] | None = None
    scr: list[ScrRow] = field(default_factory=list)
    state: dict[str, Any] = field(default_factory=dict)
    schema: int = 0
    stores_schema: bool = False
    deleted: list[int] = field(default_factory=list)
    ring_end: int | None = None
    """Slots of higher numbers are emptied."""
    taken_back_to: list[ScrRow] | None = None
    """The ring is emptied, and these are its checkpoint records from then on."""
    least_seqno: int = 0
    """The region holds at least that number, without a record."""
    content: Content | None = None
    """As the transaction has it, where it has changed it."""

    @property
    def is_empty(self) -> bool:
        """Nothing of this region was changed: its COMMIT is none."""
        is_changed = (
            self.rows or self.slot or self.scr or self.state or self.schema or self.stores_schema or self.content
        )
        return not (is_changed or self.deleted or self.ring_end is not None or self.taken_back_to is not None)


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
    content: Content | None = None
    """In the place of `rows`, where those have values."""
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
            self.seqno, self.content,
        )  # fmt: skip

    def _set(self, state: tuple[Any, ...]) -> None:
        self.rows, self.slots, self.scr, self.schema, self.stored_schema, self.state, self.seqno, self.content = state
        self.present = set(self.rows)

    def commit(self, pending: Pending) -> None:
        if self.fails_in:
            self.fails_in -= 1
            if not self.fails_in:
                raise FullModelError
        self.commits.append(self._state())
        if pending.deleted or pending.ring_end is not None:
            self._take_back(pending)
        if pending.taken_back_to is not None:
            self.slots = {}
            self.scr = {(row.origin, row.partition): row for row in pending.taken_back_to}
            self.seqno = max((row.seqno for row in pending.taken_back_to), default=0)
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
        if pending.content is not None:
            self.content = pending.content
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
            self.scr = {key: one for key, one in self.scr.items() if not one.partition or one.seqno <= end}
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


class ModelError(Exception):
    """An error of the model's own, as SQLite has its own."""


class FullModelError(ModelError):
    """database or disk is full"""


class LockedModelError(ModelError):
    """database is locked"""


@contextmanager
def naming(where: str) -> Iterator[None]:
    try:
        yield
    except ModelError as error:
        raise named(error, where) from error


def named(error: Exception, where: str) -> ReplicateError:
    text = type(error).__doc__ or ""
    return (BusyError if isinstance(error, LockedModelError) else DiskFullError)(text, where=where)


class Connection:
    """What an application's statements run on. `process` owns it, and other regions of its host may be attached to it.
    `between` is called between two files' commits of one transaction."""

    def __init__(self, region: Region, process: Any, between: Callable[[], None] = lambda: None) -> None:
        self.region = region
        self.parts = {"main": region}
        self.process = process
        self.pending: dict[str, Pending] = {}
        self.is_synced = False
        self.between = between

    @property
    def in_transaction(self) -> bool:
        self.process.check()
        return bool(self.pending)

    def begin(self) -> None:
        self.process.check()
        for region in self.parts.values():
            if region.writer is not None and not region.writer.process.is_dead:
                raise LockedModelError
        for schema, region in self.parts.items():
            region.writer, self.pending[schema] = self, Pending()

    def commit(self) -> None:
        """One file after the other, as SQLite does in WAL mode. When one fails, those before it are committed."""
        self.process.check()
        has_one = False
        for schema, pending in list(self.pending.items()):
            region = self.parts[schema]
            if not pending.is_empty:
                if has_one:
                    self.between()
                region.commit(pending)
                if self.is_synced:
                    region.sync()
                has_one = True
                self.pending[schema] = Pending()
        self._end()

    def rollback(self) -> None:
        self.process.check()
        self._end()

    def _end(self) -> None:
        self.pending.clear()
        for region in self.parts.values():
            if region.writer is self:
                region.writer = None

    def content(self, schema: str = "main") -> Content:
        """As it is seen here; with nothing in it where the region is a list."""
        pending = self.pending.get(schema)
        there = self.parts[schema].content if pending is None or pending.content is None else pending.content
        return _NO_CONTENT if there is None else there

    def working(self, schema: str = "main") -> Content:
        """The same, to be changed in the open transaction."""
        pending = self.open(schema)
        if pending.content is None:
            pending.content = self.content(schema).copy()
        return pending.content

    def version(self, schema: str = "main") -> int:
        """Of the region's one table's form."""
        return int(self.parts[schema].state.get("version", 1))

    def run(self, rows: list[int], *, version: int = 0, schema: str = "main") -> None:
        """What the application's statements do. `version`: the table gets that form first (0: it stays)."""
        pending = self.open(schema)
        pending.rows += rows
        if version:
            pending.schema += 1
            pending.state["version"] = version

    def open(self, schema: str = "main") -> Pending:
        self.process.check()
        return self.pending[schema]

    def execute(self, _text: str) -> None:
        """What attaches a region: the model's way is another one."""

    def close(self) -> None:
        if not self.process.is_dead:
            self._end()


class Opened:
    """An `ReadRegion`."""

    Error = ModelError

    def __init__(self, connection: Connection, where: str) -> None:
        self.connection = connection
        self.where = where
        self.region = connection.region

    def close(self) -> None:
        self.connection.close()

    def seqno(self) -> int:
        return self.region.seqno

    def checkpoint(self) -> list[ScrRow]:
        return [self.region.scr[key] for key in sorted(self.region.scr)]

    def writers(self) -> Writers:
        return self.connection.content().writers

    def absorbed(self) -> int:
        content = self.connection.content()
        return content.absorbed if content.writers.was_shared else 0

    def seen(self) -> dict[int, dict[int, int]]:
        return self.connection.content().seen

    def open_merges(self) -> int:
        return len(self.merges())

    def merges(self) -> list[Any]:
        return self.connection.content().merges

    def tables(self) -> Sequence[TableDefinition]:
        """None of a model's is looked at."""
        return ()

    def unmergeable(self, definition: TableDefinition, *, keys_chosen: bool) -> None:
        """A model's tables can all be merged."""

    def unsummable(self, definition: TableDefinition, column: str) -> str:
        return "a model's columns are no sums"

    def check_identity(self, *, network: bytes, instance: bytes) -> None:
        """A model is never another's."""

    def find_gap(self, *, primary: bool, missed: Callable[[Gap], int]) -> tuple[Gap, int] | None:
        """A model has no WAL beside it."""

    def errno_of(self, error: Exception) -> int:
        return errno.ENOSPC if isinstance(error, FullModelError) else errno.EIO

    def rollback(self) -> None:
        self.connection.rollback()

    def flush(self) -> None:
        """All of it is in memory."""

    def schema_version(self, schema: str = "main") -> int:
        pending = self.connection.pending.get(schema)
        return self.connection.parts[schema].schema + (pending.schema if pending is not None else 0)

    def rows(self, definitions: Mapping[int, TableDefinition], name: str) -> ModelRows:
        change = change_listed if self.region.content is None else change_content
        return ModelRows(self.connection, definitions, name, change)


class ModelWrittenRegion:
    """A `WrittenRegion`."""

    def __init__(self, connection: Connection, schema: str) -> None:
        self._connection = connection
        self._region = connection.parts[schema]
        self.schema = schema

    def read_version(self) -> int:
        return Opened(self._connection, "").schema_version(self.schema)

    def write_slot(self, seqno: int, record: bytes | None) -> None:
        self._connection.open(self.schema).slot = (seqno, record)

    def seqno(self) -> int:
        return self._region.seqno

    def writers(self) -> Writers:
        return self._connection.content(self.schema).writers

    def name_writer(self, partition: int, values: Sequence[object], seqno: int) -> None:
        self._connection.working(self.schema).told_of_writers(partition, values, seqno)

    def tell_by_key(self, tables: Collection[str]) -> tuple[TableDefinition, ...]:
        return ()

    def tables(self) -> Sequence[TableDefinition]:
        """What a change of the schema could spoil: nothing of a model's."""
        return ()

    def unmergeable(self, definition: TableDefinition, *, keys_chosen: bool) -> None:
        """A model's tables can all be merged."""

    def unsummable(self, definition: TableDefinition, column: str) -> str:
        return ""

    def take_places(self) -> None:
        """A model's tables count no keys."""

    def forget_stamps(self, seqno: int) -> None:
        self._connection.working(self.schema).schema_changed(seqno)

    def counted_out(self, writers: Writers, own: bytes) -> tuple[str, int] | None:
        """A model's tables count no keys."""

    def foreign_since(self, seqno: int, own: int) -> dict[int, int]:
        moved = (one for one in self._region.scr.values() if one.partition == PARTITION_STREAM and one.seqno >= seqno)
        return {one.origin: one.origin_seqno for one in moved if one.origin != own}

    def note_seen(self, teller: int, told: Mapping[int, int]) -> None:
        self._connection.working(self.schema).told_of_seen(teller, told)

    def move_record(self, origin: int, partition: int, origin_seqno: int, chain: int, csn: int, seqno: int) -> None:
        self._connection.open(self.schema).scr.append(ScrRow(origin, partition, origin_seqno, chain, csn, seqno))

    def store_version(self) -> None:
        self._connection.open(self.schema).stores_schema = True

    def take_write_lock(self) -> bool:
        return True

    def is_released(self) -> bool:
        return False


class ModelWriter(Opened):
    """A `RegionWriter`. `host`: where the regions are that it attaches."""

    def __init__(self, connection: Connection, where: str, host: Any) -> None:
        super().__init__(connection, where)
        self.own = ModelWrittenRegion(connection, "main")
        self._host = host

    def begin(self) -> None:
        self.connection.begin()

    def commit(self) -> None:
        self.connection.commit()

    def violations(self) -> tuple[int, int]:
        return (0, 0)

    def named(self, error: Exception, where: str) -> ReplicateError:
        return named(error, where)

    def is_missing(self, error: Exception) -> bool:
        return False

    def attach(self, path: str | os.PathLike[str], schema: str, run: Callable[[str], object]) -> ModelWrittenRegion:
        self.connection.parts[schema] = self._host.region_at(path)
        return ModelWrittenRegion(self.connection, schema)

    def detach(self, schema: str) -> None:
        del self.connection.parts[schema]

    def check(self, captured: CapturedChanges, regions: Sequence[tuple[str, str]]) -> None:
        """The oracle checks more."""


class ModelApplied(Opened):
    """An `AppliedRegion`."""

    def position(self, last_seqno: int) -> Position:
        rows = self.checkpoint()
        return Position(last_seqno, scr_vector(rows), scr_chains(rows))

    def merging(self, rows: RowsOfRegion, *, region: str = "") -> MergingRows:
        assert isinstance(rows, ModelRows)
        return ModelMerging(self.connection, rows, region)

    def added_as(self) -> object:
        return None

    def begin(self, *, changed_do: str) -> None:
        with naming(self.where):
            self.connection.begin()
        assert self.region.schema == self.region.stored_schema, changed_do

    def let_others_in(self) -> None:
        self.region.state["feed"] = 1

    @contextmanager
    def beside(self, copy: str | os.PathLike[str]) -> Iterator[None]:
        self._copy = self.connection.process.host.region_at(copy)
        yield

    def take_rows(
        self, keeps: Callable[[int], bool], rows: Sequence[ScrRow], told: Callable[[str, int, int], None], *, copy: bool
    ) -> int:
        """Of a region that is a list: the copy's state says which rows are of its partitions."""
        assert copy
        pending, is_of_it = self.connection.open(), self._copy.state["is_of_it"]
        pending.deleted += [row for row in self.region.rows if is_of_it(row)]
        pending.rows += self._copy.rows
        pending.scr += [row for row in rows if keeps(row.partition)]
        return 1

    def drop_some(self, keeps: Callable[[int], bool], rows_max: int) -> int:
        raise AssertionError("no round of the simulation deletes partitions")

    def prepare(self, rows: Sequence[ScrRow], *, applied_from: int, defines: bool, slot: int = 0) -> None:
        pending = self.connection.open()
        pending.stores_schema |= defines
        write_scr(self.connection, rows)
        if slot:
            pending.slot = (slot, None)
        else:
            pending.state["applied_from"] = applied_from

    def commit(self) -> None:
        """Of several regions whose rows have values, one after the other: somebody may die in between."""
        if self.region.number and self.region.content is not None:
            self.connection.between()
        self.connection.commit()


class ModelMended(Opened):
    """A `MendedRegion`."""

    def ring(self) -> list[RingSlot]:
        return [RingSlot(*slot) for slot in sorted(self.region.slots.values(), key=lambda slot: slot[0])]

    def stored_version(self) -> int:
        return self.region.stored_schema

    def held_below(self) -> int:
        state, seqno = self.region.state, self.region.seqno
        is_ours = state.get("held_at") in (None, seqno)
        return max(seqno + 1, state.get("held_below", 0) if is_ours else 0)

    def may_lack_from(self) -> int:
        seqno = self.region.seqno
        return self.held_below() if self.region.state.get("held_at") == seqno else seqno + 1

    def note_held(self, below: int) -> None:
        for key, value in (("held_below", below), ("held_at", self.region.seqno)):
            self.connection.process.check()
            self.region.commit(Pending(state={key: value}))

    def forget_held(self, last_seqno: int) -> None:
        with self.synced():
            self.connection.process.check()
            if self.region.state.get("held_below", 0) > last_seqno + 1:
                self.region.commit(Pending(state={"held_below": last_seqno + 1}))

    @contextmanager
    def synced(self) -> Iterator[None]:
        self.connection.is_synced = True
        yield
        self.connection.is_synced = False

    @contextmanager
    def transaction(self) -> Iterator[None]:
        with naming(self.where):
            self.connection.begin()
            try:
                yield
                self.connection.commit()
            except BaseException:
                if not self.connection.process.is_dead:
                    self.connection.rollback()
                raise

    def write_slot(self, seqno: int, record: bytes | None) -> None:
        self.connection.open().slot = (seqno, record)

    def move_checkpoint(self, rows: Sequence[ScrRow], *, applied_from: int) -> None:
        write_scr(self.connection, rows)
        if applied_from:
            self.connection.open().state["applied_from"] = applied_from

    def cut_ring(self, last_seqno: int, *, reaches: bool) -> None:
        pending = self.connection.open()
        pending.ring_end = last_seqno
        if reaches:
            pending.least_seqno = last_seqno

    def note_taken_back(self, reached: int, rows: list[ScrRow], *, last: bool) -> None:
        pending = self.connection.open()
        pending.taken_back_to = rows
        if not last:
            pending.slot = (reached, None)
        pending.state["applied_from"] = 1


def write_scr(connection: Connection, rows: Sequence[ScrRow]) -> None:
    connection.open().scr += rows


class Held:
    """A `HeldRegions`: the model has one moment only, and no other process runs meanwhile."""

    def __init__(self, opened: dict[str, Opened]) -> None:
        self.opened = opened

    @property
    def connections(self) -> dict[str, Connection]:
        return {name: one.connection for name, one in self.opened.items()}

    def begin(self) -> None:
        """It is now."""

    def close(self) -> None:
        for one in self.opened.values():
            one.close()
        self.opened.clear()


class ModelKind:
    """A `RegionKind` in a world. `between`: see Connection."""

    Error = ModelError
    naming = staticmethod(naming)

    def __init__(self, kernel: Any, between: Callable[[], None]) -> None:
        self._kernel = kernel
        self._between = between

    def _open(self, path: str | os.PathLike[str]) -> Connection:
        process = self._kernel.process
        process.check()
        return Connection(process.host.region_at(path), process, self._between)

    def reader(self, path: str | os.PathLike[str], *, region: bytes, opening_s: float | None = None) -> Opened:
        return Opened(self._open(path), str(path))

    def writer(self, path: str | os.PathLike[str], *, region: bytes, writable: bool, opening_s: float) -> ModelWriter:
        return ModelWriter(self._open(path), str(path), self._kernel.process.host)

    def applied(self, path: str | os.PathLike[str], *, region: bytes) -> ModelApplied:
        return ModelApplied(self._open(path), str(path))

    def mended(self, path: str | os.PathLike[str], *, region: bytes) -> ModelMended:
        return ModelMended(self._open(path), str(path))

    def held(self, paths: Mapping[str, tuple[str | os.PathLike[str], bytes]]) -> Held:
        return Held({name: Opened(self._open(path), str(path)) for name, (path, _) in paths.items()})

    def facts(self, path: str | os.PathLike[str]) -> FileFacts:
        return FileFacts(7, INODE)

    def check_same_file(self, path: str, opened: FileFacts, *, region: str, way_out: str) -> None:
        """Nobody puts another in its place."""

    def may_be_older(self, path: str | os.PathLike[str]) -> bool:
        return False

    def note_held(self, path: str | os.PathLike[str], *, region: bytes, last_seqno: int, below: int) -> None:
        there = self._kernel.process.host.region_at(path)
        assert there.seqno >= last_seqno
        there.state |= {"held_below": below, "held_at": there.seqno}

    def gave_way(self, losses: Sequence[bytes]) -> bool:
        return any(unpack_merge(packed, 0).lost.what == "unique" for packed in losses)

    def sync(self, path: str | os.PathLike[str]) -> None:
        self._kernel.process.check()
        self._kernel.process.host.region_at(path).sync()

    def flush(self, path: str | os.PathLike[str], *, region: bytes) -> None:
        self._kernel.process.check()


_ACCEPTED: type[RegionKind] = ModelKind  # mypy holds the model against the protocol (test_architecture.py)
