"""door/primary.py: the checkpoint records of partitions move in the transaction of the rows, on the primary too."""

from __future__ import annotations

import os
import random
from contextlib import closing
from pathlib import Path

import pytest

import replicate
from replicate.admin import partitions
from replicate.compare.scr import array_of
from replicate.compare.scr_partitions import last_of_each
from replicate.door.recovery.opening import make_chain
from replicate.instance.instance import Instance
from replicate.journal.reader import ChainReader
from replicate.journal.record import FrameBatch, read_head
from replicate.limits import BATCH_BYTES_MAX, PARTITION_NONE, PARTITION_STREAM
from replicate.region.kind import KIND
from replicate.system import failpoint
from tests.harness.instances import door_of, last_seqno, lose_pool
from tests.harness.several import Several

SCHEMA = "".join(f"CREATE TABLE {name} (id INTEGER PRIMARY KEY, v);" for name in ("one", "two", "three"))


@pytest.fixture
def several(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Several:
    """Two regions: `one` in sales (2), in both; `two` in stock (3), in main, and in NONE in the other."""
    monkeypatch.setenv("REPLICATE_SHM_DIR", "")
    made = Several.make(tmp_path, schema=SCHEMA)
    for name in ("sales", "stock"):
        partitions.create(made.primary, name)
    partitions.assign(made.primary, "sales", ["one", "two.one"])
    partitions.assign(made.primary, "stock", ["two"])
    partitions.assign(made.primary, "NONE", ["two.two"])
    made.primary.reload()
    return made


def kept(instance: Instance) -> dict[int, tuple[int, int, int]]:
    """By partition, of the regions that say most: origin, its number, ours."""
    found: dict[int, tuple[int, int, int]] = {}
    for entry in instance.regions:
        with closing(KIND.reader(entry.path, region=entry.uuid)) as opened:
            for row in opened.checkpoint():
                if row.partition != PARTITION_STREAM:
                    last = (row.origin, row.origin_seqno, row.seqno)
                    found[row.partition] = max(found.get(row.partition, last), last, key=lambda one: one[2])
    return found


def journalled(instance: Instance) -> dict[int, tuple[int, int, int]]:
    """The same by the frames of the journal, of what was committed since partitions are in use."""
    found = last_of_each(make_chain(instance), last_seqno(instance), range(1, 64))
    return {
        number: (one.origin, one.origin_seqno, one.seqno) for number, one in found.items() if number != PARTITION_NONE
    }


def write(several: Several, dice: random.Random, number: int) -> None:
    """A transaction of an application's, of any kind."""
    with closing(several.attached()) as connection:
        tables = dice.sample(["one", "main.two", "three", "two.one", "two.two", "two.three"], dice.randint(1, 3))
        for table in tables:
            connection.execute(f"INSERT INTO {table} (v) VALUES (?)", (number,))
        if dice.random() < 0.2:
            connection.execute("SAVEPOINT s")
            connection.execute("INSERT INTO main.two (v) VALUES ('gone')")
            connection.execute("ROLLBACK TO s")
        if dice.random() < 0.2:
            connection.executemany(f"INSERT INTO {tables[0]} (v) VALUES (?)", [(os.urandom(600),) for _ in range(2000)])
        lot = dice.random()
        if lot < 0.2:
            connection.execute(f"CREATE INDEX made_{number} ON {dice.choice(['one', 'three'])} (v)")
        elif lot < 0.4:
            connection.execute(f"CREATE TABLE made_{number} (id INTEGER PRIMARY KEY)")
        connection.commit()
        if dice.random() < 0.3:
            connection.log_comment(f"after {number}")
            connection.commit()


def test_each_commit_moves_the_records_of_what_it_changes(several: Several) -> None:
    """As the frames of the journal say, after each of any transactions; `partition` commands come between."""
    dice = random.Random(os.environ.get("REPLICATE_SEED", "28"))
    orders = [
        lambda: partitions.create(several.primary, "plans"),
        lambda: partitions.place_element(several.primary, "STORAGE", "plans"),
        lambda: partitions.change(several.primary, lambda known: known.with_comments("stock")),
        lambda: partitions.change(several.primary, lambda known: known.with_default("sales")),
        lambda: partitions.place_element(several.primary, "DEFINITION", "plans"),
        lambda: partitions.assign(several.primary, "DEFAULT", ["one"]),
        lambda: partitions.assign(several.primary, "DEFAULT", ["two", "two.one"]),
    ]
    for number in range(40):
        write(several, dice, number)
        if number % 5 == 4 and orders:
            orders.pop(0)()
        there = kept(several.primary)
        assert {key: last for key, last in journalled(several.primary).items() if key in there} == there
    assert set(kept(several.primary)) == {1, 2, 3, 4} == set(journalled(several.primary))


def test_a_record_is_that_of_its_transaction(several: Several) -> None:
    """SQL in the region tells it; `scr` tells the same."""
    with closing(several.connect()) as connection:
        connection.execute("INSERT INTO two (v) VALUES (1)")
        connection.execute("INSERT INTO one (v) VALUES (1)")
        connection.commit()
        seqno = connection.last_seqno
        assert connection.execute("SELECT last_insert_rowid()").fetchone() == (1,)
        rows = connection.execute("SELECT partition, origin_seqno, seqno FROM _replicate_scr ORDER BY 1").fetchall()
        assert rows == [(2, seqno - 1, seqno), (3, seqno - 1, seqno)]  # the history record has no number of the origin
        with pytest.raises(replicate.NotSupportedError):
            connection.execute("DELETE FROM _replicate_scr")
    told = {
        one.partition_id: (one.global_commit_id, one.local_commit_id) for one in array_of(several.primary).partitions
    }
    assert told["sales"] == told["stock"] == (seqno - 1, seqno)
    entry = several.primary.region("main")
    with closing(KIND.reader(entry.path, region=entry.uuid)) as opened:
        row = opened.checkpoint()[0]
    with closing(ChainReader(make_chain(several.primary), row.seqno)) as reader:
        batch = reader.read(BATCH_BYTES_MAX, row.seqno)
    assert isinstance(batch, FrameBatch)
    head = read_head(batch.data)
    assert (row.chain, row.csn, row.origin) == (head.chain, head.csn, head.origin)


def test_who_has_no_partitions_has_no_records(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("REPLICATE_SHM_DIR", "")
    several = Several.make(tmp_path, schema=SCHEMA)
    write(several, random.Random(1), 1)
    assert kept(several.primary) == {}


@pytest.mark.parametrize("step", ["commit.before_append", "append.after_write", "commit.after_commit"])
@pytest.mark.parametrize("comment", [False, True])
def test_a_killed_commit_has_its_records_with_its_rows(several: Several, step: str, comment: bool) -> None:
    partitions.change(several.primary, lambda known: known.with_comments("stock"))
    write(several, random.Random(3), 1)
    pid = os.fork()
    if pid == 0:
        try:
            with closing(several.connect()) as connection:
                failpoint.arm(f"{step}:1:kill")
                if comment:
                    connection.log_comment("last words")
                else:
                    connection.execute("INSERT INTO two (v) VALUES (2)")
                connection.commit()
        finally:
            os._exit(1)
    _, status = os.waitpid(pid, 0)
    assert os.WIFSIGNALED(status)
    with closing(several.connect()) as connection:
        connection.execute("INSERT INTO three (v) VALUES (2)")
        connection.commit()
    assert kept(several.primary) == journalled(several.primary)


def test_a_region_without_its_last_commits_gets_their_records_again(several: Several, tmp_path: Path) -> None:
    """As after a power loss: the journal has them, the file does not."""
    before = {entry.name: entry.path.read_bytes() for entry in several.primary.regions}
    for number in range(8):  # large ones are among them
        write(several, random.Random(number), number)
    lose_pool(several.primary)
    for entry in several.primary.regions:
        for end in ("-wal", "-shm"):
            Path(f"{entry.path}{end}").unlink(missing_ok=True)
        entry.path.write_bytes(before[entry.name])
    with door_of(several.primary):
        pass
    assert kept(several.primary) == journalled(several.primary)


def test_what_is_taken_back_leaves_no_record(several: Several) -> None:
    """It is of another incarnation's past; the next transaction of the partition has one again."""
    with closing(several.connect()) as connection:
        connection.execute("INSERT INTO one (v) VALUES (1)")
        connection.commit()
        first = connection.last_seqno
        connection.execute("INSERT INTO two (v) VALUES (1)")
        connection.commit()
    entry = several.primary.region("main")
    with closing(KIND.mended(entry.path, region=entry.uuid)) as opened:
        with opened.transaction():
            opened.cut_ring(first, reaches=True)
        assert [row.partition for row in opened.checkpoint()] == [2]
