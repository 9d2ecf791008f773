"""Equality at one sequence number: digests of an instance, and two instances compared while both go on working.

Guarantees: what is compared is the state after exactly the transactions up to one number on both sides. The primary is
never held up for longer than it takes to open read transactions; the secondary applies up to that number and stands
still there for the same moment (a barrier), receiving all the while. Where a number is asked for, the primary's writers
stand still at it for that moment too. Of two suppliers it is the state after the same transactions of each origin.
Leaves to others: how a digest is made (region/sqlite/digest.py), and how a result is printed.
"""

from __future__ import annotations

import time
import uuid
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from typing import Final

from msgspec import Struct
from xxhash import xxh3_128_hexdigest

from replicate.compare.some_rows import SomeRows
from replicate.door.barrier import Barrier
from replicate.door.door import Door
from replicate.door.snapshot import Snapshot, door_of, take_snapshot
from replicate.door.wait import poll_until
from replicate.errors import BusyError, NotFoundError, TryAgainError, UsageError, WrongNetworkError
from replicate.instance.instance import Instance
from replicate.model.elements import left_out
from replicate.pool import control as word
from replicate.region.sqlite import digest as digests
from replicate.region.sqlite.digest import Comparison, RegionDigest
from replicate.region.sqlite.read_progress import Reading

AT_PAUSE_S = 0.002
STRETCH_S: Final = 1.0
"""So long two suppliers are looked at for a moment in which both have the same, writers held in every other stretch."""
TRIES_MAX = 5
"""A barrier can be outrun by the batch that was being applied when it was set: then a later number is taken."""


DIGEST_FORMAT: Final = 1
"""Rises when the same rows would give another digest: those of two releases say nothing about each other then."""


class CompareProgress(Struct, frozen=True):
    """How far a digest or a comparison is: `what` is done, `more` about it, and how many bytes of one side were read,
    of `whole_bytes` (0: nothing is read)."""

    what: str
    more: str
    done_bytes: int = 0
    whole_bytes: int = 0


Told = Callable[[CompareProgress], None]


class InstanceDigest(Struct, frozen=True):
    """The digests of an instance's regions (by name) at the transaction `seqno`. `network` is its UUID as text;
    `waiting`: the primary's regions that are not there, and wait for their seed."""

    instance: str
    seqno: int
    regions: tuple[tuple[str, RegionDigest], ...]
    network: str
    format: int = DIGEST_FORMAT
    waiting: tuple[str, ...] = ()
    vector: str = ""
    """Of a supplier, whose numbers are its own: what stands for its vector there."""
    elements: tuple[str, ...] = ()
    """Audit elements that it does not get."""


class RegionComparison(Struct, frozen=True):
    """One region of both; `comparison` is None when `missing_in` names the instance that lacks it. `waits`: there it
    waits for its seed."""

    region: str
    missing_in: str
    comparison: Comparison | None
    waits: bool = False

    @property
    def equal(self) -> bool:
        """Whether nothing differs."""
        return self.comparison is not None and self.comparison.equal

    @property
    def differs(self) -> tuple[str, ...]:
        """What differs, by name."""
        if self.comparison is None:
            return (f"region {self.region}",)
        schema = (f"the schema of {self.region}",) if self.comparison.schema_differs else ()
        unequal = (one.table for one in self.comparison.tables if one.differs)
        return (*schema, *(f"{self.region}.{table}" for table in unequal))


class InstanceComparison(Struct, frozen=True):
    """Two instances at the transaction `seqno`."""

    first: str
    second: str
    seqno: int
    regions: tuple[RegionComparison, ...]

    @property
    def equal(self) -> bool:
        """Whether nothing differs in any region."""
        return all(region.equal for region in self.regions)

    @property
    def differs(self) -> tuple[str, ...]:
        """What differs, by name: REGION.TABLE, the schema of a region, a region."""
        return tuple(name for region in self.regions for name in region.differs)


def _progress(what: str, snapshot: Snapshot, told: Told | None) -> Callable[[str], digests.Progress | None]:
    """What tells of a region's tables how far the reading of all is; nothing is asked for nobody."""
    if told is None:
        return lambda _region: None
    readings = [Reading(connection) for connection in snapshot.regions.connections.values()]
    whole = sum(one.whole_bytes for one in readings)

    def of(region: str) -> digests.Progress:
        def tell(table: str, rows: int) -> None:
            more = f"{region}.{table}: {rows} rows; writers and the Update Process go on"
            told(CompareProgress(what, more, sum(one.done_bytes for one in readings), whole))

        return tell

    return of


