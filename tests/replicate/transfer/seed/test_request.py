"""Seeding over the connection, both daemons in this process: what each side says when it cannot be."""

from __future__ import annotations

import os
import select
import socket
import threading
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import apsw
import pytest
import trio

from receiver_server.link import ReceiverLink
from replicate.admin import subscriptions
from replicate.admin.instance_removal import remove_instance
from replicate.admin.region_release import release_region
from replicate.admin.regions import add_region
from replicate.compare.compare import digest
from replicate.daemon import own_introduction
from replicate.daemon.lock_file import LockFile
from replicate.door.recovery.opening import SEEDING_MARKER, is_seeded, make_chain
from replicate.errors import PeerUnreachableError, ReplicateError, TryAgainError, WrongInstanceError
from replicate.instance.consumers import Consumer, read_hold, write_consumer
from replicate.instance.instance import Instance
from replicate.region.sqlite.open_region import OpenedFile
from replicate.system import failpoint
from replicate.transfer.seed import request
from replicate.transfer.seed.file import good_bytes_of, read_header
from replicate.transfer.seed.incoming import SOCKET_NAME, Incoming, IncomingFile, seed_directory
from replicate.transfer.seed.install import Seeded
from replicate.transfer.seed.make import make_seed
from replicate.transfer.seed.request import SeedFailedError, seed_over_connection
from replicate.wire.message import SeedStart
from tests.harness.certificates import Authority
from tests.harness.pair import Pair, work_all
from tests.harness.servers import Daemon, Servers, point, servers
from tests.harness.waiting import wait_until_async


