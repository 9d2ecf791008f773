"""Instances for tests of the door: a primary with regions, a secondary seeded from it, and writers in other processes.

Guarantees: every row that a helper inserts is captured as the application's side would capture it; `check` fails unless
journal, regions and pool agree, numbers and chain hashes included. A `Writer` is a process that is killed at the end.
Leaves to others: what a test attacks.
"""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import signal
import struct
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import apsw

from replicate.admin.regions import add_region
from replicate.audit.verify import verify_journal
from replicate.door.door import Door
from replicate.door.primary import RegionSession
from replicate.door.recovery.opening import begin_journal, make_chain, open_door
from replicate.instance.instance import Instance
from replicate.journal.reader import ChainReader, LargeTransaction
from replicate.journal.record import FrameBatch, chain_of, check_frame, decode, pack_elements
from replicate.journal.spool import Spool
from replicate.journal.walk import walk
from replicate.limits import LOOK_S
from replicate.model.transaction import Kind, Op, RowChange, Transaction
from replicate.pool import control as word
from replicate.pool.shared_memory import PoolKind, pool_path
from replicate.region.protocol import CapturedChanges
from replicate.region.sqlite.adopt_copy import adopt_at
from replicate.region.sqlite.bookkeeping import store_schema_version
from replicate.region.sqlite.open import open_region
from replicate.region.sqlite.schema import recorded_definitions
from tests.harness import fork_server
from tests.harness.regions import make_database
from tests.harness.waiting import wait_until

SCRIPT = "CREATE TABLE t(id INTEGER PRIMARY KEY, v)"
ROOT = Path(__file__).resolve().parent.parent.parent


def configure(directory: Path, **journal: object) -> None:
    """Settings of section [journal], in place of the defaults."""
    lines = ["[journal]"] + [f"{key} = {json.dumps(value)}" for key, value in journal.items()]
    (directory / "replicate.toml").write_text("\n".join(lines) + "\n")


def with_settings(instance: Instance, text: str) -> Instance:
    """The instance with this replicate.toml: settings are read when an instance is opened, and then only."""
    (instance.path / "replicate.toml").write_text(text)
    return Instance.open(instance.path)


def make_primary(
    directory: Path, *, regions: tuple[str, ...] = ("main",), script: str = SCRIPT, **journal: object
) -> Instance:
    """A new primary at `directory`, with regions (files in its parent) of the table t."""
    journal.setdefault("pool_bytes", 1024 * 1024)
    Instance.create(directory, role="primary", name="alpha")
    configure(directory, **journal)
    instance = Instance.open(directory)
    for name in regions:
        add_region(instance, make_database(directory.parent / f"{directory.name}-{name}.db", script), name=name)
    return Instance.open(directory)


def lose_pool(instance: Instance) -> None:
    """What a reboot does to the pool; a process that still has it notices from now on."""
    pool_path(PoolKind.JOURNAL, instance.content.uuid).unlink(missing_ok=True)
    time.sleep(LOOK_S)


MIXED = "REPLICATE_TEST_MIXED"
"""Set in the environment: what `captured` makes of an INSERT is a transaction over two sections."""


def insert_change(session: RegionSession, row_id: int, value: object) -> tuple[bytes, int]:
    """The payload of one INSERT into t."""
    definition = next(d for d in recorded_definitions(session.connection) if d.table == "t")
    return pack_elements(int(Op.INSERT), definition.table_id, 0, [row_id, value])


def captured(payload: bytes, count: int, *, spool: Spool | None = None, schema: bool = False) -> CapturedChanges:
    """What capture would hand to the door."""
    if MIXED in os.environ and payload and payload[:2] == bytes([Op.INSERT, 0xCE]):
        (table_id,) = struct.unpack_from(">I", payload, 2)
        comment = bytes([Op.COMMENT, 0, 0, 0x91, 0xA1]) + b"m"
        return CapturedChanges(payload + comment, count + 4, (0, 1), schema, spool, schema, tables={table_id: 1})
    return CapturedChanges(payload, count, (1,), schema, spool, schema)


def begin_insert(
    session: RegionSession, row_id: int, value: object = "x", *, timeout_s: float = 60.0
) -> CapturedChanges:
    """Begin, insert one row; what to commit."""
    session.begin(timeout_s=timeout_s)
    session.connection.execute("INSERT INTO t VALUES (?, ?)", (row_id, value))
    return captured(*insert_change(session, row_id, value))


def insert(session: RegionSession, row_id: int, value: object = "x", *, timeout_s: float = 60.0) -> int:
    """One transaction with one row; its seqno."""
    return session.commit(begin_insert(session, row_id, value, timeout_s=timeout_s))


def begin_large(session: RegionSession, row_id: int, rows: int, *, timeout_s: float = 60.0) -> CapturedChanges:
    """Begin, insert `rows` rows of 1 KiB through a spool; what to commit."""
    door = session.door
    session.begin(timeout_s=timeout_s)
    spool = Spool.create(door.instance.journal_directory, door.words[word.OWN_ORIGIN])
    for number in range(row_id, row_id + rows):
        value = "y" * 1024
        session.connection.execute("INSERT INTO t VALUES (?, ?)", (number, value))
        spool.write(insert_change(session, number, value)[0])
    return captured(b"", 4 * rows, spool=spool)


