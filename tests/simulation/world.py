"""One world: a primary and a secondary with all their processes, a network, two disks, and the faults of one seed.

    run(seed, "safety")     any fault at any time; at the end both hosts lose power, and are judged
    run(seed, "liveness")   the faults end; within LEVEL_WITHIN_S the secondary has everything and the source knows it

Real: writers' commit door, journal, recovery, both pools, Source Server, Receiver Server, Update Process, both links.
A model: SQLite (regions.py), trio and the operating system (kernel.py, disk.py, host.py, network.py).
Guarantees: everything that happens follows from the seed; `recording` changes nothing but that it is written down.
Refuses to know: how many worlds there are (campaign.py), what is planted (plants.py).
"""

from __future__ import annotations

import json
import random
from collections import Counter
from collections.abc import Callable
from typing import Any, Final

from replicate.door.recovery.opening import make_chain, open_door
from replicate.errors import ReplicateError
from replicate.instance.instance import FILE_NAME
from replicate.journal import durable
from replicate.journal.reader import ChainReader
from replicate.journal.walk import walk
from replicate.pool import control as word
from replicate.pool.shared_memory import PoolKind
from tests.simulation import actors, template
from tests.simulation.climate import Climate
from tests.simulation.disk import Disk, SimulatedOs
from tests.simulation.faults import Faults
from tests.simulation.host import REGIONS, RING_SLOTS, WALL_NS, Host, config_of
from tests.simulation.kernel import Kernel, Killed, Process
from tests.simulation.network import Network
from tests.simulation.oracle import Oracle, ViolationError
from tests.simulation.regions import Region
from tests.simulation.stage import installed
from tests.simulation.trio_face import TrioFace

MODES: Final = ("safety", "liveness")
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

_templates: dict[int, Any] = {}
"""Number of regions -> of each host: its disk and its regions."""


