"""How much room a read makes: as much as is used, within bounds."""

from __future__ import annotations

from itertools import repeat

from replicate.daemon.drive import LEAST_ROOM_BYTES, RECEIVE_BYTES, next_room_bytes


def after(room_bytes: int, *reads: int) -> int:
    for got in reads:
        room_bytes = next_room_bytes(room_bytes, min(got, room_bytes))
        assert LEAST_ROOM_BYTES <= room_bytes <= RECEIVE_BYTES
    return room_bytes


def test_a_backlog_soon_has_all_room() -> None:
    assert after(LEAST_ROOM_BYTES, *repeat(RECEIVE_BYTES, 3)) == RECEIVE_BYTES
    assert after(RECEIVE_BYTES, *repeat(RECEIVE_BYTES // 2, 100)) == RECEIVE_BYTES


def test_single_transactions_soon_have_little() -> None:
    assert after(RECEIVE_BYTES, *repeat(700, 3)) == LEAST_ROOM_BYTES
    assert after(LEAST_ROOM_BYTES, *repeat(700, 100)) == LEAST_ROOM_BYTES


def test_a_full_read_now_and_then_keeps_no_room() -> None:
    assert after(LEAST_ROOM_BYTES, *[RECEIVE_BYTES, 700, 700] * 100) == LEAST_ROOM_BYTES


def test_reads_of_one_size_keep_one_room() -> None:
    """A TLS record holds 16 KiB: there is no swinging between two sizes."""
    settled = after(LEAST_ROOM_BYTES, *repeat(16384, 50))
    assert settled == after(settled, 16384)
