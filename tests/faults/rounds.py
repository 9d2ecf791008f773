"""The rounds of the kill campaign: in each one at least one process dies, then all that is down is started again.

Guarantees: the choice of rounds, places and moments depends on the seed alone; a failpoint counts as hit only when the
process that was armed there has killed itself. Leaves to others: what must hold afterwards (oracle.py).
"""

from __future__ import annotations

import json
import os
import random
import shutil
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from replicate.instance.instance import Instance
from replicate.journal.record import decode
from replicate.journal.walk import walk
from replicate.model.transaction import RowChange
from replicate.pool import control as word
from replicate.pool.journal_pool import JournalPool
from tests.faults.places import IN_SEED
from tests.faults.region_disk import CALLS, RegionDisk
from tests.faults.town import DAEMONS, Town, fork
from tests.harness import instances

PATIENCE_S: Final = {"filler": 15.0, "spooler": 15.0, "seed": 20.0, "both": 15.0, "torn": 15.0, "source": 6.0}
"""How long an armed process may take to come by its failpoint (default: 4 s); then it is killed where it is."""
NUMBER_MAX: Final = {"mixed": 6, "filler": 2, "spooler": 2}
ONCE: Final = frozenset(
    {"source.begun", "receiver.before_restart", "seed.incoming", "seed.received", "seed.journal_begun",
     "seed.before_rename", "replace.before_rename", "replace.renamed"}
)  # fmt: skip
"""A process comes by here once, or seldom."""
ANYWHERE: Final = ""
"""No failpoint: killed from outside at any moment."""
WRITERS: Final = 2
FLOWING: Final = 21
"""Commits that clients are told of before the first kill: whatever the machine, an episode judges some."""


