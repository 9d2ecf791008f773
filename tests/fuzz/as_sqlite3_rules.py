"""Where replicate.dbapi is not as the standard library's sqlite3, and the comparison knows it: each by its name.

Guarantees: a rule excuses one kind of difference and nothing beside it; application.md of the manual says what an
application should know of it.
Leaves to others: how the sides were brought there.
"""

from __future__ import annotations

import ast
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Final

from tests.fuzz.as_sqlite3_programs import CURSORS, Step
from tests.fuzz.as_sqlite3_side import Seen


class Parted(Exception):
    """From here on the sides are not the same any more, and may be so; the text says by which rule."""


@dataclass
class Doubts:
    """What steps before have left behind, and a rule asks about. `python`: whose sqlite3 the other side is."""

    python: tuple[int, int, int]
    rowid: bool = False
    """An INSERT has failed, and none has passed since."""
    rowids: set[int] = field(default_factory=set)
    """Cursors that may have kept its rowid."""
    said: Seen = ()
    """The last error of sqlite3's that was no mistake of the call."""
    open: bool = False
    """A transaction is."""
    changes: int = 0
    """total_changes when no transaction was open."""
    texts: set[int] = field(default_factory=set)
    """Cursors whose rows a text factory that was set after their `execute` may make."""

    def note(self, step: Step, ours: Seen, theirs: Seen) -> None:
        """A step has been compared."""
        if ours[1] == "IntegrityError":
            self.rowid = True
        elif ours == theirs and ours[0] == "done" and "INSERT" in str(step.arguments):
            self.rowid = False
        if self.rowid:
            self.rowids.add(_cursor(step))
        elif ours[0] == "done" and step.kind == "execute":
            self.rowids.discard(_cursor(step))
        if theirs[0] == "error" and theirs[2]:
            self.said = theirs[1:4]
        self.open = _state(theirs)["in_transaction"]
        if not self.open:
            self.changes = _state(theirs)["total_changes"]
        if step.kind == "setting" and step.arguments[0] == "text_factory":
            self.texts.update(range(CURSORS))
        elif step.kind in ("execute", "many", "new_cursor", "close_cursor"):
            self.texts.discard(step.arguments[0])


def _cursor(step: Step) -> int:
    """Whose state is looked at after a step."""
    return step.arguments[0] if step.arguments and type(step.arguments[0]) is int else 0


def _state(seen: Seen) -> dict[str, Any]:
    return dict(seen[seen.index("|") + 1 :])


def _result(seen: Seen) -> Seen:
    return seen[: seen.index("|")]


def _without(seen: Seen, *names: str) -> dict[str, Any]:
    return {name: value for name, value in _state(seen).items() if name not in names}


def _two_errors(step: Step, ours: Seen, theirs: Seen, doubts: Doubts) -> bool:
    """A call with two mistakes in its parameters: which of them is said."""
    mistakes = ("ProgrammingError", "OverflowError", "UnicodeEncodeError")
    both = ours[0] == theirs[0] == "error" and ours[1] in mistakes and theirs[1] in mistakes
    return both and _state(ours) == _state(theirs)


def _told_of_no_sql(step: Step, ours: Seen, theirs: Seen, doubts: Doubts) -> bool:
    """A trace callback is told of the BEGIN before a data change that is no SQL; sqlite3 prepares it first."""
    told = [text for text in _state(ours)["told"] if not text.startswith("BEGIN")]
    same = _result(ours) == _result(theirs) and _without(ours, "told") == _without(theirs, "told")
    return same and ours[0] == "error" and told == list(_state(theirs)["told"])


def _rowid_of_what_failed(step: Step, ours: Seen, theirs: Seen, doubts: Doubts) -> bool:
    """last_insert_rowid() after an INSERT that failed: in a table with triggers (as ours are, by their guards) SQLite
    finds out later, and has counted the row."""
    failed = doubts.rowid or _cursor(step) in doubts.rowids or theirs[1] == "IntegrityError"
    return failed and _result(ours) == _result(theirs) and _without(ours, "lastrowid") == _without(theirs, "lastrowid")


def _stopped_before_it_was_told(step: Step, ours: Seen, theirs: Seen, doubts: Doubts) -> bool:
    """A progress handler that stops a statement: from SQLite 3.41 on already while that is prepared (a view in it, for
    example), so before the trace callback is told of it."""
    stopped = step.kind == "progress" and ours[0] == "error" and ours[2] == "SQLITE_INTERRUPT"
    same = _result(ours) == _result(theirs) and _without(ours, "told") == _without(theirs, "told")
    return stopped and same and not _state(ours)["told"]


_NOT_PREPARED: Final = (("error", "DatabaseError", "SQLITE_AUTH"), ("error", "OperationalError", "SQLITE_ERROR"))


def _told_and_not_prepared_again(step: Step, ours: Seen, theirs: Seen, doubts: Doubts) -> bool:
    """A kept statement that cannot be prepared again (an authorizer denies it, what it makes is there): APSW tells of
    it before SQLite tries."""
    same = _result(ours) == _result(theirs) and _without(ours, "told") == _without(theirs, "told")
    told, other = ([text for text in _state(one)["told"] if not text.startswith("BEGIN")] for one in (ours, theirs))
    return ours[:3] in _NOT_PREPARED and same and len(told) > 0 and told[:-1] == other


