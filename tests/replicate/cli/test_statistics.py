"""cli/statistics.py: which logs are meant, in which form they are told, and what is refused. (Orders to daemons:
tests/system/test_modes.py; logs of a real street: tests/system/test_watching.py.)"""

from __future__ import annotations

import csv
import json
import os
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from replicate.cli.root import root
from replicate.daemon.lock_file import LockFile
from replicate.errors import NotFoundError, UsageError
from replicate.instance.instance import Instance
from tests.harness.logs import UPDATE, raw, statistics, write


@pytest.fixture
def instance(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Instance:
    made = Instance.create(tmp_path / "east", role="primary")
    monkeypatch.setenv("REPLICATE_INSTANCE", str(made.path))
    return made


def invoke(*arguments: str) -> Result:
    return CliRunner().invoke(root, ["statistics", *arguments], standalone_mode=False)


def test_orders_that_make_no_sense(instance: Instance) -> None:
    result = invoke("off", "--every", "3")
    assert isinstance(result.exception, UsageError)
    assert "--every is for" in str(result.exception)
    result = invoke("on", "--daemon", "nobody")
    assert "None was ever started here" in str(result.exception)
    os.close(LockFile(instance.path, "update").acquire())
    assert "Known here: update" in str(invoke("on", "--daemon", "nobody").exception)
    result = invoke("on", "--daemon", "update")
    assert (result.return_value, result.stdout) == (1, "update does not run\n")


@pytest.fixture
def log(instance: Instance) -> Path:
    lines = [raw(0, UPDATE, "daemon started"), *(statistics(60 * step, UPDATE) for step in range(100)), b"torn"]
    return write(instance.path / "log" / "update.log", lines)


def test_the_logs_of_the_instance_or_those_that_are_named(
    instance: Instance, log: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    texts = {invoke(*words).stdout for words in ((), (str(log),), (str(log.parent),), (str(instance.path),))}
    (text,) = texts
    assert "1 daemon, 101 lines; a row for every 5 min" in text
    assert f"Note: {log} ends within a line, which is left out." in text
    monkeypatch.setenv("REPLICATE_HOME", str(instance.path.parent))
    assert invoke("east").stdout == text
    monkeypatch.delenv("REPLICATE_INSTANCE")
    assert "no instance is named" in str(invoke().exception)
    assert isinstance(invoke("nowhere").exception, NotFoundError)


def test_rows_as_they_are_asked_for(instance: Instance, log: Path) -> None:
    assert "a row for every 30 s" in invoke("--every", "30").stdout
    assert "a row for every 1 h" in invoke("--every", "1h").stdout
    text = invoke("--since", "2030-03-17T18:00:00Z", "--until", "2030-03-17T18:30:00Z").stdout
    assert "2030-03-17 18:00:40 to 18:29:40 UTC, 1 daemon, 30 lines" in text
    result = invoke("--csv", "--every", "1m")
    rows = list(csv.DictReader(result.stdout.splitlines()))
    assert len(rows) == 100
    assert {row["per_s"] for row in rows} == {"1.0"}
    assert "ends within a line" in result.stderr
    found = json.loads(invoke("--json", "--every", "1d").stdout)
    assert sum(row["transactions"] for row in found["rows"]) == 1000


@pytest.mark.slow
def test_a_picture(instance: Instance, log: Path, tmp_path: Path) -> None:
    path = tmp_path / "it.svg"
    assert invoke("--plot", str(path)).stdout.splitlines()[0] == f"{path}: drawn from 1 log"
    assert path.read_text().startswith("<?xml")
    assert json.loads(invoke("--plot", str(path), "--json").stdout)["picture"] == str(path)
    assert len(invoke("--plot", str(path), "--csv", "--every", "60").stdout.splitlines()) == 101


@pytest.mark.parametrize(
    ("words", "text"),
    [
        (("--every", "soon"), "write 30, 30s, 5m, 2h or 1d"),
        (("--every", "0.01"), "no period"),
        (("--since", "soon"), "no time"),
        (("--since", "-1h", "--until", "-2h"), "--until is not after --since"),
        (("--csv", "--json"), "CSV or JSON"),
        (("--daemon", "update"), "--daemon is for on and off"),
        (("on", "--csv"), "on and off take"),
        (("on", "--every", "2d"), "out of bounds"),
        (("--plot", "it.jpg"), "which kind of picture"),
    ],
)
def test_what_makes_no_sense(instance: Instance, log: Path, words: tuple[str, ...], text: str) -> None:
    result = invoke(*words)
    assert result.exception is not None
    assert text in str(getattr(result.exception, "message", result.exception))
