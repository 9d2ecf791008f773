"""The effect of every defect of this project that has made a secondary differ, planted on one: a round finds each.

Guarantees: nothing is found before, exactly the named tables after it, and there as many rows more or less as were
planted. Each is looked for on a secondary that stands at the source's transaction, and on one that has gone on since,
with changes in the same ranges. Leaves to others: what made it so; each defect has its own test.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import NamedTuple

import pytest

from replicate.admin.regions import add_region
from replicate.compare.patrol_found import Outcome
from replicate.compare.patrol_rounds import Place
from replicate.compare.range_check import as_of, take_range, verify
from replicate.wire.message import Check
from tests.harness.pair import Pair
from tests.harness.planted import PLANTS, ROWS, SCHEMA

LATER = """
INSERT INTO account (owner) VALUES ('later'); UPDATE account SET amount = amount + 1 WHERE id IN (2, 6, 11);
UPDATE audited SET times = times + 1 WHERE rowid IN (2, 6); DELETE FROM audited WHERE rowid = 9;
UPDATE value SET b = 1 WHERE rowid IN (2, 4, 8, 12, 16, 20, 30); INSERT INTO value (a) VALUES ('later');
UPDATE word SET what = 'later' WHERE part = 0; INSERT INTO word VALUES ('later', 1, 1);
UPDATE coded SET v = v + 1 WHERE id IN (2, 6, 9); INSERT INTO parent VALUES (99); INSERT INTO child VALUES (99, 99);
UPDATE altered SET b = 'later' WHERE id IN (2, 6, 9); UPDATE made SET b = 'later' WHERE id IN (2, 6, 9);
UPDATE exact SET v = 'later' WHERE id IN ('key 2', 'key 6', 'key 9'); INSERT INTO counted VALUES (NULL);
UPDATE file SET data = x'01' WHERE id IN (2, 6, 9); UPDATE raw SET v = 'later' WHERE id IN (3, 9);
INSERT INTO note VALUES ('later body'); INSERT INTO place VALUES (99, 9, 9.5);
"""


class Site(NamedTuple):
    """A round of the source, and both states of the secondary as the files of its regions are: at the round's
    transaction, and gone on since."""

    pair: Pair
    checks: tuple[Check, ...]
    states: dict[str, dict[Path, bytes]]


def round_of(pair: Pair) -> tuple[Check, ...]:
    """As the source tells it. Nobody writes meanwhile."""
    place: Place | None = Place(7)
    checks: list[Check] = []
    last_seqno = pair.last_seqno()
    while place is not None:
        taken = take_range(pair.primary, place)
        assert taken.check is not None
        checks.append(as_of(taken.check, last_seqno, taken.check.seqno))
        place = taken.place
    return tuple(checks)


def files_of(pair: Pair) -> dict[Path, bytes]:
    found: dict[Path, bytes] = {}
    for entry in pair.secondary.regions:
        with closing(sqlite3.connect(entry.path)) as connection:
            connection.execute("PRAGMA wal_checkpoint(TRUNCATE)")
        found[entry.path] = entry.path.read_bytes()
    return found


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    directory = tmp_path_factory.mktemp("planted")
    with pytest.MonkeyPatch.context() as patched:
        patched.setenv("REPLICATE_SHM_DIR", str(directory / "shm"))
        patched.setattr("replicate.compare.range_check.ROWS_MAX", 4)
        pair = Pair.create(directory, SCHEMA + ROWS)
        with closing(sqlite3.connect(directory / "side.db")) as other:
            other.execute("CREATE TABLE account (id INTEGER PRIMARY KEY, owner)")
        add_region(pair.primary, directory / "side.db", name="side")
        pair.primary.reload()
        pair.seed()
        checks = round_of(pair)
        states = {"level": files_of(pair)}
        with closing(pair.connect()) as writer:
            writer.executescript(LATER)
            writer.commit()
        pair.catch_up()
        states["gone on"] = files_of(pair)
        yield Site(pair, checks, states)


def put_back(files: dict[Path, bytes]) -> None:
    """The regions as they were. Nobody has them open."""
    for path, data in files.items():
        for suffix in ("-wal", "-shm"):
            path.with_name(path.name + suffix).unlink(missing_ok=True)
        path.write_bytes(data)


def found_in(site: Site) -> dict[str, int]:
    """The tables of main in which a round finds ranges that differ, and how many rows more these have here."""
    found: dict[str, int] = {}
    for check in site.checks:
        verdict = verify(site.pair.secondary, check, 0)
        assert verdict.outcome in (Outcome.EQUAL, Outcome.DIFFERENT), (check, verdict)
        if verdict.outcome is Outcome.DIFFERENT:
            assert check.region == "main"
            found[check.table] = found.get(check.table, 0) + verdict.rows - check.rows
    return found


@pytest.mark.parametrize("state", ["level", "gone on"])
def test_nothing_is_found_before(site: Site, state: str) -> None:
    put_back(site.states[state])
    assert found_in(site) == {}
    assert len(site.checks) > 50


@pytest.mark.turns(4)
@pytest.mark.parametrize("state", ["level", "gone on"])
@pytest.mark.parametrize("name", PLANTS)
def test_it_is_found_within_one_round(site: Site, name: str, state: str) -> None:
    put_back(site.states[state])
    plant = PLANTS[name]
    plant.put(site.pair.secondary.region("main").path)
    found = found_in(site)
    assert found.keys() == {plant.table, *plant.others}
    assert found[plant.table] == plant.rows
