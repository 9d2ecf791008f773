"""The indexes of a table against its rows, and its rows against those that their foreign keys name, a bounded part at
a time: what no digest of rows can find.

Guarantees: every row is looked for in each index, and every entry of an index in the rows, texts byte by byte; STORED
generated columns are worked out again by SQLite itself. What stands in an index is read from the index alone: the
program that SQLite makes of the statement is looked at first, and an index that it would not read so is named as left
out. A part is of one moment, and the next one begins after its last key.
Leaves to others: which part is next, how fast, and what follows. Every call is within the caller's read transaction, on
a connection of its own. Two rows of one UNIQUE key are faulty rows.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import chain
from typing import Any, Final, NamedTuple

import apsw
import msgpack
from msgspec import Struct, field

from replicate.errors import ConflictError, NotFoundError, NotSupportedError
from replicate.limits import MIB
from replicate.model.rowid import rowid_name
from replicate.region.sqlite.open import open_region, translate
from replicate.region.sqlite.sql.names import fold, is_internal, quote
from replicate.region.sqlite.sql.statements import tokens

ROWS: Final = ""
"""In the place of an index's name: the rows of the table, each looked for in all indexes."""
PARENTS: Final = "\0"
"""The same: the rows of the table, for each the rows that its foreign keys name. No index can bear that name."""
SHOWN_MAX: Final = 3
"""So many wrong ones of an index are told of one part."""
BYTES_MAX: Final = MIB
"""So many bytes of keys, and of rows that are worked out again, are in memory; one row or key may be larger."""
STORED: Final = 3
"""`hidden` of PRAGMA table_xinfo: a STORED generated column."""
_READS: Final = frozenset(("Column", "IdxRowid", "Rowid", "SeekRowid", "NotExists"))
"""What SQLite's programs read a tree with, besides moving in it."""
_SKIPS: Final = "NotFound"
"""How they pass over an entry whose row is gone, of a table WITHOUT ROWID."""
_VALUES: Final = (str, bytes, float, int, type(None))

Key = tuple[Any, ...]


class Wrong(Struct, frozen=True):
    """What is wrong with an index (`index` is ROWS: with the table), in words, and the key of the row or entry; None
    where it cannot be read at all."""

    index: str
    what: str
    key: Key | None = None


class WithoutParent(Struct, frozen=True):
    """So many rows name a row of `parent` that is not there. `key`: of the first one."""

    parent: str
    count: int
    key: Key


class Walked(Struct):
    """So many rows, or entries, were looked at. `upto`: the last one, None at the end. `left_out`: by index, why it, or
    a part of it, cannot be looked at. `size`: bytes that were read from the file."""

    count: int = 0
    upto: Key | None = None
    wrong: list[Wrong] = field(default_factory=list)
    without_parent: list[WithoutParent] = field(default_factory=list)
    left_out: dict[str, str] = field(default_factory=dict)
    size: int = 0

    def goes_no_further(self, keys: list[Key], limit: int) -> bool:
        """Count these. Whether the part ends with them."""
        self.count += len(keys)
        is_over = self.count >= limit or _bytes_of(keys) >= BYTES_MAX
        self.upto = keys[-1] if is_over else None
        return is_over


class _Part(NamedTuple):
    """A column, or an expression, of an entry: its text in SQL, its collation, and which way it goes."""

    text: str
    collation: str = "BINARY"
    is_descending: bool = False

    @property
    def sql(self) -> str:
        return f"{self.text} COLLATE {quote(self.collation)}"


