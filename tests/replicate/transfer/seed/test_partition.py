"""Partitions that are loaded alone, while the others go on: whatever comes between, wherever it dies."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from random import Random

import apsw
import pytest
from msgspec.structs import replace

from replicate.admin import partitions, subscriptions
from replicate.admin.partitions import assign
from replicate.admin.regions import add_region
from replicate.compare.compare import compare
from replicate.compare.scr import compare_with
from replicate.door.pruning import prune_journal
from replicate.door.snapshot import door_of
from replicate.errors import (
    AlreadyExistsError,
    CopyTooOldError,
    HardResyncNeededError,
    JournalMissingError,
    PeerRefusedError,
    PermissionRefusedError,
    TryAgainError,
    UsageError,
)
from replicate.filters.whose_words import Content, note_content
from replicate.status.collect import collect
from replicate.transfer.seed import partition
from replicate.transfer.seed.make import make_seed
from replicate.transfer.seed.partition import load_from_file, load_from_instance, loading
from replicate.transfer.seed.some_regions import install_alone
from tests.harness.pair import Pair
from tests.replicate.admin.test_subscriptions import SCHEMA, a_transaction, assert_restricted, tables_of, write
from tests.update_process.test_region_arrival import lose_power

SALES, STOCK = 2, 3
MORE = (
    "CREATE TABLE hidden (v, w UNIQUE);\n"
    "CREATE TABLE keyed (k TEXT PRIMARY KEY, v) WITHOUT ROWID;\n"
    "CREATE VIRTUAL TABLE words USING fts5(text);\n"
)


@pytest.fixture
def pair(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Pair:
    """The secondary has DEFAULT; sales (t0, t1, hidden, keyed, words) and stock (t2) are on the primary alone."""
    monkeypatch.setenv("REPLICATE_SHM_DIR", "")
    made = Pair.create(tmp_path, SCHEMA + MORE)
    for instance in (made.primary, made.secondary):
        for name in ("sales", "stock"):
            partitions.create(instance, name)
    assign(made.primary, "sales", ["t0", "t1", "hidden", "keyed", "words"])
    assign(made.primary, "stock", ["t2"])
    subscriptions.set_(made.secondary, ["DEFAULT"])
    fill(made)
    made.seed()
    made.catch_up()
    return made


def fill(pair: Pair, count: int = 3) -> None:
    for number in range(count):
        write(
            pair,
            *(f"INSERT INTO t{n} (v) VALUES ({number})" for n in range(6)),
            f"INSERT INTO hidden (v) VALUES ({number})",
            f"INSERT OR REPLACE INTO keyed VALUES ('k{number}', {number})",
            f"INSERT INTO words VALUES ('word {number}')",
        )
    write(pair, "UPDATE t0 SET v = length(v) + 1", "DELETE FROM t1 WHERE id % 2", "DELETE FROM hidden WHERE v = 1")


def begin(pair: Pair, *numbers: int) -> None:
    """The stream brings them from here on."""
    with loading(pair.secondary, numbers):
        pass
    fill(pair, 1)
    pair.catch_up()


def file(pair: Pair, *numbers: int) -> Path:
    path = pair.directory / "some.seed"
    make_seed(pair.primary, "west", path, partitions=numbers, replace=True)
    return path


def test_the_others_go_on_and_what_came_meanwhile_is_there(pair: Pair) -> None:
    subscriptions.add(pair.secondary, ["sales"])
    assert pair.secondary.content.held == (1,)
    begin(pair, SALES)
    assert_restricted(pair, {1})  # what is on its way is not applied
    assert pair.rows("t0") == []
    assert pair.secondary.content.choice.state(SALES) == "is being loaded"
    told: list[tuple[str, int, int]] = []
    path = file(pair, SALES)
    fill(pair, 2)
    pair.catch_up()
    assert_restricted(pair, {1})
    loaded = load_from_file(pair.secondary, path, [SALES], told=lambda *one: told.append(one))
    assert (loaded.partitions, loaded.held_from) == (("sales",), pair.last_seqno())
    assert loaded.seqno < loaded.held_from
    assert {what for what, _, _ in told} >= {"main", "bringing the copy forward", "putting rows in"}
    assert_restricted(pair, {1, SALES})
    fill(pair)
    pair.catch_up()
    assert_restricted(pair, {1, SALES})
    assert not (pair.secondary.path / "regions" / "seed").exists()
    with closing(pair.connect()) as connection:
        assert connection.execute("SELECT count(*) FROM words WHERE words MATCH 'word'").fetchone() == (9,)


def test_from_an_instance_here(pair: Pair) -> None:
    subscriptions.add(pair.secondary, ["sales", "stock"])
    begin(pair, SALES, STOCK)
    loaded = load_from_instance(pair.primary, pair.secondary, [SALES, STOCK])
    assert loaded.partitions == ("sales", "stock")
    assert_restricted(pair, {1, SALES, STOCK})


def test_checkpoint_records(pair: Pair) -> None:
    """Those of both sides are the same, also where nothing of it was written since."""

    def both() -> tuple[str, int, int]:
        found = {one.partition_id: one for one in compare_with(pair.primary, pair.secondary).rows}
        return found["sales"].state, found["sales"].source, found["sales"].secondary

    subscriptions.add(pair.secondary, ["sales"])
    with loading(pair.secondary, [SALES]):
        pass
    write(pair, "INSERT INTO t5 (v) VALUES (1)")
    pair.catch_up()
    assert both()[0] == "not held"
    load_from_file(pair.secondary, file(pair, SALES), [SALES])
    state, source, secondary = both()
    assert (state, source) == ("even", secondary)
    with pair.session() as session:
        rows = {one.partition: one for one in session.checkpoint()}
        vector = session.position.vector
    assert rows[SALES].origin_seqno == vector.last(rows[SALES].origin, SALES) > 0
    fill(pair, 1)
    pair.catch_up()
    state, source, secondary = both()
    assert (state, source) == ("even", secondary)


def test_removed_while_its_rows_are_put_in(pair: Pair) -> None:
    subscriptions.add(pair.secondary, ["sales"])
    begin(pair, SALES)
    path = file(pair, SALES)

    def told(what: str, _done: int, _whole: int) -> None:
        if what == "putting rows in" and pair.secondary.content.choice.wants(SALES):
            subscriptions.remove(pair.secondary, ["sales"])

    with pytest.raises(TryAgainError, match="partition sales was removed from the subscription meanwhile"):
        load_from_file(pair.secondary, path, [SALES], told=told)
    assert pair.secondary.content.choice.state(SALES) == "frozen, as it was"
    fill(pair)
    pair.catch_up()
    assert_restricted(pair, {1})


def test_the_journal_has_been_pruned_meanwhile(pair: Pair) -> None:
    subscriptions.add(pair.secondary, ["sales"])
    begin(pair, SALES)
    path = file(pair, SALES)
    config = pair.secondary.config
    pair.secondary.config = replace(config, journal=replace(config.journal, segment_bytes=1 << 20, rollback_bytes=0))
    for _ in range(4):
        write(pair, "INSERT INTO t5 (v) VALUES (zeroblob(700000))")
        pair.catch_up()
    with door_of(pair.secondary) as door:
        assert prune_journal(door)
    with pytest.raises(JournalMissingError, match="the journal here begins with"):
        load_from_file(pair.secondary, path, [SALES])
    load_from_file(pair.secondary, file(pair, SALES), [SALES])
    assert_restricted(pair, {1, SALES})


def test_a_region_alone_from_before(pair: Pair) -> None:
    """A copy of a region has a partition at a transaction after which the journal here lacks some of it."""
    with closing(apsw.Connection(str(pair.directory / "side.db"))) as plain:
        plain.execute("CREATE TABLE side (id INTEGER PRIMARY KEY, v)")
    add_region(pair.primary, pair.directory / "side.db", name="side")
    pair.catch_up()
    old = pair.directory / "old.seed"
    make_seed(pair.primary, "west", old, regions=["main"])
    fill(pair, 1)
    pair.catch_up()
    subscriptions.add(pair.secondary, ["sales"])
    begin(pair, SALES)
    load_from_file(pair.secondary, file(pair, SALES), [SALES])
    with pytest.raises(CopyTooOldError, match="the journal here has partition sales from"):
        install_alone(pair.secondary, old, ["main"], restart=True)
    make_seed(pair.primary, "west", old, regions=["main"], replace=True)
    install_alone(pair.secondary, old, ["main"], restart=True)
    pair.secondary.reload()
    fill(pair)
    pair.catch_up()
    assert compare(pair.primary, pair.secondary, timeout_s=60).equal
    assert pair.rows("t0") != []


def test_removed_and_added_again(pair: Pair) -> None:
    """What was removed stays as it was, and is loaded again, with all that came in between."""
    subscriptions.add(pair.secondary, ["sales"])
    begin(pair, SALES)
    load_from_file(pair.secondary, file(pair, SALES), [SALES])
    assert_restricted(pair, {1, SALES})
    before = pair.rows("t0")
    subscriptions.remove(pair.secondary, ["sales"])
    assert pair.secondary.content.choice.state(SALES) == "frozen, as it was"
    fill(pair)
    pair.catch_up()
    assert pair.rows("t0") == before
    assert_restricted(pair, {1})
    subscriptions.add(pair.secondary, ["sales"])
    assert pair.secondary.content.choice.state(SALES) == "waits for its rows"
    old = file(pair, SALES)
    fill(pair, 1)
    pair.catch_up()
    begin(pair, SALES)
    assert pair.rows("t0") == before
    with pytest.raises(CopyTooOldError, match="the stream brings sales from"):
        load_from_file(pair.secondary, old, [SALES])
    load_from_file(pair.secondary, file(pair, SALES), [SALES])
    assert_restricted(pair, {1, SALES})
    fill(pair)
    pair.catch_up()
    assert_restricted(pair, {1, SALES})


def test_foreign_keys(pair: Pair) -> None:
    """Children come before their parents, and cascades happen on the primary alone."""
    write(
        pair,
        "CREATE TABLE z_parent (id INTEGER PRIMARY KEY)",
        "CREATE TABLE a_child (id INTEGER PRIMARY KEY, of NOT NULL REFERENCES z_parent ON DELETE CASCADE)",
        "INSERT INTO z_parent VALUES (1), (2), (3)",
        "INSERT INTO a_child VALUES (1, 1), (2, 2), (3, 2)",
    )
    assign(pair.primary, "sales", ["a_child"])
    assign(pair.primary, "stock", ["z_parent"])
    subscriptions.add(pair.secondary, ["sales"])
    begin(pair, SALES)
    path = file(pair, SALES)
    with closing(pair.connect()) as connection:
        connection.execute("PRAGMA foreign_keys = ON")
        connection.execute("DELETE FROM z_parent WHERE id = 2")
        connection.commit()
    pair.catch_up()
    load_from_file(pair.secondary, path, [SALES])
    assert_restricted(pair, {1, SALES})
    assert len(pair.rows("a_child")) == 1
    subscriptions.add(pair.secondary, ["stock"])
    begin(pair, STOCK)
    load_from_file(pair.secondary, file(pair, STOCK), [STOCK])
    assert_restricted(pair, {1, SALES, STOCK})


def test_schema_changes_meanwhile(pair: Pair) -> None:
    subscriptions.add(pair.secondary, ["sales"])
    begin(pair, SALES)
    path = file(pair, SALES)
    partitions.change(pair.primary, lambda known: known.with_default("sales"))
    write(
        pair,
        "ALTER TABLE t0 ADD COLUMN more DEFAULT 7",
        "UPDATE t0 SET more = 8 WHERE id % 2",
        "CREATE TABLE later (id INTEGER PRIMARY KEY, v)",
        "INSERT INTO later (v) VALUES (1), (2)",
        "DROP TABLE t1",
        "CREATE INDEX of_v ON hidden (v)",
    )
    pair.catch_up()
    load_from_file(pair.secondary, path, [SALES])
    assert tables_of(pair)["later"] == SALES
    assert_restricted(pair, {1, SALES})


def test_a_large_transaction_meanwhile(pair: Pair) -> None:
    subscriptions.add(pair.secondary, ["sales"])
    begin(pair, SALES)
    path = file(pair, SALES)
    numbers = "WITH n(i) AS (VALUES (1) UNION ALL SELECT i + 1 FROM n WHERE i < 9000)"
    write(
        pair,
        f"{numbers} INSERT INTO t0 (v) SELECT printf('%100d', i) FROM n",
        f"{numbers} INSERT INTO t5 (v) SELECT printf('%100d', i) FROM n",
        f"{numbers} INSERT INTO t2 (v) SELECT printf('%100d', i) FROM n",
    )
    pair.catch_up()
    load_from_file(pair.secondary, path, [SALES])
    assert_restricted(pair, {1, SALES})


def test_tables_that_move_meanwhile(pair: Pair) -> None:
    """A table that comes to it asks for a newer copy, also an empty one: it may have a counter. One that leaves it for
    one that is here stops what is applied until it has been loaded."""
    subscriptions.add(pair.secondary, ["sales"])
    begin(pair, SALES)
    for number, statement in ((4, "UPDATE t4 SET v = 'moved'"), (3, "DELETE FROM t3")):
        path = file(pair, SALES)
        write(pair, statement)
        assign(pair.primary, "sales", [f"t{number}"])
        write(pair, f"INSERT INTO t{number} (v) VALUES (5)")
        pair.catch_up()
        with pytest.raises(CopyTooOldError, match=f"table t{number} of region main was put into partition sales after"):
            load_from_file(pair.secondary, path, [SALES])
    path = file(pair, SALES)
    assert pair.secondary.content.held == (1,)
    before = pair.last_seqno()
    assign(pair.primary, "DEFAULT", ["t0"])
    write(pair, "INSERT INTO t0 (v) VALUES ('after it left')")
    with pytest.raises(HardResyncNeededError, match=r"End its load first: .* seed --partition sales"):
        pair.catch_up()
    assert pair.last_seqno(pair.secondary) == before
    load_from_file(pair.secondary, path, [SALES])
    pair.catch_up()
    assert_restricted(pair, {1, SALES})


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(6))
def test_whatever_is_written_meanwhile(pair: Pair, seed: int) -> None:
    random = Random(seed)

    def some() -> None:
        with closing(pair.connect()) as connection:
            for _ in range(random.randrange(1, 20)):
                a_transaction(random, ["t0", "t1", "t2", "t3", "t4", "t5"], connection)
        if random.random() < 0.7:
            pair.catch_up()

    held, wish = {1}, random.choice(((SALES,), (STOCK,), (SALES, STOCK)))
    for _ in range(3):
        subscriptions.add(pair.secondary, [str(one) for one in wish])
        some()
        begin(pair, *wish)
        some()
        path = file(pair, *wish)
        some()
        pair.catch_up()
        load_from_file(pair.secondary, path, wish)
        held |= set(wish)
        some()
        pair.catch_up()
        assert_restricted(pair, held)
        subscriptions.remove(pair.secondary, [str(wish[0])])
        held -= {wish[0]}
        some()
        pair.catch_up()
        assert_restricted(pair, held)
        wish = wish[:1]


STEPS = ("partition.discarded", "partition.begun", "partition.copied", "partition.rolled", "partition.put_in",
         "partition.held")  # fmt: skip


class Died(Exception):
    pass


@pytest.mark.parametrize("power", [False, True])
@pytest.mark.parametrize("step", STEPS)
def test_killed_at_each_step(pair: Pair, step: str, power: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    subscriptions.add(pair.secondary, ["sales"])
    is_early = step in STEPS[:2]
    if not is_early:
        begin(pair, SALES)
    path = file(pair, SALES)
    fill(pair, 1)
    if not is_early:
        pair.catch_up()

    def die(name: str) -> None:
        if name == step:
            raise Died

    with monkeypatch.context() as patched:
        patched.setattr(partition, "hit", die)
        with pytest.raises(Died):
            begin(pair, SALES) if is_early else load_from_file(pair.secondary, path, [SALES])
    if power:
        lose_power(pair)
    pair.secondary.reload()
    is_held = step == "partition.held"
    assert pair.secondary.content.held == ((1, SALES) if is_held else (1,))
    fill(pair, 1)
    pair.catch_up()
    if not is_held:
        assert_restricted(pair, {1})
        if is_early:
            begin(pair, SALES)
            path = file(pair, SALES)
        load_from_file(pair.secondary, path, [SALES])
    assert_restricted(pair, {1, SALES})
    fill(pair)
    pair.catch_up()
    assert_restricted(pair, {1, SALES})


def test_what_is_refused(pair: Pair, tmp_path: Path) -> None:
    subscriptions.add(pair.secondary, ["sales"])
    path = pair.directory / "some.seed"

    def of(instance: object, *numbers: int) -> Callable[[], object]:
        return lambda: load_from_file(instance, path, numbers)  # type: ignore[arg-type]

    make_seed(pair.primary, "west", path, partitions=[SALES])
    with pytest.raises(AlreadyExistsError, match="partition DEFAULT is here"), loading(pair.secondary, [1]):
        pass
    with pytest.raises(UsageError, match="partition stock is not wanted here"), loading(pair.secondary, [STOCK]):
        pass
    with pytest.raises(PermissionRefusedError), loading(pair.primary, [SALES]):
        pass
    with pytest.raises(UsageError, match="the copy has the rows of sales; west wants stock"):
        of(pair.secondary, STOCK)()
    note_content(pair.secondary.run_directory, None, Content("00" * 16, "east", "hides/1"))
    with pytest.raises(UsageError, match="goes through the filter hides/1"), loading(pair.secondary, [SALES]):
        pass
    note_content(pair.secondary.run_directory, None, Content("00" * 16, "east", ""))
    pair.secondary.note_waiting("side")
    with pytest.raises(TryAgainError, match="region side waits for its seed"), loading(pair.secondary, [SALES]):
        pass
    pair.secondary.forget_waiting()
    assert pair.secondary.content.choice.loading == ()
    for numbers, what in (([9], "east has no partition 9"), ([STOCK], "rows of partition stock of east do not go")):
        pair.primary.register_peer("west", "127.0.0.1", 7430, partitions=(1, 2), replace_address=True)
        with pytest.raises(PeerRefusedError, match=what):
            make_seed(pair.primary, "west", path, partitions=numbers, replace=True)


@pytest.mark.parametrize("is_told", [True, False])
def test_one_that_has_an_audit_element_comes_with_a_seed_of_all(pair: Pair, is_told: bool) -> None:
    """Its rows are not all of it: the schema here lacks what was changed before."""
    partitions.place_element(pair.primary, "DEFINITION", "stock")
    if is_told:
        partitions.place_element(pair.secondary, "DEFINITION", "stock")
    subscriptions.add(pair.secondary, ["stock"])
    with pytest.raises(PeerRefusedError, match="stock of east has DEFINITION"):
        load_from_instance(pair.primary, pair.secondary, [STOCK])
    assert pair.secondary.content.choice.loading == ()
    with pytest.raises(PeerRefusedError, match="stock of east has DEFINITION"):
        make_seed(pair.primary, "west", pair.directory / "some.seed", partitions=[STOCK])
    if is_told:
        with pytest.raises(UsageError, match="stock: what the schema here lacks"), loading(pair.secondary, [STOCK]):
            pass
        (finding,) = [one for one in collect(pair.secondary).findings if one.code == "PARTITION_WAITS"]
        assert finding.do.endswith("seed --restart")
    subscriptions.add(pair.secondary, ["sales"])
    assert pair.secondary.content.bringing([SALES]) == "seed --partition sales"