@pytest.fixture
def pair(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Pair:
    monkeypatch.setenv("REPLICATE_SHM_DIR", str(tmp_path / "shm"))
    made = Pair.create(tmp_path)
    write(made, 40, size=50_000)
    return made


@pytest.fixture(autouse=True)
def disarmed() -> Any:
    yield
    failpoint.disarm()


def write(pair: Pair, count: int, first: int = 1, size: int = 0) -> None:
    connection = pair.connect()
    for number in range(first, first + count):
        connection.execute("INSERT INTO account VALUES (?, 'o', 0, ?)", (number, os.urandom(size)))
        connection.commit()
    connection.close()


@dataclass
class Site:
    """Both daemons, and commands in threads."""

    pair: Pair
    made: Servers
    receiver: Daemon
    source: Daemon
    told: list[tuple[str, int, int]] = field(default_factory=list)

    async def seed(self, source: str | None = None, *, restart: bool = False, wait_s: float = 10.0) -> Seeded:
        """The command."""

        def told(*facts: Any) -> None:
            self.told.append(facts)
            trio.from_thread.check_cancelled()

        def run() -> Seeded:
            secondary = Instance.open(self.pair.secondary.path)
            return seed_over_connection(secondary, source, restart=restart, told=told, source_wait_s=wait_s)

        return await trio.to_thread.run_sync(run)

    async def fails(self, kind: type[ReplicateError], text: str, *arguments: Any) -> ReplicateError:
        with pytest.raises(kind, match=text) as caught:
            await self.seed(*arguments)
        return caught.value


@asynccontextmanager
async def site(pair: Pair, **settings: object) -> AsyncIterator[Site]:
    async with servers() as made:
        receiver = await made.receiver(pair.secondary)
        point(pair.primary, "west", receiver)
        yield Site(pair, made, receiver, made.source(pair.primary, **settings))


def assert_equal(pair: Pair) -> None:
    pair.secondary.reload()
    with pair.receive_pool() as pool:
        pair.deliver(pool)
        with pair.applier(pool) as applier:
            work_all(applier)
    assert digest(pair.primary, timeout_s=5).regions == digest(pair.secondary, timeout_s=5).regions


@pytest.mark.trio
async def test_the_stream_goes_on_exactly_after_it(pair: Pair) -> None:
    async with site(pair) as both:
        seeded = await both.seed("east")
        labels = [label for label, _, _ in both.told]
        assert labels.index("installing") > 0
        assert both.told[-1][1:] == (seeded.pages, seeded.pages)
        assert all(done <= total or not total for _, done, total in both.told)
        write(pair, 3, first=1000)
        last = pair.last_seqno()
        await wait_until_async(lambda: both.receiver.facts["last_received_seqno"] == last, what="the stream went on")
        assert both.receiver.log.events("restart sent")[-1]["next_seqno"] == seeded.seqno + 1
        await wait_until_async(lambda: read_hold(pair.primary.consumers_directory, "west") is None, what="no hold")
        assert not list((pair.primary.path / "seed").iterdir()) + list((pair.secondary.path / "seed").iterdir())
    assert_equal(pair)


@pytest.mark.trio
async def test_the_journal_is_held_from_before_the_seed_until_the_stream_begins(pair: Pair) -> None:
    held: list[int | None] = []
    failpoint.watch("seed.making", 2, lambda: held.append(read_hold(pair.primary.consumers_directory, "west")))
    failpoint.watch("seed.received", 1, lambda: held.append(read_hold(pair.primary.consumers_directory, "west")))
    async with site(pair) as both:
        seeded = await both.seed()
    assert held[0] is not None
    assert held[0] <= seeded.seqno
    assert held[1] == seeded.seqno


@pytest.mark.trio
async def test_a_long_making_delays_no_heartbeat_and_no_commit(pair: Pair) -> None:
    """It takes longer than a peer may be silent."""
    go_on = threading.Event()
    failpoint.watch("seed.making", 1, lambda: go_on.wait(120))
    async with site(pair) as both, trio.open_nursery() as nursery:
        nursery.start_soon(both.seed)
        await wait_until_async(lambda: both.receiver.context.text.startswith("receiving the seed"), what="asked")
        connections = len(both.receiver.log.events("connection made"))
        with trio.fail_after(60):
            await trio.to_thread.run_sync(write, pair, 3, 2000)
        heard = both.receiver.facts["source_last_seqno"]
        await wait_until_async(lambda: both.receiver.facts["source_last_seqno"] >= heard + 1, what="heartbeats go on")
        deadline = trio.current_time() + 1.5  # dead_after_s is 1
        await wait_until_async(lambda: trio.current_time() > deadline)
        assert len(both.receiver.log.events("connection made")) == connections
        go_on.set()
    assert_equal(pair)


@pytest.mark.trio
async def test_a_full_disk_at_the_source_is_the_commands_error(pair: Pair) -> None:
    failpoint.arm("seed.write:4:errno=ENOSPC")
    async with site(pair) as both:
        error = await both.fails(SeedFailedError, "no space left")
        assert "Free space" in str(error)
        assert error.own_exit_code == 76  # type: ignore[attr-defined]
        assert not is_seeded(pair.secondary)
        assert not list((pair.primary.path / "seed").iterdir())
        await both.seed()  # and nothing stands in the way of the next one
    assert_equal(pair)


@pytest.mark.trio
async def test_a_full_disk_at_the_receiver_is_named_and_the_part_is_gone(pair: Pair) -> None:
    failpoint.arm("seed.incoming:4:errno=ENOSPC")
    async with site(pair) as both:
        error = await both.fails(SeedFailedError, r"DISK_FULL.*incoming\.part")
        assert error.own_exit_code == 74  # type: ignore[attr-defined]
        assert not (pair.secondary.path / "seed" / "incoming.part").exists()
        await both.seed()
    assert_equal(pair)


@pytest.mark.trio
async def test_one_command_at_a_time(pair: Pair) -> None:
    go_on = threading.Event()
    failpoint.watch("seed.making", 1, lambda: go_on.wait(120))
    async with site(pair) as both, trio.open_nursery() as nursery:
        nursery.start_soon(both.seed)
        await wait_until_async(lambda: both.receiver.context.text.startswith("receiving the seed"), what="asked")
        await both.fails(TryAgainError, "another seed, replay, rebuild or change of role of west is under way")
        go_on.set()
    assert is_seeded(Instance.open(pair.secondary.path))


@pytest.mark.trio
async def test_a_command_that_gives_up_lets_the_stream_go_on(pair: Pair) -> None:
    pair.seed()
    go_on = threading.Event()
    async with site(pair) as both:
        await wait_until_async(lambda: both.receiver.log.events("receiving"), what="it streams")
        failpoint.watch("seed.making", 1, lambda: go_on.wait(120))
        with trio.move_on_after(60) as scope:
            async with trio.open_nursery() as nursery:

                async def end_it() -> None:
                    await wait_until_async(lambda: any(told[0].startswith("the source makes") for told in both.told))
                    nursery.cancel_scope.cancel()

                nursery.start_soon(end_it)
                await both.seed(restart=True)
        assert not scope.cancelled_caught
        go_on.set()
        write(pair, 2, first=3000)
        last = pair.last_seqno()
        await wait_until_async(lambda: both.receiver.facts["last_received_seqno"] == last, what="the stream went on")
        assert both.receiver.log.events("connection closed")[-1]["text"] == "the seed command has ended"
    assert_equal(pair)


def begin_journal_again(pair: Pair) -> None:
    """What an operator does whose primary's journal is damaged: a new instance of the same database."""
    network = pair.primary.content.network
    release_region(pair.primary, "main", timeout_s=5, force=True)
    remove_instance(pair.primary)
    pair.primary = Instance.create(pair.directory / "east", role="primary", name="east", network=network)
    add_region(pair.primary, pair.directory / "app.db")


@pytest.mark.trio
async def test_what_was_received_of_a_gone_history_goes_with_a_seed_of_smaller_numbers(pair: Pair) -> None:
    """It seemed to go on from the seed: the new source refused it, so did the Update Process, and so it stayed."""
    async with servers() as made:
        receiver = await made.receiver(pair.secondary)

        async def received(seqno: int) -> None:
            await wait_until_async(lambda: receiver.facts["last_received_seqno"] == seqno, what=f"{seqno} is the last")

        for number in range(3):  # the last time, what was received begins at the very number after the seed
            point(pair.primary, "west", receiver)
            source = made.source(pair.primary)
            seeded = await Site(pair, made, receiver, source).seed(restart=number > 0)
            await received(seeded.seqno)
            await wait_until_async(lambda: receiver.facts["lag_s"] == 0.0, what="a lag of 0")
            assert receiver.facts["last_applied_seqno"] == seeded.seqno
            write(pair, 3, first=5000 + 10 * number)
            await received(seeded.seqno + 3)
            await source.stop()
            if number < 2:
                begin_journal_again(pair)
    assert_equal(pair)


@pytest.mark.trio
async def test_a_command_waits_for_the_end_of_one_that_was_killed(pair: Pair, monkeypatch: pytest.MonkeyPatch) -> None:
    """The server hears the second before it hears that the first has ended."""
    monkeypatch.setattr("receiver_server.seed.KILLED_S", 60.0)
    address = os.fspath(pair.secondary.run_directory / SOCKET_NAME)
    async with site(pair) as both:
        first, second = await trio.open_unix_socket(address), await trio.open_unix_socket(address)
        async with first, second:
            await first.send_all(b'{"from": "nobody"}\n')
            await wait_until_async(lambda: both.receiver.log.events("a seed was asked for"), what="the first is heard")
            await second.send_all(b'{"from": "nobody"}\n')
            with trio.move_on_after(0.3):
                assert b"TRY_AGAIN" not in await second.receive_some()
            await first.aclose()
            asked = partial(both.receiver.log.events, "a seed was asked for")
            await wait_until_async(lambda: len(asked()) == 2, what="the second is served")


@pytest.mark.trio
async def test_fault_18_a_killed_command_ends_no_receiver(pair: Pair) -> None:
    """What it had not read makes its end a reset."""
    async with site(pair) as both:
        for _ in range(3):
            with socket.socket(socket.AF_UNIX) as command:
                command.connect(os.fspath(pair.secondary.run_directory / SOCKET_NAME))
                command.sendall(b'{"from": "nobody"}\n')
                await trio.to_thread.run_sync(lambda: select.select([command], [], [], 60))
        await both.seed("east")


@pytest.mark.trio
async def test_nobody_is_connected_or_somebody_else_is(pair: Pair) -> None:
    async with site(pair) as both:
        error = await both.fails(SeedFailedError, "the source that is connected is east, not paris", "paris")
        assert error.own_exit_code == 76  # type: ignore[attr-defined]
        await both.source.stop()
        with pytest.raises(PeerUnreachableError, match=r"no source has connected .* replicate -i PRIMARY source start"):
            await both.seed(wait_s=0.5)
        with pytest.raises(PeerUnreachableError, match=r"no source has connected .* replicate -i east source start"):
            await both.seed("east", wait_s=0.5)
        await both.receiver.stop()
        await both.fails(
            PeerUnreachableError, "receiver start; or, from an instance on this host: replicate -i INSTANCE seed"
        )


@pytest.mark.trio
async def test_a_region_that_cannot_be_read_keeps_no_seed_away(pair: Pair) -> None:
    """The Receiver Server, which looks what is applied there, ended at the first connection: no seed came through."""
    pair.seed()
    path = pair.secondary.regions[0].path
    path.write_bytes(path.read_bytes()[:4096] + b"\x5a" * 8 * 4096)
    with pytest.raises(PeerUnreachableError, match="the Receiver Server of west does not run"):
        seed_over_connection(pair.secondary, None, restart=True, told=lambda *_: None)
    async with site(pair) as both:
        await both.seed(restart=True)
    assert_equal(pair)


@pytest.mark.trio
async def test_a_source_of_an_older_release_is_not_asked(pair: Pair, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(own_introduction, "FEATURES", ("zstd",))
    async with site(pair) as both:
        error = await both.fails(SeedFailedError, "cannot send a seed over the connection")
        assert "seed --to-file FILE --for west" in str(error)


@pytest.mark.trio
async def test_a_source_that_knows_no_columns_is_not_asked_for_all_of_them(
    pair: Pair, monkeypatch: pytest.MonkeyPatch
) -> None:
    subscriptions.filter_(pair.secondary, "account", "COLUMNS (id)")
    monkeypatch.setattr(ReceiverLink, "can_choose_columns", False)
    async with site(pair) as both:
        await both.fails(SeedFailedError, "cannot leave out columns that are not listed here")


@pytest.mark.trio
async def test_a_seed_that_does_not_verify_is_removed_and_comes_again(pair: Pair) -> None:
    """A byte turned on the source's disk after it was written."""

    def damage() -> None:
        path = pair.secondary.path / "seed" / "incoming.seed"
        data = bytearray(path.read_bytes())
        data[len(data) // 2] ^= 1
        path.write_bytes(data)

    failpoint.watch("seed.received", 1, damage)
    async with site(pair) as both:
        error = await both.fails(ReplicateError, "run replicate -i INSTANCE seed again, and it comes again")
        assert error.exit_code == 65
        assert not is_seeded(pair.secondary)
        await both.seed()
    assert_equal(pair)


@pytest.mark.trio
async def test_a_file_that_the_journal_has_gone_past_is_made_again(pair: Pair, monkeypatch: pytest.MonkeyPatch) -> None:
    """The transfer was cut; meanwhile what stands after the file was pruned."""
    failpoint.arm("seed.incoming:3:errno=EIO")
    async with site(pair) as both:
        await both.fails(SeedFailedError, "could not be written")
        before = read_header(pair.primary.path / "seed" / "west.seed")
        pruned = type("Pruned", (), {"oldest_seqno": lambda _self: 10**6})()
        monkeypatch.setattr("source_server.seed.make_chain", lambda _instance: pruned)
        failpoint.watch(
            "seed.before_rename", 2, lambda: monkeypatch.setattr("source_server.seed.make_chain", make_chain)
        )
        seeded = await both.seed()
        assert seeded.seqno >= before.seqno
        assert len(both.source.log.events("seed made")) == 2
        assert both.source.log.events("sending the seed")[-1]["from_offset"] == 0
    assert_equal(pair)


@pytest.mark.trio
async def test_a_transfer_goes_on_with_the_same_file_after_a_failed_disk(pair: Pair) -> None:
    failpoint.arm("seed.incoming:4:errno=EIO")
    async with site(pair) as both:
        await both.fails(SeedFailedError, "could not be written")
        here = (pair.secondary.path / "seed" / "incoming.part").stat().st_size
        await both.seed()
        assert len(both.source.log.events("seed made")) == 1
        offsets = [line["from_offset"] for line in both.source.log.events("sending the seed")]
        assert 0 < offsets[-1] <= here
    assert_equal(pair)


@pytest.mark.trio
async def test_an_instance_whose_name_is_longer_than_a_sockets_may_be(tmp_path: Path, monkeypatch: Any) -> None:
    directory = tmp_path / ("x" * 120)
    directory.mkdir()
    monkeypatch.setenv("REPLICATE_SHM_DIR", str(directory / "shm"))
    made = Pair.create(directory)
    async with site(made) as both:
        await both.seed()
    assert_equal(made)


# The files that are arriving.


def arriving(pair: Pair) -> tuple[Incoming, bytes]:
    """Incoming files of the secondary, and the bytes of a seed that answers their request."""
    incoming = Incoming(seed_directory(pair.secondary.path))
    request = incoming.look(pair.primary.content.uuid)
    made = make_seed(pair.primary, "west", pair.directory / "f", request=request.request)
    return incoming, made.path.read_bytes()


def test_what_is_here_is_read_from_the_disk_not_believed(pair: Pair) -> None:
    incoming, data = arriving(pair)
    source = pair.primary.content.uuid
    file = IncomingFile(incoming, SeedStart(bytes(16), 0, len(data), 1))
    file.write(0, data[:1_000_000])
    file.close()
    with open(incoming.part, "ab") as torn:  # a power loss: the length is there, the bytes are not
        torn.write(bytes(70_000))
    looked = incoming.look(source)
    assert looked.seed == read_header(pair.directory / "f").seed
    assert 0 < looked.offset <= 1_000_000
    assert looked.offset == good_bytes_of(incoming.part)
    again = IncomingFile(incoming, SeedStart(looked.seed, looked.offset, len(data), 1))
    assert again.write(looked.offset, data[looked.offset :]) == len(data)
    again.finish()
    found = incoming.complete()
    assert found is not None
    assert found.seed == looked.seed
    assert incoming.whole.read_bytes() == data


def test_another_source_is_another_wish(pair: Pair) -> None:
    incoming, data = arriving(pair)
    source = pair.primary.content.uuid
    first = incoming.look(source)
    assert incoming.look(source).request == first.request
    file = IncomingFile(incoming, SeedStart(bytes(16), 0, len(data), 1))
    file.write(0, data[:600_000])
    file.close()
    assert incoming.look(source).offset > 0
    other = incoming.look(b"o" * 16)
    assert other.request != first.request
    assert (other.seed, other.offset) == (bytes(16), 0)
    assert not incoming.part.exists()


def test_what_has_come_of_a_seed_goes_with_the_instance(pair: Pair) -> None:
    incoming, data = arriving(pair)
    incoming.part.write_bytes(data)
    (pair.secondary.path / SEEDING_MARKER).write_text("from east\n")  # interrupted
    assert remove_instance(pair.secondary).path == pair.secondary.path
    assert not pair.secondary.path.exists()


def test_a_whole_file_that_makes_no_sense_is_removed(pair: Pair) -> None:
    incoming = Incoming(seed_directory(pair.secondary.path))
    assert incoming.complete() is None
    incoming.whole.write_bytes(b"no seed")
    assert incoming.complete() is None
    assert not incoming.whole.exists()


def test_a_seed_for_another_instance_of_the_same_name_is_refused(pair: Pair) -> None:
    write_consumer(pair.primary.consumers_directory, Consumer("west", 0, "ab" * 16))
    incoming, data = arriving(pair)
    incoming.whole.write_bytes(data)
    with pytest.raises(WrongInstanceError, match="comes again"):
        seed_over_connection(pair.secondary, None, restart=False, told=lambda *_: None)
    assert not incoming.whole.exists()


@pytest.mark.trio
async def test_a_source_that_is_not_let_in_is_told_of_and_soon_ends_the_command(pair: Pair) -> None:
    """Long before the time for which a source is waited for; another one has a moment to come beside it."""
    key = pair.primary.path / "other.key"
    key.write_bytes(b"k" * 32)
    key.chmod(0o600)
    async with site(pair, loopback__key_file="other.key") as both:
        error = await both.fails(SeedFailedError, "NOT_AUTHENTICATED", None)
        assert error.own_exit_code == 76  # type: ignore[attr-defined]
        assert any("was not let in: " in label for label, _, _ in both.told), both.told
        assert both.source.log.events("connection refused")


@pytest.mark.trio
async def test_a_source_of_another_network_ends_the_command_at_once(
    pair: Pair, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its certificate is good: it bears the expected name, and was made without --network."""
    (tmp_path / "other").mkdir()
    other = Pair.create(tmp_path / "other")
    monkeypatch.setenv("REPLICATE_SHM_DIR", str(tmp_path / "shm"))
    authority = Authority(tmp_path / "authority")
    authority.install(pair.secondary)
    authority.install(other.primary)
    async with servers() as made:
        receiver = await made.receiver(pair.secondary, tls__loopback=True, receiver__allow="east")
        point(other.primary, "west", receiver)
        source = made.source(other.primary, tls__loopback=True)
        both = Site(pair, made, receiver, source)
        error = await both.fails(SeedFailedError, "WRONG_NETWORK", None)
        assert error.own_exit_code == 76  # type: ignore[attr-defined]
        assert not any("not let in" in label for label, _, _ in both.told)


def test_a_receiver_server_that_follows_another_role_is_waited_for(pair: Pair, monkeypatch: pytest.MonkeyPatch) -> None:
    """It runs, and has no socket for a moment; one that does not run is not waited for."""
    found = iter([FileNotFoundError(), ConnectionRefusedError(), OSError("reached")])

    def connected(*_: object) -> Any:
        raise next(found)

    monkeypatch.setattr(request, "connected", connected)
    monkeypatch.setattr(request, "RECEIVER_LOOK_S", 0.0)
    lock = LockFile(pair.secondary.path, "receiver").acquire()
    try:
        with pytest.raises(TryAgainError, match="does not answer: reached"):
            seed_over_connection(pair.secondary, None, restart=False, told=lambda *_: None)
        found = iter([FileNotFoundError()] * 9)
        monkeypatch.setattr(request, "RECEIVER_WAIT_S", 0.0)
        with pytest.raises(PeerUnreachableError, match="does not run"):
            seed_over_connection(pair.secondary, None, restart=False, told=lambda *_: None)
    finally:
        os.close(lock)
    monkeypatch.setattr(request, "RECEIVER_WAIT_S", 3600.0)
    with pytest.raises(PeerUnreachableError, match="does not run"):
        seed_over_connection(pair.secondary, None, restart=False, told=lambda *_: None)


def test_a_disk_that_fails_as_a_region_is_looked_at_is_told_with_its_file(
    pair: Pair, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also as it is closed, where SQLite takes its lock back."""
    close = OpenedFile.close

    def fails(self: OpenedFile) -> None:
        close(self)
        raise apsw.IOError("disk I/O error")

    monkeypatch.setattr(OpenedFile, "close", fails)
    with pytest.raises(ReplicateError) as failed:
        request.give_up_unreadable(pair.primary)
    assert str(pair.primary.regions[0].path) in str(failed.value)
    assert not (pair.primary.path / SEEDING_MARKER).exists()
