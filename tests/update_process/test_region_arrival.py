"""Regions that are added on the primary while the secondary goes on: made in the stream, or waiting for their seed."""

from __future__ import annotations

import json
import os
import random
import signal
import sys
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from types import SimpleNamespace

import apsw
import pytest
from click.testing import CliRunner
from msgspec.structs import replace

from replicate import connect
from replicate.admin.region_release import release_region
from replicate.admin.regions import add_region
from replicate.audit.verify import verify_journal
from replicate.cli.root import root
from replicate.compare.compare import compare, digest
from replicate.door.secondary import ApplySession
from replicate.door.snapshot import door_of
from replicate.errors import AlreadyExistsError, NotFoundError, TryAgainError
from replicate.instance.file import encode
from replicate.instance.instance import FILE_NAME, Instance
from replicate.limits import REGIONS_MAX
from replicate.model.transaction import Op
from replicate.pool.shared_memory import PoolKind, pool_path
from replicate.region.sqlite.functions import Registrar
from replicate.status.collect import collect
from replicate.system import failpoint
from replicate.system.files import replace_file
from replicate.transfer.seed.make import make_seed
from tests.harness.instances import last_seqno
from tests.harness.pair import SCHEMA, Pair, assert_equal, work_all
from tests.harness.regions import make_database
from tests.harness.replaying import replayed
from update_process.routes import Routes

EMPTY = """
PRAGMA page_size = 8192;
PRAGMA auto_vacuum = 2;
PRAGMA user_version = -7;
PRAGMA application_id = 1234;
CREATE TABLE plain (a, b TEXT NOT NULL DEFAULT 'x', c AS (a || b) STORED);
CREATE TABLE counted (id INTEGER PRIMARY KEY AUTOINCREMENT, v UNIQUE);
CREATE TABLE keyed (k TEXT COLLATE NOCASE, n INT, PRIMARY KEY (k, n DESC)) WITHOUT ROWID, STRICT;
CREATE INDEX by_b ON plain (b COLLATE RTRIM, lower(a)) WHERE a > 1;
CREATE VIEW seen AS SELECT a, k FROM plain, keyed;
CREATE TRIGGER copies AFTER INSERT ON counted BEGIN INSERT INTO plain (a) VALUES (NEW.v); END;
INSERT INTO counted (v) VALUES (1), (2);
DELETE FROM counted;
DELETE FROM plain;
"""


@pytest.fixture
def seeded(pair: Pair) -> Pair:
    """Both sites level, and one transaction more on the primary."""
    pair.write(1)
    return pair


def write(pair: Pair, region: str, *statements: str) -> None:
    """Each in a transaction of its own."""
    with connect(pair.primary.path, region) as connection:
        for statement in statements:
            connection.execute(statement)
            connection.commit()


def add_empty(pair: Pair, name: str) -> None:
    add_region(pair.primary, make_database(pair.directory / f"{name}.db", EMPTY), name=name)
    pair.primary.reload()


def add_with_rows(pair: Pair, name: str) -> None:
    """Its table is the one of main by name and columns: anybody who takes one for the other applies rows."""
    path = make_database(pair.directory / f"{name}.db", SCHEMA + "INSERT INTO account VALUES (1, 'o', 1, NULL);")
    add_region(pair.primary, path, name=name)
    pair.primary.reload()


def table(place: Path) -> list[tuple[object, ...]]:
    """The rows of one of its tables, by a reader like any other."""
    with closing(apsw.Connection(str(place), flags=apsw.SQLITE_OPEN_READONLY)) as reader:
        return reader.execute("SELECT * FROM account ORDER BY id").fetchall()


def write_both(pair: Pair) -> None:
    """Transactions of two, which has rows, of main, and of both: single ones, schema changes, and a large one."""
    write(pair, "two", "INSERT INTO account VALUES (2, 'two', 2, 2)", "ALTER TABLE account ADD COLUMN w")
    write(pair, "main", "UPDATE account SET balance = 5", "INSERT INTO account VALUES (2, 'main', 3, 3)")
    write(pair, "two", "CREATE TABLE more (a)", "INSERT INTO more VALUES (1)", "UPDATE account SET w = 5")
    with connect(pair.primary.path) as both:
        both.attach("two")
        both.execute("UPDATE account SET balance = 6")
        both.execute("UPDATE two.account SET balance = 6")
        both.commit()
        both.execute("INSERT INTO entry (at, data) SELECT id, zeroblob(1 << 18) FROM account")
        both.execute("WITH n(i) AS (VALUES (1) UNION ALL SELECT i + 1 FROM n WHERE i < 8) "
                     "INSERT INTO two.entry (data) SELECT zeroblob(1 << 18) FROM n")  # fmt: skip
        both.commit()
    write(pair, "two", "DELETE FROM entry")
    write(pair, "main", "UPDATE account SET balance = 7 WHERE id = 1")


