"""daemon/listening.py: what a try says beforehand, listening says then; each refusal by name; callers by admission."""

from __future__ import annotations

import errno
import socket

import pytest
import trio

from replicate.daemon.admission import Admission
from replicate.daemon.listening import Callers, listen, try_listen
from replicate.errors import AlreadyExistsError, ConfigurationError, PermissionRefusedError, ReplicateError
from replicate.settings.load import parse_address


async def both(text: str) -> ReplicateError | None:
    """What a try says; listening says the same."""
    said: list[ReplicateError | None] = []
    try:
        try_listen(text, where="receiver.listen")
        said.append(None)
    except ReplicateError as error:
        said.append(error)
    try:
        listeners, _ = await listen(text, where="receiver.listen")
        for one in listeners:
            await one.aclose()
        said.append(None)
    except ReplicateError as error:
        said.append(error)
    tried, listened = said
    assert type(tried) is type(listened)
    if tried is not None and listened is not None:
        assert (tried.where, tried.do) == (listened.where, listened.do)
    return tried


@pytest.mark.trio
async def test_a_free_port_is_taken_and_told() -> None:
    listeners, address = await listen("localhost:0", where="x")
    try:
        assert (len(listeners), address.host) == (1, "127.0.0.1"), "one port, not one for each family"
        assert address.port == listeners[0].socket.getsockname()[1] != 0
        found = await both(f"127.0.0.1:{address.port}")
        assert isinstance(found, AlreadyExistsError)
        assert f"sport = :{address.port}" in found.do
    finally:
        for one in listeners:
            await one.aclose()
    assert await both(f"127.0.0.1:{address.port}") is None


@pytest.mark.trio
async def test_an_address_that_is_not_ours_is_refused() -> None:
    assert isinstance(await both("192.0.2.1:7430"), ConfigurationError)


@pytest.mark.trio
async def test_a_port_that_is_not_allowed_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """As the kernel says to a user who is not root: for port 1, say."""

    def refuse(*_: object) -> None:
        raise PermissionError(errno.EACCES, "Permission denied")

    monkeypatch.setattr(socket.socket, "bind", refuse)
    assert isinstance(await both("127.0.0.1:1"), PermissionRefusedError)


@pytest.mark.trio
async def test_a_caller_is_heard_or_told_why_not() -> None:
    told: list[str] = []
    heard = trio.Event()
    end = trio.Event()

    async def hear(stream: trio.SocketStream, _guest: object, where: str) -> None:
        told.append(f"heard {where}")
        heard.set()
        await end.wait()

    admission = Admission(1, 1)
    callers = Callers(admission, hear, lambda host, where, reason: told.append(f"{host} {where} {reason}"))
    listeners, address = await listen("127.0.0.1:0", where="x")
    async with trio.open_nursery() as nursery:
        nursery.start_soon(trio.serve_listeners, callers.connected, listeners)
        with trio.fail_after(20):
            one = await trio.open_tcp_stream("127.0.0.1", address.port)
            await heard.wait()
            assert told == [f"heard 127.0.0.1:{one.socket.getsockname()[1]}"]
            end.set()
            assert await one.receive_some(1) == b""
        nursery.cancel_scope.cancel()
    assert await both(f"127.0.0.1:{address.port}") is None, "a connection that has ended keeps nobody from it"


def test_the_address_is_read_as_settings_read_it() -> None:
    with pytest.raises(ConfigurationError) as caught:
        try_listen("no port", where="receiver.listen")
    with pytest.raises(ConfigurationError) as expected:
        parse_address("no port", where="receiver.listen")
    assert str(caught.value) == str(expected.value)
