"""Our own rows in each region: identity, ring slots, synchronization checkpoint records, table versions, state.

Guarantees: every write here happens inside the caller's transaction, so the bookkeeping and the data move together or
not at all; unsigned 64-bit numbers come back as they went in. `write_slot` is one cached UPDATE of a preallocated row.
Leaves to others: what the seqnos mean, and when a transaction begins or ends.

The tables are plain SQL, not STRICT: any SQLite release that can read the user's tables can do so with ours beside.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Final

import apsw
import msgpack
from msgspec import Struct

from replicate.errors import FormatUnknownError, RegionDamagedError, RegionReplacedError, SchemaChangedError
from replicate.limits import FORMAT_VERSION, PARTITION_STREAM, RING_SLOTS
from replicate.model.schema_fences import Fence, Fences
from replicate.model.seen import merged_told
from replicate.model.transaction import OF_FENCES, OF_GONE, PARTED, RETIRED, RETIRING, SHARED, WRITTEN
from replicate.model.writers import Writers
from replicate.region.protocol import RingSlot, ScrRow
from replicate.region.sqlite.sql.names import quote

BOOKKEEPING: Final = (
    """CREATE TABLE _replicate_region (
    id INTEGER PRIMARY KEY CHECK (id = 1), format INTEGER NOT NULL, network BLOB NOT NULL, instance BLOB NOT NULL,
    region BLOB NOT NULL, name TEXT NOT NULL, device INTEGER NOT NULL, inode INTEGER NOT NULL,
    journal_mode TEXT NOT NULL)""",
    """CREATE TABLE _replicate_table (
    name TEXT PRIMARY KEY, version INTEGER NOT NULL, partition INTEGER NOT NULL, definition BLOB NOT NULL
    ) WITHOUT ROWID""",
    "CREATE TABLE _replicate_ring (slot INTEGER PRIMARY KEY, seqno INTEGER NOT NULL, record BLOB)",
    """CREATE TABLE _replicate_scr (
    origin INTEGER NOT NULL, partition INTEGER NOT NULL, origin_seqno INTEGER NOT NULL, chain INTEGER NOT NULL,
    csn INTEGER NOT NULL, seqno INTEGER NOT NULL, PRIMARY KEY (origin, partition)) WITHOUT ROWID""",
    "CREATE TABLE _replicate_state (key TEXT PRIMARY KEY, value) WITHOUT ROWID",
)
"""The statements that make the bookkeeping tables, in order."""

OWN_TABLES: Final = ("_replicate_region", "_replicate_table", "_replicate_ring", "_replicate_scr", "_replicate_state")
_WRITE_SLOT: Final = "UPDATE {}._replicate_ring SET seqno = ?2, record = ?3 WHERE slot = ?1"
_WRITE_SCR: Final = (
    "INSERT INTO {}._replicate_scr (origin, partition, origin_seqno, chain, csn, seqno) VALUES (?, ?, ?, ?, ?, ?) "
    "ON CONFLICT (origin, partition) DO UPDATE SET origin_seqno = excluded.origin_seqno, chain = excluded.chain, "
    "csn = excluded.csn, seqno = excluded.seqno WHERE excluded.seqno >= seqno AND excluded.origin_seqno >= origin_seqno"
)
_WRITE_STATE: Final = "INSERT OR REPLACE INTO {}._replicate_state (key, value) VALUES (?, ?)"
OWN_STATEMENT: Final = apsw.SQLITE_PREPARE_PERSISTENT
"""Keeps a statement of ours apart in the statement cache from an application's of the same text, for which SQLite must
ask the authorizer (guards.refuse_own)."""
PUT_BACK: Final = (
    "Put the right file, with its -wal, back; or begin again: on a secondary replicate -i INSTANCE seed --restart; on "
    "a primary replicate -i INSTANCE region release NAME --force, then add the database to go on with, and seed the "
    "secondaries"
)
FIND_IT: Final = f"If it was moved: replicate -i INSTANCE region move NAME NEW_PATH. {PUT_BACK}. None is created here"
HELD_BELOW: Final = "held_below"
"""Key in _replicate_state: a primary's region lacks nothing of the journal below this number, though its own last one
may be much lower, because nothing was written in it (pruning.py)."""
HELD_AT: Final = "held_at"
"""Key in _replicate_state: the region's own last number when that was noted. Beside another one it does not hold: the
note is in a WAL that stands beside an older file."""
APPLIED_FROM: Final = "applied_from"
"""Key in _replicate_state: on a secondary, the number that the last batch begins with; so older_than_wal.py knows what
the region held before it."""
WRITER: Final = "writer:"
"""Begin of keys in _replicate_state, a partition's number after it: the UUID of the supplier whose it is."""
SHARER: Final = "sharer:"
"""The same, a partition's number and a supplier's UUID after it: the place that it has as one who writes it, too."""
BY_ROW: Final = "rows"
"""In the place of that UUID: 1 where the partition's rows are merged whole."""
SUMMED: Final = "sums"
"""In the same place: its columns that are sums, and tables whose rows are merged whole, packed."""
GONE: Final = "gone:"
"""The same; retiring, parted or retired, a supplier's UUID and, but for the last, another one's after it: 1."""
FENCE: Final = "fence:"
"""The same, a supplier's UUID after it: its last fence (model/schema_fences.py), packed."""
SEEN: Final = "seen:"
"""The same, an origin's key after it: what it has told that it has seen."""
ABSORBED: Final = "absorbed"
"""Key in _replicate_state: rows' stamps (row_stamps.py) are those of the journal up to this number."""
_SIGN: Final = 1 << 63
_WRAP: Final = 1 << 64


