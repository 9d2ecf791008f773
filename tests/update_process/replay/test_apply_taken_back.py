"""What does not fit in bulk is taken back and done row by row: the same rows, and the one that does not fit by name."""

from __future__ import annotations

import apsw
import pytest

from replicate.errors import ConflictError
from tests.harness.pair import Pair, run
from tests.harness.replaying import MIXED, assert_equal, replayed
from update_process.replay.apply import Applied, NetApply, NetSource

ROWS = 300


def foreign(pair: Pair, statement: str) -> None:
    """What another client does to the secondary's rows, past our guards."""
    connection = apsw.Connection(str(pair.secondary.region("main").path))
    connection.config(apsw.SQLITE_DBCONFIG_ENABLE_TRIGGER, 0)
    connection.execute(statement)
    connection.close()


@pytest.mark.parametrize("verify", [False, True])
def test_row_by_row_comes_to_what_bulk_comes_to(pair: Pair, monkeypatch: pytest.MonkeyPatch, verify: bool) -> None:
    """All of it is there when it is taken back, so what stayed behind would be in the way."""
    run(pair, *MIXED, "UPDATE account SET owner = owner || '!'; UPDATE pair SET v = 7", "DELETE FROM entry")
    bulk, made = NetApply.apply, []

    def apply(self: NetApply, found: NetSource) -> Applied:
        made.append(bulk(self, found))
        raise ConflictError("something does not fit")

    monkeypatch.setattr(NetApply, "apply", apply)
    done = replayed(pair, verify=verify)
    (first,) = made
    assert (done.deleted, done.updated, done.inserted, done.keys) == (
        first.deleted,
        first.updated,
        first.inserted,
        first.seen,
    )
    assert first.deleted > 1
    assert first.inserted > 1
    assert_equal(pair)


@pytest.mark.parametrize("verify", [False, True])
def test_what_fits_is_never_taken_back(pair: Pair, monkeypatch: pytest.MonkeyPatch, verify: bool) -> None:
    """Nothing but the time that it takes would tell."""

    def apply_singly(_self: NetApply, _found: NetSource) -> Applied:
        raise AssertionError("what fits was taken back")

    monkeypatch.setattr(NetApply, "apply_singly", apply_singly)
    numbers = range(1000, 1000 + ROWS)
    for scripts in (
        (*MIXED, "UPDATE account SET owner = owner || '!'; UPDATE pair SET v = 7", "DELETE FROM entry"),
        (";".join(f"INSERT INTO counted VALUES ({n}, {n}); INSERT INTO pair VALUES ('m', {n}, 1)" for n in numbers),),
        ("UPDATE counted SET v = v + 0.5", "UPDATE counted SET id = id + 5000 WHERE id % 3 = 0"),
        (
            "UPDATE pair SET v = 1.0 WHERE b % 2",
            "DELETE FROM pair WHERE b % 5 = 0",
            "DELETE FROM counted WHERE id > 6100",
        ),
    ):
        run(pair, *scripts)
        assert replayed(pair, verify=verify).keys > 0
        assert_equal(pair)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("change", "harm", "mended"),
    [
        ("UPDATE account SET balance = balance + {0} WHERE id = {0}", "balance = -7", "balance = 0"),
        ("UPDATE account SET note = 'n' WHERE id = {0}", "note = 1.0", "note = 1"),
        ("DELETE FROM account WHERE id = {0}", "owner = 'else'", "owner = 'o1150'"),
        ("UPDATE account SET owner = 'new{0}' WHERE id = {0}", "balance = 1", "balance = 0"),
    ],
)
def test_one_row_of_a_run_that_does_not_fit_is_named(pair: Pair, change: str, harm: str, mended: str) -> None:
    insert = "INSERT INTO account VALUES ({0}, 'o{0}', 0, 1)"
    run(pair, ";".join(insert.format(number) for number in range(1000, 1000 + ROWS)))
    replayed(pair)
    before = pair.last_seqno(pair.secondary)
    run(pair, *(change.format(number) for number in range(1000, 1000 + ROWS)))
    foreign(pair, f"UPDATE account SET {harm} WHERE id = 1150")
    with pytest.raises(ConflictError, match=f"differs from its before-image at transaction {before + 151}") as caught:
        replayed(pair)
    assert caught.value.facts["key"] == "(1150)"
    assert pair.last_seqno(pair.secondary) == before
    foreign(pair, f"UPDATE account SET {mended} WHERE id = 1150")
    done = replayed(pair)
    assert done.keys == ROWS
    assert_equal(pair)
