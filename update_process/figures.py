"""The Update Process's figures for Prometheus, and whether it is ready.

Guarantees: read when they are asked for, so that lag moves while nothing happens. Only words and counters are read: the
applying thread goes on meanwhile.
Leaves to others: who asks.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

from replicate.daemon.statistics import Lag, Statistics
from replicate.door.secondary import ApplySession
from replicate.model.contact import Known, known, not_told
from replicate.pool import control as word
from replicate.pool.receive_pool import SOURCE_LAST_SEQNO, ReceivePool
from update_process.batch.by_partition import PartitionCounts
from update_process.work_result import Waiting


def measured(session: ApplySession, pool: ReceivePool | None, statistics: Statistics, lag: Lag) -> dict[str, Any]:
    """The figures of daemon/figures.py, now; those of the stream are not known while no receive pool is attached."""
    words = session.door.words
    applied = words[word.LAST_SEQNO]
    stream = None if session.door.instance.is_supplier else pool  # a supplier's Receiver Server tells of its sources
    found = None if stream is None else known_of_source(session, stream, lag)
    received = None if stream is None else stream.last_received_seqno
    return {
        "connected": pool is not None,
        "last_applied_seqno": applied,
        "last_durable_seqno": words[word.LAST_DURABLE_SEQNO],
        "fatal_errno": words[word.FATAL],
        "transactions_total": statistics.total("transactions"),
        "bytes_total": statistics.total("bytes"),
        "batches_total": statistics.total("batches"),
        "skipped_total": statistics.total("skipped"),
        "merged_total": statistics.total("merged") if session.door.instance.is_supplier else None,
        "lost_total": statistics.total("lost") if session.door.instance.is_supplier else None,
        "known": None if found is None else found.is_known,
        "last_written_seqno": None if stream is None else max(stream.words[SOURCE_LAST_SEQNO], received or 0),
        "last_received_seqno": received,
        "receiver_backlog": None if received is None else max(0, received - applied),
        "backlog": None if found is None else found.backlog,
        "lag_s": None if found is None else found.lag_s,
        "lag_at_least_s": None if found is None else found.lag_at_least_s,
    }


def applied_of_each(counts: PartitionCounts, name: Callable[[int], str]) -> dict[str, dict[str, int]]:
    """What was applied of each partition since the start, by its name."""
    found = sorted(counts.found.copy().items())  # at once: another thread counts on
    figures = ("partition_applied", "partition_rows", "partition_bytes")
    return {figure: {name(number): one[place] for number, one in found} for place, figure in enumerate(figures)}


def known_of_source(session: ApplySession, pool: ReceivePool, lag: Lag) -> Known:
    """What is known now of how far this secondary is behind its source, by what the Receiver Server has noted."""
    applied, now_ns = session.door.words[word.LAST_SEQNO], time.monotonic_ns()
    newest = max(pool.words[SOURCE_LAST_SEQNO], pool.last_received_seqno)
    lag.observed(newest, now_ns)
    told_s = pool.source_told_s(now_ns)
    return known(
        is_connected=pool.is_connected,
        told_s=told_s,
        heard_s=told_s,
        period_s=pool.source_period_s,
        backlog=max(0, newest - applied),
        lag_s=lag.seconds(applied, now_ns),
    )


def why_not_ready(session: ApplySession, pool: ReceivePool | None, lag: Lag, waiting: Waiting) -> str:
    """ "" while it applies, or has nothing to apply and knows that; else what it waits for."""
    if pool is None:
        return "waiting for the Receiver Server"
    if waiting in (Waiting.LOCK, Waiting.RESTART):
        return str(waiting.value)
    if session.door.instance.is_supplier:
        return "" if pool.is_connected else "no source is connected"
    if known_of_source(session, pool, lag).is_known:
        return ""
    return not_told(pool.source_told_s(time.monotonic_ns())) if pool.is_connected else "no source is connected"
