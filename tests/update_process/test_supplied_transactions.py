"""What other suppliers have committed, applied between the applications' own transactions."""

from __future__ import annotations

import random
import signal
from pathlib import Path

import apsw
import pytest

from replicate.dbapi import OperationalError
from replicate.door.recovery.opening import make_chain
from replicate.door.snapshot import door_of
from replicate.errors import (
    ConflictError,
)
from replicate.journal.spool import Spool
from replicate.roles.partition_writers import give, written
from replicate.settings.table import UpdateConfig
from tests.harness.instances import lose_pool
from tests.harness.sites import kill_at
from tests.harness.suppliers import Suppliers, last_head, work_through, write_later
from update_process.supplied_transactions import SupplierApplier
from update_process.window.lacking import Lacking
from update_process.work_result import Waiting


@pytest.fixture
def two(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Suppliers:
    monkeypatch.setenv("REPLICATE_SHM_DIR", "")
    return Suppliers.create(tmp_path)


def test_both_write_and_both_have_everything(two: Suppliers) -> None:
    two.write("a", 5)
    two.write("b", 7)
    two.level()
    two.assert_converged()
    assert [len(rows) for rows in two.rows("a").values()] == [5, 7]


def test_what_comes_back_is_passed_over(two: Suppliers) -> None:
    two.write("a", 5)
    done = two.carry("a", "b")
    assert (done.transactions, done.skipped) == (5, 0)
    two.write("b", 2)
    done = two.carry("b", "a")
    assert (done.transactions, done.skipped) == (2, 0), "the start is after what came from there"
    done = two.carry("a", "b")
    assert (done.transactions, done.batches) == (0, 0)
    two.assert_converged()


def test_what_one_writes_is_taken_in_whole_records_under_our_numbers(
    two: Suppliers, monkeypatch: pytest.MonkeyPatch
) -> None:
    two.write("a", 30)
    two.write("b", 2)
    assert two.last_seqno("a") != two.last_seqno("b") + 30

    def one_by_one(*_: object) -> bool:
        raise AssertionError("the frames are looked at one by one")

    monkeypatch.setattr(Lacking, "take", one_by_one)
    assert two.carry("a", "b").transactions == 30
    monkeypatch.undo()
    two.level()
    two.assert_converged()


def test_own_transactions_stand_between_those_of_the_other(two: Suppliers) -> None:
    for _ in range(4):
        two.write("a", 2)
        two.carry("a", "b")
        two.write("b", 1)
    two.level()
    two.assert_converged()
    with door_of(two.by["b"]) as door:
        assert len(door.position().chains) == len(two.vector("a"))


def test_a_stream_that_is_cut_goes_on_where_it_was(two: Suppliers) -> None:
    two.write("a", 9)
    while (done := two.carry("a", "b", most=2)).transactions:
        assert done.transactions <= 2
        two.write("b")
    two.level()
    two.assert_converged()


def test_an_application_that_holds_the_region_is_waited_for_and_loses_nothing(two: Suppliers) -> None:
    two.write("a", 3)
    agreed = two.agreed("a", "b")
    connection = two.connect("b")
    with two.receive_pool("b", agreed.from_seqno) as pool:
        two.offer("a", pool, agreed)
        with two.session("b") as session:
            connection.execute("INSERT INTO tb (v) VALUES ('open')")
            session._lock_timeout_s = 0.05
            applier = SupplierApplier(session, pool, UpdateConfig(), conflict_directory=two.by["b"].conflict_directory)
            assert work_through(applier).waiting is Waiting.LOCK
            connection.commit()
            assert work_through(applier).transactions == 3
            applier.close()
    connection.close()
    two.level()
    two.assert_converged()


def test_who_does_not_write_a_partition_is_refused_by_name(two: Suppliers) -> None:
    connection = two.connect("b")
    connection.execute("INSERT INTO ta (v) VALUES ('mine')")
    with pytest.raises(OperationalError, match="partition DEFAULT is written by a, not by b"):
        connection.commit()
    assert connection.execute("SELECT count(*) FROM ta").fetchone() == (0,)
    connection.execute("INSERT INTO tb (v) VALUES ('mine')")
    connection.commit()
    connection.close()


def test_a_partition_that_was_given_away_is_written_there_once_that_has_come(two: Suppliers) -> None:
    two.write("b", 3)
    seqno = give(two.by["b"], "2", "a", timeout_s=30)
    assert seqno == two.last_seqno("b")
    with pytest.raises(OperationalError, match="is written by a"):
        two.write("b")
    with pytest.raises(OperationalError, match="is written by b"):
        two.write("a", table="tb")
    two.carry("b", "a")
    two.write("a", 2, table="tb")
    two.level()
    two.assert_converged()
    assert [(one.number, one.by) for one in written(two.by["b"])] == [(0, "a"), (2, "a")]


def test_the_schema_is_changed_where_everything_is_written(two: Suppliers) -> None:
    connection = two.connect("a")
    with pytest.raises(OperationalError, match="b writes here, too"):
        connection.execute("CREATE TABLE more (id INTEGER PRIMARY KEY)")
    connection.close()
    give(two.by["b"], "2", "a", timeout_s=30)
    two.carry("b", "a")
    connection = two.connect("a")
    connection.execute("ALTER TABLE tb ADD COLUMN late TEXT")
    connection.execute("CREATE TABLE more (id INTEGER PRIMARY KEY, x)")
    connection.execute("INSERT INTO more (x) VALUES (1)")
    connection.commit()
    connection.close()
    give(two.by["a"], "2", "b", timeout_s=30)
    two.carry("a", "b")
    connection = two.connect("b")
    connection.execute("INSERT INTO tb (v, late) VALUES ('x', 'y')")
    connection.commit()
    connection.close()
    two.level()
    two.assert_converged()


def test_a_large_transaction_holds_no_lock_while_it_arrives(two: Suppliers, monkeypatch: pytest.MonkeyPatch) -> None:
    connection = two.connect("a")
    connection.executemany("INSERT INTO ta (v) VALUES (?)", [("x" * 2000,) for _ in range(1000)])
    connection.commit()
    connection.close()
    agreed = two.agreed("a", "b")
    with two.receive_pool("b", agreed.from_seqno) as pool:
        assert two.offer("a", pool, agreed) == 1
        with two.applier("b", pool) as applier:
            write_frame = Spool.write_frame

            def and_commit(spool: Spool, frame: bytes) -> None:
                write_frame(spool, frame)
                two.write("b")

            with monkeypatch.context() as patch:
                patch.setattr(Spool, "write_frame", and_commit)
                done = work_through(applier)
            assert done.transactions == 1
            assert done.parts > 2
    two.level()
    two.assert_converged()
    assert len(two.rows("b")["tb"]) == done.parts


def test_a_large_transaction_that_is_known_already_costs_a_head(two: Suppliers) -> None:
    connection = two.connect("a")
    connection.executemany("INSERT INTO ta (v) VALUES (?)", [("x" * 2000,) for _ in range(1000)])
    connection.commit()
    connection.close()
    agreed = two.agreed("a", "b")
    two.carry("a", "b")
    with two.receive_pool("b", agreed.from_seqno) as pool:
        two.offer("a", pool, agreed)  # as a source would have sent it that had begun before
        with two.applier("b", pool) as applier:
            done = work_through(applier)
            assert (done.transactions, done.waiting) == (0, Waiting.NOTHING)
    two.assert_converged()


def test_rows_that_somebody_else_has_changed_stop_it_by_name(two: Suppliers) -> None:
    two.write("a", 3)
    two.carry("a", "b")
    region = apsw.Connection(str(two.by["b"].regions[0].path))
    for trigger in [name for (name,) in region.execute("SELECT name FROM sqlite_schema WHERE type = 'trigger'")]:
        region.execute(f'DROP TRIGGER "{trigger}"')
    region.execute("UPDATE ta SET v = 'other' WHERE id = 2")
    region.execute(
        "UPDATE _replicate_state SET value = (SELECT * FROM pragma_schema_version) WHERE key = 'schema_version'"
    )
    region.close()

    lose_pool(two.by["b"])
    connection = two.connect("a")
    connection.execute("INSERT INTO ta (v) VALUES ('before')")
    connection.commit()
    connection.execute("UPDATE ta SET v = 'new' WHERE id = 2")
    connection.commit()
    connection.close()
    with pytest.raises(ConflictError, match="the row differs"):
        two.carry("a", "b")
    assert ("before",) in [row[1:2] for row in two.rows("b")["ta"]], "what came before it is committed"


def test_what_is_written_after_others_bears_a_later_time_however_slow_this_clock_is(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also where the last of what came at once is of an earlier time than another one before it."""
    monkeypatch.setenv("REPLICATE_SHM_DIR", "")
    made = Suppliers.create(tmp_path, 4)
    write_later(made, 0.5, monkeypatch)
    ahead = last_head(made, "a").csn
    made.carry("a", "b")
    made.write("c")
    early = last_head(made, "c").csn
    made.carry("c", "b")
    assert early < ahead
    assert made.carry("b", "d").batches == 1
    assert last_head(made, "d").csn == early
    for name in ("b", "d"):
        made.write(name)
        before = last_head(made, name).csn
        assert before > ahead
        lose_pool(made.by[name])
        made.write(name)
        assert last_head(made, name).csn > before
    made.level()
    made.assert_converged()


@pytest.mark.slow
@pytest.mark.parametrize("seed_", range(6))
def test_three_suppliers_in_any_order_converge(seed_: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Writers, partitions that change hands, streams cut anywhere, pools lost: at rest rows and vectors are equal."""
    monkeypatch.setenv("REPLICATE_SHM_DIR", "")

    rng, sites = random.Random(seed_), Suppliers.create(tmp_path, 3)
    for _ in range(30):
        name, other = rng.sample(sites.names, 2)
        match rng.choice(["write", "write", "carry", "carry", "carry", "give", "lose"]):
            case "write":
                for number in [one.number for one in written(sites.by[name]) if one.is_own and one.number]:
                    sites.write(name, rng.randint(1, 4), table={2: "tb", 3: "tc"}[number])
                if name == "a":
                    sites.write("a")
            case "carry":
                sites.carry(name, other, most=rng.choice([None, 1, 2, 5]))
            case "give":
                owned = [one.number for one in written(sites.by[name]) if one.is_own and one.number]
                if owned:
                    give(sites.by[name], str(rng.choice(owned)), other, timeout_s=30)
            case _:
                lose_pool(sites.by[name])
    sites.level()
    sites.assert_converged()
    assert sum(map(len, sites.rows("a").values())) > 0


APPLYING = (
    "append.before_write", "append.after_write", "apply.after_commit", "finish.before_publish",
)  # fmt: skip
COMMITTING = ("append.before_write", "append.after_write", "commit.after_commit", "finish.before_publish")


@pytest.mark.slow
@pytest.mark.parametrize("boots", [False, True], ids=["", "rebooted"])
@pytest.mark.parametrize("place", APPLYING)
def test_killed_while_it_applies(two: Suppliers, place: str, boots: bool) -> None:
    """Nothing is lost and nothing twice, whether the next process finds the pool or recovers."""
    two.write("a", 4)
    two.write("b", 2)
    ours = [two.by[name].path for name in ("a", "b")]
    assert kill_at(f"{place}:1", "tests.harness.suppliers:carry_between", *ours) == -signal.SIGKILL
    if boots:
        lose_pool(two.by["b"])
    two.write("b", 2)
    two.write("a", 1)
    two.level()
    two.assert_converged()
    assert [len(rows) for rows in two.rows("b").values()] == [5, 4]


@pytest.mark.slow
@pytest.mark.parametrize("boots", [False, True], ids=["", "rebooted"])
@pytest.mark.parametrize("place", COMMITTING)
def test_a_writer_that_is_killed_between_batches(two: Suppliers, place: str, boots: bool) -> None:
    two.write("a", 4)
    two.carry("a", "b")
    assert kill_at(f"{place}:2", "tests.harness.suppliers:write_at", two.by["b"].path) == -signal.SIGKILL
    if boots:
        lose_pool(two.by["b"])
    two.write("a", 2)
    two.level()
    two.write("b", 1)
    two.level()
    two.assert_converged()


@pytest.mark.slow
@pytest.mark.parametrize("place", COMMITTING)
def test_killed_while_it_gives_a_partition_away(two: Suppliers, place: str) -> None:
    """It is given, or it is not; and who asks again finds it given."""
    two.write("b", 2)
    assert kill_at(f"{place}:1", "tests.harness.suppliers:give_back", two.by["b"].path) == -signal.SIGKILL
    connection = two.connect("b")  # the next transaction finishes what was appended
    connection.execute("INSERT INTO tb (v) VALUES ('after')")
    try:
        connection.commit()
        is_given = False
    except OperationalError:
        is_given = True
    connection.close()
    writers = {one.number: one.by for one in written(two.by["b"])}
    assert writers[2] == ("a" if is_given else "b")
    if not is_given:
        give(two.by["b"], "2", "a", timeout_s=30)
    two.level()
    two.write("a", 1, table="tb")
    two.level()
    two.assert_converged()


@pytest.mark.slow
def test_a_batch_that_does_not_fit_its_segment_begins_a_new_one_that_knows_all_origins(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("REPLICATE_SHM_DIR", "")
    sites = Suppliers.create(tmp_path, 3, settings="[journal]\npool_bytes = 1048576\nsegment_bytes = 1048576\n")
    for _ in range(3):
        for name in sites.names:
            sites.write(name, 300, size=1000)
        sites.level()
    assert len(make_chain(sites.by["b"]).first_seqnos()) > 2
    before = sites.vector("b")
    lose_pool(sites.by["b"])
    assert sites.vector("b") == before
    sites.write("b")
    sites.level()
    sites.assert_converged()
