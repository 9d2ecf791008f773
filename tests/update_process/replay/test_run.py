"""A replay into a real secondary: equal to what the Update Process makes, whole or not at all, and refused by name."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import apsw
import pytest

from replicate import connect
from replicate.admin.regions import add_region
from replicate.cli.replay import summary_lines
from replicate.daemon.files import DaemonFiles
from replicate.errors import (
    AlreadyRunningError,
    ConflictError,
    DivergedError,
    GapError,
    JournalMissingError,
    NotFoundError,
    PermissionRefusedError,
    TryAgainError,
    WrongNetworkError,
)
from replicate.instance.instance import Instance
from replicate.journal.record import FrameBatch
from replicate.journal.walk import walk
from replicate.model.vector import Position
from replicate.system import failpoint
from replicate.system.failpoint import FailpointError
from tests.harness.instances import ROOT, lose_pool
from tests.harness.pair import Pair, run
from tests.harness.replaying import MIXED, SCHEMA, assert_equal, replayed
from update_process.replay.backlog import Journals
from update_process.replay.command import apply_session, replay
from update_process.replay.run import Replay


def test_a_backlog_is_collapsed_and_applied_in_one_piece(pair: Pair) -> None:
    last = run(pair, *MIXED)
    done = replayed(pair)
    assert (done.seqno, done.transactions, done.pieces, done.alone) == (last, len(MIXED), 1, 0)
    assert_equal(pair)
    assert replayed(pair).transactions == 0


def test_live_replication_goes_on_and_a_third_site_could_be_fed(pair: Pair) -> None:
    run(pair, *MIXED)
    replayed(pair)
    run(pair, "INSERT INTO account VALUES (60, 'after', 0, NULL)", "UPDATE account SET note = 'later'")
    pair.catch_up()
    assert_equal(pair)
    run(pair, "DELETE FROM account WHERE id = 60")
    replayed(pair)
    assert_equal(pair)
    first = pair.last_seqno() - len(MIXED) - 2
    assert frames(pair.secondary, first) == frames(pair.primary, first)


def frames(instance: Instance, first_seqno: int) -> bytes:
    """What an instance's journal holds from a number on."""
    journals = Journals([instance.path], instance.content.network)
    found = journals.read(first_seqno, journals.last_seqno)
    return b"".join(piece.data for piece in found if isinstance(piece, FrameBatch))


def test_unique_values_are_swapped(pair: Pair) -> None:
    run(
        pair,
        "UPDATE account SET owner = 'free' WHERE id = 1; UPDATE account SET owner = 'one' WHERE id = 2; "
        "UPDATE account SET owner = 'two' WHERE id = 1",
    )
    done = replayed(pair)
    assert (done.deleted, done.updated, done.inserted) == (2, 0, 2)
    assert_equal(pair)


def test_schema_changes_are_barriers(pair: Pair) -> None:
    run(pair, "UPDATE account SET balance = 5", "UPDATE account SET balance = 6")
    run(pair, "ALTER TABLE account ADD COLUMN extra DEFAULT 7", "CREATE TABLE later (id INTEGER PRIMARY KEY, v)")
    run(pair, "UPDATE account SET extra = 8", "INSERT INTO later VALUES (1, 1)", "UPDATE later SET v = 2")
    done = replayed(pair)
    assert (done.pieces, done.alone) == (2, 2)
    assert_equal(pair)


def test_a_dry_run_changes_nothing(pair: Pair) -> None:
    before = pair.last_seqno(pair.secondary)
    last = run(pair, *MIXED, "CREATE TABLE later (id INTEGER PRIMARY KEY, v)", "INSERT INTO later VALUES (1, 1)")
    done = replayed(pair, dry_run=True)
    assert (done.dry_run, done.seqno, done.pieces, done.alone) == (True, last, 2, 1)
    assert pair.last_seqno(pair.secondary) == before
    assert not list(pair.secondary.journal_directory.glob("*.spool"))
    replayed(pair)
    assert_equal(pair)


def test_a_large_transaction_comes_in_its_place(pair: Pair) -> None:
    run(pair, "UPDATE account SET balance = 5")
    large(pair)
    run(pair, "UPDATE account SET balance = 6")
    dry = replayed(pair, dry_run=True)
    done = replayed(pair)
    assert (done.pieces, done.alone) == (2, 1)
    assert done.changes == 2 * 3
    assert (dry.alone_changes, dry.inserted) == (done.alone_changes, 0)
    assert (done.alone_changes, done.updated, done.inserted) == (1500, 2 * 3, 1500)
    assert_equal(pair)


