"""Room for frames: what was written is what is read, however much it is, batch after batch."""

from __future__ import annotations

import random

import pytest

from update_process.frame_room import FrameRoom


@pytest.mark.parametrize("room_bytes", [1, 5000, 100_000])
def test_what_was_written_is_there_until_it_is_cleared(room_bytes: int) -> None:
    dice = random.Random(room_bytes)
    room = FrameRoom(room_bytes)
    for _ in range(5):
        written = b""
        room.clear()
        for _ in range(dice.randint(0, 20)):
            data = dice.randbytes(dice.choice([0, 1, 300, 9000]))
            room.write(data)
            written += data
            assert room.view() == written
            assert room.size_bytes == len(written)
