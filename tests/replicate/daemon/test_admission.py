"""Which connections stay open, in every small case: there is always room for a newcomer, and never for more."""

from __future__ import annotations

from itertools import product

import pytest

from replicate.daemon.admission import (
    CONNECTIONS_MAX,
    CONNECTIONS_PER_ADDRESS_MAX,
    Admission,
    Guest,
    Standing,
    who_goes,
)

STRANGER, ANSWERED, PROVEN, SERVED = Standing


def guest(address: str, standing: Standing = STRANGER) -> Guest:
    return Guest(address, lambda: None, standing)


@pytest.mark.parametrize("count", range(5))
def test_who_goes_in_every_small_case(count: int) -> None:
    for kinds in product(product("ab", Standing), repeat=count):
        here = [guest(address, standing) for address, standing in kinds]
        goes = who_goes(here)
        may_go = [one for one in here if one.standing is not SERVED]
        if not may_go:
            assert goes is None
            continue
        assert goes in may_go
        unproven = [one for one in may_go if one.standing < PROVEN]
        assert goes.standing < PROVEN or not unproven, "one that has proven who it is goes last"
        equals = unproven or may_go
        shares = {address: sum(one.address == address for one in equals) for address in "ab"}
        assert shares[goes.address] == max(shares.values()), "of the address with the most of them"
        equals = [one for one in equals if shares[one.address] == shares[goes.address]]
        kinds_here = {standing: sum(one.standing is standing for one in equals) for standing in Standing}
        assert kinds_here[goes.standing] == max(kinds_here.values()), "of the kind that there is more of"
        assert not (goes.standing is ANSWERED and kinds_here[STRANGER] == kinds_here[ANSWERED]), "strangers of as many"
        assert goes is next(one for one in equals if one.standing is goes.standing), "the first of them"


@pytest.mark.parametrize("most", [1, 2, 3])
@pytest.mark.parametrize("per_address", [1, 2, 3])
def test_a_newcomer_is_let_in_as_long_as_one_may_go(most: int, per_address: int) -> None:
    for addresses in product("ab", repeat=5):
        for served in product((False, True), repeat=5):
            gate = Admission(most, per_address)
            closed: list[Guest] = []
            for address, is_served in zip(addresses, served, strict=True):
                of_address = [one for one in gate if one.address == address]
                is_full = len(of_address) >= per_address
                here = of_address if is_full else [*gate]
                must_close = is_full or len(here) >= most
                came = gate.enter(address, lambda: None)
                if must_close and all(one.standing is SERVED for one in here):
                    assert came == (CONNECTIONS_PER_ADDRESS_MAX if is_full else CONNECTIONS_MAX)
                    continue
                assert isinstance(came, Guest)
                closed = [one for one in here if one not in [*gate]]
                assert len(closed) == must_close
                for one in closed:
                    assert one.closed_for == (CONNECTIONS_PER_ADDRESS_MAX if is_full else CONNECTIONS_MAX)
                    gate.leave(one)  # its task ends later, and says so
                came.standing = SERVED if is_served else STRANGER
                assert gate.connections <= most
                assert max(sum(one.address == other.address for one in gate) for other in gate) <= per_address


def test_who_goes_on_outlives_a_crowd_from_its_own_address() -> None:
    gate = Admission(8, 4)
    crowd = [gate.enter("a", lambda: None) for _ in range(3)]
    source = gate.enter("a", lambda: None)
    assert isinstance(source, Guest)
    source.answered()
    assert source.standing is ANSWERED
    for _ in range(1000):
        gate.enter("a", lambda: None)
    assert not source.closed_for
    assert all(isinstance(one, Guest) and one.closed_for for one in crowd)
    source.standing = PROVEN
    source.answered()
    assert source.standing is PROVEN, "it never falls back"


CROWD_STEPS = ("come", "the first is answered", "the last is answered")


def crowd_takes(gate: Admission, step: str, source: object) -> None:
    strangers = [one for one in gate if one.standing is STRANGER and one is not source]
    if step == "come":
        gate.enter("a", lambda: None)
    elif strangers:
        strangers[0 if "first" in step else -1].answered()


@pytest.mark.parametrize("places", [4, 6, 8])
def test_a_source_gets_in_beside_any_crowd_of_its_own_address(places: int) -> None:
    """Silent ones, ones that begin as sources do, and both, in every order: it takes each of its steps before half as
    many others as there may be have taken one."""
    in_time = places // 2 - 1
    for answered in range(places + 1):
        for before in product(CROWD_STEPS, repeat=in_time):
            for after in product(CROWD_STEPS, repeat=in_time):
                gate = Admission(2 * places, places)
                for number in range(places):
                    one = gate.enter("a", lambda: None)
                    assert isinstance(one, Guest)
                    if number < answered:
                        one.answered()
                source = gate.enter("a", lambda: None)
                assert isinstance(source, Guest)
                for step in before:
                    crowd_takes(gate, step, source)
                assert not source.closed_for, (answered, before)
                source.answered()
                for step in after:
                    crowd_takes(gate, step, source)
                assert not source.closed_for, (answered, before, after)
                assert gate.connections == places


@pytest.mark.parametrize("crowd_is_answered", [False, True])
def test_a_source_stays_however_many_come_from_other_addresses(crowd_is_answered: bool) -> None:
    gate = Admission(8, 4)
    source = None
    for number in range(1000):
        if number == 100:
            source = gate.enter("source", lambda: None)
        one = gate.enter("ab"[number % 2], lambda: None)
        assert isinstance(one, Guest)
        if crowd_is_answered:
            one.answered()
    assert isinstance(source, Guest)
    assert (source.closed_for, source.standing, gate.connections) == ("", STRANGER, 8)


def test_one_that_has_gone_does_not_come_back_by_a_late_answer() -> None:
    gate = Admission(1, 1)
    gone = gate.enter("a", lambda: None)
    stays = gate.enter("a", lambda: None)
    assert isinstance(gone, Guest)
    gone.answered()
    assert [*gate] == [stays]


def test_who_is_closed_is_told_so_once() -> None:
    told: list[int] = []
    gate = Admission(2, 2)
    for number in range(5):
        gate.enter("a", lambda number=number: told.append(number))  # type: ignore[misc]
    assert told == [0, 1, 2]


def test_a_crowd_from_one_address_costs_no_other_one() -> None:
    gate = Admission(8, 4)
    others = [gate.enter(address, lambda: None) for address in "bcd"]
    for _ in range(1000):
        gate.enter("a", lambda: None)
    assert gate.connections == 7
    assert all(isinstance(one, Guest) and not one.closed_for for one in others)


def test_a_crowd_of_addresses_keeps_nobody_out() -> None:
    gate = Admission(8, 4)
    for number in range(10_000):
        assert isinstance(gate.enter(f"address {number}", lambda: None), Guest)
        assert gate.connections <= 8
