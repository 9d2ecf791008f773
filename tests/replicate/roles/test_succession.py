"""Two primaries have met: which of them is superseded, and what bars that. All pure."""

from __future__ import annotations

import itertools
from collections.abc import Callable

import pytest
from msgspec.structs import replace

from replicate.model.takeover import Takeover, takeovers_of
from replicate.model.transaction import History
from replicate.model.vector import Origin, Position, SynchronizationVector
from replicate.roles.succession import Other, Own, Parted, Superseded, Superseding, Verdict, do_of, judge, text_of

IDS = {name: bytes([number] * 16) for number, name in enumerate("abc", 1)}


class Site:
    """A journal as (origin, origin_seqno, chain) by number, and what its instance may say of itself."""

    def __init__(self, name: str, frames: list[tuple[int, int, int]] | None = None) -> None:
        self.name, self.instance, self.incarnation = name, IDS[name], 0
        self.frames = list(frames or [])
        self.histories: list[History] = []
        self.is_restored = False
        self.overruled = 0

    def copy(self, name: str) -> Site:
        """One that has received all that is here."""
        made = Site(name, self.frames)
        made.histories = list(self.histories)
        return made

    @property
    def position(self) -> Position:
        return self.before(len(self.frames) + 1)

    def before(self, seqno: int) -> Position:
        vector, chains = SynchronizationVector(), {}
        for origin, place, chain in self.frames[: seqno - 1]:
            vector, chains[origin] = vector.raised(origin, 0, place), (place, chain)
        return Position(seqno - 1, vector, chains)

    def begin(self, incarnation: int, previous: int | None = None) -> Site:
        """A record that opens an incarnation; after the newest one."""
        if previous is None:
            previous = self.histories[-1].origin.key if self.histories else 0
        self.incarnation = incarnation
        record = History(
            self.instance, self.name, incarnation, previous, self.position.vector, "", len(self.frames) + 1
        )
        self.histories.append(record)
        self.frames.append((record.origin.key, 0, hash((self.name, incarnation)) & 0xFFFFFFFF))
        return self

    def write(self, count: int, *, salt: int = 0) -> Site:
        origin = Origin(self.instance, self.incarnation).key
        for _ in range(count):
            place = self.position.vector.last(origin) + 1
            self.frames.append((origin, place, hash((origin, place, salt, len(self.frames))) & 0xFFFFFFFF))
        return self

    @property
    def takeovers(self) -> tuple[Takeover, ...]:
        return takeovers_of(self.histories, self.position.chains)

    def own(self) -> Own:
        return Own(
            self.name, self.instance, self.incarnation, tuple(self.histories), self.takeovers,
            is_restored=self.is_restored, overruled=self.overruled,
        )  # fmt: skip

    def other(self) -> Other:
        return Other(self.name, self.instance, self.incarnation, self.takeovers)

    def look(self, oldest: int = 1) -> Callable[[int], Position | None]:
        return lambda seqno: self.before(seqno) if oldest <= seqno <= len(self.frames) + 1 else None

    def meets(self, other: Site) -> Verdict:
        return judge(self.own(), other.other(), self.look())


def parted(lost: int = 3, more: int = 2) -> tuple[Site, Site]:
    """`a` was primary up to 10, and wrote `lost` more alone; `b` took over after 10, and wrote `more`."""
    a = Site("a").begin(1).write(9)
    b = a.copy("b").begin(2).write(more)
    return a.write(lost, salt=1), b


@pytest.mark.parametrize(("lost", "more"), [*itertools.product((0, 1, 3), (0, 1, 5))])
def test_an_old_primary_is_superseded_by_the_one_that_took_over(lost: int, more: int) -> None:
    a, b = parted(lost, more)
    assert a.meets(b) == Superseded("b", b.takeovers[0])
    assert b.takeovers[0].after == 10
    assert b.meets(a) == Superseding(b.takeovers[0])


def test_a_claim_that_our_journal_does_not_prove_supersedes_nobody() -> None:
    a, b = parted()
    true = b.takeovers[0]
    for false in (
        replace(true, chain=true.chain + 1),
        replace(true, place=true.place - 1),
        replace(true, after=true.after - 1),
        replace(true, after=true.after + 1),
        replace(true, after=10**9),
    ):
        verdict = judge(a.own(), replace(b.other(), takeovers=(false,)), a.look())
        assert isinstance(verdict, Parted), false
        assert verdict.common is None
    pruned = judge(a.own(), b.other(), a.look(oldest=12))
    assert isinstance(pruned, Parted)


def test_a_claim_without_a_record_is_none() -> None:
    a, b = parted()
    assert isinstance(judge(a.own(), replace(b.other(), takeovers=()), a.look()), Parted)


def test_other_content_under_the_same_numbers_supersedes_nobody() -> None:
    a = Site("a").begin(1).write(5).write(4, salt=9)
    b = Site("a").begin(1).write(5).write(4, salt=8).copy("b").begin(2)
    assert isinstance(a.meets(b), Parted)


