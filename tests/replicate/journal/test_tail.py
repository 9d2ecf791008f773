"""The verdict over a journal's end, rule by rule (faults 38, 39, 40)."""

from __future__ import annotations

import pytest

from replicate.journal.tail import Clean, Damage, Damaged, FrameAfter, ScanResult, Torn, classify_tail

BAD = Damage(500, 11, "a frame's check does not match its content")


def _scan(damaged: Damage | None = None, after: FrameAfter | None = None, last_mark: int = 0) -> ScanResult:
    return ScanResult(500, 10, 10, {}, last_mark, damaged=damaged, after=after)


def test_zeros_are_the_normal_end() -> None:
    assert classify_tail(_scan(), last_durable_seqno=10) == Clean(500, 11)


def test_a_half_written_last_frame_is_torn() -> None:
    verdict = classify_tail(_scan(BAD, last_mark=9), last_durable_seqno=10, region_seqno_max=10, acknowledged_max=10)
    assert verdict == Torn(500, 11)


@pytest.mark.parametrize("witness", ["last_durable_seqno", "region_seqno_max", "acknowledged_max"])
def test_a_bad_frame_that_was_known_elsewhere_is_damage(witness: str) -> None:
    for seqno in (11, 12):
        verdict = classify_tail(_scan(BAD), **{"last_durable_seqno": 0, witness: seqno})
        assert isinstance(verdict, Damaged)
        assert verdict.seqno == 11
        assert str(seqno) in verdict.reason


def test_a_bad_frame_below_a_mark_is_damage() -> None:
    assert isinstance(classify_tail(_scan(BAD, last_mark=11), last_durable_seqno=0), Damaged)
    after = _scan(BAD, FrameAfter(900, 13, 11))
    assert "mark of another frame" in getattr(classify_tail(after, last_durable_seqno=0), "reason", "")


def test_a_good_frame_after_a_bad_one_is_damage() -> None:
    verdict = classify_tail(_scan(BAD, FrameAfter(900, 12, 5)), last_durable_seqno=0)
    assert isinstance(verdict, Damaged)
    assert "seqno 12 verifies after it" in verdict.reason


def test_a_whole_frame_in_the_wrong_place_is_damage() -> None:
    bad = Damage(500, 11, "a frame has seqno 9, 11 should stand here", whole_frame=True)
    assert isinstance(classify_tail(_scan(bad), last_durable_seqno=0), Damaged)


@pytest.mark.parametrize("witness", ["last_durable_seqno", "acknowledged_max"])
def test_an_end_before_what_was_durable_is_damage(witness: str) -> None:
    verdict = classify_tail(_scan(), **{"last_durable_seqno": 0, witness: 11})
    assert isinstance(verdict, Damaged)
    assert "ends too early" in verdict.reason


def test_a_region_ahead_of_a_clean_end_is_completed_from_its_ring() -> None:
    assert classify_tail(_scan(), last_durable_seqno=10, region_seqno_max=200) == Clean(500, 11)


# After a power loss (faults 33, 34, 38): what nobody had synced may be there in any order.


def test_a_frame_after_unsynced_damage_is_torn_after_a_power_loss_only() -> None:
    after = _scan(BAD, FrameAfter(900, 13, 9))
    assert isinstance(classify_tail(after, last_durable_seqno=9), Damaged)
    assert isinstance(classify_tail(after, last_durable_seqno=9, power_lost=True), Torn)


def test_after_a_power_loss_any_mark_after_still_proves_damage() -> None:
    after = _scan(BAD, FrameAfter(900, 13, 11))
    assert isinstance(classify_tail(after, last_durable_seqno=9, power_lost=True), Damaged)
    assert isinstance(classify_tail(_scan(BAD), last_durable_seqno=11, power_lost=True), Damaged)
    assert isinstance(classify_tail(_scan(BAD), last_durable_seqno=0, acknowledged_max=11, power_lost=True), Damaged)


def test_after_a_power_loss_a_region_may_be_past_the_hole() -> None:
    scan = _scan(BAD)
    assert isinstance(classify_tail(scan, last_durable_seqno=9, region_seqno_max=14), Damaged)
    assert isinstance(classify_tail(scan, last_durable_seqno=9, region_seqno_max=14, power_lost=True), Torn)


def test_the_marks_of_another_instance_prove_nothing_of_our_disk() -> None:
    for scan in (_scan(BAD, last_mark=11), _scan(BAD, FrameAfter(900, 13, 11))):
        assert isinstance(classify_tail(scan, last_durable_seqno=9, power_lost=True), Damaged)
        assert isinstance(classify_tail(scan, last_durable_seqno=9, power_lost=True, marks_are_ours=False), Torn)
        assert isinstance(classify_tail(scan, last_durable_seqno=11, power_lost=True, marks_are_ours=False), Damaged)


@pytest.mark.parametrize("point", [(4, 44), None])
def test_a_restated_frame_may_be_taken_for_torn(point: tuple[int, int] | None) -> None:
    found = ScanResult(500, 10, 3, {1: (5, 55), 2: (7, 77)}, restated=(400, 1, point))
    told = found.without_restated("because")
    assert (told.end_offset, told.last_seqno, told.frame_count) == (400, 9, 2)
    assert told.chains == ({1: point, 2: (7, 77)} if point else {2: (7, 77)})
    assert classify_tail(told, last_durable_seqno=9) == Torn(400, 10)
    damaged = classify_tail(told, last_durable_seqno=10)
    assert isinstance(damaged, Damaged)
    assert "because; but seqno 10 is durable" in damaged.reason