def assert_level_but_for(pair: Pair, *waiting: str, secondary: Instance | None = None) -> None:
    """The secondary stands where the primary does, its regions are equal, its journal is whole; these wait."""
    secondary = secondary or pair.secondary
    found = compare(pair.primary, secondary, timeout_s=60)
    assert found.seqno == pair.last_seqno() == last_seqno(secondary)
    lacking = {one.region: (one.missing_in, one.waits) for one in found.regions if not one.equal}
    assert lacking == dict.fromkeys(waiting, (secondary.name, True))
    assert sorted(secondary.waiting) == sorted(waiting)
    assert not verify_journal(secondary).findings
    assert not (secondary.path / "regions" / "seed").exists()


def facts(path: Path) -> dict[str, object]:
    """What of a region's file must be the same on both sites, besides what compare looks at."""
    connection = apsw.Connection(str(path), flags=apsw.SQLITE_OPEN_READONLY)
    try:
        names = ("page_size", "auto_vacuum", "user_version", "application_id", "encoding", "journal_mode")
        objects = "SELECT type, name, tbl_name, sql FROM sqlite_schema ORDER BY type, name"
        return {
            **{name: connection.pragma(name) for name in names},
            "schema": connection.execute(objects).fetchall(),
            "tables": connection.execute("SELECT * FROM _replicate_table ORDER BY name").fetchall(),
            "mode before": connection.execute("SELECT journal_mode FROM _replicate_region").get,
        }
    finally:
        connection.close()


def test_a_region_without_rows_is_made_in_the_stream_exactly_as_it_is(seeded: Pair) -> None:
    pair = seeded
    path = make_database(pair.directory / "two.db", EMPTY)
    add_region(pair.primary, path, name="two")
    pair.catch_up()
    pair.secondary.reload()
    entry = pair.secondary.region("two")
    assert entry.path == pair.secondary.path / "regions" / "two.db"
    assert entry.path.stat().st_mode & 0o777 == 0o600
    assert facts(entry.path) == facts(path)
    assert not (pair.secondary.path / "regions" / "seed").exists()
    write(pair, "two", "INSERT INTO counted (v) VALUES (9)", "INSERT INTO keyed VALUES ('k', 1)")
    write(pair, "main", "UPDATE account SET balance = 5")
    pair.catch_up()
    assert_equal(pair)
    write(pair, "two", "ALTER TABLE plain ADD COLUMN d", "INSERT INTO plain (a, d) VALUES (1, 2)")
    pair.catch_up()
    assert_equal(pair)


