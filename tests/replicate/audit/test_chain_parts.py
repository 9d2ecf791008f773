"""audit/chain_parts.py: a directory that lacks segments in its middle, as the parts that are whole."""

from __future__ import annotations

import os
import shutil
from contextlib import closing
from pathlib import Path

import pytest

from replicate.audit.chain_parts import UnpackedPart, part_with, parts_of
from replicate.errors import JournalMissingError
from replicate.instance.instance import Instance
from replicate.journal.chain import Chain
from replicate.journal.reader import ChainReader
from replicate.journal.record import FrameBatch
from tests.harness.instances import insert, make_primary, session_of

SEGMENTS = 5


@pytest.fixture
def directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A copy of a journal of at least so many segments."""
    monkeypatch.setenv("REPLICATE_SHM_DIR", str(tmp_path))
    instance: Instance = make_primary(tmp_path / "one", segment_bytes=2**20)
    with session_of(instance) as session:
        row = 0
        while len(Chain(instance.journal_directory).first_seqnos()) < SEGMENTS:
            row += 1
            insert(session, row, "x" * 200_000)
    copy = tmp_path / "copy"
    shutil.copytree(instance.journal_directory, copy)
    return copy


def bounds(directory: Path) -> list[list[int]]:
    return [part.first_seqnos() for part in parts_of(directory)]


def numbers(chain: Chain, first: int, last: int) -> list[int]:
    found: list[int] = []
    with closing(ChainReader(chain, first)) as reader:
        while (batch := reader.read(2**20, last)) is not None:
            assert isinstance(batch, FrameBatch)
            found.extend(range(batch.first_seqno, batch.last_seqno + 1))
    return found


def test_parts_follow_the_holes_and_each_is_read_to_its_end(directory: Path) -> None:
    firsts = Chain(directory).first_seqnos()
    assert bounds(directory) == [firsts]
    assert parts_of(directory)[0].is_newest
    for at in (3, 1):
        Path(Chain(directory).path_of(firsts[at])).unlink()
    assert bounds(directory) == [firsts[:1], firsts[2:3], firsts[4:]]
    assert [part.is_newest for part in parts_of(directory)] == [False, False, True]
    with pytest.raises(JournalMissingError):  # the whole of it is read by nobody, not even where it is whole
        numbers(Chain(directory), firsts[2], firsts[3] - 1)
    for at, first in enumerate(firsts[:4:2]):
        last = firsts[2 * at + 1] - 1
        part = parts_of(directory)[at]
        assert part.scan_last()[1].last_seqno == last
        assert numbers(part, first, last) == list(range(first, last + 1))


def test_a_number_has_its_part(directory: Path) -> None:
    firsts = Chain(directory).first_seqnos()
    Path(Chain(directory).path_of(firsts[1])).unlink()
    for seqno, wanted in ((1, firsts[:1]), (firsts[2], firsts[2:]), (firsts[2] - 1, firsts[:1]), (10**9, firsts[2:])):
        assert part_with(directory, seqno).first_seqnos() == wanted
    Path(Chain(directory).path_of(firsts[0])).unlink()
    assert part_with(directory, 1).first_seqnos() == firsts[2:]


def test_damage_makes_no_hole_and_an_empty_directory_no_part(directory: Path, tmp_path: Path) -> None:
    firsts = Chain(directory).first_seqnos()
    path = Path(Chain(directory).path_of(firsts[2]))
    path.write_bytes(b"\0" * path.stat().st_size)
    assert bounds(directory) == [firsts]
    (tmp_path / "empty").mkdir()
    assert parts_of(tmp_path / "empty") == []
    assert part_with(tmp_path / "empty", 1).first_seqnos() == []


def test_a_directory_that_nobody_writes_to_is_listed_once(directory: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    listed: list[str] = []
    really = os.listdir
    monkeypatch.setattr(os, "listdir", lambda path: [listed.append(path), really(path)][1])
    (whole,) = parts_of(directory)
    last = whole.scan_last()[1].last_seqno
    frames = []
    for chain in (UnpackedPart(directory), whole):
        listed.clear()
        with closing(ChainReader(chain, 1)) as reader:
            found = []
            while (batch := reader.read(250_000, last)) is not None:
                assert isinstance(batch, FrameBatch)
                found.append(batch)
        frames.append(found)
        assert bool(listed) is (chain is whole)
    assert frames[0] == frames[1]
