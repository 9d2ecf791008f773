"""Two sites whose rows can be made to part, and what an operator decides about it.

Guarantees: what is spoiled is spoiled past every guard, as a program that knows SQLite can do it.
Leaves to others: what becomes of a decision.
"""

from __future__ import annotations

from contextlib import closing
from pathlib import Path

import apsw
import pytest

from replicate.errors import ConflictError
from replicate.pool.receive_pool import ReceivePool
from tests.harness.pair import Pair, run, work_all
from update_process.conflict_commands import decide
from update_process.conflict_decision import SKIP, Decision, write_decision


def conflicting_pair(directory: Path) -> Pair:
    """Both sites have nine rows. REPLICATE_SHM_DIR is set: as Pair.create."""
    made = Pair.create(directory, "CREATE TABLE t (id INTEGER PRIMARY KEY, a, b UNIQUE); CREATE TABLE u (x);")
    run(made, *(f"INSERT INTO t VALUES ({number}, 'old', {number})" for number in range(1, 10)))
    made.seed()
    return made


def spoil(pair: Pair, *statements: str) -> None:
    """Past every guard."""
    spoil_database(pair.secondary.region("main").path, *statements)


def spoil_database(path: Path, *statements: str) -> None:
    """The same, of any region: as `.dbconfig enable_trigger off` does it."""
    with closing(apsw.Connection(str(path))) as connection:
        connection.set_busy_timeout(60_000)  # daemons may be at work there
        connection.config(apsw.SQLITE_DBCONFIG_ENABLE_TRIGGER, 0)
        for statement in statements:
            connection.execute(statement)


def stops_at(pair: Pair, pool: ReceivePool) -> int:
    with pair.applier(pool) as applier:
        with pytest.raises(ConflictError) as caught:
            work_all(applier)
        assert f"conflict skip {applier.next_seqno}" in caught.value.do
        return applier.next_seqno


def decided(pair: Pair, seqno: int, how: str, **more: object) -> Decision:
    decision = decide(pair.secondary, seqno - 1, None, how=how, **more)  # type: ignore[arg-type]
    write_decision(pair.secondary.conflict_directory, decision)
    return decision


def skip(pair: Pair, seqno: int, **more: object) -> Decision:
    return decided(pair, seqno, SKIP, **more)
