"""Where replicate.dbapi is not as the standard library's sqlite3, and the comparison knows it: each by its name.

Guarantees: a rule excuses one kind of difference and nothing beside it; README's chapter on what differs from sqlite3
says what an application should know of it.
Refuses to know: how the sides were brought there.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

from tests.fuzz.as_sqlite3_programs import Step
from tests.fuzz.as_sqlite3_side import Seen


class Parted(Exception):
    """From here on the sides are not the same any more, and may be so; the text says by which rule."""


def _state(seen: Seen) -> dict[str, Any]:
    return dict(seen[seen.index("|") + 1 :])


def _result(seen: Seen) -> Seen:
    return seen[: seen.index("|")]


def _without(seen: Seen, *names: str) -> dict[str, Any]:
    return {name: value for name, value in _state(seen).items() if name not in names}


def _two_errors(step: Step, ours: Seen, theirs: Seen, doubtful_rowid: bool) -> bool:
    """A call with two mistakes in its parameters: which of them is said."""
    mistakes = ("ProgrammingError", "OverflowError", "UnicodeEncodeError")
    both = ours[0] == theirs[0] == "error" and ours[1] in mistakes and theirs[1] in mistakes
    return both and _state(ours) == _state(theirs)


def _told_of_no_sql(step: Step, ours: Seen, theirs: Seen, doubtful_rowid: bool) -> bool:
    """A trace callback is told of the BEGIN before a data change that is no SQL; sqlite3 prepares it first."""
    told = [text for text in _state(ours)["told"] if not text.startswith("BEGIN")]
    same = _result(ours) == _result(theirs) and _without(ours, "told") == _without(theirs, "told")
    return same and ours[0] == "error" and told == list(_state(theirs)["told"])


def _rowid_of_what_failed(step: Step, ours: Seen, theirs: Seen, doubtful_rowid: bool) -> bool:
    """last_insert_rowid() behind an INSERT that failed: in a table with triggers (as ours are, by their guards) SQLite
    finds out later, and has counted the row."""
    failed = doubtful_rowid or theirs[1] == "IntegrityError"
    return failed and _result(ours) == _result(theirs) and _without(ours, "lastrowid") == _without(theirs, "lastrowid")


_Rule = Callable[[Step, Seen, Seen, bool], bool]
_RULES: Final[dict[str, _Rule]] = {
    "which of two errors": _two_errors,
    "the trace of what is no SQL": _told_of_no_sql,
    "the rowid of an INSERT that failed": _rowid_of_what_failed,
}


def excuse(step: Step, ours: Seen, theirs: Seen, doubtful_rowid: bool) -> str | None:
    """The rule by which two different outcomes of a step are right; None if there is none. `doubtful_rowid`: an INSERT
    has failed, and none has passed since."""
    return next((name for name, rule in _RULES.items() if rule(step, ours, theirs, doubtful_rowid)), None)
