"""Whether what came of an origin may be taken here, and the error where it may not: at a supplier.

Guarantees: nothing is taken of an incarnation of ours that is, or should be, written here alone; of a retired supplier;
of who does not write that partition; of nobody knows whom; from too far in the future. Each has an error by name, and
nothing is changed by asking.
Leaves to others: when it is asked, what is rolled back then (supplied_transactions.py), who may write what
(model/writers.py).
"""

from __future__ import annotations

import time
from collections.abc import Collection, Iterable

from replicate.door.secondary import ApplySession
from replicate.door.writer_check import name_of
from replicate.errors import ClockAheadError, DivergedError, NotFoundError, NotWriterError, TurnedBackError
from replicate.limits import PARTITION_STREAM
from replicate.model.moment import is_ahead, readable
from replicate.model.transaction import History
from replicate.model.vector import Position, SynchronizationVector
from replicate.pool import control as word


class OriginCheck:
    """One per applier; asked while the session's transaction is open."""

    def __init__(self, session: ApplySession, clock_ahead_max_s: float) -> None:
        """`clock_ahead_max_s`: by how much what comes may be ahead of this host's clock."""
        self._session = session
        self._words = session.door.words
        self._ahead_us = int(clock_ahead_max_s * 1_000_000)
        self._instances: dict[int, bytes] = {}
        """Of each origin that was met, the instance that writes it."""
        self._retired_seen: tuple[int, frozenset[bytes]] = (-1, frozenset())
        """The generation of the writers, and those of them that are retired."""

    def met(self, histories: Iterable[History]) -> None:
        """These say who writes which origin."""
        self._instances |= {one.origin.key: one.instance for one in histories}

    def refuse_own(self, origins: Collection[object]) -> None:
        """TurnedBackError where one of them is this very incarnation, and so should have written what came, or comes
        before it: applications commit between two batches, and all of theirs was known when the batch was begun.
        PoolReplacedError where it was not: they commit by another pool since (the disk had failed)."""
        if self._words[word.OWN_ORIGIN] in origins:
            self._session.door.pool.check_current()
            name = self._session.door.instance.name
            raise TurnedBackError(f"a source has more of what {name} writes itself than {name} has")

    def refuse_newer_self(self, history: History) -> None:
        """An incarnation of ours that this site has not begun: TurnedBackError while it waits for what it had, which
        may be more than one of them; else DivergedError, for it may be that one like us still writes."""
        content = self._session.door.instance.content
        if history.instance != content.uuid or history.incarnation <= content.incarnation:
            return
        if content.is_restoring:
            raise TurnedBackError(f"a source has incarnation {history.incarnation} of {content.name}")
        raise DivergedError(
            f"{content.name} has begun incarnation {history.incarnation} elsewhere, and is {content.incarnation} here",
            do="If a copy of it runs, stop one of both for good. If this one was turned back with its machine, make a "
            "new copy of it (`replicate help suppliers`)",
            incarnation=history.incarnation,
        )

    def refuse_ahead(self, csn: int, origins: Collection[int]) -> None:
        """ClockAheadError for what is from too far in the future: all of ours would bear its time from then on. The one
        that the Update Process stops with is of one transaction, and so of one origin."""
        if is_ahead(csn, time.time_ns() // 1000, self._ahead_us):
            writer = name_of(self._session.door, self._instance_of(next(iter(origins))))
            raise ClockAheadError(
                f"a transaction of {writer} bears the time {readable(csn)}, too far ahead of this host's clock",
                do="Set right whichever clock is wrong. What was written under it is taken once [update] "
                "clock_ahead_max_s is raised for so long on every supplier: what they write after it bears that time, "
                "too (nothing from 2100 on is taken)",
                csn=csn,
            )

    def refuse_others(
        self, before: Position, position: Position, removers: Collection[tuple[int, int]] = frozenset()
    ) -> None:
        """NotWriterError, NotFoundError unless each origin has only changed what its instance writes, and none is
        retired. `removers`: origin and partition of what removes rows for their unique values, as any supplier may."""
        raised = position.vector.beyond(before.vector)
        self._refuse_retired(origin for origin, _ in SynchronizationVector(raised))
        touched: dict[int, set[int]] = {}
        for origin, partition in SynchronizationVector(raised):
            if partition != PARTITION_STREAM and (origin, partition) not in removers:
                touched.setdefault(origin, set()).add(partition)
        if not touched:
            return
        writers = self._session.writers()
        known = self._session.door.instance.partitions_now()
        for origin, partitions in touched.items():
            instance = self._instance_of(origin)
            for partition in writers.not_of(instance, partitions):
                raise NotWriterError(
                    f"origin {origin:08x} has changed partition {known.name(partition)}, which another supplier writes",
                    do="Compare both sites: one of them was restored from a backup, or its databases were changed",
                    origin=origin,
                    partition=partition,
                )

    def _refuse_retired(self, origins: Iterable[int]) -> None:
        """NotWriterError for what comes of a supplier that is retired: all have what anybody took of it before.
        NotFoundError for what comes of nobody knows whom."""
        generation = self._words[word.WRITERS_GENERATION]
        if self._retired_seen[0] != generation:
            self._retired_seen = generation, self._session.writers().retired
        retired = self._retired_seen[1]
        for origin in origins:
            if self._instance_of(origin) in retired:
                name = name_of(self._session.door, self._instance_of(origin))
                raise NotWriterError(
                    f"{name} (origin {origin:08x}) goes on writing, and is retired",
                    do=f"The supplier that sends it had it from {name}, which is gone for good, and nobody knew of it: "
                    "make a new copy of that supplier (`replicate help suppliers`); then start the Update Process here",
                    origin=origin,
                )

    def _instance_of(self, origin: int) -> bytes:
        if origin not in self._instances:
            histories = self._session.door.catalogue_now().histories
            self._instances |= {one.origin.key: one.instance for one in histories}
        try:
            return self._instances[origin]
        except KeyError:
            raise NotFoundError(
                f"transactions of origin {origin:08x} came, and no record has said who that is",
                do="Nothing was applied. Verify the source's journal: replicate -i SOURCE journal verify",
                origin=origin,
            ) from None
