"""The control words of the journal pool: what stands where in its first 8 KiB.

    words   0 -   15   header of the pool file (shared_memory.py writes it once, at creation)
    words  16 -   63   commit words: the door (replicate/door/primary.py) reads and writes them under the commit lock
    words  64 -   71   ring words: EARLY, WRITTEN, LAST_PUBLISHED_SEQNO (journal_pool.py, under the commit lock)
    words  72 -   73   16 sleeper bytes, one for each reader that sleeps on a doorbell
    words 128 -  447   arrays of 64 words: one for each region, and one for the definitions of the segment
    words 448 -  510   threes of words: where other origins stand, on a supplier
    words 512 - 1023   the path of the instance's directory, NUL after it (shared_memory.py, once)
    rest               zeros, for later

Every word is a native, aligned u64 reached through `memoryview.cast("Q")` (named `words`): such loads and stores were
never torn in 63 million reads, while `struct ">Q"` was torn 22,550 times in 12 million. Readers that hold no lock
may read any word; a value made of two words can be inconsistent for them.

Guarantees: one index for each word, none overlapping (asserted below).
Leaves to others: what the words mean to the commit door; it only names their places. Pure: no memory is touched here.
"""

from __future__ import annotations

from typing import Final

from replicate.limits import READERS_MAX, REGIONS_MAX

CONTROL_BYTES: Final = 8 * 1024
"""Bytes in front of the ring, in both pools."""
CONTROL_WORDS: Final = CONTROL_BYTES // 8

# Header, the same in both pools; written once at creation, POOL_MAGIC last.
POOL_MAGIC: Final = 0
POOL_FORMAT: Final = 1
POOL_EPOCH: Final = 2
"""Random, never 0, new at each creation: an address or a mapping of another epoch is worthless."""
POOL_BOOT: Final = 3
POOL_INSTANCE: Final = 4
"""Two words: the 16 bytes of the instance's UUID."""
POOL_BYTES: Final = 6
POOL_STATE: Final = 7
"""One of STATE_BUILDING, STATE_READY, STATE_CLOSED."""

STATE_BUILDING: Final = 0
STATE_READY: Final = 1
STATE_CLOSED: Final = 2

# Commit words. The door is their only writer, under the commit lock, except where it says otherwise.
SEGMENT_FIRST_SEQNO: Final = 16
"""First seqno of the segment that is appended to, hence its file name."""
END_OFFSET: Final = 17
"""Bytes: where the next frame goes in that segment."""
ZEROED_OFFSET: Final = 18
"""Bytes: zeros are written and synced up to here."""
LAST_SEQNO: Final = 19
"""Last seqno appended to the journal."""
LAST_DURABLE_SEQNO: Final = 20
"""Last seqno known to have been synced; raised by the process that synced."""
LAST_CSN: Final = 21
OWN_ORIGIN: Final = 22
OWN_ORIGIN_SEQNO: Final = 23
OWN_CHAIN: Final = 24
INTENT_SEQNO: Final = 25
"""Seqno whose COMMIT may be unfinished (0: none)."""
INTENT_REGIONS: Final = 26
"""Bit i: region i takes part in INTENT_SEQNO."""
DEFINITION_COUNT: Final = 27
"""Definitions appended to the current segment after its catalogue; offsets in DEFINITION_OFFSET[0 … count-1]."""
CATALOGUE_GENERATION: Final = 28
"""Rises whenever the catalogue changes; a process with an older generation reads it again."""
LAST_COMMIT_WALL_NS: Final = 29
FATAL: Final = 30
"""Not 0: a journal write or sync failed with this errno, and nobody appends any more."""
ROLE: Final = 31
"""ROLE_PRIMARY or ROLE_SECONDARY, as the instance was when the pool was made (a primary that is superseded gives no
numbers, as a secondary does not); 0 of an earlier release's."""
ROLE_PRIMARY: Final = 1
ROLE_SECONDARY: Final = 2
BARRIER_SEQNO: Final = 32
BARRIER_EXPIRES_NS: Final = 33
INTENT_OFFSET: Final = 34
"""Bytes: where INTENT_SEQNO's frames begin in the segment."""
INTENT_BYTES: Final = 35
"""Bytes that INTENT_SEQNO's frames take; what is not a whole frame of them is zeroed by the next lock holder."""
SEGMENT_SEALED: Final = 36
"""Not 0: the segment takes no more frames (an adopted large transaction); the next append switches."""
INTENT_KIND: Final = 37
"""What INTENT_SEQNO is about: frames, an adoption, or a segment switch (door/door.py)."""
SEGMENT_FOREIGN: Final = 38
"""Not 0: on a primary, the segment holds transactions of other origins, received before it became primary."""
SEGMENT_GENERATION: Final = 39
"""Rises whenever appends go to another file, also one that took the same name; an older descriptor is opened again."""
JOURNAL_DEVICE: Final = 40
JOURNAL_INODE: Final = 41
"""Which journal directory these words are about: a copy of the instance has another one."""
SYNC_WAKE: Final = 42
"""Not 0: somebody sleeps until the sync lock is given up (wake_word.py)."""
SIDECAR_COUNTER: Final = 43
"""The counter in the durable mark as it was last written under the sync lock (journal/durable.py); 0: nobody has."""
SYNCING: Final = 44
"""Not 0: a flush is under way, or the last one has failed or was killed. A hint only."""
SIDECAR_SEQNO: Final = 45
"""The number in the durable mark as it was last written under the sync lock; it means nothing while SIDECAR_COUNTER is
0."""
CLOSING: Final = 46
"""Not 0: the barrier that stands is a closing one: no writer passes it while its holder lives (door/barrier.py)."""
FROZEN: Final = 47
"""Not 0: the instance is frozen, at this transaction: nothing is committed or applied beyond it. The instance file says
the same for the next pool."""
FOREIGN_COUNT: Final = 48
"""On a supplier: how many origins beside our own have moved since the segment began (FOREIGN has them)."""
WRITERS_GENERATION: Final = 49
"""Rises whenever a region may have another writer of a partition (model/writers.py). Raised under the region's lock."""
FOREIGN_SEQNO: Final = 50
"""On a supplier: the last transaction of another one that was applied."""
TOLD_SEQNO: Final = 51
"""On a supplier: the last one of our own that tells what was applied here of others (model/seen.py)."""
OWN_MERGED_SEQNO: Final = 52
"""On a supplier: the last one of our own origin (its origin_seqno) in a partition that several write; 0: unknown."""
CSN_END: Final = 53
"""On a supplier: from which csn on nothing of our own is committed, as our clock is ahead of all others (0: it is
not)."""
CSN_END_UNTIL_NS: Final = 54
"""So long that holds (monotonic), unless it is said again: the process that says it may have gone."""
KEEPS_RECORDS: Final = 55
"""Not 0: on a primary, partitions are in use: a commit moves the checkpoint records of those that it changes. Raised
when the door is opened, never lowered."""
COMMIT_WORDS_END: Final = 64
"""Words KEEPS_RECORDS + 1 … 63 are free for the door."""

