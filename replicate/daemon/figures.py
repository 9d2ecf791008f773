"""The figures of all daemons: one table that the status, the metrics and the statistics lines read.

A new figure is one row here, and a value of its name where the daemon measures: `measured` of ConsumerState, of
SourceState, and in update_process/figures.py. What is counted over a period, and its worst moments: statistics.py.

Guarantees: a figure has one name, unit and meaning wherever it is told; a metric that is not known is left out, never
0; nothing of a row of a table is a figure. Metrics are named `dualsite_<thing>_<unit>`, and never change their meaning.
Leaves to others: who asks, over what (daemon/http.py, daemon/metrics_port.py), and where figures come from. Pure.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, Final, Literal, get_args

from msgspec import Struct

CONTENT_TYPE: Final = "text/plain; version=0.0.4; charset=utf-8"
PREFIX: Final = "dualsite_"
TOTAL: Final = "_total"
"""Ends the name of what a daemon's Statistics count since its start."""

Kind = Literal["gauge", "counter", "text"]
Channel = Literal["status", "log", "metric"]
Measured = Mapping[str, Any]
"""Values by the names of figures; None: not known. Of a figure with a label: numbers by the values of that label."""


class Figure(Struct, frozen=True):
    """A row. `name` is its key in a status and in a statistics line, `metric` (without PREFIX) the one for Prometheus.

    `where`: daemon and channels, as `source status log metric, update metric`; `every` stands for all daemons.
    `digits`: so many after the point in a status and a line.
    """

    name: str
    unit: str
    kind: Kind
    help: str
    where: str
    metric: str = ""
    label: str = ""
    digits: int | None = None

    def is_in(self, daemon: str, channel: Channel) -> bool:
        """Whether that daemon (`source`, `receiver`, `update`) tells it there."""
        places = (place.split() for place in self.where.split(","))
        return any(place[0] in (daemon, "every") and channel in place[1:] for place in places)


