"""Changes in the order of their rows: the same rows in the end, the same verdict, and nothing moved that may not be."""

from __future__ import annotations

import random
from array import array
from collections import Counter
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from replicate.errors import ConflictError, DamagedError, JournalDamagedError, NotSupportedError
from replicate.model.transaction import Op, mask_of
from replicate.region.sqlite import digest
from replicate.region.sqlite.apply import order
from replicate.region.sqlite.apply.order import ENDS_MAX, KINDS_FEW, TURNS_MAX, RowRun, arranged, places_arranged
from tests.replicate.region.sqlite.apply.test_rows import Site

SCRIPT = """
    CREATE TABLE item (id INTEGER PRIMARY KEY, name TEXT, size INT);
    CREATE INDEX item_name ON item (name);
    CREATE TABLE hidden (k, v);
    CREATE TABLE named (id INTEGER PRIMARY KEY, name TEXT UNIQUE, size INT);
    CREATE TABLE partly (id INTEGER PRIMARY KEY, name TEXT, size INT);
    CREATE UNIQUE INDEX partly_name ON partly (name) WHERE size > 5;
    CREATE TABLE counted (id INTEGER PRIMARY KEY AUTOINCREMENT, name TEXT, size INT);
    CREATE TABLE keyed (id INTEGER PRIMARY KEY, name TEXT, size INT) WITHOUT ROWID;
    CREATE TABLE other (id TEXT PRIMARY KEY, name TEXT, size INT);
"""
TABLES = ("item", "hidden", "named", "partly", "counted", "keyed", "other")
INSERT, UPDATE, DELETE, COMMENT = int(Op.INSERT), int(Op.UPDATE), int(Op.DELETE), int(Op.COMMENT)
SEQUENCE = int(Op.SEQUENCE)

Change = tuple[int, Any, Any, Any]


class Model:
    """Draws changes that fit one another, and that SQLite takes."""

    def __init__(self, site: Site, seed: int) -> None:
        self._site = site
        self._dice = random.Random(seed)
        self.rows: dict[str, dict[Any, list[Any]]] = {table: {} for table in TABLES}
        self.changes: list[Change] = []
        self._counter: int | None = None

    def draw(self, count: int, tables: tuple[str, ...] = TABLES, keys: int = 30) -> None:
        """Add `count` changes of rows."""
        for _ in range(count):
            table = self._dice.choice(tables)
            self._change(table, self._site.table[table], self._dice.randint(1, keys))

    def _row(self, table: str, key: int) -> list[Any]:
        name, size = self._dice.choice("abcdefgh") * 3, self._dice.randint(1, 9)
        if table == "hidden":
            return [key, name, size]
        return [key, f"i{key}", name, size] if table == "other" else [key, name, size]

    def _takes(self, table: str, key: int, row: list[Any]) -> bool:
        for known, other in self.rows[table].items():
            if known == key:
                continue
            if table == "named" and other[1] == row[1]:
                return False
            if table == "partly" and other[1] == row[1] and other[2] > 5 and row[2] > 5:
                return False
        return True

    def _change(self, table: str, definition: Any, key: int) -> None:
        rows = self.rows[table]
        row = self._row(table, key)
        if not self._takes(table, key, row):
            return
        before = rows.get(key)
        if before is None:
            self.changes.append((INSERT, definition.table_id, 0, row))
            rows[key] = row
            if table == "counted" and key > (self._counter or 0):
                self.changes.append((SEQUENCE, definition.table_id, 0, [self._counter, key]))
                self._counter = key
        elif self._dice.random() < 0.2:
            self.changes.append((DELETE, definition.table_id, 0, before))
            del rows[key]
        elif self._dice.random() < 0.1 and key + 100 not in rows and table not in ("keyed", "other"):
            after = [key + 100, *before[1:]]
            self.changes.append((UPDATE, definition.table_id, mask_of([0], len(before)), [after[0], *before]))
            del rows[key]
            rows[key + 100] = after
        else:
            changed = [at for at in range(1, len(row)) if row[at] != before[at]]
            mask = mask_of(changed, len(before))
            self.changes.append((UPDATE, definition.table_id, mask, [*(row[at] for at in changed), *before]))
            rows[key] = row


