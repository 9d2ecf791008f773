"""What an operator sees of a running street: metrics that move while nothing happens, readiness, rules that fit."""

from __future__ import annotations

import math
import re
import socket
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from prometheus_client.parser import text_string_to_metric_families

from replicate.daemon.figures import METRICS
from tests.harness.street import Street
from tests.harness.waiting import wait_until

RULES = Path(__file__).resolve().parents[2] / "deploy" / "alerts" / "dualsite.yml"
SETTINGS = """
[source]
metrics_listen = "127.0.0.1:0"
heartbeat_period_s = 0.3
hard_period_s = 0.1
soft_period_s = 0.2
[receiver]
metrics_listen = "127.0.0.1:0"
pool_bytes = "4 MiB"
[update]
metrics_listen = "127.0.0.1:0"
"""
PROMETHEUS_OWN = {"up"}
WITH_TLS_ONLY = {"dualsite_certificate_expires_seconds"}
ON_REFUSAL_ONLY = {"dualsite_refused_connections_total"}
ON_SUPPLIERS_ONLY = {"dualsite_merged_total", "dualsite_lost_total"}  # test_suppliers.py
WITH_PARTITIONS_ONLY = {
    "dualsite_partition_here_state",  # receiver_server/test_source_state.py
    *("dualsite_partition_seqno", "dualsite_partition_origin_seqno"),  # test_partition_figures.py
    "dualsite_partition_copied_bytes",  # status/test_partition_figures.py
    *("dualsite_partition_applied_total", "dualsite_partition_rows_total", "dualsite_partition_bytes_total"),
    *("dualsite_partition_sent_total", "dualsite_partition_sent_bytes_total"),
    *("dualsite_partition_kept_back_total", "dualsite_partition_kept_back_bytes_total"),
    *("dualsite_partition_backlog_transactions", "dualsite_partition_lag_seconds"),  # all: test_partition_figures.py
    *("dualsite_kept_back_total", "dualsite_kept_back_bytes_total"),  # test_partition_figures.py
}

Figures = dict[str, list[tuple[dict[str, str], float]]]


@pytest.fixture(scope="module")
def street(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Street]:
    made = Street(tmp_path_factory.mktemp("street"), settings=SETTINGS)
    try:
        yield made.build().start()
    finally:
        made.close()


def get(street: Street, instance: Path, daemon: str, path: str) -> tuple[int, str]:
    address = street.daemon(instance, daemon)["facts"]["metrics_listen"]
    try:
        with urllib.request.urlopen(f"http://{address}{path}", timeout=60) as answer:
            return int(answer.status), answer.read().decode()
    except urllib.error.HTTPError as error:
        return error.code, error.read().decode()


def figures(street: Street, instance: Path, daemon: str) -> Figures:
    status, text = get(street, instance, daemon, "/metrics")
    assert status == 200
    found: Figures = {}
    for family in text_string_to_metric_families(text):
        for sample in family.samples:
            found.setdefault(sample.name, []).append((sample.labels, sample.value))
    return found


def value(street: Street, instance: Path, daemon: str, name: str) -> float:
    """Of a metric without further labels; NaN while it is not known."""
    samples = figures(street, instance, daemon).get(f"dualsite_{name}", [({}, math.nan)])
    ((_, number),) = samples
    return number


def daemons(street: Street) -> list[tuple[Path, str]]:
    return [(street.primary, "source-secondary"), (street.secondary, "receiver"), (street.secondary, "update")]


def test_every_figure_of_the_table_is_served_and_true(street: Street) -> None:
    last = street.prove_equal()
    wait_until(lambda: value(street, street.primary, "source-secondary", "acknowledged_seqno") == last)
    wait_until(lambda: "dualsite_round_trip_seconds" in figures(street, street.primary, "source-secondary"))
    wait_until(lambda: "dualsite_patrol_passed_ranges" in figures(street, street.secondary, "receiver"))
    served: set[str] = set()
    for instance, daemon in daemons(street):
        wait_until(
            lambda at=instance, of=daemon: is_level(street, at, of, last), what=f"{daemon} tells that all is level"
        )  # type: ignore[misc]
        found = figures(street, instance, daemon)
        served |= found.keys()
        for samples in found.values():
            for labels, _ in samples:
                assert labels["daemon"] == daemon.partition("-")[0]
                assert labels["peer"] == daemon.partition("-")[2]
        assert found["dualsite_journal_bytes"][0][1] > 0
        wait_until(lambda at=instance, of=daemon: get(street, at, of, "/readyz") == (200, "ready\n"))  # type: ignore[misc]
        assert get(street, instance, daemon, "/livez") == (200, "alive\n")
    assert served | WITH_TLS_ONLY | ON_REFUSAL_ONLY | ON_SUPPLIERS_ONLY | WITH_PARTITIONS_ONLY == METRICS.keys()
    places = figures(street, street.primary, "source-secondary")["dualsite_read_transactions_total"]
    read = {labels["place"]: number for labels, number in places}
    assert read["pool"] + read["files"] >= 1


def is_level(street: Street, instance: Path, daemon: str, last: int) -> bool:
    """Whether its figures say that all up to `last` is everywhere, and that it is ready. One that has not heard from
    the other site for a moment does not say so."""
    found = figures(street, instance, daemon)
    wanted = {
        **dict.fromkeys(("applied_seqno", "written_seqno", "received_seqno"), last),
        **dict.fromkeys(("backlog_transactions", "receiver_backlog_transactions", "lag_seconds"), 0),
        **dict.fromkeys(("connected_state", "ready_state"), 1),
    }
    return all(found.get(f"dualsite_{name}", [({}, math.nan)])[0][1] == number for name, number in wanted.items())


