"""What an overwritten secondary's journal tells others: a third site, a replay, a rollback, a new primary, a seed."""

from __future__ import annotations

from pathlib import Path

import pytest

from replicate.audit.show import show_journal
from replicate.audit.verify import verify_journal
from replicate.instance.instance import Instance
from replicate.roles.change_of_role import become_primary
from replicate.roles.rollback import rollback
from tests.harness.conflicting import conflicting_pair, decided, spoil, stops_at
from tests.harness.pair import Pair, assert_equal, run, work_all
from tests.harness.sites import told_of_a_takeover
from update_process.conflict_decision import OVERWRITE
from update_process.replay.command import replay

BIG = "x" * 20_000
LARGE = 40


@pytest.fixture
def pair(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Pair:
    """The secondary's rows are others than the primary's."""
    monkeypatch.setenv("REPLICATE_SHM_DIR", str(tmp_path / "shm"))  # Pair.create sets it; it is put back
    made = conflicting_pair(tmp_path)
    spoil(made, "UPDATE t SET a = 'foreign' WHERE id = 3", "INSERT INTO t VALUES (1020, 'here', 1030)")
    return made


def third_site(pair: Pair) -> Pair:
    """The secondary, and one that is seeded from it."""
    north = Instance.create(
        pair.directory / "north", role="secondary", name="north", network=pair.primary.content.network
    )
    pair.secondary.register_peer("north", "127.0.0.1", 7430)
    pair.secondary.reload()
    relay = Pair(pair.directory, pair.secondary, north)
    relay.seed()
    return relay


def overwritten(pair: Pair) -> int:
    """Three transactions, of which a small and a large one are overwritten; the number of the first."""
    with pair.receive_pool(64 * 1024 * 1024) as pool:
        first = run(pair, "UPDATE t SET a = 'new' WHERE id = 3; INSERT INTO u VALUES (1)")
        pair.deliver(pool)
        decided(pair, stops_at(pair, pool), OVERWRITE)
        with pair.applier(pool) as applier:
            work_all(applier)
        run(
            pair,
            ";".join(f"INSERT INTO t VALUES ({number}, '{BIG}', {number})" for number in range(1000, 1000 + LARGE)),
        )
        pair.deliver(pool)
        decided(pair, stops_at(pair, pool), OVERWRITE)
    run(pair, "INSERT INTO u VALUES (2)")
    with pair.receive_pool(64 * 1024 * 1024) as pool:
        pair.deliver(pool)
        with pair.applier(pool) as applier:
            work_all(applier)
            assert applier.applied_seqno == pair.last_seqno() == first + 2
    return first


def kinds(instance: Instance, first: int) -> list[str]:
    return [one.kind for one in show_journal(instance) if one.seqno >= first]


def test_a_third_site_and_one_that_replays(pair: Pair) -> None:
    relay = third_site(pair)
    first = overwritten(pair)
    assert kinds(pair.secondary, first) == ["RESTATED", "RESTATED_LARGE", "TRANSACTION"]
    relay.catch_up()
    assert_equal(relay)
    assert kinds(relay.secondary, first) == kinds(pair.secondary, first)
    assert not verify_journal(relay.secondary, None, None).findings
    # What comes later goes on, through both.
    run(pair, "UPDATE t SET a = 'later' WHERE id = 3")
    pair.catch_up()
    relay.catch_up()
    assert_equal(pair)
    assert_equal(relay)


def test_a_replay_of_its_journal(pair: Pair) -> None:
    relay = third_site(pair)
    first = overwritten(pair)
    replay(relay.secondary, [pair.secondary.path])
    assert_equal(relay)
    assert kinds(relay.secondary, first) == kinds(pair.secondary, first)


def test_rolled_back_the_foreign_rows_are_here_again(pair: Pair) -> None:
    foreign = pair.rows("t"), pair.rows("u")
    first = overwritten(pair)
    assert_equal(pair)
    pair.secondary.register_peer("east", "127.0.0.1", 7430)
    told_of_a_takeover(pair.secondary, first - 1)
    rollback(pair.secondary, first - 1)
    pair.secondary.reload()
    assert (pair.rows("t"), pair.rows("u")) == foreign
    assert pair.last_seqno(pair.secondary) == first - 1
    # They come again, and are decided already.
    with pair.receive_pool(64 * 1024 * 1024) as pool:
        pair.deliver(pool)
        with pair.applier(pool) as applier:
            assert [seqno for seqno, _ in work_all(applier).overwritten] == [first, first + 1]
    assert_equal(pair)


def test_it_takes_over_and_the_old_primary_follows_it(pair: Pair) -> None:
    first = overwritten(pair)
    pair.secondary.register_peer("east", "127.0.0.1", 7430)
    pair.secondary.reload()
    assert become_primary(pair.secondary) == first + 2
    new = Pair(pair.directory, Instance.open(pair.secondary.path), pair.primary)
    run(new, "UPDATE t SET a = 'by the new one' WHERE id = 3")
    assert not verify_journal(new.primary, None, None).findings
    relay = third_site(Pair(pair.directory, pair.primary, new.primary))
    assert_equal(relay)
    run(new, "UPDATE t SET a = 'once more' WHERE id = 3")
    relay.catch_up()
    assert_equal(relay)