def digest(instance: Instance, *, at: int | None = None, timeout_s: float, told: Told | None = None) -> InstanceDigest:
    """The digests of an instance at the transaction `at`, or at the last one that it has. `told`: how far it is.

    The instance is held at `at` when it gets there, for the moment of opening the snapshot. Raises TryAgainError when
    `at` is passed already, or not reached within `timeout_s` seconds; UsageError for a negative number; BusyError while
    another barrier stands.
    """
    if told is not None and at is not None:
        told(CompareProgress(f"waiting for transaction {at}", "writers will stand still there for a moment"))
    with door_of(instance) as door, snapshot_at(door, at, timeout_s=timeout_s) as snapshot:
        progress, holds = _progress("digest", snapshot, told), door.instance.content.holds_all_of
        return InstanceDigest(
            instance.name,
            snapshot.seqno,
            tuple(
                (name, digests.digest_region(connection, progress=progress(name), holds=holds))
                for name, connection in snapshot.regions.connections.items()
            ),
            str(uuid.UUID(bytes=instance.content.network)),
            waiting=door.instance.waiting,
            vector=_told_vector(snapshot) if door.instance.is_supplier else "",
            elements=tuple(left_out(instance.content.partitions.elements, instance.content.holds)),
        )


def _told_vector(snapshot: Snapshot) -> str:
    """Equal for two suppliers that have the same transactions."""
    return str(xxh3_128_hexdigest(repr(sorted(snapshot.position.chains.items())).encode()))


@contextmanager
def snapshot_at(door: Door, at: int | None, *, timeout_s: float) -> Iterator[Snapshot]:
    """A snapshot at exactly `at` (None: now). Raises as `digest`."""
    if at is None:
        with take_snapshot(door, timeout_s=timeout_s) as snapshot:
            assert snapshot is not None
            yield snapshot
        return
    with _held_at(door, at, timeout_s) as barrier, _taken_at(door, barrier, at, timeout_s) as snapshot:
        yield snapshot


@contextmanager
def _held_at(door: Door, at: int, timeout_s: float) -> Iterator[Barrier]:
    """A barrier at `at`, unless that is passed."""
    if at < 0:
        raise UsageError(f"{at} is no sequence number", do="Give --at N, with N at least 0")
    with Barrier(door, timeout_s=timeout_s + 5) as barrier:
        if door.words[word.LAST_SEQNO] > at:
            raise _passed(door, at)
        barrier.raise_to(at)
        yield barrier


def _passed(door: Door, at: int) -> TryAgainError:
    last = int(door.words[word.LAST_SEQNO])
    return TryAgainError(
        f"transaction {at} is passed: {door.instance.name} stands at {last}, and numbers only rise",
        where=str(door.instance.path),
        do="Choose a number N that comes soon. Between two hosts: run replicate -i INSTANCE --json digest --at N "
        "--timeout 600 >FILE on both hosts before it has come, and compare the two files by --with-digest. On one host "
        "compare --with without --at finds a number itself",
        wanted=at,
        last=last,
    )


@contextmanager
def _taken_at(door: Door, barrier: Barrier, at: int, timeout_s: float) -> Iterator[Snapshot]:
    """The snapshot at the barrier, which is lifted as soon as it is open."""
    words = door.words
    deadline = time.monotonic() + timeout_s
    with ExitStack() as stack:
        # Writers may stand at the barrier as soon as the number is reached.
        if not poll_until(_reached(door, at), timeout_s, pause_s_max=AT_PAUSE_S):
            raise TryAgainError(
                f"transaction {at} was not there within {timeout_s:g} s; the last one is {words[word.LAST_SEQNO]}",
                where=str(door.instance.path),
                do="Give more --timeout; replicate -i INSTANCE status names the bottleneck",
            )
        left_s = max(0.1, deadline - time.monotonic())
        snapshot = stack.enter_context(take_snapshot(door, timeout_s=left_s, only_at=at))
        if snapshot is None:
            raise _passed(door, at)
        barrier.lift()
        yield snapshot


