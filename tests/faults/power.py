"""Power loss for real: the file systems of both sites are shut down under load by the ioctl FS_IOC_SHUTDOWN.

    python -m tests.faults.power [--rounds N] [--seed N] [--filesystem ext4|xfs] [--report FILE]        (as root)

Each site lives on a loop-mounted file system of its own; what the clients were told is written outside of both. A
round: load, shutdown without a flush of the file system's log (primary, secondary or both), processes killed, shared
memory gone, unmounted, mounted again (which replays the log), judged, started again, judged once more when converged.

Guarantees: nothing stays mounted; a kernel without the ioctl is an error, not a pass.
Refuses to know: what is right for a policy beyond `allowed`.
"""

from __future__ import annotations

import argparse
import fcntl
import json
import os
import random
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

from replicate.database.sqlite import open_region
from replicate.errors import ReplicateError
from replicate.instance import Instance
from replicate.journal import durable
from replicate.pool import control as word
from replicate.pool.journal_pool import JournalPool
from replicate.snapshot import door_of
from tests.faults.client import NUMBERS
from tests.faults.oracle import ZERO, Told, judge_both, judge_instance, read_told
from tests.faults.report import machine, table
from tests.faults.town import DAEMONS, Town

SHUTDOWN: Final = 0x8004587D
"""FS_IOC_SHUTDOWN: _IOR('X', 125, __u32)."""
WITHOUT_LOG: Final = 2
IMAGE_BYTES: Final = {"ext4": 256 << 20, "xfs": 384 << 20}
POLICIES: Final = ("durable", "interval", "off")
INTERVAL_S: Final = 1.0
SITES: Final = ("primary", "secondary")
POWER_ZERO: Final = (*ZERO, "durable by its own word but missing", "secondary ahead of the primary", "holes")


class Disk:
    """A file system in a file, mounted."""

    def __init__(self, directory: Path, name: str, kind: str) -> None:
        self.image, self.mounted = directory / f"{name}.img", directory / name
        self.mounted.mkdir()
        with open(self.image, "wb") as file:
            file.truncate(IMAGE_BYTES[kind])
        quiet = {"ext4": ["-q", "-F"], "xfs": ["-q", "-f"]}[kind]
        command(f"mkfs.{kind}", *quiet, str(self.image))
        self.is_mounted = False
        self.mount()

    def mount(self) -> None:
        command("mount", "-o", "loop", str(self.image), str(self.mounted))
        self.is_mounted = True

    def lose_power(self) -> None:
        """From here on nothing reaches the disk."""
        fd = os.open(self.mounted, os.O_RDONLY | os.O_DIRECTORY)
        try:
            fcntl.ioctl(fd, SHUTDOWN, WITHOUT_LOG.to_bytes(4, sys.byteorder))
        finally:
            os.close(fd)

    def unmount(self) -> None:
        """Also when it is busy for a moment still."""
        for _ in range(100):
            if not self.is_mounted:
                return
            done = subprocess.run(["umount", str(self.mounted)], capture_output=True, check=False)
            self.is_mounted = done.returncode != 0
            if self.is_mounted:
                time.sleep(0.05)
        raise AssertionError(f"{self.mounted} can not be unmounted")


def command(*words: str) -> None:
    """Run a command; AssertionError with its words when it fails."""
    environment = {**os.environ, "PATH": os.environ.get("PATH", "") + ":/usr/sbin:/sbin"}
    done = subprocess.run(words, capture_output=True, text=True, check=False, env=environment)
    assert done.returncode == 0, f"{' '.join(words)}: {done.stderr}"


