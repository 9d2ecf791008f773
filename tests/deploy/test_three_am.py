"""The page "3 a.m." is true: each row is brought about on a real street, looked at and mended by what the row says."""

from __future__ import annotations

import os
import re
import shlex
import signal
import sqlite3
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.harness import fork_server
from tests.harness.street import Street
from tests.harness.waiting import wait_until

CHECKOUT = Path(__file__).resolve().parents[2]
PAGE = (CHECKOUT / "deploy" / "manual" / "three-am.md").read_text(encoding="utf-8")
SETTINGS = """
[journal]
durability = "interval"
pool_bytes = 1048576
segment_bytes = 1048576
cap_bytes = 8388608
[source]
heartbeat_period_s = 0.5
hard_period_s = 0.1
soft_period_s = 0.2
[receiver]
pool_bytes = 4194304
heartbeat_period_s = 0.5
"""

pytestmark = pytest.mark.slow


@dataclass(frozen=True)
class Row:
    """One row of the page. `looks` and `types` are the commands in its cells; `says` the words that they must show."""

    sees: str
    looks: tuple[str, ...]
    says: tuple[str, ...]
    types: tuple[str, ...]


def rows() -> list[Row]:
    found = []
    for line in PAGE.splitlines():
        cells = [cell.strip() for cell in line.strip("|").split("|")]
        if line.startswith("| ") and len(cells) == 4 and not cells[0].startswith(("what you see", "---")):
            sees, look, says, types = cells
            looks = [one for one in re.findall("`([^`]*)`", look) if one.startswith("replicate")]
            codes = [word.strip("`") for word in re.split(", ", says) if word]
            found.append(Row(sees, tuple(looks), tuple(codes), tuple(re.findall("`([^`]*)`", types))))
    return found


@pytest.fixture(scope="module")
def street(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Street]:
    made = Street(tmp_path_factory.mktemp("night"), settings=SETTINGS).build()
    made.environment["REPLICATE_HOME"] = str(made.directory)
    bin_directory = made.directory / "bin"
    bin_directory.mkdir()
    command = bin_directory / "replicate"
    command.write_text(f'#!/bin/sh\nexec {shlex.quote(sys.executable)} -m replicate.cli.main "$@"\n')
    command.chmod(0o755)
    made.environment["PATH"] = f"{bin_directory}:{os.environ['PATH']}"
    try:
        made.start()
        # Each row has a journal to look at, and whatever is done by hand there comes after it.
        last = made.write("UPDATE account SET balance = balance + 1 WHERE id = 1")
        made.on(made.secondary, "wait", "--seqno", str(last), "--timeout", "60")
        yield made
    finally:
        made.close()


# What brings each row about.


def by_hand(street: Street, *statements: str) -> None:
    """What a program does that goes past the guards, in a process of its own."""
    program = """
import sqlite3, sys
connection = sqlite3.connect(sys.argv[1], isolation_level=None)
connection.create_function("replicate_connect_is_required", -1, lambda *_: 0)
for statement in sys.argv[2:]:
    connection.execute(statement)
"""
    database = street.secondary / "regions" / "main.db"
    subprocess.run([sys.executable, "-c", program, str(database), *statements], check=True, timeout=300)


def kill(daemon: str, of: str = "secondary") -> Callable[[Street], None]:
    return lambda street: street.kill(getattr(street, of), daemon)


def freeze(street: Street) -> None:
    street.kill(street.secondary, "receiver", signal.SIGSTOP)


def silence(street: Street) -> None:
    street.kill(street.primary, "source-secondary", signal.SIGSTOP)


def stop_source(street: Street) -> None:
    street.on(street.primary, "source", "stop", "--peer", "secondary")


def end(street: Street) -> None:
    """Let the Update Process end by its error."""
    wait_until(lambda: street.daemon(street.secondary, "update").get("state") == "failed", what="update has failed")


def conflict(street: Street) -> None:
    by_hand(street, "UPDATE account SET owner = 'by hand' WHERE id = 1")
    street.write("UPDATE account SET balance = balance + 1 WHERE id = 1")
    end(street)


