"""Reads what an instance holds and its peers have not got: the journal files, the receive pool, the peers' positions.

Guarantees: takes no lock, opens no door and changes nothing, so it also answers where the journal is damaged; a
position that cannot be read counts as that of a peer that has nothing. History records, NULL records and the
announcement of a region are nobody's data: a peer that lacks only those lacks nothing. Reading goes on after a damaged
place with the next frame that verifies, and says what was left out.
Leaves to others: what is done with what is found (lost/keep.py).
"""

from __future__ import annotations

import uuid
from collections.abc import Iterator
from contextlib import closing
from itertools import pairwise
from pathlib import Path

from msgspec import Struct, field

from replicate.audit.show import ShownTransaction, shown, shown_between, shown_parts
from replicate.errors import DamagedError, FormatUnknownError, JournalDamagedError, ReplicateError
from replicate.instance.consumers import read_consumer, told_seqno
from replicate.instance.file import PeerEntry, RegionEntry
from replicate.instance.instance import Instance
from replicate.journal.catalogue import with_frame
from replicate.journal.chain import Chain
from replicate.journal.durable import durable_seqno
from replicate.journal.reader import ChainReader, LargeTransaction
from replicate.journal.record import LARGE_BEGINS, decode, read_part
from replicate.journal.salvage import BadPlace, Salvaged, last_standing, salvaged
from replicate.journal.tail import Damaged, classify_tail
from replicate.journal.walk import walk
from replicate.limits import BATCH_BYTES_MAX
from replicate.lost.file import LARGE_NAMES
from replicate.lost.undelivered import PeerPosition, Undelivered
from replicate.model.transaction import Catalogue, Kind, RegionChange, Transaction
from replicate.pool.receive_pool import ReceivePool, RecordKind
from replicate.region.kind import KIND
from replicate.region.sqlite.region_state import last_seqno_of


class Owner(Struct, frozen=True):
    """Whose journal it is. `named`: how a command names it after -i. What a damaged instance file does not tell any
    more is "" or 0, and no region."""

    path: Path
    named: str
    name: str
    role: str = ""
    network: bytes = b""
    uuid: bytes = b""
    incarnation: int = 0
    peers: tuple[str, ...] = ()
    regions: tuple[RegionEntry, ...] = ()
    was_released: bool = False
    """Whether there was another region before, which may have held more than those do."""
    was_demoted: bool = False
    """Whether it was primary before, and nobody that took over is heard in its journal yet."""

    @classmethod
    def of(cls, instance: Instance) -> Owner:
        """Of an instance whose file is well."""
        content = instance.content
        peers = _peers_of(instance)
        return cls(
            path=instance.path,
            named=instance.named,
            name=instance.name,
            role=instance.role,
            network=content.network,
            uuid=content.uuid,
            incarnation=content.incarnation,
            peers=tuple(peer.name for peer in peers),
            regions=instance.regions,
            was_released=content.next_region_id > len(instance.regions),
            was_demoted=peers != instance.consumers,
        )

    @classmethod
    def of_directory(cls, path: Path, named: str) -> Owner:
        """Of an instance whose file is damaged: the peers are those whose position is there; who it is, its oldest
        segment tells."""
        peers = tuple(sorted(file.stem for file in (path / "consumers").glob("[!.]*.json")))
        chain = Chain(path / "journal")
        try:
            header = chain.segment(chain.oldest_seqno()).header
        except ReplicateError:
            return cls(path, named, path.name, peers=peers)
        return cls(path, named, path.name, "", header.network, header.instance, header.incarnation, peers)

    @property
    def chain(self) -> Chain:
        """Its journal."""
        return Chain(self.path / "journal", network=self.network or None, instance=self.uuid or None)


def _peers_of(instance: Instance) -> tuple[PeerEntry, ...]:
    """The peers that may lack something: the passive ones of a demoted primary too, until one that took over is heard
    here, as what it wrote as primary may stand in no other journal (the rule of door/pruning.py). Not those of one that
    was a supplier: it has answered for that as its role changed, and what they have is not known any more."""
    if instance.consumers == instance.peers or any(map(_is_of_suppliers, instance.regions)):
        return instance.consumers
    chain = Chain(instance.journal_directory, network=instance.content.network, instance=instance.content.uuid)
    try:
        last_seqno = chain.scan_last()[1].last_seqno
        reader = ChainReader(chain, last_seqno)
        try:
            histories = reader.catalogue_at(last_seqno).histories
        finally:
            reader.close()
    except ReplicateError:
        return instance.peers  # nothing tells that it is no longer ours
    wrote_last = any(one.instance == instance.content.uuid for one in histories[-1:])
    # A supplier takes over from nobody but itself.
    is_suppliers = any(one.origin.key != after.previous_origin for one, after in pairwise(histories))
    return instance.peers if wrote_last and not is_suppliers else instance.consumers


def _is_of_suppliers(entry: RegionEntry) -> bool:
    """Whether it says which supplier writes what; False, too, where it cannot be read."""
    try:
        with closing(KIND.reader(entry.path, region=entry.uuid)) as opened:
            return bool(opened.writers().by)
    except ReplicateError:
        return False


