"""The transactions of a journal that somebody asks for: a range of numbers, a selection, the last so many of those.

Guarantees: reads files only and takes no lock; stops at the last whole frame, so it may run beside a writer; an end
that is damage is an error after all that stands before it; what is asked for after a bad place is given as far as it
verifies, and then that is the error all the same. Memory does not grow with the journal or with a transaction,
whatever is asked for. Of what a time leaves out one segment at most is read, and the last ones are looked for from the
end (csns rise with the numbers: door/door.py).
Leaves to others: what is done with them (show.py), and what stands in a change beyond its table.
"""

from __future__ import annotations

import os
from bisect import bisect_left, bisect_right
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import closing

from msgspec import Struct
from msgspec.structs import replace

from replicate.audit.read import Frames, Match, StretchReader, match_of, matches_backwards
from replicate.audit.selection import (
    KeyValue,
    Selection,
    TableName,
    ops_named,
    ops_of,
    origins_named,
    row_named,
    tables_named,
)
from replicate.audit.verify import verify_chain
from replicate.errors import (
    DamagedError,
    FormatUnknownError,
    JournalDamagedError,
    JournalMissingError,
    UsageError,
)
from replicate.journal.catalogue import catalogue_with
from replicate.journal.chain import Chain, Segment
from replicate.journal.durable import durable_seqno
from replicate.journal.frame import FRAME_HEAD_BYTES
from replicate.journal.record import read_head
from replicate.journal.salvage import BadPlace, last_standing, salvaged
from replicate.journal.tail import LOOKS, Damaged, ScanResult, classify_tail, goes_on
from replicate.model.elements import recorded_named
from replicate.model.moment import readable
from replicate.model.transaction import Catalogue
from replicate.model.vector import U64_MAX, Chains


class Query(Struct, frozen=True):
    """What is asked for. `first_seqno`, `last_seqno`: None for the oldest and the newest there is. Csns: see Selection.
    `tables`, `origins`, `ops`, `key`: as an operator names them. `last_count`: of all that, only the last so many.
    `partitions`: their numbers. `elements`: audit elements, as an operator names them."""

    first_seqno: int | None = None
    last_seqno: int | None = None
    first_csn: int = 0
    last_csn: int = U64_MAX
    tables: tuple[str, ...] = ()
    last_count: int | None = None
    origins: tuple[str, ...] = ()
    ops: tuple[str, ...] = ()
    key: tuple[str, ...] | None = None
    comment: str | None = None
    partitions: tuple[int, ...] = ()
    elements: tuple[str, ...] = ()

    def check(self) -> None:
        """UsageError where something ends before it begins, or no journal could hold it."""
        check_order(self.first_seqno, self.last_seqno)
        if self.first_csn > self.last_csn:
            raise UsageError("--since is later than --until", do="Give the earlier time as --since")
        if self.key is not None and len(self.tables) != 1:
            raise UsageError("a key is one of a table's", do="Name that table, and no other, with --table")
        if self.comment is not None and not self.comment.isascii():
            try:
                self.comment.encode()
            except UnicodeEncodeError:
                raise UsageError(
                    f"{self.comment!r} is no text in UTF-8, as all comments are", do="Give --comment in UTF-8"
                ) from None

    def selection(self, known: Callable[[], Catalogue]) -> Selection:
        """What it means. `known`: gives what is in force at the end of what is read, and is called only where a name
        must be looked up.

        NotFoundError or UsageError for a table, an origin, an operation or a key."""
        tables: frozenset[TableName] = frozenset()
        origins: frozenset[int] = frozenset()
        key, columns = None, tuple[str, ...]()
        if self.tables or self.origins:
            found = known()
            tables = tables_named(self.tables, found.in_force().keys())
            origins = origins_named(self.origins, found.histories)
            if self.key is not None:
                (name,) = tables
                key, columns = row_named(self.key, found.in_force()[name])
        elements, partitions = recorded_named(self.elements), frozenset(self.partitions)
        ops = ops_of(elements, ops_named(self.ops))
        first, last = self.first_csn, self.last_csn
        return Selection(first, last, tables, origins, ops, key, self.comment, partitions, elements, columns)


