"""The source's side of lost files: what a secondary offers that went back is written beside this primary's directory.

Guarantees: the stream does not wait for it: the disk is used in a thread, one chunk at a time; the peer is told that
all is here once it is whole, verified and durable. What cannot be taken is logged, and not acknowledged: the peer
offers it again with its next connection.
Leaves to others: the file (replicate/lost/travel.py), the protocol (link.py).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import trio

from replicate.daemon.link_driver import Drive
from replicate.errors import ReplicateError
from replicate.wire.event import LostOffered, LostReceived
from replicate.wire.message import LostOffer
from source_server.consumer_state import ConsumerState
from source_server.link import SourceLink

if TYPE_CHECKING:
    from replicate.lost.travel import IncomingLost


class LostTaking:
    """Of one connection."""

    def __init__(self, consumer: ConsumerState, link: SourceLink, drive: Drive) -> None:
        self._consumer = consumer
        self._link = link
        self._drive = drive
        self._offer: LostOffer | None = None
        self._file: IncomingLost | None = None

    async def heard(self, event: LostOffered | LostReceived) -> None:
        """What the peer offers or sends: the link lets one follow the other only after our word."""
        log = self._consumer.log
        try:
            if isinstance(event, LostOffered):
                self._offer, self._file = event.offer, None
                self._file = await trio.to_thread.run_sync(self._look, event.offer)
                is_new = not self._file.is_whole
            elif self._file is None:
                return
            else:
                await trio.to_thread.run_sync(self._file.write, event.data)
                is_new = True
        except ReplicateError as error:
            self._file = None
            log.error("lost file not taken", error=str(error), code=error.code)
            return
        if self._offer is not event.offer or self._drive.closed is not None:
            return
        if self._file.is_whole and is_new:
            log.warning(
                "lost file received: its transactions wait",
                file=str(self._file.path),
                do=f"replicate -i {self._consumer.instance.named} lost apply {self._file.path}",
            )
        self._link.lost_taken(self._file.offset)
        self._drive.poke()

    def _look(self, offer: LostOffer) -> IncomingLost:
        from replicate.lost.travel import IncomingLost  # here: no start waits for what few connections need

        consumer = self._consumer
        return IncomingLost(
            consumer.instance, consumer.peer_name, offer.check, offer.file_bytes, offer.first_seqno, offer.last_seqno
        )
