"""Records by partition: the last transaction of each, by the frames themselves, and what two sites lack of each."""

from __future__ import annotations

import json
import os
import random
from contextlib import closing
from pathlib import Path

import apsw
import pytest

from replicate.admin.partitions import assign, create
from replicate.admin.subscriptions import add, remove, set_
from replicate.compare.scr import NOT_HELD, STREAM, Array, array_of, by_numbers, compare_with, parse, told
from replicate.compare.scr_partitions import LastInPartition, last_of_each, last_within
from replicate.door.recovery.opening import make_chain
from replicate.errors import DamagedError, FormatUnknownError
from replicate.instance.instance import Instance
from replicate.journal.reader import ChainReader
from replicate.journal.record import FrameBatch, decode
from replicate.model.transaction import DefinitionChange, RowChange
from replicate.transfer.seed.direct import seed
from replicate.transfer.seed.install import install_file
from replicate.transfer.seed.make import make_seed
from replicate.transfer.seed.partition import load_from_file, loading
from tests.harness.instances import lose_pool
from tests.harness.packets import export, take
from tests.harness.pair import Pair
from tests.harness.sites import Sites
from tests.harness.suppliers import Suppliers
from tests.replicate.transfer.seed.test_partition import file
from update_process.replay.command import apply_session

TABLES = ("account", "entry", "third")
SCHEMA = "".join(f"CREATE TABLE {name} (id INTEGER PRIMARY KEY, v);" for name in TABLES)


@pytest.fixture
def pair(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Pair:
    """account is in sales (2), entry in stock (3), third in DEFAULT."""
    monkeypatch.setenv("REPLICATE_SHM_DIR", str(tmp_path / "shm"))
    made = Pair.create(tmp_path, SCHEMA, settings="[journal]\npool_bytes = 1048576\nsegment_bytes = 1048576\n")
    for name, table in (("sales", "account"), ("stock", "entry")):
        create(made.primary, name)
        assign(made.primary, name, [table])
    made.primary.reload()
    return made


def write(pair: Pair, *tables: str, count: int = 1, value: object = 1) -> int:
    """Transactions that change all of these tables."""
    connection = pair.connect()
    for _ in range(count):
        for table in tables:
            connection.execute(f"INSERT INTO {table}(v) VALUES (?)", (value,))
        connection.commit()
    connection.close()
    return pair.last_seqno()


def deliver(pair: Pair) -> None:
    (pair.directory / "out").mkdir(exist_ok=True)
    take(pair.secondary, *(one.path for one in export(pair.primary, pair.directory / "out", "west")))


def test_every_kind_of_transaction_counts_where_it_belongs(pair: Pair) -> None:
    chain, before = make_chain(pair.primary), pair.last_seqno()
    first = write(pair, "account")
    both = write(pair, "account", "entry")
    connection = pair.connect()
    connection.executemany("INSERT INTO third(v) VALUES (?)", ((os.urandom(500),) for _ in range(3000)))
    connection.commit()  # a large one
    connection.execute("INSERT INTO entry(v) VALUES (9)")
    connection.execute("CREATE TABLE fourth (id INTEGER PRIMARY KEY)")
    connection.commit()
    connection.close()
    last = pair.last_seqno()
    found = last_within(chain, before + 1, last)
    assert {number: (one.count, one.seqno) for number, one in found.items()} == {
        1: (1, both + 1),
        2: (2, both),
        3: (2, last),
    }
    assert {one.origin for one in found.values()} == {pair.primary.content.origin.key}
    assert [found[number].seqno - found[number].origin_seqno for number in found] == [1] * 3  # the history record
    assert last_within(chain, first, first) == {2: LastInPartition(1, first, found[2].origin, first - 1)}
    assert last_within(chain, last + 1, last) == {}


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(3))
def test_it_is_what_the_decoded_frames_say(pair: Pair, seed: int) -> None:
    noise, before = random.Random(seed), pair.last_seqno()
    for number in range(60):
        write(pair, *noise.sample(TABLES, noise.randint(1, 3)), value=os.urandom(noise.choice((5, 60_000))))
        if number % 20 == 7:
            assign(pair.primary, noise.choice(("sales", "stock", "DEFAULT")), [noise.choice(TABLES)])
    chain, expected = make_chain(pair.primary), dict[int, set[int]]()
    with closing(ChainReader(chain, before + 1)) as reader:
        partitions = {one.table_id: one.partition for one in reader.catalogue_at(before + 1).definitions.values()}
        while (batch := reader.read(1, pair.last_seqno())) is not None:
            assert isinstance(batch, FrameBatch)
            transaction = decode(batch.data)
            for change in transaction.content:
                if isinstance(change, DefinitionChange):
                    partitions[change.definition.table_id] = change.definition.partition
                elif isinstance(change, RowChange):
                    expected.setdefault(partitions[change.table_id], set()).add(transaction.seqno)
    found = last_within(chain, before + 1, pair.last_seqno())
    assert {number: (one.count, one.seqno) for number, one in found.items()} == {
        number: (len(seqnos), max(seqnos)) for number, seqnos in expected.items()
    }
    assert len(chain.first_seqnos()) > 1
    newest = last_of_each(chain, pair.last_seqno(), expected)
    assert {number: one.seqno for number, one in newest.items()} == {n: max(s) for n, s in expected.items()}


