"""Reading rows of more columns than a result set may have: a table may have as many, and its hidden rowid comes to it.

Guarantees: rows come whole and in their order, however wide they are; a row that fits one result set is read as ever.
Leaves to others: whose rows they are. The caller holds a transaction, or the columns of a row were of two moments.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from itertools import chain
from typing import Any

import apsw


def read_rows(
    connection: apsw.Connection,
    columns: Sequence[str],
    source: str,
    bindings: Sequence[Any] = (),
    *,
    can_cache: bool = True,
) -> Iterable[Any]:
    """`SELECT columns source`: expressions, and the text from FROM on. Of a wide row, one statement for each so many
    columns as a result set may have; so `source` gives at most one row, or has an order in which no two are equal."""
    most = connection.limit(apsw.SQLITE_LIMIT_COLUMN)
    if len(columns) <= most:
        return connection.execute(f"SELECT {', '.join(columns)} {source}", bindings, can_cache=can_cache)
    return _joined(
        [
            connection.execute(f"SELECT {', '.join(columns[at : at + most])} {source}", bindings, can_cache=False)
            for at in range(0, len(columns), most)
        ]
    )


def _joined(parts: list[apsw.Cursor]) -> Iterator[tuple[Any, ...]]:
    for pieces in zip(*parts, strict=True):
        yield tuple(chain.from_iterable(pieces))


def read_row(
    connection: apsw.Connection,
    columns: Sequence[str],
    source: str,
    bindings: Sequence[Any] = (),
    *,
    can_cache: bool = True,
) -> tuple[Any, ...] | None:
    """The first row of `read_rows`; None if there is none."""
    found: tuple[Any, ...] | None = next(
        iter(read_rows(connection, columns, source, bindings, can_cache=can_cache)), None
    )
    return found
