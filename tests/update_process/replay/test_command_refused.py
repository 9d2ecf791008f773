"""What an operator can get wrong, and what a disk can: each is one error by name with its exit code, and nothing
changed. Through the command line, as an operator meets it.
"""

from __future__ import annotations

import datetime
import json
import os
import shutil
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any, NamedTuple

import apsw
import pytest

from replicate.admin.freezing import freeze
from replicate.cli.main import run
from replicate.daemon.files import DaemonFiles
from replicate.door.snapshot import door_of
from replicate.instance.instance import Instance
from replicate.model.moment import CSN_COUNTER_BITS
from replicate.pool import control as word
from replicate.transfer.seed.install import seed_lock
from tests.harness.backlog import Backlog
from tests.harness.differential import read
from tests.harness.pair import Pair
from tests.harness.pair import run as write
from tests.harness.replaying import SCHEMA, archive_segments, csns
from update_process.replay.archive.files import LocalFiles
from update_process.replay.archive.manifest import read_ranges


class Scene:
    """One case: a secondary, a copy of the archive and of the journal to be harmed, and the command."""

    def __init__(self, backlog: Backlog, directory: Path, patch: pytest.MonkeyPatch, stack: ExitStack) -> None:
        self.backlog, self.directory, self.patch, self.stack = backlog, directory, patch, stack
        self.secondary = backlog.secondary()
        self.instance = self.secondary.path
        self.archive = directory / "archive"
        shutil.copytree(backlog.pair.directory / "archive", self.archive)
        self.journal = directory / "journal"
        self.names: list[Path | str] = [self.archive]
        self.more: list[str] = []

    def manifest(self, at: int) -> Path:
        return sorted(self.archive.glob("manifests/*.json"))[at]

    def change(self, at: int, **facts: Any) -> None:
        path = self.manifest(at)
        path.write_text(json.dumps({**json.loads(path.read_text()), **facts}))

    def flip(self, path: Path, place: float = 0.5) -> None:
        data = bytearray(path.read_bytes())
        data[int(len(bytes(data).rstrip(b"\0")) * place)] ^= 1
        path.write_bytes(data)

    def hold(self, name: str) -> None:
        self.stack.callback(os.close, DaemonFiles(self.instance, name).lock.acquire())

    def copy_journal(self) -> list[Path]:
        shutil.copytree(self.backlog.pair.primary.journal_directory, self.journal)
        self.names = [self.journal]
        return sorted(self.journal.glob("*.journal"))

    def sql(self, statement: str) -> None:
        connection = apsw.Connection(str(self.secondary.region("main").path))
        connection.config(apsw.SQLITE_DBCONFIG_ENABLE_TRIGGER, 0)
        connection.execute(statement)
        connection.close()

    def command(self) -> list[str]:
        journals = [word for name in self.names for word in ("--journal", str(name))]
        return ["-i", str(self.instance), "replay", *journals, *self.more]


def another(scene: Scene, *, archived: bool) -> None:
    (scene.directory / "other").mkdir()
    before = os.environ["REPLICATE_SHM_DIR"]
    pair = Pair.create(scene.directory / "other", SCHEMA)
    write(pair, "UPDATE account SET balance = 1")
    connection = pair.connect()
    connection.executemany("INSERT INTO entry VALUES (?, 1.0, ?)", [(str(n), b"x" * 1000) for n in range(1500)])
    connection.commit()
    connection.execute("UPDATE account SET balance = 2")
    connection.commit()
    connection.close()
    scene.names = [archive_segments(pair.primary, scene.directory / "theirs") if archived else pair.primary.path]
    os.environ["REPLICATE_SHM_DIR"] = before


def empty(scene: Scene) -> None:
    scene.instance = scene.backlog.empty_secondary().path


class Case(NamedTuple):
    act: Callable[[Scene], Any]
    code: int
    says: str


NINE = "INSERT INTO account (id) VALUES (1), (2), (3), (4), (5), (6), (7), (8), (9)"

