"""Faults of processes that are no kills: stopped, without memory or descriptors, ended in a drain, robbed of a pool.

Guarantees: each puts back what it has changed. Leaves to others: how it is judged afterwards.
"""

from __future__ import annotations

import contextlib
import os
import resource
import signal
import socket
import time
from pathlib import Path
from typing import Final

import pytest

import replicate
from replicate.errors import BusyError
from replicate.instance.instance import Instance
from tests.faults.injections import DEAD_S, Place, injection
from tests.faults.town import DAEMONS
from tests.harness.waiting import wait_until

LESS_BYTES: Final = 4 << 20
TRY_AGAIN: Final = 75
SPARE_BYTES: Final = 256 << 10
_CGROUPS: Final = Path("/sys/fs/cgroup/memory")


@injection(15, short=True)
def a_receiver_that_is_stopped(place: Place) -> None:
    """Its kernel takes bytes for it: only the missing answers tell."""
    before = len(place.ends("source"))
    with place.noticed("frozen", "source"):
        place.freeze("receiver")
    first = place.ends("source")[before]
    assert "silent" in first or "received nothing" in first, first
    with place.recovered("frozen"):
        place.thaw("receiver")


@injection(15)
def a_source_that_is_stopped(place: Place) -> None:
    with place.noticed("frozen", "receiver"):
        place.freeze("source")
    with place.recovered("frozen"):
        place.thaw("source")


@injection(7, 18)
def killed_servers_are_noticed_at_once(place: Place) -> None:
    for role, other in (("source", "receiver"), ("receiver", "source")):
        with place.noticed("killed", other):
            place.town.kill(role)
        with place.recovered("killed"):
            place.town.start(role)


@injection(72)
def both_sites_stopped_longer_than_the_limit(place: Place) -> None:
    """A virtual machine that was paused: nobody takes its own pause for the death of the other, again and again."""
    made = len(place.lines("source", "connection made"))
    place.freeze(*DAEMONS)
    time.sleep(2 * DEAD_S)
    with place.recovered("both frozen"):
        place.thaw(*DAEMONS)
    assert len(place.lines("source", "connection made")) <= made + 3, "a storm of connections"


@injection(14)
def a_writer_that_is_stopped_in_its_commit(place: Place) -> None:
    """It holds the commit lock: others wait, nobody takes the lock from it, who waits too long is told where to look,
    and all goes on when it does."""
    town = place.town
    ready, go = town.told / "ready", town.told / "go"

    def alarmed() -> None:
        connection = replicate.connect(town.primary, timeout=1.0, isolation_level=None)
        ready.touch()
        wait_until(go.exists, timeout_s=120, what="the commit lock is held")
        with pytest.raises(BusyError, match=r"was held by another process for 1 s.*fuser -v"):
            connection.execute("INSERT INTO filler(content) VALUES ('nobody waits for ever')")
        connection.close()

    # Open before: who connects while the lock is held waits for the door's own time instead of the connection's.
    prober = town.run("prober", alarmed)
    wait_until(ready.exists, timeout_s=120, what="it is connected")
    child = town.client(arm="append.after_write:3:stop", pause_s=0.0)
    wait_until(lambda: _state(child.pid) == "T", timeout_s=120, what="it has stopped itself")
    before = town.told_ok()
    go.touch()
    assert prober.wait(120), "it waits for ever"
    assert prober.status == 0, town.errors.read_text()[-2000:]
    assert town.told_ok() <= before + 1, "somebody committed past the lock"
    assert _state(child.pid) == "T", "it went on by itself"
    os.kill(child.pid, signal.SIGCONT)
    town.wait_acknowledged(3)
    town.reap()
    ready.unlink()
    go.unlink()


