"""A power loss of a supplier with two regions, which leaves a hole: what one region holds beyond it is taken back,
and nothing that no before-image takes back may lie beyond one."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import closing
from pathlib import Path

import pytest

from replicate import connect
from replicate.admin import partitions
from replicate.door.secondary import ApplySession
from replicate.door.snapshot import door_of
from replicate.pool import control as word
from replicate.region.sqlite.bookkeeping import read_writers
from replicate.region.sqlite.open import open_region
from replicate.region.sqlite.row_stamps import read_absorbed
from replicate.roles.partition_writers import give, share
from replicate.roles.retiring import writers_of
from tests.harness.instances import power_loss, restore_region, save_region
from tests.harness.pair import SMALL
from tests.harness.suppliers import Suppliers, run
from update_process.merging import Merging
from update_process.routes import Routes

APART = ("CREATE TABLE item (id TEXT PRIMARY KEY, n INTEGER) WITHOUT ROWID",)


@pytest.fixture
def two(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Suppliers:
    """Both write ta in main and item in stock; their journals are synced where something has to be."""
    monkeypatch.setenv("REPLICATE_SHM_DIR", "")
    made = Suppliers.create(tmp_path, settings=f'{SMALL}durability = "off"\n', apart=APART)
    share(made.by["a"], "DEFAULT", "b", keys_chosen=True, timeout_s=30)
    made.level()
    run(made, "a", "INSERT INTO ta VALUES (1, 'old', 0)", "INSERT INTO item VALUES ('k', 0)")
    made.level()
    return made


def write(made: Suppliers, region: str, statement: str) -> None:
    """A transaction of a in one region alone."""
    with closing(connect(made.by["a"].path, region)) as connection:
        connection.execute(statement)
        connection.commit()


def lose_main(made: Suppliers, then: Callable[[ApplySession], object]) -> bool:
    """A transaction in main, then what `then` does with an apply session that is open; at the power loss main has
    neither on the disk, stock all, and the journal no more than was synced. Whether the journal has lost anything."""
    site, aside = made.by["a"], made.directory / "aside"
    with made.session("a") as session:
        save_region(site.region("main").path, aside)
        with door_of(site) as door:
            end, last_seqno = int(door.words[word.END_OFFSET]), int(door.words[word.LAST_SEQNO])
        write(made, "main", "UPDATE ta SET v = 'lost' WHERE id = 1")
        then(session)
    with door_of(site) as door:
        is_lost = door.words[word.LAST_DURABLE_SEQNO] <= last_seqno
    restore_region(site.region("main").path, aside)
    power_loss(site, end if is_lost else None)
    return is_lost


def assert_well(made: Suppliers) -> None:
    """Both write on, and come to the same; nothing is said of what the journal does not have."""
    site = made.by["a"]
    with door_of(site) as door:
        last_seqno = int(door.words[word.LAST_SEQNO])
    for entry in site.regions:
        with closing(open_region(entry.path, readonly=True, region=entry.uuid)) as connection:
            assert read_absorbed(connection) <= last_seqno, entry.name
    site.reload()
    for number, name in enumerate(("b", "a"), 1):
        run(made, name, f"UPDATE ta SET v = 'of {name}' WHERE id = 1", f"UPDATE item SET n = {number} WHERE id = 'k'")
    made.level()
    made.assert_converged()
    assert ("k", 2) in made.rows("b")["item"]


def test_what_lies_beyond_a_hole_is_taken_back(two: Suppliers) -> None:
    assert lose_main(two, lambda _: write(two, "stock", "UPDATE item SET n = 7 WHERE id = 'k'"))
    with door_of(two.by["a"]):
        pass
    assert (two.rows("a")["ta"], two.rows("a")["item"]) == ([(1, "old", 0)], [("k", 0)])
    assert_well(two)


def test_no_stamps_are_made_of_what_may_lie_beyond_a_hole(two: Suppliers) -> None:
    def stamp(session: ApplySession) -> None:
        write(two, "stock", "INSERT INTO item VALUES ('new', 1)")
        session.begin()
        merging = Merging(session, Routes(session))
        merging.begin()
        merging.absorb(session.position)
        merging.finish(session.position.last_seqno, session.position)
        session.keep()

    assert not lose_main(two, stamp)
    assert_well(two)


def test_who_writes_what_is_never_said_beyond_a_hole(two: Suppliers) -> None:
    def say(_: ApplySession) -> None:
        partitions.create(two.by["a"], "more")
        give(two.by["a"], "more", "b", timeout_s=30)

    assert not lose_main(two, say)
    assert_well(two)
    with closing(open_region(two.by["a"].region("stock").path, readonly=True)) as stock:
        assert read_writers(stock) == writers_of(two.by["a"])
