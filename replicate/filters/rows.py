"""Rows on their way to a consumer that wants some of a table's, or some columns: the others stay here.

An UPDATE that brings a row into the condition goes as an INSERT, one that takes it out as a DELETE, one of other
columns not at all; a transaction of which nothing is left as a NULL record. What is told otherwise is RESTATED.

Guarantees: after each transaction the consumer has exactly the rows that the condition finds at the source, and blanks
in columns that are not listed; each number goes exactly once, in order; a transaction without such tables goes byte for
byte. A table that changes so that this cannot be told any more stops the stream by name, before that transaction.
Leaves to others: sockets, journals, who wants what. Pure: one for each stream, in order from its beginning.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping
from typing import Any, Final

from replicate.errors import PeerRefusedError, UsageError
from replicate.filters.restating import StreamItem
from replicate.filters.selection import PartitionSelection, changes_in, is_as_written, is_null, may_define, told_large
from replicate.filters.wishes import BoundWish, ParsedWish, parse_wish
from replicate.journal.record import (
    CHANGES_BEGIN,
    DEFINE_MARK,
    FrameBatch,
    decode_batch,
    pack_changes,
    pack_null,
    pack_restated,
    read_head,
)
from replicate.journal.walk import walk
from replicate.model.column_list import STAND_INS, unfit_statement
from replicate.model.table_wish import has_list, told_wish
from replicate.model.transaction import Kind, Op, TableDefinition, changed_of, mask_of

REASON: Final = "ROWS_REFUSED"
_CHANGE: Final = 4
_COMMENTS: Final = re.compile(r"/\*.*?\*/|--[^\n]*", re.DOTALL)
_MAY_RENAME: Final = re.compile(r"\s*ALTER\b.*\bRENAME\b.*\bTO\b", re.DOTALL | re.IGNORECASE)
_NAME: Final = r"""("(?:[^"]|"")*"|`(?:[^`]|``)*`|\[[^]]*\]|'(?:[^']|'')*'|[^\s"'`[\].;]+)"""
_ALTERS: Final = re.compile(
    rf"\s*ALTER\s+TABLE\s*(?:{_NAME}\s*\.\s*)?{_NAME}\s*(?:RENAME\s+TO\s*{_NAME}|RENAME\b)", re.IGNORECASE
)
_NOTHING: Final = re.compile(b"(?!)")

Filters = Mapping[tuple[str, str], str]
"""What is wanted, by region and table."""