class Matches(Struct, frozen=True):
    """The answer to a query: what was `selected`, and the numbers within which all of it stands."""

    chain: Chain
    first_seqno: int
    last_seqno: int
    selection: Selection
    damage: JournalDamagedError | None = None
    """Why more of what was asked for may stand there, and cannot be read."""

    def __iter__(self) -> Iterator[Match]:
        """In order. JournalDamagedError and its kin at the first frame that does not verify; `damage` after the last
        one. A bad place before the first one is told after them."""
        damage: DamagedError | None = self.damage
        last = 0
        try:
            for one in _matches(self.chain, self.first_seqno, self.last_seqno, self.selection):
                last = one.seqno
                yield one
        except (FormatUnknownError, JournalMissingError):
            raise
        except DamagedError as error:
            if damage is None or last:
                damage = _bad_place(self.chain, last + 1 if last else self.first_seqno, error)
        if damage is not None:
            if not last:
                yield from _after_damage(self.chain, self.first_seqno, self.last_seqno, self.selection)
            raise damage

    def frames(self) -> Iterator[Frames | Match]:
        """The same, sifted and not decoded (read.py). A bad place is told as the reader met it."""
        with closing(StretchReader(self.chain, self.first_seqno, self.selection)) as reader:
            yield from reader.frames(self.last_seqno)
        if self.damage is not None:
            raise self.damage

    def backwards(self) -> Iterator[Match]:
        """The same, the newest first. `damage` before anything: what is newer than the last one cannot be read."""
        if self.damage is not None:
            raise self.damage
        yield from matches_backwards(self.chain, self.first_seqno, self.last_seqno, self.selection)

    def of_row(self, key: tuple[KeyValue, ...], columns: tuple[str, ...], last_seqno: int) -> Matches:
        """The same up to `last_seqno`, and of it what changes that row."""
        return replace(self, last_seqno=last_seqno, selection=replace(self.selection, key=key, columns=columns))

    def known(self) -> Catalogue:
        """What is in force at the end of the journal. JournalDamagedError and its kin."""
        return known_at_end(self.chain)


def check_order(first_seqno: int | None, last_seqno: int | None) -> None:
    """UsageError when a range ends before it begins."""
    if first_seqno is not None and last_seqno is not None and first_seqno > last_seqno:
        raise UsageError(f"--from {first_seqno} comes after --to {last_seqno}", do="Give the smaller number as --from")


def not_held(oldest_seqno: int, last_seqno: int, where: str) -> UsageError:
    """The error for a range that goes beyond what the journal holds."""
    held = f"transactions {oldest_seqno} to {last_seqno}" if oldest_seqno <= last_seqno else "no transaction yet"
    return UsageError(
        f"the journal holds {held}", where=where, do="Give --from and --to within that, or leave them out"
    )


def not_told_of(first_csn: int, last_csn: int, where: str) -> UsageError:
    """The error for a time of which a journal from `first_csn` to `last_csn` knows nothing."""
    return UsageError(
        f"the journal tells of {readable(first_csn)} to {readable(last_csn)}",
        where=where,
        do="Give --since and --until within that, or leave them out",
    )


