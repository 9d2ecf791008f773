"""Rows of a secondary that differ are made as they are in another instance, past the stream.

    log/repair.jsonl    a line for each repair: at, by, like, seqno; then one for each row: region, table, columns,
                        here, there; then one that says that it is done

Guarantees: both instances are held at one transaction meanwhile, and what is changed is what was compared: each row
must still be as it was found, or nothing is changed in its region. Both images of all rows are on the disk before the
first one is changed. Each region has one transaction, which moves no checkpoint record. Tables whose definitions
differ are named and left alone.
Leaves to others: how one compares (compare.py), what a status says (last_compare.py). What it does is in no journal: a
region that is put back from an older copy, and a third site, do not have it.
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack, closing
from typing import Any, Final

from msgspec import Struct, field

from replicate.audit.record_lines import plain
from replicate.compare.compare import CompareProgress, HeldTogether, Told, held_together
from replicate.compare.last_compare import Repaired, note_repaired
from replicate.errors import ConflictError, TryAgainError, UsageError, WrongNetworkError
from replicate.instance.file import RegionEntry
from replicate.instance.instance import Instance
from replicate.instance.writing_locks import regions_locked
from replicate.model.transaction import Op, TableDefinition
from replicate.pool import control as word
from replicate.region.kind import KIND
from replicate.region.sqlite import digest as digests
from replicate.region.sqlite.apply.overwrite import change_of
from replicate.region.sqlite.apply.statements import set_sequence
from replicate.region.sqlite.bookkeeping import write_state
from replicate.region.sqlite.own_counters import counted_apart
from replicate.region.sqlite.recovering import MendedFile
from replicate.region.sqlite.schema import is_autoincrement, sequence_value, user_tables
from replicate.system.failpoint import hit
from replicate.system.os_errors import io_error

FILE_NAME: Final = "repair.jsonl"
REPAIRED_AT: Final = "repaired_at"
"""Of a region's state: the transaction at which it was repaired last."""
RENEWED_S: Final = 1.0
"""So often the barrier is renewed while rows are read."""


class TableRepair(Struct):
    """What was made of one table ("region.table"): rows that differed, were missing here, or only here."""

    table: str
    changed: int = 0
    added: int = 0
    removed: int = 0

    @property
    def rows(self) -> int:
        return self.changed + self.added + self.removed


class Repair(Struct):
    """What was, or would be (not `is_done`), changed in `mended` so that it is like `like` at `seqno`. `left`: why a
    table or region was left alone, by its name. `file`: where both images are."""

    mended: str
    like: str
    seqno: int
    is_done: bool
    file: str = ""
    tables: list[TableRepair] = field(default_factory=list)
    left: dict[str, str] = field(default_factory=dict)

    @property
    def rows(self) -> int:
        return sum(table.rows for table in self.tables)


class _RepairedTable(Struct, frozen=True):
    region: str
    definition: TableDefinition
    counter: tuple[int | None, int | None] | None
    """Its AUTOINCREMENT counter here and there; None when it has none, or both are the same."""

    @property
    def name(self) -> str:
        return f"{self.region}.{self.definition.table}"


def sides(first: Instance, second: Instance) -> tuple[Instance, Instance]:
    """(the one to be mended, the one that it is to be like). UsageError, WrongNetworkError.

    The secondary of a primary and its secondary; of two secondaries the first."""
    if first.content.network != second.content.network:
        raise WrongNetworkError("the two instances belong to different networks", where=str(second.path))
    mended, like = (second, first) if first.role == "primary" else (first, second)
    if mended.role != "secondary" or mended.content.uuid == like.content.uuid:
        raise UsageError(
            f"{mended.name} is {mended.told_role}: only the rows of a secondary are repaired",
            where=str(mended.path),
            do="Name a primary and its secondary, or two secondaries, of which the first is repaired. Make the rows of "
            "suppliers alike with a client that leaves triggers alone, or make a new copy: replicate help suppliers",
        )
    return mended, like


