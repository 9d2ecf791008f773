"""What the daemons' metrics and lines of statistics say by partition, over real processes."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from prometheus_client.parser import text_string_to_metric_families

from tests.harness.street import Street
from tests.harness.waiting import wait_until
from tests.system.test_watching import SETTINGS, get

OFTEN = SETTINGS.replace("metrics_listen", "statistics_period_s = 0.5\nmetrics_listen")


@pytest.fixture
def street(tmp_path: Path) -> Iterator[Street]:
    """Of the tables account (sales) and setting (stock) the secondary has that of sales, and DEFAULT."""
    made = Street(tmp_path, settings=OFTEN).build()
    try:
        for name, table in (("sales", "account"), ("stock", "setting")):
            made.on(made.primary, "partition", "create", name)
            made.on(made.primary, "partition", "assign", name, table)
        made.on(made.secondary, "subscription", "set", "1", "2")
        yield made.start()
    finally:
        made.close()


def figures(street: Street, instance: Path, daemon: str) -> dict[str, dict[str, float]]:
    """By metric and partition ("": it has none)."""
    found: dict[str, dict[str, float]] = {}
    for family in text_string_to_metric_families(get(street, instance, daemon, "/metrics")[1]):
        for sample in family.samples:
            found.setdefault(sample.name.removeprefix("dualsite_"), {})[sample.labels.get("partition", "")] = (
                sample.value
            )
    return found


@pytest.mark.slow
def test_figures_of_each_partition(street: Street) -> None:
    sales = street.write("INSERT INTO account (owner) VALUES ('one')")
    stock = street.write("INSERT INTO setting VALUES ('a', 1)", "INSERT INTO setting VALUES ('b', 2)")
    street.on(street.secondary, "wait", "--seqno", str(stock), "--timeout", "60")
    source = figures(street, street.primary, "source-secondary")
    update = figures(street, street.secondary, "update")
    assert source["partition_seqno"]["sales"] == update["partition_seqno"]["sales"] == sales
    assert source["partition_origin_seqno"]["sales"] == update["partition_origin_seqno"]["sales"]
    assert source["partition_seqno"]["stock"] == stock
    assert "stock" not in update["partition_seqno"]
    assert source["partition_sent_total"] == {"sales": 1}
    assert source["partition_kept_back_total"] == {"stock": 1}
    for metric, partition in (("sent", "sales"), ("kept_back", "stock")):
        assert source[f"partition_{metric}_bytes_total"].keys() == {partition}
    assert update["partition_applied_total"] == update["partition_rows_total"] == {"sales": 1}
    assert update["partition_bytes_total"] == source["partition_sent_bytes_total"]

    def is_level() -> bool:  # by its word, which comes with the next heartbeat
        found = figures(street, street.primary, "source-secondary")
        told = [found.get(f"partition_{what}", {}) for what in ("backlog_transactions", "lag_seconds")]
        assert "stock" not in told[0]  # nobody waits for it
        return [one.get("sales") for one in told] == [0, 0]

    wait_until(is_level, what="the source knows that sales is level")
    assert source["kept_back_total"][""] == 1
    assert source["kept_back_bytes_total"][""] > 0
    assert figures(street, street.secondary, "receiver")["partition_here_state"] == {"DEFAULT": 1, "sales": 1}
    street.on(street.secondary, "subscription", "remove", "sales")

    def asks_so() -> bool:
        lines = [line for line in street.log(street.secondary, "receiver") if line["event"] == "receiving"]
        return bool(lines[-1]["partitions"] == ["DEFAULT"])

    wait_until(asks_so, what="the stream comes without sales")
    more = street.write("INSERT INTO account (owner) VALUES ('two')")
    street.on(street.secondary, "wait", "--seqno", str(more), "--timeout", "60")
    assert figures(street, street.secondary, "update")["partition_seqno"]["sales"] == sales  # frozen
    assert figures(street, street.primary, "source-secondary")["partition_seqno"]["sales"] == more

    def told() -> bool:
        lines = street.log(street.secondary, "receiver"), street.log(street.primary, "source-secondary")
        here, kept = ([line for line in log if line["event"] == "statistics"] for log in lines)
        return any("sales frozen, as it was" in line.get("partition_states", "") for line in here) and any(
            line.get("kept_back", 0) >= 2 for line in kept
        )

    wait_until(told, what="lines of statistics say it")

    def counted() -> bool:
        lines = street.log(street.secondary, "update"), street.log(street.primary, "source-secondary")
        applied, sent = ([line for line in log if line["event"] == "statistics"][-1] for log in lines)
        (peer,) = street.status(street.primary)["peers"]
        there = street.status(street.secondary)["receiving"]["by_partition"]
        return (
            applied.get("partition_rows") == there.get("partition_rows") == {"sales": 1}
            and sent.get("partition_kept_back") == {"sales": 1, "stock": 1}
            and peer["by_partition"].get("partition_sent") == {"sales": 1}
        )

    wait_until(counted, what="statistics and status say it of each")
    street.on(street.secondary, "update", "stop")
    street.on(street.secondary, "subscription", "add", "sales")
    street.on(street.primary, "partition", "assign", "DEFAULT", "entry")
    for amount in (1, 2):
        street.write(f"INSERT INTO entry (amount) VALUES ({amount})")
    found = figures(street, street.primary, "source-secondary")
    assert found["partition_backlog_transactions"]["DEFAULT"] == 2
    assert 0 < found["partition_lag_seconds"]["DEFAULT"] < 600
