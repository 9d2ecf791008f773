"""Power loss for real: the file systems of both sites are shut down under load by the ioctl FS_IOC_SHUTDOWN.

    python -m tests.faults.power [--rounds N | --seconds S] [--seed N] [--filesystem ext4|xfs]        (as root)

Each site lives on a loop-mounted file system of its own; what the clients were told is written outside of both. A
round: load, shutdown without a flush of the file system's log (primary, secondary or both), processes killed, shared
memory gone, unmounted, mounted again (which replays the log), judged, started again, judged once more when converged.
In a quiet round nobody but the policy syncs the journal: small rows only, no schema changed, no source, three seconds
of load. That is where `interval` must keep its word, and where `off` must lose more, or the round would show nothing.

Guarantees: nothing stays mounted; a kernel without the ioctl is an error, not a pass.
Leaves to others: what is right for a policy beyond `allowed`.
"""

from __future__ import annotations

import argparse
import fcntl
import json
import math
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

from replicate.door.snapshot import door_of
from replicate.errors import ReplicateError
from replicate.instance.instance import Instance
from replicate.journal import durable
from replicate.pool import control as word
from replicate.pool.journal_pool import JournalPool
from tests.faults import client
from tests.faults.client import NUMBERS
from tests.faults.oracle import ZERO, Told, judge_instance, present, read_told
from tests.faults.part import parser, run_part
from tests.faults.report import machine, merge
from tests.faults.rounds import FLOWING
from tests.faults.settling import count_told, settle
from tests.faults.town import DAEMONS, Town

SHUTDOWN: Final = 0x8004587D
"""FS_IOC_SHUTDOWN: _IOR('X', 125, __u32)."""
WITHOUT_LOG: Final = 2
IMAGE_BYTES: Final = {"ext4": 256 << 20, "xfs": 384 << 20}
POLICIES: Final = ("durable", "interval", "off")
INTERVAL_S: Final = 1.0
QUIET_EVERY: Final = 3
"""Of so many rounds under `interval` and `off` the first is a quiet one."""
QUIET_LOAD_S: Final = 3.0
QUIET_PAUSE_S: Final = 0.05
LONG_LOST: Final = "quiet rounds that lost more than the interval: "
"""Before the policy: of `off`, it shows that the load would have had `interval` lose as much, but for its sync."""
SITES: Final = ("primary", "secondary")
SITES_IN_TURN: Final = (("primary",), SITES, ("secondary",))
POWER_ZERO: Final = (
    *ZERO, "durable by its own word but missing", "secondary ahead of the primary", "holes", "parts that failed",
)  # fmt: skip
LEAST: Final = (
    "acknowledged", "recoveries", "digests compared", "transactions over two regions", LONG_LOST + "off",
)  # fmt: skip


class MountedDisk:
    """A file system in a file, mounted."""

    def __init__(self, directory: Path, name: str, kind: str) -> None:
        self.image, self.mounted = directory / f"{name}.img", directory / name
        self.mounted.mkdir()
        with open(self.image, "wb") as file:
            file.truncate(IMAGE_BYTES[kind])
        quiet = {"ext4": ["-q", "-F"], "xfs": ["-q", "-f"]}[kind]
        command(f"mkfs.{kind}", *quiet, str(self.image))
        self.is_mounted = False
        self._options = {"ext4": "", "xfs": ",nouuid"}[kind]  # the other one may still be there
        self.mount()

    def mount(self) -> None:
        command("mount", "-o", "loop" + self._options, str(self.image), str(self.mounted))
        self.is_mounted = True

    def mount_again(self) -> None:
        """What reached the disk, after an unmount: from a copy of it. A process that has made itself a mount namespace
        meanwhile (a container, `ip netns exec`) keeps the file system that was shut down alive, and a mount of the same
        image would only be that one again."""
        copy = self.image.with_suffix(".next")
        command("cp", "--sparse=always", str(self.image), str(copy))
        copy.rename(self.image)
        self.mount()

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
        raise AssertionError(f"{self.mounted} cannot be unmounted")


