"""How much room a read makes: as much as is used, within bounds. What is written without the writer keeps its place."""

from __future__ import annotations

import math
from collections.abc import Awaitable, Callable
from itertools import repeat
from typing import Any, cast

import pytest
import trio

from replicate.daemon.link_driver import LEAST_ROOM_BYTES, RECEIVE_BYTES, Drive, next_room_bytes
from replicate.errors import PeerUnreachableError
from replicate.wire.connection import Link
from replicate.wire.event import Closed, CloseReason, Event
from tests.harness.waiting import wait_until_async


def after(room_bytes: int, *reads: int) -> int:
    for got in reads:
        room_bytes = next_room_bytes(room_bytes, min(got, room_bytes))
        assert LEAST_ROOM_BYTES <= room_bytes <= RECEIVE_BYTES
    return room_bytes


def test_a_backlog_soon_has_all_room() -> None:
    assert after(LEAST_ROOM_BYTES, *repeat(RECEIVE_BYTES, 3)) == RECEIVE_BYTES
    assert after(RECEIVE_BYTES, *repeat(RECEIVE_BYTES // 2, 100)) == RECEIVE_BYTES


def test_single_transactions_soon_have_little() -> None:
    assert after(RECEIVE_BYTES, *repeat(700, 3)) == LEAST_ROOM_BYTES
    assert after(LEAST_ROOM_BYTES, *repeat(700, 100)) == LEAST_ROOM_BYTES


def test_a_full_read_now_and_then_keeps_no_room() -> None:
    assert after(LEAST_ROOM_BYTES, *[RECEIVE_BYTES, 700, 700] * 100) == LEAST_ROOM_BYTES


def test_reads_of_one_size_keep_one_room() -> None:
    """A TLS record holds 16 KiB: there is no swinging between two sizes."""
    settled = after(LEAST_ROOM_BYTES, *repeat(16384, 50))
    assert settled == after(settled, 16384)


class FakeLink:
    """Says what a test puts into `waiting`, piece by piece, and hears nothing."""

    deadline = math.inf

    def __init__(self) -> None:
        self.waiting: list[bytes] = []

    @property
    def has_bytes_to_send(self) -> bool:
        return bool(self.waiting)

    def bytes_to_send(self) -> list[bytes]:
        return [self.waiting.pop(0)] if self.waiting else []

    def tick(self, now: float, wall_ns: int) -> list[Event]:
        return []

    def receive_eof(self, now: float) -> list[Event]:
        return [Closed(CloseReason.CONNECTION_LOST, PeerUnreachableError("lost"))]


async def connected(use: Callable[[Drive, list[bytes], trio.SocketStream], Awaitable[None]]) -> list[Event]:
    """A drive on one end of a TCP connection, `use` beside it; what it has told."""
    (listener,) = await trio.open_tcp_listeners(0, host="127.0.0.1")
    ours = await trio.open_tcp_stream("127.0.0.1", listener.socket.getsockname()[1])
    theirs = await listener.accept()
    await listener.aclose()
    link, told = FakeLink(), list[Event]()
    drive = Drive(cast(Link, link), ours, told.append)

    async def using() -> None:
        await use(drive, link.waiting, theirs)

    with trio.fail_after(60):
        await drive.run(using)
    return told


@pytest.mark.trio
async def test_what_the_socket_does_not_take_at_once_comes_first() -> None:
    large, got = bytes(range(256)) * 2**17, bytearray()

    async def use(drive: Drive, waiting: list[bytes], theirs: trio.SocketStream) -> None:
        await trio.testing.wait_all_tasks_blocked()
        assert drive.is_free
        waiting += [large, b"second"]
        drive.write_now()
        assert waiting == [b"second"]
        assert not drive.is_free  # of 32 MiB some are left
        waiting.append(b"third")
        drive.poke()
        while len(got) < len(large) + 11:
            got.extend(await theirs.receive_some())
        await wait_until_async(lambda: drive.is_free)
        waiting.append(b"fourth")
        drive.write_now()
        assert drive.is_free
        got.extend(await theirs.receive_some())
        await theirs.aclose()

    (closed,) = await connected(use)
    assert isinstance(closed, Closed)
    assert bytes(got) == large + b"secondthirdfourth"


@pytest.mark.trio
async def test_a_heartbeat_that_is_due_after_a_write_that_hangs_is_waited_for_asleep() -> None:
    """Its deadline stays in the past until the peer reads again: a frozen peer must not cost this side a processor."""

    async def use(drive: Drive, waiting: list[bytes], theirs: trio.SocketStream) -> None:
        waiting += [bytes(2**25), b"the heartbeat"]
        drive.write_now()
        assert not drive.is_free
        cast(FakeLink, drive.link).deadline = 0.0
        drive.poke()
        with trio.move_on_after(5) as scope:
            await trio.testing.wait_all_tasks_blocked()
        assert not scope.cancelled_caught
        assert waiting == [b"the heartbeat"]
        await theirs.aclose()

    await connected(use)


@pytest.mark.trio
async def test_a_peer_that_is_gone_ends_the_connection_by_an_event() -> None:
    async def use(drive: Drive, waiting: list[bytes], theirs: trio.SocketStream) -> None:
        theirs.socket.setsockopt(trio.socket.SOL_SOCKET, trio.socket.SO_LINGER, bytes((1, 0, 0, 0, 0, 0, 0, 0)))
        theirs.socket.close()  # a reset: no write goes through from now on
        while drive.closed is None:
            waiting.append(b"more")
            drive.write_now()

    told: list[Any] = await connected(use)
    assert [one.reason for one in told] == [CloseReason.CONNECTION_LOST]
