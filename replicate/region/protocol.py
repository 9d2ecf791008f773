"""What a kind of region must be able to do, and what passes between it and the commit door.

A *kind* is a sort of database: SQLite is one (sqlite/kind.py). The door, recovery and rollback know these names only;
which kind there is says kind.py. The simulation has a kind of its own, without a database
(tests/simulation/regions.py). mypy holds both against `RegionKind`.

Guarantees: types only; no call is made through them that was not made before.
Leaves to others: how a kind keeps its promises, and when the door asks for them. The kind's own errors
(`RegionKind.Error`) pass where it is said; everything else that is raised is ours.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

from msgspec import Struct

from replicate.limits import PARTITION_STREAM
from replicate.model.merged_row import Lost, Stamp
from replicate.model.transaction import History, TableDefinition
from replicate.model.vector import Position, SynchronizationVector
from replicate.model.writers import Writers

if TYPE_CHECKING:
    from replicate.errors import ReplicateError
    from replicate.journal.spool import Spool

Path = str | os.PathLike[str]


# What passes between them.


class FileFacts(Struct, frozen=True):
    """What tells a file from another one at the same path: device and inode numbers."""

    device: int
    inode: int


class RingSlot(Struct, frozen=True):
    """One commit of a region: its seqno and, unless it was too large, its whole journal frame."""

    seqno: int
    record: bytes | None


class ScrRow(Struct, frozen=True):
    """A synchronization checkpoint record: the last transaction of (origin, partition) that a region holds.

    `origin` is the origin's key (u32), `chain` and `csn` are u64, `seqno` is the number in this instance's own journal.
    """

    origin: int
    partition: int
    origin_seqno: int
    chain: int
    csn: int
    seqno: int


def scr_vector(rows: Iterable[ScrRow]) -> SynchronizationVector:
    """The vector that the checkpoint records spell."""
    return SynchronizationVector({(row.origin, row.partition): row.origin_seqno for row in rows})


def scr_chains(rows: Iterable[ScrRow]) -> dict[int, tuple[int, int]]:
    """origin key -> (origin_seqno, chain hash there), from the whole-stream records."""
    return {row.origin: (row.origin_seqno, row.chain) for row in rows if row.partition == PARTITION_STREAM}


def partition_row(position: Position, origin: int, partition: int, origin_seqno: int, last: int = 0) -> ScrRow:
    """The checkpoint record of a partition, where transactions of that origin alone stand from `origin_seqno` on, up to
    our number `last` (0: to the end of `position`). Its number here follows from that; its chain hash and csn, which
    the stream's record has for the whole stream, are 0: the journal has them at that number."""
    here = (last or position.last_seqno) - (position.chains[origin][0] - origin_seqno)
    return ScrRow(origin, partition, origin_seqno, 0, 0, here)


def with_own_numbers(rows: list[ScrRow], there: Iterable[ScrRow], last_seqno: int) -> list[ScrRow]:
    """`rows`, with those in place of their likes that regions have of the same transactions, `there`: of an origin that
    others came after, a position does not tell our number of it. One names `last_seqno` at least."""
    known: dict[tuple[int, int, int], ScrRow] = {}
    for row in sorted(there, key=lambda row: row.seqno):
        known[row.origin, row.partition, row.origin_seqno] = row
    made = [known.get((row.origin, row.partition, row.origin_seqno), row) for row in rows]
    return made if any(row.seqno == last_seqno for row in made) else rows


def ends_of(histories: Iterable[History], last_seqno: int) -> dict[int, int]:
    """Origin -> our number of its last transaction, of a journal up to `last_seqno` in which each has written alone
    until the next one began; so it is in all but a supplier's."""
    begun = sorted(histories, key=lambda one: one.seqno)
    numbers = [*(one.seqno - 1 for one in begun[1:]), last_seqno]
    return {one.origin.key: last for one, last in zip(begun, numbers, strict=False)}


def scr_rows(position: Position, csn: int, ends: Mapping[int, int] = MappingProxyType({})) -> list[ScrRow]:
    """The checkpoint records that say `position`: one for each origin's whole stream and for each partition. `ends`: of
    `ends_of`; of an origin that it does not name the records have numbers as if all after them were its own."""
    if position.last_seqno not in {ends.get(origin) for origin in position.chains}:
        ends = {}  # what a region holds is told by the highest: one names the end
    rows = [
        ScrRow(origin, PARTITION_STREAM, last, chain, csn, ends.get(origin, position.last_seqno))
        for origin, (last, chain) in position.chains.items()
    ]
    rows += [
        partition_row(position, origin, partition, last, ends.get(origin, 0))
        for (origin, partition), last in position.vector.items()
        if partition != PARTITION_STREAM and origin in position.chains
    ]
    return rows


