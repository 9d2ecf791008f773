"""status/partition_figures.py: what checkpoint records and copies of partitions tell the metrics."""

from __future__ import annotations

import time
from contextlib import closing
from pathlib import Path

import pytest

from replicate.admin.partitions import assign, create
from replicate.admin.subscriptions import add, remove, set_
from replicate.compare.scr import array_of
from replicate.status.partition_figures import PartitionFigures, StandsAt, in_copy, in_records, not_applied
from replicate.transfer.seed.incoming import seed_directory
from replicate.transfer.seed.partition import loading
from tests.harness.packets import export, take
from tests.harness.pair import Pair

SCHEMA = "".join(f"CREATE TABLE {name} (id INTEGER PRIMARY KEY, v);" for name in ("account", "entry", "third"))


@pytest.fixture
def pair(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Pair:
    monkeypatch.setenv("REPLICATE_SHM_DIR", "")
    return Pair.create(tmp_path, SCHEMA)


def write(pair: Pair, *tables: str) -> int:
    with closing(pair.connect()) as connection:
        for table in tables:
            connection.execute(f"INSERT INTO {table} (v) VALUES (1)")
        connection.commit()
        return connection.last_seqno or 0


def test_both_sites_tell_the_same_number_where_the_partition_is_level(pair: Pair) -> None:
    here, there = PartitionFigures(pair.primary.path, in_records), PartitionFigures(pair.secondary.path, in_records)
    for name, table in (("sales", "account"), ("stock", "entry")):
        create(pair.primary, name)
        create(pair.secondary, name)
        assign(pair.primary, name, [table])
    set_(pair.secondary, ["DEFAULT", "sales"])
    pair.seed()
    first, second, third = write(pair, "account"), write(pair, "third", "entry"), write(pair, "account")
    assert here.look()["partition_seqno"] == {"DEFAULT": second, "sales": third, "stock": second}
    assert there.look()["partition_seqno"]["sales"] < first
    (pair.directory / "out").mkdir()
    take(pair.secondary, *(one.path for one in export(pair.primary, pair.directory / "out", "west")))
    assert there.look()["partition_seqno"] == {"DEFAULT": second, "sales": third}
    told = {one.partition_id: one.global_commit_id for one in array_of(pair.primary).partitions}
    assert here.look()["partition_origin_seqno"] == told
    remove(pair.secondary, ["sales"])
    write(pair, "account", "third")
    take(pair.secondary, *(one.path for one in export(pair.primary, pair.directory / "out", "west")))
    assert there.look()["partition_seqno"] == {"DEFAULT": third + 1, "sales": third}  # frozen


def test_what_a_peer_lacks_of_each_partition(pair: Pair, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of those that it wants: none, some, more than is looked at; and what is beyond what is looked at is left out."""
    for name, table in (("sales", "account"), ("stock", "entry"), ("rest", "third")):
        create(pair.primary, name)
        assign(pair.primary, name, [table])
    known = write(pair, "account")
    stands: list[StandsAt | None] = [None]
    look = PartitionFigures(pair.primary.path, lambda here: not_applied(here, lambda: stands[0])).look
    assert look().keys() == {"partition_seqno", "partition_origin_seqno"}
    last = [write(pair, *tables) for tables in (("entry",), ("third",), ("entry", "account"), ("entry",))][-1]
    begun = time.time()
    stands[0] = StandsAt(known, last, {2, 3}.__contains__)
    found = look()
    assert found["partition_backlog"] == {"sales": 1, "stock": 3}
    assert 0 < found["partition_lag_s"]["sales"] <= found["partition_lag_s"]["stock"] < time.time() - begun + 60
    stands[0] = StandsAt(last - 1, last, {2, 3}.__contains__)
    found = look()
    assert found["partition_backlog"] == {"sales": 0, "stock": 1}
    assert found["partition_lag_s"]["sales"] == 0.0
    stands[0] = StandsAt(last, last, {2, 3}.__contains__)
    assert look()["partition_lag_s"] == {"sales": 0.0, "stock": 0.0}
    monkeypatch.setattr("replicate.status.partition_figures.LOOKED_AT", 2)
    stands[0] = StandsAt(known, last, {2, 3, 4}.__contains__)
    found = look()
    assert found["partition_backlog"] == {"rest": 1}
    assert found["partition_lag_s"].keys() == {"stock", "rest"}


def test_who_has_no_partitions_has_no_figures(pair: Pair) -> None:
    pair.seed()
    write(pair, "account")
    for look in (
        PartitionFigures(pair.primary.path, in_records),
        PartitionFigures(pair.directory / "nowhere", in_records),
    ):
        assert look.look() == {}


def test_a_copy_is_counted_as_far_as_it_has_come(pair: Pair) -> None:
    look = PartitionFigures(pair.secondary.path, in_copy)
    for instance in (pair.primary, pair.secondary):
        create(instance, "sales")
    assign(pair.primary, "sales", ["account"])
    set_(pair.secondary, ["DEFAULT"])
    pair.seed()
    add(pair.secondary, ["sales"])
    assert look.look() == {}
    with loading(pair.secondary, [2]):
        part = seed_directory(pair.secondary.path) / "incoming.part"
        part.parent.mkdir(exist_ok=True)
        part.write_bytes(bytes(777))
        assert look.look() == {"partition_copied": {"sales": 777}}