class World:
    """See the module. `figures` counts what happened."""

    def __init__(self, seed: int, mode: str, *, recording: bool = False) -> None:
        self.seed = seed
        self.mode = mode
        self.dice = random.Random(f"{seed}/{mode}")
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
        self.climate = Climate(self.dice)
        self._durability = self.climate.durability
        self.left_to_write = self.climate.left_to_write
        self.versions = [1, 1]
        """The newest form of each region's table."""
        self.rows_made = 1000  # so that every number takes three bytes
        self.writers: list[actors.Writer] = []
        self.away: dict[str, float] = {}
        """Until when nobody starts a process of that name."""

    def begin(self) -> None:
        """The hosts as the template has them, and nobody running."""
        config = config_of(self.dice, self._durability)
        (disk, regions), (disk_there, regions_there) = _templates[self.climate.regions]
        self.primary = Host("paris", disk.copy(), [region.copy() for region in regions], config)
        self.secondary = Host("oslo", disk_there.copy(), [region.copy() for region in regions_there], config)
        self.hosts = (self.primary, self.secondary)
        self.network.hosts = list(self.hosts)
        self.oracle = Oracle(self.primary.regions, self.secondary.regions, is_partial=self.climate.is_partial)
        if self.climate.is_partial:
            file = self.secondary.disk.names[f"/oslo/{FILE_NAME}"]
            file.truncate(0)
            file.write(0, template.instance_file("oslo", "secondary", self.climate.regions, held=(1,)))
            file.sync()
            self.figures["worlds with a part"] += 1
        self.faults = Faults(self, self.climate)

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

    def start(self, host: Host, name: str, main: Callable[[World], Any], *, again: bool = True) -> None:
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

    def _actors_of(self, host: Host) -> list[tuple[str, actors.Main]]:
        writers = [(f"writer-{number + 1}", actors.writer) for number in range(self.climate.writers)]
        return [*(writers if host is self.primary else []), *actors.OF_HOST[host.name]]

    def next_row(self) -> int:
        """The identity of a row that was never there."""
        self.rows_made += 1
        return self.rows_made

    def restart_later(self, host: Host, name: str, main: Callable[[World], Any]) -> None:
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
        if host is self.primary:
            self.oracle.on_primary_power_loss(is_durable=self._durability == "durable")
        self.kernel.at(self.kernel.now + back_after_s, lambda: self._boots(host))

    def _boots(self, host: Host) -> None:
        host.is_up = True
        self.log("boots", host.name)
        self.network.host_back(host)
        if self.is_judging:
            return
        for name, main in self._actors_of(host):
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
        from tests.simulation.host import SimulatedInstance

        door = open_door(SimulatedInstance.open(host.path))
        last_seqno = int(door.words[word.LAST_SEQNO])
        if host is self.secondary:
            self.oracle.check_secondary(last_seqno)
        else:
            self._look_at_primary(door, last_seqno)
        door.close()
        self.figures["recoveries judged"] += 1

    def _look_at_primary(self, door: Any, last_seqno: int) -> None:
        from replicate.door.recovery.redo_region import redo_region

        with door.locked():
            pass  # mends the journal's end
        for entry in door.instance.regions:
            if door.words[word.REGION_APPENDED + entry.region_id] != door.words[word.REGION_DONE + entry.region_id]:
                redo_region(door, entry)
        chain = make_chain(door.instance)
        oldest_seqno = chain.oldest_seqno()
        chains: dict[int, int] = {}
        reader = ChainReader(chain, oldest_seqno)
        try:
            while (found := reader.read(1 << 20, last_seqno)) is not None:
                data = found.commit_frame if hasattr(found, "commit_frame") else found.data
                for _, head in walk(data):
                    chains[head.seqno] = head.chain
        finally:
            reader.close()
        kept = [inode.seen for path, inode in self.primary.disk.names.items() if path.startswith("/paris/conflict/")]
        self.oracle.check_primary(chains, oldest_seqno, [bytes(data) for data in kept])

    def is_level(self) -> bool:
        """The secondary has everything, and the source has stored that."""
        memory = self.primary.memory.get(PoolKind.JOURNAL)
        if memory is None:
            return False
        with memoryview(memory.data)[: word.CONTROL_BYTES].cast("Q") as words:
            if words[word.POOL_STATE] != word.STATE_READY or words[word.FATAL]:
                return False
            last = words[word.LAST_SEQNO]
        if any(region.seqno != last for region in self.secondary.regions):
            return False
        stored = self.primary.disk.names.get("/paris/consumers/oslo.json")
        return stored is not None and json.loads(bytes(stored.seen))["acknowledged_seqno"] == last

    # The life of a world.

    def live(self) -> None:
        """From the first start to the verdict."""
        assert self.faults is not None
        for host in self.hosts:
            for name, main in self._actors_of(host):
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
        self.figures["commits"] += sum(len(region.rows) for region in self.primary.regions)
        self.figures["rows taken back"] += len(self.oracle.taken_back)
        self.figures["applied"] += self.oracle.applied
        for kind, count in self.network.harms.items():
            self.figures[f"writes on the wire {kind}"] += count
        self.figures["streams that began below the durable seqno"] += self.oracle.starts_below

    def _is_decided(self) -> bool:
        if self.kernel.steps > STEPS_MAX:
            self.fail(ViolationError("I8 busy", f"{STEPS_MAX} steps, and the world is {self.kernel.now:.1f} s old"))
        return self.violation is not None

    def _wait_until_level(self) -> None:
        assert self.faults is not None
        self.is_healed = True
        self.faults.heal()
        self.log("faults end")
        until = self.kernel.now + LEVEL_WITHIN_S
        at = self.kernel.now
        while at < until and self.violation is None:
            at = min(until, at + 0.5)
            self.kernel.run(at, self._is_decided)
            self._mend_journal()
            if self.is_level():
                self.figures["levelled in ms, most"] = int(1000 * (self.kernel.now - until + LEVEL_WITHIN_S))
                return
        if self.violation is None:
            self.fail(
                ViolationError(
                    "I7 liveness",
                    f"{LEVEL_WITHIN_S:g} s after the last fault the secondary is at "
                    f"{[region.seqno for region in self.secondary.regions]}, the primary at "
                    f"{[region.seqno for region in self.primary.regions]}",
                )
            )

    def _mend_journal(self) -> None:
        """What the alarm JOURNAL_FATAL asks an operator for: nobody writes any more, so nobody opens it again."""
        memory = self.primary.memory.get(PoolKind.JOURNAL)
        if memory is not None:
            with memoryview(memory.data)[: word.CONTROL_BYTES].cast("Q") as words:
                is_fatal = bool(words[word.FATAL])
            if is_fatal:
                self.look_at(self.primary)

    def _last_judgement(self) -> None:
        """Both lose power at once; then each is recovered from what its disk has."""
        self.is_judging = True
        if self.faults is not None:
            self.faults.heal()
        for host in self.hosts:
            self.power_loss(host, 0.0)
        self.kernel.run(self.kernel.now)
        for host in self.hosts:
            host.is_up = True
            self.look_at(host)

    def close(self) -> None:
        """Let go of everything."""
        self.kernel.close()


def leaves(error: BaseException | None) -> list[BaseException]:
    """The errors in a group, or the one."""
    if error is None:
        return []
    if isinstance(error, BaseExceptionGroup):
        return [leaf for one in error.exceptions for leaf in leaves(one)]
    return [error]


def make_template() -> None:
    """Once in a process."""
    if _templates:
        return
    for count in range(1, 1 + len(REGIONS)):
        _templates[count] = _made(count)


def _made(count: int) -> tuple[tuple[Disk, list[Region]], ...]:
    """Both hosts, with that many regions."""
    world = World(0, "safety")
    config = config_of(random.Random(1), "durable")
    disks = [template.new_disk("paris", "primary", count), template.new_disk("oslo", "secondary", count)]
    regions = [[Region(RING_SLOTS, number) for number in range(count)] for _ in disks]
    processes = []
    for place, name in enumerate(("paris", "oslo")):
        host = Host(name, disks[place], regions[place], config)
        processes.append(Process(world.kernel, "template", host, lambda _error: None))

    def caller(place: int) -> Callable[[Callable[[], None]], None]:
        def call(what: Callable[[], None]) -> None:
            with world.kernel.running(processes[place]):
                what()

        return call

    with installed(world):
        template.fill(regions[0], caller(0), regions[1], caller(1))
    for region in (*regions[0], *regions[1]):
        region.sync()
    world.close()
    return tuple((disk.copy(), there) for disk, there in zip(disks, regions, strict=True))


def run(seed: int, mode: str, *, recording: bool = False) -> World:
    """One world, whole. Look at its `violation` and `figures`."""
    make_template()
    world = World(seed, mode, recording=recording)
    with installed(world):
        try:
            world.begin()
            with actors.watched(world):
                world.live()
        finally:
            world.close()
    return world
