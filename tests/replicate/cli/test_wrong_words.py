"""What an operator gets wrong in the first week, command by command: the right exit code, and what to do instead."""

from __future__ import annotations

import sqlite3
from contextlib import closing
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from replicate.admin.region_release import release_region
from replicate.admin.regions import add_region
from replicate.cli.root import root
from replicate.errors import ReplicateError, UsageError
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
        ("-i east region add shop.db --name two", 73),
        ("-i east region add nowhere.db", 69),
        ("-i east certificate show", 69),
        ("-i east config set journal.cap_bytes 5GB", 78),
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


@pytest.mark.parametrize(
    ("words", "text"),
    [
        ("-i east region add shop.db --name two", "the database is region 'main' of this instance"),
        ("-i east region add nowhere.db --name more", "nowhere.db --name more --create"),
        ("-i east certificate show", "replicate certificate issue NAME --ca DIR -i INSTANCE"),
        ("-i east config set journal.cap_bytes 5GB", """'5GB' is not a size such as "64 MiB" """),
        ("-i east compare", "no instance is named to compare with. Give"),
    ],
)
def test_what_is_wrong_is_said_as_it_is(words: str, text: str) -> None:
    error = CliRunner().invoke(root, words.split(), standalone_mode=False).exception
    assert text in str(error)


def test_two_secondaries_without_a_region_are_told_to_add_one(tmp_path: Path) -> None:
    network = Instance.open(tmp_path / "west").content.network
    Instance.create(tmp_path / "north", role="secondary", network=network)
    words = ["-i", "west", "compare", "--with", "north"]
    error = CliRunner().invoke(root, words, standalone_mode=False).exception
    assert isinstance(error, ReplicateError)
    assert error.do, error


def begun(tmp_path: Path, *names: str) -> Instance:
    """The primary, with these peers, which have applied something, and one that has not."""
    east = Instance.open(tmp_path / "east")
    for name, seqno in (*((name, 2) for name in names), ("new", 0)):
        east.register_peer(name, "127.0.0.1", 7555)
        write_consumer(east.consumers_directory, Consumer(name, seqno))
    return east


def add_other(*words: str, answer: str | None = None) -> Result:
    return CliRunner().invoke(root, ["-i", "east", "region", "add", "other.db", *words], input=answer)


def with_rows() -> None:
    with closing(sqlite3.connect("other.db")) as database:
        database.execute("INSERT INTO item (note) VALUES ('one'), ('two')")
        database.commit()


def test_a_region_without_rows_that_is_added_later_needs_nothing(tmp_path: Path) -> None:
    begun(tmp_path, "west")
    assert add_other().stdout.splitlines()[2:] == ["on west it is made in the stream: nothing need be done there"]


def test_one_that_is_created_needs_nothing_either(tmp_path: Path) -> None:
    begun(tmp_path, "west")
    said = CliRunner().invoke(root, ["-i", "east", "region", "add", "made.db", "--create"]).stdout
    assert said.splitlines()[-1] == "on west it is made in the stream: nothing need be done there"


def test_one_with_rows_is_announced_and_wants_a_yes(tmp_path: Path) -> None:
    with_rows()
    east = begun(tmp_path, "west", "south")
    error = add_other().exception
    assert isinstance(error, UsageError)
    what = (
        f"{tmp_path / 'other.db'}: its table item has rows (rows in all: 2). The secondaries west, south get it by a "
        "seed; the other regions go on"
    )
    assert (error.what, error.do) == (what, "Nothing was changed; to go on, repeat the command with --yes")
    east.reload()
    assert [entry.name for entry in east.regions] == ["main"]
    assert [line for line in add_other("--yes").stdout.splitlines() if line.startswith("next")] == [
        f"next, on {peer}, where it waits for its seed (the other regions go on): replicate -i {peer} seed --region "
        "other"
        for peer in ("west", "south")
    ]


@pytest.mark.parametrize("answer", ["y", "n"])
def test_on_a_terminal_it_is_asked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, answer: str) -> None:
    with_rows()
    east = begun(tmp_path, "west")
    monkeypatch.setattr("replicate.cli.common.is_terminal", lambda: True)
    result = add_other(answer=f"{answer}\n")
    assert "The secondary west gets it by a seed; the other regions go on.\nGo on? [y/N]" in result.stderr
    east.reload()
    assert [entry.name for entry in east.regions] == (["main", "other"] if answer == "y" else ["main"])
    assert isinstance(result.exception, UsageError) == (answer == "n")


def test_one_that_was_here_before_stops_who_still_has_it(tmp_path: Path) -> None:
    """Without rows, too: the secondary has some, and nobody knows what was written in between."""
    begun(tmp_path, "west")
    assert add_other().exception is None
    release_region(Instance.open(tmp_path / "east"), "other", timeout_s=5)
    error = add_other().exception
    assert isinstance(error, UsageError)
    assert "a region of this name was replicated before (rows in all: 0). The secondary west gets it" in error.what
    assert error.what.endswith("; one that has no other applies nothing until then")


def test_where_no_secondary_has_begun_nobody_is_asked(tmp_path: Path) -> None:
    with_rows()
    begun(tmp_path)
    assert len(add_other().stdout.splitlines()) == 2


@pytest.mark.parametrize("words", ["peer add west 127.0.0.1:7555", "region release main", "journal prune"])
def test_a_read_only_disk_is_to_be_mounted_otherwise(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, words: str
) -> None:
    mounted_read_only(monkeypatch, tmp_path / "east")
    error = CliRunner().invoke(root, ["-i", "east", *words.split()], standalone_mode=False).exception
    assert isinstance(error, ReplicateError)
    assert "Mount its file system read-write" in error.do, error
