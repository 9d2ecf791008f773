"""Having SQLite judge a statement that is not run, so that errors come in sqlite3's order.

Guarantees: nothing is changed; what SQLite says of the text is raised, or told.
Leaves to others: what is done about it.
"""

from __future__ import annotations

import contextlib

import apsw

from replicate.errors import NotSupportedError
from replicate.region.sqlite.sql.statements import Statement, parameter_count


def prepare(connection: apsw.Connection, sql: str) -> bool:
    """Have SQLite say what is wrong with a statement. Returns whether it takes it for one that only reads.

    Raises what SQLite says of the text, as apsw.Error.
    """
    reads = True

    def stop(cursor: apsw.Cursor, text: str, values: object) -> bool:
        nonlocal reads
        reads = cursor.is_readonly
        return False

    cursor = connection.cursor()
    cursor.exec_trace = stop
    with contextlib.suppress(apsw.ExecTraceAbort):
        cursor.execute(sql, (None,) * parameter_count(sql))  # kept by APSW for when it is run
    return reads


def can_prepare(connection: apsw.Connection, statement: Statement, error: BaseException) -> bool:
    """Whether the text of a statement that failed with `error` is SQL for the schema of now."""
    if not isinstance(error, apsw.SQLError | apsw.AuthError | NotSupportedError):
        return True
    try:
        connection.execute("EXPLAIN " + statement.text, can_cache=False).close(True)
    except apsw.BindingsError:
        return True
    except (apsw.Error, NotSupportedError):
        return False
    return True
