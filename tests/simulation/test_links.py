"""Two sites in simulated time: cut, delay, split, duplicate, delete, stop; the secondary always holds a true prefix."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from msgspec.structs import replace

from replicate.errors import GapError, RollbackNeededError
from replicate.limits import MIB, PART_BYTES
from replicate.wire.event import CloseReason
from replicate.wire.message import MessageType
from replicate.wire.state import State
from tests.harness.link_pair import POOL_BYTES, SETTINGS, Journal, LinkedSites, Pipe


def street(count: int = 60, *, large: tuple[int, ...] = (8, 30), batch: int = 7, **more: float) -> LinkedSites:
    journal = Journal(large=large)
    journal.write(count)
    return LinkedSites(journal, batch=batch, **more)  # type: ignore[arg-type]


def short_street() -> LinkedSites:
    journal = Journal(large=(3,), parts=3, part_bytes=200)
    journal.write(6)
    return LinkedSites(journal, batch=2, parts=1)


def level(made: LinkedSites) -> None:
    """Both sites hold the same, each transaction once, and the source knows it."""
    assert made.received == made.journal.frames
    assert made.parts_of == made.journal.parts
    assert made.applied_seqno == made.acknowledged_seqno == made.journal.last_seqno
    assert made.position == made.journal.positions[-1]


def prefix(made: LinkedSites) -> None:
    assert made.received == made.journal.frames[: len(made.received)]


def test_catch_up_and_follow() -> None:
    made = street()
    made.run(2)
    level(made)
    made.journal.write(40)
    made.run(2)
    level(made)
    assert made.ends == []


@pytest.mark.parametrize("size", [1, 2, 7, 64])
def test_every_byte_its_own_packet(size: int) -> None:
    """Fault 62."""
    made = street(20, large=(8,))
    for pipe in (made.pair.there, made.pair.back):
        pipe.cut = lambda data: [data[i : i + size] for i in range(0, len(data), size)]
    made.run(2)
    level(made)


def test_delay_and_a_slow_line() -> None:
    """Faults 57, 59."""
    made = street(200, batch=50)
    made.pair.there.delay_s = made.pair.back.delay_s = 0.5
    made.pair.there.bytes_per_s = made.pair.back.bytes_per_s = 8000
    made.run(120)
    level(made)
    assert made.ends == []


@pytest.mark.parametrize("step", [5, pytest.param(1, marks=pytest.mark.slow)])
def test_cut_after_every_single_byte(step: int) -> None:
    """Faults 7, 54, 55: the connection breaks once at each byte of the stream; each time it goes on where it was."""
    plain = short_street()
    plain.run(1)
    total = plain.pair.source.sent_bytes
    for cut_at in range(1, total + 1, step):
        made = short_street()
        left = cut_at

        def some(data: bytes, made: LinkedSites = made) -> list[bytes]:
            nonlocal left
            keep, left = data[:left], max(0, left - len(data))
            return [keep] if keep else []

        made.pair.there.cut = some
        made.run(0.5)
        prefix(made)
        made.cut()
        made.connect()
        made.run(1)
        assert made.received == made.journal.frames, cut_at
        made.run(2)
        level(made)
        assert made.duplicates == 0


def test_a_cut_in_the_middle_of_a_large_transaction_goes_on_at_the_right_part() -> None:
    journal = Journal(large=(2,), parts=40)
    journal.write(3)
    made = LinkedSites(journal, parts=1)
    seen = 0

    def after_25_parts(frame: bytes) -> list[bytes]:
        nonlocal seen
        seen += frame[8] == MessageType.PARTS
        return [frame] if seen <= 25 else []

    made.pair.there.mangle = after_25_parts
    made.run(1)
    assert len(made.received_parts) == 25
    made.cut()
    pair = made.connect()
    sent_again = []
    pair.there.mangle = lambda frame: (sent_again.append(frame[8]), [frame])[1]  # type: ignore[func-returns-value]
    made.run(2)
    assert made.restarts[-1].restart.next_part == 25
    assert sent_again.count(MessageType.PARTS) == 15
    level(made)


def test_a_large_transaction_that_is_another_one_begins_again() -> None:
    journal = Journal(large=(2,), parts=10)
    journal.write(3)
    made = LinkedSites(journal, parts=1)
    made.pair.there.mangle = lambda frame: [frame] if frame[8] != MessageType.LARGE else []
    made.run(1)
    assert len(made.received_parts) == 10
    made.cut()
    made.part_token = 4711  # what was received before belongs to a spool that is gone
    made.connect()
    made.run(2)
    level(made)


@pytest.mark.parametrize("deleted", [MessageType.DATA, MessageType.PARTS, MessageType.LARGE])
@pytest.mark.parametrize("occurrence", [1, 2])
def test_one_frame_deleted_on_the_way_is_refused_naming_both_numbers(deleted: MessageType, occurrence: int) -> None:
    """Fault 74: refuse, shake hands again, never apply; and then all is well."""
    made = street()
    seen = 0

    def drop(frame: bytes) -> list[bytes]:
        nonlocal seen
        seen += frame[8] == deleted
        return [] if frame[8] == deleted and seen == occurrence else [frame]

    made.pair.there.mangle = drop
    made.run(1)
    prefix(made)
    refused = [end for end in made.ends if end.reason is CloseReason.WE_REFUSED]
    told = [end for end in made.ends if end.reason is CloseReason.PEER_REFUSED]
    assert len(refused) == len(told) == 1
    assert isinstance(refused[0].error, GapError)
    assert isinstance(told[0].error, GapError)
    expected = made.position.last_seqno + 1
    assert f"next should be transaction {expected}" in str(refused[0].error)
    assert f"next should be transaction {expected}" in str(told[0].error)
    made.connect()
    made.run(2)
    level(made)


@pytest.mark.parametrize("doubled", [MessageType.DATA, MessageType.PARTS, MessageType.HEARTBEAT])
def test_every_frame_of_a_kind_doubled_is_harmless(doubled: MessageType) -> None:
    """Faults 60, 73: duplicates are dropped and counted."""
    made = street()
    made.pair.there.mangle = lambda frame: [frame] * (1 + (frame[8] == doubled))
    made.run(3)
    level(made)
    assert made.ends == []
    link = made.pair.receiver
    assert (link.duplicate_transactions > 0) is (doubled is MessageType.DATA)
    assert (link.duplicate_parts > 0) is (doubled is MessageType.PARTS)


def test_two_frames_swapped_are_refused() -> None:
    made = street(large=())
    held: list[bytes] = []

    def swap(frame: bytes) -> list[bytes]:
        if frame[8] != MessageType.DATA:
            return [frame]
        held.append(frame)
        return [] if len(held) == 2 else [frame, held[1]] if len(held) == 3 else [frame]

    made.pair.there.mangle = swap
    made.run(1)
    prefix(made)
    assert any(isinstance(end.error, GapError) for end in made.ends)


@pytest.mark.parametrize(
    "change", [lambda f: f[:-1] + bytes([f[-1] ^ 1]), lambda f: f[:40] + bytes([f[40] ^ 64]) + f[41:]]
)
def test_a_damaged_byte_stops_the_connection_and_is_sent_again(change: Callable[[bytes], bytes]) -> None:
    """Fault 61: payload corruption that passed TCP's checksum."""
    made = street()
    made.pair.there.mangle = lambda frame: [change(frame) if frame[8] == MessageType.DATA else frame]
    made.run(1)
    assert made.received == []
    assert {end.reason for end in made.ends} == {CloseReason.WE_REFUSED, CloseReason.PEER_REFUSED}
    made.connect()
    made.run(2)
    level(made)


