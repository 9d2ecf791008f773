"""What the others have seen: of each supplier the vector that it has told, and what all of them have.

A supplier's transaction begins with what its writer has applied of others since it told the last time (SEEN). So of
two transactions it is known whether one's writer had seen the other; and what everybody has seen, nobody will ever
write a transaction beside.

Guarantees: what is told is exact, and arrives after all that its teller wrote before; an unknown supplier has seen
nothing.
Leaves to others: where it is kept (region/sqlite/bookkeeping.py), who the suppliers are (writers.py). Pure.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

Told = Mapping[int, int]
"""Origin -> the last of its transactions that was seen."""


def values_of(teller: int, told: Told) -> list[int]:
    """The values of a SEEN change."""
    return [teller, *(number for pair in sorted(told.items()) for number in pair)]


def merged_told(one: Told, other: Told) -> dict[int, int]:
    """The later of both for each origin."""
    return {origin: max(one.get(origin, 0), other.get(origin, 0)) for origin in {*one, *other}}


def told_by_all(regions: Iterable[Mapping[int, Told]]) -> Mapping[int, Told]:
    """Of each origin what it has told, by all regions together: a commit notes it in one that it changes."""
    first, *others = regions
    for one in others:
        first = {origin: merged_told(first.get(origin, {}), one.get(origin, {})) for origin in {*first, *one}}
    return first


def stable(members: Mapping[bytes, Sequence[int]], told: Mapping[int, Told], here: Told, own: bytes) -> dict[int, int]:
    """Origin -> the last of its transactions that every member has, of those that are here.

    `members`: the suppliers that may write, instance -> the keys of all its incarnations. `told`: by origin, what that
    one has told. `here`: our own vector. `own`: our own instance, which has what is here."""
    rows: list[Told] = []
    for instance, origins in members.items():
        if instance == own:
            continue
        row: dict[int, int] = {}
        for origin in origins:
            row = merged_told(row, told.get(origin, {}))
        rows.append({**row, **{origin: here.get(origin, 0) for origin in origins}})
    return {origin: min([last, *(row.get(origin, 0) for row in rows)]) for origin, last in here.items()}


def has_seen(told: Told, writer: int, origin: int, origin_seqno: int) -> bool:
    """Whether a transaction that `writer` wrote after it had told `told` comes after that one of `origin`."""
    return origin == writer or told.get(origin, 0) >= origin_seqno


def unseen_of(stamps: Iterable[Any], told: Told, writer: int) -> frozenset[Any]:
    """Those stamps (csn, origin, origin_seqno) whose transactions the writer had not seen."""
    return frozenset(one for one in stamps if one[1] and not has_seen(told, writer, one[1], one[2]))
