"""Faults of what other people do to the data: written past us, damaged on the wire, a fork in a transaction.

Guarantees: each puts back what it has changed, by the way that the product names. Leaves to others: how it is judged
afterwards.
"""

from __future__ import annotations

import os
import signal
import time
from pathlib import Path
from typing import Final

import apsw

import replicate
from replicate.compare.compare import compare
from replicate.instance.instance import Instance
from tests.faults.injections import Place, injection
from tests.harness.waiting import wait_until

CONFLICT: Final = 65


def _past_us(path: Path, statement: str) -> None:
    """As somebody who has switched the guards off."""
    connection = apsw.Connection(str(path))
    connection.set_busy_timeout(10_000)
    connection.config(apsw.SQLITE_DBCONFIG_ENABLE_TRIGGER, 0)
    connection.execute(statement)
    assert connection.changes() == 1, statement
    connection.close()


@injection(85)
def a_row_of_the_secondary_that_is_not_what_it_was(place: Place) -> None:
    """The next change of it names row and number, and stops; nothing is skipped, and a seed leads on."""
    town = place.town
    client = town.clients
    region = town.secondary / "regions" / "main.db"
    with place.recovered("before the conflict"):
        pass  # its row of `total` has arrived
    town.do("spoil", lambda: _past_us(region, f"UPDATE total SET n = n + 1 WHERE client = {client}"))
    child = town.children["update"]
    assert child.wait(120), "it goes on with a row that is not the one before"
    assert child.status == CONFLICT, f"exit code {child.status}"
    held = place.held()
    files = list((town.secondary / "conflict").iterdir())
    assert any("total" in file.read_text() for file in files if file.suffix == ".json"), files
    town.reap()
    town.strange.clear()
    again = town.start("update")  # starting it again skips nothing
    assert again.wait(120), "it goes on with a row that is not the one before"
    assert again.status == CONFLICT, f"exit code {again.status}"
    assert place.held() == held, "it went on past the conflict"
    town.reap()
    town.strange.clear()
    place.seed_again()


@injection(85)
def columns_of_the_secondary_in_another_order(place: Place) -> None:
    """Somebody has exchanged two columns of a table: nothing is applied by the wrong names, and a seed leads on."""
    town = place.town
    region = town.secondary / "regions" / "main.db"
    with place.recovered("before the exchange"):
        pass
    town.do("exchange", lambda: _exchange_columns(region))
    ended: list[int] = []
    for again in (False, True):  # starting it again skips nothing
        child = town.start("update") if again else town.children["update"]
        assert child.wait(120), "it goes on with columns in another order"
        assert child.status == CONFLICT, f"exit code {child.status}"
        assert "SCHEMA_CHANGED" in town.facts("update")["error"]
        ended.append(place.held())
        town.reap()
        town.strange.clear()
    assert town.last_told_seqno() > ended[0] == ended[1], "it went on past the exchange"
    place.seed_again()


def _exchange_columns(path: Path) -> None:
    """`n` and `last` of the table `total` in each other's place, as SQLite's own tools for it can write it."""
    connection = apsw.Connection(str(path))
    connection.set_busy_timeout(10_000)
    connection.config(apsw.SQLITE_DBCONFIG_DEFENSIVE, 0)
    with connection:
        connection.execute("PRAGMA writable_schema = 1")
        connection.execute(
            "UPDATE sqlite_schema SET sql = replace(replace(replace(sql, 'n INTEGER', '? INTEGER'),"
            " 'last INTEGER', 'n INTEGER'), '? INTEGER', 'last INTEGER') WHERE type = 'table' AND name = 'total'"
        )
        assert connection.changes() == 1
        ((version,),) = connection.execute("PRAGMA schema_version")
        connection.execute(f"PRAGMA schema_version = {version + 1}")
    connection.close()
    connection = apsw.Connection(str(path))
    connection.set_busy_timeout(10_000)
    names = [row[1] for row in connection.execute("PRAGMA table_info(total)")]
    connection.close()
    assert names == ["client", "last", "n"], names


@injection(88, short=True)
def somebody_else_writes_on_the_secondary(place: Place) -> None:
    """Refused by name; who has gone past that is found by the digest."""
    town = place.town
    region = town.secondary / "regions" / "side.db"

    def refused() -> None:
        connection = apsw.Connection(str(region))
        for statement in (
            "INSERT INTO ballast(content) VALUES ('x')", "DELETE FROM twin", "UPDATE twin SET value = 0",
        ):  # fmt: skip
            said = ""
            try:
                connection.execute(statement)
            except apsw.Error as error:
                said = str(error)
            assert "replicate_connect_is_required" in said, f"{statement}: {said or 'not refused'}"
        connection.close()

    def found() -> None:
        differs = compare(Instance.open(town.primary), Instance.open(town.secondary), timeout_s=120)
        assert not differs.equal, "the digests are equal although a row is not"

    town.do("refused", refused)
    with place.recovered("written past us"):
        pass
    town.do("write", lambda: _past_us(region, "INSERT INTO twin VALUES (-1, 0, 0, 0)"))
    town.do("found", found)
    town.do("take back", lambda: _past_us(region, "DELETE FROM twin WHERE id = -1"))


@injection(21)
def a_fork_in_the_middle_of_a_transaction(place: Place) -> None:
    """The child holds no lock of its parent's, which is killed: others commit at once, and nothing of it is there."""
    town = place.town
    mark = town.told / "forked"

    def fork_and_wait() -> None:
        connection = replicate.connect(town.primary, timeout=30, isolation_level=None)
        connection.attach("side")
        connection.execute("BEGIN IMMEDIATE")
        connection.execute("INSERT INTO filler(content) VALUES ('of a killed parent')")
        child = os.fork()
        if child == 0:
            signal.pause()
        mark.with_suffix(".new").write_text(str(child))
        mark.with_suffix(".new").rename(mark)
        signal.pause()

    holder = town.run("holder", fork_and_wait)
    wait_until(mark.exists, timeout_s=120, what="it has forked in its transaction")
    before = town.told_ok()
    time.sleep(0.3)
    assert town.told_ok() <= before + 1, "somebody committed past the lock of a region"
    town.kill(holder.role)
    try:
        town.wait_acknowledged(3, timeout_s=120)
    finally:
        os.kill(int(mark.read_text()), signal.SIGKILL)
    mark.unlink()


@injection(73, 74)
def frames_that_come_twice_are_lost_or_changed(place: Place) -> None:
    """On each of several connections one frame of data comes twice, never, late, or with one bit changed."""
    town = place.town
    for kind in ("twice", "never", "late", "flipped", "shortened"):
        made = place.line.tell("mangle", kind)
        place.line.tell("cut", place.dice.random() < 0.5)
        wait_until(lambda made=made: place.line.tell("lines") > made, timeout_s=120, what="a new connection")  # type: ignore[misc]
        town.wait_acknowledged(3)
        wait_until(lambda: place.line.tell("mangled"), timeout_s=120, what=f"a frame of data that comes {kind}")
        with place.recovered(f"frames {kind}"):
            pass
    ends = " ".join(place.ends("receiver"))
    assert "GAP" in ends, f"a frame that never came was not named: {ends[-500:]}"
    assert "PROTOCOL" in ends, f"a changed bit was not named: {ends[-500:]}"
