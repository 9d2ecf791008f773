"""What the oracles are told of: the product's own calls, watched on their way.

Guarantees: what is watched does what it did; nobody is refused without a reason, and no damaged byte is taken.
Leaves to others: what must be true (the oracles).
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import replicate.door.door
import source_server.consumer_state
import source_server.link
import source_server.process
from replicate.daemon.link_driver import Drive
from replicate.journal.segment import SegmentFile
from replicate.wire.frame import FrameReader
from tests.simulation.oracle import ViolationError
from tests.simulation.replaced import replaced


@contextlib.contextmanager
def watched_links(world: Any) -> Iterator[None]:
    """Nobody is refused without a reason, and no damaged byte is taken."""
    server_class = source_server.process.SourceServer
    kept = SimpleNamespace(closed=server_class._closed, init=Drive.__init__, next_frame=FrameReader.next_frame)

    def closed(self: Any, event: Any, has_streamed: bool) -> None:
        error = event.error
        reason = str(error.facts.get("reason", error.code)) if error is not None else ""
        if event.reason.value in ("peer refused", "we refused", "refused") or "refused" in event.reason.value:
            world.figures[f"refused: {reason}"] += 1
            if reason not in world.refusals and not world.network.is_harmed(world.kernel.process):
                world.fail(ViolationError("I6 refused", f"{event.reason.value}: {reason}: {error}"))
        kept.closed(self, event, has_streamed)

    def init(self: Any, link: Any, stream: Any, *arguments: Any, **more: Any) -> None:
        kept.init(self, link, stream, *arguments, **more)
        link._reader.pipe = stream.inward

    def next_frame(self: Any) -> Any:
        frame = kept.next_frame(self)
        at = self.pipe.harmed_at
        if frame is not None and at is not None and self.received_bytes - len(self._buffer) > at:
            world.fail(ViolationError("I6 accepted", f"a message of type {frame.type} with damaged bytes"))
        return frame

    with replaced(
        (Drive, "__init__", init), (FrameReader, "next_frame", next_frame), (server_class, "_closed", closed)
    ):
        yield


@contextlib.contextmanager
def watched_frames(world: Any) -> Iterator[None]:
    """The oracle sees what each host appends to its journal, and what its sources send and hear."""
    oracle = world.oracle
    state_class, link_class = source_server.consumer_state.ConsumerState, source_server.link.SourceLink
    kept = SimpleNamespace(
        acknowledged=state_class.acknowledged, send_batch=link_class.send_batch, send_large=link_class.send_large,
        append=SegmentFile.append, adopt=replicate.door.door.adopt,
    )  # fmt: skip

    def here() -> str:
        return str(world.kernel.process.host.name)

    def acknowledged(self: Any, event: Any) -> None:
        oracle.on_reported(here(), self.peer_name, event.reply.last_durable_seqno)
        kept.acknowledged(self, event)

    def send_batch(self: Any, batch: Any) -> None:
        kept.send_batch(self, batch)
        oracle.on_sent(here(), batch.data)

    def send_large(self: Any, seqno: int, token: int, parts: int, frame: bytes) -> None:
        kept.send_large(self, seqno, token, parts, frame)
        oracle.on_sent(here(), frame)

    def append(self: Any, offset: int, data: Any) -> int:
        frames = data if isinstance(data, bytes) else b"".join(map(bytes, data))
        name, has_failed = here(), False
        try:
            return int(kept.append(self, offset, data))
        except Exception:
            has_failed = True
            raise
        finally:  # also where it was killed: some of it may be there
            if any(frames[:1]) and not has_failed:  # zeros: what stood there is taken out
                oracle.on_appended(name, frames)

    def adopt(spool: Any, header: Any, frame: bytes, catalogue: Any, **more: Any) -> str:
        oracle.on_appended(here(), frame)
        return str(kept.adopt(spool, header, frame, catalogue, **more))

    watching = replaced(
        (state_class, "acknowledged", acknowledged),
        (link_class, "send_batch", send_batch),
        (link_class, "send_large", send_large),
        (SegmentFile, "append", append),
        (replicate.door.door, "adopt", adopt),
    )
    with watched_links(world), watching:
        yield
