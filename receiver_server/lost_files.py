"""The receiver's side of lost files that travel to the primary of now: offered beside the stream, one after another.

Guarantees: nothing is offered before the stream runs, nor to a source that is no primary or is of an older release; one
chunk is on its way at a time; a file is called sent once the source has it durably. What fails is logged, hurts no
stream, and is tried again with the next connection.
Leaves to others: which files those are (replicate/lost/travel.py), the protocol (link.py).
"""

from __future__ import annotations

import os

import trio

from receiver_server.source_state import ServedConnection, SourceState
from replicate.errors import ReplicateError
from replicate.lost.sent_mark import note_sent
from replicate.lost.travel import Traveller, to_send
from replicate.system.os_errors import io_error
from replicate.wire.message import CHUNK_BYTES, LostOffer


class LostSending:
    """Of one connection. `run` it once, when the stream runs."""

    def __init__(self, source: SourceState, connection: ServedConnection) -> None:
        self._source = source
        self._connection = connection
        self._give, self._take = trio.open_memory_channel[int](1)

    async def run(self) -> None:
        """Until all that is here is there."""
        if not self._connection.link.can_offer_lost:
            return
        log = self._source.log
        try:
            for file in await trio.to_thread.run_sync(lambda: list(to_send(self._source.instance))):
                if not self._connection.link.can_offer_lost:
                    return
                await self._send(file)
                await trio.to_thread.run_sync(note_sent, file.path, self._connection.peer_name)
                log.info("lost file sent", file=str(file.path), to=self._connection.peer_name)
        except ReplicateError as error:
            log.warning("lost file not sent", error=str(error), code=error.code)
        except OSError as error:
            log.warning("lost file not sent", error=str(error))

    async def _send(self, file: Traveller) -> None:
        link, drive = self._connection.link, self._connection.drive
        link.offer_lost(LostOffer(file.check, file.file_bytes, file.first_seqno, file.last_seqno))
        drive.poke()
        try:
            fd = os.open(file.path, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW)
            try:
                while (offset := await self._take.receive()) < file.file_bytes:
                    size = min(CHUNK_BYTES, file.file_bytes - offset)
                    data = await trio.to_thread.run_sync(os.pread, fd, size, offset)
                    link.send_lost(data)
                    drive.poke()
            finally:
                os.close(fd)
        except OSError as error:
            raise io_error(error, "the lost file cannot be read", str(file.path)) from error

    def acknowledged(self, offset: int) -> None:
        """The source has the file up to there."""
        self._give.send_nowait(offset)  # one chunk, one word: there is room
