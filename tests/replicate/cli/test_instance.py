"""`replicate instance|peer|config`, through click's runner."""

from __future__ import annotations

import json
import os
import uuid
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from replicate.cli.root import root
from replicate.daemon.files import DaemonFiles
from replicate.daemon.status_file import SERVING, DaemonStatus
from replicate.errors import (
    AlreadyExistsError,
    ConfigurationError,
    NotFoundError,
    PermissionRefusedError,
    ReplicateError,
    UsageError,
)
from replicate.instance.instance import Instance


@pytest.fixture(autouse=True)
def _home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("REPLICATE_HOME", str(tmp_path))
    monkeypatch.delenv("REPLICATE_INSTANCE", raising=False)


def invoke(*arguments: str) -> Result:
    result = CliRunner().invoke(root, arguments, standalone_mode=False)
    if isinstance(result.exception, ReplicateError):
        raise result.exception
    return result


def test_create_and_show(tmp_path: Path) -> None:
    made = invoke("instance", "create", "east", "--json")
    facts = json.loads(made.stdout)
    assert (facts["role"], facts["name"], facts["incarnation"]) == ("primary", "east", 1)
    assert Instance.open("east").path == tmp_path / "east"
    assert facts["network"] in invoke("-i", "east", "instance", "show").stdout
    text = invoke("instance", "create", "north").stdout.splitlines()
    network = text[1].removeprefix("network ")
    assert text[2:] == [
        "next: replicate -i north region add PATH",
        f"next, for each secondary: replicate instance create NAME --role secondary --network {network}",
    ]
    words = text[3].partition(": replicate ")[2].replace("NAME", "south").split()
    assert invoke(*words).exit_code == 0  # it can be pasted as it stands
    assert str(uuid.UUID(bytes=Instance.open("south").content.network)) == network
    joined = invoke("-i", "west", "instance", "create", "--role", "secondary", "--network", facts["network"])
    assert "next: replicate -i west receiver start" in joined.stdout
    assert Instance.open("west").content.network == Instance.open("east").content.network
    with pytest.raises(AlreadyExistsError):
        invoke("instance", "create", "east")
    with pytest.raises(UsageError, match="is not a UUID"):
        invoke("instance", "create", "elsewhere", "--network", "x")


def test_instance_from_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(UsageError, match="no instance is named"):
        invoke("instance", "show")
    invoke("instance", "create", "east")
    monkeypatch.setenv("REPLICATE_INSTANCE", "east")
    assert "east" in invoke("instance", "show").stdout
    with pytest.raises(NotFoundError):
        invoke("-i", "other", "instance", "show")


def test_peers(monkeypatch: pytest.MonkeyPatch) -> None:
    invoke("instance", "create", "east")
    monkeypatch.setenv("REPLICATE_INSTANCE", "east")
    assert "registered" in invoke("peer", "add", "west", "127.0.0.1:7555").stdout
    listed = json.loads(invoke("peer", "list", "--json").stdout)
    assert listed == [
        {
            "name": "west",
            "host": "127.0.0.1",
            "port": 7555,
            "acknowledged_seqno": 0,
            "needs_seed": False,
            "passive": False,
        }
    ]
    assert "127.0.0.1:7555" in invoke("peer", "list").stdout
    assert "127.0.0.1:7555" in invoke("instance", "show").stdout
    assert "was registered already" in invoke("peer", "add", "west", "127.0.0.1:7555").stdout
    with pytest.raises(AlreadyExistsError, match=r"registered already, at 127\.0\.0\.1:7555"):
        invoke("peer", "add", "west", "127.0.0.1:7556")
    assert (
        "7556 registered, before at 127.0.0.1:7555"
        in invoke("peer", "add", "west", "127.0.0.1:7556", "--replace").stdout
    )
    files = DaemonFiles(Instance.open("east").path, "source-west")
    lock = files.lock.acquire()
    try:
        tries = invoke("peer", "add", "west", "127.0.0.1:7557", "--replace").stdout
        files.status.write(DaemonStatus(files.name, os.getpid(), SERVING, "", 1, 1, {"state": "sending"}))
        moved = invoke("peer", "add", "west", "127.0.0.1:7558", "--replace").stdout
    finally:
        os.close(lock)
    assert "7557 registered, before at 127.0.0.1:7556; its Source Server goes there at its next try" in tries
    assert "its Source Server stays connected to 127.0.0.1:7557" in moved
    assert "source stop --peer west" in moved
    with pytest.raises(ConfigurationError, match="loopback"):
        invoke("peer", "add", "far", "192.0.2.1:1")
    with pytest.raises(ConfigurationError, match="nobody can be reached at port 0"):
        invoke("peer", "add", "far", "127.0.0.1:0")
    with pytest.raises(UsageError):
        invoke("peer", "add", "../x", "127.0.0.1:1")
    invoke("peer", "remove", "west")
    assert json.loads(invoke("peer", "list", "--json").stdout) == []
    with pytest.raises(NotFoundError):
        invoke("peer", "remove", "west")


