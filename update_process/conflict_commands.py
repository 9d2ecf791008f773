"""What the commands see of conflicts, and the decision that one of them makes.

Guarantees: nothing is written here; only the transaction at which the Update Process has stopped can be decided, by the
name that its conflict file gives it.
Leaves to others: the file of a conflict (conflict_file.py), the durable decision (conflict_decision.py), and what is
done by it (settle_conflict.py).
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

from msgspec import Struct

from replicate.door.snapshot import door_of
from replicate.errors import UsageError
from replicate.instance.instance import Instance
from replicate.model.ruv import lacks
from replicate.model.vector import Chains
from replicate.system.asking_user import who_asks
from update_process.conflict_decision import OVERWRITE, SKIP, Decision, find_decision, is_large
from update_process.conflict_file import read_conflict


class SeenConflict(Struct, frozen=True):
    """A conflict that was met. `table`: "region.table". `state`: WAITS, DECIDED (the Update Process has not come to it
    again), LEFT_OUT, OVERWRITTEN or MENDED; AHEAD: of a number that is not reached, as after a seed. `by` whom it was
    decided."""

    seqno: int
    table: str
    operation: str
    reason: str
    state: str
    by: str


NO_CHAINS: Final[Chains] = {}

WAITS: Final = "waits"
DECIDED: Final = "decided"
LEFT_OUT: Final = "left out"
OVERWRITTEN: Final = "overwritten"
MENDED: Final = "mended"
AHEAD: Final = "not reached"


def look_at_conflicts(directory: Path, applied_seqno: int, chains: Chains = NO_CHAINS) -> list[SeenConflict]:
    """Those with a file there, by their numbers, where all up to `applied_seqno` is applied. `chains`: on a supplier,
    which tells by them: it may meet one under several numbers, of which the last one counts. DamagedError."""
    numbers = sorted(int(path.stem) for path in directory.glob("*.json") if path.stem.isdecimal())
    found = {seqno: read_conflict(directory, seqno) for seqno in numbers}

    def named_at(seqno: int) -> str:
        return str(found.get(seqno, {}).get("transaction", ""))

    newest = {named: seqno for seqno, facts in found.items() if (named := _supplied(facts)) is not None}
    seen = []
    for seqno, facts in found.items():
        supplied = _supplied(facts)
        if supplied is not None and newest[supplied] != seqno:
            continue
        table = f"{facts.get('region')}.{facts.get('table')}"
        decision = find_decision(directory, seqno, named_at(seqno), table, named_at) if named_at(seqno) else None
        if supplied is not None:
            state = WAITS if lacks(chains, *supplied) else MENDED
        elif seqno <= applied_seqno:
            state = MENDED if decision is None else OVERWRITTEN if decision.how == OVERWRITE else LEFT_OUT
        elif seqno > applied_seqno + 1:
            state = AHEAD
        else:
            state = WAITS if decision is None else DECIDED
        by = "" if decision is None else decision.by
        seen.append(SeenConflict(seqno, table, str(facts.get("operation")), str(facts.get("reason")), state, by))
    return seen


def _supplied(facts: Mapping[str, Any]) -> tuple[int, int] | None:
    """Of one that a supplier met: its origin, and its number there."""
    origin, origin_seqno = facts.get("origin"), facts.get("origin_seqno")
    return (origin, origin_seqno) if isinstance(origin, int) and isinstance(origin_seqno, int) else None


def conflicts_of(instance: Instance, applied_seqno: int) -> list[SeenConflict]:
    """All that were met there. Raises as `look_at_conflicts`, and what opening the door raises."""
    chains = NO_CHAINS
    if instance.is_supplier:
        with door_of(instance) as door, door.locked():
            chains = door.position().chains
    return look_at_conflicts(instance.conflict_directory, applied_seqno, chains)


def decide(
    instance: Instance,
    applied_seqno: int,
    seqno: int | None,
    *,
    how: str = SKIP,
    until: int | None = None,
    table: str = "",
) -> Decision:
    """The decision to settle the transaction `seqno` (None: the one that waits) and the conflicts up to `until` by SKIP
    or OVERWRITE, for `write_decision`.

    Raises UsageError (it is not the one that waits, `until` is before it, a large one with `until`, `table` is not the
    one of the conflict) and as `read_conflict`."""
    instance.refuse_supplier(
        "what another supplier wrote by right is neither left out nor written over",
        "Make the row here as it was expected (replicate -i INSTANCE conflict show), and start the Update Process",
    )
    where, waits = str(instance.path), applied_seqno + 1
    if seqno not in (None, waits):
        raise UsageError(
            f"transaction {seqno} does not wait for a decision: the last one that {instance.name} has is "
            f"{applied_seqno}",
            where=where,
            do=f"Look which one does: replicate -i {instance.named} conflict list",
        )
    facts = read_conflict(instance.conflict_directory, waits)
    transaction = facts.get("transaction")
    if type(transaction) is not str or not transaction:
        raise UsageError(
            f"the conflict of transaction {waits} was found by a replay, or by an older release",
            where=where,
            do=f"Let the Update Process meet it: replicate -i {instance.named} conflict retry; then this again",
        )
    if until is not None and until < waits:
        raise UsageError(f"{until} is before {waits}", do=f"Give --until M, with M at least {waits}")
    if until is not None and is_large(transaction):
        raise UsageError(
            f"transaction {waits} is a large one, which is decided alone",
            where=where,
            do=f"Without --until: replicate -i {instance.named} conflict {how} {waits}",
        )
    met = f"{facts.get('region')}.{facts.get('table')}"
    if table not in ("", met):
        raise UsageError(f"the conflict of transaction {waits} is of table {met}, not {table}", where=where)
    at = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())
    return Decision(waits, transaction, until or waits, table, who_asks(), at, how)
