"""Transactions over several regions when something fails between two files: killed, disk full, power lost."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from replicate.dbapi import connect
from replicate.instance.instance import Instance
from replicate.pool import control as word
from replicate.pool.journal_pool import JournalPool
from tests.harness.instances import configure, lose_pool, power_loss, restore_region, save_region
from tests.harness.pair import work_all
from tests.harness.several import Several, content


def run(instance: Instance, *arguments: object, failpoint: str = "") -> tuple[bool, list[Any]]:
    """Whether the process was killed, and what it said."""
    ended = subprocess.run(
        [sys.executable, "-m", "tests.harness.half_commit", str(instance.path), *map(str, arguments)],
        env={**os.environ, "REPLICATE_FAILPOINT": failpoint},
        check=False,
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert ended.returncode in (0, -signal.SIGKILL), ended.stderr
    return ended.returncode != 0, [json.loads(line) for line in ended.stdout.splitlines()]


def rows(several: Several) -> dict[str, int]:
    """How many rows the table t has in each region of the primary."""
    return {name: len(content(several.primary, name)["rows of t"]) for name in several.names}


def write_in_all(several: Several) -> None:
    """The next transaction over all regions; it finds nothing unfinished."""
    with several.attached() as connection:
        for schema in ("main", *several.names[1:]):
            connection.execute(f"INSERT INTO {schema}.t (v) VALUES ('next')")
    connection.close()


def more(before: dict[str, int], count: int) -> dict[str, int]:
    """So many rows more in each region."""
    return {name: rows + count for name, rows in before.items()}


KILLS = [
    # Home, region whose WAL is written, which write, what, rows; the region that has the transaction then; then what.
    ("main", "two", 1, "kill", 2, "main", "next writer"),
    ("main", "two", 2, "torn", 2, "main", "power loss"),
    ("two", "main", 1, "kill", 2, "two", "next writer"),
    ("main", "main", 1, "kill", 2, "", "next writer"),
    ("two", "main", 1, "kill", 3, "two", "next writer"),
    ("main", "two", 1, "kill", 3, "main", "power loss"),
    ("main", "two", 1, "kill", 400, "main", "power loss"),
]


@pytest.mark.slow
def test_killed_between_the_files_of_a_commit(several: Several) -> None:
    for home, region, write, action, size, has_it, then in KILLS:
        before = rows(several)
        killed, said = run(several.primary, home, region, write, action, size)
        assert killed
        (first,) = said
        assert several.held() == {name: first + (name == has_it) for name in several.names}
        if then == "power loss":
            lose_pool(several.primary)
            rows(several)  # recovers
            assert several.held() == dict.fromkeys(several.names, first + 1)
        write_in_all(several)
        assert several.last_seqno() == first + 2
        assert rows(several) == more(before, size + 2)
    several.same()


PLACES = [
    # A failpoint of a commit, rows, and whether they are there afterwards.
    ("commit.before_append:2", 2, False),
    ("append.after_write:2", 2, True),
    ("commit.after_commit:2", 2, True),
    ("adopt.before_rename:1", 400, False),
    ("adopt.renamed:1", 400, True),
]


@pytest.mark.slow
def test_killed_at_each_failpoint_of_a_commit(several: Several) -> None:
    for place, size, appended in PLACES:
        before = rows(several)
        killed, said = run(several.primary, "main", "two", 0, "none", size, failpoint=f"{place}:kill")
        assert killed, place
        assert len(said) == 1, place
        write_in_all(several)
        assert rows(several) == more(before, 2 + size * appended), place
    several.same()


@pytest.mark.slow
@pytest.mark.parametrize("size", [2, 400])
def test_a_commit_that_fails_in_the_second_region_is_finished_there(several: Several, size: int) -> None:
    killed, said = run(several.primary, "main", "two", 1, "once", size)
    assert not killed
    assert said == [said[0], said[0] + 1]
    assert several.held() == dict.fromkeys(several.names, said[1])
    assert several.same() == said[1]


def test_a_commit_that_cannot_be_finished_in_the_second_region_has_an_unknown_outcome(several: Several) -> None:
    _, said = run(several.primary, "main", "two", 1, "close")
    assert said[1:] == ["HalfCommittedError", said[0] + 2]
    assert several.same() == said[2]
    assert rows(several) == {"main": 4, "two": 4}


def test_a_commit_that_fails_in_the_first_region_is_void_in_both(several: Several) -> None:
    _, said = run(several.primary, "main", "main", 1, "close")
    assert said[1:] == ["DiskFullError", said[0] + 2]
    assert several.same() == said[2]
    assert rows(several) == {"main": 2, "two": 2}


def test_three_regions_killed_before_the_last(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("REPLICATE_SHM_DIR", str(tmp_path / "shm"))
    several = Several.make(tmp_path, ("main", "two", "three"))
    _, (first,) = run(several.primary, "two", "three", 1, "kill")
    assert several.held() == {"main": first + 1, "two": first + 1, "three": first}
    with connect(several.primary.path, "three") as connection:
        connection.execute("INSERT INTO t (v) VALUES ('redone before')")
        assert connection.execute("SELECT count(*) FROM t").fetchone() == (4,)
    connection.close()
    write_in_all(several)
    several.same()
    assert rows(several) == {"main": 4, "two": 4, "three": 5}


# Power.


def end_of(instance: Instance) -> int:
    """Where the journal ends for everybody: before what a killed writer has appended."""
    pool = JournalPool.attach(instance.content.uuid)
    try:
        return int(pool.words[word.END_OFFSET])
    finally:
        pool.close()


def test_power_is_lost_and_only_one_region_has_the_transaction(several: Several) -> None:
    """Nor has the journal: the region's ring completes it, and from there the other region."""
    configure(several.primary.path, durability="off")
    _, (first,) = run(several.primary, "main", "two", 1, "kill")
    power_loss(several.primary, end_of(several.primary))
    assert rows(several) == {"main": 3, "two": 3}
    assert several.held() == dict.fromkeys(several.names, first + 1)
    write_in_all(several)
    several.same()