def test_a_region_is_made_with_the_functions_that_its_settings_bring(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("REPLICATE_SHM_DIR", str(tmp_path / "shm"))

    def init(registrar: Registrar) -> None:
        registrar.create_function("mine", 1, lambda value: value, deterministic=True)
        registrar.create_collation("odd", lambda one, other: (one > other) - (one < other))

    monkeypatch.setitem(sys.modules, "their_functions", SimpleNamespace(init=init))
    pair = Pair.create(tmp_path, settings='[region]\ninit = "two=their_functions:init"\n')
    pair.primary, pair.secondary = (Instance.open(one.path) for one in (pair.primary, pair.secondary))
    pair.seed()
    database = apsw.Connection(str(tmp_path / "two.db"))
    init(Registrar(database))
    database.execute("CREATE TABLE t (a COLLATE odd, b AS (mine(a))); CREATE INDEX i ON t (mine(a))")
    database.close()
    add_region(pair.primary, tmp_path / "two.db", name="two")
    write(pair, "two", "INSERT INTO t (a) VALUES ('x')")
    pair.catch_up()
    assert_equal(pair)


def test_a_region_with_rows_waits_and_the_others_go_on(seeded: Pair) -> None:
    pair = seeded
    path = make_database(
        pair.directory / "two.db", "CREATE TABLE account (id INTEGER PRIMARY KEY, v); INSERT INTO account VALUES (1, 1)"
    )
    add_region(pair.primary, path, name="two")
    write(pair, "two", "INSERT INTO account VALUES (2, 2)", "ALTER TABLE account ADD COLUMN w", "CREATE TABLE more (a)")
    write(pair, "main", "UPDATE account SET balance = 5")
    write(pair, "two", "INSERT INTO more VALUES (1)", "UPDATE account SET w = 5")
    with connect(pair.primary.path) as both:
        both.attach("two")
        both.execute("UPDATE account SET balance = 6")
        both.execute("UPDATE two.account SET v = 6")
        both.commit()
    pair.catch_up()
    assert pair.rows("account") == pair.rows("account", pair.primary)
    pair.secondary.reload()
    assert pair.secondary.waiting == ("two",)
    with pytest.raises(NotFoundError, match="waits for its seed"):
        pair.secondary.region("two")
    status = collect(pair.secondary)
    (told,) = [finding for finding in status.findings if finding.code == "REGION_WAITS"]
    assert (told.subject, status.is_wrong) == ("two", True)
    assert told.do.endswith("west seed --region two")
    assert digest(pair.secondary, timeout_s=5).waiting == ("two",)
    assert json.loads((pair.secondary.path / FILE_NAME).read_text())["format"] == 2  # no older release goes on here
    pair.seed(restart=True)
    assert pair.secondary.waiting == ()
    assert json.loads((pair.secondary.path / FILE_NAME).read_text())["format"] == 1
    write(pair, "two", "UPDATE account SET w = 6")
    pair.catch_up()
    assert_equal(pair)


def test_what_lies_in_its_place_is_never_replaced(seeded: Pair) -> None:
    pair = seeded
    add_region(pair.primary, make_database(pair.directory / "two.db", "CREATE TABLE t (a)"), name="two")
    place = make_database(pair.secondary.path / "regions" / "two.db", "CREATE TABLE mine (a)")
    held = place.read_bytes()
    with pytest.raises(AlreadyExistsError, match=r"no region is where region two.*update start"):
        pair.catch_up()
    assert place.read_bytes() == held
    place.rename(pair.directory / "mine.db")
    pair.catch_up()
    assert_equal(pair)


@pytest.mark.parametrize("left", ["-wal", "-journal"])
def test_what_another_database_has_left_in_its_place_is_not_taken_for_its_own(seeded: Pair, left: str) -> None:
    add_empty(seeded, "two")
    (seeded.secondary.path / "regions" / f"two.db{left}").write_bytes(b"x")
    with pytest.raises(AlreadyExistsError, match="what another database has left"):
        seeded.catch_up()


def test_a_region_of_another_time_in_its_place_is_refused(seeded: Pair) -> None:
    """One that was made here and forced out of the instance afterwards may hold what somebody needs."""
    add_empty(seeded, "two")
    seeded.catch_up()
    place = seeded.secondary.path / "regions" / "two.db"
    place.rename(seeded.directory / "kept.db")
    seeded.secondary.reload()
    seeded.secondary.unregister_region("two")
    (seeded.directory / "kept.db").rename(seeded.secondary.path / "regions" / "three.db")
    add_empty(seeded, "three")
    with pytest.raises(AlreadyExistsError, match="another region is where region three"):
        seeded.catch_up()


# Killed at each step.

STEPS = (
    *("arrival.waits", "arrival.made", "arrival.linked", "arrival.placed", "arrival.registered"),
    *("replace.before_rename", "replace.renamed", "append.before_write", "append.after_write"),
    *("apply.after_commit", "finish.before_publish", "update.before_free"),
)


def killed(pair: Pair, arm: Callable[[], object]) -> bool:
    """Whether the secondary, which catches up in a process of its own, was killed on the way."""
    pid = os.fork()
    if pid == 0:
        try:
            arm()
            pair.catch_up()
            os._exit(0)
        except BaseException as error:
            os.write(2, repr(error).encode())
            os._exit(1)
    _, status = os.waitpid(pid, 0)
    assert os.WIFSIGNALED(status) or os.WEXITSTATUS(status) == 0
    return os.WIFSIGNALED(status)


def after_commits(count: int) -> None:
    """From now on a process dies when it has committed so many regions of a batch that adds one or more."""

    def commit(session: ApplySession, seqno: int) -> None:
        for one in session._open[:count]:
            one.region.commit()
        os.kill(os.getpid(), signal.SIGKILL)

    def take(session: ApplySession, entry: object) -> None:
        took(session, entry)  # type: ignore[arg-type]
        ApplySession._commit_regions = commit  # type: ignore[method-assign]

    took = ApplySession.take_region
    ApplySession.take_region = take  # type: ignore[method-assign]


def lose_power(pair: Pair) -> None:
    pool_path(PoolKind.JOURNAL, pair.secondary.content.uuid).unlink(missing_ok=True)


@pytest.mark.parametrize(
    "is_off", [False, pytest.param(True, marks=pytest.mark.slow)], ids=["killed", "and the pool is lost"]
)
def test_killed_at_each_step_it_ends_the_same(seeded: Pair, is_off: bool) -> None:
    pair, waiting, names = seeded, [], iter(range(100))
    arms: list[tuple[str, Callable[[], object]]] = [
        (step, lambda step=step, number=number: failpoint.arm(f"{step}:{number}:kill"))  # type: ignore[misc]
        for step in STEPS
        for number in ((1, 2) if step.partition(".")[0] in ("append", "replace") else (1,))
    ]
    arms += [(f"{count} committed", lambda count=count: after_commits(count)) for count in range(3)]  # type: ignore[misc]
    hits = set()
    for step, arm in arms:
        number = next(names)
        add_empty(pair, f"e{number}")
        write(pair, f"e{number}", "INSERT INTO counted (v) VALUES (1)")
        if step == "arrival.waits":
            add_with_rows(pair, f"r{number}")
            waiting.append(f"r{number}")
            write(pair, f"r{number}", "UPDATE account SET balance = 2")
        write(pair, "main", "UPDATE account SET balance = balance + 1")
        if killed(pair, arm):
            hits.add(step)
        if is_off:
            lose_power(pair)
        pair.catch_up()
        pair.secondary.reload()
        assert facts(pair.secondary.region(f"e{number}").path) == facts(pair.primary.region(f"e{number}").path)
    assert hits == {step for step, _ in arms}
    assert_level_but_for(pair, *waiting)
    pair.seed(restart=True)
    assert_equal(pair)


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(4))
def test_regions_added_between_transactions_and_kills_at_any_moment(seeded: Pair, seed: int) -> None:
    """Whatever comes in which order, wherever it dies: all that is not waiting is level, and all of it after a seed."""
    dice, pair = random.Random(seed), seeded
    empty, full, here = [], [], ["main"]
    for turn in range(14):
        for _ in range(dice.randrange(4)):
            kind = dice.random()
            if kind < 0.25:
                empty.append(f"e{turn}x{len(empty)}")
                add_empty(pair, empty[-1])
                write(pair, empty[-1], *filter(str.strip, SCHEMA.split(";")))
                here.append(empty[-1])
            elif kind < 0.45:
                full.append(f"r{turn}x{len(full)}")
                add_with_rows(pair, full[-1])
            else:
                some = dice.sample([*here, *full], min(len(here) + len(full), dice.randint(1, 3)))
                with connect(pair.primary.path, some[0]) as connection:
                    for other in some[1:]:
                        connection.attach(other, f"a_{other}")
                    for schema in ["main", *(f"a_{other}" for other in some[1:])]:
                        connection.execute(f"INSERT INTO {schema}.account (owner, balance) VALUES ('x', ?)", (turn,))
                        connection.execute(f"UPDATE {schema}.account SET balance = balance + 1 WHERE id % 2")
                        if dice.random() < 0.1 and schema == "main":
                            connection.execute(f"CREATE TABLE c{turn}x{dice.randrange(1 << 30)} (a)")
                    connection.commit()
        step, number = dice.choice(STEPS), dice.randint(1, 6)
        if killed(pair, lambda: failpoint.arm(f"{step}:{number}:kill")) and dice.random() < 0.5:  # noqa: B023
            lose_power(pair)
    pair.catch_up()
    pair.secondary.reload()
    assert_level_but_for(pair, *full)
    pair.seed(restart=True)
    write(pair, "main", "UPDATE account SET balance = -1")
    pair.catch_up()
    assert_equal(pair)


