"""Takes packets apart, and holds what they bring until it is applied.

Guarantees: what comes out of it has verified, every byte of it; a large transaction that goes on in several packets of
one sender is put together. While packets are applied no daemon of the instance applies anything, and no seed or replay
is under way.
Leaves to others: in which order packets come, and how they are applied.
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Final

from msgspec import Struct, field

from replicate.daemon.files import DaemonFiles
from replicate.daemon.standing_aside import asked_aside
from replicate.errors import DamagedError, ReplicateError
from replicate.instance.instance import Instance
from replicate.journal.segment import segment_name
from replicate.limits import MIB
from replicate.roles.daemons_down import wait_until_down
from replicate.system.files import write_all
from replicate.system.os_errors import io_error
from replicate.transfer.packet.format import SegmentPart
from replicate.transfer.packet.judge_packets import Offered
from replicate.transfer.packet.read import PacketReader
from replicate.transfer.packet.sealed import Unseal
from replicate.transfer.seed.file import require_free
from replicate.transfer.seed.install import seed_lock
from update_process.replay.apply import Progress, Told
from update_process.replay.command import DAEMONS, stage_of, stopped_daemons
from update_process.replay.run import Summary as Replayed

LOOK_EVERY_BYTES: Final = 64 * MIB
"""So often it is looked whether the disk still has room."""


class Imported(Struct):
    """What an import has done. `applied`: packets that are applied whole; `in_part`: up to
    the large transaction that goes on in another one; `known`: those that brought nothing new;
    `waiting`: those that need others first; `heard`: replicas that have said how far they are. On a supplier
    `transactions`: those that were applied, and `merged`: those of them in which rows were merged."""

    seqno: int = 0
    applied: tuple[str, ...] = ()
    in_part: tuple[str, ...] = ()
    known: int = 0
    waiting: tuple[str, ...] = ()
    heard: tuple[str, ...] = ()
    for_others: int = 0
    removed: int = 0
    dry_run: bool = False
    replayed: Replayed | None = None
    transactions: int = 0
    merged: int = 0
    errors: list[ReplicateError] = field(default_factory=list)
    """What the command ends with: packets that were refused, words that do not fit, a gap."""


@contextmanager
def unpacking_room(instance: Instance) -> Iterator[Path]:
    """An empty directory, and nobody beside us who applies anything. AlreadyRunningError, BusyError, JournalIOError,
    DiskFullError."""
    with (
        seed_lock(instance),
        _aside(instance),
        stopped_daemons(instance, "packet import"),
        stage_of(instance) as stage,
    ):
        yield stage


@contextmanager
def _aside(instance: Instance) -> Iterator[None]:
    """The daemons that apply stand aside meanwhile, if they run: a line goes on afterwards where the packets ended."""
    deadline_s = time.monotonic() + instance.config.daemon.stop_timeout_s
    with ExitStack() as stack:
        for name, _ in DAEMONS:
            stack.enter_context(asked_aside(instance.path, max(0.0, deadline_s - time.monotonic()), daemon=name))
        for name, _ in DAEMONS:
            wait_until_down(DaemonFiles(instance.path, name).lock, deadline_s)
        yield


def unpack(unseal: Unseal | None, packets: Sequence[Offered], stage: Path, told: Told) -> list[tuple[Path, int]]:
    """The segments of these packets, each in a directory of its own below the stage, and with which transaction it
    ends; all of them have verified. What is here of a large transaction only in part is left out: it is waited for, or
    another packet has it whole. DamagedError, DiskFullError, JournalIOError."""
    unpacked: dict[Path, _Unpacked] = {}
    whole, done, room = sum(one.size for one in packets), 0, 0
    for number, one in enumerate(packets):
        with PacketReader(one.path, unseal) as reader:
            if reader.summary != one.summary:  # which was judged, and has the digest of all that follows
                raise DamagedError("this packet was replaced meanwhile", where=str(one.path), do="Import it again")
            open_: _Unpacked | None = None
            for part, pieces in reader.segments():
                if open_ is not None:
                    open_.last_seqno = part.first_seqno - 1
                # What goes on in the next packet is the sender's own segment: its bytes come together again.
                name = f"large-{one.summary.sender.hex()}" if part.size else f"{number}"
                directory = stage / f"{name}-{part.first_seqno}"
                here = unpacked.get(directory) or unpacked.setdefault(directory, _Unpacked(directory, part))
                for piece in pieces:
                    if room <= 0:
                        require_free(stage, LOOK_EVERY_BYTES, "unpacking packets")
                        room = LOOK_EVERY_BYTES
                    here.add(part.offset, piece)
                    room -= len(piece)
                open_ = None if part.size else here
            if open_ is not None:
                open_.last_seqno = one.summary.last_seqno
        done += one.size
        told(Progress("unpacking", done, whole))
    return [(directory, one.last_seqno) for directory, one in unpacked.items() if one.is_whole]


class _Unpacked:
    """A segment in the making, in the directory (made)."""

    def __init__(self, directory: Path, part: SegmentPart) -> None:
        self.path = directory / segment_name(part.first_seqno)
        self.last_seqno = part.first_seqno
        """The last transaction in it."""
        self._size = part.size
        self._reached = 0
        """All bytes before this offset are there."""
        self._written = (-1, 0)
        try:
            directory.mkdir(mode=0o700)
        except OSError as error:
            raise io_error(error, "a packet could not be unpacked", str(directory)) from error

    @property
    def is_whole(self) -> bool:
        return self._reached == self._size or not self._size

    def add(self, offset: int, piece: bytes) -> None:
        """The next bytes of a part that begins at `offset`. DiskFullError, JournalIOError."""
        begins, count = self._written
        at = offset + count if begins == offset else offset
        try:
            fd = os.open(self.path, os.O_WRONLY | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
            try:
                write_all(fd, piece, at)
            finally:
                os.close(fd)
        except OSError as error:
            raise io_error(error, "a packet could not be unpacked", str(self.path)) from error
        self._written = (offset, at - offset + len(piece))
        if at <= self._reached:
            self._reached = max(self._reached, at + len(piece))
