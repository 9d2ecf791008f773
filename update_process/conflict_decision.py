"""What an operator has decided about a conflict: a file beside the conflict's own, which the Update Process reads where
it would stop.

    conflict/SEQNO.decision.json    format, seqno, transaction, until, table, by, at; how, unless it is SKIP

Guarantees: a decision is durable before anybody acts on it, and stays as a record; it counts for the transaction whose
origin and hash it names, whatever its number is given to later, and for others up to `until` only where our own journal
holds the one that it names.
Leaves to others: what a conflict is (conflict_file.py), and what is done instead (applier.py).
"""

from __future__ import annotations

import json
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any, Final

from msgspec import Struct, to_builtins

from replicate.system.files import read_private, replace_file

FORMAT: Final = 1
SUFFIX: Final = ".decision.json"
SKIP: Final = "skip"
"""Leave the transaction out."""
OVERWRITE: Final = "overwrite"
"""Make its changes over whatever rows are here."""
HOW: Final = (SKIP, OVERWRITE)


class Decision(Struct, frozen=True):
    """To skip or overwrite (`how`) the transaction with this number that is called `transaction` (see `name_of`), and
    the conflicts of those after it up to `until`; only those of `table` ("region.table") unless it is "". `by` whom,
    `at` when (UTC)."""

    seqno: int
    transaction: str
    until: int
    table: str
    by: str
    at: str
    how: str = SKIP

    def covers(self, seqno: int, transaction: str, table: str, named_at: Callable[[int], str]) -> bool:
        """Whether it counts for that conflict. `named_at`: the name of a transaction of our journal, "" of none."""
        if self.table not in ("", table):
            return False
        if seqno == self.seqno:
            return transaction == self.transaction
        return self.seqno < seqno <= self.until and named_at(self.seqno) == self.transaction


def name_of(origin: int, chain: int) -> str:
    """What tells a transaction from every other one: its origin, and the hash over its history and its content."""
    return f"{origin:08x}/{chain:016x}"


def name_of_large(origin: int, token: int) -> str:
    """Of a large one, while its hash has not come."""
    return f"{origin:08x}/large/{token:016x}"


def is_large(transaction: str) -> bool:
    """Whether that is the name of a large one."""
    return "/large/" in transaction


def decision_path(directory: Path, seqno: int) -> Path:
    """Where the decision about transaction `seqno` is."""
    return directory / f"{seqno}{SUFFIX}"


def write_decision(directory: Path, decision: Decision) -> Path:
    """Write it durably, in place of an older one; its path. JournalIOError, DiskFullError, PermissionRefusedError."""
    path = decision_path(directory, decision.seqno)
    facts = {"format": FORMAT, **to_builtins(decision)}
    if decision.how == SKIP:
        del facts["how"]  # a release that knows nothing else reads it; of anything else it decides nothing
    replace_file(path, (json.dumps(facts, indent=2) + "\n").encode())
    return path


def read_decision(directory: Path, seqno: int) -> Decision | None:
    """The one about that number; None where there is none that can be read: then nothing is decided."""
    try:
        facts: dict[str, Any] = json.loads(read_private(decision_path(directory, seqno)))
        if facts.pop("format") != FORMAT:
            return None
        found = Decision(**facts)
    except (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError):
        return None
    kinds = {"seqno": int, "until": int}
    is_well = all(type(value) is kinds.get(name, str) for name, value in to_builtins(found).items())
    return found if is_well and found.seqno == seqno and found.how in HOW else None


def find_decision(
    directory: Path, seqno: int, transaction: str, table: str, named_at: Callable[[int], str]
) -> Decision | None:
    """The decision that counts for a conflict, see `Decision.covers`; its own before one of several numbers."""
    numbers = []
    for path in directory.glob(f"*{SUFFIX}"):
        with suppress(ValueError):
            numbers.append(int(path.name.removesuffix(SUFFIX)))
    for number in sorted((one for one in numbers if one <= seqno), reverse=True):
        found = read_decision(directory, number)
        if found is not None and found.covers(seqno, transaction, table, named_at):
            return found
    return None
