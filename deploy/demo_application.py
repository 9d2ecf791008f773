"""The demonstration's application: a small mail-order shop that several processes write to at once.

What it is: an ordinary Python program against an ordinary SQLite schema. It would run on `sqlite3.connect(path)` just
as well (and does, with --plain): the one line that replication asks of it is in `connect_to`.
Guarantees: `create` makes the schema and its first rows; `write` runs until its time is over or SIGTERM, ends with
whole transactions, and prints one JSON object a line: its progress, and at the end what it committed. Every committed
transaction leaves the row (writer, number) in `journal_of_work`, numbered without a gap; one rolled back leaves none.
Leaves to others: that its database is replicated, and where to.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import random
import signal
import sqlite3
import sys
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from typing import Any, Final

SCHEMA: Final = """
CREATE TABLE customer (
    customer_id INTEGER PRIMARY KEY,
    name TEXT NOT NULL,
    email TEXT UNIQUE COLLATE NOCASE,
    credit REAL,
    note TEXT,
    photo BLOB
);
CREATE INDEX customer_name ON customer (name COLLATE NOCASE);

CREATE TABLE product (
    sku TEXT PRIMARY KEY,
    title TEXT NOT NULL,
    price_cents INTEGER NOT NULL CHECK (price_cents > 0),
    weight_kg REAL,
    attributes TEXT
) WITHOUT ROWID;

CREATE TABLE stock (
    warehouse INTEGER NOT NULL,
    sku TEXT NOT NULL REFERENCES product (sku),
    quantity INTEGER NOT NULL CHECK (quantity >= 0),
    PRIMARY KEY (warehouse, sku)
);

CREATE TABLE purchase (
    purchase_id INTEGER PRIMARY KEY AUTOINCREMENT,
    customer_id INTEGER NOT NULL REFERENCES customer (customer_id),
    state TEXT NOT NULL DEFAULT 'open',
    total_cents INTEGER NOT NULL DEFAULT 0,
    paid_at REAL
);
CREATE INDEX purchase_customer ON purchase (customer_id, state);
CREATE INDEX purchase_unpaid ON purchase (purchase_id) WHERE paid_at IS NULL;

CREATE TABLE purchase_line (
    purchase_id INTEGER NOT NULL REFERENCES purchase (purchase_id) ON DELETE CASCADE,
    line_no INTEGER NOT NULL,
    sku TEXT NOT NULL REFERENCES product (sku),
    quantity INTEGER NOT NULL,
    price_cents INTEGER NOT NULL,
    PRIMARY KEY (purchase_id, line_no)
);
CREATE INDEX purchase_line_sku ON purchase_line (sku);

CREATE TABLE document (
    document_id INTEGER PRIMARY KEY,
    purchase_id INTEGER REFERENCES purchase (purchase_id) ON DELETE SET NULL,
    content BLOB
);

CREATE TABLE event (what TEXT NOT NULL, subject, detail);

CREATE TABLE journal_of_work (
    writer INTEGER NOT NULL,
    number INTEGER NOT NULL,
    what TEXT NOT NULL,
    PRIMARY KEY (writer, number)
) WITHOUT ROWID;

CREATE TRIGGER purchase_line_added AFTER INSERT ON purchase_line BEGIN
    UPDATE purchase SET total_cents = total_cents + new.quantity * new.price_cents WHERE purchase_id = new.purchase_id;
END;

CREATE TRIGGER purchase_state_changed AFTER UPDATE OF state ON purchase WHEN old.state IS NOT new.state BEGIN
    INSERT INTO event VALUES ('purchase', new.purchase_id, old.state || ' > ' || new.state);
END;
"""

CUSTOMERS: Final = 200
PRODUCTS: Final = 100
WAREHOUSES: Final = 3
EVENTS_KEPT: Final = 500
REPORT_PERIOD_S: Final = 0.5
WORDS: Final = ("oak", "brass", "linen", "émail", "grün", "深い", "amber", "slate", "wool", "cobalt")

Connection = Any
"""A PEP 249 connection: sqlite3's, or the one of replicate.connect."""


class ChangedOurMindError(Exception):
    """Raised within a transaction that the customer breaks off: it must leave no trace."""


@dataclass(slots=True)
class Report:
    """What one writer has done so far. `number` is that of its last committed transaction."""

    writer: int
    number: int = 0
    rolled_back: int = 0
    refused: int = 0
    last_seqno: int = 0
    finished: bool = False


def connect_to(instance: str, region: str, plain: str) -> Connection:
    """The application's connection: with `plain` to that SQLite file, else to the region of the instance."""
    if plain:
        return sqlite3.connect(plain, timeout=60.0)
    import replicate  # not at the top: with --plain the application must run where nothing of ours is installed

    return replicate.connect(instance, region, timeout=60.0)


