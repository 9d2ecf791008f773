"""What every world has: hosts with processes, a network, disks, virtual time, faults; how it is lived, and judged.

Of the kinds of world, world.py has a primary and a secondary, parts/world.py a secondary with some partitions,
parts/release_world.py one that releases some of them,
suppliers/world.py several suppliers, suppliers/joining.py such that one more joins, suppliers/posting.py such that send
packets, roles/world.py sites that change their roles. Each says who lives on which host, what it is to be level, and
what is looked at once a host has recovered.

Real: writers' commit door, journal, recovery, both pools, Source Server, Receiver Server, Update Process, both links.
A model: SQLite (regions.py), trio and the operating system (kernel.py, disk.py, host.py, network.py).
Guarantees: everything that happens follows from the seed; `recording` changes nothing but that it is written down.
Leaves to others: how many worlds there are (campaign.py), what is planted (plants.py), what must be true (oracle.py).
"""

from __future__ import annotations

import json
import random
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any, Final

from replicate.door.recovery.opening import open_door
from replicate.errors import ReplicateError
from replicate.journal import durable
from replicate.pool import control as word
from replicate.pool.shared_memory import PoolKind
from tests.simulation.climate import Climate
from tests.simulation.disk import SimulatedOs
from tests.simulation.faults import Faults
from tests.simulation.host import WALL_NS, Host, SimulatedInstance
from tests.simulation.kernel import Kernel, Killed, Process
from tests.simulation.network import Network
from tests.simulation.oracle import ViolationError
from tests.simulation.regions import ModelKind
from tests.simulation.stage import BETWEEN, installed
from tests.simulation.trio_face import TrioFace

MODES: Final = ("safety", "liveness")
"""Any fault at any time, and at the end all hosts lose power and are judged; and the same, but first the faults end,
and within LEVEL_WITHIN_S everybody has everything."""
LEVEL_WITHIN_S: Final = 90.0
STEPS_MAX: Final = 40_000
"""A world takes about a thousand: one that takes so many waits for something without letting time pass."""
RESTART_S: Final = (0.05, 2.0)
HARMLESS: Final = frozenset({"IO", "DISK_FULL", "OUTCOME_UNKNOWN", "BUSY", "TRY_AGAIN", "POOL_REPLACED", "EXISTS"})
"""What a process may end with: its disk failed, somebody was quicker, or its pool was made again."""
REFUSALS: Final = HARMLESS | {"SECOND_SOURCE"}
"""Why one side may refuse the other in a world without damaged bytes."""

SEEN: Final = {
    "recovery.after_cut": "torn tails cut",
    "switch.after_create": "segments begun",
    "adopt.renamed": "large transactions adopted",
    "mend.begin": "killed holders mended",
    "prune.unlinked": "segments pruned",
    "recovery.journal_done": "recoveries",
}
"""Failpoints that tell what a world has come to."""

Main = Callable[[Any], Any]