def repair(
    first: Instance, second: Instance, *, by: str, dry_run: bool = False, timeout_s: float, told: Told | None = None
) -> Repair:
    """Repair the secondary of the two. `by`: who asks. `timeout_s`: to bring both to one transaction, and for locks.

    Raises as `sides` and `compare.compare`; TryAgainError (the secondary has gone on: the machine stood still), and
    ConflictError (a row is not as it was found: another client writes here): no region is changed that was not before.
    """
    mended, like = sides(first, second)
    if told is not None:
        told(CompareProgress("waiting until both are at one transaction", "the Update Process stands still meanwhile"))
    with held_together(like, mended, timeout_s=timeout_s) as held, ExitStack() as locks:
        repairing = _Repairing(mended, like, held, told)
        found = Repair(mended.name, like.name, held.follower.seqno, is_done=False)
        tables = list(repairing.tables(found))
        if dry_run:
            for table in tables:
                repairing.count(table, found)
            return found
        locks.enter_context(regions_locked(mended, timeout_s))  # the Update Process, held by the barrier, has none
        repairing.write_down(tables, found, by)
        if found.rows or any(table.counter is not None for table in tables):
            hit("repair.written_down")
            repairing.mend([table for table in tables if table.name not in found.left])
            repairing.done(found)
        return found


