"""What an operator gets wrong in the first week, command by command: the right exit code, and what to do instead."""

from __future__ import annotations

import sqlite3
from contextlib import closing
from pathlib import Path

import pytest
from click.testing import CliRunner

from replicate.admin.regions import add_region
from replicate.cli.root import root
from replicate.errors import ReplicateError
from replicate.instance.consumers import Consumer, write_consumer
from replicate.instance.instance import Instance
from tests.harness.journals import mounted_read_only


@pytest.fixture(autouse=True)
def _site(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A primary `east` with the region main, a secondary `west` of its network, and another database."""
    (tmp_path / "shm").mkdir()
    monkeypatch.setenv("REPLICATE_SHM_DIR", str(tmp_path / "shm"))
    monkeypatch.setenv("REPLICATE_HOME", str(tmp_path))
    monkeypatch.delenv("REPLICATE_INSTANCE", raising=False)
    monkeypatch.chdir(tmp_path)
    east = Instance.create(tmp_path / "east", role="primary")
    Instance.create(tmp_path / "west", role="secondary", network=east.content.network)
    for name in ("shop.db", "other.db"):
        with closing(sqlite3.connect(tmp_path / name)) as database:
            database.execute("CREATE TABLE item (id INTEGER PRIMARY KEY, note TEXT)")
    add_region(east, tmp_path / "shop.db", name="main")
    (tmp_path / "ca").mkdir(mode=0o700)
    for name in ("ca.pem", "ca-key.pem"):
        (tmp_path / "ca" / name).write_text("no PEM")
        (tmp_path / "ca" / name).chmod(0o600)


@pytest.mark.parametrize(
    ("words", "exit_code"),
    [
        ("-i east region add shop.db --name main", 73),
        ("-i east region add other.db --name main", 73),
        ("-i east region add ca --name directory", 77),
        ("-i east region add other.db/x --name below", 69),
        ("-i east peer add east 127.0.0.1:7555", 78),
        ("-i east seed --from-file x.seed", 77),
        ("-i west seed --from west", 2),
        ("-i east replay --journal east", 77),
        ("-i east compare --with east", 2),
        ("-i west compare --with-digest nope.json", 74),
        ("-i west compare --with-digest ca", 74),
        ("certificate show ca", 78),
        ("certificate issue north --ca ca --out tls", 78),
    ],
)
def test_what_to_do_instead_is_said(words: str, exit_code: int) -> None:
    error = CliRunner().invoke(root, words.split(), standalone_mode=False).exception
    assert isinstance(error, ReplicateError), error
    assert (error.exit_code, bool(error.where), bool(error.do)) == (exit_code, True, True), error


def test_two_secondaries_without_a_region_are_told_to_add_one(tmp_path: Path) -> None:
    network = Instance.open(tmp_path / "west").content.network
    Instance.create(tmp_path / "north", role="secondary", network=network)
    words = ["-i", "west", "compare", "--with", "north"]
    error = CliRunner().invoke(root, words, standalone_mode=False).exception
    assert isinstance(error, ReplicateError)
    assert error.do, error


def test_a_region_that_is_added_later_says_which_secondaries_are_to_be_seeded_anew(tmp_path: Path) -> None:
    """Their Update Processes stop at it by name: who adds it should know before they do."""
    east = Instance.open(tmp_path / "east")
    for name, seqno in (("west", 2), ("new", 0)):
        east.register_peer(name, "127.0.0.1", 7555)
        write_consumer(east.consumers_directory, Consumer(name, seqno))
    said = CliRunner().invoke(root, ["-i", "east", "region", "add", "other.db"], catch_exceptions=False).stdout
    assert [line for line in said.splitlines() if line.startswith("next")] == [
        "next, on west, which applies nothing more without this region: replicate -i west update stop, then "
        "replicate -i west seed --restart"
    ]


@pytest.mark.parametrize("words", ["peer add west 127.0.0.1:7555", "region release main", "journal prune"])
def test_a_read_only_disk_is_to_be_mounted_otherwise(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, words: str
) -> None:
    mounted_read_only(monkeypatch, tmp_path / "east")
    error = CliRunner().invoke(root, ["-i", "east", *words.split()], standalone_mode=False).exception
    assert isinstance(error, ReplicateError)
    assert "Mount its file system read-write" in error.do, error
