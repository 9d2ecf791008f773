"""Equality at one sequence number, while both sides go on; waiting; releasing a region."""

from __future__ import annotations

import contextlib
import os
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TypeVar

import apsw
import pytest

from replicate.admin import partitions, subscriptions
from replicate.admin.dropping_rows import drop_rows
from replicate.admin.region_release import release_region
from replicate.compare import compare as compare_module
from replicate.compare.compare import CompareProgress, compare, digest
from replicate.compare.digest import compare_digests
from replicate.daemon.files import DaemonFiles
from replicate.door.barrier import WRITER_WAIT_S_MAX, Barrier
from replicate.door.snapshot import door_of, take_snapshot
from replicate.door.wait import wait_for_seqno
from replicate.errors import AlreadyRunningError, BusyError, NotFoundError, TryAgainError, UsageError, WrongNetworkError
from replicate.instance.instance import Instance
from replicate.pool import control as word
from tests.harness.pair import Pair
from update_process.process import finish_received

T = TypeVar("T")


def write(pair: Pair, count: int = 5, first: int = 1) -> None:
    connection = pair.connect()
    for number in range(first, first + count):
        connection.execute("INSERT INTO account VALUES (?, 'o', 0, 1)", (number,))
        connection.commit()
    connection.close()


def catch_up(pair: Pair) -> None:
    with pair.receive_pool() as pool:
        pair.deliver(pool)
        with pair.applier(pool) as applier:
            applier.work(60)


@contextmanager
def replicating(pair: Pair) -> Iterator[None]:
    """A writer on the primary, and a thread that carries and applies, until the block is left."""
    stop = threading.Event()
    failures: list[BaseException] = []

    def guarded(work: object) -> None:
        try:
            work()  # type: ignore[operator]
        except BaseException as error:
            failures.append(error)

    def write_on() -> None:
        connection = pair.connect()
        number = 10_000
        while not stop.is_set():
            number += 1
            connection.execute("INSERT INTO account VALUES (?, 'live', 0, NULL)", (number,))
            connection.commit()
        connection.close()

    def carry_on() -> None:
        with pair.receive_pool() as pool, pair.applier(pool) as applier:
            while not stop.is_set():
                pair.deliver(pool)
                applier.work(0.05)

    threads = [threading.Thread(target=guarded, args=(work,)) for work in (write_on, carry_on)]
    for thread in threads:
        thread.start()
    try:
        yield
    finally:
        stop.set()
        for thread in threads:
            thread.join()
    assert not failures, failures


def test_equal_while_both_go_on(pair: Pair) -> None:
    write(pair)
    with replicating(pair):
        seen = []
        for _ in range(5):
            found = compare(pair.primary, pair.secondary, timeout_s=60)
            assert found.equal, found
            seen.append(found.seqno)
        turned = compare(pair.secondary, pair.primary, timeout_s=60)
        assert (turned.first, turned.second) == ("west", "east")
        assert turned.equal
        assert seen == sorted(seen), "a number went back"
        with door_of(pair.secondary) as door:
            assert door.words[word.BARRIER_SEQNO] == 0


@pytest.mark.parametrize(
    "sql",
    [
        "UPDATE account SET note = 1.0 WHERE id = 2",
        "UPDATE account SET owner = x'6f' WHERE id = 2",
        "DELETE FROM account WHERE id = 2",
        "UPDATE entry SET rowid = 99",
        "UPDATE entry SET data = x'00fe'",
        "CREATE INDEX extra ON account (owner)",
    ],
)
def test_every_difference_is_found(pair: Pair, sql: str) -> None:
    write(pair)
    connection = pair.connect()
    connection.execute("INSERT INTO entry VALUES ('a', 1, x'00ff')")
    connection.commit()
    connection.close()
    catch_up(pair)
    assert compare(pair.primary, pair.secondary, timeout_s=60).equal
    stranger = apsw.Connection(str(pair.secondary.region("main").path))
    stranger.config(apsw.SQLITE_DBCONFIG_ENABLE_TRIGGER, 0)
    stranger.execute(sql)
    stranger.close()
    found = compare(pair.primary, pair.secondary, timeout_s=60)
    assert not found.equal
    digests = [digest(instance, timeout_s=60).regions for instance in (pair.primary, pair.secondary)]
    assert digests[0] != digests[1]