# Where else a secondary's regions count.


def test_a_third_site_makes_and_waits_as_the_second_one_does(seeded: Pair) -> None:
    third = Instance.create(
        seeded.directory / "north", role="secondary", name="north", network=seeded.primary.content.network
    )
    seeded.secondary.register_peer("north", "127.0.0.1", 7431)
    relay = Pair(seeded.directory, seeded.secondary, third)
    relay.seed()
    add_empty(seeded, "one")
    add_with_rows(seeded, "two")
    write_both(seeded)
    write(seeded, "one", "INSERT INTO counted (v) VALUES (1)")
    seeded.catch_up()
    relay.primary.reload()
    relay.catch_up()
    for site in (seeded.secondary, third):
        site.reload()
        assert_level_but_for(seeded, "two", secondary=site)


def test_a_secondary_in_which_a_region_waits_seeds_nobody(seeded: Pair) -> None:
    """Its copy would lack the region, and would not know."""
    third = Instance.create(
        seeded.directory / "north", role="secondary", name="north", network=seeded.primary.content.network
    )
    seeded.secondary.register_peer("north", "127.0.0.1", 7431)
    add_with_rows(seeded, "two")
    seeded.catch_up()
    seeded.secondary.reload()
    stale = Instance.open(seeded.secondary.path)
    stale._take(replace(stale.content, waiting=()))  # as a Source Server has it that was started before
    with pytest.raises(TryAgainError, match="region two is not in west yet"):
        make_seed(stale, "north", seeded.directory / "north.seed")
    with pytest.raises(TryAgainError, match=r"region two is not in west yet.*west seed --region two"):
        Pair(seeded.directory, seeded.secondary, third).seed()


