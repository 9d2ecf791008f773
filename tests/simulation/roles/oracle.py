"""What must be true where roles change, whatever happens: I1 to I6 and I11 of the project's list of faults.

The oracle stands outside of all sites. It sees each frame that any of them appends, each commit of a region, what
writers are told and what is sent, and reads the lost files as they lie on the disks. Beside each site it makes the same
rows from the frames of that site's own journal, transaction by transaction, each of which must fit.

    while it lives   a region holds what its journal folds to · numbers are dense, by journal and by origin · nothing is
                     applied twice · one number of one incarnation is one transaction, everywhere and for ever, once it
                     has left its site or was promised · who takes no writes writes nothing
    recovered        what was promised is in some journal or lost file, what failed is in none; what was reported as
                     durable is there, unless it was taken back
    at rest          one primary · all have one history · what was promised is in it or waits in a lost file, not both

Guarantees: a violation is raised at once, with what was expected; nothing is compared that is not yet decided.
Leaves to others: how anything is done.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from typing import Any, Final, NamedTuple

from replicate.journal.record import large_commit_of
from replicate.journal.walk import walk
from replicate.lost.read import LostTransaction
from replicate.model.transaction import Kind
from replicate.model.vector import Origin
from tests.simulation.content import Image, images_of
from tests.simulation.frames import read, transactions_in
from tests.simulation.oracle import ViolationError
from tests.simulation.regions import Pending, Region
from tests.simulation.template import NAMES, uuid_of

INCARNATIONS_MAX: Final = 400
Rows = dict[Any, Image]
FIRST: Final = Origin(uuid_of(NAMES[0]), 1).key
"""The origin that has one transaction at the beginning (template.py)."""
_NAMES: Final = ("seqno", "kind", "origin", "origin_seqno", "chain")
"""Of a line of a lost file."""
TELLING: Final = frozenset((int(Kind.HISTORY), int(Kind.NULL)))


class FramedTransaction(NamedTuple):
    """A transaction as a frame has it. `by`: what its writer calls it (0: no application wrote it). `changes`: of rows,
    flat."""

    kind: int
    origin: int
    origin_seqno: int
    chain: int
    by: int
    changes: Sequence[Any]


class Stand(NamedTuple):
    """A site after one of its transactions. `places`: origin -> its last number."""

    written: FramedTransaction | None
    rows: Rows
    places: Mapping[int, int]


class Site:
    """One of the sites. `frames`: what its journal has got under each number. `stands`: number -> what its region holds
    there, up to `seqno`."""

    def __init__(self, name: str, region: Region) -> None:
        assert region.content is not None
        self.name = name
        self.region = region
        self.frames: dict[int, FramedTransaction] = {}
        self.begin = self.seqno = region.seqno
        self.stands: dict[int, Stand] = {self.begin: Stand(None, dict(region.content.rows["t"]), {FIRST: 1})}
        self.reported = 0
        """The last number that was reported as durable here, and was not taken back since."""
        self.most = region.seqno
        """The highest that it has ever had."""
        self.fenced = 0
        """The incarnation in which it was fenced the last time: there it writes nothing more."""
        self.promised: dict[int, tuple[int, int]] = {}
        """Transactions that a writer here was told of, and no crash since may have taken -> what they are."""

    def go_back(self, seqno: int) -> None:
        """It holds no more than that."""
        for gone in range(max(seqno, self.begin) + 1, self.seqno + 1):
            del self.stands[gone]
        self.seqno = max(seqno, self.begin)

    def take(self, seqno: int) -> FramedTransaction:
        """One transaction more, as its journal has it."""
        before = self.stands[self.seqno]
        written = self.frames.get(seqno)
        if written is None:
            raise ViolationError("I1 order", f"{self.name} commits {seqno}, which its journal does not have")
        last = before.places.get(written.origin)
        expected = 0 if written.kind == Kind.HISTORY else (last or 0) + 1
        if written.kind == Kind.HISTORY and last is not None:
            raise ViolationError("I1 order", f"{self.name}: origin {written.origin:08x} begins twice")
        if written.origin_seqno != expected:
            raise ViolationError(
                "I1 order", f"{self.name} has {last} of origin {written.origin:08x}, and takes {written.origin_seqno}"
            )
        rows = dict(before.rows)
        for place in range(0, len(written.changes), 4):
            self._change(rows, *written.changes[place : place + 4])
        if written.by and any(written.by == one.written.by for one in self.stands.values() if one.written is not None):
            raise ViolationError("I1 twice", f"{self.name} has {written.by} twice")
        self.stands[seqno] = Stand(written, rows, {**before.places, written.origin: written.origin_seqno})
        self.seqno, self.most = seqno, max(self.most, seqno)
        return written

    def _change(self, rows: Rows, op: int, _table_id: int, argument: Any, values: Any) -> None:
        before, after = images_of(op, argument, values)
        if before is not None:
            if rows.get(before[0]) != before:
                raise ViolationError("I1 order", f"{self.name}: a row is {rows.get(before[0])}, not {before}")
            del rows[before[0]]
        if after is not None:
            if after[0] in rows:
                raise ViolationError("I1 twice", f"{self.name}: row {after[0]} is there already")
            rows[after[0]] = after

    @property
    def history(self) -> list[FramedTransaction]:
        """All that it has had since the beginning, in order."""
        found = (self.stands[seqno].written for seqno in range(self.begin + 1, self.seqno + 1))
        return [one for one in found if one is not None]

    @property
    def ahead(self) -> list[FramedTransaction]:
        """What its journal has beyond its region, and is nothing to that: records of an incarnation that has begun."""
        found, seqno = [], self.seqno + 1
        while seqno in self.frames and self.frames[seqno].kind in TELLING:
            found.append(self.frames[seqno])
            seqno += 1
        return found

    @property
    def eras(self) -> int:
        """How often an incarnation has begun here."""
        return sum(one.kind == Kind.HISTORY for one in (*self.history, *self.ahead))

    @property
    def has(self) -> set[int]:
        """The transactions of applications that it has."""
        return {one.by for one in self.history if one.by}


class RoleOracle:
    """All sites, and what holds for them together. `file_of` reads a site's instance file as it is on its disk."""

    def __init__(self, regions: Mapping[str, Region], file_of: Callable[[str], Mapping[str, Any]]) -> None:
        self.sites = {name: Site(name, region) for name, region in regions.items()}
        self.file_of = file_of
        self.instances = {
            Origin(uuid_of(name), number).key: (name, number)
            for name in regions
            for number in range(1, INCARNATIONS_MAX)
        }
        """Origin -> the name of the instance, and its incarnation."""
        self.truth: dict[tuple[int, int], tuple[int, str]] = {}
        """(origin, its number) -> chain hash, and why it can be no other one any more."""
        self.submitted: dict[int, Sequence[Any]] = {}
        self.writers: dict[int, str] = {}
        """Transaction of an application -> the site where that was."""
        self.spooled: dict[tuple[int, int], int] = {}
        """Of large transactions: (origin, token) -> what its writer calls it."""
        self.may_part = False
        """Somebody took over without the word of the one that was primary."""
        self.failed: set[int] = set()
        """Those of which a writer was told that they are not committed."""
        self.applied = self.taken_back = self.acknowledged = 0
        for site in self.sites.values():
            self._listen(site)

    def _listen(self, site: Site) -> None:
        def committed(region: Region, pending: Pending) -> None:
            self.on_commit(site, region, pending)

        site.region.on_commit = committed

    def takes_writes(self, name: str) -> bool:
        """By its file."""
        file = self.file_of(name)
        return bool(file["role"] == "primary" and not file.get("successor"))

    def common(self, one: str, other: str) -> int:
        """The last number up to which two have the same."""
        here, there = self.sites[one], self.sites[other]
        seqno = here.begin
        while (
            seqno < min(here.seqno, there.seqno) and here.stands[seqno + 1].written == there.stands[seqno + 1].written
        ):
            seqno += 1
        return seqno

    # Frames.

    def on_appended(self, name: str, data: bytes) -> None:
        """A host has appended these frames to its journal."""
        site = self.sites[name]
        for head, frame in transactions_in(data):
            written = self.read(frame)
            if site.frames.get(head.seqno) != written:
                self._check_may_write(name, written)
            site.frames[head.seqno] = written

    def _check_may_write(self, name: str, written: FramedTransaction) -> None:
        """I11. What it writes itself is of the incarnation that it is in."""
        writer, incarnation = self.instances[written.origin]
        file = self.file_of(name)
        if writer != name or incarnation != file["incarnation"] or written.kind == Kind.NULL:
            return
        if file["role"] != "primary" or file.get("successor") or self.sites[name].fenced == incarnation:
            raise ViolationError("I11 fenced", f"{name} writes {written}, and its file says {file}")

    def read(self, frame: bytes) -> FramedTransaction:
        """What a frame holds."""
        body, found = read(frame)
        kind, _, _, chain, origin, origin_seqno = body[:6]
        by = 0
        if large := large_commit_of(body):
            by = self.spooled[origin, large[0]]
            found = list(self.submitted[by])
        for place in range(0, len(found), 4):
            after = images_of(found[place], *found[place + 2 : place + 4])[1]
            by = by or (0 if after is None else after[1])
        return FramedTransaction(kind, origin, origin_seqno, chain, by, found)

    # Commits.

    def on_commit(self, site: Site, region: Region, pending: Pending) -> None:
        """A region has committed: something more, again what it had lost, or it takes something back."""
        assert region.content is not None
        if region.seqno < site.seqno:
            self.taken_back += site.seqno - region.seqno
            if pending.taken_back_to is not None:
                for one in (site.stands[seqno].written for seqno in range(region.seqno + 1, site.seqno + 1)):
                    assert one is not None
                    self._fix(one.origin, one.origin_seqno, one.chain, f"was taken back at {site.name}")
            site.go_back(region.seqno)
            site.reported = min(site.reported, region.seqno)
            site.frames = {seqno: frame for seqno, frame in site.frames.items() if seqno <= region.seqno}
        for seqno in range(site.seqno + 1, region.seqno + 1):
            if pending.slot is not None and pending.slot[0] == seqno and pending.slot[1] is not None:
                site.frames[seqno] = self.read(pending.slot[1])
            written = site.take(seqno)
            self._learn(site, written)
        if region.content.rows["t"] != site.stands[site.seqno].rows:
            raise ViolationError("I1 rows", f"{site.name} at {site.seqno}: {_difference(site)}")

    def _learn(self, site: Site, written: FramedTransaction) -> None:
        if written.by and list(written.changes) != list(self.submitted[written.by]):
            raise ViolationError("I1 content", f"{self.submitted[written.by]} were written, and {written} stands there")
        known = self.truth.get((written.origin, written.origin_seqno))
        if known is not None and known[0] != written.chain:
            raise ViolationError("I11 two histories", f"{site.name} has {written}, and another one {known[1]}")
        if self.instances[written.origin][0] != site.name:
            self._fix(written.origin, written.origin_seqno, written.chain, f"was applied at {site.name}")
            self.applied += bool(written.by)

    def _fix(self, origin: int, origin_seqno: int, chain: int, why: str) -> None:
        known = self.truth.setdefault((origin, origin_seqno), (chain, why))
        if known[0] != chain:
            raise ViolationError(
                "I11 two histories", f"number {origin_seqno} of {self.instances[origin]}: one {why}, another {known[1]}"
            )

    # What is told.

    def on_fenced(self, name: str) -> None:
        """A daemon there has found that it is superseded."""
        self.sites[name].fenced = self.file_of(name)["incarnation"]

    def on_submitted(self, name: str, by: int, changes: Sequence[Any]) -> None:
        """A writer there is about to commit these changes."""
        self.submitted[by] = changes
        self.writers[by] = name

    def on_acknowledged(self, name: str, rows: Iterable[int]) -> None:
        """A writer there was told: committed."""
        site = self.sites[name]
        if not self.may_part and (others := [one for one in self.sites if one != name and self.takes_writes(one)]):
            raise ViolationError("I11 two primaries", f"{name} has acknowledged {list(rows)}, and {others} are primary")
        for by in rows:
            self.acknowledged += 1
            found = next((one for one in reversed(site.history) if one.by == by), None)
            if found is None:
                raise ViolationError("I3 lost", f"{name} has acknowledged {by}, and does not have it")
            site.promised[by] = found.origin, found.origin_seqno

    def on_sent(self, name: str, frames: bytes) -> None:
        """A Source Server there has handed these frames to the network."""
        for _, head in walk(frames):
            self._fix(head.origin, head.origin_seqno, head.chain, f"was sent by {name}")

    def on_reported(self, source: str, consumer: str, durable_seqno: int) -> None:
        """A source has heard of a consumer: all up to there is durable."""
        there = self.sites[consumer]
        if durable_seqno > there.most:
            raise ViolationError(
                "I4 honest",
                f"{consumer} reports {durable_seqno} of {source} as durable, and was at {there.most} at most",
            )
        if durable_seqno <= there.seqno:  # else this was said before it went back, or lost power
            there.reported = max(there.reported, durable_seqno)

    # Looking at a host.

    def lost_power(self, name: str, *, is_durable: bool) -> None:
        """What was not promised for this case may be gone; what was sent is promised."""
        site = self.sites[name]
        if not is_durable:
            site.promised = {by: key for by, key in site.promised.items() if key in self.truth}
        site.go_back(site.region.seqno)

    def check(self, name: str, last_seqno: int, chains: Mapping[int, int]) -> None:
        """A host has recovered. `chains`: of every transaction in its journal."""
        site = self.sites[name]
        for seqno, chain in chains.items():
            if site.begin < seqno <= site.seqno and site.frames[seqno].chain != chain:
                raise ViolationError("I1 order", f"number {seqno} of {name} is another transaction in its journal")
        if not site.seqno <= last_seqno <= site.seqno + len(site.ahead):
            raise ViolationError("I2 prefix", f"{name}: the region is at {site.seqno}, the journal at {last_seqno}")
        if site.seqno < site.reported:
            raise ViolationError("I4 honest", f"{name}: {site.reported} was reported, {site.seqno} is there")

    def check_promised(
        self, lost: Mapping[str, Sequence[int]], *, at_rest: str = "", waiting: Collection[int] = ()
    ) -> None:
        """All hosts have recovered. `lost`: name -> transactions in the lost files of that site. `at_rest`: the name of
        the only primary, where all is over; `waiting`: which of them it would apply."""
        everywhere = set().union(*(site.has for site in self.sites.values()))
        written_off = set().union(*lost.values())
        for site in self.sites.values():
            if gone := site.promised.keys() - everywhere - written_off:
                raise ViolationError("I3 lost", f"{sorted(gone)} were acknowledged by {site.name} and are nowhere")
        if wrong := self.failed & (everywhere | written_off):
            raise ViolationError("I3 failed", f"{sorted(wrong)} were said to have failed, and are there")
        for name, those in lost.items():  # a third site may follow one primary, the other, and the first one again
            own = Counter(by for by in those if self.writers[by] == name)
            if twice := [by for by, count in own.items() if count > 1]:
                raise ViolationError("I5 conservation", f"{twice} are in two lost files of {name}")
        if at_rest:
            agreed = self.sites[at_rest].has
            if both := agreed & set(waiting):
                raise ViolationError("I5 conservation", f"{sorted(both)} are in the history and wait in a lost file")
            if gone := written_off - agreed - set(waiting):
                raise ViolationError("I5 conservation", f"{sorted(gone)} are not in the history, and do not wait")

    def are_alike(self) -> bool:
        """Whether all have the same transactions."""
        first, *others = (
            [(one.origin, one.origin_seqno, one.chain) for one in (*site.history, *site.ahead)]
            for site in self.sites.values()
        )
        return all(site == first for site in others)

    def check_alike(self) -> None:
        """They have: it is the same, row by row."""
        first, *others = (site.region.content for site in self.sites.values())
        assert first is not None
        for other in others:
            assert other is not None
            if other.rows["t"] != first.rows["t"]:
                raise ViolationError("I7 alike", f"{other.rows['t']}, not {first.rows['t']}")

    def told_places(self) -> str:
        """How far each is."""
        told = []
        for site in self.sites.values():
            file = self.file_of(site.name)
            places = {self.instances[key]: last for key, last in site.stands[site.seqno].places.items()}
            told.append(
                f"{site.name} ({file['role']} {file['incarnation']}, successor {file.get('successor')}) is at "
                f"{site.seqno}: {places}"
            )
        return "; ".join(told)


def lost_in(data: bytes) -> dict[int, LostTransaction]:
    """The transactions in a lost file, each once, by what their writer calls them."""
    found: dict[int, LostTransaction] = {}
    try:
        for facts in map(json.loads, data.decode().splitlines()[1:-1]):
            if facts["kind"] != Kind.PART.name:  # parts stand after their own
                one = LostTransaction(*(facts[name] for name in _NAMES), ())
            for change in facts["changes"]:
                if change["after"] is not None and change["table"].endswith("t"):
                    found.setdefault(change["after"][1], one)
    except ValueError as error:
        raise ViolationError("I5 conservation", f"a lost file is not whole: {error}") from error
    found.pop(0, None)
    return found


def _difference(site: Site) -> str:
    assert site.region.content is not None
    there, expected = site.region.content.rows["t"], site.stands[site.seqno].rows
    wrong = [key for key in sorted({*there, *expected}) if there.get(key) != expected.get(key)]
    return "; ".join(f"row {key}: {there.get(key)}, not {expected.get(key)}" for key in wrong[:4])