class _Tree(NamedTuple):
    """A tree of the database: a table by its key, or an index. `how`: what has SQLite read this one. `where`: of a
    partial index, else ""."""

    table: str
    how: str
    root: int
    parts: tuple[_Part, ...]
    where: str = ""

    def source(self, alias: str = "") -> str:
        return f"main.{quote(self.table)}{' AS ' * bool(alias)}{alias} {self.how}"

    def part(self, columns: Sequence[str], step: _Step) -> str:
        """A query for these columns of one step, each by the name that stands for its place."""
        named = ", ".join(f"{text} AS {_name(at)}" for at, text in enumerate(columns))
        where = " AND ".join(f"({one})" for one in (self.where, step.where) if one)
        return f"SELECT {named} FROM {self.source()}{' WHERE ' * bool(where)}{where} LIMIT ?"


class _Step(NamedTuple):
    """A stretch of a tree in which its order is that of one column."""

    where: str
    bindings: list[Any]


def _name(at: int) -> str:
    """Of a column of a part: none that a table could have."""
    return f"_replicate_{at}"


def checked_in(connection: apsw.Connection, table: str) -> list[str]:
    """What there is to look at in a table: ROWS, and its indexes by name; nothing where it has no index and no STORED
    generated column."""
    indexes = _indexes(connection, table)
    return [ROWS, *sorted(indexes)] if indexes or _columns(connection, table, stored=True) else []


def has_parents(connection: apsw.Connection, table: str) -> bool:
    """Whether a table has a foreign key."""
    return bool(connection.execute("SELECT EXISTS (SELECT 1 FROM pragma_foreign_key_list(?1, 'main'))", (table,)).get)


def index_names(connection: apsw.Connection) -> list[str]:
    """All indexes of the user's tables, by name."""
    query = "SELECT name, tbl_name FROM main.sqlite_schema WHERE type = 'index' ORDER BY name"
    listed: list[Any] = connection.execute(query).fetchall()
    return [name for name, table in listed if not is_internal(table) and name in _indexes(connection, table)]


def packed_entry(key: Key) -> bytes:
    """A key as it is kept."""
    packed: bytes = msgpack.packb(list(key), unicode_errors="surrogateescape")
    return packed


def unpacked_entry(packed: bytes) -> Key:
    """ValueError and its kin for what is no key."""
    values = msgpack.unpackb(packed, max_map_len=0, max_ext_len=0, unicode_errors="surrogateescape")
    if type(values) is not list or not values or not all(type(one) in _VALUES for one in values):
        raise ValueError("a key")
    return tuple(values)


def walk(connection: apsw.Connection, table: str, index: str, after: Key | None, *, limit: int) -> Walked:
    """At most `limit` rows (`index`: ROWS, PARENTS) or entries after that key; none where the table, or the index, is
    gone. What SQLite says, but for damage, which is told as wrong."""
    found = Walked()
    before = _pages_read(connection)
    try:
        if index == ROWS:
            _walk_rows(connection, table, after, limit, found)
        elif index == PARENTS:
            _walk_parents(connection, table, after, limit, found)
        elif index in _indexes(connection, table):
            _walk_entries(connection, table, index, after, limit, found)
    except apsw.CorruptError as error:
        found.upto = None
        found.wrong.append(Wrong(index, f"cannot be read: {error}"))
    except NotSupportedError as error:
        found.left_out[index] = error.what
    except apsw.SQLError as error:  # a function or a collation that is not here
        found.left_out[index] = str(error)
    found.size = (_pages_read(connection) - before) * int(connection.pragma("page_size"))
    return found


def make_again(path: str | os.PathLike[str], region: bytes, index: str) -> None:
    """Make an index again from its rows, in a transaction of its own. The caller holds the region's lock. NotFoundError
    where there is none; ConflictError where two rows have one UNIQUE key; what opening a region raises."""
    connection = open_region(path, region=region)
    try:
        found = connection.execute("SELECT 1 FROM main.sqlite_schema WHERE type = 'index' AND name = ?", (index,)).get
        if found is None:
            raise NotFoundError(f"there is no index {index}", where=os.fspath(path))
        connection.execute("BEGIN IMMEDIATE")
        connection.execute(f"REINDEX main.{quote(index)}")
        connection.execute("COMMIT")
    except apsw.ConstraintError as error:
        raise ConflictError(
            f"index {index} cannot be made again: {error}",
            where=os.fspath(path),
            do="Two rows have one key. Compare the sites (replicate -i INSTANCE compare), and mend the rows before",
        ) from error
    except apsw.Error as error:
        raise translate(error, where=os.fspath(path)) from error
    finally:
        connection.close(True)


