"""What kind of world with partitions a seed draws: as ../climate.py has it, and which tables there are, which partition
each is in, what the secondary subscribes to, gives up and loads, of which tables it gets some rows or columns only, and
how often a table is put into another partition.

Guarantees: everything follows from the dice. Leaves to others: what a fault does.
"""

from __future__ import annotations

import random
from dataclasses import dataclass
from typing import Final

from msgspec import Struct
from msgspec.structs import replace

from replicate.limits import PARTITION_NONE, ROWS_BYTES_MAX
from replicate.model.table_wish import TableWish
from tests.simulation.climate import Climate

PARTITIONS: Final = 4
"""They are 1 to 4; tables are in the first three, or in NONE, at the beginning."""
Placed = tuple[int, int]
"""Of a table: number of its region, and its partition."""
SPAN_BYTES: Final = 36
"""Of a condition for each span, and a little for the table."""
ROWS_BEGIN: Final = 1000
"""Rows that are written in a world have identities from there on."""


class Chosen(Struct, frozen=True):
    """What the secondary gets of a table: rows whose identity is in one of the `spans`, first and last of each; and if
    it `has_list`, of these the identity alone."""

    spans: tuple[tuple[int, int], ...]
    has_list: bool

    def keeps(self, row: int) -> bool:
        """Whether that row comes."""
        return any(first <= row <= last for first, last in self.spans)

    @property
    def text(self) -> str:
        """As the secondary asks for it."""
        rows = " OR ".join(f"c0 BETWEEN {first} AND {last}" for first, last in self.spans)
        return TableWish(("c0",) if self.has_list else (), rows).text


@dataclass
class PartsClimate(Climate):
    """`placed`: of each table at the beginning. `wanted`: by the secondary; None: all."""

    placed: tuple[Placed, ...] = ()
    wanted: tuple[int, ...] | None = None
    move_share: float = 0.0
    define_share: float = 0.0
    """Of transactions, for each region."""
    left: tuple[int, ...] | None = None
    """What an operator of the secondary leaves of it, after `gives_up_s` seconds; None: all."""
    gives_up_s: float = 0.0
    loads: int = 0
    """A partition that an operator of the secondary loads into it, after `loads_s` seconds; 0: none."""
    loads_s: float = 0.0
    chosen: tuple[tuple[int, Chosen], ...] = ()
    """Numbers of tables, and what the secondary gets of them."""

    def __post_init__(self) -> None:
        super().__post_init__()
        dice: random.Random = self.dice
        self.is_partial = False  # which says it in the other worlds
        partitions = [1, 2, 3, PARTITION_NONE]
        placed = []
        for region in range(self.regions):
            placed += [(region, dice.choice(partitions)) for _ in range(dice.choice([1, 2, 2, 3]))]
        self.placed = tuple(placed)
        if dice.random() < 0.85:
            self.wanted = tuple(sorted(dice.sample(range(1, 1 + PARTITIONS), dice.choice([1, 1, 2, 2, 3]))))
        self.define_share = dice.choice([0.06, 0.06, 0.3])
        self.move_share = dice.choice([0.0, 0.0, 0.1, 0.3])

        apart = random.Random(f"{self.placed} {self.wanted} {self.ends_s}")  # the dice of before stay as they were
        share = 0.8 if self.wanted is None else 0.25
        if apart.random() < share and (self.wanted is None or len(self.wanted) > 1):
            there = list(range(1, 1 + PARTITIONS)) if self.wanted is None else list(self.wanted)
            self.left = tuple(sorted(apart.sample(there, apart.randrange(1, len(there)))))
            self.gives_up_s = apart.random() * self.ends_s

        apart = random.Random(f"loads {self.placed} {self.wanted} {self.ends_s}")
        there = {partition for _, partition in placed if not self.holds(partition)} - {PARTITION_NONE}
        if there and apart.random() < 0.4:
            self.loads, self.loads_s = apart.choice(sorted(there)), apart.random() * self.ends_s
            # A copy has all rows of its tables, whatever partition they were in when they were written.
            self.left, self.move_share = None, 0.0
            return

        apart = random.Random(f"rows {self.placed} {self.wanted} {self.ends_s}")
        if apart.random() < 0.4:
            self.chosen = draw_chosen(apart, len(placed))

    def keeps(self, number: int, row: int) -> bool:
        """Whether that row of the n-th table is one of those that the secondary gets of it."""
        return all(one.keeps(row) for table, one in self.chosen if table == number)

    def has_list(self, number: int) -> bool:
        """Whether of the n-th table some columns come only."""
        return any(one.has_list for table, one in self.chosen if table == number)

    def holds(self, partition: int) -> bool:
        """Whether the secondary gets, at some time, the rows that are written while their table is in that
        partition."""
        return partition != PARTITION_NONE and (self.wanted is None or partition in (*self.wanted, self.loads))

    def stays(self, partition: int) -> bool:
        """Whether it gets them from the beginning to the end."""
        return self.holds(partition) and partition != self.loads and (self.left is None or partition in self.left)

    def may_move(self, before: int, after: int) -> bool:
        """Whether a table may go from one to the other without a seed. One is put into NONE only where the source looks
        at tables anyway: a command says so in the instance file."""
        looks = self.wanted is not None or any(partition == PARTITION_NONE for _, partition in self.placed)
        is_safe = (self.holds(before) or not self.holds(after)) and (self.stays(before) or not self.stays(after))
        return is_safe and (looks or after != PARTITION_NONE)


def draw_chosen(dice: random.Random, tables: int) -> tuple[tuple[int, Chosen], ...]:
    """Of some of that many tables what comes, as far as a secondary may ask for it."""
    chosen = [(number, _chosen(dice)) for number in range(tables) if dice.random() < 0.6]
    most = ROWS_BYTES_MAX // (SPAN_BYTES * max(1, len(chosen)))
    return tuple((number, replace(one, spans=one.spans[:most])) for number, one in chosen)


def _chosen(dice: random.Random) -> Chosen:
    spans = [(first, first + dice.randrange(60)) for first in range(1, 600, 100)]
    begin, end = ROWS_BEGIN + dice.randrange(8), ROWS_BEGIN + 260
    while begin < end:
        last = begin + dice.randrange(12)
        spans.append((begin, last))
        begin = last + 2 + dice.randrange(8)
    return Chosen(tuple(spans[:30]), dice.random() < 0.4)