_TABLE: Final = (
    # What a daemon does, and with whom.
    Figure("peer", "name", "text", "The peer.", "source status"),
    Figure("state", "words", "text", "What the daemon is doing.", "every status log"),
    Figure("mode", "words", "text", "Whether it sends (active), or sleeps (passive).", "source status log"),
    Figure("passive", "state", "gauge", "1 while nothing is sent, because an operator has said so.",
           "source metric", "passive_state"),
    Figure("listen", "HOST:PORT", "text", "Where it waits for the source.", "receiver status"),
    Figure("is_connected", "state", "gauge", "Whether a source is accepted.", "receiver status"),
    Figure("is_streaming", "state", "gauge", "Whether its stream has begun.", "receiver status"),
    Figure("source", "name", "text", "The source.", "receiver status log"),
    Figure("filter", "words", "text", "The filter of the stream, and its digest.",
           "source status log, receiver status log"),
    Figure("patrol", "words", "text", "What the patrol digests now.", "source status"),
    Figure("patrol_verified_rows", "rows", "gauge", "Rows found equal by the last whole round of the patrol.",
           "receiver status log metric", "patrol_verified_rows"),
    Figure("patrol_age_s", "seconds", "gauge", "Seconds since the last whole round of the patrol began.",
           "receiver log metric", "patrol_age_seconds", digits=0),  # an age in a status writes its file each second
    Figure("patrol_passed", "ranges", "gauge", "Ranges that it could not verify.",
           "receiver status log metric", "patrol_passed_ranges"),
    Figure("patrol_different", "ranges", "gauge", "Ranges of rows that differ from the source's, by the patrol.",
           "receiver status log metric", "patrol_different_ranges"),
    Figure("index_entries", "entries", "gauge", "Entries of indexes that the last whole round has looked at.",
           "source status log metric, receiver status log metric", "index_verified_entries"),
    Figure("index_age_s", "seconds", "gauge", "Seconds since the last whole round through the indexes began.",
           "source log metric, receiver log metric", "index_age_seconds", digits=0),
    Figure("index_left_out", "indexes", "gauge", "Indexes that it could not look at, or not wholly.",
           "source status log metric, receiver status log metric", "left_out_indexes"),
    Figure("index_damaged", "indexes", "gauge", "Indexes, and generated columns, that are not as the rows have them.",
           "source status log metric, receiver status log metric", "damaged_indexes"),
    Figure("filter_error", "words", "text", "What the filter has failed of.", "source status, receiver status"),
    Figure("update_process", "words", "text", "How the Update Process is.", "receiver status"),
    Figure("peer_update_state", "words", "text", "How the peer's Update Process is.", "source status"),
    Figure("peer_region_waits", "state", "gauge", "Whether a region waits there for its seed.", "source status"),
    Figure("peer_not_applying_since_wall_ns", "ns", "gauge", "Since when the peer applies nothing.", "source status"),
    Figure("ready", "state", "gauge", "1 when /readyz says yes: the daemon serves, and has what it serves.",
           "every metric", "ready_state"),
    Figure("connected", "state", "gauge", "1 while the stream to or from the other site is connected.",
           "every metric", "connected_state"),
    Figure("paused", "state", "gauge", "1 while the stream is paused, because the receive pool is full.",
           "source metric, receiver metric", "xoff_state"),
    Figure("update_running", "state", "gauge", "1 when the Receiver Server sees the Update Process at work.",
           "receiver metric", "update_process_state"),
    # When the other site was heard.
    Figure("heartbeat_period_s", "seconds", "gauge", "Between two heartbeats of the source.",
           "source status, receiver status"),
    Figure("last_contact_s", "seconds", "gauge", "Seconds since the other site was last heard of.",
           "source metric, receiver metric", "last_contact_seconds"),
    Figure("known", "state", "gauge", "1 while the other site has said within a heartbeat and a grace how it stands.",
           "every metric", "known_state"),
    Figure("round_trip_s", "seconds", "gauge", "Time that the last heartbeat took there and back.",
           "source status metric", "round_trip_seconds", digits=6),
    # How far it is.
    Figure("last_written_seqno", "seqno", "gauge",
           "Last transaction in the journal; of the source, as far as it is known.",
           "source status log metric, receiver metric, update metric", "written_seqno"),
    Figure("source_last_seqno", "seqno", "gauge", "Last transaction of the source, by its word.", "receiver status"),
    Figure("last_durable_seqno", "seqno", "gauge", "Last transaction that is durable in this journal.",
           "source status metric, update log metric", "durable_seqno"),
    Figure("last_sent_seqno", "seqno", "gauge", "Last transaction sent.", "source status metric", "sent_seqno"),
    Figure("last_received_seqno", "seqno", "gauge", "Last transaction received on the secondary.",
           "source status metric, receiver status metric, update metric", "received_seqno"),
    Figure("last_applied_seqno", "seqno", "gauge", "Last transaction applied on the secondary.",
           "source status log metric, receiver status log metric, update status metric", "applied_seqno"),
    Figure("last_acknowledged_seqno", "seqno", "gauge", "Last transaction that is durable on the secondary.",
           "source status log metric, receiver log metric", "acknowledged_seqno"),
    Figure("source_backlog", "transactions", "gauge", "Transactions committed, and not sent.",
           "source log metric, receiver log metric", "source_backlog_transactions"),
    Figure("receiver_backlog", "transactions", "gauge", "Transactions received, and not applied.",
           "every log metric", "receiver_backlog_transactions"),
    Figure("unacknowledged", "transactions", "gauge", "Transactions that may not be durable there.", "source log"),
    Figure("backlog", "transactions", "gauge", "Transactions committed, and not applied.",
           "source metric, receiver log metric, update metric", "backlog_transactions"),
    Figure("lag_s", "seconds", "gauge", "Age of the oldest transaction that is not applied; 0 when all are.",
           "source status log metric, receiver status log metric, update log metric", "lag_seconds"),
    Figure("lag_at_least_s", "seconds", "gauge",
           "On the secondary: the lag, or where that is not known how long the source has not said how it stands.",
           "receiver status log metric, update log metric", "lag_at_least_seconds", digits=3),
    Figure("applied_per_s", "per second", "gauge", "Transactions applied while there is work without a pause.",
           "update status"),
    # What was done since the start.
    Figure("transactions_total", "total", "counter", "Transactions sent, received or applied since the start.",
           "source log metric, receiver log metric, update status log metric", "transactions_total"),
    Figure("bytes_total", "total", "counter", "Bytes of journal frames sent, received or applied since the start.",
           "every log metric", "bytes_total"),
    Figure("batches_total", "total", "counter", "Local commits of applied transactions.",
           "update log metric", "batches_total"),
    Figure("parts_total", "total", "counter", "Parts of large transactions applied.", "update log"),
    Figure("skipped_total", "total", "counter", "Transactions skipped, because they were there already.",
           "update status log metric", "skipped_total"),
    Figure("merged_total", "total", "counter", "On a supplier: transactions in which rows were merged.",
           "update metric", "merged_total"),
    Figure("lost_total", "total", "counter", "On a supplier: values that were lost in merges, and kept.",
           "update metric", "lost_total"),
    Figure("schema_fence_s", "seconds", "gauge",
           "On a supplier: seconds since one has the others stand aside to change the schema; 0 while none does.",
           "update metric", "schema_fence_seconds", digits=0),
    Figure("xoff_total", "total", "counter", "Pauses of the stream since the start.",
           "source log metric, receiver log metric", "xoff_total"),
    Figure("xon_total", "total", "counter", "Ends of such pauses.", "receiver log"),
    Figure("duplicates_total", "total", "counter", "Transactions received again, and left out.", "receiver log"),
    Figure("cuts_total", "total", "counter", "Streams that were lost.", "source log, receiver log"),
    Figure("transactions_from_pool", "total", "counter", "Transactions read from the journal pool.", "source status"),
    Figure("transactions_from_files", "total", "counter", "Transactions read from journal files.", "source status"),
    Figure("from_pool", "total", "counter", "Transactions read from the journal pool.", "source log"),
    Figure("from_files", "total", "counter", "Transactions read from journal files.", "source log"),
    Figure("read_transactions", "total", "counter", "Transactions read, by place: pool or files.",
           "source metric", "read_transactions_total", label="place"),
    Figure("switches", "total", "counter", "Changes between reading the pool and reading files.",
           "source status log metric", "switches_total"),
    Figure("refused_connections", "total", "counter", "Connections refused by either side.",
           "source metric, receiver metric", "refused_connections_total", label="reason"),
    # What it stands on.
    Figure("pool_bytes", "bytes", "gauge", "Size of the receive pool.", "receiver status metric", "receive_pool_bytes"),
    Figure("pool_percent", "percent", "gauge", "How full the receive pool is (a supplier's fullest).",
           "receiver status log", digits=1),
    Figure("pool_fill", "ratio", "gauge", "How full the receive pool is, 0 to 1 (a supplier's fullest).",
           "receiver metric", "receive_pool_fill_ratio"),
    Figure("fatal_errno", "errno", "gauge", "Not 0: the journal failed with this errno, and nothing is committed.",
           "source metric, update metric", "fatal_errno"),
    Figure("journal_bytes", "bytes", "gauge", "Bytes that the journal takes on its disk.",
           "every metric", "journal_bytes"),
    Figure("journal_cap_bytes", "bytes", "gauge", "Most bytes of journal that are kept (journal.cap_bytes).",
           "every metric", "journal_cap_bytes"),
    Figure("journal_segments", "segments", "gauge", "Files of the journal.", "every metric", "journal_segments"),
    Figure("disk_free_bytes", "bytes", "gauge", "Bytes free on the disk of the journal.",
           "every metric", "disk_free_bytes"),
    Figure("disk_fill", "ratio", "gauge", "How full the disk of the journal is, 0 to 1.",
           "every metric", "disk_fill_ratio"),
    # By partition, and nothing of it where all tables are in DEFAULT.
    Figure("partition_here", "state", "gauge", "1 when the rows of that partition, which is wanted, are here.",
           "receiver metric", "partition_here_state", label="partition"),
    Figure("partition_states", "words", "text", "How each partition is here.", "receiver log"),
    Figure("partition_copied", "bytes", "gauge", "Bytes that have come of the copy of a partition that is loaded.",
           "receiver metric", "partition_copied_bytes", label="partition"),
    Figure("partition_seqno", "seqno", "gauge", "Last transaction here that changes that partition.",
           "source metric, update metric", "partition_seqno", label="partition"),
    Figure("partition_origin_seqno", "seqno", "gauge", "The same, by the number that its writer has given it.",
           "source metric, update metric", "partition_origin_seqno", label="partition"),
    Figure("partition_applied", "total", "counter", "Transactions applied that change that partition.",
           "update status log metric", "partition_applied_total", label="partition"),
    Figure("partition_rows", "total", "counter", "Rows of that partition changed by what was applied.",
           "update status log metric", "partition_rows_total", label="partition"),
    Figure("partition_bytes", "total", "counter", "Bytes of journal frames of the transactions that change it.",
           "update status log metric", "partition_bytes_total", label="partition"),
    Figure("partition_sent", "total", "counter", "Transactions sent that change that partition, which the peer wants.",
           "source status log metric", "partition_sent_total", label="partition"),
    Figure("partition_sent_bytes", "total", "counter", "Bytes of journal frames of these transactions.",
           "source status log metric", "partition_sent_bytes_total", label="partition"),
    Figure("partition_kept_back", "total", "counter", "Transactions that change that partition, which stays here.",
           "source status log metric", "partition_kept_back_total", label="partition"),
    Figure("partition_kept_back_bytes", "total", "counter", "Bytes of journal frames of these transactions.",
           "source status log metric", "partition_kept_back_bytes_total", label="partition"),
    Figure("partition_backlog", "transactions", "gauge",
           "Transactions that change that partition, committed, wanted by the peer, and not applied there.",
           "source metric", "partition_backlog_transactions", label="partition"),
    Figure("partition_lag_s", "seconds", "gauge", "Age of the oldest of these; 0 when there is none.",
           "source metric", "partition_lag_seconds", label="partition"),
    Figure("kept_back", "total", "counter", "Transactions of which the peer gets the number only, as it wants no more.",
           "source log metric", "kept_back_total"),
    Figure("kept_back_bytes", "total", "counter", "Bytes of journal frames that the peer is spared so.",
           "source log metric", "kept_back_bytes_total"),
    Figure("compared_s", "seconds", "gauge", "Seconds since the last compare with another instance.",
           "every metric", "compared_seconds", label="other"),
    Figure("compared_equal", "state", "gauge", "1 when that compare has found no difference.",
           "every metric", "compared_equal_state", label="other"),
    Figure("certificate_expires_s", "seconds", "gauge", "Seconds until a certificate in use expires.",
           "every metric", "certificate_expires_seconds", label="file"),
)  # fmt: skip
FIGURES: Final[Mapping[str, Figure]] = {figure.name: figure for figure in _TABLE}
METRICS: Final[Mapping[str, Figure]] = {PREFIX + figure.metric: figure for figure in _TABLE if figure.metric}

