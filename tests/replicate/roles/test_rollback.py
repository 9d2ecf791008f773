"""Rolling back to the common point: an old primary returns with transactions that nobody else has."""

from __future__ import annotations

import json
import random
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

import apsw
import pytest
from click.testing import CliRunner

from replicate import connect
from replicate.admin.regions import add_region
from replicate.audit.verify import verify_journal
from replicate.cli.root import root
from replicate.door.pruning import prune_journal
from replicate.door.recovery.opening import ROLLBACK_MARKER, make_chain, open_door
from replicate.door.snapshot import door_of
from replicate.errors import (
    ConflictError,
    JournalMissingError,
    NotSupportedError,
    PermissionRefusedError,
    TryAgainError,
    UndeliveredError,
    UsageError,
)
from replicate.instance.consumers import Consumer, read_consumer, read_hold, write_consumer, write_hold
from replicate.instance.instance import Instance
from replicate.lost.peers_lack import Owner, look
from replicate.model.vector import Position
from replicate.pool import control as word
from replicate.region.sqlite.applying import AppliedFile
from replicate.region.sqlite.open import open_region
from replicate.roles.change_of_role import become_primary, become_secondary
from replicate.roles.daemons_down import daemons_down
from replicate.roles.rollback import RolledBack, rollback
from replicate.roles.source_refusal import note_verdict, verdict_of
from replicate.transfer.seed.direct import seed
from replicate.wire.message import Restart
from replicate.wire.resync import RollbackFirst, SourceView, decide
from tests.harness.instances import lose_pool
from tests.harness.pair import assert_equal
from tests.harness.regions import make_database
from tests.harness.sites import ROOT, Sites, kill_at, told_of_a_takeover

SCHEMA = """
CREATE TABLE account (id INTEGER PRIMARY KEY AUTOINCREMENT, owner TEXT NOT NULL, balance INTEGER, note);
CREATE TABLE pair (a TEXT, b REAL, c BLOB, PRIMARY KEY (a, b)) WITHOUT ROWID;
CREATE TABLE loose (x);
CREATE UNIQUE INDEX owners ON account (owner);
"""
SMALL = "[journal]\nsegment_bytes = 1048576\npool_bytes = 1048576\n"


def make(directory: Path, *, second: bool = False, settings: str = SMALL) -> Sites:
    sites = Sites.create(directory, SCHEMA, settings=settings)
    if second:
        add_region(sites.primary, make_database(directory / "two.db", SCHEMA), name="two")
    sites.add_peers()
    history(sites, random.Random(100), 10)
    sites.seed()
    sites.catch_up()
    return sites


def history(sites: Sites, draw: random.Random, count: int, *, large: bool = False) -> None:
    """Random transactions on the primary, in all its regions."""
    connections = [sites.primary.region(entry.name).name for entry in sites.primary.regions]
    opened = [connect(sites.primary.path, name) for name in connections]
    for number in range(count):
        connection = draw.choice(opened)
        if large and number == count // 2:
            connection.executemany(
                "INSERT INTO loose VALUES (?)", [(f"{place}" + "y" * draw.randrange(200),) for place in range(16_000)]
            )
            connection.execute("INSERT INTO account(owner) VALUES (?)", (f"large {draw.random()}",))
            connection.execute("DELETE FROM account WHERE owner LIKE 'large%'")
        for _ in range(draw.randrange(1, 4)):
            change(connection, draw)
        connection.commit()
    for connection in opened:
        connection.close()


