"""One world of roles: two sites or three, of which one is primary, until somebody wants another one, or it dies.

    RoleWorld(seed, "safety").run()     any fault at any time; at the end all hosts lose power, and are judged
    RoleWorld(seed, "liveness").run()   the faults end; within LEVEL_S there is one primary, and all have the same

What every world has is in ../base.py. Guarantees: as there.
Leaves to others: how many worlds there are (../campaign.py), what is planted (plants.py), what operators want
(operators.py).
"""

from __future__ import annotations

import json
import random
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from functools import partial
from typing import Any, Final

from msgspec.structs import replace

from replicate.door.recovery.opening import ROLLBACK_MARKER, make_chain
from replicate.instance.instance import FILE_NAME
from replicate.lost.history import find_in_history
from replicate.lost.read import LostTransaction
from replicate.pool import control as word
from replicate.pool.shared_memory import PoolKind
from replicate.roles.source_refusal import NAME as VERDICT_NAME
from tests.simulation.base import REFUSALS, STEPS_MAX, BaseWorld, Main, acknowledged_by, journal_end
from tests.simulation.content import Content
from tests.simulation.disk import Disk
from tests.simulation.host import RING_SLOTS, Host, SimulatedLock, config_of
from tests.simulation.kernel import Process
from tests.simulation.oracle import ViolationError
from tests.simulation.recovered import bring_forward, chain_hashes
from tests.simulation.regions import Region
from tests.simulation.roles import actors, stage, template
from tests.simulation.roles.climate import RoleClimate
from tests.simulation.roles.faults import RoleFaults
from tests.simulation.roles.machine import RoleHost, RolePath
from tests.simulation.roles.operators import Operators
from tests.simulation.roles.oracle import RoleOracle, lost_in
from tests.simulation.template import NAMES, Made, made

LEVEL_S: Final = 120.0
DEPTH_MAX: Final = 8
"""So many threads sleep within one another at most."""
LOCK_LOOK_S: Final = 0.02
NEEDS_SEED: Final = ("JOURNAL_MISSING",)
"""Refusals after which a site has to be seeded: its journal, or the other one's, does not go back so far."""

SEEN: Final = {
    "role.changed": "roles changed",
    "fence.noted": "fences",
    "handover.given": "roles given",
    "handover.taken": "roles taken",
    "rollback.marked": "rollbacks begun",
    "rollback.before_end": "rollbacks ended",
}
"""As base.SEEN."""

_templates: dict[int, list[Made]] = {}
"""By the number of sites."""


