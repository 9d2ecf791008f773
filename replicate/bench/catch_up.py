"""Catching up: transactions wait in the primary's journal, then the secondary connects; how fast are they applied?

Kinds: insert; update (by key, in random order, of a table that was seeded); mixed (of ten: five inserts, four updates,
one delete); ten (inserts, ten rows a transaction); one (a single transaction).

Guarantees: what is written is the same for the same arguments; a figure ends when everything is applied and durable.
Leaves to others: how often it is measured, and beside what.
"""

from __future__ import annotations

import random
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, Final

import replicate
from replicate.bench.street import Bench, attach, value, wait_for

KINDS: Final = ("insert", "update", "mixed", "ten", "one")
VALUE_BYTES: Final = 100
DAEMONS: Final = ("source", "receiver", "update")
LOOK_S: Final = 0.001
"""Between two looks for the first one applied."""
FEW: Final = 100
"""Transactions that have no rate."""
WATCH_S: Final = 0.02
"""How often the daemons' memory is looked at."""


def statements(kind: str, count: int) -> Iterator[tuple[str, tuple[Any, ...]]]:
    """The rows to write, in order; the same for the same arguments."""
    dice = random.Random(6)
    insert = "INSERT INTO item (id, value) VALUES (?, ?)"
    if kind == "update":
        keys = list(range(1, count + 1))
        dice.shuffle(keys)
        for number in keys:
            yield "UPDATE item SET value = ? WHERE id = ?", (value(number, 1, VALUE_BYTES), number)
        return
    if kind != "mixed":
        for number in range(1, count + 1):
            yield insert, (number, value(number, 0, VALUE_BYTES))
        return
    last, deleted = 0, 0
    for step in range(count):
        place = step % 10
        if place % 2 == 0:
            last += 1
            yield insert, (last, value(last, 0, VALUE_BYTES))
        elif place == 9:
            deleted += 1
            yield "DELETE FROM item WHERE id = ?", (deleted,)
        else:
            number = dice.randint(deleted + 1, last)
            yield "UPDATE item SET value = ? WHERE id = ?", (value(number, step, VALUE_BYTES), number)


def write(instance: Path, kind: str, count: int, *, until_s: float = float("inf")) -> tuple[int, int]:
    """Commit the backlog of `count` rows, or what of it can be begun before `until_s` (time.monotonic); the primary's
    last seqno, and the rows."""
    each = {"ten": 10, "one": count}.get(kind, 1)
    connection = replicate.connect(instance)
    rows = 0
    for sql, parameters in statements(kind, count):
        connection.execute(sql, parameters)
        rows += 1
        if rows % each == 0:
            connection.commit()
            if time.monotonic() >= until_s:
                break
    connection.commit()
    last = connection.last_seqno
    connection.close()
    return int(last or 0), rows


def rate(left: int, seconds: float, backlog: int) -> float:
    """Transactions a second when `left` of a backlog were still to do as the first ones were seen to be applied; 0.0 if
    that says nothing. Of a single transaction there is no first one before the last, and nor does it where most of the
    backlog was done before anybody looked."""
    return left / seconds if left > max(FEW, backlog // 2) else 0.0


def catch_up(bench: Bench, instance: Path, last_seqno: int, count: int) -> dict[str, Any]:
    """One round: start the three daemons, wait until everything is applied and durable, stop them."""
    bench.start_receiver(instance)
    bench.run("-i", instance, "update", "start")
    pool = attach(instance)
    first_seqno = pool.applied_seqno
    at = {"receiver": instance, "update": instance}
    before = {name: bench.cost(place, name, bench.pid(place, name)).cpu_s for name, place in at.items()}
    first = 0.0
    applied_then = first_seqno

    def note_first() -> None:
        nonlocal first, applied_then
        if not first and pool.applied_seqno > first_seqno:
            first, applied_then = time.perf_counter(), pool.applied_seqno

    begun = time.perf_counter()
    with ThreadPoolExecutor(1) as beside:  # a quick machine applies hundreds of thousands before this returns
        start = beside.submit(bench.run, "-i", bench.primary, "source", "start", "--peer", instance.name)
        while not start.done():
            note_first()
            time.sleep(LOOK_S)
        start.result()
    places = {"source": (bench.primary, f"source-{instance.name}")}
    places |= {name: (place, name) for name, place in at.items()}
    pids = {name: bench.pid(*place) for name, place in places.items()}
    # Its start costs it as much as hundreds of thousands of transactions, some of which it has sent by now.
    source_start_s = bench.cost(*places["source"], pids["source"]).cpu_s
    source_sent = pool.last_received_seqno - first_seqno
    most = dict.fromkeys(DAEMONS, 0)
    looked = 0.0
    backlog_before = last_seqno - first_seqno

    def reached() -> bool:
        nonlocal looked
        note_first()
        now = time.perf_counter()
        if now > looked + WATCH_S:
            looked = now
            for name, pid in pids.items():
                most[name] = max(most[name], bench.cost(*places[name], pid).anonymous_bytes)
        return pool.durable_seqno >= last_seqno

    ended = wait_for(reached, f"{instance.name} has applied {last_seqno}")
    cpu = {name: bench.cost(*places[name], pid).cpu_s - before.get(name, 0.0) for name, pid in pids.items()}
    if source_sent < backlog_before // 2:  # of a short backlog most is sent by then: its start is counted in
        cpu["source"] = (cpu["source"] - source_start_s) * backlog_before / (backlog_before - source_sent)
    pool.close()
    bench.run("-i", bench.primary, "source", "stop", "--peer", instance.name)
    bench.run("-i", instance, "receiver", "stop")
    bench.run("-i", instance, "update", "stop")
    since_first = rate(last_seqno - applied_then, ended - first, backlog_before) if first else 0.0
    return {
        "from_first": since_first * count / backlog_before,
        "from_start": count / (ended - begun),
        "source_start_cpu_s": source_start_s,
        "cpu_us": {name: seconds / count * 1e6 for name, seconds in cpu.items()},
        "memory_mib": {name: size / 2**20 for name, size in most.items()},
    }
