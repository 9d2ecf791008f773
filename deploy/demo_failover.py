"""The second demonstration: the primary is lost, the other site takes over, the old one returns, and all is as before.

What it is: a story told with the command `replicate` alone; its commands are those of `replicate help roles`.
Guarantees: exit code 0 means that every process of the primary was killed while it had transactions that nobody else
had; that the application went on at the other site; that what was lost was put back by `lost apply`, each transaction
once; that the roles were changed back; and that both databases were equal in the end, by `replicate compare` and by an
independent row-by-row comparison. However it ends, nothing of it is left running.
Leaves to others: how replication works; it only uses what any user can.
"""

from __future__ import annotations

import contextlib
import os
import re
import shlex
import signal
import socket
import sqlite3
import sys
import time
from pathlib import Path
from typing import Any, Final

from demo_commands import DemoFailedError, Workshop, WriterProcess, is_alive, say, wait_until
from demo_compare import compare_files
from demo_relay import Relay

NORTH: Final = "north"
SOUTH: Final = "south"
RATE: Final = 100.0
"""Transactions a second of each writer."""
HEARTBEAT_S: Final = 0.5
DEAD_AFTER_S: Final = 2.0
"""So long the takeover is refused after the primary was heard. In earnest it is a minute."""
WORK_S: Final = 2.0
ALONE_S: Final = 1.5
"""For so long the primary commits what nobody else gets."""
GONE_S: Final = 60.0
STARTS_S: Final = 60.0
LEVEL_S: Final = 60.0


