"""What a supplier's transaction tells of what was applied there."""

from __future__ import annotations

from pathlib import Path

import pytest

from replicate.door.recovery.opening import make_chain
from replicate.door.snapshot import door_of
from replicate.journal.reader import ChainReader
from replicate.journal.record import FrameBatch, decode
from replicate.journal.walk import walk
from replicate.model.transaction import Seen
from tests.harness.instances import lose_pool
from tests.harness.suppliers import Suppliers, run, shared


@pytest.fixture
def two(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Suppliers:
    monkeypatch.setenv("REPLICATE_SHM_DIR", "")
    return shared(tmp_path)


def last_told(made: Suppliers, name: str) -> dict[int, int]:
    """What the last transaction of its journal tells, by origin; empty: nothing."""
    with door_of(made.by[name]) as door:
        door.sync_to_end()
    last = made.last_seqno(name)
    found = ChainReader(make_chain(made.by[name]), last).read(1 << 20, last)
    assert isinstance(found, FrameBatch)
    offset, head = list(walk(found.data))[-1]
    content = decode(found.data[offset : offset + head.frame_bytes]).content
    return {origin: seqno for one in content if isinstance(one, Seen) for origin, seqno in one.told.items()}


def key_of(made: Suppliers, name: str) -> int:
    """Of the origin that it writes now."""
    with door_of(made.by[name]) as door:
        return next(one.origin.key for one in reversed(door.catalogue_now().histories) if one.name == name)


def test_the_first_one_after_what_has_come_tells_it_and_the_next_one_nothing(two: Suppliers) -> None:
    run(two, "a", "INSERT INTO ta VALUES (1, 'x', 0)")
    two.carry("a", "b")
    seen = two.vector("b")
    run(two, "b", "INSERT INTO ta VALUES (2, 'x', 0)")
    told = last_told(two, "b")
    of_a = key_of(two, "a")
    assert told[of_a] == seen[of_a][0]
    run(two, "b", "INSERT INTO ta VALUES (3, 'x', 0)")
    assert last_told(two, "b") == {}


def test_a_new_pool_has_all_told_once_more(two: Suppliers) -> None:
    run(two, "b", "INSERT INTO ta VALUES (2, 'x', 0)")
    run(two, "b", "INSERT INTO ta VALUES (3, 'x', 0)")
    assert last_told(two, "b") == {}
    lose_pool(two.by["b"])
    run(two, "b", "INSERT INTO ta VALUES (4, 'x', 0)")
    assert last_told(two, "b")[key_of(two, "a")] > 0


def test_a_transaction_that_fails_has_told_nothing(two: Suppliers) -> None:
    run(two, "a", "INSERT INTO ta VALUES (1, 'x', 0)")
    two.carry("a", "b")
    connection = two.connect("b")
    connection.execute("INSERT INTO ta VALUES (2, 'x', 0)")
    connection.rollback()
    connection.close()
    run(two, "b", "INSERT INTO ta VALUES (2, 'x', 0)")
    assert last_told(two, "b")[key_of(two, "a")] > 0


def test_where_nothing_is_shared_no_byte_of_it_is_written(tmp_path: Path) -> None:
    made = Suppliers.create(tmp_path)
    made.write("a", 2)
    made.carry("a", "b")
    made.write("b", 1)
    assert last_told(made, "b") == {}
