"""Standing aside for a change of the schema: what is said, and that nothing is on its way when the schema changes."""

from __future__ import annotations

import random
from typing import NamedTuple

import pytest

from replicate.errors import JournalDamagedError
from replicate.model.schema_fences import FIRST, SECOND, Fences, Stand
from replicate.model.transaction import FENCED, RETIRED, RETIRING, STANDS, UNFENCED
from replicate.model.writers import REST, Writers

ONE, OTHER, THIRD = (bytes([65 + at]) * 16 for at in range(3))
ALL = (ONE, OTHER, THIRD)


def told(fences: Fences, *values: object) -> Fences:
    return fences.told(values)


def test_all_stand_aside_twice() -> None:
    fences = told(Fences(), FENCED, ONE, 5, False)
    assert fences.bars(OTHER, ALL, ()) == ONE
    assert fences.bars(ONE, ALL, ()) == ONE, "not while others may write"
    assert fences.awaited(ONE, ALL, ()) == {OTHER, THIRD}
    assert fences.to_stand(OTHER, ALL, ()) == (Stand(ONE, 5, FIRST),)
    assert fences.to_stand(ONE, ALL, ()) == ()
    fences = told(fences, STANDS, ONE, 5, OTHER, FIRST)
    assert fences.to_stand(OTHER, ALL, ()) == (), "the third one may write still"
    assert fences.awaited(ONE, ALL, ()) == {THIRD}
    fences = told(fences, STANDS, ONE, 5, THIRD, FIRST)
    assert fences.to_stand(OTHER, ALL, ()) == (Stand(ONE, 5, SECOND),)
    fences = told(fences, STANDS, ONE, 5, OTHER, SECOND)
    assert fences.awaited(ONE, ALL, ()) == {THIRD}
    assert not fences.is_ours(ONE, ALL, ())
    fences = told(fences, STANDS, ONE, 5, THIRD, SECOND)
    assert fences.is_ours(ONE, ALL, ())
    assert not fences.is_ours(OTHER, ALL, ())
    assert fences.bars(ONE, ALL, ()) is None
    assert fences.bars(OTHER, ALL, ()) == ONE
    fences = told(fences, UNFENCED, ONE, 5)
    assert [fences.bars(one, ALL, ()) for one in ALL] == [None] * 3
    assert not fences.is_fencing(ONE)


def test_who_is_retired_is_not_waited_for() -> None:
    fences = told(told(Fences(), FENCED, ONE, 1, True), STANDS, ONE, 1, OTHER, FIRST)
    assert fences.to_stand(OTHER, ALL, ()) == ()
    assert fences.to_stand(OTHER, ALL, {THIRD}) == (Stand(ONE, 1, SECOND),)
    assert fences.bars(OTHER, ALL, {ONE}) is None, "nor does its fence count"


def test_words_about_an_earlier_fence_count_for_no_later_one() -> None:
    fences = told(told(Fences(), FENCED, ONE, 1, False), UNFENCED, ONE, 1)
    assert told(fences, STANDS, ONE, 1, OTHER, FIRST) == fences, "it was said before the end was known"
    again = told(fences, FENCED, ONE, 9, False)
    assert told(again, STANDS, ONE, 1, OTHER, FIRST) == again
    assert told(again, UNFENCED, ONE, 1) == again
    assert again.next_number(ONE, 3) == 10
    assert again.next_number(ONE, 30) == 30
    assert again.next_number(OTHER, 0) == 1


@pytest.mark.parametrize(
    "values", [(FENCED, ONE, 5, False), (FENCED, ONE, 4, True), (STANDS, OTHER, 5, ONE, 1), (UNFENCED, ONE, 6)]
)
def test_what_makes_no_sense(values: tuple[object, ...]) -> None:
    with pytest.raises(JournalDamagedError, match=r"fences under a number|about a fence that nobody"):
        told(told(Fences(), FENCED, ONE, 5, False), *values)


def test_of_two_that_fence_at_once_one_comes_after_the_other() -> None:
    fences = told(told(Fences(), FENCED, ONE, 1, False), FENCED, OTHER, 1, False)
    assert fences.to_stand(ONE, ALL, ()) == (), "it ends its own first"
    assert fences.to_stand(OTHER, ALL, ()) == (Stand(ONE, 1, FIRST),)
    assert fences.to_stand(THIRD, ALL, ()) == (Stand(ONE, 1, FIRST), Stand(OTHER, 1, FIRST))
    for who in (ONE, THIRD):
        for turn in (FIRST, SECOND):
            fences = told(fences, STANDS, OTHER, 1, who, turn)
    assert fences.bars(OTHER, ALL, ()) == ONE, "whatever was said to it"


class Written(NamedTuple):
    """A transaction. `what`: of rows, a removal (as a merge writes one), a change of the schema, or what is told."""

    writer: bytes
    number: int
    what: str
    values: tuple[object, ...] = ()


