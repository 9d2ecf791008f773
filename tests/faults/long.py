"""The long form of the fault campaign: `deploy/test --faults [--hours H] [--seed N]`.

    python -m tests.faults.long [--hours H] [--seed N]

The harness is proved first: the planted bugs take a few minutes beside the time that was asked for. Then every part, a
process of its own, gets a share of the time. At the end stands one table with the figures of all parts. Ctrl-C ends the
part that runs, and gives the table so far.
Guarantees: exit code 0 only when every figure that must be zero is, no part failed, and all ran to their end; what was
left out is said, with the reason; nothing stays running, mounted, or left in shared memory and in the directory for
temporary files.
Leaves to others: the parts.
"""

from __future__ import annotations

import argparse
import contextlib
import importlib.util
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from tests.faults.report import BY_PART, POWER_ON, bad, closing, machine, merge
from tests.faults.town import SHM
from tests.harness.machine_tools import can_make, can_trace

PATH: Final = os.environ.get("PATH", "") + ":/usr/sbin:/sbin"
ROUNDS_AN_HOUR: Final = 560
"""Of the kill campaign, at least, however slow the machine."""
WORLDS_AN_HOUR: Final = 5000
"""Of suppliers, in memory, at least."""
GRACE_S: Final = 240.0
"""What a part may take beyond twice its time, for what it has begun; then it is killed."""
INTERRUPTED_S: Final = 60.0


@dataclass(frozen=True, slots=True)
class Part:
    """`share` of the time; 0: as long as it takes."""

    arguments: tuple[str, ...]
    share: float

    @property
    def name(self) -> str:
        return " ".join(word.removeprefix("tests.").removeprefix("faults.") for word in self.arguments)


def parts(hours: float) -> tuple[list[Part], list[str]]:
    """What this machine can run, and what is left out and why."""
    found = [Part(("tests.faults.campaign", "--rounds", str(int(ROUNDS_AN_HOUR * hours))), 0.17)]
    found += [Part(("tests.faults.soak",), 0.06), Part(("tests.faults.injections",), 0.11)]
    found += [Part(("tests.faults.roles",), 0.06), Part(("tests.faults.role_errors",), 0.04)]
    found += [Part(("tests.faults.damage",), 0.06), Part(("tests.faults.io_errors",), 0.03)]
    found += [Part(("tests.faults.io_servers",), 0.08), Part(("tests.faults.simulated",), 0.03)]
    found += [Part(("tests.faults.torn_words",), 0.01), Part(("tests.faults.pool_storm",), 0.02)]
    found += [Part(("tests.faults.suppliers",), 0.08)]
    found += [Part(("tests.faults.supplier_worlds", "--worlds", str(int(WORLDS_AN_HOUR * hours))), 0.05)]
    left_out = []
    if can_trace():
        found.append(Part(("tests.faults.crash_states",), 0.11))
    else:
        left_out.append("crash states (no strace)")
    kinds = [kind for kind in ("ext4", "xfs") if can_make(kind)]
    left_out += [f"power loss on {kind} (no mkfs.{kind})" for kind in {"ext4", "xfs"} - {*kinds}]
    if os.geteuid() != 0 or not os.path.exists("/dev/loop-control"):
        left_out += [f"power loss on {kind} (not root, or no loop devices)" for kind in kinds]
        kinds = []
    found = [Part(("tests.faults.power", "--filesystem", kind), 0.09 / len(kinds)) for kind in kinds] + found
    found.insert(0, Part(("tests.faults.plants",), 0.0))
    missing = [one for one in found if importlib.util.find_spec(one.arguments[0]) is None]
    assert not missing, missing
    return found, left_out


@contextlib.contextmanager
def place() -> Iterator[Path]:
    """A directory for everything, disk and shared memory; after it nothing is mounted or left."""
    made = Path(tempfile.mkdtemp(prefix="replicate-campaign-"))
    memory = Path(tempfile.mkdtemp(prefix="replicate-campaign-", dir="/dev/shm"))
    os.environ["TMPDIR"], os.environ[SHM] = str(made), str(memory)
    try:
        yield made
    finally:
        for line in Path("/proc/mounts").read_text().splitlines():
            if line.split()[1].startswith(str(made)):
                subprocess.run(["umount", "-l", line.split()[1]], check=False, env={**os.environ, "PATH": PATH})
        for directory in (made, memory):
            shutil.rmtree(directory, ignore_errors=True)


class Ended(Exception):
    """Ctrl-C, or SIGTERM."""


def run(part: Part, options: argparse.Namespace, where: Path, figures: Counter[str]) -> int:
    """One part to its end; its figures are added. Its exit code."""
    out = where / "figures.json"
    out.unlink(missing_ok=True)
    seconds = part.share * options.hours * 3600
    words = [sys.executable, "-m", *part.arguments, "--seed", str(options.seed), "--figures", str(out)]
    words += ["--seconds", f"{seconds:.0f}"] if part.share else []
    print(f"== {part.name}{f', {seconds:.0f} s' if part.share else ''}", flush=True)
    process = subprocess.Popen(words)
    interrupted = False
    try:
        process.wait(2 * seconds + GRACE_S if part.share else 1800)
    except subprocess.TimeoutExpired:
        print(f"== {part.name} does not end: it is killed", flush=True)
    except KeyboardInterrupt:
        interrupted = True
        with contextlib.suppress(subprocess.TimeoutExpired, KeyboardInterrupt):
            process.send_signal(signal.SIGINT)
            process.wait(INTERRUPTED_S)
    finally:
        process.kill()
        process.wait()
    if out.exists():
        told = json.loads(out.read_text())
        merge(figures, {**told, **of_part(part, told)})
    if process.returncode and not bad(figures) and not interrupted:
        figures["parts that failed"] += 1
    if interrupted:
        raise Ended
    return process.returncode


def of_part(part: Part, told: Mapping[str, int]) -> dict[str, int]:
    """What several parts count under one name, by part; and the file system of each loss of power."""
    found = {}
    if "violations" in told:
        found[BY_PART + part.arguments[0].rpartition(".")[2]] = told["violations"]
    if "--filesystem" in part.arguments:
        found[POWER_ON + part.arguments[-1]] = told.get("recoveries", 0)
    return found


def _interrupt(*_: object) -> None:
    raise KeyboardInterrupt


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.faults.long")
    parser.add_argument("--hours", type=float, default=0.2)
    parser.add_argument("--seed", type=int, default=1)
    options = parser.parse_args()
    signal.signal(signal.SIGTERM, _interrupt)
    todo, left_out = parts(options.hours)
    figures: Counter[str] = Counter()
    failed: list[str] = []
    was_interrupted = False
    began_s = time.monotonic()
    here = machine(tempfile.gettempdir())
    with place() as where:
        try:
            while todo:
                part = todo.pop(0)
                if run(part, options, where, figures):
                    failed.append(part.name)
        except (Ended, KeyboardInterrupt):
            was_interrupted = True
            left_out += [f"{one.name} (interrupted)" for one in (part, *todo)]
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
    load = " ".join(f"{one:.1f}" for one in os.getloadavg())
    print("\n" + closing(
        figures, seed=options.seed, seconds=time.monotonic() - began_s, hours=options.hours,
        machine=f"{here}, load {load} at the end", left_out=left_out,
    ))  # fmt: skip
    wrong = bad(figures)
    print(f"== not zero: {', '.join(wrong)}" if wrong else "== every figure that must be zero is")
    if failed:
        print(f"== ended badly: {', '.join(failed)}")
    return int(bool(wrong or failed)) or (130 if was_interrupted else 0)


if __name__ == "__main__":
    sys.exit(main())
