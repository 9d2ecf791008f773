"""A primary with a history of all kinds, a base copy from its beginning, and as many secondaries from that as are asked
for. Guarantees: the history depends on nothing but this file. Leaves to others: Spark; who archives it.
"""

from __future__ import annotations

import itertools
from dataclasses import dataclass, field
from pathlib import Path
from random import Random

from replicate.admin.partitions import assign, create
from replicate.instance.instance import Instance
from replicate.journal.record import FrameBatch
from replicate.transfer.seed.install import install_checked, seed_lock
from replicate.transfer.seed.make import make_seed
from tests.harness.pair import Pair
from update_process.replay.backlog import Journals

SCHEMA = """
CREATE TABLE account (id INTEGER PRIMARY KEY, owner TEXT UNIQUE, balance INTEGER, note);
CREATE TABLE loose (a, b);
CREATE TABLE counted (id INTEGER PRIMARY KEY AUTOINCREMENT, v);
CREATE TABLE pair (a TEXT, b, v, PRIMARY KEY (a, b)) WITHOUT ROWID;
"""
LARGE = [(str(n), b"x" * 1000) for n in range(1500)]


def write(pair: Pair, seed: int, transactions: int = 120) -> None:
    """Random changes of few rows, so that many collapse; values swap, keys move, rows come and go."""
    dice = Random(seed)
    with pair.connect() as connection:
        for _ in range(transactions):
            for _ in range(dice.randint(1, 4)):
                number, other = dice.randint(1, 9), dice.randint(1, 9)
                connection.execute(
                    *dice.choice(
                        (
                            ("INSERT OR IGNORE INTO account VALUES (?, ?, ?, NULL)", (number, f"o{other}", other)),
                            ("UPDATE OR IGNORE account SET owner = ? WHERE id = ?", (f"o{other}", number)),
                            ("UPDATE account SET balance = balance + 1, note = ? WHERE id = ?", (number / 2, other)),
                            ("UPDATE OR IGNORE account SET id = ? WHERE id = ?", (other, number)),
                            ("DELETE FROM account WHERE id = ?", (number,)),
                            ("INSERT INTO loose (a, b) VALUES (?, ?)", (number, b"\0")),
                            ("DELETE FROM loose WHERE rowid = (SELECT min(rowid) FROM loose WHERE a = ?)", (number,)),
                            ("INSERT INTO counted (v) VALUES (?)", (number,)),
                            ("DELETE FROM counted WHERE v = ?", (number,)),
                            ("INSERT OR REPLACE INTO pair VALUES ('k', ?, ?)", (number, other)),
                            ("UPDATE OR IGNORE pair SET b = ? WHERE b = ?", (float(other), number)),
                        )
                    )
                )
            connection.commit()
    connection.close()


def write_large(pair: Pair) -> None:
    """A transaction that is a segment of its own, so that what is before it is sealed."""
    with pair.connect() as connection:
        connection.executemany("INSERT INTO loose (a, b) VALUES (?, ?)", LARGE)
    connection.close()


def frames(instance: Instance, first_seqno: int, last_seqno: int) -> bytes:
    """What an instance's journal holds of ordinary transactions."""
    journals = Journals([instance.path], instance.content.network)
    found = journals.read(first_seqno, last_seqno)
    return b"".join(piece.data for piece in found if isinstance(piece, FrameBatch))


@dataclass
class Backlog:
    """`base`: a seed file from before everything that was written."""

    pair: Pair
    base: Path
    base_seqno: int
    _numbers: itertools.count[int] = field(default_factory=itertools.count)

    @classmethod
    def create(cls, directory: Path) -> Backlog:
        """Two sealed stretches, a schema change between them, an assignment, and large transactions."""
        pair = Pair.create(directory, SCHEMA)
        base = make_seed(pair.primary, "west", directory / "base.seed")
        with pair.connect() as connection:
            connection.execute("INSERT INTO pair VALUES ('born', 'x', 0)")
        connection.close()
        write(pair, 5)
        write_large(pair)
        write(pair, 6)
        connection = pair.connect()
        connection.execute("UPDATE account SET balance = 0")
        connection.execute("UPDATE pair SET a = 'grown' WHERE a = 'born'")
        connection.log_comment("the year ends")
        connection.commit()
        connection.execute("ALTER TABLE loose ADD COLUMN c DEFAULT 1")
        connection.commit()
        connection.close()
        create(pair.primary, "sales")
        assign(pair.primary, "sales", ["account", "pair"])  # from here on there are transactions over two partitions
        write(pair, 7, 40)
        write_large(pair)
        return cls(pair, directory / "base.seed", base.seqno)

    def write_tail(self) -> None:
        """What is in no sealed segment yet."""
        write(self.pair, 8, 30)

    @property
    def archive(self) -> str:
        """The URI of its archive."""
        return (self.pair.directory / "archive").as_uri()

    def empty_secondary(self, within: Path | None = None) -> Instance:
        """A secondary of the network that holds nothing. `within`: a directory for it."""
        name = f"site{next(self._numbers)}"
        network = self.pair.primary.content.network
        return Instance.create((within or self.pair.directory) / name, role="secondary", name=name, network=network)

    def secondary(self, within: Path | None = None) -> Instance:
        """One that stands where the base copy stands."""
        made = self.empty_secondary(within)
        with seed_lock(made):
            install_checked(made, self.base)
        made.reload()
        return made
