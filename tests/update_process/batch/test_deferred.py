"""Changes that wait as bytes: what comes out is what went in, in an order that is allowed, and nothing else ever."""

from __future__ import annotations

import random
from collections import Counter
from itertools import groupby
from typing import Any

import msgpack
import pytest

from replicate.errors import JournalDamagedError
from replicate.region.sqlite.apply.order import RowRun
from tests.harness.frames import COMMENT, DELETE, INSERT, UPDATE, Writer, pack_frame
from update_process.batch import deferred as packing
from update_process.batch.deferred import DeferredChanges
from update_process.window.columns import Changes

Change = tuple[Any, Any, Any, Any]
TABLES = (0x80000009, 0x8000000A, 0xFFFFFFFF)


def place_of(op: Any, table_id: Any, argument: Any) -> int | None:
    """The last table's rows have none."""
    if table_id == TABLES[2]:
        return None
    return 1 if op == UPDATE else 0


def written(changes: list[Change]) -> tuple[bytes, list[int]]:
    """Frames of one change each, and where they begin and end."""
    writer = Writer()
    frames = [writer.frame(list(change)) for change in changes]
    starts = [0]
    for frame in frames:
        starts.append(starts[-1] + len(frame))
    return b"".join(frames), starts


def columns(changes: list[Change]) -> Changes:
    return Changes(*zip(*changes, strict=True))