def test_power_is_lost_and_a_transaction_over_two_regions_stands_after_a_hole(several: Several, tmp_path: Path) -> None:
    """What was not durable goes as a whole: the region that has its part gives it back."""
    configure(several.primary.path, durability="off")
    write_in_all(several)
    several.same()
    end = end_of(several.primary)
    save_region(several.path("two"), tmp_path / "aside")
    with several.attached() as connection:
        connection.execute("INSERT INTO two.t VALUES (600, 'lost')")
        connection.commit()
        connection.execute("INSERT INTO two.t VALUES (601, 'lost')")
        connection.execute("INSERT INTO t VALUES (601, 'given back')")
        connection.execute("UPDATE t SET v = 'given back' WHERE id = 1")
    connection.close()
    restore_region(several.path("two"), tmp_path / "aside")
    power_loss(several.primary, end)
    assert rows(several) == {"main": 1, "two": 1}
    assert content(several.primary, "main")["rows of t"][0][2] == (str, "next")
    with several.attached() as connection:
        connection.execute("INSERT INTO t VALUES (700, 'x')")
        connection.execute("INSERT INTO two.t VALUES (700, 'x')")
    connection.close()
    several.primary.reload()
    several.same()


# The secondary.


@pytest.mark.slow
def test_the_update_process_dies_between_the_files_of_a_commit(several: Several) -> None:
    """Each region gets the transaction exactly once: an INSERT that came twice would be a conflict."""
    for region, size, action in (("main", 2, "torn"), ("two", 400, "always")):
        _, said = run(several.primary, "main", "two", 0, "none", size)
        with several.receive_pool() as pool:
            several.deliver(pool)
            _, told = run(several.secondary, "apply", region, 1, action)
            assert told == (["OutcomeUnknownError"] if action == "always" else [])
            with several.applier(pool) as applier:
                work_all(applier)
                assert applier.applied_seqno == said[-1]
    several.same()
