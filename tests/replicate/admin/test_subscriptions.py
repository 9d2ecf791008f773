"""admin/subscriptions.py: a secondary has exactly what it asks for, whatever is written, assigned and removed."""

from __future__ import annotations

import os
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from random import Random
from typing import Any

import apsw
import pytest

import replicate
from replicate.admin import partitions, subscriptions
from replicate.admin.partitions import assign
from replicate.admin.regions import add_region
from replicate.compare.compare import compare, digest
from replicate.compare.digest import compare_digests
from replicate.daemon.files import DaemonFiles
from replicate.errors import (
    AlreadyRunningError,
    HardResyncNeededError,
    NotFoundError,
    PermissionRefusedError,
    UsageError,
)
from replicate.model.elements import PLACED
from replicate.region.sqlite.digest import TableVerdict
from replicate.status.collect import collect
from replicate.status.text import lines
from replicate.transfer.seed.install import install_file
from replicate.transfer.seed.make import make_seed
from replicate.transfer.seed.rows import tables_by_partition
from tests.harness.pair import Pair

SCHEMA = "".join(f"CREATE TABLE t{n} (id INTEGER PRIMARY KEY AUTOINCREMENT, v);\n" for n in range(6))
NAMES = ("DEFAULT", "sales", "stock", "hr")


@pytest.fixture
def pair(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Pair:
    monkeypatch.setenv("REPLICATE_SHM_DIR", "")
    made = Pair.create(tmp_path, SCHEMA)
    for instance in (made.primary, made.secondary):
        for name in NAMES[1:]:
            partitions.create(instance, name)
    return made


def tables_of(pair: Pair) -> dict[str, int]:
    return {table: number for number, found in tables_by_partition(pair.primary).items() for _, table in found}


def write(pair: Pair, *texts: str) -> None:
    with closing(pair.connect()) as connection:
        for text in texts:
            connection.execute(text)
        connection.commit()


def assert_restricted(pair: Pair, held: set[int]) -> None:
    """The secondary is the primary, restricted: row by row, by digests, and empty else."""
    found = compare(pair.primary, pair.secondary, timeout_s=60)
    assert found.equal, found
    (region,) = found.regions
    assert region.comparison is not None
    status = {one.table: one.status for one in region.comparison.tables}
    for table, number in tables_of(pair).items():
        wanted = TableVerdict.EQUAL if number in held else TableVerdict.LEFT_OUT
        assert status[table] is wanted, (table, number)
    both = [digest(instance, timeout_s=60) for instance in (pair.primary, pair.secondary)]
    assert compare_digests(*both).equal
    assert set(compare_digests(*both).left_out) == {
        f"main.{table}" for table, number in tables_of(pair).items() if number not in held
    }


def a_transaction(random: Random, tables: list[str], connection: Any) -> None:
    for _ in range(random.choice((1, 1, 2, 4, 9))):
        table = random.choice(tables)
        what = random.random()
        if what < 0.55:
            connection.execute(f"INSERT INTO {table} (v) VALUES (?)", (random.randbytes(random.choice((1, 9, 70))),))
        elif what < 0.75:
            connection.execute(f"UPDATE {table} SET v = ? WHERE id % 3 = ?", (random.random(), random.randrange(3)))
        elif what < 0.9:
            connection.execute(f"DELETE FROM {table} WHERE id % 7 = ?", (random.randrange(7),))
        elif what < 0.95:
            connection.log_comment(f"comment {random.random()}")
        else:
            connection.execute(f"CREATE INDEX IF NOT EXISTS i{random.randrange(9)} ON {table} (v)")
    connection.commit()


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(6))
def test_whatever_is_written_and_assigned(pair: Pair, seed: int) -> None:
    """Random transactions, assignments of tables that are empty, schema changes and large ones, for a random wish."""
    random = Random(seed)
    wish = random.sample(NAMES, random.choice((1, 2, 3)))
    numbers = {pair.primary.content.partitions.number(name) for name in wish}
    for table in range(6):
        name = random.choice((*NAMES, "NONE"))
        if name != "DEFAULT":
            assign(pair.primary, name, [f"t{table}"])
    subscriptions.set_(pair.secondary, wish)
    with closing(pair.connect()) as connection:
        a_transaction(random, ["t0", "t1", "t2"], connection)
    pair.seed()
    for step in range(8):
        tables = list(tables_of(pair))
        with closing(pair.connect()) as connection:
            for _ in range(random.randrange(1, 12)):
                a_transaction(random, tables, connection)
            if step == 2:  # into ones that are wanted: as ever, whatever comes beside it
                for element in random.sample(PLACED, random.randrange(4)):
                    partitions.place_element(pair.primary, element, random.choice(wish))
            if step == 3:
                connection.execute(f"ALTER TABLE {tables[0]} RENAME TO renamed")
                connection.execute("ALTER TABLE t5 ADD COLUMN more")
                a_transaction(random, ["renamed", *tables[1:]], connection)
            if step == 5:
                for table in [*tables_of(pair)] * 2600:
                    connection.execute(f"INSERT INTO {table} (v) VALUES ('large')")
                connection.commit()
            if step == 6:
                for number, name in enumerate((*NAMES, "NONE")):
                    partitions.change(pair.primary, lambda known, name=name: known.with_default(name))  # type: ignore[misc]
                    connection.execute(f"CREATE TABLE n{number} (id INTEGER PRIMARY KEY, v)")
                    connection.execute(f"INSERT INTO n{number} (v) VALUES (1)")
                    connection.commit()
                connection.execute("CREATE TABLE moving (id INTEGER PRIMARY KEY, v)")
                connection.commit()
                for name in ("sales", "NONE", "hr", "DEFAULT"):
                    assign(pair.primary, name, ["moving"])
        pair.catch_up()
        assert_restricted(pair, numbers)


