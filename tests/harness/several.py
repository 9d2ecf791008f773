"""A primary and a secondary with several regions, and connections that attach them: what tests of ATTACH need.

Guarantees: `same` carries everything to the secondary, applies it and compares every region there: objects, rows,
rowids and typed values, counters of AUTOINCREMENT, user_version; journal and regions of the primary agree.
Leaves to others: what a test attacks.
"""

from __future__ import annotations

from contextlib import closing
from pathlib import Path
from typing import Any

import apsw

from replicate.admin.regions import add_region
from replicate.audit.verify import verify_journal
from replicate.dbapi import Connection, connect
from replicate.instance.instance import Instance
from replicate.region.sqlite.bookkeeping import region_seqno
from replicate.region.sqlite.open import open_region
from replicate.region.sqlite.schema import read_definition, schema_objects, user_tables
from tests.harness.instances import door_of
from tests.harness.pair import Pair, work_all
from tests.harness.regions import make_database

SCHEMA = "CREATE TABLE t (id INTEGER PRIMARY KEY, v); CREATE TABLE k (n INTEGER PRIMARY KEY AUTOINCREMENT, v);"


class Several(Pair):
    """`names`: the regions; `main` is the first."""

    names: tuple[str, ...]

    @classmethod
    def make(cls, directory: Path, names: tuple[str, ...] = ("main", "two"), schema: str = SCHEMA) -> Several:
        """Both instances, seeded; `schema` is in each region."""
        made = cls.create(directory, schema)
        made.names = names
        for name in names[1:]:
            add_region(made.primary, make_database(directory / f"{name}.db", schema), name=name)
        made.primary.reload()
        made.seed()
        return made

    def path(self, name: str) -> Path:
        """A region's file on the primary."""
        return self.primary.region(name).path

    def attached(self, home: str = "main", **options: Any) -> Connection:
        """A connection to the region `home`, with all others attached under their own names ("main": as first)."""
        made = connect(self.primary.path, home, **options)
        for name in self.names:
            if name != home:
                made.execute("ATTACH ? AS ?", (str(self.path(name)), "first" if name == "main" else name))
        return made

    def same(self) -> int:
        """Bring the secondary to where the primary is, and compare; the seqno."""
        with self.receive_pool() as pool, self.applier(pool) as applier:
            while applier.applied_seqno < self.last_seqno():
                self.deliver(pool)
                before = applier.applied_seqno
                work_all(applier)
                assert applier.applied_seqno > before
        for name in self.names:
            assert content(self.primary, name) == content(self.secondary, name), name
        assert not verify_journal(self.primary).findings
        return self.last_seqno()

    def ids(self, name: str) -> list[int]:
        """The keys of the table t in a region of the primary."""
        return [row[0][1] for row in content(self.primary, name)["rows of t"]]

    def held(self) -> dict[str, int]:
        """The seqno of each region of the primary."""
        found = {}
        for name in self.names:
            with closing(open_region(self.path(name), readonly=True)) as connection:
                found[name] = region_seqno(connection)
        return found


def content(instance: Instance, name: str) -> dict[str, Any]:
    """All that must be equal on both sites."""
    with door_of(instance):
        pass  # recovered, if need be
    return content_of(instance.region(name).path)


def content_of(path: Path) -> dict[str, Any]:
    """The same of a file, which may be a plain one."""
    connection = apsw.Connection(str(path), flags=apsw.SQLITE_OPEN_READONLY)
    try:
        found: dict[str, Any] = {"schema": dict(schema_objects(connection))}
        for table in user_tables(connection):
            rowid = "rowid, " if read_definition(connection, table, region="").without_rowid is False else ""
            rows = connection.execute(f'SELECT {rowid}* FROM "{table}" ORDER BY 1').fetchall()
            found[f"rows of {table}"] = [[(type(value), value) for value in row] for row in rows]
        if connection.table_exists("main", "sqlite_sequence"):
            counters = "SELECT name, seq FROM sqlite_sequence WHERE seq IS NOT 0 ORDER BY name"
            found["counters"] = connection.execute(counters).fetchall()
        found["user_version"] = connection.execute("PRAGMA user_version").get
        return found
    finally:
        connection.close()
