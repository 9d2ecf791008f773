"""Random histories: a replay and the Update Process, which applies them one by one, make the same database, and refuse
the same cases.
"""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from random import Random

import apsw
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from replicate import connect
from replicate.compare.compare import compare
from replicate.errors import ConflictError
from replicate.instance.instance import Instance
from replicate.seed.direct import seed
from tests.harness.differential import read, same
from tests.harness.pair import Pair, work_all
from tests.harness.sql_calls import Calls
from tests.harness.sql_programs import Program, Step, schema
from update_process.replay.command import apply_session, replay
from update_process.replay.journals import Journals
from update_process.replay.run import Replay

CONFIGURATION = '[journal]\ndurability = "off"\npool_bytes = 1048576\n'
NUMBERS = st.integers(0, 2**32)


@contextmanager
def three(script: str) -> Iterator[tuple[Pair, Instance]]:
    """A primary, its secondary west for the Update Process, and its secondary north for the replay."""
    directory = Path(tempfile.mkdtemp(prefix="replicate-replay-", dir="/dev/shm"))
    before = os.environ.get("REPLICATE_SHM_DIR")
    try:
        pair = Pair.create(directory, script)
        network = pair.primary.content.network
        north = Instance.create(directory / "north", role="secondary", name="north", network=network)
        pair.primary.register_peer("north", "127.0.0.1", 7431)
        for instance in (pair.primary, pair.secondary, north):
            (instance.path / "replicate.toml").write_text(CONFIGURATION)
            instance.reload()
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


def apply_live(pair: Pair) -> None:
    with pair.receive_pool() as pool, pair.applier(pool) as applier:
        while pair.deliver(pool) < pair.last_seqno():
            work_all(applier)
        work_all(applier)
        assert applier.applied_seqno == pair.last_seqno()


@pytest.mark.slow
@settings(max_examples=40, deadline=None, suppress_health_check=list(HealthCheck))
@given(
    tables=st.lists(NUMBERS, min_size=1, max_size=3),
    numbers=st.lists(NUMBERS, min_size=1, max_size=80),
    keys_max=st.sampled_from((1, 5, 1_000_000)),
    stop=st.integers(0, 80),
)
def test_random_programs_replayed_are_equal(tables: list[int], numbers: list[int], keys_max: int, stop: int) -> None:
    made, statements = schema(tables, wild=True)
    program = Program(made, connections=1, wild=True)
    with three(";\n".join(statements)) as (pair, north):
        path = pair.primary.path
        calls = Calls(lambda level: connect(path, timeout=0, isolation_level=level), ())
        try:
            for number in numbers:
                calls.perform(program.step(number))
            calls.perform(Step(0, "commit"))
        finally:
            calls.close()
        journals = Journals([pair.primary.path], pair.primary.content.network)
        last = journals.last_seqno
        with apply_session(north) as session:
            first = Replay(session, journals, north.conflict_directory, verify=True, keys_max=keys_max)
            first.run(max(session.position.last_seqno, last - stop))
            again = Replay(session, journals, north.conflict_directory, verify=True, keys_max=keys_max)
            assert again.run(last).seqno == last
        apply_live(pair)
        primary = read(pair.primary.region("main").path)
        same(primary, read(pair.secondary.region("main").path), "primary", "west")
        same(primary, read(north.region("main").path), "primary", "north")
        assert compare(pair.primary, north, timeout_s=5).equal


PLAIN = """
CREATE TABLE a (id INTEGER PRIMARY KEY, v, w);
CREATE TABLE b (v, w);
CREATE TABLE c (x TEXT, y, v, PRIMARY KEY (x, y)) WITHOUT ROWID;
"""


def change(dice: Random) -> str:
    number, value = dice.randint(1, 6), dice.randint(0, 3)
    return dice.choice(
        (
            f"INSERT OR IGNORE INTO a VALUES ({number}, {value}, 0)",
            f"UPDATE a SET v = {value} WHERE id = {number}",
            f"DELETE FROM a WHERE id = {number}",
            f"INSERT OR IGNORE INTO b (rowid, v) VALUES ({number}, {value})",
            f"UPDATE b SET v = {value} WHERE rowid = {number}",
            f"DELETE FROM b WHERE rowid = {number}",
            f"INSERT OR IGNORE INTO c VALUES ('k', {number}, {value})",
            f"UPDATE c SET v = {value}.0 WHERE y = {number}",
            f"DELETE FROM c WHERE y = {number}",
        )
    )


@pytest.mark.slow
@settings(max_examples=40, deadline=None, suppress_health_check=list(HealthCheck))
@given(before=st.lists(NUMBERS, max_size=15), after=st.lists(NUMBERS, min_size=1, max_size=25), harm=NUMBERS)
def test_the_same_histories_are_refused(before: list[int], after: list[int], harm: int) -> None:
    with three(PLAIN) as (pair, north):
        connection = pair.connect()
        for number in before:
            connection.execute(change(Random(number)))
            connection.commit()
        replay(north, [pair.primary.path], last_seqno=pair.last_seqno())
        apply_live(pair)
        for path in (pair.secondary.region("main").path, north.region("main").path):
            foreign = apsw.Connection(str(path))
            foreign.config(apsw.SQLITE_DBCONFIG_ENABLE_TRIGGER, 0)
            foreign.execute(change(Random(harm)))
            foreign.close()
        for number in after:
            connection.execute(change(Random(number)))
            connection.commit()
        connection.close()
        try:
            apply_live(pair)
            refused = False
        except ConflictError:
            refused = True
        stood = pair.last_seqno(north)
        try:
            replay(north, [pair.primary.path], last_seqno=pair.last_seqno(), verify=True)
            assert not refused
            west, there = pair.secondary.region("main").path, north.region("main").path
            same(read(west), read(there), "west", "north")
        except ConflictError:
            assert refused
            assert pair.last_seqno(north) == stood