def test_a_table_whose_rows_are_not_here_stops_it_by_name(pair: Pair) -> None:
    subscriptions.set_(pair.secondary, ["sales"])
    pair.seed()
    assign(pair.primary, "sales", ["t0"])
    write(pair, "INSERT INTO t0 (v) VALUES (1)", "INSERT INTO t1 (v) VALUES (1)")
    pair.catch_up()
    assert_restricted(pair, {2})
    assign(pair.primary, "sales", ["t1"])
    with pytest.raises(HardResyncNeededError, match="table t1 of region main was put into partition sales; what"):
        pair.catch_up()
    pair.seed(restart=True)
    pair.catch_up()
    assert_restricted(pair, {2})
    assign(pair.primary, "DEFAULT", ["t1"])  # what was here stays, and gets no more
    write(pair, "INSERT INTO t1 (v) VALUES (2)")
    pair.catch_up()
    assert [row[2] for row in pair.rows("t1")] == [1]
    # It comes back without any: those that stayed here are none of its rows.
    write(pair, "DELETE FROM t1")
    assign(pair.primary, "sales", ["t1"])
    write(pair, "INSERT INTO t1 (v) VALUES (3)")
    with pytest.raises(HardResyncNeededError, match="what it had in DEFAULT is not here"):
        pair.catch_up()
    pair.seed(restart=True)
    pair.catch_up()
    assert_restricted(pair, {2})


def test_a_table_that_had_rows_and_counts_stops_it_by_name(pair: Pair) -> None:
    """It is empty, and its counter is not here: the first row would be a conflict."""
    assign(pair.primary, "stock", ["t1"])
    subscriptions.set_(pair.secondary, ["sales"])
    write(pair, "INSERT INTO t1 (v) VALUES (1)")
    pair.seed()
    write(pair, "DELETE FROM t1")
    assign(pair.primary, "sales", ["t1"])
    write(pair, "INSERT INTO t1 (v) VALUES (2)")
    with pytest.raises(HardResyncNeededError, match="table t1 of region main was put into partition sales"):
        pair.catch_up()
    pair.seed(restart=True)
    pair.catch_up()
    assert_restricted(pair, {2})


