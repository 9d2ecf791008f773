"""A journal that nobody has open: what its look says, beside what its next opening does."""

from __future__ import annotations

import random
from pathlib import Path

import pytest

from replicate.errors import ReplicateError
from replicate.instance.instance import Instance
from replicate.status.journal import ClosedJournal, look_at_closed_journal
from tests.harness.instances import (
    begin_large,
    insert,
    lose_pool,
    make_primary,
    newest_segment,
    read_journal,
    restore_region,
    save_region,
    session_of,
)  # fmt: skip

pytestmark = pytest.mark.usefixtures("shared_memory")


def look(instance: Instance, region_seqno: int = 0) -> ClosedJournal:
    return look_at_closed_journal(Instance.open(instance.path), region_seqno)


def opens(instance: Instance) -> int | None:
    """The last transaction after the next opening, as after a boot; None: it is refused."""
    lose_pool(instance)
    try:
        with session_of(Instance.open(instance.path)):
            return read_journal(instance).last_seqno
    except ReplicateError:
        return None


@pytest.mark.parametrize("policy", ["durable", "off"])
def test_whatever_is_wrong_with_the_newest_segment_it_says_what_the_next_opening_meets(
    tmp_path: Path, policy: str
) -> None:
    """A byte turned, or everything after a place lost: it calls damage what is refused, and nothing else."""
    instance = make_primary(tmp_path / "alpha", durability=policy)
    with session_of(instance) as session:
        for number in range(8):
            insert(session, number, "x" * 50)
    path, region = newest_segment(instance), instance.regions[0].path
    whole, end = path.read_bytes(), path.read_bytes().rstrip(b"\0")
    others = {one: one.read_bytes() for one in instance.journal_directory.iterdir() if one != path and one.is_file()}
    save_region(region, tmp_path / "aside")
    dice, met = random.Random(42), set[bool]()
    for _ in range(16):
        at = dice.randrange(len(end) + 200)
        harmed = bytearray(whole)
        if dice.random() < 0.6:
            harmed[at] ^= 1 << dice.randrange(8)
        else:
            harmed[at:] = bytes(len(whole) - at)
        path.write_bytes(harmed)
        said = look(instance, 10)
        last = opens(instance)
        assert (said.problem == "") == (last is not None), (at, said)
        if last is not None:
            assert said.last_seqno is not None
            assert said.last_seqno <= last <= 10, "what its end lacks, the region's ring gives back"
        else:
            assert "replicate -i INSTANCE journal verify" in said.do
        met.add(last is None)
        for one in instance.journal_directory.iterdir():
            if one.is_file():
                one.unlink()
        path.write_bytes(whole)
        for one, content in others.items():
            one.write_bytes(content)
        restore_region(region, tmp_path / "aside")
    assert True in met
    assert policy == "durable" or False in met


def test_a_journal_without_a_file_is_gone_only_if_a_region_has_something_of_it(tmp_path: Path) -> None:
    instance = make_primary(tmp_path / "alpha")
    for one in instance.journal_directory.glob("*.journal"):
        one.unlink()
    assert look(instance) == ClosedJournal(0, 0)
    gone = look(instance, 7)
    assert "the journal is gone, but a region holds transactions up to 7" in gone.problem
    assert (gone.last_seqno, gone.last_durable_seqno) == (None, None)
    assert "restore the journal directory" in gone.do


def test_a_large_transaction_at_the_end_is_counted(tmp_path: Path) -> None:
    instance = make_primary(tmp_path / "alpha")
    with session_of(instance) as session:
        insert(session, 1)
        session.commit(begin_large(session, 2, 3))
    said = look(instance)
    assert said.problem == ""
    assert said.last_seqno == read_journal(instance).last_seqno
    assert said.last_commit_wall_ns > 1_600_000_000 * 10**9