def create(connection: Connection) -> None:
    """Makes the schema and the first rows. Raises sqlite3.OperationalError if a table exists already."""
    dice = random.Random(7430)
    connection.executescript(SCHEMA)
    with connection:
        connection.executemany(
            "INSERT INTO customer VALUES (?, ?, ?, ?, ?, ?)",
            [
                (
                    number,
                    f"{dice.choice(WORDS).title()} {dice.choice(WORDS).title()}",
                    f"customer{number}@shop.example",
                    dice.choice((None, 0.0, 12.5, 1e9 / 3)),
                    dice.choice((None, "", "prefers the 'green' parcel")),
                    dice.choice((None, dice.randbytes(64))),
                )
                for number in range(1, CUSTOMERS + 1)
            ],
        )
        for number in range(PRODUCTS):
            sku = f"SKU-{number:04}"
            connection.execute(
                "INSERT INTO product VALUES (?, ?, ?, ?, ?)",
                (sku, f"{dice.choice(WORDS)} {dice.choice(WORDS)}", dice.randint(100, 99_999), dice.random() * 9, None),
            )
            connection.executemany(
                "INSERT INTO stock VALUES (?, ?, ?)", [(place, sku, 10_000) for place in range(WAREHOUSES)]
            )


class Writer:
    """One writer process: chooses what a customer or clerk does next, and does it in one transaction."""

    def __init__(self, connection: Connection, number: int, dice: random.Random, only: str = "") -> None:
        """`only` one kind of work: the name of its method."""
        self.connection = connection
        self.dice = dice
        self.report = Report(writer=number)
        row = connection.execute("SELECT max(number) FROM journal_of_work WHERE writer = ?", (number,)).fetchone()
        self.report.number = row[0] or 0
        self._kinds: tuple[tuple[int, Callable[[], str]], ...] = (
            (40, self._order),
            (20, self._pay),
            (10, self._edit_customer),
            (8, self._cancel),
            (6, self._reprice),
            (6, self._file_document),
            (4, self._change_our_mind),
            (3, self._order_twice_the_same),
            (3, self._tidy),
        )
        if only:
            self._kinds = tuple(kind for kind in self._kinds if kind[1].__name__ == f"_{only}")

    def step(self) -> None:
        """Runs one transaction. Afterwards it is committed and counted, or rolled back and counted."""
        work = self.dice.choices([kind for _, kind in self._kinds], [weight for weight, _ in self._kinds])[0]
        try:
            with self.connection:
                what = work()
                self.connection.execute(
                    "INSERT INTO journal_of_work VALUES (?, ?, ?)", (self.report.writer, self.report.number + 1, what)
                )
        except ChangedOurMindError:
            self.report.rolled_back += 1
        except sqlite3.IntegrityError:
            self.report.refused += 1  # for instance: not enough in stock, or cancelled by the other writer meanwhile
        else:
            self.report.number += 1
            self.report.last_seqno = getattr(self.connection, "last_seqno", 0)

    def _some_purchase(self, state: str) -> int | None:
        rows = self.connection.execute(
            "SELECT purchase_id FROM purchase WHERE state = ? ORDER BY purchase_id DESC LIMIT 20", (state,)
        ).fetchall()
        return int(self.dice.choice(rows)[0]) if rows else None

    def _order(self) -> str:
        customer = self.dice.randint(1, CUSTOMERS)
        cursor = self.connection.execute("INSERT INTO purchase (customer_id) VALUES (?)", (customer,))
        purchase = cursor.lastrowid
        for line_no in range(1, self.dice.randint(1, 6) + 1):
            sku = f"SKU-{self.dice.randrange(PRODUCTS):04}"
            quantity = self.dice.randint(1, 5)
            price = self.connection.execute("SELECT price_cents FROM product WHERE sku = ?", (sku,)).fetchone()[0]
            self.connection.execute(
                "INSERT INTO purchase_line VALUES (?, ?, ?, ?, ?)", (purchase, line_no, sku, quantity, price)
            )
            self.connection.execute(
                "UPDATE stock SET quantity = quantity - ? WHERE warehouse = ? AND sku = ?",
                (quantity, self.dice.randrange(WAREHOUSES), sku),
            )
        return "order"

    def _pay(self) -> str:
        purchase = self._some_purchase("open")
        if purchase is None:
            return self._order()
        self.connection.execute(
            "UPDATE purchase SET state = 'paid', paid_at = ? WHERE purchase_id = ?", (time.time(), purchase)
        )
        self.connection.execute(
            "UPDATE customer SET credit = coalesce(credit, 0) * 0.99"
            " WHERE customer_id = (SELECT customer_id FROM purchase WHERE purchase_id = ?)",
            (purchase,),
        )
        return "pay"

    def _edit_customer(self) -> str:
        customer = self.dice.randint(1, CUSTOMERS)
        photo = self.dice.choice((None, b"", self.dice.randbytes(self.dice.randint(1, 2_000))))
        note = self.dice.choice((None, "", " ".join(self.dice.choices(WORDS, k=6))))
        self.connection.execute(
            "UPDATE customer SET note = ?, photo = ?, name = ? WHERE customer_id = ?",
            (note, photo, f"{self.dice.choice(WORDS)} {self.dice.choice(WORDS)}", customer),
        )
        return "customer"

    def _cancel(self) -> str:
        purchase = self._some_purchase("open")
        if purchase is None:
            return self._order()
        self.connection.execute("UPDATE purchase SET state = 'cancelled' WHERE purchase_id = ?", (purchase,))
        self.connection.execute("DELETE FROM purchase WHERE purchase_id = ?", (purchase,))
        return "cancel"

    def _reprice(self) -> str:
        self.connection.execute(
            "UPDATE product SET price_cents = max(1, price_cents + ?), attributes = ? WHERE sku BETWEEN ? AND ?",
            (
                self.dice.randint(-50, 50),
                self.dice.choice((None, json.dumps({"season": self.dice.randint(1, 4)}))),
                *sorted(f"SKU-{self.dice.randrange(PRODUCTS):04}" for _ in range(2)),
            ),
        )
        return "reprice"

    def _file_document(self) -> str:
        purchase = self._some_purchase("paid")
        self.connection.execute(
            "INSERT INTO document (purchase_id, content) VALUES (?, ?)",
            (purchase, self.dice.randbytes(self.dice.randint(100, 20_000))),
        )
        return "document"

    def _change_our_mind(self) -> str:
        self._order()
        self._edit_customer()
        raise ChangedOurMindError

    def _order_twice_the_same(self) -> str:
        """One statement of the transaction fails, one part is taken back, and the rest is committed."""
        self._order()
        customer = self.dice.randint(2, CUSTOMERS)
        with contextlib.suppress(sqlite3.IntegrityError):
            self.connection.execute(
                "UPDATE customer SET email = 'CUSTOMER1@shop.example' WHERE customer_id = ?", (customer,)
            )
        self.connection.execute("SAVEPOINT second_thought")
        self._order()
        self.connection.execute("ROLLBACK TO second_thought")
        self.connection.execute("RELEASE second_thought")
        return "order, in part"

    def _tidy(self) -> str:
        self.connection.execute("DELETE FROM event WHERE rowid <= (SELECT max(rowid) FROM event) - ?", (EVENTS_KEPT,))
        self.connection.execute(
            "DELETE FROM document WHERE document_id <= (SELECT max(document_id) FROM document) - ?", (EVENTS_KEPT,)
        )
        return "tidy"


