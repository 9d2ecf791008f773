"""A supplier to which nothing comes: it tells what it has seen, and all forget what all have."""

from __future__ import annotations

import time
from pathlib import Path

import apsw
import pytest

from replicate.door.snapshot import door_of
from replicate.pool import control as word
from replicate.roles.restored_supplier import settle, turn_back
from replicate.settings.table import UpdateConfig
from tests.harness.instances import lose_pool
from tests.harness.suppliers import Suppliers, shared, work_through
from update_process import supplier_upkeep

SOON = UpdateConfig(tell_seen_s=0.1)


@pytest.fixture
def two(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Suppliers:
    monkeypatch.setenv("REPLICATE_SHM_DIR", "")
    monkeypatch.setattr(supplier_upkeep, "LOOK_S", 0.0)
    return shared(tmp_path)


def carry(made: Suppliers, source: str, consumer: str, settings: UpdateConfig = SOON) -> None:
    """Bring what is lacking, and let the Update Process be idle until it has nothing more to tell."""
    agreed = made.agreed(source, consumer)
    with made.receive_pool(consumer, agreed.from_seqno) as pool:
        made.offer(source, pool, agreed)
        with made.applier(consumer, pool, settings) as applier:
            work_through(applier)
            applier._tending._since_s -= 1
            applier._tending.tend()


def stamped(made: Suppliers, name: str) -> int:
    connection = apsw.Connection(str(made.by[name].regions[0].path), flags=apsw.SQLITE_OPEN_READONLY)
    try:
        return int(connection.execute("SELECT count(*) FROM _replicate_version").get)
    finally:
        connection.close()


def test_who_only_reads_tells_and_the_network_falls_silent(two: Suppliers) -> None:
    two.write("a", 3, table="ta")
    two.write("b", 1, table="ta")
    for _ in range(3):
        carry(two, "a", "b")
        carry(two, "b", "a")
    two.assert_converged()
    assert stamped(two, "a") == stamped(two, "b") == 0, "all have everything, and all know it"
    before = [two.last_seqno(name) for name in two.names]
    for _ in range(3):
        carry(two, "a", "b")
        carry(two, "b", "a")
    assert [two.last_seqno(name) for name in two.names] == before


def test_one_that_was_restored_tells_nothing_before_it_has_back_what_it_had(two: Suppliers) -> None:
    """It takes no writes until then, and must not end by that."""
    two.write("a", 3, table="ta")
    turn_back(two.by["b"])
    two.by["b"].reload()
    before = two.last_seqno("b")
    carry(two, "a", "b")
    assert two.last_seqno("b") == before + 3
    with door_of(two.by["b"]) as door:
        assert door.words[word.OWN_ORIGIN_SEQNO] == 0, "and nothing of its own"
    settle(two.by["b"])
    carry(two, "a", "b")
    assert two.last_seqno("b") == before + 3 + 2, "its new incarnation, and what it has seen"


def test_after_a_boot_nothing_is_told_before_a_source_is_there(two: Suppliers) -> None:
    """The machine may have been turned back: what it tells would have a number that others have otherwise. A source
    shows that."""
    two.write("a", 3, table="ta")
    two.level()
    lose_pool(two.by["b"])
    before, agreed = two.last_seqno("b"), two.agreed("a", "b")
    with two.receive_pool("b", agreed.from_seqno) as pool, two.applier("b", pool, SOON) as applier:
        pool.note_receiver(1, time.monotonic_ns(), connected=False)
        for at_once in (False, True):
            applier._tending._since_s -= 1
            applier._tending.tend(at_once=at_once)
            assert two.last_seqno("b") == before
        pool.note_receiver(1, time.monotonic_ns(), connected=True)
        applier._tending._tended_seqno = -1
        applier._tending.tend()
        assert two.last_seqno("b") == before, "its time begins only now"
        applier._tending._since_s -= 1
        applier._tending.tend()
    assert two.last_seqno("b") == before + 1


def test_what_not_all_have_told_is_remembered(two: Suppliers) -> None:
    """b writes, and has not heard of what a wrote beside it."""
    two.write("a", 3, table="ta")
    two.write("b", 2, table="ta")
    carry(two, "b", "a")
    assert stamped(two, "a") > 0


def test_nothing_is_told_before_its_time(two: Suppliers) -> None:
    two.write("a", 3, table="ta")
    carry(two, "a", "b", UpdateConfig(tell_seen_s=3600))
    with door_of(two.by["b"]) as door:
        assert door.words[word.TOLD_SEQNO] <= door.words[word.FOREIGN_SEQNO]
    two.write("b", 1, table="ta")
    with door_of(two.by["b"]) as door:
        assert door.words[word.TOLD_SEQNO] > door.words[word.FOREIGN_SEQNO], "an own transaction tells it"


def test_many_are_told_at_once(two: Suppliers, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(supplier_upkeep, "TOLD_MAX", 3)
    two.write("a", 3, table="ta")
    before = two.last_seqno("b")
    carry(two, "a", "b", UpdateConfig(tell_seen_s=3600))
    assert two.last_seqno("b") == before + 4


def test_where_nothing_is_shared_nothing_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(supplier_upkeep, "LOOK_S", 0.0)
    made = Suppliers.create(tmp_path)
    made.write("a", 3)
    before = made.last_seqno("b")
    carry(made, "a", "b")
    assert made.last_seqno("b") == before + 3


A, B = b"a" * 16, b"b" * 16


def test_what_was_told_in_time_is_awaited_again() -> None:
    first = supplier_upkeep.awaited_next({}, {A: {1: (9, 5)}}, 100.0)
    assert first == {A: ({1: 9}, 100.0)}
    assert supplier_upkeep.awaited_next(first, {A: {1: (12, 8)}}, 200.0) == first, "9 was not told yet"
    assert supplier_upkeep.awaited_next(first, {A: {1: (12, 9)}}, 300.0) == {A: ({1: 12}, 300.0)}
    assert supplier_upkeep.awaited_next(first, {A: {2: (3, 0)}}, 300.0) == {A: ({2: 3}, 300.0)}
    assert supplier_upkeep.awaited_next(first, {B: {1: (9, 0)}}, 300.0) == {B: ({1: 9}, 300.0)}
    assert supplier_upkeep.awaited_next(first, {}, 300.0) == {}


def test_one_whose_clock_is_ahead_of_all_tells_nothing_and_goes_on(two: Suppliers) -> None:
    two.write("a", 3, table="ta")
    with door_of(two.by["b"]) as door:
        door.words[word.CSN_END], door.words[word.CSN_END_UNTIL_NS] = 1, time.monotonic_ns() + 600_000_000_000
        before = two.last_seqno("b")
        carry(two, "a", "b")
        assert two.last_seqno("b") == before + 3
        door.words[word.CSN_END] = 0
    carry(two, "a", "b")
    assert two.last_seqno("b") > before + 3


def test_who_is_silent_is_known_by_name(two: Suppliers) -> None:
    two.write("b", 1, table="ta")
    two.write("a", 1, table="ta")
    agreed = two.agreed("b", "a")
    with two.receive_pool("a", agreed.from_seqno) as pool:
        two.offer("b", pool, agreed)
        with two.applier("a", pool, SOON) as applier:
            work_through(applier)
            applier._tending.tend()
            assert list(applier.awaited()) == ["b"]
            told = applier.told()
            assert {origin for origin, last in told["a"].items() if last > told["b"][origin]} == {"a 2"}
            two.by["b"].reload()
    for _ in range(2):
        carry(two, "a", "b")
        carry(two, "b", "a")
    agreed = two.agreed("b", "a")
    with two.receive_pool("a", agreed.from_seqno) as pool, two.applier("a", pool, SOON) as applier:
        work_through(applier)
        applier._tending.tend()
        assert applier.awaited() == {}
        told = applier.told()
        assert told.keys() == {"a", "b"}
        assert told["a"].items() - told["b"].items() == {("a 2", told["b"]["a 2"] + 1)}, (
            "a told last, which nobody tells of"
        )
