"""Lost transactions applied on the new primary: once each, or reported; and conservation over random histories."""

from __future__ import annotations

import json
import random
import shutil
import signal
from collections import Counter
from pathlib import Path
from typing import Any

import apsw
import pytest

from replicate import connect
from replicate.admin.regions import add_region
from replicate.audit.show import show_journal
from replicate.audit.verify import verify_journal
from replicate.cli import main
from replicate.errors import (
    BusyError,
    DamagedError,
    JournalIOError,
    NotFoundError,
    NotPrimaryError,
    NotSupportedError,
    UsageError,
    WrongInstanceError,
    WrongNetworkError,
)
from replicate.instance.instance import Instance
from replicate.lost.apply import apply_lost
from replicate.lost.files import look_at_lost
from replicate.lost.read import LostReader
from replicate.roles.change_of_role import become_secondary
from replicate.roles.rollback import rollback
from replicate.system import failpoint
from tests.harness.pair import assert_equal
from tests.harness.regions import make_database
from tests.harness.several import content
from tests.harness.sites import Sites, kill_at

SCHEMA = """
CREATE TABLE account (id INTEGER PRIMARY KEY AUTOINCREMENT, owner TEXT UNIQUE, balance INTEGER, note);
CREATE TABLE child (id INTEGER PRIMARY KEY, of INTEGER REFERENCES account (id));
CREATE TABLE seen (id INTEGER PRIMARY KEY, what TEXT);
CREATE TRIGGER noted AFTER UPDATE ON account BEGIN INSERT INTO seen(what) VALUES (new.owner); END;
CREATE TABLE loose (x);
INSERT INTO account(owner, balance) VALUES ('one', 1), ('two', 2), ('three', 3);
"""


def make(directory: Path) -> Sites:
    sites = Sites.create(directory, SCHEMA)
    sites.add_peers()
    sites.seed()
    return sites


def lose(sites: Sites, *transactions: list[str], here: tuple[str, ...] = ()) -> Path:
    """The primary alone commits these; the other site takes over and commits `here`; the old one rolls back and joins.
    The lost file."""
    run(sites.primary, *transactions)
    common = sites.take_over()
    for one in here:
        run(sites.primary, [one])
    become_secondary(sites.secondary)
    done = rollback(sites.secondary, common)
    sites.secondary = Instance.open(sites.secondary.path)
    assert done.kept is not None
    return done.kept.file.path


def run(instance: Instance, *transactions: list[str]) -> None:
    connection = connect(instance.path)
    for statements in transactions:
        for statement in statements:
            connection.execute(statement)
        connection.commit()
    connection.close()


def equal(sites: Sites) -> None:
    sites.catch_up()
    assert_equal(sites)
    assert not verify_journal(sites.primary).findings


def asked(sites: Sites, query: str) -> list[Any]:
    connection = apsw.Connection(str(sites.primary.region("main").path), flags=apsw.SQLITE_OPEN_READONLY)
    try:
        return connection.execute(query).fetchall()
    finally:
        connection.close()


def test_all_is_applied_once_with_what_triggers_did(tmp_path: Path) -> None:
    sites = make(tmp_path)
    path = lose(
        sites,
        ["INSERT INTO account(owner, balance, note) VALUES ('new', 7, x'00ff')", "INSERT INTO loose VALUES (9e999)"],
        ["UPDATE account SET balance = 8 WHERE owner = 'new'", "DELETE FROM account WHERE owner = 'two'"],
        ["UPDATE account SET balance = 10 WHERE owner = 'one'"],
    )
    done = apply_lost(sites.primary, path, timeout_s=30)
    assert (len(done.applied), done.conflicts, done.left) == (3, [], 0)
    assert asked(sites, "SELECT id, owner, balance, note FROM account") == [
        (1, "one", 10, None),
        (3, "three", 3, None),
        (4, "new", 8, b"\x00\xff"),
    ]
    assert asked(sites, "SELECT what FROM seen") == [("new",), ("one",)], "as they were, and not once more"
    assert asked(sites, "SELECT x FROM loose") == [(float("inf"),)]
    again = apply_lost(sites.primary, path, timeout_s=30)
    assert (again.applied, again.before) == ([], 3)
    equal(sites)
    comments = [c.text for one in show_journal(sites.primary) for c in one.changes if c.what == "COMMENT"]
    assert len(comments) == 3
    first = next(one for one in show_journal(sites.primary) if one.seqno == done.as_seqnos[done.applied[0]][0])
    assert [c.what for c in first.changes] == ["COMMENT", "INSERT", "INSERT", "SEQUENCE"], "else it could not be undone"
    assert all(text.startswith("lost ") and text.endswith(" main") for text in comments)
    assert [one.waiting for one in look_at_lost(sites.secondary)] == [0]


