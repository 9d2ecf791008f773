"""Where a supplier keeps the stamps of rows that several suppliers write, and what was lost as they were merged.

Guarantees: all of it moves in the caller's transaction, with the rows. The stamps are what the journal's transactions
come to, up to the number that `absorbed` says; a row that has none is as transactions left it that everybody has.
Leaves to others: what a stamp is worth (model/merged_row.py), when they are forgotten.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import closing
from pathlib import Path
from typing import Any, Final

import apsw
import msgpack

from replicate.errors import NotSupportedError
from replicate.model.merged_row import Lost, Row, Stamp, pack_row, unpack_row
from replicate.region.protocol import Merged, MergedRow
from replicate.region.sqlite.bookkeeping import ABSORBED, OWN_STATEMENT, read_state, store_schema_version, write_state
from replicate.region.sqlite.open import open_region
from replicate.region.sqlite.sql.names import quote

_TABLES: Final = (
    """CREATE TABLE IF NOT EXISTS _replicate_version (
    table_id INTEGER NOT NULL, key BLOB NOT NULL, origin INTEGER NOT NULL, origin_seqno INTEGER NOT NULL,
    stamps BLOB NOT NULL, PRIMARY KEY (table_id, key)) WITHOUT ROWID""",
    """CREATE TABLE IF NOT EXISTS _replicate_conflict (
    id INTEGER PRIMARY KEY, seqno INTEGER NOT NULL, state TEXT NOT NULL, facts BLOB NOT NULL)""",
)
_GET: Final = "SELECT stamps FROM main._replicate_version WHERE table_id = ? AND key = ?"
_THOSE: Final = "SELECT key, stamps FROM main._replicate_version WHERE table_id = ? AND key IN carray(?)"
_PUT: Final = (
    "INSERT OR REPLACE INTO main._replicate_version (table_id, key, origin, origin_seqno, stamps) "
    "VALUES (?, ?, ?, ?, ?)"
)
_STAMPED_TABLES: Final = "SELECT DISTINCT table_id FROM main._replicate_version"
_OF_TABLE: Final = "SELECT key, origin, origin_seqno, stamps FROM main._replicate_version WHERE table_id = ?"
_PURGE: Final = "DELETE FROM main._replicate_version WHERE table_id = ? AND origin = ? AND origin_seqno <= ?"
_FORGET: Final = "DELETE FROM main._replicate_version WHERE table_id = ? AND key = ?"
_SEVERAL: Final = 0
"""In the place of the origin: several transactions have stamped the row, or it has sums."""
_WAITS: Final = -1
"""In the place of the origin: the row waits (model/merged_row.py). No purge forgets it."""
_LATEST: Final = Stamp(2**64, 0, 0)
"""After every transaction."""
_WAITING: Final = "SELECT table_id, key, stamps FROM main._replicate_version WHERE origin = ?"
RowName = tuple[int, bytes]
"""Of a row: its table's id, and `key_of` its key."""
KeptRow = tuple[int, bytes, int, int, bytes]
"""A row's stamps as a row of the table of stamps."""
OPEN: Final = "open"
SETTLED: Final = "settled"


def make_stamp_tables(connection: apsw.Connection, *, begins_at: int) -> None:
    """Make the tables where they are not there, inside the caller's transaction. What a copy has brought of another
    site's conflicts goes. The journal begins at `begins_at`: stamps are made from there on where they reach less far,
    which is well where nothing was ever shared (roles/supplier.py refuses the rest)."""
    for statement in _TABLES:
        connection.execute(statement)
    connection.execute("DELETE FROM main._replicate_conflict")
    store_schema_version(connection)
    if read_absorbed(connection) < begins_at - 1:
        write_absorbed(connection, begins_at - 1)


def read_absorbed(connection: apsw.Connection, schema: str = "main") -> int:
    """See ABSORBED; 0 where nothing was ever shared."""
    value = read_state(connection, ABSORBED, schema)
    return value if isinstance(value, int) else 0


def write_absorbed(connection: apsw.Connection, seqno: int, schema: str = "main") -> None:
    """The stamps are those up to that number, inside the caller's transaction."""
    write_state(connection, ABSORBED, seqno, schema)


