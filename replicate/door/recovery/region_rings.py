"""The regions' part in recovery: their rings complete the journal, and what lies beyond a hole is taken back.

Guarantees: a record from a ring enters the journal only if it verifies and follows what stands before it; nothing is
taken back before everything that must be is known to be possible and is kept in a file, each transaction once, also
when recovery is killed and runs again. Leaves to others: locks, the control block, when to recover
(door/recovery/recovery.py).
"""

from __future__ import annotations

from msgspec import Struct, field
from msgspec.structs import replace

from replicate.door.recovery.journal_end import changes_catalogue
from replicate.door.recovery.stale_wal import refuse_stale
from replicate.door.recovery.unapply import inverse
from replicate.errors import FrameDamaged, JournalDamagedError, JournalMissingError
from replicate.instance.file import RegionEntry
from replicate.instance.instance import Instance
from replicate.journal.catalogue import catalogue_with
from replicate.journal.chain import Chain, Segment
from replicate.journal.record import OWN_CHANGES, chain_of, changes_of, check_frame, decode_batch
from replicate.journal.segment import SegmentFile, scan
from replicate.journal.tail import ScanResult
from replicate.journal.walk import walk
from replicate.limits import RING_SLOTS
from replicate.model.transaction import Catalogue
from replicate.region.kind import KIND
from replicate.region.protocol import MendedRegion, RingSlot
from replicate.system.failpoint import hit
from replicate.system.files import read_private, replace_file


class Region(Struct):
    """One region, opened for recovery: what it held when it was opened."""

    entry: RegionEntry
    opened: MendedRegion
    seqno: int = 0
    ring: list[RingSlot] = field(default_factory=list)
    schema: int = 0
    last_csn: int = 0


class Journal(Struct):
    """The newest segment while it is being recovered. Invariant: everything before `end` verifies."""

    segment: SegmentFile
    end: int
    last_seqno: int
    chains: dict[int, tuple[int, int]]
    last_csn: int
    definition_frames: tuple[int, ...]
    sealed: bool
    forked: bool = False
    notes: dict[str, object] = field(default_factory=dict)

    def fork(self, instance: Instance, reason: str, *, is_restored: bool = False) -> None:
        """On a primary: numbers that somebody may have seen are used again from here on, in a new incarnation.
        `is_restored`: its files are those of a backup."""
        if instance.role == "primary" and (not self.forked or is_restored):
            instance.raise_incarnation(is_restored=is_restored)
            self.forked = True
            self.notes["incarnation"] = reason


def open_regions(instance: Instance) -> list[Region]:
    """Every region of the instance, its identity checked. Raises what that raises; nothing is open then."""
    regions: list[Region] = []
    try:
        for entry in instance.regions:
            opened = KIND.mended(entry.path, region=entry.uuid)
            regions.append(region := Region(entry, opened))
            with KIND.naming(opened.where):
                refuse_stale(instance, entry, opened)
                opened.check_identity(network=instance.content.network, instance=instance.content.uuid)
                region.seqno = opened.seqno()
                region.ring = opened.ring()
                region.schema = opened.stored_version()
                region.last_csn = _last_csn(region)
    except BaseException:
        for region in regions:
            region.opened.close()
        raise
    return regions


def _last_csn(region: Region) -> int:
    """An empty segment does not tell it; the clock may have gone back meanwhile."""
    found = [row.csn for row in region.opened.checkpoint()]
    # On a supplier what others have written stands after it, without a record: the checkpoint records tell its csn.
    newest = next((slot for slot in reversed(region.ring) if slot.record is not None), None)
    if newest is not None and newest.record is not None:
        try:
            found.append(check_frame(newest.record).csn)
        except FrameDamaged as error:
            raise JournalDamagedError(
                f"the record of transaction {newest.seqno} in the region's ring does not verify",
                where=str(region.entry.path),
                do="Seed this region again",
            ) from error
    return max(found, default=0)


def _records(regions: list[Region]) -> dict[int, bytes | None]:
    return {slot.seqno: slot.record for region in regions for slot in region.ring}


def _follows(frame: bytes, seqno: int, chains: dict[int, tuple[int, int]]) -> bool:
    head = check_frame(frame)
    _, previous = chains.get(head.origin, (0, 0))
    return head.seqno == seqno and chain_of(frame, previous) == head.chain


def repair_from_rings(
    chain: Chain, last: Segment, found: ScanResult, regions: list[Region], witness: int
) -> tuple[ScanResult, int]:
    """Put a record that the disk got only half, or not at all, back in its place, as long as a ring has it.

    After a power loss any page that was not synced may be missing, also before others that are there. Nothing is done
    for a frame that was known to be durable (`witness`, or the mark of another frame): that is damage, for people to
    look at. Returns the scan as it is then, and how many records were put back.
    """
    records = _records(regions)
    repaired = 0
    with chain.open(last.first_seqno, writable=True) as segment:
        while found.damaged is not None and not found.damaged.whole_frame:
            seqno = found.last_seqno + 1
            frame = records.get(seqno)
            known = max(witness, found.last_mark, found.after.mark if found.after else 0)
            chains = dict(found.chains)
            if frame is None or seqno <= known or not _follows(frame, seqno, chains):
                break
            head = check_frame(frame)
            segment.append(found.end_offset, frame)
            chains[head.origin] = (head.origin_seqno, head.chain)
            more = scan(segment.fd, found.end_offset + len(frame), seqno + 1, chains=chains, path=segment.path)
            found = replace(
                more,
                frame_count=found.frame_count + 1 + more.frame_count,
                last_mark=max(found.last_mark, head.mark, more.last_mark),
                last_csn=max(found.last_csn, head.csn, more.last_csn),
                definition_frames=(*found.definition_frames, *more.definition_frames),
            )
            repaired += 1
    return found, repaired


