"""A primary and a secondary on one host without their daemons: the test itself carries frames from one to the other.

Guarantees: everything is below one directory, the pools too; what `deliver` puts into the receive pool is what a Source
Server would have read from the primary's journal.
Leaves to others: the wire.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import apsw

from replicate import connect
from replicate.admin.regions import add_region
from replicate.compare.compare import compare
from replicate.dbapi import Connection
from replicate.door.recovery.opening import close_door, make_chain
from replicate.door.secondary import ApplySession, open_apply_session
from replicate.door.snapshot import door_of
from replicate.filters.restating import StreamLarge
from replicate.filters.rows import RowSelection
from replicate.filters.selection import PartitionSelection
from replicate.instance.consumers import Consumer, write_consumer
from replicate.instance.instance import Instance
from replicate.journal.reader import ChainReader, LargeTransaction
from replicate.journal.record import FrameBatch, Head, read_head
from replicate.pool.receive_pool import ReceivePool, RecordKind
from replicate.settings.table import UpdateConfig
from replicate.transfer.seed.direct import seed
from tests.harness.instances import last_seqno, with_settings
from update_process.applier import Applier
from update_process.work_result import Done

SCHEMA = """
CREATE TABLE account (id INTEGER PRIMARY KEY, owner TEXT NOT NULL, balance INTEGER, note);
CREATE TABLE entry (at TEXT, amount REAL, data BLOB);
CREATE INDEX entry_at ON entry (at);
"""

SMALL = "[journal]\npool_bytes = 1048576\n"
"""A journal pool of the default size takes more of a processor to make than all the rest of an instance."""


@dataclass
class Pair:
    """Both instances. `secondary` is seeded by `seed()`."""

    directory: Path
    primary: Instance
    secondary: Instance

    @classmethod
    def create(cls, directory: Path, schema: str = SCHEMA, *, settings: str = SMALL) -> Pair:
        """A primary with the region main, and a secondary that is its peer and empty. REPLICATE_SHM_DIR is set for this
        process: the caller puts it back (monkeypatch.setenv before). `settings`: of both, from before the first pool
        is made."""
        shm = directory / "shm"
        shm.mkdir()
        os.environ["REPLICATE_SHM_DIR"] = str(shm)
        primary = Instance.create(directory / "east", role="primary", name="east")
        secondary = Instance.create(directory / "west", role="secondary", name="west", network=primary.content.network)
        if settings:
            primary, secondary = with_settings(primary, settings), with_settings(secondary, settings)
        connection = apsw.Connection(str(directory / "app.db"))
        connection.execute(schema)
        connection.close()
        add_region(primary, directory / "app.db")
        primary.register_peer("west", "127.0.0.1", 7430)
        primary.reload()
        return cls(directory, primary, secondary)

    def connect(self) -> Connection:
        """An application's connection to the primary."""
        return connect(self.primary.path)

    def write(self, count: int, *, size: int = 20) -> int:
        """Transactions of one account; the number of the last."""
        connection = self.connect()
        for _ in range(count):
            connection.execute("INSERT INTO account(owner, note) VALUES ('o', ?)", ("x" * size,))
            connection.commit()
        last = connection.last_seqno
        connection.close()
        assert last is not None
        return last

    def seed(self, **options: bool) -> int:
        """Seed the secondary; the sequence number."""
        made = seed(self.primary, self.secondary, **options)
        self.secondary.reload()
        return made.seqno

    def last_seqno(self, instance: Instance | None = None) -> int:
        """The last number in the primary's journal, or an instance's."""
        return last_seqno(instance or self.primary)

    def acknowledge(self, seqno: int | None = None, peer: str = "west") -> None:
        """The primary knows that its peer has everything durably, or everything up to `seqno`."""
        last = self.last_seqno() if seqno is None else seqno
        write_consumer(self.primary.consumers_directory, Consumer(peer, last))

    def deliver(self, pool: ReceivePool, *, upto: int | None = None, record_bytes: int = 64 * 1024) -> int:
        """Put the primary's transactions after what the pool has received into the pool, until it is full.

        Returns the last number received whole. Of a secondary that has some partitions only, as its source does.
        """
        with door_of(self.primary) as door:
            door.sync_to_end()
        bound = self.last_seqno() if upto is None else upto
        reader = ChainReader(make_chain(self.primary), pool.last_received_seqno + 1)
        self.secondary.reload()
        selection: PartitionSelection | RowSelection | None = None
        if self.secondary.content.held is not None or self.primary.partitions_now().keeps_back:
            with door_of(self.primary) as door:
                definitions = door.catalogue_now().definitions
            # More than a source begins with: all that were ever defined. A table's id is of one definition only.
            asked = self.secondary.content.choice.asked
            selection = PartitionSelection(asked, definitions)
            if asked is not None:  # as the Receiver Server does at the start of a stream
                first = pool.last_received_seqno + 1
                self.secondary.change_subscription(lambda now: now.streaming_from(first, asked))
        if self.secondary.content.held_rows:
            with door_of(self.primary) as door:
                definitions = door.catalogue_now().definitions
            selection = RowSelection(self.secondary.content.held_rows, definitions, selection)
        try:
            while (found := reader.read(record_bytes, bound)) is not None:
                if selection is not None and isinstance(found, FrameBatch):
                    found = selection.take(found)
                elif selection is not None and not selection.takes_whole(found.commit_frame, found.partitions):
                    if not deliver_selected(pool, selection, found):
                        break
                    continue
                if isinstance(found, LargeTransaction):
                    if not deliver_large(pool, found):
                        break
                elif not pool.offer(found.data, found.first_seqno, found.last_seqno, found.count, RecordKind.FRAMES):
                    break
        finally:
            reader.close()
        return pool.last_received_seqno

    @contextmanager
    def receive_pool(self, configured_bytes: int = 4 * 1024 * 1024) -> Iterator[ReceivePool]:
        """A fresh receive pool of the secondary, after what it has applied."""
        pool = ReceivePool.create(
            self.secondary.content.uuid,
            configured_bytes=configured_bytes,
            last_seqno=self.last_seqno(self.secondary),
            replace=True,
        )
        try:
            yield pool
        finally:
            pool.close()

    @contextmanager
    def session(self) -> Iterator[ApplySession]:
        """The secondary's apply session."""
        session = open_apply_session(self.secondary)
        try:
            yield session
        finally:
            session.close()
            close_door(session.door)

    @contextmanager
    def applier(self, pool: ReceivePool, settings: UpdateConfig | None = None) -> Iterator[Applier]:
        """An applier over a session of its own."""
        with self.session() as session:
            applier = Applier(
                session, pool, settings or UpdateConfig(), conflict_directory=self.secondary.conflict_directory
            )
            try:
                yield applier
            finally:
                applier.close()

    def catch_up(self) -> Done:
        """The secondary receives and applies all that the primary has; a receive pool of its own. Raises what stops
        the applier; what was done last."""
        with self.receive_pool() as pool, self.applier(pool) as applier:
            while self.deliver(pool) < self.last_seqno():
                work_all(applier)
            done = work_all(applier)
            assert applier.applied_seqno == self.last_seqno()
            return done

    def rows(self, table: str, instance: Instance | None = None) -> list[tuple[object, ...]]:
        """All rows of a table of the secondary (or of `instance`), with their rowids."""
        path = (instance or self.secondary).region("main").path
        connection = apsw.Connection(str(path), flags=apsw.SQLITE_OPEN_READONLY)
        try:
            return list(connection.execute(f"SELECT rowid, * FROM {table} ORDER BY rowid"))
        finally:
            connection.close()


