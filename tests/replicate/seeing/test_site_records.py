"""seeing/site_records.py: the tables that `scr`, `epochs` and `ruv --told` print, and why one is not there."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from replicate.cli.main import run
from replicate.door.snapshot import door_of
from replicate.seeing.site_records import record_tables
from tests.harness.pair import Pair


@pytest.fixture
def pair(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Pair:
    monkeypatch.setenv("REPLICATE_SHM_DIR", "")
    made = Pair.create(tmp_path)
    made.write(3)
    return made


def test_the_tables_are_those_of_the_commands(pair: Pair, capsys: pytest.CaptureFixture[str]) -> None:
    path = str(pair.primary.path)
    with door_of(pair.primary):
        scr, epochs, told = record_tables(path)
    run(["-i", path, "--json", "scr"])
    (record,) = json.loads(capsys.readouterr().out)["records"]
    assert scr.rows == (
        tuple(
            str(record[name])
            for name in ("audit_name", "log_file_timestamp", "partition_id", "global_commit_id", "local_commit_id")
        ),
    )
    run(["-i", path, "--json", "epochs"])
    replicas = json.loads(capsys.readouterr().out)["replicas"]
    assert [row[0] for row in epochs.rows] == [one["replica"] for one in replicas]
    assert told.rows == ()
    assert told.why_not.startswith("NOT_PRIMARY")


def test_an_instance_that_is_not_there_says_so(tmp_path: Path) -> None:
    for table in record_tables(str(tmp_path / "none")):
        assert table.why_not.startswith("NOT_FOUND")
        assert table.rows == ()
