"""What a transaction is: kinds and operations, table definitions, history, catalogue, and views of single changes.

Guarantees: one table of numbers for what stands in a frame; every `unpack` checks every type and range and raises
JournalDamagedError (or FormatUnknownError for a number of a later release), never anything else; what `pack` gives,
`unpack` gives back equal.
Leaves to others: how frames are laid out (journal/record.py), where they are kept, and any database. Pure.

The views (RowChange and its sisters) are for people and tools. The fast path binds the flat changes as they are.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from enum import IntEnum
from typing import Any, Final

import msgpack
from msgspec import Struct, field
from msgspec.structs import force_setattr
from xxhash import xxh3_64_intdigest

from replicate.errors import FormatUnknownError, InternalError, JournalDamagedError
from replicate.limits import COLUMNS_MAX, PARTITION_DEFAULT, PARTITION_MAX, PARTITION_STREAM
from replicate.model.vector import U32_MAX, Chains, Origin, SynchronizationVector, pack_chains, unpack_chains

RAW_TEXT_CODE: Final = 1
"""msgpack extension that carries TEXT which is not valid UTF-8, as its raw bytes."""

TABLE_ID_MIN: Final = 0x8000_0000
"""Ids of tables have their top bit set; below are partitions, of what is of no table."""

MASK_BITS_MAX: Final = 64
"""Longest image whose changed-value mask is an integer; longer ones have a mask of bytes, lowest bit first."""


WRITTEN: Final = "written"
"""What a REGION change says that names the writer of a partition (model/writers.py)."""
SHARED: Final = "shared"
"""What one says that lets another supplier write a partition, too."""
LEFT: Final = "left"
"""What one says by which a supplier writes a partition no longer that it shared."""
RETIRING: Final = "retiring"
"""What one says of a supplier that is gone for good: another one offers to have what it wrote (model/writers.py)."""
PARTED: Final = "parted"
"""What one says by which a supplier takes nothing more from one that is gone."""
RETIRED: Final = "retired"
"""What one says of a supplier that is gone, once all others have parted: nothing of it comes after this."""
OF_GONE: Final = frozenset((RETIRING, PARTED, RETIRED))
FENCED: Final = "fenced"
"""What one says that has all other suppliers stand aside, so that the schema may be changed
(model/schema_fences.py)."""
STANDS: Final = "stands"
"""What one says by which a supplier stands aside."""
UNFENCED: Final = "unfenced"
"""What one says that lets the others write again."""
OF_FENCES: Final = frozenset((FENCED, STANDS, UNFENCED))
OF_WRITERS: Final = frozenset((WRITTEN, SHARED, LEFT, *OF_GONE, *OF_FENCES))


class Kind(IntEnum):
    """What a frame is."""

    TRANSACTION = 1
    NULL = 2
    HISTORY = 3
    PART = 4
    LARGE = 5
    CATALOGUE = 6
    RESTATED = 7
    RESTATED_LARGE = 8
    MIXED = 9


class Op(IntEnum):
    """What one change of a transaction does."""

    INSERT = 1
    UPDATE = 2
    DELETE = 3
    DEFINE = 4
    SCHEMA = 5
    COMMENT = 6
    SEQUENCE = 7
    REGION = 8
    SEEN = 10
    RESOLVED = 11


TELLS_ONLY: Final = frozenset((int(Op.COMMENT), int(Op.SEEN), int(Op.RESOLVED)))
"""What changes neither a row nor the schema."""


def _refuse(what: str) -> JournalDamagedError:
    return JournalDamagedError(f"content that verifies makes no sense: {what}")


def _fields(packed: object, count: int, what: str) -> list[Any]:
    if not isinstance(packed, list | tuple) or len(packed) != count:
        raise _refuse(f"{what} should be a list of {count}")
    return list(packed)


def _text(value: object, what: str) -> str:
    if type(value) is not str:
        raise _refuse(f"{what} should be text, is {type(value).__name__}")
    return value


def _number(value: object, what: str, *, low: int = 0, high: int = U32_MAX) -> int:
    if type(value) is not int or not low <= value <= high:
        raise _refuse(f"{what} should be a number from {low} to {high}")
    return value


def _truth(value: object, what: str) -> bool:
    if type(value) is not bool:
        raise _refuse(f"{what} should be true or false")
    return value


# Table definitions.


class Column(Struct, frozen=True):
    """One stored column as declared: name, declared type ("" when there is none), NOT NULL, collation (BINARY, …)."""

    name: str
    type: str
    not_null: bool
    collation: str

    def pack(self) -> list[Any]:
        return [self.name, self.type, self.not_null, self.collation]

    @classmethod
    def unpack(cls, packed: object) -> Column:
        name, declared, not_null, collation = _fields(packed, 4, "a column")
        return cls(
            _text(name, "a column's name"),
            _text(declared, "a column's type"),
            _truth(not_null, "NOT NULL"),
            _text(collation, "a collation"),
        )


class TableDefinition(Struct, frozen=True):
    """A table as it was when rows of it were written; frames name it by `table_id`.

    `columns`: the stored columns in order, generated ones left out. `rowid`: the hidden rowid stands first in every
    image (a rowid table without an INTEGER PRIMARY KEY alias, unless `is_by_key`). `key`: ordinals *in the image* of
    the values that identify a row. `version`: rises with each change of this table's definition. `table_id`: 32 bits
    made from all the others, whatever is given: two definitions that differ have different ids.
    """

    region: str
    partition: int
    owner: str
    table: str
    version: int
    columns: tuple[Column, ...]
    key: tuple[int, ...]
    rowid: bool
    strict: bool
    without_rowid: bool
    table_id: int = 0

    def __post_init__(self) -> None:
        digest = xxh3_64_intdigest(msgpack.packb(self.pack()))
        # The top bit is always set, so that msgpack always writes an id in five bytes, and a DEFINE in a frame can be
        # looked for as the two bytes 04 ce.
        force_setattr(self, "table_id", (digest & U32_MAX) | TABLE_ID_MIN)

    @property
    def name(self) -> tuple[str, str, str]:
        """(region, owner, table): what stays the same through all versions."""
        return (self.region, self.owner, self.table)

    @property
    def is_by_key(self) -> bool:
        """Whether the table has a hidden rowid that no image holds: each site gives rows its own, and its primary key
        tells them. (Where that is one INTEGER it is the rowid itself.)"""
        if self.rowid or self.without_rowid:
            return False
        return len(self.key) != 1 or self.columns[self.key[0]].type.upper() != "INTEGER"

    @property
    def image_length(self) -> int:
        """How many values an image of a row has."""
        return len(self.columns) + self.rowid

    def pack(self) -> list[Any]:
        """A list of plain values, for a DEFINE change or a CATALOGUE frame."""
        return [
            self.region,
            self.partition,
            self.owner,
            self.table,
            self.version,
            [column.pack() for column in self.columns],
            list(self.key),
            self.rowid,
            self.strict,
            self.without_rowid,
        ]

    @classmethod
    def unpack(cls, packed: object) -> TableDefinition:
        """The definition that `pack` gave. JournalDamagedError when any part has the wrong type or range."""
        region, partition, owner, table, version, columns, key, rowid, strict, without = _fields(
            packed, 10, "a table definition"
        )
        if not isinstance(columns, list | tuple) or not 0 < len(columns) <= COLUMNS_MAX:
            raise _refuse("a table should have between 1 and COLUMNS_MAX columns")
        if not isinstance(key, list | tuple) or not key:
            raise _refuse("a table should have a key")
        with_rowid = _truth(rowid, "rowid")
        last_ordinal = len(columns) + with_rowid - 1
        ordinals = tuple(_number(ordinal, "a key's ordinal", high=last_ordinal) for ordinal in key)
        if len(set(ordinals)) != len(ordinals):
            raise _refuse("a key names one column twice")
        return cls(
            _text(region, "a region's name"),
            _number(partition, "a partition", low=1),
            _text(owner, "an owner"),
            _text(table, "a table's name"),
            _number(version, "a version"),
            tuple(Column.unpack(column) for column in columns),
            ordinals,
            with_rowid,
            _truth(strict, "STRICT"),
            _truth(without, "WITHOUT ROWID"),
        )


# History and catalogue.


class History(Struct, frozen=True):
    """The record that opens an incarnation: who, after whom, and what it had seen when it began.

    `previous_origin`: key of the origin that it took over from, 0 for none. `base`: the vector at its beginning; a
    consumer above an ended origin's base must roll back first. `seqno`: where it stands in this journal.
    """

    instance: bytes
    name: str
    incarnation: int
    previous_origin: int
    base: SynchronizationVector
    reason: str
    seqno: int = 0

    @property
    def origin(self) -> Origin:
        return Origin(self.instance, self.incarnation)

    def pack(self) -> list[Any]:
        """The payload of a HISTORY frame; the seqno is the frame's."""
        return [
            self.instance,
            self.name,
            self.incarnation,
            self.previous_origin,
            self.base.pack(),
            self.reason,
        ]

    @classmethod
    def unpack(cls, packed: object, seqno: int) -> History:
        """The record that `pack` gave, standing at `seqno`. JournalDamagedError on a wrong type or range."""
        instance, name, incarnation, previous, base, reason = _fields(packed, 6, "a history record")
        if type(instance) is not bytes or len(instance) != 16:
            raise _refuse("an instance should be 16 bytes")
        return cls(
            instance,
            _text(name, "an instance's name"),
            _number(incarnation, "an incarnation"),
            _number(previous, "an origin"),
            SynchronizationVector.unpack(base),
            _text(reason, "a reason"),
            seqno,
        )


