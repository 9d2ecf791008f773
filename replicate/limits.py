"""Bounds that hold everywhere, and the relations between them, asserted at import.

Guarantees: a number that two modules must agree on is written here once.
Leaves to others: anything that an operator may set (that is config.py).
"""

from __future__ import annotations

from typing import Final

KIB: Final = 1024
MIB: Final = 1024 * KIB

OPENING_S: Final = 5.0
"""So long a process that opens a region waits for its file: the first one after a crash and the last one to close it go
through its WAL, of 64 MiB and more on a secondary, and let nobody in meanwhile."""

LOOK_S: Final = 0.000_5
"""A writer that commits again and again looks so often whether a file still bears its name, a region's or the journal
pool's: both looks together take a tenth of a commit. A process that opens a region waits so long until it writes, which
it hardly ever has to: connecting takes about as long. (With 1 ms, connecting for each commit took 1.22 times as long,
and
1.05 times as many commits a second on one connection were had, measured.)"""

FORMAT_VERSION: Final = 1
"""Version of journal segments, pools, the instance file and the wire."""

FRAME_BYTES_MAX: Final = 512 * KIB
"""Largest journal frame. A transaction that encodes larger goes as parts."""

FRAME_CHANGES_MAX: Final = 15_000
"""Most changes in one frame; four elements each must fit the frame's 16-bit array."""

PART_BYTES: Final = 256 * KIB
"""Payload of every part of a large transaction but the last."""

BATCH_BYTES_MAX: Final = 1 * MIB
"""Most bytes of journal frames that travel as one batch."""

FILTER_EVENT_BYTES_MAX: Final = 64 * MIB
"""Longest line, or map of msgpack, that a filter is told or may say: a row, with both of its images."""

MESSAGE_BYTES_MAX: Final = BATCH_BYTES_MAX + 64 * KIB
"""Largest wire message after authentication."""

HELLO_BYTES_MAX: Final = 4 * KIB
"""Largest wire message before the peer has said who it is."""

ROWS_MAX: Final = 20
ROWS_BYTES_MAX: Final = 2 * KIB
"""Tables of which a secondary wants some rows, and their names and conditions together: a hello holds them."""

CATALOGUE_BYTES_MAX: Final = 16 * MIB
"""All table definitions and history records together; sent in chunks on the wire."""

SEGMENT_HEADER_BYTES: Final = 4 * KIB
SEGMENT_GROW_BYTES: Final = 4 * MIB
"""A segment is extended by zeros, fsynced, in steps of this size before they are used."""

LOG_COMMENT_BYTES_MAX: Final = 64 * KIB
"""Longest text, in UTF-8, that an application may write into the log."""

RING_SLOTS: Final = 512
"""Slots of our own row in each region."""

RING_RECORD_BYTES_MAX: Final = 4 * KIB
"""Largest frame that is kept whole in a ring slot; a larger one syncs the journal before COMMIT."""

REGIONS_MAX: Final = 64
"""Regions of an instance: one bit each in the control block's intent word."""

READERS_MAX: Final = 16
"""Source Servers (and other pool readers that sleep on a doorbell) of an instance, as in GT.M."""

POOL_BYTES_MIN: Final = 1 * MIB
RECEIVE_POOL_BYTES_MIN: Final = 4 * MIB
LANES_MAX: Final = 8
"""Receive pools that a supplier has, each for a source of its own (pool/receive_pool.py)."""
"""Four of the largest batches; the receive pool never overwrites, so it cannot be smaller."""

POOL_BYTES_DEFAULT: Final = 64 * MIB
RECEIVE_POOL_BYTES_DEFAULT: Final = 128 * MIB
"""Two batches of the Update Process, and some: the next one is read while one is being committed."""

COLUMNS_MAX: Final = 2000
NAME_PATTERN: Final = r"[A-Za-z0-9][A-Za-z0-9._-]{0,62}\Z"
DEFAULT_PORT: Final = 7430
PARTITION_STREAM: Final = 0
"""The vector's row for "every transaction of this origin up to here has been seen", whatever it carried."""
PARTITION_DEFAULT: Final = 1
PARTITION_MAX: Final = 63
PARTITION_NONE: Final = 0x7FFF_FFFF
"""Of tables whose rows are journalled and never leave the instance."""

# What must be true between them.
assert 4 * FRAME_CHANGES_MAX + 16 < 65_536  # changes are four elements each, in an array16
assert 2 * PART_BYTES <= FRAME_BYTES_MAX  # a part frame fits a frame
assert FRAME_BYTES_MAX <= BATCH_BYTES_MAX <= MESSAGE_BYTES_MAX
assert 4 * BATCH_BYTES_MAX <= RECEIVE_POOL_BYTES_MIN  # XOFF leaves room for what is in flight
assert RING_RECORD_BYTES_MAX < FRAME_BYTES_MAX
assert SEGMENT_HEADER_BYTES + FRAME_BYTES_MAX < SEGMENT_GROW_BYTES
