"""Many worlds: the figures of all, and a transcript of each that is bad.

    python -m tests.simulation.campaign [--seeds N] [--from M] [--mode MODE] [--plant NAME]

MODE is safety or liveness, of a primary and a secondary; suppliers-safety or suppliers-liveness, of several suppliers;
roles-safety or roles-liveness, of sites that change their roles; parts-safety or parts-liveness, of a secondary with
some partitions; or both, suppliers, roles or parts, for both of each.

`sweep` is what others call. A world whose seed is bad is lived once more with its transcript, which is written below
tests/simulation/kept (or `--keep`); test_world.py lives every seed in tests/simulation/kept/seeds.txt.
Guarantees: a seed gives the same world in every process. Exit code 0 only without a violation.
Refuses to know: what is in a world.
"""

from __future__ import annotations

import argparse
import gc
import sys
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from tests.simulation import plants
from tests.simulation import world as worlds
from tests.simulation.base import BaseWorld
from tests.simulation.parts import plants as part_plants
from tests.simulation.parts import world as part_worlds
from tests.simulation.plants import Change, planted
from tests.simulation.roles import plants as role_plants
from tests.simulation.roles import world as role_worlds
from tests.simulation.suppliers import plants as supplier_plants
from tests.simulation.suppliers import world as supplier_worlds

KEPT: Final = Path(__file__).with_name("kept")
COLLECT_EVERY: Final = 40
SUPPLIERS: Final = "suppliers-"
SUPPLIER_MODES: Final = tuple(SUPPLIERS + mode for mode in worlds.MODES)
ROLES: Final = "roles-"
ROLE_MODES: Final = tuple(ROLES + mode for mode in worlds.MODES)
PARTS: Final = "parts-"
PART_MODES: Final = tuple(PARTS + mode for mode in worlds.MODES)
PLANTS: Final[dict[str, Callable[[], list[Change]]]] = {
    **plants.PLANTS,
    **supplier_plants.PLANTS,
    **role_plants.PLANTS,
    **part_plants.PLANTS,
    **plants.EQUIVALENT,
}
_MODES: Final = {
    **{mode: (mode,) for mode in (*worlds.MODES, *SUPPLIER_MODES, *ROLE_MODES, *PART_MODES)},
    "both": worlds.MODES,
    "suppliers": SUPPLIER_MODES,
    "roles": ROLE_MODES,
    "parts": PART_MODES,
}


def run(seed: int, mode: str, *, recording: bool = False) -> BaseWorld:
    """One world of that mode, whole."""
    if mode.startswith(SUPPLIERS):
        return supplier_worlds.run(seed, mode.removeprefix(SUPPLIERS), recording=recording)
    if mode.startswith(ROLES):
        return role_worlds.run(seed, mode.removeprefix(ROLES), recording=recording)
    if mode.startswith(PARTS):
        return part_worlds.run(seed, mode.removeprefix(PARTS), recording=recording)
    return worlds.run(seed, mode, recording=recording)


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
    modes: tuple[str, ...] = worlds.MODES,
    *,
    keep: Path | None = None,
    plant: str = "",
    stop: Callable[[Swept], bool] = lambda _swept: False,
) -> Swept:
    """Worlds of the seeds `first` to `first + count - 1` in each mode, until `stop`."""
    swept = Swept()
    if any(mode.startswith(SUPPLIERS) for mode in modes):
        supplier_worlds.make_template()
    if any(mode.startswith(ROLES) for mode in modes):
        role_worlds.make_template()
    worlds.make_template()
    begun_s = time.process_time()
    gc.collect()
    gc.disable()
    gc.freeze()  # what is there already is not looked through again after every few worlds
    try:
        with planted(plant, PLANTS):
            for number in range(first, first + count):
                for mode in modes:
                    _one(swept, number, mode, keep)
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


def _one(swept: Swept, seed: int, mode: str, keep: Path | None) -> None:
    world = run(seed, mode)
    most = max(swept.figures["levelled in ms, most"], world.figures.pop("levelled in ms, most", 0))
    swept.figures += world.figures
    swept.figures["levelled in ms, most"] = most
    swept.figures["worlds"] += 1
    if world.violation is None:
        return
    swept.violations.append((mode, seed, str(world.violation)))
    if keep is not None:
        again = run(seed, mode, recording=True)
        assert again.transcript is not None
        keep.mkdir(parents=True, exist_ok=True)
        path = keep / f"{mode}-{seed}.txt"
        path.write_text("\n".join([*again.transcript, str(again.violation), ""]), encoding="utf-8")


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
