"""Which supplier writes what: one for each partition, and the rest is somebody's, too."""

from __future__ import annotations

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from replicate.errors import JournalDamagedError
from replicate.limits import PARTITION_NONE, PARTITION_STREAM
from replicate.model.transaction import LEFT, PARTED, RETIRED, RETIRING, SHARED, WRITTEN
from replicate.model.writers import REST, Writers

ONE, OTHER = b"1" * 16, b"2" * 16
GIVEN = st.lists(st.tuples(st.integers(0, 5), st.sampled_from([ONE, OTHER])), max_size=6)


def test_where_nobody_was_named_nobody_writes() -> None:
    none = Writers()
    assert none.of(3) == b""
    assert not none.all_by(ONE)
    assert none.not_of(ONE, (3,)) == (3,)


def test_what_was_never_given_by_name_is_who_has_the_rest() -> None:
    writers = Writers({REST: ONE}).given(2, OTHER)
    assert (writers.of(1), writers.of(2)) == (ONE, OTHER)
    assert writers.not_of(ONE, (1, 2, 3)) == (2,)
    assert writers.not_of(OTHER, {3, 1, 2}) == (1, 3)


def test_comments_for_everybody_and_what_never_leaves_are_anybodys() -> None:
    assert Writers({REST: ONE}).not_of(OTHER, (PARTITION_STREAM, PARTITION_NONE)) == ()


@given(GIVEN)
def test_the_last_word_counts_and_all_is_all(given_: list[tuple[int, bytes]]) -> None:
    writers = Writers({REST: ONE})
    for number, to in given_:
        writers = writers.given(number, to)
    by = {REST: ONE, **dict(given_)}
    for number in range(7):
        assert writers.of(number) == by.get(number, by[REST])
    assert writers.all_by(ONE) == (OTHER not in by.values())


# Written by several.


def told(writers: Writers, *values: object, partition: int = 2) -> Writers:
    return writers.told(partition, values)


def test_who_shares_writes_beside_whose_it_is() -> None:
    writers = told(Writers({REST: ONE}).given(2, ONE), SHARED, OTHER, 1)
    assert writers.not_of(OTHER, (1, 2)) == (1,)
    assert writers.not_of(ONE, (1, 2)) == ()
    assert (writers.place(2, ONE), writers.place(2, OTHER), writers.place(1, OTHER)) == (0, 1, -1)
    assert writers.merged((0, 1, 2, PARTITION_NONE)) == (2,)
    assert (writers.sharing, writers.was_shared) == ((2,), True)
    assert not writers.all_by(ONE)
    assert writers.members() == {ONE, OTHER}


def test_who_has_left_writes_no_longer_and_keeps_its_place() -> None:
    writers = told(told(Writers({REST: ONE, 2: ONE}), SHARED, OTHER, 1), LEFT, OTHER)
    assert writers.not_of(OTHER, (2,)) == (2,)
    assert writers.all_by(ONE)
    assert (writers.sharing, writers.was_merged(2), writers.was_merged(1)) == ((), True, False)
    assert writers.members() == {ONE}, "it may have written beside what the other one wrote"
    assert (writers.free_place(2, OTHER), writers.free_place(2, b"3" * 16)) == (1, 2)


def test_all_that_has_no_writer_of_its_own_is_shared_together() -> None:
    writers = told(Writers({REST: ONE, 2: ONE}), SHARED, OTHER, 1, partition=REST)
    assert writers.not_of(OTHER, (1, 2, 5)) == (2,)
    assert writers.merged((1, 2, 5)) == (1, 5)


def test_rows_are_merged_whole_where_that_was_said_last() -> None:
    writers = told(Writers({REST: ONE, 2: ONE}), SHARED, OTHER, 1, True)
    assert writers.is_by_row(2)
    assert not writers.is_by_row(1)
    assert told(writers, LEFT, OTHER).is_by_row(2)
    assert not told(writers, SHARED, OTHER, 1).is_by_row(2)


@pytest.mark.parametrize("values", [(LEFT, OTHER), (SHARED, OTHER, "1"), (SHARED, OTHER, 0)])
def test_nonsense_is_named(values: tuple[object, ...]) -> None:
    with pytest.raises(JournalDamagedError):
        told(Writers({REST: ONE}), *values)