def _pages_read(connection: apsw.Connection) -> int:
    return int(connection.status(apsw.SQLITE_DBSTATUS_CACHE_MISS)[0])


def _walk_rows(connection: apsw.Connection, table: str, after: Key | None, limit: int, found: Walked) -> None:
    names, stored = _indexes(connection, table), _columns(connection, table, stored=True)
    if not names and not stored:
        return
    rows = _table_tree(connection, table)
    for step in _steps(rows, after):
        keys = _keys(connection, rows, step, limit - found.count)
        if not keys:
            continue
        most = len(keys)
        if stored:  # first: after damage SQLite makes no temporary table in this transaction

            def work_out(keys: list[Key] = keys) -> list[Wrong]:
                return _worked_out(connection, rows, stored, keys)

            _looked_at(found, ROWS, work_out)
        for name in names:

            def look(name: str = name, step: _Step = step, most: int = most) -> list[Wrong]:
                return _lacking(connection, rows, _index_tree(connection, table, name), name, step, most)

            _looked_at(found, name, look)
        if found.goes_no_further(keys, limit):
            return


def _looked_at(found: Walked, name: str, look: Callable[[], list[Wrong]]) -> None:
    """One of the indexes beside others: what is wrong with it does not hide them."""
    try:
        found.wrong += look()
    except apsw.CorruptError as error:
        found.wrong.append(Wrong(name, f"cannot be read: {error}"))
    except NotSupportedError as error:
        found.left_out[name] = error.what
    except (apsw.SQLError, apsw.ConstraintError, apsw.MismatchError) as error:
        found.left_out[name] = str(error)


def _walk_parents(connection: apsw.Connection, table: str, after: Key | None, limit: int, found: Walked) -> None:
    keys_of_others = _foreign_keys(connection, table)
    if not keys_of_others:
        return
    rows = _table_tree(connection, table)
    for step in _steps(rows, after):
        keys = _keys(connection, rows, step, limit - found.count)
        if not keys:
            continue
        for parent, pairs in keys_of_others:
            try:
                lonely = _lonely(connection, rows, parent, pairs, step, len(keys))
            except (NotSupportedError, apsw.SQLError) as error:
                why = error.what if isinstance(error, NotSupportedError) else str(error)
                found.left_out[PARENTS] = f"foreign key to {parent}: {why}"
                continue
            if lonely:
                found.without_parent.append(WithoutParent(parent, len(lonely), lonely[0]))
        if found.goes_no_further(keys, limit):
            return


def _walk_entries(
    connection: apsw.Connection, table: str, index: str, after: Key | None, limit: int, found: Walked
) -> None:
    entries, rows = _index_tree(connection, table, index), _table_tree(connection, table)
    for step in _steps(entries, after):
        query = entries.part([part.text for part in entries.parts], step)
        skips = _check_alone(connection, query, [*step.bindings, limit], entries)
        if skips:
            found.left_out[index] = "SQLite passes over an entry whose row is gone"
        keys = _keys(connection, entries, step, limit - found.count)
        if not keys:
            continue
        found.wrong += _strays(connection, entries, rows, index, step, len(keys))
        if found.goes_no_further(keys, limit):
            return


# Looking.