class Gap(Struct, frozen=True):
    """The database beneath a WAL holds its region's transactions up to `held`; the WAL's first commit is `first`.

    `record`: how the journal frame of `first` begins, as far as the region has it at hand (b"": it was too large).
    """

    held: int
    first: int
    record: bytes


class CapturedChanges(NamedTuple):
    """One transaction's changes, ready for a frame. With a spool, all of them are in the spool and `payload` is empty.

    `count`: elements (four to a change). `defines`: it holds DEFINE changes. `schema_changed`: the region's schema
    version moved. `touched`: of a connection with several regions, the names under which those are attached that have
    changes, and whether the schema version of each moved. `tables`: where the changes belong to several sections
    (journal/sections.py), table id -> partition of all tables at the transaction's beginning.
    """

    payload: bytes
    count: int  # type: ignore[assignment]  # hides tuple.count, which nobody asks of these
    partitions: tuple[int, ...]
    defines: bool
    spool: Spool | None
    schema_changed: bool
    touched: Mapping[str, bool] | None = None
    tables: Mapping[int, int] | None = None


class Merged(Struct, frozen=True):
    """What was lost as two suppliers had changed one row at once: in the transaction `seqno` of our journal, of the row
    with that `key`. `columns`: the names of the images' values. `left`: the row after it; None where it is gone.
    `region`: where the table is, of a supplier with several; else ""."""

    seqno: int
    table: str
    columns: tuple[str, ...]
    key: tuple[Any, ...]
    lost: Lost
    left: tuple[Any, ...] | None
    region: str = ""


class MergedRow(Struct, frozen=True):
    """What was lost in one merge, by its `number` here. `state`: open or settled."""

    number: int
    state: str
    merged: Merged


class Unmergeable(Struct, frozen=True):
    """Why several suppliers cannot write a table, and what to do about it."""

    table: str
    why: str
    do: str


# What a kind opens.


class ReadRegion(Protocol):
    """A region that is open, for whatever purpose. Reading raises the kind's own errors."""

    @property
    def where(self) -> str:
        """The path of its file."""

    def close(self) -> None:
        """Close it. May be called twice."""

    def seqno(self) -> int:
        """The last transaction that it holds."""

    def checkpoint(self) -> list[ScrRow]:
        """Its checkpoint records."""

    def writers(self) -> Writers:
        """Which supplier writes what of it."""

    def absorbed(self) -> int:
        """Where several suppliers write something: rows' stamps are those of the journal up to this number, and what
        comes after it is still to be looked at. Else 0."""

    def seen(self) -> Mapping[int, Mapping[int, int]]:
        """Of each origin what it has told that it has seen (model/seen.py)."""

    def open_merges(self) -> int:
        """How many values that were lost in merges were not looked at."""

    def merges(self) -> Iterable[MergedRow]:
        """What was lost in merges, oldest first."""

    def tables(self) -> Sequence[TableDefinition]:
        """What is recorded of its tables."""

    def unmergeable(self, definition: TableDefinition, *, keys_chosen: bool) -> Unmergeable | None:
        """Why several suppliers cannot write a table of it; None where they can. `keys_chosen`: the application gives
        every row a key that no other site gives."""

    def unsummable(self, definition: TableDefinition, column: str) -> str:
        """Why what several suppliers add to a column of a table cannot be added up; "" where it can."""

    def check_identity(self, *, network: bytes, instance: bytes) -> object:
        """RegionReplacedError unless it is the region that it was opened as, of that network and instance; else
        FormatUnknownError, RegionDamagedError."""

    def find_gap(self, *, primary: bool, missed: Callable[[Gap], int]) -> tuple[Gap, int] | None:
        """What it lacks because an older copy of it stands beside a newer WAL; None: nothing, or it cannot be told.

        Asked first after opening, without a transaction. `missed` is asked for a transaction of the region in the gap
        (0: there was none), which comes back with it. Then closing it leaves all files as they are.
        """