CONFLICTS = {
    "id taken": ("INSERT INTO account(owner) VALUES ('theirs')", "INSERT INTO account(owner) VALUES ('ours')"),
    "row differs": ("UPDATE account SET balance = 50 WHERE id = 1", "UPDATE account SET note = 'n' WHERE id = 1"),
    "row missing": ("UPDATE account SET balance = 50 WHERE id = 1", "DELETE FROM account WHERE id = 1"),
    "constraint": ("UPDATE account SET owner = 'same' WHERE id = 1", "UPDATE account SET owner = 'same' WHERE id = 2"),
    "no parent": ("INSERT INTO child VALUES (1, 2)", "DELETE FROM account WHERE id = 2"),
}


@pytest.mark.slow
@pytest.mark.parametrize("kind", CONFLICTS)
def test_each_conflict_is_named_and_stops_skips_or_gives_way(tmp_path: Path, kind: str) -> None:
    sites = make(tmp_path)
    theirs, ours = CONFLICTS[kind]
    path = lose(sites, ["INSERT INTO loose VALUES (1)", theirs], ["INSERT INTO loose VALUES (2)"], here=(ours,))
    before, journal = content(sites.primary, "main"), sites.last_seqno()
    first = next(iter(LostReader(path).transactions())).seqno
    tried = apply_lost(sites.primary, path, dry_run=True, timeout_s=30)
    stopped = apply_lost(sites.primary, path, timeout_s=30)
    for found in (tried, stopped):
        assert [(one.seqno, one.kind) for one in found.conflicts] == [(first, kind)]
    assert (tried.stopped_at, tried.left, tried.applied) == (first, 2, [first + 1]), "after it, if it was skipped"
    assert (stopped.stopped_at, stopped.left, stopped.applied) == (first, 2, [])
    assert content(sites.primary, "main") == before
    assert sites.last_seqno() == journal
    if kind == "row differs":
        (one,) = stopped.conflicts
        assert one.columns == ("id", "owner", "balance", "note")
        assert (one.expected, one.found, one.after) == ((1, "one", 1, None), (1, "one", 1, "n"), (1, "one", 50, None))
    done = apply_lost(sites.primary, path, on_conflict="overwrite", timeout_s=30)
    if kind in ("constraint", "no parent"):
        assert done.stopped_at == first, "what a constraint forbids gives no way"
        done = apply_lost(sites.primary, path, on_conflict="skip", timeout_s=30)
        assert (done.skipped, done.applied) == ([first], [first + 1])
        assert asked(sites, "SELECT x FROM loose") == [(2,)]
    else:
        assert (done.overwritten, done.applied) == ([first], [first + 1])
        assert asked(sites, "SELECT x FROM loose") == [(1,), (2,)]
    if kind == "id taken":
        assert asked(sites, "SELECT id, owner FROM account WHERE id > 3") == [(4, "theirs")]
    assert apply_lost(sites.primary, path, timeout_s=30).before == 2
    equal(sites)


@pytest.mark.parametrize("wanted", [[9999], [3, 9999], [1]])
def test_one_that_is_not_in_the_file_is_refused_and_nothing_is_applied(tmp_path: Path, wanted: list[int]) -> None:
    """It was "nothing to apply", with exit code 0, as of one that is settled. 1 is of before the common point."""
    sites = make(tmp_path)
    path = lose(sites, ["INSERT INTO loose VALUES (1)"])
    with LostReader(path) as lost:
        waiting = [one.seqno for one in lost.transactions() if one.is_data]
    only = [waiting[0] if number == 3 else number for number in wanted]
    with pytest.raises(UsageError, match=f"no transaction {wanted[-1]} waits") as caught:
        apply_lost(sites.primary, path, only=only, timeout_s=30)
    assert f"lost show {path}" in caught.value.do
    assert apply_lost(sites.primary, path, only=waiting, timeout_s=30).applied == waiting
    assert apply_lost(sites.primary, path, only=waiting, timeout_s=30).before == len(waiting)


