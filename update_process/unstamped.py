"""Rows that our journal's transactions have written and that bear no stamps yet: nothing need be written for each of
them to know that what arrives meets none.

Guarantees: from `look` on, which takes what was not looked at, the rows of every transaction of the journal beyond
`absorbed` are known, but for those of transactions that everybody has; nothing is written, so a process that ends has
lost nothing. Not held are large transactions, those that were merged, and more than ROWS_MAX rows or BYTES_MAX of the
journal: these are to be stamped.
Leaves to others: rows that bear stamps (region/sqlite/apply/merge.py), and what is done where one is met (merging.py).
"""

from __future__ import annotations

from bisect import bisect_right
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from contextlib import closing
from itertools import chain, repeat
from operator import itemgetter
from typing import Any, Final, NamedTuple

from replicate.door.door import Door
from replicate.door.recovery.opening import make_chain
from replicate.journal.reader import ChainReader, Place, SparseIndex
from replicate.journal.record import FrameBatch, changes_of, decode_batch
from replicate.model.seen import Told
from replicate.model.transaction import Kind, Op, TableDefinition, changed_of
from replicate.pool import control as word
from replicate.region.protocol import RowKeys
from update_process.window.columns import ONE_CHANGE, Changes, changes_by_columns

ROWS_MAX: Final = 500_000
"""Rows that are held: some 100 bytes each, and at once a second of work while applications wait for the region, where
one of them is met after all."""
BYTES_MAX: Final = 128 * 1024 * 1024
"""Of the journal that may wait for stamps, since it is kept for that long; twice as much where it is found so.
Less where the journal may not hold so much."""
READ_BYTES: Final = 256 * 1024
"""Of the journal at once: frames that the processor's cache holds are decoded in two thirds of the time (measured)."""
PART_ROWS: Final = 50_000
"""Rows that are given up together."""
_ROWS: Final = frozenset(map(int, (Op.INSERT, Op.UPDATE, Op.DELETE)))
_NOBODY: Final[Mapping[int, int]] = {}
_KIND: Final = itemgetter(0)
_ORIGIN: Final = itemgetter(4)
_NUMBER: Final = itemgetter(5)


class Followed(NamedTuple):
    """Transactions that were applied as they are. `last`: origin and number of the last one. `bodies`: decoded, where
    somebody may yet write beside them; none where everybody has them."""

    first_seqno: int
    last_seqno: int
    last: tuple[int, int]
    bodies: Sequence[Sequence[Any]]
    size_bytes: int


class _Written:
    """Rows of one origin's transactions up to its number `last`."""

    __slots__ = ("count", "last", "rows")

    def __init__(self) -> None:
        self.rows: RowKeys = {}
        self.count = self.last = 0


