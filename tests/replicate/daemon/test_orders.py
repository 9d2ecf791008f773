"""Orders to a daemon: what a command makes of what it hears, and of a daemon that ends. (A daemon that
takes some: tests/source_server/test_mode.py; a seed's socket: tests/replicate/transfer/seed/test_request.py.)"""

from __future__ import annotations

import os
import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from replicate.daemon import orders
from replicate.daemon.control import DaemonFailedError
from replicate.daemon.lock_file import LockFile
from replicate.errors import TryAgainError
from replicate.instance.instance import Instance


@contextmanager
def running(instance: Instance) -> Iterator[None]:
    """A daemon that has its lock."""
    lock = LockFile(instance.path, "source-west").acquire()
    try:
        yield
    finally:
        os.close(lock)


@pytest.mark.parametrize(
    ("said", "kind", "text"),
    [
        (b"", TryAgainError, "source-west takes no orders: it hung up before it had done that"),
        (b'{"working": true}\n', TryAgainError, "takes no orders: it hung up before"),
        (b"what\n", TryAgainError, "source-west takes no orders"),
        (b'{"error": "BUSY: no", "exit_code": 75}\n', DaemonFailedError, "BUSY: no"),
        (b'{"error": "BUSY: no", "exit_code": 5}\n', DaemonFailedError, "BUSY: no"),
        (b'{"error": "BUSY: no"}\n', TryAgainError, "takes no orders"),
    ],
)
def test_what_a_daemon_may_say_that_is_no_answer(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, said: bytes, kind: type[Exception], text: str
) -> None:
    monkeypatch.setattr(orders, "TURN_S", 0.0)
    instance = Instance.create(tmp_path / "a", role="primary")
    with running(instance), socket.socket(socket.AF_UNIX) as daemon:
        daemon.bind(str(instance.run_directory / orders.socket_name("source-west")))
        daemon.listen()

        def speak() -> None:
            connection, _ = daemon.accept()
            with connection:
                connection.recv(4096)
                connection.sendall(said)

        speaking = threading.Thread(target=speak)
        speaking.start()
        with pytest.raises(kind, match=text) as caught:
            orders.give(instance, "source-west", orders.FOLLOW)
        speaking.join()
    if isinstance(caught.value, DaemonFailedError):
        assert caught.value.own_exit_code == (75 if b"75" in said else 70)
    elif isinstance(caught.value, TryAgainError):
        assert caught.value.do


def test_one_that_says_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(orders, "SILENT_S", 0.05)
    instance = Instance.create(tmp_path / "a", role="primary")
    with running(instance), socket.socket(socket.AF_UNIX) as daemon:
        daemon.bind(str(instance.run_directory / orders.socket_name("source-west")))
        daemon.listen()
        with pytest.raises(
            TryAgainError, match=r"has said nothing for 0.05 s.*source stop --peer west; .*source start"
        ):
            orders.give(instance, "source-west", orders.FOLLOW)


def test_one_that_is_killed_while_it_hears_does_not_run(tmp_path: Path) -> None:
    instance = Instance.create(tmp_path / "a", role="primary")
    assert orders.give(instance, "source-west", orders.FOLLOW) is None
    lock = LockFile(instance.path, "source-west").acquire()
    with socket.socket(socket.AF_UNIX) as daemon:
        daemon.bind(str(instance.run_directory / orders.socket_name("source-west")))
        daemon.listen()

        def die() -> None:
            connection, _ = daemon.accept()
            connection.close()  # unread: the command's end is reset
            daemon.close()
            os.close(lock)

        dying = threading.Thread(target=die)
        dying.start()
        assert orders.give(instance, "source-west", orders.FOLLOW) is None
        dying.join()


def test_one_that_begins_is_told_when_it_has_its_socket(tmp_path: Path) -> None:
    instance = Instance.create(tmp_path / "a", role="primary")
    with running(instance), socket.socket(socket.AF_UNIX) as daemon:

        def begin() -> None:
            daemon.bind(str(instance.run_directory / orders.socket_name("source-west")))
            daemon.listen()
            connection, _ = daemon.accept()
            with connection:
                connection.recv(4096)
                connection.sendall(b'{"done": {"mode": "active"}}\n')

        beginning = threading.Timer(0.1, begin)
        beginning.start()
        assert orders.give(instance, "source-west", orders.FOLLOW) == {"mode": "active"}
        beginning.join()
