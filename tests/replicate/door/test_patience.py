"""A process that stands still with a lock costs others their own timeout, and no more (fault 14). Nobody robs it.

What is waited for is told in the error; the clock is only asked whether it was far longer than that.
"""

from __future__ import annotations

import os
import signal
import sqlite3
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, contextmanager
from pathlib import Path

import pytest

import replicate
from replicate.errors import BusyError
from replicate.instance.instance import Instance
from replicate.region.sqlite.writing import FileWriter
from replicate.status.collect import collect
from replicate.system.locks import FileLock
from tests.harness.counting import count_calls
from tests.harness.instances import Writer, check, lose_pool, make_primary, make_secondary
from tests.harness.waiting import PATIENCE_S, wait_until

pytestmark = pytest.mark.usefixtures("shared_memory")

TIMEOUT_S = 1.0
FAR_LONGER_S = 20.0
"""The default of any lock is more than that."""


def open_only(instance: Instance) -> None:
    with closing(replicate.connect(instance.path, timeout=TIMEOUT_S)):
        pass


def insert(instance: Instance) -> None:
    with closing(replicate.connect(instance.path, timeout=TIMEOUT_S)) as connection:
        connection.execute("INSERT INTO t VALUES (100, 'x')")
        connection.commit()


def insert_in_both(instance: Instance) -> None:
    with closing(replicate.connect(instance.path, timeout=TIMEOUT_S)) as connection:
        connection.attach("two")  # type: ignore[attr-defined]
        connection.execute("INSERT INTO t VALUES (100, 'x')")
        connection.execute("INSERT INTO two.t VALUES (100, 'x')")
        connection.commit()


def durable_of(instance: Instance) -> Callable[[], int]:
    """Reads the last durable seqno."""
    return lambda: collect(instance).journal.last_durable_seqno or 0


@contextmanager
def stopped(instance: Instance, region: str, step: str) -> Iterator[None]:
    """A writer of that region stands still at that step."""
    with Writer(instance) as writer:
        writer.ask("open", region)
        writer.ask("arm", f"{step}:1:stop")
        writer.send("insert", region, 1)
        writer.stands_still()
        try:
            yield
        finally:
            os.kill(writer.process.pid, signal.SIGCONT)
        assert isinstance(writer.answer(), int)


CASES: dict[str, tuple[str, str, Callable[[Instance], None], str]] = {
    "the region": ("main", "append.before_write", insert, "region main was held by another process for 1 s"),
    "a region that is attached": ("two", "append.before_write", insert_in_both, "region two was held by another"),
    "the commit lock": ("two", "append.after_write", insert, "the commit lock was held by another process for 1 s"),
}


@pytest.mark.parametrize("case", CASES)
def test_a_writer_waits_for_its_own_timeout(tmp_path: Path, case: str) -> None:
    region, step, act, told = CASES[case]
    instance = make_primary(tmp_path / "p", regions=("main", "two"))
    insert_first(instance)
    with stopped(instance, region, step):
        began_s = time.monotonic()
        open_only(instance)  # a process that only reads needs none of them
        with pytest.raises(BusyError, match=told) as raised:
            act(instance)
        assert isinstance(raised.value, replicate.OperationalError)
        assert time.monotonic() - began_s < FAR_LONGER_S
    insert(instance)
    found = check(instance)
    assert found.rows["main"].keys() | found.rows["two"].keys() == {0, 1, 100}


def insert_first(instance: Instance) -> None:
    with closing(replicate.connect(instance.path)) as connection:
        connection.execute("INSERT INTO t VALUES (0, 'x')")
        connection.commit()


@pytest.mark.parametrize("name", ["region-1", "commit"])
def test_who_finds_a_recovery_to_do_waits_for_its_own_timeout(tmp_path: Path, name: str) -> None:
    """For all locks together."""
    instance = make_primary(tmp_path / "p", regions=("main", "two"))
    insert_first(instance)
    lose_pool(instance)
    lock = FileLock(instance.locks_directory / f"{name}.lock")
    lock.acquire(5)
    began_s = time.monotonic()
    with pytest.raises(BusyError, match=f"lock {name}, which recovery needs, was held"):
        open_only(instance)
    assert time.monotonic() - began_s < FAR_LONGER_S
    lock.close()
    insert(instance)
    check(instance)