class UnstampedRows:
    """One per applier. `definition`: of a table; `is_shared`: whether several suppliers write it, or have; `walked`:
    where others have been in the journal. Where one of these answers otherwise than before, `forget`."""

    def __init__(
        self,
        door: Door,
        definition: Callable[[int], TableDefinition],
        is_shared: Callable[[int], bool],
        walked: SparseIndex,
    ) -> None:
        self._door = door
        self._definition = definition
        self._is_shared = is_shared
        self._walked = walked
        self._parts: dict[int, deque[_Written]] = {}
        """By origin, in the order of its transactions."""
        self._keys: dict[tuple[Any, Any, Any], list[Callable[[Any], Any]]] = {}
        """What gives the key, or both, of a change with that op, table and argument; nothing of what is no such row."""
        self._since = self.looked = -1
        """Rows are known of the transactions between: beyond the one, up to the other."""
        self._place: Place | None = None
        """Where in the journal the first one begins, or will, that was not looked at."""
        self._bytes = 0
        """Of those transactions."""
        self._bytes_max = min(BYTES_MAX, door.instance.config.journal.cap_bytes // 8)

    def forget(self, absorbed: int = -1) -> None:
        """Whatever is known. Everything up to `absorbed` bears stamps."""
        self._parts.clear()
        self._keys.clear()
        self._since = self.looked = absorbed
        self._place = None
        self._bytes = 0

    @property
    def holds(self) -> bool:
        """Whether rows are known that somebody may yet write beside."""
        return any(self._parts.values())

    @property
    def is_full(self) -> bool:
        """Whether it is time that rows get stamps."""
        return self._bytes > self._bytes_max

    def look(self, absorbed: int, last_seqno: int, stable: Mapping[int, int]) -> bool:
        """Learn what our journal's transactions up to `last_seqno` have written, while it stands still; False where
        they cannot be held. `absorbed`: up to there all rows bear stamps. `stable`: origin -> the last of its
        transactions that everybody has. Raises what reading the journal raises."""
        if not self._since <= absorbed < self.looked:
            self.forget(absorbed)
        for origin, parts in self._parts.items():
            while parts and parts[0].last <= stable.get(origin, 0):
                parts.popleft()
        if last_seqno == self.looked or self._read(last_seqno, stable):
            self.looked, words = last_seqno, self._door.words
            first_seqno, end = words[word.SEGMENT_FIRST_SEQNO], words[word.END_OFFSET]
            # Another one may take the place of a segment in which nothing is.
            is_there = first_seqno <= last_seqno == words[word.LAST_SEQNO]
            self._place = (first_seqno, end) if is_there else None
            return True
        self.forget()
        return False

    def _read(self, last_seqno: int, stable: Mapping[int, int]) -> bool:
        held = sum(part.count for parts in self._parts.values() for part in parts)
        chain = make_chain(self._door.instance)
        with closing(ChainReader(chain, self.looked + 1, self._walked, self._place)) as reader:
            while reader.next_seqno <= last_seqno and (found := reader.read(READ_BYTES, last_seqno)) is not None:
                if not isinstance(found, FrameBatch):
                    return False
                self._bytes += len(found.data)
                bodies = decode_batch(found.data, tuples=True, count=found.count)[2::3]
                is_merged = Kind.RESTATED in set(map(_KIND, bodies))
                if is_merged and any(body[5] > stable.get(body[4], 0) for body in bodies):
                    return False
                held += self.add(bodies, stable)
                del found, bodies  # the next ones lie in their memory, which the processor's cache holds
                if held > ROWS_MAX or self._bytes > 2 * self._bytes_max:
                    return False
        return True

    def add(self, bodies: Sequence[Sequence[Any]], stable: Mapping[int, int] = _NOBODY) -> int:
        """The rows of decoded transactions, in their order, that not everybody has; how many they are, or more."""
        count, origins = 0, list(map(_ORIGIN, bodies))
        for origin in set(origins):
            some = bodies if origins.count(origin) == len(bodies) else [body for body in bodies if body[4] == origin]
            numbers, last = list(map(_NUMBER, some)), stable.get(origin, 0)
            if numbers[0] <= last:
                unstable = bisect_right(numbers, last)
                some, numbers = some[unstable:], numbers[unstable:]
            rows = self.rows_of(changes_by_columns(some), _numbers_of(some, numbers))
            if not (added := sum(map(len, rows.values()))):
                continue
            parts = self._parts.setdefault(origin, deque())
            if not parts or parts[-1].count > PART_ROWS:
                parts.append(_Written())
            part = parts[-1]
            # Of its rows: what comes after them and only tells what its writer has seen is told of by nobody.
            part.last = max(max(keys.values()) for keys in rows.values() if keys)
            part.count += added
            for table_id, keys in rows.items():
                if table_id in part.rows:
                    part.rows[table_id].update(keys)
                else:
                    part.rows[table_id] = keys
            count += added
        return count

    def followed(self, next_ones: Followed) -> None:
        """What comes next in our journal is committed."""
        if next_ones.first_seqno == self.looked + 1:  # else it is read from there when it is looked for
            self.looked = next_ones.last_seqno
            self._bytes += next_ones.size_bytes
            if self._place is not None:  # of another segment, where they have begun one: then it says nothing
                self._place = self._place[0], self._place[1] + next_ones.size_bytes
            if next_ones.bodies:
                self.add(next_ones.bodies)

    def rows_of(self, changes: Changes, numbers: Sequence[int] = ()) -> RowKeys:
        """The rows of tables that several suppliers write. `numbers`: of each change, its transaction's; each row is
        noted with the last one."""
        rows: RowKeys = {}
        if not (count := len(changes.ops)):
            return rows
        numbers = numbers or [0] * count
        one = changes.ops[0], changes.table_ids[0], changes.arguments[0]
        is_one = all(column.count(of) == count for column, of in zip(changes[:3], one, strict=True))
        if is_one and len(keys := self._keys_of(one)) < 2:  # with two a row may be of both
            for key in keys:
                rows[one[1]] = dict(zip(map(key, changes.values), numbers, strict=True))
            return rows
        kinds = list(zip(changes.ops, changes.table_ids, changes.arguments, strict=True))
        for kind, values, number in zip(kinds, changes.values, numbers, strict=True):
            for key in self._keys_of(kind):
                rows.setdefault(kind[1], {})[key(values)] = number
        return rows

    def _keys_of(self, kind: tuple[Any, Any, Any]) -> list[Callable[[Any], Any]]:
        known = self._keys.get(kind)
        if known is None:
            wanted = kind[0] in _ROWS and self._is_shared(kind[1])
            known = self._keys[kind] = self._make_keys(*kind) if wanted else []
        return known

    def _make_keys(self, op: Any, table_id: Any, argument: Any) -> list[Callable[[Any], Any]]:
        at: Sequence[int] = self._definition(table_id).key
        places = [at]
        if op == Op.UPDATE:  # what it changes comes before its whole before-image
            changed = changed_of(argument)
            places = [[len(changed) + one for one in at]]
            if not set(at).isdisjoint(changed):
                places.append([changed.index(one) if one in changed else len(changed) + one for one in at])
        return [itemgetter(*some) for some in places]

    def meets(self, rows: RowKeys, origin: int, told: Told) -> bool:
        """Whether one of these rows, of a transaction of `origin`, was written by one that its writer had not seen, as
        `told` says."""
        for other, parts in self._parts.items():
            last = told.get(other, 0)
            for part in parts if other != origin else ():
                if part.last > last and any(
                    number > last
                    for table_id, keys in rows.items()
                    for number in _of_both(keys, part.rows.get(table_id, {}))
                ):
                    return True
        return False


def _of_both(keys: Mapping[Any, int], known: Mapping[Any, int]) -> list[int]:
    """What is known of those keys. (Of a dictionary itself `isdisjoint` would look at each key, not at those of the
    smaller one.)"""
    return [] if keys.keys().isdisjoint(known.keys()) else [known[key] for key in keys.keys() & known.keys()]


def _numbers_of(bodies: Sequence[Sequence[Any]], numbers: Sequence[int]) -> Sequence[int]:
    """Of each change of these transactions its transaction's number."""
    if set(map(len, bodies)) == {ONE_CHANGE}:
        return numbers
    counts = [len(changes_of(body)) // 4 for body in bodies]
    return list(chain.from_iterable(map(repeat, numbers, counts)))