def change(connection: Any, draw: random.Random) -> None:
    ids = [row[0] for row in connection.execute("SELECT id FROM account").fetchall()]
    kind = draw.randrange(6)
    if kind == 0 or not ids:
        connection.execute(
            "INSERT INTO account(owner, balance, note) VALUES (?, ?, ?)",
            (
                f"o{draw.random()}",
                draw.randrange(99),
                draw.choice([None, b"\x00\xff", 1.5, "x" * draw.randrange(3000)]),
            ),
        )
    elif kind == 1:
        connection.execute("UPDATE account SET balance = ?, note = ? WHERE id = ?", (1, "n", draw.choice(ids)))
    elif kind == 2:
        connection.execute("DELETE FROM account WHERE id = ?", (draw.choice([max(ids), draw.choice(ids)]),))
    elif kind == 3:
        connection.execute("INSERT INTO pair VALUES (?, ?, ?)", (f"a{draw.random()}", draw.random(), b"\x01" * 9))
    elif kind == 4:
        connection.execute("UPDATE account SET id = ? WHERE id = ?", (max(ids) + 7, draw.choice(ids)))
    else:
        connection.execute("INSERT INTO loose VALUES (?)", (draw.random(),))
        connection.execute("DELETE FROM loose WHERE rowid = (SELECT min(rowid) FROM loose)")


def part(sites: Sites, draw: random.Random, *, lost: int = 12, large: bool = False) -> int:
    """The primary goes on alone and dies, the other site takes over and goes on: `sites` has the new roles. The last
    common number."""
    history(sites, draw, lost, large=large)
    common = sites.take_over()
    history(sites, draw, 5)
    become_secondary(sites.secondary)
    return common


def content(instance: Instance) -> dict[str, Any]:
    """All rows and counters of all regions."""
    found: dict[str, Any] = {}
    for entry in instance.regions:
        connection = apsw.Connection(str(entry.path), flags=apsw.SQLITE_OPEN_READONLY)
        try:
            for query in (
                "SELECT * FROM account ORDER BY 1",
                "SELECT * FROM pair ORDER BY 1, 2",
                "SELECT rowid, x FROM loose ORDER BY 1",
                "SELECT * FROM sqlite_sequence",
            ):
                found[f"{entry.name}: {query}"] = connection.execute(query).fetchall()
        finally:
            connection.close()
    return found


def joins(sites: Sites) -> None:
    """The old primary takes the new one's stream, and both are equal and well."""
    sites.secondary = Instance.open(sites.secondary.path)
    sites.catch_up()
    assert content(sites.primary) == content(sites.secondary)
    assert_equal(sites)
    for instance in (sites.primary, sites.secondary):
        assert not verify_journal(instance).findings


@pytest.mark.slow
@pytest.mark.parametrize("second", [False, True], ids=["one region", "two regions"])
@pytest.mark.parametrize("number", range(2))
def test_what_nobody_has_is_taken_back_and_kept(tmp_path: Path, number: int, second: bool) -> None:
    sites, draw = make(tmp_path, second=second), random.Random(number)
    before = content(sites.primary)
    last_common = sites.last_seqno()
    common = part(sites, draw, large=number == 0)
    assert common == last_common
    old = sites.secondary
    last = sites.last_seqno(old)
    assert content(old) != before
    seen = rollback(old, common, dry_run=True)
    assert not seen.is_done
    assert seen.found.transactions == last - common
    assert content(old) != before
    incarnation = Instance.open(old.path).content.incarnation
    done = rollback(old, common)
    assert (done.to, done.last, done.found) == (common, last, seen.found)
    assert content(old) == before
    assert Instance.open(old.path).content.incarnation == incarnation + 1
    assert sites.last_seqno(Instance.open(old.path)) == common
    check_file(done, last - common)
    joins(sites)


def check_file(done: RolledBack, count: int) -> list[dict[str, Any]]:
    assert done.kept is not None
    lines = [json.loads(line) for line in done.kept.file.path.read_text().splitlines()]
    assert lines[0]["common"] == done.to
    assert (lines[0]["from"], lines[0]["to"], lines[0]["cause"]) == (done.to + 1, done.last, "rollback")
    assert lines[-1]["transactions"] == count
    assert [one["seqno"] for one in lines[1:-1] if one["kind"] != "PART"] == list(range(done.to + 1, done.last + 1))
    return lines[1:-1]


