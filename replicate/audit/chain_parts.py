"""A directory of segments as its unbroken parts: copies, restored files and half a backup may lack some in the middle.

Guarantees: each part is a chain by its headers' own words, and nothing that is asked of it looks at what is after the
hole; the newest part grows with the directory. A header that cannot be read makes no hole: a reader there is told of
the damage.
Leaves to others: what fills a hole; readers and what they want.
"""

from __future__ import annotations

import os
from itertools import pairwise
from typing import Final

from replicate.errors import DamagedError
from replicate.journal.chain import Chain

_ANY: Final = 2**64


class ChainPart(Chain):
    """The segments of a directory that begin with one of the numbers from `low` to `high`, as a chain of their own."""

    def __init__(self, directory: str | os.PathLike[str], low: int, high: int, *, network: bytes | None = None) -> None:
        super().__init__(directory, network=network)
        self._low = low
        self._high = high

    def first_seqnos(self) -> list[int]:
        return [number for number in super().first_seqnos() if self._low <= number <= self._high]

    @property
    def is_newest(self) -> bool:
        """Whether no part of the directory is after this one."""
        return self._high == _ANY


class UnpackedPart(ChainPart):
    """The segments of a directory that nobody writes to, as a stage: it is listed once, and not for each batch that is
    read of it."""

    def __init__(self, directory: str | os.PathLike[str], *, network: bytes | None = None) -> None:
        """JournalIOError."""
        super().__init__(directory, 0, _ANY, network=network)
        self._numbers = super().first_seqnos()

    def first_seqnos(self) -> list[int]:
        return list(self._numbers)


def parts_of(directory: str | os.PathLike[str], *, network: bytes | None = None) -> list[ChainPart]:
    """The unbroken parts of a directory's segments, oldest first; none when it has no segment.

    WrongNetworkError, JournalIOError. A chain whose links disagree in anything but a segment that is missing is one
    part: reading it says what is wrong.
    """
    chain = Chain(directory, network=network)
    numbers = chain.first_seqnos()
    if not numbers:
        return []
    lows = numbers[:1]
    for previous, following in pairwise(numbers):
        try:
            after = chain.segment(following).header.previous_first_seqno
        except DamagedError:  # pruned meanwhile, too
            continue
        if after > previous:
            lows.append(following)
    bounds = [*(low - 1 for low in lows[1:]), _ANY]
    return [ChainPart(directory, low, high, network=network) for low, high in zip(lows, bounds, strict=True)]


def part_with(directory: str | os.PathLike[str], seqno: int) -> Chain:
    """The part whose segments may hold `seqno`: the last one that begins no later, else the oldest; the whole chain
    where there is no segment. Raises as `parts_of`."""
    found: list[Chain] = [*parts_of(directory)]
    older = [part for part in found if part.oldest_seqno() <= seqno]
    return (older or found or [Chain(directory)])[-1 if older else 0]
