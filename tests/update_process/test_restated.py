"""A stream in which transactions are told in other words: applied as they are told, and journalled so; in the same
words it comes to the same as without.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from crc32c import crc32c

from replicate.audit.verify import verify_journal
from replicate.door.recovery.opening import make_chain
from replicate.errors import DivergedError, FrameDamaged, JournalDamagedError
from replicate.journal.reader import ChainReader
from replicate.journal.record import changes_of, decode_batch, read_head
from replicate.model.transaction import Op
from tests.harness.instances import lose_pool, restore_region, save_region
from tests.harness.pair import Pair, assert_equal, run, work_all
from tests.harness.replaying import SCHEMA
from tests.harness.restating import deliver_restated, restate
from update_process.plan import open_window


@pytest.fixture
def pair(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Pair:
    monkeypatch.setenv("REPLICATE_SHM_DIR", str(tmp_path / "shm"))  # Pair.create sets it; it is put back
    made = Pair.create(tmp_path, SCHEMA)
    made.seed()
    return made


def program(dice: random.Random, count: int) -> list[str]:
    made = []
    for number in range(count):
        row = dice.randint(1, 20)
        made.append(
            dice.choice([
                f"UPDATE account SET balance = balance + {number}",
                f"INSERT OR REPLACE INTO account (id, owner, balance) VALUES ({row}, 'o{number}', {number})",
                f"DELETE FROM account WHERE id = {row}",
                "INSERT INTO counted (v) VALUES (1); DELETE FROM counted WHERE v = 'first'",
                "INSERT INTO entry VALUES ('a', 1.5, x'00'); DELETE FROM entry WHERE rowid % 3 = 0",
                f"INSERT OR REPLACE INTO pair VALUES ('x', {row}, {number})",
                f"CREATE TABLE t{number} (x); INSERT INTO t{number} VALUES ({number})",
                f"ALTER TABLE account ADD COLUMN c{number} DEFAULT {number}",
            ])
        )  # fmt: skip
    return made


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(6))
def test_in_the_same_words_it_comes_to_the_same(pair: Pair, tmp_path: Path, seed: int) -> None:
    """Every second, all, or some transactions, in windows that are mixed; and the journal leads there once more."""
    dice = random.Random(seed)
    save_region(pair.secondary.region("main").path, tmp_path / "aside")
    run(pair, *program(dice, 60))

    def words(seqno: int, changes: Sequence[Any]) -> Sequence[Any] | None:
        is_told = (True, seqno % 2 == 0, dice.random() < 0.1)[seed % 3]
        return changes if is_told else None

    with pair.receive_pool() as pool:
        deliver_restated(pair, pool, words)
        with pair.applier(pool) as applier:
            work_all(applier)
            assert applier.applied_seqno == pool.applied_seqno == pair.last_seqno()
    assert_equal(pair)
    assert not verify_journal(pair.secondary, None, None).findings
    restore_region(pair.secondary.region("main").path, tmp_path / "aside")
    lose_pool(pair.secondary)
    with pair.session():  # redo
        pass
    assert_equal(pair)
    run(pair, "INSERT INTO entry VALUES ('later', 1, NULL)")  # in its own words again
    pair.catch_up()
    assert_equal(pair)


def masked(_seqno: int, changes: Sequence[Any]) -> Sequence[Any]:
    """Inserts with their third value masked; nothing else passes."""
    made: list[Any] = []
    for place in range(0, len(changes), 4):
        op, table_id, argument, values = changes[place : place + 4]
        if op == Op.INSERT:
            made += [op, table_id, argument, [*values[:2], "masked", *values[3:]]]
    return made


def test_what_is_told_is_applied_and_what_is_nothing_takes_its_number(pair: Pair) -> None:
    run(
        pair,
        "INSERT INTO account VALUES (7, 'a', 9, 'x')",
        "DELETE FROM account WHERE id = 1",
        "INSERT INTO account VALUES (8, 'b', 9, 'x'); UPDATE account SET note = 1 WHERE id = 7",
    )
    with pair.receive_pool() as pool:
        deliver_restated(pair, pool, masked)
        with pair.applier(pool) as applier:
            work_all(applier)
            assert applier.applied_seqno == pair.last_seqno()
    rows = {row[0]: row[2:] for row in pair.rows("account")}
    assert rows[7] == ("a", "masked", "x")
    assert rows[8] == ("b", "masked", "x")
    assert 1 in rows
    assert not verify_journal(pair.secondary, None, None).findings
    # The vector is the primary's: it goes on where it was.
    run(pair, "INSERT INTO entry VALUES ('later', 1, NULL)")
    assert pair.catch_up().transactions == 1


def frames(pair: Pair) -> tuple[bytes, bytes]:
    """The last two transactions of the primary: their frames."""
    reader = ChainReader(make_chain(pair.primary), pair.last_seqno() - 1)
    first, second = (reader.read(1, pair.last_seqno()).data for _ in range(2))  # type: ignore[union-attr]
    reader.close()
    return first, second


def test_a_window_refuses_what_is_not_proven(pair: Pair) -> None:
    run(pair, "INSERT INTO account VALUES (7, 'a', 9, 'x')", "INSERT INTO account VALUES (8, 'b', 9, 'x')")
    first, second = frames(pair)
    head = read_head(first)
    points = {head.origin: (head.origin_seqno - 1, 0)}
    told = restate(head, "a filter", changes_of(decode_batch(first)[2]), (1,))
    window = open_window(told + second, decode_batch(told + second), head.seqno, dict(points))
    assert window.plain is None
    assert window.last_seqno == head.seqno + 1
    # Another label: its own check tells, and so does the one after it.
    other = restate(head._replace(chain=head.chain ^ 1), "a filter", changes_of(decode_batch(first)[2]), (1,))
    with pytest.raises(DivergedError, match=f"transaction {head.seqno + 1}"):
        open_window(other + second, decode_batch(other + second), head.seqno, dict(points))
    # Only the outer check is right.
    bad = bytearray(told)
    bad[-1] ^= 1
    bad[6:10] = crc32c(bytes(bad[10:])).to_bytes(4, "big")
    with pytest.raises((DivergedError, JournalDamagedError, FrameDamaged)):
        open_window(bytes(bad) + second, decode_batch(bytes(bad) + second), head.seqno, dict(points))