def test_over_several_segments_and_at_a_border(tmp_path: Path) -> None:
    sites = make(tmp_path)
    sites_write(sites, 3)
    sites.catch_up()
    before = content(sites.primary)
    common = sites.last_seqno()
    sites_write(sites, 9)
    assert len(make_chain(sites.primary).first_seqnos()) > 3
    assert sites.take_over() == common
    become_secondary(sites.secondary)
    rollback(sites.secondary, common)
    assert content(sites.secondary) == before
    joins(sites)


def sites_write(sites: Sites, count: int) -> None:
    connection = sites.connect()
    for _ in range(count):
        connection.execute("INSERT INTO loose VALUES (?)", ("z" * 500_000,))
        connection.commit()
    connection.close()


@pytest.mark.slow
def test_every_point_of_a_journal_and_again_from_there(tmp_path: Path) -> None:
    """N at each place: segment borders, adopted ones, N = last; the rows are those of that moment each time."""
    sites = make(tmp_path)
    states, draw = {}, random.Random(5)
    for turn in range(4):
        states[sites.last_seqno()] = content(sites.primary)
        if turn % 3 == 2:
            history(sites, draw, 1, large=True)
        elif turn % 3 == 1:
            sites_write(sites, 1)
        else:
            history(sites, draw, 1)
    last = become_secondary(sites.primary)
    assert rollback(sites.primary, last).kept is None
    for seqno in sorted(states, reverse=True):
        rollback(sites.primary, seqno)
        assert content(sites.primary) == states[seqno], seqno
        lose_pool(sites.primary)
        assert sites.last_seqno(Instance.open(sites.primary.path)) == seqno
        assert not verify_journal(Instance.open(sites.primary.path)).findings


PLACES = [
    *("rollback.lost_written:1", "rollback.marked:1", "rollback.piece_undone:1", "rollback.piece_undone:3"),
    *("rollback.region_undone:1", "rollback.piece_undone:2", "rollback.region_undone:2", "rollback.unlinked:1"),
    *("rollback.unlinked:1", "rollback.before_cut:1", "rollback.before_cut:1", "rollback.cut:1", "rollback.cut:1"),
    *("rollback.before_end:1", "rollback.before_end:1"),
]
"""One after the other in one and the same rollback: each goes on where the one before it was killed."""


@pytest.mark.slow
def test_killed_everywhere_and_repeated(tmp_path: Path) -> None:
    sites, draw = make(tmp_path, second=True), random.Random(7)
    before, common = content(sites.primary), sites.last_seqno()
    history(sites, draw, 3)
    sites_write(sites, 4)
    history(sites, draw, 4, large=True)
    killed_at_each(tmp_path, sites, PLACES, before, common)


def test_killed_at_some_places_and_repeated(tmp_path: Path) -> None:
    sites = make(tmp_path)
    before, common = content(sites.primary), sites.last_seqno()
    sites_write(sites, 4)
    killed_at_each(tmp_path, sites, ["rollback.piece_undone:2", "rollback.before_cut:1"], before, common)


def killed_at_each(tmp_path: Path, sites: Sites, places: list[str], before: dict[str, Any], common: int) -> None:
    """Somebody takes over, and the old primary's rollback is killed at each of the places."""
    assert sites.take_over() == common
    history(sites, random.Random(8), 3)
    old = sites.secondary
    last = become_secondary(old)
    for place in places:
        assert kill_at(place, f"{rollback.__module__}:rollback", old.path, common) == -signal.SIGKILL, place
        assert (old.path / ROLLBACK_MARKER).exists() == (place != "rollback.lost_written:1")
    with pytest.raises(TryAgainError, match="rollback of east has begun"):
        open_door(Instance.open(old.path))
    with pytest.raises(UsageError, match=f"a rollback to {common} is under way"):
        rollback(old, common - 1)
    done = rollback(Instance.open(old.path), common)
    assert content(old) == before
    files = list(tmp_path.glob("east-lost-*.jsonl"))
    assert [file.name for file in files] == [f"east-lost-{common + 1}-{last}.jsonl"], "one file, whatever was killed"
    assert done.to == common
    joins(sites)


