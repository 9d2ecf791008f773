"""Equality at one sequence number: digests of an instance, and two instances compared while both go on working.

Guarantees: what is compared is the state after exactly the transactions up to one number on both sides. The primary is
never held up for longer than it takes to open read transactions; the secondary applies up to that number and stands
still there for the same moment (a barrier), receiving all the while. Where a number is asked for, the primary's writers
stand still at it for that moment too.
Refuses to know: how a digest is made (database/digest.py), and how a result is printed.
"""

from __future__ import annotations

import time
import uuid
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import Final

from replicate.barrier import Barrier
from replicate.database import digest as digests
from replicate.database.digest import Comparison, RegionDigest
from replicate.door.door import Door
from replicate.errors import NotFoundError, TryAgainError, UsageError, WrongNetworkError
from replicate.instance.instance import Instance
from replicate.pool import control as word
from replicate.snapshot import Snapshot, door_of, take_snapshot
from replicate.wait import poll_until

AT_PAUSE_S = 0.002
TRIES_MAX = 5
"""A barrier can be outrun by the batch that was being applied when it was set: then a later number is taken."""


DIGEST_FORMAT: Final = 1
"""Rises when the same rows would give another digest: those of two releases say nothing about each other then."""


@dataclass(frozen=True, slots=True)
class InstanceDigest:
    """The digests of an instance's regions (by name) at the transaction `seqno`. `network` is its UUID as text."""

    instance: str
    seqno: int
    regions: tuple[tuple[str, RegionDigest], ...]
    network: str
    format: int = DIGEST_FORMAT


@dataclass(frozen=True, slots=True)
class RegionComparison:
    """One region of both; `comparison` is None when `missing_in` names the instance that lacks it."""

    region: str
    missing_in: str
    comparison: Comparison | None

    @property
    def equal(self) -> bool:
        """Whether nothing differs."""
        return self.comparison is not None and self.comparison.equal


@dataclass(frozen=True, slots=True)
class InstanceComparison:
    """Two instances at the transaction `seqno`."""

    first: str
    second: str
    seqno: int
    regions: tuple[RegionComparison, ...]

    @property
    def equal(self) -> bool:
        """Whether nothing differs in any region."""
        return all(region.equal for region in self.regions)


def digest(
    instance: Instance, *, at: int | None = None, timeout_s: float, progress: digests.Progress | None = None
) -> InstanceDigest:
    """The digests of an instance at the transaction `at`, or at the last one that it has.

    The instance is held at `at` when it gets there, for the moment of opening the snapshot. Raises TryAgainError when
    `at` is passed already, or not reached within `timeout_s` seconds; UsageError for a negative number; BusyError while
    another barrier stands.
    """
    with door_of(instance) as door, snapshot_at(door, at, timeout_s=timeout_s) as snapshot:
        return InstanceDigest(
            instance.name,
            snapshot.seqno,
            tuple(
                (name, digests.digest_region(connection, progress=progress))
                for name, connection in snapshot.regions.connections.items()
            ),
            str(uuid.UUID(bytes=instance.content.network)),
        )


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
        do="Name a greater number, and --timeout long enough to get there; compare without --at finds a number itself",
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
    progress: digests.Progress | None = None,
) -> InstanceComparison:
    """Compare two instances of this host, both live, at the transaction `at` or at one that suits both.

    Without `at` the one that is primary (or the first) gives the number, and the other is held there. Raises
    WrongNetworkError, UsageError (the same instance twice), TryAgainError (the other did not get there within
    `timeout_s` seconds), BusyError; what differs is a result, not an error.
    """
    if first.content.uuid == second.content.uuid:
        raise UsageError(
            "an instance can not be compared with itself", where=str(first.path), do="Name the other site with --with"
        )
    if first.content.network != second.content.network:
        raise WrongNetworkError("the two instances belong to different networks", where=str(second.path))
    with ExitStack() as stack:
        doors = [stack.enter_context(door_of(instance)) for instance in (first, second)]
        if at is not None:
            barriers = [stack.enter_context(_held_at(door, at, timeout_s)) for door in doors]
            held = [
                stack.enter_context(_taken_at(door, barrier, at, timeout_s))
                for door, barrier in zip(doors, barriers, strict=True)
            ]
        elif second.role == "primary" and first.role == "secondary":
            held = list(reversed(_both(stack, doors[1], doors[0], timeout_s)))
        else:
            held = _both(stack, doors[0], doors[1], timeout_s)
        return _compared(first, second, held[0], held[1], limit, progress)


def _both(stack: ExitStack, leader: Door, follower: Door, timeout_s: float) -> list[Snapshot]:
    """Snapshots of both at one number: hold the follower, look where the leader is, let the follower go there."""
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
                barrier.lift()
                stack.enter_context(attempt.pop_all())
                return [ahead, behind]
    raise TryAgainError(
        f"{follower.instance.name} is ahead of {leader.instance.name}, or could not be held",
        where=str(follower.instance.path),
        do="Name a number with --at",
    )


def _reached(door: Door, seqno: int) -> Callable[[], bool]:
    """Whether the instance has the transaction `seqno`."""
    words = door.words
    return lambda: bool(words[word.LAST_SEQNO] >= seqno)


def _compared(
    first: Instance,
    second: Instance,
    one: Snapshot,
    other: Snapshot,
    limit: int,
    progress: digests.Progress | None,
) -> InstanceComparison:
    names = list(dict.fromkeys([*one.regions.connections, *other.regions.connections]))
    if not names:
        raise NotFoundError(
            "neither instance has a region", where=str(first.path), do="Add one: replicate -i PRIMARY region add PATH"
        )
    regions = []
    for name in names:
        here, there = one.regions.connections.get(name), other.regions.connections.get(name)
        if here is None or there is None:
            regions.append(RegionComparison(name, first.name if here is None else second.name, None))
        else:
            found = digests.compare(here, there, limit=limit, progress=progress)
            regions.append(RegionComparison(name, "", found))
    return InstanceComparison(first.name, second.name, one.seqno, tuple(regions))
