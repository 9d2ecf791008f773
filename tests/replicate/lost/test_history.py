"""Transactions of a lost file that the history has: applied once, whatever wrote the file, no matter who has it."""

from __future__ import annotations

import json
import signal
from pathlib import Path

import pytest
from msgspec.structs import replace

from replicate.cli.main import run as command
from replicate.door.snapshot import door_of
from replicate.instance.instance import Instance
from replicate.lost import unsettled
from replicate.lost.apply import apply_lost
from replicate.lost.files import look_at_lost
from replicate.lost.history import InHistory, find_in_history, standing
from replicate.lost.read import LostReader, LostTransaction
from replicate.lost.unsettled import look_at_unsettled
from replicate.roles.change_of_role import become_primary, become_secondary
from replicate.roles.rollback import rollback
from replicate.status.collect import collect
from tests.harness.sites import Sites, kill_at
from tests.replicate.lost.test_apply import asked, equal, make, run

LOST = 3


def killed_after_its_file(sites: Sites) -> tuple[int, Path]:
    """The old primary has LOST transactions of its own, and a rollback there dies once they are in a file. The common
    point, and the file."""
    run(sites.primary, *([f"INSERT INTO loose VALUES ({n})"] for n in range(LOST)))
    common = sites.take_over()
    become_secondary(sites.secondary)
    path = sites.secondary.path
    assert kill_at("rollback.lost_written:1", "replicate.roles.rollback:rollback", path, common) == -signal.SIGKILL
    (file,) = path.parent.glob(f"{path.name}-lost-*.jsonl")
    return common, file


def numbers(path: Path) -> list[int]:
    with LostReader(path) as lost:
        return [one.seqno for one in lost.transactions() if one.is_data]


