"""A supplier's sources: how far each is, as it counts, and what of it is received and applied here.

Each counts by its own journal, and has a receive pool of its own, a lane (pool/receive_pool.py), so that a small
transaction does not wait until another source's backlog is applied. What is applied of it is told by where its records
lie in its lane: a record that the Update Process has freed is applied.

Guarantees: what is called applied was freed; numbers only rise between two starts of the stream.
Leaves to others: connections, the pool's memory, clocks. Pure.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import Generic, TypeVar

from replicate.daemon.statistics import Lag
from replicate.limits import LANES_MAX
from replicate.model.contact import patience_s

C = TypeVar("C")
"""A connection, as the caller has it."""


class SuppliedSource:
    """By its instance. `last_seqno`: its newest transaction, as far as it has told. `lane`: where its records go; of
    more sources than there are lanes two share one."""

    def __init__(self, name: str, lane: int = 0) -> None:
        self.name = name
        self.lane = lane
        self.last_seqno = 0
        self.received_seqno = 0
        self.applied_seqno = 0
        self.was_level = False
        """All that it had when a stream of it began is applied here."""
        self._level_at = 0
        self.lag = Lag()
        self._heard_s: float | None = None
        self._period_s = 0.0
        self._marks: deque[tuple[int, int]] = deque()
        """Of each record in its lane with whole transactions, the address after it, and its last number."""

    def begins(self, next_seqno: int, last_seqno: int) -> None:
        """Its stream begins there: all before is here, by the word of both vectors, and what lies in its lane of a
        stream before this one is sent again."""
        self.received_seqno = self.applied_seqno = next_seqno - 1
        self.last_seqno = self._level_at = last_seqno
        self.was_level = self.was_level or self.applied_seqno >= last_seqno
        self.lag = Lag()
        self._marks.clear()

    def told(self, last_seqno: int, now_ns: int) -> None:
        """It has said how far its journal is. `now_ns`: monotonic."""
        self.last_seqno = max(self.last_seqno, last_seqno)
        self.lag.observed(self.last_seqno, now_ns)

    def heard(self, at_s: float, period_s: float) -> None:
        """Something has come from it at that time; its heartbeat comes each `period_s`."""
        self._heard_s, self._period_s = at_s, period_s

    def silent_s(self, now_s: float) -> float | None:
        """How long nothing has come from it, where that is longer than it may be."""
        age_s = 0.0 if self._heard_s is None else now_s - self._heard_s
        return age_s if age_s > patience_s(self._period_s) else None

    def received(self, last_seqno: int, after_address: int, now_ns: int) -> None:
        """A record with whole transactions up to `last_seqno` is in its lane, and ends at that address."""
        self.received_seqno = last_seqno
        self._marks.append((after_address, last_seqno))
        self.told(last_seqno, now_ns)

    def freed(self, upto_address: int) -> int:
        """The Update Process has freed all up to that address; what is applied."""
        while self._marks and self._marks[0][0] <= upto_address:
            self.applied_seqno = self._marks.popleft()[1]
            self.was_level = self.was_level or self.applied_seqno >= self._level_at
        return self.applied_seqno

    def dropped(self) -> None:
        """See SuppliedSources."""
        self._marks.clear()
        self.received_seqno = self.applied_seqno

    @property
    def backlog(self) -> int:
        """Transactions that it has, and that are not applied here."""
        return max(0, self.last_seqno - self.applied_seqno)


class SuppliedSources(Generic[C]):
    """All that have streamed since the start. `connections`: of those that are connected. By their instances' UUIDs."""

    def __init__(self) -> None:
        self.by: dict[bytes, SuppliedSource] = {}
        self.connections: dict[bytes, C] = {}
        self.is_restoring = False
        """We were restored, and wait for what we had."""

    def entered(self, instance: bytes, name: str, connection: C) -> None:
        """A source is accepted. It gets the lane that the fewest have, and keeps it: what is there of a stream before
        comes before the next one."""
        self.connections[instance] = connection
        if instance not in self.by:
            taken = [one.lane for one in self.by.values()]
            self.by[instance] = SuppliedSource(name, min(range(LANES_MAX), key=taken.count))

    def left(self, connection: C) -> C | None:
        """A connection has ended; one of the others."""
        self.connections = {key: one for key, one in self.connections.items() if one is not connection}
        return next(iter(self.connections.values()), None)

    def forget(self, instance: bytes) -> None:
        """A source is gone for good."""
        self.connections.pop(instance, None)
        self.by.pop(instance, None)

    def dropped(self) -> None:
        """What lay in the lanes is gone, applied or not, and all streams begin again: no address of it tells anything
        more, and each gets a lane as if it came now."""
        for number, one in enumerate(self.by.values()):
            one.dropped()
            one.lane = number % LANES_MAX

    def forget_levels(self) -> None:
        """We have less than before: each has to be level once more."""
        for one in self.by.values():
            one.was_level = False

    @property
    def were_level(self) -> set[str]:
        """The names of those that all was taken from that they had."""
        return {one.name for one in self.by.values() if one.was_level}

    @property
    def received_seqno(self) -> int:
        """Of all together."""
        return sum(one.received_seqno for one in self.by.values())

    @property
    def last_seqno(self) -> int | None:
        """Of all together; None before any has streamed."""
        return sum(one.last_seqno for one in self.by.values()) if self.by else None

    @property
    def names(self) -> str:
        """Of all of them."""
        return ", ".join(sorted(one.name for one in self.by.values()))

    @property
    def are_all_connected(self) -> bool:
        """Whether each that has streamed is; False before any has."""
        return bool(self.by) and len(self.connections) == len(self.by)

    def lag_s(self, now_ns: int) -> float | None:
        """The longest; None where nothing is known. `now_ns`: monotonic."""
        lags = (one.lag.seconds(one.applied_seqno, now_ns) for one in self.by.values())
        return max((lag for lag in lags if lag is not None), default=None)

    def silent_s(self, now_s: float) -> float | None:
        """The longest of those that are connected and silent; None where none is."""
        found = (self.by[key].silent_s(now_s) for key in self.connections)
        return max((one for one in found if one is not None), default=None)

    def facts(self, now_s: float, is_paused: Callable[[C], bool]) -> list[dict[str, object]]:
        """Of each, for the status. `now_s`: by the clock of `heard`; `is_paused`: whether it was told to pause."""
        return [
            {
                "name": one.name,
                "is_connected": key in self.connections,
                "is_paused": key in self.connections and is_paused(self.connections[key]),
                "silent_s": one.silent_s(now_s) if key in self.connections else None,
                "was_level": one.was_level,
                "last_seqno": one.last_seqno,
                "last_received_seqno": one.received_seqno,
                "last_applied_seqno": one.applied_seqno,
            }
            for key, one in sorted(self.by.items(), key=lambda item: item[1].name)
        ]