def test_a_reboot_in_the_middle_brings_nothing_back(tmp_path: Path) -> None:
    """T7: recovery redid the lost transactions; T8: the durable mark and the peers' positions were witnesses of what
    was cut."""
    sites = make(tmp_path)
    common = part(sites, random.Random(3))
    old = sites.secondary
    last = sites.last_seqno(old)
    old.reload()
    write_consumer(old.consumers_directory, Consumer("west", last))
    write_hold(old.consumers_directory, "west", last)
    kill_at("rollback.region_undone:1", "replicate.roles.rollback:rollback", old.path, common)
    lose_pool(old)
    with pytest.raises(TryAgainError):
        open_door(Instance.open(old.path))
    rollback(old, None)
    lose_pool(old)
    with door_of(Instance.open(old.path)):
        pass
    known = read_consumer(old.consumers_directory, "west")
    assert known is not None
    assert known.acknowledged_seqno == common
    assert read_hold(old.consumers_directory, "west") is None
    joins(sites)


def test_a_site_that_sends_on_goes_on_to_do_so(tmp_path: Path) -> None:
    """Its consumers are served after the rollback as before it: what they have more they must take back themselves."""
    sites = make(tmp_path)
    history(sites, random.Random(2), 4)
    sites.catch_up()
    relay = sites.secondary
    relay.reload()
    assert [peer.passive for peer in relay.peers] == [False]
    write_consumer(relay.consumers_directory, Consumer("east", sites.last_seqno()))
    told_of_a_takeover(relay, sites.last_seqno() - 2)
    rollback(relay, sites.last_seqno() - 2)
    assert [peer.passive for peer in Instance.open(relay.path).peers] == [False]
    joins(sites)


@pytest.mark.parametrize("ahead", [0, 3])
def test_a_third_site_goes_on_from_the_new_primary_without_a_seed(tmp_path: Path, ahead: int) -> None:
    """Also one that had got more of the old primary than the new one: it takes that back first, as it is told."""
    sites = make(tmp_path)
    old = sites.primary
    third = Instance.create(tmp_path / "north", role="secondary", name="north", network=old.content.network)
    old.register_peer("north", "127.0.0.1", 7431)
    old.reload()
    seed(old, third)
    third.reload()
    history(sites, random.Random(3), 4)
    sites.catch_up()
    history(sites, random.Random(4), ahead)
    Sites(tmp_path, old, third).catch_up()
    common = sites.take_over()
    history(sites, random.Random(5), 5)
    if ahead:
        with door_of(third) as door, door_of(sites.primary) as source:
            theirs, ours = read_position_of(third), source.position()
            restart = Restart(int(door.words[word.LAST_SEQNO]) + 1, theirs.vector, theirs.chains)
            decision = decide(restart, SourceView(ours, 1, source.catalogue_now().histories))
        assert isinstance(decision, RollbackFirst)
        assert (decision.more_from, decision.ended_by) == (common + 1, "west")
        with pytest.raises(PermissionRefusedError, match="follows east, and nothing proves"):
            rollback(third, decision.more_from - 1)
        verdict = verdict_of("west", third.content.incarnation, decision.error().facts["peer_facts"])
        assert verdict is not None
        note_verdict(third, verdict)
        rollback(third, decision.more_from - 1)
    joins(Sites(tmp_path, sites.primary, Instance.open(third.path)))


def read_position_of(instance: Instance) -> Position:
    entry = instance.region("main")
    with closing(AppliedFile(entry.path, region=entry.uuid)) as opened:
        return opened.position(0)


def test_what_is_refused_changes_nothing(tmp_path: Path) -> None:
    sites = make(tmp_path)
    common = part(sites, random.Random(4))
    with pytest.raises(PermissionRefusedError, match="demote"):
        rollback(sites.primary, common)
    old = sites.secondary
    before = content(old)
    with pytest.raises(UsageError, match="no point is named"):
        rollback(old, None)
    with pytest.raises(UsageError, match="nothing after"):
        rollback(old, sites.last_seqno(old) + 1)
    assert content(old) == before
    assert not list(tmp_path.glob("east-lost-*"))
    assert not (old.path / ROLLBACK_MARKER).exists()