def test_what_is_given_is_a_change_like_the_others() -> None:
    assert told(Writers({REST: ONE}), WRITTEN, OTHER) == Writers({REST: ONE}).given(2, OTHER)


# Suppliers that are gone for good.

THIRD, FOURTH = b"3" * 16, b"4" * 16


def test_what_one_that_is_gone_wrote_is_its_heirs_once_all_have_parted() -> None:
    writers = told(Writers({REST: ONE, 2: OTHER}), SHARED, OTHER, 1, partition=REST)
    writers = told(writers, RETIRING, OTHER, ONE)
    known = {ONE, OTHER, THIRD}
    assert writers.is_gone(OTHER)
    assert (writers.to_part(ONE), writers.to_part(OTHER)) == ((OTHER,), ())
    writers = told(writers, PARTED, OTHER, ONE)
    assert (writers.awaited(OTHER, known), writers.to_retire(ONE, known)) == ({THIRD}, ())
    assert writers.not_of(OTHER, (1, 2)) == (), "what it wrote before is taken from the others"
    writers = told(writers, PARTED, OTHER, THIRD)
    assert (writers.to_retire(ONE, known), writers.to_retire(THIRD, known)) == ((OTHER,), ())
    writers = told(writers, RETIRED, OTHER, ONE)
    assert (writers.of(2), writers.others(REST), writers.to_retire(ONE, known)) == (ONE, {}, ())
    assert writers.not_of(OTHER, (1, 2)) == (1, 2)
    assert writers.members() == {ONE}, "nobody waits for what it has seen"


def test_who_shared_what_it_inherits_writes_it_alone() -> None:
    writers = told(Writers({REST: ONE}), SHARED, OTHER, 1, partition=REST)
    writers = told(writers, SHARED, THIRD, 2, partition=REST)
    writers = told(told(writers, RETIRING, ONE, OTHER), RETIRED, ONE, OTHER)
    assert (writers.of(1), writers.others(1), writers.place(1, THIRD)) == (OTHER, {THIRD: 2}, 2)
    assert writers.free_place(REST, FOURTH) == 3, "places are given once"


def test_of_two_that_are_gone_none_waits_for_the_other() -> None:
    writers = Writers({REST: ONE})
    for gone in (OTHER, THIRD):
        writers = told(told(writers, RETIRING, gone, ONE), PARTED, gone, ONE)
    assert writers.to_retire(ONE, {ONE, OTHER, THIRD}) == (OTHER, THIRD)


def test_one_that_joins_later_has_no_part_in_what_is_over() -> None:
    """It was never asked to part from one that is retired, and nobody waits for that."""
    writers = Writers({REST: ONE})
    for values in ((RETIRING, OTHER, ONE), (PARTED, OTHER, ONE), (RETIRED, OTHER, ONE)):
        writers = told(writers, *values)
    assert writers.to_part(THIRD) == ()
    writers = told(writers, RETIRING, FOURTH, ONE)
    assert writers.to_part(THIRD) == (FOURTH,)
    for one in (ONE, THIRD):
        writers = told(writers, PARTED, FOURTH, one)
    assert writers.to_retire(ONE, {ONE, OTHER, THIRD, FOURTH}) == (FOURTH,)


def test_an_heir_that_is_gone_too_is_none() -> None:
    writers = told(told(Writers({REST: ONE}), RETIRING, OTHER, ONE), RETIRING, OTHER, FOURTH)
    assert writers.heir(OTHER) == ONE, "the same one everywhere"
    assert told(writers, RETIRING, ONE, FOURTH).heir(OTHER) == FOURTH
    with pytest.raises(JournalDamagedError, match="of itself"):
        told(writers, RETIRING, OTHER, OTHER)