def region_witness(regions: list[Region], last_seqno: int) -> int:
    """The highest number that tells, by standing in a region, that the next one after `last_seqno` was committed.

    With several regions it need not: when every ring reaches back to the journal's end and none has the next number,
    its own region lost it, and those after it can be taken back.
    """
    following = last_seqno + 1
    telling = [
        region.seqno
        for region in regions
        if len(regions) == 1
        or region.seqno - RING_SLOTS > last_seqno
        or not region.ring
        or region.ring[-1].seqno != region.seqno
        or any(slot.seqno == following for slot in region.ring)
    ]
    return max(telling, default=0)


def complete_from_rings(instance: Instance, journal: Journal, regions: list[Region]) -> None:
    """Append what regions hold and the journal lost, as far as there is no hole. Not yet synced."""
    records = _records(regions)
    added = 0
    while journal.last_seqno + 1 in records:
        seqno = journal.last_seqno + 1
        frame = records[seqno]
        if frame is None:
            raise JournalDamagedError(
                f"transaction {seqno} is in a region and was synced before that, but the journal does not hold it",
                where=journal.segment.path,
                do=f"Restore the journal; or begin again: {instance.way_out}",
            )
        if journal.segment.header.adopted or not _follows(frame, seqno, journal.chains):
            raise JournalDamagedError(
                f"the record of transaction {seqno} in a region's ring does not follow the journal's end",
                where=journal.segment.path,
                do=f"Restore the journal; or begin again: {instance.way_out}",
            )
        head = check_frame(frame)
        if changes_catalogue(head, frame):
            journal.definition_frames += (journal.end,)
        journal.end = journal.segment.append(journal.end, frame)
        journal.last_seqno = seqno
        journal.last_csn = max(journal.last_csn, head.csn)
        journal.chains[head.origin] = (head.origin_seqno, head.chain)
        added += 1
    if added:
        journal.notes["completed_from_rings"] = added


def take_back_beyond(instance: Instance, journal: Journal, regions: list[Region]) -> None:
    """Roll back, newest first, what regions hold beyond the first hole. The journal is on the disk up to there: the
    regions say from then on that they hold its last number, without a record that could complete it.

    Raises JournalMissingError when the rings do not reach back to the journal's end: then the journal is an old copy,
    or was cut by somebody, and nothing is changed.
    """
    last_seqno = journal.last_seqno
    beyond = {slot.seqno: slot.record for r in regions for slot in r.ring if slot.seqno > last_seqno}
    for region in regions:
        # A slot is written again only when what it held was durable in the journal.
        reaches_back = region.seqno - RING_SLOTS <= last_seqno
        if region.seqno > last_seqno and (region.seqno not in beyond or not reaches_back or len(regions) == 1):
            raise JournalMissingError(
                f"region {region.entry.name} holds transactions up to {region.seqno}, the journal ends with "
                f"{last_seqno}",
                where=journal.segment.path,
                do=f"Restore the journal; or begin again: {instance.way_out}",
            )
    if not beyond:
        return
    known = catalogue_with(journal.segment.read_catalogue()[0], journal.segment, journal.definition_frames)
    for seqno, record in beyond.items():
        if record is None or check_frame(record).kind not in OWN_CHANGES:
            raise JournalDamagedError(
                f"transaction {seqno} is in a region and was synced before that, but the journal does not hold it",
                where=journal.segment.path,
                do=f"Restore the journal; or begin again: {instance.way_out}",
            )
    journal.fork(instance, f"{len(beyond)} transactions beyond a hole after {last_seqno} were rolled back")
    _keep(instance, journal, {seqno: record for seqno, record in beyond.items() if record is not None})
    for region in regions:
        hit("recovery.before_take_back")
        _take_back(region, last_seqno, known)
    journal.sealed = True
    journal.notes["rolled_back"] = sorted(beyond)


def _keep(instance: Instance, journal: Journal, frames: dict[int, bytes]) -> None:
    """Keep the frames, durably. What a recovery that was killed has kept and taken back is in the file already."""
    path = instance.conflict_directory / f"rolled-back-after-{journal.last_seqno}.frames"
    if path.exists():
        data = read_private(path)
        kept = {head.seqno: data[offset : offset + head.frame_bytes] for offset, head in walk(data)}
        frames = {**kept, **frames}
    replace_file(path, b"".join(frames[seqno] for seqno in sorted(frames)))
    journal.notes["rolled_back_file"] = str(path)


def _take_back(region: Region, last_seqno: int, known: Catalogue) -> None:
    here = {key: one for key, one in known.definitions.items() if one.region == region.entry.name}
    opened = region.opened
    rows = opened.rows(here, region.entry.name)
    # On the disk before the journal goes on: after a second power loss the region must not hold again what the
    # journal, under the same numbers, has otherwise by then. Nothing could tell the one from the other.
    with KIND.naming(opened.where), opened.synced(), opened.transaction():
        rows.begin()
        for slot in reversed(region.ring):
            if slot.seqno <= last_seqno or slot.record is None:
                continue
            rows.seqno = slot.seqno
            changes = changes_of(decode_batch(slot.record)[2])
            ours = [
                element
                for place in range(0, len(changes), 4)
                if changes[place + 1] in here
                for element in changes[place : place + 4]
            ]
            rows.apply_all(inverse(ours))
        rows.settle_sequences()
        # Beyond it: so it holds all of its own up to there, and not every region does.
        opened.cut_ring(last_seqno, reaches=region.seqno > last_seqno)
    region.ring = [slot for slot in region.ring if slot.seqno <= last_seqno]
    region.seqno = min(region.seqno, last_seqno)