def command(*words: str) -> None:
    """Run a command; AssertionError with its words when it fails."""
    environment = {**os.environ, "PATH": os.environ.get("PATH", "") + ":/usr/sbin:/sbin"}
    done = subprocess.run(words, capture_output=True, text=True, check=False, env=environment)
    assert done.returncode == 0, f"{' '.join(words)}: {done.stderr}"


def only_small_rows() -> None:
    """From here on clients of this process write no filler: large rows have the segment grow, which syncs it."""
    client._fill = lambda *_: None  # type: ignore[assignment]


class Losses:
    """Rounds of power loss under one policy."""

    def __init__(self, durability: str, kind: str, seed: int) -> None:
        self.durability = durability
        self.figures: Counter[str] = Counter()
        self._dice = random.Random(seed)
        self._outside = tempfile.TemporaryDirectory(prefix="replicate-power-")
        directory = Path(self._outside.name)
        self.disks: dict[str, MountedDisk] = {}
        self.lost: set[int] = set()
        self._clients_before = 0
        self.told = Told()
        try:
            for site in SITES:
                self.disks[site] = MountedDisk(directory, site, kind)
            told = directory / "told"
            self.town = Town(
                self.disks["primary"].mounted,
                durability,
                told=told,
                secondary=self.disks["secondary"].mounted / "site",
                seed=seed,
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

    def round(self, sites: tuple[str, ...], load_s: float = 1.5) -> None:
        """Load, power loss on these sites at once, and the judgements."""
        town, dice = self.town, self._dice
        town.start_daemons()
        if dice.random() < 0.5:
            town.kill("source")  # it syncs what it is about to send, whatever the policy
        self._clients_before = town.clients
        # Large rows have the segment grow, which syncs it: without them more is there to be lost.
        for mode in ("mixed", "mixed", "filler") if dice.random() < 0.5 else ("mixed", "mixed"):
            town.client(mode, pause_s=0.0 if mode == "mixed" else 0.03)
        town.wait_acknowledged(FLOWING)
        time.sleep(load_s * (0.5 + dice.random()))
        self._cut(sites)

    def quiet_round(self, sites: tuple[str, ...]) -> None:
        """The same, the primary among `sites`, with a load in which the policy alone has the journal synced."""
        town = self.town
        town.kill("source")
        town.start_daemons_but("source")
        self._clients_before = town.clients
        for _ in range(2):  # of a kind that changes no schema: that syncs, too
            town.client("several", pause_s=QUIET_PAUSE_S, before=only_small_rows)
        town.wait_acknowledged(FLOWING)
        time.sleep(QUIET_LOAD_S)
        lost_ms = self._cut(sites)
        self.figures["quiet rounds"] += 1
        self.figures[LONG_LOST + self.durability] += lost_ms > 1000 * INTERVAL_S

    def _cut(self, sites: tuple[str, ...]) -> int:
        """The power loss under that load, and the judgements; how much was lost, ms."""
        town, dice = self.town, self._dice
        cut_ns = time.monotonic_ns()
        for site in sites:
            self.disks[site].lose_power()
        time.sleep(dice.random() * 0.05)  # they go on for a moment, and are told that nothing can be written
        if sites == ("secondary",):
            time.sleep(0.3)
        town.kill_all()
        town.strange.clear()  # the disk was gone
        self.figures["rounds"] += 1
        self.figures[f"rounds: power loss, {' and '.join(sites)}"] += 1
        claims = self._ask("claims", self._claims)
        durable._BOOT += 1  # type: ignore[misc]  # what is forked from now on runs in another boot
        for site in sites:
            self.disks[site].unmount()
            town.reboot(self.uuids[site])
            self.disks[site].mount_again()
        found = self._ask("judge", lambda: self._judge_at_once(sites, claims, cut_ns))
        merge(self.figures, found)
        self.lost |= set(json.loads((town.told / "lost.json").read_text()))
        self._judge_converged()
        return int(found[f"lost ms, most: {self.durability}"])

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
        """Right after recovery, before anything is sent again."""
        figures: Counter[str] = Counter()
        told = read_told(self.town.told)
        ends = {}
        for site, path in self.paths().items():
            began_s = time.monotonic()
            with door_of(Instance.open(path)) as door:
                ends[site] = int(door.words[word.LAST_SEQNO])
            if site in sites:
                figures["recoveries"] += 1
                took_ms = int(1000 * (time.monotonic() - began_s))
                figures["recovery ms, most"] = max(figures["recovery ms, most"], took_ms)
            figures["durable by its own word but missing"] += ends[site] < claims.get(site, 0)
        figures["secondary ahead of the primary"] += ends["secondary"] > ends["primary"]
        allowed = self.lost | self._allowed(told, cut_ns if "primary" in sites else None)
        if "primary" in sites:  # else its pool stands, and the next writer finishes what a killed one has begun
            judge_instance(Instance.open(self.town.primary), told, figures, lost_may=frozenset(allowed))
        if "secondary" in sites:  # whole transactions, in both regions and in the journal alike; how many, is no matter
            judge_instance(Instance.open(self.town.secondary), told, figures, lost_may=frozenset(told.ok))
        missing = told.ok.keys() - present(Instance.open(self.town.primary))
        fresh = missing - self.lost
        figures[f"lost ms, most: {self.durability}"] = 0
        figures["acknowledged and lost"] += len(fresh)
        ours = {op: seqno for op, seqno in told.ok.items() if op // NUMBERS > self._clients_before}
        kept_last = max((seqno for op, seqno in ours.items() if op not in missing), default=0)
        figures["holes"] += sum(ours[op] < kept_last for op in fresh if op in ours)
        if fresh:
            lost_ns = cut_ns - min(told.at_ns[op] for op in fresh)
            figures[f"lost ms, most: {self.durability}"] = max(0, lost_ns // 1_000_000)
        (self.town.told / "lost.json").write_text(json.dumps(sorted(missing)))
        return figures

    def _allowed(self, told: Any, cut_ns: int | None) -> set[int]:
        if cut_ns is None or self.durability == "durable":
            return set()
        limit_ns = cut_ns - int(INTERVAL_S * 1e9) if self.durability == "interval" else 0
        return {op for op, at_ns in told.at_ns.items() if at_ns > limit_ns}

    def _judge_converged(self) -> None:
        self.told = settle(self.town, self.figures, lost_may=frozenset(self.lost))
        for role in DAEMONS:
            assert role in self.town.children, f"{role} has ended: {self.town.strange}"


def run(
    durability: str,
    kind: str,
    rounds: int,
    seed: int,
    *,
    deadline_s: float = math.inf,
    figures: Counter[str] | None = None,
) -> Counter[str]:
    """That many rounds, or fewer when the deadline has come, but one; the figures, added to those given."""
    figures = Counter() if figures is None else figures
    losses = Losses(durability, kind, seed)
    try:
        for number in range(rounds):
            if durability != "durable" and number % QUIET_EVERY == 0:
                losses.quiet_round(SITES_IN_TURN[(number // QUIET_EVERY + seed) % 2])
            else:
                losses.round(SITES_IN_TURN[(number + seed) % len(SITES_IN_TURN)])
            print(".", end="", flush=True)
            if time.monotonic() > deadline_s:
                break
        return figures
    except BaseException:
        errors = losses.town.errors
        print(errors.read_text()[-8000:] if errors.exists() else "", file=sys.stderr)
        raise
    finally:
        losses.figures[f"acknowledged and lost: {durability}"] = losses.figures.pop("acknowledged and lost", 0)
        count_told(losses.told, losses.figures)
        merge(figures, losses.figures)
        losses.close()


def work(options: argparse.Namespace, figures: Counter[str]) -> None:
    rounds = options.rounds or (1_000_000 if math.isfinite(options.seconds) else 3)
    for number, durability in enumerate(POLICIES):
        left_s = options.deadline_s - time.monotonic()
        end_s = time.monotonic() + left_s / (len(POLICIES) - number)
        run(durability, options.filesystem, rounds, options.seed * 31 + number, deadline_s=end_s, figures=figures)


def main() -> int:
    made = parser("tests.faults.power")
    made.add_argument("--rounds", type=int, default=0)
    made.add_argument("--filesystem", choices=tuple(IMAGE_BYTES), default="ext4")
    options = made.parse_args()
    return run_part(options, work, POWER_ZERO, where=f"{machine('/')}, power loss on {options.filesystem}", least=LEAST)


if __name__ == "__main__":
    sys.exit(main())
