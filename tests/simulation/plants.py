"""The harness proved on planted bugs: each replaces a part of the product while worlds are lived, and must be found.

Guarantees: a plant is taken out again; a name that the product no longer has is a KeyError, not a plant that
does nothing. `EQUIVALENT` holds changes that make no difference, with the reason; nobody may find them.
Leaves to others: how a bug is found.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Mapping
from typing import Any, Final

import receiver_server.connection
import receiver_server.flow
import receiver_server.source_state
import replicate.door.door
import replicate.door.durability
import replicate.door.primary
import replicate.door.pruning
import replicate.door.recovery.recovery
import replicate.door.region_part
import replicate.instance.consumers
import replicate.pool.doorbell
import replicate.wire.frame
import source_server.connection
import source_server.reader
import update_process.plan
from receiver_server.flow import FlowDecision
from replicate.journal import segment, spool
from replicate.pool import control as word
from replicate.pool import journal_pool, receive_pool
from tests.simulation import regions, stage
from tests.simulation.replaced import Change, replaced


def nothing(*_: Any, **__: Any) -> None:
    pass


def _acknowledge_before_fsync() -> list[Change]:
    return [(replicate.door.durability.Durability, "after_commit", nothing)]


def _report_before_sync() -> list[Change]:
    return [(replicate.door.durability.Durability, "sync_appended", nothing)]


def _flush_number_read_after() -> list[Change]:
    def flush(self: Any) -> None:
        words = self._words
        opened = self._open_segment()
        from replicate.system.failpoint import hit

        hit("sync.before")
        opened.sync()
        hit("sync.after")
        opened.close()
        self._note(words[word.LAST_SEQNO])

    return [(replicate.door.durability.Durability, "_flush", flush)]


def _lost_ring_not_missed() -> list[Change]:
    """What ends the sleeps asks the byte, which a writer clears that is killed before it rings."""

    async def keep_looking(self: Any) -> None:
        import trio

        self.is_looked_after = True
        while True:
            await trio.sleep(0.5)
            if self._sleeper[0]:
                self.wake()

    return [(replicate.pool.doorbell.Doorbell, "keep_looking", keep_looking)]


def _send_before_durable() -> list[Change]:
    return [(replicate.door.door.Door, "wait_durable", nothing)]


def _start_off_by_one() -> list[Change]:
    original = receiver_server.connection.ReceiverConnection._send_restart

    def send(self: Any, found: Any) -> None:
        from msgspec.structs import replace

        later = replace(found.position, last_seqno=found.position.last_seqno + 1)
        original(self, replace(found, position=later))

    return [(receiver_server.connection.ReceiverConnection, "_send_restart", send)]


def _reader_starts_behind() -> list[Change]:
    original = source_server.connection.SourceConnection._reader

    def reader(self: Any, agreed: Any) -> Any:
        from msgspec.structs import replace

        return original(self, replace(agreed, from_seqno=agreed.from_seqno + 1))

    return [(source_server.connection.SourceConnection, "_reader", reader)]


def _no_dedupe() -> list[Change]:
    """The Update Process takes what it has applied already for new."""

    def applied_before(pieces: Any, next_seqno: int) -> None:
        return None

    def fill(pieces: Any, next_seqno: int, room_bytes: int) -> Any:
        found = kept(pieces, next_seqno, room_bytes)
        return update_process.plan.Fill(found.pieces, 0)

    kept = update_process.plan._fill
    return [
        (update_process.plan, "_applied_before", applied_before),
        (update_process.plan, "_fill", fill),
    ]


def _overrun_not_noticed() -> list[Change]:
    """A reader that was lapped goes on with what the ring holds now."""

    def lapped(self: Any) -> None:
        self._address = self._words[word.WRITTEN]
        self.next_seqno = self._words[word.LAST_PUBLISHED_SEQNO] + 1

    return [(journal_pool.PoolReader, "_lapped", lapped)]


def _return_without_bridge() -> list[Change]:
    """Coming back from the files, the reader goes to the pool's end as it is then."""

    def back(self: Any) -> None:
        self._files_last_seqno = None
        self._pool.resume(self._pool.note_written(), self._words[word.LAST_SEQNO] + 1)
        self.next_seqno = self._words[word.LAST_SEQNO] + 1

    return [(source_server.reader.StreamReader, "_return_to_pool", back)]


