"""The chapter's rolling upgrade by its commands, with real daemons, while an application of either release writes.

Both releases commit but for the moment of the switchover; what each was told is committed is on both sites in the end,
once, in the new schema.
"""

from __future__ import annotations

import re
import sqlite3
import subprocess
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from tests.harness.both_sites import Both
from tests.harness.manual import chapter, commands, section
from tests.harness.street import QUICK
from tests.harness.waiting import wait_until
from tests.system.test_rolling_upgrade import OLD, UPGRADE

SCHEMA = OLD + "CREATE TABLE audit (what TEXT, at INTEGER);"

RELEASE = """
import sys, time, replicate
from replicate.dbapi import OperationalError
place, columns, values, word, number = *sys.argv[1:5], 0
connection = replicate.connect(place, timeout=60)
print("ready", flush=True)
while True:
    number += 1
    name = f"{word}{number} Of"
    try:
        with connection:
            connection.execute(f"INSERT INTO person ({columns}) VALUES ({values})", (name,))
            if number % 5 == 0:
                connection.execute("DELETE FROM person WHERE id % 9 = 1 AND id % 5 = 2")
    except OperationalError as error:
        if "NOT_PRIMARY" not in str(error):
            raise
        sys.exit(0)
    print(number, flush=True)
    time.sleep(0.003)
"""
ONE = ("name", "?")
TWO = ("first, last", "substr(?1, 1, instr(?1, ' ') - 1), substr(?1, instr(?1, ' ') + 1)")


@pytest.fixture
def both(tmp_path: Path) -> Iterator[Both]:
    made = Both(tmp_path, settings=QUICK, schema=SCHEMA)
    try:
        yield made.build().start()
    finally:
        made.close()


def release(both: Both, site: Path, form: tuple[str, str], word: str) -> subprocess.Popen[str]:
    process = both.python(RELEASE, str(site), *form, word)
    assert process.stdout is not None
    assert process.stdout.readline() == "ready\n"
    return process


def upgrade(both: Both, site: Path, function: str) -> None:
    """The chapter's commands, on that site, with its filter ("" for none)."""
    script = both.directory / "upgrade.sql"
    script.write_text(UPGRADE)
    lines = [
        line for line in commands(section(chapter("filters"), "A rolling upgrade")) if line.startswith("replicate")
    ]
    assert [line.split()[3:5] for line in lines] == [
        ["receiver", "stop"], ["region", "upgrade"], ["config", "set"], ["receiver", "start"]
    ]  # fmt: skip
    for line in lines:
        words = line.replace("upgrade.sql", str(script)).replace("people:upgrade", function).split()[3:]
        if words[0] == "config":
            words = [*words[:3], function]
        if words[0] == "receiver" and words[1] == "start":
            words += ["--listen", both.listens_at(site)]
        done = both.on(site, *words, check=False)
        # A stop says 1 where something came while it stopped: that stays in the pool, and is applied by the upgrade.
        assert done.returncode in ((0, 1) if words[:2] == ["receiver", "stop"] else (0,)), done


def names(path: Path) -> list[str]:
    """First names of the new schema."""
    with closing(sqlite3.connect(f"file:{path}?mode=ro", uri=True)) as connection:
        return [row[0] for row in connection.execute("SELECT first FROM person WHERE last = 'Of' ORDER BY id")]


def names_of_old(path: Path) -> list[str]:
    with closing(sqlite3.connect(f"file:{path}?mode=ro", uri=True)) as connection:
        return [row[0] for row in connection.execute("SELECT name FROM person WHERE name LIKE 'old%'")]


@pytest.mark.slow
def test_one_site_after_the_other_while_both_releases_write(both: Both) -> None:
    east, west = both.primary, both.secondary
    old = release(both, east, ONE, "old")
    passive = ("source", "stop", "--peer", "primary")
    both.on(west, *passive)
    upgrade(both, west, "tests.harness.filters:two_names")
    both.on(west, "source", "start", "--peer", "primary")
    both.on(east, "receiver", "stop")
    both.on(east, "config", "set", "receiver.filter", "tests.harness.filters:one_name")
    both.on(east, "receiver", "start", "--listen", both.listen)
    wait_until(lambda: len(names_of_old(both.database)) > 60, what="the old release has written much")
    at = both.last_seqno(east)
    both.on(west, "wait", "--seqno", str(at), "--timeout", "60")

    both.on(east, "switchover", "--to", "secondary")
    output, errors = old.communicate(timeout=60)
    assert old.returncode == 0, errors
    told = [f"old{number}" for number in output.split()]
    new = release(both, west, TWO, "new")
    both.exchange()
    wait_until(lambda: both.last_seqno(east) > both.last_seqno(west) - 5, what="the old site follows")
    both.on(east, "source", "stop", "--peer", "secondary")
    upgrade(both, east, "")
    both.on(east, "source", "start", "--peer", "secondary")
    wait_until(lambda: both.last_seqno(east) > both.last_seqno(west) - 5, what="it follows without a filter")
    wait_until(lambda: sum("new" in name for name in names(both.path_of(west))) > 60, what="and the new one, too")
    new.kill()
    output, _ = new.communicate()
    told += [f"new{number}" for number in re.findall(r"^\d+(?=\n)", output, re.MULTILINE)]
    both.equal()
    with closing(sqlite3.connect(f"file:{both.path_of(west)}?mode=ro", uri=True)) as connection:
        (last,) = connection.execute("SELECT max(id) FROM person").fetchone()
    here = names(both.path_of(west))
    assert len(here) == len(set(here))
    gone = set(told) - set(here)
    assert len(told) > 100
    # What the application itself deletes: keys of one class of 45.
    assert len(gone) <= last // 45 + 1
