"""Two digests at one sequence number, where one was made on another host and came as a file.

Guarantees: equal means that every table, the schema and the regions are the same, by digests of 128 bits; what is no
digest, of another network, of the same instance, or of another sequence number is refused, never called different.
Leaves to others: how a digest is made, files, and which rows differ (a digest cannot tell).
"""

from __future__ import annotations

import json
from typing import Any

from msgspec import Struct

from replicate.compare.compare import DIGEST_FORMAT, InstanceDigest
from replicate.errors import FormatUnknownError, UsageError, WrongNetworkError
from replicate.model.elements import DEFINITION
from replicate.region.sqlite.digest import SEQUENCES, RegionDigest, TableDigest

HOW = "Make it on the other host with: replicate -i OTHER --json digest >FILE"


class Difference(Struct, frozen=True):
    """Where two instances differ: a table, or "schema" or "region" for the whole; what each has, None for nothing."""

    region: str
    what: str
    first: str | None
    second: str | None

    @property
    def is_whole(self) -> bool:
        """Whether it is no table."""
        return self.what in ("schema", "region")


class DigestComparison(Struct, frozen=True):
    """Two instances at the transaction `seqno`; `tables` were looked at. `left_out`: REGION.TABLE of those whose rows
    are not in both, and schemas of which some audit element is not."""

    first: str
    second: str
    seqno: int
    tables: int
    differences: tuple[Difference, ...]
    left_out: tuple[str, ...] = ()

    @property
    def equal(self) -> bool:
        """Whether nothing differs."""
        return not self.differences

    @property
    def differs(self) -> tuple[str, ...]:
        """What differs, by name: REGION.TABLE, the schema of a region, a region."""
        return tuple(f"{one.region}{' ' if one.is_whole else '.'}{one.what}" for one in self.differences)


def parse_digest(text: str, *, where: str) -> InstanceDigest:
    """The digest that `replicate --json digest` has printed. UsageError, naming `where`, for anything else;
    FormatUnknownError when a release made it whose digests are others."""
    try:
        made = json.loads(text)
        number = made.get("format", DIGEST_FORMAT) if isinstance(made, dict) else DIGEST_FORMAT
        if number != DIGEST_FORMAT:
            raise FormatUnknownError(
                f"the digest has format {number!r}, this release makes format {DIGEST_FORMAT}",
                where=where,
                do="Make both digests with one release",
            )
        return InstanceDigest(
            _text(made["instance"]),
            int(made["seqno"]),
            tuple((_text(name), _region(region)) for name, region in made["regions"]),
            _text(made["network"]),
            waiting=tuple(_text(name) for name in made.get("waiting", ())),
            vector=_text(made.get("vector", "")),
            elements=tuple(_text(name) for name in made.get("elements", ())),
        )
    except (ValueError, KeyError, TypeError, OverflowError, RecursionError):
        raise UsageError("this is no digest of an instance", where=where, do=HOW) from None


def _region(made: Any) -> RegionDigest:
    tables = tuple(TableDigest(_text(t["table"]), int(t["rows"]), _text(t["digest"])) for t in made["tables"])
    return RegionDigest(tables, _text(made["schema"]), _text(made["digest"]))


def _text(made: Any) -> str:
    """ValueError for what could not be shown (half of a surrogate pair)."""
    text = str(made)
    text.encode()
    return text


def compare_digests(first: InstanceDigest, second: InstanceDigest) -> DigestComparison:
    """What differs. WrongNetworkError; UsageError for one instance twice, other numbers, or no region at all."""
    if first.network != second.network:
        raise WrongNetworkError(
            f"{first.instance} and {second.instance} belong to different networks", where=second.network
        )
    if first.instance == second.instance:
        raise UsageError(
            "an instance cannot be compared with itself", where=first.instance, do="Give the digest of the other site"
        )
    if first.vector and second.vector:
        if first.vector != second.vector:
            raise UsageError(
                f"{first.instance} and {second.instance} did not have the same transactions when they were looked at",
                do="Make both digests again when both are level: replicate -i INSTANCE ruv --with-ruv FILE tells",
            )
    elif first.seqno != second.seqno:
        raise UsageError(
            f"{first.instance} was looked at at transaction {first.seqno}, {second.instance} at {second.seqno}",
            do="Make both digests with the same --at N",
        )
    if not first.regions and not second.regions:
        raise UsageError(
            "neither instance has a region", where=first.instance, do="Add one: replicate -i PRIMARY region add PATH"
        )
    here, there = dict(first.regions), dict(second.regions)
    differences: list[Difference] = []
    left_out: list[str] = []
    schemas: list[str] = []
    elements = frozenset((*first.elements, *second.elements))
    tables = 0
    for name in dict.fromkeys([*here, *there]):
        one, other = here.get(name), there.get(name)
        if one is None or other is None:
            differences.append(Difference(name, "region", one.digest if one else None, other.digest if other else None))
            continue
        tables += len(one.tables)
        differences += _region_differences(name, one, other, elements)
        left_out += [f"{name}.{table}" for table in _left_out(one, other, elements)]
        schemas += [f"the schema of {name}"] if elements and one.schema != other.schema else []
    found = tuple(differences)
    return DigestComparison(
        first.instance, second.instance, first.seqno, tables - len(left_out), found, (*left_out, *schemas)
    )


def _left_out(one: RegionDigest, other: RegionDigest, elements: frozenset[str]) -> list[str]:
    """The tables that say nothing: without their rows in one of them, or, where definitions do not come, only there."""
    names = {table.table: not table.digest for table in (*one.tables, *other.tables)}
    names |= {table.table: True for table in (*one.tables, *other.tables) if not table.digest}
    if DEFINITION in elements:
        alone = {table.table for table in one.tables} ^ {table.table for table in other.tables}
        names |= dict.fromkeys(alone - {SEQUENCES}, True)
    return [name for name, is_out in names.items() if is_out]


def _region_differences(
    region: str, one: RegionDigest, other: RegionDigest, elements: frozenset[str]
) -> list[Difference]:
    here = {table.table: f"{table.rows} rows, {table.digest}" for table in one.tables}
    there = {table.table: f"{table.rows} rows, {table.digest}" for table in other.tables}
    absent = set(_left_out(one, other, elements))
    if absent:
        absent.add(SEQUENCES)  # counters of those tables are in one of them
    found = [
        Difference(region, name, here.get(name), there.get(name))
        for name in dict.fromkeys([*here, *there])
        if here.get(name) != there.get(name)
        and not (name in absent and (DEFINITION in elements or (name in here and name in there)))
    ]
    if elements:
        return found
    if one.schema != other.schema:
        found.append(Difference(region, "schema", one.schema, other.schema))
    if not found and not absent and one.digest != other.digest:
        found.append(Difference(region, "region", one.digest, other.digest))
    return found
