"""The model's `MergingRows`: registers beside the rows of a content, one for each group of columns.

Guarantees: as region/sqlite/apply/merge.py; of a table one column at most has unique values.
Leaves to others: what a row comes to (replicate/model/merged_row.py), when stamps go (update_process/merging.py).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from operator import itemgetter
from typing import Any, Final

from msgspec.structs import replace

from replicate.errors import ConflictError
from replicate.model.merged_row import NEVER, Groups, Lost, Row, RowChanged, Stamp, groups_of, lost, merged
from replicate.model.seen import unseen_of
from replicate.model.transaction import Op, TableDefinition
from replicate.region.protocol import Absorbed, Merged, RowKeys
from tests.simulation.content import (
    UNIQUE,
    Content,
    Image,
    Name,
    images_of,
    is_same,
    pack_merge,
)
from tests.simulation.frames import ROW_OPS
from tests.simulation.rows import ModelRows

TOGETHER: Final = {"shared": ((2, 3),)}
"""Ordinals of a table's columns that one constraint names."""
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

    @property
    def groups(self) -> Groups:
        return groups_of(len(self.definition.columns), TOGETHER.get(self.definition.table, ()))

    def changed(self) -> RowChanged:
        """As merged_row.py has it."""
        groups = self.groups
        if self.op == Op.INSERT:
            assert self.after is not None
            return RowChanged(int(Op.INSERT), self.after, frozenset(groups))
        assert self.before is not None
        if self.after is None:
            return RowChanged(int(Op.DELETE), self.before, frozenset())
        pairs = zip(groups, self.before, self.after, strict=True)
        return RowChanged(int(Op.UPDATE), self.after, frozenset(group for group, old, new in pairs if old != new))