def test_a_dead_update_process_fills_the_pool_and_stops_the_source_not_the_heartbeat() -> None:
    """Faults 25, 56: bounded by the pool; nothing is lost; it goes on when the pool is emptied."""
    journal = Journal()
    journal.write(3000, size=3000)
    made = LinkedSites(journal, batch=50)
    made.applying = False
    made.run(600)
    assert made.pair.source.state is State.STOPPED
    assert made.ends == []
    assert made.pool_bytes <= POOL_BYTES
    assert made.applied_seqno == 0
    made.applying = True
    made.run(5)
    level(made)
    assert made.ends == []


@pytest.mark.turns(4)
@pytest.mark.parametrize("batch", [1, 3, 300])
@pytest.mark.parametrize("delay_s", [0.0, 0.3])
def test_a_slow_update_process_never_overflows_the_pool(batch: int, delay_s: float) -> None:
    """XOFF leaves room for what is in flight, on a short line and on a long one, with small batches and full ones."""
    journal = Journal()
    journal.write(1800, size=3000 if batch == 300 else 2500)
    made = LinkedSites(journal, batch=batch, apply_s=0.02)
    made.pair.there.delay_s = made.pair.back.delay_s = delay_s
    made.run(1800 * 0.02 / min(batch, 3) + 40)
    assert made.ends == []
    assert made.pool_bytes_peak <= POOL_BYTES
    level(made)