def find(
    chain: Chain, query: Query, *, marks_are_ours: bool = True, is_whole: bool = True, known_to_csn: int = 0
) -> Matches:
    """What a query asks for. `marks_are_ours`: see `classify_tail`. `is_whole`: the chain is all that its directory
    holds, so that the mark beside it says how far it should reach. `known_to_csn`: that of now, where what comes is
    added to it, so that nothing after its last transaction means that there was none.

    JournalMissingError when its first number was pruned; UsageError when one is not there yet, or the wrong way round,
    or for a time outside of it; NotFoundError or UsageError for a table; JournalDamagedError and its kin.
    """
    query.check()
    oldest = chain.oldest_seqno()
    newest, scanned, damage = _ended(chain, marks_are_ours=marks_are_ours, is_whole=is_whole)
    end = scanned.last_seqno
    first = oldest if query.first_seqno is None else query.first_seqno
    last = end if query.last_seqno is None else query.last_seqno
    is_beyond = (query.first_seqno or 0) > end or last > end
    if (query.last_seqno is not None and last < oldest) or (is_beyond and damage is None):
        raise not_held(oldest, end, chain.directory)
    if first < oldest:
        raise JournalMissingError(
            f"transaction {first} is not in the journal any more; the oldest is {oldest}",
            where=chain.directory,
            do=f"Give --from {oldest}, or leave it out; an archive, which audit reads, too, may hold what was pruned",
            seqno=first,
        )
    is_timed = bool(query.first_csn) or query.last_csn < U64_MAX
    in_order = not is_timed or is_in_order_of_time(_in_force(chain, newest, scanned), scanned.chains)
    if not is_beyond and (query.last_seqno is not None or (in_order and query.last_csn < scanned.last_csn)):
        damage = None  # all that was asked for lies before it
    if first > end and damage is not None:
        with chain.open(newest.first_seqno) as segment:
            end = max(end, last_standing(segment))
    last = min(last, end) if query.last_seqno is not None else end
    selection = query.selection(lambda: _in_force(chain, newest, scanned))
    if is_timed and in_order:
        told_to = max(scanned.last_csn, known_to_csn) if damage is None and scanned.last_csn else U64_MAX
        if selection.first_csn > told_to:
            raise not_told_of(csn_at(chain, oldest), told_to, chain.directory)
        is_before, first, last = _in_time(chain, first, last, selection)
        if is_before and scanned.last_csn:
            raise not_told_of(csn_at(chain, oldest), max(scanned.last_csn, known_to_csn), chain.directory)
    if query.last_count is not None:
        first = _last_from(chain, first, last, selection, query.last_count)
    return Matches(chain, first, last, selection, damage)


def known_tables(chain: Chain) -> tuple[TableName, ...]:
    """All tables that may be asked for. JournalDamagedError and its kin."""
    return tuple(known_at_end(chain).in_force())


def known_at_end(chain: Chain) -> Catalogue:
    """What is in force after the last transaction. JournalDamagedError and its kin."""
    return _in_force(chain, *chain.scan_last())


def _in_force(chain: Chain, newest: Segment, scanned: ScanResult) -> Catalogue:
    with chain.open(newest.first_seqno) as segment:
        return catalogue_with(segment.read_catalogue()[0], segment, scanned.definition_frames)


def _ended(
    chain: Chain, *, marks_are_ours: bool, is_whole: bool
) -> tuple[Segment, ScanResult, JournalDamagedError | None]:
    """The newest segment, how it ends, and the error of an end that is neither the normal one nor a torn tail."""
    damage = None
    for _ in range(LOOKS):
        # What is durable is asked first: a writer may be at work.
        durable = durable_seqno(chain.directory) if is_whole else 0
        newest, found = chain.scan_last()
        if newest.header.adopted:
            return newest, found, None
        verdict = classify_tail(found, last_durable_seqno=durable, marks_are_ours=marks_are_ours)
        if not isinstance(verdict, Damaged):
            return newest, found, None
        seqno, why = found.last_seqno + 1, f"{verdict.reason}{goes_on(found)}"
        damage = _unreadable(JournalDamagedError, seqno, why, newest.path, verdict.offset)
    return newest, found, damage


def _bad_place(chain: Chain, seqno: int, error: DamagedError) -> DamagedError:
    """The `error` that a reader met at `seqno` or before it, told as `journal verify` finds it; or just that error."""
    found = [one for one in verify_chain(chain, seqno, seqno).findings if one.seqno]
    here = ([one for one in found if one.seqno <= seqno] or found[:1])[-1:]
    kind = type(error) if isinstance(error, JournalDamagedError) else JournalDamagedError
    for one in here:
        return _unreadable(kind, one.seqno, one.what, os.path.join(chain.directory, one.segment), one.offset)
    return error