class ModelMerging:
    """One per region and apply session. `region`: its name, where there are several."""

    def __init__(self, connection: Any, rows: ModelRows, region: str = "") -> None:
        self._connection = connection
        self._rows = rows
        self._region = region
        self.lost: list[Merged] = []
        self.lost_count = 0
        self.removed: list[Any] = []
        self.kept_since_purge = 0
        self._marked: Content | None = None
        self._gave_way: dict[Name, Merged] = {}

    def begin(self) -> None:
        self.lost.clear()
        self.lost_count = 0
        self.removed = []
        self._gave_way.clear()

    @property
    def _content(self) -> Content:
        return self._connection.working()  # type: ignore[no-any-return]

    @property
    def absorbed(self) -> int:
        return self._content.absorbed

    @property
    def has_waiting(self) -> bool:
        return any(row.waits for row in self._content.stamps.values())

    @property
    def waiting(self) -> list[Any]:
        waiting = [(name, row) for name, row in self._content.stamps.items() if row.waits]
        found: list[Any] = []
        for name, row in sorted(waiting, key=itemgetter(0)):
            found += [int(Op.DELETE), self._definition(name).table_id, 0, list(row.values or ())]
        return found

    def _definition(self, name: Name) -> TableDefinition:
        known = self._rows.definitions.values()
        return next(one for one in known if (one.region, one.table) == (self._rows.name, name[0]))

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
        removes: bool = False,
    ) -> list[Any] | None:
        self.removed = []
        pieces, others = self._pieces(changes, is_shared)
        unseen = {one.name: self._unseen(one.name, told, stamp.origin) for one in pieces}
        removes = removes or Op.RESOLVED in changes[0::4]
        may_lack = removes and any(one.name[1] not in self._content.rows.get(one.name[0], {}) for one in pieces)
        tries_again = bool(pieces) and self.has_waiting
        if not any(unseen.values()) and not may_lack and not tries_again and self._fits(changes):
            for piece in pieces:
                self._fold_strictly(piece, stamp, is_stable=is_stable)
            return None
        self._rows.apply_all(others)
        merge = ModelMerge(self, stamp, removing, removes=removes, may_lack=may_lack)
        return [*others, *merge.make(pieces, unseen)]

    def _fits(self, changes: Sequence[Any]) -> bool:
        """Make changes as they are; False, and nothing is made, where another row has a unique value that one wants."""
        tried = self._content.copy()
        try:
            for place in range(0, len(changes), 4):
                op, table_id, argument, values = changes[place : place + 4]
                if op in ROW_OPS:
                    tried.change(self._rows.definitions[table_id], op, argument, values)
        except ConflictError as error:
            if error.facts.get("unique"):
                return False
        self._rows.apply_all(changes)
        return True

    def _unseen(self, name: Name, told: Mapping[int, int], writer: int) -> frozenset[Stamp]:
        row = self._content.stamps.get(name)
        return frozenset() if row is None else unseen_of(row.all_stamps(), told, writer)

    def _put(self, name: Name, row: Row) -> None:
        self._content.stamps[name] = row
        self.kept_since_purge += 1

    def _fold_strictly(self, piece: Piece, stamp: Stamp, *, is_stable: bool, is_seen: bool = True) -> None:
        row = self._content.stamps.get(piece.name)
        if row is None and is_stable and piece.name[0] not in UNIQUE:
            return
        row = row or _EMPTY
        if piece.after is None and (row.values is None or (is_seen and row.is_there)):
            row = Row(piece.before, row.is_there, row.life, row.stamps)
        self._put(piece.name, merged(row, piece.changed(), stamp, piece.groups))

    def note(self, name: Name, one: Lost, left: Image | None) -> None:
        """Something is lost."""
        definition = self._definition(name)
        columns = tuple(column.name for column in definition.columns)
        self.lost_count += 1
        self.lost.append(Merged(self._rows.seqno, definition.table, columns, (name[1],), one, left, self._region))

    def note_waited(self, name: Name, row: Row, remover: Stamp) -> None:
        """A row that waited goes for good."""
        assert row.values is not None
        rival = self._content.rival(self._definition(name), row.values)
        told = Lost("unique", remover, held_since(name, row), row.values, (UNIQUE[name[0]],))
        self.note(name, told, None if rival is None else rival[:1])

    def may_meet(self, rows: RowKeys, told: Mapping[int, int], writer: int) -> bool:
        definitions = self._rows.definitions
        names = [(definitions[table_id].table, key) for table_id, keys in rows.items() for key in keys]
        return any(name[0] in UNIQUE or self._unseen(name, told, writer) for name in names)

    def absorb(self, transactions: Sequence[Absorbed], is_shared: Callable[[int], bool]) -> None:
        for one in transactions:
            is_merged = one.done is not one.changes
            written, done = (self._pieces(changes, is_shared)[0] for changes in (one.changes, one.done))
            stamps = self._content.stamps
            for piece in done if is_merged else ():
                row = stamps.get(piece.name)
                if piece.before is not None and row is not None and row.is_there:
                    self._put(piece.name, row.showing(piece.before))
            for piece in written:
                self._fold_strictly(piece, one.stamp, is_stable=one.is_stable, is_seen=not is_merged)
            for piece in done if is_merged else ():
                row = stamps.get(piece.name)
                if piece.after is None and row is not None and not row.is_there:
                    self._put(piece.name, Row(piece.before, False, row.life, row.stamps))
            for piece in [*written, *done] if is_merged else ():
                row = stamps.get(piece.name)
                if piece.name[0] in UNIQUE and row is not None and row.is_there:
                    self._put(piece.name, replace(row, waits=piece.name[1] not in self._content.rows[piece.name[0]]))

    def losses(self, seqno: int) -> list[bytes]:
        return [pack_merge(one) for one in self.lost if one.seqno == seqno]

    def mark(self) -> None:
        self._marked = self._content.copy()

    def take_back(self) -> None:
        assert self._marked is not None
        content, marked = self._content, self._marked
        content.rows, content.stamps, content.seen = marked.rows, marked.stamps, marked.seen
        content.merges = marked.merges
        self.lost.clear()
        self.lost_count = 0

    def give_way(self, deletes: Sequence[Any], stamp: Stamp) -> tuple[list[Any], list[Any]]:
        told, done = list[Any](), list[Any]()
        for table_id, values in zip(deletes[1::4], deletes[3::4], strict=True):
            definition = self._rows.definitions[table_id]
            name = definition.table, values[0]
            here = self._content.rows[definition.table].get(values[0])
            row, image = self._content.stamps.get(name) or _EMPTY, here or tuple(values)
            delete = [int(Op.DELETE), table_id, 0, list(image)]
            told += delete
            if row.waits:
                self.note_waited(name, row, stamp)
            if here is not None:
                row = Row(here, True, row.life, row.stamps)
                done += delete
                if (known := self._gave_way.get(name)) is not None:
                    self.lost_count += 1
                    self.lost.append(replace(known, seqno=self._rows.seqno))
            piece = Piece(int(Op.DELETE), definition, image, None)
            self._put(name, merged(row, piece.changed(), stamp, piece.groups))
        self._rows.apply_all(done)
        return told, done

    def write_stamps(self) -> None:
        self._content.note_merges(self.lost)
        self.lost.clear()

    def finish(self, absorbed: int) -> None:
        self._content.absorbed = absorbed
        self.write_stamps()

    def purge(self, stable: Mapping[int, int]) -> int:
        stamps = self._content.stamps
        unstable = {
            (name[0], one)
            for name, row in stamps.items()
            for one in row.all_stamps()
            if one.origin_seqno > stable.get(one.origin, 0)
        }
        firsts = {table: min((one for of, one in unstable if of == table), default=None) for table in UNIQUE}
        for name, row in list(stamps.items()):
            first = firsts.get(name[0])
            is_stable = all(one.origin_seqno <= stable.get(one.origin, 0) for one in row.all_stamps())
            if not row.waits and is_stable and (first is None or row.newest < first):
                del stamps[name]
        self.kept_since_purge = 0
        return len(stamps)