class Catalogue(Struct, frozen=True):
    """All that a reader must know before the first frame of a segment. Hold the mappings as read-only.

    `definitions`: by table id, oldest first, so of one table the last one is in force. `histories`: every incarnation
    that this journal has seen, never pruned. `vector` and `chains`: the position just before the segment's first frame.
    """

    definitions: Mapping[int, TableDefinition] = field(default_factory=dict)
    histories: tuple[History, ...] = ()
    vector: SynchronizationVector = field(default_factory=SynchronizationVector)
    chains: Chains = field(default_factory=dict)

    def with_definition(self, definition: TableDefinition) -> Catalogue:
        """With one more definition, now the one in force for its table.

        InternalError when another definition has the same id (one in 2^31; raise the version and try again).
        """
        known = self.definitions.get(definition.table_id)
        if known is not None and known != definition:
            raise InternalError("two table definitions share an id", where=f"{known.table}, {definition.table}")
        kept = {key: value for key, value in self.definitions.items() if key != definition.table_id}
        return Catalogue({**kept, definition.table_id: definition}, self.histories, self.vector, self.chains)

    def with_history(self, history: History) -> Catalogue:
        """With one more history record at the end."""
        return Catalogue(self.definitions, (*self.histories, history), self.vector, self.chains)

    def at(self, vector: SynchronizationVector, chains: Chains) -> Catalogue:
        """The same knowledge at another position, as the next segment needs it."""
        return Catalogue(self.definitions, self.histories, vector, dict(chains))

    def in_force(self) -> dict[tuple[str, str, str], TableDefinition]:
        """(region, owner, table) -> the newest definition."""
        return {definition.name: definition for definition in self.definitions.values()}

    def newest(self) -> Catalogue:
        """Without the definitions that a newer one has replaced (no later frame uses them)."""
        kept = {definition.table_id: definition for definition in self.in_force().values()}
        return Catalogue(kept, self.histories, self.vector, self.chains)

    def pack(self) -> list[Any]:
        """The payload of a CATALOGUE frame."""
        return [
            [definition.pack() for definition in self.definitions.values()],
            [[*history.pack(), history.seqno] for history in self.histories],
            self.vector.pack(),
            pack_chains(self.chains),
        ]

    @classmethod
    def unpack(cls, packed: object) -> Catalogue:
        """The catalogue that `pack` gave. JournalDamagedError on a wrong type or range."""
        definitions, histories, vector, chains = _fields(packed, 4, "a catalogue")
        if not isinstance(definitions, list | tuple) or not isinstance(histories, list | tuple):
            raise _refuse("a catalogue should hold lists")
        by_id: dict[int, TableDefinition] = {}
        for one in definitions:
            definition = TableDefinition.unpack(one)
            if definition.table_id in by_id:
                raise _refuse("a catalogue holds a definition twice")
            by_id[definition.table_id] = definition
        records = []
        for record in histories:
            *body, seqno = _fields(record, 7, "a history record in a catalogue")
            records.append(History.unpack(body, _number(seqno, "a seqno", high=2**64 - 1)))
        return cls(by_id, tuple(records), SynchronizationVector.unpack(vector), unpack_chains(chains))


