"""What `replicate status` says of a site's own indexes.

Guarantees: what is called verified was looked at, entry by entry; each index that is damaged is one finding, with the
command that makes it again from the rows.
Leaves to others: what was found (compare/index_found.py), clocks.
"""

from __future__ import annotations

from collections.abc import Iterator

from replicate.compare.index_found import IndexDamage, IndexesFound
from replicate.model.findings import Finding
from replicate.status.comparing import ago
from replicate.status.report import IndexesReport


def indexes_report(found: IndexesFound, now_wall_ns: int) -> IndexesReport | None:
    """None where nothing is known."""
    whole, here = found.whole, found.here
    if not whole.ended_wall_ns and not here.began_wall_ns:
        return None
    damaged = len(found.damaged)
    if not whole.ended_wall_ns:
        return IndexesReport(None, None, here.left_out, here.at, damaged)
    age_s = max(0.0, (now_wall_ns - whole.began_wall_ns) / 1e9)
    return IndexesReport(whole.entries, age_s, whole.left_out, here.at, damaged)


def index_findings(found: IndexesFound, now_wall_ns: int, *, role: str) -> Iterator[Finding]:
    """One for each index, or table, of which something is wrong, and for each foreign key of a table."""
    for one in found.damaged:
        age = ago(max(0.0, (now_wall_ns - one.wall_ns) / 1e9))
        subject = f"{one.region}.{one.table}"
        yield Finding(
            "INDEX_DAMAGED", f"{one}; found {age} ago", _do(one, role), subject, f"{one.brief}; found {age} ago"
        )
    for row in found.orphans:
        age = ago(max(0.0, (now_wall_ns - row.wall_ns) / 1e9))
        table = f"{row.region}.{row.table}"
        more = f" (and {row.count - 1} more, at least)" if row.count > 1 else ""
        text = f"row {row.key} of {table}{more} names a row of {row.parent} that is not there; found {age} ago"
        brief = f"rows of {table} ({row.count}, at least) name a row of {row.parent} that is not there; found {age} ago"
        do = "replicate -i INSTANCE conflict list --orphans shows all of them"
        yield Finding("ORPHAN_ROWS", text, do, table, brief)


def _do(one: IndexDamage, role: str) -> str:
    if one.index:
        return f"make it again from the rows: replicate -i INSTANCE region reindex {one.region}"
    if role == "secondary":
        return f"seed the region again: replicate -i INSTANCE seed --region {one.region} --restart"
    return "set a column of the row to itself, by replicate.connect: SQLite works its generated columns out again"
