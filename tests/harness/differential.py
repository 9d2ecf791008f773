"""Plain SQLite, a primary and its secondary under the same program; all three must end up the same.

Guarantees: the plain side is a process of its own without our code; the primary is written through
`replicate.connect()` and the real door; the secondary takes the primary's journal through the real applier. Every
step's outcome is compared, and in the end every table, rowid by rowid, typed value by typed value.
Leaves to others: where programs come from.

Two things are told apart from errors. A statement that we refuse by name is not run on the plain side, and both roll
back. A busy database rolls back on both sides too: what an application does then is not what is tested here.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import apsw

from replicate import connect
from replicate.compare.compare import compare
from replicate.settings.table import UpdateConfig
from tests.harness.conversation import Conversation
from tests.harness.pair import Pair, work_all
from tests.harness.sql_calls import CONNECTIONS, Calls, Content, Outcome, content
from tests.harness.sql_draw import Drawn
from tests.harness.sql_programs import Step
from tests.harness.sql_worker import RemoteCalls, Worker

ROUND_STEPS = 60
_REFUSALS = ("NOT_SUPPORTED",)
_ERROR = apsw.SQLITE_ERROR
_FOREIGN_KEY = apsw.SQLITE_CONSTRAINT_FOREIGNKEY
_UNIQUE = {apsw.SQLITE_CONSTRAINT_UNIQUE, apsw.SQLITE_CONSTRAINT_PRIMARYKEY, apsw.SQLITE_CONSTRAINT_ROWID}


class Plain(Conversation):
    """The plain side: one process for many programs."""

    def __init__(self) -> None:
        super().__init__("tests.harness.plain_sqlite")


class Divergence(AssertionError):
    """The sides are not the same."""


class Sides:
    """One program's three databases. `refused`: how often we refused by name; `steps`: how many were run."""

    def __init__(
        self,
        directory: Path,
        plain: Plain,
        script: str,
        pragmas: tuple[str, ...] = (),
        workers: Sequence[Worker] | None = None,
    ) -> None:
        self.refused = self.steps = 0
        self.plain_side = True
        self._stale = self._deferring = False
        self.log: list[str] = []
        self._plain = plain
        self.pair = Pair.create(directory, script, settings='[journal]\ndurability = "off"\npool_bytes = 1048576\n')
        self.pair.seed()
        plain.ask("begin", (script, pragmas, str(directory / "plain.db")))
        path = self.pair.primary.path
        self.calls: Calls | RemoteCalls
        if workers is None:
            self.calls = Calls(lambda level: connect(path, timeout=0, isolation_level=level), pragmas)
        else:
            self.calls = RemoteCalls(workers, path, pragmas)

    def close(self) -> None:
        """Close what is open."""
        self.calls.close()

    def step(self, step: Step) -> None:
        """Run one step on the primary and on the plain side; Divergence unless the outcomes are equal."""
        self.steps += 1
        ours = self.calls.perform(step)
        self.log.append(f"{step} -> {ours} {self.calls.error or ''}")
        if getattr(self.calls.error, "code", None) in _REFUSALS:
            self.refused += 1
            if step.kind in ("script", "with", "many"):
                self._roll_back(step.connection)
                raise Refused  # a part of it may have been run
            self._roll_back(step.connection)
            return
        if _is_busy(self.calls.error) and self._may_be_busy(step.connection, self.calls.error):
            self._roll_back(step.connection)
            if "defer_foreign_keys" in str(step.items):
                raise Refused  # a script has set it here, before it was refused, and not there
            return
        if not self.plain_side:
            return
        if "foreign key mismatch" in str(self.calls.error):
            raise Refused  # plain SQLite does not look at a table's references where it has no triggers
        theirs: Outcome = self._plain.ask("step", step)
        if ours != theirs and theirs[:2] == ("error", _FOREIGN_KEY) and not self._violations():
            raise Refused  # an INSERT that failed has left plain SQLite a deferred violation that is none (measured)
        self._deferring |= "defer_foreign_keys" in str(step.items) and not ours[-1]
        if ours != theirs and self._deferring and _FOREIGN_KEY in (*ours[1:2], *theirs[1:2]):
            raise Refused  # set outside of a transaction it ends when SQLite next reads the schema again (measured)
        if ours != theirs and "UPDATE" in str(step.items).upper() and _is_unique(ours, theirs):
            raise Refused  # in which order an UPDATE visits rows is up to SQLite, and guards change it (measured)
        if "triggers nested too deep" in str(self.calls.error):
            raise Refused  # plain SQLite, without guards, may keep a part of what this statement did (measured)
        if ours != theirs and theirs[:2] == ("error", apsw.SQLITE_BUSY_SNAPSHOT):
            raise Refused  # where an R*Tree was written, plain SQLite goes on reading after an OR ROLLBACK (measured)
        if "error in trigger" in str(self.calls.error):
            self._stale = True
        if ours != theirs and theirs[:2] == ("error", _ERROR) and self._stale:
            raise Refused  # plain SQLite still looks at triggers as an ALTER that failed would have them (measured)
        if ours != theirs and ours[:2] == ("error", _ERROR) and theirs[0] == "error":
            # A text that cannot be prepared; plain SQLite may find that out later: it had seen no schema change yet.
            if step.kind != "execute":
                raise Refused
            self._roll_back(step.connection)
            return
        if ours != theirs:
            raise Divergence(f"{step}\n ours:  {ours} ({self.calls.error})\n plain: {theirs}")

    def step_plain(self, step: Step) -> None:
        """Run one step on the plain side alone; it must not fail."""
        outcome = self._plain.ask("step", step)
        if outcome[0] == "error":
            raise Divergence(f"{step} on the plain side: {outcome}")

    def _violations(self) -> list[Any]:
        return self.calls.rows("PRAGMA foreign_key_check")

    def _may_be_busy(self, number: int, error: Any) -> bool:
        """Whether another connection writes, or this one has read what is old by now."""
        others = (self.calls.in_transaction(other) for other in range(CONNECTIONS) if other != number)
        return getattr(error, "code", None) == "BUSY_SNAPSHOT" or any(others)

    def _roll_back(self, number: int) -> None:
        self.calls.roll_back(number)
        if self.plain_side:
            self._plain.ask("roll back", number)

    def finish(self) -> None:
        """End every transaction."""
        for number in range(CONNECTIONS):
            self.step(Step(number, "commit"))
            self.step(Step(number, "rollback"))

    def prove(self, *, plain: bool = True, record_bytes: int = 64 * 1024, batch_transactions: int = 1000) -> None:
        """Compare all sides, the secondary after it has applied everything. Divergence names the first difference."""
        path = self.pair.primary.region("main").path
        if plain:
            same(self._plain.ask("content"), read(path, shadows=False), "plain", "primary")
        primary = read(path)
        pair = self.pair
        settings = UpdateConfig(batch_transactions=batch_transactions)
        with pair.receive_pool() as pool, pair.applier(pool, settings) as applier:
            while pair.deliver(pool, record_bytes=record_bytes) < pair.last_seqno():
                work_all(applier)
            work_all(applier)
            if applier.applied_seqno != pair.last_seqno():
                raise Divergence(f"applied {applier.applied_seqno} of {pair.last_seqno()}")
        same(primary, read(pair.secondary.region("main").path), "primary", "secondary")
        found = compare(pair.primary, pair.secondary, timeout_s=5)
        if not found.equal:
            raise Divergence(f"compare: {found}")


