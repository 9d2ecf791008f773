"""The epochs: exports move them at once, replicas' own words correct them, and a lost packet is taken back."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from replicate.errors import NotFoundError, UsageError
from replicate.transfer.packet.epochs import EXPORTS_KEPT, EpochRow, Epochs, LackingPacket
from replicate.transfer.packet.format import PacketSummary
from replicate.transfer.packet.order import order_of
from tests.harness.packets import position, summary


def row(seqno: int, wall_ns: int = 1) -> EpochRow:
    return EpochRow(position(seqno), wall_ns)


def exported(epochs: Epochs, base: int, end: int, *targets: str) -> Epochs:
    number = epochs.last_number + 1
    return epochs.exported(summary(base, end, number=number, targets=targets or ("west",)), f"{number}.packet", 9)


def known(epochs: Epochs, name: str = "west") -> int | None:
    found = epochs.of(name).known
    return None if found is None else found.seqno


def test_an_export_moves_the_row_without_an_answer() -> None:
    epochs = exported(Epochs().heard("west", row(10)), 10, 25)
    assert known(epochs) == 25
    heard = epochs.of("west").heard
    assert heard is not None
    assert heard.seqno == 10
    assert epochs.last_number == 1
    assert epochs.before(["west"], 25) == 1
    assert epochs.before(["off"], 25) == 0


def test_a_receipt_of_our_own_moves_nothing() -> None:
    epochs = exported(Epochs().heard("west", row(10)), 10, 25)
    after = epochs.exported(summary(40, 40, number=2), "f", 9)
    assert known(after) == 25
    assert (after.last_number, after.before(["west"], 25), after.exports) == (2, 1, epochs.exports)
    assert after.unconfirmed_since("west", 99, 25) == 99


def test_a_receipt_settles_the_estimate_or_leaves_it() -> None:
    epochs = exported(Epochs().heard("west", row(10)), 10, 25)
    assert epochs.heard("west", row(25, 2)).of("west").estimated is None
    still = epochs.heard("west", row(18, 2))  # a packet is on its way
    assert known(still) == 25
    assert known(still.confirmed("west")) == 18


def test_a_replica_that_has_less_than_it_said_was_restored() -> None:
    epochs = exported(Epochs().heard("west", row(20, 5)), 20, 40)
    restored = epochs.heard("west", row(12, 6))
    assert known(restored) == 12
    assert restored.of("west").estimated is None
    assert epochs.heard("west", row(12, 4)) == epochs  # an older word
    assert known(epochs.heard("west", row(12, 4), is_newest=True)) == 12  # by a clock that is slow


def test_a_lost_packet_is_exported_again_and_never_below_what_is_confirmed() -> None:
    epochs = Epochs().heard("west", row(10))
    for base, end in ((10, 20), (20, 30), (30, 40)):
        epochs = exported(epochs, base, end)
    assert known(epochs.recovered("west", 2)) == 20
    heard = epochs.heard("west", row(25, 9))
    assert known(heard.recovered("west", 2)) == 25
    twice = exported(epochs.recovered("west", 1), 10, 40)
    assert known(twice) == 40
    assert known(twice.recovered("west", 3)) == 30
    with pytest.raises(NotFoundError, match="known are 1 to 3"):
        epochs.recovered("west", 9)
    with pytest.raises(NotFoundError, match="no packet 1 was made for off"):
        epochs.recovered("off", 1)


def test_recovering_never_moves_forward() -> None:
    epochs = exported(exported(Epochs().heard("west", row(10)), 10, 20), 20, 30).recovered("west", 1)
    assert known(epochs.recovered("west", 2)) == 10


def test_several_targets_move_together_and_one_ahead_stays() -> None:
    epochs = Epochs().heard("west", row(10)).heard("off", row(50))
    epochs = exported(epochs, 10, 30, "west", "off")
    assert (known(epochs), known(epochs, "off")) == (30, 50)


def test_an_operator_says_where_to_begin() -> None:
    epochs = Epochs().estimate("west", row(7))
    assert known(epochs) == 7
    heard = epochs.heard("west", row(5, 3))
    assert known(heard.estimate("west", row(5))) == 5
    assert heard.estimate("west", row(5)).of("west").estimated is None
    with pytest.raises(UsageError, match="has transaction 5; 4 is less"):
        heard.estimate("west", row(4))


def test_old_exports_are_forgotten_and_their_number_is_not_used_again() -> None:
    epochs = Epochs()
    for at in range(EXPORTS_KEPT + 3):
        epochs = exported(epochs, at, at + 1)
    assert len(epochs.exports) == EXPORTS_KEPT
    assert epochs.exports[0].number == 4
    assert epochs.last_number == EXPORTS_KEPT + 3
    assert known(epochs.forgotten("west")) is None


def test_since_when_a_packet_is_unconfirmed() -> None:
    epochs = Epochs().heard("west", row(10))
    for base, end, wall_ns in ((10, 20, 100), (20, 30, 200)):
        made = summary(base, end, number=epochs.last_number + 1, wall_ns=wall_ns)
        epochs = epochs.exported(made, "f", 1)
    assert epochs.unconfirmed_since("west", 999) == 100
    assert epochs.unconfirmed_since("west", 999, 20) == 200
    assert epochs.unconfirmed_since("west", 999, 30) == 999
    assert epochs.heard("west", row(20, 5)).unconfirmed_since("west", 999) == 200
    assert epochs.unconfirmed_since("off", 999) == 999


STEPS = st.lists(
    st.tuples(st.just("export"), st.integers(0, 5))
    | st.tuples(st.just("hear"), st.integers(0, 30))
    | st.tuples(st.just("recover"), st.integers(1, 9)),
    max_size=30,
)


@given(STEPS)
def test_an_estimate_is_above_what_was_heard(steps: list[tuple[str, int]]) -> None:
    """And the next export begins at one of the two: nothing is left out that the replica has not confirmed, or that was
    exported and not taken back."""
    epochs = Epochs().heard("west", row(0, 0))
    for wall_ns, (step, number) in enumerate(steps, 1):
        begins = known(epochs)
        assert begins is not None
        if step == "export":
            epochs = exported(epochs, begins, begins + number)
            assert known(epochs) == begins + number
        elif step == "hear":
            epochs = epochs.heard("west", row(number, wall_ns))
        elif any(one.number == number for one in epochs.exports):
            epochs = epochs.recovered("west", number)
            after = known(epochs)
            assert after is not None
            assert after <= begins
        one = epochs.of("west")
        assert one.heard is not None
        assert one.estimated is None or one.estimated.seqno > one.heard.seqno


class World:
    """A primary that exports to a site. Its packets and receipts are lost, late, doubled and out of order, and the site
    is restored from backups now and then."""

    def __init__(self) -> None:
        self.last = 0
        self.clock = 0
        self.epochs = Epochs()
        self.on_their_way: list[PacketSummary] = []
        self.receipts: list[EpochRow] = []
        self.inbox: list[PacketSummary] = []
        self.has: set[int] = set()

    @property
    def seqno(self) -> int:
        return max(self.has, default=0)

    def tick(self) -> int:
        self.clock += 1
        return self.clock

    def step(self, what: str, number: int) -> None:
        getattr(self, what)(number)
        assert self.has == set(range(1, self.seqno + 1))  # nothing was ever passed over

    def commit(self, number: int) -> None:
        self.last += number % 4

    def export(self, _number: int) -> None:
        base = known(self.epochs) or 0
        if base < self.last:
            at = self.epochs.last_number + 1
            made = summary(base, self.last, number=at, wall_ns=self.tick())
            self.epochs = self.epochs.exported(made, f"{at}", 1)
            self.on_their_way.append(made)

    def lose(self, number: int) -> None:
        if self.on_their_way:
            del self.on_their_way[number % len(self.on_their_way)]

    def arrive(self, number: int) -> None:
        if self.on_their_way:
            self.inbox.append(self.on_their_way[number % len(self.on_their_way)])  # it may arrive again

    def take(self, _number: int) -> None:
        order = order_of(self.seqno, self.inbox)
        for at in order.chosen:
            self.has |= set(range(self.inbox[at].base.last_seqno + 1, self.inbox[at].end.last_seqno + 1))
        assert self.seqno == order.seqno

    def say(self, _number: int) -> None:
        self.receipts.append(row(self.seqno, self.tick()))

    def hear(self, number: int) -> None:
        if self.receipts:
            self.epochs = self.epochs.heard("west", self.receipts[number % len(self.receipts)])

    def recover(self, number: int) -> None:
        if self.epochs.exports:
            self.epochs = self.epochs.recovered("west", 1 + number % self.epochs.last_number)

    def restore(self, number: int) -> None:
        self.has = set(range(1, 1 + number % (self.seqno + 1)))


WORLD_STEPS = ("commit", "export", "lose", "arrive", "take", "say", "hear", "recover", "restore")


@given(st.lists(st.tuples(st.sampled_from(WORLD_STEPS), st.integers(0, 30)), max_size=60))
def test_whatever_becomes_of_packets_a_receipt_brings_both_level(steps: list[tuple[str, int]]) -> None:
    world = World()
    for what, number in steps:
        world.step(what, number)
    world.last += 1
    world.epochs = world.epochs.heard("west", row(world.seqno, world.tick())).confirmed("west")
    world.export(0)
    world.inbox.append(world.on_their_way[-1])
    world.take(0)
    assert world.seqno == world.last


def test_without_places_nothing_is_known_but_the_numbers_of_packets_go_on() -> None:
    known = Epochs().heard("west", EpochRow(position(3), 1)).exported(summary(3, 9, number=4, before=1), "f", 1)
    after = known.without_places()
    assert (after.replicas, after.exports, after.last_number) == ({}, (), 4)


def test_the_packet_before_is_the_one_that_leads_there() -> None:
    known = Epochs()
    made = [(0, 10), (10, 20), (20, 30), (10, 30), (5, 8)]
    for number, (base, last) in enumerate(made, 1):
        known = known.exported(summary(base, last, number=number), "f", 1)
    assert known.before(["west"], 0) == 0, "the first one goes on from a copy"
    assert known.before(["west"], 10) == 1
    assert known.before(["west"], 20) == 4, "which brings it, too, and is newer"
    assert known.before(["west"], 30) == 4
    assert known.before(["west"], 35) == 4, "as an operator has said: nobody has brought the rest"
    assert known.before(["south"], 30) == 0


def test_the_packet_before_a_part_is_the_one_with_the_part_before() -> None:
    known = Epochs().exported(summary(0, 10, number=1), "f", 1)
    known = known.exported(summary(10, 10, number=2, end_inside=100), "f", 1)
    known = known.exported(summary(10, 10, number=3, inside=100, end_inside=200), "f", 1)
    assert known.before(["west"], 10, 200) == 3
    assert known.before(["west"], 10) == 1, "where all of it is exported again"


def test_what_waits_is_told_until_what_it_lacks_is_here() -> None:
    lacking = LackingPacket("it needs 5 to 9", "do", 9)
    known = Epochs(waiting=(("packet 2, 10 to 19", 19), ("packet 3, 20 to 29", 29)), lacking=lacking)
    assert known.still_waits(position(8), by_origins=False) == known
    after = known.still_waits(position(19), by_origins=False)
    assert (after.waiting, after.lacking) == ((("packet 3, 20 to 29", 29),), None)
    assert known.still_waits(position(29), by_origins=False) == Epochs()
    (origin,) = position(8).vector.origins()
    between = replace(known, lacking=replace(lacking, last_seqno=2**64 - 1, needs=((origin, 9),)))
    assert between.still_waits(position(8), by_origins=True) == between
    assert between.still_waits(position(9), by_origins=True) == Epochs()
