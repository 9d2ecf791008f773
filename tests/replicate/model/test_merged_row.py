"""Rows that several suppliers write: the registers alone, and whole worlds of sites that merge by them."""

from __future__ import annotations

import itertools
import random
from dataclasses import dataclass, field
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from replicate.errors import RegionDamagedError
from replicate.model.merged_row import (
    NEVER,
    Groups,
    Lost,
    Row,
    RowChanged,
    Stamp,
    groups_of,
    lost,
    merged,
    pack_row,
    unpack_row,
)
from replicate.model.seen import merged_told, stable, unseen_of
from replicate.model.transaction import Op

GROUPS: Groups = (0, 1, 2)
ALL = frozenset(GROUPS)


def insert(*values: Any) -> RowChanged:
    return RowChanged(int(Op.INSERT), values, ALL)


def update(values: tuple[Any, ...], *groups: int) -> RowChanged:
    return RowChanged(int(Op.UPDATE), values, frozenset(groups))


def delete(*values: Any) -> RowChanged:
    return RowChanged(int(Op.DELETE), values, frozenset())


BASE = Row((1, "a", "b"), True)
EARLY, LATE = Stamp(10, 1, 1), Stamp(20, 2, 1)


def test_two_columns_of_one_row_keep_both_values() -> None:
    row = merged(merged(BASE, update((1, "x", "b"), 1), LATE, GROUPS), update((1, "a", "y"), 2), EARLY, GROUPS)
    assert row.values == (1, "x", "y")
    assert row.is_there


def test_the_later_of_two_values_of_one_column_stays() -> None:
    changes = [(update((1, "early", "b"), 1), EARLY), (update((1, "late", "b"), 1), LATE)]
    for order in itertools.permutations(changes):
        row = BASE
        for change, stamp in order:
            row = merged(row, change, stamp, GROUPS)
        assert row.values == (1, "late", "b")


def test_of_one_time_the_greater_origin_wins_on_every_site() -> None:
    one, other = Stamp(10, 1, 7), Stamp(10, 2, 3)
    for order in itertools.permutations([(update((1, "x", "b"), 1), one), (update((1, "y", "b"), 1), other)]):
        row = BASE
        for change, stamp in order:
            row = merged(row, change, stamp, GROUPS)
        assert row.values == (1, "y", "b")


def test_an_update_later_than_a_delete_brings_the_row_back_with_every_value() -> None:
    for order in itertools.permutations([(delete(*BASE.values or ()), EARLY), (update((1, "a", "y"), 2), LATE)]):
        row = BASE
        for change, stamp in order:
            row = merged(row, change, stamp, GROUPS)
        assert (row.is_there, row.values) == (True, (1, "a", "y"))


def test_a_delete_later_than_an_update_takes_the_row_and_keeps_its_values_aside() -> None:
    for order in itertools.permutations([(delete(*BASE.values or ()), LATE), (update((1, "a", "y"), 2), EARLY)]):
        row = BASE
        for change, stamp in order:
            row = merged(row, change, stamp, GROUPS)
        assert (row.is_there, row.values) == (False, (1, "a", "y"))


def test_of_two_inserts_of_one_key_the_later_one_is_the_row() -> None:
    for order in itertools.permutations([(insert(1, "a", "b"), EARLY), (insert(1, "c", "d"), LATE)]):
        row = Row()
        for change, stamp in order:
            row = merged(row, change, stamp, GROUPS)
        assert (row.is_there, row.values) == (True, (1, "c", "d"))


def test_within_a_transaction_the_last_change_counts() -> None:
    row = merged(merged(BASE, delete(*BASE.values or ()), EARLY, GROUPS), insert(1, "x", "y"), EARLY, GROUPS)
    assert (row.is_there, row.values) == (True, (1, "x", "y"))


def _kinds() -> st.SearchStrategy[tuple[RowChanged, Stamp]]:
    value = st.sampled_from("abc")
    stamp = st.tuples(st.integers(1, 6), st.integers(1, 3)).map(lambda pair: Stamp(*pair, pair[0]))
    change = st.one_of(
        st.builds(lambda a, b: insert(1, a, b), value, value),
        st.builds(lambda a, b, which: update((1, a, b), *which), value, value, st.sets(st.sampled_from([1, 2]))),
        st.builds(lambda a, b: delete(1, a, b), value, value),
    )
    return st.tuples(change, stamp)