def forget_stamps(connection: apsw.Connection, seqno: int, schema: str = "main") -> None:
    """The schema changes in a transaction that has at least that number, and all suppliers have the same rows there
    (door/fenced_schema.py): forget all stamps, inside the caller's transaction. Nothing happens where nothing was ever
    shared. NotSupportedError where a row waits beside its table."""
    if not (absorbed := read_absorbed(connection, schema)):
        return
    if connection.table_exists(schema, "_replicate_version"):
        stamps = f"{quote(schema)}._replicate_version"
        text = f"SELECT 1 FROM {stamps} WHERE origin = ?"
        if connection.execute(text, (_WAITS,), prepare_flags=OWN_STATEMENT).fetchall():
            raise NotSupportedError("the schema changes while a row waits for what it had before a restoration")
        connection.execute(f"DELETE FROM {stamps}", prepare_flags=OWN_STATEMENT)
    write_absorbed(connection, max(absorbed, seqno), schema)


def key_of(values: Iterable[Any]) -> bytes:
    """What a row's key is kept as: numbers that SQLite takes for one are one."""
    key = tuple(values)
    if float in map(type, key):
        key = tuple(
            int(one) if type(one) is float and one.is_integer() and -(2**63) <= one < 2**63 else one for one in key
        )
    packed: bytes = _pack(key)
    return packed


_pack: Final = msgpack.Packer().pack


