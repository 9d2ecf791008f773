"""The tables that a script of SQL makes: what the other side of a filter has, where its region cannot be asked.

Guarantees: the script runs in memory only; what it makes is read as it would be in a region.
Leaves to others: whose script it is (source_server/filtering.py).
"""

from __future__ import annotations

import os
from pathlib import Path

import apsw

from replicate.errors import ConfigurationError
from replicate.model.transaction import TableDefinition
from replicate.region.sqlite.schema import read_definition, user_tables


def scripted_definitions(path: str | os.PathLike[str], *, region: str) -> tuple[TableDefinition, ...]:
    """The definitions of the tables of `region` after the script. ConfigurationError when it cannot be read or run."""
    where = os.fspath(path)
    connection = apsw.Connection(":memory:")
    try:
        connection.execute(Path(path).read_text(encoding="utf-8"))
        return tuple(read_definition(connection, name, region=region) for name in user_tables(connection))
    except (OSError, UnicodeDecodeError, apsw.Error) as error:
        raise ConfigurationError(
            f"a filter's schema cannot be read: {error}", where=where, do="Give a script of CREATE TABLE statements"
        ) from error
    finally:
        connection.close()
