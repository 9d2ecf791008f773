"""Putting another site's rows back: what is given for the journal leads a twin to the same rows, or nothing is done."""

from __future__ import annotations

import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import apsw
import pytest

from replicate.errors import ConflictError
from replicate.model.transaction import Op
from replicate.region.sqlite import digest, schema
from replicate.region.sqlite.apply.put_back import Image, PutBack
from replicate.region.sqlite.apply.rows import RowApplier
from replicate.region.sqlite.open import open_region
from tests.harness.regions import make_region

SCRIPT = """
    CREATE TABLE plain (id INTEGER PRIMARY KEY, name TEXT, n);
    CREATE TABLE texts (k TEXT, n INT, v, PRIMARY KEY (k, n)) WITHOUT ROWID;
    CREATE TABLE counted (id INTEGER PRIMARY KEY AUTOINCREMENT, u INT UNIQUE CHECK (u > 0));
    CREATE TABLE child (id INTEGER PRIMARY KEY, parent INT REFERENCES counted (id) ON DELETE CASCADE);
    CREATE TRIGGER doubled AFTER INSERT ON plain BEGIN INSERT INTO texts VALUES (new.id, 0, 'by a trigger'); END;
    INSERT INTO child VALUES (900, 900);
"""
VALUES = (None, 0, 1, 2, -1.5, "a", "b", b"\x00")


class Site:
    """A region that rows are put into, and a twin that follows by what was given for the journal."""

    def __init__(self, directory: Path) -> None:
        self.connections = []
        for name in ("one.db", "twin.db"):
            make_region(directory / name, SCRIPT)
            self.connections.append(open_region(directory / name, applier=name == "twin.db"))
        self.connection, self.twin = self.connections
        definitions = schema.recorded_definitions(self.connection)
        self.table = {d.table: d for d in definitions}
        self.put_back = PutBack(self.connection, definitions, region="main")
        self.follower = RowApplier(self.twin, {d.table_id: d for d in definitions}, region="main")

    def put(self, *changes: tuple[Op, str, Image | None, Image | None], overwrite: bool = False) -> list[bool]:
        """One transaction; which of them made another row give way. After an error nothing of it is left."""
        self.connection.execute("BEGIN IMMEDIATE")
        self.put_back.begin(7)
        try:
            made, gave_way = [], []
            for op, table, before, after in changes:
                change, over = self.put_back.put(op, self.table[table], before, after, overwrite=overwrite)
                made += change
                gave_way.append(over)
            made += self.put_back.finish()
        except ConflictError:
            self.connection.execute("ROLLBACK")
            self.assert_level()
            raise
        self.connection.execute("COMMIT")
        self.follower.begin()
        self.twin.execute("BEGIN")
        if made:
            self.follower.apply_all(made)
        self.twin.execute("COMMIT")
        self.assert_level()
        return gave_way

    def assert_level(self) -> None:
        assert digest.digest_region(self.connection) == digest.digest_region(self.twin)

    def row(self, table: str, key: tuple[Any, ...]) -> Image | None:
        where = " AND ".join(f"{self.table[table].columns[at].name} IS ?" for at in self.table[table].key)
        return self.connection.execute(f"SELECT * FROM {table} WHERE {where}", key).get  # type: ignore[no-any-return]


@pytest.fixture
def site(tmp_path: Path) -> Iterator[Site]:
    made = Site(tmp_path)
    yield made
    for one in made.connections:
        one.close()