def _said_again(step: Step, ours: Seen, theirs: Seen, doubts: Doubts) -> bool:
    """A parameter that cannot be given to SQLite: sqlite3 may say once more what an earlier statement failed with."""
    mistake = ours[0] == "error" and ours[1] in ("OverflowError", "UnicodeEncodeError")
    again = theirs[0] == "error" and theirs[1:4] == doubts.said
    return mistake and again and _state(ours) == _state(theirs)


def _begun_for_nothing(step: Step, ours: Seen, theirs: Seen, doubts: Doubts) -> bool:
    """As above, with the transaction that such a statement would begin: in sqlite3 it stays open, as it is begun before
    a kept statement is prepared again; here it is ended, as sqlite3 never begins it where the statement is new."""
    same = _result(ours) == _result(theirs) and _without(ours, "in_transaction", "told") == _without(
        theirs, "in_transaction", "told"
    )
    begun = not doubts.open and _state(theirs)["in_transaction"] and _state(theirs)["total_changes"] == doubts.changes
    if step.kind in ("execute", "many") and ours[:3] in _NOT_PREPARED and same and begun:
        raise Parted("a transaction begun for nothing")
    return False


def _interrupted_before_it_wrote(step: Step, ours: Seen, theirs: Seen, doubts: Doubts) -> bool:
    """SQLite ends the transaction when it stops a statement that writes, but not when it stops that as it is prepared,
    the first time. Before a transaction's first write here is the statement that takes the region: another one."""
    same = _result(ours) == _result(theirs) and _without(ours, "in_transaction") == _without(theirs, "in_transaction")
    if step.kind == "interrupt" and same and _state(theirs)["total_changes"] == doubts.changes:
        raise Parted("an interrupt before the first write")
    return False


def _rolled_back_though_interrupted(step: Step, ours: Seen, theirs: Seen, doubts: Doubts) -> bool:
    """The ROLLBACK at the end of a `with` block, while an interrupt still holds: here it is the door's, and is done."""
    same = _result(ours) == _result(theirs) and _without(ours, "in_transaction") == _without(theirs, "in_transaction")
    if step.kind == "with_block" and same and ours[2] == "SQLITE_INTERRUPT" and not _state(ours)["in_transaction"]:
        raise Parted("a rollback during an interrupt")
    return False


def _text_factory_of_then(step: Step, ours: Seen, theirs: Seen, doubts: Doubts) -> bool:
    """A text factory set between `execute` and a fetch: ours is that of `execute`."""
    if step.kind != "fetch" or step.arguments[0] not in doubts.texts:
        return False
    if "ZeroDivisionError" in (ours[1], theirs[1]):  # the factory that fails
        raise Parted("the text factory as it was at execute")
    return _state(ours) == _state(theirs) and _folded(_result(ours)) == _folded(_result(theirs))


def _folded(value: Any) -> Any:
    """A result (as_sqlite3_side.plain) in which a text is the same, whatever factory made it."""
    if not isinstance(value, tuple):
        return value
    if len(value) == 2 and value[0] in ("str", "bytes", "bytearray"):
        made = ast.literal_eval(value[1].removeprefix("bytearray(").removesuffix(")"))
        return made.casefold().encode() if isinstance(made, str) else made.decode(errors="replace").casefold().encode()
    return tuple(map(_folded, value))


# By release of the standard library's module.


def _executes_in_itself(step: Step) -> bool:
    """A function that calls `execute` of the cursor which runs it. From 3.12 on that is refused as before, and then the
    cursor has no statement any more: the module goes on with it, and its process dies."""
    return step.kind == "nested" and step.arguments[1] == "execute"


def _returns_from_many(step: Step) -> bool:
    """`executemany` with RETURNING. Its rows are discarded, say the manuals of all releases; from 3.12 on the first one
    is left to be fetched, and the second set of parameters is then a misuse of the statement."""
    return step.kind == "many" and "RETURNING" in step.arguments[1]


_LEFT_OUT: Final[dict[str, tuple[tuple[int, int], Callable[[Step], bool]]]] = {
    "executemany with RETURNING": ((3, 12), _returns_from_many),
    "a cursor that executes in its own function": ((3, 12), _executes_in_itself),
}
"""Steps that the module of such a Python, or a later one, cannot be asked about; earlier ones are."""


def left_out(step: Step, python: tuple[int, int, int]) -> str | None:
    """The rule by which neither side takes this step beside this Python's module; None if both do."""
    return next((name for name, (since, rule) in _LEFT_OUT.items() if python >= since and rule(step)), None)


_Rule = Callable[[Step, Seen, Seen, Doubts], bool]
_RULES: Final[dict[str, _Rule]] = {
    "which of two errors": _two_errors,
    "the trace of what is no SQL": _told_of_no_sql,
    "the rowid of an INSERT that failed": _rowid_of_what_failed,
    "stopped before it was told": _stopped_before_it_was_told,
    "a transaction begun for nothing": _begun_for_nothing,
    "what failed is said again": _said_again,
    "told, and not prepared again": _told_and_not_prepared_again,
    "an interrupt before the first write": _interrupted_before_it_wrote,
    "a rollback during an interrupt": _rolled_back_though_interrupted,
    "the text factory as it was at execute": _text_factory_of_then,
}


def excuse(step: Step, ours: Seen, theirs: Seen, doubts: Doubts) -> str | None:
    """The rule by which two different outcomes of a step are right; None if there is none. Raises Parted where the
    sides go on differently from here."""
    return next((name for name, rule in _RULES.items() if rule(step, ours, theirs, doubts)), None)