def taken(
    changes: list[Change], data: bytes = b"", starts: list[int] | None = None, window: int | None = None
) -> list[RowRun]:
    """What comes out when all of it is taken, `window` changes at a time, or each stretch of one kind as a window."""
    if starts is None:
        data, starts = written(changes)
    packed = DeferredChanges(place_of, 0)
    begin = 0
    stretches = [len(list(stretch)) for _, stretch in groupby(changes, key=lambda change: change[:3])]
    for length in stretches if window is None else [window] * (len(changes) // window + 1):
        end = min(begin + length, len(changes))
        if begin == end:
            break
        assert packed.take(columns(changes[begin:end]), starts[begin:end], starts[begin + 1 : end + 1])
        begin = end
    return list(packed.runs(memoryview(data)))


def drawn(seed: int, count: int = 300, values: Any = None) -> list[Change]:
    dice = random.Random(seed)
    made: list[Change] = []
    for number in range(count):
        value = (
            values(dice) if values else dice.choice([number, "text", b"bytes", None, 1.5, msgpack.ExtType(1, b"\xff")])
        )
        key = dice.choice([dice.randint(1, 9), dice.randint(-(2**63), 2**63 - 1), number])
        table_id = dice.choice(TABLES[:2])
        if dice.random() < 0.5:
            mask: Any = dice.choice([2, 1 << 7, 1 << 40, b"\x02" + bytes(12)])
            made.append((UPDATE, table_id, mask, (value, key, number)))
        else:
            made.append((dice.choice([INSERT, DELETE]), table_id, 0, (key, value, number)))
    return made


@pytest.mark.parametrize("window", [None, 1, 7, 1000])
@pytest.mark.parametrize("seed", range(12))
def test_what_comes_out_is_what_went_in(seed: int, window: int | None) -> None:
    changes = drawn(seed)
    made: list[Change] = []
    for run in taken(changes, window=window):
        kinds = set(zip(run.ops, run.table_ids, run.arguments, strict=True))
        rowids = [row[place_of(op, table, mask) or 0] for op, table, mask, row in zip(*run[:4], strict=True)]
        assert rowids == sorted(rowids)
        assert len(kinds) == 1 or not run.is_uniform
        made += zip(*run[:4], strict=True)
    assert Counter(map(repr, made)) == Counter(map(repr, changes))
    orders: dict[tuple[int, int], list[int]] = {}
    for op, table_id, mask, row in made:
        orders.setdefault((table_id, row[place_of(op, table_id, mask) or 0]), []).append(row[2])
    assert all(order == sorted(order) for order in orders.values())


def test_no_more_is_decoded_at_a_time_than_was_said(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(packing, "CHUNK_BYTES", 5000)
    monkeypatch.setattr(packing, "CHUNK_CHANGES", 40)
    changes = drawn(1, values=lambda dice: bytes(dice.choice([1, 1, 1, 4000, 9000])))
    runs = taken(changes)
    assert max(len(run.ops) for run in runs) > 5
    for run in runs:
        assert len(run.ops) <= 40
        assert len(run.ops) == 1 or sum(len(msgpack.packb(row)) for row in run.values) <= 5000


@pytest.mark.parametrize(
    "change",
    [
        (COMMENT, 0, 0, (1, 2)),
        (INSERT, TABLES[2], 0, (1, 2)),
        (INSERT, TABLES[0], 0, ("1", 2)),
        (INSERT, TABLES[0], 0, (True, 2)),
        (INSERT, TABLES[0], 0, (2**63, 2)),
        (INSERT, TABLES[0], 0, ()),
        (INSERT, TABLES[0], 0, b"12"),
        (INSERT, [TABLES[0]], 0, (1, 2)),
        (UPDATE, TABLES[0], 1, (1,)),
    ],
)
def test_what_has_no_place_is_not_taken_and_leaves_no_trace(change: Change) -> None:
    packed = DeferredChanges(place_of, 0)
    good: Change = (INSERT, TABLES[0], 0, (7, "seven"))
    data, starts = written([good, good, change, good])
    assert packed.take(columns([good]), starts[:1], starts[1:2])
    assert not packed.take(columns([change]), starts[2:3], starts[3:4])
    assert not packed.take(columns([good, change]), starts[1:3], starts[2:4])
    assert packed.take(columns([good]), starts[3:4], starts[4:])
    assert [row for run in packed.runs(memoryview(data)) for row in run.values] == [(7, "seven")] * 2


@pytest.mark.parametrize(
    "head",
    [
        [b"\xcc\x02", b"\xce\x80\x00\x00\x09", b"\x02"],
        [b"\x02", b"\xcf\x00\x00\x00\x00\x80\x00\x00\x09", b"\x02"],
        [b"\x02", b"\xce\x80\x00\x00\x09", b"\xcd\x00\x02"],
    ],
)
def test_values_that_are_not_where_they_should_be_are_never_taken_for_others(head: list[bytes]) -> None:
    """The same numbers, packed longer than need be: it decodes, so it may be in a frame."""
    values = ("after", 5, "before")
    shortest, _ = pack_frame(1, 1, 0, 0, 7, 1, 1, [UPDATE, TABLES[0], 2, list(values)])
    packed = msgpack.packb(values)
    assert shortest.endswith(packed)
    begin = len(shortest) - len(packed) - 7
    frame = shortest[:begin] + b"".join(head) + packed
    change: Change = (UPDATE, TABLES[0], 2, values)
    assert taken([change], shortest, [0, len(shortest)])[0].values == (values,)
    with pytest.raises(JournalDamagedError):
        taken([change], frame, [0, len(frame)])


def test_another_row_than_was_asked_for_is_refused() -> None:
    changes: list[Change] = [(INSERT, TABLES[0], 0, (key, "x")) for key in (1, 2)]
    data, starts = written(changes)
    packed = DeferredChanges(place_of, 0)
    assert packed.take(columns([changes[1], changes[0]]), starts[:-1], starts[1:])
    with pytest.raises(JournalDamagedError, match="another row"):
        list(packed.runs(memoryview(data)))


def test_memory_may_be_as_large_as_a_receive_pool_may_be() -> None:
    change: Change = (INSERT, TABLES[0], 0, (1, "x"))
    for memory_bytes, place in ((2**32 - 1, 2**32 - 100), (2**32, 2**32), (64 << 30, (64 << 30) - 100)):
        assert DeferredChanges(place_of, memory_bytes).take(columns([change]), [place - 50], [place])


def test_there_may_be_more_kinds_than_a_byte_can_number() -> None:
    changes: list[Change] = [(INSERT, table, 0, (table % 7, "x")) for table in range(TABLES[0], TABLES[0] + 300)]
    changes += [(INSERT, TABLES[0] + 299, 0, (key, "y")) for key in (9, 8)]
    data, starts = written(changes)
    packed = DeferredChanges(lambda *_: 0, len(data))
    assert packed.take(columns(changes[:300]), starts[:300], starts[1:301])
    assert packed.take(columns(changes[300:]), starts[300:302], starts[301:])
    found = [(*one, values) for run in packed.runs(memoryview(data)) for *one, values in zip(*run[:4], strict=True)]
    assert sorted(found) == sorted(changes)


def test_a_kind_may_be_longer_than_a_byte_can_count() -> None:
    """A table of very many columns, as a mask of them."""
    changes: list[Change] = [(UPDATE, TABLES[0], bytes(300), ("after", 5, "before")), (INSERT, TABLES[0], 0, (3, "x"))]
    data, starts = written(changes)
    packed = DeferredChanges(lambda op, *_: 1 if op == UPDATE else 0, len(data))
    assert packed.take(columns(changes), starts[:-1], starts[1:])
    assert [row for run in packed.runs(memoryview(data)) for row in run.values] == [(3, "x"), ("after", 5, "before")]
