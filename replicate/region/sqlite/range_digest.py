"""The digest of a range of a table's rows, by their keys, that can be taken back to an earlier transaction.

Guarantees: equal rows give equal digests on any machine, in whatever order they are read: a digest is the sum of its
rows' hashes, modulo 2^128. So a later change is taken out by its images alone (`Later`), and two sites compare a range
as it was at one transaction while both go on. The ranges of a table leave nothing out: each begins after the key at
which the one before it ended, and the last one has no end. Memory holds one row.
Leaves to others: which range is next (compare/patrol_rounds.py), and where later changes are read. Every call is within
the caller's read transaction.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import chain
from typing import Any, Final, NamedTuple

import apsw
import msgpack
from xxhash import xxh3_128_digest, xxh3_128_intdigest

from replicate.errors import NotSupportedError
from replicate.model.rowid import rowid_name
from replicate.model.transaction import RowChange, SequenceChange, TableDefinition, decode_change
from replicate.region.sqlite.data_feed import own_tables
from replicate.region.sqlite.digest import SEQUENCES, table_head
from replicate.region.sqlite.own_counters import counted_apart
from replicate.region.sqlite.schema import COUNTERS, read_definition, schema_objects, user_tables
from replicate.region.sqlite.sql.names import quote
from replicate.region.sqlite.wide_rows import read_rows

SCHEMA: Final = ""
"""In the place of a table's name: the definitions of all tables, indexes, views and triggers."""
_MODULUS: Final = 1 << 128

Key = tuple[Any, ...]


class RangeDigest(NamedTuple):
    """So many `rows`, and the `digest` of their definition and values, 16 bytes. `upto`: the key of the last row in the
    range, None where it is the table's end; `size`: bytes of the rows as they were hashed."""

    rows: int
    digest: bytes
    upto: Key | None
    size: int


def names_patrolled(connection: apsw.Connection) -> list[str]:
    """What there is to digest, in order: the schema, then the tables that are replicated, and their counters."""
    others = own_tables(connection)
    tables = [name for name in user_tables(connection) if name not in others]
    if connection.table_exists("main", SEQUENCES):
        tables.append(SEQUENCES)
    return [SCHEMA, *sorted(tables)]


def packed_key(key: Key | None) -> bytes:
    """A key as it travels; b"" for none: before the first row, or after the last."""
    packed: bytes = b"" if key is None else msgpack.packb(list(key))
    return packed


def unpacked_key(packed: bytes) -> Key | None:
    """ValueError and its kin for what is no key."""
    if not packed:
        return None
    values = msgpack.unpackb(packed, max_map_len=0, max_ext_len=0)
    if type(values) is not list or not values or not all(map(_is_value, values)):
        raise ValueError("a key")
    return tuple(values)


def _is_value(value: object) -> bool:
    """Whether it is one that a column of a key may hold: SQLite takes it as it is."""
    return type(value) in (str, bytes, float) or (type(value) is int and -(2**63) <= value < 2**63)


def cut_range(
    connection: apsw.Connection, table: str, after: Key | None, *, rows_max: int, bytes_max: int, key_bytes_max: int
) -> RangeDigest:
    """The range that begins after that key: it ends at the first row that makes it so large, and has a key of at most
    `key_bytes_max` bytes. The schema and the counters are one range each. NotSupportedError (no such table, or
    another key), and what SQLite says."""
    return _digest(connection, table, after, None, _RangeEnd(rows_max, bytes_max, key_bytes_max))


def digest_range(connection: apsw.Connection, table: str, after: Key | None, upto: Key | None) -> RangeDigest:
    """All rows after one key, up to another. As `cut_range`."""
    return _digest(connection, table, after, upto, None)


class _RangeEnd(NamedTuple):
    """Where a range that is cut ends."""

    rows: int
    bytes: int
    key_bytes: int

    def may_be(self, key: Key) -> bool:
        try:
            return len(packed_key(key)) <= self.key_bytes
        except UnicodeEncodeError:
            return False


def _digest(
    connection: apsw.Connection, table: str, after: Key | None, upto: Key | None, end: _RangeEnd | None
) -> RangeDigest:
    if table == SCHEMA:
        objects = sorted(schema_objects(connection, own_tables(connection)).items())
        packed = msgpack.packb([[*key, sql] for key, sql in objects])
        return RangeDigest(len(objects), xxh3_128_digest(packed), None, len(packed))
    if table == SEQUENCES:
        others = own_tables(connection) | counted_apart(connection)
        return _sum((row for row in connection.execute(COUNTERS) if row[0] not in others), b"", (), None)
    definition = read_definition(connection, table, region="")
    if any(bound is not None and len(bound) != len(definition.key) for bound in (after, upto)):
        raise NotSupportedError(f"table {table} has another key", where=connection.filename, table=table)
    head, key = table_head(definition, "range"), definition.key
    try:
        return _sum(_rows(connection, definition, after, upto, raw=False), head, key, end)
    except UnicodeDecodeError:
        rows = map(_texts_kept, _rows(connection, definition, after, upto, raw=True))
        return _sum(rows, head, key, end)


