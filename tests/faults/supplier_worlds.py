"""Worlds of suppliers that are no processes, by the thousand: rows as registers, packets, retirements, real databases.

    python -m tests.faults.supplier_worlds [--seed N] [--seconds S] [--worlds N] [--again KIND SEED]

A world is two to five sites, linked as pair, mesh, ring, star or line, whose clocks differ; what they do is chosen at
random. In the end each has everything, the same rows, those that a fold of all transactions gives, and has kept every
value that was lost. `--worlds` in memory, then worlds of real databases until the time is over (without one: a few).
`--again`: only that one, as it was printed where it went wrong.
Guarantees: the seed of each world follows from ours, and is printed where it went wrong.
Leaves to others: what a world is (harness, and the tests that live a few in every run).
"""

from __future__ import annotations

import argparse
import math
import os
import random
import sys
import tempfile
import time
import traceback
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Final

from tests.faults.part import parser, run_part
from tests.harness import packet_worlds
from tests.harness.merge_oracle import Change, Event, folded, to_keep
from tests.harness.merging_worlds import CASES, assert_as_folded, world
from tests.replicate.model import test_merged_row as registers
from tests.replicate.model import test_writers as writers
from tests.replicate.transfer.packet import test_vector_order_worlds as packets

SEEDS_APART: Final = 1_000_000
"""So far apart are the worlds of two seeds of ours."""
WORLDS: Final = 500
REAL: Final = 2
"""Worlds with databases, without a time."""
MOST_WRONG: Final = 5
WRONG: Final = "supplier worlds gone wrong"
LEAST: Final = ("supplier worlds", "supplier worlds: values lost")
TABLE: Final = "rows"


def of_registers(seed: int, figures: Counter[str]) -> None:
    """Rows alone: every site comes to what the transactions fold to, and has kept what is lost."""
    sites = registers.world(seed)
    events = [_event(frame) for frame in sites[0].journal]
    wanted = {row[1]: image for row, image in folded(events).items()}
    needed = {(row[1], ordinal, value) for row, ordinal, value in to_keep(events) if ordinal}
    figures["supplier worlds: values lost"] += len(needed)
    for site in sites:
        assert site.table == wanted, f"site {site.origin} has other rows than its transactions come to"
        kept = {(one.values[0], ordinal, one.values[ordinal]) for one in site.losses for ordinal in one.ordinals}
        assert needed <= kept, f"site {site.origin} has not kept {needed - kept}"


def _event(frame: registers.Frame) -> Event:
    changes = (
        Change((TABLE, key), None if change.op == registers.Op.DELETE else change.values, change.groups)
        for key, change, _ in frame.changes
    )
    return Event(frame.csn, frame.origin, frame.number, frame.told, tuple(changes))


def of_packets(seed: int, _figures: Counter[str]) -> None:
    """Packets that are lost, doubled, late; in two of three worlds one site is restored from an older state."""
    packets.run(packet_worlds.World(seed, 2 + seed % 3), restored=("", "by itself", "by others")[seed // 3 % 3])


def of_retiring(seed: int, _figures: Counter[str]) -> None:
    """One that is gone for good, or two."""
    writers.test_nothing_of_one_that_is_gone_comes_after_its_retirement(seed)


def of_databases(seed: int, _figures: Counter[str]) -> None:
    """Real ones, merged by the very code of an Update Process."""
    before = os.environ.get("REPLICATE_SHM_DIR")
    try:
        with tempfile.TemporaryDirectory(prefix="replicate-world-") as directory:
            assert_as_folded(world(Path(directory), seed, *CASES[seed % len(CASES)]), seed)
    finally:
        if before is None:
            os.environ.pop("REPLICATE_SHM_DIR", None)
        else:
            os.environ["REPLICATE_SHM_DIR"] = before


IN_MEMORY: Final[Mapping[str, tuple[Callable[[int, Counter[str]], None], int]]] = {
    "registers": (of_registers, 3),
    "packets": (of_packets, 1),
    "retiring": (of_retiring, 1),
}
"""And so many of them before the next kind comes."""
DATABASES: Final = "databases"
WORLDS_OF: Final = {**{kind: world for kind, (world, _) in IN_MEMORY.items()}, DATABASES: of_databases}


def live(kind: str, world: Callable[[int, Counter[str]], None], seed: int, figures: Counter[str]) -> None:
    """One world; what goes wrong in it is printed and counted."""
    figures["supplier worlds"] += 1
    figures[f"supplier worlds: {kind}"] += 1
    try:
        world(seed, figures)
    except Exception:
        figures[WRONG] += 1
        told = f"a world of {kind}, seed {seed} (the same one: --again {kind} {seed})"
        print(f"{told}:\n{traceback.format_exc(limit=-3)}", flush=True)


def work(options: argparse.Namespace, figures: Counter[str]) -> None:
    if options.again is not None:
        kind, seed = options.again[0], int(options.again[1])
        live(kind, WORLDS_OF[kind], seed, figures)
        return
    is_timed = math.isfinite(options.seconds)
    first = options.seed * SEEDS_APART
    kinds = [kind for kind, (_, count) in IN_MEMORY.items() for _ in range(count)]
    for seed in range(first, first + options.worlds):
        kind = kinds[seed % len(kinds)]
        live(kind, IN_MEMORY[kind][0], seed, figures)
        if figures[WRONG] >= MOST_WRONG:
            return
    dice, number = random.Random(options.seed), 0
    while figures[WRONG] < MOST_WRONG and (time.monotonic() < options.deadline_s if is_timed else number < REAL):
        number += 1
        live(DATABASES, of_databases, first + dice.randrange(SEEDS_APART), figures)


def options_of(words: Sequence[str] | None = None) -> argparse.Namespace:
    """As the command line has them; None: this process's."""
    made = parser("tests.faults.supplier_worlds")
    made.add_argument("--worlds", type=int, default=WORLDS)
    made.add_argument("--again", nargs=2, metavar=("KIND", "SEED"), help=f"one world: {', '.join(WORLDS_OF)}")
    return made.parse_args(words)


def main() -> int:
    options = options_of()
    least = LEAST if options.again is None else LEAST[:1]
    return run_part(options, work, (WRONG, "parts that failed"), least=least)


if __name__ == "__main__":
    sys.exit(main())