class Sites:
    """Suppliers that send their journals to one another as they please, in order."""

    def __init__(self, rng: random.Random) -> None:
        self.rng = rng
        self.names = [bytes([65 + at]) * 16 for at in range(rng.randint(2, 5))]
        self.journals: dict[bytes, list[Written]] = {one: [] for one in self.names}
        self.writers = {one: Writers({REST: self.names[0]}) for one in self.names}
        self.pasts: dict[tuple[bytes, int], frozenset[tuple[bytes, int]]] = {}
        self.stamp = 0

    def write(self, site: bytes, what: str, *values: object) -> None:
        number = sum(one.writer == site for one in self.journals[site]) + 1
        self.pasts[site, number] = frozenset((one.writer, one.number) for one in self.journals[site])
        self.take(site, Written(site, number, what, values))

    def take(self, site: bytes, one: Written) -> None:
        here = self.journals[site]
        is_beside = one.what == "rows" and any(
            known.what == "rows" and (known.writer, known.number) not in self.pasts[one.writer, one.number]
            for known in here
        )
        here.append(one)
        if one.values:
            self.writers[site] = self.writers[site].told(REST, one.values)
        if is_beside and self.rng.random() < 0.5:
            self.write(site, "removal")  # of a row that gives way

    def carry(self, source: bytes, consumer: bytes, most: int) -> None:
        have = {(one.writer, one.number) for one in self.journals[consumer]}
        lacking = [one for one in self.journals[source] if (one.writer, one.number) not in have]
        for one in lacking[:most]:
            if (one.writer, one.number) not in {(known.writer, known.number) for known in self.journals[consumer]}:
                self.take(consumer, one)

    def known(self, site: bytes) -> frozenset[bytes]:
        return frozenset(self.names)

    def bars(self, site: bytes) -> bytes | None:
        writers = self.writers[site]
        return writers.fences.bars(site, self.known(site), writers.retired)

    def tend(self, site: bytes) -> None:
        writers = self.writers[site]
        for one in writers.fences.to_stand(site, self.known(site), writers.retired):
            self.write(site, STANDS, STANDS, one.fencer, one.number, site, one.turn)

    def step(self) -> None:
        what, site = self.rng.random(), self.rng.choice(self.names)
        fences = self.writers[site].fences
        if what < 0.25:
            if self.bars(site) is None:
                self.write(site, "rows")
        elif what < 0.75:
            self.carry(*self.rng.sample(self.names, 2), most=self.rng.randint(1, 6))
        elif what < 0.85:
            self.tend(site)
        elif what < 0.9:
            if not fences.open(()):
                self.stamp += self.rng.randint(0, 2)
                self.write(site, FENCED, FENCED, site, fences.next_number(site, self.stamp), False)
        elif what < 0.96:
            if fences.is_ours(site, self.known(site), ()):
                self.write(site, "schema")
        elif fences.is_fencing(site):
            self.write(site, UNFENCED, UNFENCED, site, fences.by[site].number)

    def settle(self) -> None:
        for _ in range(8 * len(self.names)):
            for site in self.names:
                self.tend(site)
                if self.writers[site].fences.is_ours(site, self.known(site), ()):
                    self.write(site, "schema")
                    self.write(site, UNFENCED, UNFENCED, site, self.writers[site].fences.by[site].number)
                for other in self.names:
                    if other != site:
                        self.carry(other, site, 10**6)


@pytest.mark.turns(4)
@pytest.mark.parametrize("seed", range(150))
def test_a_change_of_the_schema_stands_beside_nothing(seed: int) -> None:
    """Sites write rows, and remove some as they merge; any of them fences when it likes. Whatever is written of rows or
    schema, and a change of the schema: one of both had the other one in its past. All fences come to their turn, and
    all end with the same."""
    sites = Sites(random.Random(seed))
    for _ in range(sites.rng.randint(50, 250)):
        sites.step()
    sites.settle()
    first = sites.names[0]
    every = {(one.writer, one.number): one for one in sites.journals[first]}
    for site in sites.names:
        assert set(sites.journals[site]) == set(sites.journals[first])
        assert sites.writers[site] == sites.writers[first]
        assert not sites.writers[site].fences.open(())
        assert sites.bars(site) is None
    changes = [name for name, one in every.items() if one.what == "schema"]
    for name in changes:
        for other, one in every.items():
            if one.what in ("rows", "removal", "schema") and other != name:
                assert other in sites.pasts[name] or name in sites.pasts[other], (name, one)


def test_one_that_fences_and_is_gone_lets_all_write_again() -> None:
    writers = Writers({REST: OTHER}).told(REST, (FENCED, ONE, 1, False))
    assert writers.fences.bars(OTHER, ALL, writers.retired) == ONE
    writers = writers.told(REST, (RETIRING, ONE, OTHER)).told(REST, (RETIRED, ONE, OTHER))
    assert writers.fences.bars(OTHER, ALL, writers.retired) is None