class RegionIdentity(Struct, frozen=True):
    """What a region's file says about itself. UUIDs are 16 bytes; `journal_mode` is the one from before `install`."""

    format: int
    network: bytes
    instance: bytes
    region: bytes
    name: str
    device: int
    inode: int
    journal_mode: str


def _unsigned(number: int) -> int:
    return number + _WRAP if number < 0 else number


def make_tables(connection: apsw.Connection) -> None:
    """Create and fill the bookkeeping tables, inside the caller's transaction."""
    for statement in BOOKKEEPING:
        connection.execute(statement)
    connection.executemany(
        "INSERT INTO main._replicate_ring (slot, seqno, record) VALUES (?, 0, NULL)",
        ((slot,) for slot in range(RING_SLOTS)),
    )


def drop_tables(connection: apsw.Connection) -> None:
    """Drop every bookkeeping table, inside the caller's transaction."""
    for (name,) in connection.execute(
        "SELECT name FROM main.sqlite_schema WHERE type = 'table' AND name GLOB '_replicate_*'"
    ).fetchall():
        connection.execute(f'DROP TABLE main."{name}"')


def is_region(connection: apsw.Connection) -> bool:
    """Whether the database carries our bookkeeping."""
    return bool(connection.table_exists("main", "_replicate_region"))


def read_identity(connection: apsw.Connection, *, where: str, expected: bytes | None = None) -> RegionIdentity:
    """The identity row; `expected` is the UUID of the region that should be here, for the text.

    RegionReplacedError if the file is no region, FormatUnknownError if a newer release made it.
    """
    if not is_region(connection):
        raise RegionReplacedError(
            "the database carries no bookkeeping of ours: it is not the region "
            + (f"{expected.hex()} " if expected is not None else "")
            + "that was registered at this path",
            where=where,
            do=PUT_BACK,
        )
    format_version = connection.execute("SELECT max(format) FROM main._replicate_region").get
    if format_version != FORMAT_VERSION:
        raise FormatUnknownError(
            f"the region has bookkeeping format {format_version}; this release knows format {FORMAT_VERSION}",
            where=where,
            do="Install the release that made it",
        )
    rows: list[Any] = connection.execute(
        "SELECT format, network, instance, region, name, device, inode, journal_mode FROM main._replicate_region"
    ).fetchall()
    present = {name for (name,) in connection.execute("SELECT name FROM main.sqlite_schema WHERE type = 'table'")}
    missing = [name for name in OWN_TABLES if name not in present]
    if len(rows) != 1 or missing:
        raise RegionDamagedError(
            f"the bookkeeping is incomplete: {len(rows)} identity rows, missing tables: {', '.join(missing) or 'none'}",
            where=where,
            do="Seed the region again from the other site",
        )
    return RegionIdentity(*rows[0])