def change_schema(session: RegionSession, sql: str, table: str) -> int:
    """One transaction that makes or alters `table`."""
    from replicate.region.sqlite.guards import install_guards
    from replicate.region.sqlite.schema import guarded_tables, record_definitions

    session.begin(timeout_s=60.0)
    session.connection.execute(sql)
    install_guards(session.connection, guarded_tables(session.connection))
    record_definitions(session.connection, region=session.entry.name)
    definition = next(d for d in recorded_definitions(session.connection) if d.table == table)
    store_schema_version(session.connection)
    payload, count = pack_elements(
        int(Op.SCHEMA), 0, session.entry.name, [sql],
        int(Op.DEFINE), definition.table_id, definition.version, definition.pack(),
    )  # fmt: skip
    return session.commit(captured(payload, count, schema=True))


@contextlib.contextmanager
def door_of(instance: Instance) -> Iterator[Door]:
    """A door for a block."""
    door = open_door(instance)
    try:
        yield door
    finally:
        door.close()


@contextlib.contextmanager
def session_of(instance: Instance, region: str = "main") -> Iterator[RegionSession]:
    """A door and a session for a block."""
    with door_of(instance) as door:
        session = RegionSession(door, region)
        try:
            yield session
        finally:
            session.close()


def last_seqno(instance: Instance) -> int:
    """The last number in an instance's journal."""
    with door_of(instance) as door:
        return int(door.words[word.LAST_SEQNO])


def insert_rows(
    instance: Instance, first: int, count: int, region: str = "main", value: object = "x"
) -> tuple[int, int]:
    """A transaction each; where the journal's newest segment ended before and after."""
    with session_of(instance, region) as session:
        before = int(session.door.words[word.END_OFFSET])
        for row_id in range(first, first + count):
            insert(session, row_id, value)
        return before, int(session.door.words[word.END_OFFSET])


def rows(path: Path) -> dict[int, object]:
    """The content of t."""
    connection = open_region(path, readonly=True)
    try:
        return dict(connection.execute("SELECT id, v FROM t").fetchall())
    finally:
        connection.close(True)


@dataclass
class Found:
    """What the journal holds: transactions by seqno, and for each region the rows that they make."""

    transactions: dict[int, Transaction] = field(default_factory=dict)
    rows: dict[str, dict[int, object]] = field(default_factory=dict)

    @property
    def last_seqno(self) -> int:
        return max(self.transactions)

    def kinds(self) -> list[Kind]:
        return [self.transactions[seqno].kind for seqno in sorted(self.transactions)]


def read_journal(instance: Instance, first_seqno: int = 1) -> Found:
    """Everything in the journal up to the end; AssertionError for a gap or a chain hash that does not follow."""
    chain = make_chain(instance)
    with door_of(instance) as door:
        last = int(door.words[word.LAST_SEQNO])
        regions = {d.table_id: d.region for d in door.catalogue_now().definitions.values() if d.table == "t"}
    found = Found(rows={name: {} for name in regions.values()})
    reader = ChainReader(chain, first_seqno)
    chains: dict[int, int] = {}
    expected = first_seqno
    while (piece := reader.read(1024 * 1024, last)) is not None:
        frames = [piece.commit_frame] if isinstance(piece, LargeTransaction) else _frames(piece)
        for frame in frames:
            head = check_frame(frame)
            assert head.seqno == expected
            assert first_seqno > 1 or chain_of(frame, chains.get(head.origin, 0)) == head.chain
            chains[head.origin] = head.chain
            expected += 1
            transaction = decode(frame)
            found.transactions[head.seqno] = transaction
            changes: Any = transaction.content
            if isinstance(piece, LargeTransaction):
                changes = _large_changes(piece)
            for change in changes:
                if isinstance(change, RowChange) and change.table_id in regions:
                    assert change.op == Op.INSERT
                    assert change.after is not None
                    row_id, value = change.after
                    assert row_id not in found.rows[regions[change.table_id]]
                    found.rows[regions[change.table_id]][row_id] = value
    reader.close()
    assert expected == last + 1
    return found


def _frames(batch: FrameBatch) -> list[bytes]:
    return [batch.data[offset : offset + head.frame_bytes] for offset, head in walk(batch.data)]


def _large_changes(large: LargeTransaction) -> list[Any]:
    from replicate.journal.record import decode_changes, read_part, unpacker

    stream = unpacker()
    flat: list[Any] = []
    for part in large.parts():
        stream.feed(read_part(part)[2])
        flat.extend(stream)
    return list(decode_changes(flat))


