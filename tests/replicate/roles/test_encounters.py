"""Two primaries meet on the wire, with their daemons in one process: the old one is fenced, no matter who calls."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any

import pytest
import trio

from replicate import connect
from replicate.daemon.own_introduction import introduction
from replicate.dbapi import OperationalError
from replicate.door.snapshot import door_of
from replicate.errors import BusyError, JournalDamagedError
from replicate.instance.instance import Instance
from replicate.model.findings import Finding
from replicate.pool import control as word
from replicate.roles import encounters as module
from replicate.roles.change_of_role import become_primary
from replicate.roles.encounters import Encounters
from replicate.roles.succession import Other
from replicate.roles.superseded import give_way, own_takeovers
from replicate.status.collect import collect
from replicate.wire.codec import encode
from replicate.wire.features import PROTOCOL
from replicate.wire.message import Hello
from tests.harness.certificates import Authority, client_context
from tests.harness.openings import TLS, over_tls, port_of
from tests.harness.pair import Pair, assert_equal
from tests.harness.servers import ListLog, point, servers
from tests.harness.sites import other
from tests.harness.waiting import wait_until_async
from update_process.process import serve as serve_update

pytestmark = pytest.mark.trio


@pytest.fixture
def parted(pair: Pair) -> Pair:
    """`primary` is the old one: its peer took over, and it has two transactions more. Each knows the other."""
    pair.write(3)
    pair.catch_up()
    pair.secondary.register_peer(pair.primary.name, "127.0.0.1", 1)
    become_primary(pair.secondary)
    pair.write(2)
    return pair


def is_secondary(instance: Instance) -> bool:
    return Instance.open(instance.path).role == "secondary"


async def found(instance: Instance, code: str) -> list[Finding]:
    status = await trio.to_thread.run_sync(collect, Instance.open(instance.path))
    return [one for one in status.findings if one.code == code]


def refused(instance: Instance) -> str:
    connection = connect(instance.path)
    try:
        with pytest.raises(OperationalError) as caught:
            connection.execute("INSERT INTO account(owner, balance) VALUES ('more', 1)")
        return str(caught.value)
    finally:
        connection.close()


async def test_the_old_primary_calls_the_new_one_and_is_fenced(parted: Pair) -> None:
    old, new = parted.primary, parted.secondary
    async with servers() as running:
        standby = await running.receiver(new)
        point(old, new.name, standby)
        source = running.source(old, new.name)
        await wait_until_async(partial(is_secondary, old), what="it gives way")
        (line,) = source.log.events("fenced")
        assert line["primary"] == new.name
        assert "superseded by" in refused(old)
        (fenced,) = await found(old, "FENCED")
        assert fenced.subject == new.name
        await wait_until_async(lambda: source.facts.get("mode") == "passive", what="it is passive")
        # Its figures show that only until the old one calls as a secondary, which its last quick try may do.
        await wait_until_async(lambda: standby.log.events("another primary was met"), what="the new one says who came")
        assert f"{old.name} is superseded" in standby.log.events("another primary was met")[0]["text"]
        assert not source.failure


async def test_the_new_primary_calls_the_old_one_which_goes_back_by_itself_and_follows(
    parted: Pair, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("source_server.process.GIVES_WAY_S", 0.1)
    old, new = parted.primary, parted.secondary
    async with servers() as running:
        standby = await running.receiver(old, receiver__auto_rollback=True)
        assert standby.context.text == "standing by: this instance is primary"
        point(new, old.name, standby)
        source = running.source(new, old.name)
        await wait_until_async(lambda: standby.log.events("went back by itself"), what="it goes back")
        running.start("update", old, serve_update)
        await wait_until_async(lambda: source.facts.get("state") == "sending", what="the stream")
        assert standby.log.events("fenced")[0]["primary"] == new.name
        await wait_until_async(lambda: Instance.open(old.path).content.fence is None, what="nothing is left of it")
        with door_of(new) as door:
            last = int(door.words[word.LAST_SEQNO])
        await wait_until_async(lambda: source.facts.get("last_applied_seqno", 0) >= last, what="it follows")
        await wait_until_async(lambda: source.facts["other_primary"] is None, what="it is primary no more")
    parted.primary, parted.secondary = Instance.open(new.path), Instance.open(old.path)
    assert_equal(parted)


async def test_a_peer_that_says_nothing_of_its_past_fences_nobody_and_both_are_told(
    parted: Pair, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As a release before this one: it neither shows nor understands a takeover."""
    old, new = parted.primary, parted.secondary
    monkeypatch.setattr("replicate.roles.superseded.takeovers_of", lambda *_: ())
    async with servers() as running:
        standby = await running.receiver(new)
        point(old, new.name, standby)
        source = running.source(old, new.name)
        for daemon in (source, standby):
            await wait_until_async(lambda daemon=daemon: daemon.facts.get("other_primary"), what="both say so")
            assert "is primary too" in daemon.facts["other_primary"]["text"]
        assert [line["primary"] for line in source.log.events("another primary was met")] == [new.name]
        assert [line["primary"] for line in standby.log.events("another primary was met")] == [old.name]
    assert not is_secondary(old)
    parted.write(1)