def test_config(tmp_path: Path) -> None:
    assert "# hard_tries = 5" in invoke("config", "show").stdout
    invoke("instance", "create", "east")
    file = tmp_path / "east" / "replicate.toml"
    assert "0 settings differ" in invoke("-i", "east", "config", "check").stdout
    file.write_text("[source]\nhard_tries = 9\n")
    assert json.loads(invoke("-i", "east", "config", "check", "--json").stdout)["changed"] == {"source.hard_tries": 9}
    assert "source.hard_tries = 9" in invoke("-i", "east", "config", "show").stdout
    assert json.loads(invoke("-i", "east", "--json", "config", "show").stdout)["source.hard_tries"] == 9
    file.write_text("[source]\nhard_trys = 9\n")
    with pytest.raises(ConfigurationError, match=r"Did you mean source\.hard_tries"):
        invoke("-i", "east", "config", "check")
    with pytest.raises(NotFoundError):
        invoke("-i", "nowhere", "config", "check")


def test_config_check_says_what_a_daemon_would_say(tmp_path: Path) -> None:
    invoke("instance", "create", "east", "--role", "primary")
    file = tmp_path / "east" / "replicate.toml"
    file.chmod(0o666)
    for words in (("config", "check"), ("config", "show"), ("update", "start")):
        with pytest.raises(PermissionRefusedError, match=r"written by others \(mode 0666\) .*chmod 644"):
            invoke("-i", "east", *words)
    file.unlink()
    assert f"{file}: well; there is no such file: the defaults hold" in invoke("-i", "east", "config", "check").stdout
    told = json.loads(invoke("-i", "east", "config", "check", "--json").stdout)
    assert told == {"well": True, "path": str(file), "is_there": False, "changed": {}}
    file.symlink_to(tmp_path / "elsewhere.toml")
    with pytest.raises(PermissionRefusedError, match="symbolic link"):
        invoke("-i", "east", "config", "check")
    (tmp_path / "nothing").mkdir()
    with pytest.raises(NotFoundError):  # a directory that is no instance has no settings that are well
        invoke("-i", "nothing", "config", "check")


def test_a_data_feed() -> None:
    network = json.loads(invoke("instance", "create", "east", "--json").stdout)["network"]
    made = json.loads(invoke("instance", "create", "reports", "--feed", "--network", network, "--json").stdout)
    assert (made["role"], made["feed"]) == ("secondary", True)
    told = invoke("instance", "create", "more", "--feed", "--network", network).stdout.splitlines()
    assert told[0].startswith("data feed more made in ")
    assert "feed" in invoke("-i", "reports", "instance", "show").stdout
    with pytest.raises(PermissionRefusedError, match="never becomes primary"):
        invoke("-i", "reports", "promote")
    with pytest.raises(PermissionRefusedError, match="feeds nobody"):
        invoke("-i", "reports", "peer", "add", "x", "127.0.0.1:1")
    with pytest.raises(ConfigurationError, match="a data feed is a secondary"):
        invoke("instance", "create", "x", "--feed", "--role", "primary")
