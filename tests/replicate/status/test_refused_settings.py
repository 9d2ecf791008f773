"""A replicate.toml with a slip in it: who looks is shown all the rest, and the slip by name; daemons can be stopped.

Guarantees: the daemons that `status` is asked about are seen as running, as they are when the file was changed behind
their backs. Leaves to others: which settings there are (tests/replicate/settings/test_load.py).
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from replicate.cli.main import run
from replicate.daemon.files import DaemonFiles
from replicate.daemon.status_file import DaemonStatus
from replicate.errors import ConfigurationError, PermissionRefusedError
from replicate.instance.instance import Instance
from replicate.settings.load import load_what_can_be
from tests.harness.instances import last_seqno
from tests.harness.pair import Pair

BAD = '[log]\nlevel = "loud"\n[source]\nhard_tries = 7\n'


@pytest.fixture
def pair(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Pair]:
    monkeypatch.setenv("REPLICATE_SHM_DIR", "set again by the pair")
    monkeypatch.setenv("REPLICATE_HOME", str(tmp_path))
    made = Pair.create(tmp_path)
    made.seed()
    facts = {"state": "sending", "last_sent_seqno": 2, "last_received_seqno": 2, "last_applied_seqno": 2}
    files = DaemonFiles(made.primary.path, "source-west")
    fd = files.lock.acquire()
    files.status.write(DaemonStatus("source-west", os.getpid(), "serving", "sending", 1, 2, facts))
    yield made
    os.close(fd)


def said(capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[int, str, str]:
    code = run(list(arguments))
    told = capsys.readouterr()
    return code, told.out, told.err


def shown(capsys: pytest.CaptureFixture[str]) -> tuple[int, dict[str, Any]]:
    code, out, err = said(capsys, "-i", "east", "status", "--json")
    assert err == ""
    return code, json.loads(out)


@pytest.mark.parametrize(
    ("text", "names", "do"),
    [
        (BAD, ["log.level = 'loud' is none of its values", "by [log]"], "Use one of debug, info, warning, error"),
        ("[journal\n", ["not valid TOML", "line 1", "by the settings"], "Mend that line"),
        ("[sorce]\nhard_tries = 1\n", ["unknown section or key sorce"], "Did you mean [source]?"),
        ("[source]\ndead_after_s = 3\n", ["every peer would look dead", "by [source]"], "at least two periods"),
    ],
)
def test_status_shows_everything_and_names_what_is_refused(
    pair: Pair, capsys: pytest.CaptureFixture[str], text: str, names: list[str], do: str
) -> None:
    _, before = shown(capsys)
    file = pair.primary.path / "replicate.toml"
    file.write_text(text)
    code, told = shown(capsys)
    assert code == 1
    (found,) = [one for one in told["findings"] if one not in before["findings"]]
    assert (found["code"], found["severity"]) == ("SETTINGS_REFUSED", "error")
    assert all(name in found["text"] for name in (*names, str(file)))
    assert do in found["do"]
    assert found["do"].endswith("replicate -i east config check")
    # All the rest is there as it was before.
    assert told["peers"] == before["peers"]
    assert told["peers"][0]["is_connected"]
    assert told["regions"] == before["regions"]
    assert told["journal"]["last_written_seqno"] == last_seqno(Instance.open(pair.primary.path, needs=()))


def test_status_trusts_no_settings_that_others_may_have_written(pair: Pair, capsys: pytest.CaptureFixture[str]) -> None:
    file = pair.primary.path / "replicate.toml"
    file.write_text("[journal]\ncap_bytes = '1 GiB'\n")
    file.chmod(0o666)
    code, told = shown(capsys)
    assert (code, told["journal"]["cap_bytes"]) == (1, 10 * 2**30)
    (found,) = [one for one in told["findings"] if one["code"] == "SETTINGS_REFUSED"]
    assert "mode 0666" in found["text"]
    assert f"chmod 644 {file}" in found["do"]
    assert said(capsys, "-i", "east", "source", "start")[0] == 77


def test_every_slip_is_named_and_what_is_right_is_taken(tmp_path: Path) -> None:
    file = tmp_path / "replicate.toml"
    file.write_text(
        "source = 1\n[journal]\ncap_bytes = 'much'\ndurability = 'off'\n[receiver]\nxon_percent = 95\npool = 1\n"
        "[update]\nmetrics_listen = '0.0.0.0:1'\nbatch_transactions = 9\n"
    )
    config, refused = load_what_can_be(file)
    assert [one.section for one in refused] == ["source", "journal", "receiver", "receiver", "update"]
    assert (config.journal.durability, config.journal.cap_bytes) == ("off", 10 * 2**30)
    # What cannot work together is not taken at all.
    assert (config.receiver.xon_percent, config.update.batch_transactions) == (80, 250_000)
    # A default that stands in for what was refused accuses nobody else.
    file.write_text("[source]\nheartbeat_period_s = 'x'\ndead_after_s = 2\n")
    _, refused = load_what_can_be(file)
    assert [one.error.what for one in refused] == ["source.heartbeat_period_s = 'x' is not a number"]


def test_what_needs_no_bad_setting_works_and_the_rest_says_why_not(
    pair: Pair, capsys: pytest.CaptureFixture[str]
) -> None:
    for instance in (pair.primary, pair.secondary):
        (instance.path / "replicate.toml").write_text(BAD)
    for words, part in (
        (("-i", "east", "source", "stop", "--peer", "south"), ""),
        (("-i", "west", "source", "stop"), ""),
        (("-i", "west", "receiver", "stop"), "receiver: does not run"),
        (("-i", "west", "update", "stop"), "update: does not run"),
        (("-i", "east", "source", "status"), "source-west: serving"),
        (("-i", "east", "instance", "show"), "east"),
        (("-i", "east", "region", "list"), "main"),
        (("-i", "east", "peer", "list"), "west"),
        (("-i", "east", "journal", "show", "--from", "1", "--to", "1"), "1"),
        (("-i", "east", "journal", "verify"), ""),
        (("-i", "west", "wait", "--seqno", "1"), "at seqno"),
        (("-i", "east", "digest"), "main in all"),
        (("-i", "east", "compare", "--with", "west"), "equal"),
    ):
        code, out, err = said(capsys, *words)
        if "south" in words:  # a peer that never was: no setting's fault
            assert code == 69
            assert "no peer 'south'" in err
        else:
            assert (code, err) == (0, ""), words
            assert part in out
    for words in (("update", "start"), ("receiver", "start"), ("config", "check"), ("seed",)):
        code, _, err = said(capsys, "-i", "west", *words)
        assert code == 78, words
        assert "log.level = 'loud' is none of its values" in err


def test_what_needs_the_bad_setting_is_refused_by_its_name(pair: Pair, capsys: pytest.CaptureFixture[str]) -> None:
    file = pair.primary.path / "replicate.toml"
    for text, named in (("[region]\ninit = 5\n", "region.init"), ("[journal\n", "line 1")):
        file.write_text(text)
        for words in (("digest",), ("compare", "--with", "west")):
            code, _, err = said(capsys, "-i", "east", *words)
            assert code == 78
            assert named in err
    file.write_text("[tls]\nca = 5\n")
    assert said(capsys, "-i", "east", "certificate", "show")[0] == 78
    with pytest.raises(ConfigurationError, match=r"tls\.ca"):
        Instance.open(pair.primary.path)
    file.chmod(0o666)
    with pytest.raises(PermissionRefusedError):
        Instance.open(pair.primary.path, needs=("journal",))


def test_the_source_servers_are_stopped_also_while_the_settings_are_bad(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Those that are registered; of a peer that was removed only what still runs."""
    monkeypatch.setenv("REPLICATE_HOME", str(tmp_path))
    made = Instance.create("east", role="primary")
    made.register_peer("west", "127.0.0.1", 7555)
    os.close(DaemonFiles(made.path, "source-south").lock.acquire())
    (made.path / "replicate.toml").write_text(BAD)
    assert said(capsys, "-i", "east", "source", "stop") == (
        0, "source-west: does not run\n", "",
    )  # fmt: skip