def test_one_that_becomes_primary_before_the_work_begins_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    sites = make(tmp_path)
    history(sites, random.Random(2), 3)
    sites.catch_up()
    west = sites.secondary

    @contextmanager
    def promoted_first(instance: Instance, what: str, **how: Any) -> Iterator[None]:
        become_primary(Instance.open(instance.path))
        with daemons_down(instance, what, **how):
            yield

    monkeypatch.setattr("replicate.roles.rollback.daemons_down", promoted_first)
    with pytest.raises(PermissionRefusedError, match="is primary"):
        rollback(west, sites.last_seqno() - 1)
    assert not (west.path / ROLLBACK_MARKER).exists()


def test_what_a_demoted_primary_wrote_last_is_not_pruned(tmp_path: Path) -> None:
    """Only its journal has that. It kept two segments, and could not be taken back any more."""
    sites = make(tmp_path)
    sites.acknowledge()
    sites_write(sites, 9)
    common = sites.take_over()
    old = sites.secondary
    last = become_secondary(old)
    with door_of(old) as door:
        prune_journal(door)
        assert door.chain.oldest_seqno() <= common + 1
    check_file(rollback(Instance.open(old.path), common), last - common)
    joins(sites)


def test_what_a_demoted_primary_wrote_last_is_not_removed_unasked(tmp_path: Path) -> None:
    """Its peers are passive, and were not counted: `instance remove` destroyed what nobody else has without a word."""
    sites = make(tmp_path)
    sites.acknowledge()
    sites_write(sites, 3)
    common = sites.take_over()
    old = sites.secondary
    last = become_secondary(old)
    found = look(Owner.of(Instance.open(old.path)))
    assert found.is_lost
    assert (found.first_lost_seqno, found.end_seqno) == (common + 1, last)
    arguments = ["-i", str(old.path), "seed", "--restart", "--from", str(sites.primary.path)]
    refused = CliRunner().invoke(root, arguments)
    assert isinstance(refused.exception, UndeliveredError), refused.output
    assert refused.exception.do.count("rollback --to N") == 1
    assert refused.exception.do.endswith(
        "rollback --to N, the last one that the new primary has; then the same command again"
    )
    assert look(Owner.of(Instance.open(old.path))).is_lost
    check_file(rollback(Instance.open(old.path), common), last - common)
    assert not look(Owner.of(Instance.open(old.path))).is_lost
    joins(sites)


def test_the_journal_does_not_reach_back(tmp_path: Path) -> None:
    sites = make(tmp_path)
    sites_write(sites, 8)
    sites.catch_up()
    with door_of(sites.secondary) as door:
        prune_journal(door)
        oldest = door.chain.oldest_seqno()
    assert oldest > 5
    told_of_a_takeover(sites.secondary, oldest - 1)
    with pytest.raises(JournalMissingError, match="seed --restart"):
        rollback(sites.secondary, oldest - 2)
    before = sites.last_seqno(sites.secondary)
    assert rollback(sites.secondary, oldest - 1).last == before  # all that it has: an empty journal begins there
    sites.secondary.reload()
    joins(sites)


def test_killed_while_nothing_of_the_journal_is_left(tmp_path: Path) -> None:
    """All segments were gone before the new one was there, and the same command could not go on."""
    sites = make(tmp_path)
    seeded = sites.last_seqno()
    history(sites, random.Random(1), 4)
    sites.catch_up()
    told_of_a_takeover(sites.secondary, seeded)
    for place in ("rollback.before_cut:1", "rollback.cut:1"):
        code = kill_at(place, "replicate.roles.rollback:rollback", sites.secondary.path, seeded)
        assert code == -signal.SIGKILL, place
    assert rollback(Instance.open(sites.secondary.path), None).to == seeded
    assert sites.last_seqno(Instance.open(sites.secondary.path)) == seeded
    joins(sites)