@pytest.mark.turns(4)
@pytest.mark.parametrize("seed", range(200))
def test_nothing_of_one_that_is_gone_comes_after_its_retirement(seed: int) -> None:
    """Sites send their journals to one another as they please, in order. One of them goes on writing, and sending to
    all that have not parted from it, until the end; others retire it, perhaps several at once, and perhaps two are
    gone. In no journal stands anything of one that is gone after the record that says that it is retired; all end
    with the same writers, and the same transactions."""
    rng = random.Random(seed)
    sites = [bytes([65 + at]) * 16 for at in range(rng.randint(3, 5))]
    gone = sites[: rng.choice([1, 1, 2])]
    living = sites[len(gone) :]
    journals: dict[bytes, list[tuple[bytes, int, tuple[object, ...]]]] = {site: [] for site in sites}
    writers = {site: Writers({REST: sites[0], 2: sites[-1]}) for site in sites}

    def write(site: bytes, *values: object) -> None:
        take(site, (site, sum(one[0] == site for one in journals[site]) + 1, values))

    def take(site: bytes, one: tuple[bytes, int, tuple[object, ...]]) -> None:
        journals[site].append(one)
        if one[2]:
            writers[site] = writers[site].told(REST, one[2])

    def carry(source: bytes, consumer: bytes, most: int) -> None:
        if writers[consumer].is_gone(source):
            return
        have = {(writer, number) for writer, number, _ in journals[consumer]}
        for one in [one for one in journals[source] if (one[0], one[1]) not in have][:most]:
            take(consumer, one)

    def tend(site: bytes) -> None:
        for one in writers[site].to_part(site):
            write(site, PARTED, one, site)
        for one in writers[site].to_retire(site, sites):
            write(site, RETIRED, one, site)

    for _ in range(rng.randint(20, 120)):
        what = rng.random()
        if what < 0.3:
            write(rng.choice(sites))
        elif what < 0.8:
            carry(*rng.sample(sites, 2), most=rng.randint(1, 9))
        elif what < 0.9:
            tend(rng.choice(living))
        else:
            issuer, lost = rng.choice(living), rng.choice(gone)
            if lost in writers[issuer].to_part(issuer) or not writers[issuer].is_gone(lost):
                write(issuer, RETIRING, lost, issuer)
    for lost in gone:
        if not any(writers[site].is_gone(lost) for site in living):
            write(living[0], RETIRING, lost, living[0])
    for _ in range(3 * len(sites)):
        for source in living:
            tend(source)
            for consumer in living:
                carry(source, consumer, 10**6)
    for site in living:
        assert writers[site].retired == set(gone)
        assert writers[site] == writers[living[0]]
        assert set(journals[site]) == set(journals[living[0]])
        for lost in gone:
            writers_in_order = [(writer, values[:2]) for writer, _, values in journals[site]]
            end = next(at for at, (_, values) in enumerate(writers_in_order) if values == (RETIRED, lost))
            assert all(writer != lost for writer, _ in writers_in_order[end:])


def test_columns_that_are_sums() -> None:
    writers = told(Writers({REST: ONE, 2: ONE}), SHARED, OTHER, 1, False, ["t", "n", "u", "m", "t", "o"])
    assert writers.sums(2, "t") == ("n", "o")
    assert writers.sums(2, "x") == writers.sums(1, "t") == ()
    assert not writers.is_by_row(2)
    assert told(writers, SHARED, OTHER, 1, True, ["t", "n"]).is_by_row(2)
    assert told(writers, LEFT, OTHER).sums(2, "u") == ("m",)
    assert told(writers, SHARED, OTHER, 1).sums(2, "u") == ()


def test_tables_whose_rows_are_merged_whole() -> None:
    writers = told(Writers({REST: ONE, 2: ONE}), SHARED, OTHER, 1, False, ["t", "n", "u", None])
    assert writers.is_by_row(2, "u")
    assert not writers.is_by_row(2, "t")
    assert not writers.is_by_row(2)
    assert not writers.is_by_row(1, "u")
    assert writers.all_whole(2) == ("u",)
    assert writers.all_sums(2) == ("t.n",)
    assert writers.sums(2, "u") == ()
    assert told(Writers({REST: ONE, 2: ONE}), SHARED, OTHER, 1, True).is_by_row(2, "t"), "with the whole partition"


@pytest.mark.parametrize("names", [["t"], "tn", [1, "n"], ["t", b"n"], [None, "n"]])
def test_sums_that_are_no_tables_and_columns(names: object) -> None:
    with pytest.raises(JournalDamagedError, match="sums"):
        told(Writers({REST: ONE, 2: ONE}), SHARED, OTHER, 1, False, names)
