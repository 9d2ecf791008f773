"""A lost file on its way: from the instance that went back to the primary of now, beside whose directory it waits.

    here    INSTANCE-lost-FIRST-LAST.jsonl             and, once it is there, its .sent (sent_mark.py)
    there   .INSTANCE-lost-HASH.incoming               while it comes
            INSTANCE-lost-NAME-FIRST-LAST.jsonl        whole: `lost list|show|apply` take it, status has a finding

Guarantees: a file is only sent while nothing in it is settled, and only by the instance whose transactions it holds;
what has come survives a kill on either side, and the rest follows; under its name it is whole, verified and durable,
once; it is called sent only after that. A file that comes where it is already counts as not sent there.
Leaves to others: connections (receiver_server/lost_files.py, source_server/lost_files.py).
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Final

from msgspec import Struct
from xxhash import xxh3_64

from replicate.errors import DamagedError, DiskFullError, ReplicateError
from replicate.instance.instance import Instance
from replicate.limits import MIB
from replicate.lost.file import SUFFIX, place
from replicate.lost.peers_lack import identity
from replicate.lost.read import LostReader
from replicate.lost.sent_mark import forget_sent, sent_to
from replicate.lost.settled import SUFFIX as SETTLED_SUFFIX
from replicate.system.failpoint import hit
from replicate.system.files import sync_directory, write_all
from replicate.system.os_errors import io_error

INCOMING_SUFFIX: Final = ".incoming"
_ROOM_BYTES: Final = 64 * MIB
"""So much stays free beside a file that comes: the journal needs the disk more."""
_BLOCK_BYTES: Final = MIB


class Traveller(Struct, frozen=True):
    """A lost file that can be sent. `last_seqno` 0: nobody knows how far it goes."""

    path: Path
    check: int
    file_bytes: int
    first_seqno: int
    last_seqno: int


def to_send(instance: Instance) -> Iterator[Traveller]:
    """Those of the instance that nobody has settled and that are not there yet. One that cannot be read is passed
    over: status says what is wrong with it. OSError."""
    prefix, own = f"{instance.path.name}-lost-", identity(instance.content.uuid)
    for path in sorted(instance.path.parent.iterdir()):
        if not path.name.startswith(prefix) or not path.name.endswith(SUFFIX) or sent_to(path):
            continue
        if path.with_name(path.name + SETTLED_SUFFIX).exists():
            continue
        with suppress(ReplicateError), LostReader(path) as lost:
            if lost.head.get("uuid") == own:
                last = lost.head["to"] or 0
                yield Traveller(path, check_of(path), path.stat().st_size, int(lost.head["from"]), int(last))


def check_of(path: Path) -> int:
    """The hash of all of a file. OSError."""
    digest = xxh3_64()
    with open(path, "rb") as file:
        while block := file.read(_BLOCK_BYTES):
            digest.update(block)
    return digest.intdigest()


class IncomingLost:
    """One file that is offered by `peer`. `offset`: how much of it is here."""

    def __init__(
        self, instance: Instance, peer: str, check: int, file_bytes: int, first_seqno: int, last_seqno: int
    ) -> None:
        """Looks at what is here: all of it, a part, or nothing. Raises DiskFullError where it has no room, and what
        files raise."""
        self._base, self._check, self.file_bytes = instance.path, check, file_bytes
        self._where = str(instance.path.parent)
        to = f"-{last_seqno}" if last_seqno else ""
        self.path = instance.path.with_name(f"{instance.path.name}-lost-{peer}-{first_seqno}{to}{SUFFIX}")
        self._aside = instance.path.with_name(f".{instance.path.name}-lost-{check:016x}{INCOMING_SUFFIX}")
        try:
            self.offset = self._look()
        except OSError as error:
            raise io_error(error, "a lost file cannot be taken", self._where) from error

    @property
    def is_whole(self) -> bool:
        """It is here, under its name."""
        return self.offset == self.file_bytes

    def _look(self) -> int:
        prefix = f"{self._base.name}-lost-"
        for path in sorted(self._base.parent.iterdir()):
            is_like_it = path.name.startswith(prefix) and path.name.endswith(SUFFIX)
            if is_like_it and path.stat().st_size == self.file_bytes and check_of(path) == self._check:
                self.path = path
                forget_sent(path)  # it comes back
                self._aside.unlink(missing_ok=True)
                return self.file_bytes
        try:
            here = self._aside.stat().st_size
        except FileNotFoundError:
            here = 0
        if here >= self.file_bytes:  # all of it, and not under its name: it was killed there, or did not verify
            self._aside.unlink()
            here = 0
        free = shutil.disk_usage(self._where).free
        if self.file_bytes - here + _ROOM_BYTES > free:
            raise DiskFullError(
                f"a lost file of {self.file_bytes} bytes is offered, and {free} are free",
                where=self._where,
                do="Free space; it is offered again with the next connection",
            )
        return here

    def write(self, data: bytes) -> int:
        """The next bytes; how much is here then. After the last ones it is whole, verified and durable. Raises
        DamagedError (it is not what was offered, or no lost file: nothing is left of it) and what files raise."""
        try:
            fd = os.open(self._aside, os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
            try:
                write_all(fd, data, self.offset)
                if self.offset + len(data) == self.file_bytes:
                    os.fsync(fd)
            finally:
                os.close(fd)
            if self.offset + len(data) == self.file_bytes:
                self._finish()
        except OSError as error:
            raise io_error(error, "a lost file cannot be taken", self._where) from error
        self.offset += len(data)
        return self.offset

    def _finish(self) -> None:
        try:
            if check_of(self._aside) != self._check:
                raise DamagedError("the lost file that came is not the one that was offered", where=str(self._aside))
            LostReader(self._aside).close()
        except ReplicateError:
            self._aside.unlink(missing_ok=True)
            raise
        self.path = place(self._aside, self.path)
        hit("lost.placed")
        sync_directory(self._where)
        self._aside.unlink(missing_ok=True)
