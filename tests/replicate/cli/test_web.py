"""cli/web.py: `replicate web` as a process, and every way to be refused."""

from __future__ import annotations

import builtins
import os
import signal
import socket
import subprocess
import sys
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from replicate.cli.main import run
from tests.harness import fork_server
from tests.harness.certificates import Authority
from tests.harness.notified import Notified
from tests.harness.others import unreadable
from tests.harness.pair import Pair


@pytest.fixture
def pair(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Pair:
    monkeypatch.setenv("REPLICATE_SHM_DIR", "")
    made = Pair.create(tmp_path)
    made.write(3)
    return made


@contextmanager
def web(*arguments: str) -> Iterator[tuple[subprocess.Popen[str], str]]:
    """The process, and the page's address."""
    command = [sys.executable, "-m", "replicate.cli.main", "web", "--listen", "127.0.0.1:0", *arguments]
    process = fork_server.popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env={**os.environ})
    try:
        assert process.stdout is not None
        assert process.stderr is not None
        line = process.stdout.readline()
        assert "http://" in line, process.stderr.read()
        yield process, line.split()[-1]
    finally:
        process.kill()
        process.communicate()


@pytest.mark.slow
@pytest.mark.parametrize(("number", "code"), [(signal.SIGTERM, 0), (signal.SIGINT, 130)])
def test_it_serves_until_it_is_told_to_end(pair: Pair, number: int, code: int) -> None:
    with web("-i", str(pair.primary.path), "-i", str(pair.secondary.path)) as (process, url):
        with urllib.request.urlopen(url, timeout=60) as answer:
            assert b"Dualsite Replicate" in answer.read()
        with urllib.request.urlopen(f"{url}events", timeout=60) as stream:
            assert stream.readline().startswith(b"retry")
            process.send_signal(number)
            assert process.wait(60) == code


@pytest.mark.slow
def test_a_service_manager_hears_that_it_is_ready_and_lives(
    pair: Pair, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    told = Notified(tmp_path / "notify")
    monkeypatch.setenv("NOTIFY_SOCKET", str(told.path))
    monkeypatch.setenv("WATCHDOG_USEC", "400000")
    try:
        with web("-i", str(pair.primary.path)) as (process, url):
            told.hear(f"READY=1\nSTATUS={url}")
            told.hear("WATCHDOG=1")
            process.send_signal(signal.SIGTERM)
            told.hear("STOPPING=1")
            assert process.wait(60) == 0
    finally:
        told.close()


def refused(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> str:
    assert run(arguments) != 0
    err = capsys.readouterr().err
    assert err.count("\n") == 1
    return err


def test_elsewhere_it_wants_a_certificate(pair: Pair, capsys: pytest.CaptureFixture[str]) -> None:
    said = refused(["-i", str(pair.primary.path), "web", "--listen", "0.0.0.0:0"], capsys)
    assert said.startswith("CONFIGURATION: 0.0.0.0:0 is not a loopback address")
    assert "certificate issue" in said


@pytest.mark.parametrize(
    ("token", "mode", "code"), [("short", 0o600, "CONFIGURATION"), ("x" * 40, 0o644, "PERMISSION")]
)
def test_a_token_that_is_weak_or_readable_is_refused(
    pair: Pair, token: str, mode: int, code: str, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    file = tmp_path / "token"
    file.write_text(token)
    file.chmod(mode)
    said = refused(["-i", str(pair.primary.path), "web", "--token-file", str(file)], capsys)
    assert said.startswith(code)
    assert token not in said.replace(str(file), "") or token == "short"


def test_no_address_and_no_instance_are_refused(pair: Pair, capsys: pytest.CaptureFixture[str]) -> None:
    said = refused(["-i", str(pair.primary.path), "web", "--listen", "nowhere"], capsys)
    assert "nowhere:7480 is not a loopback address" in said  # not the port of a Receiver Server
    assert "Write it like 127.0.0.1:7480" in refused(["-i", str(pair.primary.path), "web", "--listen", "a:b"], capsys)
    assert "NOT_FOUND" in refused(["-i", str(pair.directory / "none"), "web"], capsys)


def test_a_port_that_is_taken_is_named(pair: Pair, capsys: pytest.CaptureFixture[str]) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        listen = f"127.0.0.1:{taken.getsockname()[1]}"
        assert run(["-i", str(pair.primary.path), "web", "--listen", listen]) == 73
    assert capsys.readouterr().err.startswith(f"EXISTS: somebody listens on {listen} already")


def test_an_instance_that_may_not_be_read_is_named(pair: Pair, capsys: pytest.CaptureFixture[str]) -> None:
    with unreadable(pair.primary.path):
        assert run(["-i", str(pair.primary.path), "web", "--listen", "127.0.0.1:0"]) == 77
    said = capsys.readouterr().err
    assert said.startswith("PERMISSION: ")
    assert f"Permission denied [{pair.primary.path}" in said
    assert said.endswith("Run as the owner of the instance\n")


def test_without_its_library_it_says_what_to_install(
    pair: Pair, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    real = builtins.__import__

    def without(name: str, *rest: Any) -> Any:
        if name == "h11":
            raise ModuleNotFoundError(name="h11")
        return real(name, *rest)

    monkeypatch.setattr(builtins, "__import__", without)
    said = refused(["-i", str(pair.primary.path), "web"], capsys)
    assert said.startswith("PREREQUISITE_MISSING: the Python package h11")
    assert "pip install 'dualsite[web]'" in said


def test_the_certificate_of_the_first_instance_is_taken(
    pair: Pair, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    authority = Authority(tmp_path)
    authority.install(pair.primary, "somebody-else")
    said = refused(["-i", str(pair.primary.path), "web", "--listen", "0.0.0.0:0"], capsys)
    assert "the certificate is that of somebody-else" in said
