"""Applies packets on a secondary that has some partitions only, or whose words are a filter's: by the applier of the
Update Process, from a receive pool of this process, transaction by transaction.

A replay finds the net change of whole journals. What an excerpt brings is told otherwise for each site, and a partition
whose rows are not here is journalled and not applied: the applier knows that, and a replay does not.

Guarantees: what is not wanted here is dropped as a Source Server would have left it out, so a packet may bring more;
each transaction has its number here once; whatever dies, the same command goes on.
Leaves to others: whether a packet may be taken (transfer/packet/excerpt.py), the order, and verification.
"""

from __future__ import annotations

import secrets
from collections.abc import Iterable, Iterator, Sequence
from contextlib import closing
from pathlib import Path

from replicate.door.partial_journal import mark_partial
from replicate.errors import InternalError, UsageError
from replicate.filters.restating import StreamLarge, StreamParts
from replicate.filters.selection import PartitionSelection
from replicate.filters.whose_words import note_content, read_content
from replicate.instance.instance import Instance
from replicate.journal.reader import large_transaction
from replicate.journal.record import FrameBatch
from replicate.journal.segment import SegmentFile, open_segment
from replicate.journal.walk import walk
from replicate.pool.receive_pool import ReceivePool, RecordKind
from replicate.pool.shared_memory import PoolKind, retire
from replicate.transfer.packet.excerpt import content_of
from replicate.transfer.packet.format import PacketSummary
from update_process.applier import Applier
from update_process.packet_feed import FeedRecord, records_of
from update_process.replay.apply import Told
from update_process.replay.command import SparkSessions, apply_session
from update_process.replay.local_applier import work_off
from update_process.replay.unpacking import Imported


def goes_by_transactions(instance: Instance, packets: Iterable[PacketSummary]) -> bool:
    """Whether these are to be applied here, and not by a replay. UsageError where a filter would have to tell them."""
    if instance.config.receiver.filter:
        raise UsageError(
            "a receiver.filter is set, which tells the stream in other words, and packets pass no filter",
            where=str(instance.path),
            do="Let the stream bring it; or, to have the packets' words here, first: replicate -i "
            f"{instance.named} config unset receiver.filter",
        )
    here = read_content(instance.run_directory)
    if instance.content.held is not None or (here is not None and here.filter):
        return True
    return any(one.excerpt is not None for one in packets)


def refuse_spark(instance: Instance, spark: SparkSessions | None) -> None:
    """UsageError."""
    if spark is not None:
        raise UsageError(
            "Spark finds the net change of whole journals, and what is here is not whole, or in a filter's words",
            where=str(instance.path),
            do="Import without --engine and --master",
        )


def apply_by_transactions(
    instance: Instance, packets: Sequence[PacketSummary], directories: Iterable[Path], done: Imported, told: Told
) -> None:
    """Apply the segments in these directories, of which the packets were made. TryAgainError, GapError, and what the
    applier raises; what came before is applied then."""
    paths = sorted((path for directory in directories for path in directory.iterdir()), key=lambda path: path.name)
    asked = instance.content.choice.asked
    if any(content_of(packet).filter for packet in packets):
        mark_partial(instance)
    for packet in packets:
        note_content(instance.run_directory, read_content(instance.run_directory), content_of(packet))
    with apply_session(instance) as session:
        first = session.position.last_seqno + 1
        if asked is not None and instance.content.choice.is_unbegun:  # before anything of them is here
            instance.change_subscription(lambda now: now.streaming_from(first, asked))
        # The daemons stand aside: what lies in their pool was received after our position, and comes again.
        pool = ReceivePool.create(
            instance.content.uuid,
            configured_bytes=instance.config.receiver.pool_bytes,
            last_seqno=session.position.last_seqno,
            replace=True,
        )
        try:
            with closing(pool):
                applier = Applier(session, pool, instance.config.update, conflict_directory=instance.conflict_directory)
                with closing(applier):
                    for record in _records(paths, instance.content.network, asked):
                        _give(instance, pool, applier, record, done, told)
                    work_off(instance, applier, done, told)
        finally:
            retire(PoolKind.RECEIVE, instance.content.uuid)
        done.seqno = session.position.last_seqno


def _give(
    instance: Instance, pool: ReceivePool, applier: Applier, record: FeedRecord, done: Imported, told: Told
) -> None:
    kind, first, last, count, data = record
    if pool.offer(data, first, last, count, kind):
        return
    work_off(instance, applier, done, told)
    if not pool.offer(data, first, last, count, kind):
        raise InternalError(f"{len(data)} bytes do not fit a receive pool that is empty")


def _records(paths: Iterable[Path], network: bytes, asked: tuple[int, ...] | None) -> Iterator[FeedRecord]:
    for path in paths:
        with open_segment(path, network=network) as segment:
            yield from records_of(segment) if asked is None else _asked_of(segment, asked)


def _asked_of(segment: SegmentFile, asked: tuple[int, ...]) -> Iterator[FeedRecord]:
    """What of it is asked for."""
    catalogue, _ = segment.read_catalogue()
    selection = PartitionSelection(asked, catalogue.definitions)
    if segment.header.adopted:
        large = large_transaction(segment)
        if not selection.takes_whole(large.commit_frame, large.partitions):
            for item in selection.large(large.commit_frame, large.parts(), secrets.randbits(64)):
                if isinstance(item, StreamParts):
                    for offset, head in walk(item.frames):
                        part = item.frames[offset : offset + head.frame_bytes]
                        yield RecordKind.PARTS, item.seqno, item.seqno, 1, part
                elif isinstance(item, StreamLarge):
                    yield RecordKind.LARGE, item.seqno, item.seqno, 1, item.frame
                else:
                    yield RecordKind.FRAMES, item.first_seqno, item.last_seqno, item.count, item.data
            return
    for kind, first, last, count, data in records_of(segment):
        frames = selection.take(FrameBatch(first, last, count, data)).data if kind is RecordKind.FRAMES else data
        yield kind, first, last, count, frames
