"""replay/spark/audited.py: Spark's answers about an archive are those of who reads all of it."""

from __future__ import annotations

import re
import shlex
import shutil
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from replicate.audit.changes import records_of
from replicate.audit.count import BY, Counts
from replicate.audit.query import Query
from replicate.audit.row import row_history
from replicate.audit.selection import row_named
from replicate.cli.root import root
from replicate.errors import DamagedError, NotFoundError, UsageError
from tests.harness.backlog import Backlog
from tests.harness.manual import chapter
from update_process.replay import command
from update_process.replay.archive.files import local_path
from update_process.replay.audited import SparkFound, find_in_journals
from update_process.replay.backlog import Journals

QUESTIONS = {
    "everything": Query(),
    "a range of numbers": Query(20, 90),
    "a table": Query(tables=("account",)),
    "two tables, one operation": Query(tables=("loose", "pair"), ops=("delete",)),
    "an operation": Query(ops=("schema",)),
    "definitions": Query(ops=("define", "sequence")),
    "a key": Query(tables=("account",), key=("5",)),
    "a key of two kinds": Query(tables=("pair",), key=("k", "5")),
    "a key that nobody has": Query(tables=("account",), key=("99999999999999999999999999",)),
    "a comment": Query(comment="year"),
    "a table of a commented transaction": Query(comment="year", tables=("account",)),
    "no table of a commented transaction": Query(comment="year", tables=("loose",)),
    "a partition": Query(partitions=(2,)),
    "a table in a partition": Query(partitions=(1,), tables=("account", "loose"), ops=("insert", "define")),
    "an origin": Query(origins=("east",)),
    "an origin and a table": Query(30, origins=("east",), tables=("counted",)),
}


WAYS = (("table", "op"), ("op", "partition"), ("minute", "origin"), ("hour", "table"), ("day",))
assert {word for words in WAYS for word in words} == set(BY)


