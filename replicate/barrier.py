"""A barrier: the Update Process applies nothing beyond a sequence number, until it is lifted or has expired.

Guarantees: one barrier at a time; it lifts itself when its holder dies (it expires, by the machine's monotonic clock);
nothing that was not yet received when it was set is applied beyond it. The Receiver Server goes on receiving.
Refuses to know: why anybody wants the instance to stand still.
"""

from __future__ import annotations

import time
from types import TracebackType

from replicate.door import Door
from replicate.errors import BusyError, InternalError
from replicate.pool import control as word

_NS: int = 1_000_000_000


class Barrier:
    """Set with `hold` or `raise_to`, lifted at the end of the `with` block."""

    def __init__(self, door: Door, *, timeout_s: float) -> None:
        """`timeout_s`: how long the barrier stands at most, from each call of `hold` or `raise_to` on."""
        self._door = door
        self._timeout_ns = int(timeout_s * _NS)
        self._expires_ns = 0

    def __enter__(self) -> Barrier:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.lift()

    def hold(self) -> int:
        """Stand still at what is applied now; returns that seqno. Raises BusyError while another barrier stands.

        The Update Process may still finish the batch that it has begun; nothing received later passes.
        """
        return self._set(None)

    def raise_to(self, seqno: int) -> None:
        """Go on up to `seqno` and stand still there. Raises BusyError while somebody else's barrier stands."""
        self._set(seqno)

    def lift(self) -> None:
        """Let everything pass. Nothing happens when the barrier is no longer ours."""
        words = self._door.words
        with self._door.locked():
            if self._expires_ns and words[word.BARRIER_EXPIRES_NS] == self._expires_ns:
                words[word.BARRIER_SEQNO] = 0
                words[word.BARRIER_EXPIRES_NS] = 0
        self._expires_ns = 0

    def _set(self, seqno: int | None) -> int:
        words = self._door.words
        with self._door.locked():
            now_ns = time.monotonic_ns()
            standing_ns = words[word.BARRIER_EXPIRES_NS]
            if words[word.BARRIER_SEQNO] and standing_ns > now_ns and standing_ns != self._expires_ns:
                raise BusyError(
                    f"another compare or digest holds this instance at transaction {words[word.BARRIER_SEQNO]}",
                    where=str(self._door.instance.path),
                    do=f"Wait for it to end; it expires by itself in {(standing_ns - now_ns) / _NS:.0f} s",
                )
            wanted = int(words[word.LAST_SEQNO]) if seqno is None else seqno
            # 0 means no barrier, so an instance with nothing applied is held at its first transaction.
            self._expires_ns = now_ns + self._timeout_ns
            words[word.BARRIER_EXPIRES_NS] = self._expires_ns
            words[word.BARRIER_SEQNO] = max(1, wanted)
        if wanted < 0:
            raise InternalError(f"{wanted} is no sequence number")
        return wanted
