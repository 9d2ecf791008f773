"""Several suppliers on one host without their daemons: the test itself carries what one of them lacks from another.

Guarantees: what `carry` brings into the receive pool is what a Source Server would have sent: decided by both vectors,
the rest as NULL records; it may be cut anywhere. Tables are in partitions of their own, so each can be given away.
Leaves to others: the wire, what a test attacks.
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager
from itertools import permutations
from pathlib import Path

import apsw
import pytest

from replicate import connect
from replicate.admin import partitions
from replicate.admin.regions import add_region
from replicate.dbapi import Connection
from replicate.door.door import Door
from replicate.door.recovery.opening import close_door, make_chain
from replicate.door.secondary import ApplySession, open_apply_session
from replicate.door.snapshot import door_of
from replicate.door.telling_transaction import SeenTeller
from replicate.instance.instance import Instance
from replicate.journal.reader import ChainReader, LargeTransaction
from replicate.journal.record import FrameBatch, Head
from replicate.journal.walk import walk
from replicate.limits import BATCH_BYTES_MAX
from replicate.model.vector import Chains
from replicate.pool import control as word
from replicate.pool.receive_pool import ReceivePool, RecordKind
from replicate.roles.partition_writers import give, share
from replicate.roles.retired_supplier import note_retired
from replicate.roles.supplier import convert
from replicate.settings.table import UpdateConfig
from replicate.transfer.seed.direct import seed
from replicate.wire.features import FEATURES
from replicate.wire.message import Introduction, Restart
from source_server.restart import Agreed, agree_by_vector
from tests.harness.instances import with_settings
from tests.harness.pair import SMALL, deliver_large
from update_process.applier import Applier
from update_process.merging import Merging
from update_process.routes import Routes
from update_process.supplied_transactions import SupplierApplier
from update_process.work_result import Done, Waiting

NAMES = ("a", "b", "c", "d", "e")
TABLES = ("ta", "tb", "tc", "td", "te")
"""Table t + NAME is in the partition P + NAME, which that supplier writes."""


class Suppliers:
    """`by`: the instances by their names. `pool_bytes`: of a receive pool."""

    def __init__(self, directory: Path, names: Sequence[str]) -> None:
        self.directory = directory
        self.names = tuple(names)
        self.by: dict[str, Instance] = {}
        self.pool_bytes = 4 * 1024 * 1024

    @classmethod
    def create(
        cls,
        directory: Path,
        count: int = 2,
        *,
        settings: str = SMALL,
        schema: Sequence[str] = (),
        apart: Sequence[str] = (),
    ) -> Suppliers:
        """`count` suppliers, level, each of which writes its own table. REPLICATE_SHM_DIR is set for this process.
        `schema`: statements that make more tables, all of which a writes; `apart`: the same, in a second region."""
        made = cls(directory, NAMES[:count])
        shm = directory / "shm"
        shm.mkdir()
        os.environ["REPLICATE_SHM_DIR"] = str(shm)
        first = with_settings(Instance.create(directory / "a", role="primary", name="a"), settings)
        made.by["a"] = first
        network = first.content.network
        for name in made.names[1:]:
            one = Instance.create(directory / name, role="secondary", name=name, network=network)
            made.by[name] = with_settings(one, settings)
        connection = apsw.Connection(str(directory / "app.db"))
        for table in TABLES[:count]:
            connection.execute(f"CREATE TABLE {table} (id INTEGER PRIMARY KEY, v, n INTEGER DEFAULT 0)")
        for statement in schema:
            connection.execute(statement)
        connection.close()
        add_region(first, directory / "app.db")
        if apart:
            connection = apsw.Connection(str(directory / "stock.db"))
            for statement in apart:
                connection.execute(statement)
            connection.close()
            add_region(first, directory / "stock.db", name="stock")
        first.reload()
        for name in made.names[1:]:
            partitions.create(first, f"P{name}")
            partitions.assign(first, f"P{name}", [f"t{name}"])
        convert(first, "supplier", timeout_s=30)
        for name in made.names[1:]:
            first.register_peer(name, "127.0.0.1", 7430)
            seed(first, made.by[name])
            made.by[name].reload()
            convert(made.by[name], "supplier", timeout_s=30)
        made.level()
        for name in made.names[1:]:
            give(first, f"P{name}", name, timeout_s=30)
        made.level()
        return made

    def seed_one_more(self, name: str) -> Instance:
        """A secondary of a, which may become a supplier. It is carried nothing until it is one of `names`."""
        first = self.by["a"]
        one = Instance.create(self.directory / name, role="secondary", name=name, network=first.content.network)
        self.by[name] = with_settings(one, SMALL)
        first.register_peer(name, "127.0.0.1", 7430)
        seed(first, self.by[name])
        self.by[name].reload()
        return self.by[name]

    def connect(self, name: str) -> Connection:
        """An application's connection to that supplier, to all of its regions."""
        connection = connect(self.by[name].path)
        for entry in self.by[name].regions[1:]:
            connection.attach(entry.name)
        return connection

    def write(self, name: str, count: int = 1, *, table: str = "", size: int = 10) -> None:
        """Transactions in a table (its own, unless another one is named)."""
        connection = self.connect(name)
        for _ in range(count):
            connection.execute(f"INSERT INTO {table or 't' + name} (v) VALUES (?)", ("x" * size,))
            connection.commit()
        connection.close()

    def vector(self, name: str) -> Chains:
        """What that supplier has."""
        with door_of(self.by[name]) as door, door.locked():
            return door.position().chains

    # Carrying.

    def agreed(self, source: str, consumer: str, *, wall_ns: int = 0, known: Chains | None = None) -> Agreed:
        """The start of a stream. Raises the refusal. `wall_ns`: of the consumer's hello; `known`: what it had then."""
        known = self.vector(consumer) if known is None else known
        self.by[consumer].reload()  # recovery may have raised its incarnation
        content = self.by[consumer].content
        who = Introduction(
            content.network,
            content.uuid,
            content.name,
            content.told_role,
            content.incarnation,
            "test",
            FEATURES,
            BATCH_BYTES_MAX,
            15_000,
            wall_ns,
        )
        with door_of(self.by[source]) as door:
            door.sync_to_end()
            return agree_by_vector(door, Restart(0, chains=known), who)

    def offer(self, source: str, pool: ReceivePool, agreed: Agreed, *, most: int | None = None) -> int:
        """Put what the source has into the pool, `most` transactions at most; how many."""
        assert agreed.unseen is not None
        last = self.last_seqno(source)
        if most is not None:
            last = min(last, agreed.from_seqno + most - 1)
        pool.offer(agreed.catalogue, agreed.from_seqno, agreed.from_seqno, 1, RecordKind.CATALOGUE)
        reader, count = ChainReader(make_chain(self.by[source]), agreed.from_seqno), 0
        try:
            while reader.next_seqno <= last and (found := reader.read(16 * 1024, last)) is not None:
                if isinstance(found, LargeTransaction):
                    found = agreed.unseen.takes_large(found)
                if isinstance(found, LargeTransaction):
                    assert deliver_large(pool, found)
                    count += 1
                    continue
                told = agreed.unseen.take(found)
                assert pool.offer(told.data, told.first_seqno, told.last_seqno, told.count, RecordKind.FRAMES)
                count += told.count
        finally:
            reader.close()
        return count

    @contextmanager
    def receive_pool(self, consumer: str, from_seqno: int, *, lanes: int = 1) -> Iterator[ReceivePool]:
        """A new one, of a stream that begins there. `pool_bytes` for each lane."""
        pool = ReceivePool.create(
            self.by[consumer].content.uuid,
            configured_bytes=lanes * self.pool_bytes,
            last_seqno=from_seqno - 1,
            replace=True,
            lanes=lanes,
        )
        pool.note_receiver(os.getpid(), time.monotonic_ns(), connected=True)
        try:
            yield pool
        finally:
            pool.close()

    @contextmanager
    def session(self, name: str) -> Iterator[ApplySession]:
        """The apply session of that supplier."""
        session = open_apply_session(self.by[name])
        try:
            yield session
        finally:
            session.close()
            close_door(session.door)

    @contextmanager
    def applier(self, name: str, pool: ReceivePool, settings: UpdateConfig | None = None) -> Iterator[SupplierApplier]:
        """An applier over a session of its own."""
        with self.session(name) as session:
            directory = self.by[name].conflict_directory
            applier = SupplierApplier(session, pool, settings or UpdateConfig(), conflict_directory=directory)
            try:
                yield applier
            finally:
                applier.close()

    def carry(self, source: str, consumer: str, *, most: int | None = None) -> Done:
        """Bring what the consumer lacks of the source's journal, or of its next `most` transactions, and apply it. A
        stream that the consumer asks to begin again does, as often as it asks."""
        agreed = self.agreed(source, consumer)
        with self.receive_pool(consumer, agreed.from_seqno) as pool, self.applier(consumer, pool) as applier:
            while True:
                self.offer(source, pool, agreed, most=most)
                done = work_through(applier)
                if Waiting.RESTART not in (done.waiting, applier.work(60).waiting):
                    return done
                pool.restart(0)
                agreed = self.agreed(source, consumer)

    def tend(self, name: str) -> None:
        """What its Update Process does while nothing comes: it tells what it has seen, and forgets what everybody
        has."""
        with self.session(name) as session:
            session.begin()
            merging = Merging(session, Routes(session))
            merging.begin()
            merging.tend(session.position, is_idle=True)
            session.keep()
            tell(session.door)

    def level(self, ways: Sequence[tuple[str, str]] = ()) -> None:
        """All have everything: round and round, each with each or over those ways, until nobody lacks anything."""
        ways = ways or list(permutations(self.names, 2))
        for _ in range(3 * len(self.names)):
            for source, consumer in ways:
                self.carry(source, consumer)
            if len({tuple(sorted(self.vector(name).items())) for name in self.names}) == 1:
                return

    # What they have.

    def last_seqno(self, name: str) -> int:
        """The last number of its journal."""
        with door_of(self.by[name]) as door:
            return int(door.words[word.LAST_SEQNO])

    def rows(self, name: str) -> dict[str, list[tuple[object, ...]]]:
        """All rows of all tables there."""
        found: dict[str, list[tuple[object, ...]]] = {}
        for entry in self.by[name].regions:
            connection = apsw.Connection(str(entry.path), flags=apsw.SQLITE_OPEN_READONLY)
            try:
                tables = [
                    t for (t,) in connection.execute("SELECT name FROM sqlite_schema WHERE type = 'table' ORDER BY 1")
                ]
                found |= {
                    table: list(connection.execute(f"SELECT * FROM {table} ORDER BY 1"))
                    for table in tables
                    if not table.startswith(("_replicate", "sqlite_"))
                }
            finally:
                connection.close()
        return found

    def assert_converged(self) -> None:
        """The same rows and the same vectors everywhere."""
        self.assert_converged_but_for()

    def assert_converged_but_for(self, *tables: str) -> None:
        """The same rows, but for some tables, and the same vectors everywhere."""
        first = self.names[0]
        for name in self.names[1:]:
            rows, others = ({t: r for t, r in self.rows(n).items() if t not in tables} for n in (name, first))
            assert rows == others, f"{name} and {first} differ"
            assert dict(self.vector(name)) == dict(self.vector(first)), f"the vectors of {name} and {first} differ"