class ModelMerge:
    """Of one transaction."""

    def __init__(
        self, merger: ModelMerging, stamp: Stamp, removing: Stamp | None, *, removes: bool, may_lack: bool
    ) -> None:
        self._merger, self._stamp, self._removing = merger, stamp, removing
        self._removes, self._may_lack = removes, may_lack
        self._here: dict[Name, Image | None] = {}
        self._found: dict[Name, Row] = {}
        self._waits: set[Name] = set()
        self._losses: list[tuple[Name, Lost]] = []
        self._done: list[Any] = []

    def make(self, pieces: Sequence[Piece], unseen: Mapping[Name, frozenset[Stamp]]) -> list[Any]:
        """Fold the pieces, and make the rows what they come to; the changes that this is."""
        for name, row in self._merger._content.stamps.items():
            if row.waits:
                self._load(name)
        for piece in pieces:
            self._fold(piece, unseen[piece.name])
        again: list[Name] = []
        for name, row in self._found.items():
            here, shown = self._here[name], row.values if row.is_there else None
            at = UNIQUE.get(name[0])
            if here is None and shown is None:
                continue
            if at is not None and (here is None or shown is None or here[at] != shown[at]):
                again.append(name)
            else:
                self._change(name, here, shown)
        for name in again:
            self._change(name, self._here[name], None)
        for name in sorted(again, key=lambda one: (held_since(one, self._found[one]), one)):
            if self._found[name].is_there:
                self._insert(name)
        for name, row in self._found.items():
            self._merger._put(name, replace(row, waits=name in self._waits))
        for name, one in self._losses:
            row = self._found[name]
            self._merger.note(name, one, row.values if row.is_there else None)
        return self._done

    def _load(self, name: Name) -> None:
        if name in self._found:
            return
        here = self._here[name] = self._merger._content.rows.get(name[0], {}).get(name[1])
        row = self._merger._content.stamps.get(name)
        if row is None:
            self._found[name] = Row(here, here is not None)
            return
        if row.is_there != (here is not None) and (here is not None or not row.waits):
            raise ConflictError(f"row {name} is not as its stamps say")
        self._found[name] = row if here is None else Row(here, True, row.life, row.stamps)

    def _fold(self, piece: Piece, unseen: frozenset[Stamp]) -> None:
        name = piece.name
        self._load(name)
        known = self._found[name]
        if not unseen and not (self._may_lack and not known.is_there):
            shown = known.values if known.is_there else None
            same = shown is None if piece.before is None else shown is not None and is_same(shown, piece.before)
            if not same:
                raise ConflictError(f"row {name}: {shown} stands there, {piece.before} is expected")
        self._losses += [(name, one) for one in lost(known, piece.changed(), self._stamp, piece.groups, unseen)]
        self._found[name] = merged(known, piece.changed(), self._stamp, piece.groups)
        if known.waits and self._removes and not self._found[name].is_there:
            self._merger.note_waited(name, known, self._stamp)

    def _change(self, name: Name, here: Image | None, shown: Image | None) -> None:
        changes = _change(self._merger._definition(name).table_id, here, shown)
        self._merger._rows.apply_all(changes)
        self._done += changes

    def _insert(self, name: Name) -> None:
        """Who has had a name longer keeps it."""
        wanted = self._found[name].values
        assert wanted is not None
        rival = self._merger._content.rival(self._merger._definition(name), wanted)
        if rival is not None:
            other = name[0], rival[0]
            self._load(other)
            mine, theirs = (held_since(one, self._found[one]) for one in (name, other))
            if self._found[other].newest == NEVER and mine == self._stamp:
                raise ConflictError(f"row {other} has the name of {name}, and everybody has it")
            if (theirs, other) < (mine, name):
                self._goes(name, other)
                return
            self._change(other, rival, None)
            self._goes(other, name)
        self._change(name, None, wanted)

    def _goes(self, name: Name, winner: Name) -> None:
        """A row gives way on all sites, or waits."""
        if self._removing is None:
            self._waits.add(name)
            return
        row, merger = self._found[name], self._merger
        assert row.values is not None
        theirs, mine = (held_since(one, self._found[one]) for one in (winner, name))
        told = Lost("unique", theirs, mine, row.values, (UNIQUE[name[0]],))
        piece = Piece(int(Op.DELETE), merger._definition(name), row.values, None)
        self._found[name] = merged(row, piece.changed(), self._removing, piece.groups)
        merger.removed += [int(Op.DELETE), merger._definition(name).table_id, 0, list(row.values)]
        merger.note(name, told, (winner[1],))
        merger._gave_way[name] = merger.lost[-1]


def held_since(name: Name, row: Row) -> Stamp:
    """The stamp of a row's unique value."""
    return row.stamps.get(UNIQUE[name[0]], NEVER)


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