def test_a_table_of_another_definition_is_named_and_the_others_are_compared(pair: Pair) -> None:
    """As in the middle of a rolling upgrade."""
    write(pair)
    catch_up(pair)
    stranger = apsw.Connection(str(pair.secondary.region("main").path))
    stranger.execute("ALTER TABLE entry ADD COLUMN more TEXT")
    stranger.close()
    (region,) = compare(pair.primary, pair.secondary, timeout_s=60).regions
    assert region.comparison is not None
    found = {table.table: (table.status.value, table.reason) for table in region.comparison.tables}
    status, reason = found.pop("entry")
    assert (status, reason.startswith("in the second: ")) == ("different", True)
    assert found["account"] == ("equal", "")
    first, second = (digest(instance, timeout_s=60) for instance in (pair.primary, pair.secondary))
    assert compare_digests(first, second).differs == ("main.entry", "main schema")


def test_digest_at_a_number(pair: Pair) -> None:
    write(pair, 10)
    start = pair.last_seqno(pair.secondary)
    wanted = start + 4
    with pair.receive_pool() as pool, pair.applier(pool) as applier:
        found = []
        asking = threading.Thread(target=lambda: found.append(digest(pair.secondary, at=wanted, timeout_s=60)))
        asking.start()
        words = applier.session.door.words
        deadline = time.monotonic() + 60
        while not words[word.BARRIER_SEQNO]:
            assert time.monotonic() < deadline
        pair.deliver(pool)
        while asking.is_alive():
            applier.work(0.01)
        asking.join()
        applier.work(60)
        assert applier.applied_seqno == pair.last_seqno()
    assert found[0].seqno == wanted
    assert dict(found[0].regions)["main"].tables[0].rows == 4
    with pytest.raises(TryAgainError, match=f"passed: west stands at {pair.last_seqno()}.*--timeout.*without --at"):
        digest(pair.secondary, at=wanted, timeout_s=1)
    with pytest.raises(TryAgainError, match="not there"):
        digest(pair.primary, at=10**6, timeout_s=0.05)
    with pytest.raises(UsageError):
        digest(pair.primary, at=-1, timeout_s=1)
    assert compare(pair.primary, pair.secondary, at=pair.last_seqno(), timeout_s=60).equal


def test_a_busy_primary_is_taken_exactly_at_a_number(pair: Pair) -> None:
    """Several times, so that luck does not do it; and both sides at one number while all goes on.

    Where we stand still ourselves (a busy machine), the number is passed before it is asked for: then a later one is.
    """

    def at_a_number_to_come(look: Callable[[int], T]) -> T:
        for distance in (20, 200, 2000, 20_000):
            with contextlib.suppress(TryAgainError):
                return look(pair.last_seqno() + distance)
        pytest.fail("each number was passed")

    with replicating(pair):
        for _ in range(5):
            wanted, found = at_a_number_to_come(lambda at: (at, digest(pair.primary, at=at, timeout_s=60)))
            assert found.seqno == wanted
        with pytest.raises(TryAgainError, match=r"passed: east stands at .* numbers only rise"):
            digest(pair.primary, at=pair.last_seqno() - 1, timeout_s=60)
        compared = at_a_number_to_come(lambda at: compare(pair.primary, pair.secondary, at=at, timeout_s=60))
        assert compared.equal, compared


