"""The receive pool: full means no, nothing is overwritten, and both sides go on where their predecessors were."""

from __future__ import annotations

import random
import threading
import uuid
from collections.abc import Iterator

import pytest

from replicate.errors import (
    ConfigurationError,
    DamagedError,
    DiskFullError,
    FormatUnknownError,
    InternalError,
    PoolReplacedError,
)
from replicate.journal.record import Kind, pack_frame, pack_part
from replicate.limits import BATCH_BYTES_MAX, MIB, RECEIVE_POOL_BYTES_MIN
from replicate.model.moment import CSN_COUNTER_BITS
from replicate.pool import receive_pool as word
from replicate.pool.control import CONTROL_BYTES, POOL_FORMAT
from replicate.pool.receive_pool import ReceivePool, RecordKind
from replicate.pool.ring import HEAD_BYTES, pack_head
from replicate.pool.shared_memory import SharedMemory
from replicate.system import failpoint
from tests.harness.changed_frames import batch_of
from tests.harness.pools import ORIGIN, content, frame, frames, prove

INSTANCE = uuid.UUID(int=79).bytes
FRAMES = RecordKind.FRAMES


@pytest.fixture
def producer() -> Iterator[ReceivePool]:
    made = ReceivePool.create(INSTANCE, configured_bytes=RECEIVE_POOL_BYTES_MIN, last_seqno=0)
    yield made
    made.close()


@pytest.fixture
def consumer(producer: ReceivePool) -> Iterator[ReceivePool]:
    made = ReceivePool.attach(INSTANCE)
    yield made
    made.close()


def offer(pool: ReceivePool, first: int, last: int | None = None, largest: int = 700) -> bool:
    last = last or first
    return pool.offer(frames(first, last, largest), first, last, last - first + 1, FRAMES)


def part(seqno: int, number: int) -> bytes:
    return pack_part(ORIGIN, seqno, number, content(number), 0)[0]


def numbers(pool: ReceivePool) -> list[int]:
    return [record.last_seqno for record in pool.peek()]


def test_offered_and_peeked_and_freed(producer: ReceivePool, consumer: ReceivePool) -> None:
    assert list(consumer.peek()) == []
    assert consumer.fill_fraction == 0.0
    assert offer(producer, 1, 3)
    assert offer(producer, 4)
    first, second = consumer.peek()
    assert (first.kind, first.first_seqno, first.last_seqno, first.count) == (FRAMES, 1, 3, 3)
    assert first.data == frames(1, 3)
    assert (second.address, second.data) == (first.next_address, frame(4))
    assert numbers(consumer) == [3, 4]  # peeking takes nothing away
    assert [record.last_seqno for record in consumer.peek(second.address)] == [4]
    assert producer.used_bytes == second.next_address
    consumer.free(first.next_address)
    assert numbers(consumer) == [4]
    consumer.free(second.next_address)
    assert producer.used_bytes == 0
    assert consumer.last_received_seqno == 4


def test_every_kind(producer: ReceivePool, consumer: ReceivePool) -> None:
    assert producer.offer(b"catalogue", 0, 0, 1, RecordKind.CATALOGUE)
    assert producer.offer(part(1, 0) + part(1, 1), 1, 1, 2, RecordKind.PARTS)
    assert (producer.last_received_seqno, producer.received_parts) == (0, 2)
    assert producer.offer(part(1, 2), 1, 1, 1, RecordKind.PARTS)
    assert producer.received_parts == 3
    assert producer.offer(b"commit", 1, 1, 1, RecordKind.LARGE)
    assert (producer.last_received_seqno, producer.received_parts) == (1, 0)
    assert [record.kind for record in consumer.peek()] == [
        RecordKind.CATALOGUE,
        RecordKind.PARTS,
        RecordKind.PARTS,
        RecordKind.LARGE,
    ]