def test_a_primary_that_was_restored_from_a_backup_is_never_superseded() -> None:
    """Before the place of the takeover its journal proves nothing; after it, it could, and its restore bars it."""
    a, b = parted()
    short = a.copy("a")
    short.frames = short.frames[:7]
    short.begin(3).write(8)
    short.is_restored = True
    assert isinstance(short.meets(b), Parted)
    long = a.copy("a").begin(3).write(2)
    assert isinstance(long.meets(b), Superseded)  # as after a power loss, which raises the incarnation too
    long.is_restored = True
    assert long.meets(b) == Parted("b (incarnation 2) took over after transaction 10, and a was restored from a backup "
                                   "since", 10)  # fmt: skip


def test_one_that_took_its_role_back_has_parted_from_that_very_record_alone() -> None:
    a, b = parted()
    a.overruled = b.takeovers[0].origin
    a.begin(3).write(2)
    assert a.meets(b) == Parted("b (incarnation 2) took over after transaction 10, and a took its role back", 10)
    third = a.copy("c").begin(4)
    assert isinstance(a.meets(third), Superseded)
    assert isinstance(b.meets(a), Superseding)


def test_a_chain_of_takeovers_supersedes_the_first() -> None:
    a, b = parted()
    c = b.copy("c").begin(3).write(1)
    assert a.meets(c) == Superseded("c", b.takeovers[0])
    assert b.meets(c) == Superseded("c", c.takeovers[-1])
    assert isinstance(c.meets(a), Superseding)


def test_after_a_flip_flop_the_stale_one_is_superseded_and_not_the_other() -> None:
    a = Site("a").begin(1).write(4)
    b = a.copy("b").begin(2).write(4)
    again = b.copy("a").begin(3).write(4)
    b.write(1, salt=5)  # it did not hear that
    assert isinstance(again.meets(b), Superseding)
    assert isinstance(b.meets(again), Superseded)
    b.incarnation = 5
    b.begin(5)
    assert isinstance(b.meets(again), Superseded)


def test_two_that_took_over_from_the_same_one_have_parted_and_both_know_where() -> None:
    a = Site("a").begin(1).write(9)
    b = a.copy("b").begin(2).write(3)
    c = a.write(2).copy("c").begin(2).write(1)
    for one, other in ((b, c), (c, b)):
        verdict = one.meets(other)
        assert isinstance(verdict, Parted)
        assert verdict.common == 10
        assert "took over after transaction 12" in verdict.why
        assert "took over after transaction 10" in verdict.why


def test_one_from_which_a_third_took_over_before_is_not_superseded_by_the_other_branch() -> None:
    """a1 was ended by b2 and, elsewhere, by c3, from which a4 took over: a4 follows c, and b goes its own way."""
    a, b = parted()
    c = a.copy("c").begin(3).write(1)
    again = c.copy("a").begin(4).write(1)
    assert isinstance(again.meets(b), Parted)
    assert isinstance(b.meets(again), Parted)


def test_two_that_never_met_have_parted() -> None:
    one, other = Site("a").begin(1).write(1), Site("b").begin(1).write(1)
    verdict = one.meets(other)
    assert verdict == Parted("neither has a record that it took over from the other")


@pytest.mark.parametrize("seed", range(200))
def test_never_two_of_one_history_find_themselves_superseded(seed: int) -> None:
    """Whatever became of three sites: of two that meet at most one gives way, and only to one that has its past."""
    import random

    draw = random.Random(seed)
    sites = {"a": Site("a").begin(1).write(draw.randrange(3))}
    incarnations = {"a": 1, "b": 0, "c": 0}
    for _ in range(draw.randrange(1, 7)):
        source = sites[draw.choice(sorted(sites))]
        name = draw.choice("abc")
        if draw.random() < 0.4 or name == source.name:
            source.write(draw.randrange(3), salt=draw.randrange(100))
            if draw.random() < 0.2:
                incarnations[source.name] += 1
                source.begin(incarnations[source.name])
            continue
        incarnations[name] += 1
        sites[name] = source.copy(name).begin(incarnations[name])
    for one, other in itertools.permutations(sites.values(), 2):
        verdict = one.meets(other)
        if isinstance(verdict, Superseded):
            assert not isinstance(other.meets(one), Superseded)
            after = verdict.takeover.after
            assert (
                one.before(after + 1).chains[verdict.takeover.ended]
                == (other.before(after + 1).chains[verdict.takeover.ended])
            )


def test_both_are_told_both_histories_and_what_to_type() -> None:
    a, b = parted()
    for one, other in ((a, b), (b, a)):
        verdict = one.meets(other)
        text, do = text_of(verdict, one.own(), other.other()), do_of(verdict, one.own(), other.other())
        assert f"{other.name} is primary too" in text
        assert "took over after transaction 10" in text
        assert "rollback --to 10" in do
    split = Site("a").begin(1).write(2)
    stranger = Site("b").begin(1)
    verdict = split.meets(stranger)
    assert "a (incarnation 1) from transaction 1" in text_of(verdict, split.own(), stranger.other())
    assert "no takeover" in text_of(verdict, split.own(), stranger.other())
    do = do_of(verdict, split.own(), stranger.other())
    assert "replicate -i INSTANCE demote; replicate -i INSTANCE rollback --to N" in do
    assert "replicate -i b demote; replicate -i b rollback --to N" in do
