"""Where a connection's transaction stands, what each step does there, and where it leads: one table.

transaction.py asks it what a step has to do. tests/replicate/dbapi/test_transaction_stages.py walks all of it on a real
connection: each step does what stands here, and leads there.

Guarantees: names and a table only.
Leaves to others: how a step is taken (dbapi/transaction.py).
"""

from __future__ import annotations

from enum import Enum
from typing import Final


class Stage(Enum):
    """Where a connection stands. (SQLite's own snapshot makes no difference: it begins with the first read.)"""

    NONE = "no transaction is open"
    READER = "one is open that holds no region"
    WRITER = "one is open that holds its regions"
    __hash__ = object.__hash__  # each is there once; an Enum's own is two calls in Python, for every commit


class TransactionStep(Enum):
    """What moves a connection from one stage to another."""

    BEGIN = "a BEGIN, or a SAVEPOINT that begins a transaction"
    TAKE = "the region is taken: BEGIN IMMEDIATE, and the first statement that writes"
    COMMIT = "COMMIT, or RELEASE of the savepoint that began the transaction"
    ROLLBACK = "ROLLBACK"
    LOSE = "SQLite has rolled back by itself"


class Act(Enum):
    """What a step does."""

    NOTHING = "nothing"
    SQLITE = "SQLite runs the statement"
    BEGIN = "session.begin"
    UPGRADE = "session.upgrade"
    COMMIT = "session.commit"
    ROLLBACK = "session.rollback"


TRANSITIONS: Final[dict[TransactionStep, dict[Stage, tuple[Act, Stage]]]] = {
    TransactionStep.BEGIN: {
        Stage.NONE: (Act.SQLITE, Stage.READER),
        Stage.READER: (Act.SQLITE, Stage.READER),  # which refuses it
        Stage.WRITER: (Act.SQLITE, Stage.WRITER),  # the same
    },
    TransactionStep.TAKE: {
        Stage.NONE: (Act.BEGIN, Stage.WRITER),
        Stage.READER: (Act.UPGRADE, Stage.WRITER),
        Stage.WRITER: (Act.NOTHING, Stage.WRITER),
    },
    TransactionStep.COMMIT: {
        Stage.NONE: (Act.NOTHING, Stage.NONE),
        Stage.READER: (Act.SQLITE, Stage.NONE),
        Stage.WRITER: (Act.COMMIT, Stage.NONE),
    },
    TransactionStep.ROLLBACK: {
        Stage.NONE: (Act.NOTHING, Stage.NONE),
        Stage.READER: (Act.SQLITE, Stage.NONE),
        Stage.WRITER: (Act.ROLLBACK, Stage.NONE),
    },
    TransactionStep.LOSE: {
        Stage.NONE: (Act.NOTHING, Stage.NONE),
        Stage.READER: (Act.NOTHING, Stage.NONE),
        Stage.WRITER: (Act.ROLLBACK, Stage.NONE),  # the door still holds the region's lock
    },
}
