"""What suppliers that share have told that they have, and what of a journal stays until all have."""

from __future__ import annotations

from pathlib import Path

import pytest

from replicate.door.known_to_all import known_to_all
from replicate.door.pruning import prune_journal
from replicate.door.recovery.opening import make_chain
from replicate.door.snapshot import door_of
from replicate.instance.consumers import Consumer, write_consumer
from replicate.roles.partition_writers import share
from replicate.roles.retiring import retire
from tests.harness.suppliers import Suppliers
from update_process import unstamped

SEGMENTS = "[journal]\npool_bytes = 1048576\nsegment_bytes = 1048576\ndurability = 'off'\n"
LINE = (("a", "b"), ("b", "c"), ("c", "b"), ("b", "a"))
"""a and c never speak to each other."""


@pytest.fixture(params=["looked at", "stamped"])
def line(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Suppliers:
    """`stamped`: no row is held without stamps, so that the journal is kept for nothing but what others may lack."""
    monkeypatch.setenv("REPLICATE_SHM_DIR", "")
    if request.param == "stamped":
        monkeypatch.setattr(unstamped, "ROWS_MAX", 0)
    made = Suppliers.create(tmp_path, 3, settings=SEGMENTS)
    for name in ("b", "c"):
        share(made.by["a"], "DEFAULT", name, keys_chosen=True, timeout_s=30)
    made.level()
    return made


def known(made: Suppliers, name: str) -> int | None:
    with door_of(made.by[name]) as door:
        return known_to_all(door, make_chain(made.by[name]))


def pruned(made: Suppliers, name: str, *, dry_run: bool = False) -> list[int]:
    """All peers have acknowledged all that this one has, and its Update Process has looked at it."""
    made.tend(name)
    instance = made.by[name]
    instance.reload()
    with door_of(instance) as door:
        door.sync_to_end()
        for peer in instance.content.peers:
            write_consumer(instance.consumers_directory, Consumer(peer.name, made.last_seqno(name)))
        return prune_journal(door, dry_run=dry_run)


def write_segments(made: Suppliers, name: str) -> None:
    """Several, in the table that all write; keys of its own."""
    connection = made.connect(name)
    for _ in range(10):
        connection.execute("INSERT INTO ta (v) VALUES (zeroblob(400000))")
        connection.commit()
    connection.close()


def tell(made: Suppliers, name: str) -> None:
    """It writes, and so tells what it has."""
    made.write(name, 1, table="ta" if name != "c" else "tc")


def test_what_one_may_lack_that_is_no_peer_stays_until_it_has_told(line: Suppliers) -> None:
    tell(line, "c")
    line.level(LINE)
    write_segments(line, "a")
    end = line.last_seqno("a")
    line.carry("a", "b")
    tell(line, "b")
    line.carry("b", "a")
    assert known(line, "a") <= end - 10  # c has nothing of it
    assert pruned(line, "a", dry_run=True) == pruned(line, "a") == []
    line.carry("b", "c")
    tell(line, "c")
    assert pruned(line, "a") == []  # it has it, and a does not know
    line.carry("c", "b")
    line.carry("b", "a")
    assert known(line, "a") >= end
    assert len(pruned(line, "a")) >= 2


@pytest.mark.parametrize("line", ["stamped"], indirect=True)
def test_a_segment_stays_for_its_last_transaction_and_goes_with_it(line: Suppliers) -> None:
    """c has one after the other, of two in each segment."""
    line.level(LINE)
    write_segments(line, "a")
    line.carry("a", "b")
    tell(line, "b")
    line.carry("b", "a")
    gone = 0
    for _ in range(4):
        line.carry("b", "c", most=1)
        tell(line, "c")
        line.carry("c", "b")
        line.carry("b", "a")
        has, begins = known(line, "a"), make_chain(line.by["a"]).first_seqnos()
        assert has is not None
        gone += len(pruned(line, "a"))
        kept = max(begin for begin in begins if begin <= has + 1)
        assert make_chain(line.by["a"]).first_seqnos()[0] == kept
    assert gone > 1


def test_what_one_began_with_it_has_though_it_has_told_nothing(line: Suppliers) -> None:
    number = known(line, "a")
    assert number is not None
    assert number > 5, "the tables, the partitions, and that they are suppliers"


def test_one_that_is_retired_is_not_waited_for(line: Suppliers) -> None:
    line.level(LINE)
    write_segments(line, "a")
    line.carry("a", "b")
    tell(line, "b")
    line.carry("b", "a")
    assert pruned(line, "a") == []
    retire(line.by["b"], "c", timeout_s=0.1)
    line.level((("a", "b"), ("b", "a")))
    tell(line, "b")
    line.level((("a", "b"), ("b", "a")))
    assert len(pruned(line, "a")) >= 2


def test_where_nobody_shares_nobody_is_waited_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("REPLICATE_SHM_DIR", "")
    made = Suppliers.create(tmp_path, 2, settings=SEGMENTS)
    write_segments(made, "a")
    assert known(made, "a") is None
    assert len(pruned(made, "a")) >= 2
