"""A seed that is arriving at a secondary: INSTANCE/seed/incoming.*, and how the command and the daemon find each other.

    incoming.request    our name for the wish, the source that it was put to, and regions or partitions (/N) if of some
    incoming.part       what has come of the file; good up to its last whole record, whatever stands after that
    incoming.seed       the whole file, synced, not installed yet

Guarantees: what `look` says is here has been verified from the disk; the part grows only at its end; the whole file
appears under its name when it is synced. Written by the Receiver Server, or by the seed command while it holds the seed
lock and the Receiver Server has nothing to do with it.
Leaves to others: connections, and what is in the file.
"""

from __future__ import annotations

import os
import uuid
from contextlib import suppress
from pathlib import Path
from typing import Final

from msgspec import Struct

from replicate.errors import DamagedError, DiskFullError, NotFoundError
from replicate.limits import MIB
from replicate.system.failpoint import hit
from replicate.system.files import replace_file, sync_directory
from replicate.system.os_errors import io_error
from replicate.transfer.container import NO_ID, SeedHeader
from replicate.transfer.seed.file import good_bytes_of, read_header, require_free
from replicate.wire.message import SeedRequest, SeedRequestPartitions, SeedRequestRegions, SeedStart

DIRECTORY: Final = "seed"
SOCKET_NAME: Final = "receiver.socket"
COMMAND_FORMAT: Final = 1
"""Of what is said through the socket."""
REGIONS_FORMAT: Final = 2
"""The same of a wish for some regions."""
PARTITIONS_FORMAT: Final = 3
"""The same of a wish for some partitions."""
SYNC_BYTES: Final = 16 * MIB
"""The part is brought to the disk at least this often: what a power loss costs."""


def seed_directory(instance_path: Path) -> Path:
    """INSTANCE/seed, made if it is missing."""
    directory = instance_path / DIRECTORY
    try:
        directory.mkdir(mode=0o700, exist_ok=True)
    except OSError as error:
        raise io_error(error, "the directory for seeds could not be made", str(directory)) from error
    return directory


class Incoming(Struct, frozen=True):
    """The files in `directory`."""

    directory: Path

    @property
    def part(self) -> Path:
        return self.directory / "incoming.part"

    @property
    def whole(self) -> Path:
        return self.directory / "incoming.seed"

    @property
    def request(self) -> Path:
        return self.directory / "incoming.request"

    def look(self, source: bytes, regions: tuple[str, ...] = (), partitions: tuple[int, ...] = ()) -> SeedRequest:
        """What to ask the instance `source` (its UUID) for, of these regions or partitions, or of all. Reads the part
        through: its good bytes end at `offset`. A part of which nothing is good is removed.

        Raises JournalIOError, PermissionRefusedError.
        """
        some = (*regions, *(f"/{number}" for number in partitions))
        request = self._request_to(source, some)
        if request is None:
            self.discard()
            request = uuid.uuid4().bytes
            words = [request.hex(), source.hex(), *some]
            replace_file(self.request, (" ".join(words) + "\n").encode())
        offset = good_bytes_of(self.part)
        seed = NO_ID
        if offset:
            header = read_header(self.part)
            if header.request == request and header.primary == source:
                seed = header.seed
            else:
                offset = 0
        if not offset:
            self.part.unlink(missing_ok=True)
        if partitions:
            return SeedRequestPartitions(request, seed, offset, partitions)
        return SeedRequestRegions(request, seed, offset, regions) if regions else SeedRequest(request, seed, offset)

    def _request_to(self, source: bytes, some: tuple[str, ...]) -> bytes | None:
        try:
            request_hex, known_hex, *names = self.request.read_text().split()
            request, known = bytes.fromhex(request_hex), bytes.fromhex(known_hex)
        except (OSError, ValueError):
            return None
        return request if (known, tuple(names)) == (source, some) and len(request) == 16 else None

    def complete(self, regions: tuple[str, ...] = ()) -> SeedHeader | None:
        """Of the whole file, if there is one, of these regions or of all; what is there and makes no sense is
        removed."""
        try:
            header = read_header(self.whole)
            wanted = header.is_part == bool(regions) and (
                not regions or sorted(one.name for one in header.regions) == sorted(regions)
            )
            return header if wanted else None
        except NotFoundError:
            return None
        except DamagedError:
            self.discard()
            return None

    def complete_of(self, partitions: tuple[int, ...]) -> SeedHeader | None:
        """The same, of a file with the rows of these partitions alone."""
        try:
            header = read_header(self.whole)
        except NotFoundError:
            return None
        except DamagedError:
            self.discard()
            return None
        return header if header.is_part and header.partitions == partitions else None

    def discard(self) -> None:
        """Remove all of it."""
        for path in (self.whole, self.part, self.request):
            path.unlink(missing_ok=True)


class IncomingFile:
    """The part, open for writing. Not for several threads at once."""

    def __init__(self, incoming: Incoming, start: SeedStart) -> None:
        """Goes on at `start.offset`. Raises DiskFullError (before anything is written), JournalIOError."""
        self._incoming = incoming
        self._unsynced_bytes = 0
        require_free(incoming.directory, start.file_bytes - start.offset, "the rest of the seed")
        try:
            flags = os.O_WRONLY | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC
            self._fd = os.open(incoming.part, flags, 0o600)
            os.ftruncate(self._fd, start.offset)
        except OSError as error:
            raise io_error(error, "the seed could not be written", str(incoming.part)) from error

    def close(self) -> None:
        """What was written stays. May be called twice."""
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1

    def write(self, offset: int, data: bytes) -> int:
        """Put the bytes at `offset`; the offset after them. DiskFullError removes the part: others need the disk."""
        view = memoryview(data)
        try:
            hit("seed.incoming")
            while view:
                count = os.pwrite(self._fd, view, offset)
                view, offset = view[count:], offset + count
            self._unsynced_bytes += len(data)
            if self._unsynced_bytes >= SYNC_BYTES:
                os.fdatasync(self._fd)
                self._unsynced_bytes = 0
        except OSError as error:
            raised = io_error(error, "the seed could not be written", str(self._incoming.part))
            if isinstance(raised, DiskFullError):
                with suppress(OSError):
                    self._incoming.part.unlink()
            raise raised from error
        return offset

    def finish(self) -> None:
        """Sync it, and give it its name."""
        try:
            os.fsync(self._fd)
            self.close()
            os.rename(self._incoming.part, self._incoming.whole)
        except OSError as error:
            raise io_error(error, "the seed could not be finished", str(self._incoming.part)) from error
        sync_directory(os.fspath(self._incoming.directory))
