"""Which transactions of a journal somebody asks for, and which of their changes: by time, origin, comment; by table,
operation and key.

Guarantees: the answer depends on the arguments alone; a frame in which `Chooser.mark` does not occur, and which defines
nothing, holds no change that is asked for. Time, origin and comment choose transactions; table, operation and key
choose changes, and a transaction without such a change is left out.
Leaves to others: where transactions are read, in which order, and how they are shown. Pure.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from typing import Any, Final, NamedTuple

import msgpack
from msgspec import Struct

from replicate.errors import JournalDamagedError, NotFoundError, UsageError
from replicate.limits import PARTITION_MAX
from replicate.model.elements import COMMENT, DATA, DEFINITION, SECTION, STORAGE
from replicate.model.rowid import ROWID_NAMES, rowid_name
from replicate.model.transaction import History, Op, TableDefinition, changed_of
from replicate.model.vector import U64_MAX
from replicate.region.sqlite.sql.elements import element_of_text

TableName = tuple[str, str, str]
"""Region, owner, table."""
_TABLES_NAMED_MAX = 12
_ROWS: Final = (Op.INSERT, Op.UPDATE, Op.DELETE)
_OF_TABLES: Final = (*_ROWS, Op.SEQUENCE, Op.DEFINE)
_OF_PARTITIONS: Final = frozenset((Op.COMMENT, Op.SCHEMA))
_OF_ELEMENTS: Final = {
    DATA: (*_ROWS, Op.SEQUENCE, Op.SCHEMA),  # a counter that no table has travels as a text
    COMMENT: (Op.COMMENT,),
    DEFINITION: (Op.SCHEMA, Op.DEFINE),
    STORAGE: (Op.SCHEMA,),
    SECTION: (Op.SCHEMA,),
}
BINARY: Final = "BINARY"
_SMALL: Final = {ord(letter): letter.lower() for letter in "ABCDEFGHIJKLMNOPQRSTUVWXYZ"}
_MARK_BYTES_MIN: Final = 2
"""Of a value that is looked for before a frame is decoded: one byte stands in every frame."""
_BLOB: Final = re.compile(r"[xX]'((?:[0-9a-fA-F]{2})*)'")

KeyValue = frozenset[tuple[type, Any]]
"""All values that an operator may mean by one word of a key: 5 is the number or the text."""


class Selection(Struct, frozen=True):
    """Transactions with a csn from `first_csn` to `last_csn`, of one of `origins` (none: all), with a comment that
    contains `comment` (None: with or without); and of these the changes of `tables` (none: all), of tables in one of
    `partitions` (none: any), of `ops` (none: all), of rows whose `key` (None: any) is one of those before or after, of
    one of the audit `elements` (none: any). What is of those narrows `ops`, too (`ops_of`). `columns`: the names of
    those whose values `key` has, in small letters (none: the columns of the table's key)."""

    first_csn: int = 0
    last_csn: int = U64_MAX
    tables: frozenset[TableName] = frozenset()
    origins: frozenset[int] = frozenset()
    ops: frozenset[Op] = frozenset()
    key: tuple[KeyValue, ...] | None = None
    comment: str | None = None
    partitions: frozenset[int] = frozenset()
    elements: frozenset[str] = frozenset()
    columns: tuple[str, ...] = ()

    @property
    def is_everything(self) -> bool:
        """Whether nothing is left out."""
        return self == EVERYTHING

    @property
    def chooses_changes(self) -> bool:
        """Whether of a transaction some changes may be left out."""
        return bool(self.by_table or self.ops or self.key is not None)

    @property
    def by_table(self) -> bool:
        """Whether a change is asked for by the table that it is of."""
        return bool(self.tables or self.partitions)

    def is_of(self, definition: TableDefinition) -> bool:
        """Whether changes of that table, as it is defined so, are asked for."""
        wanted = not self.tables or definition.name in self.tables
        return wanted and (not self.partitions or definition.partition in self.partitions)

    @property
    def reads_changes(self) -> bool:
        """Whether the head of a frame does not tell if it is asked for."""
        return self.chooses_changes or self.comment is not None

    def is_in_time(self, csn: int) -> bool:
        """Whether a transaction of that csn may be one."""
        return self.first_csn <= csn <= self.last_csn


EVERYTHING = Selection()


class AskedRow(NamedTuple):
    """A row as a selection asks for it, for a table as it is defined. `ordinals`: in an image, of the values that are
    compared, None where the table has no such column; `values`: what they may be, as their `collations` tell values
    apart."""

    ordinals: tuple[int, ...] | None
    values: tuple[KeyValue, ...]
    collations: tuple[str, ...]

    def is_one_of(self, rows: Iterable[Sequence[Any]]) -> bool:
        """Whether it is asked for by one of these values."""
        if self.collations:
            rows = [tuple(map(collated, row, self.collations)) for row in rows]
        return any(is_key(self.values, row) for row in rows)


def asked_row(definition: TableDefinition, key: tuple[KeyValue, ...], columns: Sequence[str] = ()) -> AskedRow:
    """What a selection's `key` and `columns` mean for a table."""
    ordinals = definition.key
    if columns:
        places = {name.lower(): at for at, name in reversed(list(enumerate(image_names(definition))))}
        if any(name not in places for name in columns):
            return AskedRow(None, key, ())
        ordinals = tuple(places[name] for name in columns)
    collations = tuple(_collation(definition, at) for at in ordinals)
    if all(one == BINARY for one in collations) or len(key) != len(collations):
        return AskedRow(ordinals, key, ())
    folded = (
        frozenset((kind, collated(value, one)) for kind, value in values)
        for values, one in zip(key, collations, strict=True)
    )
    return AskedRow(ordinals, tuple(folded), collations)


def image_names(definition: TableDefinition) -> tuple[str, ...]:
    """The names of the values of an image; no two are alike."""
    names = tuple(column.name for column in definition.columns)
    return (rowid_name(names) or ROWID_NAMES[0], *names) if definition.rowid else names


def _collation(definition: TableDefinition, ordinal: int) -> str:
    at = ordinal - definition.rowid
    return BINARY if at < 0 else definition.columns[at].collation.upper()


def collated(value: Any, collation: str) -> Any:
    """What stands for all values that a collation does not tell from this one. One that nobody here knows tells all."""
    if type(value) is not str:
        return value
    if collation == "NOCASE":
        return value.translate(_SMALL)
    return value.rstrip(" ") if collation == "RTRIM" else value


class Chooser:
    """A selection, made ready for the tables that `definitions` know: those in force where it is asked."""

    def __init__(self, selection: Selection, definitions: Mapping[int, TableDefinition]) -> None:
        self.selection = selection
        self.definitions = definitions
        self.table_ids = frozenset(
            key for key, one in definitions.items() if selection.by_table and selection.is_of(one)
        )
        self._rows: dict[int, AskedRow] = {}
        self.mark = self._mark()
        """Occurs in every frame with a change that is asked for, but for one that defines a table; None: in any."""

    def _mark(self) -> re.Pattern[bytes] | None:
        # An id is 0, or always packed in five bytes, ce and four of its own (transaction.TableDefinition). Before it
        # stands the operation.
        wanted = self.selection
        if wanted.comment:
            return re.compile(re.escape(wanted.comment.encode()))
        if self.table_ids and (values := self._packed_values()):
            return re.compile(b"|".join(map(re.escape, values)))
        ids = sorted(key.to_bytes(4, "big") for key in self.table_ids)
        if wanted.by_table and wanted.ops:
            marks = [bytes([op, 0xCE]) + ident for op in wanted.ops if op in _OF_TABLES for ident in ids]
        elif wanted.by_table:
            marks = ids
        elif wanted.ops:
            marks = [bytes([op, 0xCE if op in _OF_TABLES else 0]) for op in wanted.ops]
            for op in wanted.ops & _OF_PARTITIONS:  # its id is its partition
                marks += [bytes([op, number]) for number in range(1, PARTITION_MAX + 1)]
            if Op.COMMENT in wanted.ops:  # or a table that was put into another one
                marks.append(bytes([Op.COMMENT, 0xCE]))
        else:
            return None
        return re.compile(b"|".join(map(re.escape, sorted(marks))) if marks else rb"(?!)")

    def _packed_values(self) -> list[bytes]:
        """Of the row that is asked for what stands in each of its changes: every way in which one of its values is
        packed, of the column of which that is longest. None where values that are not the same bytes are equal."""
        key, best = self.selection.key or (), list[bytes]()
        rows = [self._row(self.definitions[ident], key) for ident in self.table_ids]
        if any(row.collations for row in rows):
            return []
        for values in key:
            found = sorted(packed_ways(values))
            if min(map(len, found), default=0) > min(map(len, best), default=_MARK_BYTES_MIN - 1):
                best = found
        return best

    def _row(self, definition: TableDefinition, key: tuple[KeyValue, ...]) -> AskedRow:
        found = self._rows.get(definition.table_id)
        if found is None:
            found = self._rows[definition.table_id] = asked_row(definition, key, self.selection.columns)
        return found

    def takes(self, op: Any, ident: Any, argument: Any, values: Any) -> bool:
        """Whether a flat change is asked for. JournalDamagedError for a row that is none."""
        wanted = self.selection
        if wanted.ops and op not in wanted.ops:
            return False
        if wanted.elements and op == Op.SCHEMA and element_of_text(values[0]) not in wanted.elements:
            return False
        if wanted.by_table and (op not in _OF_TABLES or ident not in self.table_ids):
            return False
        return wanted.key is None or (op in _ROWS and self._has_key(op, ident, argument, values))

    def chosen(self, flat: Sequence[Any], start: int = 0) -> Iterator[int]:
        """Where, from `start` on, the changes begin that are asked for, in a flat list of changes."""
        if len(flat) - start & 3:
            raise JournalDamagedError("changes should come in fours")
        if not self.selection.chooses_changes:
            yield from range(start, len(flat), 4)
            return
        for at in range(start, len(flat), 4):
            if self.takes(*flat[at : at + 4]):
                yield at

    def has_comment(self, flat: Sequence[Any], start: int = 0) -> bool:
        """Whether there is a comment such as asked for among flat changes."""
        wanted = self.selection.comment
        if wanted is None:
            return True
        return any(flat[at] == Op.COMMENT and wanted in str(flat[at + 3][0]) for at in range(start, len(flat) - 3, 4))

    def takes_body(self, body: Sequence[Any], start: int) -> bool:
        """Whether a transaction whose changes begin at `start` of its body is asked for, its head being so."""
        if not self.has_comment(body, start):
            return False
        return not self.selection.chooses_changes or next(self.chosen(body, start), None) is not None

    def _has_key(self, op: int, ident: Any, argument: Any, values: Any) -> bool:
        definition = self.definitions.get(ident)
        if definition is None or self.selection.key is None:
            return False
        row = self._row(definition, self.selection.key)
        return row.ordinals is not None and row.is_one_of(keys_of(definition, op, argument, values, row.ordinals))


def keys_of(
    definition: TableDefinition, op: int, argument: Any, values: Sequence[Any], ordinals: Sequence[int] | None = None
) -> list[tuple[Any, ...]]:
    """The keys of the row of a flat change: before it and after it, where an UPDATE sets another one; else the one.
    `ordinals`: of other values than those of the key.

    JournalDamagedError for an image that is not of that table."""
    ordinals = definition.key if ordinals is None else ordinals
    changed = changed_of(argument, definition.image_length) if op == Op.UPDATE else ()
    image = values[len(changed) :]
    if len(image) != definition.image_length:
        raise JournalDamagedError(f"an image does not fit table {definition.table}")
    before = tuple(image[ordinal] for ordinal in ordinals)
    if not set(changed) & set(ordinals):
        return [before]
    places = {ordinal: place for place, ordinal in enumerate(changed)}
    return [before, tuple(values[places[at]] if at in places else image[at] for at in ordinals)]


def is_key(wanted: tuple[KeyValue, ...], key: Sequence[Any]) -> bool:
    """Whether a row's key is one that was asked for."""
    return len(wanted) == len(key) and all((type(value), value) in one for one, value in zip(wanted, key, strict=True))


def exactly(key: Sequence[Any]) -> tuple[KeyValue, ...]:
    """The key of a row, to be asked for."""
    return tuple(frozenset({(type(value), value)}) for value in key)


def packed_ways(values: KeyValue) -> set[bytes]:
    """Each of these values as it is packed in a change; one that no change can hold has none."""
    found = set()
    # 0.0 and -0.0 are one to a comparison, and two as they are packed.
    for value in [value for _, value in values] + [-value for kind, value in values if kind is float and value == 0]:
        try:
            found.add(msgpack.packb(value, use_bin_type=True))
        except (OverflowError, UnicodeEncodeError):
            continue
    return found


def row_named(words: Sequence[str], definition: TableDefinition) -> tuple[tuple[KeyValue, ...], tuple[str, ...]]:
    """The row that an operator means, as `key` and `columns` of a selection: by one word for each column of the table's
    key, which is NULL, X'HEX' (a BLOB), a number, or a text; or by words COLUMN=VALUE, of any columns.

    UsageError for another count of words than the table's key has columns, and for one that no rowid can be."""
    names = image_names(definition)
    parts = [word.partition("=") for word in words]
    if parts and {name.lower() for name, sign, _ in parts if sign} >= {name.lower() for name, _, _ in parts}:
        known = {name.lower() for name in names}
        if all(name.lower() in known for name, _, _ in parts):
            return tuple(_meant(value) for _, _, value in parts), tuple(name.lower() for name, _, _ in parts)
    if len(words) != len(definition.key):
        example = ", ".join(f"{column.name}=VALUE" for column in definition.columns[:2])
        raise UsageError(
            f"the key of {definition.table} has {len(definition.key)} "
            f"value{'s' * (len(definition.key) != 1)}, {len(words)} were given",
            do=f"Give, in this order: {', '.join(names[at] for at in definition.key)}; or name columns: {example}",
        )
    key = tuple(map(_meant, words))
    if _is_by_number(definition) and not any(kind is int for kind, _ in key[0]):
        raise UsageError(
            f"the key of {definition.table}, {names[definition.key[0]]}, is a whole number, and {words[0]!r} is none",
            do=f"Give one; or name columns of {', '.join(names)}: COLUMN=VALUE",
        )
    return key, ()


def _is_by_number(definition: TableDefinition) -> bool:
    """Whether the key is a rowid, hidden or an INTEGER PRIMARY KEY."""
    if definition.rowid or definition.without_rowid or definition.is_by_key or len(definition.key) != 1:
        return definition.rowid
    return definition.columns[definition.key[0]].type.upper() == "INTEGER"


def _meant(word: str) -> KeyValue:
    found: set[tuple[type, Any]] = {(str, word)}
    if word == "NULL":
        found.add((type(None), None))
    if (blob := _BLOB.fullmatch(word)) is not None:
        found.add((bytes, bytes.fromhex(blob[1])))
    for kind in (int, float):
        try:
            found.add((kind, kind(word)))
        except (ValueError, OverflowError):
            continue
    whole = [(int, int(value)) for kind, value in found if kind is float and value.is_integer()]
    return frozenset(found.union(whole))


def ops_named(words: Iterable[str]) -> frozenset[Op]:
    """Operations by their names, small and capital letters alike. UsageError for one that there is not."""
    found = set()
    for word in words:
        if word.upper() not in Op.__members__:
            raise UsageError(f"there is no operation {word!r}", do=f"Say {', '.join(op.name.lower() for op in Op)}")
        found.add(Op[word.upper()])
    return frozenset(found)


def ops_of(elements: Collection[str], ops: frozenset[Op]) -> frozenset[Op]:
    """Of `ops` (none: all) those that may be of one of the audit elements (none: any). UsageError where none can be."""
    if not elements:
        return ops
    found = frozenset(op for element in elements for op in _OF_ELEMENTS[element])
    if ops and not ops & found:
        raise UsageError(
            f"nothing of {' and '.join(sorted(elements))} is {' or '.join(sorted(op.name.lower() for op in ops))}",
            do="Name one of --op and --element only",
        )
    return ops & found if ops else found


def origins_named(wanted: Iterable[str], known: Collection[History]) -> frozenset[int]:
    """The origins that an operator means: an instance's name, NAME/INCARNATION, or an origin's key in hexadecimal.

    NotFoundError for one that the journal does not know."""
    found: set[int] = set()
    for word in wanted:
        name, _, incarnation = word.partition("/")
        keys = {
            one.origin.key
            for one in known
            if (one.name == name and incarnation in ("", str(one.incarnation))) or f"{one.origin.key:08x}" == word
        }
        if not keys:
            names = ", ".join(sorted({f"{one.name}/{one.incarnation}" for one in known}))
            raise NotFoundError(f"the journal knows no origin {word!r}", do=f"There is {names or 'none yet'}")
        found |= keys
    return frozenset(found)


def tables_named(wanted: Collection[str], known: Collection[TableName]) -> frozenset[TableName]:
    """The tables that an operator means: TABLE, REGION.TABLE or REGION.OWNER.TABLE, small and capital letters alike.

    NotFoundError for one that is not known; UsageError for one that several regions have.
    """
    return frozenset(_named(one, known) for one in wanted)


def _named(wanted: str, known: Collection[TableName]) -> TableName:
    ways = [(".".join(parts).lower(), name) for name in known for parts in _ways(name)]
    found = sorted({name for text, name in ways if text == wanted.lower()})
    if not found:
        raise NotFoundError(f"the journal knows no table {wanted!r}", do=_there_are(known))
    if len(found) > 1:
        raise UsageError(f"{wanted!r} may be each of {len(found)} tables", do=f"Say {' or '.join(map(_short, found))}")
    return found[0]


def shortest_names(known: Collection[TableName]) -> list[str]:
    """How an operator may name each of them in the fewest words: TABLE, or REGION.TABLE where several regions have
    one."""
    regions = Counter(table.lower() for _, _, table in known)
    return [_short(name) if regions[name[2].lower()] > 1 else name[2] for name in known]


def _ways(name: TableName) -> tuple[tuple[str, ...], ...]:
    region, owner, table = name
    return ((table,), (region, table), (region, owner, table))


def _short(name: TableName) -> str:
    return f"{name[0]}.{name[2]}"


def _there_are(known: Collection[TableName]) -> str:
    names = sorted(map(_short, known))
    if not names:
        return "It knows none yet"
    more = f" and {len(names) - _TABLES_NAMED_MAX} more" if len(names) > _TABLES_NAMED_MAX else ""
    return f"There is {', '.join(names[:_TABLES_NAMED_MAX])}{more}"