class RowSelection:
    """What of one stream goes to one consumer: of what `partitions` lets go (None: of all), the rows of `filters`."""

    def __init__(
        self,
        filters: Filters,
        definitions: Mapping[int, TableDefinition],
        partitions: PartitionSelection | None = None,
        lacking: Filters | None = None,
    ) -> None:
        """`definitions`: of all tables at the stream's beginning, by their ids. `lacking`: tables of which no more than
        that is here, and which `partitions` keeps back: the stream ends before one that it lets go. PeerRefusedError
        (ROWS_REFUSED) where a wish cannot be read, or says nothing of its table."""
        self._partitions = partitions
        self._lacking = lacking or {}
        self._filters = {key: _parsed(key, text) for key, text in filters.items()}
        self._bound: dict[int, BoundWish] = {}
        self._latest: dict[tuple[str, str], BoundWish] = {}
        self._names = [_seen_as(table) for (_, table), wish in self._filters.items() if wish.wish.columns]
        """How schema changes of tables with listed columns are found: they may come without a definition."""
        self._ids = self._sought()
        self._in: set[int] = set()
        """Partitions of the tables of which something is wanted."""
        self._dormant = set(self._filters)
        """Such tables that are not there."""
        self._stopped: PeerRefusedError | None = None
        self._kept_back = 0
        for definition in definitions.values():
            self._define(definition)

    @property
    def kept_back(self) -> int:
        """Transactions of which nothing went, so far."""
        return self._kept_back + (0 if self._partitions is None else self._partitions.kept_back)

    def goes_whole(self, definition: TableDefinition) -> bool:
        """Whether all rows of that table go, as they are."""
        is_kept_back = self._partitions is not None and not self._partitions.goes_whole(definition)
        return not is_kept_back and (definition.region, definition.table) not in self._filters

    def check(self) -> None:
        """PeerRefusedError (ROWS_REFUSED) where the stream cannot go on after what was taken last."""
        if self._stopped is not None:
            raise self._stopped

    def take(self, batch: FrameBatch) -> FrameBatch:
        """The batch as it goes, as far as it can; the same one when all of it does. What `check` raises, when nothing
        of it can; JournalDamagedError for a table that nobody has defined."""
        self.check()
        if self._partitions is not None:
            batch = self._partitions.take(batch)
        data = batch.data
        if not self._ids.search(data) and DEFINE_MARK not in data:
            return batch
        pieces, kept, last, count = list[bytes](), 0, batch.first_seqno - 1, 0
        for offset, head in walk(data):
            end = offset + head.frame_bytes
            told: bytes | None = None
            if head.kind in CHANGES_BEGIN and (
                self._ids.search(data, offset, end) or data.find(DEFINE_MARK, offset, end) >= 0
            ):
                try:
                    told = self._told_again(data[offset:end])
                except PeerRefusedError as error:
                    if not count:
                        raise
                    self._stopped = error
                    return FrameBatch(batch.first_seqno, last, count, b"".join((*pieces, data[kept:offset])))
            if told is not None:
                pieces += (data[kept:offset], told)
                kept = end
            last, count = head.seqno, count + 1
        if not pieces:
            return batch
        return FrameBatch(batch.first_seqno, batch.last_seqno, batch.count, b"".join((*pieces, data[kept:])))

    def _told_again(self, frame: bytes) -> bytes | None:
        head = read_head(frame)
        start = CHANGES_BEGIN[head.kind]
        body = decode_batch(frame, count=1)[2]
        left, is_told = list[Any](), False
        for place in range(start, len(body), _CHANGE):
            change = list(body[place : place + _CHANGE])
            goes = self._goes(change)
            is_told = is_told or goes is not change
            left += goes or ()
        if not is_told:
            return None
        if not left:
            self._kept_back += 1
            # It names no partition, though it was carried: windows with others take the slow way (window/columns.py).
            return pack_null(head, "", ())
        reason = body[start - 1][0] if head.kind == Kind.RESTATED else ""
        return pack_restated(head, reason, pack_changes(left), len(left))

    def _goes(self, change: list[Any]) -> list[Any] | None:
        """What goes of one change: itself, another one, or None."""
        op, ident, argument, values = change
        bound = self._bound.get(ident)
        if op == Op.DEFINE:
            self._define_again(TableDefinition.unpack(values))
        elif op == Op.SCHEMA:
            self._check_name(argument, values[0])
            self._check_columns(argument, values[0])
        elif bound is None or op not in (Op.INSERT, Op.UPDATE, Op.DELETE):
            return change
        elif op != Op.UPDATE:
            if not bound.keeps(values):
                return None
            shown = bound.columns.shown(values)
            return change if shown is values else [op, ident, argument, shown]
        else:
            changed = changed_of(argument)
            before = values[len(changed) :]
            after = list(before)
            for ordinal, value in zip(changed, values, strict=False):
                after[ordinal] = value
            was, is_now = bound.keeps(before), bound.keeps(after)
            if was and is_now:
                return _updated(change, bound, changed, before)
            if was:
                return [int(Op.DELETE), ident, 0, bound.columns.shown(before)]
            return [int(Op.INSERT), ident, 0, bound.columns.shown(after)] if is_now else None
        return change

    def _define(self, definition: TableDefinition) -> None:
        key = definition.region, definition.table
        if key in self._lacking and (self._partitions is None or self._partitions.goes_whole(definition)):
            raise refused(key, self._lacking[key], "it comes to what is wanted, and no other is where this comes from")
        condition = self._filters.get(key)
        if condition is None:
            return
        try:
            bound = self._bound[definition.table_id] = condition.bind(definition)
        except UsageError as error:
            raise refused(key, condition.text, error.what) from error
        self._latest[key] = bound
        self._ids = self._sought()
        self._in.add(definition.partition)
        self._dormant.discard(key)

    def _define_again(self, definition: TableDefinition) -> None:
        """In the stream. A table of listed columns whose blanks would be other ones cannot be told, nor one that is to
        take its place: by its rows what is not listed would go."""
        key = definition.region, definition.table
        for prefix in STAND_INS:
            replaced = key[0], key[1].removeprefix(prefix)
            if replaced != key and replaced in self._filters and self._filters[replaced].wish.columns:
                raise refused(replaced, self._filters[replaced].text, f"table {key[1]} is made to take its place")
        known = self._latest.get(key)
        self._define(definition)
        if known is not None:
            now = self._latest[key].columns.by_name
            for name in sorted(now.keys() & known.columns.by_name.keys()):
                if type(now[name]) is not type(known.columns.by_name[name]):
                    raise refused(
                        key, self._filters[key].text, f"column {name} may be NULL, or may not, or is of another type"
                    )

    def _sought(self) -> re.Pattern[bytes]:
        sought = [re.escape(b"\xce" + one.to_bytes(4, "big")) for one in self._bound] + self._names
        return re.compile(b"|".join(sought)) if sought else _NOTHING

    def _check_columns(self, region: str, sql: str) -> None:
        """A schema change of a table with listed columns goes only if it does the same there."""
        for key, condition in self._filters.items():
            if key[0] != region or not condition.wish.columns:
                continue
            left = self._latest[key].columns.by_name if key in self._latest else {}
            if why := unfit_statement(sql, key[1], condition.wish.columns, left):
                raise refused(key, condition.text, f"{why}: {' '.join(sql.split())}")

    def _check_name(self, region: str, sql: str) -> None:
        """A table that takes another name, or the place of another one, is not the one of the condition any more."""
        text = _COMMENTS.sub(" ", sql)
        if not _MAY_RENAME.match(text) and not _MAY_RENAME.match(sql):
            return
        alters = _ALTERS.match(text)
        if alters is not None and not alters[3]:  # a column
            return
        named = {_plain(one) for one in alters.groups()[1:]} if alters is not None else None
        for key, condition in self._filters.items():
            # Of a statement that was not understood whatever it may name.
            is_it = key[1].lower() in (sql.lower() if named is None else named)
            if key[0] == region and is_it:
                raise refused(key, condition.text, f"it was renamed, or another table was: {' '.join(sql.split())}")

    # Large transactions.

    def takes_whole(self, commit_frame: bytes, partitions: Iterable[int]) -> bool:
        """As PartitionSelection says it."""
        numbers = tuple(partitions)
        if self._dormant or not self._in.isdisjoint(numbers):
            return False
        if self._partitions is None:
            return is_as_written(commit_frame)
        return self._partitions.takes_whole(commit_frame, numbers)

    def large(self, commit_frame: bytes, parts: Iterable[bytes], token: int) -> Generator[StreamItem]:
        """As PartitionSelection says it; and what `check` raises, after parts of it perhaps."""
        self.check()
        changes = changes_in(parts) if self._partitions is None else self._partitions.wanted(parts)
        for item in told_large(commit_frame, self._going(changes), token):
            self._kept_back += is_null(item)
            yield item

    def _going(self, changes: Iterable[list[Any]]) -> Iterator[list[Any]]:
        for change in changes:
            goes = self._goes(change)
            if goes is not None:
                yield goes

    def learn_large(self, parts: Callable[[], Iterable[bytes]]) -> None:
        """As PartitionSelection says it. PeerRefusedError (ROWS_REFUSED) where it makes a table that has a condition:
        its rows would have gone whole."""
        if self._partitions is not None:
            self._partitions.learn_large(parts)
        if not self._names and not may_define(parts()):
            return
        known = len(self._bound)
        for change in changes_in(parts()):
            self._goes(change)
            if len(self._bound) != known:
                definition = TableDefinition.unpack(change[3])
                key = definition.region, definition.table
                raise refused(key, self._filters[key].text, "it was made again in a large transaction")