def test_who_takes_its_role_back_does_not_apply_what_it_never_undid(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The rows were there once more, since they had been deleted meanwhile."""
    sites = make(tmp_path)
    _, path = killed_after_its_file(sites)
    become_primary(sites.secondary)
    sites.exchange()
    run(sites.primary, ["DELETE FROM loose WHERE x = 0"])
    assert command(["-i", str(sites.primary.path), "lost", "apply", str(path), "--dry-run"]) == 0
    assert f"{LOST} are in this history already, and would not be applied again" in capsys.readouterr().out
    assert command(["-i", str(sites.primary.path), "lost", "list"]) == 0, "nothing waits, though nobody settled it"
    assert f"0 of {LOST} wait; {LOST} are in this history already, and need nothing" in capsys.readouterr().out
    assert waiting(sites.primary) == []
    done = apply_lost(sites.primary, path, timeout_s=30)
    assert (done.in_history, done.applied, done.conflicts) == (numbers(path), [], [])
    assert done.as_seqnos == {seqno: [seqno] for seqno in numbers(path)}
    assert asked(sites, "SELECT x FROM loose") == [(1,), (2,)]
    assert apply_lost(sites.primary, path, timeout_s=30).before == LOST
    assert command(["-i", str(sites.primary.path), "lost", "list"]) == 0, "nothing waits"
    assert command(["-i", str(sites.primary.path), "lost", "show", str(path)]) == 0
    assert capsys.readouterr().out.count("in history") == LOST


def test_a_site_that_goes_back_less_far_the_second_time_has_lost_only_the_rest(tmp_path: Path) -> None:
    """Fault 76: its first point was the wrong one. The one file has more than was lost."""
    sites = make(tmp_path)
    run(sites.primary, ["INSERT INTO loose VALUES (8)"])
    early = sites.last_seqno() - 1
    sites.catch_up()
    run(sites.primary, ["INSERT INTO loose VALUES (9)"])
    common = sites.take_over()
    become_secondary(sites.secondary)
    old = sites.secondary.path
    assert kill_at("rollback.lost_written:1", "replicate.roles.rollback:rollback", old, early) == -signal.SIGKILL
    done = rollback(sites.secondary, common)
    assert done.kept is not None
    sites.secondary = Instance.open(old)
    assert numbers(done.kept.file.path) == [common, common + 1]
    assert [(one.waiting, one.in_history) for one in look_at_lost(sites.secondary)] == [(1, 1)]
    assert [one.waiting for one in look_at_unsettled(old)] == [1]
    run(sites.primary, ["DELETE FROM loose"])
    applied = apply_lost(sites.primary, done.kept.file.path, timeout_s=30)
    assert (applied.in_history, applied.applied) == ([common], [common + 1])
    assert asked(sites, "SELECT x FROM loose") == [(9,)]
    equal(sites)


def waiting(instance: Instance) -> list[str]:
    """What `status` says of lost files."""
    return [one.text for one in collect(instance).findings if one.code == "LOST_UNSETTLED"]


@pytest.mark.parametrize("place", ["rollback.marked:1", "rollback.region_undone:1", "rollback.before_cut:1"])
def test_while_a_rollback_is_under_way_the_journal_is_no_proof(tmp_path: Path, place: str) -> None:
    """It has the transactions still, and the regions may not."""
    sites = make(tmp_path)
    run(sites.primary, *([f"INSERT INTO loose VALUES ({n})"] for n in range(LOST)))
    common = sites.take_over()
    become_secondary(sites.secondary)
    path = sites.secondary.path
    assert kill_at(place, "replicate.roles.rollback:rollback", path, common) == -signal.SIGKILL
    assert [one.waiting for one in look_at_unsettled(path)] == [LOST]
    rollback(Instance.open(path), common)
    assert [one.waiting for one in look_at_unsettled(path)] == [LOST]
    assert [one.waiting for one in look_at_lost(Instance.open(path))] == [LOST]


def test_a_file_of_an_older_release_is_read_and_a_long_one_counts_as_waiting(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    sites = make(tmp_path)
    _, path = killed_after_its_file(sites)
    assert look_at_unsettled(sites.secondary.path) == []
    whole_file = path.read_bytes().splitlines(keepends=True)
    last = json.loads(whole_file[-1])
    del last["origins"], last["check"]
    path.write_bytes(b"".join(whole_file[:-1]) + json.dumps(last).encode() + b"\n")
    assert look_at_unsettled(sites.secondary.path) == []
    monkeypatch.setattr(unsettled, "READ_BYTES_MAX", 10)
    assert [one.waiting for one in look_at_unsettled(sites.secondary.path)] == [LOST]


def test_some_settled_and_the_rest_there_wait_for_nobody(tmp_path: Path) -> None:
    sites = make(tmp_path)
    _, path = killed_after_its_file(sites)
    become_primary(sites.secondary)
    sites.exchange()
    apply_lost(sites.primary, path, only=numbers(path)[:1], timeout_s=30)
    assert look_at_unsettled(sites.primary.path) == []
    (seen,) = look_at_lost(sites.primary)
    assert (seen.waiting, seen.in_history) == (0, LOST - 1)


def test_what_the_journal_has_no_more_waits(tmp_path: Path) -> None:
    """Whether it is there cannot be told, and `lost apply` says so."""
    sites = make(tmp_path)
    killed_after_its_file(sites)
    become_primary(sites.secondary)
    sites.exchange()
    with door_of(sites.primary) as door:
        assert door.chain.prune(sites.last_seqno())
    assert [one.waiting for one in look_at_unsettled(sites.primary.path)] == [LOST]
    assert [one.waiting for one in look_at_lost(sites.primary)] == [LOST]


def test_a_schema_change_that_is_there_bars_nothing(tmp_path: Path) -> None:
    """A rollback across it was refused, and had written the file; then the role was taken back."""
    sites = make(tmp_path)
    run(sites.primary, ["CREATE TABLE more (x)"], ["INSERT INTO loose VALUES (1)"])
    common = sites.take_over()
    become_secondary(sites.secondary)
    assert command(["-i", str(sites.secondary.path), "rollback", "--to", str(common)]) == 78
    (path,) = tmp_path.glob("*-lost-*.jsonl")
    become_primary(sites.secondary)
    sites.exchange()
    done = apply_lost(sites.primary, path, timeout_s=30)
    assert (done.in_history, done.applied) == (numbers(path), [])


def whole(path: Path) -> list[LostTransaction]:
    with LostReader(path) as lost:
        return list(lost.transactions())


def found(instance: Instance, wanted: list[LostTransaction]) -> InHistory:
    with door_of(instance) as door:
        with door.locked():
            position = door.position()
        return find_in_history(door.chain, position, wanted)


def test_another_transaction_of_the_same_number_is_not_there(tmp_path: Path) -> None:
    """Of a primary that was restored from a backup, and nobody has noticed."""
    sites = make(tmp_path)
    _, path = killed_after_its_file(sites)
    ours = whole(path)
    theirs = [replace(ours[0], chain=f"{int(ours[0].chain, 16) ^ 1:016x}"), *ours[1:]]
    assert found(sites.secondary, ours) == InHistory({one.seqno: one.seqno for one in ours})
    assert found(sites.secondary, theirs) == InHistory({one.seqno: one.seqno for one in ours[1:]})
    assert found(sites.primary, ours) == InHistory(), "who took over has none of them"
    old, new = sites.secondary.path, sites.primary.path
    assert standing(old, ours) == {one.seqno for one in ours}
    assert standing(old, [replace(one, chain=f"{int(one.chain, 16) ^ 1:016x}") for one in ours]) == set()
    assert standing(new, ours) == set()


def test_what_was_pruned_is_a_conflict_since_nobody_can_tell(tmp_path: Path) -> None:
    sites = make(tmp_path)
    _, path = killed_after_its_file(sites)
    become_primary(sites.secondary)
    sites.exchange()
    run(sites.primary, ["DELETE FROM loose WHERE x = 0"])
    with door_of(sites.primary) as door:
        assert door.chain.prune(sites.last_seqno())
    first = numbers(path)[0]
    stopped = apply_lost(sites.primary, path, timeout_s=30)
    assert [(one.seqno, one.kind) for one in stopped.conflicts] == [(first, "pruned")]
    assert (stopped.left, asked(sites, "SELECT x FROM loose")) == (LOST, [(1,), (2,)])
    wanted = apply_lost(sites.primary, path, only=[first], on_conflict="overwrite", timeout_s=30)
    assert (wanted.applied, asked(sites, "SELECT x FROM loose ORDER BY x")) == ([first], [(0,), (1,), (2,)])
    assert apply_lost(sites.primary, path, on_conflict="skip", timeout_s=30).skipped == numbers(path)[1:]


def test_a_large_one(tmp_path: Path) -> None:
    sites = make(tmp_path)
    run(sites.primary, [f"INSERT INTO loose VALUES ({n} || '{'x' * 90}')" for n in range(16_000)])
    _, path = killed_after_its_file(sites)
    assert any(one.kind == "LARGE" for one in whole(path))
    become_primary(sites.secondary)
    sites.exchange()
    done = apply_lost(sites.primary, path, timeout_s=60)
    assert (len(done.in_history), done.applied) == (LOST + 1, [])
