"""What the clients were told against what is there: in both databases, in both journals, transaction by transaction.

Guarantees: every figure that must be zero is counted here and nowhere else; what could not be looked at is an
exception, not a zero. Leaves to others: what was killed. It opens doors, so it is called in a process of its own.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from replicate.audit.verify import verify_journal
from replicate.compare.compare import compare
from replicate.door.recovery.opening import make_chain
from replicate.door.snapshot import door_of
from replicate.door.wait import wait_for_seqno
from replicate.instance.instance import Instance
from replicate.journal.reader import ChainReader, LargeTransaction
from replicate.journal.record import (
    check_frame,
    decode,
    decode_changes,
    proven_after,
    read_part,
    unpacker,
)
from replicate.journal.walk import walk
from replicate.model.transaction import Op, RowChange
from replicate.pool import control as word
from replicate.region.sqlite.open import open_region
from replicate.system.locks import FileLock
from tests.faults.client import NUMBERS, Where, where
from tests.faults.shares import Wants, wants_all

ZERO: Final = (
    "acknowledged but missing",
    "failed but present",
    "duplicates",
    "gaps",
    "order errors",
    "rows that are not wanted",
    "torn between regions",
    "digests unequal",
    "not converged",
    "unexpected ends",
)
"""The figures that must be zero."""
REGIONS: Final = (("main", "op"), ("side", "twin"))
"""Each region, and the table that has a row for a transaction in it."""


@dataclass
class Told:
    """What the clients wrote down."""

    ok: dict[int, int] = field(default_factory=dict)
    """Transaction -> its seqno."""
    at_ns: dict[int, int] = field(default_factory=dict)
    """Transaction -> when its commit returned."""
    failed: set[int] = field(default_factory=set)
    unknown: set[int] = field(default_factory=set)

    @property
    def submitted(self) -> int:
        return len(self.ok) + len(self.failed) + len(self.unknown)


def read_told(directory: Path) -> Told:
    """All the files of clients below `directory`."""
    told = Told()
    for path in sorted(directory.glob("client-*.jsonl")):
        for line in path.read_bytes().split(b"\n")[:-1]:
            facts = json.loads(line)
            op, result = facts["op"], facts.get("result")
            if result is None:
                told.unknown.add(op)
                continue
            if result == "ok":
                told.ok[op] = facts["seqno"]
                told.at_ns[op] = facts["t"]
            elif result == "failed":
                told.failed.add(op)
            if result != "unknown":
                told.unknown.discard(op)
    return told


@dataclass
class Walked:
    """A journal, read from its oldest segment on."""

    first_seqno: int = 0
    last_seqno: int = 0
    ops: list[tuple[int, int]] = field(default_factory=list)
    """(seqno, transaction), in the journal's order."""
    gaps: int = 0
    torn: int = 0
    """Transactions whose rows are not in the regions where they belong, or not all of one transaction."""
    times_reused: int = 0
    """Transactions whose time (CSN) is not after that of the one before, of the same origin."""


def walk_journal(instance: Instance, wants: Wants = wants_all) -> Walked:
    """Number by number, chain hash by chain hash; what does not follow counts as a gap. Nobody prunes meanwhile.
    `wants`: of which rows it has transactions."""
    lock = FileLock(instance.locks_directory / "prune.lock")
    try:
        lock.acquire(60.0, what="pruning")
        return _walk(instance, wants)
    finally:
        lock.close()


