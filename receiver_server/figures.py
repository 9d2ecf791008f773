"""The Receiver Server's figures for Prometheus, and whether it is ready.

Guarantees: read when they are asked for, so that lag and the time since the last contact move while nothing happens.
Refuses to know: who asks. It changes nothing but the samples of the lag, which any asking may take.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import trio

from replicate.metrics.gauges import Sample

if TYPE_CHECKING:
    from receiver_server.server import Receiver


def figures(receiver: Receiver) -> Iterator[Sample]:
    """All of them, now. What the source has not told since the start is left out."""
    pool, statistics, active = receiver.pool, receiver.statistics, receiver.active
    received, applied = pool.last_received_seqno, receiver.applied_seqno
    source_last, contact_s = receiver.source_last_seqno, receiver.last_contact_s
    yield Sample("connected_state", active is not None)
    yield Sample("xoff_state", active is not None and active.is_stopped)
    yield Sample("last_contact_seconds", None if contact_s is None else trio.current_time() - contact_s)
    # The source's word may be older than what it has sent since.
    yield Sample("written_seqno", None if source_last is None else max(source_last, received))
    yield Sample("received_seqno", received)
    yield Sample("applied_seqno", applied)
    yield Sample("acknowledged_seqno", min(pool.durable_seqno, applied))
    yield Sample("source_backlog_transactions", None if source_last is None else max(0, source_last - received))
    yield Sample("receiver_backlog_transactions", max(0, received - applied))
    yield Sample("backlog_transactions", max(0, max(source_last or 0, received) - applied))
    yield Sample("lag_seconds", receiver.lag_s())
    yield Sample("update_process_state", receiver.is_update_running)
    yield Sample("receive_pool_bytes", pool.memory.bytes)
    yield Sample("receive_pool_fill_ratio", pool.fill_fraction)
    yield Sample("transactions_total", statistics.total("transactions"))
    yield Sample("bytes_total", statistics.total("bytes"))
    yield Sample("xoff_total", statistics.total("xoff"))
    for reason, number in receiver.refused.items():
        yield Sample("refused_connections_total", number, {"reason": reason})


def why_not_ready(receiver: Receiver) -> str:
    """ "" while a source streams to it; else its state."""
    active = receiver.active
    return "" if active is not None and active.is_streaming else receiver.context.text