class FailoverStory:
    """The steps, in their order."""

    def __init__(self, shop: Workshop) -> None:
        self.shop = shop
        self.relay: Relay | None = None
        self._began = time.monotonic()
        self._ports = {site: _free_port() for site in (NORTH, SOUTH)}
        self._taken_over = 0
        """The last transaction that both sites have."""
        self._lost_file = ""
        self._rows_before = 0

    def tell(self) -> None:
        """Everything. Raises DemoFailedError, sqlite3.Error, OSError."""
        self._set_up()
        self._lose_the_primary()
        self._take_over()
        self._return()
        self._put_back()
        self._change_back()
        self._prove()

    # 1. Two sites.

    def _set_up(self) -> None:
        say("1. Two sites: north is primary, and the shop writes there. South follows.")
        self.shop.application("create", "--plain", str(self.shop.path / "shop.db"))
        self.shop.instances.append(NORTH)
        self.shop.run("instance", "create", NORTH, "--role", "primary")
        self.shop.run("region", "add", "shop.db", "--name", "main", instance=NORTH)
        network = self.shop.ask("instance", "show", instance=NORTH)["network"]
        self.shop.instances.append(SOUTH)
        self.shop.run("instance", "create", SOUTH, "--role", "secondary", "--network", network)
        say("  (The file replicate.toml of both makes them ready for either role: where a Receiver Server listens, and")
        say("  quick heartbeats.)")
        for site in (NORTH, SOUTH):
            self._configure(site)
        self.shop.run("receiver", "start", instance=SOUTH)
        self.relay = Relay(self._ports[SOUTH])
        say("  (Between the two stands a relay of this demonstration, which will cut the line.)")
        self.shop.run("peer", "add", SOUTH, f"127.0.0.1:{self.relay.port}", instance=NORTH)
        self.shop.run("source", "start", instance=NORTH)
        self.shop.run("seed", "--from", NORTH, instance=SOUTH)
        self.shop.run("update", "start", instance=SOUTH)
        self._work(NORTH, 1, 2)
        self._sleep(WORK_S)

    def _configure(self, site: str) -> None:
        """As with an editor: the file has each setting, commented out, with its default."""
        file = self.shop.path / site / "replicate.toml"
        text = file.read_text(encoding="utf-8")
        for name, value, sections in (
            ("listen", f'"127.0.0.1:{self._ports[site]}"', 1),
            ("heartbeat_period_s", f"{HEARTBEAT_S:g}", 2),
            ("dead_after_s", f"{DEAD_AFTER_S:g}", 2),
        ):
            text, found = re.subn(rf"^# {name} = .*$", f"{name} = {value}", text, flags=re.MULTILINE)
            if found != sections:
                raise DemoFailedError(f"{file} should have {name} {sections} times, it has it {found} times")
        file.write_text(text, encoding="utf-8")

    # 2. The disaster.

    def _lose_the_primary(self) -> None:
        assert self.relay is not None
        say("\n2. The line fails. The shop does not notice, and goes on writing: nobody else gets that.")
        if not self.relay.cut(timeout_s=60.0):
            raise DemoFailedError("the connection could not be cut: nothing was sent through it for 60 s")
        self._sleep(ALONE_S)
        say("  Then north goes down: kill -9 for the process group of each of its processes, the shop's too.")
        there = str(self.shop.path / NORTH)
        found = {pid: words for pid, words in self.shop.running().items() if f" {there} " in f"{words} "}
        if len(found) < 3:
            raise DemoFailedError(f"two writers and the Source Server should run at north, there are {len(found)}")
        for pid in found:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(pid, signal.SIGKILL)
        if not wait_until(lambda: not any(map(is_alive, found)), GONE_S):
            raise DemoFailedError("a process of north could not be killed")
        for writer in self.shop.writers:
            writer.kill()
        self.shop.writers.clear()
        say(f"  {len(found)} processes are dead.")

    # 3. The takeover.

    def _take_over(self) -> None:
        say("\n3. South takes over, because an operator says so. Nothing does it by itself.")
        self.shop.run("status", instance=SOUTH, allowed=(0, 1))
        say("  (For a while after the primary was heard this is refused: two primaries would part.)")
        self._sleep(DEAD_AFTER_S)
        promoted = self.shop.ask("promote", instance=SOUTH, show=True)
        self._taken_over = int(promoted["seqno"])
        say(f"      south is primary, with all transactions up to {self._taken_over}")
        say("  (Its daemons stood aside for that, and go on in the new role.)")
        self._rows_before = self._rows_of((1, 2))
        say("  The application goes on there. (Its service desk; the tills would give new numbers to purchases, which")
        say("  those that were lost have, too. That would be a conflict of each, and is nobody's wish on such a day.)")
        self._work(SOUTH, 3, only="edit_customer")
        self._sleep(WORK_S)

    # 4. The old primary returns.

    def _return(self) -> None:
        say(f"\n4. North comes back. What it has after {self._taken_over} nobody else has. It takes that back,")
        say("  and before that all of it goes to a file.")
        self.shop.run("demote", instance=NORTH)
        self.shop.run("rollback", "--to", str(self._taken_over), "--dry-run", instance=NORTH)
        done = self.shop.ask("rollback", "--to", str(self._taken_over), instance=NORTH, show=True)
        found = sorted(self.shop.path.glob(f"{NORTH}-lost-*.jsonl"))
        if len(found) != 1:
            raise DemoFailedError(f"there should be one file of lost transactions, there are {len(found)}")
        self._lost_file = found[0].name
        say(f"      north is back at {done['to']}, from {done['last']}; the rest stands in {self._lost_file}")
        say("  Then it follows south: the stream runs the other way. Its Source Server sleeps until north is primary.")
        self.shop.run("peer", "add", NORTH, f"127.0.0.1:{self._ports[NORTH]}", instance=SOUTH)
        self.shop.run("receiver", "start", instance=NORTH)
        self.shop.run("source", "start", instance=NORTH)
        self.shop.run("source", "start", instance=SOUTH)

    # 5. What was lost.

    def _put_back(self) -> None:
        say("\n5. What was lost is put back, by south, which is primary. Where somebody has changed the same row")
        say("  meanwhile it is left out, and said.")
        words = ("lost", "apply", self._lost_file, "--on-conflict", "skip")
        done = self.shop.ask(*words, instance=SOUTH, show=True, allowed=(0, 1))
        applied, conflicts = len(done["applied"]), done["conflicts"]
        say(f"      {applied} applied, {len(done['skipped'])} skipped")
        if conflicts:
            one = conflicts[0]
            say(f"      for instance {one['seqno']}, {one['kind']}: {one['what']} {one['table']}: {one['reason']}")
        if not applied:
            raise DemoFailedError("no lost transaction could be applied")
        again = self.shop.ask(*words, instance=SOUTH, allowed=(0, 1))
        if again["applied"]:
            raise DemoFailedError("lost transactions were applied twice")
        now = self._rows_of((1, 2))
        if now != self._rows_before + applied:
            raise DemoFailedError(
                f"there were {self._rows_before} transactions and {applied} more, now there are {now}"
            )
        say("  (The same command once more applies none: each goes in once.)")

    # 6. The way back.

    def _change_back(self) -> None:
        say("\n6. The line is mended, and the roles are changed back, by plan: nothing is lost. The shop is shut then.")
        reports = [writer.finish(60.0) for writer in self.shop.writers]
        self.shop.writers.clear()
        say(f"      the application had committed {sum(int(report['number']) for report in reports)} at south")
        assert self.relay is not None
        self.relay.mend()
        self._level(SOUTH, NORTH)
        self.shop.run("switchover", "--to", NORTH, instance=SOUTH)
        say("  The shop is open at north again.")
        self._work(NORTH, 1, 2)
        self._sleep(WORK_S)
        for writer in self.shop.writers:
            writer.finish(60.0)

    # 7. The proof.

    def _prove(self) -> None:
        say("\n7. The proof.")
        self._level(NORTH, SOUTH)
        self.shop.run("status", instance=NORTH, allowed=(0, 1))
        self.shop.run("compare", "--with", SOUTH, instance=NORTH)
        self.shop.stop_daemons(30.0, show=False)
        if not wait_until(lambda: not self.shop.running(), GONE_S):
            raise DemoFailedError("something runs after everything was stopped", 70)
        workspace = self.shop.path / "comparison"
        workspace.mkdir()
        found = compare_files(self.shop.path / "shop.db", self._database(SOUTH), workspace)
        for line in found.differences:
            say(f"      DIFFERS  {line}")
        if found.differences:
            raise DemoFailedError("the two databases differ")
        say(f"  A second opinion, of the standard library's sqlite3: {sum(found.rows.values())} rows, all equal.")
        took_s = time.monotonic() - self._began
        say(f"  A disaster, a takeover, a return and a change of roles, in {took_s:.0f} s.")

    def where_next(self) -> None:
        """What a reader may look at after it."""
        say("\nWhere to look next")
        say("  replicate help roles   each of these commands, and what else may happen on such a day")
        if not self.shop.keep:
            say("  deploy/demo --failover --keep leaves both sites behind, to look at.")
            return
        say("  Both sites are still there, stopped. To look at them:")
        for line in (
            f"export PATH={shlex.quote(str(Path(sys.executable).parent))}:$PATH",
            f"export REPLICATE_HOME={shlex.quote(str(self.shop.path))}",
            f"replicate statistics {NORTH} {SOUTH}",
            f"replicate -i {SOUTH} lost show {shlex.quote(str(self.shop.path / self._lost_file))}",
            f"replicate -i {NORTH} journal show --last 5",
        ):
            say(f"      {line}")

    # Hands.

    def _work(self, site: str, *numbers: int, only: str = "") -> None:
        for number in numbers:
            self.shop.start_writer(number, site, RATE, *(("--only", only) if only else ()))
        for writer in self.shop.writers:
            if not wait_until(lambda one=writer: self._has_committed(one), STARTS_S):  # type: ignore[misc]
                raise DemoFailedError(f"writer {writer.number} has committed nothing within {STARTS_S:g} s")
        say(f"  (the application writes at {site})")

    @staticmethod
    def _has_committed(writer: WriterProcess) -> bool:
        writer.check()
        return int(writer.report["last_seqno"]) > 0

    def _level(self, primary: str, secondary: str) -> None:
        """The secondary has all that the primary has."""
        last = self._last_seqno(primary)
        self.shop.run("wait", "--seqno", str(last), "--timeout", f"{LEVEL_S:g}", instance=secondary)

    def _last_seqno(self, site: str) -> int:
        said: dict[str, Any] = self.shop.ask("wait", "--seqno", "0", instance=site)
        return int(said["last_seqno"])

    def _database(self, site: str) -> Path:
        return Path(self.shop.ask("region", "list", instance=site)[0]["path"])

    def _rows_of(self, writers: tuple[int, ...]) -> int:
        """How many transactions of these writers south holds, as any reader sees it."""
        with contextlib.closing(sqlite3.connect(f"{self._database(SOUTH).as_uri()}?mode=ro", uri=True)) as database:
            marks = ", ".join("?" * len(writers))
            query = f"SELECT count(*) FROM journal_of_work WHERE writer IN ({marks})"
            return int(database.execute(query, writers).fetchone()[0])

    def _sleep(self, seconds: float) -> None:
        """The application works; it must not have ended."""
        until = time.monotonic() + seconds
        while time.monotonic() < until:
            for writer in self.shop.writers:
                writer.check()
            time.sleep(0.1)


def _free_port() -> int:
    with contextlib.closing(socket.socket()) as one:
        one.bind(("127.0.0.1", 0))
        return int(one.getsockname()[1])
