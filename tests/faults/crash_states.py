"""Every legal disk state of short recorded runs, each recovered from and judged: I1 to I4 and I6.

    python -m tests.faults.crash_states [--samples N] [--stride N] [--seed N]

Runs: commits under `durable` and `off`, segment switches, the recovery of a torn tail, changes of the instance file.
strace writes the system calls of a real process down, SQLite's among them; disk.py makes states of them.
Guarantees: an acknowledgement counts from the moment when the process told it on its pipe.
Refuses to know: what a disk may do (disk.py).
"""

from __future__ import annotations

import argparse
import json
import os
import random
import shutil
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from replicate.instance import Instance
from replicate.journal import durable
from tests.faults.disk import CALLS, Disk, read_trace
from tests.faults.town import fork
from tests.harness import instances

RUNS: Final = ("durable", "off", "switch", "torn", "instance")
Command = Sequence[object]


@dataclass
class Run:
    """What is recorded. `commands`: of tests/harness/writer.py; `acknowledged`: answers bind."""

    instance: Path
    commands: list[Command] = field(default_factory=list)
    acknowledged: bool = True


def prepare(name: str, root: Path) -> Run:
    """The state before the run, all of it synced, and the run."""
    policy = "off" if name in ("off", "torn") else "durable"
    instance = instances.make_primary(root / "alpha", durability=policy, segment_bytes=1 << 20)
    with instances.session_of(instance) as session:
        for row_id in range(1, 4):
            instances.insert(session, row_id)
    insert = [["insert", "main", row_id] for row_id in range(10, 16)]
    if name in ("durable", "off"):
        large = [["many", "main", 100, 3, 9000]]  # several pages, so that one may be missing before another
        return Run(instance.path, [*insert, *large, *insert_more(20, 4)], name == "durable")
    if name == "switch":
        return Run(instance.path, [["many", "main", 100 + n, 1, 190_000] for n in range(7)])
    if name == "torn":
        return Run(tear(instance), [["recover"], *insert_more(10, 2)], False)
    return Run(instance.path, [["recover"]])


def insert_more(first: int, count: int) -> list[Command]:
    return [["insert", "main", row_id] for row_id in range(first, first + count)]


def tear(instance: Instance) -> Path:
    """A torn tail that the region does not have."""
    path = instance.region("main").path
    instances.save_region(path, instance.path.parent / "aside")
    with instances.session_of(instance) as session:
        from replicate.pool import control as word

        end = int(session.door.words[word.END_OFFSET])
        instances.insert(session, 900)
    instances.restore_region(path, instance.path.parent / "aside")
    shutil.rmtree(instance.path.parent / "aside")
    instances.power_loss(instance, end + 60)
    return instance.path


INSTANCE_PROGRAM: Final = """
import sys
from replicate.instance import Instance
instance = Instance.open(sys.argv[1])
instance.register_peer("west", "127.0.0.1", 7430)
instance.raise_incarnation()
instance.register_peer("east", "127.0.0.1", 7431)
print("[0]", flush=True)
"""


def record(name: str, run: Run, trace: Path, environment: dict[str, str]) -> None:
    """Run it under strace."""
    program = ["-c", INSTANCE_PROGRAM] if name == "instance" else ["-m", "tests.harness.writer"]
    done = subprocess.run(
        ["strace", "-y", "-xx", "-s", "4000000", "-e", f"trace={CALLS}", "-o", os.fspath(trace),
         sys.executable, *program, os.fspath(run.instance)],
        input="".join(json.dumps(command) + "\n" for command in run.commands),
        capture_output=True, text=True, cwd=instances.ROOT, env=environment, timeout=120, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-3000:]


def ids_of(command: Command) -> range:
    """The rows that a command inserts."""
    if command[0] == "insert":
        return range(int(str(command[2])), int(str(command[2])) + 1)
    if command[0] == "many":
        return range(int(str(command[2])), int(str(command[2])) + int(str(command[3])))
    return range(0)