def test_full_means_no_and_changes_nothing(producer: ReceivePool, consumer: ReceivePool) -> None:
    seqno = 0
    while offer(producer, seqno + 1, largest=60_000):
        seqno += 1
    picture = bytes(producer.memory.view)
    assert not offer(producer, seqno + 1, largest=60_000)
    assert bytes(producer.memory.view) == picture
    assert 0.98 < producer.fill_fraction <= 1.0
    assert producer.last_received_seqno == seqno
    records = list(consumer.peek())
    assert [record.first_seqno for record in records] == list(range(1, seqno + 1))
    consumer.free(records[3].next_address)
    assert offer(producer, seqno + 1, largest=60_000)
    assert numbers(consumer)[-1] == seqno + 1


def test_room_is_counted_with_padding_at_the_wrap(producer: ReceivePool, consumer: ReceivePool) -> None:
    """Random offers and frees through many rounds: nothing lost, nothing overwritten, never more than the capacity."""
    rng = random.Random(3)
    seqno = freed = refused = 0
    while producer.words[word.WRITTEN] < 6 * producer.capacity:
        for _ in range(rng.randrange(1, 30)):
            count = rng.randrange(1, 40)
            if offer(producer, seqno + 1, seqno + count, largest=9000):
                seqno += count
            else:
                refused += 1
            assert 0.0 <= producer.fill_fraction <= 1.0
        address = None
        for _, record in zip(range(rng.randrange(30)), consumer.peek(), strict=False):
            prove(batch_of(record.data), 9000)
            assert record.first_seqno == freed + 1
            freed, address = record.last_seqno, record.next_address
        if address is not None:
            consumer.free(address)
    assert refused > 3
    for record in consumer.peek():
        assert record.first_seqno == freed + 1
        freed = record.last_seqno
    assert freed == seqno


def test_the_largest_batch_always_fits_an_empty_pool(producer: ReceivePool, consumer: ReceivePool) -> None:
    data = b"x" * BATCH_BYTES_MAX
    for seqno in range(1, 30):
        assert producer.offer(data[: len(data) - seqno * 8], seqno, seqno, 1, FRAMES)
        (record,) = consumer.peek()
        assert len(record.data) == len(data) - seqno * 8
        consumer.free(record.next_address)
    with pytest.raises(ConfigurationError, match=r"receiver\.pool_bytes"):
        producer.offer(b"x" * producer.capacity, 30, 30, 1, FRAMES)


def test_two_threads(producer: ReceivePool, consumer: ReceivePool) -> None:
    total = 20_000

    def produce() -> None:
        seqno = 0
        while seqno < total:
            if offer(producer, seqno + 1, min(seqno + 50, total)):
                seqno = min(seqno + 50, total)

    thread = threading.Thread(target=produce)
    thread.start()
    expected = 1
    while expected <= total:
        for record in consumer.peek():
            batch = batch_of(record.data)
            assert batch.first_seqno == expected
            expected = batch.last_seqno + 1
            consumer.free(record.next_address)
    thread.join()
    assert producer.used_bytes == 0


def test_a_new_consumer_reads_again_what_was_not_freed(producer: ReceivePool, consumer: ReceivePool) -> None:
    for seqno in range(1, 6):
        offer(producer, seqno)
    records = list(consumer.peek())
    consumer.free(records[1].next_address)
    consumer.close()
    again = ReceivePool.attach(INSTANCE)
    assert numbers(again) == [3, 4, 5]
    again.close()


def test_a_new_producer_goes_on_and_is_noticed(producer: ReceivePool, consumer: ReceivePool) -> None:
    offer(producer, 1, 3)
    generation = consumer.words[word.RECEIVER_GENERATION]
    again = ReceivePool.open_producer(INSTANCE)
    assert consumer.words[word.RECEIVER_GENERATION] == generation + 1
    assert (again.last_received_seqno, again.received_parts) == (3, 0)
    offer(again, 4)
    assert numbers(consumer) == [3, 4]
    again.close()


