"""Removing journal segments that nobody needs any more.

Guarantees: a segment goes only when all these have all of it, durably:

* every registered consumer, and the seed that is on its way to one;
* every region;
* the archive, where one is configured;
* every supplier that shares a partition, where there are any.

The newest two segments always stay. A secondary keeps as much as a rollback may want (journal.rollback_bytes). At the
cap `keep` removes nothing more. `drop-consumer` gives up the slowest consumers, as few as it takes, each marked as to
be seeded. `prune-archived` removes what is archived, whatever consumers still need. The journal's reserve is kept up on
the way (journal/reserve.py).
Leaves to others: who asks and how often, what a consumer does about it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import closing, suppress
from itertools import pairwise
from operator import itemgetter
from typing import Final
from weakref import WeakKeyDictionary

from msgspec.structs import replace

from replicate.door.door import Door
from replicate.door.recovery.stale_wal import refuse_stale_file
from replicate.errors import BusyError, ReplicateError
from replicate.instance.archive_mark import archived_seqno
from replicate.instance.consumer_positions import positions_locked
from replicate.instance.consumers import Consumer, needed_seqno, read_consumer, write_consumer, write_hold
from replicate.instance.file import InstanceFile, RegionEntry, read_file
from replicate.instance.instance import FILE_NAME
from replicate.instance.kept_journal import kept_after
from replicate.instance.writing_locks import region_lock
from replicate.journal.chain import Chain
from replicate.journal.reserve import keep
from replicate.journal.segment import first_seqno_of_name
from replicate.pool import control as word
from replicate.region.kind import KIND
from replicate.system.locks import FileLock

KEPT_SEGMENTS_MIN: Final = 2
_NOTHING: Final[Mapping[str, int]] = {}
NOTE_BEHIND: Final = 100_000
"""So many transactions a region must be behind the newest segment before it is told that it lacks none of them."""

_noted: Final[WeakKeyDictionary[Door, dict[bytes, int]]] = WeakKeyDictionary()
"""By a region's UUID: below which number it was told, through this door, that it lacks nothing."""


def _nobody(_consumer: Consumer) -> None:
    pass


def prune_journal(
    door: Door,
    on_drop: Callable[[Consumer], None] = _nobody,
    *,
    aged: Mapping[str, int] = _NOTHING,
    upto: int | None = None,
    dry_run: bool = False,
) -> list[int]:
    """Remove what may go; the first seqnos of the segments removed, oldest first. Blocks on the disk.

    `aged`: consumer -> up to where nothing is kept for it, beside what is noted of that. `upto`: nothing after that
    transaction is removed. `dry_run`: only tell what would be. `on_drop` is told each consumer that was given up.
    Returns at once, empty, while another process prunes, or has a region in hands in which nothing was written for
    long. Raises JournalIOError (a sync or an unlink failed: nothing, or only a part, was removed), DamagedError for a
    consumer's position that cannot be read, BusyError (a process that has the positions stands still).
    """
    instance = door.instance
    lock = FileLock(instance.locks_directory / "prune.lock")
    try:
        if not lock.try_acquire():
            return []
        keep(instance.journal_directory, instance.config.journal.reserve_bytes)
        content = read_file(instance.path / FILE_NAME)
        # A chain of our own: the door's is used by other threads.
        chain = Chain(instance.journal_directory, network=content.network, instance=content.uuid)
        pruning = _Pruning(door, content, chain, aged, upto)
        return pruning.would_remove() if dry_run else pruning.run(on_drop)
    finally:
        lock.close()