@pytest.mark.parametrize("is_dry", [False, True])
def test_a_replay_makes_and_waits_as_the_stream_does(seeded: Pair, is_dry: bool) -> None:
    pair = seeded
    add_empty(pair, "one")
    add_with_rows(pair, "two")
    write_both(pair)
    write(pair, "one", "INSERT INTO counted (v) VALUES (1)", "UPDATE counted SET v = 2")
    before = pair.last_seqno(pair.secondary)
    replayed(pair, dry_run=is_dry)
    pair.secondary.reload()
    if is_dry:
        assert pair.last_seqno(pair.secondary) == before
        assert (len(pair.secondary.regions), pair.secondary.waiting) == (1, ())
        return
    assert_level_but_for(pair, "two")
    write(pair, "two", "INSERT INTO entry (at) VALUES (1)", "UPDATE entry SET at = 2")
    write(pair, "main", "INSERT INTO entry (at) VALUES (1)")
    replayed(pair, verify=True)
    assert_level_but_for(pair, "two")


def test_a_region_that_waits_and_is_added_without_rows_is_made(seeded: Pair) -> None:
    pair = seeded
    add_with_rows(pair, "two")
    pair.catch_up()
    release_region(pair.primary, "two", timeout_s=5)
    (pair.directory / "two.db").unlink()
    add_empty(pair, "two")
    write(pair, "two", "INSERT INTO counted (v) VALUES (1)")
    pair.catch_up()
    pair.secondary.reload()
    assert_level_but_for(pair)


def add_again(pair: Pair, name: str) -> None:
    """Released on the primary, and changed by nobody's notice before it is added again."""
    release_region(pair.primary, name, timeout_s=5)
    path = pair.directory / f"{name}.db"
    with closing(apsw.Connection(str(path))) as plain:
        plain.execute("UPDATE account SET balance = balance + 1")
    add_region(pair.primary, path, name=name)
    pair.primary.reload()


def with_two(pair: Pair) -> Path:
    """A seeded pair with two regions, both with rows. The file of two on the secondary."""
    add_with_rows(pair, "two")
    pair.seed(restart=True)
    write(pair, "two", "UPDATE account SET balance = 9")
    pair.catch_up()
    return pair.secondary.region("two").path


@pytest.mark.slow
@pytest.mark.parametrize("is_replay", [False, True])
def test_a_region_released_and_added_again_waits_and_the_others_go_on(seeded: Pair, is_replay: bool) -> None:
    pair = seeded
    place = with_two(pair)
    before = table(place)
    for _ in range(2):  # it waits already, the second time
        add_again(pair, "two")
        write_both(pair)
        replayed(pair) if is_replay else pair.catch_up()
        pair.secondary.reload()
        assert_level_but_for(pair, "two")
        assert table(place) == before  # it stays as it was until the seed
        write(pair, "two", "DROP TABLE more", "DELETE FROM account WHERE id = 2", "ALTER TABLE account DROP COLUMN w")
        write(pair, "main", "DELETE FROM account WHERE id = 2")
    pair.seed(restart=True)
    assert (pair.secondary.waiting, pair.secondary.region("two").path) == ((), place)
    write(pair, "two", "UPDATE account SET balance = 10")
    pair.catch_up()
    assert_equal(pair)


