"""update_process/batch/by_partition.py: what is counted of each partition is what brute force finds in the frames."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate

from hypothesis import given
from hypothesis import strategies as st

from replicate.journal.record import decode_batch, kind_of, mixed, pack_changes, pack_frame, pack_null, read_head
from replicate.model.transaction import Kind, Op
from update_process.batch.by_partition import PartitionCounts, row_tables
from update_process.plan import Window
from update_process.window.columns import verify_plain

BASE = 0x80000000
PARTITIONS = {BASE + 1: 1, BASE + 2: 2, BASE + 3: 2, BASE + 4: 3}
"""Of tables; another one is not here."""
TABLES = (*PARTITIONS, BASE + 9)
ROW = {Op.INSERT: [1, "x"], Op.DELETE: [1, "y"], Op.SEQUENCE: [1, 2]}

Found = dict[int, list[int]]
Transactions = Sequence[Sequence[tuple[int, int]]]
"""Of each its changes: op and table. Without any it is a NULL record."""


def window_of(transactions: Transactions, *, is_plain: bool) -> Window:
    """As the intake makes it; `is_plain`: by columns, if it can be."""
    frames, chain = [], 0
    for number, changes in enumerate(transactions, 1):
        packed = pack_changes([part for op, table in changes for part in (op, table, 0, ROW[Op(op)])])
        if changes:
            payload, count = mixed(packed, 4 * len(changes), {**PARTITIONS, BASE + 9: 9})
            frame, chain = pack_frame(kind_of(payload), number, 0, chain, 7, number, number << 12, payload, count)
        else:
            gone = pack_changes([int(Op.INSERT), BASE + 9, 0, [1]])
            whole, chain = pack_frame(Kind.TRANSACTION, number, 0, chain, 7, number, number << 12, gone, 4)
            frame = pack_null(read_head(whole), "", ())
        frames.append(frame)
    data, ends = b"".join(frames), list(accumulate(map(len, frames)))
    bodies = [decode_batch(frame)[2] for frame in frames]
    plain = verify_plain(data, bodies, ends, 1, {}) if is_plain else None
    return Window(1, data, bodies, ends, [], plain)


def brute_force(window: Window, transactions: Transactions, start: int, stop: int) -> Found:
    found: Found = {}
    for place in range(start, stop):
        size = window.ends[place] - window.offset(place)
        changed = {PARTITIONS[table] for _, table in transactions[place] if table in PARTITIONS}
        for partition in changed:
            counts = found.setdefault(partition, [0, 0, 0])
            counts[0] += 1
            counts[1] += sum(PARTITIONS.get(table) == partition and op != Op.SEQUENCE
                             for op, table in transactions[place])  # fmt: skip
            counts[2] += size
    return found


CHANGE = st.tuples(st.sampled_from(list(map(int, ROW))), st.sampled_from(TABLES))
ONE = st.lists(CHANGE, min_size=1, max_size=1)


@given(
    st.lists(st.lists(CHANGE, max_size=4), min_size=1, max_size=12) | st.lists(ONE, min_size=1, max_size=12),
    st.data(),
)
def test_counts_are_those_of_brute_force(transactions: Transactions, data: st.DataObject) -> None:
    """Of single changes and of many, by columns and by bodies, NULL records and transactions over several among them;
    of a stretch of the window, and one after the other."""
    window = window_of(transactions, is_plain=data.draw(st.booleans()))
    start = data.draw(st.integers(0, len(transactions) - 1))
    stop = data.draw(st.integers(start + 1, len(transactions)))
    counts, alone, whole = PartitionCounts(), PartitionCounts(), PartitionCounts()
    counts.add_window(window, start, stop, PARTITIONS.get)
    assert counts.found == brute_force(window, transactions, start, stop)
    for place in range(start, stop):
        size = window.ends[place] - window.offset(place)
        alone.add_single([part for op, table in transactions[place] for part in (op, table, 0, [])], size,
                         PARTITIONS.get)  # fmt: skip
    assert alone.found == counts.found
    for begin, end in ((0, start), (start, stop), (stop, len(transactions))):
        if begin < end:
            part = PartitionCounts()
            part.add_window(window, begin, end, PARTITIONS.get)
            whole.join(part)
    assert whole.found == brute_force(window, transactions, 0, len(transactions))


def test_a_large_one_by_its_rows() -> None:
    counts = PartitionCounts()
    counts.add_large({BASE + 2: 5, BASE + 3: 2, BASE + 9: 4}, 1000, PARTITIONS.get)
    assert counts.found == {2: [1, 7, 1000]}
    assert list(row_tables([int(Op.SEQUENCE), 1, 0, [], int(Op.INSERT), 2, 0, []])) == [2]