class RoleWorld(BaseWorld):
    """Sites that change their roles."""

    oracle: RoleOracle
    climate: RoleClimate
    steps_max = 6 * STEPS_MAX
    level_within_s = LEVEL_S
    path_kind = RolePath

    def __init__(self, seed: int, mode: str, *, recording: bool = False) -> None:
        super().__init__(seed, mode, recording=recording)
        self.refusals = REFUSALS | {"WRONG_ROLE", "ROLLBACK_FIRST", "SECONDARY_AHEAD", *NEEDS_SEED}
        self._waiting: dict[str, set[int]] = {}
        """Site -> what it would apply of the lost files, at the last judgement."""
        self._asleep: list[Process | None] = []
        """Processes in threads of which somebody sleeps, the innermost last: none of them can go on before those after
        it."""

    @staticmethod
    def dice_name(seed: int, mode: str) -> str:
        """A seed means another world than elsewhere."""
        return f"roles/{seed}/{mode}"

    def make_climate(self) -> RoleClimate:
        """As climate.py draws it."""
        return RoleClimate(self.dice)

    @property
    def sizes(self) -> Mapping[str, Mapping[str, Any]]:
        """As stage.py has it."""
        return stage.sizes(self)

    @contextmanager
    def installed(self) -> Iterator[None]:
        """As ever, and as stage.py has it."""
        with stage.opening_files(self), super().installed():
            yield

    def begin(self) -> None:
        """All hosts as the template has them, and nobody running but the operators."""
        climate = self.climate
        hosts = []
        for name, (disk, (region,)) in zip(climate.names, _templates[len(climate.names)], strict=True):
            config = config_of(self.dice, climate.durabilities[name])
            config = replace(config, receiver=replace(config.receiver, auto_rollback=climate.auto_rollback))
            hosts.append(RoleHost(name, disk.copy(), [region.copy()], config))
        self.hosts = hosts
        self.network.join(hosts)
        self.oracle = RoleOracle({host.name: host.regions[0] for host in hosts}, self.file_of)
        self.faults = RoleFaults(self, climate)
        self.operators = Operators(self)
        desk = RoleHost("desk", Disk(()), [], hosts[0].config)
        self.kernel.start("operators", desk, lambda: self.operators.run(self), self._operators_ended)
        self.figures[f"worlds of {len(hosts)}"] += 1
        self.figures["worlds of planned changes"] += climate.is_planned
        self.log("world", climate.names, climate.durabilities, climate.moves, climate.weights, climate.auto_rollback)

    def _operators_ended(self, error: BaseException | None) -> None:
        raise RuntimeError("the operators have gone home") from error

    def watched(self) -> AbstractContextManager[None]:
        """As actors.py has it."""
        return actors.watched(self)

    def actors_of(self, host: Host) -> list[tuple[str, Main]]:
        """The same on every site: all daemons, and writers."""
        name = host.name
        writers = [(f"writer-{number + 1}@{name}", actors.writer) for number in range(self.climate.writers_at[name])]
        others = [one for one in self.climate.names if one != name]
        sources = [(f"source-{peer}@{name}", actors.source(peer)) for peer in others]
        return [*writers, *sources, (f"receiver@{name}", actors.receiver), (f"update@{name}", actors.update)]

    # Threads that sleep.

    def sleep_in_thread(self, seconds: float) -> None:
        """A thread sleeps, and all others go on."""
        kernel = self.kernel
        until = kernel.now + seconds
        task, process = kernel.task, kernel.process
        if self._may_sleep():
            self._asleep.append(process)
            kernel.task = kernel.process = None
            try:
                kernel.run(until, self._is_decided)
            finally:
                self._asleep.pop()
                kernel.task, kernel.process = task, process
                if process is not None:
                    kernel.on_switch(process)
        kernel.now = max(kernel.now, until)
        if process is not None:
            process.check()

    def _may_sleep(self) -> bool:
        """What one process does in the middle of another one's step is over at once, and so is what is looked at."""
        task = self.kernel.task
        is_own_step = task is not None and task.process is self.kernel.process
        return is_own_step and not self.is_judging and len(self._asleep) < DEPTH_MAX

    def wait_for_lock(self, lock: SimulatedLock, timeout_s: float, unless: Callable[[], bool] | None) -> bool | None:
        """None: it was not to be had in that time."""
        until = self.kernel.now + timeout_s
        if unless is not None and unless():
            return False
        while self.kernel.now < until and self.violation is None and self._may_sleep():
            holder = lock._locks.get(str(lock.path))
            if holder is not None and holder._process in self._asleep:
                return None
            self.sleep_in_thread(LOCK_LOOK_S)
            if unless is not None and unless():
                return False
            if lock.try_acquire():
                return True
        return None

    def kill(self, process: Process) -> None:
        """As ever; what it had open is closed at once, as others may look before it is buried."""
        super().kill(process)
        self.os.close_all(process.pid)

    # What is seen of a site from outside.

    def file_of(self, name: str) -> Mapping[str, Any]:
        """Its instance file, as processes see it."""
        (host,) = (host for host in self.hosts if host.name == name)
        found: dict[str, Any] = json.loads(bytes(host.disk.names[f"/{name}/{FILE_NAME}"].seen))
        return found

    def takes_writes(self, name: str) -> bool:
        """By that file."""
        return self.oracle.takes_writes(name)

    def is_going_back(self, name: str) -> bool:
        """A rollback has begun and not ended."""
        return any(f"/{name}/{ROLLBACK_MARKER}" in host.disk.names for host in self.hosts)

    def is_refused(self, name: str) -> bool:
        """A source has refused it for what it has more, and that counts still."""
        (host,) = (host for host in self.hosts if host.name == name)
        said = host.disk.names.get(f"/{name}/run/{VERDICT_NAME}")
        return said is not None and json.loads(bytes(said.seen))["incarnation"] == self.file_of(name)["incarnation"]

    def lost_files(self) -> dict[str, list[dict[int, LostTransaction]]]:
        """Site -> the transactions in each of its lost files."""
        found: dict[str, list[dict[int, LostTransaction]]] = {}
        for host in self.hosts:
            paths = [path for path in sorted(host.disk.names) if path.startswith(f"/{host.name}-lost-")]
            whole = [path for path in paths if path.endswith(".jsonl")]
            found[host.name] = [lost_in(bytes(host.disk.names[path].seen)) for path in whole]
        return found

    # Judging.

    def lost_power(self, host: Host) -> None:
        """What it has lost, nobody was promised."""
        self.oracle.lost_power(host.name, is_durable=self.climate.durabilities[host.name] == "durable")

    def look(self, host: Host, door: Any, last_seqno: int) -> None:
        """The host has recovered: its journal is mended, its region rolled forward."""
        last_seqno = bring_forward(door)
        chain = make_chain(door.instance)
        self.oracle.check(host.name, last_seqno, chain_hashes(chain, last_seqno))
        if self.is_judging:
            self._waiting[host.name] = self._waiting_at(chain, door)

    def _waiting_at(self, chain: Any, door: Any) -> set[int]:
        """What `lost apply` would apply there, of all lost files. What it cannot tell counts as that."""
        with door.locked():
            position = door.position()
        waiting: set[int] = set()
        for file in (file for files in self.lost_files().values() for file in files):
            found = find_in_history(chain, position, list(file.values()))
            self.figures["lost, and not told whether they are there"] += len(found.untold)
            self.figures["lost, and in the history"] += len(found.there)
            waiting |= {by for by, one in file.items() if one.seqno not in found.there}
        return waiting

    def _last_judgement(self) -> None:
        is_at_rest = self.mode == "liveness" and self._primary() is not None
        super()._last_judgement()
        if self.violation is None:
            try:
                self._judge(is_at_rest=is_at_rest)
            except ViolationError as error:
                self.fail(error)

    def _judge(self, *, is_at_rest: bool) -> None:
        lost = {name: [by for file in files for by in file] for name, files in self.lost_files().items()}
        primary = self._primary()
        self.figures["transactions in lost files"] += sum(map(len, lost.values()))
        is_level = is_at_rest and primary is not None and self.oracle.are_alike()
        at_rest = primary.name if is_level and primary is not None else ""
        self.oracle.check_promised(lost, at_rest=at_rest, waiting=self._waiting.get(at_rest, ()))
        if not self.oracle.may_part and any(lost.values()):
            raise ViolationError("I5 conservation", f"all changes were planned, and {lost} were taken back")

    def _primary(self) -> Host | None:
        """The only one."""
        found = [host for host in self.hosts if self.takes_writes(host.name)]
        return found[0] if len(found) == 1 else None

    def is_level(self) -> bool:
        """One is primary, all have the same, and it has stored that they have."""
        primary = self._primary()
        if primary is None or not self.oracle.are_alike() or any(self.is_going_back(host.name) for host in self.hosts):
            return False
        if any(self.file_of(host.name)["role"] != "secondary" for host in self.hosts if host is not primary):
            return False
        last = journal_end(primary)
        for host in self.hosts:
            if host is primary:
                continue
            if acknowledged_by(host.name, primary) != last:
                return False
        site = self.oracle.sites[primary.name]
        if last != site.seqno + len(site.ahead):
            return False
        self.oracle.check_alike()
        return True

    def must_be_level(self) -> bool:
        """Not where a third site has to be seeded: a secondary that becomes primary has kept what itself might want to
        go back to, and no more for who is further behind. Two sites keep what each of them needs."""
        seeds = [f"refused: {code}" for code in NEEDS_SEED]
        seeds += [f"command refused: rollback: {code}" for code in NEEDS_SEED]
        if len(self.hosts) > 2 and any(self.figures[name] for name in seeds):
            self.figures["worlds that need a seed"] += 1
            return False
        return True

    def _mend_journals(self) -> None:
        """And where a writer was killed with its commit half done, the next one finishes it."""
        super()._mend_journals()
        for host in self.hosts:
            memory = host.memory.get(PoolKind.JOURNAL)
            if memory is not None and host.is_up:
                with memoryview(memory.data)[: word.CONTROL_BYTES].cast("Q") as words:
                    is_half = words[word.REGION_APPENDED] != words[word.REGION_DONE]  # of its only region
                if is_half and not any(process.name.startswith("writer") for process in host.processes):
                    self.look_at(host)

    def told_places(self) -> str:
        """How far each is, and what it is."""
        return self.oracle.told_places()

    def count_figures(self) -> None:
        """What the oracle has counted."""
        self.figures["applied"] += self.oracle.applied
        self.figures["transactions taken back"] += self.oracle.taken_back
        for name, title in SEEN.items():
            self.figures[title] += self.faults.seen.get(name, 0) if self.faults is not None else 0
        self.figures["eras"] += max(site.eras for site in self.oracle.sites.values())

    def make_template(self) -> None:
        """For so many sites."""
        count = len(self.climate.names)
        if count not in _templates:
            _templates[count] = _made(count)


def _made(count: int) -> list[Made]:
    names = NAMES[:count]
    config = config_of(random.Random(1), "durable")
    hosts = [
        RoleHost(name, template.new_disk(name, names), [Region(RING_SLOTS, content=Content())], config)
        for name in names
    ]
    return made(RoleWorld(0, "safety"), hosts, partial(template.fill, names, [host.regions[0] for host in hosts]))