def write_identity(connection: apsw.Connection, identity: RegionIdentity) -> None:
    """Set the identity row, inside the caller's transaction."""
    connection.execute(
        "INSERT OR REPLACE INTO main._replicate_region (id, format, network, instance, region, name, device, inode, "
        "journal_mode) VALUES (1, ?, ?, ?, ?, ?, ?, ?, ?)",
        (
            identity.format,
            identity.network,
            identity.instance,
            identity.region,
            identity.name,
            identity.device,
            identity.inode,
            identity.journal_mode,
        ),
    )


def check_region_identity(
    connection: apsw.Connection,
    *,
    region: bytes,
    network: bytes | None = None,
    instance: bytes | None = None,
    where: str,
) -> RegionIdentity:
    """The identity, if the file is the region with that UUID (and of that network and instance, where given).

    Raises RegionReplacedError naming both UUIDs, FormatUnknownError, RegionDamagedError.
    """
    identity = read_identity(connection, where=where, expected=region)
    for what, wanted, found in (
        ("region", region, identity.region),
        ("network", network, identity.network),
        ("instance", instance, identity.instance),
    ):
        if wanted is not None and wanted != found:
            raise RegionReplacedError(
                f"the file belongs to {what} {found.hex()}, registered here is {what} {wanted.hex()}",
                where=where,
                do=PUT_BACK,
                expected=wanted.hex(),
                found=found.hex(),
            )
    return identity


# Ring: the last RING_SLOTS commits of this region, written in the same transaction as the rows.


def write_slot(connection: apsw.Connection, seqno: int, record: bytes | None, schema: str = "main") -> None:
    """Put a commit's own row into its slot: the hot path of every commit, inside its transaction. `schema`: the name
    under which the region is attached.

    RegionDamagedError when the slot's row is not there. The application's `changes()` counts this statement.
    """
    text = _WRITE_SLOT.format(quote(schema))
    connection.execute(text, (seqno % RING_SLOTS, seqno, record), prepare_flags=OWN_STATEMENT)
    if connection.changes() != 1:
        raise RegionDamagedError(
            f"slot {seqno % RING_SLOTS} of _replicate_ring is missing",
            where=connection.db_filename(schema),
            do="Another client deleted our rows: seed the region again from the other site",
        )


def slot_writer(connection: apsw.Connection, schema: str = "main") -> Callable[[int, bytes | None], None]:
    """`write_slot` bound to one kept cursor of the connection: a third quicker (measured: 1.0 µs against 1.6)."""
    execute = connection.cursor().execute
    changes = connection.changes
    text = _WRITE_SLOT.format(quote(schema))

    def write(seqno: int, record: bytes | None) -> None:
        execute(text, (seqno % RING_SLOTS, seqno, record), prepare_flags=OWN_STATEMENT)
        if changes() != 1:
            write_slot(connection, seqno, record, schema)  # raises

    return write


def read_ring(connection: apsw.Connection) -> list[RingSlot]:
    """The commits in the ring, by rising seqno. A record is None where the frame was too large for a slot."""
    return [
        RingSlot(seqno, record)
        for seqno, record in connection.execute(
            "SELECT seqno, record FROM main._replicate_ring WHERE seqno > 0 ORDER BY seqno"
        )
    ]


