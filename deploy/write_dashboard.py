"""Writes the dashboard for Grafana again: deploy/grafana/dualsite.json.

    python deploy/write_dashboard.py

Guarantees: every metric of the daemons is in a panel; the file is the same on every machine; a test fails while it is
not what this would write. Leaves to others: Prometheus, which scrapes the daemons by jobs whose names begin "dualsite".
"""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from replicate.daemon.figures import METRICS

PLACE: Final = Path(__file__).resolve().parent / "grafana" / "dualsite.json"
OURS: Final = 'job=~"dualsite.*",instance=~"$instance"'
WHO: Final = "{{daemon}} {{peer}} {{instance}}"
SOURCE: Final = {"type": "prometheus", "uid": "${datasource}"}


@dataclass(frozen=True)
class Panel:
    """`queries`: (expression, legend). A metric's name stands for the metric with our labels."""

    title: str
    queries: tuple[tuple[str, str], ...]
    unit: str = "short"
    kind: str = "timeseries"
    about: str = ""
    width: int = 8


def each(*names: str, unit: str = "short", title: str = "", width: int = 8) -> Panel:
    """A panel of metrics as they are; what they mean is told by the daemons themselves."""
    queries = tuple((name, f"{name.replace('_', ' ')} {WHO}" if names[1:] else WHO) for name in names)
    return Panel(title, queries, unit, about=" ".join(METRICS[f"dualsite_{name}"].help for name in names), width=width)


