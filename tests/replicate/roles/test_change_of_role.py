"""Changing roles: what the two sites are afterwards, with each trap that was tried, and killed at each step."""

from __future__ import annotations

import signal
from contextlib import closing
from pathlib import Path

import pytest

from replicate import connect
from replicate.admin.partitions import assign, create
from replicate.audit.verify import verify_journal
from replicate.dbapi import OperationalError
from replicate.door.pruning import prune_journal
from replicate.door.recovery.opening import open_door
from replicate.door.secondary import open_apply_session
from replicate.door.snapshot import door_of
from replicate.errors import NotPrimaryError, TryAgainError
from replicate.instance.consumers import read_consumer
from replicate.instance.file import FORMAT_VERSION, Successor, encode
from replicate.instance.instance import Instance
from replicate.model.transaction import History
from replicate.pool import control as word
from replicate.region.sqlite.bookkeeping import read_scr
from replicate.region.sqlite.open import open_region
from replicate.roles.change_of_role import become_primary, become_secondary, begun_at, old_primary
from tests.harness.instances import lose_pool
from tests.harness.pair import assert_equal
from tests.harness.sites import Sites, kill_at

COUNTED = """
CREATE TABLE account (id INTEGER PRIMARY KEY AUTOINCREMENT, owner TEXT NOT NULL, balance INTEGER, note);
CREATE TABLE seen (id INTEGER PRIMARY KEY, owner TEXT);
CREATE TRIGGER noted AFTER INSERT ON account BEGIN INSERT INTO seen VALUES (new.id, new.owner); END;
"""


@pytest.fixture
def sites(tmp_path: Path) -> Sites:
    made = Sites.create(tmp_path, COUNTED)
    made.add_peers()
    made.write(3)
    made.seed()
    return made


def whole(sites: Sites) -> None:
    """Both sites equal, both journals without a finding."""
    assert_equal(sites)
    for instance in (sites.primary, sites.secondary):
        assert not verify_journal(instance).findings


def test_a_planned_change_and_back_again(sites: Sites) -> None:
    for turn in range(3):
        sites.write(2 + turn)
        at = sites.switch()
        assert sites.primary.role == "primary"
        assert sites.secondary.role == "secondary"
        last = sites.write(1)
        assert last == at + 2, "a history record, and what was written"
        sites.catch_up()
        whole(sites)
    assert [one[0] for one in sites.rows("seen")] == [one[0] for one in sites.rows("account")]


def test_the_incarnation_rises_on_both_sides_and_peers_follow_the_role(sites: Sites) -> None:
    before = {one.name: one.content.incarnation for one in (sites.primary, sites.secondary)}
    sites.switch()
    for one in (sites.primary, sites.secondary):
        assert one.content.incarnation == before[one.name] + 1
    assert [peer.passive for peer in sites.primary.peers] == [False]
    assert [peer.passive for peer in sites.secondary.peers] == [True]
    assert b'"format": 2' in encode(sites.secondary.content)
    assert f'"format": {FORMAT_VERSION}'.encode() in encode(sites.primary.content)


def test_a_role_is_taken_at_exactly_the_number_that_was_proved(sites: Sites) -> None:
    last = sites.last_seqno(sites.secondary)
    for wrong in (last - 1, last + 1):
        with pytest.raises(TryAgainError, match=rf"is {last}, and both sites have all up to {wrong}: its role stays"):
            become_primary(sites.secondary, expect=wrong)
        assert Instance.open(sites.secondary.path).role == "secondary"
    become_secondary(sites.primary)
    assert become_primary(sites.secondary, expect=last) == last


def test_a_connection_of_before_writes_no_more(sites: Sites) -> None:
    """T1: two commits went through on a secondary, under a new origin without a history record."""
    connection = connect(sites.primary.path)
    connection.execute("INSERT INTO account(owner) VALUES ('before')")
    connection.commit()
    sites.catch_up()
    become_secondary(sites.primary)
    for _ in range(3):
        with pytest.raises(OperationalError, match="is secondary"):
            connection.execute("INSERT INTO account(owner) VALUES ('after')")
        connection.rollback()
    connection.close()
    with door_of(sites.primary) as door, door.locked(), pytest.raises(NotPrimaryError):
        door.allot(b"\xc0", 4)
    assert become_primary(sites.secondary) > 0
    sites.exchange()
    sites.catch_up()
    whole(sites)