class Unreadable(Struct, frozen=True):
    """A stretch that could not be read: from `first_seqno` to `last_seqno` (None: nobody knows), and why."""

    first_seqno: int
    last_seqno: int | None
    why: str


class _End(Struct, frozen=True):
    """Where a journal can be read without a gap, why not further, and the last one that stands after the damage."""

    oldest_seqno: int = 1
    readable_seqno: int = 0
    damage: str = ""
    standing_seqno: int = 0


def look(owner: Owner) -> Undelivered:
    """The facts of now. Raises FormatUnknownError (a newer release's journal); any other damage is one of the facts."""
    # First what proves how far the journal goes: somebody may be writing.
    regions = [last_seqno_of(entry.path, region=entry.uuid) for entry in owner.regions]
    end = _end_of(owner)
    committed = max((seqno for seqno in regions if seqno is not None), default=0)
    last_seqno = max(end.readable_seqno, end.standing_seqno, committed)
    damage = end.damage
    if not damage and committed > end.readable_seqno:
        damage = f"a region has transactions up to {committed}"
    positions = [PeerPosition(name, acknowledged(owner, name)) for name in owner.peers]
    return Undelivered(
        oldest_seqno=end.oldest_seqno,
        readable_seqno=end.readable_seqno,
        last_seqno=last_seqno,
        received_seqno=max(last_seqno, _received(owner)),
        peers=tuple(_with_what_counts(owner, peer, end, last_seqno) for peer in positions),
        damage=damage,
        is_open=bool(end.damage) and (owner.was_released or not regions or None in regions),
    )


def _end_of(owner: Owner) -> _End:
    chain = owner.chain
    try:
        numbers = chain.first_seqnos()
        if not numbers:
            return _End()
        oldest, durable = numbers[0], durable_seqno(chain.directory)
        try:
            last, found = chain.scan_last()
        except FormatUnknownError:
            raise
        except DamagedError as error:
            return _End(oldest, numbers[-1] - 1, str(error))
        if last.header.adopted:
            return _End(oldest, found.last_seqno)
        # As after a power loss: only what is proved to be missing is called so.
        ours = owner.role == "primary"
        verdict = classify_tail(found, last_durable_seqno=durable, power_lost=True, marks_are_ours=ours)
        if not isinstance(verdict, Damaged):
            return _End(oldest, found.last_seqno)
        with chain.open(last.first_seqno) as segment:
            reason = f"{verdict.reason} [{last.path}, offset {verdict.offset}]"
            return _End(oldest, found.last_seqno, reason, last_standing(segment))
    except FormatUnknownError:
        raise
    except DamagedError as error:
        return _End(damage=str(error))


def acknowledged(owner: Owner, name: str) -> int:
    """What a peer has acknowledged; 0 where that cannot be read."""
    directory = owner.path / "consumers"
    try:
        known = read_consumer(directory, name)
        return 0 if known is None else told_seqno(directory, known)
    except DamagedError:
        return 0


def _received(owner: Owner) -> int:
    if owner.role != "secondary":
        return 0
    try:
        pool = ReceivePool.attach(owner.uuid)
    except ReplicateError:
        return 0  # none that anybody could apply from
    try:
        return pool.last_received_seqno
    finally:
        pool.close()


def _with_what_counts(owner: Owner, peer: PeerPosition, end: _End, last_seqno: int) -> PeerPosition:
    """The peer, taken for one that has everything where nothing that it lacks is anybody's data."""
    first = max(peer.acknowledged_seqno + 1, end.oldest_seqno)
    if last_seqno > end.readable_seqno or end.damage or _has_data(owner.chain, first, end.readable_seqno):
        return peer
    return PeerPosition(peer.name, max(peer.acknowledged_seqno, last_seqno))


def _has_data(chain: Chain, first: int, last: int) -> bool:
    if first > last:
        return False
    reader = ChainReader(chain, first)
    try:
        while (found := reader.read(BATCH_BYTES_MAX, last)) is not None:
            if isinstance(found, LargeTransaction):
                return True
            if any(_is_data(decode(found.data[at : at + head.frame_bytes])) for at, head in walk(found.data)):
                return True
    except DamagedError:
        return True
    finally:
        reader.close()
    return False


def _is_data(transaction: Transaction) -> bool:
    if transaction.kind in (Kind.NULL, Kind.HISTORY):
        return False
    return not (transaction.content and isinstance(transaction.content[0], RegionChange))