def test_rows_of_none_are_in_no_copy(pair: Pair) -> None:
    """Also not in free pages, the ring, or the journal of a whole secondary."""
    secret = "never-to-leave"
    assign(pair.primary, "NONE", ["t0"])
    write(
        pair,
        *(f"INSERT INTO t0 (v) VALUES ('{secret} {n} {'x' * 200}')" for n in range(50)),
    )
    write(pair, "DELETE FROM t0 WHERE id = 3")
    write(pair, "INSERT INTO t1 (v) VALUES ('to leave')")
    pair.seed()
    write(pair, f"INSERT INTO t0 (v) VALUES ('{secret}')", "INSERT INTO t1 (v) VALUES ('to leave')")
    write(pair, f"UPDATE t0 SET v = '{secret} again'")
    pair.catch_up()
    assert_restricted(pair, {1})
    assert b"to leave" in pair.secondary.region("main").path.read_bytes()
    for file in pair.secondary.path.rglob("*"):
        if file.is_file():
            assert secret.encode() not in file.read_bytes(), file
    assign(pair.primary, "DEFAULT", ["t0"])
    with pytest.raises(HardResyncNeededError, match="what it had in NONE is not here"):
        pair.catch_up()


def test_rows_that_were_deleted_long_before_are_in_no_copy_either(pair: Pair, tmp_path: Path) -> None:
    """They stand in free pages, and in what is left of old pages that other tables use now."""
    secret = b"never-to-leave"
    assign(pair.primary, "NONE", ["t0"])
    with closing(pair.connect()) as connection:
        for number in range(400):
            connection.execute("INSERT INTO t0 (v) VALUES (?)", (f"{secret.decode()} {number} {'x' * 900}",))
        connection.commit()
        connection.execute("DELETE FROM t0 WHERE id > 5")
        connection.commit()
        for _ in range(60):
            connection.execute("INSERT INTO t1 (v) VALUES (?)", ("y" * 6000,))
        connection.commit()
    raw = apsw.Connection(str(pair.primary.region("main").path))
    raw.execute("PRAGMA wal_checkpoint(TRUNCATE)")
    raw.close()
    assert pair.primary.region("main").path.read_bytes().count(secret) > 20
    made = make_seed(pair.primary, "west", tmp_path / "west.seed")
    assert secret not in made.path.read_bytes()
    pair.seed()
    assert secret not in pair.secondary.region("main").path.read_bytes()
    pair.catch_up()
    assert_restricted(pair, {1})


def test_a_region_that_is_added_comes_with_its_counters(pair: Pair, tmp_path: Path) -> None:
    """Also those of tables that are not wanted: they are of the definitions, and no rows."""
    for table in range(6):
        assign(pair.primary, "stock", [f"t{table}"])
    subscriptions.set_(pair.secondary, ["sales"])
    pair.seed()
    path = make_plain(tmp_path / "side.db")
    add_region(pair.primary, path, name="side")
    with closing(replicate.connect(pair.primary.path, "side")) as connection:
        connection.execute("INSERT INTO c (v) VALUES (2)")
        connection.commit()
    pair.catch_up()
    pair.secondary.reload()
    assert [one.name for one in pair.secondary.regions] == ["main", "side"]
    found = apsw.Connection(str(pair.secondary.region("side").path), flags=apsw.SQLITE_OPEN_READONLY)
    assert found.execute("SELECT (SELECT count(*) FROM c), (SELECT seq FROM sqlite_sequence)").fetchall() == [(0, 9)]
    found.close()


def make_plain(path: Path) -> Path:
    """A database with a counter, and no rows."""
    connection = apsw.Connection(str(path))
    connection.execute("CREATE TABLE c (id INTEGER PRIMARY KEY AUTOINCREMENT, v)")
    connection.execute("INSERT INTO c VALUES (9, 1); DELETE FROM c")
    connection.close()
    return path


