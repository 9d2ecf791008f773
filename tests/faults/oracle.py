"""What the clients were told against what is there: in both databases, in both journals, transaction by transaction.

Guarantees: every figure that must be zero is counted here and nowhere else; what could not be looked at is an
exception, not a zero. Refuses to know: what was killed. It opens doors, so it is called in a process of its own.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from replicate.compare.compare import compare
from replicate.database.sqlite import open_region
from replicate.door.opening import make_chain
from replicate.instance.instance import Instance
from replicate.journal.reader import ChainReader, LargeTransaction
from replicate.journal.record import chain_of, check_frame, decode, decode_changes, read_part, unpacker, walk
from replicate.journal.verify import verify_journal
from replicate.pool import control as word
from replicate.snapshot import door_of
from replicate.transaction import Op, RowChange
from replicate.wait import wait_for_seqno

ZERO: Final = (
    "acknowledged but missing",
    "failed but present",
    "duplicates",
    "gaps",
    "order errors",
    "digests unequal",
    "not converged",
    "unexpected ends",
)
"""The figures that must be zero."""


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
    times_reused: int = 0
    """Transactions whose time (CSN) is not behind that of the one before, of the same origin."""


def walk_journal(instance: Instance) -> Walked:
    """Number by number, chain hash by chain hash; what does not follow counts as a gap."""
    chain = make_chain(instance)
    with door_of(instance) as door:
        last = int(door.words[word.LAST_SEQNO])
        tables = {d.table_id for d in door.catalogue_now().definitions.values() if d.table == "op"}
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
                if head.seqno != expected or (known is not None and chain_of(frame, known) != head.chain):
                    walked.gaps += 1
                chains[head.origin] = head.chain
                walked.times_reused += head.csn <= csns.get(head.origin, 0)
                csns[head.origin] = head.csn
                expected = head.seqno + 1
                changes = _large_changes(piece) if is_large else decode(frame).content  # type: ignore[arg-type]
                walked.ops += [
                    (head.seqno, int(change.after[0]))
                    for change in changes
                    if isinstance(change, RowChange)
                    and change.table_id in tables
                    and change.op == Op.INSERT
                    and change.after is not None
                ]
    finally:
        reader.close()
    walked.gaps += expected != last + 1
    return walked


def _frames(data: bytes) -> list[bytes]:
    return [data[offset : offset + head.frame_bytes] for offset, head in walk(data)]


def _large_changes(large: LargeTransaction) -> Iterator[object]:
    stream = unpacker()
    flat: list[object] = []
    for part in large.parts():
        stream.feed(read_part(part)[2])
        flat.extend(stream)
    return iter(decode_changes(flat))


def judge_instance(
    instance: Instance, told: Told, figures: Counter[str], *, lost_may: frozenset[int] = frozenset()
) -> None:
    """One side against what the clients were told. `lost_may`: acknowledged ones that the policy allows to be lost."""
    connection = open_region(instance.region("main").path, readonly=True)
    try:
        ops: list[int] = [int(str(row[0])) for row in connection.execute("SELECT id FROM op")]
        totals: list[Any] = connection.execute(
            "SELECT t.client, t.n, t.last, count(o.id), max(o.number) FROM total t"
            " LEFT JOIN op o ON o.client = t.client GROUP BY t.client"
        ).fetchall()
        if connection.pragma("quick_check") != "ok":
            note(figures, "gaps", 1, f"quick_check of {instance.name}")
    finally:
        connection.close(True)
    there = set(ops)
    figures["acknowledged but missing"] += len(told.ok.keys() - there - lost_may)
    figures["failed but present"] += len(told.failed & there)
    figures["duplicates"] += len(ops) - len(there)
    for _, n, last, count, highest in totals:
        figures["duplicates"] += max(0, n - count)
        figures["gaps"] += max(0, count - n)
        figures["order errors"] += last != highest
    _judge_journal(instance, told, there, figures)


def note(figures: Counter[str], name: str, count: int, text: str) -> None:
    """Count a violation, and say what it was."""
    if count:
        figures[name] += count
        figures[f"found: {text}"] += count


def _judge_journal(instance: Instance, told: Told, there: set[int], figures: Counter[str]) -> None:
    walked = walk_journal(instance)
    note(figures, "gaps", walked.gaps, f"walk of {instance.name}")
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
        client = op // 1_000_000
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
) -> None:
    """Wait until the secondary has what the primary has; then judge either, and compare the two row by row. `caught_up`
    is called in between."""
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
    for instance in (primary, secondary):
        judge_instance(instance, told, figures, lost_may=lost_may)
