"""What the secondary of an episode gets: all; some partitions; or some rows and columns of tables.

Guarantees: what is said to the product and what the oracle expects stand beside each other here.
Leaves to others: what is done to whom (patrol_rounds.py), and how it is judged (oracle.py).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from replicate.admin import partitions, subscriptions
from replicate.instance.instance import Instance
from replicate.model.table_wish import TableWish
from tests.faults.client import NUMBERS

WHOLE: Final = ""
PARTITIONS: Final = "partitions"
"""The tables of DEFAULT: op, total, and what is created. Those of the region side, and filler, are in two others."""
ROWS: Final = "rows"
"""Of op and twin the rows that not every third client has written; of filler and ballast no content."""
KINDS: Final = (WHOLE, PARTITIONS, WHOLE, ROWS)
"""Of episodes, in turns."""
LEFT_OUT: Final = 3

Wants = Callable[[str, int], bool]
"""Whether the secondary gets the row of a transaction in that table."""


def wants_all(_table: str, _op: int) -> bool:
    """Of a primary, and of a secondary that gets all."""
    return True


def wants_of(kind: str) -> Wants:
    """Of the secondary of such an episode."""
    if kind == PARTITIONS:
        return lambda table, _op: table == "op"
    if kind == ROWS:
        return lambda _table, op: op // NUMBERS % LEFT_OUT != 2
    return wants_all


def subscribe(primary: Instance, secondary: Instance, kind: str) -> None:
    """Say so, before the seed."""
    if kind == PARTITIONS:
        for name, tables in (("side", ("side.twin", "side.ballast")), ("bulk", ("filler",))):
            partitions.create(primary, name)
            partitions.assign(primary, name, tables)
        subscriptions.set_(secondary, ["DEFAULT"])
    if kind == ROWS:
        left_out = ", ".join(str(number) for number in range(2, 600, LEFT_OUT))
        for table in ("main.op", "side.twin"):
            subscriptions.filter_(secondary, table, TableWish((), f"client NOT IN ({left_out})").text)
        for table in ("main.filler", "side.ballast"):
            subscriptions.filter_(secondary, table, TableWish(("id",), "").text)