class RowStamps:
    """One connection's. Rows that were looked at since `forget_cached` are kept at hand, and written with `flush`."""

    def __init__(self, connection: apsw.Connection) -> None:
        cursor = connection.cursor()
        self._execute: Callable[..., Any] = cursor.execute
        self._execute_many: Callable[..., Any] = cursor.executemany
        self._connection = connection
        self._cached: dict[tuple[int, bytes], Row | None] = {}
        self._changed: set[tuple[int, bytes]] = set()
        self.kept_since_purge = 0
        """Rows that were stamped since the last purge."""
        self._waiting: dict[tuple[int, bytes], Row] | None = None
        """Rows that wait; None: nobody has looked since they may be others."""
        self._waiting_changed = False
        """Whether that was changed since `forget_cached`."""

    @property
    def waiting(self) -> dict[tuple[int, bytes], Row]:
        """Rows that wait, by table id and key."""
        if self._waiting is None:
            found = self._execute(_WAITING, (_WAITS,), prepare_flags=OWN_STATEMENT)
            self._waiting = {(table_id, key): unpack_row(packed) for table_id, key, packed in found}
        return self._waiting

    def _note_waiting(self, name: tuple[int, bytes], row: Row) -> None:
        waiting = self.waiting
        if row.waits or name in waiting:
            self._waiting_changed = True
            waiting.pop(name, None)
            if row.waits:
                waiting[name] = row

    def forget_cached(self) -> None:
        """The transaction was taken back, or another one begins."""
        self._cached.clear()
        self._changed.clear()
        if self._waiting or self._waiting_changed:  # another process may have ended that they wait
            self._waiting, self._waiting_changed = None, False

    def get(self, table_id: int, key: bytes) -> Row | None:
        """A row's stamps; its values only if it is gone, or they were put here. None: it has none."""
        name = table_id, key
        if name in self._cached:
            return self._cached[name]
        packed = self._execute(_GET, name, prepare_flags=OWN_STATEMENT).get
        found = self._cached[name] = None if packed is None else unpack_row(packed)
        return found

    def load(self, names: Collection[RowName]) -> set[RowName]:
        """Have many rows at hand, a hundred as quickly as one; those of them that have stamps."""
        cached, by_table = self._cached, dict[int, list[bytes]]()
        for name in names:
            if name not in cached:
                by_table.setdefault(name[0], []).append(name[1])
                cached[name] = None
        for table_id, keys in by_table.items():
            found = self._execute(_THOSE, (table_id, apsw.carray(tuple(keys))), prepare_flags=OWN_STATEMENT)
            cached.update({(table_id, key): unpack_row(packed) for key, packed in found})
        return {name for name in names if cached[name] is not None}

    def put(self, table_id: int, key: bytes, row: Row) -> None:
        """Stamps of a row, written with `flush`."""
        self._cached[table_id, key] = row
        self._changed.add((table_id, key))
        self._note_waiting((table_id, key), row)

    def keep(self, rows: Collection[KeptRow]) -> None:
        """Write stamps of rows that have none."""
        for row in rows:
            self._cached.pop(row[:2], None)
        self._execute_many(_PUT, sorted(rows), prepare_flags=OWN_STATEMENT)
        self.kept_since_purge += len(rows)

    def flush(self, absorbed: int) -> None:
        """Write what was put, and up to where it goes."""
        self.write()
        write_absorbed(self._connection, absorbed)

    def write(self) -> None:
        """Write what was put."""
        cached = self._cached
        rows = [_kept(name, row) for name in sorted(self._changed) if (row := cached[name]) is not None]
        if rows:
            self._execute_many(_PUT, rows, prepare_flags=OWN_STATEMENT)
            self.kept_since_purge += len(rows)
        self._changed.clear()

    def purge(self, stable: Mapping[int, int], has_unique: Callable[[int], bool]) -> int:
        """Forget the stamps of rows that only transactions have stamped which everybody has: origin -> the last one.
        Where a table `has_unique` values, only what is before all its stamps that not everybody has: a row that comes
        back may have its value from one of those, and which has had it longer must be the same on every site. How many
        are left."""
        for (table_id,) in self._execute(_STAMPED_TABLES).fetchall():
            least = self._least_unstable(table_id, stable) if has_unique(table_id) else _LATEST
            self._purge_table(table_id, stable, least)
        self.forget_cached()
        self.kept_since_purge = 0
        return int(self._execute("SELECT count(*) FROM main._replicate_version").get)

    def _least_unstable(self, table_id: int, stable: Mapping[int, int]) -> Stamp:
        """The first stamp of a table's rows whose transaction not everybody has. SQLite compares no times: it would
        take those from 2041 on for negative ones."""
        least, firsts = _LATEST, dict[int, tuple[int, bytes]]()
        for _, origin, number, packed in self._execute(_OF_TABLE, (table_id,)):
            if origin <= _SEVERAL:
                unstable = (one for one in unpack_row(packed).all_stamps() if not _is_stable(one, stable))
                least = min(least, *unstable, _LATEST)
            elif number > stable.get(origin, 0) and (origin not in firsts or number < firsts[origin][0]):
                firsts[origin] = number, packed
        return min([least, *(unpack_row(packed).life for _, packed in firsts.values())])

    def _purge_table(self, table_id: int, stable: Mapping[int, int], least: Stamp) -> None:
        """Forget what everybody has, and is before `least`."""
        ends, gone, shorter = dict(stable), list[tuple[int, bytes]](), list[Any]()
        text = f"{_OF_TABLE} AND origin {'=' if least is _LATEST else '>='} {_SEVERAL}"
        for key, origin, number, packed in self._execute(text, (table_id,)):
            if number > stable.get(origin, 0):
                continue
            row = unpack_row(packed)
            may_go = all(_is_stable(one, stable) and one < least for one in row.all_stamps())
            if origin != _SEVERAL:
                ends[origin] = ends[origin] if may_go else min(ends[origin], number - 1)
            elif may_go:
                gone.append((table_id, key))
            elif row.sums and (less := row.without(stable)) != row:
                shorter.append(_kept((table_id, key), less))
        self._execute_many(_PURGE, [(table_id, *end) for end in ends.items()])
        self._execute_many(_FORGET, gone)
        self._execute_many(_PUT, shorter)

    @property
    def is_empty(self) -> bool:
        """Whether no row has stamps."""
        if self._changed:
            return False
        return not self._execute("SELECT EXISTS (SELECT 1 FROM main._replicate_version)").get


def _is_stable(stamp: Stamp, stable: Mapping[int, int]) -> bool:
    """Whether everybody has that transaction; NEVER, everybody has."""
    return stamp.origin_seqno <= stable.get(stamp.origin, 0)


