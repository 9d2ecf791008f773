"""From where can this source serve that secondary? It decides, and touches nothing.

The secondary says what it has: its next seqno, its vector, and per origin the chain hash of the last transaction. The
source knows what *it* had just before that seqno. In step, both are the same place in the same history, and the hashes
prove it. Seven questions (`decide` has them), in the order of their gravity; the first that fails decides.

Guarantees: StartAt is only decided when every origin's number fits and at least one hash was compared (unless there is
no transaction before it). A hash that the source no longer holds is proved by that origin's next transaction, whose own
chain the Update Process verifies. A refusal names both sides' numbers and what to do.
Leaves to others: how positions are looked up, connections, roles (wire/introduction.py judges who the peer is). Pure.
"""

from __future__ import annotations

from typing import Final

from msgspec import Struct
from msgspec.structs import replace

from replicate.errors import ReplicateError
from replicate.limits import PARTITION_STREAM
from replicate.model.transaction import History
from replicate.model.vector import U64_MAX, Position
from replicate.wire.introduction import refusal
from replicate.wire.message import RefuseCode, Restart

OTHERS_MAX: Final = 5
"""So many pairs beside the one that is named: a refusal carries FACTS_MAX facts."""


class LargeHead(Struct, frozen=True):
    """The large transaction that stands at the restart's seqno in the source's journal."""

    token: int
    parts: int


class SourceView(Struct, frozen=True):
    """What the source has. Invariant: `oldest_seqno` <= `position.last_seqno` + 1.

    `position`: the end of its journal. `oldest_seqno`: the first transaction that its files still hold (last + 1 when
    they hold none). `histories`: every history record in it, oldest first. `before_restart`: its position just before
    `restart.next_seqno`, as far as the files and catalogues tell; a chain hash that they no longer hold is left out;
    None when that seqno cannot be reached. `large`: what stands at `restart.next_seqno`, if that is a large one.
    """

    position: Position
    oldest_seqno: int
    histories: tuple[History, ...] = ()
    before_restart: Position | None = None
    large: LargeHead | None = None


class StartAt(Struct, frozen=True):
    """Serve from `seqno`, its part `part`."""

    seqno: int
    part: int


class SecondaryAhead(Struct, frozen=True):
    """The secondary has transactions up to `secondary_last_seqno`; the source only up to `source_last_seqno`."""

    secondary_last_seqno: int
    source_last_seqno: int

    def error(self) -> ReplicateError:
        return refusal(
            RefuseCode.SECONDARY_AHEAD,
            f"the secondary's last transaction is {self.secondary_last_seqno}, the source's {self.source_last_seqno}",
            secondary_last_seqno=self.secondary_last_seqno,
            source_last_seqno=self.source_last_seqno,
        )


class RollbackFirst(Struct, frozen=True):
    """Of `origin` the secondary has up to `secondary_origin_seqno`, the common past ends at `common_origin_seqno`.

    `ended_by`: name of the instance whose history record took over from that origin; "" if none did. `more_from`: the
    seqno at which the common past ends, plus 1; 0 where the source cannot know it. An origin counts its transactions
    alone, so the process that looks for them in the secondary's journal needs this one. `others`: (origin, where the
    common past of it ends) of the other origins of which the secondary has more, too. `by_itself`: it is the instance
    that wrote the origin, and has begun again: as from a backup."""

    origin: int
    secondary_origin_seqno: int
    common_origin_seqno: int
    ended_by: str = ""
    more_from: int = 0
    others: tuple[tuple[int, int], ...] = ()
    by_itself: bool = False

    def error(self) -> ReplicateError:
        took_over = (
            "took over" if not self.by_itself else "began again (replicate -i SOURCE replica restore gets it back)"
        )
        end = f", where {self.ended_by} {took_over}" if self.ended_by else ""
        if self.ended_by and self.more_from and not self.by_itself:  # else the secondary may have the only copy
            end += f" (replicate -i SECONDARY rollback --to {self.more_from - 1} keeps what is more in a file)"
        if self.more_from:
            end += f"; what the secondary has more begins in its journal at N = {self.more_from}"
        error = refusal(
            RefuseCode.ROLLBACK_FIRST,
            f"of origin {self.origin:08x} the secondary has transactions up to {self.secondary_origin_seqno}; the "
            f"common past ends at {self.common_origin_seqno}{end}",
            origin=self.origin,
            secondary_origin_seqno=self.secondary_origin_seqno,
            common_origin_seqno=self.common_origin_seqno,
            more_from=self.more_from,
            ended_by=self.ended_by,
            **dict(_pairs(self.others)),
        )
        if self.by_itself:  # a seed of the secondary would destroy what only that has
            error.do = (
                "Before anything more is written there, on the source: replicate -i SOURCE replica restore, which "
                f"gets back what {self.ended_by} had. `journal show` of the secondary has it"
            )
        return error


