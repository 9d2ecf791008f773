"""`rollback` without --to: what the source said is taken, if our journal proves it; else the error says what to do."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from replicate.cli import main
from replicate.door.snapshot import door_of
from replicate.errors import (
    DivergedError,
    JournalMissingError,
    PermissionRefusedError,
    RollbackNeededError,
    UsageError,
)
from replicate.instance.instance import Instance
from replicate.journal.catalogue import catalogue_before
from replicate.roles.change_of_role import become_primary, become_secondary
from replicate.roles.rollback import rollback
from replicate.roles.source_refusal import SourceVerdict, forget_verdict, look_at_verdict, note_verdict, verdict_of
from replicate.wire.message import Restart
from source_server.restart import agree
from tests.harness.pair import assert_equal
from tests.harness.sites import Sites, told_of_a_takeover

SMALL = "[journal]\nsegment_bytes = 1048576\npool_bytes = 1048576\n"


def part(sites: Sites, lost: int = 4) -> int:
    """The primary commits alone and dies, and the other site takes over. The last common number."""
    sites.write(lost)
    common = sites.take_over()
    sites.write(2)
    become_secondary(sites.secondary)
    sites.secondary.reload()
    return common


@pytest.fixture
def sites(tmp_path: Path) -> Sites:
    return Sites.level(tmp_path)


def refused(sites: Sites, instance: Instance | None = None) -> dict[str, Any]:
    """What the primary's refusal of the secondary (or `instance`) tells, as a real source decides it."""
    asking = instance or sites.secondary
    with door_of(asking) as door:
        last = sites.last_seqno(asking)
        known = catalogue_before(door.chain, last + 1)
    with door_of(sites.primary) as door, pytest.raises(RollbackNeededError) as raised:
        agree(door, Restart(last + 1, known.vector, known.chains))
    facts: dict[str, Any] = raised.value.facts["peer_facts"]
    return facts


def note(sites: Sites, **changed: Any) -> SourceVerdict:
    """The verdict of a real refusal, or another one, is kept."""
    verdict = verdict_of("west", sites.secondary.content.incarnation, refused(sites))
    assert verdict is not None
    verdict = replace(verdict, **changed)
    note_verdict(sites.secondary, verdict)
    return verdict


def test_what_the_source_said_is_where_it_goes_and_is_told_before(sites: Sites, capsys: Any) -> None:
    common = part(sites)
    old = sites.secondary
    last = sites.last_seqno(old)
    verdict = note(sites)
    assert (verdict.ended_by, verdict.more_from, verdict.others) == ("west", common + 1, ())
    assert look_at_verdict(old) == verdict
    told: list[str] = []
    seen = rollback(old, None, dry_run=True, tell=told.append)
    assert (seen.to, seen.last, seen.is_done, seen.because) == (common, last, False, verdict.told)
    assert told == [f"{verdict.told}: what east has more, up to {last}, would be taken back"]
    assert look_at_verdict(old) == verdict
    assert main.run(["-i", str(old.path), "--json", "rollback"]) == 0
    out, err = capsys.readouterr()
    assert f"west says that west took over after transaction {common}" in err
    done = json.loads(out)
    assert (done["to"], done["last"], done["because"], done["kept"]["transactions"]) == (common, last, verdict.told, 4)
    assert not (old.run_directory / "rollback.json").exists(), "it is done"
    with pytest.raises(UsageError, match="no source has refused"):
        rollback(Instance.open(old.path), None)
    sites.secondary = Instance.open(old.path)
    sites.catch_up()
    assert_equal(sites)


def test_twice_superseded_it_goes_back_to_the_first_parting(sites: Sites) -> None:
    """The old primary has more of two origins: its own, and one of a second primacy that nobody followed."""
    sites.write(2)
    common = sites.take_over()
    old = sites.secondary
    become_secondary(old)
    become_primary(old)
    connection = sites.primary
    sites.primary = Instance.open(old.path)
    sites.write(2)
    sites.primary = connection
    sites.write(1)
    become_secondary(old)
    sites.secondary = Instance.open(old.path)
    verdict = note(sites)
    assert len(verdict.others) == 1
    assert rollback(sites.secondary, None).to == common
    sites.secondary = Instance.open(old.path)
    sites.catch_up()
    assert_equal(sites)


def test_a_point_that_is_named_does_not_ask_for_it(sites: Sites) -> None:
    common = part(sites)
    note(sites, more_from=2)
    told: list[str] = []
    assert rollback(sites.secondary, common, tell=told.append).because == ""
    assert told == []
    assert not (sites.secondary.run_directory / "rollback.json").exists()