def _lacking(
    connection: apsw.Connection, rows: _Tree, entries: _Tree, index: str, step: _Step, most: int
) -> list[Wrong]:
    """Rows of which the index has no entry. One that is alike by its collation alone is a stray beside."""
    keys = [part.text for part in rows.parts]
    inner = rows.part([*keys, *(part.text for part in entries.parts), f"({entries.where or 1}) IS TRUE"], step)
    same = [(part.sql, len(keys) + at) for at, part in enumerate(entries.parts)]

    def probe(other: Callable[[int], str]) -> str:
        where = [f"({entries.where})"] * bool(entries.where) + [f"{text} IS {other(at)}" for text, at in same]
        return f"SELECT 1 FROM {entries.source('i')} WHERE {' AND '.join(where)}"

    _check_alone(connection, probe(lambda _: "?"), [0] * len(same), entries)
    query = (
        f"SELECT {', '.join(map(_name, range(len(keys))))} FROM ({inner}) AS r "
        f"WHERE {_name(len(keys) + len(entries.parts))} "
        f"AND NOT EXISTS ({probe(lambda at: f'r.{_name(at)}')}) LIMIT {SHOWN_MAX}"
    )
    found = _fetched(connection, query, [*step.bindings, most], len(keys))
    return [Wrong(index, "lacks the entry of the row", key) for key in found]


def _strays(
    connection: apsw.Connection, entries: _Tree, rows: _Tree, index: str, step: _Step, most: int
) -> list[Wrong]:
    """Entries of no row, or of one that is not so."""
    places = {(part.text, part.collation): at for at, part in enumerate(entries.parts)}
    tied = [f"r.{part.sql} IS e.{_name(places[part.text, part.collation])}" for part in rows.parts]
    differs = [f"{part.text} COLLATE BINARY IS NOT e.{_name(at)}" for at, part in enumerate(entries.parts)]
    differs += [f"r.{rows.parts[0].text} IS NULL"] + [f"({entries.where}) IS NOT TRUE"] * bool(entries.where)
    query = (
        f"SELECT {', '.join(f'e.{_name(at)}' for at in range(len(entries.parts)))} "
        f"FROM ({entries.part([part.text for part in entries.parts], step)}) AS e "
        f"LEFT JOIN {rows.source('r')} ON {' AND '.join(tied)} WHERE {' OR '.join(differs)} LIMIT {SHOWN_MAX}"
    )
    found = _fetched(connection, query, [*step.bindings, most], len(entries.parts))
    return [Wrong(index, "has an entry that no row gives it", key) for key in found]


def _lonely(
    connection: apsw.Connection, rows: _Tree, parent: str, pairs: Sequence[tuple[str, str]], step: _Step, most: int
) -> list[Key]:
    """Rows of one step that name a row of `parent` which is not there; none of whose columns is NULL. They are compared
    as SQLite does it for a foreign key: by the affinity and the collation of the parent's column alone."""
    keys = [part.text for part in rows.parts]
    inner = rows.part([*keys, *(quote(child) for child, _ in pairs)], step)
    named = [_name(len(keys) + at) for at in range(len(pairs))]
    same = " AND ".join(f"p.{quote(one)} = +r.{name}" for (_, one), name in zip(pairs, named, strict=True))
    query = (
        f"SELECT {', '.join(map(_name, range(len(keys))))} FROM ({inner}) AS r "
        f"WHERE {' AND '.join(f'r.{name} IS NOT NULL' for name in named)} "
        f"AND NOT EXISTS (SELECT 1 FROM main.{quote(parent)} AS p WHERE {same})"
    )
    bindings = [*step.bindings, most]
    plan = [str(one[-1]) for one in connection.execute(f"EXPLAIN QUERY PLAN {query}", bindings, can_cache=False)]
    if not any(one.startswith("SEARCH p ") and "AUTOMATIC" not in one for one in plan):
        # Each would take a walk through all of them.
        raise NotSupportedError("no index finds its rows", where=connection.filename)
    return _fetched(connection, query, bindings, len(keys))


