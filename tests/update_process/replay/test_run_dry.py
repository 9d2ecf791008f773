"""A dry run reads all that a replay would read, large transactions too, finds what it would, and writes nothing."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from replicate.errors import DamagedError, DivergedError, FrameDamaged, GapError
from replicate.journal.chain import Chain
from replicate.journal.reader import LargeTransaction
from replicate.journal.spool import PartsCheck
from tests.harness.pair import Pair, run
from tests.harness.replaying import assert_equal, replayed
from update_process.replay.apply import Progress
from update_process.replay.backlog import Journals
from update_process.replay.command import replay

ROWS = 1500


def large_that_creates(pair: Pair) -> int:
    """A transaction that is a segment of its own, and creates the table of its rows; its number."""
    connection = pair.connect()
    connection.execute("BEGIN")
    connection.execute("CREATE TABLE made (id INTEGER PRIMARY KEY, data BLOB)")
    connection.executemany("INSERT INTO made VALUES (?, ?)", [(n, b"x" * 1000) for n in range(ROWS)])
    connection.commit()
    last = connection.last_seqno
    connection.close()
    assert last is not None
    return last


def files(pair: Pair) -> dict[str, tuple[int, int]]:
    """Everything of the secondary that lasts, with its size and time."""
    found = {}
    for path in (pair.secondary.journal_directory, pair.secondary.conflict_directory, pair.secondary.path / "regions"):
        for one in path.rglob("*"):
            seen = one.stat()
            found[str(one)] = (seen.st_size, seen.st_mtime_ns)
    return found


def test_a_large_transaction_that_creates_its_table_is_read(pair: Pair) -> None:
    run(pair, "UPDATE account SET balance = 5")
    large_that_creates(pair)
    last = run(pair, "UPDATE made SET data = 'y' WHERE id = 7", "DELETE FROM made WHERE id = 8")
    with pair.session() as session:  # it opens its own journal, which a first look may make
        before = session.position
    was = files(pair)
    told: list[Progress] = []
    done = replayed(pair, dry_run=True, told=told.append)
    assert (done.seqno, done.alone, done.pieces, done.changes, done.keys) == (last, 1, 2, 5, 5)
    parts = [one for one in told if one.what == "reading parts"]
    assert [one.done for one in parts] == list(range(1, parts[-1].whole + 1))
    assert parts[-1].whole > 4
    assert files(pair) == was
    with pair.session() as session:
        assert session.position == before
    assert replayed(pair).seqno == last
    assert_equal(pair)


@pytest.mark.parametrize("part", [0, -1])
def test_damage_in_a_part_is_found(pair: Pair, tmp_path: Path, part: int) -> None:
    seqno = large_that_creates(pair)
    run(pair, "UPDATE made SET data = 'y' WHERE id = 7")
    copy = tmp_path / "copy"
    shutil.copytree(pair.primary.journal_directory, copy)
    segment = Path(Chain(copy).path_of(seqno))
    data = segment.read_bytes()
    at = data.index(b"x" * 900) if part == 0 else data.rindex(b"x" * 900)
    segment.write_bytes(data[:at] + b"z" + data[at + 1 :])
    before = pair.last_seqno(pair.secondary)
    with pytest.raises(FrameDamaged) as caught:
        replay(pair.secondary, [copy], dry_run=True)
    assert caught.value.where.startswith(str(segment))
    with pytest.raises(FrameDamaged):  # as the replay itself says
        replay(pair.secondary, [copy])
    assert pair.last_seqno(pair.secondary) == before


def test_parts_are_checked_as_a_spool_checks_them(pair: Pair, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    seqno = large_that_creates(pair)
    run(pair, "UPDATE account SET balance = 1")
    journals = Journals([pair.primary.path], pair.primary.content.network)
    (found,) = journals.read(seqno, seqno)
    assert isinstance(found, LargeTransaction)
    parts = list(found.parts())
    (tmp_path / "empty").mkdir()
    monkeypatch.chdir(tmp_path / "empty")  # whatever it wrote would be here
    check = PartsCheck()
    with pytest.raises(DamagedError):
        check.write_frame(parts[1])
    for number, one in enumerate(parts):
        check.write_frame(one)
        assert check.part_count == number + 1
        with pytest.raises(GapError):
            check.write_frame(one)
    for wrong in ((len(parts) + 1, found.payload_bytes), (len(parts), found.payload_bytes - 1)):
        with pytest.raises(GapError):
            check.finish_received(*wrong, found.last_part_chain)
    with pytest.raises(DivergedError):
        check.finish_received(len(parts), found.payload_bytes, found.last_part_chain ^ 1)
    assert check.finish_received(len(parts), found.payload_bytes, found.last_part_chain).token == found.token
    check.abort()
    with pytest.raises(DamagedError):
        PartsCheck().write_frame(parts[0][:-1] + b"\0\0")
    assert not list((tmp_path / "empty").iterdir())
