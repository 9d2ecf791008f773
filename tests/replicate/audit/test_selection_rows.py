"""Rows as an operator names them, against SQLite's own = and against a reader that decodes every frame: each affinity,
each collation, each kind of value."""

from __future__ import annotations

import random
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

import replicate
from replicate.audit.query import Matches, Query
from replicate.audit.read import chosen_changes
from replicate.audit.selection import Chooser, Selection, exactly, row_named
from replicate.audit.sources import find_in_instance
from replicate.errors import UsageError
from replicate.instance.instance import Instance
from tests.harness import instances
from tests.harness.journals import make_definition

KINDS = ("", "INT", "REAL", "TEXT", "NUMERIC", "BLOB")
COLLATIONS = ("BINARY", "NOCASE", "RTRIM")
TABLES = {f"{kind or 'none'}_{collation}".lower(): (kind, collation) for kind in KINDS for collation in COLLATIONS}
VALUES: tuple[Any, ...] = (
    0, -0.0, 5, 5.0, "5", "5.0", " 5", 127, 128, 200, 4711, -33, 2**53 + 1, -(2**63), 2**63 - 1, 2.5, "2.5", "1e3",
    1e300, "abc", "Abc", "ABC  ", "Äbc", "äbc", "x y ", "007", "", " ", "é" * 40, b"", b"5", b"\x00\xff", "X'00ff'",
    "NULL", None,
)  # fmt: skip
WORDS = (
    "0", "-0.0", "5", "5.0", " 5", "127", "128", "200", "4711", "-33", "2.5", "2.50", "1e3", "1000", "1e300", "abc",
    "ABC", "aBc ", "äbc", "X Y", "007", "7", "", "  ", "é" * 40, "É" * 40, "X'00ff'", "x'35'", "X''", "NULL", "null",
    str(2**53 + 1), str(-(2**63)), str(2**63 - 1), "99999999999999999999", "nan", "inf", "none of them",
)  # fmt: skip


@pytest.fixture
def primary(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Instance:
    """Its tables hold values of each kind, by a key of their own or a hidden one."""
    (tmp_path / "shm").mkdir()
    monkeypatch.setenv("REPLICATE_SHM_DIR", str(tmp_path / "shm"))
    shape = ("(k {0} COLLATE {1}, n INTEGER, w {0} COLLATE {1})", "(k {0} COLLATE {1}, n INTEGER PRIMARY KEY, w)")
    script = "".join(
        f"CREATE TABLE {name} {shape[at % 2].format(kind, collation)};"
        for at, (name, (kind, collation)) in enumerate(TABLES.items())
    )
    made = instances.make_primary(tmp_path / "alpha", script=script)
    dice = random.Random(7)
    with closing(replicate.connect(str(made.path))) as connection:
        for number in range(60):
            with connection:
                for name in TABLES:
                    value = VALUES[number] if number < len(VALUES) else dice.choice(VALUES)
                    if number < 45:
                        row = (value, number, dice.choice(VALUES))
                        connection.execute(f"INSERT INTO {name} (k, n, w) VALUES (?, ?, ?)", row)
                    elif number < 55:
                        connection.execute(f"UPDATE {name} SET k = ?, w = n WHERE n = ?", (value, dice.randrange(45)))
                    else:
                        connection.execute(f"DELETE FROM {name} WHERE n = ?", (dice.randrange(45),))
    return made


def told(found: Matches) -> list[tuple[int, Any]]:
    return [(match.seqno, change) for match in found for change in chosen_changes(match)]


@pytest.mark.slow
def test_a_mark_spares_no_frame_that_holds_the_row(primary: Instance) -> None:
    dice = random.Random(3)
    everything = find_in_instance(primary, Query())
    known = everything.known()
    every = told(everything)
    asked = [(one, word, column) for one in known.in_force().values() for word in WORDS for column in "kknw"]
    marked = found = 0
    for definition, word, column in dice.sample(asked, 400):
        key, columns = row_named([f"{column}={word}"], definition)
        selection = Selection(tables=frozenset({definition.name}), key=key, columns=columns)
        chooser = Chooser(selection, known.definitions)
        wanted = [(seqno, change) for seqno, change in every if chooser.takes(*change)]
        assert told(replace(everything, selection=selection)) == wanted, (definition.table, column, word)
        assert chooser.mark is not None
        marked += chooser.mark.search(b"\x01\xce" + definition.table_id.to_bytes(4, "big")) is None
        found += len(wanted)
    assert found > 300
    assert marked > 100


def test_what_sqlite_calls_equal_is_found(primary: Instance) -> None:
    """A row that `WHERE k = 'word'` finds was made, or changed, in a transaction that is shown."""
    found = find_in_instance(primary, Query())
    compared = 0
    with closing(replicate.connect(str(primary.path))) as connection:
        for definition in found.known().in_force().values():
            for word in WORDS:
                rows = connection.execute(f"SELECT k, n FROM {definition.table} WHERE k = ?", (word,)).fetchall()
                if not rows:
                    continue
                key, columns = row_named([f"k={word}"], definition)
                selection = Selection(tables=frozenset({definition.name}), key=key, columns=columns)
                images = [change[3] for _, change in told(replace(found, selection=selection))]
                for k, n in rows:
                    assert any(exactly([k])[0] <= exactly(image)[at] for image in images
                               for at in range(len(image))), (definition.table, word, k, n)  # fmt: skip
                    assert any(n in image for image in images), (definition.table, word, n)
                    compared += 1
    assert compared > 150


def test_a_row_by_its_columns() -> None:
    definition = make_definition("t", rowid=True)
    names = [column.name for column in definition.columns]
    assert row_named(["C1=a=b"], definition) == row_named(["c1=a=b"], definition)
    key, columns = row_named(["c1=a=b", "c0=NULL"], definition)
    assert columns == ("c1", "c0")
    assert ("a=b" in {value for _, value in key[0]}, None in {value for _, value in key[1]}) == (True, True)
    assert row_named(["other=5"], make_definition("t"))[1] == ()  # a value: there is no such column
    with pytest.raises(UsageError, match="the key of t has 1 value, 2 were given") as caught:
        row_named(["c1=5", "6"], definition)
    assert f"or name columns: {names[0]}=VALUE" in str(caught.value.do)