def shared(
    directory: Path,
    count: int = 2,
    *,
    schema: Sequence[str] = (),
    apart: Sequence[str] = (),
    sums: Sequence[str] = (),
    whole: Sequence[str] = (),
) -> Suppliers:
    """Suppliers that all write the table ta, and those of `schema` and, in a second region, of `apart`, which are in
    DEFAULT. `sums`: columns that are; `whole`: tables whose rows are merged whole."""
    made = Suppliers.create(directory, count, schema=schema, apart=apart)
    for name in made.names[1:]:
        share(made.by["a"], "DEFAULT", name, keys_chosen=True, timeout_s=30, sums=sums, whole=whole)
    made.level()
    return made


def run(made: Suppliers, name: str, *statements: str) -> None:
    """One transaction of that supplier."""
    connection = made.connect(name)
    for statement in statements:
        connection.execute(statement)
    connection.commit()
    connection.close()


def last_head(made: Suppliers, name: str) -> Head:
    """Of the last transaction in that supplier's journal."""
    last_seqno = made.last_seqno(name)
    reader = ChainReader(make_chain(made.by[name]), last_seqno)
    found = reader.read(1 << 20, last_seqno)
    reader.close()
    assert isinstance(found, FrameBatch)
    (_, head), *_ = walk(found.data)
    return head


