"""Tables of which a peer wants some columns only: what stands in the place of the others, and which tables, and which
statements that change them, cannot be had so.

A column that is left out stays in the table, and holds a blank in each row: NULL, or where it is NOT NULL the empty
value of its type. So the schema is the same on both sites, and its changes go as they are.

Guarantees: what a blank would break on the other site (a key, a CHECK, a unique index, what is computed, a reference)
is named, and so is a statement of which both sites would make something different. A value that is left out is in no
image that `BlankedColumns.shown` gives.
Leaves to others: any database (region/sqlite/table_facts.py reads it), journals, conditions. Pure.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final, NamedTuple, TypeAlias

from msgspec import Struct, field

from replicate.errors import UsageError
from replicate.model.table_wish import fold
from replicate.model.transaction import Column, TableDefinition

Blank: TypeAlias = int | float | str | bytes | None
STAND_INS: Final = ("new__", "_alembic_tmp_")
"""What Django and Alembic put before the name of a table that they make in the place of another one."""

_OF_TYPE: Final[Mapping[str, Blank]] = {"INTEGER": 0, "REAL": 0.0, "NUMERIC": 0, "TEXT": "", "BLOB": b""}
_SQL: Final[Mapping[type, str]] = {type(None): "NULL", int: "0", float: "0.0", str: "''", bytes: "x''"}


class TableShare(Struct, frozen=True):
    """What of a table's rows is read, or kept. `where`: the condition in SQL, "" for all rows. `blanks`: what is in the
    place of columns, name -> literal in SQL. `listed`: the columns that were listed; none where all were."""

    where: str = ""
    blanks: Mapping[str, str] = field(default_factory=dict)
    listed: tuple[str, ...] = ()


WHOLE: Final = TableShare()


class BlankedColumns(Struct, frozen=True):
    """Of one definition of its table. `blanks`: by the ordinal in an image; `by_name`: the same by the folded name."""

    blanks: Mapping[int, Blank] = field(default_factory=dict)
    by_name: Mapping[str, Blank] = field(default_factory=dict)
    sql: Mapping[str, str] = field(default_factory=dict)
    """Name -> literal."""

    def shown(self, image: Sequence[Any]) -> Sequence[Any]:
        """The image with the blanks; itself where it has them."""
        if all(_is_blank(image[ordinal], blank) for ordinal, blank in self.blanks.items()):
            return image
        return [self.blanks.get(at, value) for at, value in enumerate(image)]


ALL_SHOWN: Final = BlankedColumns()


def _is_blank(value: Any, blank: Blank) -> bool:
    return type(value) is type(blank) and value == blank


def blank_of(column: Column, *, strict: bool) -> Blank:
    """What a column holds that is left out."""
    return _OF_TYPE[affinity_of(column, strict=strict)] if column.not_null else None


def blank_sql(column: Column, *, strict: bool) -> str:
    """The same as a literal."""
    return _SQL[type(blank_of(column, strict=strict))]


def affinity_of(column: Column, *, strict: bool) -> str:
    """As SQLite derives it from the declared type."""
    declared = column.type.upper()
    if strict and declared == "ANY":
        return "BLOB"
    for affinity, words in (
        ("INTEGER", ("INT",)),
        ("TEXT", ("CHAR", "CLOB", "TEXT")),
        ("BLOB", ("BLOB",)),
        ("REAL", ("REAL", "FLOA", "DOUB")),
    ):
        if any(word in declared for word in words):
            return affinity
    return "NUMERIC" if declared else "BLOB"


def blanked(definition: TableDefinition, columns: Sequence[str]) -> BlankedColumns:
    """What is left out where these columns are listed. UsageError for one that is not there, and where a column of the
    key is not among them."""
    listed = {fold(name) for name in columns}
    known = {fold(column.name): column.name for column in definition.columns}
    for name in columns:
        if fold(name) not in known:
            raise UsageError(
                f"table {definition.table} has no column {name}, or computes it",
                where=f"{definition.region}.{definition.table}",
                do=f"Name some of these: {', '.join(known.values())}",
            )
    left = [(at, one) for at, one in enumerate(definition.columns) if fold(one.name) not in listed]
    for at, column in left:
        if at + definition.rowid in definition.key:
            raise left_out_error(definition, f"column {column.name} is of the key that tells its rows")
    blanks = {at: blank_of(one, strict=definition.strict) for at, one in left}
    return BlankedColumns(
        {at + definition.rowid: blank for at, blank in blanks.items()},
        {fold(one.name): blanks[at] for at, one in left},
        {one.name: blank_sql(one, strict=definition.strict) for _, one in left},
    )


def left_out_error(definition: TableDefinition, why: str) -> UsageError:
    """The refusal of a list that lacks what this table needs."""
    return UsageError(
        f"table {definition.table} cannot do without what is not listed: {why}",
        where=f"{definition.region}.{definition.table}",
        do="List it, too; or have what is to stay in a table of its own",
    )


# Tables.


class IndexFacts(NamedTuple):
    """`columns`: None where it is an expression. `sql`: "" for one that a constraint made."""

    name: str
    is_unique: bool
    columns: tuple[str | None, ...]
    is_partial: bool
    sql: str


class TableFacts(Struct, frozen=True):
    """What a table's definition does not say. `sql`: its CREATE TABLE. `references`: the columns of its foreign keys;
    `referred`: those of its columns that other tables refer to. `indexed_by`: virtual tables that have it as their
    content."""

    sql: str
    primary: tuple[str, ...] = ()
    indexes: tuple[IndexFacts, ...] = ()
    references: tuple[str, ...] = ()
    referred: tuple[str, ...] = ()
    indexed_by: tuple[str, ...] = ()


def unfit_table(facts: TableFacts, left: Mapping[str, Blank]) -> str:
    """Why these columns (folded names) cannot be left out of that table; "" when they can."""
    for name in facts.primary:
        if fold(name) in left:
            return f"column {name} is of the primary key"
    for name in sorted(left.keys() & names_in_expressions(facts.sql)):
        return f"column {name} is in a CHECK, or another column is computed from it"
    for index in facts.indexes:
        if reason := _unfit_index(index, left):
            return reason
    for name in facts.references:
        if left.get(fold(name)) is not None:
            return f"column {name} is never NULL, and refers to another table"
    for name in facts.referred:
        if fold(name) in left:
            return f"rows of other tables refer to column {name}"
    if left and facts.indexed_by:
        return f"the virtual table {facts.indexed_by[0]} has all of its columns as content"
    return ""


def _unfit_index(index: IndexFacts, left: Mapping[str, Blank]) -> str:
    if None in index.columns or index.is_partial:
        for name in sorted(left.keys() & {one.name for one in _tokens(index.sql) if one.is_column}):
            return f"index {index.name} computes with column {name}"
    among = [name for name in index.columns if name is not None and fold(name) in left]
    if index.is_unique and among and all(left[fold(name)] is not None for name in among):
        return f"column {among[0]} is never NULL, and keeps rows unique (index {index.name})"
    return ""


# Texts.


class _SqlToken(NamedTuple):
    """`name`: folded, without quotes; "" where it is none. `keyword`: of a bare word, in capitals. `depth`: how many
    parentheses are open before it."""

    text: str
    name: str
    keyword: str
    depth: int

    @property
    def is_column(self) -> bool:
        """Whether it may be one, in an expression."""
        return bool(self.name) and self.text[0] != "'"


_TOKEN: Final = r"""(?:[\s\ufeff]+|--[^\n]*|/\*.*?(?:\*/|\Z))+
    | (?P<quoted>[xX]?'(?:[^']|'')*' | "(?:[^"]|"")*" | `(?:[^`]|``)*` | \[[^\]]*\])
    | (?P<word>[\w$\x80-\U0010ffff]+)
    | (?P<other>.)"""
"""Compiled when a definition is read: that takes 2 ms, and most daemons read none."""


def _tokens(sql: str) -> Iterator[_SqlToken]:
    depth = 0
    for found in re.compile(_TOKEN, re.VERBOSE | re.DOTALL).finditer(sql):
        if found.lastgroup is None:
            continue
        text = found[0]
        if found.lastgroup == "word":
            yield _SqlToken(text, "" if text[0].isdigit() else fold(text), text.upper(), depth)
        elif found.lastgroup == "quoted":
            yield _SqlToken(text, fold(_unquoted(text)), "", depth)
        else:
            depth -= text == ")"
            yield _SqlToken(text, "", "", depth)
            depth += text == "("


def _unquoted(text: str) -> str:
    return text[1:-1] if text[0] == "[" else text[1:-1].replace(2 * text[0], text[0])


def names_in_expressions(sql: str) -> frozenset[str]:
    """The names, folded, in the CHECKs of a CREATE TABLE, and in what its columns are computed from."""
    found: set[str] = set()
    before, depth = "", None
    for token in _tokens(sql):
        if depth is None:
            if token.text == "(" and before in ("CHECK", "AS"):
                depth = token.depth
        elif token.text == ")" and token.depth == depth:
            depth = None
        elif token.is_column:
            found.add(token.name)
        before = token.keyword
    return frozenset(found)


def unfit_statement(sql: str, table: str, listed: Sequence[str], left: Mapping[str, Blank]) -> str:
    """Why a schema change cannot go to a site with these columns of that table; "" when it can, as it is. `left`: the
    others, folded."""
    found, name = list(_tokens(sql)), fold(table)
    ways = {name, *(prefix + name for prefix in STAND_INS)}
    if not any(one.name in ways for one in found):
        return ""
    verb = found[0].keyword
    if verb == "CREATE":
        return _unfit_create(found, name, ways, left)
    if verb == "ALTER":
        return _unfit_alter(found, name, {fold(one) for one in listed}, left)
    return "" if verb in ("DROP", "REINDEX", "ANALYZE", "PRAGMA") else "it is not known what that changes"


def _unfit_create(found: list[_SqlToken], name: str, ways: set[str], left: Mapping[str, Blank]) -> str:
    words = [one.keyword for one in found[:4]]
    if "VIRTUAL" in words[:2]:
        return "a virtual table is made that names it"
    if "INDEX" in words[:3]:
        on = next((at for at, one in enumerate(found) if one.keyword == "ON"), len(found))
        of = found[on + 3] if found[on + 2 : on + 3] and found[on + 2].text == "." else found[on + 1]
        inner = [one for one in found[on:] if one.depth]
        some = [one.name for one in found[on:] if one.is_column and one.name in left and one.depth]
        is_computed = any(one.text == "(" for one in inner) or any(one.keyword == "WHERE" for one in found[on:])
        some += [one.name for one in found[on:] if is_computed and one.is_column and one.name in left]
        if of.name == name and some and (is_computed or "UNIQUE" in words):
            return f"an index keeps unique, or computes with, column {some[0]}"
        return ""
    if "TABLE" not in words[:3]:  # a view, a trigger: both show what is there, and none of these runs there
        return ""
    at = words.index("TABLE") + 1
    at += 3 * (found[at].keyword == "IF")
    made = found[at + 2] if found[at + 1 : at + 2] and found[at + 1].text == "." else found[at]
    if made.name in ways:
        return "it is made again, by this name or by one that is to take its place"
    return ""  # of a CREATE TABLE AS the text comes without the SELECT, and what it copied as rows of the new table


def _unfit_alter(found: list[_SqlToken], name: str, listed: set[str], left: Mapping[str, Blank]) -> str:
    at = 4 if found[3:4] and found[3].text == "." else 2
    if found[at].name != name:
        return ""
    verb, rest = found[at + 1].keyword, found[at + 2 :]
    if verb == "RENAME" and rest[0].keyword == "TO":
        return ""  # the table: what tells rows sees to that
    is_column = rest[0].keyword == "COLUMN"
    rest = rest[is_column:]
    if verb == "RENAME":
        gone = [one.name for one in (rest[0], rest[2]) if one.name in listed]
        return f"column {gone[0]} is another one" if gone else ""
    if verb == "DROP":
        return f"column {rest[0].name} is gone" if rest[0].name in listed else ""
    if verb == "ADD":
        return _unfit_new(rest, listed, left, is_column=is_column)
    if verb == "ALTER":
        return f"column {rest[0].name} may be NULL, or may not" if rest[0].name in left else ""
    return "it is not known what that changes"


def _unfit_new(rest: list[_SqlToken], listed: set[str], left: Mapping[str, Blank], *, is_column: bool) -> str:
    column, words = rest[0], {one.keyword for one in rest[1:]}
    if not is_column and column.keyword in ("CONSTRAINT", "CHECK"):
        return "it gets a constraint"
    if column.name in listed:
        return f"column {column.name} is made again"
    if "CHECK" in words:
        return f"column {column.name} comes with a CHECK"
    if "AS" in words:
        names = [one.name for one in rest[1:] if one.is_column and one.name in left]
        return f"column {column.name} is computed from {names[0]}" if names else ""
    return ""
