"""A frozen instance: nothing is committed or applied, until it is thawed; over kills, restarts and changes of roles."""

from __future__ import annotations

import json
import signal
from collections.abc import Callable
from pathlib import Path
from threading import Thread
from typing import Any

import pytest

from replicate import connect
from replicate.admin.freezing import freeze
from replicate.compare.compare import compare
from replicate.dbapi import OperationalError
from replicate.errors import FrozenError
from replicate.instance.instance import Instance
from replicate.model.findings import Finding
from replicate.roles.promote_demote import promote
from replicate.status.collect import collect
from tests.harness.instances import lose_pool
from tests.harness.pair import Pair, assert_equal
from tests.harness.sites import kill_at
from tests.harness.waiting import wait_until
from update_process.work_result import Waiting

INSERT = "INSERT INTO account(owner, balance) VALUES ('more', 1)"


def insert(instance: Instance, timeout: float = 0.2) -> None:
    connection = connect(instance.path, timeout=timeout)
    try:
        connection.execute(INSERT)
        connection.commit()
    finally:
        connection.close()


def in_thread(run: Callable[[], object]) -> tuple[Thread, list[BaseException]]:
    raised: list[BaseException] = []

    def body() -> None:
        try:
            run()
        except BaseException as error:
            raised.append(error)

    thread = Thread(target=body)
    thread.start()
    return thread, raised


def finding(instance: Instance) -> list[Finding]:
    return [one for one in collect(Instance.open(instance.path)).findings if one.code == "FROZEN"]


def refused(run: Callable[[], object]) -> Any:
    with pytest.raises(OperationalError) as caught:
        run()
    assert isinstance(caught.value, FrozenError)
    assert caught.value.sqlite_errorname == "SQLITE_BUSY"
    return caught.value


def test_writers_are_refused_by_name_after_their_patience_and_go_on_when_it_is_thawed(pair: Pair) -> None:
    last = pair.write(1)
    assert freeze(pair.primary, on=True) == last
    error = refused(lambda: insert(pair.primary))
    assert "is frozen by" in str(error)
    assert f"replicate -i {pair.primary.named} instance freeze off" in str(error)
    assert freeze(pair.primary, on=True) == last, "again"
    connection = connect(pair.primary.path)
    assert connection.execute("SELECT count(*) FROM account").fetchone()[0] > 0
    connection.close()
    waits, raised = in_thread(lambda: insert(pair.primary, timeout=60))
    assert freeze(pair.primary, on=False) == last
    waits.join()
    assert not raised
    assert freeze(pair.primary, on=False) == last + 1, "nothing happens"
    pair.catch_up()
    assert_equal(pair)


def test_one_that_has_begun_is_held_at_its_commit(pair: Pair) -> None:
    """Also one that began as a reader. When `freeze` returns, nothing more comes."""
    connection = connect(pair.primary.path, timeout=0.2, isolation_level=None)
    for begin in ("BEGIN IMMEDIATE", "BEGIN"):
        connection.execute(begin)
        connection.execute("SELECT count(*) FROM account").fetchall()
        connection.execute(INSERT)
        last = freeze(pair.primary, on=True)
        refused(lambda: connection.execute("COMMIT"))
        assert pair.last_seqno(pair.primary) == last
        freeze(pair.primary, on=False)
    connection.execute("BEGIN IMMEDIATE")
    connection.execute(INSERT)
    connection.execute("COMMIT")
    connection.close()
    assert pair.last_seqno(pair.primary) == last + 1


def test_it_outlives_the_pool_and_its_connections(pair: Pair) -> None:
    pair.write(1)
    freeze(pair.primary, on=True)
    lose_pool(pair.primary)
    refused(lambda: insert(pair.primary))
    (found,) = finding(pair.primary)
    assert (found.severity, found.do) == ("warning", f"replicate -i {pair.primary.named} instance freeze off")
    assert "is frozen by" in found.text
    assert json.loads((pair.primary.path / "instance.json").read_text())["format"] == 4
    freeze(pair.primary, on=False)
    assert not finding(pair.primary)
    assert json.loads((pair.primary.path / "instance.json").read_text())["format"] == 1
    insert(pair.primary)


def test_a_secondary_applies_nothing_and_receives_on(pair: Pair) -> None:
    freeze(pair.secondary, on=True)
    at = pair.last_seqno(pair.secondary)
    pair.write(3)
    with pair.receive_pool() as pool, pair.applier(pool) as applier:
        pair.deliver(pool)
        done = applier.work(10)
        assert done.waiting is Waiting.BARRIER
        assert done.transactions == 0
        assert pair.last_seqno(pair.secondary) == at
    (found,) = finding(pair.secondary)
    assert "nothing is applied" in found.text
    with pytest.raises(FrozenError, match="instance freeze off"):
        promote(pair.secondary, finish=lambda: at, timeout_s=1)
    freeze(pair.secondary, on=False)
    pair.catch_up()
    assert_equal(pair)


def test_a_compare_beside_it_does_not_thaw_it(pair: Pair) -> None:
    pair.write(1)
    pair.catch_up()
    for instance in (pair.primary, pair.secondary):
        freeze(instance, on=True)
    assert compare(pair.primary, pair.secondary, timeout_s=30).equal
    refused(lambda: insert(pair.primary))


@pytest.mark.slow
@pytest.mark.parametrize("on", [True, False])
def test_killed_between_its_two_steps_and_repeated(pair: Pair, *, on: bool) -> None:
    pair.write(1)
    freeze(pair.primary, on=not on)
    call = f"tests.replicate.admin.test_freezing:{'frost' if on else 'thaw'}"
    assert kill_at("freeze.noted:1", call, pair.primary.path) == -signal.SIGKILL
    assert bool(finding(pair.primary)) is on, "what is durable is shown"
    assert kill_at("", call, pair.primary.path) == 0
    if on:
        refused(lambda: insert(pair.primary))
    else:
        insert(pair.primary)


def frost(instance: Instance) -> None:
    """For a process that is killed."""
    freeze(instance, on=True)


def thaw(instance: Instance) -> None:
    freeze(instance, on=False)


def test_many_writers_wait_and_each_is_told(pair: Pair) -> None:
    freeze(pair.primary, on=True)
    writers = [in_thread(lambda: insert(pair.primary, timeout=0.1)) for _ in range(4)]
    for thread, _ in writers:
        wait_until(lambda thread=thread: not thread.is_alive(), what="it was told")
    assert [type(one).__mro__ for _, raised in writers for one in raised if not isinstance(one, FrozenError)] == []
    assert all(raised for _, raised in writers)


def test_a_new_instance_that_is_not_frozen_has_the_file_of_before(tmp_path: Path) -> None:
    made = Instance.create(tmp_path / "plain", role="primary")
    assert "frozen" not in (made.path / "instance.json").read_text()
