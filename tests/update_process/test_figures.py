"""What the Update Process tells of itself at the moment of asking, and when it is ready."""

from __future__ import annotations

import os
import time
from pathlib import Path

import pytest

from replicate.daemon.figures import FIGURES
from replicate.daemon.statistics import Lag, Statistics
from replicate.model.contact import patience_s
from tests.harness.pair import Pair, work_all
from tests.harness.waiting import wait_until
from update_process.batch.by_partition import PartitionCounts
from update_process.figures import applied_of_each, known_of_source, measured, why_not_ready
from update_process.work_result import Waiting

SECOND_NS = 10**9


@pytest.fixture
def pair(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Pair:
    monkeypatch.setenv("REPLICATE_SHM_DIR", str(tmp_path / "shm"))
    made = Pair.create(tmp_path)
    made.seed()
    return made


def told(pair: Pair, pool: object, last_seqno: int, ago_s: float = 0.0, *, connected: bool = True) -> None:
    """The Receiver Server has heard from the source where it stands, so long ago."""
    now_ns = time.monotonic_ns()
    pool.note_receiver(os.getpid(), now_ns, connected=connected)  # type: ignore[attr-defined]
    pool.note_source(last_seqno, time.time_ns(), now_ns - int(ago_s * SECOND_NS), 1000)  # type: ignore[attr-defined]


def test_what_is_not_known_is_not_told_as_a_number(pair: Pair) -> None:
    with pair.session() as session:
        found = measured(session, None, Statistics(60.0, 0.0), Lag())
        assert found["connected"] is False
        assert found["last_applied_seqno"] == pair.last_seqno(pair.secondary)
        names = (
            "known",
            "last_written_seqno",
            "last_received_seqno",
            "receiver_backlog",
            "backlog",
            "lag_s",
            "lag_at_least_s",
        )
        assert {name: found[name] for name in names} == dict.fromkeys(names)
        with pair.receive_pool() as pool:
            found = measured(session, pool, Statistics(60.0, 0.0), Lag())
            assert (found["connected"], found["known"], found["backlog"], found["lag_s"]) == (True, False, None, None)


def test_backlog_and_lag_move_with_what_is_received_told_and_applied(pair: Pair) -> None:
    lag = Lag()
    with pair.receive_pool() as pool:
        begun = pair.last_seqno()
        last = pair.write(5)
        pair.deliver(pool)
        told(pair, pool, last + 3)
        with pair.session() as session:
            found = measured(session, pool, Statistics(60.0, 0.0), lag)
            assert (found["last_applied_seqno"], found["last_received_seqno"]) == (begun, last)
            assert (found["last_written_seqno"], found["receiver_backlog"], found["backlog"]) == (last + 3, 5, 8)
            assert found["known"] is True
            wait_until(
                lambda: measured(session, pool, Statistics(60.0, 0.0), lag)["lag_s"] > found["lag_s"] >= 0,
                what="it grows while nothing happens",
            )
        with pair.applier(pool) as applier:
            work_all(applier)
            found = measured(applier.session, pool, Statistics(60.0, 0.0), lag)
            assert (found["receiver_backlog"], found["backlog"]) == (0, 3)
            assert pair.write(3) == last + 3
            pair.deliver(pool)
            work_all(applier)
            found = measured(applier.session, pool, Statistics(60.0, 0.0), lag)
            assert (found["backlog"], found["lag_s"]) == (0, 0.0)


def test_each_figure_of_the_table_that_is_measured_here_has_its_value(pair: Pair) -> None:
    with pair.session() as session, pair.receive_pool() as pool:
        found = measured(session, pool, Statistics(60.0, 0.0), Lag())
    assert found["merged_total"] is found["lost_total"] is None, "of a supplier alone"
    assert found.keys() <= set(FIGURES) | {"known"}


def test_it_is_ready_while_it_applies_and_says_else_what_it_waits_for(pair: Pair) -> None:
    lag = Lag()
    with pair.session() as session:
        assert why_not_ready(session, None, lag, Waiting.NOTHING) == "waiting for the Receiver Server"
        with pair.receive_pool() as pool:
            assert why_not_ready(session, pool, lag, Waiting.NOTHING) == "no source is connected"
            told(pair, pool, 0, connected=False)
            assert why_not_ready(session, pool, lag, Waiting.NOTHING) == "no source is connected"
            told(pair, pool, pair.last_seqno())
            for waiting in Waiting:
                said = why_not_ready(session, pool, lag, waiting)
                assert said == (str(waiting.value) if waiting in (Waiting.LOCK, Waiting.RESTART) else "")
            limit_s = patience_s(1.0)
            told(pair, pool, pair.last_seqno(), limit_s + 5)
            assert not known_of_source(session, pool, lag).is_known
            assert "has not said for" in why_not_ready(session, pool, lag, Waiting.NOTHING)


def test_partitions_by_their_names() -> None:
    counts = PartitionCounts()
    counts.add(2, 1, 3, 100)
    counts.add(1, 1, 1, 50)
    counts.add(2, 1, 0, 10)
    assert applied_of_each(counts, {1: "DEFAULT", 2: "sales"}.__getitem__) == {
        "partition_applied": {"DEFAULT": 1, "sales": 2},
        "partition_rows": {"DEFAULT": 1, "sales": 3},
        "partition_bytes": {"DEFAULT": 50, "sales": 110},
    }
    assert applied_of_each(PartitionCounts(), str)["partition_rows"] == {}