@given(st.lists(_kinds(), min_size=1, max_size=5, unique_by=lambda one: one[1]), st.randoms(use_true_random=False))
def test_any_order_and_any_repetition_give_one_row(
    changes: list[tuple[RowChanged, Stamp]], source: random.Random
) -> None:
    def told(row: Row) -> object:
        return (row.is_there, row.life, dict(row.stamps), row.values)

    row = BASE
    for change, stamp in changes:
        row = merged(row, change, stamp, GROUPS)
    again = changes + source.sample(changes, source.randint(0, len(changes)))
    source.shuffle(again)
    other = BASE
    for change, stamp in again:
        other = merged(other, change, stamp, GROUPS)
    assert told(other) == told(row)
    unpacked = unpack_row(pack_row(row, row.writer))
    assert unpacked.values == (None if row.is_there else row.values)
    assert told(Row(row.values, unpacked.is_there, unpacked.life, unpacked.stamps)) == told(row)


def test_columns_that_one_constraint_names_are_one_group() -> None:
    assert groups_of(4, []) == (0, 1, 2, 3)
    assert groups_of(4, [(1, 3)]) == (0, 1, 2, 1)
    assert groups_of(5, [(1, 3), (3, 4)]) == (0, 1, 2, 1, 1)
    assert groups_of(3, [], whole=True) == (0, 0, 0)


@pytest.mark.parametrize("packed", [b"", b"\xc1", b"\x93\x01\x02\x03", pack_row(Row((1,), False), None)[:-1]])
def test_stamps_that_cannot_be_read_are_named(packed: bytes) -> None:
    with pytest.raises(RegionDamagedError, match="stamps"):
        unpack_row(packed)


# What is lost.


def test_what_is_written_over_is_told_once_with_its_writer() -> None:
    before = Row((1, "x", "b"), True, LATE, {1: LATE})
    told = lost(before, update((1, "y", "b"), 1), EARLY, GROUPS, frozenset({LATE}))
    assert told == [Lost("update", LATE, EARLY, (1, "y", "b"), (1,))]
    later = Stamp(30, 1, 2)
    told = lost(before, update((1, "y", "b"), 1), later, GROUPS, frozenset({LATE}))
    assert told == [Lost("update", later, LATE, (1, "x", "b"), (1,))]


def test_two_columns_of_one_row_lose_nothing() -> None:
    before = Row((1, "x", "b"), True, LATE, {1: LATE})
    assert lost(before, update((1, "a", "y"), 2), EARLY, GROUPS, frozenset({LATE})) == []


def test_equal_values_lose_nothing() -> None:
    before = Row((1, "x", "b"), True, LATE, {1: LATE})
    assert lost(before, update((1, "x", "b"), 1), EARLY, GROUPS, frozenset({LATE})) == []


def test_an_update_that_meets_a_delete_is_told_or_the_delete_is() -> None:
    gone = Row((1, "a", "b"), False, LATE, {})
    assert lost(gone, update((1, "y", "b"), 1), EARLY, GROUPS, frozenset({LATE})) == [
        Lost("update", LATE, EARLY, (1, "y", "b"), (1,))
    ]
    later = Stamp(30, 1, 2)
    assert lost(gone, update((1, "y", "b"), 1), later, GROUPS, frozenset({LATE})) == [
        Lost("delete", later, LATE, (1, "a", "b"), ())
    ]
    changed = Row((1, "x", "b"), True, LATE, {1: LATE})
    assert lost(changed, delete(1, "a", "b"), EARLY, GROUPS, frozenset({LATE})) == [
        Lost("delete", LATE, EARLY, (1, "a", "b"), ())
    ]
    assert lost(changed, delete(1, "a", "b"), later, GROUPS, frozenset({LATE})) == [
        Lost("update", later, LATE, (1, "x", "b"), (1,))
    ]


# Worlds.


@dataclass
class Frame:
    origin: int
    number: int
    csn: int
    told: dict[int, int]
    changes: list[tuple[int, RowChanged, tuple[Any, ...] | None]]
    """Key, change, and the image that its writer saw before it."""

    @property
    def stamp(self) -> Stamp:
        return Stamp(self.csn, self.origin, self.number)


