"""The data source, the net change and the replay by Spark: equal to what the local engine makes of the same journal."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import apsw
import pytest
from pyspark.sql import functions as f
from pyspark.sql.datasource import EqualTo, GreaterThan, LessThanOrEqual

from replicate.audit.verify import verify_journal
from replicate.compare.compare import compare
from replicate.errors import ConflictError, DamagedError, PrerequisiteMissingError, UsageError
from replicate.journal.chain import Chain
from tests.harness.backlog import LARGE, Backlog
from tests.harness.instances import ROOT, last_seqno
from update_process.replay.archive.archive import Archive
from update_process.replay.archive.blocks import unpack_image
from update_process.replay.archive.files import open_files
from update_process.replay.archive.manifest import read_ranges
from update_process.replay.backlog import Journals
from update_process.replay.command import replay
from update_process.replay.spark import net as spark_net
from update_process.replay.spark.errors import spark_work
from update_process.replay.spark.net import SparkEngine
from update_process.replay.spark.session import require_java
from update_process.replay.spark.source import JournalReader

pytestmark = pytest.mark.slow


# The data source.


def test_the_source_reads_every_change_in_blocks(backlog: Backlog, spark: Any) -> None:
    path = str(backlog.pair.primary.journal_directory)
    source = spark.read.format("replicate-journal").option("path", path).option("block_bytes", 4096)
    transactions = source.option("rows", "transactions").load().collect()
    numbers = sorted(row.seqno for row in transactions)
    assert numbers == list(range(1, last_seqno(backlog.pair.primary) + 1))
    assert {"transaction", "large", "history"} <= {row.kind for row in transactions}
    found = source.option("rows", "changes").load()
    changes = found.collect()
    moved = sum(row.op == "update" and row.after is None for row in changes)  # a changed key is two rows
    assert moved
    assert len(changes) == sum(row.changes for row in transactions) + moved
    assert sum(row.op == "insert" and len(row.after) > 1000 for row in changes) == 2 * len(LARGE)
    assert {row.incarnation for row in changes} == {backlog.pair.primary.content.incarnation}
    row = next(row for row in changes if row.op == "update" and row.table_name == "account" and row.after)
    assert len(unpack_image(row.after)) == 4
    assert {row.seqno for row in found.where(f"seqno > {numbers[-1] - 3}").collect()} == set(numbers[-3:])
    few = source.option("columns", "key, seqno,op").load()
    assert few.columns == ["seqno", "op", "key"]
    assert sorted(map(tuple, few.collect()), key=repr) == sorted(((r.seqno, r.op, r.key) for r in changes), key=repr)
    places: dict[int, list[int]] = {}
    for row in changes:
        places.setdefault(row.seqno, []).append(row.place)
    assert all(sorted(found) == list(range(len(found))) for found in places.values())
    with pytest.raises(UsageError, match="has no column nonsense"):
        JournalReader({"path": path, "columns": "key,nonsense"})


def test_what_is_archived_is_what_the_source_reads(backlog: Backlog, spark: Any) -> None:
    for one in read_ranges(open_files(backlog.archive)):
        source = spark.read.format("replicate-journal").option("path", str(backlog.pair.primary.journal_directory))
        raw = source.option("first", one.first_seqno).option("last", one.last_seqno).load()
        digest = raw.agg(f.count("*"), f.bit_xor(f.xxhash64(*raw.columns))).first()
        assert (digest[0], f"{digest[1] & (2**64 - 1):016x}") == (one.changes, one.digests["changes"])


def test_conditions_on_the_number_are_pushed_down(backlog: Backlog) -> None:
    path = str(backlog.pair.primary.journal_directory)
    reader = JournalReader({"path": path, "block_bytes": "1"})
    assert len(list(reader.pushFilters([GreaterThan(("seqno",), 10), LessThanOrEqual(("seqno",), 20)]))) == 2
    assert (reader.first, reader.last) == (11, 20)
    list(reader.pushFilters([EqualTo(("seqno",), 12), EqualTo(("op",), 12)]))
    assert (reader.first, reader.last) == (12, 12)
    assert {partition.block.first_seqno for partition in reader.partitions()} == {1}  # one read is the least block


def test_spark_pushes_them_down_and_reads_no_block_in_front(backlog: Backlog, spark: Any, tmp_path: Path) -> None:
    """A byte that is damaged there is not met, as it is without the condition."""
    copy = tmp_path / "journal"
    shutil.copytree(backlog.pair.primary.journal_directory, copy)
    first = min(copy.glob("*.journal"))
    data = bytearray(first.read_bytes())
    data[len(bytes(data).rstrip(b"\0")) // 2] ^= 1
    first.write_bytes(data)
    bound = Chain(copy).first_seqnos()[1]
    rows = spark.read.format("replicate-journal").option("path", str(copy)).option("rows", "transactions").load()
    assert rows.where(f"seqno >= {bound}").count() == last_seqno(backlog.pair.primary) - bound + 1
    with pytest.raises(DamagedError), spark_work("counting", str(copy)):
        rows.where("seqno >= 1").count()


def test_a_damaged_block_and_a_hole_fail_the_query(backlog: Backlog, spark: Any, tmp_path: Path) -> None:
    for harm in ("flip", "hole"):
        copy = tmp_path / harm
        shutil.copytree(backlog.pair.primary.journal_directory, copy)
        segments = sorted(copy.glob("*.journal"))
        if harm == "hole":
            segments[1].unlink()
        else:
            data = bytearray(segments[0].read_bytes())
            data[len(bytes(data).rstrip(b"\0")) - 20] ^= 1
            segments[0].write_bytes(data)
        with pytest.raises(DamagedError, match="counting: "), spark_work("counting", str(copy)):
            spark.read.format("replicate-journal").option("path", str(copy)).load().count()


# Replay.


def test_replayed_from_segments_it_is_equal(backlog: Backlog, spark: Any) -> None:
    secondary, primary = backlog.secondary(), backlog.pair.primary
    done = replay(secondary, [primary.path], spark=lambda: nullcontext(spark), verify=True)
    assert (done.seqno, done.pieces, done.alone) == (last_seqno(primary), 4, 4)
    assert compare(primary, secondary, timeout_s=5).equal
    assert not verify_journal(secondary).findings
    assert replay(secondary, [primary.path], spark=_no_session).transactions == 0


def test_what_two_archives_hold_both_is_read_once(backlog: Backlog, spark: Any, tmp_path: Path) -> None:
    """One ends within a range of the other: rows were there twice, and that was called a conflict."""

    class Beginning(Chain):
        def first_seqnos(self) -> list[int]:
            return super().first_seqnos()[:2]

    primary, secondary = backlog.pair.primary, backlog.secondary()
    ended = Archive(spark, (tmp_path / "ended").as_uri())
    last = ended.add(Beginning(primary.journal_directory)).last_seqno
    archived = read_ranges(open_files(backlog.archive))
    assert any(one.first_seqno <= last < one.last_seqno for one in archived)
    done = replay(secondary, [ended.uri, backlog.archive], spark=lambda: nullcontext(spark), verify=True)
    assert [source.last_seqno for source in done.sources] == [last, archived[-1].last_seqno]
    assert done.first_seqno <= last
    replay(secondary, [primary.path])
    assert compare(primary, secondary, timeout_s=5).equal


def _no_session() -> Any:
    raise AssertionError("a session was made for nothing")


def test_ends_beyond_memory_are_shuffled(
    backlog: Backlog, spark: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def net(most: int) -> list[str]:
        monkeypatch.setattr(spark_net, "BROADCAST_ENDS_MAX", most)
        stage = tmp_path / str(most)
        stage.mkdir()
        journals = Journals([backlog.archive], backlog.pair.primary.content.network)
        found = SparkEngine(spark, journals, stage, verify=True)(lambda _: pytest.fail("nobody asks"), 3)
        found.until(105)
        return sorted(map(repr, (*found.rows(), *found.sequences())))

    expected = net(10**6)
    assert len(expected) > 50
    # As much as there may be is more than that; as there is, first too, then not.
    assert expected == net(250) == net(10)


def test_a_conflict_is_found_by_both(backlog: Backlog, spark: Any) -> None:
    secondary = backlog.secondary()
    replay(secondary, [backlog.archive], last_seqno=backlog.base_seqno + 50)
    foreign = apsw.Connection(str(secondary.region("main").path))
    foreign.config(apsw.SQLITE_DBCONFIG_ENABLE_TRIGGER, 0)
    foreign.execute("UPDATE account SET note = 'foreign'")
    foreign.close()
    for sessions in (lambda: nullcontext(spark), None):
        with pytest.raises(ConflictError):
            replay(secondary, [backlog.archive], last_seqno=backlog.base_seqno + 100, spark=sessions)
        assert last_seqno(secondary) == backlog.base_seqno + 50


COMMAND = [sys.executable, "-m", "replicate.cli.main"]


def command(*arguments: object, **environment: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [*COMMAND, *map(str, arguments)], env={**os.environ, **environment}, cwd=ROOT, capture_output=True, text=True
    )


def test_without_java_one_error_says_what_to_install(backlog: Backlog, monkeypatch: pytest.MonkeyPatch) -> None:
    primary = backlog.pair.primary
    found = command("-i", primary.path, "archive", "/nowhere", JAVA_HOME="/nowhere", PATH="/nowhere")
    assert found.returncode == 69
    assert "openjdk-17-jre-headless" in found.stderr
    monkeypatch.setenv("JAVA_HOME", "/nowhere")
    with pytest.raises(PrerequisiteMissingError):
        require_java()


def test_a_spark_that_does_not_start_is_one_error(backlog: Backlog, tmp_path: Path) -> None:
    """Whatever Java says of it; without a trace, and nothing has changed."""
    secondary = backlog.secondary()
    java = tmp_path / "bin" / "java"
    java.parent.mkdir()
    java.write_text("#!/bin/sh\necho 'Error: LinkageError: class file version 61.0' >&2\nexit 1\n")
    java.chmod(0o755)
    replay = ("-i", secondary.path, "replay", "--journal", backlog.archive, "--engine", "spark")
    old = command(*replay, JAVA_HOME=str(tmp_path))
    assert (old.returncode, old.stderr.count("\n")) == (69, 1), old.stderr
    assert "Spark does not start: " in old.stderr
    assert "class file version 61.0" in old.stderr
    found = command(*replay, "--master", "nosuch:7077")
    assert (found.returncode, found.stderr.count("\n")) == (2, 1), found.stderr
    assert "there is no such kind of Spark master" in found.stderr
    assert last_seqno(secondary) == backlog.base_seqno
