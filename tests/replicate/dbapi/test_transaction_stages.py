"""The table of stages, walked on a real connection: each step in each stage does what the table says, and leads there.

Guarantees: every entry is tried, and every kind of statement in every stage.
Leaves to others: what is committed, and failures at the door (test_transaction.py, tests/replicate/door).
"""

from __future__ import annotations

from typing import Any

import apsw
import pytest

from replicate.dbapi.transaction import ConnectionTransaction
from replicate.dbapi.transaction_stages import TRANSITIONS, Act, Stage, TransactionStep
from replicate.region.sqlite.sql.statements import classify
from tests.harness.fake_door import FakeDoor, FakeOpened

NONE, READER, WRITER = Stage
ENTRIES = [
    pytest.param(step, stage, act, to, id=f"{step.name}-{stage.name}")
    for step, row in TRANSITIONS.items()
    for stage, (act, to) in row.items()
]
TEXTS = {TransactionStep.BEGIN: "BEGIN", TransactionStep.COMMIT: "COMMIT", TransactionStep.ROLLBACK: "ROLLBACK"}


class Walker:
    """One connection's transaction, and what is done for it: calls of its session, and what else SQLite is told."""

    def __init__(self, door: FakeDoor) -> None:
        opened: Any = FakeOpened(door)
        self.session: Any = opened.session
        self.transaction = ConnectionTransaction(opened, 0.0)
        self.done: list[Act | str] = []
        for act in (Act.BEGIN, Act.UPGRADE, Act.COMMIT, Act.ROLLBACK):
            self._record(act, act.value.removeprefix("session."))
        self.session.connection.exec_trace = self._note

    def _record(self, act: Act, name: str) -> None:
        call = getattr(self.session, name)

        def recorded(*arguments: Any, **options: Any) -> Any:
            before = [*self.done, act]
            try:
                return call(*arguments, **options)
            finally:
                self.done[:] = before  # the session's own statements are its own business

        setattr(self.session, name, recorded)

    def _note(self, _: apsw.Cursor, text: str, __: Any) -> bool:
        if text.split()[0] in TEXTS.values():
            self.done.append(text)
        return True

    def run(self, text: str, *, implicit: bool = True) -> None:
        cursor = self.transaction.connection.cursor()
        if self.transaction.run(cursor, classify(text), (), implicit) is None:
            cursor.fetchall()

    def go_to(self, stage: Stage) -> None:
        if stage is READER:
            self.run("BEGIN")
        elif stage is WRITER:
            self.transaction.take()
        assert self.transaction.stage is stage
        self.done.clear()

    def take(self, step: TransactionStep) -> None:
        transaction = self.transaction
        if step is TransactionStep.BEGIN:
            self.run("BEGIN")
        elif step is TransactionStep.TAKE:
            transaction.take()
        elif step is TransactionStep.COMMIT:
            transaction.commit()
        elif step is TransactionStep.ROLLBACK:
            transaction.rollback()
        else:
            if transaction.connection.in_transaction:
                transaction.connection.execute("ROLLBACK")  # as SQLite does by itself, of a full disk
            self.done.clear()
            transaction.check_alive()


@pytest.fixture
def walker(door: FakeDoor) -> Any:
    made = Walker(door)
    yield made
    made.transaction.close()


def test_the_table_is_whole() -> None:
    assert {step: set(row) for step, row in TRANSITIONS.items()} == {step: set(Stage) for step in TransactionStep}


@pytest.mark.parametrize(("step", "stage", "act", "to"), ENTRIES)
def test_a_step_does_what_the_table_says(
    walker: Walker, step: TransactionStep, stage: Stage, act: Act, to: Stage
) -> None:
    walker.go_to(stage)
    if act is Act.SQLITE and to is stage:
        with pytest.raises(apsw.SQLError, match="within a transaction"):
            walker.take(step)
    else:
        walker.take(step)
    assert walker.done == ([] if act is Act.NOTHING else [TEXTS[step]] if act is Act.SQLITE else [act])
    assert walker.transaction.stage is to
    assert walker.transaction.connection.in_transaction == (to is not NONE)
    assert walker.transaction.regions.capture.active == (to is WRITER)
    assert not walker.transaction.regions.inside


REFUSED = None
LEADS = {  # from NONE, READER and WRITER
    "SELECT count(*) FROM n": (NONE, READER, WRITER),
    "INSERT INTO n VALUES (1)": (WRITER, WRITER, WRITER),
    "CREATE TABLE z (a)": (NONE, WRITER, WRITER),
    "PRAGMA user_version = 1": (NONE, WRITER, WRITER),
    "BEGIN": (READER, REFUSED, REFUSED),
    "BEGIN IMMEDIATE": (WRITER, REFUSED, REFUSED),
    "SAVEPOINT s": (READER, READER, WRITER),
    "RELEASE s": (REFUSED, REFUSED, REFUSED),
    "ROLLBACK TO s": (REFUSED, REFUSED, REFUSED),
    "COMMIT": (REFUSED, NONE, NONE),
    "ROLLBACK": (REFUSED, NONE, NONE),
}


@pytest.mark.parametrize("stage", Stage)
@pytest.mark.parametrize("text", LEADS)
def test_where_a_statement_leads(walker: Walker, text: str, stage: Stage) -> None:
    walker.go_to(stage)
    to = LEADS[text][list(Stage).index(stage)]
    if to is REFUSED:
        with pytest.raises(apsw.SQLError):
            walker.run(text)
    else:
        walker.run(text)
    assert walker.transaction.stage is (to or stage)


def test_a_change_outside_of_a_transaction_is_its_own_where_none_is_begun_for_it(walker: Walker) -> None:
    walker.run("INSERT INTO n VALUES (1)", implicit=False)
    assert walker.transaction.stage is NONE
    assert walker.done[0] is Act.BEGIN
    assert walker.done[-1] is Act.COMMIT


def test_a_savepoint_that_began_the_transaction_commits_it(walker: Walker) -> None:
    walker.run("SAVEPOINT outer_one")
    walker.run("SAVEPOINT inner_one")
    walker.run("INSERT INTO n VALUES (1)")
    walker.run("RELEASE inner_one")
    assert walker.transaction.stage is WRITER
    walker.run("RELEASE outer_one")
    assert walker.transaction.stage is NONE
    assert walker.done[-1] is Act.COMMIT
