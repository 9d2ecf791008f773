"""`measure` has a quick way for what nearly all frames are: whatever the bytes, it says what the slow way says."""

from __future__ import annotations

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from replicate.errors import ReplicateError
from replicate.journal import walk
from replicate.journal.frame import FRAME_PREFIX_BYTES
from replicate.model.transaction import Kind
from tests.harness.changed_frames import sealed
from tests.harness.journals import FrameMaker

Said = tuple[int, ...] | tuple[str, str]


def slowly(*_: object, **__: object) -> tuple[int, int]:
    """`_run`, if it passed nothing."""
    return 0, 0


def said(data: bytes | memoryview, **options: int | bool | None) -> Said:
    try:
        return tuple(walk.measure(data, **options))  # type: ignore[arg-type]
    except ReplicateError as error:
        return type(error).__name__, str(error)


def both(data: bytes, **options: int | bool | None) -> tuple[Said, Said, Said]:
    """What is said of the bytes, of a view of them, and by the slow way alone."""
    quick, of_view = said(data, **options), said(memoryview(data), **options)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(walk, "_run", slowly)
        return quick, of_view, said(data, **options)


def made(values: list[int], kinds: str) -> list[bytes]:
    maker = FrameMaker()
    ways = {
        "t": lambda size: maker.transaction("x" * size),
        "n": lambda _: maker.null(),
        "h": lambda _: maker.history(),
    }
    return [ways[kind](size) for kind, size in zip(kinds, values, strict=False)]


BYTES = [0, 1, 3, 5, 6, 9, 10, 11, 12, 13, 14, 15, 22, 23, 31, 32, 33, 40, 41, 63, 64, 70]


@pytest.mark.slow
@settings(max_examples=600)
@given(
    sizes=st.lists(st.sampled_from([0, 30, 900, 960, 1100, 5000]), min_size=1, max_size=6),
    kinds=st.text("ttttnh", min_size=6, max_size=6),
    place=st.integers(0, 5),
    at=st.sampled_from(BYTES),
    byte=st.sampled_from([0, 1, 2, 3, 4, 5, 6, 7, 0x7F, 0x80, 0xCE, 0xCF, 0xDC, 0xFF]),
    is_sealed=st.booleans(),
    cut=st.integers(0, 80),
    last_seqno=st.sampled_from([0, 1, 3, 5, 2**64 - 1]),
    max_bytes=st.sampled_from([None, 1, 64, 400, 1300, 6000]),
    next_seqno=st.sampled_from([None, 1, 1, 1, 2]),
    verify=st.booleans(),
)
@example([30] * 3, "tttttt", 1, 0, 0xCE, False, 0, 2**64 - 1, None, 1, True)
def test_the_quick_way_says_what_the_slow_way_says(
    sizes: list[int],
    kinds: str,
    place: int,
    at: int,
    byte: int,
    is_sealed: bool,
    cut: int,
    last_seqno: int,
    max_bytes: int | None,
    next_seqno: int | None,
    verify: bool,
) -> None:
    pieces = made(sizes, kinds)
    place %= len(pieces)
    frame = bytearray(pieces[place])
    frame[at] = byte
    pieces[place] = sealed(bytes(frame)) if is_sealed else bytes(frame)
    data = b"".join(pieces)
    data = data[: len(data) - cut]
    quick, of_view, slow = both(data, next_seqno=next_seqno, last_seqno=last_seqno, max_bytes=max_bytes, verify=verify)
    assert quick == of_view == slow


@pytest.mark.turns(4)
@pytest.mark.parametrize("verify", [True, False])
@pytest.mark.parametrize("size", [20, 2000])
@pytest.mark.parametrize("byte", range(64))
def test_each_byte_of_a_head_is_looked_at_by_both(byte: int, size: int, verify: bool) -> None:
    for change in (0x01, 0x80, 0xFF):
        for is_sealed in (False, True):
            pieces = made([size] * 3, "ttt")
            frame = bytearray(pieces[1])
            frame[byte] ^= change
            pieces[1] = sealed(bytes(frame)) if is_sealed else bytes(frame)
            quick, of_view, slow = both(b"".join(pieces), next_seqno=1, verify=verify)
            assert quick == of_view == slow, (byte, change, is_sealed)


def test_frames_of_every_kind_but_those_of_the_stream_are_left_to_the_slow_way() -> None:
    for kind in Kind:
        frame = bytearray(made([20], "t")[0])
        frame[13] = kind
        count, _ = walk._run(sealed(bytes(frame)), memoryview(sealed(bytes(frame))), 0, len(frame), 1, 9, verify=True)
        assert count == (kind in (Kind.TRANSACTION, Kind.NULL, Kind.HISTORY, Kind.RESTATED, Kind.MIXED))


def test_a_body_longer_than_a_frame_may_be_is_left_to_the_slow_way(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(walk, "BODY_BYTES_MAX", 300)
    data = b"".join(made([20, 400], "tt"))
    assert both(data, next_seqno=1)[0] == both(data, next_seqno=1)[2]
    assert walk._run(data, memoryview(data), 0, len(data), 1, 9, verify=True)[0] == 1


@pytest.mark.parametrize("size", [13, 53])
def test_a_body_too_short_for_a_head_is_wrong_however_well_it_begins(size: int) -> None:
    first, second = made([20, 20], "tt")
    short = sealed(second[: FRAME_PREFIX_BYTES + size])
    quick, of_view, slow = both(first + short + bytes(100), next_seqno=1)
    assert quick == of_view == slow == (1, 1, 1, len(first))