async def test_a_word_under_another_name_than_the_certificates_fences_nobody(parted: Pair, tmp_path: Path) -> None:
    """It is true, and comes from who may not say it; then from who may."""
    old, new = parted.primary, parted.secondary
    authority = Authority(tmp_path)
    authority.install(old)
    with door_of(new) as door:
        me = introduction(new, 1.0, takeovers=own_takeovers(door))
    hello = b"".join(encode(Hello(*PROTOCOL, me)))
    async with servers() as running:
        standby = await running.receiver(old, **{**TLS, "receiver__allow": f"north, {new.name}"})
        answer = await over_tls(port_of(standby), client_context(authority.files("north")), hello)
        assert b"WRONG_ROLE" in answer
        await wait_until_async(lambda: len(standby.log.events("connection refused")) == 2, what="it was judged")
        assert standby.log.events("connection refused")[-1]["reason"] == "NAME_NOT_PROVEN"
        assert Instance.open(old.path).takes_writes
        await over_tls(port_of(standby), client_context(authority.files(new.name)), hello)
        await wait_until_async(partial(is_secondary, old), what="it gives way")


class Told:
    """One side without daemons."""

    def __init__(self, instance: Instance) -> None:
        self.log = ListLog()
        self.encounters = Encounters(instance, self.log)

    def shown(self) -> Any:
        return self.encounters.facts["other_primary"]


async def test_each_new_word_is_judged_once_and_is_shown_as_long_as_it_is_heard(
    parted: Pair, monkeypatch: pytest.MonkeyPatch
) -> None:
    told, said = Told(parted.secondary), other(parted.primary)
    judged: list[Other] = []
    meet = module.meet

    def counted(instance: Instance, one: Other) -> Any:
        judged.append(one)
        return meet(instance, one)

    monkeypatch.setattr(module, "meet", counted)
    for _ in range(3):
        await told.encounters.met(said)
    assert judged == [said]
    assert told.encounters.gives_way
    assert told.shown()["name"] == parted.primary.name
    told.encounters._heard_s -= module.SHOWN_S
    assert told.shown() is None
    await told.encounters.met(said)
    assert told.shown() is not None
    told.encounters.gone()
    assert (told.shown(), told.encounters.gives_way) == (None, False)
    await told.encounters.met(said)
    assert len(judged) == 2


async def test_what_cannot_be_judged_is_said_and_tried_again(parted: Pair, monkeypatch: pytest.MonkeyPatch) -> None:
    told, said = Told(parted.primary), other(parted.secondary)

    def damaged(*_: object) -> None:
        raise JournalDamagedError("bad")

    with monkeypatch.context() as failing:
        failing.setattr(module, "meet", damaged)
        await told.encounters.met(said)
    assert told.log.events("not judged")[0]["code"] == "JOURNAL_DAMAGED"
    assert Instance.open(parted.primary.path).takes_writes
    await told.encounters.met(said)
    assert not Instance.open(parted.primary.path).takes_writes


async def test_a_long_transaction_is_waited_for_and_nothing_is_written_meanwhile(
    parted: Pair, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "GIVE_WAY_S", 0.2)
    told, said = Told(parted.primary), other(parted.secondary)
    connection = connect(parted.primary.path, isolation_level=None)
    connection.execute("BEGIN IMMEDIATE")
    async with trio.open_nursery() as nursery:
        nursery.start_soon(told.encounters.run)
        await told.encounters.met(said)
        await wait_until_async(lambda: told.log.events("not secondary yet"), what="it waits")
        assert not is_secondary(parted.primary)
        connection.execute("ROLLBACK")
        connection.close()
        await wait_until_async(partial(is_secondary, parted.primary), what="it gives way")
        nursery.cancel_scope.cancel()
    assert told.log.events("not secondary yet")[0]["code"] == BusyError.code


async def test_one_that_was_killed_after_it_was_fenced_gives_way_at_its_next_start(parted: Pair) -> None:
    await Told(parted.primary).encounters.met(other(parted.secondary))
    assert not is_secondary(parted.primary)
    async with servers() as running:
        await running.receiver(parted.primary)
        await wait_until_async(partial(is_secondary, parted.primary), what="it gives way")
    assert not give_way(Instance.open(parted.primary.path))