def test_what_is_applied_one_by_one_is_counted(pair: Pair) -> None:
    """Rows in the transaction of a schema change; the summary said that none had been written."""
    connection = pair.connect()
    connection.execute("BEGIN")
    connection.execute("CREATE TABLE later (id INTEGER PRIMARY KEY, v)")
    connection.executemany("INSERT INTO later VALUES (?, 1)", [(1,), (2,), (3,)])
    connection.execute("UPDATE later SET v = 2 WHERE id < 3")
    connection.execute("DELETE FROM later WHERE id = 3")
    connection.execute("COMMIT")
    connection.close()
    done = replayed(pair)
    assert (done.pieces, done.alone, done.alone_changes) == (0, 1, 6)
    assert (done.deleted, done.updated, done.inserted) == (1, 2, 3)
    lines = summary_lines(done, pair.secondary)
    assert lines[1:3] == [
        "0 pieces: 0 changes of 0 rows; 1 transaction one by one: 6 changes",
        "rows: 1 removed, 2 changed, 3 inserted",
    ]
    assert_equal(pair)


def test_pieces_are_bounded(pair: Pair) -> None:
    run(pair, *(f"INSERT INTO account VALUES ({n}, 'n{n}', 0, NULL)" for n in range(100, 130)))
    journals = Journals([pair.primary.path], pair.primary.content.network)
    with apply_session(pair.secondary) as session:
        found = Replay(session, journals, pair.secondary.conflict_directory, bytes_max=1)
        assert found.run(journals.last_durable_seqno).pieces == 1  # one read is the least that a piece takes
    run(pair, *(f"DELETE FROM account WHERE id = {n}" for n in range(100, 110)))
    replayed(pair)
    assert_equal(pair)


def test_it_ends_where_it_was_told(pair: Pair) -> None:
    last = run(pair, *MIXED)
    assert replayed(pair, last_seqno=last - 3).seqno == last - 3
    assert pair.last_seqno(pair.secondary) == last - 3
    with pytest.raises(NotFoundError, match=f"end with transaction {last}"):
        replayed(pair, last_seqno=last + 1)
    assert replayed(pair, last_seqno=last).transactions == 3
    assert_equal(pair)


def test_several_directories_make_one_range(pair: Pair, tmp_path: Path) -> None:
    run(pair, *MIXED[:4])
    shutil.copytree(pair.primary.journal_directory, tmp_path / "copy")
    run(pair, *MIXED[4:])
    replay(pair.secondary, [tmp_path / "copy"])
    assert pair.last_seqno(pair.secondary) == pair.last_seqno() - len(MIXED) + 4
    replay(pair.secondary, [tmp_path / "copy", pair.primary.path])
    assert_equal(pair)


# Refusals: nothing has changed.


@pytest.mark.parametrize("name", ["update", "receiver"])
def test_refused_while_a_daemon_runs(pair: Pair, name: str) -> None:
    run(pair, *MIXED)
    fd = DaemonFiles(pair.secondary.path, name).lock.acquire()
    try:
        with pytest.raises(AlreadyRunningError, match=f" {name} stop$"):
            replayed(pair)
    finally:
        os.close(fd)
    assert replayed(pair).transactions == len(MIXED)


def test_refused_on_a_primary_elsewhere_and_nowhere(pair: Pair, tmp_path: Path) -> None:
    with pytest.raises(PermissionRefusedError):
        replay(pair.primary, [pair.primary.path])
    with pytest.raises(NotFoundError, match="no such directory"):
        replay(pair.secondary, [tmp_path / "nowhere"])
    (tmp_path / "empty").mkdir()
    with pytest.raises(NotFoundError, match="no journal segment"):
        replay(pair.secondary, [tmp_path / "empty"])


def test_another_network_and_another_history_are_refused(pair: Pair, tmp_path: Path) -> None:
    run(pair, *MIXED)
    (tmp_path / "other").mkdir()
    other = Pair.create(tmp_path / "other", SCHEMA)
    os.environ["REPLICATE_SHM_DIR"] = str(tmp_path / "shm")
    with pytest.raises(WrongNetworkError):
        replay(pair.secondary, [other.primary.path])
    replayed(pair)
    aside = tmp_path / "aside"
    shutil.copytree(pair.primary.path, aside)
    run(pair, "UPDATE account SET balance = 100")
    replayed(pair)
    copy = Journals([aside], pair.primary.content.network)
    assert copy.last_seqno < pair.last_seqno()
    assert replay(pair.secondary, [aside]).transactions == 0


