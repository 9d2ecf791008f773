"""Worlds of two to four suppliers that exchange packets (lost, doubled, reordered, recovered) and use lines now and
then: all of them come to have everything, and nothing comes before what its writer had seen."""

from __future__ import annotations

import pytest

from tests.harness.packet_worlds import World, in_order

STEPS = 60


def run(world: World, *, restored: str = "") -> None:
    """Some time, then operators see to it."""
    for step in range(STEPS):
        world.step()
        if restored and step == STEPS // 2:
            site = world.rng.choice(list(world.sites.values()))
            length, epochs = len(site.journal), site.epochs
        if restored and step == STEPS * 3 // 4:
            world.restore(site, length, epochs, finds_out=restored == "by itself")
    world.heal()
    assert world.is_level


@pytest.mark.slow
@pytest.mark.parametrize("part", range(4))
def test_all_come_to_have_everything(part: int) -> None:
    for seed in range(part, 80, 4):
        run(World(seed, 2 + seed % 3))


@pytest.mark.slow
@pytest.mark.parametrize("restored", ["by itself", "by others"])
def test_one_is_restored_from_an_older_state(restored: str) -> None:
    """It gets its own back, whatever it had told before, and takes nothing that comes after that."""
    turned_back = 0
    for seed in range(40):
        world = World(seed, 2 + seed % 3)
        run(world, restored=restored)
        turned_back += world.turned_back
    assert (turned_back > 0) == (restored == "by others")


def found(**plant: object) -> int:
    """In how many of 20 worlds a planted fault shows."""
    count = 0
    for seed in range(20):
        try:
            run(World(seed, 3, **plant))  # type: ignore[arg-type]
        except AssertionError:
            count += 1
    return count


def test_a_base_that_is_not_looked_at_is_found() -> None:
    assert found(order=in_order) == 0
    assert found(order=lambda _here, packets: range(len(packets))) > 10


def test_what_is_here_and_taken_again_is_found() -> None:
    assert found(passes_over=False) > 10
