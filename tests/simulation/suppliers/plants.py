"""The worlds of suppliers proved on planted bugs, as ../plants.py has it: each must be found.

Guarantees: as there. Leaves to others: how a bug is found.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Final

from msgspec.structs import replace

import receiver_server.supplier_sources
import replicate.door.absorb_stamps
import replicate.door.ledger
import replicate.door.seen_told
import source_server.unseen_transactions
import update_process.merging
import update_process.origin_check
import update_process.supplied_transactions
import update_process.unstamped
from replicate.model.merged_row import NEVER, Row
from replicate.model.vector import Position
from replicate.pool import control as word
from tests.simulation import merging
from tests.simulation.content import Content
from tests.simulation.plants import nothing
from tests.simulation.replaced import Change

Applier = update_process.supplied_transactions.SupplierApplier
Merging = update_process.merging.Merging


def _knows_less(less: Callable[[Any, dict[int, tuple[int, int]]], dict[int, tuple[int, int]]]) -> list[Change]:
    """What is passed over is decided by less than what is here."""

    def lacking(self: Any, records: Any) -> Any:
        before = self.session.position
        self.session.position = Position(before.last_seqno, before.vector, less(self, dict(before.chains)))
        try:
            return kept(self, records)
        finally:
            self.session.position = before

    kept = Applier._lacking
    return [(Applier, "_lacking", lacking), (Applier, "_in_order", lambda *_: None)]


def _own_come_back() -> list[Change]:
    """Our own transactions are sent back to us, and taken."""

    def without_own(self: Any, chains: dict[int, tuple[int, int]]) -> dict[int, tuple[int, int]]:
        chains.pop(self._words[word.OWN_ORIGIN], None)
        return chains

    def lacks(self: Any, head: Any) -> bool:
        return head.origin == self._own or bool(kept(self, head))

    kept = source_server.unseen_transactions.Unseen._is_lacking
    return [
        *_knows_less(without_own),
        (source_server.unseen_transactions.Unseen, "_is_lacking", lacks),
        (update_process.origin_check.OriginCheck, "refuse_own", nothing),
    ]


def _taken_twice() -> list[Change]:
    """Of each other origin the last one that is here is taken once more, where it comes again."""

    def one_less(self: Any, chains: dict[int, tuple[int, int]]) -> dict[int, tuple[int, int]]:
        own = self._words[word.OWN_ORIGIN]
        return {key: place if key == own else (place[0] - 1, place[1]) for key, place in chains.items()}

    return _knows_less(one_less)


def _seen_is_too_much() -> list[Change]:
    """What a supplier tells that it has seen is one more than it has."""

    def values(teller: int, told: Mapping[int, int]) -> list[int]:
        return kept(teller, {origin: last + 1 for origin, last in told.items()})

    kept = replicate.door.seen_told.values_of
    return [(replicate.door.seen_told, "values_of", values)]


def _all_is_seen() -> list[Change]:
    """A writer is taken to have seen all that is here."""
    return [(Merging, "merges", lambda self, window, position: False)]


def _all_is_seen_by_large_ones() -> list[Change]:
    """The writer of a large transaction is taken to have seen all that is here."""
    return [(Merging, "merges_large", lambda self, tables, origin, seen, position, removes: False)]


def _large_ones_stampnothing() -> list[Change]:
    """Large transactions of our journal stamp no rows."""
    return [(replicate.door.absorb_stamps, "_absorb_large", nothing)]


def _merged_large_is_sent() -> list[Change]:
    """What a large transaction came to here goes to others, not what its writer wrote."""
    return [(source_server.unseen_transactions, "as_its_writer_wrote", nothing)]


def nothing_absorbed() -> list[Change]:
    """Our own transactions stamp no rows."""
    return [(update_process.merging, "absorb", nothing)]


def _arrival_wins() -> list[Change]:
    def merged(row: Row, change: Any, stamp: Any, groups: Any) -> Row:
        older = replace(row, life=NEVER, stamps={})
        after = kept(older, change, stamp, groups)
        return replace(after, stamps={**row.stamps, **after.stamps})

    kept = merging.merged
    return [(merging, "merged", merged)]


def _forgets_what_it_has_itself() -> list[Change]:
    """Stamps go as soon as we have the transaction, though others may still write beside it."""

    def here(self: Any, position: Any) -> dict[int, int]:
        return {origin: last for origin, (last, _) in position.chains.items()}

    return [(Merging, "_stable", here), (Merging, "_confirmed", lambda self, origin: 2**64)]


def _origins_forgotten() -> list[Change]:
    """A segment does not say where other origins stand."""
    return [(replicate.door.ledger.Ledger, "_note_foreign", nothing)]


def _clock_of_others() -> list[Change]:
    """Our clock does not go on from what others have written."""

    def advance(self: Any, end: int, last: Any, regions: int, *, done: bool, moved: Any = None) -> None:
        csn = self.words[word.LAST_CSN]
        kept(self, end, last, regions, done=done, moved=moved)
        if moved is not None and self.words[word.OWN_ORIGIN] not in moved.places:
            self.words[word.LAST_CSN] = csn

    kept = replicate.door.ledger.Ledger.advance
    return [(replicate.door.ledger.Ledger, "advance", advance)]


def _received_is_applied() -> list[Change]:
    """What was received of a source is reported as applied."""

    def freed(self: Any, upto_address: int) -> int:
        kept(self, upto_address)
        self.applied_seqno = self.received_seqno
        return int(self.applied_seqno)

    kept = receiver_server.supplier_sources.SuppliedSource.freed
    return [(receiver_server.supplier_sources.SuppliedSource, "freed", freed)]


def _freed_before_commit() -> list[Change]:
    """What was received is called applied before it is committed."""

    def take(self: Any, records: Any, done: Any) -> Any:
        for record in records:
            self._lane.pool.free(record.next_address)
        return kept(self, records, done)

    kept = Applier._take_frames
    return [(Applier, "_take_frames", take), (Applier, "_free", nothing)]


def _all_lanes_are_freed() -> list[Change]:
    """What was applied of one source frees what others have sent."""

    def free(self: Any, records: Any, taken: int) -> None:
        kept(self, records, taken)
        for lane in self.pool.lanes:
            if lane is not self._lane.pool:
                lane.free(lane.written_address)

    kept = Applier._free
    return [(Applier, "_free", free)]


def _merged_is_sent() -> list[Change]:
    """What a transaction came to here goes to others, not what its writer wrote."""
    return [(source_server.unseen_transactions, "as_written", nothing)]


def _no_word() -> list[Change]:
    """A row that gives way for its name does so here alone."""
    return [(Merging, "resolver", nothing)]


def _waiting_is_forgotten() -> list[Change]:
    """Nobody looks for rows that wait for a name."""
    return [(merging.ModelMerging, "has_waiting", property(lambda self: False))]


def _loser_is_not_kept() -> list[Change]:
    """Of what was lost in one transaction the last value is not kept."""

    def note(self: Any, merges: Any) -> None:
        kept(self, list(merges)[:-1])

    kept = Content.note_merges
    return [(Content, "note_merges", note)]


def _loser_is_kept_twice() -> list[Change]:
    """What was lost is kept by the merge, and again when its transaction is committed."""

    def note(self: Any, merges: Any) -> None:
        found = list(merges)
        kept(self, [*found, *found[:1]])

    kept = Content.note_merges
    return [(Content, "note_merges", note)]


def _nothing_is_met() -> list[Change]:
    """What our journal has written without stamps is met by nobody."""
    return [(update_process.unstamped.UnstampedRows, "meets", lambda *_: False)]


def _stamps_are_not_met() -> list[Change]:
    """Rows that have stamps are met by nobody."""
    return [(merging.ModelMerging, "may_meet", lambda *_: False)]


PLANTS: Final[dict[str, Callable[[], list[Change]]]] = {
    "own transactions are taken back as others'": _own_come_back,
    "a transaction of another one is taken twice": _taken_twice,
    "tells that it has seen more than it has": _seen_is_too_much,
    "a writer is taken to have seen all that is here": _all_is_seen,
    "own transactions stamp no rows": nothing_absorbed,
    "the writer of a large one is taken to have seen all that is here": _all_is_seen_by_large_ones,
    "large transactions stamp no rows": _large_ones_stampnothing,
    "what a large one came to is sent on": _merged_large_is_sent,
    "what arrives later wins": _arrival_wins,
    "stamps are forgotten by what one has itself": _forgets_what_it_has_itself,
    "a segment forgets where other origins stand": _origins_forgotten,
    "a clock does not go on from what others wrote": _clock_of_others,
    "what was only received is reported as applied": _received_is_applied,
    "what a merge came to is sent on": _merged_is_sent,
    "a row gives way here alone": _no_word,
    "rows that wait for a name are forgotten": _waiting_is_forgotten,
    "rows that bear no stamps yet are met by nobody": _nothing_is_met,
    "rows with stamps are met by nobody": _stamps_are_not_met,
    "what is about to be committed is called applied": _freed_before_commit,
    "what is applied of one source frees what others sent": _all_lanes_are_freed,
    "a value that was lost is not kept": _loser_is_not_kept,
    "a value that was lost is kept twice": _loser_is_kept_twice,
}
FOUND: Final[Mapping[str, tuple[str, int]]] = {
    "what a large one came to is sent on": ("suppliers-liveness", 125),
    "what was only received is reported as applied": ("suppliers-liveness", 5),
    "rows that wait for a name are forgotten": ("suppliers-liveness", 18),
}
"""Worlds that find what few others find, to be lived first. In the last one a site is restored, and gets back rows of
one name."""