class BaseWorld(ABC):
    """See the module. `figures` counts what happened."""

    steps_max = STEPS_MAX
    level_within_s = LEVEL_WITHIN_S
    path_kind: type[Path] = Path
    """Of an instance that is opened."""

    def __init__(self, seed: int, mode: str, *, recording: bool = False) -> None:
        self.mode = mode
        self.dice = random.Random(self.dice_name(seed, mode))
        self.kernel = Kernel()
        self.figures: Counter[str] = Counter()
        self.transcript: list[str] | None = [] if recording else None
        self.violation: ViolationError | None = None
        self.network = Network(self.kernel, self.dice)
        self.os = SimulatedOs(self._process, self.dice)
        self.trio = TrioFace(self.kernel, self.network, self._thread_s)
        self.kernel.on_switch = self._switched
        self.faults: Faults | None = None
        self.refusals = REFUSALS
        self.is_healed = False
        self.is_judging = False
        self.climate: Climate = self.make_climate()
        self.left_to_write = self.climate.left_to_write
        self.rows_made = 1000  # so that every number takes three bytes
        self.writers: list[Any] = []
        self.hosts: Sequence[Host] = ()
        self.away: dict[str, float] = {}
        """Until when nobody starts a process of that name."""

    # What a kind of world says.

    @staticmethod
    def dice_name(seed: int, mode: str) -> str:
        """What the dice are made from."""
        return f"{seed}/{mode}"

    @abstractmethod
    def make_climate(self) -> Climate:
        """What kind of world the dice draw."""

    @abstractmethod
    def make_template(self) -> None:
        """What `begin` copies, unless this process has it already."""

    def installed(self) -> AbstractContextManager[None]:
        """The product runs in this world, for a block."""
        return installed(self)

    @abstractmethod
    def begin(self) -> None:
        """The hosts as the template has them, and nobody running."""

    @abstractmethod
    def watched(self) -> AbstractContextManager[None]:
        """The oracle sees what the daemons send and hear."""

    @abstractmethod
    def actors_of(self, host: Host) -> list[tuple[str, Main]]:
        """Who lives there: names and what they do."""

    @abstractmethod
    def look(self, host: Host, door: Any, last_seqno: int) -> None:
        """What is there, once the host has recovered; `last_seqno`: of its journal."""

    @abstractmethod
    def lost_power(self, host: Host) -> None:
        """The host has what is on its disk, and no more."""

    @abstractmethod
    def is_level(self) -> bool:
        """Everybody has everything, and those that sent it have stored that."""

    @abstractmethod
    def told_places(self) -> str:
        """How far everybody is."""

    def committing(self, weight: int) -> list[str]:
        """Names of hosts on which something commits; those on which writers do stand there `weight` times."""
        return [host.name for host in self.hosts]

    def must_be_level(self) -> bool:
        """Whether nothing has happened after which an operator has to do something first."""
        return True

    @property
    def judged(self) -> Iterable[Host]:
        """Hosts that are looked at in the end."""
        return self.hosts

    @property
    def mended(self) -> Iterable[Host]:
        """Hosts whose journal an operator mends."""
        return self.hosts

    @abstractmethod
    def count_figures(self) -> None:
        """What the world has come to."""

    @property
    def sizes(self) -> Mapping[str, Mapping[str, Any]]:
        """More of stage.SIZES."""
        return {}

    def make_kind(self) -> ModelKind:
        """The kind of its regions."""
        return ModelKind(self.kernel, lambda: self.hit(BETWEEN))

    # What the simulated modules ask.

    def _process(self) -> Process:
        process = self.kernel.process
        assert process is not None
        return process

    @staticmethod
    def _switched(process: Process) -> None:
        durable._BOOT = process.host.boot  # type: ignore[misc]

    def _thread_s(self) -> float:
        slow_s = self._process().host.disk.slow_s
        return self.dice.random() * slow_s if slow_s else 0.0

    def wall_ns(self) -> int:
        process = self.kernel.process
        offset = process.host.wall_offset_ns if process is not None else 0
        return WALL_NS + offset + int(self.kernel.now * 1e9)

    def pass_time(self, seconds: float) -> None:
        """A process sleeps in the middle of a step."""
        self.kernel.now += seconds

    def wait_for_lock(self, lock: Any, timeout_s: float, unless: Callable[[], bool] | None) -> bool | None:
        """As FileLock.acquire; None: in vain. A step is made at once, so nobody gives a lock up meanwhile."""
        return False if unless is not None and unless() else None

    def hit(self, name: str) -> None:
        """A failpoint of the product is reached."""
        process = self._process()
        if process.is_dead:
            raise Killed
        if self.faults is not None:
            self.faults.reached(name, process)

    def log(self, text: str, *parts: object) -> None:
        """A line of the transcript."""
        if self.transcript is not None:
            process = self.kernel.process
            who = process.name if process is not None else "-"
            self.transcript.append(f"{self.kernel.now:9.4f} {who:10} {text} {' '.join(map(str, parts))}".rstrip())

    # Processes.

    def start(self, host: Host, name: str, main: Main, *, again: bool = True) -> None:
        """Run it, and run it again a moment after its end, whatever that was."""
        if self.is_judging or not host.is_up or (self.is_healed and name.startswith("writer")):
            return
        if any(process.name == name for process in host.processes):
            return  # as a daemon's lock has it

        def ended(error: BaseException | None) -> None:
            self._ended(process, error)
            if again:
                self.restart_later(host, name, main)

        process = self.kernel.start(name, host, lambda: main(self), ended)
        process.restart = lambda: self.restart_later(host, name, main)  # type: ignore[attr-defined]
        host.processes.append(process)
        self.log("starts", name)

    def next_row(self) -> int:
        """The identity of a row that was never there."""
        self.rows_made += 1
        return self.rows_made

    def restart_later(self, host: Host, name: str, main: Main) -> None:
        wait_s = RESTART_S[0] + self.dice.random() * self.dice.random() * RESTART_S[1]
        at = max(self.kernel.now + wait_s, self.away.get(name, 0.0))
        self.kernel.at(at, lambda: self.start(host, name, main))

    def _ended(self, process: Process, error: BaseException | None) -> None:
        self.log("ends", process.name, repr(error))
        self._gone(process)
        for one in leaves(error):
            if isinstance(one, ViolationError):
                self.fail(one)
            elif not isinstance(one, ReplicateError):
                raise one
            elif one.code not in HARMLESS:
                self.fail(ViolationError("I6 stopped", f"{process.name} ended with {one.code}: {one}"))

    def _gone(self, process: Process) -> None:
        self.network.process_died(process)
        self.os.close_all(process.pid)
        process.host.processes.remove(process)
        self.kernel.bury(process)

    def kill(self, process: Process) -> None:
        """SIGKILL; it is started again later."""
        self.log("is killed", process.name)
        self.figures["kills"] += 1
        process.die()
        self.kernel.at(self.kernel.now, lambda: self._buried(process))

    def _buried(self, process: Process) -> None:
        if process in process.host.processes:
            self._gone(process)
            process.restart()  # type: ignore[attr-defined]

    def power_loss(self, host: Host, back_after_s: float) -> None:
        """All of the host's processes at once, and its memory."""
        if not host.is_up:
            return
        self.log("power loss", host.name)
        self.figures["power losses"] += 1
        host.is_up = False
        self.network.host_died(host)
        for process in host.processes:
            process.die()
        self.kernel.at(self.kernel.now, lambda: self._dark(host, back_after_s))

    def _dark(self, host: Host, back_after_s: float) -> None:
        for process in list(host.processes):
            self.os.close_all(process.pid)
            self.kernel.bury(process)
        host.processes.clear()
        host.power_loss(self.dice)
        self.lost_power(host)
        self.kernel.at(self.kernel.now + back_after_s, lambda: self._boots(host))

    def _boots(self, host: Host) -> None:
        host.is_up = True
        self.log("boots", host.name)
        self.network.host_back(host)
        if self.is_judging:
            return
        for name, main in self.actors_of(host):
            self.restart_later(host, name, main)
        if self.dice.random() < 0.5:
            self.look_at(host)

    def call_as(self, process: Process, call: Callable[[], object]) -> None:
        """Something that a process does outside of its coroutines. What it raises must be harmless."""
        with self.kernel.running(process):
            try:
                call()
            except BaseException as error:
                self._harmless(process, error)

    def _harmless(self, process: Process, error: BaseException) -> None:
        if process.is_dead:
            return
        if isinstance(error, ViolationError):
            self.fail(error)
        elif not isinstance(error, ReplicateError):
            raise error
        elif error.code not in HARMLESS:
            self.fail(ViolationError("I6 stopped", f"{process.name}: {error.code}: {error}"))

    def fail(self, violation: ViolationError) -> None:
        """The first one counts."""
        self.log("VIOLATION", violation)
        if self.violation is None:
            self.violation = violation

    # Judging.

    def look_at(self, host: Host) -> None:
        """Recover the host, if it has not been, and look at what is there."""
        process = Process(self.kernel, "checker", host, lambda _error: None)
        host.processes.append(process)
        process.restart = lambda: None  # type: ignore[attr-defined]
        self.call_as(process, lambda: self._look(host))
        if not process.is_dead:
            process.die()
        if process in host.processes:
            host.processes.remove(process)
        self.os.close_all(process.pid)

    def _look(self, host: Host) -> None:
        door = open_door(SimulatedInstance.open(host.path))
        self.look(host, door, int(door.words[word.LAST_SEQNO]))
        door.close()
        self.figures["recoveries judged"] += 1

    # The life of a world.

    def run(self) -> None:
        """From its making to its end. Look at `violation` and `figures` then."""
        self.make_template()
        with self.installed():
            try:
                self.begin()
                with self.watched():
                    self.live()
            finally:
                self.close()

    def live(self) -> None:
        """From the first start to the verdict."""
        assert self.faults is not None
        for host in self.hosts:
            for name, main in self.actors_of(host):
                self.start(host, name, main)
        self.faults.plan()
        self.kernel.run(self.faults.ends_s, self._is_decided)
        if self.violation is None and self.mode == "liveness":
            self._wait_until_level()
        if self.violation is None:
            self._last_judgement()
        self.figures["events"] += self.kernel.steps
        self.figures["virtual seconds"] += int(self.kernel.now)
        assert self.faults is not None
        for name, title in SEEN.items():
            self.figures[title] += self.faults.seen.get(name, 0)
        self.count_figures()
        for kind, count in self.network.harms.items():
            self.figures[f"writes on the wire {kind}"] += count

    def _is_decided(self) -> bool:
        if self.kernel.steps > self.steps_max:
            self.fail(
                ViolationError("I8 busy", f"{self.steps_max} steps, and the world is {self.kernel.now:.1f} s old")
            )
        return self.violation is not None

    def _wait_until_level(self) -> None:
        assert self.faults is not None
        self.is_healed = True
        self.faults.heal()
        self.log("faults end")
        until = self.kernel.now + self.level_within_s
        at = self.kernel.now
        while at < until and self.violation is None:
            at = min(until, at + 0.5)
            self.kernel.run(at, self._is_decided)
            self._mend_journals()
            try:
                is_level = self.is_level()
            except ViolationError as error:  # what all have is not what it should be
                self.fail(error)
                return
            if is_level:
                self.figures["levelled in ms, most"] = int(1000 * (self.kernel.now - until + self.level_within_s))
                return
        if self.violation is None and self.must_be_level():
            told = f"{self.level_within_s:g} s after the last fault {self.told_places()}"
            self.fail(ViolationError("I7 liveness", told))

    def _mend_journals(self) -> None:
        """What the alarm JOURNAL_FATAL asks an operator for: nobody writes any more, so nobody opens it again."""
        for host in self.mended:
            memory = host.memory.get(PoolKind.JOURNAL)
            if memory is not None:
                with memoryview(memory.data)[: word.CONTROL_BYTES].cast("Q") as words:
                    is_fatal = bool(words[word.FATAL])
                if is_fatal:
                    self.look_at(host)

    def _last_judgement(self) -> None:
        """All lose power at once; then each is recovered from what its disk has."""
        self.is_judging = True
        if self.faults is not None:
            self.faults.heal()
        for host in self.hosts:
            self.power_loss(host, 0.0)
        self.kernel.run(self.kernel.now)
        for host in self.judged:
            host.is_up = True
            self.look_at(host)

    def close(self) -> None:
        """Let go of everything."""
        self.kernel.close()


def journal_end(host: Host) -> int | None:
    """The last number of its journal; None while nobody can say."""
    memory = host.memory.get(PoolKind.JOURNAL)
    if memory is None:
        return None
    with memoryview(memory.data)[: word.CONTROL_BYTES].cast("Q") as words:
        if words[word.POOL_STATE] != word.STATE_READY or words[word.FATAL]:
            return None
        return int(words[word.LAST_SEQNO])


def acknowledged_by(peer: str, host: Host) -> int | None:
    """Up to where the host has stored that a peer has its journal; None: it has stored nothing."""
    stored = host.disk.names.get(f"/{host.name}/consumers/{peer}.json")
    return None if stored is None else int(json.loads(bytes(stored.seen))["acknowledged_seqno"])


def leaves(error: BaseException | None) -> list[BaseException]:
    """The errors in a group, or the one."""
    if error is None:
        return []
    if isinstance(error, BaseExceptionGroup):
        return [leaf for one in error.exceptions for leaf in leaves(one)]
    return [error]