@dataclass
class Site:
    """A supplier: its table, its journal in the order of arrival, and what it keeps of rows' stamps."""

    origin: int
    skew: int
    forgets: bool
    table: dict[int, tuple[Any, ...]] = field(default_factory=dict)
    journal: list[Frame] = field(default_factory=list)
    here: dict[int, int] = field(default_factory=dict)
    rows: dict[int, Row] = field(default_factory=dict)
    told: dict[int, dict[int, int]] = field(default_factory=dict)
    csn: int = 0
    absorbed: int = 0
    losses: list[Lost] = field(default_factory=list)
    strict: int = 0

    def write(self, source: random.Random, now: int) -> None:
        self.csn = max(self.csn + 1, now + self.skew)
        number = self.here.get(self.origin, 0) + 1
        changes: list[tuple[int, RowChanged, tuple[Any, ...] | None]] = []
        for _ in range(source.randint(1, 3)):
            key = source.randint(1, 3)
            before = self.table.get(key)
            value = source.choice("abcdefgh") + str(now)
            if before is None:
                change = insert(key, value, value)
            elif source.random() < 0.25:
                change = delete(*before)
            else:
                group = source.choice([1, 2])
                change = update(tuple(value if at == group else old for at, old in enumerate(before)), group)
            self.make(key, change)
            changes.append((key, change, before))
        seen = {origin: last for origin, last in self.here.items() if origin != self.origin}
        self.journal.append(Frame(self.origin, number, self.csn, seen, changes))
        self.here[self.origin] = number
        self.told[self.origin] = seen

    def make(self, key: int, change: RowChanged) -> None:
        if change.op == Op.DELETE:
            del self.table[key]
        else:
            self.table[key] = change.values

    def absorb(self) -> None:
        """As the Update Process does before it merges: the stamps of all that was not looked at."""
        for frame in self.journal[self.absorbed :]:
            for key, change, _ in frame.changes:
                known = self.rows.get(key) or Row(self.table.get(key), key in self.table)
                self.rows[key] = merged(known, change, frame.stamp, GROUPS)
        self.absorbed = len(self.journal)
        for key, row in self.rows.items():  # the values of rows that are there are in the table
            if row.is_there:
                self.rows[key] = Row(self.table[key], True, row.life, row.stamps)

    def take(self, frame: Frame, members: int) -> None:
        if self.here.get(frame.origin, 0) >= frame.number:
            return
        assert self.here.get(frame.origin, 0) + 1 == frame.number
        self.csn = max(self.csn, frame.csn)
        self.told[frame.origin] = merged_told(self.told.get(frame.origin, {}), frame.told)
        self.absorb()
        told = self.told[frame.origin]
        for key, change, expected in frame.changes:
            row = self.rows.get(key)
            unseen = frozenset[Stamp]() if row is None else unseen_of(row.all_stamps(), told, frame.origin)
            known = row or Row(self.table.get(key), key in self.table)
            if not unseen:
                assert self.table.get(key) == expected, "nobody has written beside it"
                self.strict += 1
            self.losses += lost(known, change, frame.stamp, GROUPS, unseen)
            row = self.rows[key] = merged(known, change, frame.stamp, GROUPS)
            if row.is_there:
                assert row.values is not None
                self.table[key] = row.values
            else:
                self.table.pop(key, None)
        self.journal.append(frame)
        self.absorbed += 1
        self.here[frame.origin] = frame.number
        if self.forgets:
            everybody = {bytes([origin]): [origin] for origin in range(1, members + 1)}
            low = stable(everybody, self.told, self.here, bytes([self.origin]))
            self.rows = {
                key: row
                for key, row in self.rows.items()
                if any(one.origin_seqno > low.get(one.origin, 0) for one in row.all_stamps())
            }


def links(topology: str, count: int) -> list[tuple[int, int]]:
    if topology == "mesh":
        return [(a, b) for a in range(count) for b in range(count) if a != b]
    if topology == "star":
        pairs = [(0, b) for b in range(1, count)]
    elif topology == "ring":
        pairs = [(a, (a + 1) % count) for a in range(count)]
    else:
        pairs = [(a, a + 1) for a in range(count - 1)]
    return list(dict.fromkeys([*pairs, *((b, a) for a, b in pairs)]))


def world(seed: int, *, forgets: bool = True) -> list[Site]:
    source = random.Random(seed)
    count = source.randint(2, 5)
    sites = [Site(at + 1, source.randint(-40, 40), forgets) for at in range(count)]
    ways = links(source.choice(["mesh", "ring", "star", "line"]), count)
    for now in range(1, source.randint(20, 120)):
        if source.random() < 0.5:
            source.choice(sites).write(source, now)
        else:
            _send(*source.choice(ways), sites, source.randint(1, 5))
    for _ in range(4 * count):
        for way in ways:
            _send(*way, sites, 10_000)
        if len({tuple(sorted(site.here.items())) for site in sites}) == 1:
            return sites
    raise AssertionError("the sites never came to rest")


