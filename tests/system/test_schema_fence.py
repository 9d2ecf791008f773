"""The schema of three suppliers with their daemons changes while all write, and whatever takes part is killed."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.harness.supplier_street import NAMES, SCHEMA, SETTINGS, SupplierStreet
from tests.harness.waiting import wait_until

pytestmark = pytest.mark.slow

WRITES_ON = """
import pathlib, sys, time, replicate
path, seed, stop = sys.argv[1], int(sys.argv[2]), pathlib.Path(sys.argv[3])
connection = replicate.connect(path, timeout=60)
done = refused = 0
while not stop.exists():
    try:
        connection.execute("INSERT INTO shared (name, n) VALUES (?, 0)", (f"{seed} {done}",))
        connection.execute("UPDATE shared SET m = ? WHERE id % 7 = 0", (seed,))
        connection.commit()
        done += 1
    except replicate.OperationalError as error:
        connection.rollback()
        if "stand aside" not in str(error) and "all other suppliers" not in str(error):
            raise
        refused += 1
        time.sleep(0.02)
print(done, refused)
"""
"""Writes on until it is told to stop, however often it is refused meanwhile."""


@pytest.fixture(scope="module")
def street(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SupplierStreet]:
    made = SupplierStreet(tmp_path_factory.mktemp("street"), settings=SETTINGS, schema=SCHEMA)
    try:
        made.build()
        made.share()
        yield made
    finally:
        made.close()


def stands(street: SupplierStreet, name: str) -> bool:
    """Whether somebody has that site stand aside."""
    return street.on(street.by[name], "schema", "status", check=False).returncode == 1


def ended(street: SupplierStreet, writers: list[subprocess.Popen[str]], stop: Path) -> list[int]:
    """How much each of them has written."""
    stop.touch()
    told = [writer.communicate(timeout=120) for writer in writers]
    assert [writer.returncode for writer in writers] == [0] * len(writers), told
    street.level()
    return [int(output.split()[0]) for output, _ in told]


def test_the_schema_changes_while_all_write_and_daemons_are_killed(street: SupplierStreet, tmp_path: Path) -> None:
    change, stop = tmp_path / "change.sql", tmp_path / "stop"
    change.write_text("ALTER TABLE shared ADD COLUMN more; CREATE INDEX shared_n ON shared (n);")
    writers = [street.python(WRITES_ON, str(street.by[name]), str(seed), str(stop)) for seed, name in enumerate(NAMES)]
    wait_until(lambda: all(len(street.rows(name)["shared"]) > 10 for name in NAMES), what="all write")
    street.stop_site("c")
    refused = street.on(street.by["b"], "schema", "run", change, "--timeout", "1", check=False)
    assert refused.returncode == 75, refused.stderr
    assert "c is waited for: all suppliers stand aside until then, and nothing was changed" in refused.stderr
    assert "schema unfence" in refused.stderr
    wait_until(
        lambda: "waited for: c\n" in street.on(street.by["b"], "schema", "status", check=False).stdout,
        what="a stands aside, and c alone is waited for",
    )
    assert stands(street, "a")
    street.on(street.by["b"], "schema", "unfence")
    wait_until(lambda: not stands(street, "a"), what="a writes again")
    before = len(street.rows("a")["shared"])
    wait_until(lambda: len(street.rows("a")["shared"]) > before, what="the others write on while c is away")
    again = street.on(street.by["b"], "schema", "run", change, "--timeout", "1", check=False)
    assert again.returncode == 75, again.stderr
    wait_until(lambda: stands(street, "a"), what="a knows of the next one")
    for name, daemon in (("a", "update"), ("b", "update"), ("a", "source-b"), ("b", "receiver"), ("b", "source-a")):
        street.restart(name, daemon)
    street.start_site("c")
    wait_until(lambda: stands(street, "c"), what="c knows, and has its say")
    street.restart("c", "update")
    done = street.on(street.by["b"], "schema", "run", change, "--timeout", "60")
    assert "region main: 2 statements, transaction" in done.stdout
    wait_until(lambda: not any(stands(street, name) for name in NAMES), what="all write again")
    seen = {name: len(street.rows(name)["shared"]) for name in NAMES}
    wait_until(lambda: all(len(street.rows(name)["shared"]) > seen[name] for name in NAMES), what="all write on")
    assert min(ended(street, writers, stop)) > 0
    assert all(len(row) == 5 for row in street.rows("c")["shared"])
    assert "equal" in street.on(street.by["a"], "compare", "--with", street.by["b"]).stdout


PLACES = ("fence.said:1", "fence.closed:1", "commit.before_append:2", "append.after_write:2", "commit.after_commit:2")
AFTER = PLACES[-2:]
"""Where the change is made, or in the journal: nothing is left to do."""


def test_the_command_is_killed_at_each_step(street: SupplierStreet, tmp_path: Path) -> None:
    """Each time it is given again, until the change is made; nobody is left standing aside."""
    for number, place in enumerate(PLACES):
        change = tmp_path / f"{number}.sql"
        change.write_text(f"CREATE TABLE made{number} (id TEXT PRIMARY KEY, v);")
        words = ["-i", str(street.by["a"]), "schema", "run", str(change), "--timeout", "60"]
        killed = street.python(
            "import sys; from replicate.cli.main import main; sys.exit(main())",
            *words,
            REPLICATE_FAILPOINT=f"{place}:kill",
        )
        killed.communicate(timeout=120)
        assert killed.returncode == -9, place
        again = street.on(street.by["a"], "schema", "run", change, "--timeout", "60", check=False)
        is_made = again.returncode == 2 and f"table made{number} already exists" in again.stderr
        assert again.returncode == 0 or is_made, again.stderr
        assert is_made == (place in AFTER), place
        wait_until(lambda: not any(stands(street, name) for name in NAMES), what="all write again")
    street.level()
    assert all({f"made{number}" for number in range(len(PLACES))} <= street.rows(name).keys() for name in NAMES)