def _worked_out(connection: apsw.Connection, rows: _Tree, stored: Sequence[str], keys: Sequence[Key]) -> list[Wrong]:
    """Rows whose STORED generated columns are not what SQLite makes of the others, in a table of the same text that it
    has in memory for this."""
    query = "SELECT sql FROM main.sqlite_schema WHERE type = 'table' AND name = ?"
    text = str(connection.execute(query, (rows.table,)).get)
    key = [part.text for part in rows.parts]
    given = ", ".join(dict.fromkeys([*key, *map(quote, _columns(connection, rows.table, stored=False))]))
    other = f"temp.{quote(rows.table)}"
    tied = " AND ".join(f"r.{part.sql} IS x.{part.text}" for part in rows.parts)
    differs = " OR ".join(
        f"r.{quote(one)} COLLATE BINARY IS NOT x.{quote(one)} OR typeof(r.{quote(one)}) <> typeof(x.{quote(one)})"
        for one in stored
    )
    ask = (
        f"SELECT {', '.join(f'r.{one}' for one in key)} FROM {other} AS x JOIN {rows.source('r')} ON {tied} "
        f"WHERE {differs} LIMIT {SHOWN_MAX}"
    )
    found: list[Key] = []
    connection.pragma("temp_store", "memory")
    connection.pragma("ignore_check_constraints", True)
    connection.pragma("query_only", False)  # the file itself was opened to be read only
    try:
        connection.execute(f"CREATE TEMP TABLE{text.removeprefix('CREATE TABLE')}")
        try:
            for at, one in enumerate(keys, 1):
                bound = [_bound(value) for value in one]
                where = " AND ".join(f"{part.sql} IS {sign}" for part, (sign, _) in zip(rows.parts, bound, strict=True))
                connection.execute(
                    f"INSERT INTO {other} ({given}) SELECT {given} FROM {rows.source()} WHERE {where}",
                    [value for _, value in bound],
                )
                if at == len(keys) or _temporary_bytes(connection) >= BYTES_MAX:
                    found += _fetched(connection, ask, [], len(key))
                    connection.execute(f"DELETE FROM {other}")
        finally:
            connection.execute(f"DROP TABLE {other}")
    finally:
        connection.pragma("query_only", True)
    what = f"has STORED generated columns ({', '.join(stored)}) that do not follow from the row"
    return [Wrong(ROWS, what, one) for one in found[:SHOWN_MAX]]


def _temporary_bytes(connection: apsw.Connection) -> int:
    pages, free, size = (
        int(connection.pragma(name, schema="temp")) for name in ("page_count", "freelist_count", "page_size")
    )
    return (pages - free) * size


def _check_alone(connection: apsw.Connection, query: str, bindings: Sequence[Any], tree: _Tree) -> bool:
    """NotSupportedError where SQLite would read that tree's values anywhere else. Whether it passes over what it does
    not find there."""
    roots: dict[int, int] = {}
    skips = False
    for _, code, cursor, root, *_ in connection.execute(f"EXPLAIN {query}", bindings, can_cache=False):
        if code == "OpenRead":
            roots[cursor] = root
        elif code in _READS and roots.get(cursor) != tree.root:
            raise NotSupportedError("SQLite does not read it without the table", where=connection.filename)
        skips |= code == _SKIPS and roots.get(cursor) != tree.root
    return skips


def _keys(connection: apsw.Connection, tree: _Tree, step: _Step, most: int) -> list[Key]:
    """At most so many, and as many as hold BYTES_MAX."""
    query = tree.part([part.text for part in tree.parts], step)
    return _fetched(connection, query, [*step.bindings, most], len(tree.parts))


def _bytes_of(keys: Iterable[Key]) -> int:
    return sum(len(one) for key in keys for one in key if isinstance(one, str | bytes))