@dataclass
class Rounds:
    """What was done, and what of it came to pass."""

    town: Town
    dice: random.Random
    figures: Counter[str] = field(default_factory=Counter)
    hits: Counter[str] = field(default_factory=Counter)
    tried: Counter[str] = field(default_factory=Counter)
    strange: list[str] = field(default_factory=list)
    """Ends that nobody had planned."""

    def begin(self) -> None:
        """Everything runs, and commits flow."""
        self.town.start_daemons()
        self._clients()
        self.town.wait_acknowledged(FLOWING)  # how many follow is a matter of the kills, and of the machine

    def run(self, kind: str, place: str) -> None:
        """One round, and the start of all that is down."""
        self.figures["rounds"] += 1
        self.figures[f"rounds: {kind}"] += 1
        if place:
            self.tried[place] += 1
        calls: dict[str, Callable[[str], None]] = {
            "writer": self._writer,
            "filler": lambda at: self._writer(at, "filler"),
            "spooler": lambda at: self._writer(at, "spooler"),
            "mender": self._mender,
            "both": self._both,
            "torn": self._torn,
            "seed": self._seed,
            "hole": self._hole,
            "files": self._files,
            **{role: (lambda at, role=role: self._daemon(role, at)) for role in DAEMONS},  # type: ignore[misc]
        }
        calls[kind](place)
        self._up(kind, place)

    def _up(self, kind: str, place: str) -> None:
        town = self.town
        self.figures["ended beside"] += len(town.reap())
        self.figures["unexpected ends"] += len(town.strange)
        self.strange += [f"{kind} {place}: {one}" for one in town.strange]
        assert len(self.strange) < 5, self.strange
        town.strange.clear()
        town.start_daemons()
        self._clients()

    def _clients(self) -> None:
        running = sum(role.startswith("client-") for role in self.town.children)
        for _ in range(running, WRITERS):
            self.town.client()

    def _await(self, child_role: str, place: str, patience_s: float) -> bool:
        """Until the armed child has died at its place; else kill it where it is. Whether it died there."""
        child = self.town.children[child_role]
        if not place:
            time.sleep(self.dice.random() * 0.2)
        died = bool(place) and child.wait(patience_s) and child.status == -9
        if died:
            self.hits[place] += 1
            self.figures["kills at failpoints"] += 1
        else:
            self.figures["kills from outside"] += 1
            child.kill()
        self.town.reap()
        return died

    def _arm(self, place: str, most: int) -> str:
        most = 1 if place in ONCE else most
        return f"{place}:{self.dice.randrange(1, most + 1)}:kill" if place else ""

    # Kinds.

    def _writer(self, place: str, mode: str = "mixed") -> None:
        child = self.town.client(mode, self._arm(place, NUMBER_MAX[mode]), pause_s=0.0)
        self._await(child.role, place, PATIENCE_S.get(mode, 4.0))

    def _mender(self, place: str) -> None:
        """One writer dies in its commit, alone; the next one dies while it mends."""
        town = self.town
        town.stop_clients()
        for role in DAEMONS:
            town.kill(role)
        first = "publish.after_data" if place == "repair.before_written" else self.dice.choice(
            ["append.after_write", "commit.after_commit", "finish.before_publish", "publish.after_early"]
        )  # fmt: skip
        dying = town.client(arm=f"{first}:{self.dice.randrange(1, 5)}:kill")
        self._await(dying.role, first, 10.0)
        mender = town.client(arm=f"{place}:1:kill")
        self._await(mender.role, place, 10.0)

    def _files(self, _place: str) -> None:
        """A writer or the Update Process dies inside SQLite's COMMIT of a transaction over two regions: before, in or
        between the writes to the one file and to the other."""
        town, dice = self.town, self.dice
        number, action = dice.randrange(1, 7), dice.choice(["kill", "kill", "torn"])
        if dice.random() < 0.5:
            below = str(town.secondary / "regions" / dice.choice(["", "main.db", "side.db"]))
            town.kill("update")
            child = town.start("update", before=lambda: RegionDisk(CALLS[0], number, action, below, in_commit=True))
        else:
            below = str(town.directory / dice.choice(["", "app.db", "side.db"]))
            child = town.client(
                "several", pause_s=0.0, attached=True,
                before=lambda: RegionDisk(CALLS[0], number, action, below, in_commit=True),
            )  # fmt: skip
        died = child.wait(6.0) and child.status == -9
        self.figures["kills between the files of a commit" if died else "kills from outside"] += 1
        child.kill()
        town.reap()

    def _daemon(self, role: str, place: str) -> None:
        town = self.town
        if place:
            town.kill(role)
            town.start(role, self._arm(place, 3))
        self._await(role, place, PATIENCE_S.get(role, 4.0))

    def _both(self, place: str) -> None:
        """Power loss of both machines, as far as processes and shared memory go; a kill in recovery if `place`."""
        town = self.town
        time.sleep(self.dice.random() * 0.1)
        town.kill_all()
        self.figures["kills from outside"] += 1
        if not place and self.dice.random() < 0.5:
            return  # the pools survive
        town.reboot()
        if place:
            on_secondary = self.dice.random() < 0.5
            child = town.start("update", f"{place}:1:kill") if on_secondary else town.client(arm=f"{place}:1:kill")
            self._await(child.role, place, PATIENCE_S["both"])
            town.reboot()

    def _torn(self, place: str) -> None:
        """Both machines die while a frame is being written: only a part of it is on the disk, and recovery dies too."""
        town = self.town
        town.kill_all()
        child = town.client(arm=f"append.after_write:{self.dice.randrange(1, 5)}:kill")
        if not self._await(child.role, "append.after_write", 10.0):
            return
        keep = self.dice.randrange(1, 60)
        town.do("tear", lambda: tear(Instance.open(town.primary), keep))
        town.reboot()
        child = town.client(arm=f"{place}:1:kill")
        self._await(child.role, place, PATIENCE_S["torn"])

    def _seed(self, place: str) -> None:
        """The secondary is seeded again through the connection; a process dies in it; the same command ends it."""
        town = self.town
        town.kill("update")
        role = IN_SEED[place]
        arm = self._arm(place, 3)
        if role != "seed":
            town.kill(role)
            town.start(role, arm)
        town.start_daemons_but("update")
        town.wait_serving()
        town.seeder(arm if role == "seed" else "")
        self._await(role, place, PATIENCE_S["seed"])
        if "seed" in town.children:
            town.kill("seed")
        for _ in range(5):
            town.start_daemons_but("update")
            town.wait_serving()
            if town.seeder().wait(60) and town.children["seed"].status == 0:
                town.reap()
                return
            town.kill("seed")
            town.children.pop("seed", None)
            time.sleep(0.1)
        self.figures["not converged"] += 1

    def _hole(self, place: str) -> None:
        """Two regions under `off`, one of which loses its tail: what lies after the hole is taken back. A town of its
        own."""
        directory = self.town.directory / f"hole-{self.figures['rounds']}"
        directory.mkdir()
        self.town.do("hole", lambda: two_regions_with_a_hole(directory))
        child = instances_writer(self.town, directory, f"{place}:{self.dice.randrange(1, 3)}:kill")
        self._await(child, place, 10.0)
        out = self.town.told / "hole.json"
        self.town.do("hole", lambda: out.write_text(json.dumps(check_hole(directory))))
        self.figures.update(json.loads(out.read_text()))