@pytest.mark.parametrize("step", ["after_data", "after_head", "after_written"])
def test_a_producer_killed_at_every_step(producer: ReceivePool, consumer: ReceivePool, step: str) -> None:
    """Fault 8: what is not whole is asked for again, what is whole is not."""
    offer(producer, 1, 3)
    failpoint.arm(f"offer.{step}:1:raise")
    with pytest.raises(failpoint.FailpointError):
        offer(producer, 4, 6)
    whole = step == "after_written"
    assert numbers(consumer) == ([3, 6] if whole else [3])
    again = ReceivePool.open_producer(INSTANCE)
    assert again.last_received_seqno == (6 if whole else 3)
    offer(again, again.last_received_seqno + 1)
    assert numbers(consumer) == ([3, 6, 7] if whole else [3, 4])
    again.close()


def test_killed_before_the_note_and_freed_since(producer: ReceivePool, consumer: ReceivePool) -> None:
    failpoint.arm("offer.after_written:1:raise")
    with pytest.raises(failpoint.FailpointError):
        offer(producer, 1, 6)
    consumer.free(next(consumer.peek()).next_address)
    consumer.note_applied(6, 5)
    again = ReceivePool.open_producer(INSTANCE)
    assert (again.last_received_seqno, again.applied_seqno, again.durable_seqno) == (6, 6, 5)
    again.close()


def test_parts_are_counted_by_a_new_producer(producer: ReceivePool) -> None:
    offer(producer, 1)
    assert producer.offer(part(2, 0) + part(2, 1), 2, 2, 2, RecordKind.PARTS)
    failpoint.arm("offer.after_written:1:raise")
    with pytest.raises(failpoint.FailpointError):
        producer.offer(part(2, 2), 2, 2, 1, RecordKind.PARTS)
    again = ReceivePool.open_producer(INSTANCE)
    assert (again.last_received_seqno, again.received_parts) == (1, 3)
    again.close()


def test_a_restart_empties_the_pool_at_the_consumers_wish(producer: ReceivePool, consumer: ReceivePool) -> None:
    consumer.note_update_process(4711, 1)
    offer(producer, 1, 3)
    producer.offer(part(4, 0), 4, 4, 1, RecordKind.PARTS)
    assert producer.restart_requested() == 0
    with pytest.raises(InternalError):
        producer.restart(0)
    assert numbers(consumer) == [3, 4]
    number = consumer.request_restart()
    assert not consumer.restart_done(number)
    assert producer.restart_requested() == number
    producer.restart(2)
    assert consumer.restart_done(number)
    assert producer.restart_requested() == 0
    assert (producer.last_received_seqno, producer.received_parts, producer.used_bytes) == (2, 0, 0)
    offer(producer, 3)
    assert numbers(consumer) == [3]
    assert consumer.request_restart() == number + 1


def test_without_a_consumer_the_producer_may_empty_it(producer: ReceivePool) -> None:
    offer(producer, 1, 3)
    producer.restart(1)
    assert (producer.used_bytes, producer.last_received_seqno) == (0, 1)


def test_a_new_pool_is_noticed(producer: ReceivePool, consumer: ReceivePool) -> None:
    offer(producer, 1)
    new = ReceivePool.create(INSTANCE, configured_bytes=RECEIVE_POOL_BYTES_MIN, last_seqno=1, replace=True)
    assert not consumer.is_current()
    with pytest.raises(PoolReplacedError):
        consumer.memory.check_current()
    other = ReceivePool.attach(INSTANCE)
    assert other.memory.epoch == new.memory.epoch != consumer.memory.epoch
    assert other.last_received_seqno == other.applied_seqno == 1
    other.close()
    new.close()


def test_an_older_format(producer: ReceivePool) -> None:
    producer.words[POOL_FORMAT] -= 1
    with pytest.raises(FormatUnknownError):
        ReceivePool.attach(INSTANCE)


def test_damage_is_never_data(producer: ReceivePool, consumer: ReceivePool) -> None:
    offer(producer, 1)
    place = producer.words[word.WRITTEN]
    offer(producer, 2)
    producer.memory.view[CONTROL_BYTES + place + HEAD_BYTES + 9] ^= 4
    records = consumer.peek()
    assert next(records).last_seqno == 1
    with pytest.raises(DamagedError) as caught:
        next(records)
    assert caught.value.facts["address"] == place
    with pytest.raises(DamagedError):
        ReceivePool.open_producer(INSTANCE)


