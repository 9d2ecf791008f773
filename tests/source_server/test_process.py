"""The Source Server over real loopback TCP: tries, drains, remembers its consumer, ends on damage, idles cheaply."""

from __future__ import annotations

import errno
import os
import resource
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import trio
from msgspec.structs import replace

from receiver_server.link import ReceiverLink
from replicate.door.door import Door
from replicate.door.durability import Durability
from replicate.door.recovery.opening import SEEDING_MARKER, close_door, make_chain, open_door
from replicate.door.snapshot import door_of
from replicate.errors import DiskFullError, JournalDamagedError, NotFoundError
from replicate.instance.consumers import Consumer, read_consumer, write_consumer
from replicate.instance.instance import Instance
from replicate.limits import PARTITION_NONE
from replicate.model.subscription import Subscription
from replicate.pool import control as word
from replicate.pool.shared_memory import PoolKind, retire
from replicate.system.locks import FileLock
from replicate.transfer.seed.direct import seed
from source_server import connection, position
from source_server import process as module
from tests.harness.counting import count_calls
from tests.harness.pair import Pair
from tests.harness.ports import free_port
from tests.harness.servers import Daemon, point, servers
from tests.harness.waiting import wait_until_async
from update_process.process import serve as serve_update

pytestmark = pytest.mark.trio


@pytest.fixture
def pair(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Pair]:
    monkeypatch.setenv("REPLICATE_SHM_DIR", str(tmp_path / "shm"))
    made = Pair.create(tmp_path)
    (made.primary.path / "replicate.toml").write_text("[journal]\nsegment_bytes = 1048576\npool_bytes = 1048576\n")
    made.primary = Instance.open(made.primary.path)
    made.seed()
    door = open_door(made.primary)
    yield made
    close_door(door)


def consumer_of(pair: Pair) -> Consumer:
    found = read_consumer(pair.primary.consumers_directory, "west")
    assert found is not None
    return found


def tries(daemon: Daemon) -> list[str]:
    return [event for _, event, _ in daemon.log.lines if event.endswith("connection attempt failed")]


async def test_hard_tries_then_soft_ones_for_ever(pair: Pair) -> None:
    async with servers() as running:
        point(pair.primary, "west", 1)
        source = running.source(pair.primary, source__hard_tries=3)
        await wait_until_async(lambda: len(tries(source)) >= 4)
        assert tries(source)[:4] == ["hard connection attempt failed"] * 3 + ["soft connection attempt failed"]
        assert "UNREACHABLE: nobody answers: refused at once" in source.facts["last_error"]
        tried = source.log.events("connection attempt failed")[0]
        assert (tried["reason"], tried["errno"]) == ("REFUSED_AT_ONCE", errno.ECONNREFUSED)
        assert source.context.text == "waiting for a connection"
        receiver = await running.receiver(pair.secondary)
        point(pair.primary, "west", receiver)
        await wait_until_async(lambda: source.facts["state"] == "sending")
        assert source.facts["last_error"] is None
        heard_ns = source.facts["last_heard_monotonic_ns"]
        assert 0 < heard_ns <= time.monotonic_ns()
        await trio.to_thread.run_sync(lambda: pair.write(1))
        await wait_until_async(lambda: source.facts["last_heard_monotonic_ns"] > heard_ns)
        await receiver.stop()
        await wait_until_async(lambda: source.facts["state"] == "waiting for a connection")
        stays_ns = source.facts["last_heard_monotonic_ns"]
        assert stays_ns > heard_ns  # an operator wants to know since when
        await wait_until_async(lambda: "UNREACHABLE" in str(source.facts["last_error"]))
        assert source.facts["last_heard_monotonic_ns"] == stays_ns


async def test_an_unknown_peer_is_refused_at_the_start(pair: Pair) -> None:
    async with servers() as running:
        source = running.source(pair.primary, "nowhere")
        assert isinstance(await source.failed(), NotFoundError)


