"""admin/join_plan.py: which step comes next, what does it by hand, and what bars the way."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from replicate.admin.join_plan import THERE, JoinStep, JoinWish, SiteFacts, check, next_step, plan
from replicate.errors import ConfigurationError, ReplicateError, UsageError, WrongNetworkError
from replicate.settings.load import Address

NETWORK = bytes(range(16))
OTHER = bytes(16)
UUID = "00010203-0405-0607-0809-0a0b0c0d0e0f"
AT = Address("10.0.0.2", 7430)
SHOP_AT = Address("10.0.0.1", 7430)
WISH = JoinWish("depot", "depot", "shop", "shop", listen="10.0.0.2:7430")
SHOP = SiteFacts("shop", NETWORK, "supplier", None, frozenset(), frozenset())
MADE = SiteFacts("depot", NETWORK, "secondary", None, frozenset(), frozenset())


def done(wish: JoinWish, here: SiteFacts | None, there: SiteFacts | None) -> list[JoinStep]:
    return [one.step for one in plan(wish, here, there) if one.is_done]


def walked(wish: JoinWish, there: SiteFacts | None) -> list[JoinStep]:
    """Do each step as it comes: what it changes, and nothing else."""
    here: SiteFacts | None = None
    steps = []
    while (one := next_step(plan(wish, here, there), is_here=there is not None)) is not None:
        assert len(steps) < 20, steps
        steps.append(one.step)
        if one.step is JoinStep.CREATE:
            here = MADE
            continue
        assert here is not None
        match one.step:
            case JoinStep.LISTEN:
                here = replace(here, listens_at=AT)
            case JoinStep.SEED:
                here = replace(here, is_seeded=True)
            case JoinStep.CONVERT:
                here = replace(here, role="supplier")
            case JoinStep.REGISTER:
                here = replace(here, peers=frozenset({"shop"}))
            case JoinStep.APPLY:
                here = replace(here, applies=True)
            case JoinStep.SEND:
                here = replace(here, sends_to=frozenset({"shop"}))
            case _:
                assert there is not None
                there = {
                    JoinStep.REGISTER_THERE: replace(there, peers=frozenset({"depot"})),
                    JoinStep.SEND_THERE: replace(there, sends_to=frozenset({"depot"})),
                    JoinStep.LISTEN_THERE: replace(there, listens_at=SHOP_AT),
                }[one.step]
    return steps


def test_on_one_host_each_step_is_done_once_in_its_order() -> None:
    assert walked(WISH, SHOP) == list(JoinStep)


def test_of_another_host_the_steps_there_are_left_to_others() -> None:
    wish = replace(WISH, network=NETWORK, there=SHOP_AT)
    assert walked(wish, None) == [one for one in JoinStep if one not in THERE]
    # What follows from them is seen here.
    assert JoinStep.SEND_THERE not in done(wish, MADE, None)
    assert {JoinStep.REGISTER_THERE, JoinStep.SEND_THERE} <= {*done(wish, replace(MADE, is_seeded=True), None)}


def test_a_daemon_that_has_ended_since_is_started_again_and_nothing_is_seeded_twice() -> None:
    here = replace(MADE, role="supplier", peers=frozenset({"shop"}), sends_to=frozenset({"shop"}))
    there = replace(SHOP, listens_at=SHOP_AT, peers=frozenset({"depot"}), sends_to=frozenset({"depot"}))
    assert [one.step for one in plan(WISH, here, there) if not one.is_done] == [JoinStep.LISTEN, JoinStep.APPLY]


def test_each_step_has_the_command_that_does_it_by_hand() -> None:
    wish = replace(WISH, named="sites/my depot", supplier_named="sites/shop", there=SHOP_AT, network=NETWORK)
    commands = {one.step: one.command for one in plan(wish, None, None)}
    own = "replicate -i 'sites/my depot'"
    assert commands == {
        JoinStep.CREATE: f"replicate instance create 'sites/my depot' --role secondary --name depot --network {UUID}",
        JoinStep.LISTEN: f"{own} receiver start --listen 10.0.0.2:7430 --no-update",
        JoinStep.REGISTER_THERE: "replicate -i sites/shop peer add depot 10.0.0.2:7430",
        JoinStep.SEND_THERE: "replicate -i sites/shop source start --peer depot",
        JoinStep.SEED: f"{own} seed",
        JoinStep.CONVERT: f"{own} instance convert --role supplier",
        JoinStep.LISTEN_THERE: "replicate -i sites/shop receiver start --listen 10.0.0.1:7430",
        JoinStep.REGISTER: f"{own} peer add shop 10.0.0.1:7430",
        JoinStep.APPLY: f"{own} update start",
        JoinStep.SEND: f"{own} source start --peer shop",
    }


def test_an_address_of_its_own_is_registered_there() -> None:
    wish = replace(WISH, listen="0.0.0.0:7430", address=Address("db2", 7431))
    commands = [one.command for one in plan(wish, replace(MADE, listens_at=Address("0.0.0.0", 7430)), SHOP)]
    assert "replicate -i shop peer add depot db2:7431" in commands
    assert "replicate -i depot peer add shop HOST:PORT" in commands  # it does not listen yet


@pytest.mark.parametrize(
    ("wish", "here", "there", "error", "what"),
    [
        (replace(WISH, name="shop"), None, SHOP, UsageError, "shop cannot join itself"),
        (WISH, None, replace(SHOP, role="primary"), ConfigurationError, "replicate -i shop instance convert --role"),
        (replace(WISH, network=OTHER), None, SHOP, WrongNetworkError, "shop is of network 0001"),
        (WISH, replace(MADE, network=OTHER), SHOP, WrongNetworkError, "depot is of network 0000"),
        (replace(WISH, name="west"), MADE, SHOP, ConfigurationError, "Say --name depot"),
        (WISH, replace(MADE, has_feed=True), SHOP, ConfigurationError, "depot is a data feed"),
        (WISH, replace(MADE, role="primary"), SHOP, ConfigurationError, "what it holds would be lost"),
        (WISH, None, None, UsageError, "Add --network UUID"),
        (replace(WISH, network=NETWORK), None, None, UsageError, "replica join shop HOST:PORT"),
        (replace(WISH, listen="[::]:7430"), None, SHOP, UsageError, "Add --address HOST:PORT"),
        (replace(WISH, listen="nowhere:x"), None, SHOP, ConfigurationError, "'nowhere:x' is not HOST:PORT"),
    ],
)  # fmt: skip
def test_what_bars_the_way_is_said_before_the_first_step(
    wish: JoinWish, here: SiteFacts | None, there: SiteFacts | None, error: type[ReplicateError], what: str
) -> None:
    with pytest.raises(error) as caught:
        check(wish, here, there)
    assert what in str(caught.value)


def test_what_goes_on_needs_no_more_than_it_was_told_at_first() -> None:
    check(replace(WISH, listen=None), replace(MADE, peers=frozenset({"shop"})), None)
    check(WISH, MADE, SHOP)
    check(WISH, replace(MADE, role="supplier"), SHOP)
