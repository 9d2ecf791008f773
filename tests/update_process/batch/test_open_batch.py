"""How long a batch gets: whichever limit comes first ends it."""

from __future__ import annotations

import time

import pytest
from msgspec.structs import replace

from replicate.limits import MIB
from replicate.model.vector import Position, SynchronizationVector
from replicate.settings.load import Config
from replicate.settings.table import JournalConfig, ReceiverConfig, UpdateConfig
from update_process.batch import open_batch
from update_process.batch.open_batch import POOL_SHARE, SEGMENT_SHARE, OpenBatch, most_bytes


def batch(deadline_s: float = float("inf"), room_bytes: int = 1000) -> OpenBatch:
    """Up to transaction 100, of which it has taken 20 so far, with 10 changes that are put off."""
    position = Position(100, SynchronizationVector({}), {})
    made = OpenBatch(81, position, deadline_s, lambda *_: None, memoryview(b""), room_bytes)
    made.transactions, made.changes_put_off = 20, 10
    return made


@pytest.mark.parametrize(("waiting", "is_full"), [(20, False), (19, True)])
def test_a_batch_may_take_longer_while_another_one_waits_after_it(
    monkeypatch: pytest.MonkeyPatch, waiting: int, is_full: bool
) -> None:
    monkeypatch.setattr(open_batch, "LONGER_S", 1000.0)
    now_s = time.monotonic()

    def full(deadline_s: float, change_s: float) -> bool:
        return batch(deadline_s).is_full(100, change_s, lambda: 100 + waiting)

    assert full(now_s, 0.0) is is_full
    assert full(now_s + 3600, 361.0) is is_full
    assert not full(now_s + 3600, 300.0)
    assert full(now_s - 1000, 0.0)
    assert full(now_s + 3600, 460.0)


def test_room_ends_with_transactions_or_bytes_or_what_is_loose_or_lies_in_too_many_places(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    assert not batch().has_no_room(21)
    assert batch().has_no_room(20)
    full = batch()
    full.size_bytes = 999
    assert not full.has_no_room(21)
    full.size_bytes = 1000
    assert full.has_no_room(21)
    loose = batch()
    loose.loose_bytes = open_batch.LOOSE_BYTES
    assert loose.has_no_room(21)
    monkeypatch.setattr(open_batch, "SPANS_MAX", 0)
    assert batch().has_no_room(21)


def test_it_takes_no_more_than_pool_and_segment_have_room_for() -> None:
    """So that the next one can be read while it is committed, and that it is in one segment."""
    settings = replace(UpdateConfig(), batch_bytes=64 * MIB)
    config = Config(journal=JournalConfig(segment_bytes=32 * MIB), receiver=ReceiverConfig(xoff_percent=90))
    assert most_bytes(settings, config, 4096 * MIB) == int(32 * MIB * SEGMENT_SHARE)
    assert most_bytes(settings, config, 16 * MIB) == int(16 * MIB * 0.9 * POOL_SHARE)
    assert most_bytes(replace(settings, batch_bytes=MIB), config, 16 * MIB) == MIB


def test_only_what_takes_long_to_commit_has_the_next_one_read_meanwhile() -> None:
    made = batch()
    made.size_bytes = open_batch.LONG_BYTES - 1
    assert not made.is_long
    made.size_bytes += 1
    assert made.is_long
