"""Fuzzing targets of the two pools: control words and rings that hold anything at all.

    MODE(u8) COUNT(u8) and COUNT times INDEX(u16) VALUE(u64), big-endian: control words; what is left stands in the ring

Guarantees: a target is a function of its bytes alone: the pool is small, and is made whole again before each use.
Leaves to others: who calls it; what may be raised (oracle.py).
"""

from __future__ import annotations

import functools
import os
from collections.abc import Iterator
from contextlib import closing, contextmanager

from replicate.errors import ReplicateError
from replicate.limits import KIB
from replicate.pool.control import CONTROL_BYTES, CONTROL_WORDS
from replicate.pool.journal_pool import InFiles, JournalPool, PoolReader
from replicate.pool.receive_pool import ReceivePool
from replicate.pool.ring import RecordKind
from replicate.pool.shared_memory import DIRECTORY_VARIABLE, PoolKind, SharedMemory
from tests.fuzz import repair
from tests.fuzz.targets_journal import directory
from tests.harness.pools import frame

_INSTANCE = bytes(range(16))
_BYTES = CONTROL_BYTES + 16 * KIB
_HEADER_BYTES = 64
_LOOKS = 200


@functools.cache
def _memory(kind: PoolKind) -> tuple[SharedMemory, bytes]:
    """A pool of 16 KiB, and its header's bytes as they should be."""
    made = SharedMemory.create(kind, _INSTANCE, configured_bytes=_BYTES, minimum_bytes=_BYTES)
    made.mark_ready()
    return made, bytes(made.view[:_HEADER_BYTES])


def _filled(kind: PoolKind, data: bytes, *, first_word: int = 8) -> SharedMemory:
    """The pool with what the bytes say in it; words below `first_word` are left alone."""
    memory, header = _memory(kind)
    memory.view[:] = bytes(memory.bytes)
    memory.view[:_HEADER_BYTES] = header
    count = data[1]
    for place in range(2, min(2 + 10 * count, len(data) - 9), 10):
        index = int.from_bytes(data[place : place + 2], "big") % CONTROL_WORDS
        if index >= first_word:
            memory.words[index] = int.from_bytes(data[place + 2 : place + 10], "big")
    ring = data[2 + 10 * count :][: memory.bytes - CONTROL_BYTES]
    if not data[0] & 1:
        ring = repair.pool_records(ring)
    memory.view[CONTROL_BYTES : CONTROL_BYTES + len(ring)] = ring
    return memory


@contextmanager
def _in_our_directory() -> Iterator[None]:
    """Pools are made, and found, in a directory of ours; anybody who runs the targets keeps his own."""
    home, before = str(directory("shm")), os.environ.get(DIRECTORY_VARIABLE)
    os.environ[DIRECTORY_VARIABLE] = home
    try:
        yield
    finally:
        if before is None:
            del os.environ[DIRECTORY_VARIABLE]
        else:
            os.environ[DIRECTORY_VARIABLE] = before


@_in_our_directory()
def pool_header(data: bytes) -> None:
    """Attaching to a pool whose header may say anything."""
    if len(data) < 2:
        return
    kind = PoolKind.JOURNAL if data[0] & 2 else PoolKind.RECEIVE
    memory = _filled(kind, data, first_word=0)
    try:
        SharedMemory.attach(kind, _INSTANCE, building=bool(data[0] & 4)).close()
    finally:
        memory.view[:_HEADER_BYTES] = _memory(kind)[1]


@_in_our_directory()
def pool_journal(data: bytes) -> None:
    """A reader polls, then the next publisher repairs and publishes, then the reader polls again."""
    if len(data) < 2:
        return
    _filled(PoolKind.JOURNAL, data)
    with closing(JournalPool.attach(_INSTANCE)) as pool:
        with closing(PoolReader(pool, 1)) as reader:
            _quietly(reader)
            pool.repair()
            pool.publish(frame(1), 1, 1, 1)
            _quietly(reader)


def _quietly(reader: PoolReader) -> None:
    """What is noticed here must not keep the publisher from its own look."""
    try:
        reader.resume(0, 1)
        for _ in range(_LOOKS):
            found = reader.poll(2000)
            if found is None:
                return
            if isinstance(found, InFiles):
                assert found.first_seqno <= found.last_seqno
                reader.advance(found.last_seqno + 1)
    except ReplicateError:
        pass


@_in_our_directory()
def pool_receive(data: bytes) -> None:
    """A consumer reads all lanes; a new producer takes it over, counts, and offers more."""
    if len(data) < 2:
        return
    _filled(PoolKind.RECEIVE, data)
    with closing(ReceivePool.attach(_INSTANCE)) as pool:
        for lane in pool.lanes:
            try:
                last = None
                for record in lane.peek():
                    last = record
                if last is not None:
                    lane.free(last.next_address)
            except ReplicateError:
                pass
        assert pool.fullest >= 0.0
        pool.update_alive_since_s(1)
        pool.restart_done(pool.request_restart())
    with closing(ReceivePool.open_producer(_INSTANCE)) as pool:
        pool.offer(frame(1), 1, 1, 1, RecordKind.FRAMES)
        pool.restart_requested()
