"""One supplier is an island for as long as is asked, an hour for instance, while all three write on.

Meanwhile daemons, writers and whole hosts die on both sides, and the line between the two others fails. One of these is
restored from a backup of before, the island from a snapshot of its machine that was taken while it was one.
Guarantees: each site that takes writes goes on writing, looked at after each thing that happens; what the island lacks
is trimmed nowhere before it has it, and is trimmed afterwards; who is silent is named when it is time, not before.
Leaves to others: how it is done (suppliers.py), what is judged (supplier_judge.py).
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from itertools import cycle
from typing import TYPE_CHECKING, Any, Final

from replicate.door.recovery.opening import make_chain
from replicate.instance.instance import Instance
from replicate.instance.kept_journal import journal_kept
from tests.harness.command_line import in_environment
from tests.harness.supplier_street import NAMES
from tests.harness.waiting import wait_until

if TYPE_CHECKING:
    from tests.faults.suppliers import Three

WIDTH: Final = 1000
PAUSE_S: Final = 0.3
TRANSACTIONS: Final = 12_000
"""Of a writer, at most, however long it lasts."""
CAP_BYTES_A_SECOND: Final = 4000
"""A third of what three such writers write: an island of an hour fills the journals of the others."""
CAP_LEAST: Final = 2 * 1024 * 1024
EVENTS: Final = 24
EVENT_S: Final = 2.5
"""One takes so long at least."""
SNAPSHOT_AT: Final = 0.5
RESTORED_AT: Final = 0.85
"""As parts of the time."""
SLACK_S: Final = 30.0
ISLAND: Final = "supplier island: "
ISLAND_LEAST: Final = (
    "suppliers: acknowledged",
    "suppliers: values lost in merges",
    f"{ISLAND}named as silent",
    f"{ISLAND}died meanwhile",
)


def island_settings(island_s: float) -> dict[str, Any]:
    """What three of that kind are set to."""
    return {"cap_bytes": max(CAP_LEAST, int(CAP_BYTES_A_SECOND * island_s)), "silent_s": max(5.0, island_s / 60)}


def live_island(three: Three, island_s: float) -> None:
    """All of it, with its judgement. Raises NotAtRest, and AssertionError for what does not come to pass."""
    three.width, three.pause_s, three.load = WIDTH, min(PAUSE_S, island_s / TRANSACTIONS), 5
    three.level_s = three.patience_s = max(three.level_s, island_s / 6)
    with ExitStack() as held:
        three.live("an island for long", lambda three: _Island(three, island_s).live(held))
        three.judge()
    three.live("trimmed after an island", trimmed)
    three.judge()


def trimmed(three: Three) -> None:
    """Nobody lacks anything any more: journals give up what they have kept."""
    with in_environment(three.street.environment):
        before = {name: first_kept(three, name) for name in NAMES}
        three.write(width=4000, pause_s=0.005)
        wait_until(
            lambda: all(first_kept(three, name) > before[name] for name in NAMES),
            timeout_s=three.patience_s,
            what="all journals are trimmed",
        )
    three.figures[f"{ISLAND}journals trimmed afterwards"] += len(NAMES)


def first_kept(three: Three, name: str) -> int:
    """The first transaction of its journal."""
    return make_chain(Instance.open(three.street.by[name])).first_seqnos()[0]


class _Island:
    """`name` is it; of the two others `restored` is."""

    def __init__(self, three: Three, island_s: float) -> None:
        self.three, self.island_s = three, island_s
        self.silent_s: float = island_settings(island_s)["silent_s"]
        self.cap_bytes: int = island_settings(island_s)["cap_bytes"]
        self.name, self.restored, self.third = three.dice.sample(NAMES, len(NAMES))
        self.writing = list(NAMES)
        """Sites that take writes."""
        self.begun_s = 0.0
        self.kept_from: dict[str, int] = {}
        """Where each journal begins."""
        self.backup, self.snapshot = three.copy(), three.copy()
        self._deaths = cycle(three.dice.sample(DEATHS, len(DEATHS)))
        self._places = cycle([self.name, self.restored, self.third])

    @property
    def passed_s(self) -> float:
        return time.monotonic() - self.begun_s

    def live(self, held: ExitStack) -> None:
        """`held`: what holds the journals as they are from the end of the island on, for the judgement."""
        three, street = self.three, self.three.street
        print(f"{self.name} is the island, {self.restored} is restored, {street.ways}", flush=True)
        three.write()
        three.counted(three.load)
        three.lose(self.restored)
        street.keep(self.restored, self.backup)
        three.come_up(self.restored)
        three.write(self.restored)
        with in_environment(street.environment):
            self.kept_from = {name: first_kept(three, name) for name in NAMES}
        relays = [relay for way, relay in street.relays.items() if self.name in way]
        for relay in relays:
            relay.is_refusing = True
            relay.part()
            relay.forget()
        self.begun_s = time.monotonic()
        for at_s, event in self.events():
            time.sleep(max(0.0, at_s - self.passed_s))
            event()
            three.counted(three.load, *self.writing)
            self.look()
        time.sleep(max(0.0, self.island_s - self.passed_s))
        self.look_at_the_end()
        for name in NAMES:
            with in_environment(street.environment):
                held.enter_context(journal_kept(Instance.open(street.by[name]), 0))
        print(f"the island ends after {self.passed_s:.0f} s", flush=True)
        three.heal()
        three.counted(three.load)
        self.writing = list(NAMES)
        for name in NAMES:
            wait_until(
                lambda name=name: not three.silent_at(name),
                timeout_s=three.patience_s,
                what=f"{name} says that nobody is silent",
            )
        self.turn_back()

    def events(self) -> Iterator[tuple[float, Callable[[], None]]]:
        """What happens, and when: things die at even distances; the snapshot and the restoration once each."""
        count = max(2, min(EVENTS, int(self.island_s / EVENT_S)))
        planned: list[tuple[float, Callable[[], None]]] = [
            ((number + 0.5) / count, self.something_dies) for number in range(count)
        ]
        planned += [(SNAPSHOT_AT, self.take_snapshot), (RESTORED_AT, self.restore)]
        for part, event in sorted(planned, key=lambda one: one[0]):
            yield part * self.island_s, event

    def note(self, what: str, count: int = 1) -> None:
        self.three.figures[f"{ISLAND}{what}"] += count

    # What happens.

    def something_dies(self) -> None:
        name, death = next(self._places), next(self._deaths)
        death(self, name)
        self.note("died meanwhile")
        self.note(f"died meanwhile, {'on it' if name == self.name else 'elsewhere'}")

    def a_daemon(self, name: str) -> None:
        three = self.three
        daemon = three.dice.choice(three.street.daemons(name))
        three.kill(name, daemon)
        three.counted(three.load, *self.writing)
        three.start(name, daemon)

    def a_writer(self, name: str) -> None:
        self.three.end(name)
        self.three.write(name)

    def a_host(self, name: str) -> None:
        self.three.lose(name)
        self.three.counted(self.three.load, *(one for one in self.writing if one != name))
        self.three.come_up(name)
        self.three.write(name)

    def a_line(self, name: str) -> None:
        """Of the two that have one; on the island the source that tries to reach them dies."""
        three = self.three
        if name == self.name:
            daemon = f"source-{three.dice.choice(three.street.ways[name])}"
            three.kill(name, daemon)
            three.start(name, daemon)
            return
        relay = three.street.relays[name, self.third if name == self.restored else self.restored]
        relay.part()
        three.counted(three.load, *self.writing)
        relay.forget()
        relay.heal()

    def take_snapshot(self) -> None:
        with self.three.standing_still(self.name):
            self.three.street.keep(self.name, self.snapshot)

    def restore(self) -> None:
        """From the backup. It takes no writes before the island has sent what it had."""
        three, name = self.three, self.restored
        three.write_until_others_have_it(name)
        three.lose(name)
        three.street.restore(name, self.backup)
        self.writing.remove(name)
        three.come_up(name)
        three.write(name)
        wait_until(
            lambda: f"waiting for {self.name}" in self.finding(name, "RESTORING"),
            timeout_s=three.patience_s,
            what=f"{name} waits for {self.name} alone",
        )
        self.note("restored from a backup meanwhile")

    def turn_back(self) -> None:
        """To the snapshot, the island that was; the others have what it wrote since. Nobody can tell by its files, so
        nothing is written there before the others have said so. Its Source Servers come first, which hear that at once:
        what its Update Process merges before, it may decide by its own word, and write under a number that it has
        written under (rows that give way for a unique value)."""
        three, name = self.three, self.name
        three.write_until_others_have_it(name)
        three.lose(name)
        three.street.turn_back(name, self.snapshot)
        before = Instance.open(three.street.by[name]).content.incarnation
        for peer in three.street.ways[name]:
            three.start(name, f"source-{peer}")
        wait_until(
            lambda: Instance.open(three.street.by[name]).content.incarnation > before,
            timeout_s=three.patience_s,
            what=f"{name} knows that it was turned back",
        )
        three.come_up(name)
        three.write(name)
        three.counted(three.load)
        self.note("turned back to a snapshot of the time")

    # What is looked at.

    def finding(self, name: str, code: str) -> str:
        """What `status` there says of it; empty where it says nothing."""
        told = json.loads(self.three.street.on(self.three.street.by[name], "--json", "status", check=False).stdout)
        return "; ".join(one["text"] for one in told["findings"] if one["code"] == code)

    def look(self) -> None:
        """The others name it as silent, when it is time."""
        for name in (self.restored, self.third):
            is_named = self.name in self.three.silent_at(name)
            if self.passed_s < self.silent_s:
                assert not is_named, f"{name} names {self.name} as silent after {self.passed_s:.0f} s"
            elif name in self.writing and self.passed_s > self.silent_s + SLACK_S:
                self.note("looks at a silent one")
                self.note("looks that found no finding", int(not is_named))
        print(f"{self.passed_s:.0f} s", flush=True)

    def look_at_the_end(self) -> None:
        for name in self.writing:
            others = {self.name} if name != self.name else {self.restored, self.third}
            wait_until(
                lambda name=name, others=others: others <= self.three.silent_at(name),
                timeout_s=self.three.patience_s,
                what=f"{name} names {others} as silent",
            )
            self.note("named as silent", len(others))
        for name in NAMES:
            with in_environment(self.three.street.environment):
                chain = make_chain(Instance.open(self.three.street.by[name]))
                assert chain.first_seqnos()[0] == self.kept_from[name], f"{name} has trimmed what others lack"
                size = chain.size_bytes()
            self.note("journals kept, KiB", size // 1024)
            if size > self.cap_bytes * 1.02:
                assert self.finding(name, "JOURNAL_FULL"), f"{name} does not say that its journal is full"
                self.note("journals full, and named")
        self.note("rows remembered elsewhere", self.three.street.stamped(self.third))
        self.note("seconds", int(self.passed_s))


DEATHS: Final = (_Island.a_daemon, _Island.a_writer, _Island.a_host, _Island.a_line)