@injection(17)
def ended_in_a_drain(place: Place) -> None:
    """SIGTERM with a backlog, a second one, or SIGKILL after it: bounded, and the position never goes back."""
    town = place.town
    for role in ("update", "source", "receiver"):
        place.freeze("update")
        backlog = town.client("filler", pause_s=0.0)
        wait_until(lambda: "XON" in town.facts("source").get("state", ""), timeout_s=120, what="XOFF")
        town.kill(backlog.role)
        before = place.held()
        assert town.last_told_seqno() > before, "there is no backlog"
        asked, child = len(place.lines(role, "stop requested")), town.children[role]
        if role == "update":
            place.thaw("update")
        os.kill(child.pid, signal.SIGTERM)
        wait_until(
            lambda role=role, asked=asked: len(place.lines(role, "stop requested")) > asked,  # type: ignore[misc]
            timeout_s=120,
            what=f"{role} is asked to stop",
        )
        way = place.dice.choice(["drained", "a second signal", "killed"])
        if way == "a second signal":
            os.kill(child.pid, signal.SIGTERM)
        elif way == "killed":
            time.sleep(place.dice.random() * 0.1)
            child.kill()
        else:
            place.thaw("update")
        assert child.wait(120), f"{role} does not end"
        assert child.status == 0 or way == "killed", f"{role}, {way}: exit code {child.status}"
        place.figures[f"ended in a drain: {role}, {way}"] += 1
        place.thaw("update")
        town.reap()
        with place.recovered("stopped"):
            town.start(role)
        assert place.held() >= before


