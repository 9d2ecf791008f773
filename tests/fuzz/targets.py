"""The table of all fuzzing targets, by the name of their corpus directory.

Guarantees: one entry for each decoder of bytes that come from elsewhere: a peer, a disk, shared memory, an editor.
Leaves to others: what they do.
"""

from __future__ import annotations

from typing import Final

from tests.fuzz import targets_files, targets_journal, targets_pools, targets_wire
from tests.fuzz.oracle import Target

_ALL: Final[tuple[Target, ...]] = (
    targets_wire.wire_frame,
    targets_wire.wire_message,
    targets_wire.wire_introduction,
    targets_wire.proof,
    targets_wire.compression,
    targets_wire.wire_receiver,
    targets_wire.wire_source,
    targets_journal.journal_record,
    targets_journal.journal_batch,
    targets_journal.journal_header,
    targets_journal.journal_segment,
    targets_journal.journal_spool,
    targets_journal.journal_durable,
    targets_journal.values,
    targets_files.instance_file,
    targets_files.config,
    targets_files.consumer,
    targets_files.daemon_status,
    targets_files.daemon_word,
    targets_files.conflict,
    targets_files.digest,
    targets_files.seed_answer,
    targets_files.seed_request,
    targets_files.consumer_hold,
    targets_files.region_page,
    targets_files.metrics_request,
    targets_files.archive_manifest,
    targets_files.seed_file,
    targets_files.packet_file,
    targets_files.sealed_packet,
    targets_files.epochs_file,
    targets_pools.pool_header,
    targets_pools.pool_journal,
    targets_pools.pool_receive,
)

TARGETS: Final[dict[str, Target]] = {target.__name__: target for target in _ALL}