def _fetched(connection: apsw.Connection, query: str, bindings: Sequence[Any], columns: int) -> list[Key]:
    """The rows of a query, texts that are not UTF-8 among them, as many as hold BYTES_MAX."""
    try:
        return _upto_size(connection.execute(query, bindings, can_cache=False))
    except UnicodeDecodeError:
        names = [f"c{at}" for at in range(columns)]
        pairs = chain.from_iterable(
            (f"typeof({one})", f"iif(typeof({one}) = 'text', CAST({one} AS BLOB), {one})") for one in names
        )
        raw = f"WITH c ({', '.join(names)}) AS ({query}) SELECT {', '.join(pairs)} FROM c"
        return _upto_size(
            tuple(
                value.decode("utf-8", "surrogateescape") if kind == "text" else value
                for kind, value in zip(row[::2], row[1::2], strict=True)
            )
            for row in connection.execute(raw, bindings, can_cache=False)
        )


def _upto_size(rows: Iterable[Any]) -> list[Key]:
    found: list[Key] = []
    size = 0
    for row in rows:
        found.append(row)
        size += _bytes_of((row,))
        if size >= BYTES_MAX:
            break
    return found


# Trees.


def _steps(tree: _Tree, after: Key | None) -> Iterator[_Step]:
    """What comes after that key, in the tree's order: NULL is the least there. Nothing where it is no key of the tree:
    the tree is another one now, and the next round begins with its first one."""
    if after is None:
        yield _Step("", [])
        return
    if len(after) != len(tree.parts):
        return
    bound = [_bound(value) for value in after]
    for at in reversed(range(len(after))):
        part, value = tree.parts[at], after[at]
        same = [f"{one.sql} IS {text}" for one, (text, _) in zip(tree.parts[:at], bound[:at], strict=True)]
        values = [given for _, given in bound[: at + 1]]
        if value is None:
            beyond = [] if part.is_descending else [(f"{part.sql} IS NOT NULL", values[:-1])]
        elif part.is_descending:
            beyond = [(f"{part.sql} < {bound[at][0]}", values), (f"{part.sql} IS NULL", values[:-1])]
        else:
            beyond = [(f"{part.sql} > {bound[at][0]}", values)]
        for where, bindings in beyond:
            yield _Step(" AND ".join([*same, where]), bindings)


def _bound(value: Any) -> tuple[str, Any]:
    """What stands for a value in a statement, and what is bound there."""
    if isinstance(value, str):
        try:
            value.encode()
        except UnicodeEncodeError:  # coalesce(): a CAST has an affinity, a text that is bound has none
            return "coalesce(CAST(? AS TEXT), '')", value.encode("utf-8", "surrogateescape")
    return "?", value


def _indexes(connection: apsw.Connection, table: str) -> dict[str, int]:
    """Indexes of a table by name, each with the page where it begins: what is the table itself is none."""
    without = _is_without_rowid(connection, table)
    listed: list[Any] = connection.execute(
        "SELECT i.name, i.origin, s.rootpage FROM pragma_index_list(?1, 'main') AS i "
        "JOIN main.sqlite_schema AS s ON s.type = 'index' AND s.name = i.name",
        (table,),
    ).fetchall()
    return {name: root for name, origin, root in listed if not (without and origin == "pk")}


def _columns(connection: apsw.Connection, table: str, *, stored: bool) -> list[str]:
    """The STORED generated columns of a table, or those that are not generated."""
    wanted = (STORED,) if stored else (0,)
    found = connection.execute("SELECT name, hidden FROM pragma_table_xinfo(?1, 'main') ORDER BY cid", (table,))
    return [name for name, hidden in found if hidden in wanted]


def _foreign_keys(connection: apsw.Connection, table: str) -> list[tuple[str, list[tuple[str, str]]]]:
    """Of each foreign key the table that it names, and its columns, each with the one that it is to equal there."""
    listed: list[Any] = connection.execute(
        'SELECT id, "table", "from", "to" FROM pragma_foreign_key_list(?1, \'main\') ORDER BY id, seq', (table,)
    ).fetchall()
    found: dict[int, tuple[str, list[tuple[str, str]]]] = {}
    for number, parent, child, other in listed:
        pairs = found.setdefault(number, (parent, []))[1]
        pairs.append((child, _key_column(connection, parent, len(pairs)) if other is None else other))
    return list(found.values())


