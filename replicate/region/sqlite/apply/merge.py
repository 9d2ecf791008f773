"""Merging rows that several suppliers have changed at once, into the rows that are here.

Guarantees: a row all of whose changes the transaction's writer had seen is changed strictly, with the whole
before-image; only the others are merged, by their stamps (model/merged_row.py). What was done is given back as changes
that fit what was here, so that redo, secondaries and all that read the journal meet exactly that. What was lost
is kept. Leaves to others: transactions, who may write, the journal (update_process/merging.py).
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from itertools import takewhile
from operator import itemgetter
from typing import Any, Final

import apsw
from msgspec.structs import replace

from replicate.errors import ConflictError
from replicate.model.merged_row import NEVER, Image, Lost, Row, RowChanged, Stamp, lost, merged, same_value
from replicate.model.seen import unseen_of
from replicate.model.transaction import Op, TableDefinition, changed_of
from replicate.region.protocol import Absorbed, Merged, RowKeys, RowsOfRegion
from replicate.region.sqlite.apply.fresh_stamps import Change, FreshStamps, StampedTable
from replicate.region.sqlite.apply.overwrite import change_of
from replicate.region.sqlite.apply.rows import Conflict
from replicate.region.sqlite.apply.statements import insert, read_image
from replicate.region.sqlite.bookkeeping import OWN_STATEMENT, read_writers
from replicate.region.sqlite.mergeable import column_groups, unique_together
from replicate.region.sqlite.row_stamps import RowName, RowStamps, key_of, note_losses, pack_merged, read_absorbed
from replicate.region.sqlite.sql.names import quote

_INSERT: Final = int(Op.INSERT)
_UPDATE: Final = int(Op.UPDATE)
_DELETE: Final = int(Op.DELETE)
_RESOLVED: Final = int(Op.RESOLVED)
_ROWS: Final = frozenset((_INSERT, _UPDATE, _DELETE))


_EMPTY: Final = Row()


def wants_unique(error: ConflictError) -> bool:
    """Whether a change failed since another row has a unique value that it wants."""
    conflict = error.conflict
    return isinstance(conflict, Conflict) and conflict.reason.startswith("UNIQUE constraint failed: ")


class _RowPiece:
    """A change of one row whose key stays: of an UPDATE that changes the key, one of two."""

    __slots__ = ("after", "before", "changed", "key", "name", "op", "table_id")

    def __init__(
        self, op: int, table_id: int, before: Image | None, after: Image | None, changed: frozenset[int], key: Image
    ) -> None:
        self.op, self.table_id, self.before, self.after, self.changed = op, table_id, before, after, changed
        self.key, self.name = key, (table_id, key_of(key))


class RowMerger:
    """Of one region, in the caller's transactions: `begin` at the begin of each, and after any rollback."""

    def __init__(self, connection: apsw.Connection, rows: RowsOfRegion, *, region: str = "") -> None:
        """`region`: its name, where there are several."""
        self._connection = connection
        self._rows = rows
        self._region = region
        self._stamps = RowStamps(connection)
        self._tables: dict[int, StampedTable] = {}
        self._uniques: dict[int, frozenset[int]] = {}
        self.lost: list[Merged] = []
        """What was lost since `begin`, and is not written."""
        self.lost_count = 0
        """How much was lost since `begin`."""
        self.removed: list[Any] = []
        """Deletes, flat, of rows that `take` has removed for their unique values: all other suppliers are to do it."""
        self._gave_way: dict[tuple[int, bytes], Merged] = {}
        """Rows that did since `begin`, as that is kept."""

    def begin(self) -> None:
        """A transaction begins."""
        self._stamps.forget_cached()
        self._tables.clear()
        self._uniques.clear()
        self.lost.clear()
        self.lost_count = 0
        self.removed.clear()
        self._gave_way.clear()

    @property
    def has_waiting(self) -> bool:
        """Whether rows wait beside their table."""
        return bool(self._stamps.waiting)

    @property
    def waiting(self) -> list[Any]:
        """Deletes, flat, of those that do, for `give_way`."""
        return [
            element
            for name, row in sorted(self._stamps.waiting.items(), key=itemgetter(0))
            for element in (_DELETE, name[0], 0, list(row.values or ()))
        ]

    @property
    def absorbed(self) -> int:
        """The stamps are those of the journal up to this number."""
        return read_absorbed(self._connection)

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
        """Make a transaction's flat changes; what was done instead, where rows were merged; None where all of it was
        done as it is. `told`: what its writer had seen. `is_shared`: whether several suppliers write a table.
        `removing`: the stamp of our own transaction that would remove rows, which comes after this one: where two rows
        want one unique value, one of them goes (`removed`). None: we may not have others remove anything, so it waits
        beside its table. `is_stable`: everybody has it, so only rows with stamps get its own. `removes`: it removes
        rows for their unique values, as its changes may not say that are a piece of all. Raises as
        `RowsOfRegion.apply_all`."""
        self.removed.clear()
        pieces: list[_RowPiece] = []
        others: list[Any] = []
        for place in range(0, len(changes), 4):
            op, table_id, argument, values = changes[place : place + 4]
            if op in _ROWS and is_shared(table_id):
                pieces += self._pieces(op, table_id, argument, values)
            else:
                others += changes[place : place + 4]
        unseen = {piece.name: self._unseen(piece, told, stamp.origin) for piece in pieces}
        removes = removes or _RESOLVED in changes[0::4]
        may_lack = removes and any(map(self._is_lacking, pieces))
        tries_again = bool(pieces) and self.has_waiting
        if not any(unseen.values()) and not may_lack and not tries_again and self._fits(changes, pieces):
            for piece in pieces:
                self._fold_known(piece, stamp, is_stable=is_stable)
            return None
        self._rows.apply_all(others)
        return [*others, *_Merge(self, stamp, removing, removes=removes, may_lack=may_lack).make(pieces, unseen)]

    def may_meet(self, rows: RowKeys, told: Mapping[int, int], writer: int) -> bool:
        """Whether a change of one of these rows is to be looked at by itself: the row has stamps of transactions that
        `writer`, who had seen `told`, had not seen, or its table has unique values."""
        if any(map(self._has_unique, rows)):
            return True
        if self._stamps.is_empty:
            return False
        names = {
            (table_id, key_of((key,) if type(key) is not tuple else key))
            for table_id, keys in rows.items()
            for key in keys
        }
        stamped = (self._stamps.get(*name) or _EMPTY for name in self._stamps.load(names))
        return any(unseen_of(row.all_stamps(with_all_added=True), told, writer) for row in stamped)

    def _stamp(self, changes: Sequence[Change], fresh: FreshStamps, others: Collection[RowName]) -> None:
        """Stamp the rows of changes that fit what was there. `others`: rows that have stamps, or will by more than one
        of the changes."""
        self._stamps.keep([row for name, row in fresh.kept.items() if row is not None and name not in others])
        if not others:
            return
        for name, (op, table_id, argument, values, stamp, is_stable) in zip(fresh.names, changes, strict=True):
            if name is None or name in others:
                for piece in self._pieces(op, table_id, argument, values):
                    self._fold_known(piece, stamp, is_stable=is_stable)

    def _unseen(self, piece: _RowPiece, told: Mapping[int, int], writer: int) -> frozenset[Stamp]:
        row = self._stamps.get(*piece.name)
        if row is None:
            return frozenset()
        return unseen_of(row.all_stamps(with_all_added=piece.op == _DELETE), told, writer)

    def _is_lacking(self, piece: _RowPiece) -> bool:
        """Whether a row that gives way is not here: the transaction that brings it is yet to come."""
        return self._read(piece.table_id, piece.key) is None

    def mark(self) -> None:
        """A large transaction begins, which may be taken back."""
        self.write_stamps()
        self._connection.execute("SAVEPOINT large")

    def take_back(self) -> None:
        """All that was made since `mark`. What gave way in it is known to `give_way`."""
        self._connection.execute("ROLLBACK TO large")
        self._connection.execute("RELEASE large")
        self._rows.begin()
        self._stamps.forget_cached()
        self.lost.clear()
        self.lost_count = 0

    def give_way(self, deletes: Sequence[Any], stamp: Stamp) -> tuple[list[Any], list[Any]]:
        """Remove rows for their unique values under the stamp of our own transaction: the deletes that all are to make,
        and those of them that are made here, since others are of rows that are yet to come. Raises as
        `RowsOfRegion.apply_all`."""
        told, done = list[Any](), list[Any]()
        for table_id, values in zip(deletes[1::4], deletes[3::4], strict=True):
            key = tuple(values[at] for at in self._definition(table_id).key)
            name, here = (table_id, key_of(key)), self._read(table_id, key)
            row, image = self._stamps.get(*name) or _EMPTY, here or tuple(values)
            delete = [_DELETE, table_id, 0, list(image)]
            told += delete
            if row.waits:
                self._note_waited(name, row, stamp)
            if here is not None:
                row = Row(here, True, row.life, row.stamps, row.sums)
                done += delete
                if (known := self._gave_way.get(name)) is not None:
                    self.lost_count += 1
                    self.lost.append(replace(known, seqno=self._rows.seqno))
            table = self._table(table_id)
            self._stamps.put(*name, merged(row, RowChanged(_DELETE, image, table.sums), stamp, table.groups))
        self._rows.apply_all(done)
        return told, done

    def _fits(self, changes: Sequence[Any], pieces: Sequence[_RowPiece]) -> bool:
        """Make changes as they are; False, and nothing is made, where another row has a unique value that one wants."""
        may_not = any(self._unique(piece.table_id) for piece in pieces)
        if may_not:
            self._connection.execute("SAVEPOINT merging")
        try:
            self._rows.apply_all(changes)
        except ConflictError as error:
            if not may_not or not wants_unique(error):
                raise
            self._connection.execute("ROLLBACK TO merging")
            self._rows.begin()
            return False
        finally:
            if may_not:
                self._connection.execute("RELEASE merging")
        return True

    def absorb(self, transactions: Sequence[Absorbed], is_shared: Callable[[int], bool]) -> None:
        """Stamp what transactions have changed, in their order."""
        if any(one.done is not one.changes for one in transactions):
            self._stamps.load(
                {piece.name for one in transactions for piece in self._row_pieces(one.changes, is_shared)}
            )
            for one in transactions:
                self._absorb_one(one, is_shared)
            return
        changes: list[Change] = []
        for one in transactions:
            for place in range(0, len(one.changes), 4):
                op, table_id, argument, values = one.changes[place : place + 4]
                if op in _ROWS and is_shared(table_id):
                    changes.append((op, table_id, argument, values, one.stamp, one.is_stable))
        fresh = FreshStamps(changes, self._table)
        self._stamp(changes, fresh, fresh.others | self._stamps.load(fresh.all_names()))

    def _absorb_one(self, one: Absorbed, is_shared: Callable[[int], bool]) -> None:
        """The same of one that may have been merged."""
        is_merged = one.done is not one.changes
        if is_merged:
            self._show_before(one.done, is_shared)
        for piece in self._row_pieces(one.changes, is_shared):
            self._fold_known(piece, one.stamp, is_seen=not is_merged, is_stable=one.is_stable)
        if is_merged:
            self._take_images(one.done, is_shared)
            self._look_who_waits([*one.changes, *one.done], is_shared)

    def _fold_known(self, piece: _RowPiece, stamp: Stamp, *, is_seen: bool = True, is_stable: bool) -> None:
        """Stamp a row; of a transaction that everybody has only one that has stamps, or has unique values: of those a
        purge knows whether they come before all that not everybody has."""
        row = self._stamps.get(*piece.name)
        if row is not None or not is_stable or self._table(piece.table_id).has_unique:
            self._fold(piece, row or _EMPTY, stamp, is_seen=is_seen)

    def _row_pieces(self, changes: Sequence[Any], is_shared: Callable[[int], bool]) -> Iterator[_RowPiece]:
        for place in range(0, len(changes), 4):
            op, table_id, argument, values = changes[place : place + 4]
            if op in _ROWS and is_shared(table_id):
                yield from self._pieces(op, table_id, argument, values)

    def _take_images(self, done: Sequence[Any], is_shared: Callable[[int], bool]) -> None:
        """Of rows that are gone the values that they had here, not those that the writer of the delete knew."""
        for place in range(0, len(done), 4):
            op, table_id, _, values = done[place : place + 4]
            if op == _DELETE and is_shared(table_id):
                key = key_of(values[ordinal] for ordinal in self._definition(table_id).key)
                row = self._stamps.get(table_id, key)
                if row is not None and not row.is_there and row.values is not None:
                    pairs = zip(self._table(table_id).groups, values, row.values, strict=True)
                    image = tuple(known if group < 0 else value for group, value, known in pairs)
                    self._stamps.put(table_id, key, row.showing(image))

    def _show_before(self, done: Sequence[Any], is_shared: Callable[[int], bool]) -> None:
        """Of rows with unique values what they were before a transaction: they may wait from then on."""
        for piece in self._row_pieces(done, self._unique_shared(is_shared)):
            row = self._stamps.get(*piece.name)
            if piece.before is not None and row is not None and row.is_there:
                self._stamps.put(*piece.name, row.showing(piece.before))

    def _look_who_waits(self, changes: Sequence[Any], is_shared: Callable[[int], bool]) -> None:
        """Of rows with unique values: those that are not in their table, and should be, wait. The table is as all of
        our journal leaves it: what comes after this transaction says otherwise where that was so for a while."""
        for piece in self._row_pieces(changes, self._unique_shared(is_shared)):
            row = self._stamps.get(*piece.name)
            if row is not None and row.is_there and row.values is not None:
                waits = self._read(piece.table_id, piece.key) is None
                if waits != row.waits:
                    self._stamps.put(*piece.name, replace(row, waits=waits))

    def _unique_shared(self, is_shared: Callable[[int], bool]) -> Callable[[int], bool]:
        return lambda table_id: is_shared(table_id) and bool(self._unique(table_id))

    def losses(self, seqno: int) -> list[bytes]:
        """What was lost in the last transaction, of a large one in its last piece, as it is kept. (Of a batch of ten
        thousand that all lose, half of the time went to look at what the others had lost.)"""
        last = list(takewhile(lambda one: one.seqno == seqno, reversed(self.lost)))
        return [pack_merged(one) for one in reversed(last)]

    def write_stamps(self) -> None:
        """Between two pieces of a large transaction: what was stamped, and lost, since is written, and not at hand."""
        self._stamps.write()
        self._stamps.forget_cached()
        self._write_lost()

    def finish(self, absorbed: int) -> None:
        """Before COMMIT: the stamps are those up to that number of our journal, and what was lost is kept."""
        self._stamps.flush(absorbed)
        self._write_lost()

    def _write_lost(self) -> None:
        for one in self.lost:
            note_losses(self._connection, one.seqno, [pack_merged(one)])
        self.lost.clear()

    @property
    def kept_since_purge(self) -> int:
        """Rows that were stamped since the last purge."""
        return self._stamps.kept_since_purge

    def purge(self, stable: Mapping[int, int]) -> int:
        """Forget rows that only transactions have stamped that everybody has (origin -> the last one), with unique
        values only what is before all that not everybody has; how many are left. After `finish`."""
        return self._stamps.purge(stable, self._has_unique)

    @property
    def is_empty(self) -> bool:
        """Whether no row has stamps."""
        return self._stamps.is_empty

    # One row.

    def _definition(self, table_id: int) -> TableDefinition:
        return self._rows.definitions[table_id]

    def _table(self, table_id: int) -> StampedTable:
        known = self._tables.get(table_id)
        if known is None:
            definition, writers = self._definition(table_id), read_writers(self._connection)
            partition, table = definition.partition, definition.table
            by_row, sums = writers.is_by_row(partition, table), writers.sums(partition, table)
            groups = column_groups(self._connection, definition, by_row=by_row, sums=sums)
            known = self._tables[table_id] = StampedTable(definition, groups, has_unique=bool(self._unique(table_id)))
        return known

    def _pieces(self, op: int, table_id: int, argument: Any, values: Sequence[Any]) -> list[_RowPiece]:
        key_at = self._definition(table_id).key
        if op != _UPDATE:
            image = tuple(values)
            key = self._table(table_id).key(image)
            nothing = frozenset[int]()
            before, after = (None, image) if op == _INSERT else (image, None)
            return [_RowPiece(op, table_id, before, after, nothing, key)]
        changed = changed_of(argument)
        before = tuple(values[len(changed) :])
        whole = list(before)
        for ordinal, value in zip(changed, values[: len(changed)], strict=True):
            whole[ordinal] = value
        after = tuple(whole)
        old, new = tuple(before[at] for at in key_at), tuple(after[at] for at in key_at)
        if key_of(old) == key_of(new):
            return [_RowPiece(_UPDATE, table_id, before, after, frozenset(changed), old)]
        nothing = frozenset[int]()
        return [
            _RowPiece(_DELETE, table_id, before, None, nothing, old),
            _RowPiece(_INSERT, table_id, None, after, nothing, new),
        ]

    def _changed(self, piece: _RowPiece) -> RowChanged:
        table = self._table(piece.table_id)
        if piece.after is None:
            assert piece.before is not None
            return RowChanged(_DELETE, piece.before, table.sums)
        if piece.op == _INSERT:
            return RowChanged(_INSERT, piece.after, table.every)
        return RowChanged(
            _UPDATE, piece.after, frozenset(table.groups[ordinal] for ordinal in piece.changed), piece.before
        )

    def _fold(self, piece: _RowPiece, row: Row, stamp: Stamp, *, is_seen: bool = True) -> None:
        """Stamp a row as a change did it. `is_seen`: the change fits what was there."""
        # One that was gone keeps what it had.
        if piece.op == _DELETE and (row.values is None or (is_seen and row.is_there)):
            row = row.showing(piece.before)
        after = merged(row, self._changed(piece), stamp, self._table(piece.table_id).groups)
        self._stamps.put(*piece.name, after)

    def _unique(self, table_id: int) -> frozenset[int]:
        """Ordinals of the values that decide what no two rows of a table have alike, but for the key's."""
        known = self._uniques.get(table_id)
        if known is None:
            definition = self._definition(table_id)
            every = frozenset[int]().union(*unique_together(self._connection, definition))
            known = self._uniques[table_id] = every - frozenset(definition.key)
        return known

    def _has_unique(self, table_id: int) -> bool:
        """Whether a table has such values; one that is gone has none."""
        return table_id in self._rows.definitions and bool(self._unique(table_id))

    def _rival(self, table_id: int, wanted: Image) -> Image | None:
        """Another row that has a unique value of `wanted`, which is not in the table; None: there is none. SQLite finds
        it by whatever the index says: it tries to insert, and says which row it would change instead."""
        definition = self._definition(table_id)
        names = [quote(definition.columns[ordinal].name) for ordinal in definition.key]
        told = f"ON CONFLICT DO UPDATE SET {names[0]} = {names[0]} RETURNING {', '.join(names)}"
        self._connection.execute("SAVEPOINT rival")
        try:
            text = f"{insert(definition, '')} {told}"
            found: list[Any] = self._connection.execute(text, wanted, prepare_flags=OWN_STATEMENT).fetchall()
        finally:
            self._connection.execute("ROLLBACK TO rival")
            self._connection.execute("RELEASE rival")
        return self._read(table_id, found[0])

    def _held_since(self, table_id: int, row: Row) -> Stamp:
        """The latest stamp of a row's unique values."""
        groups = self._table(table_id).groups
        return max((row.stamps.get(groups[at], NEVER) for at in self._unique(table_id)), default=NEVER)

    def _note_waited(self, name: tuple[int, bytes], row: Row, remover: Stamp) -> None:
        """A row that waited goes for good."""
        definition, image = self._definition(name[0]), row.values
        assert image is not None
        rival = self._rival(name[0], image)
        left = None if rival is None else tuple(rival[at] for at in definition.key)
        ordinals = tuple(sorted(self._unique(name[0])))
        told = Lost("unique", remover, self._held_since(name[0], row), image, ordinals)
        self.note(name[0], tuple(image[at] for at in definition.key), told, left)

    def note(self, table_id: int, key: Image, one: Lost, left: Image | None) -> None:
        """Something is lost. `left`: what is there instead, of a row that gave way the other one's key."""
        definition = self._definition(table_id)
        columns = tuple(column.name for column in definition.columns)
        self.lost_count += 1
        self.lost.append(Merged(self._rows.seqno, definition.table, columns, key, one, left, self._region))

    def _read(self, table_id: int, key: Image) -> Image | None:
        definition = self._definition(table_id)
        return read_image(self._connection, definition, "", definition.key, key)