def _walk(instance: Instance, wants: Wants) -> Walked:
    chain = make_chain(instance)
    with door_of(instance) as door:
        last = int(door.words[word.LAST_SEQNO])
        tables = {d.table_id: d.table for d in door.catalogue_now().definitions.values() if d.table in ("op", "twin")}
    first = min(chain.first_seqnos())
    walked = Walked(first, last)
    reader = ChainReader(chain, first)
    chains: dict[int, int] = {}
    csns: dict[int, int] = {}
    expected = first
    try:
        while (piece := reader.read(1 << 20, last)) is not None:
            is_large = isinstance(piece, LargeTransaction)
            frames = [piece.commit_frame] if isinstance(piece, LargeTransaction) else _frames(piece.data)
            for frame in frames:
                head = check_frame(frame)
                known = chains.get(head.origin)
                if head.seqno != expected or (
                    known is not None and not proven_after(frame, head.kind, head.chain, known)
                ):
                    walked.gaps += 1
                chains[head.origin] = head.chain
                walked.times_reused += head.csn <= csns.get(head.origin, 0)
                csns[head.origin] = head.csn
                expected = head.seqno + 1
                changes = _large_changes(piece) if is_large else decode(frame).content  # type: ignore[arg-type]
                rows = [
                    (tables[change.table_id], int(change.after[0]), int(change.after[3]))
                    for change in changes
                    if isinstance(change, RowChange)
                    and change.table_id in tables
                    and change.op == Op.INSERT
                    and change.after is not None
                ]
                ops = sorted({op for _, op, _ in rows})
                walked.ops += [(head.seqno, op) for op in ops]
                walked.torn += len(ops) > 1
                walked.torn += sum(
                    {table for table, one, _ in rows if one == op} != _tables(op, value, wants)
                    for op, value in {(op, value) for _, op, value in rows}
                )
    finally:
        reader.close()
    walked.gaps += expected != last + 1
    return walked


def _tables(op: int, value: int, wants: Wants) -> set[str]:
    """In which tables the row of a transaction is, where `wants` says what there is."""
    return {table for table in TABLES[where(op, value)] if wants(table, op)}


def _frames(data: bytes) -> list[bytes]:
    return [data[offset : offset + head.frame_bytes] for offset, head in walk(data)]


def _large_changes(large: LargeTransaction) -> Iterator[object]:
    stream = unpacker()
    flat: list[object] = []
    for part in large.parts():
        stream.feed(read_part(part)[2])
        flat.extend(stream)
    return iter(decode_changes(flat))


TABLES: Final = {Where.MAIN: {"op"}, Where.SIDE: {"twin"}, Where.BOTH: {"op", "twin"}}


def rows_of(instance: Instance, region: str, table: str) -> list[tuple[int, int]]:
    """(transaction, value) of each row; quick_check's findings are an AssertionError."""
    connection = open_region(instance.region(region).path, readonly=True)
    try:
        found = connection.pragma("quick_check")
        assert found == "ok", f"quick_check of {instance.name}, region {region}: {found}"
        return [(int(op), int(value)) for op, value in connection.execute(f"SELECT id, value FROM {table}")]
    finally:
        connection.close(True)


def present(instance: Instance) -> set[int]:
    """The transactions in the regions."""
    return {op for region, table in REGIONS for op, _ in rows_of(instance, region, table)}