def test_chosen_ones(tmp_path: Path) -> None:
    sites = make(tmp_path)
    path = lose(sites, *([f"INSERT INTO loose VALUES ({n})"] for n in range(5)))
    numbers = [one.seqno for one in LostReader(path).transactions()]
    done = apply_lost(sites.primary, path, only=[numbers[1], numbers[3]], timeout_s=30)
    assert (done.applied, done.left) == ([numbers[1], numbers[3]], 3)
    assert asked(sites, "SELECT rowid, x FROM loose") == [(2, 1), (4, 3)], "not renumbered"
    rest = apply_lost(sites.primary, path, on_conflict="skip", timeout_s=30)
    assert (rest.before, len(rest.applied) + len(rest.skipped)) == (2, 3)
    equal(sites)


@pytest.mark.slow
@pytest.mark.parametrize("place", ["lost.region_committed:2", "lost.committed:2", "lost.noted:2"])
def test_killed_and_repeated_each_is_there_once(tmp_path: Path, place: str) -> None:
    sites = make(tmp_path)
    path = lose(sites, *([f"INSERT INTO account(owner) VALUES ('lost {n}')"] for n in range(4)))
    code = kill_at(place, "tests.replicate.lost.apply_for_kill:apply", sites.primary.path, path)
    assert code == -signal.SIGKILL
    if place == "lost.region_committed:2":
        path.with_name(path.name + ".settled").unlink()  # even then: the journal tells
    done = apply_lost(sites.primary, path, timeout_s=30)
    assert len(done.applied) + done.before == 4
    assert asked(sites, "SELECT owner FROM account WHERE id > 3") == [(f"lost {n}",) for n in range(4)]
    equal(sites)


def test_one_that_a_killed_run_applied_is_known_after_runs_that_passed_it_by(tmp_path: Path) -> None:
    """A run of others had ended, and the one was applied once more."""
    sites = make(tmp_path)
    path = lose(sites, *([f"INSERT INTO loose VALUES ({n})"] for n in range(3)))
    numbers = [one.seqno for one in LostReader(path).transactions()]
    code = kill_at("lost.committed:1", "tests.replicate.lost.apply_for_kill:apply", sites.primary.path, path)
    assert code == -signal.SIGKILL
    apply_lost(sites.primary, path, only=[numbers[2]], timeout_s=30)
    run(sites.primary, ["DELETE FROM loose WHERE x = 0"])  # else the row itself would tell
    assert apply_lost(sites.primary, path, only=[numbers[1]], timeout_s=30).applied == [numbers[1]]
    done = apply_lost(sites.primary, path, timeout_s=30)
    assert (done.applied, done.before) == ([numbers[0]], 2)
    assert asked(sites, "SELECT x FROM loose") == [(1,), (2,)]
    equal(sites)


def test_what_was_applied_from_a_copy_meanwhile_is_known(tmp_path: Path) -> None:
    sites = make(tmp_path)
    path = lose(sites, *([f"INSERT INTO loose VALUES ({n})"] for n in range(2)))
    numbers = [one.seqno for one in LostReader(path).transactions()]
    copy = tmp_path / "copy.jsonl"
    shutil.copy(path, copy)
    apply_lost(sites.primary, path, only=numbers[:1], timeout_s=30)
    apply_lost(sites.primary, copy, timeout_s=30)
    run(sites.primary, ["DELETE FROM loose"])
    apply_lost(sites.primary, path, timeout_s=30)
    assert asked(sites, "SELECT x FROM loose") == []


def test_two_runs_at_once(tmp_path: Path) -> None:
    """Both had read what is settled, and each applied all of it."""
    sites = make(tmp_path)
    path = lose(sites, ["INSERT INTO loose VALUES (1)"], ["INSERT INTO loose VALUES (2)"])
    refused: list[BusyError] = []

    def second() -> None:
        with pytest.raises(BusyError) as raised:
            apply_lost(sites.primary, path, timeout_s=0)
        refused.append(raised.value)

    failpoint.watch("lost.committed", 1, second)
    try:
        apply_lost(sites.primary, path, timeout_s=30)
    finally:
        failpoint.disarm()
    assert len(refused) == 1
    assert apply_lost(sites.primary, path, timeout_s=0).before == 2
    equal(sites)


def test_what_was_settled_is_damaged(tmp_path: Path) -> None:
    sites = make(tmp_path)
    path = lose(sites, ["INSERT INTO loose VALUES (1)"])
    apply_lost(sites.primary, path, timeout_s=30)
    settled = path.with_name(path.name + ".settled")
    for damage in (b"\xff\n", b"\n", b"[]\n", b"{}\n"):
        whole = settled.read_bytes()
        settled.write_bytes(whole[:20] + damage + whole[20:])
        with pytest.raises(DamagedError, match="settled"):
            apply_lost(sites.primary, path, timeout_s=30)
        settled.write_bytes(whole)


