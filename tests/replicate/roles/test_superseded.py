"""A superseded primary: what its writers are told, what stays of it, and how it goes on; killed at each step."""

from __future__ import annotations

import json
import os
import signal
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from replicate import connect
from replicate.daemon.files import DaemonFiles
from replicate.daemon.status_file import DaemonStatus
from replicate.dbapi import OperationalError
from replicate.door.recovery.opening import close_door, open_door
from replicate.door.snapshot import door_of
from replicate.errors import (
    FormatUnknownError,
    NotPrimaryError,
    PermissionRefusedError,
    RollbackNeededError,
    TryAgainError,
    UsageError,
)
from replicate.instance.file import FORMATS, WITH_FENCE, Successor, decode, encode
from replicate.instance.instance import Instance
from replicate.journal.catalogue import catalogue_before
from replicate.model.findings import Finding
from replicate.pool import control as word
from replicate.roles.promote_demote import demote, next_steps, promote
from replicate.roles.rollback import rollback
from replicate.roles.source_refusal import note_verdict, verdict_of
from replicate.roles.succession import Parted, Superseded, Superseding
from replicate.roles.superseded import give_way, meet
from replicate.status.collect import collect
from replicate.wire.message import Restart
from source_server.restart import agree
from tests.harness.instances import lose_pool
from tests.harness.pair import assert_equal
from tests.harness.sites import Sites, kill_at, other


class Split(Sites):
    """The old primary (`secondary`) has two transactions that the new one (`primary`) has not, which goes on too."""

    common = 0


@pytest.fixture
def sites(tmp_path: Path) -> Split:
    made = Split.level(tmp_path)
    assert isinstance(made, Split)
    made.common = made.take_over()
    made.exchange()
    made.write(2)
    made.exchange()
    made.write(1)
    return made


def old(sites: Split) -> Instance:
    return Instance.open(sites.secondary.path)


def fence(sites: Split) -> Instance:
    met = old(sites)
    found = meet(met, other(sites.primary))
    assert found is not None
    assert found.is_fenced
    return met


def finding(instance: Instance, code: str) -> list[Finding]:
    return [one for one in collect(Instance.open(instance.path)).findings if one.code == code]


INSERT = "INSERT INTO account(owner, balance) VALUES ('more', 1)"


def insert(connection: Any) -> None:
    connection.execute(INSERT)
    connection.commit()


def test_from_the_contact_on_every_writer_is_told_by_whom(sites: Split) -> None:
    """New ones, those that are connected, one in the middle of a transaction, and one that has begun as a reader."""
    path = sites.secondary.path
    connected, open_, reading = (connect(path, isolation_level=None) for _ in range(3))
    insert(connected)
    reading.execute("BEGIN")
    reading.execute("SELECT * FROM account").fetchall()
    open_.execute("BEGIN IMMEDIATE")
    open_.execute(INSERT)
    before = sites.last_seqno(old(sites))
    fence(sites)
    for statement, connection in (("COMMIT", open_), (INSERT, connected), (INSERT, reading)):
        with pytest.raises(OperationalError, match="superseded by") as caught:
            connection.execute(statement)
        error = caught.value
        assert isinstance(error, NotPrimaryError)
        assert error.facts["primary"] == sites.primary.name
        assert f"Write on {sites.primary.name}" in str(caught.value)
    late = connect(path)
    with pytest.raises(OperationalError, match=f"took over after transaction {sites.common}"):
        insert(late)
    assert len(late.execute("SELECT * FROM account").fetchall()) > 0
    for connection in (connected, open_, reading, late):
        connection.close()
    assert sites.last_seqno(old(sites)) == before
    with door_of(old(sites)) as door, door.locked(), pytest.raises(NotPrimaryError):
        door.allot(b"\xc0", 4)


