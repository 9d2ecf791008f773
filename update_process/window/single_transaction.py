"""A transaction that has come alone, as each does where little is written: its way past what many need together.

A window with its columns, a batch that is still open, decisions about what stands after it: without these a row is to
be seen on the secondary a tenth sooner (bench_latency), because each of our processes wakes with cold caches, and all
that it runs through costs several times what it costs under load.

Guarantees: what is applied here has passed every check that the ordinary way makes, and is committed by the same call;
whatever is not plain, does not verify or does not fit is left to that way as it was, which has the verdict.
Leaves to others: what is wrong with it; when a transaction is alone (applier.py).
"""

from __future__ import annotations

from collections.abc import Callable

import msgpack
from xxhash import xxh3_64_intdigest

from replicate.door.secondary import ApplySession
from replicate.errors import DamagedError, NotSupportedError
from replicate.journal.frame import FRAME_PREFIX_BYTES, ORIGIN_OFFSET
from replicate.journal.record import UNPACK_ERRORS, FrameBatch, Head, read_head
from replicate.model.transaction import Kind
from replicate.pool.receive_pool import ReceivedRecord, ReceivePool, RecordKind
from replicate.system.failpoint import hit
from update_process.routes import Routes
from update_process.window.columns import BOUND, PAYLOAD, START, Points
from update_process.work_result import Done, Waiting

_TRANSACTION = int(Kind.TRANSACTION)


def verify_single(frame: bytes, next_seqno: int, points: Points) -> tuple[Head, tuple[object, ...]] | None:
    """Head and body of the one frame that `frame` is, if it only changes rows and continues exactly what came before;
    None otherwise, which says nothing. `points`: where each origin stands, left as it is."""
    try:
        head = read_head(frame)
        last_origin_seqno, last_chain = points.get(head.origin, START)
        if (
            head.frame_bytes != len(frame)
            or head.kind != _TRANSACTION
            or head.seqno != next_seqno
            or not head.origin
            or head.origin_seqno != last_origin_seqno + 1
            or xxh3_64_intdigest(memoryview(frame)[ORIGIN_OFFSET:], last_chain) != head.chain
        ):
            return None
        # Whatever unpacks to another length, or is not one array, raises.
        body = msgpack.unpackb(memoryview(frame)[FRAME_PREFIX_BYTES:], use_list=False, max_array_len=65_535,
                               max_map_len=0)  # fmt: skip
        if (len(body) - PAYLOAD) % 4 or not BOUND.isdisjoint(body[PAYLOAD::4]):
            return None
    except (DamagedError, *UNPACK_ERRORS):
        return None
    return head, body


def take_single(
    record: ReceivedRecord,
    session: ApplySession,
    pool: ReceivePool,
    routes: Routes,
    points: Points,
    from_seqno: int,
    begin: Callable[[Done], bool],
    done: Done,
) -> Waiting | None:
    """Apply, commit and free a record of one transaction, and move `points` and `done`; None: it is for the ordinary
    way, and nothing has happened. `from_seqno`: what is below is for that way. `begin`: as `Applier._begin`. Raises
    what a commit raises.

    Milliseconds from commit() to the row's being visible, medians of 900 each, in turns at 8c22656, real-time priority:
    1.04 and 1.02; 1.19 and 1.23 by the ordinary way (bench_latency, which says how it is measured).
    """
    next_seqno = session.position.last_seqno + 1
    is_one = record.kind is RecordKind.FRAMES and record.count == 1 and record.first_seqno == record.last_seqno
    if not is_one or record.last_seqno != next_seqno or next_seqno < from_seqno:
        return None
    if record.next_address != pool.written_address:
        return None  # a large one, and more stands after it: together they take one flush
    found = verify_single(record.data, next_seqno, points)
    if found is None:
        return None
    head, body = found
    try:
        partitions = {routes.partition_of(table_id) for table_id in body[PAYLOAD + 1 :: 4]}  # type: ignore[arg-type]
        position = session.position.advanced(
            head.seqno, head.origin, head.origin_seqno, head.chain, [one for one in partitions if one is not None]
        )
    except TypeError:  # no table id
        return None
    if not begin(done):
        return Waiting.LOCK
    try:
        routes.apply_single(body, head.seqno)
    except (DamagedError, NotSupportedError):
        session.rollback()
        return None
    session.commit(FrameBatch(head.seqno, head.seqno, 1, record.data), position, head.csn, last=head)
    points[head.origin] = (head.origin_seqno, head.chain)
    if routes.counted is not None:
        routes.counted.add_single(body[PAYLOAD:], len(record.data), routes.partition_of)
    done.transactions += 1
    done.bytes += len(record.data)
    done.batches += 1
    hit("update.before_free")
    pool.free(record.next_address)
    return Waiting.MORE
