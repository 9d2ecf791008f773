"""Many worlds: the figures of all, and a transcript of each that is bad.

    python -m tests.simulation.campaign [--seeds N] [--from M] [--mode MODE] [--plant NAME]

MODE is safety or liveness, of a primary and a secondary; or one of these with a word before it: suppliers-, several of
them; joining-, that one more joins; posting-, that send packets; fencing-, that change the schema; joining-fenced-,
that one more joins meanwhile; islands-, one of which is an island for an hour; roles-, sites that change their roles;
parts-, a secondary with some partitions; releasing-, one that releases some. Or both, or that word alone, for both of
each.

`sweep` is what others call, and `hunt` for a planted bug. A world whose seed is bad is lived once more with its
transcript, which is written below tests/simulation/kept (or `--keep`); test_world.py lives every seed in
tests/simulation/kept/seeds.txt.
Guarantees: a seed gives the same world in every process. Exit code 0 only without a violation.
Leaves to others: what is in a world.
"""

from __future__ import annotations

import argparse
import gc
import sys
import time
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final, NamedTuple

from tests.simulation import plants
from tests.simulation.base import MODES, BaseWorld
from tests.simulation.parts import plants as part_plants
from tests.simulation.parts import release_plants
from tests.simulation.parts.release_world import ReleaseWorld
from tests.simulation.parts.world import PartsWorld
from tests.simulation.plants import planted
from tests.simulation.replaced import Change
from tests.simulation.roles import plants as role_plants
from tests.simulation.roles.world import RoleWorld
from tests.simulation.suppliers import fence_plants, join_fence_plants, join_plants, post_plants, region_plants
from tests.simulation.suppliers import plants as supplier_plants
from tests.simulation.suppliers.fencing import FenceWorld
from tests.simulation.suppliers.island import IslandWorld
from tests.simulation.suppliers.joining import JoinWorld
from tests.simulation.suppliers.joining_fenced import JoinFenceWorld
from tests.simulation.suppliers.posting import PostWorld
from tests.simulation.suppliers.world import SupplierWorld
from tests.simulation.world import World

KEPT: Final = Path(__file__).with_name("kept")
COLLECT_EVERY: Final = 40


class Kind(NamedTuple):
    """A kind of world. `prefix`: of its modes' names. `plants`: bugs that its worlds find; `found`: of some of them a
    world that does, by its mode and seed, to be lived first."""

    prefix: str
    world: type[BaseWorld]
    plants: Mapping[str, Callable[[], list[Change]]]
    found: Mapping[str, tuple[str, int]]

    @property
    def modes(self) -> tuple[str, ...]:
        """Both of them."""
        return tuple(self.prefix + mode for mode in MODES)


PAIR: Final = Kind("", World, plants.PLANTS, plants.FOUND)
SUPPLIERS: Final = Kind(
    "suppliers-",
    SupplierWorld,
    {**supplier_plants.PLANTS, **region_plants.PLANTS},
    {**supplier_plants.FOUND, **region_plants.FOUND},
)
ROLES: Final = Kind("roles-", RoleWorld, role_plants.PLANTS, role_plants.FOUND)
PARTS: Final = Kind("parts-", PartsWorld, part_plants.PLANTS, part_plants.FOUND)
RELEASING: Final = Kind("releasing-", ReleaseWorld, release_plants.PLANTS, release_plants.FOUND)
JOINING: Final = Kind("joining-", JoinWorld, join_plants.PLANTS, join_plants.FOUND)
POSTING: Final = Kind("posting-", PostWorld, post_plants.PLANTS, post_plants.FOUND)
FENCING: Final = Kind(
    "fencing-",
    FenceWorld,
    {**fence_plants.PLANTS, **region_plants.FENCE_PLANTS},
    {**fence_plants.FOUND, **region_plants.FOUND},
)
JOINING_FENCED: Final = Kind("joining-fenced-", JoinFenceWorld, join_fence_plants.PLANTS, join_fence_plants.FOUND)
ISLANDS: Final = Kind("islands-", IslandWorld, {}, {})
KINDS: Final = (PAIR, SUPPLIERS, JOINING, POSTING, FENCING, JOINING_FENCED, ROLES, PARTS, RELEASING)
PLANTS: Final = {name: plant for kind in KINDS for name, plant in (*kind.plants.items(), *plants.EQUIVALENT.items())}
LONG_KINDS: Final = (*KINDS, ISLANDS)
"""Besides those whose worlds last an hour: they are lived by their own tests alone."""
_KIND_OF: Final = {mode: kind for kind in LONG_KINDS for mode in kind.modes}
_MODES: Final = {
    **{mode: (mode,) for mode in _KIND_OF},
    **{kind.prefix.removesuffix("-") or "both": kind.modes for kind in LONG_KINDS},
}