@pytest.fixture
def unpacked(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The first number of every segment that is unpacked."""
    found: list[int] = []
    real = Journals._opened

    def told(self: Journals, archive: Any, one: Any, copy: Any) -> Any:
        found.append(copy.first_seqno)
        return real(self, archive, one, copy)

    monkeypatch.setattr(Journals, "_opened", told)
    return found


@pytest.mark.slow
@pytest.mark.parametrize("name", QUESTIONS)
def test_the_same_is_found(backlog: Backlog, spark: Any, tmp_path: Path, name: str) -> None:
    query = QUESTIONS[name]
    local = find_in_journals([backlog.archive], query, tmp_path)
    found = SparkFound(spark, backlog.archive, query, tmp_path).matches
    wanted = [one for match in local for one in records_of(match)]
    assert [one for match in found for one in records_of(match)] == wanted
    assert [match.seqno for match in found.backwards()] == [match.seqno for match in local.backwards()]
    assert bool(wanted) == (name not in ("a key that nobody has", "no table of a commented transaction"))


@pytest.mark.slow
@pytest.mark.parametrize("name", QUESTIONS)
def test_the_same_is_counted(backlog: Backlog, spark: Any, tmp_path: Path, name: str) -> None:
    query = QUESTIONS[name]
    found = SparkFound(spark, backlog.archive, query, tmp_path)
    for by in (WAYS[0], WAYS[1 + list(QUESTIONS).index(name) % (len(WAYS) - 1)]):
        counts = Counts(by)
        counts.add(find_in_journals([backlog.archive], query, tmp_path).frames())
        assert found.counted(by) == list(counts.rows())


@pytest.mark.slow
def test_a_time(backlog: Backlog, spark: Any, tmp_path: Path) -> None:
    csns = [match.body[6] for match in find_in_journals([backlog.archive], Query(), tmp_path)]
    query = Query(first_csn=csns[40], last_csn=csns[60], ops=("insert",))
    local = find_in_journals([backlog.archive], query, tmp_path)
    found = SparkFound(spark, backlog.archive, query, tmp_path)
    assert [match.seqno for match in found.matches] == [match.seqno for match in local]
    counts = Counts(["op"])
    counts.add(local.frames())
    assert found.counted(["op"]) == list(counts.rows())
    last = SparkFound(spark, backlog.archive, Query(tables=("account",), last_count=3), tmp_path).matches
    wanted = [match.seqno for match in find_in_journals([backlog.archive], Query(tables=("account",)), tmp_path)]
    assert [match.seqno for match in last] == wanted[-3:]


@pytest.mark.slow
@pytest.mark.parametrize("key", [("1",), ("5",), ("9",), ("77",), ("id=5",)])
def test_the_history_of_a_row(backlog: Backlog, spark: Any, tmp_path: Path, key: tuple[str, ...]) -> None:
    """Rows of this table change their keys all the time."""
    query = Query(tables=("account",), ops=("insert", "update", "delete"))
    local = find_in_journals([backlog.archive], query, tmp_path)
    (name,) = local.selection.tables
    meant = row_named(key, local.known().in_force()[name])
    wanted = list(row_history(local, *meant))
    assert len({record.key for record in wanted}) > 1 or key == ("77",)
    found = SparkFound(spark, backlog.archive, query, tmp_path, key).matches
    assert list(row_history(found, *meant)) == wanted


@pytest.mark.slow
def test_what_holds_nothing_is_not_unpacked(backlog: Backlog, spark: Any, tmp_path: Path, unpacked: list[int]) -> None:
    """The archive has three segments, of which the second is one large transaction."""
    first, large, last = [one.first_seqno for one in find_in_journals([backlog.archive], Query(), tmp_path)._stretches]

    def opened(query: Query, row: tuple[str, ...] | None = None) -> list[int]:
        found = SparkFound(spark, backlog.archive, query, tmp_path, row).matches
        unpacked.clear()
        forwards = [match.seqno for match in found]
        assert [match.seqno for match in found.backwards()] == forwards[::-1]
        return sorted(set(unpacked))

    assert opened(Query(tables=("account",))) == [first, last]
    assert opened(Query(large, large + 5, tables=("account",))) == [last]
    assert opened(Query(comment="year")) == [last]
    assert opened(Query(comment="year", tables=("loose",), key=("1",))) == []
    assert opened(Query(tables=("account",), key=("4711",))) == []
    assert opened(Query(tables=("loose",), ops=("insert",)), ("4711",)) == []
    # A row whose key was changed in the last segment, and nowhere else in it.
    assert opened(Query(tables=("pair",), ops=("insert", "update")), ("grown", "x")) == [first, last]
    assert opened(Query(tables=("pair",), key=("grown", "x"))) == [last]
    assert large in opened(Query(tables=("loose",), ops=("insert",)))


def test_an_archive_that_has_lost_rows_is_refused(backlog: Backlog, spark: Any, tmp_path: Path) -> None:
    copy = tmp_path / "copy"
    source = local_path(backlog.archive)
    assert source is not None
    shutil.copytree(source, copy)
    file = sorted((copy / "changes").glob("*/*.parquet"))[0]
    file.unlink()
    found = SparkFound(spark, str(copy), Query(ops=("insert",)), tmp_path)
    with pytest.raises(DamagedError, match="are not the files that were archived"):
        list(found.matches)
    with pytest.raises(DamagedError, match="are not the files that were archived"):
        found.counted(["op"])


@pytest.mark.slow
def test_spark_is_asked_about_one_archive(
    backlog: Backlog, spark: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The commands, in words and in figures."""
    monkeypatch.setattr(command, "spark_sessions", lambda master: lambda: nullcontext(spark))
    archive, run = str(local_path(backlog.archive)), CliRunner().invoke

    def told(*words: str) -> str:
        done = run(root, ["audit", *words, "--journal", archive], standalone_mode=False)
        assert not done.exception, done.output
        return done.output

    shown = re.findall(r"^    replicate audit (.+) --engine spark$", chapter("audit"), re.MULTILINE)
    assert len(shown) == 3
    for command_line in shown:
        of_here = command_line.replace("--journal file:///srv/archive", "").replace("purchase", "account")
        words = shlex.split(of_here.replace("4711", "5"))
        assert told(*words, "--engine", "spark") == told(*words) != ""
    for words in (
        ["show", "--table", "account", "--key", "5", "--newest-first"],
        ["show", "--comment", "year", "--format", "jsonl"],
        ["count", "--by", "table,op"],
        ["row", "account", "5"],
        ["undo", "--table", "pair", "--from", "30", "--to", "60"],
        ["redo", "--table", "pair", "--from", "30", "--to", "60"],
    ):
        assert told(*words, "--engine", "spark") == told(*words)
    for journals in ([], [str(backlog.pair.primary.path)], [archive, str(backlog.pair.primary.path)]):
        named = [word for one in journals for word in ("--journal", one)]
        done = run(root, ["audit", "count", "--engine", "spark", *named], standalone_mode=False)
        assert isinstance(done.exception, UsageError), done.output
        assert "Spark is asked about" in done.exception.what
    done = run(root, ["audit", "count", "--engine", "spark", "--journal", archive + "x"], standalone_mode=False)
    assert isinstance(done.exception, NotFoundError), done.output