def write(connection: Connection, number: int, seconds: float, rate: float, only: str = "") -> Report:
    """Runs one writer for at most `seconds`, at most `rate` transactions a second. Prints reports; returns the last."""
    connection.execute("PRAGMA foreign_keys = ON")
    stopping = False

    def stop(*_: object) -> None:
        nonlocal stopping
        stopping = True

    signal.signal(signal.SIGTERM, stop)
    signal.signal(signal.SIGINT, stop)
    writer = Writer(connection, number, random.Random(number), only)
    began = reported = time.monotonic()
    steps = 0
    parent = os.getppid()
    while not stopping and (now := time.monotonic()) - began < seconds and os.getppid() == parent:
        ahead_s = steps / rate - (now - began)
        if ahead_s > 0:
            time.sleep(min(ahead_s, 0.05))  # not work to wait for: this is how often customers come
            continue
        writer.step()
        steps += 1
        if now - reported >= REPORT_PERIOD_S:
            print(json.dumps(asdict(writer.report)), flush=True)
            reported = now
    writer.report.finished = True
    print(json.dumps(asdict(writer.report)), flush=True)
    return writer.report


def main(arguments: list[str]) -> int:
    """The command line: `create --plain PATH`, or `write --instance I --writer N`. Returns the exit code."""
    parser = argparse.ArgumentParser(description="The demonstration's application.")
    parser.add_argument("verb", choices=("create", "write"))
    parser.add_argument("--instance", default="")
    parser.add_argument("--region", default="main")
    parser.add_argument("--plain", default="", metavar="PATH", help="an SQLite file, without replication")
    parser.add_argument("--writer", type=int, default=1)
    parser.add_argument("--seconds", type=float, default=3600.0)
    parser.add_argument("--rate", type=float, default=200.0, help="most transactions a second")
    parser.add_argument("--only", default="", choices=("", "edit_customer", "order"), help="one kind of work")
    options = parser.parse_args(arguments)
    connection = connect_to(options.instance, options.region, options.plain)
    with contextlib.closing(connection):
        if options.verb == "create":
            create(connection)
        else:
            write(connection, options.writer, options.seconds, options.rate, options.only)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
