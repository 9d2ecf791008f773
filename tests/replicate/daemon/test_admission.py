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
        assert all(goes.standing <= one.standing for one in may_go), "one that has come less far goes first"
        equals = [one for one in may_go if one.standing is goes.standing]
        shares = {address: sum(one.address == address for one in equals) for address in "ab"}
        assert shares[goes.address] == max(shares.values()), "of the address with the most of them"
        first = next(one for one in equals if shares[one.address] == max(shares.values()))
        assert goes is first, "that came first"


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
