"""Random histories: a replay and the Update Process, which applies them one by one, make the same databases, and refuse
the same cases.

Each history is drawn from its printed seed alone, so a seed is the same history in every process: schema changes
between row changes, unique values that swap, tables without keys, values and transactions that are large, one region
or two.
"""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from random import Random

import apsw
import pytest

from replicate.admin.regions import add_region
from replicate.compare.compare import compare
from replicate.errors import ConflictError
from replicate.instance.instance import Instance
from replicate.transfer.seed.direct import seed
from tests.harness.differential import read, same
from tests.harness.histories import LARGE, History, perform
from tests.harness.instances import with_settings
from tests.harness.pair import Pair
from update_process.replay.backlog import Journals
from update_process.replay.command import apply_session, replay
from update_process.replay.run import Replay

pytestmark = pytest.mark.slow

CONFIGURATION = '[journal]\ndurability = "off"\npool_bytes = 1048576\n'
SHARDS = 4
HISTORIES = 10
"""In each shard."""


@contextmanager
def three(*scripts: str) -> Iterator[tuple[Pair, Instance]]:
    """A primary, its secondary west for the Update Process, and its secondary north for the replay. A region for each
    script: main, and two."""
    directory = Path(tempfile.mkdtemp(prefix="replicate-replay-", dir="/dev/shm"))
    before = os.environ.get("REPLICATE_SHM_DIR")
    try:
        pair = Pair.create(directory, scripts[0])
        for script in scripts[1:]:
            other = apsw.Connection(str(directory / "two.db"))
            other.execute(script)
            other.close()
            add_region(pair.primary, directory / "two.db", name="two")
        network = pair.primary.content.network
        north = Instance.create(directory / "north", role="secondary", name="north", network=network)
        pair.primary.register_peer("north", "127.0.0.1", 7431)
        every = (pair.primary, pair.secondary, north)
        pair.primary, pair.secondary, north = (with_settings(one, CONFIGURATION) for one in every)
        pair.seed()
        seed(pair.primary, north)
        north.reload()
        yield pair, north
    finally:
        shutil.rmtree(directory)
        if before is None:
            os.environ.pop("REPLICATE_SHM_DIR", None)
        else:
            os.environ["REPLICATE_SHM_DIR"] = before


def replay_twice(north: Instance, journals: Journals, history: History) -> None:
    last = journals.last_seqno
    with apply_session(north) as session:
        for bound in (max(session.position.last_seqno, last - history.stop), last):
            made = Replay(session, journals, north.conflict_directory, verify=True, keys_max=history.keys_max)
            assert made.run(bound).seqno == bound


@pytest.mark.parametrize("shard", range(SHARDS))
def test_random_histories_replayed_are_equal(shard: int) -> None:
    for number in range(HISTORIES):
        text = f"replay-{shard}-{number}"
        print(f"seed {text}")
        history = History.draw(text)
        with three(*history.scripts) as (pair, north):
            perform(pair, history)
            replay_twice(north, Journals([pair.primary.path], pair.primary.content.network), history)
            pair.catch_up()
            for region in pair.primary.regions:
                primary = read(region.path)
                same(primary, read(pair.secondary.region(region.name).path), "primary", "west")
                same(primary, read(north.region(region.name).path), "primary", "north")
            assert compare(pair.primary, north, timeout_s=5).equal


def test_the_seeds_are_histories_of_every_kind() -> None:
    drawn = [History.draw(f"replay-{shard}-{number}") for shard in range(SHARDS) for number in range(HISTORIES)]
    assert {len(one.scripts) for one in drawn} == {1, 2}
    texts = [str(item[0]).upper() for one in drawn for _, step in one.steps for item in step.items]
    for word in ("ALTER TABLE", "CREATE TABLE", "CASE", "ROWID = ROWID + 10", "SQLITE_SEQUENCE"):
        assert sum(word in text for text in texts) >= 5, word
    assert sum(item[1] is LARGE for one in drawn for _, step in one.steps for item in step.items) >= 10
    scripts = [script.upper() for one in drawn for script in one.scripts]
    for word in ("UNIQUE", "WITHOUT ROWID", "AUTOINCREMENT", "CREATE TRIGGER"):
        assert sum(word in script for script in scripts) >= 5, word
    assert History.draw("replay-0-0") == drawn[0]


PLAIN = """
CREATE TABLE a (id INTEGER PRIMARY KEY, v, w UNIQUE);
CREATE TABLE b (v, w);
CREATE TABLE c (x TEXT, y, v, PRIMARY KEY (x, y)) WITHOUT ROWID;
"""


def change(dice: Random) -> str:
    number, value, other = dice.randint(1, 6), dice.randint(0, 3), dice.randint(1, 6)
    return dice.choice(
        (
            f"INSERT OR IGNORE INTO a VALUES ({number}, {value}, {other})",
            f"UPDATE a SET v = {value} WHERE id = {number}",
            f"UPDATE OR REPLACE a SET w = {other} WHERE id = {number}",
            f"DELETE FROM a WHERE id = {number}",
            f"INSERT OR IGNORE INTO b (rowid, v) VALUES ({number}, {value})",
            f"UPDATE b SET v = {value} WHERE rowid = {number}",
            f"DELETE FROM b WHERE rowid = {number}",
            f"INSERT OR IGNORE INTO c VALUES ('k', {number}, {value})",
            f"UPDATE c SET v = {value}.0 WHERE y = {number}",
            f"DELETE FROM c WHERE y = {number}",
        )
    )


def refused(act: Callable[[], object]) -> bool:
    try:
        act()
    except ConflictError:
        return True
    return False


@pytest.mark.parametrize("shard", range(SHARDS))
def test_the_same_histories_are_refused(shard: int) -> None:
    """Somebody else has changed one row of both secondaries."""
    count = 0
    for number in range(HISTORIES):
        text = f"refused-{shard}-{number}"
        print(f"seed {text}")
        dice = Random(text)
        with three(PLAIN) as (pair, north):
            connection = pair.connect()
            for _ in range(dice.randint(0, 15)):
                connection.execute(change(dice))
                connection.commit()
            replay(north, [pair.primary.path], last_seqno=pair.last_seqno())
            pair.catch_up()
            harm = change(dice)
            for path in (pair.secondary.region("main").path, north.region("main").path):
                foreign = apsw.Connection(str(path))
                foreign.config(apsw.SQLITE_DBCONFIG_ENABLE_TRIGGER, 0)
                foreign.execute(harm)
                foreign.close()
            for _ in range(dice.randint(1, 25)):
                connection.execute(change(dice))
                connection.commit()
            connection.close()
            stood, last = pair.last_seqno(north), pair.last_seqno()
            one_by_one = refused(pair.catch_up)
            count += one_by_one
            assert refused(lambda: replay(north, [pair.primary.path], last_seqno=last, verify=True)) == one_by_one  # noqa: B023
            if one_by_one:
                assert pair.last_seqno(north) == stood
            else:
                west, there = pair.secondary.region("main").path, north.region("main").path
                same(read(west), read(there), "west", "north")
    assert 0 < count < HISTORIES