def test_a_reader_of_before_that_comes_to_write_is_refused(sites: Sites) -> None:
    connection = connect(sites.primary.path, isolation_level=None)
    connection.execute("BEGIN")
    connection.execute("SELECT * FROM account").fetchall()
    become_secondary(sites.primary)
    for _ in range(2):
        with pytest.raises(OperationalError):
            connection.execute("INSERT INTO account(owner) VALUES ('after')")
        connection.execute("ROLLBACK")
        connection.execute("BEGIN")
        connection.execute("SELECT * FROM account").fetchall()
    with pytest.raises(OperationalError, match="is secondary"):
        connection.execute("INSERT INTO account(owner) VALUES ('after')")
    connection.close()


def test_the_new_history_names_whom_it_took_over_from(sites: Sites) -> None:
    """T2: it said `after origin 00000000: a new instance`."""
    sites.write(4)
    sites.catch_up()
    sites.write(5)  # that nobody else has
    old = sites.primary.content.origin.key
    common = sites.take_over()
    with door_of(sites.primary) as door:
        history = door.catalogue_now().histories[-1]
    assert (history.previous_origin, history.seqno) == (old, common + 1)
    assert history.reason == "took over from east"
    assert history.base.last(old) == common - 1  # its own history record has no number of it


def test_a_demoted_primary_says_its_position_itself(sites: Sites) -> None:
    """T4: it had no checkpoint record of its own origin, and waited for ever."""
    last = sites.write(2)
    own = sites.primary.content.origin.key
    assert become_secondary(sites.primary) == last
    connection = open_region(sites.primary.region("main").path, readonly=True)
    try:
        stream = [row for row in read_scr(connection) if row.origin == own and row.partition == 0]
    finally:
        connection.close(True)
    assert [(row.seqno, row.origin_seqno) for row in stream] == [(last, last - 1)]
    assert stream[0].csn
    session = open_apply_session(Instance.open(sites.primary.path))
    try:
        assert session.position.last_seqno == last
    finally:
        session.close()
        session.door.close()


def test_records_of_partitions_stay_what_they_were_through_changes_of_role(sites: Sites) -> None:
    """Both sites have the same, in either role: of each origin and partition the last transaction, by its number."""
    for site in (sites.primary, sites.secondary):
        create(site, "money")
        create(site, "notes")
    assign(sites.primary, "money", ["account"])
    assign(sites.primary, "notes", ["seen"])
    sites.write(1)
    sites.catch_up()

    def records(site: Instance) -> list[tuple[int, int, int, int]]:
        with closing(open_region(site.region("main").path, readonly=True)) as connection:
            found = read_scr(connection)
        return [(row.origin, row.partition, row.origin_seqno, row.seqno) for row in found if row.partition > 1]

    expected: set[tuple[int, int, int, int]] = set()
    for _ in range(3):
        last = sites.write(2)
        sites.catch_up()
        key = sites.primary.content.origin.key
        with door_of(sites.primary) as door:
            own = int(door.words[word.OWN_ORIGIN_SEQNO])
        expected |= {(key, number, own, last) for number in (2, 3)}
        assert set(records(sites.primary)) == set(records(sites.secondary)) == expected
        sites.switch()
        assert set(records(sites.primary)) == set(records(sites.secondary)) == expected
    sites.catch_up()
    whole(sites)


@pytest.mark.slow
@pytest.mark.parametrize("reads", [False, True])
def test_flip_flop_with_a_power_loss_after_the_first_commit(sites: Sites, reads: bool) -> None:
    """T5 and T6: REGION_REPLACED, by the ring of the first era, or by the batch of the other one."""
    readers = []
    for _ in range(3):
        if reads:  # a reader keeps SQLite from taking its WAL over
            for one in (sites.primary, sites.secondary):
                reader = open_region(one.region("main").path, readonly=True)
                reader.execute("BEGIN")
                reader.execute("SELECT count(*) FROM account").fetchall()
                readers.append(reader)
        sites.switch()
        sites.write(1)
        lose_pool(sites.primary)
        sites.write(1)
        sites.catch_up()
        lose_pool(sites.secondary)
        sites.write(1)
        sites.catch_up()
        whole(sites)
    for reader in readers:
        reader.close()