class JournalMissing(Struct, frozen=True):
    """`next_seqno` is wanted; the source's files begin at `oldest_seqno`, or cannot prove the common past."""

    next_seqno: int
    oldest_seqno: int

    def error(self) -> ReplicateError:
        if self.next_seqno < self.oldest_seqno:
            what = (
                f"the secondary wants transaction {self.next_seqno}; the source's journal begins at {self.oldest_seqno}"
            )
        else:
            what = (
                f"the source's journal begins at {self.oldest_seqno} and cannot prove that both sides have the same "
                f"transactions below {self.next_seqno}"
            )
        return refusal(RefuseCode.JOURNAL_MISSING, what, next_seqno=self.next_seqno, oldest_seqno=self.oldest_seqno)


class Diverged(Struct, frozen=True):
    """Before `next_seqno` both sides hold something else of `origin`: (origin_seqno, chain hash) of each."""

    next_seqno: int
    origin: int
    source: tuple[int, int]
    secondary: tuple[int, int]

    def error(self) -> ReplicateError:
        return refusal(
            RefuseCode.DIVERGED,
            f"before transaction {self.next_seqno} the source has transaction {self.source[0]} of origin "
            f"{self.origin:08x} with chain {self.source[1]:016x}, the secondary {self.secondary[0]} with "
            f"{self.secondary[1]:016x}",
            next_seqno=self.next_seqno,
            origin=self.origin,
        )


Decision = StartAt | SecondaryAhead | RollbackFirst | JournalMissing | Diverged


def is_reachable(restart: Restart, last_seqno: int, oldest_seqno: int) -> bool:
    """True when the source should look up `SourceView.before_restart`: its journal reaches the restart's seqno."""
    return oldest_seqno <= restart.next_seqno <= last_seqno + 1


def decide(restart: Restart, source: SourceView) -> Decision:
    """Where to start, or which refusal (`.error()` gives it for `SourceLink.refuse`).

    1. Does the secondary know an origin that the source has not heard yet of, or more of an origin than the source has?
       Then it holds transactions that the source does not: roll back first (to the base of the record that ended that
       origin, or to what the source has).
    2. Does it stand higher than the source altogether? Secondary ahead.
    3. Does it stand before what the source's journal still holds? Hard resynchronization.
    4. Is the vector at that seqno the same? Else both have other transactions there: diverged.
    5. Are the chain hashes there the same? Else equal numbers stand for different content: diverged.
    6. Can nothing prove the common past, although there is one? Hard resynchronization, never hope.
    7. Is the large transaction of which the secondary holds the first parts the same one? Else it begins again.
    """
    next_seqno = restart.next_seqno
    too_much = _too_much(restart, source)
    if too_much is not None:
        return too_much
    if next_seqno > source.position.last_seqno + 1:
        return SecondaryAhead(next_seqno - 1, source.position.last_seqno)
    if next_seqno < source.oldest_seqno:
        return JournalMissing(next_seqno, source.oldest_seqno)
    before = source.before_restart
    if before is None or before.last_seqno != next_seqno - 1:
        return JournalMissing(next_seqno, source.oldest_seqno)
    differs = _difference(restart, source, before)
    if differs is not None:
        return differs
    large = source.large
    same = large is not None and large.token == restart.token and restart.next_part <= large.parts
    return StartAt(next_seqno, restart.next_part if same else 0)