@pytest.mark.parametrize("seed", range(6))
def test_only_what_fits_is_made_and_a_twin_that_follows_has_the_same(site: Site, seed: int) -> None:
    dice, met = random.Random(seed), set[str]()
    for _ in range(150):
        table = dice.choice(["plain", "texts"])
        key: tuple[Any, ...] = (dice.randrange(4),) if table == "plain" else (dice.choice("ab"), dice.randrange(2))
        rest = 2 if table == "plain" else 1

        def drawn(table: str = table, key: tuple[Any, ...] = key, rest: int = rest) -> Image:
            return stored(table, (*key, *(dice.choice(VALUES) for _ in range(rest))))

        there = site.row(table, key)
        before = dice.choice([there, there, drawn(), None])
        after = drawn() if before is None else dice.choice([drawn(), drawn(), None])
        op = Op.INSERT if before is None else Op.DELETE if after is None else Op.UPDATE
        overwrite = dice.random() < 0.5
        fits = repr(before) == repr(there) or (op is Op.UPDATE and repr(before) == repr(after))
        change = (op, table, before, after)
        if fits or overwrite:
            (gave_way,) = site.put(change, overwrite=overwrite)
            met.add(f"{op.name} {'fits' if fits else 'over'}")
            if gave_way:
                assert not fits
            if repr(before) != repr(after):
                assert repr(site.row(table, key)) == repr(after)
        else:
            with pytest.raises(ConflictError) as caught:
                site.put(change)
            met.add(f"{op.name} refused")
            assert "seqno 7" in str(caught.value)
            assert repr(site.row(table, key)) == repr(there)
    assert len(met) >= 8
    assert not site.connection.execute("SELECT 1 FROM texts WHERE v = 'by a trigger'").get


def stored(table: str, image: Image) -> Image:
    """As the columns' affinities keep it: that is what another site sends."""
    plain = apsw.Connection(":memory:")
    plain.execute(next(one for one in SCRIPT.split(";") if f"CREATE TABLE {table} " in one))
    plain.execute(f"INSERT INTO {table} VALUES ({', '.join('?' * len(image))})", image)
    return plain.execute(f"SELECT * FROM {table}").get  # type: ignore[no-any-return]


def test_a_counter_is_raised_and_never_lowered(site: Site) -> None:
    def counter() -> int | None:
        return site.connection.execute("SELECT seq FROM sqlite_sequence WHERE name = 'counted'").get  # type: ignore[no-any-return]

    site.put((Op.INSERT, "counted", None, (5, 1)))
    assert counter() == 5
    site.put((Op.INSERT, "counted", None, (3, 2)), (Op.DELETE, "counted", (5, 1), None))
    assert counter() == 5
    site.put((Op.INSERT, "counted", None, (9, 3)), (Op.INSERT, "counted", None, (7, 4)))
    assert counter() == 9
    with pytest.raises(ConflictError):
        site.put((Op.INSERT, "counted", None, (12, 5)), (Op.INSERT, "counted", None, (13, -1)))
    assert counter() == 9


def test_no_row_is_left_without_its_parent_and_no_child_is_taken_along(site: Site) -> None:
    site.put((Op.INSERT, "counted", None, (1, 1)), (Op.INSERT, "child", None, (10, 1)))
    for change in ((Op.DELETE, "counted", (1, 1), None), (Op.INSERT, "child", None, (11, 2))):
        with pytest.raises(ConflictError, match="would have no parent in table counted"):
            site.put(change)
    site.put((Op.INSERT, "child", None, (11, 2)), (Op.INSERT, "counted", None, (2, 2)))  # in whatever order
    site.put((Op.DELETE, "counted", (1, 1), None), (Op.DELETE, "child", (10, 1), None))
    assert site.row("child", (900,)) == (900, 900), "one that had none before is nobody's error"
    site.put((Op.UPDATE, "child", (900, 900), (900, None)))


@pytest.mark.parametrize("overwrite", [False, True])
def test_what_a_constraint_forbids_is_refused_also_over_a_row(site: Site, overwrite: bool) -> None:
    site.put((Op.INSERT, "counted", None, (1, 1)))
    with pytest.raises(ConflictError):
        site.put((Op.INSERT, "counted", None, (2, 1)), overwrite=overwrite)  # another row holds the unique value
    with pytest.raises(ConflictError):
        site.put((Op.UPDATE, "counted", (1, 1), (1, -1)), overwrite=overwrite)
    assert site.row("counted", (1,)) == (1, 1)