def _never_on_again() -> list[Change]:
    def decide(self: Any, fill_fraction: float) -> FlowDecision:
        before = self.is_stopped
        decision = kept(self, fill_fraction)
        self.is_stopped = before or self.is_stopped
        return decision if decision is FlowDecision.XOFF else FlowDecision.NOTHING

    kept = receiver_server.flow.Flow.decide
    return [(receiver_server.flow.Flow, "decide", decide)]


def _fsync_retried() -> list[Change]:
    def fsync(self: Any, call: Callable[[int], None]) -> None:
        for _ in range(2):
            try:
                call(self.fd)
                return
            except OSError:
                continue

    return [(segment.SegmentFile, "_fsync", fsync)]


def _tail_not_cut() -> list[Change]:
    return [(replicate.door.recovery.recovery, "_cut", nothing)]


def _cut(self: Any, offset: int) -> None:
    segment.write_zeros(self.fd, offset, segment.os.fstat(self.fd).st_size)


def _cut_and_no_sync_after() -> list[Change]:
    return [(segment.SegmentFile, "cut", _cut), (replicate.door.recovery.recovery, "_rewrite", nothing)]


def _no_directory_sync() -> list[Change]:
    return [(segment.Directory, "sync", nothing)]


def _spool_not_synced() -> list[Change]:
    return [(spool.Spool, "_sync", nothing)]


def _not_mended() -> list[Change]:
    def mend(self: Any) -> None:
        self.words[word.INTENT_SEQNO] = 0

    return [(replicate.door.door.Door, "_mend", mend)]


def _no_redo() -> list[Change]:
    def redo(door: Any, entry: Any, *_: Any) -> int:
        words = door.words
        words[word.REGION_DONE + entry.region_id] = words[word.REGION_APPENDED + entry.region_id]
        return 0

    return [(replicate.door.region_part, "redo_region", redo)]


def _slots_overwritten() -> list[Change]:
    return [(stage.SIZES["replicate.door.primary"], "RING_SLOTS", 1 << 40)]


def _wire_check_not_looked_at() -> list[Change]:
    return [(replicate.wire.frame, "crc32c", lambda *_: 0)]


def _prunes_too_much() -> list[Change]:
    def needed(directory: Any, consumer: Any) -> Any:
        found = kept(directory, consumer)
        return None if found is None else found + 8

    kept = replicate.door.pruning.needed_seqno
    return [(replicate.door.pruning, "needed_seqno", needed)]


def _prunes_without_sync() -> list[Change]:
    return [(regions.Region, "sync", nothing)]


def _taken_back_without_sync() -> list[Change]:
    return [(regions.ModelMended, "synced", lambda self: contextlib.nullcontext())]


def _older_number_taken_back() -> list[Change]:
    def cut(self: Any, last_seqno: int, *, reaches: bool) -> None:
        kept(self, last_seqno, reaches=False)

    kept = regions.ModelMended.cut_ring
    return [(regions.ModelMended, "cut_ring", cut)]


def _written_once_more_by_append() -> list[Change]:
    """What recovery did until a world showed that it erases the journal when that write fails."""
    return [(segment.SegmentFile, "rewrite", segment.SegmentFile.append)]


def _scr_outside() -> list[Change]:
    """Synchronization checkpoint records that do not wait for the transaction's COMMIT."""

    def write(connection: Any, rows: Any) -> None:
        kept(connection, rows)
        for row in rows:
            connection.parts["main"].scr[row.origin, row.partition] = row

    kept = regions.write_scr
    return [(regions, "write_scr", write)]


def _regions_left_behind() -> list[Change]:
    return [(replicate.door.recovery.recovery, "_bring_regions_forward", nothing)]


