"""The model's `MergingRows`: registers beside the rows of a content, one for each group of columns.

Guarantees: as region/sqlite/apply/merge.py, but for values that are unique: the model's tables have none.
Leaves to others: what a row comes to (replicate/model/registers.py), when stamps go (update_process/merging.py).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from replicate.errors import ConflictError, InternalError
from replicate.model.registers import Lost, Row, RowChanged, Stamp, groups_of, lost, merged
from replicate.model.seen import unseen_of
from replicate.model.transaction import Op, TableDefinition
from replicate.region.protocol import Absorbed, Merged
from tests.simulation.suppliers.content import Content, Image, Name, SupplierRows, images_of, is_same, pack_merge

ROW_OPS: Final = frozenset((Op.INSERT, Op.UPDATE, Op.DELETE))
TOGETHER: Final = ((2, 3),)
"""Ordinals of a shared table's columns that one constraint names."""
_EMPTY: Final = Row()


@dataclass(slots=True)
class Piece:
    """A change of one row of a table."""

    op: int
    definition: TableDefinition
    before: Image | None
    after: Image | None

    @property
    def name(self) -> Name:
        image = self.before if self.after is None else self.after
        assert image is not None
        return self.definition.table, image[self.definition.key[0]]

    def changed(self) -> RowChanged:
        """As registers.py has it."""
        groups = groups_of(len(self.definition.columns), TOGETHER)
        if self.op == Op.INSERT:
            assert self.after is not None
            return RowChanged(int(Op.INSERT), self.after, frozenset(groups))
        assert self.before is not None
        if self.after is None:
            return RowChanged(int(Op.DELETE), self.before, frozenset())
        pairs = zip(groups, self.before, self.after, strict=True)
        return RowChanged(int(Op.UPDATE), self.after, frozenset(group for group, old, new in pairs if old != new))


