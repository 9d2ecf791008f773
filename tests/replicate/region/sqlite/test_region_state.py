"""One look at a region: how far it is, and one named error for whatever is wrong."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path

import apsw
import pytest

from replicate.errors import BusyError, NotFoundError, RegionDamagedError, ReplicateError, SchemaChangedError
from replicate.region.sqlite.open import open_region
from replicate.region.sqlite.region_state import Look, last_seqno_of, look_at
from tests.harness.regions import NETWORK, REGION, make_database, make_region


@pytest.fixture
def path(tmp_path: Path) -> Path:
    make_region(tmp_path / "main.db", "CREATE TABLE t (a)")
    return tmp_path / "main.db"


@pytest.fixture
def writer(path: Path) -> Iterator[apsw.Connection]:
    """It stands at transaction 7."""
    made = open_region(path, applier=True)
    made.execute("INSERT INTO _replicate_scr VALUES (1, 0, 7, 0, 0, 7)")
    yield made
    made.close()


def look(path: Path, region: bytes = REGION, network: bytes = NETWORK) -> Look:
    return look_at(path, region=region, network=network, check=lambda _: None, changed_do="Seed it again")


@contextmanager
def another_process(path: Path, text: str) -> Iterator[int]:
    """It has run `text`, and keeps what it holds for the block. (SQLite's locks are no obstacle to their process.)"""
    program = (
        "import sys, apsw; made = apsw.Connection(sys.argv[1]); made.execute(sys.argv[2]).fetchall(); "
        "print(flush=True); input()"
    )
    with subprocess.Popen(
        [sys.executable, "-c", program, str(path), text], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as child:
        assert child.stdout is not None
        child.stdout.readline()
        try:
            yield child.pid
        finally:
            child.kill()


def test_how_far_it_is(path: Path, writer: apsw.Connection) -> None:
    found = look(path)
    assert (found.last_seqno, found.hindrances) == (7, ())
    assert found.wal_bytes == os.path.getsize(f"{path}-wal") > 0
    assert last_seqno_of(path, region=REGION) == 7


def test_a_writer_keeps_nobody_from_looking(path: Path, writer: apsw.Connection) -> None:
    writer.execute("BEGIN IMMEDIATE; UPDATE _replicate_scr SET seqno = 8")
    assert look(path).last_seqno == 7
    writer.execute("COMMIT")
    assert look(path).last_seqno == 8


def test_one_that_is_locked_as_a_whole(path: Path) -> None:
    with another_process(path, "PRAGMA locking_mode = EXCLUSIVE; BEGIN EXCLUSIVE; SELECT count(*) FROM t"):
        with pytest.raises(BusyError):
            look(path)
    assert look(path).last_seqno == 0


def test_a_schema_that_somebody_has_changed(path: Path) -> None:
    with closing(apsw.Connection(str(path))) as other:
        other.execute("ALTER TABLE t ADD b")
    with pytest.raises(SchemaChangedError, match="another client changed the schema") as caught:
        look(path)
    assert "Seed it again" in caught.value.do


def test_what_is_not_that_region(path: Path, tmp_path: Path) -> None:
    make_database(tmp_path / "plain.db", "CREATE TABLE t (a)")
    (tmp_path / "torn.db").write_bytes(b"no database at all, of no kind" * 100)
    for other, region, network in (
        (path, b"S" * 16, NETWORK),
        (path, REGION, b"M" * 16),
        (tmp_path / "plain.db", REGION, NETWORK),
    ):
        with pytest.raises(ReplicateError):
            look(other, region, network)
    with pytest.raises(RegionDamagedError):
        look(tmp_path / "torn.db")
    with pytest.raises(NotFoundError):
        look(tmp_path / "none.db")
    for other in ("plain.db", "torn.db", "none.db"):
        assert last_seqno_of(tmp_path / other, region=REGION) is None
    assert last_seqno_of(path, region=b"S" * 16) is None
    assert not (tmp_path / "none.db").exists()


def test_what_the_check_finds_is_raised(path: Path) -> None:
    def check(_: object) -> None:
        raise RegionDamagedError("an old copy", where="there")

    before = len(os.listdir("/proc/self/fd"))
    with pytest.raises(RegionDamagedError, match="an old copy"):
        look_at(path, region=REGION, network=NETWORK, check=check, changed_do="")
    assert len(os.listdir("/proc/self/fd")) == before