def states(pair: Pair, *, by_file: bool = False) -> dict[str, str]:
    other = parse(json.dumps(told(array_of(pair.secondary))), where="x") if by_file else pair.secondary
    return {one.partition_id: one.state for one in compare_with(pair.primary, other).rows}


@pytest.mark.parametrize("by_file", [False, True])
def test_each_partition_is_behind_by_its_own_transactions(pair: Pair, by_file: bool) -> None:
    pair.seed()
    assert set(states(pair, by_file=by_file).values()) == {"even"}
    write(pair, "account", count=3)
    write(pair, "account", "third", count=2)
    assert states(pair, by_file=by_file) == {
        STREAM: "behind by 5",
        "DEFAULT": "behind by 2",
        "sales": "behind by 5",
        "stock": "even",
    }
    deliver(pair)
    assert set(states(pair, by_file=by_file).values()) == {"even"}
    here, there = array_of(pair.primary).partitions, array_of(pair.secondary).partitions
    changed = [one for one in here if one.global_commit_id]
    assert [one.number for one in changed] == [1, 2]
    known = {one.number: (one.global_commit_id, one.local_commit_id) for one in there}
    assert all(known[one.number] == (one.global_commit_id, one.local_commit_id) for one in changed)


def test_seen_from_the_secondary_by_numbers(pair: Pair) -> None:
    pair.seed()
    write(pair, "account", count=2)
    deliver(pair)
    write(pair, "entry")
    array = parse(json.dumps(told(array_of(pair.primary))), where="x")
    found = {one.partition_id: one.state for one in compare_with(pair.secondary, array).rows}
    assert found[STREAM] == "behind by 1"
    assert (found["sales"], found["DEFAULT"]) == ("even", "even")
    assert found["stock"].endswith("at most")


def test_a_partition_that_is_not_held_is_no_lag(pair: Pair) -> None:
    create(pair.secondary, "sales", 2)
    set_(pair.secondary, ["sales"])
    pair.secondary.reload()
    pair.seed()
    write(pair, "account", "entry")
    assert states(pair) == {STREAM: "behind by 1", "DEFAULT": NOT_HELD, "sales": "behind by 1", "stock": NOT_HELD}


def test_what_was_loaded_and_removed_is_as_the_regions_have_it(pair: Pair) -> None:
    """No transaction of its journal brought it there, and none takes it further. A load brings the record that its
    source has, as a seed does."""
    create(pair.secondary, "sales", 2)
    set_(pair.secondary, ["sales"])
    pair.secondary.reload()
    pair.seed()
    write(pair, "entry", count=2)
    pair.catch_up()
    add(pair.secondary, ["3"])
    with loading(pair.secondary, [3]):
        pass
    write(pair, "account")
    pair.catch_up()  # the stream brings it from here on, and nothing is written to it
    load_from_file(pair.secondary, file(pair, 3), [3])

    def stock(instance: Instance) -> tuple[int, bool]:
        (found,) = (one for one in array_of(instance).partitions if one.number == 3)
        return found.local_commit_id, found.is_held

    assert stock(pair.secondary) == stock(pair.primary)
    assert stock(pair.secondary)[1]
    assert states(pair)["stock"] == "even"
    last = write(pair, "entry")
    pair.catch_up()
    assert stock(pair.primary) == stock(pair.secondary) == (last, True)
    remove(pair.secondary, ["3"])
    write(pair, "entry", count=2)
    pair.catch_up()
    assert stock(pair.primary) == (last + 2, True)
    assert stock(pair.secondary) == (last, False)
    for found in (
        compare_with(pair.primary, pair.secondary),
        compare_with(pair.secondary, parse(json.dumps(told(array_of(pair.primary))), where="x")),
    ):
        (row,) = (one for one in found.rows if one.partition_id == "stock")
        assert (row.state, row.source - row.secondary) == (NOT_HELD, 2)