def test_partitions_that_wait_are_one_finding(pair: Pair) -> None:
    """For each state, with one command that brings them, however many there are."""
    names = [f"p{number:02}" for number in range(10, 60)]
    for instance in (pair.primary, pair.secondary):
        partitions.change(instance, lambda now: now.with_limit(63))
        for name in names:
            partitions.create(instance, name)
    subscriptions.set_(pair.secondary, ["sales"])
    pair.seed()
    subscriptions.set_(pair.secondary, ["ALL"])
    (finding,) = [one for one in collect(pair.secondary).findings if one.code == "PARTITION_WAITS"]
    listed = ", ".join(["DEFAULT", *NAMES[2:], *names])
    assert finding.text.startswith(f"partitions {listed}: wanted, and not here: each waits for its rows; west has")
    assert finding.do.endswith("seed" + "".join(f" --partition {name}" for name in listed.split(", ")))
    pair.secondary.change_subscription(lambda now: now.begun((3, 4)))
    found = [one for one in collect(pair.secondary).findings if one.code == "PARTITION_WAITS"]
    assert len(found) == 2
    assert found[1].text.startswith("partitions stock, hr: wanted, and not here: each is being loaded; west")
    assert found[1].do.endswith("seed --partition stock --partition hr")


def test_less_and_more(pair: Pair) -> None:
    for number, name in enumerate(NAMES[1:]):
        assign(pair.primary, name, [f"t{number}"])
    write(pair, *(f"INSERT INTO t{n} (v) VALUES (1)" for n in range(6)))
    pair.seed()
    pair.catch_up()
    assert_restricted(pair, {1, 2, 3, 4})
    subscriptions.set_(pair.secondary, ["sales", "stock", "1"])
    assert (pair.secondary.content.subscription, pair.secondary.content.held) == ((1, 2, 3), (1, 2, 3))
    write(pair, *(f"INSERT INTO t{n} (v) VALUES (2)" for n in range(6)))
    pair.catch_up()
    assert_restricted(pair, {1, 2, 3})
    assert [row[2] for row in pair.rows("t2")] == [1]  # hr, as it was
    subscriptions.remove(pair.secondary, ["DEFAULT"])
    subscriptions.add(pair.secondary, ["hr"])
    assert (pair.secondary.content.subscription, pair.secondary.content.held) == ((2, 3, 4), (2, 3))
    (finding,) = [one for one in collect(pair.secondary).findings if one.code == "PARTITION_WAITS"]
    assert (
        finding.text
        == "partition hr: wanted, and not here: it waits for its rows; west has the rows of sales, stock only"
    )
    assert finding.do.endswith("seed --partition hr")
    told = "partitions: DEFAULT frozen, as it was; sales here; stock here; hr waits for its rows"
    assert told in "".join(lines(collect(pair.secondary), 200))
    assert not collect(pair.primary).partitions
    write(pair, *(f"INSERT INTO t{n} (v) VALUES (3)" for n in range(6)))
    pair.catch_up()
    assert_restricted(pair, {2, 3})  # the others go on meanwhile
    pair.seed(restart=True)
    write(pair, *(f"INSERT INTO t{n} (v) VALUES (4)" for n in range(6)))
    pair.catch_up()
    assert_restricted(pair, {2, 3, 4})
    assert pair.rows("t5") == []  # a seed brings what is wanted, and nothing else
    subscriptions.set_(pair.secondary, ["all"])
    assert (pair.secondary.content.subscription, pair.secondary.content.held) == (None, (2, 3, 4))
    assert [one.code for one in collect(pair.secondary).findings if one.code == "PARTITION_WAITS"]
    pair.seed(restart=True)
    pair.catch_up()
    assert_restricted(pair, {1, 2, 3, 4})
    assert pair.secondary.content.held is None


def test_what_a_partial_secondary_never_is(pair: Pair) -> None:
    """Primary, source of a seed or of an archive, or the end of a replay."""
    from replicate.roles.change_of_role import become_primary
    from update_process.replay.command import require_own_words, require_whole_journal

    subscriptions.set_(pair.secondary, ["sales"])
    pair.seed()
    attempts: list[Callable[[], Any]] = [
        lambda: become_primary(pair.secondary),
        lambda: require_own_words(pair.secondary, [pair.primary.path]),
        lambda: require_own_words(pair.primary, [pair.secondary.path]),
        lambda: require_whole_journal(pair.secondary.path),
    ]
    for attempt in attempts:
        with pytest.raises(UsageError, match="the rows of"):
            attempt()
    assert pair.secondary.role == "secondary"