def other_schema(street: Street) -> None:
    by_hand(street, "CREATE INDEX by_hand ON account (balance)")
    street.write("UPDATE account SET balance = balance + 1 WHERE id = 1")
    end(street)


def fill(street: Street) -> None:
    street.kill(street.secondary, "update")
    program = """
import sys, replicate
connection = replicate.connect(sys.argv[1], timeout=60)
for number in range(58):
    with connection:
        connection.execute("INSERT INTO loose VALUES (?, randomblob(100000))", (number,))
"""
    street.finish([street.python(program, str(street.primary))])


def differ(street: Street) -> None:
    by_hand(street, "UPDATE account SET note = 'by hand' WHERE id = 1")


def refuse(street: Street) -> None:
    with closing(sqlite3.connect(street.database)) as connection:
        with pytest.raises(sqlite3.OperationalError, match="no such function: replicate_connect_is_required"):
            connection.execute("INSERT INTO loose VALUES (1, 2)")


def nothing(_street: Street) -> None:
    pass


BROUGHT_ABOUT: dict[str, Callable[[Street], None]] = {
    "The secondary stands still, and its lag grows.": kill("update"),
    "The secondary hears nothing of the primary.": kill("source-secondary", "primary"),
    "The primary cannot reach the secondary.": kill("receiver"),
    "A daemon is there, and does nothing.": freeze,
    "Both sites say that the other one is silent.": silence,
    "After a reboot nothing is replicated.": stop_source,
    "The Update Process ends at a row, each time it is started.": conflict,
    "A program has changed the schema of the secondary's database.": other_schema,
    "The primary's journal grows, because a peer is away.": fill,
    "You doubt that both databases are equal.": differ,
    "A client gets `no such function: replicate_connect_is_required`.": refuse,
    "You do not know what a daemon last did.": nothing,
    # The last one: nothing goes on after it.
    "A peer will never come back, and the journal is kept for it.": nothing,
}


def test_every_row_is_run() -> None:
    assert sorted(row.sees for row in rows()) == sorted(BROUGHT_ABOUT)
    assert all(row.types or "nothing" in PAGE for row in rows())


@pytest.mark.parametrize("sees", BROUGHT_ABOUT)
def test_a_row(street: Street, sees: str) -> None:
    row = next(one for one in rows() if one.sees == sees)
    port, receiver = street.port(), street.pid(street.secondary, "receiver")
    BROUGHT_ABOUT[sees](street)
    if sees.startswith("You doubt"):
        row = Row(sees, row.looks, ("differ",), row.types)
    for command in row.looks:
        wait_until(lambda command=command: says(street, command, row.says), what=f"{command} says {row.says}")
    if sees.startswith("A client"):
        return
    if BROUGHT_ABOUT[sees] is silence:
        street.kill(street.primary, "source-secondary", signal.SIGCONT)  # the line is mended
    for command in row.types:
        given = command.replace("HOST:PORT", f"127.0.0.1:{port}").replace("PID", str(receiver))
        done = shell(street, given)
        assert done.returncode == 0, done.stdout + done.stderr
    if not sees.startswith("A peer will never"):
        street.prove_equal()
    else:
        assert "secondary" not in shell(street, "replicate -i primary peer list").stdout
    for command in row.looks if row.types or BROUGHT_ABOUT[sees] is silence else ():
        wait_until(lambda command=command: not says(street, command, row.says), what=f"{row.says} is over")


def says(street: Street, command: str, words: tuple[str, ...]) -> bool:
    """Whether one finding, or else what the command prints, has all of the words."""
    done = shell(street, command)
    told = done.stdout + done.stderr
    paragraphs = re.split(r"\n(?=\S)", told) if "status" in command else [told]
    return any(all(word in one for word in words) for one in paragraphs)


def shell(street: Street, command: str) -> subprocess.CompletedProcess[str]:
    environment = street.environment | fork_server.command(street.directory / "bin")
    return subprocess.run(
        ["sh", "-c", command], env=environment, capture_output=True, text=True, timeout=300, check=False
    )