def large(pair: Pair) -> None:
    """A transaction that is a segment of its own."""
    connection = pair.connect()
    connection.executemany("INSERT INTO entry VALUES (?, 1.0, ?)", [(str(n), b"x" * 1000) for n in range(1500)])
    connection.commit()
    connection.close()


@pytest.mark.parametrize(("gone", "applied"), [(0, 0), (1, 4)])
def test_a_missing_segment_is_refused_by_number(pair: Pair, tmp_path: Path, gone: int, applied: int) -> None:
    before = pair.last_seqno(pair.secondary)
    run(pair, *MIXED[:4])
    large(pair)
    run(pair, *MIXED[4:])
    shutil.copytree(pair.primary.journal_directory, tmp_path / "copy")
    sorted((tmp_path / "copy").glob("*.journal"))[gone].unlink()
    with pytest.raises((JournalMissingError, GapError)) as caught:
        replay(pair.secondary, [tmp_path / "copy"])
    assert str(before + 1 + applied) in str(caught.value)
    assert pair.last_seqno(pair.secondary) in (before, before + applied)
    replayed(pair)
    assert_equal(pair)


def test_a_flipped_byte_is_refused_and_nothing_is_applied(pair: Pair, tmp_path: Path) -> None:
    before = pair.last_seqno(pair.secondary)
    run(pair, *MIXED)
    copy = tmp_path / "copy"
    shutil.copytree(pair.primary.journal_directory, copy)
    segment = max(copy.glob("*.journal"))
    data = bytearray(segment.read_bytes())
    data[data.rindex(b"four") + 1] ^= 1
    segment.write_bytes(data)
    (copy / "durable").unlink()
    # Without the sidecar nobody knows that more was written: the whole frames before the damage are what there is.
    done = replay(pair.secondary, [copy])
    assert before <= done.seqno < pair.last_seqno()
    replayed(pair)
    assert_equal(pair)


def test_a_secondary_that_went_another_way_is_refused(pair: Pair) -> None:
    run(pair, *MIXED)
    connection = apsw.Connection(str(pair.secondary.region("main").path))
    connection.config(apsw.SQLITE_DBCONFIG_ENABLE_TRIGGER, 0)
    connection.execute("UPDATE _replicate_scr SET chain = chain + 1")
    connection.close()
    with pytest.raises(DivergedError):
        replayed(pair)


def foreign(pair: Pair, statement: str) -> None:
    """What another client does to the secondary's rows, past our guards."""
    connection = apsw.Connection(str(pair.secondary.region("main").path))
    connection.config(apsw.SQLITE_DBCONFIG_ENABLE_TRIGGER, 0)
    connection.execute(statement)
    connection.close()


def test_a_conflict_leaves_the_old_state_and_its_images(pair: Pair) -> None:
    before = pair.last_seqno(pair.secondary)
    changes = [f"UPDATE account SET balance = {8 + number} WHERE id = {number}" for number in (1, 2, 3)]
    met = run(pair, *changes) - 1
    foreign(pair, "UPDATE account SET balance = -1 WHERE id = 2")
    with pytest.raises(ConflictError, match=f"differs from its before-image at transaction {met}") as caught:
        replayed(pair)
    assert Path(caught.value.where).name == f"{met}.json"  # not of the piece's last one
    written = json.loads(Path(caught.value.where).read_text())
    assert (written["seqno"], written["expected"]["balance"], written["found"]["balance"]) == (met, 2, -1)
    assert "replicate help disaster" in caught.value.do
    assert pair.last_seqno(pair.secondary) == before
    assert str(caught.value).endswith(f"his secondary stands at transaction {before}, as before")
    assert (1, 1, "one", 1, None) in pair.rows("account")
    foreign(pair, "UPDATE account SET balance = 2 WHERE id = 2")
    replayed(pair)
    assert_equal(pair)


def test_an_error_after_the_first_piece_says_where_it_stands(pair: Pair) -> None:
    before = pair.last_seqno(pair.secondary)
    run(pair, "UPDATE account SET balance = 5 WHERE id = 1", "CREATE TABLE later (id INTEGER PRIMARY KEY, v)")
    run(pair, "UPDATE account SET balance = 9 WHERE id = 2")
    foreign(pair, "UPDATE account SET note = 'foreign' WHERE id = 2")
    with pytest.raises(ConflictError) as caught:
        replayed(pair)
    stands = pair.last_seqno(pair.secondary)
    assert stands == before + 2
    said = f"his secondary stands at transaction {stands}, it stood at {before}; the same command goes on from there"
    assert str(caught.value).endswith(said)
    foreign(pair, "UPDATE account SET note = NULL WHERE id = 2")
    assert replayed(pair).transactions == 1
    assert_equal(pair)