def clear_ring(connection: apsw.Connection) -> None:
    """Forget all slots (a copied region begins without a past of its own), inside the caller's transaction."""
    connection.execute("UPDATE main._replicate_ring SET seqno = 0, record = NULL")
    keys = (HELD_BELOW, HELD_AT, APPLIED_FROM)
    connection.execute("DELETE FROM main._replicate_state WHERE key IN (?, ?, ?)", keys)


def region_seqno(connection: apsw.Connection, schema: str = "main") -> int:
    """The last seqno that this region holds: the larger of its ring's and its checkpoint records'; 0 if none."""
    name = quote(schema)
    seqno = connection.execute(
        f"SELECT max(coalesce((SELECT max(seqno) FROM {name}._replicate_ring), 0), "
        f"coalesce((SELECT max(seqno) FROM {name}._replicate_scr), 0))"
    ).get
    return int(seqno)


def held_below(connection: apsw.Connection) -> int:
    """The region of a primary lacks nothing of the journal below this number; see HELD_BELOW."""
    seqno, noted = region_seqno(connection), read_state(connection, HELD_BELOW)
    is_ours = read_state(connection, HELD_AT) in (None, seqno)  # None: noted by an earlier release
    return max(seqno + 1, noted if is_ours and isinstance(noted, int) else 0)


# Synchronization checkpoint records.


def read_scr(connection: apsw.Connection, schema: str = "main") -> list[ScrRow]:
    """All checkpoint records, by origin and partition."""
    found = connection.execute(
        f"SELECT origin, partition, origin_seqno, chain, csn, seqno FROM {quote(schema)}._replicate_scr ORDER BY 1, 2"
    )
    return [
        ScrRow(origin, partition, origin_seqno, _unsigned(chain), _unsigned(csn), seqno)
        for origin, partition, origin_seqno, chain, csn, seqno in found
    ]


def write_scr(connection: apsw.Connection, rows: Iterable[ScrRow]) -> None:
    """Raise checkpoint records, inside the caller's transaction.

    RegionDamagedError if one would go back (rolling back has `replace_scr`).
    """
    write = record_writer(connection)
    for row in rows:
        write(row.origin, row.partition, row.origin_seqno, row.chain, row.csn, row.seqno)


RecordWriter = Callable[[int, int, int, int, int, int], None]
"""Raises a checkpoint record; it takes the values of a ScrRow, in their order."""


def record_writer(connection: apsw.Connection, schema: str = "main") -> RecordWriter:
    """`write_scr` of one row, bound to one kept cursor of the connection: each batch of a secondary calls it, and each
    commit on a primary with partitions. `schema`: the name under which the region is attached."""
    execute = connection.cursor().execute
    changes = connection.changes
    text = _WRITE_SCR.format(quote(schema))

    def write(origin: int, partition: int, origin_seqno: int, chain: int, csn: int, seqno: int) -> None:
        if chain >= _SIGN:  # SQLite's integers are signed
            chain -= _WRAP
        if csn >= _SIGN:
            csn -= _WRAP
        execute(text, (origin, partition, origin_seqno, chain, csn, seqno), prepare_flags=OWN_STATEMENT)
        if changes() != 1:
            there = read_scr(connection, schema)
            found = next(row for row in there if (row.origin, row.partition) == (origin, partition))
            raise RegionDamagedError(
                f"the checkpoint record of origin {origin}, partition {partition} would go back from "
                f"{found.origin_seqno} (seqno {found.seqno}) to {origin_seqno} (seqno {seqno})",
                where=connection.db_filename(schema),
                do="Two Update Processes, or a restored file: seed the region again from the other site",
            )

    return write


def replace_scr(connection: apsw.Connection, rows: Iterable[ScrRow]) -> None:
    """Set the checkpoint records to exactly `rows` (after a rollback or a seed), inside the caller's transaction."""
    connection.execute("DELETE FROM main._replicate_scr")
    write_scr(connection, rows)


# State, and the schema version after our last commit.