_TOLD: Final[Mapping[tuple[str, str], Mapping[str, Figure]]] = {
    (daemon, channel): {figure.name: figure for figure in _TABLE if figure.is_in(daemon, channel)}
    for daemon in ("source", "receiver", "update")
    for channel in get_args(Channel)
}

_DIGITS: Final = {figure.name: figure.digits for figure in _TABLE if figure.digits is not None}

Figures = Callable[[], Measured]


def no_figures() -> Measured:
    """Of a daemon that has none."""
    return {}


def counters(daemon: str) -> Iterator[str]:
    """What the daemon's Statistics count, by its name there: in each line, also before the first of it."""
    return (name.removesuffix(TOTAL) for name in _TOLD[daemon, "log"] if name.endswith(TOTAL))


def facts(daemon: str, measured: Measured) -> dict[str, Any]:
    """What stands in that daemon's status, in the order of `measured`."""
    told = _TOLD[daemon, "status"]
    return _rounded({name: value for name, value in measured.items() if name in told})


def fields(daemon: str, measured: Measured) -> dict[str, Any]:
    """What stands in that daemon's statistics lines, beside the report of its Statistics."""
    told = _TOLD[daemon, "log"]
    return _rounded({name: value for name, value in measured.items() if name in told and not name.endswith(TOTAL)})