CASES: dict[str, Case] = {
    "the receiver runs": Case(lambda s: s.hold("receiver"), 73, "the Receiver Server of site"),
    "the update process runs": Case(lambda s: s.hold("update"), 73, " update stop"),
    "another replay": Case(
        lambda s: s.stack.enter_context(seed_lock(s.secondary)), 75, "BUSY: another seed, replay, rebuild or change"
    ),
    "a primary": Case(lambda s: setattr(s, "instance", s.backlog.pair.primary.path), 77, "PERMISSION: instance east"),
    "a frozen one": Case(lambda s: freeze(s.secondary, on=True), 75, "FROZEN: site"),
    "not seeded": Case(empty, 69, "NOT_FOUND: this secondary has not been seeded"),
    "no directory": Case(lambda s: s.names.append(s.directory / "none"), 69, "NOT_FOUND: there is no such directory"),
    "a file": Case(lambda s: s.names.append(s.manifest(0)), 69, "NOT_FOUND: there is no such directory"),
    "no journal": Case(lambda s: s.names.append(s.directory), 69, "NOT_FOUND: no journal segment and no archive"),
    "elsewhere": Case(lambda s: s.names.append("s3a://bucket/x"), 2, "USAGE: only Spark can read this URI [s3a://"),
    "another host": Case(lambda s: s.names.append("file://host/x"), 2, "USAGE: a file URI names no host"),
    "an empty name": Case(lambda s: s.names.append(""), 2, "USAGE: an empty name is no journal and no archive"),
    "a master for nobody": Case(
        lambda s: s.more.extend(["--engine", "local", "--master", "local[1]"]), 2, "or say --engine spark"
    ),
    "no such number": Case(lambda s: s.more.extend(["--to", "0"]), 2, "USAGE: Invalid value for '--to'"),
    "no Java": Case(
        lambda s: (s.more.extend(["--engine", "spark"]), s.patch.setenv("JAVA_HOME", "/nowhere")),
        69,
        "PREREQUISITE_MISSING: Spark needs Java 17",
    ),
    "beyond the end": Case(lambda s: s.more.extend(["--to", "99999"]), 69, "up to 99999 was asked for"),
    "an archive of another network": Case(lambda s: another(s, archived=True), 76, "WRONG_NETWORK: the archive is of"),
    "a journal of another network": Case(lambda s: another(s, archived=False), 76, "WRONG_NETWORK"),
    "an empty archive": Case(
        lambda s: [path.unlink() for path in s.archive.glob("manifests/*")], 69, "NOT_FOUND: this archive holds nothing"
    ),
    "a gap before it": Case(lambda s: s.manifest(0).unlink(), 65, "is needed first, the oldest in these journals is"),
    "a truncated manifest": Case(
        lambda s: os.truncate(s.manifest(0), s.manifest(0).stat().st_size // 2), 65, "DAMAGED: this is no manifest"
    ),
    "a manifest under another name": Case(
        lambda s: s.manifest(1).rename(s.archive / "manifests" / "7-9.json"), 65, "does not bear its own name"
    ),
    "manifests of two journals": Case(
        lambda s: s.change(1, instance="00" * 16), 76, "WRONG_INSTANCE: the archive holds ranges of two journals"
    ),
    "a later manifest": Case(lambda s: s.change(0, format=99), 65, "has format 99, this release knows 2 and 3"),
    "a damaged block in the archive": Case(
        lambda s: s.flip(min(s.archive.glob("segments/*/*.zst"))), 65, "DAMAGED: a segment in the archive is damaged"
    ),
    "a segment of the archive is gone": Case(
        lambda s: min(s.archive.glob("segments/*/*.zst")).unlink(), 69, "NOT_FOUND: a file of the archive is not there"
    ),
    "a damaged block in a journal": Case(
        lambda s: s.flip(s.copy_journal()[0]), 65, "FRAME_DAMAGED: ",
    ),
    "a damaged header": Case(lambda s: s.flip(s.copy_journal()[0], 0.0), 65, "JOURNAL_DAMAGED: this is no journal"),
    "a gap in a journal": Case(lambda s: s.copy_journal()[1].unlink(), 65, "in none of these journals ["),
    "rows that somebody added": Case(lambda s: s.sql(NINE), 65, "CONFLICT: "),
    "a table that the target lacks": Case(lambda s: s.sql("DROP TABLE pair"), 65, "SCHEMA_CHANGED: "),
    "a target that went another way": Case(
        lambda s: s.sql("UPDATE _replicate_scr SET chain = chain + 1"), 65, "DIVERGED: "
    ),
}  # fmt: skip


def state(instance: Instance) -> tuple[Any, ...]:
    """Rows, bookkeeping but for what redo may write, position and journal."""
    content = read(instance.region("main").path) if instance.regions else {}
    with door_of(instance) as door:
        last = int(door.words[word.LAST_SEQNO])
    segments = {path.name: path.stat().st_size for path in instance.journal_directory.glob("*")}
    return content, last, segments


@pytest.fixture
def scene(backlog: Backlog, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Scene]:
    with ExitStack() as stack:
        yield Scene(backlog, tmp_path, monkeypatch, stack)


@pytest.mark.turns(4)
@pytest.mark.parametrize("name", CASES)
def test_it_is_one_error_and_nothing_changed(scene: Scene, name: str, capsys: pytest.CaptureFixture[str]) -> None:
    case = CASES[name]
    case.act(scene)
    before = state(scene.secondary)
    code = run(scene.command())
    out, err = capsys.readouterr()
    assert (code, out) == (case.code, ""), err
    assert case.says in err
    assert err.count("\n") == 1, err
    assert state(scene.secondary) == before
    assert not (scene.secondary.path / "replay").exists()


# A rebuild, at a number and at a time.


def moment(micros: int) -> str:
    made = datetime.datetime.fromtimestamp(0, datetime.UTC) + datetime.timedelta(microseconds=micros)
    return made.isoformat(timespec="microseconds")


def test_a_rebuild_ends_where_it_was_told(backlog: Backlog, capsys: pytest.CaptureFixture[str]) -> None:
    """Exactly at a commit, a microsecond before it and after it; at a number; never outside of what there is."""
    secondary, known = backlog.empty_secondary(), csns(backlog.pair.primary)
    archive = backlog.pair.directory / "archive"
    end = read_ranges(LocalFiles(archive))[-1].last_seqno
    command = ["-i", str(secondary.path), "rebuild", "--from-file", str(backlog.base), "--journal", str(archive)]
    first = backlog.base_seqno
    apart = [
        seqno
        for seqno in range(first + 1, end)
        if min(known[seqno + 1] - known[seqno], known[seqno] - known[seqno - 1]) > 2 << CSN_COUNTER_BITS
    ]
    assert len(apart) > 10
    asked: list[tuple[list[str], int]] = [(["--to", str(seqno)], seqno) for seqno in (first, first + 1, end)]
    for seqno in (apart[0], apart[len(apart) // 2], apart[-1]):
        micros = known[seqno] >> CSN_COUNTER_BITS
        asked += [(["--at", moment(at)], wanted) for at, wanted in ((micros, seqno), (micros - 1, seqno - 1))]
    asked.append((["--at", moment((known[apart[3]] >> CSN_COUNTER_BITS) + 1)], apart[3]))
    asked.append((["--at", moment(known[first] >> CSN_COUNTER_BITS)], first))
    for number, (arguments, wanted) in enumerate(asked):
        assert run([*command, *arguments, *(["--restart"] if number else []), "--json"]) == 0
        assert json.loads(capsys.readouterr().out)["seqno"] == wanted, arguments
        with door_of(secondary) as door:
            assert door.words[word.LAST_SEQNO] == wanted
    secondary.reload()
    before = state(secondary)
    for arguments, code, text in (
        ([], 73, " replay --journal URI. To replace all of them: replicate "),
        (["--restart", "--at", "2020-01-01T00:00:00Z"], 69, "Take an older base copy"),
        (["--restart", "--at", moment((known[end] >> CSN_COUNTER_BITS) + 1)], 69, "is not known"),
        (["--restart", "--at", "2020-01-01"], 2, "append Z for UTC"),
        (["--restart", "--at", "noon"], 2, "is no time such as"),
        (["--restart", "--to", str(end + 1)], 69, "was asked for"),
        (["--restart", "--to", str(first - 1)], 69, f"the base copy stands at transaction {first}"),
        (["--to", "20", "--at", "2020-01-01T00:00:00Z"], 2, "together make no sense"),
    ):
        assert run([*command, *arguments]) == code
        out, err = capsys.readouterr()
        assert (out, text in err, err.count("\n")) == ("", True, 1), err
    assert state(secondary) == before


@pytest.mark.turns(4)
@pytest.mark.parametrize("onwards", ["--restart", ""])
@pytest.mark.parametrize("restart", ["--restart", ""])
@pytest.mark.parametrize("at", [0, -1])
def test_a_rebuild_from_an_archive_with_a_damaged_segment_can_be_given_again(
    scene: Scene, capsys: pytest.CaptureFixture[str], at: int, restart: str, onwards: str
) -> None:
    """Of a secondary that holds all of it already, or nothing. The error says where it stands now: no more than that is
    left of it, whatever it held before; and how to go on from there."""
    secondary = scene.secondary if restart else scene.backlog.empty_secondary()
    end = read_ranges(LocalFiles(scene.archive))[-1].last_seqno
    command = ["-i", str(secondary.path), "rebuild", "--from-file", str(scene.backlog.base)]
    command += ["--journal", str(scene.archive)]
    if restart:
        assert run(scene.command()) == 0
        capsys.readouterr()
    segment = sorted(scene.archive.glob("segments/*/*.zst"))[at]
    whole = segment.read_bytes()
    scene.flip(segment)
    stands = int(segment.stem.split(".")[0]) - 1 if at else scene.backlog.base_seqno
    for _ in range(2 if restart else 1):
        assert run([*command, *filter(None, [restart])]) == 65
        out, err = capsys.readouterr()
        assert (out, err.count("\n")) == ("", 1), err
        assert err.startswith("DAMAGED: a segment in the archive is damaged: ")
        assert f"[{segment.as_uri()}]. Restore the file, or archive again elsewhere; " in err
        without = " without --restart" if restart else ""
        said = f"this secondary stands at transaction {stands}, rebuilt in part; the same command{without} goes on from"
        assert said in err
        secondary.reload()
        assert state(secondary)[1] == stands
        assert not (secondary.path / "replay").exists()
        assert not list((secondary.path / "regions").glob("seed*"))
    segment.write_bytes(whole)
    assert run([*command, *filter(None, [onwards])]) == 0
    assert capsys.readouterr().out.startswith("base copy at" if onwards else "the base copy was in its place")
    secondary.reload()
    assert state(secondary)[1] == end
    assert run(["-i", str(secondary.path), "replay", "--journal", str(scene.archive)]) == 0  # it is none in part now


def test_a_dry_run_tells_its_plan_and_changes_nothing(scene: Scene, capsys: pytest.CaptureFixture[str]) -> None:
    """Nothing is told on standard error, which is no terminal; then the summary says what was done."""
    archive, journal = scene.archive, scene.backlog.pair.primary.journal_directory
    shutil.copytree(journal, scene.journal)
    for path in sorted(scene.journal.glob("*.journal"))[:-2]:
        path.unlink()
    scene.names = [archive, scene.journal]
    before = state(scene.secondary)
    assert run([*scene.command(), "--dry-run"]) == 0
    out, err = capsys.readouterr()
    end = read_ranges(LocalFiles(archive))[-1].last_seqno
    last = max(csns(scene.backlog.pair.primary))
    oldest = int(min(scene.journal.glob("*.journal")).stem)
    first = scene.backlog.base_seqno + 1
    lines = out.splitlines()
    assert lines[0].startswith(f"would replay {last - first + 1} transactions, {first} to {last}, in ")
    assert lines[2:] == [
        f"  {first} to {oldest - 1} from {archive.as_uri()}",
        f"  {oldest} to {last} from {scene.journal}",
    ]
    assert (err, end > oldest - 2) == ("", True)
    assert state(scene.secondary) == before
    assert run(scene.command()) == 0
    out, err = capsys.readouterr()
    pieces = lines[1]
    assert (err, out.splitlines()[1]) == ("", pieces)
    assert out.splitlines()[0].startswith(f"replayed {last - first + 1} transactions")
    assert out.splitlines()[2].startswith("rows: ")
    assert state(scene.secondary)[1] == last