def test_a_writer_does_not_wait_long_at_a_barrier(pair: Pair, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its holder stands still: the writer goes on after a second. Its holder is dead: at once."""
    for_ever_s = 3600.0  # nobody waits who need not
    write(pair, 1)
    with door_of(pair.primary) as door:
        with Barrier(door, timeout_s=600) as barrier:
            barrier.raise_to(pair.last_seqno() + 1)
            monkeypatch.setattr("replicate.door.barrier.WRITER_WAIT_S_MAX", for_ever_s)
            write(pair, 1, first=2)
            monkeypatch.setattr("replicate.door.barrier.WRITER_WAIT_S_MAX", WRITER_WAIT_S_MAX)
            started_s = time.monotonic()
            write(pair, 1, first=3)
            assert WRITER_WAIT_S_MAX <= time.monotonic() - started_s < 60 * WRITER_WAIT_S_MAX
        monkeypatch.setattr("replicate.door.barrier.WRITER_WAIT_S_MAX", for_ever_s)
        door.words[word.BARRIER_EXPIRES_NS] = time.monotonic_ns() + 3600 * 10**9
        door.words[word.BARRIER_SEQNO] = pair.last_seqno()
        write(pair, 1, first=4)
        assert door.words[word.BARRIER_SEQNO] == 0


def test_a_secondary_that_does_not_come(pair: Pair) -> None:
    write(pair)
    with pytest.raises(TryAgainError, match="west did not come"):
        compare(pair.primary, pair.secondary, timeout_s=0.1)
    with door_of(pair.secondary) as door:
        assert door.words[word.BARRIER_SEQNO] == 0


def test_what_cannot_be_compared(pair: Pair, tmp_path: Path) -> None:
    with pytest.raises(UsageError):
        compare(pair.primary, pair.primary, timeout_s=1)
    with pytest.raises(WrongNetworkError):
        compare(pair.primary, Instance.create(tmp_path / "other", role="primary", name="other"), timeout_s=1)


def test_one_barrier_at_a_time(pair: Pair) -> None:
    with door_of(pair.secondary) as door:
        with Barrier(door, timeout_s=30) as barrier:
            assert barrier.hold() == pair.last_seqno(pair.secondary)
            barrier.raise_to(100)
            with pytest.raises(BusyError):
                Barrier(door, timeout_s=1).hold()
            assert door.words[word.BARRIER_SEQNO] == 100
        assert door.words[word.BARRIER_SEQNO] == 0
        with Barrier(door, timeout_s=30) as barrier:
            barrier.hold()


def test_a_snapshot_sees_one_moment(pair: Pair) -> None:
    write(pair)
    with door_of(pair.primary) as door, take_snapshot(door, timeout_s=60) as snapshot:
        assert snapshot is not None
        write(pair, first=100)
        (count,) = snapshot.regions.connections["main"].execute("SELECT count(*) FROM account").fetchall()[0]
        assert count == 5
        assert snapshot.seqno == snapshot.position.last_seqno == pair.last_seqno() - 5
        with take_snapshot(door, timeout_s=5, only_at=snapshot.seqno) as later:
            assert later is None


def test_waiting(pair: Pair) -> None:
    write(pair)
    assert wait_for_seqno(pair.primary, pair.last_seqno(), timeout_s=0) == pair.last_seqno()
    with pytest.raises(TryAgainError) as caught:
        wait_for_seqno(pair.secondary, pair.last_seqno(), timeout_s=0.05)
    assert caught.value.facts == {"wanted": pair.last_seqno(), "last": pair.last_seqno(pair.secondary)}
    waiting = threading.Thread(
        target=wait_for_seqno, args=(pair.secondary, pair.last_seqno()), kwargs={"timeout_s": 60}
    )
    waiting.start()
    catch_up(pair)
    waiting.join()


def test_releasing_leaves_plain_sqlite(pair: Pair) -> None:
    write(pair)
    path = pair.secondary.region("main").path
    with pair.receive_pool() as pool:
        pair.deliver(pool)
        release_region(
            pair.secondary, "main", timeout_s=5, finish=lambda: finish_received(pair.secondary, timeout_s=60)
        )
    assert pair.secondary.regions == ()
    plain = apsw.Connection(str(path))
    assert plain.execute("SELECT count(*) FROM account").get == 5
    names = [name for (name,) in plain.execute("SELECT name FROM sqlite_schema ORDER BY name")]
    assert names == ["account", "entry", "entry_at"]
    plain.execute("INSERT INTO account VALUES (77, 'free', 0, 0)")
    plain.close()
    with pytest.raises(NotFoundError):
        release_region(pair.secondary, "main", timeout_s=60)


def test_no_release_while_a_daemon_runs_or_somebody_writes(pair: Pair) -> None:
    lock = DaemonFiles(pair.primary.path, "source-west").lock.acquire()
    try:
        with pytest.raises(AlreadyRunningError, match=r"replicate -i \S+ source stop --peer west"):
            release_region(pair.primary, "main", timeout_s=1)
    finally:
        os.close(lock)
    connection = pair.connect()
    connection.execute("INSERT INTO account VALUES (1, 'x', 0, 0)")
    with pytest.raises(BusyError):
        release_region(pair.primary, "main", timeout_s=0.05)
    connection.commit()
    connection.close()
    pair.acknowledge()
    release_region(pair.primary, "main", timeout_s=1)
    assert pair.primary.regions == ()


def test_how_far_it_is_is_told(pair: Pair) -> None:
    """Bytes of one side, of those that its file has; rows; and what waits meanwhile, which is nobody."""
    connection = pair.connect()
    connection.executemany("INSERT INTO account VALUES (?, 'o', 0, ?)", ((n, "x" * 1000) for n in range(4000)))
    connection.commit()
    connection.close()
    catch_up(pair)
    steps: list[CompareProgress] = []
    found = compare(pair.primary, pair.secondary, timeout_s=10, told=steps.append)
    assert found.equal
    assert steps[0].what == "waiting until both are at one transaction"
    assert "the Update Process stands still there for a moment" in steps[0].more
    told = [step for step in steps[1:] if "account" in step.more]
    assert [step.more for step in told] == [
        f"main.account: {rows} rows; writers and the Update Process go on" for rows in range(500, 4001, 500)
    ]
    assert [step.done_bytes for step in told] == sorted({step.done_bytes for step in told})  # it moves on
    assert {step.whole_bytes for step in told} == {told[0].whole_bytes}
    assert 0.8 * told[0].whole_bytes < told[-1].done_bytes <= told[0].whole_bytes
    assert told[0].whole_bytes > 4_000_000
    steps.clear()
    assert digest(pair.primary, timeout_s=10, told=steps.append).regions[0][1].tables[0].rows == 4000
    assert [step.more for step in steps if "account" in step.more] == [step.more for step in told]
    steps.clear()
    with pytest.raises(TryAgainError):
        digest(pair.primary, at=10**6, timeout_s=0, told=steps.append)
    assert "writers will stand still there for a moment" in steps[0].more


def test_what_is_removed_meanwhile_is_no_difference(pair: Pair, monkeypatch: pytest.MonkeyPatch) -> None:
    """Both are waited for, up to half a minute, after it was looked what they hold."""
    partitions.create(pair.primary, "sales", 2)
    partitions.assign(pair.primary, "sales", ["account"])
    subscriptions.set_(pair.secondary, ["1", "2"])
    pair.write(3)
    pair.seed(restart=True)
    real = compare_module._both

    def later(*args: Any, **options: Any) -> Any:
        found = Instance.open(pair.secondary.path)
        if found.content.holds(2):
            drop_rows(found, [2], lambda: subscriptions.remove(found, ["2"]))
        return real(*args, **options)

    monkeypatch.setattr(compare_module, "_both", later)
    with pytest.raises(TryAgainError, match="west holds of the partitions has changed meanwhile"):
        compare(pair.primary, pair.secondary, timeout_s=10)
    assert compare(pair.primary, pair.secondary, timeout_s=10).equal
