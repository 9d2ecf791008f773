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