def test_a_transaction_far_larger_than_the_receive_pool() -> None:
    """Fault 68, facts §7: GT.M's receiver stops for good there. XOFF never waits for a last part."""
    journal = Journal(large=(2,), parts=100, part_bytes=PART_BYTES)
    journal.write(3)
    made = LinkedSites(journal, parts=3, apply_s=0.05)
    assert sum(map(len, journal.parts[2])) > 6 * POOL_BYTES
    made.run(30)
    level(made)
    assert made.ends == []


def test_the_connection_dies_in_xoff() -> None:
    """Fault 63: state is per connection; the next one starts from an explicit seqno."""
    journal = Journal()
    journal.write(3000, size=3000)
    made = LinkedSites(journal, batch=50)
    made.applying = False
    made.run(30)
    assert made.pair.source.state is State.STOPPED
    made.cut()
    made.connect()
    made.run(30)
    assert made.pair.source.state is State.WAITING_FOR_RESTART
    made.applying = True
    made.run(5)
    level(made)


def test_a_stopped_receiver_and_a_one_way_line_are_noticed_and_mended() -> None:
    """Faults 15, 52, 53."""
    made = street(20, large=())
    made.run(2)
    made.pair.frozen.add(made.pair.receiver)
    made.run(SETTINGS.dead_after_s + SETTINGS.heartbeat_period_s)
    assert [end.reason for end in made.ends] == [CloseReason.PEER_DEAD]
    made.pair.receiver.receive_eof(made.now)
    made.journal.write(5)
    made.connect(there=Pipe(is_deaf=True))
    made.run(60)
    assert made.ends[-1].reason is CloseReason.PEER_DEAD
    made.connect()
    made.run(2)
    level(made)


def test_a_secondary_that_is_ahead_is_refused_before_anything_is_sent() -> None:
    """Faults 13, 75."""
    made = street(20, large=())
    made.run(2)
    made.cut()
    made.journal.frames, made.journal.positions = made.journal.frames[:15], made.journal.positions[:16]
    made.connect()
    made.run(2)
    assert isinstance(made.ends[-2].error, RollbackNeededError)
    assert isinstance(made.ends[-1].error, RollbackNeededError)
    assert "up to 20" in str(made.ends[-1].error)
    assert made.position.last_seqno == 20


def test_compressed() -> None:
    made = LinkedSites(street().journal, replace(SETTINGS, compression="zstd"))
    made.run(2)
    level(made)
    assert made.pair.source.sent_bytes < made.pair.source.sent_bulk_bytes / 2


def test_memory_is_bounded_while_nobody_reads() -> None:
    """Fault 56: a peer that never reads makes the source hold one batch."""
    journal = Journal()
    journal.write(4000, size=3000)
    made = LinkedSites(journal, batch=300)
    made.pair.there.bytes_per_s = 1.0
    made.run(50)
    assert sum(len(piece) for _, piece in made.pair.there.flying) < 2 * MIB
    assert not made.pair.source.can_send_bulk