FIRING: Final = 'ALERTS{alertname=~"Dualsite.*",alertstate="firing"}'
RATE: Final = "rate({}[$__rate_interval])"
INCREASE: Final = "increase({}[$__rate_interval])"
ROWS: Final[tuple[tuple[str, tuple[Panel, ...]], ...]] = (
    (
        "Now",
        (
            Panel("Daemons that answer", ((f"sum(up{{{OURS}}})", "answer"), (f"count(up{{{OURS}}})", "of")),
                  kind="stat", about="A daemon that is not scraped does not count.", width=6),
            Panel("Alerts that fire", ((f"count({FIRING}) or vector(0)", "firing"),),
                  kind="stat", about="Of deploy/alerts/dualsite.yml.", width=6),
            Panel("Lag", (("max(lag_seconds or lag_at_least_seconds)", "at most"),), "s", "stat",
                  "The worst that any daemon knows; where the secondary does not know it, the least that it is.", 6),
            Panel("Backlog", (("max(backlog_transactions)", "at most"),), kind="stat",
                  about="The most transactions that are committed, and not applied.", width=6),
        ),
    ),
    (
        "The street",
        (
            Panel("Transactions a second", ((RATE.format("transactions_total"), WHO),), "ops",
                  about="Sent, received or applied."),
            Panel("Bytes a second", ((RATE.format("bytes_total"), WHO),), "Bps", about="Of journal frames."),
            Panel("Read from pool and files",
                  ((RATE.format("read_transactions_total"), "{{place}} {{peer}}"),
                   (INCREASE.format("switches_total"), "switches {{peer}}")), "short",
                  about="A Source Server that reads files is too far back for the pool."),
            each("written_seqno", "sent_seqno", "received_seqno", "applied_seqno", "durable_seqno",
                 "acknowledged_seqno", title="Positions", width=16),
            Panel("Commits of the Update Process",
                  ((RATE.format("batches_total"), "batches"), (RATE.format("skipped_total"), "skipped"),
                   (f"sum({RATE.format('merged_total')}) or vector(0)", "merged (suppliers)"),
                   (f"sum({RATE.format('lost_total')}) or vector(0)", "lost in merges (suppliers)")), "ops",
                  about="Each applies several transactions. Only suppliers merge rows."),
            Panel("Suppliers stand aside", (("schema_fence_seconds or vector(0)", WHO),), "s",
                  about=METRICS["dualsite_schema_fence_seconds"].help),
        ),
    ),
    (
        "Lag and backlog",
        (
            each("lag_seconds", "lag_at_least_seconds", unit="s", title="Lag"),
            each("backlog_transactions", title="Backlog"),
            each("source_backlog_transactions", "receiver_backlog_transactions", title="Where it waits"),
        ),
    ),
    (
        "Connections",
        (
            Panel("States", tuple((name, f"{word} {WHO}") for name, word in (
                ("connected_state", "connected"), ("ready_state", "ready"), ("known_state", "known"),
                ("xoff_state", "paused"), ("passive_state", "passive"), ("update_process_state", "Update Process"),
            )), kind="state-timeline", about="1 is yes.", width=16),
            each("last_contact_seconds", "round_trip_seconds", unit="s", title="Contact"),
            Panel("Pauses", ((INCREASE.format("xoff_total"), WHO),), about=METRICS["dualsite_xoff_total"].help),
            Panel("Refused connections", (("refused_connections_total", "{{reason}} " + WHO),),
                  about="Nothing is here before the first one."),
            Panel("Receive pool", (("receive_pool_fill_ratio", "full"),), "percentunit",
                  about=METRICS["dualsite_receive_pool_fill_ratio"].help),
            each("receive_pool_bytes", unit="bytes", title="Its size"),
        ),
    ),
    (
        "Journal and disk",
        (
            each("journal_bytes", "journal_cap_bytes", unit="bytes", title="Journal and its cap"),
            each("journal_segments", title="Files of the journal"),
            each("disk_fill_ratio", unit="percentunit", title="Disk"),
            each("disk_free_bytes", unit="bytes", title="Free"),
            each("fatal_errno", title="The journal has failed"),
        ),
    ),
    (
        "Partitions",
        (
            Panel("They are here", (("partition_here_state or vector(1)", "{{partition}} " + WHO),),
                  about=METRICS["dualsite_partition_here_state"].help),
            Panel("Between the sites",
                  (("max by (partition) (partition_seqno) - min by (partition) (partition_seqno) or vector(0)",
                    "{{partition}}"),),
                  about="By so many numbers a partition's last transaction differs between its sites: 0 is level."),
            Panel("Last transaction of each",
                  (("partition_seqno or vector(0)", "{{partition}} " + WHO),
                   ("partition_origin_seqno or vector(0)", "{{partition}}, its writer's number, " + WHO)),
                  about=METRICS["dualsite_partition_seqno"].help),
            Panel("Kept back", ((f"{RATE.format('kept_back_total')} or vector(0)", WHO),), "ops",
                  about=METRICS["dualsite_kept_back_total"].help),
            Panel("Bytes spared", ((f"{RATE.format('kept_back_bytes_total')} or vector(0)", WHO),), "Bps",
                  about=METRICS["dualsite_kept_back_bytes_total"].help),
            Panel("Sent of each", ((f"{RATE.format('partition_sent_total')} or vector(0)", "{{partition}} " + WHO),),
                  "ops", about=METRICS["dualsite_partition_sent_total"].help),
            Panel("Bytes sent of each",
                  ((f"{RATE.format('partition_sent_bytes_total')} or vector(0)", "{{partition}} " + WHO),), "Bps",
                  about=METRICS["dualsite_partition_sent_bytes_total"].help),
            Panel("Kept back of each",
                  ((f"{RATE.format('partition_kept_back_total')} or vector(0)", "{{partition}} " + WHO),), "ops",
                  about=METRICS["dualsite_partition_kept_back_total"].help),
            Panel("Bytes kept back of each",
                  ((f"{RATE.format('partition_kept_back_bytes_total')} or vector(0)", "{{partition}} " + WHO),), "Bps",
                  about=METRICS["dualsite_partition_kept_back_bytes_total"].help),
            Panel("Applied of each", ((f"{RATE.format('partition_applied_total')} or vector(0)",
                                       "{{partition}} " + WHO),), "ops",
                  about=METRICS["dualsite_partition_applied_total"].help),
            Panel("Rows applied of each", ((f"{RATE.format('partition_rows_total')} or vector(0)",
                                            "{{partition}} " + WHO),), "ops",
                  about=METRICS["dualsite_partition_rows_total"].help),
            Panel("Bytes applied of each", ((f"{RATE.format('partition_bytes_total')} or vector(0)",
                                             "{{partition}} " + WHO),), "Bps",
                  about=METRICS["dualsite_partition_bytes_total"].help),
            Panel("Not applied of each", (("partition_backlog_transactions or vector(0)", "{{partition}} " + WHO),),
                  about=METRICS["dualsite_partition_backlog_transactions"].help),
            Panel("Lag of each", (("partition_lag_seconds or vector(0)", "{{partition}} " + WHO),), "s",
                  about=METRICS["dualsite_partition_lag_seconds"].help),
            Panel("Copies that come", (("partition_copied_bytes or vector(0)", "{{partition}} " + WHO),), "bytes",
                  about=METRICS["dualsite_partition_copied_bytes"].help),
        ),
    ),
    (
        "Proof",
        (
            each("patrol_verified_rows", title="Rows that the patrol has verified"),
            each("patrol_age_seconds", unit="s", title="Age of its last round"),
            each("patrol_passed_ranges", "patrol_different_ranges", title="Ranges passed over, and different"),
            each("index_verified_entries", title="Entries of indexes that the patrol has verified"),
            each("index_age_seconds", unit="s", title="Age of the last round through the indexes"),
            each("left_out_indexes", "damaged_indexes", title="Indexes left out, and damaged"),
            Panel("Last compare", (("compared_seconds", "with {{other}}, " + WHO),), "s",
                  about=METRICS["dualsite_compared_seconds"].help),
            Panel("It was equal", (("compared_equal_state", "with {{other}}, " + WHO),),
                  about=METRICS["dualsite_compared_equal_state"].help),
            Panel("Certificates end in", (("certificate_expires_seconds", "{{file}} " + WHO),), "s",
                  about=METRICS["dualsite_certificate_expires_seconds"].help),
        ),
    ),
)  # fmt: skip