def _rounded(found: dict[str, Any]) -> dict[str, Any]:
    for name, digits in _DIGITS.items():
        if found.get(name) is not None:
            found[name] = round(found[name], digits)
    return found


def page(daemon: str, figures: Figures, common: Mapping[str, str]) -> bytes:
    """Prometheus's text format of that daemon's metrics, each with the labels `common` too. What `figures` raises is
    raised; KeyError for a name that the table has not."""
    # Late: a daemon that serves no metrics need not wait for the library.
    from prometheus_client import CollectorRegistry, generate_latest
    from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily
    from prometheus_client.core import Metric as Family
    from prometheus_client.registry import Collector

    told = _TOLD[daemon, "metric"]

    class Now(Collector):
        def collect(self) -> Iterable[Family]:
            for name, value in figures().items():
                figure = FIGURES[name]
                if name not in told or value is None:
                    continue
                values = value if figure.label else {"": value}
                made = CounterMetricFamily if figure.kind == "counter" else GaugeMetricFamily
                labels = [*common, figure.label] if figure.label else [*common]
                family = made(PREFIX + figure.metric, figure.help, labels=labels)
                for label, number in values.items():
                    family.add_metric([*common.values(), *([label] if figure.label else [])], number)
                if values:
                    yield family

    registry = CollectorRegistry(auto_describe=False)
    registry.register(Now())
    return generate_latest(registry)
