"""A database put back from a copy while the `-wal` and `-shm` of the lost one still lie beside it.

Fault 48 of the project's catalogue. SQLite takes whatever `-wal` it finds, and mixes the two. Both an old copy that
stands alone and one with a WAL that was written upon a newer database are refused by name, before anything is written,
on either site, by whatever opens the region.
"""

from __future__ import annotations

import re
import shutil
from pathlib import Path

import pytest

from tests.harness.street import Street
from tests.harness.waiting import wait_until

pytestmark = pytest.mark.slow

KILLED = """
import os, signal, sys, replicate
connection = replicate.connect(sys.argv[1])
with connection:
    connection.execute("INSERT INTO loose VALUES ('third', 3)")
os.kill(os.getpid(), signal.SIGKILL)
"""


def put_back(street: Street) -> None:
    """Three transactions, which the secondary has; the database goes back to the first, and the `-wal` holds the third
    alone."""
    rows = ", ".join(f"('row {number}', zeroblob(300))" for number in range(300))
    street.write(f"INSERT INTO loose VALUES {rows}")
    old = street.directory / "old.db"
    shutil.copyfile(street.database, old)  # nobody has it open, so all of it is in this one file
    last = street.write("UPDATE loose SET b = 'second' WHERE rowid < 200") + 1
    killed = street.python(KILLED, str(street.primary))
    killed.communicate(timeout=120)
    facts = lambda: street.daemon(street.primary, "source-secondary")["facts"]  # noqa: E731
    wait_until(lambda: facts().get("last_acknowledged_seqno", 0) >= last, what="the secondary has them")
    assert Path(f"{street.database}-wal").stat().st_size > 0
    with street.database.open("r+b") as file:
        file.truncate(0)
        file.write(old.read_bytes())


def files(database: Path) -> dict[str, bytes]:
    return {ending: Path(f"{database}{ending}").read_bytes() for ending in ("", "-wal")}


def attempt(street: Street) -> tuple[int, str]:
    program = """
import sys, replicate
connection = replicate.connect(sys.argv[1])
with connection:
    connection.execute("INSERT INTO loose VALUES ('fourth', 4)")
connection.close()
"""
    process = street.python(program, str(street.primary))
    _, errors = process.communicate(timeout=120)
    return process.returncode, errors


def test_fault_48_an_old_copy_put_back_as_readme_says_is_refused_by_name(street: Street) -> None:
    put_back(street)
    for ending in ("-wal", "-shm"):
        Path(f"{street.database}{ending}").unlink()
    code, errors = attempt(street)
    assert code
    assert "REGION_REPLACED" in errors
    assert "old copy" in errors
    assert street.on(street.primary, "status", check=False).returncode == 1


def test_fault_48_an_old_copy_beside_a_newer_wal_is_refused_and_nothing_is_written(street: Street) -> None:
    put_back(street)
    before = files(street.database)
    code, errors = attempt(street)
    assert code
    assert "REGION_REPLACED" in errors
    assert "-wal of a newer one" in errors
    street.on(street.primary, "source", "stop")
    for command in (
        ("compare", "--with", street.secondary),
        ("region", "add", street.database),
        ("region", "add", street.database, "--name", "main"),
        ("region", "release", "main"),
        ("seed", "--to-file", street.directory / "a.seed", "--for", "secondary"),
    ):
        done = street.on(street.primary, *command, check=False)
        assert done.returncode == 65, (command, done.stderr)
        assert "REGION_REPLACED" in done.stdout + done.stderr, command
    shown = street.on(street.primary, "status", check=False)
    assert shown.returncode == 1
    assert "REGION_REPLACED" in shown.stdout
    assert re.search(r"Next: Nothing was written\. Stop every process.*or begin again: ", shown.stdout)
    assert files(street.database) == before
    street.on(street.primary, "region", "release", "main", "--force")  # one of the ways out that the error names