def compare(
    first: Instance,
    second: Instance,
    *,
    at: int | None = None,
    timeout_s: float,
    limit: int = digests.DIFFERENCES_DEFAULT,
    told: Told | None = None,
) -> InstanceComparison:
    """Compare two instances of this host, both live, at the transaction `at` or at one that suits both. `told`: how far
    it is.

    Without `at` the one that is primary (or the first) gives the number, and the other is held there. Raises
    WrongNetworkError, UsageError (the same instance twice), TryAgainError (the other did not get there within
    `timeout_s` seconds), BusyError; what differs is a result, not an error.
    """
    if first.content.uuid == second.content.uuid:
        raise UsageError(
            "an instance cannot be compared with itself", where=str(first.path), do="Name the other site with --with"
        )
    if first.content.network != second.content.network:
        raise WrongNetworkError("the two instances belong to different networks", where=str(second.path))
    if told is not None:
        if first.is_supplier:
            held = "transactions may begin a moment later"
        elif at is None:
            held = "the Update Process stands still there for a moment"
        else:
            held = "writers and the Update Process stand still there for a moment"
        told(CompareProgress("waiting until both are at one transaction", held))
    with ExitStack() as stack:
        doors = [stack.enter_context(door_of(instance)) for instance in (first, second)]
        first.reload()  # a region may have come
        second.reload()
        before = [one.content.held_from for one in (first, second)]
        if first.is_supplier and second.is_supplier:
            if at is not None:
                raise UsageError("suppliers count each by its own journal", do="Leave --at out")
            both = _both_level(stack, doors, timeout_s)
        elif at is not None:
            barriers = [stack.enter_context(_held_at(door, at, timeout_s)) for door in doors]
            both = [
                stack.enter_context(_taken_at(door, barrier, at, timeout_s))
                for door, barrier in zip(doors, barriers, strict=True)
            ]
        elif second.role == "primary" and first.role == "secondary":
            both = list(reversed(_both(stack, doors[1], doors[0], timeout_s)[0]))
        else:
            both = _both(stack, doors[0], doors[1], timeout_s)[0]
        for one, held_before in zip((first, second), before, strict=True):
            _require_held_as_before(one, held_before)
        return _compared(first, second, both[0], both[1], limit, told)


def _require_held_as_before(instance: Instance, before: tuple[object, ...]) -> None:
    """TryAgainError where what that one holds of the partitions has changed while a moment of both was waited for: what
    was removed, or came, would be told as a difference."""
    instance.look_again()
    if instance.content.held_from != before:
        raise TryAgainError(
            f"what {instance.name} holds of the partitions has changed meanwhile",
            where=str(instance.path),
            do="Give the same command again",
        )


class HeldTogether(Struct, frozen=True):
    """Two instances at one number. `barrier` is the follower's, which stands still until the block is left, or the
    barrier has expired: `barrier.raise_to(seqno)` renews it."""

    leader: Snapshot
    follower: Snapshot
    door: Door
    barrier: Barrier


@contextmanager
def held_together(leader: Instance, follower: Instance, *, timeout_s: float) -> Iterator[HeldTogether]:
    """Snapshots of both at one number, the follower's door, and it held there. Raises as `compare`."""
    with ExitStack() as stack:
        doors = [stack.enter_context(door_of(instance)) for instance in (leader, follower)]
        leader.reload()
        follower.reload()
        both, barrier = _both(stack, doors[0], doors[1], timeout_s, is_held=True)
        yield HeldTogether(both[0], both[1], doors[1], barrier)


def _both(
    stack: ExitStack, leader: Door, follower: Door, timeout_s: float, *, is_held: bool = False
) -> tuple[list[Snapshot], Barrier]:
    """Snapshots of both at one number: hold the follower, look where the leader is, let the follower go there. It goes
    on at once, or stands still there (`is_held`) as long as the barrier does."""
    deadline = time.monotonic() + timeout_s
    for _ in range(TRIES_MAX):
        left_s = max(0.1, deadline - time.monotonic())
        with ExitStack() as attempt:
            barrier = attempt.enter_context(Barrier(follower, timeout_s=left_s + 5))
            barrier.hold()
            ahead = attempt.enter_context(take_snapshot(leader, timeout_s=left_s))
            assert ahead is not None
            barrier.raise_to(ahead.seqno)
            words = follower.words
            wanted = ahead.seqno
            if not poll_until(_reached(follower, wanted), left_s):
                raise TryAgainError(
                    f"{follower.instance.name} did not come to transaction {wanted} within {timeout_s:g} s; "
                    f"its last one is {words[word.LAST_SEQNO]}",
                    where=str(follower.instance.path),
                    do="replicate -i INSTANCE status names the bottleneck",
                )
            behind = attempt.enter_context(take_snapshot(follower, timeout_s=left_s, only_at=wanted))
            if behind is not None:
                if not is_held:
                    barrier.lift()
                stack.enter_context(attempt.pop_all())
                return [ahead, behind], barrier
    raise TryAgainError(
        f"{follower.instance.name} is ahead of {leader.instance.name}, or could not be held",
        where=str(follower.instance.path),
        do="Name a number with --at",
    )