class Refused(Exception):
    """We refused a part of a step by name; the plain side cannot be brought to the same state."""


@contextlib.contextmanager
def street(
    plain: Plain, script: str, pragmas: tuple[str, ...] = (), workers: Sequence[Worker] | None = None
) -> Iterator[Sides]:
    """Three fresh databases with `script` in them, in memory. `workers`: the primary's connections are in these."""
    directory = Path(tempfile.mkdtemp(prefix="replicate-differential-", dir="/dev/shm"))
    before = os.environ.get("REPLICATE_SHM_DIR")
    try:
        made = Sides(directory, plain, script, pragmas, workers)
        try:
            yield made
        finally:
            made.close()
    finally:
        shutil.rmtree(directory)
        if before is None:
            os.environ.pop("REPLICATE_SHM_DIR", None)
        else:
            os.environ["REPLICATE_SHM_DIR"] = before


def play(sides: Sides, *texts: str) -> None:
    """Run statements on primary and plain side, commit, and require that all three sides are the same."""
    for text in texts:
        sides.step(Step(0, "execute", ((text, ()),)))
    sides.finish()
    sides.prove()


def run(plain: Plain, drawn: Drawn, workers: Sequence[Worker]) -> Sides:
    """Run a program on all sides (a wild one on two), and compare after each round of ROUND_STEPS. Divergence carries
    the log of it."""
    with street(plain, drawn.script, drawn.pragmas, workers if drawn.processes else None) as made:
        made.plain_side = not drawn.wild
        for start in range(0, len(drawn.steps), ROUND_STEPS):
            try:
                _round(made, drawn.steps[start : start + ROUND_STEPS])
                made.prove(
                    plain=made.plain_side,
                    record_bytes=drawn.record_bytes,
                    batch_transactions=drawn.batch_transactions,
                )
            except Exception as error:
                log = "\n".join([f"{type(error).__name__}: {error}", drawn.head, drawn.script, *made.log])
                raise Divergence(log) from error
    return made


def _round(made: Sides, steps: Sequence[Step]) -> None:
    """Some steps, and the end of every transaction. What we refuse in the midst of a step parts us from plain SQLite:
    from then on only primary and secondary are compared."""
    for step in steps:
        try:
            made.step(step)
        except Refused:
            made.plain_side = False
    try:
        made.finish()
    except Refused:
        made.plain_side = False
        made.finish()


def read(path: Path, *, shadows: bool = True) -> Content:
    """A region's content."""
    with contextlib.closing(apsw.Connection(str(path), flags=apsw.SQLITE_OPEN_READONLY)) as connection:
        return content(connection.execute, shadows=shadows)


def same(one: Content, other: Content, first: str, second: str) -> None:
    """Divergence unless both are equal."""
    for name in sorted(one.keys() | other.keys()):
        if one.get(name) != other.get(name):
            raise Divergence(f"{name}:\n {first}: {one.get(name)}\n {second}: {other.get(name)}")


def _is_busy(error: object) -> bool:
    return str(getattr(error, "sqlite_errorname", None)).startswith(("SQLITE_BUSY", "SQLITE_LOCKED"))


def _is_unique(*outcomes: Outcome) -> bool:
    return any(outcome[0] == "error" and outcome[1] in _UNIQUE for outcome in outcomes)