class RowsOfRegion(Protocol):
    """Applies changes that happened elsewhere to the rows of a region. Errors are ours: ConflictError above all."""

    seqno: int
    """The transaction that an error names."""
    passes_over: Callable[[int], bool]
    """Whether no rows of a partition come here: a table of it may be missing where its statement does not come."""

    @property
    def definitions(self) -> Mapping[int, TableDefinition]:
        """Of all tables that it knows."""

    @property
    def known_places(self) -> Mapping[tuple[Any, Any, Any], int | None]:
        """What `place_of` has answered."""

    def begin(self) -> None:
        """A transaction begins."""

    def define(self, table_id: int, definition: TableDefinition) -> None:
        """Know a table."""

    def forget_plans(self) -> None:
        """Somebody else has changed the schema."""

    def look_at_own_counters(self) -> None:
        """Have `finish` look at every table that several suppliers write."""

    def check_awaited(self) -> None:
        """At the end of a transaction: tables fit the definitions that came without a statement."""

    def finish(self) -> None:
        """Before COMMIT: `check_awaited`, and counters of tables that several suppliers write are in the own range."""

    def settle_sequences(self) -> None:
        """Before COMMIT: the counters are those of the primary."""

    def apply_all(self, changes: Sequence[Any], start: int = 0) -> int:
        """Apply a flat change stream from element `start` on, in its order; the number of changes."""

    def apply_columns(
        self, ops: Sequence[Any], table_ids: Sequence[Any], arguments: Sequence[Any], values: Sequence[Any]
    ) -> None:
        """The same, of a stream that is split into its four columns."""

    def apply_sorted(
        self, ops: Sequence[Any], table_ids: Sequence[Any], arguments: Sequence[Any], values: Sequence[Any]
    ) -> None:
        """The same in the order of the rows, where that comes to the same."""

    def apply_run(self, op: int, table_id: int, arg: Any, values: Sequence[Any]) -> None:
        """Changes of one kind in one table."""

    def has_rows(self, table: str) -> bool:
        """Whether a table of the region has any."""

    def place_of(self, op: Any, table_id: Any, arg: Any) -> int | None:
        """See PlaceOf in sqlite/apply/order.py."""


RowKeys = dict[int, dict[Any, int]]
"""Rows, by their table's id: the keys, each a value, or a tuple where it is of several; with the number of the last
transaction of its origin that wrote it, where somebody asks for that."""


class Absorbed(NamedTuple):
    """A transaction of our journal whose rows are to be stamped. `changes`: as its writer made them, flat; `done`: as
    they stand there. `is_stable`: everybody has it, so only rows that have stamps get it, or have unique values."""

    changes: Sequence[Any]
    done: Sequence[Any]
    stamp: Stamp
    is_stable: bool


class MergingRows(Protocol):
    """Merges what several suppliers have written into the rows of a region (model/merged_row.py). Errors are ours."""

    @property
    def absorbed(self) -> int:
        """The stamps of rows are those of our journal up to this number."""

    @property
    def lost_count(self) -> int:
        """How much was lost since `begin`."""

    @property
    def is_empty(self) -> bool:
        """Whether no row has stamps."""

    @property
    def kept_since_purge(self) -> int:
        """Rows that were stamped since the last purge."""

    def begin(self) -> None:
        """A transaction begins."""

    @property
    def removed(self) -> Sequence[Any]:
        """Deletes, flat, of rows that `take` has removed for their unique values: all other suppliers are to do it."""

    def take(
        self,
        changes: Sequence[Any],
        stamp: Stamp,
        told: Mapping[int, int],
        is_shared: Callable[[int], bool],
        removing: Stamp | None,
        *,
        is_stable: bool = False,
        removes: bool = False,
    ) -> list[Any] | None:
        """Make a transaction's flat changes; what was done instead, where rows were merged; else None. `told`: what its
        writer had seen. `is_shared`: whether several suppliers write a table. `removing`: the stamp of our own
        transaction that would remove rows, which comes after this one; None: there may be none, so that rows wait
        beside their tables. `is_stable`: as in `Absorbed`. `removes`: the whole removes rows for their unique values,
        of which these changes are a piece."""

    @property
    def has_waiting(self) -> bool:
        """Whether rows wait beside their tables, since others have their unique values."""

    @property
    def waiting(self) -> Sequence[Any]:
        """Deletes, flat, of those that do, for `give_way`."""

    def may_meet(self, rows: RowKeys, told: Mapping[int, int], writer: int) -> bool:
        """Whether a change of one of these rows is to be looked at by itself: the row has stamps of transactions that
        `writer`, who had seen `told`, had not seen, or its table has unique values."""

    def absorb(self, transactions: Sequence[Absorbed], is_shared: Callable[[int], bool]) -> None:
        """Stamp what transactions have changed, in their order."""

    def losses(self, seqno: int) -> list[bytes]:
        """What was lost in the last transaction, as it is kept; of a large one in its last piece. `seqno`: its own."""

    def mark(self) -> None:
        """A large transaction begins, which may be taken back."""

    def take_back(self) -> None:
        """All that was made since `mark`. What gave way in it is known to `give_way`."""

    def give_way(self, deletes: Sequence[Any], stamp: Stamp) -> tuple[list[Any], list[Any]]:
        """Remove rows for their unique values, those of `removed` before `take_back`, under the stamp of our own
        transaction: the deletes that all are to make, and those of them that are made here, since others are of rows
        that are yet to come."""

    def write_stamps(self) -> None:
        """Between two pieces of a large transaction: what was stamped, and lost, since is written, and not at hand."""

    def finish(self, absorbed: int) -> None:
        """Before COMMIT: the stamps are those up to that number of our journal, and what was lost is kept."""

    def purge(self, stable: Mapping[int, int]) -> int:
        """Forget rows that only transactions have stamped that everybody has (origin -> the last one), with unique
        values only what is before all that not everybody has; how many are left. After `finish`."""