def test_without_one_the_error_says_how_to_get_it(sites: Sites) -> None:
    part(sites)
    with pytest.raises(UsageError, match="no source has refused") as raised:
        rollback(sites.secondary, None)
    assert "Start its Receiver Server" in raised.value.do
    assert f"replicate -i {sites.secondary.named} rollback --to N" in raised.value.do
    with pytest.raises(PermissionRefusedError):
        rollback(sites.primary, None)


@pytest.mark.parametrize("changed", [{"ended_by": ""}, {"more_from": 0}])
def test_where_nobody_took_over_the_only_copy_may_be_here(sites: Sites, changed: dict[str, Any]) -> None:
    part(sites)
    note(sites, **changed)
    with pytest.raises(UsageError, match="may be the only copy") as raised:
        rollback(sites.secondary, None)
    assert "restored from a backup" in raised.value.do


def test_a_primary_that_was_restored_is_no_reason_to_go_back(sites: Sites) -> None:
    """A real one: it has less of its own origin, and no record says that anybody took over."""
    common = part(sites)
    rollback(sites.secondary, common)
    sites.secondary = Instance.open(sites.secondary.path)
    sites.catch_up()
    become_secondary(sites.primary)  # so that it can lose some
    rollback(sites.primary, sites.last_seqno(sites.primary) - 1)
    verdict = verdict_of("west", sites.secondary.content.incarnation, refused(sites))
    assert verdict is not None
    assert verdict.ended_by == ""
    note_verdict(sites.secondary, verdict)
    with pytest.raises(UsageError, match="may be the only copy"):
        rollback(sites.secondary, None)


def begun_again(sites: Sites) -> int:
    """The old primary had nothing that the new one lacks, and was demoted and promoted once more after that. The last
    common number."""
    common = sites.take_over()
    sites.write(2)
    for change in (become_secondary, become_primary, become_secondary):
        change(sites.secondary)
        sites.secondary = Instance.open(sites.secondary.path)
    return common


def test_an_incarnation_in_which_nothing_was_written_goes_without_a_point(sites: Sites, capsys: Any) -> None:
    """Nobody can have taken over from what nobody has heard of. It was refused: no source had said anything."""
    common = begun_again(sites)
    old = sites.secondary
    verdict = note(sites)
    assert (verdict.ended_by, verdict.more_from, verdict.common) == ("", 0, 0)
    assert main.run(["-i", str(old.path), "rollback"]) == 0
    assert f"west lacks what was begun at {common + 1}, and nothing was written since" in capsys.readouterr().err
    assert not list(old.path.parent.glob("*-lost-*")), "it had nothing of anybody's"
    sites.secondary = Instance.open(old.path)
    sites.catch_up()
    assert_equal(sites)


def test_one_in_which_something_was_written_is_not_empty(sites: Sites) -> None:
    begun_again(sites)
    old = sites.secondary
    become_primary(old)
    sites.exchange()
    sites.write(1)
    sites.exchange()
    become_secondary(sites.secondary)
    sites.secondary = Instance.open(old.path)
    last = sites.last_seqno(sites.secondary)
    note(sites)
    with pytest.raises(UsageError, match="may be the only copy"):
        rollback(sites.secondary, None)
    assert sites.last_seqno(sites.secondary) == last


@pytest.mark.parametrize("by", [-1, 1, 100])
def test_a_point_that_the_own_journal_does_not_prove(sites: Sites, by: int) -> None:
    common = part(sites)
    last = sites.last_seqno(sites.secondary)
    note(sites, more_from=common + 1 + by)
    with pytest.raises(DivergedError, match="is another one here") as raised:
        rollback(sites.secondary, None)
    assert "seed --restart" in raised.value.do
    assert sites.last_seqno(sites.secondary) == last


def test_of_another_origin_there_is_more_at_that_place(sites: Sites) -> None:
    """Two origins are named, and what is more of one of them begins before the place: it is not the common one."""
    common = part(sites)
    rollback(sites.secondary, common)
    sites.secondary = Instance.open(sites.secondary.path)
    sites.catch_up()
    sites.write(2)
    part(sites)
    verdict = note(sites)
    with door_of(sites.secondary) as door:
        there = catalogue_before(door.chain, verdict.more_from).vector
    others = [origin for origin in there.origins() if origin != verdict.origin and there.last(origin)]
    note(sites, others=((others[0], there.last(others[0]) - 1),))
    with pytest.raises(DivergedError):
        rollback(sites.secondary, None)
    note(sites, others=((others[0], there.last(others[0])),))
    assert rollback(sites.secondary, None).to == verdict.more_from - 1


