"""Fuzzing targets of the journal: frames, batches, headers, segments, spools, seed files, and the values within them.

Guarantees: a target is a function of its bytes alone; files are made in a directory of this process and used again.
The first byte chooses what is done, and whether checks and chain hashes are made right again.
Leaves to others: who calls it; what may be raised (oracle.py).
"""

from __future__ import annotations

import atexit
import functools
import os
from contextlib import closing
from pathlib import Path
from typing import Any

import msgpack

from replicate.audit.verify import verify_chain
from replicate.errors import ReplicateError
from replicate.journal.chain import Chain
from replicate.journal.durable import DurableSidecar
from replicate.journal.header import SegmentHeader
from replicate.journal.reader import ChainReader, LargeTransaction, large_transaction
from replicate.journal.record import (
    PART_OVERHEAD_BYTES,
    check_frame,
    decode,
    decode_batch,
    read_head,
    read_part,
    renumbered,
    trim,
)
from replicate.journal.segment import open_segment, segment_name
from replicate.journal.spool_format import part_offset, read_part_frame
from replicate.journal.walk import measure, walk
from replicate.limits import BATCH_BYTES_MAX, SEGMENT_HEADER_BYTES
from replicate.model.transaction import (
    Catalogue,
    History,
    TableDefinition,
    changed_of,
    decode_change,
    unpack_partitions,
)
from replicate.model.vector import Position, SynchronizationVector, pack_chains, unpack_chains
from replicate.pool.shared_memory import DIRECTORY_VARIABLE
from replicate.wire.frame_sequence import check_large, check_parts, check_sequence
from tests.fuzz import repair
from tests.fuzz.own_directory import OwnDirectory, base
from tests.harness.changed_frames import batch_of
from update_process.plan import advance, open_window


@functools.cache
def directory(name: str) -> Path:
    """An empty directory of this process, in memory where that can be; gone at its end."""
    made = OwnDirectory(base(DIRECTORY_VARIABLE))
    atexit.register(made.close)
    path = made.path / name
    path.mkdir()
    return path


def _repaired(data: bytes, offset: int = 0) -> bytes:
    """All but the first byte; bit 0 leaves the checks wrong, bit 1 leaves the chain hashes wrong."""
    mode, rest = data[0], data[1:]
    return rest if mode & 1 else repair.journal_frames(rest, offset, chains=not mode & 2)


def journal_record(data: bytes) -> None:
    """One frame. What decodes for people decodes for the applier too, and has the same number elsewhere."""
    if not data:
        return
    frame = data[1:] if data[0] & 1 else repair.one_frame(data[1:])
    head = check_frame(frame)
    moved = renumbered(frame, 77, 3)
    assert (read_head(moved).seqno, read_head(moved).origin_seqno) == (77, head.origin_seqno)
    transaction = decode(frame)
    if len(frame) <= BATCH_BYTES_MAX:
        assert decode_batch(frame)[2][1] == transaction.seqno
    if head.kind == 4:
        read_part(frame)
    if head.kind == 9:
        left = trim(frame, {0, 1}.__contains__)
        assert len(left) <= max(len(frame), 66)
        decode(left)


def journal_batch(data: bytes) -> None:
    """A batch, as it is taken from the files, from the wire, and by the Update Process."""
    if not data:
        return
    frames = _repaired(data)
    for check in (_sequence, _parts, _large):
        _either(check, frames)
    found = measure(frames, verify=True)
    assert found.end <= len(frames)
    batch = batch_of(frames, verify=True)
    assert batch.count == len(list(walk(frames)))
    decoded = decode_batch(frames)
    points: dict[int, tuple[int, int]] = {}
    window = open_window(frames, decoded, batch.first_seqno, points)
    cut = window.cut(transactions_max=3, bytes_max=1000)
    assert cut.stop > cut.start
    advance(Position(), window.bodies[cut.start : cut.stop], lambda table: table & 1 or None)
    for offset, head in walk(frames):
        decode(frames[offset : offset + head.frame_bytes])


def _sequence(frames: bytes) -> None:
    head = read_head(frames)
    assert 0 <= check_sequence(frames, head.seqno, 2, head.seqno + 1) <= len(frames)


def _parts(frames: bytes) -> None:
    check_parts(frames, read_head(frames).csn, 0, 2, 1)


def _large(frames: bytes) -> None:
    check_large(frames, read_head(frames).seqno, 0xABC002, 2)


def _either(check: Any, frames: bytes) -> None:
    try:
        check(frames)
    except ReplicateError:
        pass


