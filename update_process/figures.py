"""The Update Process's figures for Prometheus, and whether it is ready.

Guarantees: read when they are asked for, so that lag moves while nothing happens. Only words and counters are read: the
applying thread goes on meanwhile.
Refuses to know: who asks.
"""

from __future__ import annotations

import time
from collections.abc import Iterator

from replicate.apply_session import ApplySession
from replicate.metrics.gauges import Sample
from replicate.metrics.statistics import Lag, Statistics
from replicate.pool import control as word
from replicate.pool.receive_pool import SOURCE_LAST_SEQNO, ReceivePool
from update_process.applier import Waiting


def figures(session: ApplySession, pool: ReceivePool | None, statistics: Statistics, lag: Lag) -> Iterator[Sample]:
    """All of them, now; those of the stream only while the receive pool is attached."""
    words = session.door.words
    applied = words[word.LAST_SEQNO]
    yield Sample("connected_state", pool is not None)
    yield Sample("applied_seqno", applied)
    yield Sample("durable_seqno", words[word.LAST_DURABLE_SEQNO])
    yield Sample("fatal_errno", words[word.FATAL])
    yield Sample("transactions_total", statistics.total("transactions"))
    yield Sample("bytes_total", statistics.total("bytes"))
    yield Sample("batches_total", statistics.total("batches"))
    yield Sample("skipped_total", statistics.total("skipped"))
    if pool is None:
        return
    received = pool.last_received_seqno
    known = max(pool.words[SOURCE_LAST_SEQNO], received)
    yield Sample("written_seqno", known)
    yield Sample("received_seqno", received)
    yield Sample("receiver_backlog_transactions", max(0, received - applied))
    yield Sample("backlog_transactions", max(0, known - applied))
    yield Sample("lag_seconds", lag.seconds(applied, time.monotonic_ns()))


def why_not_ready(pool: ReceivePool | None, waiting: Waiting) -> str:
    """ "" while it applies, or has nothing to apply; else what it waits for."""
    if pool is None:
        return "waiting for the Receiver Server"
    return waiting.value if waiting in (Waiting.LOCK, Waiting.RESTART) else ""
