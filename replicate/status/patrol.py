"""What `replicate status` says of the patrol on a secondary.

Guarantees: what is called verified was found equal; each range that differs is in one finding, with the commands that
show the rows and mend them.
Leaves to others: what was found (compare/patrol_found.py), clocks.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator

from replicate.compare.patrol_found import Different, Patrolled
from replicate.model.findings import Finding
from replicate.status.comparing import ago
from replicate.status.report import PatrolReport


def patrol_report(found: Patrolled, now_wall_ns: int) -> PatrolReport | None:
    """None where nothing is known."""
    whole, here = found.whole, found.here
    if not whole.ended_wall_ns and not here.told:
        return None
    last = whole if whole.ended_wall_ns else here
    rows, age_s = None, None
    if whole.ended_wall_ns:
        rows, age_s = whole.rows, max(0.0, (now_wall_ns - whole.began_wall_ns) / 1e9)
    return PatrolReport(rows, age_s, last.passed, last.why if last.passed else "", here.at, len(found.different))


def patrol_findings(found: Patrolled, now_wall_ns: int, *, source: str, here: Collection[str]) -> Iterator[Finding]:
    """One for each range that differs. `source` sends to this secondary; those that are `here` are on this host."""
    for one in found.different:
        age = ago(max(0.0, (now_wall_ns - one.wall_ns) / 1e9))
        text = (
            f"; {_side(one.rows, one.digest)} here, {_side(one.source_rows, one.source_digest)} in "
            f"{found.source}; found {age} ago"
        )
        do = _do(one, source or found.source, here)
        yield Finding("DIVERGED_ROWS", f"{one}{text}", do, one.name, f"{one.brief}{text}")


def _side(rows: int, digest: str) -> str:
    return f"{rows} row{'s' * (rows != 1)} with digest {digest[:16]}" if digest else "nothing that can be read"


def _do(one: Different, source: str, here: Collection[str]) -> str:
    if not one.table:
        see = f"see what differs: replicate -i INSTANCE compare --with {source}; " if source in here else ""
        return f"{see}mend the schema as it is there, or seed again: replicate -i INSTANCE seed --restart"
    if source in here:
        return (
            f"see the rows: replicate -i INSTANCE compare --with {source}; mend them: replicate -i INSTANCE compare "
            f"--with {source} --repair"
        )
    return (
        f"prove it: there, replicate -i {source or 'PRIMARY'} --json digest >FILE, and here replicate -i INSTANCE "
        "compare --with-digest FILE; then mend the rows (replicate help disaster), or seed the region again: "
        f"replicate -i INSTANCE seed --region {one.region} --restart"
    )
