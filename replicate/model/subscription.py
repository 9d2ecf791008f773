"""What a secondary wants of the partitions, what it has, and what is on its way: one value, and its moves.

    wanted · begun (its stream is asked for) · streamed from N (journalled, not applied) · held · removed: frozen

Guarantees: a partition is held only after its rows have been loaded as of a moment from which the stream has brought
all of it; what is removed, and added again, is loaded again. A wish for some rows or columns of a table is asked for
only since they were copied by it. A move that does not fit changes nothing.
Leaves to others: asking for it, loading it (transfer/seed/partition.py), and what applies changes. Pure.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Final

from msgspec import Struct, field
from msgspec.structs import replace

from replicate.limits import PARTITION_STREAM

HERE: Final = "here"
COMES: Final = "comes with the first copy"
"""While there is none: what is wanted counts as held, since there is nothing that could lack it."""
WAITS: Final = "waits for its rows"
LOADING: Final = "is being loaded"
FROZEN: Final = "frozen, as it was"
NOT_WANTED: Final = "not wanted"

Numbers = tuple[int, ...]
Table = tuple[str, str]
"""Region and name. Before the first seed the region may be unknown: ""."""
Rows = Mapping[Table, str]
"""Of tables of which some rows or columns are wanted: the text that says which (model/table_wish.py)."""


class Subscription(Struct, frozen=True):
    """Numbers are ascending. `wanted`, `held`: None means all of them. `streamed`: of each that is being loaded, or
    was, the first transaction from which on the journal here has all of its changes; 0: its stream has not begun.
    `frozen`: those that were removed, and whose rows are still there as they were. `rows`: what is wanted of tables;
    `held_rows`: by what their rows were copied, and come."""

    wanted: Numbers | None = None
    held: Numbers | None = None
    streamed: Mapping[int, int] = field(default_factory=dict)
    frozen: Numbers = ()
    rows: Rows = field(default_factory=dict)
    held_rows: Rows = field(default_factory=dict)

    def holds(self, number: int) -> bool:
        """Whether its rows are here, all of them, and changes of it are applied."""
        return number == PARTITION_STREAM or self.held is None or number in self.held

    def wants(self, number: int) -> bool:
        """Whether its rows are to be here."""
        return self.wanted is None or number in self.wanted

    @property
    def loading(self) -> Numbers:
        """Those whose stream is asked for, and whose rows are not here yet."""
        return () if self.held is None else tuple(one for one in sorted(self.streamed) if one not in self.held)

    @property
    def asked(self) -> Numbers | None:
        """What the stream is asked for; None: everything."""
        return None if self.held is None else tuple(sorted({*self.held, *self.loading}))

    @property
    def is_unbegun(self) -> bool:
        """Whether the stream of one is still to begin."""
        return 0 in self.streamed.values()

    def state(self, number: int) -> str:
        """How people are told of it."""
        if self.holds(number):
            return HERE
        if number in self.streamed:
            return LOADING
        if self.wants(number):
            return WAITS
        return FROZEN if number in self.frozen else NOT_WANTED

    @property
    def uncopied(self) -> tuple[Table, ...]:
        """Tables whose rows are wanted by another condition than the one that they were copied by."""
        return tuple(
            sorted(one for one in {*self.rows, *self.held_rows} if self.rows.get(one) != self.held_rows.get(one))
        )

    # Moves.

    def filtering(self, table: Table, condition: str | None) -> Subscription:
        """Of that table the rows by that condition are wanted; None: all of them."""
        rows = {key: one for key, one in self.rows.items() if key != table}
        return replace(self, rows=rows if condition is None else {**rows, table: condition})

    def wanting(self, wanted: Numbers | None, known: Collection[int]) -> Subscription:
        """Of a secondary that has transactions: what is wanted no more is not held any more, and stays as it was
        (of one that was being loaded, whatever there is). `known`: all partitions that there are."""
        if wanted is None:
            return replace(self, wanted=None)
        held = wanted if self.held is None else tuple(one for one in self.held if one in wanted)
        were = known if self.held is None else {*self.held, *self.streamed}
        frozen = tuple(sorted({*self.frozen, *(one for one in were if one not in wanted)}))
        streamed = {one: first for one, first in self.streamed.items() if one in wanted}
        return replace(self, wanted=wanted, held=held, streamed=streamed, frozen=frozen)

    def begun(self, numbers: Collection[int], tables: Mapping[int, Collection[Table]] | None = None) -> Subscription:
        """The stream of these is to begin, from a place that is not known yet, by what is wanted now of their `tables`.
        Those that are held, or begun, stay as they are."""
        new = {one: 0 for one in numbers if not self.holds(one) and one not in self.streamed}
        if not new:
            return self
        of_them = {table for number in new for table in (tables or {}).get(number, ())}
        kept = {key: one for key, one in self.held_rows.items() if key not in of_them}
        wanted = {key: one for key, one in self.rows.items() if key in of_them}
        return replace(self, streamed={**self.streamed, **new}, held_rows={**kept, **wanted})

    def streaming_from(self, seqno: int, asked: Collection[int]) -> Subscription:
        """A stream of those that were `asked` for begins with transaction `seqno`."""
        moved = {one: seqno for one, first in self.streamed.items() if not first and one in asked}
        return replace(self, streamed={**self.streamed, **moved}) if moved else self

    def given_up(self, numbers: Collection[int]) -> Subscription:
        """The stream of these is asked for no more; they are wanted, as before. Those that are held stay."""
        left = {one: first for one, first in self.streamed.items() if one not in numbers or self.holds(one)}
        return replace(self, streamed=left)

    def loaded(self, numbers: Collection[int]) -> Subscription:
        """The rows of these are here, as of the place to which all is applied. Those that are not being loaded any more
        stay as they are."""
        if self.held is None:
            return self
        held = tuple(sorted({*self.held, *(one for one in numbers if self.streamed.get(one))}))
        return replace(self, held=held, frozen=tuple(one for one in self.frozen if one not in held))

    def seeded(self) -> Subscription:
        """The rows of all that is wanted are here, with a seed, and of nothing else."""
        return Subscription(self.wanted, self.wanted, rows=self.rows, held_rows=self.rows)

    def dropped(self, numbers: Collection[int]) -> Subscription:
        """The rows that had stayed of these are gone, or about to go."""
        return replace(self, frozen=tuple(one for one in self.frozen if one not in numbers))

    def lacking_below(self, numbers: Collection[int], next_seqno: int) -> Numbers:
        """Of these, those of which the journal here lacks something from transaction `next_seqno` on: one that begins
        there would miss it."""
        return tuple(one for one in sorted(numbers) if self.streamed.get(one, 0) > next_seqno)