class Losses:
    """Rounds of power loss under one policy."""

    def __init__(self, durability: str, kind: str, seed: int) -> None:
        self.durability = durability
        self.figures: Counter[str] = Counter()
        self._dice = random.Random(seed)
        self._outside = tempfile.TemporaryDirectory(prefix="replicate-power-")
        directory = Path(self._outside.name)
        self.disks: dict[str, Disk] = {}
        self.lost: set[int] = set()
        self._clients_before = 0
        self.told = Told()
        try:
            for site in SITES:
                self.disks[site] = Disk(directory, site, kind)
            told = directory / "told"
            self.town = Town(
                self.disks["primary"].mounted, durability, told=told, secondary=self.disks["secondary"].mounted / "site"
            )
        except BaseException:
            self.unmount()
            raise
        self.uuids = self._ask("uuids", self._read_uuids)

    def _read_uuids(self) -> dict[str, str]:
        return {site: Instance.open(path).content.uuid.hex() for site, path in self.paths().items()}

    def paths(self) -> dict[str, Path]:
        return {"primary": self.town.primary, "secondary": self.town.secondary}

    def _ask(self, what: str, call: Callable[[], Any]) -> Any:
        """`call`'s answer, from a process of its own."""
        out = self.town.told / "answer.json"
        self.town.do(what, lambda: out.write_text(json.dumps(call())))
        return json.loads(out.read_text())

    def close(self) -> None:
        try:
            self.town.close()
        finally:
            self.unmount()

    def unmount(self) -> None:
        for disk in self.disks.values():
            disk.unmount()
        self._outside.cleanup()

    def round(self, load_s: float = 1.5) -> None:
        """Load, power loss, and the judgements."""
        town, dice = self.town, self._dice
        town.start_daemons()
        if dice.random() < 0.5:
            town.kill("source")  # it syncs what it is about to send, whatever the policy
        self._clients_before = town.clients
        for mode in ("mixed", "mixed", "filler"):
            town.client(mode, pause_s=0.0 if mode == "mixed" else 0.03)
        time.sleep(load_s * (0.5 + dice.random()))
        sites = dice.choice([("primary",), ("secondary",), SITES])
        cut_ns = time.monotonic_ns()
        for site in sites:
            self.disks[site].lose_power()
        time.sleep(dice.random() * 0.05)  # they go on for a moment, and are told that nothing can be written
        if sites == ("secondary",):
            time.sleep(0.3)
        town.kill_all()
        town.strange.clear()  # the disk was gone
        self.figures["rounds"] += 1
        for site in sites:
            self.figures[f"rounds: power loss, {site}"] += 1
        claims = self._ask("claims", self._claims)
        durable._BOOT += 1  # type: ignore[misc]  # what is forked from now on runs in another boot
        for site in sites:
            self.disks[site].unmount()
            town.reboot(self.uuids[site])
            self.disks[site].mount()
        found = Counter(self._ask("judge", lambda: self._judge_at_once(sites, claims, cut_ns)))
        most = f"lost ms: {self.durability}"
        found[most] = max(0, found[most] - self.figures[most])
        self.figures.update(found)
        self.lost |= set(json.loads((town.told / "lost.json").read_text()))
        self._judge_converged()

    def _claims(self) -> dict[str, int]:
        """What either side has called durable; its shared memory tells, which a dead process has left."""
        found = {}
        for site, uuid in self.uuids.items():
            try:
                pool = JournalPool.attach(bytes.fromhex(uuid))
            except ReplicateError:
                continue
            found[site] = int(pool.words[word.LAST_DURABLE_SEQNO])
            pool.close()
        return found

    def _judge_at_once(self, sites: tuple[str, ...], claims: dict[str, int], cut_ns: int) -> Counter[str]:
        """Right behind recovery, before anything is sent again."""
        figures: Counter[str] = Counter()
        told = read_told(self.town.told)
        ends = {}
        for site, path in self.paths().items():
            began_s = time.monotonic()
            with door_of(Instance.open(path)) as door:
                ends[site] = int(door.words[word.LAST_SEQNO])
            if site in sites:
                figures["recoveries"] += 1
                figures["recovery ms, all"] += int(1000 * (time.monotonic() - began_s))
            figures["durable by its own word but missing"] += ends[site] < claims.get(site, 0)
        figures["secondary ahead of the primary"] += ends["secondary"] > ends["primary"]
        allowed = self.lost | self._allowed(told, cut_ns if "primary" in sites else None)
        if "primary" in sites:  # else its pool stands, and the next writer finishes what a killed one has begun
            judge_instance(Instance.open(self.town.primary), told, figures, lost_may=frozenset(allowed))
        missing = told.ok.keys() - present(Instance.open(self.town.primary))
        fresh = missing - self.lost
        figures["acknowledged and lost"] += len(fresh)
        ours = {op: seqno for op, seqno in told.ok.items() if op // NUMBERS > self._clients_before}
        kept_last = max((seqno for op, seqno in ours.items() if op not in missing), default=0)
        figures["holes"] += sum(ours[op] < kept_last for op in fresh if op in ours)
        if fresh:
            lost_ns = cut_ns - min(told.at_ns[op] for op in fresh)
            figures[f"lost ms: {self.durability}"] = max(0, lost_ns // 1_000_000)
        (self.town.told / "lost.json").write_text(json.dumps(sorted(missing)))
        return figures

    def _allowed(self, told: Any, cut_ns: int | None) -> set[int]:
        if cut_ns is None or self.durability == "durable":
            return set()
        limit_ns = cut_ns - int(INTERVAL_S * 1e9) if self.durability == "interval" else 0
        return {op for op, at_ns in told.at_ns.items() if at_ns > limit_ns}

    def _judge_converged(self) -> None:
        town = self.town
        town.start_daemons()
        last = town.client(count=3)
        assert last.wait(60), "the last client does not end"
        town.reap()
        told = read_told(town.told)

        def judge() -> Counter[str]:
            figures: Counter[str] = Counter()
            judge_both(
                Instance.open(town.primary), Instance.open(town.secondary), told, figures, timeout_s=60,
                lost_may=frozenset(self.lost),
            )  # fmt: skip
            return figures

        self.figures.update(self._ask("judge converged", judge))
        for role in DAEMONS:
            assert role in town.children, f"{role} has ended: {town.strange}"
        self.told = told


def present(instance: Instance) -> set[int]:
    """The transactions in a region."""
    connection = open_region(instance.region("main").path, readonly=True)
    try:
        return {row[0] for row in connection.execute("SELECT id FROM op")}
    finally:
        connection.close(True)


def run(durability: str, kind: str, rounds: int, seed: int) -> Counter[str]:
    """That many rounds; the figures."""
    losses = Losses(durability, kind, seed)
    try:
        for _ in range(rounds):
            losses.round()
            print(".", end="", flush=True)
        told = losses.told
        losses.figures["submitted"] = told.submitted
        losses.figures["acknowledged"] = len(told.ok)
        losses.figures["unknown"] = len(told.unknown)
        losses.figures["failed"] = len(told.failed)
        losses.figures[f"acknowledged and lost: {durability}"] = losses.figures.pop("acknowledged and lost", 0)
        return losses.figures
    except BaseException:
        errors = losses.town.errors
        print(errors.read_text()[-8000:] if errors.exists() else "", file=sys.stderr)
        raise
    finally:
        losses.close()


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.faults.power")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--filesystem", choices=tuple(IMAGE_BYTES), default="ext4")
    parser.add_argument("--report", type=Path)
    options = parser.parse_args()
    figures: Counter[str] = Counter()
    began_s = time.monotonic()
    for number, durability in enumerate(POLICIES):
        figures.update(run(durability, options.filesystem, options.rounds, options.seed + number))
    text = table(
        figures, None, zero=POWER_ZERO, seed=options.seed, seconds=time.monotonic() - began_s,
        machine=f"{machine('/')}, power loss on {options.filesystem}",
    )  # fmt: skip
    print("\n" + text)
    if options.report:
        options.report.write_text(text)
    return int(any(figures[name] for name in POWER_ZERO))


if __name__ == "__main__":
    sys.exit(main())