# Views of single changes, for people and tools.


class RowChange(Struct, frozen=True):
    """INSERT, UPDATE or DELETE of one row: whole images, None where there is none. Values are the database's own."""

    op: Op
    table_id: int
    before: tuple[Any, ...] | None
    after: tuple[Any, ...] | None
    changed: tuple[int, ...] = ()
    """Of an UPDATE: ordinals in the image of the values that were set."""


class DefinitionChange(Struct, frozen=True):
    """From here on `definition` is in force for its table."""

    definition: TableDefinition


class SchemaChange(Struct, frozen=True):
    """A schema statement, as the application wrote it. `partition`: of its audit element; 0: it goes to everybody."""

    region: str
    sql: str
    partition: int = PARTITION_STREAM


class LogComment(Struct, frozen=True):
    """A remark that an application put into the journal."""

    text: str


class SequenceChange(Struct, frozen=True):
    """The AUTOINCREMENT counter of a table moved; None = there was, or is, no counter."""

    table_id: int
    old: int | None
    new: int | None


class RegionChange(Struct, frozen=True):
    """A region was added to, or released from, replication; or (OF_WRITERS) its `partition` is written by another
    supplier from here on, by one more, or by one less; or (OF_GONE) a supplier is gone; or (OF_FENCES) one has the
    others stand aside. `uuid`: of the region; of the supplier. `place`: the number that a supplier has among those
    that share it; `by_row`: its rows are merged whole; `summed`: columns of it that are sums, table and column by
    turns; `whole`: tables of it whose rows are merged whole. `other`: who offers to have, or gets, what the one that
    is gone wrote; who has parted from it; who stands aside. `number`: of its supplier's fence; `turn`: the first or
    the second word of who stands aside; `is_once`: the fence ends with the first change of the schema."""

    region: str
    what: str
    uuid: bytes
    partition: int = 0
    place: int = 0
    by_row: bool = False
    other: bytes = b""
    summed: tuple[str, ...] = ()
    number: int = 0
    turn: int = 0
    is_once: bool = False
    whole: tuple[str, ...] = ()


