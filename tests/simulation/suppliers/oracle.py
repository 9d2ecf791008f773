"""What must be true among several suppliers, whatever happens there: I1 to I4 of the project's list of faults, and that
what several write comes to the same everywhere.

The oracle stands outside of all hosts. It sees each frame that any of them appends, each commit of a region, what
writers are told, what is sent and what is reported as durable. Beside each region of each site it makes the same rows
from the frames of that site's own journal (fold.py).

Guarantees: a violation is raised at once, with what was expected; nothing is compared that is not yet decided.
Leaves to others: how anything is done.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from functools import partial
from typing import Any, Final

from msgspec import Struct, field

from replicate.journal.record import changes_of, large_commit_of
from replicate.journal.walk import walk
from replicate.limits import PARTITION_STREAM
from replicate.model.seen import Told as Seen
from replicate.model.transaction import Kind, Op, told_of
from replicate.model.vector import Origin
from tests.simulation.content import images_of
from tests.simulation.frames import read, transactions_in
from tests.simulation.oracle import ViolationError
from tests.simulation.regions import Pending, Region
from tests.simulation.suppliers.fold import Fold, FoldBegin, Pasts, Places, SupplierTransaction, follow_place
from tests.simulation.template import NAMES, uuid_of

INCARNATIONS_MAX: Final = 60


class Begin(Struct, frozen=True):
    """What a site has before anything happens there. `has`: transactions of applications; `folds`: its regions."""

    seqno: int
    folds: tuple[FoldBegin, ...]
    places: Places = field(default_factory=dict)
    has: dict[int, SupplierTransaction] = field(default_factory=dict)


class Site:
    """One supplier. `frames`: what its journal has got under each number. `seqno`, `places`, `has`: where that one of
    its regions is that is furthest, by what was committed there, and the transactions of applications up to there: what
    one region has, the others get from the journal."""

    def __init__(self, name: str, regions: Sequence[Region], pasts: Pasts, begin: Begin) -> None:
        self.name = name
        self.frames: dict[int, SupplierTransaction] = {}
        self.reported: dict[int, int] = {}
        """Origin -> the last of its transactions that was reported as durable here, to anybody."""
        self._begin = begin
        self.most = {origin: place[0] for origin, place in begin.places.items()}
        """Origin -> the last one that a region has ever had."""
        self.folds = [
            Fold(name, region, pasts, one, begin.places) for region, one in zip(regions, begin.folds, strict=True)
        ]
        self.forget()

    def forget(self) -> None:
        """Nothing has happened yet."""
        self.seqno = self._begin.seqno
        self.places: Places = dict(self._begin.places)
        self.has: dict[int, SupplierTransaction] = dict(self._begin.has)

    def look_back(self) -> None:
        """Where it is after it has lost what was not on its disk."""
        self.forget()
        for fold in self.folds:
            fold.forget()
            fold.follow(self.frames)
        for seqno in range(self.seqno + 1, max(fold.seqno for fold in self.folds) + 1):
            self.take(seqno, self.frames[seqno])

    @property
    def begins_after(self) -> int:
        """The last number before all that has happened."""
        return self._begin.seqno

    @property
    def begun(self) -> Places:
        """Where origins stand of which there is more than that they have begun: a region does not move by that."""
        return {origin: place for origin, place in self.places.items() if place[0]}

    @property
    def is_whole(self) -> bool:
        """Whether each of its regions has what it is to have."""
        return not any(fold.lacks(self.frames, self.seqno) for fold in self.folds)

    def take(self, seqno: int, written: SupplierTransaction) -> None:
        """One transaction more."""
        follow_place(self.name, self.places, written)
        self.seqno = seqno
        if written.by:
            self.has[written.by] = written


class SupplierOracle:
    """All sites, and what holds for them together."""

    def __init__(self, regions: Mapping[str, Sequence[Region]]) -> None:
        """`regions`: each site's."""
        self.pasts: Pasts = {}
        places = _first_places(regions)
        self.sites = {name: Site(name, its, self.pasts, _begin_of(its, places)) for name, its in regions.items()}
        self.writers = {
            Origin(uuid_of(name), number).key: name for name in NAMES for number in range(1, INCARNATIONS_MAX)
        }
        """Origin -> the name of the supplier."""
        self.truth: dict[tuple[int, int], SupplierTransaction] = {}
        """(origin, its number) -> the transaction."""
        self.held: dict[int, int] = {}
        """Origin -> the last one that cannot be another one any more: it was sent, or others have it."""
        self.sent: dict[int, int] = {}
        """Origin -> the last one that its own supplier has sent."""
        self.submitted: dict[int, Sequence[Any]] = {}
        self.spooled: dict[tuple[int, int], int] = {}
        """Of large transactions: (origin, token) -> what its writer calls it."""
        self._larges: dict[tuple[int, int, int], int] = {}
        """Of those that were met: origin, its number, chain -> the same."""
        self.acknowledged: dict[str, set[int]] = {name: set() for name in regions}
        """Those of which a writer was told that they are committed, and which no crash since may have taken."""
        self.were_turned_back: set[str] = set()
        self.have_joined: set[str] = set()
        self.comes_back: set[int] = set()
        """Those of one that was turned back which others have."""
        self.failed: set[int] = set()
        """Those of which a writer was told that they are not."""
        self.applied = self.merged = self.taken_back = 0
        self._looked: dict[tuple[str, str], tuple[int, dict[int, int]]] = {}
        """(source, consumer) -> up to where what was reported was looked at, and the vector there."""
        for site in self.sites.values():
            self._listen(site)

    def _listen(self, site: Site) -> None:
        def taken_back(_region: Region, _pending: Pending) -> None:
            if len(site.folds) == 1:
                raise ViolationError("I2 ahead", f"{site.name} takes transactions back")

        for fold in site.folds:
            fold.region.on_commit = partial(self.on_commit, site, fold)
            fold.region.on_take_back = taken_back

    # One that joins.

    def seeded_from(self, name: str) -> Begin:
        """What another one begins with. None of it may be lost there any more."""
        site = self.sites[name]
        for origin, (number, _) in site.places.items():
            self.held[origin] = max(self.held.get(origin, 0), number)
            if self.writers[origin] == name:
                self.sent[origin] = max(self.sent.get(origin, 0), number)
        folds = tuple(fold.begin(site.seqno) for fold in site.folds)
        return Begin(site.seqno, folds, dict(site.places), dict(site.has))

    def joins(self, name: str, regions: Sequence[Region], begin: Begin) -> None:
        """One site more, which has that."""
        site = self.sites[name] = Site(name, regions, self.pasts, begin)
        self._listen(site)
        self.acknowledged[name] = set()
        self.have_joined.add(name)

    # Frames.

    def on_appended(self, name: str, data: bytes) -> None:
        """A host has appended these frames to its journal."""
        frames = self.sites[name].frames
        for head, frame in transactions_in(data):
            frames[head.seqno] = self.read(frame)

    def read(self, frame: bytes) -> SupplierTransaction:
        """What a frame holds."""
        body, found = read(frame)
        kind, _, _, chain, origin, origin_seqno, csn = body[:7]
        changes = changes_of(body)
        seen: Seen = {}
        for op, values in zip(changes[0::4], changes[3::4], strict=True):
            if op == Op.SEEN:
                seen = told_of(values)[1]
        by = 0
        if large := large_commit_of(body):
            name = origin, origin_seqno, chain
            by = self._larges.get(name, 0)  # where it was merged, its parts are others
            if not by:
                by = self._larges[name] = self.spooled[origin, large[0]]
            found = list(self.submitted[by])
        elif found:
            by = max((self._by(*found[place : place + 4]) for place in range(0, len(found), 4)), default=0)
        return SupplierTransaction(
            kind, origin, origin_seqno, csn, chain, by, found, seen, self.writers.get(origin, "")
        )

    @staticmethod
    def _by(op: int, _table_id: int, argument: Any, values: Any) -> int:
        """Which transaction has written an image: that is a value of what it has written."""
        before, after = images_of(op, argument, values)
        if after is None:
            return 0
        return max((new for new, old in zip(after[1:4], before[1:4] if before else after[1:4], strict=True)
                    if type(new) is int and (before is None or new != old)), default=0)  # fmt: skip

    # Commits.

    def on_commit(self, site: Site, fold: Fold, region: Region, pending: Pending) -> None:
        """A region has committed (for the first time, or again in a redo)."""
        if region.seqno == fold.seqno and pending.content is None:
            return
        if region.seqno < fold.seqno:
            self.taken_back += fold.seqno - region.seqno
            site.look_back()
            self._forget_pasts(site.name)
        for seqno in range(site.seqno + 1, region.seqno + 1):
            is_slot = pending.slot is not None and pending.slot[0] == seqno and pending.slot[1] is not None
            if is_slot:
                assert pending.slot is not None
                assert pending.slot[1] is not None
                site.frames[seqno] = self.read(pending.slot[1])
            if seqno not in site.frames:
                raise ViolationError("I1 order", f"{site.name} commits {seqno}, which its journal does not have")
            written = site.frames[seqno]
            self._check_seen(site, written)
            self._note_past(site, written)
            site.take(seqno, written)
            self._learn(site, written)
        fold.follow(site.frames)
        self._check_vector(site, fold)
        fold.check_rows()

    def _note_past(self, site: Site, written: SupplierTransaction) -> None:
        """What its writer had. Its own region may have it later than others, who read its journal."""
        key, writer = (written.origin, written.origin_seqno), self.sites[self.writers[written.origin]]
        if key in self.pasts and (writer is not site or self._is_known(written)):
            return
        past = {origin: place[0] for origin, place in writer.places.items()}
        seqno = writer.seqno + 1
        while writer is not site and writer.frames[seqno][1:3] != key:
            past[writer.frames[seqno].origin] = writer.frames[seqno].origin_seqno
            seqno += 1
        self.pasts[key] = past

    def _is_known(self, written: SupplierTransaction) -> bool:
        known = self.truth.get((written.origin, written.origin_seqno))
        return known is not None and known.chain == written.chain

    def _check_seen(self, site: Site, written: SupplierTransaction) -> None:
        if self.writers.get(written.origin) != site.name or self._is_known(written):
            return
        here = {origin: place[0] for origin, place in site.places.items()}
        others = {origin: last for origin, last in written.seen.items() if self.writers[origin] != site.name}
        wrong = {origin: last for origin, last in others.items() if here.get(origin, 0) != last}
        if wrong:
            raise ViolationError("seen", f"{site.name} tells that it has seen {wrong}, and has {here}")

    def _learn(self, site: Site, written: SupplierTransaction) -> None:
        origin, number = written.origin, written.origin_seqno
        is_own = self.writers.get(origin) == site.name
        site.most[origin] = max(site.most.get(origin, 0), number)
        known = self.truth.get((origin, number))
        if known is None or known.chain != written.chain:
            if known is not None and number <= self.held.get(origin, 0):
                raise ViolationError(
                    "I3 lost", f"transaction {number} of {self.writers[origin]} is another one at {site.name}: "
                    f"{known} was sent"
                )  # fmt: skip
            self._check_submitted(written)
            self.truth[origin, number] = written
        if not is_own:
            self.held[origin] = max(self.held.get(origin, 0), number)
            self.applied += bool(written.by)

    def _check_submitted(self, written: SupplierTransaction) -> None:
        if written.by and list(written.changes) != list(self.submitted[written.by]):
            raise ViolationError("I1 content", f"{self.submitted[written.by]} were written, and {written} stands there")

    def _check_vector(self, site: Site, fold: Fold) -> None:
        for row in fold.region.scr.values():
            if row.partition != PARTITION_STREAM or self.writers.get(row.origin) == site.name:
                continue
            if fold.places.get(row.origin) != (row.origin_seqno, row.chain):
                raise ViolationError(
                    "vector",
                    f"{site.name} says that it has {row.origin_seqno} of {self.writers[row.origin]}, and has "
                    f"{fold.places.get(row.origin)}",
                )

    # What is told.

    def on_submitted(self, by: int, changes: Sequence[Any]) -> None:
        """A writer is about to commit these changes."""
        self.submitted[by] = changes

    def on_acknowledged(self, name: str, rows: Iterable[int]) -> None:
        """A writer there was told: committed."""
        self.acknowledged[name].update(rows)

    def on_sent(self, name: str, frames: bytes) -> None:
        """A Source Server there has handed these frames to the network."""
        for _, head in walk(frames):
            if head.kind == Kind.NULL:
                continue
            self.held[head.origin] = max(self.held.get(head.origin, 0), head.origin_seqno)
            if self.writers.get(head.origin) == name:
                self.sent[head.origin] = max(self.sent.get(head.origin, 0), head.origin_seqno)
            known = self.truth.get((head.origin, head.origin_seqno))
            if known is not None and known.chain != head.chain:
                raise ViolationError("I1 order", f"{name} sends {head}, and {known} is the transaction")

    def on_reported(self, source: str, consumer: str, durable_seqno: int) -> None:
        """A source has heard of a consumer: all of the source's journal up to there is durable."""
        if consumer in self.were_turned_back:
            return  # this may have been said before
        frames, there = self.sites[source].frames, self.sites[consumer]
        begin, vector = self._looked.get((source, consumer), (self.sites[source].begins_after, {}))
        for seqno in range(begin + 1, durable_seqno + 1):
            written = frames[seqno]
            vector[written.origin] = written.origin_seqno
        self._looked[source, consumer] = max(begin, durable_seqno), vector
        for origin, number in vector.items():
            if self.writers[origin] == consumer:
                continue
            if there.most.get(origin, 0) < number:
                raise ViolationError(
                    "I4 honest",
                    f"{consumer} reports {durable_seqno} of {source} as durable: {number} of {self.writers[origin]}, "
                    f"and has had {there.most.get(origin, 0)}",
                )
            there.reported[origin] = max(there.reported.get(origin, 0), number)

    # Looking at a host.

    def lost_power(self, name: str, *, is_durable: bool) -> None:
        """What was not promised for this case may be gone."""
        if not is_durable:
            self.acknowledged[name].clear()
        site = self.sites[name]
        site.look_back()
        self._forget_pasts(name)

    def turned_back(self, name: str, frames: Mapping[int, SupplierTransaction], pasts: Pasts) -> None:
        """A host is what it was once, when it had these frames, and these pasts were known: of a transaction that it
        has lost since it has one again. What somebody else has comes back; the rest may be gone, and what was reported
        of it is not there."""
        site = self.sites[name]
        site.frames = dict(frames)
        for own, past in pasts.items():
            self.pasts.setdefault(own, past)
        site.look_back()
        others = [one for one in self.sites.values() if one is not site]
        self.comes_back |= {
            by for by in self.acknowledged[name] - site.has.keys() if any(by in one.has for one in others)
        }
        self.acknowledged[name] &= site.has.keys()
        for origin in self.sent:
            if self.writers[origin] == name:
                self.sent[origin] = site.places.get(origin, (0, 0))[0]
        site.reported.clear()
        self.were_turned_back.add(name)
        for pair in list(self._looked):
            if pair[0] == name:
                del self._looked[pair]
        self._forget_pasts(name)

    def _forget_pasts(self, name: str) -> None:
        site = self.sites[name]
        for origin, number in list(self.pasts):
            most = max(site.places.get(origin, (0, 0))[0], self.held.get(origin, 0))
            if self.writers[origin] == name and number > most:  # it may become another transaction
                del self.pasts[origin, number]

    def check(self, name: str, last_seqno: int, chains: Mapping[int, int]) -> None:
        """A host has recovered. `chains`: of every transaction in its journal."""
        site = self.sites[name]
        lost = self.acknowledged[name] - site.has.keys()
        if lost:
            raise ViolationError("I3 lost", f"{sorted(lost)} were acknowledged by {name} and are gone")
        self.check_failed(site.name, site.has)
        for fold in site.folds:
            fold.check_lost()
            fold.check_gave_way(is_first=name not in self.were_turned_back, has_waited=name in self.have_joined)
        for origin, number in site.reported.items():
            if site.places.get(origin, (0, 0))[0] < number:
                raise ViolationError("I4 honest", f"{number} of {self.writers[origin]} was reported, and is gone")
        for origin, number in self.sent.items():
            if self.writers[origin] == name and site.places.get(origin, (0, 0))[0] < number:
                raise ViolationError("I2 ahead", f"{name} has sent {number} of its own, and has {site.places[origin]}")
        for seqno, chain in chains.items():
            if site.begins_after < seqno <= site.seqno and site.frames[seqno].chain != chain:
                raise ViolationError("I1 order", f"number {seqno} of {name} is another transaction in its journal")
        if last_seqno < site.seqno:
            raise ViolationError("I2 prefix", f"{name}: the region is at {site.seqno}, the journal at {last_seqno}")

    def check_failed(self, name: str, has: Collection[int]) -> None:
        """What failed is nowhere."""
        wrong = self.failed.intersection(has)
        if wrong:
            raise ViolationError("I3 failed", f"{sorted(wrong)} were said to have failed, and {name} has them")

    def check_alike(self, names: Collection[str]) -> None:
        """These have everything: it is the same, and what was lost by it is kept once on each where it was merged."""
        first, *others = (self.sites[name] for name in names)
        for site in (first, *others):
            for fold in site.folds:
                fold.check_lost()
        if missing := self.comes_back - first.has.keys():
            raise ViolationError("I3 lost", f"{sorted(missing)} did not come back")
        for site in (first, *others):
            for fold, expected in zip(site.folds, first.folds, strict=True):
                for rows in (fold.content.rows, expected.content.rows):
                    if rows != fold.rows:
                        raise ViolationError("I7 alike", fold.difference(rows))

    def have_alike(self, names: Collection[str]) -> bool:
        """Whether these have the same transactions, in all of their regions."""
        first, *others = (self.sites[name].begun for name in names)
        return all(site == first for site in others) and all(self.sites[name].is_whole for name in names)

    def told_places(self) -> str:
        """How far each is."""
        told = []
        for site in self.sites.values():
            vector = ", ".join(f"{self.writers[origin]} {place[0]}" for origin, place in sorted(site.places.items()))
            told.append(f"{site.name} has {vector}")
        return "; ".join(told)


def _first_places(regions: Mapping[str, Sequence[Region]]) -> Places:
    rows = (row for its_own in regions.values() for region in its_own for row in region.scr.values())
    return {row.origin: (row.origin_seqno, row.chain) for row in rows if row.partition == PARTITION_STREAM}


def _begin_of(regions: Sequence[Region], places: Places) -> Begin:
    """What is in these before anything happens: all that their journal has."""
    seqno, folds = max(region.seqno for region in regions), list[FoldBegin]()
    for region in regions:
        assert region.content is not None
        folds.append(FoldBegin(seqno, {table: dict(rows) for table, rows in region.content.rows.items()}))
    return Begin(seqno, tuple(folds), dict(places))
