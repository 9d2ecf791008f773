"""An archive is all that a replay or a rebuild needs: the segments may be pruned. What is damaged in it is found."""

from __future__ import annotations

import errno
import json
import os
import shutil
import time
from collections.abc import Callable
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import pytest

from replicate.audit.verify import verify_journal
from replicate.compare.compare import compare
from replicate.errors import (
    AlreadyExistsError,
    DamagedError,
    DiskFullError,
    FormatUnknownError,
    GapError,
    JournalIOError,
    NotFoundError,
    ReplicateError,
    TryAgainError,
    UsageError,
    WrongInstanceError,
    WrongNetworkError,
)
from replicate.journal.chain import Chain
from replicate.journal.record import read_head
from replicate.model.moment import CSN_COUNTER_BITS
from tests.harness.backlog import Backlog, frames
from tests.harness.differential import read, same
from tests.harness.instances import last_seqno
from tests.harness.pair import Pair
from update_process.replay.archive.archive import Archive
from update_process.replay.archive.files import HadoopFiles, LocalFiles, archive_uri, local_path, open_files
from update_process.replay.archive.manifest import read_ranges
from update_process.replay.backlog import Journals
from update_process.replay.command import replay
from update_process.replay.rebuild import rebuild
from update_process.replay.spark.errors import spark_work, translated
from update_process.replay.spark.net import write_staged

pytestmark = [pytest.mark.slow, pytest.mark.together(6)]


def archived_seqno(backlog: Backlog) -> int:
    return read_ranges(LocalFiles(Path(local_path(backlog.archive) or "")))[-1].last_seqno


@pytest.mark.parametrize("engine", ["local", "spark"])
def test_the_segments_may_be_pruned(backlog: Backlog, spark: Any, engine: str) -> None:
    secondary, primary = backlog.secondary(), backlog.pair.primary
    sessions: Any = (lambda: nullcontext(spark)) if engine == "spark" else None
    end = archived_seqno(backlog)
    assert end < last_seqno(primary)
    done = replay(secondary, [backlog.archive], spark=sessions)
    assert (done.seqno, last_seqno(secondary)) == (end, end)
    assert (done.pieces, done.alone) == (3, 3)
    # Our journal is as true as if it had been received: it can feed a third site, and the stream goes on after it.
    assert not verify_journal(secondary).findings
    assert frames(secondary, backlog.base_seqno + 1, end) == frames(primary, backlog.base_seqno + 1, end)
    third = backlog.secondary()
    replay(third, [secondary.path])
    same(read(secondary.region("main").path), read(third.region("main").path), secondary.name, third.name)
    assert replay(secondary, [backlog.archive, primary.path]).seqno == last_seqno(primary)
    assert compare(primary, secondary, timeout_s=5).equal
    assert not (secondary.path / "replay").exists()


