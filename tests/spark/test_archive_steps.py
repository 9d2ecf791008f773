"""An archive in the making: killed between any two of its steps, without room, beside another run, and for a journal
that is not the one it was begun for. Then the bare command, and what may be pruned by its word.
"""

from __future__ import annotations

import dataclasses
import json
import os
import re
import shutil
from collections.abc import Iterator
from contextlib import nullcontext
from pathlib import Path
from random import Random
from typing import Any

import pytest
from msgspec.structs import replace

from replicate.cli.main import run
from replicate.compare.compare import compare
from replicate.errors import (
    BusyError,
    DamagedError,
    DiskFullError,
    DivergedError,
    JournalIOError,
    NotFoundError,
    UsageError,
)
from replicate.instance.archive_mark import archived_seqno
from replicate.instance.instance import Instance
from replicate.journal.chain import Chain
from replicate.journal.header import SegmentHeader
from replicate.journal.segment import create_segment
from replicate.system import failpoint
from replicate.system.failpoint import FailpointError
from tests.harness.backlog import Backlog, write_large
from tests.harness.instances import ROOT, last_seqno
from tests.harness.machine_tools import enlarge, small_disk
from tests.harness.pair import Pair
from update_process.replay import command
from update_process.replay.archive.archive import Archive
from update_process.replay.archive.files import open_files
from update_process.replay.archive.manifest import read_ranges
from update_process.replay.command import archive_instance, replay

pytestmark = pytest.mark.slow

STEPS = (
    *("archive.rows:1", "archive.copied:1", "archive.before_rename:1"),
    *("archive.before_manifest:1", "archive.manifest:1", "archive.before_note:1"),
)

SAME = (
    *("network", "instance", "incarnation", "first_seqno", "origin_seqno", "chain"),
    *("previous_first_seqno", "previous_last_seqno", "previous_end_offset", "previous_check"),
)


@pytest.fixture
def primary(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Pair]:
    """A small one, its archive configured."""
    monkeypatch.setenv("REPLICATE_SHM_DIR", str(tmp_path / "shm"))
    made = Pair.create(tmp_path, "CREATE TABLE loose (a, b)")
    (made.primary.path / "replicate.toml").write_text(f"[journal]\narchive = '{tmp_path / 'archive'}'\n")
    made.primary.unregister_peer("west")
    write_large(made)
    yield dataclasses.replace(made, primary=Instance.open(made.primary.path))
    failpoint.disarm()


def silent(_step: object) -> None:
    pass


def test_every_step_is_known() -> None:
    found: set[str] = set()
    for path in (ROOT / "update_process" / "replay").rglob("*.py"):
        found.update(re.findall(r'\bhit\("(archive\.\w+)', path.read_text()))
    assert found == {step.partition(":")[0] for step in STEPS}


def test_killed_at_any_step_it_is_run_again(primary: Pair, spark: Any, tmp_path: Path) -> None:
    instance, sessions = primary.primary, lambda: nullcontext(spark)
    pruned = Chain(instance.journal_directory).first_seqnos()
    for step in STEPS:
        failpoint.arm(f"{step}:raise")
        with pytest.raises(FailpointError):
            archive_instance(instance, None, spark=sessions, told=silent)
        failpoint.disarm()
        # What has no manifest is not there, and nobody has been told of anything.
        found = read_ranges(open_files((tmp_path / "archive").as_uri()))
        assert len(found) == (step.startswith(("archive.manifest", "archive.before_note")))
        assert archived_seqno(instance) == 0
    done = archive_instance(instance, None, spark=sessions, verify=True, told=silent)
    assert done.last_seqno == archived_seqno(instance) == pruned[-1] - 1
    assert not list((tmp_path / "archive").rglob("*.part"))