class _Pruning:
    """One run."""

    def __init__(
        self,
        door: Door,
        content: InstanceFile,
        chain: Chain,
        aged: Mapping[str, int] = _NOTHING,
        upto: int | None = None,
    ) -> None:
        self._door = door
        self._aged = aged
        self._upto = upto
        self._directory = door.instance.consumers_directory
        self._settings = door.instance.config.journal
        self._regions = content.regions
        self._chain = chain
        self._is_secondary = content.role == "secondary"
        # Until one that took over is heard here, what we wrote as primary may stand in no other journal.
        newest = door.catalogue_now().histories[-1:]
        wrote_last = self._is_secondary and any(one.instance == content.uuid for one in newest)
        self._consumers = [
            read_consumer(self._directory, peer.name) or Consumer(peer.name)
            for peer in (content.peers if wrote_last else content.consumers)
        ]
        self._bound: int | None = None
        self._archived = archived_seqno(door.instance)

    def run(self, on_drop: Callable[[Consumer], None]) -> list[int]:
        removed = self._remove(self._known_to_all(self._below(self._consumers)))
        with suppress(ReplicateError):  # nothing needs it, and status says what is wrong with a region
            if numbers := self._chain.first_seqnos():
                self._note_idle(numbers[-1], behind=NOTE_BEHIND)
        if self._settings.cap_policy == "prune-archived" and self._chain.size_bytes() > self._settings.cap_bytes:
            below = self._below([])
            within = self._chain.seqno_within_cap(self._settings.cap_bytes)
            return removed + self._remove(None if below is None else min(below, within))
        if self._settings.cap_policy != "drop-consumer":
            return removed
        while self._chain.size_bytes() > self._settings.cap_bytes:
            below, slowest = self._slowest()
            if below is None or not self._note_idle(below):
                break  # nothing would become free, or not now
            for consumer in slowest:
                known = self._give_up(consumer, below, on_drop)
                self._consumers = [known if one is consumer else one for one in self._consumers]
            removed += self._remove(self._below(self._consumers))
        return removed

    def would_remove(self) -> list[int]:
        """The first seqnos of the segments that `run` would remove now."""
        below = self._known_to_all(self._below(self._consumers)) or 0
        return [first for first, following in pairwise(self._chain.first_seqnos()) if following <= below]

    def _give_up(self, consumer: Consumer, below: int, on_drop: Callable[[Consumer], None]) -> Consumer:
        """The consumer as it stands now: given up, unless it needs nothing any more of what is to go below that number
        (it has gone on since we read it, or a seed was made for it)."""
        with positions_locked(self._directory):
            known = read_consumer(self._directory, consumer.name) or consumer
            needed = self._needed(known)
            if needed is None or needed + 1 >= below:
                return known
            dropped = replace(known, needs_seed=True)
            write_consumer(self._directory, dropped)
            write_hold(self._directory, dropped.name, None)
        on_drop(dropped)
        return dropped

    def _slowest(self) -> tuple[int | None, list[Consumer]]:
        """As few of the slowest consumers as must be given up for anything to become free: several may need the same
        segment. And below what segments may go then; None when giving up all of them would free nothing."""
        kept = [(needed, consumer) for consumer in self._consumers if (needed := self._needed(consumer)) is not None]
        by_need = [consumer for _, consumer in sorted(kept, key=itemgetter(0))]
        for count in range(1, len(by_need) + 1):
            below = self._below(by_need[count:])
            if below is not None:
                return below, by_need[:count]
        return None, []

    def _needed(self, consumer: Consumer) -> int | None:
        needed = needed_seqno(self._directory, consumer)
        return None if needed is None else max(needed, self._aged.get(consumer.name, 0))

    def _below(self, consumers: list[Consumer]) -> int | None:
        """All segments that hold only seqnos below this one may go; None when there is none."""
        numbers = self._chain.first_seqnos()
        if len(numbers) <= KEPT_SEGMENTS_MIN:
            return None
        needed = [seqno for consumer in consumers if (seqno := self._needed(consumer)) is not None]
        if self._archived is not None:
            needed.append(self._archived)
        if self._upto is not None:
            needed.append(self._upto)
        if (kept := kept_after(self._door.instance.locks_directory, self._door.instance.run_directory)) is not None:
            needed.append(kept)
        needed += self._not_absorbed()
        below = min([*(seqno + 1 for seqno in needed), numbers[-KEPT_SEGMENTS_MIN]])
        if self._is_secondary:
            kept = min(self._settings.rollback_bytes, self._settings.cap_bytes)
            below = min(below, self._chain.seqno_within_cap(kept))
        if below < numbers[1]:
            return None
        # Only now, since it costs a sync. What was learnt once stays true.
        if self._bound is None:
            self._bound = durable_in_regions(self._door.words, self._regions)
        below = min(below, self._bound + 1)
        return below if below >= numbers[1] else None

    def _known_to_all(self, below: int | None) -> int | None:
        """No more than all suppliers have that share. At the cap nobody waits for that."""
        if below is None or not self._door.instance.is_supplier:
            return below
        from replicate.door.known_to_all import known_to_all

        known = known_to_all(self._door, self._chain)
        return below if known is None else min(below, known + 1)

    def _not_absorbed(self) -> list[int]:
        """Of a supplier's regions, up to where the Update Process has looked at the journal for what several write."""
        if not self._door.instance.is_supplier:
            return []
        found = []
        for entry in self._regions:
            with closing(KIND.reader(entry.path, region=entry.uuid)) as opened:
                found.append(opened.absorbed())
        return [seqno for seqno in found if seqno]

    def _remove(self, below: int | None) -> list[int]:
        """Remove the segments that hold only seqnos below that one."""
        if below is None:
            return []
        if not self._note_idle(below):
            return []
        names = self._chain.prune(below)
        return [seqno for seqno in map(first_seqno_of_name, names) if seqno is not None]

    def _note_idle(self, below: int, *, behind: int = 1) -> bool:
        """Where nothing was written for so long that a primary's region stands before the journal's new beginning, have
        it say itself that it lacks nothing there: so recovery tells it from an old copy, and need not look through what
        it lacks nothing of. `behind`: leave those alone that stand nearer. False: not now, the region is in somebody's
        hands."""
        if self._door.instance.role != "primary":
            return True
        oldest = max(seqno for seqno in self._chain.first_seqnos() if seqno <= below)
        words, noted = self._door.words, _noted.setdefault(self._door, {})
        for entry in self._regions:
            region = entry.region_id
            done = words[word.REGION_DONE + region]
            if not done or oldest - max(done + 1, noted.get(entry.uuid, 0) if behind > 1 else 0) < behind:
                continue
            lock = region_lock(self._door.instance, entry)
            try:
                # Under its lock nothing new begins there; what a killed writer left is redone first.
                if not lock.try_acquire() or words[word.REGION_APPENDED + region] != words[word.REGION_DONE + region]:
                    return False
                refuse_stale_file(self._door.instance, entry)
                KIND.note_held(entry.path, region=entry.uuid, last_seqno=done, below=oldest)
                noted[entry.uuid] = oldest
            except BusyError:
                return False
            finally:
                lock.close()
            KIND.sync(entry.path)
        return True


def durable_in_regions(words: memoryview, regions: tuple[RegionEntry, ...]) -> int:
    """The last seqno up to which every region holds its transactions on the disk; syncs their WALs for that.

    Raises JournalIOError when a sync fails.
    """
    # In this order: a number enters the regions' words before it becomes the last one.
    bound = int(words[word.LAST_SEQNO])
    for entry in regions:
        appended = words[word.REGION_APPENDED + entry.region_id]
        done = words[word.REGION_DONE + entry.region_id]
        if appended != done:  # a killed writer's work, which is redone from the journal
            bound = min(bound, appended, done)
    for entry in regions:
        KIND.sync(entry.path)
    return bound
