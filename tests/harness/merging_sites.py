"""Suppliers that are a region in memory each, with what one keeps of rows' stamps; the test carries their transactions.

Guarantees: what is taken is a prefix of a journal, each transaction once; what nobody has written beside is applied as
it is, all else is merged, as an Update Process does it. Quick: a world of forty transactions takes some hundredths of
a second.
Leaves to others: frames, journals, the real processes (harness/suppliers.py).
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain, combinations
from typing import Any

import apsw

from replicate.door.own_removal import REMOVES
from replicate.model.merged_row import Stamp, same_value
from replicate.model.seen import merged_told, stable
from replicate.model.transaction import Op, changed_of, mask_of
from replicate.region.protocol import Absorbed
from replicate.region.sqlite.apply.merge import RowMerger
from replicate.region.sqlite.apply.rows import RowApplier
from replicate.region.sqlite.bookkeeping import make_tables, write_writer
from replicate.region.sqlite.mergeable import column_groups
from replicate.region.sqlite.row_stamps import make_stamp_tables
from replicate.region.sqlite.schema import read_definition, record_definitions

Values = tuple[Any, ...]


@dataclass
class Sent:
    """A transaction as its writer made it."""

    stamp: Stamp
    told: dict[int, int]
    changes: list[Any]
    pieces: tuple[list[Any], ...] = ()
    """Of a large one: what its parts hold."""


@dataclass
class Backup:
    """Of a site: its region, and what else it had."""

    region: bytes
    csn: int
    journal: list[Sent]
    here: dict[int, int]
    told: dict[int, dict[int, int]]
    waiting: list[Absorbed]


class Site:
    """A supplier with the table t, whose first column is its key, and its journal in the order of arrival. `sums`:
    columns of t that are sums. `skew`: of its clock. `removed`: rows that gave way here; `lost`: those that are kept
    as such. `lacks`: the sites that it has not heard out since it was restored; it writes nothing meanwhile. `origins`:
    its incarnations."""

    def __init__(self, origin: int, schema: Sequence[str], skew: int, sums: Sequence[str] = ()) -> None:
        self.origin, self._skew, self._csn = origin, skew, 0
        self.origins, self.lacks = [origin], set[int]()
        self.connection = apsw.Connection(":memory:")
        self.connection.config(apsw.SQLITE_DBCONFIG_ENABLE_TRIGGER, 0)
        make_tables(self.connection)
        make_stamp_tables(self.connection, begins_at=1)
        for statement in schema:
            self.connection.execute(statement)
        record_definitions(self.connection, region="main")
        write_writer(self.connection, 1, ["written", b"2" * 16], 1)
        told = ["shared", b"1" * 16, 1, False, [name for column in sums for name in ("t", column)]]
        write_writer(self.connection, 1, told, 1)
        self.sums = tuple(sums)
        self.definition = read_definition(self.connection, "t", region="main")
        self._use_region()
        self.journal: list[Sent] = []
        self.here: dict[int, int] = {}
        self.told: dict[int, dict[int, int]] = {}
        self.removed: list[Values] = []
        self.lost: list[Values] = []
        self._waiting: list[Absorbed] = []

    def _use_region(self) -> None:
        self._rows = RowApplier(self.connection, {self.definition.table_id: self.definition}, region="main")
        self.merger = RowMerger(self.connection, self._rows)
        self.merger.begin()

    @property
    def number(self) -> int:
        """Of the site, whatever its incarnation."""
        return self.origins[0]

    def backup(self) -> Backup:
        """As it is."""
        told = {origin: dict(of) for origin, of in self.told.items()}
        region = self.connection.serialize("main")
        return Backup(region, self._csn, list(self.journal), dict(self.here), told, list(self._waiting))

    def restore(self, backup: Backup, others: set[int]) -> None:
        """It is what it was then, in an incarnation of its own."""
        self.connection.deserialize("main", backup.region)
        self._use_region()
        self._csn, self.journal, self.here = backup.csn, list(backup.journal), dict(backup.here)
        self.told, self._waiting = {origin: dict(of) for origin, of in backup.told.items()}, list(backup.waiting)
        self.origin = self.number + 100 * len(self.origins)
        self.origins.append(self.origin)
        self.lacks = others

    def settle(self) -> None:
        """It may write again: rows that wait are removed by its word first."""
        if not self.merger.has_waiting:
            return
        self.merger.absorb(self._waiting, lambda _table: True)
        self._waiting.clear()
        removing = self._removing()
        removed, _ = self.merger.give_way(self.merger.waiting, removing)
        self.lost += [one.lost.values for one in self.merger.lost if one.lost.what == "unique"]
        self._csn = removing.csn
        self._append(Sent(removing, self._seen(), [*REMOVES, *removed]))
        self.removed += [tuple(values) for values in removed[3::4]]
        self.merger.finish(len(self.journal))
        self.merger.begin()

    def table(self) -> dict[str, Values]:
        """Its rows by their keys, but for generated columns."""
        names = ", ".join(column.name for column in self.definition.columns)
        return {row[0]: row for row in self.connection.execute(f"SELECT {names} FROM t")}

    def _append(self, sent: Sent) -> None:
        self.journal.append(sent)
        self.here[sent.stamp.origin] = sent.stamp.origin_seqno
        self.told[sent.stamp.origin] = merged_told(self.told.get(sent.stamp.origin, {}), sent.told)

    def _seen(self) -> dict[int, int]:
        return {origin: last for origin, last in self.here.items() if origin != self.origin}

    def write(self, statement: str, now: int) -> None:
        """A transaction of that statement, if it changes anything."""
        self._written([piece for piece in [self._change(statement)] if piece], now, is_large=False)

    def write_large(self, statements: Sequence[str], now: int) -> None:
        """A large transaction of those statements, each of which is a part of it."""
        self._written([piece for piece in map(self._change, statements) if piece], now, is_large=True)

    def _change(self, statement: str) -> list[Any]:
        before = self.table()
        self.connection.execute(statement)
        after = self.table()
        gone = [[int(Op.DELETE), self.definition.table_id, 0, list(before[key])] for key in before.keys() - after]
        put = [_put(self.definition.table_id, before.get(key), row) for key, row in after.items()]
        return [element for change in (*gone, *filter(None, put)) for element in change]

    def _written(self, pieces: list[list[Any]], now: int, *, is_large: bool) -> None:
        if not pieces:
            return
        changes = list(chain.from_iterable(pieces))
        self._csn = max(self._csn + 1, now + self._skew)
        stamp = Stamp(self._csn, self.origin, self.here.get(self.origin, 0) + 1)
        self._append(Sent(stamp, self._seen(), changes, tuple(pieces) if is_large else ()))
        self._waiting += [Absorbed(piece, piece, stamp, False) for piece in pieces]

    def take(
        self, sent: Sent, members: Mapping[bytes, Sequence[int]], *, forgets: bool = False, is_killed: bool = False
    ) -> None:
        """A transaction of another site comes. `members`: each site's origins. `forgets`: stamps that nobody needs go.
        `is_killed`: after its append, so that the rows are made by redo, and stamps by what the journal says."""
        stamp = sent.stamp
        self._csn = max(self._csn, stamp.csn)
        told = merged_told(self.told.get(stamp.origin, {}), sent.told)
        removes = Op.RESOLVED in sent.changes[0::4]
        looks = removes or self.merger.has_waiting
        if not looks and all(told.get(one, 0) >= last for one, last in self.here.items() if one != stamp.origin):
            self._rows.apply_all(sent.changes)  # as it is: nobody has written beside it
            self._waiting += [Absorbed(piece, piece, stamp, False) for piece in sent.pieces or (sent.changes,)]
            self._append(sent)
            return
        waiting = list(self._waiting)
        kept = self.connection.execute("SELECT * FROM _replicate_version").fetchall()
        self.merger.absorb(self._waiting, lambda _table: True)
        self._waiting.clear()
        if sent.pieces:
            waiting += self._take_large(sent, told)
            self._append(sent)
        else:
            removing, before = self._removing(), self.table()
            done = self.merger.take(sent.changes, stamp, told, lambda _table: True, None if self.lacks else removing)
            assert done is None or _made_of(before, done) == self.table(), "redo would make something else"
            waiting.append(Absorbed(sent.changes, sent.changes if done is None else done, stamp, False))
            self._append(sent)
            if removed := list(self.merger.removed):
                self._csn = removing.csn
                self._append(Sent(removing, self._seen(), [*REMOVES, *removed]))
                self.removed += [tuple(values) for values in removed[3::4]]
                waiting.append(Absorbed(removed, [], removing, False))
        self.lost += [one.lost.values for one in self.merger.lost if one.lost.what == "unique"]
        if is_killed:
            self._waiting = waiting
            self.connection.execute("DELETE FROM _replicate_version")
            self.connection.executemany("INSERT INTO _replicate_version VALUES (?, ?, ?, ?, ?)", kept)
        else:
            self.merger.finish(len(self.journal))
        if forgets and not is_killed and not self.lacks and not self.merger.has_waiting:
            self.merger.purge(stable(members, self.told, self.here, bytes([self.number])))
        self.merger.begin()

    def _take_large(self, sent: Sent, told: Mapping[int, int]) -> list[Absorbed]:
        """Piece by piece; again, where rows had to give way first. What the journal says of it then."""
        gave_way: list[Absorbed] = []
        while True:
            self.merger.mark()
            removing, removed, taken = self._removing(), list[Any](), list[Absorbed]()
            for piece in sent.pieces:
                self.merger.write_stamps()
                by = None if self.lacks else removing
                done = self.merger.take(piece, sent.stamp, told, lambda _table: True, by)
                removed += self.merger.removed
                taken.append(Absorbed(piece, piece if done is None else done, sent.stamp, False))
            if not removed:
                self.connection.execute("RELEASE large")
                return [*gave_way, *taken]
            self.merger.take_back()
            removed, done = self.merger.give_way(removed, removing)
            self.lost += [one.lost.values for one in self.merger.lost]
            self._csn = removing.csn
            self._append(Sent(removing, self._seen(), [*REMOVES, *removed]))
            self.removed += [tuple(values) for values in removed[3::4]]
            gave_way.append(Absorbed(removed, done, removing, False))

    def _removing(self) -> Stamp:
        return Stamp(self._csn + 1, self.origin, self.here.get(self.origin, 0) + 1)


def _put(table_id: int, before: Values | None, after: Values) -> list[Any]:
    if before is None:
        return [int(Op.INSERT), table_id, 0, list(after)]
    changed = [at for at in range(len(after)) if not same_value(before[at], after[at])]
    return (
        [int(Op.UPDATE), table_id, mask_of(changed, len(after)), [*(after[at] for at in changed), *before]]
        if changed
        else []
    )


def world(
    rng: random.Random,
    sites: Sequence[Site],
    statement: Callable[[random.Random], str],
    *,
    steps: int = 40,
    large: random.Random | None = None,
    taken: Callable[[Site, list[Values]], None] = lambda _site, _removed: None,
    restored: random.Random | None = None,
    links: Sequence[tuple[int, int]] | None = None,
    forgets: bool | None = None,
) -> None:
    """The sites write and send at random, and come to rest. `taken`: is told which rows gave way, after each
    transaction that a site has taken. `large`: draws which transactions are large; `restored`: which site is restored
    from a backup, and when. `links`: who is linked with whom, by their places; None: each with each. `forgets`: whether
    stamps that nobody needs go; None: in every second world."""
    pairs = list(combinations(range(len(sites)), 2)) if links is None else links
    ways = sorted(chain(pairs, (pair[::-1] for pair in pairs)))
    drawn = rng.random() < 0.5
    forgets = drawn if forgets is None else forgets
    restores = _restores(restored, sites, ways, steps) if restored is not None else lambda _now: None
    for now in range(1, steps):
        restores(now)
        if rng.random() < 0.6:
            site = rng.choice(sites)
            if site.lacks:
                continue
            if large is not None and large.random() < 0.4:
                site.write_large([statement(large) for _ in range(large.randint(1, 5))], now)
            else:
                site.write(statement(rng), now)
        else:
            killed = rng.random() < 0.2
            start, end = rng.choice(ways)
            _carry(sites[start], sites[end], sites, rng.randint(1, 4), taken, forgets=forgets, is_killed=killed)
    while len({tuple(sorted(site.here.items())) for site in sites}) > 1 or any(site.lacks for site in sites):
        for start, end in ways:
            _carry(sites[start], sites[end], sites, 10_000, taken, forgets=forgets)


def _restores(
    rng: random.Random, sites: Sequence[Site], ways: Sequence[tuple[int, int]], steps: int
) -> Callable[[int], None]:
    """One site is restored, once or twice."""
    site, made = rng.choice(sites), rng.randint(1, steps // 2)
    back = {rng.randint(made + 1, steps - 1) for _ in range(rng.randint(1, 2))}
    kept: list[Backup] = []

    def at(now: int) -> None:
        if now == made:
            kept.append(site.backup())
        elif now in back:
            site.restore(kept[0], {sites[start].number for start, end in ways if sites[end] is site})

    return at


def _carry(
    start: Site,
    end: Site,
    sites: Sequence[Site],
    most: int,
    taken: Callable[[Site, list[Values]], None],
    *,
    forgets: bool,
    is_killed: bool = False,
) -> None:
    members = {bytes([site.number]): site.origins for site in sites}
    lacking = [sent for sent in start.journal if sent.stamp.origin_seqno > end.here.get(sent.stamp.origin, 0)]
    for sent in lacking[:most]:
        before = len(end.removed)
        end.take(sent, members, forgets=forgets, is_killed=is_killed)
        taken(end, end.removed[before:])
    if len(lacking) <= most and not start.lacks:
        if end.lacks == {start.number}:
            end.settle()
        end.lacks.discard(start.number)


def folded(site: Site) -> dict[str, Values]:
    """What all transactions come to, one after the other by their stamps, no matter who had seen what."""
    groups = column_groups(site.connection, site.definition, by_row=False, sums=site.sums)
    values, there = dict[str, list[Any]](), set[str]()
    for sent in sorted(site.journal, key=lambda one: one.stamp):
        for op, argument, images in _each(sent.changes):
            if op == Op.DELETE:
                there.discard(images[0])
                row = values.setdefault(images[0], list(images))
                values[images[0]] = [0 if group < 0 else value for group, value in zip(groups, row, strict=True)]
                continue
            changed = changed_of(argument) if op == Op.UPDATE else tuple(range(len(images)))
            before = images[len(changed) :] if op == Op.UPDATE else [0] * len(images)
            after = list(before)
            for ordinal, value in zip(changed, images, strict=False):
                after[ordinal] = value
            nothing = [0 if group < 0 else value for group, value in zip(groups, after, strict=True)]
            row, written = values.setdefault(after[0], nothing), {groups[ordinal] for ordinal in changed}
            for at, group in enumerate(groups):
                if group not in written:
                    continue
                if group >= 0 or type(after[at]) is not int or type(before[at]) is not int:
                    row[at] = after[at]
                elif type(row[at]) is int:
                    row[at] = (row[at] + after[at] - before[at] + 2**63) % 2**64 - 2**63
            there.add(after[0])
    return {key: tuple(values[key]) for key in there}


def _made_of(table: dict[str, Values], done: list[Any]) -> dict[str, Values]:
    """The table of flat changes, each of which fits it."""
    rows = dict(table)
    for op, argument, images in _each(done):
        if op == Op.INSERT:
            assert images[0] not in rows
            rows[images[0]] = tuple(images)
            continue
        changed = changed_of(argument) if op == Op.UPDATE else ()
        before = tuple(images[len(changed) :])
        assert rows.pop(before[0]) == before
        if op == Op.UPDATE:
            after = list(before)
            for ordinal, value in zip(changed, images, strict=False):
                after[ordinal] = value
            rows[after[0]] = tuple(after)
    return rows


def _each(changes: list[Any]) -> Iterator[tuple[int, Any, list[Any]]]:
    places = (at for at in range(0, len(changes), 4) if changes[at] != Op.RESOLVED)
    return ((changes[at], changes[at + 2], changes[at + 3]) for at in places)
