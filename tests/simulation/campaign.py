"""Many worlds: the figures of all, and a transcript of each that is bad.

    python -m tests.simulation.campaign [--seeds N] [--from M] [--mode safety|liveness|both] [--plant NAME]

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

from tests.simulation import world as worlds
from tests.simulation.plants import PLANTS, planted

KEPT: Final = Path(__file__).with_name("kept")
COLLECT_EVERY: Final = 40


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
    worlds.make_template()
    begun_s = time.process_time()
    gc.collect()
    gc.disable()
    gc.freeze()  # what is there already is not looked through again after every few worlds
    try:
        with planted(plant):
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
    world = worlds.run(seed, mode)
    most = max(swept.figures["levelled in ms, most"], world.figures.pop("levelled in ms, most", 0))
    swept.figures += world.figures
    swept.figures["levelled in ms, most"] = most
    swept.figures["worlds"] += 1
    if world.violation is None:
        return
    swept.violations.append((mode, seed, str(world.violation)))
    if keep is not None:
        again = worlds.run(seed, mode, recording=True)
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
    parser.add_argument("--mode", choices=[*worlds.MODES, "both"], default="both")
    parser.add_argument("--plant", choices=["", *PLANTS], default="")
    parser.add_argument("--keep", type=Path, default=KEPT)
    options = parser.parse_args()
    modes = worlds.MODES if options.mode == "both" else (options.mode,)
    swept = sweep(options.first, options.seeds, modes, keep=options.keep, plant=options.plant)
    print(table(swept))
    for mode, seed, text in swept.violations:
        print(f"{mode} {seed}: {text}")
    return int(bool(swept.violations))


if __name__ == "__main__":
    sys.exit(main())
