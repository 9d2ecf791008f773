"""Data feeds: others have tables in the region and write them; what is replicated is as safe as in any secondary; and
it never becomes primary.
"""

from __future__ import annotations

from pathlib import Path

import apsw
import pytest

from replicate.compare.compare import compare, digest
from replicate.compare.repair import repair
from replicate.errors import (
    AlreadyExistsError,
    ConfigurationError,
    FormatUnknownError,
    PermissionRefusedError,
    SchemaChangedError,
    UsageError,
)
from replicate.instance.file import decode, encode
from replicate.instance.instance import Instance
from replicate.region.sqlite.data_feed import others_tables
from replicate.roles.change_of_role import become_primary
from replicate.roles.promote_demote import promote
from replicate.status.collect import collect
from tests.harness.pair import Pair, run, work_all

OWN = """
CREATE TABLE mine (id INTEGER PRIMARY KEY AUTOINCREMENT, note);
CREATE INDEX mine_note ON mine (note);
INSERT INTO mine (note) VALUES ('written by anybody');
"""


@pytest.fixture
def pair(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Pair:
    monkeypatch.setenv("REPLICATE_SHM_DIR", str(tmp_path / "shm"))  # Pair.create sets it; it is put back
    made = Pair.create(tmp_path)
    made.write(3)
    feed = Instance.create(
        tmp_path / "feed", role="secondary", name="feed", network=made.primary.content.network, feed=True
    )
    made.secondary = feed
    made.primary.register_peer("feed", "127.0.0.1", 7430)
    made.primary.reload()
    made.seed()
    made.catch_up()
    return made


def others(pair: Pair, sql: str) -> None:
    """A client of plain SQLite."""
    connection = apsw.Connection(str(pair.secondary.region("main").path))
    try:
        connection.execute(sql)
    finally:
        connection.close()


def assert_equal(pair: Pair) -> None:
    found = compare(pair.primary, pair.secondary, timeout_s=60)
    assert found.equal, found
    one, other = (digest(instance, timeout_s=30) for instance in (pair.primary, pair.secondary))
    assert (one.regions, one.seqno) == (other.regions, other.seqno)


def test_others_make_and_write_tables_while_the_stream_goes_on(pair: Pair) -> None:
    others(pair, OWN)
    run(pair, "UPDATE account SET owner = 'new'", "INSERT INTO entry VALUES ('a', 1, NULL)")
    pair.catch_up()
    others(pair, "INSERT INTO mine (note) VALUES ('more'); ALTER TABLE mine ADD COLUMN other")
    run(pair, "UPDATE account SET owner = 'newer'")
    pair.catch_up()
    assert_equal(pair)
    assert [row[2] for row in pair.rows("mine")] == ["written by anybody", "more"]
    assert others_tables(pair.secondary.region("main").path) == ("mine",)


def test_between_two_batches_of_one_session(pair: Pair) -> None:
    with pair.receive_pool() as pool, pair.applier(pool) as applier:
        for number in range(3):
            others(pair, f"CREATE TABLE mine{number} (x)")
            run(pair, f"UPDATE account SET note = {number}")
            pair.deliver(pool)
            work_all(applier)
            assert applier.applied_seqno == pair.last_seqno()
    assert_equal(pair)


def test_a_schema_change_of_the_stream_guards_its_own_tables_alone(pair: Pair) -> None:
    others(pair, OWN)
    run(pair, "CREATE TABLE later (x)", "INSERT INTO later VALUES (1)", "ALTER TABLE later RENAME TO renamed")
    pair.catch_up()
    others(pair, "INSERT INTO mine (note) VALUES ('still mine')")
    for table in ("renamed", "account"):
        with pytest.raises(apsw.SQLError, match="no such function"):
            others(pair, f"DELETE FROM {table}")
    assert_equal(pair)
    run(pair, "DROP TABLE renamed")
    pair.catch_up()
    assert_equal(pair)


@pytest.mark.parametrize(
    "statement",
    [
        "ALTER TABLE account ADD COLUMN foreign_one",
        "ALTER TABLE account RENAME TO mine",
        "DROP TRIGGER _replicate_guard_insert_account",
        "DROP TABLE entry",
    ],
)
def test_what_is_replicated_is_nobody_elses_to_change(pair: Pair, statement: str) -> None:
    connection = apsw.Connection(str(pair.secondary.region("main").path))
    connection.config(apsw.SQLITE_DBCONFIG_ENABLE_TRIGGER, 0)
    connection.execute(statement)
    connection.close()
    run(pair, "UPDATE account SET owner = 'new'")
    with pytest.raises(SchemaChangedError, match="what is replicated"):
        pair.catch_up()


def test_no_other_secondary_lets_others_in(pair: Pair, tmp_path: Path) -> None:
    north = Instance.create(tmp_path / "north", role="secondary", name="north", network=pair.primary.content.network)
    pair.primary.register_peer("north", "127.0.0.1", 7431)
    pair.primary.reload()
    plain = Pair(pair.directory, pair.primary, north)
    plain.seed()
    others(plain, OWN)
    run(pair, "UPDATE account SET owner = 'new'")
    with pytest.raises(SchemaChangedError, match="another client changed the schema"):
        plain.catch_up()


def test_it_never_becomes_primary_and_feeds_nobody(pair: Pair) -> None:
    for call in (
        lambda: become_primary(pair.secondary),
        lambda: promote(pair.secondary, finish=lambda: 0, timeout_s=1, force=True),
    ):
        with pytest.raises(PermissionRefusedError, match="feed is a data feed, and never becomes primary"):
            call()
    with pytest.raises(PermissionRefusedError, match="feeds nobody"):
        pair.secondary.register_peer("north", "127.0.0.1", 7430)
    assert pair.secondary.role == "secondary"


def test_a_new_seed_does_not_take_tables_of_others_with_it(pair: Pair) -> None:
    others(pair, OWN)
    with pytest.raises(UsageError, match="tables of its own, which no seed has: mine"):
        pair.seed(restart=True)
    assert len(pair.rows("mine")) == 1
    others(pair, "DROP TABLE mine")
    pair.seed(restart=True)
    pair.catch_up()
    assert_equal(pair)


def test_repair_leaves_tables_of_others_alone(pair: Pair) -> None:
    others(pair, OWN)
    connection = apsw.Connection(str(pair.secondary.region("main").path))
    connection.config(apsw.SQLITE_DBCONFIG_ENABLE_TRIGGER, 0)
    connection.execute("DELETE FROM account WHERE id = 1")
    connection.close()
    run(pair, "INSERT INTO entry VALUES ('a', 1, NULL)")
    pair.catch_up()
    assert repair(pair.primary, pair.secondary, by="me", timeout_s=30).rows == 1
    assert_equal(pair)
    assert len(pair.rows("mine")) == 1


def test_the_file_says_so_and_an_older_release_refuses_it(pair: Pair, tmp_path: Path) -> None:
    content = pair.secondary.content
    assert decode(encode(content), "here").is_feed
    assert b'"format": 4' in encode(content)
    assert b"feed" not in encode(pair.primary.content).replace(b'"name": "feed"', b"")
    with pytest.raises(FormatUnknownError, match="format 99"):
        decode(encode(content).replace(b'"format": 4', b'"format": 99'), "here")
    with pytest.raises(ConfigurationError, match="a data feed is a secondary"):
        Instance.create(tmp_path / "x", role="primary", name="x", feed=True)
    with pytest.raises(AlreadyExistsError):
        Instance.create(pair.secondary.path, role="secondary", network=content.network, feed=True)


def test_its_status_finds_nothing_wrong_with_tables_of_others(pair: Pair) -> None:
    others(pair, OWN)
    assert "SCHEMA_CHANGED" not in [one.code for one in collect(pair.secondary).findings]
    connection = apsw.Connection(str(pair.secondary.region("main").path))
    connection.execute("DROP TRIGGER _replicate_guard_insert_account")
    connection.close()
    (found,) = [one for one in collect(pair.secondary).findings if one.code == "SCHEMA_CHANGED"]
    assert "table account has lost its guards" in found.text