def test_the_fence_is_durable_and_outlives_pools_and_reboots(sites: Split) -> None:
    fenced = fence(sites)
    for _ in range(2):
        content = Instance.open(fenced.path).content
        assert content.role == "primary"
        assert content.fence is not None
        assert (content.fence.name, content.fence.seqno) == (sites.primary.name, sites.common)
        assert content.fence.heard_wall_ns > 0
        assert not content.takes_writes
        lose_pool(fenced)
        with pytest.raises(OperationalError, match="superseded by"):
            insert(connect(fenced.path))
    assert meet(Instance.open(fenced.path), other(sites.primary)) is None, "it knows"


def test_a_release_before_this_one_refuses_the_file(sites: Split) -> None:
    raw = encode(fence(sites).content)
    assert json.loads(raw)["format"] == WITH_FENCE == 4
    assert decode(raw, "here").fence is not None
    with pytest.raises(FormatUnknownError, match=f"knows 1 to {max(FORMATS)}"):
        decode(raw.replace(b'"format": 4', b'"format": 99'), "here")
    plain = replace(old(sites).content, successor=None)
    assert json.loads(encode(plain))["format"] < WITH_FENCE


def test_the_new_primary_is_not_fenced_and_knows_who_is(sites: Split) -> None:
    before = encode(sites.primary.content)
    found = meet(sites.primary, other(old(sites)))
    assert found is not None
    assert isinstance(found.verdict, Superseding)
    assert f"there: replicate -i {sites.secondary.name} demote" in found.do
    assert encode(Instance.open(sites.primary.path).content) == before
    sites.write(1)


def test_a_claim_without_proof_changes_nothing(sites: Split) -> None:
    claim = other(sites.primary)
    false = replace(claim, takeovers=tuple(replace(one, chain=one.chain ^ 1) for one in claim.takeovers))
    before = encode(old(sites).content)
    for said in (false, replace(claim, takeovers=())):
        found = meet(old(sites), said)
        assert found is not None
        assert isinstance(found.verdict, Parted)
    assert encode(old(sites).content) == before
    insert(connect(sites.secondary.path))


def test_one_that_was_restored_from_a_backup_goes_on(sites: Split) -> None:
    """Recovery notes it, durably; another change of the role takes it away."""
    restored = old(sites)
    lose_pool(restored)
    journal = restored.journal_directory
    os.rename(journal, journal.with_name("aside"))
    os.mkdir(journal, 0o700)
    for file in journal.with_name("aside").iterdir():
        os.rename(file, journal / file.name)
    insert(connect(restored.path))
    assert old(sites).content.is_restored
    found = meet(old(sites), other(sites.primary))
    assert found is not None
    assert isinstance(found.verdict, Parted)
    assert "restored from a backup" in found.text
    insert(connect(restored.path))
    demote(old(sites), timeout_s=10)
    assert not old(sites).content.is_restored


def test_it_gives_way_and_goes_back_and_follows(sites: Split) -> None:
    fenced = fence(sites)
    assert give_way(fenced)
    assert not give_way(fenced)
    content = old(sites).content
    assert (content.role, content.fence is not None) == ("secondary", True)
    assert all(peer.passive for peer in content.peers)
    done = rollback(old(sites), None)
    assert done.to == sites.common
    assert done.kept is not None
    assert done.because.startswith(f"{sites.primary.name} took over after transaction {sites.common}")
    assert old(sites).content.fence is None
    assert old(sites).content.successor == Successor(sites.primary.name, sites.common)
    assert json.loads(encode(old(sites).content))["format"] == 3
    sites.secondary = old(sites)
    sites.catch_up()
    assert_equal(sites)


def test_rollback_alone_is_enough(sites: Split) -> None:
    """It is still primary when the command comes."""
    fence(sites)
    looked = rollback(old(sites), None, dry_run=True)
    assert (looked.to, old(sites).role) == (sites.common, "primary")
    assert rollback(old(sites), None).to == sites.common
    assert old(sites).role == "secondary"
    again = rollback(old(sites), sites.common)
    assert again.to == again.last