def tear(instance: Instance, keep_bytes: int) -> None:
    """Zero the frame that was being written, but for its first bytes."""
    pool = JournalPool.attach(instance.content.uuid)
    offset, size, last = (pool.words[at] for at in (word.INTENT_OFFSET, word.INTENT_BYTES, word.INTENT_SEQNO))
    durable = pool.words[word.LAST_DURABLE_SEQNO]
    pool.close()
    assert last > durable, (last, durable)
    with open(instances.newest_segment(instance), "r+b") as file:
        file.seek(offset + min(keep_bytes, size - 1))
        file.write(bytes(size - min(keep_bytes, size - 1)))


def two_regions_with_a_hole(directory: Path) -> None:
    """Committed in turns; then region two and the journal lose what the policy `off` lets them lose."""
    os.environ["REPLICATE_SHM_DIR"] = str(directory / "shm")
    (directory / "shm").mkdir()
    instance = instances.make_primary(directory / "alpha", regions=("main", "two"), durability="off")
    with instances.door_of(instance) as door:
        with instances.session_of(instance) as main, instances.session_of(instance, "two") as two:
            for row_id in range(1, 4):
                instances.insert(main, row_id)
            instances.insert(two, 10)
            instances.save_region(instance.region("two").path, directory / "aside")
            hole = int(door.words[word.END_OFFSET])
            instances.insert(two, 20)
            for row_id in range(100, 103):
                instances.insert(main, row_id)
            instances.insert(two, 30)
            instances.insert(main, 200)
    instances.restore_region(instance.region("two").path, directory / "aside")
    instances.power_loss(instance, hole)
    (directory / "in-region").write_text(json.dumps(list(instances.rows(instance.region("main").path))))


def instances_writer(town: Town, directory: Path, arm: str) -> str:
    """A process that recovers the instance of the hole; its role."""

    def recover() -> None:
        os.environ["REPLICATE_SHM_DIR"] = str(directory / "shm")
        with instances.door_of(Instance.open(directory / "alpha")):
            pass

    town.children["recovery"] = fork("recovery", recover, town.errors, arm=arm)
    return "recovery"


def check_hole(directory: Path) -> dict[str, int]:
    """Recovery ends the same way as if nobody had been killed: the rows before the hole, the others kept once. What was
    rolled back against what is in the file."""
    os.environ["REPLICATE_SHM_DIR"] = str(directory / "shm")
    instance = Instance.open(directory / "alpha")
    found = instances.check(instance)
    assert found.rows["main"].keys() == {1, 2, 3}, found.rows
    assert found.rows["two"].keys() == {10}, found.rows
    kept = list(instance.conflict_directory.glob("rolled-back-*.frames"))
    assert len(kept) == 1, kept
    data = kept[0].read_bytes()
    lost = [
        int(change.after[0])
        for offset, head in walk(data)
        for change in decode(data[offset : offset + head.frame_bytes]).content
        if isinstance(change, RowChange) and change.after is not None
    ]
    gone = set(json.loads((directory / "in-region").read_text())) - found.rows["main"].keys()
    shutil.rmtree(directory)
    return {
        "rolled back": len(gone),
        "in lost files": len(lost),
        "rolled back and in no lost file": len(gone - set(lost)),
        "in a lost file and not rolled back": len(set(lost) - gone) + len(lost) - len(set(lost)),
    }