def test_a_schema_change_bars_the_way_and_the_file_is_there(tmp_path: Path) -> None:
    sites = make(tmp_path)
    history(sites, random.Random(1), 2)
    connection = sites.connect()
    connection.execute("ALTER TABLE account ADD COLUMN more")
    connection.commit()
    connection.close()
    barred = sites.last_seqno()
    common = sites.take_over()
    old = sites.secondary
    become_secondary(old)
    before = content(old)
    seen = rollback(old, common, dry_run=True)
    assert seen.found.barred_at == barred
    assert "ALTER TABLE account" in seen.found.barred_by
    with pytest.raises(NotSupportedError, match="cannot be taken back") as raised:
        rollback(old, common)
    assert f"replicate -i {old.named} seed --restart" in raised.value.do
    (file,) = tmp_path.glob("east-lost-*.jsonl")
    assert str(file) in raised.value.do
    assert content(old) == before
    assert not (old.path / ROLLBACK_MARKER).exists()
    sites.primary.reload()
    sites.secondary.reload()
    sites.seed(restart=True)
    joins(sites)


def test_a_file_from_before_a_seed_is_of_other_transactions_with_the_same_numbers(tmp_path: Path) -> None:
    """The file of the course before was taken for the one of this, and what was taken back stood nowhere."""
    sites = make(tmp_path)
    connection = sites.connect()
    connection.execute("ALTER TABLE account ADD COLUMN more")
    connection.commit()
    connection.close()
    sites_write(sites, 5)
    common = sites.take_over()
    become_secondary(sites.secondary)
    with pytest.raises(NotSupportedError):
        rollback(sites.secondary, common)
    sites.primary.reload()
    sites.secondary.reload()
    seeded = sites.seed(restart=True)
    history(sites, random.Random(1), 2)
    sites.catch_up()
    assert len(list(tmp_path.glob("east-lost-*.jsonl"))) == 1
    told_of_a_takeover(sites.secondary, seeded)
    done = rollback(sites.secondary, seeded)
    assert len(list(tmp_path.glob("east-lost-*.jsonl"))) == 2
    check_file(done, 2)
    joins(sites)


def test_a_row_that_is_not_as_the_journal_has_it_stops_it(tmp_path: Path) -> None:
    sites = make(tmp_path)
    common = part(sites, random.Random(4))
    old = sites.secondary
    path = old.region("main").path
    connection = open_region(path, applier=True)
    connection.execute("UPDATE account SET note = 'forged'")
    connection.execute("UPDATE loose SET x = 'forged'")
    connection.execute("DELETE FROM pair")
    connection.close(True)
    for _ in range(2):
        with pytest.raises(ConflictError) as raised:
            rollback(old, common)
        assert "seed --restart" in raised.value.do
        assert (old.path / ROLLBACK_MARKER).exists()
    sites.secondary.reload()
    sites.seed(restart=True)
    assert not (old.path / ROLLBACK_MARKER).exists()
    joins(sites)


MEMORY = """
import resource, sys
from replicate.instance.instance import Instance
from replicate.roles.rollback import rollback
rollback(Instance.open(sys.argv[1]), int(sys.argv[2]))
print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss)
"""


@pytest.mark.slow
@pytest.mark.timeout(7200)
@pytest.mark.parametrize("rows", [300_000, pytest.param(10_000_000, marks=pytest.mark.long)])
def test_a_large_transaction_is_taken_back_in_little_memory(tmp_path: Path, rows: int) -> None:
    """Beside one of one row: the difference is what a piece takes, and SQLite's cache."""
    sites = make(tmp_path)
    common = sites.last_seqno()
    used = []
    for count in (1, rows):
        connection = sites.connect()
        connection.executemany("INSERT INTO loose VALUES (?)", (("m" * 150,) for _ in range(count)))
        connection.commit()
        connection.close()
        old = sites.primary
        become_secondary(old)
        command = [sys.executable, "-c", MEMORY, str(old.path), str(common)]
        done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True, timeout=7200)
        used.append(int(done.stdout))
        common = become_primary(Instance.open(old.path)) + 1
        old.reload()
    assert used[1] - used[0] < 60 * 1024, used
