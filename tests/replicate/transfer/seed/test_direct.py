"""Seeding from a live primary."""

from __future__ import annotations

import errno
import os
import sqlite3
import threading
from contextlib import closing
from pathlib import Path

import pytest
from msgspec.structs import replace

from replicate import connect
from replicate.admin.region_release import release_region
from replicate.admin.regions import add_region
from replicate.compare.compare import compare, digest
from replicate.daemon.files import DaemonFiles
from replicate.daemon.status_file import FAILED, STOPPED, DaemonStatus
from replicate.door.recovery.opening import SEEDING_MARKER, is_seeded, open_door, require_seeded
from replicate.errors import (
    AlreadyExistsError,
    AlreadyRunningError,
    JournalIOError,
    NotFoundError,
    NotPrimaryError,
    PermissionRefusedError,
    UsageError,
    WrongNetworkError,
)
from replicate.instance.consumers import Consumer, read_consumer, read_hold, write_consumer, write_hold
from replicate.instance.instance import Instance
from replicate.model.findings import Finding
from replicate.status.collect import collect
from replicate.transfer.seed.direct import seed, seed_from_instance
from replicate.transfer.seed.install import install_file
from replicate.transfer.seed.make import make_seed
from tests.harness.pair import Pair, work_all


@pytest.fixture
def pair(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Pair:
    monkeypatch.setenv("REPLICATE_SHM_DIR", str(tmp_path / "shm"))
    return Pair.create(tmp_path)


def write(pair: Pair, count: int = 5, first: int = 1) -> None:
    connection = pair.connect()
    for number in range(first, first + count):
        connection.execute("INSERT INTO account VALUES (?, 'o', 0, NULL)", (number,))
        connection.commit()
    connection.close()


def assert_catches_up(pair: Pair) -> None:
    with pair.receive_pool() as pool:
        pair.deliver(pool)
        with pair.applier(pool) as applier:
            work_all(applier)
            assert applier.applied_seqno == pair.last_seqno()
    found = compare(pair.primary, pair.secondary, timeout_s=5)
    assert found.equal, found


def test_the_copy_is_the_primary_at_that_number(pair: Pair) -> None:
    write(pair)
    told: list[tuple[str, int, int]] = []
    made = seed(pair.primary, pair.secondary, progress=lambda *facts: told.append(facts))
    pair.secondary.reload()
    assert made.seqno == pair.last_seqno() == pair.last_seqno(pair.secondary)
    assert made.regions == ("main",)
    assert told[-1] == ("main", made.pages, made.pages)
    assert digest(pair.primary, timeout_s=5).regions == digest(pair.secondary, timeout_s=5).regions
    consumer = read_consumer(pair.primary.consumers_directory, "west")
    assert consumer is not None
    assert (consumer.acknowledged_seqno, consumer.uuid) == (made.seqno, pair.secondary.content.uuid.hex())
    assert not (pair.secondary.path / SEEDING_MARKER).exists()
    write(pair, first=100)
    assert_catches_up(pair)


def test_the_hidden_rowids_are_the_same(pair: Pair) -> None:
    connection = pair.connect()
    connection.executemany("INSERT INTO entry VALUES (?, 0, NULL)", ((str(n),) for n in range(10)))
    connection.execute("DELETE FROM entry WHERE rowid < 5")
    connection.commit()
    connection.close()
    pair.seed()
    assert pair.rows("entry") == pair.rows("entry", pair.primary)
    assert pair.rows("entry")[0][0] == 5


def test_while_a_writer_goes_on(pair: Pair) -> None:
    write(pair)
    stop = threading.Event()

    def write_on() -> None:
        connection = pair.connect()
        number = 1000
        while not stop.is_set():
            number += 1
            connection.execute("INSERT INTO account VALUES (?, 'live', 0, NULL)", (number,))
            connection.execute("INSERT INTO entry VALUES ('live', ?, NULL)", (number,))
            connection.commit()
        connection.close()

    writer = threading.Thread(target=write_on)
    writer.start()
    try:
        for _ in range(3):
            seqno = pair.seed(restart=True)
            assert pair.last_seqno(pair.secondary) == seqno
            accounts = [row for row in pair.rows("account") if row[2] == "live"]
            assert len(accounts) == len(pair.rows("entry"))
    finally:
        stop.set()
        writer.join()
    assert_catches_up(pair)


def test_an_open_transaction_of_an_application_delays_nothing(pair: Pair) -> None:
    write(pair)
    connection = pair.connect()
    connection.execute("INSERT INTO account VALUES (77, 'open', 0, NULL)")
    pair.seed()
    assert all(row[1] != 77 for row in pair.rows("account"))
    connection.commit()
    connection.close()
    assert_catches_up(pair)


def test_data_is_not_replaced_unless_asked_for(pair: Pair) -> None:
    pair.seed()
    with pytest.raises(AlreadyExistsError):
        pair.seed()
    write(pair)
    assert pair.seed(restart=True) == pair.last_seqno()
    assert_catches_up(pair)


@pytest.mark.parametrize("restart", [False, True])
@pytest.mark.parametrize("by_file", [False, True])
def test_what_is_no_region_of_the_secondary_is_never_replaced(pair: Pair, restart: bool, by_file: bool) -> None:
    """A released region is the user's own database, and may be another instance's region by now."""
    write(pair)
    pair.seed()
    release_region(pair.secondary, "main", timeout_s=5)
    pair.secondary.reload()
    place = pair.secondary.path / "regions" / "main.db"
    made = make_seed(pair.primary, "west", pair.directory / "f").path if by_file else None

    def refused(whose: str) -> None:
        with pytest.raises(AlreadyExistsError, match=whose) as caught:
            install_file(pair.secondary, made, restart=restart) if made else pair.seed(restart=restart)
        assert (caught.value.where, "Move it away" in caught.value.do) == (str(place), True)
        assert not (pair.secondary.path / SEEDING_MARKER).exists()

    with closing(sqlite3.connect(place)) as plain:
        plain.execute("INSERT INTO account VALUES (1000, 'mine', 0, NULL)")
        plain.commit()
    refused("a database that is no region")
    after = Instance.create(pair.directory / "after", role="primary", name="after")
    add_region(after, place, name="main")
    refused("a region of another instance")
    with closing(connect(after.path)) as connection:
        assert connection.execute("SELECT owner FROM account WHERE rowid = 1000").fetchone() == ("mine",)
    place.rename(pair.directory / "mine.db")
    place.write_bytes(b"something else " * 100)
    refused("a file that is no whole database")
    place.unlink()
    install_file(pair.secondary, made, restart=restart) if made else pair.seed(restart=restart)
    pair.secondary.reload()
    assert_catches_up(pair)


@pytest.mark.parametrize("after", [1, 2])
def test_an_interrupted_seed_is_done_again(pair: Pair, monkeypatch: pytest.MonkeyPatch, after: int) -> None:
    class Killed(BaseException):
        pass

    def die(*_: object, **__: object) -> None:
        raise Killed

    write(pair)
    target = (
        "replicate.transfer.seed.install.begin_journal"
        if after == 1
        else "replicate.instance.instance.Instance.register_region"
    )
    with monkeypatch.context() as patch:
        patch.setattr(target, die)
        with pytest.raises(Killed):
            pair.seed()
    pair.secondary.reload()
    assert pair.secondary.regions == ()
    assert (pair.secondary.path / SEEDING_MARKER).exists()
    pair.seed()
    assert_catches_up(pair)


def test_what_a_third_site_has_acknowledged_does_not_bar_a_seed_of_smaller_numbers(pair: Pair) -> None:
    """The primary was begun again, so its numbers are small; no seed could have mended the secondary again."""
    write(pair)
    last = pair.seed()
    pair.secondary.register_peer("third", "127.0.0.1", 7431)
    consumers = pair.secondary.consumers_directory
    write_consumer(consumers, Consumer("third", last + 100, "ab" * 16))
    write_hold(consumers, "third", last + 50)
    pair.seed(restart=True)
    assert read_consumer(consumers, "third") == Consumer("third", last, "ab" * 16)
    assert read_hold(consumers, "third") is None
    write_hold(consumers, "third", last)
    write_consumer(consumers, Consumer("third", last - 1, "ab" * 16))
    write(pair, first=100)
    assert_catches_up(pair)
    pair.seed(restart=True)
    assert (read_consumer(consumers, "third"), read_hold(consumers, "third")) == (
        Consumer("third", last - 1, "ab" * 16),
        last,
    )


def test_a_half_done_seed_is_not_started(pair: Pair, monkeypatch: pytest.MonkeyPatch) -> None:
    class Killed(BaseException):
        pass

    def die(*_: object, **__: object) -> None:
        raise Killed

    with monkeypatch.context() as patch:
        patch.setattr(Path, "rmdir", die)
        with pytest.raises(Killed):  # everything is in its place, but nobody knows yet
            pair.seed()
    pair.secondary.reload()
    assert pair.secondary.regions
    assert not is_seeded(pair.secondary)
    for opens in (open_door, require_seeded):
        with pytest.raises(NotFoundError, match=r"Run replicate -i \S+ seed again") as caught:
            opens(pair.secondary)
        assert caught.value.exit_code == 69
    found = [finding for finding in collect(pair.secondary).findings if finding.severity == "error"]
    assert [(finding.text, finding.do) for finding in found] == [
        (
            "this secondary has been seeded only in part (a seed runs, or was interrupted)",
            f"replicate -i {pair.secondary.path} seed",
        )
    ]
    pair.seed()
    assert collect(pair.secondary).regions
    assert all(finding.severity != "error" for finding in collect(pair.secondary).findings)
    assert_catches_up(pair)


def test_progress_may_end_it(pair: Pair) -> None:
    class Enough(Exception):
        pass

    def enough(*_: object) -> None:
        raise Enough

    with pytest.raises(Enough):
        seed(pair.primary, pair.secondary, progress=enough)
    assert pair.seed() == pair.last_seqno()


def test_who_cannot_be_seeded(pair: Pair, tmp_path: Path) -> None:
    with pytest.raises(UsageError):
        seed(pair.primary, pair.primary)
    stranger = Instance.create(tmp_path / "stranger", role="secondary", name="west", network=bytes(16))
    with pytest.raises(WrongNetworkError):
        seed(pair.primary, stranger)
    network = pair.primary.content.network
    unknown = Instance.create(tmp_path / "unknown", role="secondary", name="north", network=network)
    with pytest.raises(NotFoundError, match="peer add north"):
        seed(pair.primary, unknown)
    other = Instance.create(tmp_path / "other", role="primary", name="west", network=network)
    with pytest.raises(PermissionRefusedError):
        seed(pair.primary, other)
    with pytest.raises(NotFoundError, match="no region"):
        seed(other, pair.secondary)


def test_not_under_a_running_update_process(pair: Pair) -> None:
    import os

    lock = DaemonFiles(pair.secondary.path, "update").lock.acquire()
    try:
        with pytest.raises(AlreadyRunningError):
            pair.seed()
    finally:
        os.close(lock)


@pytest.mark.parametrize("name", ["update", "source-third"])
@pytest.mark.parametrize("way", ["direct", "file"])
def test_what_failed_for_want_of_a_seed_has_only_stopped_after_it(pair: Pair, name: str, way: str) -> None:
    made = make_seed(pair.primary, "west", pair.directory / "f").path
    pair.secondary.register_peer("third", "127.0.0.1", 7431)
    files = DaemonFiles(pair.secondary.path, name)
    os.close(files.lock.acquire())
    failed = DaemonStatus(name, 7, FAILED, "text", 1, 2, error="NOT_FOUND: not seeded yet. Run: seed", exit_code=69)
    for exit_code, state in ((69, STOPPED), (65, STOPPED), (76, STOPPED), (78, FAILED)):
        files.status.write(replace(failed, exit_code=exit_code))
        (found,) = [one for one in collect(Instance.open(pair.secondary.path)).findings if one.subject == name]
        assert found.code == "DAEMON_FAILED"
        if way == "direct":
            pair.seed(restart=True)
        else:
            install_file(pair.secondary, made, restart=True)
        told = files.read_status()
        assert told is not None
        assert told.state == state
        assert ("before the seed (NOT_FOUND)" in told.text, told.error == "") == ((state == STOPPED,) * 2)
        (found,) = [one for one in collect(Instance.open(pair.secondary.path)).findings if one.subject == name]
        assert found.code == ("DAEMON_STOPPED" if state == STOPPED else "DAEMON_FAILED")


@pytest.mark.parametrize("by_file", [False, True])
def test_no_update_process_begins_under_a_seed(pair: Pair, tmp_path: Path, by_file: bool) -> None:
    """It would lose its regions under its hands, and end with REGION_REPLACED."""
    write(pair)
    pair.seed()
    looked: list[Finding] = []

    def told(_region: str, _done: int, _pages: int) -> None:
        looked.extend(one for one in collect(pair.secondary).findings if one.code == "REPLAY_RUNS")
        with pytest.raises(AlreadyRunningError, match="a seed of this instance is under way as process"):
            DaemonFiles(pair.secondary.path, "update").lock.acquire()

    if by_file:
        make_seed(pair.primary, "west", tmp_path / "west.seed")
        install_file(pair.secondary, tmp_path / "west.seed", restart=True, progress=told)
    else:
        seed(pair.primary, pair.secondary, restart=True, progress=told)
    assert looked[0].do == f"wait for its end; then replicate -i {pair.secondary.path} update start"
    os.close(DaemonFiles(pair.secondary.path, "update").lock.acquire())


def test_a_seeded_secondary_takes_no_writes(pair: Pair) -> None:
    seed_from_instance(pair.secondary, pair.primary.path)
    connection = connect(pair.secondary.path)
    assert connection.execute("SELECT count(*) FROM account").fetchone() == (0,)
    with pytest.raises(Exception, match="secondary") as caught:
        connection.execute("INSERT INTO account VALUES (1, 'x', 0, 0)")
    assert isinstance(caught.value, NotPrimaryError) or "NOT_PRIMARY" in str(caught.value)
    connection.close()


@pytest.mark.parametrize("call", ["replace", "unlink", "rmdir"])
def test_a_disk_that_fails_is_named_and_the_next_seed_does_it(
    pair: Pair, monkeypatch: pytest.MonkeyPatch, call: str
) -> None:
    write(pair)
    pair.seed()
    real = getattr(os, call)

    def fail(path: Path, *more: object, **named: object) -> object:
        if "regions" in str(path):
            raise OSError(errno.EIO, os.strerror(errno.EIO))
        return real(path, *more, **named)

    (pair.secondary.path / "regions" / "main.db-wal").touch()
    with monkeypatch.context() as patch:
        patch.setattr(os, call, fail)
        with pytest.raises(JournalIOError, match=r"could not be (put into their places|removed).*/regions"):
            seed(pair.primary, pair.secondary, restart=True)
    pair.secondary.reload()
    assert not is_seeded(pair.secondary)
    pair.seed()
    assert_catches_up(pair)
