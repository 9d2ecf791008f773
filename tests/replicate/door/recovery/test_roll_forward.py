"""Redo on a secondary: many transactions in one local commit, and the same outcome as one by one."""

from __future__ import annotations

import random
from pathlib import Path

import apsw
import pytest

from replicate.door.recovery import roll_forward
from replicate.door.recovery.opening import close_door
from replicate.door.secondary import open_apply_session
from replicate.errors import ConflictError
from replicate.region.sqlite.bookkeeping import APPLIED_FROM, read_scr, read_state
from tests.harness.instances import lose_pool, restore_region, save_region
from tests.harness.pair import Pair, assert_equal, run, work_all

ROWS = 40


def mixed(count: int, seed: int) -> list[str]:
    dice = random.Random(seed)
    made = []
    for number in range(count):
        row = dice.randint(1, ROWS)
        made.append(
            dice.choice([
                f"UPDATE account SET balance = {number} WHERE id = {row}",
                f"INSERT INTO entry VALUES ('{number}', {number}, NULL)",
                f"INSERT OR REPLACE INTO account (id, owner, balance) VALUES ({row}, 'again', {number})",
            ])
        )  # fmt: skip
    return made


def catch_up(pair: Pair) -> None:
    with pair.receive_pool() as pool:
        pair.deliver(pool)
        with pair.applier(pool) as applier:
            work_all(applier)


@pytest.fixture
def older(pair: Pair, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> tuple[Pair, list[int]]:
    """A secondary whose region is an older copy, by 300 transactions with schema changes among them. The seqno up to
    which each local commit of the redo went."""
    run(pair, *(f"INSERT INTO account VALUES ({number}, 'o', 0, NULL)" for number in range(1, 1 + ROWS)))
    catch_up(pair)
    save_region(pair.secondary.region("main").path, tmp_path / "aside")
    run(pair, *mixed(150, 1))
    run(pair, "ALTER TABLE account ADD COLUMN more DEFAULT 'm'", "UPDATE account SET more = id WHERE id < 9")
    run(pair, *mixed(50, 2), "CREATE TABLE late (x)", "INSERT INTO late VALUES (1)")
    run(pair, *(f"UPDATE account SET more = {number} WHERE id = {1 + number % ROWS}" for number in range(98)))
    catch_up(pair)
    assert_equal(pair)
    restore_region(pair.secondary.region("main").path, tmp_path / "aside")
    lose_pool(pair.secondary)
    made: list[int] = []
    real = roll_forward._Redo._local_commit

    def counted(self: roll_forward._Redo, seqno: int) -> object:
        made.append(seqno)
        return real(self, seqno)

    monkeypatch.setattr(roll_forward._Redo, "_local_commit", counted)
    return pair, made


def test_what_lies_between_schema_changes_is_one_local_commit(older: tuple[Pair, list[int]]) -> None:
    pair, made = older
    session = open_apply_session(pair.secondary)
    assert session.position.last_seqno == pair.last_seqno()
    session.close()
    close_door(session.door)
    first = pair.last_seqno() - 302
    assert made == [first + 150, first + 151, first + 202, first + 203, first + 302]
    assert_equal(pair)


def test_every_partition_stands_where_it_stood_and_the_last_commit_says_where_it_began(
    older: tuple[Pair, list[int]],
) -> None:
    """Where another database was put beneath a WAL, that is what tells (older_than_wal.py)."""
    pair, made = older
    path = str(pair.secondary.region("main").path)

    def found() -> tuple[dict[tuple[int, int], int], object]:
        connection = apsw.Connection(path)
        rows = {(row.origin, row.partition): row.origin_seqno for row in read_scr(connection)}
        state = read_state(connection, APPLIED_FROM)
        connection.close()
        return rows, state

    session = open_apply_session(pair.secondary)
    session.close()
    close_door(session.door)
    rows, state = found()
    assert len(rows) > 1
    (origin,) = {origin for origin, _ in rows}
    assert set(rows.values()) == {session.position.vector.last(origin)}
    assert state == made[-2] + 1


def test_a_conflict_has_its_number_and_what_is_before_it_is_done(older: tuple[Pair, list[int]]) -> None:
    pair, made = older
    path = pair.secondary.region("main").path
    first = pair.last_seqno() - 302
    statements = mixed(150, 1)
    place = next(number for number in range(60, 150) if statements[number].startswith("UPDATE"))
    row = statements[place].rsplit(" ", 1)[1]
    while any(one.endswith(f"id = {row}") or f"({row}, 'again'" in one for one in statements[:place]):
        place = next(number for number in range(place + 1, 150) if statements[number].startswith("UPDATE"))
        row = statements[place].rsplit(" ", 1)[1]
    connection = apsw.Connection(str(path))
    connection.config(apsw.SQLITE_DBCONFIG_ENABLE_TRIGGER, 0)
    connection.execute(f"UPDATE account SET note = 'drifted' WHERE id = {row}")
    connection.close()
    with pytest.raises(ConflictError) as caught:
        open_apply_session(pair.secondary)
    assert caught.value.facts["seqno"] == first + place + 1
    assert made == [first + 150, *range(first + 1, first + place + 2)]
    connection = apsw.Connection(str(path))
    connection.config(apsw.SQLITE_DBCONFIG_ENABLE_TRIGGER, 0)
    connection.execute(f"UPDATE account SET note = NULL WHERE id = {row}")
    connection.close()
    made.clear()
    session = open_apply_session(pair.secondary)
    session.close()
    close_door(session.door)
    assert made[0] == first + 150  # it goes on where it stopped
    assert_equal(pair)
