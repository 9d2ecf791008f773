"""Suppliers with two regions each: what all write is in both, and transactions change both."""

from __future__ import annotations

import os
import shutil
import signal
from contextlib import closing
from pathlib import Path

import apsw
import pytest

from replicate import connect
from replicate.admin import partitions
from replicate.admin.region_release import release_region
from replicate.admin.regions import add_region
from replicate.admin.schema_run import run_fenced
from replicate.compare.compare import compare
from replicate.dbapi import OperationalError
from replicate.door.absorb_stamps import held_absorbed, writers_and_seen
from replicate.door.secondary import ApplySession
from replicate.door.snapshot import door_of
from replicate.errors import ConfigurationError, DamagedError, TryAgainError
from replicate.instance.instance import Instance
from replicate.limits import PARTITION_STREAM
from replicate.model.transaction import Op
from replicate.pool import control as word
from replicate.region.sqlite.bookkeeping import read_writers
from replicate.region.sqlite.open import open_region
from replicate.region.sqlite.own_counters import BLOCK_BITS
from replicate.region.sqlite.row_stamps import read_absorbed
from replicate.roles import restored_supplier
from replicate.roles.merge_losses import merges, region_of, settle, take
from replicate.roles.partition_writers import give, leave, share, tables_that_bar
from replicate.roles.retiring import retire, writers_of
from replicate.roles.schema_fence import fence, fences
from replicate.roles.supplier import convert
from replicate.transfer.seed.direct import seed
from tests.harness.instances import lose_pool
from tests.harness.merging_worlds import made_large
from tests.harness.packets import get_packets, level_by_packets
from tests.harness.sites import kill_at
from tests.harness.suppliers import Suppliers, carry_between, run, shared
from update_process.routes import Routes
from update_process.window.columns import Changes

APART = (
    "CREATE TABLE item (id TEXT PRIMARY KEY, name TEXT UNIQUE, n INTEGER) WITHOUT ROWID",
    "CREATE TABLE counted (id INTEGER PRIMARY KEY AUTOINCREMENT, v)",
    "CREATE TABLE filler (id TEXT PRIMARY KEY, v)",
    "CREATE TABLE plain (id INTEGER PRIMARY KEY, v)",
)
BOTH = ("UPDATE ta SET v = 'of {0}' WHERE id = 1", "UPDATE item SET n = {1} WHERE id = 'k'")
"""Of one site and its number: one transaction, which changes both regions."""
THIS = "tests.replicate.door.test_merging_regions"


