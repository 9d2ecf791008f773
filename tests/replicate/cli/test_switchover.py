"""`replicate switchover`: what it refuses before any daemon is asked."""

from __future__ import annotations

from pathlib import Path

import pytest

from replicate.cli.main import run
from replicate.instance.file import Successor
from replicate.instance.instance import Instance
from tests.harness import command_line


def call(instance: Instance, *words: str) -> tuple[int, str]:
    done = command_line.call(["-i", str(instance.path), "switchover", *words], {})
    return done.returncode, done.stdout + done.stderr


@pytest.fixture
def primary(tmp_path: Path) -> Instance:
    return Instance.create(tmp_path / "primary", role="primary")


def test_on_a_primary(primary: Instance) -> None:
    code, text = call(primary)
    assert (code, "no peer is registered" in text) == (2, True)
    primary.register_peer("west", "127.0.0.1", 1)
    code, text = call(primary)
    assert (code, "source-west does not run" in text, "source start --peer west" in text) == (69, True, True)
    primary.register_peer("north", "127.0.0.1", 2)
    code, text = call(primary)
    assert (code, "there are several peers: west, north" in text) == (2, True)
    code, text = call(primary, "--to", "south")
    assert (code, "no peer 'south'" in text) == (69, True)
    assert call(primary, "--to", "primary") == (0, "primary is primary already\n")
    assert call(primary, "--timeout", "0")[0] == 2


def test_on_a_secondary(tmp_path: Path, primary: Instance) -> None:
    network = primary.content.network
    secondary = Instance.create(tmp_path / "secondary", role="secondary", network=network)
    code, text = call(secondary)
    assert (code, "receiver does not run" in text) == (69, True)
    code, text = call(secondary, "--to", "primary")
    assert (code, "is secondary: here its own switchover" in text) == (2, True)
    # One that has handed its role over goes on with that.
    primary.register_peer("secondary", "127.0.0.1", 1)
    primary.change_role("secondary", Successor("secondary", 7, is_pending=True))
    for words in ((), ("--to", "secondary")):
        code, text = call(primary, *words)
        assert (code, "source-secondary does not run" in text) == (69, True)


@pytest.mark.parametrize("words", [(), ("--dry-run",)])
def test_ctrl_c_says_that_it_goes_on(
    primary: Instance, words: tuple[str, ...], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The daemon has the order: an operator must not take the exchange for called off."""

    def interrupted(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("replicate.daemon.orders.give", interrupted)
    primary.register_peer("west", "127.0.0.1", 1)
    assert run(["-i", str(primary.path), "switchover", *words]) == 130
    assert ("source-west goes on with it" in capsys.readouterr().err) == (not words)