@injection(19)
def no_memory_left_in_a_daemon(place: Place) -> None:
    """Rows of a megabyte meet an address space that is full. It may close connections or end; nothing is half done."""
    town = place.town
    role = place.dice.choice(["receiver", "update"])
    pid, child = place.pid(role), town.children[role]
    used = int(Path(f"/proc/{pid}/statm").read_text().split()[0]) * resource.getpagesize()
    resource.prlimit(pid, resource.RLIMIT_AS, (used - LESS_BYTES, resource.RLIM_INFINITY))  # what it has, it keeps
    town.client("huge", count=2, pause_s=0.0)
    town.client("filler", pause_s=0.0)
    town.wait_acknowledged(6)
    if not child.wait(1.5):
        with contextlib.suppress(ProcessLookupError):  # it has just ended
            resource.prlimit(pid, resource.RLIMIT_AS, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
        goal = place.goal()  # it lives if it goes on: its end may take longer than that
        wait_until(lambda: child.poll() or place.applied() >= goal, what=f"{role} ends, or goes on")
    assert not child.poll() or child.status == TRY_AGAIN, f"exit code {child.status}"
    place.figures[f"no memory: {role} {'ended' if child.poll() else 'lived'}"] += 1
    _forgive(place, role)


@injection(18, needs="memory-cgroup")
def the_kernel_takes_a_daemon_for_its_memory(place: Place) -> None:
    """A real end by the kernel's OOM killer: nothing is left in shared memory, and the rest goes on."""
    town = place.town
    role = place.dice.choice(["receiver", "update"])
    group = _CGROUPS / f"replicate-test-{os.getpid()}"
    group.mkdir()
    try:
        town.kill(role)
        child = town.start(role)
        (group / "cgroup.procs").write_text(str(child.pid))  # what it takes from now on counts
        place.wait_streaming()
        pools = sorted(Path(os.environ["REPLICATE_SHM_DIR"]).iterdir())
        used = int((group / "memory.usage_in_bytes").read_text())
        (group / "memory.limit_in_bytes").write_text(str(used + SPARE_BYTES))
        town.client("spooler", pause_s=0.0)
        town.client("filler", pause_s=0.0)
        assert child.wait(120), "the kernel has not killed it"
        assert child.status == -signal.SIGKILL
        town.reap()
        assert sorted(Path(os.environ["REPLICATE_SHM_DIR"]).iterdir()) == pools
        with place.recovered("killed"):
            town.start(role)
    finally:
        town.kill(role)
        group.rmdir()


@injection(20, short=True)
def no_descriptors_left_in_the_receiver(place: Place) -> None:
    """New peers are not served; the stream that is there lives, and nothing spins."""
    town, pid = place.town, place.pid("receiver")
    soft, hard = resource.prlimit(pid, resource.RLIMIT_NOFILE)
    resource.prlimit(pid, resource.RLIMIT_NOFILE, (len(os.listdir(f"/proc/{pid}/fd")) + 1, hard))
    strangers = [socket.create_connection(("127.0.0.1", town.port)) for _ in range(8)]
    try:
        with place.lives():
            began_s, ticks = time.monotonic(), _ticks(pid)
            place.reach(place.goal())
            time.sleep(max(0.0, 1.0 - (time.monotonic() - began_s)))
            used_s = (_ticks(pid) - ticks) / os.sysconf("SC_CLK_TCK")
            assert used_s < 0.6 * (time.monotonic() - began_s), "it spins"
    finally:
        resource.prlimit(pid, resource.RLIMIT_NOFILE, (soft, hard))
        for stranger in strangers:
            stranger.close()


@injection(20)
def no_descriptors_left_in_a_writer(place: Place) -> None:
    """It cannot make the next segment: it is refused by name, alone. Who is connected goes on."""
    town = place.town
    child = town.client("filler", pause_s=0.0)
    told = town.told / f"{child.role}.jsonl"
    wait_until(
        lambda: told.exists() and told.read_bytes().count(b'"result": "ok"') >= 2,
        timeout_s=120,
        what="it has committed",
    )
    resource.prlimit(child.pid, resource.RLIMIT_NOFILE, (len(os.listdir(f"/proc/{child.pid}/fd")) - 1, 1024))
    wait_until(lambda: _refusal(told), timeout_s=120, what="it has no descriptor left")
    assert "EXHAUSTED" in _refusal(told)
    with place.recovered("no descriptors in a writer"):
        pass  # the other clients, who are connected since long before
    assert any(role.startswith("client-") and one.status is None for role, one in town.children.items())


def _refusal(told: Path) -> str:
    """The first line that a client has written of a lack of descriptors; "" without one."""
    lines = told.read_text().splitlines() if told.exists() else []
    return next((line for line in lines if "Too many open files" in line), "")


@injection(22, 23, short=True)
def a_journal_pool_that_is_removed_under_everybody(place: Place) -> None:
    """Writers and source have it mapped. Nobody reads on from what is nobody's any more."""
    town = place.town
    out = town.told / "uuid"
    town.do("uuid", lambda: out.write_text(Instance.open(town.primary).content.uuid.hex()))
    town.reboot(out.read_text())
    deadline = time.monotonic() + 60
    while time.monotonic() < deadline and not place.lines("source", "journal pool replaced"):
        town.client(count=5)
        time.sleep(0.2)
        town.reap()
    assert place.lines("source", "journal pool replaced"), "the source reads what is nobody's any more"
    town.stop_clients()
    _forgive(place, "source")
    town.client(pause_s=0.005)
    with place.recovered("pool removed"):
        pass


@injection(25)
def an_update_process_that_is_dead(place: Place) -> None:
    """Said again and again, the source pauses when the pool is full, and nothing is lost."""
    town = place.town
    town.kill("update")
    town.client("filler", pause_s=0.0)
    wait_until(lambda: "XON" in town.facts("source").get("state", ""), timeout_s=120, what="XOFF")
    wait_until(
        lambda: any(line["level"] == "error" and "Update Process" in line["event"] for line in town.log("receiver")),
        timeout_s=120,
        what="the receiver says so",
    )
    town.stop_clients()
    town.client(pause_s=0.005)
    with place.recovered("update dead"):
        town.start("update")


def _forgive(place: Place, role: str) -> None:
    """A daemon that ended by a named error was in its right: it is started again."""
    for one in (role,):
        child = place.town.children.get(one)
        if child is not None and child.poll():
            del place.town.children[one]
    place.town.reap()
    place.town.strange.clear()
    place.town.start_daemons()


def _state(pid: int) -> str:
    return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]


def _ticks(pid: int) -> int:
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return int(fields[11]) + int(fields[12])