def test_the_journal_does_not_reach_back_to_it(tmp_path: Path) -> None:
    sites = Sites.create(tmp_path, settings=SMALL)
    sites.add_peers()
    sites.write(3)
    sites.seed()
    common = part(sites)
    verdict = note(sites)
    sites.take_over()  # the old one is primary again, and becomes long
    for _ in range(8):
        sites.write(1, size=500_000)
    become_secondary(sites.primary)
    sites.primary.reload()
    with door_of(sites.primary) as door:
        door.chain.prune(door.chain.last_segment().first_seqno)  # by hand: pruning keeps what may stand nowhere else
        assert door.chain.oldest_seqno() > common + 1
    note_verdict(sites.primary, replace(verdict, incarnation=sites.primary.content.incarnation))
    with pytest.raises(JournalMissingError, match="where west took over") as raised:
        rollback(sites.primary, None)
    assert "seed --restart" in raised.value.do


def test_a_change_of_role_ends_it(sites: Sites) -> None:
    """Its history goes on from what was to be taken back: what was said before that is no reason any more."""
    part(sites)
    verdict = note(sites)
    old = sites.secondary
    assert look_at_verdict(old) == verdict
    become_primary(old)
    become_secondary(old)
    old.reload()
    assert look_at_verdict(old) is None
    with pytest.raises(UsageError, match="no source has refused"):
        rollback(old, None)


def test_what_is_no_verdict_counts_as_none(sites: Sites) -> None:
    part(sites)
    verdict = note(sites)
    old, path = sites.secondary, sites.secondary.run_directory / "rollback.json"
    good = json.loads(path.read_text())
    for changed in (
        {"format": 2},
        {"origin": -1},
        {"origin": "x"},
        {"common": True},
        {"others": [[1]]},
        {"others": 3},
        {"source": "../x"},
        {"ended_by": 5},
        {"more": 1},
    ):
        path.write_text(json.dumps({**good, **changed}))
        assert look_at_verdict(old) is None, changed
    for text in ("", "[]", "{", "[" * 100_000):
        path.write_text(text)
        assert look_at_verdict(old) is None, text[:9]
    path.write_text(json.dumps(good))
    assert look_at_verdict(old) == verdict
    forget_verdict(old)
    forget_verdict(old)
    assert look_at_verdict(old) is None


def test_what_a_peer_may_send() -> None:
    facts: dict[str, Any] = {"origin": 5, "common_origin_seqno": 3}
    assert verdict_of("west", 1, facts) == SourceVerdict("west", 1, 5, 3, 0, "")  # an older release
    more = {"more_from": 9, "ended_by": "oslo", "origin_1": 6, "common_1": 2, "origin_3": 7}
    assert verdict_of("west", 1, {**facts, **more}) is None
    del more["origin_3"]
    assert verdict_of("west", 1, {**facts, **more}) == SourceVerdict("west", 1, 5, 3, 9, "oslo", ((6, 2),))
    for wrong in ({"origin": "x"}, {"origin": -1}, {"more_from": 1 << 64}, {"ended_by": "a b\n"}, {"ended_by": 7}):
        assert verdict_of("west", 1, {**facts, **wrong}) is None, wrong
    assert verdict_of("", 1, facts) is None
    assert verdict_of("west", 1, {}) is None


def test_one_that_follows_another_does_not_go_back_to_a_named_point(sites: Sites) -> None:
    """It was allowed: nothing says that anybody took over from what it has."""
    sites.write(3)
    sites.catch_up()
    west = sites.secondary
    last = sites.last_seqno(west)
    for dry_run in (True, False):
        with pytest.raises(PermissionRefusedError, match=f"west follows east, and nothing proves .* after {last - 1} "):
            rollback(west, last - 1, dry_run=dry_run)
    assert sites.last_seqno(Instance.open(west.path)) == last
    assert not list(west.path.parent.glob("*-lost-*"))
    # A source that has less, and from which nobody took over, was restored from a backup: that is no proof either.
    become_secondary(sites.primary)
    rollback(sites.primary, last - 1)
    verdict = verdict_of("east", west.content.incarnation, refused(sites))
    assert verdict is not None
    note_verdict(west, verdict)
    with pytest.raises(PermissionRefusedError, match="nothing proves") as caught:
        rollback(west, last - 1)
    assert "replicate -i east replica restore" in caught.value.do


def test_where_the_source_says_who_took_over_a_point_may_be_named(sites: Sites) -> None:
    sites.write(3)
    sites.catch_up()
    west = sites.secondary
    last = sites.last_seqno(west)
    told_of_a_takeover(west, last - 2)
    assert rollback(west, last - 1).to == last - 1
    assert rollback(Instance.open(west.path), last - 1).last == last - 1, "given again it is done, and says so"
    with pytest.raises(PermissionRefusedError):  # it is another incarnation now
        rollback(Instance.open(west.path), last - 2)