def test_a_region_added_again_without_rows_waits_where_the_old_one_lies(seeded: Pair) -> None:
    pair = seeded
    place = with_two(pair)
    before = table(place)
    for _ in range(2):
        release_region(pair.primary, "two", timeout_s=5)
        (pair.directory / "two.db").unlink()
        add_empty(pair, "two")
        write(pair, "two", "INSERT INTO counted (v) VALUES (1)")
        pair.catch_up()
        pair.secondary.reload()
        assert_level_but_for(pair, "two")
        assert table(place) == before
    pair.seed(restart=True)
    assert_equal(pair)


@pytest.mark.slow
@pytest.mark.parametrize("step", ["replace.before_rename", "replace.renamed", "arrival.waits", *STEPS[7:]])
def test_killed_while_a_region_that_was_added_again_goes_it_waits_all_the_same(seeded: Pair, step: str) -> None:
    with_two(seeded)
    add_again(seeded, "two")
    write_both(seeded)
    assert killed(seeded, lambda: failpoint.arm(f"{step}:1:kill"))
    seeded.catch_up()
    seeded.secondary.reload()
    assert_level_but_for(seeded, "two")


def test_a_dry_replay_leaves_a_region_that_was_added_again_out(seeded: Pair) -> None:
    with_two(seeded)
    add_again(seeded, "two")
    write_both(seeded)
    replayed(seeded, dry_run=True)
    seeded.secondary.reload()
    assert (len(seeded.secondary.regions), seeded.secondary.waiting) == (2, ())


def test_a_region_that_waits_and_is_gone_from_the_primary_waits_no_more_after_a_seed(seeded: Pair) -> None:
    add_with_rows(seeded, "two")
    seeded.catch_up()
    release_region(seeded.primary, "two", timeout_s=5)
    seeded.seed(restart=True)
    assert seeded.secondary.waiting == ()
    assert_equal(seeded)


def test_a_region_arrives_when_the_others_were_begun_early(seeded: Pair) -> None:
    add_empty(seeded, "two")
    add_with_rows(seeded, "three")
    with seeded.receive_pool() as pool, seeded.applier(pool) as applier:
        assert work_all(applier).transactions == 0
        seeded.deliver(pool, upto=seeded.last_seqno() - 2)
        work_all(applier)
        seeded.deliver(pool)
        assert applier.begin_early()
        assert work_all(applier).arrived == (("two", True), ("three", False))
    seeded.secondary.reload()
    assert_level_but_for(seeded, "three")


def test_regions_are_locked_in_the_order_of_their_numbers_also_when_those_begin_again(seeded: Pair) -> None:
    site = seeded.secondary
    lose_power(seeded)
    (main,) = site.regions
    content = replace(site.content, regions=(replace(main, region_id=5),), next_region_id=REGIONS_MAX)
    replace_file(site.path / FILE_NAME, encode(content))
    add_empty(seeded, "two")
    with seeded.receive_pool() as pool, seeded.applier(pool) as applier:
        seeded.deliver(pool)
        work_all(applier)
        assert [one.entry.region_id for one in applier.session._open] == [0, 5]
    site.reload()
    assert_level_but_for(seeded)


def test_a_received_catalogue_tells_of_regions_that_wait(seeded: Pair) -> None:
    add_with_rows(seeded, "two")
    with door_of(seeded.primary) as door:
        catalogue = door.catalogue_now()
    seeded.secondary.note_waiting("two")
    with seeded.session() as session:
        routes = Routes(session)
        routes.take_definitions(catalogue)
        table = next(one for one in catalogue.definitions.values() if one.region == "two")
        assert routes.known_table(table.table_id) == table
        assert routes.place_of(int(Op.INSERT), table.table_id, 0) is None


def test_commands_are_honest_about_a_region_that_waits(seeded: Pair) -> None:
    add_with_rows(seeded, "two")
    seeded.catch_up()
    west, east = str(seeded.secondary.path), str(seeded.primary.path)

    def said(*words: str) -> str:
        return CliRunner().invoke(root, ["-i", west, *words]).stdout

    assert "two   (not here: waits for its seed)\n" in said("region", "list")
    assert "  region two is missing in west: it waits for its seed" in said("compare", "--with", east)
    assert "two is not here, and waits for its seed\n" in said("digest")
    error = CliRunner().invoke(root, ["-i", west, "region", "release", "two"]).exception
    assert isinstance(error, NotFoundError)
    assert "waits for its seed" in error.what
    assert "region two was never here: it waits for its seed\n" in said("region", "release", "main")