def write_later(two: Suppliers, days: float, monkeypatch: pytest.MonkeyPatch, *, size: int = 10) -> None:
    """A transaction of a, whose clock is ahead."""
    now_ns = time.time_ns
    with monkeypatch.context() as patched:
        patched.setattr(time, "time_ns", lambda: now_ns() + int(days * 86_400e9))
        two.write("a", size=size)


def tell(door: Door) -> None:
    """What an Update Process tells of what it has applied."""
    with closing(SeenTeller(door)) as teller:
        teller.tell(timeout_s=30)


def work_through(applier: SupplierApplier | Applier) -> Done:
    """Work until there is nothing more to do; all that was done."""
    total = Done()
    while True:
        done = applier.work(60)
        total.transactions += done.transactions
        total.batches += done.batches
        total.skipped += done.skipped
        total.parts += done.parts
        total.waiting, total.text = done.waiting, done.text
        if done.waiting is not Waiting.MORE:
            return total


def carry_between(source: Instance, consumer: Instance) -> None:
    """Bring what one lacks from the other; for `sites.kill_at`."""
    made = Suppliers(source.path.parent, (source.name, consumer.name))
    made.by = {source.name: source, consumer.name: consumer}
    made.carry(source.name, consumer.name)


def write_at(instance: Instance) -> None:
    """Three transactions of that supplier in its own table; for `sites.kill_at`."""
    made = Suppliers(instance.path.parent, (instance.name,))
    made.by = {instance.name: instance}
    made.write(instance.name, 3)


def update_at(instance: Instance) -> None:
    """That supplier's text in row 1 of `ta`; for `sites.kill_at`."""
    made = Suppliers(instance.path.parent, (instance.name,))
    made.by = {instance.name: instance}
    run(made, instance.name, "UPDATE ta SET v = 'of killed' WHERE id = 1")


def give_back(instance: Instance) -> None:
    """It gives what it writes to a; for `sites.kill_at`."""
    give(instance, "2", "a", timeout_s=30)


def convert_to_supplier(instance: Instance) -> None:
    """For `sites.kill_at`."""
    convert(instance, "supplier", timeout_s=30)


def hear_of_retirement(instance: Instance) -> None:
    """For `sites.kill_at`: a says that it is gone for good."""
    note_retired(instance, "a")