@pytest.fixture
def two(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Suppliers:
    """Both write ta in main, and all that is in stock."""
    monkeypatch.setenv("REPLICATE_SHM_DIR", "")
    made = shared(tmp_path, apart=APART)
    run(made, "a", "INSERT INTO ta VALUES (1, 'old', 0), (2, 'old', 0)", "INSERT INTO item VALUES ('k', 'lamp', 0)")
    made.level()
    return made


def both_at_once(made: Suppliers, at: int = 0) -> None:
    """Each site changes a row of both regions, a before b; to other values than at another time."""
    for number, name in enumerate(("a", "b"), 1):
        run(made, name, *(text.format(name + "!" * at, number + 10 * at) for text in BOTH))


def lost(made: Suppliers, name: str) -> list[tuple[object, ...]]:
    """What was lost at a site."""
    return [(one.region, one.table, one.lost, one.loser) for one in merges(made.by[name])]


def test_a_transaction_over_both_regions_is_merged_in_both(two: Suppliers) -> None:
    both_at_once(two)
    two.level()
    two.assert_converged()
    rows = two.rows("a")
    assert (rows["ta"][0], rows["item"]) == ((1, "of b", 0), [("k", "lamp", 2)])
    for name in two.names:
        assert lost(two, name) == [("main", "ta", {"v": "of a"}, "a"), ("stock", "item", {"n": 1}, "a")]


def test_rows_that_give_way_do_in_their_region_alone(two: Suppliers) -> None:
    run(two, "a", "INSERT INTO item VALUES ('x', 'same', 1)", "UPDATE ta SET n = 1 WHERE id = 2")
    run(two, "b", "INSERT INTO item VALUES ('y', 'same', 2)", "UPDATE ta SET v = 'new' WHERE id = 2")
    two.level()
    two.assert_converged()
    assert two.rows("b")["item"] == [("k", "lamp", 0), ("x", "same", 1)]
    assert two.rows("b")["ta"][1] == (2, "new", 1)
    assert {tuple(lost(two, name)[0][:2]) for name in two.names} == {("stock", "item")}


def test_large_transactions_over_both_regions_are_merged(two: Suppliers) -> None:
    for number, name in enumerate(("a", "b"), 1):
        run(two, name, *made_large([text.format(name, number) for text in BOTH], name))
    two.level()
    two.assert_converged()
    assert two.rows("a")["item"] == [("k", "lamp", 2)]
    assert lost(two, "a") == lost(two, "b") == [("main", "ta", {"v": "of a"}, "a"), ("stock", "item", {"n": 1}, "a")]


def test_each_site_counts_in_blocks_of_its_own_in_every_region(two: Suppliers) -> None:
    for name in two.names:
        run(two, name, "INSERT INTO counted (v) VALUES (1)", "UPDATE ta SET n = n + 1 WHERE id = 2")
    two.level()
    two.assert_converged()
    assert [key >> BLOCK_BITS for key, _ in two.rows("a")["counted"]] == [0, 1]


def test_whose_keys_are_anothers_goes_on_in_a_block_of_its_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """From the transaction on that shares the table, in whatever region it is."""
    monkeypatch.setenv("REPLICATE_SHM_DIR", "")
    made = Suppliers.create(tmp_path, apart=APART)
    run(made, "a", f"INSERT INTO counted VALUES ({(1 << BLOCK_BITS) + 7}, 'in the block of b')")
    share(made.by["a"], "DEFAULT", "b", keys_chosen=True, timeout_s=30)
    run(made, "a", "INSERT INTO counted (v) VALUES ('of a')")
    assert [key >> BLOCK_BITS for key, _ in made.rows("a")["counted"]] == [1, 16]


def test_what_is_lost_is_taken_back_and_settled_by_its_region(two: Suppliers) -> None:
    both_at_once(two)
    two.level()
    assert [one.id for one in merges(two.by["b"])] == ["m1@main", "m1@stock"]
    in_stock = "m1@stock"
    with closing(connect(two.by["b"].path, region_of(two.by["b"], in_stock))) as connection:
        take(two.by["b"], connection, in_stock, {})
    assert [one.id for one in merges(two.by["b"])] == ["m1@main"]
    assert settle(two.by["b"], ["m1@main"]) == 1
    two.level()
    two.assert_converged()
    assert two.rows("a")["item"] == [("k", "lamp", 1)]


def test_who_writes_what_holds_for_a_commit_in_one_region_alone(two: Suppliers) -> None:
    """Each region is told: nobody asks another one for it."""
    with closing(connect(two.by["b"].path, "stock")) as connection:
        connection.execute("INSERT INTO item VALUES ('b', 'of b', 1)")
        connection.commit()
    first = two.by["a"]
    leave(two.by["b"], "1", timeout_s=30)
    with closing(connect(two.by["b"].path, "stock")) as connection:
        connection.execute("INSERT INTO item VALUES ('c', 'again', 1)")
        with pytest.raises(OperationalError, match="partition DEFAULT is written by a"):
            connection.commit()
    two.level()
    partitions.create(first, "goods")
    partitions.assign(first, "goods", ["stock.plain"])
    two.level()
    give(first, "goods", "b", timeout_s=30)
    two.level()
    run(two, "b", "INSERT INTO plain (v) VALUES ('of b')")
    with pytest.raises(OperationalError, match="partition goods is written by b"):
        run(two, "a", "INSERT INTO plain (v) VALUES ('of a')")
    two.level()
    two.assert_converged()


def test_tables_of_every_region_are_looked_at_before_they_are_shared(two: Suppliers) -> None:
    assert {one.table for one in tables_that_bar(two.by["a"], "DEFAULT", keys_chosen=False)} == {"plain", "ta"}
    assert tables_that_bar(two.by["a"], "DEFAULT", keys_chosen=True) == []


def kill_after_first_region(source: Instance, consumer: Instance) -> None:
    """Dies after the COMMIT in the first region; for `kill_at`."""

    def commit(self: ApplySession, seqno: int) -> None:
        self._open[0].region.commit()
        os.kill(os.getpid(), signal.SIGKILL)

    ApplySession._commit_regions = commit  # type: ignore[method-assign]
    carry_between(source, consumer)


def absorbed(made: Suppliers, name: str) -> list[int]:
    """Up to where each region's rows have their stamps."""
    found = []
    for entry in made.by[name].regions:
        with closing(open_region(entry.path, readonly=True, region=entry.uuid)) as connection:
            found.append(read_absorbed(connection))
    return found


@pytest.mark.parametrize("rounds", [1, 2])
def test_killed_between_the_commits_of_two_regions_both_end_alike(two: Suppliers, rounds: int) -> None:
    """The region that lacked it is redone, and has its rows' stamps made from where they end there."""
    for at in range(rounds):
        both_at_once(two, at)
        run(two, "a", "INSERT INTO item VALUES (hex(randomblob(4)), NULL, 0)", "UPDATE ta SET n = n + 1 WHERE id = 2")
        assert kill_at("", f"{THIS}:kill_after_first_region", two.by["a"].path, two.by["b"].path) == -signal.SIGKILL
        first, second = absorbed(two, "b")
        assert first > second, "they have their stamps up to different places"
        run(two, "b", "UPDATE ta SET v = 'later' WHERE id = 2", "UPDATE item SET name = 'new' WHERE id = 'k'")
    two.level()
    two.assert_converged()
    for name in two.names:
        assert [one[1] for one in lost(two, name)].count("item") == rounds
        assert [one[1] for one in lost(two, name)].count("ta") == rounds
    both_at_once(two, 9)
    two.level()
    two.assert_converged()


@pytest.mark.parametrize("place", ["append.before_write:1", "append.after_write:1", "apply.after_commit:1"])
def test_killed_anywhere_in_a_batch_nothing_is_lost(two: Suppliers, place: str) -> None:
    both_at_once(two)
    killed = kill_at(place, "tests.harness.suppliers:carry_between", two.by["a"].path, two.by["b"].path)
    assert killed == -signal.SIGKILL
    two.level()
    two.assert_converged()
    assert lost(two, "a") == lost(two, "b")
    assert len(lost(two, "b")) == 2


def change_stock(made: Suppliers, text: str) -> None:
    """`schema run --region stock` on a, given again and again while the others hear of it."""
    site = made.by["a"]
    for _ in range(4):
        try:
            run_fenced(
                site, text, lambda name: connect(site.path, name), where="change.sql", timeout_s=0, region="stock"
            )
            return
        except TryAgainError:
            made.level()
    raise AssertionError("the others do not stand aside")


def test_the_schema_of_one_region_changes_and_all_write_again_in_both(two: Suppliers) -> None:
    both_at_once(two)
    change_stock(two, "ALTER TABLE item ADD COLUMN more; CREATE TABLE box (id TEXT PRIMARY KEY, v)")
    with closing(connect(two.by["a"].path)) as connection:
        connection.execute("UPDATE ta SET n = 7 WHERE id = 2")  # of main alone: the fence has ended there, too
        connection.commit()
    two.level()
    for name in two.names:
        assert fences(two.by[name]) == []
        assert writers_of(two.by[name]).fences.open(frozenset()) == ()
    run(two, "a", "UPDATE item SET more = 'of a' WHERE id = 'k'", "INSERT INTO box VALUES ('1', 'of a')")
    run(two, "b", "UPDATE item SET n = 9 WHERE id = 'k'", "UPDATE ta SET v = 'of b' WHERE id = 2")
    run(two, "b", "INSERT INTO box VALUES ('1', 'of b')")
    two.level()
    two.assert_converged()
    assert two.rows("b")["item"] == [("k", "lamp", 9, "of a")]
    assert two.rows("b")["box"] == [("1", "of b")]
    assert two.rows("b")["ta"][1] == (2, "of b", 7)


def test_an_application_that_changes_one_region_meanwhile_does_not_end_a_fence(two: Suppliers) -> None:
    """It has not the other regions, which would not hear of it."""
    site = two.by["a"]
    for _ in range(4):
        try:
            fence(site, timeout_s=0, is_once=True)
            break
        except TryAgainError:
            two.level()
    with closing(connect(site.path, "stock")) as connection:
        connection.execute("ALTER TABLE item ADD COLUMN early")
        connection.commit()
    (found,) = fences(site)
    assert found.is_closed
    change_stock(two, "ALTER TABLE item ADD COLUMN more")
    two.level()
    assert [fences(two.by[name]) for name in two.names] == [[], []]
    run(two, "b", "UPDATE item SET early = 1, more = 2 WHERE id = 'k'", "UPDATE ta SET n = 5 WHERE id = 1")
    two.level()
    two.assert_converged()


def test_one_more_is_seeded_with_the_stamps_of_both_regions(two: Suppliers) -> None:
    both_at_once(two)
    two.carry("b", "a")
    run(two, "a", "UPDATE ta SET n = 77 WHERE id = 1", "UPDATE item SET n = 77 WHERE id = 'k'")
    one = two.seed_one_more("c")
    convert(one, "supplier", timeout_s=30)
    run(two, "b", "UPDATE ta SET n = 78 WHERE id = 1", "UPDATE item SET n = 78 WHERE id = 'k'")  # beside that
    two.names = ("a", "b", "c")
    two.level()
    assert [one[:3] for one in lost(two, "c")] == [("main", "ta", {"n": 77}), ("stock", "item", {"n": 77})]
    share(two.by["a"], "DEFAULT", "c", keys_chosen=True, timeout_s=30)
    two.level()
    run(two, "c", "UPDATE ta SET n = 3 WHERE id = 1", "UPDATE item SET name = 'of c' WHERE id = 'k'")
    run(two, "b", "UPDATE ta SET v = 'of b again' WHERE id = 1", "UPDATE item SET n = 8 WHERE id = 'k'")
    two.level()
    two.assert_converged()
    assert two.rows("a")["item"] == [("k", "of c", 8)]
    compared = compare(two.by["a"], two.by["c"], timeout_s=30)
    assert compared.equal
    assert [one.region for one in compared.regions] == ["main", "stock"]


def test_what_was_told_in_one_region_alone_is_known_to_one_more(two: Suppliers) -> None:
    """A commit tells what its site has seen in a region that it changes."""
    run(two, "b", "UPDATE item SET name = 'of b' WHERE id = 'k'")
    two.carry("b", "a")
    with closing(connect(two.by["a"].path, "stock")) as connection:
        connection.execute("UPDATE item SET n = 2 WHERE id = 'k'")
        connection.commit()
        convert(two.seed_one_more("c"), "supplier", timeout_s=30)
        connection.execute("UPDATE item SET name = 'of a' WHERE id = 'k'")
        connection.commit()
    two.names = ("a", "b", "c")
    two.level()
    two.assert_converged()
    assert lost(two, "c") == [], "a had seen what it wrote over"


@pytest.mark.parametrize("is_sorted", [False, True])
def test_what_is_told_beside_rows_of_both_regions_is_told_in_both(two: Suppliers, is_sorted: bool) -> None:
    with two.session("b") as session:
        ids = {one.table: one.table_id for one in session.door.catalogue_now().in_force().values()}
        session.begin()
        changes = [
            (int(Op.SEEN), PARTITION_STREAM, 0, [7, 8, 9]),
            (int(Op.INSERT), ids["item"], 0, ["new", None, 1]),
            (int(Op.INSERT), ids["ta"], 0, [9, "new", 1]),
        ]
        Routes(session).apply_plain(Changes(*map(list, zip(*changes, strict=True))), 99, is_sorted=is_sorted)
        assert [one.region.seen()[7] for one in session._open] == [{8: 9}, {8: 9}]
        session.rollback()


def test_one_that_becomes_a_secondary_is_seeded_again_and_shares_both_regions(two: Suppliers) -> None:
    both_at_once(two)
    two.level()
    convert(two.by["b"], "secondary", timeout_s=30)
    seed(two.by["a"], two.by["b"], restart=True)
    convert(two.by["b"], "supplier", timeout_s=30)
    two.by["b"].reload()
    two.level()
    both_at_once(two)
    two.level()
    two.assert_converged()


def test_one_that_is_restored_gets_back_what_it_had_in_both_regions(two: Suppliers) -> None:
    """Rows that gave way before the loss among it: none goes by the word of the one that waits."""
    copy = two.directory / "backup"
    shutil.copytree(two.by["b"].path, copy)
    both_at_once(two)
    run(two, "a", "INSERT INTO item VALUES ('x', 'same', 1)", "UPDATE ta SET n = 1 WHERE id = 2")
    run(two, "b", "INSERT INTO item VALUES ('y', 'same', 2)", "UPDATE ta SET v = 'new' WHERE id = 2")
    two.level()
    before = two.rows("a")
    lose_pool(two.by["b"])
    shutil.rmtree(two.by["b"].path)
    shutil.copytree(copy, two.by["b"].path)
    two.by["b"] = Instance.open(two.by["b"].path)
    with pytest.raises(OperationalError, match="was restored from an older state, and waits"):
        run(two, "b", "UPDATE item SET n = 5 WHERE id = 'k'")
    two.carry("a", "b")
    assert restored_supplier.settle(Instance.open(two.by["b"].path))
    two.by["b"].reload()
    assert two.rows("b") == before
    both_at_once(two, 3)
    two.level()
    two.assert_converged()


def test_packets_bring_transactions_over_both_regions(two: Suppliers) -> None:
    get_packets(two)
    both_at_once(two)
    level_by_packets(two)
    two.assert_converged()
    assert two.rows("a")["item"] == [("k", "lamp", 2)]
    assert {one[0] for one in lost(two, "a")} == {one[0] for one in lost(two, "b")} == {"main", "stock"}


def test_who_is_gone_is_told_in_every_region(two: Suppliers) -> None:
    run(two, "b", "UPDATE item SET n = 5 WHERE id = 'k'")
    two.level()
    retire(two.by["a"], "b", timeout_s=30)
    heir, gone = two.by["a"].content.uuid, two.by["b"].content.uuid
    for entry in two.by["a"].regions:
        with closing(open_region(entry.path, readonly=True, region=entry.uuid)) as connection:
            assert read_writers(connection).heir(gone) == heir
    with closing(connect(two.by["a"].path, "stock")) as connection:
        connection.execute("UPDATE item SET n = 6 WHERE id = 'k'")
        connection.commit()


def test_where_one_region_is_damaged_a_new_copy_of_both_is_made(two: Suppliers) -> None:
    both_at_once(two)
    two.level()
    site = two.by["b"]
    lose_pool(site)
    stock = site.region("stock").path
    for left in ("-wal", "-shm"):
        Path(f"{stock}{left}").unlink(missing_ok=True)
    stock.write_bytes(b"no database at all" * 300)
    with pytest.raises(DamagedError):
        two.carry("a", "b")
    with pytest.raises(DamagedError):
        convert(site, "secondary", timeout_s=30)
    convert(site, "secondary", timeout_s=30, force=True)
    seed(two.by["a"], site, restart=True)
    site.reload()
    convert(site, "supplier", timeout_s=30)
    both_at_once(two, 4)
    two.level()
    two.assert_converged()


def test_regions_stay_what_they_are(two: Suppliers, tmp_path: Path) -> None:
    apsw.Connection(str(tmp_path / "more.db")).execute("CREATE TABLE more (id TEXT PRIMARY KEY)")
    with pytest.raises(ConfigurationError, match="the regions that its network's first supplier had"):
        add_region(two.by["a"], tmp_path / "more.db", name="more")
    with pytest.raises(ConfigurationError, match="all suppliers have the same regions"):
        release_region(two.by["a"], "stock", timeout_s=1)


def share_all(owner: Instance) -> None:
    """For `kill_at`."""
    share(owner, "DEFAULT", "b", keys_chosen=True, timeout_s=30)


def test_what_one_region_alone_knows_to_be_shared_has_its_stamps_in_a_copy(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Who shares is killed after the append, and an application goes on in the second region, which has it redone."""
    monkeypatch.setenv("REPLICATE_SHM_DIR", "")
    made = Suppliers.create(tmp_path, apart=APART)
    run(made, "a", "INSERT INTO item VALUES ('k', 'lamp', 0)")
    site = made.by["a"]
    assert kill_at("append.after_write:2", f"{THIS}:share_all", site.path) == -signal.SIGKILL
    with closing(connect(site.path, "stock")) as connection:
        connection.execute("UPDATE item SET n = 1 WHERE id = 'k'")
        connection.commit()
    assert writers_and_seen(site)[0].was_shared
    with door_of(site) as door, held_absorbed(door, timeout_s=30):
        assert absorbed(made, "a") == [door.words[word.LAST_SEQNO]] * 2
