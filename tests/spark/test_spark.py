"""Archive, data source and replay by Spark: equal to what the local engine makes of the same journal."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path
from random import Random
from typing import Any

import apsw
import pytest
from pyspark.sql.datasource import EqualTo, GreaterThan, LessThanOrEqual

from replicate.compare import compare
from replicate.errors import ConflictError, DamagedError, GapError, PrerequisiteMissingError, WrongNetworkError
from replicate.instance import Instance
from replicate.journal.chain import Chain
from replicate.journal.record import FrameBatch, decode_batch
from replicate.journal.verify import verify_journal
from tests.harness.instances import ROOT
from tests.harness.pair import Pair
from update_process.replay.archive import Archive
from update_process.replay.blocks import unpack_image
from update_process.replay.command import replay
from update_process.replay.journals import Journals
from update_process.replay.net import NetChange
from update_process.replay.source import JournalReader
from update_process.replay.spark_net import SparkEngine
from update_process.replay.spark_session import require_java

pytestmark = pytest.mark.slow

SCHEMA = """
CREATE TABLE account (id INTEGER PRIMARY KEY, owner TEXT UNIQUE, balance INTEGER, note);
CREATE TABLE loose (a, b);
CREATE TABLE counted (id INTEGER PRIMARY KEY AUTOINCREMENT, v);
CREATE TABLE pair (a TEXT, b, v, PRIMARY KEY (a, b)) WITHOUT ROWID;
"""
LARGE = [(str(n), b"x" * 1000) for n in range(1500)]


@pytest.fixture
def pair(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Pair:
    monkeypatch.setenv("REPLICATE_SHM_DIR", str(tmp_path / "shm"))
    made = Pair.create(tmp_path, SCHEMA)
    made.seed()
    return made


def write(pair: Pair, seed: int, transactions: int = 120) -> None:
    """Random changes of few rows, so that many collapse; values swap, keys move, rows come and go."""
    dice = Random(seed)
    with pair.connect() as connection:
        for _ in range(transactions):
            for _ in range(dice.randint(1, 4)):
                number, other = dice.randint(1, 9), dice.randint(1, 9)
                connection.execute(
                    *dice.choice(
                        (
                            ("INSERT OR IGNORE INTO account VALUES (?, ?, ?, NULL)", (number, f"o{other}", other)),
                            ("UPDATE OR IGNORE account SET owner = ? WHERE id = ?", (f"o{other}", number)),
                            ("UPDATE account SET balance = balance + 1, note = ? WHERE id = ?", (number / 2, other)),
                            ("UPDATE OR IGNORE account SET id = ? WHERE id = ?", (other, number)),
                            ("DELETE FROM account WHERE id = ?", (number,)),
                            ("INSERT INTO loose VALUES (?, ?)", (number, b"\0")),
                            ("DELETE FROM loose WHERE rowid = (SELECT min(rowid) FROM loose WHERE a = ?)", (number,)),
                            ("INSERT INTO counted (v) VALUES (?)", (number,)),
                            ("DELETE FROM counted WHERE v = ?", (number,)),
                            ("INSERT OR REPLACE INTO pair VALUES ('k', ?, ?)", (number, other)),
                            ("UPDATE OR IGNORE pair SET b = ? WHERE b = ?", (float(other), number)),
                        )
                    )
                )
            connection.commit()
    connection.close()


def write_large(pair: Pair) -> None:
    """A transaction that is a segment of its own, so that what is before it is sealed."""
    with pair.connect() as connection:
        connection.executemany("INSERT INTO loose VALUES (?, ?)", LARGE)
    connection.close()


def assert_equal(pair: Pair) -> None:
    found = compare(pair.primary, pair.secondary, timeout_s=5)
    assert found.equal, found
    assert found.seqno == pair.last_seqno()
    assert not verify_journal(pair.secondary).findings


def by_spark(pair: Pair, spark: Any, archive: Archive | None = None, **options: Any) -> Any:
    journals = Journals([pair.primary.path], pair.primary.content.network)
    engine = SparkEngine(spark, journals, pair.secondary.path, archive=archive, verify=options.get("verify", False))
    try:
        return replay(pair.secondary, [pair.primary.path], engine=engine, **options)
    finally:
        engine.close()


def own_chain(pair: Pair) -> Chain:
    return Chain(pair.primary.journal_directory)


# The data source.


def test_the_source_reads_every_change_in_blocks(pair: Pair, spark: Any) -> None:
    write(pair, 1)
    write_large(pair)
    write(pair, 2)
    path = str(pair.primary.journal_directory)
    source = spark.read.format("replicate-journal").option("path", path).option("block_bytes", 4096)
    transactions = source.option("rows", "transactions").load().collect()
    numbers = sorted(row.seqno for row in transactions)
    assert numbers == list(range(numbers[0], pair.last_seqno() + 1))
    assert {"transaction", "large", "history"} <= {row.kind for row in transactions}
    found = source.option("rows", "changes").load()
    changes = found.collect()
    moved = sum(row.op == "update" and row.after is None for row in changes)  # a changed key is two rows
    assert len(changes) == sum(row.changes for row in transactions) + moved
    assert sum(row.op == "insert" and len(row.after) > 1000 for row in changes) == len(LARGE)
    assert {row.incarnation for row in changes} == {pair.primary.content.incarnation}
    row = next(row for row in changes if row.op == "update" and row.table_name == "account" and row.after)
    assert len(unpack_image(row.after)) == 4
    assert {row.seqno for row in found.where(f"seqno > {numbers[-1] - 3}").collect()} <= set(numbers[-3:])


def test_conditions_on_the_number_are_pushed_down(pair: Pair) -> None:
    write(pair, 1)
    path = str(pair.primary.journal_directory)
    reader = JournalReader({"path": path, "block_bytes": "1"})
    assert len(list(reader.pushFilters([GreaterThan(("seqno",), 10), LessThanOrEqual(("seqno",), 20)]))) == 2
    assert (reader.first, reader.last) == (11, 20)
    list(reader.pushFilters([EqualTo(("seqno",), 12), EqualTo(("op",), 12)]))
    assert (reader.first, reader.last) == (12, 12)
    assert {partition.block.first_seqno for partition in reader.partitions()} == {1}  # one read is the least block


def test_a_damaged_block_and_a_hole_fail_the_query(pair: Pair, spark: Any, tmp_path: Path) -> None:
    write(pair, 1)
    write_large(pair)
    write(pair, 2)
    for harm in ("flip", "hole"):
        copy = tmp_path / harm
        shutil.copytree(pair.primary.journal_directory, copy)
        segments = sorted(copy.glob("*.journal"))
        if harm == "hole":
            segments[1].unlink()
        else:
            data = bytearray(segments[0].read_bytes())
            data[len(bytes(data).rstrip(b"\0")) - 20] ^= 1
            segments[0].write_bytes(data)
        with pytest.raises(Exception, match=r"GAP|JOURNAL_MISSING|FRAME_DAMAGED|JOURNAL_DAMAGED"):
            spark.read.format("replicate-journal").option("path", str(copy)).load().count()


# The archive.


def test_the_archive_is_incremental_idempotent_and_restartable(pair: Pair, spark: Any, tmp_path: Path) -> None:
    write(pair, 1)
    write_large(pair)
    write(pair, 2, 10)
    archive = Archive(spark, (tmp_path / "archive").as_uri())
    first = archive.add(own_chain(pair))
    assert first.ranges == 1
    assert archive.add(own_chain(pair)).ranges == 0
    write_large(pair)
    write(pair, 3, 10)
    (manifest,) = (tmp_path / "archive" / "manifests").glob("*.json")
    # A run that was killed before its manifest: its files are there, and nobody reads them.
    left = tmp_path / "archive" / "changes" / f"{first.last_seqno + 1:020d}-{first.last_seqno + 11:020d}"
    left.mkdir()
    (left / "part-0.parquet").write_bytes(b"half")
    assert len(archive.ranges()) == 1
    second = archive.add(own_chain(pair))
    assert second.ranges == 1
    assert second.last_seqno > first.last_seqno
    assert [one.first_seqno for one in archive.verify()] == [1, first.last_seqno + 1]
    raw = spark.read.format("replicate-journal").option("path", str(pair.primary.journal_directory))
    raw = raw.option("last", second.last_seqno).load()
    archived = archive.rows("changes", archive.ranges())
    assert raw.exceptAll(archived).count() == archived.exceptAll(raw).count() == 0
    assert json.loads(manifest.read_text())["network"] == pair.primary.content.network.hex()


def test_mixed_up_archives_are_refused(pair: Pair, spark: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write(pair, 1, 10)
    write_large(pair)
    archive = Archive(spark, (tmp_path / "archive").as_uri())
    archive.add(own_chain(pair))
    (tmp_path / "other").mkdir()
    other = Pair.create(tmp_path / "other", SCHEMA)
    write_large(other)
    with pytest.raises(WrongNetworkError):
        archive.add(own_chain(other))
    (manifest,) = (tmp_path / "archive" / "manifests").glob("*.json")
    made = json.loads(manifest.read_text())
    made["digests"]["changes"] = "0" * 16
    write_manifest(manifest, made)
    with pytest.raises(DamagedError, match="not what was archived"):
        archive.verify()
    moved = {**made, "first_seqno": 1000, "last_seqno": 1001}
    write_manifest(manifest.with_name(f"{1000:020d}-{1001:020d}.json"), moved)
    with pytest.raises(GapError, match="is followed by 1000"):
        archive.ranges()
    write_manifest(manifest, {"format": 1})
    with pytest.raises(DamagedError, match="no manifest"):
        archive.ranges()


def write_manifest(path: Path, made: dict[str, Any]) -> None:
    path.with_name(f".{path.name}.crc").unlink(missing_ok=True)
    path.write_text(json.dumps(made))


# Replay.


@pytest.mark.parametrize("seed", range(2))
def test_spark_and_the_local_engine_find_the_same_net_change(pair: Pair, spark: Any, seed: int) -> None:
    write(pair, seed)
    journals = Journals([pair.primary.path], pair.primary.content.network)
    first, last = pair.last_seqno(pair.secondary) + 1, pair.last_seqno()
    with pair.session() as session:
        tables = next(iter(session.rows.values())).definitions
        net = NetChange(lambda table_id: tables[table_id])
        bodies = []
        for piece in journals.read(first, last):
            assert isinstance(piece, FrameBatch)
            bodies += decode_batch(piece.data)[2::3]
        net.fold(bodies)
        engine = SparkEngine(spark, journals, pair.secondary.path, verify=True)
        other = engine(lambda table_id: tables[table_id], first)
        other.fold(bodies)
        # 1 and 1.0 are one key to the local engine and two to Spark, which is the same in the end: deletes come first.
        assert plain(net.rows(), tables) == plain(other.rows(), tables)
        assert sorted(net.sequences()) == sorted(other.sequences())
        engine.close()
    assert not list(pair.secondary.path.glob("replay-*"))


def plain(rows: Any, tables: Any) -> set[str]:
    """Rows to compare."""
    return {
        repr(row._replace(passed=row.passed and list(row.passed)))
        for row in rows
        if tables[row.table_id].table != "pair"
    }


@pytest.mark.parametrize("archived", [False, True])
def test_replayed_by_spark_it_is_equal(pair: Pair, spark: Any, tmp_path: Path, archived: bool) -> None:
    write(pair, 5)
    write_large(pair)
    write(pair, 6)
    connection = pair.connect()
    connection.execute("ALTER TABLE loose ADD COLUMN c DEFAULT 1")
    connection.commit()
    connection.close()
    archive = None
    if archived:
        archive = Archive(spark, (tmp_path / "archive").as_uri())
        assert archive.add(own_chain(pair)).ranges == 1
    done = by_spark(pair, spark, archive, verify=True)
    assert (done.pieces, done.alone) == (2, 2)
    assert_equal(pair)
    assert by_spark(pair, spark, archive).transactions == 0


def test_a_conflict_is_found_by_both(pair: Pair, spark: Any) -> None:
    write(pair, 5)
    by_spark(pair, spark)
    write(pair, 6)
    stood = pair.last_seqno(pair.secondary)
    foreign = apsw.Connection(str(pair.secondary.region("main").path))
    foreign.config(apsw.SQLITE_DBCONFIG_ENABLE_TRIGGER, 0)
    foreign.execute("UPDATE account SET note = 'foreign'")
    foreign.close()
    for attempt in (lambda: by_spark(pair, spark), lambda: replay(pair.secondary, [pair.primary.path])):
        with pytest.raises(ConflictError):
            attempt()
        assert pair.last_seqno(pair.secondary) == stood


COMMAND = [sys.executable, "-m", "replicate.cli.main"]


def command(*arguments: object, **environment: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [*COMMAND, *map(str, arguments)], env={**os.environ, **environment}, cwd=ROOT, capture_output=True, text=True
    )


def test_the_command_killed_at_the_apply_and_run_again(pair: Pair) -> None:
    write(pair, 8)
    arguments = ("-i", pair.secondary.path, "replay", "--journal", pair.primary.path, "--to", pair.last_seqno())
    killed = command(*arguments, "--engine", "spark", "--master", "local[1]", REPLICATE_FAILPOINT="take.renamed:1:kill")
    assert killed.returncode == -signal.SIGKILL, killed.stderr
    again = command(*arguments, "--json")
    assert again.returncode == 0, again.stderr
    assert json.loads(again.stdout)["transactions"] == 0
    assert_equal(pair)


def test_without_java_one_error_says_what_to_install(pair: Pair, monkeypatch: pytest.MonkeyPatch) -> None:
    found = command(
        "-i", pair.primary.path, "archive", pair.directory / "archive", JAVA_HOME="/nowhere", PATH="/nowhere"
    )
    assert found.returncode == 69
    assert "openjdk-17-jre-headless" in found.stderr
    monkeypatch.setenv("JAVA_HOME", "/nowhere")
    with pytest.raises(PrerequisiteMissingError):
        require_java()
    assert Instance.open(pair.secondary.path).role == "secondary"
