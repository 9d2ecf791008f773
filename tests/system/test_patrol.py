"""The patrol over real processes: what differs on a secondary, by whatever cause, is found and named by the pair itself
while both go on; it is mended by the commands that `status` names."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from replicate.compare.index_found import look_at_indexes
from replicate.compare.patrol_found import look_at_patrolled
from tests.harness.conflicting import spoil_database
from tests.harness.planted import PLANTS, ROWS, SCHEMA
from tests.harness.stale_index import flip_in_tree
from tests.harness.street import QUICK, Street
from tests.harness.waiting import wait_until

SETTINGS = QUICK.replace("[source]", "[source]\npatrol_percent = 100.0\npatrol_round_s = 0.2\npatrol_speed_mb = 1000.0")


RECEIVER = "patrol_percent = 100.0\npatrol_round_s = 0.2\npatrol_speed_mb = 1000.0\n"
"""The section of the Receiver Server is the last one of QUICK."""


@pytest.fixture
def street(tmp_path: Path) -> Iterator[Street]:
    made = Street(tmp_path, settings=SETTINGS)
    try:
        made.build().start()
        yield made
    finally:
        made.close()


def status(street: Street, instance: Path) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(street.run("-i", instance, "--json", "status", check=False).stdout)
    return found


def diverged(street: Street, instance: Path) -> list[dict[str, Any]]:
    return [one for one in status(street, instance)["findings"] if one["code"] == "DIVERGED_ROWS"]


def whole_round(street: Street, instance: Path) -> dict[str, Any]:
    """What is told after a round that began from now on."""
    before = look_at_patrolled(instance).here.began_wall_ns

    def is_over() -> bool:
        whole = look_at_patrolled(instance).whole
        return bool(whole.ended_wall_ns) and whole.began_wall_ns > before

    wait_until(is_over, what="a whole round")
    found: dict[str, Any] = status(street, instance)["patrol"]
    return found


def spoil(street: Street, statement: str) -> None:
    spoil_database(street.secondary / "regions" / "main.db", statement)


@pytest.mark.slow
def test_all_rows_are_verified_under_load_and_a_difference_is_found_and_mended(street: Street) -> None:
    street.write(*[f"INSERT INTO account (owner) VALUES ('cold {n}')" for n in range(20)])
    writer = street.writer(1, pause_s=0.002)
    for _ in range(2):
        found = whole_round(street, street.secondary)
        assert found["passed"] == 0, found
        assert found["rows"] > 20
    assert "all " in street.run("-i", street.secondary, "status", check=False).stdout
    assert not diverged(street, street.secondary)
    writer.kill()
    writer.wait()
    street.prove_equal()
    spoil(street, "UPDATE account SET note = 'another' WHERE owner = 'cold 7'")
    wait_until(lambda: diverged(street, street.secondary), what="it is found")
    (one,) = diverged(street, street.secondary)
    assert one["subject"] == "main.account"
    assert f"compare --with {street.primary} --repair" in one["do"]
    assert "rows differ from the source's" in (street.secondary / "log" / "receiver.log").read_text()
    street.on(street.secondary, "compare", "--with", street.primary, "--repair", "--yes")
    assert not diverged(street, street.secondary)
    assert whole_round(street, street.secondary)["passed"] == 0
    assert not diverged(street, street.secondary)


@pytest.mark.slow
def test_the_stream_stops_where_it_is_to_until_the_rows_are_mended(street: Street) -> None:
    last = street.write("INSERT INTO account (owner) VALUES ('cold')")
    street.on(street.secondary, "wait", "--seqno", str(last), "--timeout", "60")
    street.on(street.secondary, "receiver", "stop")
    listen = f"127.0.0.1:{street.port()}"
    street.on(street.secondary, "config", "set", "receiver.on_divergence", "stop")
    spoil(street, "DELETE FROM account WHERE owner = 'cold'")
    street.start_receiver(listen)
    street.start_update()
    wait_until(lambda: diverged(street, street.secondary), what="it is found")
    last = street.write("INSERT INTO account (owner) VALUES ('more')")

    def refusals() -> int:
        """So many by this run of the Receiver Server."""
        lines = street.log(street.secondary, "receiver")
        begun = max(at for at, one in enumerate(lines) if one["event"] == "daemon started")
        closed = [one for one in lines[begun:] if one["event"] == "connection closed"]
        return sum("the stream stops until it is mended" in one.get("error", "") for one in closed)

    wait_until(refusals, what="the source is refused by name")
    wait_until(
        lambda: "the stream stops until" in street.run("-i", street.primary, "status", check=False).stdout,
        what="the primary says so",
    )
    assert street.last_seqno(street.secondary) < last
    street.on(street.secondary, "receiver", "stop")
    street.start_receiver(listen)  # a start alone mends nothing
    street.start_update()
    wait_until(refusals, what="it is refused again")
    street.on(street.secondary, "config", "set", "receiver.on_divergence", "continue")
    street.on(street.secondary, "receiver", "stop")
    street.start_receiver(listen)
    street.start_update()
    street.on(street.secondary, "wait", "--seqno", str(last), "--timeout", "60")
    street.on(street.secondary, "compare", "--with", street.primary, "--repair", "--yes")
    assert not diverged(street, street.secondary)
    street.prove_equal()


AT_ONCE = (
    "a row that did not come", "a sum that was added to twice", "1 for 1.0", "a key of another case",
    "values of two rows exchanged", "children that a cascade took", "a row beside a virtual column",
    "values beside their columns", "a key that was changed", "rows that INSERT … SELECT brought",
    "rows that a DELETE of a whole table took", "bytes written in place", "text that is not UTF-8, mended",
    "a posting list of a full-text index", "a node of an R*Tree", "a counter that is ahead", "PRAGMA user_version",
)  # fmt: skip


@pytest.mark.slow
def test_what_past_defects_have_left_is_found_within_one_round_and_mended(tmp_path: Path) -> None:
    """One in each table, and in the schema, while the daemons run. (Each by itself: test_range_check_planted.py.)"""
    with closing(Street(tmp_path, settings=SETTINGS, schema=SCHEMA + ROWS)) as street:
        street.build().start()
        last = street.write("INSERT INTO account (owner) VALUES ('one')")
        street.on(street.secondary, "wait", "--seqno", str(last), "--timeout", "60")
        region = street.secondary / "regions" / "main.db"
        tables = []
        for name in AT_ONCE:
            PLANTS[name].put(region)
            tables.append(PLANTS[name].table)
        assert len(set(tables)) == len(AT_ONCE)
        assert whole_round(street, street.secondary)["passed"] == 0
        found = diverged(street, street.secondary)
        assert {one["subject"] for one in found} == {
            f"main.{table}" if table else "the schema of region main" for table in tables
        }
        assert len(found) == len(tables)
        told = street.on(street.secondary, "compare", "--with", street.primary, check=False).stdout
        assert all(f"main.{table}: different" in told for table in tables if table), told
        assert "pragma main.user_version: PRAGMA user_version = 2 | PRAGMA user_version = 3" in told
        # What a repair does not mend, and says so.
        spoil(street, "PRAGMA user_version = 3; UPDATE raw SET v = CAST(x'ff41' AS TEXT) WHERE id = 2")
        street.on(street.secondary, "compare", "--with", street.primary, "--repair", "--yes")
        assert not diverged(street, street.secondary)
        assert whole_round(street, street.secondary)["passed"] == 0
        assert not diverged(street, street.secondary)
        street.on(street.secondary, "compare", "--with", street.primary)


@pytest.mark.slow
@pytest.mark.parametrize("role", ["primary", "secondary"])
def test_a_damaged_index_is_found_on_either_site_and_made_again(tmp_path: Path, role: str) -> None:
    """Its page was changed while nobody had the file open, as a disk does it."""
    with closing(Street(tmp_path, settings=SETTINGS + RECEIVER)) as street:
        street.build().start()
        last = street.write("INSERT INTO account (owner) VALUES ('somebody')")
        street.on(street.secondary, "wait", "--seqno", str(last), "--timeout", "60")
        instance = getattr(street, role)
        path = street.database if role == "primary" else street.secondary / "regions" / "main.db"
        wait_until(lambda: look_at_indexes(instance).whole.entries >= 2, what="a whole round")
        assert "entries verified within" in street.run("-i", instance, "status", check=False).stdout
        street.on(street.primary, "source", "stop")
        street.on(street.secondary, "receiver", "stop")
        street.on(street.secondary, "update", "stop")
        flip_in_tree(path, "account_owner", b"somebody", by=7)
        street.start_receiver(f"127.0.0.1:{street.port()}")
        street.start_source()
        street.start_update()
        wait_until(lambda: look_at_indexes(instance).damaged, what="it is found")
        (one, *_) = [one for one in status(street, instance)["findings"] if one["code"] == "INDEX_DAMAGED"]
        assert one["subject"] == "main.account"
        assert f"replicate -i {instance} region reindex main" in one["do"]
        log = "source-secondary.log" if role == "primary" else "receiver.log"
        assert "an index is damaged" in (instance / "log" / log).read_text()
        assert "index account_owner" in street.on(instance, "region", "reindex", "main").stdout
        wait_until(lambda: look_at_indexes(instance).whole.ended_wall_ns, what="another whole round")
        assert not [one for one in status(street, instance)["findings"] if one["code"] == "INDEX_DAMAGED"]
        street.prove_equal()