def test_a_record_of_a_later_kind(producer: ReceivePool, consumer: ReceivePool) -> None:
    offer(producer, 1)
    head = pack_head(9, 0, 1, 1, 1, frame(1))
    producer.memory.view[CONTROL_BYTES : CONTROL_BYTES + HEAD_BYTES] = head
    with pytest.raises(DamagedError, match="kind 9"):
        next(consumer.peek())


def test_freeing_what_is_not_there(producer: ReceivePool, consumer: ReceivePool) -> None:
    offer(producer, 1)
    (record,) = consumer.peek()
    with pytest.raises(InternalError):
        consumer.free(record.next_address + 8)
    consumer.free(record.next_address)
    with pytest.raises(InternalError):
        consumer.free(record.address)


def test_who_begins_learns_since_when_each_record_waits_whatever_the_two_wall_clocks_differ(
    producer: ReceivePool, consumer: ReceivePool
) -> None:
    second = 1_000_000_000

    def committed(seqno: int, wall_s: int) -> bytes:
        return pack_frame(
            Kind.TRANSACTION, seqno, 0, 0, ORIGIN, seqno, wall_s * 1_000_000 << CSN_COUNTER_BITS, b"\xc0", 1
        )[0]

    def times(applied: int, now_s: int) -> list[tuple[int, int]]:
        return [(seqno, at_ns // second) for seqno, at_ns in consumer.commit_times(applied, now_s * second)]

    for first, walls in ((1, [100]), (2, [103, 104, 109]), (5, [120])):
        data = b"".join(committed(first + place, wall) for place, wall in enumerate(walls))
        assert producer.offer(data, first, first + len(walls) - 1, len(walls), FRAMES)
    assert producer.offer(part(6, 0), 6, 6, 1, RecordKind.PARTS)
    assert times(0, 5_000) == [], "no word has come that ties the source's clock to ours"
    producer.note_source(9, 110 * second, 5_000 * second, 15_000)
    assert times(0, 5_030) == [(1, 4_990), (2, 4_993), (5, 5_010)]
    assert times(0, 5_003) == [(1, 4_990), (2, 4_993), (5, 5_003)], "not later than now"
    assert times(2, 5_030) == [(3, 4_994), (5, 5_010)], "of a record that is applied in part the rest"
    assert times(5, 5_030) == []


def test_the_notes_of_both_sides(producer: ReceivePool, consumer: ReceivePool) -> None:
    assert (consumer.source_told_s(10), consumer.source_period_s, consumer.is_connected) == (None, 0.0, False)
    producer.note_source(900, 123, 4_000_000_000, 15_000)
    assert producer.source_note() == (900, 123, 4_000_000_000, 15_000)
    assert (consumer.source_told_s(9_000_000_000), consumer.source_told_s(1), consumer.source_period_s) == (
        5.0,
        0,
        15.0,
    )
    producer.note_receiver(17, 5, connected=True)
    assert consumer.is_connected
    assert consumer.words[word.SOURCE_LAST_SEQNO] == 900
    assert consumer.words[word.SOURCE_WALL_NS] == 123
    assert (consumer.words[word.RECEIVER_PID], consumer.words[word.CONNECTED]) == (17, 1)
    assert producer.update_alive_since_s(10) is None
    consumer.note_update_process(18, 2_000_000_000)
    assert producer.update_alive_since_s(5_000_000_000) == 3.0
    assert producer.words[word.UPDATE_PID] == 18
    assert consumer.written_address == 0


def test_it_is_not_made_smaller_than_four_batches() -> None:
    with pytest.raises(DiskFullError):
        ReceivePool.create(INSTANCE, configured_bytes=MIB, last_seqno=0)


def test_words_do_not_overlap() -> None:
    places = [
        value
        for name, value in vars(word).items()
        if name.isupper()
        and isinstance(value, int)
        and name not in ("CONTROL_BYTES", "CONTROL_WORDS", "HEAD_BYTES", "LANES_MAX", "RECEIVE_POOL_BYTES_MIN",
                         "SLEEPERS", "SLEEPERS_OFFSET", "SLEEPERS_WORDS", "UPDATE_SLOT")
    ]  # fmt: skip
    assert len(places) == len(set(places)) == 23
    assert min(places) >= 16  # after the header


def test_closing_twice(producer: ReceivePool) -> None:
    other = ReceivePool(SharedMemory.attach(producer.memory.kind, INSTANCE))
    other.close()
    other.close()
    assert producer.is_current()


# Lanes: a pool for each source.


@pytest.fixture
def laned() -> Iterator[ReceivePool]:
    made = ReceivePool.create(INSTANCE, configured_bytes=3 * RECEIVE_POOL_BYTES_MIN, last_seqno=0, lanes=3)
    yield made
    made.close()


@pytest.mark.parametrize(("size", "most", "lanes"), [(128, 8, 8), (31, 8, 7), (8, 8, 2), (7, 8, 1), (128, 1, 1)])
def test_each_lane_is_as_large_as_a_pool_must_be(size: int, most: int, lanes: int) -> None:
    assert word.lanes_in(size * MIB, most) == lanes


def test_a_pool_without_lanes_is_as_ever(producer: ReceivePool) -> None:
    assert producer.lanes == (producer,)
    assert (producer.words[word.LANES], producer.size_bytes) == (0, producer.memory.bytes)
    assert producer.capacity == producer.memory.bytes - CONTROL_BYTES


def test_each_lane_is_full_and_freed_by_itself(laned: ReceivePool) -> None:
    other = ReceivePool.attach(INSTANCE)
    assert len(laned.lanes) == len(other.lanes) == 3
    assert [lane.size_bytes for lane in laned.lanes] == [RECEIVE_POOL_BYTES_MIN] * 3
    first, second, third = laned.lanes
    seqno = 0
    while offer(second, seqno + 1, largest=60_000):
        seqno += 1
    assert second.fill_fraction > 0.98
    assert (first.used_bytes, third.used_bytes, laned.is_empty) == (0, 0, False)
    assert laned.fullest == second.fill_fraction
    seen = other.arrived_address
    assert offer(third, 5)
    assert other.arrived_address != seen
    assert offer(first, 9, 11)
    assert [numbers(lane) for lane in other.lanes] == [[11], list(range(1, seqno + 1)), [5]]
    for record in list(other.lanes[1].peek()):
        other.lanes[1].free(record.next_address)
    assert offer(second, seqno + 1, largest=60_000)
    assert [numbers(lane) for lane in other.lanes] == [[11], [seqno + 1], [5]]
    other.close()


def test_random_lanes_beside_lists(laned: ReceivePool) -> None:
    """Nothing of one lane is ever seen, moved or overwritten by what happens in another."""
    rng = random.Random(11)
    kept: list[list[int]] = [[], [], []]
    for seqno in range(1, 3000):
        place = rng.randrange(3)
        lane = laned.lanes[place]
        if offer(lane, seqno, largest=60_000):
            kept[place].append(seqno)
        if rng.random() < 0.3:
            free = rng.randrange(len(kept[place]) + 1)
            for record in list(lane.peek())[:free]:
                lane.free(record.next_address)
            del kept[place][:free]
        if seqno % 100 == 0:
            assert [numbers(one) for one in laned.lanes] == kept


def test_a_restart_empties_all_lanes(laned: ReceivePool) -> None:
    for lane in laned.lanes:
        assert offer(lane, 1)
    number = laned.request_restart()
    laned.restart(0)
    assert laned.is_empty
    assert laned.restart_done(number)


def test_a_producer_that_begins_verifies_all_lanes(laned: ReceivePool) -> None:
    assert offer(laned, 1)
    assert offer(laned.lanes[2], 1)
    ReceivePool.open_producer(INSTANCE).close()
    laned.lanes[2].memory_of_data[HEAD_BYTES + 3] ^= 1
    with pytest.raises(DamagedError, match="does not verify"):
        ReceivePool.open_producer(INSTANCE)


def test_more_lanes_than_there_can_be_are_damage(laned: ReceivePool) -> None:
    laned.words[word.LANES] = 9
    with pytest.raises(DamagedError, match="9 lanes"):
        ReceivePool.attach(INSTANCE)