def _unreadable(kind: type[JournalDamagedError], seqno: int, why: str, path: str, offset: int) -> JournalDamagedError:
    return kind(
        f"the journal can be read up to transaction {seqno - 1}: {why}",
        where=f"{path}, offset {offset}",
        do="Run `replicate -i INSTANCE journal verify`, which names every damaged place",
        seqno=seqno,
        offset=offset,
    )


# Where to begin, and where to end.


def is_in_order_of_time(known: Catalogue, chains: Chains) -> bool:
    """Whether no transaction of a journal is older than one before it: each incarnation in it began with all that those
    before it there have written. Suppliers write at the same time, and what comes from one may be late. `known`,
    `chains`: at the end of the journal."""
    for place, history in enumerate(known.histories):
        for before in known.histories[:place]:
            if history.base.last(before.origin.key) < chains.get(before.origin.key, (0, 0))[0]:
                return False
    return True


def _in_time(chain: Chain, first: int, last: int, selection: Selection) -> tuple[bool, int, int]:
    """Whether the time asked for ends before the journal begins; and the numbers from the segment on in which it
    begins, up to that in which it ends."""
    is_before = False
    begins = [number for number in chain.first_seqnos() if number <= last]
    if selection.first_csn:
        place = bisect_left(begins, selection.first_csn, key=lambda number: csn_at(chain, number))
        first = max(first, begins[place - 1]) if place else first
    if selection.last_csn < U64_MAX:
        place = bisect_right(begins, selection.last_csn, key=lambda number: csn_at(chain, number))
        last = min(last, begins[place] - 1) if place < len(begins) else last
        is_before = not place and bool(begins)
    return is_before, first, last


def csn_at(chain: Chain, first_seqno: int) -> int:
    """The csn of the first transaction of a segment; of one that holds nothing yet, one that is never reached."""
    with chain.open(first_seqno) as segment:
        if segment.header.adopted:
            return segment.read_commit()[1].csn
        _, offset = segment.read_catalogue()
        head = segment.read_some(FRAME_HEAD_BYTES, offset)
        if len(head) < FRAME_HEAD_BYTES or not head[0]:
            return U64_MAX
        return read_head(segment.read_frame(offset)).csn


def _last_from(chain: Chain, first: int, last: int, selection: Selection, count: int) -> int:
    """The number with which the last `count` that are selected begin: from the end, one segment after the other."""
    if selection.is_everything:
        return max(first, last - count + 1)
    begin, missing, end = last + 1, count, last
    for number in reversed(chain.first_seqnos()):
        if not missing or end < first:
            break
        if number > end:
            continue
        found = deque(
            (one.seqno for one in _matches(chain, max(number, first), end, selection)),
            maxlen=missing,
        )
        if found:
            begin, missing = found[0], missing - len(found)
        end = number - 1
    return begin


# Reading.


def _matches(chain: Chain, first: int, last: int, selection: Selection) -> Iterator[Match]:
    if first > last:
        return
    reader = StretchReader(chain, first, selection)
    try:
        yield from reader.matches(last)
    finally:
        reader.close()


def _after_damage(chain: Chain, first: int, last: int, selection: Selection) -> Iterator[Match]:
    """What verifies from `first` to `last` though something before it does not: up to the next bad place. Nothing where
    all before it is whole."""
    numbers = [number for number in chain.first_seqnos() if number <= last]
    begin = max((number for number in numbers if number <= first), default=None)
    if begin is None:
        return
    is_after = False
    with chain.open(begin) as segment:
        for one in salvaged(segment) if not segment.header.adopted else ():
            if isinstance(one, BadPlace):
                if one.seqno >= first:
                    return
                is_after = True
            elif one.seqno >= first:
                if one.seqno > last or not is_after:
                    return
                yield from match_of(one.frame, one.catalogue, selection)
    following = next((number for number in numbers if number > begin), None)
    if is_after and following is not None:
        yield from _matches(chain, following, last, selection)