@pytest.mark.parametrize(
    ("statement", "scripts"),
    [
        (
            "UPDATE account SET note = 1 WHERE id = 1",
            ("UPDATE account SET balance = 9", "UPDATE account SET balance = id"),
        ),
        (
            "INSERT INTO counted VALUES (50, 0)",
            ("INSERT INTO counted VALUES (50, 1)", "DELETE FROM counted WHERE id = 50"),
        ),
    ],
)
def test_verify_before_finds_what_the_net_change_would_not_touch(
    pair: Pair, statement: str, scripts: tuple[str, ...]
) -> None:
    run(pair, "UPDATE account SET balance = id")
    replayed(pair)
    run(pair, *scripts)
    foreign(pair, statement)
    with pytest.raises(ConflictError):
        replayed(pair, verify=True)
    assert pair.last_seqno(pair.secondary) == pair.last_seqno() - len(scripts)


def test_a_target_that_moved_on_is_refused(pair: Pair) -> None:
    """Compare-and-set: somebody has applied the range while it was being prepared."""
    run(pair, *MIXED)
    with apply_session(pair.secondary) as session:
        aside = session.door.begin_aside()
        pair.catch_up()
        journals = Journals([pair.primary.path], pair.primary.content.network)
        (batch,) = journals.read(aside.first_seqno, journals.last_seqno)
        assert isinstance(batch, FrameBatch)
        aside.write(batch, [head for _, head in walk(batch.data)][-1])
        session.begin()
        with pytest.raises(TryAgainError):
            session.commit_taken(aside, Position(aside.last_seqno), 1)
        aside.abort()
    assert_equal(pair)


# Kills.


KILL = """
import sys
from pathlib import Path
from replicate.instance.instance import Instance
from update_process.replay.command import replay
print(replay(Instance.open(Path(sys.argv[1])), [Path(sys.argv[2])]).seqno)
"""


@pytest.mark.slow
@pytest.mark.parametrize("reboot", [False, True])
@pytest.mark.parametrize("point", ["take.before_rename", "take.renamed", "take.after_rename", "apply.after_commit"])
def test_killed_at_the_apply_it_is_the_old_or_the_new_state(pair: Pair, point: str, reboot: bool) -> None:
    before = pair.last_seqno(pair.secondary)
    last = run(pair, *MIXED)
    found = subprocess.run(
        [sys.executable, "-c", KILL, str(pair.secondary.path), str(pair.primary.path)],
        env={**os.environ, "REPLICATE_FAILPOINT": f"{point}:1:kill"},
        cwd=ROOT,
        capture_output=True,
        text=True,
    )
    assert found.returncode == -signal.SIGKILL, found.stderr
    if reboot:
        lose_pool(pair.secondary)
    stands = pair.last_seqno(pair.secondary)
    assert stands == (before if point == "take.before_rename" else last)
    done = replayed(pair)
    assert done.transactions == last - stands
    assert_equal(pair)
    assert not list(pair.secondary.journal_directory.glob("*.spool"))


def test_a_failure_at_the_apply_can_be_repeated(pair: Pair) -> None:
    run(pair, *MIXED)
    failpoint.arm("take.before_rename:1:raise")
    with pytest.raises(FailpointError):
        replayed(pair)
    failpoint.disarm()
    replayed(pair)
    assert_equal(pair)


def test_two_regions_and_a_second_secondary(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("REPLICATE_SHM_DIR", str(tmp_path / "shm"))
    pair = Pair.create(tmp_path, SCHEMA)
    other = apsw.Connection(str(tmp_path / "two.db"))
    other.execute("CREATE TABLE t (id INTEGER PRIMARY KEY, v)")
    other.close()
    add_region(pair.primary, tmp_path / "two.db", name="two")
    pair.primary.reload()
    pair.seed()
    for number in range(20):
        with connect(pair.primary.path, "two") as connection:
            connection.execute("INSERT INTO t VALUES (?, ?)", (number, number))
        connection.close()
        with connect(pair.primary.path, "main") as connection:
            connection.execute("UPDATE account SET balance = balance + 1")
        connection.close()
    done = replayed(pair)
    assert (done.transactions, done.pieces) == (40, 1)
    assert_equal(pair)