def _key_column(connection: apsw.Connection, table: str, at: int) -> str:
    """The name of one of the primary key's columns; where there is none, one that SQLite does not find either."""
    name = connection.execute("SELECT name FROM pragma_table_info(?1, 'main') WHERE pk = ?2", (table, at + 1)).get
    return f"column {at + 1} of its primary key" if name is None else str(name)


def _is_without_rowid(connection: apsw.Connection, table: str) -> bool:
    found = connection.execute("SELECT wr FROM pragma_table_list(?1) WHERE schema = 'main'", (table,)).get
    return bool(found)


def _table_tree(connection: apsw.Connection, table: str) -> _Tree:
    root = connection.execute("SELECT rootpage FROM main.sqlite_schema WHERE type = 'table' AND name = ?", (table,)).get
    if not _is_without_rowid(connection, table):
        return _Tree(table, "NOT INDEXED", root, (_Part(_rowid(connection, table)),))
    own = connection.execute("SELECT name FROM pragma_index_list(?1, 'main') WHERE origin = 'pk'", (table,)).get
    parts = tuple(part for part, is_key in _parts(connection, table, own) if is_key)
    return _Tree(table, f"INDEXED BY {quote(own)}", root, parts)


def _index_tree(connection: apsw.Connection, table: str, index: str) -> _Tree:
    """Its last parts are those of the row's key that it does not have anyway."""
    parts = tuple(part for part, _ in _parts(connection, table, index))
    _, where = _index_text(connection, index)
    return _Tree(table, f"INDEXED BY {quote(index)}", _indexes(connection, table)[index], parts, where)


def _parts(connection: apsw.Connection, table: str, index: str) -> list[tuple[_Part, bool]]:
    """The columns of an index in order, each with whether it is among those that its statement names."""
    expressions, _ = _index_text(connection, index)
    found = []
    query = 'SELECT seqno, cid, name, "desc", coll, "key" FROM pragma_index_xinfo(?1, ?2)'
    listed: list[Any] = connection.execute(query, (index, "main")).fetchall()
    for at, column, name, descending, collation, is_key in listed:
        if column == -1:
            text = _rowid(connection, table)
        elif column == -2:
            text = f"({expressions[at]})"
        else:
            text = quote(name)
        found.append((_Part(text, collation, bool(descending)), bool(is_key)))
    return found


def _rowid(connection: apsw.Connection, table: str) -> str:
    columns = connection.execute("SELECT name FROM pragma_table_xinfo(?1, 'main')", (table,))
    name = rowid_name([column for (column,) in columns])
    if name is None:
        raise NotSupportedError("its columns bear all names of the rowid", where=connection.filename, table=table)
    return quote(name)


def _index_text(connection: apsw.Connection, index: str) -> tuple[list[str], str]:
    """What a CREATE INDEX statement says between its parentheses, one after another, and after WHERE."""
    sql = connection.execute("SELECT sql FROM main.sqlite_schema WHERE type = 'index' AND name = ?", (index,)).get
    if sql is None:
        return [], ""
    pieces: list[list[Any]] = [[]]
    rest: list[Any] = []
    depth, is_over = 0, False
    for token in tokens(sql):
        if is_over:
            rest.append(token)
            continue
        depth += (token.text == "(") - (token.text == ")")
        if depth == 0 and token.text == ")":
            is_over = True
        elif depth == 1 and token.text == ",":
            pieces.append([])
        elif depth > 1 or (depth == 1 and token.text != "("):
            pieces[-1].append(token)
    texts = []
    for piece in pieces:
        if len(piece) > 1 and fold(piece[-1].text) in ("asc", "desc"):
            piece.pop()
        texts.append(sql[piece[0].start : piece[-1].end])
    where = sql[rest[1].start : rest[-1].end] if rest and rest[0].upper == "WHERE" else ""
    return texts, where