class _Repairing:
    """One repair, while both instances are held."""

    def __init__(self, mended: Instance, like: Instance, held: HeldTogether, told: Told | None) -> None:
        self._mended = mended
        self._like = like
        self._held = held
        self._told = told
        self._renewed_s = time.monotonic()
        self._path = mended.log_directory / FILE_NAME

    def tables(self, found: Repair) -> Iterator[_RepairedTable]:
        """Those that can be mended; why the others cannot goes into `found`."""
        ours, theirs = (snapshot.regions.connections for snapshot in (self._held.follower, self._held.leader))
        known = self._held.follower.catalogue.in_force()
        for region in dict.fromkeys((*ours, *theirs)):
            if region not in ours or region not in theirs:
                found.left[region] = "the region is on one side only"
                continue
            here, there = ours[region], theirs[region]
            for name in sorted({*user_tables(here), *user_tables(there)}):
                definition = known.get((region, "main", name))
                why = digests.why_not_mendable(here, there, name)
                if not why and definition is None:
                    why = "it is not replicated"
                if definition is not None and not all(
                    one.content.holds(definition.partition) for one in (self._mended, self._like)
                ):
                    why = "its partition is not in both"
                elif definition is not None and not all(
                    one.content.holds_all_of(definition) for one in (self._mended, self._like)
                ):
                    why = "some of its rows are in one of them only"
                if why or definition is None:
                    found.left[f"{region}.{name}"] = why
                    continue
                counter = None
                if is_autoincrement(here, name) and name not in counted_apart(here):
                    counter = (sequence_value(here, name), sequence_value(there, name))
                yield _RepairedTable(region, definition, None if counter and counter[0] == counter[1] else counter)

    def _differing(self, table: _RepairedTable) -> Iterator[tuple[Any, Any]]:
        here = self._held.follower.regions.connections[table.region]
        there = self._held.leader.regions.connections[table.region]
        return digests.differing_rows(here, there, table.definition.table, progress=self._renew)

    def _renew(self, table: str, rows: int) -> None:
        if self._told is not None:
            self._told(CompareProgress("repairing", f"{table}: {rows} rows; the Update Process stands still"))
        if time.monotonic() - self._renewed_s >= RENEWED_S:
            self._held.barrier.raise_to(self._held.follower.seqno)
            self._renewed_s = time.monotonic()

    def count(
        self, table: _RepairedTable, found: Repair, each: Callable[[Any, Any], None] = lambda _here, _there: None
    ) -> None:
        """Note in `found` what of a table differs; `each` is given both images of every row."""
        counted = TableRepair(table.name)
        try:
            for here, there in self._differing(table):
                counted.changed += here is not None and there is not None
                counted.added += here is None
                counted.removed += there is None
                each(here, there)
        except UnicodeDecodeError:
            found.left[table.name] = "it holds text that is not UTF-8"
            return
        if counted.rows:
            found.tables.append(counted)

    def write_down(self, tables: Iterable[_RepairedTable], found: Repair, by: str) -> None:
        """Both images of every row, on the disk. DiskFullError, PermissionRefusedError or JournalIOError."""
        flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC | os.O_NOFOLLOW
        try:
            with open(os.open(self._path, flags, 0o600), "a", encoding="utf-8", errors="surrogatepass") as file:
                os.fchmod(file.fileno(), 0o600)

                def tell(**facts: object) -> None:
                    file.write(json.dumps(facts, ensure_ascii=False) + "\n")

                at = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())
                tell(repair=found.seqno, at=at, by=by, mended=found.mended, like=found.like)
                for table in tables:
                    region, name, columns = table.region, table.definition.table, _columns(table.definition)

                    def each(
                        here: Any, there: Any, region: str = region, name: str = name, columns: Any = columns
                    ) -> None:
                        tell(region=region, table=name, columns=columns, here=_image(here), there=_image(there))

                    self.count(table, found, each)
                    if table.counter is not None:
                        tell(region=region, table=name, counter_here=table.counter[0], counter_there=table.counter[1])
                file.flush()
                os.fsync(file.fileno())
        except OSError as error:
            raise io_error(error, "the file of repaired rows cannot be written", str(self._path)) from error
        found.file = str(self._path)

    def mend(self, tables: list[_RepairedTable]) -> None:
        """Change the rows, region by region."""
        for entry in sorted(self._mended.regions, key=lambda one: one.region_id):
            ours = [table for table in tables if table.region == entry.name]
            if ours:
                self._mend_region(entry, ours)
                hit("repair.region_mended")

    def _mend_region(self, entry: RegionEntry, tables: list[_RepairedTable]) -> None:
        definitions = {table.definition.table_id: table.definition for table in tables}
        seqno = self._held.follower.seqno
        with closing(MendedFile(entry.path, region=entry.uuid)) as region, KIND.naming(region.where), region.synced():
            rows = region.rows(definitions, entry.name)
            rows.seqno = seqno
            with region.transaction():
                if self._held.door.words[word.LAST_SEQNO] != seqno:
                    raise TryAgainError(
                        f"{self._mended.name} has gone on to transaction {self._held.door.words[word.LAST_SEQNO]}",
                        where=str(entry.path),
                        do="Run the same command again",
                    )
                rows.begin()
                try:
                    # All that must go goes first: a row may need a unique value that another one gives up.
                    for is_gone in (True, False):
                        for table in tables:
                            self._mend_table(table, rows.apply_all, is_gone=is_gone)
                except ConflictError as error:
                    do = "Another client writes here: end it, then run the same command again"
                    raise ConflictError(error.what, where=str(entry.path), do=do, **error.facts) from error
                for table in tables:
                    name = table.definition.table
                    if is_autoincrement(region.connection, name):
                        there = self._held.leader.regions.connections[entry.name]
                        set_sequence(region.connection, name, sequence_value(there, name))
                write_state(region.connection, REPAIRED_AT, seqno)

    def _mend_table(self, table: _RepairedTable, apply_all: Callable[[list[Any]], int], *, is_gone: bool) -> None:
        table_id = table.definition.table_id
        for here, there in self._differing(table):
            if is_gone and here is not None:
                apply_all(change_of(Op.DELETE, table_id, tuple(here), None))
            elif not is_gone and there is not None:
                apply_all(change_of(Op.INSERT, table_id, None, tuple(there)))

    def done(self, found: Repair) -> None:
        """Note it where a status looks, and in the file. Raises as `note_compared`."""
        found.is_done = True
        note_repaired(self._mended, Repaired(found.seqno, time.time_ns(), found.rows, self._like.name))
        try:
            with open(self._path, "a", encoding="utf-8") as file:
                file.write(json.dumps({"repaired": found.seqno, "rows": found.rows}) + "\n")
        except OSError as error:
            raise io_error(error, "the file of repaired rows cannot be written", str(self._path)) from error


def _columns(definition: TableDefinition) -> list[str]:
    return ["rowid"] * definition.rowid + [column.name for column in definition.columns]


def _image(row: Any) -> list[object] | None:
    return None if row is None else list(map(plain, row))