def _rows(
    connection: apsw.Connection, definition: TableDefinition, after: Key | None, upto: Key | None, *, raw: bool
) -> Iterable[Any]:
    names = [quote(column.name) for column in definition.columns]
    if definition.rowid:
        every = connection.execute("SELECT name FROM pragma_table_xinfo(?1, 'main')", (definition.table,))
        names.insert(0, rowid_name([name for (name,) in every]) or "")
    keys = ", ".join(names[at] for at in definition.key)
    bounds = [(sign, key) for sign, key in ((">", after), ("<=", upto)) if key is not None]
    where = " AND ".join(f"({keys}) {sign} ({', '.join('?' * len(key))})" for sign, key in bounds)
    if raw:
        pairs = ((f"typeof({name})", f"iif(typeof({name}) = 'text', CAST({name} AS BLOB), {name})") for name in names)
        names = list(chain.from_iterable(pairs))
    source = f"FROM main.{quote(definition.table)}{' WHERE ' * bool(where)}{where} ORDER BY {keys}"
    return read_rows(connection, names, source, [value for _, key in bounds for value in key])


def _texts_kept(pairs: Sequence[Any]) -> tuple[Any, ...]:
    """A row of storage classes and values, its texts such that they are packed as they are, UTF-8 or not."""
    return tuple(
        value.decode("utf-8", "surrogateescape") if kind == "text" else value
        for kind, value in zip(pairs[::2], pairs[1::2], strict=True)
    )


def _packer() -> msgpack.Packer:
    return msgpack.Packer(unicode_errors="surrogateescape")


def _sum(rows: Iterable[Any], head: bytes, key: Sequence[int], end: _RangeEnd | None) -> RangeDigest:
    pack, hashed = _packer().pack, xxh3_128_intdigest
    total, count, size = hashed(head), 0, 0
    last: Key | None = None
    for row in rows:
        packed = pack(row)
        total += hashed(packed)
        size += len(packed)
        count += 1
        if end is not None and (count >= end.rows or size >= end.bytes):
            reached = tuple(row[at] for at in key)
            if end.may_be(reached):
                last = reached
                break
    return RangeDigest(count, (total % _MODULUS).to_bytes(16, "big"), last, size)


class Later:
    """Changes of one range that were made after a moment: how to take them out of the digest of now."""

    def __init__(self, connection: apsw.Connection, table: str, after: Key | None, upto: Key | None) -> None:
        self._rows = 0
        self._total = 0
        self._pack = _packer().pack
        self._table, self._after, self._upto = table, after, upto
        self._connection = connection
        self._apart = counted_apart(connection) if table == SEQUENCES else frozenset[str]()
        self._definition = None if table in (SCHEMA, SEQUENCES) else read_definition(connection, table, region="")

    def take(self, op: int, ident: int, argument: Any, values: Any, table: str) -> None:
        """One flat change of a row of that `table`, or of its counter. JournalDamagedError for what is none."""
        change = decode_change(op, ident, argument, values)
        if isinstance(change, SequenceChange) and self._table == SEQUENCES and table not in self._apart:
            for value, sign in ((change.old, 1), (change.new, -1)):
                if value:  # one that stands at 0 and none at all are the same (COUNTERS)
                    self._count((table, value), sign)
        elif isinstance(change, RowChange) and table == self._table:
            for image, sign in ((change.before, 1), (change.after, -1)):
                if image is not None and self._is_within(image):
                    self._count(image, sign)

    def taken_out(self, of: RangeDigest) -> RangeDigest:
        """The range as it was at that moment, by what it is now."""
        total = int.from_bytes(of.digest, "big") + self._total
        return of._replace(rows=of.rows + self._rows, digest=(total % _MODULUS).to_bytes(16, "big"))

    def _count(self, row: Sequence[Any], sign: int) -> None:
        self._rows += sign
        self._total += sign * xxh3_128_intdigest(self._pack(tuple(row)))

    def _is_within(self, image: Sequence[Any]) -> bool:
        """By SQLite itself: texts compare by the collation of their column, numbers by their value."""
        definition = self._definition
        assert definition is not None
        key = [image[at] for at in definition.key]
        names = ["BINARY"] * definition.rowid + [column.collation for column in definition.columns]
        ours = ", ".join(f"? COLLATE {quote(names[at])}" for at in definition.key)
        return all(
            bound is None
            or self._connection.execute(f"SELECT ({ours}) {sign} ({', '.join('?' * len(bound))})", [*key, *bound]).get
            for sign, bound in ((">", self._after), ("<=", self._upto))
        )
