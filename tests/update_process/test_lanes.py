"""Several sources, each in a lane of its own: what is applied in turn, and what one of them can hold up."""

from __future__ import annotations

import random
from contextlib import closing
from pathlib import Path

import pytest

from replicate.door.barrier import Barrier
from replicate.door.snapshot import door_of
from replicate.errors import GapError, NotWriterError
from replicate.pool.receive_pool import ReceivePool
from replicate.settings.table import UpdateConfig
from tests.harness.suppliers import Suppliers, work_through
from update_process.supplied_transactions import SupplierApplier
from update_process.work_result import Waiting

BACKLOG = 300
BATCH = 50


@pytest.fixture
def three(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Suppliers:
    monkeypatch.setenv("REPLICATE_SHM_DIR", "")
    return Suppliers.create(tmp_path, 3)


def step(applier: SupplierApplier) -> Waiting:
    """One batch of one lane."""
    return applier.work(60, lambda: True).waiting


def offered(three: Suppliers, pool: ReceivePool, lanes: dict[str, int]) -> None:
    """All that each of these has, in that lane of c."""
    for name, lane in lanes.items():
        three.offer(name, pool.lanes[lane], three.agreed(name, "c"))


@pytest.mark.parametrize(
    ("ways", "is_apart"),
    [({"a": 0, "b": 1}, True), ({"a": 1, "b": 0}, True), ({"a": 0, "b": 0}, False)],
    ids=["the backlog in the first lane", "in the last one", "one lane for both"],
)
def test_a_transaction_waits_for_one_batch_of_another_source(
    three: Suppliers, ways: dict[str, int], is_apart: bool
) -> None:
    """With one lane for both it comes after all that the other one has sent before."""
    three.write("a", BACKLOG)
    three.write("b")
    settings = UpdateConfig(batch_transactions=BATCH)
    with three.receive_pool("c", 1, lanes=2) as pool, three.applier("c", pool, settings) as applier:
        offered(three, pool, ways)
        while not three.rows("c")["tb"]:
            assert step(applier) is Waiting.MORE
        assert (len(three.rows("c")["ta"]) <= BATCH) is is_apart
        assert work_through(applier).waiting is Waiting.NOTHING
        assert len(three.rows("c")["ta"]) == BACKLOG
        assert pool.is_empty
    three.level()
    three.assert_converged()


@pytest.mark.parametrize("seed", range(3))
def test_what_comes_by_two_ways_in_any_order_is_applied_once(three: Suppliers, seed: int) -> None:
    """a has all of b's, and b of a's: both send both, cut anywhere."""
    dice = random.Random(seed)
    for _ in range(6):
        three.write(dice.choice("ab"), dice.randint(1, 20))
        if dice.random() < 0.5:
            three.carry(*dice.sample("ab", 2), most=dice.choice([None, 3]))
    with three.receive_pool("c", 1, lanes=2) as pool, three.applier("c", pool) as applier:
        for _ in range(8):
            name = dice.choice("ab")
            three.offer(name, pool.lanes["ab".index(name)], three.agreed(name, "c"), most=dice.choice([None, 2, 5]))
            for _ in range(dice.randint(0, 4)):
                step(applier)
        offered(three, pool, {"a": 0, "b": 1})
        assert work_through(applier).waiting is Waiting.NOTHING
    three.level()
    three.assert_converged()
    assert sum(map(len, three.rows("c").values())) > 0


def test_what_is_refused_of_one_source_is_asked_for_again_though_others_were_applied(
    three: Suppliers, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It may have been made again since; then it stops by name, and what others have sent stays applied."""
    three.write("a", 3)
    with monkeypatch.context() as patch:
        patch.setattr("replicate.door.writer_check.WriterCheck.refuse_others", lambda *_: None)
        with closing(three.connect("b")) as connection:
            connection.execute("INSERT INTO ta (id) VALUES (99)")
            connection.commit()
    with three.receive_pool("c", 1, lanes=2) as pool, three.applier("c", pool) as applier:
        offered(three, pool, {"a": 0, "b": 1})
        assert work_through(applier).waiting is Waiting.RESTART
        assert len(three.rows("c")["ta"]) == 3, "a's came before it"
        pool.restart(0)
        offered(three, pool, {"a": 0, "b": 1})
        with pytest.raises(NotWriterError, match="another supplier writes"):
            work_through(applier)
    assert len(three.rows("c")["ta"]) == 3


def test_a_gap_that_comes_again_ends_it(three: Suppliers) -> None:
    """A stream that begins again has none. One that has is told by name, not asked again without end."""
    three.write("a", 2)
    three.write("b", 2)
    ahead = three.vector("b")
    three.write("b", 2)
    agreed = three.agreed("b", "c", known=ahead)
    with three.receive_pool("c", 1, lanes=2) as pool, three.applier("c", pool) as applier:
        offered(three, pool, {"a": 0})
        three.offer("b", pool.lanes[1], agreed)
        assert work_through(applier).waiting is Waiting.RESTART
        pool.restart(0)
        three.offer("b", pool.lanes[1], agreed)
        with pytest.raises(GapError):
            work_through(applier)
    three.level()
    three.assert_converged()


def test_a_stop_waits_for_what_had_come_in_each_lane(three: Suppliers) -> None:
    """What comes to one lane after it does not count for another."""
    three.write("a", 2)
    three.write("b", 2)
    with three.receive_pool("c", 1, lanes=2) as pool, three.applier("c", pool) as applier:
        offered(three, pool, {"a": 0, "b": 1})
        arrived = applier.arrived
        three.write("a", 200)
        three.offer("a", pool.lanes[0], three.agreed("a", "c"))
        assert applier.left(arrived) == 4
        while len(three.rows("c")["ta"]) < 2:
            step(applier)
        assert applier.has_reached(arrived) is bool(three.rows("c")["tb"])
        work_through(applier)
        assert applier.has_reached(arrived)
        assert applier.left(arrived) == 0


def test_a_barrier_holds_all_lanes(three: Suppliers) -> None:
    three.write("a", 2)
    three.write("b", 2)
    with three.receive_pool("c", 1, lanes=2) as pool, three.applier("c", pool) as applier:
        offered(three, pool, {"a": 0, "b": 1})
        with door_of(three.by["c"]) as door, Barrier(door, timeout_s=60) as barrier:
            barrier.hold()
            assert work_through(applier).waiting is Waiting.BARRIER
            assert three.rows("c")["ta"] == three.rows("c")["tb"] == []
        assert work_through(applier).waiting is Waiting.NOTHING
        assert (len(three.rows("c")["ta"]), len(three.rows("c")["tb"])) == (2, 2)
