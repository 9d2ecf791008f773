"""A transaction that comes alone: verified as a window of one is, applied like any other, and left alone if unfit."""

from __future__ import annotations

from typing import Any

import apsw
import pytest

from replicate.door.recovery.opening import make_chain
from replicate.errors import ConflictError, DamagedError, FormatUnknownError
from replicate.journal.reader import ChainReader
from replicate.journal.record import FrameBatch, decode_batch
from replicate.pool.receive_pool import RecordKind
from tests.harness import frames
from tests.harness.frames import Writer
from tests.harness.pair import Pair, assert_equal, work_all
from update_process import applier as applying
from update_process.plan import open_window
from update_process.window.columns import Points
from update_process.window.single_transaction import verify_single
from update_process.work_result import Waiting

VALUES = [1, -1, 1.5, "text", b"bytes", None]


def plain_bodies(frame: bytes, next_seqno: int, points: Points) -> list[Any] | None:
    """What the ordinary way makes of it; None where it is not plain, or refused."""
    try:
        window = open_window(frame, decode_batch(frame, tuples=True), next_seqno, dict(points))
    except (DamagedError, FormatUnknownError):
        return None
    return window.bodies if window.plain is not None else None


def test_what_is_plain_is_taken_as_the_window_takes_it() -> None:
    writer = Writer()
    for payload in ([], [frames.INSERT, 9, 0, VALUES], [frames.DELETE, 9, 0, [1], frames.UPDATE, 10, 5, [1, 2]]):
        points = dict(writer.chains)
        frame = writer.frame(payload)
        found = verify_single(frame, writer.seqno, points)
        assert found is not None
        head, body = found
        assert [body] == plain_bodies(frame, writer.seqno, points)
        assert (head.seqno, head.origin, head.csn) == (writer.seqno, 7, writer.csn)
        assert {7: (head.origin_seqno, head.chain)} == writer.chains


@pytest.mark.parametrize("what", ["define", "schema", "region", "null", "history", "two", "cut", "gap", "origin"])
def test_the_rest_is_left_to_the_ordinary_way(what: str) -> None:
    writer = Writer()
    writer.many(3)
    points, next_seqno = dict(writer.chains), 4
    row = [frames.INSERT, 9, 0, [1]]
    if what in ("define", "schema", "region"):
        frame = writer.frame(
            [*row, {"define": frames.DEFINE, "schema": frames.SCHEMA}.get(what, frames.REGION), 0, 0, 0]
        )
    elif what == "null":
        frame = writer.frame(["void", []], frames.NULL)
    elif what == "history":
        frame = writer.frame([b"i" * 16, "one", 1, 0, [], "created"], frames.HISTORY)
    elif what == "two":
        frame = writer.frame(row) + writer.frame(row)
    elif what == "cut":
        frame = writer.frame(row)[:-1]
    elif what == "gap":
        writer.frame(row)
        frame, next_seqno = writer.frame(row), 5  # the number is right, its origin's is not
    else:
        writer.origin = 0
        frame = writer.frame(row)
    assert verify_single(frame, next_seqno, points) is None


def test_no_damage_passes_that_the_ordinary_way_refuses() -> None:
    writer = Writer()
    writer.many(2)
    points = dict(writer.chains)
    frame = writer.insert(9, *VALUES)
    for place in range(len(frame) * 8):
        damaged = bytearray(frame)
        damaged[place // 8] ^= 1 << place % 8
        found = verify_single(bytes(damaged), 3, points)
        if found is not None:
            assert [found[1]] == plain_bodies(bytes(damaged), 3, points), place
    assert points == {7: (2, points[7][1])}


def insert(pair: Pair, number: int) -> None:
    with pair.connect() as connection:
        connection.execute("INSERT INTO account VALUES (?, 'one', ?, NULL)", (number, number))
        connection.commit()
    connection.close()


def test_alone_and_together_they_follow_each_other(pair: Pair, monkeypatch: pytest.MonkeyPatch) -> None:
    taken: list[Waiting | None] = []
    take = applying.take_single

    def take_single(*arguments: Any) -> Waiting | None:
        taken.append(take(*arguments))
        return taken[-1]

    monkeypatch.setattr(applying, "take_single", take_single)
    with pair.receive_pool() as pool, pair.applier(pool) as applier:
        for count in (1, 1, 3, 1, 2, 1):
            for _ in range(count):
                insert(pair, pair.last_seqno() + 1)
            pair.deliver(pool)
            done = work_all(applier)
            assert (done.transactions, done.waiting) == (count, Waiting.NOTHING)
            assert applier.applied_seqno == pair.last_seqno() == pool.applied_seqno == pool.durable_seqno
            assert pool.used_bytes == 0
        assert taken.count(Waiting.MORE) >= 3  # the first one defines its table
    assert_equal(pair)


def test_one_that_does_not_fit_is_told_as_always(pair: Pair) -> None:
    insert(pair, 1)
    pair.catch_up()
    insert(pair, 2)
    with pair.receive_pool() as pool, pair.applier(pool) as applier:
        connection = apsw.Connection(str(pair.secondary.region("main").path))
        connection.config(apsw.SQLITE_DBCONFIG_ENABLE_TRIGGER, 0)
        connection.execute("INSERT INTO account VALUES (2, 'other', 0, NULL)")
        connection.close()
        pair.deliver(pool)
        before = applier.applied_seqno
        with pytest.raises(ConflictError):
            work_all(applier)
        assert applier.applied_seqno == before
        assert pool.used_bytes


def test_a_record_that_names_another_number_is_not_believed(pair: Pair) -> None:
    insert(pair, 1)
    pair.catch_up()
    insert(pair, 2)
    with pair.receive_pool() as pool, pair.applier(pool) as applier:
        seqno = applier.next_seqno
        reader = ChainReader(make_chain(pair.primary), seqno)
        found = reader.read(10**6, seqno)
        reader.close()
        assert isinstance(found, FrameBatch)
        assert pool.offer(found.data, seqno + 1, seqno + 1, 1, RecordKind.FRAMES)
        assert applier.work(1.0).waiting is Waiting.RESTART
        assert applier.applied_seqno == seqno - 1


@pytest.mark.parametrize("count", [1, 3])
def test_large_ones_after_each_other_share_a_batch(pair: Pair, count: int) -> None:
    insert(pair, 1)
    pair.catch_up()
    with pair.connect() as connection:
        for number in range(2, 2 + count):
            connection.execute("INSERT INTO account VALUES (?, ?, 0, NULL)", (number, "x" * applying.WINDOW_BYTES))
            connection.commit()
    connection.close()
    with pair.receive_pool() as pool, pair.applier(pool) as applier:
        pair.deliver(pool, record_bytes=1)  # each is a record, which alone fills what is looked at
        assert work_all(applier).batches == 1
    assert_equal(pair)