def test_without_a_fence_a_primary_is_not_taken_back(sites: Split) -> None:
    with pytest.raises(PermissionRefusedError, match="may be all that there is"):
        rollback(old(sites), None)


def test_demote_keeps_the_fence(sites: Split) -> None:
    fence(sites)
    demote(old(sites), timeout_s=10)
    assert old(sites).content.fence is not None
    assert rollback(old(sites), None).to == sites.common


def test_promote_is_refused_and_with_force_takes_the_role_back(sites: Split) -> None:
    fenced = fence(sites)
    with pytest.raises(TryAgainError, match=f"{sites.primary.name} took over from {fenced.name}") as refused:
        promote(old(sites), finish=lambda: 0, timeout_s=10)
    assert "rollback" in refused.value.do
    assert "promote --force" in refused.value.do
    last = sites.last_seqno(old(sites))
    made = promote(old(sites), finish=lambda: last, timeout_s=10, force=True)
    assert made.overruled == (sites.primary.name, sites.common)
    assert f"rollback --to {sites.common}" in next_steps(old(sites), made)[0]
    content = old(sites).content
    assert content.takes_writes
    assert json.loads(encode(content))["format"] == WITH_FENCE
    insert(connect(sites.secondary.path))
    with door_of(old(sites)) as door:
        assert door.catalogue_now().histories[-1].reason == "took its role back"
    for met, said in ((old(sites), other(sites.primary)), (sites.primary, other(old(sites)))):
        found = meet(met, said)
        assert found is not None
        assert not found.is_fenced
        assert "primary too" in found.text
    # What the other one is told to type has it follow.
    demote(sites.primary, timeout_s=10)
    rollback(Instance.open(sites.primary.path), sites.common)
    sites.exchange()
    sites.catch_up()
    assert_equal(sites)
    # And after another planned change nothing is left of it.
    sites.switch()
    assert not sites.secondary.content.overruled


def test_status_says_what_to_type(sites: Split) -> None:
    assert not finding(sites.secondary, "FENCED")
    fenced = fence(sites)
    for _ in range(2):
        (found,) = finding(fenced, "FENCED")
        assert found.severity == "error"
        assert f"{sites.primary.name} took over after transaction {sites.common}" in found.text
        assert "2 transactions after it are only here" in found.text
        for command in ("rollback", "receiver start --auto-rollback", "promote --force"):
            assert f"replicate -i {fenced.named} {command}" in found.do
        give_way(Instance.open(fenced.path))
    rollback(Instance.open(fenced.path), None)
    assert not finding(fenced, "FENCED")


def test_status_tells_of_the_other_primary_that_a_daemon_has_met(sites: Split) -> None:
    met = {"name": "east", "text": "east is primary too", "do": "choose"}
    files = DaemonFiles(sites.primary.path, "receiver")
    status = DaemonStatus("receiver", os.getpid(), "serving", "standing by", 0, 0, facts={"other_primary": met})
    lock = files.lock.acquire()
    try:
        files.status.write(status)
        (found,) = finding(sites.primary, "SPLIT_BRAIN")
        assert (found.text, found.do, found.subject) == ("east is primary too", "choose", "east")
        assert found.severity == "error"
        files.status.write(replace(status, facts={"other_primary": None}))
        assert not finding(sites.primary, "SPLIT_BRAIN")
        files.status.write(status)
    finally:
        os.close(lock)
    assert not finding(sites.primary, "SPLIT_BRAIN"), "nobody says so any more"


def test_status_says_that_a_handover_is_not_finished(sites: Split) -> None:
    assert not finding(sites.primary, "HANDED_OVER")
    with sites.primary._changing() as content:
        sites.primary._store(replace(content, role="secondary", successor=Successor("west", 7, is_pending=True)))
    (found,) = finding(sites.primary, "HANDED_OVER")
    assert "handed over to west after transaction 7" in found.text
    assert found.do == f"replicate -i {sites.primary.named} switchover --to west"
    sites.primary.successor_is_primary()
    assert not finding(sites.primary, "HANDED_OVER")