def read_state(connection: apsw.Connection, key: str, schema: str = "main") -> int | float | str | bytes | None:
    """A value of _replicate_state, None if it is not there."""
    value: int | float | str | bytes | None
    value = connection.execute(f"SELECT value FROM {quote(schema)}._replicate_state WHERE key = ?", (key,)).get
    return value


def write_state(
    connection: apsw.Connection, key: str, value: int | float | str | bytes | None, schema: str = "main"
) -> None:
    """Set a value, inside the caller's transaction."""
    connection.execute(_WRITE_STATE.format(quote(schema)), (key, value), prepare_flags=OWN_STATEMENT)


def read_writers(connection: apsw.Connection, schema: str = "main") -> Writers:
    """Which supplier writes what; of nothing where there are no suppliers."""
    text = f"SELECT key, value FROM {quote(schema)}._replicate_state WHERE " + " OR ".join(
        f"key GLOB '{begin}*'" for begin in (WRITER, SHARER, GONE, FENCE)
    )
    by: dict[int, bytes] = {}
    shared: dict[int, dict[bytes, int]] = {}
    by_row: set[int] = set()
    summed: dict[int, tuple[str | None, ...]] = {}
    gone: dict[str, dict[bytes, frozenset[bytes]]] = {RETIRING: {}, PARTED: {}, RETIRED: {}}
    fences: dict[bytes, Fence] = {}
    for key, value in connection.execute(text, prepare_flags=OWN_STATEMENT):
        _, number, *instance = key.split(":")
        if key.startswith(FENCE):
            fences[bytes.fromhex(number)] = _fence_of(value)
        elif number in gone:
            who, *others = map(bytes.fromhex, instance)
            gone[number][who] = gone[number].get(who, frozenset()) | frozenset(others)
        elif instance == [BY_ROW]:
            by_row.update([int(number)] * value)
        elif instance == [SUMMED]:
            summed.update({int(number): tuple(names)} if (names := msgpack.unpackb(value)) else {})
        elif instance:
            shared.setdefault(int(number), {})[bytes.fromhex(instance[0])] = value
        else:
            by[int(number)] = value
    retired = frozenset(gone[RETIRED])
    return Writers(by, shared, frozenset(by_row), summed, gone[RETIRING], gone[PARTED], retired, Fences(fences))


def _fence_of(packed: bytes) -> Fence:
    number, is_open, is_once, first, second = msgpack.unpackb(packed)
    return Fence(number, is_open, is_once, frozenset(first), frozenset(second))


def write_writer(
    connection: apsw.Connection, partition: int, values: Sequence[Any], seqno: int, schema: str = "main"
) -> None:
    """What a REGION change (OF_WRITERS) of a partition says, in transaction `seqno` of our journal, inside the
    caller's. JournalDamagedError."""
    before = read_writers(connection, schema)
    told = before.told(partition, values)
    instance = values[1]
    if values[0] == SHARED and not before.was_shared:  # nobody has ever written beside anything that comes before
        write_state(connection, ABSORBED, seqno, schema)
    if values[0] == WRITTEN:
        write_state(connection, f"{WRITER}{partition}", instance, schema)
    elif values[0] in OF_FENCES:
        fence = told.fences.by[instance]
        told_by = [sorted(fence.first), sorted(fence.second)]
        packed = msgpack.packb([fence.number, fence.is_open, fence.is_once, *told_by])
        write_state(connection, f"{FENCE}{instance.hex()}", packed, schema)
    elif values[0] in OF_GONE:
        others = [] if values[0] == RETIRED else [values[2].hex()]
        write_state(connection, GONE + ":".join([values[0], instance.hex(), *others]), 1, schema)
        for number, writer in told.by.items():
            if before.by.get(number) != writer:
                write_state(connection, f"{WRITER}{number}", writer, schema)
        for number, places in told.shared.items():
            for one, place in places.items():
                if before.shared[number][one] != place:
                    write_state(connection, f"{SHARER}{number}:{one.hex()}", place, schema)
    else:
        write_state(connection, f"{SHARER}{partition}:{instance.hex()}", told.shared[partition][instance], schema)
        if told.by_row != before.by_row:
            write_state(connection, f"{SHARER}{partition}:{BY_ROW}", int(partition in told.by_row), schema)
        if told.summed != before.summed:
            names = msgpack.packb(told.summed.get(partition, ()))
            write_state(connection, f"{SHARER}{partition}:{SUMMED}", names, schema)