def test_what_a_peer_may_have(pair: Pair, tmp_path: Path) -> None:
    """A seed has no more rows than that, says so, and is refused where more is wanted."""
    from replicate.transfer.container import PARTIAL_FORMAT_VERSION
    from replicate.transfer.seed.file import SeedReader

    for number, name in enumerate(NAMES[1:]):
        assign(pair.primary, name, [f"t{number}"])
    write(pair, *(f"INSERT INTO t{n} (v) VALUES ('row of {n}')" for n in range(6)))
    bound = subscriptions.numbers_of(pair.primary, ["sales", "stock"])
    pair.primary.register_peer("west", "127.0.0.1", 7430, partitions=bound, replace_address=True)
    pair.primary.register_peer("west", "127.0.0.1", 7430)  # as it is
    assert pair.primary.peer("west").partitions == (2, 3)
    with pytest.raises(UsageError, match="the copy has the rows of sales, stock; west wants all"):
        pair.seed()
    made = make_seed(pair.primary, "west", tmp_path / "west.seed")
    with closing(SeedReader(made.path)) as reader:
        assert (reader.header.version, reader.header.partitions) == (PARTIAL_FORMAT_VERSION, (2, 3))
    assert b"row of 0" in made.path.read_bytes()
    for absent in (b"row of 2", b"row of 3", b"row of 5"):
        assert absent not in made.path.read_bytes()
    for wanted in (["ALL"], ["hr"], ["sales", "hr"]):
        subscriptions.set_(pair.secondary, wanted)
        with pytest.raises(UsageError, match="the copy has the rows of sales, stock; west wants"):
            install_file(pair.secondary, made.path)
    subscriptions.set_(pair.secondary, ["stock"])
    install_file(pair.secondary, made.path)
    pair.catch_up()
    assert_restricted(pair, {3})
    pair.primary.register_peer("west", "127.0.0.1", 7430, partitions=None, replace_address=True)
    subscriptions.set_(pair.secondary, ["ALL"])
    pair.seed(restart=True)
    assert_restricted(pair, {1, 2, 3, 4})


def test_a_name_that_only_the_primary_has_is_asked_for_by_its_number(pair: Pair) -> None:
    partitions.create(pair.primary, "afar", 9)
    with pytest.raises(NotFoundError) as caught:
        subscriptions.set_(pair.secondary, ["afar"])
    assert caught.value.do.endswith("partition create afar --id NUMBER")
    subscriptions.set_(pair.secondary, ["9"])
    assert pair.secondary.content.subscription == (9,)


def test_what_is_refused(pair: Pair) -> None:
    refused: tuple[tuple[type[Exception], Callable[[], None]], ...] = (
        (PermissionRefusedError, lambda: subscriptions.set_(pair.primary, ["sales"])),
        (UsageError, lambda: subscriptions.set_(pair.secondary, ["NONE"])),
        (NotFoundError, lambda: subscriptions.set_(pair.secondary, ["nothing"])),
        (NotFoundError, lambda: subscriptions.set_(pair.secondary, ["64"])),
        (UsageError, lambda: subscriptions.set_(pair.secondary, [])),
        (UsageError, lambda: subscriptions.add(pair.secondary, ["sales"])),
        (UsageError, lambda: subscriptions.remove(pair.secondary, ["sales"])),
    )
    for error, attempt in refused:
        with pytest.raises(error):
            attempt()
    assert pair.secondary.content.subscription is None
    fd = DaemonFiles(pair.secondary.path, "receiver").lock.acquire()
    try:
        with pytest.raises(AlreadyRunningError):
            subscriptions.set_(pair.secondary, ["sales"])
        with pytest.raises(AlreadyRunningError):
            subscriptions.filter_(pair.secondary, "t1", "v > 3")
    finally:
        os.close(fd)
    subscriptions.set_(pair.secondary, ["63"])  # whatever it will be called
    with pytest.raises(UsageError, match="no partition would be left"):
        subscriptions.remove(pair.secondary, ["63"])


