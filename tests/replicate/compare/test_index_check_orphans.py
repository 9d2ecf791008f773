"""On a supplier a round looks for rows whose parent another one has deleted at the same time."""

from __future__ import annotations

from contextlib import closing
from pathlib import Path

import apsw
import pytest

from replicate.compare import index_check
from replicate.compare.index_check import take_slice
from replicate.compare.index_found import IndexesFound, Looked, OrphanRows, note_indexes, with_part
from replicate.compare.patrol_rounds import Place
from replicate.instance.instance import Instance
from replicate.roles.merge_losses import orphans
from replicate.status.collect import collect
from tests.harness.pair import Pair
from tests.harness.suppliers import Suppliers, run, shared

SCHEMA = (
    "CREATE TABLE parent (name TEXT PRIMARY KEY)",
    "CREATE TABLE child (name TEXT PRIMARY KEY, of_parent REFERENCES parent)",
)


@pytest.fixture
def two(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Suppliers:
    monkeypatch.setenv("REPLICATE_SHM_DIR", "")
    monkeypatch.setattr(index_check, "ROWS_MAX", 2)
    return shared(tmp_path, schema=SCHEMA)


def parts_of(instance: Instance) -> list[Looked]:
    """A round."""
    found: list[Looked] = []
    place: Place | None = Place(7)
    while place is not None:
        part = take_slice(instance, place)
        assert part.looked.left_out == {}
        found.append(part.looked)
        place = part.place
    return found


def found_by(instance: Instance) -> tuple[OrphanRows, ...]:
    """What a round finds, kept as the patrol keeps it."""
    known, parts = IndexesFound(), parts_of(instance)
    for at, part in enumerate(parts, 1):
        known = with_part(known, 7, part, is_last=at == len(parts), wall_ns=8)
    note_indexes(instance.path, known)
    return known.orphans


def told_by(instance: Instance) -> list[tuple[str, str]]:
    return [
        (one.subject, one.text.partition(";")[0]) for one in collect(instance).findings if one.code == "ORPHAN_ROWS"
    ]


def test_rows_that_lost_their_parent_to_another_site_are_a_finding_until_they_are_mended(two: Suppliers) -> None:
    run(two, "a", *(f"INSERT INTO parent VALUES ('p{n}')" for n in range(5)))
    run(two, "a", *(f"INSERT INTO child VALUES ('c{n}', 'p{n}')" for n in range(5)))
    two.level()
    assert all(found_by(two.by[name]) == () for name in two.names)
    run(two, "a", *(f"DELETE FROM child WHERE name = 'c{n}'" for n in (1, 3)), "DELETE FROM parent WHERE name > 'p0'")
    run(two, "b", *(f"INSERT INTO child VALUES ('d{n}', 'p{n}')" for n in range(5)))
    two.level()
    two.assert_converged()
    for name in two.names:
        site = two.by[name]
        wanted = len(orphans(site))
        (found,) = found_by(site)
        assert (found.name, found.count) == (("main", "child", "parent"), wanted)
        ((subject, text),) = told_by(site)
        assert subject == "main.child"
        assert text == (
            f"row {found.key} of main.child (and {wanted - 1} more, at least) names a row of parent that is not there"
        )
    run(two, "b", *(f"INSERT INTO parent VALUES ('p{n}')" for n in range(1, 5)))
    two.level()
    for name in two.names:
        assert orphans(two.by[name]) == []
        assert found_by(two.by[name]) == ()
        assert told_by(two.by[name]) == []


def test_of_a_primary_they_are_its_own_business(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its application may have switched foreign keys off; nothing that we did has made them."""
    monkeypatch.setenv("REPLICATE_SHM_DIR", str(tmp_path / "shm"))
    pair = Pair.create(tmp_path, ";".join(SCHEMA))
    with closing(pair.connect()) as connection:
        connection.execute("INSERT INTO child VALUES ('c', 'nobody')")
        connection.commit()
    with closing(apsw.Connection(str(pair.primary.regions[0].path))) as plain:
        assert len(plain.execute("PRAGMA foreign_key_check").fetchall()) == 1
    assert found_by(pair.primary) == ()
    assert {part.at for part in parts_of(pair.primary)} == {"main.child", "main.parent"}
