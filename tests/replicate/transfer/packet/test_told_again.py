"""The file of a large transaction in other words: made once, the same bytes each time, and nothing of it stays."""

from __future__ import annotations

import errno
from contextlib import closing
from pathlib import Path

import pytest

from replicate.admin.partitions import assign
from replicate.errors import DiskFullError
from replicate.filters.selection import PartitionSelection, changes_in
from replicate.journal.chain import Chain
from replicate.journal.reader import ChainReader, LargeTransaction, large_transaction
from replicate.journal.record import read_head
from replicate.journal.segment import open_segment
from replicate.model.transaction import Kind
from replicate.system import failpoint
from replicate.transfer.packet import told_again
from replicate.transfer.packet.packet_changes import Chosen, LargeTold
from replicate.transfer.packet.told_again import ToldSegments
from tests.harness.pair import Pair

ROWS = 2500


@pytest.fixture
def found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> LargeTransaction:
    """A large transaction over a table that goes, and one that never does."""
    monkeypatch.setenv("REPLICATE_SHM_DIR", str(tmp_path / "shm"))
    made = Pair.create(tmp_path, "CREATE TABLE goes (a, b); CREATE TABLE stays (a, b)")
    assign(made.primary, "NONE", ["stays"])
    with closing(made.connect()) as connection:
        for table in ("stays", "goes"):
            rows = ((number, bytes(900)) for number in range(ROWS))
            connection.executemany(f"INSERT INTO {table} VALUES (?, ?)", rows)
        connection.commit()
    with closing(ChainReader(Chain(made.primary.journal_directory))) as reader:
        while not isinstance(one := reader.read(1 << 20, made.last_seqno()), LargeTransaction):
            assert one is not None
    return one


def told(found: LargeTransaction) -> LargeTold:
    chain = Chain(Path(found.path).parent)
    with closing(ChainReader(chain)) as reader:
        definitions = reader.catalogue_at(found.seqno).newest().definitions
    made = Chosen(PartitionSelection(None, definitions)).large(found)
    assert isinstance(made, LargeTold)
    return made


def test_it_is_a_segment_that_has_what_goes(found: LargeTransaction, tmp_path: Path) -> None:
    path = ToldSegments(tmp_path / "replay" / "export").path_of(told(found), found.seqno, found.path)
    with open_segment(path) as segment, open_segment(found.path) as ours:
        made = large_transaction(segment)
        assert segment.header.first_seqno == found.seqno
        assert segment.read_catalogue()[0] == ours.read_catalogue()[0]
    one, other = read_head(made.commit_frame), read_head(found.commit_frame)
    assert (one.kind, other.kind) == (Kind.RESTATED_LARGE, Kind.LARGE)
    assert (one.seqno, one.origin, one.origin_seqno, one.chain, one.csn) == (
        other.seqno,
        other.origin,
        other.origin_seqno,
        other.chain,
        other.csn,
    )
    assert [change[3][-2] for change in changes_in(made.parts())] == list(range(ROWS))


def test_the_same_words_are_the_same_bytes_and_made_once(
    found: LargeTransaction, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    here, there = ToldSegments(tmp_path / "replay" / "export"), ToldSegments(tmp_path / "other" / "export")
    path = here.path_of(told(found), found.seqno, found.path)
    again = there.path_of(told(found), found.seqno, found.path)
    assert Path(path).read_bytes() == Path(again).read_bytes()
    learned: list[bool] = []
    known = told(found)
    monkeypatch.setattr(told_again, "Spool", None)  # nothing is made
    assert here.path_of(LargeTold(known.token, known.items, lambda: learned.append(True)), found.seqno, path) == path
    assert learned == [True]
    here.clear()
    there.clear()
    assert not (tmp_path / "replay").exists()
    assert not (tmp_path / "other").exists()


def test_a_full_disk_is_named_and_nothing_counts_as_made(
    found: LargeTransaction, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    here = ToldSegments(tmp_path / "replay" / "export")

    def full(*_: object) -> None:
        raise OSError(errno.ENOSPC, "no space")

    with monkeypatch.context() as patch:
        patch.setattr("replicate.journal.spool.write_all", full)
        with pytest.raises(DiskFullError):
            here.path_of(told(found), found.seqno, found.path)
    assert not [one for one in (tmp_path / "replay").rglob("*") if one.is_file()]
    path = here.path_of(told(found), found.seqno, found.path)
    with open_segment(path) as segment:
        assert large_transaction(segment).seqno == found.seqno


def test_what_a_killed_one_has_left_is_in_nobodys_way(found: LargeTransaction, tmp_path: Path) -> None:
    here = ToldSegments(tmp_path / "replay" / "export")
    failpoint.arm("adopt.renamed:1:raise")
    try:
        with pytest.raises(failpoint.FailpointError):
            here.path_of(told(found), found.seqno, found.path)
    finally:
        failpoint.disarm()
    (tmp_path / "replay" / "export" / "left").mkdir()
    (tmp_path / "replay" / "stage").mkdir()
    here.clear()
    assert [one.name for one in (tmp_path / "replay").iterdir()] == ["stage"], "a replay has something there"