def test_lag_moves_while_nothing_is_written_and_nobody_applies(street: Street) -> None:
    street.on(street.secondary, "update", "stop")
    last = street.write("INSERT INTO loose VALUES ('not', 'applied')")
    wait_until(lambda: value(street, street.secondary, "receiver", "received_seqno") == last)
    for instance, daemon in daemons(street)[:2]:
        wait_until(lambda at=instance, of=daemon: value(street, at, of, "backlog_transactions") == 1)  # type: ignore[misc]
        wait_until(lambda at=instance, of=daemon: value(street, at, of, "lag_seconds") > 0)  # type: ignore[misc]
        first = value(street, instance, daemon, "lag_seconds")
        wait_until(lambda at=instance, of=daemon, was=first: value(street, at, of, "lag_seconds") > was)  # type: ignore[misc]
    wait_until(lambda: value(street, street.secondary, "receiver", "update_process_state") == 0)
    street.start_update()
    street.prove_equal()
    wait_until(lambda: value(street, street.secondary, "receiver", "update_process_state") == 1)


def test_readiness_tells_what_is_missing_and_the_time_since_the_last_contact_grows(street: Street) -> None:
    port = street.port()
    street.on(street.secondary, "receiver", "stop", "--keep-update")
    wait_until(lambda: get(street, street.primary, "source-secondary", "/readyz")[0] == 503)
    wait_until(lambda: "UNREACHABLE" in get(street, street.primary, "source-secondary", "/readyz")[1])
    assert get(street, street.primary, "source-secondary", "/livez")[0] == 200
    contact = value(street, street.primary, "source-secondary", "last_contact_seconds")
    wait_until(lambda: value(street, street.primary, "source-secondary", "last_contact_seconds") > contact + 0.5)
    assert value(street, street.primary, "source-secondary", "connected_state") == 0
    street.start_receiver(f"127.0.0.1:{port}")
    wait_until(lambda: get(street, street.primary, "source-secondary", "/readyz")[0] == 200)
    wait_until(lambda: value(street, street.primary, "source-secondary", "last_contact_seconds") < contact)
    street.prove_equal()


def test_refused_connections_are_counted_by_reason(street: Street) -> None:
    def refused() -> float:
        found = figures(street, street.secondary, "receiver").get("dualsite_refused_connections_total", [])
        assert all(re.fullmatch("[A-Z_]+", labels["reason"]) for labels, _ in found)
        return sum(number for _, number in found)

    before = refused()
    with socket.create_connection(("127.0.0.1", street.port()), timeout=60) as stranger:
        stranger.sendall(b"GET / HTTP/1.1\r\n\r\n" * 400)
        wait_until(lambda: refused() == before + 1, what="the stranger is counted")
    street.prove_equal()


def test_a_port_that_is_taken_is_told_by_start(street: Street) -> None:
    taken = street.daemon(street.secondary, "receiver")["facts"]["metrics_listen"]
    street.on(street.secondary, "update", "stop")
    done = street.on(street.secondary, "update", "start", "--set", f"update.metrics_listen={taken}", check=False)
    assert done.returncode == 73
    assert f"somebody listens on {taken} already [update.metrics_listen]" in done.stderr
    assert done.stderr.count("\n") == 1
    street.start_update()
    street.prove_equal()


def rules() -> list[dict[str, Any]]:
    document = yaml.safe_load(RULES.read_text())
    assert set(document) == {"groups"}
    return [rule for group in document["groups"] for rule in group["rules"]]


def test_alert_rules_name_metrics_that_exist_and_cover_what_must_wake_somebody() -> None:
    found = rules()
    names = [rule["alert"] for rule in found]
    assert len(names) == len(set(names))
    used: set[str] = set()
    for rule in found:
        assert set(rule) <= {"alert", "expr", "for", "labels", "annotations"}
        assert rule["labels"]["severity"] in ("warning", "critical")
        assert set(rule["annotations"]) == {"summary", "do"}
        assert re.fullmatch(r"\d+[sm]", rule.get("for", "1m"))
        bare = re.sub(r'"[^"]*"|\{[^}]*\}|\[[^\]]*\]', "", rule["expr"])
        assert bare.count("(") == bare.count(")")
        words = set(re.findall(r"\b[a-z_]{2,}\b(?!\()", bare)) - {"and", "or", "unless", "on", "ignoring", "offset"}
        assert words <= METRICS.keys() | PROMETHEUS_OWN, rule["alert"]
        used |= words
        for metric in words & ON_REFUSAL_ONLY:  # whose first sample is no increase
            assert f"{metric} > 0 unless {metric} offset" in rule["expr"]
    for metric in (
        "last_contact_seconds",
        "lag_seconds",
        "backlog_transactions",
        "journal_cap_bytes",
        "update_process_state",
        "certificate_expires_seconds",
        "fatal_errno",
    ):
        assert f"dualsite_{metric}" in used


def test_the_labels_that_rules_ask_for_are_given(street: Street) -> None:
    given = {label for instance, daemon in daemons(street) for samples in figures(street, instance, daemon).values()
             for labels, _ in samples for label in labels}  # fmt: skip
    given |= {metric.label for metric in METRICS.values() if metric.label}
    for rule in rules():
        asked = set(re.findall(r"\{(\w+)=", rule["expr"]))
        asked |= {name for text in rule["annotations"].values() for name in re.findall(r"\$labels\.(\w+)", text)}
        assert asked <= given | {"job", "instance"}, rule["alert"]