def assert_equal(pair: Pair) -> None:
    """Both sites have the same rows and schema, and stand where the primary's journal ends."""
    found = compare(pair.primary, pair.secondary, timeout_s=60)
    assert found.equal, found
    assert found.seqno == pair.last_seqno()


def deliver_large(pool: ReceivePool, large: LargeTransaction) -> bool:
    """Its parts, one to a record, from where the pool stands, then its commit; False when the pool is full."""
    for number, part in enumerate(large.parts(pool.received_parts), pool.received_parts):
        del number
        if not pool.offer(part, large.seqno, large.seqno, 1, RecordKind.PARTS):
            return False
    return pool.offer(large.commit_frame, large.seqno, large.seqno, 1, RecordKind.LARGE)


def deliver_selected(pool: ReceivePool, selection: PartitionSelection | RowSelection, large: LargeTransaction) -> bool:
    """What goes of a large transaction; False when the pool is full."""
    for item in selection.large(large.commit_frame, large.parts(), large.token ^ 1):
        if isinstance(item, FrameBatch):
            return pool.offer(item.data, large.seqno, large.seqno, 1, RecordKind.FRAMES)
        if isinstance(item, StreamLarge):
            return pool.offer(item.frame, large.seqno, large.seqno, 1, RecordKind.LARGE)
        for begin, head in _parts(item.frames):
            part = item.frames[begin : begin + head.frame_bytes]
            if not pool.offer(part, large.seqno, large.seqno, 1, RecordKind.PARTS):
                return False
    raise AssertionError("nothing commits it")


def _parts(frames: bytes) -> Iterator[tuple[int, Head]]:
    begin = 0
    while begin < len(frames):
        head = read_head(frames, begin)
        yield begin, head
        begin += head.frame_bytes


def work_all(applier: Applier) -> Done:
    """Work until there is nothing more to do; the sum of what was done."""
    return applier.work(60.0)


def run(pair: Pair, *transactions: str) -> int:
    """Each one transaction; the number of the last."""
    connection = pair.connect()
    for one in transactions:
        for statement in one.split(";"):
            connection.execute(statement)
        connection.commit()
    last = connection.last_seqno
    connection.close()
    assert last is not None
    return last