class WrittenRegion(Protocol):
    """One region of a writer. All of it raises the kind's own errors."""

    @property
    def schema(self) -> str:
        """The name under which the writer has it."""

    @property
    def read_version(self) -> Callable[[], int]:
        """Its schema version as the open transaction has it."""

    @property
    def write_slot(self) -> Callable[[int, bytes | None], None]:
        """Puts a commit's number and record into its ring."""

    @property
    def move_record(self) -> Callable[[int, int, int, int, int, int], None]:
        """In the open transaction: raise a partition's checkpoint record. Takes the values of a ScrRow, in their
        order."""

    def seqno(self) -> int:
        """The last transaction that it holds."""

    def writers(self) -> Writers:
        """Which supplier writes what of it."""

    def name_writer(self, partition: int, values: Sequence[object], seqno: int) -> None:
        """In the open transaction: what a REGION change (OF_WRITERS) of a partition says is so from here on. `seqno`:
        a number that is not above the transaction's, and above all that the region holds."""

    def tell_by_key(self, tables: Collection[str]) -> tuple[TableDefinition, ...]:
        """In the open transaction: have rows of those tables that have a hidden rowid beside a primary key be told by
        that key from here on, as several suppliers tell them; the definitions that changed."""

    def tables(self) -> Sequence[TableDefinition]:
        """What is recorded of its tables, as the open transaction has it."""

    def unmergeable(self, definition: TableDefinition, *, keys_chosen: bool) -> Unmergeable | None:
        """What keeps a table from being written by several suppliers, as the open transaction has it."""

    def unsummable(self, definition: TableDefinition, column: str) -> str:
        """Why what two sites add to that column at once cannot be added up; "" if it can."""

    def take_places(self) -> None:
        """In the open transaction: have the counters of tables that several write stand where our instance counts."""

    def forget_stamps(self, seqno: int) -> None:
        """In the open transaction, which changes the schema: forget who wrote which row up to that number. Nobody needs
        it any more."""

    def counted_out(self, writers: Writers, own: bytes) -> tuple[str, int] | None:
        """A table whose counter of keys stands in another supplier's block, as the open transaction has it, and the
        counter; None: there is none. `own`: our instance."""

    def foreign_since(self, seqno: int, own: int) -> dict[int, int]:
        """Origin -> the last of its transactions here, of those but `own` that have moved from `seqno` on."""

    def note_seen(self, teller: int, told: Mapping[int, int]) -> None:
        """In the open transaction: what an origin tells that it has seen."""

    def store_version(self) -> None:
        """Keep the present schema version; the last thing in every transaction that changed the schema."""

    def take_write_lock(self) -> bool:
        """Make the open transaction, which has only read, one that writes. False: another has written there since."""

    def is_released(self) -> bool:
        """Whether our bookkeeping was taken out of it."""