def _updated(change: list[Any], bound: BoundWish, changed: tuple[int, ...], before: list[Any]) -> list[Any] | None:
    """An UPDATE of a row that is wanted before and after it."""
    blanks = bound.columns.blanks
    if not blanks:
        return change
    told = [place for place, ordinal in enumerate(changed) if ordinal not in blanks]
    if changed and not told:
        return None
    shown = bound.columns.shown(before)
    if len(told) == len(changed) and shown is before:
        return change
    mask = mask_of([changed[place] for place in told], len(before))
    return [int(Op.UPDATE), change[1], mask, [*(change[3][place] for place in told), *shown]]


def _seen_as(table: str) -> bytes:
    """How the name of a table is found in a frame, however it is quoted and in whatever case."""
    longest = max(re.split("[\"'`\\[\\]]", table), key=len)
    return b"(?i:" + re.escape(longest.encode()) + b")"


def _plain(name: str) -> str:
    """Without its quotes, in small letters."""
    first = name[0]
    if first in "\"`'":
        name = name[1:-1].replace(2 * first, first)
    return (name[1:-1] if first == "[" else name).lower()


def _parsed(key: tuple[str, str], text: str) -> ParsedWish:
    try:
        return parse_wish(text)
    except UsageError as error:
        raise refused(key, text, error.what) from error


def refused(key: tuple[str, str], text: str, why: str) -> PeerRefusedError:
    """The refusal of a stream of that table with what `text` says is wanted."""
    table = ".".join(filter(None, key))
    has_columns = has_list(text)
    what = f"of table {table} {told_wish(text)}" if has_columns else f"the rows of table {table} where {text}"
    return PeerRefusedError(
        f"{what} cannot be told any more: {why}",
        where=table,
        do=f"On the secondary, say again {'what is' if has_columns else 'which rows are'} wanted (replicate -i "
        f"SECONDARY subscription filter TABLE {'--columns … ' * has_columns}--where … --ahead), and load them again: "
        "replicate -i SECONDARY seed --restart",
        reason=REASON,
    )