@pytest.mark.slow
@pytest.mark.parametrize("place", ["fence.pool_retired:1", "fence.noted:1", "role.region_turned:1"])
def test_killed_at_each_step_and_repeated_it_is_the_same(sites: Split, place: str) -> None:
    call = "tests.harness.sites:meet_and_give_way"
    assert kill_at(place, call, sites.secondary.path, sites.primary.path) == -signal.SIGKILL
    if place == "fence.pool_retired:1":
        insert(connect(sites.secondary.path))  # nobody was told yet
    else:
        with pytest.raises(OperationalError, match="superseded by"):
            insert(connect(sites.secondary.path))
    assert kill_at("", call, sites.secondary.path, sites.primary.path) == 0
    content = old(sites).content
    assert (content.role, content.fence is not None) == ("secondary", True)
    assert rollback(old(sites), None).to == sites.common
    sites.secondary = old(sites)
    sites.catch_up()
    assert_equal(sites)


def test_a_rollback_killed_before_the_fence_is_settled_is_repeated(sites: Split) -> None:
    fence(sites)
    call = "replicate.roles.rollback:rollback"
    assert kill_at("rollback.before_end:1", call, sites.secondary.path, sites.common) == -signal.SIGKILL
    assert rollback(old(sites), None).to == sites.common
    assert old(sites).content.fence is None


@pytest.mark.slow
def test_one_that_attaches_to_the_pool_of_another_process_learns_of_the_fence(sites: Split) -> None:
    """Its incarnation is the same, and what it has read of the instance is from before."""
    before = old(sites)
    call = "tests.harness.sites:meet_and_give_way"
    assert kill_at("fence.noted:1", call, sites.secondary.path, sites.primary.path) == -signal.SIGKILL
    assert kill_at("", "replicate.roles.change_of_role:last_seqno", sites.secondary.path) == 0
    assert before.takes_writes
    door = open_door(before)
    try:
        assert door.words[word.ROLE] == word.ROLE_SECONDARY
        assert not door.instance.takes_writes
    finally:
        close_door(door)


def test_an_old_primary_with_nothing_more_is_fenced_and_follows_without_a_file(tmp_path: Path) -> None:
    made = Sites.level(tmp_path)
    seqno = made.take_over()
    found = meet(made.secondary, other(made.primary))
    assert found is not None
    assert isinstance(found.verdict, Superseded)
    with pytest.raises(UsageError, match="there is nothing after"):
        rollback(Instance.open(made.secondary.path), seqno + 1)
    done = rollback(Instance.open(made.secondary.path), None)
    assert (done.to, done.last, done.kept) == (seqno, seqno, None)
    assert Instance.open(made.secondary.path).content.fence is None


def test_one_that_is_fenced_goes_back_by_that_where_its_source_cannot_say_where(tmp_path: Path) -> None:
    """It began again before they met: of an incarnation that has written nothing a source knows nothing."""
    made = Sites.level(tmp_path)
    seqno = made.take_over()
    lose_pool(made.secondary)
    made.secondary.raise_incarnation()
    with door_of(made.secondary) as door:
        known = catalogue_before(door.chain, seqno + 2)
    found = meet(Instance.open(made.secondary.path), other(made.primary))
    assert found is not None
    assert found.is_fenced
    fenced = Instance.open(made.secondary.path)
    assert give_way(fenced)
    with door_of(made.primary) as door, pytest.raises(RollbackNeededError) as refused:
        agree(door, Restart(seqno + 2, known.vector, known.chains))
    verdict = verdict_of(made.primary.name, fenced.content.incarnation, refused.value.facts["peer_facts"])
    assert verdict is not None
    assert not verdict.ended_by
    note_verdict(fenced, verdict)
    done = rollback(fenced, None)
    assert (done.to, done.last, done.kept) == (seqno, seqno + 1, None)
    made.secondary = Instance.open(fenced.path)
    assert made.secondary.content.fence is None
    made.catch_up()
    assert_equal(made)