def test_rebuilt_at_any_number(backlog: Backlog) -> None:
    end = archived_seqno(backlog)
    for seqno in (backlog.base_seqno, backlog.base_seqno + 7, (backlog.base_seqno + end) // 2, end):
        made, other = backlog.empty_secondary(), backlog.secondary()
        done = rebuild(made, backlog.base, [backlog.archive], last_seqno=seqno)
        assert (done.seqno, last_seqno(made)) == (seqno, seqno)
        assert not verify_journal(made).findings
        replay(other, [backlog.pair.primary.path], last_seqno=seqno)
        same(read(made.region("main").path), read(other.region("main").path), made.name, other.name)
    made = backlog.empty_secondary()
    whole = rebuild(made, backlog.base, [backlog.archive, backlog.pair.primary.path])
    assert compare(backlog.pair.primary, made, timeout_s=5).equal
    assert whole.seqno == last_seqno(backlog.pair.primary)


def test_rebuilt_at_a_time(backlog: Backlog) -> None:
    """A transaction's own time is the one that it bears; the last one until then counts."""
    primary = backlog.pair.primary
    times = {}
    for found in Journals([primary.path], primary.content.network).read(1, last_seqno(primary)):
        if hasattr(found, "data"):
            at = 0
            while at < len(found.data):
                head = read_head(found.data, at)
                times[head.seqno] = (head.csn >> CSN_COUNTER_BITS) / 1e6
                at += head.frame_bytes
    end = archived_seqno(backlog)
    chosen = [seqno for seqno in times if seqno > backlog.base_seqno and times[seqno] < times.get(seqno + 1, 0)]
    for seqno in (chosen[3], chosen[len(chosen) // 2]):
        between_s = (times[seqno] + times[seqno + 1]) / 2
        made = backlog.empty_secondary()
        assert rebuild(made, backlog.base, [backlog.archive], until_s=between_s).seqno == seqno
        assert last_seqno(made) == seqno
    refused = backlog.empty_secondary()
    with pytest.raises(NotFoundError, match="Take an older base copy"):
        rebuild(refused, backlog.base, [backlog.archive], until_s=1.0)
    with pytest.raises(NotFoundError, match="is not known"):
        rebuild(refused, backlog.base, [backlog.archive], until_s=time.time() + 60)
    with pytest.raises(NotFoundError, match=f"end with transaction {end}"):
        rebuild(refused, backlog.base, [backlog.archive], last_seqno=end + 1)
    with pytest.raises(NotFoundError, match="stands at transaction"):
        rebuild(refused, backlog.base, [backlog.archive], last_seqno=max(1, backlog.base_seqno - 1))
    assert not refused.regions


def test_a_rebuild_replaces_only_when_it_is_told(backlog: Backlog, tmp_path: Path) -> None:
    made = backlog.secondary()
    with pytest.raises(AlreadyExistsError, match="--restart"):
        rebuild(made, backlog.base, [backlog.archive])
    assert last_seqno(made) == backlog.base_seqno
    assert rebuild(made, backlog.base, [backlog.archive], restart=True).seqno == archived_seqno(backlog)
    with pytest.raises(NotFoundError):
        rebuild(made, tmp_path / "nowhere", [backlog.archive], restart=True)
    assert last_seqno(made) == archived_seqno(backlog)


def flip(path: Path) -> None:
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.write_bytes(data)
    path.with_name(f".{path.name}.crc").unlink(missing_ok=True)  # Hadoop's own checksum would find it first


def change(path: Path, **facts: Any) -> None:
    path.write_text(json.dumps({**json.loads(path.read_text()), **facts}))


def first(directory: Path, pattern: str) -> Path:
    return min(directory.glob(pattern))


def exchange(one: Path, other: Path) -> None:
    aside = one.with_name("aside")
    one.rename(aside)
    other.rename(one)
    aside.rename(other)


HARMS: dict[str, tuple[Callable[[Path], Any], type[ReplicateError], str]] = {
    "segment": (lambda at: flip(first(at, "segments/*/*.zst")), DamagedError, "a segment in the archive is damaged"),
    "gone": (lambda at: first(at, "segments/*/*.zst").unlink(), NotFoundError, "is not there"),
    "exchanged": (
        lambda at: exchange(*sorted(at.glob("segments/*/*.zst"))[:2]),
        DamagedError,
        "a segment in the archive is damaged",
    ),
    "digest": (lambda at: change(first(at, "manifests/*.json"), last_seqno=3), DamagedError, "this is no manifest"),
    "renamed": (
        lambda at: (found := first(at, "manifests/*.json")).rename(found.with_name("0-1.json")),
        DamagedError,
        "its own name",
    ),
    "empty": (lambda at: first(at, "manifests/*.json").write_text("{}"), DamagedError, "this is no manifest"),
    "later": (lambda at: change(first(at, "manifests/*.json"), format=99), FormatUnknownError, "format 99"),
    "hole": (lambda at: first(at, "manifests/*.json").unlink(), ReplicateError, "is needed first"),
    "network": (
        lambda at: [change(path, network="00" * 16) for path in at.glob("manifests/*.json")],
        WrongNetworkError,
        "of network 0000",
    ),
    "two": (
        lambda at: change(first(at, "manifests/*.json"), instance="00" * 16),
        WrongInstanceError,
        "two journals",
    ),
    "nothing": (lambda at: [path.unlink() for path in at.glob("manifests/*.json")], NotFoundError, "holds nothing"),
}


@pytest.mark.parametrize("harm", HARMS)
def test_what_is_wrong_with_it_is_named_and_changes_nothing(backlog: Backlog, harm: str, tmp_path: Path) -> None:
    secondary = backlog.secondary()
    copy = tmp_path / "archive"
    shutil.copytree(backlog.pair.directory / "archive", copy)
    act, kind, text = HARMS[harm]
    act(copy)
    with pytest.raises(kind, match=text):
        replay(secondary, [copy])
    assert last_seqno(secondary) == backlog.base_seqno
    assert not (secondary.path / "replay").exists()
    assert replay(secondary, [backlog.archive]).seqno == archived_seqno(backlog)


def test_damaged_rows_are_found_by_spark(backlog: Backlog, spark: Any, tmp_path: Path) -> None:
    """The frames prove what the history is; that the rows are its rows, the pages' checksums and the counts do."""
    for name, harm in (
        ("flipped", lambda at: [flip(path) for path in at.glob("changes/*/*.parquet")]),
        ("fewer", lambda at: first(at, "changes/*/*.parquet").unlink()),
    ):
        secondary = backlog.secondary()
        copy = tmp_path / name
        shutil.copytree(backlog.pair.directory / "archive", copy)
        harm(copy)
        with pytest.raises(DamagedError):
            replay(secondary, [copy], spark=lambda: nullcontext(spark))
        stands = last_seqno(secondary)
        assert replay(secondary, [backlog.archive]).first_seqno == stands + 1
        assert last_seqno(secondary) == archived_seqno(backlog)
        with pytest.raises(DamagedError):
            Archive(spark, copy.as_uri()).verify()


def test_a_disk_that_is_full_leaves_the_old_state(backlog: Backlog, monkeypatch: pytest.MonkeyPatch) -> None:
    """At the copy of a segment, while it is unpacked, and where Spark writes: one error, the same command goes on."""
    secondary = backlog.secondary()

    def full(*_: object) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    for name in ("shutil.copyfile", "zstandard.ZstdDecompressor"):
        with monkeypatch.context() as patch:
            patch.setattr(f"update_process.replay.archive.files.{name}", full)
            with pytest.raises(DiskFullError):
                replay(secondary, [backlog.archive])
        assert last_seqno(secondary) == backlog.base_seqno
        assert not (secondary.path / "replay").exists()
    java = "Job aborted: Task 3 failed: java.io.IOException: No space left on device\n\tat java.base/sun.nio"
    assert isinstance(translated(RuntimeError(java), "staging", "/stage"), DiskFullError)
    assert replay(secondary, [backlog.archive]).seqno == archived_seqno(backlog)


def test_what_spark_says_is_one_error_of_ours() -> None:
    text = (
        "[STREAMING] Task failed: Traceback (most recent call last):\n  File x\n"
        "replicate.errors.GapError: GAP: transaction 7 should stand here [/j/1.journal]. Restore it\n\tat org.apache"
    )
    found = translated(RuntimeError(text), "staging", "/stage")
    assert isinstance(found, GapError)
    assert "transaction 7 should stand here" in str(found)
    for text, kind in (
        ("ParquetDecodingException: could not verify page integrity, CRC checksum verification failed", DamagedError),
        ("Job 3 cancelled: ExecutorLostFailure (executor 1 exited)", TryAgainError),
        ("[PATH_NOT_FOUND] Path does not exist: file:/a", JournalIOError),
    ):
        assert type(translated(RuntimeError(text), "staging", "/stage")) is kind
    with pytest.raises(KeyError), spark_work("staging", "/stage"):
        raise KeyError("our own bug stays one")


def test_rows_that_executors_have_written_elsewhere_are_missed(spark: Any, tmp_path: Path) -> None:
    """A stage that executors do not share looks empty to the driver, and nothing else would say so."""
    rows = spark.range(10)
    write_staged(rows, tmp_path / "here")
    assert len(list((tmp_path / "here").glob("*.parquet"))) == 2

    class Elsewhere(type(tmp_path)):  # type: ignore[misc]
        def as_uri(self) -> str:
            return (tmp_path / "elsewhere").as_uri()

    with pytest.raises(DamagedError, match="staged 10 rows, and 0 are here"):
        write_staged(rows, Elsewhere(tmp_path / "there"))


def test_files_on_any_file_system_of_hadoop(spark: Any, tmp_path: Path) -> None:
    local, hadoop = LocalFiles(tmp_path / "a"), HadoopFiles(spark, (tmp_path / "b").as_uri())
    source = tmp_path / "source"
    source.write_bytes(b"\0\xffcontent")
    for files in (local, hadoop):
        assert files.names("x") == []
        for data in (b"one", b"two\xff"):
            files.write("x/y.json", data)
        files.store(source, "x/z")
        files.store(source, "x/z")
        assert files.read("x/y.json") == b"two\xff"
        files.fetch("x/z", tmp_path / "back")
        assert (tmp_path / "back").read_bytes() == source.read_bytes()
        assert [name for name in files.names("x") if not name.startswith(".")] == ["y.json", "z"]
        files.sync("x")
        for attempt in (lambda: files.read("x/none"), lambda: files.fetch("x/none", tmp_path / "back")):  # noqa: B023
            with pytest.raises(NotFoundError):
                attempt()
    with pytest.raises(UsageError, match="no URI that Spark can read"):
        HadoopFiles(spark, "nosuch://there")
    with pytest.raises(UsageError, match="--engine spark"):
        open_files("s3a://bucket/archive")
    with pytest.raises(UsageError, match="names no host"):
        local_path("file://elsewhere/archive")
    assert archive_uri("/a b") == "file:///a%20b"
    assert local_path("file:/a%20b") == Path("/a b")


def test_a_run_that_was_killed_is_run_again(backlog: Backlog, spark: Any, tmp_path: Path) -> None:
    """What has no manifest is written again, whatever is left of it."""
    chain = Chain(backlog.pair.primary.journal_directory)
    archive = Archive(spark, (tmp_path / "archive").as_uri(), range_segments=2)
    shutil.copytree(backlog.pair.directory / "archive", tmp_path / "archive")
    newest = max((tmp_path / "archive" / "manifests").glob("*.json"))
    newest.unlink()
    first(tmp_path / "archive", f"changes/{newest.stem}/*.parquet").write_bytes(b"half")
    first(tmp_path / "archive", f"segments/{newest.stem}/*.zst").write_bytes(b"half")
    assert archive.add(chain).ranges == 1
    assert archive.add(chain).ranges == 0
    assert archive.verify()[-1].first_seqno == int(newest.stem[:20])


def test_mixed_up_archives_are_refused(backlog: Backlog, spark: Any, tmp_path: Path) -> None:
    other = Pair.create(tmp_path)
    with pytest.raises(WrongNetworkError):
        Archive(spark, backlog.archive).add(Chain(other.primary.journal_directory))
    copy = tmp_path / "archive"
    shutil.copytree(backlog.pair.directory / "archive", copy)
    manifests = sorted(copy.glob("manifests/*.json"))
    change(manifests[0], digests={"changes": "0" * 16})
    archive = Archive(spark, copy.as_uri())
    with pytest.raises(DamagedError, match="not what was archived"):
        archive.verify()
    manifests[0].unlink()
    (copy / "manifests" / f"{1:020d}-{2:020d}.json").write_bytes(b"")
    with pytest.raises(DamagedError, match="no manifest"):
        archive.ranges()
    (copy / "manifests" / f"{1:020d}-{2:020d}.json").unlink()
    made = json.loads(manifests[1].read_text())
    made["segments"] = [{**made["segments"][0], "first_seqno": 10**6, "last_seqno": 10**6}]
    beyond = copy / "manifests" / f"{10**6:020d}-{10**6:020d}.json"
    beyond.write_text(json.dumps({**made, "first_seqno": 10**6, "last_seqno": 10**6}))
    with pytest.raises(GapError, match=f"is followed by {10**6}"):
        archive.ranges()