def check(instance: Instance, *, first_seqno: int = 1) -> Found:
    """Journal and regions agree, nothing is unfinished, and `journal verify` has no finding."""
    instance = Instance.open(instance.path)
    found = read_journal(instance, first_seqno)
    findings = verify_journal(instance).findings
    assert not findings, findings
    for entry in instance.regions:
        if first_seqno == 1:
            assert rows(entry.path) == found.rows.get(entry.name, {}), entry.name
    with door_of(instance) as door:
        assert door.words[word.INTENT_SEQNO] == 0
        assert door.words[word.FATAL] == 0
        for entry in instance.regions:
            assert door.words[word.REGION_APPENDED + entry.region_id] == door.words[word.REGION_DONE + entry.region_id]
    return found


def power_loss(instance: Instance, keep_bytes: int | None = None) -> None:
    """The newest segment loses everything after `keep_bytes`, and the pool is gone."""
    if keep_bytes is not None:
        path = newest_segment(instance)
        size = path.stat().st_size
        with open(path, "r+b") as file:
            file.truncate(keep_bytes)
            file.truncate(size)
    lose_pool(instance)


def newest_segment(instance: Instance) -> Path:
    """The file that is appended to."""
    return max(instance.journal_directory.glob("*.journal"))


def save_region(path: Path, aside: Path) -> None:
    """A copy of a region's files as they are at this moment (nobody may write)."""
    aside.mkdir(exist_ok=True)
    for suffix in ("", "-wal"):
        if Path(f"{path}{suffix}").exists():
            shutil.copy(f"{path}{suffix}", aside / f"{path.name}{suffix}")


def restore_region(path: Path, aside: Path) -> None:
    """Put the copy back: what the disk had at a power loss."""
    for suffix in ("", "-wal", "-shm"):
        Path(f"{path}{suffix}").unlink(missing_ok=True)
        if (aside / f"{path.name}{suffix}").exists():
            shutil.copy(aside / f"{path.name}{suffix}", f"{path}{suffix}")


def make_secondary(directory: Path, primary: Instance, **journal: object) -> Instance:
    """A secondary seeded from the primary's present state, page by page."""
    Instance.create(directory, role="secondary", name="beta", network=primary.content.network)
    configure(directory, **{"pool_bytes": 1024 * 1024, **journal})
    instance = Instance.open(directory)
    with door_of(primary) as door, door.locked():
        position = door.position()
        catalogue = door.catalogue()
        partitions = {d.partition for d in catalogue.definitions.values()}
        origin = door.words[word.OWN_ORIGIN]
        position = position.advanced(
            position.last_seqno, origin, door.words[word.OWN_ORIGIN_SEQNO], door.words[word.OWN_CHAIN], partitions
        )
        csn = int(door.words[word.LAST_CSN])
    for entry in primary.regions:
        target = directory.parent / f"{directory.name}-{entry.name}.db"
        source = open_region(entry.path, readonly=True)
        copy = apsw.Connection(str(target))
        with copy.backup("main", source, "main") as backup:
            while not backup.done:
                backup.step(1000)
        copy.close()
        source.close(True)
        region_uuid = os.urandom(16)
        adopt_at(
            target,
            network=instance.content.network,
            instance=instance.content.uuid,
            region=region_uuid,
            name=entry.name,
            position=position,
            csn=csn,
            ends={},
        )
        instance.register_region(entry.name, region_uuid, target)
    begin_journal(instance, position, catalogue.newest())
    return Instance.open(directory)


class Writer:
    """A process that commits on demand; see writer.py for its commands."""

    def __init__(self, instance: Instance, failpoint: str = "", **environment: str) -> None:
        variables = {**os.environ, **environment, "PYTHONPATH": str(ROOT)}
        if failpoint:
            variables["REPLICATE_FAILPOINT"] = failpoint
        self.process = fork_server.popen(
            [sys.executable, "-m", "tests.harness.writer", str(instance.path)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            env=variables,
            cwd=ROOT,
            text=True,
        )

    def send(self, *command: object) -> None:
        """Give a command without waiting for its answer."""
        assert self.process.stdin is not None
        self.process.stdin.write(json.dumps(command) + "\n")
        self.process.stdin.flush()

    def answer(self) -> Any:
        """The next answer; None when the process has died."""
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        return json.loads(line) if line else None

    def ask(self, *command: object) -> Any:
        """Command and answer."""
        with contextlib.suppress(BrokenPipeError):
            self.send(*command)
        return self.answer()

    def stands_still(self) -> None:
        """Wait until a signal has stopped it."""
        stat = Path(f"/proc/{self.process.pid}/stat")
        wait_until(lambda: stat.read_text().rpartition(")")[2].split()[0] == "T", what="the writer stands still")

    def died(self) -> bool:
        """Wait for its end; True if it was killed."""
        return self.process.wait(timeout=300) == -signal.SIGKILL

    def close(self) -> None:
        """Let it end by itself."""
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        with contextlib.suppress(BrokenPipeError):
            self.process.stdin.close()
        self.process.wait(timeout=300)
        self.process.stdout.close()

    def __enter__(self) -> Writer:
        return self

    def __exit__(self, *_: object) -> None:
        if self.process.poll() is None:
            self.process.kill()
        self.close()