def _send(start: int, end: int, sites: list[Site], most: int) -> None:
    consumer = sites[end]
    lacking = [one for one in sites[start].journal if one.number > consumer.here.get(one.origin, 0)]
    for frame in lacking[:most]:
        consumer.take(frame, len(sites))


def folded(sites: list[Site]) -> dict[int, tuple[Any, ...]]:
    """What all transactions come to, one after the other by their stamps, with no thought of who had seen what."""
    values: dict[int, list[Any]] = {}
    there: set[int] = set()
    for frame in sorted(sites[0].journal, key=lambda one: one.stamp):
        for key, change, _ in frame.changes:
            if change.op == Op.DELETE:
                there.discard(key)
                continue
            row = values.setdefault(key, list(change.values))
            for ordinal, group in enumerate(GROUPS):
                if group in change.groups:
                    row[ordinal] = change.values[ordinal]
            there.add(key)
    return {key: tuple(values[key]) for key in there}


@pytest.mark.slow
@pytest.mark.parametrize("first", range(0, 400, 50))
def test_every_world_comes_to_what_its_transactions_fold_to(first: int) -> None:
    strict = losses = 0
    for seed in range(first, first + 50):
        sites = world(seed)
        wanted = folded(sites)
        for site in sites:
            assert site.table == wanted, (seed, site.origin)
            strict += site.strict
            losses += len(site.losses)
    assert strict
    assert losses


@pytest.mark.slow
@pytest.mark.parametrize("first", range(0, 100, 50))
def test_what_is_forgotten_changes_nothing(first: int) -> None:
    for seed in range(first, first + 50):
        assert [site.table for site in world(seed)] == [site.table for site in world(seed, forgets=False)]


def test_a_site_forgets_once_all_have_told() -> None:
    kept = [len(site.rows) for seed in range(60) for site in world(seed)]
    assert min(kept) < max(kept)


def test_every_value_that_is_not_in_a_row_and_nobody_saw_is_told_somewhere() -> None:
    """Of one row that two sites write at once, on each of them."""
    for early, late in ((1, 2), (2, 1)):
        one, other = Site(1, 0, True), Site(2, 0, True)
        for site in (one, other):
            site.table = {1: (1, "a", "b")}
        first = Frame(1, 1, early, {}, [(1, update((1, "x", "b"), 1), (1, "a", "b"))])
        second = Frame(2, 1, late, {}, [(1, update((1, "y", "b"), 1), (1, "a", "b"))])
        for site, own, foreign in ((one, first, second), (other, second, first)):
            site.make(1, own.changes[0][1])
            site.journal.append(own)
            site.here[site.origin] = 1
            site.take(foreign, 2)
            winner = max(own.stamp, foreign.stamp)
            loser = "x" if winner == second.stamp else "y"
            assert [(found.winner, found.values[1]) for found in site.losses] == [(winner, loser)]


@pytest.mark.parametrize(
    ("time_of_c", "kept"),
    [
        (5, (["of C"], ["of C"], ["of C"])),
        (15, (["of C"], ["of A", "of C"], ["of A", "of C"])),
        (25, (["of B"], ["of A", "of B"], ["of A", "of B"])),
    ],
    ids=["before both", "between", "after both"],
)
def test_of_a_third_writer_each_site_keeps_what_nobody_had_seen_and_nothing_twice(
    time_of_c: int, kept: tuple[list[str], ...]
) -> None:
    """B has written over A's value, which it had seen; C knows of neither, and comes at any place. Where C meets A's
    value before B has come, that is kept, too: one site may have it that the others have not."""
    told = (1, "a", "b")
    of_a = Frame(1, 1, 10, {}, [(1, update((1, "of A", "b"), 1), told)])
    of_b = Frame(2, 1, 20, {1: 1}, [(1, update((1, "of B", "b"), 1), (1, "of A", "b"))])
    of_c = Frame(3, 1, time_of_c, {}, [(1, update((1, "of C", "b"), 1), told)])
    found = []
    for order in ((of_a, of_b, of_c), (of_a, of_c, of_b), (of_c, of_a, of_b)):
        site = Site(4, 0, True, table={1: told})
        for frame in order:
            site.take(frame, 4)
        assert site.table == {1: (1, "of C" if time_of_c == 25 else "of B", "b")}
        found.append(sorted(one.values[1] for one in site.losses))
    assert tuple(found) == kept


def test_never_is_before_every_stamp() -> None:
    assert Stamp(1, 1, 1) > NEVER
    assert Row().newest == NEVER