@pytest.mark.slow
async def test_a_stop_sends_what_was_committed_and_stores_the_consumer(pair: Pair) -> None:
    async with servers() as running:
        receiver = await running.receiver(pair.secondary)
        update = running.start("update", pair.secondary, serve_update)
        point(pair.primary, "west", receiver)
        source = running.source(pair.primary)
        await wait_until_async(lambda: source.facts.get("state") == "sending")
        last = await trio.to_thread.run_sync(lambda: pair.write(500, size=1000))
        await source.stop()
        assert receiver.facts["last_received_seqno"] == last or source.facts["last_received_seqno"] == last
        assert source.context.text == "stopped"
        await wait_until_async(lambda: receiver.log.events("connection closed"))
        closed = receiver.log.events("connection closed")[0]
        assert (closed["reason"], closed["text"]) == ("bye", "the Source Server was stopped")
        await wait_until_async(lambda: update.facts.get("last_applied_seqno") == last)
        assert consumer_of(pair).uuid == pair.secondary.content.uuid.hex()
        again = running.source(pair.primary)
        await wait_until_async(lambda: again.facts.get("last_acknowledged_seqno") == last)
        await again.stop()
        assert consumer_of(pair).acknowledged_seqno == last


async def test_a_stop_waits_for_the_word_that_all_is_durable(pair: Pair, monkeypatch: pytest.MonkeyPatch) -> None:
    """A release of the region goes by it. Here it takes as long as somebody holds the region of the secondary."""
    monkeypatch.setattr(connection, "LAST_WORD_S", 3600.0)
    lock = FileLock(pair.secondary.locks_directory / "region-0.lock")
    async with servers() as running:
        receiver = await running.receiver(pair.secondary)
        running.start("update", pair.secondary, serve_update)
        point(pair.primary, "west", receiver)
        source = running.source(pair.primary)
        await wait_until_async(lambda: source.facts.get("peer_update_state") == "running")
        await wait_until_async(lock.try_acquire)  # it may have it for a moment
        last = await trio.to_thread.run_sync(lambda: pair.write(5))
        await wait_until_async(lambda: receiver.facts.get("last_received_seqno") == last)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(source.stop)
            await wait_until_async(lambda: source.context.text == "stopping: sending what is left")
            lock.close()
        assert consumer_of(pair).acknowledged_seqno == last


