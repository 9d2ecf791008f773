"""Runs of another supplier's frames under our numbers, against one frame after the other."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from replicate.errors import JournalDamagedError
from replicate.journal.frame import CHECK_OFFSET
from replicate.journal.record import BODY_BYTES_MIN, check_frame, decode_batch, pack_elements, renumbered
from replicate.journal.walk import measure
from replicate.model.transaction import Op
from tests.harness.journals import FrameMaker
from update_process.plan import Window, open_window
from update_process.window.renumbering import Renumbering

BEFORE = st.integers(1, 2**47) | st.integers(1, 300)
AFTER = st.integers(1, 2**62) | st.integers(1, 300)


def run(first_seqno: int, sizes: list[int], mark: int = 0) -> list[bytes]:
    """Transactions of one row each, or of several where a size is 0: of one kind, and of several lengths."""
    maker = FrameMaker(next_seqno=first_seqno, mark=mark)
    made = []
    for size in sizes:
        rows = [Op.INSERT, 0x80000001, 0, [maker.next_seqno, "v" * size]] * (1 if size else 3)
        made.append(maker.transaction(payload=pack_elements(*rows)))
    return made


def opened(made: list[bytes], **changed: bytes) -> tuple[Window, list[object]]:
    data = changed.get("data", b"".join(made))
    decoded = list(decode_batch(data, tuples=True, count=len(made)))
    return open_window(data, decoded, check_frame(made[0]).seqno, {}), decoded


@given(BEFORE, AFTER, st.lists(st.integers(0, 300), min_size=1, max_size=20), st.integers(0, 2**64 - 1))
def test_against_one_frame_after_the_other(before: int, after: int, sizes: list[int], mark: int) -> None:
    made = run(before, sizes, mark)
    window, decoded = opened(made)
    told = Renumbering().window(window, decoded, after)
    assert told.data == b"".join(renumbered(one, seqno, mark) for seqno, one in enumerate(made, after))
    assert (told.first_seqno, told.last_seqno, told.ends) == (after, after + len(made) - 1, window.ends)
    assert measure(told.data, next_seqno=after).frames == len(made), "every check proves its frame"
    assert told.plain is not None
    assert window.plain is not None
    assert (told.plain.first_seqno, told.plain.columns) == (after, window.plain.columns)


@given(st.lists(st.integers(0, 9), min_size=1, max_size=9), st.booleans())
def test_bodies_bear_our_numbers_where_they_are_looked_at(sizes: list[int], is_plain: bool) -> None:
    maker = FrameMaker(next_seqno=70)
    made = run(70, sizes)
    if not is_plain:  # a table's definition is among them
        made = [maker.transaction(size) for size in sizes]
        made.append(maker.transaction(payload=pack_elements(Op.DEFINE, 0x80000001, 0, [0] * 10)))
    window, decoded = opened(made)
    assert (window.plain is not None) == is_plain
    told = Renumbering().window(window, decoded, 5)
    assert told.bodies == (window.bodies if is_plain else decode_batch(bytes(told.data), tuples=True)[2::3])
    assert told.alone == window.alone


def test_what_a_check_does_not_prove_before_it_does_not_prove_after() -> None:
    made = run(9, [1, 2, 3])
    for bit in range(32):
        bad = bytearray(b"".join(made))
        at = len(made[0]) + CHECK_OFFSET
        bad[at : at + 4] = (int.from_bytes(bad[at : at + 4]) ^ 1 << bit).to_bytes(4)
        window, decoded = opened(made, data=bytes(bad))
        told = Renumbering().window(window, decoded, 40)
        assert measure(told.data, next_seqno=40).frames == 1, "the second one is damaged as it was"


def test_a_frame_without_a_head_is_refused() -> None:
    window, decoded = opened(run(9, [1, 2]))
    decoded[3] = BODY_BYTES_MIN - 1
    with pytest.raises(JournalDamagedError, match="too short"):
        Renumbering().window(window, decoded, 40)


def test_what_is_remembered_has_an_end(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("update_process.window.renumbering.KEPT_MAX", 20)
    renumbering, made = Renumbering(), run(5000, [size % 9 for size in range(60)])
    window, decoded = opened(made)
    for after in range(1, 4000, 500):
        told = renumbering.window(window, decoded, after)
        assert measure(told.data, next_seqno=after).frames == 60
        assert 0 < len(renumbering._ways) <= 20
