"""Which schema changes there are in a region: asked by the commit door before one is run, and by an applier of one that
the stream brings.

Guarantees: both ask the same functions, so what no door lets through no secondary applies, whatever has written the
primary's journal; a refusal names what it is about, and nothing has been run then.
Leaves to others: connections (what only one of them has, such as functions, its own side judges), and what a statement
does while it runs: an authorizer sees that (statements.py, guards.py).
"""

from __future__ import annotations

import math
import re
from typing import Final, TypeAlias

import apsw

from replicate.errors import NotSupportedError
from replicate.region.sqlite.sql.names import OWN_PREFIX
from replicate.region.sqlite.sql.pragmas import Verdict, judge
from replicate.region.sqlite.sql.statements import Statement, Verb, classify
from replicate.region.sqlite.virtual_tables import check_module

Value: TypeAlias = "int | float | str | bytes | None"
_SCHEMAS: Final = ("", "main")
_VALUE: Final = r"(?:NULL|-?[0-9.]+(?:e[-+]?[0-9]+)?|X?'(?:[^']|'')*')"
_COUNTER: Final = re.compile(
    rf"DELETE FROM main\.sqlite_sequence WHERE name IS {_VALUE}"
    rf"|INSERT INTO main\.sqlite_sequence \(name, seq\) VALUES \({_VALUE}, {_VALUE}\)",
)


def counter_statements(name: Value, *seq: Value, where: str) -> list[str]:
    """What makes the row of `name` in sqlite_sequence hold `seq`, or, without it, be gone: how a counter by which no
    table counts travels. `check_travelling` lets these texts through, and none of another form. NotSupportedError for
    a name that no literal holds."""
    shown = _literal(name)
    texts = [f"DELETE FROM main.sqlite_sequence WHERE name IS {shown}"]
    for value in seq:
        texts.append(f"INSERT INTO main.sqlite_sequence (name, seq) VALUES ({shown}, {_literal(value)})")
    if not all(map(_COUNTER.fullmatch, texts)):
        raise NotSupportedError(
            f"the counter of {name!r} in sqlite_sequence cannot travel", where=where, do="Roll back; leave it alone"
        )
    return texts


def _literal(value: Value) -> str:
    is_minus_zero = isinstance(value, float) and value == 0 and math.copysign(1, value) < 0
    return "-0.0" if is_minus_zero else apsw.format_sql_value(value)  # which knows one zero, and SQLite two


def check_definable(statement: Statement, *, where: str) -> None:
    """NotSupportedError for a schema change of a region that nobody may make: a virtual table of a module whose content
    is out of reach; a text that names our bookkeeping anywhere, in a trigger or as the content of a full-text index
    too, where SQLite itself does not look when the object is made."""
    if statement.kind == "VIRTUAL TABLE":
        check_module(statement.name, statement.argument or "", where=where)
    ours = next((word for word in sorted(statement.words) if word.startswith(OWN_PREFIX)), None)
    if ours is not None:
        raise NotSupportedError(
            f"{ours} belongs to replication's bookkeeping, or bears a name that is kept for it",
            where=where,
            do="Use another name; to take the bookkeeping out run: replicate -i INSTANCE region release NAME",
        )


def check_travelling(text: str, *, where: str) -> None:
    """NotSupportedError for a text that no door sends as a schema change: each sends one statement, of the region
    itself; of a CREATE TABLE AS it sends the table that came of it, without the SELECT."""
    statement = classify(text)
    if "\0" in text:
        _refuse("a null character", where)
    if statement.several:
        _refuse("several statements", where)
    if statement.temporary:
        _refuse("a temporary object", where)
    if statement.schema not in _SCHEMAS:
        _refuse(f"database {statement.schema}", where)
    if statement.verb is Verb.DEFINE and statement.selects:
        _refuse("a CREATE TABLE AS", where)
    elif statement.verb is Verb.DEFINE:
        check_definable(statement, where=where)
    elif statement.verb is Verb.WRITE and _COUNTER.fullmatch(text):
        pass
    elif statement.verb is not Verb.PRAGMA:
        _refuse(statement.keyword or "no statement", where)
    elif judge(statement.name, statement.argument) is not Verdict.CAPTURE:
        _refuse(f"PRAGMA {statement.name}", where)


def _refuse(what: str, where: str) -> None:
    raise NotSupportedError(f"{what} is no schema change of a region", where=where)
