"""What a replay took is kept for `status`, where it says something of the next one."""

from __future__ import annotations

from contextlib import nullcontext

import pytest

from replicate.status import replays
from replicate.status.collect import collect
from replicate.status.replays import look_at_replays
from tests.harness.pair import Pair
from tests.harness.replaying import replayed, run
from update_process.replay import command
from update_process.replay.command import one_session


@pytest.fixture(autouse=True)
def few(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(replays, "LEAST_CHANGES", 10)


def write(pair: Pair, count: int) -> None:
    run(pair, *(f"UPDATE account SET balance = {number} WHERE id = 1" for number in range(count)))


def test_a_replay_is_noted_and_status_looks_at_it(pair: Pair, monkeypatch: pytest.MonkeyPatch) -> None:
    write(pair, 9)
    replayed(pair)
    assert look_at_replays(pair.secondary) == {}  # too few
    write(pair, 12)
    replayed(pair, dry_run=True)
    assert look_at_replays(pair.secondary) == {}
    done = replayed(pair)
    (took,) = look_at_replays(pair.secondary).values()
    assert (took.changes, took.seconds, took.start_s) == (12, done.seconds, 0.0)
    seen = []
    monkeypatch.setattr("replicate.status.collect.findings", lambda *_, **facts: seen.append(facts["took"]) or ())
    collect(pair.secondary)
    collect(pair.primary)
    assert seen == [{"local": took}, {}]


def test_one_with_a_large_transaction_is_not_noted(pair: Pair) -> None:
    """Its rows are not among the changes, and its time is most of all."""
    write(pair, 12)
    connection = pair.connect()
    connection.executemany("INSERT INTO entry VALUES (?, 1.0, ?)", [(str(n), b"x" * 1000) for n in range(1500)])
    connection.commit()
    connection.close()
    done = replayed(pair)
    assert (done.large, done.alone) == (1, 1)
    assert look_at_replays(pair.secondary) == {}


def test_a_session_is_made_once_and_its_start_is_measured(monkeypatch: pytest.MonkeyPatch) -> None:
    now = iter([10.0, 17.5])
    monkeypatch.setattr(command.time, "monotonic", lambda: next(now))
    made: list[object] = []
    with one_session(lambda: nullcontext(made.append(1) or object())) as get:
        assert get is not None
        assert not made
        assert get() is get()
        assert (len(made), get.start_s) == (1, 7.5)
    with one_session(None) as nothing:
        assert nothing is None