def test_a_flush_that_stands_still_costs_who_has_not_appended_yet_its_own_timeout(tmp_path: Path) -> None:
    """The journal is to be synced before a large transaction enters it; the holder of the sync lock stands still."""
    instance = make_primary(tmp_path / "p", durability="off")
    lock = FileLock(instance.locks_directory / "sync.lock")
    with closing(replicate.connect(instance.path, timeout=TIMEOUT_S)) as connection:
        connection.execute("INSERT INTO t VALUES (0, 'x')")
        connection.commit()
        lock.acquire(5)
        connection.executemany("INSERT INTO t VALUES (?, ?)", [(number, "y" * 2000) for number in range(1, 500)])
        began_s = time.monotonic()
        with pytest.raises(BusyError, match=r"the journal's sync was held by another .* for 1 s"):
            connection.commit()
        assert time.monotonic() - began_s < FAR_LONGER_S
        lock.close()
        assert not connection.in_transaction
        connection.execute("INSERT INTO t VALUES (1000, 'x')")
        connection.commit()
    assert check(instance).rows["main"].keys() == {0, 1000}


def test_what_is_durable_already_is_not_waited_for_after_a_flush_that_stands_still(tmp_path: Path) -> None:
    """A schema change is synced before its COMMIT. That it is durable is said with the next flush: nobody waits for
    that with the commit lock in the hand, and what is committed is never called busy."""
    instance = make_primary(tmp_path / "p", durability="off")
    lock = FileLock(instance.locks_directory / "sync.lock")
    with closing(replicate.connect(instance.path, timeout=TIMEOUT_S)) as connection:
        durable = durable_of(instance)
        lock.acquire(5)
        began_s = time.monotonic()
        connection.execute("CREATE TABLE later (id INTEGER PRIMARY KEY)")
        connection.commit()
        seqno = connection.last_seqno
        assert seqno is not None
        assert durable() < seqno
        insert(instance)
        assert time.monotonic() - began_s < FAR_LONGER_S
        lock.close()
        connection.wait_durable()
        assert durable() > seqno
    assert check(instance).rows["main"].keys() == {100}


def test_a_reader_of_a_secondary_waits_for_nobody(tmp_path: Path) -> None:
    primary = make_primary(tmp_path / "p")
    insert_first(primary)
    secondary = make_secondary(tmp_path / "s", primary)
    open_only(secondary)
    locks = [FileLock(secondary.locks_directory / f"{name}.lock") for name in ("commit", "sync", "region-0")]
    for lock in locks:
        lock.acquire(5)
    with closing(replicate.connect(secondary.path, timeout=TIMEOUT_S)) as connection:
        assert connection.execute("SELECT id FROM t").fetchall() == [(0,)]
    for lock in locks:
        lock.close()


HOLDER = """
import sqlite3, sys
connection = sqlite3.connect(sys.argv[1], isolation_level=None)
connection.execute("BEGIN IMMEDIATE")
print("held", flush=True)
sys.stdin.readline()
connection.execute("ROLLBACK")
"""


def test_the_transaction_of_another_client_is_waited_for_as_long_as_one_of_ours(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A shell, or DB Browser, with changes that it has not written yet: refused after a quarter of a second, before."""
    instance = make_primary(tmp_path / "alpha")
    refused = count_calls(monkeypatch, FileWriter, "named")
    command = [sys.executable, "-c", HOLDER, str(instance.region("main").path)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as holder:
        assert holder.stdin is not None
        assert holder.stdout is not None
        assert holder.stdout.readline() == "held\n"
        with closing(replicate.connect(instance.path, timeout=0.1)) as connection:
            with pytest.raises(sqlite3.OperationalError, match="locked by another client"):
                connection.execute("INSERT INTO t VALUES (100, 'x')")
        with closing(replicate.connect(instance.path, timeout=PATIENCE_S)) as connection, ThreadPoolExecutor() as pool:
            tried_again = refused.since_now(3)

            def end_it() -> None:
                wait_until(tried_again, timeout_s=FAR_LONGER_S)
                holder.communicate("\n")

            ended = pool.submit(end_it)
            connection.execute("INSERT INTO t VALUES (100, 'x')")
            connection.commit()
            ended.result()