def judge_instance(
    instance: Instance,
    told: Told,
    figures: Counter[str],
    *,
    lost_may: frozenset[int] = frozenset(),
    wants: Wants = wants_all,
    due: frozenset[int] | None = None,
) -> None:
    """One side against what the clients were told. `lost_may`: acknowledged ones that the policy allows to be lost.
    `wants`: which rows it gets; `due`: the transactions with such rows, None for all."""
    connection = open_region(instance.region("main").path, readonly=True)
    try:
        totals: list[Any] = connection.execute(
            "SELECT t.client, t.n, t.last, count(o.id), max(o.number) FROM total t"
            " LEFT JOIN op o ON o.client = t.client GROUP BY t.client"
        ).fetchall()
    finally:
        connection.close(True)
    held = {table: rows_of(instance, region, table) for region, table in REGIONS}
    there = {op for rows in held.values() for op, _ in rows}
    acknowledged = told.ok.keys() if due is None else told.ok.keys() & due
    figures["acknowledged but missing"] += len(acknowledged - there - lost_may)
    unwanted = sum(not wants(table, op) for table, rows in held.items() for op, _ in rows)
    note(figures, "rows that are not wanted", unwanted, f"{instance.name}: rows that it does not subscribe to")
    figures["failed but present"] += len(told.failed & there)
    places: dict[tuple[int, int], set[str]] = {}
    for table, rows in held.items():
        figures["duplicates"] += len(rows) - len({op for op, _ in rows})
        for row in rows:
            places.setdefault(row, set()).add(table)
    torn = sum(found != _tables(op, value, wants) for (op, value), found in places.items())
    note(figures, "torn between regions", torn, f"{instance.name}: rows in one region that belong into another, too")
    figures["transactions over two regions"] += sum(len(found) == 2 for found in places.values())
    for client, n, last, count, highest in totals:
        if not wants("op", client * NUMBERS):
            continue
        figures["duplicates"] += max(0, n - count)
        figures["gaps"] += max(0, count - n)
        figures["order errors"] += last != highest
    _judge_journal(instance, told, there, figures, wants)


def note(figures: Counter[str], name: str, count: int, text: str) -> None:
    """Count a violation, and say what it was."""
    if count:
        figures[name] += count
        figures[f"found: {text}"] += count


def _judge_journal(instance: Instance, told: Told, there: set[int], figures: Counter[str], wants: Wants) -> None:
    walked = walk_journal(instance, wants)
    note(figures, "gaps", walked.gaps, f"walk of {instance.name}")
    note(figures, "torn between regions", walked.torn, f"journal of {instance.name}")
    note(figures, "order errors", walked.times_reused, f"times of {instance.name}")
    for finding in verify_journal(instance).findings:
        note(figures, "gaps", 1, f"verify of {instance.name}: {finding}")
    seen: Counter[int] = Counter(op for _, op in walked.ops)
    figures["duplicates"] += sum(count - 1 for count in seen.values())
    note(figures, "gaps", len(seen.keys() - there), f"{instance.name}: in the journal, and not in the region")
    known = {op for op in there if told.ok.get(op, 0) >= walked.first_seqno}
    note(figures, "gaps", len(known - seen.keys()), f"{instance.name}: in the region, and not in the journal")
    last_of: dict[int, int] = {}
    for seqno, op in walked.ops:
        client = op // NUMBERS
        figures["order errors"] += op <= last_of.get(client, 0)
        last_of[client] = op
        figures["order errors"] += told.ok.get(op, seqno) != seqno
    figures["transactions walked"] += len(walked.ops)


def judge_both(
    primary: Instance,
    secondary: Instance,
    told: Told,
    figures: Counter[str],
    *,
    timeout_s: float,
    lost_may: frozenset[int] = frozenset(),
    caught_up: Callable[[], object] = lambda: None,
    wants: Wants = wants_all,
) -> None:
    """Wait until the secondary has what the primary has; then judge either, and compare the two row by row. `caught_up`
    is called in between. `wants`: which rows the secondary gets."""
    with door_of(primary) as door:
        last = int(door.words[word.LAST_SEQNO])
    try:
        wait_for_seqno(secondary, last, timeout_s=timeout_s)
    except Exception:
        figures["not converged"] += 1
        raise
    caught_up()
    figures["digests compared"] += 1
    figures["digests unequal"] += not compare(primary, secondary, timeout_s=30).equal
    judge_instance(primary, told, figures, lost_may=lost_may)
    rows = {table: rows_of(primary, region, table) for region, table in REGIONS}
    due = frozenset(op for table, found in rows.items() for op, _ in found if wants(table, op))
    judge_instance(secondary, told, figures, lost_may=lost_may, wants=wants, due=None if wants is wants_all else due)
    if wants is not wants_all:
        figures["transactions that a part is wanted of, or nothing"] += len(told.ok.keys() - due)