def journal_header(data: bytes) -> None:
    """What unpacks packs to the same bytes, and can be asked everything."""
    if not data:
        return
    raw = data[1:] if data[0] & 1 else repair.header(data[1:].ljust(SEGMENT_HEADER_BYTES, b"\0"), SEGMENT_HEADER_BYTES)
    found = SegmentHeader.unpack(raw[:SEGMENT_HEADER_BYTES], where="here")
    again = SegmentHeader.unpack(found.pack())
    assert again == found
    assert again.link_fault(found) is None or again.link_fault(found)
    assert isinstance(found.check, int)
    assert found.origin.key > 0
    found.validate(network=bytes(range(16)), instance=None)


def journal_segment(data: bytes) -> None:
    """A journal of one segment: scanned, verified, read by a reader, its large transaction too."""
    if len(data) < SEGMENT_HEADER_BYTES:
        return
    mode, raw = data[0], data[1:]
    if not mode & 1:
        raw = repair.header(raw, SEGMENT_HEADER_BYTES)
        raw = repair.journal_frames(raw, SEGMENT_HEADER_BYTES, chains=False)
    header = SegmentHeader.unpack(raw[:SEGMENT_HEADER_BYTES])
    if not mode & 1:
        # After the catalogue (or before it, with parts) everything may have to follow.
        raw = repair.journal_frames(raw, min(header.catalogue_offset, len(raw)), chains=not mode & 2)
        raw = repair.journal_frames(raw, min(header.commit_offset, len(raw)) or SEGMENT_HEADER_BYTES)
    home = directory("segment")
    for old in home.iterdir():
        old.unlink()
    path = home / segment_name(header.first_seqno)
    path.write_bytes(raw)
    chain = Chain(home, network=header.network, instance=header.instance)
    for finding in verify_chain(chain).findings:
        assert finding.what
    _either(lambda _: _read(chain, header.first_seqno), b"")
    with open_segment(path) as segment:
        if segment.header.adopted:
            large_transaction(segment)
            segment.scan_adopted()
        else:
            segment.scan()


def _read(chain: Chain, first_seqno: int) -> None:
    with closing(ChainReader(chain, max(1, first_seqno))) as reader:
        while (found := reader.read(2000, first_seqno + 20)) is not None:
            if isinstance(found, LargeTransaction):
                list(found.parts(0))


def journal_spool(data: bytes) -> None:
    """A spool whose bytes may be anything: its first part is read on its own."""
    if not data:
        return
    path = directory("spool") / "0000000000000001.spool"
    path.write_bytes(bytes(SEGMENT_HEADER_BYTES) + _repaired(data))
    fd = os.open(path, os.O_RDONLY)
    try:
        head = read_head(path.read_bytes()[part_offset(0) :])
        read_part_frame(fd, str(path), 0, max(0, head.frame_bytes - PART_OVERHEAD_BYTES))
    finally:
        os.close(fd)


def journal_durable(data: bytes) -> None:
    """The durable mark beside the journal, whatever stands in it."""
    if not data:
        return
    path = directory("durable") / "durable"
    raw = data[1:]
    if not data[0] & 1:
        raw = repair.header(raw, 32)
        raw = raw[:512] + repair.header(raw[512:], 32)
    path.write_bytes(raw)
    with closing(DurableSidecar(path)) as sidecar:
        known = sidecar.read()
        sidecar.is_of_this_boot()
        if known < 2**64 - 1:
            sidecar.write(known + 1)
            assert sidecar.read() >= known


def values(data: bytes) -> None:
    """Vectors, chains, definitions, histories, catalogues, changes: from any msgpack; what unpacks packs."""
    if not data:
        return
    try:
        packed = msgpack.unpackb(data[1:], raw=False, max_map_len=0, strict_map_key=False)
    except Exception:  # msgpack's own zoo; each caller in the product has its own way with it
        return
    match data[0] % 8:
        case 0:
            assert SynchronizationVector.unpack(packed).pack() == list(packed)
        case 1:
            assert pack_chains(unpack_chains(packed)) == list(packed)
        case 2:
            definition = TableDefinition.unpack(packed)
            assert TableDefinition.unpack(definition.pack()) == definition
            assert definition.table_id
        case 3:
            history = History.unpack(packed, 5)
            assert History.unpack(history.pack(), 5) == history
            assert history.origin.key
        case 4:
            catalogue = Catalogue.unpack(packed)
            assert Catalogue.unpack(catalogue.pack()) == catalogue
            catalogue.newest()
        case 5:
            if isinstance(packed, list) and len(packed) == 4:
                decode_change(*packed)
        case 6:
            changed_of(packed, 40)
        case _:
            unpack_partitions(packed)