def _rings_not_used() -> list[Change]:
    return [(replicate.door.recovery.recovery, "complete_from_rings", nothing)]


def _switch_without_sync() -> list[Change]:
    def sync(self: Any, *_: Any) -> int:
        return int(self._words[word.LAST_DURABLE_SEQNO])

    return [(replicate.door.durability.Durability, "sync_to_end", sync)]


def _reports_what_it_received() -> list[Change]:
    def received(self: Any) -> int:
        pool = getattr(self, "pool", self)
        return int(pool.words[receive_pool.LAST_RECEIVED_SEQNO])

    return [
        (receiver_server.source_state.SourceState, "applied_seqno", property(received)),
        (receive_pool.ReceivePool, "durable_seqno", property(received)),
    ]


PLANTS: Final[dict[str, Callable[[], list[Change]]]] = {
    "acknowledge before fsync": _acknowledge_before_fsync,
    "report before sync": _report_before_sync,
    "flush's number read after it": _flush_number_read_after,
    "send before durable": _send_before_durable,
    "a lost ring is not missed": _lost_ring_not_missed,
    "start point off by one": _start_off_by_one,
    "reader starts one behind": _reader_starts_behind,
    "resend without dedupe": _no_dedupe,
    "ring overrun not noticed": _overrun_not_noticed,
    "back from the files without a bridge": _return_without_bridge,
    "flow control never resumed": _never_on_again,
    "fsync retried": _fsync_retried,
    "tail not cut": _tail_not_cut,
    "cut without fsync, nor any after it": _cut_and_no_sync_after,
    "no directory fsync": _no_directory_sync,
    "spool not synced": _spool_not_synced,
    "killed writer not mended": _not_mended,
    "killed writer's region not redone": _no_redo,
    "ring slots overwritten before they are durable": _slots_overwritten,
    "a message's check not looked at": _wire_check_not_looked_at,
    "prunes what the consumer needs": _prunes_too_much,
    "prunes what a region has not synced": _prunes_without_sync,
    "rows taken back without a sync": _taken_back_without_sync,
    "an older number goes with what is taken back": _older_number_taken_back,
    "what is durable is taken back when a write fails": _written_once_more_by_append,
    "checkpoint records outside of the transaction": _scr_outside,
    "regions not rolled forward": _regions_left_behind,
    "journal not completed from the rings": _rings_not_used,
    "switch without a sync": _switch_without_sync,
    "reports what it has only received": _reports_what_it_received,
}


def _cut_without_fsync() -> list[Change]:
    return [(segment.SegmentFile, "cut", _cut)]


FOUND: Final[dict[str, tuple[str, int]]] = {
    "fsync retried": ("safety", 68),
    "tail not cut": ("safety", 468),
    "an older number goes with what is taken back": ("safety", 1109),
    "rows taken back without a sync": ("safety", 474),
    "what is durable is taken back when a write fails": ("safety", 269),
    "prunes what the consumer needs": ("liveness", 26),
    "flow control never resumed": ("liveness", 32),
    "checkpoint records outside of the transaction": ("liveness", 146),
    "a lost ring is not missed": ("liveness", 103),
}
"""Worlds that find what few others find, to be lived first. With other dice they may not; then all are lived."""


EQUIVALENT: Final[dict[str, Callable[[], list[Change]]]] = {"cut without fsync": _cut_without_fsync}
"""Recovery syncs the same segment again (`_rewrite`) before anything is written after the cut, and until then nobody
has seen anything: a power loss in between leaves what was there before, and recovery does it all again. With that sync
taken out too it is a bug, which is in PLANTS."""


_ALL: Final = {**PLANTS, **EQUIVALENT}


def planted(
    name: str, among: Mapping[str, Callable[[], list[Change]]] = _ALL
) -> contextlib.AbstractContextManager[None]:
    """That bug, of those, is in the product, for a block; "" for none."""
    return replaced(*(among[name]() if name else ()))