class RegionWriter(ReadRegion, Protocol):
    """An application's own way into a region, and into those that it attaches. One COMMIT reaches one region after the
    other. All of it raises the kind's own errors."""

    @property
    def connection(self) -> Any:
        """The kind's own, for its face: what runs an application's statements."""

    @property
    def own(self) -> WrittenRegion:
        """The region that it was opened for."""

    @property
    def begin(self) -> Callable[[], object]:
        """Begin a transaction that writes: takes the write lock of every region."""

    @property
    def commit(self) -> Callable[[], object]:
        """COMMIT."""

    @property
    def violations(self) -> Callable[[], tuple[int, int]]:
        """First of all: whether a constraint that is deferred to COMMIT is violated (0: none is)."""

    @property
    def Error(self) -> type[Exception]:  # a class
        """As `RegionKind.Error`."""

    def named(self, error: Exception, where: str) -> ReplicateError:
        """Our error for one of the kind's, met in the file `where`."""

    def is_missing(self, error: Exception) -> bool:
        """Whether the error says that a table is not there."""

    def errno_of(self, error: Exception) -> int:
        """The errno of an error that was just met; EIO where there is none."""

    def attach(self, path: Path, schema: str, run: Callable[[str], object]) -> WrittenRegion:
        """Attach another region's file under the name `schema`; `run` runs a statement. Outside of a transaction."""

    def detach(self, schema: str) -> None:
        """Take a region off."""

    def flush(self) -> None:
        """A full disk shows up now, while the transaction may still fail."""

    def rollback(self) -> None:
        """Roll back what is open; nothing happens when nothing is."""

    def check(self, captured: CapturedChanges, regions: Sequence[tuple[str, str]]) -> None:
        """In tests: whether the captured changes are those of the open transaction, of (schema, region's name) each."""


class AppliedRegion(ReadRegion, Protocol):
    """A region of a secondary, whose only writer this is. Errors are ours, but those of `commit`."""

    @property
    def Error(self) -> type[Exception]:
        """As `RegionKind.Error`."""

    def errno_of(self, error: Exception) -> int:
        """The errno of an error that was just met; EIO where there is none."""

    def position(self, last_seqno: int) -> Position:
        """The position that the checkpoint records tell, at the journal's `last_seqno`."""

    def added_as(self) -> object:
        """The UUID on the primary, if it was made here from the stream; None otherwise."""

    def schema_version(self) -> int:
        """As the open transaction has it."""

    def rows(self, definitions: Mapping[int, TableDefinition], name: str) -> RowsOfRegion:
        """What applies rows to it; `name`: the region's."""

    def merging(self, rows: RowsOfRegion, *, region: str = "") -> MergingRows:
        """What merges rows into it; `rows` makes the changes."""

    def begin(self, *, changed_do: str) -> None:
        """Begin a transaction that writes. SchemaChangedError, with `changed_do` as the way out."""

    def let_others_in(self) -> None:
        """It is of a data feed from now on: others may have tables of their own there."""

    def prepare(self, rows: Sequence[ScrRow], *, applied_from: int, defines: bool, slot: int = 0) -> None:
        """In the transaction: raise the checkpoint records, and note the batch's first number (0: it is not noted).
        `defines`: the schema has changed. `slot`: the batch's last number, where the region has a ring as well (on a
        supplier); else 0."""

    def beside(self, copy: Path) -> AbstractContextManager[None]:
        """In the block a copy of it is at hand for `take_rows`. Outside of a transaction."""

    def take_rows(
        self, keeps: Callable[[int], bool], rows: Sequence[ScrRow], told: Callable[[str, int, int], None], *, copy: bool
    ) -> int:
        """In the transaction: replace the rows of the partitions that `keeps` knows by those of the copy at hand, and
        their checkpoint records by those in `rows`; how many tables they have. `told`: called with a table, how many
        are done, and how many there are. CopyTooOldError where the copy has other tables, or where one is needed and
        `copy` says that there is none.
        """

    def drop_some(self, keeps: Callable[[int], bool], rows_max: int) -> int:
        """In the transaction: delete so many rows of the partitions that `keeps` knows at most; how many were there."""

    def flush(self) -> None:
        """A full disk shows up now, while there is a way back."""

    def commit(self) -> None:
        """COMMIT."""

    def rollback(self) -> None:
        """Take back what is open. Works after any failure."""