def test_a_secondary_keeps_no_journal_for_those_that_it_serves_later(tmp_path: Path) -> None:
    """T9: 9 of 9 segments stayed."""
    small = "[journal]\nsegment_bytes = 1048576\npool_bytes = 1048576\nrollback_bytes = 0\n"
    sites = Sites.create(tmp_path, settings=small)
    sites.add_peers()
    sites.write(1)
    sites.seed()
    sites.switch()  # so that a peer of the secondary is passive
    for _ in range(6):
        sites.write(3, size=400_000)
        sites.catch_up()
    with door_of(sites.secondary) as door:
        prune_journal(door)
        assert len(door.chain.first_seqnos()) <= 2
    at = sites.switch()
    known = read_consumer(sites.primary.consumers_directory, "west")
    assert known is not None
    assert known.acknowledged_seqno == at


def test_a_role_that_was_given_is_given_to_nobody_else(sites: Sites) -> None:
    """Two switchovers at once, to two peers: their Source Servers do not know of one another."""
    seqno = sites.last_seqno()
    for name in ("west", "third"):
        assert become_secondary(sites.primary, successor=Successor(name, seqno, is_pending=True)) == seqno
        successor = Instance.open(sites.primary.path).content.successor
        assert successor is not None
        assert (successor.name, successor.is_pending) == ("west", True)


def test_doing_it_twice_changes_nothing(sites: Sites) -> None:
    last = become_secondary(sites.primary)
    content = Instance.open(sites.primary.path).content
    assert become_secondary(sites.primary) == last
    assert Instance.open(sites.primary.path).content == content
    at = become_primary(sites.secondary)
    content = Instance.open(sites.secondary.path).content
    assert become_primary(sites.secondary) == at
    assert Instance.open(sites.secondary.path).content == content


ROLE = "replicate.roles.change_of_role"


@pytest.mark.slow
@pytest.mark.parametrize("place", ["role.region_turned:1", "role.pool_retired:1", "role.changed:1"])
def test_killed_on_the_way_down(sites: Sites, place: str) -> None:
    last = sites.write(2)
    sites.catch_up()
    assert kill_at(place, f"{ROLE}:become_secondary", sites.primary.path) == -signal.SIGKILL
    if place != "role.changed:1":  # still primary, and as good as before
        sites.primary = Instance.open(sites.primary.path)
        assert sites.primary.role == "primary"
        last = sites.write(1)
        lose_pool(sites.primary)
        assert sites.write(1) == last + 1
        sites.catch_up()
        whole(sites)
        last += 1
    assert become_secondary(Instance.open(sites.primary.path)) == last
    assert become_primary(sites.secondary) == last
    sites.exchange()
    sites.write(1)
    sites.catch_up()
    whole(sites)


@pytest.mark.slow
@pytest.mark.parametrize(
    "place", ["role.region_turned:1", "role.pool_retired:1", "role.pool_retired:2", "role.changed:1"]
)
def test_killed_on_the_way_up(sites: Sites, place: str) -> None:
    sites.write(2)
    sites.catch_up()
    assert kill_at(place, f"{ROLE}:become_primary", sites.secondary.path) == -signal.SIGKILL
    if place != "role.changed:1":  # still secondary, and as good as before
        sites.secondary = Instance.open(sites.secondary.path)
        assert sites.secondary.role == "secondary"
        sites.write(2)
        sites.catch_up()
        lose_pool(sites.secondary)
        sites.write(1)
        sites.catch_up()
        whole(sites)
    last = become_secondary(sites.primary)
    assert become_primary(Instance.open(sites.secondary.path)) == last
    sites.exchange()
    assert sites.write(1) == last + 2
    sites.catch_up()
    whole(sites)


def test_what_a_door_of_before_sees(sites: Sites) -> None:
    """A door that stood open over the change is not used for writing: its pool is retired."""
    door = open_door(sites.primary)
    assert door.words[word.ROLE] == word.ROLE_PRIMARY
    become_secondary(sites.primary)
    assert not door.pool.is_current()
    door.close()
    with door_of(Instance.open(sites.primary.path)) as again:
        assert again.words[word.ROLE] == word.ROLE_SECONDARY


def test_who_was_primary_before() -> None:
    histories = tuple(History(bytes([n]) * 16, f"n{n}", 1, 0, None, "", seqno) for n, seqno in ((1, 1), (2, 9)))  # type: ignore[arg-type]
    assert old_primary(histories, histories[1].origin.key) == "n1"
    assert old_primary(histories[:1], histories[0].origin.key) == ""
    assert begun_at(histories, histories[1].origin.key) == 8
    assert begun_at(histories, 5) == 0
