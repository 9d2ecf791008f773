"""For tests of a filter in the stream of a Pair: what is written, and what has come.

Guarantees: nothing is waited for without an end. Leaves to others: the servers, and the filters (filters.py).
"""

from __future__ import annotations

from replicate.audit.show import show_journal
from tests.harness.pair import Pair
from tests.harness.servers import Daemon
from tests.harness.waiting import wait_until_async


async def applied(update: Daemon, seqno: int) -> None:
    await wait_until_async(lambda: (update.facts.get("last_applied_seqno") or 0) >= seqno, what=f"{seqno} applied")


def write_all_kinds(pair: Pair) -> int:
    """Rows of every kind of value, a schema change, a large transaction."""
    connection = pair.connect()
    values = (
        1,
        -(2**63),
        2**63 - 1,
        1.0,
        -0.0,
        float("inf"),
        1e-300,
        "",
        'q"\\\n\u2028ä\U0001f600',
        b"",
        b"\0\xff",
        None,
    )
    for value in values:
        connection.execute("INSERT INTO account(owner, note) VALUES ('o', ?)", (value,))
        connection.execute("INSERT INTO entry VALUES ('now', 1.5, ?)", (value,))
        connection.commit()
    connection.execute("UPDATE account SET balance = id, note = NULL WHERE id % 2")
    connection.execute("DELETE FROM entry WHERE rowid = 3")
    connection.commit()
    connection.execute("ALTER TABLE account ADD COLUMN more TEXT DEFAULT 'd'")
    connection.execute("CREATE TABLE counted (id INTEGER PRIMARY KEY AUTOINCREMENT, what)")
    connection.commit()
    connection.execute("INSERT INTO counted(what) VALUES ('one'), ('two')")
    connection.commit()
    connection.executemany("INSERT INTO counted(what) VALUES (?)", [("x" * 1000,) for _ in range(2000)])
    connection.commit()
    connection.execute("UPDATE account SET more = 'e' WHERE id < 5")
    connection.commit()
    last = connection.last_seqno
    connection.close()
    assert last is not None
    return last


def kinds(pair: Pair) -> set[str]:
    """Of the transactions in the secondary's journal."""
    return {one.kind for one in show_journal(pair.secondary)}