def test_the_bare_command_tells_what_may_be_pruned(
    primary: Pair, spark: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(command, "spark_sessions", lambda _master: lambda: nullcontext(spark))
    instance = primary.primary
    for _ in range(3):
        write_large(primary)
    with primary.connect() as connection:
        connection.execute("INSERT INTO loose VALUES (1, 1)")
    connection.close()

    def prune() -> Any:
        assert run(["-i", str(instance.path), "journal", "prune", "--json"]) == 0
        return json.loads(capsys.readouterr().out)

    before = Chain(instance.journal_directory).first_seqnos()
    prune()
    assert Chain(instance.journal_directory).first_seqnos() == before  # nothing is archived
    assert run(["-i", str(instance.path), "archive"]) == 0
    out, err = capsys.readouterr()
    assert (out.splitlines()[-1], err) == (f"the archive reaches up to transaction {before[-1] - 1}", "")
    prune()
    left = Chain(instance.journal_directory).first_seqnos()
    assert left == before[-2:]
    assert run(["-i", str(instance.path), "archive"]) == 0
    assert "nothing to archive" in capsys.readouterr().out
    # One that is not the configured one tells nobody anything.
    assert run(["-i", str(instance.path), "archive", str(tmp_path / "other")]) == 0
    assert archived_seqno(instance) == before[-1] - 1


def test_a_journal_is_not_archived_into_itself(primary: Pair, spark: Any, tmp_path: Path) -> None:
    directory = primary.primary.journal_directory
    held = sorted(path.name for path in directory.iterdir())
    (tmp_path / "link").symlink_to(directory)
    for uri in (str(directory), directory.as_uri(), str(tmp_path / "link")):
        with pytest.raises(UsageError, match="this is the journal itself"):
            archive_instance(primary.primary, uri, spark=lambda: nullcontext(spark), told=silent)
    assert sorted(path.name for path in directory.iterdir()) == held


def test_an_archive_that_is_not_mounted_is_not_begun_again(primary: Pair, spark: Any, tmp_path: Path) -> None:
    """Else the segments after it would go into the mount point, and then from the journal."""
    instance, sessions, mounted = primary.primary, lambda: nullcontext(spark), tmp_path / "archive"
    reached = archive_instance(instance, None, spark=sessions, told=silent).last_seqno
    mounted.rename(tmp_path / "elsewhere")
    write_large(primary)
    for _ in range(2):
        with pytest.raises(NotFoundError, match=f"where everything up to transaction {reached} was") as caught:
            archive_instance(instance, None, spark=sessions, told=silent)
        assert "journal.archive" in caught.value.do
        assert archived_seqno(instance) == reached
        assert not mounted.exists() or not any(mounted.iterdir())
        mounted.mkdir(exist_ok=True)
    # Any other place may begin where the journal does; so may this one when it is back, where it ended.
    assert archive_instance(instance, str(tmp_path / "new"), spark=sessions, told=silent).last_seqno > reached
    mounted.rmdir()
    (tmp_path / "elsewhere").rename(mounted)
    assert archive_instance(instance, None, spark=sessions, told=silent).last_seqno > reached


@pytest.mark.skipif(os.geteuid() != 0, reason="mounts a small tmpfs: needs root")
def test_a_real_full_disk_of_the_archive(primary: Pair, spark: Any, tmp_path: Path) -> None:
    """Where Spark writes rows, and where segments are copied to; with room again the same run finishes."""
    chain, dice = Chain(primary.primary.journal_directory), Random(1)
    with primary.connect() as connection:
        connection.executemany("INSERT INTO loose VALUES (1, ?)", [(dice.randbytes(1000),) for _ in range(1000)])
        connection.commit()
        connection.execute("INSERT INTO loose VALUES (2, 2)")
    connection.close()
    for size in ("256k", "1500k"):
        with small_disk(tmp_path / size, size):
            archive = Archive(spark, (tmp_path / size).as_uri())
            with pytest.raises(DiskFullError):
                archive.add(chain)
            assert archive.ranges() == []
            enlarge(tmp_path / size, "50m")
            assert archive.add(chain).ranges == 1
            archive.verify()


@pytest.mark.skipif(os.geteuid() != 0, reason="mounts a small tmpfs: needs root")
@pytest.mark.parametrize(("engine", "size"), [("local", "64k"), ("spark", "12k")])
def test_a_real_full_disk_of_the_stage(backlog: Backlog, spark: Any, engine: str, size: str) -> None:
    """The stage is a volume of its own, too small for what is unpacked, or for the net change."""
    secondary = backlog.secondary()
    by_spark = engine == "spark"
    journal = backlog.pair.primary.path if by_spark else backlog.archive
    sessions: Any = (lambda: nullcontext(spark)) if by_spark else None
    with small_disk(secondary.path / "replay", size):
        with pytest.raises(DiskFullError, match="Free space"):
            replay(secondary, [journal], spark=sessions)
        assert last_seqno(secondary) == backlog.base_seqno
        assert not list((secondary.path / "replay").iterdir())
        enlarge(secondary.path / "replay", "50m")
        replay(secondary, [journal], spark=sessions)
    replay(secondary, [backlog.pair.primary.path])
    assert compare(backlog.pair.primary, secondary, timeout_s=5).equal


def test_where_nobody_can_write_and_two_at_once(primary: Pair, spark: Any, tmp_path: Path) -> None:
    chain = Chain(primary.primary.journal_directory)
    (tmp_path / "file").write_text("")
    with pytest.raises(JournalIOError, match="the archive cannot be made: Not a directory"):
        Archive(spark, (tmp_path / "file" / "archive").as_uri()).add(chain)
    files = open_files((tmp_path / "archive").as_uri())
    with files.locked(), pytest.raises(BusyError, match="another `replicate archive` is writing here"):
        Archive(spark, files.uri).add(chain)
    assert read_ranges(files) == []


def test_a_journal_that_does_not_go_on_where_the_archive_ends(primary: Pair, spark: Any, tmp_path: Path) -> None:
    """A copy that was restored is behind the archive, or has gone another way."""
    older, other = tmp_path / "older", tmp_path / "other"
    shutil.copytree(primary.primary.journal_directory, older)
    write_large(primary)
    write_large(primary)
    archive = Archive(spark, (tmp_path / "archive").as_uri())
    shutil.copytree(primary.primary.journal_directory, other)
    done = archive.add(Chain(primary.primary.journal_directory))
    assert done.last_seqno > Chain(older).first_seqnos()[-1]
    newest = Path(Chain(other).path_of(done.last_seqno + 1))
    header = Chain(other).segment(done.last_seqno + 1).header
    with open(newest, "r+b") as file:
        file.write(replace(header, previous_check=header.previous_check ^ 1).pack())
    another_end = tmp_path / "another_end"  # the same head, after other transactions
    shutil.copytree(primary.primary.journal_directory, another_end)
    with Chain(another_end).open(header.first_seqno) as segment:
        catalogue = segment.read_catalogue()[0]
    chains = {origin: (number, chain ^ 1) for origin, (number, chain) in catalogue.chains.items()}
    os.unlink(another_end / newest.name)
    plain = SegmentHeader(**{name: getattr(header, name) for name in SAME}, created_wall_ns=0)
    create_segment(another_end, plain, catalogue.at(catalogue.vector, chains)).close()
    for journal in (older, other, another_end):
        with pytest.raises(DivergedError, match="the journal does not go on from there"):
            archive.add(Chain(journal))
    assert archive.add(Chain(primary.primary.journal_directory)).ranges == 0


def test_rows_of_another_archive_are_refused(backlog: Backlog, spark: Any, tmp_path: Path) -> None:
    """Whole, as many, and of the very same history: but not those that this manifest speaks of."""
    copy = tmp_path / "archive"
    shutil.copytree(backlog.pair.directory / "archive", copy)
    name = read_ranges(open_files(backlog.archive))[0].name
    for path in (copy / "changes" / name).glob("*.parquet"):
        path.rename(path.with_name(path.name.replace("part-", "part-9")))
    secondary = backlog.secondary()
    with pytest.raises(DamagedError, match="are not the files that were archived"):
        Archive(spark, copy.as_uri()).verify()
    with pytest.raises(DamagedError, match="are not the files that were archived"):
        replay(secondary, [copy], spark=lambda: nullcontext(spark))
    assert last_seqno(secondary) == backlog.base_seqno
    assert replay(secondary, [copy]).seqno > backlog.base_seqno


def test_a_replay_that_ends_while_spark_stages_is_run_again(backlog: Backlog, spark: Any) -> None:
    secondary, sessions = backlog.secondary(), lambda: nullcontext(spark)
    failpoint.arm("replay.staged:2:raise")
    try:
        with pytest.raises(FailpointError):
            replay(secondary, [backlog.archive], spark=sessions)
    finally:
        failpoint.disarm()
    stands = last_seqno(secondary)
    assert stands > backlog.base_seqno  # the first piece is whole, and of the second there is nothing
    assert not (secondary.path / "replay").exists()
    assert replay(secondary, [backlog.pair.primary.path]).first_seqno == stands + 1
    assert compare(backlog.pair.primary, secondary, timeout_s=5).equal