def expression(text: str) -> str:
    """With the names of metrics as Prometheus has them, each with our labels."""
    names = "|".join(name.removeprefix("dualsite_") for name in METRICS)
    return re.sub(rf"\b(?:{names})\b", lambda name: f"dualsite_{name[0]}{{{OURS}}}", text)


def dashboard() -> dict[str, Any]:
    """The whole document."""
    panels: list[dict[str, Any]] = []
    top = 0
    for title, found in ROWS:
        panels.append(_place({"type": "row", "title": title, "collapsed": False, "panels": []}, 0, top, 24, 1, panels))
        top += 1
        left = 0
        for panel in found:
            height = 4 if panel.kind == "stat" else 8
            if left + panel.width > 24:
                left, top = 0, top + 8
            panels.append(_place(_panel(panel), left, top, panel.width, height, panels))
            left += panel.width
        top += 4 if found[0].kind == "stat" else 8
    return {
        "uid": "dualsite",
        "title": "Dualsite Replicate",
        "description": "Every figure of the daemons. The rules that wake somebody: deploy/alerts/dualsite.yml.",
        "tags": ["dualsite"],
        "timezone": "utc",
        "schemaVersion": 38,
        "version": 1,
        "editable": True,
        "graphTooltip": 1,
        "refresh": "10s",
        "time": {"from": "now-1h", "to": "now"},
        "templating": {"list": [_datasource(), _instances()]},
        "annotations": {"list": [_alerts()]},
        "panels": panels,
    }


def _place(panel: dict[str, Any], left: int, top: int, width: int, height: int, before: list[Any]) -> dict[str, Any]:
    return {"id": len(before) + 1, **panel, "gridPos": {"x": left, "y": top, "w": width, "h": height}}


def _panel(panel: Panel) -> dict[str, Any]:
    return {
        "type": panel.kind,
        "title": panel.title,
        "description": panel.about,
        "datasource": SOURCE,
        "fieldConfig": {"defaults": {"unit": panel.unit}, "overrides": []},
        "targets": [
            {"refId": chr(ord("A") + number), "datasource": SOURCE, "expr": expression(text), "legendFormat": legend}
            for number, (text, legend) in enumerate(panel.queries)
        ],
    }


def _datasource() -> dict[str, Any]:
    return {"name": "datasource", "label": "Data source", "type": "datasource", "query": "prometheus"}


def _instances() -> dict[str, Any]:
    query = 'label_values(dualsite_journal_bytes{job=~"dualsite.*"}, instance)'
    return {
        "name": "instance", "label": "Daemon", "type": "query", "datasource": SOURCE, "query": query, "refresh": 2,
        "multi": True, "includeAll": True, "allValue": ".*", "current": {"text": "All", "value": "$__all"},
    }  # fmt: skip


def _alerts() -> dict[str, Any]:
    return {
        "name": "Alerts", "datasource": SOURCE, "enable": True, "iconColor": "red", "titleFormat": "{{alertname}}",
        "expr": FIRING,
    }  # fmt: skip


def text() -> str:
    """The file."""
    return json.dumps(dashboard(), indent=1) + "\n"


if __name__ == "__main__":
    PLACE.write_text(text(), encoding="utf-8")