def _kept(name: tuple[int, bytes], row: Row) -> KeptRow:
    """A row of the table: who has stamped it, where that is one transaction."""
    if row.waits:
        return (*name, _WAITS, 0, pack_row(row, None))
    writer = None if row.sums else row.writer  # of sums a purge looks at each
    if writer is None:
        return (*name, _SEVERAL, 0, pack_row(row, None))
    return (*name, writer[1], writer[2], pack_row(row, writer))


def _packed(lost: Lost) -> list[Any]:
    return [lost.what, list(lost.winner), list(lost.loser), list(lost.values), list(lost.ordinals)]


def pack_merged(merged: Merged) -> bytes:
    """What was lost in a merge, but for the transaction's number."""
    names = [merged.table, list(merged.columns), list(merged.key)]
    region = [merged.region] if merged.region else []
    packed: bytes = msgpack.packb([*names, *_packed(merged.lost), merged.left, *region])
    return packed


def gave_way(losses: Iterable[bytes]) -> bool:
    """Whether one of them (`pack_merged`) is a row that gave way for a unique value."""
    return any(_merged_of(facts, 0).lost.what == "unique" for facts in losses)


def _merged_of(facts: bytes, seqno: int) -> Merged:
    table, columns, key, what, winner, loser, values, ordinals, left, *region = msgpack.unpackb(facts, use_list=False)
    lost = Lost(what, Stamp(*winner), Stamp(*loser), values, ordinals)
    return Merged(seqno, table, columns, key, lost, left, *region)


def losses_in(region: str, losses: Iterable[bytes]) -> list[bytes]:
    """Those that are of a region: where there is one only, none is named."""
    return [facts for facts in losses if _merged_of(facts, 0).region in ("", region)]


def note_losses(connection: apsw.Connection, seqno: int, losses: Iterable[bytes]) -> None:
    """Keep what was lost in a transaction (`pack_merged`), inside the caller's; nothing happens on what has never been
    a supplier."""
    if connection.table_exists("main", "_replicate_conflict"):
        connection.executemany(
            "INSERT INTO main._replicate_conflict (seqno, state, facts) VALUES (?, ?, ?)",
            [(seqno, OPEN, facts) for facts in losses],
        )


def read_merged(connection: apsw.Connection) -> Iterator[MergedRow]:
    """What was lost in merges, oldest first. Nothing where there is no such table."""
    if connection.table_exists("main", "_replicate_conflict"):
        text = "SELECT id, state, seqno, facts FROM main._replicate_conflict ORDER BY id"
        for number, state, seqno, facts in connection.execute(text):
            yield MergedRow(number, state, _merged_of(facts, seqno))


def count_open(connection: apsw.Connection) -> int:
    """How many of them are open."""
    if not connection.table_exists("main", "_replicate_conflict"):
        return 0
    return int(connection.execute("SELECT count(*) FROM main._replicate_conflict WHERE state = ?", (OPEN,)).get)


def settle_merged(connection: apsw.Connection, numbers: Sequence[int]) -> int:
    """They are settled, inside the caller's transaction; how many were open."""
    before = connection.total_changes()
    connection.executemany(
        "UPDATE main._replicate_conflict SET state = ? WHERE id = ? AND state = ?",
        [(SETTLED, number, OPEN) for number in numbers],
    )
    return int(connection.total_changes() - before)


def forget_merged(connection: apsw.Connection) -> int:
    """Those that are settled go, inside the caller's transaction; how many."""
    connection.execute("DELETE FROM main._replicate_conflict WHERE state = ?", (SETTLED,))
    return int(connection.changes())


def orphans_of(path: Path, region: bytes) -> list[tuple[str, object, str]]:
    """Of each row of a region whose foreign key names a row that is not there: table, what SQLite names the row by
    (its rowid; None where it has none), and the other table. Raises what opening it raises."""
    with closing(open_region(path, readonly=True, region=region)) as connection:
        rows = connection.execute("PRAGMA main.foreign_key_check").fetchall()
    return [(str(table), row, str(parent)) for table, row, parent, _ in rows]