class MendedRegion(ReadRegion, Protocol):
    """A region that recovery, redo or rollback brings to where it should be. The caller holds its lock. All of it
    raises the kind's own errors, but `transaction`."""

    def ring(self) -> list[RingSlot]:
        """Its last commits as a primary, by number."""

    def stored_version(self) -> int:
        """The schema version that was kept with the last change of ours: another client's is still to be noticed."""

    def held_below(self) -> int:
        """On a primary: it lacks nothing of the journal below this number."""

    def may_lack_from(self) -> int:
        """The same, where nothing counts that was noted for another last number than it has now."""

    def note_held(self, below: int) -> None:
        """Note that it lacks nothing below, all of which is durable in the journal."""

    def forget_held(self, last_seqno: int) -> None:
        """Take back, on the disk, what is noted of numbers above the journal's end."""

    def rows(self, definitions: Mapping[int, TableDefinition], name: str) -> RowsOfRegion:
        """What applies rows to it; `name`: the region's."""

    def synced(self) -> AbstractContextManager[None]:
        """What is committed within is on the disk by then."""

    def transaction(self) -> AbstractContextManager[None]:
        """One transaction that writes: nothing of it stays when the block raises. The kind's errors are named."""

    def write_slot(self, seqno: int, record: bytes | None) -> None:
        """In a transaction: put a commit's number and record into the ring."""

    def move_checkpoint(self, rows: Sequence[ScrRow], *, applied_from: int) -> None:
        """In a transaction: raise the checkpoint records, and note the batch's first number (0: it is not noted)."""

    def cut_ring(self, last_seqno: int, *, reaches: bool) -> None:
        """In a transaction: forget the commits above, and the checkpoint records of partitions that name them.
        `reaches`: the region holds `last_seqno`, without a record."""

    def note_taken_back(self, reached: int, rows: list[ScrRow], *, last: bool) -> None:
        """In the transaction that takes a piece back: it stands at `reached` now, on its way to where `rows` are its
        checkpoint records; `last`: it is there."""


class HeldRegions(Protocol):
    """Regions that are open for reading at one moment."""

    @property
    def connections(self) -> Mapping[str, Any]:
        """By the region's name: the kind's own, for what copies and compares them."""

    @property
    def opened(self) -> Mapping[str, ReadRegion]:
        """The same."""

    def begin(self) -> None:
        """Hold the present moment of every region."""

    def close(self) -> None:
        """Let the moment go and close. May be called twice."""


class RegionKind(Protocol):
    """A kind of region. `region`: the UUID of the region that is registered at `path`. Opening raises NotFoundError,
    PermissionRefusedError, RegionDamagedError, RegionReplacedError, BusyError, ConfigurationError."""

    @property
    def Error(self) -> type[Exception]:
        """The class of all errors that are the kind's own."""

    def naming(self, where: str) -> AbstractContextManager[None]:
        """The kind's own errors within are raised as ours, at the file `where`."""

    def reader(self, path: Path, *, region: bytes, opening_s: float | None = None) -> ReadRegion:
        """Open it to see how far it is. `opening_s`: how long is waited for (None: as usual)."""

    def writer(self, path: Path, *, region: bytes, writable: bool, opening_s: float) -> RegionWriter:
        """Open it for an application."""

    def applied(self, path: Path, *, region: bytes) -> AppliedRegion:
        """Open it on a secondary, to apply what was received."""

    def mended(self, path: Path, *, region: bytes) -> MendedRegion:
        """Open it for recovery."""

    def held(self, paths: Mapping[str, tuple[Path, bytes]]) -> HeldRegions:
        """Open regions, by name, for reading at one moment; none stays open when one of them cannot be had."""

    def facts(self, path: Path) -> FileFacts:
        """Taken before it is opened, they are never those of a file that came later."""

    def check_same_file(self, path: str, opened: FileFacts, *, region: str, way_out: str) -> None:
        """RegionReplacedError unless the file is still the one that `opened` are the facts of."""

    def may_be_older(self, path: Path) -> bool:
        """Whether `find_gap` could find anything. Opens nothing."""

    def note_held(self, path: Path, *, region: bytes, last_seqno: int, below: int) -> None:
        """Have a region say that it lacks nothing of the journal below; RegionReplacedError when it does not hold
        transactions up to `last_seqno`. The caller holds its lock."""

    def gave_way(self, losses: Sequence[bytes]) -> bool:
        """Whether a row is among what was lost by a merge (`MergingRows.losses`) that gave way for a unique value."""

    def sync(self, path: Path) -> None:
        """Bring to the disk what is committed in it. JournalIOError."""

    def flush(self, path: Path, *, region: bytes) -> None:
        """Bring into the database file what waits for nobody."""