class LostReading(Struct):
    """One pass over what is lost; afterwards `unreadable` says what of it could not be read."""

    owner: Owner
    found: Undelivered
    unreadable: list[Unreadable] = field(default_factory=list)

    def transactions(self) -> Iterator[ShownTransaction]:
        """Each, in order, as `journal show --json` has it, the rows of large ones included. JournalIOError."""
        found = self.found
        if found.first_lost_seqno <= found.readable_seqno:
            yield from self._journal(found.first_lost_seqno, found.readable_seqno)
        if found.damage:
            after = max(found.readable_seqno + 1, found.first_lost_seqno)
            known = None if found.is_open else found.last_seqno
            yield from self._salvaged(after, known, found.damage)
        if found.received_seqno > found.last_seqno:
            yield from self._received(found.last_seqno + 1)

    def _journal(self, first: int, last: int) -> Iterator[ShownTransaction]:
        chain = self.owner.chain
        following = first
        while following <= last:
            is_large = False
            try:
                for one in shown_between(chain, following, last, parts=True):
                    yield one
                    following, is_large = one.seqno + 1, one.kind in (*LARGE_NAMES, Kind.PART.name)
                return
            except FormatUnknownError:
                raise
            except DamagedError as error:
                if is_large:  # whether all its parts had come is not known here
                    self.unreadable.append(Unreadable(following - 1, following - 1, str(error)))
                    continue
                begin = following
                following = next((seqno for seqno in chain.first_seqnos() if begin < seqno <= last), last + 1)
                yield from self._salvaged(begin, following - 1, str(error))

    def _salvaged(self, first: int, last: int | None, why: str) -> Iterator[ShownTransaction]:
        """What stands from `first` to `last` (None: nobody knows) in the one segment that should hold it. `why`: what
        is wrong at `first`."""
        following = first
        for one in self._standing(first):
            if one.seqno < first:
                continue
            if last is not None and one.seqno > last:
                break
            if isinstance(one, BadPlace):
                if one.seqno > first:
                    why = one.why
                continue
            if one.seqno > following:
                self.unreadable.append(Unreadable(following, one.seqno - 1, why))
            yield shown(decode(one.frame), len(one.frame), one.catalogue)
            following = one.seqno + 1
        if last is None or following <= last:
            self.unreadable.append(Unreadable(following, last, why))

    def _standing(self, seqno: int) -> Iterator[Salvaged | BadPlace]:
        """What can be read of the segment that should hold `seqno`; nothing of one whose header or commit is bad."""
        chain = self.owner.chain
        try:
            number = max((first for first in chain.first_seqnos() if first <= seqno), default=0)
            segment = chain.open(number)
        except FormatUnknownError:
            raise
        except DamagedError:
            return
        with segment:
            if not segment.header.adopted:
                yield from salvaged(segment)

    def _received(self, first: int) -> Iterator[ShownTransaction]:
        last, gone = self.found.received_seqno, "it is not in the receive pool any more"
        try:
            pool = ReceivePool.attach(self.owner.uuid)
        except ReplicateError as error:
            self.unreadable.append(Unreadable(first, last, str(error)))
            return
        following = first
        try:
            for one in self._pool(pool, first):
                if one.seqno > following:
                    self.unreadable.append(Unreadable(following, one.seqno - 1, gone))
                following = one.seqno + 1
                yield one
        except DamagedError as error:
            gone = str(error)
        finally:
            pool.close()
        if following <= last:
            self.unreadable.append(Unreadable(following, last, gone))

    def _pool(self, pool: ReceivePool, first: int) -> Iterator[ShownTransaction]:
        """From `first` on. Of a large one the parts lie before its commit: their places are kept, not they
        themselves."""
        known, places = self._definitions(first), list[int]()
        for record in pool.peek():
            if record.kind is RecordKind.CATALOGUE or record.last_seqno < first:
                continue
            if record.kind is RecordKind.PARTS:
                places.append(record.address)
                continue
            for offset, head in walk(record.data):
                frame = record.data[offset : offset + head.frame_bytes]
                if head.seqno >= first:
                    commit = shown(decode(frame), len(frame), known)
                    yield commit
                    if head.kind in LARGE_BEGINS:
                        yield from self._pool_parts(pool, places, commit, known)
                        places = []
                known = with_frame(known, frame)

    def _pool_parts(
        self, pool: ReceivePool, places: list[int], commit: ShownTransaction, known: Catalogue
    ) -> Iterator[ShownTransaction]:
        where = str(pool.memory.path)
        try:
            yield from shown_parts(_parts(pool, places, where), where, commit, known.definitions)
        except DamagedError as error:
            self.unreadable.append(Unreadable(commit.seqno, commit.seqno, str(error)))

    def _definitions(self, seqno: int) -> Catalogue:
        reader = ChainReader(self.owner.chain, seqno)
        try:
            return reader.catalogue_at(seqno)
        except DamagedError:
            return Catalogue()  # tables are told by their ids
        finally:
            reader.close()


def _parts(pool: ReceivePool, places: list[int], where: str) -> Iterator[bytes]:
    """The frames of all parts of one transaction, from the first on. JournalDamagedError where one is gone."""
    expected = 0
    for place in places:
        record = next(pool.peek(place))
        offset = 0
        while offset < len(record.data):
            head, number, _ = read_part(record.data, offset)
            if number != expected:
                raise JournalDamagedError(f"part {expected} is not in the receive pool any more", where=where)
            yield record.data[offset : offset + head.frame_bytes]
            offset, expected = offset + head.frame_bytes, number + 1
    if not expected:
        raise JournalDamagedError("its parts are not in the receive pool any more", where=where)


def identity(number: bytes) -> str:
    """A UUID as text, "" for none."""
    return str(uuid.UUID(bytes=number)) if number else ""