class ModelMerging:
    """One per apply session."""

    def __init__(self, connection: Any, rows: SupplierRows) -> None:
        self._connection = connection
        self._rows = rows
        self.lost: list[Merged] = []
        self.lost_count = 0
        self.removed: list[Any] = []
        self.kept_since_purge = 0

    def begin(self) -> None:
        self.lost.clear()
        self.lost_count = 0

    @property
    def _content(self) -> Content:
        return self._connection.working()  # type: ignore[no-any-return]

    @property
    def absorbed(self) -> int:
        return self._content.absorbed

    @property
    def has_waiting(self) -> bool:
        return False

    @property
    def waiting(self) -> list[Any]:
        return []

    @property
    def is_empty(self) -> bool:
        return not self._content.stamps

    def _pieces(self, changes: Sequence[Any], is_shared: Callable[[int], bool]) -> tuple[list[Piece], list[Any]]:
        """Changes of rows that several write, and the others."""
        pieces: list[Piece] = []
        others: list[Any] = []
        for place in range(0, len(changes), 4):
            op, table_id, argument, values = changes[place : place + 4]
            if op in ROW_OPS and is_shared(table_id):
                pieces.append(Piece(op, self._rows.definitions[table_id], *images_of(op, argument, values)))
            else:
                others += changes[place : place + 4]
        return pieces, others

    def take(
        self,
        changes: Sequence[Any],
        stamp: Stamp,
        told: Mapping[int, int],
        is_shared: Callable[[int], bool],
        removing: Stamp | None,
        *,
        is_stable: bool = False,
    ) -> list[Any] | None:
        pieces, others = self._pieces(changes, is_shared)
        unseen = {one.name: self._unseen(one.name, told, stamp.origin) for one in pieces}
        if not any(unseen.values()):
            self._rows.apply_all(changes)
            for piece in pieces:
                self._fold_strictly(piece, stamp, is_stable=is_stable)
            return None
        self._rows.apply_all(others)
        return [*others, *self._merge(pieces, unseen, stamp)]

    def _unseen(self, name: Name, told: Mapping[int, int], writer: int) -> frozenset[Stamp]:
        row = self._content.stamps.get(name)
        return frozenset() if row is None else unseen_of(row.all_stamps(), told, writer)

    def _put(self, name: Name, row: Row) -> None:
        self._content.stamps[name] = row
        self.kept_since_purge += 1

    def _fold_strictly(self, piece: Piece, stamp: Stamp, *, is_stable: bool) -> None:
        row = self._content.stamps.get(piece.name)
        if row is None and is_stable:
            return
        row = row or _EMPTY
        if piece.after is None and (row.is_there or row.values is None):
            row = Row(piece.before, row.is_there, row.life, row.stamps)
        groups = groups_of(len(piece.definition.columns), TOGETHER)
        self._put(piece.name, merged(row, piece.changed(), stamp, groups))

    def _merge(self, pieces: Sequence[Piece], unseen: Mapping[Name, frozenset[Stamp]], stamp: Stamp) -> list[Any]:
        """Fold the pieces, and make the rows what they come to; the changes that this is."""
        here: dict[Name, Image | None] = {}
        found: dict[Name, Row] = {}
        definitions: dict[Name, TableDefinition] = {}
        losses: list[tuple[Name, Lost]] = []
        for piece in pieces:
            name = piece.name
            if name not in found:
                definitions[name] = piece.definition
                here[name] = self._content.rows.get(name[0], {}).get(name[1])
                found[name] = self._loaded(name, here[name])
            known = found[name]
            if not unseen[name]:
                self._check_seen(known, piece)
            groups = groups_of(len(piece.definition.columns), TOGETHER)
            losses += [(name, one) for one in lost(known, piece.changed(), stamp, groups, unseen[name])]
            found[name] = merged(known, piece.changed(), stamp, groups)
        done: list[Any] = []
        for name, row in found.items():
            done += _change(definitions[name].table_id, here[name], row.values if row.is_there else None)
            self._put(name, row)
        self._rows.apply_all(done)
        for name, one in losses:
            row, definition = found[name], definitions[name]
            left = row.values if row.is_there else None
            columns = tuple(column.name for column in definition.columns)
            self.lost_count += 1
            self.lost.append(Merged(self._rows.seqno, definition.table, columns, (name[1],), one, left))
        return done

    def _loaded(self, name: Name, here: Image | None) -> Row:
        row = self._content.stamps.get(name)
        if row is None:
            return Row(here, here is not None)
        if row.is_there != (here is not None):
            raise ConflictError(f"row {name} is not as its stamps say")
        return row if here is None else Row(here, True, row.life, row.stamps)

    def _check_seen(self, known: Row, piece: Piece) -> None:
        shown = known.values if known.is_there else None
        same = shown is None if piece.before is None else shown is not None and is_same(shown, piece.before)
        if not same:
            raise ConflictError(f"row {piece.name}: {shown} stands there, {piece.before} is expected")

    def take_unmet(
        self,
        ops: Sequence[int],
        table_ids: Sequence[int],
        arguments: Sequence[Any],
        values: Sequence[Sequence[Any]],
        stamps: Sequence[Stamp],
    ) -> bool:
        columns = zip(ops, table_ids, arguments, values, strict=True)
        pieces = [Piece(op, self._rows.definitions[one], *images_of(op, arg, image)) for op, one, arg, image in columns]
        if any(piece.name in self._content.stamps for piece in pieces):
            return False
        self._rows.apply_columns(ops, table_ids, arguments, values)
        for piece, stamp in zip(pieces, stamps, strict=bool(stamps)):
            self._fold_strictly(piece, stamp, is_stable=False)
        return True

    def absorb(self, transactions: Sequence[Absorbed], is_shared: Callable[[int], bool]) -> None:
        for one in transactions:
            for piece in self._pieces(one.changes, is_shared)[0]:
                self._fold_strictly(piece, one.stamp, is_stable=one.is_stable)
            if one.done is one.changes:
                continue
            for piece in self._pieces(one.done, is_shared)[0]:
                row = self._content.stamps.get(piece.name)
                if piece.after is None and row is not None and not row.is_there:
                    self._put(piece.name, Row(piece.before, False, row.life, row.stamps))

    def losses(self, seqno: int) -> list[bytes]:
        return [pack_merge(one) for one in self.lost if one.seqno == seqno]

    def mark(self) -> None:
        """No row of the model gives way, so nothing is taken back."""

    def take_back(self) -> None:
        raise InternalError("no row of the model gives way")

    def give_way(self, deletes: Sequence[Any], stamp: Stamp) -> tuple[list[Any], list[Any]]:
        raise InternalError("no row of the model gives way")

    def write_stamps(self) -> None:
        self._content.note_merges(self.lost)
        self.lost.clear()

    def finish(self, absorbed: int) -> None:
        self._content.absorbed = absorbed
        self.write_stamps()

    def purge(self, stable: Mapping[int, int]) -> int:
        stamps = self._content.stamps
        for name, row in list(stamps.items()):
            if all(one.origin_seqno <= stable.get(one.origin, 0) for one in row.all_stamps()):
                del stamps[name]
        self.kept_since_purge = 0
        return len(stamps)


def _change(table_id: int, here: Image | None, shown: Image | None) -> list[Any]:
    """The flat change that makes one of the other."""
    if here is None or shown is None:
        if here is not None:
            return [int(Op.DELETE), table_id, 0, list(here)]
        return [] if shown is None else [int(Op.INSERT), table_id, 0, list(shown)]
    changed = [at for at, pair in enumerate(zip(here, shown, strict=True)) if pair[0] != pair[1]]
    if not changed:
        return []
    mask = sum(1 << at for at in changed)
    return [int(Op.UPDATE), table_id, mask, [*(shown[at] for at in changed), *here]]
