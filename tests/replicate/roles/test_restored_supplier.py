"""A supplier that was restored, or turned back, takes no writes until it has back what it had."""

from __future__ import annotations

import shutil
import signal
from collections.abc import Callable
from pathlib import Path

import pytest

from replicate.dbapi import OperationalError
from replicate.errors import BusyError, ConfigurationError, DivergedError, PeerRefusedError, TurnedBackError
from replicate.instance.instance import Instance
from replicate.roles import restored_supplier
from replicate.roles.restored_supplier import settle, turn_back
from replicate.roles.supplier import convert
from replicate.system.locks import FileLock
from replicate.transfer.seed.direct import seed
from tests.harness.instances import lose_pool
from tests.harness.pair import Pair
from tests.harness.sites import kill_at
from tests.harness.suppliers import Suppliers, run, shared


@pytest.fixture
def two(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Suppliers:
    monkeypatch.setenv("REPLICATE_SHM_DIR", "")
    return Suppliers.create(tmp_path)


def saved(two: Suppliers, name: str) -> Path:
    """A copy of a supplier's directory, as of a backup at rest."""
    place = two.directory / "backup"
    shutil.copytree(two.by[name].path, place)
    return place


def put_back(two: Suppliers, name: str, copy: Path, *, keeps_inode: bool) -> None:
    """`keeps_inode`: as a snapshot of its machine does."""
    path = two.by[name].path
    lose_pool(two.by[name])
    if keeps_inode:
        for one in ("journal", "regions", "consumers"):
            for file in (path / one).iterdir():
                file.unlink()
            for file in (copy / one).iterdir():
                shutil.copy2(file, path / one / file.name)
        shutil.copy2(copy / "instance.json", path / "instance.json")
    else:
        shutil.rmtree(path)
        shutil.copytree(copy, path)
    two.by[name] = Instance.open(path)


def test_files_of_a_backup_bring_back_what_was_lost_and_then_it_writes_on(two: Suppliers) -> None:
    """389 Directory Server may lose these: it ignores the consumer's own origin for the start."""
    two.write("b", 2)
    copy = saved(two, "b")
    two.write("b", 3)
    two.write("a", 1)
    two.level()
    before = two.by["b"].content.incarnation
    put_back(two, "b", copy, keeps_inode=False)
    with pytest.raises(OperationalError, match="was restored from an older state, and waits"):
        two.write("b")
    assert Instance.open(two.by["b"].path).content.incarnation == before + 1
    two.carry("a", "b")
    with pytest.raises(OperationalError, match="takes no writes"):
        two.write("b")
    assert settle(Instance.open(two.by["b"].path))
    assert not settle(Instance.open(two.by["b"].path))
    two.by["b"].reload()
    two.write("b", 2)
    two.level()
    two.assert_converged()
    assert len(two.rows("a")["tb"]) == 7


def came_back_twice(two: Suppliers) -> None:
    """The same backup of b: after the first time b has written under the number that it gets at the second."""
    two.write("b", 2)
    two.level()
    copy = saved(two, "b")
    for _ in range(2):
        put_back(two, "b", copy, keeps_inode=False)
        with pytest.raises(OperationalError, match="was restored from an older state, and waits"):
            two.write("b")
        if len(two.rows("a")["tb"]) == 2:
            two.carry("a", "b")
            settle(two.by["b"])
            two.by["b"].reload()
            two.write("b", 3)
            two.level()


def settled(two: Suppliers, incarnation: int) -> None:
    """It has got all back, and writes on in a number of its own."""
    two.carry("a", "b")
    settle(two.by["b"])
    two.by["b"].reload()
    assert two.by["b"].content.incarnation == incarnation
    two.write("b", 1)
    two.level()
    two.assert_converged()
    assert len(two.rows("a")["tb"]) == 6


def test_the_same_backup_comes_back_twice_and_a_source_brings_what_it_wrote_in_between(two: Suppliers) -> None:
    came_back_twice(two)
    two.by["b"].reload()
    content = two.by["b"].content
    assert content.is_restoring
    with pytest.raises(TurnedBackError):
        two.carry("a", "b")
    assert not turn_back(two.by["b"]), "that it was restored is known"
    assert turn_back(two.by["b"], origin=content.origin.key)
    assert not turn_back(two.by["b"], origin=content.origin.key), "another process has done it"
    settled(two, content.incarnation + 1)


def test_the_same_backup_comes_back_twice_and_it_finds_out_as_a_source(two: Suppliers) -> None:
    came_back_twice(two)
    two.by["b"].reload()
    incarnation = two.by["b"].content.incarnation
    with pytest.raises(PeerRefusedError, match="b was turned back"):
        two.agreed("b", "a")
    settled(two, incarnation + 1)


def test_a_copy_that_runs_beside_the_one_that_it_is_of_stops_that_one_by_name(two: Suppliers) -> None:
    """The same instance twice: a backup was restored on another host, and got back what it had; the original writes
    on. What each has written comes to all, and the older one learns of it."""
    original, away = two.by["b"], two.directory / "away"
    two.write("b", 2)
    two.level()
    copy = saved(two, "b")
    original.path.rename(away)  # another host does not see it
    shutil.copytree(copy, original.path)
    two.by["b"] = Instance.open(original.path)
    with pytest.raises(OperationalError, match="takes no writes"):
        two.write("b")
    two.carry("a", "b")
    settle(two.by["b"])
    two.by["b"].reload()
    run(two, "b", "INSERT INTO tb (id) VALUES (100)")
    two.carry("b", "a")
    original.path.rename(two.directory / "other host")
    away.rename(original.path)
    two.by["b"] = Instance.open(original.path)
    run(two, "b", "INSERT INTO tb (id) VALUES (200)")
    before = two.vector("b")
    with pytest.raises(DivergedError, match="b has begun incarnation 4 elsewhere, and is 3 here") as told:
        two.carry("a", "b")
    assert "stop one of both for good" in told.value.do
    assert dict(two.vector("b")) == dict(before), "nothing of it is taken"
    two.carry("b", "a")
    assert [row[0] for row in two.rows("a")["tb"]] == [1, 2, 100, 200], "nothing is lost"
    # The way out that it names: a new copy.
    convert(two.by["b"], "secondary", timeout_s=30)
    seed(two.by["a"], two.by["b"], restart=True)
    two.by["b"].reload()
    convert(two.by["b"], "supplier", timeout_s=30)
    two.by["b"].reload()
    two.write("b", 1)
    two.level()
    two.assert_converged()
    assert len(two.rows("a")["tb"]) == 5


def turned_back(two: Suppliers) -> None:
    """The machine of b has gone back three transactions, which a has."""
    two.write("b", 2)
    copy = saved(two, "b")
    two.write("b", 3)
    two.level()
    put_back(two, "b", copy, keeps_inode=True)


def test_a_machine_that_was_turned_back_is_found_out_by_who_has_more_of_it(two: Suppliers) -> None:
    turned_back(two)
    with pytest.raises(TurnedBackError, match="a source has more of what b writes itself than b has"):
        two.carry("a", "b")
    assert not turn_back(two.by["b"], other_has=2), "it has that much"
    assert turn_back(two.by["b"])
    assert not turn_back(two.by["b"])
    two.carry("a", "b")
    settle(two.by["b"])
    two.write("b", 1)
    two.level()
    two.assert_converged()
    assert len(two.rows("a")["tb"]) == 6


def test_as_a_source_it_finds_out_itself(two: Suppliers) -> None:
    turned_back(two)
    with pytest.raises(PeerRefusedError, match="b was turned back"):
        two.agreed("b", "a")
    two.by["b"].reload()
    assert two.by["b"].content.is_restoring
    with pytest.raises(OperationalError, match="takes no writes"):
        two.write("b")


def test_what_it_wrote_before_it_was_found_out_is_diverged(two: Suppliers) -> None:
    """Nothing of it is mixed with what the others have of it."""
    turned_back(two)
    two.write("b", 1)
    turn_back(two.by["b"])
    with pytest.raises(DivergedError):
        two.carry("a", "b")
    assert len(two.rows("a")["tb"]) == 5


@pytest.mark.slow
@pytest.mark.parametrize("place", ["append.before_write", "append.after_write", "finish.before_publish"])
def test_a_settling_that_was_killed_is_done_again(two: Suppliers, place: str) -> None:
    turn_back(two.by["b"])
    call = "replicate.roles.restored_supplier:settle"
    assert kill_at(f"{place}:1", call, two.by["b"].path) == -signal.SIGKILL
    assert kill_at("", call, two.by["b"].path) == 0
    two.by["b"].reload()
    two.write("b", 1)
    two.level()
    two.assert_converged()


def test_who_waits_for_the_lock_commits_after_the_record_that_opens_the_incarnation(
    two: Suppliers, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each time that the lock is free an application tries at once: who gets it must be able to say who wrote."""
    turn_back(two.by["b"])
    free, tried = FileLock.close, list[bool]()

    def close(self: FileLock) -> None:
        free(self)
        if self.path.name == "region-0.lock" and not tried and not two.by["b"].content.is_restoring:
            tried.append(True)
            two.write("b", 1)

    monkeypatch.setattr(FileLock, "close", close)
    assert settle(two.by["b"])
    assert tried
    monkeypatch.setattr(FileLock, "close", free)
    two.by["b"].reload()
    two.write("b", 1)
    two.level()
    two.assert_converged()
    assert len(two.rows("a")["tb"]) == 2


@pytest.mark.parametrize("make", [Suppliers.create, shared])
def test_the_record_waits_for_a_batch_that_is_being_applied(
    make: Callable[[Path], Suppliers], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Between the number that a batch begins with and its commit no other transaction gets one."""
    monkeypatch.setenv("REPLICATE_SHM_DIR", "")
    monkeypatch.setattr(restored_supplier, "LOCK_TIMEOUT_S", 0.05)
    two = make(tmp_path)
    turn_back(two.by["b"])
    with two.session("b") as session:
        session.begin()
        before = two.last_seqno("b")
        with pytest.raises(BusyError):
            settle(two.by["b"])
        assert two.last_seqno("b") == before
        session.rollback()
    assert settle(two.by["b"])
    assert two.last_seqno("b") > before


def test_what_it_wrote_beside_others_is_merged_once_more_as_it_comes_back(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """All others have told that they have what comes back first: it is remembered all the same, as what the site wrote
    beside it comes later."""
    monkeypatch.setenv("REPLICATE_SHM_DIR", "")
    two = shared(tmp_path)
    run(two, "a", "INSERT INTO ta VALUES (1, 'old', 0)")
    two.level()
    copy = saved(two, "b")
    run(two, "a", "UPDATE ta SET v = 'of a'")
    run(two, "b", "UPDATE ta SET v = 'of b', n = 7")
    two.level()
    two.level()
    put_back(two, "b", copy, keeps_inode=False)
    two.carry("a", "b")
    assert settle(Instance.open(two.by["b"].path))
    two.by["b"].reload()
    run(two, "b", "UPDATE ta SET n = n + 1")
    two.level()
    two.level()
    two.assert_converged()
    assert two.rows("a")["ta"] == [(1, "of b", 8)]


def test_others_have_nothing_to_wait_for(pair: Pair) -> None:
    assert not turn_back(pair.primary)
    with pytest.raises(ConfigurationError, match="east is primary"):
        settle(pair.primary)
