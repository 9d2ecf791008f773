"""One region in recovery: a transaction is there as a whole or not at all, and what is committed in `synced` is on the
disk."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from replicate.errors import TryAgainError
from replicate.limits import PARTITION_STREAM, RING_SLOTS
from replicate.region.protocol import ScrRow
from replicate.region.sqlite.recovering import MendedFile
from tests.harness.instances import insert, make_primary, session_of

COMMITS = 5
SCR = ScrRow(1, PARTITION_STREAM, 90, 12, 13, 90)


@pytest.fixture
def region(tmp_path: Path) -> Iterator[MendedFile]:
    instance = make_primary(tmp_path / "p")
    with session_of(instance) as session:
        for number in range(COMMITS):
            insert(session, number)
    entry = instance.region("main")
    with closing(MendedFile(entry.path, region=entry.uuid)) as made:
        yield made


def test_a_transaction_that_fails_leaves_nothing(region: MendedFile) -> None:
    before = region.seqno(), region.ring(), region.checkpoint()

    def fail() -> None:
        with region.transaction():
            region.write_slot(region.seqno() + 1, b"frame")
            region.move_checkpoint([SCR], applied_from=90)
            raise TryAgainError("no")

    with pytest.raises(TryAgainError):
        fail()
    assert (region.seqno(), region.ring(), region.checkpoint()) == before
    with region.transaction():
        region.move_checkpoint([SCR], applied_from=90)
    assert region.checkpoint() == [SCR]


def test_what_is_committed_in_synced_is_synced_and_what_comes_after_is_not(region: MendedFile) -> None:
    with region.synced():
        assert region.connection.pragma("synchronous") == 2
    assert region.connection.pragma("synchronous") == 1


@pytest.mark.parametrize("reaches", [True, False])
def test_a_ring_that_is_cut_holds_the_last_number_only_if_the_region_does(region: MendedFile, reaches: bool) -> None:
    last = region.seqno()
    end = last - 2
    with region.transaction():
        region.write_slot(end + RING_SLOTS, b"in the slot of the last one that stays")
        region.cut_ring(end, reaches=reaches)
    assert region.seqno() == (end if reaches else end - 1)
    assert [slot.seqno for slot in region.ring()][-1] == region.seqno()


def test_what_it_lacks_nothing_below_is_noted_and_taken_back(region: MendedFile) -> None:
    held = region.seqno()
    assert region.may_lack_from() == region.held_below() == held + 1
    region.note_held(held + 50)
    assert region.may_lack_from() == region.held_below() == held + 50
    region.forget_held(held + 9)
    assert region.held_below() == held + 10


def test_taking_back_says_at_each_piece_how_far_it_is(region: MendedFile) -> None:
    with region.transaction():
        region.note_taken_back(95, [SCR], last=False)
    assert (region.seqno(), region.checkpoint()) == (95, [SCR])
    with region.transaction():
        region.note_taken_back(90, [SCR], last=True)
    assert region.seqno() == 90
