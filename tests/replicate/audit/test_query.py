"""What of a journal is asked for: numbers, times, tables, the last so many; and how little is read for it."""

from __future__ import annotations

import tracemalloc
from collections.abc import Iterator
from contextlib import nullcontext
from functools import partial
from itertools import product
from pathlib import Path

import pytest

from replicate.audit.query import Query, find
from replicate.audit.selection import shortest_names, tables_named
from replicate.audit.stretches import Stretch, StretchMatches
from replicate.errors import DamagedError, NotFoundError, UsageError
from replicate.journal.segment import SegmentFile
from replicate.limits import PART_BYTES
from replicate.model.moment import first_csn, last_csn, wall_us
from replicate.model.transaction import Catalogue, History
from replicate.model.vector import SynchronizationVector
from tests.harness.journals import (
    INSTANCE,
    ToyJournal,
    define_payload,
    flip,
    frame_places,
    insert_payload,
    make_definition,
    show_chain,
)

CUSTOMER, PURCHASE, MADE = make_definition(), make_definition("purchase"), make_definition("made")


@pytest.fixture
def journal(tmp_path: Path) -> Iterator[ToyJournal]:
    """Its csns are seqno << 16, so a transaction every 16 µs. 1 and 2 define the tables; a segment each: 1 to 8,
    9 to 12, 13 to 19; 14 is large, in segments of its own; every third is a purchase, all others are of customers."""
    history = History(INSTANCE, "east", 1, 0, SynchronizationVector(), "a new instance")
    toy = ToyJournal(tmp_path / "journal", catalogue=Catalogue(histories=(history,)))
    for definition in (CUSTOMER, PURCHASE):
        toy.append(toy.maker.transaction(payload=define_payload(definition)))
    for seqno in range(3, 20):
        table = PURCHASE if seqno % 3 == 0 else CUSTOMER
        if seqno == 14:
            rows = [insert_payload([n, "x" * 1000, None], CUSTOMER.table_id)[0] for n in range(PART_BYTES // 900)]
            late = define_payload(MADE)[0] + insert_payload([1, "made in it", None], MADE.table_id)[0]
            toy.adopt(b"".join([*rows, late]))
            toy.catalogue = toy.catalogue.with_definition(MADE)
            toy.switch()
            continue
        toy.append(toy.maker.transaction(payload=insert_payload([seqno, "x", None], table.table_id)))
        if seqno in (8, 12):
            toy.catalogue = toy.catalogue.with_definition(CUSTOMER).with_definition(PURCHASE)
            toy.switch()
    toy.sidecar.write(19)
    yield toy
    toy.close()


def numbers(journal: ToyJournal, query: Query) -> list[int]:
    return [one.seqno for one in find(journal.chain, query)]


def touches(seqno: int, table: str) -> bool:
    if table == "purchase":
        return seqno == 2 or (seqno > 2 and seqno % 3 == 0)
    return seqno == 14 if table == "made" else seqno not in (2,) and seqno % 3 != 0 if seqno > 2 else seqno == 1


@pytest.mark.slow
def test_every_combination_is_what_one_would_pick_by_hand(journal: ToyJournal) -> None:
    csn_of = {one.seqno: one.csn for one in show_chain(journal.chain)}
    assert list(csn_of) == list(range(1, 20))
    tried = 0
    tables = (None, "purchase", "made", "main.customer")
    for (first, last), since, until, table, count in product(
        ((None, None), (5, 16)), (None, 9), (None, 8, 14), tables, (None, 1, 3)
    ):
        query = Query(
            first,
            last,
            first_csn(wall_us(csn_of[since])) if since else 0,
            last_csn(wall_us(csn_of[until])) if until else 2**64 - 1,
            (table,) if table else (),
            count,
        )
        if since and until and since > until:
            with pytest.raises(UsageError, match="--since is later than --until"):
                find(journal.chain, query)
            continue
        wanted = [
            seqno
            for seqno in range(first or 1, (last or 19) + 1)
            if (since or 1) <= seqno <= (until or 19) and (table is None or touches(seqno, table.removeprefix("main.")))
        ]
        assert numbers(journal, query) == (wanted[-count:] if count else wanted), query
        tried += 1
    assert tried == 120


def test_a_time_before_or_after_all_of_it(journal: ToyJournal) -> None:
    for query in (Query(first_csn=2**60), Query(last_csn=5), Query(first_csn=2**60, last_count=3)):
        with pytest.raises(UsageError, match=r"the journal tells of 1970-01-01 .* to 1970-01-01") as caught:
            numbers(journal, query)
        assert caught.value.do.startswith("Give --since and --until within that")
    assert list(find(journal.chain, Query(first_csn=2**60), known_to_csn=2**60)) == []  # nothing has come since


def test_a_time_outside_of_stretches(journal: ToyJournal) -> None:
    """As above, where none of the segments is there but for a look at it."""
    firsts = journal.chain.first_seqnos()
    lasts = [*(number - 1 for number in firsts[1:]), journal.last_seqno]
    made = [Stretch(*numbers, partial(nullcontext, journal.chain)) for numbers in zip(firsts, lasts, strict=True)]
    csns = [one.csn for one in show_chain(journal.chain)]
    between = Query(first_csn=csns[3], last_csn=csns[5])
    assert [one.seqno for one in StretchMatches(made, between, "here")] == [4, 5, 6]
    for query in (Query(first_csn=csns[-1] + 1), Query(last_csn=csns[0] - 1)):
        with pytest.raises(UsageError, match="the journal tells of"):
            StretchMatches(made, query, "here")


def test_the_last_ones_are_not_looked_for_from_the_start(journal: ToyJournal, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nor is a time: a journal of twenty million is a thousand such segments."""
    opened: list[int] = []
    real = journal.chain.open

    def opening(first_seqno: int) -> SegmentFile:
        opened.append(first_seqno)
        return real(first_seqno)

    monkeypatch.setattr(journal.chain, "open", opening)
    for query, wanted, looked in (
        (Query(last_count=3), [17, 18, 19], {14, 15}),
        (Query(last_count=2, tables=("purchase",)), [15, 18], {14, 15}),
        (Query(last_count=1, tables=("made",)), [14], {13, 14, 15}),
        (Query(first_csn=18 << 16), [18, 19], {13, 14, 15}),
    ):
        opened.clear()
        journal.chain._headers.clear()
        assert numbers(journal, query) == wanted
        assert set(opened) <= looked, query
    opened.clear()
    assert numbers(journal, Query(last_csn=10 << 16, last_count=1)) == [10]
    assert opened.count(1) <= 1  # a bisection may look at when it begins


def test_only_changes_of_a_table_are_shown_and_counted(journal: ToyJournal) -> None:
    both = insert_payload([1, "a", None], CUSTOMER.table_id)[0] + insert_payload([2, "b", None], PURCHASE.table_id)[0]
    journal.append(journal.maker.transaction(payload=(both, 8)))
    (shown,) = show_chain(journal.chain, Query(20, tables=("Purchase",)))
    assert [one.after for one in shown.changes] == [(2, "b", None)]
    assert shown.change_count == 2
    assert next(shown.lines()).endswith("1 of 2 changes")


def test_of_a_large_transaction_only_the_parts_that_touch_a_table(journal: ToyJournal) -> None:
    shown = list(show_chain(journal.chain, Query(tables=("made",)), parts=True))
    assert [(one.kind, one.seqno) for one in shown] == [("LARGE", 14), ("PART", 14)]
    assert [one.what for one in shown[1].changes] == ["DEFINE", "INSERT"]
    assert [one.kind for one in show_chain(journal.chain, Query(tables=("made",)))] == ["LARGE"]


def test_when_and_by_whom(journal: ToyJournal) -> None:
    journal.append(journal.maker.history(2))
    journal.write(1)
    first, second, third = (next(iter(show_chain(journal.chain, Query(seqno, seqno)))) for seqno in (19, 20, 21))
    assert (first.wall, first.wall_ns) == ("1970-01-01T00:00:00.000304Z", 304_000)
    assert (first.origin_name, first.origin_incarnation, second.origin_name) == ("east", 1, "alpha")
    assert next(first.lines()).startswith("19  TRANSACTION  1970-01-01 00:00:00.000304 UTC  origin east/19  ")
    assert "begins after origin east: test" in list(second.lines())[1]
    assert "origin alpha (incarnation 2)/1  " in next(third.lines())


def test_an_origin_that_nobody_has_told_of_is_its_number(tmp_path: Path) -> None:
    toy = ToyJournal(tmp_path / "journal")
    toy.write(1)
    (shown,) = show_chain(toy.chain)
    toy.close()
    assert (shown.origin_name, shown.origin_incarnation) == (None, None)
    assert f"origin {shown.origin}/1" in next(shown.lines())


def test_a_table_by_its_name() -> None:
    known = [("main", "main", "item"), ("stock", "main", "item"), ("main", "main", "a.b"), ("stock", "main", "Shelf")]
    assert tables_named(["shelf", "main.item"], known) == {known[3], known[0]}
    assert tables_named(["a.b", "stock.main.item"], known) == {known[2], known[1]}
    with pytest.raises(UsageError, match="'item' may be each of 2 tables") as found:
        tables_named(["item"], known)
    assert found.value.do == "Say main.item or stock.item"
    with pytest.raises(NotFoundError, match="knows no table 'itme'") as missing:
        tables_named(["itme"], known)
    assert "stock.Shelf" in missing.value.do
    with pytest.raises(NotFoundError):
        tables_named(["x"], [])


def test_the_fewest_words_that_name_each_table() -> None:
    known = [("main", "main", "Purchase"), ("stock", "main", "purchase"), ("main", "main", "customer")]
    assert shortest_names(known) == ["main.Purchase", "stock.purchase", "customer"]
    assert [tables_named([name], known) for name in shortest_names(known)] == [frozenset({one}) for one in known]


@pytest.mark.slow
def test_memory_does_not_grow_with_what_is_shown(tmp_path: Path) -> None:
    """Many transactions, and one of many parts, are shown in the memory of a few."""
    toy = ToyJournal(tmp_path / "journal")
    toy.append(toy.maker.transaction(payload=define_payload(CUSTOMER)))
    for _ in range(20):
        toy.append(b"".join(toy.maker.transaction("x" * 1000) for _ in range(200)))
    rows = [insert_payload([n, "x" * 1000, None], CUSTOMER.table_id)[0] for n in range(4_000)]
    toy.catalogue = toy.catalogue.with_definition(CUSTOMER)
    toy.adopt(b"".join(rows))
    del rows

    def walk(query: Query) -> int:
        return sum(len(one.changes) for one in show_chain(toy.chain, query, parts=True))

    tracemalloc.start()
    try:
        assert walk(Query()) == 1 + 4_000 + 1 + 4_000
        assert walk(Query(tables=("customer",), last_count=5)) == 1 + 1 + 4_000
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
        toy.close()
    assert peak < 6 * 2**20, peak


def test_without_a_table_all_changes_are_told(journal: ToyJournal) -> None:
    for one in show_chain(journal.chain, Query(), parts=True):
        assert one.change_count == len(one.changes)


@pytest.mark.turns(4)
@pytest.mark.parametrize(
    ("bad", "first", "last", "told"),
    [
        ((5,), 5, None, []),
        ((5,), 6, None, [6, 7, 8, *range(9, 20)]),  # and the segments after it
        ((5,), 6, 7, [6, 7]),
        ((5, 7), 6, None, [6]),  # up to the next bad place
        ((5, 7), 8, 9, [8, 9]),
        ((17,), 18, None, [18, 19]),  # the newest segment
        ((17,), 20, None, []),
    ],
)
def test_what_stands_after_a_bad_place_is_given_before_the_error(
    journal: ToyJournal, bad: tuple[int, ...], first: int, last: int | None, told: list[int]
) -> None:
    for seqno in reversed(bad):  # places after a bad one are not found
        begin = max(number for number in journal.chain.first_seqnos() if number <= seqno)
        flip(Path(journal.chain.path_of(begin)), frame_places(journal.chain, begin)[seqno] + 70)
    given: list[int] = []
    with pytest.raises(DamagedError) as caught:
        given.extend(one.seqno for one in find(journal.chain, Query(first, last)))
    assert given == told
    named = max(seqno for seqno in bad if seqno <= first)
    assert caught.value.what.startswith(f"the journal can be read up to transaction {named - 1}: ")
    assert f"; transaction {named} cannot be read, {named + 1} stands at offset " in caught.value.what
    assert f", offset {caught.value.facts['offset']}" in caught.value.where
    assert "journal verify" in caught.value.do


def test_of_what_stands_after_a_bad_place_a_table_can_be_asked_for(journal: ToyJournal) -> None:
    flip(Path(journal.chain.path_of(1)), frame_places(journal.chain, 1)[4] + 70)
    given: list[int] = []
    with pytest.raises(DamagedError):
        given.extend(one.seqno for one in find(journal.chain, Query(5, 12, tables=("purchase",))))
    assert given == [6, 9, 12]
