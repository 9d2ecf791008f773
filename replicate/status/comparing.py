"""When a compare is due, and what `replicate status` says of the last one.

The secondary is what has to be proven, so it alone asks for a compare: `status.compared_warn_days` after the last one,
or after it was made or seeded when there was none since; so a fresh pair is not warned of. A primary tells what it
knows, and asks for nothing: on two hosts it is not told of a compare on the other one. A difference is an error on
whichever side knows of it, until a later compare with that instance finds none, or a seed fills this one again.

Guarantees: every instance that was compared is in one finding; the command in it makes the next compare.
Leaves to others: where it is noted (compare/last_compare.py), and clocks. Pure.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator
from typing import Final

from msgspec import Struct

from replicate.model.findings import Finding
from replicate.model.writers import SUPPLIER

DAY_S: Final = 86400.0
_MINUTE_S: Final = 60.0
_HOUR_S: Final = 3600.0
NAMED_MAX: Final = 5
"""So many tables that differ are named in a finding."""


class ComparedReport(Struct, frozen=True):
    """The last compare with the instance `other`, at the transaction `seqno`, `age_s` seconds ago; `differs`: which
    tables, none when it is equal."""

    other: str
    seqno: int
    age_s: float
    is_equal: bool
    differs: tuple[str, ...] = ()


class RepairedReport(Struct, frozen=True):
    """The last repair: `rows` were made as they are in `like`, at the transaction `seqno`, `age_s` seconds ago."""

    like: str
    seqno: int
    rows: int
    age_s: float


def compared_findings(
    role: str,
    compared: tuple[ComparedReport, ...],
    *,
    peers: Collection[str],
    source: str,
    here: Collection[str] = (),
    filled_s: float,
    warn_days: int,
    repaired: RepairedReport | None = None,
) -> Iterator[Finding]:
    """Of an instance that has regions. `peers` are its consumers; `source` sends to it ("" for unknown); those that are
    `here` can be compared with by one command. It was made or seeded `filled_s` seconds ago. `warn_days` 0: never due.
    """
    for one in compared:
        if not one.is_equal:
            yield _different(one, role, is_filled_here=role == "secondary" and one.other not in peers, here=here)
    if repaired is not None:
        text = (
            f"{repaired.rows} rows were repaired at transaction {repaired.seqno}, {ago(repaired.age_s)} ago, as they "
            f"are in {repaired.like}; no journal has that"
        )
        yield Finding("ROWS_REPAIRED", text, "nothing: log/repair.jsonl has both images of each row", repaired.like)
    due = role == "secondary" and warn_days > 0
    suppliers = [one for one in compared if one.other not in peers]
    newest = min(suppliers, key=lambda one: one.age_s, default=None)
    if due and newest is None and filled_s > warn_days * DAY_S:
        text = f"this secondary was never compared with its primary, in {ago(filled_s)} since it was made or seeded"
        yield Finding("COMPARE_DUE", text, _do(source, here), source)
    if due and newest is not None and newest.is_equal and newest.age_s > warn_days * DAY_S:
        text = f"the last compare with {newest.other}, at transaction {newest.seqno}, was {ago(newest.age_s)} ago"
        yield Finding("COMPARE_DUE", f"{text}: it found both equal", _do(newest.other, here), newest.other)
        suppliers = []
    told = [one for one in compared if one.is_equal and (role != "secondary" or one.other in peers)]
    if role == "secondary":
        told += [one for one in suppliers if one is newest and one.is_equal]
    for one in told:
        text = f"{one.other} was equal at transaction {one.seqno}, {ago(one.age_s)} ago"
        left_s = warn_days * DAY_S - one.age_s
        do = f"nothing; due again in {ago(left_s)}" if due and one is newest else "nothing"
        yield Finding("COMPARED", text, do, one.other)


def ago(duration_s: float) -> str:
    """A duration as one says it of what is long past: in one unit, rounded down."""
    for unit_s, name in ((DAY_S, "days"), (_HOUR_S, "h"), (_MINUTE_S, "min")):
        if duration_s >= 2 * unit_s:
            return f"{duration_s // unit_s:.0f} {name}"
    return f"{max(0.0, duration_s):.0f} s"


def _different(one: ComparedReport, role: str, *, is_filled_here: bool, here: Collection[str]) -> Finding:
    more = len(one.differs) - NAMED_MAX
    named = ", ".join(one.differs[:NAMED_MAX]) + (f" and {more} more" if more > 0 else "")
    text = f"{one.other} was DIFFERENT at transaction {one.seqno}, {ago(one.age_s)} ago: {named}"
    again = "INSTANCE" if is_filled_here else one.other
    if role == SUPPLIER:
        mend = "make the rows alike, with a client that leaves triggers alone, or make a new copy of the one that is "
        mend += "wrong (replicate help suppliers)"
    else:
        mend = f"mend the rows (replicate help disaster), or fill the secondary again: replicate -i {again} update "
        mend += f"stop, then replicate -i {again} seed --restart"
    return Finding("COMPARED_DIFFERENT", text, f"{mend}; then compare again: {_do(one.other, here)}", one.other)


def _do(other: str, here: Collection[str]) -> str:
    local = f"replicate -i INSTANCE compare --with {other or 'PRIMARY'}"
    if other in here:
        return local
    carried = (
        f"replicate -i {other or 'PRIMARY'} --json digest >FILE, carry it here, and replicate -i INSTANCE compare "
        "--with-digest FILE"
    )
    return f"there: {carried}" if other else f"{local}; where that is on another host, there: {carried}"
