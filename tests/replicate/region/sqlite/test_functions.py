"""`region.init`: which region gets what, and aggregates and window functions in views and triggers of a schema."""

from __future__ import annotations

import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import apsw
import pytest

from replicate import connect
from replicate.admin.regions import add_region
from replicate.compare.compare import compare
from replicate.dbapi import OperationalError
from replicate.errors import NotSupportedError
from replicate.instance.instance import Instance
from replicate.region.sqlite.functions import init_of
from tests.harness.pair import Pair, work_all

SCRIPT = "CREATE TABLE sale (id INTEGER PRIMARY KEY, shop TEXT, amount REAL); CREATE TABLE best (shop TEXT, most)"


class Longest:
    """The longest text; NULL of none."""

    def __init__(self) -> None:
        self.found = ""

    def step(self, text: str) -> None:
        self.found = max(self.found, text, key=len)

    def finalize(self) -> str:
        return self.found


class Total:
    """A sum that can slide."""

    def __init__(self) -> None:
        self.sum = 0.0

    def step(self, number: float) -> None:
        self.sum += number

    def inverse(self, number: float) -> None:
        self.sum -= number

    def value(self) -> float:
        return self.sum

    finalize = value


def register(connection: Any) -> None:
    """What the region main needs."""
    connection.create_aggregate("longest", 1, Longest)
    connection.create_window_function("total", 1, Total)


def register_stock(connection: Any) -> None:
    """What the region stock needs."""
    connection.create_function("half", 1, lambda number: number / 2, deterministic=True)


@pytest.fixture
def module(monkeypatch: pytest.MonkeyPatch) -> str:
    """A module with both, under a name that settings can say."""
    made = ModuleType("tests_region_functions")
    made.__dict__.update(register=register, register_stock=register_stock)
    monkeypatch.setitem(sys.modules, made.__name__, made)
    return made.__name__


@pytest.fixture
def pair(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, module: str) -> Pair:
    monkeypatch.setenv("REPLICATE_SHM_DIR", str(tmp_path))
    made = Pair.create(tmp_path, SCRIPT)
    for instance in (made.primary, made.secondary):
        (instance.path / "replicate.toml").write_text(
            f'[region]\ninit = "main={module}:register, stock={module}:register_stock"\n[journal]\ndurability = "off"\n'
        )
    return Pair(tmp_path, Instance.open(made.primary.path), Instance.open(made.secondary.path))


def test_aggregates_and_window_functions_of_the_schema_are_there_on_both_sites(pair: Pair) -> None:
    connection = pair.connect()
    connection.execute(
        "CREATE VIEW running AS SELECT shop, total(amount) OVER (ORDER BY id ROWS 1 PRECEDING) FROM sale"
    )
    connection.execute(
        "CREATE TRIGGER note AFTER INSERT ON sale BEGIN "
        "INSERT INTO best SELECT longest(shop), total(amount) FROM sale; END"
    )
    pair.seed()
    for row in (("ab", 1.5), ("abc", 2.0), ("a", 4.0)):
        connection.execute("INSERT INTO sale (shop, amount) VALUES (?, ?)", row)
    connection.commit()
    connection.execute("ALTER TABLE sale RENAME COLUMN shop TO store")  # reads every view and trigger, there too
    connection.commit()
    assert connection.execute("SELECT * FROM best").fetchall() == [("ab", 1.5), ("abc", 3.5), ("abc", 7.5)]
    assert connection.execute("SELECT * FROM running").fetchall() == [("ab", 1.5), ("abc", 3.5), ("a", 6.0)]
    assert connection.execute("SELECT longest(store), total(amount) FROM sale WHERE id > 9").fetchall() == [
        (None, None)
    ]
    connection.close()
    with pair.receive_pool() as pool, pair.applier(pool) as applier:
        pair.deliver(pool)
        work_all(applier)
        assert applier.applied_seqno == pair.last_seqno()
    assert compare(pair.primary, pair.secondary, timeout_s=5).equal


def test_each_region_gets_its_own(pair: Pair, tmp_path: Path) -> None:
    database = apsw.Connection(str(tmp_path / "stock.db"))
    database.create_scalar_function("half", lambda number: number / 2, 1, deterministic=True)
    database.execute("CREATE TABLE item (a REAL, h AS (half(a)) STORED)")
    database.close()
    add_region(pair.primary, tmp_path / "stock.db", name="stock")
    stock = connect(pair.primary.path, "stock")
    stock.execute("INSERT INTO item (a) VALUES (3.0)")
    stock.commit()
    assert stock.execute("SELECT h FROM item").fetchall() == [(1.5,)]
    with pytest.raises(OperationalError, match="no such function: longest"):
        stock.execute("SELECT longest('a')")
    main = pair.connect()
    with pytest.raises(OperationalError, match="no such function: half"):
        main.execute("SELECT half(2)")
    stock.close()
    main.close()


@pytest.mark.parametrize(
    ("setting", "region", "init"),
    [
        ("", "main", ""),
        ("a.b:c", "main", "a.b:c"),
        ("main=a:b, stock=c:d", "stock", "c:d"),
        ("main=a:b, stock=c:d", "other", ""),
        ("main=a:b, e:f", "other", "e:f"),
        ("e:f, main = a:b", "main", "a:b"),
        ("main=, e:f", "main", ""),
    ],
)
def test_which_region_gets_what(setting: str, region: str, init: str) -> None:
    assert init_of(setting, region) == init


@pytest.mark.parametrize(
    "schema",
    [
        "CREATE TABLE c (a CHECK (mine(a) <> 3))",
        "CREATE TABLE c (a, b DEFAULT (mine(5)))",
        "CREATE TABLE c (a, g AS (mine(a)) STORED)",
        "CREATE TABLE c (a COLLATE back UNIQUE)",
        "CREATE TABLE c (a); CREATE INDEX i ON c (mine(a))",
    ],
)
def test_a_database_whose_functions_are_not_there_is_refused_by_name(pair: Pair, tmp_path: Path, schema: str) -> None:
    database = apsw.Connection(str(tmp_path / "other.db"))
    database.create_scalar_function("mine", lambda number: number, 1, deterministic=True)
    database.create_collation("back", lambda one, other: (one < other) - (one > other))
    database.execute(schema)
    database.close()
    content = (tmp_path / "other.db").read_bytes()
    with pytest.raises(NotSupportedError, match="without the application's own functions") as caught:
        add_region(pair.primary, tmp_path / "other.db", name="other")
    assert "region.init" in caught.value.do
    assert (tmp_path / "other.db").read_bytes() == content
    assert [entry.name for entry in Instance.open(pair.primary.path).regions] == ["main"]