def test_without_partitions_the_array_is_as_it_was(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("REPLICATE_SHM_DIR", str(tmp_path / "shm"))
    made = Pair.create(tmp_path)
    array = array_of(made.primary)
    assert (array.format, array.partitions) == (1, ())
    assert "partitions" not in told(array)
    assert {one.partition_id for one in array.records} == {"DEFAULT"}


def test_an_array_with_partitions_comes_back_and_damage_is_refused(pair: Pair) -> None:
    array = array_of(pair.primary)
    facts = told(array)
    assert facts["format"] == 2
    assert parse(json.dumps(facts), where="x") == array
    with pytest.raises(FormatUnknownError, match="format 3, this release knows 1 and 2"):
        parse(json.dumps(facts | {"format": 3}), where="x")
    for wrong in (
        facts | {"partitions": [{}]},
        facts | {"partitions": 7},
        {name: value for name, value in facts.items() if name != "partitions"},
        facts | {"partitions": [facts["partitions"][0] | {"is_held": 1}]},
        facts | {"partitions": [facts["partitions"][0] | {"number": -1}]},
    ):
        with pytest.raises(DamagedError):
            parse(json.dumps(wrong), where="x")


def test_of_a_secondary_of_an_older_release_nothing_is_known(pair: Pair) -> None:
    write(pair, "account")
    ours = array_of(pair.primary)
    theirs = Array("west", "00", ours.network, "secondary", 0, 1, ())
    assert [one.secondary for one in by_numbers(ours, theirs)] == [0, 0, 0]


def test_recovery_writes_the_same_records_as_the_update_process(pair: Pair) -> None:
    """What a killed Update Process had journalled is rolled forward: the records are then as if it had lived."""
    pair.seed()
    write(pair, "account", count=2)
    write(pair, "account", "entry")
    write(pair, "third", count=3)
    region = pair.secondary.region("main").path
    before = region.read_bytes()
    deliver(pair)
    expected = _records(region)
    assert {row[1] for row in expected} == {0, 1, 2, 3}
    assert all(row[3:5] == (0, 0) for row in expected if row[1])
    lose_pool(pair.secondary)
    for path in region.parent.glob("*-wal"):
        path.unlink()
    region.write_bytes(before)
    with apply_session(pair.secondary):
        pass
    assert _records(region) == expected


def test_an_instance_of_both_roles_has_records_of_what_it_writes_and_of_what_it_receives(tmp_path: Path) -> None:
    """A supplier: each partition is of its own writer, with that one's numbers, and moves with what arrives."""
    made = Suppliers.create(tmp_path, 2)
    made.write("a", 3)
    made.write("b", 2)
    made.level()

    def records() -> dict[str, tuple[str, int, int]]:
        found = array_of(made.by["a"]).partitions
        return {one.partition_id: (one.audit_name, one.global_commit_id, one.local_commit_id) for one in found}

    before = records()
    assert {name: (row[0], row[1]) for name, row in before.items()} == {"DEFAULT": ("a", 5), "Pb": ("b", 2)}
    made.write("b")
    made.carry("b", "a")
    assert records() == {**before, "Pb": ("b", 3, made.last_seqno("a"))}
    made.write("a")
    assert records()["DEFAULT"] == ("a", 6, made.last_seqno("a"))
    assert records()["Pb"][:2] == ("b", 3)


@pytest.mark.parametrize("by_file", [False, True])
def test_a_fresh_seed_after_changes_of_role_has_the_numbers_of_all_sites(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, by_file: bool
) -> None:
    """Each partition was last changed by another incarnation; a new secondary says of each what the others say."""
    monkeypatch.setenv("REPLICATE_SHM_DIR", str(tmp_path / "shm"))
    sites = Sites.create(tmp_path, SCHEMA)
    sites.add_peers()
    for instance in (sites.primary, sites.secondary):
        for name in ("sales", "stock"):
            create(instance, name)
    for name, table in (("sales", "account"), ("stock", "entry")):
        assign(sites.primary, name, [table])
    sites.seed()
    for table in ("entry", "account", "third"):
        write(sites, table, count=2)
        if table != "third":
            sites.switch()
    sites.catch_up()
    primary = sites.primary
    third = Instance.create(tmp_path / "new", role="secondary", name="new", network=primary.content.network)
    primary.register_peer("new", "127.0.0.1", 7499)
    if by_file:
        make_seed(primary, "new", tmp_path / "new.seed")
        install_file(third, tmp_path / "new.seed")
    else:
        seed(primary, third)
    third.reload()
    arrays = [array_of(instance) for instance in (primary, sites.secondary, third)]
    numbers = [
        {one.number: (one.global_commit_id, one.log_file_timestamp, one.local_commit_id) for one in array.partitions}
        for array in arrays
    ]
    assert numbers[0] == numbers[1] == numbers[2]
    assert len({one[1] for one in numbers[0].values()}) > 1  # several incarnations
    level, fresh = [_records(instance.region("main").path) for instance in (sites.secondary, third)]
    here, there = ({row[:3]: row[5] for row in rows} for rows in (fresh, level))
    both = here.keys() & there.keys()
    assert {key: here[key] for key in both} == {key: there[key] for key in both}
    assert {key[1] for key in both} == {0, 1, 2, 3}
    assert len({key[0] for key in both}) > 2


def _records(path: Path) -> list[tuple[int, ...]]:
    connection = apsw.Connection(str(path), flags=apsw.SQLITE_OPEN_READONLY)
    try:
        return connection.execute(
            "SELECT origin, partition, origin_seqno, iif(partition, chain, NULL), iif(partition, csn, NULL), seqno "
            "FROM _replicate_scr ORDER BY 1, 2"
        ).fetchall()
    finally:
        connection.close()
