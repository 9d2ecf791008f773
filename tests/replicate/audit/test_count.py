"""Counts against a plain decode of everything."""

from __future__ import annotations

import random
import tracemalloc
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from replicate.audit.changes import records_backwards
from replicate.audit.count import Counts
from replicate.audit.query import Matches
from replicate.audit.selection import Selection
from replicate.errors import UsageError
from replicate.model.moment import shown_us, wall_us
from replicate.model.transaction import Kind
from tests.harness.journals import ToyJournal, define_payload, insert_payload, make_definition
from tests.harness.random_journal import Plain, RandomJournal, op_of, plain_decode, questions


def groups_of(one: Plain, change: Any, by: tuple[str, ...], names: dict[int, str]) -> tuple[object, ...]:
    definition = getattr(change, "definition", None) or one.known.get(getattr(change, "table_id", 0))
    op = op_of(change)
    made = {
        "table": "" if definition is None else f"{definition.region}.{definition.table}",
        "op": one.kind.name.lower() if op is None else op.name.lower(),
        "origin": names[one.origin],
        "minute": shown_us(wall_us(one.csn) // 60_000_000 * 60_000_000),
    }
    return tuple(made[word] for word in by)


@pytest.mark.turns(4)
@pytest.mark.parametrize("seed", range(6))
def test_counts_are_those_of_a_plain_decode(seed: int, tmp_path: Path) -> None:
    made = RandomJournal(tmp_path / "journal", seed)
    plain = list(plain_decode(made.chain))
    names = {one.origin.key: f"{one.name}/{one.incarnation}" for one in made.toy.catalogue.histories}
    dice = random.Random(seed)
    for selection in questions(plain, dice):
        for by in (("table", "op"), ("origin",), ("minute", "table"), ("op", "origin")):
            changes: Counter[Any] = Counter()
            transactions: Counter[Any] = Counter()
            for one in plain:
                chosen = one.chosen(selection)
                if chosen is None:
                    continue
                groups = [groups_of(one, change, by, names) for change in chosen]
                transactions.update(set(groups))
                if one.kind in (Kind.TRANSACTION, Kind.LARGE):
                    changes.update(groups)
            counts = Counts(by)
            counts.add(Matches(made.chain, 1, len(plain), selection).frames())
            assert {row[:-2]: row[-2:] for row in counts.rows()} == {
                group: (count, changes[group]) for group, count in transactions.items()
            }, (selection, by)


@pytest.mark.parametrize(
    ("by", "what"), [(("colour",), "'colour'"), (("hour", "day"), "twice"), (("op", "op"), "twice")]
)
def test_what_cannot_be_counted_by(by: tuple[str, ...], what: str) -> None:
    with pytest.raises(UsageError, match=what):
        Counts(by)


@pytest.mark.slow
def test_memory_does_not_grow_with_what_is_read(tmp_path: Path) -> None:
    """Counted, and read backwards: many transactions, and one of many parts, in the memory of a few."""
    toy = ToyJournal(tmp_path / "journal")
    definition = make_definition()
    toy.append(toy.maker.transaction(payload=define_payload(definition)))
    for _ in range(20):
        frames = [
            toy.maker.transaction(payload=insert_payload([n, "x" * 1000, None], definition.table_id))
            for n in range(200)
        ]
        toy.append(b"".join(frames))
    toy.catalogue = toy.catalogue.with_definition(definition)
    toy.adopt(b"".join(insert_payload([n, "x" * 1000, None], definition.table_id)[0] for n in range(4_000)))
    toy.close()
    found = Matches(toy.chain, 1, toy.last_seqno, Selection(tables=frozenset({definition.name})))
    tracemalloc.start()
    try:
        counts = Counts(("table", "op"))
        counts.add(found.frames())
        assert list(counts.rows())[1] == ("main.customer", "insert", 4_001, 8_000)
        assert sum(1 for match in found.backwards() for _ in records_backwards(match)) == 8_001
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert peak < 12 * 2**20, peak