class _Merge:
    """Of one transaction: its changes are folded first, each row's in their order; then the rows are made what they
    come to, those with unique values once more, those that have had them longest first."""

    def __init__(
        self, merger: RowMerger, stamp: Stamp, removing: Stamp | None, *, removes: bool, may_lack: bool
    ) -> None:
        self._merger = merger
        self._removes = removes
        """Whether it removes rows for their unique values."""
        self._may_lack = may_lack
        """Whether a row that is to go may not have come."""
        self._stamp = stamp
        self._removing = removing
        self._here: dict[tuple[int, bytes], Image | None] = {}
        """The rows as they are in the table."""
        self._rows: dict[tuple[int, bytes], Row] = {}
        """As they come to be."""
        self._keys: dict[tuple[int, bytes], Image] = {}
        self._lost: list[tuple[tuple[int, bytes], Lost]] = []
        self._done: list[Any] = []
        self._waits: set[tuple[int, bytes]] = set()
        """Of the rows, those that are not put into their table."""

    def make(self, pieces: Sequence[_RowPiece], unseen: Mapping[tuple[int, bytes], frozenset[Stamp]]) -> list[Any]:
        """Merge them; the flat changes that this comes to, which are made. Raises as `RowsOfRegion.apply_all`."""
        for name, row in self._merger._stamps.waiting.items():
            self._load(name, self._key_of(name[0], row.values or ()))
        for piece in pieces:
            self._fold(piece, unseen[piece.name])
        again: list[tuple[int, bytes]] = []
        for name, row in self._rows.items():
            here, shown = self._here[name], row.values if row.is_there else None
            if here is None and shown is None:
                continue
            unique = self._merger._unique(name[0])
            if here is None or shown is None or any(not same_value(here[at], shown[at]) for at in unique):
                again.append(name)
            else:
                self._change(change_of(Op.UPDATE, name[0], here, shown))
        for name in again:
            if (gone := self._here[name]) is not None:
                self._change([_DELETE, name[0], 0, list(gone)])
        put = self._insert if self._removing is not None else self._insert_or_wait
        for name in sorted(again, key=lambda one: (one[0], self._held_since(one), one[1])):
            if self._rows[name].is_there:
                put(name)
        self._finish()
        return self._done

    def _change(self, change: list[Any]) -> None:
        if change:
            self._merger._rows.apply_all(change)
            self._done += change

    def _load(self, name: tuple[int, bytes], key: Image) -> Row:
        """A row as it is."""
        known = self._rows.get(name)
        if known is None:
            here = self._here[name] = self._merger._read(name[0], key)
            self._keys[name] = key
            row = self._merger._stamps.get(*name)
            if row is not None and row.is_there != (here is not None) and (here is not None or not row.waits):
                raise self._unfit(name)
            known = row or Row(None, here is not None)
            known = self._rows[name] = known if here is None else known.showing(here)
        return known

    def _fold(self, piece: _RowPiece, unseen: frozenset[Stamp]) -> None:
        merger, name = self._merger, piece.name
        known = self._load(name, piece.key)
        lacks = self._may_lack and not known.is_there
        if not unseen and not lacks:  # nobody has written beside it: it is what its writer saw, or somebody has meddled
            shown = known.values if known.is_there else None
            if (shown is None) != (piece.before is None) or not all(map(same_value, shown or (), piece.before or ())):
                raise self._unfit(name, piece)
        change, groups = merger._changed(piece), merger._table(name[0]).groups
        self._lost += [(name, one) for one in lost(known, change, self._stamp, groups, unseen)]
        self._rows[name] = merged(known, change, self._stamp, groups)
        if known.waits and self._removes and not self._rows[name].is_there:
            merger._note_waited(name, known, self._stamp)

    def _key_of(self, table_id: int, values: Image) -> Image:
        return tuple(values[at] for at in self._merger._definition(table_id).key)

    def _held_since(self, name: tuple[int, bytes]) -> Stamp:
        return self._merger._held_since(name[0], self._rows[name])

    def _rival_of(self, name: tuple[int, bytes]) -> tuple[tuple[int, bytes], Image] | None:
        """Put a row into the table; where another one has a unique value of it, nothing is put: that one, as it is."""
        merger, table_id, wanted = self._merger, name[0], self._rows[name].values
        assert wanted is not None
        try:
            self._change([_INSERT, table_id, 0, list(wanted)])
            return None
        except ConflictError as error:
            rival = merger._rival(table_id, wanted) if wants_unique(error) else None
            if rival is None:
                raise
            key = self._key_of(table_id, rival)
            other = table_id, key_of(key)
            if other not in self._rows:
                self._load(other, key)
                if self._rows[other].newest == NEVER and self._writes_unique(name):
                    raise  # everybody has that row, and so had the writer of this one
            return other, rival

    def _writes_unique(self, name: tuple[int, bytes]) -> bool:
        """Whether all unique values of a row are this transaction's. Others may be of one that not everybody has, in a
        row that was gone, so that nobody minded: this transaction may have brought it back."""
        merger, stamps = self._merger, self._rows[name].stamps
        groups = merger._table(name[0]).groups
        return all(stamps.get(groups[at]) == self._stamp for at in merger._unique(name[0]))

    def _is_before(self, name: tuple[int, bytes], other: tuple[int, bytes]) -> bool:
        """Whether a row keeps a unique value that another one wants, too: which has had its own longer."""
        return (self._held_since(name), name) < (self._held_since(other), other)

    def _insert(self, name: tuple[int, bytes]) -> None:
        """Put a row into the table. Where another one has a unique value of it, one of the two goes."""
        while (found := self._rival_of(name)) is not None:
            other, image = found
            if not self._is_before(name, other):
                self._remove(name, other)
                return
            self._change([_DELETE, name[0], 0, list(image)])
            self._remove(other, name)

    def _insert_or_wait(self, name: tuple[int, bytes]) -> None:
        """The same where none may go: it waits, until the transaction comes by which it goes, or the other one does, or
        we may have it go. Those that have had their values longer are put first, so that none waits for one that waits
        itself."""
        merger, done, waits = self._merger, len(self._done), set[tuple[int, bytes]]()
        merger._connection.execute("SAVEPOINT waits")
        try:
            while (found := self._rival_of(name)) is not None:
                other, image = found
                if not self._is_before(name, other):
                    merger._connection.execute("ROLLBACK TO waits")
                    merger._rows.begin()
                    del self._done[done:]
                    waits = {name}
                    break
                self._change([_DELETE, name[0], 0, list(image)])
                waits.add(other)
        finally:
            merger._connection.execute("RELEASE waits")
        self._waits |= waits

    def _remove(self, name: tuple[int, bytes], winner: tuple[int, bytes]) -> None:
        """A row gives way to another one, on all sites."""
        row = self._rows[name]
        assert row.values is not None
        assert self._removing is not None
        ordinals = tuple(sorted(self._merger._unique(name[0])))
        told = Lost("unique", self._held_since(winner), self._held_since(name), row.values, ordinals)
        gone = RowChanged(_DELETE, row.values, self._merger._table(name[0]).sums)
        self._rows[name] = merged(row, gone, self._removing, self._merger._table(name[0]).groups)
        self._merger.removed += [_DELETE, name[0], 0, list(row.values)]
        self._note(name, told, self._keys[winner])
        self._merger._gave_way[name] = self._merger.lost[-1]

    def _finish(self) -> None:
        for name, row in self._rows.items():
            waits = name in self._waits
            self._merger._stamps.put(*name, row if row.waits == waits else replace(row, waits=waits))
        for name, one in self._lost:
            row = self._rows[name]
            self._note(name, one, row.values if row.is_there else None)

    def _note(self, name: tuple[int, bytes], one: Lost, left: Image | None) -> None:
        self._merger.note(name[0], self._keys[name], one, left)

    def _unfit(self, name: tuple[int, bytes], piece: _RowPiece | None = None) -> ConflictError:
        """The error for a row that is not as transactions left it. `piece`: the change that found it."""
        merger, found = self._merger, self._here[name]
        definition, seqno, key = merger._definition(name[0]), merger._rows.seqno, self._keys[name]
        reason = "the row is missing" if found is None else "the row differs from its before-image"
        error = ConflictError(
            f"table {definition.table}, which several suppliers write, key {key!r}, seqno {seqno}: {reason}",
            where=merger._connection.filename,
            do="Somebody wrote here beside the suppliers: compare the sites, then seed this one again",
            table=definition.table,
            seqno=seqno,
        )
        columns = tuple(column.name for column in definition.columns)
        op, before, after = (_UPDATE, None, None) if piece is None else (piece.op, piece.before, piece.after)
        error.conflict = Conflict(
            definition.region, definition.table, op, seqno, reason, columns, key, before, found, after
        )
        return error
