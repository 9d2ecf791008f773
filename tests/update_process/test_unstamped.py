"""Rows that are known to be written and bear no stamps: against stamps in the region, and against brute force."""

from __future__ import annotations

import random
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import apsw
import pytest
from hypothesis import given
from hypothesis import strategies as st

import update_process.merging
from replicate.door.door import Door
from replicate.door.recovery.opening import make_chain
from replicate.journal import reader
from replicate.journal.walk import Measured, measure
from replicate.model.transaction import Op, mask_of
from replicate.pool import control as word
from replicate.region.sqlite.open import open_region
from replicate.region.sqlite.row_stamps import key_of, read_merged
from replicate.roles.partition_writers import share
from replicate.settings.table import UpdateConfig
from tests.harness.instances import lose_pool, restore_region, save_region
from tests.harness.pair import SMALL
from tests.harness.suppliers import Suppliers, run, shared
from update_process import supplied_transactions, unstamped
from update_process.merging import Merging
from update_process.routes import Routes
from update_process.unstamped import UnstampedRows
from update_process.window.columns import Changes

TABLE = 7


@pytest.fixture(autouse=True)
def memory(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("REPLICATE_SHM_DIR", "")


def stamped(made: Suppliers, name: str) -> int:
    connection = apsw.Connection(str(made.by[name].regions[0].path), flags=apsw.SQLITE_OPEN_READONLY)
    try:
        return int(connection.execute("SELECT count(*) FROM _replicate_version").get)
    finally:
        connection.close()


def lost(made: Suppliers, name: str) -> list[tuple[Any, ...]]:
    connection = open_region(made.by[name].regions[0].path, readonly=True, region=made.by[name].regions[0].uuid)
    try:
        found = [one.merged for one in read_merged(connection)]
        return sorted((one.table, one.key, one.lost.what, one.lost.values, one.lost.ordinals) for one in found)
    finally:
        connection.close()


def test_other_rows_of_one_table_get_no_stamps(tmp_path: Path) -> None:
    two = shared(tmp_path)
    for number in range(1, 12):
        run(two, "a", f"INSERT INTO ta VALUES ({number}, 'of a', 0)")
        run(two, "b", f"INSERT INTO ta VALUES ({100 + number}, 'of b', 0)")
    assert two.carry("a", "b").merged == 0
    assert stamped(two, "b") == 0
    two.level()
    two.assert_converged()
    assert stamped(two, "a") == 0


def test_the_one_row_that_both_have_written_is_merged(tmp_path: Path) -> None:
    two = shared(tmp_path)
    run(two, "a", "INSERT INTO ta VALUES (1, 'old', 0)")
    two.level()
    for number in range(10, 20):
        run(two, "a", f"INSERT INTO ta VALUES ({number}, 'of a', 0)")
        run(two, "b", f"INSERT INTO ta VALUES ({100 + number}, 'of b', 0)")
    run(two, "a", "UPDATE ta SET v = 'of a' WHERE id = 1")
    run(two, "b", "UPDATE ta SET n = 7 WHERE id = 1")
    two.level()
    two.assert_converged()
    assert two.rows("b")["ta"][0] == (1, "of a", 7)


def test_two_writers_of_one_row_come_in_one_batch(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Neither's transaction is in our journal as the other one is looked at, and a window is of one transaction. The
    row is what the earlier one expects, and is not to be changed by it all the same."""
    monkeypatch.setattr(supplied_transactions, "WINDOW_BYTES", 1)
    three = shared(tmp_path, 3)
    run(three, "a", "INSERT INTO ta VALUES (1, 'old', 0)")
    for _ in range(2):
        three.level()
        for name in three.names:
            three.tend(name)  # all have that row, and all know it
    three.level()
    run(three, "a", "INSERT INTO ta VALUES (2, 'beside', 0)")
    run(three, "c", "UPDATE ta SET v = 'of c' WHERE id = 1")
    run(three, "b", "UPDATE ta SET v = 'of b' WHERE id = 1")
    run(three, "b", "UPDATE ta SET v = 'old' WHERE id = 1")
    three.carry("c", "b")
    three.carry("b", "a")
    assert three.rows("a")["ta"][0] == (1, "old", 0)
    three.level()
    three.assert_converged()


def test_what_cannot_be_held_gets_its_stamps(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(unstamped, "ROWS_MAX", 5)
    two = shared(tmp_path)
    for number in range(1, 10):
        run(two, "b", f"INSERT INTO ta VALUES ({100 + number}, 'of b', 0)")
    two.tend("b")
    assert stamped(two, "b") == 9
    run(two, "a", "INSERT INTO ta VALUES (1, 'of a', 0)", "INSERT INTO ta VALUES (101, 'of a', 0)")
    two.level()
    two.assert_converged()


def test_an_idle_supplier_stamps_nothing_and_still_awaits_the_others(tmp_path: Path) -> None:
    two = shared(tmp_path)
    two.tend("b")
    run(two, "b", "INSERT INTO ta VALUES (1, 'of b', 0)")
    with two.session("b") as session:
        applier = supplied_transactions.SupplierApplier(
            session, cast(Any, SimpleNamespace(capacity=2**22, lanes=(), restart_requested=lambda: 0)), UpdateConfig(),
            conflict_directory=tmp_path,
        )  # fmt: skip
        applier.tell()
        assert list(applier.awaited()) == ["a"]
    assert stamped(two, "b") == 0


def test_rows_that_everybody_has_are_not_held_for_what_merely_tells(tmp_path: Path) -> None:
    """What tells what its writer has seen is told of by nobody: a part of rows does not wait for it."""
    two = shared(tmp_path)
    run(two, "b", "INSERT INTO ta VALUES (1, 'of b', 0)")
    run(two, "a", "INSERT INTO ta VALUES (2, 'of a', 0)")
    two.carry("a", "b")
    two.tend("b")
    with two.session("b") as session:
        session.begin()
        merging = Merging(session, Routes(session))
        merging.begin()
        known, absorbed, last_seqno = merging._unstamped, merging._rows.absorbed, session.position.last_seqno
        places = {origin: last for origin, (last, _) in session.position.chains.items()}
        own = int(session.door.words[word.OWN_ORIGIN])
        assert known.look(absorbed, last_seqno, {})
        assert known.holds
        assert known.look(absorbed, last_seqno, {**places, own: places[own] - 1})
        assert not known.holds
        session.rollback()


@pytest.mark.parametrize(("size", "segments"), [(10, 1), (100_000, 3)])
def test_a_look_begins_where_the_last_one_ended(
    size: int, segments: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What came of others meanwhile is not walked through; where the journal goes on in another segment, it is found
    there. The row that both have written is met in the end."""
    two = Suppliers.create(tmp_path, settings=f"{SMALL}segment_bytes = 1048576\n")
    share(two.by["a"], "DEFAULT", "b", keys_chosen=True, timeout_s=30)
    two.level()
    a, b = two.connect("a"), two.connect("b")
    for number in range(1, 21):
        a.execute("INSERT INTO ta VALUES (?, ?, 0)", (number, "x" * size))
        a.commit()
    passed: list[int] = []

    def measured(*arguments: Any, verify: bool = True, **more: Any) -> Measured:
        found = measure(*arguments, verify=verify, **more)
        passed.append(0 if verify else found.frames)
        return found

    agreed = two.agreed("a", "b")
    merged = 0
    with (
        two.receive_pool("b", agreed.from_seqno) as pool,
        two.applier("b", pool, UpdateConfig(batch_transactions=2)) as applier,
    ):
        two.offer("a", pool, agreed)
        applier.work(0)  # the catalogue
        for step in range(1, 11):
            b.execute("INSERT INTO ta VALUES (?, 'of b', 0)", (20 if step == 10 else 100 + step,))
            b.commit()
            if step == 10:
                walked = sum(passed)  # to merge it walks
            merged += applier.work(0).merged
            if step == 1:  # it has looked through the journal
                monkeypatch.setattr(reader, "measure", measured)
    a.close()
    b.close()
    assert merged == 1
    assert passed
    assert (walked == 0) == (segments == 1)
    assert len(make_chain(two.by["b"]).first_seqnos()) == segments
    monkeypatch.undo()
    two.level()
    two.assert_converged()


def history(directory: Path, seed: int) -> tuple[Any, ...]:
    """What three suppliers come to that write few rows at random, and what they lost."""
    dice, three = random.Random(seed), shared(directory, 3)
    ways = [(one, other) for one in "abc" for other in "abc" if one != other]
    for step in range(60):
        key, other = dice.randint(1, 12), dice.randint(1, 12)
        statement = dice.choice(
            (
                f"INSERT OR IGNORE INTO ta VALUES ({key}, '{step}', {step})",
                f"UPDATE ta SET v = '{step}' WHERE id = {key}",
                f"UPDATE ta SET n = n + 1 WHERE id BETWEEN {key} AND {key + 1}",
                f"DELETE FROM ta WHERE id = {key}",
                f"UPDATE OR IGNORE ta SET id = {other} WHERE id = {key}",
            )
        )
        if dice.random() < 0.7:
            run(three, dice.choice("abc"), statement)
        else:
            three.carry(*dice.choice(ways), most=dice.choice((3, None)))
    three.level()
    three.assert_converged()
    return three.rows("a"), [lost(three, name) for name in "abc"]


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(2))
def test_histories_come_to_what_they_come_to_with_all_stamped(
    seed: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "held").mkdir()
    (tmp_path / "stamped").mkdir()
    found = history(tmp_path / "held", seed)
    monkeypatch.setattr(UnstampedRows, "look", lambda *_: False)
    monkeypatch.setattr(update_process.merging, "LAG_MAX", 5)
    assert history(tmp_path / "stamped", seed) == found


KEYS = st.sampled_from((1, 1.0, 2, "a", b"a", None, 2.5))
KEY = ((0,), (2,), (2, 0))
"""Ordinals of a table's key."""


@given(
    st.sampled_from(KEY),
    st.lists(
        st.tuples(st.sampled_from((Op.INSERT, Op.UPDATE, Op.DELETE, Op.SEEN)), KEYS, KEYS, st.integers(1, 7), KEYS)
    ),
)
def test_rows_are_those_that_changes_are_of(key: tuple[int, ...], drawn: list[Any]) -> None:
    columns: list[list[Any]] = [[], [], [], []]
    wanted = dict[bytes, int]()
    for number, (op, one, other, mask, value) in enumerate(drawn, 1):
        image, changed = [one, 0, other], [at for at in range(3) if mask >> at & 1]
        argument, values = 0, image
        if op == Op.UPDATE:
            argument, values = mask_of(changed, 3), [*(value for _ in changed), *image]
        if op != Op.SEEN:
            wanted[key_of(image[at] for at in key)] = number
        if op == Op.UPDATE:
            wanted[key_of(value if at in changed else image[at] for at in key)] = number
        for column, element in zip(columns, (int(op), TABLE, argument, values), strict=True):
            column.append(element)
    config = SimpleNamespace(journal=SimpleNamespace(cap_bytes=2**30))
    door = cast(Door, SimpleNamespace(instance=SimpleNamespace(config=config)))
    known = UnstampedRows(door, lambda _: cast(Any, SimpleNamespace(key=key)), lambda _: True, {})
    found = known.rows_of(Changes(*columns), range(1, len(drawn) + 1)).get(TABLE, {})
    assert {key_of(one if len(key) > 1 else (one,)): number for one, number in found.items()} == wanted


def test_of_one_that_was_merged_all_that_its_writer_wrote_counts_after_a_power_loss(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It came to nothing here, since the row had that value already, and the region has lost the stamp that it left.
    c, whose clock is slow, had not seen it: what it writes is earlier, and may not be taken as it is."""
    three = shared(tmp_path, 3)
    run(three, "a", "INSERT INTO ta (id, v) VALUES (1, 'first')")
    three.level()
    now_ns = time.time_ns
    with monkeypatch.context() as patched:
        patched.setattr(time, "time_ns", lambda: now_ns() + 3_600_000_000_000)
        run(three, "a", "UPDATE ta SET v = 'same' WHERE id = 1")
    run(three, "b", "UPDATE ta SET v = 'same' WHERE id = 1")
    three.carry("b", "c")
    run(three, "c", "UPDATE ta SET v = 'of c' WHERE id = 1")
    save_region(three.by["b"].regions[0].path, tmp_path / "aside")
    three.carry("a", "b")
    restore_region(three.by["b"].regions[0].path, tmp_path / "aside")
    lose_pool(three.by["b"])
    three.carry("c", "b")
    assert [row[1] for row in three.rows("b")["ta"]] == ["same"]
    three.level()
    three.assert_converged()