def _both_level(stack: ExitStack, doors: Sequence[Door], timeout_s: float) -> list[Snapshot]:
    """Snapshots of two suppliers that have the same transactions. Where applications write all the time there is no
    such moment by itself: in every other stretch they begin nothing on either, and what has begun arrives on both."""
    deadline = time.monotonic() + timeout_s
    is_held = False
    while True:
        until, busy = min(deadline, time.monotonic() + STRETCH_S), None
        try:
            with ExitStack() as holding:
                for door in doors if is_held else ():
                    holding.enter_context(Barrier(door, timeout_s=STRETCH_S)).hold_beginnings()
                if (both := _level_before(until, stack, doors)) is not None:
                    return both
        except BusyError as error:  # a lock that was not free for this stretch may be for the next one
            busy = error
        if time.monotonic() >= deadline:
            raise busy or TryAgainError(
                f"{doors[0].instance.name} and {doors[1].instance.name} did not have the same transactions at any "
                f"moment within {timeout_s:g} s",
                where=str(doors[0].instance.path),
                do="Give more --timeout; `replicate ruv --with` says what either lacks",
            )
        is_held = not is_held


def _level_before(until: float, stack: ExitStack, doors: Sequence[Door]) -> list[Snapshot] | None:
    """Snapshots of both at one vector, of a moment before `until`; None: there was none."""
    while True:
        with ExitStack() as attempt:
            left_s = max(0.1, until - time.monotonic())
            both = [attempt.enter_context(take_snapshot(door, timeout_s=left_s)) for door in doors]
            one, other = both
            assert one is not None
            assert other is not None
            if dict(one.position.chains) == dict(other.position.chains):
                stack.enter_context(attempt.pop_all())
                return [one, other]
        if time.monotonic() >= until:
            return None
        time.sleep(AT_PAUSE_S)


def _reached(door: Door, seqno: int) -> Callable[[], bool]:
    """Whether the instance has the transaction `seqno`."""
    words = door.words
    return lambda: bool(words[word.LAST_SEQNO] >= seqno)


def not_in_both(first: Instance, second: Instance) -> frozenset[str]:
    """The audit elements that one of them does not get. One of them may not have been told where they are."""
    places = [one.content.partitions.elements for one in (first, second)]
    return frozenset(
        element for one in (first, second) for elements in places for element in left_out(elements, one.content.holds)
    )


def _in_held_partition(instance: Instance) -> digests.Holds:
    return lambda one: instance.content.holds(one.partition)


def _compared(
    first: Instance,
    second: Instance,
    one: Snapshot,
    other: Snapshot,
    limit: int,
    told: Told | None,
) -> InstanceComparison:
    progress = _progress("comparing", one, told)
    names = list(dict.fromkeys([*one.regions.connections, *other.regions.connections]))
    if not names:
        raise NotFoundError(
            "neither instance has a region", where=str(first.path), do="Add one: replicate -i PRIMARY region add PATH"
        )
    regions = []
    for name in names:
        here, there = one.regions.connections.get(name), other.regions.connections.get(name)
        if here is None or there is None:
            lacking = first if here is None else second
            regions.append(RegionComparison(name, lacking.name, None, name in lacking.waiting))
        else:
            absent = [
                digests.tables_without_rows(connection, _in_held_partition(instance))
                for instance, connection in ((first, here), (second, there))
            ]
            some = SomeRows.between(name, first.content.held_rows, second.content.held_rows, here)
            found = digests.compare(
                here,
                there,
                limit=limit,
                progress=progress(name),
                left_out=absent[0] | absent[1] | some.left_out,
                elements=not_in_both(first, second),
                shares=(some.in_first, some.in_second),
            )
            regions.append(RegionComparison(name, "", found))
    return InstanceComparison(first.name, second.name, one.seqno, tuple(regions))
