"""The Source Server's figures for Prometheus, and whether it is ready.

Guarantees: read when they are asked for, so that lag and the time since the last contact move while nothing happens.
Refuses to know: who asks. It changes nothing but the samples of the lag, which any asking may take.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import trio

from replicate.metrics.gauges import Sample
from replicate.pool import control as word

if TYPE_CHECKING:
    from source_server.server import Source

PAUSED = "waiting for XON"
STREAMING = ("sending", PAUSED)


def figures(source: Source) -> Iterator[Sample]:
    """All of them, now. What the consumer has not told since the start is left out."""
    words, statistics = source.words, source.statistics
    written, sent = words[word.LAST_SEQNO], source.last_sent_seqno
    received, applied = source.last_received_seqno, source.last_applied_seqno
    acknowledged = source.consumer.acknowledged_seqno
    contact_s = source.last_contact_s
    is_known = contact_s is not None
    yield Sample("connected_state", source.state in STREAMING)
    yield Sample("xoff_state", source.state == PAUSED)
    yield Sample("last_contact_seconds", None if contact_s is None else trio.current_time() - contact_s)
    yield Sample("round_trip_seconds", source.round_trip_s)
    yield Sample("written_seqno", written)
    yield Sample("durable_seqno", words[word.LAST_DURABLE_SEQNO])
    yield Sample("sent_seqno", sent if is_known else None)
    yield Sample("received_seqno", received if is_known else None)
    yield Sample("applied_seqno", max(applied, acknowledged))
    yield Sample("acknowledged_seqno", acknowledged)
    yield Sample("source_backlog_transactions", max(0, written - sent) if is_known else None)
    yield Sample("receiver_backlog_transactions", max(0, received - applied) if is_known else None)
    yield Sample("backlog_transactions", max(0, written - max(applied, acknowledged)))
    yield Sample("lag_seconds", source.lag_s())
    yield Sample("fatal_errno", words[word.FATAL])
    yield Sample("transactions_total", statistics.total("transactions"))
    yield Sample("bytes_total", statistics.total("bytes"))
    yield Sample("xoff_total", statistics.total("xoff"))
    yield Sample("read_transactions_total", source.from_pool, {"place": "pool"})
    yield Sample("read_transactions_total", source.from_files, {"place": "files"})
    yield Sample("switches_total", source.switches)
    for reason, number in source.refused.items():
        yield Sample("refused_connections_total", number, {"reason": reason})


def why_not_ready(source: Source) -> str:
    """ "" while it streams; else its state, and the last error."""
    if source.state in STREAMING:
        return ""
    error = source.context.facts.get("last_error")
    return f"{source.state}: {error}" if error else source.state