def _too_much(theirs: Restart, source: SourceView) -> RollbackFirst | None:
    """The origins of which the secondary has what is not in the source's past, told by the one that parted first."""
    looked_at = (_more_of(origin, theirs.vector.last(origin), source) for origin in theirs.vector.origins())
    found = [one for one in looked_at if one is not None]
    # Of one that has written nothing but the record that opens it, the hash alone tells.
    met = {*source.position.chains, *source.position.vector.origins(), *(one.origin.key for one in source.histories)}
    unmet = theirs.chains.keys() - met - set(theirs.vector.origins())
    found += [RollbackFirst(origin, 0, 0) for origin in sorted(unmet)]
    if not found:
        return None
    # What is before the least of the known places may be common; where a place is not known, nothing tells.
    first = min(found, key=lambda one: one.more_from or U64_MAX)
    others = tuple((one.origin, one.common_origin_seqno) for one in found if one is not first)
    return replace(first, others=others)


def _more_of(origin: int, last: int, source: SourceView) -> RollbackFirst | None:
    """Of one origin the secondary has up to `last`."""
    for record in source.histories:
        # A record that took over from this origin says how much of it counts; what came after was never common.
        common = record.base.last(origin)
        if record.previous_origin == origin and last > common:
            wrote = any(one.origin.key == origin and one.instance == record.instance for one in source.histories)
            return RollbackFirst(origin, last, common, record.name, record.seqno, by_itself=wrote)
    ours = source.position.vector.last(origin)
    if last <= ours:
        return None
    # Nobody took over from it here: it is the one that our journal ends with, or one that we never met.
    return RollbackFirst(origin, last, ours, more_from=source.position.last_seqno + 1 if ours else 0)


def _pairs(others: tuple[tuple[int, int], ...]) -> list[tuple[str, int]]:
    """As facts of a refusal, as many as it takes."""
    return [
        pair
        for number, (origin, common) in enumerate(others[:OTHERS_MAX], 1)
        for pair in ((f"origin_{number}", origin), (f"common_{number}", common))
    ]


def _difference(restart: Restart, source: SourceView, before: Position) -> Diverged | JournalMissing | None:
    """Compare every origin's number and hash just before the restart's seqno."""
    proven = False
    for origin in sorted({*before.vector.origins(), *restart.vector.origins(), *before.chains, *restart.chains}):
        ours, theirs = before.vector.last(origin, PARTITION_STREAM), restart.vector.last(origin, PARTITION_STREAM)
        our_chain = _chain_at(origin, ours, before, source.position)
        their_place, their_chain = restart.chains.get(origin, (0, 0))
        if ours != theirs or their_place != theirs:
            return Diverged(restart.next_seqno, origin, (ours, our_chain or 0), (their_place, their_chain))
        # A HISTORY record has number 0 of its origin; a secondary need not remember its hash.
        if our_chain is None or (theirs == 0 and origin not in restart.chains):
            continue
        if our_chain != their_chain:
            return Diverged(restart.next_seqno, origin, (ours, our_chain), (theirs, their_chain))
        proven = True
    if not proven and before.vector:
        return JournalMissing(restart.next_seqno, source.oldest_seqno)
    return None


def _chain_at(origin: int, origin_seqno: int, before: Position, end: Position) -> int | None:
    """Our hash of that transaction: as it was then, or now if that origin wrote nothing since; None if unknown."""
    for position in (before, end):
        place, chain = position.chains.get(origin, (0, 0))
        if place == origin_seqno and (place or origin in position.chains):
            return chain
    return None