def judge(path: Path, must: set[int], may: set[int]) -> None:
    """Recover, and look; AssertionError or the product's error for a violation. In a process of its own."""
    durable._BOOT = 4711  # type: ignore[misc]  # the machine was started again
    found = instances.check(Instance.open(path))
    there = set(found.rows["main"])
    assert must <= there <= may, (sorted(must - there), sorted(there - may))
    with instances.session_of(Instance.open(path)) as session:
        instances.insert(session, 999_999)
    again = instances.check(Instance.open(path))
    assert set(again.rows["main"]) == there | {999_999}


def explore(name: str, *, samples: int, stride: int, seed: int, figures: Counter[str]) -> list[str]:
    """All states of one run; what was violated."""
    violations: list[str] = []
    before = os.environ.get("REPLICATE_SHM_DIR")
    with tempfile.TemporaryDirectory(prefix="replicate-states-") as place:
        root, outside = Path(place) / "disk", Path(place) / "outside"
        for path in (root, outside, outside / "shm"):
            path.mkdir()
        os.environ["REPLICATE_SHM_DIR"] = str(outside / "shm")
        try:
            prepared = outside / "run.json"

            def build() -> None:
                run = prepare(name, root)
                prepared.write_text(json.dumps([str(run.instance), run.commands, run.acknowledged]))

            _in_child("build", build, outside)
            instance, commands, acknowledged = json.loads(prepared.read_text())
            run = Run(Path(instance), commands, acknowledged)
            disk = Disk(root)
            _clear(outside / "shm")
            record(name, run, outside / "trace", {**os.environ, "PYTHONPATH": str(instances.ROOT)})
            violations = _walk(name, run, disk, outside, random.Random(seed), samples, stride, figures)
        finally:
            if before is None:
                os.environ.pop("REPLICATE_SHM_DIR", None)
            else:
                os.environ["REPLICATE_SHM_DIR"] = before
    return violations


def _walk(
    name: str,
    run: Run,
    disk: Disk,
    outside: Path,
    dice: random.Random,
    samples: int,
    stride: int,
    figures: Counter[str],
) -> list[str]:
    violations = []
    told = 0
    base = {1, 2, 3}
    may = base | {row_id for command in run.commands for row_id in ids_of(command)} | {900}
    tried: set[int] = set()
    with open(outside / "trace", encoding="ascii", errors="replace") as trace:
        ops = list(read_trace(trace, str(disk.root)))
    for number, op in enumerate(ops):
        if op.kind == "told":
            told += op.data.count(b"\n")
            continue
        disk.take(op)
        figures["operations"] += 1
        if (number + dice.randrange(stride)) % stride:
            continue
        must = set(base)
        if run.acknowledged:
            must |= {row_id for command in run.commands[:told] for row_id in ids_of(command)}
        for label, state in disk.states(dice, samples):
            key = hash((frozenset(must), frozenset(state.items())))
            if key in tried:
                continue
            tried.add(key)
            disk.put(state)
            _clear(outside / "shm")
            figures["crash states"] += 1
            figures[f"crash states: {name}"] += 1
            error = _in_child("judge", lambda must=must: judge(run.instance, must, may), outside, check=False)
            if error:
                figures["violations"] += 1
                violations.append(f"{name}: after operation {number} ({op.kind} {op.path}), {label}: {error}")
    return violations


def _in_child(what: str, call: Callable[[], Any], outside: Path, *, check: bool = True) -> str:
    errors = outside / "errors.txt"
    errors.unlink(missing_ok=True)
    child = fork(what, call, errors)
    assert child.wait(60), f"{what} does not end"
    text = errors.read_text().strip() if errors.exists() else ""
    assert not check or child.status == 0, text
    return (text.splitlines()[-1] if text else f"exit code {child.status}") if child.status else ""


def _clear(directory: Path) -> None:
    for path in directory.iterdir():
        path.unlink()


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.faults.crash_states")
    parser.add_argument("--samples", type=int, default=3)
    parser.add_argument("--stride", type=int, default=1)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--runs", default=",".join(RUNS))
    options = parser.parse_args()
    figures: Counter[str] = Counter(violations=0)
    for name in options.runs.split(","):
        for violation in explore(
            name, samples=options.samples, stride=options.stride, seed=options.seed, figures=figures
        ):
            print(violation)
    print("".join(f"{key}  {count}\n" for key, count in sorted(figures.items())))
    return int(bool(figures["violations"]))


if __name__ == "__main__":
    sys.exit(main())