class Seen(Struct, frozen=True):
    """What the writer of a transaction has applied of others, since it told the last time (model/seen.py): origin ->
    the last of its transactions. `teller`: the key of the writer's origin."""

    teller: int
    told: Mapping[int, int]


class Resolved(Struct, frozen=True):
    """Rows that two suppliers had changed at once: the changes before this one are what they came to here. `payload`
    is what the transaction's writer wrote, `count` elements of a frame of that `kind`. `losses`: what was lost by it,
    as the region keeps it. Of kind 0 and empty: the transaction removes rows for their unique values. Of a large
    transaction each part stands after what it came to (kind PART, `count` is its number), the commit last."""

    kind: int
    payload: bytes
    count: int
    losses: tuple[bytes, ...] = ()


class NullRecord(Struct, frozen=True):
    """A number with nothing to apply: `reason` says why; `partitions` are those that it nevertheless carried."""

    reason: str
    partitions: tuple[int, ...]


class LargePart(Struct, frozen=True):
    """One slice of a large transaction's change stream."""

    part_number: int
    data: bytes


class LargeCommit(Struct, frozen=True):
    """The commit of a large transaction, after its parts; `payload_bytes` is the length of the change stream."""

    token: int
    part_count: int
    payload_bytes: int
    last_part_chain: int
    partitions: tuple[int, ...]


Change = RowChange | DefinitionChange | SchemaChange | LogComment | SequenceChange | RegionChange | Seen | Resolved
Content = Change | NullRecord | History | LargePart | LargeCommit | Catalogue