def test_a_virtual_table_that_is_not_wanted(pair: Pair) -> None:
    """Its module keeps more in its tables than rows: it is made again, and works."""
    write(
        pair,
        "CREATE VIRTUAL TABLE found USING fts5(body)",
        *(f"INSERT INTO found (body) VALUES ('a word, the {n}th')" for n in range(40)),
    )
    assign(pair.primary, "sales", ["found"])
    subscriptions.set_(pair.secondary, ["DEFAULT"])
    pair.seed()
    write(pair, "INSERT INTO found (body) VALUES ('one more word')", "INSERT INTO t1 (v) VALUES (1)")
    pair.catch_up()
    assert_restricted(pair, {1})
    connection = apsw.Connection(str(pair.secondary.region("main").path), flags=apsw.SQLITE_OPEN_READONLY)
    assert connection.execute("SELECT count(*) FROM found WHERE found MATCH 'word'").get == 0
    assert connection.execute("PRAGMA integrity_check").get == "ok"
    connection.close()


@pytest.mark.parametrize("mode", ["NONE", "FULL", "INCREMENTAL"])
def test_a_seed_file_in_each_mode_of_giving_pages_back(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, mode: str
) -> None:
    monkeypatch.setenv("REPLICATE_SHM_DIR", "")
    pair = Pair.create(tmp_path, f"PRAGMA auto_vacuum = {mode}; {SCHEMA}")
    assign(pair.primary, "NONE", ["t0"])
    write(pair, *(f"INSERT INTO t0 (v) VALUES ('{'x' * 900}')" for n in range(300)), "INSERT INTO t1 (v) VALUES (1)")
    made = make_seed(pair.primary, "west", tmp_path / "west.seed")
    install_file(pair.secondary, made.path)
    pair.secondary.reload()
    pair.catch_up()
    assert_restricted(pair, {1})
    connection = apsw.Connection(str(pair.secondary.region("main").path), flags=apsw.SQLITE_OPEN_READONLY)
    assert connection.pragma("auto_vacuum") == ["NONE", "FULL", "INCREMENTAL"].index(mode)
    connection.close()


def test_some_rows_of_a_table(pair: Pair, tmp_path: Path) -> None:
    """What is said of them, and refused, before and after the first seed."""
    west = pair.secondary
    subscriptions.filter_(west, "t1", "v > 3")
    subscriptions.filter_(west, "main.t2", "v > 4")
    assert west.content.held_rows == west.content.rows == {("", "t1"): "v > 3", ("main", "t2"): "v > 4"}
    write(pair, "CREATE VIRTUAL TABLE note USING fts5(body)")
    pair.seed()
    assert west.content.held_rows == {("main", "t1"): "v > 3", ("main", "t2"): "v > 4"}
    assert west.content.told_held == ("has of table main.t1 where v > 3, and of main.t2 where v > 4, no other rows")
    assert subscriptions.filter_(west, "t1", " v  >  5 ") == ("main", "t1")
    (finding,) = [one for one in collect(west).findings if one.code == "ROWS_WAIT"]
    assert "of table main.t1 the rows where v  >  5 are wanted" in finding.text
    assert finding.do == west.way_out
    for table, condition, told in (
        ("note_data", "id = 1", "table note_data is kept by a virtual table"),
        ("note", "body = 'x'", "there is no table note"),
        ("t9", "v = 1", "there is no table t9"),
        ("side.t1", "v = 1", "there is no table side.t1"),
        ("t1", f"v IN ({', '.join(['1'] * 300)}) OR v = '{'é' * 20}'", ""),
        ("t3", f"v = '{'é' * 600}'", "3 tables with conditions or columns of .* bytes are more than a hello holds"),
    ):
        if told:
            with pytest.raises(UsageError, match=told):
                subscriptions.filter_(west, table, condition)
        else:
            subscriptions.filter_(west, table, condition)
    with pytest.raises(UsageError, match="the same command with --ahead"):
        subscriptions.filter_(west, "t1", "w = 1")
    assert subscriptions.filter_(west, "t1", "w = 1", is_ahead=True) == ("main", "t1")
    assert subscriptions.filter_(west, "later", "w = 1", is_ahead=True) == ("", "later")
    with pytest.raises(PermissionRefusedError):
        subscriptions.filter_(pair.primary, "t1", "v = 1")
    assert west.content.held_rows[("main", "t1")] == "v > 3"
