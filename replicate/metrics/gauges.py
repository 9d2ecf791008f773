"""The figures that daemons give to Prometheus: one table of names, and the page of them.

Guarantees: what is served bears a name of this table, with its help and its labels, read at the moment of the scrape; a
figure that is not known is left out, never 0; nothing of a row is a figure. Names are `dualsite_<thing>_<unit>`, and
never change their meaning once landed.
Refuses to know: who asks, over what (metrics/http.py, metrics/port.py), and where figures come from. Pure.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Final, Literal

CONTENT_TYPE: Final = "text/plain; version=0.0.4; charset=utf-8"


@dataclass(frozen=True, slots=True)
class Metric:
    """A row of the table. `labels` are those beside the ones that every figure of a daemon bears."""

    name: str
    kind: Literal["gauge", "counter"]
    help: str
    labels: tuple[str, ...] = ()


_METRICS: Final = (
    Metric("dualsite_ready_state", "gauge", "1 when /readyz says yes: the daemon serves, and has what it serves."),
    Metric("dualsite_connected_state", "gauge", "1 while the stream to or from the other site is connected."),
    Metric("dualsite_last_contact_seconds", "gauge", "Seconds since the other site was last heard of."),
    Metric("dualsite_written_seqno", "gauge", "Last transaction in the journal; of the source, as far as it is known."),
    Metric("dualsite_durable_seqno", "gauge", "Last transaction that is durable in this journal."),
    Metric("dualsite_sent_seqno", "gauge", "Last transaction sent."),
    Metric("dualsite_received_seqno", "gauge", "Last transaction received on the secondary."),
    Metric("dualsite_applied_seqno", "gauge", "Last transaction applied on the secondary."),
    Metric("dualsite_acknowledged_seqno", "gauge", "Last transaction that is durable on the secondary."),
    Metric("dualsite_source_backlog_transactions", "gauge", "Transactions committed, and not sent."),
    Metric("dualsite_receiver_backlog_transactions", "gauge", "Transactions received, and not applied."),
    Metric("dualsite_backlog_transactions", "gauge", "Transactions committed, and not applied."),
    Metric("dualsite_lag_seconds", "gauge", "Age of the oldest transaction that is not applied; 0 when all are."),
    Metric("dualsite_round_trip_seconds", "gauge", "Time that the last heartbeat took there and back."),
    Metric("dualsite_transactions_total", "counter", "Transactions sent, received or applied since the start."),
    Metric("dualsite_bytes_total", "counter", "Bytes of journal frames sent, received or applied since the start."),
    Metric("dualsite_batches_total", "counter", "Local commits of applied transactions."),
    Metric("dualsite_skipped_total", "counter", "Transactions skipped, because they were there already."),
    Metric("dualsite_read_transactions_total", "counter", "Transactions read, by place: pool or files.", ("place",)),
    Metric("dualsite_switches_total", "counter", "Changes between reading the pool and reading files."),
    Metric("dualsite_xoff_state", "gauge", "1 while the stream is paused, because the receive pool is full."),
    Metric("dualsite_xoff_total", "counter", "Pauses of the stream since the start."),
    Metric("dualsite_refused_connections_total", "counter", "Connections refused by either side.", ("reason",)),
    Metric("dualsite_update_process_state", "gauge", "1 when the Receiver Server sees the Update Process at work."),
    Metric("dualsite_receive_pool_bytes", "gauge", "Size of the receive pool."),
    Metric("dualsite_receive_pool_fill_ratio", "gauge", "How full the receive pool is, 0 to 1."),
    Metric("dualsite_fatal_errno", "gauge", "Not 0: the journal failed with this errno, and nothing is committed."),
    Metric("dualsite_journal_bytes", "gauge", "Bytes that the journal takes on its disk."),
    Metric("dualsite_journal_cap_bytes", "gauge", "Most bytes of journal that are kept (journal.cap_bytes)."),
    Metric("dualsite_journal_segments", "gauge", "Files of the journal."),
    Metric("dualsite_disk_free_bytes", "gauge", "Bytes free on the disk of the journal."),
    Metric("dualsite_disk_fill_ratio", "gauge", "How full the disk of the journal is, 0 to 1."),
    Metric("dualsite_certificate_expires_seconds", "gauge", "Seconds until a certificate in use expires.", ("file",)),
)
METRICS: Final[Mapping[str, Metric]] = {metric.name: metric for metric in _METRICS}


@dataclass(frozen=True, slots=True)
class Sample:
    """A figure at this moment. `metric` is its name without `dualsite_`; None as `value`: not known."""

    metric: str
    value: float | None
    labels: Mapping[str, str] = field(default_factory=dict)


Figures = Callable[[], Iterable[Sample]]


def no_figures() -> Iterator[Sample]:
    """Of a daemon that has none."""
    yield from ()


def page(figures: Figures, common: Mapping[str, str]) -> bytes:
    """Prometheus's text format of all figures, each with the labels `common` too. Whatever `figures` raises is raised;
    KeyError for a name that the table has not."""
    # Late: whoever serves no metrics needs not wait for the library.
    from prometheus_client import CollectorRegistry, generate_latest
    from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily
    from prometheus_client.core import Metric as Family
    from prometheus_client.registry import Collector

    class Now(Collector):
        def collect(self) -> Iterable[Family]:
            families: dict[str, Family] = {}
            for sample in figures():
                metric = METRICS[f"dualsite_{sample.metric}"]
                if sample.value is None:
                    continue
                family = families.get(metric.name)
                if family is None:
                    made = CounterMetricFamily if metric.kind == "counter" else GaugeMetricFamily
                    families[metric.name] = family = made(metric.name, metric.help, labels=[*common, *metric.labels])
                values = [*common.values(), *(sample.labels[name] for name in metric.labels)]
                family.add_metric(values, sample.value)  # type: ignore[attr-defined]
            return families.values()

    registry = CollectorRegistry(auto_describe=False)
    registry.register(Now())
    return generate_latest(registry)