class Transaction(Struct, frozen=True):
    """One decoded frame. `content`: the changes of a TRANSACTION in order; of a RESTATED the reason and the changes,
    of a RESTATED_LARGE the commit and the reason; one record for every other kind."""

    kind: Kind
    seqno: int
    mark: int
    chain: int
    origin: int
    origin_seqno: int
    csn: int
    content: tuple[Content, ...]


def mask_of(changed: list[int] | tuple[int, ...], image_length: int) -> int | bytes:
    """The changed-value mask of an UPDATE: an integer for images of up to MASK_BITS_MAX values, bytes above."""
    bits = 0
    for ordinal in changed:
        bits |= 1 << ordinal
    return bits if image_length <= MASK_BITS_MAX else bits.to_bytes((image_length + 7) // 8, "little")


def changed_of(mask: object, image_length: int | None = None) -> tuple[int, ...]:
    """The ordinals whose bits are set. JournalDamagedError when it is no mask (of an image of that length)."""
    if type(mask) is int and 0 <= mask < 1 << MASK_BITS_MAX:
        bits = mask
    elif type(mask) is bytes and len(mask) <= (COLUMNS_MAX + 8) // 8:
        bits = int.from_bytes(mask, "little")
    else:
        raise _refuse("a changed-value mask")
    if image_length is not None and bits >> image_length:
        raise _refuse("a changed-value mask beyond the image")
    return tuple(ordinal for ordinal in range(bits.bit_length()) if bits >> ordinal & 1)


def _value_ok(value: object) -> bool:
    """A database value: NULL, 64-bit signed integer, float, text, blob, or text that is not UTF-8."""
    if type(value) is int:
        return -(2**63) <= value < 2**63
    if isinstance(value, msgpack.ExtType):
        return bool(value.code == RAW_TEXT_CODE)
    return value is None or type(value) in (float, str, bytes)


def _image(values: Sequence[Any], what: str) -> tuple[Any, ...]:
    if not values or not all(map(_value_ok, values)):
        raise _refuse(f"{what} should be database values")
    return tuple(values)


def decode_change(op: object, ident: object, argument: object, values: object) -> Change:
    """The view of one flat change. JournalDamagedError on a wrong type; FormatUnknownError on an unknown op."""
    if type(op) is not int or not isinstance(values, list | tuple):
        raise _refuse("a change should be op, id, argument, values")
    if op not in Op.__members__.values():
        raise FormatUnknownError(f"operation {op} is of a later release", do="Upgrade this instance first")
    table_id = _number(ident, "a table id")
    if op == Op.UPDATE:
        changed = changed_of(argument)
        after, before = values[: len(changed)], _image(values[len(changed) :], "a before-image")
        if changed and (changed[-1] >= len(before) or not _image(after, "changed values")):
            raise _refuse("a changed-value mask beyond the image")
        whole = list(before)
        for ordinal, value in zip(changed, after, strict=True):
            whole[ordinal] = value
        return RowChange(Op.UPDATE, table_id, before, tuple(whole), changed)
    if op in (Op.INSERT, Op.DELETE):
        image = _image(values, "an image")
        return RowChange(Op(op), table_id, *((None, image) if op == Op.INSERT else (image, None)))
    if op == Op.DEFINE:
        definition = TableDefinition.unpack(values)
        if definition.table_id != table_id or definition.version != argument:
            raise _refuse("a definition's id or version is not its own")
        return DefinitionChange(definition)
    if op == Op.SEQUENCE:
        old, new = _fields(values, 2, "a sequence change")
        limits = {"low": -(2**63), "high": 2**63 - 1}
        return SequenceChange(
            table_id,
            None if old is None else _number(old, "a sequence", **limits),
            None if new is None else _number(new, "a sequence", **limits),
        )
    if op == Op.SCHEMA:
        sql = _text(_fields(values, 1, "a statement")[0], "SQL")
        return SchemaChange(
            _text(argument, "a region's name"), sql, _number(table_id, "a partition", high=PARTITION_MAX)
        )
    if op == Op.COMMENT:
        return LogComment(_text(_fields(values, 1, "a comment")[0], "a comment"))
    if op == Op.SEEN:
        return Seen(*told_of(values))
    if op == Op.RESOLVED:
        if argument == 0 and not values:
            return Resolved(0, b"", 0)
        payload, count, losses = _fields(values, 3, "a resolved transaction")
        if (
            type(payload) is not bytes
            or not isinstance(losses, list | tuple)
            or any(type(one) is not bytes for one in losses)
        ):
            raise _refuse("a resolved transaction should have a payload, and losses")
        kind = _number(argument, "a kind", low=min(Kind), high=max(Kind))
        return Resolved(kind, payload, _number(count, "a count"), tuple(losses))
    return _region_change(table_id, argument, values)


def _region_change(partition: int, region: object, values: Sequence[Any]) -> RegionChange:
    what, uuid, *rest = values if len(values) > 1 else (None, None)
    if type(uuid) is not bytes or len(uuid) != 16 or what not in ("added", "released", *OF_WRITERS):
        raise _refuse("a region change should say what has become of a region or its writers, and a UUID")
    counts = {SHARED: (1, 2, 3), **dict.fromkeys(OF_GONE, (1,)), FENCED: (2,), STANDS: (3,), UNFENCED: (1,)}
    if len(rest) not in counts.get(what, (0,)):
        raise _refuse("a region change has too few or too many values")
    if what in OF_FENCES:
        return _fence_change(_text(region, "a region's name"), what, uuid, rest)
    if what in OF_GONE:
        if type(rest[0]) is not bytes or len(rest[0]) != 16:
            raise _refuse("a supplier that is gone should be named beside another one")
        return RegionChange(_text(region, "a region's name"), what, uuid, other=rest[0])
    place = _number(rest[0], "a place among writers", low=1) if rest else 0
    by_row = len(rest) > 1 and _truth(rest[1], "whether rows are merged whole")
    of = partition if what in OF_WRITERS else 0
    summed, whole = _summed(rest[2:])
    return RegionChange(_text(region, "a region's name"), what, uuid, of, place, by_row, summed=summed, whole=whole)


def _fence_change(region: str, what: str, uuid: bytes, rest: Sequence[Any]) -> RegionChange:
    number = _number(rest[0], "the number of a fence", low=1, high=2**64 - 1)
    if what == FENCED:
        is_once = _truth(rest[1], "whether a fence ends with the first change")
        return RegionChange(region, what, uuid, number=number, is_once=is_once)
    if what == UNFENCED:
        return RegionChange(region, what, uuid, number=number)
    if type(rest[1]) is not bytes or len(rest[1]) != 16:
        raise _refuse("a supplier that stands aside should be named")
    turn = _number(rest[2], "which word it is", low=1, high=2)
    return RegionChange(region, what, uuid, other=rest[1], number=number, turn=turn)


def _summed(rest: Sequence[Any]) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Columns that are sums, table and column by turns; tables whose rows are merged whole, which have no column."""
    names = rest[0] if rest else ()
    if not isinstance(names, list | tuple) or len(names) % 2:
        raise _refuse("columns that are sums should be told by table and name")
    summed, whole = list[str](), list[str]()
    for table, column in zip(names[0::2], names[1::2], strict=True):
        table = _text(table, "the table of a sum, or of rows that are merged whole")
        if column is None:
            whole.append(table)
        else:
            summed += [table, _text(column, "a column that is a sum")]
    return tuple(summed), tuple(whole)


def told_of(values: Sequence[Any]) -> tuple[int, dict[int, int]]:
    """Who tells it (the key of its origin), and what, of the values of a SEEN change. JournalDamagedError."""
    if len(values) % 2 != 1:
        raise _refuse("what was seen should be numbers in pairs")
    teller, *pairs = (_number(value, "what was seen", high=2**64 - 1) for value in values)
    found = dict(zip(pairs[0::2], pairs[1::2], strict=True))
    if not all(0 < origin <= U32_MAX for origin in (teller, *found)):
        raise _refuse("what was seen should be of origins")
    return teller, found


def unpack_partitions(packed: object) -> tuple[int, ...]:
    """A list of partitions, as NULL and LARGE frames carry it. JournalDamagedError when it is none."""
    if not isinstance(packed, list | tuple):
        raise _refuse("partitions should be a list")
    return tuple(_number(partition, "a partition", low=PARTITION_DEFAULT) for partition in packed)