def run(seed: int, mode: str, *, recording: bool = False, plant: str = "") -> BaseWorld:
    """One world of that mode, whole. What it begins with is made without the bug."""
    kind = _KIND_OF[mode]
    world = kind.world(seed, mode.removeprefix(kind.prefix), recording=recording)
    world.make_template()
    with planted(plant, PLANTS):
        world.run()
    return world


@dataclass
class Swept:
    """`violations`: (mode, seed, what was violated)."""

    figures: Counter[str] = field(default_factory=Counter)
    violations: list[tuple[str, int, str]] = field(default_factory=list)
    cpu_s: float = 0.0

    @property
    def worlds_per_s(self) -> float:
        return self.figures["worlds"] / self.cpu_s if self.cpu_s else 0.0


def sweep(
    first: int,
    count: int,
    modes: tuple[str, ...] = MODES,
    *,
    keep: Path | None = None,
    plant: str = "",
    stop: Callable[[Swept], bool] = lambda _swept: False,
) -> Swept:
    """Worlds of the seeds `first` to `first + count - 1` in each mode, until `stop`."""
    swept = Swept()
    begun_s = time.process_time()
    gc.collect()
    gc.disable()
    gc.freeze()  # what is there already is not looked through again after every few worlds
    try:
        for number in range(first, first + count):
            for mode in modes:
                _one(swept, number, mode, keep, plant)
                if swept.figures["worlds"] % COLLECT_EVERY == 0:
                    gc.collect()
                if stop(swept):
                    return swept
    finally:
        gc.unfreeze()
        gc.enable()
        swept.cpu_s = time.process_time() - begun_s
        swept.figures["violations"] = len(swept.violations)
    return swept


def _one(swept: Swept, seed: int, mode: str, keep: Path | None, plant: str) -> None:
    world = run(seed, mode, plant=plant)
    most = max(swept.figures["levelled in ms, most"], world.figures.pop("levelled in ms, most", 0))
    swept.figures += world.figures
    swept.figures["levelled in ms, most"] = most
    swept.figures["worlds"] += 1
    if world.violation is None:
        return
    swept.violations.append((mode, seed, str(world.violation)))
    if keep is not None:
        again = run(seed, mode, recording=True, plant=plant)
        assert again.transcript is not None
        keep.mkdir(parents=True, exist_ok=True)
        path = keep / f"{mode}-{seed}.txt"
        path.write_text("\n".join([*again.transcript, str(again.violation), ""]), encoding="utf-8")


def hunt(kind: Kind, plant: str, seeds: int) -> Swept:
    """Worlds of that kind with the bug, until one finds it: the one that is known for it, then so many of the seeds
    from 1 on (with other dice the known one may not find it any more)."""
    if plant in kind.found:
        mode, seed = kind.found[plant]
        swept = sweep(seed, 1, (mode,), plant=plant)
        if swept.violations:
            return swept
    return sweep(1, seeds, kind.modes, plant=plant, stop=lambda swept: bool(swept.violations))


def table(swept: Swept) -> str:
    """The figures, one to a line."""
    lines = [f"{name}  {count}" for name, count in sorted(swept.figures.items())]
    return "\n".join([*lines, f"worlds a second of CPU  {swept.worlds_per_s:.0f}"])


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.simulation.campaign")
    parser.add_argument("--seeds", type=int, default=1000)
    parser.add_argument("--from", type=int, default=1, dest="first")
    parser.add_argument("--mode", choices=_MODES, default="both")
    parser.add_argument("--plant", choices=["", *PLANTS], default="")
    parser.add_argument("--keep", type=Path, default=KEPT)
    options = parser.parse_args()
    swept = sweep(options.first, options.seeds, _MODES[options.mode], keep=options.keep, plant=options.plant)
    print(table(swept))
    for mode, seed, text in swept.violations:
        print(f"{mode} {seed}: {text}")
    return int(bool(swept.violations))


if __name__ == "__main__":
    sys.exit(main())