def columns(changes: list[Change]) -> list[list[Any]]:
    return [list(column) for column in zip(*changes, strict=True)]


def each(count: int) -> range:
    """Every change a stretch of its own: sorted, whatever it is."""
    return range(1, count + 1)


def rowid_place(op: Any, table: Any, mask: Any) -> int | None:
    """Tables 1 and 2 may be moved, but for deletes of table 2."""
    if table > 2 or (table == 2 and op == DELETE):
        return None
    return 1 if op == UPDATE else 0


def pieces(runs: list[RowRun]) -> list[Change]:
    return [change for run in runs for change in zip(*run[:4], strict=True)]


def stretches(dice: random.Random, kinds: list[int], rowids: list[int]) -> list[int]:
    """Sort them by rowid, stretch by stretch; where these end."""
    ends = sorted({len(rowids), *(dice.randint(1, len(rowids)) for _ in range(dice.choice([0, 5, 100])))})
    for begin, end in zip([0, *ends], ends, strict=False):
        order = sorted(range(begin, end), key=rowids.__getitem__)
        kinds[begin:end] = [kinds[at] for at in order]
        rowids[begin:end] = [rowids[at] for at in order]
    return ends


@pytest.mark.parametrize("sampled", [1, 3])
@pytest.mark.parametrize("part", [3, 30, 10_000])
@pytest.mark.parametrize("seed", range(20))
def test_places_are_arranged_as_changes_are(
    seed: int, part: int, sampled: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(order, "PART_CHANGES", part)
    monkeypatch.setattr(order, "SAMPLED", sampled)
    dice = random.Random(seed)
    monkeypatch.setattr(order, "KINDS_MAX", dice.choice([20, 1000]))
    tables = dice.choice([[1], [1, 1, 1], [1, 2, 2, 1], [*range(9)], [1] * (KINDS_FEW + 1)])
    count = dice.choice([1, 2, 300])
    kinds = [dice.randrange(len(tables)) for _ in range(count)]
    rowids = [dice.choice([dice.randint(-5, dice.choice([5, 100, 2**40])), 7, 2**63 - 1]) for _ in range(count)]
    runs = list(places_arranged(kinds, rowids, tables, stretches(dice, kinds, rowids)))
    assert sorted(place for run, _ in runs for place in run) == list(range(count))
    orders: dict[tuple[int, int], list[int]] = {}
    for run, is_uniform in runs:
        assert len({tables[kinds[place]] for place in run}) == 1
        assert [rowids[place] for place in run] == sorted(rowids[place] for place in run)
        if is_uniform:
            assert len({kinds[place] for place in run}) == 1
            assert len({rowids[place] for place in run}) == len(run)
        for place in run:
            orders.setdefault((tables[kinds[place]], rowids[place]), []).append(place)
    assert all(order == sorted(order) for order in orders.values())


@pytest.mark.parametrize("tables", [[], [1], [1, 2]])
def test_nothing_is_arranged_as_nothing(tables: list[int]) -> None:
    assert list(places_arranged([], [], tables, [])) == []


@pytest.mark.parametrize("kinds_max", [199, 200])
def test_many_kinds_are_made_kind_by_kind_and_too_many_row_by_row(
    kinds_max: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(order, "KINDS_MAX", kinds_max)
    kinds = [number % 200 for number in range(2000)]
    runs = list(places_arranged(kinds, range(2000), [1] * 200, [2000]))
    found = [(len(run), is_uniform) for run, is_uniform in runs]
    assert found == ([(10, True)] * 200 if kinds_max == 200 else [(2000, False)])


def test_a_part_is_of_rows_beside_each_other_and_not_much_longer_than_it_should_be(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(order, "PART_CHANGES", 1000)
    monkeypatch.setattr(order, "SAMPLED", 10)
    dice = random.Random(4)
    rowids = [dice.randint(1, 1_000_000) for _ in range(20_000)]
    runs = [list(map(rowids.__getitem__, run)) for run, _ in places_arranged([0] * 20_000, rowids, [1], each(20_000))]
    firsts = [run for run in runs if len(run) > 100]
    assert sum(map(len, firsts)) > 19_000
    assert 15 <= len(firsts) <= 25
    assert all(low[-1] <= high[0] for low, high in pairwise(firsts))


def test_a_row_that_fills_a_part_needs_no_sorting(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(order, "PART_CHANGES", 99)
    monkeypatch.setattr(order, "SAMPLED", 9)
    rowids = [2**63 - 1, 4, 5, 6] * 1000
    runs = list(places_arranged([0] * len(rowids), rowids, [1], each(len(rowids))))
    assert sorted(len(run) for run, _ in runs) == [1] * 4 * TURNS_MAX + [1000 - TURNS_MAX] * 4
    parts = list(order._in_parts(range(len(rowids)), each(len(rowids)), rowids))
    assert [{rowids[place] for place in part} for part in parts] == [{4}, {5}, {6}, {2**63 - 1}]
    assert all(isinstance(part, array) for part in parts)  # as they were put together: sorted() gives a list


def test_what_a_row_has_too_many_changes_of_comes_last_and_holds_nobody_up() -> None:
    rowids = [1, 2] * TURNS_MAX
    runs = list(places_arranged([0] * len(rowids), rowids, [7], each(len(rowids))))
    assert [is_uniform for _, is_uniform in runs] == [True] * TURNS_MAX
    runs = list(places_arranged([0] * (len(rowids) + 3), [*rowids, 1, 3, 1], [7], each(len(rowids) + 3)))
    assert [is_uniform for _, is_uniform in runs] == [True] * TURNS_MAX + [False]
    assert list(runs[0][0]) == [0, 1, len(rowids) + 1]
    assert list(runs[-1][0]) == [len(rowids), len(rowids) + 2]


@pytest.mark.parametrize("seed", range(20))
def test_rows_keep_the_order_of_their_changes_and_the_rest_its_place(seed: int) -> None:
    dice = random.Random(seed)
    tables = dice.choice([[1], [1, 2], [1, 2, 3]])
    keys = dice.choice([3, 50, 1000])
    changes: list[Change] = []
    for number in range(400):
        op = dice.choice([INSERT, UPDATE, DELETE]) if dice.random() < 0.98 else COMMENT
        key = dice.randint(1, keys)
        changes.append((op, dice.choice(tables), 0, (number, key, number) if op == UPDATE else (key, number)))
    runs = list(arranged(*columns(changes), rowid_place))
    made = pieces(runs)
    assert Counter(made) == Counter(changes)
    was = {change: at for at, change in enumerate(changes)}
    orders: dict[Any, list[int]] = {}
    comments = [at for at, change in enumerate(changes) if change[0] == COMMENT]
    for change in made:
        op, table, mask, values = change
        place = None if op == COMMENT else rowid_place(op, table, mask)
        at = was[change]
        if op == COMMENT:
            orders.setdefault("comments", []).append(at)
        elif place is not None:
            orders.setdefault((table, values[place]), []).append(at)
        # Before how many fixed changes of its table, and before how many comments, a change stands never changes.
        orders.setdefault(("stretch", table), []).append(sum(other < at for other in comments))
    assert all(order == sorted(order) for order in orders.values())
    fixed = [change for change in made if change[0] == DELETE and change[1] == 2]
    assert fixed == [change for change in changes if change[0] == DELETE and change[1] == 2]
    for change in fixed:
        mine = [one for one in made if one[1] == 2]
        theirs = [one for one in changes if one[1] == 2]
        assert set(mine[: mine.index(change)]) == set(theirs[: theirs.index(change)])
    for run in runs:
        if run.is_uniform:
            assert len(set(zip(*run[:3], strict=True))) == 1
            place = rowid_place(run.ops[0], run.table_ids[0], 0)
            assert place is not None
            rowids = [values[place] for values in run.values]
            assert rowids == sorted(rowids)


def test_updates_here_and_there_are_one_run() -> None:
    keys = random.Random(3).sample(range(10_000), 500)
    runs = list(arranged(*columns([(UPDATE, 1, 1, ("new", key)) for key in keys]), lambda *_: 1))
    assert [values[1] for run in runs for values in run.values] == sorted(keys)
    assert len(runs) == 1


def test_a_mixture_is_a_run_of_each_kind() -> None:
    changes = [
        (INSERT, 1, 0, (10, "a")),
        (UPDATE, 1, 2, ("x", 7, "b")),
        (DELETE, 1, 0, (3, "c")),
        (INSERT, 1, 0, (11, "d")),
        (UPDATE, 1, 2, ("y", 10, "a")),  # in its second turn
        (DELETE, 1, 0, (2, "e")),
    ]
    runs = list(arranged(*columns(changes), rowid_place))
    assert [(run.ops[0], [values[run.ops[0] == UPDATE] for values in run.values]) for run in runs] == [
        (INSERT, [10, 11]),
        (UPDATE, [7]),
        (DELETE, [2, 3]),
        (UPDATE, [10]),
    ]


@pytest.mark.parametrize("masks", [1, 2, 31])
def test_a_row_that_is_changed_all_the_time_makes_no_run_a_change(masks: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(order, "KINDS_MAX", 30)
    changes = [(UPDATE, 1, n % masks, (n, 500 if n % 2 else n, "x")) for n in range(1000)]
    runs = list(arranged(*columns(changes), rowid_place))
    made = pieces(runs)
    assert Counter(made) == Counter(changes)
    assert [change for change in made if change[3][1] == 500] == [change for change in changes if change[3][1] == 500]
    assert len(runs) == {1: 1, 2: 2 + TURNS_MAX, 31: 1}[masks]
    assert [run.is_uniform for run in runs[:-1]] == [True] * (len(runs) - 1)
    assert runs[-1].is_uniform == (masks == 1)


def test_a_row_that_is_changed_all_the_time_ends_it_where_there_are_several_tables() -> None:
    changes = [(UPDATE, 1 + n % 3 // 2, 2, (n, 1 if n % 2 else n, "x")) for n in range(1000)]
    runs = list(arranged(*columns(changes), rowid_place))
    assert len(runs) <= 4 + 2 * TURNS_MAX
    assert Counter(pieces(runs)) == Counter(changes)


def test_a_table_whose_changes_must_often_stay_is_left_as_it_is() -> None:
    changes = [(DELETE if number % 2 else INSERT, 2, 0, (number, "x")) for number in range(1000)]
    runs = list(arranged(*columns(changes), rowid_place))
    assert len(runs) <= 2 * ENDS_MAX + 3
    assert pieces(runs) == changes


def test_the_steps_of_a_counter_are_one_step_and_the_last() -> None:
    changes = []
    for number in range(1, 100):
        changes += [(INSERT, 1, 0, (100 - number, "x")), (SEQUENCE, 1, 0, (number - 1 or None, number))]
        changes += [(INSERT, 2, 0, (number, "y")), (SEQUENCE, 2, 0, [number, number + 1])]
    runs = list(arranged(*columns(changes), rowid_place))
    assert [(run.ops[0], len(run.ops), run.is_uniform) for run in runs] == [
        (INSERT, 99, True), (INSERT, 99, True), (SEQUENCE, 2, False),
    ]  # fmt: skip
    assert list(zip(*runs[-1][:4], strict=True)) == [(SEQUENCE, 1, 0, [None, 99]), (SEQUENCE, 2, 0, [1, 100])]
    assert changes[1][3] == (None, 1)  # what was given is as it was


@pytest.mark.parametrize(
    "odd",
    [
        (SEQUENCE, 1, 0, (3, 4)),
        (SEQUENCE, 1, 0, (2.0, 4)),
        (SEQUENCE, 1, 0, (2,)),
        (SEQUENCE, 1, 1, (2, 3)),
        (SEQUENCE, 1, 0, None),
        (COMMENT, 1, 0, ["x"]),
        (INSERT, 1, 0, (9, "after the last step")),
    ],
)
def test_steps_of_a_counter_that_do_not_follow_each_other_stay(odd: Change) -> None:
    changes = [(INSERT, 1, 0, (7, "x")), (SEQUENCE, 1, 0, (1, 2)), odd]
    assert pieces(list(arranged(*columns(changes), rowid_place))) == changes


@pytest.mark.parametrize(
    "odd",
    [
        (UPDATE, 1, 2, ()),
        (UPDATE, 1, 2, ("x", "7", 1)),
        (UPDATE, 1, 2, ("x", True, 1)),
        (UPDATE, 1, 2, "text"),
        (INSERT, 1, 0, None),
    ],
)
@pytest.mark.parametrize("alone", [True, False])
def test_what_has_no_rowid_stays_where_it_is(odd: Change, alone: bool) -> None:
    others = [(odd[0], 1, odd[2], ("z", number, number)) for number in (9, 5)]
    changes = [*others, odd] if alone else [(DELETE, 1, 0, (4, 4)), *others, odd, (DELETE, 1, 0, (3, 3))]
    runs = list(arranged(*columns(changes), rowid_place))
    assert Counter(map(repr, pieces(runs))) == Counter(map(repr, changes))
    assert all(odd[3] not in run.values for run in runs if run.is_uniform)


def test_what_cannot_be_hashed_is_left_alone() -> None:
    changes = [[INSERT, 1, [], (2,)], [INSERT, 1, 0, (1,)]]
    assert [tuple(run[:4]) for run in arranged(*zip(*changes, strict=True), rowid_place)] == [
        tuple(zip(*changes, strict=True))
    ]


# With real tables.


@pytest.mark.turns(4)
@pytest.mark.parametrize("seed", range(12))
def test_the_same_rows_whatever_the_order(tmp_path: Path, seed: int) -> None:
    ordered, sorted_ = Site(tmp_path / "a.db", SCRIPT), Site(tmp_path / "b.db", SCRIPT)
    model = Model(ordered, seed)
    tables = TABLES if seed % 2 else ("item", "hidden")
    for _ in range(4):
        model.changes.clear()
        model.draw(150, tables, keys=30 if seed % 3 else 4)
        for site, apply in ((ordered, ordered.applier.apply_columns), (sorted_, sorted_.applier.apply_sorted)):
            with site.connection:
                site.applier.begin()
                apply(*columns(model.changes))
        assert digest.digest_region(ordered.connection) == digest.digest_region(sorted_.connection)
        for table in TABLES:
            query = f"SELECT {'' if table == 'keyed' else 'rowid,'} * FROM {table} ORDER BY 1"
            assert ordered.rows(query) == sorted_.rows(query)
        assert ordered.rows("SELECT * FROM sqlite_sequence") == sorted_.rows("SELECT * FROM sqlite_sequence")


@pytest.mark.turns(4)
@pytest.mark.parametrize("seed", range(12))
def test_whatever_does_not_fit_is_noticed(tmp_path: Path, seed: int) -> None:
    site = Site(tmp_path / "a.db", SCRIPT)
    dice = random.Random(seed)
    model = Model(site, seed)
    model.draw(60)
    with site.connection:
        site.applier.apply_columns(*columns(model.changes))
    before = digest.digest_region(site.connection)
    model.changes.clear()
    model.draw(150)
    for _ in range(20):
        changes = list(model.changes)
        at = dice.randrange(len(changes))
        op, table_id, mask, values = changes[at]
        what = dice.randrange(3)
        if what == 0:
            del changes[at]  # the next change of that row will not fit, if there is one
        elif what == 1:
            changes.insert(at, changes[at])
        else:
            changes[at] = (op, table_id, mask, [*values[:-1], "another"])
        verdicts = []
        for apply in (site.applier.apply_columns, site.applier.apply_sorted):
            site.connection.execute("BEGIN")
            site.applier.begin()
            try:
                apply(*columns(changes))
                verdicts.append(digest.digest_region(site.connection))
            except (DamagedError, NotSupportedError):
                verdicts.append(None)
            site.connection.execute("ROLLBACK")
        assert verdicts[0] == verdicts[1], (what, changes[at])
    assert digest.digest_region(site.connection) == before


def test_what_may_be_moved_of_which_table(tmp_path: Path) -> None:
    site = Site(tmp_path / "a.db", SCRIPT)
    found = {
        table: [
            site.applier.place_of(INSERT, site.table[table].table_id, 0),
            site.applier.place_of(DELETE, site.table[table].table_id, 0),
            site.applier.place_of(UPDATE, site.table[table].table_id, 0b001),
            site.applier.place_of(UPDATE, site.table[table].table_id, 0b010),
            site.applier.place_of(UPDATE, site.table[table].table_id, 0b110),
            site.applier.place_of(UPDATE, site.table[table].table_id, 0b100),
        ]
        for table in TABLES
    }
    assert found == {
        "item": [0, 0, None, 1, 2, 1],
        "hidden": [0, 0, None, 1, 2, 1],
        "named": [None, None, None, None, None, 1],
        "partly": [None] * 6,
        "counted": [0, 0, None, 1, 2, 1],
        "keyed": [None] * 6,
        "other": [None, None, None, None, None, 1],
    }
    assert site.applier.place_of(UPDATE, 1, 1) is None  # an unknown table
    assert site.applier.place_of(UPDATE, site.table["item"].table_id, 1 << 40) is None


def test_a_schema_change_is_learnt(tmp_path: Path) -> None:
    site = Site(tmp_path / "a.db", SCRIPT)
    table_id = site.table["item"].table_id
    assert site.applier.place_of(UPDATE, table_id, 0b010) == 1
    site.applier.apply_all((int(Op.SCHEMA), 0, "main", ["CREATE UNIQUE INDEX one ON item (name)"]))
    assert site.applier.place_of(UPDATE, table_id, 0b010) is None


def test_after_a_failure_the_changes_as_they_came_name_the_first_one(tmp_path: Path) -> None:
    site = Site(tmp_path / "a.db", SCRIPT)
    table_id = site.table["item"].table_id
    for key in (1, 2, 3):
        site.apply(Op.INSERT, "item", 0, key, "n", key)
    changes: list[Change] = [
        (UPDATE, table_id, 0b010, ["x", 3, "n", 3]),
        (UPDATE, table_id, 0b010, ["x", 2, "drifted", 2]),
        (UPDATE, table_id, 0b010, ["x", 1, "drifted", 1]),
    ]
    site.connection.execute("BEGIN")
    with pytest.raises(ConflictError, match="2 do not fit"):
        site.applier.apply_sorted(*columns(changes))
    site.connection.execute("ROLLBACK")
    with pytest.raises(ConflictError) as caught:
        site.applier.apply_columns(*columns(changes))
    conflict: Any = caught.value.conflict
    assert conflict.key == (2,)


@pytest.mark.parametrize(
    ("values", "error"),
    [
        (["x", 2], JournalDamagedError),
        (["\ud800", 2, "n", 2], NotSupportedError),
        ([[], 2, "n", 2], JournalDamagedError),
    ],
)
def test_values_that_cannot_be_stored_are_refused(tmp_path: Path, values: Any, error: type[Exception]) -> None:
    site = Site(tmp_path / "a.db", SCRIPT)
    site.apply(Op.INSERT, "item", 0, 2, "n", 2)
    with pytest.raises(error):
        site.applier.apply_sorted(*columns([(UPDATE, site.table["item"].table_id, 0b010, values)]))