def read_seen(connection: apsw.Connection) -> dict[int, dict[int, int]]:
    """Of each origin what it has told that it has seen (model/seen.py)."""
    text = f"SELECT key, value FROM main._replicate_state WHERE key GLOB '{SEEN}*'"
    rows = connection.execute(text, prepare_flags=OWN_STATEMENT)
    return {int(key.removeprefix(SEEN)): dict(msgpack.unpackb(value, strict_map_key=False)) for key, value in rows}


def write_seen(connection: apsw.Connection, teller: int, told: Mapping[int, int], schema: str = "main") -> None:
    """An origin has told more, inside the caller's transaction."""
    packed = connection.execute(
        f"SELECT value FROM {quote(schema)}._replicate_state WHERE key = ?",
        (f"{SEEN}{teller}",),
        prepare_flags=OWN_STATEMENT,
    ).get
    before = {} if packed is None else msgpack.unpackb(packed, strict_map_key=False)
    write_state(connection, f"{SEEN}{teller}", msgpack.packb(merged_told(before, told)), schema)


def foreign_since(connection: apsw.Connection, seqno: int, own: int, schema: str = "main") -> dict[int, int]:
    """Origin -> the last of its transactions here, of those but our `own` that have moved from `seqno` on."""
    text = (
        f"SELECT origin, origin_seqno FROM {quote(schema)}._replicate_scr "
        "WHERE partition = ? AND seqno >= ? AND origin <> ?"
    )
    return dict(connection.execute(text, (PARTITION_STREAM, seqno, own), prepare_flags=OWN_STATEMENT))


def schema_version(connection: apsw.Connection, schema: str = "main") -> int:
    """The file's schema version as this connection's transaction sees it; every schema change and VACUUM raises it."""
    return int(connection.execute(f"PRAGMA {quote(schema)}.schema_version").get)


def version_reader(connection: apsw.Connection, schema: str = "main") -> Callable[[], int]:
    """`schema_version` bound to one kept cursor of the connection."""
    execute = connection.cursor().execute
    text = f"PRAGMA {quote(schema)}.schema_version"

    def read() -> int:
        version: int = execute(text).get
        return version

    return read


def stored_schema_version(connection: apsw.Connection) -> int:
    """The schema version after our last commit. RegionDamagedError if it is not there."""
    value = read_state(connection, "schema_version")
    if not isinstance(value, int):
        raise RegionDamagedError(
            "_replicate_state holds no schema_version", where=connection.filename, do="Seed the region again"
        )
    return value


def store_schema_version(connection: apsw.Connection, schema: str = "main") -> int:
    """Keep the present schema version; the last thing in every transaction of ours that changed the schema."""
    version = schema_version(connection, schema)
    write_state(connection, "schema_version", version, schema)
    return version


def check_schema_version(
    connection: apsw.Connection,
    *,
    do: str = "Run: replicate -i INSTANCE region release NAME; then add the database again and seed the secondaries",
) -> int:
    """The schema version, if it is still the stored one. `do`: what mends it if it is not.

    SchemaChangedError otherwise: another client changed the schema, dropped guards or ran VACUUM.
    """
    found = schema_version(connection)
    wanted = stored_schema_version(connection)
    if found != wanted:
        raise SchemaChangedError(
            f"another client changed the schema (or ran VACUUM): schema version {found}, ours was {wanted}",
            where=connection.filename,
            do=do,
            expected=wanted,
            found=found,
        )
    return found
