"""Parting from a supplier that is gone for good: what is said, and when; kills between the steps."""

from __future__ import annotations

import signal
from pathlib import Path
from types import SimpleNamespace

import pytest

from replicate.dbapi import OperationalError
from replicate.errors import NotWriterError
from replicate.model.writers import REST, Writers
from replicate.roles.partition_writers import give_number, supplier_door
from replicate.roles.retiring import gone_of, retire, writers_of
from replicate.roles.supplier import convert
from tests.harness.sites import kill_at
from tests.harness.suppliers import Suppliers, run, shared, work_through
from update_process.gone_suppliers import LOOK_S, Parting
from update_process.work_result import Waiting


@pytest.fixture
def three(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Suppliers:
    monkeypatch.setenv("REPLICATE_SHM_DIR", "")
    return Suppliers.create(tmp_path, 3)


def without_b(three: Suppliers) -> Suppliers:
    """The same, but for b, which is gone."""
    left = Suppliers(three.directory, ("a", "c"))
    left.by = three.by
    return left


def test_what_one_that_is_gone_wrote_is_written_elsewhere(three: Suppliers) -> None:
    three.write("b", 3)
    three.carry("b", "c")  # a has nothing of that
    three.write("b", 2)  # nobody has
    left = without_b(three)
    assert retire(three.by["a"], "b", timeout_s=0).awaited == ("a", "c")
    left.level()
    left.level()
    left.assert_converged()
    (found,) = gone_of(three.by["c"])
    assert (found.name, found.is_retired, found.awaited) == ("b", True, ())
    assert len(three.rows("a")["tb"]) == 3
    run(three, "a", "INSERT INTO tb (v) VALUES ('of a')")
    with pytest.raises(OperationalError, match="is written by a"):
        run(three, "c", "INSERT INTO tb (v) VALUES ('of c')")
    left.level()
    left.assert_converged()
    assert retire(three.by["c"], "b", timeout_s=0).is_retired, "by anybody who says it once more"


def test_streams_begin_again_before_anybody_says_that_it_has_parted(three: Suppliers) -> None:
    """What b had sent may lie in the pool after the word that it is gone."""
    retire(three.by["a"], "b", timeout_s=0)
    three.write("b", 2)
    agreed = three.agreed("a", "c")
    with three.receive_pool("c", agreed.from_seqno) as pool, three.applier("c", pool) as applier:
        three.offer("a", pool, agreed)
        late = three.agreed("b", "c")
        three.offer("b", pool, late)
        while applier.work(60).waiting is not Waiting.RESTART:
            pass
        assert applier.work(60).waiting is Waiting.RESTART
        assert writers_of(three.by["c"]).to_part(three.by["c"].content.uuid), "nothing is said yet"
        pool.restart(0)
        applier.work(60)
        applier.work(60)
        assert not writers_of(three.by["c"]).to_part(three.by["c"].content.uuid)


def test_what_is_refused_may_lie_in_the_pool_when_who_sent_it_was_made_again(three: Suppliers) -> None:
    """Each process that meets it asks once what comes now, and stops at that."""
    left = without_b(three)
    retire(three.by["a"], "b", timeout_s=0)
    left.level()
    left.level()
    three.write("b", 1)
    with three.receive_pool("a", three.agreed("b", "a").from_seqno) as pool:
        three.offer("b", pool, three.agreed("b", "a"))
        with three.applier("a", pool) as applier:
            assert work_through(applier).waiting is Waiting.RESTART
            pool.restart(0)
            three.offer("b", pool, three.agreed("b", "a"))
            with pytest.raises(NotWriterError, match=r"^NOT_WRITER: b \(origin [0-9a-f]{8}\) goes on writing"):
                work_through(applier)
        three.write("c", 1)
        with three.applier("a", pool) as applier:
            assert work_through(applier).waiting is Waiting.RESTART
            pool.restart(0)
            three.offer("c", pool, three.agreed("c", "a"))
            assert work_through(applier).waiting is Waiting.NOTHING
    assert three.rows("a")["tc"] == three.rows("c")["tc"]


def test_one_that_may_write_is_waited_for_before_its_first_record_has_come(three: Suppliers) -> None:
    """It may have more of the one that is gone than all others, and sends that once it is heard. (No command lets one
    write before it is heard; a journal may name it all the same.)"""
    joined = three.seed_one_more("d")
    convert(joined, "supplier", timeout_s=30)
    with supplier_door(three.by["a"]) as door:
        give_number(door, 1, joined.content.uuid, timeout_s=30)
    three.carry("a", "c")
    three.write("b", 3)
    three.carry("b", "d")
    left = without_b(three)
    assert set(retire(three.by["a"], "b", timeout_s=0).awaited) == {"a", "c", joined.content.uuid.hex()}
    left.level()
    left.level()
    assert not retire(three.by["a"], "b", timeout_s=0).is_retired
    left.names = ("a", "c", "d")
    left.level()
    left.level()
    left.assert_converged()
    assert retire(three.by["a"], "b", timeout_s=0).is_retired
    assert len(three.rows("a")["tb"]) == 3


@pytest.mark.slow
def test_rows_that_it_shared_are_remembered_for_it_no_longer(tmp_path: Path) -> None:
    three = shared(tmp_path, 3)
    run(three, "a", "INSERT INTO ta VALUES (1, 'old', 0)")
    three.level()
    run(three, "b", "UPDATE ta SET n = 5")
    three.carry("b", "c")
    run(three, "a", "UPDATE ta SET v = 'of a'")
    left = without_b(three)
    retire(three.by["c"], "b", timeout_s=0)
    left.level()
    left.level()
    left.assert_converged()
    assert three.rows("a")["ta"] == [(1, "of a", 5)]
    members = writers_of(three.by["a"]).members()
    assert members == {three.by["a"].content.uuid, three.by["c"].content.uuid}


@pytest.mark.slow
@pytest.mark.parametrize("place", ["append.before_write:1", "append.after_write:1", "apply.after_commit:1"])
def test_a_kill_between_the_steps_loses_none_of_them(three: Suppliers, place: str) -> None:
    three.write("b", 2)
    three.carry("b", "c")
    retire(three.by["a"], "b", timeout_s=0)
    paths = [three.by[name].path for name in ("a", "c")]
    for pair in (paths, paths[::-1]):
        assert kill_at(place, "tests.harness.suppliers:carry_between", *pair) in (-signal.SIGKILL, 0)
    left = without_b(three)
    left.level()
    left.level()
    left.assert_converged()
    assert writers_of(three.by["a"]).retired == {three.by["b"].content.uuid}
    assert len(three.rows("a")["tb"]) == 2


def test_what_was_not_committed_yet_at_the_last_look_is_seen_at_the_next(
    three: Suppliers, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The generation of the writers rises before the commit that names them: who looks in between sees the old ones."""
    before = writers_of(three.by["a"])
    retire(three.by["a"], "b", timeout_s=0)
    with three.session("a") as session:
        parting, now_s = Parting(session), 100.0
        monkeypatch.setattr("update_process.gone_suppliers.time", SimpleNamespace(monotonic=lambda: now_s))
        with monkeypatch.context() as early:
            early.setattr("update_process.gone_suppliers.writers_of", lambda _instance: before)
            assert not parting.look()
        assert not parting.look()
        now_s += LOOK_S
        assert parting.look()


def test_nothing_is_done_where_nobody_is_gone(three: Suppliers) -> None:
    before = three.last_seqno("a")
    with three.session("a") as session:
        parting = Parting(session)
        assert not parting.look()
        assert not parting.wants_restart
        parting.work()
    assert three.last_seqno("a") == before
    assert writers_of(three.by["a"]) == Writers(
        {REST: three.by["a"].content.uuid, 2: three.by["b"].content.uuid, 3: three.by["c"].content.uuid}
    )
