"""A commit door of one process: regions are real files set up by `install`, the journal is a list.

Keeps every committed transaction (`commits`), can be secondary, can be told to fail, and hands out connections.
"""

from __future__ import annotations

import fcntl
import os
import uuid
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import apsw
import msgpack

from replicate.dbapi.connection import Connection
from replicate.errors import BusyError, NotPrimaryError, SchemaChangedError, SnapshotStaleError
from replicate.model.partitions import ONLY_DEFAULT, Partitions
from replicate.model.transaction import Op
from replicate.region.protocol import CapturedChanges
from replicate.region.sqlite.bookkeeping import schema_version, store_schema_version
from replicate.region.sqlite.open import install, open_region


class FakeSpool:
    """A change stream in memory, with the calls of a spool."""

    def __init__(self) -> None:
        self.stream = bytearray()
        self.aborted = False

    def write(self, data: bytes) -> None:
        self.stream += data

    def tell(self) -> int:
        return len(self.stream)

    def cut(self, offset: int) -> None:
        del self.stream[offset:]

    def abort(self) -> None:
        self.aborted = True


@dataclass
class FakeCommit:
    """What reached the door: the flat changes as (op, id, arg, values)."""

    seqno: int
    changes: list[tuple[Op, int, Any, list[Any]]]
    spooled: bool
    captured: CapturedChanges


@dataclass
class FakeDoor:
    """The door to one region file."""

    path: Path
    primary: bool = True
    region: str = "main"
    commits: list[FakeCommit] = field(default_factory=list)
    begun: int = 0
    fail_commit: BaseException | None = None
    schema_version: int = 0

    def connect(self, **options: Any) -> Connection:
        factory = options.pop("factory", Connection)
        made: Connection = factory(self.path.parent, opener=lambda instance, region: FakeOpened(self), **options)
        return made

    def operations(self) -> list[list[str]]:
        """Operation names of each transaction."""
        return [[change[0].name for change in commit.changes] for commit in self.commits]


def make_region(path: Path, schema: str = "", *, primary: bool = True) -> FakeDoor:
    """A database with `schema`, made a region."""
    connection = apsw.Connection(str(path))
    connection.execute(schema or "SELECT 1")
    connection.close()
    plain = open_region(path, plain=True)
    install(plain, network=uuid.uuid4().bytes, instance=uuid.uuid4().bytes, region=uuid.uuid4().bytes, name="main")
    version = schema_version(plain)
    plain.close()
    return FakeDoor(path, primary, schema_version=version)


class FakeOpened:
    """What dbapi/connection.py asks for (Opened), over a fake door."""

    busy_timeout_s = 5.0
    neighbours = None

    def __init__(self, door: FakeDoor) -> None:
        self.door = door
        self.session = FakeSession(door)
        self.region = door.region
        self.waited: list[int] = []

    def new_spool(self) -> Any:
        return FakeSpool()

    def partitions(self) -> Partitions:
        return ONLY_DEFAULT

    def wait_durable(self, seqno: int) -> None:
        self.waited.append(seqno)

    def close(self) -> None:
        pass


class FakeSession:
    """One connection's session, with a lock file for the region lock."""

    def __init__(self, door: FakeDoor) -> None:
        self.door = door
        self.schema = self.last_seqno = 0
        self.holds_region = False
        self.connection = open_region(door.path, readonly=not door.primary)
        self._lock = os.open(door.path.with_suffix(".lock"), os.O_CREAT | os.O_RDWR | os.O_CLOEXEC, 0o600)

    def _take(self) -> None:
        if not self.door.primary:
            raise NotPrimaryError("this instance is secondary", do="Write on the primary")
        try:
            fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise BusyError("another writer holds the region") from None

    def _check_schema(self) -> None:
        self.schema = schema_version(self.connection)
        if self.schema != self.door.schema_version:
            raise SchemaChangedError("another client changed the schema")

    def begin(self, *, timeout_s: float) -> None:
        self._take()
        try:
            self.connection.execute("BEGIN IMMEDIATE")
            self._check_schema()
        except BaseException:
            self.rollback()
            raise
        self.door.begun += 1

    def upgrade(self, *, timeout_s: float) -> None:
        self._take()
        try:
            self.connection.execute("UPDATE main._replicate_state SET value = value WHERE 0")
        except apsw.BusyError as error:
            fcntl.flock(self._lock, fcntl.LOCK_UN)
            raise SnapshotStaleError("another transaction has written") from error
        self._check_schema()
        self.door.begun += 1

    def commit(self, captured: CapturedChanges) -> int:
        connection, door = self.connection, self.door
        if not captured.count:
            connection.execute("COMMIT")
        else:
            if connection.status(apsw.SQLITE_DBSTATUS_DEFERRED_FKS)[0] > 0:
                connection.execute("COMMIT")
            if door.fail_commit is not None:
                connection.execute("ROLLBACK")
                raise door.fail_commit
            if captured.schema_changed:
                store_schema_version(connection)
            connection.execute("UPDATE _replicate_ring SET seqno = ? WHERE slot = ?", (len(door.commits) + 1, 1))
            connection.execute("COMMIT")
            door.schema_version = schema_version(connection)
            spool: Any = captured.spool
            stream = bytes(spool.stream) if spool is not None else captured.payload
            unpacker = msgpack.Unpacker(max_buffer_size=2**31 - 1)
            unpacker.feed(stream)
            flat = list(unpacker)
            assert len(flat) == captured.count
            changes = [(Op(flat[at]), flat[at + 1], flat[at + 2], flat[at + 3]) for at in range(0, len(flat), 4)]
            door.commits.append(FakeCommit(len(door.commits) + 1, changes, spool is not None, captured))
        fcntl.flock(self._lock, fcntl.LOCK_UN)
        return len(door.commits)

    def rollback(self) -> None:
        try:
            if self.connection.in_transaction:
                self.connection.execute("ROLLBACK")
        finally:
            fcntl.flock(self._lock, fcntl.LOCK_UN)

    def close(self) -> None:
        if self._lock >= 0:
            self.rollback()
            self.connection.close(True)
            os.close(self._lock)
            self._lock = -1