@pytest.mark.slow
def test_a_large_one(tmp_path: Path) -> None:
    sites = make(tmp_path)
    path = lose(sites, [f"INSERT INTO loose VALUES ({n} || '{'x' * 90}')" for n in range(16_000)])
    assert any(one.kind == "LARGE" for one in LostReader(path).transactions())
    for _ in range(2):
        done = apply_lost(sites.primary, path, timeout_s=60)
    assert done.before == 1
    assert asked(sites, "SELECT count(*) FROM loose") == [(16_000,)]
    equal(sites)


@pytest.mark.parametrize("place", ["", "lost.region_committed:1"])
def test_over_two_regions(tmp_path: Path, place: str) -> None:
    """Both, or after a kill between them the other one at the next run."""
    sites = Sites.create(tmp_path, SCHEMA)
    add_region(sites.primary, make_database(tmp_path / "two.db", SCHEMA), name="two")
    sites.add_peers()
    sites.seed()
    connection = connect(sites.primary.path)
    connection.execute("ATTACH ? AS two", (str(sites.primary.region("two").path),))
    for n in range(2):
        connection.execute("INSERT INTO account(owner) VALUES (?)", (f"lost {n}",))
        connection.execute("INSERT INTO two.loose VALUES (?)", (f"lost {n}",))
        connection.commit()
    connection.close()
    path = lose(sites)
    if place:
        assert kill_at(place, "tests.replicate.lost.apply_for_kill:apply", sites.primary.path, path) == -signal.SIGKILL
    done = apply_lost(sites.primary, path, timeout_s=30)
    assert len(done.applied) == 2
    assert [len(numbers) for numbers in done.as_seqnos.values()] == [2, 2]
    assert content(sites.primary, "main")["rows of account"][-1][2] == (str, "lost 1")
    assert [row[1] for row in content(sites.primary, "two")["rows of loose"]] == [(str, "lost 0"), (str, "lost 1")]
    equal(sites)
    assert content(sites.primary, "two") == content(sites.secondary, "two")


def test_what_is_refused(tmp_path: Path) -> None:
    sites = make(tmp_path)
    path = lose(sites, ["INSERT INTO loose VALUES (1)"])
    with pytest.raises(NotPrimaryError):
        apply_lost(sites.secondary, path, timeout_s=30)
    with pytest.raises(NotFoundError, match="lost list"):
        apply_lost(sites.primary, tmp_path / "none.jsonl", timeout_s=30)
    half = tmp_path / "half.jsonl"
    half.write_bytes(path.read_bytes()[:-20])
    forged = tmp_path / "forged.jsonl"
    forged.write_bytes(path.read_bytes().replace(b'"after": [', b'"after": [ '))
    for file in (half, forged):
        with pytest.raises(DamagedError):
            apply_lost(sites.primary, file, timeout_s=30)
    (tmp_path / "other").mkdir()
    with pytest.raises(JournalIOError, match="cannot be read"):
        apply_lost(sites.primary, tmp_path / "other", timeout_s=30)
    other = Sites.create(tmp_path / "other", SCHEMA)
    with pytest.raises(WrongNetworkError):
        apply_lost(other.primary, path, timeout_s=30)


def test_settled_elsewhere(tmp_path: Path) -> None:
    sites = make(tmp_path)
    path = lose(sites, ["INSERT INTO loose VALUES (1)"])
    apply_lost(sites.primary, path, timeout_s=30)
    sites.catch_up()
    sites.switch()
    with pytest.raises(WrongInstanceError):
        apply_lost(sites.primary, path, timeout_s=30)
    copy = tmp_path / "copy.jsonl"
    shutil.copy(path, copy)
    assert apply_lost(sites.primary, copy, timeout_s=30).applied, "the journal of this site tells that it was"
    assert asked(sites, "SELECT count(*) FROM loose") == [(1,)]