async def test_a_stop_waits_for_no_word_that_does_not_come(pair: Pair, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nobody applies there: what was received is not on its disk, and will not be soon."""
    monkeypatch.setattr(connection, "LAST_WORD_S", 3600.0)
    async with servers() as running:
        receiver = await running.receiver(pair.secondary)
        point(pair.primary, "west", receiver)
        source = running.source(pair.primary)
        await wait_until_async(lambda: source.facts.get("state") == "sending")
        last = await trio.to_thread.run_sync(lambda: pair.write(5))
        await source.stop()
        assert source.context.text == "stopped"
        assert consumer_of(pair).acknowledged_seqno < last


async def test_a_full_disk_ends_no_stream(pair: Pair, monkeypatch: pytest.MonkeyPatch) -> None:
    is_full, tried = True, 0

    def write(directory: Path, consumer: Consumer) -> None:
        nonlocal tried
        if is_full and consumer.acknowledged_seqno:
            tried += 1
            raise DiskFullError("no space left", where=str(directory))
        write_consumer(directory, consumer)

    monkeypatch.setattr(module, "CONSUMER_PERIOD_S", 0.02)
    async with servers() as running:
        point(pair.primary, "west", await running.receiver(pair.secondary))
        running.start("update", pair.secondary, serve_update)
        source = running.source(pair.primary)
        await wait_until_async(lambda: source.facts.get("state") == "sending")
        monkeypatch.setattr(position, "write_consumer", write)
        last = await trio.to_thread.run_sync(lambda: pair.write(50))
        await wait_until_async(lambda: source.facts.get("last_acknowledged_seqno") == last and tried > 2)
        assert [one["code"] for one in source.log.events("consumer's position not stored")] == ["DISK_FULL"]
        is_full = False
        await wait_until_async(lambda: consumer_of(pair).acknowledged_seqno == last)
        is_full = True
        last = await trio.to_thread.run_sync(lambda: pair.write(50))
        await wait_until_async(lambda: source.facts.get("last_acknowledged_seqno") == last)
        await source.stop()
        assert len(source.log.events("consumer's position not stored")) == 2
        assert source.context.text == "stopped"


async def test_nothing_leaves_before_it_is_durable(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("REPLICATE_SHM_DIR", str(tmp_path / "shm"))
    pair = Pair.create(tmp_path)
    (pair.primary.path / "replicate.toml").write_text("[journal]\ndurability = 'off'\n")
    pair.seed()
    async with servers() as running:
        receiver = await running.receiver(pair.secondary)
        point(pair.primary, "west", receiver)
        running.source(pair.primary)
        last = await trio.to_thread.run_sync(lambda: pair.write(50))
        await wait_until_async(lambda: receiver.facts.get("last_received_seqno") == last)
        door = open_door(pair.primary)
        assert door.words[word.LAST_DURABLE_SEQNO] >= last
        close_door(door)


@pytest.mark.parametrize("dead", [False, True], ids=["committers flush", "they die before"])
async def test_whose_flush_it_is(pair: Pair, monkeypatch: pytest.MonkeyPatch, dead: bool) -> None:
    """Under `durable` anybody who commits flushes, and the source waits for that; if nobody does, it flushes."""
    flushes = count_calls(monkeypatch, Door, "wait_durable")
    if dead:
        monkeypatch.setattr(Durability, "after_commit", lambda *_: None)
    else:
        monkeypatch.setattr("source_server.connection.FLUSHED_S", 3600.0)
    async with servers() as running:
        receiver = await running.receiver(pair.secondary)
        point(pair.primary, "west", receiver)
        source = running.source(pair.primary)
        await wait_until_async(lambda: source.facts.get("state") == "sending")
        last = await trio.to_thread.run_sync(lambda: pair.write(20))
        await wait_until_async(lambda: receiver.facts.get("last_received_seqno") == last)
        door = open_door(pair.primary)
        assert door.words[word.LAST_DURABLE_SEQNO] >= last
        close_door(door)
    assert (flushes.done > 0) == dead


async def test_damage_in_our_journal_ends_it_by_name(pair: Pair) -> None:
    applied = consumer_of(pair).acknowledged_seqno
    last = pair.write(100, size=2000)
    chain = make_chain(pair.primary)
    path = chain.segment(chain.first_seqnos()[-1]).path
    fd = os.open(path, os.O_WRONLY)
    os.pwrite(fd, b"\xff" * 64, 120_000)
    os.close(fd)
    async with servers() as running:
        receiver = await running.receiver(pair.secondary)
        point(pair.primary, "west", receiver)
        source = running.source(pair.primary)
        error = await source.failed()
        assert isinstance(error, JournalDamagedError)
        assert "journal verify; then restore the file, or begin again: replicate -i" in error.do
        await wait_until_async(lambda: receiver.log.events("connection closed"))
        assert "DAMAGED" in receiver.log.events("connection closed")[0]["error"]
        assert applied <= receiver.facts["last_received_seqno"] < last


async def test_another_instance_of_the_same_name_is_refused(pair: Pair, tmp_path: Path) -> None:
    write_consumer(pair.primary.consumers_directory, replace(consumer_of(pair), uuid="ab" * 16))
    async with servers() as running:
        receiver = await running.receiver(pair.secondary)
        point(pair.primary, "west", receiver)
        source = running.source(pair.primary)
        await wait_until_async(lambda: "WRONG_INSTANCE" in str(source.facts.get("last_error")))
        assert "another one than before" in source.facts["last_error"]
        # A seed makes it known.
        write_consumer(
            pair.primary.consumers_directory,
            replace(consumer_of(pair), uuid=pair.secondary.content.uuid.hex(), acknowledged_seqno=1),
        )
        await wait_until_async(lambda: source.facts.get("state") == "sending")


async def test_a_consumer_that_went_back_is_believed(pair: Pair) -> None:
    """Its position was stored too high (a secondary restored from a backup): nothing that it needs may be pruned."""
    applied = consumer_of(pair).acknowledged_seqno
    write_consumer(pair.primary.consumers_directory, replace(consumer_of(pair), acknowledged_seqno=applied + 1000))
    async with servers() as running:
        receiver = await running.receiver(pair.secondary)
        point(pair.primary, "west", receiver)
        source = running.source(pair.primary)
        await wait_until_async(lambda: source.facts.get("state") == "sending")
        assert consumer_of(pair).acknowledged_seqno == applied


async def test_a_journal_pool_made_again_is_attached_again(pair: Pair, tmp_path: Path) -> None:
    async with servers() as running:
        receiver = await running.receiver(pair.secondary)
        point(pair.primary, "west", receiver)
        source = running.source(pair.primary)
        await wait_until_async(lambda: source.facts.get("state") == "sending")
        retire(PoolKind.JOURNAL, pair.primary.content.uuid)
        await wait_until_async(lambda: source.log.events("journal pool replaced"))
        last = await trio.to_thread.run_sync(lambda: pair.write(5))
        await wait_until_async(lambda: receiver.facts.get("last_received_seqno") == last)


async def test_one_that_sends_on_outlasts_the_seed_of_its_own_instance(pair: Pair, tmp_path: Path) -> None:
    """Else the third site is fed no more, and `status` says to seed again what has just been seeded."""
    network = pair.primary.content.network
    third = Instance.create(tmp_path / "third", role="secondary", name="third", network=network)
    pair.secondary.register_peer("third", "127.0.0.1", 1)
    seed(pair.secondary, third)
    async with servers() as running:
        point(pair.secondary, "third", await running.receiver(third))
        source = running.source(pair.secondary, "third")
        await wait_until_async(lambda: source.facts.get("state") == "sending")
        marker = pair.secondary.path / SEEDING_MARKER
        marker.touch()
        retire(PoolKind.JOURNAL, pair.secondary.content.uuid)
        await wait_until_async(lambda: source.context.text == module.SEEDED)
        marker.unlink()
        await wait_until_async(lambda: source.context.text == "sending")


async def test_one_that_sends_on_and_is_started_while_its_instance_is_seeded_waits_for_the_end(
    pair: Pair, tmp_path: Path
) -> None:
    """systemd starts what was killed: it would not a second time what ends by exit code 69, and nobody would."""
    network = pair.primary.content.network
    third = Instance.create(tmp_path / "third", role="secondary", name="third", network=network)
    pair.secondary.register_peer("third", "127.0.0.1", 1)
    seed(pair.secondary, third)
    may_end, is_at_work = threading.Event(), threading.Event()

    def progress(_name: str, _done: int, _pages: int) -> None:
        is_at_work.set()
        may_end.wait(60)

    def seed_again() -> None:
        seed(pair.primary, Instance.open(pair.secondary.path), restart=True, progress=progress)

    async with servers() as running, trio.open_nursery() as nursery:
        point(pair.secondary, "third", await running.receiver(third))
        nursery.start_soon(trio.to_thread.run_sync, seed_again)
        try:
            await wait_until_async(is_at_work.is_set)
            source = running.source(pair.secondary, "third")
            await wait_until_async(lambda: source.context.text == module.SEEDED)
            assert source.context.state == "serving"
            assert source.context.missing() == module.SEEDED
        finally:
            may_end.set()
        await wait_until_async(lambda: source.context.text == "sending")
        assert (source.failure, source.context.missing()) == (None, "")


async def test_one_that_sends_on_is_refused_where_a_seed_was_interrupted(pair: Pair) -> None:
    """Nobody ends that seed unless somebody begins it again."""
    pair.secondary.register_peer("third", "127.0.0.1", 1)
    (pair.secondary.path / SEEDING_MARKER).touch()
    async with servers() as running:
        error = await running.source(pair.secondary, "third").failed()
        assert (error.code, error.exit_code) == ("NOT_FOUND", 69)
        assert "seeded only in part" in str(error)


async def test_a_small_pool_is_left_and_returned_to_and_counts_are_kept(pair: Pair) -> None:
    first = consumer_of(pair).acknowledged_seqno + 1
    async with servers() as running:
        listen = f"127.0.0.1:{free_port()}"
        receiver = await running.receiver(pair.secondary, receiver__listen=listen, receiver__pool_bytes=16 << 20)
        running.start("update", pair.secondary, serve_update)
        point(pair.primary, "west", receiver)
        source = running.source(pair.primary)
        last = 0

        def returned() -> int:
            return len(source.log.events("now reading from the journal pool"))

        await wait_until_async(returned, what="it is at the pool")
        for turn in range(3):
            last = await trio.to_thread.run_sync(lambda: pair.write(50))
            await wait_until_async(lambda r=receiver, last=last: r.facts.get("last_received_seqno") == last)  # type: ignore[misc]
            await receiver.stop()
            last = await trio.to_thread.run_sync(lambda: pair.write(30, size=60_000))  # more than the pool holds
            receiver = await running.receiver(pair.secondary, receiver__listen=listen)
            await wait_until_async(lambda r=receiver, last=last: r.facts.get("last_received_seqno") == last)  # type: ignore[misc]
            await wait_until_async(lambda turn=turn: returned() >= turn + 2, what="it is back at the pool")  # type: ignore[misc]

        def counted() -> int:
            return int(source.facts["transactions_from_pool"] + source.facts["transactions_from_files"])

        # The facts are told once a second.
        await wait_until_async(lambda: counted() >= last - first + 1, what="all are counted")
        # How often it comes back within a turn is a matter of speed.
        assert source.facts["transactions_from_files"] >= 90
        assert source.facts["transactions_from_pool"] >= 100
        assert source.facts["switches"] >= 4
        assert len(source.log.events("now reading from journal files; journal pool does not contain")) >= 2
        assert len(source.log.events("now reading from the journal pool")) >= 3


async def test_a_source_that_begins_knows_how_old_the_backlog_is(pair: Pair, monkeypatch: pytest.MonkeyPatch) -> None:
    """The newest transaction was committed just now; the first one that the peer does not have, an hour ago."""
    known = pair.last_seqno()
    pair.write(3)
    write_consumer(pair.primary.consumers_directory, Consumer("west", known, "ab" * 16))
    clock = SimpleNamespace(
        time=time.time, monotonic_ns=time.monotonic_ns, time_ns=lambda: time.time_ns() + 3600 * 10**9
    )
    monkeypatch.setattr("source_server.consumer_state.time", clock)
    point(pair.primary, "west", 1)
    async with servers() as running:
        with door_of(pair.primary) as door:
            door.words[word.LAST_COMMIT_WALL_NS] = clock.time_ns()
        source = running.source(pair.primary)
        await wait_until_async(lambda: "lag_s" in source.facts)
        assert 3599 <= source.facts["lag_s"] < 3700


async def test_statistics_are_one_event_a_period(pair: Pair) -> None:
    async with servers() as running:
        receiver = await running.receiver(pair.secondary, receiver__statistics_period_s=0.3)
        point(pair.primary, "west", receiver)
        source = running.source(pair.primary, source__statistics_period_s=0.3)
        await wait_until_async(lambda: source.facts.get("state") == "sending")
        await trio.to_thread.run_sync(lambda: pair.write(20))

        def moved(daemon: Daemon) -> bool:
            return sum(event["transactions"] for event in daemon.log.events("statistics")) == 20

        for daemon in (source, receiver):
            await wait_until_async(lambda daemon=daemon: moved(daemon))  # type: ignore[misc]
            event = daemon.log.events("statistics")[-1]
            wanted = {
                "bytes", "bytes_per_s", "transactions_per_s", "starting_seqno", "current_seqno", "lag_s", "lag_s_max",
                "backlog_max", "cuts", "cut_s", "paused_s", "receiver_backlog", "period_s",
            }  # fmt: skip
            assert wanted <= event.keys()
            assert "filter" not in event
        assert {"xoff", "xon", "duplicates"} <= receiver.log.events("statistics")[-1].keys()
        assert source.log.events("statistics")[-1]["source_backlog"] == 0


async def test_both_idle_use_next_to_no_time(pair: Pair) -> None:
    async with servers() as running:
        receiver = await running.receiver(
            pair.secondary, receiver__heartbeat_period_s=15.0, receiver__dead_after_s=60.0
        )
        point(pair.primary, "west", receiver)
        source = running.source(pair.primary, source__heartbeat_period_s=15.0, source__dead_after_s=60.0)
        await wait_until_async(lambda: source.facts.get("state") == "sending")
        used: list[float] = []
        for _ in range(12):  # the least of them: what else this process does (a collection of garbage) is not theirs
            await trio.sleep(0.5)
            before = resource.getrusage(resource.RUSAGE_SELF)
            await trio.sleep(2.0)
            after = resource.getrusage(resource.RUSAGE_SELF)
            used.append(after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime)
            if used[-1] < 0.04:
                break
        assert min(used) < 0.04, f"{min(used) / 2:.1%} of a processor for two idle daemons"


async def test_pruning_follows_the_consumer(pair: Pair, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "PRUNE_PERIOD_S", 0.2)
    monkeypatch.setattr(module, "CONSUMER_PERIOD_S", 0.1)
    prunings = count_calls(monkeypatch, module, "prune_journal")
    async with servers() as running:
        receiver = await running.receiver(pair.secondary, receiver__pool_bytes=16 << 20)
        point(pair.primary, "west", receiver)
        source = running.source(pair.primary)
        await wait_until_async(lambda: source.facts.get("state") == "sending")
        last = await trio.to_thread.run_sync(lambda: pair.write(60, size=60_000))
        await wait_until_async(lambda: receiver.facts.get("last_received_seqno") == last)
        await wait_until_async(prunings.since_now(2))
        assert source.log.events("journal pruned") == []  # received is not durable
        assert len(make_chain(pair.primary).first_seqnos()) == 4
        running.start("update", pair.secondary, serve_update)
        await wait_until_async(lambda: len(make_chain(pair.primary).first_seqnos()) == 2)
        await wait_until_async(lambda: source.log.events("journal pruned"))


@pytest.mark.parametrize(
    ("held", "asks", "refused"),
    [
        (None, None, ""),
        ((), (0,), ""),
        ((1,), (1,), ""),
        (None, (PARTITION_NONE,), "has nothing of that, not partition NONE"),
        ((1,), (1, PARTITION_NONE), "has nothing of that, not partition NONE"),
    ],
    ids=["all", "none yet", "one", "what never leaves", "and what never leaves"],
)
async def test_what_is_asked_for_and_what_may_be(
    pair: Pair,
    monkeypatch: pytest.MonkeyPatch,
    held: tuple[int, ...] | None,
    asks: tuple[int, ...] | None,
    refused: str,
) -> None:
    """Partitions in the restart: a secondary that has none yet does not ask for all."""
    pair.secondary.change_subscription(lambda _: Subscription(held, held))
    asked: list[tuple[int, ...]] = []
    real = ReceiverLink.send_restart

    def send_restart(self: ReceiverLink, *words: Any, partitions: tuple[int, ...], **more: Any) -> None:
        asked.append(partitions)
        real(self, *words, partitions=asks if refused and asks else partitions, **more)

    monkeypatch.setattr(ReceiverLink, "send_restart", send_restart)
    async with servers() as running:
        receiver = await running.receiver(pair.secondary)
        point(pair.primary, "west", receiver)
        source = running.source(pair.primary)
        if refused:
            await wait_until_async(lambda: refused in str(source.facts.get("last_error")))
            return
        await wait_until_async(lambda: source.facts.get("state") == "sending")
        assert asked == [asks or ()]
        pair.write(3)
        last = pair.last_seqno()
        await wait_until_async(lambda: receiver.facts.get("last_received_seqno") == last)
        # What is asked for changes: it connects again by itself, with the next that comes or heartbeat.
        pair.secondary.change_subscription(lambda _: Subscription((1,), (1,)))
        pair.write(1)
        if asks != (1,):
            await wait_until_async(lambda: asked[-1] == (1,) and source.facts.get("state") == "sending")
        pair.primary.reload()
        port = pair.primary.peer("west").port
        pair.primary.register_peer("west", "127.0.0.1", port, partitions=(2,), replace_address=True)
        pair.write(1)
        await wait_until_async(
            lambda: "west may have partition 2 of east, and asks for" in str(source.facts.get("last_error"))
        )