# Ring words: a cache line of their own, because readers poll them.
EARLY: Final = 64
"""Address up to which bytes may be overwritten at this moment. Raised first; never lowered."""
WRITTEN: Final = 65
"""Address up to which records are complete. Raised last; never lowered."""
LAST_PUBLISHED_SEQNO: Final = 66
"""Last seqno of the newest record. Stored before WRITTEN is raised, so it is never behind what WRITTEN shows."""

SLEEPERS: Final = 72
"""Two words holding READERS_MAX bytes: nonzero = the reader of that slot sleeps and wants its doorbell rung."""
SLEEPERS_WORDS: Final = READERS_MAX // 8
SLEEPERS_OFFSET: Final = SLEEPERS * 8
"""Bytes: where the sleeper bytes begin."""

# Arrays of words.
DEFINITIONS_MAX: Final = 64
DEFINITION_OFFSET: Final = 128
"""DEFINITION_OFFSET + i, i < DEFINITIONS_MAX: bytes, where the i-th appended definition stands in the segment."""
REGION_APPENDED: Final = 192
"""REGION_APPENDED + region: last seqno appended that touches this region."""
REGION_DONE: Final = 256
"""REGION_DONE + region: last seqno whose COMMIT in this region is known to be finished."""
REGION_SCHEMA: Final = 320
"""REGION_SCHEMA + region: SQLite's schema version after our last commit there."""
REGION_WAKE: Final = 384
"""REGION_WAKE + region, not 0: somebody sleeps until the region's lock is given up (wake_word.py)."""
FOREIGN: Final = 448
"""FOREIGN + 3 i, i < FOREIGN_COUNT: key of an origin, the number of its last transaction in the segment, its chain."""
FOREIGN_MAX: Final = 21
FOREIGN_WORDS: Final = 3
ARRAYS_END: Final = FOREIGN + FOREIGN_WORDS * FOREIGN_MAX

HOME_OFFSET: Final = 4096
"""Bytes: where the path of the instance's directory stands, in both pools, up to a NUL; empty: not known."""
HOME_BYTES_MAX: Final = CONTROL_BYTES - HOME_OFFSET - 1

assert READERS_MAX % 8 == 0
assert KEEPS_RECORDS < COMMIT_WORDS_END <= EARLY
assert LAST_PUBLISHED_SEQNO < SLEEPERS
assert SLEEPERS + SLEEPERS_WORDS <= DEFINITION_OFFSET
assert DEFINITION_OFFSET + DEFINITIONS_MAX <= REGION_APPENDED
assert REGION_APPENDED + REGIONS_MAX <= REGION_DONE
assert REGION_DONE + REGIONS_MAX <= REGION_SCHEMA
assert REGION_SCHEMA + REGIONS_MAX <= REGION_WAKE
assert REGION_WAKE + REGIONS_MAX <= FOREIGN
assert ARRAYS_END <= HOME_OFFSET // 8 < CONTROL_WORDS