def test_a_schema_change_among_them(tmp_path: Path) -> None:
    sites = make(tmp_path)
    run(sites.primary, ["CREATE TABLE more (x)"], ["INSERT INTO loose VALUES (1)"])
    common = sites.take_over()
    become_secondary(sites.secondary)
    with pytest.raises(NotSupportedError):
        rollback(sites.secondary, common)
    (path,) = tmp_path.glob("east-lost-*.jsonl")
    with pytest.raises(NotSupportedError, match="CREATE TABLE more"):
        apply_lost(sites.primary, path, timeout_s=30)
    last = [one.seqno for one in LostReader(path).transactions()][-1]
    assert apply_lost(sites.primary, path, only=[last], timeout_s=30).applied == [last]


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(2))
def test_every_accepted_transaction_is_in_the_database_or_in_a_lost_file_once(tmp_path: Path, seed: int) -> None:
    """Random histories, takeovers both ways, rollback, apply: what was accepted is there exactly once."""
    sites, draw = make(tmp_path), random.Random(seed)
    accepted: list[str] = []
    for turn in range(3):
        for alone in (False, True):  # common ones, then those that nobody else has
            batch = [f"{seed}-{turn}-{alone}-{n}" for n in range(draw.randrange(1, 6))]
            run(sites.primary, *([f"INSERT INTO loose VALUES ('{one}')"] for one in batch))
            accepted += batch
            if not alone:
                sites.catch_up()
        common = sites.take_over()
        more = [f"{seed}-{turn}-new-{n}" for n in range(draw.randrange(3))]
        run(
            sites.primary,
            *(
                [f"INSERT INTO loose(rowid, x) VALUES ({10_000 * (turn + 1) + n}, '{one}')"]
                for n, one in enumerate(more)
            ),
        )
        accepted += more
        become_secondary(sites.secondary)
        done = rollback(sites.secondary, common)
        sites.secondary = Instance.open(sites.secondary.path)
        in_file = lost_values(done.kept.file.path) if done.kept else []
        in_database = [value for (value,) in asked(sites, "SELECT x FROM loose")]
        assert Counter([*in_database, *in_file]) == Counter(accepted)
        if done.kept:
            applied = apply_lost(sites.primary, done.kept.file.path, timeout_s=30)
            assert not applied.conflicts
        assert Counter(value for (value,) in asked(sites, "SELECT x FROM loose")) == Counter(accepted)
        equal(sites)


def lost_values(path: Path) -> list[str]:
    with LostReader(path) as lost:
        return [change.after[1] for one in lost.transactions() for change in lost.changes(one) if change.after]


def test_the_commands(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    sites = make(tmp_path)
    path = lose(
        sites,
        ["INSERT INTO account(owner) VALUES ('theirs')"],
        ["INSERT INTO loose VALUES (1)"],
        here=("INSERT INTO account(owner) VALUES ('ours')",),
    )
    west, east = str(sites.primary.path), str(sites.secondary.path)

    def command(*words: str) -> tuple[int, str]:
        code = main.run(list(words))
        return code, capsys.readouterr().out

    assert command("-i", east, "lost", "list") == (1, f"{path.name}  {command_line(path)}\n")
    code, shown = command("-i", west, "lost", "show", str(path))
    assert code == 0
    assert "INSERT main.main.account" in shown
    assert "waits" in shown
    code, said = command("-i", west, "lost", "apply", str(path))
    assert code == 1
    assert "id taken: INSERT main.account: the row exists already" in said
    assert "found: id=4, owner='ours'" in said
    assert "--on-conflict skip" in said
    code, said = command("-i", west, "--json", "lost", "apply", str(path), "--on-conflict", "skip")
    assert (code, len(json.loads(said)["skipped"]), len(json.loads(said)["applied"])) == (1, 1, 1)
    assert command("-i", east, "lost", "list")[0] == 0
    assert command("-i", west, "lost", "apply", str(path)) == (0, "2 had been settled before\n")
    assert command("-i", east, "lost", "settle", str(path), "--yes")[0] == 0, "from the other site, too"
    other = lose_more(sites)
    assert command("-i", str(sites.primary.path), "lost", "settle", str(other))[0] == 2
    assert command("-i", str(sites.primary.path), "lost", "settle", str(other), "--yes")[0] == 0
    assert command("-i", str(sites.secondary.path), "lost", "list")[0] == 0


def test_of_a_conflict_nulls_are_told_as_such_and_long_values_in_part(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    sites = make(tmp_path)
    path = lose(
        sites,
        ["INSERT INTO account(owner) VALUES ('theirs')"],
        here=("INSERT INTO account(owner, note) VALUES ('ours', zeroblob(100000))",),
    )
    assert main.run(["-i", str(sites.primary.path), "lost", "apply", str(path)]) == 1
    found, wanted = (line for line in capsys.readouterr().out.splitlines() if line.startswith("    "))
    assert found.endswith("…")
    assert len(found) < 200
    assert "note=b'" in found
    assert wanted.endswith("note=NULL")


def command_line(path: Path) -> str:
    head = json.loads(path.read_text().splitlines()[0])
    return f"rollback of east, {head['written']}: 2 of 2 wait"


def lose_more(sites: Sites) -> Path:
    sites.catch_up()
    return lose(sites, ["INSERT INTO loose VALUES (5)"])
